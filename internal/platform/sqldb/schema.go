package sqldb

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"

	"github.com/pressly/goose/v3"

	"fleetdesk/internal/core/fault"
)

//go:embed migrations/sqlite/*.sql
var migrationFiles embed.FS

const (
	// versionTable is where goose notes which migrations ran.
	versionTable = "schema_version"
	// applicationID is "Fldk" in the header of our files; the first migration
	// sets it.
	applicationID = 1181508715
)

// migrations are the embedded schema steps for one database.
type migrations struct {
	goose  *goose.Provider
	latest int64
}

func (d *DB) migrations() (*migrations, error) {
	dir, err := fs.Sub(migrationFiles, "migrations/sqlite")
	if err != nil {
		return nil, fault.Wrap(fault.Permanent, err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, d.writer, dir,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "schema steps of this program: %w", err)
	}
	all := p.ListSources()
	return &migrations{goose: p, latest: all[len(all)-1].Version}, nil
}

// up runs the missing steps, each in a transaction with the note that it ran. The
// caller holds the side lock.
func (m *migrations) up(ctx context.Context) error {
	_, err := m.goose.Up(ctx)
	return err
}

// inspect reads the schema version, 0 for a database that is new or whose
// creation was cut short. It writes nothing, and refuses what is not ours and
// what a newer version made.
func (d *DB) inspect(ctx context.Context) (version int64, err error) {
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
	if version > d.known {
		return 0, fault.Errorf(fault.Permanent, "database %s: a newer version made it (schema %d, this program knows up to %d): "+
			"start the newer version or give another path", d.path, version, d.known)
	}
	return version, nil
}
