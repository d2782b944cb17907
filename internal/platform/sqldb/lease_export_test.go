package sqldb

import (
	"context"
	"maps"
	"sync"
	"time"

	"fleetdesk/internal/core/lease"
)

// WithClock makes leases live by another clock: what it makes of the database's.
func WithClock(o Options, clock func(time.Time) time.Time) Options {
	o.clock = clock
	return o
}

// Wrap puts something between the rules and each transaction from now on.
func (d *DB) Wrap(wrap func(lease.Tx) lease.Tx) { d.desk.wrap = wrap }

// Count asks a question, in PostgreSQL's words, that has one number as its answer.
func (d *DB) Count(ctx context.Context, question string, n *int) error {
	return d.desk.look(ctx, func(ctx context.Context, _ time.Time, q asker) error {
		return q.ask(ctx, step{statement: plain(question), row: func(r scanner) error { return r.Scan(n) }})
	})
}

// DeskLock is the advisory lock of the desk.
const DeskLock int64 = deskLock

// Recorder notes the statements that a database is asked.
type Recorder struct {
	engine
	mu    sync.Mutex
	texts map[string]string
}

// Record notes what is asked from now on.
func (d *DB) Record() *Recorder {
	r := &Recorder{engine: d.desk.engine, texts: map[string]string{}}
	d.desk.engine = r
	return r
}

// Texts returns the statements so far, PostgreSQL's with SQLite's.
func (r *Recorder) Texts() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.texts)
}

func (r *Recorder) note(steps []step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range steps {
		r.texts[s.postgres] = s.sqlite
	}
}

func (r *Recorder) alone(ctx context.Context, f func(ctx context.Context, d desk, q asker) (kept, error)) error {
	return r.engine.alone(ctx, func(ctx context.Context, d desk, q asker) (kept, error) {
		k, err := f(ctx, d, recorded{r, q})
		r.note(k.writes)
		return k, err
	})
}

func (r *Recorder) look(ctx context.Context, f func(ctx context.Context, now time.Time, q asker) error) error {
	return r.engine.look(ctx, func(ctx context.Context, now time.Time, q asker) error { return f(ctx, now, recorded{r, q}) })
}

type recorded struct {
	r *Recorder
	asker
}

func (q recorded) ask(ctx context.Context, steps ...step) error {
	q.r.note(steps)
	return q.asker.ask(ctx, steps...)
}

// PlanSettings are statements that make a session of PostgreSQL plan as those of
// the desk do.
func PlanSettings() string { return lockDesk.postgres }

// Interfere runs a statement, in PostgreSQL's words, inside the next transaction,
// between what it reads and what it writes.
func (d *DB) Interfere(statement string) {
	d.desk.engine = &interfering{d.desk.engine, statement}
}

type interfering struct {
	engine
	statement string
}

func (e *interfering) alone(ctx context.Context, f func(ctx context.Context, d desk, q asker) (kept, error)) error {
	return e.engine.alone(ctx, func(ctx context.Context, d desk, q asker) (kept, error) {
		k, err := f(ctx, d, q)
		if err == nil && e.statement != "" {
			err = q.ask(ctx, step{statement: plain(e.statement)})
			e.statement = ""
		}
		return k, err
	})
}

// Run runs a statement, in PostgreSQL's words, beside all rules.
func (d *DB) Run(ctx context.Context, statement string) error {
	if s, ok := d.backend.(*sqliteDB); ok {
		_, err := s.writer.ExecContext(ctx, plain(statement).sqlite)
		return err
	}
	_, err := d.backend.(*postgresDB).pool.Exec(ctx, statement)
	return err
}
