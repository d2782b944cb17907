package lease_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

// exactly answers takes beside a store, from the same state and without keeping
// anything, by comparing all keys with each other.
type exactly struct {
	lease.Tx
	ask  lease.Op // what to answer at the next load, nil for nothing
	now  func() time.Time
	told lease.Result
}

// looksAtAll is a transaction in which every pool counts as one of few keys.
type looksAtAll struct{ lease.Tx }

func (t looksAtAll) Load(ctx context.Context, w lease.Want) (lease.Found, error) {
	f, err := t.Tx.Load(ctx, w)
	for i := range f.Free {
		f.Free[i] = 0
	}
	return f, err
}

func (looksAtAll) Save(context.Context, lease.Changes) error { return nil }

func (e *exactly) Load(ctx context.Context, w lease.Want) (lease.Found, error) {
	if e.ask != nil {
		op := e.ask
		e.ask = nil
		// The number of a pick says whether it looks at new keys first: pools here
		// have no such share.
		res, err := lease.Apply(ctx, looksAtAll{e.Tx}, lease.Begin{Now: e.now(), Counter: 1 << 40}, []lease.Op{op})
		if err != nil {
			return lease.Found{}, err
		}
		e.told = res[0]
	}
	return leasetest.InLines(e.Tx).Load(ctx, w)
}

// lined is a store whose pools all have lines, and what answers beside it.
func lined(now *time.Time) (*leasetest.Memory, *exactly) {
	e := &exactly{now: func() time.Time { return *now }}
	return leasetest.NewMemory(leasetest.Options{Now: e.now, Tx: func(t lease.Tx) lease.Tx {
		e.Tx = t
		return e
	}}), e
}

func name(r lease.Result) string {
	if r.Key == nil {
		return ""
	}
	return r.Key.Name
}

// Whoever is told by a line that there is no key would be told so if all were
// looked at, and is never told to come too late; whatever was done before to keys,
// rests, uses and pools. What it gets it may have.
func TestLinesMissNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
		m, exact := lined(&now)
		ctx := context.Background()
		s := &script{T: t, epoch: 1}
		settings := func(name string) lease.Pool {
			p := s.settings(name)
			p.Hooks, p.NewShare = lease.Hooks{}, 0
			return p
		}
		keys := rapid.SampledFrom([]int{2, 5, 20}).Draw(t, "keys")
		key := func() string { return fmt.Sprintf("k%02d", rapid.IntRange(0, keys-1).Draw(t, "key")) }
		put := func(k string) lease.PutKey {
			return lease.PutKey{
				Epoch: 1, Key: k, UID: pick(s, "uid", "1", "1", "1", "2"), Pools: pick(s, "pools", []string{"x"}, []string{"x", "y"}, []string{"y"}, nil),
				ExitIP: pick(s, "address", "", "192.0.2.1", "192.0.2.2"), Attributes: map[string]string{"country": pick(s, "country", "de", "fr")},
				Unfit: pick(s, "unfit", "", "", "", "ill"), Weight: pick(s, "weight", 0, 0, 50, 10),
			}
		}
		run := func(ops ...lease.Op) []lease.Result {
			res, err := m.Do(ctx, ops)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		begin := []lease.Op{lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: settings("x")}, lease.PutPool{Epoch: 1, Pool: settings("y")}}
		for i := range keys {
			p := put(fmt.Sprintf("k%02d", i))
			p.Pools = []string{"x", "y"}
			begin = append(begin, p)
		}
		run(begin...)
		pool := func() string { return pick(s, "pool", "x", "x", "y") }
		target := func() string { return pick(s, "target", "x.example", "y.example", "www.x.example") }
		takes := func() {
			op := lease.Take{Pool: pool(), Target: target(), Account: "ann", Quick: pick(s, "quick", true, true, false)}
			if !op.Quick {
				op.Ticket = fmt.Sprint("t", len(s.uses), now)
			}
			switch pick(s, "picky", 0, 0, 1, 2) {
			case 1:
				op.Where = map[string]string{"country": pick(s, "country", "de", "fr")}
			case 2:
				op.Match = []lease.Match{{Attribute: "country", Op: lease.NotIn, Values: []string{"fr"}}}
			}
			exact.ask = op
			have := run(op)[0]
			want := exact.told
			switch {
			case have.Err != nil || want.Err != nil:
				t.Fatalf("%+v: %v, %v", op, have.Err, want.Err)
			case (have.Busy == nil) != (want.Busy == nil):
				t.Fatalf("%+v got %q, and would get %q if all were looked at", op, name(have), name(want))
			case have.Busy != nil:
				if d := want.Busy.Due; !d.IsZero() && (have.Busy.Due.IsZero() || have.Busy.Due.After(d)) {
					t.Fatalf("%+v is told to come at %v, and there is one at %v", op, have.Busy.Due, d)
				}
				if d := have.Busy.Due; !d.IsZero() && !d.After(now) {
					t.Fatalf("%+v is told at %v to come at %v", op, now, d)
				}
			case op.Quick:
				s.uses = append(s.uses, have.Use.ID)
			default:
				s.uses = append(s.uses, have.Key.ID())
				s.proofs = append(s.proofs, lease.Proof{ID: have.Key.ID(), Account: "ann"})
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(*rapid.T) { takes() }, "take again": func(*rapid.T) { takes() }, "take more": func(*rapid.T) { takes() },
			"take and take": func(*rapid.T) { takes(); takes(); takes() },
			"release": func(*rapid.T) {
				run(lease.Release{Proof: s.proof(), Outcome: pick(s, "outcome", lease.OK, lease.Banned, lease.Failed), Target: pick(s, "about", "", target())})
			},
			"renew": func(*rapid.T) { run(lease.Renew{Proof: s.proof(), TTL: pick(s, "ttl", 0, 5*time.Second)}) },
			"report": func(*rapid.T) {
				id := s.use()
				run(lease.Report{Key: id.Key, Pool: pool(), Target: target(), Outcome: pick(s, "outcome", lease.OK, lease.Banned, lease.Failed), Use: id, Account: "ann"})
			},
			"ban":  func(*rapid.T) { run(lease.Report{Key: key(), Pool: pool(), Target: target(), Outcome: lease.Banned}) },
			"lift": func(*rapid.T) { run(lease.Lift{Key: key(), Target: pick(s, "what", "", target())}) },
			"switch": func(*rapid.T) {
				run(pick[lease.Op](s, "which", lease.Disable{Key: key()}, lease.Enable{Key: key()}, lease.Force{Key: key()}))
			},
			"put":  func(*rapid.T) { run(put(key())) },
			"drop": func(*rapid.T) { run(lease.DropKey{Epoch: 1, Key: key()}) },
			"pool": func(*rapid.T) { run(lease.PutPool{Epoch: 1, Pool: settings(pool())}) },
			"bar": func(*rapid.T) {
				run(lease.BeginChange{ID: fmt.Sprint("c", now), Pool: pool(), Keys: []string{key()}, Account: "ann", TTL: 10 * time.Second})
			},
			"sweep": func(*rapid.T) { run(lease.Sweep{Limit: 100}) },
			"time": func(t *rapid.T) {
				now = now.Add(pick(s, "step", time.Millisecond, time.Second, 5*time.Second, 20*time.Second, time.Minute, 40*time.Minute, 2*time.Hour))
			},
		})
	})
}

// A line that is the only way to its keys goes by their turns to the letter.
func TestLinesGoByTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
		m, exact := lined(&now)
		ctx := context.Background()
		run := func(op lease.Op) lease.Result {
			res, err := m.Do(ctx, []lease.Op{op})
			if err != nil || res[0].Err != nil {
				t.Fatal(err, res)
			}
			return res[0]
		}
		s := &script{T: t}
		run(lease.OpenEpoch{})
		run(lease.PutPool{Epoch: 1, Pool: lease.Pool{
			Name: "p", Cooldown: pick(s, "cooldown", 0, 5*time.Second, time.Minute), Scope: pick(s, "scope", lease.ScopeKey, lease.ScopeExitIP),
			InFlight: pick(s, "cap", 0, 1, 2), TTL: 20 * time.Second,
		}})
		join := func(n int) {
			run(lease.PutKey{
				Epoch: 1, Key: fmt.Sprintf("k%02d", n), UID: "1", Pools: []string{"p"}, ExitIP: fmt.Sprintf("192.0.2.%d", n/2),
				Weight: pick(s, "weight", 0, 0, 50, 7),
			})
		}
		keys := rapid.IntRange(1, 8).Draw(t, "keys") // no more rests end at once than a walk puts in order
		for n := range keys {
			join(n)
		}
		var last lease.ID
		t.Repeat(map[string]func(*rapid.T){
			"pick": func(*rapid.T) {
				for range rapid.IntRange(1, 5).Draw(t, "picks") {
					op := lease.Take{Pool: "p", Target: pick(s, "target", "x.example", "y.example"), Account: "ann", Quick: true}
					exact.ask = op
					have := run(op)
					if want := name(exact.told); name(have) != want {
						t.Fatalf("for %s came %q, want %q", op.Target, name(have), want)
					}
					if have.Use != nil {
						last = have.Use.ID
					}
				}
			},
			"report": func(*rapid.T) {
				if last.Key != "" {
					run(lease.Report{Key: last.Key, Pool: "p", Target: pick(s, "target", "x.example", "y.example"), Outcome: pick(s, "outcome", lease.OK, lease.Failed, lease.Banned), Use: last, Account: "ann"})
				}
			},
			"time": func(*rapid.T) {
				now = now.Add(pick(s, "step", time.Millisecond, time.Second, 5*time.Second, 20*time.Second, time.Minute))
			},
		})
	})
}

// What a pick reads and writes does not grow with the number of keys: not while
// keys are met, nor when all of them rest, nor when their rests end; and a line has
// no more places than keys.
func TestLinesCostLittle(t *testing.T) {
	const keys = 3000
	s := &spy{}
	m, now := spied(s)
	places := map[string]bool{}
	wrote := 0
	s.save = func(c *lease.Changes) error {
		at := func(p lease.Place) string {
			return fmt.Sprint(p.Line, p.Parked.UnixMicro(), p.Turn.UnixMicro(), p.Own.UnixMicro(), p.Seat)
		}
		for _, p := range c.DropPlaces {
			delete(places, at(p))
		}
		for _, p := range c.Places {
			places[at(p)] = true
		}
		wrote = len(c.DropPlaces) + len(c.Places) + len(c.Cooldowns) + len(c.Keys)
		return nil
	}
	ops := []lease.Op{lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Cooldown: 10 * time.Minute}}}
	for i := range keys {
		ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("m%05d", i), UID: "1", Pools: []string{"m"}})
	}
	do(t, m, ops...)
	read, written := 0, 0
	pick := func() lease.Result {
		s.loaded, wrote = 0, 0
		r := do(t, m, lease.Take{Pool: "m", Target: "x.example", Account: "ann", Quick: true})[0]
		read, written = max(read, s.loaded), max(written, wrote)
		*now = now.Add(time.Millisecond)
		return r
	}
	for round := range 3 {
		for i := range keys {
			if r := pick(); r.Use == nil || r.Key.Name != fmt.Sprintf("m%05d", i) {
				t.Fatalf("round %d, pick %d got %+v", round, i, r.Key)
			}
		}
		if read > 40 || written > 40 {
			t.Errorf("round %d: a pick read %d rows and wrote %d", round, read, written)
		}
		r := pick()
		if r.Busy == nil {
			t.Fatalf("while all rest it got %s", r.Key.Name)
		}
		if s.loaded > 40+lease.MaxWhy+lease.MaxNext || wrote > 2 {
			t.Errorf("to find none it read %d rows and wrote %d", s.loaded, wrote)
		}
		if len(places) > keys {
			t.Errorf("%d places of %d keys", len(places), keys)
		}
		read, written = 0, 0
		*now = r.Busy.Due // they come free one after another
		if round == 1 {
			*now = now.Add(time.Minute) // or all at once
		}
	}
}

// Keys that are held are passed over once each, not by every pick.
func TestLinesPassHeldKeysOnce(t *testing.T) {
	s := &spy{}
	m, now := spied(s)
	managed(t, m, 1000)
	for i := range 150 {
		do(t, m, take("m", fmt.Sprint("h", i)))
	}
	read := []int{}
	for range 8 {
		*now = now.Add(time.Second)
		s.loaded = 0
		if r := do(t, m, lease.Take{Pool: "m", Target: "x.example", Account: "ann", Quick: true})[0]; r.Use == nil {
			t.Fatalf("it got %+v", r.Busy)
		}
		read = append(read, s.loaded)
	}
	if read[0] < 150 {
		t.Fatalf("the first pick read %d rows: the test shows nothing", read[0])
	}
	for _, n := range read[2:] {
		if n > 100 {
			t.Errorf("picks read %v rows", read)
			break
		}
	}
}
