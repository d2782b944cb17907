package kubernetes_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
	"fleetdesk/internal/proxy/provider/providertest"
	"fleetdesk/internal/testkit/kubelet"
)

const (
	installation = "2f0c6a1e-0000-4000-8000-000000000001/fleetdesk-system"
	testPort     = 43128
	patience     = 60 * time.Second
)

// world is a namespace of the shared API server, with nodes, and a user who has
// the documented Role there and nothing else.
type world struct {
	ns    string
	admin *clientset.Clientset
	user  *rest.Config
	nodes *kubelet.Kubelet
	line  *faultLine
	// secrets is what the operator's own namespace holds.
	secrets *secrets
	section kubernetes.Section
	limit   time.Duration
}

// newWorld makes one. restrict puts Pod security "restricted" in force, as the
// docs ask for.
func newWorld(t *testing.T, change func(*kubernetes.Section), nodes ...kubelet.Node) *world {
	t.Helper()
	cfg, ns := cluster.Config(t), cluster.Namespace(t)
	admin, err := clientset.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{ns: ns, admin: admin, secrets: &secrets{}}
	w.patchNamespace(t, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted","pod-security.kubernetes.io/enforce-version":"latest"}}}`)
	w.section = kubernetes.Section{Cluster: "away", Namespace: ns, KubeconfigSecret: &kubernetes.KubeconfigSecret{Name: "away-kubeconfig"}}
	if change != nil {
		change(&w.section)
	}
	w.user = cluster.User(t, "operator-"+ns)
	w.bind(t, "operator-"+ns, kubernetes.Role(ns, w.section.Service != nil).Rules)
	w.nodes = kubelet.Start(t, kubelet.Options{Config: cfg, Namespace: ns, Nodes: nodes})
	u, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	host := u.Host
	if host == "" {
		host = cfg.Host
	}
	w.line = newFaultLine(t, host)
	w.secrets.put("away-kubeconfig", kubeconfig(t, w.user, "https://"+w.line.address()))
	return w
}

func (w *world) patchNamespace(t *testing.T, patch string) {
	t.Helper()
	_, err := w.admin.CoreV1().Namespaces().Patch(t.Context(), w.ns, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// bind gives a user rights in the namespace, in place of earlier ones.
func (w *world) bind(t *testing.T, user string, rules []rbacv1.PolicyRule) {
	t.Helper()
	api := w.admin.RbacV1()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := api.Roles(w.ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.RoleBindings(w.ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// kubeconfig is a kubeconfig with all that it needs in it.
func kubeconfig(t providertest.T, cfg *rest.Config, server string) string {
	t.Helper()
	raw := clientcmdapi.NewConfig()
	raw.CurrentContext = "away"
	raw.Contexts["away"] = &clientcmdapi.Context{Cluster: "away", AuthInfo: "operator"}
	raw.Clusters["away"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: cfg.CAData}
	raw.AuthInfos["operator"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken}
	text, err := clientcmd.Write(*raw)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(text)
}

// secrets are the Secrets of the operator's own namespace.
type secrets struct {
	mu    sync.Mutex
	text  map[string]string
	reads int
	// err is what each read ends in, where it is set.
	err error
}

func (s *secrets) put(name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text == nil {
		s.text = map[string]string{}
	}
	s.text[name] = text
}

func (s *secrets) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.text, name)
}

func (s *secrets) get(_ context.Context, ref provider.SecretRef) (provider.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.err != nil {
		return nil, s.err
	}
	text, ok := s.text[ref.Name]
	if !ok || ref.Key != "kubeconfig" {
		return nil, fault.Errorf(fault.NotFound, "there is no key %s in Secret %s", ref.Key, ref.Name)
	}
	return provider.Secret(text), nil
}

// open returns a provider over the world.
func (w *world) open(t providertest.T) *kubernetes.Provider {
	t.Helper()
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: w.section, Secret: w.secrets.get, StepLimit: w.limit, HashCost: 4})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func (w *world) host() string { return "away/" + w.ns }

func nameOf(o provider.Owner) string { return "px-" + o.UID + "-" + kubernetes.TagOf(o.Installation) }

// pod reads a Pod past the provider.
func (w *world) pod(t providertest.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := w.admin.CoreV1().Pods(w.ns).Get(within(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return pod
}

// within bounds a call of a harness.
func within(t providertest.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// remains names what there is of an owner: objects by name and label, and
// processes.
func (w *world) remains(t providertest.T, o provider.Owner) []string {
	t.Helper()
	ctx := within(t)
	var found []string
	note := func(kind string, list []string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		for _, name := range list {
			if strings.Contains(name, o.UID) {
				found = append(found, kind+" "+name)
			}
		}
	}
	pods, err := w.admin.CoreV1().Pods(w.ns).List(ctx, metav1.ListOptions{})
	note("pod", names(pods.Items, func(p corev1.Pod) string { return p.Name }), err)
	secrets, err := w.admin.CoreV1().Secrets(w.ns).List(ctx, metav1.ListOptions{})
	note("secret", names(secrets.Items, func(s corev1.Secret) string { return s.Name }), err)
	services, err := w.admin.CoreV1().Services(w.ns).List(ctx, metav1.ListOptions{})
	note("service", names(services.Items, func(s corev1.Service) string { return s.Name }), err)
	for _, pid := range w.nodes.Processes(nameOf(o)) {
		found = append(found, fmt.Sprintf("process %d", pid))
	}
	return found
}

func names[O any](items []O, name func(O) string) []string {
	var out []string
	for _, it := range items {
		out = append(out, name(it))
	}
	slices.Sort(out)
	return out
}

// await waits for a condition, with a far bound.
func await(t providertest.T, what string, holds func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain for %s", patience, what)
		}
		<-tick.C
	}
}

func ownerOf(uid string) provider.Owner {
	return provider.Owner{Installation: installation, Namespace: "crawl", Name: "home-" + uid, UID: uid}
}

func specOf(w *world, uid string) provider.Spec {
	return provider.Spec{Owner: ownerOf(uid), Host: w.host(), Port: testPort, Protocol: provider.HTTP}
}

// running drives Create to Running.
func running(t *testing.T, p *kubernetes.Provider, spec provider.Spec) provider.Instance {
	t.Helper()
	t.Cleanup(func() { gone(t, p, spec.Owner) })
	return until(t, p, spec, provider.Running)
}

// until repeats Create until a state.
func until(t *testing.T, p *kubernetes.Provider, spec provider.Spec, want provider.State) provider.Instance {
	t.Helper()
	var in provider.Instance
	await(t, string(want), func() bool {
		var err error
		in, err = p.Create(context.Background(), spec)
		if err != nil && provider.Class(err) != fault.Conflict && provider.Class(err) != fault.Transient {
			t.Fatalf("Create: %s: %v", provider.Class(err), err)
		}
		return err == nil && in.State == want
	})
	return in
}

func gone(t *testing.T, p *kubernetes.Provider, o provider.Owner) {
	t.Helper()
	await(t, "Gone", func() bool {
		st, err := p.Delete(context.Background(), provider.Ref{Owner: o})
		if err != nil {
			t.Logf("Delete of %s: %v", o.UID, err)
		}
		return err == nil && st == provider.Gone
	})
}

func (w *world) service(t providertest.T, name string) *corev1.Service {
	t.Helper()
	svc, err := w.admin.CoreV1().Services(w.ns).Get(within(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return svc
}

// cleanup is the finalizer that a cloud's controller puts on a load balancer's
// Service before it makes one.
const cleanup = "service.kubernetes.io/load-balancer-cleanup"

// unbalance takes the finalizer away, as a cloud's controller does when the load
// balancer is gone.
func (w *world) unbalance(t providertest.T, name string) {
	t.Helper()
	_, err := w.admin.CoreV1().Services(w.ns).Patch(within(t), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("%v", err)
	}
}

// balance gives a Service an address, as a cloud's controller does; the Service
// is held until unbalance, or the test's end.
func (w *world) balance(t providertest.T, name, address string) {
	t.Helper()
	_, err := w.admin.CoreV1().Services(w.ns).Patch(within(t), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+cleanup+`"]}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { w.unbalance(t, name) })
	svc := w.service(t, name)
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	if _, err := w.admin.CoreV1().Services(w.ns).UpdateStatus(within(t), svc, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("%v", err)
	}
}
