package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// Tokens is the database as a [token.Store].
type Tokens struct{ db *DB }

var _ token.Store = (*Tokens)(nil)

// Tokens returns the store of accounts and tokens; it lives as long as the
// database is open.
func (d *DB) Tokens() *Tokens { return &Tokens{d} }

// CreateAccount implements [token.Store].
func (s *Tokens) CreateAccount(ctx context.Context, a token.Account) error {
	if err := a.Validate(); err != nil {
		return err
	}
	return s.db.write(ctx, func(tx *sql.Tx) error { return s.insertAccount(ctx, tx, a) })
}

// CreateToken implements [token.Store].
func (s *Tokens) CreateToken(ctx context.Context, r token.Record) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return s.db.write(ctx, func(tx *sql.Tx) error { return s.insertToken(ctx, tx, r) })
}

func (s *Tokens) insertAccount(ctx context.Context, tx *sql.Tx, a token.Account) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO accounts (name, role, created, disabled) VALUES (?, ?, ?, ?)",
		a.Name, string(a.Role), a.Created.UnixMicro(), a.Disabled)
	err = s.db.classify(ctx, err)
	if fault.Of(err) == fault.Conflict {
		return fault.Errorf(fault.Conflict, "account %s exists already: choose another name", a.Name)
	}
	return err
}

func (s *Tokens) insertToken(ctx context.Context, tx *sql.Tx, r token.Record) error {
	expires := sql.NullInt64{Int64: r.Expires.UnixMicro(), Valid: !r.Expires.IsZero()}
	_, err := tx.ExecContext(ctx, "INSERT INTO tokens (id, account, hash, created, expires, revoked) VALUES (?, ?, ?, ?, ?, ?)",
		r.ID, r.Account, r.Hash, r.Created.UnixMicro(), expires, r.Revoked)
	err = s.db.classify(ctx, err)
	switch fault.Of(err) {
	case fault.Conflict:
		return fault.Errorf(fault.Conflict, "token %s exists already", r.ID)
	case fault.NotFound:
		return fault.Errorf(fault.NotFound, "account %s does not exist: create it first", r.Account)
	}
	return err
}

// TokenByID implements [token.Store].
func (s *Tokens) TokenByID(ctx context.Context, id string) (token.Record, token.Account, error) {
	var (
		r       token.Record
		a       token.Account
		expires sql.NullInt64
		created struct{ token, account int64 }
	)
	// One statement sees one state of both tables.
	err := s.db.reader.QueryRowContext(ctx, `
		SELECT t.id, t.account, t.hash, t.created, t.expires, t.revoked, a.name, a.role, a.created, a.disabled
		FROM tokens t JOIN accounts a ON a.name = t.account WHERE t.id = ?`, id).
		Scan(&r.ID, &r.Account, &r.Hash, &created.token, &expires, &r.Revoked, &a.Name, &a.Role, &created.account, &a.Disabled)
	if errors.Is(err, sql.ErrNoRows) {
		return token.Record{}, token.Account{}, fault.Errorf(fault.NotFound, "token %.80q does not exist", id)
	}
	if err != nil {
		return token.Record{}, token.Account{}, s.db.classify(ctx, err)
	}
	r.Created, a.Created = instant(created.token), instant(created.account)
	if expires.Valid {
		r.Expires = instant(expires.Int64)
	}
	return r, a, nil
}

// instant is a stored time.
func instant(micros int64) time.Time { return time.UnixMicro(micros).UTC() }

// RevokeToken implements [token.Store].
func (s *Tokens) RevokeToken(ctx context.Context, id string) error {
	return s.db.write(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE tokens SET revoked = TRUE WHERE id = ?", id)
		if err != nil {
			return err
		}
		switch n, err := res.RowsAffected(); {
		case err != nil:
			return err
		case n == 0:
			return fault.Errorf(fault.NotFound, "token %.80q does not exist", id)
		}
		return nil
	})
}

// Accounts implements [token.Store].
func (s *Tokens) Accounts(ctx context.Context, after string, limit int) (_ []token.Account, err error) {
	if limit < 1 {
		return nil, fault.Errorf(fault.Invalid, "limit %d: ask for at least one account", limit)
	}
	defer func() { err = s.db.classify(ctx, err) }()
	rows, err := s.db.reader.QueryContext(ctx,
		"SELECT name, role, created, disabled FROM accounts WHERE name > ? ORDER BY name LIMIT ?", after, limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var all []token.Account
	for rows.Next() {
		var a token.Account
		var created int64
		if err := rows.Scan(&a.Name, &a.Role, &created, &a.Disabled); err != nil {
			return nil, err
		}
		a.Created = instant(created)
		all = append(all, a)
	}
	if err := rows.Err(); err != nil { // a list is whole or an error
		return nil, err
	}
	return all, nil
}

// Bootstrap implements [token.Store].
func (s *Tokens) Bootstrap(ctx context.Context, a token.Account, r token.Record) (created bool, err error) {
	if err := token.ValidateFirstAdmin(a, r); err != nil {
		return false, err
	}
	err = s.db.write(ctx, func(tx *sql.Tx) error {
		var exists bool
		if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM accounts WHERE role = ?)", string(token.Admin)).Scan(&exists); err != nil {
			return err
		}
		if exists {
			return nil
		}
		if err := s.insertAccount(ctx, tx, a); err != nil {
			return err
		}
		if err := s.insertToken(ctx, tx, r); err != nil {
			return err
		}
		created = true
		return nil
	})
	return created && err == nil, err
}
