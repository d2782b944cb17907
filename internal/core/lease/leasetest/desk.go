package leasetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// Desk is what hands leases out to one account: the service itself, the API
// through its client, or a broker. Its errors have the classes and codes of the
// rules, however far they travelled.
type Desk interface {
	// Take takes a key. An error that no key is free is a [NoneFree].
	Take(ctx context.Context, a Ask) (Held, error)
	// Renew extends a lease and Release gives it back; of h only ID and Secret
	// count.
	Renew(ctx context.Context, h Held, r Renewal) (Held, error)
	Release(ctx context.Context, h Held, r Return) (Returned, error)
	// Lease looks at one by its public id.
	Lease(ctx context.Context, id string) (Held, error)
	// Pool looks at a pool.
	Pool(ctx context.Context, name string) (View, error)
}

// Admin is what an admin does.
type Admin interface {
	// Publish sets a fixed pool and its list and returns the new revision. With
	// revision not nil it must be the present one.
	Publish(ctx context.Context, p lease.Pool, items []string, revision *int64) (int64, error)
	Disable(ctx context.Context, pool, key, reason string) error
	Enable(ctx context.Context, pool, key string) error
	// Force ends the lease of a key.
	Force(ctx context.Context, pool, key string) error
}

// Changer is what begins and ends a person's change of a pool.
type Changer interface {
	// BeginChange returns the change's id.
	BeginChange(ctx context.Context, pool, verb string, keys []string, ttl time.Duration) (string, error)
	RenewChange(ctx context.Context, pool, id string, ttl time.Duration) error
	EndChange(ctx context.Context, pool, id string) error
}

// Ask is a request for a key. TTL and Wait are whole seconds.
type Ask struct {
	Pool, Holder, Target string
	Where                map[string]string
	TTL, Wait            time.Duration
	IdempotencyKey       string
	RunsHooks            bool
}

// Held is a lease as its holder, or who looks at it, knows it.
type Held struct {
	ID, Pool, Key, Target, Account, Holder string
	// Secret is "" when it was only looked at.
	Secret    string
	Fence     int64
	TTL, Left time.Duration
	// Resetting and NeedsReset are what the holder is told of the reset.
	Resetting, NeedsReset bool
	// Ended is set when it runs no more.
	Ended bool
	// Replayed is set when the request was granted before.
	Replayed bool
}

// Renewal says how a lease goes on.
type Renewal struct {
	TTL   time.Duration
	Fence int64
	Reset lease.Reset
}

// Return says how the use of a key ended.
type Return struct {
	Outcome        lease.Outcome
	Reason, Target string
	Reset          lease.Reset
}

// Returned is what a release did.
type Returned struct{ Disabled, Capped bool }

// View is a pool as it is shown.
type View struct {
	Revision int64
	// States are its keys'.
	States map[string]lease.State
	// Waiting is how many live requests wait.
	Waiting int
	// Change says who changes it; "" for nobody.
	Change string
}

// NoneFree says that there was no key, in time.
type NoneFree struct {
	// Cause is the error as it came.
	Cause error
	// Holders hold the keys that come free next: their accounts by key.
	Holders map[string]string
	// RetryAfter is when the next key is due; 0 when it is not known.
	RetryAfter time.Duration
	// Position is the place that is kept; 0 for none.
	Position int
	// Why counts keys by what keeps them from the request.
	Why map[string]int
}

func (e *NoneFree) Error() string { return e.Cause.Error() }
func (e *NoneFree) Unwrap() error { return e.Cause }

// DeskHarness is a desk to be examined, over a new and empty database.
type DeskHarness struct {
	// As returns the desk as an account sees it. The suite's accounts are ann and
	// bob, who may take keys, and root, who may do everything.
	As func(account string) Desk
	// Admin and Change are the same for admins and for changes.
	Admin  func(account string) Admin
	Change func(account string) Changer
	// Advance moves the database's clock. Who waits need not notice before
	// something else happens.
	Advance func(d time.Duration)
}

// DeskClause is one promise of a desk.
type DeskClause struct {
	Name, Promise string
	check         func(r *deskRun)
}

// RunDesk checks every clause on a harness of its own; newHarness makes one and
// cleans up after itself.
func RunDesk(t *testing.T, newHarness func(t *testing.T) DeskHarness) {
	t.Helper()
	for _, c := range DeskClauses() {
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			h := newHarness(t)
			r := &deskRun{T: t, ctx: ctx, h: h, ann: h.As("ann"), bob: h.As("bob"), root: h.Admin("root")}
			defer func() {
				if t.Failed() {
					t.Logf("promised: %s", c.Promise)
				}
			}()
			c.check(r)
		})
	}
}

// deskRun is one clause being checked.
type deskRun struct {
	*testing.T
	ctx      context.Context //nolint:containedctx // lives as long as the subtest
	h        DeskHarness
	ann, bob Desk
	root     Admin
}

func (r *deskRun) publish(p lease.Pool, items ...string) {
	r.Helper()
	if _, err := r.root.Publish(r.ctx, p, items, nil); err != nil {
		r.Fatalf("Publish(%s): %v", p.Name, err)
	}
}

func (r *deskRun) take(d Desk, a Ask) Held {
	r.Helper()
	h, err := d.Take(r.ctx, a)
	if err != nil {
		r.Fatalf("Take(%+v): %v", a, err)
	}
	if h.ID == "" || h.Secret == "" || h.Key == "" || h.Fence < 1 {
		r.Fatalf("Take(%+v): %+v lacks something", a, h)
	}
	return h
}

// noneFree takes and expects that there is no key.
func (r *deskRun) noneFree(d Desk, a Ask) *NoneFree {
	r.Helper()
	h, err := d.Take(r.ctx, a)
	if err == nil {
		r.Fatalf("Take(%+v) got %s", a, h.Key)
	}
	none, ok := errors.AsType[*NoneFree](err)
	if !ok {
		r.Fatalf("Take(%+v): %v, want that none is free", a, err)
	}
	r.fault("Take", none.Cause, fault.Quota, "none_free")
	return none
}

func (r *deskRun) release(d Desk, h Held, how Return) Returned {
	r.Helper()
	res, err := d.Release(r.ctx, h, how)
	if err != nil {
		r.Fatalf("Release(%s): %v", h.ID, err)
	}
	return res
}

func (r *deskRun) fault(what string, err error, class fault.Class, code string) {
	r.Helper()
	if err == nil {
		r.Fatalf("%s was not refused, want %s %s", what, class, code)
	}
	if fault.Of(err) != class || fault.CodeOf(err) != code {
		r.Fatalf("%s: class %s and code %q, want %s and %q: %v", what, fault.Of(err), fault.CodeOf(err), class, code, err)
	}
}

func (r *deskRun) view(pool string) View {
	r.Helper()
	v, err := r.ann.Pool(r.ctx, pool)
	if err != nil {
		r.Fatalf("Pool(%s): %v", pool, err)
	}
	return v
}

func (r *deskRun) state(pool, key string, want lease.State) {
	r.Helper()
	if got := r.view(pool).States[key]; got != want {
		r.Fatalf("key %s is %q, want %q", key, got, want)
	}
}

// until waits for something that others do, looking again and again.
func (r *deskRun) until(what string, is func() bool) {
	r.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-r.ctx.Done():
			r.Fatalf("it never came to pass: %s", what)
		case <-tick.C:
		}
	}
}

// waiting waits until that many requests wait.
func (r *deskRun) waiting(pool string, n int) {
	r.Helper()
	r.until("requests wait", func() bool { return r.view(pool).Waiting == n })
}

// taken is a take in the background.
type taken struct {
	over chan struct{} // closed at its end
	held Held
	err  error
}

// start takes in the background.
func (r *deskRun) start(ctx context.Context, d Desk, a Ask) *taken {
	t := &taken{over: make(chan struct{})}
	go func() {
		defer close(t.over)
		t.held, t.err = d.Take(ctx, a)
	}()
	r.Cleanup(func() { // it ends before the harness does
		select {
		case <-t.over:
		case <-time.After(time.Minute):
			r.Error("a take never ended")
		}
	})
	return t
}

// ended waits for a take in the background.
func (r *deskRun) ended(t *taken) *taken {
	r.Helper()
	select {
	case <-t.over:
	case <-r.ctx.Done():
		r.Fatal("a take never ended")
	}
	return t
}
