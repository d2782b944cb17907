package virttest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Subject is an implementation of [virt.Conn] under test, with the host behind
// it. The host may be shared: the suite uses names of its own, asserts only on
// what it made, and takes it away again.
type Subject struct {
	// Conn is the connection under test.
	Conn virt.Conn
	// Dial opens another connection to the same host, which the suite closes.
	// Nil skips what needs one.
	Dial func(t *testing.T) link.Link
	// Pool is a running pool of files with at least 64 MiB free.
	Pool string
	// Network or Bridge is what domains' interfaces are on; Network is active.
	Network, Bridge string
	// DomainType is a type that the host can run ("qemu").
	DomainType string
	// UEFI says that the host has firmware for it.
	UEFI bool
	// SmallPool is a running pool of at most 64 MiB that may be filled; "" skips
	// what a full pool does.
	SmallPool string
	// Content reads a volume's bytes behind libvirt's back; nil skips the
	// comparison of what was uploaded with what is there.
	Content func(t *testing.T, pool, volume string) []byte
	// Pause pauses a running domain behind the connection's back, or resumes it;
	// nil skips the events of that.
	Pause func(t *testing.T, domain string, on bool)
	// Note gets what the host answered where the suite looks at no more than its
	// code: the part and what was asked, and a text with the suite's own names in
	// it. Nil drops it.
	Note func(what, answer string)
}

// Run tests every promise of [virt.Conn].
func Run(t *testing.T, s Subject) {
	for _, part := range []struct {
		name string
		test func(b *bench)
	}{
		{"Connect", testConnect},
		{"DomainLookup", testLookup},
		{"DomainDefineXML", testDefine},
		{"DomainDefineXML refuses", testDefineRefuses},
		{"DomainLife", testLife},
		{"DomainGone", testDomainGone},
		{"DomainCreate fails", testStartFails},
		{"DomainUndefineFlags", testUndefine},
		{"NVRAM", testNVRAM},
		{"DomainMetadata", testMetadata},
		{"DomainMetadata while it runs", testLiveMetadata},
		{"DomainInterfaceAddresses", testAddresses},
		{"ConnectDomainEventRegisterAny", testEvents},
		{"ConnectDomainEventRegisterAny unread", testEventsUnread},
		{"ConnectDomainEventRegisterAny ends with its connection", testEventsClosed},
		{"NetworkLookupByName", testNetwork},
		{"StoragePool", testPool},
		{"StorageVol", testVolumes},
		{"StorageVolCreateXML", testVolumeSizes},
		{"StorageVolCreateXML refuses", testVolumeRefuses},
		{"StorageVolUpload", testUpload},
		{"StorageVolUpload over what is there", testUploadOver},
		{"StorageVolUpload readers", testUploadReaders},
		{"StorageVolUpload ends with its context", testUploadContext},
		{"StorageVolUpload beside other calls", testUploadBeside},
		{"a full pool", testFull},
		{"contexts", testContexts},
		{"late answers", testLateAnswers},
		{"concurrent calls", testConcurrent},
		{"two connections", testTwoConnections},
		{"a closed connection", testClosed},
		{"StorageVolUpload and an error that has EOF", testUploadWrappedEOF},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(newBench(t, s, part.name)) })
	}
}

// limit bounds each test against a host that does not answer.
const limit = 2 * time.Minute

// bench is one test's tools. Its methods fail the test.
type bench struct {
	*testing.T
	s      Subject
	c      virt.Conn
	ctx    context.Context //nolint:containedctx // the test's own, as testing.T has one
	part   string
	prefix string
	n      int
}

func newBench(t *testing.T, s Subject, part string) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	var r [5]byte
	_, _ = rand.Read(r[:])
	return &bench{T: t, s: s, c: s.Conn, ctx: ctx, part: part, prefix: "fdvt-" + hex.EncodeToString(r[:])}
}

func (b *bench) note(what, answer string) {
	if b.s.Note != nil {
		b.s.Note(b.part+": "+what, answer)
	}
}

// name is a new name on the host.
func (b *bench) name(what string) string {
	b.n++
	return fmt.Sprintf("%s-%d-%s", b.prefix, b.n, what)
}

func newUUID() string {
	var r [16]byte
	_, _ = rand.Read(r[:])
	r[6], r[8] = r[6]&0x0f|0x40, r[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", r[0:4], r[4:6], r[6:8], r[8:10], r[10:16])
}

// after is a context for the order after a test.
func after(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
}

func (b *bench) ok(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v (class %s)", what, err, fault.Of(err))
	}
}

// wants fails unless err is the daemon's answer with that code, and classed as
// a code of that kind is.
func (b *bench) wants(what string, err error, code virt.Code) {
	b.Helper()
	e, is := errors.AsType[*virt.Error](err)
	switch {
	case err == nil:
		b.Errorf("%s: it went well, want code %d", what, code)
	case !is:
		b.Errorf("%s: not a daemon's answer: %v", what, err)
	case e.Code != code:
		b.Errorf("%s: code %d (%s), want %d", what, e.Code, e.Message, code)
	case strings.TrimSpace(e.Message) == "":
		b.Errorf("%s: no text", what)
	case !fault.Classed(err):
		b.Errorf("%s: no class: %v", what, err)
	default:
		b.note(what, fmt.Sprintf("%d %s %s", e.Code, fault.Of(err), e.Message))
		b.wantsClass(what, err)
	}
}

// wantsDomain is wants for a call that defines or starts a domain: NotFound is
// the domain itself there, never something else that it needs.
func (b *bench) wantsDomain(what string, err error, code virt.Code) {
	b.Helper()
	if missing[code] && code != virt.CodeNoDomain {
		e, _ := errors.AsType[*virt.Error](err)
		if e == nil || e.Code != code {
			b.Errorf("%s: %v, want code %d", what, err, code)
			return
		}
		b.note(what, fmt.Sprintf("%d %s %s", e.Code, fault.Of(err), e.Message))
		b.isClass(what, err, fault.Permanent)
		return
	}
	b.wants(what, err, code)
}

// missing are the codes that alone may be NotFound.
var missing = map[virt.Code]bool{
	virt.CodeNoDomain: true, virt.CodeNoNetwork: true, virt.CodeNoStoragePool: true,
	virt.CodeNoStorageVol: true, virt.CodeNoDomainMetadata: true,
}

func (b *bench) wantsClass(what string, err error) {
	b.Helper()
	e, _ := errors.AsType[*virt.Error](err)
	if class := fault.Of(err); (class == fault.NotFound) != missing[e.Code] {
		b.Errorf("%s: class %s for code %d (%s)", what, class, e.Code, e.Message)
	}
}

func (b *bench) isClass(what string, err error, class fault.Class) {
	b.Helper()
	if got := fault.Of(err); got != class {
		b.Errorf("%s: class %q, want %q: %v", what, got, class, err)
	}
}

// pool is the subject's pool.
func (b *bench) pool() virt.Pool {
	b.Helper()
	p, err := b.c.StoragePoolLookupByName(b.ctx, b.s.Pool)
	b.ok("the pool", err)
	return p
}

// volumeDoc is a <volume>; extra is added to it.
func volumeDoc(name, format string, capacity uint64, extra string) string {
	return fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><allocation>0</allocation><target><format type='%s'/></target>%s</volume>", name, capacity, format, extra)
}

func backing(path, format string) string {
	return fmt.Sprintf("<backingStore><path>%s</path><format type='%s'/></backingStore>", path, format)
}

// volume makes a volume that goes with the test.
func (b *bench) volume(format string, capacity uint64, extra string) virt.Volume {
	b.Helper()
	return b.volumeIn(b.pool(), format, capacity, extra)
}

func (b *bench) volumeIn(p virt.Pool, format string, capacity uint64, extra string) virt.Volume {
	b.Helper()
	v, err := b.c.StorageVolCreateXML(b.ctx, p, volumeDoc(b.name(format), format, capacity, extra))
	b.ok("making a volume", err)
	b.discard(v)
	return v
}

// discard deletes a volume at the test's end, however it is then.
func (b *bench) discard(v virt.Volume) {
	b.Cleanup(func() {
		ctx, cancel := after(b.T)
		defer cancel()
		if err := b.c.StorageVolDelete(ctx, v); err != nil && fault.Of(err) != fault.NotFound {
			b.Errorf("deleting %s after the test: %v", v.Name, err)
		}
	})
}

func (b *bench) path(v virt.Volume) string {
	b.Helper()
	p, err := b.c.StorageVolGetPath(b.ctx, v)
	b.ok("the path", err)
	return p
}

func (b *bench) info(v virt.Volume) virt.VolumeInfo {
	b.Helper()
	i, err := b.c.StorageVolGetInfo(b.ctx, v)
	b.ok("the sizes", err)
	b.note("sizes of "+v.Name, fmt.Sprintf("%+v", i))
	return i
}

// shape is a small domain that needs no guest: what differs from it.
type shape struct {
	kind, name, uuid, metadata, os, memory, devices string
}

func (b *bench) doc(s shape) string {
	if s.kind == "" {
		s.kind = b.s.DomainType
	}
	if s.os == "" {
		s.os = "<os><type arch='x86_64' machine='q35'>hvm</type></os>"
	}
	if s.memory == "" {
		s.memory = "<memory unit='MiB'>32</memory>"
	}
	if s.uuid != "" {
		s.uuid = "<uuid>" + s.uuid + "</uuid>"
	}
	if s.name != "" {
		s.name = "<name>" + s.name + "</name>"
	}
	return fmt.Sprintf("<domain type='%s'>%s%s%s%s<vcpu>1</vcpu>%s<features><acpi/></features><devices>%s</devices></domain>",
		s.kind, s.name, s.uuid, s.metadata, s.memory, s.os, s.devices)
}

const agentChannel = "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"

func fileDisk(path, format string) string {
	return fmt.Sprintf("<disk type='file' device='disk'><driver name='qemu' type='%s'/><source file='%s'/><target dev='vda' bus='virtio'/></disk>", format, path)
}

// nic is an interface where the subject's domains are.
func (b *bench) nic(mac string) string {
	if b.s.Bridge != "" {
		return fmt.Sprintf("<interface type='bridge'><mac address='%s'/><source bridge='%s'/><model type='virtio'/></interface>", mac, b.s.Bridge)
	}
	return fmt.Sprintf("<interface type='network'><mac address='%s'/><source network='%s'/><model type='virtio'/></interface>", mac, b.s.Network)
}

// define makes a domain that goes with the test; name and UUID are given when
// they are missing.
func (b *bench) define(s shape) virt.Domain {
	b.Helper()
	if s.name == "" {
		s.name = b.name("dom")
	}
	if s.uuid == "" {
		s.uuid = newUUID()
	}
	d, err := b.c.DomainDefineXML(b.ctx, b.doc(s))
	b.ok("defining a domain", err)
	b.forget(d)
	return d
}

// forget takes a domain away at the test's end, however it is then.
func (b *bench) forget(d virt.Domain) {
	b.Cleanup(func() {
		ctx, cancel := after(b.T)
		defer cancel()
		gone := func(err error) bool { return err == nil || virt.Is(err, virt.CodeNoDomain) }
		err := b.c.DomainUndefineFlags(ctx, d, virt.UndefineNVRAM)
		if !gone(err) && !virt.Is(err, virt.CodeOperationInvalid) {
			b.Errorf("undefining %s after the test: %v", d.Name, err)
		}
		err = b.c.DomainDestroy(ctx, d)
		if !gone(err) && !virt.Is(err, virt.CodeOperationInvalid) {
			b.Errorf("destroying %s after the test: %v", d.Name, err)
		}
	})
}

// wantsState fails unless the domain is in that state, and the reason one of
// those.
func (b *bench) wantsState(d virt.Domain, want virt.State, reasons ...virt.Reason) {
	b.Helper()
	s, r, err := b.c.DomainGetState(b.ctx, d)
	b.ok("the state", err)
	fits := len(reasons) == 0
	for _, w := range reasons {
		fits = fits || w == r
	}
	if s != want || !fits {
		b.Errorf("state %d, reason %d, want %d, %v", s, r, want, reasons)
	}
}

func (b *bench) wantsMetadata(d virt.Domain, want string) {
	b.Helper()
	got, err := b.c.DomainGetMetadata(b.ctx, d)
	b.ok("the metadata", err)
	if got != want {
		b.Errorf("metadata %q, want %q", got, want)
	}
}
