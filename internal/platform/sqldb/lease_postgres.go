package sqldb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetdesk/internal/core/fault"
)

const (
	// deskLock is the advisory lock that each transaction of the desk holds
	// alone: "fleetlck" as a number.
	deskLock = 0x666c6565746c636b
	// deskIdle is how long a replica may stand still inside a transaction of
	// the desk before the server ends it: all others wait meanwhile.
	deskIdle = 2 * time.Second
	// deskTurns is how many transactions of one process may be under way: one
	// runs, and the next is in the server's queue already.
	deskTurns = 2
	// deskTries is how often a transaction is begun at most when it is certain
	// that none before was kept.
	deskTries = 3
)

// postgresEngine is [engine] over PostgreSQL.
type postgresEngine struct {
	*postgresDB
	clock func(time.Time) time.Time
	high  highWater
	turns chan struct{}
	// self names this handle in notifications, so that it knows its own.
	self string
}

// engine implements backend.
func (d *postgresDB) engine(clock func(time.Time) time.Time) engine {
	return &postgresEngine{postgresDB: d, clock: clock, turns: make(chan struct{}, deskTurns), self: newSelf()}
}

// One way there and back. Each statement sees the state of its own moment, so the
// last one sees all that was committed by whoever held the lock before, and its
// clock is that of the moment. The plans of what follows are made once a
// connection, and find rows by their indexes however old the server's statistics
// are.
var (
	beginAlone = plain("BEGIN ISOLATION LEVEL READ COMMITTED")
	beginLook  = plain("BEGIN READ ONLY, ISOLATION LEVEL REPEATABLE READ")
	lockDesk   = plain(fmt.Sprintf("SELECT pg_advisory_xact_lock_shared(%d), pg_advisory_xact_lock(%d), set_config('idle_in_transaction_session_timeout', '%s', true), ",
		writers, deskLock, millis(deskIdle)) + planning)
	readyLook = plain("SELECT " + planning)
	deskState = plain("SELECT " + deskValues + ", s.min_reader, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM fleetdesk.schema_info s, fleetdesk.desk d")
	commit    = plain("COMMIT")
	notify    = plain("SELECT pg_notify('" + channel + "', $1)")
)

// planning is how statements are planned until the transaction ends.
const planning = "set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), " +
	"set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)"

func nothing(scanner) error { return nil }

// alone implements engine.
func (e *postgresEngine) alone(ctx context.Context, f func(ctx context.Context, d desk, q asker) (kept, error)) error {
	if e.readOnly {
		return forReadingOnly(e.what())
	}
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	select {
	case e.turns <- struct{}{}:
		defer func() { <-e.turns }()
	case <-ctx.Done():
		return e.classify(ctx, ctx.Err())
	}
	for try := 1; ; try++ {
		again, err := e.attempt(ctx, f)
		if err == nil || !again || try == deskTries || ctx.Err() != nil {
			return e.classify(ctx, err)
		}
	}
}

// attempt runs one transaction. After an error, again tells that nothing of it
// was kept for certain and that another attempt may fare better.
func (e *postgresEngine) attempt(ctx context.Context, f func(ctx context.Context, d desk, q asker) (kept, error)) (again bool, err error) {
	var d desk
	var minReader int64
	c, err := e.acquire(ctx, func(c *pgx.Conn) (err error) {
		minReader, d, err = e.begin(ctx, c, step{statement: beginAlone}, step{statement: lockDesk, row: nothing})
		return err
	})
	if err != nil {
		return false, err // it was tried twice already where that helps
	}
	defer c.Release() // ends the connection when the transaction is still open
	defer rollback(ctx, c.Conn())
	if err := writable(e.what(), minReader, e.known); err != nil {
		return false, err
	}
	k, err := f(ctx, d, postgresAsker{c.Conn()})
	if err != nil {
		return e.passing(ctx, c, err), err
	}
	if len(k.writes) == 0 {
		return false, nil
	}
	writes := k.writes
	if said := e.notice(k.news); said != "" {
		writes = append(writes, step{statement: notify, args: []any{said}, row: nothing})
	}
	err = postgresAsker{c.Conn()}.ask(ctx, append(writes, step{statement: commit})...)
	if err == nil {
		return false, nil
	}
	// A session that stood still was ended before it read what was sent.
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Severity == "ERROR" || pg.Code == stoodStill) {
		switch pg.Code {
		case readOnlyServer:
			e.pool.Reset() // it became a standby: the next connection looks for the primary
		case rowsMissed:
			err = fault.New(fault.Conflict, "rows are not as they were read")
		}
		err = e.classify(ctx, err)
		return e.passing(ctx, c, err), lockless(err)
	}
	if pgconn.SafeToRetry(err) {
		return e.passing(ctx, c, err), err
	}
	return false, fault.Errorf(fault.Timeout, "%s: the connection ended during a commit; %w: %w", e.what(), errUndecided, bare(err))
}

const (
	// rowsMissed is the state of a division by zero: see [exactly].
	rowsMissed = "22012"
	// stoodStill is the state in which the server ends a session that is idle in
	// its transaction.
	stoodStill = "25P03"
)

// passing reports whether an error may be gone at another attempt: the connection
// was lost, or another transaction was in the way.
func (e *postgresEngine) passing(ctx context.Context, c *pgxpool.Conn, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	if c.Conn().IsClosed() {
		e.pool.Reset()
		return true
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code[:min(2, len(pg.Code))] == "40"
}

// begin begins a transaction and reads the desk; its Now is the transaction's.
func (e *postgresEngine) begin(ctx context.Context, c *pgx.Conn, steps ...step) (minReader int64, d desk, err error) {
	var clock int64
	found := false
	steps = append(steps, step{statement: deskState, row: func(r scanner) (err error) {
		found = true
		d, err = scanDesk(r, &minReader, &clock)
		return err
	}})
	if err := (postgresAsker{c}).ask(ctx, steps...); err != nil {
		return 0, desk{}, err
	}
	if !found {
		return 0, desk{}, fault.New(fault.Permanent, "the tables fleetdesk.schema_info and desk have not one row each: restore the database from a backup")
	}
	d.Now = e.high.after(e.clock(instant(clock)), d.Now)
	return minReader, d, nil
}

// look implements engine.
func (e *postgresEngine) look(ctx context.Context, f func(ctx context.Context, now time.Time, q asker) error) error {
	return e.read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, d, err := e.begin(ctx, c, step{statement: beginLook}, step{statement: readyLook, row: nothing})
		if err == nil {
			err = f(ctx, d.Now, postgresAsker{c})
		}
		rollback(ctx, c) // nothing was written
		return err
	})
}

// postgresAsker sends statements along without waiting for each one's answer.
type postgresAsker struct{ conn *pgx.Conn }

func (q postgresAsker) ask(ctx context.Context, steps ...step) (err error) {
	b := &pgx.Batch{}
	for _, s := range steps {
		b.Queue(s.postgres, s.postgresArgs()...)
	}
	res := q.conn.SendBatch(ctx, b)
	defer func() {
		if closing := res.Close(); err == nil {
			err = closing
		}
	}()
	for _, s := range steps {
		if s.row == nil {
			if _, err := res.Exec(); err != nil {
				return err
			}
			continue
		}
		rows, err := res.Query()
		if err != nil {
			return err
		}
		for rows.Next() {
			if err := s.row(rows); err != nil {
				rows.Close()
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	return nil
}

// postgresArgs are the arguments as PostgreSQL takes them: rows as one array for
// each column.
func (s step) postgresArgs() []any {
	if s.rows == nil {
		out := make([]any, len(s.args))
		for i, a := range s.args {
			if t, ok := a.(string); ok && !storable(t) {
				a = clean(t)
			}
			out[i] = a
		}
		return out
	}
	out := make([]any, len(s.set), len(s.set)+1)
	for i, c := range s.set {
		switch c.kind {
		case text:
			all := make([]string, len(s.rows))
			for n, r := range s.rows {
				if all[n] = r[i].(string); !storable(all[n]) {
					all[n] = clean(all[n])
				}
			}
			out[i] = all
		case integer:
			out[i] = array[int64](s.rows, i)
		case boolean:
			out[i] = array[bool](s.rows, i)
		case blob:
			out[i] = array[[]byte](s.rows, i)
		case float:
			out[i] = array[float64](s.rows, i)
		}
	}
	if s.exact {
		out = append(out, int64(len(s.rows)))
	}
	return out
}

func array[T any](rows [][]any, column int) []T {
	all := make([]T, len(rows))
	for n, r := range rows {
		all[n] = r[column].(T)
	}
	return all
}
