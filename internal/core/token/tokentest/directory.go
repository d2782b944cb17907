package tokentest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// DirectoryStore is a store that administrators can work with.
type DirectoryStore interface {
	token.Store
	token.Directory
}

// DirectoryClause is one promise of [token.Directory], as [Clause] is one of
// [token.Store].
type DirectoryClause struct {
	Name, Promise string
	Check         func(ctx context.Context, s DirectoryStore) error
}

// RunDirectory checks every clause of the directory on a store of its own:
// newStore returns an empty one and cleans up after itself.
func RunDirectory(t *testing.T, newStore func(t *testing.T) DirectoryStore) {
	t.Helper()
	for _, c := range DirectoryClauses() {
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.Check(ctx, newStore(t)); err != nil {
				t.Errorf("%s: %v", c.Promise, err)
			}
		})
	}
}

// DirectoryClauses returns the directory's contract, in the order of the
// interface.
func DirectoryClauses() []DirectoryClause {
	return []DirectoryClause{
		{"Tokens/keeps", "tokens come back as they were put in, dead ones too", tokensKept},
		{"Tokens/others", "another account's tokens are not shown", tokensOfOthers},
		{"Tokens/empty", "an account without tokens has none and is no error", tokensEmpty},
		{"Tokens/unknown", "an unknown account is NotFound", tokensUnknown},
		{"Tokens/paging", "pages are in byte order, without gaps or repeats", tokensPaging},
		{"Tokens/limit", "a limit below 1 is Invalid", tokensLimit},
		{"Tokens/slices", "slices stay their caller's own", tokensSlices},
		{"SetAccount/changes", "role and state change, of that account alone, and both ways", setChanges},
		{"SetAccount/created", "the time of creation stays", setCreated},
		{"SetAccount/token", "a token's account is the changed one from then on", setToken},
		{"SetAccount/same", "a change to what is there already is no error", setSame},
		{"SetAccount/unknown", "an unknown name is NotFound and makes no account", setUnknown},
		{"SetAccount/bytes", "names are compared byte by byte", setNameBytes},
		{"SetAccount/invalid", "what Validate refuses is Invalid and changes nothing", setInvalid},
		{"SetAccount/last-admin", "the last enabled admin stays one: Conflict, its code, and nothing changed", setLastAdmin},
		{"SetAccount/race", "admins who all end each other's role at once leave one", setRace},
		{"Context/ended", "a call whose context ended does nothing and is Timeout", directoryContextEnded},
	}
}

// --- what the checks are written with ---

func setAccounts(ctx context.Context, s DirectoryStore, all ...token.Account) error {
	for _, a := range all {
		if err := s.SetAccount(ctx, a); err != nil {
			return fmt.Errorf("SetAccount(%s): %w", a.Name, err)
		}
	}
	return nil
}

// holdsTokens says how an account's tokens differ from those wanted, which are
// given in order.
func holdsTokens(ctx context.Context, s DirectoryStore, account string, want ...token.Record) error {
	got, err := s.Tokens(ctx, account, "", 100)
	if err != nil {
		return fmt.Errorf("Tokens(%s): %w", account, err)
	}
	if len(got) == 0 && len(want) == 0 {
		return nil
	}
	if d := cmp.Diff(want, got); d != "" {
		return fmt.Errorf("Tokens(%s) differ (-want +got):\n%s", account, d)
	}
	return nil
}

// lastAdmin says how err differs from the refusal to lose the last admin.
func lastAdmin(what string, err error) error {
	if err := class(what, err, fault.Conflict); err != nil {
		return err
	}
	if got := fault.CodeOf(err); got != token.CodeLastAdmin {
		return fmt.Errorf("%s: code %q, want %q", what, got, token.CodeLastAdmin)
	}
	return nil
}

func disabled(a token.Account) token.Account {
	a.Disabled = true
	return a
}

// --- Tokens ---

func tokensKept(ctx context.Context, s DirectoryStore) error {
	never, revoked, past := record("a", "ann"), record("b", "ann"), record("c", "ann")
	never.Expires = time.Time{}
	past.Expires = time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
	err := first(
		createAccounts(ctx, s, disabled(account("ann", token.Runner))),
		createTokens(ctx, s, past, never, revoked),
		s.RevokeToken(ctx, "b"),
	)
	revoked.Revoked = true
	return first(err, holdsTokens(ctx, s, "ann", never, revoked, past))
}

func tokensOfOthers(ctx context.Context, s DirectoryStore) error {
	one, two, three := record("one", "ann"), record("two", "Ann"), record("three", "annx")
	return first(
		createAccounts(ctx, s, account("ann", token.Runner), account("Ann", token.Runner), account("annx", token.Runner)),
		createTokens(ctx, s, one, two, three),
		holdsTokens(ctx, s, "ann", one),
		holdsTokens(ctx, s, "Ann", two),
		holdsTokens(ctx, s, "annx", three),
	)
}

func tokensEmpty(ctx context.Context, s DirectoryStore) error {
	return first(
		createAccounts(ctx, s, account("ann", token.Runner), account("bob", token.Runner)),
		createTokens(ctx, s, record("one", "bob")),
		holdsTokens(ctx, s, "ann"),
		func() error {
			past, err := s.Tokens(ctx, "bob", "zed", 10)
			if err == nil && len(past) > 0 {
				err = fmt.Errorf("after the last id: %d tokens", len(past))
			}
			return err
		}(),
	)
}

func tokensUnknown(ctx context.Context, s DirectoryStore) error {
	if err := createAccounts(ctx, s, account("ann", token.Runner)); err != nil {
		return err
	}
	for _, name := range []string{"bob", "", "an", "ANN", "a%"} {
		got, err := s.Tokens(ctx, name, "", 10)
		if err := class(fmt.Sprintf("Tokens(%q)", name), err, fault.NotFound); err != nil {
			return err
		}
		if len(got) > 0 {
			return fmt.Errorf("Tokens(%q): %d tokens besides the error", name, len(got))
		}
	}
	return nil
}

func tokensPaging(ctx context.Context, s DirectoryStore) error {
	want := strings.Fields("B a A b10 b2 b_1 b-1 0 Z z zz")
	if err := createAccounts(ctx, s, account("ann", token.Runner), account("bob", token.Runner)); err != nil {
		return err
	}
	for _, id := range want {
		if err := createTokens(ctx, s, record(id, "ann"), record(id+"x", "bob")); err != nil {
			return err
		}
	}
	slices.Sort(want)
	for _, limit := range []int{1, 2, 5, len(want), len(want) + 1} {
		var got []string
		after := ""
		for {
			page, err := s.Tokens(ctx, "ann", after, limit)
			if err != nil {
				return fmt.Errorf("Tokens(ann, %q, %d): %w", after, limit, err)
			}
			if len(page) > limit {
				return fmt.Errorf("Tokens(ann, %q, %d): %d tokens", after, limit, len(page))
			}
			got = append(got, ids(page)...)
			if len(page) < limit || len(got) > len(want) {
				break
			}
			after = page[len(page)-1].ID
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("pages of %d: got %v, want %v", limit, got, want)
		}
	}
	// An id need not be one of the account's to be read on from.
	page, err := s.Tokens(ctx, "ann", "b1", 1)
	if err != nil {
		return err
	}
	if got := ids(page); !slices.Equal(got, []string{"b10"}) {
		return fmt.Errorf(`after "b1", which is no token: %v, want [b10]`, got)
	}
	return nil
}

func ids(all []token.Record) []string {
	out := make([]string, len(all))
	for i, r := range all {
		out[i] = r.ID
	}
	return out
}

func tokensLimit(ctx context.Context, s DirectoryStore) error {
	err := first(createAccounts(ctx, s, account("ann", token.Runner)), createTokens(ctx, s, record("one", "ann")))
	if err != nil {
		return err
	}
	for _, limit := range []int{0, -1} {
		got, err := s.Tokens(ctx, "ann", "", limit)
		if err := class(fmt.Sprintf("Tokens with limit %d", limit), err, fault.Invalid); err != nil {
			return err
		}
		if len(got) > 0 {
			return fmt.Errorf("Tokens with limit %d: %d tokens besides the error", limit, len(got))
		}
	}
	return nil
}

func tokensSlices(ctx context.Context, s DirectoryStore) error {
	want := record("one", "ann")
	err := first(createAccounts(ctx, s, account("ann", token.Runner)), createTokens(ctx, s, record("one", "ann")))
	if err != nil {
		return err
	}
	got, err := s.Tokens(ctx, "ann", "", 1)
	if err != nil || len(got) != 1 {
		return fmt.Errorf("Tokens(ann): %d tokens, %w", len(got), err)
	}
	clear(got[0].Hash)
	return holdsTokens(ctx, s, "ann", want)
}

// --- SetAccount ---

func setChanges(ctx context.Context, s DirectoryStore) error {
	root, ann, bob := account("root", token.Admin), account("ann", token.Viewer), account("bob", token.Viewer)
	return first(
		createAccounts(ctx, s, root, ann, bob),
		setAccounts(ctx, s, disabled(account("ann", token.Runner))),
		holdsAccounts(ctx, s, disabled(account("ann", token.Runner)), bob, root),
		setAccounts(ctx, s, account("ann", token.Admin)),
		holdsAccounts(ctx, s, account("ann", token.Admin), bob, root),
		setAccounts(ctx, s, disabled(root)), // ann is one now
		holdsAccounts(ctx, s, account("ann", token.Admin), bob, disabled(root)),
	)
}

func setCreated(ctx context.Context, s DirectoryStore) error {
	root, ann, change := account("root", token.Admin), account("ann", token.Viewer), account("ann", token.Runner)
	change.Created = start().Add(time.Hour)
	blank := token.Account{Name: "root", Role: token.Admin}
	return first(
		createAccounts(ctx, s, root, ann),
		setAccounts(ctx, s, change, blank),
		holdsAccounts(ctx, s, account("ann", token.Runner), root),
	)
}

func setToken(ctx context.Context, s DirectoryStore) error {
	root, ann, r := account("root", token.Admin), account("ann", token.Admin), record("one", "ann")
	return first(
		createAccounts(ctx, s, root, ann),
		createTokens(ctx, s, r),
		setAccounts(ctx, s, disabled(account("ann", token.Viewer))),
		holds(ctx, s, r, disabled(account("ann", token.Viewer))),
		setAccounts(ctx, s, account("ann", token.Viewer)),
		holds(ctx, s, r, account("ann", token.Viewer)),
	)
}

func setSame(ctx context.Context, s DirectoryStore) error {
	root, off := account("root", token.Admin), disabled(account("off", token.Runner))
	return first(
		createAccounts(ctx, s, root, off),
		setAccounts(ctx, s, root, off, off),
		holdsAccounts(ctx, s, off, root),
	)
}

func setUnknown(ctx context.Context, s DirectoryStore) error {
	root := account("root", token.Admin)
	return first(
		class("in an empty store", s.SetAccount(ctx, account("ann", token.Admin)), fault.NotFound),
		createAccounts(ctx, s, root),
		class("an unknown name", s.SetAccount(ctx, account("ann", token.Admin)), fault.NotFound),
		holdsAccounts(ctx, s, root),
	)
}

func setNameBytes(ctx context.Context, s DirectoryStore) error {
	root, upper, lower := account("root", token.Admin), account("Ann", token.Viewer), account("ann", token.Viewer)
	return first(
		createAccounts(ctx, s, root, upper, lower),
		setAccounts(ctx, s, account("ann", token.Runner)),
		class("another case", s.SetAccount(ctx, account("ROOT", token.Runner)), fault.NotFound),
		holdsAccounts(ctx, s, upper, account("ann", token.Runner), root),
	)
}

func setInvalid(ctx context.Context, s DirectoryStore) error {
	root, ann := account("root", token.Admin), account("ann", token.Viewer)
	return first(
		createAccounts(ctx, s, root, ann),
		class("an unknown role", s.SetAccount(ctx, account("ann", "owner")), fault.Invalid),
		class("no role", s.SetAccount(ctx, account("ann", "")), fault.Invalid),
		class("no name", s.SetAccount(ctx, account("", token.Viewer)), fault.Invalid),
		holdsAccounts(ctx, s, ann, root),
	)
}

func setLastAdmin(ctx context.Context, s DirectoryStore) error {
	ann, off, root := account("ann", token.Runner), disabled(account("off", token.Admin)), account("root", token.Admin)
	return first(
		createAccounts(ctx, s, ann, off, root),
		lastAdmin("another role", s.SetAccount(ctx, account("root", token.Runner))),
		lastAdmin("disabled", s.SetAccount(ctx, disabled(root))),
		lastAdmin("both", s.SetAccount(ctx, disabled(account("root", token.Viewer)))),
		holdsAccounts(ctx, s, ann, off, root),
		// What does not concern the last admin goes on.
		setAccounts(ctx, s, account("ann", token.Viewer), disabled(account("off", token.Viewer))),
		setAccounts(ctx, s, account("off", token.Admin), account("root", token.Viewer)),
		lastAdmin("the other one, then", s.SetAccount(ctx, off)),
		holdsAccounts(ctx, s, account("ann", token.Viewer), account("off", token.Admin), account("root", token.Viewer)),
	)
}

func setRace(ctx context.Context, s DirectoryStore) error {
	name := func(n int) string { return fmt.Sprintf("root-%02d", n) }
	for n := range racers {
		if err := createAccounts(ctx, s, account(name(n), token.Admin)); err != nil {
			return err
		}
	}
	errs := race(func(n int) error {
		if n%2 == 0 {
			return s.SetAccount(ctx, disabled(account(name(n), token.Admin)))
		}
		return s.SetAccount(ctx, account(name(n), token.Viewer))
	})
	refused := 0
	for n, err := range errs {
		if err == nil {
			continue
		}
		refused++
		if err := lastAdmin(name(n), err); err != nil {
			return err
		}
	}
	all, err := s.Accounts(ctx, "", 100)
	if err != nil {
		return err
	}
	admins := slices.DeleteFunc(all, func(a token.Account) bool { return a.Role != token.Admin || a.Disabled })
	if refused != 1 || len(admins) != 1 {
		return fmt.Errorf("%d of %d were refused and %d enabled admins are left (%v), want 1 and 1", refused, racers, len(admins), names(admins))
	}
	return nil
}

func directoryContextEnded(ctx context.Context, s DirectoryStore) error {
	root, ann, r := account("root", token.Admin), account("ann", token.Runner), record("one", "ann")
	if err := first(createAccounts(ctx, s, root, ann), createTokens(ctx, s, r)); err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	expired, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
	defer cancel()
	for _, dead := range []context.Context{cancelled, expired} {
		for name, call := range map[string]func() error{
			"Tokens":     func() error { _, err := s.Tokens(dead, "ann", "", 1); return err },
			"SetAccount": func() error { return s.SetAccount(dead, account("ann", token.Viewer)) },
		} {
			err := call()
			if err := class(name, err, fault.Timeout); err != nil {
				return err
			}
			if !errors.Is(err, dead.Err()) {
				return fmt.Errorf("%s: %v does not carry the context's own error %v", name, err, dead.Err())
			}
		}
	}
	return first(holdsAccounts(ctx, s, ann, root), holdsTokens(ctx, s, "ann", r))
}
