package leasetest

import (
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

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
