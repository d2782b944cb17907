// Package token holds the rules of accounts, tokens and roles, and the
// contract of the store that keeps them. It does no I/O; time arrives as an
// argument.
package token

import (
	"context"
	"time"
)

// Role is what an account may do. Roles are ordered: each may do what the one
// below it may.
type Role string

// The roles, least first.
const (
	// Viewer reads.
	Viewer Role = "viewer"
	// Runner takes, renews and releases its own leases, reports, and writes
	// actions.
	Runner Role = "runner"
	// Admin does the rest.
	Admin Role = "admin"
)

// Valid reports whether r is one of the roles.
func (r Role) Valid() bool { return rank(r) > 0 }

// Allows reports whether an account of role r may do what needs role need. An
// unknown role allows nothing and is allowed by nothing.
func (r Role) Allows(need Role) bool {
	return rank(need) > 0 && rank(r) >= rank(need)
}

func rank(r Role) int {
	switch r {
	case Viewer:
		return 1
	case Runner:
		return 2
	case Admin:
		return 3
	}
	return 0
}

// Principal is who a request comes from, once its token was verified.
type Principal struct {
	// Account is the account's name; it is what logs and pages show.
	Account string
	Role    Role
	// TokenID is the public id of the token used (rate limits are per token).
	TokenID string
}

// Account is a named holder of tokens.
type Account struct {
	Name     string
	Role     Role
	Created  time.Time
	Disabled bool
}

// Record is a token as kept: never the token itself.
type Record struct {
	// ID is the token's public id: in logs, pages and paths.
	ID      string
	Account string
	// Hash is the SHA-256 of the token's secret part (32 bytes). The secret is
	// 256 random bits, so a slow hash would add nothing.
	Hash    []byte
	Created time.Time
	// Expires is when the token ends; zero for never.
	Expires time.Time
	Revoked bool
}

// Live reports whether the record may be used at now by its account.
func (r Record) Live(a Account, now time.Time) bool {
	return !r.Revoked && !a.Disabled && a.Role.Valid() && a.Name == r.Account &&
		(r.Expires.IsZero() || now.Before(r.Expires))
}

// Store keeps accounts and tokens. Errors carry a class of core/fault:
// NotFound, Conflict (a name or id exists already), Invalid (what Validate
// refuses), Unavailable when the database does not answer, Timeout when ctx
// ended first. All methods honour ctx and may be called concurrently, also
// from several processes on one database.
//
// Times are kept in UTC to the microsecond, rounded down. Names and ids are
// compared and ordered byte by byte. Slices that go in or come out stay their
// caller's own.
//
// The store keeps and the rules decide: it returns what was put in, live or
// not ([Record.Live] is the caller's question to ask).
type Store interface {
	// CreateAccount adds an account; an existing name is Conflict.
	CreateAccount(ctx context.Context, a Account) error
	// CreateToken adds a token of an existing account; an existing id is
	// Conflict, an unknown account NotFound.
	CreateToken(ctx context.Context, r Record) error
	// TokenByID returns the token and its account as of now, or NotFound.
	TokenByID(ctx context.Context, id string) (Record, Account, error)
	// RevokeToken ends a token; revoked already is nil, unknown is NotFound.
	RevokeToken(ctx context.Context, id string) error
	// Accounts returns accounts by name, at most limit of those after the
	// name `after`; a limit below 1 is Invalid.
	Accounts(ctx context.Context, after string, limit int) ([]Account, error)
	// Bootstrap adds a first admin account with its token if and only if no
	// admin account exists (a disabled one exists too), in one transaction,
	// and reports whether it did. An account that is no admin, or a token of
	// another account, is Invalid; when no admin exists but the name or the id
	// does, that is Conflict and nothing is added.
	Bootstrap(ctx context.Context, a Account, r Record) (created bool, err error)
}

// Directory is what administrators do with a store besides what [Store] says;
// errors, times and order are as there.
type Directory interface {
	// Tokens returns an account's tokens by id, dead ones too, at most limit of
	// those after the id `after`; a limit below 1 is Invalid, an unknown
	// account NotFound.
	Tokens(ctx context.Context, account, after string, limit int) ([]Record, error)
	// SetAccount gives an existing account the role and the state of a; what a
	// says of Created is not kept. An unknown name is NotFound. A change after
	// which [CheckAdminLeft] finds no admin is its Conflict and changes
	// nothing, however many such changes are made at once.
	SetAccount(ctx context.Context, a Account) error
}
