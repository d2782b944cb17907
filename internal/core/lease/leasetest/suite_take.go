package leasetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func takeClauses() []Clause {
	return []Clause{
		{"Take/keeps", "a grant is kept whole: what is read back is what the taker was told", takeKeeps},
		{"Take/exclusive", "as many takes as keys get one each, the next one gets none", takeExclusive},
		{"Take/race", "takers at once, through all handles, never get the same key", takeRace},
		{"Take/two-pools", "a key that two pools list is held once, whichever pool it was taken through", takeTwoPools},
		{"Take/order", "never used keys come first, by name, then the least recently used one", takeOrder},
		{"Take/order-expired", "a lease that expired counts as used until its end, swept or not", takeOrderExpired},
		{"Take/errors", "a key whose uses end with errors is tried less often, and still is", takeErrors},
		{"Take/where", "a key must have every attribute asked for", takeWhere},
		{"Take/no-wait", "a take without wait leaves no trace when there is no key", takeNoWait},
		{"Take/next", "a take that gets nothing is told which keys come free next, the soonest first", takeNext},
		{"Take/due", "the time to come back is never later than the first key's", takeDue},
		{"Take/due-bar", "the end of a change counts: nobody else will tell that its bar is over", takeDueBar},
		{"Take/ttl", "a lease has the time asked for or the pool's own, and what is out of bounds is refused", takeTTL},
		{"Take/hooks", "a pool with hooks is for takers that run them", takeHooks},
		{"Take/invalid", "what cannot be asked for is refused with its code", takeInvalid},
		{"Take/fence", "each lease's fence is greater than all earlier ones of the database", takeFence},
		{"Take/replay", "the same request again is the same lease, from any handle", takeReplay},
		{"Take/replay-gone", "a replay says how its lease ended, also when the pool went on", takeReplayGone},
		{"Take/replay-forgotten", "a grant is replayed for ten minutes, swept or not", takeReplayForgotten},
		{"Take/replay-other", "a ticket with another question is refused", takeReplayOther},
		{"Take/unclaimed", "a grant that may not have arrived ends after five seconds, and needs no reset", takeUnclaimed},
		{"Take/unclaimed-replay", "asked for again in time it is a whole lease", takeUnclaimedReplay},
		{"Take/unclaimed-after-replay", "who asked again and was answered keeps the key", takeUnclaimedAfterReplay},
		{"Take/unclaimed-late", "asked for again too late it is a new request", takeUnclaimedLate},
	}
}

func takeKeeps(r *run) {
	p := pool("p")
	p.Hooks = lease.Hooks{Check: true, Reset: true}
	r.publish(p, "a")
	op := kept4replay(aimed(ask("p", "t"), "example.com"))
	op.RunsHooks, op.TTL = true, 90*time.Second+1500*time.Nanosecond
	g := r.take(op)
	now := g.at
	want := lease.Key{
		Name: "a", Pools: []string{"p"}, UsedAt: now, Version: g.key.Version,
		Lease: &lease.Lease{
			Fence: g.ID.Fence, Pool: "p", Target: "example.com", Account: "ann", Holder: "job of t", Secret: lease.HashOf("t"), Ticket: "t",
			TTL: 90*time.Second + time.Microsecond, Hooks: p.Hooks, Taken: now, Expires: now.Add(90*time.Second + time.Microsecond),
		},
	}
	r.same("the key in the result", want, g.key)
	k, _ := r.key("a")
	want.Version = k.Version
	r.same("the key as read", want, k)
	if k.Version < 1 {
		r.Errorf("a row that was written has the version %d", k.Version)
	}
	if !now.Truncate(time.Microsecond).Equal(now) || now.Location() != time.UTC {
		r.Errorf("the time %v is not in UTC to the microsecond", now)
	}
}

func takeExclusive(r *run) {
	r.publish(pool("p"), "a", "b", "c")
	seen := map[string]bool{}
	for i := range 3 {
		g := r.take(ask("p", fmt.Sprint(i)))
		if seen[g.ID.Key] {
			r.Fatalf("key %s was given out twice", g.ID.Key)
		}
		seen[g.ID.Key] = true
	}
	r.busy(ask("p", "late"))
	for _, n := range []string{"a", "b", "c"} {
		r.state(n, lease.Held)
	}
}

func takeRace(r *run) {
	const racers, keys = 24, 8
	var items []string
	for i := range keys {
		items = append(items, fmt.Sprintf("k%d", i))
	}
	r.publish(pool("p"), items...)
	results := make([]lease.Result, racers)
	errs := make([]error, racers)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range racers {
		store := r.store()
		all.Go(func() {
			<-start
			res, err := store.Do(r.ctx, []lease.Op{ask("p", fmt.Sprintf("t%d", i))})
			if errs[i] = err; err == nil {
				results[i] = res[0]
			}
		})
	}
	close(start)
	all.Wait()
	won, fences := map[string]bool{}, map[int64]bool{}
	for i, res := range results {
		switch {
		case errs[i] != nil:
			r.Fatalf("racer %d: %v", i, errs[i])
		case res.Err != nil:
			r.Fatalf("racer %d: %v", i, res.Err)
		case res.Busy != nil:
			continue
		case won[res.Key.Name] || fences[res.Lease.Fence]:
			r.Fatalf("key %s or fence %d was given out twice", res.Key.Name, res.Lease.Fence)
		}
		won[res.Key.Name], fences[res.Lease.Fence] = true, true
	}
	if len(won) != keys {
		r.Fatalf("%d racers got %d of %d keys", racers, len(won), keys)
	}
}

func takeTwoPools(r *run) {
	r.publish(pool("p"), "a")
	r.publish(pool("q"), "a")
	g := r.takes(ask("p", "one"), "a")
	r.busy(ask("q", "two"))
	r.busy(ask("p", "three"))
	r.release(g)
	g = r.takes(ask("q", "four"), "a")
	r.busy(ask("p", "five"))
	if g.lease.Pool != "q" {
		r.Errorf("the lease is of pool %s, want q", g.lease.Pool)
	}
}

func takeOrder(r *run) {
	r.publish(pool("p"), "c", "a", "b")
	var all []got
	for _, want := range []string{"a", "b", "c"} {
		all = append(all, r.takes(ask("p", "first "+want), want))
		r.advance(time.Second)
	}
	for _, i := range []int{1, 2, 0} {
		r.release(all[i])
		r.advance(time.Second)
	}
	r.publish(pool("p"), "a", "b", "c", "d")
	for _, want := range []string{"d", "b", "c", "a"} {
		r.takes(ask("p", "again "+want), want)
	}
}

func takeOrderExpired(r *run) {
	r.publish(pool("p"), "a", "b")
	r.takes(ask("p", "one"), "a") // until a minute
	b := r.takes(ask("p", "two"), "b")
	r.advance(10 * time.Second)
	r.release(b)
	r.advance(time.Minute)
	r.takes(ask("p", "three"), "b")
	r.takes(ask("p", "four"), "a")
}

func takeErrors(r *run) {
	r.publish(pool("p"), "a", "b")
	a, b := r.takes(ask("p", "one"), "a"), r.takes(ask("p", "two"), "b")
	r.ok(lease.Release{Proof: a.Proof, Outcome: lease.Failed})
	r.advance(time.Second)
	r.release(b)
	b = r.takes(ask("p", "three"), "b") // a was used before it, and failed
	r.ok(lease.Renew{Proof: b.Proof, TTL: 2 * time.Minute})
	r.advance(time.Minute)
	r.release(b)
	a = r.takes(ask("p", "four"), "a")
	r.ok(lease.Release{Proof: a.Proof, Outcome: lease.OK})
	if k, _ := r.key("a"); k.Errors != 0 {
		r.Errorf("a success leaves %d errors", k.Errors)
	}
}

func takeWhere(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "", map[string]string{"country": "de", "speed": "fast"}, "p")
	r.put(epoch, "b/1", "", map[string]string{"country": "fr"}, "p")
	r.put(epoch, "c/1", "", nil, "p")
	where := func(ticket string, attributes map[string]string) lease.Take {
		op := ask("p", ticket)
		op.Where = attributes
		return op
	}
	r.takes(where("one", map[string]string{"country": "fr"}), "b")
	r.busy(where("two", map[string]string{"country": "fr"}))
	r.busy(where("three", map[string]string{"country": "de", "speed": "slow"}))
	r.busy(where("four", map[string]string{"colour": ""}))
	r.takes(where("five", map[string]string{"country": "de", "speed": "fast"}), "a")
	g := r.takes(ask("p", "six"), "c")
	r.same("attributes", map[string]string(nil), g.key.Attributes)
}

func takeNoWait(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	b := r.busy(ask("p", "asker"))
	if b.Position != 0 || b.Ahead != 0 {
		r.Errorf("it stands at %d behind %d, want nowhere", b.Position, b.Ahead)
	}
	r.same("the queue", []string{}, r.tickets("p"))
	r.release(g)
	r.takes(ask("p", "other"), "a")
	// Behind waiters it is told how many there are, and still does not wait.
	r.queued(ask("p", "waiter"), 1)
	if b := r.busy(ask("p", "asker")); b.Position != 0 || b.Ahead != 1 {
		r.Errorf("it stands at %d behind %d, want 0 behind 1", b.Position, b.Ahead)
	}
	r.same("the queue", []string{"waiter"}, r.tickets("p"))
}

func takeNext(r *run) {
	r.publish(pool("p"), "a", "b", "c", "d", "e", "f", "g")
	ttls := map[string]int{"a": 70, "b": 20, "c": 60, "d": 50, "e": 30, "f": 40}
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		op := ask("p", "t"+n)
		op.TTL = time.Duration(ttls[n]) * time.Second
		r.takes(op, n)
	}
	r.ok(lease.Disable{Key: "g", Reason: "broken", By: "root"})
	res := r.do(ask("p", "asker"))[0]
	b := *res.Busy
	var names []string
	for _, k := range b.Next {
		names = append(names, k.Name)
		if k.Lease == nil || k.Lease.Holder != "job of t"+k.Name {
			r.Errorf("key %s does not say who holds it: %+v", k.Name, k.Lease)
		}
	}
	r.same("the next keys", []string{"b", "e", "f", "d", "c"}, names)
	if want := b.Next[0].Lease.Expires; !b.Due.Equal(want) {
		r.Errorf("due %v, want %v", b.Due, want)
	}
	r.publish(pool("q"), "z")
	r.ok(lease.Disable{Key: "z", By: "root"})
	if b := r.busy(ask("q", "asker")); len(b.Next) != 0 || !b.Due.IsZero() {
		r.Errorf("a disabled key comes free at %v: %+v", b.Due, b.Next)
	}
	r.publish(pool("none"))
	if b := r.busy(ask("none", "asker")); len(b.Next) != 0 || !b.Due.IsZero() {
		r.Errorf("in a pool without keys one comes free at %v: %+v", b.Due, b.Next)
	}
}

func takeDue(r *run) {
	p := pool("p")
	p.Cooldown = 20 * time.Second
	r.publish(p, "a", "b")
	r.release(r.takes(aimed(ask("p", "one"), "example.com"), "a")) // a rests for the target alone
	r.release(r.takes(ask("p", "two"), "b"))                       // b rests for all
	b, _ := r.key("b")
	g := r.takes(ask("p", "three"), "a")
	if busy := r.busy(ask("p", "four")); !busy.Due.Equal(b.CoolUntil) {
		r.Errorf("due %v, want the end of the rest, %v", busy.Due, b.CoolUntil)
	}
	r.release(g)
	if busy := r.busy(aimed(ask("p", "five"), "example.com")); busy.Due.IsZero() || busy.Due.After(b.CoolUntil) {
		r.Errorf("for the target due %v, want at most %v", busy.Due, b.CoolUntil)
	}

	// A key that rests for the target, and nothing else.
	r.publish(p, "c")
	res := r.release(r.take(aimed(ask("p", "six"), "example.com")))
	if busy := r.busy(aimed(ask("p", "seven"), "example.com")); !busy.Due.Equal(res.Now.Add(20 * time.Second)) {
		r.Errorf("due %v, want the end of the rest for the target, 20s after %v", busy.Due, res.Now)
	}

	// What comes free next may be a key that was not read.
	r.publish(pool("s"), "1", "2", "3", "4", "5", "6", "7")
	var held []got
	for i := range 7 {
		op := ask("s", fmt.Sprint("s", i))
		op.TTL = time.Duration(10+5*i) * time.Second
		held = append(held, r.take(op))
	}
	var ops []lease.Op
	for _, g := range held[:5] {
		ops = append(ops, lease.Renew{Proof: g.Proof, TTL: 10 * time.Minute})
	}
	if busy := r.do(append(ops, ask("s", "late"))...)[5].Busy; busy == nil || busy.Due.IsZero() || busy.Due.After(held[5].lease.Expires) {
		r.Errorf("after five were renewed %+v, want it due at %v", busy, held[5].lease.Expires)
	}

	// A take and what it finds next in one transaction.
	r.publish(pool("q"), "z")
	op := ask("q", "one")
	op.TTL = 10 * time.Second
	all := r.do(op, ask("q", "two"))
	if b := all[1].Busy; b == nil || !b.Due.Equal(all[0].Lease.Expires) || len(b.Next) != 1 || b.Next[0].Name != "z" {
		r.Errorf("after a take in the same transaction: %+v", b)
	}
}

func takeDueBar(r *run) {
	r.publish(pool("p"), "a")
	ch := r.ok(lease.BeginChange{ID: "c1", Pool: "p", Verb: "remove", Keys: []string{"a"}, Account: "ann", TTL: 30 * time.Second}).Change
	if b := r.busy(ask("p", "one")); !b.Due.Equal(ch.Until) {
		r.Errorf("due %v, want the end of the change, %v", b.Due, ch.Until)
	}
	r.advance(31 * time.Second)
	r.takes(ask("p", "two"), "a")
}

func takeTTL(r *run) {
	p := pool("p")
	p.TTL, p.MaxTTL = 20*time.Second, time.Minute
	r.publish(p, "a")
	for i, tc := range []struct{ ask, want time.Duration }{
		{0, 20 * time.Second}, {lease.MinTTL, lease.MinTTL}, {time.Minute, time.Minute},
	} {
		op := ask("p", fmt.Sprint(i))
		op.TTL = tc.ask
		g := r.take(op)
		if g.lease.TTL != tc.want || !g.lease.Expires.Equal(g.at.Add(tc.want)) {
			r.Errorf("asked for %v: %v until %v at %v", tc.ask, g.lease.TTL, g.lease.Expires, g.at)
		}
		r.release(g)
	}
	for _, ttl := range []time.Duration{-1, 1, lease.MinTTL - 1, time.Minute + 1, lease.MaxTTL} {
		op := ask("p", "no")
		op.TTL = ttl
		r.refused(op, fault.Invalid, "ttl")
	}
}

func takeHooks(r *run) {
	for _, hooks := range []lease.Hooks{{Check: true}, {Reset: true}} {
		p := pool("p")
		p.Hooks = hooks
		r.publish(p, "a")
		op := ask("p", "raw")
		r.refused(op, fault.Invalid, "hooks")
		r.refused(waits(op), fault.Invalid, "hooks")
		op.RunsHooks = true
		g := r.take(op)
		if g.lease.Hooks != hooks {
			r.Errorf("the lease has the hooks %+v, want %+v", g.lease.Hooks, hooks)
		}
		r.ok(lease.Release{Proof: g.Proof, Reset: lease.ResetDone})
	}
}

func takeInvalid(r *run) {
	r.publish(pool("p"), "a")
	long := strings.Repeat("x", lease.MaxText+1)
	for name, tc := range map[string]struct {
		change func(*lease.Take)
		class  fault.Class
		code   string
	}{
		"unknown pool":    {func(op *lease.Take) { op.Pool = "none" }, fault.NotFound, "pool"},
		"no pool":         {func(op *lease.Take) { op.Pool = "" }, fault.NotFound, "pool"},
		"long holder":     {func(op *lease.Take) { op.Holder = long }, fault.Invalid, "text"},
		"control holder":  {func(op *lease.Take) { op.Holder = "a\x1b[0m" }, fault.Invalid, "text"},
		"broken UTF-8":    {func(op *lease.Take) { op.Holder = "a\xff" }, fault.Invalid, "text"},
		"long target":     {func(op *lease.Take) { op.Target = long }, fault.Invalid, "text"},
		"constraint":      {func(op *lease.Take) { op.Where = map[string]string{"": "x"} }, fault.Invalid, "constraints"},
		"long constraint": {func(op *lease.Take) { op.Where = map[string]string{"a": long} }, fault.Invalid, "constraints"},
		"many constraints": {func(op *lease.Take) {
			op.Where = map[string]string{}
			for i := range 17 {
				op.Where[fmt.Sprint(i)] = "x"
			}
		}, fault.Invalid, "constraints"},
	} {
		op := ask("p", "t")
		tc.change(&op)
		res := r.do(op)[0]
		r.fault(name, res.Err, tc.class, tc.code)
	}
	r.state("a", lease.Free)
}

func takeFence(r *run) {
	r.publish(pool("p"), "a", "b")
	var fences []int64
	for i := range 6 {
		g := r.take(ask("p", fmt.Sprint(i)))
		fences = append(fences, g.ID.Fence)
		r.release(g)
	}
	// A row that goes and comes again does not start again.
	r.publish(pool("p"))
	r.noKey("a")
	r.publish(pool("p"), "a")
	fences = append(fences, r.take(ask("p", "last")).ID.Fence)
	if !slices.IsSorted(fences) || len(slices.Compact(slices.Clone(fences))) != len(fences) || fences[0] < 1 {
		r.Errorf("fences in the order of their leases: %v", fences)
	}
}
