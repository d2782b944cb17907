package leasetest

import (
	"fmt"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

func quickClauses() []Clause {
	return []Clause{
		{"Quick/rest", "a quick pick holds nothing, and the key rests for the target from then on", quickRest},
		{"Quick/no-target", "without a target the key rests for all", quickNoTarget},
		{"Quick/fixed", "of a fixed pool the key that was used least recently comes first", quickFixed},
		{"Quick/held", "what somebody holds is never picked, and what was picked may be leased", quickHeld},
		{"Quick/refused", "a quick pick neither waits nor is replayed, and a pool with hooks has none", quickRefused},
		{"Quick/again", "a pick that is sent again is another one", quickAgain},
		{"Quick/silent", "a pick for a target writes no event, no ticket, and not the key", quickSilent},
		{"Quick/waiters", "a pick stands behind those who wait", quickWaiters},
		{"Quick/one-transaction", "picks in one transaction see each other", quickOneTransaction},
		{"Report/use", "a report may name its use: of a running lease only its holder's", reportUse},
		{"Report/not-listed", "a report goes through a pool that has the key", reportNotListed},
		{"Report/rest", "a report says what keeps the key from the target", reportRest},
		{"Take/if-done", "a take may hang on the op before it", takeIfDone},
		{"Busy/why", "who finds nothing and does not wait is told what keeps the keys from it", busyWhy},
		{"Busy/due", "and when the first of them may be had", busyDue},
		{"Read/bans", "what several targets ban is counted, the most first", readBans},
	}
}

func quickRest(r *run) {
	r.stock(cools("p"), "a")
	res := r.pick("p", "example.com")
	if u := res.Use; !u.Rested.Equal(res.Now.Add(30*time.Second)) || !u.Ends.IsZero() {
		r.Errorf("the use is %+v at %v", u, res.Now)
	}
	r.state("a", lease.Free)
	b := r.none("p", "example.com")
	if !b.Due.Equal(res.Use.Rested) {
		r.Errorf("the next one is due at %v, want %v", b.Due, res.Use.Rested)
	}
	r.busy(aimed(ask("p", "one"), "example.com"))
	r.picks("p", "example.org", "a")
	r.advance(29 * time.Second)
	r.none("p", "example.com")
	r.advance(time.Second)
	r.picks("p", "example.com", "a")
	if c, _ := r.cooldown("a", "example.com"); c.Strikes != 0 || c.Turn.IsZero() {
		r.Errorf("what rests is %+v", c)
	}
	// A ban of which nobody would speak any more is not kept by it.
	r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	r.advance(5 * time.Minute)
	r.picks("p", "example.com", "a")
	if c, _ := r.cooldown("a", "example.com"); c.Strikes != 0 {
		r.Errorf("a use after a long peace remembers %+v", c)
	}
}

func quickNoTarget(r *run) {
	r.stock(cools("p"), "a", "b")
	res := r.pick("p", "")
	if res.Key.Name != "a" || !res.Use.Rested.Equal(res.Now.Add(30*time.Second)) {
		r.Errorf("got %s, rested %v at %v", res.Key.Name, res.Use.Rested, res.Now)
	}
	r.state("a", lease.Cooling)
	r.picks("p", "", "b")
	if b := r.none("p", ""); !b.Due.Equal(res.Use.Rested) {
		r.Errorf("due %v, want %v", b.Due, res.Use.Rested)
	}
	r.none("p", "example.com")
	r.advance(30 * time.Second)
	r.picks("p", "", "a", "b")
	// Nor is it a rest in a pool that has none.
	r.stock(pool("q"), "x", "y")
	r.picks("q", "", "x", "y", "x")
	if res := r.pick("q", "example.com"); !res.Use.Rested.Equal(res.Now) {
		r.Errorf("rested at %v, picked at %v", res.Use.Rested, res.Now)
	}
}

func quickFixed(r *run) {
	r.publish(cools("p"), "a", "b")
	r.picks("p", "example.com", "a", "b")
	r.none("p", "example.com")
	r.picks("p", "example.org", "a", "b")
	// Nobody resets a key for a pick.
	resets := pool("h")
	resets.Hooks.Reset = true
	r.publish(resets, "x")
	r.publish(pool("q"), "x")
	op := ask("h", "one")
	op.RunsHooks = true
	r.release(r.takes(op, "x"))
	r.state("x", lease.NeedsReset)
	r.none("q", "example.com")
}

func quickHeld(r *run) {
	r.stock(pool("p"), "a", "b")
	r.takes(aimed(ask("p", "one"), "example.com"), "a")
	r.picks("p", "example.org", "b", "b")
	r.takes(aimed(ask("p", "two"), "example.org"), "b")
	r.none("p", "example.net")
}

func quickRefused(r *run) {
	r.stock(pool("p"), "a")
	quick := lease.Take{Pool: "p", Target: "example.com", Account: "ann", Quick: true}
	for _, change := range []func(*lease.Take){
		func(t *lease.Take) { t.Wait = true },
		func(t *lease.Take) { t.Keep = true },
		func(t *lease.Take) { t.TTL = time.Minute },
		func(t *lease.Take) { t.Secret = lease.HashOf("x") },
	} {
		op := quick
		change(&op)
		r.refused(op, fault.Permanent, "")
	}
	none := quick
	none.Pool = "none"
	r.refused(none, fault.NotFound, "pool")
	bad := quick
	bad.Target = "x\n"
	r.refused(bad, fault.Invalid, "text")
	hooked := pool("h")
	hooked.Hooks.Check = true
	r.publish(hooked, "k")
	run := quick
	run.Pool, run.RunsHooks = "h", true
	r.refused(run, fault.Invalid, "hooks")
	r.picks("p", "example.com", "a")
}

func quickAgain(r *run) {
	r.stock(pool("p"), "a", "b")
	op := lease.Take{Ticket: "one", Digest: "x", Pool: "p", Target: "example.com", Account: "ann", Quick: true}
	first, second := r.ok(op), r.ok(op)
	if first.Key.Name != "a" || second.Key.Name != "b" || second.Replayed || second.Use.ID.Fence <= first.Use.ID.Fence {
		r.Errorf("got %s, then %s", first.Use.ID, second.Use.ID)
	}
	// Nor does it touch a request of that name.
	kept := kept4replay(ask("p", "two"))
	g := r.take(kept)
	op.Ticket = "two"
	r.ok(op)
	if res := r.ok(kept); !res.Replayed || res.Lease.Fence != g.ID.Fence {
		r.Errorf("the replay is %+v", res.Lease)
	}
}

func quickSilent(r *run) {
	r.stock(cools("p"), "a")
	before, _ := r.key("a")
	after := r.cursor()
	res := r.pick("p", "example.com")
	r.same("the key", before, *res.Key)
	now, _ := r.key("a")
	r.same("the key as it is kept", before, now)
	if kinds := r.kinds(after); len(kinds) > 0 {
		r.Errorf("it told of %v", kinds)
	}
	if ids := r.tickets("p"); len(ids) > 0 {
		r.Errorf("tickets %v", ids)
	}
}

func quickWaiters(r *run) {
	r.stock(pool("p"), "a", "b")
	one, two := r.take(ask("p", "one")), r.take(ask("p", "two"))
	r.queued(aimed(ask("p", "waiter"), "example.com"), 1)
	r.release(one)
	b := r.none("p", "example.org")
	if b.Ahead != 1 || b.Position != 0 {
		r.Errorf("%d ahead, at place %d", b.Ahead, b.Position)
	}
	r.release(two)
	r.picks("p", "example.org", "b")
	r.takes(waits(aimed(ask("p", "waiter"), "example.com")), "a")
}

func quickOneTransaction(r *run) {
	r.stock(cools("p"), "a", "b")
	quick := func(target string) lease.Take {
		return lease.Take{Pool: "p", Target: target, Account: "ann", Quick: true}
	}
	all := r.do(quick("example.com"), quick("example.com"), quick("example.com"), quick("example.org"), aimed(ask("p", "one"), "example.net"), quick("example.org"), quick("example.net"))
	for i, want := range []string{"a", "b", "", "a", "a", "b", "b"} {
		name := ""
		if all[i].Key != nil {
			name = all[i].Key.Name
		}
		if name != want {
			r.Fatalf("op %d got %q, want %q", i, name, want)
		}
	}
}

// Who may name any pool would choose how long others' keys rest.
func reportNotListed(r *run) {
	epoch := r.manage(pool("p"), pool("q"))
	r.put(epoch, "a/1", "", nil, "p")
	report := lease.Report{Key: "a", Pool: "q", Target: "example.com", Outcome: lease.Banned, Account: "ann"}
	r.refused(report, fault.Conflict, "not_listed")
	r.picks("p", "example.com", "a")
	// One that it left while somebody has the key from it, or had it last, counts.
	r.put(epoch, "a/1", "", nil, "p", "q")
	g := r.take(ask("q", "one"))
	r.put(epoch, "a/1", "", nil, "p")
	r.ok(report)
	r.release(g)
	r.ok(report)
	r.release(r.take(ask("p", "two")))
	r.refused(report, fault.Conflict, "not_listed")
}

func reportUse(r *run) {
	r.stock(pool("p"), "a", "b")
	g := r.takes(aimed(ask("p", "one"), "example.com"), "a")
	report := lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned, Use: g.ID, Account: "bob"}
	r.refused(report, fault.Denied, "not_owner")
	other := report
	other.Use.Key, other.Account = "b", "ann"
	r.refused(other, fault.Invalid, "use")
	if all, err := r.store().Cooldowns(r.ctx, "a", "", 10); err != nil || len(all) > 0 {
		r.Errorf("a refused report left %+v, %v", all, err)
	}
	unknown := report
	unknown.Use.Fence, unknown.Account = 1<<40, "ann"
	r.refused(unknown, fault.Invalid, "use")
	report.Account = "ann"
	r.ok(report)
	r.state("a", lease.Held)
	r.release(g)
	report.Account, report.Target, report.Leased = "bob", "example.net", true
	r.refused(report, fault.Denied, "not_owner") // though it is over
	report.Account = "ann"
	r.ok(report)
	again := r.takes(aimed(ask("p", "two"), "example.org"), "a")
	r.release(again)
	r.ok(report) // and others had it since
	u := r.ok(lease.Take{Pool: "p", Target: "example.net", Account: "ann", Quick: true}).Use
	r.refused(lease.Report{Key: u.ID.Key, Pool: "p", Target: "example.org", Outcome: lease.Banned, Use: u.ID, Leased: true, Account: "ann"}, fault.NotFound, "lease")
	all, err := r.store().Cooldowns(r.ctx, u.ID.Key, "", 10)
	if err != nil || slices.ContainsFunc(all, func(c lease.Cooldown) bool { return c.Target == "example.org" && !c.BannedUntil.IsZero() }) {
		r.Errorf("a refused report left %+v, %v", all, err)
	}
	r.ok(lease.Report{Key: "a", Pool: "p", Outcome: lease.Failed, Use: g.ID, Account: "ann"})
}

func reportRest(r *run) {
	p := cools("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p)
	r.put(epoch, "a/1", "192.0.2.1", nil, "p")
	report := func(o lease.Outcome) *lease.Cooldown {
		return r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: o}).Rest
	}
	if c := report(lease.OK); c != nil {
		r.Errorf("a key that does not rest rests %+v", c)
	}
	picked := r.pick("p", "example.com")
	if c := report(lease.Failed); c == nil || !c.Until.Equal(picked.Use.Rested) || c.Strikes != 0 {
		r.Errorf("after a pick %+v", c)
	}
	if c := report(lease.Banned); c == nil || c.Until.Sub(picked.Now) < time.Minute || c.Strikes != 1 || c.Scope != lease.ScopeExitIP || c.ID != "192.0.2.1" {
		r.Errorf("after a ban %+v", c)
	}
	if c := r.ok(lease.Report{Key: "a", Pool: "p", Outcome: lease.OK}).Rest; c != nil {
		r.Errorf("a report about no target says %+v", c)
	}
	// Of two rests it tells the one that ends last.
	r.ok(lease.PutPool{Epoch: epoch, Pool: pool("q")})
	r.put(epoch, "a/1", "192.0.2.1", nil, "p", "q")
	for _, pool := range []string{"q", "p", "q"} {
		c := r.ok(lease.Report{Key: "a", Pool: pool, Target: "example.org", Outcome: lease.Banned}).Rest
		if want := map[string]lease.Scope{"q": lease.ScopeKey, "p": lease.ScopeExitIP}[pool]; c == nil || c.Scope != want {
			r.Errorf("after a ban through %s: %+v", pool, c)
		}
		r.advance(61 * time.Second)
		r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.org", Outcome: lease.OK})
	}
	r.ok(lease.Report{Key: "a", Pool: "q", Target: "example.net", Outcome: lease.Banned})
	r.advance(time.Second)
	if c := r.ok(lease.Report{Key: "a", Pool: "p", Target: "example.net", Outcome: lease.Banned}).Rest; c == nil || c.Scope != lease.ScopeExitIP {
		r.Errorf("the later one is %+v", c)
	}
}

func takeIfDone(r *run) {
	r.stock(pool("p"), "a", "b")
	quick := lease.Take{Pool: "p", Target: "example.com", Account: "ann", Quick: true, IfDone: true}
	report := lease.Report{Key: "a", Pool: "p", Target: "example.com", Outcome: lease.Banned}
	gone := report
	gone.Key = "none"
	all := r.do(gone, quick, report, quick, quick)
	r.fault("the report", all[0].Err, fault.NotFound, "key")
	r.fault("the take behind it", all[1].Err, fault.NotFound, "key")
	if all[3].Key == nil || all[3].Key.Name != "b" || all[4].Use == nil {
		r.Errorf("the replacement is %+v, and the next %+v", all[3].Key, all[4])
	}
}

func busyWhy(r *run) {
	p := cools("p")
	p.InFlight, p.TTL = 2, 10*time.Minute
	epoch := r.manage(p)
	names := []string{"banned", "busy", "cooling", "disabled", "held", "ill", "other", "resting"}
	for i, n := range names {
		k := lease.PutKey{Epoch: epoch, Key: n, UID: "1", Pools: []string{"p"}, ExitIP: fmt.Sprintf("192.0.2.%d", i), Attributes: map[string]string{"city": "Brno"}}
		switch n {
		case "other":
			k.Attributes = nil
		case "ill":
			k.Unfit = "two checks failed"
		}
		r.ok(k)
	}
	aim := func(city string) lease.Take {
		return lease.Take{Pool: "p", Target: "example.com", Account: "ann", Quick: true, Where: map[string]string{"city": city}}
	}
	only := func(name string) { // all others are put aside for a moment
		for _, n := range names {
			if n != name && n != "ill" {
				r.ok(lease.Disable{Key: n})
			}
		}
	}
	back := func() {
		for _, n := range names {
			r.ok(lease.Enable{Key: n})
		}
	}
	only("busy")
	r.pick("p", "example.com")
	r.advance(30 * time.Second)
	r.pick("p", "example.com")
	r.advance(30 * time.Second)
	back()
	only("resting")
	r.pick("p", "example.com")
	back()
	only("cooling")
	r.pick("p", "")
	back()
	only("held")
	r.take(ask("p", "holder"))
	back()
	r.ok(lease.Report{Key: "banned", Pool: "p", Target: "example.com", Outcome: lease.Banned})
	r.ok(lease.Disable{Key: "disabled"})
	res := r.ok(aim("Brno"))
	if res.Busy == nil {
		r.Fatalf("got %s", res.Key.Name)
	}
	want := []lease.Why{
		{Cause: lease.WhyBanned, Count: 1},
		{Cause: "cooling", Count: 1},
		{Cause: "disabled", Count: 1},
		{Cause: "held", Count: 1},
		{Cause: lease.WhyInUse, Count: 1},
		{Cause: lease.WhyOther, Count: 1},
		{Cause: lease.WhyResting, Count: 1},
		{Cause: "unhealthy", Count: 1},
	}
	r.same("why", want, res.Busy.Why)
	r.same("why nothing is like it", []lease.Why{{Cause: lease.WhyOther, Count: 8}}, r.ok(aim("Oslo")).Busy.Why)
	// What is set aside for who waits; who waits itself is not told.
	q := pool("q")
	epoch = r.stock(q, "only")
	g := r.take(ask("q", "one"))
	if b := r.busy(waits(ask("q", "two"))); b.Why != nil {
		r.Errorf("who waits was told %+v", b.Why)
	}
	r.release(g)
	r.same("why", []lease.Why{{Cause: lease.WhyPromised, Count: 1}}, r.none("q", "example.com").Why)
	r.same("why an empty pool has none", []lease.Why(nil), func() []lease.Why {
		r.ok(lease.PutPool{Epoch: epoch, Pool: pool("empty")})
		return r.none("empty", "example.com").Why
	}())
}

// comesAt comes back whenever it is told to, and returns how long after start it
// got something; 0 when it was told that time alone frees nothing. What it is told
// may be too early, and never too late.
func (r *run) comesAt(start time.Time, pool, target string) time.Duration {
	r.Helper()
	for range 8 {
		res := r.ok(lease.Take{Pool: pool, Target: target, Account: "ann", Quick: true})
		if res.Use != nil {
			return res.Now.Sub(start).Round(time.Second)
		}
		if res.Busy.Due.IsZero() {
			return 0
		}
		if !res.Busy.Due.After(res.Now) {
			r.Fatalf("told at %v to come at %v", res.Now, res.Busy.Due)
		}
		r.advance(res.Busy.Due.Sub(res.Now))
	}
	r.Fatal("it is sent away again and again")
	return 0
}

func busyDue(r *run) {
	for i, tc := range []struct {
		reason string
		off    []string
		want   time.Duration
	}{
		{"b rests after its use", nil, 40 * time.Second},
		{"a is banned for a minute", []string{"b"}, time.Minute},
		{"the lease of c ends, and the rest after it", []string{"a", "b"}, 10*time.Minute + 45*time.Second},
		{"of disabled keys none comes free", []string{"a", "b", "c"}, 0},
	} {
		name := fmt.Sprint("p", i)
		a, b, c := name+"a", name+"b", name+"c"
		r.stock(cools(name), a, b, c)
		start := r.pick(name, "example.com").Now
		r.ok(lease.Report{Key: a, Pool: name, Target: "example.com", Outcome: lease.Banned})
		r.advance(10 * time.Second)
		r.picks(name, "example.com", b)
		r.advance(5 * time.Second)
		long := aimed(ask(name, "holder"), "example.com")
		long.TTL = 10 * time.Minute
		r.takes(long, c)
		for _, k := range tc.off {
			r.ok(lease.Disable{Key: name + k})
		}
		if got := r.comesAt(start, name, "example.com"); got != tc.want {
			r.Errorf("%s: something came after %v, want %v", tc.reason, got, tc.want)
		}
	}
}

func readBans(r *run) {
	p := pool("p")
	p.Scope = lease.ScopeExitIP
	epoch := r.manage(p, pool("q"))
	r.put(epoch, "a/1", "192.0.2.1", nil, "p", "q")
	r.put(epoch, "b/1", "192.0.2.2", nil, "p", "q")
	ban := func(key, pool string, targets int) {
		for i := range targets {
			r.ok(lease.Report{Key: key, Pool: pool, Target: fmt.Sprintf("%d.example.com", i), Outcome: lease.Banned})
		}
	}
	ban("a", "p", 3)
	ban("b", "p", 2)
	ban("b", "q", 3)
	bans := func(targets, limit int) []lease.BanCount {
		all, err := r.store().Bans(r.ctx, targets, limit)
		if err != nil {
			r.Fatal(err)
		}
		return all
	}
	ip := func(ip string, n int) lease.BanCount {
		return lease.BanCount{Scope: lease.ScopeExitIP, ID: ip, Targets: n}
	}
	key := lease.BanCount{Scope: lease.ScopeKey, ID: "b", Targets: 3}
	r.same("bans", []lease.BanCount{ip("192.0.2.1", 3), key, ip("192.0.2.2", 2)}, bans(1, 10))
	r.same("bans of three", []lease.BanCount{ip("192.0.2.1", 3), key}, bans(3, 10))
	r.same("the first one", []lease.BanCount{ip("192.0.2.1", 3)}, bans(1, 1))
	r.same("none", []lease.BanCount(nil), bans(4, 10))
	r.pick("p", "other.example.com") // a use is no ban
	r.ok(lease.Lift{Key: "a", Target: "0.example.com"})
	r.same("after a lift", []lease.BanCount{key, ip("192.0.2.1", 2), ip("192.0.2.2", 2)}, bans(1, 10))
	r.advance(time.Minute)
	r.same("after their time", []lease.BanCount(nil), bans(1, 10))
}
