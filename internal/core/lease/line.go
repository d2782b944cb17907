package lease

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"
)

// LineID names a line: the keys of a pool in the order of their turns for a
// target, for requests that ask for the same attributes.
type LineID struct {
	Pool, Target string
	// Ask is a hash of the attributes that are asked for; "" for none.
	Ask string
}

// Line is an index of what [Key] and [Cooldown] hold, by which a key is found
// without looking at all of a pool. It holds no fact: it may be dropped at any
// time, and grows again.
//
// Keys come into it as they are met, in the order of their seats: those up to
// Mark were. Each of them that may be handed out at all has a [Place], which is
// never later than the one it would have if it was looked at now. So a walk from
// the first place finds whoever can be had; what turns out to come later is
// moved there, and to the end of its rest when it rests. Whatever would make a
// key come earlier gives it a new seat, beyond the mark ([Key.Seat]), or a
// second place, of which the later one goes when it is met.
type Line struct {
	LineID
	// No names the places of the line; no number is used twice.
	No int64
	// Began is when it was made, Used about when it was used last.
	Began, Used time.Time
	// First is the number after which seats are of keys that joined since, Mark
	// the seat up to which keys were met.
	First, Mark int64
}

// Place is where a line has a key.
type Place struct {
	Line int64
	// Parked is the end of a rest; zero for a key in the order of its turn.
	Parked time.Time
	// Turn, Own and Seat are its place in that order: its turn, by itself and with
	// its address, where that counts. A key that has another seat by now is not
	// meant.
	Turn, Own time.Time
	Seat      int64
	Key       string
}

func (p Place) order() order { return order{p.Turn, p.Own, p.Seat} }

// in is the place with another order.
func (p Place) in(o order) Place {
	p.Turn, p.Own = o.turn, o.own
	return p
}

// Compare orders the places of a line.
func (p Place) Compare(q Place) int {
	return cmp.Or(p.Parked.Compare(q.Parked), p.order().compare(q.order()))
}

const (
	// few is how many free keys of a pool are compared with each other, without a
	// line.
	few = 32
	// LineFor is how long a line is kept after its last use.
	LineFor = time.Hour
	// lineTouch is how exactly the last use is written down.
	lineTouch = 5 * time.Minute
	// unparks is how many keys whose rest is over a walk puts in order at most
	// before it looks for the first one.
	unparks = 8
	// patience is how many keys that are held, or barred, a walk passes over before
	// it sends others to the end of the line.
	patience = 16
	// doubts is how many keys that were used otherwise since a walk puts in order
	// before it takes the best of them.
	doubts = 64
	// lookAhead is how many places are read beyond the number of takes.
	lookAhead = 1
)

// line is a line as far as it is known, and as this transaction changed it.
type line struct {
	Line
	loaded, touched bool
	limit           int
	// due are places whose rest is over, ready those in the order of turns, fresh
	// the keys beyond the mark, as the store has them.
	due, ready, fresh             []Place
	moreDue, moreReady, moreFresh bool
	// next is the end of the first rest that is not over, last the last seat of the
	// pool, as the store has them.
	next time.Time
	last int64
	// own are places that this transaction made, in order, gone those of the store
	// that it took away.
	own  []Place
	gone map[placeID]Place
	// at is where keys were met.
	at map[string]Place
	// barred is when time frees the first of the barred keys that were met.
	barred time.Time
}

// placeID tells the places of a line apart.
type placeID struct{ parked, turn, own, seat int64 }

func (p Place) id() placeID {
	return placeID{p.Parked.UnixMicro(), p.Turn.UnixMicro(), p.Own.UnixMicro(), p.Seat}
}

// put makes a place, and drop takes one away.
func (l *line) put(p Place) {
	p.Line = l.No
	if i, have := slices.BinarySearchFunc(l.own, p, Place.Compare); !have {
		l.own = slices.Insert(l.own, i, p)
	}
	l.at[p.Key] = p
}

func (l *line) drop(p Place) {
	if i, have := slices.BinarySearchFunc(l.own, p, Place.Compare); have {
		l.own = slices.Delete(l.own, i, i+1)
	}
	l.gone[p.id()] = p
}

// move puts a key that was met elsewhere; beyond the mark it has no place yet.
func (l *line) move(from, to Place, fresh bool) {
	to.Key, to.Seat = from.Key, from.Seat
	if fresh {
		l.met(from.Seat)
	} else {
		l.drop(from)
	}
	l.put(to)
}

// met puts the mark behind a seat.
func (l *line) met(seat int64) { l.Mark, l.touched = max(l.Mark, seat), true }

// line returns the line for a request, nil when the database failed.
func (w *work) line(p Pool, op Take) *line {
	id := w.lineID(p, op)
	l := w.lines[id]
	if (l == nil || !l.loaded) && !w.loadLine(id, 1+lookAhead) {
		return nil
	}
	l = w.lines[id]
	now := w.begin.Now
	switch {
	case l.No == 0:
		l.No = w.next()
		l.Began, l.Used, l.First, l.touched = now, now, l.No, true
	case now.Sub(l.Used) > lineTouch:
		l.Used, l.touched = now, true
	}
	return l
}

func (w *work) lineID(p Pool, op Take) LineID {
	id := LineID{Pool: p.Name, Target: op.Target}
	if len(op.Where)+len(op.Match) > 0 {
		sum := sha256.Sum256([]byte(question("", op.Where, op.Match)))
		id.Ask = hex.EncodeToString(sum[:16])
	}
	return id
}

func (w *work) loadLine(id LineID, limit int) bool {
	return w.load(Want{Lines: []LineWant{w.lineWant(id, limit)}}) == nil
}

// lineWant asks for a line; what nobody used for long, or was made under other
// rules of the pool, is none.
func (w *work) lineWant(id LineID, limit int) LineWant {
	want := LineWant{LineID: id, Limit: limit, Over: -1, Since: w.begin.Now.Add(-LineFor)}
	if w.lineless[id.Pool] {
		want.Since = never
	}
	return want
}

func (w *work) addLine(want LineWant, f LineFound) {
	if n, known := w.freeOnes[want.Pool]; known && n <= want.Over {
		return // nothing was looked for
	}
	w.add(f.Keys)
	for i := range f.Cooldowns {
		if c := &f.Cooldowns[i]; !w.known(c.CooldownID) {
			w.cooldowns[c.CooldownID] = c
		}
	}
	for i := range f.Keys { // what was not found is not there
		for _, id := range restsBy(&f.Keys[i], want.Target) {
			if !w.known(id) {
				w.cooldowns[id] = nil
			}
		}
	}
	l := w.addLineRow(want.LineID, f.Line)
	l.loaded, l.limit = true, want.Limit
	l.due, l.ready, l.fresh = f.Due, f.Ready, f.Fresh
	l.moreDue, l.moreReady, l.moreFresh = f.MoreDue, f.MoreReady, f.MoreFresh
	l.next, l.last = f.Next, f.Last
}

// addLineRow makes a line known; what this transaction knows of it already stays.
func (w *work) addLineRow(id LineID, row *Line) *line {
	l := w.lines[id]
	if l == nil {
		l = &line{Line: Line{LineID: id}, gone: map[placeID]Place{}, at: map[string]Place{}}
		w.lines[id] = l
		if row != nil {
			l.Line = *row
		}
	}
	return l
}

// more reads further along a line.
func (w *work) more(l *line) bool { return w.loadLine(l.LineID, l.limit*4) }

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
	for w.broken == nil {
		left := w.unpark(p, op, l, c)
		r := w.along(p, op, l, s, c, most)
		if r != nil || c.partial || !left {
			return r
		}
	}
	return nil
}

// unpark puts keys in order whose rest is over, and reports whether there are
// more of them.
func (w *work) unpark(p Pool, op Take, l *line, c *cursor) (left bool) {
	n := 0
	for i := 0; w.broken == nil; i++ {
		if i == len(l.due) {
			if !l.moreDue {
				return false
			}
			w.more(l)
			i-- // the same again, and further
			continue
		}
		from := l.due[i]
		if _, gone := l.gone[from.id()]; gone {
			continue
		}
		if n++; n > unparks {
			return true
		}
		c.from = order{} // it may come before what was looked at
		switch v, until, at := w.look(p, op, w.key(from.Key), from.Seat); v {
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
func (w *work) along(p Pool, op Take, l *line, s *search, c *cursor, most int) (best *keyRow) {
	var first order // the best one's
	over, doubtful := 0, 0
	from, incl := c.from, true
	for looked := 0; w.broken == nil; looked++ {
		at, fresh, ok := w.nextPlace(p, l, from, incl)
		if !ok || looked >= most {
			c.partial = ok
			return nil
		}
		from, incl = at.order(), false
		r := w.key(at.Key)
		v, until, turn := w.look(p, op, r, at.Seat)
		switch {
		case w.broken != nil:
			return nil
		case v == vanished && fresh:
			l.met(at.Seat)
		case v == vanished:
			l.drop(at)
		case v == resting:
			l.move(at, Place{Parked: until}.in(turn), fresh)
		case v == passed:
			w.pass(l, at, turn, r, fresh, over)
			over++
		case turn.compare(from) > 0: // it was used since by who has another line
			l.move(at, Place{}.in(turn), fresh)
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
	}
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
		w.more(l)
	}
	return next, false, false
}

// nextFresh returns the first key beyond the mark.
func (w *work) nextFresh(p Pool, l *line) (at Place, ok bool) {
	is := func(name string, seat int64) bool {
		r := w.key(name)
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
		w.more(l)
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

// settle puts a key where it belongs after a use that its line brought.
func (w *work) settle(p Pool, op Take, l *line, r *keyRow) {
	k := &r.now
	if at, have := l.at[k.Name]; have {
		l.drop(at)
	} else if next, ok := w.nextFresh(p, l); ok && next.Key == k.Name {
		l.met(next.Seat)
	}
	turn, _ := w.turn(p, k, op.Target)
	to := Place{Seat: k.Seat, Key: k.Name}.in(turn)
	if until := later(k.CoolUntil, w.restUntil(p, k, op.Target)); until.After(w.begin.Now) {
		to.Parked = until
	}
	l.put(to)
}

// unlined drops the lines of a pool, whose rules changed.
func (w *work) unlined(pool string) {
	for id := range w.lines {
		if id.Pool == pool {
			delete(w.lines, id)
		}
	}
	w.lineless[pool] = true
}

// earlier gives keys a place besides the one that they have in the lines for a
// target: a use that kept them from it ended before its time.
func (w *work) earlier(id CooldownID, before, after *Cooldown) bool {
	rows, ok := w.concerned(id)
	if !ok {
		return false
	}
	var want Want
	for _, r := range rows {
		for _, p := range r.now.Pools {
			if !has(w.pools, p) {
				want.Pools = append(want.Pools, p)
			}
		}
	}
	if len(want.Pools) > 0 && w.load(want) != nil {
		return false
	}
	now := w.begin.Now
	for _, r := range rows {
		for _, name := range r.now.Pools {
			p := w.pools[name]
			if p == nil || restsOn(*p, &r.now, id.Target) != id || !before.fullUntil(p.InFlight, now).After(after.fullUntil(p.InFlight, now)) {
				continue
			}
			w.mayFind([]string{name})
			if !w.know(restsBy(&r.now, id.Target)) || !w.linesOf(PoolTarget{name, id.Target}) {
				return false
			}
			turn, _ := w.turn(*p, &r.now, id.Target)
			for of, l := range w.lines {
				if of.Pool == name && of.Target == id.Target && l.No > 0 && r.now.Seat <= l.Mark {
					l.put(Place{Seat: r.now.Seat, Key: r.now.Name}.in(turn))
				}
			}
		}
	}
	return true
}

// concerned are the keys that a cooldown is about.
func (w *work) concerned(id CooldownID) (rows []*keyRow, ok bool) {
	want := Want{Keys: []string{id.ID}}
	if id.Scope == ScopeExitIP {
		want = Want{ExitIPs: []string{id.ID}}
	}
	if id.Scope == ScopeExitIP && !w.exits[id.ID] || id.Scope == ScopeKey && !has(w.keys, id.ID) {
		if w.load(want) != nil {
			return nil, false
		}
	}
	if id.Scope == ScopeKey {
		if r := w.key(id.ID); r != nil && r.now.Managed {
			rows = append(rows, r)
		}
		return rows, true
	}
	for _, r := range w.keys {
		if r != nil && !r.dropped && r.now.ExitIP == id.ID && r.now.Managed {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *keyRow) int { return cmp.Compare(a.now.Name, b.now.Name) })
	return rows, true
}

// linesOf makes the lines of a pool for a target known, whatever they ask for.
func (w *work) linesOf(id PoolTarget) bool {
	return w.linesKnown[id] || w.lineless[id.Pool] || w.load(Want{LinesOf: []PoolTarget{id}}) == nil
}

// saveLines hands over what changed of lines.
func (w *work) saveLines(c *Changes) {
	c.DropLinesOf = slices.Sorted(maps.Keys(w.lineless))
	for _, l := range w.lines {
		if l.touched {
			c.Lines = append(c.Lines, l.Line)
		}
		for _, p := range l.gone {
			c.DropPlaces = append(c.DropPlaces, p)
		}
		c.Places = append(c.Places, l.own...)
	}
	places := func(p, q Place) int { return cmp.Or(cmp.Compare(p.Line, q.Line), p.Compare(q)) }
	slices.SortFunc(c.Lines, func(a, b Line) int { return cmp.Compare(a.No, b.No) })
	slices.SortFunc(c.DropPlaces, places)
	slices.SortFunc(c.Places, places)
}
