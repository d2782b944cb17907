package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

// spy is a transaction that is looked at, and can be made to fail.
type spy struct {
	lease.Tx
	loads  int
	failAt int // the number of the load that fails; 0 for none
	want   func(*lease.Want)
	found  func(*lease.Found)
	save   func(*lease.Changes) error
	saves  int
	loaded int // rows
}

var errSpy = fault.New(fault.Unavailable, "the connection broke")

func (s *spy) Load(ctx context.Context, w lease.Want) (lease.Found, error) {
	if s.loads++; s.loads == s.failAt {
		return lease.Found{}, errSpy
	}
	if s.want != nil {
		s.want(&w)
	}
	f, err := s.Tx.Load(ctx, w)
	s.loaded += len(f.Keys) + len(f.Tickets) + len(f.Due)
	for i := range f.Candidates {
		s.loaded += len(f.Candidates[i].Keys)
	}
	for i := range f.Queues {
		s.loaded += len(f.Queues[i])
	}
	for i := range f.Lines {
		s.loaded += len(f.Lines[i].Keys)
	}
	for i := range f.Listed {
		s.loaded += len(f.Listed[i])
	}
	if s.found != nil {
		s.found(&f)
	}
	return f, err
}

func (s *spy) Save(ctx context.Context, c lease.Changes) error {
	s.saves++
	if s.save != nil {
		if err := s.save(&c); err != nil {
			return err
		}
	}
	return s.Tx.Save(ctx, c)
}

// spied is a Memory whose transactions go through the spy, and its clock.
func spied(s *spy) (m *leasetest.Memory, now *time.Time) {
	clock := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	m = leasetest.NewMemory(leasetest.Options{Now: func() time.Time { return clock }, Tx: func(t lease.Tx) lease.Tx {
		s.Tx = t
		return s
	}})
	return m, &clock
}

// tester is a test of the testing package or of rapid.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func do(t tester, m lease.Store, ops ...lease.Op) []lease.Result {
	t.Helper()
	all, err := m.Do(context.Background(), ops)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].Err != nil {
			t.Fatalf("op %d, %T: %v", i, ops[i], all[i].Err)
		}
	}
	return all
}

func take(pool, ticket string) lease.Take {
	return lease.Take{Ticket: ticket, Digest: ticket, Pool: pool, Account: "ann", Secret: lease.HashOf(ticket), RunsHooks: true}
}

func proof(r lease.Result, ticket string) lease.Proof {
	return lease.Proof{ID: r.Key.ID(), Secret: lease.HashOf(ticket), Account: "ann"}
}

// prepare fills a desk, and returns a transaction that needs all that there is
// to load.
func prepare(t tester, m lease.Store) (ops []lease.Op) {
	var items []string
	for i := range 40 {
		items = append(items, fmt.Sprintf("k%02d", i))
	}
	p := lease.Pool{Name: "p", Cooldown: time.Second, Hooks: lease.Hooks{Reset: true}}
	do(t, m, lease.OpenEpoch{}, lease.Publish{Pool: p, Items: items}, lease.Publish{Pool: lease.Pool{Name: "q"}, Items: []string{"k00", "k01"}},
		lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Scope: lease.ScopeExitIP}}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "n"}},
		lease.PutKey{Epoch: 1, Key: "m0", UID: "1", Pools: []string{"m"}, ExitIP: "192.0.2.1"}, lease.PutKey{Epoch: 1, Key: "m1", UID: "1", Pools: []string{"m"}, ExitIP: "192.0.2.1"},
		lease.Report{Key: "m0", Pool: "m", Target: "x.example", Outcome: lease.Banned})
	q := do(t, m, take("q", "1"), take("q", "2"))
	for i := range 100 {
		op := take("q", fmt.Sprint("w", i))
		op.Wait, op.Target = true, fmt.Sprintf("%d.example", i%7)
		do(t, m, op)
	}
	for i := range 30 { // waiters who can use nothing make the search go on
		op := take("p", fmt.Sprint("v", i))
		op.Wait, op.Target, op.Where = true, fmt.Sprintf("%d.example", i%3), map[string]string{"no": "such"}
		do(t, m, op)
	}
	held := do(t, m, take("p", "h"))[0]
	do(t, m, lease.BeginChange{ID: "c", Pool: "p", Keys: []string{"k30", "new"}, Account: "ann", TTL: time.Minute})
	picky := take("p", "picky")
	picky.Where = map[string]string{"no": "such"}
	aimed := func(op lease.Take) lease.Take {
		op.Target, op.Keep = "x.example", true
		return op
	}
	return []lease.Op{
		take("p", "3"), picky, aimed(take("q", "4")),
		lease.Live{Tickets: []string{"w1", "w99"}},
		lease.Leave{Ticket: "w2"},
		lease.Release{Proof: proof(q[0], "1"), Outcome: lease.Banned, Target: "x.example"},
		aimed(take("q", "w-new")),
		lease.Release{Proof: proof(held, "h"), Outcome: lease.Broken},
		lease.Renew{Proof: proof(q[1], "2")},
		lease.Lift{Key: "m1", Target: "x.example"},
		aimed(take("m", "5")),
		lease.Report{Key: "m1", Pool: "m", Target: "x.example", Outcome: lease.Banned},
		lease.Publish{Pool: lease.Pool{Name: "p"}, Items: append(items[:20:20], "new")},
		lease.EndChange{Pool: "p", ID: "c", Account: "ann"},
		lease.BeginChange{ID: "d", Pool: "p", Keys: []string{"another"}, Account: "ann", TTL: time.Minute},
		lease.PutKey{Epoch: 1, Key: "m2", UID: "1", Pools: []string{"m"}},
		lease.DropPool{Epoch: 1, Name: "n"},
		lease.DropKey{Epoch: 1, Key: "m0"},
		lease.Sweep{Limit: 10},
		lease.Revive{},
	}
}

// A transaction whose database fails, at whatever moment, says so and has done
// nothing.
func TestNothingIsKeptWhenTheDatabaseFails(t *testing.T) {
	s := &spy{}
	m, _ := spied(s)
	ops := prepare(t, m)
	s.loads = 0
	do(t, m, ops...)
	total := s.loads
	if total < 8 {
		t.Fatalf("only %d loads: the transaction is too small for this test", total)
	}
	for at := 1; at <= total+1; at++ {
		s := &spy{}
		m, _ := spied(s)
		ops := prepare(t, m)
		before := shown(t, m)
		s.loads, s.failAt = 0, at
		if at > total {
			s.save = func(*lease.Changes) error { return errSpy }
		}
		if _, err := m.Do(context.Background(), ops); !errors.Is(err, errSpy) {
			t.Fatalf("load %d of %d fails, and Do says %v", at, total, err)
		}
		s.failAt, s.save = 0, nil
		if d := cmp.Diff(before, shown(t, m), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("load %d of %d failed, and something was kept (-before +after):\n%s", at, total, d)
		}
		do(t, m, ops...) // sent again it is done
	}
}

// managed makes a pool of so many keys, two behind each address, whose uses are
// capped.
func managed(t tester, m lease.Store, keys int) {
	t.Helper()
	ops := []lease.Op{lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Cooldown: time.Minute, Scope: lease.ScopeExitIP, InFlight: 1}}}
	for i := range keys {
		ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("m%05d", i), UID: "1", Pools: []string{"m"}, ExitIP: fmt.Sprintf("2001:db8::%x", i/2)})
	}
	do(t, m, ops...)
}

func shown(t tester, m lease.Store) any {
	t.Helper()
	ctx := context.Background()
	pools, err := m.Pools(ctx, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	all := []any{pools}
	for _, p := range pools {
		keys, err := m.Keys(ctx, p.Name, "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		queue, err := m.Queue(ctx, p.Name, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, keys, queue)
	}
	events, _, err := m.Events(ctx, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return append(all, events)
}

// However many ops there are, a transaction goes to the database a few times.
func TestRoundTrips(t *testing.T) {
	many := func(n int, op func(i int) lease.Op) (ops []lease.Op) {
		for i := range n {
			ops = append(ops, op(i))
		}
		return ops
	}
	aimed := func(i, targets int, wait bool) lease.Take {
		op := take("p", fmt.Sprint("t", i))
		op.Target, op.Wait, op.Keep = fmt.Sprintf("%d.example", i%targets), wait, true
		return op
	}
	var items []string
	for i := range 300 {
		items = append(items, fmt.Sprintf("k%03d", i))
	}
	cooling := lease.Pool{Name: "p", Cooldown: time.Minute}
	held := func(t *testing.T, m lease.Store, target func(int) string) (proofs []lease.Proof) {
		for i, r := range do(t, m, many(256, func(i int) lease.Op {
			op := take("p", fmt.Sprint("h", i))
			op.Target = target(i)
			return op
		})...) {
			proofs = append(proofs, proof(r, fmt.Sprint("h", i)))
		}
		return proofs
	}
	none := func(int) string { return "" }
	for name, tc := range map[string]struct {
		reason string
		most   int
		ops    func(t *testing.T, m lease.Store) []lease.Op
	}{
		"takes": {"one load says what the pool is like, one for keys, one for their rests", 3, func(*testing.T, lease.Store) []lease.Op {
			return many(256, func(i int) lease.Op { return aimed(i, 40, false) })
		}},
		"takes that get nothing": {"one more says what comes free next, for up to 64 targets at once", 7, func(t *testing.T, m lease.Store) []lease.Op {
			do(t, m, lease.Publish{Pool: cooling, Items: items[:1]})
			return many(256, func(i int) lease.Op { return aimed(i, 256, true) })
		}},
		"takes behind a long queue": {"their places are counted at once", 4, func(t *testing.T, m lease.Store) []lease.Op {
			do(t, m, lease.Publish{Pool: cooling, Items: items[:1]})
			do(t, m, take("p", "holder"))
			do(t, m, many(1000, func(i int) lease.Op { return aimed(i, 1, true) })...)
			return many(256, func(i int) lease.Op { return aimed(900+i, 1, true) })
		}},
		"renewals": {"one load for all", 1, func(t *testing.T, m lease.Store) []lease.Op {
			proofs := held(t, m, none)
			return many(256, func(i int) lease.Op { return lease.Renew{Proof: proofs[i]} })
		}},
		"releases": {"one load for all", 1, func(t *testing.T, m lease.Store) []lease.Op {
			proofs := held(t, m, none)
			return many(256, func(i int) lease.Op { return lease.Release{Proof: proofs[i]} })
		}},
		"releases that rest": {"the rests of all are asked for at once", 2, func(t *testing.T, m lease.Store) []lease.Op {
			proofs := held(t, m, func(i int) string { return fmt.Sprintf("%d.example", i) })
			return many(256, func(i int) lease.Op { return lease.Release{Proof: proofs[i]} })
		}},
		"bans": {"the rests of all are asked for at once", 2, func(*testing.T, lease.Store) []lease.Op {
			return many(256, func(i int) lease.Op {
				return lease.Report{Key: items[i], Pool: "p", Target: "x.example", Outcome: lease.Banned}
			})
		}},
		"picks of many keys": {"one load with all lines, one for the keys that are chosen", 2, func(t *testing.T, m lease.Store) []lease.Op {
			managed(t, m, 400)
			return many(256, func(i int) lease.Op {
				return lease.Take{Pool: "m", Target: fmt.Sprintf("%d.example", i%64), Account: "ann", Quick: true}
			})
		}},
		"picks of few keys": {"one says that they are few, one loads them, one their rests", 3, func(t *testing.T, m lease.Store) []lease.Op {
			managed(t, m, 20)
			return many(64, func(i int) lease.Op {
				return lease.Take{Pool: "m", Target: fmt.Sprintf("%d.example", i%64), Account: "ann", Quick: true}
			})
		}},
		"reports of picks": {"keys and pools, then all that ends with the uses", 2, func(t *testing.T, m lease.Store) []lease.Op {
			managed(t, m, 400)
			picks := do(t, m, many(256, func(i int) lease.Op {
				return lease.Take{Pool: "m", Target: fmt.Sprintf("%d.example", i%64), Account: "ann", Quick: true}
			})...)
			return many(256, func(i int) lease.Op {
				id := picks[i].Use.ID
				return lease.Report{Key: id.Key, Pool: "m", Target: fmt.Sprintf("%d.example", i%64), Outcome: lease.OK, Use: id, Account: "ann"}
			})
		}},
		"broken keys": {"the pool is counted once", 2, func(t *testing.T, m lease.Store) []lease.Op {
			proofs := held(t, m, none)
			return many(256, func(i int) lease.Op { return lease.Release{Proof: proofs[i], Outcome: lease.Broken} })
		}},
		"release and take": {"rests of keys that came free are asked for at once", 4, func(t *testing.T, m lease.Store) []lease.Op {
			proofs := held(t, m, none)
			return append(many(256, func(i int) lease.Op { return lease.Release{Proof: proofs[i]} }), many(256, func(i int) lease.Op { return aimed(i, 1, false) })...)
		}},
		"managed keys": {"bars of new names are asked for at once", 2, func(t *testing.T, m lease.Store) []lease.Op {
			do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m"}})
			return many(256, func(i int) lease.Op {
				return lease.PutKey{Epoch: 1, Key: fmt.Sprint("m", i), UID: "1", Pools: []string{"m"}}
			})
		}},
		"a sweep": {"one load for all", 1, func(t *testing.T, m lease.Store) []lease.Op {
			held(t, m, none)
			m.(*leasetest.Memory).Advance(time.Hour)
			return []lease.Op{lease.Sweep{Limit: 1000}}
		}},
		"a list": {"members, keys and bars, once each", 4, func(*testing.T, lease.Store) []lease.Op {
			return []lease.Op{lease.Publish{Pool: lease.Pool{Name: "q"}, Items: append(items[:100:100], "new")}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &spy{}
			m, _ := spied(s)
			do(t, m, lease.Publish{Pool: cooling, Items: items})
			ops := tc.ops(t, m)
			s.loads = 0
			if _, err := m.Do(t.Context(), ops); err != nil {
				t.Fatal(err)
			}
			if s.loads > tc.most {
				t.Errorf("%s: %d ops made %d loads, want at most %d", tc.reason, len(ops), s.loads, tc.most)
			}
		})
	}
}

// A row is written with the version that it was read with, and says which of
// its parts changed.
func TestWrites(t *testing.T) {
	s := &spy{}
	m, _ := spied(s)
	var keys []lease.KeyWrite
	s.save = func(c *lease.Changes) error {
		keys = c.Keys
		return nil
	}
	wrote := func(reason string, want lease.KeyWrite) {
		t.Helper()
		if len(keys) != 1 {
			t.Fatalf("%s: %d rows were written", reason, len(keys))
		}
		if k := keys[0]; k.Version != want.Version || k.Relist != want.Relist || k.Facts != want.Facts {
			t.Errorf("%s: version %d, relist %v, facts %v; want %d, %v, %v", reason, k.Version, k.Relist, k.Facts, want.Version, want.Relist, want.Facts)
		}
		keys = nil
	}
	version := func(n int64, relist, facts bool) lease.KeyWrite {
		return lease.KeyWrite{Key: lease.Key{Version: n}, Relist: relist, Facts: facts}
	}
	do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m"}})
	put := lease.PutKey{Epoch: 1, Key: "a", UID: "1", Pools: []string{"m"}}
	do(t, m, put)
	wrote("a new row is written whole", version(0, true, true))
	g := do(t, m, take("m", "1"))[0]
	wrote("a take", version(1, false, false))
	put.Unfit = "ill"
	do(t, m, put)
	wrote("a fact", version(2, false, true))
	put.Pools = nil
	do(t, m, put)
	wrote("a list that is left while held", version(3, true, false))
	put.Pools = []string{"m"}
	do(t, m, put)
	wrote("and come back to", version(4, true, false))
	do(t, m, lease.Release{Proof: proof(g, "1")}, lease.Disable{Key: "a"})
	wrote("two ops are one write", version(5, false, false))
	saves := s.saves
	do(t, m, lease.Live{Tickets: []string{"nobody"}}, lease.Release{Proof: proof(g, "1")}, lease.Leave{Ticket: "nobody"}, lease.EndChange{Pool: "m", ID: "none"})
	if s.saves != saves {
		t.Error("ops that change nothing were saved")
	}

	// A row that somebody changed without the lock is not overwritten.
	s.found = func(f *lease.Found) {
		for i := range f.Keys {
			f.Keys[i].Version--
		}
	}
	before := shown(t, m)
	if _, err := m.Do(t.Context(), []lease.Op{lease.Disable{Key: "a", Reason: "stale"}}); fault.Of(err) != fault.Transient {
		t.Errorf("a stale row was written: %v", err)
	}
	s.found = nil
	if d := cmp.Diff(before, shown(t, m)); d != "" {
		t.Errorf("a transaction that failed kept something:\n%s", d)
	}
}

// Those who may find a key are told, and nobody for nothing.
func TestFreed(t *testing.T) {
	s := &spy{}
	m, now := spied(s)
	var freed []string
	s.save = func(c *lease.Changes) error {
		freed = c.Freed
		return nil
	}
	is := func(reason string, want ...string) {
		t.Helper()
		if !slices.Equal(freed, want) {
			t.Errorf("%s: freed %v, want %v", reason, freed, want)
		}
		freed = nil
	}
	do(t, m, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a"}})
	is("a new key", "p")
	do(t, m, lease.Publish{Pool: lease.Pool{Name: "q"}, Items: []string{"a"}})
	is("a key in another pool too", "p", "q")
	g := do(t, m, take("p", "1"))[0]
	is("a take frees nothing")
	do(t, m, lease.Renew{Proof: proof(g, "1"), TTL: time.Hour})
	is("nor does a longer lease")
	do(t, m, lease.Renew{Proof: proof(g, "1"), TTL: time.Minute})
	is("a lease that ends sooner does, for who waits until then", "p", "q")
	do(t, m, lease.Unclaim{ID: g.Key.ID(), Secret: lease.HashOf("1")})
	is("and one that was not claimed", "p", "q")
	*now = now.Add(time.Minute)
	do(t, m, lease.Sweep{Limit: 10})
	is("an expired lease", "p", "q")
	do(t, m, take("p", "2"))
	*now = now.Add(time.Hour)
	g = do(t, m, take("q", "3"))[0]
	is("an expired lease that was taken at once is nobody else's")
	all := do(t, m, lease.Release{Proof: proof(g, "3")}, take("p", "4"))
	is("nor is a key that was given back and taken")
	do(t, m, lease.Release{Proof: proof(all[1], "4")})
	is("a key given back", "p", "q")
	do(t, m, lease.Disable{Key: "a"})
	is("a disabled key")
	do(t, m, lease.Enable{Key: "a"})
	is("an enabled key", "p", "q")
	do(t, m, lease.BeginChange{ID: "c", Pool: "q", Keys: []string{"a"}, Account: "ann", TTL: time.Minute})
	is("a barred key")
	do(t, m, lease.EndChange{ID: "c", Pool: "q", Account: "ann"})
	is("a key whose change ended", "p", "q")
	do(t, m, lease.Report{Key: "a", Pool: "p", Target: "x.example", Outcome: lease.Banned})
	is("a banned key")
	do(t, m, lease.Lift{Key: "a", Target: "x.example"})
	is("a key whose ban was lifted", "p", "q")
}
