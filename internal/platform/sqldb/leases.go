package sqldb

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// engine is one kind of database as leases and the action log use it.
type engine interface {
	// alone runs f in a transaction that excludes all others of its kind, over
	// the whole database and all processes, and keeps what f returns. f may run
	// several times before that; it gets the desk with Now as the time of the
	// transaction. An error that is errUndecided leaves it open whether that was
	// kept; with any other one it was not.
	alone(ctx context.Context, f func(ctx context.Context, d desk, q asker) (kept, error)) error
	// look runs f on one consistent state; f may run twice.
	look(ctx context.Context, f func(ctx context.Context, now time.Time, q asker) error) error
	// watch tells of the changes of other processes until ctx ends.
	watch(ctx context.Context, w lease.Watcher) error
}

// errUndecided is in the chain of an error of a commit that was not answered.
var errUndecided = errors.New("whether it was done is unknown")

// kept is what a transaction writes, and the news of it.
type kept struct {
	writes []step
	news   lease.News
	// desk is the row of the desk after it.
	desk desk
}

// leaseStore is [lease.Store] over either kind of database.
type leaseStore struct {
	engine
	watchers watchers
	// wrap, when not nil, comes between the rules and a transaction.
	wrap func(lease.Tx) lease.Tx
}

// Leases returns the store of pools, keys and leases; it lives as long as the
// database is open.
func (d *DB) Leases() lease.Store { return d.desk }

// Do implements [lease.Store].
func (s *leaseStore) Do(ctx context.Context, ops []lease.Op) (results []lease.Result, err error) {
	err = s.alone(ctx, func(ctx context.Context, d desk, q asker) (kept, error) {
		tx := &leaseTx{asker: q, begin: d, spots: map[string]spot{}}
		rules := lease.Tx(tx)
		if s.wrap != nil {
			rules = s.wrap(tx)
		}
		if results, err = lease.Apply(ctx, rules, d.Begin, ops); err != nil {
			return kept{}, err
		}
		return kept{tx.writes, tx.news, tx.begin}, nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// alone runs the transaction and tells the watchers here of it.
func (s *leaseStore) alone(ctx context.Context, f func(ctx context.Context, d desk, q asker) (kept, error)) error {
	var news lease.News
	err := s.engine.alone(ctx, func(ctx context.Context, d desk, q asker) (kept, error) {
		k, err := f(ctx, d, q)
		news = k.news
		return k, err
	})
	switch {
	case err == nil:
		s.watchers.tell(news)
	case errors.Is(err, errUndecided):
		s.watchers.tell(lease.News{All: true, Events: true})
	}
	return coded(err)
}

// look reads, and gives errors their codes.
func (s *leaseStore) look(ctx context.Context, f func(ctx context.Context, now time.Time, q asker) error) error {
	return coded(s.engine.look(ctx, f))
}

// coded names the errors by which it cannot be told how things are.
func coded(err error) error {
	switch fault.Of(err) {
	case fault.Unavailable, fault.Timeout:
		if fault.CodeOf(err) == "" {
			return fault.WithCode(err, "store")
		}
	}
	return err
}

var (
	loadRoot = plain("SELECT r.value FROM fleetdesk.root_key r")
	saveRoot = plain("INSERT INTO fleetdesk.root_key (only_row, value) VALUES (1, $1)")
)

// rootSize is the length of the root key, in bytes.
const rootSize = 32

// Root implements [lease.Store].
func (s *leaseStore) Root(ctx context.Context) (root []byte, err error) {
	load := func(ctx context.Context, q asker) error {
		root = nil
		return q.ask(ctx, step{statement: loadRoot, row: func(r scanner) error { return r.Scan(&root) }})
	}
	err = s.look(ctx, func(ctx context.Context, _ time.Time, q asker) error { return load(ctx, q) })
	if err != nil || root != nil {
		return root, err
	}
	err = s.alone(ctx, func(ctx context.Context, d desk, q asker) (kept, error) {
		if err := load(ctx, q); err != nil || root != nil {
			return kept{desk: d}, err
		}
		root = make([]byte, rootSize)
		_, _ = rand.Read(root) // never fails
		return kept{writes: []step{{statement: saveRoot, args: []any{root}}}, desk: d}, nil
	})
	if err != nil {
		return nil, err
	}
	return root, nil
}

// highWater is the greatest time that a handle has seen: a transaction that kept
// nothing left no mark in the database.
type highWater struct{ micros atomic.Int64 }

// after returns the time of a transaction: the clock's, but none before an
// earlier one's.
func (h *highWater) after(clock, kept time.Time) time.Time {
	now := clock.UTC().Truncate(time.Microsecond)
	if now.Before(kept) {
		now = kept
	}
	for {
		seen := h.micros.Load()
		if at := now.UnixMicro(); at <= seen {
			return instant(seen)
		} else if h.micros.CompareAndSwap(seen, at) {
			return now
		}
	}
}
