// Package brokertest holds what tests of brokers need: the suite that every broker
// passes, team servers and local databases to run it on, and a recorder of what
// goes over the wire.
package brokertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/pool"
)

// Harness is a broker to be examined, over a new and empty database.
type Harness struct {
	// Open opens it as an account sees it; the suite closes it. The suite's
	// accounts are ann and bob, who take keys, change pools and write actions, and
	// root, who may do everything. On a local database everybody is like root.
	Open func(t testing.TB, account string) broker.Broker
}

// Controlled is a harness whose database does what the suite says.
type Controlled struct {
	Harness
	// Advance moves the database's clock. Who waits need not notice before
	// something else happens.
	Advance func(d time.Duration)
	// Outage makes leases and actions fail as a database that does not answer,
	// until it is called with false.
	Outage func(on bool)
}

// Clause is one promise of a broker.
type Clause struct {
	Name, Promise string
	check         func(r *run)
}

// Clauses returns those that every harness can be asked for, by subject.
func Clauses() []Clause {
	return []Clause{
		{"Place/says", "it says where its data is", placeSays},
		{"Prepare/first", "a local database takes the file's pool over; a team server waits for an admin, and says so", prepareFirst},
		{"Prepare/same", "nothing is published when nothing differs", prepareSame},
		{"Prepare/differs", "a local database follows the file in everything; a team server's pool stays as it is", prepareDiffers},
		{"Prepare/hooks", "a published hook that nobody here could run is refused on a team server", prepareHooks},
		{"Prepare/together", "checkouts with different lists do not fail, and one of the lists stays", prepareTogether},
		{"Take/told", "a taker is told all about its lease, and others all but the secret", takeTold},
		{"Take/none", "without wait it is told at once who holds what, and when the next is due", takeNone},
		{"Take/waits", "who waits gets what is released, in the order in which they came", takeWaits},
		{"Take/over", "a wait that is over is told as none free, with its place", takeOver},
		{"Take/codes", "what cannot be asked for is refused with its class and code", takeCodes},
		{"Take/replay", "the same Idempotency-Key is the same lease", takeReplay},
		{"Take/hooks", "keys of a pool with hooks go to who runs them", takeHooks},
		{"Take/exclusive", "takers at once never hold the same key, and all are served", takeExclusive},
		{"Take/gone", "a taker that went away while it waited leaves no lease behind", takeGone},
		{"Lease/renew", "a renewal counts from now", leaseRenew},
		{"Lease/resume", "another process goes on with a lease, with its secret alone", leaseResume},
		{"Lease/release", "a release is harmless when it comes twice, and its outcome counts", leaseRelease},
		{"Lease/alive", "it is kept alive until it is released, or ctx ends, or it is lost", leaseAlive},
		{"View/pages", "a pool is read whole, however many keys and waiters it has", viewPages},
		{"View/published", "what was published reads as it was, in every field", viewPublished},
		{"View/leaving", "a held key that left the list is shown, and is not on the published list", viewLeaving},
		{"View/unknown", "an unknown pool is not an empty one", viewUnknown},
		{"Keep/publish", "a list for another revision is refused", keepPublish},
		{"Keep/keys", "an admin disables, enables and ends", keepKeys},
		{"Keep/role", "a team server lets nobody else do so", keepRole},
		{"Change/bars", "a change locks its pool and bars its keys until it ends", changeBars},
		{"Change/refused", "a second change, held keys and too many keys are refused", changeRefused},
		{"Log/append", "an entry is kept once, under the account's name", logAppend},
		{"Log/refused", "what cannot follow is refused with its code", logRefused},
		{"Log/entries", "the newest come first, as many as asked for, and fold into actions", logEntries},
		{"Log/open", "what has no end is shown whole, the oldest first", logOpen},
		{"Log/bars", "an action without an end bars its key, also when its change is over", logBars},
		{"Context/ended", "a call whose ctx ended says so, and does nothing", contextEnded},
		{"Close/leases", "a broker that is closed leaves its leases alone", closeLeases},
	}
}

// ControlledClauses returns those that need a database which does as it is told.
func ControlledClauses() []Clause {
	return []Clause{
		{"Clock/lease", "a lease that ran out is told so, and another's after that", clockLease},
		{"Clock/rest", "a key rests after its use, and who asks is told for how long", clockRest},
		{"Clock/change", "a change without a sign of life ends by its time", clockChange},
		{"Clock/many", "pools and waiters are read whole, over several pages", clockMany},
		{"Outage/told", "a database that does not answer is told as such, and never as none free or not there", outageTold},
		{"Outage/waits", "who waits outlives an outage that is shorter than the wait", outageWaits},
		{"Outage/alive", "a lease that cannot be kept is given up before its time is over", outageAlive},
	}
}

// Run checks every clause on a harness of its own; newHarness makes one, which
// ends with t.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	check(t, Clauses(), func(t *testing.T) Controlled { return Controlled{Harness: newHarness(t)} })
}

// RunControlled checks the controlled clauses, which [Run] leaves out.
func RunControlled(t *testing.T, newHarness func(t *testing.T) Controlled) {
	t.Helper()
	check(t, ControlledClauses(), newHarness)
}

func check(t *testing.T, clauses []Clause, newHarness func(t *testing.T) Controlled) {
	t.Helper()
	for _, c := range clauses {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			h := newHarness(t)
			r := &run{T: t, h: h, ctx: ctx, opened: map[string]broker.Broker{}}
			r.local = r.ann().Place().Server == ""
			defer func() {
				if t.Failed() {
					t.Logf("promised: %s", c.Promise)
				}
			}()
			c.check(r)
		})
	}
}

// run is one clause being checked.
type run struct {
	*testing.T
	ctx    context.Context //nolint:containedctx // lives as long as the subtest
	h      Controlled
	local  bool
	opened map[string]broker.Broker
	logged int
}

// ann, bob and root are the broker as they see it; for the clause's own goroutine.
func (r *run) ann() broker.Broker  { return r.as("ann") }
func (r *run) bob() broker.Broker  { return r.as("bob") }
func (r *run) root() broker.Broker { return r.as("root") }

// as opens it when it is first needed.
func (r *run) as(account string) broker.Broker {
	r.Helper()
	if r.opened[account] == nil {
		r.opened[account] = r.open(account)
	}
	return r.opened[account]
}

// open opens the broker once more; it is closed at the end.
func (r *run) open(account string) broker.Broker {
	r.Helper()
	b := r.h.Open(r, account)
	r.Cleanup(func() {
		if err := b.Close(); err != nil {
			r.Errorf("Close: %v", err)
		}
	})
	return b
}

// of is a pool as the suite's files have it.
func of(name string, items ...string) pool.Pool {
	return pool.Pool{Name: name, Items: items, TTL: 30 * time.Second}
}

// many returns n names.
func many(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("k-%04d", i))
	}
	return names
}

func (r *run) must(what string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

// fault expects a refusal with its class and code.
func (r *run) fault(what string, err error, class fault.Class, code string) {
	r.Helper()
	if err == nil {
		r.Fatalf("%s was not refused, want %s %s", what, class, code)
	}
	if fault.Of(err) != class || fault.CodeOf(err) != code {
		r.Fatalf("%s: class %s and code %q, want %s and %q: %v", what, fault.Of(err), fault.CodeOf(err), class, code, err)
	}
}

func (r *run) publish(p pool.Pool) client.Pool {
	r.Helper()
	done, err := r.root().Publish(r.ctx, p, nil)
	r.must("Publish "+p.Name, err)
	return done
}

func (r *run) take(b broker.Broker, name string, o client.TakeOptions) *broker.Lease {
	r.Helper()
	l, err := b.Take(r.ctx, name, o)
	r.must("Take "+name, err)
	return l
}

func (r *run) release(l *broker.Lease, how client.ReleaseRequest) client.Released {
	r.Helper()
	done, err := l.Release(r.ctx, how)
	r.must("Release "+l.ID(), err)
	return done
}

// noneFree takes and expects that there is no key.
func (r *run) noneFree(b broker.Broker, name string, o client.TakeOptions) *client.Error {
	r.Helper()
	l, err := b.Take(r.ctx, name, o)
	if err == nil {
		r.Fatalf("Take %s got %s", name, l.Key())
	}
	r.fault("Take "+name, err, fault.Quota, "none_free")
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		r.Fatalf("Take %s: the server's answer is not in the error: %v", name, err)
	}
	return e
}

func (r *run) view(name string) broker.View {
	r.Helper()
	v, err := r.ann().Pool(r.ctx, name)
	r.must("Pool "+name, err)
	return v
}

// key returns one of a pool's keys, the zero Key when there is none.
func (r *run) key(name, key string) client.Key {
	r.Helper()
	for _, k := range r.view(name).Members {
		if k.Name == key {
			return k
		}
	}
	return client.Key{}
}

func (r *run) state(name, key, want string) {
	r.Helper()
	if got := r.key(name, key).State; got != want {
		r.Fatalf("key %s is %q, want %q", key, got, want)
	}
}

// until waits for something that others do, looking again and again.
func (r *run) until(what string, is func() bool) {
	r.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-r.ctx.Done():
			r.Fatalf("it never came to pass: %s", what)
		case <-tick.C:
		}
	}
}

// waiting waits until that many requests wait.
func (r *run) waiting(name string, n int) {
	r.Helper()
	r.until(fmt.Sprintf("%d wait", n), func() bool { return r.view(name).Waiting == n })
}

// taking is a take in the background.
type taking struct {
	over  chan struct{} // closed at its end
	lease *broker.Lease
	err   error
}

// start takes in the background; it ends before the brokers do.
func (r *run) start(ctx context.Context, b broker.Broker, name string, o client.TakeOptions) *taking {
	t := &taking{over: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(t.over)
		t.lease, t.err = b.Take(ctx, name, o)
	}()
	r.Cleanup(func() {
		cancel()
		select {
		case <-t.over:
		case <-time.After(time.Minute):
			r.Error("a take never ended")
		}
	})
	return t
}

// ended waits for a take in the background.
func (r *run) ended(t *taking) *taking {
	r.Helper()
	select {
	case <-t.over:
	case <-r.ctx.Done():
		r.Fatal("a take never ended")
	}
	return t
}

// began is a started entry of an action that no other is.
func (r *run) began(name, key string) action.Entry {
	r.logged++
	return action.Entry{
		Action: fmt.Sprintf("A%023d", r.logged), Phase: action.PhaseStarted, Pool: name, Key: key, Verb: action.VerbCreate,
		User: "somebody else", Host: "desk-3", Command: "./vms.sh create",
	}
}

// finished is the end of one.
func finished(e action.Entry, ok bool) action.Entry {
	e.Phase, e.OK, e.Detail = action.PhaseFinished, &ok, "done\n"
	return e
}

func (r *run) add(b broker.Broker, e action.Entry) action.Entry {
	r.Helper()
	kept, err := b.Append(r.ctx, e)
	r.must("Append", err)
	return kept
}
