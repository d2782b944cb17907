package kubernetes_test

import (
	"context"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// health is the row of Check.
func health(t *testing.T, p *kubernetes.Provider) provider.HostHealth {
	t.Helper()
	rows, err := p.Check(t.Context())
	if err != nil || len(rows) != 1 {
		t.Fatalf("Check = %+v, %v", rows, err)
	}
	return rows[0]
}

// Each way in which a cluster cannot be used ends in an error with its class,
// the place and the remedy, in one line, and in a row of Check with its reason.
func TestClustersThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	away, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = away.Close() // nobody listens there any more
	stranger := httptest.NewUnstartedServer(http.NotFoundHandler())
	stranger.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	stranger.StartTLS()
	t.Cleanup(stranger.Close)
	itsCA := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stranger.Certificate().Raw})
	for name, tc := range map[string]struct {
		reason string
		harm   func(t *testing.T, w *world)
		class  fault.Class
		row    string
		says   []string
	}{
		"no Secret": {
			"it was never made, or has another name", func(_ *testing.T, w *world) { w.secrets.remove("away-kubeconfig") },
			fault.Permanent, kubernetes.ReasonKubeconfig,
			[]string{"away-kubeconfig"},
		},
		"malformed": {
			"half a file; nothing of it may be quoted", func(_ *testing.T, w *world) { w.secrets.put("away-kubeconfig", "token: canary-secret\n\t]") },
			fault.Permanent, kubernetes.ReasonKubeconfig,
			[]string{"is no kubeconfig", "kubectl config view --raw --flatten"},
		},
		"empty": {
			"a Secret made without its content", func(_ *testing.T, w *world) { w.secrets.put("away-kubeconfig", "") },
			fault.Permanent, kubernetes.ReasonKubeconfig,
			[]string{"current-context"},
		},
		"away": {
			"the cluster's machine is off", func(t *testing.T, w *world) {
				w.secrets.put("away-kubeconfig", kubeconfig(t, w.user, "https://"+away.Addr().String()))
			},
			fault.Unavailable, kubernetes.ReasonUnreachable,
			[]string{"see whether it runs"},
		},
		"not encrypted": {
			"credentials would go over the wire as they are", func(t *testing.T, w *world) {
				w.secrets.put("away-kubeconfig", kubeconfig(t, w.user, "http://192.0.2.9:8080"))
			},
			fault.Permanent, kubernetes.ReasonKubeconfig,
			[]string{"begins with https://"},
		},
		"another server's certificate": {
			"a kubeconfig of a cluster that was made anew, or somebody in between", func(t *testing.T, w *world) {
				w.secrets.put("away-kubeconfig", kubeconfig(t, w.user, stranger.URL))
			},
			fault.Permanent, kubernetes.ReasonUnreachable,
			[]string{"certificate", "take the kubeconfig anew"},
		},
		"no API server": {
			"a wrong port: what says 404 there knows nothing of Pods", func(t *testing.T, w *world) {
				w.secrets.put("away-kubeconfig", kubeconfig(t, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: itsCA}}, stranger.URL))
			},
			fault.Permanent, kubernetes.ReasonUnreachable,
			[]string{"no Kubernetes API server"},
		},
		"credentials not known": {
			"a token that expired", func(t *testing.T, w *world) {
				w.secrets.put("away-kubeconfig", kubeconfig(t, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: w.user.CAData}, BearerToken: "canary-secret"}, "https://"+w.line.address()))
			},
			fault.Permanent, kubernetes.ReasonUnauthorized,
			[]string{"renew them in the kubeconfig Secret"},
		},
		"no rights": {
			"the Role was not bound", func(t *testing.T, w *world) {
				w.secrets.put("away-kubeconfig", kubeconfig(t, cluster.User(t, "nobody-"+w.ns), "https://"+w.line.address()))
			},
			fault.Denied, kubernetes.ReasonForbidden,
			[]string{"bind the Role", ownNS},
		},
		"no namespace": {
			"a typo in the section", func(t *testing.T, w *world) {
				w.section.Namespace = "no-such-namespace"
				w.secrets.put("away-kubeconfig", kubeconfig(t, cluster.Config(t), "https://"+w.line.address()))
			},
			fault.Permanent, kubernetes.ReasonNamespaceMissing,
			[]string{"make namespace no-such-namespace"},
		},
		"namespace being deleted": {
			"somebody deleted it", func(t *testing.T, w *world) {
				if err := w.admin.CoreV1().Namespaces().Delete(t.Context(), w.ns, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				await(t, "the API server to refuse", func() bool {
					_, err := w.admin.CoreV1().Secrets(w.ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "x"}}, metav1.CreateOptions{})
					return err != nil
				})
			},
			fault.Permanent, kubernetes.ReasonNamespaceMissing,
			[]string{"is being deleted"},
		},
		"quota": {
			"the namespace may have no more Pods", func(t *testing.T, w *world) { w.quota(t, 0) },
			fault.Quota, kubernetes.ReasonQuotaExceeded,
			[]string{"exceeded quota", "raise the ResourceQuota"},
		},
		"mute": {
			"a firewall that drops", func(_ *testing.T, w *world) { w.line.setMute(true) },
			fault.Timeout, kubernetes.ReasonTimeout, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			w.limit = 10 * time.Second
			tc.harm(t, w)
			p := w.open(t)
			host := "away/" + w.section.Namespace
			spec := specOf(w, "bad")
			spec.Host = host
			spec.Credentials = provider.Credentials{User: "crawler", Password: provider.Secret("canary-secret")}
			ctx := t.Context()
			if tc.class == fault.Timeout {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
			}
			_, err := p.Create(ctx, spec)
			if err == nil || fault.Of(err) != tc.class {
				t.Fatalf("%s: Create: %s: %v; want %s", tc.reason, fault.Of(err), err, tc.class)
			}
			text := err.Error()
			for _, says := range append(tc.says, "host "+host) {
				if says == ownNS {
					says = w.ns
				}
				if !strings.Contains(text, says) {
					t.Errorf("%s: %q does not say %q", tc.reason, text, says)
				}
			}
			if strings.ContainsAny(text, "\n\r") || strings.Contains(text, "canary") {
				t.Errorf("%s: the text has several lines, or a secret: %q", tc.reason, text)
			}
			rows, err := p.Check(ctx)
			if err != nil && tc.class != fault.Timeout {
				t.Fatal(err)
			}
			if err == nil && (rows[0].Reason != tc.row || rows[0].Host != host || strings.Contains(rows[0].Message, "canary")) {
				t.Errorf("%s: Check = %+v; want reason %s", tc.reason, rows[0], tc.row)
			}
			if err == nil && !slices.Contains(kubernetes.Reasons(), rows[0].Reason) {
				t.Errorf("reason %s is not documented", rows[0].Reason)
			}
			if _, err := p.Get(ctx, provider.Ref{Owner: spec.Owner}); tc.class != fault.Quota && tc.row != kubernetes.ReasonNamespaceMissing && (err == nil || fault.Of(err) == fault.NotFound) {
				t.Errorf("%s: Get = %v; NotFound would make a fleet again", tc.reason, err)
			}
		})
	}
}

// ownNS stands for the world's namespace in the table above.
const ownNS = "{namespace}"

// quota has the API server refuse more Pods: its status is what admission reads,
// and no controller writes it here.
func (w *world) quota(t *testing.T, pods int64) {
	t.Helper()
	hard := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI)}
	q, err := w.admin.CoreV1().ResourceQuotas(w.ns).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
	}, metav1.CreateOptions{})
	if err == nil {
		q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
		_, err = w.admin.CoreV1().ResourceQuotas(w.ns).UpdateStatus(t.Context(), q, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the quota to be in force", func() bool {
		_, err := w.admin.CoreV1().Pods(w.ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "x"}, Spec: plainPod(),
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "exceeded quota: pods")
	})
}

// When a quota is raised, Create goes on where it was.
func TestQuotaIsRaised(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.open(t)
	w.quota(t, 0)
	spec := specOf(w, "quota")
	if _, err := p.Create(t.Context(), spec); fault.Of(err) != fault.Quota {
		t.Fatalf("Create: %v", err)
	}
	if err := w.admin.CoreV1().ResourceQuotas(w.ns).Delete(t.Context(), "pods", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gone(t, p, spec.Owner) })
	await(t, "the instance", func() bool {
		in, err := p.Create(t.Context(), spec)
		return err == nil && in.State == provider.Running
	})
}

// Credentials that are revoked in the middle are Denied, never NotFound, and new
// ones in the same Secret are used without a new provider.
func TestRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.open(t)
	spec := specOf(w, "rotated")
	in := running(t, p, spec)
	ref := provider.Ref{ID: in.ID, Owner: spec.Owner}
	if err := w.admin.RbacV1().RoleBindings(w.ns).Delete(t.Context(), "operator-"+w.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the rights to be gone", func() bool {
		_, err := p.Get(t.Context(), ref)
		if err != nil && fault.Of(err) != fault.Denied {
			t.Fatalf("Get: %s: %v", fault.Of(err), err)
		}
		return err != nil
	})
	rows, err := p.ListByTag(t.Context(), installation)
	if err != nil || fault.Of(rows[0].Err) != fault.Denied || len(rows[0].Instances) > 0 {
		t.Errorf("the list = %+v, %v", rows, err)
	}
	if row := health(t, p); row.Reason != kubernetes.ReasonForbidden {
		t.Errorf("Check = %+v", row)
	}
	// A token that is not accepted has the Secret read anew at once.
	w.secrets.put("away-kubeconfig", kubeconfig(t, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: w.user.CAData}, BearerToken: "revoked"}, "https://"+w.line.address()))
	p2 := w.open(t)
	if _, err := p2.Get(t.Context(), ref); fault.Of(err) != fault.Permanent {
		t.Errorf("Get with a revoked token: %v", err)
	}
	fresh := cluster.User(t, "fresh-"+w.ns)
	w.bind(t, "fresh-"+w.ns, kubernetes.Role(w.ns, false).Rules)
	w.secrets.put("away-kubeconfig", kubeconfig(t, fresh, "https://"+w.line.address()))
	await(t, "the new kubeconfig to be used", func() bool {
		got, err := p2.Get(t.Context(), ref)
		return err == nil && got.State == provider.Running
	})
	// The first one reads it again after its time, and its list is whole again.
	rotated, err := kubernetes.New(kubernetes.Options{
		Name: "away", Section: w.section, Secret: w.secrets.get, HashCost: 4, Clock: leap(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer rotated.Close()
	for range 3 {
		rows, err := rotated.ListByTag(t.Context(), installation)
		if err != nil || rows[0].Err != nil || len(rows[0].Instances) != 1 {
			t.Errorf("the list = %+v, %v", rows, err)
		}
	}
	w.bind(t, "again-"+w.ns, kubernetes.Role(w.ns, false).Rules)
	w.secrets.put("away-kubeconfig", kubeconfig(t, cluster.User(t, "again-"+w.ns), "https://"+w.line.address()))
	if err := w.admin.RbacV1().RoleBindings(w.ns).Delete(t.Context(), "fresh-"+w.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the list by yet another kubeconfig", func() bool {
		rows, err := rotated.ListByTag(t.Context(), installation)
		return err == nil && rows[0].Err == nil && len(rows[0].Instances) == 1
	})
	gone(t, rotated, spec.Owner)
	w.bindAgain(t)
}

// leap is a clock that goes on by a minute at each look.
func leap() func() time.Time {
	now := make(chan time.Time, 1)
	now <- time.Now()
	return func() time.Time {
		t := (<-now).Add(time.Minute)
		now <- t
		return t
	}
}

// bindAgain gives the world's own user its rights back, for what cleans up.
func (w *world) bindAgain(t *testing.T) {
	t.Helper()
	name := "operator-" + w.ns
	_, err := w.admin.RbacV1().RoleBindings(w.ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// What this provider cannot do is refused by Place, before anything is made, and
// says which field to mend.
func TestSpecsThatAreRefused(t *testing.T) {
	t.Parallel()
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: kubernetes.Section{
		Namespace: "proxies", NodeSelector: map[string]string{"exit": "yes"},
		Images: map[string]kubernetes.Image{"own": {Image: "registry.example.com/own:1"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	good := provider.Spec{Owner: ownerOf("refused"), Host: "cluster/proxies", Port: testPort, Protocol: provider.HTTP}
	if host, err := p.Place(t.Context(), good); err != nil || host != "cluster/proxies" {
		t.Fatalf("Place = %q, %v", host, err)
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*provider.Spec)
		class  fault.Class
		says   string
	}{
		"cloudInit":            {"a Pod has none", func(s *provider.Spec) { s.UserData = provider.Secret("#cloud-config\n") }, fault.Unsupported, "cloudInit: a Pod has no cloud-init"},
		"image key":            {"a typo", func(s *provider.Spec) { s.Image = "squit" }, fault.Invalid, "neither a key of kubernetes.images (own, squid)"},
		"image reference":      {"no reference either", func(s *provider.Spec) { s.Image = "https://images.example.com/a b" }, fault.Invalid, "placement.image"},
		"port":                 {"no such port", func(s *provider.Spec) { s.Port = 70000 }, fault.Invalid, "port 70000"},
		"socks5 by squid":      {"squid has none", func(s *provider.Spec) { s.Protocol = provider.SOCKS5 }, fault.Unsupported, "speaks http alone"},
		"socks5 without probe": {"nobody could tell that it proxies", func(s *provider.Spec) { s.Protocol, s.Image = provider.SOCKS5, "own" }, fault.Invalid, "a probe of its own"},
		"gopher":               {"nobody speaks it", func(s *provider.Spec) { s.Protocol, s.Image = "gopher", "own" }, fault.Unsupported, "want http, https or socks5"},
		"user with colon": {"basic authentication cannot carry it", func(s *provider.Spec) {
			s.Credentials = provider.Credentials{User: "a:b", Password: provider.Secret("x")}
		}, fault.Invalid, "authSecretRef"},
		"user with line": {"it would be a second user", func(s *provider.Spec) {
			s.Credentials = provider.Credentials{User: "a\nb", Password: provider.Secret("x")}
		}, fault.Invalid, "authSecretRef"},
		"long password": {"bcrypt would cut it, and a shorter one would do", func(s *provider.Spec) {
			s.Credentials = provider.Credentials{User: "a", Password: provider.Secret(strings.Repeat("x", 73))}
		}, fault.Invalid, "73 bytes"},
		"selector against section": {"a Pod that no node takes", func(s *provider.Spec) { s.NodeSelector = map[string]string{"exit": "no"} }, fault.Invalid, "must agree"},
		"selector malformed":       {"the API server would refuse it", func(s *provider.Spec) { s.NodeSelector = map[string]string{"a b": "c"} }, fault.Invalid, "placement.nodeSelector"},
		"zone malformed":           {"as above", func(s *provider.Spec) { s.Zone = "a zone" }, fault.Invalid, "placement.zone"},
		"other host":               {"another provider's", func(s *provider.Spec) { s.Host = "other/proxies" }, fault.Invalid, "cluster/proxies"},
		"UID":                      {"names are made of it", func(s *provider.Spec) { s.Owner.UID = "../x" }, fault.Invalid, "owner UID"},
		"no installation":          {"it would be nobody's", func(s *provider.Spec) { s.Owner.Installation = "" }, fault.Invalid, "installation"},
		"memory":                   {"less than nothing", func(s *provider.Spec) { s.Resources.MemoryBytes = -1 }, fault.Invalid, "resources.memory"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := good
			tc.change(&spec)
			for what, call := range map[string]func() error{
				"Place":  func() error { _, err := p.Place(t.Context(), spec); return err },
				"Create": func() error { _, err := p.Create(t.Context(), spec); return err },
			} {
				if err := call(); err == nil || fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: %s: %s: %v; want %s with %q", tc.reason, what, fault.Of(err), err, tc.class, tc.says)
				}
			}
		})
	}
}

// While the operator's own API does not answer, the last kubeconfig holds; a
// Secret that was deleted is the person's word.
func TestKubeconfigThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: w.section, Secret: w.secrets.get, HashCost: 4, Clock: leap()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ref := provider.Ref{Owner: ownerOf("never")}
	for _, tc := range []struct {
		err   error
		class fault.Class
	}{
		{nil, fault.NotFound},
		{fault.New(fault.Unavailable, "the API server is away"), fault.NotFound},
		{fault.New(fault.NotFound, "there is no Secret"), fault.Permanent},
		{nil, fault.NotFound},
		{fault.New(fault.Denied, "the operator may not read it"), fault.Denied},
	} {
		w.secrets.mu.Lock()
		w.secrets.err = tc.err
		w.secrets.mu.Unlock()
		if _, err := p.Get(t.Context(), ref); fault.Of(err) != tc.class {
			t.Errorf("with %v: Get: %s: %v; want %s", tc.err, fault.Of(err), err, tc.class)
		}
	}
}
