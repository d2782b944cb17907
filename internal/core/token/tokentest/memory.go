package tokentest

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// Memory is a [token.Store] and [token.Directory] in memory. It passes the
// suites, and can be made to fail.
type Memory struct {
	mu       sync.Mutex
	accounts map[string]token.Account
	tokens   map[string]token.Record
	fail     error
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{accounts: map[string]token.Account{}, tokens: map[string]token.Record{}}
}

// Fail makes every later call return err, until it is called with nil.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// enter locks the store for a call that may go on.
func (m *Memory) enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(fault.Timeout, err)
	}
	m.mu.Lock()
	if m.fail != nil {
		defer m.mu.Unlock()
		return nil, m.fail
	}
	return m.mu.Unlock, nil
}

// CreateAccount implements [token.Store].
func (m *Memory) CreateAccount(ctx context.Context, a token.Account) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return m.addAccount(a)
}

// CreateToken implements [token.Store].
func (m *Memory) CreateToken(ctx context.Context, r token.Record) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return m.addToken(r)
}

func (m *Memory) addAccount(a token.Account) error {
	if err := a.Validate(); err != nil {
		return err
	}
	if _, ok := m.accounts[a.Name]; ok {
		return fault.Errorf(fault.Conflict, "account %s exists", a.Name)
	}
	a.Created = kept(a.Created)
	m.accounts[a.Name] = a
	return nil
}

func (m *Memory) addToken(r token.Record) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if _, ok := m.tokens[r.ID]; ok {
		return fault.Errorf(fault.Conflict, "token %s exists", r.ID)
	}
	if _, ok := m.accounts[r.Account]; !ok {
		return fault.Errorf(fault.NotFound, "account %s does not exist", r.Account)
	}
	r.Hash = bytes.Clone(r.Hash)
	r.Created, r.Expires = kept(r.Created), kept(r.Expires)
	m.tokens[r.ID] = r
	return nil
}

// kept is a time as the contract keeps it.
func kept(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// TokenByID implements [token.Store].
func (m *Memory) TokenByID(ctx context.Context, id string) (token.Record, token.Account, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return token.Record{}, token.Account{}, err
	}
	defer leave()
	r, ok := m.tokens[id]
	if !ok {
		return token.Record{}, token.Account{}, fault.Errorf(fault.NotFound, "token %s does not exist", id)
	}
	r.Hash = bytes.Clone(r.Hash)
	return r, m.accounts[r.Account], nil
}

// RevokeToken implements [token.Store].
func (m *Memory) RevokeToken(ctx context.Context, id string) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	r, ok := m.tokens[id]
	if !ok {
		return fault.Errorf(fault.NotFound, "token %s does not exist", id)
	}
	r.Revoked = true
	m.tokens[id] = r
	return nil
}

// Accounts implements [token.Store].
func (m *Memory) Accounts(ctx context.Context, after string, limit int) ([]token.Account, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if limit < 1 {
		return nil, fault.Errorf(fault.Invalid, "limit %d: ask for at least one account", limit)
	}
	all := slices.SortedFunc(maps.Values(m.accounts), func(a, b token.Account) int { return cmp.Compare(a.Name, b.Name) })
	all = slices.DeleteFunc(all, func(a token.Account) bool { return a.Name <= after })
	return all[:min(limit, len(all))], nil
}

// Bootstrap implements [token.Store].
func (m *Memory) Bootstrap(ctx context.Context, a token.Account, r token.Record) (bool, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	if err := token.ValidateFirstAdmin(a, r); err != nil {
		return false, err
	}
	for _, other := range m.accounts {
		if other.Role == token.Admin {
			return false, nil
		}
	}
	if _, ok := m.tokens[r.ID]; ok {
		return false, fault.Errorf(fault.Conflict, "token %s exists", r.ID)
	}
	if err := m.addAccount(a); err != nil {
		return false, err
	}
	return true, m.addToken(r)
}

// Tokens implements [token.Directory].
func (m *Memory) Tokens(ctx context.Context, account, after string, limit int) ([]token.Record, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if limit < 1 {
		return nil, fault.Errorf(fault.Invalid, "limit %d: ask for at least one token", limit)
	}
	if _, ok := m.accounts[account]; !ok {
		return nil, fault.Errorf(fault.NotFound, "account %.140q does not exist", account)
	}
	var all []token.Record
	for _, r := range m.tokens {
		if r.Account == account && r.ID > after {
			r.Hash = bytes.Clone(r.Hash)
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b token.Record) int { return cmp.Compare(a.ID, b.ID) })
	return all[:min(limit, len(all))], nil
}

// SetAccount implements [token.Directory].
func (m *Memory) SetAccount(ctx context.Context, a token.Account) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := a.Validate(); err != nil {
		return err
	}
	old, ok := m.accounts[a.Name]
	if !ok {
		return fault.Errorf(fault.NotFound, "account %s does not exist", a.Name)
	}
	others := false
	for _, o := range m.accounts {
		others = others || o.Name != a.Name && o.Role == token.Admin && !o.Disabled
	}
	if err := token.CheckAdminLeft(a, others); err != nil {
		return err
	}
	a.Created = old.Created
	m.accounts[a.Name] = a
	return nil
}
