package lease

import (
	"context"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
)

// Apply runs ops one after another inside a transaction and hands what changed
// to tx.Save. An op that is refused has its error in its result; Apply's own
// error is the transaction's, and then nothing may be kept.
//
// It costs a few round trips to the database however many ops there are, and
// time O(ops + rows that they concern); only takes that meet waiters look at
// the waiters before them.
func Apply(ctx context.Context, tx Tx, begin Begin, ops []Op) ([]Result, error) {
	w := newWork(ctx, tx, begin)
	if err := w.prefetch(ops); err != nil {
		return nil, err
	}
	results := make([]Result, len(ops))
	for i, op := range ops {
		results[i] = w.do(op)
		if w.broken != nil {
			return nil, w.broken
		}
		results[i].Now = w.begin.Now
	}
	return results, w.save()
}

// prefetch loads in one go what the ops name.
func (w *work) prefetch(ops []Op) error {
	var want Want
	takes := map[CandidateWant]int{}
	for _, op := range ops {
		switch op := op.(type) {
		case Take:
			want.Pools = append(want.Pools, op.Pool)
			want.Tickets = append(want.Tickets, op.Ticket)
			takes[CandidateWant{Pool: op.Pool, Target: op.Target}]++
		case Live:
			want.Tickets = append(want.Tickets, op.Tickets...)
		case Leave:
			want.Tickets = append(want.Tickets, op.Ticket)
		case Unclaim:
			want.Keys = append(want.Keys, op.ID.Key)
		case Renew:
			want.Keys = append(want.Keys, op.ID.Key)
		case Release:
			want.Keys = append(want.Keys, op.ID.Key)
		case Report:
			want.Keys = append(want.Keys, op.Key)
			want.Pools = append(want.Pools, op.Pool)
		case Lift:
			want.Keys = append(want.Keys, op.Key)
		case Disable:
			want.Keys = append(want.Keys, op.Key)
		case Enable:
			want.Keys = append(want.Keys, op.Key)
		case Force:
			want.Keys = append(want.Keys, op.Key)
		case PutKey:
			want.Keys = append(want.Keys, op.Key)
		case DropKey:
			want.Keys = append(want.Keys, op.Key)
		case Publish:
			want.Pools = append(want.Pools, op.Pool.Name)
		case PutPool:
			want.Pools = append(want.Pools, op.Pool.Name)
		case DropPool:
			want.Pools = append(want.Pools, op.Name)
		case BeginChange:
			want.Pools = append(want.Pools, op.Pool)
			want.Changes = append(want.Changes, op.Pool)
			want.Keys = append(want.Keys, op.Keys...)
		case RenewChange:
			want.Changes = append(want.Changes, op.Pool)
		case EndChange:
			want.Changes = append(want.Changes, op.Pool)
		case Sweep:
			want.Due = max(want.Due, op.Limit)
		case Revive:
			want.Lost = true
		}
	}
	for c, n := range takes {
		c.Limit = n + spare
		want.Candidates = append(want.Candidates, c)
		want.Queues = append(want.Queues, QueueWant{c.Pool, firstQueue})
	}
	return w.load(want)
}

const (
	// spare is how many candidates are loaded beyond the number of takes: some
	// are barred or lack an attribute.
	spare = 8
	// firstQueue is how many waiters are looked at first; it grows as needed.
	firstQueue = 64
)

func (w *work) do(op Op) Result {
	switch op := op.(type) {
	case Take:
		return w.take(op)
	case Live:
		return w.live(op)
	case Leave:
		return w.leave(op)
	case Revive:
		return w.revive()
	case Unclaim:
		return w.onKey(op.ID.Key, op, noLease(op.ID))
	case Renew:
		return w.onKey(op.ID.Key, op, noLease(op.ID))
	case Release:
		return w.release(op)
	case Report:
		if err := validText("the target", op.Target); err != nil {
			return Result{Err: err}
		}
		if w.pools[op.Pool] == nil {
			return Result{Err: NoPool(op.Pool)}
		}
		return w.onKey(op.Key, op, NoKey(op.Key))
	case Lift:
		return w.onKey(op.Key, op, NoKey(op.Key))
	case Disable:
		if err := validText("the reason", op.Reason); err != nil {
			return Result{Err: err}
		}
		return w.onKey(op.Key, op, NoKey(op.Key))
	case Enable:
		return w.onKey(op.Key, op, NoKey(op.Key))
	case Force:
		return w.onKey(op.Key, op, NoKey(op.Key))
	case Publish:
		return w.publish(op)
	case OpenEpoch:
		w.begin.Epoch++
		w.dirty = true
		return Result{Epoch: w.begin.Epoch}
	case PutPool:
		return w.putPool(op)
	case DropPool:
		return w.dropPool(op)
	case PutKey:
		return w.putKey(op)
	case DropKey:
		return w.dropKey(op)
	case BeginChange:
		return w.beginChange(op)
	case RenewChange:
		return w.renewChange(op)
	case EndChange:
		return w.endChange(op)
	case Sweep:
		return w.sweep(op)
	}
	return Result{Err: fault.Errorf(fault.Permanent, "lease: there is no op %T", op)}
}

// NoPool and NoKey are the errors for what does not exist.
func NoPool(name string) error {
	return fault.WithCode(fault.Errorf(fault.NotFound, "there is no pool %.80q", name), "pool")
}

// NoKey is the error for a key that does not exist.
func NoKey(name string) error {
	return fault.WithCode(fault.Errorf(fault.NotFound, "there is no key %.80q", name), "key")
}

// onKey runs an op on one key; missing is the error when there is none.
func (w *work) onKey(name string, op Op, missing error) Result {
	row := w.keys[name]
	if row == nil {
		return Result{Err: missing}
	}
	around := Around{}
	if pool := poolOf(op, &row.now); pool != "" && w.pools[pool] != nil {
		around.Pool = *w.pools[pool]
	}
	return w.step(row, op, around)
}

// poolOf is the pool whose rules an op on a key is about.
func poolOf(op Op, k *Key) string {
	if r, ok := op.(Report); ok {
		return r.Pool
	}
	if k.Lease != nil {
		return k.Lease.Pool
	}
	return ""
}

func (w *work) release(op Release) Result {
	for what, text := range map[string]string{"the target": op.Target, "the reason": op.Reason} {
		if err := validText(what, text); err != nil {
			return Result{Err: err}
		}
	}
	row := w.keys[op.ID.Key]
	if row == nil {
		return Result{Err: noLease(op.ID)}
	}
	around := Around{}
	if row.now.Lease == nil || w.pools[row.now.Lease.Pool] == nil {
		return w.step(row, op, around)
	}
	around.Pool = *w.pools[row.now.Lease.Pool]
	if op.Outcome != Broken {
		return w.step(row, op, around)
	}
	m, ok := w.members(around.Pool.Name)
	if !ok {
		return Result{}
	}
	around.Members, around.AutoDisabled = len(m.Names), m.AutoDisabled
	before := row.now.Disabled
	res := w.step(row, op, around)
	if before == nil && res.Err == nil && row.now.Disabled != nil {
		m.AutoDisabled++ // the cap holds within a transaction too
	}
	return res
}

// step runs the rule on a row and takes its effects over.
func (w *work) step(row *keyRow, op Op, around Around) Result {
	before := row.now
	after, e, err := Step(before, op, around, w.begin.Now)
	if err != nil {
		return Result{Err: err, Key: &before, Lease: before.Lease}
	}
	row.set(after)
	if e.Drop {
		row.dropped = true
	}
	// Lift first: what a successor must not inherit is gone before it rests.
	if e.Lift != nil {
		w.lift(&before, e.Lift.Target)
	}
	if e.Ban != nil {
		w.rest(around.Pool, &after, *e.Ban)
	}
	if e.Event != "" {
		w.event(e.Event, &after, op)
	}
	w.mayFree(&before, &after)
	return Result{Key: &after, Lease: after.Lease, Capped: e.Capped}
}

// mayFree notes the pools in which a waiter may find the key now.
func (w *work) mayFree(before, after *Key) {
	if after.FreeAt().After(w.begin.Now) || before.Equal(after) {
		return
	}
	for _, p := range after.Pools {
		w.freed[p] = true
		if !slices.Contains(w.loose[p], after.Name) {
			w.loose[p] = append(w.loose[p], after.Name)
		}
	}
}

// lift drops cooldowns of a key and of the address it leaves by.
func (w *work) lift(k *Key, target string) {
	for _, id := range restsBy(k, target) {
		w.lifted = append(w.lifted, id)
		for c := range w.cooldowns {
			if c.Scope == id.Scope && c.ID == id.ID && (target == "" || c.Target == target) {
				w.cooldowns[c] = nil
				delete(w.rested, c)
			}
		}
	}
	for _, p := range k.Pools {
		w.freed[p] = true
	}
}

// rest writes a cooldown.
func (w *work) rest(p Pool, k *Key, b banned) {
	id := restsOn(p, k, b.target)
	c, ok := w.cooldown(id)
	if !ok {
		return
	}
	if b.use {
		c = c.used(p.Cooldown, w.begin.Now)
	} else {
		c = c.banned(p.Ban, w.begin.Now)
		c = c.used(p.Cooldown, w.begin.Now)
	}
	w.cooldowns[id], w.rested[id] = &c, true
}

// resting reports whether the key rests for the target by what this
// transaction wrote; what was written before is not among the candidates.
func (w *work) resting(k *Key, target string) bool {
	if target == "" {
		return false
	}
	for _, id := range restsBy(k, target) {
		if c := w.cooldowns[id]; c != nil && w.begin.Now.Before(c.Until) {
			return true
		}
	}
	return false
}

func (w *work) event(kind string, k *Key, op Op) {
	e := Event{Kind: kind, Key: k.Name}
	if l := k.Lease; l != nil {
		e.Lease, e.Pool = k.ID().String(), l.Pool
	}
	switch op := op.(type) {
	case grant:
		e.Account = op.Account
	case Release:
		e.Account = op.Account
	case Renew:
		e.Account = op.Account
	case Disable:
		e.Account = op.By
	case Enable:
		e.Account = op.By
	case Force:
		e.Account = op.By
	case Report:
		e.Pool = op.Pool
	}
	if e.Pool == "" && len(k.Pools) > 0 {
		e.Pool = k.Pools[0]
	}
	w.tell(e)
}

func (w *work) tell(e Event) {
	e.Seq, e.At = w.next(), w.begin.Now
	w.events = append(w.events, e)
}

func (w *work) sweep(op Sweep) Result {
	for i := range w.due {
		row := w.keys[w.due[i]]
		if l := row.now.Lease; row.dropped || l == nil || l.End != "" || w.begin.Now.Before(l.Expires) {
			continue // an op before this one saw to it
		}
		w.step(row, expire{}, Around{})
	}
	w.forget = max(op.Limit, 1)
	return Result{More: len(w.due) >= op.Limit, Next: w.nextDue}
}

// seconds makes a duration readable in an error.
func seconds(d time.Duration) time.Duration { return d.Round(time.Second) }
