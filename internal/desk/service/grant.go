package service

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// TakeRequest asks for a key of a pool.
type TakeRequest struct {
	// Account is the name of the authenticated account.
	Account string
	Pool    string
	// Holder and Target are what people read and what cooldowns are about; each
	// at most [lease.MaxText] bytes.
	Holder, Target string
	// Where are attributes that the key must have, at most 16, and Match what else
	// they must be like.
	Where map[string]string
	Match []lease.Match
	// TTL is the lease's time; 0 for the pool's own.
	TTL time.Duration
	// Wait is how long to wait for a key; 0 never blocks.
	Wait time.Duration
	// IdempotencyKey makes requests of the account that carry the same one the
	// same request; "" for none. 1 to 255 printable ASCII characters.
	IdempotencyKey string
	// RunsHooks says that the client runs the pool's hooks.
	RunsHooks bool
}

// Grant is a lease with what its holder alone may know.
type Grant struct {
	Lease
	Secret Secret
	// Replayed is set when the request was granted before.
	Replayed bool
	// Waited is how long the request waited at least, before the time from which
	// Left counts.
	Waited time.Duration
}

// Lease is a lease as seen at one moment.
type Lease struct {
	// ID is public: the key's name, "~" and the fence.
	ID, Pool, Key, UID, Target, Account, Holder string
	Fence                                       int64
	// State is [lease.Held] or [lease.Resetting] while it runs, else "".
	State lease.State
	// TTL is the time it was taken or renewed for, Left what is left of it.
	TTL, Left time.Duration
	// NeedsReset says that the key must be reset before it is used.
	NeedsReset bool
	// Attributes are the key's; not to be changed.
	Attributes map[string]string
	// Notice is why the key would not be handed out again now, such as
	// "disabled: worn out"; "" when it would be.
	Notice string
	// End is how it ended; "" while it runs. Of a lease before the key's last
	// one nothing else is known than ID, Key, Fence and End.
	End lease.End
}

// Proof is who wants to change a lease, in texts.
type Proof struct {
	// ID is the lease's public id.
	ID string
	// Secret is its secret.
	Secret Secret
	// Account must be the one that took it.
	Account string
}

// RenewRequest extends a lease.
type RenewRequest struct {
	Proof
	// TTL is the time from now; 0 for that it was taken for.
	TTL time.Duration
	// Fence, when not 0, must be the lease's.
	Fence int64
	// Reset is "", [lease.ResetBegin] or [lease.ResetDone].
	Reset lease.Reset
}

// ReleaseRequest gives a key back.
type ReleaseRequest struct {
	Proof
	// Outcome is how the use went; "" for [lease.OK].
	Outcome lease.Outcome
	Reason  string
	// Target is what Outcome is about; "" for the lease's own.
	Target string
	// Reset is "", [lease.ResetDone] or [lease.ResetFailed].
	Reset lease.Reset
}

// Released is a lease that was given back.
type Released struct {
	ID, Key string
	// Disabled is set when the key is out of use now.
	Disabled bool
	// Capped is set when outcome broken did not disable the key because too
	// many of the pool are disabled already.
	Capped bool
}

// view is a lease for whoever may see it. k is the key at now; l is its lease.
func view(k *lease.Key, now time.Time) Lease {
	s := k.Settle(now)
	l := s.Lease
	v := Lease{
		ID: s.ID().String(), Pool: l.Pool, Key: s.Name, UID: s.UID, Target: l.Target, Account: l.Account, Holder: l.Holder,
		Fence: l.Fence, TTL: l.TTL, NeedsReset: s.NeedsReset, Attributes: s.Attributes, Notice: notice(&s, now), End: l.End,
	}
	if l.End == "" {
		v.State, v.Left = s.State(now), l.Expires.Sub(now)
	}
	return v
}

// notice is why a key would not be handed out if nobody held it.
func notice(k *lease.Key, now time.Time) string {
	if len(k.Pools) > 0 && k.Disabled == nil && k.Unfit == "" && len(k.Bars) == 0 {
		return ""
	}
	free := *k
	free.Lease = nil
	switch free.State(now) {
	case lease.Gone:
		return "removed: no pool lists this key any more"
	case lease.DisabledSt:
		return "disabled: " + k.Disabled.Reason
	case lease.Unhealthy:
		return "unhealthy: " + k.Unfit
	case lease.Barred:
		for _, b := range k.Bars {
			if b.Action != "" || now.Before(b.Until) {
				return "barred: " + b.By + " changes it"
			}
		}
	}
	return ""
}

// NoneFree is the error of a take that got nothing: class Quota, code
// "none_free".
type NoneFree struct {
	// Pool and Target are what was asked for.
	Pool, Target string
	// Why counts the pool's keys by what keeps them from the request; empty after
	// a wait. A count of [lease.MaxWhy] may be more.
	Why []lease.Why
	// Holders hold the keys that come free next, the soonest first; at most
	// [lease.MaxNext].
	Holders []Holder
	// RetryAfter is when the next key is due; 0 when no time frees one.
	RetryAfter time.Duration
	// Position is the place that is kept for [lease.PlaceFor] when the same
	// Idempotency-Key comes again; 0 for none.
	Position int
	// Waited is how long the request waited.
	Waited time.Duration
	// Quick is set for a pick, which never waits.
	Quick bool
}

// Holder is who has a key, or why nobody does.
type Holder struct {
	Key string
	// Account and Holder are "" for a key that only rests.
	Account, Holder string
	State           lease.State
	// Left is the time until the key comes free, unless it is kept longer.
	Left time.Duration
}

// Error says who holds what, when the next key is due, and what to do.
func (e *NoneFree) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no key of pool %s is free", e.Pool)
	if e.Target != "" {
		fmt.Fprintf(&b, " for %.80s", e.Target)
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, " after waiting %s", e.Waited.Round(time.Second))
	}
	b.WriteString(e.why())
	for i, h := range e.Holders {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep)
		if h.Account == "" {
			fmt.Fprintf(&b, "%s is %s for %s", h.Key, h.State, up(h.Left))
			continue
		}
		fmt.Fprintf(&b, "%s is %s by %s", h.Key, h.State, h.Account)
		if h.Holder != "" {
			fmt.Fprintf(&b, " (%s)", h.Holder)
		}
		fmt.Fprintf(&b, " for at most %s", up(h.Left))
	}
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, ". The next key is due in %s: come back then", up(e.RetryAfter))
		if !e.Quick {
			b.WriteString(", or wait longer")
		}
	} else {
		b.WriteString(". No time frees one: look at the pool's keys; they may be disabled, unhealthy or lack what was asked for")
	}
	if e.Position > 0 {
		fmt.Fprintf(&b, ". The place %d is kept for %s when the request comes again with the same Idempotency-Key", e.Position, lease.PlaceFor)
	}
	return b.String()
}

// why says how many keys are kept from the request by what, and lists nothing
// when the holders say it all.
func (e *NoneFree) why() string {
	var parts []string
	told := 0
	for _, w := range e.Why {
		if w.Count <= 0 {
			continue
		}
		n := strconv.Itoa(w.Count)
		if w.Count >= lease.MaxWhy {
			n += " or more"
		}
		parts = append(parts, n+" "+words(w.Cause))
		told += w.Count
	}
	if len(parts) == 0 || told == len(e.Holders) {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// words say what a cause keeps a key from.
func words(cause string) string {
	switch cause {
	case lease.WhyBanned:
		return "banned by the target"
	case lease.WhyResting:
		return "resting for the target"
	case lease.WhyInUse:
		return "in use for the target as often as the pool allows"
	case lease.WhyPromised:
		return "set aside for others who wait"
	case lease.WhyOther:
		return "without what was asked for"
	}
	return cause
}

// up rounds up to whole seconds: nobody should come too early.
func up(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// Unwrap gives the class and the code.
func (e *NoneFree) Unwrap() error {
	return fault.WithCode(fault.New(fault.Quota, "none free"), "none_free")
}

func noneFree(pool, target string, b *lease.Busy, now time.Time) *NoneFree {
	e := &NoneFree{Pool: pool, Target: target, Why: b.Why, Position: b.Position}
	if !b.Due.IsZero() {
		e.RetryAfter = b.Due.Sub(now)
	}
	for i := range b.Next {
		k := &b.Next[i]
		h := Holder{Key: k.Name, State: k.State(now), Left: k.FreeAt().Sub(now)}
		if k.Held(now) {
			h.Account, h.Holder = k.Lease.Account, k.Lease.Holder
		}
		e.Holders = append(e.Holders, h)
	}
	return e
}
