// Package httpd serves HTTP the way every part of the house does: bounded in
// time, size and number, on loopback unless told otherwise, with problem
// documents for errors and one log line per request. It knows no product.
package httpd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
)

// Options say where and how a [Server] listens. A zero duration or number
// means the default given at the field; a negative one is Invalid.
type Options struct {
	// Handler answers the requests; required.
	Handler http.Handler
	// Address is host:port. Port 0 takes any free one (see [Server.Addr]). An
	// empty host means every address of the machine, which is not loopback;
	// 0.0.0.0 is every IPv4 address alone, and [::] every IPv6 one.
	Address string
	// TLS names the certificate and key files; the zero value is plain HTTP.
	// Both files are read again when they change.
	TLS TLSFiles
	// AllowPlaintext lets an address that is not loopback go without TLS.
	AllowPlaintext bool
	// Flags are the names used in error texts.
	Flags Flags
	// Log gets one line per request and what goes wrong; required.
	Log *slog.Logger
	// ReadHeaderTimeout bounds the TLS handshake and a request's header: 5 s.
	ReadHeaderTimeout time.Duration
	// ReadTimeout bounds a whole request including its body: 30 s.
	ReadTimeout time.Duration
	// WriteTimeout bounds the answer, counted from the end of the request's
	// header: 30 s. [LongPoll] moves it for one request.
	WriteTimeout time.Duration
	// IdleTimeout closes a kept connection without a request: 90 s.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds a request's header: 16 KiB. More is answered 431.
	MaxHeaderBytes int
	// MaxBodyBytes bounds a request's body: 1 MiB. More is answered 413.
	MaxBodyBytes int64
	// MaxConns bounds open connections: 1024. Further ones wait in the
	// kernel's backlog.
	MaxConns int
	// MaxConnsPerClient bounds the open connections of one remote address (for
	// IPv6, of one /64), so that no client can hold all of MaxConns: a quarter
	// of MaxConns. Further ones are closed. Loopback is not bounded by it: a
	// reverse proxy on this machine speaks for many clients from there, and
	// has to bound them itself. Where many clients share an address behind a
	// proxy elsewhere, as much as MaxConns lifts the bound.
	MaxConnsPerClient int
	// Grace is how long running requests may go on once Serve's context
	// ends: 10 s. Then they are cut off.
	Grace time.Duration
}

// Flags are the command line's names for what an error text tells the reader
// to change; an empty name gets a plain description.
type Flags struct {
	// Address sets the host or port, e.g. "--port".
	Address string
	// AllowPlaintext sets [Options.AllowPlaintext].
	AllowPlaintext string
	// TLSCert and TLSKey name the files.
	TLSCert, TLSKey string
}

// TLSFiles are paths of PEM files.
type TLSFiles struct {
	// Cert holds the certificate chain, the server's own first.
	Cert string
	// Key holds its private key.
	Key string
}

// Server listens from [New] on and answers while [Server.Serve] runs.
type Server struct {
	srv      *http.Server
	listener net.Listener
	network  string
	tls      bool
	grace    time.Duration
	log      *slog.Logger
	stopping chan struct{}
	cut      context.CancelFunc
}

// New checks the options, reads the TLS files and binds the address, so that
// [Server.Addr] is known and a used port is an error here. The caller must
// call Serve or Close.
//
// Errors: Invalid for bad options, an address without TLS that is not
// loopback, or an address this machine does not have; Conflict for a used one;
// Denied for a port that needs privileges; Permanent for unreadable TLS files.
func New(opts Options) (*Server, error) {
	opts, err := withDefaults(opts)
	if err != nil {
		return nil, err
	}
	s := &Server{
		grace:    opts.Grace,
		log:      opts.Log,
		tls:      opts.TLS != TLSFiles{},
		network:  network(opts.Address),
		stopping: make(chan struct{}),
	}
	s.srv = &http.Server{
		Handler:           wrap(opts),
		ReadHeaderTimeout: opts.ReadHeaderTimeout,
		ReadTimeout:       opts.ReadTimeout,
		WriteTimeout:      opts.WriteTimeout,
		IdleTimeout:       opts.IdleTimeout,
		MaxHeaderBytes:    opts.MaxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100},
		ErrorLog:          slog.NewLogLogger(serverLog{opts.Log.Handler()}, slog.LevelWarn),
	}
	if s.tls {
		if s.srv.TLSConfig, err = tlsConfig(opts); err != nil {
			return nil, err
		}
	}
	l, err := listen(opts)
	if err != nil {
		return nil, err
	}
	s.listener = limitConns(l, opts.MaxConns, opts.MaxConnsPerClient, opts.Log)
	base, cut := context.WithCancel(context.WithValue(context.Background(), stoppingKey{}, s.stopping))
	s.cut = cut
	s.srv.BaseContext = func(net.Listener) context.Context { return base }
	return s, nil
}

// Addr is the bound address, with the real port where Options asked for 0.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// URL is the address as http://host:port or https://host:port, for clients on
// this machine: for a server on every address it names loopback.
func (s *Server) URL() string {
	scheme := "http"
	if s.tls {
		scheme = "https"
	}
	address := s.Addr().String()
	if tcp, ok := s.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		// A socket of both families is best reached by IPv4: there are
		// machines whose loopback has no IPv6 address.
		host := "127.0.0.1"
		if s.network == "tcp6" {
			host = "::1"
		}
		address = net.JoinHostPort(host, strconv.Itoa(tcp.Port))
	}
	return scheme + "://" + address
}

// Serve answers requests until ctx ends, and may be called once. Then it
// stops accepting, closes the channel of [Stopping], lets running requests end
// within the grace period, cuts off the rest (logged) and returns nil. It
// returns an error only when serving itself fails.
func (s *Server) Serve(ctx context.Context) error {
	defer s.cut()
	done := make(chan error, 1)
	go func() {
		if s.tls {
			done <- s.srv.ServeTLS(s.listener, "", "")
		} else {
			done <- s.srv.Serve(s.listener)
		}
	}()
	select {
	case err := <-done:
		return fault.Errorf(fault.Unavailable, "serve %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	close(s.stopping)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	if err := s.srv.Shutdown(grace); err != nil {
		s.log.Warn("requests still open after the grace period are cut off", "grace", s.grace)
		if err := s.srv.Close(); err != nil {
			s.log.Debug("closing connections", "error", err)
		}
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		s.log.Warn("serving ended with an error", "error", err)
	}
	return nil
}

// Close gives the address back when Serve is never called. After Serve it
// does nothing.
func (s *Server) Close() error {
	s.cut()
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fault.Errorf(fault.Transient, "close %s: %w", s.Addr(), err)
	}
	return nil
}

// serverLog takes net/http's own lines. Anybody who scans ports causes failed
// handshakes, so those are no warning.
type serverLog struct{ slog.Handler }

func (h serverLog) Handle(ctx context.Context, line slog.Record) error {
	if strings.Contains(line.Message, "TLS handshake error") {
		line.Level = slog.LevelDebug
		if !h.Enabled(ctx, line.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, line)
}

type stoppingKey struct{}

// Stopping returns a channel that is closed when the server of this request
// begins to stop. Handlers that wait (long polls, event streams) end on it, so
// that a stop need not sit out the grace period. Outside of a [Server] it is
// nil, which never fires.
func Stopping(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(stoppingKey{}).(chan struct{})
	return c
}

// LongPoll lets one request take until d from now, and some time to write its
// answer, in place of WriteTimeout. The time to read the request stays as it
// is.
func LongPoll(w http.ResponseWriter, d time.Duration) error {
	const toWrite = 10 * time.Second
	return http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + toWrite))
}

func withDefaults(o Options) (Options, error) {
	invalid := func(format string, args ...any) (Options, error) {
		return o, fault.Errorf(fault.Invalid, "httpd: "+format, args...)
	}
	switch {
	case o.Handler == nil:
		return invalid("Options.Handler is missing")
	case o.Log == nil:
		return invalid("Options.Log is missing")
	case o.MaxHeaderBytes < 0 || o.MaxBodyBytes < 0 || o.MaxConns < 0 || o.MaxConnsPerClient < 0:
		return invalid("a limit is negative")
	case (o.TLS.Cert == "") != (o.TLS.Key == ""):
		return invalid("a certificate needs its key and the reverse: give both %s and %s",
			o.Flags.tlsCert(), o.Flags.tlsKey())
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.ReadHeaderTimeout, 5 * time.Second},
		{&o.ReadTimeout, 30 * time.Second},
		{&o.WriteTimeout, 30 * time.Second},
		{&o.IdleTimeout, 90 * time.Second},
		{&o.Grace, 10 * time.Second},
	} {
		if *d.field < 0 {
			return invalid("a time is negative")
		}
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.MaxHeaderBytes == 0 {
		o.MaxHeaderBytes = 16 << 10
	}
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = 1 << 20
	}
	if o.MaxConns == 0 {
		o.MaxConns = 1024
	}
	if o.MaxConnsPerClient == 0 {
		o.MaxConnsPerClient = max(1, o.MaxConns/4)
	}
	return o, nil
}

// listenAddress is what an error text calls an address without a flag.
const listenAddress = "the listen address"

func (f Flags) address() string { return named(f.Address, listenAddress) }
func (f Flags) allowPlaintext() string {
	return named(f.AllowPlaintext, "the option that allows plain HTTP")
}
func (f Flags) tlsCert() string { return named(f.TLSCert, "the certificate file") }
func (f Flags) tlsKey() string  { return named(f.TLSKey, "the key file") }

func named(flag, description string) string {
	if flag == "" {
		return description
	}
	return flag
}

// notLoopback is the refusal of an open address without TLS.
func notLoopback(o Options) error {
	return fault.New(fault.Invalid, fmt.Sprintf(
		"listen %s: tokens would cross the network in the clear: use a loopback address (%s), give %s and %s, or allow it with %s",
		o.Address, o.Flags.address(), o.Flags.tlsCert(), o.Flags.tlsKey(), o.Flags.allowPlaintext()))
}
