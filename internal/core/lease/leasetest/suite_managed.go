package leasetest

import (
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
		Name: "crawl.home-1", Pools: []string{"p", "q"}, Managed: true, UID: "u1", Attributes: map[string]string{"country": "de", "": "odd"},
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
	r.noKey("a")
	after := r.cursor()
	r.put(epoch, "a/1", "", nil)
	r.noKey("a") // in no pool, held by nobody: nothing to keep
	r.same("events", []string{}, r.kinds(after))
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

func changeClauses() []Clause {
	return []Clause{
		{"Change/bars", "a change bars its keys and no others until it ends", changeBars},
		{"Change/lock", "a pool has one change at a time, and whoever comes second is told whose it is", changeLock},
		{"Change/held", "keys that somebody holds cannot be changed", changeHeld},
		{"Change/expires", "a change that is not kept alive ends by itself", changeExpires},
		{"Change/renew", "a change is kept alive by its account alone", changeRenew},
		{"Change/end", "a change is ended by its account or an admin, and twice is harmless", changeEnd},
		{"Change/no-rows", "names without rows are barred too, from their first moment on", changeNoRows},
		{"Change/two-pools", "a key of two pools is changed through one at a time", changeTwoPools},
		{"Change/one-transaction", "a change that ends and another that begins in one transaction leave one lock", changeOneTransaction},
		{"Change/action", "an unfinished action bars a name until it is resolved, within a change and beyond", changeAction},
		{"Change/invalid", "what cannot be a change is refused", changeInvalid},
		{"Change/stored", "a change is kept whole", changeStored},
	}
}

// begin is a change with a short time.
func begin(id, pool string, keys ...string) lease.BeginChange {
	return lease.BeginChange{ID: id, Pool: pool, Verb: "remove", Keys: keys, Account: "ann", Holder: "ann at her desk", TTL: 30 * time.Second}
}

func changeBars(r *run) {
	r.publish(pool("p"), "a", "b", "c")
	r.ok(begin("c1", "p", "a", "b"))
	r.state("a", lease.Barred)
	r.state("b", lease.Barred)
	r.state("c", lease.Free)
	g := r.takes(ask("p", "one"), "c")
	r.busy(ask("p", "two"))
	k, _ := r.key("a")
	if len(k.Bars) != 1 || k.Bars[0].Change != "c1" || k.Bars[0].By != "ann" || k.Bars[0].Action != "" {
		r.Errorf("its bars: %+v", k.Bars)
	}
	r.ok(lease.EndChange{Pool: "p", ID: "c1", Account: "ann"})
	r.state("a", lease.Free)
	r.takes(ask("p", "two"), "a")
	r.release(g)
}

func changeLock(r *run) {
	r.publish(pool("p"), "a", "b")
	r.publish(pool("q"), "z")
	first := r.ok(begin("c1", "p", "a")).Change
	other := begin("c2", "p", "b")
	other.Account = "bob"
	res := r.refused(other, fault.Conflict, "change")
	r.same("whose it is", first, res.Change)
	r.refused(begin("c3", "p"), fault.Conflict, "change")
	r.state("b", lease.Free)
	r.same("begun twice", first, r.ok(begin("c1", "p", "a")).Change)
	r.ok(begin("c4", "q", "z"))
	if ch := r.status("p").Change; ch == nil || ch.ID != "c1" {
		r.Errorf("the pool shows %+v", ch)
	}
	r.ok(lease.EndChange{Pool: "p", ID: "c1", Account: "ann"})
	if ch := r.status("p").Change; ch != nil {
		r.Errorf("after its end the pool shows %+v", ch)
	}
	r.ok(other)
	r.state("b", lease.Barred)
	r.refused(begin("c1", "p", "a"), fault.Conflict, "change")
}

func changeHeld(r *run) {
	r.publish(pool("p"), "a", "b")
	g := r.takes(ask("p", "one"), "a")
	res := r.refused(begin("c1", "p", "b", "a"), fault.Conflict, "held")
	if res.Key == nil || res.Key.Name != "a" || res.Key.Lease.Fence != g.ID.Fence {
		r.Errorf("it does not say who holds it: %+v", res.Key)
	}
	r.state("b", lease.Free)
	if ch := r.status("p").Change; ch != nil {
		r.Errorf("a refused change is under way: %+v", ch)
	}
	r.advance(time.Minute)
	r.ok(begin("c1", "p", "b", "a"))
	// A take and a change in one transaction.
	r.publish(pool("q"), "z")
	all := r.do(ask("q", "two"), begin("c2", "q", "z"))
	r.fault("a change of what was just taken", all[1].Err, fault.Conflict, "held")
	r.release(r.granted(ask("q", "two"), all[0]))
	all = r.do(begin("c2", "q", "z"), ask("q", "three"), lease.EndChange{Pool: "q", ID: "c2", Account: "ann"}, ask("q", "four"))
	if all[1].Busy == nil || all[3].Key == nil {
		r.Errorf("during %+v, after %+v", all[1].Busy, all[3].Busy)
	}
}

func changeExpires(r *run) {
	r.publish(pool("p"), "a")
	r.ok(begin("c1", "p", "a"))
	r.advance(29 * time.Second)
	r.refused(begin("c2", "p"), fault.Conflict, "change")
	r.advance(time.Second)
	r.state("a", lease.Free)
	r.refused(lease.RenewChange{Pool: "p", ID: "c1", Account: "ann", TTL: time.Minute}, fault.NotFound, "change")
	if ch := r.status("p").Change; ch != nil {
		r.Errorf("the pool shows %+v", ch)
	}
	r.ok(begin("c2", "p"))
	r.takes(ask("p", "one"), "a")
}

func changeRenew(r *run) {
	r.publish(pool("p"), "a")
	r.ok(begin("c1", "p", "a"))
	for range 3 {
		r.advance(25 * time.Second)
		res := r.ok(lease.RenewChange{Pool: "p", ID: "c1", Account: "ann", TTL: 30*time.Second + time.Nanosecond})
		if !res.Change.Until.Equal(res.Now.Add(30*time.Second)) || res.Change.Keys[0] != "a" {
			r.Fatalf("renewed at %v: %+v", res.Now, res.Change)
		}
		r.state("a", lease.Barred)
	}
	r.refused(lease.RenewChange{Pool: "p", ID: "c1", Account: "bob", TTL: time.Minute}, fault.Denied, "not_owner")
	r.refused(lease.RenewChange{Pool: "p", ID: "c2", Account: "ann", TTL: time.Minute}, fault.NotFound, "change")
	r.refused(lease.RenewChange{Pool: "none", ID: "c1", Account: "ann", TTL: time.Minute}, fault.NotFound, "change")
	r.refused(lease.RenewChange{Pool: "p", ID: "c1", Account: "ann", TTL: lease.MaxChangeTTL + 1}, fault.Invalid, "ttl")
	r.refused(lease.RenewChange{Pool: "p", ID: "c1", Account: "ann", TTL: time.Second}, fault.Invalid, "ttl")
}

func changeEnd(r *run) {
	r.publish(pool("p"), "a")
	r.ok(begin("c1", "p", "a"))
	r.refused(lease.EndChange{Pool: "p", ID: "c1", Account: "bob"}, fault.Denied, "not_owner")
	r.state("a", lease.Barred)
	r.ok(lease.EndChange{Pool: "p", ID: "other", Account: "ann"})
	r.state("a", lease.Barred)
	r.ok(lease.EndChange{Pool: "p", ID: "c1", Account: "root", Admin: true})
	r.state("a", lease.Free)
	r.ok(lease.EndChange{Pool: "p", ID: "c1", Account: "ann"})
	r.ok(lease.EndChange{Pool: "none", ID: "c1", Account: "ann"})
}

func changeNoRows(r *run) {
	r.publish(pool("p"), "a")
	r.ok(begin("c1", "p", "b", "c"))
	r.publish(pool("p"), "a", "b")
	r.state("b", lease.Barred)
	r.takes(ask("p", "one"), "a")
	r.busy(ask("p", "two"))
	r.noKey("c")
	r.ok(lease.EndChange{Pool: "p", ID: "c1", Account: "ann"})
	r.takes(ask("p", "two"), "b")
	// In one transaction.
	r.publish(pool("q"))
	all := r.do(begin("c2", "q", "z"), lease.Publish{Pool: pool("q"), Items: []string{"z"}}, ask("q", "three"),
		lease.EndChange{Pool: "q", ID: "c2", Account: "ann"}, ask("q", "four"))
	if all[2].Busy == nil || all[4].Key == nil {
		r.Errorf("during %+v, after %+v (%v)", all[2].Busy, all[4].Busy, all[4].Err)
	}
	r.publish(pool("s"))
	r.ok(begin("c3", "s", "y"))
	all = r.do(lease.EndChange{Pool: "s", ID: "c3", Account: "ann"}, lease.Publish{Pool: pool("s"), Items: []string{"y"}}, ask("s", "five"))
	if all[2].Key == nil {
		r.Errorf("after its end in the same transaction: %+v", all[2].Busy)
	}
}

func changeTwoPools(r *run) {
	r.publish(pool("p"), "a")
	r.publish(pool("q"), "a", "b")
	r.ok(begin("c1", "p", "a", "new"))
	r.refused(begin("c2", "q", "b", "a"), fault.Conflict, "change")
	r.refused(begin("c2", "q", "new"), fault.Conflict, "change")
	r.ok(begin("c2", "q", "b"))
	r.ok(lease.EndChange{Pool: "q", ID: "c2", Account: "ann"})
	r.ok(lease.EndChange{Pool: "p", ID: "c1", Account: "ann"})
	r.ok(begin("c3", "q", "b", "a", "new"))
}

func changeOneTransaction(r *run) {
	r.publish(pool("p"), "a", "b")
	r.ok(begin("c1", "p", "a"))
	all := r.do(lease.EndChange{Pool: "p", ID: "c1", Account: "ann"}, begin("c2", "p", "b"))
	if all[0].Err != nil || all[1].Err != nil {
		r.Fatalf("%v, %v", all[0].Err, all[1].Err)
	}
	r.state("a", lease.Free)
	r.state("b", lease.Barred)
	if ch := r.status("p").Change; ch == nil || ch.ID != "c2" {
		r.Errorf("the pool shows %+v", ch)
	}
	all = r.do(begin("c3", "p"), lease.EndChange{Pool: "p", ID: "c2", Account: "ann"}, begin("c3", "p"), lease.EndChange{Pool: "p", ID: "c3", Account: "ann"}, begin("c4", "p", "a"))
	r.fault("a second change", all[0].Err, fault.Conflict, "change")
	if all[2].Err != nil || all[4].Err != nil {
		r.Fatalf("%v, %v", all[2].Err, all[4].Err)
	}
	r.state("b", lease.Free)
	r.state("a", lease.Barred)
	r.refused(begin("c5", "p"), fault.Conflict, "change")
	r.ok(lease.RenewChange{Pool: "p", ID: "c4", Account: "ann", TTL: time.Minute})
}

func changeAction(r *run) {
	open := func(name, action, change string) {
		r.Helper()
		if err := r.h.OpenAction(r.ctx, name, action, change, "ann"); err != nil {
			r.Fatalf("OpenAction: %v", err)
		}
	}
	r.publish(pool("p"), "a", "b")
	r.ok(begin("c1", "p", "a", "new"))
	open("a", "act1", "c1")
	open("new", "act2", "c1")
	open("b", "act3", "")
	r.ok(lease.EndChange{Pool: "p", ID: "c1", Account: "ann"})
	r.state("a", lease.Barred)
	r.state("b", lease.Barred)
	if b := r.busy(ask("p", "one")); !b.Due.IsZero() {
		r.Errorf("time alone frees none of them, but it says %v", b.Due)
	}
	r.advance(time.Hour)
	r.ok(lease.Sweep{Limit: 100})
	r.state("a", lease.Barred)
	r.publish(pool("p"), "a", "b", "new")
	r.state("new", lease.Barred)
	// Whoever cleans up after it can begin a change.
	r.ok(begin("c2", "p", "a"))
	r.ok(lease.EndChange{Pool: "p", ID: "c2", Account: "ann"})
	for name, action := range map[string]string{"a": "act1", "b": "act3", "new": "act2"} {
		if err := r.h.CloseAction(r.ctx, name, action); err != nil {
			r.Fatalf("CloseAction: %v", err)
		}
		r.state(name, lease.Free)
	}
}

func changeInvalid(r *run) {
	r.publish(pool("p"), "a")
	for name, tc := range map[string]struct {
		change func(op *lease.BeginChange)
		class  fault.Class
		code   string
	}{
		"unknown pool":  {func(op *lease.BeginChange) { op.Pool = "none" }, fault.NotFound, "pool"},
		"too long":      {func(op *lease.BeginChange) { op.TTL = lease.MaxChangeTTL + 1 }, fault.Invalid, "ttl"},
		"too short":     {func(op *lease.BeginChange) { op.TTL = time.Second }, fault.Invalid, "ttl"},
		"too many keys": {func(op *lease.BeginChange) { op.Keys = strings.Fields("a b c d e f") }, fault.Invalid, "keys"},
		"no name":       {func(op *lease.BeginChange) { op.Keys = []string{"a/b"} }, fault.Invalid, "name"},
		"control verb":  {func(op *lease.BeginChange) { op.Verb = "a\x00" }, fault.Invalid, "text"},
		"control text":  {func(op *lease.BeginChange) { op.Holder = "a\n" }, fault.Invalid, "text"},
		"no id":         {func(op *lease.BeginChange) { op.ID = "" }, fault.Invalid, ""},
	} {
		op := begin("c1", "p", "a")
		tc.change(&op)
		res := r.do(op)[0]
		r.fault(name, res.Err, tc.class, tc.code)
	}
	r.state("a", lease.Free)
}

func changeStored(r *run) {
	r.publish(pool("p"), "a", "b")
	op := begin("c1", "p", "b", "a", "new")
	op.TTL = time.Minute + time.Nanosecond
	res := r.ok(op)
	want := lease.Change{
		ID: "c1", Pool: "p", Verb: "remove", Keys: []string{"b", "a", "new"}, Account: "ann", Holder: "ann at her desk",
		Began: res.Now, Until: res.Now.Add(time.Minute),
	}
	r.same("the result", &want, res.Change)
	r.same("as read", &want, r.status("p").Change)
	r.same("sent again", &want, r.ok(op).Change)
}
