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

func TestMemoryDirectory(t *testing.T) {
	tokentest.RunDirectory(t, func(*testing.T) tokentest.DirectoryStore { return tokentest.NewMemory() })
}

func TestDirectoryClausesAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range tokentest.DirectoryClauses() {
		if seen[c.Name] || c.Name == "" || c.Promise == "" || c.Check == nil {
			t.Errorf("clause %q is named twice or lacks a part", c.Name)
		}
		seen[c.Name] = true
	}
}

// directoryMutant is the good directory with single methods replaced.
type directoryMutant struct {
	*tokentest.Memory
	tokens     func(context.Context, string, string, int) ([]token.Record, error)
	setAccount func(context.Context, token.Account) error
}

func (m *directoryMutant) Tokens(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
	if m.tokens != nil {
		return m.tokens(ctx, account, after, limit)
	}
	return m.Memory.Tokens(ctx, account, after, limit)
}

func (m *directoryMutant) SetAccount(ctx context.Context, a token.Account) error {
	if m.setAccount != nil {
		return m.setAccount(ctx, a)
	}
	return m.Memory.SetAccount(ctx, a)
}

// adminLeft is whether the store holds an enabled admin besides name.
func (m *directoryMutant) adminLeft(ctx context.Context, name string) bool {
	all, _ := m.Memory.Accounts(ctx, "", 1000)
	return slices.ContainsFunc(all, func(a token.Account) bool {
		return a.Name != name && a.Role == token.Admin && !a.Disabled
	})
}

// overwrite changes an account whatever the rules say.
func (m *directoryMutant) overwrite(ctx context.Context, a token.Account) error {
	// A second admin lets any change pass, and steps back after it.
	stand := token.Account{Name: "stand-in", Role: token.Admin}
	if err := m.Memory.CreateAccount(ctx, stand); err != nil && fault.Of(err) != fault.Conflict {
		return err
	}
	return m.Memory.SetAccount(ctx, a)
}

// Each mutant breaks one promise; the suite must notice by the named clause.
func TestDirectoryMutantsAreCaught(t *testing.T) {
	cases := map[string]struct {
		reason string
		breaks func(*directoryMutant)
		clause string
	}{
		"live ones only": {
			"a list for people shows dead tokens too",
			func(m *directoryMutant) {
				m.tokens = func(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
					all, err := m.Memory.Tokens(ctx, account, after, limit)
					return slices.DeleteFunc(all, func(r token.Record) bool { return r.Revoked }), err
				}
			}, "Tokens/keeps",
		},
		"folds case": {
			"as a database with a case-blind collation does",
			func(m *directoryMutant) {
				m.tokens = func(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
					all, err := m.Memory.Tokens(ctx, account, after, limit)
					if more, e := m.Memory.Tokens(ctx, strings.ToUpper(account[:1])+account[1:], after, limit); e == nil {
						all = append(all, more...)
					}
					return all, err
				}
			}, "Tokens/others",
		},
		"unknown is empty": {
			"a typo must not look like an account without tokens",
			func(m *directoryMutant) {
				m.tokens = func(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
					all, err := m.Memory.Tokens(ctx, account, after, limit)
					if fault.Of(err) == fault.NotFound {
						err = nil
					}
					return all, err
				}
			}, "Tokens/unknown",
		},
		"none is unknown": {
			"a join finds no account without tokens",
			func(m *directoryMutant) {
				m.tokens = func(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
					all, err := m.Memory.Tokens(ctx, account, after, limit)
					if err == nil && len(all) == 0 {
						err = fault.New(fault.NotFound, "gone")
					}
					return all, err
				}
			}, "Tokens/empty",
		},
		"includes after": {
			"a page that starts at the last one's end repeats it",
			func(m *directoryMutant) {
				m.tokens = func(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
					all, err := m.Memory.Tokens(ctx, account, "", 1000)
					all = slices.DeleteFunc(all, func(r token.Record) bool { return r.ID < after })
					return all[:min(limit, len(all))], err
				}
			}, "Tokens/paging",
		},
		"by time": {
			"ids are drawn: the order of creation is another",
			func(m *directoryMutant) {
				m.tokens = func(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
					all, err := m.Memory.Tokens(ctx, account, after, 1000)
					slices.Reverse(all)
					return all[:min(limit, len(all))], err
				}
			}, "Tokens/paging",
		},
		"limitless": {
			"a negative limit means no limit in SQLite",
			func(m *directoryMutant) {
				m.tokens = func(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
					if limit < 1 {
						limit = 1000
					}
					return m.Memory.Tokens(ctx, account, after, limit)
				}
			}, "Tokens/limit",
		},
		"role alone": {
			"half a change",
			func(m *directoryMutant) {
				m.setAccount = func(ctx context.Context, a token.Account) error {
					a.Disabled = false
					return m.Memory.SetAccount(ctx, a)
				}
			}, "SetAccount/changes",
		},
		"makes what is missing": {
			"an upsert makes an account of a typo",
			func(m *directoryMutant) {
				m.setAccount = func(ctx context.Context, a token.Account) error {
					if err := m.Memory.SetAccount(ctx, a); fault.Of(err) != fault.NotFound {
						return err
					}
					return m.Memory.CreateAccount(ctx, a)
				}
			}, "SetAccount/unknown",
		},
		"unknown is fine": {
			"an update of no row is no success",
			func(m *directoryMutant) {
				m.setAccount = func(ctx context.Context, a token.Account) error {
					err := m.Memory.SetAccount(ctx, a)
					if fault.Of(err) == fault.NotFound {
						return nil
					}
					return err
				}
			}, "SetAccount/unknown",
		},
		"same is a conflict": {
			"a repeated change must be harmless",
			func(m *directoryMutant) {
				m.setAccount = func(ctx context.Context, a token.Account) error {
					all, _ := m.Memory.Accounts(ctx, "", 1000)
					if slices.Contains(all, a) {
						return fault.New(fault.Conflict, "nothing to change")
					}
					return m.Memory.SetAccount(ctx, a)
				}
			}, "SetAccount/same",
		},
		"disabled admins count": {
			"who cannot log in cannot undo it",
			func(m *directoryMutant) {
				m.setAccount = func(ctx context.Context, a token.Account) error {
					err := m.Memory.SetAccount(ctx, a)
					all, _ := m.Memory.Accounts(ctx, "", 1000)
					if fault.Of(err) == fault.Conflict && slices.ContainsFunc(all, func(o token.Account) bool {
						return o.Name != a.Name && o.Role == token.Admin
					}) {
						return m.overwrite(ctx, a)
					}
					return err
				}
			}, "SetAccount/last-admin",
		},
		"changes, then refuses": {
			"without a transaction the refusal comes too late",
			func(m *directoryMutant) {
				m.setAccount = func(ctx context.Context, a token.Account) error {
					err := m.Memory.SetAccount(ctx, a)
					if fault.Of(err) == fault.Conflict {
						_ = m.overwrite(ctx, a)
					}
					return err
				}
			}, "SetAccount/last-admin",
		},
		"refuses without its code": {
			"a client tells conflicts apart by the code",
			func(m *directoryMutant) {
				m.setAccount = func(ctx context.Context, a token.Account) error {
					err := m.Memory.SetAccount(ctx, a)
					if fault.Of(err) == fault.Conflict {
						return fault.New(fault.Conflict, err.Error())
					}
					return err
				}
			}, "SetAccount/last-admin",
		},
		"looks, then changes": {
			"two admins who both see another one",
			func(m *directoryMutant) {
				var (
					mu      sync.Mutex
					looked  int
					allSeen = make(chan struct{})
				)
				m.setAccount = func(ctx context.Context, a token.Account) error {
					if err := token.CheckAdminLeft(a, m.adminLeft(ctx, a.Name)); err != nil {
						return err
					}
					mu.Lock()
					if looked++; looked == 24 {
						close(allSeen)
					}
					mu.Unlock()
					select {
					case <-allSeen:
					case <-time.After(time.Second): // the other checks call alone
					}
					return m.overwrite(ctx, a)
				}
			}, "SetAccount/race",
		},
		"ignores contexts": {
			"a call must not go on after its caller left",
			func(m *directoryMutant) {
				m.setAccount = func(ctx context.Context, a token.Account) error {
					return m.Memory.SetAccount(context.WithoutCancel(ctx), a)
				}
			}, "Context/ended",
		},
	}
	clauses := map[string]tokentest.DirectoryClause{}
	for _, c := range tokentest.DirectoryClauses() {
		clauses[c.Name] = c
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		tc := cases[name]
		t.Run(name, func(t *testing.T) {
			m := &directoryMutant{Memory: tokentest.NewMemory()}
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
