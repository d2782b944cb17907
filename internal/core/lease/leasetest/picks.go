package leasetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// Picker is what a crawler does on one account: it picks keys of managed pools
// that nobody holds, and tells how their uses went. Keys are named
// "<namespace>.<name>", and targets are host names in lower case. Its errors are
// those of a [Desk].
type Picker interface {
	Next(ctx context.Context, q Query) (Picked, error)
	Report(ctx context.Context, u Usage) (Told, error)
	// Rests returns what a key rests for, by target.
	Rests(ctx context.Context, key string) ([]Rest, error)
	// Lift ends rests of a key, for one target or with "" all; for admins.
	Lift(ctx context.Context, key, target string) error
}

// Query asks for a key to use once.
type Query struct {
	Pool, Target, Holder string
	Where                map[string]string
	// Scheme, when not "", must be the key's attribute protocol.
	Scheme string
}

// Picked is a key to use once.
type Picked struct {
	Use, Key, Pool, Target, ExitIP string
	Attributes                     map[string]string
	Rested                         time.Duration
}

// Usage is how a use went; Use and Lease name what it is about.
type Usage struct {
	Key, Pool, Target, Use, Lease string
	Outcome                       lease.Outcome
	Replace                       *Query
}

// Told is what a report did.
type Told struct {
	Rest        time.Duration
	Strikes     int
	Replacement *Picked
	// Without is the code of why there is no replacement.
	Without string
}

// Rest is what a key rests for.
type Rest struct {
	Target  string
	Banned  bool
	Left    time.Duration
	Strikes int
	Scope   lease.Scope
}

// PickHarness is a desk with a controller's keys, over a new and empty database.
type PickHarness struct {
	DeskHarness
	// Pick returns the desk as the crawler of an account sees it.
	Pick func(account string) Picker
	// Do is what a controller does.
	Do func(ctx context.Context, ops ...lease.Op) ([]lease.Result, error)
}

// PickClause is one promise to crawlers.
type PickClause struct {
	Name, Promise string
	check         func(r *pickRun)
}

// RunPicks checks every clause on a harness of its own; newHarness makes one and
// cleans up after itself.
func RunPicks(t *testing.T, newHarness func(t *testing.T) PickHarness) {
	t.Helper()
	for _, c := range PickClauses() {
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			h := newHarness(t)
			r := &pickRun{T: t, ctx: ctx, h: h, ann: h.Pick("ann"), bob: h.Pick("bob"), root: h.Pick("root")}
			defer func() {
				if t.Failed() {
					t.Logf("promised: %s", c.Promise)
				}
			}()
			r.epoch = r.done(lease.OpenEpoch{Owner: "suite"})[0].Epoch
			c.check(r)
		})
	}
}

// pickRun is one clause being checked.
type pickRun struct {
	*testing.T
	ctx            context.Context //nolint:containedctx // lives as long as the subtest
	h              PickHarness
	epoch          int64
	ann, bob, root Picker
}

// done does what must not fail.
func (r *pickRun) done(ops ...lease.Op) []lease.Result {
	r.Helper()
	results, err := r.h.Do(r.ctx, ops...)
	for _, res := range results {
		err = errors.Join(err, res.Err)
	}
	if err != nil {
		r.Fatal(err)
	}
	return results
}

// fleet is a pool "crawl.eu" with keys "crawl.<name>", whose exit IPs are given.
func (r *pickRun) fleet(p lease.Pool, exits map[string]string) {
	r.Helper()
	p.Name = "crawl.eu"
	r.done(lease.PutPool{Epoch: r.epoch, Pool: p})
	for name, exit := range exits {
		r.put(name, exit, nil)
	}
}

func (r *pickRun) put(name, exit string, attributes map[string]string) {
	r.Helper()
	r.done(lease.PutKey{Epoch: r.epoch, Key: "crawl." + name, UID: "u-" + name, Pools: []string{"crawl.eu"}, ExitIP: exit, Attributes: attributes})
}

func (r *pickRun) next(p Picker, target string) Picked {
	r.Helper()
	return r.ask(p, Query{Pool: "crawl.eu", Target: target})
}

func (r *pickRun) ask(p Picker, q Query) Picked {
	r.Helper()
	got, err := p.Next(r.ctx, q)
	if err != nil {
		r.Fatalf("Next(%+v): %v", q, err)
	}
	if got.Use == "" || got.Key == "" {
		r.Fatalf("Next(%+v): %+v lacks something", q, got)
	}
	return got
}

// none picks and expects that there is none, for these reasons.
func (r *pickRun) none(p Picker, q Query, why ...lease.Why) *NoneFree {
	r.Helper()
	got, err := p.Next(r.ctx, q)
	if err == nil {
		r.Fatalf("Next(%+v) got %s", q, got.Key)
	}
	none, ok := errors.AsType[*NoneFree](err)
	if !ok || fault.Of(none.Cause) != fault.Quota || fault.CodeOf(none.Cause) != "none_free" {
		r.Fatalf("Next(%+v): %v, want that none is free", q, err)
	}
	want := map[string]int{}
	for _, w := range why {
		want[w.Cause] = w.Count
	}
	if got := none.Why; fmt.Sprint(got) != fmt.Sprint(want) {
		r.Fatalf("Next(%+v): none for %v, want %v", q, got, want)
	}
	return none
}

func (r *pickRun) report(p Picker, u Usage) Told {
	r.Helper()
	told, err := p.Report(r.ctx, u)
	if err != nil {
		r.Fatalf("Report(%+v): %v", u, err)
	}
	return told
}

// usage is a report on a pick.
func usage(p Picked, o lease.Outcome) Usage {
	return Usage{Key: p.Key, Pool: p.Pool, Target: p.Target, Use: p.Use, Outcome: o}
}

func (r *pickRun) refused(what string, err error, class fault.Class, code string) {
	r.Helper()
	if err == nil || fault.Of(err) != class || fault.CodeOf(err) != code {
		r.Fatalf("%s: got %v (%s, %q), want %s and %q", what, err, fault.Of(err), fault.CodeOf(err), class, code)
	}
}

// rests reads what a key rests for, by target.
func (r *pickRun) rests(key string) map[string]Rest {
	r.Helper()
	all, err := r.ann.Rests(r.ctx, key)
	if err != nil {
		r.Fatalf("Rests(%s): %v", key, err)
	}
	by := map[string]Rest{}
	for _, one := range all {
		by[one.Target] = one
	}
	return by
}

// about fails when d is not the time given, less what a slow test took.
func (r *pickRun) about(what string, d, want time.Duration) {
	r.Helper()
	if d > want || d < want-30*time.Second || want > 0 && d <= 0 {
		r.Fatalf("%s: %s, want %s", what, d, want)
	}
}
