package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"strconv"
	"time"

	"modernc.org/sqlite"

	"fleetdesk/internal/core/fault"
)

// sqliteDB is the back end for an SQLite file.
type sqliteDB struct {
	path     string
	identity os.FileInfo // the file as it was opened
	known    int64       // the newest schema version this program knows
	lockWait time.Duration
	lock     *sideLock // nil when opened for reading only, as is writer
	writer   *sql.DB   // one connection
	reader   *sql.DB
}

// busyTimeout is how long SQLite itself waits for a lock that the side lock does
// not cover: a program such as the sqlite3 shell, or a recovery after a crash.
const busyTimeout = 5 * time.Second

// openSQLite opens a file for reading and writing, and makes it when there is
// none.
func openSQLite(ctx context.Context, o Options) (*sqliteDB, error) {
	if o.LockWait == 0 {
		o.LockWait = 10 * time.Second
	}
	path, exists, err := place(o.Path, o.statfs, forWriting)
	if err != nil {
		return nil, err
	}
	d := &sqliteDB{path: path, lockWait: o.LockWait}
	if d.writer, err = connect(path, 1, url.Values{"mode": {"rw"}, "_txlock": {"immediate"}, "_synchronous": {"FULL"}}); err != nil {
		return nil, err
	}
	if d.reader, err = connect(path, o.Readers, url.Values{"mode": {"rw"}, "_query_only": {"1"}}); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := d.open(ctx, exists); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// readSQLite opens a file that exists for reading alone.
func readSQLite(ctx context.Context, o Options) (*sqliteDB, error) {
	path, exists, err := place(o.Path, o.statfs, forReading)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, fault.Errorf(fault.NotFound, "database %s: it does not exist", path)
	}
	d := &sqliteDB{path: path}
	if d.reader, err = connect(path, o.Readers, url.Values{"mode": {"ro"}, "_query_only": {"1"}}); err != nil {
		return nil, err
	}
	if err := d.mayRead(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// mayRead asks whether the schema is the one this program reads.
func (d *sqliteDB) mayRead(ctx context.Context) error {
	var err error
	if d.known, err = latestStep(sqliteFolder); err != nil {
		return err
	}
	version, err := d.inspect(ctx)
	if err != nil {
		return err
	}
	return readable("database "+d.path, version, d.known)
}

// open does what needs a connection. Nothing is written before the file was
// found to be ours, or new.
func (d *sqliteDB) open(ctx context.Context, exists bool) error {
	var err error
	if d.known, err = latestStep(sqliteFolder); err != nil {
		return err
	}
	current := false
	if exists {
		version, err := d.inspect(ctx)
		if err != nil {
			return err
		}
		current = version == d.known
	}
	if d.lock, err = openSideLock(d.path + ".lock"); err != nil {
		return err
	}
	if !current {
		unlock, err := d.lock.acquire(ctx, d.lockWait)
		if err != nil {
			return err
		}
		defer unlock()
		if err := createFile(d.path); err != nil {
			return err
		}
		// Another process may have been here while this one waited.
		if _, err := d.inspect(ctx); err != nil {
			return err
		}
		if err := d.useWAL(ctx); err != nil {
			return err
		}
		if err := d.upgrade(ctx); err != nil {
			return err
		}
	}
	if err := tighten(d.path); err != nil {
		return err
	}
	if d.identity, err = os.Stat(d.path); err != nil {
		return fault.Errorf(fault.Unavailable, "database %s: %w", d.path, err)
	}
	return d.useWAL(ctx)
}

// connect returns a pool; it opens no connection yet. The file is never created
// by SQLite (the mode is rw or ro): its rights would follow the umask.
func connect(path string, most int, q url.Values) (*sql.DB, error) {
	q.Set("_busy_timeout", strconv.FormatInt(busyTimeout.Milliseconds(), 10))
	q.Set("_foreign_keys", "1")
	q.Set("_dqs", "0")       // "x" names a column and is never a text by mistake
	q.Set("_defensive", "1") // no SQL can corrupt the file
	q.Set("_error_rc", "1")  // messages belong to their codes
	dsn := (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
	c, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "database %s: %w", path, err)
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	return db, nil
}

// useWAL sees to the journal mode, which is a property of the file.
func (d *sqliteDB) useWAL(ctx context.Context) error {
	var mode string
	if err := d.writer.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return d.classify(ctx, err)
	}
	if mode == "wal" {
		return nil
	}
	if err := d.writer.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode); err != nil {
		return d.classify(ctx, err)
	}
	if mode != "wal" {
		return fault.Errorf(fault.Permanent, "database %s: the file system cannot keep a write-ahead log (journal mode stays %q): "+
			"put the file on a local disk", d.path, mode)
	}
	return nil
}

// Close implements backend.
func (d *sqliteDB) Close() error {
	var errs []error
	// Readers first: the writer's close then is the last one and may fold.
	for _, db := range []*sql.DB{d.reader, d.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if d.lock != nil {
		d.lock.close()
	}
	if err := errors.Join(errs...); err != nil {
		return fault.Errorf(fault.Unavailable, "database %s: closing: %w", d.path, err)
	}
	return nil
}

// write runs f in a write transaction: committed when f returns nil, otherwise
// rolled back. It may run while other processes write; f sees the database as it
// is once all of them are done. Errors of f that have no class get one.
func (d *sqliteDB) write(ctx context.Context, f func(tx *sql.Tx) error) error {
	if d.writer == nil {
		return forReadingOnly("database " + d.path)
	}
	unlock, err := d.lock.acquire(ctx, d.lockWait)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.stillThere(); err != nil {
		return err
	}
	tx, err := d.writer.BeginTx(ctx, nil)
	if err != nil {
		return d.classify(ctx, err)
	}
	defer func() { _ = tx.Rollback() }() // no-op once committed; also on a panic of f
	if err := d.mayWrite(ctx, tx); err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return d.classify(ctx, err)
	}
	if err := tx.Commit(); err != nil {
		return d.classify(ctx, err)
	}
	return nil
}

// stillThere refuses to write into a file that was removed or replaced: this
// process would go on alone in a file that no other one sees.
func (d *sqliteDB) stillThere() error {
	now, err := os.Stat(d.path)
	if err == nil && !os.SameFile(d.identity, now) {
		err = errors.New("the file was replaced while it was open")
	}
	if err != nil {
		return fault.Errorf(fault.Unavailable, "database %s: %w: put the file back or restart this program", d.path, err)
	}
	return nil
}

// mayWrite asks whether a newer program raised the schema meanwhile beyond what
// this one may write to.
func (d *sqliteDB) mayWrite(ctx context.Context, tx *sql.Tx) error {
	var minReader int64
	if err := tx.QueryRowContext(ctx, "SELECT min_reader FROM schema_info").Scan(&minReader); err != nil {
		return d.classify(ctx, err)
	}
	return writable("database "+d.path, minReader, d.known)
}
