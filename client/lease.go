package client

import (
	"context"
	"net/http"
	"time"
)

// Outcomes of a use, for [ReleaseRequest].
const (
	OutcomeOK     = "ok"
	OutcomeBanned = "banned" // the target refuses the key; it rests for the target
	OutcomeError  = "error"  // it failed for another reason; that counts towards health
	OutcomeBroken = "broken" // the key is not usable; it is disabled, within bounds
)

// What a holder says of the reset of its key.
const (
	ResetBegin  = "begin"  // it begins to run it
	ResetDone   = "done"   // it ended well
	ResetFailed = "failed" // it failed; the key needs it still
)

// States of keys and leases.
const (
	StateFree       = "free"
	StateHeld       = "held"
	StateResetting  = "resetting" // held, while its holder runs the reset
	StateNeedsReset = "needs-reset"
	StateCooling    = "cooling"
	StateDisabled   = "disabled"
	StateBarred     = "barred"
	StateUnhealthy  = "unhealthy"
	StateRemoved    = "removed"
	// A lease that runs no more.
	StateReleased  = "released"
	StateExpired   = "expired"
	StateForced    = "forced"
	StateReplaced  = "replaced"
	StateUnclaimed = "unclaimed"
)

// LeaseRequest asks for a key of a pool.
type LeaseRequest struct {
	// Pool is the pool's name.
	Pool string `json:"pool" minLength:"1" maxLength:"317" doc:"Name of the pool." example:"win"`
	// Holder says to people who uses the key: a job, a host.
	Holder string `json:"holder,omitempty" maxLength:"512" doc:"Who uses the key, for people: a job, a host." example:"nightly 4711"`
	// Target is the site that the key is used for; rests and bans are per target.
	Target string `json:"target,omitempty" minLength:"1" maxLength:"512" doc:"Site that the key is used for: a host name, or a URL of which the host counts. Order, rests and bans are per target." example:"shop.example.com"`
	Wish
	// TTL is for how many seconds; 0 leaves it to the pool.
	TTL int64 `json:"ttl,omitempty" minimum:"5" maximum:"86400" doc:"Seconds until the lease ends unless it is renewed; absent for the pool's own, at most the pool's longest." example:"600"`
	// Wait is how many seconds to wait for a key, 0 to 60.
	Wait int64 `json:"wait,omitempty" minimum:"0" maximum:"60" doc:"Seconds to wait for a key when none is free." example:"30"`
	// Constraints are attributes that the key must have.
	Constraints map[string]string `json:"constraints,omitempty" maxProperties:"16" doc:"Attributes that the key must have, at most 16."`
	// RunsHooks says that this client runs the pool's hooks.
	RunsHooks bool `json:"runsHooks,omitempty" doc:"Says that the client runs the pool's hooks; keys of a pool with hooks go to nobody else."`
}

// LeaseInfo is a lease as everybody may see it.
type LeaseInfo struct {
	// ID is its public id.
	ID string `json:"id" doc:"Public id of the lease." example:"win-01~17"`
	// Pool it was taken from, and Key.
	Pool string `json:"pool" doc:"Pool that it was taken from." example:"win"`
	Key  string `json:"key" doc:"Key that it is a right to." example:"win-01"`
	// UID is the identity of what carries the key's name; "" in fixed pools.
	UID string `json:"uid,omitempty" doc:"Identity of what carries the key's name; absent in fixed pools."`
	// Account took it; Holder and Target are what its request said.
	Account string `json:"account" doc:"Account that took it." example:"ci"`
	Holder  string `json:"holder,omitempty" doc:"Who uses the key, as the request said." example:"nightly 4711"`
	Target  string `json:"target,omitempty" doc:"Site that the key is used for, as the request said." example:"shop.example.com"`
	// Fence is greater than that of every earlier lease of any key.
	Fence int64 `json:"fence" doc:"Greater than that of every earlier lease of any key." example:"17"`
	// State is held or resetting; of a lease that ended: released, expired,
	// forced, replaced, removed or unclaimed.
	State string `json:"state" doc:"held or resetting; of a lease that ended: released, expired, forced, replaced, removed or unclaimed." example:"held"`
	// TTL is the time that it was taken or last renewed for, SecondsLeft what is
	// left of it; 0 once it ended.
	TTL         Seconds `json:"ttl" doc:"Seconds that it was taken or last renewed for." example:"600"`
	SecondsLeft Seconds `json:"secondsLeft" doc:"Seconds until it ends unless it is renewed; 0 once it ended." example:"599.998"`
	// NeedsReset is whether the pool's reset must run before the key is used.
	NeedsReset bool `json:"needsReset,omitempty" doc:"Whether the pool's reset must run before the key is used."`
	// Attributes are the key's; never nil in an answer.
	Attributes map[string]string `json:"attributes" nullable:"false" doc:"Attributes of the key."`
	// Notice is why the key would not be handed out again now; "" when it is fit.
	Notice string `json:"notice,omitempty" doc:"Why the key would not be handed out again now; absent when it is fit." example:"unhealthy: 3 checks failed"`
}

// Grant is a lease that was just taken. Its secret is in the answer's header
// Lease-Secret.
type Grant struct {
	LeaseInfo
	// Waited is how long the request waited at the server; SecondsLeft counts
	// from its end.
	Waited Seconds `json:"waited" doc:"Seconds that the request waited at the server; secondsLeft counts from their end." example:"0.004"`
	// Proxy is how to reach a leased proxy; nil for keys that are none.
	Proxy *ProxyAccess `json:"proxy,omitempty"`
}

// RenewRequest extends a lease. Its zero value renews for the same time.
type RenewRequest struct {
	// TTL is for how many seconds from now; 0 for the time it was taken for.
	TTL int64 `json:"ttl,omitempty" minimum:"5" maximum:"86400" doc:"Seconds from now; absent for the time it was taken for." example:"600"`
	// Fence, when not 0, must be the lease's.
	Fence int64 `json:"fence,omitempty" minimum:"1" doc:"When present, must be the lease's." example:"17"`
	// Reset is "", begin or done.
	Reset string `json:"reset,omitempty" enum:"begin,done" doc:"What becomes of the key's reset: the holder begins to run it, or it ended well."`
}

// ReleaseRequest gives a key back. Its zero value says that all went well.
type ReleaseRequest struct {
	// Outcome is ok (also ""), banned, error or broken.
	Outcome string `json:"outcome,omitempty" enum:"ok,banned,error,broken" doc:"How the use went; ok when absent." example:"ok"`
	// Reason says more, for people.
	Reason string `json:"reason,omitempty" maxLength:"512" doc:"Says more, for people."`
	// Target is what the outcome is about; "" for the lease's own.
	Target string `json:"target,omitempty" minLength:"1" maxLength:"512" doc:"Site that the outcome is about; the lease's own when absent." example:"shop.example.com"`
	// Reset is "", done or failed: how the reset went that the holder ran.
	Reset string `json:"reset,omitempty" enum:"done,failed" doc:"How the reset went that the holder ran; absent when it ran none."`
}

// Released is what a release did.
type Released struct {
	// ID is the lease's and Key what it was a right to.
	ID  string `json:"id" doc:"Public id of the lease." example:"win-01~17"`
	Key string `json:"key" doc:"Key that was given back." example:"win-01"`
	// Disabled is whether the outcome, or a third failed reset, took the key out
	// of use.
	Disabled bool `json:"disabled" doc:"Whether the outcome, or a third failed reset, took the key out of use."`
	// Capped is whether an outcome broken did not, because so many of the pool
	// are out of use already that the fault is likely elsewhere.
	Capped bool `json:"capped" doc:"Whether an outcome broken did not take the key out of use because too many of the pool are already."`
}

// Holder is who holds a key that others wait for.
type Holder struct {
	// Key and who has it.
	Key     string `json:"key" doc:"Key that is not free." example:"win-01"`
	Account string `json:"account,omitempty" doc:"Account that holds it; absent when nobody does." example:"ci"`
	Holder  string `json:"holder,omitempty" doc:"Who uses it, as the request said." example:"nightly 4711"`
	// State is why it is not free: held, resetting or cooling.
	State string `json:"state" doc:"Why it is not free: held, resetting or cooling." example:"held"`
	// SecondsLeft is when it comes free by time.
	SecondsLeft Seconds `json:"secondsLeft" doc:"Seconds until it comes free by time." example:"412.5"`
}

// LeaseInfo returns a lease by its public id, also one that ended while the
// server remembers it. Errors: NotFound (code lease).
func (c *Client) LeaseInfo(ctx context.Context, id string) (LeaseInfo, error) {
	var out LeaseInfo
	err := c.get(ctx, "get lease "+id, nil, &out, "leases", id)
	return out, err
}

// RenewLease extends a lease of this client's account, once; see [Lease.Renew].
func (c *Client) RenewLease(ctx context.Context, id string, secret Secret, r RenewRequest) (LeaseInfo, error) {
	var out LeaseInfo
	err := c.do(ctx, call{
		op: "renew lease " + id, method: http.MethodPost, parts: []string{"leases", id, "renew"},
		header: secretHeader(secret), body: r, out: &out, repeatable: true,
	})
	return out, err
}

// ReleaseLease gives a key back; again is harmless. See [Lease.Release].
func (c *Client) ReleaseLease(ctx context.Context, id string, secret Secret, r ReleaseRequest) (Released, error) {
	var out Released
	err := c.do(ctx, call{
		op: "release lease " + id, method: http.MethodPost, parts: []string{"leases", id, "release"},
		header: secretHeader(secret), body: r, out: &out, repeatable: true,
	})
	return out, err
}

const (
	headerSecret      = "Lease-Secret"
	headerIdempotency = "Idempotency-Key"
)

func secretHeader(s Secret) http.Header { return http.Header{headerSecret: {string(s)}} }

// wholeSeconds is d on the wire where whole seconds are asked for: rounded up,
// so that nobody gets less than was asked for.
// A negative d stays one, to be refused.
func wholeSeconds(d time.Duration) int64 {
	if d < 0 {
		return min(-1, int64(d/time.Second))
	}
	return int64((d-1)/time.Second) + min(1, int64(d))
}
