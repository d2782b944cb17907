package leasetest

import (
	"fmt"
	"time"

	"fleetdesk/internal/core/lease"
)

func resetClauses() []Clause {
	return []Clause{
		{"Reset/after-expiry", "a key of a pool with a reset needs it after a lease that expired or was ended, and the next taker runs it", resetAfterExpiry},
		{"Reset/none", "a key of a pool without a reset is free at once", resetNone},
		{"Reset/by-releaser", "a releaser that ran the reset leaves the key free, one that did not leaves it to the next", resetByReleaser},
		{"Reset/flow", "while its holder resets it a key shows as resetting and is held", resetFlow},
		{"Reset/three-failures", "three failed resets in a row disable a key, two and a good one do not", resetThreeFailures},
		{"Reset/given-up", "a pool that gives its reset up needs none any more, but for keys that another pool resets", resetGivenUp},
		{"Broken/disables", "a broken key is disabled in its account's name", brokenDisables},
		{"Broken/cap", "rules disable at most a third of a pool, also within one transaction", brokenCap},
		{"Broken/cap-small", "and one key of a small pool", brokenCapSmall},
	}
}

// hooked is a pool with both hooks, and its takes.
func hooked(name string) lease.Pool {
	p := pool(name)
	p.Hooks = lease.Hooks{Check: true, Reset: true}
	return p
}

func runsHooks(op lease.Take) lease.Take {
	op.RunsHooks = true
	return op
}

func resetAfterExpiry(r *run) {
	r.publish(hooked("p"), "a")
	r.take(runsHooks(ask("p", "one")))
	r.advance(time.Minute)
	r.state("a", lease.NeedsReset)
	if s := r.status("p"); s.Free != 1 {
		r.Errorf("%d free, want 1: a taker resets it", s.Free)
	}
	g := r.takes(runsHooks(ask("p", "two")), "a")
	if !g.key.NeedsReset || !g.lease.Resetting {
		r.Errorf("the taker is not told to reset: %+v", g.key)
	}
	r.state("a", lease.Resetting)
	r.ok(lease.Renew{Proof: g.Proof, Reset: lease.ResetDone})
	r.state("a", lease.Held)
	r.ok(lease.Force{Key: "a", By: "root"})
	r.state("a", lease.NeedsReset)
	// The taker that vanishes in the middle of it leaves it to the next.
	g = r.take(runsHooks(ask("p", "three")))
	r.ok(lease.Renew{Proof: g.Proof, Reset: lease.ResetBegin})
	r.advance(time.Minute)
	r.ok(lease.Sweep{Limit: 10})
	r.state("a", lease.NeedsReset)
}

func resetNone(r *run) {
	p := pool("p")
	p.Hooks.Check = true
	r.publish(p, "a")
	r.take(runsHooks(ask("p", "one")))
	r.advance(time.Minute)
	r.state("a", lease.Free)
	if g := r.take(runsHooks(ask("p", "two"))); g.lease.Resetting || g.key.NeedsReset {
		r.Errorf("it is to be reset: %+v", g.key)
	}
}

func resetByReleaser(r *run) {
	r.publish(hooked("p"), "a")
	g := r.take(runsHooks(ask("p", "one")))
	r.ok(lease.Release{Proof: g.Proof, Reset: lease.ResetDone})
	r.state("a", lease.Free)
	g = r.take(runsHooks(ask("p", "two")))
	if g.lease.Resetting {
		r.Error("a key that was reset is to be reset again")
	}
	r.release(g)
	r.state("a", lease.NeedsReset)
	g = r.take(runsHooks(ask("p", "three")))
	r.ok(lease.Release{Proof: g.Proof, Reset: lease.ResetFailed, Reason: "no route"})
	r.state("a", lease.NeedsReset)
}

func resetFlow(r *run) {
	r.publish(hooked("p"), "a")
	g := r.take(runsHooks(ask("p", "one")))
	r.state("a", lease.Held)
	after := r.cursor()
	r.ok(lease.Renew{Proof: g.Proof, Reset: lease.ResetBegin})
	r.state("a", lease.Resetting)
	r.busy(runsHooks(ask("p", "other")))
	r.advance(50 * time.Second)
	r.ok(lease.Renew{Proof: g.Proof})
	r.advance(50 * time.Second)
	r.state("a", lease.Resetting)
	r.ok(lease.Renew{Proof: g.Proof, Reset: lease.ResetDone})
	r.state("a", lease.Held)
	// What was reset and then not used again is given back as it is.
	r.ok(lease.Release{Proof: g.Proof, Reset: lease.ResetDone})
	r.state("a", lease.Free)
	r.same("events", []string{"reset begin a", "reset done a", "released a"}, r.kinds(after))
}

func resetThreeFailures(r *run) {
	r.publish(hooked("p"), "a", "b")
	r.ok(lease.Disable{Key: "b", By: "root"})
	n := 0
	fail := func(reset lease.Reset) lease.Result {
		n++
		g := r.takes(runsHooks(ask("p", fmt.Sprint(n))), "a")
		return r.ok(lease.Release{Proof: g.Proof, Reset: reset, Reason: "no route"})
	}
	fail(lease.ResetFailed)
	fail(lease.ResetFailed)
	fail(lease.ResetDone)
	fail(lease.ResetFailed)
	fail(lease.ResetFailed)
	r.state("a", lease.NeedsReset)
	res := fail(lease.ResetFailed)
	r.state("a", lease.DisabledSt)
	if d := res.Key.Disabled; d == nil || !d.Auto || d.By != "ann" || d.Reason == "" {
		r.Errorf("disabled as %+v", d)
	}
	r.ok(lease.Enable{Key: "a", By: "root"})
	r.state("a", lease.NeedsReset)
	fail(lease.ResetFailed)
	r.state("a", lease.NeedsReset) // it counts from the beginning
}

func resetGivenUp(r *run) {
	r.publish(hooked("p"), "a", "b", "c")
	r.publish(hooked("q"), "b")
	for i := range 3 {
		r.take(runsHooks(ask("p", fmt.Sprint(i))))
	}
	r.advance(time.Minute)
	r.publish(pool("p"), "a", "b")
	r.state("a", lease.Free)
	r.state("b", lease.NeedsReset)
	r.noKey("c")
	r.publish(hooked("p"), "a", "b")
	r.state("a", lease.Free)
	r.publish(pool("q"), "b")
	r.state("b", lease.NeedsReset)
	r.publish(pool("p"), "a", "b")
	r.state("b", lease.Free)
}

func brokenDisables(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "one"))
	res := r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Broken, Reason: "does not boot"})
	if res.Capped {
		r.Error("it says that the cap is reached")
	}
	r.same("disabled", &lease.Disabled{Reason: "does not boot", By: "ann", At: res.Now, Auto: true}, res.Key.Disabled)
	r.state("a", lease.DisabledSt)
	// Who disabled it first stays.
	r.ok(lease.Enable{Key: "a", By: "root"})
	g = r.take(ask("p", "two"))
	r.ok(lease.Disable{Key: "a", Reason: "mine", By: "root"})
	if res := r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Broken}); res.Capped || res.Key.Disabled.By != "root" {
		r.Errorf("capped %v, disabled %+v", res.Capped, res.Key.Disabled)
	}
}

func brokenCap(r *run) {
	items := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	r.publish(pool("p"), items...)
	r.ok(lease.Disable{Key: "h", By: "root"}) // a person's do not count
	var held []got
	for i := range 7 {
		held = append(held, r.take(ask("p", fmt.Sprint(i))))
	}
	var ops []lease.Op
	for _, g := range held[:3] {
		ops = append(ops, lease.Release{Proof: g.Proof, Outcome: lease.Broken})
	}
	all := r.do(ops...)
	if all[0].Capped || all[1].Capped || !all[2].Capped || all[2].Key.Disabled != nil {
		r.Errorf("two of eight may be disabled: capped %v %v %v", all[0].Capped, all[1].Capped, all[2].Capped)
	}
	if l := all[2].Lease; l.End != lease.Released {
		r.Errorf("a capped release ended the lease as %q", l.End)
	}
	if res := r.ok(lease.Release{Proof: held[3].Proof, Outcome: lease.Broken}); !res.Capped {
		r.Error("a later one is not capped")
	}
	// One that is enabled makes room, in the same transaction too.
	all = r.do(lease.Enable{Key: held[0].ID.Key, By: "root"}, lease.Release{Proof: held[4].Proof, Outcome: lease.Broken}, lease.Release{Proof: held[5].Proof, Outcome: lease.Broken})
	if all[1].Capped || !all[2].Capped {
		r.Errorf("after one was enabled: capped %v %v, want one to be disabled", all[1].Capped, all[2].Capped)
	}
	// So does a larger pool.
	r.publish(pool("p"), append(items, "i")...)
	if res := r.ok(lease.Release{Proof: held[6].Proof, Outcome: lease.Broken}); res.Capped {
		r.Error("three of nine may be disabled")
	}
}

func brokenCapSmall(r *run) {
	r.publish(pool("p"), "a", "b")
	a, b := r.take(ask("p", "one")), r.take(ask("p", "two"))
	if res := r.ok(lease.Release{Proof: a.Proof, Outcome: lease.Broken}); res.Capped {
		r.Error("one may be disabled")
	}
	if res := r.ok(lease.Release{Proof: b.Proof, Outcome: lease.Broken}); !res.Capped {
		r.Error("two may not")
	}
	r.takes(ask("p", "three"), b.ID.Key)
}
