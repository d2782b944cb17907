package httpd

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// warnEvery bounds the lines about clients with too many connections.
const warnEvery = time.Minute

// limitListener lets at most cap(slots) accepted connections be open, and of
// each client address at most perClient. Without the second bound one client
// without a token could hold every slot by connections that ask for nothing.
//
// Connections over the first bound wait in the kernel's backlog; those over
// the second are closed, since a listener cannot leave one client's in the
// backlog and take the others'.
type limitListener struct {
	net.Listener
	slots     chan struct{}
	done      chan struct{}
	close     func() error
	perClient int
	log       *slog.Logger

	mu     sync.Mutex
	open   map[netip.Prefix]int // at most cap(slots) entries, each above zero
	closed int                  // since the last line about it
	warned time.Time
}

func limitConns(l net.Listener, all, perClient int, log *slog.Logger) *limitListener {
	ll := &limitListener{
		Listener: l, perClient: perClient, log: log,
		slots: make(chan struct{}, all), done: make(chan struct{}), open: map[netip.Prefix]int{},
	}
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
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.slots
			return nil, err
		}
		who, bounded := client(c.RemoteAddr())
		if bounded && !l.enter(who) {
			_ = c.Close() // nothing was said on it
			continue
		}
		return &limitedConn{Conn: c, free: sync.OnceFunc(func() {
			if bounded {
				l.leave(who)
			}
			<-l.slots
		})}, nil
	}
}

func (l *limitListener) Close() error { return l.close() }

// client is the address that connections are counted by: an IPv4 address, or
// the /64 that a single IPv6 host usually has to itself. Loopback is not
// bounded: everything behind a reverse proxy on this machine comes from there,
// and a local program can take as many addresses of 127.0.0.0/8 as it likes.
func client(remote net.Addr) (who netip.Prefix, bounded bool) {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}, false
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if !ip.IsValid() || ip.IsLoopback() {
		return netip.Prefix{}, false
	}
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	who, err := ip.Prefix(bits)
	return who, err == nil
}

func (l *limitListener) enter(who netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[who] < l.perClient {
		l.open[who]++
		return true
	}
	l.closed++
	if now := time.Now(); now.Sub(l.warned) >= warnEvery {
		l.log.Warn("a client has too many connections; further ones are closed",
			"client", who, "limit", l.perClient, "closed", l.closed)
		l.warned, l.closed = now, 0
	}
	return false
}

func (l *limitListener) leave(who netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[who]--; l.open[who] <= 0 {
		delete(l.open, who)
	}
}

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
