package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleetdesk/internal/proxy/provider"
)

// userAgent is what far ends see of a probe.
const userAgent = "proxy-operator-health"

// Request probes one proxy by one request over a connection of its own, which
// is closed before Request returns. Redirects are answers, not ways to follow.
// Nothing is ever sent directly. Without a URL the check is shallow.
func Request(ctx context.Context, t Target, c Check) Result {
	t, c = t.withDefaults(), c.withDefaults()
	shallow := c.URL == ""
	if err := t.check(); err != nil {
		return failed(err, shallow)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	p := &passage{start: time.Now()}
	defer p.close()
	// The connections end with the context, whatever a library does with
	// deadlines and detached contexts.
	stop := context.AfterFunc(ctx, p.close)
	defer stop()

	var res Result
	var err error
	if shallow {
		err = p.knock(ctx, t)
	} else {
		res, err = p.fetch(ctx, t, c)
	}
	if err != nil {
		return failed(p.explain(ctx, t, c, err), shallow)
	}
	res.OK, res.Reason, res.Shallow, res.Latency = true, ReasonOK, shallow, p.latency()
	return res
}

func failed(err error, shallow bool) Result {
	return Result{Reason: ReasonOf(err), Err: err, Shallow: shallow}
}

// passage is one probe's way through a proxy.
type passage struct {
	start time.Time
	stage atomic.Int32 // a stage
	first atomic.Int64 // nanoseconds from start to the answer's first byte

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

// stage is how far a probe came; it words a timeout.
type stage int32

const (
	connecting stage = iota
	connected
	tunnelled
	asked
	answering
)

func (s stage) String() string {
	return [...]string{
		"before it accepted a connection",
		"after it accepted the connection",
		"after it opened the tunnel",
		"after it took the request",
		"in the middle of the answer",
	}[s]
}

// reach records progress; it never goes back.
func (p *passage) reach(s stage) {
	for {
		old := p.stage.Load()
		if old >= int32(s) || p.stage.CompareAndSwap(old, int32(s)) {
			return
		}
	}
}

func (p *passage) at() stage { return stage(p.stage.Load()) }

func (p *passage) firstByte() {
	p.first.CompareAndSwap(0, int64(max(1, time.Since(p.start))))
	p.reach(answering)
}

func (p *passage) latency() time.Duration { return time.Duration(p.first.Load()) }

// dialer opens connections under the probe's own context: net/http detaches
// the one that it hands out.
func (p *passage) dialer(ctx context.Context) dialFunc {
	return func(_ context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		p.reach(connected)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed {
			_ = conn.Close()
			return nil, context.Cause(ctx)
		}
		p.conns = append(p.conns, conn)
		return conn, nil
	}
}

func (p *passage) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// fetch sends the check's request through the proxy.
func (p *passage) fetch(ctx context.Context, t Target, c Check) (Result, error) {
	req, err := newRequest(ctx, c)
	if err != nil {
		return Result{}, err
	}
	if req.URL.Scheme == "http" && t.Protocol != provider.SOCKS5 {
		// As curl and browsers say to a proxy, for it alone: one that passes this on
		// tells the far end of itself.
		req.Header.Set("Proxy-Connection", "close")
	}
	tr := newTransport(t, p.dialer(ctx))
	defer tr.CloseIdleConnections()
	tr.DisableKeepAlives = true
	tr.TLSClientConfig = clientTLS(c)
	if tunnel := tr.DialContext; t.Protocol == provider.SOCKS5 {
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := tunnel(ctx, network, addr)
			if err == nil {
				p.reach(tunnelled)
			}
			return conn, err
		}
	}
	if answer := tr.OnProxyConnectResponse; answer != nil {
		tr.OnProxyConnectResponse = func(ctx context.Context, via *url.URL, req *http.Request, resp *http.Response) error {
			err := answer(ctx, via, req, resp)
			if err == nil {
				p.reach(tunnelled)
			}
			return err
		}
	}
	resp, err := tr.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest:         func(httptrace.WroteRequestInfo) { p.reach(asked) },
		GotFirstResponseByte: p.firstByte,
	})))
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusProxyAuthRequired:
		return Result{}, authRefused(t)
	case resp.StatusCode != c.ExpectedStatus:
		return Result{}, fail(UnexpectedStatus, nil, "%s answered through proxy %s with status %d instead of %d", shown(req.URL), t.hostPort(), resp.StatusCode, c.ExpectedStatus)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return Result{}, err
	}
	return Result{ExitIP: exitIP(resp.Header, body), Leaks: leaks(resp.Header, t, req.URL.Scheme)}, nil
}

// newRequest makes the check's request, for a proxy or direct.
func newRequest(ctx context.Context, c Check) (*http.Request, error) {
	u, user, err := c.parse()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fail(InvalidCheck, nil, "the health check's URL cannot be requested; correct healthCheck.url or --health-check-url")
	}
	if user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	req.Header.Set("User-Agent", userAgent)
	// An answer from a proxy's own cache would prove nothing.
	req.Header.Set("Cache-Control", "no-cache")
	return req, nil
}

// knock is the shallow check: does the port answer in the proxy's protocol?
//
// A request in origin form is not one for a proxy, and proxies answer it with
// some error of their own: any well-formed answer counts. Only 407 does not:
// with credentials they are wrong, without them nobody can use this proxy.
func (p *passage) knock(ctx context.Context, t Target) error {
	conn, err := dialProxy(ctx, t, p.dialer(ctx))
	if err != nil {
		return err
	}
	if t.Protocol == provider.SOCKS5 {
		if err := socksGreet(conn, t); err != nil {
			return err
		}
		p.firstByte()
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.hostPort()+"/", nil)
	if err != nil {
		return fail(InvalidTarget, nil, "the proxy's address %.80q cannot be requested", t.Address)
	}
	req.Header.Set("User-Agent", userAgent)
	req.Close = true
	if t.hasCredentials() {
		req.Header.Set("Proxy-Authorization", basic(t))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	p.reach(asked)
	answer := bufio.NewReader(io.LimitReader(conn, maxHeaderBytes))
	if _, err := answer.Peek(1); err != nil {
		return err
	}
	p.firstByte()
	resp, err := http.ReadResponse(answer, req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusProxyAuthRequired {
		return authRefused(t)
	}
	return nil
}

// basic is the header value that net/http makes of a proxy URL's user part.
func basic(t Target) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(t.User, string(t.Password))
	return r.Header.Get("Authorization")
}

// explain gives an error of a passage its reason, and a text without a byte
// that came from the far side.
func (p *passage) explain(ctx context.Context, t Target, c Check, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fail(Cancelled, err, "the probe of proxy %s was given up", t.hostPort())
	}
	reason := ReasonOf(err)
	if reason != "" && reason != BadResponse && reason != ProxyTLSFailed {
		return err
	}
	// Our own closing of the connection looks like the far side's: the
	// deadline decides.
	if timedOut(ctx, err) {
		return fail(Timeout, err, "proxy %s gave no whole answer within %s: it stalled %s", t.hostPort(), c.Timeout, p.at())
	}
	if reason != "" {
		return err
	}
	via := fmt.Sprintf("proxy %s", t.hostPort())
	switch {
	case p.at() == tunnelled && strings.HasPrefix(c.URL, "https:"), isTLS(err):
		return fail(TargetTLSFailed, err, "TLS with the health check's host through %s failed: %s", via, tlsText(err))
	case closedEarly(err):
		return fail(BadResponse, err, "%s closed the connection before the answer was whole", via)
	}
	return fail(BadResponse, err, "%s does not answer in HTTP", via)
}
