package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/config"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Commands run in the file's folder, wherever the program was started and however
// the file was named.
func TestLoadKnowsTheFilesFolder(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "sub", "qasight.yaml"), whole)
	t.Chdir(dir)
	for _, path := range []string{"sub/qasight.yaml", "./sub/../sub/qasight.yaml", filepath.Join(dir, "sub", "qasight.yaml")} {
		f, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.Path != path || f.Dir != filepath.Join(dir, "sub") || f.Project != "shop-tests" {
			t.Errorf("%s is of path %s in %s", path, f.Path, f.Dir)
		}
	}
}

func TestLoadSaysWhyAFileCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("wrong.yaml"), "project: a b\n")
	write(t, at("large.yaml"), least+strings.Repeat("#", 2*config.MaxSize))
	write(t, at("full.yaml"), least+strings.Repeat("#", config.MaxSize-len(least)))
	if err := os.Symlink("nowhere", at("dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", at("device.yaml")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ reason, path, code, want string }{
		"missing":   {"a newcomer has none", at("none.yaml"), "no_config", "there is no file " + at("none.yaml") + ": `qasight init` writes one to begin with"},
		"dangling":  {"nor is there one behind the link", at("dangling.yaml"), "no_config", "there is no file " + at("dangling.yaml") + ": `qasight init` writes one to begin with"},
		"folder":    {"a likely mistake", dir, "config", dir + " is a folder: name the file in it"},
		"device":    {"reading it might never end", at("device.yaml"), "config", at("device.yaml") + " is no regular file (Dc---------): commands run in its folder, so it must have one"},
		"in a file": {"a file has no folder in it", at("wrong.yaml/qasight.yaml"), "config", at("wrong.yaml/qasight.yaml") + " cannot be read: look at its permissions and at those of its folder: not a directory"},
		"wrong":     {"errors name the file as it was named", at("wrong.yaml"), "config", at("wrong.yaml") + `:1:1: the file has no pools: add "pools:"` + "\n" + at("wrong.yaml") + `:1:10: project: "a b" has the character ' ': use letters, digits, '.', '_' and '-' only`},
		"large":     {"memory has its bounds", at("large.yaml"), "config", at("large.yaml") + ":1:1: the file has more than 4194304 bytes: split the project"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := config.Load(tc.path)
			if f != nil || err == nil || err.Error() != tc.want || fault.Of(err) != fault.Invalid || fault.CodeOf(err) != tc.code {
				t.Errorf("%s: got %v, %v (%s, %s)\nwant %s", tc.reason, f, err, fault.Of(err), fault.CodeOf(err), tc.want)
			}
		})
	}
	if _, err := config.Load(at("full.yaml")); err != nil {
		t.Errorf("the largest file is refused: %v", err)
	}
}

func TestFindLooksInTheFoldersAbove(t *testing.T) {
	dir := t.TempDir()
	outer, inner := filepath.Join(dir, config.FileName), filepath.Join(dir, "a", "b", config.FileName)
	write(t, outer, least)
	write(t, inner, least)
	write(t, filepath.Join(dir, "a", "b", "c", "d", "x"), "")
	for from, want := range map[string]string{"": outer, "a": outer, "a/b": inner, "a/b/c/d": inner} {
		got, err := config.Find(filepath.Join(dir, from))
		if err != nil || got != want {
			t.Errorf("from %q: got %s, %v, want %s", from, got, err, want)
		}
	}
	// The folder of the process is the usual place to begin.
	t.Chdir(filepath.Join(dir, "a"))
	got, err := config.Find(".")
	if err != nil || !filepath.IsAbs(got) || filepath.Base(got) != config.FileName {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := config.Load(got); err != nil {
		t.Error(err)
	}
}

// A broken file near is no reason to take another one further up.
func TestFindStopsAtTheNearestEvenIfItIsNoFile(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, config.FileName), least)
	write(t, filepath.Join(dir, "folder", config.FileName, "x"), "")
	write(t, filepath.Join(dir, "link", "x"), "")
	if err := os.Symlink("nowhere", filepath.Join(dir, "link", config.FileName)); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"folder", "link"} {
		got, err := config.Find(filepath.Join(dir, sub))
		if err != nil || got != filepath.Join(dir, sub, config.FileName) {
			t.Errorf("%s: got %s, %v", sub, got, err)
		}
		if _, err := config.Load(got); err == nil {
			t.Errorf("%s: it loads", sub)
		}
	}
	if _, err := config.Find(filepath.Join(dir, config.FileName)); err == nil || fault.CodeOf(err) != "config" {
		t.Errorf("a file was taken for a folder: %v", err)
	}
}

// In /tmp, and in whatever others can write to, anybody can leave a file for
// whoever works in a folder below.
func TestFindTakesNoFileThatSomebodyElsePutAbove(t *testing.T) {
	if os.Geteuid() != 0 {
		// Only root can make somebody else's files. What belongs to this user, whom
		// the function must trust, is all that can be shown without.
		dir := t.TempDir()
		write(t, filepath.Join(dir, config.FileName), least)
		write(t, filepath.Join(dir, "mine", "x"), "")
		if _, err := config.Find(filepath.Join(dir, "mine")); err != nil {
			t.Error(err)
		}
		return
	}
	const mallory, ann = 12345, 23456
	for name, tc := range map[string]struct {
		reason             string
		file, above, below int
		refused            bool
	}{
		"one's own":         {"the usual case", 0, 0, 0, false},
		"a checkout":        {"in a container the files often have one owner, who is not its user", ann, ann, ann, false},
		"somebody's file":   {"left in a folder for all", mallory, 0, 0, true},
		"somebody's folder": {"who owns the folder can put any file there", 0, mallory, 0, true},
		"another's below":   {"the one who works there did not put it there", mallory, mallory, ann, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, below := filepath.Join(dir, config.FileName), filepath.Join(dir, "below")
			write(t, file, least)
			write(t, filepath.Join(below, "x"), "")
			for path, id := range map[string]int{file: tc.file, dir: tc.above, below: tc.below} {
				if err := os.Chown(path, id, -1); err != nil {
					t.Fatal(err)
				}
			}
			_, err := config.Find(below)
			if (fault.CodeOf(err) == "foreign") != tc.refused {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if _, err := config.Find(dir); err != nil {
				t.Errorf("in its own folder it is what the person looks at: %v", err)
			}
		})
	}
}

func TestFindSaysThatThereIsNone(t *testing.T) {
	// The root of a file system has no such file on any machine that runs tests.
	for _, dir := range []string{"/", "/proc/self"} {
		_, err := config.Find(dir)
		want := "there is no qasight.yaml in " + dir + " or a folder above it: `qasight init` writes one to begin with"
		if err == nil || err.Error() != want || fault.Of(err) != fault.Invalid || fault.CodeOf(err) != "no_config" {
			t.Errorf("got %v (%s), want %s", err, fault.CodeOf(err), want)
		}
	}
}

// Many programs take both names, and this one takes one.
func TestFindSeesTheOtherName(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "qasight.yml"), least)
	_, err := config.Find(dir)
	const want = ": there is a qasight.yml: name it qasight.yaml, or give it with --file"
	if err == nil || !strings.HasSuffix(err.Error(), want) || fault.CodeOf(err) != "no_config" {
		t.Errorf("got %v, want …%s", err, want)
	}
	write(t, filepath.Join(dir, config.FileName), least)
	if _, err := config.Find(dir); err != nil {
		t.Error(err)
	}
}

// A folder that is mounted somewhere is not part of the project around it.
func TestFindDoesNotLeaveTheFileSystem(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a", "x"), "")
	if config.OtherSystem(filepath.Join(dir, "a"), dir) {
		t.Error("a folder and the one in it are taken for different systems")
	}
	if config.OtherSystem(filepath.Join(dir, "none"), dir) {
		t.Error("what cannot be looked at is taken for another system")
	}
	if _, err := os.Stat("/proc/self"); err == nil && !config.OtherSystem("/proc", "/") {
		t.Error("/proc is taken for a folder of the disk")
	}
}
