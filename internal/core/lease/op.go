package lease

import "time"

// Op is one operation on the database; see the types below. Ops carry no time:
// the transaction has one.
type Op interface{ op() }

// Take asks for a key of a pool.
type Take struct {
	// Ticket names the request ([TicketID]): a second take with the same ticket
	// is the same request. Required, but for a quick pick, which is a new one each
	// time.
	Ticket string
	// Digest is a hash of what the request asks for; the same ticket with
	// another digest is refused.
	Digest string
	// Keep says that the client sent an Idempotency-Key: a grant is remembered
	// for [ReplayFor] and replayed. Without it a take that was granted and is sent
	// again, because its answer was lost, is another one.
	Keep bool

	Pool, Target    string
	Account, Holder string
	// Where are attributes that the key must have, and Match what else they must
	// be like.
	Where map[string]string
	Match []Match
	// Quick makes it a quick pick: the key is not held, and rests from now on as
	// after a use. The result has a [Use] in place of a lease. A quick pick never
	// waits, and has no secret, no ttl and no Idempotency-Key.
	Quick bool
	// IfDone makes it fail, with the error of the op before it in the same Do,
	// when that one was refused.
	IfDone bool
	// Secret is the hash of the lease's secret.
	Secret Hash
	// TTL is the lease's time; 0 for the pool's own.
	TTL time.Duration
	// RunsHooks says that the client runs the pool's hooks.
	RunsHooks bool
	// Wait queues the request when no key is free; it then waits until a later
	// Take of the same ticket is granted, and must be kept alive by [Live].
	Wait bool
	// Again says that this server sent the request before and gave nobody its
	// answer: a replay is then the first answer, and may be unclaimed.
	Again bool
}

// Live tells that the clients of these tickets still wait.
type Live struct{ Tickets []string }

// Leave tells that a ticket's client stopped waiting. Its place is kept for
// [PlaceFor]; with Forget it goes at once.
type Leave struct {
	Ticket string
	Forget bool
}

// Revive gives the places back that ran out while no server was there to come
// back to: those of tickets seen within [PlaceFor] of the last one seen. It is
// a server's first op: once somebody waits again, the last one seen is that one.
type Revive struct{}

// Unclaim tells that a grant may not have reached its client: the lease ends
// after [UnclaimedFor] unless the request comes again. It does nothing once the
// lease was renewed or the request came again: then somebody holds the key, and
// the news of the lost answer is late.
type Unclaim struct {
	ID     ID
	Secret Hash
}

// Proof is who wants to change a lease.
type Proof struct {
	ID     ID
	Secret Hash
	// Account must be the one that took it.
	Account string
}

// Reset is what a holder says of the reset of its key.
type Reset string

// The resets.
const (
	// ResetBegin: the holder begins to run it; the key shows as resetting.
	ResetBegin Reset = "begin"
	// ResetDone: it ended well.
	ResetDone Reset = "done"
	// ResetFailed: it failed; the key needs it still.
	ResetFailed Reset = "failed"
)

// Renew extends a lease to TTL from now; 0 for the time it was taken for.
type Renew struct {
	Proof
	TTL time.Duration
	// Fence, when not 0, must be the lease's.
	Fence int64
	// Reset is "", [ResetBegin] or [ResetDone].
	Reset Reset
}

// Outcome is how a use went.
type Outcome string

// The outcomes.
const (
	OK Outcome = "ok"
	// Banned: the target refuses the key; it rests for the target.
	Banned Outcome = "banned"
	// Failed: the use failed for another reason; it counts towards health.
	Failed Outcome = "error"
	// Broken: the key is not usable; it is disabled, within bounds.
	Broken Outcome = "broken"
)

// Release gives a key back.
type Release struct {
	Proof
	// Outcome is "" for OK.
	Outcome Outcome
	Reason  string
	// Target is what Outcome is about; "" for the lease's own.
	Target string
	// Reset is "", [ResetDone] or [ResetFailed]: whether the holder ran it.
	Reset Reset
}

// Report tells how a use of a key for a target went, without its lease. UID,
// when not "", must be the key's: a late report is not about its successor.
type Report struct {
	Key, UID string
	// Pool says how long a ban rests.
	Pool, Target string
	// Outcome is [OK], [Banned], [Failed] or, with a Use, "" for one that never was:
	// it is over, and nothing is said of the key.
	Outcome Outcome
	// Use, when not zero, is the quick pick or the lease that it is about: the
	// use of a quick pick is over with it. The key's last lease must be the account's.
	Use     ID
	Account string
	// Leased says that Use is a lease: one that the key remembers.
	Leased bool
}

// Match is one condition on an attribute.
type Match struct {
	Attribute string
	Op        MatchOp
	// Values are for In and NotIn.
	Values []string
}

// MatchOp is how an attribute is compared.
type MatchOp string

// The comparisons. NotIn is also true of a key without the attribute, as in
// label selectors.
const (
	In     MatchOp = "in"
	NotIn  MatchOp = "notin"
	Exists MatchOp = "exists"
	Absent MatchOp = "absent"
)

// Use is a use of a key for a target: a quick pick's.
type Use struct {
	ID ID
	// Rested is when the key may be handed out for the target again.
	Rested time.Time
	// Ends is when the use stops to count, unless a report ends it before; zero
	// when the pool does not count uses.
	Ends time.Time
}

// Lift ends the cooldowns of a key, for one target or, with "", all of them
// and the rest of the key itself.
type Lift struct{ Key, Target string }

// Disable takes a key out of use; its holder keeps it.
type Disable struct{ Key, Reason, By string }

// Enable puts a key back into use.
type Enable struct{ Key, By string }

// Force ends the lease of a key. Fence, when not 0, must be that lease's.
type Force struct {
	Key, By string
	Fence   int64
	// Rest is how long the key rests before anybody gets it: its holder hears of
	// the end a little later, and has to stop what it runs there.
	Rest time.Duration
}

// Publish sets a fixed pool and its list of keys.
type Publish struct {
	Pool  Pool
	Items []string
	// If, when not nil, must be the pool's present revision; 0 for a new one.
	If *int64
}

// OpenEpoch begins the time of a new controller: writes of earlier ones are
// refused from now on. The result has its number.
type OpenEpoch struct{ Owner string }

// PutPool sets a managed pool.
type PutPool struct {
	Epoch int64
	Pool  Pool
}

// DropPool removes a managed pool; keys and leases stay.
type DropPool struct {
	Epoch int64
	Name  string
}

// PutKey writes what the controller knows of a managed key.
type PutKey struct {
	Epoch      int64
	Key, UID   string
	Pools      []string
	Attributes map[string]string
	ExitIP     string
	// Unfit is why it must not be handed out; "" when it may be.
	Unfit string
	// Weight is how often it is to be used beside others, 1 to 100 percent of one
	// that is at its best; 0 is 100.
	Weight int
}

// DropKey removes a managed key with that UID; a running lease ends.
type DropKey struct {
	Epoch    int64
	Key, UID string
}

// BeginChange takes the change lock of a pool and bars keys from being leased.
type BeginChange struct {
	// ID is made by the caller and not guessable.
	ID, Pool, Verb  string
	Keys            []string
	Account, Holder string
	TTL             time.Duration
}

// RenewChange keeps a change alive for TTL from now.
type RenewChange struct {
	Pool, ID, Account string
	TTL               time.Duration
}

// EndChange ends a change. Bars of unfinished actions stay.
type EndChange struct {
	Pool, ID, Account string
	// Admin lets anybody's change be ended.
	Admin bool
}

// Sweep ends up to Limit leases whose time is over and forgets what nobody
// asks for any more: dead tickets, ended changes, old cooldowns and events.
type Sweep struct{ Limit int }

func (Take) op()        {}
func (Live) op()        {}
func (Leave) op()       {}
func (Revive) op()      {}
func (Unclaim) op()     {}
func (Renew) op()       {}
func (Release) op()     {}
func (Report) op()      {}
func (Lift) op()        {}
func (Disable) op()     {}
func (Enable) op()      {}
func (Force) op()       {}
func (Publish) op()     {}
func (OpenEpoch) op()   {}
func (PutPool) op()     {}
func (DropPool) op()    {}
func (PutKey) op()      {}
func (DropKey) op()     {}
func (BeginChange) op() {}
func (RenewChange) op() {}
func (EndChange) op()   {}
func (Sweep) op()       {}

// Times that the rules know.
const (
	// LiveFor is how long a waiter counts as live after it was heard of.
	LiveFor = 5 * time.Second
	// PlaceFor is how long a waiter keeps its place after its client was lost.
	PlaceFor = 15 * time.Second
	// UnclaimedFor is how long a grant that may not have arrived lives.
	UnclaimedFor = 5 * time.Second
	// ReplayFor is how long a granted request can be replayed.
	ReplayFor = 10 * time.Minute
	// EventsFor is how long events are kept, and MaxEvents how many.
	EventsFor = time.Hour
	MaxEvents = 100_000
	// TurnFor is how long the turn of a key for a target is remembered.
	TurnFor = time.Hour
	// MaxChangeTTL bounds the time between two signs of life of a change.
	MaxChangeTTL = 10 * time.Minute
	// MaxChangeKeys bounds the keys of one change.
	MaxChangeKeys = 5
	// MaxQueue bounds the live waiters of a pool.
	MaxQueue = 10_000
)

// Result is what one op did.
type Result struct {
	// Err says why nothing of the op was done; it has a class, and a code where
	// clients must tell it apart.
	Err error
	// Now is the time of the transaction.
	Now time.Time
	// Key is the key after the op, for ops on one key and for a take that was
	// granted; nil otherwise.
	Key *Key
	// Lease is the lease that the op was about, as it is now: granted, renewed
	// or ended. It may be an earlier one than Key's.
	Lease *Lease
	// Use is what a quick pick got; nil otherwise.
	Use *Use
	// Rest is what keeps the key from the target of a Report now: of its own rest
	// and that of its exit IP the one that ends last. Nil when nothing does, and
	// for other ops.
	Rest *Cooldown
	// Replayed is set for a take that was granted before.
	Replayed bool
	// Busy is set for a take that was not granted: why, and when to come back.
	Busy *Busy
	// Looking is set for a take whose Err says that it is not known yet whether there
	// is a key for it: the same again goes on from there.
	Looking bool
	// Pool is the pool after a Publish or PutPool.
	Pool *Pool
	// Epoch is the number of an OpenEpoch.
	Epoch int64
	// Change is the change after a Begin- or RenewChange.
	Change *Change
	// Capped is set for a release of outcome broken whose key was not disabled
	// because too many of the pool are already.
	Capped bool
	// More is set for a Sweep that left something due.
	More bool
	// Next is the time of the next lease to expire, for a Sweep; zero for none.
	Next time.Time
}

// Busy is why a take got nothing.
type Busy struct {
	// Position is the ticket's place among the live waiters, from 1; 0 when it
	// does not wait.
	Position int
	// Seq orders waiters of one pool across transactions, the least first; 0 when
	// it does not wait.
	Seq int64
	// Ahead is how many live waiters stood before it.
	Ahead int
	// Next are up to [MaxNext] keys of the pool by the time they come free, the
	// soonest first; keys that only a person frees are not among them.
	Next []Key
	// Due is when the next key comes free by time; zero when none does.
	Due time.Time
	// Why counts the keys of a managed pool by what keeps them from the request,
	// for requests that do not wait: the first [MaxWhy] keys by name.
	Why []Why
}

// Why says what keeps so many keys from a request.
type Why struct {
	// Cause is a [State] other than Free, or one of the causes below.
	Cause string
	Count int
}

// Causes beside the states.
const (
	// WhyBanned: the target banned it, or its exit IP.
	WhyBanned = "banned"
	// WhyResting: it rests for the target after a use.
	WhyResting = "resting"
	// WhyInUse: as many uses for the target are in flight as the pool allows.
	WhyInUse = "in-use"
	// WhyOther: it lacks an attribute that was asked for.
	WhyOther = "no-match"
	// WhyPromised: it is set aside for somebody who waits.
	WhyPromised = "promised"
)

// MaxWhy bounds what is counted for a [Why]: it is asked for most when a pool has
// least, and must not make that worse.
const MaxWhy = 256

// MaxNext bounds [Busy.Next].
const MaxNext = 5
