package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/provider/local"
)

// Program is what the command line needs to know of the process around it.
type Program struct {
	// Args are the arguments after the program's name.
	Args []string
	// Environ is the environment, "KEY=value" each.
	Environ []string
	// Executable is the path of the running binary.
	Executable string
	Streams    Streams
	// ControlPlane is given by the standalone binary: its start without a
	// subcommand then brings a Kubernetes API along.
	ControlPlane ControlPlane
}

// localProxyCommand is the hidden subcommand that a local proxy runs as.
const localProxyCommand = "local-proxy"

// Main runs the command line until it is done or ctx ends, and returns the
// exit code.
func Main(ctx context.Context, p Program) int {
	root := newRoot(&p)
	root.SetArgs(p.Args)
	root.SetIn(p.Streams.In)
	root.SetOut(p.Streams.Out)
	root.SetErr(p.Streams.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(p.Streams.Err, "%s: %v\n", root.Name(), err)
	return exitCode(err)
}

func exitCode(err error) int {
	var e *usageError
	if errors.As(err, &e) {
		return fault.Invalid.Meaning().ExitCode
	}
	return fault.Of(err).Meaning().ExitCode
}

// usageError is a command line that cannot be read.
type usageError struct{ error }

func newRoot(p *Program) *cobra.Command {
	var root *cobra.Command
	if p.ControlPlane != nil {
		root = newStandalone(p)
	} else {
		root = newOperator(p)
	}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%w: see %s --help", err, c.CommandPath())}
	})
	root.AddCommand(newAdminToken(p), newLocalProxy(p), newOriginCommand(p), newVersion())
	return root
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unknown command or argument %q: see %s --help", args[0], c.CommandPath())}
	}
	return nil
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), obs.Version())
			return err
		},
	}
}

// newAdminToken is the way back in when the first admin token was lost.
func newAdminToken(p *Program) *cobra.Command {
	folder, dir := "state-dir", defaultStateDir
	if p.ControlPlane != nil {
		folder, dir = "data-dir", ""
	}
	var database, urlFile, file string
	c := &cobra.Command{
		Use: adminTokenCommand, Short: "Make another admin token, when the first one was lost", Args: noArgs,
		Long: `Makes another token of the account "admin" and writes it to a new file that only
you can read. It needs the rights on the operator's files, not a token, and may
be run while the operator runs.`,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if dir == "" {
				if dir, err = defaultDataDir(p.Environ); err != nil {
					return err
				}
			}
			o := Options{StateDir: dir, Database: database, DatabaseURLFile: urlFile, AdminTokenFile: file}
			if err := anotherAdminToken(c.Context(), o); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "the new admin token is in", o.adminTokenFile())
			return err
		},
	}
	c.Flags().StringVar(&dir, folder, dir, "folder of the operator's files")
	c.Flags().StringVar(&database, "database", "", "SQLite file of tokens; default desk.db in that folder")
	if p.ControlPlane == nil {
		c.Flags().StringVar(&urlFile, "database-url-file", "", "file with the URL of the operator's PostgreSQL database, instead of --database")
		c.MarkFlagsMutuallyExclusive("database", "database-url-file")
	}
	c.Flags().StringVar(&file, "file", "", "where the token goes; default admin-token in that folder")
	return c
}

// defaultStateDir is where an operator in a cluster keeps its files.
const defaultStateDir = "/var/lib/proxy-operator"

// newLocalProxy is how the provider "local" starts its instances.
func newLocalProxy(p *Program) *cobra.Command {
	return &cobra.Command{
		Use: localProxyCommand, Short: "Run one local proxy (started by the provider local)",
		Hidden: true, DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			return local.Serve(c.Context(), args, p.Streams.Err)
		},
	}
}

func newOperator(p *Program) *cobra.Command {
	o := Defaults()
	o.LocalCommand = []string{p.Executable, localProxyCommand}
	var kubeconfig string
	var allow []string
	var verbosity int
	var jsonLog bool
	c := &cobra.Command{
		Use:   "proxy-operator",
		Short: "Keep a fleet of egress proxies from Proxy objects, and hand them out",
		Long: `proxy-operator makes the machine of every Proxy object through its provider,
checks that each really proxies, repairs and removes them, and serves the API
from which crawlers take proxies.

It needs a Kubernetes API with the Proxy CustomResourceDefinition installed
(config/crd). Without a cluster use proxy-operator-standalone, which brings a
Kubernetes API along.

Exit codes: 0 stopped cleanly; 1 a permanent failure; 2 a wrong flag or
configuration; 69 something it needs does not answer; 75 try again later;
77 not allowed.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Log = obs.NewLogger(p.Streams.Err, obs.Options{Level: obs.Verbosity(verbosity), JSON: jsonLog})
			setLibraryLoggers(c.Context(), o.Log)
			var err error
			if o.HealthAllowCIDRs, err = prefixes(allow); err != nil {
				return err
			}
			if o.StateDir, err = filepath.Abs(o.StateDir); err != nil {
				return fault.Errorf(fault.Invalid, "--state-dir: %w", err)
			}
			cfg, err := kubeConfig(kubeconfig, p.Environ)
			if err != nil {
				return err
			}
			return Run(c.Context(), cfg, o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; default $KUBECONFIG, else the Pod's own account, else ~/.kube/config")
	f.StringVar(&o.Namespace, "namespace", o.Namespace, "the operator's own namespace; part of the installation's identity")
	f.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "run the controllers on one of several replicas")
	f.Float32Var(&o.KubeQPS, "kube-api-qps", o.KubeQPS, "most requests to the Kubernetes API, per second")
	f.IntVar(&o.Workers, "workers", o.Workers, "Proxies reconciled at once")
	f.StringVar(&o.StateDir, "state-dir", defaultStateDir, "folder of the operator's and its providers' files")
	operatorFlags(c, &o, &allow)
	f.IntVarP(&verbosity, "verbosity", "v", 0, "log level: 1 adds a line per provider call, 2 adds addresses")
	f.BoolVar(&jsonLog, "log-json", false, "log JSON lines")
	return c
}

// setLibraryLoggers sends what the Kubernetes libraries log where ours goes.
// They know process-wide loggers only, so this happens once, here.
func setLibraryLoggers(ctx context.Context, log *slog.Logger) {
	quiet := obs.Logr(slog.New(hush{log.Handler(), ctx.Done()}))
	ctrl.SetLogger(quiet)
	klog.SetLogger(quiet)
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
}

// hush drops what libraries log once a stop has begun: that their calls were cut
// off is what was asked for, and no error.
type hush struct {
	slog.Handler
	stopping <-chan struct{}
}

// Enabled implements slog.Handler.
func (h hush) Enabled(ctx context.Context, level slog.Level) bool {
	select {
	case <-h.stopping:
		return false
	default:
		return h.Handler.Enabled(ctx, level)
	}
}

// WithAttrs implements slog.Handler.
func (h hush) WithAttrs(attrs []slog.Attr) slog.Handler {
	return hush{h.Handler.WithAttrs(attrs), h.stopping}
}

// WithGroup implements slog.Handler.
func (h hush) WithGroup(name string) slog.Handler {
	return hush{h.Handler.WithGroup(name), h.stopping}
}

// operatorFlags are the flags that the operator has with and without a control
// plane of its own.
func operatorFlags(c *cobra.Command, o *Options, allow *[]string) {
	f := c.Flags()
	f.StringVar(&o.ProvidersConfig, "providers-config", o.ProvidersConfig, "YAML file of providers; default: one provider \"local\"")
	f.DurationVar(&o.ListInterval, "list-interval", o.ListInterval, "time between two listings of a provider's hosts")
	f.DurationVar(&o.CheckInterval, "provider-check-interval", o.CheckInterval, "time between two checks of a provider's hosts")
	f.DurationVar(&o.CheckTimeout, "provider-check-timeout", o.CheckTimeout, "time that one check has; 0 for the shorter of 15s and the interval")
	f.DurationVar(&o.SweepInterval, "gc-interval", o.SweepInterval, "time between two sweeps for instances without a Proxy and other leftovers")
	f.DurationVar(&o.SweepGrace, "gc-grace", o.SweepGrace, "how long ago a leftover was made and first seen before a sweep removes it")
	f.BoolVar(&o.SweepDryRun, "gc-dry-run", o.SweepDryRun, "sweeps report what they would remove, and remove nothing")
	f.DurationVar(&o.ProvisionTimeout, "provision-timeout", o.ProvisionTimeout, "time an instance may take to run before its phase says Failed")
	f.StringVar(&o.HealthURL, "health-check-url", o.HealthURL, "URL fetched through Proxies that name none; default: the operator's own origin")
	f.StringSliceVar(allow, "health-allow-cidr", nil, "range that direct control requests to health URLs may reach although it is not public; repeatable")
	f.IntVar(&o.HealthConcurrency, "health-concurrency", o.HealthConcurrency, "health checks run at once")
	f.StringVar(&o.OriginBind, "origin-bind-address", o.OriginBind, "where the operator's own origin listens (host:port); empty for none")
	f.StringVar(&o.OriginURL, "origin-url", o.OriginURL, "URL at which proxies reach the origin; default: its bound address")
	if c.Name() == "proxy-operator" {
		f.StringVar(&o.APIBind, "api-bind-address", o.APIBind, "where the client API listens (host:port)")
	}
	f.StringVar(&o.APITLSCert, "api-tls-cert", o.APITLSCert, "PEM certificate chain of the client API")
	f.StringVar(&o.APITLSKey, "api-tls-key", o.APITLSKey, "PEM key of the client API")
	f.BoolVar(&o.APIAllowPlaintext, "api-allow-plaintext", o.APIAllowPlaintext, "serve the client API without TLS on an address other than loopback")
	f.Float64Var(&o.APIRate, "api-rate", o.APIRate, "requests a second of one token, sustained; twice as many at once; -1 for no limit")
	f.StringVar(&o.Database, "database", o.Database, "SQLite file of tokens and leases, on a local disk; default desk.db in the state folder")
	f.StringVar(&o.DatabaseURLFile, "database-url-file", o.DatabaseURLFile, "file (0600) with the URL of a PostgreSQL database, instead of --database; replicas share it")
	f.StringVar(&o.AdminTokenFile, "admin-token-file", o.AdminTokenFile, "file (0600) for the first admin token; default admin-token in the state folder")
	f.StringVar(&o.AdminTokenSecret, "admin-token-secret", o.AdminTokenSecret, "name of a Secret in --namespace for the first admin token, instead of a file")
}

func prefixes(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return nil, fault.Errorf(fault.Invalid, "--health-allow-cidr=%q: want a range such as 192.0.2.0/24", s)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// kubeConfig finds the Kubernetes API as kubectl does, and the Pod's own.
func kubeConfig(path string, environ []string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}
	if path == "" {
		home := ""
		for _, kv := range environ {
			switch k, v, _ := strings.Cut(kv, "="); k {
			case "KUBECONFIG":
				rules.Precedence = filepath.SplitList(v)
			case "HOME":
				home = v
			}
		}
		if len(rules.Precedence) == 0 {
			if cfg, err := rest.InClusterConfig(); err == nil {
				return cfg, nil
			}
			rules.Precedence = []string{filepath.Join(home, ".kube", "config")}
		}
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "no Kubernetes API is configured (%w): give --kubeconfig, or start proxy-operator-standalone, which brings one along", err)
	}
	return cfg, nil
}
