package sqldb

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// VersionTable is where the schema version is kept.
const VersionTable = versionTable

// OnFilesystem makes the place look as if it were on that kind.
func OnFilesystem(o Options, name string, remote bool) Options {
	o.statfs = func(string) (filesystem, error) { return filesystem{name, remote}, nil }
	return o
}

// Limited sets how long a call takes at most.
func Limited(o Options, limit time.Duration) Options {
	o.limit = limit
	return o
}

// OfMagic and OfFUSE say what a file system is taken for.
func OfMagic(magic int64) (string, bool) { f := ofMagic(magic); return f.name, f.remote }

func OfFUSE(table string, major, minor uint32) (string, bool) {
	f := ofFUSE([]byte(table), major, minor)
	return f.name, f.remote
}

// Write is the write transaction.
func (d *DB) Write(ctx context.Context, f func(tx *sql.Tx) error) error {
	return d.backend.(*sqliteDB).write(ctx, f)
}

// Reader is the pool of readers.
func (d *DB) Reader() *sql.DB { return d.backend.(*sqliteDB).reader }

// Writer is the writer's connection.
func (d *DB) Writer() *sql.DB { return d.backend.(*sqliteDB).writer }

// SideLock is the lock between processes, for its own tests.
type SideLock struct{ s *sideLock }

// OpenSideLock opens the file.
func OpenSideLock(path string) (SideLock, error) {
	s, err := openSideLock(path)
	return SideLock{s}, err
}

// Acquire takes the lock.
func (l SideLock) Acquire(ctx context.Context, wait time.Duration) (func(), error) {
	return l.s.acquire(ctx, wait)
}

// Close gives the file up.
func (l SideLock) Close() { l.s.close() }

// Queued reports whether somebody stands in the turnstile.
func (l SideLock) Queued() bool {
	if l.s.try(turnstile) {
		_ = l.s.unlock(turnstile)
		return false
	}
	return true
}

// Waiting reports whether this side has a wait for the lock under way.
func (l SideLock) Waiting() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.s.pending != nil
}

// WriteTo is the write transaction of PostgreSQL.
func (d *DB) WriteTo(ctx context.Context, f func(ctx context.Context, tx *pgx.Conn) error) error {
	return d.backend.(*postgresDB).write(ctx, f)
}

// Pool is the pool of connections to PostgreSQL.
func (d *DB) Pool() *pgxpool.Pool { return d.backend.(*postgresDB).pool }

// ParseURL reads a URL.
func ParseURL(raw string) (*pgxpool.Config, string, error) { return parseURL(raw) }

// Writers is the advisory lock of writes and upgrades.
const Writers int64 = writers

// LatestStep is the number of a folder's last step.
func LatestStep(folder string) (int64, error) { return latestStep(folder) }
