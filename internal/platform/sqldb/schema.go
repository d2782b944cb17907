package sqldb

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"

	"github.com/pressly/goose/v3"

	"fleetdesk/internal/core/fault"
)

//go:embed migrations/*/*.sql
var migrationFiles embed.FS

// versionTable is where goose notes which steps ran.
const versionTable = "schema_version"

// steps bring a schema up to date. Both back ends have the same, by number and
// meaning.
type steps struct{ goose *goose.Provider }

func newSteps(dialect goose.Dialect, db *sql.DB, folder, table string) (*steps, error) {
	dir, err := fs.Sub(migrationFiles, folder)
	if err != nil {
		return nil, fault.Wrap(fault.Permanent, err)
	}
	p, err := goose.NewProvider(dialect, db, dir, goose.WithTableName(table), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "schema steps of this program: %w", err)
	}
	return &steps{p}, nil
}

// latestStep returns the number of a folder's last step: the schema version that
// this program knows.
func latestStep(folder string) (int64, error) {
	all, err := fs.ReadDir(migrationFiles, folder)
	if err == nil && len(all) == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return 0, fault.Errorf(fault.Permanent, "schema steps of this program: %w", err)
	}
	n, err := goose.NumericComponent(all[len(all)-1].Name())
	return n, fault.Wrap(fault.Permanent, err)
}

// up runs the missing steps, each in a transaction with the note that it ran.
func (s *steps) up(ctx context.Context) error {
	_, err := s.goose.Up(ctx)
	return err
}

// notNewer refuses a schema that a newer program made.
func notNewer(what string, version, known int64) error {
	if version > known {
		return fault.Errorf(fault.Permanent, "%s: a newer version made it (schema %d, this program knows up to %d): "+
			"start the newer version or give another database", what, version, known)
	}
	return nil
}

// readable refuses a schema that this program would have to change first.
func readable(what string, version, known int64) error {
	switch {
	case version == 0:
		return fault.Errorf(fault.NotFound, "%s: it holds nothing yet", what)
	case version < known:
		return fault.Errorf(fault.Unsupported, "%s: an older version made it (schema %d, this program reads %d), and reading upgrades nothing: "+
			"start a program that writes to it once", what, version, known)
	}
	return notNewer(what, version, known)
}

// writable refuses to write when a newer program raised the schema beyond what
// this one may write to.
func writable(what string, minReader, known int64) error {
	if minReader > known {
		return fault.WithCode(fault.Errorf(fault.Permanent, "%s: a newer version upgraded it to a schema that needs %d, this program knows up to %d: "+
			"restart with the newer version", what, minReader, known), "schema")
	}
	return nil
}

func forReadingOnly(what string) error {
	return fault.Errorf(fault.Denied, "%s: it was opened for reading only", what)
}
