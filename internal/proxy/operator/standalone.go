package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/obs"
)

// ControlPlane runs a Kubernetes API server with our definitions installed
// until ctx ends; it calls ready once, when the API answers. When it has
// returned, nothing of it runs any more.
type ControlPlane func(ctx context.Context, o ControlPlaneOptions, ready func(*rest.Config)) error

// ControlPlaneOptions say where a control plane keeps its state and listens.
type ControlPlaneOptions struct {
	// DataDir is the folder for its data, keys and certificates; it exists.
	DataDir string
	// Bind is the IP address to listen on, Port the TCP port.
	Bind string
	Port int
	// Kubeconfig is the file that gets an administrator's kubeconfig.
	Kubeconfig string
	// Namespace is the operator's own: where the Secrets are that its providers
	// name. It is made.
	Namespace string
	// Log hears its chatter at debug level, and trouble above.
	Log *slog.Logger
}

// RunFunc runs the operator against an API until ctx ends; it is [Run].
type RunFunc func(ctx context.Context, cfg *rest.Config, o Options) error

// StandaloneOptions are the settings of a start with a control plane.
type StandaloneOptions struct {
	// DataDir holds everything that is kept: one folder to back up.
	DataDir string
	// Bind is the IP address of the Kubernetes API and of the client API.
	Bind string
	// Port and APIPort are their ports.
	Port, APIPort int
	// Demo makes three Proxies and says what to type next.
	Demo bool
	// StopProxies ends the processes of local proxies at the stop. Nothing is
	// deleted: the next start starts them again.
	StopProxies bool
	// Operator are the operator's own settings. StateDir, APIBind, Halt and
	// Ready are set from the others.
	Operator Options
	// Kubectl is the kubectl that the printed commands name.
	Kubectl string
}

// How long the parts may take to stop before the next one is stopped anyway.
const (
	operatorStopTimeout     = 15*time.Second + haltTimeout
	controlPlaneStopTimeout = 20 * time.Second
)

// newStandalone is the root command of the standalone binary.
func newStandalone(p *Program) *cobra.Command {
	o := StandaloneOptions{Operator: Defaults()}
	o.Operator.LocalCommand = []string{p.Executable, localProxyCommand}
	o.Operator.OriginBind = "127.0.0.1:8701"
	var allow []string
	var verbosity int
	c := &cobra.Command{
		Use:   "proxy-operator-standalone",
		Short: "The operator and a Kubernetes API in one process",
		Long: `proxy-operator-standalone runs a small fleet without a cluster: a Kubernetes API
server with its database, the operator, and the API from which crawlers take
proxies, in one process with one folder of data.

Make Proxies with kubectl and the kubeconfig that it prints. Stopping it leaves
local proxies running; the next start takes them over.

Exit codes: 0 stopped cleanly; 1 a permanent failure, or the data folder or a
port is in use; 2 a wrong flag or configuration; 69 something it needs does not
answer; 75 try again later.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Operator.Log = obs.NewLogger(p.Streams.Err, obs.Options{Level: standaloneLevel(verbosity)})
			setLibraryLoggers(c.Context(), o.Operator.Log)
			var err error
			if o.Operator.HealthAllowCIDRs, err = prefixes(allow); err != nil {
				return err
			}
			if o.DataDir == "" {
				if o.DataDir, err = defaultDataDir(p.Environ); err != nil {
					return err
				}
			}
			if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
				return fault.Errorf(fault.Invalid, "--data-dir: %w", err)
			}
			o.Kubectl = findKubectl(p.Environ, p.Executable)
			return runStandalone(c.Context(), o, p.Streams, p.ControlPlane, Run)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.DataDir, "data-dir", "", "folder of everything that is kept; default $XDG_DATA_HOME/fleetdesk")
	f.StringVar(&o.Bind, "bind", "127.0.0.1", "IP address of the Kubernetes API and the client API")
	f.IntVar(&o.Port, "port", 16443, "port of the Kubernetes API")
	f.IntVar(&o.APIPort, "api-port", 8700, "port of the client API")
	f.BoolVar(&o.Demo, "demo", false, "make three Proxies and say what to type next")
	f.BoolVar(&o.StopProxies, "stop-proxies", false, "end local proxies when stopping; the next start starts them again")
	operatorFlags(c, &o.Operator, &allow)
	// Without these choices there is one folder, and one way to back it up.
	_ = f.MarkHidden("database")
	_ = f.MarkHidden("database-url-file")
	_ = f.MarkHidden("admin-token-secret")
	// Kubernetes' libraries put a --version of their own on every command of a
	// process that holds them; this one takes its place.
	f.Bool("version", false, "print the version")
	c.Version = fmt.Sprint(obs.Version())
	c.SetVersionTemplate("{{.Version}}\n")
	f.CountVarP(&verbosity, "verbose", "v", "log more; repeat for a line per provider call (-vv), addresses (-vvv), everything (-vvvv)")
	return c
}

// standaloneLevel is quiet by default: a person reads the progress lines.
func standaloneLevel(v int) slog.Level {
	switch {
	case v <= 0:
		return slog.LevelWarn
	case v <= 3:
		return obs.Verbosity(v - 1)
	default:
		return slog.LevelDebug
	}
}

func (o *StandaloneOptions) validate() error {
	refuse := func(format string, args ...any) error { return fault.Errorf(fault.Invalid, format, args...) }
	switch {
	case net.ParseIP(o.Bind) == nil:
		return refuse("--bind=%q: want an IP address, such as 127.0.0.1", o.Bind)
	case o.Port < 1 || o.Port > 65535:
		return refuse("--port=%d: want 1 to 65535", o.Port)
	case o.APIPort < 1 || o.APIPort > 65535:
		return refuse("--api-port=%d: want 1 to 65535", o.APIPort)
	case o.Port == o.APIPort:
		return refuse("--port and --api-port are both %d: give one of them another", o.Port)
	case !o.Operator.APIAllowPlaintext && o.Operator.APITLSCert == "" && !net.ParseIP(o.Bind).IsLoopback():
		return refuse("--bind=%s: tokens would cross the network in the clear: use a loopback address, give --api-tls-cert and --api-tls-key, or allow it with --api-allow-plaintext", o.Bind)
	case o.Operator.AdminTokenSecret != "":
		return refuse("--admin-token-secret is for clusters: here the token goes to a file, see --admin-token-file")
	}
	op := o.Operator
	op.StateDir, op.APIBind = o.DataDir, net.JoinHostPort(o.Bind, strconv.Itoa(o.APIPort))
	return op.validate()
}

// runStandalone runs control plane and operator until ctx ends or one of them
// fails. They stop in the order operator, API server, database.
func runStandalone(ctx context.Context, o StandaloneOptions, streams Streams, cp ControlPlane, run RunFunc) (err error) {
	if o.Operator.Log == nil {
		o.Operator.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.validate(); err != nil {
		return err
	}
	if _, _, err := readProviders(o.Operator.ProvidersConfig); err != nil {
		return err
	}
	if err := inspectData(o.DataDir); err != nil {
		return err
	}
	if err := o.checkPorts(ctx); err != nil {
		return err
	}
	data, err := claimData(o.DataDir)
	if err != nil {
		return err
	}
	defer data.release()
	s := &standalone{o: o, data: data, streams: streams, began: time.Now()}
	s.o.Operator.StateDir = o.DataDir
	s.o.Operator.Halt = o.StopProxies
	s.o.Operator.APIBind = net.JoinHostPort(o.Bind, strconv.Itoa(o.APIPort))

	s.say("starting the Kubernetes API; data in %s", o.DataDir)
	defer s.say("stopped")
	control := s.startControlPlane(ctx, cp)
	defer func() { err = errors.Join(err, control.stop("the Kubernetes API", controlPlaneStopTimeout)) }()
	var cfg *rest.Config
	select {
	case cfg = <-control.ready:
	case err := <-control.done:
		return control.ended("the Kubernetes API", err)
	case <-ctx.Done():
		return nil
	}
	s.apiReady = time.Since(s.began)

	s.say("the Kubernetes API is ready; starting the operator")
	op := s.startOperator(ctx, cfg, run)
	defer func() { err = errors.Join(err, op.stop("the operator", operatorStopTimeout)) }()
	var at Endpoints
	select {
	case at = <-op.ready:
	case err := <-op.done:
		return op.ended("the operator", err)
	case err := <-control.done:
		return control.ended("the Kubernetes API", err)
	case <-ctx.Done():
		return nil
	}
	if err := s.announce(cfg, at); err != nil {
		return err
	}
	defer data.forget(endpointsFile)
	defer s.say("stopping")

	guide := s.startGuide(ctx, cfg, at)
	defer guide()
	select {
	case <-ctx.Done():
		return nil
	case err := <-op.done:
		return op.ended("the operator", err)
	case err := <-control.done:
		return control.ended("the Kubernetes API", err)
	}
}

// standalone is one run.
type standalone struct {
	o        StandaloneOptions
	data     *dataDir
	streams  Streams
	began    time.Time
	apiReady time.Duration
}

// say writes a line of progress; the result of the program goes to Out.
func (s *standalone) say(format string, args ...any) {
	fmt.Fprintf(s.streams.Err, "%6.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// part is something that runs beside: T is what it says when it is ready.
type part[T any] struct {
	ready  chan T
	done   chan error
	cancel context.CancelFunc
}

// startPart runs f until the part is stopped. It has a context of its own, so
// that the end of ctx stops the parts one by one.
func startPart[T any](ctx context.Context, f func(ctx context.Context, ready func(T)) error) *part[T] {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part[T]{ready: make(chan T, 1), done: make(chan error, 1), cancel: cancel}
	go func() {
		p.done <- f(ctx, func(v T) {
			select {
			case p.ready <- v:
			default: // ready was said before
			}
		})
		close(p.done)
	}()
	return p
}

// stop asks the part to end and waits. Again is fine. An error says how it
// ended, or that it did not in time.
func (p *part[T]) stop(name string, limit time.Duration) error {
	p.cancel()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-p.done: // nil once it was read
		if err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	case <-timer.C:
		return fault.Errorf(fault.Timeout, "%s did not stop within %s", name, limit)
	}
}

// ended turns the end of a part that nobody stopped into an error.
func (p *part[T]) ended(name string, err error) error {
	if err == nil {
		return fault.Errorf(fault.Unavailable, "%s stopped by itself", name)
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (s *standalone) startControlPlane(ctx context.Context, cp ControlPlane) *part[*rest.Config] {
	return startPart(ctx, func(ctx context.Context, ready func(*rest.Config)) error {
		return cp(ctx, ControlPlaneOptions{
			DataDir: s.o.DataDir, Bind: s.o.Bind, Port: s.o.Port,
			Kubeconfig: s.data.path(kubeconfigFile), Namespace: s.o.Operator.Namespace, Log: s.o.Operator.Log.With("part", "kubernetes"),
		}, ready)
	})
}

func (s *standalone) startOperator(ctx context.Context, cfg *rest.Config, run RunFunc) *part[Endpoints] {
	return startPart(ctx, func(ctx context.Context, ready func(Endpoints)) error {
		o := s.o.Operator
		o.Ready = ready
		return run(ctx, cfg, o)
	})
}

// defaultDataDir follows the XDG base directory specification.
func defaultDataDir(environ []string) (string, error) {
	if dir := lookup(environ, "XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "fleetdesk"), nil
	}
	if home := lookup(environ, "HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "fleetdesk"), nil
	}
	return "", fault.New(fault.Invalid, "neither XDG_DATA_HOME nor HOME is set: give a folder with --data-dir")
}

// lookup returns the last value of a variable, as a process sees it.
func lookup(environ []string, key string) string {
	value := ""
	for _, kv := range environ {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			value = v
		}
	}
	return value
}
