package kvm_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// What people and other programs do on a host, and to the configuration, while
// machines run.

// A network that was undefined is not found; the machine on it is, and runs.
// Were it taken for gone, the reconciler would make it anew.
func TestAnUndefinedNetworkIsNoVanishedMachine(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	in := up(t, p, s)
	h.RemoveNetwork("default")
	h.Addresses(func(g virttest.Guest, src virt.AddressSource) ([]virt.Interface, error) {
		if src == virt.FromLease {
			return nil, virt.Fault(virt.CodeNoNetwork, "Network not found: no network with matching name 'default'")
		}
		return virttest.Usual(g, src)
	})
	m.advance(2 * time.Minute) // addresses are due to be read again
	rows, err := p.ListByTag(t.Context(), tag)
	if err != nil || rows[0].Err != nil || len(rows[0].Instances) != 1 || rows[0].Instances[0].State != provider.Running {
		t.Errorf("listed as %+v, %v", rows, err)
	}
	if got, err := p.Get(t.Context(), provider.Ref{ID: in.ID, Owner: s.Owner, Host: "box-1"}); err != nil || got.State != provider.Running {
		t.Errorf("Get = %+v, %v", got, err)
	}
}

// virt-clone takes the metadata along: the clone is not the machine.
func TestACloneIsNotTheMachine(t *testing.T) {
	const other = "ffffffff-1111-4222-8333-444444444444"
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	in := up(t, p, s)
	clone := strings.NewReplacer(domain.UUIDOf(s.Owner), other, "<name>fd-", "<name>zz-", domain.MACOf(s.Owner), "52:54:00:11:22:33").Replace(h.Domains()[0].XML)
	if err := h.PlantDomain(clone, false); err != nil {
		t.Fatal(err)
	}
	for what, one := range map[string]provider.Provider{"the same operator": p, "a new one": m.open(t)} {
		rows, err := one.ListByTag(t.Context(), tag)
		if err != nil || len(rows[0].Instances) != 1 || rows[0].Instances[0].ID != in.ID {
			t.Errorf("%s lists %+v, %v", what, rows, err)
		}
	}
	if _, err := p.Get(t.Context(), provider.Ref{ID: "kvm://home/box-1/" + other, Owner: s.Owner}); fault.Of(err) != fault.Conflict {
		t.Errorf("Get by the clone's id: %v; want Conflict", err)
	}
	down(t, p, ref(s))
	if left := h.Domains(); len(left) != 1 || left[0].UUID != other {
		t.Errorf("left: %+v; want the clone", left)
	}
}

// libvirt-provider 709: a machine that was undefined while it runs is transient.
// It is removed like any other, and works until then.
func TestATransientDomainIsRemoved(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	c := h.Link()
	if err := c.DomainUndefineFlags(t.Context(), h.Domains()[0].Domain, virt.UndefineNVRAM); err != nil {
		t.Fatal(err)
	}
	h.Addresses(virttest.Fixed("192.0.2.77")) // a new address has nowhere to be kept
	if in, err := p.Create(t.Context(), s); err != nil || in.Address != "192.0.2.77" {
		t.Errorf("Create = %+v, %v", in, err)
	}
	if st, err := p.Delete(t.Context(), ref(s)); err != nil || st != provider.Gone {
		t.Errorf("Delete = %s, %v", st, err)
	}
	if left := m.parts(s.Owner); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A leader that was frozen between its look and its definition defines a
// machine as making that another one made and started meanwhile. Once it is
// off it is started from its own disk, which is not taken for unfinished.
func TestALateDefinitionKeepsTheDisk(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	old, p := m.open(t), m.open(t)
	up(t, p, m.spec("first", "box-1"))
	s := m.spec("a", "box-1")
	_, err := old.Create(provider.WithStepHook(t.Context(), func(step string) error {
		if step == "kvm: define" {
			up(t, p, s) // the new leader makes it meanwhile
		}
		return nil
	}), s)
	if fault.Of(err) != fault.Transient {
		t.Errorf("the old leader: %v; want Transient", err)
	}
	h.StopDomain(domain.NamesOf(s.Owner).Domain)
	h.OnCall(func(rpc string) error {
		if rpc == "virStorageVolDelete" {
			t.Error("a volume of a machine that was off was removed")
		}
		return nil
	})
	up(t, p, s)
}

// After a reboot of the host a domain may have the number that it had: its old
// address is not taken for today's, by whoever starts it.
func TestARebootOfTheHostForgetsAddresses(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, m *mem, p *kvm.Provider) provider.Provider{
		"the same operator": func(_ *testing.T, _ *mem, p *kvm.Provider) provider.Provider { return p },
		"a new operator":    func(t *testing.T, m *mem, _ *kvm.Provider) provider.Provider { return m.open(t) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			h.Addresses(virttest.Fixed("192.0.2.20"))
			p := m.open(t)
			s := m.spec("a", "box-1")
			up(t, p, s)
			h.Reboot()
			h.Addresses(nobody) // the guest boots
			q := again(t, m, p)
			for range 2 {
				if in, err := q.Create(t.Context(), s); err != nil || in.State != provider.Provisioning || in.Address != "" {
					t.Errorf("just started: %+v, %v", in, err)
				}
			}
			if rows, err := p.ListByTag(t.Context(), tag); err != nil || len(rows[0].Instances) != 1 || rows[0].Instances[0].State != provider.Provisioning {
				t.Errorf("the operator that knows its old address lists %+v, %v", rows, err)
			}
		})
	}
}

// A host that turns out to have no room for the image keeps nothing: the Proxy
// is free to go where there is room, and Place sends it there.
func TestAHostWithoutRoomForTheImageKeepsNothing(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	m.hosts["box-1"].FillPool(2 << 30)
	m.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(3<<30))
		_, _ = w.Write(m.image)
	})
	p := m.open(t)
	s := m.spec("a", "box-1")
	if err := failure(t, p, s); fault.Of(err) != fault.Quota {
		t.Fatalf("%s: %v; want Quota", fault.Of(err), err)
	}
	if left := m.parts(s.Owner); len(left) > 0 {
		t.Errorf("left on a host without room: %q", left)
	}
	if _, err := p.Get(t.Context(), ref(s)); fault.Of(err) != fault.NotFound {
		t.Errorf("Get: %v; want NotFound", err)
	}
	for i := range 8 {
		s := m.spec(fmt.Sprint("b", i), "")
		if host, err := p.Place(t.Context(), s); err != nil || host != "box-2" {
			t.Errorf("Place = %q, %v; want box-2", host, err)
		}
	}
}

// The operator stops within its grace period also while an upload runs to a
// host that has gone mute.
func TestCloseDoesNotWaitForAMuteHost(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.StallUploads(64 << 10)
	p, err := kvm.New(kvm.Options{Name: "home", Section: m.section, Dialer: &virttest.Dialer{Hosts: m.hosts}, StepLimit: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	m.uploading(t, p, m.spec("a", "box-1"))
	h.Mute()
	began := time.Now()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// uploading repeats Create until half a volume of an image is there.
func (m *mem) uploading(t *testing.T, p provider.Provider, s provider.Spec) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); len(m.halves(s.Host)) == 0; time.Sleep(time.Millisecond) {
		if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning || time.Now().After(end) {
			t.Fatalf("no upload begins: %+v, %v", in, err)
		}
	}
}

// maxInstances holds, however many are placed at once, and also for those that
// were placed before the bound was reached.
func TestMaxInstancesHolds(t *testing.T) {
	m := newMem(t, "box-1")
	c := m.section.Hosts["box-1"]
	c.MaxInstances = 1
	m.section.Hosts["box-1"] = c
	m.hosts["box-1"].Slow(time.Millisecond)
	p := m.open(t)
	var placed atomic.Int32
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			if _, err := p.Place(t.Context(), m.spec(fmt.Sprint("p", i), "")); err == nil {
				placed.Add(1)
			}
		})
	}
	wg.Wait()
	if placed.Load() != 1 {
		t.Errorf("%d were placed where 1 may be", placed.Load())
	}
	up(t, m.open(t), m.spec("q0", "box-1"))
	if _, err := m.open(t).Create(t.Context(), m.spec("q1", "box-1")); fault.Of(err) != fault.Quota || !strings.Contains(err.Error(), "maxInstances") {
		t.Errorf("one too many: %v; want Quota", err)
	}
}

// Many calls at a host are no reason to say in a listing that it is down.
func TestAListingNeedsNoSlot(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	h.Hang("DomainLookupByUUID")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var refused atomic.Int32
	for range 200 {
		wg.Go(func() {
			if _, err := p.Get(ctx, ref(s)); err != nil && strings.Contains(err.Error(), "calls run already") {
				refused.Add(1)
			}
		})
	}
	for end := time.Now().Add(10 * time.Second); refused.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the calls have no bound")
		}
	}
	if rows, err := p.ListByTag(t.Context(), tag); err != nil || rows[0].Err != nil || len(rows[0].Instances) != 1 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// Two providers on one box, one for its bridge and one for its network: the
// uploads of the one are no leftovers to the other.
func TestTwoProvidersOnOneBox(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.StallUploads(1)
	p, q := m.open(t), m.open(t, func(o *kvm.Options) { o.Name = "home-nat" })
	a, b := m.spec("a", "box-1"), m.spec("b", "box-1")
	m.uploading(t, p, a)
	for end := time.Now().Add(10 * time.Second); len(m.halves("box-1")) < 2; time.Sleep(time.Millisecond) {
		if in, err := q.Create(t.Context(), b); err != nil || in.State != provider.Provisioning || time.Now().After(end) {
			t.Fatalf("%+v, %v; halves %q", in, err, m.halves("box-1"))
		}
	}
	h.Mend()
	up(t, p, a)
	up(t, q, b)
	if left := m.halves("box-1"); len(left) > 0 || m.requests() != 2 {
		t.Errorf("halves %q, %d requests", left, m.requests())
	}
}

// The marker was made and its answer lost: the image is whole, and others use
// it already. What tidies up after the failed upload leaves it.
func TestALostAnswerDoesNotRemoveTheImage(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	m.setImage(append(virttest.Qcow2(2<<30), make([]byte, 4<<20)...))
	p, err := kvm.New(kvm.Options{Name: "home", Section: m.section, Dialer: &virttest.Dialer{Hosts: m.hosts}})
	if err != nil {
		t.Fatal(err)
	}
	var lost atomic.Bool
	h.OnDone(func(rpc string) error {
		marked := false
		for _, v := range h.Volumes("default") {
			marked = marked || strings.Contains(v.Name, ".verified-")
		}
		if rpc == "virStorageVolCreateXML" && marked && lost.CompareAndSwap(false, true) {
			return fault.New(fault.Unavailable, "the connection was lost")
		}
		return nil
	})
	m.uploading(t, p, m.spec("a", "box-1"))
	for end := time.Now().Add(10 * time.Second); !lost.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no answer was lost")
		}
	}
	_ = p.Close() // waits for what tidies up
	h.OnDone(nil)
	q := m.open(t)
	up(t, q, m.spec("a", "box-1"))
	if m.requests() != 1 {
		t.Errorf("the image was asked for %d times: the whole one was removed", m.requests())
	}
}

// What was half an image when an upload was wanted may be whole, and in use,
// when its turn comes.
func TestHalvesAreLookedAtWhenTheUploadBegins(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	next := m.section.Images["debian-13"]
	next.URL += "?next"
	m.section.DefaultImage, m.section.Images["next"] = "debian-13", next
	gate, asked := make(chan struct{}), make(chan struct{})
	var n atomic.Int32
	m.answer(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 2 { // the second operator's own request
			close(asked)
			<-gate
		}
		_, _ = w.Write(m.image)
	})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	h.StallUploads(64 << 10)
	old, p := m.open(t), m.open(t)
	a, b := m.spec("a", "box-1"), m.spec("b", "box-1")
	m.uploading(t, old, a)
	if in, err := p.Create(t.Context(), b); err != nil || in.State != provider.Provisioning {
		t.Fatalf("%+v, %v", in, err)
	}
	<-asked
	// The first operator's is whole now: a disk stands on it, and nothing is sealed.
	h.Mend()
	cutAt(t, old, a, "kvm: seed")
	base := m.base(t, a)
	open() // the second operator goes on
	up(t, p, b)
	if m.base(t, b) != base || h.Content("default", base) == nil {
		t.Errorf("%s was removed, or not used: b stands on %s", base, m.base(t, b))
	}
	up(t, old, a)
	// When another image has had its turn, that upload is over.
	c := m.spec("c", "box-1")
	c.Image = "next"
	up(t, p, c)
	images := 0
	for _, v := range h.Volumes("default") {
		if strings.HasPrefix(v.Name, "fleetdesk-image-") && !strings.Contains(v.Name, ".verified-") {
			images++
		}
	}
	if images != 2 {
		t.Errorf("%d images are on the host; want one of each", images)
	}
}

// Two hosts change their addresses in the configuration: nothing is made a
// second time, and a deletion finds the machine where it is.
func TestHostsThatSwappedTheirAddresses(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	p := m.open(t)
	s := m.spec("a", "box-1")
	in := up(t, p, s)
	m.hosts["box-1"], m.hosts["box-2"] = m.hosts["box-2"], m.hosts["box-1"]
	q := m.open(t)
	r := provider.Ref{ID: in.ID, Owner: s.Owner, Host: "box-1"}
	if _, err := q.Get(t.Context(), r); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "host box-2 has") {
		t.Errorf("Get: %s: %v; want Permanent and where it is", fault.Of(err), err)
	}
	down(t, q, r)
	if left := m.parts(s.Owner); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Only Get may say NotFound; a volume that vanished in mid-create is tried
// again.
func TestCreateNeverSaysNotFound(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	up(t, p, m.spec("first", "box-1"))
	h.FailNext("StorageVolGetInfo", virt.Fault(virt.CodeNoStorageVol, "Storage volume not found: no storage vol with matching name"))
	if err := failure(t, p, m.spec("a", "box-1")); fault.Of(err) != fault.Transient {
		t.Errorf("%s: %v; want Transient", fault.Of(err), err)
	}
}

// A Proxy that waits for an image asks little on the link that uploads it.
func TestWaitingForAnImageCostsLittle(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.StallUploads(64 << 10)
	p := m.open(t)
	s := m.spec("a", "box-1")
	m.uploading(t, p, s)
	h.ResetCalls()
	if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
		t.Fatalf("%+v, %v", in, err)
	}
	calls := h.Calls()
	total := 0
	for _, n := range calls {
		total += n
	}
	if total > 2 {
		t.Errorf("a Create that only waits: %v; want the domain and its metadata alone", calls)
	}
}

// What stands where a URL has its query may be what gives access.
func TestAReferenceIsQuotedWithoutItsSecrets(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	for _, image := range []string{"images.example.com/d.qcow2?sig=S3CRET", "user:S3CRET@images.example.com/d.qcow2", "https://images.example.com/%zz?sig=S3CRET"} {
		s := m.spec("a", "box-1")
		s.Image = image
		if _, err := p.Create(t.Context(), s); fault.Of(err) != fault.Invalid || strings.Contains(err.Error(), "S3CRET") {
			t.Errorf("%v", err)
		}
	}
}
