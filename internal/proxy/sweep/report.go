package sweep

import (
	"context"
	"time"
)

// Verdict is what becomes of something that a sweep found.
type Verdict string

// The verdicts.
const (
	// Waiting: its grace has not passed, or it was seen once only.
	Waiting Verdict = "Waiting"
	// Due: it would go now, and does not: this is a dry run, or its turn did not
	// come in this sweep.
	Due Verdict = "Due"
	// Removing: its removal has begun and goes on in the next sweep.
	Removing Verdict = "Removing"
	// Removed: nothing of it is left.
	Removed Verdict = "Removed"
	// Failed: it could not be removed; it is tried again.
	Failed Verdict = "Failed"
	// Held: the fuse or another operator's claim holds it back.
	Held Verdict = "Held"
	// Abandoned: it was left to a person.
	Abandoned Verdict = "Abandoned"
	// Unreadable: whose it is cannot be said, so it is left alone.
	Unreadable Verdict = "Unreadable"
)

// Item is one thing that a sweep found: an orphan, an abandoned or unreadable
// instance, or a leftover of another kind.
type Item struct {
	// What it is: "instance", or what the provider calls it.
	What string
	Host string
	// ID is the providerID, or the leftover's name on its host.
	ID string
	// Namespace, Name and UID are the Proxy's, for instances.
	Namespace, Name, UID string
	// Since is when it was first seen as what it is.
	Since   time.Time
	Verdict Verdict
	// Left: it is written down as left to a person, whatever the verdict.
	Left    bool
	Message string
}

// Report is what one sweep of one provider found and did.
type Report struct {
	Time   time.Time
	DryRun bool
	// Err says why it could not look at all; Instances, Items, Unlisted, Hash
	// and Fuse are then those of the sweep before, without what that removed.
	Err error
	// Instances is how many instances the hosts that answered have.
	Instances int
	// Items are sorted by host, what, id. Those of a host that did not answer
	// are what was known of it before, with a message that says so.
	Items []Item
	// Unlisted are hosts that did not answer, with why.
	Unlisted []HostError
	// Hash names the set that the fuse holds back, with Fuse saying why; both
	// empty when it does not.
	Hash, Fuse string
	// Conflicts are hosts where another live operator claims this installation.
	Conflicts []Conflict
}

// HostError is a host that did not answer.
type HostError struct {
	Host string
	Err  error
}

// Conflict is another operator with this installation's identity.
type Conflict struct {
	Host, Holder string
	// Alive: its claim was renewed while we looked; else it may have been left
	// behind, which shows in time.
	Alive bool
}

// Count returns how many items have one of the verdicts; instances counts
// instances, else it counts the others.
func (r Report) Count(instances bool, verdicts ...Verdict) (n int) {
	for _, it := range r.Items {
		if (it.What == Instance) != instances {
			continue
		}
		for _, v := range verdicts {
			if it.Verdict == v {
				n++
			}
		}
	}
	return n
}

// Orphans is how many instances are left without a Proxy: not those that this
// sweep removed, and not those that were left to a person.
func (r Report) Orphans() int {
	return r.count(func(it Item) bool {
		return it.What == Instance && !it.Left && it.Verdict != Unreadable && it.Verdict != Removed
	})
}

// Leftovers is how many things other than instances are left that nothing uses.
func (r Report) Leftovers() int {
	return r.count(func(it Item) bool { return it.What != Instance && it.Verdict != Removed })
}

// AbandonedCount is how many instances are left to a person.
func (r Report) AbandonedCount() int {
	return r.count(func(it Item) bool { return it.Left && it.Verdict != Removed })
}

func (r Report) count(is func(Item) bool) (n int) {
	for _, it := range r.Items {
		if is(it) {
			n++
		}
	}
	return n
}

// Instance is what an instance is called in items.
const Instance = "instance"

// Book is what is kept in the Kubernetes API that a sweep must know. All its
// methods read and write there, not in a cache.
type Book interface {
	// Owners returns the UIDs of all Proxies that exist, of all namespaces.
	Owners(ctx context.Context) (map[string]bool, error)
	// Page returns what is written down of a provider.
	Page(ctx context.Context, providerName string) (Page, error)
	// Strike takes UIDs out of the abandoned ones.
	Strike(ctx context.Context, providerName string, uids []string) error
}

// Page is what is written down of one provider.
type Page struct {
	// Abandoned are instances that were left to a person, by UID.
	Abandoned map[string]AbandonedInstance
	// Elsewhere are UIDs that are written down as left to a person in another
	// provider's object, with that provider's name: two providers may reach one
	// back end, and one may have got a new name.
	Elsewhere map[string]string
	// Release is the hash of a set that a person lets the fuse pass.
	Release string
	// Remove are UIDs of abandoned instances that a person wants removed.
	Remove []string
}

// AbandonedInstance is one that was left to a person.
type AbandonedInstance struct {
	ProviderID, Host string
}
