package lease

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// work is the state of one transaction while its ops run.
type work struct {
	ctx    context.Context //nolint:containedctx // lives as long as one Apply
	tx     Tx
	begin  Begin
	broken error // the transaction's own failure

	pools     map[string]*Pool // nil for one that does not exist
	newPools  map[string]bool
	dropPools []string
	keys      map[string]*keyRow
	tickets   map[string]*ticketRow
	queues    map[string]*queue
	streams   map[CandidateWant]*stream // Limit 0 in the map's keys
	next_     map[NextWant]*NextFound
	counts    map[string]*MembersFound
	cooldowns map[CooldownID]*Cooldown // as far as known; nil for none
	rested    map[CooldownID]bool      // those to write
	lifted    []CooldownID
	changes   map[string]*Change // by pool; nil for none
	changed   map[string]bool
	due       []string
	nextDue   time.Time
	lost      []Ticket
	lastPlace time.Time

	// loose are keys that became free in this transaction, by pool.
	loose  map[string][]string
	freed  map[string]bool
	events []Event
	forget int
	dirty  bool
}

// keyRow is a key as it was read and as it is now.
type keyRow struct {
	was, now Key
	fresh    bool // there is no row yet
	touched  bool
	dropped  bool
}

func (r *keyRow) set(k Key) { r.now, r.touched = k, true }

type ticketRow struct {
	Ticket
	touched, dropped bool
}

// queue is the live waiters of a pool in order, as far as they are known.
type queue struct {
	tickets []*ticketRow
	limit   int
	// more is set while the store has others behind those that were loaded.
	more bool
	// mine wait since this transaction: new ones, and such that came back.
	mine []*ticketRow
}

// join puts a ticket that waits since this transaction in its place.
func (q *queue) join(t *ticketRow) {
	if !slices.Contains(q.mine, t) {
		q.mine = append(q.mine, t)
	}
	q.merge()
}

// merge sorts in what waits since this transaction, as far as the store's part
// is known: a place behind that comes when more was loaded.
func (q *queue) merge() {
	last := int64(-1)
	if n := len(q.tickets); q.more && n > 0 {
		last = q.tickets[n-1].Seq
	}
	for _, t := range q.mine {
		if (last < 0 || t.Seq < last) && !slices.Contains(q.tickets, t) {
			q.tickets = append(q.tickets, t)
		}
	}
	slices.SortStableFunc(q.tickets, func(a, b *ticketRow) int { return cmp.Compare(a.Seq, b.Seq) })
}

// stream is the candidates of a pool for a target, as far as they were loaded.
type stream struct {
	names []string
	limit int
	more  bool
	at    int // names before it are used up for everybody
}

func newWork(ctx context.Context, tx Tx, begin Begin) *work {
	return &work{
		ctx: ctx, tx: tx, begin: begin,
		pools: map[string]*Pool{}, newPools: map[string]bool{}, keys: map[string]*keyRow{}, tickets: map[string]*ticketRow{},
		queues: map[string]*queue{}, streams: map[CandidateWant]*stream{}, next_: map[NextWant]*NextFound{},
		counts: map[string]*MembersFound{}, cooldowns: map[CooldownID]*Cooldown{}, rested: map[CooldownID]bool{},
		changes: map[string]*Change{}, changed: map[string]bool{}, loose: map[string][]string{}, freed: map[string]bool{},
	}
}

// next gives a number out.
func (w *work) next() int64 {
	w.begin.Counter++
	w.dirty = true
	return w.begin.Counter
}

// load asks for what is not known yet. What this transaction changed is never
// overwritten by what it reads.
func (w *work) load(want Want) error {
	unique := func(names []string, known func(string) bool) []string {
		slices.Sort(names)
		return slices.DeleteFunc(slices.Compact(names), known)
	}
	want.Pools = unique(want.Pools, func(n string) bool { _, ok := w.pools[n]; return ok || n == "" })
	want.Keys = unique(want.Keys, func(n string) bool { _, ok := w.keys[n]; return ok })
	want.Tickets = unique(want.Tickets, func(n string) bool { _, ok := w.tickets[n]; return ok })
	want.Changes = unique(want.Changes, func(n string) bool { _, ok := w.changes[n]; return ok })
	slices.SortFunc(want.Queues, func(a, b QueueWant) int { return cmp.Compare(a.Pool, b.Pool) })
	want.Queues = slices.Compact(want.Queues)

	f, err := w.tx.Load(w.ctx, want)
	if err != nil {
		w.broken = err
		return err
	}
	for _, n := range want.Pools {
		w.pools[n] = nil
	}
	for i := range f.Pools {
		if p := f.Pools[i]; w.pools[p.Name] == nil && !w.newPools[p.Name] {
			w.pools[p.Name] = &p
		}
	}
	for _, n := range want.Keys {
		if _, ok := w.keys[n]; !ok {
			w.keys[n] = nil
		}
	}
	w.add(f.Keys)
	for i := range f.Tickets {
		w.ticket(f.Tickets[i])
	}
	for i, q := range want.Queues {
		w.addQueue(q, f.Queues[i])
	}
	for i, c := range want.Candidates {
		w.addStream(c, f.Candidates[i])
	}
	for i, n := range want.Next {
		w.next_[n] = &f.Next[i]
	}
	for i, n := range want.Members {
		w.counts[n] = &f.Members[i]
	}
	for _, id := range want.Cooldowns {
		w.cooldowns[id] = nil
	}
	for i := range f.Cooldowns {
		w.cooldowns[f.Cooldowns[i].CooldownID] = &f.Cooldowns[i]
	}
	for _, n := range want.Changes {
		w.changes[n] = nil
	}
	for i := range f.Changes {
		w.changes[f.Changes[i].Pool] = &f.Changes[i]
	}
	if want.Due > 0 {
		w.add(f.Due)
		for i := range f.Due {
			w.due = append(w.due, f.Due[i].Name)
		}
		w.nextDue = f.NextDue
	}
	if want.Lost {
		w.lost, w.lastPlace = f.Lost, f.LastPlace
	}
	return nil
}

func (w *work) add(keys []Key) {
	for i := range keys {
		if w.keys[keys[i].Name] == nil {
			w.keys[keys[i].Name] = &keyRow{was: keys[i], now: keys[i]}
		}
	}
}

func (w *work) ticket(t Ticket) *ticketRow {
	if r := w.tickets[t.ID]; r != nil {
		return r
	}
	r := &ticketRow{Ticket: t}
	w.tickets[t.ID] = r
	return r
}

func (w *work) addQueue(q QueueWant, found []Ticket) {
	have := w.queues[q.Pool]
	if have == nil {
		have = &queue{}
		w.queues[q.Pool] = have
	}
	have.tickets = have.tickets[:0]
	for i := range found {
		// One whose place is another by now is among mine, or left.
		if t := w.ticket(found[i]); t.Seq == found[i].Seq {
			have.tickets = append(have.tickets, t)
		}
	}
	have.limit, have.more = q.Limit, len(found) >= q.Limit
	have.merge()
}

func (w *work) addStream(c CandidateWant, found CandidatesFound) {
	w.add(found.Keys)
	slices.SortFunc(found.Keys, func(a, b Key) int {
		if Less(&a, &b) {
			return -1
		}
		return 1
	})
	id := CandidateWant{Pool: c.Pool, Target: c.Target}
	s := w.streams[id]
	if s == nil {
		s = &stream{}
		w.streams[id] = s
	}
	s.names, s.at = s.names[:0], 0
	for i := range found.Keys {
		s.names = append(s.names, found.Keys[i].Name)
	}
	s.limit, s.more = c.Limit, found.More
}

// cooldown returns one, the zero value of its id when there is none.
func (w *work) cooldown(id CooldownID) (Cooldown, bool) {
	if _, known := w.cooldowns[id]; !known && !w.liftedID(id) {
		if w.load(Want{Cooldowns: []CooldownID{id}}) != nil {
			return Cooldown{}, false
		}
	}
	if c := w.cooldowns[id]; c != nil {
		return *c, true
	}
	return Cooldown{CooldownID: id}, true
}

func (w *work) liftedID(id CooldownID) bool {
	return slices.ContainsFunc(w.lifted, func(l CooldownID) bool {
		return l.Scope == id.Scope && l.ID == id.ID && (l.Target == "" || l.Target == id.Target)
	})
}

func (w *work) members(pool string) (*MembersFound, bool) {
	if m := w.counts[pool]; m != nil {
		return m, true
	}
	if w.load(Want{Members: []string{pool}}) != nil {
		return nil, false
	}
	return w.counts[pool], true
}

// save hands over what changed.
func (w *work) save() error {
	c := Changes{Begin: w.begin, DropPools: w.dropPools, LiftCooldowns: w.lifted, Events: w.events, Forget: w.forget}
	for _, name := range slices.Sorted(maps.Keys(w.newPools)) {
		if p := w.pools[name]; p != nil {
			c.Pools = append(c.Pools, *p)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.keys)) {
		r := w.keys[name]
		switch {
		case r == nil || !r.touched:
		case r.dropped && r.fresh:
		case r.dropped:
			c.DropKeys = append(c.DropKeys, r.was)
		case r.fresh || !r.now.Equal(&r.was):
			k := KeyWrite{Key: r.now, Relist: r.fresh, Facts: r.fresh}
			k.Version = r.was.Version
			if !slices.Equal(r.now.Pools, r.was.Pools) || !slices.Equal(r.now.Leaving, r.was.Leaving) {
				k.Relist = true
			}
			if r.now.Managed != r.was.Managed || r.now.UID != r.was.UID || r.now.ExitIP != r.was.ExitIP ||
				r.now.Unfit != r.was.Unfit || !maps.Equal(r.now.Attributes, r.was.Attributes) {
				k.Facts = true
			}
			c.Keys = append(c.Keys, k)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.tickets)) {
		switch t := w.tickets[id]; {
		case t == nil || !t.touched && !t.dropped:
		case t.dropped:
			c.DropTickets = append(c.DropTickets, id)
		default:
			c.Tickets = append(c.Tickets, t.Ticket)
		}
	}
	for id := range w.rested {
		c.Cooldowns = append(c.Cooldowns, *w.cooldowns[id])
	}
	slices.SortFunc(c.Cooldowns, func(a, b Cooldown) int {
		return cmp.Compare(string(a.Scope)+"\x00"+a.ID+"\x00"+a.Target, string(b.Scope)+"\x00"+b.ID+"\x00"+b.Target)
	})
	for _, pool := range slices.Sorted(maps.Keys(w.changed)) {
		if ch := w.changes[pool]; ch != nil {
			c.Changes = append(c.Changes, *ch)
		}
	}
	c.Freed = slices.Sorted(maps.Keys(w.freed))
	empty := !w.dirty && len(c.Pools)+len(c.DropPools)+len(c.Keys)+len(c.DropKeys)+len(c.Tickets)+len(c.DropTickets)+
		len(c.Cooldowns)+len(c.LiftCooldowns)+len(c.Changes)+c.Forget == 0
	if empty {
		return nil
	}
	return w.tx.Save(w.ctx, c)
}
