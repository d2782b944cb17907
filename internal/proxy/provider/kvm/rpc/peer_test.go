package rpc_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Procedures, types and statuses of libvirt's protocol.
const (
	procOpen, procAuthList, procAuthPolkit      = 1, 66, 70
	procLibVersion, procHostname, procCaps      = 157, 59, 7
	procDomainCaps, procAllStats                = 342, 344
	procByName, procByUUID, procGetState        = 23, 24, 212
	procGetMetadata, procSetMetadata            = 265, 264
	procDefine, procCreate, procDestroy         = 11, 9, 12
	procUndefine, procAddresses                 = 231, 353
	procNetByName, procNetActive                = 46, 152
	procPoolByName, procPoolInfo, procPoolXML   = 84, 87, 88
	procListVolumes, procVolByName, procVolInfo = 282, 95, 378
	procVolPath, procVolCreate, procVolDelete   = 100, 93, 94
	procUpload                                  = 208
	procRegister, procEvent                     = 316, 318

	call, reply, message, stream = 0, 1, 2, 3
	ok, failed, more             = 0, 1, 2
)

type packet struct {
	prog, ver, proc, kind uint32
	serial                int32
	status                uint32
	payload               []byte
}

func (p packet) bytes() []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(28+len(p.payload)))
	for _, w := range []uint32{p.prog, p.ver, p.proc, p.kind, uint32(p.serial), p.status} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return append(b, p.payload...)
}

// answers makes the reply to a call or the word on a stream.
func (p packet) answers(kind, status uint32, payload []byte) packet {
	p.kind, p.status, p.payload = kind, status, payload
	return p
}

// peer is a daemon of the tests: it answers every call rightly unless its
// handler says something else.
type peer struct {
	conn net.Conn
	// handle sees each packet; it returns true when it took care of it.
	handle func(p *peer, in packet) bool

	mu      sync.Mutex
	seen    []packet
	upload  []byte
	largest int
}

func readPacket(r io.Reader) (packet, error) {
	var b [28]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return packet{}, err
	}
	w := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	p := packet{w(1), w(2), w(3), w(4), int32(w(5)), w(6), make([]byte, w(0)-28)}
	_, err := io.ReadFull(r, p.payload)
	return p, err
}

func (p *peer) serve() {
	defer p.conn.Close()
	for {
		in, err := readPacket(p.conn)
		if err != nil {
			return
		}
		p.mu.Lock()
		if in.kind == call {
			p.seen = append(p.seen, in)
		}
		if in.kind == stream {
			p.upload = append(p.upload, in.payload...)
			p.largest = max(p.largest, len(in.payload))
		}
		handle := p.handle
		p.mu.Unlock()
		if handle != nil && handle(p, in) {
			continue
		}
		p.right(in)
	}
}

// right is what a sound daemon answers.
func (p *peer) right(in packet) {
	switch {
	case in.kind == call:
		p.send(in.answers(reply, ok, right[in.proc]))
	case in.kind == stream && in.status == ok:
		p.send(in.answers(stream, ok, nil))
	case in.kind == stream && in.status == failed:
		p.send(in.answers(stream, failed, remoteError(39, "stream aborted at client request")))
	}
}

func (p *peer) send(out packet) { p.sendBytes(out.bytes()) }

func (p *peer) sendBytes(b []byte) { _, _ = p.conn.Write(b) }

func (p *peer) procedures() []uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	procs := make([]uint32, 0, len(p.seen))
	for _, s := range p.seen {
		procs = append(procs, s.proc)
	}
	return procs
}

func (p *peer) uploaded() ([]byte, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upload, p.largest
}

// xdr writes words, long words, strings and raw bytes.
func xdr(values ...any) []byte {
	b := []byte{}
	for _, v := range values {
		switch v := v.(type) {
		case int:
			b = binary.BigEndian.AppendUint32(b, uint32(v))
		case uint64:
			b = binary.BigEndian.AppendUint64(b, v)
		case string:
			b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
			b = append(b, v...)
			for len(b)%4 != 0 {
				b = append(b, 0)
			}
		case []byte:
			b = append(b, v...)
		}
	}
	return b
}

// remoteError is libvirt's remote_error as a real daemon fills it.
func remoteError(code int, text string) []byte {
	return xdr(code, 10, 1, text, 2, 0, 1, "%s", 1, text, 0, -1, -1, 0)
}

const uuidText = "11111111-2222-3333-4444-555555555555"

var (
	uuidBytes = []byte{0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55}
	// right has a sound answer to every procedure.
	right = map[uint32][]byte{
		procOpen: nil, procAuthList: xdr(1, 0), procAuthPolkit: xdr(1),
		procLibVersion: xdr(uint64(9_000_000)),
		procHostname:   xdr("box-1"),
		procCaps:       xdr("<capabilities/>"), procDomainCaps: xdr("<domainCapabilities/>"),
		procAllStats: xdr(2,
			"one", uuidBytes, 7, 2, "state.state", 1, 1, "state.reason", 1, 5,
			"two", uuidBytes, -1, 3, "state.state", 1, 5, "a.text", 7, "odd", "a.number", 4, uint64(3)),
		procByName: xdr("one", uuidBytes, 7), procByUUID: xdr("one", uuidBytes, 7),
		procGetState: xdr(3, 5), procGetMetadata: xdr("<mark/>"), procSetMetadata: nil,
		procDefine: xdr("one", uuidBytes, -1), procCreate: nil, procDestroy: nil, procUndefine: nil,
		procAddresses: xdr(2, "eth0", 1, "52:54:00:AB:CD:EF", 2, 0, "192.0.2.7", 24, 1, "2001:db8::7", 64, "lo", 0, 0),
		procNetByName: xdr("default", uuidBytes), procNetActive: xdr(1),
		procPoolByName: xdr("default", uuidBytes), procPoolInfo: xdr(2, uint64(100), uint64(40), uint64(60)),
		procPoolXML:     xdr("<pool/>"),
		procListVolumes: xdr(2, "default", "a", "/p/a", "default", "b", "/p/b", 2),
		procVolByName:   xdr("default", "a", "/p/a"), procVolInfo: xdr(0, uint64(1000), uint64(200)),
		procVolPath: xdr("/p/a"), procVolCreate: xdr("default", "a", "/p/a"), procVolDelete: nil,
		procUpload: nil, procRegister: xdr(3),
	}
	someDomain = virt.Domain{Name: "one", UUID: uuidText, ID: 7}
	somePool   = virt.Pool{Name: "default", UUID: uuidText}
	someVolume = virt.Volume{Pool: "default", Name: "a", Key: "/p/a"}
)

// start serves one end of a pipe with handle, and returns the other.
func start(t testing.TB, handle func(p *peer, in packet) bool) (*peer, net.Conn) {
	t.Helper()
	far, near := net.Pipe()
	p := &peer{conn: far, handle: handle}
	go p.serve()
	t.Cleanup(func() { _ = far.Close(); _ = near.Close() })
	return p, near
}

// connect opens a connection to a peer with that handler.
func connect(t testing.TB, o rpc.Options, handle func(p *peer, in packet) bool) (*rpc.Conn, *peer) {
	t.Helper()
	p, near := start(t, handle)
	if o.Host == "" {
		o.Host = "box-1"
	}
	c, err := rpc.Open(t.Context(), near, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, p
}

// on makes a handler for one procedure.
func on(proc uint32, do func(p *peer, in packet)) func(*peer, packet) bool {
	return func(p *peer, in packet) bool {
		if in.proc != proc {
			return false
		}
		do(p, in)
		return true
	}
}

// everyCall runs each method of virt.Conn once.
var everyCall = map[string]func(ctx context.Context, c virt.Conn) (any, error){
	"ConnectGetLibVersion":   func(ctx context.Context, c virt.Conn) (any, error) { return c.ConnectGetLibVersion(ctx) },
	"ConnectGetHostname":     func(ctx context.Context, c virt.Conn) (any, error) { return c.ConnectGetHostname(ctx) },
	"ConnectGetCapabilities": func(ctx context.Context, c virt.Conn) (any, error) { return c.ConnectGetCapabilities(ctx) },
	"ConnectGetDomainCapabilities": func(ctx context.Context, c virt.Conn) (any, error) {
		return c.ConnectGetDomainCapabilities(ctx, "kvm")
	},
	"ConnectGetAllDomainStats": func(ctx context.Context, c virt.Conn) (any, error) { return c.ConnectGetAllDomainStats(ctx) },
	"ConnectDomainEventRegisterAny": func(ctx context.Context, c virt.Conn) (any, error) {
		events, err := c.ConnectDomainEventRegisterAny(ctx)
		return events != nil, err
	},
	"DomainLookupByName": func(ctx context.Context, c virt.Conn) (any, error) { return c.DomainLookupByName(ctx, "one") },
	"DomainLookupByUUID": func(ctx context.Context, c virt.Conn) (any, error) { return c.DomainLookupByUUID(ctx, uuidText) },
	"DomainGetState": func(ctx context.Context, c virt.Conn) (any, error) {
		s, r, err := c.DomainGetState(ctx, someDomain)
		return []int32{int32(s), int32(r)}, err
	},
	"DomainGetMetadata": func(ctx context.Context, c virt.Conn) (any, error) { return c.DomainGetMetadata(ctx, someDomain) },
	"DomainSetMetadata": func(ctx context.Context, c virt.Conn) (any, error) {
		return nil, c.DomainSetMetadata(ctx, someDomain, "<mark/>")
	},
	"DomainDefineXML": func(ctx context.Context, c virt.Conn) (any, error) { return c.DomainDefineXML(ctx, "<domain/>") },
	"DomainCreate":    func(ctx context.Context, c virt.Conn) (any, error) { return nil, c.DomainCreate(ctx, someDomain) },
	"DomainDestroy":   func(ctx context.Context, c virt.Conn) (any, error) { return nil, c.DomainDestroy(ctx, someDomain) },
	"DomainUndefineFlags": func(ctx context.Context, c virt.Conn) (any, error) {
		return nil, c.DomainUndefineFlags(ctx, someDomain, virt.UndefineNVRAM)
	},
	"DomainInterfaceAddresses": func(ctx context.Context, c virt.Conn) (any, error) {
		return c.DomainInterfaceAddresses(ctx, someDomain, virt.FromAgent)
	},
	"NetworkLookupByName":     func(ctx context.Context, c virt.Conn) (any, error) { return c.NetworkLookupByName(ctx, "default") },
	"StoragePoolLookupByName": func(ctx context.Context, c virt.Conn) (any, error) { return c.StoragePoolLookupByName(ctx, "default") },
	"StoragePoolGetInfo":      func(ctx context.Context, c virt.Conn) (any, error) { return c.StoragePoolGetInfo(ctx, somePool) },
	"StoragePoolGetXMLDesc":   func(ctx context.Context, c virt.Conn) (any, error) { return c.StoragePoolGetXMLDesc(ctx, somePool) },
	"StoragePoolListAllVolumes": func(ctx context.Context, c virt.Conn) (any, error) {
		return c.StoragePoolListAllVolumes(ctx, somePool)
	},
	"StorageVolLookupByName": func(ctx context.Context, c virt.Conn) (any, error) {
		return c.StorageVolLookupByName(ctx, somePool, "a")
	},
	"StorageVolGetInfo": func(ctx context.Context, c virt.Conn) (any, error) { return c.StorageVolGetInfo(ctx, someVolume) },
	"StorageVolGetPath": func(ctx context.Context, c virt.Conn) (any, error) { return c.StorageVolGetPath(ctx, someVolume) },
	"StorageVolCreateXML": func(ctx context.Context, c virt.Conn) (any, error) {
		return c.StorageVolCreateXML(ctx, somePool, "<volume/>")
	},
	"StorageVolDelete": func(ctx context.Context, c virt.Conn) (any, error) { return nil, c.StorageVolDelete(ctx, someVolume) },
	"StorageVolUpload": func(ctx context.Context, c virt.Conn) (any, error) {
		return nil, c.StorageVolUpload(ctx, someVolume, io.LimitReader(zeros{}, 200_000), 0)
	},
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// within fails the test when do has not returned after a while.
func within(t testing.TB, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not return", what)
	}
}

// discard serves without keeping what it sees.
func (p *peer) discard() {
	defer p.conn.Close()
	r := bufio.NewReaderSize(p.conn, 128<<10)
	for {
		in, err := readPacket(r)
		if err != nil {
			return
		}
		if !p.handle(p, in) {
			p.right(in)
		}
	}
}
