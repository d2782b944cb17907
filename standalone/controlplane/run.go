// Package controlplane runs a Kubernetes API server, its etcd and the few
// controllers that users of custom resources rely on, inside this process.
//
// It is the generic control plane: Secrets, ConfigMaps, Namespaces, Events,
// Leases, RBAC, tokens, CustomResourceDefinitions and admission. It has no
// Pods and no Services, by design.
//
// Several control planes may run in one process, each on its own data
// directory; nothing here keeps two of them off the same one: the caller
// holds the lock of the data directory.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
)

// How long the parts may take. Starting is bounded by the slowest disk that
// is still usable; stopping by the patience of a person at a terminal.
const (
	etcdStartTimeout      = 60 * time.Second
	apiStartTimeout       = 120 * time.Second
	controllerStopTimeout = 3 * time.Second
	apiStopTimeout        = 10 * time.Second
)

// Options says where a control plane keeps its state and where it listens.
type Options struct {
	// DataDir is the folder for etcd's data, keys and certificates. It is made
	// (0700) when it is missing.
	DataDir string
	// Bind is the IP address to listen on. With an unspecified address
	// (0.0.0.0, ::) the kubeconfig names the loopback address.
	Bind string
	// Port is the TCP port to listen on, 1 to 65535.
	Port int
	// Kubeconfig is the file that gets an administrator's kubeconfig (0600).
	// Empty means <DataDir>/kubeconfig.
	Kubeconfig string
	// CRDs are installed, and brought up to date, before ready is called: every
	// *.yaml below the root of the file system. Nil for none.
	CRDs fs.FS
	// Namespace is made when it is not there, before ready is called; empty for
	// none.
	Namespace string
	// Log receives what the parts say. Their chatter is at debug level, since
	// even a good start and a good stop write lines that look like errors.
	// Nil means no log.
	Log *slog.Logger
}

// Run starts a control plane and runs it until ctx ends; it calls ready once,
// when the API answers, the default namespaces exist and the definitions are
// served. The config given to ready is an administrator's and goes over the network like anybody's.
//
// Run returns nil when ctx ended, and an error when something did not start,
// or stopped by itself. When it has returned, nothing listens any more and
// the data directory can be used again. ready must not block.
//
// Errors: Invalid for options; Conflict, Denied or Invalid for the port;
// Permanent for what a person must mend, such as keys that cannot be read or a
// definition that the API refuses; Transient for a full disk; Timeout for what
// did not become ready; Unavailable for what stopped by itself.
func Run(ctx context.Context, o Options, ready func(*rest.Config)) (err error) {
	o, err = o.withDefaults()
	if err != nil {
		return err
	}
	definitions, err := readDefinitions(o.CRDs)
	if err != nil {
		return err
	}
	routeProcessLogs(o.Log)
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return fileFault(fmt.Errorf("make the data directory: %w", err))
	}
	began := time.Now()

	store, err := startEtcd(ctx, o.DataDir, o.Log)
	if ctx.Err() != nil && err != nil {
		return nil // called off
	}
	if err != nil {
		return err
	}
	defer store.stop()
	o.Log.Debug("etcd is ready", "after", time.Since(began))

	keys, err := ensurePKI(filepath.Join(o.DataDir, "pki"), serverNames(o.Bind), time.Now(), o.Log)
	if err != nil {
		return err
	}
	if err := writeKubeconfig(o, keys); err != nil {
		return err
	}

	// The parts end in an order: controllers, API server, etcd. So the API
	// server has a context of its own, which outlives ctx until the
	// controllers are gone.
	apiCtx, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	api, err := newAPIServer(apiCtx, o, keys, store.endpoint)
	if err != nil {
		return err
	}
	apiDone := make(chan error, 1)
	go func() { apiDone <- api.run(apiCtx) }()
	endAPI := func() error {
		stopAPI()
		select {
		case err := <-apiDone:
			return err
		case <-time.After(apiStopTimeout):
			// A request that hangs must not keep the process: etcd is closed
			// under it, and every write that was answered is on disk.
			o.Log.Warn("the API server did not stop in time", "waited", apiStopTimeout)
			return nil
		}
	}

	if err := awaitStart(ctx, api, apiDone, store.failed); err != nil {
		if errors.Is(err, errAPIStopped) {
			return err
		}
		return errors.Join(err, endAPI())
	}
	if ctx.Err() != nil {
		return endAPI()
	}
	o.Log.Debug("the API server is ready", "after", time.Since(began))

	if err := installDefinitions(ctx, api.loopback, definitions); err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return errors.Join(err, endAPI())
	}
	ctrlCtx, stopControllers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopControllers()
	ctrl, err := startControllers(ctrlCtx, api.loopback)
	if err != nil {
		return errors.Join(err, endAPI())
	}
	cfg, err := adminConfig(o, keys)
	if err != nil {
		return errors.Join(err, endAPI())
	}
	ready(cfg)

	var failed error
	select {
	case <-ctx.Done():
	case err := <-apiDone:
		stopControllers()
		ctrl.wait(controllerStopTimeout)
		return stopped(errAPIStopped, err)
	case err := <-store.failed:
		failed = stopped(errStoreStopped, err)
	}
	stopControllers()
	if !ctrl.wait(controllerStopTimeout) {
		o.Log.Debug("the controllers did not stop in time", "waited", controllerStopTimeout)
	}
	return errors.Join(failed, endAPI())
}

func (o Options) withDefaults() (Options, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.DataDir == "" {
		return o, fault.New(fault.Invalid, "control plane: no data directory given")
	}
	abs, err := filepath.Abs(o.DataDir)
	if err != nil {
		return o, fault.Errorf(fault.Invalid, "control plane: data directory %q: %w", o.DataDir, err)
	}
	o.DataDir = abs
	if net.ParseIP(o.Bind) == nil {
		return o, fault.Errorf(fault.Invalid, "control plane: bind address %q is not an IP address", o.Bind)
	}
	if o.Port < 1 || o.Port > 65535 {
		return o, fault.Errorf(fault.Invalid, "control plane: port %d is not between 1 and 65535", o.Port)
	}
	if o.Kubeconfig == "" {
		o.Kubeconfig = filepath.Join(o.DataDir, "kubeconfig")
	}
	return o, nil
}

// What stopped although nobody asked it to.
var (
	errAPIStopped   = fault.New(fault.Unavailable, "the API server stopped by itself")
	errStoreStopped = fault.New(fault.Unavailable, "etcd stopped by itself")
)

func stopped(which, why error) error {
	if why == nil {
		return which
	}
	return fmt.Errorf("%w: %w", which, why)
}

// awaitStart waits until the API server is ready. When ctx ends meanwhile it
// still waits for a while: a hook that is called off amid the start makes
// upstream code end the process, with an exit code that means failure.
func awaitStart(ctx context.Context, api *apiServer, apiDone, storeFailed <-chan error) error {
	readyCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiStartTimeout)
	defer cancel()
	up := make(chan error, 1)
	go func() { up <- api.waitReady(readyCtx) }()
	calledOff := ctx.Done()
	var patience <-chan time.Time
	for {
		select {
		case err := <-up:
			if err != nil {
				return fault.Errorf(fault.Timeout, "the API server did not become ready within %s: %w", apiStartTimeout, err)
			}
			return nil
		case err := <-apiDone:
			return stopped(errAPIStopped, err)
		case err := <-storeFailed:
			return stopped(errStoreStopped, err)
		case <-calledOff:
			calledOff, patience = nil, time.After(apiStopTimeout)
		case <-patience:
			return nil
		}
	}
}
