package leasetest

import (
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func queueClauses() []Clause {
	return []Clause{
		{"Queue/order", "waiters are served in the order in which they came, through whichever handle", queueOrder},
		{"Queue/newcomer", "a newcomer does not overtake a waiter who can use the key, and need not wait for one who has another", queueNewcomer},
		{"Queue/deep", "positions and order hold beyond what is read at once", queueDeep},
		{"Queue/one-transaction", "waiters and newcomers in one transaction stand in the order of their ops", queueOneTransaction},
		{"Queue/target", "a waiter whose target bars the key does not hold up others", queueTarget},
		{"Queue/where", "a waiter whose constraints no key has does not hold up others", queueWhere},
		{"Queue/hooks", "a waiter who does not run the hooks that the pool has by now does not hold up others", queueHooks},
		{"Queue/dead", "a waiter not heard of for five seconds does not hold up others", queueDead},
		{"Queue/live", "a waiter who is heard of goes on waiting", queueLive},
		{"Queue/place", "a lost client that comes back within fifteen seconds has its old place", queuePlace},
		{"Queue/place-over", "after that it stands behind those who stayed, swept or not", queuePlaceOver},
		{"Queue/leave", "a waiter that leaves is passed over at once and keeps its place for fifteen seconds", queueLeave},
		{"Queue/forget", "a waiter that leaves for good has no place any more", queueForget},
		{"Queue/stop-waiting", "a waiter that asks without wait waits no longer, and keeps its place", queueStopWaiting},
		{"Queue/never-granted", "only a take grants: nothing happens for a client that left", queueNeverGranted},
		{"Queue/revive", "places that ran out while no server was there are given back", queueRevive},
		{"Queue/revive-none", "places that ran out while a server was there stay lost", queueReviveNone},
		{"Queue/granted", "a ticket that was granted waits no longer and is gone unless it can be replayed", queueGranted},
		{"Queue/full", "the queue of a pool is bounded, and a place in it is not lost by that", queueFull},
	}
}

func queueOrder(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	for i := 1; i <= 5; i++ {
		r.queued(ask("p", fmt.Sprint(i)), i)
	}
	for i := 1; i <= 5; i++ {
		r.queued(ask("p", fmt.Sprint(i)), i) // asking again changes nothing
	}
	for i := 1; i <= 5; i++ {
		r.release(g)
		for j := 5; j > i; j-- {
			r.queued(ask("p", fmt.Sprint(j)), j-i+1)
		}
		g = r.takes(waits(ask("p", fmt.Sprint(i))), "a")
	}
	r.same("the queue", []string{}, r.tickets("p"))
}

func queueNewcomer(r *run) {
	r.publish(pool("p"), "a", "b")
	a, b := r.take(ask("p", "one")), r.take(ask("p", "two"))
	r.queued(ask("p", "waiter"), 1)
	r.release(a)
	r.busy(ask("p", "newcomer"))
	r.queued(ask("p", "newcomer"), 2)
	r.release(b)
	// Two keys, two waiters: each has one, whoever asks first.
	r.take(waits(ask("p", "newcomer")))
	r.busy(ask("p", "third"))
	r.take(waits(ask("p", "waiter")))
}

func queueDeep(r *run) {
	const many = 150
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	var ops []lease.Op
	for i := range many {
		ops = append(ops, waits(ask("p", fmt.Sprintf("t%03d", i))))
	}
	for i, res := range r.do(ops[:100]...) {
		if res.Busy == nil || res.Busy.Position != i+1 {
			r.Fatalf("waiter %d: %+v", i, res.Busy)
		}
	}
	for i, res := range r.do(ops[100:]...) {
		if res.Busy == nil || res.Busy.Position != i+101 {
			r.Fatalf("waiter %d: %+v", i+100, res.Busy)
		}
	}
	r.queued(ask("p", "t120"), 121)
	if b := r.busy(ask("p", "asker")); b.Ahead != many {
		r.Errorf("%d ahead of a newcomer, want %d", b.Ahead, many)
	}
	// Those in front leave, but for one behind the first hundred.
	var leave []lease.Op
	for i := range 110 {
		leave = append(leave, lease.Leave{Ticket: fmt.Sprintf("t%03d", i), Forget: true})
	}
	all := r.do(append(leave, waits(ask("p", "t120")))...)
	if b := all[110].Busy; b == nil || b.Position != 11 {
		r.Errorf("after 110 left: %+v, want position 11", b)
	}
	r.release(g)
	r.queued(ask("p", "t111"), 2)
	r.queued(ask("p", "t149"), 40)
	r.busy(ask("p", "newcomer"))
	r.takes(waits(ask("p", "t110")), "a")
}

func queueOneTransaction(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	r.queued(ask("p", "one"), 1)
	all := r.do(waits(ask("p", "two")), lease.Leave{Ticket: "one"}, waits(ask("p", "three")), waits(ask("p", "one")), waits(ask("p", "two")))
	for i, want := range map[int]int{0: 2, 2: 2, 3: 1, 4: 2} {
		if b := all[i].Busy; b == nil || b.Position != want {
			r.Errorf("op %d: %+v, want position %d", i, b, want)
		}
	}
	all = r.do(lease.Release{Proof: g.Proof}, ask("p", "newcomer"), waits(ask("p", "two")), waits(ask("p", "one")), waits(ask("p", "three")))
	if all[1].Busy == nil || all[2].Busy == nil || all[3].Key == nil || all[4].Busy == nil {
		r.Fatalf("newcomer %+v, two %+v, one %+v, three %+v; want one to have the key", all[1].Busy, all[2].Busy, all[3].Busy, all[4].Busy)
	}
	if got := all[4].Busy.Position; got != 2 {
		r.Errorf("three stands at %d, want 2", got)
	}
	// One that comes back to life in this transaction stands before a newcomer of it.
	r.release(r.granted(waits(ask("p", "one")), all[3]))
	r.advance(lease.LiveFor + time.Second)
	all = r.do(lease.Live{Tickets: []string{"two", "nobody"}}, ask("p", "newcomer"), waits(ask("p", "two")))
	if all[1].Busy == nil || all[2].Key == nil {
		r.Errorf("newcomer %+v, two %+v; want two to have the key", all[1], all[2])
	}
	// One that leaves for good and comes again stands behind.
	r.release(r.granted(ask("p", "two"), all[2]))
	g = r.take(ask("p", "holder"))
	r.queued(ask("p", "four"), 1)
	r.queued(ask("p", "five"), 2)
	all = r.do(lease.Leave{Ticket: "four", Forget: true}, waits(ask("p", "four")), lease.Release{Proof: g.Proof}, waits(ask("p", "four")), waits(ask("p", "five")))
	if all[1].Busy == nil || all[1].Busy.Position != 2 || all[3].Busy == nil || all[4].Key == nil {
		r.Errorf("four %+v and %+v, five %+v; want five to have the key", all[1].Busy, all[3].Busy, all[4].Busy)
	}
	// One that asks again has one key set aside for it, and not two.
	r.publish(pool("q"), "x", "y")
	x, y := r.take(ask("q", "x")), r.take(ask("q", "y"))
	r.queued(ask("q", "six"), 1)
	all = r.do(waits(ask("q", "six")), lease.Release{Proof: x.Proof}, lease.Release{Proof: y.Proof}, ask("q", "newcomer"), waits(ask("q", "six")))
	if all[3].Key == nil || all[4].Key == nil {
		r.Errorf("newcomer %+v, six %+v; want a key for both", all[3].Busy, all[4].Busy)
	}
	// One that comes back to its place stands before those who stayed behind it.
	r.queued(ask("q", "seven"), 1)
	r.advance(lease.LiveFor + time.Second)
	r.queued(ask("q", "eight"), 1)
	six := r.granted(ask("q", "six"), all[4])
	all = r.do(lease.Live{Tickets: []string{"seven"}}, lease.Release{Proof: six.Proof}, waits(ask("q", "eight")), waits(ask("q", "seven")))
	if all[2].Busy == nil || all[3].Key == nil {
		r.Errorf("eight %+v, seven %+v; want seven to have the key", all[2].Busy, all[3].Busy)
	}
}

func queueTarget(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	r.queued(aimed(ask("p", "one"), "example.com"), 1)
	g := r.takes(aimed(ask("p", "two"), "example.org"), "a")
	r.release(g)
	g = r.takes(ask("p", "three"), "a")
	r.queued(aimed(ask("p", "four"), "example.org"), 2)
	r.release(g)
	r.busy(ask("p", "five")) // four can use it
	r.takes(waits(aimed(ask("p", "four"), "example.org")), "a")
}

func queueWhere(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "", map[string]string{"country": "de"}, "p")
	picky := ask("p", "picky")
	picky.Where = map[string]string{"country": "fr"}
	r.queued(picky, 1)
	g := r.takes(ask("p", "other"), "a")
	r.release(g)
	// The constraint is the ticket's: it is remembered.
	r.put(epoch, "a/1", "", map[string]string{"country": "fr"}, "p")
	r.busy(ask("p", "newcomer"))
	r.takes(waits(picky), "a")
}

func queueHooks(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	r.queued(ask("p", "raw"), 1)
	p := pool("p")
	p.Hooks.Check = true
	r.publish(p, "a")
	r.release(g)
	op := ask("p", "runs hooks")
	op.RunsHooks = true
	r.takes(op, "a")
}

func queueDead(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "two"), 2)
	r.advance(lease.LiveFor - time.Second)
	r.queued(ask("p", "two"), 2)
	r.advance(time.Second)
	r.release(g)
	r.queued(ask("p", "late"), 2) // two is before it, one is dead
	r.takes(waits(ask("p", "two")), "a")
	if n := r.status("p").Waiting; n != 1 {
		r.Errorf("%d wait, want 1", n)
	}
}

func queueLive(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	r.queued(ask("p", "one"), 1)
	for range 5 {
		r.advance(lease.LiveFor - time.Second)
		r.ok(lease.Live{Tickets: []string{"one"}})
	}
	r.queued(ask("p", "two"), 2)
	r.release(g)
	r.busy(ask("p", "newcomer"))
	r.takes(waits(ask("p", "one")), "a")
	r.ok(lease.Live{Tickets: []string{"one", "nobody"}}) // too late is no matter
	r.same("the queue", []string{"two"}, r.tickets("p"))
}

func queuePlace(r *run) {
	r.publish(pool("p"), "a")
	op := ask("p", "holder")
	op.TTL = 5 * time.Minute
	r.take(op)
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "two"), 2)
	for range 2 {
		r.advance(lease.PlaceFor - time.Second)
		r.queued(ask("p", "two"), 1)
		r.ok(lease.Sweep{Limit: 100})
		r.queued(ask("p", "one"), 1)
		r.queued(ask("p", "two"), 2)
	}
}

func queuePlaceOver(r *run) {
	for _, swept := range []bool{false, true} {
		name := fmt.Sprintf("p%v", swept)
		r.publish(pool(name), "a"+name)
		op := ask(name, name+"holder")
		op.TTL = 5 * time.Minute
		r.take(op)
		one, two := ask(name, name+"one"), ask(name, name+"two")
		r.queued(one, 1)
		r.queued(two, 2)
		for range 4 {
			r.advance(lease.LiveFor - time.Second)
			r.ok(lease.Live{Tickets: []string{two.Ticket}})
		}
		if swept {
			r.ok(lease.Sweep{Limit: 100})
		}
		r.queued(one, 2)
		r.queued(two, 1)
		one.Digest = "asks for something else" // it counts as a new request, so it may
		r.advance(lease.PlaceFor + time.Second)
		r.queued(one, 1)
	}
}

func queueLeave(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "two"), 2)
	r.advance(4 * time.Second)
	r.do(lease.Leave{Ticket: "one"}, lease.Live{Tickets: []string{"two"}}, lease.Leave{Ticket: "nobody"})
	r.queued(ask("p", "two"), 1)
	r.same("the queue", []string{"one", "two"}, r.tickets("p")) // it shows those that may come back
	r.release(g)
	g = r.take(waits(ask("p", "two")))
	r.advance(lease.PlaceFor - time.Second)
	r.queued(ask("p", "three"), 1)
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "three"), 2)
	r.release(g)
	r.queued(ask("p", "three"), 2)
	r.takes(waits(ask("p", "one")), "a")
}

func queueForget(r *run) {
	r.publish(pool("p"), "a")
	r.take(ask("p", "holder"))
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "two"), 2)
	r.ok(lease.Leave{Ticket: "one", Forget: true})
	r.same("the queue", []string{"two"}, r.tickets("p"))
	r.queued(ask("p", "one"), 2)
	r.queued(ask("p", "two"), 1)
}

func queueStopWaiting(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "two"), 2)
	if b := r.busy(ask("p", "one")); b.Position != 0 {
		r.Errorf("without wait it stands at %d", b.Position)
	}
	r.queued(ask("p", "two"), 1)
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "two"), 2)
	r.busy(ask("p", "one"))
	r.release(g)
	g = r.takes(waits(ask("p", "two")), "a")
	r.release(g)
	r.takes(ask("p", "one"), "a") // asking again without wait may be lucky
	r.same("the queue", []string{}, r.tickets("p"))
}

func queueNeverGranted(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "holder"))
	r.queued(ask("p", "one"), 1)
	r.release(g)
	r.state("a", lease.Free)
	r.ok(lease.Leave{Ticket: "one"})
	r.do(lease.Live{Tickets: []string{"two"}}, lease.Sweep{Limit: 10})
	r.state("a", lease.Free)
	r.takes(ask("p", "two"), "a")
}

func queueRevive(r *run) {
	r.publish(pool("p"), "a")
	op := ask("p", "holder")
	op.TTL = 10 * time.Minute
	r.take(op)
	r.queued(ask("p", "zero"), 1)
	r.advance(10 * time.Second)
	r.queued(ask("p", "one"), 1)
	r.advance(10 * time.Second)
	r.queued(ask("p", "two"), 1)
	r.queued(ask("p", "three"), 2)
	r.advance(time.Minute) // nobody is there
	r.ok(lease.Revive{})
	r.advance(lease.PlaceFor - time.Second)
	r.queued(ask("p", "three"), 1)
	r.queued(ask("p", "two"), 1)
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "zero"), 4) // it was lost before
	r.queued(ask("p", "three"), 3)
	// In one transaction with the one that comes back.
	r.advance(time.Minute)
	all := r.do(lease.Revive{}, waits(ask("p", "new")), waits(ask("p", "two")))
	if b := all[2].Busy; b == nil || b.Position != 1 {
		r.Errorf("after a revival in the same transaction: %+v, want position 1", b)
	}
}

func queueReviveNone(r *run) {
	r.publish(pool("p"), "a")
	op := ask("p", "holder")
	op.TTL = 10 * time.Minute
	r.take(op)
	r.queued(ask("p", "one"), 1)
	r.queued(ask("p", "two"), 2)
	for range 8 {
		r.advance(lease.LiveFor - time.Second)
		r.ok(lease.Live{Tickets: []string{"two"}})
	}
	r.ok(lease.Revive{})
	r.queued(ask("p", "one"), 2)
}

func queueGranted(r *run) {
	r.publish(pool("p"), "a", "b")
	a, b := r.take(ask("p", "one")), r.take(ask("p", "two"))
	r.queued(ask("p", "three"), 1)
	r.queued(kept4replay(ask("p", "four")), 2)
	r.release(a)
	r.release(b)
	r.take(waits(ask("p", "three")))
	r.take(waits(kept4replay(ask("p", "four"))))
	r.same("the queue", []string{}, r.tickets("p"))
	// Without an Idempotency-Key the same ticket is a new request.
	r.queued(ask("p", "three"), 1)
	if res := r.do(waits(kept4replay(ask("p", "four"))))[0]; !res.Replayed {
		r.Errorf("with one it is not replayed: %+v", res)
	}
}

func queueFull(r *run) {
	r.publish(pool("p"), "a")
	r.take(ask("p", "holder"))
	for from := 0; from < lease.MaxQueue; from += 1000 {
		var ops []lease.Op
		var live lease.Live
		for i := range 1000 {
			ops = append(ops, waits(ask("p", fmt.Sprint(from+i))))
		}
		for i := range from {
			live.Tickets = append(live.Tickets, fmt.Sprint(i))
		}
		for i, res := range r.do(append(ops, live)...)[:1000] {
			if res.Busy == nil || res.Busy.Position != from+i+1 {
				r.Fatalf("waiter %d: %+v (%v)", from+i, res.Busy, res.Err)
			}
		}
	}
	r.refused(waits(ask("p", "late")), fault.Quota, "queue_full")
	if b := r.busy(ask("p", "asker")); b.Ahead != lease.MaxQueue {
		r.Errorf("%d ahead, want %d", b.Ahead, lease.MaxQueue)
	}
	r.queued(ask("p", "77"), 78)
	r.ok(lease.Leave{Ticket: "5000"})
	r.queued(ask("p", "late"), lease.MaxQueue)
	r.queued(ask("p", "5000"), 5001)
}
