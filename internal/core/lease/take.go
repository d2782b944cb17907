package lease

import (
	"cmp"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
)

// take finds a key for a request, or says why there is none.
//
// The live waiters before the request come first: each of them has the best of
// the keys that it can use set aside, whether its own server asks now or a
// moment later. So a newcomer never overtakes a waiter that could use the key,
// and is not held up by one that cannot.
func (w *work) take(op Take) Result {
	if err := op.validate(); err != nil {
		return Result{Err: err}
	}
	if op.Quick {
		return w.quick(op)
	}
	t := w.request(op)
	if t != nil && (t.Digest != op.Digest || t.Account != op.Account || t.Pool != op.Pool) {
		return Result{Err: fault.WithCode(fault.New(fault.Conflict,
			"this Idempotency-Key was sent before with another request: use a new one for a new request"), "idempotency")}
	}
	if t != nil && !t.Waiting() {
		return w.replay(t, op.Again) // whatever became of the pool since
	}
	p := w.pools[op.Pool]
	if p == nil {
		return Result{Err: NoPool(op.Pool)}
	}
	if p.Hooks.Any() && !op.RunsHooks {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Invalid,
			"pool %s has hooks that whoever takes a key must run: take it with qasight, or say that your client runs them", p.Name), "hooks")}
	}
	if _, err := p.ttl(op.TTL); err != nil {
		return Result{Err: err}
	}
	op.Target = p.aim(op.Target)
	if k, l := w.choose(*p, op, t); k != nil {
		return w.grant(k, *p, op, t, l)
	}
	if w.broken != nil {
		return Result{}
	}
	return w.wait(*p, op, t)
}

func (t Take) validate() error {
	for what, text := range map[string]string{"the target": t.Target, "the holder": t.Holder} {
		if err := validText(what, text); err != nil {
			return err
		}
	}
	if n := len(t.Where) + len(t.Match); n > maxAsked {
		return fault.WithCode(fault.Errorf(fault.Invalid, "%d constraints; at most %d are possible", n, maxAsked), "constraints")
	}
	for _, m := range t.Match {
		if err := m.validate(); err != nil {
			return err
		}
	}
	for name, value := range t.Where {
		if name == "" || validText("a constraint", name) != nil || validText("a constraint", value) != nil {
			return fault.WithCode(fault.Errorf(fault.Invalid, "the constraint %.80q is not possible: want a name and a text without control characters, each at most %d bytes", name, MaxText), "constraints")
		}
	}
	switch {
	case t.Quick && (t.Wait || t.Keep || t.TTL != 0 || t.Secret != Hash{}):
		return fault.New(fault.Permanent, "lease: a quick pick that waits, is replayed, or has a time or a secret")
	case t.Ticket == "" && !t.Quick:
		return fault.New(fault.Permanent, "lease: a take without a ticket")
	}
	return nil
}

// maxAsked bounds the attributes that a take asks for, maxValues the values of one
// condition.
const (
	maxAsked  = 16
	maxValues = 64
)

func (m Match) validate() error {
	bad := func(format string, args ...any) error {
		return fault.WithCode(fault.Errorf(fault.Invalid, "the condition on %.80q "+format, append([]any{m.Attribute}, args...)...), "constraints")
	}
	if m.Attribute == "" || validText("a condition", m.Attribute) != nil {
		return bad("is not possible: want a name without control characters of at most %d bytes", MaxText)
	}
	switch m.Op {
	case In, NotIn:
		if len(m.Values) == 0 || len(m.Values) > maxValues {
			return bad("has %d values, want 1 to %d", len(m.Values), maxValues)
		}
	case Exists, Absent:
		if len(m.Values) > 0 {
			return bad("has values, and asks for none")
		}
	default:
		return bad("compares by %.40q, want in, notin, exists or absent", m.Op)
	}
	for _, v := range m.Values {
		if validText("a condition", v) != nil {
			return bad("has a value that is not possible: want texts without control characters of at most %d bytes", MaxText)
		}
	}
	return nil
}

// request returns the ticket of a request that was made before, nil when it is
// a new one. What a sweep would forget is forgotten, swept or not: a place
// that ran out, and a grant that is too old to be replayed. So is a grant that
// never reached its client: nobody used it, and the client asks again.
func (w *work) request(op Take) *ticketRow {
	t := w.tickets[op.Ticket]
	if t == nil || t.dropped {
		return nil
	}
	if t.Waiting() {
		if w.begin.Now.After(t.PlaceUntil) {
			return nil
		}
		return t
	}
	if w.begin.Now.After(t.Kept) {
		return nil
	}
	if r := w.key(t.Granted.Key); r != nil && r.now.Lease != nil && r.now.Lease.Fence == t.Granted.Fence && r.now.Lease.End == Unclaimed {
		return nil
	}
	return t
}

// replay answers a request that was granted before.
func (w *work) replay(t *ticketRow, again bool) Result {
	row := w.key(t.Granted.Key)
	if row == nil || row.now.Lease == nil {
		return Result{Err: ended(t.Granted, Removed)}
	}
	k := row.now
	if k.Lease.Fence != t.Granted.Fence {
		return Result{Err: k.lost(t.Granted, w.begin.Now)}
	}
	if k.Lease.End != "" {
		return Result{Err: ended(t.Granted, k.Lease.End)}
	}
	if k.Lease.Unclaimed {
		k = k.clone()
		k.Lease.Unclaimed, k.Lease.Expires = false, w.begin.Now.Add(k.Lease.TTL)
		before := row.now
		w.set(row, k)
		if !w.flies(&before, &k) {
			return Result{}
		}
	}
	if !again {
		t.LiveUntil = w.begin.Now // see [Ticket.Claimed]
		w.touch(t)
	}
	return Result{Key: &k, Lease: k.Lease, Replayed: true}
}

// unclaim shortens a lease whose grant may not have arrived, unless it is clear
// by now that it did: another server may have answered the same request.
func (w *work) unclaim(op Unclaim) Result {
	row := w.key(op.ID.Key)
	if row == nil || row.now.Lease == nil || row.now.Lease.Fence != op.ID.Fence || row.now.Lease.End != "" {
		return Result{Err: noLease(op.ID)}
	}
	l := row.now.Lease
	claimed := !l.Unclaimed && !l.Expires.Equal(l.Taken.Add(l.TTL)) // renewed
	if !claimed {
		if w.load(Want{Tickets: []string{l.Ticket}}) != nil {
			return Result{}
		}
		t := w.tickets[l.Ticket]
		claimed = t != nil && !t.dropped && t.Granted == op.ID && t.Claimed()
	}
	if claimed && l.Secret.equal(op.Secret) {
		k := row.now
		return Result{Key: &k, Lease: k.Lease}
	}
	return w.onKey(op.ID.Key, op, noLease(op.ID))
}

// choose returns the key for the request, nil for none, and the line that it
// stands in, nil for none.
func (w *work) choose(p Pool, op Take, t *ticketRow) (*keyRow, *line) {
	w.stopped = false
	s := &search{aside: map[string]bool{}, cursors: map[string]*cursor{}}
	question := question(op.Target, op.Where, op.Match)
	if op.Quick {
		question += quickly
	}
	best := func() *keyRow {
		if p.turnwise(op.Target) && p.isNew(w.begin.Counter+1) {
			if r := w.findNew(p, op, s, s.cursor(question)); r != nil {
				return r
			}
		}
		return w.find(p, op, question, s, all)
	}
	mine := best()
	var at walk
	for mine != nil && w.broken == nil {
		other := w.waiter(p.Name, &at)
		if other == nil || t != nil && other.Seq >= t.Seq {
			break
		}
		if other.ID == op.Ticket || p.Hooks.Any() && !other.RunsHooks {
			continue
		}
		theirs := other.take()
		theirs.Target = p.aim(theirs.Target)
		r := w.find(p, theirs, other.question(), s, enough)
		if r == nil && w.broken == nil && w.wants(p, theirs, mine, s.cursors[other.question()]) {
			r = mine // it has none among those that were looked at, but this one
		}
		if r == nil {
			continue
		}
		s.aside[r.now.Name] = true
		if r == mine {
			mine = best()
		}
	}
	if w.broken != nil || mine == nil {
		return nil, nil
	}
	return mine, s.cursor(question).line
}

func (w *work) grant(row *keyRow, p Pool, op Take, t *ticketRow, l *line) Result {
	res := w.step(row, grant{op, p, w.next()}, Around{Pool: p})
	if res.Err != nil || w.broken != nil {
		return res
	}
	if l != nil {
		w.settle(p, op, l, row)
	}
	switch {
	case op.Keep:
		if t == nil {
			t = w.admit(op)
		}
		t.Granted, t.Kept = res.Key.ID(), w.begin.Now.Add(ReplayFor)
		t.LiveUntil = time.Time{}
		w.touch(t)
	case t != nil:
		t.dropped = true
		w.touch(t)
	}
	return res
}

// quick uses a key without holding it. It stands behind all who wait, and is never
// the same request as another.
func (w *work) quick(op Take) Result {
	p := w.pools[op.Pool]
	switch {
	case p == nil:
		return Result{Err: NoPool(op.Pool)}
	case p.Hooks.Any():
		return Result{Err: fault.WithCode(fault.Errorf(fault.Invalid, "pool %s has hooks that whoever takes a key must run: take a lease", p.Name), "hooks")}
	}
	op.Target = p.aim(op.Target)
	row, l := w.choose(*p, op, nil)
	if w.broken != nil {
		return Result{}
	}
	if row == nil {
		return w.wait(*p, op, nil)
	}
	u := &Use{ID: ID{row.now.Name, w.next()}, Rested: w.begin.Now}
	res := w.step(row, pick{op, *p}, Around{Pool: *p})
	if res.Err != nil || w.broken != nil {
		return res
	}
	res.Lease, res.Use = nil, u
	if op.Target == "" {
		u.Rested = later(u.Rested, row.now.CoolUntil)
		return res
	}
	id := restsOn(*p, &row.now, op.Target)
	if p.InFlight > 0 {
		u.Ends = w.begin.Now.Add(p.TTL)
		if !w.fly(id, InFlight{u.ID.Fence, u.Ends, ByAccount(op.Account)}) {
			return Result{}
		}
	}
	if c, ok := w.cooldown(id); ok {
		u.Rested = later(u.Rested, c.Until)
	}
	if l != nil {
		w.settle(*p, op, l, row)
	}
	return res
}

// wait tells a request that there is no key now, and queues it when asked to.
func (w *work) wait(p Pool, op Take, t *ticketRow) Result {
	if w.stopped && !op.Wait {
		return Result{Looking: true, Err: fault.WithCode(fault.Errorf(fault.Quota,
			"the many keys of pool %s are still looked through for %.80q: ask again in a moment", p.Name, op.Target), "busy")}
	}
	busy, ok := w.busy(p, op)
	if !ok {
		return Result{}
	}
	if at := w.begin.Now.Add(goOn); w.stopped && (busy.Due.IsZero() || at.Before(busy.Due)) {
		busy.Due = at
	}
	seq := int64(last)
	if t != nil {
		seq = t.Seq
	}
	if busy.Ahead, ok = w.ahead(p.Name, seq); !ok {
		return Result{}
	}
	if !op.Wait && p.Kind == Managed {
		if busy.Why, ok = w.why(p, op); !ok {
			return Result{}
		}
	}
	if !op.Wait {
		if t != nil && t.Live(w.begin.Now) {
			t.LiveUntil = w.begin.Now
			w.touch(t)
		}
		return Result{Busy: busy}
	}
	if t == nil {
		if busy.Ahead >= MaxQueue {
			return Result{Err: fault.WithCode(fault.Errorf(fault.Quota,
				"%d requests wait for pool %s already: come back later", busy.Ahead, p.Name), "queue_full")}
		}
		t = w.admit(op)
		t.Seq = w.next()
	}
	t.LiveUntil, t.PlaceUntil = w.begin.Now.Add(LiveFor), w.begin.Now.Add(PlaceFor)
	w.touch(t)
	w.join(t)
	busy.Position, busy.Seq = busy.Ahead+1, t.Seq
	return Result{Busy: busy}
}

// busy says when to come back.
func (w *work) busy(p Pool, op Take) (*Busy, bool) {
	id := NextWant{p.Name, op.Target}
	turns := p.turnwise(op.Target)
	if turns {
		id.Target = "" // the rests are known
	}
	if w.nexts[id] == nil && !w.loadNext(id) {
		return nil, false
	}
	found := w.nexts[id]
	b := &Busy{}
	soon := func(k Key) bool {
		at := k.FreeAt()
		return k.in(p.Name) && at.After(w.begin.Now) && at.Before(never)
	}
	due := func(at time.Time) {
		if at.After(w.begin.Now) && (b.Due.IsZero() || at.Before(b.Due)) {
			b.Due = at
		}
	}
	for i := range found.Keys {
		k := found.Keys[i]
		if r := w.keys[k.Name]; r != nil && r.touched {
			continue // below
		}
		b.Next = append(b.Next, k)
	}
	for _, r := range w.written { // what this transaction took comes free too
		if !r.dropped && soon(r.now) {
			b.Next = append(b.Next, r.now)
		}
	}
	slices.SortFunc(b.Next, func(a, b Key) int {
		return cmp.Or(a.FreeAt().Compare(b.FreeAt()), cmp.Compare(a.Name, b.Name))
	})
	b.Next = b.Next[:min(len(b.Next), MaxNext)]
	// To come back too early costs a look, too late costs the key: so for what is
	// only known in part the earliest time counts.
	var behind time.Time
	if n := len(found.Keys); n == MaxNext {
		behind = found.Keys[n-1].FreeAt() // the next one is not known
	}
	if turns {
		return b, w.dueInTurn(p, op, b.Next, behind, due)
	}
	if len(b.Next) > 0 {
		due(b.Next[0].FreeAt())
	}
	due(behind)
	due(found.Rested)
	for id := range w.rested {
		if id.Target == op.Target {
			due(w.cooldowns[id].Until)
		}
	}
	for _, name := range w.names(p, op.Target) {
		due(w.keys[name].now.barredUntil())
	}
	return b, true
}

// loadNext asks what comes free next, for all the takes of the transaction in
// the pool at once.
func (w *work) loadNext(first NextWant) bool {
	wants := []NextWant{first}
	for _, op := range w.takes {
		n := NextWant{op.Pool, op.Target}
		if p := w.pools[op.Pool]; p != nil && p.turnwise(op.Target) {
			n.Target = "" // see busy
		}
		if op.Pool == first.Pool && w.nexts[n] == nil && !slices.Contains(wants, n) && len(wants) < 64 {
			wants = append(wants, n)
		}
	}
	return w.load(Want{Next: wants}) == nil
}
