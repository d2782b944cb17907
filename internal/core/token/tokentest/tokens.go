package tokentest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

func tokenRoundTrip(ctx context.Context, s token.Store) error {
	a := account("ann", token.Runner)
	// Another zone and more digits than are kept: the instant stays the same,
	// rounded down, in UTC.
	fine := record("one", "ann")
	fine.Created = start().Add(999).In(time.FixedZone("east", 3600))
	fine.Expires = start().Add(time.Hour + 999)
	want := record("one", "ann")
	before := record("early", "ann") // a time before 1970 with a fraction
	before.Created = time.Date(1960, 1, 2, 3, 4, 5, 6000, time.UTC)
	return first(
		createAccounts(ctx, s, a),
		createTokens(ctx, s, fine, before),
		holds(ctx, s, want, a),
		holds(ctx, s, before, a),
	)
}

func tokenNever(ctx context.Context, s token.Store) error {
	a := account("ann", token.Runner)
	r := record("one", "ann")
	r.Expires = time.Time{}
	return first(
		createAccounts(ctx, s, a),
		createTokens(ctx, s, r),
		holds(ctx, s, r, a),
	)
}

func tokenHashBytes(ctx context.Context, s token.Store) error {
	a := account("ann", token.Runner)
	if err := createAccounts(ctx, s, a); err != nil {
		return err
	}
	for page := range 8 { // all 256 values, zero bytes first and last
		r := record(fmt.Sprintf("page-%d", page), "ann")
		for i := range r.Hash {
			r.Hash[i] = byte(page*32 + i)
		}
		if err := first(createTokens(ctx, s, r), holds(ctx, s, r, a)); err != nil {
			return err
		}
	}
	zero := record("zero", "ann")
	zero.Hash = make([]byte, 32)
	return first(createTokens(ctx, s, zero), holds(ctx, s, zero, a))
}

func tokenConflict(ctx context.Context, s token.Store) error {
	ann, bob := account("ann", token.Runner), account("bob", token.Admin)
	mine, other := record("one", "ann"), record("one", "bob")
	other.Hash[0]++
	return first(
		createAccounts(ctx, s, ann, bob),
		createTokens(ctx, s, mine),
		class("the same again", s.CreateToken(ctx, mine), fault.Conflict),
		class("the id for another account", s.CreateToken(ctx, other), fault.Conflict),
		holds(ctx, s, mine, ann),
	)
}

func tokenUnknownAccount(ctx context.Context, s token.Store) error {
	return first(
		createAccounts(ctx, s, account("ann", token.Runner)),
		class("an unknown account", s.CreateToken(ctx, record("one", "bob")), fault.NotFound),
		class("a name in other case", s.CreateToken(ctx, record("one", "Ann")), fault.NotFound),
		noToken(ctx, s, "one"),
	)
}

func tokenInvalid(ctx context.Context, s token.Store) error {
	short, none := record("one", "ann"), record("one", "ann")
	short.Hash = short.Hash[:31]
	none.Hash = nil
	return first(
		createAccounts(ctx, s, account("ann", token.Runner)),
		class("no id", s.CreateToken(ctx, record("", "ann")), fault.Invalid),
		class("a short hash", s.CreateToken(ctx, short), fault.Invalid),
		class("no hash", s.CreateToken(ctx, none), fault.Invalid),
		noToken(ctx, s, "one"),
	)
}

func tokenSlices(ctx context.Context, s token.Store) error {
	a, given, want := account("ann", token.Runner), record("one", "ann"), record("one", "ann")
	if err := first(createAccounts(ctx, s, a), createTokens(ctx, s, given)); err != nil {
		return err
	}
	clear(given.Hash)
	if err := holds(ctx, s, want, a); err != nil {
		return fmt.Errorf("after the caller wrote into the hash that it gave: %w", err)
	}
	got, _, err := s.TokenByID(ctx, "one")
	if err != nil {
		return err
	}
	clear(got.Hash)
	if err := holds(ctx, s, want, a); err != nil {
		return fmt.Errorf("after the caller wrote into the hash that it got: %w", err)
	}
	return nil
}

func tokenUnknown(ctx context.Context, s token.Store) error {
	return first(
		noToken(ctx, s, "one"),
		createAccounts(ctx, s, account("ann", token.Runner)),
		createTokens(ctx, s, record("one", "ann")),
		noToken(ctx, s, "on"),
		noToken(ctx, s, "one1"),
		noToken(ctx, s, ""),
		noToken(ctx, s, "%"),
		noToken(ctx, s, "' OR '1'='1"),
	)
}

func tokenIDBytes(ctx context.Context, s token.Store) error {
	a := account("ann", token.Runner)
	upper, lower := record("ONE", "ann"), record("one", "ann")
	return first(
		createAccounts(ctx, s, a),
		createTokens(ctx, s, upper, lower),
		holds(ctx, s, upper, a),
		holds(ctx, s, lower, a),
		noToken(ctx, s, "One"),
	)
}

func tokenAsStored(ctx context.Context, s token.Store) error {
	ann, off := account("ann", token.Runner), account("off", token.Admin)
	off.Disabled = true
	expired, revoked, locked := record("expired", "ann"), record("revoked", "ann"), record("locked", "off")
	expired.Expires = start().AddDate(-20, 0, 0)
	revoked.Revoked = true
	return first(
		createAccounts(ctx, s, ann, off),
		createTokens(ctx, s, expired, revoked, locked),
		holds(ctx, s, expired, ann),
		holds(ctx, s, revoked, ann),
		holds(ctx, s, locked, off),
	)
}

func revokeEnds(ctx context.Context, s token.Store) error {
	a := account("ann", token.Runner)
	one, two := record("one", "ann"), record("two", "ann")
	if err := first(
		createAccounts(ctx, s, a),
		createTokens(ctx, s, one, two),
		s.RevokeToken(ctx, "one"),
	); err != nil {
		return err
	}
	one.Revoked = true
	return first(holds(ctx, s, one, a), holds(ctx, s, two, a))
}

func revokeTwice(ctx context.Context, s token.Store) error {
	a, r := account("ann", token.Runner), record("one", "ann")
	if err := first(
		createAccounts(ctx, s, a),
		createTokens(ctx, s, r),
		s.RevokeToken(ctx, "one"),
		s.RevokeToken(ctx, "one"),
	); err != nil {
		return err
	}
	r.Revoked = true
	return holds(ctx, s, r, a)
}

func revokeUnknown(ctx context.Context, s token.Store) error {
	a, r := account("ann", token.Runner), record("one", "ann")
	return first(
		class("an empty store", s.RevokeToken(ctx, "one"), fault.NotFound),
		createAccounts(ctx, s, a),
		createTokens(ctx, s, r),
		class("another id", s.RevokeToken(ctx, "two"), fault.NotFound),
		class("a pattern", s.RevokeToken(ctx, "%"), fault.NotFound),
		holds(ctx, s, r, a),
	)
}

func revokeFinal(ctx context.Context, s token.Store) error {
	a, r := account("ann", token.Runner), record("one", "ann")
	if err := first(
		createAccounts(ctx, s, a),
		createTokens(ctx, s, r),
		s.RevokeToken(ctx, "one"),
		class("the revoked id again", s.CreateToken(ctx, r), fault.Conflict),
	); err != nil {
		return err
	}
	r.Revoked = true
	return holds(ctx, s, r, a)
}

func contextEnded(ctx context.Context, s token.Store) error {
	a, r := account("ann", token.Runner), record("one", "ann")
	if err := first(createAccounts(ctx, s, a), createTokens(ctx, s, r)); err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	late, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, dead := range []context.Context{cancelled, late} {
		calls := map[string]func() error{
			"CreateAccount": func() error { return s.CreateAccount(dead, account("bob", token.Viewer)) },
			"CreateToken":   func() error { return s.CreateToken(dead, record("two", "ann")) },
			"TokenByID":     func() error { _, _, err := s.TokenByID(dead, "one"); return err },
			"RevokeToken":   func() error { return s.RevokeToken(dead, "one") },
			"Accounts":      func() error { _, err := s.Accounts(dead, "", 1); return err },
			"Bootstrap": func() error {
				created, err := s.Bootstrap(dead, account("root", token.Admin), record("three", "root"))
				if created {
					return errors.New("it said that it created")
				}
				return err
			},
		}
		for name, call := range calls {
			err := call()
			if err := class(name, err, fault.Timeout); err != nil {
				return err
			}
			if !errors.Is(err, dead.Err()) {
				return fmt.Errorf("%s: %v does not carry the context's own error %v", name, err, dead.Err())
			}
		}
	}
	return first(
		holdsAccounts(ctx, s, a),
		holds(ctx, s, r, a),
		noToken(ctx, s, "two"),
		noToken(ctx, s, "three"),
	)
}

func bootstrap(ctx context.Context, s token.Store, a token.Account, r token.Record, want bool) error {
	created, err := s.Bootstrap(ctx, a, r)
	if err != nil {
		return fmt.Errorf("Bootstrap(%s, %s): %w", a.Name, r.ID, err)
	}
	if created != want {
		return fmt.Errorf("Bootstrap(%s, %s): created %v, want %v", a.Name, r.ID, created, want)
	}
	return nil
}

func bootstrapFirst(ctx context.Context, s token.Store) error {
	a, r := account("root", token.Admin), record("one", "root")
	r.Expires = time.Time{}
	return first(
		bootstrap(ctx, s, a, r, true),
		holds(ctx, s, r, a),
		holdsAccounts(ctx, s, a),
	)
}

func bootstrapOnce(ctx context.Context, s token.Store) error {
	a, r := account("root", token.Admin), record("one", "root")
	return first(
		bootstrap(ctx, s, a, r, true),
		bootstrap(ctx, s, a, r, false),
		bootstrap(ctx, s, account("other", token.Admin), record("two", "other"), false),
		holdsAccounts(ctx, s, a),
		holds(ctx, s, r, a),
		noToken(ctx, s, "two"),
	)
}

func bootstrapOthers(ctx context.Context, s token.Store) error {
	ann, bob, root := account("ann", token.Viewer), account("bob", token.Runner), account("root", token.Admin)
	r := record("one", "root")
	return first(
		createAccounts(ctx, s, ann, bob),
		createTokens(ctx, s, record("anns", "ann")),
		bootstrap(ctx, s, root, r, true),
		holdsAccounts(ctx, s, ann, bob, root),
		holds(ctx, s, r, root),
		holds(ctx, s, record("anns", "ann"), ann),
	)
}

func bootstrapAdmin(ctx context.Context, s token.Store) error {
	off := account("off", token.Admin)
	off.Disabled = true
	return first(
		createAccounts(ctx, s, off),
		bootstrap(ctx, s, account("root", token.Admin), record("one", "root"), false),
		holdsAccounts(ctx, s, off),
		noToken(ctx, s, "one"),
	)
}

func bootstrapInvalid(ctx context.Context, s token.Store) error {
	try := func(what string, a token.Account, r token.Record) error {
		created, err := s.Bootstrap(ctx, a, r)
		if created {
			return fmt.Errorf("%s: it said that it created", what)
		}
		return class(what, err, fault.Invalid)
	}
	short := record("one", "root")
	short.Hash = bytes.Clone(short.Hash[:16])
	return first(
		try("a runner", account("root", token.Runner), record("one", "root")),
		try("another's token", account("root", token.Admin), record("one", "ann")),
		try("no name", account("", token.Admin), record("one", "")),
		try("a short hash", account("root", token.Admin), short),
		holdsAccounts(ctx, s),
		noToken(ctx, s, "one"),
	)
}

func bootstrapConflict(ctx context.Context, s token.Store) error {
	ann, anns := account("ann", token.Runner), record("anns", "ann")
	try := func(what string, a token.Account, r token.Record) error {
		created, err := s.Bootstrap(ctx, a, r)
		if created {
			return fmt.Errorf("%s: it said that it created", what)
		}
		return class(what, err, fault.Conflict)
	}
	return first(
		createAccounts(ctx, s, ann),
		createTokens(ctx, s, anns),
		try("a taken name", account("ann", token.Admin), record("one", "ann")),
		try("a taken id", account("root", token.Admin), record("anns", "root")),
		holdsAccounts(ctx, s, ann),
		holds(ctx, s, anns, ann),
		noToken(ctx, s, "one"),
		// Neither failure may bar the way of a pair that fits.
		bootstrap(ctx, s, account("root", token.Admin), record("one", "root"), true),
	)
}

func bootstrapRace(ctx context.Context, s token.Store) error {
	created := make([]bool, racers)
	errs := race(func(n int) (err error) {
		name := fmt.Sprintf("root-%d", n)
		created[n], err = s.Bootstrap(ctx, account(name, token.Admin), record(fmt.Sprintf("token-%d", n), name))
		return err
	})
	if err := first(errs...); err != nil {
		return err
	}
	winner := -1
	for n, won := range created {
		switch {
		case won && winner >= 0:
			return fmt.Errorf("callers %d and %d were both told that they made the first admin", winner, n)
		case won:
			winner = n
		case !won:
			if err := noToken(ctx, s, fmt.Sprintf("token-%d", n)); err != nil {
				return err
			}
		}
	}
	if winner < 0 {
		return errors.New("nobody was told that they made the first admin")
	}
	a := account(fmt.Sprintf("root-%d", winner), token.Admin)
	return first(
		holdsAccounts(ctx, s, a),
		holds(ctx, s, record(fmt.Sprintf("token-%d", winner), a.Name), a),
	)
}
