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
	at, loads int
	done      bool
	// waits is set when there was an answer, but set aside.
	waits bool
}

// question is what makes two requests of a pool alike.
func question(target string, where map[string]string) string {
	if len(where) == 0 {
		return target
	}
	var b strings.Builder
	b.WriteString(target)
	for _, name := range slices.Sorted(maps.Keys(where)) {
		b.WriteString("\x00" + name + "\x00" + where[name]) // none of them holds it
	}
	return b.String()
}

// question is the ticket's.
func (t *ticketRow) question() string {
	if t.class == "" {
		t.class = question(t.Target, t.Where)
	}
	return t.class
}

// find returns the first candidate that the take can use and that is not set
// aside, nil for none. It loads at most so many candidates.
func (w *work) find(p Pool, op Take, question string, s *search, most int) *keyRow {
	memo := p.Name + "\x00" + question
	if at, ok := w.none[memo]; ok && at == w.frees {
		return nil
	}
	c := s.cursors[question]
	if c == nil {
		c = &cursor{}
		s.cursors[question] = c
	}
	if c.done {
		return nil
	}
	best := w.findLoose(p, op, s, c)
	for {
		st := w.stream(p.Name, op.Target)
		if st == nil {
			return nil
		}
		if c.loads != st.loads {
			c.at, c.loads = 0, st.loads
		}
		for c.at = max(c.at, st.at); c.at < len(st.names); c.at++ {
			r := w.keys[st.names[c.at]]
			switch {
			case w.loose[p.Name][r.now.Name] != nil || !w.suits(p, op, r):
			case s.aside[r.now.Name]:
				c.waits = true
			case best == nil || Less(&r.now, &best.now):
				return r
			default:
				return best
			}
		}
		if !st.more {
			break
		}
		if st.limit >= most {
			return best
		}
		if w.loadStream(p.Name, op.Target, st.limit*4) == nil {
			return nil
		}
	}
	if best == nil && w.broken == nil {
		c.done = true
		if !c.waits {
			w.none[memo] = w.frees
		}
	}
	return best
}

// wants reports whether a waiter that found nothing among what was looked at
// can use the key all the same.
func (w *work) wants(p Pool, op Take, r *keyRow) bool {
	st := w.stream(p.Name, op.Target)
	if st == nil || !st.more {
		return false // all was looked at
	}
	return (op.Target == "" || w.know(restsBy(&r.now, op.Target))) && w.suits(p, op, r)
}

// findLoose looks among those that became free in this transaction.
func (w *work) findLoose(p Pool, op Take, s *search, c *cursor) *keyRow {
	loose := w.loose[p.Name]
	if len(loose) == 0 {
		return nil
	}
	if op.Target != "" {
		var ids []CooldownID
		for _, r := range loose {
			ids = append(ids, restsBy(&r.now, op.Target)...)
		}
		if !w.know(ids) {
			return nil
		}
	}
	var best *keyRow
	for name, r := range loose {
		switch {
		case best != nil && !Less(&r.now, &best.now) || !w.suits(p, op, r):
		case s.aside[name]:
			c.waits = true
		default:
			best = r
		}
	}
	return best
}

// suits reports whether the take can use the key now. Whether it rests for the
// target must be known, or the key be a candidate for it.
func (w *work) suits(p Pool, op Take, r *keyRow) bool {
	if r == nil || r.dropped || !r.now.Eligible(p, op, w.begin.Now) {
		return false
	}
	if op.Target == "" {
		return true
	}
	return !slices.ContainsFunc(restsBy(&r.now, op.Target), func(id CooldownID) bool {
		c := w.cooldowns[id]
		return c != nil && w.begin.Now.Before(c.Until)
	})
}

// stream returns the candidates for a target, nil when the database failed.
func (w *work) stream(pool, target string) *stream {
	id := w.streamID(pool, target)
	if w.streams[id] == nil {
		return w.loadStream(pool, target, spare)
	}
	s := w.streams[id]
	if id.Target != target && !w.knowRests(s, target) {
		return nil
	}
	// What this transaction gave away is skipped for good.
	for s.at < len(s.names) {
		if r := w.key(s.names[s.at]); r != nil && w.loose[pool][r.now.Name] == nil && !r.now.Held(w.begin.Now) {
			break
		}
		s.at++
	}
	return s
}

// streamID names the stream to look at. When this transaction lifted rests for
// the target, the store's candidates for it lack what they freed: then all are
// looked at, with their rests.
func (w *work) streamID(pool, target string) CandidateWant {
	lifts := func(l CooldownID) bool { return l.Target == "" || l.Target == target }
	if target != "" && slices.ContainsFunc(w.lifted, lifts) {
		target = ""
	}
	return CandidateWant{Pool: pool, Target: target}
}

func (w *work) loadStream(pool, target string, limit int) *stream {
	id := w.streamID(pool, target)
	want := id
	want.Limit = limit
	if w.load(Want{Candidates: []CandidateWant{want}}) != nil {
		return nil
	}
	s := w.streams[id]
	if id.Target != target && !w.knowRests(s, target) {
		return nil
	}
	return s
}

func (w *work) knowRests(s *stream, target string) bool {
	var ids []CooldownID
	for _, n := range s.names {
		ids = append(ids, restsBy(&w.keys[n].now, target)...)
	}
	return w.know(ids)
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
	slices.SortFunc(rows, func(a, b *keyRow) int {
		return cmp.Or(a.now.Rank().Compare(b.now.Rank()), cmp.Compare(a.now.Name, b.now.Name))
	})
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
