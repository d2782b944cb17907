package lease

import (
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
)

// leaves is until when the end of a lease by its time keeps the key from the lease's
// target, as a release would, and the pool that says so; nothing when it does not.
// Nobody used what was never fetched.
func (w *work) leaves(l *Lease) (p Pool, until time.Time) {
	if l.End != Expired || l.Target == "" {
		return p, until
	}
	if !has(w.pools, l.Pool) && w.load(Want{Pools: []string{l.Pool}}) != nil {
		return p, until
	}
	if known := w.pools[l.Pool]; known != nil && known.Cooldown > 0 && known.turnwise(l.Target) {
		return *known, l.EndedAt.Add(known.Cooldown)
	}
	return p, until
}

// owed is that rest of the key itself while nobody wrote it down: with the next
// write of the row it is. Others that leave by its address rest from then on.
func (w *work) owed(k *Key, target string) (until time.Time) {
	if r := w.keys[k.Name]; r != nil && r.untold && r.now.Lease.Target == target {
		_, until = w.leaves(r.now.Lease)
	}
	return until
}

// willOwe is how long the lease that runs keeps the key from the target when its time
// ends it.
func (w *work) willOwe(k *Key, target string) time.Time {
	if !k.Held(w.begin.Now) || k.Lease.Target != target || k.Lease.Unclaimed {
		return time.Time{}
	}
	l := *k.Lease
	l.End, l.EndedAt = Expired, l.Expires
	_, until := w.leaves(&l)
	return until
}

// foreseeOver asks for what the ends of leases by their time write.
func (w *work) foreseeOver(names []string) bool {
	var want Want
	for _, n := range names {
		if r := w.key(n); r != nil && r.untold && r.now.Lease.Target != "" && !has(w.pools, r.now.Lease.Pool) {
			want.Pools = append(want.Pools, r.now.Lease.Pool)
		}
	}
	if len(want.Pools) > 0 && w.load(want) != nil {
		return false
	}
	var ids []CooldownID
	for _, n := range names {
		if r := w.key(n); r != nil && r.untold {
			if p, until := w.leaves(r.now.Lease); until.After(w.begin.Now) {
				ids = append(ids, restsOn(p, &r.now, r.now.Lease.Target))
			}
		}
	}
	return w.know(ids)
}

// allOver writes down the ends of leases of all that leave by an address: what is
// lifted must not come again.
func (w *work) allOver(exitIP string) bool {
	if exitIP == "" {
		return true
	}
	rows, ok := w.concerned(CooldownID{Scope: ScopeExitIP, ID: exitIP})
	for _, r := range rows {
		if r.untold {
			w.step(r, expire{}, Around{})
		}
	}
	return ok && w.broken == nil
}

// lift drops cooldowns; a target of "" means all of the id.
func (w *work) lift(ids []CooldownID) {
	for _, id := range ids {
		w.lifted = append(w.lifted, id)
		for c := range w.cooldowns {
			if c.Scope == id.Scope && c.ID == id.ID && (id.Target == "" || c.Target == id.Target) {
				w.cooldowns[c] = nil
				delete(w.rested, c)
			}
		}
	}
}

// rest writes the cooldowns that a use or a ban brings.
func (w *work) rest(p Pool, k *Key, e Effects) bool {
	now := w.begin.Now
	if e.Turn != "" {
		w.turned = true
		id := CooldownID{ScopeKey, k.Name, e.Turn}
		if !w.know(restsBy(k, e.Turn)) {
			return false
		}
		at, _ := w.turn(p, k, e.Turn)
		if !w.remember(id, func(c Cooldown) Cooldown { return c.turned(k.after(at.own, now), now) }) {
			return false
		}
		if of := restsOn(p, k, e.Turn); of != id && !w.remember(of, func(c Cooldown) Cooldown { return c.turned(now, now) }) {
			return false
		}
	}
	if e.Used != "" && !w.remember(restsOn(p, k, e.Used), func(c Cooldown) Cooldown { return c.used(p, now) }) {
		return false
	}
	return e.Banned == "" || w.remember(restsOn(p, k, e.Banned), func(c Cooldown) Cooldown { return c.banned(p.Ban, now) })
}

// remember changes a cooldown. One that says nothing is not kept.
func (w *work) remember(id CooldownID, change func(Cooldown) Cooldown) bool {
	c, ok := w.cooldown(id)
	if !ok {
		return false
	}
	c = change(c)
	if c.Forget.IsZero() {
		return true // the pool knows no bans
	}
	w.cooldowns[id], w.rested[id] = &c, true
	return true
}

// flies keeps the uses in flight in step with a key's lease: one with a target
// counts while it runs, where its pool counts uses.
func (w *work) flies(before, after *Key) bool {
	now := w.begin.Now
	flying := func(k *Key) (id CooldownID, l *Lease) {
		if !k.Held(now) || k.Lease.Target == "" {
			return id, nil
		}
		p := w.pools[k.Lease.Pool]
		if p == nil || p.InFlight == 0 {
			return id, nil
		}
		return restsOn(*p, k, k.Lease.Target), k.Lease
	}
	was, ended := flying(before)
	is, runs := flying(after)
	same := ended != nil && runs != nil && was == is && ended.Fence == runs.Fence
	if ended != nil && !same && !w.fly(was, InFlight{Fence: ended.Fence, Ends: now}) {
		return false
	}
	return runs == nil || same && ended.Expires.Equal(runs.Expires) || w.fly(is, InFlight{runs.Fence, runs.Expires, ByAccount(runs.Account)})
}

// fly makes a use count until its end, or not any more when that is now.
func (w *work) fly(id CooldownID, of InFlight) bool {
	now := w.begin.Now
	before, ok := w.cooldown(id)
	if !ok {
		return false
	}
	had := slices.ContainsFunc(before.Uses, func(u InFlight) bool { return u.Fence == of.Fence && u.Ends.After(now) })
	if !had && !of.Ends.After(now) {
		return true // nothing is known of it any more
	}
	if !w.remember(id, func(c Cooldown) Cooldown { return c.flying(of, now) }) {
		return false
	}
	after := *w.cooldowns[id]
	return !had || w.earlier(id, &before, &after)
}

// report tells how a use went; that of a quick pick is over with it.
func (w *work) report(op Report) Result {
	if err := validText("the target", op.Target); err != nil {
		return Result{Err: err}
	}
	p := w.pools[op.Pool]
	if p == nil {
		return Result{Err: NoPool(op.Pool)}
	}
	if r := w.key(op.Key); r != nil && !r.now.hasBeenIn(op.Pool) {
		// Whoever could name any pool would choose how long others' keys rest.
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "key %s is not in pool %.80q: report it through a pool that has it", op.Key, op.Pool), "not_listed")}
	}
	if op.Use.Fence > w.begin.Counter {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Invalid, "%s was no use of a key yet: send what came with it", op.Use), "use")}
	}
	op.Target = p.aim(op.Target)
	if r := w.key(op.Key); r != nil && op.Use.Fence != 0 && op.Target != "" {
		c, ok := w.cooldown(restsOn(*p, &r.now, op.Target))
		if !ok {
			return Result{}
		}
		if slices.ContainsFunc(c.Uses, func(u InFlight) bool { return u.Fence == op.Use.Fence && u.By != ByAccount(op.Account) }) {
			return Result{Err: fault.WithCode(fault.Errorf(fault.Denied, "use %s belongs to another account", op.Use), "not_owner")}
		}
	}
	res := w.onKey(op.Key, op, NoKey(op.Key))
	if res.Err != nil || op.Target == "" || w.broken != nil || !w.know(restsBy(res.Key, op.Target)) {
		return res
	}
	for _, id := range restsBy(res.Key, op.Target) {
		if c := w.cooldowns[id]; c != nil && c.Until.After(w.begin.Now) && (res.Rest == nil || c.Until.After(res.Rest.Until)) {
			rest := *c
			res.Rest = &rest
		}
	}
	runs := res.Key.Held(w.begin.Now) && res.Key.Lease.Fence == op.Use.Fence
	if op.Use.Fence != 0 && !runs {
		w.fly(restsOn(*p, res.Key, op.Target), InFlight{Fence: op.Use.Fence, Ends: w.begin.Now})
	}
	return res
}
