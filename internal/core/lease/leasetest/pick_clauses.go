package leasetest

import (
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// PickClauses returns the suite, by subject.
func PickClauses() []PickClause {
	return []PickClause{
		{"Next/told", "a crawler is told all about what it picked, and nobody holds it", pickTold},
		{"Next/rests", "what was picked rests for the target, and for no other", pickRests},
		{"Next/order", "keys are picked for a target in turn", pickOrder},
		{"Next/held", "a held key is never picked; a picked one may be taken", pickHeld},
		{"Next/like", "only keys with what was asked for are picked", pickLike},
		{"Next/codes", "what cannot be asked for is refused with its code, and nothing is picked", pickCodes},
		{"Next/once", "crawlers at once never get the same key for one target", pickOnce},
		{"Next/exit", "in a pool by exit IP one address rests, however many keys leave by it", pickExit},
		{"Next/flight", "uses in flight are capped, and a report ends one", pickFlight},
		{"Report/banned", "a ban rests for its target alone, longer each time, up to a bound", pickBanned},
		{"Report/error", "a failed use is said, and bans nothing", pickError},
		{"Report/replace", "another key comes with the answer to a report", pickReplace},
		{"Report/refused", "what is refused bans nothing and picks nothing", pickRefused},
		{"Report/lease", "a holder reports without giving its key back, and nobody else for it", pickLease},
		{"Rests/listed", "what a key rests for is listed, and lifted by an admin", pickListed},
	}
}

const shop, news = "shop.example.com", "news.example.net"

func pickTold(r *pickRun) {
	r.fleet(lease.Pool{Cooldown: time.Minute}, nil)
	r.put("a", "203.0.113.7", map[string]string{"tier": "eu", "protocol": "http"})
	p := r.ask(r.ann, Query{Pool: "crawl.eu", Target: shop, Holder: "job 1"})
	if p.Key != "crawl.a" || p.Pool != "crawl.eu" || p.Target != shop || p.ExitIP != "203.0.113.7" || p.Attributes["tier"] != "eu" {
		r.Errorf("the crawler is told %+v", p)
	}
	if id, err := lease.ParseID(p.Use); err != nil || id.Key != "crawl.a" {
		r.Errorf("the use is %q: %v", p.Use, err)
	}
	r.about("it is handed out again", p.Rested, time.Minute)
	v, err := r.h.As("bob").Pool(r.ctx, "crawl.eu")
	if err != nil || v.States["crawl.a"] != lease.Free {
		r.Errorf("the key is %v, %v", v.States, err)
	}
	if _, err := r.h.As("bob").Lease(r.ctx, p.Use); fault.Of(err) != fault.NotFound {
		r.Errorf("a use is no lease: %v", err)
	}
}

func pickRests(r *pickRun) {
	r.fleet(lease.Pool{Cooldown: time.Minute}, map[string]string{"a": ""})
	first := r.next(r.ann, shop)
	none := r.none(r.bob, Query{Pool: "crawl.eu", Target: shop}, lease.Why{Cause: lease.WhyResting, Count: 1})
	r.about("the next is due", none.RetryAfter, time.Minute)
	other := r.next(r.bob, news)
	if other.Use == first.Use {
		r.Errorf("two uses are called %s", other.Use)
	}
	r.report(r.ann, usage(first, lease.OK)) // the rest began with the use
	r.none(r.ann, Query{Pool: "crawl.eu", Target: shop}, lease.Why{Cause: lease.WhyResting, Count: 1})
	r.h.Advance(none.RetryAfter + time.Second)
	r.next(r.ann, shop)
}

func pickOrder(r *pickRun) {
	r.fleet(lease.Pool{}, map[string]string{"a": "", "b": "", "c": ""})
	seen := map[string]bool{}
	var order []string
	for range 3 {
		p := r.next(r.ann, shop)
		seen[p.Key] = true
		order = append(order, p.Key)
		r.h.Advance(time.Second)
	}
	if len(seen) != 3 {
		r.Errorf("three picks got %v", order)
	}
	for i := range 3 {
		if p := r.next(r.bob, shop); p.Key != order[i] {
			r.Errorf("pick %d of the second round got %s, want %v again", i+1, p.Key, order)
		}
		r.h.Advance(time.Second)
	}
}

func pickHeld(r *pickRun) {
	r.fleet(lease.Pool{Cooldown: time.Minute}, map[string]string{"a": ""})
	desk := r.h.As("ann")
	held, err := desk.Take(r.ctx, Ask{Pool: "crawl.eu", Target: shop})
	if err != nil {
		r.Fatal(err)
	}
	r.none(r.bob, Query{Pool: "crawl.eu", Target: news}, lease.Why{Cause: string(lease.Held), Count: 1})
	r.none(r.ann, Query{Pool: "crawl.eu"}, lease.Why{Cause: string(lease.Held), Count: 1})
	if _, err := desk.Release(r.ctx, held, Return{}); err != nil {
		r.Fatal(err)
	}
	r.next(r.bob, news)
	if _, err := desk.Take(r.ctx, Ask{Pool: "crawl.eu", Target: "docs.example.org"}); err != nil {
		r.Errorf("a picked key was not to be taken: %v", err)
	}
}

func pickLike(r *pickRun) {
	r.fleet(lease.Pool{}, nil)
	r.put("a", "", map[string]string{"tier": "eu", "protocol": "http"})
	r.put("b", "", map[string]string{"tier": "us", "protocol": "socks5"})
	for range 3 {
		if p := r.ask(r.ann, Query{Pool: "crawl.eu", Target: shop, Scheme: "socks5"}); p.Key != "crawl.b" {
			r.Errorf("by scheme: %s", p.Key)
		}
		if p := r.ask(r.ann, Query{Pool: "crawl.eu", Target: shop, Where: map[string]string{"tier": "eu"}}); p.Key != "crawl.a" {
			r.Errorf("by constraint: %s", p.Key)
		}
	}
	r.none(r.ann, Query{Pool: "crawl.eu", Target: shop, Where: map[string]string{"tier": "eu"}, Scheme: "socks5"}, lease.Why{Cause: lease.WhyOther, Count: 2})
}

func pickCodes(r *pickRun) {
	r.fleet(lease.Pool{Cooldown: time.Minute}, map[string]string{"a": ""})
	for name, tc := range map[string]struct {
		q     Query
		class fault.Class
		code  string
	}{
		"no pool":     {Query{Pool: "crawl.none", Target: shop}, fault.NotFound, "pool"},
		"no name":     {Query{Pool: "crawl/eu", Target: shop}, fault.Invalid, "name"},
		"holder":      {Query{Pool: "crawl.eu", Target: shop, Holder: "a\x1b[1m"}, fault.Invalid, "text"},
		"constraints": {Query{Pool: "crawl.eu", Target: shop, Where: map[string]string{"a\n": "b"}}, fault.Invalid, "constraints"},
	} {
		_, err := r.ann.Next(r.ctx, tc.q)
		r.refused(name, err, tc.class, tc.code)
	}
	if p := r.next(r.ann, shop); p.Key != "crawl.a" {
		r.Errorf("got %+v", p)
	}
}

func pickOnce(r *pickRun) {
	const crawlers, keys = 12, 8
	r.fleet(lease.Pool{Cooldown: time.Hour}, map[string]string{"a": "", "b": "", "c": "", "d": "", "e": "", "f": "", "g": "", "h": ""})
	var mu sync.Mutex
	got, none := map[string]int{}, 0
	var all sync.WaitGroup
	for n := range crawlers {
		p := r.ann
		if n%2 == 1 {
			p = r.bob
		}
		all.Go(func() {
			one, err := p.Next(r.ctx, Query{Pool: "crawl.eu", Target: shop})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				none++
				return
			}
			got[one.Key]++
		})
	}
	all.Wait()
	if len(got) != keys || none != crawlers-keys {
		r.Errorf("%d crawlers got %v, %d none; want each of %d keys once", crawlers, got, none, keys)
	}
}

func pickExit(r *pickRun) {
	r.fleet(lease.Pool{Cooldown: time.Minute, Scope: lease.ScopeExitIP}, map[string]string{"a": "203.0.113.7", "b": "203.0.113.7", "c": "203.0.113.8"})
	first, second := r.next(r.ann, shop), r.next(r.ann, shop)
	if first.ExitIP == second.ExitIP {
		r.Errorf("%s and %s leave by one address", first.Key, second.Key)
	}
	r.none(r.ann, Query{Pool: "crawl.eu", Target: shop}, lease.Why{Cause: lease.WhyResting, Count: 3})
	r.next(r.ann, news)
	shared := first
	if shared.ExitIP != "203.0.113.7" {
		shared = second
	}
	r.report(r.ann, usage(shared, lease.Banned))
	r.h.Advance(2 * time.Minute)
	if p := r.next(r.ann, shop); p.ExitIP != "203.0.113.8" {
		r.Errorf("picked %s by the banned address", p.Key)
	}
	for _, key := range []string{"crawl.a", "crawl.b"} {
		if rest := r.rests(key)[shop]; !rest.Banned || rest.Scope != lease.ScopeExitIP {
			r.Errorf("%s rests %+v", key, rest)
		}
	}
}

func pickFlight(r *pickRun) {
	r.fleet(lease.Pool{InFlight: 2, TTL: 5 * time.Minute}, map[string]string{"a": ""})
	first := r.next(r.ann, shop)
	r.next(r.bob, shop)
	q := Query{Pool: "crawl.eu", Target: shop}
	none := r.none(r.ann, q, lease.Why{Cause: lease.WhyInUse, Count: 1})
	r.about("a use ends by itself", none.RetryAfter, 5*time.Minute)
	r.next(r.ann, news) // it counts by target
	r.report(r.ann, usage(first, lease.OK))
	r.report(r.ann, usage(first, lease.OK)) // a use ends once
	r.next(r.ann, shop)
	r.none(r.ann, q, lease.Why{Cause: lease.WhyInUse, Count: 1})
	r.h.Advance(5 * time.Minute)
	r.next(r.ann, shop)
}

func pickBanned(r *pickRun) {
	r.fleet(lease.Pool{Ban: lease.Ban{Initial: 10 * time.Minute, Factor: 3, Max: time.Hour}}, map[string]string{"a": ""})
	q := Query{Pool: "crawl.eu", Target: shop}
	for i, want := range []time.Duration{10 * time.Minute, 30 * time.Minute, time.Hour, time.Hour} {
		told := r.report(r.ann, usage(r.next(r.ann, shop), lease.Banned))
		if told.Strikes != i+1 {
			r.Errorf("ban %d is strike %d", i+1, told.Strikes)
		}
		r.about("the rest", told.Rest, want)
		// Whoever used it when the ban came says the same.
		again := r.report(r.bob, Usage{Key: "crawl.a", Pool: "crawl.eu", Target: shop, Outcome: lease.Banned})
		if again.Strikes != i+1 || again.Rest > told.Rest {
			r.Errorf("ban %d said twice: %+v after %+v", i+1, again, told)
		}
		none := r.none(r.ann, q, lease.Why{Cause: lease.WhyBanned, Count: 1})
		r.about("the next is due", none.RetryAfter, want)
		r.next(r.ann, news)
		r.h.Advance(told.Rest + time.Second)
	}
	r.next(r.ann, shop)
}

func pickError(r *pickRun) {
	r.fleet(lease.Pool{}, map[string]string{"a": ""})
	told := r.report(r.ann, usage(r.next(r.ann, shop), lease.Failed))
	if told.Rest != 0 || told.Strikes != 0 {
		r.Errorf("a failed use: %+v", told)
	}
	r.next(r.ann, shop)
}

func pickReplace(r *pickRun) {
	r.fleet(lease.Pool{Cooldown: time.Minute}, map[string]string{"a": "", "b": ""})
	first := r.next(r.ann, shop)
	u := usage(first, lease.Banned)
	u.Replace = &Query{Pool: "crawl.eu", Target: shop}
	told := r.report(r.ann, u)
	if told.Replacement == nil || told.Replacement.Key == first.Key || told.Replacement.Use == "" || told.Without != "" {
		r.Fatalf("a ban report is answered %+v", told)
	}
	r.about("the ban", told.Rest, 10*time.Minute)
	second := *told.Replacement
	r.about("the replacement rests", second.Rested, time.Minute)
	u = usage(second, lease.Banned)
	u.Replace = &Query{Pool: "crawl.eu", Target: shop}
	if told = r.report(r.ann, u); told.Replacement != nil || told.Without != "none_free" || told.Strikes != 1 {
		r.Fatalf("with nothing left: %+v", told)
	}
	for _, key := range []string{first.Key, second.Key} {
		if !r.rests(key)[shop].Banned {
			r.Errorf("%s is not banned", key)
		}
	}
}

func pickRefused(r *pickRun) {
	r.fleet(lease.Pool{Cooldown: time.Hour}, map[string]string{"a": "", "b": ""})
	first := r.next(r.ann, shop)
	other := "crawl.a"
	if first.Key == other {
		other = "crawl.b"
	}
	replace := &Query{Pool: "crawl.eu", Target: shop}
	for name, tc := range map[string]struct {
		u     Usage
		class fault.Class
		code  string
	}{
		"a key that is gone":    {Usage{Key: "crawl.gone", Pool: "crawl.eu", Target: shop, Outcome: lease.Banned, Replace: replace}, fault.NotFound, "key"},
		"a pool that is gone":   {Usage{Key: first.Key, Pool: "crawl.none", Target: shop, Outcome: lease.Banned, Replace: replace}, fault.NotFound, "pool"},
		"a ban by nobody":       {Usage{Key: first.Key, Pool: "crawl.eu", Outcome: lease.Banned, Replace: replace}, fault.Invalid, "target"},
		"a replacement of none": {Usage{Key: first.Key, Pool: "crawl.eu", Target: shop, Outcome: lease.Banned, Replace: &Query{Pool: "crawl/eu"}}, fault.Invalid, "name"},
	} {
		_, err := r.ann.Report(r.ctx, tc.u)
		r.refused(name, err, tc.class, tc.code)
		for key, rests := range map[string]int{first.Key: 1, other: 0} {
			if got := r.rests(key); len(got) != rests || got[shop].Banned {
				r.Fatalf("%s: afterwards %s rests %+v", name, key, got)
			}
		}
	}
	if p := r.next(r.ann, shop); p.Key != other {
		r.Errorf("afterwards %s is picked", p.Key)
	}
}

func pickLease(r *pickRun) {
	r.fleet(lease.Pool{}, map[string]string{"a": "", "b": ""})
	held, err := r.h.As("ann").Take(r.ctx, Ask{Pool: "crawl.eu", Target: shop})
	if err != nil {
		r.Fatal(err)
	}
	u := Usage{Key: held.Key, Pool: "crawl.eu", Target: shop, Lease: held.ID, Outcome: lease.Banned, Replace: &Query{Pool: "crawl.eu", Target: shop}}
	_, err = r.bob.Report(r.ctx, u)
	r.refused("a lease of another", err, fault.Denied, "not_owner")
	if got := r.rests(held.Key); got[shop].Banned {
		r.Fatalf("another's report banned it: %+v", got)
	}
	told := r.report(r.ann, u)
	if told.Strikes != 1 || told.Replacement == nil || told.Replacement.Key == held.Key {
		r.Errorf("the holder's report: %+v", told)
	}
	if l, err := r.h.As("ann").Lease(r.ctx, held.ID); err != nil || l.Ended {
		r.Errorf("its lease ended: %+v, %v", l, err)
	}
	if _, err := r.h.As("ann").Release(r.ctx, held, Return{}); err != nil {
		r.Fatal(err)
	}
	// A late report is taken, of who held it.
	u = Usage{Key: held.Key, Pool: "crawl.eu", Target: news, Lease: held.ID, Outcome: lease.Banned}
	_, err = r.bob.Report(r.ctx, u)
	r.refused("an ended lease of another", err, fault.Denied, "not_owner")
	r.report(r.ann, u)
}

func pickListed(r *pickRun) {
	r.fleet(lease.Pool{Cooldown: time.Minute}, map[string]string{"a": ""})
	if got := r.rests("crawl.a"); len(got) != 0 {
		r.Errorf("a new key rests %+v", got)
	}
	r.next(r.ann, news)
	r.report(r.ann, usage(r.next(r.ann, shop), lease.Banned))
	got := r.rests("crawl.a")
	if rest := got[news]; len(got) != 2 || rest.Banned || rest.Strikes != 0 || rest.Scope != lease.ScopeKey {
		r.Errorf("it rests %+v", got)
	}
	r.about("after a use", got[news].Left, time.Minute)
	if rest := got[shop]; !rest.Banned || rest.Strikes != 1 {
		r.Errorf("it rests %+v", got)
	}
	r.about("after a ban", got[shop].Left, 10*time.Minute)
	_, err := r.ann.Rests(r.ctx, "crawl.none")
	r.refused("no such key", err, fault.NotFound, "key")
	r.refused("lift", r.root.Lift(r.ctx, "crawl.none", ""), fault.NotFound, "key")
	for range 2 { // again is harmless
		if err := r.root.Lift(r.ctx, "crawl.a", shop); err != nil {
			r.Fatal(err)
		}
		if got := r.rests("crawl.a"); len(got) != 1 || got[news].Left <= 0 {
			r.Errorf("with one lifted it rests %+v", got)
		}
	}
	r.next(r.ann, shop)
	if err := r.root.Lift(r.ctx, "crawl.a", ""); err != nil {
		r.Fatal(err)
	}
	if got := r.rests("crawl.a"); len(got) != 0 {
		r.Errorf("with all lifted it rests %+v", got)
	}
	r.next(r.ann, news)
}
