package sqldb

import (
	"context"
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"fleetdesk/internal/core/fault"
)

// classify gives an error of the database its class, by codes only. An error that
// has a class keeps it.
func (d *sqliteDB) classify(ctx context.Context, err error) error {
	if err == nil || fault.Classed(err) {
		return err
	}
	code := 0
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		code = e.Code()
	}
	switch code {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID:
		return fault.Errorf(fault.Conflict, "database %s: %w", d.path, err)
	case sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
		return fault.Errorf(fault.NotFound, "database %s: %w", d.path, err)
	}
	if cause := ctx.Err(); cause != nil {
		// An interrupted statement does not say why; its context does.
		if errors.Is(err, cause) {
			return fault.Errorf(fault.Timeout, "database %s: %w", d.path, err)
		}
		return fault.Errorf(fault.Timeout, "database %s: %w: %w", d.path, cause, err)
	}
	switch code & 0xff { // the primary code
	case sqlite3.SQLITE_NOTADB:
		return fault.Errorf(fault.Permanent, "database %s: it is not a database: give another path, or move the file away: %w", d.path, err)
	case sqlite3.SQLITE_CORRUPT:
		return fault.Errorf(fault.Permanent, "database %s: it is damaged: restore it from a backup: %w", d.path, err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return fault.Errorf(fault.Unavailable, "database %s: another program holds it locked: close that one: %w", d.path, err)
	case sqlite3.SQLITE_FULL:
		return fault.Errorf(fault.Unavailable, "database %s: the disk is full: make room: %w", d.path, err)
	case sqlite3.SQLITE_IOERR: // a file that cannot grow is one of many kinds
		return fault.Errorf(fault.Unavailable, "database %s: it cannot be read or written: make room if the disk is full, and else see the system's log for a failing disk: %w", d.path, err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return fault.Errorf(fault.Unavailable, "database %s: it cannot be opened for writing: check the file, its folder and their owner: %w", d.path, err)
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE,
		sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_INTERNAL:
		return fault.Errorf(fault.Permanent, "database %s: this program and the file do not fit, or the program has a defect: %w", d.path, err)
	}
	// No memory, a closed pool.
	return fault.Errorf(fault.Unavailable, "database %s: %w", d.path, err)
}
