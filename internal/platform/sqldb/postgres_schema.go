package sqldb

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"fleetdesk/internal/core/fault"
)

const (
	postgresFolder = "migrations/postgres"
	// upgradeWait is how long an upgrade waits for running writes and for
	// other replicas' upgrades, and how long one of its statements may take.
	upgradeWait = time.Minute
	// upgradeLimit is for all of them.
	upgradeLimit = 5 * time.Minute
)

// inspect reads the schema version, 0 where there is no schema or its creation
// was cut short. It writes nothing, and refuses what is not ours and what a
// newer version made.
func (d *postgresDB) inspect(ctx context.Context, c *pgx.Conn) (version int64, err error) {
	var (
		encoding                 string
		versioned, marked, named int
	)
	// What belongs to a table of ours (indexes, sequences) is no table.
	err = c.QueryRow(ctx, `
		SELECT current_setting('server_encoding'), count(*) FILTER (WHERE relname = $1), count(*) FILTER (WHERE relname = 'schema_info'), count(relname)
		FROM pg_class WHERE relnamespace = to_regnamespace('fleetdesk') AND relkind IN ('r', 'p', 'v', 'm', 'f')`, versionTable).
		Scan(&encoding, &versioned, &marked, &named)
	switch {
	case err != nil:
		return 0, err
	case encoding != "UTF8":
		return 0, fault.Errorf(fault.Permanent, "%s: its encoding is %s: create one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", d.what(), encoding)
	case named > versioned && (versioned == 0 || marked == 0):
		return 0, fault.Errorf(fault.Permanent, "%s: its schema fleetdesk belongs to another program: give another database", d.what())
	case versioned == 0:
		return 0, nil
	}
	if err := c.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM fleetdesk."+versionTable).Scan(&version); err != nil {
		return 0, err
	}
	return version, notNewer(d.what(), version, d.known)
}

// upgrade makes the schema and runs the missing steps: one replica at a time,
// and no one writes meanwhile.
func (d *postgresDB) upgrade(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, upgradeLimit, errMute)
	defer cancel()
	// The lock is its connection's, and goose takes the steps to whichever one
	// the pool has. So there is one, and never a second that would have no lock.
	first := true
	db := stdlib.OpenDB(*d.pool.Config().ConnConfig, stdlib.OptionAfterConnect(d.greetUpgrade),
		stdlib.OptionBeforeConnect(func(context.Context, *pgx.ConnConfig) error {
			if !first {
				return fault.Errorf(fault.Unavailable, "%s: the connection broke during the upgrade: start again", d.what())
			}
			first = false
			return nil
		}))
	defer db.Close() // ends the lock too
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	err := onConn(ctx, db, func(c *pgx.Conn) error { return d.lockAndMake(ctx, c) })
	if err != nil {
		return d.classify(ctx, err)
	}
	s, err := newSteps(goose.DialectPostgres, db, postgresFolder, "fleetdesk."+versionTable)
	if err != nil {
		return err
	}
	return d.classify(ctx, s.up(ctx))
}

// lockAndMake makes the schema, where the steps' tables go.
func (d *postgresDB) lockAndMake(ctx context.Context, c *pgx.Conn) error {
	if _, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(writers)); err != nil {
		return err
	}
	// Another replica may have been here while this one waited.
	if _, err := d.inspect(ctx, c); err != nil {
		return err
	}
	// Asked first: who may not make schemas may still have been given this one.
	var exists bool
	err := c.QueryRow(ctx, "SELECT to_regnamespace('fleetdesk') IS NOT NULL").Scan(&exists)
	if err == nil && !exists {
		_, err = c.Exec(ctx, "CREATE SCHEMA fleetdesk")
	}
	return err
}

func onConn(ctx context.Context, db *sql.DB, f func(*pgx.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // back to the pool
	return conn.Raw(func(driver any) error { return f(driver.(*stdlib.Conn).Conn()) })
}

// greetUpgrade readies the connection of an upgrade, which may take longer than
// a call.
func (d *postgresDB) greetUpgrade(ctx context.Context, c *pgx.Conn) error {
	return d.set(ctx, c, map[string]string{
		"statement_timeout":                   millis(upgradeWait),
		"lock_timeout":                        millis(upgradeWait),
		"idle_in_transaction_session_timeout": millis(idleInTransaction),
		"tcp_keepalives_idle":                 "10",
		"tcp_keepalives_interval":             "5",
		"tcp_keepalives_count":                "3",
		"tcp_user_timeout":                    "15000",
	})
}
