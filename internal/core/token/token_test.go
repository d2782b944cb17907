package token_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// roles in their order, least first; "" stands for any role nobody defined.
var roles = []token.Role{token.Viewer, token.Runner, token.Admin}

func TestRoleAllows(t *testing.T) {
	for i, have := range roles {
		for j, need := range roles {
			if got, want := have.Allows(need), i >= j; got != want {
				t.Errorf("%s.Allows(%s) = %v, want %v", have, need, got, want)
			}
		}
		for _, unknown := range []token.Role{"", "root", "Admin", "admin "} {
			if unknown.Valid() {
				t.Errorf("%q is valid", unknown)
			}
			if have.Allows(unknown) {
				t.Errorf("%s.Allows(%q): an unknown need was granted", have, unknown)
			}
			if unknown.Allows(have) {
				t.Errorf("%q.Allows(%s): an unknown role was granted something", unknown, have)
			}
			if unknown.Allows(unknown) {
				t.Errorf("%q.Allows(itself): unknown roles grant nothing", unknown)
			}
		}
	}
}

// The roles form one chain: whoever may do the more may do the less.
func TestRoleOrderIsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		role := rapid.OneOf(rapid.SampledFrom(roles), rapid.Map(rapid.String(), func(s string) token.Role { return token.Role(s) }))
		a, b, c := role.Draw(t, "a"), role.Draw(t, "b"), role.Draw(t, "c")
		if a.Allows(a) != a.Valid() {
			t.Fatalf("%q allows itself: %v, valid: %v", a, a.Allows(a), a.Valid())
		}
		if a.Allows(b) && b.Allows(c) && !a.Allows(c) {
			t.Fatalf("%q allows %q allows %q, but not through", a, b, c)
		}
		if a.Allows(b) && b.Allows(a) && a != b {
			t.Fatalf("%q and %q allow each other", a, b)
		}
		if a.Valid() && b.Valid() && !a.Allows(b) && !b.Allows(a) {
			t.Fatalf("%q and %q are not ordered", a, b)
		}
	})
}

func TestRecordLive(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	account := token.Account{Name: "ci", Role: token.Runner}
	record := token.Record{ID: "one", Account: "ci", Expires: now.Add(time.Second)}

	cases := map[string]struct {
		reason string
		change func(*token.Record, *token.Account)
		want   bool
	}{
		"plain":          {"nothing stands against it", func(*token.Record, *token.Account) {}, true},
		"never expires":  {"a zero time means never", func(r *token.Record, _ *token.Account) { r.Expires = time.Time{} }, true},
		"ends now":       {"the end itself is outside", func(r *token.Record, _ *token.Account) { r.Expires = now }, false},
		"ended":          {"its time is over", func(r *token.Record, _ *token.Account) { r.Expires = now.Add(-time.Hour) }, false},
		"revoked":        {"a person ended it", func(r *token.Record, _ *token.Account) { r.Revoked = true }, false},
		"disabled":       {"the account may do nothing", func(_ *token.Record, a *token.Account) { a.Disabled = true }, false},
		"unknown role":   {"a role that a newer version wrote grants nothing here", func(_ *token.Record, a *token.Account) { a.Role = "auditor" }, false},
		"other account":  {"a token lends no rights to somebody else", func(_ *token.Record, a *token.Account) { a.Name = "bob" }, false},
		"another's case": {"names are compared byte by byte", func(_ *token.Record, a *token.Account) { a.Name = "CI" }, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r, a := record, account
			tc.change(&r, &a)
			if got := r.Live(a, now); got != tc.want {
				t.Errorf("Live = %v, want %v: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// A token that is dead stays dead: no later moment brings it back.
func TestDeadStaysDead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
		at := rapid.Map(rapid.Int64Range(0, int64(time.Hour)), func(d int64) time.Time { return base.Add(time.Duration(d)) })
		r := token.Record{ID: "one", Account: "ci", Revoked: rapid.Bool().Draw(t, "revoked")}
		if rapid.Bool().Draw(t, "expires") {
			r.Expires = at.Draw(t, "end")
		}
		a := token.Account{Name: "ci", Role: rapid.SampledFrom(roles).Draw(t, "role"), Disabled: rapid.Bool().Draw(t, "disabled")}
		first, second := at.Draw(t, "first"), at.Draw(t, "second")
		if second.Before(first) {
			first, second = second, first
		}
		if !r.Live(a, first) && r.Live(a, second) {
			t.Fatalf("dead at %v, live at %v: %+v", first, second, r)
		}
		if r.Live(a, first) && (r.Revoked || a.Disabled) {
			t.Fatalf("live although revoked or disabled: %+v %+v", r, a)
		}
	})
}

func TestValidate(t *testing.T) {
	hash := make([]byte, 32)
	account := token.Account{Name: "ci", Role: token.Admin}
	record := token.Record{ID: "abc", Account: "ci", Hash: hash}

	cases := map[string]struct {
		reason string
		change func(*token.Account, *token.Record)
		want   fault.Class
	}{
		"plain":         {"both are fine", func(*token.Account, *token.Record) {}, ""},
		"an address":    {"people use mail addresses as account names", func(a *token.Account, r *token.Record) { a.Name, r.Account = "ann@example.com", "ann@example.com" }, ""},
		"longest name":  {"the limit itself is allowed", func(a *token.Account, r *token.Record) { a.Name = strings.Repeat("a", 128); r.Account = a.Name }, ""},
		"no name":       {"an account needs one", func(a *token.Account, _ *token.Record) { a.Name = "" }, fault.Invalid},
		"too long":      {"pages and logs show names whole", func(a *token.Account, _ *token.Record) { a.Name = strings.Repeat("a", 129) }, fault.Invalid},
		"a line break":  {"a name must not forge log lines", func(a *token.Account, _ *token.Record) { a.Name = "ci\nroot" }, fault.Invalid},
		"a slash":       {"names stand in paths", func(a *token.Account, _ *token.Record) { a.Name = "a/b" }, fault.Invalid},
		"leading dash":  {"a name must not look like a flag", func(a *token.Account, _ *token.Record) { a.Name = "-ci" }, fault.Invalid},
		"not ASCII":     {"look-alike letters would fool a reader", func(a *token.Account, _ *token.Record) { a.Name = "аdmin" }, fault.Invalid},
		"unknown role":  {"it would grant nothing", func(a *token.Account, _ *token.Record) { a.Role = "root" }, fault.Invalid},
		"no id":         {"a token is found by its id", func(_ *token.Account, r *token.Record) { r.ID = "" }, fault.Invalid},
		"id too long":   {"ids are short", func(_ *token.Account, r *token.Record) { r.ID = strings.Repeat("a", 65) }, fault.Invalid},
		"short hash":    {"a short hash is easier to hit", func(_ *token.Account, r *token.Record) { r.Hash = hash[:31] }, fault.Invalid},
		"no hash":       {"an empty hash must never be stored", func(_ *token.Account, r *token.Record) { r.Hash = nil }, fault.Invalid},
		"not an admin":  {"a first account that may not manage accounts is a dead end", func(a *token.Account, _ *token.Record) { a.Role = token.Runner }, fault.Invalid},
		"other account": {"the first token must be the first admin's", func(_ *token.Account, r *token.Record) { r.Account = "bob" }, fault.Invalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a, r := account, record
			tc.change(&a, &r)
			if got := fault.Of(token.ValidateFirstAdmin(a, r)); got != tc.want {
				t.Errorf("class %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestCheckAdminLeft(t *testing.T) {
	for name, c := range map[string]struct {
		reason  string
		account token.Account
		others  bool
		ok      bool
	}{
		"others":         {"somebody else can undo it", token.Account{Name: "a", Role: token.Viewer, Disabled: true}, true, true},
		"stays":          {"it is an enabled admin itself", token.Account{Name: "a", Role: token.Admin}, false, true},
		"role":           {"the last one becomes a runner", token.Account{Name: "a", Role: token.Runner}, false, false},
		"disabled":       {"the last one is locked out", token.Account{Name: "a", Role: token.Admin, Disabled: true}, false, false},
		"unknown role":   {"an unknown role is no admin", token.Account{Name: "a", Role: "root"}, false, false},
		"role and state": {"both", token.Account{Name: "a", Role: token.Viewer, Disabled: true}, false, false},
	} {
		err := token.CheckAdminLeft(c.account, c.others)
		if c.ok != (err == nil) {
			t.Errorf("%s: %s: %v", name, c.reason, err)
		}
		if !c.ok && (fault.Of(err) != fault.Conflict || fault.CodeOf(err) != token.CodeLastAdmin) {
			t.Errorf("%s: class %s, code %q", name, fault.Of(err), fault.CodeOf(err))
		}
	}
}
