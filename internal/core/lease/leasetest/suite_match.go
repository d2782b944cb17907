package leasetest

import (
	"fmt"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func matchClauses() []Clause {
	return []Clause{
		{"Site/pool", "a pool may count by registrable domain: takes, reports and releases", sitePool},
		{"Match/take", "a take may say what attributes must be like", matchTake},
		{"Match/refused", "conditions that say nothing are refused", matchRefused},
		{"Match/waits", "a waiter's conditions are kept", matchWaits},
	}
}

func sitePool(r *run) {
	p := cools("p")
	p.Sites = true
	r.stock(p, "a", "b", "c")
	r.picks("p", "www.shop.example.com", "a")
	g := r.takes(aimed(ask("p", "one"), "img.example.com"), "b")
	if g.lease.Target != "example.com" {
		r.Errorf("the lease is for %q", g.lease.Target)
	}
	r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Banned, Target: "login.example.com"})
	res := r.ok(lease.Report{Key: "c", Pool: "p", Target: "x.y.example.com", Outcome: lease.Banned})
	if res.Rest == nil || res.Rest.Target != "example.com" || res.Rest.Strikes != 1 {
		r.Errorf("the report says %+v", res.Rest)
	}
	r.none("p", "example.com")
	r.advance(31 * time.Second)
	r.picks("p", "example.com", "a") // the others are banned
	r.picks("p", "www.example.org", "a", "b", "c")
	for _, k := range []string{"b", "c"} {
		if c, _ := r.cooldown(k, "example.com"); c.Strikes != 1 {
			r.Errorf("%s: %+v", k, c)
		}
	}
}

func matching(op lease.Take, match ...lease.Match) lease.Take {
	op.Match = match
	return op
}

func matchTake(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "", map[string]string{"protocol": "http", "city": "Brno"}, "p")
	r.put(epoch, "b/1", "", map[string]string{"protocol": "socks5", "city": "Łódź"}, "p")
	r.put(epoch, "c/1", "", map[string]string{"protocol": "http"}, "p")
	for i, tc := range []struct {
		match lease.Match
		want  []string
	}{
		{lease.Match{Attribute: "city", Op: lease.In, Values: []string{"Oslo", "Łódź"}}, []string{"b"}},
		{lease.Match{Attribute: "city", Op: lease.NotIn, Values: []string{"Brno"}}, []string{"b", "c"}},
		{lease.Match{Attribute: "city", Op: lease.Exists}, []string{"a", "b"}},
		{lease.Match{Attribute: "city", Op: lease.Absent}, []string{"c"}},
	} {
		for _, target := range []string{"", fmt.Sprintf("%d.example.com", i)} {
			var have []string
			var back []got
			for n := range 3 {
				op := matching(aimed(ask("p", fmt.Sprint(i, target, n)), target), tc.match)
				res := r.ok(op)
				if res.Busy != nil {
					continue
				}
				back = append(back, r.granted(op, res))
				have = append(have, res.Key.Name)
			}
			for _, g := range back {
				r.release(g)
			}
			slices.Sort(have)
			if !slices.Equal(have, tc.want) {
				r.Errorf("%+v for %q got %v, want %v", tc.match, target, have, tc.want)
			}
		}
	}
	both := matching(ask("p", "both"), lease.Match{Attribute: "city", Op: lease.Exists})
	both.Where = map[string]string{"protocol": "http"}
	r.takes(both, "a")
}

func matchRefused(r *run) {
	r.stock(pool("p"), "a")
	many := make([]string, 65)
	for _, m := range []lease.Match{
		{Op: lease.Exists},
		{Attribute: "x\n", Op: lease.Exists},
		{Attribute: "x", Op: "like"},
		{Attribute: "x", Op: lease.In},
		{Attribute: "x", Op: lease.NotIn, Values: many},
		{Attribute: "x", Op: lease.Exists, Values: []string{"y"}},
		{Attribute: "x", Op: lease.In, Values: []string{"y\x00"}},
	} {
		r.refused(matching(ask("p", "one"), m), fault.Invalid, "constraints")
	}
	all := make([]lease.Match, 17)
	for i := range all {
		all[i] = lease.Match{Attribute: "x", Op: lease.Absent}
	}
	r.refused(matching(ask("p", "one"), all...), fault.Invalid, "constraints")
	r.state("a", lease.Free)
}

func matchWaits(r *run) {
	epoch := r.manage(pool("p"))
	city := func(name string) map[string]string { return map[string]string{"city": name} }
	r.put(epoch, "a/1", "", city("Brno"), "p")
	g := r.take(ask("p", "holder"))
	picky := matching(ask("p", "picky"), lease.Match{Attribute: "city", Op: lease.NotIn, Values: []string{"Brno", "Oslo"}})
	r.queued(picky, 1)
	r.queued(ask("p", "other"), 2)
	queue, err := r.store().Queue(r.ctx, "p", 0, 10)
	if err != nil || len(queue) != 2 {
		r.Fatalf("the queue is %+v, %v", queue, err)
	}
	r.same("the conditions", picky.Match, queue[0].Match)
	r.release(g)
	r.takes(waits(ask("p", "other")), "a") // whom the first one does not hold up
	r.put(epoch, "b/1", "", city("Łódź"), "p")
	r.busy(ask("p", "newcomer"))
	r.takes(waits(picky), "b")
}
