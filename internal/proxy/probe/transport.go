package probe

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"time"

	"fleetdesk/internal/proxy/provider"
)

const (
	// dialTimeout and handshakeTimeout bound what a transport's user cannot
	// cancel by the request's context: net/http detaches it while connecting.
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 15 * time.Second
	// maxHeaderBytes bounds an answer's header, also the proxy's own.
	maxHeaderBytes = 64 << 10
)

// dialFunc opens a TCP connection.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Transport returns the way through a proxy that probes and users' requests
// share: every request leaves through t or fails, never directly, whatever the
// environment says. Failures of the proxy itself have a [ReasonOf]. It speaks
// HTTP/1.1. The caller closes its idle connections.
func Transport(t Target) (*http.Transport, error) {
	t = t.withDefaults()
	if err := t.check(); err != nil {
		return nil, err
	}
	return newTransport(t, (&net.Dialer{Timeout: dialTimeout}).DialContext), nil
}

// newTransport is Transport for a checked target over a given dialer.
func newTransport(t Target, dial dialFunc) *http.Transport {
	tr := &http.Transport{
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        time.Minute,
		TLSHandshakeTimeout:    handshakeTimeout,
	}
	if t.Protocol == provider.SOCKS5 {
		// Our own few lines instead of net/http's, whose errors carry a refused
		// password and a refused connection as text alone.
		tr.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
			conn, err := dialProxy(ctx, t, dial)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
			defer cancel()
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			err = socksConnect(conn, t, addr)
			if !stop() || err != nil {
				_ = conn.Close()
				if timedOut(ctx, err) {
					return nil, fail(Timeout, err, "proxy %s accepted the connection and did not finish the SOCKS5 handshake in time", t.hostPort())
				}
				if err == nil {
					err = context.Cause(ctx)
				}
				return nil, err
			}
			return conn, nil
		}
		return tr
	}
	via := &url.URL{Scheme: string(t.Protocol), Host: t.hostPort()}
	if t.hasCredentials() {
		// A url.Userinfo holds the bytes as they are: nothing is escaped, cut
		// at a colon or read back from text.
		via.User = url.UserPassword(t.User, string(t.Password))
	}
	tr.Proxy = http.ProxyURL(via)
	viaProxy := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialProxy(ctx, t, dial)
	}
	// Both are only ever asked for the proxy's own address. The TLS one is for
	// an https proxy, which thus has a certificate pool of its own.
	tr.DialContext, tr.DialTLSContext = viaProxy, viaProxy
	tr.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
		return connectAnswer(t, resp.StatusCode)
	}
	return tr
}

// connectAnswer reads a proxy's answer to CONNECT.
func connectAnswer(t Target, status int) error {
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return authRefused(t)
	}
	return fail(ProxyRefused, nil, "proxy %s answered CONNECT with status %d: it may not or cannot reach the URL's host", t.hostPort(), status)
}

func authRefused(t Target) error {
	if t.hasCredentials() {
		return fail(AuthRefused, nil, "proxy %s refuses the credentials; compare the Secret of authSecretRef with the proxy's own configuration", t.hostPort())
	}
	return fail(AuthRefused, nil, "proxy %s asks for credentials and none are known; set authSecretRef", t.hostPort())
}

// dialProxy connects to the proxy, and for an https proxy shakes hands.
func dialProxy(ctx context.Context, t Target, dial dialFunc) (net.Conn, error) {
	conn, err := dial(ctx, "tcp", t.hostPort())
	if err != nil {
		return nil, fail(ConnectFailed, err, "no connection to proxy %s: %s", t.hostPort(), dialText(err))
	}
	if t.Protocol != provider.HTTPS {
		return conn, nil
	}
	name := t.ServerName
	if name == "" {
		name = t.Address
	}
	secured := tls.Client(conn, &tls.Config{RootCAs: t.CAs, ServerName: name, NextProtos: []string{"http/1.1"}})
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		if timedOut(ctx, err) {
			return nil, fail(Timeout, err, "proxy %s accepted the connection and did not finish the TLS handshake in time", t.hostPort())
		}
		return nil, fail(ProxyTLSFailed, err, "TLS with proxy %s failed: %s", t.hostPort(), tlsText(err))
	}
	return secured, nil
}
