package lease

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// maxWhyRests bounds the keys that one transaction looks at to say why there is
// no key: of many refusals at once only the first ones say it in full, and the
// others that what is free rests.
const maxWhyRests = 2 * MaxWhy

// why counts what keeps the keys of a pool from a request.
func (w *work) why(p Pool, op Take) ([]Why, bool) {
	if w.whys >= maxWhyRests {
		return []Why{{WhyResting, w.freeOnes[p.Name]}}, true
	}
	if _, known := w.listed[p.Name]; !known && w.load(Want{Listed: []ListedWant{{p.Name, MaxWhy}}}) != nil {
		return nil, false
	}
	names := map[string]bool{}
	for i := range w.listed[p.Name] {
		names[w.listed[p.Name][i].Name] = true
	}
	for _, r := range w.written {
		names[r.now.Name] = true
	}
	var rows []*keyRow
	var ids []CooldownID
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if r := w.key(n); r != nil && r.now.in(p.Name) {
			rows = append(rows, r)
			if op.Target != "" {
				ids = append(ids, restsBy(&r.now, op.Target)...)
			}
		}
	}
	if !w.know(ids) {
		return nil, false
	}
	w.whys += len(rows)
	counts := map[string]int{}
	for _, r := range rows {
		counts[w.cause(p, op, &r.now)]++
	}
	var all []Why
	for cause, n := range counts {
		all = append(all, Why{cause, n})
	}
	slices.SortFunc(all, func(a, b Why) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Cause, b.Cause)) })
	return all, true
}

// cause is what keeps a key from a request that found none.
func (w *work) cause(p Pool, op Take, k *Key) string {
	if !k.Matches(op.Where, op.Match...) {
		return WhyOther
	}
	if s := k.State(w.begin.Now); s != Free {
		return string(s)
	}
	if op.Target == "" {
		return WhyPromised
	}
	resting := w.owed(k, op.Target).After(w.begin.Now)
	for _, id := range restsBy(k, op.Target) {
		c := w.cooldowns[id]
		switch {
		case c == nil:
		case c.BannedUntil.After(w.begin.Now):
			return WhyBanned
		case c.Until.After(w.begin.Now):
			resting = true
		}
	}
	switch {
	case resting:
		return WhyResting
	case w.restUntil(p, k, op.Target).After(w.begin.Now):
		return WhyInUse
	}
	return WhyPromised
}

// dueInTurn tells when keys of a pool whose keys are used in turn come free for
// the request: those that are free by their rows, and the next ones by time. When
// not all of these are known, behind is where the others begin.
func (w *work) dueInTurn(p Pool, op Take, next []Key, behind time.Time, due func(time.Time)) bool {
	rows, isFew, ok := w.few(p.Name)
	if !ok {
		return false
	}
	var ids []CooldownID
	for i := range next {
		ids = append(ids, restsBy(&next[i], op.Target)...)
	}
	if !w.know(ids) {
		return false
	}
	for i := range next {
		if k := &next[i]; k.Matches(op.Where, op.Match...) {
			due(later(later(k.FreeAt(), w.restUntil(p, k, op.Target)), w.willOwe(k, op.Target)))
		}
	}
	due(behind) // those that come after it are not known
	if l := w.lines[w.lineID(p, op)]; !isFew {
		if l != nil {
			due(l.next)
			due(l.barred)
			for _, at := range l.own {
				due(at.Parked)
			}
		}
		return true
	}
	for _, r := range rows {
		k := &r.now
		if k.barred(w.begin.Now) && k.barredUntil().IsZero() || !k.Matches(op.Where, op.Match...) {
			continue // time alone does not help
		}
		due(later(w.restUntil(p, k, op.Target), k.barredUntil()))
	}
	return true
}
