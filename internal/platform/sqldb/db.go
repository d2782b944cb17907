// Package sqldb keeps what must survive a restart in an SQL database, today an
// SQLite file. It is the only package that knows SQL, and its SQL finds, locks
// and keeps: the rules are core's.
//
// # Several processes on one file
//
// Reads run on a small pool of connections and never wait for a writer (WAL).
// Writes of one process go through one connection, one after the other; those
// of several processes queue at a lock on a file beside the database
// (`<path>.lock`), because SQLite's own waiting is a lottery that starves
// processes under load. The side lock is for fairness only: each write is a
// BEGIN IMMEDIATE transaction as well, so two writers never meet even when
// somebody removes the side file.
//
// The process must never open the database file by any other way than a [DB]:
// closing any descriptor of it would silently drop SQLite's own locks.
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

// Options says which database to open.
type Options struct {
	// Path is the SQLite file. It is created with mode 0600 when it does not
	// exist; its folder must exist, on a local file system.
	Path string
	// LockWait is how long a write waits at most for writers of other
	// processes, besides its own context; 0 means 10 s.
	LockWait time.Duration
	// Readers is how many reads run at once; 0 means 4.
	Readers int

	// statfs is replaced in tests, which have no network file system at hand.
	statfs func(path string) (filesystem, error)
}

// DB is an open database. Its methods may be called concurrently.
type DB struct {
	path     string
	identity os.FileInfo // the file as it was opened
	known    int64       // the newest schema version this program knows
	lockWait time.Duration
	lock     *sideLock
	writer   *sql.DB // one connection
	reader   *sql.DB
}

// busyTimeout is how long SQLite itself waits for a lock that the side lock does
// not cover: a program such as the sqlite3 shell, or a recovery after a crash.
const busyTimeout = 5 * time.Second

// Open opens the database, creates it when there is none, and brings its schema
// up to date. A file that is no database of ours, or one that a newer version
// made, is refused untouched.
//
// Errors: Invalid (no path), Permanent (a person must mend the place, the file or
// the version; the text says how), Unavailable (locked or failing), Timeout.
func Open(ctx context.Context, o Options) (*DB, error) {
	if o.LockWait == 0 {
		o.LockWait = 10 * time.Second
	}
	if o.Readers == 0 {
		o.Readers = 4
	}
	if o.statfs == nil {
		o.statfs = statfs
	}
	path, exists, err := place(o.Path, o.statfs)
	if err != nil {
		return nil, err
	}
	d := &DB{path: path, lockWait: o.LockWait}
	if d.writer, err = connect(path, 1, url.Values{"_txlock": {"immediate"}, "_synchronous": {"FULL"}}); err != nil {
		return nil, err
	}
	if d.reader, err = connect(path, o.Readers, url.Values{"_query_only": {"1"}}); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := d.open(ctx, exists); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// open does what needs a connection. Nothing is written before the file was
// found to be ours, or new.
func (d *DB) open(ctx context.Context, exists bool) error {
	migrations, err := d.migrations()
	if err != nil {
		return err
	}
	d.known = migrations.latest
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
		if err := migrations.up(ctx); err != nil {
			return d.classify(ctx, err)
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
// by SQLite (mode=rw): its mode would follow the umask.
func connect(path string, most int, q url.Values) (*sql.DB, error) {
	q.Set("mode", "rw")
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
func (d *DB) useWAL(ctx context.Context) error {
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

// Close ends all connections; calls that are still running fail. The last
// process that closes a database folds its log back into the file.
func (d *DB) Close() error {
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
func (d *DB) write(ctx context.Context, f func(tx *sql.Tx) error) error {
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
func (d *DB) stillThere() error {
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
func (d *DB) mayWrite(ctx context.Context, tx *sql.Tx) error {
	var minReader int64
	if err := tx.QueryRowContext(ctx, "SELECT min_reader FROM schema_info").Scan(&minReader); err != nil {
		return d.classify(ctx, err)
	}
	if minReader > d.known {
		return fault.Errorf(fault.Permanent, "database %s: a newer version upgraded it to a schema that needs %d, this program knows up to %d: "+
			"restart with the newer version", d.path, minReader, d.known)
	}
	return nil
}
