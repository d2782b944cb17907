package fleet_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// daemon is a libvirt daemon in memory behind libvirt's wire, on a port of this
// machine, with faults of that wire.
type daemon struct {
	host    *virttest.Host
	serving sync.WaitGroup

	mu    sync.Mutex
	l     net.Listener
	lines map[*line]bool
	// hungUp says that l is closed.
	hungUp bool
	// mended is closed when the wire speaks again; nil while it does.
	mended chan struct{}
	// delay comes before each reply.
	delay time.Duration
}

func newDaemon(t testing.TB, name string) *daemon {
	t.Helper()
	d := &daemon{host: virttest.NewHost(name), lines: map[*line]bool{}}
	if err := d.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.speak()
		d.hangUp()
		d.serving.Wait()
	})
	return d
}

// listen takes connections, on a new port each time: the old one may be
// somebody else's by now.
func (d *daemon) listen() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.l, d.hungUp = l, false
	d.mu.Unlock()
	d.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.serving.Go(func() { d.serve(l, c) })
		}
	})
	return nil
}

func (d *daemon) serve(l net.Listener, c net.Conn) {
	n := &line{Conn: c, d: d}
	d.mu.Lock()
	d.lines[n] = true
	gone := d.l != l || d.hungUp // meanwhile
	d.mu.Unlock()
	if !gone {
		virttest.ServeWire(n, d.host)
	}
	_ = c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.lines, n)
}

// hangUp ends all connections and takes no new ones.
func (d *daemon) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.l.Close()
	d.hungUp = true
	for n := range d.lines {
		_ = n.Close()
	}
}

func (d *daemon) speak() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mended != nil {
		close(d.mended)
	}
	d.mended = nil
}

// address is where it listens; once it hung up, where it listened: the kernel
// refuses who connects to a port that nobody is on.
func (d *daemon) address() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.l.Addr().String()
}

// dead is a host that is down: connections end, dials are refused.
func (d *daemon) dead(b *testing.B) (end func()) {
	d.hangUp()
	return func() {
		if err := d.listen(); err != nil {
			b.Fatal(err)
		}
	}
}

// mute reads and writes nothing more, while all connections stay.
func (d *daemon) mute(*testing.B) (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mended = make(chan struct{})
	return d.speak
}

// slow keeps each reply back for a while, one after the other.
func (d *daemon) slow(*testing.B) (end func()) {
	set := func(delay time.Duration) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.delay = delay
	}
	set(300 * time.Millisecond)
	return func() { set(0) }
}

// flood tells each subscriber of ten thousand events a second, in the lives of
// domains that are not the operator's.
func (d *daemon) flood(b *testing.B) (end func()) {
	const each = 10 * time.Millisecond
	var frames []byte
	for i := range 100 {
		theirs := virt.Domain{Name: fmt.Sprintf("theirs-%d", i), UUID: fmt.Sprintf("11111111-2222-3333-4444-%012d", i), ID: -1}
		frames = append(frames, virttest.EventFrame(virt.DomainEvent{Domain: theirs, Kind: virt.EventStopped})...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan int, 1)
	go func() {
		n := 0
		defer func() { sent <- n }()
		tick := time.NewTicker(each)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, l := range d.listeners() {
				if l.tell(frames) == nil {
					n++
				}
			}
		}
	}()
	return func() {
		cancel()
		if <-sent == 0 {
			b.Error("nobody heard of the flood: it disturbed nobody")
		}
	}
}

// listeners are the connections that subscribed.
func (d *daemon) listeners() (of []*line) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := range d.lines {
		if l.subscribed {
			of = append(of, l)
		}
	}
	return of
}

// line is the daemon's end of one connection.
type line struct {
	net.Conn
	d          *daemon
	writing    sync.Mutex
	subscribed bool // d.mu is held for it
}

// Read implements net.Conn.
func (l *line) Read(b []byte) (int, error) {
	l.wait()
	n, err := l.Conn.Read(b)
	l.wait()
	return n, err
}

// Write implements net.Conn. It gets one whole frame, as ServeWire writes them.
func (l *line) Write(b []byte) (int, error) {
	const reply, stream, procRegister = 1, 3, 316
	proc, kind, status := binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[24:])
	delay := l.wait()
	if kind == reply || kind == stream {
		time.Sleep(delay)
	}
	n, err := l.write(b)
	if err == nil && proc == procRegister && kind == reply && status == 0 {
		l.d.mu.Lock()
		defer l.d.mu.Unlock()
		l.subscribed = true
	}
	return n, err
}

// tell writes frames that the host knows nothing of.
func (l *line) tell(frames []byte) error {
	_, err := l.write(frames)
	return err
}

func (l *line) write(b []byte) (int, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.Conn.Write(b)
}

// wait waits while the daemon is mute, and returns what it keeps replies back.
func (l *line) wait() (delay time.Duration) {
	l.d.mu.Lock()
	mended, delay := l.d.mended, l.d.delay
	l.d.mu.Unlock()
	if mended != nil {
		<-mended
	}
	return delay
}

// overWire dials daemons by their hosts' names.
type overWire struct {
	daemons map[string]*daemon
	log     *slog.Logger
}

var _ link.Dialer = overWire{}

// Dial implements link.Dialer.
func (o overWire) Dial(ctx context.Context, host string) (link.Link, error) {
	fail := func(stage string, err error) (link.Link, error) {
		return nil, &link.DialError{Host: host, Stage: stage, Err: err}
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", o.daemons[host].address())
	if err != nil {
		return fail(link.StageTCP, fault.Wrap(fault.Unavailable, err))
	}
	c, err := rpc.Open(ctx, conn, rpc.Options{Host: host, Log: o.log})
	if err != nil {
		return fail(link.StageLibvirt, err)
	}
	return c, nil
}
