package service

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetdesk/internal/core/lease"
)

// room is the takes of this process that wait for a key of one pool.
//
// They do not ask in turns. When the pool may have a free key, the oldest of
// each line asks. Where it is known how many came free, as many ask; where not,
// twice as many ask next while all that asked are served.
type room struct {
	pool string
	// calls counts those that may wait here, with those that ask the first time.
	calls int
	lines map[string]*line
	// generation counts the news of freed keys: where somebody asked while one
	// came, the oldest asks again.
	generation uint64
	// freed is when a key came free that was not granted since; zero for never.
	freed time.Time
	// due is when time frees the next key, by this machine's clock.
	due   time.Time
	timer *time.Timer
	hot   bool
}

// line is the waiters of a room that ask for the same: where the oldest gets
// nothing, the others get nothing either.
type line struct {
	room  *room
	calls []*call // by place
	// window is how many of the oldest are to ask next.
	window int
	// grow is set while it is not known how many are to ask.
	grow bool
	// asked and won count those in the transaction under way.
	asked, won int
}

const (
	// maxWindow bounds how many of a line ask at once.
	maxWindow = 64
	// afterDue is how long after a key is due it is asked for: the clocks of two
	// machines do not run alike.
	afterDue = 10 * time.Millisecond
)

func newRoom(pool string) *room { return &room{pool: pool, lines: map[string]*line{}} }

func (r *room) close() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// lineOf names what a take asks for.
func lineOf(t lease.Take) string {
	if len(t.Where)+len(t.Match) == 0 {
		return t.Target
	}
	var b strings.Builder
	add := func(s string) {
		b.WriteByte(0)
		b.WriteString(strconv.Itoa(len(s)))
		b.WriteByte(0)
		b.WriteString(s)
	}
	b.WriteString(t.Target)
	names := make([]string, 0, len(t.Where))
	for n := range t.Where {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		add(n)
		add(t.Where[n])
	}
	for _, m := range t.Match { // the same conditions in another order are another line, which is no harm
		add(m.Attribute)
		add(string(m.Op))
		b.WriteString(strconv.Itoa(len(m.Values)))
		for _, v := range m.Values {
			add(v)
		}
	}
	return b.String()
}

// park lets a take wait, as the database said it should.
func (d *desk) park(c *call, res *lease.Result) {
	d.uncount(c)
	w := c.wait
	c.state, c.lane = parked, waiting
	if w.line == nil {
		d.stand(c)
	}
	if !res.Busy.Due.IsZero() {
		d.expect(w.room, res.Busy.Due.Sub(res.Now))
	}
	if w.generation != w.room.generation {
		d.ask(w.room, w.line)
	}
}

func (d *desk) stand(c *call) {
	w := c.wait
	name := lineOf(w.take)
	w.line = w.room.lines[name]
	if w.line == nil {
		w.line = &line{room: w.room}
		w.room.lines[name] = w.line
	}
	at, _ := slices.BinarySearchFunc(w.line.calls, w.seq, func(o *call, seq int64) int { return cmp.Compare(o.wait.seq, seq) })
	w.line.calls = slices.Insert(w.line.calls, at, c)
}

// leave takes a call out of its line.
func (d *desk) leave(c *call) {
	w := c.wait
	if w.line == nil {
		return
	}
	at, _ := slices.BinarySearchFunc(w.line.calls, w.seq, func(o *call, seq int64) int { return cmp.Compare(o.wait.seq, seq) })
	for at < len(w.line.calls) && w.line.calls[at] != c {
		at++
	}
	if at < len(w.line.calls) {
		w.line.calls = slices.Delete(w.line.calls, at, at+1)
	}
	if len(w.line.calls) == 0 {
		delete(w.room.lines, lineOf(w.take))
	}
	w.line = nil
}

// homes are the pools of keys that were granted here, as far as remembered. They
// are a guess: one that is wrong costs a take that gets nothing.
type homes map[string][]string

// maxHomes bounds them.
const maxHomes = 1 << 16

func (h homes) put(key string, pools []string) {
	if len(h) >= maxHomes {
		clear(h)
	}
	h[key] = pools
}

// handOn lets the oldest waiters for a key ask in the same transaction that gives
// it back.
func (d *desk) handOn(c *call) {
	for _, op := range c.ops {
		op, ok := op.(lease.Release)
		if !ok {
			continue
		}
		for _, p := range d.homes[op.ID.Key] {
			if r := d.rooms[p]; r != nil {
				d.askOneMore(r)
			}
		}
	}
}

// askOneMore makes one more of each line of a room ask.
func (d *desk) askOneMore(r *room) {
	if r.freed.IsZero() {
		r.freed = time.Now()
	}
	for _, l := range r.lines {
		switch {
		case l.asked > 0: // they ask in the transaction that just ended
		case l.window < maxWindow:
			l.window++
			d.heat(r)
		default:
			l.grow = true
		}
	}
}

// ask makes the oldest of a line ask next.
func (d *desk) ask(r *room, l *line) {
	if len(l.calls) > 0 {
		l.window, l.grow = max(l.window, 1), true
		d.heat(r)
	}
}

func (d *desk) heat(r *room) {
	if !r.hot {
		r.hot = true
		d.hot = append(d.hot, r)
		d.ring()
	}
}

// askAll makes the oldest of every line of a room ask.
func (d *desk) askAll(r *room) {
	for _, l := range r.lines {
		d.ask(r, l)
	}
}

// freed tells that a waiter of the pool may find a key now.
func (d *desk) freed(pool string) {
	r := d.rooms[pool]
	if r == nil {
		return
	}
	r.generation++
	if r.freed.IsZero() {
		r.freed = time.Now()
	}
	d.askAll(r)
}

// gained tells that a key of the pool came free in the transaction that just
// ended. Who asked in it asked after that.
func (d *desk) gained(pool string) {
	if r := d.rooms[pool]; r != nil {
		d.askOneMore(r)
	}
}

// freedAll tells that any pool may have a free key.
func (d *desk) freedAll() {
	for _, r := range d.rooms {
		d.freed(r.pool)
	}
}

// expect asks in a room when its next key is due.
func (d *desk) expect(r *room, in time.Duration) {
	at := time.Now().Add(in + afterDue)
	if !r.due.IsZero() && !at.Before(r.due) {
		return
	}
	r.due = at
	if r.timer != nil {
		r.timer.Stop()
	}
	var t *time.Timer
	t = time.AfterFunc(in+afterDue, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if r.timer == t && !r.due.IsZero() && d.rooms[r.pool] == r {
			r.due = time.Time{}
			d.freed(r.pool)
		}
	})
	r.timer = t
}

// asking takes out those who are to ask next, at most limit, by place.
func (d *desk) asking(limit int) []*call {
	var all []*call
	var rest []*room
	for _, r := range d.hot {
		r.hot = false
		for _, l := range r.lines {
			if l.window == 0 {
				continue
			}
			if len(all) >= limit {
				r.hot = true
				continue
			}
			all = d.askLine(all, r, l, limit)
		}
		if r.hot {
			rest = append(rest, r)
		}
	}
	d.hot = rest
	slices.SortFunc(all, func(a, b *call) int { return cmp.Compare(a.wait.seq, b.wait.seq) })
	return all
}

func (d *desk) askLine(all []*call, r *room, l *line, limit int) []*call {
	for _, c := range l.calls {
		if l.asked == l.window || len(all) >= limit {
			break
		}
		if c.state != parked {
			continue // it is asked for already
		}
		c.buf[0] = c.wait.take
		c.ops, c.main, c.wait.generation = c.buf[:1], 0, r.generation
		l.asked++
		all = append(all, c)
	}
	l.grow = l.grow || l.asked < l.window && len(all) >= limit
	l.window = 0
	d.asked = append(d.asked, l)
	return all
}

// grow decides after a transaction who asks next of the lines of which some
// asked.
func (d *desk) grow() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.asked {
		d.growLine(l.room, l)
	}
	clear(d.asked)
	d.asked = d.asked[:0]
}

func (d *desk) growLine(r *room, l *line) {
	switch {
	case l.asked == 0:
	case l.won == l.asked && l.grow && len(l.calls) > 0:
		l.window = max(l.window, min(2*l.asked, maxWindow))
		d.heat(r)
	case l.window == 0:
		l.grow = false
		r.freed = time.Time{} // whatever came free is taken
	}
	l.asked, l.won = 0, 0
}
