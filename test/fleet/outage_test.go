package fleet_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/crd"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/testkit/kube"
)

// target is the site that proxies are checked with; it can go away, and comes
// back at the same address.
type target struct {
	t       *testing.T
	address string
	server  *http.Server
	asked   atomic.Int64
}

func (s *target) up() {
	s.t.Helper()
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = l.Addr().String()
	s.server = &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.asked.Add(1)
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = s.server.Serve(l) }()
}

func (s *target) down() { _ = s.server.Close() }

// counted counts what is done to the machines of a provider.
type counted struct {
	able
	creates, deletes *atomic.Int64
}

func (c counted) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	c.creates.Add(1)
	return c.able.Create(ctx, s)
}

func (c counted) Delete(ctx context.Context, r provider.Ref) (provider.State, error) {
	c.deletes.Add(1)
	return c.able.Delete(ctx, r)
}

// localOperator starts an operator with the provider local, and counts what it
// does to machines.
func localOperator(w *world, checked *target, creates, deletes *atomic.Int64) *op {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	state := w.t.TempDir()
	return w.start(nil, func(o *operator.Options, _ *rest.Config) {
		o.LocalCommand = []string{self, "local-proxy"}
		o.HealthURL = "http://" + checked.address + "/"
		o.HealthAllowCIDRs = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		text := fmt.Appendf(nil, "providers:\n- {name: local, kind: local, local: {stateDir: %q}}\n", state)
		o.ProvidersConfig = filepath.Join(w.dir, "local.yaml")
		if err := os.WriteFile(o.ProvidersConfig, text, 0o600); err != nil {
			w.t.Fatal(err)
		}
		o.Build = func(_ config.Entry, builtin func() (provider.Provider, error)) (provider.Provider, error) {
			p, err := builtin()
			if err != nil {
				return nil, err
			}
			return counted{p.(able), creates, deletes}, nil
		}
	})
}

// The site that all proxies are checked with goes away for the length of the
// drill: nothing is destroyed or made again for it, and the verdict says that
// the site is at fault. When it is back, all are Ready within one interval.
//
// cloudproxy 69
func TestAllCheckURLsAreDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kube.Start(t, kube.Options{CRDs: crd.Bases}), fake.New(fake.Options{}))
	site := &target{t: t, address: "127.0.0.1:0"}
	site.up()
	defer func() { site.down() }()
	var creates, deletes atomic.Int64
	localOperator(w, site, &creates, &deletes)
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		w.create(name, func(px *v1alpha1.Proxy) { px.Spec.Provider = "local" })
	}
	state := func(want func(px *v1alpha1.Proxy, healthy *metav1.Condition) bool) func() string {
		return func() string {
			for _, name := range names {
				px := w.get(name)
				healthy := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionHealthy)
				if healthy == nil || !want(px, healthy) {
					return fmt.Sprintf("%s: %+v", name, px.Status)
				}
			}
			return ""
		}
	}
	well := state(func(px *v1alpha1.Proxy, healthy *metav1.Condition) bool {
		return px.Status.Phase == v1alpha1.PhaseReady && healthy.Reason == v1alpha1.ReasonProbePassed
	})
	w.until(nil, "five Ready proxies", well)
	before := map[string]string{}
	for _, name := range names {
		before[name] = w.get(name).Status.ProviderID
	}
	made := creates.Load()
	site.down()
	inconclusive := state(func(px *v1alpha1.Proxy, healthy *metav1.Condition) bool {
		return px.Status.Phase == v1alpha1.PhaseReady && healthy.Reason == v1alpha1.ReasonProbeInconclusive
	})
	w.until(nil, "five inconclusive verdicts", inconclusive)
	for end := time.Now().Add(*drillFor); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if missing := inconclusive(); missing != "" {
			t.Fatalf("while the site was down: %s", missing)
		}
	}
	back := time.Now()
	site.up()
	w.until(nil, "five Ready proxies again", well)
	t.Logf("DRILL operator.outage.back_after %.2f s (interval 1 s)", time.Since(back).Seconds())
	if n := deletes.Load(); n != 0 {
		t.Errorf("%d deletions for a site that was down", n)
	}
	if n := creates.Load(); n != made {
		t.Errorf("%d creations for a site that was down", n-made)
	}
	for _, name := range names {
		if got := w.get(name).Status.ProviderID; got != before[name] {
			t.Errorf("%s is another machine: %s, before %s", name, got, before[name])
		}
	}
}
