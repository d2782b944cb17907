package sqldb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/core/token/tokentest"
	"fleetdesk/internal/platform/sqldb"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	goleak.VerifyTestMain(server.Around(m))
}

func open(t *testing.T, path string) *sqldb.DB {
	t.Helper()
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path})
	if err != nil {
		t.Fatalf("Open(%s): %v", path, err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return db
}

func TestTokensSuite(t *testing.T) {
	tokentest.Run(t, func(t *testing.T) token.Store {
		return open(t, filepath.Join(t.TempDir(), "desk.db")).Tokens()
	})
}

func TestDirectorySuite(t *testing.T) {
	tokentest.RunDirectory(t, func(t *testing.T) tokentest.DirectoryStore {
		return open(t, filepath.Join(t.TempDir(), "desk.db")).Tokens()
	})
}

// turns sends each call to the next of several stores.
type turns struct {
	next chan sqldb.Tokens
}

func (s *turns) one() sqldb.Tokens {
	store := <-s.next
	s.next <- store
	return store
}

func (s *turns) CreateAccount(ctx context.Context, a token.Account) error {
	return s.one().CreateAccount(ctx, a)
}

func (s *turns) CreateToken(ctx context.Context, r token.Record) error {
	return s.one().CreateToken(ctx, r)
}

func (s *turns) TokenByID(ctx context.Context, id string) (token.Record, token.Account, error) {
	return s.one().TokenByID(ctx, id)
}

func (s *turns) RevokeToken(ctx context.Context, id string) error {
	return s.one().RevokeToken(ctx, id)
}

func (s *turns) Accounts(ctx context.Context, after string, limit int) ([]token.Account, error) {
	return s.one().Accounts(ctx, after, limit)
}

func (s *turns) Bootstrap(ctx context.Context, a token.Account, r token.Record) (bool, error) {
	return s.one().Bootstrap(ctx, a, r)
}

// Two databases on one file behave as one: what one wrote the other reads next.
func TestTokensSuiteOverTwoHandles(t *testing.T) {
	tokentest.Run(t, func(t *testing.T) token.Store {
		path := filepath.Join(t.TempDir(), "desk.db")
		s := &turns{next: make(chan sqldb.Tokens, 2)}
		s.next <- open(t, path).Tokens()
		s.next <- open(t, path).Tokens()
		return s
	})
}

// The kernel drops a process's locks on a file when it closes any descriptor of
// it. Opening a second database must not do that to the first, whose lock tells
// other processes that they are not alone with the file.
func TestOpeningAgainKeepsLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	addAccounts(t, open(t, path), "ann")
	if !kernelLock(t, path) {
		t.Fatal("an open database has no lock: the test shows nothing")
	}
	open(t, path)
	if !kernelLock(t, path) {
		t.Fatal("opening the file again dropped the lock of the first database")
	}
}

// kernelLock reports whether this process has a POSIX lock on the file. A line
// of the table reads: number: POSIX ADVISORY READ pid major:minor:inode from to.
func kernelLock(t *testing.T, path string) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "POSIX" && f[4] == strconv.Itoa(os.Getpid()) && strings.HasSuffix(f[5], fmt.Sprintf(":%d", st.Ino)) {
			return true
		}
	}
	return false
}

// Even without the side lock two processes never write at once.
func TestWriteHoldsSQLitesLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	err := open(t, path).Write(t.Context(), func(*sql.Tx) error {
		if out := runChild(t, "begin", path); out != "busy" {
			return fmt.Errorf("another process could begin a write: %q", out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSettings(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "desk.db"))
	pools := map[string]*sql.DB{"writer": db.Writer(), "reader": db.Reader()}
	for name, pool := range pools {
		got := map[string]string{}
		// A connection notices a new log mode when it reads.
		if _, err := pool.Exec("SELECT count(*) FROM accounts"); err != nil {
			t.Fatal(err)
		}
		for _, pragma := range []string{"journal_mode", "foreign_keys", "synchronous", "query_only", "busy_timeout"} {
			var v string
			if err := pool.QueryRow("PRAGMA " + pragma).Scan(&v); err != nil {
				t.Fatal(err)
			}
			got[pragma] = v
		}
		want := map[string]string{"journal_mode": "wal", "foreign_keys": "1", "synchronous": "2", "query_only": "0", "busy_timeout": "5000"}
		if name == "reader" {
			want["query_only"] = "1"
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if n := db.Writer().Stats().MaxOpenConnections; n != 1 {
		t.Errorf("the writer has %d connections, want 1", n)
	}
}

// The mode holds for all files, under any umask, and for files from before.
func TestFileModes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "desk.db")
	check := func(when string) {
		t.Helper()
		seen := 0
		for _, suffix := range []string{"", "-wal", "-shm", ".lock"} {
			info, err := os.Stat(path + suffix)
			if err != nil {
				t.Errorf("%s: %v", when, err)
				continue
			}
			seen++
			if mode := info.Mode().Perm(); mode != 0o600 {
				t.Errorf("%s: %s has mode %#o, want 0600", when, filepath.Base(path+suffix), mode)
			}
		}
		if seen != 4 {
			t.Errorf("%s: %d of 4 files", when, seen)
		}
	}
	db := open(t, path)
	addAccounts(t, db, "ann")
	check("new")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	addAccounts(t, open(t, path), "bob")
	check("reopened after somebody opened it up")
}

func addAccounts(t *testing.T, db *sqldb.DB, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := db.Tokens().CreateAccount(t.Context(), token.Account{Name: name, Role: token.Viewer}); err != nil {
			t.Fatal(err)
		}
	}
}

func accountNames(t *testing.T, db *sqldb.DB) string {
	t.Helper()
	all, err := db.Tokens().Accounts(t.Context(), "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range all {
		names = append(names, a.Name)
	}
	return strings.Join(names, " ")
}

func TestReopenKeeps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c#d%41&é.db") // none of it is URL syntax here
	db := open(t, path)
	addAccounts(t, db, "ann", "bob")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the file is not where it was asked for: %v", err)
	}
	if got := accountNames(t, open(t, path)); got != "ann bob" {
		t.Errorf("accounts %q, want ann bob", got)
	}
}

// A link and its target are one database with one side lock.
func TestOpenThroughLink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "desk.db"), filepath.Join(t.TempDir(), "link.db")
	addAccounts(t, open(t, path), "ann")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	db := open(t, link)
	addAccounts(t, db, "bob")
	if got := accountNames(t, db); got != "ann bob" {
		t.Errorf("accounts %q, want ann bob", got)
	}
	if _, err := os.Stat(link + ".lock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a second lock file beside the link: %v", err)
	}
}

func TestWriteRollsBack(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "desk.db"))
	insert := func(tx *sql.Tx, name string) error {
		_, err := tx.Exec("INSERT INTO accounts (name, role, created, disabled) VALUES (?, 'viewer', 0, 0)", name)
		return err
	}
	failure := errors.New("no")
	if err := db.Write(t.Context(), func(tx *sql.Tx) error { return errors.Join(insert(tx, "ann"), failure) }); !errors.Is(err, failure) {
		t.Errorf("got %v, want the function's own error", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = db.Write(t.Context(), func(tx *sql.Tx) error {
			if err := insert(tx, "bob"); err != nil {
				t.Error(err)
			}
			panic("no")
		})
	}()
	ctx, cancel := context.WithCancel(t.Context())
	err := db.Write(ctx, func(tx *sql.Tx) error {
		defer cancel()
		return insert(tx, "cid")
	})
	if fault.Of(err) != fault.Timeout || !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ended before the commit: %v (%s), want Timeout", err, fault.Of(err))
	}
	addAccounts(t, db, "dan") // the lock and the connection are free
	if got := accountNames(t, db); got != "dan" {
		t.Errorf("accounts %q, want dan alone", got)
	}
}

// Readers go on, with the state before, while a write is under way.
func TestReadersDoNotWait(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "desk.db"))
	addAccounts(t, db, "ann")
	err := db.Write(t.Context(), func(tx *sql.Tx) error {
		if _, err := tx.Exec("DELETE FROM accounts"); err != nil {
			return err
		}
		if got := accountNames(t, db); got != "ann" {
			t.Errorf("a reader sees %q during the write, want ann", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := accountNames(t, db); got != "" {
		t.Errorf("a reader sees %q after the write, want nothing", got)
	}
}

func TestClosed(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "desk.db"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, err := db.Tokens().TokenByID(t.Context(), "one")
	if fault.Of(err) != fault.Unavailable {
		t.Errorf("read: %v (%s), want Unavailable", err, fault.Of(err))
	}
	err = db.Tokens().CreateAccount(t.Context(), token.Account{Name: "ann", Role: token.Viewer})
	if fault.Of(err) != fault.Unavailable {
		t.Errorf("write: %v (%s), want Unavailable", err, fault.Of(err))
	}
}

// A file that was removed or replaced under a running program takes no writes:
// nobody else would see them.
func TestFileReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	db := open(t, path)
	addAccounts(t, db, "ann")
	for _, p := range []string{path, path + "-wal", path + "-shm"} {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	add := func() error {
		return db.Tokens().CreateAccount(t.Context(), token.Account{Name: "bob", Role: token.Viewer})
	}
	if err := add(); fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), path) {
		t.Errorf("removed: %v (%s), want Unavailable with the path", err, fault.Of(err))
	}
	open(t, path)
	if err := add(); fault.Of(err) != fault.Unavailable {
		t.Errorf("replaced: %v (%s), want Unavailable", err, fault.Of(err))
	}
}

// Another program that sits on the file makes a write wait for SQLite's own
// lock; the caller's deadline ends that as Timeout.
func TestLockedByAnotherProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	db, other := open(t, path), open(t, path)
	tx, err := other.Writer().BeginTx(t.Context(), nil) // without the side lock
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = db.Tokens().CreateAccount(ctx, token.Account{Name: "ann", Role: token.Viewer})
	if fault.Of(err) != fault.Timeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v (%s), want Timeout", err, fault.Of(err))
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	addAccounts(t, db, "ann")
}
