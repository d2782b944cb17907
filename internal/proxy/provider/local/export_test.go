package local

import (
	"context"
	"io"
	"log/slog"
	"net"
	"time"

	"fleetdesk/internal/proxy/provider"
)

// FileFault is fileFault.
var FileFault = fileFault

// Acquire is acquire.
func Acquire(ctx context.Context, path string) (release func(), err error) {
	return acquire(ctx, path, "test")
}

// MaxLog is the bound of a child's log, in bytes.
const MaxLog = maxLog

// BoundedLog is the writer that a child logs to.
func BoundedLog(w io.Writer) io.Writer { return &bounded{w: w, left: maxLog} }

// ForwardLimits change the limits of a forward proxy where they are not zero.
type ForwardLimits struct {
	MaxClients, MaxHeader int
	Idle, Answer          time.Duration
}

// ServeForward serves a forward proxy in this process until ctx ends.
func ServeForward(ctx context.Context, ln net.Listener, c provider.Credentials, l ForwardLimits) error {
	cfg := defaultForward()
	cfg.self = ln.Addr().(*net.TCPAddr).AddrPort()
	cfg.log = slog.New(slog.DiscardHandler)
	if !c.IsZero() {
		v := newVerifier(c)
		cfg.auth = &v
	}
	if l.MaxClients > 0 {
		cfg.maxClients = l.MaxClients
	}
	if l.MaxHeader > 0 {
		cfg.maxHeader = l.MaxHeader
	}
	if l.Idle > 0 {
		cfg.idle = l.Idle
	}
	if l.Answer > 0 {
		cfg.answer = l.Answer
	}
	return newForward(cfg).serve(ctx, ln)
}
