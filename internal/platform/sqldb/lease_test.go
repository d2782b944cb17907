package sqldb_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/action/actiontest"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/platform/sqldb"
)

// kinds are the places where databases are made, by their kind.
var kinds = map[string]func(t testing.TB) sqldb.Options{
	"sqlite":   func(t testing.TB) sqldb.Options { return sqldb.Options{Path: filepath.Join(t.TempDir(), "desk.db")} },
	"postgres": func(t testing.TB) sqldb.Options { return sqldb.Options{URL: server.Database(t)} },
}

// harness is a database of the kind with so many handles on it.
func harness(t *testing.T, o sqldb.Options, handles int) leasetest.Harness {
	t.Helper()
	var ahead atomic.Int64
	o = sqldb.WithClock(o, func(now time.Time) time.Time { return now.Add(time.Duration(ahead.Load())) })
	h := leasetest.Harness{Advance: func(d time.Duration) { ahead.Add(int64(d)) }}
	var log action.Log
	for range handles {
		db := openWith(t, o)
		h.Stores = append(h.Stores, db.Leases())
		log = db.Actions()
	}
	entry := func(name, id, by string) action.Entry {
		return action.Entry{
			Action: id + "-of-sixteen-or-more", Phase: action.PhaseStarted, Pool: "p", Key: name, Verb: action.VerbDestroy,
			User: by, Command: "true",
		}
	}
	h.OpenAction = func(ctx context.Context, name, id, _, by string) error {
		_, err := log.Append(ctx, entry(name, id, by))
		return err
	}
	h.CloseAction = func(ctx context.Context, name, id string) error {
		e := entry(name, id, "bob")
		e.Phase, e.Command = action.PhaseResolved, ""
		_, err := log.Append(ctx, e)
		return err
	}
	return h
}

// The contract of lease stores, over one handle, and over several that take
// turns: what one wrote the other reads next.
func TestLeaseSuite(t *testing.T) {
	for kind, place := range kinds {
		t.Run(kind, func(t *testing.T) {
			leasetest.RunStore(t, func(t *testing.T) leasetest.Harness { return harness(t, place(t), 1) })
		})
		t.Run(kind+" over four handles", func(t *testing.T) {
			leasetest.RunStore(t, func(t *testing.T) leasetest.Harness { return harness(t, place(t), 4) })
		})
	}
}

// The contract of the action log.
func TestActionSuite(t *testing.T) {
	for kind, place := range kinds {
		t.Run(kind, func(t *testing.T) {
			actiontest.Run(t, func(t *testing.T) action.Log { return openWith(t, place(t)).Actions() })
		})
	}
}

var _ lease.Store = lease.Store(nil)
