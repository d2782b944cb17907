package sqldb

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// postgresTokens is [Tokens] over PostgreSQL.
type postgresTokens struct{ db *postgresDB }

// tokens implements backend.
func (d *postgresDB) tokens() Tokens { return &postgresTokens{d} }

// storable reports whether a text can be in the database at all: the server
// refuses to compare with any other.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// CreateAccount implements [token.Store].
func (s *postgresTokens) CreateAccount(ctx context.Context, a token.Account) error {
	if err := a.Validate(); err != nil {
		return err
	}
	return s.db.write(ctx, func(ctx context.Context, tx *pgx.Conn) error { return s.insertAccount(ctx, tx, a) })
}

// CreateToken implements [token.Store].
func (s *postgresTokens) CreateToken(ctx context.Context, r token.Record) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return s.db.write(ctx, func(ctx context.Context, tx *pgx.Conn) error { return s.insertToken(ctx, tx, r) })
}

func (s *postgresTokens) insertAccount(ctx context.Context, tx *pgx.Conn, a token.Account) error {
	_, err := tx.Exec(ctx, "INSERT INTO fleetdesk.accounts (name, role, created, disabled) VALUES ($1, $2, $3, $4)",
		a.Name, string(a.Role), a.Created.UnixMicro(), a.Disabled)
	err = s.db.classify(ctx, err)
	if fault.Of(err) == fault.Conflict {
		return accountExists(a.Name)
	}
	return err
}

func (s *postgresTokens) insertToken(ctx context.Context, tx *pgx.Conn, r token.Record) error {
	var expires *int64
	if !r.Expires.IsZero() {
		expires = new(r.Expires.UnixMicro())
	}
	_, err := tx.Exec(ctx, "INSERT INTO fleetdesk.tokens (id, account, hash, created, expires, revoked) VALUES ($1, $2, $3, $4, $5, $6)",
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
func (s *postgresTokens) TokenByID(ctx context.Context, id string) (r token.Record, a token.Account, err error) {
	if !storable(id) {
		return token.Record{}, token.Account{}, noToken(id)
	}
	var (
		expires *int64
		created struct{ token, account int64 }
	)
	err = s.db.read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		// One statement sees one state of both tables.
		err := c.QueryRow(ctx, `
			SELECT t.id, t.account, t.hash, t.created, t.expires, t.revoked, a.name, a.role, a.created, a.disabled
			FROM fleetdesk.tokens t JOIN fleetdesk.accounts a ON a.name = t.account WHERE t.id = $1`, id).
			Scan(&r.ID, &r.Account, &r.Hash, &created.token, &expires, &r.Revoked, &a.Name, (*string)(&a.Role), &created.account, &a.Disabled)
		if errors.Is(err, pgx.ErrNoRows) {
			return noToken(id)
		}
		return err
	})
	if err != nil {
		return token.Record{}, token.Account{}, err
	}
	r.Created, a.Created = instant(created.token), instant(created.account)
	if expires != nil {
		r.Expires = instant(*expires)
	}
	return r, a, nil
}

// RevokeToken implements [token.Store].
func (s *postgresTokens) RevokeToken(ctx context.Context, id string) error {
	if !storable(id) {
		return noToken(id)
	}
	return s.db.write(ctx, func(ctx context.Context, tx *pgx.Conn) error {
		tag, err := tx.Exec(ctx, "UPDATE fleetdesk.tokens SET revoked = TRUE WHERE id = $1", id)
		if err == nil && tag.RowsAffected() == 0 {
			return noToken(id)
		}
		return err
	})
}

// Accounts implements [token.Store].
func (s *postgresTokens) Accounts(ctx context.Context, after string, limit int) (all []token.Account, err error) {
	if limit < 1 {
		return nil, fault.Errorf(fault.Invalid, "limit %d: ask for at least one account", limit)
	}
	err = s.db.read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT name, role, created, disabled FROM fleetdesk.accounts WHERE name > $1 ORDER BY name LIMIT $2", after, limit)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a token.Account, err error) {
			var created int64
			err = row.Scan(&a.Name, (*string)(&a.Role), &created, &a.Disabled)
			a.Created = instant(created)
			return a, err
		})
		return err
	})
	return all, err
}

// Tokens implements [token.Directory].
func (s *postgresTokens) Tokens(ctx context.Context, account, after string, limit int) (all []token.Record, err error) {
	switch {
	case limit < 1:
		return nil, fault.Errorf(fault.Invalid, "limit %d: ask for at least one token", limit)
	case !storable(account):
		return nil, noAccount(account)
	}
	err = s.db.read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		all = nil
		// One row at least when the account exists.
		rows, err := c.Query(ctx, `
			SELECT t.id, t.hash, t.created, t.expires, t.revoked
			FROM fleetdesk.accounts a
			LEFT JOIN (SELECT * FROM fleetdesk.tokens WHERE account = $1 AND id > $2 ORDER BY id LIMIT $3) t ON TRUE
			WHERE a.name = $1 ORDER BY t.id`, account, after, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		exists := false
		for rows.Next() {
			exists = true
			var (
				id               *string
				created, expires *int64
				revoked          *bool
				r                = token.Record{Account: account}
			)
			if err := rows.Scan(&id, &r.Hash, &created, &expires, &revoked); err != nil {
				return err
			}
			if id == nil {
				continue
			}
			r.ID, r.Created, r.Revoked = *id, instant(*created), *revoked
			if expires != nil {
				r.Expires = instant(*expires)
			}
			all = append(all, r)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if !exists {
			return noAccount(account)
		}
		return nil
	})
	return all, err
}

// SetAccount implements [token.Directory].
func (s *postgresTokens) SetAccount(ctx context.Context, a token.Account) error {
	if err := a.Validate(); err != nil {
		return err
	}
	return s.db.write(ctx, func(ctx context.Context, tx *pgx.Conn) error {
		if err := alone(ctx, tx); err != nil { // two admins must not end each other
			return err
		}
		var exists, others bool
		err := tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT 1 FROM fleetdesk.accounts WHERE name = $1),
				EXISTS (SELECT 1 FROM fleetdesk.accounts WHERE name <> $1 AND role = $2 AND NOT disabled)`, a.Name, string(token.Admin)).
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
		_, err = tx.Exec(ctx, "UPDATE fleetdesk.accounts SET role = $1, disabled = $2 WHERE name = $3", string(a.Role), a.Disabled, a.Name)
		return err
	})
}

// Bootstrap implements [token.Store].
func (s *postgresTokens) Bootstrap(ctx context.Context, a token.Account, r token.Record) (created bool, err error) {
	if err := token.ValidateFirstAdmin(a, r); err != nil {
		return false, err
	}
	err = s.db.write(ctx, func(ctx context.Context, tx *pgx.Conn) error {
		if err := alone(ctx, tx); err != nil { // one is first
			return err
		}
		var exists bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM fleetdesk.accounts WHERE role = $1)", string(token.Admin)).Scan(&exists); err != nil {
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
