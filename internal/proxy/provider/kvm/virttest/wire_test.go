package virttest_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// pair is both ends of a stream.
type pair func(t *testing.T) (near, far net.Conn)

func pipe(*testing.T) (near, far net.Conn) { return net.Pipe() }

func loopback(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// served is the near end of a connection to a host's daemon. The test does not
// end before the daemon's side has.
func served(t *testing.T, h *virttest.Host, ends pair) net.Conn {
	t.Helper()
	near, far := ends(t)
	var daemon sync.WaitGroup
	daemon.Go(func() { virttest.ServeWire(far, h) })
	t.Cleanup(func() { _ = near.Close(); daemon.Wait() })
	return near
}

// overWire opens a connection to a host's daemon.
func overWire(t *testing.T, h *virttest.Host, ends pair) link.Link {
	t.Helper()
	c, err := rpc.Open(t.Context(), served(t, h, ends), rpc.Options{Host: "box-1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The daemon in memory on the wire is one that the real client takes for real.
func TestFakePassesTheSuiteOverTheWire(t *testing.T) {
	for name, ends := range map[string]pair{"pipe": pipe, "loopback": loopback} {
		t.Run(name, func(t *testing.T) {
			h := virttest.NewHost("box-1")
			s := subject(h)
			s.Conn = overWire(t, h, ends)
			s.Dial = func(t *testing.T) link.Link { return overWire(t, h, ends) }
			virttest.Run(t, s)
		})
	}
}

// raw speaks the wire with no library between.
type raw struct {
	t      *testing.T
	c      net.Conn
	serial uint32
}

const (
	wireCall, wireReply, wireMessage, wireStream = 0, 1, 2, 3
	wireOK, wireError, wireContinue              = 0, 1, 2

	procOpen, procCreateVolume, procUpload = 1, 93, 208
	procHostname, procSetMetadata          = 59, 264
	procRegister, procLifecycle            = 316, 318
)

func (r *raw) write(program, proc, kind, serial, status uint32, payload []byte) {
	r.t.Helper()
	b := xdr(28+len(payload), int(program), 1, int(proc), int(kind), int(serial), int(status), payload)
	_ = r.c.SetWriteDeadline(time.Now().Add(time.Minute))
	if _, err := r.c.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) read() (h [7]uint32, payload []byte, err error) {
	_ = r.c.SetReadDeadline(time.Now().Add(time.Minute))
	if err := binary.Read(r.c, binary.BigEndian, &h); err != nil {
		return h, nil, err
	}
	payload = make([]byte, h[0]-28)
	_, err = io.ReadFull(r.c, payload)
	return h, payload, err
}

// answer reads the next frame, which is of that kind: zero is a good one, else
// the error's code; text is the error's.
func (r *raw) answer(kind uint32) (code uint32, text string) {
	r.t.Helper()
	h, p, err := r.read()
	switch {
	case err != nil:
		r.t.Fatal(err)
	case h[1] != 0x20008086 || h[2] != 1 || h[4] != kind || h[5] != r.serial:
		r.t.Fatalf("a frame %x where type %d, serial %d is due", h, kind, r.serial)
	case h[6] == wireError:
		n := binary.BigEndian.Uint32(p[12:])
		return binary.BigEndian.Uint32(p), string(p[16 : 16+n])
	}
	return 0, ""
}

func (r *raw) call(proc uint32, payload []byte) (code uint32, text string) {
	r.t.Helper()
	r.serial++
	r.write(0x20008086, proc, wireCall, r.serial, wireOK, payload)
	return r.answer(wireReply)
}

func (r *raw) open() *raw {
	r.t.Helper()
	if code, text := r.call(procOpen, xdr(1, "qemu:///system", 0)); code != 0 {
		r.t.Fatalf("opening: %d %s", code, text)
	}
	return r
}

// xdr writes words, strings and raw bytes.
func xdr(values ...any) []byte {
	var b []byte
	for _, v := range values {
		switch v := v.(type) {
		case int:
			b = binary.BigEndian.AppendUint32(b, uint32(v))
		case string:
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
			b = append(b, make([]byte, -len(v)&3)...)
		case []byte:
			b = append(b, v...)
		}
	}
	return b
}

func TestWireRefuses(t *testing.T) {
	const noConnect, invalidArg, rpcError, internal, noNetwork = 5, 8, 39, 1, 43
	for name, tc := range map[string]struct {
		reason  string
		opened  bool
		program uint32
		proc    uint32
		payload []byte
		code    uint32
		text    string
	}{
		"no such procedure": {"a newer client", true, 0x20008086, 9999, nil, rpcError, "unknown procedure: 9999"},
		"another program":   {"keepalive is not spoken", true, 0x6b656570, 1, nil, rpcError, "Cannot find program"},
		"too few arguments": {"a client that writes another grammar", true, 0x20008086, procSetMetadata, xdr(1), rpcError, "decode"},
		"too many":          {"a client that writes another grammar", true, 0x20008086, procHostname, xdr(1), rpcError, "decode"},
		"a long string":     {"a length is not believed", true, 0x20008086, 23, xdr(0x7fffffff, "x"), rpcError, "decode"},
		"a cut upload":      {"its call is one like the others", true, 0x20008086, procUpload, xdr("default"), rpcError, "decode"},
		"not opened":        {"virConnectOpen comes first", false, 0x20008086, procHostname, nil, internal, "not open"},
		"not opened, upload": {
			"virConnectOpen comes first", false, 0x20008086, procUpload, xdr("default", "a", "/a", 0, 0, 0, 0, 0), internal, "not open",
		},
		"another driver": {"there is QEMU alone", false, 0x20008086, procOpen, xdr(1, "xen:///system", 0), noConnect, "xen"},
		"other flags":    {"what the host cannot tell is not told wrongly", true, 0x20008086, 378, xdr("default", "a", "/a", 0), invalidArg, "unsupported"},
		"a network that went": {
			"it was there when its name was asked for", true, 0x20008086, 152, xdr("gone", make([]byte, 16)), noNetwork, "Network not found",
		},
		"another event": {"only lives are told of", true, 0x20008086, procRegister, xdr(1, 0), invalidArg, "unsupported"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &raw{t: t, c: served(t, virttest.NewHost("box-1"), pipe)}
			if tc.opened {
				r.open()
			}
			r.serial++
			r.write(tc.program, tc.proc, wireCall, r.serial, wireOK, tc.payload)
			h, p, err := r.read()
			if err != nil {
				t.Fatal(err)
			}
			code, text := binary.BigEndian.Uint32(p), string(p[16:])
			if h[1] != tc.program || h[3] != tc.proc || h[5] != r.serial || h[6] != wireError || code != tc.code || !strings.Contains(text, tc.text) {
				t.Errorf("%s: frame %x, code %d, %q", tc.reason, h, code, text)
			}
			if code, text := r.open().call(procHostname, nil); code != 0 {
				t.Errorf("the next call: %d %s", code, text)
			}
		})
	}
}

// A second subscription of a connection is refused, as libvirt does; the first
// one goes on.
func TestWireHasOneSubscription(t *testing.T) {
	h := virttest.NewHost("box-1")
	r := (&raw{t: t, c: served(t, h, pipe)}).open()
	if code, text := r.call(procRegister, xdr(0, 0)); code != 0 {
		t.Fatal(code, text)
	}
	if code, _ := r.call(procRegister, xdr(0, 0)); virt.Code(code) != virt.CodeInvalidArg {
		t.Errorf("again: code %d", code)
	}
	if n := h.Subscriptions(); n != 1 {
		t.Errorf("%d subscriptions", n)
	}
	ev := virt.DomainEvent{Domain: virt.Domain{Name: "theirs", UUID: "11111111-2222-3333-4444-555555555555", ID: 7}, Kind: virt.EventStopped, Detail: 3}
	h.Emit(ev)
	head, p, err := r.read()
	if err != nil {
		t.Fatal(err)
	}
	uuid := []byte{0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55}
	if want := xdr(0, "theirs", uuid, 7, 5, 3); head[3] != procLifecycle || head[4] != wireMessage || !bytes.Equal(p, want) {
		t.Errorf("%x, %x, want %x", head, p, want)
	}
}

// Events that the client takes too slowly are not dropped in silence.
func TestWireEndsWhenEventsAreLost(t *testing.T) {
	h := virttest.NewHost("box-1")
	r := (&raw{t: t, c: served(t, h, pipe)}).open()
	if code, text := r.call(procRegister, xdr(0, 0)); code != 0 {
		t.Fatal(code, text)
	}
	const many = 3 * virt.EventBuffer
	h.Emit(make([]virt.DomainEvent, many)...)
	for n := 0; ; n++ {
		if _, _, err := r.read(); err != nil {
			if n == 0 || n >= many || !errors.Is(err, io.EOF) {
				t.Errorf("%d events, then %v", n, err)
			}
			break
		}
	}
}

// The live definition of a domain that does not run cannot be changed; the
// client asks again for the other alone.
func TestWireMetadataOfAnIdleDomain(t *testing.T) {
	h := virttest.NewHost("box-1")
	c := overWire(t, h, pipe)
	d, err := c.DomainDefineXML(t.Context(), "<domain type='qemu'><name>one</name><memory unit='MiB'>32</memory>"+
		"<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>")
	if err != nil {
		t.Fatal(err)
	}
	uuid, err := hex.DecodeString(strings.ReplaceAll(d.UUID, "-", ""))
	if err != nil {
		t.Fatal(err)
	}
	r := (&raw{t: t, c: served(t, h, pipe)}).open()
	for _, tc := range []struct {
		flags int
		code  virt.Code
	}{{3, virt.CodeOperationInvalid}, {1, virt.CodeInvalidArg}, {2, 0}} {
		if code, text := r.call(procSetMetadata, xdr(d.Name, uuid, -1, 2, 1, "<mark/>", 1, virt.MetadataPrefix, 1, virt.MetadataNamespace, tc.flags)); virt.Code(code) != tc.code {
			t.Errorf("flags %d: code %d, %s", tc.flags, code, text)
		}
	}
	if m, err := c.DomainGetMetadata(t.Context(), d); err != nil || m != "<mark/>" {
		t.Errorf("%q, %v", m, err)
	}
}

// A client that asks on without waiting is not read any more.
func TestWireBoundsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := virttest.NewHost("box-1")
		near := served(t, h, pipe)
		r := (&raw{t: t, c: near}).open()
		h.Mute()
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			for range 10 {
				r.write(0x20008086, procHostname, wireCall, 7, wireOK, nil)
			}
		}()
		synctest.Wait()
		if n := h.Calls()["virConnectGetHostname"]; n != 5 {
			t.Errorf("%d calls at once, want 5", n)
		}
		h.Mend()
		for range 10 {
			if _, _, err := r.read(); err != nil {
				t.Fatal(err)
			}
		}
		<-wrote
	})
}

// startUpload makes a volume and begins an upload of it.
func (r *raw) startUpload(h *virttest.Host) {
	r.t.Helper()
	c := h.Link()
	defer c.Close()
	p, err := c.StoragePoolLookupByName(r.t.Context(), virttest.DefaultPool)
	if err != nil {
		r.t.Fatal(err)
	}
	_, err = c.StorageVolCreateXML(r.t.Context(), p, "<volume><name>a</name><capacity>0</capacity><target><format type='raw'/></target></volume>")
	if err != nil && !virt.Is(err, virt.CodeStorageVolExist) {
		r.t.Fatal(err)
	}
	if code, text := r.call(procUpload, xdr("default", "a", "/a", 0, 0, 0, 0, 0)); code != 0 {
		r.t.Fatal(code, text)
	}
}

func (r *raw) piece(status uint32, b []byte) {
	r.t.Helper()
	r.write(0x20008086, procUpload, wireStream, r.serial, status, b)
}

// An upload that the client breaks off ends at once, also one that the host
// does not take.
func TestWireUploadIsBrokenOff(t *testing.T) {
	h := virttest.NewHost("box-1")
	r := (&raw{t: t, c: served(t, h, pipe)}).open()
	for range 12 { // more than there are slots
		h.StallUploads(1)
		r.startUpload(h)
		for range 3 {
			r.piece(wireContinue, make([]byte, 100))
		}
		r.piece(wireError, nil)
		if code, text := r.answer(wireStream); virt.Code(code) != virt.CodeRPC || text != "stream aborted at client request" {
			t.Fatalf("code %d, %s", code, text)
		}
		h.Mend()
	}
}

// What is under way when an upload fails is dropped, and its room given back.
func TestWireUploadFails(t *testing.T) {
	h := virttest.NewHost("box-1")
	r := (&raw{t: t, c: served(t, h, loopback)}).open()
	for range 4 {
		h.OnUpload(func(u virttest.Upload) error {
			if u.Accepted > 0 {
				return virt.Fault(virt.CodeSystemError, "Unable to write /a: No space left on device")
			}
			return nil
		})
		r.startUpload(h)
		for range 20 {
			r.piece(wireContinue, make([]byte, 1000))
		}
		r.piece(wireOK, nil)
		if code, text := r.answer(wireStream); virt.Code(code) != virt.CodeSystemError || !strings.Contains(text, "No space left") {
			t.Fatalf("code %d, %s", code, text)
		}
	}
	if code, text := r.call(procHostname, nil); code != 0 {
		t.Errorf("the next call: %d %s", code, text)
	}
}

// The connection ends with the link, and the link with the connection.
func TestWireEnds(t *testing.T) {
	for name, end := range map[string]func(h *virttest.Host, near net.Conn){
		"the daemon restarts":  func(h *virttest.Host, _ net.Conn) { h.DropLinks() },
		"the host breaks":      func(h *virttest.Host, _ net.Conn) { h.Break() },
		"the client closes it": func(_ *virttest.Host, near net.Conn) { _ = near.Close() },
		"no length": func(_ *virttest.Host, near net.Conn) {
			_, _ = near.Write(make([]byte, 28))
		},
		"a length beyond measure": func(_ *virttest.Host, near net.Conn) {
			_, _ = near.Write(xdr(1<<30, 0x20008086, 1, procHostname, wireCall, 9, wireOK))
		},
		"a reply of the client's": func(_ *virttest.Host, near net.Conn) {
			_, _ = near.Write(xdr(28, 0x20008086, 1, procHostname, wireReply, 9, wireOK))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := virttest.NewHost("box-1")
			near, far := pipe(t)
			ended := make(chan struct{})
			go func() { defer close(ended); virttest.ServeWire(far, h) }()
			r := (&raw{t: t, c: near}).open()
			end(h, near)
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("it is served still")
			}
			if n := h.Links(); n != 0 {
				t.Errorf("%d links are open", n)
			}
			if _, _, err := r.read(); err == nil {
				t.Error("the stream is open")
			}
		})
	}
}
