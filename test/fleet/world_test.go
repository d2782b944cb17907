package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/testkit/kube"
)

// patience bounds every wait: far above what anything here takes.
const patience = 60 * time.Second

// world is one cluster with what its operators make machines on.
type world struct {
	t       testing.TB
	cluster *kube.Cluster
	cfg     *rest.Config
	client  client.WithWatch
	ns      string
	dir     string
	// namespace is the operators' own, of which their identity is made.
	namespace string
	backend   *fake.Provider
	// stopped keeps operators' logs until the test has failed or not.
	logs bytes.Buffer
	mu   sync.Mutex
}

// newWorld returns a world over a cluster and a back end.
func newWorld(t testing.TB, c *kube.Cluster, backend *fake.Provider) *world {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	cfg := c.Config(t)
	cfg.QPS, cfg.Timeout = -1, 0 // a watch is one long request
	kube, err := client.NewWithWatch(cfg, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, cluster: c, cfg: cfg, client: kube, ns: c.Namespace(t), dir: t.TempDir(), namespace: "fleetdesk-system", backend: backend}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if t.Failed() {
			text := w.logs.Bytes()
			t.Logf("the operators' last words:\n%s", text[max(0, len(text)-20_000):])
		}
	})
	return w
}

// Write implements io.Writer: the operators' logs.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs.Write(p)
}

// scripted is a back end whose machines are one small server that answers every
// request, as a proxy would.
func scripted(t testing.TB, hosts ...string) *fake.Provider {
	t.Helper()
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	t.Cleanup(answers.Close)
	u, err := url.Parse(answers.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return fake.New(fake.Options{Hosts: hosts, Address: func(provider.Owner) (string, int) { return u.Hostname(), port }})
}

// settings are the operator's, quick enough for a drill.
func settings(dir, namespace string) operator.Options {
	o := operator.Defaults()
	o.StateDir, o.Namespace = dir, namespace
	o.APIBind, o.OriginBind = "127.0.0.1:0", "127.0.0.1:0"
	o.ListInterval, o.CheckInterval = time.Second, time.Second
	o.SweepInterval, o.SweepGrace = time.Second, 3*time.Second
	return o
}

// op is one operator in this process.
type op struct {
	w    *world
	k    *killer
	stop func()
}

// start starts an operator that k ends; with a nil k it lives.
func (w *world) start(k *killer, change ...func(*operator.Options, *rest.Config)) *op {
	w.t.Helper()
	if k == nil {
		k = newKiller(0)
	}
	o := settings(filepath.Join(w.dir, "state"), w.namespace)
	o.ProvidersConfig = filepath.Join(w.dir, "providers.yaml")
	if err := os.WriteFile(o.ProvidersConfig, []byte("providers:\n- {name: fake, kind: fake}\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	o.Build = func(config.Entry, func() (provider.Provider, error)) (provider.Provider, error) {
		return k.wrap(w.backend.Reopen()), nil
	}
	o.Log = obs.NewLogger(w, obs.Options{Level: slog.LevelWarn})
	cfg := rest.CopyConfig(w.cfg)
	for _, c := range change {
		c(&o, cfg)
	}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return transport{rt, k} })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- operator.Run(ctx, cfg, o) }()
	out := &op{w: w, k: k}
	out.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && k.alive() == nil {
				w.t.Errorf("the operator ended with %v", err)
			}
		case <-time.After(patience):
			w.t.Error("the operator does not stop")
		}
	})
	w.t.Cleanup(out.stop)
	return out
}

// until waits for cond; with an operator that may be killed it ends with that,
// and says so.
func (w *world) until(o *op, what string, cond func() (missing string)) (killed bool) {
	w.t.Helper()
	var missing string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if o != nil && o.k.alive() != nil {
			return true
		}
		if missing = cond(); missing == "" {
			return false
		}
	}
	w.t.Fatalf("%s: still after %s: %s", what, patience, missing)
	return false
}

func (w *world) proxy(name string) *v1alpha1.Proxy {
	return &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: v1alpha1.ProxySpec{
			Provider:    "fake",
			HealthCheck: v1alpha1.HealthCheck{Interval: "1s", Timeout: "900ms", FailureThreshold: 1},
		},
	}
}

func (w *world) create(name string, change ...func(*v1alpha1.Proxy)) {
	w.t.Helper()
	px := w.proxy(name)
	for _, c := range change {
		c(px)
	}
	if err := w.client.Create(w.t.Context(), px); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) delete(name string) {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), w.proxy(name)); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
}

// get returns a Proxy, nil when there is none.
func (w *world) get(name string) *v1alpha1.Proxy {
	w.t.Helper()
	px := &v1alpha1.Proxy{}
	err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, px)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return px
}

// identity is the tag of this world's machines.
func (w *world) identity() string {
	w.t.Helper()
	return identityOf(w.t, w.client, w.namespace)
}

// machines are those of this world's installation, from the back end itself.
func (w *world) machines() []provider.Instance {
	w.t.Helper()
	rows, err := w.backend.ListByTag(context.WithoutCancel(w.t.Context()), w.identity())
	if err != nil {
		w.t.Fatal(err)
	}
	var out []provider.Instance
	for _, r := range rows {
		out = append(out, r.Instances...)
	}
	return out
}

// runs is empty when the Proxy is Ready and one machine, which runs, stands
// behind it.
func (w *world) runs(name string) (missing string) {
	px := w.get(name)
	if px == nil {
		return "no Proxy"
	}
	var own []provider.Instance
	for _, m := range w.machines() {
		if m.Owner.UID == string(px.UID) {
			own = append(own, m)
		}
	}
	if px.Status.Phase != v1alpha1.PhaseReady || len(own) != 1 || own[0].State != provider.Running || own[0].ID != px.Status.ProviderID {
		return fmt.Sprintf("%+v, machines %+v", px.Status, own)
	}
	return ""
}

// gone is empty when neither the Proxy nor a machine is left.
func (w *world) gone(name string) (missing string) {
	if px := w.get(name); px != nil {
		return fmt.Sprintf("%+v", px.Status)
	}
	for _, m := range w.machines() {
		if m.Owner.Name == name {
			return fmt.Sprintf("%+v", m)
		}
	}
	return ""
}

// watchDoubles fails the test when at any moment two machines stand behind one
// Proxy, until the returned function is called.
func (w *world) watchDoubles() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	identity := w.identity()
	go func() {
		defer close(ended)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		looker := w.backend.Reopen()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			rows, err := looker.ListByTag(ctx, identity)
			cancel()
			if err != nil {
				continue
			}
			seen := map[string]string{}
			for _, r := range rows {
				for _, m := range r.Instances {
					if twin, ok := seen[m.Owner.UID]; ok && m.Owner.UID != "" {
						w.t.Errorf("two machines of Proxy %s/%s: %s and %s", m.Owner.Namespace, m.Owner.Name, twin, m.ID)
						return
					}
					seen[m.Owner.UID] = m.ID
				}
			}
		}
	}()
	return sync.OnceFunc(func() { close(done); <-ended })
}

func trimScheme(host string) string { return strings.TrimPrefix(host, "https://") }

// written are the UIDs of instances that are written down as abandoned.
func (w *world) written() map[string]bool {
	w.t.Helper()
	out := map[string]bool{}
	var list v1alpha1.ProxyProviderList
	if err := w.client.List(context.WithoutCancel(w.t.Context()), &list); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range list.Items {
		for _, a := range p.Status.Abandoned {
			out[a.UID] = true
		}
	}
	return out
}
