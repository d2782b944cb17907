package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	providers "fleetdesk/internal/proxy/config"
	proxyctl "fleetdesk/internal/proxy/controller/proxy"
	"fleetdesk/internal/proxy/controller/proxypool"
	"fleetdesk/internal/proxy/controller/proxyprovider"
	"fleetdesk/internal/proxy/deskkeys"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/monitor"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/builtin"
	"fleetdesk/internal/proxy/provider/guard"
	"fleetdesk/internal/proxy/registry"
	"fleetdesk/internal/proxy/sweep"
)

// fleet is the operator's part that follows Proxies.
type fleet struct {
	installation string
	secret       func(context.Context, provider.SecretRef) (provider.Secret, error)
	registry     *registry.Registry
	access       *deskkeys.Access
	meter        *guard.Metrics
	inventory    *inventory.Inventory
	monitor      *monitor.Monitor
	sweeper      *sweep.Sweeper
	providers    *proxyprovider.Reconciler
	proxies      *proxyctl.Reconciler

	mu sync.Mutex
	// halters are the providers whose instances can be halted, as each was ever
	// written in the file: also of those that left it, were refused or changed
	// since, processes may run on.
	halters map[entry]halter
}

// entry is a provider by name and the hash of what is written of it.
type entry struct{ name, hash string }

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
	for e, h := range f.halters {
		n, err := h.Halt(ctx, f.installation)
		log.Info("local proxies were ended", "provider", e.name, "processes", n)
		if err != nil {
			errs = append(errs, fmt.Errorf("ending the proxies of provider %s: %w", e.name, err))
		}
	}
	return errors.Join(errs...)
}

// build makes a provider with its decorators around it, outermost last: what
// metrics and trace see has its deadline and class already.
func (f *fleet) build(e providers.Entry, o Options) (provider.Provider, error) {
	made := func() (provider.Provider, error) {
		return builtin.Build(e, builtin.Deps{
			StateDir: o.StateDir, LocalCommand: o.LocalCommand, Secret: f.secret, Log: o.Log.With("provider", e.Name),
		})
	}
	p, err := o.Build(e, made)
	if err != nil {
		return nil, err
	}
	if h, ok := p.(halter); ok {
		f.mu.Lock()
		f.halters[entry{e.Name, e.Hash()}] = h
		f.mu.Unlock()
	}
	held := guard.Deadline(p, guard.DeadlineOptions{Name: e.Name, Log: o.Log})
	return guard.Trace(f.meter.Wrap(held, e.Name), e.Name, o.Log), nil
}

// newFleet wires registry, inventory, prober, the desk's rows and reconcilers
// into the manager.
func newFleet(ctx context.Context, mgr manager.Manager, o Options, desk *desk, metrics prometheus.Registerer) (*fleet, error) {
	installation, err := identity(ctx, mgr.GetAPIReader(), o.Namespace)
	if err != nil {
		return nil, err
	}
	f := &fleet{installation: installation, halters: map[entry]halter{}, secret: secretOf(mgr.GetAPIReader(), o.Namespace)}
	if f.meter, err = guard.NewMetrics(metrics); err != nil {
		return nil, err
	}
	f.registry = registry.New(registry.Options{
		Build:   func(e providers.Entry) (provider.Provider, error) { return f.build(e, o) },
		Changed: func(name string) { f.changed(ctx, name) },
		Removed: f.meter.Forget,
		Refused: func(name string) { f.providers.Changed(name) },
		Log:     o.Log,
	})
	f.inventory = inventory.New(inventory.Options{
		Providers: f.registry, Installation: installation, Interval: o.ListInterval,
		Changed:   func(own provider.Owner) { f.wake(own.Namespace, own.Name) },
		Recovered: func(name string) { f.proxies.WakeProvider(ctx, name) },
		Log:       o.Log,
	})
	originURL := desk.originURL()
	prober, err := newProber(o, originURL, metrics, f.wake, func(namespace, name string) { f.proxies.Suspect(ctx, namespace, name) })
	if err != nil {
		return nil, err
	}
	keeper, err := keepRows(ctx, mgr, desk, rowsOptions{
		owner: installation, released: func(px types.NamespacedName) { f.proxies.Wake(px) }, metrics: metrics, log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := f.look(ctx, mgr, o, metrics); err != nil {
		return nil, err
	}
	f.proxies = proxyctl.New(proxyctl.Options{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Desk: keeper,
		Providers: f.registry, Inventory: f.inventory, Prober: prober,
		Ledger: f.providers, Trouble: f.monitor.Trouble,
		Installation: installation, Events: mgr.GetEventRecorder("proxy-operator"),
		HealthURL:        func(name string) string { return healthURL(o, originURL, f.registry.Kind(name)) },
		ProvisionTimeout: o.ProvisionTimeout, Workers: o.Workers, Log: o.Log,
	})
	if err := proxyctl.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	if err := f.proxies.SetupWithManager(mgr); err != nil {
		return nil, fmt.Errorf("setting up the Proxy controller: %w", err)
	}
	if err := keepSets(ctx, mgr, desk, o, metrics); err != nil {
		return nil, err
	}
	// These write, so they run where the controllers do: on the leader.
	for _, run := range []func(context.Context) error{f.registry.Run, f.inventory.Run, prober.Run, f.monitor.Run, f.sweeper.Run} {
		if err := mgr.Add(manager.RunnableFunc(run)); err != nil {
			return nil, err
		}
	}
	f.access = deskkeys.NewAccess(mgr.GetCache(), f.proxies.Credentials)
	return f, nil
}

func (f *fleet) wake(namespace, name string) {
	f.proxies.Wake(types.NamespacedName{Namespace: namespace, Name: name})
}

// changed is told of a provider that came, went or was built anew.
func (f *fleet) changed(ctx context.Context, name string) {
	f.inventory.Refresh(name)
	f.monitor.Kick(name)
	f.providers.Changed(name)
	f.proxies.WakeProvider(ctx, name)
}

// look wires what looks after providers as a whole: their health, their
// leftovers, and the objects that show both.
func (f *fleet) look(ctx context.Context, mgr manager.Manager, o Options, metrics prometheus.Registerer) error {
	f.providers = proxyprovider.New(proxyprovider.Options{
		Installation: f.installation,
		Client:       mgr.GetClient(), Reader: mgr.GetAPIReader(),
		States: f.states,
		Checks: func(name string) (monitor.Report, bool) { return f.monitor.Report(name) },
		Sweeps: func(name string) (sweep.Report, bool) { return f.sweeper.Report(name) },
		Asked:  func(name string) { f.sweeper.Kick(name) },
		Events: mgr.GetEventRecorder("proxy-operator"), Log: o.Log,
	})
	var err error
	f.monitor, err = monitor.New(monitor.Options{
		Providers: f.registry, Interval: o.CheckInterval, Timeout: o.checkTimeout(),
		Changed: func(name string, hosts []string) {
			f.providers.Changed(name)
			f.proxies.WakeHosts(ctx, name, hosts)
		},
		Event: f.providers.Event, Metrics: metrics, Log: o.Log,
	})
	if err != nil {
		return err
	}
	f.sweeper, err = sweep.New(sweep.Options{
		Providers: f.registry, Book: f.providers,
		Installation: f.installation, Holder: holder(),
		Interval: o.SweepInterval, Grace: o.SweepGrace, DryRun: o.SweepDryRun,
		Changed: f.providers.Changed, Event: f.providers.Event,
		Removed: func(name string, in provider.Instance) { f.inventory.Drop(name, in.Host, in.Owner.UID) },
		Metrics: metrics, Log: o.Log,
	})
	if err != nil {
		return err
	}
	if err := f.providers.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the ProxyProvider controller: %w", err)
	}
	return nil
}

// states is what the registry says, in the words of the objects' controller.
func (f *fleet) states() []proxyprovider.State {
	var out []proxyprovider.State
	for _, s := range f.registry.States() {
		out = append(out, proxyprovider.State(s))
	}
	return out
}

// follow keeps the registry in line with the providers file, which text is of.
// Without a file there is nothing to follow.
func (f *fleet) follow(mgr manager.Manager, o Options, text []byte) error {
	if o.ProvidersConfig == "" {
		return nil
	}
	return mgr.Add(everywhere{func(ctx context.Context) error {
		return providers.Follow(ctx, providers.FollowOptions{
			Path: o.ProvidersConfig, First: text,
			Apply: f.registry.Apply, Refused: f.registry.Refuse, Log: o.Log,
		})
	}})
}

// everywhere runs also where the controllers do not: what providers there are
// is known to each replica.
type everywhere struct{ manager.RunnableFunc }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// holder names this process among operators with the same identity.
func holder() string {
	return strings.ToLower(rand.Text())
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
