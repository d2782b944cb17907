package sqldb_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/action/actiontest"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/platform/sqldb"
)

// kinds are the places where databases are made, by their kind.
var kinds = map[string]func(t testing.TB) sqldb.Options{
	"sqlite":   func(t testing.TB) sqldb.Options { return sqldb.Options{Path: filepath.Join(t.TempDir(), "desk.db")} },
	"postgres": func(t testing.TB) sqldb.Options { return sqldb.Options{URL: server.Database(t)} },
}

// clock is a database's in tests: it goes on by itself, but no faster because a
// machine is slow.
type clock struct{ ahead, asked atomic.Int64 }

func (c *clock) now(time.Time) time.Time {
	return time.Date(2026, 11, 1, 10, 20, 30, 0, time.UTC).Add(time.Duration(c.ahead.Load()) + time.Duration(c.asked.Add(1))*10*time.Microsecond)
}

func (c *clock) advance(d time.Duration)          { c.ahead.Add(int64(d)) }
func (c *clock) of(o sqldb.Options) sqldb.Options { return sqldb.WithClock(o, c.now) }

// handles opens a database several times.
func handles(t *testing.T, o sqldb.Options, n int) (all []*sqldb.DB) {
	t.Helper()
	for range n {
		all = append(all, openWith(t, o))
	}
	return all
}

// harness is what the suite asks for.
func harness(all []*sqldb.DB, c *clock) leasetest.Harness {
	h := leasetest.Harness{Advance: c.advance}
	for _, db := range all {
		h.Stores = append(h.Stores, db.Leases())
	}
	log := all[0].Actions()
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
	inLines := func(all []*sqldb.DB, yes bool) []*sqldb.DB {
		for _, db := range all {
			if yes {
				db.Wrap(leasetest.InLines)
			}
		}
		return all
	}
	for _, tc := range []struct {
		handles int
		lines   bool // every pool counts as one of many keys
	}{{1, false}, {4, false}, {2, true}} {
		n := tc.handles
		t.Run(fmt.Sprintf("sqlite/%d/lines=%v", n, tc.lines), func(t *testing.T) {
			leasetest.RunStore(t, func(t *testing.T) leasetest.Harness {
				c := &clock{}
				return harness(inLines(handles(t, c.of(kinds["sqlite"](t)), n), tc.lines), c)
			})
		})
		// Making a database takes longer than a clause, so all clauses have the
		// same one, emptied.
		t.Run(fmt.Sprintf("postgres/%d/lines=%v", n, tc.lines), func(t *testing.T) {
			c := &clock{}
			all := inLines(handles(t, c.of(kinds["postgres"](t)), n), tc.lines)
			leasetest.RunStore(t, func(t *testing.T) leasetest.Harness {
				empty(t, all[0])
				c.advance(24 * time.Hour) // whatever the clause before did to it
				return harness(all, c)
			})
		})
	}
}

// empty makes a database as if it were new.
func empty(t *testing.T, db *sqldb.DB) {
	t.Helper()
	rows, err := db.Pool().Query(t.Context(), `SELECT relname FROM pg_class WHERE relnamespace = 'fleetdesk'::regnamespace AND relkind = 'r'
		AND relname <> ALL ($1)`, []string{sqldb.VersionTable, "schema_info", "desk"})
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 10 {
		t.Fatal(tables, err)
	}
	for _, table := range tables {
		if _, err := db.Pool().Exec(t.Context(), "DELETE FROM fleetdesk."+table); err != nil {
			t.Fatal(err)
		}
	}
	_, err = db.Pool().Exec(t.Context(), "UPDATE fleetdesk.desk SET counter = 0, epoch = 0, clock = 0, wakes = 0, events = 0, last_event = 0, forgotten = 0")
	if err != nil {
		t.Fatal(err)
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
