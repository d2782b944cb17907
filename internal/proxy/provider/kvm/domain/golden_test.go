package domain_test

import (
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
)

var update = flag.Bool("update", false, "write the golden files")

var owner = provider.Owner{
	Installation: "5f0e6b0a-3c1d-4a76-9d42-0c2f1b7e8a11/fleet", Namespace: "crawl", Name: "de-1",
	UID: "3f0c6a52-9d53-4c1e-8a55-0f4f1d2f7a10",
}

var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func markOf(o provider.Owner) domain.Mark {
	return domain.Mark{Owner: o, Created: created, Stage: domain.Making, Port: 3128}
}

func shapeOf(o provider.Owner) domain.Shape {
	n := domain.NamesOf(o)
	return domain.Shape{
		Names: n, UUID: domain.UUIDOf(o), MAC: domain.MACOf(o), Mark: markOf(o),
		Type: "kvm", Firmware: domain.UEFI, VCPUs: 2, MemoryBytes: 1 << 30,
		OverlayPath: "/var/lib/libvirt/images/" + n.Overlay, SeedPath: "/var/lib/libvirt/images/" + n.Seed,
		Bridge: "br0",
	}
}

// shapes are the domains that have a golden file.
func shapes() map[string]domain.Shape {
	edge := provider.Owner{
		Installation: owner.Installation, Namespace: strings.Repeat("n", 63),
		Name: strings.Repeat("a", 252) + "z", UID: owner.UID,
	}
	m := map[string]domain.Shape{}
	add := func(name string, o provider.Owner, change func(*domain.Shape)) {
		s := shapeOf(o)
		change(&s)
		m[name] = s
	}
	add("kvm-uefi-bridge", owner, func(*domain.Shape) {})
	add("qemu-uefi-network", owner, func(s *domain.Shape) { s.Type, s.Bridge, s.Network = "qemu", "", "default" })
	add("kvm-bios-network", owner, func(s *domain.Shape) { s.Firmware, s.Bridge, s.Network = domain.BIOS, "", "default" })
	add("qemu-bios-bridge", owner, func(s *domain.Shape) {
		s.Type, s.Firmware = "qemu", domain.BIOS
		s.Mark.Stage, s.Mark.Address, s.Mark.Run = domain.Made, "192.0.2.10", 4
	})
	// What a person can put into the configuration of a host, and Kubernetes'
	// longest names: nothing is spliced into XML.
	add("hostile", edge, func(s *domain.Shape) {
		s.Bridge, s.Network = "", `a"b<&>'c`
		s.OverlayPath = `/srv/a & b/<pool name="x">/'"/o.qcow2`
		s.Mark.Owner.Installation = `a/"<&>'é`
	})
	return m
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".xml")
	if *update {
		if err := os.WriteFile(path, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got+"\n"); d != "" {
		t.Errorf("%s is another document; go test -update writes it (-want +got):\n%s", path, d)
	}
}

func TestXMLGolden(t *testing.T) {
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			got, err := domain.XML(s)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "domain-"+name, got)
		})
	}
}

// element is one of a document, with its attributes.
type element struct {
	path  string
	attrs map[string]string
	text  string
}

func elements(t *testing.T, doc string) []element {
	t.Helper()
	var found []element
	var at []int
	d := xml.NewDecoder(strings.NewReader(doc))
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			path := tok.Name.Local
			if len(at) > 0 {
				path = found[at[len(at)-1]].path + "/" + path
			}
			e := element{path: path, attrs: map[string]string{}}
			for _, a := range tok.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			at, found = append(at, len(found)), append(found, e)
		case xml.EndElement:
			at = at[:len(at)-1]
		case xml.CharData:
			if len(at) > 0 {
				found[at[len(at)-1]].text += string(tok)
			}
		}
	}
}

// volumeReferences are the places of a domain that name a pool or a volume
// where a path belongs.
func volumeReferences(es []element) []string {
	var found []string
	for _, e := range es {
		if strings.HasPrefix(e.path, "domain/metadata/") {
			continue
		}
		for name, value := range e.attrs {
			if name == "pool" || name == "volume" || e.path == "domain/devices/disk" && name == "type" && value != "file" {
				found = append(found, fmt.Sprintf("%s %s=%s", e.path, name, value))
			}
		}
		if e.path == "domain/devices/disk/source" && !slices.Equal(slices.Collect(maps.Keys(e.attrs)), []string{"file"}) {
			found = append(found, fmt.Sprintf("%s %v", e.path, e.attrs))
		}
	}
	slices.Sort(found)
	return found
}

// terraform-provider-libvirt 126, 1163, 920: a disk that names its pool and
// volume gets no AppArmor permission.
func TestNoDomainNamesAPoolOrVolume(t *testing.T) {
	for name, s := range shapes() {
		doc, err := domain.XML(s)
		if err != nil {
			t.Fatal(err)
		}
		es := elements(t, doc)
		if bad := volumeReferences(es); len(bad) > 0 {
			t.Errorf("%s: %v", name, bad)
		}
		files := map[string]string{}
		for _, e := range es {
			if e.path == "domain/devices/disk/source" {
				files[e.attrs["file"]] = ""
			}
		}
		if _, ok := files[s.OverlayPath]; !ok || len(files) != 2 {
			t.Errorf("%s: the disks are %v", name, files)
		}
		if _, ok := files[s.SeedPath]; !ok {
			t.Errorf("%s: the disks are %v", name, files)
		}
	}
	bad := `<domain><devices><disk type='volume'><source pool='default' volume='vm.qcow2'/></disk></devices></domain>`
	if got := volumeReferences(elements(t, bad)); len(got) != 4 {
		t.Errorf("the check itself sees only %v in %s", got, bad)
	}
}

// What a guest and its host rely on, whatever the golden files are updated to.
func TestXMLPromises(t *testing.T) {
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			doc, err := domain.XML(s)
			if err != nil {
				t.Fatal(err)
			}
			es := elements(t, doc)
			has := func(path string, attrs map[string]string) bool {
				return slices.ContainsFunc(es, func(e element) bool {
					for k, v := range attrs {
						if e.attrs[k] != v {
							return false
						}
					}
					return e.path == path
				})
			}
			for reason, e := range map[string]element{
				"the machine":               {path: "domain/os/type", attrs: map[string]string{"arch": "x86_64", "machine": "q35"}},
				"UEFI needs ACPI":           {path: "domain/features/acpi"},
				"the overlay is qcow2":      {path: "domain/devices/disk/driver", attrs: map[string]string{"type": "qcow2", "discard": "unmap", "error_policy": "stop", "rerror_policy": "stop"}},
				"the seed's format is said": {path: "domain/devices/disk/driver", attrs: map[string]string{"type": "raw"}},
				"the seed is no SATA disk":  {path: "domain/devices/disk/target", attrs: map[string]string{"dev": "sda", "bus": "scsi"}},
				"virtio-scsi":               {path: "domain/devices/controller", attrs: map[string]string{"type": "scsi", "model": "virtio-scsi"}},
				"the seed is read-only":     {path: "domain/devices/disk/readonly"},
				"the MAC is the owner's":    {path: "domain/devices/interface/mac", attrs: map[string]string{"address": s.MAC}},
				"virtio network":            {path: "domain/devices/interface/model", attrs: map[string]string{"type": "virtio"}},
				"the agent's channel":       {path: "domain/devices/channel/target", attrs: map[string]string{"type": "virtio", "name": "org.qemu.guest_agent.0"}},
				"a console":                 {path: "domain/devices/console", attrs: map[string]string{"type": "pty"}},
				"no USB":                    {path: "domain/devices/controller", attrs: map[string]string{"type": "usb", "model": "none"}},
				"the mark":                  {path: "domain/metadata/instance", attrs: map[string]string{"uid": s.Mark.Owner.UID, "installation": s.Mark.Owner.Installation}},
			} {
				if !has(e.path, e.attrs) {
					t.Errorf("%s: there is no %s with %v", reason, e.path, e.attrs)
				}
			}
			for _, path := range []string{"domain/devices/graphics", "domain/devices/video"} {
				if has(path, nil) {
					t.Errorf("there is %s", path)
				}
			}
			if kvm := s.Type == "kvm"; has("domain/cpu", map[string]string{"mode": "host-passthrough"}) != kvm || has("domain/cpu", nil) != kvm {
				t.Error("the host's CPU goes with kvm and with nothing else: an emulator has none")
			}
			uefi := s.Firmware == domain.UEFI
			if has("domain/os/firmware/feature", map[string]string{"enabled": "no", "name": "secure-boot"}) != uefi ||
				has("domain/os", map[string]string{"firmware": "efi"}) != uefi {
				t.Error("UEFI alone picks the build with secure boot and enrolled keys: it must be turned off, and only there")
			}
			for _, e := range es {
				if want := map[string]string{
					"domain/on_poweroff": "destroy", "domain/on_reboot": "restart", "domain/on_crash": "preserve",
					"domain/name": s.Names.Domain, "domain/uuid": s.UUID,
				}[e.path]; want != "" && e.text != want {
					t.Errorf("%s is %q, want %q", e.path, e.text, want)
				}
			}
		})
	}
}

func TestXMLRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*domain.Shape)
		says   string
	}{
		"noName":      {"a domain has a name", func(s *domain.Shape) { s.Names.Domain = "" }, "name"},
		"longName":    {"libvirt puts it into the paths of sockets", func(s *domain.Shape) { s.Names.Domain = strings.Repeat("a", 51) }, "50"},
		"upperName":   {"it becomes a host name", func(s *domain.Shape) { s.Names.Domain = "A" }, "DNS label"},
		"slashName":   {"it becomes a file name", func(s *domain.Shape) { s.Names.Domain = "a/b" }, "DNS label"},
		"dashName":    {"a label ends with a letter or digit", func(s *domain.Shape) { s.Names.Domain = "a-" }, "DNS label"},
		"uuid":        {"a UUID has one spelling", func(s *domain.Shape) { s.UUID = strings.ToUpper(s.UUID) }, "UUID"},
		"noMAC":       {"libvirt would make up a new one at each definition", func(s *domain.Shape) { s.MAC = "" }, "MAC"},
		"multicast":   {"no card has a group's address", func(s *domain.Shape) { s.MAC = "53:00:00:00:00:01" }, "MAC"},
		"dashMAC":     {"addresses are matched as text", func(s *domain.Shape) { s.MAC = "52-00-00-00-00-01" }, "MAC"},
		"longMAC":     {"EUI-64 is no Ethernet", func(s *domain.Shape) { s.MAC = "52:00:00:00:00:00:00:01" }, "MAC"},
		"type":        {"two types are known", func(s *domain.Shape) { s.Type = "xen" }, "xen"},
		"firmware":    {"an unset one is a slip", func(s *domain.Shape) { s.Firmware = "" }, "uefi"},
		"cpus":        {"no CPU", func(s *domain.Shape) { s.VCPUs = 0 }, "CPU"},
		"memory":      {"MiB taken for bytes", func(s *domain.Shape) { s.MemoryBytes = 512 }, "64Mi"},
		"both":        {"one network card", func(s *domain.Shape) { s.Network = "default" }, "network and bridge"},
		"neither":     {"a proxy without a network", func(s *domain.Shape) { s.Bridge = "" }, "network and bridge"},
		"overlay":     {"QEMU's folder is not ours", func(s *domain.Shape) { s.OverlayPath = "vm.qcow2" }, "overlay"},
		"seed":        {"no seed, no user-data", func(s *domain.Shape) { s.SeedPath = "" }, "seed"},
		"control":     {"XML has no such character", func(s *domain.Shape) { s.SeedPath = "/a\x01" }, "U+0001"},
		"bridgeBytes": {"XML has UTF-8 alone", func(s *domain.Shape) { s.Bridge = "a\xff" }, "UTF-8"},
		"mark":        {"a domain without an owner is nobody's, for ever", func(s *domain.Shape) { s.Mark.Owner.UID = "" }, "uid"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shapeOf(owner)
			tc.change(&s)
			doc, err := domain.XML(s)
			if fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), tc.says) || doc != "" {
				t.Errorf("%s: XML = %d bytes, %q: %v; want Invalid that names %q", tc.reason, len(doc), fault.Of(err), err, tc.says)
			}
		})
	}
	small := shapeOf(owner)
	small.MemoryBytes, small.VCPUs = 64<<20, 1
	if _, err := domain.XML(small); err != nil {
		t.Errorf("the least that is allowed: %v", err)
	}
}

func TestVolumeXMLGolden(t *testing.T) {
	for name, tc := range map[string]struct {
		volume, format         string
		capacity               int64
		backing, backingFormat string
	}{
		"overlay": {"fd-crawl-de-1.qcow2", "qcow2", 10 << 30, "/var/lib/libvirt/images/base & more.qcow2", "qcow2"},
		"onRaw":   {"fd-crawl-de-1.qcow2", "qcow2", 10 << 30, "/var/lib/libvirt/images/base.raw", "raw"},
		"image":   {"fleetdesk-image-abc-def.qcow2", "qcow2", 3 << 30, "", ""},
		"seed":    {"fd-crawl-de-1-seed.iso", "raw", 374784, "", ""},
		"marker":  {"marker", "raw", 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := domain.VolumeXML(tc.volume, tc.format, tc.capacity, tc.backing, tc.backingFormat)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "volume-"+name, got)
		})
	}
}

// terraform-provider-libvirt 699: an overlay without its backing format.
func TestVolumeXMLRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason                 string
		volume, format         string
		capacity               int64
		backing, backingFormat string
		says                   string
	}{
		"noBackingFormat": {"the host would guess it from what a guest can write", "a", "qcow2", 1, "/b", "", "go together"},
		"noBackingPath":   {"half an overlay", "a", "qcow2", 1, "", "raw", "go together"},
		"rawOverlay":      {"raw has no header to name a base in", "a", "raw", 1, "/b", "qcow2", "only qcow2"},
		"backingFormat":   {"two formats are known", "a", "qcow2", 1, "/b", "vmdk", "vmdk"},
		"format":          {"two formats are known", "a", "vdi", 1, "", "", "vdi"},
		"relative":        {"libvirt would look in its own folder", "a", "qcow2", 1, "b", "raw", "absolute"},
		"name":            {"a volume has a name", "", "raw", 1, "", "", "missing"},
		"slash":           {"a volume stays in its pool", "../a", "raw", 1, "", "", "file name"},
		"up":              {"a volume stays in its pool", "..", "raw", 1, "", "", "file name"},
		"capacity":        {"no negative sizes", "a", "raw", -1, "", "", "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			doc, err := domain.VolumeXML(tc.volume, tc.format, tc.capacity, tc.backing, tc.backingFormat)
			if fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), tc.says) || doc != "" {
				t.Errorf("%s: VolumeXML = %q, %v; want Invalid that names %q", tc.reason, doc, err, tc.says)
			}
		})
	}
}
