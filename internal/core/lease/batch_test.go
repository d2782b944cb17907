package lease_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

// told is what a result says, but for what may be said more or less exactly.
type told struct {
	Class           fault.Class
	Code            string
	Key             *lease.Key
	Lease           *lease.Lease
	Use             *lease.Use
	Rest            *lease.Cooldown
	Replayed, Busy  bool
	Position, Ahead int
	Seq             int64
	Pool            *lease.Pool
	Epoch           int64
	Change          *lease.Change
	Capped          bool
}

func tell(r lease.Result) told {
	t := told{
		Class: fault.Of(r.Err), Code: fault.CodeOf(r.Err), Key: r.Key, Lease: r.Lease, Replayed: r.Replayed, Pool: r.Pool, Epoch: r.Epoch,
		Change: r.Change, Capped: r.Capped, Busy: r.Busy != nil, Use: r.Use, Rest: r.Rest,
	}
	if r.Busy != nil {
		t.Position, t.Ahead, t.Seq = r.Busy.Position, r.Busy.Ahead, r.Busy.Seq
	}
	return t
}

// state is everything that a store shows.
type state struct {
	Pools     []lease.PoolStatus
	Keys      []lease.Key
	Queues    [][]lease.Ticket
	Cooldowns [][]lease.Cooldown
	Events    []lease.Event
}

var (
	batchKeys  = []string{"a", "b", "c", "m", "n", "new"}
	batchPools = []string{"p", "q", "x", "y"}
)

func stateOf(t *rapid.T, s lease.Store) state {
	ctx := context.Background()
	var all state
	must := func(err error) {
		if err != nil && fault.Of(err) != fault.NotFound {
			t.Fatal(err)
		}
	}
	var err error
	all.Pools, err = s.Pools(ctx, "", 100)
	must(err)
	for _, n := range batchKeys {
		keys, err := s.Key(ctx, n)
		must(err)
		all.Keys = append(all.Keys, keys.Keys...)
		rests, err := s.Cooldowns(ctx, n, "", 100)
		must(err)
		all.Cooldowns = append(all.Cooldowns, rests)
	}
	for _, p := range batchPools {
		queue, err := s.Queue(ctx, p, 0, 100)
		must(err)
		all.Queues = append(all.Queues, queue)
	}
	all.Events, _, err = s.Events(ctx, 0, 100_000)
	must(err)
	return all
}

// script makes ops; proofs are of leases that were granted so far.
type script struct {
	*rapid.T
	proofs []lease.Proof
	uses   []lease.ID
	epoch  int64
	begun  []lease.BeginChange
}

func pick[T any](s *script, what string, of ...T) T { return rapid.SampledFrom(of).Draw(s.T, what) }

func (s *script) proof() lease.Proof {
	if len(s.proofs) == 0 {
		return lease.Proof{ID: lease.ID{Key: "a", Fence: 1}}
	}
	return s.proofs[len(s.proofs)-1-min(len(s.proofs)-1, rapid.IntRange(0, 8).Draw(s.T, "lease"))]
}

// change is one of the last changes that were begun, or tried to.
func (s *script) change() lease.BeginChange {
	if len(s.begun) == 0 {
		return lease.BeginChange{ID: "none", Pool: "p"}
	}
	return s.begun[len(s.begun)-1-min(len(s.begun)-1, rapid.IntRange(0, 2).Draw(s.T, "change"))]
}

func (s *script) key() string  { return pick(s, "key", batchKeys...) }
func (s *script) pool() string { return pick(s, "pool", batchPools...) }
func (s *script) target() string {
	return pick(s, "target", "", "x.example", "y.example", "www.x.example")
}

// use is one of the last picks or leases.
func (s *script) use() lease.ID {
	if len(s.uses) == 0 {
		return lease.ID{}
	}
	return s.uses[len(s.uses)-1-min(len(s.uses)-1, rapid.IntRange(0, 4).Draw(s.T, "use"))]
}

func (s *script) some(of ...string) []string {
	return rapid.SliceOfDistinct(rapid.SampledFrom(of), rapid.ID).Draw(s.T, "some")
}

func (s *script) settings(name string) lease.Pool {
	return lease.Pool{
		Name: name, TTL: 20 * time.Second, MaxTTL: time.Minute, Cooldown: pick(s, "cooldown", 0, 5*time.Second),
		Hooks: lease.Hooks{Reset: pick(s, "reset", true, false)}, Scope: pick(s, "scope", lease.ScopeKey, lease.ScopeExitIP),
		Ban:      lease.Ban{Initial: 10 * time.Second, Factor: 2, Max: 25 * time.Second},
		InFlight: pick(s, "in flight", 0, 0, 1, 2), NewShare: pick(s, "new share", 0, 30, 100), Sites: pick(s, "sites", true, false),
	}
}

func (s *script) op() lease.Op {
	switch rapid.IntRange(0, 33).Draw(s.T, "op") {
	default:
		id := pick(s, "ticket", "1", "2", "3", "4", "keep 1", "keep 2")
		op := lease.Take{
			Ticket: id, Digest: id, Account: "ann", Secret: lease.HashOf(id), Pool: s.pool(), Target: s.target(), Keep: len(id) > 1,
			Wait: pick(s, "wait", true, false), RunsHooks: pick(s, "hooks", true, true, true, false), TTL: pick(s, "ttl", 0, 5*time.Second),
		}
		if pick(s, "picky", true, false, false) {
			op.Where = map[string]string{"country": pick(s, "country", "de", "fr")}
		} else if pick(s, "like", true, false, false) {
			op.Match = []lease.Match{{Attribute: "country", Op: lease.NotIn, Values: []string{pick(s, "country", "de", "fr")}}}
		}
		return op
	case 27, 28, 29, 30:
		op := lease.Take{Pool: s.pool(), Target: s.target(), Account: "ann", Quick: true, IfDone: pick(s, "if done", true, false)}
		if pick(s, "picky", true, false, false) {
			op.Where = map[string]string{"country": pick(s, "country", "de", "fr")}
		}
		return op
	case 31, 32:
		id := s.use()
		return lease.Report{
			Key: id.Key, Pool: s.pool(), Target: s.target(), Outcome: pick(s, "outcome", lease.OK, lease.Banned, lease.Failed),
			Use: id, Account: pick(s, "account", "ann", "ann", "bob"),
		}
	case 0:
		return lease.Live{Tickets: s.some("1", "2", "3", "4", "keep 1")}
	case 1:
		return lease.Leave{Ticket: pick(s, "ticket", "1", "2", "3", "keep 1"), Forget: pick(s, "forget", true, false)}
	case 2: // a server's first op, see below
		return lease.Sweep{Limit: 1000}
	case 3:
		p := s.proof()
		return lease.Unclaim{ID: p.ID, Secret: p.Secret}
	case 4:
		return lease.Renew{Proof: s.proof(), TTL: pick(s, "ttl", 0, 5*time.Second, time.Minute), Reset: pick(s, "reset", "", lease.ResetBegin, lease.ResetDone)}
	case 5, 6, 7:
		return lease.Release{
			Proof: s.proof(), Outcome: pick(s, "outcome", lease.OK, lease.OK, lease.Banned, lease.Failed, lease.Broken), Target: s.target(),
			Reset: pick(s, "reset", "", lease.ResetDone, lease.ResetFailed),
		}
	case 8:
		return lease.Report{Key: s.key(), Pool: s.pool(), Target: s.target(), Outcome: pick(s, "outcome", lease.OK, lease.Banned, lease.Failed)}
	case 9:
		return lease.Lift{Key: s.key(), Target: s.target()}
	case 10:
		return lease.Disable{Key: s.key(), By: "root"}
	case 11:
		return lease.Enable{Key: s.key(), By: "root"}
	case 12:
		return lease.Force{Key: s.key(), By: "root"}
	case 13, 14:
		return lease.Publish{Pool: s.settings(s.pool()), Items: s.some(batchKeys...)}
	case 15:
		return lease.OpenEpoch{}
	case 16:
		return lease.PutPool{Epoch: s.epoch, Pool: s.settings(s.pool())}
	case 17:
		return lease.DropPool{Epoch: s.epoch, Name: s.pool()}
	case 18, 19:
		return lease.PutKey{
			Epoch: s.epoch, Key: s.key(), UID: pick(s, "uid", "1", "1", "2"), Pools: s.some(batchPools...), ExitIP: pick(s, "address", "", "192.0.2.1", "192.0.2.2"),
			Attributes: map[string]string{"country": pick(s, "country", "de", "fr")}, Unfit: pick(s, "unfit", "", "", "", "ill"),
			Weight: pick(s, "weight", 0, 0, 50, 10),
		}
	case 20:
		return lease.DropKey{Epoch: s.epoch, Key: s.key(), UID: pick(s, "uid", "", "1", "2")}
	case 21:
		if len(s.begun) == 0 || pick(s, "another", true, true, false) {
			s.begun = append(s.begun, lease.BeginChange{ID: fmt.Sprint("c", len(s.begun)), Pool: s.pool(), Keys: s.some("a", "b", "new"), Account: "ann", TTL: 30 * time.Second})
		}
		return s.change()
	case 22:
		ch := s.change()
		return lease.RenewChange{ID: ch.ID, Pool: ch.Pool, Account: "ann", TTL: pick(s, "ttl", 10*time.Second, time.Minute)}
	case 23:
		ch := s.change()
		return lease.EndChange{ID: ch.ID, Pool: ch.Pool, Account: "ann"}
	case 24:
		return lease.Sweep{Limit: 1000}
	}
}

// Ops that are sent together do what they do one after another: nothing that a
// transaction remembers of itself differs from what a database would say.
func TestBatchesAreInvariant(t *testing.T) { batchesAreInvariant(t, nil) }

// The same where every pool has lines.
func TestBatchesAreInvariantInLines(t *testing.T) { batchesAreInvariant(t, leasetest.InLines) }

func batchesAreInvariant(t *testing.T, wrap func(lease.Tx) lease.Tx) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
		clock := leasetest.Options{Now: func() time.Time { return now }, Tx: wrap}
		single, together := leasetest.NewMemory(clock), leasetest.NewMemory(clock)
		ctx := context.Background()
		s := &script{T: t, epoch: 1}
		begin := []lease.Op{
			lease.OpenEpoch{},
			lease.Publish{Pool: s.settings("p"), Items: []string{"a", "b"}},
			lease.PutPool{Epoch: 1, Pool: s.settings("x")},
			lease.PutKey{Epoch: 1, Key: "m", UID: "1", Pools: []string{"x"}, ExitIP: "192.0.2.1", Attributes: map[string]string{"country": "de"}},
			lease.PutKey{Epoch: 1, Key: "n", UID: "1", Pools: []string{"x"}, ExitIP: "192.0.2.1", Attributes: map[string]string{"country": "fr"}},
		}
		for range rapid.IntRange(1, 8).Draw(t, "batches") {
			ops := begin
			begin = nil
			var want []told
			one := func(op lease.Op) {
				all, err := single.Do(ctx, []lease.Op{op})
				if err != nil {
					t.Fatalf("%T alone: %v", op, err)
				}
				res := all[0]
				if op, ok := op.(lease.Take); ok && res.Err == nil && res.Key != nil {
					if res.Use != nil {
						s.uses = append(s.uses, res.Use.ID)
					} else {
						s.uses = append(s.uses, res.Key.ID())
						s.proofs = append(s.proofs, lease.Proof{ID: res.Key.ID(), Secret: op.Secret, Account: op.Account})
					}
				}
				if res.Epoch > 0 {
					s.epoch = res.Epoch
				}
				want = append(want, tell(res))
			}
			if pick(s, "revive", true, false, false) {
				ops = append([]lease.Op{lease.Revive{}}, ops...)
			}
			for _, op := range ops {
				one(op)
			}
			for range rapid.IntRange(0, 12).Draw(t, "ops") {
				op := s.op()
				if t, ok := op.(lease.Take); ok && t.IfDone && len(want) > 0 && want[len(want)-1].Code != "" {
					t.IfDone = false // alone it has no op before it
					op = t
				}
				ops = append(ops, op)
				one(op)
			}
			results, err := together.Do(ctx, ops)
			if err != nil {
				t.Fatalf("together: %v", err)
			}
			ignore := cmp.Options{cmpopts.IgnoreFields(lease.Key{}, "Version"), cmpopts.EquateEmpty(), cmpopts.SortSlices(func(a, b lease.Bar) bool { return a.Change < b.Change })}
			for i, res := range results {
				if d := cmp.Diff(want[i], tell(res), ignore); d != "" {
					t.Fatalf("op %d of %d, %#v, does otherwise together (-alone +together):\n%s\nall: %s", i, len(ops), ops[i], d, all(ops))
				}
			}
			if d := cmp.Diff(stateOf(t, single), stateOf(t, together), ignore); d != "" {
				t.Fatalf("the state differs (-alone +together):\n%s\nafter: %s", d, all(ops))
			}
			now = now.Add(pick(s, "step", time.Millisecond, time.Second, 5*time.Second, 11*time.Second, 16*time.Second, time.Minute))
		}
	})
}

func all(ops []lease.Op) string {
	text := ""
	for _, op := range ops {
		text += fmt.Sprintf("\n  %T%+v", op, op)
	}
	return text
}

// A pick has none of the keys that need a reset; a lease beside it does.
func TestBatchQuickAndLease(t *testing.T) {
	quick := lease.Take{Quick: true, Pool: "q", Account: "ann"}
	hold := take("q", "hold")
	for name, ops := range map[string][]lease.Op{"the pick first": {quick, hold}, "the lease first": {hold, quick}, "many": {quick, quick, hold, quick}} {
		m, now := spied(&spy{})
		do(t, m, lease.Publish{Pool: lease.Pool{Name: "p", Hooks: lease.Hooks{Reset: true}}, Items: []string{"a"}}, lease.Publish{Pool: lease.Pool{Name: "q"}, Items: []string{"a"}})
		first := take("p", "first")
		first.RunsHooks = true
		do(t, m, first)
		*now = now.Add(lease.MaxTTL)
		for i, r := range do(t, m, ops...) {
			if got := r.Key != nil; got == ops[i].(lease.Take).Quick {
				t.Errorf("%s: op %d got a key: %v", name, i, got)
			}
		}
	}
}
