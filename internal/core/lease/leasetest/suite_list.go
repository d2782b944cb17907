package leasetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func listClauses() []Clause {
	return []Clause{
		{"Publish/keeps", "a published pool is kept whole, with defaults filled in", publishKeeps},
		{"Publish/again", "a later list replaces the earlier one and counts its revision", publishAgain},
		{"Publish/revision", "a list for another revision is refused", publishRevision},
		{"Publish/held", "a key that leaves the list while held stays with its holder, shows there, and then goes", publishHeld},
		{"Publish/held-expiry", "its lease may also end by its time", publishHeldExpiry},
		{"Publish/back", "a key that comes back while held was never away", publishBack},
		{"Publish/other-pool", "a key that one pool drops stays in another", publishOtherPool},
		{"Publish/again-key", "a key that is made again starts afresh, but for its fence", publishAgainKey},
		{"Publish/settings", "new settings hold for what happens from then on", publishSettings},
		{"Publish/invalid", "what is no pool is refused, and nothing of it is kept", publishInvalid},
		{"Publish/managed", "a published list and a controller keep out of each other's pools and keys", publishManaged},
		{"Publish/10000", "a pool may have 10,000 keys and not one more", publishMany},
	}
}

func publishKeeps(r *run) {
	res := r.ok(lease.Publish{Pool: lease.Pool{Name: "p", By: "root"}, Items: []string{"b", "a"}})
	want := lease.Pool{
		Name: "p", Kind: lease.Fixed, TTL: lease.DefaultTTL, MaxTTL: lease.MaxTTL, Ban: lease.DefaultBan(), Scope: lease.ScopeKey,
		Revision: 1, By: "root", At: res.Now,
	}
	r.same("the result", want, *res.Pool)
	s := r.status("p")
	r.same("as read", want, s.Pool)
	if s.Keys != 2 || s.Free != 2 || s.Held != 0 || s.Waiting != 0 || s.Change != nil {
		r.Errorf("a new pool has %+v", s)
	}
	full := lease.Pool{
		Name: "q", Hooks: lease.Hooks{Check: true, Reset: true}, TTL: 20 * time.Second, MaxTTL: time.Hour, Cooldown: 1500 * time.Microsecond,
		Ban: lease.Ban{Initial: time.Second, Factor: 1.5, Max: 24 * time.Hour}, Scope: lease.ScopeExitIP, By: "ann",
	}
	res = r.ok(lease.Publish{Pool: full})
	full.Kind, full.Revision, full.At = lease.Fixed, 1, res.Now
	r.same("as read", full, r.status("q").Pool)
}

// listed are the names of a pool's keys as they are shown.
func (r *run) listed(pool string) []string {
	r.Helper()
	keys, err := r.store().Keys(r.ctx, pool, "", 100)
	if err != nil {
		r.Fatalf("Keys(%s): %v", pool, err)
	}
	names := []string{}
	for _, k := range keys.Keys {
		names = append(names, k.Name)
	}
	return names
}

func publishAgain(r *run) {
	for i, items := range [][]string{{"a", "b"}, {"b", "c"}, {}, {"c", "a"}} {
		if p := r.publish(pool("p"), items...); p.Revision != int64(i+1) {
			r.Fatalf("list %d has the revision %d", i+1, p.Revision)
		}
		r.same("the list", slices.Sorted(slices.Values(items)), r.listed("p"))
		for _, n := range []string{"a", "b", "c"} {
			if !slices.Contains(items, n) {
				_, err := r.store().Key(r.ctx, n)
				r.fault("Key("+n+")", err, fault.NotFound, "key")
			}
		}
	}
}

func publishRevision(r *run) {
	publish := func(revision int64, items ...string) lease.Publish {
		return lease.Publish{Pool: pool("p"), Items: items, If: &revision}
	}
	r.refused(publish(1, "a"), fault.Conflict, "revision")
	r.ok(publish(0, "a"))
	r.refused(publish(0, "b"), fault.Conflict, "revision")
	r.ok(publish(1, "b"))
	all := r.do(publish(2, "c"), publish(2, "d"))
	if all[0].Err != nil {
		r.Fatalf("the first of two: %v", all[0].Err)
	}
	r.fault("the second of two", all[1].Err, fault.Conflict, "revision")
	r.same("the list", []string{"c"}, r.listed("p"))
}

func publishHeld(r *run) {
	r.publish(pool("p"), "a", "b")
	g := r.takes(ask("p", "one"), "a")
	r.publish(pool("p"), "b")
	r.state("a", lease.Held)
	r.same("the list", []string{"a", "b"}, r.listed("p"))
	k, _ := r.key("a")
	r.same("pools", []string{}, k.Pools)
	r.same("leaving", []string{"p"}, k.Leaving)
	if s := r.status("p"); s.Keys != 1 || s.Held != 0 || s.Free != 1 {
		r.Errorf("keys %d, held %d, free %d: want b alone", s.Keys, s.Held, s.Free)
	}
	r.ok(lease.Renew{Proof: g.Proof})
	r.takes(ask("p", "two"), "b")
	r.busy(ask("p", "three"))
	r.release(g)
	r.noKey("a")
	r.same("the list", []string{"b"}, r.listed("p"))
	r.busy(ask("p", "four"))
}

func publishHeldExpiry(r *run) {
	r.publish(pool("p"), "a", "b")
	r.takes(ask("p", "one"), "a")
	r.publish(pool("p"))
	r.same("the list", []string{"a"}, r.listed("p"))
	r.advance(time.Minute)
	r.state("a", lease.Gone)
	r.busy(ask("p", "two"))
	r.ok(lease.Sweep{Limit: 10})
	r.noKey("a")
}

func publishBack(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "one"))
	r.publish(pool("p"))
	r.publish(pool("p"), "a")
	k, _ := r.key("a")
	r.same("pools", []string{"p"}, k.Pools)
	r.same("leaving", []string{}, k.Leaving)
	r.same("its lease", &g.lease, k.Lease)
	r.publish(pool("q"), "a")
	r.publish(pool("p"))
	k, _ = r.key("a")
	r.same("pools", []string{"q"}, k.Pools)
	r.same("leaving", []string{"p"}, k.Leaving)
	r.release(g)
	k, _ = r.key("a")
	r.same("leaving after the release", []string{}, k.Leaving)
	r.same("the list", []string{}, r.listed("p"))
}

func publishOtherPool(r *run) {
	r.publish(pool("p"), "a", "b")
	r.publish(pool("q"), "a", "c")
	r.publish(pool("p"), "b")
	k, _ := r.key("a")
	r.same("pools", []string{"q"}, k.Pools)
	r.busy(func() lease.Take { r.take(ask("p", "b")); return ask("p", "one") }())
	r.takes(ask("q", "two"), "a")
}

func publishAgainKey(r *run) {
	p := cools("p")
	r.publish(p, "a")
	g := r.take(ask("p", "one"))
	r.ok(lease.Disable{Key: "a", By: "root"})
	r.release(g)
	r.publish(p)
	r.publish(p, "a")
	r.state("a", lease.Free)
	again := r.take(ask("p", "two"))
	if again.ID.Fence <= g.ID.Fence {
		r.Errorf("fence %d after %d", again.ID.Fence, g.ID.Fence)
	}
	// All of that in one transaction.
	all := r.do(lease.Release{Proof: again.Proof}, lease.Publish{Pool: p}, lease.Enable{Key: "a"}, lease.Renew{Proof: again.Proof},
		lease.Publish{Pool: p, Items: []string{"a"}}, ask("p", "three"))
	r.fault("enabling what is gone", all[2].Err, fault.NotFound, "key")
	r.fault("renewing what is gone", all[3].Err, fault.NotFound, "lease")
	last := r.granted(ask("p", "three"), all[5])
	if last.ID.Fence <= again.ID.Fence || len(last.key.Past) > 0 {
		r.Errorf("fence %d after %d, past %v", last.ID.Fence, again.ID.Fence, last.key.Past)
	}
	k, _ := r.key("a")
	r.same("its lease", &last.lease, k.Lease)
}

func publishSettings(r *run) {
	r.publish(pool("p"), "a")
	g := r.take(ask("p", "one"))
	p := cools("p")
	p.TTL = 2 * time.Minute
	r.publish(p, "a")
	if res := r.ok(lease.Renew{Proof: g.Proof}); res.Lease.TTL != time.Minute {
		r.Errorf("a running lease is renewed for %v, want its own minute", res.Lease.TTL)
	}
	r.release(g)
	r.state("a", lease.Cooling)
	r.advance(time.Minute)
	if g := r.take(ask("p", "two")); g.lease.TTL != 2*time.Minute {
		r.Errorf("a new lease has %v, want 2m", g.lease.TTL)
	}
}

func publishInvalid(r *run) {
	r.publish(pool("p"), "a")
	for name, tc := range map[string]struct {
		change func(p *lease.Publish)
		code   string
	}{
		"no name":         {func(p *lease.Publish) { p.Pool.Name = "" }, "pool"},
		"a bad name":      {func(p *lease.Publish) { p.Pool.Name = "p/q" }, "pool"},
		"a long name":     {func(p *lease.Publish) { p.Pool.Name = strings.Repeat("x", lease.MaxFixedName+1) }, "name"},
		"short ttl":       {func(p *lease.Publish) { p.Pool.TTL = time.Second }, "pool"},
		"long ttl":        {func(p *lease.Publish) { p.Pool.MaxTTL = 25 * time.Hour }, "pool"},
		"ttl over max":    {func(p *lease.Publish) { p.Pool.TTL = time.Hour }, "pool"},
		"cooldown":        {func(p *lease.Publish) { p.Pool.Cooldown = -1 * time.Second }, "pool"},
		"long cooldown":   {func(p *lease.Publish) { p.Pool.Cooldown = lease.MaxCooldown + time.Second }, "pool"},
		"scope":           {func(p *lease.Publish) { p.Pool.Scope = "x" }, "pool"},
		"ban order":       {func(p *lease.Publish) { p.Pool.Ban.Max = time.Second }, "pool"},
		"ban factor":      {func(p *lease.Publish) { p.Pool.Ban.Factor = 0.5 }, "pool"},
		"bad key":         {func(p *lease.Publish) { p.Items = []string{"b", "x y"} }, "key"},
		"key twice":       {func(p *lease.Publish) { p.Items = []string{"b", "c", "b"} }, "key"},
		"a long key":      {func(p *lease.Publish) { p.Items = []string{strings.Repeat("x", lease.MaxFixedName+1)} }, "key"},
		"another's case?": {func(p *lease.Publish) { p.Items = []string{"-b"} }, "key"},
	} {
		op := lease.Publish{Pool: pool("p"), Items: []string{"b"}}
		tc.change(&op)
		res := r.do(op)[0]
		r.fault(name, res.Err, fault.Invalid, tc.code)
	}
	if s := r.status("p"); s.Revision != 1 || s.Keys != 1 {
		r.Errorf("the pool has revision %d and %d keys by now", s.Revision, s.Keys)
	}
	r.noKey("b")
	// Names are compared byte by byte, and may be as long as this.
	long := strings.Repeat("x", lease.MaxFixedName)
	r.publish(pool(long), "A", "a", "a.b", "a-b", "a_b", "0", long)
	r.same("the list", []string{"0", "A", "a", "a-b", "a.b", "a_b", long}, r.listed(long))
}

func publishManaged(r *run) {
	epoch := r.manage(pool("m"))
	r.put(epoch, "a/1", "", nil, "m")
	r.publish(pool("p"), "b")
	r.refused(lease.Publish{Pool: pool("m"), Items: []string{"c"}}, fault.Conflict, "managed")
	r.refused(lease.Publish{Pool: pool("p"), Items: []string{"a", "c"}}, fault.Conflict, "managed")
	r.refused(lease.PutPool{Epoch: epoch, Pool: pool("p")}, fault.Conflict, "fixed")
	r.refused(lease.DropPool{Epoch: epoch, Name: "p"}, fault.Conflict, "fixed")
	r.refused(lease.PutKey{Epoch: epoch, Key: "b", UID: "1", Pools: []string{"m"}}, fault.Conflict, "fixed")
	r.refused(lease.PutKey{Epoch: epoch, Key: "c", UID: "1", Pools: []string{"p"}}, fault.Conflict, "fixed")
	r.refused(lease.DropKey{Epoch: epoch, Key: "b"}, fault.Conflict, "fixed")
	r.same("the fixed list", []string{"b"}, r.listed("p"))
	r.same("the managed list", []string{"a"}, r.listed("m"))
	r.noKey("c")
}

func publishMany(r *run) {
	items := make([]string, lease.MaxItems+1)
	for i := range items {
		items[i] = fmt.Sprintf("k%05d", i)
	}
	r.refused(lease.Publish{Pool: pool("p"), Items: items}, fault.Invalid, "items")
	items = items[1:]
	slices.Reverse(items)
	r.publish(pool("p"), items...)
	if s := r.status("p"); s.Keys != lease.MaxItems || s.Free != lease.MaxItems {
		r.Fatalf("%d keys, %d free", s.Keys, s.Free)
	}
	r.takes(ask("p", "one"), "k00001")
	r.publish(pool("p"), items[:len(items)/2]...)
	if s := r.status("p"); s.Keys != lease.MaxItems/2 || s.Free != lease.MaxItems/2 {
		r.Fatalf("%d keys, %d free of the later half", s.Keys, s.Free)
	}
	r.state("k00001", lease.Held)
	r.noKey("k00002")
	r.takes(ask("p", "two"), "k05001")
}
