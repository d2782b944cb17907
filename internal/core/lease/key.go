package lease

import (
	"maps"
	"slices"
	"time"
)

// Key is one row: a member of pools, with the lease that it has or had last.
type Key struct {
	Name string
	// Pools list it, in order of their names; none means that it left every
	// list and goes as soon as nobody holds it.
	Pools []string
	// Leaving are pools whose list dropped the key while somebody held it: they
	// show it until the lease ends.
	Leaving []string
	// Managed rows are written by a controller under an epoch.
	Managed bool
	// UID is the identity of what carries the name now; "" in fixed pools.
	UID string
	// Attributes are what takers may ask for and are told: neutral texts, never
	// a secret.
	Attributes map[string]string
	// ExitIP is the address that targets see; "" when unknown.
	ExitIP string
	// Unfit says why its controller does not let it be handed out; "" when it
	// may be.
	Unfit string
	// Weight is how often it is to be used beside others, in percent; 0 is 100.
	Weight int
	// Joined is when it came into line, Seat its number there: it was listed, or
	// is another machine, or something that kept it away was lifted.
	Joined time.Time
	Seat   int64
	// Since is the last number that had been given out when its UID came: uses up
	// to it were another machine's.
	Since int64
	// Disabled is set while somebody took it out of use.
	Disabled *Disabled
	// Bars are what keeps it from being leased while a person changes it. They
	// are kept apart from the row and may exist before it.
	Bars []Bar

	// Lease is the one it has, or the last one it had (see [Lease.End]).
	Lease *Lease
	// Past are a few leases before that, the newest last.
	Past []Past

	// NeedsReset is set after a lease that ended without its reset.
	NeedsReset bool
	// ResetFailures counts failed resets in a row.
	ResetFailures int
	// Errors counts uses in a row that ended with an error.
	Errors int
	// CoolUntil is the end of its rest for all targets.
	CoolUntil time.Time
	// UsedAt is the last time it was taken or given back.
	UsedAt time.Time

	// Version counts the writes of the row; the store's own.
	Version int64
}

// Disabled says who took a key out of use and why.
type Disabled struct {
	Reason, By string
	At         time.Time
	// Auto is set when a rule did it: a failed check, or three failed resets.
	Auto bool
}

// Bar is one reason why a key must not be leased.
type Bar struct {
	// Change is the id of the person's change; "" for an unfinished action
	// outside of one.
	Change string
	By     string
	// Until is when the change ends unless it is kept alive.
	Until time.Time
	// Action is the id of an action on the key that was started and neither
	// finished nor resolved; it bars beyond the change's end.
	Action string
}

func (b Bar) inForce(now time.Time) bool { return b.Action != "" || now.Before(b.Until) }

// Lease is the right of one holder to one key until a time.
type Lease struct {
	Fence           int64
	Pool, Target    string
	Account, Holder string
	Secret          Hash
	// Ticket is the request that got it.
	Ticket string
	TTL    time.Duration
	// Taken and Expires are times of the database's clock.
	Taken, Expires time.Time
	// Hooks are the pool's at the time of the take.
	Hooks Hooks
	// Resetting is set while the holder runs the reset.
	Resetting bool
	// Unclaimed is set when the client vanished before its grant reached it.
	Unclaimed bool
	// End is how it ended; "" while it runs.
	End     End
	EndedAt time.Time
	EndedBy string
}

// End is how a lease ended.
type End string

// The ends.
const (
	Released  End = "released"  // by its holder
	Expired   End = "expired"   // by its time
	Forced    End = "forced"    // by an admin
	Replaced  End = "replaced"  // the name went to another thing
	Removed   End = "removed"   // the key is gone
	Unclaimed End = "unclaimed" // its grant never reached a client
)

// Past is a lease that ended before the last one.
type Past struct {
	Fence int64
	End   End
}

// maxPast is how many ends a row remembers, so that a release that is sent
// twice is known again although others had the key meanwhile.
const maxPast = 8

// State is what a key looks like from outside.
type State string

// The states.
const (
	Free       State = "free"
	Held       State = "held"
	Resetting  State = "resetting"
	NeedsReset State = "needs-reset"
	Cooling    State = "cooling"
	DisabledSt State = "disabled"
	Barred     State = "barred"
	Unhealthy  State = "unhealthy"
	Gone       State = "removed"
)

// Held reports whether somebody holds it at now.
func (k *Key) Held(now time.Time) bool {
	return k.Lease != nil && k.Lease.End == "" && now.Before(k.Lease.Expires)
}

// ID is the lease's public id on its key.
func (k *Key) ID() ID { return ID{k.Name, k.Lease.Fence} }

// State returns the key's state at now. A held key is Held or Resetting
// whatever else is true of it.
func (k *Key) State(now time.Time) State {
	switch s := k.Settle(now); {
	case s.Held(now) && s.Lease.Resetting:
		return Resetting
	case s.Held(now):
		return Held
	case len(s.Pools) == 0:
		return Gone
	case s.Disabled != nil:
		return DisabledSt
	case s.barred(now):
		return Barred
	case s.Unfit != "":
		return Unhealthy
	case now.Before(s.CoolUntil):
		return Cooling
	case s.NeedsReset:
		return NeedsReset
	}
	return Free
}

func (k *Key) barred(now time.Time) bool {
	return slices.ContainsFunc(k.Bars, func(b Bar) bool { return b.inForce(now) })
}

// barredUntil is when time alone ends the last bar; zero when it does not.
func (k *Key) barredUntil() time.Time {
	var end time.Time
	for _, b := range k.Bars {
		if b.Action != "" {
			return time.Time{}
		}
		end = later(end, b.Until)
	}
	return end
}

// Settle returns the key as it is at now: a lease whose time is over has ended.
// The receiver is not changed.
func (k *Key) Settle(now time.Time) Key {
	if k.Lease == nil || k.Lease.End != "" || now.Before(k.Lease.Expires) {
		return *k
	}
	s := k.clone()
	end := Expired
	if s.Lease.Unclaimed {
		end = Unclaimed
	}
	s.end(end, s.Lease.Expires, "")
	return s
}

// end closes the running lease. What was not reset needs it, unless nobody
// ever used the key.
func (k *Key) end(how End, at time.Time, by string) {
	k.Lease.End, k.Lease.EndedAt, k.Lease.EndedBy = how, at, by
	if k.Lease.Hooks.Reset && how != Unclaimed {
		k.NeedsReset = true
	}
	k.Lease.Resetting = false
	if at.After(k.UsedAt) {
		k.UsedAt = at
	}
}

// clone copies what an op may change. Attributes and pools are replaced whole,
// never changed in place.
func (k *Key) clone() Key {
	c := *k
	if k.Lease != nil {
		l := *k.Lease
		c.Lease = &l
	}
	if k.Disabled != nil {
		d := *k.Disabled
		c.Disabled = &d
	}
	c.Past = slices.Clone(k.Past)
	c.Bars = slices.Clone(k.Bars)
	return c
}

// never is the time of what time alone does not free.
var never = time.Unix(1<<40, 0).UTC()

// Never is what [Key.FreeAt] returns for a key that time alone does not free.
func Never() time.Time { return never }

// FreeAt is the time from which the key may be a candidate for a take as far as
// its own row tells: the zero time when that is now, [Never] when only a writer
// can make it one. Stores index it. Bars are not in it: they are few.
func (k *Key) FreeAt() time.Time {
	if len(k.Pools) == 0 || k.Disabled != nil || k.Unfit != "" {
		return never
	}
	at := k.CoolUntil
	if k.Lease != nil && k.Lease.End == "" {
		if k.Lease.Expires.After(at) {
			at = k.Lease.Expires
		}
	}
	return at
}

// Rank orders free keys: the least comes first. It is the time of the last use,
// later for a key whose uses end with errors, so that it is tried less often
// and never forgotten.
func (k *Key) Rank() time.Time {
	if k.Errors == 0 {
		return k.UsedAt
	}
	return k.UsedAt.Add(time.Minute << min(k.Errors-1, 6))
}

// Less orders candidates: by rank, then by name.
func Less(a, b *Key) bool {
	if c := a.Rank().Compare(b.Rank()); c != 0 {
		return c < 0
	}
	return a.Name < b.Name
}

// Matches reports whether the key has every attribute asked for, and is like the
// matches.
func (k *Key) Matches(where map[string]string, match ...Match) bool {
	for name, want := range where {
		if got, ok := k.Attributes[name]; !ok || got != want {
			return false
		}
	}
	return !slices.ContainsFunc(match, func(m Match) bool { return !m.holds(k.Attributes) })
}

// holds reports whether the condition is true of attributes.
func (m Match) holds(attributes map[string]string) bool {
	got, ok := attributes[m.Attribute]
	switch m.Op {
	case In:
		return ok && slices.Contains(m.Values, got)
	case NotIn:
		return !ok || !slices.Contains(m.Values, got)
	case Exists:
		return ok
	case Absent:
		return !ok
	}
	return false
}

// stray reports whether nothing keeps the row any more: no list has the key
// and nobody holds it. A machine in no pool stays itself: what it rests for holds
// when a pool has it again, so its row goes with it.
func (k *Key) stray(now time.Time) bool { return len(k.Pools) == 0 && !k.Managed && !k.Held(now) }

// list makes pools, which are sorted, the ones that list the key. Those that
// drop it while somebody holds it go on showing it.
func (k *Key) list(pools []string, now time.Time) {
	var leaving []string
	if k.Held(now) {
		for _, p := range slices.Concat(k.Leaving, k.Pools) {
			if !slices.Contains(pools, p) {
				leaving = append(leaving, p)
			}
		}
		slices.Sort(leaving)
	}
	k.Pools, k.Leaving = pools, leaving
}

// hasBeenIn reports whether the key can have been used through the pool: it is in
// it, is leaving it, or had its last lease from it.
func (k *Key) hasBeenIn(pool string) bool {
	return k.in(pool) || slices.Contains(k.Leaving, pool) || k.Lease != nil && k.Lease.Pool == pool
}

// in reports whether the pool lists the key.
func (k *Key) in(pool string) bool { return slices.Contains(k.Pools, pool) }

// Glance is what of a key a walk along a line looks at: all that says whether it can
// be had for a target, and when, but nothing that a change of it would need. A line
// that asks for no attributes does not see any.
func (k *Key) Glance(ask string) Key {
	g := Key{
		Name: k.Name, Pools: k.Pools, ExitIP: k.ExitIP, Joined: k.Joined, Seat: k.Seat, CoolUntil: k.CoolUntil, NeedsReset: k.NeedsReset, Bars: k.Bars,
	}
	if ask != "" {
		g.Attributes = k.Attributes
	}
	if k.Disabled != nil || k.Unfit != "" {
		g.Unfit = "out of use"
	}
	if k.Lease != nil && k.Lease.End == "" {
		g.Lease = &Lease{Expires: k.Lease.Expires, Unclaimed: k.Lease.Unclaimed, Hooks: Hooks{Reset: k.Lease.Hooks.Reset}}
	}
	return g
}

// same reports whether two rows are the same but for their version.
func (k *Key) same(o *Key) bool {
	return k.Name == o.Name && slices.Equal(k.Pools, o.Pools) && slices.Equal(k.Leaving, o.Leaving) && k.Managed == o.Managed &&
		k.UID == o.UID && maps.Equal(k.Attributes, o.Attributes) && k.ExitIP == o.ExitIP && k.Unfit == o.Unfit && k.Weight == o.Weight &&
		k.Joined.Equal(o.Joined) && k.Seat == o.Seat && k.Since == o.Since &&
		equal(k.Disabled, o.Disabled) && slices.Equal(k.Bars, o.Bars) && equal(k.Lease, o.Lease) && slices.Equal(k.Past, o.Past) &&
		k.NeedsReset == o.NeedsReset && k.ResetFailures == o.ResetFailures && k.Errors == o.Errors &&
		k.CoolUntil.Equal(o.CoolUntil) && k.UsedAt.Equal(o.UsedAt)
}

// equal compares what may be missing.
func equal[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }
