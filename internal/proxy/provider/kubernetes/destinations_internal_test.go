package kubernetes

import (
	"net/netip"
	"strings"
	"testing"

	"fleetdesk/internal/platform/egress"
)

// Nobody gets through a proxy to its Pod, its node or a cloud's metadata, in no
// spelling; whatever package egress takes for such is refused here too. Public
// and private addresses are not.
func TestInner(t *testing.T) {
	within := func(ip netip.Addr) bool {
		for _, p := range inner() {
			if p.Contains(ip) {
				return true
			}
		}
		return false
	}
	local := map[string]bool{
		"an unspecified address": true, "a loopback address": true, "a link-local address": true, "a cloud's metadata address": true,
	}
	for _, text := range []string{
		"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.9.9.9", "169.254.169.254", "169.254.1.1", "100.100.100.200", "192.0.0.192", "168.63.129.16",
		"::", "::1", "fe80::1", "fd00:ec2::254", "fd20:ce::254", "::7f00:1",
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110", "64:ff9b:1::7f00:1",
		"2002:7f00:1::", "2002:7f00:1::5", "2002:a9fe:a9fe::1", "2002:c000:c0::1",
	} {
		ip := netip.MustParseAddr(text)
		if !within(ip) {
			t.Errorf("%s may be reached through a proxy", text)
		}
	}
	for _, text := range []string{
		"192.0.2.1", "8.8.8.8", "10.1.2.3", "192.168.1.1", "100.64.0.1", "100.100.100.201", "168.63.129.17", "2001:db8::1", "fd00::1",
		"64:ff9b::c000:201", "64:ff9b::808:808", "2002:c000:201::1", "1.0.0.0", "128.0.0.1",
	} {
		if within(netip.MustParseAddr(text)) {
			t.Errorf("%s cannot be reached through a proxy", text)
		}
	}
	// Both ends of each range, and what egress says of every such address.
	for hi := range 256 {
		for _, text := range []netip.Addr{
			netip.AddrFrom4([4]byte{byte(hi), 0, 0, 1}), netip.AddrFrom4([4]byte{169, byte(hi), 169, 254}), netip.AddrFrom4([4]byte{100, 100, 100, byte(hi)}),
			netip.AddrFrom4([4]byte{192, 0, 0, byte(hi)}), netip.AddrFrom16([16]byte{0xfe, byte(hi), 15: 1}), netip.AddrFrom16([16]byte{15: byte(hi)}),
		} {
			if r := (egress.Guard{}).Look(text); r != nil && local[strings.TrimSuffix(r.Kind, " inside IPv6")] && !within(text) {
				t.Errorf("%s is %s, and may be reached through a proxy", text, r.Kind)
			}
		}
	}
	if !strings.Contains(squidConf(3128, false), "acl inside dst "+innerText()+"\nhttp_access deny inside\n") {
		t.Error("squid's configuration does not refuse them")
	}
}
