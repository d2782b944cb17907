package waterfall_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

// team is the pool as a team sets it up that knows what the strictest site
// allows: one request in ten seconds from an address, and two open at once.
func team() lease.Pool {
	return lease.Pool{
		Name: "crawl.all", Kind: lease.Managed, Scope: lease.ScopeExitIP, Cooldown: window / 6, InFlight: atOnce,
		TTL: patience, NewShare: 10, Ban: lease.DefaultBan(),
	}
}

// clock is where a store has its time from.
type clock interface{ set(at moment) }

// engine chooses by the rules of this project. The store is asked as the desk
// asks it, one transaction for each request; it hears ok, banned and error, as a
// crawler reports them, and nothing of what else is known here.
type engine struct {
	*run
	store lease.Store
	clock clock
	pool  string
	swept moment
	// broken is the first thing that should not be.
	broken error
}

// newEngine fills a store with the proxies of the run.
func newEngine(t testing.TB, r *run, store lease.Store, c clock, p lease.Pool) *engine {
	t.Helper()
	e := &engine{run: r, store: store, clock: c, pool: p.Name}
	ops := []lease.Op{lease.OpenEpoch{Owner: "simulator"}, lease.PutPool{Epoch: 1, Pool: p}}
	for i := range r.proxies {
		ops = append(ops, lease.PutKey{
			Epoch: 1, Key: r.proxies[i].name, UID: r.proxies[i].name, Pools: []string{p.Name},
			ExitIP: fmt.Sprintf("192.0.2.%d", r.proxies[i].address+1),
		})
	}
	e.do(ops...)
	if e.broken != nil {
		t.Fatal(e.broken)
	}
	return e
}

func (e *engine) do(ops ...lease.Op) []lease.Result {
	results, err := e.store.Do(context.Background(), ops)
	if err == nil {
		for i := range results {
			if results[i].Err != nil {
				err = results[i].Err
			}
		}
	}
	if err != nil {
		if e.broken == nil {
			e.broken = err
		}
		return make([]lease.Result, len(ops))
	}
	return results
}

func (e *engine) choose(now moment, n, site int) (int, any, bool) {
	e.clock.set(now)
	if now-e.swept >= time.Minute { // as the desk does
		e.do(lease.Sweep{Limit: 1000})
		e.swept = now
	}
	res := e.do(lease.Take{
		Ticket: fmt.Sprint("request-", n), Pool: e.pool, Target: e.sites[site].host, Account: "crawler", Quick: true,
	})[0]
	if res.Use == nil {
		if res.Busy == nil && e.broken == nil {
			e.broken = fault.Errorf(fault.Permanent, "request %d got neither a proxy nor a reason", n)
		}
		return 0, nil, false
	}
	var through int
	if _, err := fmt.Sscanf(res.Key.Name, "crawl.proxy-%d", &through); err != nil && e.broken == nil {
		e.broken = err
	}
	return through, res.Use.ID, true
}

func (e *engine) hear(now moment, through, site int, ticket any, o outcome) {
	e.clock.set(now)
	e.do(lease.Report{
		Key: e.proxies[through].name, Pool: e.pool, Target: e.sites[site].host, Use: ticket.(lease.ID), Account: "crawler",
		Outcome: [...]lease.Outcome{good: lease.OK, banned: lease.Banned, failed: lease.Failed}[o],
	})
}

// begin is when simulations begin, by the stores' clocks.
var begin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// hands is a clock that is set by hand.
type hands struct{ at time.Time }

func (h *hands) set(at moment) { h.at = begin.Add(at) }

// inMemory returns how to choose by the engine over the store in memory.
func inMemory(t testing.TB, p lease.Pool) func(*run) chooser {
	return func(r *run) chooser {
		h := &hands{begin}
		return newEngine(t, r, leasetest.NewMemory(leasetest.Options{Now: func() time.Time { return h.at }}), h, p)
	}
}
