package sqldb_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/platform/sqldb"
)

// The same ops at the same times do the same in a database as in memory, whatever
// they are, and leave the same.
func TestLeasesAsInMemory(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "sqlite in lines", "postgres in lines"} {
		t.Run(kind, func(t *testing.T) {
			engine, _, lines := strings.Cut(kind, " ")
			place := kinds[engine]
			const seed, steps = 20261101, 600
			now := time.Date(2026, 11, 1, 10, 20, 30, 0, time.UTC)
			o := sqldb.WithClock(place(t), func(time.Time) time.Time { return now })
			db, other := openWith(t, o), openWith(t, o)
			options := leasetest.Options{Now: func() time.Time { return now }}
			if lines {
				options.Tx = leasetest.InLines
				db.Wrap(leasetest.InLines)
				other.Wrap(leasetest.InLines)
			}
			memory := leasetest.NewMemory(options)
			g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
			for step := range steps {
				now = now.Add(g.pause())
				ops := g.ops()
				s := db.Leases()
				if step%2 == 1 {
					s = other.Leases()
				}
				want, err := memory.Do(t.Context(), ops)
				if err != nil {
					t.Fatal(err)
				}
				got, err := s.Do(t.Context(), ops)
				if err != nil {
					t.Fatalf("step %d: %v\n%s", step, err, show(ops))
				}
				if d := cmp.Diff(plain(want), plain(got), cmpopts.EquateEmpty()); d != "" {
					t.Fatalf("step %d (-memory +database):\n%s\n%s", step, d, show(ops))
				}
				g.learn(ops, want)
				if step%10 != 0 {
					continue
				}
				if d := cmp.Diff(everything(t, memory), everything(t, s), cmpopts.EquateEmpty()); d != "" {
					t.Fatalf("after step %d (-memory +database):\n%s\n%s", step, d, show(ops))
				}
			}
			consistent(t, db)
			if g.granted < steps/4 || g.busy < steps/20 || g.replayed == 0 || g.picked < steps/8 {
				t.Errorf("%d grants, %d of none, %d replays, %d picks: the ops show too little", g.granted, g.busy, g.replayed, g.picked)
			}
		})
	}
}

// plain makes errors comparable.
func plain(all []lease.Result) (out []any) {
	for _, r := range all {
		text := ""
		if r.Err != nil {
			text = r.Err.Error()
			r.Err = nil
		}
		r.More = false // a database forgets places of lines later than memory
		out = append(out, text, r)
	}
	return out
}

func show(ops []lease.Op) (text string) {
	for _, op := range ops {
		text += fmt.Sprintf("%T%+v\n", op, op)
	}
	return text
}

// everything is what readers see.
func everything(t *testing.T, s lease.Store) map[string]any {
	t.Helper()
	all := map[string]any{}
	ctx := context.WithoutCancel(t.Context())
	keep := func(what string, v any, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		all[what] = v
	}
	pools, err := s.Pools(ctx, "", 100)
	keep("pools", pools, err)
	for _, p := range pools {
		keys, err := s.Keys(ctx, p.Name, "", 100)
		keep("keys of "+p.Name, keys, err)
		queue, err := s.Queue(ctx, p.Name, 0, 100)
		keep("queue of "+p.Name, queue, err)
		for _, k := range keys.Keys {
			rests, err := s.Cooldowns(ctx, k.Name, "", 100)
			keep("cooldowns of "+k.Name, rests, err)
			one, err := s.Key(ctx, k.Name)
			keep("key "+k.Name, one, err)
		}
	}
	for n := range 2 {
		bans, err := s.Bans(ctx, n, 100)
		keep(fmt.Sprint("bans of ", n), bans, err)
	}
	for after := int64(0); ; {
		events, gap, err := s.Events(ctx, after, 1000)
		keep(fmt.Sprintf("events after %d, a gap %v", after, gap), events, err)
		if len(events) < 1000 {
			return all
		}
		after = events[len(events)-1].Seq
	}
}

// generator makes ops that often fit what there is.
type generator struct {
	*rand.Rand
	held                            []lease.Result
	uses                            []lease.ID
	epoch                           int64
	serial                          int
	granted, busy, replayed, picked int
}

func one[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

func (g *generator) pause() time.Duration {
	return one(g, time.Microsecond, time.Millisecond, time.Second, 3*time.Second, 20*time.Second, time.Minute, 12*time.Minute)
}

func (g *generator) ops() (ops []lease.Op) {
	for range 1 + g.IntN(6) {
		ops = append(ops, g.op())
	}
	return ops
}

func (g *generator) pool() string { return one(g, "p", "q", "m.one", "m.two") }
func (g *generator) target() string {
	return one(g, "", "shop.example.com", "news.example.com", "www.shop.example.com")
}
func (g *generator) key() string { return one(g, "a", "b", "c", "d", "m.x", "m.y", "m.z") }
func (g *generator) account() string {
	return one(g, "ann", "ann", "ann", "bob")
}

func (g *generator) proof() lease.Proof {
	if len(g.held) == 0 {
		return lease.Proof{ID: lease.ID{Key: g.key(), Fence: 1}, Account: "ann"}
	}
	r := one(g, g.held...)
	return lease.Proof{ID: lease.ID{Key: r.Key.Name, Fence: r.Lease.Fence}, Secret: r.Lease.Secret, Account: r.Lease.Account}
}

func (g *generator) op() lease.Op {
	switch n := g.IntN(130) - 30; {
	case n < -6:
		return g.pick()
	case n < 0:
		r := lease.Report{Key: g.key(), Pool: one(g, "m.one", "m.two"), Target: g.target(), Outcome: one(g, lease.OK, lease.Banned, lease.Failed), Account: g.account()}
		if len(g.uses) > 0 {
			r.Use = one(g, g.uses...)
			r.Key = r.Use.Key
		}
		return r
	case n < 34:
		return g.take()
	case n < 54:
		return lease.Release{
			Proof: g.proof(), Outcome: one(g, "", lease.OK, lease.Banned, lease.Failed, lease.Broken), Target: g.target(),
			Reset: one(g, "", "", lease.ResetDone, lease.ResetFailed), Reason: "because",
		}
	case n < 62:
		return lease.Renew{Proof: g.proof(), TTL: one(g, 0, time.Minute, 40*time.Minute), Reset: one(g, "", lease.ResetBegin, lease.ResetDone)}
	case n < 66:
		return g.publish()
	case n < 70:
		return lease.PutPool{Epoch: g.epoch, Pool: lease.Pool{
			Name: one(g, "m.one", "m.two"), Scope: one(g, lease.ScopeKey, lease.ScopeExitIP), Cooldown: one(g, 0, 0, 30*time.Second),
			InFlight: one(g, 0, 0, 1, 2), NewShare: one(g, 0, 50), Sites: g.IntN(3) == 0,
		}}
	case n < 75:
		return lease.PutKey{
			Epoch: g.epoch, Key: one(g, "m.x", "m.y", "m.z"), UID: one(g, "1", "1", "1", "2"), ExitIP: one(g, "", "192.0.2.1", "192.0.2.2"),
			Pools: one(g, []string{"m.one"}, []string{"m.two", "m.one"}, []string{"m.two"}, nil), Unfit: one(g, "", "", "", "it is unwell"), Weight: one(g, 0, 0, 50),
			Attributes: one(g, nil, map[string]string{"city": "Łódź"}, map[string]string{"city": "Brno", "kind": "vm"}),
		}
	case n < 77:
		return lease.DropKey{Epoch: g.epoch, Key: one(g, "m.x", "m.y"), UID: one(g, "", "1", "2")}
	case n < 78:
		return lease.DropPool{Epoch: g.epoch, Name: one(g, "m.two", "p")}
	case n < 79:
		return lease.OpenEpoch{Owner: "operator"}
	case n < 82:
		return lease.Report{Key: g.key(), Pool: g.pool(), Target: g.target(), Outcome: one(g, lease.OK, lease.Banned, lease.Failed)}
	case n < 83:
		return lease.Lift{Key: g.key(), Target: g.target()}
	case n < 85:
		return lease.Disable{Key: g.key(), Reason: "because", By: g.account()}
	case n < 88:
		return lease.Enable{Key: g.key(), By: g.account()}
	case n < 89:
		return lease.Force{Key: g.key(), By: g.account()}
	case n < 91:
		g.serial++
		return lease.BeginChange{
			ID: fmt.Sprint("c", g.serial), Pool: g.pool(), Verb: "add", Account: g.account(), TTL: one(g, 10*time.Second, time.Minute),
			Keys: one(g, nil, []string{"a"}, []string{"b", "e"}, []string{"d"}),
		}
	case n < 92:
		return lease.RenewChange{Pool: g.pool(), ID: fmt.Sprint("c", g.serial), Account: g.account(), TTL: time.Minute}
	case n < 93:
		return lease.EndChange{Pool: g.pool(), ID: fmt.Sprint("c", g.serial), Account: "ann", Admin: true}
	case n < 95:
		return lease.Live{Tickets: []string{g.ticket(), g.ticket(), g.ticket()}}
	case n < 96:
		return lease.Leave{Ticket: g.ticket(), Forget: g.IntN(2) == 0}
	case n < 97:
		p := g.proof()
		return lease.Unclaim{ID: p.ID, Secret: p.Secret}
	case n < 98:
		return lease.Revive{}
	}
	return lease.Sweep{Limit: 1000} // with fewer, which rows go first is open
}

func (g *generator) ticket() string { return fmt.Sprint("t", g.IntN(40)) }

func (g *generator) take() lease.Op {
	ticket := g.ticket()
	pool := one(g, "p", "q", "m.one", "m.two")
	t := lease.Take{
		Ticket: ticket, Digest: "asks " + pool, Keep: g.IntN(2) == 0, Pool: pool, Target: g.target(), Account: "ann", Holder: "job", RunsHooks: g.IntN(8) > 0,
		Secret: lease.HashOf(ticket), TTL: one(g, 0, 0, 10*time.Second, time.Minute), Wait: g.IntN(2) == 0,
	}
	if g.IntN(6) == 0 {
		t.Where = map[string]string{"city": "Brno"}
	}
	if g.IntN(8) == 0 {
		t.Match = []lease.Match{{Attribute: "city", Op: lease.NotIn, Values: []string{"Łódź", "Oslo"}}}
	}
	return t
}

func (g *generator) pick() lease.Op {
	t := lease.Take{Pool: one(g, "m.one", "m.one", "m.two", "p"), Target: g.target(), Account: "ann", Holder: "crawler", Quick: true, IfDone: g.IntN(4) == 0}
	if g.IntN(4) == 0 {
		t.Match = []lease.Match{{Attribute: "city", Op: lease.Exists}}
	}
	return t
}

func (g *generator) publish() lease.Op {
	return lease.Publish{
		Pool: lease.Pool{
			Name: one(g, "p", "q"), By: "ann", Cooldown: one(g, 0, 0, 10*time.Second), Hooks: lease.Hooks{Reset: g.IntN(3) == 0},
			Scope: one(g, lease.ScopeKey, lease.ScopeExitIP), Ban: lease.Ban{Initial: time.Minute, Factor: 2, Max: 5 * time.Minute},
		},
		Items: one(g, []string{"a", "b", "c", "d"}, []string{"c", "d", "e"}, []string{"a", "b"}, []string{"a", "b", "c", "d", "e"}),
	}
}

// learn remembers leases and the epoch.
func (g *generator) learn(ops []lease.Op, results []lease.Result) {
	for i, r := range results {
		if r.Epoch != 0 {
			g.epoch = r.Epoch
		}
		if _, ok := ops[i].(lease.Take); !ok {
			continue
		}
		switch {
		case r.Use != nil:
			g.picked++
			g.uses = append(g.uses, r.Use.ID)
		case r.Replayed:
			g.replayed++
		case r.Busy != nil:
			g.busy++
		case r.Lease != nil && r.Err == nil:
			g.granted++
			g.held = append(g.held, r)
		}
	}
	g.held = g.held[max(0, len(g.held)-8):]
	g.uses = g.uses[max(0, len(g.uses)-8):]
}
