// Package rpc speaks libvirt's RPC with one daemon over a stream that somebody
// else opened, by way of go-libvirt.
//
// The daemon is not trusted. go-libvirt takes what arrives at its word: a
// short length panics in a goroutine of its own, a long one allocates it, a
// second reply to one call stops the connection for good. So a guard stands
// between the library and the stream (guard.go): it knows what was asked, and
// passes on whole frames that answer it and whose every length and count fits.
// All else is dropped or ends the connection.
//
// The library knows no contexts either. Each call runs in a goroutine of its
// own; a caller whose context ends leaves, the answer that comes late is
// dropped, and the connection stays. Close ends them all; what may outlive it
// is one Read of an upload's source that does not return.
package rpc

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	libvirt "github.com/digitalocean/go-libvirt"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
)

const (
	defaultMuteAfter        = 30 * time.Second
	defaultHandshakeTimeout = 15 * time.Second
	// maxCalls is how many calls one connection has in flight. libvirtd reads
	// no more from a client that has five unanswered (max_client_requests).
	maxCalls = 4
	// maxUploads is how many uploads one connection carries at once.
	maxUploads = 2
	// closeGrace is how long Close waits for what it has just ended.
	closeGrace = 2 * time.Second
)

// Options of a connection.
type Options struct {
	// Host is the host's name, for errors and log lines.
	Host string
	// Log gets a line when the connection opened and when it ended; nil means
	// none.
	Log *slog.Logger
	// MuteAfter ends a connection on which calls wait for answers while
	// nothing arrives and no bytes of an upload are taken; 30 s when zero.
	MuteAfter time.Duration
	// HandshakeTimeout bounds Open besides its context; 15 s when zero.
	HandshakeTimeout time.Duration
}

// Conn is one connection to one libvirt daemon.
type Conn struct {
	host  string
	log   *slog.Logger
	lib   *libvirt.Libvirt
	guard *guard
	pulse *pulse
	// calls and uploads are slots: a send takes one.
	calls, uploads chan struct{}

	// mu orders spawn before Close's wait.
	mu     sync.Mutex
	closed bool
	events *subscription // nil while the daemon was not asked for any
	group  sync.WaitGroup
}

var _ link.Link = (*Conn)(nil)

// Open speaks libvirt's RPC over conn, a stream to the daemon's socket, up to
// virConnectOpen of qemu:///system. It owns conn: every failure closes it.
//
// A daemon that does not answer in time is Timeout; one that wants a
// credential or refuses the user Denied; one that closes the stream or does
// not speak the protocol Unavailable; what it answers otherwise has the class
// of that answer. When ctx ends, its error is inside.
func Open(ctx context.Context, conn net.Conn, o Options) (*Conn, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MuteAfter <= 0 {
		o.MuteAfter = defaultMuteAfter
	}
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = defaultHandshakeTimeout
	}
	p := newPulse(o.MuteAfter)
	g := newGuard(conn, o.Host, p)
	c := &Conn{
		host: o.Host, log: o.Log, guard: g, pulse: p,
		lib:     libvirt.NewWithDialer(dialed{g}),
		calls:   make(chan struct{}, maxCalls),
		uploads: make(chan struct{}, maxUploads),
	}
	if err := c.handshake(ctx, o.HandshakeTimeout); err != nil {
		g.fail(err)
		return nil, err
	}
	c.spawn(func() {
		p.watch(g.done, func() {
			g.fail(fault.Errorf(fault.Unavailable, "libvirtd on %s is mute: calls wait and nothing arrived for %v; "+
				"the connection is closed. See on the host whether the daemon hangs, and restart it if so", c.host, o.MuteAfter))
		})
	})
	c.log.Debug("libvirt connected", slog.String("host", c.host))
	c.spawn(func() {
		<-g.done
		c.log.Debug("libvirt connection ended", slog.String("host", c.host), slog.Any("error", g.reason()))
	})
	return c, nil
}

// handshake runs the library's opening calls. They end when the guard fails,
// so nothing of it outlives a failure for long.
func (c *Conn) handshake(ctx context.Context, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	answered := make(chan error, 1)
	go func() {
		err := c.lib.ConnectToURI(libvirt.QEMUSystem)
		close(c.guard.opened)
		answered <- err
	}()
	select {
	case err := <-answered:
		if err == nil {
			return nil
		}
		return c.refused(err)
	case <-ctx.Done():
		return c.left(ctx, "virConnectOpen")
	case <-timer.C:
		return fault.Errorf(fault.Timeout, "libvirtd on %s did not answer virConnectOpen within %v: "+
			"see on the host whether the daemon runs and whether the socket is its own", c.host, timeout)
	}
}

// dialed gives the library the stream that is open already.
type dialed struct{ c net.Conn }

// Dial implements go-libvirt's socket.Dialer.
func (d dialed) Dial() (net.Conn, error) { return d.c, nil }

// spawn runs f in a goroutine that Close waits for; after Close, not at all.
func (c *Conn) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.group.Go(f)
	return true
}

// Done implements [link.Link].
func (c *Conn) Done() <-chan struct{} { return c.guard.done }

// Err implements [link.Link].
func (c *Conn) Err() error {
	select {
	case <-c.guard.done:
		return c.guard.reason()
	default:
		return nil
	}
}

// Close implements [link.Link]: it closes the stream, asks the daemon nothing,
// and returns when all calls have ended, or after a short grace when a Write
// to the stream does not end with its Close.
func (c *Conn) Close() error {
	_ = c.guard.Close()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		c.group.Wait()
		<-c.lib.Disconnected()
		close(ended)
	}()
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
	return nil
}
