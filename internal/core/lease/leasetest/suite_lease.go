package leasetest

import (
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func leaseClauses() []Clause {
	return []Clause{
		{"Renew/extends", "a renewal counts from now, for the time given or the lease's own", renewExtends},
		{"Renew/refused", "a renewal out of bounds, with an older fence or an unknown reset changes nothing", renewRefused},
		{"Renew/pool-gone", "a lease goes on as it was taken when its pool is gone", renewPoolGone},
		{"Lease/proof", "only who knows the secret and has the account can renew or release", leaseProof},
		{"Lease/ends", "whoever comes too late is told how the lease ended", leaseEnds},
		{"Lease/lost", "when another one has the key, it is told which lease", leaseLost},
		{"Lease/forgotten", "what became of a lease of long ago is not guessed to be running", leaseForgotten},
		{"Release/frees", "a key given back is free at once", releaseFrees},
		{"Release/twice", "a second release is harmless, also after others had the key", releaseTwice},
		{"Release/refused", "a release that cannot be understood changes nothing", releaseRefused},
		{"Expiry/ends", "a lease ends at its time by the database's clock, without anybody's doing", expiryEnds},
		{"Expiry/release", "a release after the end is refused and frees nobody's key", expiryRelease},
		{"Force/ends", "an admin ends a lease, and only the one that was meant", forceEnds},
		{"Force/rests", "with a rest nobody gets the key before its holder could stop", forceRests},
		{"Disable/holder", "a disabled key stays with its holder and is not handed out again", disableHolder},
		{"Disable/unknown", "what is no key cannot be disabled, enabled or forced", disableUnknown},
	}
}

func renewExtends(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "t"))
	r.advance(50 * time.Second)
	renew := func(op lease.Renew, want time.Duration) {
		r.Helper()
		op.Proof = g.Proof
		res := r.ok(op)
		if res.Lease == nil || res.Key == nil || !res.Lease.Expires.Equal(res.Now.Add(want)) || res.Lease.Fence != g.ID.Fence {
			r.Fatalf("%+v: until %v at %v, want %v", op, res.Lease.Expires, res.Now, want)
		}
		k, _ := r.key("a")
		r.same("as read", res.Lease, k.Lease)
	}
	renew(lease.Renew{}, time.Minute)
	renew(lease.Renew{TTL: 2*time.Minute + time.Nanosecond}, 2*time.Minute)
	renew(lease.Renew{}, 2*time.Minute)
	renew(lease.Renew{TTL: 10 * time.Minute, Fence: g.ID.Fence}, 10*time.Minute)
	renew(lease.Renew{TTL: lease.MinTTL}, lease.MinTTL)
	r.advance(3 * time.Second)
	renew(lease.Renew{TTL: time.Minute}, time.Minute)
	r.advance(59 * time.Second)
	r.state("a", lease.Held)
}

func renewRefused(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "t"))
	for name, tc := range map[string]struct {
		op    lease.Renew
		class fault.Class
		code  string
	}{
		"too short":     {lease.Renew{TTL: lease.MinTTL - 1}, fault.Invalid, "ttl"},
		"negative":      {lease.Renew{TTL: -time.Second}, fault.Invalid, "ttl"},
		"too long":      {lease.Renew{TTL: 10*time.Minute + 1}, fault.Invalid, "ttl"},
		"older fence":   {lease.Renew{Fence: g.ID.Fence - 1}, fault.Conflict, "fence"},
		"later fence":   {lease.Renew{Fence: g.ID.Fence + 1}, fault.Conflict, "fence"},
		"failed reset":  {lease.Renew{Reset: lease.ResetFailed}, fault.Invalid, "reset"},
		"unknown reset": {lease.Renew{Reset: "x"}, fault.Invalid, "reset"},
	} {
		tc.op.Proof = g.Proof
		res := r.do(tc.op)[0]
		r.fault(name, res.Err, tc.class, tc.code)
	}
	k, _ := r.key("a")
	r.same("the lease", &g.lease, k.Lease)
	g.ID.Key = "b"
	r.refused(lease.Renew{Proof: g.Proof}, fault.NotFound, "lease")
}

func renewPoolGone(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "", nil, "p")
	g := r.take(ask("p", "t"))
	r.put(epoch, "a/1", "", nil)
	r.ok(lease.DropPool{Epoch: epoch, Name: "p"})
	r.ok(lease.Renew{Proof: g.Proof})
	r.ok(lease.Renew{Proof: g.Proof, TTL: 30 * time.Second})
	r.refused(lease.Renew{Proof: g.Proof, TTL: time.Hour}, fault.Invalid, "ttl")
	r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Banned, Target: "example.com"})
	r.state("a", lease.Gone)
}

func leaseProof(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "t"))
	bad := func(class fault.Class, code string, change func(p *lease.Proof)) {
		r.Helper()
		p := g.Proof
		change(&p)
		r.refused(lease.Renew{Proof: p}, class, code)
		r.refused(lease.Release{Proof: p}, class, code)
	}
	bad(fault.Denied, "secret", func(p *lease.Proof) { p.Secret = lease.HashOf("another") })
	bad(fault.Denied, "secret", func(p *lease.Proof) { p.Secret = lease.Hash{} })
	bad(fault.Denied, "not_owner", func(p *lease.Proof) { p.Account = "bob" })
	bad(fault.Denied, "not_owner", func(p *lease.Proof) { p.Account = "" })
	bad(fault.NotFound, "lease", func(p *lease.Proof) { p.ID.Fence++ })
	bad(fault.NotFound, "lease", func(p *lease.Proof) { p.ID.Key = "b" })
	k, _ := r.key("a")
	r.same("the lease", &g.lease, k.Lease)
	// Also of a lease that ended only its own holder hears more.
	r.release(g)
	bad(fault.Denied, "secret", func(p *lease.Proof) { p.Secret = lease.HashOf("another") })
}

func leaseEnds(r *run) {
	p := pool("p")
	r.publish(p, "a", "gone")
	late := func(g got, class fault.Class, code string) {
		r.Helper()
		r.refused(lease.Renew{Proof: g.Proof}, class, code)
		if code != "lease_released" {
			r.refused(lease.Release{Proof: g.Proof}, class, code)
		}
	}
	g := r.takes(ask("p", "one"), "a")
	r.release(g)
	late(g, fault.Conflict, "lease_released")

	g = r.takes(ask("p", "two"), "gone")
	r.publish(p, "a")
	r.release(g)
	late(g, fault.NotFound, "lease") // the row went with it

	g = r.takes(ask("p", "three"), "a")
	r.advance(time.Minute)
	late(g, fault.Conflict, "lease_expired")

	g = r.takes(ask("p", "four"), "a")
	r.ok(lease.Force{Key: "a", By: "root"})
	late(g, fault.Conflict, "lease_forced")

	epoch := r.manage(pool("m"))
	r.put(epoch, "b/1", "", nil, "m")
	g = r.take(ask("m", "five"))
	r.put(epoch, "b/2", "", nil, "m")
	late(g, fault.Conflict, "lease_replaced")

	g = r.take(ask("m", "six"))
	r.ok(lease.DropKey{Epoch: epoch, Key: "b", UID: "b/2"})
	late(g, fault.NotFound, "lease")
}

func leaseLost(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "one"))
	r.advance(time.Minute)
	other := r.take(ask("p", "two"))
	res := r.refused(lease.Renew{Proof: g.Proof}, fault.Conflict, "lease_lost")
	if res.Lease == nil || res.Lease.Fence != other.ID.Fence {
		r.Errorf("it does not say which lease has the key: %+v", res.Lease)
	}
	r.refused(lease.Release{Proof: g.Proof}, fault.Conflict, "lease_lost")
	k, _ := r.key("a")
	r.same("the other's lease", &other.lease, k.Lease)
	r.release(other)
	r.refused(lease.Renew{Proof: g.Proof}, fault.Conflict, "lease_expired")
}

func leaseForgotten(r *run) {
	r.publish(pool("p"), "a")
	first := r.take(ask("p", "first"))
	r.release(first)
	for i := range 20 {
		r.release(r.take(ask("p", fmt.Sprint(i))))
	}
	r.refused(lease.Renew{Proof: first.Proof}, fault.Conflict, "lease_expired")
	r.take(ask("p", "last"))
	r.refused(lease.Renew{Proof: first.Proof}, fault.Conflict, "lease_lost")
	k, _ := r.key("a")
	if len(k.Past) > 20 {
		r.Errorf("a row remembers %d leases", len(k.Past))
	}
}

func releaseFrees(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "t"))
	r.advance(time.Second)
	res := r.release(g)
	if l := res.Lease; l == nil || l.End != lease.Released || !l.EndedAt.Equal(res.Now) || l.EndedBy != "ann" || l.Fence != g.ID.Fence {
		r.Fatalf("after the release: %+v", l)
	}
	k, _ := r.key("a")
	r.same("the key as read", res.Key, func() *lease.Key { k.Version = res.Key.Version; return &k }())
	r.state("a", lease.Free)
	r.takes(ask("p", "u"), "a")
}

func releaseTwice(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "one"))
	r.release(g)
	before, _ := r.key("a")
	r.release(g)
	r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Broken, Reason: "late"})
	after, _ := r.key("a")
	after.Version = before.Version
	r.same("the key after a second release", before, after)

	other := r.take(ask("p", "two"))
	r.release(g)
	k, _ := r.key("a")
	r.same("the other's lease", &other.lease, k.Lease)
	r.release(other)
	for i := range 5 {
		r.release(r.take(ask("p", fmt.Sprint(i))))
	}
	r.release(g)
	r.release(other)
}

func releaseRefused(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "t"))
	long := make([]byte, lease.MaxText+1)
	for i := range long {
		long[i] = 'x'
	}
	for name, tc := range map[string]struct {
		op   lease.Release
		code string
	}{
		"outcome":            {lease.Release{Outcome: "x"}, "outcome"},
		"reset":              {lease.Release{Reset: "x"}, "reset"},
		"begin":              {lease.Release{Reset: lease.ResetBegin}, "reset"},
		"ban without target": {lease.Release{Outcome: lease.Banned}, "target"},
		"long reason":        {lease.Release{Reason: string(long)}, "text"},
		"control target":     {lease.Release{Target: "a\n"}, "text"},
	} {
		tc.op.Proof = g.Proof
		res := r.do(tc.op)[0]
		r.fault(name, res.Err, fault.Invalid, tc.code)
	}
	k, _ := r.key("a")
	r.same("the lease", &g.lease, k.Lease)
}

func expiryEnds(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "one"))
	r.advance(59 * time.Second)
	r.state("a", lease.Held)
	r.busy(ask("p", "early"))
	r.advance(time.Second)
	r.state("a", lease.Free)
	if s := r.status("p"); s.Held != 0 || s.Free != 1 {
		r.Errorf("%d held and %d free, want none and one", s.Held, s.Free)
	}
	next := r.takes(ask("p", "two"), "a")
	r.same("past leases", []lease.Past{{Fence: g.ID.Fence, End: lease.Expired}}, next.key.Past)
}

func expiryRelease(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "one"))
	r.advance(time.Minute)
	r.refused(lease.Release{Proof: g.Proof}, fault.Conflict, "lease_expired")
	other := r.take(ask("p", "two"))
	r.refused(lease.Release{Proof: g.Proof}, fault.Conflict, "lease_lost")
	k, _ := r.key("a")
	r.same("the other's lease", &other.lease, k.Lease)
}

func forceEnds(r *run) {
	r.publish(pool("p"), "a")
	r.refused(lease.Force{Key: "a", By: "root"}, fault.Conflict, "not_held")
	g := r.take(ask("p", "one"))
	r.refused(lease.Force{Key: "a", By: "root", Fence: g.ID.Fence - 1}, fault.Conflict, "fence")
	r.state("a", lease.Held)
	res := r.ok(lease.Force{Key: "a", By: "root", Fence: g.ID.Fence})
	if l := res.Lease; l.End != lease.Forced || l.EndedBy != "root" || l.Fence != g.ID.Fence {
		r.Errorf("it ended as %+v", l)
	}
	r.refused(lease.Force{Key: "a", By: "root", Fence: g.ID.Fence}, fault.Conflict, "not_held")
	r.takes(ask("p", "two"), "a")
	r.ok(lease.Force{Key: "a", By: "root"})
	r.take(ask("p", "three"))
	r.advance(time.Minute)
	r.refused(lease.Force{Key: "a", By: "root"}, fault.Conflict, "not_held")
}

func forceRests(r *run) {
	p := pool("p")
	p.Hooks.Reset = true
	r.publish(p, "a")
	a := ask("p", "one")
	a.RunsHooks = true
	r.take(a)
	for _, rest := range []time.Duration{-1, lease.MaxCooldown + 1} {
		r.refused(lease.Force{Key: "a", By: "root", Rest: rest}, fault.Invalid, "")
	}
	r.ok(lease.Force{Key: "a", By: "root", Rest: 10 * time.Second})
	r.state("a", lease.Cooling)
	a = ask("p", "two")
	a.RunsHooks = true
	r.busy(a)
	r.advance(10 * time.Second)
	r.state("a", lease.NeedsReset)
	r.takes(a, "a")
}

func disableHolder(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "one"))
	res := r.ok(lease.Disable{Key: "a", Reason: "no network", By: "root"})
	r.same("who disabled it", &lease.Disabled{Reason: "no network", By: "root", At: res.Now}, res.Key.Disabled)
	r.state("a", lease.Held)
	r.ok(lease.Renew{Proof: g.Proof})
	r.release(g)
	r.state("a", lease.DisabledSt)
	if s := r.status("p"); s.Free != 0 {
		r.Errorf("%d free: a disabled one is not", s.Free)
	}
	r.busy(ask("p", "two"))
	r.ok(lease.Disable{Key: "a", Reason: "still none", By: "root"})
	if k, _ := r.key("a"); k.Disabled == nil || k.Disabled.Reason != "still none" {
		r.Errorf("a second reason is not kept: %+v", k.Disabled)
	}
	r.ok(lease.Enable{Key: "a", By: "root"})
	r.state("a", lease.Free)
	r.ok(lease.Enable{Key: "a", By: "root"})
	r.takes(ask("p", "three"), "a")
}

func disableUnknown(r *run) {
	r.publish(pool("p"), "a")
	r.refused(lease.Disable{Key: "b"}, fault.NotFound, "key")
	r.refused(lease.Enable{Key: "b"}, fault.NotFound, "key")
	r.refused(lease.Force{Key: "b"}, fault.NotFound, "key")
	r.refused(lease.Lift{Key: "b"}, fault.NotFound, "key")
	r.refused(lease.Report{Key: "b", Pool: "p", Outcome: lease.OK}, fault.NotFound, "key")
	r.refused(lease.Report{Key: "a", Pool: "none", Outcome: lease.OK}, fault.NotFound, "pool")
	r.refused(lease.Disable{Key: "a", Reason: "a\tb"}, fault.Invalid, "text")
	r.state("a", lease.Free)
}
