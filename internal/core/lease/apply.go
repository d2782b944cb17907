package lease

import (
	"context"
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
	w.ops = len(ops)
	if err := w.prefetch(ops); err != nil {
		return nil, err
	}
	results := make([]Result, len(ops))
	for i, op := range ops {
		if t, ok := op.(Take); ok && t.IfDone && i > 0 && results[i-1].Err != nil {
			results[i] = Result{Err: results[i-1].Err}
		} else {
			results[i] = w.do(op)
		}
		if w.broken != nil {
			return nil, w.broken
		}
		results[i].Now = w.begin.Now
	}
	return results, w.save()
}

func (w *work) do(op Op) Result {
	switch op := op.(type) {
	case Take:
		w.taken++
		return w.take(op)
	case Live:
		return w.live(op)
	case Leave:
		return w.leave(op)
	case Revive:
		return w.revive()
	case Unclaim:
		return w.unclaim(op)
	case Renew:
		return w.onKey(op.ID.Key, op, noLease(op.ID))
	case Release:
		return w.release(op)
	case Report:
		return w.report(op)
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
	row := w.key(name)
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
	row := w.key(op.ID.Key)
	if row == nil {
		return Result{Err: noLease(op.ID)}
	}
	around := Around{}
	if row.now.Lease == nil || w.pools[row.now.Lease.Pool] == nil {
		return w.step(row, op, around)
	}
	around.Pool = *w.pools[row.now.Lease.Pool]
	op.Target = around.Pool.aim(op.Target)
	if op.Outcome != Broken {
		return w.step(row, op, around)
	}
	names, disabled, ok := w.members(around.Pool.Name)
	if !ok {
		return Result{}
	}
	around.Members, around.AutoDisabled = len(names), disabled
	return w.step(row, op, around)
}

// step runs the rule on a row and takes its effects over.
func (w *work) step(row *keyRow, op Op, around Around) Result {
	before := row.now
	after, e, err := Step(before, op, around, w.begin.Now)
	if err != nil {
		return Result{Err: err, Key: &before, Lease: before.Lease}
	}
	w.over(row)
	if before.UID != after.UID {
		after.Since = w.begin.Counter
	}
	if e.Lift != nil && after.Managed && after.ExitIP == "" && len(after.Pools) > 0 || reseats(&before, &after) {
		w.seat(&after)
	}
	w.set(row, after)
	row.dropped = e.Drop
	if e.Lift != nil && !w.allOver(before.ExitIP) {
		return Result{}
	}
	// Rests go first: what a successor must not inherit is gone before it rests.
	if e.Clear {
		w.lift([]CooldownID{{ScopeKey, after.Name, ""}})
	}
	if e.Lift != nil {
		w.lift(restsBy(&before, e.Lift.Target))
		w.mayFind(before.Pools)
	}
	if e.Lift != nil && !w.reseat(before.ExitIP) || !w.rest(around.Pool, &after, e) || !w.flies(&before, &after) {
		return Result{}
	}
	after = row.now
	if e.Event != "" && !(e.Drop && before.stray(w.begin.Now)) && !(e.Drop && before.UID == "" && row.fresh) { // from nothing to nothing
		w.event(e.Event, &before, &after, op)
	}
	w.mayFree(&before, &after)
	return Result{Key: &after, Lease: after.Lease, Capped: e.Capped}
}

// over tells of a lease that its time ended, once.
func (w *work) over(row *keyRow) {
	if !row.untold {
		return
	}
	row.untold = false
	l := row.now.Lease
	w.tell(Event{Kind: string(l.End), Key: row.now.Name, Lease: row.now.ID().String(), Pool: l.Pool})
	if p, until := w.leaves(l); until.After(w.begin.Now) {
		w.remember(restsOn(p, &row.now, l.Target), func(c Cooldown) Cooldown { return c.used(p, l.EndedAt) })
	}
	w.mayFree(&row.was, &row.now)
}

// mayFree notes the pools in which a waiter may find the key now, or earlier
// than it was told.
func (w *work) mayFree(before, after *Key) {
	if before.same(after) {
		return
	}
	if at := after.FreeAt(); at.After(w.begin.Now) {
		if at.Before(before.FreeAt()) {
			w.mayFind(after.Pools)
		}
		return
	}
	for _, p := range after.Pools {
		if w.loose[p] == nil {
			w.loose[p] = map[string]*keyRow{}
		}
		w.loose[p][after.Name] = w.keys[after.Name]
	}
	w.frees++
}

// mayFind notes that something changed in these pools for whoever waits.
func (w *work) mayFind(pools []string) {
	for _, p := range pools {
		w.freed[p] = true
	}
	w.frees++
}

// event tells what an op on a key did.
func (w *work) event(kind string, before, after *Key, op Op) {
	e := Event{Kind: kind, Key: after.Name}
	if _, renewed := op.(Renew); renewed || before.Held(w.begin.Now) != after.Held(w.begin.Now) { // it is about a lease
		e.Lease, e.Pool = after.ID().String(), after.Lease.Pool
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
	for _, pools := range [][]string{after.Pools, before.Pools} {
		if e.Pool == "" && len(pools) > 0 {
			e.Pool = pools[0]
		}
	}
	w.tell(e)
}

func (w *work) tell(e Event) {
	e.Seq, e.At = w.next(), w.begin.Now
	w.events = append(w.events, e)
}

func (w *work) sweep(op Sweep) Result {
	limit := max(op.Limit, 1)
	if !w.foreseeOver(w.due) {
		return Result{}
	}
	done := 0
	for _, name := range w.due {
		row := w.key(name)
		if row == nil || !row.untold {
			continue // an op before this one saw to it
		}
		if done == limit {
			return Result{More: true, Next: w.begin.Now}
		}
		w.step(row, expire{}, Around{})
		done++
	}
	w.forget = max(w.forget, limit)
	res := Result{More: len(w.due) >= limit || w.old, Next: w.nextDue}
	for _, r := range w.written { // what runs since, or otherwise, than the store knows
		if !r.dropped && r.now.Held(w.begin.Now) && (res.Next.IsZero() || r.now.Lease.Expires.Before(res.Next)) {
			res.Next = r.now.Lease.Expires
		}
	}
	return res
}

// seconds makes a duration readable in an error.
func seconds(d time.Duration) time.Duration { return d.Round(time.Second) }
