package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elazarl/goproxy"
	"golang.org/x/sys/unix"
)

// forwardConfig is what a forward proxy needs; defaultForward has the limits.
type forwardConfig struct {
	// self is where it listens and whose address it leaves by.
	self netip.AddrPort
	// auth is nil when clients need no credentials.
	auth *verifier
	log  *slog.Logger

	maxClients int // connections of clients at once
	maxHeader  int // bytes of a request's or response's header
	// dial bounds reaching a target, header the reading of a request's header,
	// answer the wait for a response's header, keep an unused connection kept
	// for a next request, idle one on which nothing moves, end the requests
	// that run when the process is told to end.
	dial, header, answer, keep, idle, end time.Duration
}

func defaultForward() forwardConfig {
	return forwardConfig{
		maxClients: 1024,
		maxHeader:  64 << 10,
		dial:       10 * time.Second,
		header:     10 * time.Second,
		answer:     60 * time.Second,
		keep:       30 * time.Second,
		idle:       5 * time.Minute,
		end:        500 * time.Millisecond,
	}
}

// forward is an HTTP/1.1 forward proxy: absolute-form requests and CONNECT. It
// looks into no tunnel, adds no header that tells of the client, and has no
// other way out than its own dialer.
type forward struct {
	cfg   forwardConfig
	conns *conns
	proxy *goproxy.ProxyHttpServer
	tr    *http.Transport
}

func newForward(cfg forwardConfig) *forward {
	f := &forward{
		cfg:   cfg,
		conns: &conns{idle: cfg.idle, maxClients: cfg.maxClients, open: map[*conn]struct{}{}},
	}
	f.tr = &http.Transport{
		DialContext:            f.dial,
		DisableCompression:     true, // what the client accepts is the client's to say
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        cfg.keep,
		ResponseHeaderTimeout:  cfg.answer,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: int64(cfg.maxHeader),
	}
	p := goproxy.NewProxyHttpServer()
	p.Logger = warnings{cfg.log}
	p.Tr = f.tr
	// The constructor may have read a proxy from the environment here.
	p.ConnectDial = nil
	p.ConnectDialWithReq = func(r *http.Request, network, addr string) (net.Conn, error) {
		return f.dial(r.Context(), network, addr)
	}
	p.ConnectionErrHandler = func(w io.Writer, _ *goproxy.ProxyCtx, err error) { writeRaw(w, err) }
	p.KeepAcceptEncoding = true
	p.OnRequest().DoFunc(func(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		ctx.RoundTripper = goproxy.RoundTripperFunc(f.roundTrip)
		stripHop(r.Header)
		if r.Header["User-Agent"] == nil {
			r.Header["User-Agent"] = []string{""} // or net/http adds its own
		}
		return r, nil
	})
	p.OnResponse().DoFunc(func(resp *http.Response, ctx *goproxy.ProxyCtx) *http.Response {
		if resp == nil {
			status, text := describe(ctx.Error)
			return goproxy.NewResponse(ctx.Req, "text/plain; charset=utf-8", status, text)
		}
		if resp.StatusCode != http.StatusSwitchingProtocols {
			stripHop(resp.Header)
		}
		for _, name := range [...]string{"Content-Type", "Date"} {
			if _, ok := resp.Header[name]; !ok {
				resp.Header[name] = nil // or net/http guesses one
			}
		}
		return resp
	})
	f.proxy = p
	return f
}

// serve serves until ctx ends, lets running requests finish for a short time,
// and then ends all connections.
func (f *forward) serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:           f,
		ReadHeaderTimeout: f.cfg.header,
		IdleTimeout:       f.cfg.keep,
		MaxHeaderBytes:    f.cfg.maxHeader,
		// "OPTIONS *" is answered like every request for the proxy itself.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(f.cfg.log.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, clientKey{}, c)
		},
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { f.conns.tend(ctx) })
	group.Go(func() {
		<-ctx.Done()
		grace, stop := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.end)
		defer stop()
		_ = srv.Shutdown(grace)
		_ = srv.Close()
		f.tr.CloseIdleConnections()
		f.conns.closeAll()
	})
	if err := srv.Serve(&listener{ln, f.conns}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", f.cfg.self, err)
	}
	return nil
}

type clientKey struct{}

// ServeHTTP answers what is for the proxy itself, asks for credentials, and
// passes the rest on.
func (f *forward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	connect := r.Method == http.MethodConnect
	if !connect && !r.URL.IsAbs() {
		refuse(w, http.StatusBadRequest, "this is a forward proxy: it takes requests in absolute form and CONNECT")
		return
	}
	if f.cfg.auth != nil && !f.cfg.auth.admits(r.Header) {
		w.Header().Set("Proxy-Authenticate", `Basic realm="fleetdesk", charset="UTF-8"`)
		refuse(w, http.StatusProxyAuthRequired, "this proxy needs a user name and password")
		return
	}
	if connect {
		if !validTarget(r.URL.Host) {
			refuse(w, http.StatusBadRequest, "CONNECT needs a target of the form host:port")
			return
		}
		f.proxy.ServeHTTP(w, r)
		return
	}
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		refuse(w, http.StatusBadRequest, "only http:// URLs are taken in absolute form; use CONNECT for the rest")
		return
	}
	r.Close = false // that is between the client and this proxy
	c, _ := r.Context().Value(clientKey{}).(*conn)
	if c != nil && !r.ProtoAtLeast(1, 1) {
		// Such a client may know an answer's end by the connection's end alone.
		c.closeHard(true)
	}
	out := &prompt{ResponseWriter: w}
	r, cut := withCut(r)
	f.proxy.ServeHTTP(out, r)
	if cut.err != nil {
		breakOff(w)
	}
	if c == nil {
		return
	}
	if !r.ProtoAtLeast(1, 1) {
		c.closeHard(false)
	}
	if out.hijacked {
		_ = c.Close() // an upgraded connection is over when either side ended
	}
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Connection", "close")
	http.Error(w, text, status)
}

func validTarget(hostport string) bool {
	host, port, err := net.SplitHostPort(hostport)
	n, perr := strconv.ParseUint(port, 10, 16)
	return err == nil && perr == nil && host != "" && n > 0
}

// prompt sends on at once what was written, so that a slow answer's first
// bytes do not wait for its later ones.
type prompt struct {
	http.ResponseWriter
	hijacked bool
}

func (p *prompt) Write(b []byte) (int, error) {
	n, err := p.ResponseWriter.Write(b)
	if f, ok := p.ResponseWriter.(http.Flusher); ok && err == nil {
		f.Flush()
	}
	return n, err
}

func (p *prompt) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	p.hijacked = true
	return http.NewResponseController(p.ResponseWriter).Hijack()
}

func (p *prompt) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// stripHop removes the headers that are for this hop alone (RFC 9110, 7.6.1).
// A websocket handshake keeps the two that make it one.
func stripHop(h http.Header) {
	upgrade := false
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			name = strings.TrimSpace(name)
			if strings.EqualFold(name, "upgrade") && strings.EqualFold(h.Get("Upgrade"), "websocket") {
				upgrade = true
				continue
			}
			h.Del(name)
		}
	}
	for _, name := range [...]string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate",
		"Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding",
	} {
		h.Del(name)
	}
	if upgrade {
		h.Set("Connection", "Upgrade")
	} else {
		h.Del("Upgrade")
	}
}

var (
	errSelf        = errors.New("the target is this proxy itself")
	errUnspecified = errors.New("the target is no address")
)

// dial reaches a target. For targets in 127.0.0.0/8 it leaves by the proxy's
// own address; a loopback source cannot leave the machine, so for others the
// kernel chooses.
func (f *forward) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: f.cfg.dial, Control: f.leaveBy}
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := f.conns.add(nc.(*net.TCPConn), false)
	if c == nil {
		_ = nc.Close()
		return nil, errors.New("this proxy is ending")
	}
	return c, nil
}

// leaveBy binds a socket before it connects; here the address is resolved, so
// that no name gets around it.
func (f *forward) leaveBy(network, address string, raw syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := to.Addr().Unmap()
	switch {
	case ip.IsUnspecified():
		return errUnspecified // Linux takes it for 127.0.0.1, whoever the source is
	case ip == f.cfg.self.Addr() && to.Port() == f.cfg.self.Port():
		return errSelf
	case !ip.Is4() || !ip.IsLoopback() || network != "tcp4":
		return nil
	}
	var bindErr error
	err = raw.Control(func(fd uintptr) {
		// The port is chosen at connect, where it must be free for this target
		// only: one address has ports for more than 28,000 connections then.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		bindErr = unix.Bind(int(fd), &unix.SockaddrInet4{Addr: f.cfg.self.Addr().As4()})
	})
	return errors.Join(err, bindErr)
}

// describe says what a failure to reach the target is to the client.
func describe(err error) (status int, text string) {
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return http.StatusBadGateway, "the target did not answer\n"
	case errors.Is(err, errSelf):
		return http.StatusLoopDetected, err.Error() + "\n"
	case errors.As(err, &timeout) && timeout.Timeout():
		return http.StatusGatewayTimeout, "the target did not answer in time: " + err.Error() + "\n"
	}
	return http.StatusBadGateway, "cannot reach the target: " + err.Error() + "\n"
}

// writeRaw answers a CONNECT that failed; its connection is taken over already.
func writeRaw(w io.Writer, err error) {
	status, text := describe(err)
	_, _ = fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		status, http.StatusText(status), len(text), text)
}

// warnings passes goproxy's log lines on.
type warnings struct{ log *slog.Logger }

func (l warnings) Printf(format string, v ...any) {
	l.log.Warn("proxy", "message", strings.TrimSpace(fmt.Sprintf(format, v...)))
}
