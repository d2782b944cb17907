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
	if k := w.choose(*p, op, t); k != nil {
		return w.grant(k, *p, op, t)
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
	if len(t.Where) > 16 {
		return fault.WithCode(fault.Errorf(fault.Invalid, "%d constraints; at most 16 are possible", len(t.Where)), "constraints")
	}
	for name, value := range t.Where {
		if name == "" || validText("a constraint", name) != nil || validText("a constraint", value) != nil {
			return fault.WithCode(fault.Errorf(fault.Invalid, "the constraint %.80q is not possible: want a name and a text without control characters, each at most %d bytes", name, MaxText), "constraints")
		}
	}
	if t.Ticket == "" {
		return fault.New(fault.Permanent, "lease: a take without a ticket")
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
		w.set(row, k)
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

// choose returns the key for the request, nil for none.
func (w *work) choose(p Pool, op Take, t *ticketRow) *keyRow {
	s := &search{aside: map[string]bool{}, cursors: map[string]*cursor{}}
	question := question(op.Target, op.Where)
	mine := w.find(p, op, question, s, all)
	var at walk
	for mine != nil && w.broken == nil {
		other := w.waiter(p.Name, &at)
		if other == nil || t != nil && other.Seq >= t.Seq {
			break
		}
		if other.ID == op.Ticket || p.Hooks.Any() && !other.RunsHooks {
			continue
		}
		r := w.find(p, other.take(), other.question(), s, enough)
		if r == nil && w.broken == nil && w.wants(p, other.take(), mine) {
			r = mine // it has none among those that were looked at, but this one
		}
		if r == nil {
			continue
		}
		s.aside[r.now.Name] = true
		if r == mine {
			mine = w.find(p, op, question, s, all)
		}
	}
	if w.broken != nil {
		return nil
	}
	return mine
}

func (w *work) grant(row *keyRow, p Pool, op Take, t *ticketRow) Result {
	res := w.step(row, grant{op, p, w.next()}, Around{Pool: p})
	if res.Err != nil {
		return res
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

// wait tells a request that there is no key now, and queues it when asked to.
func (w *work) wait(p Pool, op Take, t *ticketRow) Result {
	busy, ok := w.busy(p, op)
	if !ok {
		return Result{}
	}
	seq := int64(last)
	if t != nil {
		seq = t.Seq
	}
	if busy.Ahead, ok = w.ahead(p.Name, seq); !ok {
		return Result{}
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
	if len(b.Next) > 0 {
		due(b.Next[0].FreeAt())
	}
	// To come back too early costs a look, too late costs the key: so for what is
	// only known in part the earliest time counts.
	if n := len(found.Keys); n == MaxNext {
		due(found.Keys[n-1].FreeAt()) // the next one is not known
	}
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
		if n := (NextWant{op.Pool, op.Target}); op.Pool == first.Pool && w.nexts[n] == nil && !slices.Contains(wants, n) && len(wants) < 64 {
			wants = append(wants, n)
		}
	}
	return w.load(Want{Next: wants}) == nil
}
