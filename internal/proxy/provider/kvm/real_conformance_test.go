//go:build integration

package kvm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/providertest"
	"fleetdesk/internal/testkit/libvirthost"
)

// The contract, on three real hosts: sshd, libvirtd and QEMU. The guests are
// empty disks; see leases.
func TestRealConformance(t *testing.T) {
	f := newFleet(t, 3, func(o *libvirthost.HostOptions) { o.Network = true })
	// Pools of a size at which "full" costs little memory.
	for _, h := range f.hosts {
		if err := h.SmallPool(t.Context(), "small", 1200<<20); err != nil {
			t.Fatal(err)
		}
		c := f.section.Hosts[h.Name()]
		c.Pool, c.Bridge, c.Network = "small", "", "default"
		f.section.Hosts[h.Name()] = c
	}
	b := &realBackEnd{deaf: map[string]bool{}, f: f, n: &leases{f: f}}
	b.p = f.open(t, b.options)
	providertest.Run(t, providertest.Harness{
		Provider:     b.p,
		Installation: installation,
		Hosts:        f.names(),
		Patience:     2 * time.Minute,
		StepLimit:    10 * time.Second,
		Many:         4,
		Spec: func(o provider.Owner) provider.Spec {
			b.n.know(t, o)
			s := specOf(o, "")
			s.UserData = provider.Secret("#cloud-config\npassword: c4n4ry-7Qx\n")
			return s
		},
		Reopen:  func(providertest.T) provider.Provider { return f.open(t, b.options) },
		Remains: b.remains, Foreign: b.foreign,
		Stop: b.stop, Vanish: b.vanish, Corrupt: b.corrupt, Impair: b.impair,
		BreakHost: b.breakHost, MuteHost: b.muteHost, Fill: b.fill,
		Litter: b.litter, Use: b.use,
		UnknownIDs: []string{
			"kvm://home/" + f.hosts[0].Name() + "/01234567-89ab-8def-8123-456789abcdef",
			"kvm://home/" + f.hosts[2].Name() + "/11234567-89ab-8def-8123-456789abcdef",
		},
		MalformedIDs: []string{"kvm://home", "kvm://home/box-1", "kvm://home/box-1/x", "kvm://home/box-1/01234567-89AB-8DEF-8123-456789ABCDEF", "local://home/x", "x"},
		StrayIDs:     []string{"kvm://home/gone/01234567-89ab-8def-8123-456789abcdef"},
	})
	f.clean(t)
}

// realBackEnd is what the suite wants of the hosts, past the provider.
type realBackEnd struct {
	f *fleet
	n *leases
	p *kvm.Provider
	// later is added to the provider's clock.
	later atomic.Int64
	// deaf are hosts whose daemon does not run.
	deaf map[string]bool
}

func (b *realBackEnd) options(o *kvm.Options) {
	o.StepLimit = 9 * time.Second
	o.Clock = func() time.Time { return time.Now().Add(time.Duration(b.later.Load())) }
}

func (b *realBackEnd) virsh(t providertest.T, host string, args ...string) string {
	t.Helper()
	out, err := b.f.on(host).Virsh(context.Background(), args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// remains looks at the hosts' files and processes, and asks libvirt last.
func (b *realBackEnd) remains(t providertest.T, o provider.Owner) []string {
	t.Helper()
	name := domain.NamesOf(o).Domain
	var found []string
	for _, h := range b.f.hosts {
		for _, dir := range []string{"/var/lib/libvirt/small", "/var/lib/libvirt/images", "/var/lib/libvirt/qemu/nvram", "/etc/libvirt/qemu"} {
			files, _ := filepath.Glob(h.Path(filepath.Join(dir, name+"*")))
			if dir == "/var/lib/libvirt/small" {
				// A file system of its own: seen from inside alone.
				out, err := h.Run(context.Background(), "ls", dir)
				if err != nil {
					t.Fatalf("%v", err)
				}
				files = nil
				for _, f := range strings.Fields(out) {
					if strings.HasPrefix(f, name) {
						files = append(files, dir+"/"+f)
					}
				}
			}
			for _, file := range files {
				found = append(found, h.Name()+":"+file)
			}
		}
		guests, err := h.Guests(context.Background())
		if err != nil {
			t.Fatalf("%v", err)
		}
		for _, g := range guests {
			if g == name {
				found = append(found, h.Name()+": QEMU of "+g)
			}
		}
	}
	return found
}

func (b *realBackEnd) foreign(t providertest.T, host string, o provider.Owner) (provider.Ref, func(providertest.T)) {
	t.Helper()
	h := b.f.on(host)
	names := domain.NamesOf(o)
	disk := filepath.Join("/var/lib/libvirt/images", names.Overlay)
	text, err := domain.XML(domain.Shape{
		Names: names, UUID: domain.UUIDOf(o), MAC: domain.MACOf(o), Type: "qemu", Firmware: domain.BIOS, VCPUs: 1, MemoryBytes: 64 << 20,
		Mark:        domain.Mark{Owner: o, Created: time.Now(), Stage: domain.Made, Port: 3128},
		OverlayPath: disk, SeedPath: disk, Bridge: "br0",
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	for path, content := range map[string]string{disk: "somebody else's", "/run/foreign.xml": text} {
		if err := os.WriteFile(h.Path(path), []byte(content), 0o600); err != nil {
			t.Fatalf("%v", err)
		}
	}
	b.virsh(t, host, "define", "/run/foreign.xml")
	was := b.virsh(t, host, "dumpxml", names.Domain)
	t.Cleanup(func() {
		b.virsh(t, host, "undefine", names.Domain)
		_ = os.Remove(h.Path(disk))
	})
	return provider.Ref{ID: domain.ID{Provider: "home", Host: host, UUID: domain.UUIDOf(o)}.String(), Owner: o, Host: host}, func(t providertest.T) {
		t.Helper()
		if is := b.virsh(t, host, "dumpxml", names.Domain); is != was {
			t.Errorf("the foreign domain was\n%s\nand is\n%s", was, is)
		}
		if is, err := os.ReadFile(h.Path(disk)); err != nil || string(is) != "somebody else's" {
			t.Errorf("the foreign disk is %q, %v", is, err)
		}
	}
}

// litter leaves an owner's disk without its domain.
func (b *realBackEnd) litter(t providertest.T, host string, o provider.Owner) (provider.Leftover, func(providertest.T) bool) {
	t.Helper()
	name := domain.NamesOf(o).Overlay
	b.virsh(t, host, "vol-create-as", "small", name, "1M", "--format", "qcow2")
	there := func(t providertest.T) bool {
		t.Helper()
		return strings.Contains(b.virsh(t, host, "vol-list", "small"), " "+name+" ")
	}
	t.Cleanup(func() {
		if there(t) {
			b.virsh(t, host, "vol-delete", "--pool", "small", name)
		}
	})
	return provider.Leftover{Host: host, ID: name}, there
}

// use defines a domain that the disk is called after.
func (b *realBackEnd) use(t providertest.T, l provider.Leftover) func() {
	t.Helper()
	o := provider.Owner{Installation: installation, Namespace: "suite", Name: "user", UID: l.ID}
	name := strings.TrimSuffix(l.ID, ".qcow2")
	disk := filepath.Join("/var/lib/libvirt/small", l.ID)
	text, err := domain.XML(domain.Shape{
		Names: domain.Names{Domain: name, Overlay: l.ID, Seed: name + "-seed.iso"}, UUID: domain.UUIDOf(o), MAC: domain.MACOf(o),
		Type: "qemu", Firmware: domain.BIOS, VCPUs: 1, MemoryBytes: 64 << 20, Bridge: "br0",
		Mark:        domain.Mark{Owner: o, Created: time.Now(), Stage: domain.Made, Port: 3128},
		OverlayPath: disk, SeedPath: disk,
	})
	if err == nil {
		err = os.WriteFile(b.f.on(l.Host).Path("/run/user.xml"), []byte(text), 0o600)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	b.virsh(t, l.Host, "define", "/run/user.xml")
	return func() { b.virsh(t, l.Host, "undefine", name) }
}

func (b *realBackEnd) stop(t providertest.T, in provider.Instance) {
	t.Helper()
	if !b.deaf[in.Host] {
		b.virsh(t, in.Host, "destroy", nameOf(in))
		return
	}
	// Without its daemon the guest ends as by a crash.
	const kill = `pid=$(cat "/run/libvirt/qemu/$1.pid") && kill -KILL "$pid" && while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done`
	if out, err := b.f.on(in.Host).Run(context.Background(), "timeout", "20", "sh", "-c", kill, "sh", nameOf(in)); err != nil {
		t.Fatalf("%s %v", out, err)
	}
}

func (b *realBackEnd) vanish(t providertest.T, in provider.Instance) {
	t.Helper()
	names := domain.NamesOf(in.Owner)
	b.virsh(t, in.Host, "destroy", names.Domain)
	b.virsh(t, in.Host, "undefine", names.Domain, "--nvram")
	b.virsh(t, in.Host, "vol-delete", names.Overlay, "small")
	b.virsh(t, in.Host, "vol-delete", names.Seed, "small")
}

func (b *realBackEnd) corrupt(t providertest.T, in provider.Instance) func() {
	t.Helper()
	name := nameOf(in)
	metadata := func(args ...string) string {
		return b.virsh(t, in.Host, append([]string{"metadata", name, "--uri", virt.MetadataNamespace}, args...)...)
	}
	was := strings.TrimSpace(metadata())
	metadata("--key", virt.MetadataPrefix, "--live", "--config", "--set", "<instance uid='half'/>")
	b.p.Relearn()
	return func() {
		// It may be gone by now.
		_, _ = b.f.on(in.Host).Virsh(context.Background(), "metadata", name, "--uri", virt.MetadataNamespace, "--key", virt.MetadataPrefix, "--live", "--config", "--set", was)
		b.p.Relearn()
	}
}

func (b *realBackEnd) impair(t providertest.T, in provider.Instance) func() {
	t.Helper()
	b.virsh(t, in.Host, "suspend", nameOf(in))
	return func() { _, _ = b.f.on(in.Host).Virsh(context.Background(), "resume", nameOf(in)) } // it may be gone by now
}

// breakHost ends libvirtd: the connection ends, and new ones find no socket.
func (b *realBackEnd) breakHost(t providertest.T, host string) func() {
	t.Helper()
	h := b.f.on(host)
	if err := h.KillLibvirtd(context.Background()); err != nil {
		t.Fatalf("%v", err)
	}
	b.deaf[host] = true
	return func() {
		if err := h.StartLibvirtd(context.Background()); err != nil {
			t.Fatalf("%v", err)
		}
		delete(b.deaf, host)
		b.awake(t, host)
	}
}

// awake waits until the provider is connected again: after a failed dial it
// pauses for a moment.
func (b *realBackEnd) awake(t providertest.T, host string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		rows, err := b.p.ListByTag(context.Background(), "nobody")
		if err != nil {
			t.Fatalf("%v", err)
		}
		var down error
		for _, r := range rows {
			if r.Host == host {
				down = r.Err
			}
		}
		if down == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("host %s: %v", host, down)
		}
	}
}

// muteHost stops libvirtd's process: its socket stays, and nothing answers.
func (b *realBackEnd) muteHost(t providertest.T, host string) func() {
	t.Helper()
	h := b.f.on(host)
	if err := h.FreezeLibvirtd(context.Background()); err != nil {
		t.Fatalf("%v", err)
	}
	return func() {
		if err := h.ThawLibvirtd(context.Background()); err != nil {
			t.Fatalf("%v", err)
		}
		b.awake(t, host)
	}
}

func (b *realBackEnd) fill(t providertest.T) func() {
	t.Helper()
	each := func(args ...string) {
		for _, h := range b.f.hosts {
			if _, err := h.Run(context.Background(), args[0], args[1:]...); err != nil {
				t.Fatalf("%v", err)
			}
		}
	}
	// libvirt tells the space as of its last look at the pool.
	refresh := func() { each("virsh", "-q", "pool-refresh", "small") }
	each("fallocate", "-l", fmt.Sprint(400<<20), "/var/lib/libvirt/small/filler")
	refresh()
	b.later.Store(int64(time.Minute)) // what was learned for Place is old now
	return func() {
		each("rm", "/var/lib/libvirt/small/filler")
		refresh()
		b.later.Store(0)
	}
}
