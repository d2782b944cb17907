// Package sqldb keeps what must survive a restart in an SQL database: an SQLite
// file, or PostgreSQL. It is the only package that knows SQL, and its SQL finds,
// locks and keeps: the rules are core's.
//
// # SQLite: several processes on one file
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
//
// # PostgreSQL: several replicas on one database
//
// All tables live in the schema fleetdesk, so that a database may be shared with
// other programs. Each write is one transaction at READ COMMITTED that locks the
// rows it decides on. The server ends whatever a hung or vanished replica left
// open after a few seconds. Upgrades and writes exclude each other by an
// advisory lock. A connection has state of its own (settings, prepared
// statements, that lock), so a pooler between must hand out whole sessions:
// PgBouncer's transaction mode does not work.
//
// # Leases and the action log
//
// Their transactions exclude each other over the whole database, by the locks
// above and, on PostgreSQL, by an advisory lock of their own; so fences, places
// and times are ordered as the commits are, and nothing can deadlock. Callers put
// many ops into one transaction, which costs three ways to a server and back
// however many there are. Their SQL is written once, in PostgreSQL's words
// (statement, step), and each statement can use one index only: no statistics of
// a server make it look through a table.
package sqldb

import (
	"context"
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
)

// Options says which database to open: exactly one of Path, URL and URLFile.
type Options struct {
	// Path is an SQLite file. It is created with mode 0600 when it does not
	// exist; its folder must exist, on a local file system.
	Path string
	// URL is a PostgreSQL database:
	//
	//	postgres://user:password@host:5432/database?sslmode=verify-full
	//
	// A socket's folder is given as ?host=/run/postgresql instead of a host,
	// several hosts with commas between. Without sslmode a host other than this
	// machine must prove itself by a certificate (verify-full); what would fall
	// back to plain text there (prefer, allow) is refused, and disable must be
	// said. Nothing is taken from PG* variables or a password file.
	URL string
	// URLFile is a file that holds such a URL and nothing else, since a
	// password has no place on a command line. It is read once.
	URLFile string
	// ReadOnly opens what exists and changes nothing: no database, schema or
	// row is made, and no lock file. A missing database is NotFound, one that an
	// older program made Unsupported, and every write Denied.
	//
	// SQLite needs its shared memory to read beside writers: when nobody else
	// has the file open, it makes <path>-shm and an empty <path>-wal, which
	// whoever writes next takes over.
	ReadOnly bool
	// LockWait is how long a write waits at most for other writers, besides its
	// own context; 0 means 10 s for SQLite and 5 s for PostgreSQL.
	LockWait time.Duration
	// Readers is how many reads run at once (SQLite); 0 means 4.
	Readers int
	// Connections is how many connections are open at most (PostgreSQL), besides
	// one for each Watch; 0 means 8.
	Connections int

	// statfs is replaced in tests, which have no network file system at hand.
	statfs func(path string) (filesystem, error)
	// limit is how long a call to PostgreSQL takes at most; 0 means what its
	// statements may take and some seconds.
	limit time.Duration
	// clock makes the time of leases of the database's own, in tests.
	clock func(time.Time) time.Time
}

// Format prints no field, by any verb: the URL may hold a password.
func (o Options) Format(s fmt.State, _ rune) { _, _ = fmt.Fprint(s, "sqldb.Options{***}") }

// DB is an open database. Its methods may be called concurrently.
type DB struct {
	backend backend
	desk    *leaseStore
}

// backend is one kind of database.
type backend interface {
	engine(clock func(time.Time) time.Time) engine
	tokens() Tokens
	// Close ends all connections.
	Close() error
}

// Open opens the database, creates what is missing, and brings its schema up to
// date. A database that is not ours, or that a newer version made, is refused
// untouched.
//
// Errors: Invalid (not exactly one place, or a URL that says too little),
// Permanent (a person must mend the place, the rights or the version; the text
// says how), Unavailable (it does not answer, is locked or failing), Timeout;
// with ReadOnly also NotFound and Unsupported. No error holds a password.
func Open(ctx context.Context, o Options) (*DB, error) {
	b, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.clock == nil {
		o.clock = func(now time.Time) time.Time { return now }
	}
	return &DB{b, &leaseStore{engine: b.engine(o.clock)}}, nil
}

func open(ctx context.Context, o Options) (backend, error) {
	if o.statfs == nil {
		o.statfs = statfs
	}
	if o.Readers == 0 {
		o.Readers = 4
	}
	given := 0
	for _, s := range []string{o.Path, o.URL, o.URLFile} {
		if s != "" {
			given++
		}
	}
	switch {
	case given == 0:
		return nil, fault.New(fault.Invalid, "database: no path and no URL was given: name one")
	case given > 1:
		return nil, fault.New(fault.Invalid, "database: give one of path, URL and file of the URL, not several")
	case o.Path == "":
		return openPostgres(ctx, o)
	case o.ReadOnly:
		return readSQLite(ctx, o)
	}
	return openSQLite(ctx, o)
}

// Tokens returns the store of accounts and tokens; it lives as long as the
// database is open.
func (d *DB) Tokens() Tokens { return d.backend.tokens() }

// Close ends all connections. SQLite: calls that still run fail, and the last
// process that closes the file folds its log back into it. PostgreSQL: it waits
// for calls that still run, which end within seconds.
func (d *DB) Close() error { return d.backend.Close() }
