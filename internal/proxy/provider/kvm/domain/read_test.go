package domain_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/domain"
)

// recorded is a document of libvirtd 9.0.0 with QEMU 7.2, shortened by lists of
// machines and CPU models.
func recorded(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "host", name+".xml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestReadCapabilities(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, doc string
		want        domain.Offer
	}{
		"kvm":    {"a host with /dev/kvm", recorded(t, "capabilities-kvm"), domain.Offer{Types: []string{"qemu", "kvm"}, Arch: "x86_64"}},
		"no kvm": {"a host without", recorded(t, "capabilities-nokvm"), domain.Offer{Types: []string{"qemu"}, Arch: "x86_64"}},
		"arm": {
			"another architecture emulates ours, and accelerates its own alone",
			`<capabilities><host><cpu><arch>aarch64</arch></cpu></host>` +
				`<guest><os_type>hvm</os_type><arch name='aarch64'><domain type='qemu'/><domain type='kvm'/></arch></guest>` +
				`<guest><os_type>hvm</os_type><arch name='x86_64'><domain type='qemu'/></arch></guest></capabilities>`,
			domain.Offer{Types: []string{"qemu"}, Arch: "aarch64"},
		},
		"no emulator": {
			"32 bits are not what images are for",
			`<capabilities><guest><os_type>hvm</os_type><arch name='i686'><domain type='kvm'/></arch></guest></capabilities>`,
			domain.Offer{},
		},
		"containers": {
			"exe is no machine", `<capabilities><guest><os_type>exe</os_type><arch name='x86_64'><domain type='lxc'/></arch></guest></capabilities>`, domain.Offer{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := domain.ReadCapabilities(tc.doc)
			if d := cmp.Diff(tc.want, got); err != nil || d != "" {
				t.Errorf("%s: %v (-want +got):\n%s", tc.reason, err, d)
			}
		})
	}
}

// A host that lists types without end costs no more than one that does not.
func TestReadCapabilitiesIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("<capabilities><guest><os_type>hvm</os_type><arch name='x86_64'><domain type='kvm'/><domain type='kvm'/><domain/>")
	for i := range 1000 {
		fmt.Fprintf(&b, "<domain type='t%d'/>", i)
	}
	b.WriteString("</arch></guest></capabilities>")
	o, err := domain.ReadCapabilities(b.String())
	if err != nil || len(o.Types) != 32 || o.Types[0] != "kvm" || o.Types[1] != "t0" {
		t.Errorf("%d types, %v", len(o.Types), err)
	}
}

func TestReadDomainCapabilities(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, doc string
		want        domain.FirmwareOffer
	}{
		"kvm":    {"a host with OVMF", recorded(t, "domaincapabilities-kvm"), domain.FirmwareOffer{EFI: true, BIOS: true, SecureBootOff: true}},
		"qemu":   {"the same without kvm", recorded(t, "domaincapabilities-qemu"), domain.FirmwareOffer{EFI: true, BIOS: true, SecureBootOff: true}},
		"no efi": {"a host without OVMF", recorded(t, "domaincapabilities-noefi"), domain.FirmwareOffer{BIOS: true, SecureBootOff: true}},
		"no os":  {"nothing starts", `<domainCapabilities><os supported='no'/></domainCapabilities>`, domain.FirmwareOffer{}},
		"secure alone": {
			"a host whose loaders are all secure",
			`<domainCapabilities><os supported='yes'><enum name='firmware'><value>efi</value></enum><loader supported='yes'><enum name='secure'><value>yes</value></enum></loader></os></domainCapabilities>`,
			domain.FirmwareOffer{EFI: true, BIOS: true},
		},
		"no loader": {
			"firmware is named and no loader can be used",
			`<domainCapabilities><os supported='yes'><enum name='firmware'><value>efi</value></enum><loader supported='no'/></os></domainCapabilities>`,
			domain.FirmwareOffer{BIOS: true},
		},
		"other enum": {
			"efi elsewhere means nothing",
			`<domainCapabilities><os supported='yes'><enum name='x'><value>efi</value></enum><loader supported='yes'/></os></domainCapabilities>`,
			domain.FirmwareOffer{BIOS: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := domain.ReadDomainCapabilities(tc.doc)
			if d := cmp.Diff(tc.want, got); err != nil || d != "" {
				t.Errorf("%s: %v (-want +got):\n%s", tc.reason, err, d)
			}
		})
	}
}

func TestReadPool(t *testing.T) {
	for name, tc := range map[string]struct {
		doc, kind, path string
		ok              bool
	}{
		"dir":      {recorded(t, "pool-dir"), "dir", "/var/lib/libvirt/images", true},
		"logical":  {`<pool type='logical'><name>vg</name><target><path>/dev/vg</path></target></pool>`, "logical", "/dev/vg", true},
		"rbd":      {`<pool type='rbd'><name>r</name></pool>`, "rbd", "", true},
		"no type":  {`<pool><target><path>/a</path></target></pool>`, "", "", false},
		"relative": {`<pool type='dir'><target><path>a</path></target></pool>`, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			kind, path, err := domain.ReadPool(tc.doc)
			if kind != tc.kind || path != tc.path || (err == nil) != tc.ok {
				t.Errorf("ReadPool = %q, %q, %v", kind, path, err)
			}
			if err != nil && fault.Of(err) != fault.Permanent {
				t.Errorf("class %s", fault.Of(err))
			}
		})
	}
}

// readers are all that read a document of a host.
var readers = map[string]struct {
	root string
	read func(string) (any, error)
}{
	"capabilities":       {"capabilities", func(s string) (any, error) { return domain.ReadCapabilities(s) }},
	"domainCapabilities": {"domainCapabilities", func(s string) (any, error) { return domain.ReadDomainCapabilities(s) }},
	"pool":               {"pool", func(s string) (any, error) { k, p, err := domain.ReadPool(s); return k + p, err }},
}

// The peer is not trusted: what it says is bounded in length and depth.
func TestReadersRefuse(t *testing.T) {
	for name, r := range readers {
		open, end := "<"+r.root+" type='dir'>", "</"+r.root+">"
		for what, tc := range map[string]struct{ doc, says string }{
			"empty":      {"", "not one"},
			"html":       {"<html><body>502</body></html>", "begins with"},
			"other":      {"<domain/>", "begins with"},
			"cut":        {open + "<host>", "no XML"},
			"large":      {open + strings.Repeat(" ", 1<<20+1-len(open)-len(end)) + end, "1048577"},
			"deep":       {open + strings.Repeat("<a>", 64) + strings.Repeat("</a>", 64) + end, "64 deep"},
			"doctype":    {"<!DOCTYPE x [<!ENTITY a 'aaaa'>]>" + open + "&a;" + end, "document type"},
			"two":        {open + end + open + end, "2 elements"},
			"after":      {open + end + "x", "text outside"},
			"encoding":   {`<?xml version="1.0" encoding="EBCDIC"?>` + open + end, "no XML"},
			"bytes":      {open + "\xff\xfe" + end, "no XML"},
			"long name":  {"<" + strings.Repeat("a", 10_000) + "/>", "begins with"},
			"controlled": {"<a\u202e\u009b/>", ""},
		} {
			_, err := r.read(tc.doc)
			if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s of %s: %s: %v; want Permanent that says %q", name, what, fault.Of(err), err, tc.says)
				continue
			}
			if len(err.Error()) > 800 || strings.ContainsAny(err.Error(), "\x1b\u009b\u202e\n") {
				t.Errorf("%s of %s: what was read comes through: %q", name, what, err)
			}
		}
		if _, err := r.read(open + strings.Repeat("<a>", 63) + strings.Repeat("</a>", 63) + end); err != nil {
			t.Errorf("%s: the deepest that is allowed: %v", name, err)
		}
		if _, err := r.read(open + strings.Repeat(" ", 1<<20-len(open)-len(end)) + end); err != nil {
			t.Errorf("%s: the longest that is allowed: %v", name, err)
		}
	}
}

func FuzzReaders(f *testing.F) {
	for _, name := range []string{"capabilities-kvm", "domaincapabilities-noefi", "pool-dir"} {
		f.Add(recorded(f, name))
	}
	f.Add("<pool type='dir'><target><path>/a\n</path></target></pool>")
	f.Fuzz(func(t *testing.T, s string) {
		for name, r := range readers {
			got, err := r.read(s)
			if err != nil && (fault.Of(err) != fault.Permanent || len(err.Error()) > 1000) {
				t.Errorf("%s(%q) = %v, %v", name, s, got, err)
			}
		}
		if _, path, err := domain.ReadPool(s); err == nil && path != "" && (path[0] != '/' || strings.ContainsAny(path, "\n\x00")) {
			t.Errorf("ReadPool(%q) lets the path %q through", s, path)
		}
	})
}

func TestChooseType(t *testing.T) {
	both, emulator := domain.Offer{Types: []string{"qemu", "kvm"}, Arch: "x86_64"}, domain.Offer{Types: []string{"qemu"}, Arch: "x86_64"}
	for name, tc := range map[string]struct {
		reason    string
		offer     domain.Offer
		override  string
		emulation bool
		want      string
		says      string
	}{
		"kvm":          {"the default", both, "", false, "kvm", ""},
		"kvm first":    {"emulation is for those that have nothing else", both, "", true, "kvm", ""},
		"emulate":      {"where it is allowed", emulator, "", true, "qemu", ""},
		"no kvm":       {"a proxy that is many times slower is nobody's wish", emulator, "", false, "", "/dev/kvm"},
		"override":     {"a host that offers kvm and cannot run it", both, "qemu", false, "qemu", ""},
		"override kvm": {"never emulated in silence", emulator, "kvm", true, "", "firmware"},
		"unknown":      {"a slip", both, "xen", true, "", `"xen"`},
		"nothing":      {"no emulator", domain.Offer{Arch: "aarch64"}, "", true, "", "aarch64"},
		"nothing, set": {"no emulator", domain.Offer{}, "qemu", true, "", "install QEMU"},
		"kvm alone":    {"what is offered counts", domain.Offer{Types: []string{"kvm"}}, "qemu", true, "", "install QEMU"},
		"others alone": {"a host of another kind", domain.Offer{Types: []string{"xen"}}, "", true, "", "xen"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := domain.ChooseType(tc.offer, tc.override, tc.emulation)
			if got != tc.want || (err == nil) != (tc.says == "") {
				t.Fatalf("%s: ChooseType = %q, %v", tc.reason, got, err)
			}
			if err != nil && (fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("%s: %s: %v; want Permanent that names %q", tc.reason, fault.Of(err), err, tc.says)
			}
		})
	}
}
