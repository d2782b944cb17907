package lease

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// stream is the candidates of a pool for a target, as far as they were loaded.
type stream struct {
	names []string
	limit int
	more  bool
	at    int // names before it are used up for everybody
	loads int
}

const (
	// spare is how many candidates are loaded beyond the number of takes: some
	// are barred or lack an attribute.
	spare = 8
	// firstQueue is how many waiters are looked at first; it grows as needed.
	firstQueue = 64
	// targets is how many targets of a pool have candidates of their own in one
	// transaction. For more the whole pool's are loaded, and their rests.
	targets = 4
	// tries is how many candidates of the whole pool are looked at for a target
	// before it has its own.
	tries = 256
	// all and enough are how many candidates a search loads at most: for the
	// request itself all, for a waiter before it some. A waiter who can use none
	// of the first ones would make every request read the whole pool.
	all    = int(^uint(0) >> 2)
	enough = 1024
)

// search is the search of one request: what the waiters before it have set
// aside, and how far each question got.
type search struct {
	aside   map[string]bool
	cursors map[string]*cursor
}

// cursor is where the search for one question goes on. What was no answer a
// moment ago is none now: nothing but aside changes, and that only grows.
type cursor struct {
	// from is where the walk along a line goes on, partial is set when it was not
	// to its end.
	line      *line
	from      order
	partial   bool
	stream    *stream
	at, loads int
	tried     int // how many were looked at
	done      bool
	// waits is set when there was an answer, but set aside.
	waits bool
}

func (s *search) cursor(question string) *cursor {
	c := s.cursors[question]
	if c == nil {
		c = &cursor{}
		s.cursors[question] = c
	}
	return c
}

// asked is a question to a pool, and nothing the answer that there was no key
// among so many, or all, since so many frees: that stays so, for what a
// transaction does otherwise only takes keys away.
type (
	asked   struct{ pool, question string }
	nothing struct {
		frees, limit int
		all          bool
	}
)

// quickly marks the question of a quick pick: it has none of the keys that need a
// reset, which a lease gets.
const quickly = "\x03"

// question is what makes two requests of a pool alike.
func question(target string, where map[string]string, match []Match) string {
	if len(where)+len(match) == 0 {
		return target
	}
	var b strings.Builder
	b.WriteString(target)
	for _, name := range slices.Sorted(maps.Keys(where)) {
		b.WriteString("\x00" + name + "\x00" + where[name]) // none of them holds it
	}
	for _, m := range match {
		b.WriteString("\x01" + m.Attribute + "\x01" + string(m.Op) + "\x01" + strings.Join(m.Values, "\x02"))
	}
	return b.String()
}

// question is the ticket's.
func (t *ticketRow) question() string {
	if t.class == "" {
		t.class = question(t.Target, t.Where, t.Match)
	}
	return t.class
}

// find returns the first candidate that the take can use and that is not set
// aside, nil for none. It loads at most so many candidates.
func (w *work) find(p Pool, op Take, question string, s *search, most int) *keyRow {
	memo := asked{p.Name, question}
	if n, ok := w.none[memo]; ok && n.frees == w.frees && (n.all || n.limit >= most) {
		return nil
	}
	c := s.cursor(question)
	if p.turnwise(op.Target) {
		best := w.findInTurn(p, op, s, c, most)
		if best == nil && w.broken == nil && !c.waits && !c.partial {
			w.none[memo] = nothing{frees: w.frees, all: true}
		}
		return best
	}
	if c.done {
		return nil
	}
	best := w.findLoose(p, op, s, c)
	for w.broken == nil {
		st := w.stream(p.Name, op.Target)
		if st == nil {
			return nil
		}
		if c.stream != st || c.loads != st.loads {
			c.at, c.stream, c.loads = 0, st, st.loads
		}
		for c.at = max(c.at, st.at); c.at < len(st.names) && w.broken == nil; c.at++ {
			if c.tried++; c.tried > tries && w.narrow(p.Name, op.Target) {
				break
			}
			r := w.keys[st.names[c.at]]
			switch {
			case w.loose[p.Name][r.now.Name] != nil || !w.suits(p, op, r, st.names[c.at:]):
			case s.aside[r.now.Name]:
				c.waits = true
			case best == nil || Less(&r.now, &best.now):
				return r
			default:
				return best
			}
		}
		switch {
		case c.at < len(st.names): // another stream, or broken
		case !st.more || st.limit >= most:
			if best == nil && w.broken == nil {
				c.done = !st.more
				if !c.waits {
					w.none[memo] = nothing{w.frees, st.limit, !st.more}
				}
			}
			return best
		default:
			w.loadStream(w.streamID(p.Name, op.Target), min(st.limit*4, most))
		}
	}
	return nil
}

// findLoose looks among those that became free in this transaction.
func (w *work) findLoose(p Pool, op Take, s *search, c *cursor) *keyRow {
	names := w.looseNames(p.Name)
	for i, n := range names {
		switch r := w.keys[n]; {
		case !w.suits(p, op, r, names[i:]):
		case s.aside[n]:
			c.waits = true
		default:
			return r
		}
	}
	return nil
}

// looseNames are a pool's loose keys in order.
func (w *work) looseNames(pool string) []string {
	l := w.sorted[pool]
	if l == nil || l.frees != w.frees {
		l = &looseList{frees: w.frees}
		for n := range w.loose[pool] {
			l.names = append(l.names, n)
		}
		slices.SortFunc(l.names, func(a, b string) int { return compare(w.keys[a], w.keys[b]) })
		w.sorted[pool] = l
	}
	return l.names
}

// looseList is the loose keys of a pool as they were after so many frees: what
// changes a key's place counts as one.
type looseList struct {
	names []string
	frees int
}

// wants reports whether a waiter that found nothing among what was looked at
// can use the key all the same.
func (w *work) wants(p Pool, op Take, r *keyRow, c *cursor) bool {
	if p.turnwise(op.Target) {
		return c != nil && c.partial && w.suits(p, op, r, []string{r.now.Name})
	}
	st := w.stream(p.Name, op.Target)
	return st != nil && st.more && w.suits(p, op, r, []string{r.now.Name})
}

// suits reports whether the take can use the key now. next are the names that
// are looked at next: their rests are asked for at once.
func (w *work) suits(p Pool, op Take, r *keyRow, next []string) bool {
	if r == nil || r.dropped || !r.now.Eligible(p, op, w.begin.Now) {
		return false
	}
	if op.Target == "" {
		return true
	}
	for _, id := range restsBy(&r.now, op.Target) {
		if !w.known(id) && !w.foresee(p.Name, op.Target, next) {
			return false
		}
		if c := w.cooldowns[id]; c != nil && w.begin.Now.Before(c.Until) {
			return false
		}
	}
	if w.owed(&r.now, op.Target).After(w.begin.Now) {
		return false
	}
	return w.cooldowns[restsOn(p, &r.now, op.Target)].fullUntil(p.InFlight, w.begin.Now).IsZero()
}

// foresee asks for the rests of the keys that come next, for the target and, for
// the takes of the transaction are likely to get one after another, for theirs.
func (w *work) foresee(pool, target string, names []string) bool {
	var ids []CooldownID
	add := func(names []string, most int, target string) {
		for _, n := range names[:min(len(names), most)] {
			ids = append(ids, restsBy(&w.keys[n].now, target)...)
		}
	}
	add(names, 16, target)
	for _, op := range w.takes[w.taken:] {
		if op.Pool == pool && op.Target != "" && len(names) > 0 {
			add(names, 4, op.Target)
			names = names[1:]
		}
	}
	return w.know(ids)
}

// streamID names the stream to look at for a target: its own, without what
// rests for it, when there is one, or that of the whole pool.
//
// When this transaction lifted rests for the target, its own lacks what they
// freed.
func (w *work) streamID(pool, target string) CandidateWant {
	id := CandidateWant{Pool: pool, Target: target}
	if w.streams[id] == nil || w.lifts(target) {
		id.Target = ""
	}
	return id
}

func (w *work) lifts(target string) bool {
	return slices.ContainsFunc(w.lifted, func(l CooldownID) bool { return l.Target == "" || l.Target == target })
}

// narrow gives a target its own stream when so much of the pool rests for it
// that looking through all is a waste. It reports whether that is new.
func (w *work) narrow(pool, target string) bool {
	id := CandidateWant{Pool: pool, Target: target}
	if target == "" || w.streams[id] != nil || w.lifts(target) {
		return false
	}
	w.loadStream(id, len(w.takes)+tries)
	return true
}

// stream returns the candidates for a target, nil when the database failed.
func (w *work) stream(pool, target string) *stream {
	id := w.streamID(pool, target)
	if w.streams[id] == nil && !w.loadStream(id, len(w.takes)+spare) {
		return nil
	}
	s := w.streams[id]
	// What this transaction gave away is skipped for good.
	for s.at < len(s.names) {
		if r := w.key(s.names[s.at]); r != nil && w.loose[pool][r.now.Name] == nil && !r.now.Held(w.begin.Now) {
			break
		}
		s.at++
	}
	return s
}

func (w *work) loadStream(want CandidateWant, limit int) bool {
	want.Limit = limit
	return w.load(Want{Candidates: []CandidateWant{want}}) == nil
}

func (w *work) addStream(c CandidateWant, found CandidatesFound) {
	w.add(found.Keys)
	id := CandidateWant{Pool: c.Pool, Target: c.Target}
	s := w.streams[id]
	if s == nil {
		s = &stream{}
		w.streams[id] = s
	}
	rows := make([]*keyRow, len(found.Keys))
	for i := range found.Keys {
		rows[i] = w.keys[found.Keys[i].Name]
	}
	slices.SortFunc(rows, compare)
	s.names = s.names[:0]
	for _, r := range rows {
		s.names = append(s.names, r.now.Name)
	}
	s.limit, s.more, s.at = c.Limit, found.More, 0
	s.loads++
}

// names are the candidates of a pool for a target that were loaded.
func (w *work) names(p Pool, target string) []string {
	if s := w.streams[w.streamID(p.Name, target)]; s != nil {
		return s.names
	}
	return nil
}

// compare orders rows as [Less] does.
func compare(a, b *keyRow) int {
	return cmp.Or(a.now.Rank().Compare(b.now.Rank()), cmp.Compare(a.now.Name, b.now.Name))
}
