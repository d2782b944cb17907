package tokentest_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/core/token/tokentest"
)

func TestMemory(t *testing.T) {
	tokentest.Run(t, func(*testing.T) token.Store { return tokentest.NewMemory() })
}

func TestClausesAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range tokentest.Clauses() {
		if seen[c.Name] || c.Name == "" || c.Promise == "" || c.Check == nil {
			t.Errorf("clause %q is named twice or lacks a part", c.Name)
		}
		seen[c.Name] = true
	}
}

// mutant is the good store with single methods replaced; a nil field leaves the
// method as it is.
type mutant struct {
	*tokentest.Memory
	createAccount func(context.Context, token.Account) error
	createToken   func(context.Context, token.Record) error
	tokenByID     func(context.Context, string) (token.Record, token.Account, error)
	revokeToken   func(context.Context, string) error
	accounts      func(context.Context, string, int) ([]token.Account, error)
	bootstrap     func(context.Context, token.Account, token.Record) (bool, error)
}

func (m *mutant) CreateAccount(ctx context.Context, a token.Account) error {
	if m.createAccount != nil {
		return m.createAccount(ctx, a)
	}
	return m.Memory.CreateAccount(ctx, a)
}

func (m *mutant) CreateToken(ctx context.Context, r token.Record) error {
	if m.createToken != nil {
		return m.createToken(ctx, r)
	}
	return m.Memory.CreateToken(ctx, r)
}

func (m *mutant) TokenByID(ctx context.Context, id string) (token.Record, token.Account, error) {
	if m.tokenByID != nil {
		return m.tokenByID(ctx, id)
	}
	return m.Memory.TokenByID(ctx, id)
}

func (m *mutant) RevokeToken(ctx context.Context, id string) error {
	if m.revokeToken != nil {
		return m.revokeToken(ctx, id)
	}
	return m.Memory.RevokeToken(ctx, id)
}

func (m *mutant) Accounts(ctx context.Context, after string, limit int) ([]token.Account, error) {
	if m.accounts != nil {
		return m.accounts(ctx, after, limit)
	}
	return m.Memory.Accounts(ctx, after, limit)
}

func (m *mutant) Bootstrap(ctx context.Context, a token.Account, r token.Record) (bool, error) {
	if m.bootstrap != nil {
		return m.bootstrap(ctx, a, r)
	}
	return m.Memory.Bootstrap(ctx, a, r)
}

// Each mutant breaks one promise; the suite must notice by the named clause.
func TestMutantsAreCaught(t *testing.T) {
	cases := map[string]struct {
		reason string
		breaks func(*mutant)
		clause string
	}{
		"overwrites accounts": {
			"a second create raises a viewer to admin",
			func(m *mutant) {
				taken := map[string]token.Account{}
				m.createAccount = func(ctx context.Context, a token.Account) error {
					taken[a.Name] = a
					if err := m.Memory.CreateAccount(ctx, a); fault.Of(err) != fault.Conflict {
						return err
					}
					return nil
				}
			}, "CreateAccount/conflict",
		},
		"folds case": {
			"as a database with a case-blind collation does",
			func(m *mutant) {
				m.createAccount = func(ctx context.Context, a token.Account) error {
					a.Name = strings.ToLower(a.Name)
					return m.Memory.CreateAccount(ctx, a)
				}
			}, "CreateAccount/bytes",
		},
		"seconds only": {
			"as a database with a coarse time type does",
			func(m *mutant) {
				m.createToken = func(ctx context.Context, r token.Record) error {
					r.Created = r.Created.Truncate(time.Second)
					return m.Memory.CreateToken(ctx, r)
				}
			}, "CreateToken/keeps",
		},
		"never becomes 1970": {
			"a zero time kept as the number 0 would end every such token",
			func(m *mutant) {
				m.createToken = func(ctx context.Context, r token.Record) error {
					if r.Expires.IsZero() {
						r.Expires = time.Unix(0, 0)
					}
					return m.Memory.CreateToken(ctx, r)
				}
			}, "CreateToken/never",
		},
		"hash as text": {
			"bytes that are no UTF-8 are lost",
			func(m *mutant) {
				m.createToken = func(ctx context.Context, r token.Record) error {
					r.Hash = []byte(strings.ToValidUTF8(string(r.Hash), "?"))
					if len(r.Hash) > 32 {
						r.Hash = r.Hash[:32]
					}
					for len(r.Hash) < 32 {
						r.Hash = append(r.Hash, 0)
					}
					return m.Memory.CreateToken(ctx, r)
				}
			}, "CreateToken/hash",
		},
		"orphans": {
			"no foreign key: a token of nobody",
			func(m *mutant) {
				m.createToken = func(ctx context.Context, r token.Record) error {
					err := m.Memory.CreateToken(ctx, r)
					if fault.Of(err) == fault.NotFound {
						return nil
					}
					return err
				}
			}, "CreateToken/account",
		},
		"hides expired": {
			"the store must not decide what is live",
			func(m *mutant) {
				m.tokenByID = func(ctx context.Context, id string) (token.Record, token.Account, error) {
					r, a, err := m.Memory.TokenByID(ctx, id)
					if err == nil && !r.Live(a, time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)) {
						return token.Record{}, token.Account{}, fault.New(fault.NotFound, "gone")
					}
					return r, a, err
				}
			}, "TokenByID/as-stored",
		},
		"outage as not found": {
			"an ended context is no proof of absence",
			func(m *mutant) {
				m.tokenByID = func(ctx context.Context, id string) (token.Record, token.Account, error) {
					r, a, err := m.Memory.TokenByID(ctx, id)
					if err != nil {
						err = fault.New(fault.NotFound, "gone")
					}
					return r, a, err
				}
			}, "Context/ended",
		},
		"ignores contexts": {
			"a call must not go on after its caller left",
			func(m *mutant) {
				m.createAccount = func(ctx context.Context, a token.Account) error {
					return m.Memory.CreateAccount(context.WithoutCancel(ctx), a)
				}
			}, "Context/ended",
		},
		"revokes once only": {
			"a repeated call must be harmless",
			func(m *mutant) {
				m.revokeToken = func(ctx context.Context, id string) error {
					if r, _, err := m.Memory.TokenByID(ctx, id); err == nil && r.Revoked {
						return fault.New(fault.NotFound, "gone")
					}
					return m.Memory.RevokeToken(ctx, id)
				}
			}, "RevokeToken/twice",
		},
		"revokes nothing": {
			"an answer without the deed",
			func(m *mutant) {
				m.revokeToken = func(ctx context.Context, id string) error {
					_, _, err := m.Memory.TokenByID(ctx, id)
					return err
				}
			}, "RevokeToken/ends",
		},
		"includes after": {
			"a page that starts at the last one's end repeats it",
			func(m *mutant) {
				m.accounts = func(ctx context.Context, after string, limit int) ([]token.Account, error) {
					all, err := m.Memory.Accounts(ctx, "", 1000)
					all = slices.DeleteFunc(all, func(a token.Account) bool { return a.Name < after })
					return all[:min(limit, len(all))], err
				}
			}, "Accounts/paging",
		},
		"dictionary order": {
			"as a database with a language's collation does",
			func(m *mutant) {
				m.accounts = func(ctx context.Context, after string, limit int) ([]token.Account, error) {
					all, err := m.Memory.Accounts(ctx, "", 1000)
					fold := strings.ToLower
					all = slices.DeleteFunc(all, func(a token.Account) bool { return fold(a.Name) <= fold(after) })
					slices.SortFunc(all, func(a, b token.Account) int { return strings.Compare(fold(a.Name), fold(b.Name)) })
					return all[:max(0, min(limit, len(all)))], err
				}
			}, "Accounts/paging",
		},
		"limitless": {
			"a negative limit means no limit in SQLite",
			func(m *mutant) {
				m.accounts = func(ctx context.Context, after string, limit int) ([]token.Account, error) {
					if limit < 1 {
						limit = 1000
					}
					return m.Memory.Accounts(ctx, after, limit)
				}
			}, "Accounts/limit",
		},
		"looks, then adds": {
			"two callers both see no admin",
			func(m *mutant) {
				var (
					mu      sync.Mutex
					looked  int
					allSeen = make(chan struct{})
				)
				m.bootstrap = func(ctx context.Context, a token.Account, r token.Record) (bool, error) {
					all, err := m.Memory.Accounts(ctx, "", 1000)
					if err != nil || slices.ContainsFunc(all, func(a token.Account) bool { return a.Role == token.Admin }) {
						return false, err
					}
					mu.Lock()
					if looked++; looked == 2 {
						close(allSeen)
					}
					mu.Unlock()
					select {
					case <-allSeen:
					case <-time.After(time.Second): // the other checks call alone
					}
					if err := m.Memory.CreateAccount(ctx, a); err != nil {
						return false, err
					}
					return true, m.Memory.CreateToken(ctx, r)
				}
			}, "Bootstrap/race",
		},
		"half a bootstrap": {
			"without a transaction a taken id leaves an admin without a token",
			func(m *mutant) {
				m.bootstrap = func(ctx context.Context, a token.Account, r token.Record) (bool, error) {
					created, err := m.Memory.Bootstrap(ctx, a, r)
					if fault.Of(err) == fault.Conflict {
						_ = m.Memory.CreateAccount(ctx, a)
					}
					return created, err
				}
			}, "Bootstrap/conflict",
		},
		"always created": {
			"the loser would deliver a token that opens nothing",
			func(m *mutant) {
				m.bootstrap = func(ctx context.Context, a token.Account, r token.Record) (bool, error) {
					_, err := m.Memory.Bootstrap(ctx, a, r)
					return err == nil, err
				}
			}, "Bootstrap/once",
		},
	}
	clauses := map[string]tokentest.Clause{}
	for _, c := range tokentest.Clauses() {
		clauses[c.Name] = c
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		tc := cases[name]
		t.Run(name, func(t *testing.T) {
			m := &mutant{Memory: tokentest.NewMemory()}
			tc.breaks(m)
			c, ok := clauses[tc.clause]
			if !ok {
				t.Fatalf("no clause %q", tc.clause)
			}
			if err := c.Check(t.Context(), m); err == nil {
				t.Errorf("clause %s does not notice: %s", tc.clause, tc.reason)
			}
		})
	}
}
