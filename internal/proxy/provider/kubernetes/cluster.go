package kubernetes

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// readAgain is how long a kubeconfig that was read is good: a rotated one is
	// in use after this time at the latest, and after a refusal at once.
	readAgain = 30 * time.Second
	// readLimit bounds the reading of the kubeconfig, and is the pause after one
	// that failed while an earlier content holds.
	readLimit = 5 * time.Second
	// dialLimit bounds a connection's beginning.
	dialLimit = 10 * time.Second
	// An idle connection is asked for life after pingAfter, and is dead when the
	// answer does not come within pingLimit: a watch must not wait for ever on
	// one that a firewall forgot.
	pingAfter = 15 * time.Second
	pingLimit = 10 * time.Second
	// protobuf is smaller than JSON by a third, and cheaper to read.
	protobuf = "application/vnd.kubernetes.protobuf"
)

// conn is a way to the cluster, by one kubeconfig.
type conn struct {
	core *kubernetes.Clientset
	meta metadata.Interface
	sum  [sha256.Size]byte
	idle func()
	// over is closed when another one has taken its place.
	over chan struct{}
	// right says that it leads to the namespace that was met first.
	right atomic.Bool
}

// cluster keeps the way to the cluster. Nothing is asked before it is needed.
type cluster struct {
	ref    *provider.SecretRef
	secret func(context.Context, provider.SecretRef) (provider.Secret, error)
	own    func() (*rest.Config, error)
	now    func() time.Time

	// reading holds one reader at a time; a channel, since waiting for it ends
	// with the context.
	reading chan struct{}
	mu      sync.Mutex
	at      *conn
	read    time.Time
	closed  bool
}

// conn returns the way to the cluster, by a kubeconfig that is not older than
// readAgain.
func (k *cluster) conn(ctx context.Context) (*conn, error) {
	if c, err := k.fresh(); c != nil || err != nil {
		return c, err
	}
	select {
	case k.reading <- struct{}{}:
		defer func() { <-k.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c, err := k.fresh(); c != nil || err != nil {
		return c, err // another call has read it meanwhile
	}
	sum, cfg, err := k.load(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil && k.at != nil && fault.Of(err) != fault.Permanent && fault.Of(err) != fault.Denied:
		// What was read last holds as long as nobody can say otherwise.
		k.read = k.now().Add(readLimit - readAgain)
		return k.at, nil
	case err != nil:
		return nil, err
	case k.at != nil && k.at.sum == sum:
		k.read = k.now()
		return k.at, nil
	}
	c, err := dial(cfg)
	if err != nil {
		return nil, err
	}
	c.sum = sum
	if k.at != nil {
		k.at.end()
	}
	k.at, k.read = c, k.now()
	if k.closed {
		c.end()
		return nil, errClosed()
	}
	return c, nil
}

func errClosed() error {
	return fault.New(fault.Unavailable, "the provider was closed: its configuration changed, or the operator stops")
}

func (k *cluster) fresh() (*conn, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return nil, errClosed()
	case k.at != nil && k.ref == nil && !k.read.IsZero(), k.at != nil && k.now().Sub(k.read) < readAgain:
		return k.at, nil
	}
	return nil, nil
}

// doubt has the kubeconfig, or the own configuration, read anew by the next
// call: the cluster refused it, or is not trusted.
func (k *cluster) doubt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.read = time.Time{}
}

func (k *cluster) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.at != nil {
		k.at.end()
		k.at = nil
	}
}

func (c *conn) end() {
	close(c.over)
	c.idle()
}

// load reads the configuration of the way to the cluster.
func (k *cluster) load(ctx context.Context) (sum [sha256.Size]byte, cfg *rest.Config, err error) {
	if k.ref == nil {
		cfg, err := k.own()
		if err != nil {
			return sum, nil, fault.Errorf(fault.Permanent, "the operator does not run in a cluster of its own: name a kubeconfigSecret in the provider's section: %w", err)
		}
		return ownSum(cfg), cfg, nil
	}
	if k.secret == nil {
		return sum, nil, fault.New(fault.Permanent, "kubeconfigSecret: this operator has no way to read Secrets")
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	text, err := k.secret(ctx, *k.ref)
	if err != nil {
		switch fault.Of(err) {
		case fault.NotFound, fault.Invalid:
			err = fault.Wrap(fault.Permanent, err)
		}
		return sum, nil, err
	}
	cfg, err = parseKubeconfig(text)
	if err != nil {
		return sum, nil, fault.Errorf(fault.Permanent, "kubeconfigSecret: key %s of Secret %s: %w", k.ref.Key, k.ref.Name, err)
	}
	return sha256.Sum256(text), cfg, nil
}

// ownSum tells an own configuration from an earlier one. Its token is read anew
// by client-go; its authority is a file that is read once for each connection,
// and another one after the cluster has changed its authority.
func ownSum(cfg *rest.Config) [sha256.Size]byte {
	ca := cfg.CAData
	if len(ca) == 0 && cfg.CAFile != "" {
		ca, _ = os.ReadFile(cfg.CAFile) // one that cannot be read is dial's error
	}
	return sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s", cfg.Host, cfg.BearerTokenFile, ca))
}

// parseKubeconfig reads a kubeconfig that must hold all that it needs: it comes
// from a Secret, and may neither run programs in the operator nor have it read
// files. Its errors never quote it.
func parseKubeconfig(text provider.Secret) (*rest.Config, error) {
	raw, err := clientcmd.Load(text)
	if err != nil {
		return nil, fault.New(fault.Permanent, "it is no kubeconfig: write the whole file there, as kubectl config view --raw --flatten prints it")
	}
	context := raw.Contexts[raw.CurrentContext]
	if context == nil {
		return nil, fault.Errorf(fault.Permanent, "it has no current-context that it defines: set it with kubectl config use-context")
	}
	server, user := raw.Clusters[context.Cluster], raw.AuthInfos[context.AuthInfo]
	if server == nil || server.Server == "" {
		return nil, fault.New(fault.Permanent, "its current context names no cluster that it defines")
	}
	if user == nil {
		user = clientcmdapi.NewAuthInfo()
	}
	if u, err := url.Parse(server.Server); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fault.New(fault.Permanent, "its server is no URL that begins with https://")
	}
	switch {
	case user.Exec != nil, user.AuthProvider != nil:
		return nil, fault.New(fault.Permanent, "it runs a program to log in, which is not done here: use a token or a client certificate")
	case server.CertificateAuthority != "", user.ClientCertificate != "", user.ClientKey != "", user.TokenFile != "":
		return nil, fault.New(fault.Permanent, "it names files, which are not there: write their content into it with kubectl config view --raw --flatten")
	case server.InsecureSkipTLSVerify:
		return nil, fault.New(fault.Permanent, "it leaves out the check of the server's certificate: give certificate-authority-data instead")
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*raw, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fault.New(fault.Permanent, "it cannot be used: see whether kubectl can use it alone")
	}
	return cfg, nil
}

// prompt has a lost connection, and a server that is busy, told at once.
// client-go tries again by itself, ten times over as many seconds or more, when
// it takes an error for such, or when an answer of 429 or 500 and above says
// Retry-After; here the reconciler does that, and a listing must not wait.
type prompt struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p prompt) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.RoundTripper.RoundTrip(r)
	if err != nil && (utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err)) {
		return nil, errLost
	}
	if err == nil {
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

var errLost = errors.New("the connection was lost")

// dial makes the clients. It connects nowhere yet. The transport is our own:
// client-go's are shared by all that have one configuration, and could not be
// closed with the provider.
func dial(cfg *rest.Config) (*conn, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // the server's own fairness bounds us, and the reconciler's slots
	cfg.UserAgent = "fleetdesk-kubernetes-provider"
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, fault.New(fault.Permanent, "the kubeconfig's certificates or key cannot be read: write them into it whole, in PEM")
	}
	tr := &http.Transport{
		TLSClientConfig: tlsConfig, Proxy: cfg.Proxy,
		DialContext:         (&net.Dialer{Timeout: dialLimit, KeepAlive: pingAfter}).DialContext,
		TLSHandshakeTimeout: dialLimit, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 8,
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingLimit},
	}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, tr)
	if err != nil {
		return nil, fault.New(fault.Permanent, "the kubeconfig's user has credentials that exclude each other: leave a token or a client certificate")
	}
	client := &http.Client{Transport: prompt{wrapped}}
	c := &conn{idle: tr.CloseIdleConnections, over: make(chan struct{})}
	if c.meta, err = metadata.NewForConfigAndClient(metadata.ConfigFor(cfg), client); err == nil {
		typed := rest.CopyConfig(cfg)
		typed.ContentType, typed.AcceptContentTypes = protobuf, protobuf+",application/json"
		c.core, err = kubernetes.NewForConfigAndClient(typed, client)
	}
	if err != nil {
		return nil, fault.New(fault.Permanent, "the kubeconfig's server is no URL that can be used")
	}
	return c, nil
}
