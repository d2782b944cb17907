package leasetest

import (
	"context"
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func txClauses() []Clause {
	return []Clause{
		{"Do/empty", "a transaction without ops does nothing", doEmpty},
		{"Do/alone", "an op that is refused touches no other", doAlone},
		{"Do/order", "ops see what those before them did, and in that order", doOrder},
		{"Do/large", "a transaction may hold many ops", doLarge},
		{"Do/time", "the database's time never runs backwards", doTime},
		{"Do/context", "a transaction whose context ended is Timeout and did nothing", doContext},
		{"Do/handles", "each handle sees at once what the others did", doHandles},
	}
}

func doEmpty(r *run) {
	for _, s := range r.h.Stores {
		for _, ops := range [][]lease.Op{nil, {}} {
			if results, err := s.Do(r.ctx, ops); err != nil || len(results) != 0 {
				r.Errorf("%+v, %v", results, err)
			}
		}
	}
}

func doAlone(r *run) {
	r.publish(pool("p"), "a")
	r.publish(pool("q"), "b")
	g := r.take(ask("q", "held"))
	long := ask("p", "long")
	long.TTL = time.Hour
	all := r.do(
		ask("none", "x"), long, lease.Renew{Proof: lease.Proof{ID: lease.ID{Key: "b", Fence: g.ID.Fence}, Secret: g.Secret, Account: "bob"}},
		ask("p", "one"), lease.Disable{Key: "nobody"}, lease.Force{Key: "nobody"}, lease.PutKey{Epoch: 77, Key: "c", UID: "1"},
		lease.Publish{Pool: pool("q"), Items: []string{"b", "b"}}, lease.Renew{Proof: g.Proof}, lease.Release{Proof: g.Proof, Outcome: "x"},
	)
	for i, code := range []string{"pool", "ttl", "not_owner", "", "key", "key", "epoch", "key", "", "outcome"} {
		if got := fault.CodeOf(all[i].Err); got != code || (code == "") != (all[i].Err == nil) {
			r.Errorf("op %d: %v with the code %q, want %q", i, all[i].Err, got, code)
		}
	}
	r.state("a", lease.Held)
	r.state("b", lease.Held)
	r.noKey("c")
}

func doOrder(r *run) {
	all := r.do(
		lease.Publish{Pool: pool("p"), Items: []string{"a"}},
		ask("p", "one"),
		ask("p", "two"),
		lease.Disable{Key: "a", Reason: "x", By: "root"},
		lease.Force{Key: "a", By: "root"},
		ask("p", "two"),
		lease.Enable{Key: "a", By: "root"},
		waits(ask("p", "two")),
		waits(ask("p", "three")),
	)
	for i, busy := range map[int]bool{1: false, 2: true, 5: true, 7: false, 8: true} {
		if (all[i].Busy != nil) != busy || all[i].Err != nil {
			r.Fatalf("op %d: %+v", i, all[i])
		}
	}
	// Given back and taken again at once: the oldest waiter has it.
	g := r.granted(ask("p", "two"), all[7])
	all = r.do(ask("p", "four"), lease.Release{Proof: g.Proof}, ask("p", "four"), waits(ask("p", "three")), lease.Renew{Proof: g.Proof})
	if all[0].Busy == nil || all[2].Busy == nil || all[3].Key == nil {
		r.Fatalf("four %+v and %+v, three %+v", all[0].Busy, all[2].Busy, all[3].Busy)
	}
	r.fault("renewing what was given back", all[4].Err, fault.Conflict, "lease_released")
	g = r.granted(ask("p", "three"), all[3])
	k, _ := r.key("a")
	r.same("the lease", &g.lease, k.Lease)
	if k.Lease.Ticket != "three" || len(k.Past) != 2 {
		r.Errorf("it is of %s, after %+v", k.Lease.Ticket, k.Past)
	}
	// A key whose place changed in a transaction has the new one.
	r.publish(pool("s"), "k", "l")
	r.do(ask("s", "k"), ask("s", "l"), lease.Force{Key: "k", By: "root"}, lease.Force{Key: "l", By: "root"})
	all = r.do(lease.Report{Key: "k", Pool: "s", Outcome: lease.Failed}, ask("s", "1"))
	if k := all[1].Key; k == nil || k.Name != "l" {
		r.Fatalf("after k failed the next take got %+v", k)
	}
	// Keys that came free in a transaction come in their order like others.
	r.publish(pool("q"), "x", "y", "z")
	x, y := r.takes(ask("q", "x"), "x"), r.takes(ask("q", "y"), "y")
	r.release(x)
	r.advance(time.Second)
	r.release(y)
	r.ok(lease.Disable{Key: "x", By: "root"})
	z := r.takes(ask("q", "z"), "z")
	all = r.do(lease.Release{Proof: z.Proof}, lease.Enable{Key: "x"}, lease.Publish{Pool: pool("q"), Items: []string{"v", "x", "y", "z"}},
		ask("q", "1"), ask("q", "2"), ask("q", "3"), ask("q", "4"), ask("q", "5"))
	for i, want := range []string{"v", "x", "y", "z"} {
		if k := all[3+i].Key; k == nil || k.Name != want {
			r.Fatalf("take %d got %+v, want %s", i, k, want)
		}
	}
	if all[7].Busy == nil {
		r.Error("the fifth of four takes got a key")
	}
}

func doLarge(r *run) {
	const many = 300
	var items []string
	var ops []lease.Op
	for i := range many {
		items = append(items, fmt.Sprintf("k%03d", i))
		ops = append(ops, kept4replay(aimed(ask("p", fmt.Sprint(i)), fmt.Sprintf("%d.example", i%40))))
	}
	r.publish(cools("p"), items...)
	ops = append(ops, waits(ask("p", "late")))
	all := r.do(ops...)
	seen := map[string]bool{}
	var back []lease.Op
	for i := range many {
		g := r.granted(ops[i].(lease.Take), all[i])
		if seen[g.ID.Key] {
			r.Fatalf("key %s was given out twice", g.ID.Key)
		}
		seen[g.ID.Key] = true
		back = append(back, lease.Renew{Proof: g.Proof}, lease.Release{Proof: g.Proof})
	}
	if all[many].Busy == nil {
		r.Fatal("one more take than keys got one")
	}
	for i, res := range r.do(back...) {
		if res.Err != nil {
			r.Fatalf("op %d: %v", i, res.Err)
		}
	}
	for i, res := range r.do(ops[:many]...) {
		r.fault(fmt.Sprintf("replay %d", i), res.Err, fault.Conflict, "lease_released")
	}
}

func doTime(r *run) {
	first := r.ok(lease.Publish{Pool: pool("p"), Items: []string{"a"}}).Now
	r.advance(time.Minute)
	second := r.take(ask("p", "one"))
	if second.at.Sub(first) < time.Minute {
		r.Fatalf("a minute later it is %v", second.at.Sub(first))
	}
	r.advance(-10 * time.Minute)
	for i := range 3 {
		if now := r.ok(lease.Live{}).Now; now.Before(second.at) {
			r.Fatalf("transaction %d is at %v, before %v", i, now, second.at)
		}
	}
	if _, now := r.key("a"); now.Before(second.at) {
		r.Fatalf("a reader is at %v, before %v", now, second.at)
	}
	r.state("a", lease.Held)
}

func doContext(r *run) {
	r.publish(pool("p"), "a")
	ctx, stop := context.WithCancel(r.ctx)
	stop()
	for _, s := range r.h.Stores {
		_, err := s.Do(ctx, []lease.Op{ask("p", "one")})
		if fault.Of(err) != fault.Timeout {
			r.Errorf("Do: %v (%s), want a timeout", err, fault.Of(err))
		}
		_, err = s.Pool(ctx, "p")
		if fault.Of(err) != fault.Timeout {
			r.Errorf("Pool: %v (%s), want a timeout", err, fault.Of(err))
		}
	}
	r.state("a", lease.Free)
}

func doHandles(r *run) {
	n := len(r.h.Stores)
	r.publish(pool("p"), "a")
	for i := range 3 * n {
		one, other := r.h.Stores[i%n], r.h.Stores[(i+1)%n]
		op := ask("p", fmt.Sprint(i))
		res, err := one.Do(r.ctx, []lease.Op{op})
		if err != nil {
			r.Fatalf("Do: %v", err)
		}
		g := r.granted(op, res[0])
		keys, err := other.Key(r.ctx, "a")
		if err != nil || keys.Keys[0].Lease.Fence != g.ID.Fence {
			r.Fatalf("the other handle reads %+v, %v", keys, err)
		}
		if res, err := other.Do(r.ctx, []lease.Op{lease.Release{Proof: g.Proof}}); err != nil || res[0].Err != nil {
			r.Fatalf("the other handle cannot release: %v, %v", err, res)
		}
	}
}
