package httpd

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// crowd is a listener whose connections come from addresses of a test's
// choice; tests have loopback only, which is not bounded.
type crowd struct{ next chan *visitor }

func (c *crowd) Accept() (net.Conn, error) {
	if v, ok := <-c.next; ok {
		return v, nil
	}
	return nil, net.ErrClosed
}
func (c *crowd) Close() error   { return nil }
func (c *crowd) Addr() net.Addr { return &net.TCPAddr{} }

type visitor struct {
	net.Conn
	from   net.Addr
	closed chan struct{}
}

func (v *visitor) RemoteAddr() net.Addr { return v.from }
func (v *visitor) Close() error         { close(v.closed); return nil }

func visit(ip string) *visitor {
	return &visitor{from: &net.TCPAddr{IP: net.ParseIP(ip), Port: 4711}, closed: make(chan struct{})}
}

func TestOneClientCannotHoldAllConnections(t *testing.T) {
	const perClient = 2
	for name, c := range map[string]struct {
		reason string
		from   []string
		// served tells for each connection whether it is accepted or closed.
		served []bool
	}{
		"one address":  {"what is over its share is closed", []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1"}, []bool{true, true, false, false}},
		"others":       {"the others' share is theirs", []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"}, []bool{true, true, false, true}},
		"mapped":       {"one address in two clothes", []string{"192.0.2.1", "::ffff:192.0.2.1", "::ffff:192.0.2.1"}, []bool{true, true, false}},
		"one /64":      {"one IPv6 host has 2^64 addresses", []string{"2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::3"}, []bool{true, true, false}},
		"another /64":  {"the neighbour is somebody else", []string{"2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"}, []bool{true, true, true}},
		"loopback":     {"a local reverse proxy speaks for many", []string{"127.0.0.1", "127.0.0.1", "127.0.0.1"}, []bool{true, true, true}},
		"loopback, v6": {"the same", []string{"::1", "::1", "::1"}, []bool{true, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			in := &crowd{make(chan *visitor, len(c.from))}
			visitors := make([]*visitor, len(c.from))
			for i, ip := range c.from {
				visitors[i] = visit(ip)
				in.next <- visitors[i]
			}
			close(in.next)
			l := limitConns(in, 10, perClient, slog.New(slog.NewTextHandler(&log, nil)))
			var open []net.Conn
			for {
				conn, err := l.Accept()
				if err != nil {
					break
				}
				open = append(open, conn)
			}
			got, refused := make([]bool, len(visitors)), 0
			for i, v := range visitors {
				select {
				case <-v.closed:
					refused++
				default:
					got[i] = true
				}
			}
			if d := cmp.Diff(c.served, got); d != "" {
				t.Errorf("%s: %s", c.reason, d)
			}
			if lines := strings.Count(log.String(), "level=WARN"); lines != min(refused, 1) {
				t.Errorf("%d closed, and %d lines say so: %s", refused, lines, log.String())
			}
			if len(l.slots) != len(open) {
				t.Errorf("%d slots are taken by %d connections", len(l.slots), len(open))
			}
			for _, conn := range open {
				_ = conn.Close()
			}
			if len(l.open) != 0 || len(l.slots) != 0 {
				t.Errorf("after all left: %v counted, %d slots taken", l.open, len(l.slots))
			}
		})
	}
}

func TestASlotOfAClientIsFreeAgain(t *testing.T) {
	in := &crowd{make(chan *visitor, 3)}
	l := limitConns(in, 10, 1, slog.New(slog.DiscardHandler))
	for range cap(in.next) {
		in.next <- visit("192.0.2.1")
	}
	close(in.next)
	for range cap(in.next) {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}

func TestShareOfOneClient(t *testing.T) {
	for name, c := range map[string]struct {
		reason              string
		all, perClient, one int
	}{
		"default": {"four clients at least", 0, 0, 256},
		"small":   {"a quarter of little is not nothing", 2, 0, 1},
		"set":     {"the caller's word", 100, 100, 100},
	} {
		s, err := New(Options{
			Handler: http.NotFoundHandler(), Address: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			MaxConns: c.all, MaxConnsPerClient: c.perClient,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.listener.(*limitListener).perClient; got != c.one {
			t.Errorf("%s: %d, want %d: %s", name, got, c.one, c.reason)
		}
		_ = s.Close()
	}
}
