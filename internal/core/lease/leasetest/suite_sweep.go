package leasetest

import (
	"fmt"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func sweepClauses() []Clause {
	return []Clause{
		{"Sweep/ends", "a sweep writes down the leases that time ended, the oldest first, some at a time", sweepEnds},
		{"Sweep/next", "it says when the next lease ends", sweepNext},
		{"Sweep/tells", "whatever meets an ended lease first tells of it, once", sweepTells},
		{"Sweep/tickets", "it forgets tickets that nobody asks for any more", sweepTickets},
		{"Sweep/events", "it forgets events after an hour, and readers learn of the gap", sweepEvents},
		{"Sweep/lines", "it comes back until nothing is left of the lines that nobody asked for", sweepLines},
		{"Sweep/changes", "it forgets changes of yesterday and none of today", sweepChanges},
	}
}

func sweepEnds(r *run) {
	r.publish(pool("p"), "a", "b", "c", "d")
	for i, n := range []string{"a", "b", "c", "d"} {
		op := ask("p", n)
		op.TTL = time.Duration(30-5*i) * time.Second
		r.takes(op, n)
	}
	r.advance(26 * time.Second) // a still runs
	ended := func(want ...string) {
		r.Helper()
		var have []string
		for _, n := range []string{"a", "b", "c", "d"} {
			if k, _ := r.key(n); k.Lease.End != "" {
				have = append(have, n)
				if k.Lease.End != lease.Expired || !k.Lease.EndedAt.Equal(k.Lease.Expires) || !k.UsedAt.Equal(k.Lease.Expires) {
					r.Fatalf("key %s ended as %+v", n, k)
				}
			}
		}
		r.same("ended", want, have)
	}
	ended()
	if res := r.ok(lease.Sweep{Limit: 2}); !res.More {
		r.Error("it does not say that there are more")
	}
	ended("c", "d")
	r.ok(lease.Sweep{Limit: 2})
	ended("b", "c", "d")
	if res := r.ok(lease.Sweep{Limit: 2}); res.More {
		r.Error("it says that there are more")
	}
	r.advance(10 * time.Second)
	r.do(lease.Sweep{Limit: 1}, lease.Sweep{Limit: 5})
	ended("a", "b", "c", "d")
}

func sweepNext(r *run) {
	r.publish(pool("p"), "a", "b", "c")
	if res := r.ok(lease.Sweep{Limit: 10}); !res.Next.IsZero() {
		r.Errorf("with no lease the next one ends at %v", res.Next)
	}
	a := r.take(ask("p", "one"))
	r.advance(10 * time.Second)
	b := r.take(ask("p", "two"))
	next := func(want time.Time, ops ...lease.Op) {
		r.Helper()
		all := r.do(append(ops, lease.Sweep{Limit: 10})...)
		if got := all[len(ops)].Next; got.IsZero() || got.After(want) {
			r.Fatalf("the next one ends at %v, it says %v", want, got)
		}
	}
	next(a.lease.Expires)
	res := r.ok(lease.Renew{Proof: a.Proof, TTL: 5 * time.Minute})
	next(b.lease.Expires)
	r.release(b)
	next(res.Lease.Expires)
	// One that was taken, or cut short, in the same transaction.
	op := ask("p", "three")
	op.TTL = 20 * time.Second
	_, now := r.key("a")
	next(now.Add(21*time.Second), op)
	next(now.Add(6*time.Second), lease.Renew{Proof: a.Proof, TTL: lease.MinTTL})
}

func sweepTells(r *run) {
	r.publish(pool("p"), "a", "b")
	take := func(ticket string) { r.do(ask("p", ticket+"a"), ask("p", ticket+"b")); r.advance(time.Minute) }
	take("one")
	after := r.cursor()
	r.ok(lease.Sweep{Limit: 10})
	r.ok(lease.Sweep{Limit: 10})
	kinds := r.kinds(after)
	slices.Sort(kinds)
	r.same("events", []string{"expired a", "expired b"}, kinds)

	take("two")
	after = r.cursor()
	r.ok(lease.Disable{Key: "a", By: "root"})
	g := r.takes(ask("p", "three"), "b")
	r.ok(lease.Sweep{Limit: 10})
	r.same("events", []string{"expired a", "disabled a", "expired b", "taken b"}, r.kinds(after))

	r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret})
	r.advance(lease.UnclaimedFor)
	after = r.cursor()
	r.ok(lease.Sweep{Limit: 10})
	r.same("events", []string{"unclaimed b"}, r.kinds(after))
}

func sweepTickets(r *run) {
	r.publish(pool("p"), "a")
	op := ask("p", "holder")
	op.TTL = 10 * time.Minute
	r.take(op)
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "two"), 2)
	r.advance(lease.PlaceFor + time.Second)
	r.ok(lease.Live{Tickets: []string{"two"}}) // it waited all along
	r.ok(lease.Sweep{Limit: 10})
	r.same("the queue", []string{"two"}, r.tickets("p"))
	r.advance(lease.PlaceFor + time.Second)
	all := r.do(lease.Sweep{Limit: 10}, waits(ask("p", "two")))
	if all[1].Busy == nil {
		r.Fatalf("two: %+v", all[1])
	}
	r.same("the queue", []string{"two"}, r.tickets("p"))
}

func sweepEvents(r *run) {
	r.publish(pool("p"), "a")
	r.release(r.take(ask("p", "one")))
	old, gap, err := r.store().Events(r.ctx, 0, 100)
	if err != nil || gap || len(old) != 3 {
		r.Fatalf("%d events, gap %v, %v", len(old), gap, err)
	}
	r.advance(lease.EventsFor - time.Minute)
	r.take(ask("p", "two"))
	r.ok(lease.Sweep{Limit: 100})
	if again, gap, err := r.store().Events(r.ctx, 0, 100); err != nil || gap || len(again) != 4 {
		r.Fatalf("before the hour is over: %d events, gap %v, %v", len(again), gap, err)
	}
	r.advance(2 * time.Minute)
	r.ok(lease.Sweep{Limit: 2})
	last := old[2].Seq
	for _, tc := range []struct {
		after int64
		gap   bool
	}{{0, true}, {old[0].Seq, true}, {old[1].Seq, false}, {last, false}} {
		events, gap, err := r.store().Events(r.ctx, tc.after, 100)
		if err != nil || gap != tc.gap || len(events) == 0 || (tc.after < last) != (events[0].Seq == last) {
			r.Fatalf("after %d: gap %v, %+v, %v", tc.after, gap, events, err)
		}
	}
	r.advance(2 * time.Hour)
	r.ok(lease.Sweep{Limit: 100}) // it writes an event itself: the lease's end
	r.advance(2 * time.Hour)
	r.ok(lease.Sweep{Limit: 100})
	if events, gap, err := r.store().Events(r.ctx, last, 100); err != nil || !gap || len(events) != 0 {
		r.Fatalf("when all are forgotten: gap %v, %+v, %v", gap, events, err)
	}
}

func sweepChanges(r *run) {
	r.publish(pool("p"), "a")
	r.ok(begin("c1", "p", "a"))
	r.advance(time.Hour)
	r.ok(lease.Sweep{Limit: 10})
	r.refused(begin("c1", "p", "a"), fault.Conflict, "change")
	r.advance(25 * time.Hour)
	r.ok(lease.Sweep{Limit: 10})
	r.ok(begin("c1", "p", "a"))
}

func sweepLines(r *run) {
	epoch := r.manage(pool("p"))
	var ops []lease.Op
	for i := range 60 {
		ops = append(ops, lease.PutKey{Epoch: epoch, Key: fmt.Sprintf("k%02d", i), UID: "1", Pools: []string{"p"}})
	}
	r.do(ops...)
	for i := range 5 {
		for range 40 {
			r.pick("p", fmt.Sprintf("%d.example", i))
		}
	}
	sweeps := func() (n int) {
		r.Helper()
		for n = 1; r.ok(lease.Sweep{Limit: 16}).More; n++ {
			if n == 200 {
				r.Fatal("sweeps come to no end")
			}
		}
		return n
	}
	r.advance(59 * time.Minute)
	if n := sweeps(); n != 1 {
		r.Errorf("%d sweeps while they are in use", n)
	}
	r.advance(2 * time.Minute)
	if n := sweeps(); n < 2 {
		r.Errorf("%d sweeps for what nobody asked for", n)
	}
	if n := sweeps(); n != 1 {
		r.Errorf("%d sweeps when all is gone", n)
	}
}
