package lease

import (
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
)

// Effects are what an op on one key asks for besides its row.
type Effects struct {
	// Used and Banned are targets for which the key rests: after a use, and
	// because the target banned it; Turn is the one for which it had its turn. ""
	// for none.
	Used, Banned, Turn string
	// Lift ends cooldowns.
	Lift *Lift
	// Clear ends those of the name itself: they were another machine's.
	Clear bool
	// Drop removes the row.
	Drop bool
	// Capped: see [Result.Capped].
	Capped bool
	// Event is what happened; "" for nothing worth telling.
	Event string
}

// grant is a take once its key was chosen; the op of [Step] that makes a lease.
type grant struct {
	Take
	pool  Pool
	fence int64
}

func (grant) op() {}

// pick is a quick pick once its key was chosen.
type pick struct {
	Take
	pool Pool
}

func (pick) op() {}

// Around is what an op on one key must know of its surroundings.
type Around struct {
	// Pool is the one the op is about; the zero value when there is none any
	// more.
	Pool Pool
	// AutoDisabled of Members keys of the pool were disabled by a rule.
	AutoDisabled, Members int
}

// Step applies an op to one key at now and returns the key after it. The key
// given is not changed. An error means that nothing was done.
func Step(k Key, op Op, around Around, now time.Time) (Key, Effects, error) {
	k = k.Settle(now)
	k = k.clone()
	var e Effects
	var err error
	switch op := op.(type) {
	case grant:
		err = k.grant(op, now)
		e.Event = "taken"
		if op.pool.turnwise(op.Target) {
			e.Turn = op.Target
		}
	case pick:
		e, err = k.pick(op, now)
	case Renew:
		err = k.renew(op, around, now)
		if op.Reset != "" {
			e.Event = "reset " + string(op.Reset)
		}
	case Release:
		e, err = k.release(op, around, now)
	case Unclaim:
		err = k.unclaim(op, now)
	case Force:
		e, err = k.force(op, around, now)
	case Disable:
		k.Disabled = &Disabled{Reason: op.Reason, By: op.By, At: now}
		e.Event = "disabled"
	case Enable:
		k.Disabled, k.ResetFailures, k.Errors = nil, 0, 0
		e.Event = "enabled"
	case Report:
		e, err = k.report(op)
	case Lift:
		if op.Target == "" {
			k.CoolUntil = time.Time{}
		}
		e.Lift, e.Event = &op, "lifted"
	case PutKey:
		e = k.put(op, now)
	case DropKey:
		if op.UID != "" && op.UID != k.UID {
			return k, e, fault.WithCode(fault.Errorf(fault.Conflict, "key %s belongs to %s now", k.Name, k.UID), "uid")
		}
		if k.Held(now) {
			k.end(Removed, now, "")
		}
		k.list(nil, now)
		e.Event = "removed"
	case expire:
		// Settle did it.
	default:
		err = fault.Errorf(fault.Permanent, "lease: %T is no op on one key", op)
	}
	if err != nil {
		return k, Effects{}, err
	}
	if !k.Held(now) {
		k.Leaving = nil // nothing shows it there any more
	}
	_, gone := op.(DropKey)
	e.Drop = e.Drop || gone || k.stray(now)
	return k, e, nil
}

// expire writes down what Settle sees.
type expire struct{}

func (expire) op() {}

// Eligible reports whether the key may be handed out at now through the pool
// to a take. It does not know cooldowns for targets, which are rows of their
// own ([Cooldown]).
func (k *Key) Eligible(p Pool, t Take, now time.Time) bool {
	s := k.State(now)
	return k.in(p.Name) && (s == Free || s == NeedsReset && !t.Quick) && k.Matches(t.Where, t.Match...)
}

// pick uses a key without holding it. For a target the key's own row stays as it
// is, unless the pool goes by that: the use is written down with the target.
func (k *Key) pick(op pick, now time.Time) (Effects, error) {
	if !k.Eligible(op.pool, op.Take, now) {
		return Effects{}, fault.Errorf(fault.Permanent, "key %s is %s and was chosen all the same", k.Name, k.State(now))
	}
	var e Effects
	if op.pool.turnwise(op.Target) {
		e.Turn = op.Target
	} else {
		k.UsedAt = now
	}
	switch {
	case op.pool.Cooldown == 0:
	case op.Target != "":
		e.Used = op.Target
	default:
		k.CoolUntil = now.Add(op.pool.Cooldown)
	}
	return e, nil
}

func (k *Key) grant(g grant, now time.Time) error {
	if !k.Eligible(g.pool, g.Take, now) {
		return fault.Errorf(fault.Permanent, "key %s is %s and was chosen all the same", k.Name, k.State(now))
	}
	ttl, err := g.pool.ttl(g.TTL)
	if err != nil {
		return err
	}
	if l := k.Lease; l != nil {
		k.Past = append(k.Past, Past{l.Fence, l.End})
		k.Past = k.Past[max(0, len(k.Past)-maxPast):]
	}
	k.Lease = &Lease{
		Fence: g.fence, Pool: g.pool.Name, Target: g.Target, Account: g.Account, Holder: g.Holder,
		Secret: g.Secret, Ticket: g.Ticket, TTL: ttl, Hooks: g.pool.Hooks, Taken: now, Expires: now.Add(ttl),
		Resetting: k.NeedsReset && g.pool.Hooks.Reset,
	}
	k.UsedAt = now
	return nil
}

// holds finds out whether the proof is that of the running lease. Otherwise
// the error says what became of the lease it names.
func (k *Key) holds(p Proof, now time.Time) error {
	l := k.Lease
	switch {
	case l == nil || p.ID.Fence > l.Fence:
		return noLease(p.ID)
	case p.ID.Fence < l.Fence:
		return k.lost(p.ID, now)
	case l.Account != p.Account:
		return fault.WithCode(fault.Errorf(fault.Denied, "lease %s belongs to another account", p.ID), "not_owner")
	case !l.Secret.equal(p.Secret):
		return fault.WithCode(fault.Errorf(fault.Denied, "the secret is not that of lease %s: send the header Lease-Secret of its grant", p.ID), "secret")
	case l.End != "":
		return ended(p.ID, l.End)
	}
	return nil
}

func noLease(id ID) error {
	return fault.WithCode(fault.Errorf(fault.NotFound, "there is no lease %s", id), "lease")
}

// lost tells of a lease that ended before the row's own.
func (k *Key) lost(id ID, now time.Time) error {
	how := Expired // the usual end of what is so old that the row forgot it
	for _, p := range k.Past {
		if p.Fence == id.Fence {
			how = p.End
		}
	}
	if k.Held(now) && how != Released {
		return fault.WithCode(fault.Errorf(fault.Conflict, "lease %s has ended; the key was lost to lease %s", id, k.ID()), "lease_lost")
	}
	return ended(id, how)
}

// ended is the error for a lease that runs no more.
func ended(id ID, how End) error {
	text := map[End]string{
		Released:  "lease %s was released",
		Expired:   "lease %s has expired",
		Unclaimed: "lease %s ended because its grant was not fetched",
		Forced:    "lease %s was ended by an admin",
		Replaced:  "lease %s ended: its key's name belongs to another machine now",
		Removed:   "lease %s ended: its key was removed",
	}[how]
	return fault.WithCode(fault.Errorf(fault.Conflict, text, id), "lease_"+string(how))
}

func (k *Key) renew(op Renew, around Around, now time.Time) error {
	if err := k.holds(op.Proof, now); err != nil {
		return err
	}
	if op.Fence != 0 && op.Fence != k.Lease.Fence {
		return fault.WithCode(fault.Errorf(fault.Conflict, "lease %s has the fence %d, not %d", op.ID, k.Lease.Fence, op.Fence), "fence")
	}
	ttl := k.Lease.TTL
	if op.TTL != 0 {
		p := around.Pool
		if p.Name == "" { // the pool is gone; the lease goes on as it was taken
			p = Pool{Name: k.Lease.Pool, MaxTTL: max(ttl, MinTTL)}
		}
		var err error
		if ttl, err = p.ttl(op.TTL); err != nil {
			return err
		}
	}
	switch op.Reset {
	case "":
	case ResetBegin:
		k.Lease.Resetting = true
	case ResetDone:
		k.Lease.Resetting, k.NeedsReset, k.ResetFailures = false, false, 0
	default:
		return fault.WithCode(fault.Errorf(fault.Invalid, "reset is %.40q, want begin or done", op.Reset), "reset")
	}
	k.Lease.TTL, k.Lease.Unclaimed = ttl, false
	k.Lease.Expires = now.Add(ttl)
	return nil
}

func (k *Key) unclaim(op Unclaim, now time.Time) error {
	l := k.Lease
	if l == nil || l.Fence != op.ID.Fence || l.End != "" || !l.Secret.equal(op.Secret) {
		return noLease(op.ID)
	}
	if at := now.Add(UnclaimedFor); at.Before(l.Expires) {
		l.Expires = at
	}
	l.Unclaimed = true
	return nil
}

// maxResetFailures is how many failed resets in a row disable a key.
const maxResetFailures = 3

func (k *Key) release(op Release, around Around, now time.Time) (Effects, error) {
	if !slices.Contains([]Outcome{"", OK, Banned, Failed, Broken}, op.Outcome) {
		return Effects{}, fault.WithCode(fault.Errorf(fault.Invalid, "outcome is %.40q, want ok, banned, error or broken", op.Outcome), "outcome")
	}
	if !slices.Contains([]Reset{"", ResetDone, ResetFailed}, op.Reset) {
		return Effects{}, fault.WithCode(fault.Errorf(fault.Invalid, "reset is %.40q, want done or failed", op.Reset), "reset")
	}
	if err := k.holds(op.Proof, now); err != nil {
		if fault.CodeOf(err) == "lease_"+string(Released) {
			return Effects{}, nil // twice is harmless
		}
		return Effects{}, err
	}
	target := op.Target
	if target == "" {
		target = k.Lease.Target
	}
	if op.Outcome == Banned && target == "" {
		return Effects{}, fault.WithCode(fault.New(fault.Invalid, "outcome banned needs a target: which site was it?"), "target")
	}
	k.end(Released, now, op.Account)
	e := Effects{Event: "released"}
	switch op.Reset {
	case ResetDone:
		k.NeedsReset, k.ResetFailures = false, 0
	case ResetFailed:
		k.NeedsReset = true
		if k.ResetFailures++; k.ResetFailures >= maxResetFailures && k.Disabled == nil {
			k.Disabled = &Disabled{Reason: "three resets in a row failed: " + orNone(op.Reason), By: op.Account, At: now, Auto: true}
			e.Event = "disabled"
		}
	}
	if around.Pool.Cooldown > 0 {
		if k.Lease.Target != "" {
			e.Used = k.Lease.Target
		} else {
			k.CoolUntil = now.Add(around.Pool.Cooldown)
		}
	}
	switch op.Outcome {
	case Banned:
		e.Banned, e.Event = target, "banned"
	case Failed:
		k.Errors++
	case Broken:
		if cap := max(1, around.Members/3); around.AutoDisabled >= cap && k.Disabled == nil {
			e.Capped = true
		} else if k.Disabled == nil {
			k.Disabled = &Disabled{Reason: orNone(op.Reason), By: op.Account, At: now, Auto: true}
			e.Event = "disabled"
		}
	default:
		k.Errors = 0
	}
	return e, nil
}

func orNone(reason string) string {
	if reason == "" {
		return "(no reason given)"
	}
	return reason
}

func (k *Key) force(op Force, around Around, now time.Time) (Effects, error) {
	if !k.Held(now) {
		return Effects{}, fault.WithCode(fault.Errorf(fault.Conflict, "nobody holds key %s", k.Name), "not_held")
	}
	if op.Fence != 0 && op.Fence != k.Lease.Fence {
		return Effects{}, fault.WithCode(fault.Errorf(fault.Conflict, "key %s is held by lease %s by now", k.Name, k.ID()), "fence")
	}
	if op.Rest < 0 || op.Rest > MaxCooldown {
		return Effects{}, fault.Errorf(fault.Invalid, "a rest of %s is not possible: ask for 0 to %s", op.Rest, MaxCooldown)
	}
	k.end(Forced, now, op.By)
	if op.Rest > 0 {
		k.CoolUntil = later(k.CoolUntil, now.Add(op.Rest.Truncate(time.Microsecond)))
	}
	e := Effects{Event: "forced"}
	if p := around.Pool; p.Cooldown > 0 && p.turnwise(k.Lease.Target) {
		e.Used = k.Lease.Target // it was used until now
	}
	return e, nil
}

// remembers reports whether a lease is the key's last one, or one of those before it.
func (k *Key) remembers(fence int64) bool {
	return k.Lease != nil && k.Lease.Fence == fence || slices.ContainsFunc(k.Past, func(p Past) bool { return p.Fence == fence })
}

// report tells how a use went.
func (k *Key) report(op Report) (Effects, error) {
	switch {
	case op.UID != "" && op.UID != k.UID:
		return Effects{}, fault.WithCode(fault.Errorf(fault.Conflict, "key %s is another machine by now", k.Name), "uid")
	case op.Use == ID{}:
	case op.Use.Key != k.Name:
		return Effects{}, fault.WithCode(fault.Errorf(fault.Invalid, "%s was no use of key %s", op.Use, k.Name), "use")
	case op.Use.Fence <= k.Since:
		return Effects{}, fault.WithCode(fault.Errorf(fault.Conflict, "%s was a use of the machine before: key %s is another one by now", op.Use, k.Name), "uid")
	case k.Lease != nil && k.Lease.Fence == op.Use.Fence && k.Lease.Account != op.Account:
		return Effects{}, fault.WithCode(fault.Errorf(fault.Denied, "lease %s belongs to another account", op.Use), "not_owner")
	case op.Leased && !k.remembers(op.Use.Fence):
		return Effects{}, fault.WithCode(fault.Errorf(fault.NotFound,
			"there is no lease %s, or it ended long ago: report the key without it", op.Use), "lease")
	}
	switch op.Outcome {
	case OK:
		k.Errors = 0
		return Effects{}, nil
	case Failed:
		k.Errors++
		return Effects{}, nil
	case Banned:
		if op.Target == "" {
			return Effects{}, fault.WithCode(fault.New(fault.Invalid, "outcome banned needs a target: which site was it?"), "target")
		}
		return Effects{Banned: op.Target, Event: "banned"}, nil
	case "":
		if (op.Use != ID{}) {
			return Effects{}, nil
		}
	}
	return Effects{}, fault.WithCode(fault.Errorf(fault.Invalid, "outcome is %.40q, want ok, banned or error", op.Outcome), "outcome")
}

// put takes over what the controller knows. Another UID is another machine: it
// inherits nothing but the fence, which the database counts.
func (k *Key) put(op PutKey, now time.Time) Effects {
	before, e := *k, Effects{}
	if k.UID != op.UID {
		e.Clear = true // also of a name whose row went
		if k.UID != "" {
			e.Event = "replaced"
		}
		if k.Held(now) {
			k.end(Replaced, now, "")
		}
		*k = Key{Name: k.Name, Joined: k.Joined, Seat: k.Seat, Lease: k.Lease, Past: k.Past, Bars: k.Bars, Version: k.Version}
	}
	k.Managed, k.UID = true, op.UID
	k.list(slices.Compact(slices.Sorted(slices.Values(op.Pools))), now)
	k.Attributes, k.ExitIP, k.Unfit, k.Weight = op.Attributes, op.ExitIP, op.Unfit, op.Weight
	e.Drop = before.UID == "" && len(k.Pools) == 0 // there is nothing to keep of it yet
	if e.Event == "" && !k.same(&before) {
		e.Event = "changed"
	}
	return e
}
