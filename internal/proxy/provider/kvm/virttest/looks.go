package virttest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Domain is one domain of a host, looked at from the host itself.
type Domain struct {
	virt.Domain
	State      virt.State
	Reason     virt.Reason
	Persistent bool
	// XML is the document it was defined with last; empty of a transient one.
	XML string
	// Type is kvm or qemu.
	Type string
	// Metadata and LiveMetadata are the element in the persistent definition
	// and in the one that runs.
	Metadata, LiveMetadata string
	MACs                   []string
}

// Domains returns the host's domains by name.
func (h *Host) Domains() []Domain {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := []Domain{}
	for _, d := range h.domains {
		o := Domain{Domain: d.ref(), State: d.state, Reason: d.reason, Persistent: d.conf != nil, Type: d.current().kind}
		if d.conf != nil {
			o.XML, o.Metadata = d.conf.doc, d.conf.meta
		}
		if d.live != nil {
			o.LiveMetadata = d.live.meta
		}
		for _, n := range d.current().nics {
			o.MACs = append(o.MACs, n.mac)
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b Domain) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return out
}

// Volume is one volume of a host, looked at from the host itself.
type Volume struct {
	Name, Path, Format string
	Capacity, Physical uint64
	// Backing and BackingFormat are the file below and what it was said to be.
	Backing, BackingFormat string
	// Written counts the bytes that uploads left in it, SHA256 is their digest
	// (hex).
	Written uint64
	SHA256  string
}

// Volumes returns a pool's volumes by name, also while it is inactive.
func (h *Host) Volumes(pool string) []Volume {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := []Volume{}
	for _, v := range sorted(h.mustPool(pool).vols) {
		out = append(out, v.look())
	}
	return out
}

func (v *vol) look() Volume {
	sum := sha256.Sum256(v.content)
	return Volume{v.name, v.path, v.format, v.capacity, v.size, v.backing, v.bform, uint64(len(v.content)), hex.EncodeToString(sum[:])}
}

// Content returns what uploads wrote into a volume; nil when there is no such
// volume. Where the file is longer, zeros follow.
func (h *Host) Content(pool, volume string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.mustPool(pool).vols[volume]
	if v == nil {
		return nil
	}
	return append([]byte{}, v.content...)
}

// NVRAM returns the names of the domains that left a file of UEFI variables.
func (h *Host) NVRAM() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.nvram))
}

// StartedFrom returns the files that a domain was started with last, as they
// were at that moment; nil when it never ran.
func (h *Host) StartedFrom(domain string) []Disk {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.named(domain); d != nil {
		return slices.Clone(d.booted)
	}
	return nil
}

func (h *Host) change(name string, f func(d *dom)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.named(name)
	if d == nil {
		panic(fmt.Sprintf("virttest: host %s has no domain %q", h.name, name))
	}
	f(d)
}

// PauseDomain pauses a running domain for that reason.
func (h *Host) PauseDomain(name string, reason virt.Reason) {
	h.SetState(name, virt.StatePaused, reason)
}

// ResumeDomain lets a paused domain run again.
func (h *Host) ResumeDomain(name string) { h.SetState(name, virt.StateRunning, 5) }

// SetState puts a domain into a state. One that was active and is Shutoff or
// Crashed now does not run any more.
func (h *Host) SetState(name string, s virt.State, r virt.Reason) {
	h.change(name, func(d *dom) {
		if (s == virt.StateShutoff || s == virt.StateCrashed) && d.active() {
			h.stop(d, s, r)
			return
		}
		was := d.state
		d.state, d.reason = s, r
		h.entered(d, was)
	})
}

// StopDomain shuts a domain down from inside.
func (h *Host) StopDomain(name string) { h.SetState(name, virt.StateShutoff, virt.ShutoffShutdown) }

// RestartDomain stops a running domain and starts it again: it gets another
// number.
func (h *Host) RestartDomain(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.named(name)
	if d == nil || !d.active() || d.conf == nil {
		return fmt.Errorf("host %s: domain %q does not run", h.name, name)
	}
	h.stop(d, virt.StateShutoff, virt.ShutoffDestroyed)
	return h.start(d)
}

// SaveDomain stops a running domain with its memory saved (managed save), which
// an undefine without its flag refuses.
func (h *Host) SaveDomain(name string) {
	h.change(name, func(d *dom) {
		h.stop(d, virt.StateShutoff, virt.ShutoffSaved)
		d.saved = true
	})
}

// SnapshotDomain gives a domain that many snapshots and checkpoints, which an
// undefine without their flags refuses.
func (h *Host) SnapshotDomain(name string, snapshots, checkpoints int) {
	h.change(name, func(d *dom) { d.snapshots, d.checks = snapshots, checkpoints })
}

// RemoveDomain takes a domain away as a person would do it: with the volumes
// of its disks and its NVRAM. Bases stay.
func (h *Host) RemoveDomain(name string) {
	h.change(name, func(d *dom) {
		for _, k := range d.current().disks {
			if v := h.file(k.path); v != nil {
				delete(h.pools[v.pool].vols, v.name)
			}
		}
		delete(h.nvram, name)
		if d.active() {
			h.stop(d, virt.StateShutoff, virt.ShutoffDestroyed)
		}
		if d.conf != nil {
			h.happened(d, virt.EventUndefined, undefinedRemoved)
		}
		delete(h.domains, d.uuid)
	})
}

// CorruptMetadata makes a domain's element unreadable; undo gives it back.
func (h *Host) CorruptMetadata(name string) (undo func()) {
	return h.SetMetadata(name, `<instance broken="yes"><nonsense/></instance>`)
}

// SetMetadata replaces a domain's element, as it would be handed back; "" takes
// it away. undo gives the old one back while the domain is there.
func (h *Host) SetMetadata(name, element string) (undo func()) {
	var uuid, conf, live string
	h.change(name, func(d *dom) {
		uuid = d.uuid
		if d.conf != nil {
			conf, d.conf.meta = d.conf.meta, element
		}
		if d.live != nil {
			live, d.live.meta = d.live.meta, element
		}
	})
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		d := h.domains[uuid]
		if d == nil {
			return
		}
		if d.conf != nil {
			d.conf.meta = conf
		}
		if d.live != nil {
			d.live.meta = live
		}
	}
}

// PlantVolume puts a volume with that content into a pool, or replaces one.
func (h *Host) PlantVolume(pool, name, format string, content []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.mustPool(pool)
	v := &vol{pool: pool, name: name, format: format, path: p.conf.Path + "/" + name, content: bytes.Clone(content), size: uint64(len(content))}
	v.probe()
	p.vols[name] = v
}

// PlantDomain defines a domain from its document, and starts it when asked.
func (h *Host) PlantDomain(doc string, run bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.define(doc)
	if err == nil && run {
		err = h.start(d)
	}
	return err
}

// Foreign plants running domains of those names with a volume each, which are
// somebody else's, and remembers how they are; see [Host.Untouched].
func (h *Host) Foreign(names ...string) {
	for _, name := range names {
		h.PlantVolume(DefaultPool, name+".qcow2", "qcow2", Qcow2(8<<20))
		h.mu.Lock()
		path := h.mustPool(DefaultPool).vols[name+".qcow2"].path
		h.mu.Unlock()
		doc := fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>`+
			`<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='vda' bus='virtio'/></disk></devices></domain>`,
			textEscapes.Replace(name), textEscapes.Replace(path))
		if err := h.PlantDomain(doc, true); err != nil {
			panic(fmt.Sprintf("virttest: foreign domain %q: %v", name, err))
		}
	}
	now := h.foreign(names)
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.planted, now)
}

func (h *Host) foreign(names []string) map[string]string {
	out := map[string]string{}
	for _, name := range names {
		out[name] = "gone"
	}
	for _, d := range h.Domains() {
		if _, ok := out[d.Name]; ok {
			out[d.Name] = fmt.Sprintf("%+v", d)
		}
	}
	for _, v := range h.Volumes(DefaultPool) {
		for _, name := range names {
			if v.Name == name+".qcow2" {
				out[name] += fmt.Sprintf(" %+v", v)
			}
		}
	}
	return out
}

// Untouched is nil while everything that Foreign planted is as it was.
func (h *Host) Untouched() error {
	h.mu.Lock()
	was := maps.Clone(h.planted)
	h.mu.Unlock()
	names := slices.Sorted(maps.Keys(was))
	now := h.foreign(names)
	for _, name := range names {
		if was[name] != now[name] {
			return fmt.Errorf("host %s: %q was %s\nand is %s", h.name, name, was[name], now[name])
		}
	}
	return nil
}

// Qcow2 is a valid, empty qcow2 image (version 3) of that virtual size.
func Qcow2(size uint64) []byte {
	const cluster = 1 << 16
	b := make([]byte, 4*cluster)
	put32 := func(at int, v uint32) { binary.BigEndian.PutUint32(b[at:], v) }
	put64 := func(at int, v uint64) { binary.BigEndian.PutUint64(b[at:], v) }
	copy(b, qcow2Magic)
	put32(4, 3)
	put32(20, 16)
	put64(24, size)
	put32(36, uint32(max(1, (size+(cluster/8*cluster)-1)/(cluster/8*cluster))))
	put64(40, 3*cluster)
	put64(48, cluster)
	put32(56, 1)
	put32(96, 4)
	put32(100, 104)
	put64(cluster, 2*cluster)
	for i := range 4 {
		binary.BigEndian.PutUint16(b[2*cluster+2*i:], 1)
	}
	return b
}

// Reboot is a reboot of the host: guests are off, the numbers of domains begin
// again, and links end.
func (h *Host) Reboot() {
	h.mu.Lock()
	for _, d := range h.domains {
		if d.active() {
			h.stop(d, 5, 2)
		}
	}
	h.lastID = 0
	h.mu.Unlock()
	h.DropLinks()
}
