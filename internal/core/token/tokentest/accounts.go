package tokentest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

func accountRoundTrip(ctx context.Context, s token.Store) error {
	a, b := account("ann@example.com", token.Viewer), account("bob", token.Runner)
	b.Disabled = true
	c := token.Account{Name: "cid", Role: token.Admin} // no creation time known
	return first(
		createAccounts(ctx, s, b, c, a),
		holdsAccounts(ctx, s, a, b, c),
	)
}

func accountConflict(ctx context.Context, s token.Store) error {
	a := account("ann", token.Viewer)
	b := account("ann", token.Admin)
	return first(
		createAccounts(ctx, s, a),
		class("the same again", s.CreateAccount(ctx, a), fault.Conflict),
		class("the name with another role", s.CreateAccount(ctx, b), fault.Conflict),
		holdsAccounts(ctx, s, a),
	)
}

func accountNameBytes(ctx context.Context, s token.Store) error {
	upper, lower := account("Ann", token.Viewer), account("ann", token.Viewer)
	return first(
		createAccounts(ctx, s, lower, upper),
		holdsAccounts(ctx, s, upper, lower),
	)
}

func accountInvalid(ctx context.Context, s token.Store) error {
	return first(
		class("no name", s.CreateAccount(ctx, account("", token.Viewer)), fault.Invalid),
		class("a line break", s.CreateAccount(ctx, account("a\nb", token.Viewer)), fault.Invalid),
		class("an unknown role", s.CreateAccount(ctx, account("ann", "root")), fault.Invalid),
		holdsAccounts(ctx, s),
	)
}

// racers is how many callers a race has: more than a small pool of connections
// holds.
const racers = 24

// race runs f racers times at once and returns the errors.
func race(f func(n int) error) []error {
	errs := make([]error, racers)
	ready := make(chan struct{})
	var all sync.WaitGroup
	for n := range racers {
		all.Go(func() {
			<-ready
			errs[n] = f(n)
		})
	}
	close(ready)
	all.Wait()
	return errs
}

func accountRace(ctx context.Context, s token.Store) error {
	errs := race(func(int) error { return s.CreateAccount(ctx, account("ann", token.Viewer)) })
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if err := class("a loser", err, fault.Conflict); err != nil {
			return err
		}
	}
	if won != 1 {
		return fmt.Errorf("%d of %d creators were told that they made it", won, racers)
	}
	return holdsAccounts(ctx, s, account("ann", token.Viewer))
}

func accountsEmpty(ctx context.Context, s token.Store) error {
	return first(
		holdsAccounts(ctx, s),
		createAccounts(ctx, s, account("ann", token.Viewer)),
		func() error {
			past, err := s.Accounts(ctx, "zed", 10)
			if err == nil && len(past) > 0 {
				err = fmt.Errorf("after the last name: %d accounts", len(past))
			}
			return err
		}(),
	)
}

func accountsLimit(ctx context.Context, s token.Store) error {
	if err := createAccounts(ctx, s, account("ann", token.Viewer)); err != nil {
		return err
	}
	for _, limit := range []int{0, -1} {
		got, err := s.Accounts(ctx, "", limit)
		if err := class(fmt.Sprintf("Accounts with limit %d", limit), err, fault.Invalid); err != nil {
			return err
		}
		if len(got) > 0 {
			return fmt.Errorf("Accounts with limit %d: %d accounts besides the error", limit, len(got))
		}
	}
	return nil
}

func accountsPaging(ctx context.Context, s token.Store) error {
	var want []token.Account
	for _, name := range strings.Fields("B a A b10 b2 b.1 b-1 b_1 b@example.com 0 Z z zz") {
		want = append(want, account(name, token.Viewer))
	}
	if err := createAccounts(ctx, s, want...); err != nil {
		return err
	}
	slices.SortFunc(want, func(a, b token.Account) int { return strings.Compare(a.Name, b.Name) })

	for _, limit := range []int{1, 2, 5, len(want), len(want) + 1} {
		var got []token.Account
		after := ""
		for {
			page, err := s.Accounts(ctx, after, limit)
			if err != nil {
				return fmt.Errorf("Accounts(%q, %d): %w", after, limit, err)
			}
			if len(page) > limit {
				return fmt.Errorf("Accounts(%q, %d): %d accounts", after, limit, len(page))
			}
			got = append(got, page...)
			if len(page) < limit || len(got) > len(want) {
				break
			}
			after = page[len(page)-1].Name
		}
		if !slices.Equal(names(got), names(want)) {
			return fmt.Errorf("pages of %d: got %v, want %v", limit, names(got), names(want))
		}
	}
	// A name need not exist to be read on from: it may have been removed.
	page, err := s.Accounts(ctx, "b1", 1)
	if err != nil {
		return err
	}
	if got := names(page); !slices.Equal(got, []string{"b10"}) {
		return fmt.Errorf(`after "b1", which is no account: %v, want [b10]`, got)
	}
	return nil
}

func names(all []token.Account) []string {
	out := make([]string, len(all))
	for i, a := range all {
		out[i] = a.Name
	}
	return out
}
