package provider

import (
	"context"
	"time"
)

// The interfaces of this file are optional: a provider has those that its back
// end can serve. A decorated provider has them through [As].

// Checker is implemented by providers that can say whether their hosts answer
// (provider health). It must not take a connection from a running call.
type Checker interface {
	// Check asks every host, concurrently, and returns one row for each.
	Check(ctx context.Context) ([]HostHealth, error)
}

// ReasonOK is the reason of a host's row that is well.
const ReasonOK = "OK"

// HostHealth is one host's row in a check.
type HostHealth struct {
	Host string
	// Reason is one of the provider's documented reasons; [ReasonOK] when well.
	Reason  string
	Message string
	// Version is the far side's own, FreeBytes its storage's; zero if unknown.
	Version   string
	FreeBytes int64
}

// Watcher is implemented by providers whose back end tells of changes.
type Watcher interface {
	// Watch tells changed of each instance of the installation that may have
	// stopped, started, vanished or changed otherwise behind the provider's
	// back, within a second of it. It goes on until ctx ends or the provider is
	// closed, over hosts that come and go: it is never an error that a host
	// does not answer. A change may be told more than once, and one that the
	// provider's own calls made need not be told. changed does not block.
	//
	// It is a hint that saves waiting for the next listing, and no more than
	// that: the caller looks for itself.
	Watch(ctx context.Context, installation string, changed func(Change)) error
}

// Change says what may have changed.
type Change struct {
	Host string
	// UID is the owner's; empty when anything on the host may have changed,
	// as when changes were missed while it did not answer.
	UID string
}

// Claimer is implemented by providers whose hosts a second operator with the
// same identity could reach: one of a cluster restored from a backup, or one
// started on a copy of a data folder. Each leaves a claim on every host, so
// that they notice each other before the sweep of one takes the other's
// instances for leftovers.
type Claimer interface {
	// Claim puts the operator's claim on every host in place of its last one,
	// removes those of c.Dead, and returns for each host the claims that others
	// have there for the same installation. It knows no time: whether another
	// one is alive is for the caller to say, by whether its beat changes.
	Claim(ctx context.Context, c Claim) ([]HostClaims, error)
}

// Claim is what one operator says of itself.
type Claim struct {
	Installation string
	// Holder names the operator's process: 8 to 32 characters of a-z and 0-9,
	// new with each start.
	Holder string
	// Beat grows with each renewal.
	Beat uint64
	// Period is the longest time to the next renewal, in whole milliseconds.
	Period time.Duration
	// Dead are holders that left their claims behind. A holder that is in its
	// own Dead only takes its claims back.
	Dead []string
}

// HostClaims is one host's row.
type HostClaims struct {
	Host string
	// Others are the claims of other holders, sorted by holder.
	Others []OtherClaim
	// Err says why nothing can be said of the host; Others is then empty.
	Err error
}

// OtherClaim is a claim of somebody else.
type OtherClaim struct {
	Holder string
	Beat   uint64
	Period time.Duration
}

// Cleaner is implemented by providers that may leave things behind which are
// no instances: images that no instance uses, parts of an instance whose
// record a person removed.
type Cleaner interface {
	// Leftovers returns for each host what carries the installation's tag, is
	// part of no instance and is used by none, or why that cannot be said. What
	// a configured image still needs, what an upload that runs is writing, and
	// what belongs to one of the UIDs in keep is none.
	Leftovers(ctx context.Context, installation string, keep []string) ([]HostLeftovers, error)
	// RemoveLeftover removes one after it has looked again that it is one.
	// Already gone is success; in use meanwhile is Conflict, and it stays.
	RemoveLeftover(ctx context.Context, installation string, l Leftover) error
}

// HostLeftovers is one host's row.
type HostLeftovers struct {
	Host      string
	Leftovers []Leftover
	// Err says why the list cannot be whole; Leftovers is then empty.
	Err error
}

// Leftover is a thing that nothing uses.
type Leftover struct {
	Host string
	// ID names it on its host. Another thing should not get the same later.
	ID string
	// What it is, for people: "image", "disk", "seed".
	What string
	// Bytes is what it takes; zero if unknown.
	Bytes int64
}

// Unwrapper is implemented by decorators.
type Unwrapper interface {
	// Unwrap returns the provider inside.
	Unwrap() Provider
}

// As returns p as an optional interface (or io.Closer), when the provider that
// decorators are around has it. A decorator has the methods of all of them, so
// a plain type assertion says nothing.
func As[T any](p Provider) (T, bool) {
	inner := p
	for {
		w, ok := inner.(Unwrapper)
		if !ok {
			break
		}
		inner = w.Unwrap()
	}
	if _, ok := inner.(T); !ok {
		var none T
		return none, false
	}
	t, ok := p.(T)
	return t, ok
}
