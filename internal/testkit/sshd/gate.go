package sshd

import (
	"net"
	"sync"
)

// gate is a connection that can be frozen: it then neither reads nor writes
// until it is thawed or closed.
type gate struct {
	net.Conn
	mu     sync.Mutex
	open   *sync.Cond
	frozen bool
	closed bool
}

func newGate(c net.Conn) *gate {
	g := &gate{Conn: c}
	g.open = sync.NewCond(&g.mu)
	return g
}

func (g *gate) freeze(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen = on
	g.open.Broadcast()
}

func (g *gate) wait() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.frozen && !g.closed {
		g.open.Wait()
	}
	if g.closed {
		return net.ErrClosed
	}
	return nil
}

// Read reads; what came while it was frozen is held back.
func (g *gate) Read(p []byte) (int, error) {
	if err := g.wait(); err != nil {
		return 0, err
	}
	n, err := g.Conn.Read(p)
	if werr := g.wait(); werr != nil {
		return 0, werr
	}
	return n, err
}

// Write writes, once it is not frozen.
func (g *gate) Write(p []byte) (int, error) {
	if err := g.wait(); err != nil {
		return 0, err
	}
	return g.Conn.Write(p)
}

// Close closes it, and ends what waits.
func (g *gate) Close() error {
	g.mu.Lock()
	g.closed = true
	g.open.Broadcast()
	g.mu.Unlock()
	return g.Conn.Close()
}
