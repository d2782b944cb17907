package proxy_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/crd"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/health"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/controller/proxy"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/testkit/kube"
)

var cluster = kube.Shared(kube.Options{CRDs: crd.Bases})

func TestMain(m *testing.M) {
	ctrl.SetLogger(obs.Logr(slog.New(slog.DiscardHandler)))
	os.Exit(cluster.Run(m))
}

// providers is a registry whose providers tests put in and take out.
type providers struct {
	mu    sync.Mutex
	of    map[string]provider.Provider
	errs  map[string]error
	epoch uint64
}

func (p *providers) Lookup(name string) (provider.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.errs[name]; err != nil {
		return nil, err
	}
	if in, ok := p.of[name]; ok {
		return in, nil
	}
	return nil, fault.Errorf(fault.NotFound, "the providers config has no provider %q", name)
}

func (p *providers) Epoch(string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch
}

func (p *providers) Names() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := range p.of {
		names = append(names, n)
	}
	return names
}

// rig is a manager with this controller over a fake provider, on a real API
// server, in a namespace of its own.
type rig struct {
	t         testing.TB
	ns        string
	client    client.Client // uncached
	fake      *fake.Provider
	providers *providers
	stop      func()
	// wrap puts something around the uncached reader, cached around the client
	// that reads from the manager's cache.
	wrap   func(client.Reader) client.Reader
	cached func(client.Client) client.Client
	// provisionTimeout is the option of that name.
	provisionTimeout time.Duration
	// reprieve is the option of that name.
	reprieve time.Duration
	// recount is the option of that name.
	recount time.Duration
	// desk is where Proxies are leased; nil for nowhere.
	desk proxy.Desk
	// ledger is where abandoned instances are written down; nil for nowhere.
	ledger proxy.Ledger
	// trouble is the reconciler's option of that name.
	trouble func(providerName, host string) string

	mu sync.Mutex
	// sick are addresses whose probe fails; dead makes every control request
	// fail as well.
	sick map[string]bool
	dead bool
	// probed says what is wrong with a target besides; nil for nothing.
	probed func(probe.Target) error
	// found is what a passed probe of a target finds; nil for its address as exit
	// IP and nothing else.
	found func(probe.Target) probe.Result

	reconciler *proxy.Reconciler
}

// installation is the tag of the rig's instances.
const installation = "test/rig"

// newRig makes a rig; nothing runs before start.
func newRig(t testing.TB, o fake.Options) *rig {
	t.Helper()
	cfg := cluster.Config(t)
	cfg.QPS = -1
	c, err := client.New(cfg, client.Options{Scheme: kube.Scheme(t, v1alpha1.AddToScheme)})
	if err != nil {
		t.Fatal(err)
	}
	f := fake.New(o)
	return &rig{
		t: t, ns: cluster.Namespace(t), client: c, fake: f, sick: map[string]bool{}, wrap: func(c client.Reader) client.Reader { return c }, cached: func(c client.Client) client.Client { return c }, provisionTimeout: time.Minute,
		providers: &providers{of: map[string]provider.Provider{"fake": f}, errs: map[string]error{}},
	}
}

// start starts a manager, as a start of the operator does; stop stops it.
func (r *rig) start() *rig {
	t := r.t
	t.Helper()
	skip, grace := true, 5*time.Second
	cached := proxy.CacheOptions()
	cached.DefaultNamespaces = map[string]cache.Config{r.ns: {}}
	cfg := cluster.Config(t)
	cfg.QPS, cfg.Burst = 200, 400 // the operator's own default
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: kube.Scheme(t, v1alpha1.AddToScheme), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache:                   cached,
		Controller:              ctrlconfig.Controller{SkipNameValidation: &skip},
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	wake := func(ns, name string) { r.reconciler.Wake(types.NamespacedName{Namespace: ns, Name: name}) }
	inv := inventory.New(inventory.Options{
		Providers: r.providers, Installation: installation, Interval: time.Second, Log: log,
		Changed:   func(o provider.Owner) { wake(o.Namespace, o.Name) },
		Recovered: func(name string) { r.reconciler.WakeProvider(ctx, name) },
	})
	loop, err := probe.New(probe.Options{
		Request: func(_ context.Context, target probe.Target, _ probe.Check) probe.Result {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.probed != nil {
				if err := r.probed(target); err != nil {
					return probe.Result{Reason: probe.AuthRefused, Err: err}
				}
			}
			if r.sick[target.Address] {
				return probe.Result{Reason: probe.Timeout, Err: fault.New(fault.Timeout, "the proxy does not answer")}
			}
			if r.found != nil {
				return r.found(target)
			}
			return probe.Result{OK: true, Reason: probe.ReasonOK, ExitIP: netip.MustParseAddr(target.Address)}
		},
		Control: func(context.Context, probe.Check) (health.Control, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.dead {
				return health.ControlFailed, fault.New(fault.Unavailable, "the URL is down")
			}
			return health.ControlPassed, nil
		},
		Changed: func(key string) {
			ns, name, _ := strings.Cut(key, "/")
			wake(ns, name)
		},
		OnFailure: func(key string) {
			ns, name, _ := strings.Cut(key, "/")
			r.reconciler.Suspect(ctx, ns, name)
		},
		Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.reconciler = proxy.New(proxy.Options{
		Client: r.cached(mgr.GetClient()), Reader: r.wrap(mgr.GetAPIReader()), Providers: r.providers, Inventory: inv, Prober: loop,
		Desk: r.desk, Ledger: r.ledger, Trouble: r.trouble, Installation: installation, Events: mgr.GetEventRecorder("proxy-operator"),
		HealthURL:        func(string) string { return "http://origin.example.com/generate_204" },
		ProvisionTimeout: r.provisionTimeout, Reprieve: r.reprieve, Recount: r.recount, Workers: 16, Log: log,
	})
	if err := proxy.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		t.Fatal(err)
	}
	if err := r.reconciler.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context) error{inv.Run, loop.Run} {
		if err := mgr.Add(manager.RunnableFunc(run)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the cache did not fill")
	}
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("manager: %v", err)
			}
		})
	}
	t.Cleanup(r.stop)
	return r
}

// proxy returns a Proxy of the provider "fake" that is checked each second.
func (r *rig) proxy(name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name},
		Spec: v1alpha1.ProxySpec{
			Provider:    "fake",
			HealthCheck: v1alpha1.HealthCheck{Interval: "1s", Timeout: "500ms", FailureThreshold: 1},
		},
	}
	for _, c := range change {
		c(px)
	}
	return px
}

func (r *rig) create(o client.Object) {
	r.t.Helper()
	if err := r.client.Create(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) get(name string) *v1alpha1.Proxy {
	r.t.Helper()
	px := &v1alpha1.Proxy{}
	if err := r.client.Get(r.t.Context(), types.NamespacedName{Namespace: r.ns, Name: name}, px); err != nil {
		r.t.Fatal(err)
	}
	for _, c := range px.Status.Conditions {
		if !slices.Contains(v1alpha1.Reasons(), c.Reason) {
			r.t.Errorf("condition %s has reason %q, which is not in the closed list", c.Type, c.Reason)
		}
	}
	return px
}

func (r *rig) delete(name string) {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), r.proxy(name)); err != nil {
		r.t.Fatal(err)
	}
}

// until waits until cond says nothing more is missing.
func (r *rig) until(what string, cond func() (missing string)) {
	r.t.Helper()
	kube.Until(r.t, what, cond)
}

// reaches waits for a phase and a reason of the condition Ready.
func (r *rig) reaches(name string, phase v1alpha1.Phase, reason string) *v1alpha1.Proxy {
	r.t.Helper()
	var px *v1alpha1.Proxy
	r.until(fmt.Sprintf("%s becoming %s/%s", name, phase, reason), func() string {
		px = r.get(name)
		if c := condition(px, v1alpha1.ConditionReady); px.Status.Phase != phase || c.Reason != reason {
			return fmt.Sprintf("phase %q, Ready %+v", px.Status.Phase, c)
		}
		return ""
	})
	return px
}

func (r *rig) gone(name string) {
	r.t.Helper()
	r.until(name+" being gone", func() string {
		px := &v1alpha1.Proxy{}
		err := r.client.Get(r.t.Context(), types.NamespacedName{Namespace: r.ns, Name: name}, px)
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("%+v %v", px.Status, err)
	})
}

func condition(px *v1alpha1.Proxy, kind string) metav1.Condition {
	if c := apimeta.FindStatusCondition(px.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// event waits for an Event of that reason about the Proxy and returns its note.
func (r *rig) event(name, reason string) string {
	r.t.Helper()
	var note string
	r.until("event "+reason, func() string {
		notes, seen := r.events(name)
		if n, ok := notes[reason]; ok {
			note = n
			return ""
		}
		return "have " + strings.Join(seen, ", ")
	})
	return note
}

func (r *rig) events(name string) (notes map[string]string, seen []string) {
	r.t.Helper()
	var list eventsv1.EventList
	if err := r.client.List(r.t.Context(), &list, client.InNamespace(r.ns)); err != nil {
		r.t.Fatal(err)
	}
	notes = map[string]string{}
	for _, e := range list.Items {
		if e.Regarding.Name == name {
			notes[e.Reason] = e.Note
			seen = append(seen, e.Reason)
		}
	}
	return notes, seen
}

// machines are the fake's machines of this rig.
func (r *rig) machines() []provider.Instance { return r.fake.Machines() }

func secret(ns, name string, data map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, StringData: data}
}
