package waterfall_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/sqldb"
)

// bubble is the clock of a test under synctest: time passes when it is told to.
type bubble struct{}

func (bubble) set(at moment) {
	if d := time.Until(begin.Add(at)); d > 0 {
		time.Sleep(d)
	}
}

// The simulations are run over the store in memory. A database, which is what
// people have, chooses the same proxy for each request.
func TestDatabaseChoosesTheSame(t *testing.T) {
	tight := team()
	tight.Cooldown = 4 * time.Second // so that addresses are banned too
	cases := map[string]struct {
		reason string
		pool   lease.Pool
		load   float64
	}{
		"a quiet pool":        {"turns alone decide", team(), 0.3},
		"a pool under load":   {"rests, refusals and errors decide", team(), 1.2},
		"a pool with bans":    {"rests after bans decide", tight, 1},
		"a pool of machines":  {"each proxy rests by itself", withScope(lease.ScopeKey), 0.8},
		"a pool without rest": {"only the cap on uses is in the way", withCooldown(0), 0.8},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(11, tc.load, 2*time.Minute)
			want := choices(t, newRun(w, inMemory(t, tc.pool)))
			path := filepath.Join(t.TempDir(), "desk.db")
			synctest.Test(t, func(t *testing.T) {
				db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path})
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				got := choices(t, newRun(w, func(r *run) chooser { return newEngine(t, r, db.Leases(), bubble{}, tc.pool) }))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s; SQLite chose otherwise (-memory +sqlite), of %d requests:\n%.2000s", tc.reason, len(want), diff)
				}
			})
		})
	}
}

// choices are the proxies of all requests, -1 for none, and what became of them.
func choices(t *testing.T, r *run) (all []int) {
	t.Helper()
	r.trace = func(_, through int) { all = append(all, through) }
	got := r.simulate()
	if e := r.who.(*engine); e.broken != nil {
		t.Fatal(e.broken)
	}
	t.Logf("%d requests: %d good, %d banned, %d failed, %d refused", got.wanted, got.ended[good], got.ended[banned], got.ended[failed], got.ended[refused])
	return all
}

func withScope(s lease.Scope) lease.Pool {
	p := team()
	p.Scope = s
	return p
}

func withCooldown(d time.Duration) lease.Pool {
	p := team()
	p.Cooldown = d
	return p
}
