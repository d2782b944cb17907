package leasetest

import (
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func takeReplay(r *run) {
	r.publish(pool("p"), "a", "b")
	op := kept4replay(ask("p", "t"))
	g := r.take(op)
	r.advance(10 * time.Second)
	for range 3 {
		res := r.do(op)[0]
		again := r.granted(op, res)
		if !res.Replayed || again.ID != g.ID || !again.lease.Expires.Equal(g.lease.Expires) {
			r.Fatalf("again: %v until %v, replayed %v; want %v until %v", again.ID, again.lease.Expires, res.Replayed, g.ID, g.lease.Expires)
		}
	}
	// In one transaction, too.
	op = kept4replay(ask("p", "u"))
	all := r.do(op, op)
	if one, two := r.granted(op, all[0]), r.granted(op, all[1]); one.ID != two.ID || all[0].Replayed || !all[1].Replayed {
		r.Fatalf("twice at once: %v and %v", one.ID, two.ID)
	}
	// A waiter's, too.
	w := kept4replay(ask("p", "w"))
	r.queued(w, 1)
	r.release(g)
	g = r.take(waits(w))
	r.same("the queue", []string{}, r.tickets("p"))
	if res := r.do(waits(w))[0]; !res.Replayed || r.granted(w, res).ID != g.ID {
		r.Fatalf("a waiter's grant is not replayed: %+v", res)
	}
}

func takeReplayGone(r *run) {
	r.publish(pool("p"), "a")
	end := func(ticket, code string, end func(g got)) {
		r.Helper()
		op := kept4replay(ask("p", ticket))
		end(r.take(op))
		r.refused(op, fault.Conflict, code)
	}
	end("one", "lease_released", func(g got) { r.release(g) })
	end("two", "lease_expired", func(got) { r.advance(time.Minute) })
	end("three", "lease_forced", func(g got) { r.ok(lease.Force{Key: "a", By: "root"}) })
	end("four", "lease_lost", func(got) { r.advance(time.Minute); r.take(ask("p", "other")) })
	r.advance(time.Minute)
	end("five", "lease_removed", func(got) { r.publish(pool("p")); r.advance(time.Minute); r.ok(lease.Sweep{Limit: 10}) })

	// What the pool asks for by now is no matter for a request that was granted.
	r.publish(pool("p"), "a")
	op := kept4replay(ask("p", "six"))
	g := r.take(op)
	p := pool("p")
	p.Hooks.Check = true
	r.publish(p, "a")
	if res := r.do(op)[0]; !res.Replayed || r.granted(op, res).ID != g.ID {
		r.Fatalf("a replay after the pool changed: %+v", res)
	}
}

func takeReplayForgotten(r *run) {
	p := pool("p")
	p.TTL, p.MaxTTL = time.Hour, time.Hour
	r.publish(p, "a", "b", "c")
	op := kept4replay(ask("p", "t"))
	g := r.takes(op, "a")
	r.advance(lease.ReplayFor - time.Second)
	r.ok(lease.Sweep{Limit: 100})
	if res := r.do(op)[0]; !res.Replayed || r.granted(op, res).ID != g.ID {
		r.Fatalf("within ten minutes: %+v", res)
	}
	r.advance(2 * time.Second)
	r.takes(op, "b")
	r.advance(lease.ReplayFor + time.Second)
	r.ok(lease.Sweep{Limit: 100})
	r.takes(op, "c")
}

func takeReplayOther(r *run) {
	r.publish(pool("p"), "a")
	r.publish(pool("q"), "b")
	other := func(op lease.Take) lease.Take {
		op.Digest = "asks for something else"
		return op
	}
	op := kept4replay(ask("p", "t"))
	r.take(op)
	r.refused(other(op), fault.Conflict, "idempotency")
	op = kept4replay(ask("p", "u"))
	r.queued(op, 1)
	r.refused(waits(other(op)), fault.Conflict, "idempotency")
	op.Account = "bob"
	r.refused(waits(op), fault.Conflict, "idempotency")
	op = kept4replay(ask("q", "u"))
	op.Digest = "asks p"
	r.refused(op, fault.Conflict, "idempotency")
	r.state("b", lease.Free)
}

func takeUnclaimed(r *run) {
	p := pool("p")
	p.Hooks.Reset = true
	r.publish(p, "a")
	op := ask("p", "t")
	op.RunsHooks = true
	g := r.take(op)
	r.refused(lease.Unclaim{ID: g.ID, Secret: lease.HashOf("another")}, fault.NotFound, "lease")
	res := r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret})
	if !res.Lease.Expires.Equal(res.Now.Add(lease.UnclaimedFor)) {
		r.Errorf("it ends at %v, want five seconds after %v", res.Lease.Expires, res.Now)
	}
	// A client that holds it all the same keeps it by renewing.
	r.ok(lease.Renew{Proof: g.Proof})
	r.advance(lease.UnclaimedFor + time.Second)
	r.state("a", lease.Held)
	if k, _ := r.key("a"); k.Lease.Unclaimed {
		r.Error("a lease that was renewed still counts as unclaimed")
	}
	// Who renewed holds it: the news that the answer was lost is late.
	if res := r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret}); res.Lease.Unclaimed {
		r.Error("a lease that was renewed was taken for unclaimed")
	}
	r.advance(lease.UnclaimedFor + time.Second)
	r.state("a", lease.Held)
	r.ok(lease.Release{Proof: g.Proof, Reset: lease.ResetDone})

	op.Ticket = "s"
	g = r.take(op)
	r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret})
	r.advance(lease.UnclaimedFor)
	r.refused(lease.Renew{Proof: g.Proof}, fault.Conflict, "lease_unclaimed")
	r.refused(lease.Unclaim{ID: g.ID, Secret: g.Secret}, fault.NotFound, "lease")
	r.state("a", lease.Free) // nobody used it: no reset

	// It never makes a lease longer.
	op.Ticket, op.TTL = "u", lease.MinTTL
	g = r.take(op)
	r.advance(2 * time.Second)
	if res := r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret}); !res.Lease.Expires.Equal(g.lease.Expires) {
		r.Errorf("it ends at %v, want %v as before", res.Lease.Expires, g.lease.Expires)
	}
}

func takeUnclaimedReplay(r *run) {
	r.publish(pool("p"), "a")
	op := kept4replay(ask("p", "t"))
	g := r.take(op)
	r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret})
	r.advance(lease.UnclaimedFor - time.Second)
	res := r.do(op)[0]
	again := r.granted(op, res)
	if !res.Replayed || again.ID != g.ID || !again.lease.Expires.Equal(res.Now.Add(time.Minute)) {
		r.Fatalf("replayed %v: %v until %v at %v", res.Replayed, again.ID, again.lease.Expires, res.Now)
	}
	r.advance(30 * time.Second)
	r.state("a", lease.Held)
}

// Another server answered the same request before the first one told that its
// answer was lost.
func takeUnclaimedAfterReplay(r *run) {
	r.publish(pool("p"), "a")
	op := kept4replay(ask("p", "t"))
	g := r.take(op)
	r.advance(time.Second)
	if res := r.do(op)[0]; !res.Replayed {
		r.Fatalf("no replay: %+v", res)
	}
	r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret})
	r.advance(lease.UnclaimedFor + time.Second)
	r.state("a", lease.Held)
	r.refused(lease.Unclaim{ID: g.ID, Secret: lease.HashOf("another")}, fault.NotFound, "lease")
}

func takeUnclaimedLate(r *run) {
	r.publish(pool("p"), "a")
	op := kept4replay(ask("p", "t"))
	g := r.take(op)
	r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret})
	r.advance(lease.UnclaimedFor)
	res := r.do(op)[0]
	if again := r.granted(op, res); res.Replayed || again.ID.Fence <= g.ID.Fence {
		r.Fatalf("replayed %v: %v after %v", res.Replayed, again.ID, g.ID)
	}
}
