package domain

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"strings"

	"fleetdesk/internal/core/fault"
)

// arch and machine are what every domain is.
const (
	arch    = "x86_64"
	machine = "q35"
)

// minMemory is the least memory of a domain, in bytes: less is a slip in a
// unit, and starts no guest.
const minMemory = 64 << 20

// Firmware is what starts the guest's boot loader.
type Firmware string

// The firmwares. UEFI is the default of images: Debian 13's hang under BIOS.
const (
	UEFI Firmware = "uefi"
	BIOS Firmware = "bios"
)

// Shape is everything that a domain's XML depends on.
type Shape struct {
	Names     Names
	UUID, MAC string
	Mark      Mark
	// Type is "kvm" or "qemu" ([ChooseType]).
	Type     string
	Firmware Firmware
	VCPUs    int
	// MemoryBytes is at least 64 MiB; libvirt rounds up to KiB.
	MemoryBytes int64
	// OverlayPath and SeedPath are the volumes' paths on the host, as libvirt
	// told them.
	OverlayPath, SeedPath string
	// Network or Bridge is what its network card is plugged into: one of them.
	Network, Bridge string
}

func (s Shape) check() error {
	switch {
	case s.Names.Domain == "" || label(s.Names.Domain, maxDomain) != s.Names.Domain:
		return fmt.Errorf("the domain's name %.80q is no DNS label of at most %d bytes", s.Names.Domain, maxDomain)
	case !validUUID(s.UUID):
		return fmt.Errorf("the UUID %.80q is not in the canonical form", s.UUID)
	case !validMAC(s.MAC):
		return fmt.Errorf("the MAC address %.80q is no lower-case unicast address", s.MAC)
	case s.Type != typeKVM && s.Type != typeQEMU:
		return fmt.Errorf("the domain type is %.40q: it is %s or %s", s.Type, typeKVM, typeQEMU)
	case s.Firmware != UEFI && s.Firmware != BIOS:
		return fmt.Errorf("the firmware is %.40q: it is %s or %s", string(s.Firmware), UEFI, BIOS)
	case s.VCPUs < 1:
		return fmt.Errorf("%d CPUs: at least one is needed", s.VCPUs)
	case s.MemoryBytes < minMemory:
		return fmt.Errorf("%d bytes of memory: at least %d (64Mi) are needed", s.MemoryBytes, minMemory)
	case (s.Network == "") == (s.Bridge == ""):
		return errors.New("exactly one of network and bridge is needed")
	}
	return cmp.Or(
		checkPath("overlay", s.OverlayPath), checkPath("seed", s.SeedPath),
		checkName("network", s.Network), checkName("bridge", s.Bridge),
	)
}

func validMAC(s string) bool {
	hw, err := net.ParseMAC(s)
	return err == nil && len(hw) == 6 && hw.String() == s && hw[0]&1 == 0
}

// checkPath refuses what is no path of a file by itself.
func checkPath(name, path string) error {
	if !strings.HasPrefix(path, "/") {
		return fmt.Errorf("the path of the %s is %.100q: an absolute one is needed", name, path)
	}
	return checkText("the path of the "+name, path, 4096)
}

func checkName(name, value string) error {
	if value == "" {
		return nil
	}
	return checkText("the "+name, value, maxOwnerPart)
}

// XML returns the whole <domain>. A shape that is not complete is Invalid.
//
// What is chosen here, and why:
//
//   - Disks are files by path. AppArmor's helper on a stock Debian or Ubuntu
//     host opens paths alone to QEMU; a disk that names a pool gets nothing.
//   - The driver's type is always there: without it the helper does not look
//     for the overlay's base either.
//   - cache=writeback: all guests of a host share the pages of their common base
//     in the host's memory, it works on every file system, and what a guest
//     flushes is on the disk all the same.
//   - error_policy=stop, also for reads: when the pool is full the guest stands
//     still where it is and goes on later, in place of a broken file system.
//   - The seed is a read-only CD-ROM on virtio-scsi and stays there for life:
//     Debian's cloud kernel sees no SATA.
//   - UEFI is asked for without secure boot, since "efi" alone takes the build
//     with Microsoft's keys enrolled where there is one.
//   - A guest that ends is off (and is started by the next Create), one that
//     restarts restarts, and one whose kernel panics is kept as it is, for a
//     look: [StateOf] says Impaired. It is the panic device that lets libvirt
//     see it at all.
//   - No graphics, no video, no USB; one serial console for "virsh console".
func XML(s Shape) (string, error) {
	if err := s.check(); err != nil {
		return "", fault.Errorf(fault.Invalid, "no domain can be made: %w", err)
	}
	mark, err := s.Mark.declared()
	if err != nil {
		return "", err
	}
	d := document{
		Type: s.Type, Name: s.Names.Domain, UUID: s.UUID,
		Metadata: metadata{Mark: mark},
		Memory:   quantity{Unit: "b", Value: s.MemoryBytes}, VCPUs: s.VCPUs,
		OS:         osXML{Type: osType{Arch: arch, Machine: machine, Value: "hvm"}},
		Clock:      clock{Offset: "utc"},
		OnPoweroff: "destroy", OnReboot: "restart", OnCrash: "preserve",
		Devices: devices(s),
	}
	if s.Firmware == UEFI {
		d.OS.Firmware = "efi"
		d.OS.Features = &firmware{Feature: feature{Enabled: "no", Name: "secure-boot"}}
	}
	if s.Type == typeKVM {
		d.CPU = &cpu{Mode: "host-passthrough", Check: "none", Migratable: "off"}
	}
	return marshal("the domain", d)
}

func devices(s Shape) deviceList {
	nic := netCard{Type: "network", MAC: address{s.MAC}, Source: netSource{Network: s.Network}, Model: typed{Type: "virtio"}}
	if s.Bridge != "" {
		nic.Type, nic.Source = "bridge", netSource{Bridge: s.Bridge}
	}
	return deviceList{
		Disks: []disk{
			{
				Type: "file", Device: "disk",
				Driver: driver{Name: "qemu", Type: "qcow2", Cache: "writeback", Discard: "unmap", ErrorPolicy: "stop", ReadErrorPolicy: "stop"},
				Source: fileSource{s.OverlayPath}, Target: target{Dev: "vda", Bus: "virtio"}, Boot: &boot{Order: 1},
			},
			{
				Type: "file", Device: "cdrom",
				Driver: driver{Name: "qemu", Type: "raw"},
				Source: fileSource{s.SeedPath}, Target: target{Dev: "sda", Bus: "scsi"}, ReadOnly: &empty{},
			},
		},
		Controllers: []controller{
			{Type: "scsi", Model: "virtio-scsi"},
			{Type: "usb", Model: "none"},
		},
		Nets:     []netCard{nic},
		Serials:  []charDevice{{Type: "pty", Target: charTarget{Type: "isa-serial", Port: "0"}}},
		Consoles: []charDevice{{Type: "pty", Target: charTarget{Type: "serial", Port: "0"}}},
		Channels: []charDevice{{Type: "unix", Target: charTarget{Type: "virtio", Name: "org.qemu.guest_agent.0"}}},
		Balloon:  model{Model: "virtio"},
		RNG:      rng{Model: "virtio", Backend: backend{Model: "random", Value: "/dev/urandom"}},
		Panic:    model{Model: "isa"},
	}
}

// VolumeXML returns a <volume>: a file of mode 0600 that takes no space before
// it is written to. qcow2 is of compat 1.1 (libvirt's own default is the format
// of 2007). With a backing path the backing format is needed too: without it
// the host would guess it from bytes that a guest can write.
//
// capacity is in bytes; for an overlay it is at least the base's virtual size,
// which the caller sees to. What is missing or unknown is Invalid.
func VolumeXML(name, format string, capacity int64, backingPath, backingFormat string) (string, error) {
	v := volume{
		Name: name, Allocation: quantity{Unit: "bytes"}, Capacity: quantity{Unit: "bytes", Value: capacity},
		Target: volumeTarget{Format: typed{format}, Permissions: permissions{Mode: "0600"}},
	}
	err := checkText("the name", name, maxOwnerPart)
	switch {
	case err != nil:
	case strings.Contains(name, "/") || name == "." || name == "..":
		err = fmt.Errorf("the name %.80q is no file name", name)
	case !validFormat(format):
		err = fmt.Errorf("the format is %.40q: it is qcow2 or raw", format)
	case capacity < 0:
		err = fmt.Errorf("the capacity is %d bytes", capacity)
	case (backingPath == "") != (backingFormat == ""):
		err = errors.New("a backing path and its format go together")
	case backingPath != "" && format != "qcow2":
		err = errors.New("only qcow2 can have a backing file")
	case backingPath != "" && !validFormat(backingFormat):
		err = fmt.Errorf("the backing format is %.40q: it is qcow2 or raw", backingFormat)
	case backingPath != "":
		err = checkPath("backing file", backingPath)
		v.Backing = &backing{Path: backingPath, Format: typed{backingFormat}}
	}
	if err != nil {
		return "", fault.Errorf(fault.Invalid, "no volume can be made: %w", err)
	}
	if format == "qcow2" {
		v.Target.Compat = "1.1"
	}
	return marshal("the volume", v)
}

// validFormat knows the two formats of images.
func validFormat(s string) bool { return s == "qcow2" || s == "raw" }

// marshal writes a document. It cannot fail for the structures of this package.
func marshal(what string, v any) (string, error) {
	b, err := xml.MarshalIndent(v, "", "  ")
	if err != nil {
		return "", fault.Errorf(fault.Invalid, "%s cannot be written as XML: %w", what, err)
	}
	return string(b), nil
}
