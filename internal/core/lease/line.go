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

func (id LineID) compare(of LineID) int {
	return cmp.Or(cmp.Compare(id.Pool, of.Pool), cmp.Compare(id.Target, of.Target), cmp.Compare(id.Ask, of.Ask))
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
	patience = 2
	// crowd is how many of them a walk passes over before it asks how many keys are
	// free, and someFree up to how many of those are compared then.
	crowd    = 32
	someFree = 512
	// doubts is how many keys that were used otherwise since a walk puts in order
	// before it takes the best of them.
	doubts = 512
	// lookAhead is how many places are read beyond two for each take: some keys
	// share an address with one that was used, or rest.
	lookAhead = 6
	// maxPage is how many places are read at once when a walk goes on and on.
	maxPage = 1000
	// MaxMoves is how many places of lines a transaction makes or moves on the way
	// to keys, about: all others wait for it. To read a key that lacks what is asked
	// for costs a part of that, and to look at it again little. A walk that comes no
	// further has no answer yet, and the next one goes on from there. Each may move
	// some in any case, so that one along a new line does not stop the others of its
	// transaction.
	MaxMoves  = 2000
	ownMoves  = 64
	moveCost  = 256
	readCost  = 64
	againCost = 1
	// MaxAsks is how many lines a pool has for one target beside that of requests
	// that ask for nothing else.
	MaxAsks = 16
	// goOn is when a request that waits is looked at again whose walk was stopped.
	goOn = 100 * time.Millisecond
)

// line is a line as far as it is known, and as this transaction changed it.
type line struct {
	Line
	loaded, touched bool
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
	if (l == nil || !l.loaded) && w.load(Want{Lines: []LineWant{w.lineWant(id, 2+lookAhead)}}) != nil {
		return nil
	}
	l = w.lines[id]
	now := w.begin.Now
	switch {
	case l.No == 0:
		if id.Ask != "" && !w.makeRoom(id) {
			return nil
		}
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

// lineWant asks for a line; what nobody used for long, or was made under other
// rules of the pool, is none.
func (w *work) lineWant(id LineID, most int) LineWant {
	want := LineWant{LineID: id, Due: max(most, unparks), Ready: most, Behind: most, Fresh: most, Over: -1, Since: w.begin.Now.Add(-LineFor)}
	if w.lineless[id.Pool] || w.delined[id] {
		want.Since = never
	}
	return want
}

// further asks for what comes behind what is known of a line, of the kinds of places
// that are wanted: as much again, so that few questions reach far.
func (w *work) further(l *line, due, ready, fresh bool) LineWant {
	want := w.lineWant(l.LineID, 0)
	page := func(of []Place, more bool) (n int, last Place) {
		if len(of) > 0 {
			last = of[len(of)-1]
		}
		if more {
			n = min(max(len(of), 2+lookAhead), maxPage)
		}
		return n, last
	}
	var fresher Place
	want.Due, want.AfterDue = page(l.due, due && l.moreDue)
	want.Ready, want.AfterReady = page(l.ready, ready && l.moreReady)
	want.Behind = want.Ready
	want.Fresh, fresher = page(l.fresh, fresh && l.moreFresh)
	want.AfterFresh = fresher.Seat
	return want
}

// more reads further along a line.
func (w *work) more(l *line, due, ready, fresh bool) {
	if fresh && w.readAlready(l) {
		return
	}
	_ = w.load(Want{Lines: []LineWant{w.further(l, due, ready, fresh)}}) // it is in w.broken
}

func (w *work) addLine(want LineWant, f LineFound) {
	if n, known := w.freeOnes[want.Pool]; known && n <= want.Over {
		return // nothing was looked for
	}
	for i := range f.Keys {
		k := &f.Keys[i]
		if w.glances[k.Name] == nil || want.Ask != "" { // without a question nobody told of attributes
			w.glances[k.Name] = &keyRow{was: *k, now: k.Settle(w.begin.Now)}
		}
	}
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
	l.loaded = true
	if want.Ask != "" && want.Fresh > 0 {
		w.keepRead(want.Pool, max(l.Mark, want.AfterFresh), f.Fresh, f.MoreFresh)
	}
	extend := func(all *[]Place, more *bool, asked int, some []Place, others bool) {
		if asked > 0 {
			*all, *more = append(*all, some...), others
		}
	}
	extend(&l.due, &l.moreDue, want.Due, f.Due, f.MoreDue)
	extend(&l.ready, &l.moreReady, want.Ready, f.Ready, f.MoreReady)
	extend(&l.fresh, &l.moreFresh, want.Fresh, f.Fresh, f.MoreFresh)
	l.next, l.last = f.Next, f.Last
}

// glance is what is known of a key that a line names, at least what a walk looks at;
// nil when there is none.
func (w *work) glance(name string) *keyRow {
	if has(w.keys, name) {
		return w.key(name)
	}
	return w.glances[name]
}

// whole is the row of a key that was looked at.
func (w *work) whole(r *keyRow) *keyRow {
	if r == nil || !has(w.keys, r.now.Name) && w.load(Want{Keys: []string{r.now.Name}}) != nil {
		return nil
	}
	return w.key(r.now.Name)
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
			if !w.linesOf(PoolTarget{name, id.Target}) {
				return false
			}
			joined := order{turn: r.now.Joined, own: r.now.Joined} // its turn is not earlier
			var parked Place                                       // where it most likely is
			if len(w.unasked(&r.now, id.Target)) == 0 {
				turn, _ := w.turn(*p, &r.now, id.Target)
				parked = Place{Seat: r.now.Seat, Key: r.now.Name}.in(turn)
				parked.Parked = later(later(r.now.CoolUntil, w.restUntil(*p, &r.now, id.Target)), before.fullUntil(p.InFlight, now))
			}
			for of, l := range w.lines {
				if of.Pool == name && of.Target == id.Target && l.No > 0 && r.now.Seat <= l.Mark {
					if parked.Line = l.No; parked.Key != "" {
						l.drop(parked)
					}
					l.put(Place{Seat: r.now.Seat, Key: r.now.Name}.in(joined))
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
	c.DropLines = slices.DeleteFunc(slices.SortedFunc(maps.Keys(w.delined), LineID.compare), func(id LineID) bool {
		return w.lines[id] != nil && w.lines[id].No > 0 // another one takes its place
	})
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
