package lease

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// The order of keys for a target, in managed pools: each has its turn, which is
// the time of its last use for the target, or when it came into line. The
// earliest turn comes first, and of equal ones who was in line first. In a pool
// whose rests are of exit addresses a key comes no earlier than the last use of its
// address, and of those that share one the one that was used least recently.
//
// After a use the turn is the time of the use, and later for a key of less than
// full weight: so much later that a key of half the weight comes round half as
// often. No turn is put off by more than [maxStretch], so that no key is
// forgotten, and a turn is an order, never a rest: the last key that can be used
// is used.
const (
	// maxGap bounds the time since the last use that weights stretch.
	maxGap = time.Hour
	// maxStretch bounds how much later a turn is for a small weight.
	maxStretch = 24 * time.Hour
	// maxDoubt bounds how often errors in a row halve a weight.
	maxDoubt = 6
)

// order is a place among keys that are used in turn: the turn, which may be that of
// its address, its own, and the seat.
type order struct {
	turn, own time.Time
	seat      int64
}

func (o order) compare(p order) int {
	return cmp.Or(o.turn.Compare(p.turn), o.own.Compare(p.own), cmp.Compare(o.seat, p.seat))
}

// share is how often the key is to be used beside one at its best: from 0 to 1.
func (k *Key) share() float64 {
	weight := float64(min(max(cmp.Or(k.Weight, 100), 1), 100)) / 100
	return math.Ldexp(weight, -min(k.Errors, maxDoubt))
}

// after is the turn after a use at now of a key whose turn was t. It never comes
// before t: a key that is used early, for want of another, gains nothing by it.
func (k *Key) after(t, now time.Time) time.Time {
	gap := min(max(now.Sub(t), 0), maxGap)
	stretch := min((1/k.share()-1)*float64(gap), float64(maxStretch))
	return later(t, now.Add(time.Duration(stretch).Truncate(time.Microsecond)))
}

// turn is the key's for a target; used tells whether it was used for it. Where rests
// are of exit addresses so are turns: the later one of its own and its address's.
// The cooldowns must be known.
func (w *work) turn(p Pool, k *Key, target string) (at order, used bool) {
	at = order{k.Joined, k.Joined, k.Seat}
	remembered := func(id CooldownID) (turn time.Time, ok bool) {
		c := w.cooldowns[id]
		if c == nil || c.Turn.IsZero() || c.Forget.Before(w.begin.Now) {
			return turn, false
		}
		return c.Turn, true
	}
	if own, ok := remembered(CooldownID{ScopeKey, k.Name, target}); ok {
		at.turn, at.own, used = own, own, true
	}
	if p.Scope == ScopeExitIP && k.ExitIP != "" {
		if turn, ok := remembered(CooldownID{ScopeExitIP, k.ExitIP, target}); ok {
			at.turn = later(at.turn, turn)
		}
	}
	return at, used
}

// restUntil is when neither a rest nor the uses in flight keep the key from the
// target any more, as far as time alone tells. The cooldowns must be known.
func (w *work) restUntil(p Pool, k *Key, target string) (until time.Time) {
	until = w.owed(k, target)
	for _, id := range restsBy(k, target) {
		if c := w.cooldowns[id]; c != nil {
			until = later(until, c.Until)
		}
	}
	return later(until, w.cooldowns[restsOn(p, k, target)].fullUntil(p.InFlight, w.begin.Now))
}

// seat puts a key at the end of the line of its pools.
func (w *work) seat(k *Key) {
	k.Joined, k.Seat = w.begin.Now, w.next()
	w.seated = append(w.seated, seated{k.Name, k.Seat})
}

// reseats reports whether what was done to the key may let somebody have it
// earlier than was written down anywhere: it then comes in at the end.
func reseats(before, after *Key) bool {
	if !after.Managed || len(after.Pools) == 0 || after.Disabled != nil || after.Unfit != "" {
		return false
	}
	return after.Seat == 0 || before.UID != after.UID || before.ExitIP != after.ExitIP || before.FreeAt().Equal(never) ||
		question("", before.Attributes, nil) != question("", after.Attributes, nil) ||
		slices.ContainsFunc(after.Pools, func(p string) bool { return !before.in(p) })
}

// reseat does that for all that leave by an address for which rests were lifted.
func (w *work) reseat(exitIP string) bool {
	if exitIP == "" {
		return true
	}
	rows, ok := w.concerned(CooldownID{Scope: ScopeExitIP, ID: exitIP})
	if !ok {
		return false
	}
	for _, r := range rows {
		if len(r.now.Pools) == 0 {
			continue
		}
		w.over(r)
		k := r.now.clone()
		w.seat(&k)
		w.set(r, k)
		w.mayFind(k.Pools)
	}
	return true
}

// findInTurn returns the key whose turn it is of those that the take can use and
// that are not set aside, nil for none.
func (w *work) findInTurn(p Pool, op Take, s *search, c *cursor, most int) *keyRow {
	rows, isFew, ok := w.few(p.Name)
	switch {
	case !ok:
		return nil
	case !isFew:
		return w.inLine(p, op, s, c, most)
	}
	c.line, c.partial = nil, false
	return w.firstOf(p, op, s, c, rows, false)
}

// findNew does so among keys that joined since the target was first asked for and
// were never used for it. Of few keys nobody remembers when that was: there the
// first of the uses that are remembered counts.
func (w *work) findNew(p Pool, op Take, s *search, c *cursor) *keyRow {
	rows, isFew, ok := w.few(p.Name)
	switch {
	case !ok:
		return nil
	case !isFew:
		return w.newInLine(p, op, s, c)
	}
	c.line = nil
	return w.firstOf(p, op, s, c, rows, true)
}

// firstOf compares keys with each other.
func (w *work) firstOf(p Pool, op Take, s *search, c *cursor, rows []*keyRow, fresh bool) (best *keyRow) {
	if !w.foreseeTurns(p.Name, rows, op.Target) {
		return nil
	}
	since := never
	for _, r := range rows {
		if at, used := w.turn(p, &r.now, op.Target); used && at.own.Before(since) {
			since = at.own
		}
	}
	var first order
	for _, r := range rows {
		at, used := w.turn(p, &r.now, op.Target)
		switch {
		case fresh && (used || !at.own.After(since)), best != nil && at.compare(first) >= 0, !w.suits(p, op, r, nil):
		case s.aside[r.now.Name]:
			c.waits = true
		default:
			best, first = r, at
		}
	}
	return best
}

// few returns the keys of a pool that are free by their rows, in no order, when
// they are few, or all others turned out to be held.
func (w *work) few(pool string) (rows []*keyRow, isFew, ok bool) {
	limit := few
	if w.scarce[pool] {
		limit = someFree
	}
	most := limit + w.ops // each op takes one away at most
	if n, known := w.freeOnes[pool]; !known {
		if w.load(Want{Free: []FreeWant{w.freeWant(pool)}}) != nil {
			return nil, false, false
		}
		return w.few(pool)
	} else if n > most {
		return nil, false, true
	}
	id := CandidateWant{Pool: pool}
	if (w.streams[id] == nil || w.streams[id].more) && !w.loadStream(id, most) {
		return nil, false, false
	}
	add := func(r *keyRow) {
		if r != nil && !r.dropped && r.now.in(pool) && !r.now.FreeAt().After(w.begin.Now) {
			rows = append(rows, r)
		}
	}
	for _, n := range w.streams[id].names {
		if w.loose[pool][n] == nil {
			add(w.keys[n])
		}
	}
	for _, r := range w.loose[pool] {
		add(r)
	}
	return rows, len(rows) <= limit || w.scarce[pool], true
}

// isScarce reports whether a pool has so few free keys that comparing them costs
// less than to pass over those that are held, and lets the rest of the transaction
// do so.
func (w *work) isScarce(pool string) bool {
	want := FreeWant{pool, someFree + w.ops + 1}
	if !has(w.scarce, pool) {
		if w.freeOnes[pool] > few+w.ops && w.load(Want{Free: []FreeWant{want}}) != nil {
			return false
		}
		w.scarce[pool] = w.freeOnes[pool] < want.Limit
	}
	return w.scarce[pool]
}

func (w *work) freeWant(pool string) FreeWant { return FreeWant{pool, few + w.ops + 1} }

// maxForeseen bounds what is asked for ahead.
const maxForeseen = 4096

// foreseeTurns asks for what is remembered of the keys for the target, and for
// the targets of the takes that come next.
func (w *work) foreseeTurns(pool string, rows []*keyRow, target string) bool {
	var ids []CooldownID
	missing := false
	add := func(target string) {
		for _, r := range rows {
			for _, id := range restsBy(&r.now, target) {
				if !w.known(id) {
					ids, missing = append(ids, id), true
				}
			}
		}
	}
	if add(target); !missing {
		return true
	}
	seen := map[string]bool{target: true}
	for _, op := range w.takes[w.taken:] {
		if at := w.pools[pool].aim(op.Target); op.Pool == pool && at != "" && !seen[at] && len(ids) < maxForeseen {
			seen[at] = true
			add(at)
		}
	}
	return w.know(ids)
}

// isNew reports whether a pick with that number looks at new keys first.
func (p Pool) isNew(number int64) bool { return number%100*61%100 < int64(p.NewShare) }
