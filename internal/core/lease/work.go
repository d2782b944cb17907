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
	first  int64 // the counter's value when it began
	turned bool  // some key had its turn
	broken error // the transaction's own failure

	pools     map[string]*Pool // nil for one that does not exist
	newPools  map[string]bool
	dropPools []string
	keys      map[string]*keyRow // nil for one that does not exist
	written   []*keyRow          // those that were touched
	tickets   map[string]*ticketRow
	stirred   []*ticketRow // those that were touched
	takes     []Take       // all of the transaction, of which so many were taken
	taken     int
	queues    map[string]*queue
	aheads    map[AheadWant]int
	streams   map[CandidateWant]*stream // Limit 0 in the map's keys
	none      map[asked]nothing
	nexts     map[NextWant]*NextFound
	counts    map[string]*MembersFound // at the transaction's begin
	freeOnes  map[string]int           // as far as they were counted
	ops       int
	lines     map[LineID]*line
	glances   map[string]*keyRow // keys as walks saw them
	effort    int                // of walks, see [MaxMoves]
	scarce    map[string]bool    // pools whose free keys are compared though they are not few
	stopped   bool               // the take's own walk came no further: see [MaxMoves]
	// linesKnown are pools and targets of which all lines are known, lineless pools
	// whose stored lines are to go.
	beyond     map[string]*seatsRead
	linesKnown map[PoolTarget]bool
	lineless   map[string]bool
	delined    map[LineID]bool // lines that are to go
	seats      map[SeatWant][]Key
	seated     []seated
	listed     map[string][]Key         // the first ones of pools, as they were read
	exits      map[string]bool          // all keys that leave by these addresses are known
	whys       int                      // so many rests were looked at to say why there is none
	cooldowns  map[CooldownID]*Cooldown // as far as known; nil for none
	rested     map[CooldownID]bool      // those to write
	lifted     []CooldownID
	changes    map[string]*Change // the latest by pool; nil for none
	changed    map[string]*Change // those to write by id
	bars       map[string][]Bar   // of names without a row, at the transaction's begin
	due        []string
	nextDue    time.Time
	old        bool // lines are to be forgotten, or left places
	lost       []Ticket
	lastPlace  time.Time

	// loose are keys that may have become free in this transaction, by pool:
	// what the store knows of their order is not true any more.
	loose  map[string]map[string]*keyRow
	sorted map[string]*looseList
	frees  int // counts what may have made a key free
	freed  map[string]bool
	events []Event
	forget int
	dirty  bool
}

// seated is a seat that this transaction gave.
type seated struct {
	key  string
	seat int64
}

// keyRow is a key as it was read and as it is now.
type keyRow struct {
	was, now Key
	fresh    bool // there is no row yet
	touched  bool
	dropped  bool
	seen     bool // by a walk that it was nothing for
	// untold is set while nothing was told of the end that the lease's time
	// brought.
	untold bool
}

// ticketRow is a ticket as it was read and as it is now.
type ticketRow struct {
	was    Ticket
	stored bool // there is one
	Ticket
	touched, dropped bool
	class            string // see [ticketRow.question]
}

func (t *ticketRow) live(now time.Time) bool { return !t.dropped && t.Live(now) }

// moved reports whether it has another place than the one that the store knows.
func (t *ticketRow) moved() bool { return !t.stored || t.Seq != t.was.Seq }

// newWork is a transaction that knows nothing yet.
func newWork(ctx context.Context, tx Tx, begin Begin) *work {
	return &work{
		ctx: ctx, tx: tx, begin: begin, first: begin.Counter,
		pools: map[string]*Pool{}, newPools: map[string]bool{}, keys: map[string]*keyRow{}, tickets: map[string]*ticketRow{},
		queues: map[string]*queue{}, aheads: map[AheadWant]int{}, streams: map[CandidateWant]*stream{}, none: map[asked]nothing{},
		nexts: map[NextWant]*NextFound{}, counts: map[string]*MembersFound{}, cooldowns: map[CooldownID]*Cooldown{},
		rested: map[CooldownID]bool{}, changes: map[string]*Change{}, changed: map[string]*Change{},
		loose: map[string]map[string]*keyRow{}, sorted: map[string]*looseList{}, freed: map[string]bool{}, bars: map[string][]Bar{},
		listed: map[string][]Key{}, exits: map[string]bool{}, freeOnes: map[string]int{}, lines: map[LineID]*line{}, glances: map[string]*keyRow{},
		linesKnown: map[PoolTarget]bool{}, lineless: map[string]bool{}, delined: map[LineID]bool{}, beyond: map[string]*seatsRead{}, scarce: map[string]bool{}, seats: map[SeatWant][]Key{},
	}
}

// next gives a number out.
func (w *work) next() int64 {
	w.begin.Counter++
	w.dirty = true
	return w.begin.Counter
}

// set changes a row.
func (w *work) set(r *keyRow, k Key) {
	r.now = k
	if !r.touched {
		r.touched = true
		w.written = append(w.written, r)
	}
}

// touch notes that a ticket changed.
func (w *work) touch(t *ticketRow) {
	if !t.touched {
		t.touched = true
		w.stirred = append(w.stirred, t)
	}
}

// key returns the row of a name, nil when there is none (any more).
func (w *work) key(name string) *keyRow {
	if r := w.keys[name]; r != nil && !r.dropped {
		return r
	}
	return nil
}

// load asks for what is not known yet. What this transaction changed is never
// overwritten by what it reads.
func (w *work) load(want Want) error {
	unique := func(names []string, known func(string) bool) []string {
		slices.Sort(names)
		return slices.DeleteFunc(slices.Compact(names), known)
	}
	slices.SortFunc(want.LinesOf, func(a, b PoolTarget) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Target, b.Target))
	})
	want.LinesOf = slices.DeleteFunc(slices.Compact(want.LinesOf), func(of PoolTarget) bool { return w.linesKnown[of] })
	want.ExitIPs = unique(want.ExitIPs, func(n string) bool { return n == "" || w.exits[n] })
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
	for i := range f.Pools { // also the pools of leases, which were not asked for
		if p := f.Pools[i]; !has(w.pools, p.Name) {
			w.pools[p.Name] = &p
		}
	}
	for _, n := range want.Pools {
		if !has(w.pools, n) {
			w.pools[n] = nil
		}
	}
	w.add(f.Keys)
	for _, ip := range want.ExitIPs {
		w.exits[ip] = true
	}
	for i, l := range want.Listed {
		w.add(f.Listed[i])
		w.listed[l.Pool] = f.Listed[i]
	}
	for _, n := range want.Keys {
		if !has(w.keys, n) {
			w.keys[n] = nil
		}
	}
	for i := range f.Tickets {
		w.ticket(f.Tickets[i])
	}
	for i, q := range want.Queues {
		w.addQueue(q, f.Queues[i])
	}
	for i, a := range want.Ahead {
		w.aheads[a] = f.Ahead[i]
	}
	for i, c := range want.Candidates {
		w.addStream(c, f.Candidates[i])
	}
	for i, n := range want.Free {
		w.freeOnes[n.Pool] = f.Free[i]
	}
	for i, l := range want.Lines {
		w.addLine(l, f.Lines[i])
	}
	for i, of := range want.LinesOf {
		w.linesKnown[of] = true
		for n := range f.LinesOf[i] {
			if row := &f.LinesOf[i][n]; w.begin.Now.Sub(row.Used) <= LineFor {
				w.addLineRow(row.LineID, row)
			}
		}
	}
	for i, s := range want.Seats {
		w.add(f.Seats[i])
		w.seats[s] = f.Seats[i]
	}
	for i, n := range want.Next {
		w.nexts[n] = &f.Next[i]
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
	for _, n := range want.Bars {
		w.bars[n] = f.Bars[n]
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
		w.nextDue, w.old = f.NextDue, f.Old
	}
	if want.Lost {
		w.lost, w.lastPlace = f.Lost, f.LastPlace
	}
	return nil
}

// forgetEvery is after how many numbers rests are forgotten that nobody asks for any
// more: about as many keys were used since.
const forgetEvery = 128

func has[V any](m map[string]V, name string) bool { _, ok := m[name]; return ok }

// add takes rows over as they are at the transaction's time: rules, order and
// answers never see a lease that is over as one that runs.
func (w *work) add(keys []Key) {
	for i := range keys {
		k := keys[i]
		if w.keys[k.Name] != nil {
			continue
		}
		r := &keyRow{was: k, now: k.Settle(w.begin.Now)}
		if k.Lease != nil {
			r.untold = k.Lease.End != r.now.Lease.End
		}
		w.keys[k.Name] = r
	}
}

func (w *work) ticket(t Ticket) *ticketRow {
	if r := w.tickets[t.ID]; r != nil {
		return r
	}
	r := &ticketRow{was: t, stored: true, Ticket: t}
	w.tickets[t.ID] = r
	return r
}

// cooldown returns one, the zero value of its id when there is none.
func (w *work) cooldown(id CooldownID) (Cooldown, bool) {
	if !w.know([]CooldownID{id}) {
		return Cooldown{}, false
	}
	if c := w.cooldowns[id]; c != nil && !c.Forget.Before(w.begin.Now) { // else a sweep may take it at any time
		return *c, true
	}
	return Cooldown{CooldownID: id}, true
}

// know loads cooldowns that are not known yet. What was lifted is known to be
// none.
func (w *work) know(ids []CooldownID) bool {
	want := w.unknown(ids)
	return len(want) == 0 || w.load(Want{Cooldowns: want}) == nil
}

// unknown are those of the cooldowns that must be asked for; they count as
// known from then on.
func (w *work) unknown(ids []CooldownID) (want []CooldownID) {
	for _, id := range ids {
		if !w.known(id) {
			want = append(want, id)
			w.cooldowns[id] = nil
		}
	}
	return want
}

func (w *work) known(id CooldownID) bool {
	_, known := w.cooldowns[id]
	return known || w.liftedID(id)
}

func (w *work) liftedID(id CooldownID) bool {
	return slices.ContainsFunc(w.lifted, func(l CooldownID) bool {
		return l.Scope == id.Scope && l.ID == id.ID && (l.Target == "" || l.Target == id.Target)
	})
}

// members are the names of a pool's keys, in no order, and how many a rule
// disabled, as this transaction leaves them.
func (w *work) members(pool string) (names []string, autoDisabled int, ok bool) {
	if w.counts[pool] == nil && w.load(Want{Members: []string{pool}}) != nil {
		return nil, 0, false
	}
	m := w.counts[pool]
	auto := func(k *Key) bool { return k.Disabled != nil && k.Disabled.Auto }
	autoDisabled = m.AutoDisabled
	other := map[string]bool{} // is not what it was at the begin
	for _, r := range w.written {
		was, now := !r.fresh && r.was.in(pool), !r.dropped && r.now.in(pool)
		if was && auto(&r.was) {
			autoDisabled--
		}
		if now && auto(&r.now) {
			autoDisabled++
		}
		if was != now {
			other[r.now.Name] = true
		}
		if now && !was {
			names = append(names, r.now.Name)
		}
	}
	for _, n := range m.Names {
		if !other[n] {
			names = append(names, n)
		}
	}
	return names, autoDisabled, true
}

// save hands over what changed.
func (w *work) save() error {
	c := Changes{Begin: w.begin, DropPools: w.dropPools, LiftCooldowns: w.lifted, Events: w.events, Forget: w.forget}
	w.saveLines(&c)
	if n := w.begin.Counter; w.turned && n/forgetEvery != w.first/forgetEvery {
		c.ForgetRests = 2*forgetEvery + 2*int(n-w.first)
	}
	for _, name := range slices.Sorted(maps.Keys(w.newPools)) {
		c.Pools = append(c.Pools, *w.pools[name])
	}
	slices.SortFunc(w.written, func(a, b *keyRow) int { return cmp.Compare(a.now.Name, b.now.Name) })
	for _, r := range w.written {
		switch {
		case r.dropped && r.fresh:
		case r.dropped:
			c.DropKeys = append(c.DropKeys, r.was)
		case r.fresh || !r.now.same(&r.was):
			c.Keys = append(c.Keys, r.write())
		}
	}
	slices.SortFunc(w.stirred, func(a, b *ticketRow) int { return cmp.Compare(a.ID, b.ID) })
	for _, t := range w.stirred {
		switch {
		case t.dropped && t.stored:
			c.DropTickets = append(c.DropTickets, t.ID)
		case !t.dropped:
			c.Tickets = append(c.Tickets, t.Ticket)
		}
	}
	for id := range w.rested {
		c.Cooldowns = append(c.Cooldowns, *w.cooldowns[id])
	}
	slices.SortFunc(c.Cooldowns, func(a, b Cooldown) int {
		return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Target, b.Target))
	})
	for _, id := range slices.Sorted(maps.Keys(w.changed)) {
		c.Changes = append(c.Changes, *w.changed[id])
	}
	for p, rows := range w.loose {
		for _, r := range rows { // unless somebody took it since
			if !r.dropped && r.now.in(p) && !r.now.FreeAt().After(w.begin.Now) {
				w.freed[p] = true
				break
			}
		}
	}
	c.Freed = slices.Sorted(maps.Keys(w.freed))
	empty := !w.dirty && len(c.Pools)+len(c.DropPools)+len(c.Keys)+len(c.DropKeys)+len(c.Tickets)+len(c.DropTickets)+
		len(c.Cooldowns)+len(c.LiftCooldowns)+len(c.Changes)+len(c.DropLinesOf)+len(c.DropLines)+len(c.Lines)+len(c.DropPlaces)+len(c.Places)+c.Forget == 0
	if empty {
		return nil
	}
	return w.tx.Save(w.ctx, c)
}

// write is the row as it is to be kept.
func (r *keyRow) write() KeyWrite {
	k := KeyWrite{Key: r.now}
	k.Version = r.was.Version
	k.Relist = r.fresh || !slices.Equal(r.now.Pools, r.was.Pools) || !slices.Equal(r.now.Leaving, r.was.Leaving)
	k.Facts = r.fresh || r.now.Managed != r.was.Managed || r.now.UID != r.was.UID || r.now.ExitIP != r.was.ExitIP ||
		r.now.Unfit != r.was.Unfit || r.now.Weight != r.was.Weight || r.now.Seat != r.was.Seat || r.now.Since != r.was.Since || !r.now.Joined.Equal(r.was.Joined) ||
		!maps.Equal(r.now.Attributes, r.was.Attributes)
	return k
}
