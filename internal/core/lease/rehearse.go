package lease

import (
	"cmp"
	"slices"
)

// Before the ops run, their takes are rehearsed: each walks along what was read of
// its line, and what those that ran short need is asked for in one question, a few
// times over. So a transaction costs a few ways to the database however many lines
// its takes go along. A rehearsal decides nothing: what it foresaw wrongly is asked
// for when it is needed.

// rehearsals is how many questions about lines are asked for all takes at once.
const rehearsals = 3

// candidate is a key that a line has for a take, as things were when it was read.
type candidate struct {
	key  string
	rest CooldownID // what rests after a use
	at   order
	// from is the first take whose walk meets it, of those along its line.
	from  int
	given bool
}

// rehearsal is the takes of a transaction along one line.
type rehearsal struct {
	*line
	pool   Pool
	takes  []Take
	all    []candidate
	served int // takes
}

// rehearse asks for what the takes of a transaction will look at.
func (w *work) rehearse() error {
	all := w.rehearsals()
	held := map[string]bool{}        // by leases
	resting := map[CooldownID]bool{} // after uses
	for i := range rehearsals + 1 {
		var want Want
		for _, r := range all {
			w.act(r, &want, held, resting)
		}
		if i == rehearsals { // whoever still runs short goes on alone
			want.Lines = nil
		}
		if len(want.Lines)+len(want.Keys) == 0 {
			return nil
		}
		if err := w.load(want); err != nil {
			return err
		}
		if len(want.Lines) == 0 {
			return nil
		}
	}
	return nil
}

// rehearsals are the lines that are read, each with its takes, in the order of the
// first of them.
func (w *work) rehearsals() (all []*rehearsal) {
	by := map[LineID]*rehearsal{}
	for _, op := range w.takes {
		p := w.pools[op.Pool]
		if p == nil || !p.turnwise(op.Target) || w.freeOnes[p.Name] <= few+w.ops || len(op.Where)+len(op.Match) > maxAsked {
			continue
		}
		op.Target = p.aim(op.Target)
		id := w.lineID(*p, op)
		r := by[id]
		if r == nil {
			if l := w.lines[id]; l == nil || !l.loaded {
				continue
			}
			r = &rehearsal{line: w.lines[id], pool: *p}
			by[id] = r
			all = append(all, r)
		}
		r.takes = append(r.takes, op)
	}
	return all
}

// act gives candidates to the takes of a line that have none yet, and asks for what
// lies behind those that are known when a take may find its key there.
func (w *work) act(r *rehearsal, want *Want, held map[string]bool, resting map[CooldownID]bool) {
	if r.served == len(r.takes) {
		return
	}
	w.audition(r)
	for r.served < len(r.takes) {
		var best *candidate
		for i := range r.all {
			c := &r.all[i]
			if c.given = c.given || held[c.key] || resting[c.rest]; !c.given && c.from <= r.served {
				best = c
				break
			}
		}
		behind := func(all []Place, more bool, last func(Place) order) bool {
			return more && (best == nil || len(all) == 0 || best.at.compare(last(all[len(all)-1])) > 0)
		}
		ready := behind(r.ready, r.moreReady, Place.order)
		fresh := behind(r.fresh, r.moreFresh, func(at Place) order {
			if k := w.glance(at.Key); k != nil {
				return order{k.now.Joined, k.now.Joined, at.Seat}
			}
			return order{}
		})
		due := r.moreDue && len(r.due) < unparks*(r.served+1)
		if due || ready || fresh {
			want.Lines = append(want.Lines, w.further(r.line, due, ready, fresh))
			return
		}
		if best != nil {
			if op := r.takes[r.served]; op.Quick {
				resting[best.rest] = true
			} else {
				held[best.key] = true
			}
			if !has(w.keys, best.key) {
				want.Keys = append(want.Keys, best.key)
			}
		}
		r.served++
	}
}

// audition lists the candidates that are known, in their order.
func (w *work) audition(r *rehearsal) {
	r.all = r.all[:0]
	op := r.takes[0]
	op.Quick = slices.ContainsFunc(r.takes, func(op Take) bool { return op.Quick })
	for _, places := range [][]Place{r.due, r.ready, r.fresh} {
		for i, at := range places {
			k := w.glance(at.Key)
			if v, _, turn := w.look(r.pool, op, k, at.Seat); v == usable {
				if o := at.order(); at.Parked.IsZero() && o.compare(turn) > 0 { // its turn was forgotten
					turn = o
				}
				c := candidate{key: at.Key, rest: restsOn(r.pool, &k.now, op.Target), at: turn}
				if !at.Parked.IsZero() {
					c.from = i / unparks
				}
				r.all = append(r.all, c)
			}
		}
	}
	slices.SortFunc(r.all, func(a, b candidate) int { return cmp.Or(a.at.compare(b.at), cmp.Compare(a.key, b.key)) })
}
