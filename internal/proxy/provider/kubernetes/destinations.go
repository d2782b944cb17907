package kubernetes

import (
	"net/netip"
	"strings"
)

// innerV4 and innerV6 are where nobody may go through a proxy: the Pod itself,
// its node, and what clouds answer to their machines alone (keys among it).
// Private ranges are not among them, since the operator's origin may be there.
// A test holds them against package egress.
var (
	innerV4 = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
		netip.MustParsePrefix("168.63.129.16/32"),   // Azure
		netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
	}
	innerV6 = []netip.Prefix{
		netip.MustParsePrefix("::/96"), // unspecified, loopback, and IPv4 in its oldest form
		netip.MustParsePrefix("fe80::/10"),
		netip.MustParsePrefix("fd00:ec2::254/128"), // AWS
		netip.MustParsePrefix("fd20:ce::254/128"),  // Google
	}
	// embedding are ranges that hold an IPv4 address at a byte's offset: a gateway
	// (NAT64, 6to4) makes a packet to that address of it.
	embedding = []struct {
		prefix netip.Prefix
		offset int
	}{
		{netip.MustParsePrefix("64:ff9b::/96"), 12},
		{netip.MustParsePrefix("64:ff9b:1::/96"), 12},
		{netip.MustParsePrefix("2002::/16"), 2},
	}
)

// inner are all of them, with IPv4 ranges also as they are embedded in IPv6.
func inner() []netip.Prefix {
	out := append(append([]netip.Prefix(nil), innerV4...), innerV6...)
	for _, e := range embedding {
		for _, p := range innerV4 {
			addr, v4 := e.prefix.Addr().As16(), p.Addr().As4()
			copy(addr[e.offset:], v4[:])
			out = append(out, netip.PrefixFrom(netip.AddrFrom16(addr), e.offset*8+p.Bits()))
		}
	}
	return out
}

// innerText is inner as squid reads it.
func innerText() string {
	var words []string
	for _, p := range inner() {
		words = append(words, p.String())
	}
	return strings.Join(words, " ")
}
