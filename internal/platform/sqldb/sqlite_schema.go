package sqldb

import (
	"context"
	"database/sql"

	"github.com/pressly/goose/v3"

	"fleetdesk/internal/core/fault"
)

// applicationID is "Fldk" in the header of our files; the first step sets it.
const applicationID = 1181508715

const sqliteFolder = "migrations/sqlite"

// upgrade runs the missing steps. The caller holds the side lock.
func (d *sqliteDB) upgrade(ctx context.Context) error {
	s, err := newSteps(goose.DialectSQLite3, d.writer, sqliteFolder, versionTable)
	if err != nil {
		return err
	}
	return d.classify(ctx, s.up(ctx))
}

// inspect reads the schema version, 0 for a database that is new or whose
// creation was cut short. It writes nothing, and refuses what is not ours and
// what a newer version made.
func (d *sqliteDB) inspect(ctx context.Context) (version int64, err error) {
	tx, err := d.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return 0, d.classify(ctx, err)
	}
	defer func() { _ = tx.Rollback() }()

	var owner int64
	if err := tx.QueryRowContext(ctx, "PRAGMA application_id").Scan(&owner); err != nil {
		return 0, d.classify(ctx, err)
	}
	var versioned, others int
	const count = `SELECT count(*) FILTER (WHERE name = ?1), count(*) FILTER (WHERE name <> ?1 AND name NOT LIKE 'sqlite\_%' ESCAPE '\') FROM sqlite_schema`
	if err := tx.QueryRowContext(ctx, count, versionTable).Scan(&versioned, &others); err != nil {
		return 0, d.classify(ctx, err)
	}
	if owner != applicationID && (owner != 0 || others > 0) {
		return 0, fault.Errorf(fault.Permanent, "database %s: it belongs to another program: give another path", d.path)
	}
	if versioned == 0 {
		return 0, nil
	}
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versionTable).Scan(&version); err != nil {
		return 0, d.classify(ctx, err)
	}
	return version, notNewer("database "+d.path, version, d.known)
}
