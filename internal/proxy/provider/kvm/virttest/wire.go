package virttest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Numbers of libvirt's RPC.
const (
	wireProgram = 0x20008086
	wireVersion = 1

	wireCall, wireReply, wireMessage, wireStream = 0, 1, 2, 3
	wireOK, wireError, wireContinue              = 0, 1, 2

	wireHeader = 28
	// wireFrame is the most of one frame: a document of 4 MiB, which is libvirt's
	// limit for a string, and what is around it.
	wireFrame = 4<<20 + 64<<10
	// wireRequests is how many of a client's frames are worked on at once; no
	// more are read meanwhile (libvirtd's max_client_requests).
	wireRequests = 5
	// wireUploads is how many uploads one connection carries at once.
	wireUploads = 16

	// What an error comes from: virErrorDomain.
	wireFromRPC  = 7
	wireFromQEMU = 10
)

// frame is one message of libvirt's RPC, without its length.
type frame struct {
	program, version, proc, kind uint32
	serial                       int32
	status                       uint32
	payload                      []byte
}

func (f frame) bytes() []byte {
	b := make([]byte, 0, wireHeader+len(f.payload))
	for _, w := range []uint32{uint32(wireHeader + len(f.payload)), f.program, f.version, f.proc, f.kind, uint32(f.serial), f.status} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return append(b, f.payload...)
}

// answers makes the reply to a call or the word on a stream.
func (f frame) answers(kind, status uint32, p payload) frame {
	f.kind, f.status, f.payload = kind, status, p
	return f
}

func readFrame(r io.Reader) (frame, error) {
	var b [wireHeader]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return frame{}, err
	}
	w := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	if w(0) < wireHeader || w(0) > wireFrame {
		return frame{}, fmt.Errorf("a frame of %d bytes", w(0))
	}
	f := frame{w(1), w(2), w(3), w(4), int32(w(5)), w(6), make([]byte, w(0)-wireHeader)}
	_, err := io.ReadFull(r, f.payload)
	return f, err
}

// remoteError is libvirt's remote_error.
func remoteError(code virt.Code, from int32, text string) payload {
	const level = 2 // VIR_ERR_ERROR
	return payload(nil).word(int32(code)).word(from).opt(text).word(level).
		word(0).opt("%s").opt(text).word(0).word(-1).word(-1).word(0)
}

// EventFrame is what a daemon sends to a subscriber of its domains' lives.
func EventFrame(ev virt.DomainEvent) []byte {
	p := payload(nil).word(subscriptionID).domain(ev.Domain).word(int32(ev.Kind)).word(ev.Detail)
	return frame{wireProgram, wireVersion, procLifecycle, wireMessage, 1, wireOK, p}.bytes()
}

// ServeWire is the host's daemon on one connection: it speaks libvirt's RPC,
// asks a new link of the host whatever it is asked, and returns when the
// connection or the link has ended. It closes stream. Each frame that it sends
// is one Write.
func ServeWire(stream net.Conn, h *Host) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &wire{
		stream: stream, link: h.Link().(*conn), ctx: ctx,
		slots: make(chan struct{}, wireRequests), uploads: map[int32]*inflow{},
	}
	w.running.Go(func() {
		select {
		case <-w.link.done:
		case <-ctx.Done():
		}
		_ = stream.Close()
	})
	w.read()
	cancel()
	_ = w.link.Close()
	w.running.Wait()
}

// wire is the daemon's side of one connection.
type wire struct {
	stream net.Conn
	link   *conn
	ctx    context.Context //nolint:containedctx // the connection's own life
	// slots are the frames that are worked on.
	slots   chan struct{}
	running sync.WaitGroup

	// writing is held for each frame.
	writing sync.Mutex

	mu         sync.Mutex
	opened     bool
	subscribed bool
	events     <-chan virt.DomainEvent
	uploads    map[int32]*inflow
}

func (w *wire) take() bool {
	select {
	case w.slots <- struct{}{}:
		return true
	case <-w.link.done:
		return false
	}
}

func (w *wire) free() { <-w.slots }

// read takes the client's frames up to the end.
func (w *wire) read() {
	in := bufio.NewReaderSize(w.stream, 128<<10)
	for w.take() {
		f, err := readFrame(in)
		if err != nil {
			return
		}
		switch {
		case f.kind == wireStream:
			w.piece(f)
		case f.kind != wireCall:
			return
		case f.program != wireProgram || f.version != wireVersion:
			w.refuse(f, fmt.Sprintf("Cannot find program %d version %d", f.program, f.version))
			w.free()
		case f.proc == procUpload:
			w.running.Go(func() { w.upload(f) })
		default:
			w.running.Go(func() { defer w.free(); w.call(f) })
		}
	}
}

func (w *wire) send(f frame) { w.sendBytes(f.bytes()) }

func (w *wire) sendBytes(b []byte) {
	w.writing.Lock()
	defer w.writing.Unlock()
	if _, err := w.stream.Write(b); err != nil {
		_ = w.stream.Close()
	}
}

// answer says how a call or an upload ended. Of a link that ended nothing is
// said: the connection ends with it.
func (w *wire) answer(f frame, kind uint32, p payload, err error) {
	select {
	case <-w.link.done:
		_ = w.stream.Close()
		return
	default:
	}
	if err == nil {
		w.send(f.answers(kind, wireOK, p))
		return
	}
	code, text := virt.CodeInternalError, "internal error: "+err.Error()
	if e, ok := errors.AsType[*virt.Error](err); ok {
		code, text = e.Code, e.Message
	}
	w.send(f.answers(kind, wireError, remoteError(code, wireFromQEMU, text)))
}

// refuse answers a call that is not understood.
func (w *wire) refuse(f frame, text string) {
	w.send(f.answers(wireReply, wireError, remoteError(virt.CodeRPC, wireFromRPC, text)))
}

// call answers one call.
func (w *wire) call(f frame) {
	decode, known := procedures[f.proc]
	if !known {
		w.refuse(f, fmt.Sprintf("unknown procedure: %d", f.proc))
		return
	}
	a := args{left: f.payload}
	do := decode(&a)
	if !a.whole() {
		w.refuse(f, "Unable to decode message payload")
		return
	}
	if f.proc != procAuthList && f.proc != procOpen && !w.isOpen() {
		w.answer(f, wireReply, nil, failure(virt.CodeInternalError, "internal error: connection not open"))
		return
	}
	p, err := do(w.ctx, w)
	w.answer(f, wireReply, p, err)
	if f.proc == procRegister && err == nil {
		w.running.Go(w.tell)
	}
}

func (w *wire) isOpen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}
