package lease

import (
	"cmp"
	"slices"

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
	t := w.tickets[op.Ticket]
	if t != nil && t.dropped {
		t = nil
	}
	if t != nil && (t.Digest != op.Digest || t.Account != op.Account) {
		return Result{Err: fault.WithCode(fault.New(fault.Conflict,
			"this Idempotency-Key was sent before with another request: use a new one for a new request"), "idempotency")}
	}
	if t != nil && !t.Waiting() {
		return w.replay(t, op)
	}
	if t != nil && w.begin.Now.After(t.PlaceUntil) {
		t.Seq = w.next() // it was away for too long: behind those who stayed
		t.touched = true
		w.requeue(t)
	}
	if k := w.choose(*p, op, t); k != nil {
		return w.grant(k, *p, op, t)
	}
	if w.broken != nil {
		return Result{}
	}
	return w.wait(*p, op, t)
}

// requeue takes a ticket out of the loaded queue: its place is another one now.
func (w *work) requeue(t *ticketRow) {
	q := w.queues[t.Pool]
	is := func(o *ticketRow) bool { return o == t }
	q.tickets, q.mine = slices.DeleteFunc(q.tickets, is), slices.DeleteFunc(q.mine, is)
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

// replay answers a request that was granted before.
func (w *work) replay(t *ticketRow, op Take) Result {
	row := w.keys[t.Granted.Key]
	if row == nil || row.now.Lease == nil {
		return Result{Err: ended(t.Granted, Removed)}
	}
	k := row.now.Settle(w.begin.Now)
	if k.Lease.Fence != t.Granted.Fence {
		return Result{Err: k.lost(t.Granted, w.begin.Now)}
	}
	if k.Lease.End != "" {
		return Result{Err: ended(t.Granted, k.Lease.End)}
	}
	if k.Lease.Unclaimed {
		k = k.clone()
		k.Lease.Unclaimed, k.Lease.Expires = false, w.begin.Now.Add(k.Lease.TTL)
		row.set(k)
	}
	return Result{Key: &k, Lease: k.Lease, Replayed: true}
}

// choose returns the key for the request, nil for none.
func (w *work) choose(p Pool, op Take, t *ticketRow) *keyRow {
	aside := map[string]bool{}
	mine := w.find(p, op, aside)
	if mine == nil {
		return nil
	}
	q := w.queues[p.Name]
	for i := 0; ; i++ {
		if i == len(q.tickets) {
			if !q.more {
				return mine
			}
			if w.load(Want{Queues: []QueueWant{{p.Name, q.limit * 4}}}) != nil {
				return nil
			}
			if i >= len(q.tickets) {
				return mine
			}
		}
		other := q.tickets[i]
		if t != nil && other.Seq >= t.Seq {
			return mine
		}
		if other.dropped || other.ID == op.Ticket || !other.Live(w.begin.Now) {
			continue
		}
		r := w.find(p, other.take(), aside)
		if w.broken != nil {
			return nil
		}
		if r == nil {
			continue
		}
		aside[r.now.Name] = true
		if r == mine {
			if mine = w.find(p, op, aside); mine == nil {
				return nil
			}
		}
	}
}

// find returns the first candidate that the take can use and that is not set
// aside, nil for none.
func (w *work) find(p Pool, op Take, aside map[string]bool) *keyRow {
	id := CandidateWant{Pool: p.Name, Target: op.Target}
	usable := func(name string) *keyRow {
		r := w.keys[name]
		if r == nil || r.dropped || aside[name] || !r.now.Eligible(p, op, w.begin.Now) || w.resting(&r.now, op.Target) {
			return nil
		}
		return r
	}
	for {
		s := w.streams[id]
		if s == nil {
			if w.load(Want{Candidates: []CandidateWant{{p.Name, op.Target, spare}}}) != nil {
				return nil
			}
			s = w.streams[id]
		}
		// What this transaction gave away is skipped for good.
		for s.at < len(s.names) {
			if r := w.keys[s.names[s.at]]; r != nil && !r.dropped && !r.now.Held(w.begin.Now) {
				break
			}
			s.at++
		}
		for _, name := range s.names[s.at:] {
			if r := usable(name); r != nil {
				return r
			}
		}
		if !s.more {
			break
		}
		if w.load(Want{Candidates: []CandidateWant{{p.Name, op.Target, max(s.limit, spare) * 4}}}) != nil {
			return nil
		}
	}
	// What became free in this transaction was used last, and comes last.
	var best *keyRow
	for _, name := range w.loose[p.Name] {
		if r := usable(name); r != nil && (best == nil || Less(&r.now, &best.now)) && !w.restsInStore(r, op.Target) {
			best = r
		}
	}
	return best
}

// restsInStore asks for the cooldowns of a key that did not come as a candidate
// for the target.
func (w *work) restsInStore(r *keyRow, target string) bool {
	if target == "" {
		return false
	}
	for _, id := range restsBy(&r.now, target) {
		c, ok := w.cooldown(id)
		if !ok || w.begin.Now.Before(c.Until) {
			return true
		}
	}
	return false
}

func (w *work) grant(row *keyRow, p Pool, op Take, t *ticketRow) Result {
	res := w.step(row, grant{op, p, w.next()}, Around{Pool: p})
	if res.Err != nil {
		return res
	}
	switch {
	case op.Keep:
		if t == nil {
			t = &ticketRow{Ticket: op.ticket()}
			t.Since = w.begin.Now
			w.tickets[op.Ticket] = t
		}
		t.Granted, t.Kept, t.touched = res.Key.ID(), w.begin.Now.Add(ReplayFor), true
	case t != nil:
		t.dropped = true
	}
	return res
}

func (t Take) ticket() Ticket {
	return Ticket{
		ID: t.Ticket, Digest: t.Digest, Pool: t.Pool, Target: t.Target, Account: t.Account, Holder: t.Holder,
		Where: t.Where, RunsHooks: t.RunsHooks,
	}
}

// wait tells a request that there is no key now, and queues it when asked to.
func (w *work) wait(p Pool, op Take, t *ticketRow) Result {
	busy, ok := w.busy(p, op)
	if !ok {
		return Result{}
	}
	seq := w.begin.Counter + 1
	if t != nil {
		seq = t.Seq
	}
	ahead, ok := w.ahead(p.Name, seq)
	if !ok {
		return Result{}
	}
	busy.Ahead = ahead
	if !op.Wait {
		if t != nil && t.Live(w.begin.Now) {
			t.LiveUntil, t.touched = w.begin.Now, true
		}
		return Result{Busy: busy}
	}
	if t == nil {
		if ahead >= MaxQueue {
			return Result{Err: fault.WithCode(fault.Errorf(fault.Quota,
				"%d requests wait for pool %s already: come back later", ahead, p.Name), "queue_full")}
		}
		t = &ticketRow{Ticket: op.ticket()}
		t.Seq, t.Since = w.next(), w.begin.Now
		w.tickets[op.Ticket] = t
	}
	t.LiveUntil, t.PlaceUntil = w.begin.Now.Add(LiveFor), w.begin.Now.Add(PlaceFor)
	t.touched = true
	w.queues[p.Name].join(t)
	busy.Position = ahead + 1
	return Result{Busy: busy}
}

// busy says when to come back.
func (w *work) busy(p Pool, op Take) (*Busy, bool) {
	id := NextWant{p.Name, op.Target}
	if w.next_[id] == nil {
		if w.load(Want{Next: []NextWant{id}}) != nil {
			return nil, false
		}
	}
	found := w.next_[id]
	b := &Busy{}
	for i := range found.Keys {
		k := found.Keys[i]
		if r := w.keys[k.Name]; r != nil { // as this transaction leaves it
			k = r.now
		}
		if at := k.FreeAt(); at.After(w.begin.Now) && at.Before(never) {
			b.Next = append(b.Next, k)
		}
	}
	// What this transaction took comes free too.
	for _, r := range w.keys {
		if r == nil || !r.touched || r.dropped || !r.now.in(p.Name) {
			continue
		}
		at := r.now.FreeAt()
		if at.After(w.begin.Now) && at.Before(never) && !slices.ContainsFunc(b.Next, func(k Key) bool { return k.Name == r.now.Name }) {
			b.Next = append(b.Next, r.now)
		}
	}
	slices.SortFunc(b.Next, func(a, b Key) int {
		if c := a.FreeAt().Compare(b.FreeAt()); c != 0 {
			return c
		}
		return cmp.Compare(a.Name, b.Name)
	})
	b.Next = b.Next[:min(len(b.Next), MaxNext)]
	if len(b.Next) > 0 {
		b.Due = b.Next[0].FreeAt()
	}
	if op.Target != "" && found.Rested.After(w.begin.Now) && (b.Due.IsZero() || found.Rested.Before(b.Due)) {
		b.Due = found.Rested
	}
	return b, true
}

// ahead counts the live waiters of a pool before a place.
func (w *work) ahead(pool string, seq int64) (int, bool) {
	n := 0
	q := w.queues[pool]
	if q != nil && !q.more {
		for _, t := range q.tickets {
			if t.Seq < seq && !t.dropped && t.Live(w.begin.Now) {
				n++
			}
		}
		return n, true
	}
	f, err := w.tx.Load(w.ctx, Want{Ahead: []AheadWant{{pool, seq}}})
	if err != nil {
		w.broken = err
		return 0, false
	}
	n = f.Ahead[0]
	for _, t := range w.tickets { // what this transaction queued
		if t != nil && t.touched && t.Pool == pool && t.Since.Equal(w.begin.Now) && t.Seq < seq && t.Live(w.begin.Now) {
			n++
		}
	}
	return n, true
}

func (w *work) live(op Live) Result {
	for _, id := range op.Tickets {
		if t := w.tickets[id]; t != nil && !t.dropped && t.Waiting() {
			t.LiveUntil, t.PlaceUntil = w.begin.Now.Add(LiveFor), w.begin.Now.Add(PlaceFor)
			t.touched = true
		}
	}
	return Result{}
}

func (w *work) leave(op Leave) Result {
	t := w.tickets[op.Ticket]
	if t == nil || t.dropped || !t.Waiting() {
		return Result{}
	}
	if op.Forget {
		t.dropped = true
	} else {
		t.LiveUntil, t.PlaceUntil, t.touched = w.begin.Now, w.begin.Now.Add(PlaceFor), true
	}
	// Whoever stands behind it may have what was set aside for it.
	w.freed[t.Pool] = true
	return Result{}
}

func (w *work) revive() Result {
	for i := range w.lost {
		t := w.ticket(w.lost[i])
		if t.dropped || !t.Waiting() || t.PlaceUntil.After(w.begin.Now) || t.PlaceUntil.Before(w.lastPlace.Add(-PlaceFor)) {
			continue
		}
		t.PlaceUntil, t.touched = w.begin.Now.Add(PlaceFor), true
	}
	return Result{}
}
