package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strings"
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
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

// defaultProviders is the providers file of a start that names none.
const defaultProviders = "providers:\n- name: local\n  kind: local\n"

// startTimeout bounds what a start asks of the Kubernetes API.
const startTimeout = 30 * time.Second

// Run runs the operator against a Kubernetes API until ctx ends. It returns
// nil after a clean stop; an error says which setting or place to mend.
func Run(ctx context.Context, cfg *rest.Config, o Options) error {
	err := run(ctx, cfg, o)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // also when the start was not over yet
	}
	return err
}

func run(ctx context.Context, cfg *rest.Config, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Build == nil {
		o.Build = func(_ providers.Entry, builtin func() (provider.Provider, error)) (provider.Provider, error) {
			return builtin()
		}
	}
	if err := o.validate(); err != nil {
		return err
	}
	file, text, err := readProviders(o.ProvidersConfig)
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
	if err := fleet.follow(mgr, o, text); err != nil {
		return err
	}

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

// readProviders returns the providers file, read, and its text.
func readProviders(path string) (*providers.File, []byte, error) {
	if path == "" {
		f, err := providers.Parse("default providers", []byte(defaultProviders))
		return f, nil, err
	}
	text, err := providers.Read(path)
	if err != nil {
		return nil, nil, fmt.Errorf("--providers-config: %w", err)
	}
	f, err := providers.Parse(path, text)
	return f, text, err
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
