package leasetest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"fleetdesk/internal/core/lease"
)

// InLines wraps a transaction so that every pool counts as one of many free keys:
// the order of its keys is kept in lines, however few they are.
func InLines(t lease.Tx) lease.Tx { return inLines{t} }

type inLines struct{ lease.Tx }

func (t inLines) Load(ctx context.Context, w lease.Want) (lease.Found, error) {
	w.Lines = slices.Clone(w.Lines)
	for i := range w.Lines {
		w.Lines[i].Over = -1
	}
	f, err := t.Tx.Load(ctx, w)
	for i := range f.Free {
		f.Free[i] = w.Free[i].Limit
	}
	return f, err
}

// free counts the keys of a pool that are free by their rows.
func (t *tx) free(w lease.FreeWant) (n int) {
	l := t.m.lists[w.Pool]
	if l == nil {
		return 0
	}
	for _, s := range []*sorted{&l.ready, &l.timed} {
		for e := range s.all {
			if n == w.Limit || t.m.keys[e.name].FreeAt().After(t.now) {
				break
			}
			n++
		}
	}
	return n
}

func (t *tx) loadLines(w lease.Want, f *lease.Found) {
	for _, l := range w.Lines {
		f.Lines = append(f.Lines, t.line(l))
	}
	for _, of := range w.LinesOf {
		var all []lease.Line
		for id, l := range t.m.lines {
			if id.Pool == of.Pool && id.Target == of.Target {
				all = append(all, l)
			}
		}
		slices.SortFunc(all, func(a, b lease.Line) int { return cmp.Compare(a.No, b.No) })
		f.LinesOf = append(f.LinesOf, all)
	}
	for _, s := range w.Seats {
		var keys []lease.Key
		if l := t.m.lists[s.Pool]; l != nil {
			l.seats.from(entry{seq: s.After + 1}, func(e entry) bool {
				if len(keys) == s.Limit {
					return false
				}
				keys = append(keys, t.m.copyKey(t.m.keys[e.name], t.now))
				return true
			})
		}
		f.Seats = append(f.Seats, keys)
	}
}

func (t *tx) line(w lease.LineWant) (f lease.LineFound) {
	var places sorted
	var mark int64
	if l, ok := t.m.lines[w.LineID]; ok && !l.Used.Before(w.Since) {
		f.Line, mark = &l, l.Mark
		if p := t.m.places[l.No]; p != nil {
			places = *p
		}
	}
	take := func(from entry, most int, until time.Time) (some []lease.Place, more bool) {
		places.from(from, func(e entry) bool {
			switch {
			case e.at.After(until):
				return false
			case e.at.Equal(from.at) && e.then.Equal(from.then) && e.own.Equal(from.own) && e.seq == from.seq:
				return true // it is known
			}
			if more = len(some) == most; more {
				return false
			}
			some = append(some, lease.Place{Line: f.Line.No, Parked: e.at, Turn: e.then, Own: e.own, Seat: e.seq, Key: e.name})
			return true
		})
		return some, more
	}
	after := func(p lease.Place) entry {
		return entry{at: kept(p.Parked), then: kept(p.Turn), own: kept(p.Own), seq: p.Seat, name: p.Key}
	}
	first := after(w.AfterDue)
	if first.at.IsZero() {
		first.at = first.at.Add(1)
	}
	f.Due, f.MoreDue = take(first, w.Due, t.now)
	places.from(entry{at: t.now.Add(1)}, func(e entry) bool { f.Next = e.at; return false })
	if l := t.m.lists[w.Pool]; l != nil {
		l.seats.from(entry{seq: max(mark, w.AfterFresh) + 1}, func(e entry) bool {
			if f.MoreFresh = len(f.Fresh) == w.Fresh; f.MoreFresh {
				return false
			}
			f.Fresh = append(f.Fresh, lease.Place{Seat: e.seq, Key: e.name})
			return true
		})
		if n := len(l.seats.blocks); n > 0 {
			b := l.seats.blocks[n-1]
			f.Last = b[len(b)-1].seq
		}
	}
	f.Ready, f.MoreReady = take(after(w.AfterReady), w.ReadyOf(mark, f.Last), time.Time{})
	seen := map[string]bool{}
	for _, p := range slices.Concat(f.Due, f.Ready, f.Fresh) {
		k := t.m.keys[p.Key]
		if k == nil || seen[p.Key] {
			continue
		}
		seen[p.Key] = true
		c := t.m.copyKey(k, t.now)
		f.Keys = append(f.Keys, c.Glance(w.Ask))
		for _, id := range []lease.CooldownID{{Scope: lease.ScopeKey, ID: p.Key, Target: w.Target}, {Scope: lease.ScopeExitIP, ID: k.ExitIP, Target: w.Target}} {
			if c, ok := t.m.rests[id]; ok {
				f.Cooldowns = append(f.Cooldowns, copyRest(c))
			}
		}
	}
	return f
}

func (m *Memory) saveLines(c *lease.Changes) {
	for id := range m.lines {
		if slices.Contains(c.DropLinesOf, id.Pool) {
			m.dropLine(id)
		}
	}
	for _, id := range c.DropLines {
		m.dropLine(id)
	}
	for _, l := range c.Lines {
		if old, ok := m.lines[l.LineID]; ok && old.No != l.No {
			m.dropLine(l.LineID)
		}
		l.Began, l.Used = kept(l.Began), kept(l.Used)
		m.lines[l.LineID] = l
		if m.places[l.No] == nil {
			m.places[l.No] = &sorted{}
		}
	}
	at := func(p lease.Place) entry {
		return entry{at: kept(p.Parked), then: kept(p.Turn), own: kept(p.Own), seq: p.Seat, name: p.Key}
	}
	for _, p := range c.DropPlaces {
		if s := m.places[p.Line]; s != nil {
			s.remove(at(p))
		}
	}
	for _, p := range c.Places {
		if s := m.places[p.Line]; s != nil {
			s.add(at(p))
		}
	}
}

func (m *Memory) dropLine(id lease.LineID) {
	delete(m.places, m.lines[id].No)
	delete(m.lines, id)
}

// Lines returns the lines of a pool, the oldest first.
func (m *Memory) Lines(pool string) (all []lease.Line) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, l := range m.lines {
		if id.Pool == pool {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b lease.Line) int { return cmp.Compare(a.No, b.No) })
	return all
}

// Places counts the places of all lines of a pool.
func (m *Memory) Places(pool string) (n int) {
	for _, l := range m.Lines(pool) {
		m.mu.Lock()
		for range m.places[l.No].all {
			n++
		}
		m.mu.Unlock()
	}
	return n
}
