package leasetest

import (
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func flightClauses() []Clause {
	return []Clause{
		{"Flight/pick", "a pick counts until its report or for the pool's lease time", flightPick},
		{"Flight/whose", "nobody ends another account's use", flightWhose},
		{"Flight/lease", "a lease with a target counts while it runs", flightLease},
		{"Flight/ends", "a lease that ends otherwise counts no more", flightEnds},
		{"Flight/exit-ip", "uses count by the scope of the pool", flightExitIP},
		{"Flight/off", "a pool without a cap counts nothing", flightOff},
	}
}

// caps is a pool that caps the uses in flight.
func caps(name string, most int) lease.Pool {
	p := pool(name)
	p.InFlight = most
	return p
}

func flightPick(r *run) {
	r.stock(caps("p", 2), "a")
	first, second := r.pick("p", "example.com"), r.pick("p", "example.com")
	if !first.Use.Ends.Equal(first.Now.Add(time.Minute)) {
		r.Errorf("it counts until %v, picked at %v", first.Use.Ends, first.Now)
	}
	b := r.none("p", "example.com")
	if !b.Due.Equal(first.Use.Ends) {
		r.Errorf("due %v, want %v", b.Due, first.Use.Ends)
	}
	r.busy(aimed(ask("p", "one"), "example.com"))
	r.picks("p", "example.org", "a")
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.OK, Use: second.Use.ID, Account: "ann"})
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.OK, Use: second.Use.ID, Account: "ann"}) // twice is harmless
	r.advance(10 * time.Second)
	r.picks("p", "example.com", "a")
	r.none("p", "example.com")
	r.advance(50 * time.Second)
	r.picks("p", "example.com", "a") // the first one's time is over
	r.none("p", "example.com")
	// What counts no more is not kept.
	p := caps("q", 5)
	p.Cooldown = time.Second
	r.stock(p, "b")
	for range 3 {
		r.advance(2 * time.Minute)
		r.pick("q", "example.com")
		if c, _ := r.cooldown("b", "example.com"); len(c.Uses) != 1 {
			r.Errorf("uses in flight: %+v", c.Uses)
		}
	}
}

func flightWhose(r *run) {
	r.stock(caps("p", 1), "a")
	u := r.pick("p", "example.com").Use
	report := lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned, Use: u.ID}
	for _, account := range []string{"eve", "", "ann "} {
		report.Account = account
		r.refused(report, fault.Denied, "not_owner")
	}
	r.none("p", "example.com")
	for f := range u.ID.Fence + 9 {
		if f != u.ID.Fence {
			r.do(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.OK, Use: lease.ID{Key: "a", Fence: f}, Account: "eve"})
		}
	}
	r.none("p", "example.com")
	report.Account, report.Outcome = "ann", ""
	if c := r.ok(report).Rest; c != nil {
		r.Errorf("somebody else's report rests it: %+v", c)
	}
	r.pick("p", "example.com")
}

func flightLease(r *run) {
	r.stock(caps("p", 1), "a")
	g := r.takes(aimed(ask("p", "one"), "example.com"), "a")
	r.advance(50 * time.Second)
	r.ok(lease.Renew{Proof: g.Proof})
	r.advance(50 * time.Second)
	r.release(g)
	res := r.pick("p", "example.com")
	r.none("p", "example.com")
	r.busy(aimed(ask("p", "two"), "example.com"))
	r.takes(aimed(ask("p", "three"), "example.org"), "a") // a pick holds nothing
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.OK, Use: res.Use.ID, Account: "ann"})
}

func flightEnds(r *run) {
	p := caps("p", 1)
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.put(epoch, "b/1", "192.0.2.1", nil, "p")
	for i, end := range []func(g got){
		func(g got) { r.ok(lease.Force{Key: g.ID.Key}) },
		func(got) { r.advance(time.Minute) },
		func(g got) {
			r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret})
			r.none("p", "example.com")
			r.advance(5 * time.Second)
		},
		func(g got) { r.put(epoch, g.ID.Key+"/2", "192.0.2.1", nil, "p") },
		func(g got) { // it moves, and its use with it
			k, _ := r.key(g.ID.Key)
			r.put(epoch, k.UID, "192.0.2.9", nil, "p")
			res := r.pick("p", "example.com")
			r.none("p", "example.com")
			r.ok(lease.Report{Key: res.Key.Name, Pool: "p", Target: "example.com", Outcome: lease.OK, Use: res.Use.ID, Account: "ann"})
			r.release(g)
			r.put(epoch, k.UID, "192.0.2.1", nil, "p")
		},
		func(g got) {
			r.put(epoch, g.ID.Key+"/2", "192.0.2.1", nil, "p")
			r.ok(lease.DropKey{Epoch: epoch, Key: g.ID.Key})
			r.put(epoch, g.ID.Key+"/3", "192.0.2.1", nil, "p")
		},
	} {
		g := r.take(aimed(ask("p", fmt.Sprint(i)), "example.com"))
		r.none("p", "example.com")
		end(g)
		res := r.pick("p", "example.com")
		r.none("p", "example.com")
		r.ok(lease.Report{Key: res.Key.Name, Pool: "p", Target: "example.com", Outcome: lease.OK, Use: res.Use.ID, Account: "ann"})
	}
	// A grant that nobody fetched counts for its whole time once it is asked for.
	r.advance(time.Hour)
	op := kept4replay(aimed(ask("p", "kept"), "example.net"))
	g := r.take(op)
	r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret})
	if res := r.ok(op); !res.Replayed {
		r.Fatalf("the replay is %+v", res)
	}
	r.advance(30 * time.Second)
	r.none("p", "example.net")
}

func flightExitIP(r *run) {
	p, q := caps("p", 1), caps("q", 1)
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p, q)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p", "q")
	r.put(epoch, "b/1", "192.0.2.1", nil, "p", "q")
	res := r.pick("p", "example.com")
	r.none("p", "example.com")
	r.picks("q", "example.com", "b", "a") // which counts by key
	r.none("q", "example.com")
	r.ok(lease.Report{Key: res.Key.Name, Pool: "p", Target: "example.com", Outcome: lease.Failed, Use: res.Use.ID, Account: "ann"})
	r.pick("p", "example.com")
}

func flightOff(r *run) {
	epoch := r.stock(caps("p", 1), "a")
	r.pick("p", "example.com")
	r.none("p", "example.com")
	off := caps("p", 0)
	all := r.do(lease.Take{Pool: "p", Target: "example.com", Account: "ann", Quick: true}, lease.PutPool{Epoch: epoch, Pool: off},
		lease.Take{Pool: "p", Target: "example.com", Account: "ann", Quick: true})
	if all[0].Busy == nil || all[2].Use == nil {
		r.Fatalf("with a cap %+v, without %+v", all[0].Busy, all[2].Busy)
	}
	r.picks("p", "example.com", "a", "a", "a")
	for _, bad := range []int{-1, 1001} {
		r.refused(lease.PutPool{Epoch: epoch, Pool: caps("p", bad)}, fault.Invalid, "pool")
	}
	for _, bad := range []int{-1, 101} {
		off.NewShare = bad
		r.refused(lease.PutPool{Epoch: epoch, Pool: off}, fault.Invalid, "pool")
	}
}
