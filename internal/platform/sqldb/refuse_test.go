package sqldb_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/sqldb"
)

// snapshot is what a folder holds: names, modes, times and bytes.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range all {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(info.Mode(), info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			text += fmt.Sprintf(" %x", b)
		}
		out[e.Name()] = text
	}
	return out
}

// closed makes a database, lets f write to it, and closes it.
func closed(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := db.Writer().Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	write := func(t *testing.T, path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	plain := func(o sqldb.Options) sqldb.Options { return o }
	cases := map[string]struct {
		reason  string
		prepare func(t *testing.T, path string)
		options func(sqldb.Options) sqldb.Options
		class   fault.Class
		says    []string // besides the path
	}{
		"no folder": {
			"a typo in a path must not make folders",
			func(*testing.T, string) {},
			func(o sqldb.Options) sqldb.Options {
				o.Path = filepath.Join(filepath.Dir(o.Path), "none", "desk.db")
				return o
			},
			fault.Permanent,
			[]string{"none does not exist", "create it"},
		},
		"no path": {
			"an empty path would be a database in memory, lost at exit",
			func(*testing.T, string) {},
			func(o sqldb.Options) sqldb.Options { o.Path = ""; return o },
			fault.Invalid,
			[]string{"no path"},
		},
		"network": {
			"WAL needs memory shared between all processes, which no network gives",
			func(*testing.T, string) {},
			func(o sqldb.Options) sqldb.Options { return sqldb.OnFilesystem(o, "nfs", true) },
			fault.Permanent,
			[]string{"network file system (nfs)", "local disk"},
		},
		"folder": {
			"a folder is no file",
			func(t *testing.T, path string) {
				if err := os.Mkdir(path, 0o700); err != nil {
					t.Fatal(err)
				}
			},
			plain, fault.Permanent,
			[]string{"not a regular file"},
		},
		"dangling link": {
			"what a broken link meant cannot be known",
			func(t *testing.T, path string) {
				if err := os.Symlink(path+".gone", path); err != nil {
					t.Fatal(err)
				}
			},
			plain, fault.Permanent,
			[]string{"leads nowhere"},
		},
		"two names": {
			"by two names there are two logs",
			func(t *testing.T, path string) {
				closed(t, path)
				if err := os.Link(path, path+".copy"); err != nil {
					t.Fatal(err)
				}
			},
			plain, fault.Permanent,
			[]string{"2 names"},
		},
		"text": {
			"somebody's notes are not a database",
			func(t *testing.T, path string) { write(t, path, strings.Repeat("dear diary\n", 1000)) },
			plain, fault.Permanent,
			[]string{"not a database"},
		},
		"other program's": {
			"our tables have no place among a browser's",
			func(t *testing.T, path string) {
				closed(t, path, "PRAGMA application_id = 0", "CREATE TABLE bookmarks (url TEXT)")
			},
			plain, fault.Permanent,
			[]string{"another program"},
		},
		"other program's by its id": {
			"the header names another owner",
			func(t *testing.T, path string) { closed(t, path, "PRAGMA application_id = 77") },
			plain, fault.Permanent,
			[]string{"another program"},
		},
		"newer": {
			"an older program would corrupt it",
			func(t *testing.T, path string) {
				closed(t, path, "INSERT INTO "+sqldb.VersionTable+" (version_id, is_applied) VALUES (99, 1)")
			},
			plain, fault.Permanent,
			[]string{"newer version", "schema 99", fmt.Sprintf("knows up to %d", latest(t, "sqlite"))},
		},
		"lock is a link": {
			"nobody may make us open another file",
			func(t *testing.T, path string) {
				if err := os.Symlink("/dev/null", path+".lock"); err != nil {
					t.Fatal(err)
				}
			},
			plain, fault.Permanent,
			[]string{".lock", "no link"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "desk.db")
			tc.prepare(t, path)
			before := snapshot(t, dir)
			db, err := sqldb.Open(t.Context(), tc.options(sqldb.Options{Path: path}))
			if err == nil {
				_ = db.Close()
				t.Fatalf("opened: %s", tc.reason)
			}
			if got := fault.Of(err); got != tc.class {
				t.Errorf("class %s, want %s: %v", got, tc.class, err)
			}
			says := tc.says
			if tc.class != fault.Invalid {
				says = append(says, filepath.Join(dir))
			}
			for _, s := range says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("the error does not say %q: %v", s, err)
				}
			}
			if d := cmp.Diff(before, snapshot(t, dir)); d != "" {
				t.Errorf("the folder was touched (-before +after):\n%.2000s", d)
			}
		})
	}
}

// A newer database with a log that was not folded (its program was killed) is
// refused just so.
func TestOpenRefusesNewerAfterKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	newer := open(t, path)
	if _, err := newer.Writer().Exec("INSERT INTO " + sqldb.VersionTable + " (version_id, is_applied) VALUES (99, 1)"); err != nil {
		t.Fatal(err)
	}
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path})
	if err == nil {
		_ = db.Close()
	}
	if fault.Of(err) != fault.Permanent || !strings.Contains(fmt.Sprint(err), "newer version") {
		t.Errorf("got %v (%s), want Permanent", err, fault.Of(err))
	}
}

// A program that is running while a newer one raises the schema beyond it stops
// writing, and says why.
func TestUpgradedMeanwhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	db := open(t, path)
	addAccounts(t, db, "ann")
	set := func(n int) {
		if _, err := open(t, path).Writer().Exec("UPDATE schema_info SET min_reader = ?", n); err != nil {
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

// A creation that was cut short at any step is taken up by the next start.
func TestOpenFinishesCreation(t *testing.T) {
	cases := map[string]struct {
		reason string
		undo   []string // besides all tables but goose's
	}{
		"only the version table": {
			"goose makes its table in a transaction of its own",
			[]string{"DELETE FROM " + sqldb.VersionTable + " WHERE version_id > 0"},
		},
		"only the log mode": {
			"the file became WAL before it had a table",
			[]string{"DROP TABLE " + sqldb.VersionTable},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "desk.db")
			db := open(t, path)
			undo := []string{"PRAGMA application_id = 0", "PRAGMA foreign_keys = OFF"}
			for object := range schemaOf(t, db) {
				if name, ok := strings.CutPrefix(object, "table "); ok && name != sqldb.VersionTable && !strings.HasPrefix(name, "sqlite_") {
					undo = append(undo, "DROP TABLE "+name)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			closed(t, path, append(undo, tc.undo...)...)
			addAccounts(t, open(t, path), "ann")
		})
	}
	t.Run("empty file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "desk.db")
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		addAccounts(t, open(t, path), "ann")
	})
}

// Many that open a new database at once all get the same one.
func TestOpenRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	const openers = 8
	errs := make(chan error, openers)
	for n := range openers {
		go func() {
			db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path})
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
	if got := accountNames(t, open(t, path)); got != "n0 n1 n2 n3 n4 n5 n6 n7" {
		t.Errorf("accounts %q", got)
	}
}

func TestOpenHonoursContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "desk.db")
	db, err := sqldb.Open(ctx, sqldb.Options{Path: path})
	if err == nil {
		_ = db.Close()
	}
	if fault.Of(err) != fault.Timeout {
		t.Errorf("got %v (%s), want Timeout", err, fault.Of(err))
	}
}

func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	closed(t, path)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 200; i < len(b); i++ { // the header stays, all pages are noise
		b[i] = byte(i * 7)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path})
	if err == nil {
		_ = db.Close()
	}
	if fault.Of(err) != fault.Permanent || !strings.Contains(fmt.Sprint(err), path) {
		t.Errorf("got %v (%s), want Permanent with the path", err, fault.Of(err))
	}
}

func TestFilesystems(t *testing.T) {
	for magic, want := range map[int64]string{0x6969: "nfs", 0x517b: "smb", 0xff534d42: "cifs", 0xfe534d42: "smb2", 0x01021997: "9p"} {
		if name, remote := sqldb.OfMagic(magic); name != want || !remote {
			t.Errorf("%#x is %s (remote %v), want %s", magic, name, remote, want)
		}
	}
	for name, magic := range map[string]int64{"ext4": 0xef53, "xfs": 0x58465342, "btrfs": 0x9123683e, "tmpfs": 0x01021994, "overlay": 0x794c7630, "zfs": 0x2fc12fc1} {
		if _, remote := sqldb.OfMagic(magic); remote {
			t.Errorf("%s is taken for remote", name)
		}
	}
	const table = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:52 / /home/ann/far rw,nosuid - fuse.sshfs ann@files.example.com: rw,user_id=1000
41 22 0:53 / /data rw shared:9 master:2 - fuseblk /dev/sdb1 rw
42 22 0:54 / /var/lib/box rw - fuse.fuse-overlayfs fuse-overlayfs rw
43 22 0:55 / /mnt/guest rw - virtiofs share rw
short line
`
	cases := map[string]struct {
		minor  uint32
		major  uint32
		kind   string
		remote bool
	}{
		"sshfs":             {52, 0, "fuse.sshfs", true},
		"a disk":            {53, 0, "fuseblk", false},
		"rootless":          {54, 0, "fuse.fuse-overlayfs", false},
		"a host's folder":   {55, 0, "virtiofs", true},
		"not in the table":  {99, 0, "fuse", true},
		"minor of a number": {5, 0, "fuse", true},
	}
	for name, tc := range cases {
		if kind, remote := sqldb.OfFUSE(table, tc.major, tc.minor); kind != tc.kind || remote != tc.remote {
			t.Errorf("%s: %s (remote %v), want %s (%v)", name, kind, remote, tc.kind, tc.remote)
		}
	}
}
