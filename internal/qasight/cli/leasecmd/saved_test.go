package leasecmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/cli/leasecmd"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func saved(id, pool string) leasecmd.Saved {
	return leasecmd.Saved{Lease: id, Pool: pool, Server: "https://qasight.example:8443", Secret: "s3cret-text", Until: noon}
}

// A saved lease is the person's own, whole, and read as it was written.
func TestSaved(t *testing.T) {
	t.Parallel()
	l := leasecmd.Leases{Dir: filepath.Join(t.TempDir(), "state", "leases")}
	want := saved("vm-1~17", "vms")
	if err := l.Put(want); err != nil {
		t.Fatal(err)
	}
	if err := l.Put(want); err != nil { // a renewal writes it anew
		t.Fatal(err)
	}
	got, ok, err := l.Find("vm-1~17", "", noon)
	if diff := cmp.Diff(want, got); diff != "" || !ok || err != nil {
		t.Errorf("found %v, %v: %s", ok, err, diff)
	}
	names, err := filepath.Glob(filepath.Join(l.Dir, "*"))
	if err != nil || len(names) != 1 {
		t.Errorf("the folder has %v, %v", names, err)
	}
	for path, mode := range map[string]os.FileMode{l.Dir: 0o700 | os.ModeDir, l.Path("vm-1~17"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s is %v, want %v; %v", path, info.Mode(), mode, err)
		}
	}
	if text := fmt.Sprintf("%v %+v %#v", want, got, want); strings.Contains(text, "s3cret") {
		t.Errorf("printed, it shows %s", text)
	}
	// A folder that is open to others is closed.
	if err := os.Chmod(l.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.Put(want); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(l.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder stays %v", info.Mode())
	}
	for range 2 { // twice is harmless
		if err := l.Remove("vm-1~17"); err != nil {
			t.Error(err)
		}
	}
	if _, ok, err := l.Find("vm-1~17", "", noon); ok || err != nil {
		t.Errorf("found what was removed: %v, %v", ok, err)
	}
}

func TestFindSaved(t *testing.T) {
	t.Parallel()
	l := leasecmd.Leases{Dir: t.TempDir()}
	for _, s := range []leasecmd.Saved{saved("vm-1~9", "vms"), saved("vm-1~10", "vms"), saved("vm-2~11", "other"), saved("vm-3~8", "vms")} {
		if err := l.Put(s); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct{ reason, name, pool, want, err string }{
		"id":       {"an id names one", "vm-1~9", "", "vm-1~9", ""},
		"key":      {"a key names its newest lease, by number and not by letters", "vm-1", "", "vm-1~10", ""},
		"pool":     {"a pool's only one", "", "other", "vm-2~11", ""},
		"both":     {"a pool narrows", "vm-1", "other", "", ""},
		"many":     {"which one?", "", "vms", "", "3 leases of pool vms were taken here: name one of vm-3~8, vm-1~9, vm-1~10"},
		"unknown":  {"there is none", "vm-9", "", "", ""},
		"path":     {"a path is no name", "../leases/vm-1", "", "", "want a lease such as"},
		"path id":  {"nor with a number", "../vm-1~9", "", "", "names no lease"},
		"odd id":   {"numbers have one form", "vm-1~09", "", "", "names no lease"},
		"no names": {"a pool without one", "", "none", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok, err := l.Find(tc.name, tc.pool, noon)
			if got.Lease != tc.want || ok != (tc.want != "") {
				t.Errorf("%s: found %+v", tc.reason, got)
			}
			if (err != nil) != (tc.err != "") || err != nil && (!strings.Contains(err.Error(), tc.err) || fault.Of(err) != fault.Invalid) {
				t.Errorf("%s: the error is %v, want %q", tc.reason, err, tc.err)
			}
		})
	}
}

// Files of leases that ended long ago are removed on the way; nothing else is.
func TestSavedAreTidied(t *testing.T) {
	t.Parallel()
	l := leasecmd.Leases{Dir: t.TempDir()}
	write := func(name, text string) string {
		path := filepath.Join(l.Dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for id, ago := range map[string]time.Duration{"young~1": time.Hour, "old~2": 25 * time.Hour, "ahead~3": -time.Hour} {
		s := saved(id, "vms")
		s.Until = noon.Add(-ago)
		if err := l.Put(s); err != nil {
			t.Fatal(err)
		}
	}
	part, fresh := write(".part-1", "half"), write(".part-2", "half")
	for path, at := range map[string]time.Time{part: noon.Add(-48 * time.Hour), fresh: noon.Add(-time.Minute)} {
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write("notes.txt", "mine")
	write("spoilt~4.json", "{")
	write("other~5.json", `{"lease":"young~1"}`)
	if _, _, err := l.Find("x", "", noon); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{".part-2", "ahead~3.json", "notes.txt", "other~5.json", "spoilt~4.json", "young~1.json"}, names); diff != "" {
		t.Errorf("what is left: %s", diff)
	}
}

// What a file holds is a lease or is not, and an error never repeats it.
func FuzzParseSaved(f *testing.F) {
	for _, s := range []string{
		`{"lease":"vm-1~17","key":"vm-1","pool":"vms","fence":17,"secret":"abc","until":"2026-01-02T12:00:00Z","later":1}`,
		`{"lease":"vm-1~17","key":"vm-2","pool":"vms","fence":17,"secret":"abc"}`,
		`{"lease":"../x~17","key":"../x","pool":"vms","fence":17,"secret":"abc"}`,
		`{"secret":"s3cret-text"`, ``, `null`, `[]`, `{"until":"s3cret-text"}`, strings.Repeat("[", 20000),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := leasecmd.ParseSaved(raw)
		if err != nil {
			if strings.Contains(err.Error(), "s3cret") || fault.Of(err) != fault.Invalid {
				t.Errorf("the error is %v", err)
			}
			return
		}
		key, _, _ := strings.Cut(s.Lease, "~")
		if s.Secret == "" || key == "" || strings.ContainsAny(s.Lease+s.Pool, "/\x00\n") {
			t.Errorf("%q is no lease", s.Lease)
		}
	})
}
