package leasetest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func readClauses() []Clause {
	return []Clause{
		{"Read/pools", "pools come by name, page by page, with their counts", readPools},
		{"Read/keys", "keys come by name, page by page, those that leave among them", readKeys},
		{"Read/queue", "waiters come in their order, page by page, with what they ask for", readQueue},
		{"Read/cooldowns", "the rests of a key come by target, page by page, for each the one that ends last", readCooldowns},
		{"Read/events", "events come in their order, page by page, with what they are about", readEvents},
		{"Read/unknown", "what does not exist is NotFound", readUnknown},
		{"Read/own", "what was read is the reader's own", readOwn},
		{"Read/root", "the root key is made once", readRoot},
		{"Watch/freed", "whoever watches another handle hears of pools in which a key came free", watchFreed},
		{"Watch/end", "a watch ends with its context, without an error", watchEnd},
	}
}

func readPools(r *run) {
	want := []string{"0", "A", "a", "a-b", "a.b", "a_b", "b", "b10", "b2"}
	for _, n := range slices.Backward(want) {
		r.publish(pool(n), "k"+n, "l"+n)
	}
	r.take(ask("a", "one"))
	r.queued(ask("b", "x"), 1+r.fill("b"))
	for _, limit := range []int{1, 2, 4, len(want), 100} {
		var have []string
		after := ""
		for {
			page, err := r.store().Pools(r.ctx, after, limit)
			if err != nil || len(page) > limit {
				r.Fatalf("Pools(%q, %d): %d, %v", after, limit, len(page), err)
			}
			for _, p := range page {
				have = append(have, p.Name)
				r.same("the pool alone", func() lease.PoolStatus { s := r.status(p.Name); s.Now = p.Now; return s }(), p)
			}
			if len(page) < limit {
				break
			}
			after = page[len(page)-1].Name
		}
		r.same(fmt.Sprintf("pages of %d", limit), want, have)
	}
	page, err := r.store().Pools(r.ctx, "a~", 1)
	if err != nil || len(page) != 1 || page[0].Name != "b" {
		r.Errorf("after a name that is no pool: %+v, %v", page, err)
	}
	for name, want := range map[string]lease.PoolStatus{"a": {Keys: 2, Free: 1, Held: 1}, "b": {Keys: 2, Held: 2, Waiting: 1}, "0": {Keys: 2, Free: 2}} {
		if s := r.status(name); s.Keys != want.Keys || s.Free != want.Free || s.Held != want.Held || s.Waiting != want.Waiting {
			r.Errorf("pool %s: %+v, want %+v", name, s, want)
		}
	}
}

// fill takes all keys of a pool and returns 0.
func (r *run) fill(pool string) int {
	r.Helper()
	for i := 0; ; i++ {
		op := ask(pool, fmt.Sprintf("fill %s %d", pool, i))
		if res := r.do(op)[0]; res.Busy != nil {
			return 0
		}
	}
}

func readKeys(r *run) {
	want := []string{"0", "A", "a", "a-b", "a.b", "a_b", "b"}
	r.publish(pool("p"), append(want, "gone")...)
	r.publish(pool("q"), "a", "z")
	r.fill("p")
	r.publish(pool("p"), want[1:]...)
	want = append(want, "gone")
	for _, limit := range []int{1, 3, len(want), 100} {
		var have []string
		after := ""
		for {
			page, err := r.store().Keys(r.ctx, "p", after, limit)
			if err != nil || len(page.Keys) > limit || page.Now.IsZero() {
				r.Fatalf("Keys(%q, %d): %+v, %v", after, limit, page, err)
			}
			for _, k := range page.Keys {
				have = append(have, k.Name)
				one, _ := r.key(k.Name)
				r.same("the key alone", one, k)
			}
			if len(page.Keys) < limit {
				break
			}
			after = page.Keys[len(page.Keys)-1].Name
		}
		r.same(fmt.Sprintf("pages of %d", limit), want, have)
	}
}

func readQueue(r *run) {
	r.publish(pool("p"), "a")
	r.publish(pool("q"), "b")
	r.fill("p")
	r.fill("q")
	op := aimed(kept4replay(ask("p", "first")), "example.com")
	op.Where, op.RunsHooks = map[string]string{"country": "de"}, true
	now := r.do(waits(op))[0].Now
	want := []string{"first"}
	for i := range 5 {
		r.queued(ask("q", fmt.Sprintf("q%d", i)), i+1)
		want = append(want, fmt.Sprintf("p%d", i))
		r.queued(ask("p", want[i+1]), i+2)
	}
	r.ok(lease.Leave{Ticket: "p0"})
	for _, limit := range []int{1, 2, 6, 100} {
		var have []string
		after := int64(0)
		for {
			page, err := r.store().Queue(r.ctx, "p", after, limit)
			if err != nil || len(page) > limit {
				r.Fatalf("Queue(%d, %d): %+v, %v", after, limit, page, err)
			}
			for _, t := range page {
				if t.Seq <= after {
					r.Fatalf("Queue(%d, %d): %+v", after, limit, t)
				}
				after = t.Seq
				have = append(have, t.ID)
			}
			if len(page) < limit {
				break
			}
		}
		r.same(fmt.Sprintf("pages of %d", limit), want, have)
	}
	page, err := r.store().Queue(r.ctx, "p", 0, 1)
	if err != nil {
		r.Fatalf("Queue: %v", err)
	}
	r.same("a ticket", lease.Ticket{
		ID: "first", Digest: op.Digest, Seq: page[0].Seq, Pool: "p", Target: "example.com", Account: "ann", Holder: op.Holder,
		Where: op.Where, RunsHooks: true, Since: now, LiveUntil: now.Add(lease.LiveFor), PlaceUntil: now.Add(lease.PlaceFor),
	}, page[0])
}

func readCooldowns(r *run) {
	p, q := pool("p"), pool("q")
	p.Scope = lease.ScopeExitIP
	q.Ban.Initial, q.Ban.Max = 2*time.Minute, 5*time.Minute
	epoch := r.manage(p, q)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p", "q")
	r.put(epoch, "b/1", "192.0.2.2", nil, "p", "q")
	want := []string{"0", "A", "a", "a.example", "b"}
	for _, target := range want {
		r.ok(lease.Report{Key: "a", Pool: "p", Target: target, Outcome: lease.Banned})
		r.ok(lease.Report{Key: "b", Pool: "p", Target: "other " + target, Outcome: lease.Banned})
	}
	r.ok(lease.Report{Key: "a", Pool: "q", Target: "b", Outcome: lease.Banned})
	for _, limit := range []int{1, 2, len(want), 100} {
		var have []string
		after := ""
		for {
			page, err := r.store().Cooldowns(r.ctx, "a", after, limit)
			if err != nil || len(page) > limit {
				r.Fatalf("Cooldowns(%q, %d): %+v, %v", after, limit, page, err)
			}
			for _, c := range page {
				have = append(have, c.Target)
			}
			if len(page) < limit {
				break
			}
			after = page[len(page)-1].Target
		}
		r.same(fmt.Sprintf("pages of %d", limit), want, have)
	}
	if c, _ := r.cooldown("a", "b"); c.Scope != lease.ScopeKey || c.ID != "a" {
		r.Errorf("for a target with two rests it shows %+v", c)
	}
	c, now := r.cooldown("a", "a")
	r.same("a rest", lease.Cooldown{
		CooldownID: lease.CooldownID{Scope: lease.ScopeExitIP, ID: "192.0.2.1", Target: "a"}, Until: c.Until, Strikes: 1, BannedUntil: c.Until, Forget: c.Until.Add(3 * time.Minute),
	}, c)
	if left := c.Until.Sub(now); left <= 0 || left > time.Minute {
		r.Errorf("it rests for %v", left)
	}
	r.advance(time.Minute)
	all, err := r.store().Cooldowns(r.ctx, "a", "", 100)
	if err != nil || len(all) != 1 || all[0].Target != "b" {
		r.Errorf("after a minute: %+v, %v", all, err)
	}
}

func readEvents(r *run) {
	p := cools("p")
	r.publish(p, "a", "b")
	g := r.takes(aimed(ask("p", "one"), "example.com"), "a")
	r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Banned})
	r.ok(lease.Disable{Key: "b", By: "root"})
	r.ok(lease.Enable{Key: "b", By: "root"})
	r.ok(lease.Lift{Key: "a"})
	r.ok(begin("c1", "p", "a"))
	r.ok(lease.EndChange{Pool: "p", ID: "c1", Account: "ann"})
	r.ok(lease.Renew{Proof: r.take(ask("p", "two")).Proof}) // renewals are no events
	r.ok(lease.Force{Key: "b", By: "root"})
	id := g.ID.String()
	want := []lease.Event{
		{Kind: "published", Pool: "p", Account: "root"},
		{Kind: "taken", Pool: "p", Key: "a", Lease: id, Account: "ann"},
		{Kind: "banned", Pool: "p", Key: "a", Lease: id, Account: "ann"},
		{Kind: "disabled", Pool: "p", Key: "b", Account: "root"},
		{Kind: "enabled", Pool: "p", Key: "b", Account: "root"},
		{Kind: "lifted", Pool: "p", Key: "a"},
		{Kind: "change began", Pool: "p", Account: "ann"},
		{Kind: "change ended", Pool: "p", Account: "ann"},
		{Kind: "taken", Pool: "p", Key: "b", Account: "ann"},
		{Kind: "forced", Pool: "p", Key: "b", Account: "root"},
	}
	for _, limit := range []int{1, 3, 100} {
		var have []lease.Event
		after := int64(0)
		for {
			page, gap, err := r.store().Events(r.ctx, after, limit)
			if err != nil || gap || len(page) > limit {
				r.Fatalf("Events(%d, %d): %d, gap %v, %v", after, limit, len(page), gap, err)
			}
			for _, e := range page {
				if e.Seq <= after || e.At.IsZero() {
					r.Fatalf("Events(%d, %d): %+v", after, limit, e)
				}
				after = e.Seq
				e.Seq, e.At = 0, time.Time{}
				if e.Key == "b" && e.Lease != "" {
					want[8].Lease, want[9].Lease = e.Lease, e.Lease
				}
				have = append(have, e)
			}
			if len(page) < limit {
				break
			}
		}
		r.same(fmt.Sprintf("pages of %d", limit), want, have)
	}
	if want[8].Lease == "" {
		r.Error("the taking of b does not name its lease")
	}
}

func readUnknown(r *run) {
	r.publish(pool("p"), "a")
	s := r.store()
	_, err := s.Pool(r.ctx, "a")
	r.fault("Pool", err, fault.NotFound, "pool")
	_, err = s.Keys(r.ctx, "a", "", 10)
	r.fault("Keys", err, fault.NotFound, "pool")
	_, err = s.Queue(r.ctx, "a", 0, 10)
	r.fault("Queue", err, fault.NotFound, "pool")
	_, err = s.Key(r.ctx, "p")
	r.fault("Key", err, fault.NotFound, "key")
	_, err = s.Cooldowns(r.ctx, "p", "", 10)
	r.fault("Cooldowns", err, fault.NotFound, "key")
	all, err := s.Pools(r.ctx, "p", 10)
	if err != nil || len(all) > 0 {
		r.Errorf("after the last pool: %+v, %v", all, err)
	}
}

func readOwn(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "", map[string]string{"country": "de"}, "p")
	g := r.take(ask("p", "one"))
	k, _ := r.key("a")
	for _, k := range []*lease.Key{&k, &g.key} {
		k.Attributes["country"] = "fr"
		k.Pools[0] = "x"
		k.Lease.Expires = k.Lease.Expires.Add(time.Hour)
	}
	k, _ = r.key("a")
	if k.Attributes["country"] != "de" || k.Pools[0] != "p" || !k.Lease.Expires.Equal(g.lease.Expires) {
		r.Errorf("a reader changed what is kept: %+v", k)
	}
}

func readRoot(r *run) {
	first, err := r.store().Root(r.ctx)
	if err != nil || len(first) != 32 || bytes.Equal(first, make([]byte, 32)) {
		r.Fatalf("a root key of %d bytes, %v", len(first), err)
	}
	for range 3 {
		again, err := r.store().Root(r.ctx)
		if err != nil || !bytes.Equal(first, again) {
			r.Fatalf("another root key, or %v", err)
		}
	}
}

// watcher gathers what a watch tells.
type watcher struct {
	told chan lease.News
}

func (watcher) Waiting() bool { return true }

func (w watcher) Changed(n lease.News) {
	select {
	case w.told <- n:
	default: // the test has seen enough
	}
}

// watching runs a watch on every handle while f runs; next returns what one of
// them is told until it is told that.
func (r *run) watching(f func(until func(what string, is func(lease.News) bool))) {
	ctx, stop := context.WithCancel(r.ctx)
	var all sync.WaitGroup
	watchers := make([]watcher, len(r.h.Stores))
	errs := make([]error, len(r.h.Stores))
	for i, s := range r.h.Stores {
		watchers[i] = watcher{make(chan lease.News, 1000)}
		all.Go(func() { errs[i] = s.Watch(ctx, watchers[i]) })
	}
	defer func() {
		stop()
		all.Wait()
		for i, err := range errs {
			if err != nil {
				r.Errorf("the watch of handle %d ended with %v", i, err)
			}
		}
	}()
	f(func(what string, is func(lease.News) bool) {
		r.Helper()
		for i := range watchers {
			for told := false; !told; {
				select {
				case n := <-watchers[i].told:
					told = is(n)
				case <-time.After(20 * time.Second):
					r.Fatalf("handle %d was not told: %s", i, what)
				}
			}
		}
	})
}

func watchFreed(r *run) {
	r.publish(pool("p"), "a")
	r.publish(pool("q"), "b")
	freed := func(pool string) func(lease.News) bool {
		return func(n lease.News) bool { return n.All || slices.Contains(n.Freed, pool) }
	}
	r.watching(func(until func(string, func(lease.News) bool)) {
		r.Helper()
		g := r.take(ask("p", "one"))
		until("something was taken: there are events", func(n lease.News) bool { return n.All || n.Events })
		r.queued(ask("p", "two"), 1)
		r.release(g)
		until("a key was released", freed("p"))
		b := r.take(ask("q", "three"))
		r.ok(lease.Force{Key: "b", By: "root", Fence: b.ID.Fence})
		until("a lease was ended", freed("q"))
		r.ok(lease.Disable{Key: "b", By: "root"})
		r.ok(lease.Enable{Key: "b", By: "root"})
		until("a key was enabled", freed("q"))
		r.ok(begin("c1", "q", "b"))
		r.ok(lease.EndChange{Pool: "q", ID: "c1", Account: "ann"})
		until("a change ended", freed("q"))
		r.publish(pool("q"), "b", "c")
		until("a key was added", freed("q"))
		r.ok(lease.Leave{Ticket: "two"})
		until("a waiter left", freed("p"))
		b = r.take(ask("q", "five"))
		r.ok(lease.Renew{Proof: b.Proof, TTL: lease.MinTTL})
		until("a lease ends sooner than it was said to", freed("q"))
		r.take(ask("p", "four"))
		r.advance(time.Minute)
		r.ok(lease.Sweep{Limit: 10})
		until("a lease expired", freed("p"))
	})
}

func watchEnd(r *run) {
	for _, s := range r.h.Stores {
		ctx, stop := context.WithCancel(r.ctx)
		stop()
		if err := s.Watch(ctx, watcher{make(chan lease.News, 1)}); err != nil {
			r.Errorf("a watch whose context ended: %v", err)
		}
	}
}
