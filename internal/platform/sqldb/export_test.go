package sqldb

import (
	"context"
	"database/sql"
	"time"
)

// VersionTable is where the schema version is kept.
const VersionTable = versionTable

// OnFilesystem makes the place look as if it were on that kind.
func OnFilesystem(o Options, name string, remote bool) Options {
	o.statfs = func(string) (filesystem, error) { return filesystem{name, remote}, nil }
	return o
}

// OfMagic and OfFUSE say what a file system is taken for.
func OfMagic(magic int64) (string, bool) { f := ofMagic(magic); return f.name, f.remote }

func OfFUSE(table string, major, minor uint32) (string, bool) {
	f := ofFUSE([]byte(table), major, minor)
	return f.name, f.remote
}

// Write is the write transaction.
func (d *DB) Write(ctx context.Context, f func(tx *sql.Tx) error) error { return d.write(ctx, f) }

// Reader is the pool of readers.
func (d *DB) Reader() *sql.DB { return d.reader }

// Writer is the writer's connection.
func (d *DB) Writer() *sql.DB { return d.writer }

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
