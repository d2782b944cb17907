package controlplane

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	controlplaneoptions "k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	genericserver "k8s.io/kubernetes/pkg/controlplane/apiserver/samples/generic/server"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/httpd"
	_ "fleetdesk/standalone/controlplane/quietetcd" // silences the etcd client, see there
)

// drainTimeout is how long a stopping server waits for its open connections.
// Clients with a watch keep theirs open for ever.
const drainTimeout = 2 * time.Second

// apiServer is an API server that is ready to run.
type apiServer struct {
	run func(context.Context) error
	// loopback is the configuration of the server's own privileged client.
	loopback *rest.Config
	// namespace is made when it is not there; "" for none.
	namespace string
}

// newAPIServer builds the chain of servers (custom resources, built-in kinds,
// aggregation) and opens the port. ctx must live as long as the server.
//
// Errors: those of [httpd.Listen]; Permanent for the rest, which depends on
// nothing that passes.
func newAPIServer(ctx context.Context, o Options, p *pki, etcd string) (_ *apiServer, err error) {
	// Upstream would listen by itself, with "tcp": to IPv6 too for 0.0.0.0.
	l, err := httpd.Listen(ctx, net.JoinHostPort(o.Bind, strconv.Itoa(o.Port)), "")
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	defer func() {
		if err != nil {
			_ = l.Close()
			err = fault.Errorf(fault.Permanent, "API server: %w", err)
		}
	}()
	opts := genericserver.NewOptions()
	applyOptions(opts, o, p, etcd)
	opts.SecureServing.Listener = l
	completed, err := opts.Complete(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	cfg, err := genericserver.NewConfig(completed)
	if err != nil {
		return nil, err
	}
	// The upstream sample is written for three servers behind one name: each
	// new CustomResourceDefinition waits 5 s for the others. There is one.
	cfg.APIExtensions.ExtraConfig.MasterCount = 1
	complete, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	chain, err := genericserver.CreateServerChain(complete)
	if err != nil {
		return nil, err
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return nil, err
	}
	// Upstream waits a minute, for load balancers to notice.
	chain.GenericAPIServer.ShutdownTimeout = drainTimeout
	run := func(ctx context.Context) error {
		defer func() { _ = l.Close() }() // when it never came to serve
		return prepared.Run(ctx)
	}
	return &apiServer{run: run, loopback: chain.GenericAPIServer.LoopbackClientConfig, namespace: o.Namespace}, nil
}

func applyOptions(opts *controlplaneoptions.Options, o Options, p *pki, etcd string) {
	opts.Etcd.StorageConfig.Transport.ServerList = []string{etcd}
	opts.SecureServing.BindAddress = net.ParseIP(o.Bind)
	opts.SecureServing.BindPort = o.Port
	opts.SecureServing.ServerCert.CertKey.CertFile = p.serverCert
	opts.SecureServing.ServerCert.CertKey.KeyFile = p.serverKey
	opts.SecureServing.ExternalAddress = reachable(o.Bind)
	opts.GenericServerRunOptions.ExternalHost = reachable(o.Bind).String()
	opts.GenericServerRunOptions.AdvertiseAddress = reachable(o.Bind)
	opts.Authentication.ClientCert.ClientCA = p.ca
	opts.Authentication.ServiceAccounts.Issuers = []string{"https://kubernetes.default.svc"}
	opts.Authentication.ServiceAccounts.KeyFiles = []string{p.saKey}
	opts.ServiceAccountSigningKeyFile = p.saKey
	opts.Authorization.Modes = []string{"RBAC"}
	opts.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = drainTimeout
	opts.Features.EnableProfiling = false
}

// waitReady waits until the server says it is ready and the namespaces exist;
// they come a moment after it says so.
func (a *apiServer) waitReady(ctx context.Context) error {
	kc, err := kubernetes.NewForConfig(a.loopback)
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		last := a.checkReady(ctx, kc)
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

func (a *apiServer) checkReady(ctx context.Context, kc kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := kc.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return err
	}
	for _, ns := range []string{"default", "kube-system"} {
		if _, err := kc.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	if a.namespace == "" {
		return nil
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.namespace}}
	if _, err := kc.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s cannot be made: %w", a.namespace, err)
	}
	return nil
}
