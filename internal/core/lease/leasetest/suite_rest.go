package leasetest

import (
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func restClauses() []Clause {
	return []Clause{
		{"Rest/target", "after a use for a target the key rests for it alone", restTarget},
		{"Rest/ended", "a lease with a target that its time or an admin ends leaves the rest of a use, from its end", restEnded},
		{"Rest/ended-address", "so it does for all of its address, and a lift of that is one", restEndedAddress},
		{"Rest/key", "after a use without a target the key rests for all", restKey},
		{"Rest/ban", "a banned key rests for the target, longer each time, within bounds", restBan},
		{"Rest/ban-release", "a release tells of a ban too, and of the target it is about", restBanRelease},
		{"Rest/ban-same", "reports during a rest are about the same ban", restBanSame},
		{"Rest/ban-forgotten", "a ban long ago does not count", restBanForgotten},
		{"Rest/ban-off", "a pool without bans rests nothing", restBanOff},
		{"Rest/exit-ip", "in a pool whose scope is the exit IP all its keys rest together", restExitIP},
		{"Rest/exit-ip-unknown", "a key whose exit IP is unknown rests alone", restExitIPUnknown},
		{"Rest/other-pool", "a rest holds whichever pool the key is taken through", restOtherPool},
		{"Rest/lift", "rests are lifted for one target or for all, and that frees at once", restLift},
		{"Rest/lift-once", "a lift and a take in one transaction see each other, for all who share an address", restLiftOnce},
		{"Rest/report", "a report needs a known outcome, a target for a ban, and the right machine", restReport},
		{"Rest/one-transaction", "what rests since an op of the same transaction is not handed out", restOneTransaction},
	}
}

// cools is a pool whose keys rest for half a minute.
func cools(name string) lease.Pool {
	p := pool(name)
	p.Cooldown = 30 * time.Second
	return p
}

func restTarget(r *run) {
	r.publish(cools("p"), "a")
	r.release(r.take(aimed(ask("p", "one"), "example.com")))
	r.state("a", lease.Free)
	r.busy(aimed(ask("p", "two"), "example.com"))
	r.release(r.take(aimed(ask("p", "three"), "example.org")))
	r.advance(29 * time.Second)
	r.busy(aimed(ask("p", "four"), "example.com"))
	r.advance(time.Second)
	r.take(aimed(ask("p", "five"), "example.com"))
}

func restEnded(r *run) {
	for i, tc := range []struct {
		how   string
		end   func(g got)
		after time.Duration // from the end on; 0 for no rest
	}{
		{"its time, and nobody wrote it down", func(got) { r.advance(time.Minute) }, 30 * time.Second},
		{"its time, swept", func(got) { r.advance(time.Minute); r.ok(lease.Sweep{Limit: 10}) }, 30 * time.Second},
		{"its time, met by a change of the key", func(g got) {
			r.advance(time.Minute)
			r.ok(lease.Disable{Key: g.ID.Key})
			r.ok(lease.Enable{Key: g.ID.Key})
		}, 30 * time.Second},
		{"its time, met long after", func(got) { r.advance(time.Minute + 20*time.Second); r.ok(lease.Sweep{Limit: 10}) }, 10 * time.Second},
		{"its time, met when its rest is over", func(got) { r.advance(2 * time.Minute) }, 0},
		{"an admin", func(g got) { r.ok(lease.Force{Key: g.ID.Key}) }, 30 * time.Second},
		{"nobody fetched it", func(g got) { r.ok(lease.Unclaim{ID: g.ID, Secret: g.Secret}); r.advance(5 * time.Second) }, 0},
	} {
		p := fmt.Sprint("p", i)
		r.stock(cools(p), p+"a")
		g := r.take(aimed(ask(p, p), "example.com"))
		tc.end(g)
		if tc.after > 0 {
			b := r.none(p, "example.com")
			k, now := r.key(p + "a")
			if k = k.Settle(now); !b.Due.Equal(k.Lease.EndedAt.Add(30 * time.Second)) {
				r.Errorf("%s: due %v, ended %v", tc.how, b.Due, k.Lease.EndedAt)
			}
			r.same(tc.how, []lease.Why{{Cause: lease.WhyResting, Count: 1}}, b.Why)
			r.busy(aimed(ask(p, "other"+p), "example.com"))
			r.picks(p, "example.org", p+"a")
			r.advance(tc.after - time.Second)
			r.none(p, "example.com")
			r.advance(time.Second)
		}
		r.picks(p, "example.com", p+"a")
	}
}

func restEndedAddress(r *run) {
	p := cools("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.put(epoch, "b/1", "192.0.2.1", nil, "p")
	r.takes(aimed(ask("p", "one"), "example.com"), "a")
	r.advance(time.Minute)
	r.ok(lease.Sweep{Limit: 1})
	r.none("p", "example.com")
	r.advance(30 * time.Second)
	r.takes(aimed(ask("p", "two"), "example.com"), "b")
	r.advance(time.Minute)
	r.ok(lease.Lift{Key: "a", Target: "example.com"}) // before anybody wrote it down
	r.ok(lease.Sweep{Limit: 1})
	r.pick("p", "example.com")
}

func restKey(r *run) {
	r.publish(cools("p"), "a")
	res := r.release(r.take(ask("p", "one")))
	if !res.Key.CoolUntil.Equal(res.Now.Add(30 * time.Second)) {
		r.Errorf("it rests until %v at %v", res.Key.CoolUntil, res.Now)
	}
	r.state("a", lease.Cooling)
	r.busy(aimed(ask("p", "two"), "example.com"))
	if s := r.status("p"); s.Free != 0 {
		r.Errorf("%d free, want none", s.Free)
	}
	r.advance(30 * time.Second)
	r.state("a", lease.Free)
	r.take(ask("p", "three"))
}

// cooldown reads the one of a key for a target.
func (r *run) cooldown(key, target string) (lease.Cooldown, time.Time) {
	r.Helper()
	all, err := r.store().Cooldowns(r.ctx, key, "", 100)
	if err != nil {
		r.Fatalf("Cooldowns(%s): %v", key, err)
	}
	_, now := r.key(key)
	for _, c := range all {
		if c.Target == target {
			return c, now
		}
	}
	r.Fatalf("Cooldowns(%s): none for %s among %+v", key, target, all)
	return lease.Cooldown{}, now
}

// rested is how long a key rests for a target when it is banned now.
func (r *run) rested(key, target string) time.Duration {
	r.Helper()
	res := r.ok(lease.Report{Key: key, Pool: "p", Target: target, Outcome: lease.Banned})
	c, _ := r.cooldown(key, target)
	return c.Until.Sub(res.Now)
}

func restBan(r *run) {
	r.publish(pool("p"), "a")
	for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 3 * time.Minute} {
		if got := r.rested("a", "example.com"); got != want {
			r.Fatalf("ban %d rests for %v, want %v", i+1, got, want)
		}
		r.advance(want - time.Second)
		r.busy(aimed(ask("p", "early"), "example.com"))
		r.advance(time.Second)
	}
	r.takes(aimed(ask("p", "late"), "example.com"), "a")
}

func restBanRelease(r *run) {
	r.publish(cools("p"), "a")
	g := r.take(aimed(ask("p", "one"), "example.com"))
	res := r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Banned})
	if c, _ := r.cooldown("a", "example.com"); !c.Until.Equal(res.Now.Add(time.Minute)) || c.Strikes != 1 {
		r.Errorf("it rests as %+v at %v", c, res.Now)
	}
	// Another target than the lease's: both rest, each for its reason.
	g = r.take(aimed(ask("p", "two"), "example.org"))
	res = r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Banned, Target: "example.net"})
	if c, _ := r.cooldown("a", "example.net"); !c.Until.Equal(res.Now.Add(time.Minute)) {
		r.Errorf("the banned target rests as %+v at %v", c, res.Now)
	}
	if c, _ := r.cooldown("a", "example.org"); !c.Until.Equal(res.Now.Add(30*time.Second)) || c.Strikes != 0 {
		r.Errorf("the used target rests as %+v at %v", c, res.Now)
	}
	// A lease without a target.
	r.publish(pool("p"), "a")
	g = r.take(ask("p", "three"))
	r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Banned, Target: "192.0.2.1"})
	r.cooldown("a", "192.0.2.1")
	r.state("a", lease.Free)
}

func restBanSame(r *run) {
	r.publish(pool("p"), "a")
	first := r.rested("a", "example.com")
	r.advance(30 * time.Second)
	for range 5 {
		if got := r.rested("a", "example.com"); got >= first-29*time.Second {
			r.Fatalf("a report of the same ban makes it rest for %v", got)
		}
	}
	r.advance(30 * time.Second)
	if got := r.rested("a", "example.com"); got != 2*time.Minute {
		r.Errorf("the second ban rests for %v, want 2m", got)
	}
}

func restBanForgotten(r *run) {
	for i, swept := range []bool{false, true} {
		name := fmt.Sprintf("a%d", i)
		r.publish(pool("p"), name)
		r.rested(name, "example.com")
		r.advance(time.Minute + 3*time.Minute + time.Second)
		if swept {
			r.ok(lease.Sweep{Limit: 100})
		}
		if got := r.rested(name, "example.com"); got != time.Minute {
			r.Errorf("swept %v: a ban after a long peace rests for %v, want 1m", swept, got)
		}
		r.advance(time.Minute + 3*time.Minute - time.Second)
		if swept {
			r.ok(lease.Sweep{Limit: 100})
		}
		if got := r.rested(name, "example.com"); got != 2*time.Minute {
			r.Errorf("swept %v: a ban soon after rests for %v, want 2m", swept, got)
		}
	}
	// Also when the rest after a use outlives the ban's memory.
	p := pool("p")
	p.Cooldown = time.Hour
	r.publish(p, "b")
	g := r.take(aimed(ask("p", "one"), "example.org"))
	r.rested("b", "example.org")
	r.release(g)
	r.advance(5 * time.Minute)
	r.rested("b", "example.org")
	if c, _ := r.cooldown("b", "example.org"); c.Strikes != 1 {
		r.Errorf("a ban after a long peace within a rest is number %d", c.Strikes)
	}
	r.rested("b", "example.net")
	r.advance(time.Hour)
	r.release(r.take(aimed(ask("p", "two"), "example.net")))
	if c, _ := r.cooldown("b", "example.net"); c.Strikes != 0 {
		r.Errorf("a use after a long peace remembers %d bans", c.Strikes)
	}
}

func restBanOff(r *run) {
	p := cools("p") // a report is no use: it brings no rest of its own
	p.Ban = lease.Ban{Factor: 1}
	r.publish(p, "a")
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	r.takes(aimed(ask("p", "one"), "example.com"), "a")
}

func restExitIP(r *run) {
	p := cools("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.put(epoch, "b/1", "192.0.2.1", nil, "p")
	r.put(epoch, "c/1", "192.0.2.2", nil, "p")
	r.release(r.takes(aimed(ask("p", "one"), "example.com"), "a"))
	g := r.takes(aimed(ask("p", "two"), "example.com"), "c")
	r.busy(aimed(ask("p", "three"), "example.com"))
	r.release(r.takes(aimed(ask("p", "four"), "example.org"), "a"))
	r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Banned})
	r.advance(30 * time.Second)
	r.takes(aimed(ask("p", "five"), "example.com"), "b") // c is banned
	r.takes(aimed(ask("p", "six"), "example.com"), "a")
	r.busy(aimed(ask("p", "seven"), "example.com"))
	// A machine that moves to a resting address rests, one that leaves it does not.
	r.advance(time.Minute)
	r.ok(lease.Report{Key: "c", Pool: "p", Target: "example.net", Outcome: lease.Banned})
	r.put(epoch, "a/1", "192.0.2.2", nil, "p")
	r.put(epoch, "b/1", "192.0.2.2", nil, "p")
	r.put(epoch, "c/1", "192.0.2.3", nil, "p")
	r.takes(aimed(ask("p", "eight"), "example.net"), "c")
	r.busy(aimed(ask("p", "nine"), "example.net"))
}

func restExitIPUnknown(r *run) {
	p := cools("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "", nil, "p")
	r.put(epoch, "b/1", "", nil, "p")
	r.release(r.takes(aimed(ask("p", "one"), "example.com"), "a"))
	r.takes(aimed(ask("p", "two"), "example.com"), "b")
	r.busy(aimed(ask("p", "three"), "example.com"))
	if c, _ := r.cooldown("a", "example.com"); c.Scope != lease.ScopeKey || c.ID != "a" {
		r.Errorf("what rests is %+v", c.CooldownID)
	}
}

func restOtherPool(r *run) {
	p, q := pool("p"), pool("q")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p, q)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p", "q")
	r.put(epoch, "b/1", "192.0.2.1", nil, "q")
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	r.busy(aimed(ask("q", "one"), "example.com"))
	r.ok(lease.Report{Key: "b", Pool: "q", Target: "example.org", Outcome: lease.Banned})
	r.takes(aimed(ask("q", "two"), "example.org"), "a") // b alone rests
	r.busy(aimed(ask("q", "three"), "example.org"))
}

func restLift(r *run) {
	p := cools("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	for _, target := range []string{"example.com", "example.org", "example.net"} {
		r.ok(lease.Report{Key: "a", Pool: "p", Target: target, Outcome: lease.Banned})
	}
	r.release(r.take(ask("p", "one")))
	r.state("a", lease.Cooling)
	r.ok(lease.Lift{Key: "a", Target: "example.com"})
	r.state("a", lease.Cooling) // of all targets
	r.advance(31 * time.Second)
	r.release(r.take(aimed(ask("p", "two"), "example.com")))
	r.busy(aimed(ask("p", "three"), "example.org"))
	r.release(r.take(ask("p", "four")))
	r.ok(lease.Lift{Key: "a"})
	r.state("a", lease.Free)
	all, err := r.store().Cooldowns(r.ctx, "a", "", 10)
	if err != nil || len(all) > 0 {
		r.Errorf("after all was lifted: %+v, %v", all, err)
	}
	r.takes(aimed(ask("p", "five"), "example.org"), "a")
	// Its bans are forgotten with it.
	if got := r.rested("a", "example.com"); got != time.Minute {
		r.Errorf("the next ban rests for %v, want 1m", got)
	}
}

func restLiftOnce(r *run) {
	p := pool("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.put(epoch, "b/1", "192.0.2.1", nil, "p")
	r.put(epoch, "c/1", "192.0.2.2", nil, "p")
	for _, key := range []string{"a", "c"} {
		r.ok(lease.Report{Key: key, Pool: "p", Target: "example.com", Outcome: lease.Banned})
	}
	one, two, three := aimed(ask("p", "one"), "example.com"), aimed(ask("p", "two"), "example.com"), aimed(ask("p", "three"), "example.com")
	all := r.do(one, lease.Lift{Key: "b", Target: "example.com"}, one, two, three)
	if all[0].Busy == nil || all[2].Key == nil || all[3].Key == nil || all[4].Busy == nil {
		r.Fatalf("before %+v; after a and b were freed: %+v, %+v, %+v", all[0].Busy, all[2].Busy, all[3].Busy, all[4].Busy)
	}
}

func restReport(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.refused(lease.Report{Key: "a", Pool: "p", Outcome: lease.Banned}, fault.Invalid, "target")
	r.refused(lease.Report{Key: "a", Pool: "p", Target: "x", Outcome: lease.Broken}, fault.Invalid, "outcome")
	r.refused(lease.Report{Key: "a", Pool: "p", Target: "x"}, fault.Invalid, "outcome")
	r.refused(lease.Report{Key: "a", Pool: "p", Target: "x\n", Outcome: lease.Banned}, fault.Invalid, "text")
	r.refused(lease.Report{Key: "a", UID: "a/0", Pool: "p", Target: "x", Outcome: lease.Banned}, fault.Conflict, "uid")
	r.ok(lease.Report{Key: "a", UID: "a/1", Pool: "p", Target: "x", Outcome: lease.Failed})
	r.ok(lease.Report{Key: "a", Pool: "p", Outcome: lease.Failed})
	if k, _ := r.key("a"); k.Errors != 2 {
		r.Errorf("%d errors, want 2", k.Errors)
	}
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "x", Outcome: lease.OK})
	if k, _ := r.key("a"); k.Errors != 0 {
		r.Errorf("%d errors after a success", k.Errors)
	}
	r.takes(aimed(ask("p", "one"), "x"), "a")
}

func restOneTransaction(r *run) {
	p := cools("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.put(epoch, "b/1", "192.0.2.1", nil, "p")
	g := r.takes(aimed(ask("p", "one"), "example.com"), "a")
	all := r.do(lease.Release{Proof: g.Proof}, aimed(ask("p", "two"), "example.com"), aimed(ask("p", "three"), "example.org"))
	if all[1].Busy == nil || all[2].Key == nil {
		r.Errorf("two %+v, three %+v; want a and b to rest for two alone", all[1].Busy, all[2].Busy)
	}
	all = r.do(
		lease.Report{Key: "b", Pool: "p", Target: "example.net", Outcome: lease.Banned},
		aimed(ask("p", "four"), "example.net"),
		lease.Lift{Key: "b"},
		lease.Report{Key: "b", Pool: "p", Target: "example.net", Outcome: lease.Banned},
		aimed(ask("p", "five"), "example.net"),
	)
	if all[1].Busy == nil || all[4].Busy == nil {
		r.Errorf("four %+v, five %+v; want both to get nothing", all[1].Busy, all[4].Busy)
	}
	if c, _ := r.cooldown("b", "example.net"); c.Strikes != 1 {
		r.Errorf("%d strikes after a lift and a ban, want 1", c.Strikes)
	}
}
