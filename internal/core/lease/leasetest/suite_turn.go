package leasetest

import (
	"fmt"
	"slices"
	"time"

	"fleetdesk/internal/core/lease"
)

func turnClauses() []Clause {
	return []Clause{
		{"Turn/target", "keys of a managed pool are used in turn, for each target by itself", turnTarget},
		{"Turn/line", "what was never used for a target comes in the order in which it joined", turnLine},
		{"Turn/lease", "a lease is a use for its target, at the time at which it was taken", turnLease},
		{"Turn/weight", "a key of half the weight comes round half as often", turnWeight},
		{"Turn/errors", "errors in a row halve the weight, and an answer restores it", turnErrors},
		{"Turn/only", "a turn is an order and no rest: the only key is used again", turnOnly},
		{"Turn/memory", "a turn is remembered for an hour, over a sweep, and not longer", turnMemory},
		{"Turn/exit-ip", "a use rests the whole address, and puts its keys behind the others", turnExitIP},
		{"Turn/address", "in a pool whose scope is the exit IP addresses take turns, and their keys among them", turnAddress},
		{"Turn/comes-back", "whatever kept a key away, it is found at once when that is over", turnComesBack},
		{"Turn/two-pools", "a use through one pool counts in the other", turnTwoPools},
		{"Turn/seats", "what lets a key be had earlier puts it at the end of the line", turnSeats},
		{"Turn/seats-of-an-address", "a lift puts all keys of the address at the end", turnSeatsOfAddress},
		{"New/share", "a share of the picks goes first to keys that joined since and were never used", newShare},
		{"New/none", "keys that were there when the target was first asked for are not new", newNone},
	}
}

// pick picks a key, which there must be.
func (r *run) pick(pool, target string) lease.Result {
	r.Helper()
	res := r.ok(lease.Take{Pool: pool, Target: target, Account: "ann", Holder: "crawler", Quick: true})
	if res.Use == nil || res.Key == nil || res.Busy != nil || res.Lease != nil {
		r.Fatalf("the pick for %q got %+v", target, res)
	}
	if res.Use.ID.Key != res.Key.Name || res.Use.ID.Fence < 1 {
		r.Fatalf("the use %s is of key %s", res.Use.ID, res.Key.Name)
	}
	return res
}

// picks expects these keys, one after another.
func (r *run) picks(pool, target string, want ...string) {
	r.Helper()
	var have []string
	for range want {
		have = append(have, r.pick(pool, target).Key.Name)
	}
	if !slices.Equal(want, have) {
		r.Fatalf("for %q came %v, want %v", target, have, want)
	}
}

// none expects that there is no key for a pick.
func (r *run) none(pool, target string) lease.Busy {
	r.Helper()
	res := r.ok(lease.Take{Pool: pool, Target: target, Account: "ann", Quick: true})
	if res.Busy == nil || res.Use != nil || res.Key != nil {
		r.Fatalf("the pick for %q got %+v, want nothing", target, res.Key)
	}
	return *res.Busy
}

// stock makes a managed pool of keys that leave by addresses of their own.
func (r *run) stock(p lease.Pool, keys ...string) (epoch int64) {
	r.Helper()
	epoch = r.manage(p)
	for i, k := range keys {
		r.put(epoch, k+"/1", fmt.Sprintf("192.0.2.%d", 100+i), nil, p.Name)
	}
	return epoch
}

func turnTarget(r *run) {
	r.stock(pool("p"), "a", "b", "c")
	r.picks("p", "example.com", "a", "b", "c", "a")
	r.picks("p", "example.org", "a", "b")
	r.picks("p", "example.com", "b", "c", "a")
	r.picks("p", "example.org", "c", "a")
}

func turnLine(r *run) {
	epoch := r.stock(pool("p"), "c", "a")
	r.picks("p", "example.com", "c")
	r.advance(time.Second)
	r.put(epoch, "b/1", "192.0.2.9", nil, "p")
	r.picks("p", "example.com", "a", "c", "b", "a")
}

func turnLease(r *run) {
	r.stock(pool("p"), "a", "b", "c")
	g := r.takes(aimed(ask("p", "one"), "example.com"), "a")
	r.advance(time.Second)
	r.picks("p", "example.com", "b")
	r.advance(time.Second)
	r.release(g)
	r.picks("p", "example.com", "c", "a", "b")
	r.release(r.takes(aimed(ask("p", "two"), "example.org"), "a")) // and for its target alone
	r.picks("p", "example.com", "c", "a")
	r.picks("p", "example.org", "b", "c", "a")
}

// shares picks so often, a second apart, and counts.
func (r *run) shares(n int, pool, target string) map[string]int {
	r.Helper()
	got := map[string]int{}
	for range n {
		got[r.pick(pool, target).Key.Name]++
		r.advance(time.Second)
	}
	return got
}

func turnWeight(r *run) {
	epoch := r.manage(pool("p"))
	for _, k := range []struct {
		name   string
		weight int
	}{{"a", 0}, {"b", 100}, {"c", 50}, {"d", 25}} {
		r.ok(lease.PutKey{Epoch: epoch, Key: k.name, UID: "1", Pools: []string{"p"}, Weight: k.weight})
	}
	got := r.shares(220, "p", "example.com")
	for k, want := range map[string]int{"a": 80, "b": 80, "c": 40, "d": 20} {
		if n := got[k]; n < want-want/6 || n > want+want/6 { // some clocks go on meanwhile
			r.Errorf("%s was picked %d times, want about %d: %v", k, n, want, got)
		}
	}
}

func turnErrors(r *run) {
	r.stock(pool("p"), "a", "b")
	r.ok(lease.Report{Key: "b", Pool: "p", Target: "example.com", Outcome: lease.Failed})
	if got := r.shares(90, "p", "example.com"); got["b"] < 26 || got["b"] > 34 {
		r.Errorf("after an error: %v, want a third for b", got)
	}
	for range 20 {
		r.ok(lease.Report{Key: "b", Pool: "p", Outcome: lease.Failed})
	}
	r.shares(4, "p", "example.com")
	if got := r.shares(65*3, "p", "example.com"); got["b"] == 0 || got["b"] > 6 {
		r.Errorf("after many errors: %v, want few for b, and some", got)
	}
	r.ok(lease.Report{Key: "b", Pool: "p", Target: "example.com", Outcome: lease.OK})
	r.shares(150, "p", "example.com")
	if got := r.shares(60, "p", "example.com"); got["b"] < 29 || got["b"] > 31 {
		r.Errorf("after an answer: %v, want half for b", got)
	}
}

func turnOnly(r *run) {
	epoch := r.manage(pool("p"))
	r.ok(lease.PutKey{Epoch: epoch, Key: "a", UID: "1", Pools: []string{"p"}, Weight: 1})
	r.advance(2 * time.Hour)
	r.picks("p", "example.com", "a", "a", "a")
	r.ok(lease.PutKey{Epoch: epoch, Key: "b", UID: "1", Pools: []string{"p"}})
	r.picks("p", "example.com", "b", "b", "b")
	// It is put off, and never by more than a day.
	r.advance(25 * time.Hour)
	r.picks("p", "example.com", "a")
}

func turnMemory(r *run) {
	for _, swept := range []bool{false, true} {
		name := fmt.Sprintf("p%v", swept)
		r.stock(pool(name), name+"a", name+"b", name+"c")
		r.advance(time.Minute)
		r.picks(name, "example.com", name+"a", name+"b")
		r.advance(59 * time.Minute)
		if swept {
			r.ok(lease.Sweep{Limit: 100})
		}
		r.picks(name, "example.com", name+"c", name+"a")
		r.advance(61 * time.Minute)
		if swept {
			r.ok(lease.Sweep{Limit: 100})
		}
		r.picks(name, "example.com", name+"a", name+"b", name+"c")
	}
}

func turnExitIP(r *run) {
	p := cools("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.put(epoch, "b/1", "192.0.2.1", nil, "p")
	r.put(epoch, "c/1", "192.0.2.2", nil, "p")
	r.picks("p", "example.com", "a", "c")
	r.none("p", "example.com")
	r.advance(30 * time.Second)
	r.picks("p", "example.com", "b") // before a, which was used
	r.picks("p", "example.com", "c")
	r.advance(30 * time.Second)
	r.picks("p", "example.com", "a", "c")
}

func turnAddress(r *run) {
	p := pool("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p, pool("q"))
	for _, k := range []struct{ name, address string }{{"a1", "192.0.2.1"}, {"a2", "192.0.2.1"}, {"a3", "192.0.2.1"}, {"b", "192.0.2.2"}, {"c", ""}} {
		r.put(epoch, k.name+"/1", k.address, nil, "p", "q")
		r.advance(time.Second)
	}
	for _, want := range []string{"a1", "b", "c", "a2", "b", "c", "a3", "b", "c", "a1", "b", "c", "a2"} {
		r.picks("p", "example.com", want)
		r.advance(time.Second)
	}
	// Where rests are of keys, keys take turns.
	for _, want := range []string{"a1", "a2", "a3", "b", "c", "a1"} {
		r.picks("q", "example.org", want)
		r.advance(time.Second)
	}
}

func turnComesBack(r *run) {
	p := caps("p", 1)
	p.Cooldown, p.TTL = 10*time.Second, 10*time.Minute
	q := cools("q")
	q.Scope = lease.ScopeExitIP
	epoch := r.manage(p, q)
	brno := map[string]string{"city": "Brno"}
	put := func(change func(k *lease.PutKey)) {
		k := lease.PutKey{Epoch: epoch, Key: "a", UID: "1", Pools: []string{"p", "q"}, ExitIP: "192.0.2.1", Attributes: brno}
		if change != nil {
			change(&k)
		}
		r.ok(k)
	}
	gets := func(target string, busy bool) {
		r.Helper()
		op := lease.Take{Pool: "p", Target: target, Account: "ann", Quick: true, Where: brno}
		if res := r.ok(op); (res.Busy != nil) != busy {
			r.Fatalf("for %s it got %+v", target, res)
		}
	}
	for i, tc := range []struct{ goes, comes func(target string) }{
		{func(string) { put(func(k *lease.PutKey) { k.Unfit = "ill" }) }, func(string) { put(nil) }},
		{func(string) { put(func(k *lease.PutKey) { k.Pools = []string{"q"} }) }, func(string) { put(nil) }},
		{func(string) { put(func(k *lease.PutKey) { k.Pools = nil }) }, func(string) { put(nil) }},
		{func(string) { put(func(k *lease.PutKey) { k.Attributes = nil }) }, func(string) { put(nil) }},
		{func(string) { r.ok(lease.DropKey{Epoch: epoch, Key: "a"}) }, func(string) { put(nil) }},
		{func(string) { r.ok(lease.Disable{Key: "a"}) }, func(string) { r.ok(lease.Enable{Key: "a"}) }},
		{func(t string) { r.ok(lease.Report{Key: "a", Pool: "p", Target: t, Outcome: lease.Banned}) }, func(t string) { r.ok(lease.Lift{Key: "a", Target: t}) }},
		{func(t string) { r.ok(lease.Report{Key: "a", Pool: "p", Target: t, Outcome: lease.Banned}) }, func(string) { put(func(k *lease.PutKey) { k.UID = "2" }); put(nil) }},
		{func(t string) { r.ok(lease.Report{Key: "a", Pool: "q", Target: t, Outcome: lease.Banned}) }, func(string) { put(func(k *lease.PutKey) { k.ExitIP = "192.0.2.2" }) }},
		{func(t string) { // another key of the address is lifted
			put(nil)
			r.ok(lease.PutKey{Epoch: epoch, Key: "b", UID: "1", Pools: []string{"q"}, ExitIP: "192.0.2.1"})
			r.ok(lease.Report{Key: "b", Pool: "q", Target: t, Outcome: lease.Banned})
		}, func(t string) { r.ok(lease.Lift{Key: "b", Target: t}) }},
		{func(string) { r.pick("p", "") }, func(string) { r.ok(lease.Lift{Key: "a"}) }},
		{func(t string) { // as many uses as there may be, for a time
			r.pick("p", t)
			r.advance(10 * time.Second)
		}, func(string) { r.ok(lease.PutPool{Epoch: epoch, Pool: func() lease.Pool { p.InFlight++; return p }()}) }},
	} {
		t := fmt.Sprintf("%d.example.com", i)
		r.advance(time.Minute)
		tc.goes(t)
		gets(t, true)
		tc.comes(t)
		gets(t, false)
	}
	p.InFlight = 1
	r.ok(lease.PutPool{Epoch: epoch, Pool: p})
	use := r.pick("p", "example.org").Use
	r.advance(10 * time.Second)
	gets("example.org", true)
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.org", Outcome: lease.OK, Use: use.ID, Account: "ann"})
	gets("example.org", false)
}

func turnTwoPools(r *run) {
	epoch := r.manage(pool("p"), pool("q"))
	for _, k := range []string{"a", "b", "c"} {
		r.put(epoch, k+"/1", "", nil, "p", "q")
	}
	r.picks("p", "example.com", "a")
	r.picks("q", "example.com", "b")
	r.picks("p", "example.com", "c", "a")
	r.picks("q", "example.com", "b")
}

func turnSeats(r *run) {
	epoch := r.manage(pool("p"), pool("q"))
	for i, k := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		r.put(epoch, k+"/1", fmt.Sprintf("192.0.2.%d", i), nil, "p")
	}
	r.advance(time.Second)
	moves := map[string]func(){
		"a": func() { r.put(epoch, "a/2", "192.0.2.0", nil, "p") },
		"b": func() { r.put(epoch, "b/1", "192.0.2.77", nil, "p") },
		"c": func() { r.put(epoch, "c/1", "192.0.2.2", nil, "p", "q") },
		"d": func() { r.ok(lease.Disable{Key: "d"}); r.ok(lease.Enable{Key: "d"}) },
		"e": func() { r.ok(lease.Lift{Key: "e", Target: "example.net"}) },
		"f": func() {
			r.ok(lease.PutKey{Epoch: epoch, Key: "f", UID: "f/1", Pools: []string{"p"}, ExitIP: "192.0.2.5", Unfit: "ill"})
			r.put(epoch, "f/1", "192.0.2.5", nil, "p")
		},
	}
	for _, k := range []string{"f", "e", "d", "c", "b", "a"} {
		before, _ := r.key(k)
		moves[k]()
		if after, now := r.key(k); after.Seat <= before.Seat || after.Joined.After(now) || !after.Joined.After(before.Joined) {
			r.Fatalf("key %s had seat %d since %v, and has %d since %v", k, before.Seat, before.Joined, after.Seat, after.Joined)
		}
	}
	// What changes nothing of that leaves it where it is.
	before, _ := r.key("g")
	r.ok(lease.PutKey{Epoch: epoch, Key: "g", UID: "g/1", Pools: []string{"p"}, ExitIP: "192.0.2.6", Weight: 50})
	r.ok(lease.Enable{Key: "g"})
	r.release(r.take(ask("p", "one")))
	if after, _ := r.key("g"); after.Seat != before.Seat || !after.Joined.Equal(before.Joined) {
		r.Fatalf("key g had seat %d and has %d", before.Seat, after.Seat)
	}
	r.picks("p", "example.com", "g", "f", "e", "d", "c", "b", "a")
}

func turnSeatsOfAddress(r *run) {
	p := pool("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p, pool("q"))
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.put(epoch, "b/1", "192.0.2.1", nil, "q")
	r.put(epoch, "c/1", "192.0.2.2", nil, "p", "q")
	seats := func() (s []int64) {
		for _, k := range []string{"a", "b", "c"} {
			k, _ := r.key(k)
			s = append(s, k.Seat)
		}
		return s
	}
	before := seats()
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	r.ok(lease.Lift{Key: "a", Target: "example.com"})
	after := seats()
	if after[0] <= before[0] || after[1] <= before[1] || after[2] != before[2] {
		r.Fatalf("the seats were %v and are %v", before, after)
	}
	r.picks("q", "example.com", "c", "b")
}

func newShare(r *run) {
	p := pool("p")
	p.NewShare = 50
	var old []string
	for i := range 8 {
		old = append(old, fmt.Sprintf("old%d", i))
	}
	epoch := r.stock(p, old...)
	r.picks("p", "example.com", old...)
	r.advance(time.Minute)
	const fresh = 12
	for i := range fresh {
		r.put(epoch, fmt.Sprintf("new%02d/1", i), fmt.Sprintf("198.51.100.%d", i), nil, "p")
	}
	met := 0
	for range 8 { // by their turn, the old ones would all come first
		k := r.pick("p", "example.com").Key.Name
		if k[:3] == "new" {
			if want := fmt.Sprintf("new%02d", met); k != want {
				r.Errorf("the new key %s came before %s", k, want)
			}
			met++
		}
	}
	if met < 2 || met > 6 {
		r.Errorf("%d of 8 picks went to new keys, want about half", met)
	}
	// Without a share they wait for their turn.
	p.NewShare = 0
	r.ok(lease.PutPool{Epoch: epoch, Pool: p})
	for range met { // as many old ones are left
		r.pick("p", "example.com")
	}
	if k := r.pick("p", "example.com").Key.Name; k != fmt.Sprintf("new%02d", met) {
		r.Errorf("after the old ones came %s", k)
	}
}

func newNone(r *run) {
	p := pool("p")
	p.NewShare = 100
	epoch := r.stock(p, "a", "b", "c")
	r.advance(time.Second)
	r.picks("p", "example.com", "a", "b", "c", "a")
	r.put(epoch, "d/1", "", nil, "p")
	r.put(epoch, "e/1", "", nil, "p")
	r.picks("p", "example.com", "d", "e", "b", "c", "a")
	r.picks("p", "example.org", "a", "b", "c", "d", "e", "a")
	// Also while older ones were never used either.
	r.picks("p", "example.net", "a")
	r.advance(time.Second)
	r.put(epoch, "f/1", "", nil, "p")
	r.picks("p", "example.net", "f", "b", "c")
}
