package sqldb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"fleetdesk/internal/core/fault"
)

// sqliteEngine is [engine] over SQLite.
type sqliteEngine struct {
	*sqliteDB
	// clock is told the machine's time, which is the database's: whoever writes
	// a file is on its machine.
	clock func(time.Time) time.Time
	high  highWater

	mu       sync.Mutex
	prepared map[preparedFor]*sql.Stmt // nil for one to be made
	missing  []preparedFor

	own own
}

type preparedFor struct {
	db  *sql.DB
	sql string
}

// engine implements backend.
func (d *sqliteDB) engine(clock func(time.Time) time.Time) engine {
	return &sqliteEngine{sqliteDB: d, clock: clock, prepared: map[preparedFor]*sql.Stmt{}}
}

func (e *sqliteEngine) now(kept time.Time) time.Time {
	return e.high.after(e.clock(time.Now()), kept)
}

var readDesk = plain("SELECT " + deskValues + " FROM fleetdesk.desk d")

// alone implements engine. It runs f once.
func (e *sqliteEngine) alone(ctx context.Context, f func(ctx context.Context, d desk, q asker) (kept, error)) error {
	undo := func() {}
	defer func() { undo() }()
	err := e.write(ctx, func(tx *sql.Tx) error {
		q := &sqliteAsker{e, e.writer, tx}
		var d desk
		if err := q.ask(ctx, step{statement: readDesk, row: func(r scanner) (err error) { d, err = scanDesk(r); return err }}); err != nil {
			return err
		}
		d.Now = e.now(d.Now)
		k, err := f(ctx, d, q)
		if err != nil {
			return err
		}
		undo = e.own.done(d, k.desk)
		return lockless(e.classify(ctx, q.ask(ctx, k.writes...)))
	})
	if err != nil {
		return unsure(err)
	}
	undo = func() {}
	e.prepare(ctx)
	return nil
}

// lockless tells of rows that were changed without the lock: the same may well
// work when tried again.
func lockless(err error) error {
	switch fault.Of(err) {
	case fault.Conflict, fault.NotFound:
		return fault.Errorf(fault.Transient, "rows were changed beside the lock of the desk; nothing was kept: %w", err)
	}
	return err
}

// unsure tells of a write that failed so late that the file may hold it all the
// same after a crash.
func unsure(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code() == sqlite3.SQLITE_IOERR_FSYNC {
		return fault.Errorf(fault.Timeout, "%w: %w", errUndecided, err)
	}
	return err
}

// look implements engine.
func (e *sqliteEngine) look(ctx context.Context, f func(ctx context.Context, now time.Time, q asker) error) error {
	tx, err := e.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return e.classify(ctx, err)
	}
	defer func() { _ = tx.Rollback() }()
	q := &sqliteAsker{e, e.reader, tx}
	var d desk
	err = q.ask(ctx, step{statement: readDesk, row: func(r scanner) (err error) { d, err = scanDesk(r); return err }})
	if err == nil {
		err = f(ctx, e.now(d.Now), q)
	}
	if err != nil {
		return e.classify(ctx, err)
	}
	_ = tx.Rollback() // nothing was written
	e.prepare(ctx)
	return nil
}

// sqliteAsker runs statements in a transaction.
type sqliteAsker struct {
	engine *sqliteEngine
	db     *sql.DB
	tx     *sql.Tx
}

func (q *sqliteAsker) ask(ctx context.Context, steps ...step) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := q.run(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (q *sqliteAsker) run(ctx context.Context, s step) error {
	// What is asked here takes milliseconds; watching the context within would
	// take longer.
	ctx = context.WithoutCancel(ctx)
	stmt := q.engine.ready(q.db, s.sqlite)
	var err error
	if stmt != nil {
		stmt = q.tx.StmtContext(ctx, stmt)
	} else if stmt, err = q.tx.PrepareContext(ctx, s.sqlite); err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	switch {
	case s.row != nil && s.oneByOne:
		for _, row := range s.rows {
			s.args = row
			if err := query(ctx, stmt, s); err != nil {
				return err
			}
		}
		return nil
	case s.row != nil && s.rows != nil:
		b, err := json.Marshal(s.rows) // as one list
		if err != nil {
			return err
		}
		s.args = []any{string(b)}
		return query(ctx, stmt, s)
	case s.row != nil:
		return query(ctx, stmt, s)
	case s.rows == nil:
		_, err := stmt.ExecContext(ctx, sqliteArgs(s.args)...)
		return err
	}
	met := int64(0)
	for _, row := range s.rows {
		res, err := stmt.ExecContext(ctx, sqliteArgs(row)...)
		if err != nil {
			return err
		}
		if s.exact {
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			met += n
		}
	}
	if s.exact && met != int64(len(s.rows)) {
		return fault.Errorf(fault.Conflict, "%d of %d rows are as they were read", met, len(s.rows))
	}
	return nil
}

func query(ctx context.Context, stmt *sql.Stmt, s step) (err error) {
	rows, err := stmt.QueryContext(ctx, sqliteArgs(s.args)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := s.row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// ready returns a statement that was prepared, or nil and has it prepared later:
// within a transaction there may be no free connection for that.
func (e *sqliteEngine) ready(db *sql.DB, text string) *sql.Stmt {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := preparedFor{db, text}
	s, known := e.prepared[id]
	if !known {
		e.prepared[id] = nil
		e.missing = append(e.missing, id)
	}
	return s
}

// prepare prepares what was missing; they are few. What fails now is tried when
// it is missing again.
func (e *sqliteEngine) prepare(ctx context.Context) {
	e.mu.Lock()
	missing := e.missing
	e.missing = nil
	e.mu.Unlock()
	for _, id := range missing {
		s, err := id.db.PrepareContext(ctx, id.sql) //nolint:sqlclosecheck // kept as long as the database is open
		e.mu.Lock()
		if err != nil {
			delete(e.prepared, id)
		} else {
			e.prepared[id] = s
		}
		e.mu.Unlock()
	}
}

// sqliteArgs are arguments as SQLite takes them: lists as JSON.
func sqliteArgs(args []any) []any {
	out := args
	own := false
	set := func(i int, v any) {
		if !own {
			out, own = append([]any{}, args...), true
		}
		out[i] = v
	}
	for i, a := range args {
		switch a := a.(type) {
		case []string:
			b, _ := json.Marshal(a) //nolint:errchkjson // texts always can
			set(i, string(b))
		case string:
			if !storable(a) {
				set(i, clean(a))
			}
		}
	}
	return out
}

// clean makes a text storable. What comes from outside is looked at before; it is
// the messages of other programs that may hold anything.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
