package client

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// PoolSettings are how a pool hands its keys out.
type PoolSettings struct {
	// TTL is a lease's time when the taker names none, MaxTTL the longest.
	TTL    Seconds `json:"ttl,omitempty" minimum:"5" maximum:"86400" doc:"Seconds of a lease when the taker names none; 600, or maxTTL if that is less, when absent." example:"600"`
	MaxTTL Seconds `json:"maxTTL,omitempty" minimum:"5" maximum:"86400" doc:"Seconds of the longest lease; 86400 when absent." example:"7200"`
	// Cooldown is the rest after each use.
	Cooldown Seconds `json:"cooldown,omitempty" minimum:"0" maximum:"2592000" doc:"Seconds of rest after each use: for the lease's target, or of the whole key when the lease had none." example:"30"`
	// Ban is the rest after a ban; nil for the default.
	Ban *BanCooldown `json:"banCooldown,omitempty"`
	// Scope is what rests: key or exitIP.
	Scope string `json:"scope,omitempty" enum:"key,exitIP" doc:"What rests for a target: the key, or every key that leaves by the same address; key when absent." example:"key"`
	// Hooks are which of the owner's commands the pool has.
	Hooks Hooks `json:"hooks,omitzero"`
}

// BanCooldown is how long a key rests for a target that banned it.
type BanCooldown struct {
	// Initial is the rest after the first ban; 0 switches bans off.
	Initial Seconds `json:"initial" minimum:"0" maximum:"2592000" doc:"Seconds of rest after the first ban; 0 switches bans off." example:"600"`
	// Factor multiplies it for each further ban.
	Factor float64 `json:"factor" minimum:"1" maximum:"100" doc:"Multiplies the rest for each further ban." example:"2"`
	// Max bounds it.
	Max Seconds `json:"max" minimum:"0" maximum:"2592000" doc:"Seconds of the longest rest." example:"86400"`
}

// Hooks are the owner's commands that a pool has; whoever takes a key runs
// them. Their text never leaves the owner's machine.
type Hooks struct {
	// Check tests whether a key is usable, Reset makes it so again.
	Check bool `json:"check,omitempty" doc:"Whether a command tests that a key is usable."`
	Reset bool `json:"reset,omitempty" doc:"Whether a command makes a used key usable again."`
}

// Pool is a named set of interchangeable keys.
type Pool struct {
	// Name is its name.
	Name string `json:"name" doc:"Name of the pool." example:"win"`
	// Kind is fixed (a person publishes its list) or managed (the operator does).
	Kind string `json:"kind" enum:"fixed,managed" doc:"fixed: a person publishes its list; managed: the operator keeps it." example:"fixed"`
	PoolSettings
	// InFlight is how many uses of a key (or exit IP, by Scope) for one target may
	// be under way at once; 0 for any number.
	InFlight int `json:"inFlight,omitempty" doc:"How many uses of a key, or exit IP, for one target may be under way at once; absent for any number." example:"4"`
	// NewShare is how many of a hundred picks for a target go first to keys that
	// were never used for it.
	NewShare int `json:"newShare,omitempty" doc:"How many of a hundred picks for a target go first to keys that joined since and were never used for it; absent for none." example:"10"`
	// Targets is what rests count by: host or site; "" in fixed pools.
	Targets string `json:"targets,omitempty" enum:"host,site" doc:"What rests count by: the host of a target, or its registrable domain; absent in fixed pools." example:"host"`
	// Revision counts the published lists of a fixed pool; PublishedBy and
	// Published (RFC 3339, UTC, seconds) tell of the last one.
	Revision    int64     `json:"revision,omitempty" doc:"Counts the published lists of a fixed pool." example:"4"`
	PublishedBy string    `json:"publishedBy,omitempty" doc:"Account that published the last list." example:"ann"`
	Published   time.Time `json:"published,omitzero" doc:"When it did (RFC 3339)." example:"2026-01-02T15:04:05Z"`
}

// PoolStatus is a pool with what becomes of its keys now.
type PoolStatus struct {
	Pool
	// Keys counts its keys: Free may be handed out as far as time tells, Held
	// have a running lease. Waiting counts the live waiters.
	Keys    int `json:"keys" doc:"Number of its keys." example:"12"`
	Free    int `json:"free" doc:"Number of its keys that may be handed out as far as time tells." example:"3"`
	Held    int `json:"held" doc:"Number of its keys with a running lease." example:"9"`
	Waiting int `json:"waiting" doc:"Number of requests that wait for a key." example:"0"`
	// Change is a person's change that is under way; nil for none.
	Change *Change `json:"change,omitempty"`
}

// PoolList is one page of pools, ordered by name.
type PoolList struct {
	// Items has at most as many entries as the limit asked for; never nil in
	// an answer.
	Items []PoolStatus `json:"items" nullable:"false" doc:"Pools ordered by name."`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one."`
}

// PoolPage is a pool with one page of its keys and its first waiters.
type PoolPage struct {
	PoolStatus
	// Items are keys by name; never nil in an answer.
	Items []Key `json:"items" nullable:"false" doc:"Keys of the pool ordered by name, and those that left its list while somebody held them."`
	// Next is the cursor of the next page of keys; empty on the last one.
	Next string `json:"next,omitempty" doc:"Cursor of the next page of keys; absent on the last one."`
	// Waiters are the first ones in line, on the first page only; never nil.
	Waiters []Waiter `json:"waiters" nullable:"false" doc:"The first requests in line, at most 10; on the first page only."`
}

// Key is one member of a pool.
type Key struct {
	// Name is its name.
	Name string `json:"name" doc:"Name of the key." example:"win-01"`
	// State is free, held, resetting, needs-reset, cooling, disabled, barred,
	// unhealthy or removed.
	State string `json:"state" enum:"free,held,resetting,needs-reset,cooling,disabled,barred,unhealthy,removed" doc:"What it looks like now; a held key is held or resetting whatever else is true of it." example:"held"`
	// SecondsLeft is when it comes free by time; 0 when it is free, or when time
	// alone does not free it.
	SecondsLeft Seconds `json:"secondsLeft,omitempty" doc:"Seconds until it comes free by time; absent when it is free, or when time alone does not free it." example:"412.5"`
	// Pools list it; Leaving dropped it while somebody held it.
	Pools   []string `json:"pools" nullable:"false" doc:"Pools that list it."`
	Leaving []string `json:"leaving,omitempty" nullable:"false" doc:"Pools that dropped it from their list while somebody holds it."`
	// UID is the identity of what carries the name; "" in fixed pools.
	UID string `json:"uid,omitempty" doc:"Identity of what carries the name; absent in fixed pools."`
	// Attributes are what takers may ask for; never nil in an answer.
	Attributes map[string]string `json:"attributes" nullable:"false" doc:"What takers may ask for."`
	// ExitIP is the address that targets see; "" when unknown.
	ExitIP string `json:"exitIP,omitempty" doc:"Address that targets see; absent when unknown." example:"203.0.113.7"`
	// Lease is the running one; nil for none.
	Lease *KeyLease `json:"lease,omitempty"`
	// Disabled is who took it out of use; nil when nobody did.
	Disabled *Disabled `json:"disabled,omitempty"`
	// Bars are what keeps it from being leased while a person changes it.
	Bars []Bar `json:"bars,omitempty" nullable:"false" doc:"What keeps it from being leased while a person changes it."`
	// Unhealthy is why its controller does not let it be handed out; "" when it
	// does.
	Unhealthy string `json:"unhealthy,omitempty" doc:"Why its controller does not let it be handed out; absent when it does." example:"3 checks failed"`
	// NeedsReset is whether its last use ended without the pool's reset.
	NeedsReset bool `json:"needsReset,omitempty" doc:"Whether its last use ended without the pool's reset."`
	// Errors counts uses in a row that ended with an error.
	Errors int `json:"errors,omitempty" doc:"Number of uses in a row that ended with an error."`
}

// KeyLease is the running lease of a key.
type KeyLease struct {
	ID      string `json:"id" doc:"Public id of the lease." example:"win-01~17"`
	Pool    string `json:"pool" doc:"Pool that it was taken from." example:"win"`
	Account string `json:"account" doc:"Account that took it." example:"ci"`
	Holder  string `json:"holder,omitempty" doc:"Who uses the key, as the request said." example:"nightly 4711"`
	Target  string `json:"target,omitempty" doc:"Site that the key is used for, as the request said."`
	// Taken is when (RFC 3339, UTC, seconds).
	Taken       time.Time `json:"taken" doc:"When it was taken (RFC 3339)." example:"2026-01-02T15:04:05Z"`
	SecondsLeft Seconds   `json:"secondsLeft" doc:"Seconds until it ends unless it is renewed." example:"412.5"`
}

// Disabled is who took a key out of use, and why.
type Disabled struct {
	Reason string `json:"reason" doc:"Why it was taken out of use." example:"boots into rescue mode"`
	By     string `json:"by" doc:"Account that did it." example:"ann"`
	// At is when (RFC 3339, UTC, seconds).
	At time.Time `json:"at" doc:"When it did (RFC 3339)." example:"2026-01-02T15:04:05Z"`
	// Auto is whether a rule did it in the account's name: a failed check, or
	// three failed resets.
	Auto bool `json:"auto,omitempty" doc:"Whether a rule did it in the account's name: a failed check, or three failed resets."`
}

// Bar is one reason why a key must not be leased.
type Bar struct {
	By string `json:"by" doc:"Account whose change or action it is." example:"ann"`
	// Action is an action that was started and neither finished nor resolved;
	// "" for a change that is under way.
	Action string `json:"action,omitempty" doc:"Action that was started and neither finished nor resolved; absent for a change that is under way."`
	// SecondsLeft is when the change ends unless it is kept alive; 0 for an
	// action, which only a person ends.
	SecondsLeft Seconds `json:"secondsLeft,omitempty" doc:"Seconds until the change ends unless it is kept alive; absent for an action, which only a person ends."`
}

// Waiter is a request that waits for a key.
type Waiter struct {
	// Position is its place among the live ones, from 1; 0 while its client is
	// lost.
	Position int    `json:"position,omitempty" doc:"Place among the live waiters, from 1; absent while its client is lost." example:"1"`
	Account  string `json:"account" doc:"Account that asks." example:"ci"`
	Holder   string `json:"holder,omitempty" doc:"Who wants to use the key, as the request said." example:"nightly 4712"`
	Target   string `json:"target,omitempty" doc:"Site that the key is wanted for, as the request said."`
	// Constraints are attributes that the key must have; never nil in an answer.
	Constraints map[string]string `json:"constraints" nullable:"false" doc:"Attributes that the key must have."`
	// Waits is for how long.
	Waits Seconds `json:"waits" doc:"Seconds that it waits already." example:"7.25"`
	// Lost is whether its client is gone; its place is kept for a while.
	Lost bool `json:"lost,omitempty" doc:"Whether its client is gone; its place is kept for a while."`
}

// WaiterList is one page of waiters, in their order.
type WaiterList struct {
	Items []Waiter `json:"items" nullable:"false" doc:"Waiters in their order."`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one."`
}

// PublishRequest is the whole of a fixed pool: what is left out becomes the
// default, not what it was.
type PublishRequest struct {
	// Items are the names of its keys, at most 10,000, each once.
	Items []string `json:"items" nullable:"false" maxItems:"10000" doc:"Names of its keys, each once."`
	PoolSettings
	// IfRevision, when not nil, must be the pool's present revision; 0 for a
	// pool that does not exist yet.
	IfRevision *int64 `json:"ifRevision,omitempty" minimum:"0" doc:"When present, must be the pool's present revision; 0 for a pool that does not exist yet." example:"3"`
}

// DisableRequest takes a key out of use.
type DisableRequest struct {
	// Reason says why, for people.
	Reason string `json:"reason" minLength:"1" maxLength:"512" doc:"Why, for people." example:"boots into rescue mode"`
}

// ForceRequest ends the lease of a key.
type ForceRequest struct {
	// Fence, when not 0, must be that lease's, so that nobody else's is ended.
	Fence int64 `json:"fence,omitempty" minimum:"1" doc:"When present, must be the running lease's, so that nobody else's is ended." example:"17"`
	// Rest is for how many seconds the key rests before anybody gets it, 0 to 600,
	// so that its holder can hear of the end and stop.
	Rest int64 `json:"rest,omitempty" minimum:"0" maximum:"600" doc:"Seconds that the key rests before anybody gets it, so that its holder can hear of the end and stop; none when absent." example:"10"`
	// Reason says why, for the server's audit log; it is kept nowhere else.
	Reason string `json:"reason,omitempty" maxLength:"512" doc:"Why, for the server's audit log; it is kept nowhere else." example:"its job hangs"`
}

// Pools returns one page of the pools. Errors: Invalid for a bad page, Denied,
// Quota, Unavailable.
func (c *Client) Pools(ctx context.Context, p Page) (PoolList, error) {
	var out PoolList
	err := c.get(ctx, "list pools", p.query(), &out, "pools")
	return out, err
}

// AllPools walks all pages of the pools. It ends after the first error.
func (c *Client) AllPools(ctx context.Context) iter.Seq2[PoolStatus, error] {
	return pages(func(p Page) ([]PoolStatus, string, error) {
		list, err := c.Pools(ctx, p)
		return list.Items, list.Next, err
	})
}

// Pool returns a pool, one page of its keys and its first waiters. Errors:
// NotFound (code pool), Invalid for a bad page.
func (c *Client) Pool(ctx context.Context, pool string, p Page) (PoolPage, error) {
	var out PoolPage
	err := c.get(ctx, "get pool "+pool, p.query(), &out, "pools", pool)
	return out, err
}

// PoolKeys walks all keys of a pool. It ends after the first error.
func (c *Client) PoolKeys(ctx context.Context, pool string) iter.Seq2[Key, error] {
	return pages(func(p Page) ([]Key, string, error) {
		page, err := c.Pool(ctx, pool, p)
		return page.Items, page.Next, err
	})
}

// Waiters returns one page of the requests that wait for a key of the pool.
// Errors: NotFound (code pool), Invalid for a bad page.
func (c *Client) Waiters(ctx context.Context, pool string, p Page) (WaiterList, error) {
	var out WaiterList
	err := c.get(ctx, "list waiters of "+pool, p.query(), &out, "pools", pool, "waiters")
	return out, err
}

// AllWaiters walks all requests that wait for a key of the pool. It ends after
// the first error.
func (c *Client) AllWaiters(ctx context.Context, pool string) iter.Seq2[Waiter, error] {
	return pages(func(p Page) ([]Waiter, string, error) {
		list, err := c.Waiters(ctx, pool, p)
		return list.Items, list.Next, err
	})
}

// pages walks pages of the largest size until one names no next.
func pages[T any](get func(Page) (items []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for p := (Page{Limit: 500}); ; {
			items, next, err := get(p)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" || next == p.Cursor { // the latter would never end
				return
			}
			p.Cursor = next
		}
	}
}

// Publish sets a fixed pool and its list of keys. It needs the role admin, as
// all that follows does. Errors: Conflict (code revision, or managed), Invalid
// (codes pool, name, key, items).
func (c *Client) Publish(ctx context.Context, pool string, r PublishRequest) (Pool, error) {
	if r.Items == nil {
		r.Items = []string{}
	}
	var out Pool
	// With IfRevision the second of two equal requests is refused, although the
	// first was done: that must not be hidden behind a retry.
	err := c.do(ctx, call{
		op: "publish pool " + pool, method: http.MethodPut, parts: []string{"pools", pool},
		body: r, out: &out, repeatable: r.IfRevision == nil,
	})
	return out, err
}

// Disable takes a key out of use; its holder keeps it. Errors: NotFound (code
// pool or key).
func (c *Client) Disable(ctx context.Context, pool, key string, r DisableRequest) (Key, error) {
	return c.onKey(ctx, pool, key, "disable", r)
}

// Enable puts a key back into use. Errors: NotFound (code pool or key).
func (c *Client) Enable(ctx context.Context, pool, key string) (Key, error) {
	return c.onKey(ctx, pool, key, "enable", nil)
}

// ForceRelease ends the lease of a key: whoever holds it loses it. Errors:
// NotFound (code pool or key), Conflict (code not_held, or fence when somebody
// else holds it by now).
func (c *Client) ForceRelease(ctx context.Context, pool, key string, r ForceRequest) (Key, error) {
	return c.onKey(ctx, pool, key, "release", r)
}

func (c *Client) onKey(ctx context.Context, pool, key, verb string, body any) (Key, error) {
	var out Key
	err := c.do(ctx, call{
		op: verb + " key " + key, method: http.MethodPost, parts: []string{"pools", pool, "keys", key, verb},
		// A second release might end the next one's lease.
		body: body, out: &out, repeatable: verb != "release",
	})
	return out, err
}
