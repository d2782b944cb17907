package virttest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"time"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Disk is a file that a domain was started with: a disk's own, or the base
// below one.
type Disk struct {
	// Target is the disk's name in the guest ("vda"); Depth is 0 for the disk's
	// own file, 1 for its base, and so on.
	Target string
	Depth  int
	Pool   string
	Volume string
	Path   string
	// SHA256 is the digest of what had been written into the file (hex), Size
	// its length at that moment.
	SHA256 string
	Size   uint64
}

// DomainCreate implements virt.Conn.
func (c *conn) DomainCreate(ctx context.Context, ref virt.Domain) error {
	return tell(ctx, c, "DomainCreate", func() error {
		d, err := c.host.findDom(ref)
		if err != nil {
			return err
		}
		if d.active() {
			return invalid("domain is already running")
		}
		return ofDomain(c.host.start(d))
	})
}

// start runs a domain. A failed start takes a number too, and leaves the
// domain shut off (failed).
func (h *Host) start(d *dom) error {
	h.lastID++
	booted, err := h.boot(d)
	if err != nil {
		d.state, d.reason = virt.StateShutoff, virt.ShutoffFailed
		return err
	}
	live := *d.conf
	d.id, d.live, d.booted = h.lastID, &live, booted
	d.state, d.reason = virt.StateRunning, virt.RunningBooted
	if d.saved {
		d.saved, d.reason = false, virt.RunningRestored
	}
	h.happened(d, virt.EventResumed, resumedUnpaused)
	detail := startedBooted
	if d.reason == virt.RunningRestored {
		detail = startedRestored
	}
	h.happened(d, virt.EventStarted, detail)
	return nil
}

// boot does what libvirt and QEMU look at before a guest runs, in their order.
func (h *Host) boot(d *dom) ([]Disk, error) {
	conf := d.conf
	for _, n := range conf.nics {
		if n.network == "" {
			continue
		}
		active, ok := h.networks[n.network]
		switch {
		case !ok:
			return nil, failure(virt.CodeNoNetwork, fmt.Sprintf("Network not found: no network with matching name '%s'", n.network))
		case !active:
			return nil, invalid("network '%s' is not active", n.network)
		}
	}
	disks := make([]disk, len(conf.disks))
	for i, k := range conf.disks {
		if k.volume != "" {
			_, v, err := h.findVol(virt.Volume{Pool: k.pool, Name: k.volume})
			if err != nil {
				return nil, err
			}
			k.path = v.path
		}
		disks[i] = k
	}
	if conf.efi {
		if !h.efi {
			return nil, failure(virt.CodeOperationFailed, "operation failed: Unable to find any firmware to satisfy 'efi'")
		}
		h.nvram[d.name] = true
	}
	var booted []Disk
	for _, k := range disks {
		chain, err := h.chain(k)
		if err != nil {
			return nil, err
		}
		booted = append(booted, chain...)
	}
	for _, n := range conf.nics {
		if n.bridge != "" && !h.bridges[n.bridge] {
			return nil, failure(virt.CodeSystemError, fmt.Sprintf("Cannot get interface MTU on '%s': No such device", n.bridge))
		}
	}
	for i, k := range disks {
		if err := h.open(d, i, k); err != nil {
			return nil, err
		}
	}
	if conf.agents > 1 {
		return nil, qemuError("-device virtserialport: virtio-serial-bus: A port already exists by name org.qemu.guest_agent.0")
	}
	return booted, nil
}

// chain is a disk's file with its bases, which libvirt looks at before it
// starts QEMU.
func (h *Host) chain(k disk) ([]Disk, error) {
	var out []Disk
	above := ""
	for file, depth := k.path, 0; file != ""; depth++ {
		v := h.file(file)
		if v == nil {
			if depth == 0 {
				return nil, failure(virt.CodeSystemError, fmt.Sprintf("Cannot access storage file '%s'%s: No such file or directory", file, h.as(file)))
			}
			return nil, failure(virt.CodeSystemError, fmt.Sprintf("Cannot access backing file '%s' of storage file '%s' (as uid:0, gid:0): No such file or directory", file, above))
		}
		sum := sha256.Sum256(v.content)
		out = append(out, Disk{k.target, depth, v.pool, v.name, v.path, hex.EncodeToString(sum[:]), v.size})
		if file, above = "", v.path; k.format != "raw" {
			file = v.backing
		}
	}
	return out, nil
}

// as says with whose rights libvirt looked; it leaves that out when not even
// the folder is there.
func (h *Host) as(file string) string {
	for _, p := range h.pools {
		if path.Dir(file) == path.Clean(p.conf.Path) {
			return " (as uid:0, gid:0)"
		}
	}
	return ""
}

func qemuError(text string) error {
	return failure(virt.CodeInternalError, fmt.Sprintf("internal error: process exited while connecting to monitor: %s qemu-system-x86_64: %s", time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"), text))
}

// open is QEMU opening a disk: AppArmor, the format, and the lock that keeps
// two guests from one file.
func (h *Host) open(d *dom, i int, k disk) error {
	if k.path == "" {
		return nil
	}
	v := h.file(k.path)
	arg := fmt.Sprintf(`-blockdev {"node-name":"libvirt-%d-format","driver":"%s","file":"libvirt-%d-storage"}: `, i+1, k.format, i+1)
	if h.apparmor && (k.volume != "" || k.format == "" && v.backing != "") {
		return qemuError(arg + "Could not open '" + k.path + "': Permission denied")
	}
	if k.format == "qcow2" && !v.isQcow2() {
		return qemuError(arg + "Image is not in qcow2 format")
	}
	if k.readOnly {
		return nil
	}
	for _, o := range h.domains {
		if o == d || !o.active() {
			continue
		}
		for _, used := range o.booted {
			if used.Path == k.path && !o.reads(used) {
				return qemuError(fmt.Sprintf("%sFailed to get \"write\" lock\nIs another process using the image [%s]?", arg, k.path))
			}
		}
	}
	return nil
}

// reads reports whether a running domain only reads that file.
func (d *dom) reads(f Disk) bool {
	if f.Depth > 0 {
		return false
	}
	for _, k := range d.live.disks {
		if k.target == f.Target {
			return k.readOnly
		}
	}
	return false
}
