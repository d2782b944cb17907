package sqldb

import (
	"context"
	"database/sql"
	"errors"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// sqliteTokens is [Tokens] over SQLite.
type sqliteTokens struct{ db *sqliteDB }

// tokens implements backend.
func (d *sqliteDB) tokens() Tokens { return &sqliteTokens{d} }

// CreateAccount implements [token.Store].
func (s *sqliteTokens) CreateAccount(ctx context.Context, a token.Account) error {
	if err := a.Validate(); err != nil {
		return err
	}
	return s.db.write(ctx, func(tx *sql.Tx) error { return s.insertAccount(ctx, tx, a) })
}

// CreateToken implements [token.Store].
func (s *sqliteTokens) CreateToken(ctx context.Context, r token.Record) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return s.db.write(ctx, func(tx *sql.Tx) error { return s.insertToken(ctx, tx, r) })
}

func (s *sqliteTokens) insertAccount(ctx context.Context, tx *sql.Tx, a token.Account) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO accounts (name, role, created, disabled) VALUES (?, ?, ?, ?)",
		a.Name, string(a.Role), a.Created.UnixMicro(), a.Disabled)
	err = s.db.classify(ctx, err)
	if fault.Of(err) == fault.Conflict {
		return accountExists(a.Name)
	}
	return err
}

func (s *sqliteTokens) insertToken(ctx context.Context, tx *sql.Tx, r token.Record) error {
	expires := sql.NullInt64{Int64: r.Expires.UnixMicro(), Valid: !r.Expires.IsZero()}
	_, err := tx.ExecContext(ctx, "INSERT INTO tokens (id, account, hash, created, expires, revoked) VALUES (?, ?, ?, ?, ?, ?)",
		r.ID, r.Account, r.Hash, r.Created.UnixMicro(), expires, r.Revoked)
	err = s.db.classify(ctx, err)
	switch fault.Of(err) {
	case fault.Conflict:
		return tokenExists(r.ID)
	case fault.NotFound:
		return ownerMissing(r.Account)
	}
	return err
}

// TokenByID implements [token.Store].
func (s *sqliteTokens) TokenByID(ctx context.Context, id string) (token.Record, token.Account, error) {
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
		return token.Record{}, token.Account{}, noToken(id)
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

// RevokeToken implements [token.Store].
func (s *sqliteTokens) RevokeToken(ctx context.Context, id string) error {
	return s.db.write(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE tokens SET revoked = TRUE WHERE id = ?", id)
		if err != nil {
			return err
		}
		switch n, err := res.RowsAffected(); {
		case err != nil:
			return err
		case n == 0:
			return noToken(id)
		}
		return nil
	})
}

// Accounts implements [token.Store].
func (s *sqliteTokens) Accounts(ctx context.Context, after string, limit int) (_ []token.Account, err error) {
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

// Tokens implements [token.Directory].
func (s *sqliteTokens) Tokens(ctx context.Context, account, after string, limit int) (_ []token.Record, err error) {
	if limit < 1 {
		return nil, fault.Errorf(fault.Invalid, "limit %d: ask for at least one token", limit)
	}
	defer func() { err = s.db.classify(ctx, err) }()
	// One row at least when the account exists.
	rows, err := s.db.reader.QueryContext(ctx, `
		SELECT t.id, t.hash, t.created, t.expires, t.revoked
		FROM accounts a LEFT JOIN (SELECT * FROM tokens WHERE account = ?1 AND id > ?2 ORDER BY id LIMIT ?3) t ON TRUE
		WHERE a.name = ?1 ORDER BY t.id`, account, after, limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	exists := false
	var all []token.Record
	for rows.Next() {
		exists = true
		var (
			id               sql.NullString
			created, expires sql.NullInt64
			revoked          sql.NullBool
			r                = token.Record{Account: account}
		)
		if err := rows.Scan(&id, &r.Hash, &created, &expires, &revoked); err != nil {
			return nil, err
		}
		if !id.Valid {
			continue
		}
		r.ID, r.Created, r.Revoked = id.String, instant(created.Int64), revoked.Bool
		if expires.Valid {
			r.Expires = instant(expires.Int64)
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if !exists {
		return nil, noAccount(account)
	}
	return all, nil
}

// SetAccount implements [token.Directory].
func (s *sqliteTokens) SetAccount(ctx context.Context, a token.Account) error {
	if err := a.Validate(); err != nil {
		return err
	}
	return s.db.write(ctx, func(tx *sql.Tx) error {
		var exists, others bool
		err := tx.QueryRowContext(ctx, `
			SELECT EXISTS (SELECT 1 FROM accounts WHERE name = ?1),
				EXISTS (SELECT 1 FROM accounts WHERE name <> ?1 AND role = ?2 AND NOT disabled)`, a.Name, string(token.Admin)).
			Scan(&exists, &others)
		switch {
		case err != nil:
			return err
		case !exists:
			return noAccount(a.Name)
		}
		if err := token.CheckAdminLeft(a, others); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE accounts SET role = ?, disabled = ? WHERE name = ?", string(a.Role), a.Disabled, a.Name)
		return err
	})
}

// Bootstrap implements [token.Store].
func (s *sqliteTokens) Bootstrap(ctx context.Context, a token.Account, r token.Record) (created bool, err error) {
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
