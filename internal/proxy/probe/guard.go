package probe

import (
	"fmt"
	"net/netip"
	"syscall"
)

// AllowFlag is the operator's flag that opens address ranges for control
// requests; texts name it.
const AllowFlag = "--health-allow-cidr"

// guard decides which addresses the operator itself may be sent to by a URL
// that somebody wrote into an object. Proxies are no concern of it: what they
// can reach, their users reach anyway.
type guard struct{ allow []netip.Prefix }

// refusedRanges are the ranges that hold no public host. The first that fits
// names the refusal.
var refusedRanges = [...]struct {
	prefix netip.Prefix
	name   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "an unspecified address"},
	{netip.MustParsePrefix("::/128"), "an unspecified address"},
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("169.254.169.254/32"), "a cloud's metadata address"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), "a cloud's metadata address"},
	{netip.MustParsePrefix("100.100.100.200/32"), "a cloud's metadata address"},
	{netip.MustParsePrefix("192.0.0.192/32"), "a cloud's metadata address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private address"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private address"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private address"},
	{netip.MustParsePrefix("fc00::/7"), "a private address"},
	{netip.MustParsePrefix("fec0::/10"), "a private address"},
	{netip.MustParsePrefix("100.64.0.0/10"), "a carrier's shared address"},
	{netip.MustParsePrefix("192.0.0.0/24"), "a protocol's own address"},
	{netip.MustParsePrefix("198.18.0.0/15"), "a benchmark address"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved address"},
}

// embedding ranges carry an IPv4 address at a byte offset: a NAT64 or 6to4
// gateway would turn the packet into one to that address.
var embedding = [...]struct {
	prefix netip.Prefix
	offset int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
	{netip.MustParsePrefix("::/96"), 12},
}

// refusal is the error of an address that may not be dialled.
type refusal struct {
	ip   netip.Addr
	name string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s is %s; allow it with %s=%s", r.ip, r.name, AllowFlag, netip.PrefixFrom(r.ip, r.ip.BitLen()))
}

// look returns nil when ip may be dialled.
func (g guard) look(ip netip.Addr) *refusal {
	ip = ip.Unmap().WithZone("")
	for _, p := range g.allow {
		if p.Contains(ip) {
			return nil
		}
	}
	for _, r := range refusedRanges {
		if r.prefix.Contains(ip) {
			return &refusal{ip, r.name}
		}
	}
	for _, e := range embedding {
		if e.prefix.Contains(ip) {
			b := ip.As16()
			if r := g.look(netip.AddrFrom4([4]byte(b[e.offset : e.offset+4]))); r != nil {
				return &refusal{ip, r.name + " inside IPv6"}
			}
		}
	}
	return nil
}

// control is a net.Dialer's Control hook: it sees the address that is really
// dialled, after name resolution, so no name can point past it. It calls note
// with each verdict, nil for an address that is fine.
func (g guard) control(note func(*refusal)) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("the address to dial cannot be read: %w", err)
		}
		r := g.look(ap.Addr())
		note(r)
		if r != nil {
			return r
		}
		return nil
	}
}
