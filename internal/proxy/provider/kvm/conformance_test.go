package kvm_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/guard"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
	"fleetdesk/internal/proxy/provider/providertest"
)

// The contract, over daemons in memory, which pass the same suite as the real
// ones (package virttest). TestRealConformance is the same over real ones.
func TestConformance(t *testing.T) {
	m := newMem(t, "box-1", "box-2", "box-3")
	b := &backEnd{mem: m}
	b.p = m.open(t)
	providertest.Run(t, b.harness(t, b.p))
	for _, host := range m.names() {
		if left := m.halves(host); len(left) > 0 {
			t.Errorf("halves of images are left on %s: %q", host, left)
		}
	}
}

// Decorated as the operator does it, nothing of the contract is lost.
func TestConformanceDecorated(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	b := &backEnd{mem: m}
	b.p = m.open(t)
	providertest.Run(t, b.harness(t, guard.Deadline(b.p, guard.DeadlineOptions{Name: "home"})))
}

type backEnd struct {
	*mem
	p *kvm.Provider
}

func (b *backEnd) harness(t *testing.T, p provider.Provider) providertest.Harness {
	return providertest.Harness{
		Provider:     p,
		Installation: tag,
		Hosts:        b.names(),
		StepLimit:    2 * time.Second,
		Spec: func(o provider.Owner) provider.Spec {
			s := b.spec("x", "")
			s.Owner = o
			return s
		},
		Reopen:  func(t providertest.T) provider.Provider { return b.open(t) },
		Remains: func(_ providertest.T, o provider.Owner) []string { return b.parts(o) },
		Foreign: b.foreign,
		Stop:    func(_ providertest.T, in provider.Instance) { b.hosts[in.Host].StopDomain(nameOf(in)) },
		Vanish:  func(_ providertest.T, in provider.Instance) { b.hosts[in.Host].RemoveDomain(nameOf(in)) },
		Corrupt: func(_ providertest.T, in provider.Instance) func() {
			undo := b.hosts[in.Host].CorruptMetadata(nameOf(in))
			b.p.Relearn()
			return func() { undo(); b.p.Relearn() }
		},
		// kubevirt 14589: paused on an I/O error is neither Running nor gone.
		Impair: func(_ providertest.T, in provider.Instance) func() {
			b.hosts[in.Host].PauseDomain(nameOf(in), virt.PausedIOError)
			return func() {
				if len(b.parts(in.Owner)) > 0 {
					b.hosts[in.Host].ResumeDomain(nameOf(in))
				}
			}
		},
		BreakHost: func(t providertest.T, host string) func() {
			b.hosts[host].Break()
			return func() { b.hosts[host].Mend(); b.awake(t, host) }
		},
		MuteHost: func(t providertest.T, host string) func() {
			b.hosts[host].Mute()
			return func() { b.hosts[host].Mend(); b.awake(t, host) }
		},
		Fill: func(providertest.T) func() {
			for _, h := range b.hosts {
				h.FillPool(1 << 20)
			}
			b.advance(time.Minute) // what was learned for Place is old now
			return func() {
				for _, h := range b.hosts {
					h.FillPool(100 << 30)
				}
				b.advance(-time.Minute)
			}
		},
		Litter: b.litter,
		Use:    b.use,
		UnknownIDs: []string{
			"kvm://home/" + b.names()[0] + "/01234567-89ab-8def-8123-456789abcdef",
			"kvm://home/" + b.names()[1] + "/11234567-89ab-8def-8123-456789abcdef",
		},
		MalformedIDs: []string{
			"kvm://home", "kvm://home/box-1", "kvm://home/box-1/x", "kvm://home/box-1/01234567-89AB-8DEF-8123-456789ABCDEF",
			"kvm://home/box-1/01234567-89ab-8def-8123-456789abcdef/", "local://home/x", "x",
		},
		StrayIDs: []string{"kvm://home/gone/01234567-89ab-8def-8123-456789abcdef"},
	}
}

func nameOf(in provider.Instance) string { return domain.NamesOf(in.Owner).Domain }

// awake waits until the provider reaches the host again: after a failed dial
// it pauses for a moment.
func (b *backEnd) awake(t providertest.T, host string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		rows, err := b.p.ListByTag(context.Background(), "nobody")
		i := slices.IndexFunc(rows, func(r provider.HostList) bool { return r.Host == host })
		if err == nil && rows[i].Err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("host %s does not come back: %v, %+v", host, err, rows)
		}
	}
}

// litter leaves an owner's disk without its domain.
func (b *backEnd) litter(t providertest.T, host string, o provider.Owner) (provider.Leftover, func(providertest.T) bool) {
	name := domain.NamesOf(o).Overlay
	b.hosts[host].PlantVolume("default", name, "qcow2", virttest.Qcow2(1<<20))
	there := func(providertest.T) bool { return b.hosts[host].Content("default", name) != nil }
	t.Cleanup(func() { b.drop(t, host, name) })
	return provider.Leftover{Host: host, ID: name}, there
}

// drop removes a volume behind the provider's back.
func (b *backEnd) drop(t providertest.T, host, name string) {
	c := b.hosts[host].Link()
	defer func() { _ = c.Close() }()
	if err := c.StorageVolDelete(context.Background(), virt.Volume{Pool: "default", Name: name}); err != nil && fault.Of(err) != fault.NotFound {
		t.Errorf("removing %s: %v", name, err)
	}
}

// use defines a domain that the disk is called after.
func (b *backEnd) use(t providertest.T, l provider.Leftover) func() {
	o := provider.Owner{Installation: tag, Namespace: "suite", Name: "user", UID: l.ID}
	name := strings.TrimSuffix(l.ID, ".qcow2")
	text, err := domain.XML(domain.Shape{
		Names: domain.Names{Domain: name, Overlay: l.ID, Seed: name + "-seed.iso"}, UUID: domain.UUIDOf(o), MAC: domain.MACOf(o),
		Type: "qemu", Firmware: domain.UEFI, VCPUs: 1, MemoryBytes: 1 << 30, Network: "default",
		Mark:        domain.Mark{Owner: o, Created: time.Now(), Stage: domain.Made, Port: 3128},
		OverlayPath: "/var/lib/libvirt/images/" + l.ID, SeedPath: "/var/lib/libvirt/images/" + name + "-seed.iso",
	})
	if err == nil {
		err = b.hosts[l.Host].PlantDomain(text, false)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	return func() { b.hosts[l.Host].RemoveDomain(name) }
}

// foreign plants a whole instance of another owner, with the names that this
// provider would give it.
func (b *backEnd) foreign(t providertest.T, host string, o provider.Owner) (provider.Ref, func(providertest.T)) {
	t.Helper()
	h, names := b.hosts[host], domain.NamesOf(o)
	h.PlantVolume("default", names.Overlay, "qcow2", append(virttest.Qcow2(1<<20), "somebody else's disk"...))
	h.PlantVolume("default", names.Seed, "raw", []byte("somebody else's seed"))
	text, err := domain.XML(domain.Shape{
		Names: names, UUID: domain.UUIDOf(o), MAC: domain.MACOf(o), Type: "qemu", Firmware: domain.UEFI, VCPUs: 1, MemoryBytes: 1 << 30,
		Mark:        domain.Mark{Owner: o, Created: time.Now(), Stage: domain.Made, Port: 3128},
		OverlayPath: "/var/lib/libvirt/images/" + names.Overlay, SeedPath: "/var/lib/libvirt/images/" + names.Seed, Network: "default",
	})
	if err == nil {
		err = h.PlantDomain(text, true)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	was := b.look(host, names)
	t.Cleanup(func() { h.RemoveDomain(names.Domain) })
	return provider.Ref{ID: domain.ID{Provider: "home", Host: host, UUID: domain.UUIDOf(o)}.String(), Owner: o, Host: host}, func(t providertest.T) {
		t.Helper()
		if is := b.look(host, names); is != was {
			t.Errorf("the foreign instance was\n%s\nand is\n%s", was, is)
		}
	}
}

func (b *backEnd) look(host string, names domain.Names) string {
	var out string
	for _, d := range b.hosts[host].Domains() {
		if d.Name == names.Domain {
			out += fmt.Sprintf("%+v\n", d)
		}
	}
	for _, name := range []string{names.Overlay, names.Seed} {
		out += fmt.Sprintf("%s: %q\n", name, b.hosts[host].Content("default", name))
	}
	return out
}
