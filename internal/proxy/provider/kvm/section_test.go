package kvm_test

import (
	"errors"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// section is a good one: the least that is needed, and an image.
func section() kvm.Section {
	return kvm.Section{
		SSH:   kvm.SSH{User: "libvirt", KeyFile: "/etc/proxy-operator/kvm/id_ed25519", KnownHostsFile: "/etc/proxy-operator/kvm/known_hosts"},
		Hosts: map[string]kvm.Host{"box-1": {Address: "192.0.2.5"}},
		Images: map[string]kvm.Image{"debian-13": {
			URL:    "https://images.example.com/debian-13.qcow2",
			SHA256: strings.Repeat("0a", 32),
		}},
	}
}

func TestSections(t *testing.T) {
	host := func(f func(h *kvm.Host)) func(*kvm.Section) {
		return func(s *kvm.Section) {
			h := s.Hosts["box-1"]
			f(&h)
			s.Hosts["box-1"] = h
		}
	}
	image := func(f func(i *kvm.Image)) func(*kvm.Section) {
		return func(s *kvm.Section) {
			i := s.Images["debian-13"]
			f(&i)
			s.Images["debian-13"] = i
		}
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*kvm.Section)
		want   string
	}{
		"good":               {"the least that is needed", func(*kvm.Section) {}, ""},
		"no hosts":           {"there would be nowhere to make anything", func(s *kvm.Section) { s.Hosts = nil }, "kvm.hosts: there are none"},
		"no user":            {"SSH has no default that would be right", func(s *kvm.Section) { s.SSH.User = "" }, "kvm.ssh.user: want the name of an account"},
		"user with option":   {"it must not look like an option", func(s *kvm.Section) { s.SSH.User = "-oProxyCommand=x" }, "kvm.ssh.user"},
		"relative key":       {"relative to what?", func(s *kvm.Section) { s.SSH.KeyFile = "id_ed25519" }, `kvm.ssh.keyFile: want an absolute path, got "id_ed25519"`},
		"no known_hosts":     {"host keys are always verified", func(s *kvm.Section) { s.SSH.KnownHostsFile = "" }, "kvm.ssh.knownHostsFile: want an absolute path"},
		"host name":          {"it stands in ids", func(s *kvm.Section) { s.Hosts["a/b"] = s.Hosts["box-1"] }, `kvm.hosts.a/b: a host's name has letters`},
		"one box twice":      {"its machines would be shown on both", func(s *kvm.Section) { s.Hosts["box-2"] = s.Hosts["box-1"] }, "kvm.hosts.box-2: it is the same machine as hosts.box-1"},
		"no address":         {"nothing to dial", host(func(h *kvm.Host) { h.Address = "" }), "kvm.hosts.box-1.address: want a DNS name or an IP address"},
		"address with port":  {"the port has its own field", host(func(h *kvm.Host) { h.Address = "192.0.2.5:22" }), "without port"},
		"address of nobody":  {"a likely mistake", host(func(h *kvm.Host) { h.Address = "0.0.0.0" }), "0.0.0.0 is no address of a host"},
		"IPv6":               {"it needs no brackets here", host(func(h *kvm.Host) { h.Address = "2001:db8::5" }), ""},
		"port":               {"no such port", host(func(h *kvm.Host) { h.Port = 70000 }), "kvm.hosts.box-1.port: 70000 is not in 1 to 65535"},
		"negative port":      {"no such port", host(func(h *kvm.Host) { h.Port = -1 }), "kvm.hosts.box-1.port: -1"},
		"relative socket":    {"it is a path on the host", host(func(h *kvm.Host) { h.Socket = "libvirt-sock" }), "kvm.hosts.box-1.socket: want the absolute path"},
		"socket too long":    {"a unix socket's path has a limit", host(func(h *kvm.Host) { h.Socket = "/" + strings.Repeat("x", 120) }), "at most 107 bytes"},
		"bridge and network": {"which of them?", host(func(h *kvm.Host) { h.Bridge, h.Network = "br0", "default" }), "a bridge or a network"},
		"pool":               {"it would need quoting in every text", host(func(h *kvm.Host) { h.Pool = "a b" }), "kvm.hosts.box-1.pool: want a plain name"},
		"domain type":        {"xen is another world", host(func(h *kvm.Host) { h.DomainType = "xen" }), `kvm.hosts.box-1.domainType: want kvm or qemu, got "xen"`},
		"max instances":      {"less than none", host(func(h *kvm.Host) { h.MaxInstances = -1 }), "kvm.hosts.box-1.maxInstances: -1 is below zero"},
		"checksum":           {"of the wrong length: a cut copy", image(func(i *kvm.Image) { i.SHA256 = "abc" }), "kvm.images.debian-13: "},
		"upper case digest":  {"some tools print it so", image(func(i *kvm.Image) { i.SHA256 = strings.ToUpper(i.SHA256) }), ""},
		"image URL":          {"nothing to fetch", image(func(i *kvm.Image) { i.URL = "" }), "kvm.images.debian-13: "},
		"image over http":    {"nobody verifies it", image(func(i *kvm.Image) { i.URL, i.SHA256 = "http://images.example.com/a.qcow2", "" }), "kvm.images.debian-13: "},
		"image format":       {"vmdk is not stored as such", image(func(i *kvm.Image) { i.Format = "vmdk" }), `kvm.images.debian-13.format: want qcow2 or raw, got "vmdk"`},
		"firmware":           {"efi is not the word", image(func(i *kvm.Image) { i.Firmware = "efi" }), `kvm.images.debian-13.firmware: want uefi or bios, got "efi"`},
		"default image":      {"a typo would only show with the first Proxy", func(s *kvm.Section) { s.DefaultImage = "debian" }, `kvm.defaultImage: "debian" is none of images: debian-13`},
		"CIDR":               {"an address is no range", func(s *kvm.Section) { s.ImageAllowCIDRs = []string{"10.0.0.0/8", "10.0.0.1"} }, "kvm.imageAllowCIDRs.1: want an address range"},
		"relative CA file":   {"relative to what?", func(s *kvm.Section) { s.ImageCAFile = "ca.pem" }, "kvm.imageCAFile: want an absolute path"},
		"vendor data":        {"it must fit the seed", func(s *kvm.Section) { s.VendorData = strings.Repeat("x", 1<<20+1) }, "kvm.vendorData: 1048577 bytes are more"},
	} {
		t.Run(name, func(t *testing.T) {
			s := section()
			tc.change(&s)
			p, err := kvm.New(kvm.Options{Name: "home", Section: s, Dialer: &virttest.Dialer{}})
			if p != nil {
				defer func() { _ = p.Close() }()
			}
			if tc.want == "" {
				if err != nil {
					t.Fatalf("%s: %v", tc.reason, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || fault.Of(err) != fault.Invalid {
				t.Fatalf("%s: got %v (%s), want an Invalid error with %q", tc.reason, err, fault.Of(err), tc.want)
			}
			if _, ok := errors.AsType[*kvm.FieldError](err); !ok {
				t.Errorf("%v names no field, so nobody can say in which line it is", err)
			}
		})
	}
}
