package sweep

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
)

// Hash names a set of instances by their providerIDs, in any order.
func Hash(ids []string) string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	h := sha256.New()
	for _, id := range slices.Compact(ids) {
		_, _ = io.WriteString(h, id+"\n")
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// limit is how many orphans of so many instances may go in one sweep.
func limit(instances int) int { return max(3, instances/5) }

// fuse holds the orphans that are due back when they are so many that an error
// of ours is more likely than the loss of their Proxies, unless a person
// released them. It looks at the hosts' bars last: what is barred counts too,
// so that the set does not change its name with them.
func (j *judging) fuse() {
	var due []*finding
	for i := range j.findings {
		if f := &j.findings[i]; f.act == removeOrphan {
			due = append(due, f)
		}
	}
	j.release(due)
	var fresh []string
	for _, f := range due {
		if !j.next.released[f.ID] {
			fresh = append(fresh, f.ID)
		}
	}
	why := j.trips(len(due), fresh)
	if why != "" && !j.v.dryRun {
		j.fuseHolds(why, fresh)
	}
	for _, f := range due {
		switch {
		case j.v.dryRun && why != "" && !j.next.released[f.ID]:
			f.act, f.Message = nothing, "a dry run removes nothing, and the fuse would hold it back: "+why
		case why != "" && !j.next.released[f.ID]:
			f.act, f.Verdict, f.Message = nothing, Held, "the fuse holds it back: "+why
		default:
			f.released = j.next.released[f.ID]
			j.hold(f)
		}
	}
}

// release lets pass what a person named: the set as it is now, or one that was
// held back lately; never an orphan outside it. Who takes the annotation away
// takes the release back.
func (j *judging) release(due []*finding) {
	if j.v.page.Release == "" {
		return
	}
	granted := map[string]bool{}
	for _, o := range j.m.offers {
		if o.hash == j.v.page.Release {
			for _, id := range o.ids {
				granted[id] = true
			}
		}
	}
	var open []string
	for _, f := range due {
		if !j.m.released[f.ID] {
			open = append(open, f.ID)
		}
	}
	exact := len(open) > 0 && Hash(open) == j.v.page.Release
	for _, f := range due {
		if exact || j.m.released[f.ID] || granted[f.ID] {
			j.next.released[f.ID] = true
		}
	}
	// An orphan on a host that does not answer now stays released.
	for t := range j.next.seen {
		if whole, listed := j.whole[t.host]; listed && !whole && j.m.released[t.id] {
			j.next.released[t.id] = true
		}
	}
}

// trips says why so many orphans, of which those with the fresh ids are not
// released, must wait for a person; empty when they need not. What was removed
// within the last grace counts as if it were still there and went now: a fleet
// must not go in small parts either.
func (j *judging) trips(due int, freshIDs []string) string {
	gone := len(j.next.lately)
	for _, id := range freshIDs {
		if _, still := j.next.lately[id]; still {
			gone--
		}
	}
	fresh, readable := len(freshIDs), j.readable+gone
	proxies := 0
	for _, exists := range j.v.owners {
		if exists {
			proxies++
		}
	}
	switch {
	case fresh == 0:
		return ""
	case proxies == 0:
		return "no Proxy exists at all"
	case due >= j.readable:
		return fmt.Sprintf("all %d instances would go", j.readable)
	case fresh+gone > limit(readable) && gone > 0:
		return fmt.Sprintf("%d instances would go after %d that went lately, of %d, and at most %d may within a grace period", fresh, gone, readable, limit(readable))
	case fresh > limit(readable):
		return fmt.Sprintf("%d of %d instances would go, and at most %d may at once", fresh, readable, limit(readable))
	}
	return ""
}

func (j *judging) fuseHolds(why string, ids []string) {
	j.plan.hash, j.plan.fuse, j.plan.held = Hash(ids), why, slices.Sorted(slices.Values(ids))
	j.next.offers = slices.DeleteFunc(slices.Clone(j.m.offers), func(o offer) bool { return o.hash == j.plan.hash })
	j.next.offers = append(j.next.offers, offer{hash: j.plan.hash, ids: ids})
	if n := len(j.next.offers) - maxOffers; n > 0 {
		j.next.offers = j.next.offers[n:]
	}
}
