package lease_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// A transaction asks a few times, however many lines its takes go along and however
// much of them rests: three proxies leave by one address, and every target bans a
// fifth of those. Nor are many rows read for a take.
func TestTakesAskTogether(t *testing.T) {
	const keys, targets, takes = 600, 60, 40
	for name, one := range map[string]func(n int) lease.Take{
		"picks": func(n int) lease.Take {
			return lease.Take{Pool: "m", Target: fmt.Sprintf("%d.example", n*7919%targets), Account: "ann", Quick: true}
		},
		"leases": func(n int) lease.Take {
			op := take("m", fmt.Sprint("t", n))
			op.Target, op.TTL = fmt.Sprintf("%d.example", n*7919%targets), 10*time.Second
			return op
		},
		"one target": func(int) lease.Take {
			return lease.Take{Pool: "m", Target: "0.example", Account: "ann", Quick: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &spy{}
			m, now := spied(s)
			ops := []lease.Op{lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{
				Name: "m", Scope: lease.ScopeExitIP, Cooldown: time.Second, TTL: 10 * time.Second, MaxTTL: time.Minute,
				Ban: lease.Ban{Initial: 24 * time.Hour, Factor: 1, Max: 24 * time.Hour},
			}}}
			for i := range keys {
				ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("m%05d", i), UID: "1", Pools: []string{"m"}, ExitIP: fmt.Sprintf("2001:db8::%x", i/3+1)})
			}
			draw := rand.New(rand.NewPCG(1, 2))
			for n := range targets {
				for i := 0; i < keys; i += 3 {
					if draw.IntN(5) == 0 {
						ops = append(ops, lease.Report{Key: fmt.Sprintf("m%05d", i), Pool: "m", Target: fmt.Sprintf("%d.example", n), Outcome: lease.Banned})
					}
				}
			}
			do(t, m, ops...)
			rows, asked, most, n := 0, 0, 0, 0
			const rounds = 80
			for range rounds {
				s.loads, s.loaded = 0, 0
				ops := make([]lease.Op, takes)
				for i := range ops {
					ops[i] = one(n)
					n++
				}
				for i, r := range do(t, m, ops...) {
					if r.Key == nil {
						t.Fatalf("%+v got none", ops[i])
					}
				}
				rows, asked, most = rows+s.loaded, asked+s.loads, max(most, s.loads)
				*now = now.Add(time.Duration(takes) * time.Second * 60 / targets)
			}
			t.Logf("%.1f rows a take, %.2f questions a transaction, %d at most", float64(rows)/rounds/takes, float64(asked)/rounds, most)
			if most > 6 { // four of them about lines
				t.Errorf("a transaction asked %d times", most)
			}
		})
	}
}

// A target that bans every proxy of a large pool is found out in several
// transactions, none of which keeps the others waiting for long; nobody is told that
// there is none before all were looked at, and other takes get theirs meanwhile.
func TestFirstNoneInParts(t *testing.T) {
	const keys = 3*lease.MaxMoves + 100
	for name, left := range map[string]bool{"none is left": false, "the last one is left": true} {
		t.Run(name, func(t *testing.T) {
			s := &spy{}
			m, _ := spied(s)
			ops := []lease.Op{lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{
				Name: "m", Cooldown: time.Second, Ban: lease.Ban{Initial: 24 * time.Hour, Factor: 1, Max: 24 * time.Hour},
			}}}
			for i := range keys {
				k := fmt.Sprintf("m%05d", i)
				ops = append(ops, lease.PutKey{Epoch: 1, Key: k, UID: "1", Pools: []string{"m"}})
				if !left || i < keys-1 {
					ops = append(ops, lease.Report{Key: k, Pool: "m", Target: "x.example", Outcome: lease.Banned})
				}
			}
			do(t, m, ops...)
			places := 0
			s.save = func(c *lease.Changes) error {
				places = len(c.Places) + len(c.DropPlaces)
				return nil
			}
			waiter := take("m", "waiter")
			waiter.Target, waiter.Wait = "x.example", true
			for try := 0; ; try++ {
				res, err := m.Do(t.Context(), []lease.Op{
					lease.Take{Pool: "m", Target: "x.example", Account: "ann", Quick: true},
					lease.Take{Pool: "m", Target: "y.example", Account: "ann", Quick: true},
				})
				if err != nil {
					t.Fatal(err)
				}
				if places > lease.MaxMoves+100 {
					t.Errorf("a transaction moved %d places", places)
				}
				if res[1].Use == nil {
					t.Errorf("beside it a pick got %+v", res[1])
				}
				switch r := res[0]; {
				case try < 3:
					if !r.Looking || fault.CodeOf(r.Err) != "busy" {
						t.Fatalf("try %d: %+v", try, r)
					}
					continue
				case left && (r.Use == nil || r.Key.Name != fmt.Sprintf("m%05d", keys-1)), !left && r.Busy == nil:
					t.Fatalf("when all were looked at: %+v", r)
				case left:
					return
				}
				break
			}
			// Who waits is looked at again soon.
			waiter.Target = "z.example"
			var bans []lease.Op
			for i := range keys {
				bans = append(bans, lease.Report{Key: fmt.Sprintf("m%05d", i), Pool: "m", Target: "z.example", Outcome: lease.Banned})
			}
			do(t, m, bans...)
			r := do(t, m, waiter)[0]
			if r.Busy == nil || r.Busy.Position != 1 || r.Busy.Due.Sub(r.Now) > time.Second {
				t.Errorf("who waits is told %+v", r.Busy)
			}
		})
	}
}

// What keeps keys from being handed out is seen of them along a line, also of such
// that no rehearsal came to.
func TestGlances(t *testing.T) {
	put := func(k, country string) lease.PutKey {
		return lease.PutKey{Epoch: 1, Key: k, UID: "1", Pools: []string{"p"}, Attributes: map[string]string{"country": country}}
	}
	each := func(op func(k string) lease.Op) []lease.Op { return []lease.Op{op("a"), op("b")} }
	hold := each(func(k string) lease.Op { return take("p", k) })
	for what, tc := range map[string]struct {
		kept []lease.Op // after which the first two keys are not to be had
		ask  map[string]string
	}{
		"barred":   {kept: []lease.Op{lease.BeginChange{ID: "c", Pool: "p", Verb: "remove", Keys: []string{"a", "b"}, Account: "ann", TTL: time.Minute}}},
		"held":     {kept: hold},
		"disabled": {kept: each(func(k string) lease.Op { return lease.Disable{Key: k, By: "root"} })},
		"rest for all": {kept: append(hold, each(func(k string) lease.Op {
			return lease.Force{Key: k, By: "root", Rest: time.Minute}
		})...)},
		"banned": {kept: each(func(k string) lease.Op {
			return lease.Report{Key: k, Pool: "p", Target: "x.example", Outcome: lease.Banned}
		})},
		"in another country": {
			kept: each(func(k string) lease.Op { return put(k, "fr") }),
			ask:  map[string]string{"country": "de"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
			m, _ := lined(&now)
			do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{
				Name: "p", TTL: time.Minute, Ban: lease.Ban{Initial: time.Hour, Factor: 1, Max: time.Hour},
			}}, put("a", "de"), put("b", "de"), put("c", "de"))
			picks := func(all ...string) {
				t.Helper()
				for _, want := range all {
					now = now.Add(time.Second)
					if r := do(t, m, lease.Take{Pool: "p", Target: "x.example", Account: "ann", Quick: true, Where: tc.ask})[0]; name(r) != want {
						t.Errorf("there came %+v, want %s", r.Key, want)
					}
				}
			}
			picks("a", "b", "c") // all have a place then
			do(t, m, tc.kept...)
			picks("c", "c")
		})
	}
}

// Takes of one transaction that ask for attributes and such that ask for none look at
// the same keys.
func TestGlancesTogether(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	m, _ := lined(&now)
	do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "p", Cooldown: time.Second}})
	for _, k := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		do(t, m, lease.PutKey{Epoch: 1, Key: k, UID: "1", Pools: []string{"p"}, Attributes: map[string]string{"country": "de"}})
	}
	one := lease.Take{Pool: "p", Target: "x.example", Account: "ann", Quick: true}
	german := one
	german.Where = map[string]string{"country": "de"}
	for _, ops := range [][]lease.Op{{one, german, german, german}, {german, german, german, one}} {
		for _, r := range do(t, m, ops...) {
			if r.Use == nil {
				t.Errorf("of picks together one got %+v", r.Busy)
			}
		}
	}
}

// Behind many keys whose rest was over and goes on there is one whose rest is over.
func TestRestsThatGoOn(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	m, _ := lined(&now)
	do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{
		Name: "p", Cooldown: 5 * time.Second, Ban: lease.Ban{Initial: time.Hour, Factor: 1, Max: time.Hour},
	}})
	const keys = 40
	for n := range keys {
		do(t, m, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("k%02d", n), UID: "1", Pools: []string{"p"}})
	}
	one := lease.Take{Pool: "p", Target: "x.example", Account: "ann", Quick: true}
	for range keys {
		now = now.Add(time.Millisecond)
		do(t, m, one)
	}
	for n := range keys - 1 {
		do(t, m, lease.Report{Key: fmt.Sprintf("k%02d", n), Pool: "p", Target: one.Target, Outcome: lease.Banned})
	}
	now = now.Add(10 * time.Second)
	if r := do(t, m, one)[0]; name(r) != fmt.Sprintf("k%02d", keys-1) {
		t.Errorf("there came %q: %+v", name(r), r.Busy)
	}
}
