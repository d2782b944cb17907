package sqldb_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/sqldb"
)

// smallDisk mounts a file system of four megabytes. It reports false to who may
// not do that.
func smallDisk(t *testing.T) (dir string, ok bool) {
	t.Helper()
	dir = t.TempDir()
	for _, p := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0755")
	if errors.Is(err, unix.EPERM) {
		return dir, false
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, true
}

// fillDisk takes all room until it is called with false.
func fillDisk(t *testing.T, dir string) func(full bool) {
	filler := filepath.Join(dir, "filler")
	return func(full bool) {
		t.Helper()
		if !full {
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			return
		}
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(f, io.LimitReader(zeros{}, 64<<20))
		_ = f.Close()
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("filling the disk: %v", err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// On a full disk nothing is handed out and nothing is lost, the error says what
// to do, and with room again all goes on by itself.
func TestLeasesOnFullDisk(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		dir, mounted := smallDisk(t)
		db := open(t, filepath.Join(dir, "desk.db"))
		fill := fillDisk(t, dir)
		if !mounted { // SQLite's own limit fails as a full disk does
			fill = func(full bool) {
				limit := 1 << 20
				if full {
					limit = 1 // raised to what there is
				}
				if _, err := db.Writer().Exec(fmt.Sprint("PRAGMA max_page_count = ", limit)); err != nil {
					t.Fatal(err)
				}
			}
		}
		onFullDisk(t, db, fill)
	})
	t.Run("postgres", func(t *testing.T) {
		url := server.Database(t)
		db := openURL(t, url)
		dir, mounted := smallDisk(t)
		fill := fillDisk(t, dir)
		exec := func(statement string) {
			t.Helper()
			if _, err := db.Pool().Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		if mounted {
			space := filepath.Join(dir, "space")
			if err := errors.Join(os.Mkdir(space, 0o700), own(space)); err != nil {
				t.Fatal(err)
			}
			exec("CREATE TABLESPACE small LOCATION '" + space + "'")
			defer func() {
				exec("ALTER TABLE fleetdesk.events SET TABLESPACE pg_default")
				exec("DROP TABLESPACE small")
			}()
			exec("ALTER TABLE fleetdesk.events SET TABLESPACE small")
		} else {
			exec(`CREATE FUNCTION fleetdesk.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$`)
			fill = func(full bool) {
				if full {
					exec("CREATE TRIGGER full_disk BEFORE INSERT ON fleetdesk.events EXECUTE FUNCTION fleetdesk.full_disk()")
				} else {
					exec("DROP TRIGGER full_disk ON fleetdesk.events")
				}
			}
		}
		onFullDisk(t, db, fill)
	})
}

// own gives a folder to the server's user.
func own(dir string) error {
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	return os.Chown(dir, uid, -1)
}

func onFullDisk(t *testing.T, db *sqldb.DB, full func(bool)) {
	s := db.Leases()
	mustDo(t, s, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a", "b", "c"}})
	held := mustDo(t, s, lease.Take{Ticket: "held", Pool: "p", Account: "ann", Secret: lease.HashOf("held")})[0]
	full(true)
	var err error
	var told int64
	for n := 0; err == nil; n++ {
		if n == 5000 {
			t.Fatal("the disk never was full")
		}
		var res []lease.Result
		// Room that is left takes a few more.
		res, err = s.Do(t.Context(), []lease.Op{
			lease.Take{Ticket: fmt.Sprint(n), Pool: "p", Account: "ann", Holder: strings.Repeat("h", lease.MaxText), Secret: lease.HashOf("x")},
		})
		if err == nil && res[0].Key != nil {
			told = res[0].Lease.Fence
			_, err = s.Do(t.Context(), []lease.Op{lease.Release{Proof: proofOf(res[0])}})
		}
	}
	if fault.Of(err) != fault.Unavailable || fault.CodeOf(err) != "store" || !strings.Contains(err.Error(), "disk is full: make room") {
		t.Errorf("%v (%s, code %q), want Unavailable, store and what to do", err, fault.Of(err), fault.CodeOf(err))
	}
	keys, err := s.Key(t.Context(), held.Key.Name)
	if err != nil || keys.Keys[0].Lease == nil || keys.Keys[0].Lease.Fence != held.Lease.Fence || !keys.Keys[0].Held(keys.Now) {
		t.Errorf("what was held is %+v, %v", keys.Keys, err)
	}
	full(false)
	res := mustDo(t, s, lease.Renew{Proof: proofOf(held)}, lease.Take{Ticket: "next", Pool: "p", Account: "ann"})
	if res[1].Key == nil || res[1].Lease.Fence <= told {
		t.Errorf("with room again: %+v", res[1])
	}
	consistent(t, db)
}
