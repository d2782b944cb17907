package operator_test

import (
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/samples"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/proxy/provider/kubernetes"
	"fleetdesk/internal/testkit/kubelet"
)

// kubeconfigSecret puts a kubeconfig into the operator's namespace, in place of
// an earlier one.
func kubeconfigSecret(t *testing.T, c kubeclient.Client, name string, cfg *rest.Config, server string) {
	t.Helper()
	raw := clientcmdapi.NewConfig()
	raw.CurrentContext = "away"
	raw.Contexts["away"] = &clientcmdapi.Context{Cluster: "away", AuthInfo: "operator"}
	raw.Clusters["away"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: cfg.CAData}
	raw.AuthInfos["operator"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	text, err := clientcmd.Write(*raw)
	if err != nil {
		t.Fatal(err)
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "fleetdesk-system", Name: name}, Data: map[string][]byte{"kubeconfig": text}}
	if err := c.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(t.Context(), s) })
}

// grant binds the provider's Role to a user.
func grant(t *testing.T, c kubeclient.Client, ns, user string) {
	t.Helper()
	role := kubernetes.Role(ns, false)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	for _, o := range []kubeclient.Object{role, binding} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// freeAddress is an address where nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// says waits until a Proxy's condition Ready is false with that reason and text.
func says(t *testing.T, c kubeclient.Client, ns, name, reason string, texts ...string) {
	t.Helper()
	until(t, name+" saying what is wrong", func() string {
		px := get(t, c, ns, name)
		ready := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Reason != reason || ready.Status != metav1.ConditionFalse {
			return fmt.Sprintf("%+v", px.Status)
		}
		for _, text := range texts {
			if !strings.Contains(ready.Message, text) {
				return fmt.Sprintf("%q does not say %q", ready.Message, text)
			}
		}
		return ""
	})
}

// Pods of another cluster, under the role that is shipped here and the
// documented one there: Ready, with traffic, asked for a password, back after an
// eviction. What cannot be made ends in a condition with cause and remedy, and
// neither that nor a cluster that is away stops anybody else.
func TestPodsOfAnotherCluster(t *testing.T) {
	c, ns, pods := admin(t), cluster.Namespace(t), cluster.Namespace(t)
	cfg := underRole(t)
	nodes := kubelet.Start(t, kubelet.Options{Config: cluster.Config(t), Namespace: pods})
	user := cluster.User(t, "pods-"+pods)
	grant(t, c, pods, "pods-"+pods)
	kubeconfigSecret(t, c, "pods-kubeconfig", user, user.Host)
	kubeconfigSecret(t, c, "gone-kubeconfig", user, "https://"+freeAddress(t))
	o := options(t, func(o *operator.Options) {
		// Proxies of all kinds reach it by this name; the operator's own is exempt.
		o.OriginBind = freeAddress(t)
		o.OriginURL = "http://" + o.OriginBind
	})
	o.ProvidersConfig = filepath.Join(o.StateDir, "providers.yaml")
	text := "providers:\n- {name: local, kind: local}\n"
	for _, name := range []string{"pods", "gone"} {
		text += fmt.Sprintf("- {name: %s, kind: kubernetes, kubernetes: {cluster: %s, namespace: %s, kubeconfigSecret: {name: %s-kubeconfig}}}\n", name, name, pods, name)
	}
	if err := os.WriteFile(o.ProvidersConfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	op := start(t, cfg, o)

	auth, good := withSecret(ns, "good")
	auth.StringData["password"] = "p:a@s$s%wörd-7Qx"
	good.Spec.Provider = "pods"
	cloudy, imageless, away, local := proxy(ns, "cloudy", "pods"), proxy(ns, "imageless", "pods"), proxy(ns, "away", "gone"), proxy(ns, "local", "local")
	cloudy.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "#cloud-config\n"}
	imageless.Spec.Placement = &v1alpha1.Placement{Image: "registry.example.com/missing:1"}
	for _, obj := range []kubeclient.Object{auth, good, cloudy, imageless, away, local} {
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	px := becomesReady(t, c, ns, "good")
	if px.Status.ExitIP != px.Status.Address || px.Status.Host != "pods/"+pods || !strings.HasPrefix(px.Status.ProviderID, "kubernetes://pods/pods/"+pods+"/px-") {
		t.Errorf("Ready as %+v", px.Status)
	}
	if page := fetch(t, px, op.Origin+"/ip", url.UserPassword("crawl er", "p:a@s$s%wörd-7Qx")); !strings.Contains(page, px.Status.Address) {
		t.Errorf("through it the origin says %q; want %s", page, px.Status.Address)
	}
	becomesReady(t, c, ns, "local")
	says(t, c, ns, "cloudy", v1alpha1.ReasonUnsupported, "cloudInit: a Pod has no cloud-init", "placement.image")
	if got := get(t, c, ns, "cloudy"); len(got.Finalizers) > 0 {
		t.Errorf("what was refused before anything was made has finalizers %q", got.Finalizers)
	}
	says(t, c, ns, "imageless", v1alpha1.ReasonImpaired, "registry.example.com/missing:1", "imagePullSecrets")
	says(t, c, ns, "away", v1alpha1.ReasonUnavailable, "host gone/"+pods, "see whether it runs")
	until(t, "the providers' pages", func() string {
		if good, bad := page(t, c, "pods"), page(t, c, "gone"); !strings.Contains(good, "Reachable=True") || !strings.Contains(bad, "Reachable=False") {
			return good + "; " + bad
		}
		return ""
	})

	// Evicted behind the operator's back: its watch tells, and it is made again.
	name := px.Status.ProviderID[strings.LastIndex(px.Status.ProviderID, "/")+1:]
	nodes.Evict(t, name)
	until(t, "the evicted Pod being made again", func() string {
		if len(nodes.Processes(name)) == 1 && get(t, c, ns, "good").Status.Phase == v1alpha1.PhaseReady {
			return ""
		}
		return fmt.Sprintf("%+v", get(t, c, ns, "good").Status)
	})

	for _, name := range []string{"good", "cloudy", "imageless", "local", "away"} {
		if name == "away" {
			// Its cluster does not answer: a person lets it go.
			skip := get(t, c, ns, name)
			skip.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: "true"}
			if err := c.Update(t.Context(), skip); err != nil {
				t.Fatal(err)
			}
		}
		removed(t, c, ns, name)
	}
	left := &corev1.PodList{}
	if err := c.List(t.Context(), left, kubeclient.InNamespace(pods)); err != nil || len(left.Items) > 0 {
		t.Errorf("%d Pods are left, %v", len(left.Items), err)
	}
	secrets := &corev1.SecretList{}
	if err := c.List(t.Context(), secrets, kubeclient.InNamespace(pods)); err != nil || len(secrets.Items) > 0 {
		t.Errorf("%d Secrets are left, %v", len(secrets.Items), err)
	}
	for _, secret := range []string{"7Qx", "BEGIN", string(user.KeyData)} {
		if strings.Contains(op.logs.String(), secret) {
			t.Error("the log holds a secret")
		}
	}
}

// The samples of Proxies are the files that people copy: each is admitted, with
// no field that is not known.
func TestProxySamplesApply(t *testing.T) {
	ns := cluster.Namespace(t)
	strict := kubeclient.NewNamespacedClient(kubeclient.WithFieldValidation(admin(t), "Strict"), ns)
	files, err := fs.Glob(samples.Files, "proxy_*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		data, err := samples.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(data, &u.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if err := strict.Create(t.Context(), u, kubeclient.DryRunAll); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
