package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/obs"
	providers "fleetdesk/internal/proxy/config"
	proxyctl "fleetdesk/internal/proxy/controller/proxy"
	"fleetdesk/internal/proxy/controller/proxypool"
	"fleetdesk/internal/proxy/deskkeys"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/builtin"
	"fleetdesk/internal/proxy/provider/guard"
	"fleetdesk/internal/proxy/registry"
)

// defaultProviders is the providers file of a start that names none.
const defaultProviders = "providers:\n- name: local\n  kind: local\n"

// startTimeout bounds what a start asks of the Kubernetes API.
const startTimeout = 30 * time.Second

// Run runs the operator against a Kubernetes API until ctx ends. It returns
// nil after a clean stop; an error says which setting or place to mend.
func Run(ctx context.Context, cfg *rest.Config, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.validate(); err != nil {
		return err
	}
	file, err := readProviders(o.ProvidersConfig)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return fault.Errorf(fault.Permanent, "the state folder cannot be made: %w: give a writable one with --state-dir", err)
	}
	metrics := obs.NewRegistry()
	desk, err := openDesk(ctx, o, metrics)
	if err != nil {
		return err
	}
	defer desk.close()
	mgr, err := newManager(ctx, cfg, o)
	if err != nil {
		return err
	}
	fleet, err := newFleet(ctx, mgr, o, desk, metrics)
	if err != nil {
		return err
	}
	defer fleet.registry.Close()
	fresh, err := desk.firstAdmin(ctx, mgr, o)
	if err != nil {
		return err
	}
	if err := desk.serve(mgr, fleet.access, o, metrics); err != nil {
		return err
	}
	fleet.registry.Apply(file)

	// Stopped in this order: requests and controllers, which come to an end
	// together; then the service that both use; then its database.
	stopLeases := desk.runLeases(ctx)
	defer stopLeases()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return mgr.Start(ctx) })
	group.Go(func() error { return desk.server.Serve(ctx) })
	if desk.origin != nil {
		group.Go(func() error { return desk.origin.Serve(ctx) })
	}
	group.Go(func() error {
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return nil // ctx ended
		}
		o.Log.Info("ready", "api", desk.server.URL(), "installation", fleet.installation)
		if o.Ready != nil {
			e := Endpoints{API: desk.server.URL(), Origin: desk.originURL(), NewAdminToken: fresh}
			if o.AdminTokenSecret == "" {
				e.AdminTokenFile = o.adminTokenFile()
			}
			o.Ready(e)
		}
		return nil
	})
	err = group.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	if o.Halt {
		// Nothing reconciles any more, so nothing starts them again.
		err = errors.Join(err, fleet.halt(o.Log))
	}
	return err
}

func readProviders(path string) (*providers.File, error) {
	if path == "" {
		return providers.Parse("default providers", []byte(defaultProviders))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "--providers-config: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, providers.MaxBytes+1))
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "--providers-config: reading %s: %w", path, err)
	}
	return providers.Parse(path, data)
}

// scheme knows the kinds that the operator reads and writes.
func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s))
}

func newManager(ctx context.Context, cfg *rest.Config, o Options) (manager.Manager, error) {
	s, err := scheme()
	if err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = o.KubeQPS, int(o.KubeQPS*2)
	cfg.UserAgent = "proxy-operator/" + obs.Version().Version
	grace := 10 * time.Second
	skipNames := true
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                  s,
		Logger:                  obs.Logr(slog.New(hush{o.Log.Handler(), ctx.Done()})),
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		LeaderElection:          o.LeaderElect,
		LeaderElectionID:        "proxy-operator.crawl.example.com",
		LeaderElectionNamespace: o.Namespace,
		GracefulShutdownTimeout: &grace,
		// Several managers run in one process in tests, and in nothing else.
		Controller: config.Controller{SkipNameValidation: &skipNames},
		Cache:      proxyctl.CacheOptions(),
		Client: client.Options{Cache: &client.CacheOptions{
			// Never cached: their contents are read when needed.
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
		}},
	})
	if err != nil {
		return nil, fault.Errorf(fault.Unavailable, "the Kubernetes API cannot be used: %w", err)
	}
	return mgr, nil
}

// fleet is the operator's part that follows Proxies.
type fleet struct {
	installation string
	registry     *registry.Registry
	access       *deskkeys.Access

	mu sync.Mutex
	// halters are the providers whose instances can be halted, by name.
	halters map[string]halter
}

// halter is a provider that can end what its instances run, and keep them.
type halter interface {
	Halt(ctx context.Context, installation string) (ended int, err error)
}

// haltTimeout bounds the end of all local proxies.
const haltTimeout = 15 * time.Second

// halt ends the processes of local proxies.
func (f *fleet) halt(log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), haltTimeout)
	defer cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for name, h := range f.halters {
		n, err := h.Halt(ctx, f.installation)
		log.Info("local proxies were ended", "provider", name, "processes", n)
		if err != nil {
			errs = append(errs, fmt.Errorf("ending the proxies of provider %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// build makes a provider with its decorators around it, outermost last: what
// metrics and trace see has its deadline and class already.
func (f *fleet) build(e providers.Entry, o Options, meter *guard.Metrics) (provider.Provider, error) {
	p, err := builtin.Build(e, builtin.Deps{StateDir: o.StateDir, LocalCommand: o.LocalCommand, Log: o.Log.With("provider", e.Name)})
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.halters, e.Name)
	if err != nil {
		return nil, err
	}
	if h, ok := p.(halter); ok {
		f.halters[e.Name] = h
	}
	held := guard.Deadline(p, guard.DeadlineOptions{Name: e.Name, Log: o.Log})
	return guard.Trace(meter.Wrap(held, e.Name), e.Name, o.Log), nil
}

// newFleet wires registry, inventory, prober, the desk's rows and reconcilers
// into the manager.
func newFleet(ctx context.Context, mgr manager.Manager, o Options, desk *desk, metrics prometheus.Registerer) (*fleet, error) {
	originURL := desk.originURL()
	installation, err := identity(ctx, mgr.GetAPIReader(), o.Namespace)
	if err != nil {
		return nil, err
	}
	meter, err := guard.NewMetrics(metrics)
	if err != nil {
		return nil, err
	}
	f := &fleet{installation: installation, halters: map[string]halter{}}
	var reconciler *proxyctl.Reconciler // set below, before anything runs
	var inv *inventory.Inventory
	wake := func(namespace, name string) {
		reconciler.Wake(types.NamespacedName{Namespace: namespace, Name: name})
	}
	reg := registry.New(registry.Options{
		Build: func(e providers.Entry) (provider.Provider, error) { return f.build(e, o, meter) },
		Changed: func(name string) {
			inv.Refresh(name)
			reconciler.WakeProvider(ctx, name)
		},
		Log: o.Log,
	})
	inv = inventory.New(inventory.Options{
		Providers: reg, Installation: installation, Interval: o.ListInterval,
		Changed:   func(own provider.Owner) { wake(own.Namespace, own.Name) },
		Recovered: func(name string) { reconciler.WakeProvider(ctx, name) },
		Log:       o.Log,
	})
	prober, err := newProber(o, originURL, metrics, wake, func(namespace, name string) { reconciler.Suspect(ctx, namespace, name) })
	if err != nil {
		return nil, err
	}
	keeper, err := keepRows(ctx, mgr, desk, rowsOptions{
		owner: installation, released: func(px types.NamespacedName) { reconciler.Wake(px) }, metrics: metrics, log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	reconciler = proxyctl.New(proxyctl.Options{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Desk: keeper,
		Providers: reg, Inventory: inv, Prober: prober,
		Installation: installation, Events: mgr.GetEventRecorder("proxy-operator"),
		HealthURL:        func(name string) string { return healthURL(o, originURL, reg.Kind(name)) },
		ProvisionTimeout: o.ProvisionTimeout, Workers: o.Workers, Log: o.Log,
	})
	if err := proxyctl.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	if err := reconciler.SetupWithManager(mgr); err != nil {
		return nil, fmt.Errorf("setting up the Proxy controller: %w", err)
	}
	// These write, so they run where the controllers do: on the leader.
	for _, run := range []func(context.Context) error{reg.Run, inv.Run, prober.Run} {
		if err := mgr.Add(manager.RunnableFunc(run)); err != nil {
			return nil, err
		}
	}
	f.registry, f.access = reg, deskkeys.NewAccess(mgr.GetCache(), reconciler.Credentials)
	return f, nil
}

// rowsOptions are what the desk's rows need besides manager and desk.
type rowsOptions struct {
	owner    string
	released func(proxy types.NamespacedName)
	metrics  prometheus.Registerer
	log      *slog.Logger
}

// keepRows wires the desk's rows and the controller of ProxyPools into the
// manager.
func keepRows(ctx context.Context, mgr manager.Manager, desk *desk, o rowsOptions) (*deskkeys.Keeper, error) {
	var pools *proxypool.Reconciler // set below, before anything runs
	keeper, err := deskkeys.New(deskkeys.Options{
		Desk: desk.leases, Cache: mgr.GetCache(), Owner: o.owner, Released: o.released,
		PoolChanged: func(pool types.NamespacedName) { pools.Changed(pool) },
		Metrics:     o.metrics, Log: o.log.With("part", "rows"),
	})
	if err != nil {
		return nil, err
	}
	pools = proxypool.New(proxypool.Options{Client: mgr.GetClient(), Pool: keeper.Pool})
	if err := errors.Join(
		keeper.Follow(ctx, mgr.GetCache()), deskkeys.SecretsOf(ctx, mgr.GetCache()), pools.SetupWithManager(mgr),
		mgr.Add(manager.RunnableFunc(keeper.Run)), // it writes: on the leader
	); err != nil {
		return nil, fmt.Errorf("setting up pools: %w", err)
	}
	return keeper, nil
}

// healthURL is what Proxies that name no URL are checked with. An origin of our
// own on loopback is reached by the processes of the provider local alone; for
// all others the check is shallow then.
func healthURL(o Options, originURL, kind string) string {
	switch {
	case o.HealthURL != "":
		return o.HealthURL
	case originURL == "", o.OriginURL == "" && kind != "local" && onLoopback(originURL):
		return ""
	}
	return originURL + "/generate_204"
}

func onLoopback(rawURL string) bool {
	u, err := url.Parse(rawURL)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return err == nil && addr.IsLoopback()
}

// newProber makes the loop of health checks. changed is told of a Proxy whose
// health changed, suspect of one that failed a check.
func newProber(o Options, originURL string, metrics prometheus.Registerer, changed, suspect func(namespace, name string)) (*probe.Loop, error) {
	split := func(with func(namespace, name string)) func(string) {
		return func(key string) {
			namespace, name, _ := strings.Cut(key, "/")
			with(namespace, name)
		}
	}
	return probe.New(probe.Options{
		Concurrency: o.HealthConcurrency,
		AllowCIDRs:  o.HealthAllowCIDRs,
		OwnOrigin:   originURL,
		Changed:     split(changed),
		OnFailure:   split(suspect),
		Metrics:     metrics,
		Log:         o.Log,
	})
}

// identity is the installation's name in every instance's tag: the cluster's
// kube-system namespace and our own, so that two installations that share a
// host never touch each other's machines.
func identity(ctx context.Context, reader client.Reader, namespace string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ns := &corev1.Namespace{}
	if err := reader.Get(ctx, types.NamespacedName{Name: "kube-system"}, ns); err != nil {
		return "", fault.Errorf(fault.Unavailable, "the installation's identity cannot be read (namespace kube-system): %w", err)
	}
	return string(ns.UID) + "/" + namespace, nil
}
