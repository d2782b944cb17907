package virttest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantClass(t *testing.T, what string, err error, want fault.Class) {
	t.Helper()
	if got := fault.Of(err); got != want {
		t.Errorf("%s: class %q, want %q: %v", what, got, want, err)
	}
}

const mac = "52:54:00:aa:00:01"

// guest is a domain on the network with an agent's channel and one disk.
func guest(name, disk string) string {
	return fmt.Sprintf(`<domain type='kvm'><name>%s</name><metadata><f:instance xmlns:f='%s' n='1'/></metadata><memory>65536</memory>
<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/var/lib/libvirt/images/%s'/><target dev='vda'/></disk>
<interface type='network'><mac address='%s'/><source network='default'/></interface>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel></devices></domain>`, name, virt.MetadataNamespace, disk, mac)
}

// running is a host with the guest "vm" running, and a link to it.
func running(t *testing.T) (*virttest.Host, link.Link, virt.Domain) {
	t.Helper()
	h := virttest.NewHost("box-1")
	h.PlantVolume(virttest.DefaultPool, "vm.qcow2", "qcow2", virttest.Qcow2(1<<20))
	ok(t, h.PlantDomain(guest("vm", "vm.qcow2"), true))
	l := h.Link()
	d, err := l.DomainLookupByName(t.Context(), "vm")
	ok(t, err)
	return h, l, d
}

func volume(t *testing.T, c virt.Conn, name string) virt.Volume {
	t.Helper()
	p, err := c.StoragePoolLookupByName(t.Context(), virttest.DefaultPool)
	ok(t, err)
	v, err := c.StorageVolCreateXML(t.Context(), p, "<volume><name>"+name+"</name><capacity>0</capacity></volume>")
	ok(t, err)
	return v
}

func version(ctx context.Context, c virt.Conn) error {
	_, err := c.ConnectGetLibVersion(ctx)
	return err
}

func TestBrokenHost(t *testing.T) {
	h := virttest.NewHost("box-1")
	d := &virttest.Dialer{Hosts: map[string]*virttest.Host{"box-1": h}}
	l, err := d.Dial(t.Context(), "box-1")
	ok(t, err)
	if h.Links() != 1 {
		t.Errorf("%d links", h.Links())
	}
	h.Break()
	<-l.Done()
	wantClass(t, "why it ended", l.Err(), fault.Unavailable)
	wantClass(t, "a call", version(t.Context(), l), fault.Unavailable)
	wantClass(t, "a call on a new link", version(t.Context(), h.Link()), fault.Unavailable)
	_, err = d.Dial(t.Context(), "box-1")
	wantClass(t, "a dial", err, fault.Unavailable)
	if de, is := errors.AsType[*link.DialError](err); !is || de.Stage != link.StageTCP || de.Host != "box-1" {
		t.Errorf("the dial's error: %#v", err)
	}
	h.Mend()
	l, err = d.Dial(t.Context(), "box-1")
	ok(t, err)
	ok(t, version(t.Context(), l))
	h.DropLinks()
	<-l.Done()
	l, err = d.Dial(t.Context(), "box-1")
	ok(t, err)
	ok(t, l.Close())
	if h.Links() != 0 {
		t.Errorf("%d links after Close", h.Links())
	}
}

func TestDials(t *testing.T) {
	h := virttest.NewHost("box-1")
	d := &virttest.Dialer{Hosts: map[string]*virttest.Host{"box-1": h}}
	_, err := d.Dial(t.Context(), "box-2")
	wantClass(t, "an unknown host", err, fault.Permanent)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = d.Dial(over, "box-1"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled dial: %v", err)
	}
	h.FailDials(&link.DialError{Host: "box-1", Stage: link.StageSSH, Err: fault.New(fault.Denied, "no")})
	_, err = d.Dial(t.Context(), "box-1")
	if de, is := errors.AsType[*link.DialError](err); !is || de.Stage != link.StageSSH || fault.Of(err) != fault.Denied {
		t.Errorf("a dial that was to fail: %v", err)
	}
	h.FailDials(fault.New(fault.Timeout, "slow"))
	_, err = d.Dial(t.Context(), "box-1")
	if de, is := errors.AsType[*link.DialError](err); !is || de.Stage != link.StageTCP || fault.Of(err) != fault.Timeout {
		t.Errorf("a dial that was to fail: %v", err)
	}
	h.Mend()
	_, err = d.Dial(t.Context(), "box-1")
	ok(t, err)
}

func TestMuteHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l, d := running(t)
		h.Mute()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		wantClass(t, "a call to a mute host", l.DomainDestroy(ctx, d), fault.Timeout)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("it took %v", took)
		}
		select {
		case <-l.Done():
			t.Error("its link ended")
		default:
		}
		done := make(chan error, 1)
		go func() { done <- version(t.Context(), l) }()
		synctest.Wait()
		h.Mend()
		ok(t, <-done)
		if h.Domains()[0].State != virt.StateRunning {
			t.Error("a call that was given up was done all the same")
		}
		h.Mute()
		go func() { done <- version(t.Context(), l) }()
		synctest.Wait()
		ok(t, l.Close())
		wantClass(t, "a call that waited when the link was closed", <-done, fault.Unavailable)
		l = h.Link()
		go func() { done <- version(t.Context(), l) }()
		synctest.Wait()
		h.Break()
		wantClass(t, "a call that waited when the host broke", <-done, fault.Unavailable)
	})
}

func TestHangAndMuteAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l, d := running(t)
		h.Hang("DomainDestroy")
		ok(t, version(t.Context(), l))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantClass(t, "what hangs", l.DomainDestroy(ctx, d), fault.Timeout)
		h.Mend()
		h.MuteAnswers("virDomainDestroy")
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantClass(t, "whose answer does not come", l.DomainDestroy(ctx, d), fault.Timeout)
		if h.Domains()[0].State != virt.StateShutoff {
			t.Error("it was not done")
		}
		h.Mend()
		h.Slow(time.Second)
		start := time.Now()
		ok(t, version(t.Context(), l))
		if took := time.Since(start); took != time.Second {
			t.Errorf("a slow call took %v", took)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		wantClass(t, "a slow call in a hurry", version(ctx, l), fault.Timeout)
	})
}

func TestPlannedFailures(t *testing.T) {
	h, l, d := running(t)
	first, second := fault.New(fault.Quota, "first"), virt.Fault(virt.CodeResourceBusy, "second")
	h.FailNext("DomainDestroy", first)
	h.FailNext("virDomainDestroy", second)
	h.FailKth("DomainGetState", 2, first)
	if err := l.DomainDestroy(t.Context(), d); !errors.Is(err, first) {
		t.Errorf("the first: %v", err)
	}
	if err := l.DomainDestroy(t.Context(), d); !errors.Is(err, second) {
		t.Errorf("the second: %v", err)
	}
	for i, want := range []error{nil, first, nil} {
		if _, _, err := l.DomainGetState(t.Context(), d); !errors.Is(err, want) {
			t.Errorf("state %d: %v, want %v", i, err, want)
		}
	}
	h.FailKth("", 3, second)
	for i, want := range []error{nil, nil, second, nil} {
		if err := version(t.Context(), l); !errors.Is(err, want) {
			t.Errorf("call %d: %v, want %v", i, err, want)
		}
	}
	if h.Domains()[0].State != virt.StateRunning {
		t.Error("a call that failed was done")
	}
	want := map[string]int{"virDomainLookupByName": 1, "virDomainDestroy": 2, "virDomainGetState": 3, "virConnectGetLibVersion": 4}
	if diff := cmp.Diff(want, h.Calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	h.ResetCalls()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	wantClass(t, "a call of a context that ended", version(over, l), fault.Transient)
	if n := len(h.Calls()); n != 0 {
		t.Errorf("%d after ResetCalls and a call that was never sent", n)
	}
}

func TestHooks(t *testing.T) {
	h, l, d := running(t)
	var seen []string
	boom := errors.New("boom")
	h.OnCall(func(rpc string) error {
		seen = append(seen, rpc)
		_ = h.Domains() // the host is not locked
		return boom
	})
	if err := l.DomainDestroy(t.Context(), d); !errors.Is(err, boom) || h.Domains()[0].State != virt.StateRunning {
		t.Errorf("before: %v, %+v", err, h.Domains()[0])
	}
	ctx, cancel := context.WithCancel(t.Context())
	h.OnCall(func(string) error { cancel(); return nil })
	if err := l.DomainDestroy(ctx, d); !errors.Is(err, context.Canceled) || h.Domains()[0].State != virt.StateRunning {
		t.Errorf("cancelled before: %v, %+v", err, h.Domains()[0])
	}
	h.OnCall(nil)
	ctx, cancel = context.WithCancel(t.Context())
	h.OnDone(func(rpc string) error { seen = append(seen, rpc); cancel(); return nil })
	if err := l.DomainDestroy(ctx, d); !errors.Is(err, context.Canceled) || h.Domains()[0].State != virt.StateShutoff {
		t.Errorf("cancelled after: %v, %+v", err, h.Domains()[0])
	}
	h.OnDone(func(string) error { return boom })
	if err := l.DomainCreate(t.Context(), d); !errors.Is(err, boom) || h.Domains()[0].State != virt.StateRunning {
		t.Errorf("after: %v, %+v", err, h.Domains()[0])
	}
	h.OnDone(nil)
	ok(t, version(t.Context(), l))
	if diff := cmp.Diff([]string{"virDomainDestroy", "virDomainDestroy"}, seen); diff != "" {
		t.Error(diff)
	}
}

// give reads as x for n bytes.
func give(n int64) io.Reader { return io.LimitReader(xs{}, n) }

type xs struct{}

func (xs) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestUploadFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := virttest.NewHost("box-1")
		l := h.Link()
		v := volume(t, l, "v")
		boom := errors.New("boom")
		h.OnUpload(func(u virttest.Upload) error {
			if u.Pool != "default" || u.Volume != "v" {
				t.Errorf("%+v", u)
			}
			if u.Accepted >= 2*virt.UploadChunk {
				return boom
			}
			return nil
		})
		if err := l.StorageVolUpload(t.Context(), v, give(1<<20), 0); !errors.Is(err, boom) {
			t.Errorf("a failure in mid-stream: %v", err)
		}
		if n := len(h.Content("default", "v")); n != 2*virt.UploadChunk {
			t.Errorf("%d bytes stay", n)
		}
		h.OnUpload(nil)
		h.StallUploads(3 * virt.UploadChunk)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		wantClass(t, "a stalled upload", l.StorageVolUpload(ctx, v, give(1<<20), 0), fault.Timeout)
		done := make(chan error, 1)
		go func() { done <- l.StorageVolUpload(t.Context(), v, give(1<<20), 0) }()
		synctest.Wait()
		if n := len(h.Content("default", "v")); n != 3*virt.UploadChunk {
			t.Errorf("it stalls at %d bytes", n)
		}
		ok(t, version(t.Context(), l))
		h.Mend()
		ok(t, <-done)
		if !bytes.Equal(h.Content("default", "v"), bytes.Repeat([]byte("x"), 1<<20)) {
			t.Error("the bytes are others")
		}
		h.StallUploads(0)
		go func() { done <- l.StorageVolUpload(t.Context(), v, give(1<<20), 0) }()
		synctest.Wait()
		h.Break()
		wantClass(t, "an upload when the host breaks", <-done, fault.Unavailable)
	})
}

func TestFullPool(t *testing.T) {
	h := virttest.NewHost("box-1")
	l := h.Link()
	v := volume(t, l, "v")
	h.FillPool(100_000)
	p, err := l.StoragePoolLookupByName(t.Context(), "default")
	ok(t, err)
	if i, err := l.StoragePoolGetInfo(t.Context(), p); err != nil || i.Available != 100_000 || i.Capacity != 100<<30 || i.Allocation != i.Capacity-i.Available {
		t.Errorf("%+v, %v", i, err)
	}
	err = l.StorageVolUpload(t.Context(), v, give(1<<20), 0)
	wantClass(t, "an upload", err, fault.Quota)
	if n := len(h.Content("default", "v")); n != 100_000 {
		t.Errorf("%d bytes stay", n)
	}
	h.FillPool(10)
	// Libvirt writes behind what it accepts: the end is lost without an error.
	w := volume(t, l, "w")
	ok(t, l.StorageVolUpload(t.Context(), w, give(1000), 1000))
	if i, err := l.StorageVolGetInfo(t.Context(), w); err != nil || i.Physical != 10 {
		t.Errorf("%+v, %v", i, err)
	}
	h.FillPool(1 << 20)
	ok(t, l.StorageVolUpload(t.Context(), w, give(1000), 1000))
	// Bytes that are there already take no more space.
	h.FillPool(0)
	ok(t, l.StorageVolUpload(t.Context(), w, give(1000), 1000))
}

func TestPools(t *testing.T) {
	h, l, d := running(t)
	p, err := l.StoragePoolLookupByName(t.Context(), "default")
	ok(t, err)
	v, err := l.StorageVolLookupByName(t.Context(), p, "vm.qcow2")
	ok(t, err)
	h.ChangePool("default", func(p *virttest.Pool) { p.State = virt.PoolInactive })
	i, err := l.StoragePoolGetInfo(t.Context(), p)
	if err != nil || i != (virt.PoolInfo{}) {
		t.Errorf("an inactive pool has %+v, %v", i, err)
	}
	_, err = l.StoragePoolGetXMLDesc(t.Context(), p)
	ok(t, err)
	calls := map[string]func() error{
		"list":   func() error { _, err := l.StoragePoolListAllVolumes(t.Context(), p); return err },
		"lookup": func() error { _, err := l.StorageVolLookupByName(t.Context(), p, "vm.qcow2"); return err },
		"info":   func() error { _, err := l.StorageVolGetInfo(t.Context(), v); return err },
		"path":   func() error { _, err := l.StorageVolGetPath(t.Context(), v); return err },
		"upload": func() error { return l.StorageVolUpload(t.Context(), v, give(1), 0) },
		"create": func() error {
			_, err := l.StorageVolCreateXML(t.Context(), p, "<volume><name>n</name><capacity>0</capacity></volume>")
			return err
		},
		"delete": func() error { return l.StorageVolDelete(t.Context(), v) },
	}
	for what, call := range calls {
		if err := call(); !virt.Is(err, virt.CodeOperationInvalid) || fault.Of(err) == fault.NotFound {
			t.Errorf("%s in an inactive pool: %v", what, err)
		}
	}
	h.RemovePool("default")
	for what, call := range calls {
		if err := call(); !virt.Is(err, virt.CodeNoStoragePool) {
			t.Errorf("%s in a pool that is gone: %v", what, err)
		}
	}
	if s, _, err := l.DomainGetState(t.Context(), d); err != nil || s != virt.StateRunning {
		t.Errorf("the guest: %v, %v", s, err)
	}
	h.SetPool(virttest.Pool{Name: "lv", Type: "logical", Path: "/dev/vg", State: virt.PoolRunning, Capacity: 1 << 30})
	p, err = l.StoragePoolLookupByName(t.Context(), "lv")
	ok(t, err)
	if text, err := l.StoragePoolGetXMLDesc(t.Context(), p); err != nil || !strings.Contains(text, "<pool type='logical'>") {
		t.Errorf("%s, %v", text, err)
	}
}

func TestWhatAHostOffers(t *testing.T) {
	h := virttest.NewHost("box-1")
	h.PlantVolume("default", "vm.qcow2", "qcow2", virttest.Qcow2(1<<20))
	l := h.Link()
	h.Offer("qemu")
	_, err := l.DomainDefineXML(t.Context(), guest("vm", "vm.qcow2"))
	if !virt.Is(err, virt.CodeConfigUnsupported) {
		t.Errorf("type kvm without KVM: %v", err)
	}
	if _, err := l.ConnectGetDomainCapabilities(t.Context(), "kvm"); !virt.Is(err, virt.CodeInvalidArg) {
		t.Errorf("capabilities of kvm without KVM: %v", err)
	}
	if text, err := l.ConnectGetCapabilities(t.Context()); err != nil || strings.Contains(text, "'kvm'") {
		t.Errorf("%v: %s", err, text)
	}
	h.Offer("qemu", "kvm")
	d, err := l.DomainDefineXML(t.Context(), guest("vm", "vm.qcow2"))
	ok(t, err)
	h.Firmware(false)
	if err := l.DomainCreate(t.Context(), d); !virt.Is(err, virt.CodeOperationFailed) {
		t.Errorf("a start without firmware: %v", err)
	}
	if text, err := l.ConnectGetDomainCapabilities(t.Context(), "kvm"); err != nil || strings.Contains(text, "<value>efi") {
		t.Errorf("%v: %s", err, text)
	}
	h.Firmware(true)
	h.SetNetwork("default", false)
	if err := l.DomainCreate(t.Context(), d); !virt.Is(err, virt.CodeOperationInvalid) {
		t.Errorf("a start on an inactive network: %v", err)
	}
	if active, err := l.NetworkLookupByName(t.Context(), "default"); err != nil || active {
		t.Errorf("the network: %v, %v", active, err)
	}
	h.RemoveNetwork("default")
	err = l.DomainCreate(t.Context(), d)
	if !virt.Is(err, virt.CodeNoNetwork) || fault.Of(err) == fault.NotFound {
		t.Errorf("a start without its network: %v", err)
	}
	h.SetNetwork("default", true)
	ok(t, l.DomainCreate(t.Context(), d))
}

func TestAppArmor(t *testing.T) {
	h := virttest.NewHost("box-1")
	h.PlantVolume("default", "v", "qcow2", virttest.Qcow2(1<<20))
	l := h.Link()
	doc := strings.Replace(guest("vm", "v"), "type='file' device", "type='volume' device", 1)
	doc = strings.Replace(doc, "<source file='/var/lib/libvirt/images/v'/>", "<source pool='default' volume='v'/>", 1)
	d, err := l.DomainDefineXML(t.Context(), doc)
	ok(t, err)
	h.AppArmor(true)
	if err := l.DomainCreate(t.Context(), d); !virt.Is(err, virt.CodeInternalError) || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("a disk by its volume: %v", err)
	}
	h.AppArmor(false)
	ok(t, l.DomainCreate(t.Context(), d))
}

func TestStartedFrom(t *testing.T) {
	h := virttest.NewHost("box-1")
	l := h.Link()
	base := virttest.Qcow2(1 << 20)
	h.PlantVolume("default", "base", "qcow2", base)
	p, err := l.StoragePoolLookupByName(t.Context(), "default")
	ok(t, err)
	_, err = l.StorageVolCreateXML(t.Context(), p, "<volume><name>over</name><capacity>2097152</capacity><target><format type='qcow2'/></target>"+
		"<backingStore><path>/var/lib/libvirt/images/base</path><format type='qcow2'/></backingStore></volume>")
	ok(t, err)
	if h.StartedFrom("vm") != nil {
		t.Error("a domain that is not there was started")
	}
	ok(t, h.PlantDomain(guest("vm", "over"), true))
	sum := h.Volumes("default")[0].SHA256
	got := h.StartedFrom("vm")
	if len(got) != 2 || got[0].Volume != "over" || got[0].Depth != 0 || got[1].Volume != "base" || got[1].Depth != 1 ||
		got[1].SHA256 != sum || got[1].Size != uint64(len(base)) || got[1].Target != "vda" {
		t.Errorf("%+v, base is %s", got, sum)
	}
	want := virttest.Volume{
		Name: "over", Path: "/var/lib/libvirt/images/over", Format: "qcow2", Capacity: 2 << 20, Physical: 196616,
		Backing: "/var/lib/libvirt/images/base", BackingFormat: "qcow2", SHA256: h.Volumes("default")[1].SHA256,
	}
	if diff := cmp.Diff(want, h.Volumes("default")[1]); diff != "" {
		t.Error(diff)
	}
	h.PlantVolume("default", "base", "qcow2", virttest.Qcow2(2<<20))
	if h.StartedFrom("vm")[1].SHA256 != sum {
		t.Error("it is what is there now, not what it was")
	}
}

func TestAddresses(t *testing.T) {
	h, l, d := running(t)
	lease := h.Domains()[0]
	ask := func(s virt.AddressSource) ([]virt.Interface, error) {
		t.Helper()
		return l.DomainInterfaceAddresses(t.Context(), d, s)
	}
	first := func(s virt.AddressSource) string {
		t.Helper()
		in, err := ask(s)
		ok(t, err)
		if len(in) == 0 || len(in[0].Addresses) == 0 {
			return ""
		}
		return in[0].MAC + " " + in[0].Addresses[0].IP
	}
	was := first(virt.FromLease)
	if ip, err := netip.ParseAddr(strings.TrimPrefix(was, mac+" ")); err != nil || !netip.MustParsePrefix("10.0.0.0/8").Contains(ip) {
		t.Errorf("the lease is %q of %+v", was, lease)
	}
	ok(t, h.RestartDomain("vm"))
	if now := first(virt.FromLease); now != was {
		t.Errorf("a restart changed %s to %s", was, now)
	}
	if _, err := ask(virt.FromAgent); !virt.Is(err, virt.CodeAgentUnresponsive) {
		t.Errorf("an agent that is not connected: %v", err)
	}
	h.Connect("vm")
	if in, err := ask(virt.FromAgent); err != nil || len(in) != 2 || in[0].Name != "lo" || in[1].MAC != mac {
		t.Errorf("the agent: %+v, %v", in, err)
	}
	h.Addresses(virttest.WithContainers(virttest.Usual))
	if in, err := ask(virt.FromAgent); err != nil || in[0].Name != "docker0" || in[0].MAC == mac {
		t.Errorf("with containers: %+v, %v", in, err)
	}
	if got := first(virt.FromLease); got != was {
		t.Errorf("with containers, the lease: %s", got)
	}
	h.Silence("vm")
	if _, err := ask(virt.FromAgent); !virt.Is(err, virt.CodeAgentUnresponsive) {
		t.Errorf("a silent agent: %v", err)
	}
	h.BreakARP(true)
	if _, err := ask(virt.FromARP); !virt.Is(err, virt.CodeInternalError) {
		t.Errorf("ARP: %v", err)
	}
	h.BreakARP(false)
	if got := first(virt.FromARP); got != was {
		t.Errorf("ARP has %q", got)
	}
	h.Addresses(virttest.Late(2, virttest.Usual))
	for i, want := range []string{"", "", was, was} {
		if got := first(virt.FromLease); got != want {
			t.Errorf("late %d: %q, want %q", i, got, want)
		}
	}
	h.Addresses(virttest.Flapping(virttest.Usual))
	for i, want := range []string{was, "", was, ""} {
		if got := first(virt.FromLease); got != want {
			t.Errorf("flapping %d: %q, want %q", i, got, want)
		}
	}
	h.Addresses(virttest.OnlyFrom(virt.FromAgent, virttest.Fixed("fe80::7", "2001:db8::7")))
	if got := first(virt.FromLease); got != "" {
		t.Errorf("only from the agent: the lease has %s", got)
	}
	if got := first(virt.FromAgent); got != mac+" fe80::7" {
		t.Errorf("only from the agent: %q", got)
	}
	h.Addresses(virttest.OnlyFrom(virt.FromLease, virttest.Fixed("192.0.2.7")))
	if _, err := ask(virt.FromAgent); !virt.Is(err, virt.CodeAgentUnresponsive) {
		t.Errorf("only from the lease, the agent: %v", err)
	}
}

// Each interface of a host has an address of its own.
func TestAddressesAreUnique(t *testing.T) {
	h := virttest.NewHost("box-1")
	l := h.Link()
	seen := map[string]bool{}
	for i := range 300 {
		doc := fmt.Sprintf("<domain type='qemu'><name>vm%d</name><memory>1</memory><os><type>hvm</type></os><devices>"+
			"<interface type='bridge'><source bridge='br0'/></interface></devices></domain>", i)
		ok(t, h.PlantDomain(doc, true))
		d, err := l.DomainLookupByName(t.Context(), fmt.Sprintf("vm%d", i))
		ok(t, err)
		if in, err := l.DomainInterfaceAddresses(t.Context(), d, virt.FromLease); err != nil || len(in) != 0 {
			t.Fatalf("a lease on a bridge: %+v, %v", in, err)
		}
		in, err := l.DomainInterfaceAddresses(t.Context(), d, virt.FromARP)
		ok(t, err)
		seen[in[0].Addresses[0].IP], seen[in[0].MAC] = true, true
	}
	if len(seen) != 600 {
		t.Errorf("%d different ones", len(seen))
	}
}

func TestLooksAndPranks(t *testing.T) {
	h, l, d := running(t)
	state := func(s virt.State, r virt.Reason) {
		t.Helper()
		if gs, gr, err := l.DomainGetState(t.Context(), d); err != nil || gs != s || gr != r {
			t.Errorf("state %d, %d, %v, want %d, %d", gs, gr, err, s, r)
		}
	}
	h.PauseDomain("vm", virt.PausedIOError)
	state(virt.StatePaused, virt.PausedIOError)
	h.ResumeDomain("vm")
	state(virt.StateRunning, 5)
	undo := h.CorruptMetadata("vm")
	if m, err := l.DomainGetMetadata(t.Context(), d); err != nil || !strings.Contains(m, "broken") {
		t.Errorf("%s, %v", m, err)
	}
	undo()
	if m, err := l.DomainGetMetadata(t.Context(), d); err != nil || m != `<instance n="1"/>` {
		t.Errorf("%s, %v", m, err)
	}
	h.StopDomain("vm")
	h.CorruptMetadata("vm")()
	if m, err := l.DomainGetMetadata(t.Context(), d); err != nil || m != `<instance n="1"/>` {
		t.Errorf("when it is off: %s, %v", m, err)
	}
	ok(t, l.DomainCreate(t.Context(), d))
	h.SetMetadata("vm", "")
	if _, err := l.DomainGetMetadata(t.Context(), d); !virt.Is(err, virt.CodeNoDomainMetadata) {
		t.Errorf("no metadata: %v", err)
	}
	if diff := cmp.Diff([]string{"vm"}, h.NVRAM()); diff != "" {
		t.Error(diff)
	}
	h.StopDomain("vm")
	state(virt.StateShutoff, 1)
	ok(t, l.DomainCreate(t.Context(), d))
	h.SaveDomain("vm")
	state(virt.StateShutoff, 5)
	if err := l.DomainUndefineFlags(t.Context(), d, virt.UndefineNVRAM); !virt.Is(err, virt.CodeOperationInvalid) {
		t.Errorf("undefine of a saved one: %v", err)
	}
	ok(t, l.DomainCreate(t.Context(), d))
	state(virt.StateRunning, 3)
	h.StopDomain("vm")
	h.SnapshotDomain("vm", 1, 1)
	all := virt.UndefineNVRAM | virt.UndefineSnapshotsMetadata | virt.UndefineCheckpointsMetadata
	for _, but := range []virt.UndefineFlags{virt.UndefineSnapshotsMetadata, virt.UndefineCheckpointsMetadata} {
		if err := l.DomainUndefineFlags(t.Context(), d, all&^but); !virt.Is(err, virt.CodeOperationInvalid) {
			t.Errorf("undefine without %d: %v", but, err)
		}
	}
	h.RemoveDomain("vm")
	if len(h.Domains()) != 0 || len(h.Volumes("default")) != 0 || len(h.NVRAM()) != 0 {
		t.Errorf("left: %+v, %+v, %v", h.Domains(), h.Volumes("default"), h.NVRAM())
	}
}

func TestForeign(t *testing.T) {
	for name, touch := range map[string]func(h *virttest.Host, l link.Link, d virt.Domain){
		"nothing":   nil,
		"destroyed": func(_ *virttest.Host, l link.Link, d virt.Domain) { ok(t, l.DomainDestroy(t.Context(), d)) },
		"undefined": func(_ *virttest.Host, l link.Link, d virt.Domain) {
			ok(t, l.DomainUndefineFlags(t.Context(), d, virt.UndefineNVRAM))
		},
		"marked": func(_ *virttest.Host, l link.Link, d virt.Domain) {
			ok(t, l.DomainSetMetadata(t.Context(), d, "<instance/>"))
		},
		"restarted": func(h *virttest.Host, _ link.Link, _ virt.Domain) { ok(t, h.RestartDomain("theirs")) },
		"volume deleted": func(_ *virttest.Host, l link.Link, _ virt.Domain) {
			ok(t, l.StorageVolDelete(t.Context(), virt.Volume{Pool: "default", Name: "theirs.qcow2"}))
		},
		"volume written": func(_ *virttest.Host, l link.Link, _ virt.Domain) {
			ok(t, l.StorageVolUpload(t.Context(), virt.Volume{Pool: "default", Name: "theirs.qcow2"}, give(1), 0))
		},
	} {
		h := virttest.NewHost("box-1")
		h.Foreign("theirs", "more")
		l := h.Link()
		d, err := l.DomainLookupByName(t.Context(), "theirs")
		ok(t, err)
		if touch != nil {
			touch(h, l, d)
		}
		if err := h.Untouched(); (err == nil) != (touch == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Addresses come from MACs by a hash; these two have the same.
func TestAddressesThatCollide(t *testing.T) {
	h := virttest.NewHost("box-1")
	l := h.Link()
	seen := map[string]bool{}
	for _, m := range []string{"52:54:00:00:0a:38", "52:54:00:00:0b:9b"} {
		doc := "<domain type='qemu'><name>vm-" + m + "</name><memory>1</memory><os><type>hvm</type></os><devices>" +
			"<interface type='network'><mac address='" + m + "'/><source network='default'/></interface></devices></domain>"
		ok(t, h.PlantDomain(doc, true))
		d, err := l.DomainLookupByName(t.Context(), "vm-"+m)
		ok(t, err)
		in, err := l.DomainInterfaceAddresses(t.Context(), d, virt.FromLease)
		ok(t, err)
		seen[in[0].Addresses[0].IP] = true
	}
	if len(seen) != 2 {
		t.Errorf("two interfaces have %v", seen)
	}
}

// Each host is a world of its own, and all its faults and looks may be used at
// once.
func TestHostsAtOnce(t *testing.T) {
	hosts := map[string]*virttest.Host{}
	for i := range 3 {
		name := fmt.Sprintf("box-%d", i)
		hosts[name] = virttest.NewHost(name)
	}
	d := &virttest.Dialer{Hosts: hosts}
	var wg sync.WaitGroup
	for name, h := range hosts {
		for i := range 4 {
			wg.Go(func() {
				for j := range 20 {
					l, err := d.Dial(t.Context(), name)
					if err != nil {
						continue
					}
					vol := fmt.Sprintf("v-%d-%d", i, j)
					h.PlantVolume("default", vol, "qcow2", virttest.Qcow2(1<<20))
					_ = h.PlantDomain(strings.Replace(guest(vol, vol), mac, fmt.Sprintf("52:54:00:aa:%02x:%02x", i, j), 1), true)
					_, _ = l.ConnectGetAllDomainStats(t.Context())
					_ = l.StorageVolUpload(t.Context(), virt.Volume{Pool: "default", Name: vol}, give(200_000), 0)
					_, _, _, _, _ = h.Domains(), h.Volumes("default"), h.Content("default", vol), h.StartedFrom(vol), h.Calls()
					if i == 0 && j%5 == 0 {
						h.Break()
						h.Mend()
					}
					_ = l.Close()
				}
			})
		}
	}
	wg.Wait()
	for name, h := range hosts {
		ids := map[int32]bool{}
		for _, d := range h.Domains() {
			ids[d.ID] = true
		}
		if n := len(h.Domains()); n == 0 || len(ids) != n {
			t.Errorf("%s: %d domains, %d numbers", name, n, len(ids))
		}
	}
}

func TestQcow2(t *testing.T) {
	b := virttest.Qcow2(3 << 30)
	if !bytes.HasPrefix(b, []byte("QFI\xfb\x00\x00\x00\x03")) || slices.Contains(b[8:16], 1) {
		t.Errorf("its header begins with %x", b[:16])
	}
}
