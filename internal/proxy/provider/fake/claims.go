package fake

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

type claimKey struct{ installation, holder string }

// Claim implements provider.Claimer; hosts are asked concurrently. Its steps
// are "claim" and, for each of the dead, "unclaim". A holder that is in its own
// Dead only takes its claims back.
func (p *Provider) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	if err := p.begin(ctx, "Claim"); err != nil {
		return nil, err
	}
	if err := checkClaim(c); err != nil {
		return nil, err
	}
	rows := make([]provider.HostClaims, len(p.b.order))
	p.each(ctx, func(i int, h *host, err error) {
		rows[i] = provider.HostClaims{Host: h.name, Err: err}
		if err == nil {
			rows[i].Err = h.claim(ctx, c)
		}
		if rows[i].Err == nil {
			rows[i].Others = h.others(c)
		}
	})
	return rows, nil
}

func checkClaim(c provider.Claim) error {
	switch {
	case c.Installation == "":
		return fault.New(fault.Invalid, "a claim must carry whose it is: its installation is empty")
	case len(c.Holder) < 8 || len(c.Holder) > 32 || strings.Trim(c.Holder, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
		return fault.Errorf(fault.Invalid, "holder %q of a claim: want 8 to 32 characters of a-z and 0-9", c.Holder)
	case c.Period <= 0 || c.Period%time.Millisecond != 0:
		return fault.Errorf(fault.Invalid, "period %v of a claim: want whole milliseconds above zero", c.Period)
	}
	return nil
}

// claim puts c in place of the holder's last one, and takes the dead away.
func (h *host) claim(ctx context.Context, c provider.Claim) error {
	if !slices.Contains(c.Dead, c.Holder) {
		if err := provider.Step(ctx, "claim"); err != nil {
			return err
		}
		h.put(c)
	}
	for _, dead := range c.Dead {
		if err := provider.Step(ctx, "unclaim"); err != nil {
			return err
		}
		h.mu.Lock()
		delete(h.claims, claimKey{c.Installation, dead})
		h.mu.Unlock()
	}
	return nil
}

func (h *host) put(c provider.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claims[claimKey{c.Installation, c.Holder}] = provider.OtherClaim{Holder: c.Holder, Beat: c.Beat, Period: c.Period}
}

// others are the claims that others than c's holder have for its installation.
func (h *host) others(c provider.Claim) []provider.OtherClaim {
	var found []provider.OtherClaim
	for _, o := range h.claimed(c.Installation) {
		if o.Holder != c.Holder {
			found = append(found, o)
		}
	}
	return found
}

func (h *host) claimed(installation string) []provider.OtherClaim {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []provider.OtherClaim
	for key, o := range h.claims {
		if key.installation == installation {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b provider.OtherClaim) int { return cmp.Compare(a.Holder, b.Holder) })
	return found
}

// PlantClaim puts a claim on the host, in place of its holder's last one, as
// another operator would; remove takes it away again, whatever its beat is by
// then.
func (p *Provider) PlantClaim(name string, c provider.Claim) (remove func()) {
	h := p.must(name)
	h.put(c)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.claims, claimKey{c.Installation, c.Holder})
	}
}

// Claims returns all claims of the installation on the host, by holder.
func (p *Provider) Claims(name, installation string) []provider.OtherClaim {
	return p.must(name).claimed(installation)
}
