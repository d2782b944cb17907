package lease

import (
	"slices"
	"time"
)

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
	if ended != nil && !same && !w.fly(was, ended.Fence, now) {
		return false
	}
	return runs == nil || same && ended.Expires.Equal(runs.Expires) || w.fly(is, runs.Fence, runs.Expires)
}

// fly makes a use count until `ends`, or not any more when that is now.
func (w *work) fly(id CooldownID, fence int64, ends time.Time) bool {
	now := w.begin.Now
	before, ok := w.cooldown(id)
	if !ok {
		return false
	}
	had := slices.ContainsFunc(before.Uses, func(u InFlight) bool { return u.Fence == fence && u.Ends.After(now) })
	if !had && !ends.After(now) {
		return true // nothing is known of it any more
	}
	if !w.remember(id, func(c Cooldown) Cooldown { return c.flying(fence, ends, now) }) {
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
	op.Target = p.aim(op.Target)
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
		w.fly(restsOn(*p, res.Key, op.Target), op.Use.Fence, w.begin.Now)
	}
	return res
}
