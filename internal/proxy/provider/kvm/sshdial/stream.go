package sshdial

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"fleetdesk/internal/core/fault"
)

// countingConn counts what came from the host: any byte is a sign of life.
type countingConn struct {
	net.Conn
	received atomic.Int64
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

// stream is the connection to the daemon's socket. It owns the SSH connection,
// which serves nothing else. It has no deadlines.
type stream struct {
	host   Host
	tcp    *countingConn
	client *ssh.Client
	net.Conn

	once  sync.Once
	ended chan struct{}
	// gone is closed when the SSH connection has ended, with its error in lost.
	gone chan struct{}
	lost error
	mu   sync.Mutex
	err  error
	wg   sync.WaitGroup
}

func newStream(h Host, tcp *countingConn, client *ssh.Client, interval time.Duration, misses int) *stream {
	s := &stream{host: h, tcp: tcp, client: client, ended: make(chan struct{}), gone: make(chan struct{})}
	s.wg.Go(func() {
		s.lost = client.Wait()
		close(s.gone)
	})
	s.wg.Go(func() { s.keepalive(interval, misses) })
	return s
}

// open asks for the socket.
func (s *stream) open(socket string) error {
	conn, err := s.client.Dial("unix", socket)
	if err != nil {
		return err
	}
	s.Conn = conn
	return nil
}

// keepalive asks the host for a sign of life and ends the connection when
// nothing came for that many intervals after it was asked. It does not need
// the request to leave: a socket full of an upload would hold it back.
func (s *stream) keepalive(interval time.Duration, misses int) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var asking atomic.Bool
	life := pulse{seen: s.tcp.received.Load()}
	for {
		select {
		case <-s.ended:
			return
		case <-s.gone:
			return
		case <-tick.C:
		}
		if life.tick(s.tcp.received.Load()) >= misses {
			s.end(fault.Errorf(fault.Unavailable, "the host %s sent nothing for %v, not even answers to SSH keepalives: it or the network between is down", s.host.addr(), time.Duration(misses)*interval))
			return
		}
		if asking.CompareAndSwap(false, true) {
			s.wg.Go(func() {
				defer asking.Store(false)
				_, _, _ = s.client.SendRequest("keepalive@openssh.com", true, nil)
			})
		}
	}
}

// pulse counts the intervals without a sign of life.
type pulse struct {
	seen   int64
	missed int
	// asked is set once the host was asked for one: before that, an idle host
	// owes nothing.
	asked bool
}

// tick is the end of an interval; received is how much has come in all. It
// returns how many intervals in a row nothing came.
func (p *pulse) tick(received int64) (missed int) {
	switch {
	case received != p.seen:
		p.seen, p.missed = received, 0
	case p.asked:
		p.missed++
	}
	p.asked = true
	return p.missed
}

// end closes everything at once and does not wait. cause is why; nil when it
// was asked for.
func (s *stream) end(cause error) {
	s.once.Do(func() {
		s.mu.Lock()
		s.err = cause
		s.mu.Unlock()
		close(s.ended)
		// The TCP connection at once; the library's own Close waits for its goroutines.
		s.tcp.Close()
		s.wg.Go(func() { _ = s.client.Close() })
	})
}

// why is the cause that end was given.
func (s *stream) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// settle is how long an EOF waits for the SSH connection's own end, which
// comes right after it when that is the reason.
const settle = 50 * time.Millisecond

// explain turns the library's error into the reason.
func (s *stream) explain(err error) error {
	if err == nil {
		return nil
	}
	if cause := s.why(); cause != nil {
		return cause
	}
	select {
	case <-s.ended:
		return net.ErrClosed
	default:
	}
	t := time.NewTimer(settle)
	defer t.Stop()
	select {
	case <-s.ended:
		if cause := s.why(); cause != nil {
			return cause
		}
		return net.ErrClosed
	case <-s.gone:
		lost := s.lost
		if lost == nil || errors.Is(lost, io.EOF) {
			return says(fault.Unavailable, err, "the host %s closed the SSH connection", s.host.addr())
		}
		return says(fault.Unavailable, lost, "the SSH connection to %s was lost: %s", s.host.addr(), reason(lost))
	case <-t.C:
		return err
	}
}

// Read reads from the daemon. io.EOF means that the daemon closed its socket.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	return n, s.explain(err)
}

// Write writes to the daemon. Calls must not overlap.
func (s *stream) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	return n, s.explain(err)
}

// Close ends the SSH connection, frees readers and writers, and waits for the
// goroutines of the stream.
func (s *stream) Close() error {
	s.end(nil)
	s.wg.Wait()
	return nil
}
