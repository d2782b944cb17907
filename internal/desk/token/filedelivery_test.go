package token_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/token"
)

var sample = token.Format("abcdefghijkl", [32]byte{1, 2, 3})

func TestFileDelivery(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "admin-token")
	d := token.FileDelivery(path)

	if s, found, err := d.Load(t.Context()); found || err != nil || s.Reveal() != "" {
		t.Fatalf("before: found %v, %v", found, err)
	}
	old := unix.Umask(0) // the mode must not hang on it
	err := d.Save(t.Context(), sample)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode %v, want -rw-------", info.Mode())
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b) != sample.Reveal()+"\n" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	s, found, err := d.Load(t.Context())
	if err != nil || !found || !s.Equal(sample) {
		t.Errorf("after: found %v, %v", found, err)
	}

	other := token.Format("bbbbbbbbbbbb", [32]byte{9})
	if err := d.Save(t.Context(), other); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), path) {
		t.Errorf("a second one: %v (%s), want Conflict with the path", err, fault.Of(err))
	}
	if s, _, _ := d.Load(t.Context()); !s.Equal(sample) {
		t.Error("the first token was replaced")
	}
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != 1 {
		t.Errorf("left behind: %v, %v", all, err)
	}
}

// A temporary file of a start that was killed is in nobody's way.
func TestFileDeliveryAfterKill(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "admin-token")
	if err := os.WriteFile(filepath.Join(dir, ".admin-token.123.tmp"), []byte("fdt_half"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := token.FileDelivery(path)
	if _, found, err := d.Load(t.Context()); found || err != nil {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := d.Save(t.Context(), sample); err != nil {
		t.Fatal(err)
	}
}

func TestFileDeliveryRefuses(t *testing.T) {
	write := func(text string, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(target func(path string) string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.Symlink(target(path), path); err != nil {
				t.Fatal(err)
			}
		}
	}
	good := sample.Reveal() + "\n"
	cases := map[string]struct {
		reason  string
		prepare func(t *testing.T, path string)
		says    string
	}{
		"a link": {
			"whoever made the link chose the file",
			func(t *testing.T, path string) {
				write(good, 0o600)(t, path+".real")
				link(func(p string) string { return p + ".real" })(t, path)
			}, "symbolic link: remove it",
		},
		"a dangling link": {"writing through it would make a file elsewhere", link(func(p string) string { return p + ".gone" }), "symbolic link"},
		"a folder": {"not a file", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
		"a pipe": {"opening it would wait for ever", func(t *testing.T, path string) {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
		"notes":          {"somebody's file", write("buy milk\n", 0o600), "something else than a token: move it away"},
		"empty":          {"an empty file is somebody's as well", write("", 0o600), "something else than a token"},
		"two lines":      {"more than a token", write(good+good, 0o600), "something else than a token"},
		"huge":           {"read no more than a token has", write(strings.Repeat("a", 1<<20), 0o600), "something else than a token"},
		"world readable": {"its token may be known", write(good, 0o604), "may be known: remove it"},
		"group readable": {"its token may be known", write(good, 0o640), "may be known: remove it"},
		"world writable": {"its token may be planted", write(good, 0o602), "may be known: remove it"},
		"another user's": {"its token may be planted", func(t *testing.T, path string) {
			write(good, 0o600)(t, path)
			if os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			if err := os.Chown(path, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}, "belongs to another user"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "admin-token")
			tc.prepare(t, path)
			before, _ := os.Lstat(path)
			d := token.FileDelivery(path)
			s, found, err := d.Load(t.Context())
			if found || s.Reveal() != "" || fault.Of(err) != fault.Permanent {
				t.Fatalf("Load: found %v, %v (%s), want Permanent: %s", found, err, fault.Of(err), tc.reason)
			}
			for _, part := range []string{path, tc.says} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("Load does not say %q: %v", part, err)
				}
			}
			if err := d.Save(t.Context(), sample); fault.Of(err) != fault.Conflict {
				t.Errorf("Save: %v (%s), want Conflict: nothing is replaced", err, fault.Of(err))
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
				t.Errorf("what lay there was touched: %v", err)
			}
		})
	}
}

func TestFileDeliveryNoFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "admin-token")
	err := token.FileDelivery(path).Save(t.Context(), sample)
	if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "create it") {
		t.Errorf("got %v (%s), want Permanent with the path and the remedy", err, fault.Of(err))
	}
}
