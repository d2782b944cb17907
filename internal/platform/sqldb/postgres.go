package sqldb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetdesk/internal/core/fault"
)

// Limits of what one call may take; the database holds the first three, so that
// they hold for a replica that hangs as well.
const (
	// idleInTransaction is how long a replica may sit in a transaction before
	// the server ends it, and with it the locks that others wait for.
	idleInTransaction = 5 * time.Second
	// postgresLockWait is Options.LockWait where that says nothing.
	postgresLockWait = 5 * time.Second
	// beyondLock is what a statement may take besides its wait for locks.
	beyondLock = 5 * time.Second
	// beyondStatement is what a call may take besides its longest statement.
	beyondStatement = 5 * time.Second
	// rollbackWait is for a transaction whose context ended.
	rollbackWait = time.Second
)

// readOnlyServer is the state of a write to a server that takes none.
const readOnlyServer = "25006"

// writers is the advisory lock that each write holds shared and an upgrade alone:
// "fleetdsk" as a number.
const writers = 0x666c65657464736b

// postgresDB is the back end for PostgreSQL.
type postgresDB struct {
	name     string // hosts and database, for messages
	known    int64  // the newest schema version this program knows
	readOnly bool
	lockWait time.Duration
	limit    time.Duration // of a call
	pool     *pgxpool.Pool
}

func openPostgres(ctx context.Context, o Options) (_ *postgresDB, err error) {
	if o.URLFile != "" {
		if o.URL, err = readURLFile(o.URLFile); err != nil {
			return nil, err
		}
	}
	cfg, name, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	d := &postgresDB{name: name, readOnly: o.ReadOnly, lockWait: o.LockWait, limit: o.limit}
	if d.lockWait == 0 {
		d.lockWait = postgresLockWait
	}
	if d.limit == 0 {
		d.limit = d.lockWait + beyondLock + beyondStatement
	}
	if d.known, err = latestStep(postgresFolder); err != nil {
		return nil, err
	}
	if o.Connections == 0 {
		o.Connections = 8
	}
	cfg.MaxConns = int32(o.Connections)
	cfg.PingTimeout = 2 * time.Second
	cfg.AfterConnect = d.greet
	if d.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, d.classify(ctx, err)
	}
	if err := d.open(ctx); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// open looks at the schema and brings it up to date. Nothing is written before
// it was found to be ours, or missing.
func (d *postgresDB) open(ctx context.Context) error {
	var version int64
	err := d.read(ctx, func(ctx context.Context, c *pgx.Conn) (err error) {
		version, err = d.inspect(ctx, c)
		return err
	})
	switch {
	case err != nil:
		return err
	case d.readOnly:
		return readable(d.what(), version, d.known)
	case version == d.known:
		return nil
	}
	return d.upgrade(ctx)
}

func (d *postgresDB) what() string { return "database " + d.name }

// oldestServer is the oldest major version that the project tests with.
const oldestServer = 13

// greet readies a new connection.
func (d *postgresDB) greet(ctx context.Context, c *pgx.Conn) error {
	if err := d.oldEnough(c); err != nil {
		return err
	}
	settings := map[string]string{
		"statement_timeout":                   millis(d.lockWait + beyondLock),
		"lock_timeout":                        millis(d.lockWait),
		"idle_in_transaction_session_timeout": millis(idleInTransaction),
		// The server notices a replica whose machine is gone.
		"tcp_keepalives_idle":     "10",
		"tcp_keepalives_interval": "5",
		"tcp_keepalives_count":    "3",
		"tcp_user_timeout":        "15000",
	}
	if d.readOnly {
		settings["default_transaction_read_only"] = "on"
	}
	return d.set(ctx, c, settings)
}

// set sets what holds for a connection, and makes sure that what was committed
// survives a crash: a server may be set to promise that earlier than it is true.
// Poolers refuse most settings at connecting, so they come after it.
func (d *postgresDB) set(ctx context.Context, c *pgx.Conn, settings map[string]string) error {
	var names, values []string
	for k, v := range settings {
		names, values = append(names, k), append(values, v)
	}
	_, err := c.Exec(ctx, `SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) s (name, value)
		UNION ALL SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`, names, values)
	return err
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// oldEnough refuses a server that lacks what we use.
func (d *postgresDB) oldEnough(c *pgx.Conn) error {
	said := c.PgConn().ParameterStatus("server_version") // "15.12 (Debian …)", "16beta1"
	digits := strings.IndexFunc(said, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(said)
	}
	if major, err := strconv.Atoi(said[:digits]); err == nil && major < oldestServer {
		return fault.Errorf(fault.Permanent, "%s: the server is PostgreSQL %d: upgrade it to %d or newer", d.what(), major, oldestServer)
	}
	return nil
}

// Close implements backend.
func (d *postgresDB) Close() error {
	d.pool.Close()
	return nil
}

// bounded gives a call its own limit besides its caller's.
func (d *postgresDB) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d.limit, errMute)
}

// read runs f on a connection, twice when the first one proves to be dead.
// Errors of f that have no class get one.
func (d *postgresDB) read(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	c, err := d.acquire(ctx, func(c *pgx.Conn) error { return f(ctx, c) })
	if err == nil {
		c.Release()
	}
	return d.classify(ctx, err)
}

// write runs f in a write transaction: committed when f returns nil, otherwise
// rolled back. What f reads without a lock may change under it; f locks the rows
// it decides on. Errors of f that have no class get one. Unavailable or Timeout
// leave it open whether f's changes were kept.
func (d *postgresDB) write(ctx context.Context, f func(ctx context.Context, tx *pgx.Conn) error) error {
	if d.readOnly {
		return forReadingOnly(d.what())
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	return d.classify(ctx, d.transact(ctx, f))
}

func (d *postgresDB) transact(ctx context.Context, f func(ctx context.Context, tx *pgx.Conn) error) error {
	var minReader int64
	c, err := d.acquire(ctx, func(c *pgx.Conn) (err error) {
		minReader, err = begin(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Release() // ends the connection when the transaction is still open
	defer rollback(ctx, c.Conn())
	if err := writable(d.what(), minReader, d.known); err != nil {
		return err
	}
	if err := f(ctx, c.Conn()); err != nil {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == readOnlyServer {
			d.pool.Reset() // it became a standby: the next connection looks for the primary
		}
		return err
	}
	tag, err := c.Exec(ctx, "COMMIT")
	if err == nil && tag.String() != "COMMIT" {
		return fault.Errorf(fault.Permanent, "%s: a failed transaction was to be committed: this is a defect of the program", d.what())
	}
	return err
}

// acquire takes a connection and does a first thing on it that may be done twice.
// When the connection proves to be dead, the server was restarted or ended it: the
// others of the pool are dead as well, and a new one is tried.
func (d *postgresDB) acquire(ctx context.Context, first func(*pgx.Conn) error) (*pgxpool.Conn, error) {
	for again := false; ; again = true {
		c, err := d.pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		err = first(c.Conn())
		if err == nil {
			return c, nil
		}
		dead := c.Conn().IsClosed() && ctx.Err() == nil
		rollback(ctx, c.Conn())
		c.Release()
		if dead {
			d.pool.Reset()
		}
		if again || !dead {
			return nil, err
		}
	}
}

// begin begins a write and returns the schema version that a program must know
// to write. One way there and back; each statement sees the state of its own
// moment, so the last one sees what an upgrade did that the lock waited for.
func begin(ctx context.Context, c *pgx.Conn) (minReader int64, err error) {
	all, err := c.PgConn().Exec(ctx, beginStatements).ReadAll()
	if err != nil {
		return 0, err
	}
	if len(all) != 3 || len(all[2].Rows) != 1 {
		return 0, fault.New(fault.Permanent, "the table fleetdesk.schema_info has not one row: restore the database from a backup")
	}
	return strconv.ParseInt(string(all[2].Rows[0][0]), 10, 64)
}

var beginStatements = fmt.Sprintf("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock_shared(%d); SELECT min_reader FROM fleetdesk.schema_info", writers)

// alone lets the transaction go on when no other one is in such a part.
func alone(ctx context.Context, tx *pgx.Conn) error {
	_, err := tx.Exec(ctx, "SELECT FROM fleetdesk.schema_info FOR UPDATE")
	return err
}

// rollback ends a transaction that is open, also when ctx ended.
func rollback(ctx context.Context, c *pgx.Conn) {
	if c.IsClosed() || c.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWait)
	defer cancel()
	_, _ = c.Exec(ctx, "ROLLBACK") // else the connection is ended, and the transaction with it
}
