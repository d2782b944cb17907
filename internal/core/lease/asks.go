package lease

import (
	"cmp"
	"slices"
)

// Requests for one target may ask for ever other attributes. Each such question has
// a line of its own, and that of a question never asked before begins with a walk
// through the whole pool: what one of a transaction's walks read serves the others.

// makeRoom lets the lines go that were used least recently, when requests for a
// target ask for ever other attributes: each use that ends writes into all of them.
func (w *work) makeRoom(id LineID) bool {
	if !w.linesOf(PoolTarget{id.Pool, id.Target}) {
		return false
	}
	var idle []*line // this transaction does not go along them
	asks := 1
	for of, l := range w.lines {
		if of.Pool != id.Pool || of.Target != id.Target || of.Ask == "" || l.No == 0 {
			continue
		}
		if asks++; !l.loaded {
			idle = append(idle, l)
		}
	}
	slices.SortFunc(idle, func(a, b *line) int { return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.No, b.No)) })
	for _, l := range idle[:min(max(asks-MaxAsks, 0), len(idle))] {
		delete(w.lines, l.LineID)
		w.delined[l.LineID] = true
	}
	return true
}

// seatsRead are keys of a pool that were read with their attributes in the order of
// their seats, from the one after a seat to the last one of them, or of the pool.
// Requests that ask for other attributes look at the same ones.
type seatsRead struct {
	after int64
	all   []Place
	more  bool
}

// keepRead keeps what was read for other lines.
func (w *work) keepRead(pool string, after int64, all []Place, more bool) {
	s := w.beyond[pool]
	switch {
	case s != nil && s.after <= after && (len(s.all) > 0 && s.all[len(s.all)-1].Seat >= after || s.after == after):
		i, _ := slices.BinarySearchFunc(s.all, after+1, func(at Place, seat int64) int { return cmp.Compare(at.Seat, seat) })
		if n := len(s.all) - i; n <= len(all) && (s.more || !more) {
			s.all, s.more = append(s.all[:i:i], all...), more
		}
	case s == nil || len(s.all) < len(all):
		w.beyond[pool] = &seatsRead{after, slices.Clone(all), more}
	}
}

// readAlready takes the next keys beyond the mark from what was read for other
// lines, and reports whether there were any. The line was walked along to its last
// one, so that they take the place of those before; they are shared, not copied.
func (w *work) readAlready(l *line) bool {
	s, at := w.beyond[l.Pool], l.Mark
	if n := len(l.fresh); n > 0 {
		at = max(at, l.fresh[n-1].Seat)
	}
	if l.Ask == "" || s == nil || at < s.after {
		return false
	}
	i, _ := slices.BinarySearchFunc(s.all, at+1, func(at Place, seat int64) int { return cmp.Compare(at.Seat, seat) })
	if i == len(s.all) && (s.more || len(s.all) == 0) {
		return false
	}
	l.fresh, l.moreFresh = s.all[i:len(s.all):len(s.all)], s.more
	return true
}

// foreseeFresh asks for the rests of a key beyond the mark that another line read,
// and of those behind it that the take may meet next.
func (w *work) foreseeFresh(op Take, l *line, r *keyRow) bool {
	meant := func(r *keyRow) bool { return r != nil && r.now.Matches(op.Where, op.Match...) }
	if !meant(r) || len(w.unasked(&r.now, op.Target)) == 0 {
		return true
	}
	var ids []CooldownID
	i, _ := slices.BinarySearchFunc(l.fresh, r.now.Seat, func(at Place, seat int64) int { return cmp.Compare(at.Seat, seat) })
	for ; i < len(l.fresh) && len(ids) < 2*few; i++ {
		if k := w.glance(l.fresh[i].Key); meant(k) {
			ids = append(ids, w.unasked(&k.now, op.Target)...)
		}
	}
	return w.know(ids)
}

// unasked are the rests of a key for a target that are not known.
func (w *work) unasked(k *Key, target string) []CooldownID {
	return slices.DeleteFunc(restsBy(k, target), w.known)
}
