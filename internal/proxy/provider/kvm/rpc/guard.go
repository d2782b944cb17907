package rpc

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// guard is the stream as the library sees it. What the library writes passes
// through while the guard notes which call has which serial. What the peer
// sends comes out of Read as whole frames that were checked before: each
// answers a call that waits for it, once, in the shape of that call's answer.
//
// The library writes under a lock of its own and reads in one goroutine; the
// fields of each side belong to that side.
type guard struct {
	conn  net.Conn
	host  string
	pulse *pulse

	// The reading side.
	in     *bufio.Reader
	frame  []byte // what is left of a checked frame
	strays int
	held   bool // the answer to virConnectOpen went through

	// opened is closed when the library's opening call has returned. Until
	// then Read waits after virConnectOpen's answer: the library sets a field
	// when it has seen that answer, and reads the field when the stream ends.
	opened chan struct{}

	// The writing side: the header under way, and how much of its payload.
	out     [headerSize]byte
	outFill int
	outLeft uint32
	outKind uint32

	mu      sync.Mutex
	pending map[int32]*pending
	auth    []byte // the daemon's answer about authentication
	events  events

	once sync.Once
	done chan struct{}
	err  error // set before done is closed
}

// pending is a call that waits for the peer.
type pending struct {
	procedure uint32
	// streaming: the call was answered, and an upload goes on under its serial
	// until the peer says its end.
	streaming bool
	// ended: the library has written the end of the upload, or its abort.
	ended bool
}

func newGuard(conn net.Conn, host string, p *pulse) *guard {
	g := &guard{
		conn: conn, host: host, pulse: p,
		opened:  make(chan struct{}),
		pending: map[int32]*pending{},
		events:  events{queues: map[*virt.Events]bool{}},
		done:    make(chan struct{}),
	}
	g.in = bufio.NewReaderSize(reading{conn, p}, 32<<10)
	return g
}

// reading takes every arriving byte as a sign of life.
type reading struct {
	c net.Conn
	p *pulse
}

func (r reading) Read(b []byte) (int, error) {
	n, err := r.c.Read(b)
	if n > 0 {
		r.p.life()
	}
	return n, err
}

// fail ends the connection; the first reason stays.
func (g *guard) fail(err error) {
	g.once.Do(func() {
		g.err = err
		close(g.done)
		_ = g.conn.Close()
		g.endEvents()
	})
}

// reason is why the connection ended; call it only after done is closed.
func (g *guard) reason() error { return g.err }

// over is the reason when the connection has ended.
func (g *guard) over() error {
	select {
	case <-g.done:
		return g.err
	default:
		return nil
	}
}

// nonsense ends the connection because of what the peer sent.
func (g *guard) nonsense(format string, args ...any) error {
	g.fail(fault.Errorf(fault.Unavailable, "libvirtd on %s does not keep to its protocol: %s; the connection is closed. "+
		"Check that the host's socket is libvirt's own and that its daemon is sound", g.host, fmt.Sprintf(format, args...)))
	return g.err
}

// Read implements net.Conn for the library. Its errors are never of net's own
// types: the library would take some for temporary, and read on for ever.
func (g *guard) Read(b []byte) (int, error) {
	for len(g.frame) == 0 {
		if g.held {
			<-g.opened
			g.held = false
		}
		if err := g.over(); err != nil {
			return 0, err
		}
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, g.frame)
	g.frame = g.frame[n:]
	return n, nil
}

// next reads one frame; g.frame stays empty when it is of no concern.
func (g *guard) next() error {
	var raw [headerSize]byte
	if _, err := io.ReadFull(g.in, raw[:]); err != nil {
		return g.lost(err)
	}
	h := parseHeader(&raw)
	switch {
	case h.length < headerSize:
		return g.nonsense("a frame of %d bytes, shorter than its header", h.length)
	case h.length-headerSize > maxPayload:
		return g.nonsense("a frame of %d bytes", h.length)
	case h.program != remoteProgram || h.version != remoteVersion:
		return g.nonsense("a frame of program %#x, version %d", h.program, h.version)
	case h.status > statusContinue:
		return g.nonsense("a frame of status %d", h.status)
	}
	p, awaited := g.awaited(h)
	if !awaited {
		if g.subscribed(h) {
			return g.event(h)
		}
		return g.stray(h)
	}
	g.strays = 0
	if err := g.expectedFrame(h, p); err != nil {
		return err
	}
	payload := make([]byte, h.length-headerSize)
	if _, err := io.ReadFull(g.in, payload); err != nil {
		return g.lost(err)
	}
	payload, err := g.checked(h, p, payload)
	if err != nil {
		return err
	}
	g.answered(h, p, payload)
	h.length = uint32(headerSize + len(payload))
	g.frame = append(h.append(make([]byte, 0, headerSize+len(payload))), payload...)
	return nil
}

// awaited finds the call that a frame answers. Events, answers to nothing, a
// second answer to a call, and bytes that come down an upload are not awaited.
func (g *guard) awaited(h header) (pending, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, ok := g.pending[h.serial]
	if !ok || h.kind == typeMessage {
		return pending{}, false
	}
	if p.streaming && (h.kind == typeReply || h.status == statusContinue) {
		return pending{}, false
	}
	return *p, true
}

// stray drops a frame that nobody waits for, without keeping it in memory.
func (g *guard) stray(h header) error {
	size := h.length - headerSize
	if size > maxStray {
		return g.nonsense("a frame of %d bytes that answers nothing", h.length)
	}
	if g.strays++; g.strays > maxStrays {
		return g.nonsense("more than %d frames in a row that answer nothing", maxStrays)
	}
	if _, err := g.in.Discard(int(size)); err != nil {
		return g.lost(err)
	}
	return nil
}

// expectedFrame checks a frame's header against the call that it answers.
func (g *guard) expectedFrame(h header, p pending) error {
	shape, known := procedureOf(p.procedure)
	limit := shape.max
	if h.status == statusError {
		limit = smallPayload
	}
	kind := uint32(typeReply)
	if p.streaming {
		kind = typeStream
	}
	switch {
	case !known:
		return g.nonsense("an answer to procedure %d, which is never called", p.procedure)
	case h.procedure != p.procedure:
		return g.nonsense("an answer of procedure %d to a call of %d", h.procedure, p.procedure)
	case h.kind != kind:
		return g.nonsense("a frame of type %d where %d is due", h.kind, kind)
	case h.status == statusContinue:
		return g.nonsense("an answer to procedure %d that is to be continued", p.procedure)
	case h.status == statusOK && p.streaming && !p.ended:
		return g.nonsense("the good end of an upload that still goes on")
	case h.length-headerSize > limit:
		return g.nonsense("an answer of %d bytes to procedure %d", h.length-headerSize, p.procedure)
	}
	return nil
}

// checked returns a payload that the library can decode without harm.
func (g *guard) checked(h header, p pending, payload []byte) ([]byte, error) {
	if h.status == statusError {
		code, message, err := readError(payload)
		switch {
		case err != nil:
			return nil, g.nonsense("an error that cannot be read: %v", err)
		case code == 0:
			return nil, g.nonsense("an error with the code for success")
		}
		return writeError(code, errorText(code, message)), nil
	}
	// The end of an upload is as empty as the answer to its call.
	shape, _ := procedureOf(p.procedure)
	if err := walk(payload, shape.ret); err != nil {
		return nil, g.nonsense("an answer to procedure %d that cannot be read: %v", p.procedure, err)
	}
	return payload, nil
}

// answered notes that a call got what it waited for.
func (g *guard) answered(h header, p pending, payload []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.procedure == procStorageUpload && !p.streaming && h.status == statusOK {
		g.pending[h.serial].streaming = true
		return
	}
	delete(g.pending, h.serial)
	switch {
	case h.status != statusOK:
	case p.procedure == procConnectOpen:
		g.held = true
	case p.procedure == procAuthList:
		g.auth = payload
	case p.procedure == procEventRegister:
		g.events.on = true
	}
}

// lost ends the connection because the stream did.
func (g *guard) lost(err error) error {
	if err == io.EOF { //nolint:errorlint // the stream's own end, and no other's
		err = fmt.Errorf("libvirtd closed it (%w): it was stopped or restarted, or it crashed", err)
	}
	g.fail(fault.Errorf(fault.Unavailable, "the connection to libvirtd on %s ended: %w", g.host, err))
	return g.err
}

// Write implements net.Conn for the library.
func (g *guard) Write(b []byte) (int, error) {
	if err := g.over(); err != nil {
		return 0, err
	}
	upload := g.note(b)
	n, err := g.conn.Write(b)
	if upload && n > 0 {
		g.pulse.life()
	}
	if err != nil {
		return n, g.lost(err)
	}
	return n, nil
}

// note follows the frames that the library writes, and registers each call
// before its bytes leave. It reports whether b has bytes of an upload.
func (g *guard) note(b []byte) (upload bool) {
	for len(b) > 0 {
		if g.outLeft > 0 {
			n := min(uint64(g.outLeft), uint64(len(b)))
			upload = upload || g.outKind == typeStream
			g.outLeft -= uint32(n)
			b = b[n:]
			continue
		}
		n := copy(g.out[g.outFill:], b)
		g.outFill += n
		b = b[n:]
		if g.outFill < headerSize {
			break
		}
		h := parseHeader(&g.out)
		g.outFill, g.outKind, g.outLeft = 0, h.kind, h.length-headerSize
		g.register(h)
	}
	return upload
}

func (g *guard) register(h header) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch h.kind {
	case typeCall:
		g.pending[h.serial] = &pending{procedure: h.procedure}
	case typeStream:
		if p, ok := g.pending[h.serial]; ok && h.status != statusContinue {
			p.ended = true
		}
	}
}

// authentication returns the ways of authentication that the daemon named.
func (g *guard) authentication() []uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := walker{g.auth}
	n, _ := w.word()
	ways := make([]uint32, 0, 4)
	for range min(n, 16) {
		way, err := w.word()
		if err != nil {
			break
		}
		ways = append(ways, way)
	}
	return ways
}

// Close implements net.Conn; the library closes what its opening call refused.
func (g *guard) Close() error {
	g.fail(fault.Errorf(fault.Unavailable, "the connection to libvirtd on %s was closed here", g.host))
	return nil
}

// LocalAddr, RemoteAddr and the deadlines are the stream's own.

// LocalAddr implements net.Conn.
func (g *guard) LocalAddr() net.Addr { return g.conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (g *guard) RemoteAddr() net.Addr { return g.conn.RemoteAddr() }

// SetDeadline implements net.Conn.
func (g *guard) SetDeadline(t time.Time) error { return g.conn.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (g *guard) SetReadDeadline(t time.Time) error { return g.conn.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (g *guard) SetWriteDeadline(t time.Time) error { return g.conn.SetWriteDeadline(t) }
