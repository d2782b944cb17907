package sqldb_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/core/token/tokentest"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/testkit/postgres"
)

var server = postgres.Shared(postgres.Options{})

func openURL(t *testing.T, url string) *sqldb.DB {
	t.Helper()
	return openWith(t, sqldb.Options{URL: url})
}

func openWith(t *testing.T, o sqldb.Options) *sqldb.DB {
	t.Helper()
	db, err := sqldb.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return db
}

func TestPostgresTokensSuite(t *testing.T) {
	tokentest.Run(t, func(t *testing.T) token.Store {
		return openURL(t, server.Database(t)).Tokens()
	})
}

func TestPostgresDirectorySuite(t *testing.T) {
	tokentest.RunDirectory(t, func(t *testing.T) tokentest.DirectoryStore {
		return openURL(t, server.Database(t)).Tokens()
	})
}

// Two replicas on one database behave as one: what one wrote the other reads
// next.
func TestPostgresTokensSuiteOverTwoHandles(t *testing.T) {
	tokentest.Run(t, func(t *testing.T) token.Store {
		url := server.Database(t)
		s := &turns{next: make(chan sqldb.Tokens, 2)}
		s.next <- openURL(t, url).Tokens()
		s.next <- openURL(t, url).Tokens()
		return s
	})
}

// What every connection has, and so what the server does when a replica hangs.
func TestPostgresSettings(t *testing.T) {
	url := server.Database(t)
	db := openWith(t, sqldb.Options{URL: url, LockWait: 2 * time.Second})
	for name, want := range map[string]string{
		"statement_timeout":                   "7s",
		"lock_timeout":                        "2s",
		"idle_in_transaction_session_timeout": "5s",
		"synchronous_commit":                  "on",
		"application_name":                    "fleetdesk",
		"default_transaction_read_only":       "off",
	} {
		var got string
		if err := db.Pool().QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
	if n := db.Pool().Config().MaxConns; n != 8 {
		t.Errorf("%d connections at most, want 8", n)
	}
}

// A server that is set to promise a commit before it is on disk is asked not to.
func TestPostgresCommitsForGood(t *testing.T) {
	s := server.Server(t)
	url := s.Database(t)
	name := url[strings.LastIndex(url, "/t_")+1 : strings.Index(url, "?")]
	for set, want := range map[string]string{"off": "on", "remote_apply": "remote_apply"} {
		if err := s.Exec(t.Context(), name, "ALTER DATABASE "+name+" SET synchronous_commit = "+set); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := openURL(t, url).Pool().QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&got); err != nil || got != want {
			t.Errorf("set to %s it is %s (%v), want %s", set, got, err, want)
		}
	}
}

func TestPostgresWriteRollsBack(t *testing.T) {
	db := openURL(t, server.Database(t))
	insert := func(ctx context.Context, tx *pgx.Conn, name string) error {
		_, err := tx.Exec(ctx, "INSERT INTO fleetdesk.accounts (name, role, created, disabled) VALUES ($1, 'viewer', 0, false)", name)
		return err
	}
	failure := fault.New(fault.Quota, "no")
	connected := db.Pool().Stat().NewConnsCount()
	err := db.WriteTo(t.Context(), func(ctx context.Context, tx *pgx.Conn) error {
		if err := insert(ctx, tx, "ann"); err != nil {
			return err
		}
		return failure
	})
	if err != failure {
		t.Errorf("got %v, want the function's own error", err)
	}
	addAccounts(t, db, "amy")
	if n := db.Pool().Stat().NewConnsCount(); n != connected {
		t.Errorf("a write that was refused cost %d connections", n-connected)
	}
	func() {
		defer func() { _ = recover() }()
		_ = db.WriteTo(t.Context(), func(ctx context.Context, tx *pgx.Conn) error {
			if err := insert(ctx, tx, "bob"); err != nil {
				t.Error(err)
			}
			panic("no")
		})
	}()
	ctx, cancel := context.WithCancel(t.Context())
	err = db.WriteTo(ctx, func(ctx context.Context, tx *pgx.Conn) error {
		defer cancel()
		return insert(ctx, tx, "cid")
	})
	if fault.Of(err) != fault.Timeout {
		t.Errorf("a context that ended before the commit: %v (%s), want Timeout", err, fault.Of(err))
	}
	// An error that f swallows has ended the transaction all the same.
	err = db.WriteTo(t.Context(), func(ctx context.Context, tx *pgx.Conn) error {
		if err := insert(ctx, tx, "eve"); err != nil {
			return err
		}
		_ = insert(ctx, tx, "eve")
		return nil
	})
	if fault.Of(err) != fault.Permanent {
		t.Errorf("a commit that rolled back: %v (%s), want Permanent", err, fault.Of(err))
	}
	addAccounts(t, db, "dan")
	if got := accountNames(t, db); got != "amy dan" {
		t.Errorf("accounts %q, want amy and dan", got)
	}
	if n := db.Pool().Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// Many replicas that start at once on an empty database all get the same one.
func TestPostgresOpenRace(t *testing.T) {
	url := server.Database(t)
	const openers = 8
	errs := make(chan error, openers)
	for n := range openers {
		go func() {
			db, err := sqldb.Open(t.Context(), sqldb.Options{URL: url})
			if err != nil {
				errs <- err
				return
			}
			err = db.Tokens().CreateAccount(t.Context(), token.Account{Name: fmt.Sprintf("n%d", n), Role: token.Viewer})
			if e := db.Close(); err == nil {
				err = e
			}
			errs <- err
		}()
	}
	for range openers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	db := openURL(t, url)
	if got := accountNames(t, db); got != "n0 n1 n2 n3 n4 n5 n6 n7" {
		t.Errorf("accounts %q", got)
	}
	var ran int
	if err := db.Pool().QueryRow(t.Context(), "SELECT count(*) FROM fleetdesk.schema_version WHERE version_id = 1").Scan(&ran); err != nil || ran != 1 {
		t.Errorf("the first step ran %d times: %v", ran, err)
	}
}

// A replica that is running while a newer one raises the schema beyond it stops
// writing, and says why.
func TestPostgresUpgradedMeanwhile(t *testing.T) {
	db := openURL(t, server.Database(t))
	addAccounts(t, db, "ann")
	set := func(n int) {
		if _, err := db.Pool().Exec(t.Context(), "UPDATE fleetdesk.schema_info SET min_reader = $1", n); err != nil {
			t.Fatal(err)
		}
	}
	set(99)
	err := db.Tokens().CreateAccount(t.Context(), token.Account{Name: "bob", Role: token.Viewer})
	if fault.Of(err) != fault.Permanent || !strings.Contains(fmt.Sprint(err), "newer version") {
		t.Errorf("got %v (%s), want Permanent", err, fault.Of(err))
	}
	set(1) // an upgrade that only expands leaves it as it was
	addAccounts(t, db, "bob")
}

// A write that began while an upgrade was under way sees what that one did.
func TestPostgresUpgradeExcludesWrites(t *testing.T) {
	url := server.Database(t)
	db := openURL(t, url)
	addAccounts(t, db, "ann")
	upgrade, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer upgrade.Close(context.WithoutCancel(t.Context()))
	exec := func(sql string) {
		if _, err := upgrade.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("SELECT pg_advisory_lock(" + fmt.Sprint(sqldb.Writers) + ")")
	wrote := make(chan error, 1)
	go func() {
		wrote <- db.Tokens().CreateAccount(t.Context(), token.Account{Name: "bob", Role: token.Viewer})
	}()
	until(t, "the write waits", func() bool {
		var n int
		err := upgrade.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").Scan(&n)
		return err == nil && n == 1
	})
	exec("UPDATE fleetdesk.schema_info SET min_reader = 99")
	exec("SELECT pg_advisory_unlock_all()")
	if err := <-wrote; fault.Of(err) != fault.Permanent {
		t.Errorf("got %v (%s), want Permanent: it wrote to a schema that it does not know", err, fault.Of(err))
	}
}

// A lost server is told quickly, and found again without a new Open, whatever
// the pool kept of it.
func TestPostgresOutage(t *testing.T) {
	s := postgres.Private(t, postgres.Options{})
	url := s.Database(t)
	db := openURL(t, url)
	addAccounts(t, db, "ann")
	warm := func() { // all connections of the pool are in use once
		done := make(chan error, 8)
		for range cap(done) {
			go func() {
				_, err := db.Pool().Exec(t.Context(), "SELECT pg_sleep(0.05)")
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, down := range map[string]func() error{"stopped": s.Stop, "killed": s.Kill} {
		warm()
		if err := down(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, _, err := db.Tokens().TokenByID(t.Context(), "one")
		if fault.Of(err) != fault.Unavailable {
			t.Errorf("%s: read: %v (%s), want Unavailable", name, err, fault.Of(err))
		}
		err = db.Tokens().CreateAccount(t.Context(), token.Account{Name: "bob", Role: token.Viewer})
		if fault.Of(err) != fault.Unavailable {
			t.Errorf("%s: write: %v (%s), want Unavailable", name, err, fault.Of(err))
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s: two calls took %s", name, took)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := accountNames(t, db); got != "ann" {
			t.Errorf("%s: accounts %q after the restart, want ann", name, got)
		}

		// Restarted between two calls, with a pool full of dead connections.
		warm()
		if err := down(); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		addAccounts(t, db, "again")
		if _, err := db.Pool().Exec(t.Context(), "DELETE FROM fleetdesk.accounts WHERE name = 'again'"); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that hears and never answers: the caller's own deadline holds.
func TestPostgresMute(t *testing.T) {
	s := postgres.Private(t, postgres.Options{})
	db := openURL(t, s.Database(t))
	addAccounts(t, db, "ann")
	thaw, err := s.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		err := db.Tokens().CreateAccount(ctx, token.Account{Name: "bob", Role: token.Viewer})
		if fault.Of(err) != fault.Timeout {
			t.Errorf("got %v (%s), want Timeout", err, fault.Of(err))
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("a call with 100 ms took %s", took)
		}
		cancel()
	}
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	addAccounts(t, db, "cid")
}

// The same without a deadline of the caller's: the call's own limit is an outage.
func TestPostgresMuteWithoutDeadline(t *testing.T) {
	s := postgres.Private(t, postgres.Options{})
	db := openWith(t, sqldb.Limited(sqldb.Options{URL: s.Database(t)}, 200*time.Millisecond))
	addAccounts(t, db, "ann")
	thaw, err := s.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Tokens().Accounts(t.Context(), "", 10); fault.Of(err) != fault.Unavailable {
		t.Errorf("read: %v (%s), want Unavailable", err, fault.Of(err))
	}
	err = db.Tokens().CreateAccount(t.Context(), token.Account{Name: "bob", Role: token.Viewer})
	if fault.Of(err) != fault.Unavailable {
		t.Errorf("write: %v (%s), want Unavailable", err, fault.Of(err))
	}
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
}

// A server that takes no writes is told as an outage, and is left for another one.
func TestPostgresStandby(t *testing.T) {
	s := server.Server(t)
	url := s.Database(t)
	db := openWith(t, sqldb.Options{URL: url, Connections: 1})
	addAccounts(t, db, "ann")
	if _, err := db.Pool().Exec(t.Context(), "SET default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	err := db.Tokens().CreateAccount(t.Context(), token.Account{Name: "bob", Role: token.Viewer})
	if fault.Of(err) != fault.Unavailable || !strings.Contains(fmt.Sprint(err), "standby") {
		t.Errorf("got %v (%s), want Unavailable", err, fault.Of(err))
	}
	addAccounts(t, db, "bob") // on a new connection
}

// Names are in the order of their bytes in a database of any language.
func TestPostgresOrder(t *testing.T) {
	s := server.Server(t)
	if err := s.Exec(t.Context(), "postgres", "CREATE DATABASE english LOCALE_PROVIDER icu ICU_LOCALE 'en' TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	db := openURL(t, s.URL("english"))
	var folded bool
	if err := db.Pool().QueryRow(t.Context(), "SELECT 'a' < 'B'").Scan(&folded); err != nil || !folded {
		t.Fatalf("the database orders by bytes itself: the test shows nothing (%v)", err)
	}
	addAccounts(t, db, "a", "B", "c", "D")
	if got := accountNames(t, db); got != "B D a c" {
		t.Errorf("accounts %q, want B D a c", got)
	}
	next, err := db.Tokens().Accounts(t.Context(), "D", 1)
	if err != nil || len(next) != 1 || next[0].Name != "a" {
		t.Errorf("after D: %v %v, want a", next, err)
	}
}

// A replica that stands still in a transaction loses it, so that its locks do not
// hold up the others for longer.
func TestPostgresHungReplica(t *testing.T) {
	url := server.Database(t)
	hung, other := openURL(t, url), openWith(t, sqldb.Options{URL: url, LockWait: 20 * time.Second})
	holds, free := make(chan struct{}), make(chan struct{})
	lost := make(chan error, 1)
	go func() {
		lost <- hung.WriteTo(t.Context(), func(ctx context.Context, tx *pgx.Conn) error {
			_, err := tx.Exec(ctx, "SELECT FROM fleetdesk.schema_info FOR UPDATE")
			close(holds)
			<-free
			return err
		})
	}()
	<-holds
	began := time.Now()
	created, err := other.Tokens().Bootstrap(t.Context(), token.Account{Name: "root", Role: token.Admin},
		token.Record{ID: "one", Account: "root", Hash: make([]byte, 32)})
	if err != nil || !created {
		t.Errorf("created %v: %v", created, err)
	}
	if took := time.Since(began); took < time.Second || took > 10*time.Second {
		t.Errorf("the other one waited for %s, want about 5 s", took)
	}
	close(free)
	if err := <-lost; fault.Of(err) != fault.Unavailable {
		t.Errorf("the hung one: %v (%s), want Unavailable", err, fault.Of(err))
	}
}

func TestPostgresClosed(t *testing.T) {
	db := openURL(t, server.Database(t))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := db.Tokens().TokenByID(t.Context(), "one"); fault.Of(err) != fault.Unavailable {
		t.Errorf("read: %v (%s), want Unavailable", err, fault.Of(err))
	}
	if err := db.Tokens().CreateAccount(t.Context(), token.Account{Name: "ann", Role: token.Viewer}); fault.Of(err) != fault.Unavailable {
		t.Errorf("write: %v (%s), want Unavailable", err, fault.Of(err))
	}
}

// What cannot be in the database is not there; it is no failure.
func TestPostgresOddTexts(t *testing.T) {
	s := openURL(t, server.Database(t)).Tokens()
	for _, odd := range []string{"a\x00b", "\xff", strings.Repeat("é", 1000)} {
		if _, _, err := s.TokenByID(t.Context(), odd); fault.Of(err) != fault.NotFound {
			t.Errorf("TokenByID(%.10q): %v (%s)", odd, err, fault.Of(err))
		}
		if err := s.RevokeToken(t.Context(), odd); fault.Of(err) != fault.NotFound {
			t.Errorf("RevokeToken(%.10q): %v (%s)", odd, err, fault.Of(err))
		}
		if _, err := s.Tokens(t.Context(), odd, "", 1); fault.Of(err) != fault.NotFound {
			t.Errorf("Tokens(%.10q): %v (%s)", odd, err, fault.Of(err))
		}
	}
	if _, err := s.Accounts(t.Context(), "\xff", 1); fault.Of(err) != fault.Invalid {
		t.Errorf("Accounts after no text: %v (%s), want Invalid", err, fault.Of(err))
	}
}
