package kvm

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// unsee drops what is known of a domain's addresses.
func (h *host) unsee(uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sights, uuid)
}

// sight is the address of one start of a domain.
type sight struct {
	run  int32
	addr netip.Addr
	// read is when the host was last asked; since when the domain was first
	// seen running.
	read, since time.Time
	// told is what each source said while there is no address.
	told string
}

// waiting says at which stage the start-up is, for people. It names moments and
// no spans: it goes into a Proxy's status, which is written when it differs.
func (s sight) waiting() string {
	return fmt.Sprintf("started at %s and has no address yet; %s", moment(s.since), s.told)
}

func moment(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

// due are the domains whose addresses this listing reads again: those read
// longest ago. Where events tell of starts and stops it is seldom: what is left
// is a guest that changes its address while it runs.
func (h *host) due(list []seen, now time.Time) map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]bool{}
	age := rereadAge
	if h.watched > 0 {
		age = rereadRarely
	}
	for range rereads {
		oldest, at := "", now.Add(-age)
		for _, s := range list {
			k, ok := h.sights[s.Domain.UUID]
			if ok && k.addr.IsValid() && k.read.Before(at) && !out[s.Domain.UUID] {
				oldest, at = s.Domain.UUID, k.read
			}
		}
		if oldest == "" {
			break
		}
		out[oldest] = true
	}
	return out
}

// patience is how long an IPv6 address waits for an IPv4 one to come.
const patience = 30 * time.Second

// address is where a running domain is reached. It is asked for when it is not
// known for this start of the domain, or again is set; the last good one stays
// while no source answers.
func (p *Provider) address(ctx context.Context, c virt.Conn, h *host, d virt.Domain, m domain.Mark, again bool) (sight, error) {
	now := p.now()
	h.mu.Lock()
	s, known := h.sights[d.UUID]
	h.mu.Unlock()
	if !known || s.run != d.ID {
		s = sight{run: d.ID, since: now}
		if m.Run == d.ID && m.Address != "" {
			if a, err := netip.ParseAddr(m.Address); err == nil {
				s.addr, s.read = a, now
			}
		}
	}
	if !s.addr.IsValid() || again {
		found, told, err := p.ask(ctx, c, d, domain.MACOf(m.Owner), now.Sub(s.since) >= patience)
		if err != nil {
			return s, err
		}
		s.read, s.told = now, told
		if found.IsValid() {
			s.addr = found
		}
	}
	h.mu.Lock()
	h.sights[d.UUID] = s
	h.mu.Unlock()
	return s, nil
}

// ask reads the domain's addresses from one source after the other. An agent
// that is silent, or a source that the host does not have, is no failure.
func (p *Provider) ask(ctx context.Context, c virt.Conn, d virt.Domain, mac string, sixToo bool) (netip.Addr, string, error) {
	var six netip.Addr
	var told []string
	for _, src := range []struct {
		source virt.AddressSource
		name   string
	}{{virt.FromLease, "lease"}, {virt.FromARP, "ARP"}, {virt.FromAgent, "guest agent"}} {
		list, err := c.DomainInterfaceAddresses(ctx, d, src.source)
		if err != nil {
			if !answered(err) || isGone(err) {
				return netip.Addr{}, "", err
			}
			told = append(told, src.name+": "+ownWords(err))
			continue
		}
		v4, v6 := domain.Addresses(list, mac)
		if len(v4) > 0 {
			return v4[0], "", nil
		}
		if len(v6) > 0 && !six.IsValid() {
			six = v6[0]
		}
		what := "none"
		if src.source == virt.FromAgent {
			what = "up, and tells none"
		}
		told = append(told, src.name+": "+what)
	}
	if six.IsValid() && sixToo {
		return six, "", nil
	}
	if six.IsValid() {
		told = append(told, fmt.Sprintf("%s waits for an IPv4 address to come before it", six))
	}
	return netip.Addr{}, strings.Join(told, "; "), nil
}
