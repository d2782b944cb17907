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

// A person undefines the libvirt network: Get of a running machine is NotFound.
func TestNetworkUndefined(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	in := up(t, p, s)
	h.RemoveNetwork("default")
	h.Addresses(func(g virttest.Guest, src virt.AddressSource) ([]virt.Interface, error) {
		if src == virt.FromLease { // qemuGetDHCPInterfaces: virNetworkLookupByName fails
			return nil, virt.Fault(virt.CodeNoNetwork, "Network not found: no network with matching name 'default'")
		}
		return virttest.Usual(g, src)
	})
	m.advance(2 * time.Minute)
	rows, err := p.ListByTag(t.Context(), tag)
	t.Logf("list: %+v, %v", rows, err)
	if len(rows[0].Instances) != 1 && rows[0].Err == nil {
		t.Errorf("the list is whole and lacks the running machine")
	}
	_, err = p.Get(t.Context(), provider.Ref{ID: in.ID, Owner: s.Owner, Host: "box-1"})
	if fault.Of(err) == fault.NotFound {
		t.Errorf("Get of a running machine: %s: %v", fault.Of(err), err)
	}
	for _, d := range h.Domains() {
		t.Logf("%s state %d", d.Name, d.State)
	}
}

// virt-clone: metadata is copied.
func TestClone(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	doc := h.Domains()[0].XML
	clone := strings.NewReplacer(domain.UUIDOf(s.Owner), "ffffffff-1111-4222-8333-444444444444",
		"<name>"+domain.NamesOf(s.Owner).Domain, "<name>zz-"+domain.NamesOf(s.Owner).Domain,
		domain.MACOf(s.Owner), "52:54:00:11:22:33").Replace(doc)
	if err := h.PlantDomain(clone, false); err != nil {
		t.Fatal(err)
	}
	rows, err := p.ListByTag(t.Context(), tag)
	if err != nil || len(rows[0].Instances) != 1 {
		for _, i := range rows[0].Instances {
			t.Errorf("listed under one UID: %s %s %s", i.ID, i.Owner.UID, i.State)
		}
	}
}

// Two providers (or two names) for one box: uploads kill each other for ever.
func TestTwoProvidersOneBox(t *testing.T) {
	m := newMem(t, "box-1")
	began := time.Now()
	fast := func(o *kvm.Options) {
		o.Clock = func() time.Time { return began.Add(50 * time.Since(began)) } // 5 s of failureAge are 100 ms
	}
	m.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(m.image)))
		for i := 0; i < len(m.image); i += len(m.image) / 8 {
			_, _ = w.Write(m.image[i:min(i+len(m.image)/8, len(m.image))])
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
		}
	})
	p := m.open(t, fast)
	q := m.open(t, fast, func(o *kvm.Options) { o.Name = "home-nat" })
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var done atomic.Int32
	errs := sync.Map{}
	for i, one := range []provider.Provider{p, q} {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 400 * time.Millisecond)
			for ctx.Err() == nil {
				in, err := one.Create(ctx, m.spec(fmt.Sprint("x", i), "box-1"))
				if err == nil && in.State == provider.Running {
					done.Add(1)
					return
				}
				if err != nil && ctx.Err() == nil {
					errs.Store(fmt.Sprint(i, " ", fault.Of(err), " ", err), true)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	t.Logf("%d of 2 run after 15 s; the image was fetched %d times; one upload takes 0.8 s", done.Load(), m.requests())
	errs.Range(func(k, _ any) bool { t.Logf("%s", k); return true })
	if done.Load() != 2 {
		t.Errorf("the uploads end each other for ever")
	}
}

// virsh undefine of a running machine leaves it transient: Delete never ends.
func TestTransientDelete(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	c := h.Link()
	if err := c.DomainUndefineFlags(t.Context(), h.Domains()[0].Domain, virt.UndefineNVRAM); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		st, err := p.Delete(t.Context(), ref(s))
		t.Logf("Delete: %s, %s: %v", st, fault.Of(err), err)
		if st == provider.Gone {
			return
		}
	}
	t.Errorf("never gone: %q", m.parts(s.Owner))
}

// A leader that was frozen between look and define makes a running machine "making"; after the host's reboot its disk is thrown away.
func TestStaleDefine(t *testing.T) {
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
	t.Logf("the old leader: %v", err)
	name := domain.NamesOf(s.Owner).Domain
	for _, d := range h.Domains() {
		if d.Name == name {
			t.Logf("persistent: %s", d.Metadata)
			t.Logf("live:       %s", d.LiveMetadata)
		}
	}
	h.StopDomain(name)
	h.ResetCalls()
	removed := 0
	h.OnCall(func(rpc string) error {
		if rpc == "virStorageVolDelete" {
			removed++
		}
		return nil
	})
	up(t, p, s)
	if removed > 0 {
		t.Errorf("starting a machine that was off removed %d of its volumes", removed)
	}
}

// After a reboot of the host the domain has the number that it had: the old address is taken for good.
func TestRebootSameNumber(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.Addresses(virttest.Fixed("192.0.2.20"))
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	h.Reboot()
	h.Addresses(nobody) // the guest boots, nobody knows an address
	for name, one := range map[string]provider.Provider{"same operator": p, "new operator": m.open(t)} {
		in, err := one.Create(t.Context(), s)
		if err != nil || in.State == provider.Running {
			t.Errorf("%s: a guest that has just been started: %s %s, %v", name, in.State, in.Address, err)
		}
	}
}

// A host without room for the image: the Proxy never leaves it.
func TestQuotaSticks(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	m.hosts["box-1"].FillPool(2 << 30)
	m.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(3<<30))
		_, _ = w.Write(m.image)
	})
	p := m.open(t)
	s := m.spec("a", "box-1")
	err := failure(t, p, s)
	t.Logf("%s: %v", fault.Of(err), err)
	in, gerr := p.Get(t.Context(), ref(s))
	if fault.Of(err) == fault.Quota && gerr == nil {
		t.Errorf("Quota, and Get says %s (%s): reconsider() keeps it there although box-2 has room; left %q", in.State, in.Message, m.parts(s.Owner))
	}
}

// Close while an upload runs on a host that went mute.
func TestCloseOnMute(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.StallUploads(64 << 10)
	o := kvm.Options{Name: "home", Section: m.section, Dialer: &virttest.Dialer{Hosts: m.hosts}, StepLimit: time.Second}
	p, err := kvm.New(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		_, _ = p.Create(t.Context(), m.spec("a", "box-1"))
		time.Sleep(10 * time.Millisecond)
	}
	h.Mute()
	began := time.Now()
	_ = p.Close()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// maxInstances and Places at once.
func TestPlaceRace(t *testing.T) {
	m := newMem(t, "box-1")
	c := m.section.Hosts["box-1"]
	c.MaxInstances = 1
	m.section.Hosts["box-1"] = c
	m.hosts["box-1"].Slow(2 * time.Millisecond)
	p := m.open(t)
	var ok atomic.Int32
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			s := m.spec(fmt.Sprint("p", i), "")
			host, err := p.Place(t.Context(), s)
			if err != nil {
				return
			}
			s.Host = host
			if _, err := tryUp(t.Context(), p, s); err == nil {
				ok.Add(1)
			}
		})
	}
	wg.Wait()
	if ok.Load() > 1 {
		t.Errorf("%d machines run where 1 may", ok.Load())
	}
}

// The calls that the operator makes at its defaults fill the host's limit; the listing then says the host is down.
func TestListingWithoutSlot(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	for i := range 4 {
		up(t, p, m.spec(fmt.Sprint("p", i), "box-1"))
	}
	h.Slow(100 * time.Millisecond)
	m.advance(time.Minute)
	var wg sync.WaitGroup
	for i := range 4 { // 4 = workers/4 slots of the host
		wg.Go(func() { _, _ = p.Get(t.Context(), ref(m.spec(fmt.Sprint("p", i), "box-1"))) })
	}
	for i := range 4 { // and 4 of Place
		wg.Go(func() { _, _ = p.Place(t.Context(), m.spec(fmt.Sprint("q", i), "")) })
	}
	time.Sleep(20 * time.Millisecond)
	rows, _ := p.ListByTag(t.Context(), tag)
	wg.Wait()
	if rows[0].Err != nil {
		t.Errorf("the host is well, and its row is %s: %v", fault.Of(rows[0].Err), rows[0].Err)
	}
}

// The marker was made and its answer lost: the clean-up removes a verified image under a machine.
func TestCleanRemovesVerified(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	old, p := m.open(t), m.open(t)
	s := m.spec("a", "box-1")
	var once atomic.Bool
	h.OnDone(func(rpc string) error {
		if rpc != "virStorageVolCreateXML" {
			return nil
		}
		marked := false
		for _, v := range h.Volumes("default") {
			marked = marked || strings.Contains(v.Name, ".verified-")
		}
		var err error
		if marked && once.CompareAndSwap(false, true) {
			// The link of the old leader is cut here; the new leader goes on.
			if _, uerr := tryUp(t.Context(), p, s); uerr != nil {
				t.Error(uerr)
			}
			err = fault.New(fault.Unavailable, "the connection was lost")
		}
		return err
	})
	_, _ = old.Create(t.Context(), m.spec("b", "box-1"))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if len(m.parts(s.Owner)) == 4 {
			time.Sleep(300 * time.Millisecond)
			break
		}
	}
	base := h.StartedFrom(domain.NamesOf(s.Owner).Domain)
	there := false
	for _, v := range h.Volumes("default") {
		for _, b := range base {
			there = there || b.Depth == 1 && b.Volume == v.Name
		}
		t.Logf("in the pool: %s", v.Name)
	}
	if !there {
		t.Errorf("the image under a running machine is gone: %+v", base)
	}
}

// Halves that were seen long before: an image that is valid by now is removed under a machine that is being made.
func TestStaleHalves(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	gate := make(chan struct{})
	var n atomic.Int32
	m.answer(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 2 {
			<-gate // p's own request for the image
		}
		_, _ = w.Write(m.image)
	})
	h.StallUploads(64 << 10)
	old, p := m.open(t), m.open(t)
	sa, sb := m.spec("a", "box-1"), m.spec("b", "box-1")
	for range 30 {
		_, _ = old.Create(t.Context(), sa) // uploads V1, half way
		time.Sleep(10 * time.Millisecond)
	}
	in, err := p.Create(t.Context(), sb) // sees V1 as a half, and begins a job
	t.Logf("p: %s %v", in.Message, err)
	h.Mend() // V1 is finished and valid now
	for len(m.halves("box-1")) > 0 || len(h.Volumes("default")) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	close(gate) // p's own job goes on, and must not take V1 for a half any more
	var last error
	for range 5 {
		m.advance(time.Minute)
		var in provider.Instance
		if in, last = p.Create(t.Context(), sb); last == nil && in.State == provider.Running {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Errorf("for ever: %s: %v", fault.Of(last), last)
	for _, v := range h.Volumes("default") {
		t.Logf("%s on %s", v.Name, v.Backing)
	}
}

// Two hosts change their addresses in the configuration.
func TestSwappedHosts(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	p := m.open(t)
	s := m.spec("a", "box-1")
	in := up(t, p, s)
	m.hosts["box-1"], m.hosts["box-2"] = m.hosts["box-2"], m.hosts["box-1"]
	q := m.open(t)
	_, err := q.Get(t.Context(), provider.Ref{ID: in.ID, Owner: s.Owner, Host: "box-1"})
	t.Logf("Get: %s %v", fault.Of(err), err)
	down(t, q, provider.Ref{ID: in.ID, Owner: s.Owner, Host: "box-1"})
	up(t, q, s)
	t.Logf("%q", m.parts(s.Owner))
	down(t, q, provider.Ref{ID: in.ID, Owner: s.Owner, Host: "box-1"})
	if left := m.parts(s.Owner); len(left) > 0 {
		t.Errorf("two machines of one Proxy, and after its deletion: %q", left)
	}
}

// Another pool, cut off, and another pool again: what was made in between is nobody's.
func TestPoolsThrice(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.SetPool(virttest.Pool{Name: "fast", Type: "dir", Path: "/srv/fast", State: virt.PoolRunning, Capacity: 100 << 30})
	pool := func(name string) {
		c := m.section.Hosts["box-1"]
		c.Pool = name
		m.section.Hosts["box-1"] = c
	}
	cut := func(p *kvm.Provider, s provider.Spec, at string) {
		for range 100 {
			_, err := p.Create(provider.WithStepHook(t.Context(), func(step string) error {
				if step == at {
					return fault.New(fault.Transient, "cut off")
				}
				return nil
			}), s)
			if err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	s := m.spec("a", "box-1")
	cut(m.open(t), s, "kvm: seed")
	pool("fast")
	cut(m.open(t), s, "kvm: seed")
	pool("default")
	q := m.open(t)
	down(t, q, ref(s))
	for _, n := range []string{"default", "fast"} {
		for _, v := range h.Volumes(n) {
			if strings.HasPrefix(v.Name, "fd-") {
				t.Errorf("left in %s, without a domain: %s", n, v.Name)
			}
		}
	}
}

// What a Create answers when something beside the domain vanished.
func TestCreateNotFound(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	h.OnCall(func(rpc string) error {
		if rpc == "virStorageVolGetInfo" {
			return virt.Fault(virt.CodeNoStorageVol, "Storage volume not found: no storage vol with matching name")
		}
		return nil
	})
	err := failure(t, p, m.spec("a", "box-1"))
	if fault.Of(err) == fault.NotFound {
		t.Errorf("Create: %s: %v", fault.Of(err), err)
	}
}

// What a waiting Proxy costs while an image is uploaded.
func TestCostOfWaiting(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.StallUploads(64 << 10)
	p := m.open(t)
	s := m.spec("a", "box-1")
	for range 20 {
		_, _ = p.Create(t.Context(), s)
		time.Sleep(10 * time.Millisecond)
	}
	h.ResetCalls()
	_, _ = p.Create(t.Context(), s)
	t.Logf("one Create that only waits: %v", h.Calls())
	if h.Calls()["virStoragePoolListAllVolumes"] > 0 {
		t.Errorf("it lists all volumes of the pool each second, on the link that is uploading")
	}
}

// A secret in a reference that lacks its scheme.
func TestSecretInReference(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	s := m.spec("a", "box-1")
	s.Image = "images.example.com/d.qcow2?sig=S3CRET"
	_, err := p.Create(t.Context(), s)
	if strings.Contains(err.Error(), "S3CRET") {
		t.Errorf("%v", err)
	}
}
