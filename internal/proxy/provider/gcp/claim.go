package gcp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Claim implements [provider.Claimer]. A claim is an empty unmanaged instance
// group in the zone: it costs nothing, and needs no right over instances. One is
// made for each holder and provider; its description says whose it is, and a
// named port the beat and the period, which are replaced as one. Its steps:
// "gcp: claim" for both, and "gcp: remove claim" for each that goes.
//
// A renewal costs a zone three calls: set, wait, list. The list comes after the
// claim is there: of two operators that begin at the same time one sees the
// other.
func (p *Provider) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	if err := validClaim(c); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	zones := p.all()
	rows := make([]provider.HostClaims, len(zones))
	var wg sync.WaitGroup
	for i, z := range zones {
		wg.Go(func() {
			rows[i].Host = z.name
			others, err := p.claim(ctx, z, c)
			rows[i].Err = p.named(ctx, z.name, p.listFault(err))
			if err == nil {
				rows[i].Others = others
			}
		})
	}
	wg.Wait()
	return rows, nil
}

var holderForm = regexp.MustCompile(`^[a-z0-9]{8,32}$`)

func validClaim(c provider.Claim) error {
	switch {
	case c.Installation == "":
		return fault.New(fault.Invalid, "a claim's installation is empty")
	case !holderForm.MatchString(c.Holder):
		return fault.Errorf(fault.Invalid, "a claim's holder is %q: want 8 to 32 characters of a-z and 0-9", short(c.Holder))
	case c.Period <= 0 || c.Period%time.Millisecond != 0:
		return fault.Errorf(fault.Invalid, "a claim's period is %s: want whole milliseconds, above zero", c.Period)
	}
	for _, dead := range c.Dead {
		if !holderForm.MatchString(dead) {
			return fault.Errorf(fault.Invalid, "a dead holder is %q: want 8 to 32 characters of a-z and 0-9", short(dead))
		}
	}
	return nil
}

const (
	claimPrefix = "fdc-"
	// claimLength is of the part of a claim's name that tells holders and
	// providers apart.
	claimLength = 24
	// maxPeriod is what is believed at most of another's period.
	maxPeriod = 24 * time.Hour
)

// pledge is what a claim's description keeps.
type pledge struct {
	Installation string `json:"installation"`
	Provider     string `json:"provider"`
	Holder       string `json:"holder"`
}

func (p pledge) name() string {
	return claimPrefix + tagOf(p.Installation) + "-" + hash(claimLength, p.Provider, p.Holder)
}

func (p pledge) description() string {
	text, err := json.Marshal(struct {
		Claim pledge `json:"fleetdeskClaim"`
	}{p})
	if err != nil {
		return "" // of strings: cannot be
	}
	return string(text)
}

// portOf is the named port that says beat and period.
func portOf(beat uint64, period time.Duration) []*compute.NamedPort {
	return []*compute.NamedPort{{Name: fmt.Sprintf("b%d-p%d", beat, period.Milliseconds()), Port: 1}}
}

var beatForm = regexp.MustCompile(`^b([0-9]{1,20})-p([0-9]{1,15})$`)

// readClaim reads what somebody else wrote.
func readClaim(g *compute.InstanceGroup) (pledge, provider.OtherClaim, error) {
	var d struct {
		Claim *pledge `json:"fleetdeskClaim"`
	}
	if err := json.Unmarshal([]byte(g.Description), &d); err != nil || d.Claim == nil || d.Claim.name() != g.Name || !holderForm.MatchString(d.Claim.Holder) {
		return pledge{}, provider.OtherClaim{}, fault.Errorf(fault.Permanent, "the claim %s cannot be read: it may be a living operator's; delete the instance group when it is nobody's", short(g.Name))
	}
	out := provider.OtherClaim{Holder: d.Claim.Holder}
	for _, port := range g.NamedPorts {
		if m := beatForm.FindStringSubmatch(port.Name); m != nil {
			beat, err := strconv.ParseUint(m[1], 10, 64)
			ms, err2 := strconv.ParseInt(m[2], 10, 64)
			if err == nil && err2 == nil && ms > 0 {
				out.Beat = beat
				out.Period = min(time.Duration(min(ms, maxPeriod.Milliseconds()))*time.Millisecond, maxPeriod)
				return *d.Claim, out, nil
			}
		}
	}
	return *d.Claim, out, fault.Errorf(fault.Permanent, "the claim %s has no beat: somebody changed its named ports; delete the instance group when it is nobody's", short(g.Name))
}

func (p *Provider) claim(ctx context.Context, z *zone, c provider.Claim) ([]provider.OtherClaim, error) {
	own := pledge{c.Installation, p.name, c.Holder}
	back := slices.Contains(c.Dead, c.Holder)
	unlock, err := p.working.lock(ctx, z.name+"/"+own.name())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if !back {
		if err := p.put(ctx, z, own, c); err != nil {
			return nil, fmt.Errorf("making the claim %s: %w", own.name(), err)
		}
	}
	groups, err := p.api.listGroups(ctx, z.name, "name eq "+claimPrefix+tagOf(c.Installation)+"-.*")
	if err != nil {
		return nil, err
	}
	there := false
	others := map[string]provider.OtherClaim{}
	for _, g := range groups {
		if g.Name == own.name() {
			there = true
			if back {
				if err := p.unclaim(ctx, z, g.Name); err != nil {
					return nil, err
				}
			}
			continue
		}
		by, said, err := readClaim(g)
		switch {
		case by.Holder == c.Holder && by.Holder != "":
			// Another provider of this operator: it is that one's to renew.
		case slices.Contains(c.Dead, by.Holder):
			if err := p.unclaim(ctx, z, g.Name); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		default:
			// Several providers of one operator count each for themselves; the sum of
			// their beats grows with each of them.
			sum := others[by.Holder]
			others[by.Holder] = provider.OtherClaim{Holder: by.Holder, Beat: sum.Beat + said.Beat, Period: max(sum.Period, said.Period)}
		}
	}
	if !there && !back {
		return nil, fault.Errorf(fault.Transient, "the list does not show the claim %s that was just made: it is behind, or somebody removed it", own.name())
	}
	out := make([]provider.OtherClaim, 0, len(others))
	for _, holder := range slices.Sorted(maps.Keys(others)) {
		out = append(out, others[holder])
	}
	return out, nil
}

// put writes the claim: into the group that is there, or into a new one.
func (p *Provider) put(ctx context.Context, z *zone, own pledge, c provider.Claim) error {
	if err := provider.Step(ctx, "gcp: claim"); err != nil {
		return err
	}
	name, ports := own.name(), portOf(c.Beat, c.Period)
	op, err := p.api.setNamedPorts(ctx, z.name, name, ports)
	if fault.Of(err) == fault.NotFound {
		op, err = p.api.insertGroup(ctx, z.name, &compute.InstanceGroup{Name: name, Description: own.description(), NamedPorts: ports})
		if fault.Of(err) == fault.Conflict {
			return fault.Errorf(fault.Transient, "another call is making it: %w", err)
		}
	}
	if err != nil {
		return err
	}
	return p.ended(ctx, z, op)
}

// ended waits until an operation has ended, within the call's bound.
func (p *Provider) ended(ctx context.Context, z *zone, op *compute.Operation) error {
	if op.Status != done {
		var err error
		if op, err = p.api.await(ctx, z.name, op.Name, p.limit); err != nil {
			return err
		}
		if op.Status != done {
			return fault.New(fault.Timeout, "the operation did not end in time")
		}
	}
	return failed(op)
}

// unclaim removes a claim; one that is gone is success.
func (p *Provider) unclaim(ctx context.Context, z *zone, name string) error {
	if err := provider.Step(ctx, "gcp: remove claim"); err != nil {
		return err
	}
	op, err := p.api.deleteGroup(ctx, z.name, name)
	if err == nil {
		err = p.ended(ctx, z, op)
	}
	if err != nil && fault.Of(err) != fault.NotFound {
		return fmt.Errorf("removing the claim %s: %w", name, err)
	}
	return nil
}
