package domain_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

const mac = "52:00:00:00:00:01"

func iface(name, mac string, ips ...string) virt.Interface {
	i := virt.Interface{Name: name, MAC: mac}
	for _, ip := range ips {
		i.Addresses = append(i.Addresses, virt.Address{IP: ip, Prefix: 24})
	}
	return i
}

func TestAddresses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		in     []virt.Interface
		mac    string
		v4, v6 []string
	}{
		"none":  {"nothing is known yet", nil, mac, nil, nil},
		"one":   {"the usual lease", []virt.Interface{iface("vnet0", mac, "192.0.2.10")}, mac, []string{"192.0.2.10"}, nil},
		"rfc":   {"private ranges count", []virt.Interface{iface("vnet0", mac, "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1")}, mac, []string{"10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1"}, []string{"fd00::1"}},
		"case":  {"the agent of another system writes capitals", []virt.Interface{iface("eth0", "52:00:00:00:00:0A", "192.0.2.10")}, "52:00:00:00:00:0a", []string{"192.0.2.10"}, nil},
		"order": {"an interface's main address comes first", []virt.Interface{iface("eth0", mac, "192.0.2.20", "192.0.2.10", "192.0.2.20")}, mac, []string{"192.0.2.20", "192.0.2.10"}, nil},
		// open-vm-tools 100: docker0's or flannel's address is reported.
		"containers": {
			"only interfaces with the domain's own MAC", []virt.Interface{
				iface("lo", "00:00:00:00:00:00", "127.0.0.1", "::1"), iface("docker0", "02:42:ac:11:00:01", "172.17.0.1"),
				iface("flannel.1", "52:00:00:00:00:02", "10.244.0.0"), iface("tun0", "", "10.8.0.1"), iface("eth0", mac, "192.0.2.10"),
			}, mac, []string{"192.0.2.10"}, nil,
		},
		// kubevirt 12697, 12698: a link-local address wins.
		"link-local": {
			"nobody outside reaches it", []virt.Interface{iface("eth0", mac, "fe80::5054:ff:fe00:1", "169.254.1.1", "192.0.2.10", "fe80::1%eth0")}, mac, []string{"192.0.2.10"}, nil,
		},
		"never": {
			"what is nobody's address", []virt.Interface{iface("eth0", mac, "0.0.0.0", "0.1.2.3", "127.0.0.1", "127.9.9.9", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1", "ff02::1", "ff0e::1", "::ffff:127.0.0.1", "::ffff:169.254.1.1", "2001:db8::1%eth0")}, mac, nil, nil,
		},
		// terraform-provider-libvirt 246: answers with IPv6 alone crash or hang.
		"v6 alone": {"it is told, and the caller waits for IPv4", []virt.Interface{iface("eth0", mac, "fe80::1", "2001:db8::1")}, mac, nil, []string{"2001:db8::1"}},
		"mapped":   {"IPv4 in other clothes", []virt.Interface{iface("eth0", mac, "::ffff:192.0.2.10", "192.0.2.10")}, mac, []string{"192.0.2.10"}, nil},
		"broken":   {"what is no address is passed over", []virt.Interface{iface("eth0", mac, "", "x", "192.0.2.300", "192.0.2.10/24", "192.0.2.11")}, mac, []string{"192.0.2.11"}, nil},
		"no mac":   {"an empty MAC is nobody's, also when ours is not known", []virt.Interface{iface("tun0", "", "10.8.0.1")}, "", nil, nil},
		"two":      {"an interface may be told twice", []virt.Interface{iface("a", mac, "192.0.2.1"), iface("b", mac, "192.0.2.2", "2001:db8::2")}, mac, []string{"192.0.2.1", "192.0.2.2"}, []string{"2001:db8::2"}},
	} {
		t.Run(name, func(t *testing.T) {
			v4, v6 := domain.Addresses(tc.in, tc.mac)
			if d := cmp.Diff(tc.v4, texts(v4)); d != "" {
				t.Errorf("%s: IPv4 (-want +got):\n%s", tc.reason, d)
			}
			if d := cmp.Diff(tc.v6, texts(v6)); d != "" {
				t.Errorf("%s: IPv6 (-want +got):\n%s", tc.reason, d)
			}
		})
	}
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i))
	}
	if v4, _ := domain.Addresses([]virt.Interface{iface("eth0", mac, many...)}, mac); len(v4) != 64 || v4[0].String() != many[0] {
		t.Errorf("%d addresses out of 200: want the first 64", len(v4))
	}
	for _, ip := range []netip.Addr{{}, netip.MustParseAddr("::ffff:240.0.0.1"), netip.MustParseAddr("::ffff:0.1.1.1")} {
		if domain.Routable(ip) {
			t.Errorf("%s is routable", ip)
		}
	}
}

func texts(ips []netip.Addr) []string {
	var out []string
	for _, ip := range ips {
		out = append(out, fmt.Sprint(ip))
	}
	return out
}

func FuzzAddresses(f *testing.F) {
	f.Add("192.0.2.1", mac, mac)
	f.Add("fe80::1%eth0", "", "")
	f.Fuzz(func(t *testing.T, ip, theirs, ours string) {
		v4, v6 := domain.Addresses([]virt.Interface{iface("eth0", theirs, ip)}, ours)
		for _, a := range append(v4, v6...) {
			if !domain.Routable(a) || ours == "" || a.IsLinkLocalUnicast() || a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.Is4In6() || a.Zone() != "" {
				t.Errorf("%q of %q gives %s for %q", ip, theirs, a, ours)
			}
		}
	})
}
