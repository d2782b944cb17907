package kvm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Claim implements [provider.Claimer]. A claim is a volume of one byte in the
// host's pool, and its name says everything: libvirt has no other place that two
// operators see and that outlives a connection. A renewal makes a new volume and
// then removes the last one, so that there is always one. Its steps: "kvm:
// claim", and "kvm: remove claim" for each that goes.
//
// A host costs three calls: make, list, remove. The list comes after the new
// claim is there: of two operators that begin at the same time one sees the
// other. A pool that cannot be used is the row's error.
//
// A holder that is in its own Dead takes back what this provider claimed for it,
// and makes nothing; what its other providers claimed is theirs to take back.
func (p *Provider) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	if err := validClaim(c); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	hosts := p.all()
	rows := make([]provider.HostClaims, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() {
			rows[i].Host = h.name
			rows[i].Err = p.always(ctx, h, func(ctx context.Context, conn virt.Conn) error {
				h.fresh(p.links.Generation(h.name))
				var err error
				rows[i].Others, err = p.claim(ctx, conn, h, c)
				return err
			})
			if rows[i].Err != nil {
				rows[i].Others = nil
			}
		})
	}
	wg.Wait()
	return rows, nil
}

func validClaim(c provider.Claim) error {
	switch {
	case c.Installation == "":
		return fault.New(fault.Invalid, "a claim's installation is empty")
	case !image.ValidHolder(c.Holder):
		return fault.Errorf(fault.Invalid, "a claim's holder is %q: want 8 to 32 characters of a-z and 0-9", short(c.Holder))
	case c.Period <= 0 || c.Period%time.Millisecond != 0:
		return fault.Errorf(fault.Invalid, "a claim's period is %s: want whole milliseconds, above zero", c.Period)
	}
	for _, dead := range c.Dead {
		if !image.ValidHolder(dead) {
			return fault.Errorf(fault.Invalid, "a dead holder is %q: want 8 to 32 characters of a-z and 0-9", short(dead))
		}
	}
	return nil
}

func (p *Provider) claim(ctx context.Context, c virt.Conn, h *host, said provider.Claim) ([]provider.OtherClaim, error) {
	own := image.Claim{Place: image.Place(said.Installation, p.name, h.name), Holder: said.Holder, Period: said.Period, Beat: said.Beat}
	name := image.ClaimName(said.Installation, own)
	back := slices.Contains(said.Dead, said.Holder)
	var pool virt.Pool
	if back {
		found, err := h.pool(ctx, c)
		if err != nil {
			return nil, err
		}
		pool = found.Pool
	} else {
		var err error
		if pool, err = h.put(ctx, c, name); err != nil {
			return nil, err
		}
	}
	vols, err := c.StoragePoolListAllVolumes(ctx, pool)
	if err != nil {
		return nil, err
	}
	there := false
	// What each other holder has: the newest claim of each place.
	others := map[string]map[string]image.Claim{}
	for _, v := range vols {
		one, ok := image.ParseClaim(v.Name)
		switch {
		case v.Name == name && !back:
			there = true
		case !ok || !one.Of(said.Installation):
		case one.Holder == said.Holder:
			// Of another place it is the newest of another provider or host of this
			// operator. One with a higher beat is of a later call.
			if one.Place == own.Place && one.Beat <= own.Beat {
				err = p.unclaim(ctx, c, v)
			}
		case slices.Contains(said.Dead, one.Holder):
			err = p.unclaim(ctx, c, v)
		default:
			if others[one.Holder] == nil {
				others[one.Holder] = map[string]image.Claim{}
			}
			if last, ok := others[one.Holder][one.Place]; !ok || one.Beat > last.Beat {
				others[one.Holder][one.Place] = one
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if !there && !back {
		return nil, fault.Errorf(fault.Transient, "host %s: somebody removed the claim %s from pool %s: leave volumes of that name alone", h.name, name, pool.Name)
	}
	return summed(others), nil
}

// maxPeriod is what is believed at most of another's period: a claim that nobody
// renews must not hold up sweeps for years.
const maxPeriod = 24 * time.Hour

// summed is one row for each holder. Several providers of one operator in one
// pool count each for themselves; the sum of their beats grows with each of
// them, also when the one with the highest has left the configuration.
func summed(others map[string]map[string]image.Claim) []provider.OtherClaim {
	out := make([]provider.OtherClaim, 0, len(others))
	for _, holder := range slices.Sorted(maps.Keys(others)) {
		row := provider.OtherClaim{Holder: holder}
		for _, one := range others[holder] {
			row.Beat += one.Beat
			row.Period = max(row.Period, min(one.Period, maxPeriod))
		}
		out = append(out, row)
	}
	return out
}

// put makes a claim's volume, and returns the pool that it is in. One that is
// there was made by a call whose answer was lost.
func (h *host) put(ctx context.Context, c virt.Conn, name string) (virt.Pool, error) {
	text, err := domain.VolumeXML(name, string(image.Raw), 1, "", "")
	if err != nil {
		return virt.Pool{}, err
	}
	if err := provider.Step(ctx, "kvm: claim"); err != nil {
		return virt.Pool{}, err
	}
	// What is known of the pool saves asking how it is; when that does not work,
	// it is asked.
	h.mu.Lock()
	known, there := h.handle, h.offer != nil && h.handle.UUID != ""
	h.mu.Unlock()
	if there {
		_, err = c.StorageVolCreateXML(ctx, known, text)
	}
	if !there || err != nil && !virt.Is(err, virt.CodeStorageVolExist) {
		found, why := h.pool(ctx, c)
		if why != nil {
			return virt.Pool{}, why
		}
		if !there || fault.Of(err) == fault.NotFound { // it was made anew under its name
			known = found.Pool
			_, err = c.StorageVolCreateXML(ctx, known, text)
		}
	}
	switch {
	case err == nil || virt.Is(err, virt.CodeStorageVolExist):
		return known, nil
	case fault.Of(err) == fault.Quota:
		err = fmt.Errorf("%w: free space in pool %s there", err, known.Name)
	}
	return virt.Pool{}, fmt.Errorf("making the claim %s: %w", name, err)
}

// unclaim removes a claim; one that is gone is success.
func (p *Provider) unclaim(ctx context.Context, c virt.Conn, v virt.Volume) error {
	if err := provider.Step(ctx, "kvm: remove claim"); err != nil {
		return err
	}
	if err := notThere(c.StorageVolDelete(ctx, v)); err != nil {
		return fmt.Errorf("removing the claim %s: %w", v.Name, err)
	}
	return nil
}
