package sqldb_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/sqldb"
)

// refusesWrites checks that each write is Denied.
func refusesWrites(t *testing.T, db *sqldb.DB) {
	t.Helper()
	s := db.Tokens()
	r := token.Record{ID: "new", Account: "ann", Hash: make([]byte, 32)}
	_, bootstrap := s.Bootstrap(t.Context(), token.Account{Name: "root", Role: token.Admin}, token.Record{ID: "new", Account: "root", Hash: make([]byte, 32)})
	for what, err := range map[string]error{
		"CreateAccount": s.CreateAccount(t.Context(), token.Account{Name: "bob", Role: token.Viewer}),
		"CreateToken":   s.CreateToken(t.Context(), r),
		"RevokeToken":   s.RevokeToken(t.Context(), "one"),
		"SetAccount":    s.SetAccount(t.Context(), token.Account{Name: "ann", Role: token.Admin}),
		"Bootstrap":     bootstrap,
	} {
		if fault.Of(err) != fault.Denied {
			t.Errorf("%s: %v (%s), want Denied", what, err, fault.Of(err))
		}
	}
}

// A reader beside a writer sees what that one wrote last, and leaves nothing.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "desk.db")
	writer := open(t, path)
	addAccounts(t, writer, "ann")
	before := snapshot(t, dir)
	db := openWith(t, sqldb.Options{Path: path, ReadOnly: true})
	if got := accountNames(t, db); got != "ann" {
		t.Errorf("accounts %q", got)
	}
	refusesWrites(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	// The shared memory holds the marks of who reads.
	delete(before, "desk.db-shm")
	after := snapshot(t, dir)
	delete(after, "desk.db-shm")
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("the folder was touched (-before +after):\n%.2000s", d)
	}
	again := openWith(t, sqldb.Options{Path: path, ReadOnly: true})
	addAccounts(t, writer, "bob")
	if got := accountNames(t, again); got != "ann bob" {
		t.Errorf("accounts %q, want what was written after it was opened", got)
	}
}

// Alone with a file that was closed in order: only SQLite's own side files may
// come, and the next writer finds everything.
func TestReadOnlyAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "desk.db")
	db := open(t, path)
	addAccounts(t, db, "ann")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path + ".lock"); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, dir)
	reader := openWith(t, sqldb.Options{Path: path, ReadOnly: true})
	if got := accountNames(t, reader); got != "ann" {
		t.Errorf("accounts %q", got)
	}
	refusesWrites(t, reader)
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	after := snapshot(t, dir)
	for _, suffix := range []string{"-shm", "-wal"} {
		if text, ok := after["desk.db"+suffix]; ok && !strings.HasPrefix(text, "-rw------- ") {
			t.Errorf("%s has another mode than the database: %.20s", suffix, text)
		}
		delete(after, "desk.db"+suffix)
	}
	if info, err := os.Stat(path + "-wal"); err == nil && info.Size() > 0 {
		t.Errorf("the log has %d bytes", info.Size())
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("the folder was touched (-before +after):\n%.2000s", d)
	}
	addAccounts(t, open(t, path), "bob")
}

// A file whose writer was killed: what is in its log is read, and stays there.
func TestReadOnlyAfterKill(t *testing.T) {
	from, dir := t.TempDir(), t.TempDir()
	addAccounts(t, open(t, filepath.Join(from, "desk.db")), "ann")
	for _, name := range []string{"desk.db", "desk.db-wal"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := snapshot(t, dir)
	db := openWith(t, sqldb.Options{Path: filepath.Join(dir, "desk.db"), ReadOnly: true})
	if got := accountNames(t, db); got != "ann" {
		t.Errorf("accounts %q, want ann", got)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	after := snapshot(t, dir)
	delete(after, "desk.db-shm")
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("the folder was touched (-before +after):\n%.2000s", d)
	}
}

func TestReadOnlyRefuses(t *testing.T) {
	cases := map[string]struct {
		reason  string
		prepare func(t *testing.T, path string)
		class   fault.Class
		says    string
	}{
		"missing": {
			"a look must not make a database",
			func(*testing.T, string) {},
			fault.NotFound, "does not exist",
		},
		"empty": {
			"its maker was killed at the very start",
			func(t *testing.T, path string) {
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			},
			fault.NotFound, "holds nothing yet",
		},
		"newer": {
			"its rows may mean something else by now",
			func(t *testing.T, path string) {
				closed(t, path, "INSERT INTO "+sqldb.VersionTable+" (version_id, is_applied) VALUES (99, 1)")
			},
			fault.Permanent, "newer version",
		},
		"other program's": {
			"it would be read as ours",
			func(t *testing.T, path string) {
				closed(t, path, "PRAGMA application_id = 0", "CREATE TABLE bookmarks (url TEXT)")
			},
			fault.Permanent, "another program",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "desk.db")
			tc.prepare(t, path)
			before := snapshot(t, dir)
			db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path, ReadOnly: true})
			if err == nil {
				_ = db.Close()
				t.Fatalf("opened: %s", tc.reason)
			}
			if fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v (%s), want %s with %q", tc.reason, err, fault.Of(err), tc.class, tc.says)
			}
			after := snapshot(t, dir)
			delete(after, "desk.db-shm")
			delete(after, "desk.db-wal")
			if d := cmp.Diff(before, after); d != "" {
				t.Errorf("the folder was touched (-before +after):\n%.2000s", d)
			}
		})
	}
}

// A user who may read and not write is no obstacle.
func TestReadOnlyUnwritable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("without root this shows only the owner's own mode")
	}
	dir := t.TempDir()
	for _, p := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "desk.db")
	addAccounts(t, open(t, path), "ann") // open: its shared memory is there
	for _, suffix := range []string{"", "-shm", "-wal"} {
		if err := os.Chmod(path+suffix, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	role := "read-as-nobody"
	if os.Geteuid() != 0 {
		role = "read"
	}
	if out := runChild(t, role, path); out != "ann" {
		t.Errorf("the other user says %q, want ann", out)
	}
}

func TestPostgresReadOnly(t *testing.T) {
	url := server.Database(t)
	if db, err := sqldb.Open(t.Context(), sqldb.Options{URL: url, ReadOnly: true}); fault.Of(err) != fault.NotFound {
		if err == nil {
			_ = db.Close()
		}
		t.Errorf("an empty database: %v (%s), want NotFound", err, fault.Of(err))
	}
	if got := catalogue(t, url); len(got) != 1 { // public
		t.Errorf("a look made %v", got)
	}
	addAccounts(t, openURL(t, url), "ann")
	db := openWith(t, sqldb.Options{URL: url, ReadOnly: true})
	if got := accountNames(t, db); got != "ann" {
		t.Errorf("accounts %q", got)
	}
	refusesWrites(t, db)
	if _, err := db.Pool().Exec(t.Context(), "DELETE FROM fleetdesk.accounts"); err == nil {
		t.Error("the server lets the connection write")
	}
}
