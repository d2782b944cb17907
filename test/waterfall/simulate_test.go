package waterfall_test

import (
	"container/heap"
	"fmt"
)

// chooser is one way to choose proxies. It hears what a crawler hears, and
// nothing else.
type chooser interface {
	// choose names a proxy for request n, or says that there is none. The ticket
	// comes back with the answer.
	choose(now moment, n, site int) (through int, ticket any, ok bool)
	// hear tells how a request through a proxy went.
	hear(now moment, through, site int, ticket any, o outcome)
}

// tally counts how requests ended.
type tally struct {
	wanted int
	ended  [outcomes]int
	// bans are those that sites began or prolonged.
	bans int
}

func (t *tally) add(o tally) {
	t.wanted += o.wanted
	t.bans += o.bans
	for i := range t.ended {
		t.ended[i] += o.ended[i]
	}
}

// share is how many of the wanted requests ended so.
func (t tally) share(o outcome) float64 { return float64(t.ended[o]) / float64(max(t.wanted, 1)) }

// answer is on its way to the crawler.
type answer struct {
	at            moment
	seq           int
	through, site int
	ticket        any
	outcome       outcome
}

type answers []answer

func (a answers) Len() int { return len(a) }
func (a answers) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a answers) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *answers) Push(x any)   { *a = append(*a, x.(answer)) }
func (a *answers) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// run is a world in which somebody chooses.
type run struct {
	*world
	who     chooser
	records [][]record // by site and address
	coming  answers
	tally   tally
	// trace, when not nil, is told of each choice; through is -1 for none.
	trace func(n, through int)
}

func newRun(w *world, who func(*run) chooser) *run {
	r := &run{world: w}
	for range w.sites {
		r.records = append(r.records, make([]record, len(w.behind)))
	}
	r.who = who(r)
	return r
}

// simulate runs all requests to their ends. Nobody tries again: a request that
// was refused or failed is lost.
func (r *run) simulate() tally {
	for n, q := range r.requests {
		r.deliver(q.at)
		r.tally.wanted++
		through, ticket, ok := r.who.choose(q.at, n, q.site)
		if !ok {
			through = -1
		}
		if r.trace != nil {
			r.trace(n, through)
		}
		if !ok {
			r.tally.ended[refused]++
			continue
		}
		r.send(n, through, ticket)
	}
	r.deliver(1 << 62)
	sum := 0
	for _, e := range r.tally.ended {
		sum += e
	}
	if sum != r.tally.wanted {
		panic(fmt.Sprintf("%d of %d requests ended", sum, r.tally.wanted))
	}
	return r.tally
}

func (r *run) send(n, through int, ticket any) {
	q := r.requests[n]
	took, isLost := r.chance(n, through)
	a := answer{at: q.at + took, seq: n, through: through, site: q.site, ticket: ticket, outcome: failed}
	if !isLost {
		record := r.record(q.site, through)
		if a.outcome = record.ask(&r.sites[q.site], q.at); a.outcome == banned {
			r.tally.bans++
		} else {
			record.open++
		}
	}
	heap.Push(&r.coming, a)
}

// deliver hands out the answers up to a time.
func (r *run) deliver(until moment) {
	for len(r.coming) > 0 && r.coming[0].at <= until {
		a := heap.Pop(&r.coming).(answer)
		if a.outcome == good {
			r.record(a.site, a.through).open--
		}
		r.tally.ended[a.outcome]++
		r.who.hear(a.at, a.through, a.site, a.ticket, a.outcome)
	}
}

func (r *run) record(site, through int) *record { return &r.records[site][r.proxies[through].address] }
