package config_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/config"
)

const (
	one   = "providers:\n- {name: a, kind: local}\n"
	two   = "providers:\n- {name: a, kind: local}\n- {name: b, kind: local}\n"
	three = "providers:\n- {name: a, kind: local}\n- {name: b, kind: local}\n- {name: c, kind: local}\n"
)

const halfWritten = `providers.yaml has no list of providers, so it is probably half written: write it again; to have no provider, write "providers: []"`

// desk is a folder with a providers file that is followed. Time is the bubble's;
// the files are real.
type desk struct {
	t    *testing.T
	dir  string
	path string
	stop func()

	// applied is when a file was put in force last.
	applied time.Time

	mu sync.Mutex
	// told is what was heard: "a b" for a file with providers a and b, "fine",
	// or the text of a refusal.
	told []string
	log  strings.Builder
}

// follow starts with one in force and on disk.
func follow(t *testing.T, path string, read func(string) ([]byte, error)) *desk {
	t.Helper()
	if read == nil {
		read = config.Read
	}
	d := &desk{t: t, dir: filepath.Dir(path), path: path}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	d.stop = func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
	}
	o := config.FollowOptions{
		Path: path, First: []byte(one),
		Apply: func(f *config.File) {
			var names []string
			for _, e := range f.Providers {
				names = append(names, e.Name)
			}
			d.applied = time.Now()
			d.hear(strings.Join(names, " "))
		},
		Refused: func(err error) {
			if err == nil {
				if late := time.Since(d.applied); late > 0 && late < 2*time.Second {
					t.Errorf("the refusal was taken back %v after a file came into force", late)
				}
				d.hear("fine")
				return
			}
			if !fault.Classed(err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("a refusal without class, or of many lines: %v", err)
			}
			d.hear(strings.ReplaceAll(err.Error(), d.dir+"/", ""))
		},
		Log: slog.New(slog.NewTextHandler(&d.log, nil)),
	}
	go func() { done <- config.FollowReading(ctx, o, read) }()
	return d
}

func (d *desk) hear(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.told = append(d.told, what)
}

// after waits for some looks and returns what was heard since the last call.
func (d *desk) after(looks int) []string {
	time.Sleep(time.Duration(looks)*time.Second + time.Second/2)
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	told := d.told
	d.told = nil
	return told
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *desk) write(text string) { must(d.t, os.WriteFile(d.path, []byte(text), 0o600)) }

// replace renames another file over the followed one, as most editors do.
func (d *desk) replace(text string) {
	next := filepath.Join(d.dir, "next")
	must(d.t, os.WriteFile(next, []byte(text), 0o600))
	must(d.t, os.Rename(next, d.path))
}

// TestFollow does one thing after the other to the file.
func TestFollow(t *testing.T) {
	type step struct {
		do   func(d *desk)
		want []string
	}
	write := func(text string) func(*desk) { return func(d *desk) { d.write(text) } }
	remove := func(d *desk) { must(d.t, os.RemoveAll(d.path)) }
	for name, tc := range map[string]struct {
		reason string
		steps  []step
	}{
		"nothing": {"what is in force is not put in force again", []step{
			{write(one), nil},
			{func(d *desk) { d.replace(one) }, nil},
		}},
		"in place": {"an editor that writes the file itself", []step{
			{write(two), []string{"a b"}},
			{write(one), []string{"a"}},
		}},
		"renamed over": {"an editor that writes another one first", []step{
			{func(d *desk) { d.replace(two) }, []string{"a b"}},
			{func(d *desk) { d.replace(three) }, []string{"a b c"}},
		}},
		"not yaml": {"the old one stays in force, told once with its line, and taken back without an Apply", []step{
			{write("providers:\n- name: [a\n"), []string{"providers.yaml is not YAML: providers.yaml:2: sequence end token ']' not found"}},
			{func(*desk) {}, nil},
			{write(one), []string{"fine"}},
			{func(*desk) {}, nil},
		}},
		"equal names": {"refused with both lines; a good one after it is put in force before the word is taken back", []step{
			{write(two + "- {name: a, kind: kvm}\n"), []string{`providers.yaml:4: provider "a" is there already, on line 2: give one of them another name`}},
			{write(two), []string{"a b", "fine"}},
		}},
		"another problem": {"each problem is told, and the same only once however often it is written", []step{
			{write("providers: 1\n"), []string{`providers.yaml:1: "providers" must be a list, got Integer`}},
			{write("providers: 2\n"), nil},
			{write("provider: 1\n"), []string{`providers.yaml:1: unknown field "provider": the file has one field, "providers"`}},
		}},
		"a bad section": {"is no fault of the file: that provider alone is disabled", []step{
			{write(one + "- {name: b, kind: local, kvm: {}}\n"), []string{"a b"}},
		}},
		"gone": {"and back", []step{
			{remove, []string{"providers.yaml does not exist: put it there (of a mounted ConfigMap, check the key's name): no such file or directory"}},
			{func(*desk) {}, nil},
			{write(one), []string{"fine"}},
			{remove, []string{"providers.yaml does not exist: put it there (of a mounted ConfigMap, check the key's name): no such file or directory"}},
			{write(two), []string{"a b", "fine"}},
		}},
		"emptied": {"a full disk empties a file that is written in place; that takes no provider away", []step{
			{write(""), []string{`providers.yaml is empty: write it again; to have no provider, write "providers: []"`}},
			{write("providers: []\n"), []string{"", "fine"}},
		}},
		"half written": {"that no provider is wanted is said in so many words", []step{
			{write("# providers of the fleet\n"), []string{halfWritten}},
			{write("providers:\n"), nil},
			{write("{}\n"), nil},
			{write("---\n"), nil},
			{write("providers: null\n"), nil},
			{write("providers:\n# - {name: a, kind: local}\n"), nil},
			{write(two), []string{"a b", "fine"}},
			{write("providers: [] # none for now\n"), []string{""}},
			{write("providers: ~\n"), []string{halfWritten}},
		}},
		"a folder": {"as when a volume is mounted in the file's place", []step{
			{func(d *desk) { remove(d); must(d.t, os.Mkdir(d.path, 0o700)) }, []string{"providers.yaml is a folder: name the file in it (of a mounted ConfigMap, a key of its data)"}},
			{func(d *desk) { remove(d); d.write(one) }, []string{"fine"}},
		}},
		"a pipe": {"nobody waits for its writer", []step{
			{func(d *desk) { remove(d); must(d.t, syscall.Mkfifo(d.path, 0o600)) }, []string{"providers.yaml is no regular file: put one in its place"}},
			{func(d *desk) { remove(d); d.write(one) }, []string{"fine"}},
		}},
		"too large": {"it is not read to its end", []step{
			{func(d *desk) { d.write(one); must(d.t, os.Truncate(d.path, 1<<40)) }, []string{"providers.yaml is larger than a providers file may be (1048576 bytes): make it smaller, or name another file"}},
			{write(one), []string{"fine"}},
		}},
		"a link to itself": {"leads nowhere", []step{
			{func(d *desk) { remove(d); must(d.t, os.Symlink("providers.yaml", d.path)) }, []string{"providers.yaml leads to no file: mend the path or its links: too many levels of symbolic links"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "providers.yaml")
			must(t, os.WriteFile(path, []byte(one), 0o600))
			synctest.Test(t, func(t *testing.T) {
				d := follow(t, path, nil)
				defer d.stop()
				if told := d.after(3); told != nil {
					t.Errorf("before any change: %q", told)
				}
				for i, s := range tc.steps {
					s.do(d)
					if diff := cmp.Diff(s.want, d.after(3)); diff != "" {
						t.Errorf("%s; step %d (-want +got):\n%s", tc.reason, i, diff)
					}
				}
			})
		})
	}
}

// A ConfigMap is mounted as a link into a folder that a link leads to; the
// kubelet makes a new folder and renames that link.
func TestFollowAMountedConfigMap(t *testing.T) {
	dir := t.TempDir()
	update := func(stamp, text string) {
		t.Helper()
		must(t, os.Mkdir(filepath.Join(dir, stamp), 0o700))
		if text != "" {
			must(t, os.WriteFile(filepath.Join(dir, stamp, "providers.yaml"), []byte(text), 0o600))
		}
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		must(t, os.Symlink(stamp, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if old != "" {
			must(t, os.RemoveAll(filepath.Join(dir, old)))
		}
	}
	update("..2026_01_02_03_04_05.1", one)
	path := filepath.Join(dir, "providers.yaml")
	must(t, os.Symlink(filepath.Join("..data", "providers.yaml"), path))
	synctest.Test(t, func(t *testing.T) {
		d := follow(t, path, nil)
		defer d.stop()
		for i, s := range []struct {
			stamp, text string
			want        []string
		}{
			{"..2026_01_02_03_05_05.2", two, []string{"a b"}},
			{"..2026_01_02_03_06_05.3", two, nil},
			{"..2026_01_02_03_07_05.4", "", []string{"providers.yaml does not exist: put it there (of a mounted ConfigMap, check the key's name): no such file or directory"}},
			{"..2026_01_02_03_08_05.5", one, []string{"a", "fine"}},
		} {
			update(s.stamp, s.text)
			if diff := cmp.Diff(s.want, d.after(3)); diff != "" {
				t.Errorf("update %d (-want +got):\n%s", i, diff)
			}
		}
	})
}

// An editor empties the file and writes it later; a look between the two, and
// one that sees half of it, count for nothing.
func TestAChangeCountsWhenTwoLooksAgree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "providers.yaml")
	must(t, os.WriteFile(path, []byte(one), 0o600))
	synctest.Test(t, func(t *testing.T) {
		d := follow(t, path, nil)
		defer d.stop()
		time.Sleep(time.Second / 2) // looks are on the second, writes between them
		for _, text := range []string{"", "providers:\n- {name: b, kind: local}\n", "providers: [", two, three} {
			d.write(text)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if d.mu.Lock(); len(d.told) > 0 {
			t.Errorf("what only one look saw was taken up: %q", d.told)
		}
		d.mu.Unlock()
		if diff := cmp.Diff([]string{"a b c"}, d.after(1)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// However fast the file is written, the last one is in force in the end, and
// nothing but whole files in between.
func TestRapidRewritesEndWithTheLastOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "providers.yaml")
	must(t, os.WriteFile(path, []byte(one), 0o600))
	synctest.Test(t, func(t *testing.T) {
		d := follow(t, path, nil)
		defer d.stop()
		const writes = 1000
		for i := range writes {
			text := fmt.Sprintf("providers:\n- {name: p%d, kind: local}\n", i)
			if i%2 == 0 {
				d.replace(text)
			} else {
				d.write(text)
			}
			// Now and then for long enough to be seen twice.
			pause := 37 * time.Millisecond
			if i%100 == 99 {
				pause = 2500 * time.Millisecond
			}
			time.Sleep(pause)
		}
		told := d.after(3)
		if len(told) != writes/100 || told[len(told)-1] != fmt.Sprintf("p%d", writes-1) {
			t.Errorf("in force one after the other: %q; want those that stood for a while, and the last", told)
		}
	})
}

// A network mount whose server is away does not answer: that is told, no look
// is made beside the one that waits, and the run still ends.
func TestAMuteMountIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		looks, hold := 0, make(chan struct{})
		d := follow(t, "/srv/providers.yaml", func(string) ([]byte, error) {
			mu.Lock()
			looks++
			hold := hold
			mu.Unlock()
			<-hold
			return []byte(one), nil
		})
		want := []string{"providers.yaml cannot be read: its file system does not answer: look after what is mounted there"}
		if diff := cmp.Diff(want, d.after(60)); diff != "" {
			t.Errorf("mute (-want +got):\n%s", diff)
		}
		mu.Lock()
		if looks != 1 {
			t.Errorf("%d looks wait for the mount", looks)
		}
		mu.Unlock()
		close(hold)
		if diff := cmp.Diff([]string{"fine"}, d.after(3)); diff != "" {
			t.Errorf("back (-want +got):\n%s", diff)
		}
		mu.Lock()
		hold = make(chan struct{})
		mu.Unlock()
		time.Sleep(3 * time.Second)
		d.stop()
		close(hold)
	})
}

func TestARefusalIsLoggedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "providers.yaml")
	must(t, os.WriteFile(path, []byte(one), 0o600))
	synctest.Test(t, func(t *testing.T) {
		d := follow(t, path, nil)
		d.write("providers: 1\n")
		d.after(20)
		d.write(two)
		d.after(20)
		d.stop()
		for text, want := range map[string]int{"is refused": 1, "can be used again": 1, "is in force": 1, "level=ERROR": 1} {
			if n := strings.Count(d.log.String(), text); n != want {
				t.Errorf("%q is in the log %d times, want %d:\n%s", text, n, want, d.log.String())
			}
		}
	})
}
