package token_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	core "fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/token"
)

var root = core.Account{Name: "root", Role: core.Admin}

// is compares class and code of an error.
func is(t *testing.T, what string, err error, class fault.Class, code string) {
	t.Helper()
	if fault.Of(err) != class || fault.CodeOf(err) != code {
		t.Errorf("%s: %v (class %q, code %q), want class %q and code %q", what, err, fault.Of(err), fault.CodeOf(err), class, code)
	}
}

func TestChangeAccount(t *testing.T) {
	d := newDesk(t, runner, root)
	s, _ := d.issue(t, "ci", time.Time{})
	is(t, "to a disabled viewer", d.ChangeAccount(t.Context(), core.Account{Name: "ci", Role: core.Viewer, Disabled: true}), "", "")
	_, err := d.Authenticate(t.Context(), s.Reveal())
	is(t, "its token", err, fault.Denied, "")
	is(t, "to an enabled one", d.ChangeAccount(t.Context(), core.Account{Name: "ci", Role: core.Viewer}), "", "")
	if p, err := d.Authenticate(t.Context(), s.Reveal()); err != nil || p.Role != core.Viewer {
		t.Errorf("its token: %+v, %v", p, err)
	}
	is(t, "unknown", d.ChangeAccount(t.Context(), core.Account{Name: "bob", Role: core.Viewer}), fault.NotFound, "account")
	is(t, "no role", d.ChangeAccount(t.Context(), core.Account{Name: "ci"}), fault.Invalid, "")
	is(t, "the last admin", d.ChangeAccount(t.Context(), core.Account{Name: "root", Role: core.Runner}), fault.Conflict, "last_admin")
}

func TestTokens(t *testing.T) {
	d := newDesk(t, runner, root)
	_, one := d.issue(t, "ci", now.Add(time.Hour))
	_, two := d.issue(t, "ci", time.Time{})
	d.issue(t, "root", time.Time{})
	if err := d.Revoke(t.Context(), two.ID); err != nil {
		t.Fatal(err)
	}
	got, err := d.Tokens(t.Context(), "ci", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	one.Hash, two.Hash, two.Revoked = nil, nil, true
	want := []core.Record{one, two}
	if one.ID > two.ID {
		want = []core.Record{two, one}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tokens without hashes (-want +got):\n%s", diff)
	}
	stored, _, err := d.store.TokenByID(t.Context(), one.ID)
	if err != nil || len(stored.Hash) != 32 {
		t.Errorf("the stored hash has %d bytes, %v", len(stored.Hash), err)
	}
	page, err := d.Tokens(t.Context(), "ci", want[0].ID, 1)
	if err != nil || len(page) != 1 || page[0].ID != want[1].ID {
		t.Errorf("the second page: %+v, %v", page, err)
	}
	_, err = d.Tokens(t.Context(), "bob", "", 10)
	is(t, "unknown account", err, fault.NotFound, "account")
	_, err = d.Tokens(t.Context(), "ci", "", 0)
	is(t, "no limit", err, fault.Invalid, "")
}

func TestIssueFor(t *testing.T) {
	d := newDesk(t, runner)
	for name, c := range map[string]struct {
		reason   string
		account  string
		lifetime time.Duration
		class    fault.Class
		code     string
	}{
		"for ever":  {"no lifetime is no end", "ci", 0, "", ""},
		"an hour":   {"counted by this clock", "ci", time.Hour, "", ""},
		"shortest":  {"the bound itself", "ci", token.MinLifetime, "", ""},
		"longest":   {"the bound itself", "ci", token.MaxLifetime, "", ""},
		"too short": {"most likely a wrong unit", "ci", token.MinLifetime - 1, fault.Invalid, ""},
		"negative":  {"it would be dead already", "ci", -time.Hour, fault.Invalid, ""},
		"too long":  {"a date that nobody means", "ci", token.MaxLifetime + 1, fault.Invalid, ""},
		"nobody's":  {"a token belongs to an account", "bob", time.Hour, fault.NotFound, "account"},
	} {
		s, r, err := d.IssueFor(t.Context(), c.account, c.lifetime)
		is(t, name+": "+c.reason, err, c.class, c.code)
		if c.class != "" {
			if s.Reveal() != "" || r.ID != "" {
				t.Errorf("%s: a token came with the error", name)
			}
			continue
		}
		want := time.Time{}
		if c.lifetime > 0 {
			want = now.Truncate(time.Microsecond).Add(c.lifetime)
		}
		if !r.Expires.Equal(want) {
			t.Errorf("%s: it ends %s, want %s", name, r.Expires, want)
		}
	}
}

// The generation moves with every change that may end the use of a token, also
// with one whose end nobody knows, and with nothing else.
func TestGeneration(t *testing.T) {
	d := newDesk(t, runner, root)
	s, r := d.issue(t, "ci", time.Time{})
	moves := func(what string, want bool, f func() error) {
		t.Helper()
		before := d.Generation()
		_ = f()
		if got := d.Generation() != before; got != want {
			t.Errorf("%s: moved %v, want %v", what, got, want)
		}
	}
	ctx := t.Context()
	moves("a look", false, func() error { _, err := d.Authenticate(ctx, s.Reveal()); return err })
	moves("another token", false, func() error { _, _, err := d.IssueFor(ctx, "ci", 0); return err })
	moves("another account", false, func() error { _, err := d.CreateAccount(ctx, "ann", core.Viewer); return err })
	moves("a list", false, func() error { _, err := d.Tokens(ctx, "ci", "", 1); return err })
	moves("a revocation", true, func() error { return d.Revoke(ctx, r.ID) })
	moves("a change", true, func() error { return d.ChangeAccount(ctx, runner) })
	d.store.Fail(fault.New(fault.Timeout, "no answer"))
	moves("a revocation that may have been made", true, func() error { return d.Revoke(ctx, r.ID) })
	moves("a change that may have been made", true, func() error { return d.ChangeAccount(ctx, runner) })
}

func TestRevokeUnknown(t *testing.T) {
	is(t, "unknown", newDesk(t).Revoke(t.Context(), "nothing"), fault.NotFound, "token")
}

// Without a directory nothing is guessed.
func TestWithoutDirectory(t *testing.T) {
	d := newDesk(t, runner)
	s := token.New(token.Options{Store: d.store})
	_, err := s.Tokens(t.Context(), "ci", "", 1)
	is(t, "Tokens", err, fault.Unsupported, "")
	is(t, "ChangeAccount", s.ChangeAccount(t.Context(), runner), fault.Unsupported, "")
}
