package domain

import (
	"net/netip"
	"slices"
	"strings"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// maxAddresses bounds how many of a family are told.
const maxAddresses = 64

// Addresses returns the addresses at which others reach the guest: those of
// interfaces that have the domain's own MAC address, and routable ones alone
// ([Routable]), each once, in the order in which the source told them (an agent
// tells an interface's main address first); at most 64 of each family. An interface without a MAC is
// nobody's: bridges of containers and overlay networks inside the guest have
// addresses too.
//
// Which one counts is the caller's to say: the first IPv4 address; IPv6 only
// after no IPv4 address came for a while.
func Addresses(ifaces []virt.Interface, mac string) (v4, v6 []netip.Addr) {
	if mac == "" {
		return nil, nil
	}
	for _, i := range ifaces {
		if !strings.EqualFold(i.MAC, mac) {
			continue
		}
		for _, a := range i.Addresses {
			ip, err := netip.ParseAddr(a.IP)
			if err != nil {
				continue
			}
			ip = ip.Unmap()
			switch {
			case !Routable(ip):
			case ip.Is4():
				v4 = appendNew(v4, ip)
			default:
				v6 = appendNew(v6, ip)
			}
		}
	}
	return v4, v6
}

func appendNew(to []netip.Addr, ip netip.Addr) []netip.Addr {
	if len(to) >= maxAddresses || slices.Contains(to, ip) {
		return to
	}
	return append(to, ip)
}

// Routable reports whether a proxy may be reached at ip from another machine:
// neither unspecified, loopback, link-local nor multicast, and none of what
// IPv4 keeps for itself (0.0.0.0/8, 240.0.0.0/4). Private ranges (RFC 1918, and
// their kin of IPv6) count: it is where most hosts put their guests.
func Routable(ip netip.Addr) bool {
	switch ip = ip.Unmap(); {
	case !ip.IsValid(), ip.Zone() != "", ip.IsUnspecified(), ip.IsLoopback(),
		ip.IsMulticast(), ip.IsLinkLocalUnicast():
		return false
	case ip.Is4():
		first := ip.As4()[0]
		return first != 0 && first < 240
	}
	return true
}
