package token

import (
	"context"
	"time"

	"fleetdesk/internal/core/fault"
	core "fleetdesk/internal/core/token"
)

// Accounts returns accounts by name, at most limit of those after the name
// `after`. Errors: Invalid (limit), and the store's.
func (s *Service) Accounts(ctx context.Context, after string, limit int) ([]core.Account, error) {
	return s.store.Accounts(ctx, after, limit)
}

// CreateAccount adds an account. Errors: Invalid, Conflict, and the store's.
func (s *Service) CreateAccount(ctx context.Context, name string, role core.Role) (core.Account, error) {
	a := core.Account{Name: name, Role: role, Created: s.now()}
	if err := s.store.CreateAccount(ctx, a); err != nil {
		return core.Account{}, err
	}
	return a, nil
}

// ChangeAccount gives an existing account the role and the state of a, for its
// tokens too; again is fine. Errors: Invalid, NotFound (code account), Conflict
// (code last_admin) when no enabled admin would be left, and the store's.
func (s *Service) ChangeAccount(ctx context.Context, a core.Account) error {
	if s.directory == nil {
		return errNoDirectory()
	}
	// Also after an error: whether it was done may be unknown.
	defer s.generation.Add(1)
	return unknown(s.directory.SetAccount(ctx, a), core.CodeAccount)
}

// Tokens returns an account's tokens by id, dead ones too, at most limit of
// those after the id `after`, without their hashes. Errors: Invalid (limit),
// NotFound (code account), and the store's.
func (s *Service) Tokens(ctx context.Context, account, after string, limit int) ([]core.Record, error) {
	if s.directory == nil {
		return nil, errNoDirectory()
	}
	all, err := s.directory.Tokens(ctx, account, after, limit)
	if err != nil {
		return nil, unknown(err, core.CodeAccount)
	}
	for i := range all {
		all[i].Hash = nil
	}
	return all, nil
}

// The bounds of a token's lifetime. Less is a mistaken unit, more is for ever.
const (
	MinLifetime = time.Minute
	MaxLifetime = 10 * 365 * 24 * time.Hour
)

// IssueFor makes a token as [Service.Issue] does, that lives for the time given
// by this server's clock; 0 means for ever. A lifetime outside of
// [MinLifetime] and [MaxLifetime] is Invalid.
func (s *Service) IssueFor(ctx context.Context, account string, lifetime time.Duration) (Secret, core.Record, error) {
	if lifetime == 0 {
		return s.Issue(ctx, account, time.Time{})
	}
	if lifetime < MinLifetime || lifetime > MaxLifetime {
		return Secret{}, core.Record{}, fault.Errorf(fault.Invalid, "token of %.140q: a lifetime of %s is not between %s and %s",
			account, lifetime, MinLifetime, MaxLifetime)
	}
	return s.Issue(ctx, account, s.now().Add(lifetime))
}

// Revoke ends the token with that public id; again is fine. Errors: NotFound
// (code token), and the store's.
func (s *Service) Revoke(ctx context.Context, id string) error {
	// Also after an error: whether it was done may be unknown.
	defer s.generation.Add(1)
	return unknown(s.store.RevokeToken(ctx, id), core.CodeToken)
}

// Generation grows with each change through this service after which an answer
// that Authenticate gave before may no longer hold, before the change returns to
// its caller. Changes through other processes do not show in it.
func (s *Service) Generation() uint64 { return s.generation.Load() }

// unknown gives a NotFound the code that says what was not found.
func unknown(err error, code string) error {
	if fault.Of(err) == fault.NotFound {
		return fault.WithCode(err, code)
	}
	return err
}

func errNoDirectory() error {
	return fault.New(fault.Unsupported, "this store cannot list tokens or change accounts")
}
