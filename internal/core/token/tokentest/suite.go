// Package tokentest holds the conformance suite of [token.Store], which every
// store passes, and a store in memory for tests of what stands above.
package tokentest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// Clause is one promise of the store's contract with the check that holds it.
type Clause struct {
	// Name is the subtest's name.
	Name string
	// Promise is the sentence that the check holds.
	Promise string
	// Check works on a fresh, empty store and returns what is wrong, or nil.
	// It returns an error rather than failing a test so that the suite can be
	// tried on broken stores.
	Check func(ctx context.Context, s token.Store) error
}

// Run checks every clause on a store of its own: newStore returns an empty one
// and cleans up after itself.
func Run(t *testing.T, newStore func(t *testing.T) token.Store) {
	t.Helper()
	for _, c := range Clauses() {
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.Check(ctx, newStore(t)); err != nil {
				t.Errorf("%s: %v", c.Promise, err)
			}
		})
	}
}

// Clauses returns the whole contract, in the order of the interface.
func Clauses() []Clause {
	return []Clause{
		{"CreateAccount/keeps", "an account comes back as it was put in", accountRoundTrip},
		{"CreateAccount/conflict", "an existing name is Conflict and changes nothing", accountConflict},
		{"CreateAccount/bytes", "names are compared byte by byte", accountNameBytes},
		{"CreateAccount/invalid", "what Validate refuses is Invalid and not stored", accountInvalid},
		{"CreateAccount/race", "of many creators of one name exactly one succeeds", accountRace},
		{"CreateToken/keeps", "a token comes back as it was put in, to the microsecond", tokenRoundTrip},
		{"CreateToken/never", "a token without an end comes back without one", tokenNever},
		{"CreateToken/hash", "every byte of a hash survives", tokenHashBytes},
		{"CreateToken/conflict", "an existing id is Conflict, whoever owns it, and changes nothing", tokenConflict},
		{"CreateToken/account", "a token of an unknown account is NotFound and not stored", tokenUnknownAccount},
		{"CreateToken/invalid", "what Validate refuses is Invalid and not stored", tokenInvalid},
		{"CreateToken/slices", "slices stay their caller's own", tokenSlices},
		{"TokenByID/unknown", "an unknown id is NotFound", tokenUnknown},
		{"TokenByID/bytes", "ids are compared byte by byte", tokenIDBytes},
		{"TokenByID/as-stored", "dead tokens and disabled accounts come back as stored", tokenAsStored},
		{"RevokeToken/ends", "revoking marks that token and no other", revokeEnds},
		{"RevokeToken/twice", "revoking again is nil", revokeTwice},
		{"RevokeToken/unknown", "an unknown id is NotFound", revokeUnknown},
		{"RevokeToken/final", "a revoked id cannot be created anew", revokeFinal},
		{"Accounts/empty", "an empty store has no accounts and no error", accountsEmpty},
		{"Accounts/paging", "pages are in byte order, without gaps or repeats", accountsPaging},
		{"Accounts/limit", "a limit below 1 is Invalid", accountsLimit},
		{"Bootstrap/first", "the first call adds the account and its token", bootstrapFirst},
		{"Bootstrap/once", "a second call adds nothing and is no error", bootstrapOnce},
		{"Bootstrap/others", "accounts that are no admin do not count", bootstrapOthers},
		{"Bootstrap/admin", "an admin made in another way counts, a disabled one too", bootstrapAdmin},
		{"Bootstrap/invalid", "a pair that is no first admin is Invalid and not stored", bootstrapInvalid},
		{"Bootstrap/conflict", "a taken name or id is Conflict and adds neither half", bootstrapConflict},
		{"Bootstrap/race", "of many callers exactly one creates, and its pair is what is stored", bootstrapRace},
		{"Context/ended", "a call whose context ended does nothing and is Timeout", contextEnded},
	}
}

// --- the pieces that the checks are written with ---

// start is some time with microseconds; stores keep no finer.
func start() time.Time { return time.Date(2026, 11, 1, 10, 20, 30, 123456000, time.UTC) }

func account(name string, role token.Role) token.Account {
	return token.Account{Name: name, Role: role, Created: start()}
}

func record(id, owner string) token.Record {
	sum := sha256.Sum256([]byte(id))
	return token.Record{ID: id, Account: owner, Hash: sum[:], Created: start(), Expires: start().Add(time.Hour)}
}

// class says how err differs from what was wanted; "" wants no error.
func class(what string, err error, want fault.Class) error {
	if got := fault.Of(err); got != want {
		return fmt.Errorf("%s: class %q, want %q (error: %v)", what, got, want, err)
	}
	return nil
}

// first returns the first of the errors that is one.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func createAccounts(ctx context.Context, s token.Store, all ...token.Account) error {
	for _, a := range all {
		if err := s.CreateAccount(ctx, a); err != nil {
			return fmt.Errorf("CreateAccount(%s): %w", a.Name, err)
		}
	}
	return nil
}

func createTokens(ctx context.Context, s token.Store, all ...token.Record) error {
	for _, r := range all {
		if err := s.CreateToken(ctx, r); err != nil {
			return fmt.Errorf("CreateToken(%s): %w", r.ID, err)
		}
	}
	return nil
}

// holds says how the stored token and account differ from those wanted.
func holds(ctx context.Context, s token.Store, r token.Record, a token.Account) error {
	gotR, gotA, err := s.TokenByID(ctx, r.ID)
	if err != nil {
		return fmt.Errorf("TokenByID(%s): %w", r.ID, err)
	}
	if d := cmp.Diff(r, gotR); d != "" {
		return fmt.Errorf("TokenByID(%s): the token differs (-want +got):\n%s", r.ID, d)
	}
	if d := cmp.Diff(a, gotA); d != "" {
		return fmt.Errorf("TokenByID(%s): the account differs (-want +got):\n%s", r.ID, d)
	}
	return nil
}

func noToken(ctx context.Context, s token.Store, id string) error {
	_, _, err := s.TokenByID(ctx, id)
	return class(fmt.Sprintf("TokenByID(%s)", id), err, fault.NotFound)
}

// holdsAccounts says how the stored accounts differ from those wanted, which
// are given in order.
func holdsAccounts(ctx context.Context, s token.Store, want ...token.Account) error {
	got, err := s.Accounts(ctx, "", 100)
	if err != nil {
		return fmt.Errorf("Accounts: %w", err)
	}
	if len(got) == 0 && len(want) == 0 {
		return nil
	}
	if d := cmp.Diff(want, got); d != "" {
		return fmt.Errorf("the accounts differ (-want +got):\n%s", d)
	}
	return nil
}
