package token_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	core "fleetdesk/internal/core/token"
	"fleetdesk/internal/core/token/tokentest"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/sqldb"
)

// box is a delivery in memory.
type box struct {
	mu    sync.Mutex
	token token.Secret
	full  bool
	saves int
	fail  error
	racer func() // runs once between Load and Save, as another process would
}

func (b *box) Load(context.Context) (token.Secret, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.token, b.full, b.fail
}

func (b *box) Save(_ context.Context, s token.Secret) error {
	if r := b.racer; r != nil {
		b.racer = nil
		r()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full {
		return fault.New(fault.Conflict, "taken")
	}
	b.token, b.full = s, true
	b.saves++
	return nil
}

// killed is what a step panics with where the process would have been killed.
type killed struct{ at string }

// killer dies at the named point of a store or a delivery.
type killer struct {
	core.Store
	token.Delivery
	at string
}

func (k *killer) point(at string) {
	if k.at == at {
		panic(killed{at})
	}
}

func (k *killer) Accounts(ctx context.Context, after string, limit int) ([]core.Account, error) {
	defer k.point("looked for admins")
	return k.Store.Accounts(ctx, after, limit)
}

func (k *killer) Bootstrap(ctx context.Context, a core.Account, r core.Record) (bool, error) {
	k.point("before storing")
	defer k.point("stored")
	return k.Store.Bootstrap(ctx, a, r)
}

func (k *killer) Load(ctx context.Context) (token.Secret, bool, error) {
	defer k.point("loaded")
	return k.Delivery.Load(ctx)
}

func (k *killer) Save(ctx context.Context, s token.Secret) error {
	k.point("before delivering")
	defer k.point("delivered")
	return k.Delivery.Save(ctx, s)
}

// run calls EnsureFirstAdmin and reports whether it was killed.
func (k *killer) run(t *testing.T) (died bool) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(killed); !ok {
				panic(r)
			}
			died = true
		}
	}()
	if _, err := token.New(token.Options{Store: k}).EnsureFirstAdmin(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	return false
}

// Killed at any point, and then at any point again, the next start ends with one
// admin whose token lies at the delivery's place and opens the door.
func TestFirstAdminSurvivesKills(t *testing.T) {
	points := []string{"looked for admins", "loaded", "before delivering", "delivered", "before storing", "stored"}
	for _, first := range points {
		for _, second := range points {
			t.Run(first+", "+second, func(t *testing.T) {
				dir := t.TempDir()
				db, err := sqldb.Open(t.Context(), sqldb.Options{Path: filepath.Join(dir, "desk.db")})
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				k := &killer{Store: db.Tokens(), Delivery: token.FileDelivery(filepath.Join(dir, "admin-token"))}
				k.at = first
				if !k.run(t) {
					t.Fatalf("never came to %q: the test shows nothing", first)
				}
				k.at = second
				k.run(t)
				k.at = ""
				k.run(t)
				checkFirstAdmin(t, k.Store, k.Delivery)
			})
		}
	}
}

// checkFirstAdmin sees whether a person can get in.
func checkFirstAdmin(t *testing.T, store core.Store, d token.Delivery) {
	t.Helper()
	all, err := store.Accounts(t.Context(), "", 10)
	if err != nil || len(all) != 1 {
		t.Fatalf("accounts %v, error %v: want one", all, err)
	}
	s, found, err := d.Load(t.Context())
	if err != nil || !found {
		t.Fatalf("no token was delivered: found %v, error %v", found, err)
	}
	p, err := token.New(token.Options{Store: store}).Authenticate(t.Context(), s.Reveal())
	if err != nil {
		t.Fatalf("the delivered token opens nothing: %v", err)
	}
	if p.Role != core.Admin || p.Account != token.FirstAdmin {
		t.Errorf("the delivered token is %+v, want the first admin's", p)
	}
}

func TestFirstAdminTwice(t *testing.T) {
	d, b := newDesk(t), &box{}
	for n, want := range []bool{true, false, false} {
		created, err := d.EnsureFirstAdmin(t.Context(), b)
		if err != nil || created != want {
			t.Fatalf("call %d: created %v, %v; want %v", n, created, err, want)
		}
	}
	checkFirstAdmin(t, d.store, b)
	if b.saves != 1 {
		t.Errorf("delivered %d times", b.saves)
	}
}

// With an admin there, what lies at the delivery's place is nobody's business.
func TestFirstAdminLeavesStaleDelivery(t *testing.T) {
	d := newDesk(t, core.Account{Name: "ann", Role: core.Admin})
	stale := token.Format("aaaaaaaaaaaa", [32]byte{1})
	for name, b := range map[string]*box{
		"stale": {token: stale, full: true},
		"empty": {},
		"sick":  {fail: errors.New("not asked")},
	} {
		before := b.token
		created, err := d.EnsureFirstAdmin(t.Context(), b)
		if err != nil || created || !b.token.Equal(before) || b.saves > 0 {
			t.Errorf("%s: created %v, error %v, saves %d; want nothing done", name, created, err, b.saves)
		}
	}
}

func TestFirstAdminFailures(t *testing.T) {
	sick := errors.New("disk on fire")
	cases := map[string]struct {
		reason  string
		prepare func(*testing.T, *desk, *box)
		class   fault.Class
		says    string
	}{
		"no token there": {
			"somebody's file is neither adopted nor replaced",
			func(_ *testing.T, _ *desk, b *box) { b.token, b.full = token.NewSecret("hello"), true },
			fault.Conflict, "move it away",
		},
		"delivery fails": {
			"an admin whose token nobody has would lock everybody out",
			func(_ *testing.T, _ *desk, b *box) { b.fail = fault.Wrap(fault.Permanent, sick) },
			fault.Permanent, "disk on fire",
		},
		"store fails": {
			"without the store nothing is known",
			func(_ *testing.T, d *desk, _ *box) { d.store.Fail(fault.Wrap(fault.Unavailable, sick)) },
			fault.Unavailable, "disk on fire",
		},
		"name taken": {
			"a viewer is not made admin behind people's backs",
			func(t *testing.T, d *desk, _ *box) {
				if _, err := d.CreateAccount(t.Context(), token.FirstAdmin, core.Viewer); err != nil {
					t.Fatal(err)
				}
			},
			fault.Conflict, "another role",
		},
		"another's token": {
			"adopting a viewer's token would make that viewer admin",
			func(t *testing.T, d *desk, b *box) {
				if _, err := d.CreateAccount(t.Context(), "ann", core.Viewer); err != nil {
					t.Fatal(err)
				}
				b.token, _ = d.issue(t, "ann", time.Time{})
				b.full = true
			},
			fault.Conflict, "another account's",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d, b := newDesk(t), &box{}
			tc.prepare(t, d, b)
			created, err := d.EnsureFirstAdmin(t.Context(), b)
			if created || fault.Of(err) != tc.class || !strings.Contains(fmt.Sprint(err), tc.says) {
				t.Errorf("created %v, %v (%s), want %s saying %q: %s", created, err, fault.Of(err), tc.class, tc.says, tc.reason)
			}
			d.store.Fail(nil)
			all, err := d.store.Accounts(t.Context(), "", 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range all {
				if a.Role == core.Admin {
					t.Errorf("an admin was made: %+v", a)
				}
			}
		})
	}
}

// Who finds the place filled at the last moment takes what lies there.
func TestFirstAdminAdoptsTheFaster(t *testing.T) {
	d, b := newDesk(t), &box{}
	faster := token.Format("bbbbbbbbbbbb", [32]byte{7})
	b.racer = func() { b.token, b.full = faster, true }
	created, err := d.EnsureFirstAdmin(t.Context(), b)
	if err != nil || !created || !b.token.Equal(faster) {
		t.Fatalf("created %v, %v", created, err)
	}
	checkFirstAdmin(t, d.store, b)
}

// fickle is always empty when one looks and always taken when one saves.
type fickle struct{ tries int }

func (*fickle) Load(context.Context) (token.Secret, bool, error) { return token.Secret{}, false, nil }

func (f *fickle) Save(context.Context, token.Secret) error {
	f.tries++
	return fault.New(fault.Conflict, "taken")
}

func TestFirstAdminGivesUp(t *testing.T) {
	f := &fickle{}
	if _, err := newDesk(t).EnsureFirstAdmin(t.Context(), f); fault.Of(err) != fault.Conflict || f.tries > 10 {
		t.Errorf("got %v (%s) after %d tries, want Conflict soon", err, fault.Of(err), f.tries)
	}
}

// Many processes start at once, with one delivery: one token, and it works.
func TestFirstAdminRace(t *testing.T) {
	store := tokentest.NewMemory()
	path := filepath.Join(t.TempDir(), "admin-token")
	const starts = 16
	type result struct {
		created bool
		err     error
	}
	results := make(chan result, starts)
	for range starts {
		go func() {
			created, err := token.New(token.Options{Store: store}).EnsureFirstAdmin(t.Context(), token.FileDelivery(path))
			results <- result{created, err}
		}()
	}
	created := 0
	for range starts {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		if r.created {
			created++
		}
	}
	if created != 1 {
		t.Errorf("%d starts made the first admin, want 1", created)
	}
	checkFirstAdmin(t, store, token.FileDelivery(path))
}

// More accounts than one page, none an admin: all are looked at.
func TestFirstAdminLooksAtAllPages(t *testing.T) {
	d := newDesk(t)
	for n := range 450 {
		if _, err := d.CreateAccount(t.Context(), fmt.Sprintf("n%03d", n), core.Viewer); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.CreateAccount(t.Context(), "z-last", core.Admin); err != nil {
		t.Fatal(err)
	}
	b := &box{}
	if created, err := d.EnsureFirstAdmin(t.Context(), b); created || err != nil || b.full {
		t.Errorf("created %v, %v, delivered %v: the admin on the last page was not seen", created, err, b.full)
	}
}
