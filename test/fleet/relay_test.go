package fleet_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// relay is a way to a Kubernetes API that can become slow, and be cut.
type relay struct {
	to   string
	l    net.Listener
	done sync.WaitGroup

	mu    sync.Mutex
	delay time.Duration
	cut   bool
	conns map[net.Conn]bool
}

// through returns a configuration that leads to cfg's API by a new relay.
func through(t testing.TB, cfg *rest.Config) (*relay, *rest.Config) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{to: cfg.Host, l: l, conns: map[net.Conn]bool{}}
	r.done.Go(r.accept)
	t.Cleanup(func() {
		_ = l.Close()
		r.Cut(true)
		r.done.Wait()
	})
	cfg = rest.CopyConfig(cfg)
	cfg.Host = "https://" + l.Addr().String()
	return r, cfg
}

// Cut ends all connections and takes no new ones, until it is taken back.
func (r *relay) Cut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	if cut {
		for c := range r.conns {
			_ = c.Close()
		}
	}
}

// Slow delays each piece of each answer and request.
func (r *relay) Slow(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = d
}

func (r *relay) accept() {
	for {
		c, err := r.l.Accept()
		if err != nil {
			return
		}
		r.done.Go(func() { r.serve(c) })
	}
}

// keep notes a connection, so that Cut ends it; it refuses while all is cut.
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cut {
		r.conns[c] = true
	}
	return !r.cut
}

func (r *relay) drop(c net.Conn) {
	_ = c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

func (r *relay) serve(c net.Conn) {
	defer r.drop(c)
	if !r.keep(c) {
		return
	}
	far, err := net.DialTimeout("tcp", trimScheme(r.to), 5*time.Second)
	if err != nil {
		return
	}
	defer r.drop(far)
	if !r.keep(far) {
		return
	}
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{c: far, far: c} {
		both.Go(func() {
			r.copy(to, from)
			_ = to.Close()
		})
	}
	both.Wait()
}

func (r *relay) copy(to io.Writer, from io.Reader) {
	piece := make([]byte, 16<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			r.mu.Lock()
			d := r.delay
			r.mu.Unlock()
			time.Sleep(d)
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
