package leasetest

import (
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func deskProof(r *deskRun) {
	r.publish(pool("p"), "a")
	h := r.take(r.ann, Ask{Pool: "p"})
	refused := func(d Desk, change func(h *Held), class fault.Class, code string) {
		r.Helper()
		bad := h
		change(&bad)
		_, err := d.Renew(r.ctx, bad, Renewal{})
		r.fault("Renew", err, class, code)
		_, err = d.Release(r.ctx, bad, Return{})
		r.fault("Release", err, class, code)
	}
	refused(r.bob, func(*Held) {}, fault.Denied, "not_owner")
	refused(r.ann, func(h *Held) { h.Secret += "x" }, fault.Denied, "secret")
	refused(r.ann, func(h *Held) { h.Secret = strings.Repeat("A", len(h.Secret)) }, fault.Denied, "secret")
	refused(r.ann, func(h *Held) { h.ID = "a~99999" }, fault.NotFound, "lease")
	refused(r.ann, func(h *Held) { h.ID = "b~1" }, fault.NotFound, "lease")
	refused(r.ann, func(h *Held) { h.ID = "x" }, fault.NotFound, "lease")
	r.state("p", "a", lease.Held)
	r.release(r.ann, h, Return{})
}

func deskRenew(r *deskRun) {
	r.publish(pool("p"), "a")
	h := r.take(r.ann, Ask{Pool: "p", TTL: 30 * time.Second})
	r.h.Advance(20 * time.Second)
	renew := func(how Renewal, want time.Duration) {
		r.Helper()
		got, err := r.ann.Renew(r.ctx, h, how)
		if err != nil || got.TTL != want || got.Left > want || got.Left < want-5*time.Second || got.ID != h.ID || got.Fence != h.Fence {
			r.Fatalf("renewed for %v: %+v, %v", want, got, err)
		}
	}
	renew(Renewal{}, 30*time.Second)
	renew(Renewal{TTL: 2 * time.Minute, Fence: h.Fence}, 2*time.Minute)
	_, err := r.ann.Renew(r.ctx, h, Renewal{TTL: 20 * time.Minute})
	r.fault("too long", err, fault.Invalid, "ttl")
	_, err = r.ann.Renew(r.ctx, h, Renewal{Fence: h.Fence + 1})
	r.fault("another fence", err, fault.Conflict, "fence")
	r.h.Advance(100 * time.Second)
	r.state("p", "a", lease.Held)
}

func deskEnds(r *deskRun) {
	r.publish(pool("p"), "a")
	late := func(h Held, code string) {
		r.Helper()
		_, err := r.ann.Renew(r.ctx, h, Renewal{})
		r.fault("Renew", err, fault.Conflict, code)
		if code != "lease_released" {
			_, err = r.ann.Release(r.ctx, h, Return{})
			r.fault("Release", err, fault.Conflict, code)
		}
	}
	h := r.take(r.ann, Ask{Pool: "p"})
	r.release(r.ann, h, Return{})
	late(h, "lease_released")
	h = r.take(r.ann, Ask{Pool: "p"})
	r.h.Advance(time.Minute)
	late(h, "lease_expired")
	h = r.take(r.ann, Ask{Pool: "p"})
	if err := r.root.Force(r.ctx, "p", "a"); err != nil {
		r.Fatal(err)
	}
	late(h, "lease_forced")
	h = r.take(r.ann, Ask{Pool: "p"})
	r.h.Advance(time.Minute)
	r.take(r.bob, Ask{Pool: "p"})
	late(h, "lease_lost")
}

func deskRelease(r *deskRun) {
	r.publish(pool("p"), "a")
	h := r.take(r.ann, Ask{Pool: "p"})
	r.release(r.ann, h, Return{})
	r.release(r.ann, h, Return{Outcome: lease.Broken})
	r.state("p", "a", lease.Free)
	other := r.take(r.bob, Ask{Pool: "p"})
	r.release(r.ann, h, Return{})
	if seen, err := r.bob.Lease(r.ctx, other.ID); err != nil || seen.Ended {
		r.Errorf("an old release ended another's lease: %+v, %v", seen, err)
	}
	_, err := r.bob.Release(r.ctx, other, Return{Outcome: lease.Banned})
	r.fault("a ban without a target", err, fault.Invalid, "target")
	r.state("p", "a", lease.Held)
}

func deskOutcomes(r *deskRun) {
	r.publish(pool("p"), "a", "b")
	h := r.take(r.ann, Ask{Pool: "p", Target: "example.com"})
	r.release(r.ann, h, Return{Outcome: lease.Banned})
	other := r.take(r.ann, Ask{Pool: "p", Target: "example.com"})
	if other.Key == h.Key {
		r.Errorf("key %s was handed out again to who banned it", h.Key)
	}
	r.noneFree(r.bob, Ask{Pool: "p", Target: "example.com"})
	if got := r.release(r.ann, other, Return{Outcome: lease.Broken, Reason: "does not boot"}); !got.Disabled || got.Capped {
		r.Errorf("the first broken key: %+v", got)
	}
	r.state("p", other.Key, lease.DisabledSt)
	h = r.take(r.ann, Ask{Pool: "p"})
	if got := r.release(r.ann, h, Return{Outcome: lease.Broken}); got.Disabled || !got.Capped {
		r.Errorf("the second broken key of two: %+v", got)
	}
	r.state("p", h.Key, lease.Free)
	h = r.take(r.ann, Ask{Pool: "p"})
	if got := r.release(r.ann, h, Return{Outcome: lease.Failed, Reason: "timed out"}); got.Disabled || got.Capped {
		r.Errorf("a key whose use failed: %+v", got)
	}
}

func deskReset(r *deskRun) {
	p := pool("p")
	p.Hooks = lease.Hooks{Check: true, Reset: true}
	r.publish(p, "a")
	h := r.take(r.ann, Ask{Pool: "p", RunsHooks: true})
	r.h.Advance(time.Minute)
	r.state("p", "a", lease.NeedsReset)
	h2 := r.take(r.bob, Ask{Pool: "p", RunsHooks: true})
	if h.NeedsReset || !h2.NeedsReset || !h2.Resetting {
		r.Errorf("the first taker was told %+v, the second %+v", h, h2)
	}
	r.state("p", "a", lease.Resetting)
	got, err := r.bob.Renew(r.ctx, h2, Renewal{Reset: lease.ResetDone})
	if err != nil || got.NeedsReset || got.Resetting {
		r.Fatalf("after the reset: %+v, %v", got, err)
	}
	if got, err = r.bob.Renew(r.ctx, h2, Renewal{Reset: lease.ResetBegin}); err != nil || !got.Resetting {
		r.Fatalf("before the release: %+v, %v", got, err)
	}
	r.release(r.bob, h2, Return{Reset: lease.ResetDone})
	r.state("p", "a", lease.Free)
	for range 3 {
		h := r.take(r.ann, Ask{Pool: "p", RunsHooks: true})
		r.release(r.ann, h, Return{Reset: lease.ResetFailed, Reason: "no route"})
	}
	r.state("p", "a", lease.DisabledSt)
}

func deskPublish(r *deskRun) {
	revision := func(n int64) *int64 { return &n }
	n, err := r.root.Publish(r.ctx, pool("p"), []string{"a"}, revision(0))
	if err != nil || n != 1 {
		r.Fatalf("the first list has the revision %d, %v", n, err)
	}
	_, err = r.root.Publish(r.ctx, pool("p"), []string{"b"}, revision(0))
	r.fault("a list for the revision before", err, fault.Conflict, "revision")
	if n, err = r.root.Publish(r.ctx, pool("p"), []string{"a", "b"}, revision(1)); err != nil || n != 2 {
		r.Fatalf("the second list has the revision %d, %v", n, err)
	}
	if v := r.view("p"); v.Revision != 2 || len(v.States) != 2 {
		r.Errorf("the pool shows %+v", v)
	}
	h := r.take(r.ann, Ask{Pool: "p"})
	r.publish(pool("p"))
	r.state("p", h.Key, lease.Held)
	if _, err := r.ann.Renew(r.ctx, h, Renewal{}); err != nil {
		r.Errorf("the holder of a key that left the list: %v", err)
	}
	r.release(r.ann, h, Return{})
	if v := r.view("p"); len(v.States) != 0 {
		r.Errorf("an empty pool shows %+v", v)
	}
}

func deskKeys(r *deskRun) {
	r.publish(pool("p"), "a")
	must := func(err error) {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
	}
	r.fault("Disable", r.root.Disable(r.ctx, "p", "none", "x"), fault.NotFound, "key")
	r.fault("Force", r.root.Force(r.ctx, "p", "a"), fault.Conflict, "not_held")
	h := r.take(r.ann, Ask{Pool: "p"})
	must(r.root.Disable(r.ctx, "p", "a", "no network"))
	r.state("p", "a", lease.Held)
	must(r.root.Force(r.ctx, "p", "a"))
	r.state("p", "a", lease.DisabledSt)
	_, err := r.ann.Release(r.ctx, h, Return{})
	r.fault("Release", err, fault.Conflict, "lease_forced")
	r.noneFree(r.ann, Ask{Pool: "p"})
	must(r.root.Enable(r.ctx, "p", "a"))
	r.take(r.ann, Ask{Pool: "p"})
}

func deskChange(r *deskRun) {
	r.publish(pool("p"), "a", "b")
	ann, bob := r.h.Change("ann"), r.h.Change("bob")
	id, err := ann.BeginChange(r.ctx, "p", "remove", []string{"a", "new"}, time.Minute)
	if err != nil || id == "" {
		r.Fatalf("the change %q, %v", id, err)
	}
	if got := r.view("p").Change; got != "ann" {
		r.Errorf("the pool is changed by %q", got)
	}
	r.state("p", "a", lease.Barred)
	_, err = bob.BeginChange(r.ctx, "p", "add", nil, time.Minute)
	r.fault("a second change", err, fault.Conflict, "change")
	h := r.take(r.bob, Ask{Pool: "p"})
	if h.Key != "b" {
		r.Errorf("a barred key was handed out: %s", h.Key)
	}
	r.fault("another's renewal", bob.RenewChange(r.ctx, "p", id, time.Minute), fault.Denied, "not_owner")
	r.fault("another's end", bob.EndChange(r.ctx, "p", id), fault.Denied, "not_owner")
	r.h.Advance(50 * time.Second)
	if err := ann.RenewChange(r.ctx, "p", id, time.Minute); err != nil {
		r.Fatal(err)
	}
	r.h.Advance(50 * time.Second)
	r.state("p", "a", lease.Barred)
	if err := ann.EndChange(r.ctx, "p", id); err != nil {
		r.Fatal(err)
	}
	r.state("p", "a", lease.Free)
	if err := ann.EndChange(r.ctx, "p", id); err != nil {
		r.Errorf("ending it twice: %v", err)
	}
	r.fault("a renewal after the end", ann.RenewChange(r.ctx, "p", id, time.Minute), fault.NotFound, "change")
	h = r.take(r.bob, Ask{Pool: "p"})
	_, err = ann.BeginChange(r.ctx, "p", "remove", []string{h.Key}, time.Minute)
	r.fault("a change of a held key", err, fault.Conflict, "held")
}
