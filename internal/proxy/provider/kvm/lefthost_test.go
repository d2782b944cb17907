package kvm_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// configure leaves only these hosts in the file, for the providers that are
// opened from here on.
func (m *mem) configure(all map[string]kvm.Host, hosts ...string) {
	m.section.Hosts = maps.Clone(all)
	maps.DeleteFunc(m.section.Hosts, func(name string, _ kvm.Host) bool { return !slices.Contains(hosts, name) })
}

// copied has the host to see, in its pool, what the other one made in the same
// folder.
func (m *mem) copied(from, to string) {
	for _, v := range m.hosts[from].Volumes("default") {
		m.hosts[to].PlantVolume("default", v.Name, "qcow2", m.hosts[from].Content("default", v.Name))
	}
}

func (m *mem) netfs() {
	for _, h := range m.hosts {
		h.ChangePool("default", func(p *virttest.Pool) { p.Type = "netfs" })
	}
}

// stays fails unless the removal is refused with those words, and the volume is
// there.
func (m *mem) stays(t *testing.T, p provider.Cleaner, host, id, why string) {
	t.Helper()
	if err := clear1(t, p, host, id); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), why) {
		t.Errorf("removing %s: %v; want Conflict with %q", id, err, why)
	}
	if m.hosts[host].Content("default", id) == nil {
		t.Errorf("%s is gone", id)
	}
}

// A host left the file while its machine runs on a pool that it shares with one
// that stays: neither the machine's image nor its disk goes, whether its Proxy is
// there or not, and whether the image's marker shows or not.
func TestAMachineOfAHostThatLeftKeepsItsImageAndDisk(t *testing.T) {
	for name, marker := range map[string]bool{"the image whole": true, "the image without its marker": false} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1", "box-2")
			m.netfs()
			all := maps.Clone(m.section.Hosts)
			p := m.open(t)
			s := m.spec("a", "box-1")
			up(t, p, s)
			claims(t, p, claimOf(holderA, 1))
			base, names := m.base(t, s), domain.NamesOf(s.Owner)
			h := m.hosts["box-2"]
			m.copied("box-1", "box-2")
			if !marker {
				c := h.Link()
				t.Cleanup(func() { _ = c.Close() })
				for _, v := range h.Volumes("default") {
					if strings.HasPrefix(v.Name, base+".") {
						if err := c.StorageVolDelete(t.Context(), virt.Volume{Pool: "default", Name: v.Name}); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			m.configure(all, "box-2")
			q := m.another(t)
			for what, keep := range map[string][]string{"its Proxy is there": {s.Owner.UID}, "its Proxy is gone": nil} {
				if got := lying(t, q, "box-2", keep...); len(got) != 0 {
					t.Errorf("%s: %q; want none", what, got)
				}
			}
			m.stays(t, q, "box-2", base, "has no domain on any configured host")
			m.stays(t, q, "box-2", names.Overlay, "left the configuration")
			m.stays(t, q, "box-2", names.Seed, "left the configuration")
			// The host is back, and answers: the machine is seen.
			m.configure(all, "box-1", "box-2")
			back := m.another(t)
			if got := lying(t, back, "box-2"); len(got) != 0 {
				t.Errorf("with the host back: %q", got)
			}
			m.stays(t, back, "box-2", base, "a machine stands on it")
			m.stays(t, back, "box-2", names.Overlay, "called after")
		})
	}
}

// The pool of one host alone: a disk without a domain keeps the images, and goes
// as before, and then the images go.
func TestADiskWithoutADomainKeepsTheImages(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	base, names := m.base(t, s), domain.NamesOf(s.Owner)
	m.undefine(t, "box-1", names.Domain)
	foreign := m.spec("f", "box-1")
	foreign.Owner.Installation = "another/fleetdesk"
	h.PlantVolume("default", domain.NamesOf(foreign.Owner).Overlay, "qcow2", virttest.Qcow2(1<<20))
	q := m.another(t)
	if got := lying(t, q, "box-1", s.Owner.UID); len(got) != 0 {
		t.Errorf("while its Proxy is there: %q", got)
	}
	m.stays(t, q, "box-1", base, names.Seed+" beside it has no domain")
	if got, want := lying(t, q, "box-1"), []string{"seed " + names.Seed, "disk " + names.Overlay}; !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	for _, id := range []string{names.Seed, names.Overlay} {
		if err := clear1(t, q, "box-1", id); err != nil {
			t.Error(err)
		}
	}
	if got := lying(t, q, "box-1"); len(got) != 1 || got[0] != "image "+base {
		t.Errorf("without them: %q; want the image", got)
	}
	if err := clear1(t, q, "box-1", base); err != nil || h.Content("default", base) != nil {
		t.Errorf("removing it: %v", err)
	}
}

// In a shared pool a disk without a domain goes only where the claims tell that
// all who have the pool are hosts of this provider that are configured.
func TestADiskInASharedPoolIsJudgedByTheClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		claim func(t *testing.T, m *mem, all map[string]kvm.Host)
		stays string
	}{
		"both hosts' own": {func(t *testing.T, m *mem, _ map[string]kvm.Host) {
			t.Helper()
			claims(t, m.open(t), claimOf(holderA, 1))
			m.copied("box-1", "box-2")
		}, ""},
		"none": {func(*testing.T, *mem, map[string]kvm.Host) {}, "no claim of this host yet"},
		"the other host's alone": {func(t *testing.T, m *mem, all map[string]kvm.Host) {
			t.Helper()
			m.configure(all, "box-1")
			claims(t, m.open(t), claimOf(holderA, 1))
			m.copied("box-1", "box-2")
		}, "no claim of this host yet"},
		"another provider's": {func(t *testing.T, m *mem, _ map[string]kvm.Host) {
			t.Helper()
			claims(t, m.open(t), claimOf(holderA, 1))
			claims(t, m.open(t, providerNamed("second")), claimOf(holderA, 1))
		}, "of another provider"},
		"another operator's, of the same places": {func(t *testing.T, m *mem, _ map[string]kvm.Host) {
			t.Helper()
			claims(t, m.open(t), claimOf(holderA, 1))
			claims(t, m.open(t), claimOf(holderB, 1))
		}, ""},
		"another installation's": {func(t *testing.T, m *mem, _ map[string]kvm.Host) {
			t.Helper()
			claims(t, m.open(t), claimOf(holderA, 1))
			c := claimOf(holderB, 1)
			c.Installation = "another/fleetdesk"
			claims(t, m.open(t), c)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1", "box-2")
			m.netfs()
			all := maps.Clone(m.section.Hosts)
			id := domain.NamesOf(m.spec("gone", "").Owner).Overlay
			m.hosts["box-2"].PlantVolume("default", id, "qcow2", virttest.Qcow2(1<<20))
			tc.claim(t, m, all)
			m.configure(all, "box-1", "box-2")
			q := m.open(t)
			got := lying(t, q, "box-2")
			if tc.stays != "" {
				if len(got) != 0 {
					t.Errorf("%q; want none", got)
				}
				m.stays(t, q, "box-2", id, tc.stays)
				return
			}
			if len(got) != 1 || got[0] != "disk "+id {
				t.Errorf("%q; want the disk", got)
			}
			if err := clear1(t, q, "box-2", id); err != nil || m.hosts["box-2"].Content("default", id) != nil {
				t.Errorf("removing it: %v", err)
			}
		})
	}
}
