package httpd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"fleetdesk/internal/core/fault"
)

// listen binds the address and holds the rule that only TLS, or an explicit
// wish, may leave loopback.
func listen(o Options) (net.Listener, error) {
	host, _, err := net.SplitHostPort(o.Address)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "listen %q: %w: set %s as host:port", o.Address, err, o.Flags.address())
	}
	guarded := o.TLS == TLSFiles{} && !o.AllowPlaintext
	// Literals are refused before anything is bound; a name only shows its
	// address once it is.
	if ip, err := netip.ParseAddr(host); guarded && (host == "" || err == nil && !ip.Unmap().IsLoopback()) {
		return nil, notLoopback(o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, listenError(o, err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); guarded && (!ok || !tcp.IP.IsLoopback()) {
		return nil, errors.Join(notLoopback(o), l.Close())
	}
	return l, nil
}

func listenError(o Options, err error) error {
	flag := o.Flags.address()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fault.Errorf(fault.Conflict,
			"listen %s: another program uses this address: stop it, or choose another with %s: %w", o.Address, flag, err)
	case errors.Is(err, syscall.EACCES):
		return fault.Errorf(fault.Denied,
			"listen %s: this user may not use the port: choose one above 1023 with %s: %w", o.Address, flag, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fault.Errorf(fault.Invalid,
			"listen %s: this machine has no such address: choose another with %s: %w", o.Address, flag, err)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fault.Errorf(fault.Transient, "listen %s: too many open files: %w", o.Address, err)
	}
	return fault.Errorf(fault.Invalid, "listen %s: %w: check %s", o.Address, err, flag)
}

// limitListener lets at most cap(slots) accepted connections be open.
type limitListener struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	close func() error
}

func limitConns(l net.Listener, n int) net.Listener {
	ll := &limitListener{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
	ll.close = sync.OnceValue(func() error {
		close(ll.done)
		return l.Close()
	})
	return ll
}

func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *limitListener) Close() error { return l.close() }

type limitedConn struct {
	net.Conn
	free func()
}

func (c *limitedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// CloseWrite lets net/http say that it is done before it hangs up, so that a
// client that is still sending (a header or body too large) reads its answer
// instead of a reset.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
