package lease

import (
	"cmp"
	"slices"
	"time"
)

// verdict is what a walk makes of a key.
type verdict int

const (
	vanished verdict = iota // it is not meant, or will have another seat
	passed                  // it cannot be had, and time alone does not say when
	resting                 // it rests
	usable
)

// look says whether a request can have a key that has that seat, until when it
// rests, and its turn.
func (w *work) look(p Pool, op Take, r *keyRow, seat int64) (v verdict, until time.Time, at order) {
	if r == nil || r.now.Seat != seat || !r.now.in(p.Name) || r.now.FreeAt().Equal(never) || !r.now.Matches(op.Where, op.Match...) {
		return vanished, until, at
	}
	k, now := &r.now, w.begin.Now
	if !w.know(restsBy(k, op.Target)) {
		return passed, until, at
	}
	at, _ = w.turn(p, k, op.Target)
	if k.Held(now) || k.barred(now) {
		return passed, until, at
	}
	if until = later(k.CoolUntil, w.restUntil(p, k, op.Target)); until.After(now) {
		return resting, until, at
	}
	if !k.Eligible(p, op, now) {
		return passed, until, at
	}
	return usable, until, at
}

// inLine walks along a line to the first key that the take can use and that is
// not set aside, nil for none. It looks at so many at most; c tells of more.
func (w *work) inLine(p Pool, op Take, s *search, c *cursor, most int) *keyRow {
	l := w.line(p, op)
	if l == nil {
		return nil
	}
	c.line, c.partial = l, false
	begin := w.effort
	for page := unparks; w.broken == nil; page = min(2*page, maxPage) {
		left := w.unpark(p, op, l, c, page)
		r := w.whole(w.along(p, op, l, s, c, most, begin))
		if w.scarce[p.Name] {
			return w.findInTurn(p, op, s, c, most) // which compares
		}
		if r != nil || c.partial || !left {
			return r
		}
	}
	return nil
}

// lookCost is what a look at a key costs that is not meant.
func (r *keyRow) lookCost() int {
	if r == nil || r.seen {
		return againCost
	}
	r.seen = true
	return readCost
}

// tired reports whether a walk moved so much that it ends where it is.
func (w *work) tired(begin int) bool {
	return w.effort >= MaxMoves*moveCost && w.effort-begin >= ownMoves*moveCost
}

// unpark puts keys in order whose rest is over, and reports whether there are
// more of them.
func (w *work) unpark(p Pool, op Take, l *line, c *cursor, most int) (left bool) {
	n := 0
	for i := 0; w.broken == nil; i++ {
		if i == len(l.due) {
			if !l.moreDue || n == most {
				return l.moreDue
			}
			w.more(l, true, false, false)
			i-- // the same again, and further
			continue
		}
		from := l.due[i]
		if _, gone := l.gone[from.id()]; gone {
			continue
		}
		if n++; n > most {
			return true
		}
		c.from = order{} // it may come before what was looked at
		w.effort += moveCost
		switch v, until, at := w.look(p, op, w.glance(from.Key), from.Seat); v {
		case vanished:
			l.drop(from)
		case resting:
			l.move(from, Place{Parked: until}.in(at), false)
		default:
			l.move(from, Place{}.in(at), false)
		}
	}
	return false
}

// along walks along the keys in order.
func (w *work) along(p Pool, op Take, l *line, s *search, c *cursor, most, begin int) (best *keyRow) {
	var first order // the best one's
	over, doubtful := 0, 0
	from, incl := c.from, true
	for looked := 0; w.broken == nil; looked++ {
		if tired := w.tired(begin); tired || looked >= most {
			c.partial = true
			w.stopped = w.stopped || tired && best == nil
			return best
		}
		at, fresh, ok := w.nextPlace(p, l, from, incl)
		if !ok {
			return nil
		}
		from, incl = at.order(), false
		r := w.glance(at.Key)
		if fresh && !w.foreseeFresh(op, l, r) {
			return nil
		}
		v, until, turn := w.look(p, op, r, at.Seat)
		switch {
		case w.broken != nil:
			return nil
		case v == vanished && fresh:
			l.met(at.Seat)
			w.effort += r.lookCost()
		case v == vanished:
			l.drop(at)
			w.effort += r.lookCost()
		case v == resting:
			w.effort += moveCost
			l.move(at, Place{Parked: until}.in(turn), fresh)
		case v == passed:
			w.pass(l, at, turn, r, fresh, over)
			if over++; over == crowd && w.isScarce(p.Name) {
				return nil
			}
		case turn.compare(from) > 0: // it was used since by who has another line
			l.move(at, Place{}.in(turn), fresh)
			w.effort += moveCost
			doubtful++
			if !s.aside[at.Key] && (best == nil || turn.compare(first) < 0) {
				best, first = r, turn
			}
			if doubtful >= doubts && best != nil {
				return best
			}
		case s.aside[at.Key]:
			c.waits = true
			if fresh {
				l.move(at, Place{}.in(turn), true)
			}
		default:
			c.from = from
			if l.at[at.Key] = at; fresh {
				delete(l.at, at.Key)
			}
			return r
		}
	}
	return nil
}

// pass leaves a key behind that somebody holds, or that is barred.
func (w *work) pass(l *line, at Place, turn order, r *keyRow, fresh bool, over int) {
	if until := r.now.barredUntil(); until.After(w.begin.Now) && (l.barred.IsZero() || until.Before(l.barred)) {
		l.barred = until
	}
	switch {
	case fresh:
		l.move(at, Place{}.in(turn), true)
	case over >= patience && at.Turn.Before(w.begin.Now):
		l.move(at, Place{Turn: w.begin.Now, Own: at.Own}, false)
	default:
		w.effort += againCost
		return
	}
	w.effort += moveCost
}

// nextPlace returns the next key in order, with the place it has, or beyond the
// mark would have.
func (w *work) nextPlace(p Pool, l *line, from order, incl bool) (next Place, fresh, ok bool) {
	behind := func(at Place) bool { c := at.order().compare(from); return c > 0 || incl && c == 0 }
	after := func(all []Place) int {
		i, _ := slices.BinarySearchFunc(all, from, func(at Place, o order) int { return at.order().compare(o) })
		for i < len(all) && !behind(all[i]) {
			i++
		}
		return i
	}
	for w.broken == nil {
		ok = false
		take := func(at Place, isFresh bool) {
			if !ok || at.order().compare(next.order()) < 0 {
				next, fresh, ok = at, isFresh, true
			}
		}
		ready, _ := slices.BinarySearchFunc(l.own, Place{}, func(at, _ Place) int { // those in order come first
			if at.Parked.IsZero() {
				return -1
			}
			return 1
		})
		if i := after(l.own[:ready]); i < ready {
			take(l.own[i], false)
		}
		if at, has := w.nextFresh(p, l); has {
			take(at, true)
		}
		i := after(l.ready)
		for ; i < len(l.ready); i++ {
			if _, gone := l.gone[l.ready[i].id()]; !gone {
				take(l.ready[i], false)
				break
			}
		}
		if i < len(l.ready) || !l.moreReady {
			return next, fresh, ok
		}
		if n := len(l.ready); ok && n > 0 && next.order().compare(l.ready[n-1].order()) <= 0 {
			return next, fresh, ok // what was not read comes later
		}
		w.more(l, false, true, false)
	}
	return next, false, false
}

// nextFresh returns the first key beyond the mark.
func (w *work) nextFresh(p Pool, l *line) (at Place, ok bool) {
	is := func(name string, seat int64) bool {
		r := w.glance(name)
		ok = r != nil && seat > l.Mark && r.now.Seat == seat && r.now.in(p.Name)
		if ok {
			at = Place{Turn: r.now.Joined, Own: r.now.Joined, Seat: seat, Key: name}
		}
		return ok
	}
	for w.broken == nil {
		i, _ := slices.BinarySearchFunc(l.fresh, l.Mark+1, func(at Place, seat int64) int { return cmp.Compare(at.Seat, seat) })
		for ; i < len(l.fresh); i++ {
			if is(l.fresh[i].Key, l.fresh[i].Seat) {
				return at, true
			}
		}
		if !l.moreFresh {
			break
		}
		if n := len(l.fresh); n > 0 {
			l.met(l.fresh[n-1].Seat) // none of them is there any more
		}
		w.more(l, false, false, true)
	}
	for _, s := range w.seated { // those that this transaction seated come last
		if is(s.key, s.seat) {
			return at, true
		}
	}
	return at, false
}

// newInLine returns the first key that joined since the line was made and was
// never used for its target, if the take can have it.
func (w *work) newInLine(p Pool, op Take, s *search, c *cursor) *keyRow {
	l := w.line(p, op)
	if l == nil {
		return nil
	}
	c.line = l
	after := max(l.First, l.Mark)
	var rows []*keyRow
	if l.last > after {
		id := SeatWant{p.Name, after, few}
		if w.seats[id] == nil && w.load(Want{Seats: []SeatWant{id}}) != nil {
			return nil
		}
		for i := range w.seats[id] {
			rows = append(rows, w.key(w.seats[id][i].Name))
		}
	}
	for _, of := range w.seated {
		rows = append(rows, w.key(of.key))
	}
	for _, r := range rows {
		if r == nil || r.now.Seat <= after || s.aside[r.now.Name] {
			continue
		}
		if v, _, _ := w.look(p, op, r, r.now.Seat); v != usable {
			continue
		}
		if _, used := w.turn(p, &r.now, op.Target); !used {
			return r
		}
	}
	return nil
}
