package kubernetes_test

import (
	"io"
	"net"
	"sync"

	"fleetdesk/internal/proxy/provider/providertest"
)

// faultLine is the way from a provider to the API server: it can be cut, and it
// can go mute.
type faultLine struct {
	to string
	ln net.Listener

	mu    sync.Mutex
	calm  *sync.Cond
	cut   bool
	mute  bool
	over  bool
	conns map[net.Conn]bool
	group sync.WaitGroup
}

func newFaultLine(t providertest.T, to string) *faultLine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("%v", err)
	}
	l := &faultLine{to: to, ln: ln, conns: map[net.Conn]bool{}}
	l.calm = sync.NewCond(&l.mu)
	l.group.Go(l.accept)
	t.Cleanup(func() {
		l.mu.Lock()
		l.over, l.mute = true, false
		l.drop()
		l.mu.Unlock()
		_ = ln.Close()
		l.group.Wait()
	})
	return l
}

func (l *faultLine) address() string { return l.ln.Addr().String() }

// setCut ends all connections, and each new one, until it is undone.
func (l *faultLine) setCut(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut = on; on {
		l.drop()
	}
}

// setMute holds back all that is sent, in both directions.
func (l *faultLine) setMute(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mute = on
	l.calm.Broadcast()
}

// drop ends all connections; l.mu is held.
func (l *faultLine) drop() {
	for c := range l.conns {
		_ = c.Close()
	}
	clear(l.conns)
	l.calm.Broadcast()
}

func (l *faultLine) accept() {
	for {
		in, err := l.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", l.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		l.mu.Lock()
		if l.cut || l.over {
			_, _ = in.Close(), out.Close()
		} else {
			l.conns[in], l.conns[out] = true, true
			l.group.Go(func() { l.carry(in, out) })
			l.group.Go(func() { l.carry(out, in) })
		}
		l.mu.Unlock()
	}
}

func (l *faultLine) carry(from, to net.Conn) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, _ = from.Close(), to.Close()
		delete(l.conns, from)
		delete(l.conns, to)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		for l.mute {
			l.calm.Wait()
		}
		l.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				return
			}
			return
		}
	}
}
