package lease

import (
	"context"
	"time"
)

// Store keeps pools, keys and leases, and is the arbiter among any number of
// processes that use one database.
//
// All methods honour ctx and may be called concurrently. Errors carry a class
// of core/fault: Unavailable with the code "store" when the database does not
// answer, Timeout when ctx ended first (whether a Do was done is unknown then,
// and the same ops may be sent again: every op is idempotent or refused by its
// own conditions), Permanent with the code "schema" when a newer program
// upgraded the database beyond this one.
type Store interface {
	// Do runs the ops one after another in one transaction, which excludes those
	// of all other processes, and returns one result for each. An op that is
	// refused has its error in its result and does not touch the others. When Do
	// itself returns an error, nothing was done (but see Timeout above).
	Do(ctx context.Context, ops []Op) ([]Result, error)
	// Watch calls w.Changed soon after each transaction, of this or any other
	// process, that may let a waiter have a key or that wrote events; several may
	// be told of as one. It returns when ctx ends, with nil, and tells of All
	// when it may have missed some.
	Watch(ctx context.Context, w Watcher) error
	// Root returns the database's root key for lease secrets: 32 bytes, made
	// once.
	Root(ctx context.Context) ([]byte, error)
	Reader
}

// Watcher hears of changes. Its methods must not block.
type Watcher interface {
	// Waiting reports whether anybody here waits; only then must Watch be
	// quick where being quick costs something (SQLite is polled).
	Waiting() bool
	Changed(News)
}

// News is what changed.
type News struct {
	// Freed are pools in which a waiter may find a key now, or earlier than it
	// was told ([Busy.Due]).
	Freed []string
	// All is set when it is not known which.
	All bool
	// Events is set when events were written.
	Events bool
}

// Reader reads without locks: each answer is one consistent state.
type Reader interface {
	// Pools returns pools by name, at most limit of those after `after`.
	Pools(ctx context.Context, after string, limit int) ([]PoolStatus, error)
	// Pool returns one pool, or NotFound with the code "pool".
	Pool(ctx context.Context, name string) (PoolStatus, error)
	// Keys returns the keys of a pool by name, with those that are leaving it;
	// an unknown pool is NotFound.
	Keys(ctx context.Context, pool, after string, limit int) (Keys, error)
	// Key returns one key, or NotFound with the code "key".
	Key(ctx context.Context, name string) (Keys, error)
	// Queue returns the waiting tickets of a pool in order, those whose client
	// is lost too (see [Ticket.Live]); at most limit of those after the place. An
	// unknown pool is NotFound.
	Queue(ctx context.Context, pool string, after int64, limit int) ([]Ticket, error)
	// Cooldowns returns the cooldowns in force for a key by its name or exit IP,
	// by target; of two for one target the one that ends last. An unknown key is
	// NotFound.
	Cooldowns(ctx context.Context, key, after string, limit int) ([]Cooldown, error)
	// Bans returns what is banned by at least so many targets now, those with the
	// most first; at most limit.
	Bans(ctx context.Context, targets, limit int) ([]BanCount, error)
	// Events returns events after a cursor, oldest first, and whether some
	// between the cursor and the first one returned were forgotten.
	Events(ctx context.Context, after int64, limit int) (events []Event, gap bool, err error)
}

// PoolStatus is a pool as read.
type PoolStatus struct {
	Pool
	// Now is the database's time.
	Now time.Time
	// Keys counts its keys, Free those that time lets a take consider, Held
	// those with a running lease, Waiting its live waiters.
	Keys, Free, Held, Waiting int
	// Change is the person's change that is under way; nil for none.
	Change *Change
}

// BanCount is how many targets ban a key or an exit IP.
type BanCount struct {
	Scope Scope
	// ID is a key's name or an exit IP.
	ID      string
	Targets int
}

// Keys are rows as read at Now.
type Keys struct {
	Now  time.Time
	Keys []Key
}

// Ticket is a request for a key: a waiter, or a grant that can be replayed.
type Ticket struct {
	ID, Digest string
	// Seq is its place: the least is served first.
	Seq             int64
	Pool, Target    string
	Account, Holder string
	Where           map[string]string
	Match           []Match
	RunsHooks       bool
	Since           time.Time
	// LiveUntil is how long its client counts as waiting, PlaceUntil how long it
	// keeps its place. Of a granted one LiveUntil is when it was asked again.
	LiveUntil, PlaceUntil time.Time
	// Granted is the lease that it got; the zero value while it waits.
	Granted ID
	// Kept is how long a granted one is remembered.
	Kept time.Time
}

// Waiting reports whether it was not granted.
func (t *Ticket) Waiting() bool { return t.Granted == ID{} }

// Live reports whether its client waits now.
func (t *Ticket) Live(now time.Time) bool { return t.Waiting() && now.Before(t.LiveUntil) }

// Claimed reports whether the request came again after its grant.
func (t *Ticket) Claimed() bool { return !t.Waiting() && !t.LiveUntil.IsZero() }

// take is the ticket as the question it asks.
func (t *Ticket) take() Take {
	return Take{Ticket: t.ID, Pool: t.Pool, Target: t.Target, Where: t.Where, Match: t.Match, RunsHooks: t.RunsHooks}
}

// Change is a person's change of a pool: its lock, and the bar on its keys.
type Change struct {
	ID, Pool, Verb  string
	Keys            []string
	Account, Holder string
	Began, Until    time.Time
}

// Event is something that happened, for whoever watches.
type Event struct {
	Seq  int64
	At   time.Time
	Kind string
	// Pool, Key and Lease (its public id) are "" where they do not apply.
	Pool, Key, Lease string
	// Account is who did it; "" for the desk itself.
	Account string
}

// Begin is what a transaction knows when it begins.
type Begin struct {
	// Now is the database's clock, read after the lock was got, in UTC to the
	// microsecond, and not before the Now of any earlier transaction.
	Now time.Time
	// Counter is the last number that was given out; fences, places and events
	// are numbered from it.
	Counter int64
	// Epoch is the present controller's.
	Epoch int64
}

// Tx is one transaction as [Apply] sees it. Load may be called several times
// and sees the state at the transaction's begin; Save is called once, at the
// end, when there is something to keep.
type Tx interface {
	Load(ctx context.Context, w Want) (Found, error)
	Save(ctx context.Context, c Changes) error
}

// Want is what Load is asked for; what is empty is not looked for.
type Want struct {
	// Pools and Keys by name. With a key come the pool of its lease and the bars
	// that are in force, with a granted ticket its key.
	Pools, Keys, Tickets []string
	// ExitIPs are addresses by which keys leave: all keys of each are found.
	ExitIPs []string
	// Queues are live waiters (at the transaction's Now) in order.
	Queues []QueueWant
	// Ahead counts the live waiters of a pool before a place.
	Ahead []AheadWant
	// Candidates are keys with FreeAt <= Now that have no rest for the target:
	// the first Limit of those with FreeAt zero by rank and name, and the first
	// Limit of the others by FreeAt.
	Candidates []CandidateWant
	// Free counts the keys of a pool with FreeAt <= Now.
	Free []FreeWant
	// Lines are lines, as far as walks need them, and LinesOf those of a pool for a
	// target without their places. Seats are keys of a pool by their seats.
	Lines   []LineWant
	LinesOf []PoolTarget
	Seats   []SeatWant
	// Next are the first [MaxNext] keys by FreeAt of those with Now < FreeAt <
	// Never, and the earliest end of a cooldown for the target of a key of the
	// pool.
	Next []NextWant
	// Members are the names of all keys of a pool, and how many of them a rule
	// disabled.
	Members []string
	// Listed are the first keys of a pool by name.
	Listed []ListedWant
	// Cooldowns by their ids.
	Cooldowns []CooldownID
	// Bars are bars in force of names, also of such that are no keys.
	Bars []string
	// Changes are the latest change of each pool.
	Changes []string
	// Due are up to that many keys whose running lease has Expires <= Now, the
	// oldest first, and the earliest Expires after Now. With them comes whether there
	// are lines with Used [LineFor] before Now, or that are gone and left places.
	Due int
	// Lost are the waiting tickets with PlaceUntil <= Now, at most [MaxQueue],
	// and the latest PlaceUntil of any waiting ticket.
	Lost bool
}

// QueueWant asks for the first live waiters of a pool.
type QueueWant struct {
	Pool  string
	Limit int
}

// AheadWant asks how many live waiters of a pool stand before a place.
type AheadWant struct {
	Pool string
	Seq  int64
}

// CandidateWant asks for the keys of a pool that may be free for a target.
type CandidateWant struct {
	Pool, Target string
	Limit        int
}

// NextWant asks what of a pool comes free next for a target.
type NextWant struct{ Pool, Target string }

// FreeWant asks how many keys of a pool are free by their rows; at most Limit are
// counted.
type FreeWant struct {
	Pool  string
	Limit int
}

// LineWant asks for the next places of a line: so many whose rest is over (Due), in
// the order of turns (Ready, or Behind where keys beyond the mark come before
// them), and keys beyond the mark (Fresh), each behind those that are known. A line whose Used is before Since is none. Nothing need be found
// when at most Over keys of the pool are free by their rows.
type LineWant struct {
	LineID
	Due, Ready, Behind, Fresh int
	Over                      int
	Since                     time.Time
	// AfterDue and AfterReady are places, AfterFresh is a seat; zero to begin with
	// the first.
	AfterDue, AfterReady Place
	AfterFresh           int64
}

// ReadyOf is how many places in the order of turns are wanted of a line with that
// mark, in a pool with that last seat.
func (w *LineWant) ReadyOf(mark, last int64) int {
	if last > mark {
		return w.Behind
	}
	return w.Ready
}

// PoolTarget is a pool and a target.
type PoolTarget struct{ Pool, Target string }

// SeatWant asks for the first keys of a pool with a seat after one.
type SeatWant struct {
	Pool  string
	After int64
	Limit int
}

// ListedWant asks for the first keys of a pool by name.
type ListedWant struct {
	Pool  string
	Limit int
}

// Found is what Load found. Slices that answer a list of questions have its
// length and order.
type Found struct {
	Pools      []Pool
	Keys       []Key
	Tickets    []Ticket
	Queues     [][]Ticket
	Ahead      []int
	Candidates []CandidatesFound
	Free       []int
	Lines      []LineFound
	LinesOf    [][]Line
	Seats      [][]Key
	Next       []NextFound
	Members    []MembersFound
	Listed     [][]Key
	Cooldowns  []Cooldown
	Bars       map[string][]Bar
	Changes    []Change
	Due        []Key
	NextDue    time.Time // zero for none
	Old        bool
	Lost       []Ticket
	LastPlace  time.Time
}

// CandidatesFound answers a [CandidateWant].
type CandidatesFound struct {
	Keys []Key
	// More is set when a Limit cut something off.
	More bool
}

// LineFound answers a [LineWant]. Keys are those of all places that exist, as far as
// [Key.Glance] tells of them, and Cooldowns all that there are of them for the
// target.
type LineFound struct {
	// Line is nil for none.
	Line *Line
	// Due are places with zero < Parked <= Now, Ready those with Parked zero, in
	// their order. Fresh are keys of the pool with a Seat after the mark (without a
	// line, after 0) as places of their Seat and Key alone.
	Due, Ready, Fresh             []Place
	MoreDue, MoreReady, MoreFresh bool
	Keys                          []Key
	Cooldowns                     []Cooldown
	// Next is the first Parked after Now, Last the greatest Seat in the pool; zero
	// for none.
	Next time.Time
	Last int64
}

// NextFound answers a [NextWant].
type NextFound struct {
	Keys []Key
	// Rested is when the first cooldown for the target ends; zero for none.
	Rested time.Time
}

// MembersFound is what is known of all keys of a pool together.
type MembersFound struct {
	Names        []string
	AutoDisabled int
}

// Changes are what Save keeps: all of it or nothing.
type Changes struct {
	// Begin is the state that the next transaction begins with (its Now is the
	// least that it may have).
	Begin Begin
	Pools []Pool
	// DropPools are names; they go before Pools are written.
	DropPools []string
	Keys      []KeyWrite
	// DropKeys are rows to delete, with their lists.
	DropKeys    []Key
	Tickets     []Ticket
	DropTickets []string
	Cooldowns   []Cooldown
	// DropLinesOf are pools whose lines go before Lines are written, DropLines are
	// some more that do. A line that is written in place of one with another number
	// makes that one go.
	DropLinesOf []string
	DropLines   []LineID
	Lines       []Line
	// DropPlaces go before Places are written, some of which may be there.
	DropPlaces, Places []Place
	// LiftCooldowns go before Cooldowns are written; a Target of "" means all of
	// the id.
	LiftCooldowns []CooldownID
	// Changes are new or changed ones, by id; their keys never change.
	Changes []Change
	Events  []Event
	// Freed are pools in which a waiter may find a key now.
	Freed []string
	// ForgetRests is set now and then by transactions that use keys in turn, for
	// they leave many rests behind: cooldowns with Forget before Now go, and places
	// of lines that are gone, at most so many of each.
	ForgetRests int
	// Forget is set by a sweep: when all else was written, what says nothing any
	// more goes, at most so many rows a table: tickets that wait with PlaceUntil,
	// or were granted with Kept, before Now; cooldowns with Forget before Now;
	// changes with Until a day before Now; lines with Used [LineFor] before Now, and
	// places of lines that are gone; events [EventsFor] before Now and all
	// but the last [MaxEvents].
	Forget int
}

// KeyWrite is a row to write. Its Version is the one it was read with, 0 for a
// new row; a row that has another one by now makes Save fail, for it was
// changed without the lock. Its Bars are not to be kept.
type KeyWrite struct {
	Key
	// Relist is set when Pools or Leaving changed, Facts when Managed, UID,
	// Attributes, ExitIP, Unfit, Weight, Joined, Seat or Since did.
	Relist, Facts bool
}
