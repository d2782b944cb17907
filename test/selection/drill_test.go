package selection_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
)

// seen is what a crawler saw of one use, by the database's clock.
type seen struct {
	address, target string
	use             lease.ID
	at, rested      time.Time
	// over is when its report was written, banned whether it told of a ban.
	over   time.Time
	banned bool
}

// Two servers on one database, and crawlers that all ask at once for few targets:
// nobody meets an address again before it has rested, or while its ban lasts, and
// no more uses are in flight than the pool allows.
func TestNoAddressBeforeItHasRested(t *testing.T) {
	cases := map[string]struct {
		reason string
		pool   lease.Pool
	}{
		"rests": {
			"each use starts a rest of the address",
			lease.Pool{Scope: lease.ScopeExitIP, Cooldown: 50 * time.Millisecond},
		},
		"in flight": {
			"without a rest the cap alone is in the way",
			lease.Pool{Scope: lease.ScopeExitIP, InFlight: 2},
		},
		"machines": {
			"with the scope key each machine rests by itself",
			lease.Pool{Scope: lease.ScopeKey, Cooldown: 50 * time.Millisecond, InFlight: 1},
		},
	}
	for _, kind := range []string{"sqlite", "postgres"} {
		for name, tc := range cases {
			t.Run(kind+"/"+name, func(t *testing.T) {
				tc.pool.TTL, tc.pool.NewShare = time.Minute, 10
				tc.pool.Ban = lease.Ban{Initial: 300 * time.Millisecond, Factor: 2, Max: time.Second}
				all := crawl(t, kind, tc.pool)
				if len(all) < 1000 {
					t.Fatalf("only %d picks: nothing was tried", len(all))
				}
				for _, wrong := range check(all, tc.pool) {
					t.Errorf("%s: %s", tc.reason, wrong)
				}
			})
		}
	}
}

const (
	crawlers = 16
	tries    = 150
)

// crawl has crawlers pick and report at two servers, and returns what they saw.
func crawl(t *testing.T, kind string, p lease.Pool) []seen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	place := newPlace(t, kind)
	a, err := openWorld(ctx, place)
	if err != nil {
		t.Fatal(err)
	}
	defer a.stop()
	a.proxies, a.targets = 60, 3
	if err := a.fill(ctx, p); err != nil {
		t.Fatal(err)
	}
	b, err := openWorld(ctx, place)
	if err != nil {
		t.Fatal(err)
	}
	defer b.stop()
	var (
		mu    sync.Mutex
		all   []seen
		group sync.WaitGroup
	)
	for c := range crawlers {
		w := []*world{a, b}[c%2]
		group.Go(func() {
			for n := range tries {
				target := target((c + n) % a.targets)
				// As [service.Service.Next] does it; here the database's time is wanted.
				results, err := w.Do(ctx, lease.Take{Quick: true, Pool: pool, Target: target, Account: account})
				if err == nil {
					err = results[0].Err
				}
				if err != nil {
					t.Errorf("crawler %d: %v", c, err)
					return
				}
				got := results[0]
				if got.Use == nil {
					continue // none now
				}
				s := seen{address: got.Key.Name, target: target, use: got.Use.ID, at: got.Now, rested: got.Use.Rested}
				if p.Scope == lease.ScopeExitIP {
					s.address = got.Key.ExitIP
				}
				if err := w.tell(ctx, &s, got.Key.Name, n); err != nil {
					t.Errorf("crawler %d: %v", c, err)
					return
				}
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return all
}

// tell reports a use; one in ten was banned.
func (w *world) tell(ctx context.Context, s *seen, key string, n int) error {
	r := lease.Report{Key: key, Pool: pool, Target: s.target, Outcome: lease.OK, Use: s.use, Account: account}
	if n%10 == 3 {
		r.Outcome = lease.Banned
	}
	results, err := w.Do(ctx, r)
	if err != nil {
		return err
	}
	if results[0].Err != nil {
		return results[0].Err
	}
	s.over, s.banned = results[0].Now, r.Outcome == lease.Banned
	return nil
}

// check finds what must not be.
func check(all []seen, p lease.Pool) (wrong []string) {
	slices.SortFunc(all, func(a, b seen) int {
		return cmp.Or(cmp.Compare(a.address, b.address), cmp.Compare(a.target, b.target), a.at.Compare(b.at), cmp.Compare(a.use.Fence, b.use.Fence))
	})
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(s seen) bool { return s.address != all[0].address || s.target != all[0].target })
		if n < 0 {
			n = len(all)
		}
		wrong = append(wrong, checkUses(all[:n], p)...)
		all = all[n:]
	}
	return wrong
}

// checkUses looks at the uses of one address for one target, in order.
func checkUses(uses []seen, p lease.Pool) (wrong []string) {
	bad := func(s seen, format string, args ...any) {
		wrong = append(wrong, s.address+" for "+s.target+": "+fmt.Sprintf(format, args...))
	}
	bans := bansOf(uses, p.Ban)
	for i, s := range uses {
		if i > 0 && (s.at.Before(uses[i-1].rested) || s.at.Before(uses[i-1].at.Add(p.Cooldown))) {
			bad(s, "handed out %s after its last use, and was to rest for %s", s.at.Sub(uses[i-1].at), uses[i-1].rested.Sub(uses[i-1].at))
		}
		flying := 1
		for _, before := range uses[:i] {
			if before.over.After(s.at) {
				flying++
			}
		}
		if p.InFlight > 0 && flying > p.InFlight {
			bad(s, "%d uses are in flight, want at most %d", flying, p.InFlight)
		}
		for _, ban := range bans {
			// Of what has the same time, nothing tells which came first.
			if s.at.After(ban[0]) && s.at.Before(ban[1]) {
				bad(s, "handed out %s after a ban of %s", s.at.Sub(ban[0]), ban[1].Sub(ban[0]))
			}
		}
	}
	return wrong
}

// bansOf are the times of the bans that were reported: reports during a ban are
// about the same one.
func bansOf(uses []seen, rule lease.Ban) (bans [][2]time.Time) {
	var reports []time.Time
	for _, s := range uses {
		if s.banned {
			reports = append(reports, s.over)
		}
	}
	slices.SortFunc(reports, time.Time.Compare)
	var until time.Time
	strikes := 0
	for _, at := range reports {
		if at.Before(until) {
			continue
		}
		if at.After(until.Add(rule.Max)) {
			strikes = 0
		}
		strikes++
		until = at.Add(rule.Rest(strikes))
		bans = append(bans, [2]time.Time{at, until})
	}
	return bans
}
