package lease_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

// naive answers takes by looking at everything: each live waiter in its order
// has the first key that it can use set aside, then whoever asks has the first
// of the rest.
type naive struct {
	keys  []lease.Key // by their order
	queue []lease.Ticket
	rests map[lease.CooldownID]bool
	now   time.Time
	// used is when a key was used last for a target, or its address.
	used map[lease.CooldownID]time.Time
	// byAddress is set where the last use of its address puts a key off.
	byAddress bool
	sorted    map[string][]lease.Key // by target, since the last take
}

func look(t *rapid.T, s lease.Store, used map[lease.CooldownID]time.Time) *naive {
	ctx := context.Background()
	keys, err := s.Keys(ctx, "m", "", 10_000)
	if err != nil {
		t.Fatal(err)
	}
	n := &naive{keys: keys.Keys, now: keys.Now, rests: map[lease.CooldownID]bool{}, used: used, sorted: map[string][]lease.Key{}}
	pool, err := s.Pool(ctx, "m")
	if err != nil {
		t.Fatal(err)
	}
	n.byAddress = pool.Scope == lease.ScopeExitIP
	slices.SortFunc(n.keys, func(a, b lease.Key) int {
		if lease.Less(&a, &b) {
			return -1
		}
		return 1
	})
	if n.queue, err = s.Queue(ctx, "m", 0, 10_000); err != nil {
		t.Fatal(err)
	}
	for _, k := range n.keys {
		rests, err := s.Cooldowns(ctx, k.Name, "", 10_000)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range rests {
			n.rests[c.CooldownID] = true
		}
	}
	return n
}

// inTurn are the keys in the order for a target.
func (n *naive) inTurn(target string) []lease.Key {
	if target == "" {
		return n.keys
	}
	if keys := n.sorted[target]; keys != nil {
		return keys
	}
	type ranked struct {
		lease.Key
		turn, own time.Time
	}
	all := make([]ranked, len(n.keys))
	for i, k := range n.keys {
		own := k.Joined
		if at, ok := n.used[lease.CooldownID{ID: k.Name, Target: target}]; ok {
			own = at
		}
		all[i] = ranked{k, own, own}
		if at := n.used[lease.CooldownID{ID: k.ExitIP, Target: target}]; n.byAddress && at.After(own) {
			all[i].turn = at
		}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(a.turn.Compare(b.turn), a.own.Compare(b.own), cmp.Compare(a.Seat, b.Seat))
	})
	keys := make([]lease.Key, len(all))
	for i := range all {
		keys[i] = all[i].Key
	}
	n.sorted[target] = keys
	return keys
}

func (n *naive) first(aside map[string]bool, target string, where map[string]string) string {
	keys := n.inTurn(target)
	for i := range keys {
		k := &keys[i]
		if aside[k.Name] || k.Held(n.now) || !k.Matches(where) ||
			target != "" && (n.rests[lease.CooldownID{Scope: lease.ScopeKey, ID: k.Name, Target: target}] || n.rests[lease.CooldownID{Scope: lease.ScopeExitIP, ID: k.ExitIP, Target: target}]) {
			continue
		}
		return k.Name
	}
	return ""
}

// takes says what each of the takes gets.
func (n *naive) takes(ops []lease.Op) []string {
	got := []string{}
	for _, op := range ops {
		op := op.(lease.Take)
		aside := map[string]bool{}
		for _, t := range n.queue {
			if t.ID == op.Ticket {
				break
			}
			if name := n.first(aside, t.Target, t.Where); name != "" {
				aside[name] = true
			}
		}
		name := n.first(aside, op.Target, op.Where)
		if name != "" {
			i := slices.IndexFunc(n.keys, func(k lease.Key) bool { return k.Name == name })
			address := n.keys[i].ExitIP
			if !op.Quick {
				n.keys = slices.Delete(n.keys, i, i+1)
			}
			if op.Target != "" {
				n.used[lease.CooldownID{ID: name, Target: op.Target}] = n.now
				n.used[lease.CooldownID{ID: address, Target: op.Target}] = n.now
			}
			clear(n.sorted)
			n.queue = slices.DeleteFunc(n.queue, func(t lease.Ticket) bool { return t.ID == op.Ticket })
		}
		got = append(got, name)
	}
	return got
}

// With many keys, waiters, targets and constraints, of which little is loaded at
// once, whoever asks gets what it would get if all was looked at.
func TestChoiceIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
		m := leasetest.NewMemory(leasetest.Options{Now: func() time.Time { return now }})
		do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Scope: rapid.SampledFrom([]lease.Scope{lease.ScopeKey, lease.ScopeExitIP}).Draw(t, "scope")}})
		targets := []string{""}
		for i := range rapid.IntRange(1, 12).Draw(t, "targets") {
			targets = append(targets, fmt.Sprintf("%d.example", i))
		}
		countries := rapid.IntRange(1, 60).Draw(t, "countries")
		keys := rapid.SampledFrom([]int{3, 30, 300, 700}).Draw(t, "keys")
		dice := rapid.IntRange(0, 1<<30)
		var ops []lease.Op
		for i := range keys {
			ops = append(ops, lease.PutKey{
				Epoch: 1, Key: fmt.Sprintf("k%03d", i), UID: "1", Pools: []string{"m"}, ExitIP: fmt.Sprintf("2001:db8::%x", i/2), // with more keys behind one, walks give up before they are exact
				Attributes: map[string]string{"country": fmt.Sprint(i * 7 % countries)},
			})
		}
		do(t, m, ops...)
		roll := dice.Draw(t, "rolls")
		next := func(n int) int { // a small generator of its own: shrinking hundreds of draws leads nowhere
			roll = (roll*1103515245 + 12345) % (1 << 31)
			return roll / 65536 % n
		}
		asks := func(id string, wait bool) lease.Take {
			op := lease.Take{Ticket: id, Digest: id, Pool: "m", Account: "ann", Target: targets[next(len(targets))], Wait: wait}
			if next(3) > 0 {
				op.Where = map[string]string{"country": fmt.Sprint(next(countries + 1))}
			}
			return op
		}
		// Some keys were used before, each at its own time, and some rest.
		var held []lease.Proof
		for i := range rapid.IntRange(0, keys).Draw(t, "used") {
			now = now.Add(time.Millisecond)
			r := do(t, m, lease.Take{Ticket: fmt.Sprint("u", i), Pool: "m", Account: "ann"})[0]
			held = append(held, lease.Proof{ID: r.Key.ID(), Account: "ann"})
		}
		for len(held) > 0 {
			now = now.Add(time.Millisecond)
			i := next(len(held))
			do(t, m, lease.Release{Proof: held[i]})
			held = slices.Delete(held, i, i+1)
		}
		used := map[lease.CooldownID]time.Time{}
		for range rapid.IntRange(0, keys).Draw(t, "bans") {
			do(t, m, lease.Report{Key: fmt.Sprintf("k%03d", next(keys)), Pool: "m", Target: targets[1+next(len(targets)-1)], Outcome: lease.Banned})
		}
		// Waiters come while every key is taken away for a moment.
		for _, k := range allKeys(t, m) {
			do(t, m, lease.Disable{Key: k})
		}
		waiters := map[string]lease.Take{}
		for i := range rapid.SampledFrom([]int{0, 1, 10, 100}).Draw(t, "waiters") {
			op := asks(fmt.Sprint("w", i), true)
			waiters[op.Ticket] = op
			do(t, m, op)
		}
		for _, k := range allKeys(t, m) {
			do(t, m, lease.Enable{Key: k})
		}
		// With more of both a transaction reaches its bound, where it need not be exact.
		takes := []int{1, 2, 20, 80}
		if len(waiters) > 10 {
			takes = takes[:3]
		}
		for range rapid.IntRange(1, 3).Draw(t, "transactions") {
			now = now.Add(time.Second)
			ops := []lease.Op{}
			again := slices.Sorted(maps.Keys(waiters))
			for i := range rapid.SampledFrom(takes).Draw(t, "takes") {
				if len(again) > 0 && next(2) == 0 {
					at := next(len(again))
					ops = append(ops, waiters[again[at]])
					again = slices.Delete(again, at, at+1)
				} else {
					op := asks(fmt.Sprint("n", len(ops), i, roll), false)
					op.Quick = op.Target != "" && next(2) == 0
					ops = append(ops, op)
				}
			}
			want := look(t, m, used).takes(ops)
			have := []string{}
			for i, r := range do(t, m, ops...) {
				name := ""
				if r.Key != nil {
					name = r.Key.Name
					delete(waiters, ops[i].(lease.Take).Ticket)
				}
				have = append(have, name)
			}
			for i := range want {
				if want[i] != have[i] {
					t.Fatalf("take %d of %d, %+v, got %q, want %q", i, len(ops), ops[i], have[i], want[i])
				}
			}
		}
	})
}

func allKeys(t *rapid.T, s lease.Store) (names []string) {
	keys, err := s.Keys(context.Background(), "m", "", 10_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys.Keys {
		names = append(names, k.Name)
	}
	return names
}

// A waiter who can use none of the first thousand keys does not make every
// request read the whole pool, and a newcomer does not get the only key that it
// can use all the same.
func TestChoiceFarAway(t *testing.T) {
	s := &spy{}
	m, _ := spied(s)
	do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m"}})
	const keys = 20_000
	wants := func(id, country, target string) lease.Take {
		op := take("m", id)
		op.Where, op.Target = map[string]string{"country": country}, target
		return op
	}
	waiter, hopeless := wants("waiter", "fr", "x.example"), wants("hopeless", "none", "z.example")
	waiter.Wait, hopeless.Wait = true, true
	do(t, m, waiter, hopeless)
	var ops []lease.Op
	for i := range keys {
		country := "de"
		if i == keys-1 {
			country = "fr"
		}
		ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("k%05d", i), UID: "1", Pools: []string{"m"}, Attributes: map[string]string{"country": country}})
	}
	do(t, m, ops...)
	s.loaded = 0
	if r := do(t, m, wants("newcomer", "de", "y.example"))[0]; r.Key == nil || r.Key.Name != "k00000" {
		t.Errorf("a newcomer who can use the first key got %+v", r)
	}
	if s.loaded > 8000 { // of 20,000
		t.Errorf("one take read %d rows", s.loaded)
	}
	for _, target := range []string{"", "x.example", "y.example"} {
		tries, r := 0, lease.Result{}
		for ; tries == 0 || r.Looking && tries < 10; tries++ {
			res, err := m.Do(t.Context(), []lease.Op{wants("other", "fr", target)})
			if err != nil {
				t.Fatal(err)
			}
			r = res[0]
		}
		if r.Busy == nil {
			t.Errorf("after %d tries a newcomer with target %q got %+v", tries, target, r)
		}
	}
	// What was not found when little was looked at is found when all is.
	if r := do(t, m, wants("another", "de", "y.example"), waiter)[1]; r.Key == nil || r.Key.Name != fmt.Sprintf("k%05d", keys-1) {
		t.Errorf("who waits got %+v", r)
	}
}
