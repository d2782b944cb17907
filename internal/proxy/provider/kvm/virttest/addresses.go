package virttest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Guest is a running domain, as an [Addresser] sees it.
type Guest struct {
	Name, UUID string
	ID         int32
	// NICs are its interfaces, in their order.
	NICs []NIC
	// Agent reports whether the domain has a channel for an agent, and
	// Connected whether an agent in the guest has opened it.
	Agent, Connected bool
}

// NIC is one interface of a guest: on a network or on a bridge.
type NIC struct {
	MAC, Network, Bridge string
	// Address is the one that the host's DHCP server gave it.
	Address netip.Addr
}

// Addresser says what a source knows of a running guest's addresses.
type Addresser func(g Guest, source virt.AddressSource) ([]virt.Interface, error)

// Addresses sets what sources know; nil is [Usual] again. f is called with the
// host locked: it must not call the host.
func (h *Host) Addresses(f Addresser) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = f
}

// Connect lets the guest's agent open its channel: the source [virt.FromAgent]
// answers from now on. It ends with the guest. [Host.Silence] undoes it.
func (h *Host) Connect(name string) { h.change(name, func(d *dom) { d.agent = true }) }

// Silence ends the guest's agent: [virt.FromAgent] is CodeAgentUnresponsive.
func (h *Host) Silence(name string) { h.change(name, func(d *dom) { d.agent = false }) }

// Usual is what a host knows by itself. Of an interface on a network it knows
// the lease, of one on a bridge the neighbour's entry (ARP), at once after the
// start; the agent, when it is connected, tells lo and all of them.
func Usual(g Guest, source virt.AddressSource) ([]virt.Interface, error) {
	var out []virt.Interface
	if source == virt.FromAgent {
		switch {
		case !g.Agent:
			return nil, failure(codeArgument, "argument unsupported: QEMU guest agent is not configured")
		case !g.Connected:
			return nil, failure(virt.CodeAgentUnresponsive, "Guest agent is not responding: QEMU guest agent is not connected")
		}
		out = append(out, virt.Interface{Name: "lo", MAC: "00:00:00:00:00:00", Addresses: []virt.Address{{IP: "127.0.0.1", Prefix: 8}, {IP: "::1", Prefix: 128}}})
	}
	for i, n := range g.NICs {
		a := virt.Address{IP: n.Address.String(), Prefix: 8}
		switch {
		case source == virt.FromAgent:
			out = append(out, virt.Interface{Name: fmt.Sprintf("enp%ds0", i+1), MAC: n.MAC, Addresses: []virt.Address{a, {IP: "fe80::1", Prefix: 64}}})
		case source == virt.FromLease && n.Network != "", source == virt.FromARP:
			if source == virt.FromARP {
				a.Prefix = 0
			}
			out = append(out, virt.Interface{Name: fmt.Sprintf("vnet%d", i), MAC: n.MAC, Addresses: []virt.Address{a}})
		}
	}
	return out, nil
}

// Late is f after each source was asked n times in vain by each run of a
// guest; an agent is not connected so long.
func Late(n int, f Addresser) Addresser {
	asked := map[string]int{}
	return func(g Guest, source virt.AddressSource) ([]virt.Interface, error) {
		key := fmt.Sprintf("%s %d %d", g.UUID, g.ID, source)
		if asked[key]++; asked[key] > n {
			return f(g, source)
		}
		if source == virt.FromAgent {
			g.Connected = false
			return Usual(g, source)
		}
		return nil, nil
	}
}

// Flapping is f every other time that a source is asked, and nothing between.
func Flapping(f Addresser) Addresser {
	asked := map[string]int{}
	return func(g Guest, source virt.AddressSource) ([]virt.Interface, error) {
		key := fmt.Sprintf("%s %d", g.UUID, source)
		if asked[key]++; asked[key]%2 == 1 {
			return f(g, source)
		}
		return nil, nil
	}
}

// OnlyFrom is f for one source; the others know nothing, and no agent is
// connected.
func OnlyFrom(only virt.AddressSource, f Addresser) Addresser {
	return func(g Guest, source virt.AddressSource) ([]virt.Interface, error) {
		switch {
		case source == only:
			g.Agent, g.Connected = true, true
			return f(g, source)
		case source == virt.FromAgent:
			g.Connected = false
			return Usual(g, source)
		}
		return nil, nil
	}
}

// Fixed gives the guest's first interface those addresses ("192.0.2.7", in
// that order) from every source.
func Fixed(addresses ...string) Addresser {
	return func(g Guest, _ virt.AddressSource) ([]virt.Interface, error) {
		if len(g.NICs) == 0 {
			return nil, nil
		}
		in := virt.Interface{Name: "vnet0", MAC: g.NICs[0].MAC}
		for _, a := range addresses {
			in.Addresses = append(in.Addresses, virt.Address{IP: a, Prefix: 24})
		}
		return []virt.Interface{in}, nil
	}
}

// WithContainers is f with docker0 before what the agent tells: a bridge in
// the guest, with a MAC of its own and an address of containers.
func WithContainers(f Addresser) Addresser {
	return func(g Guest, source virt.AddressSource) ([]virt.Interface, error) {
		out, err := f(g, source)
		if err != nil || source != virt.FromAgent {
			return out, err
		}
		docker := virt.Interface{Name: "docker0", MAC: "02:42:5e:00:53:01", Addresses: []virt.Address{{IP: "172.17.0.1", Prefix: 16}}}
		return append([]virt.Interface{docker}, out...), nil
	}
}

// DomainInterfaceAddresses implements virt.Conn.
func (c *conn) DomainInterfaceAddresses(ctx context.Context, ref virt.Domain, source virt.AddressSource) ([]virt.Interface, error) {
	return ask(ctx, c, "DomainInterfaceAddresses", func() ([]virt.Interface, error) {
		h := c.host
		d, err := h.findDom(ref)
		if err != nil {
			return nil, err
		}
		switch {
		case !d.active():
			return nil, invalid("domain is not running")
		case source > virt.FromARP:
			return nil, failure(codeArgument, fmt.Sprintf("argument unsupported: Unknown IP address data source %d", source))
		case source == virt.FromARP && h.noARP:
			return nil, failure(virt.CodeInternalError, "internal error: wrong nlmsg len")
		}
		answer := h.answer
		if answer == nil {
			answer = Usual
		}
		return answer(h.guest(d), source)
	})
}

func (h *Host) guest(d *dom) Guest {
	g := Guest{Name: d.name, UUID: d.uuid, ID: d.id, Agent: d.live.agent, Connected: d.agent}
	for _, n := range d.live.nics {
		g.NICs = append(g.NICs, NIC{n.mac, n.network, n.bridge, h.lease(n.mac)})
	}
	return g
}

// lease is the address of an interface: from 10.0.0.0/8, by its MAC, one for
// each, and the same after a restart.
func (h *Host) lease(mac string) netip.Addr {
	if a, ok := h.leases[mac]; ok {
		return a
	}
	sum := sha256.Sum256([]byte(mac))
	a := netip.AddrFrom4([4]byte{10, sum[0], sum[1], 1 + sum[2]%250})
	for taken := true; taken; {
		taken = false
		for _, o := range h.leases {
			if o == a {
				a, taken = a.Next(), true
			}
		}
	}
	h.leases[mac] = a
	return a
}
