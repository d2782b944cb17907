package leasetest

import (
	"fmt"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func managedClauses() []Clause {
	return []Clause{
		{"Managed/keeps", "what the controller knows of a key is kept whole", managedKeeps},
		{"Managed/pool", "a managed pool is kept whole, and saying the same again writes nothing", managedPool},
		{"Managed/epoch", "a controller whose time is over writes nothing", managedEpoch},
		{"Managed/facts", "new facts hold at once and leave lease and rests alone", managedFacts},
		{"Managed/unfit", "an unfit key is not handed out, and its holder keeps it", managedUnfit},
		{"Managed/views", "a key is in the pools that the controller says, and shown where it leaves while held", managedViews},
		{"Managed/unlisted", "a key that no pool has for a while stays the same machine", managedUnlisted},
		{"Managed/late-use", "a report of a use of the machine before is refused", managedLateUse},
		{"Managed/replaced", "another machine under the name ends the lease and inherits nothing but the fence", managedReplaced},
		{"Managed/replaced-address", "the rests of its address are not its own and stay", managedReplacedAddress},
		{"Managed/dropped", "a machine that is gone takes its lease and its rests along", managedDropped},
		{"Managed/dropped-other", "a late removal of the machine before does not hit its successor", managedDroppedOther},
		{"Managed/drop-pool", "a pool goes when it has no keys", managedDropPool},
		{"Managed/invalid", "what is no key is refused", managedInvalid},
	}
}

func managedKeeps(r *run) {
	epoch := r.manage(pool("p"), pool("q"))
	res := r.ok(lease.PutKey{
		Epoch: epoch, Key: "crawl.home-1", UID: "u1", Pools: []string{"q", "p", "q"}, Attributes: map[string]string{"country": "de", "": "odd"},
		ExitIP: "2001:db8::1", Unfit: "no answer",
	})
	want := lease.Key{
		Name: "crawl.home-1", Pools: []string{"p", "q"}, Managed: true, UID: "u1", Since: res.Key.Since, Attributes: map[string]string{"country": "de", "": "odd"},
		ExitIP: "2001:db8::1", Unfit: "no answer",
	}
	r.same("the result", want, *res.Key)
	k, _ := r.key("crawl.home-1")
	want.Version = k.Version
	r.same("as read", want, k)
	r.state("crawl.home-1", lease.Unhealthy)
}

func managedPool(r *run) {
	epoch := r.ok(lease.OpenEpoch{Owner: "operator"}).Epoch
	p := lease.Pool{Name: "crawl.default", Cooldown: time.Second, Scope: lease.ScopeExitIP}
	res := r.ok(lease.PutPool{Epoch: epoch, Pool: p})
	want := p.WithDefaults()
	want.Kind = lease.Managed
	r.same("the result", want, *res.Pool)
	r.same("as read", want, r.status(p.Name).Pool)
	after := r.cursor()
	r.ok(lease.PutPool{Epoch: epoch, Pool: p})
	r.put(epoch, "a/1", "", nil, p.Name)
	r.same("events", []string{"changed a"}, r.kinds(after))
	after = r.cursor()
	k, _ := r.key("a")
	r.put(epoch, "a/1", "", nil, p.Name)
	if again, _ := r.key("a"); again.Version != k.Version {
		r.Errorf("the same facts again made version %d of %d", again.Version, k.Version)
	}
	r.same("events", []string{}, r.kinds(after))
	p.Cooldown = time.Minute
	r.ok(lease.PutPool{Epoch: epoch, Pool: p})
	if got := r.status(p.Name).Cooldown; got != time.Minute {
		r.Errorf("the new cooldown is %v", got)
	}
	p.MaxTTL = time.Second
	r.refused(lease.PutPool{Epoch: epoch, Pool: p}, fault.Invalid, "pool")
}

func managedEpoch(r *run) {
	old := r.manage(pool("p"))
	r.put(old, "a/1", "", nil, "p")
	epoch := r.ok(lease.OpenEpoch{Owner: "other"}).Epoch
	if epoch <= old {
		r.Fatalf("epoch %d after %d", epoch, old)
	}
	for _, e := range []int64{old, 0, epoch + 1} {
		r.refused(lease.PutPool{Epoch: e, Pool: pool("q")}, fault.Conflict, "epoch")
		r.refused(lease.DropPool{Epoch: e, Name: "p"}, fault.Conflict, "epoch")
		r.refused(lease.PutKey{Epoch: e, Key: "a", UID: "a/2", Pools: []string{"p"}}, fault.Conflict, "epoch")
		r.refused(lease.DropKey{Epoch: e, Key: "a", UID: "a/1"}, fault.Conflict, "epoch")
	}
	if k, _ := r.key("a"); k.UID != "a/1" {
		r.Errorf("the key is %s by now", k.UID)
	}
	r.put(epoch, "a/2", "", nil, "p")
	// In one transaction the new one holds at once.
	all := r.do(lease.OpenEpoch{}, lease.PutPool{Epoch: epoch, Pool: pool("q")})
	r.fault("writing under the one before", all[1].Err, fault.Conflict, "epoch")
	if all[0].Epoch <= epoch {
		r.Errorf("epoch %d after %d", all[0].Epoch, epoch)
	}
}

func managedFacts(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "192.0.2.1", map[string]string{"country": "de"}, "p")
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	g := r.take(ask("p", "one"))
	r.ok(lease.Disable{Key: "a", Reason: "slow", By: "root"})
	r.put(epoch, "a/1", "192.0.2.2", map[string]string{"country": "fr"}, "p")
	k, _ := r.key("a")
	if k.ExitIP != "192.0.2.2" || k.Attributes["country"] != "fr" || k.Disabled == nil {
		r.Errorf("after new facts: %+v", k)
	}
	r.same("its lease", &g.lease, k.Lease)
	if c, _ := r.cooldown("a", "example.com"); c.Strikes != 1 {
		r.Errorf("after new facts it rests as %+v", c)
	}
	// A write of something else leaves the facts alone.
	r.release(g)
	k, _ = r.key("a")
	r.same("attributes", map[string]string{"country": "fr"}, k.Attributes)
}

func managedUnfit(r *run) {
	epoch := r.manage(pool("p"))
	put := func(unfit string) {
		r.Helper()
		r.ok(lease.PutKey{Epoch: epoch, Key: "a", UID: "1", Pools: []string{"p"}, Unfit: unfit})
	}
	put("")
	g := r.take(ask("p", "one"))
	put("no answer")
	r.state("a", lease.Held)
	r.ok(lease.Renew{Proof: g.Proof})
	r.release(g)
	r.state("a", lease.Unhealthy)
	if b := r.busy(ask("p", "two")); !b.Due.IsZero() {
		r.Errorf("an unfit key comes free at %v", b.Due)
	}
	if s := r.status("p"); s.Keys != 1 || s.Free != 0 {
		r.Errorf("%d keys, %d free: an unfit one is not", s.Keys, s.Free)
	}
	put("")
	r.takes(ask("p", "two"), "a")
}

func managedViews(r *run) {
	epoch := r.manage(pool("p"), pool("q"))
	r.put(epoch, "a/1", "", nil, "p", "q")
	g := r.take(ask("q", "one"))
	r.put(epoch, "a/1", "", nil, "p")
	k, _ := r.key("a")
	r.same("pools", []string{"p"}, k.Pools)
	r.same("leaving", []string{"q"}, k.Leaving)
	r.same("the list of q", []string{"a"}, r.listed("q"))
	r.release(g)
	r.same("the list of q", []string{}, r.listed("q"))
	r.busy(ask("q", "two"))
	g = r.takes(ask("p", "three"), "a")
	r.put(epoch, "a/1", "", nil)
	r.state("a", lease.Held)
	r.release(g)
	r.state("a", lease.Gone)
	after := r.cursor()
	r.put(epoch, "a/1", "", nil)
	r.put(epoch, "b/1", "", nil)
	r.noKey("b") // in no pool, held by nobody: nothing to keep
	r.same("events", []string{}, r.kinds(after))
}

// A list that forgets a key for a moment must not end its bans.
func managedUnlisted(r *run) {
	p := cools("p")
	epoch := r.stock(p, "a")
	for i, held := range []bool{false, true} {
		target := fmt.Sprintf("%d.example", i)
		r.ok(lease.Report{Key: "a", Pool: "p", Target: target, Outcome: lease.Banned})
		var g got
		if held {
			g = r.take(ask("p", target))
		}
		before, _ := r.key("a")
		r.put(epoch, before.UID, "", nil)
		if held {
			r.release(g)
		}
		r.state("a", lease.Gone)
		r.same("the list", []string{}, r.listed("p"))
		r.busy(ask("p", "none"+target))
		r.put(epoch, before.UID, "", nil, "p")
		if c, _ := r.cooldown("a", target); c.Strikes != 1 {
			r.Errorf("held %v: in a pool again it rests as %+v", held, c)
		}
		r.none("p", target)
		if k, _ := r.key("a"); k.Seat <= before.Seat {
			r.Errorf("held %v: it comes back to its seat %d", held, k.Seat)
		}
	}
	// Only its removal, or another machine, ends them.
	k, _ := r.key("a")
	r.put(epoch, k.UID, "", nil)
	r.ok(lease.DropKey{Epoch: epoch, Key: "a", UID: k.UID})
	r.noKey("a")
	r.put(epoch, "a/9", "", nil, "p")
	r.picks("p", "0.example", "a")
}

func managedLateUse(r *run) {
	epoch := r.stock(pool("p"), "a")
	u := r.pick("p", "example.com").Use
	g := r.take(aimed(ask("p", "one"), "example.com"))
	report := lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned, Use: u.ID, Account: "ann"}
	r.put(epoch, "a/2", "", nil, "p")
	r.refused(report, fault.Conflict, "uid")
	report.Use = g.ID
	r.refused(report, fault.Conflict, "uid")
	// Its own uses are its own, whatever else it becomes.
	report.Use = r.pick("p", "example.com").Use.ID
	r.put(epoch, "a/2", "192.0.2.9", map[string]string{"country": "fr"}, "p")
	r.ok(lease.Disable{Key: "a"})
	r.ok(lease.Enable{Key: "a"})
	r.ok(report)
	r.none("p", "example.com")
	// Also when the machine before was removed first, and in one transaction.
	r.ok(lease.DropKey{Epoch: epoch, Key: "a"})
	r.put(epoch, "a/3", "", nil, "p")
	r.refused(report, fault.Conflict, "uid")
	all := r.do(lease.Take{Pool: "p", Target: "example.net", Account: "ann", Quick: true}, lease.PutKey{Epoch: epoch, Key: "a", UID: "a/4", Pools: []string{"p"}},
		lease.Take{Pool: "p", Target: "example.net", Account: "ann", Quick: true})
	for i, refused := range map[int]bool{0: true, 2: false} {
		report.Use, report.Target = all[i].Use.ID, "example.net"
		if res := r.do(report)[0]; (res.Err != nil) != refused {
			r.Errorf("the use of op %d: %v", i, res.Err)
		}
	}
}

func managedReplaced(r *run) {
	epoch := r.manage(cools("p"))
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	g := r.take(ask("p", "zero"))
	r.ok(lease.Release{Proof: g.Proof, Outcome: lease.Failed})
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	r.advance(31 * time.Second)
	g = r.take(ask("p", "one"))
	r.ok(lease.Disable{Key: "a", By: "root"})
	after := r.cursor()
	res := r.ok(lease.PutKey{Epoch: epoch, Key: "a", UID: "a/2", Pools: []string{"p"}, ExitIP: "192.0.2.1"})
	if l := res.Lease; l == nil || l.End != lease.Replaced || l.Fence != g.ID.Fence {
		r.Errorf("the old lease: %+v", l)
	}
	r.same("events", []string{"replaced a"}, r.kinds(after))
	r.refused(lease.Renew{Proof: g.Proof}, fault.Conflict, "lease_replaced")
	r.state("a", lease.Free)
	if k, _ := r.key("a"); k.Errors != 0 || k.Disabled != nil {
		r.Errorf("it inherits %+v", k)
	}
	all, err := r.store().Cooldowns(r.ctx, "a", "", 10)
	if err != nil || len(all) > 0 {
		r.Errorf("it inherits the rests %+v (%v)", all, err)
	}
	again := r.takes(aimed(ask("p", "two"), "example.com"), "a")
	if again.ID.Fence <= g.ID.Fence {
		r.Errorf("fence %d after %d", again.ID.Fence, g.ID.Fence)
	}
	r.refused(lease.Release{Proof: g.Proof}, fault.Conflict, "lease_lost")
}

func managedReplacedAddress(r *run) {
	p := pool("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.put(epoch, "b/1", "192.0.2.1", nil, "p")
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	r.put(epoch, "a/2", "192.0.2.1", nil, "p")
	r.busy(aimed(ask("p", "one"), "example.com"))
	r.put(epoch, "a/3", "192.0.2.2", nil, "p")
	r.takes(aimed(ask("p", "two"), "example.com"), "a")
}

func managedDropped(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	g := r.take(ask("p", "one"))
	after := r.cursor()
	res := r.ok(lease.DropKey{Epoch: epoch, Key: "a", UID: "a/1"})
	if l := res.Lease; l == nil || l.End != lease.Removed {
		r.Errorf("its lease: %+v", l)
	}
	r.same("events", []string{"removed a"}, r.kinds(after))
	r.noKey("a")
	r.ok(lease.DropKey{Epoch: epoch, Key: "a", UID: "a/1"})
	r.ok(lease.DropKey{Epoch: epoch, Key: "never"})
	r.put(epoch, "a/2", "192.0.2.1", nil, "p")
	again := r.takes(aimed(ask("p", "two"), "example.com"), "a")
	if again.ID.Fence <= g.ID.Fence {
		r.Errorf("fence %d after %d", again.ID.Fence, g.ID.Fence)
	}
	r.refused(lease.Renew{Proof: g.Proof}, fault.Conflict, "lease_lost")
	// All of that in one transaction.
	all := r.do(lease.DropKey{Epoch: epoch, Key: "a"}, lease.Disable{Key: "a"}, ask("p", "three"),
		lease.PutKey{Epoch: epoch, Key: "a", UID: "a/3", Pools: []string{"p"}}, ask("p", "three"))
	r.fault("disabling what is gone", all[1].Err, fault.NotFound, "key")
	if all[2].Busy == nil || all[4].Key == nil {
		r.Errorf("before %+v and after %+v", all[2].Busy, all[4].Busy)
	}
	if k, _ := r.key("a"); k.UID != "a/3" || k.Lease == nil || k.Lease.Ticket != "three" {
		r.Errorf("the key is %+v", k)
	}
}

func managedDroppedOther(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/2", "", nil, "p")
	g := r.take(ask("p", "one"))
	r.refused(lease.DropKey{Epoch: epoch, Key: "a", UID: "a/1"}, fault.Conflict, "uid")
	r.ok(lease.Renew{Proof: g.Proof})
}

func managedDropPool(r *run) {
	epoch := r.manage(pool("p"))
	r.put(epoch, "a/1", "", nil, "p")
	r.refused(lease.DropPool{Epoch: epoch, Name: "p"}, fault.Conflict, "pool_used")
	g := r.take(ask("p", "one"))
	all := r.do(lease.PutKey{Epoch: epoch, Key: "a", UID: "a/1"}, lease.DropPool{Epoch: epoch, Name: "p"}, ask("p", "two"), lease.Renew{Proof: g.Proof})
	if all[1].Err != nil || all[3].Err != nil {
		r.Fatalf("dropping it: %v; renewing: %v", all[1].Err, all[3].Err)
	}
	r.fault("a take from it", all[2].Err, fault.NotFound, "pool")
	_, err := r.store().Pool(r.ctx, "p")
	r.fault("Pool(p)", err, fault.NotFound, "pool")
	r.ok(lease.DropPool{Epoch: epoch, Name: "p"})
	r.state("a", lease.Held)
	// What is read of a key that still has a lease of it does not bring it back.
	r.publish(pool("fixed"))
	r.ok(lease.PutPool{Epoch: epoch, Pool: pool("p")})
	r.put(epoch, "b/1", "", nil, "p")
	r.take(ask("p", "three"))
	r.put(epoch, "b/1", "", nil)
	all = r.do(lease.DropPool{Epoch: epoch, Name: "p"}, lease.Publish{Pool: pool("fixed"), Items: []string{"b"}}, ask("p", "four"))
	r.fault("a list with a managed key", all[1].Err, fault.Conflict, "managed")
	r.fault("a take from it", all[2].Err, fault.NotFound, "pool")
	r.do(lease.PutPool{Epoch: epoch, Pool: pool("z")}, lease.DropPool{Epoch: epoch, Name: "z"})
	_, err = r.store().Pool(r.ctx, "z")
	r.fault("Pool(z)", err, fault.NotFound, "pool")
	// And again, at once.
	all = r.do(lease.PutPool{Epoch: epoch, Pool: pool("q")}, lease.DropPool{Epoch: epoch, Name: "q"}, lease.PutPool{Epoch: epoch, Pool: cools("q")})
	for i := range all {
		if all[i].Err != nil {
			r.Fatalf("op %d: %v", i, all[i].Err)
		}
	}
	if got := r.status("q").Cooldown; got != 30*time.Second {
		r.Errorf("the pool that was made again has the cooldown %v", got)
	}
}

func managedInvalid(r *run) {
	epoch := r.manage(pool("p"))
	r.refused(lease.PutKey{Epoch: epoch, Key: "", UID: "1"}, fault.Invalid, "name")
	r.refused(lease.PutKey{Epoch: epoch, Key: "a~1", UID: "1"}, fault.Invalid, "name")
	r.refused(lease.PutKey{Epoch: epoch, Key: strings.Repeat("x", lease.MaxName+1), UID: "1"}, fault.Invalid, "name")
	r.refused(lease.PutKey{Epoch: epoch, Key: "a"}, fault.Invalid, "")
	r.put(epoch, strings.Repeat("x", lease.MaxName)+"/1", "", nil, "p")
}
