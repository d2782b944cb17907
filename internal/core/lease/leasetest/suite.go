package leasetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// Harness is a store to be examined.
type Harness struct {
	// Stores are handles on one new and empty database; the suite uses them in
	// turn and expects that they behave as one. At least one.
	Stores []lease.Store
	// Advance moves the database's clock as all handles see it, beside its own
	// going on. A negative d turns the clock back.
	Advance func(d time.Duration)
	// OpenAction bars a name, which need not be a key's, as an action on it that
	// was started and is neither finished nor resolved; change is the id of the
	// person's change that it belongs to, "" for none. CloseAction ends that.
	OpenAction  func(ctx context.Context, name, action, change, by string) error
	CloseAction func(ctx context.Context, name, action string) error
}

// Clause is one promise of [lease.Store], or of the rules as they show through
// one.
type Clause struct {
	Name, Promise string
	check         func(r *run)
}

// RunStore checks every clause on a harness of its own; newHarness makes one
// and cleans up after itself.
func RunStore(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range Clauses() {
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			h := newHarness(t)
			r := &run{T: t, h: h, ctx: ctx}
			defer func() {
				if t.Failed() {
					t.Logf("promised: %s", c.Promise)
				}
			}()
			c.check(r)
		})
	}
}

// Clauses returns the suite, by subject.
func Clauses() []Clause {
	return slices.Concat(takeClauses(), queueClauses(), leaseClauses(), resetClauses(), restClauses(),
		listClauses(), managedClauses(), changeClauses(), sweepClauses(), readClauses(), txClauses(), turnClauses(), matchClauses(), quickClauses(), flightClauses())
}

// run is one clause being checked.
type run struct {
	*testing.T
	h    Harness
	ctx  context.Context //nolint:containedctx // lives as long as the subtest
	turn int
}

// store returns the next handle.
func (r *run) store() lease.Store {
	r.turn++
	return r.h.Stores[r.turn%len(r.h.Stores)]
}

// do runs ops in one transaction.
func (r *run) do(ops ...lease.Op) []lease.Result {
	r.Helper()
	results, err := r.store().Do(r.ctx, ops)
	if err != nil {
		r.Fatalf("Do: %v", err)
	}
	if len(results) != len(ops) {
		r.Fatalf("Do: %d results for %d ops", len(results), len(ops))
	}
	for i := range results {
		if results[i].Now.IsZero() || !results[i].Now.Equal(results[0].Now) {
			r.Fatalf("result %d has the time %v, the first one %v", i, results[i].Now, results[0].Now)
		}
	}
	return results
}

// ok runs one op that is not refused.
func (r *run) ok(op lease.Op) lease.Result {
	r.Helper()
	res := r.do(op)[0]
	if res.Err != nil {
		r.Fatalf("%T: %v", op, res.Err)
	}
	return res
}

// refused runs one op that is refused with that class and code, and changes
// nothing.
func (r *run) refused(op lease.Op, class fault.Class, code string) lease.Result {
	r.Helper()
	res := r.do(op)[0]
	r.fault(fmt.Sprintf("%T", op), res.Err, class, code)
	return res
}

// fault checks an error's class and code.
func (r *run) fault(what string, err error, class fault.Class, code string) {
	r.Helper()
	if err == nil {
		r.Fatalf("%s was not refused, want %s %s", what, class, code)
	}
	if got := fault.Of(err); got != class || fault.CodeOf(err) != code {
		r.Fatalf("%s: class %s and code %q, want %s and %q: %v", what, got, fault.CodeOf(err), class, code, err)
	}
}

// got is a lease as its client knows it.
type got struct {
	lease.Proof
	key   lease.Key
	lease lease.Lease
	at    time.Time // the transaction's
}

// ask is a request named by its ticket, which is its secret too.
func ask(pool, ticket string) lease.Take {
	return lease.Take{Ticket: ticket, Digest: "asks " + pool, Pool: pool, Account: "ann", Holder: "job of " + ticket, Secret: lease.HashOf(ticket)}
}

// waits is the request with a wait.
func waits(op lease.Take) lease.Take {
	op.Wait = true
	return op
}

func kept4replay(op lease.Take) lease.Take {
	op.Keep = true
	return op
}

func aimed(op lease.Take, target string) lease.Take {
	op.Target = target
	return op
}

// granted is what a result that must be a grant says.
func (r *run) granted(op lease.Take, res lease.Result) got {
	r.Helper()
	switch {
	case res.Err != nil:
		r.Fatalf("the take %s was refused: %v", op.Ticket, res.Err)
	case res.Busy != nil:
		r.Fatalf("the take %s found no key: %+v", op.Ticket, *res.Busy)
	case res.Key == nil || res.Lease == nil:
		r.Fatalf("the take %s has neither key nor reason: %+v", op.Ticket, res)
	}
	return got{Proof: lease.Proof{ID: lease.ID{Key: res.Key.Name, Fence: res.Lease.Fence}, Secret: op.Secret, Account: op.Account}, key: *res.Key, lease: *res.Lease, at: res.Now}
}

// take takes a key, which must be free.
func (r *run) take(op lease.Take) got {
	r.Helper()
	return r.granted(op, r.do(op)[0])
}

// takes expects to be given that key.
func (r *run) takes(op lease.Take, key string) got {
	r.Helper()
	g := r.take(op)
	if g.ID.Key != key {
		r.Fatalf("the take %s got %s, want %s", op.Ticket, g.ID.Key, key)
	}
	return g
}

// busy takes and expects that there is no key.
func (r *run) busy(op lease.Take) lease.Busy {
	r.Helper()
	res := r.do(op)[0]
	switch {
	case res.Err != nil:
		r.Fatalf("the take %s was refused: %v", op.Ticket, res.Err)
	case res.Busy == nil:
		r.Fatalf("the take %s got %s, want nothing", op.Ticket, res.Key.Name)
	case res.Key != nil || res.Lease != nil:
		r.Fatalf("the take %s got nothing and a key: %+v", op.Ticket, res)
	}
	return *res.Busy
}

// queued takes and expects to wait at that position.
func (r *run) queued(op lease.Take, position int) {
	r.Helper()
	if b := r.busy(waits(op)); b.Position != position || b.Ahead != position-1 {
		r.Fatalf("%s waits at position %d with %d ahead, want %d", op.Ticket, b.Position, b.Ahead, position)
	}
}

func (r *run) release(g got) lease.Result {
	r.Helper()
	return r.ok(lease.Release{Proof: g.Proof})
}

// pool is one with short times.
func pool(name string) lease.Pool {
	return lease.Pool{Name: name, TTL: time.Minute, MaxTTL: 10 * time.Minute, Ban: lease.Ban{Initial: time.Minute, Factor: 2, Max: 3 * time.Minute}, By: "root"}
}

func (r *run) publish(p lease.Pool, items ...string) lease.Pool {
	r.Helper()
	return *r.ok(lease.Publish{Pool: p, Items: items}).Pool
}

// manage makes a managed pool under a new epoch, which it returns.
func (r *run) manage(pools ...lease.Pool) int64 {
	r.Helper()
	epoch := r.ok(lease.OpenEpoch{Owner: "operator"}).Epoch
	for _, p := range pools {
		r.ok(lease.PutPool{Epoch: epoch, Pool: p})
	}
	return epoch
}

// put writes a managed key named by its UID's first part: "a/1" is key a.
func (r *run) put(epoch int64, uid, exitIP string, attributes map[string]string, pools ...string) lease.Key {
	r.Helper()
	name, _, _ := strings.Cut(uid, "/")
	return *r.ok(lease.PutKey{Epoch: epoch, Key: name, UID: uid, Pools: pools, ExitIP: exitIP, Attributes: attributes}).Key
}

func (r *run) advance(d time.Duration) {
	r.Helper()
	r.h.Advance(d)
}

// key reads one.
func (r *run) key(name string) (lease.Key, time.Time) {
	r.Helper()
	keys, err := r.store().Key(r.ctx, name)
	if err != nil {
		r.Fatalf("Key(%s): %v", name, err)
	}
	if len(keys.Keys) != 1 || keys.Keys[0].Name != name {
		r.Fatalf("Key(%s): %+v", name, keys.Keys)
	}
	return keys.Keys[0], keys.Now
}

// state checks what a key looks like.
func (r *run) state(name string, want lease.State) {
	r.Helper()
	k, now := r.key(name)
	if got := k.State(now); got != want {
		r.Fatalf("key %s is %s, want %s", name, got, want)
	}
}

// noKey expects that the name is no key's.
func (r *run) noKey(name string) {
	r.Helper()
	_, err := r.store().Key(r.ctx, name)
	r.fault("Key("+name+")", err, fault.NotFound, "key")
}

// status reads a pool.
func (r *run) status(name string) lease.PoolStatus {
	r.Helper()
	s, err := r.store().Pool(r.ctx, name)
	if err != nil {
		r.Fatalf("Pool(%s): %v", name, err)
	}
	return s
}

// tickets are the ids of a pool's queue.
func (r *run) tickets(pool string) []string {
	r.Helper()
	all, err := r.store().Queue(r.ctx, pool, 0, 1000)
	if err != nil {
		r.Fatalf("Queue(%s): %v", pool, err)
	}
	ids := []string{}
	for _, t := range all {
		ids = append(ids, t.ID)
	}
	return ids
}

// kinds are the kinds of the events after a cursor, with their keys.
func (r *run) kinds(after int64) []string {
	r.Helper()
	events, _, err := r.store().Events(r.ctx, after, 1000)
	if err != nil {
		r.Fatalf("Events: %v", err)
	}
	kinds := []string{}
	for _, e := range events {
		kinds = append(kinds, strings.TrimSpace(e.Kind+" "+e.Key))
	}
	return kinds
}

// cursor is the number of the last event.
func (r *run) cursor() int64 {
	r.Helper()
	after := int64(0)
	for {
		events, _, err := r.store().Events(r.ctx, after, 1000)
		if err != nil {
			r.Fatalf("Events: %v", err)
		}
		if len(events) == 0 {
			return after
		}
		after = events[len(events)-1].Seq
	}
}

// same compares what was read with what was written; empty and nil are one.
func (r *run) same(what string, want, have any) {
	r.Helper()
	if d := cmp.Diff(want, have, cmpopts.EquateEmpty()); d != "" {
		r.Fatalf("%s (-want +got):\n%s", what, d)
	}
}
