package kvm_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// lying are the leftovers of a host as "what id", whose row must be whole.
func lying(t *testing.T, p provider.Cleaner, host string, keep ...string) (out []string) {
	t.Helper()
	list, err := lie(t, p, host, keep...)
	if err != nil {
		t.Fatalf("leftovers of %s: %v", host, err)
	}
	for _, l := range list {
		out = append(out, l.What+" "+l.ID)
	}
	return out
}

func lie(t *testing.T, p provider.Cleaner, host string, keep ...string) ([]provider.Leftover, error) {
	t.Helper()
	rows, err := p.Leftovers(t.Context(), tag, keep)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(rows, func(r provider.HostLeftovers) bool { return r.Host == host })
	return rows[i].Leftovers, rows[i].Err
}

func clear1(t *testing.T, p provider.Cleaner, host, id string) error {
	t.Helper()
	return p.RemoveLeftover(t.Context(), tag, provider.Leftover{Host: host, ID: id})
}

// another is a provider of the same name whose configuration has another image
// in place of the first.
func (m *mem) another(t *testing.T, with ...func(*kvm.Options)) *kvm.Provider {
	t.Helper()
	return m.open(t, append([]func(*kvm.Options){func(o *kvm.Options) {
		im := o.Section.Images["debian-13"]
		im.URL += "?next"
		o.Section.Images = map[string]kvm.Image{"debian-13": im}
	}}, with...)...)
}

// undefine removes a domain as a person does, who leaves its volumes.
func (m *mem) undefine(t *testing.T, host, name string) {
	t.Helper()
	c := m.hosts[host].Link()
	defer func() { _ = c.Close() }()
	d, err := c.DomainLookupByName(t.Context(), name)
	if err == nil {
		_ = c.DomainDestroy(t.Context(), d)
		err = c.DomainUndefineFlags(t.Context(), d, virt.UndefineNVRAM)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// An image that the configuration has no more goes when no machine stands on
// it, with its marker; one that serves a machine stays, and one that is
// configured. What others have in the pool is never named and never touched.
func TestAnImageThatIsConfiguredNoMore(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	old, other := m.open(t), m.open(t, providerNamed("home-nat"))
	a := m.spec("a", "box-1")
	in := up(t, old, a)
	base := m.base(t, a)
	foreign, beside := m.spec("f", "box-1"), m.spec("b", "box-1")
	foreign.Owner.Installation = "another/fleetdesk"
	up(t, old, foreign)
	up(t, other, beside)
	others := []string{m.base(t, foreign), m.base(t, beside)}
	down(t, old, ref(foreign))
	down(t, other, ref(beside))
	persons := []string{base + ".bak", "copy-" + base, "fleetdesk-image-notes.txt", nameOf(in) + "-old.qcow2", "my-seed.iso"}
	for _, name := range persons {
		h.PlantVolume("default", name, "raw", []byte(name))
	}

	if got := lying(t, old, "box-1"); len(got) != 0 {
		t.Errorf("while it is configured: %q", got)
	}
	p := m.another(t)
	if got := lying(t, p, "box-1"); len(got) != 0 {
		t.Errorf("while a machine stands on it: %q", got)
	}
	if err := clear1(t, p, "box-1", base); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "a machine stands on it") {
		t.Errorf("removing what a machine stands on: %v", err)
	}
	down(t, p, ref(a))
	list, err := lie(t, p, "box-1")
	if err != nil || len(list) != 1 || list[0].ID != base || list[0].What != "image" || list[0].Bytes != int64(len(m.image)) {
		t.Fatalf("once nothing uses it: %+v, %v; want %s", list, err, base)
	}
	// The one who still has it configured does not remove it.
	m.advance(time.Hour)
	if err := clear1(t, old, "box-1", base); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "image of the configuration") {
		t.Errorf("removing a configured image: %v", err)
	}
	for range 2 { // gone is success
		if err := clear1(t, p, "box-1", base); err != nil {
			t.Error(err)
		}
	}
	if got := m.volumes("box-1", "default", base); len(got) != 1 || got[0] != base+".bak" {
		t.Errorf("left of it: %q", got)
	}
	for _, name := range others {
		if err := clear1(t, p, "box-1", name); fault.Of(err) != fault.Conflict {
			t.Errorf("removing an image of another installation or provider: %v; want Conflict", err)
		}
		if got := m.volumes("box-1", "default", name); len(got) != 2 {
			t.Errorf("%s and its marker: %q", name, got)
		}
	}
	for _, name := range persons {
		if err := clear1(t, p, "box-1", name); fault.Of(err) != fault.Invalid {
			t.Errorf("removing %s: %v; want Invalid", name, err)
		}
		if string(h.Content("default", name)) != name {
			t.Errorf("%s was touched", name)
		}
	}
	for _, id := range []string{image.MarkerName(base, 1), "", "..", "default/" + base, base + "\n"} {
		if err := clear1(t, p, "box-1", id); fault.Of(err) != fault.Invalid {
			t.Errorf("removing %q: %v; want Invalid", id, err)
		}
	}
	if err := clear1(t, p, "box-9", base); fault.Of(err) != fault.Permanent {
		t.Errorf("on a host that is not configured: %v; want Permanent", err)
	}
}

// Disks and seeds whose domain is gone are leftovers, unless their owner is to
// be kept. Somebody's renaming of a domain makes none, nor a clone.
func TestDisksWithoutADomain(t *testing.T) {
	const renamed = "web-of-somebody"
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	a, b := m.spec("a", "box-1"), m.spec("b", "box-1")
	up(t, p, a)
	up(t, p, b)
	names, kept := domain.NamesOf(a.Owner), domain.NamesOf(b.Owner)
	for _, d := range h.Domains() { // a clone shares the seed, which is read-only
		if d.Name == names.Domain {
			text := strings.NewReplacer(d.UUID, "ffffffff-1111-4222-8333-444444444444", "<name>"+d.Name, "<name>"+renamed, domain.MACOf(a.Owner), "52:54:00:11:22:33").Replace(d.XML)
			m.undefine(t, "box-1", d.Name)
			if err := h.PlantDomain(text, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.undefine(t, "box-1", kept.Domain)
	for what, one := range map[string]*kvm.Provider{"the same operator": p, "again": p, "a new one": m.open(t)} {
		if got := lying(t, one, "box-1", b.Owner.UID); len(got) != 0 {
			t.Errorf("%s: %q; want none, since one is kept and one has a clone", what, got)
		}
		if got, want := lying(t, one, "box-1"), []string{"seed " + kept.Seed, "disk " + kept.Overlay}; !slices.Equal(got, want) {
			t.Errorf("%s: %q; want %q", what, got, want)
		}
	}
	for _, name := range []string{names.Overlay, names.Seed} {
		if err := clear1(t, p, "box-1", name); fault.Of(err) != fault.Conflict {
			t.Errorf("removing %s, which a clone has: %v; want Conflict", name, err)
		}
	}
	base := m.base(t, a)
	q := m.another(t)
	m.advance(time.Hour)
	if got := lying(t, q, "box-1", b.Owner.UID); len(got) != 0 {
		t.Errorf("the image that a clone stands on: %q", got)
	}
	if err := clear1(t, q, "box-1", base); fault.Of(err) != fault.Conflict {
		t.Errorf("removing what a clone stands on: %v; want Conflict", err)
	}
	m.undefine(t, "box-1", renamed)
	for _, name := range []string{kept.Overlay, kept.Seed, names.Overlay, names.Seed} {
		if err := clear1(t, p, "box-1", name); err != nil {
			t.Error(err)
		}
	}
	if left := m.volumes("box-1", "default", "fd-"); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// A domain of ours that cannot be read may stand on anything: nothing of its
// host is a leftover, and nothing is removed there. Other hosts go on.
func TestLeftoversBesideATornDomain(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	h := m.hosts["box-1"]
	p := m.open(t)
	a := m.spec("a", "box-1")
	up(t, p, a)
	base := m.base(t, a)
	q := m.another(t)
	names := domain.NamesOf(m.spec("gone", "").Owner)
	for _, one := range m.hosts {
		one.PlantVolume("default", names.Overlay, "qcow2", virttest.Qcow2(1<<20))
	}
	undo := h.CorruptMetadata(domain.NamesOf(a.Owner).Domain)
	if list, err := lie(t, q, "box-1"); fault.Of(err) != fault.Transient || len(list) != 0 || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("%+v, %v; want Transient", list, err)
	}
	if got := lying(t, q, "box-2"); len(got) != 1 {
		t.Errorf("the other host: %q", got)
	}
	for _, id := range []string{base, names.Overlay} {
		if err := clear1(t, q, "box-1", id); fault.Of(err) != fault.Transient {
			t.Errorf("removing %s: %v; want Transient", id, err)
		}
		if h.Content("default", id) == nil {
			t.Errorf("%s is gone", id)
		}
	}
	undo()
	if got := lying(t, q, "box-1"); len(got) != 1 {
		t.Errorf("once it can be read: %q", got)
	}
}

// Marks that were changed since they were last read are read again before
// something is removed, and again when the marker is away.
func TestARemovalReadsMarksAnew(t *testing.T) {
	for name, late := range map[string]bool{"before it": false, "between its looks": true} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			old := m.open(t)
			a, b := m.spec("a", "box-1"), m.spec("b", "box-1")
			up(t, old, a)
			base := m.base(t, a)
			q := m.another(t)
			up(t, q, b)
			down(t, q, ref(a))
			if got := lying(t, q, "box-1"); len(got) != 1 {
				t.Fatalf("%q", got)
			}
			mark, err := domain.Mark{Owner: b.Owner, Created: time.Now(), Stage: domain.Made, Pool: "default", Image: base}.Element()
			if err != nil {
				t.Fatal(err)
			}
			change := func() { h.SetMetadata(domain.NamesOf(b.Owner).Domain, mark) }
			if !late {
				change()
			}
			h.OnCall(func(rpc string) error {
				switch {
				case rpc != "virStorageVolDelete":
				case late:
					change()
				default:
					t.Error("something was removed")
				}
				return nil
			})
			if err := clear1(t, q, "box-1", base); fault.Of(err) != fault.Conflict {
				t.Errorf("%v; want Conflict", err)
			}
			if got := m.volumes("box-1", "default", base); len(got) != 2 {
				t.Errorf("there is %q; want the image and its marker", got)
			}
		})
	}
}

// What this process uploads is no leftover, and is not removed; what another one
// left half done is.
func TestUploadsAndLeftovers(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	m.setImage(append(virttest.Qcow2(2<<30), make([]byte, 1<<20)...))
	h.StallUploads(200 << 10)
	p, other := m.open(t), m.another(t)
	s := m.spec("a", "box-1")
	m.uploading(t, p, s)
	half := m.halves("box-1")[0]
	m.advance(time.Hour) // it takes long
	if got := lying(t, p, "box-1"); len(got) != 0 {
		t.Errorf("while it is uploaded: %q", got)
	}
	if err := clear1(t, p, "box-1", half); fault.Of(err) != fault.Conflict {
		t.Errorf("removing what is uploaded: %v; want Conflict", err)
	}
	if got := lying(t, other, "box-1"); len(got) != 1 || got[0] != "unfinished upload "+half {
		t.Errorf("another process sees %q", got)
	}
	if err := clear1(t, other, "box-1", half); err != nil {
		t.Error(err)
	}
	h.Mend()
	m.advance(time.Hour)
	up(t, p, s)
	if left := m.halves("box-1"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	// A marker without its volume.
	lone := image.MarkerName(half, 1<<30)
	h.PlantVolume("default", lone, "raw", nil)
	m.advance(time.Hour)
	if got := lying(t, p, "box-1"); len(got) != 1 || got[0] != "unfinished upload "+half {
		t.Errorf("a marker alone: %q", got)
	}
	if err := clear1(t, p, "box-1", half); err != nil || len(m.volumes("box-1", "default", half)) != 0 {
		t.Errorf("removing a marker alone: %v, %q", err, m.volumes("box-1", "default", half))
	}
}

// An image of a URL that a Proxy named is no leftover from its upload on until
// the machine is there, and then as long as it is there.
func TestAnImageByURLWaitsForItsMachine(t *testing.T) {
	m := newMem(t, "box-1")
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(m.image) }))
	t.Cleanup(srv.Close)
	m.section.ImageCAFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(m.section.ImageCAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	p := m.open(t)
	s := m.spec("a", "box-1")
	s.Image = srv.URL + "/own.qcow2"
	if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
		t.Fatalf("%+v, %v", in, err)
	}
	for end := time.Now().Add(10 * time.Second); len(m.volumes("box-1", "default", "fleetdesk-image-")) < 2 || len(m.halves("box-1")) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no upload ends")
		}
	}
	base := m.volumes("box-1", "default", "fleetdesk-image-")[0]
	if got := lying(t, p, "box-1"); len(got) != 0 {
		t.Errorf("while its machine is to be made: %q", got)
	}
	if err := clear1(t, p, "box-1", base); fault.Of(err) != fault.Conflict {
		t.Errorf("removing it then: %v; want Conflict", err)
	}
	m.advance(time.Hour) // nobody tries to make it any more
	for end := time.Now().Add(10 * time.Second); len(lying(t, p, "box-1")) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody wants it any more: %q", lying(t, p, "box-1"))
		}
	}
	up(t, p, s)
	m.advance(time.Hour)
	if got := lying(t, p, "box-1"); len(got) != 0 || m.base(t, s) != base {
		t.Errorf("while its machine runs: %q", got)
	}
	down(t, p, ref(s))
	if got := lying(t, p, "box-1"); len(got) != 1 {
		t.Errorf("once its machine is gone: %q", got)
	}
}

// frozen calls RemoveLeftover and lets meanwhile happen at its k-th call, before
// or after it is done.
func (m *mem) frozen(t *testing.T, p *kvm.Provider, id string, k int, done bool, meanwhile func()) (came bool, err error) {
	t.Helper()
	h := m.hosts["box-1"]
	var n atomic.Int32
	var busy atomic.Bool
	hook := func(string) error {
		if !busy.Load() && n.Add(1) == int32(k) {
			busy.Store(true)
			meanwhile()
			busy.Store(false)
		}
		return nil
	}
	if done {
		h.OnDone(hook)
	} else {
		h.OnCall(hook)
	}
	err = clear1(t, p, "box-1", id)
	h.OnCall(nil)
	h.OnDone(nil)
	return n.Load() >= int32(k), err
}

// An operator that removes an image was frozen at any of its calls, while another
// one, which still has it configured and in its memory, made a machine from it
// as far as any of its steps. Nobody stands on what is gone in the end.
func TestAnImageIsRemovedWhileAMachineIsMadeFromIt(t *testing.T) {
	kept, removed := 0, 0
	for _, done := range []bool{false, true} {
		for _, until := range []string{"kvm: define", "kvm: overlay", "kvm: seed", "kvm: seal", "kvm: start", "to its end"} {
			for k := 1; ; k++ {
				if k > 40 {
					t.Fatal("there is no end of calls")
				}
				m := newMem(t, "box-1")
				h := m.hosts["box-1"]
				q := m.open(t, func(o *kvm.Options) { o.StepLimit = time.Minute })
				first, s := m.spec("first", "box-1"), m.spec("a", "box-1")
				up(t, q, first)
				base := m.base(t, first)
				down(t, q, ref(first))
				p := m.another(t, func(o *kvm.Options) { o.StepLimit = time.Minute })
				cut := errors.New("cut off")
				came, err := m.frozen(t, p, base, k, done, func() {
					_, _ = q.Create(provider.WithStepHook(t.Context(), func(step string) error {
						if step == until {
							return cut
						}
						return nil
					}), s)
				})
				if !came {
					break
				}
				where := fmt.Sprintf("frozen at call %d (done: %t), and the machine was made until %q", k, done, until)
				if err != nil && fault.Of(err) != fault.Conflict {
					t.Errorf("%s: %v; want nil or Conflict", where, err)
				}
				if there := len(m.volumes("box-1", "default", base)); err == nil && there != 0 || err != nil && there != 2 {
					t.Errorf("%s: %v, and there are %q", where, err, m.volumes("box-1", "default", base))
				}
				if err == nil {
					removed++
				} else {
					kept++
				}
				up(t, q, s)
				if on := m.base(t, s); h.Content("default", on) == nil || (err != nil) != (on == base) {
					t.Errorf("%s: %v, and the machine stands on %s (there: %t)", where, err, on, h.Content("default", on) != nil)
				}
				whole(t, m, s)
				if left := m.halves("box-1"); len(left) != 0 {
					t.Errorf("%s: halves %q", where, left)
				}
			}
		}
	}
	if kept < 10 || removed < 10 {
		t.Errorf("the image stayed %d times and went %d times: this proves little", kept, removed)
	}
}

// The other way round: a Create was frozen at any of its steps, while another
// operator removed the image, and went on. The same operator's removal gives
// way.
func TestAMachineIsMadeWhileItsImageIsRemoved(t *testing.T) {
	for _, own := range []bool{false, true} {
		for _, at := range []string{"kvm: define", "kvm: overlay", "kvm: seed", "kvm: seal", "kvm: start"} {
			t.Run(fmt.Sprintf("%s, by itself: %t", at, own), func(t *testing.T) {
				m := newMem(t, "box-1")
				h := m.hosts["box-1"]
				q := m.open(t)
				first, s := m.spec("first", "box-1"), m.spec("a", "box-1")
				up(t, q, first)
				base := m.base(t, first)
				down(t, q, ref(first))
				p := m.another(t)
				if own {
					p = q
				}
				var err error
				_, _ = q.Create(provider.WithStepHook(t.Context(), func(step string) error {
					if step == at {
						err = clear1(t, p, "box-1", base)
					}
					return nil
				}), s)
				if fault.Of(err) != fault.Conflict && (own || at != "kvm: define" || err != nil) {
					t.Errorf("the removal: %v", err)
				}
				up(t, q, s)
				if on := m.base(t, s); h.Content("default", on) == nil || (err != nil) != (on == base) {
					t.Errorf("%v, and the machine stands on %s", err, on)
				}
				whole(t, m, s)
			})
		}
	}
}

// A disk whose owner is back: the same operator does not remove what it makes.
func TestADiskIsNotRemovedWhileItIsMade(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	up(t, p, m.spec("first", "box-1"))
	s := m.spec("a", "box-1")
	names := domain.NamesOf(s.Owner)
	h.PlantVolume("default", names.Overlay, "qcow2", virttest.Qcow2(1<<20))
	for k := 1; ; k++ {
		made := make(chan error, 1)
		came, err := m.frozen(t, p, names.Overlay, k, false, func() {
			go func() { _, err := tryUp(t.Context(), p, s); made <- err }()
			// It waits for the removal, or has nothing to wait for.
			select {
			case err := <-made:
				made <- err
			case <-time.After(20 * time.Millisecond):
			}
		})
		if !came {
			break
		}
		if err != nil {
			t.Errorf("call %d: %v", k, err)
		}
		if err := <-made; err != nil {
			t.Fatalf("call %d: %v", k, err)
		}
		if h.Content("default", names.Seed) == nil || len(m.parts(s.Owner)) != 4 {
			t.Errorf("call %d: the machine has %q", k, m.parts(s.Owner))
		}
		if err := clear1(t, p, "box-1", names.Overlay); fault.Of(err) != fault.Conflict {
			t.Errorf("call %d: removing the disk of a machine: %v; want Conflict", k, err)
		}
		down(t, p, ref(s))
		h.PlantVolume("default", names.Overlay, "qcow2", virttest.Qcow2(1<<20))
	}
}

// A removal that was killed at any step is finished by the next, and what is
// left of an image meanwhile is used by nobody.
func TestARemovalKilledAtEachStep(t *testing.T) {
	for _, at := range []string{"kvm: remove marker", "kvm: remove image", "kvm: remove disk"} {
		t.Run(at, func(t *testing.T) {
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			old := m.open(t)
			s := m.spec("a", "box-1")
			up(t, old, s)
			id := m.base(t, s)
			if at == "kvm: remove disk" {
				id = domain.NamesOf(s.Owner).Overlay
				m.undefine(t, "box-1", domain.NamesOf(s.Owner).Domain)
			} else {
				down(t, old, ref(s))
			}
			cut := errors.New("killed")
			err := m.another(t).RemoveLeftover(provider.WithStepHook(t.Context(), func(step string) error {
				if step == at {
					return cut
				}
				return nil
			}), tag, provider.Leftover{Host: "box-1", ID: id})
			if !errors.Is(err, cut) {
				t.Fatalf("it does not come to %q: %v", at, err)
			}
			q := m.another(t)
			if got := lying(t, q, "box-1"); !slices.ContainsFunc(got, func(l string) bool { return strings.HasSuffix(l, " "+id) }) {
				t.Errorf("the next operator sees %q; want %s", got, id)
			}
			if at == "kvm: remove image" {
				b := m.spec("b", "box-1")
				up(t, old, b)
				if m.base(t, b) == id {
					t.Error("an image without its marker is used")
				}
			}
			if err := clear1(t, q, "box-1", id); err != nil || h.Content("default", id) != nil {
				t.Errorf("the next removal: %v", err)
			}
		})
	}
}

// The configuration names another pool: what lies in the old one is not looked
// at, and what machines in the old pool stand on is not removed from the new one.
func TestLeftoversAndAnotherPool(t *testing.T) {
	m, h := twoPools(t)
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	base, names := m.base(t, s), domain.NamesOf(s.Owner)
	m.usePool("fast")
	q := m.another(t)
	h.PlantVolume("fast", base, "qcow2", m.image)
	h.PlantVolume("fast", names.Overlay, "qcow2", virttest.Qcow2(1<<20))
	if got := lying(t, q, "box-1"); len(got) != 0 {
		t.Errorf("%q", got)
	}
	for _, id := range []string{base, names.Overlay} {
		if err := clear1(t, q, "box-1", id); fault.Of(err) != fault.Conflict {
			t.Errorf("removing %s: %v; want Conflict", id, err)
		}
	}
	down(t, q, ref(s))
	if got := lying(t, q, "box-1"); len(got) != 1 || got[0] != "unfinished upload "+base {
		t.Errorf("once the machine is gone: %q", got)
	}
	if err := clear1(t, q, "box-1", base); err != nil || h.Content("default", base) == nil {
		t.Errorf("%v; or the old pool was touched", err)
	}
	h.ChangePool("fast", func(p *virttest.Pool) { p.State = virt.PoolInactive })
	if _, err := lie(t, q, "box-1"); fault.Of(err) != fault.Transient {
		t.Errorf("a pool that does not run: %v; want Transient", err)
	}
	if err := clear1(t, q, "box-1", base); fault.Of(err) != fault.Transient {
		t.Errorf("removing from it: %v; want Transient", err)
	}
	h.RemovePool("fast")
	if _, err := lie(t, q, "box-1"); fault.Of(err) != fault.Permanent {
		t.Errorf("a pool that is not there: %v; want Permanent", err)
	}
	if err := clear1(t, q, "box-1", base); err != nil {
		t.Errorf("removing from a pool that is not there: %v", err)
	}
}

// Hosts whose pools are one folder: what machines of the one stand on is no
// leftover of the other, and nothing is while one of them does not answer.
func TestLeftoversInASharedFolder(t *testing.T) {
	for name, share := range map[string]func(m *mem, seen []virttest.Volume){
		"a pool of type netfs": func(m *mem, _ []virttest.Volume) {
			m.hosts["box-2"].ChangePool("default", func(p *virttest.Pool) { p.Type = "netfs" })
		},
		"a claim of the other host": func(m *mem, seen []virttest.Volume) {
			for _, v := range seen {
				if strings.HasPrefix(v.Name, "fleetdesk-claim-") {
					m.hosts["box-2"].PlantVolume("default", v.Name, "raw", nil)
				}
			}
		},
		"an image in both lists": func(*mem, []virttest.Volume) {},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1", "box-2")
			p := m.open(t)
			s := m.spec("a", "box-1")
			up(t, p, s)
			claims(t, p, claimOf(holderA, 1))
			base, names := m.base(t, s), domain.NamesOf(s.Owner)
			seen := m.hosts["box-1"].Volumes("default")
			h := m.hosts["box-2"]
			// box-2 read its pool anew, and sees what box-1 made.
			h.PlantVolume("default", names.Overlay, "qcow2", virttest.Qcow2(1<<20))
			ids := []string{names.Overlay}
			if name == "an image in both lists" {
				h.PlantVolume("default", base, "qcow2", m.image)
				ids = append(ids, base)
			}
			share(m, seen)
			q := m.another(t)
			if got := lying(t, q, "box-2"); len(got) != 0 {
				t.Errorf("%q", got)
			}
			for _, id := range ids {
				if err := clear1(t, q, "box-2", id); fault.Of(err) != fault.Conflict {
					t.Errorf("removing %s: %v; want Conflict", id, err)
				}
			}
			m.hosts["box-1"].Break()
			if _, err := lie(t, q, "box-2"); fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "other hosts share") {
				t.Errorf("while box-1 does not answer: %v; want Unavailable", err)
			}
			for _, id := range ids {
				if err := clear1(t, q, "box-2", id); fault.Of(err) != fault.Unavailable || h.Content("default", id) == nil {
					t.Errorf("removing %s while box-1 does not answer: %v; want Unavailable", id, err)
				}
			}
		})
	}
}

// Without anything new a host costs three calls.
func TestWhatLeftoversCost(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	for i := range 5 {
		up(t, p, m.spec(fmt.Sprint("p", i), "box-1"))
	}
	lying(t, p, "box-1")
	m.hosts["box-1"].ResetCalls()
	lying(t, p, "box-1")
	n := 0
	for _, k := range m.hosts["box-1"].Calls() {
		n += k
	}
	if n != 3 {
		t.Errorf("a look costs %v", m.hosts["box-1"].Calls())
	}
}

// A machine that another operator makes between any two calls of a look is no
// leftover of it.
func TestAMachineIsMadeDuringTheLook(t *testing.T) {
	for k := 1; ; k++ {
		m := newMem(t, "box-1")
		h := m.hosts["box-1"]
		p, q := m.open(t), m.open(t)
		up(t, q, m.spec("first", "box-1"))
		s := m.spec("a", "box-1")
		var n atomic.Int32
		var busy atomic.Bool
		h.OnDone(func(string) error {
			if busy.Load() || n.Add(1) != int32(k) {
				return nil
			}
			busy.Store(true)
			defer busy.Store(false)
			_, err := tryUp(t.Context(), q, s)
			return err
		})
		got := lying(t, p, "box-1")
		h.OnDone(nil)
		if n.Load() < int32(k) {
			return
		}
		if len(got) != 0 {
			t.Errorf("made after call %d of the look: %q", k, got)
		}
		if k > 20 {
			t.Fatal("there is no end of calls")
		}
	}
}
