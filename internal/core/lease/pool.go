package lease

import (
	"math"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/target"
)

// Kind is where a pool's keys come from.
type Kind string

// The kinds.
const (
	// Fixed pools list their keys; a person publishes the list.
	Fixed Kind = "fixed"
	// Managed pools are views on keys that a controller writes.
	Managed Kind = "managed"
)

// Scope is what rests after a use or a ban.
type Scope string

// The scopes.
const (
	// ScopeKey rests the key alone.
	ScopeKey Scope = "key"
	// ScopeExitIP rests every key that leaves by the same address: to a target
	// they are one.
	ScopeExitIP Scope = "exitIP"
)

// Bounds of a lease's time.
const (
	MinTTL = 5 * time.Second
	MaxTTL = 24 * time.Hour
	// DefaultTTL is that of a pool which names none.
	DefaultTTL = 10 * time.Minute
	// MaxCooldown bounds any rest.
	MaxCooldown = 30 * 24 * time.Hour
	// MaxInFlight bounds [Pool.InFlight].
	MaxInFlight = 1000
)

// Ban says how long a key rests for a target that banned it.
type Ban struct {
	// Initial is the rest after the first ban; 0 switches bans off.
	Initial time.Duration
	// Factor multiplies it for each further ban; at least 1.
	Factor float64
	// Max bounds it.
	Max time.Duration
}

// DefaultBan returns the ban rest of a pool which names none.
func DefaultBan() Ban { return Ban{Initial: 10 * time.Minute, Factor: 2, Max: 24 * time.Hour} }

// Rest returns the rest after ban number n in a row (the first is 1).
func (b Ban) Rest(n int) time.Duration {
	if n < 1 || b.Initial <= 0 {
		return 0
	}
	d := float64(b.Initial) * math.Pow(max(b.Factor, 1), float64(n-1))
	if d >= float64(b.Max) { // also for an overflow to infinity
		return b.Max
	}
	return time.Duration(d).Truncate(time.Microsecond)
}

// Hooks says which of the owner's commands a pool has. The database never
// holds their text; whoever takes a key runs them.
type Hooks struct {
	Check, Reset bool
}

// Any reports whether there is one.
func (h Hooks) Any() bool { return h.Check || h.Reset }

// Pool is a named set of interchangeable keys and how they are handed out.
type Pool struct {
	Name  string
	Kind  Kind
	Hooks Hooks
	// TTL is a lease's time when the taker names none, MaxTTL the longest.
	TTL, MaxTTL time.Duration
	// Cooldown is the rest after each use: for the lease's target, or of the
	// whole key when the lease had none.
	Cooldown time.Duration
	Ban      Ban
	Scope    Scope
	// InFlight is how many uses of a key (or exit IP, by Scope) for one target
	// may be under way at once; 0 for any number.
	InFlight int
	// NewShare is how many of a hundred picks for a target go first to keys that
	// joined the pool since the target was first asked for and were never used
	// for it.
	NewShare int
	// Sites makes rests and order count by registrable domain instead of by host.
	Sites bool
	// Revision counts the published lists of a fixed pool; By and At tell of
	// the last one.
	Revision int64
	By       string
	At       time.Time
}

// WithDefaults fills what is zero and cuts times to microseconds.
func (p Pool) WithDefaults() Pool {
	if p.MaxTTL == 0 {
		p.MaxTTL = max(p.TTL, MaxTTL)
	}
	if p.TTL == 0 {
		p.TTL = min(DefaultTTL, p.MaxTTL)
	}
	if p.Ban == (Ban{}) {
		p.Ban = DefaultBan()
	}
	if p.Scope == "" {
		p.Scope = ScopeKey
	}
	for _, d := range []*time.Duration{&p.TTL, &p.MaxTTL, &p.Cooldown, &p.Ban.Initial, &p.Ban.Max} {
		*d = d.Truncate(time.Microsecond) // what stores keep
	}
	return p
}

// Validate refuses what no pool may be, naming the field.
func (p Pool) Validate() error {
	bad := func(format string, args ...any) error {
		return fault.WithCode(fault.Errorf(fault.Invalid, "pool %.80q: "+format, append([]any{p.Name}, args...)...), "pool")
	}
	if err := ValidName(p.Name); err != nil {
		return fault.WithCode(fault.Errorf(fault.Invalid, "pool: %w", err), "pool")
	}
	switch {
	case p.Kind != Fixed && p.Kind != Managed:
		return bad("kind is %q, want fixed or managed", p.Kind)
	case p.Scope != ScopeKey && p.Scope != ScopeExitIP:
		return bad("scope is %q, want key or exitIP", p.Scope)
	case p.MaxTTL < MinTTL || p.MaxTTL > MaxTTL:
		return bad("the longest lease is %s, want %s to %s", p.MaxTTL, MinTTL, MaxTTL)
	case p.TTL < MinTTL || p.TTL > p.MaxTTL:
		return bad("the lease time is %s, want %s to the pool's longest, %s", p.TTL, MinTTL, p.MaxTTL)
	case p.Cooldown < 0 || p.Cooldown > MaxCooldown:
		return bad("the cooldown is %s, want 0 to %s", p.Cooldown, MaxCooldown)
	case p.Ban.Initial < 0 || p.Ban.Max < p.Ban.Initial || p.Ban.Max > MaxCooldown:
		return bad("the ban cooldown goes from %s to %s, want 0 to %s, in order", p.Ban.Initial, p.Ban.Max, MaxCooldown)
	case !(p.Ban.Factor >= 1 && p.Ban.Factor <= 100): // also for NaN
		return bad("the ban factor is %v, want 1 to 100", p.Ban.Factor)
	case p.InFlight < 0 || p.InFlight > MaxInFlight:
		return bad("%d uses in flight, want 0 (any number) to %d", p.InFlight, MaxInFlight)
	case p.NewShare < 0 || p.NewShare > 100:
		return bad("the share of new keys is %d in a hundred, want 0 to 100", p.NewShare)
	}
	return nil
}

// aim returns the target that rests and order count by.
func (p Pool) aim(at string) string {
	if p.Sites {
		return target.Site(at)
	}
	return at
}

// turnwise reports whether the keys are used in turn for the target. Other takes
// go by [Key.Rank].
func (p Pool) turnwise(target string) bool { return p.Kind == Managed && target != "" }

// ttl returns the time of a lease for which want was asked; 0 asks for the
// pool's own. It is refused rather than clamped.
func (p Pool) ttl(want time.Duration) (time.Duration, error) {
	switch {
	case want == 0:
		return p.TTL, nil
	case want < MinTTL || want > p.MaxTTL:
		return 0, fault.WithCode(fault.Errorf(fault.Invalid, "pool %s: a lease of %s is not possible: ask for %s to %s",
			p.Name, want, MinTTL, p.MaxTTL), "ttl")
	}
	return want.Truncate(time.Microsecond), nil
}
