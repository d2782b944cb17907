package kvm_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

func ref(s provider.Spec) provider.Ref { return provider.Ref{Owner: s.Owner, Host: s.Host} }

// terraform-provider-libvirt 921, 1003: what a failed create left is taken over
// when it is ours; a name that somebody else has is said with the owner.
func TestANameThatIsTaken(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	s := m.spec("a", "box-1")
	other := provider.Owner{Installation: "another/fleetdesk", Namespace: "their", Name: "proxy", UID: "11111111-2222-4333-8444-555555555555"}
	names := domain.NamesOf(s.Owner)
	text, err := domain.XML(domain.Shape{
		Names: names, UUID: domain.UUIDOf(other), MAC: domain.MACOf(other), Type: "qemu", Firmware: domain.BIOS, VCPUs: 1, MemoryBytes: 1 << 30,
		Mark:        domain.Mark{Owner: other, Created: time.Now(), Stage: domain.Made},
		OverlayPath: "/var/lib/libvirt/images/x", SeedPath: "/var/lib/libvirt/images/y", Network: "default",
	})
	if err == nil {
		err = m.hosts["box-1"].PlantDomain(text, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	err = failure(t, p, s)
	for _, want := range []string{names.Domain, domain.UUIDOf(other), "their/proxy", other.UID, "rename or undefine it"} {
		if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want Permanent with %q", fault.Of(err), err, want)
		}
	}
	if n := len(m.hosts["box-1"].Domains()); n != 1 {
		t.Errorf("%d domains", n)
	}
}

// exordos_core 66: a step of a removal that fails does not keep the others from
// being done, the first error is said, and the domain stays until all is gone,
// so that what is left is seen.
func TestOneFailedStepOfARemoval(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	h.FailNext("StorageVolDelete", virt.Fault(virt.CodeSystemError, "cannot unlink: Input/output error"))
	st, err := p.Delete(t.Context(), ref(s))
	if err == nil || st == provider.Gone || !strings.Contains(err.Error(), "Input/output error") || !strings.Contains(err.Error(), "box-1") {
		t.Errorf("Delete = %s, %v", st, err)
	}
	names := domain.NamesOf(s.Owner)
	want := []string{"box-1: NVRAM of " + names.Domain, "box-1: domain " + names.Domain, "box-1: volume " + names.Overlay}
	if left := m.parts(s.Owner); !slices.Equal(left, want) {
		t.Errorf("left: %q; want %q", left, want)
	}
	for _, d := range h.Domains() {
		if d.State != virt.StateShutoff {
			t.Errorf("it still runs: %+v", d)
		}
	}
	if in, err := p.Get(t.Context(), ref(s)); err != nil || in.State != provider.Deleting {
		t.Errorf("meanwhile: %+v, %v", in, err)
	}
	if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Deleting {
		t.Errorf("Create meanwhile: %+v, %v", in, err)
	}
	down(t, p, ref(s))
	if left := m.parts(s.Owner); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// terraform-provider-libvirt 1203, vagrant-libvirt 1371: whatever libvirt keeps
// beside a definition goes with it, on old daemons as well, which refuse all
// flags for one that they do not know.
func TestUndefineTakesAllWithIt(t *testing.T) {
	for name, tc := range map[string]struct {
		harm   func(h *virttest.Host, name string)
		refuse virt.UndefineFlags
	}{
		"NVRAM":       {func(*virttest.Host, string) {}, 0},
		"saved":       {func(h *virttest.Host, name string) { h.SaveDomain(name) }, 0},
		"snapshots":   {func(h *virttest.Host, name string) { h.SnapshotDomain(name, 2, 0) }, 0},
		"checkpoints": {func(h *virttest.Host, name string) { h.SnapshotDomain(name, 0, 2) }, 0},
		"libvirt 8":   {func(*virttest.Host, string) {}, virt.UndefineTPM},
		"libvirt 5":   {func(h *virttest.Host, name string) { h.SaveDomain(name) }, virt.UndefineCheckpointsMetadata},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			p := m.open(t)
			s := m.spec("a", "box-1")
			up(t, p, s)
			tc.harm(h, domain.NamesOf(s.Owner).Domain)
			tries := 0
			if tc.refuse != 0 {
				refusals := map[virt.UndefineFlags]int{virt.UndefineTPM: 1, virt.UndefineCheckpointsMetadata: 2}[tc.refuse]
				h.OnCall(func(rpc string) error {
					if rpc != "virDomainUndefineFlags" {
						return nil
					}
					if tries++; tries <= refusals {
						return virt.Fault(virt.CodeInvalidArg, "invalid argument: unsupported flags (0x40) in function qemuDomainUndefineFlags")
					}
					return nil
				})
			}
			down(t, p, ref(s))
			if left := m.parts(s.Owner); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// cluster-api-provider-libvirt 68: to delete what was never made is success,
// and at once. terraform-provider-libvirt 52: a pool that is not running is no
// proof that volumes are gone; one that is not there any more is.
func TestDeleteAndThePool(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		made   bool
		harm   func(h *virttest.Host)
		class  fault.Class
		want   string
	}{
		"never made":                {"nothing to wait for", false, func(*virttest.Host) {}, "", ""},
		"pool missing":              {"nothing can be left in it", true, func(h *virttest.Host) { h.RemovePool("default") }, "", ""},
		"pool missing, never made":  {"nor here", false, func(h *virttest.Host) { h.RemovePool("default") }, "", ""},
		"pool inactive":             {"the volumes are still there", true, inactive, fault.Transient, `pool "default" is not running`},
		"pool inactive, never made": {"something may be there", false, inactive, fault.Transient, "virsh pool-start default"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			p := m.open(t)
			s := m.spec("a", "box-1")
			if tc.made {
				up(t, p, s)
			}
			tc.harm(h)
			st, err := p.Delete(t.Context(), ref(s))
			if tc.class == "" {
				if err != nil || st != provider.Gone {
					t.Errorf("%s: %s, %v", tc.reason, st, err)
				}
				return
			}
			if fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %s, %s: %v", tc.reason, st, fault.Of(err), err)
			}
			for _, d := range h.Domains() {
				if d.State != virt.StateShutoff {
					t.Errorf("for the lost pool the machine keeps running")
				}
			}
			h.ChangePool("default", func(p *virttest.Pool) { p.State = virt.PoolRunning })
			down(t, p, ref(s))
			if left := m.parts(s.Owner); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func inactive(h *virttest.Host) {
	h.ChangePool("default", func(p *virttest.Pool) { p.State = virt.PoolInactive })
}

// What is wrong with a host, or with a spec, is said so that a person can act.
func TestCreateSaysWhatIsWrong(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		harm   func(h *virttest.Host)
		spec   func(s *provider.Spec)
		class  fault.Class
		want   string
	}{
		"no pool":          {"a fresh libvirt has none", func(h *virttest.Host) { h.RemovePool("default") }, nil, fault.Permanent, `no storage pool "default": make it there (virsh pool-define-as default dir`},
		"pool inactive":    {"defined and never started", inactive, nil, fault.Transient, "virsh pool-start default"},
		"pool of LVM":      {"terraform-provider-libvirt 586, 1199", func(h *virttest.Host) { h.ChangePool("default", func(p *virttest.Pool) { p.Type = "logical" }) }, nil, fault.Unsupported, `of type "logical", and instances need files`},
		"no acceleration":  {"no /dev/kvm", func(h *virttest.Host) { h.Offer("qemu") }, nil, fault.Permanent, "allowEmulation"},
		"no UEFI":          {"ovmf is not installed", func(h *virttest.Host) { h.Firmware(false) }, nil, fault.Permanent, "apt-get install ovmf"},
		"no network":       {"it says so when the domain starts", func(h *virttest.Host) { h.RemoveNetwork("default") }, nil, fault.Permanent, "default"},
		"little memory":    {"64Mi is a likely copy from a Pod", nil, func(s *provider.Spec) { s.Resources.MemoryBytes = 64 << 20 }, fault.Invalid, "resources.memory: 64 MiB is less than a virtual machine needs to start: ask for at least 128 MiB"},
		"absurd memory":    {"a typo of the unit", nil, func(s *provider.Spec) { s.Resources.MemoryBytes = 1 << 60 }, fault.Invalid, "resources.memory"},
		"absurd CPUs":      {"a typo of the unit", nil, func(s *provider.Spec) { s.Resources.MilliCPUs = 1 << 40 }, fault.Invalid, "resources.cpus"},
		"zone":             {"there are none", nil, func(s *provider.Spec) { s.Zone = "a" }, fault.Invalid, "placement.zone"},
		"node selector":    {"there are none", nil, func(s *provider.Spec) { s.NodeSelector = map[string]string{"a": "b"} }, fault.Invalid, "placement.nodeSelector"},
		"much user-data":   {"it would not fit the seed", nil, func(s *provider.Spec) { s.UserData = make([]byte, 9<<20) }, fault.Invalid, "cloudInit has 9437184 bytes"},
		"no installation":  {"it would be nobody's", nil, func(s *provider.Spec) { s.Owner.Installation = "" }, fault.Invalid, "installation"},
		"unreachable host": {"a cable", func(h *virttest.Host) { h.Break() }, nil, fault.Unavailable, "box-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMem(t, "box-1")
			p := m.open(t)
			s := m.spec("a", "box-1")
			if tc.harm != nil {
				tc.harm(m.hosts["box-1"])
			}
			if tc.spec != nil {
				tc.spec(&s)
			}
			err := failure(t, p, s)
			if fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %s: %v; want %s with %q", tc.reason, fault.Of(err), err, tc.class, tc.want)
			}
			if strings.Count(err.Error(), "box-1") > 3 {
				t.Errorf("the host is named again and again: %v", err)
			}
		})
	}
}

// cloud-init of 1 MB and a name of 253 characters are nothing special.
func TestLargeThings(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	s := m.spec("a", "box-1")
	s.Owner.Name = strings.Repeat("n", 253)
	s.UserData = append([]byte("#cloud-config\n#"), make([]byte, 1<<20)...)
	in := up(t, p, s)
	if got, err := p.Get(t.Context(), provider.Ref{ID: in.ID}); err != nil || got.Owner != s.Owner {
		t.Errorf("%+v, %v", got, err)
	}
	seed := m.hosts["box-1"].Content("default", domain.NamesOf(s.Owner).Seed)
	if !strings.Contains(string(seed), string(s.UserData)) {
		t.Error("the user-data is not in the seed byte for byte")
	}
}

// A guest's machine is what was asked for, on this host's bridge.
func TestTheMachineIsAsAsked(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.SetBridge("br0", true)
	c := m.section.Hosts["box-1"]
	c.Bridge, c.DomainType = "br0", "qemu"
	m.section.Hosts["box-1"] = c
	p := m.open(t)
	s := m.spec("a", "box-1")
	s.Resources = provider.Resources{MilliCPUs: 1500, MemoryBytes: 768 << 20}
	in := up(t, p, s)
	d := h.Domains()[0]
	for _, want := range []string{
		"<vcpu>2</vcpu>", "805306368", "br0", domain.MACOf(s.Owner), "type=\"qemu\"", "secure-boot", s.Owner.UID, "/var/lib/libvirt/images/" + domain.NamesOf(s.Owner).Overlay,
	} {
		if !strings.Contains(d.XML, want) {
			t.Errorf("the domain lacks %q:\n%s", want, d.XML)
		}
	}
	if d.UUID != domain.UUIDOf(s.Owner) || !strings.HasSuffix(in.ID, d.UUID) {
		t.Errorf("UUID %s, id %s", d.UUID, in.ID)
	}
	if in.Port != 3128 || in.Host != "box-1" || in.Created.IsZero() {
		t.Errorf("%+v", in)
	}
	started := h.StartedFrom(d.Name)
	if len(started) < 2 {
		t.Fatalf("it was started from %+v", started)
	}
}

// Whoever is cut off at any call to the host, before it is done or before its
// answer comes, and repeats, gets one whole machine; and whoever is cut off at
// any call of the removal, and repeats, leaves nothing.
func TestCutOffAtEachCall(t *testing.T) {
	for _, done := range []bool{false, true} {
		for _, making := range []bool{true, false} {
			t.Run(fmt.Sprintf("making %t, done %t", making, done), func(t *testing.T) {
				for k := 1; ; k++ {
					if k > 100 {
						t.Fatal("there is no end of calls")
					}
					if !cutOffAt(t, k, making, done) {
						if k < 5 {
							t.Errorf("only %d calls were cut off", k-1)
						}
						return
					}
				}
			})
		}
	}
}

func cutOffAt(t *testing.T, k int, making, done bool) (cut bool) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	up(t, p, m.spec("first", "box-1")) // the image is there
	s := m.spec("a", "box-1")
	if !making {
		up(t, p, s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	var mu sync.Mutex
	hook := func(string) error {
		mu.Lock()
		defer mu.Unlock()
		if n++; n == k {
			cut = true
			cancel()
		}
		return nil
	}
	if done {
		h.OnDone(hook)
	} else {
		h.OnCall(hook)
	}
	if making {
		_, _ = p.Create(ctx, s)
	} else {
		_, _ = p.Delete(ctx, ref(s))
	}
	h.OnCall(nil)
	h.OnDone(nil)
	mu.Lock()
	defer mu.Unlock()
	if !cut {
		return false
	}
	q := m.open(t)
	if making {
		in := up(t, q, s)
		whole(t, m, s)
		if again, err := q.Get(t.Context(), ref(s)); err != nil || again.ID != in.ID {
			t.Errorf("cut off at call %d: %+v, %v", k, again, err)
		}
	}
	down(t, q, ref(s))
	if left := m.parts(s.Owner); len(left) > 0 {
		t.Errorf("cut off at call %d: left %q", k, left)
	}
	return true
}

// whole fails unless the machine was started from a whole seed.
func whole(t *testing.T, m *mem, s provider.Spec) {
	t.Helper()
	names := domain.NamesOf(s.Owner)
	h := m.hosts[s.Host]
	var seed string
	for _, v := range h.Volumes("default") {
		if v.Name == names.Seed {
			seed = v.SHA256
			if v.Physical == 0 || v.Physical != v.Written {
				t.Errorf("the seed has %d bytes of %d", v.Written, v.Physical)
			}
		}
	}
	ok := false
	for _, d := range h.StartedFrom(names.Domain) {
		ok = ok || strings.HasSuffix(d.Path, names.Seed) && d.SHA256 == seed && seed != ""
	}
	if !ok {
		t.Errorf("started from %+v, and the seed is %s", h.StartedFrom(names.Domain), seed)
	}
}

// Two operators at once, as when a leader was cut off and does not know yet:
// one machine, started from a whole seed, and a removal by either leaves
// nothing.
func TestTwoOperatorsAtOnce(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p, q := m.open(t), m.open(t)
	up(t, p, m.spec("first", "box-1"))
	h.Slow(200 * time.Microsecond)
	for i := range 10 {
		s := m.spec(fmt.Sprint("p", i), "box-1")
		var wg sync.WaitGroup
		var ins [2]provider.Instance
		var errs [2]error
		for j, one := range []provider.Provider{p, q} {
			wg.Go(func() {
				time.Sleep(time.Duration(i*j) * 300 * time.Microsecond)
				ins[j], errs[j] = tryUp(t.Context(), one, s)
			})
		}
		wg.Wait()
		if errs[0] != nil || errs[1] != nil || ins[0].ID != ins[1].ID {
			t.Fatalf("%+v, %v and %+v, %v", ins[0], errs[0], ins[1], errs[1])
		}
		whole(t, m, s)
		down(t, q, ref(s))
		if left := m.parts(s.Owner); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}

// Somebody else's machines and volumes are neither shown nor touched, and a
// domain of ours that cannot be read any more is shown, and left alone.
func TestForeignAndTorn(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.Foreign("web", "db", "fd-looks-like-ours")
	p := m.open(t)
	s := m.spec("a", "box-1")
	in := up(t, p, s)
	h.SetMetadata(domain.NamesOf(s.Owner).Domain, "")
	p.Relearn()
	rows, err := p.ListByTag(t.Context(), tag)
	if err != nil || len(rows) != 1 || len(rows[0].Instances) != 1 || rows[0].Instances[0].ID != in.ID || rows[0].Instances[0].State != provider.Unknown {
		t.Errorf("%+v, %v", rows, err)
	}
	if other, err := p.ListByTag(t.Context(), "another/fleetdesk"); err != nil || len(other[0].Instances) != 0 {
		t.Errorf("another installation is shown %+v, %v", other, err)
	}
	got, err := p.Get(t.Context(), ref(s))
	if err != nil || got.State != provider.Unknown || !strings.Contains(got.Message, "virsh dumpxml") {
		t.Errorf("%+v, %v", got, err)
	}
	if st, err := p.Delete(t.Context(), ref(s)); fault.Of(err) != fault.Permanent {
		t.Errorf("Delete of what nobody can say whose it is: %s, %v", st, err)
	}
	if len(m.parts(s.Owner)) != 4 {
		t.Errorf("it was touched: %q", m.parts(s.Owner))
	}
	if err := h.Untouched(); err != nil {
		t.Error(err)
	}
}
