package local

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// conns are all open connections of one proxy process: clients' and targets'.
// It ends those on which nothing moved for too long, in either direction, and
// at the end all of them.
type conns struct {
	idle       time.Duration
	maxClients int

	mu      sync.Mutex
	open    map[*conn]struct{}
	clients int
	closed  bool
}

// conn is one connection that notes when a byte last moved. It must not offer
// io.ReaderFrom: the kernel would move bytes unseen.
type conn struct {
	tcp    *net.TCPConn
	set    *conns
	client bool
	last   atomic.Int64 // UnixNano
	once   sync.Once
}

// add takes a connection in; nil means that there is no room, or that all ends.
func (s *conns) add(tcp *net.TCPConn, client bool) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || client && s.clients >= s.maxClients {
		return nil
	}
	c := &conn{tcp: tcp, set: s, client: client}
	c.touch()
	s.open[c] = struct{}{}
	if client {
		s.clients++
	}
	return c
}

func (s *conns) drop(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	if c.client {
		s.clients--
	}
}

// tend ends idle connections until ctx ends.
func (s *conns) tend(ctx context.Context) {
	tick := time.NewTicker(s.idle / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, c := range s.matching(func(c *conn) bool {
				return now.Sub(time.Unix(0, c.last.Load())) > s.idle
			}) {
				_ = c.Close()
			}
		}
	}
}

func (s *conns) matching(want func(*conn) bool) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*conn
	for c := range s.open {
		if want(c) {
			found = append(found, c)
		}
	}
	return found
}

// closeAll ends every connection, and those that come later.
func (s *conns) closeAll() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, c := range s.matching(func(*conn) bool { return true }) {
		_ = c.Close()
	}
}

func (c *conn) touch() { c.last.Store(time.Now().UnixNano()) }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.tcp.Read(p)
	if n > 0 {
		c.touch()
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.tcp.Write(p)
	if n > 0 {
		c.touch()
	}
	return n, err
}

func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		err = c.tcp.Close()
		c.set.drop(c)
	})
	return err
}

// closeHard chooses whether the other side sees an error when the connection
// ends, however it ends: also when this process is killed.
func (c *conn) closeHard(hard bool) {
	seconds := -1 // the system's way: what was written is still sent
	if hard {
		seconds = 0
	}
	_ = c.tcp.SetLinger(seconds)
}

// CloseRead and CloseWrite let a tunnel pass one side's end on and keep the
// other direction open.
func (c *conn) CloseRead() error  { return c.tcp.CloseRead() }
func (c *conn) CloseWrite() error { return c.tcp.CloseWrite() }

func (c *conn) LocalAddr() net.Addr                { return c.tcp.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr               { return c.tcp.RemoteAddr() }
func (c *conn) SetDeadline(t time.Time) error      { return c.tcp.SetDeadline(t) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.tcp.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }

// listener accepts clients while there is room for them.
type listener struct {
	net.Listener
	set *conns
}

// tooMany is told to a client for whom there is no room, so that it hears a
// reason instead of waiting in the backlog.
const tooMany = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Connection: close\r\nRetry-After: 1\r\nContent-Length: 42\r\n\r\nthis proxy has as many clients as it may.\n"

func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.set.add(nc.(*net.TCPConn), true); c != nil {
			return c, nil
		}
		_ = nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = io.WriteString(nc, tooMany)
		_ = nc.Close()
	}
}
