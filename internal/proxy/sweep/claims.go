package sweep

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"fleetdesk/internal/proxy/provider"
)

// looksNeeded is how many claims in a row a host must have taken before
// anything is removed there: whoever started in the same moment shows by the
// second one.
const looksNeeded = 2

// maxDead bounds the dead holders that one call of Claim is told.
const maxDead = 64

// maxTold bounds the holders that are remembered as reported.
const maxTold = 256

// maxPeriod is the longest promise of another operator that is believed, unless
// this one's own is longer: a claim that was left behind must not hold removals
// back for as long as somebody once chose to write into it.
const maxPeriod = time.Hour

// holder is what is known of another operator's claims.
type holder struct {
	// beats are its last ones, by host.
	beats map[string]uint64
	// changed is when a beat was last seen to change, or to be there.
	changed time.Time
	// period is the longest that it promised on any host, up to maxPeriod.
	period time.Duration
	// alive: a beat changed while we looked.
	alive bool
}

// claims is the memory of a provider's claims. It is never changed in place.
type claims struct {
	// looks counts our own claims in a row, by host.
	looks   map[string]int
	holders map[string]holder
	// told are the holders that were reported as alive.
	told map[string]bool
}

// bars say where nothing may be removed, and why. The zero value bars nothing:
// it is that of a provider whose hosts know no claims.
type bars struct {
	needed bool
	// all bars every host.
	all string
	// open are the hosts with claims of our own and of nobody else.
	open map[string]bool
	// host says why one is not open.
	host map[string]string
}

// why says why nothing may be removed on the host; empty when it may.
func (b bars) why(host string) string {
	switch {
	case b.all != "":
		return b.all
	case !b.needed || b.open[host]:
		return ""
	case b.host[host] != "":
		return b.host[host]
	}
	return "this operator has no claim on the host"
}

// seen is what a look at the claims says.
type seen struct {
	bars bars
	// conflicts are those of holders that are not dead, by host and holder.
	conflicts []Conflict
	// dead are holders whose claims the next call removes.
	dead []string
	// fresh are live holders that were not reported yet.
	fresh []string
}

// look judges the answer of one call of Claim; err is that it failed as a
// whole, and own what this operator promises itself. now must be of the monotonic
// clock: other machines' clocks play no part, and what this machine sleeps must
// not count as another's silence, which may have slept with it.
func (c claims) look(now time.Time, own time.Duration, rows []provider.HostClaims, err error) (claims, seen) {
	next := claims{looks: map[string]int{}, holders: map[string]holder{}, told: map[string]bool{}}
	if len(c.told) < maxTold {
		maps.Copy(next.told, c.told)
	}
	for name, h := range c.holders {
		h.beats = maps.Clone(h.beats)
		next.holders[name] = h
	}
	s := seen{bars: bars{needed: true, open: map[string]bool{}, host: map[string]string{}}}
	if err != nil {
		s.bars.all = fmt.Sprintf("this operator could not claim the hosts: %v", err)
	} else {
		next.take(now, own, c.looks, rows, &s)
	}
	for _, name := range slices.Sorted(maps.Keys(next.holders)) {
		h := next.holders[name]
		if h.dead(now) {
			h.alive = false
			next.holders[name] = h
			if len(s.dead) < maxDead {
				s.dead = append(s.dead, name)
			}
			continue
		}
		if h.alive {
			s.bars.all = fmt.Sprintf("operator %s is alive and has this installation's identity: nothing goes before one of the two has ended", name)
			if !c.told[name] {
				s.fresh = append(s.fresh, name)
			}
			next.told[name] = true
		}
		for host := range h.beats {
			s.conflicts = append(s.conflicts, Conflict{Host: host, Holder: name, Alive: h.alive})
			if s.bars.open[host] {
				delete(s.bars.open, host)
				s.bars.host[host] = fmt.Sprintf("operator %s has a claim there, and is taken for dead when that has not changed until %s",
					name, h.changed.Add(3*h.period).UTC().Format(time.RFC3339))
			}
		}
	}
	slices.SortFunc(s.conflicts, func(a, b Conflict) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Holder, b.Holder))
	})
	return next, s
}

// dead: its beat stood still for three times as long as it promised. The
// division keeps a huge promise from becoming a small one.
func (h holder) dead(now time.Time) bool { return now.Sub(h.changed)/3 > h.period }

// take keeps the rows; before are the looks up to now.
func (c *claims) take(now time.Time, own time.Duration, before map[string]int, rows []provider.HostClaims, s *seen) {
	met := map[string]map[string]provider.OtherClaim{}
	whole, failed := map[string]bool{}, map[string]error{}
	for _, r := range rows {
		if r.Err != nil {
			failed[r.Host] = r.Err
			continue
		}
		whole[r.Host] = true
		for _, o := range r.Others {
			if met[o.Holder] == nil {
				met[o.Holder] = map[string]provider.OtherClaim{}
			}
			// A renewal may leave two for a moment: the newest counts.
			if last, twice := met[o.Holder][r.Host]; !twice || last.Beat < o.Beat {
				met[o.Holder][r.Host] = o
			}
		}
	}
	for name, hosts := range met {
		for host, o := range hosts {
			c.holders[name] = c.holders[name].meet(now, own, host, o)
		}
	}
	for host, err := range failed {
		delete(whole, host)
		s.bars.host[host] = fmt.Sprintf("this operator could not claim the host: %v", err)
	}
	for host := range whole {
		c.looks[host] = min(before[host]+1, looksNeeded)
		if c.looks[host] < looksNeeded {
			s.bars.host[host] = "this operator has just begun to claim the host"
			continue
		}
		s.bars.open[host] = true
	}
	for name, h := range c.holders {
		for host := range h.beats {
			// A host that failed says nothing; one that has left is nobody's.
			_, silent := failed[host]
			if _, there := met[name][host]; !silent && !there {
				delete(h.beats, host)
			}
		}
		if len(h.beats) == 0 {
			delete(c.holders, name)
		}
	}
}

// meet takes one claim of the holder over. A claim on a host where there was
// none says nothing about life, and gives it time to show.
func (h holder) meet(now time.Time, own time.Duration, host string, o provider.OtherClaim) holder {
	if h.beats == nil {
		h.beats = map[string]uint64{}
	}
	last, known := h.beats[host]
	if !known || last != o.Beat {
		h.changed = now
		h.alive = h.alive || known
	}
	h.beats[host] = o.Beat
	h.period = max(h.period, min(o.Period, max(maxPeriod, own)), time.Second)
	return h
}
