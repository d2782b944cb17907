package humanrun_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/humanrun"
	"fleetdesk/internal/qasight/pool"
)

func listPool(command string, timeout time.Duration) *config.Pool {
	return &config.Pool{Pool: pool.Pool{Name: "win"}, Provider: &config.Provider{List: command, Timeout: timeout}}
}

func listPlace(t testing.TB) humanrun.Place {
	return humanrun.Place{
		Dir: t.TempDir(), Environ: []string{"PATH=" + os.Getenv("PATH"), "QASIGHT_KEY=prod", "QASIGHT_FENCE=7", "DB_PASSWORD=s3cret-words"},
		Hide: []string{"s3cret-words"},
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", lease.MaxFixedName)
	for name, tt := range map[string]struct {
		reason  string
		command string
		want    []string
		text    string // of the error
	}{
		"names":            {"one name a line, sorted", `printf 'b\na\n'`, []string{"a", "b"}, ""},
		"no line break":    {"the last line needs none", `printf 'a\nb'`, []string{"a", "b"}, ""},
		"CRLF":             {"a carriage return is a blank", `printf 'a\r\nb\r\n'`, []string{"a", "b"}, ""},
		"blanks":           {"surrounding blanks are trimmed", `printf '  a\t\n\t b \n'`, []string{"a", "b"}, ""},
		"empty lines":      {"they are skipped", `printf '\n\n \na\n\r\n'`, []string{"a"}, ""},
		"nothing":          {"an empty list is a list", `true`, []string{}, ""},
		"blank lines only": {"and so is this", `printf '\n \n'`, []string{}, ""},
		"longest name":     {"MaxFixedName bytes are possible", `printf '` + long + `   \n'`, []string{long}, ""},
		"stderr":           {"it is no part of the list", `echo a; echo b >&2`, []string{"a"}, ""},
		"variables": {
			"the key of another lease is not the list's, and it is told what it is", `echo "k-$QASIGHT_KEY.$QASIGHT_POOL.$QASIGHT_VERB.${QASIGHT_FENCE-none}"`,
			[]string{"k-.win.list.none"},
			"",
		},

		"too long":       {"one byte more is no name", `printf 'a` + long + `\n'`, nil, "128 bytes"},
		"exit 1":         {"a failure is no empty list", `echo broken >&2; exit 1`, nil, "exit code 1; it said: broken"},
		"exit 1 at last": {"also after names", `echo a; exit 1`, nil, "exit code 1"},
		"exit 127":       {"a missing tool is a failure, not none", `no-such-tool-anywhere`, nil, "exit code 127"},
		"exit 126":       {"a script without its mode bit too", `: >plain.sh; ./plain.sh`, nil, "exit code 126: not executable: chmod +x the script"},
		"by signal":      {"a list that was killed is none", `echo a; kill -9 $$`, nil, "signal"},
		"inner blank":    {"two names on a line are no name", `echo 'a b'`, nil, `"a b"`},
		"two columns":    {"nor is a table", `printf 'a\trunning\n'`, nil, "line 1"},
		"lone CR":        {"inside a line it is no line end", `printf 'a\rb\n'`, nil, "line 1"},
		"duplicate":      {"a list that has a name twice is not understood", `printf 'a\nb\na\n'`, nil, "a is on line 1 and again on line 3"},
		"duplicate last": {"also without a line break", `printf 'a\na'`, nil, "line 2"},
		"NUL":            {"binary output is no list", `printf 'a\0b\n'`, nil, "line 1"},
		"not UTF-8":      {"nor is another encoding", `printf 'caf\351\n'`, nil, "line 1"},
		"umlaut":         {"nor a letter that no key has", `printf 'd\303\274se\n'`, nil, "line 1"},
		"BOM":            {"nor a byte order mark", `printf '\357\273\277a\n'`, nil, "line 1"},
		"dash":           {"names begin with a letter or digit", `echo -- -rf`, nil, "line 1"},
		"shell":          {"what a shell would run is no name", `echo '$(reboot)'`, nil, "line 1"},
		"path":           {"a name is no path", `echo ../x`, nil, "line 1"},
		"error text":     {"a message on stdout is no list", `echo a; echo 'error: cannot connect'`, nil, "line 2"},
		"secret":         {"a secret in the errors is hidden", `echo "login $DB_PASSWORD" >&2; exit 3`, nil, "it said: login ***"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := humanrun.List(t.Context(), listPool(tt.command, 20*time.Second), listPlace(t))
			if tt.want == nil {
				if fault.CodeOf(err) != humanrun.CodeList || fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), tt.text) || got.Names != nil {
					t.Fatalf("%s: got %q, %v (%s, %s)\nwant an error with %q", tt.reason, got.Names, err, fault.Of(err), fault.CodeOf(err), tt.text)
				}
				if strings.Contains(err.Error(), "s3cret") {
					t.Errorf("the error has the secret: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			if d := cmp.Diff(tt.want, got.Names); d != "" {
				t.Errorf("%s: (-want +got)\n%s", tt.reason, d)
			}
		})
	}
}

// 100,000 lines are a list, and one more is none, whatever is on it.
func TestListBounds(t *testing.T) {
	t.Parallel()
	at := listPlace(t)
	full, err := humanrun.List(t.Context(), listPool(`seq 1 100000`, time.Minute), at)
	if err != nil || len(full.Names) != humanrun.MaxListed {
		t.Fatalf("100,000 lines: %d names, %v", len(full.Names), err)
	}
	for _, more := range []string{`seq 1 100001`, `seq 1 100000; printf ' '`, `seq 1 100000; echo`, `yes '' | head -n 100001`} {
		if l, err := humanrun.List(t.Context(), listPool(more, time.Minute), at); fault.CodeOf(err) != humanrun.CodeList || !strings.Contains(err.Error(), "100000 lines") {
			t.Errorf("%s: %d names, %v", more, len(l.Names), err)
		}
	}
}

// A list that never ends to print is ended as soon as it is too long, and what is
// kept of it is bounded.
func TestListEndless(t *testing.T) {
	t.Parallel()
	at := listPlace(t)
	for name, command := range map[string]string{
		"a million lines": `i=0; seq 1 1000000; touch finished; sleep 600`,
		"for ever":        `trap '' PIPE; awk 'BEGIN { for (i = 0; ; i++) print "qa-" i }'`,
		"one line":        `tr '\0' a </dev/zero`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begun := time.Now()
		_, err := humanrun.List(t.Context(), listPool(command, 5*time.Minute), at)
		runtime.ReadMemStats(&after)
		if fault.CodeOf(err) != humanrun.CodeList {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begun); took > time.Minute {
			t.Errorf("%s: it took %s", name, took)
		}
		if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 200<<20 {
			t.Errorf("%s: %d bytes are kept", name, kept)
		}
	}
	if _, err := os.Stat(filepath.Join(at.Dir, "finished")); err == nil {
		t.Error("the command printed a million lines to the end")
	}
}

// A list that hangs is ended with its whole group, also where a grandchild holds
// the pipe.
func TestListHangs(t *testing.T) {
	t.Parallel()
	at := listPlace(t)
	begun := time.Now()
	_, err := humanrun.List(t.Context(), listPool(`echo a; (echo $$ > group; sleep 600) & sleep 600`, 300*time.Millisecond), at)
	if fault.CodeOf(err) != humanrun.CodeList || !strings.Contains(err.Error(), "did not end within 300ms") {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	text, err := os.ReadFile(filepath.Join(at.Dir, "group"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%s/cwd", strings.TrimSpace(string(text)))); err == nil {
		t.Error("the command lives")
	}
}

func TestListCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err := humanrun.List(ctx, listPool(`echo a; sleep 600`, time.Minute), listPlace(t))
	if !errors.Is(err, context.Canceled) || fault.CodeOf(err) != humanrun.CodeList {
		t.Errorf("got %v (%s)", err, fault.CodeOf(err))
	}
}

func TestListNoProvider(t *testing.T) {
	t.Parallel()
	_, err := humanrun.List(t.Context(), &config.Pool{Pool: pool.Pool{Name: "win"}}, listPlace(t))
	if fault.CodeOf(err) != humanrun.CodeList {
		t.Errorf("got %v", err)
	}
}

// FuzzParse holds the parser, which reads bytes as they come, to a plain one
// that has all of them.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "a", "a\n", "a\nb\r\n", " a \n\n\tb", "a b", "a\na", "a\x00b", "\xff", "a\rb", strings.Repeat("x", 128), strings.Repeat("x", 129), "\r", "-a", "$(x)\n"} {
		f.Add(seed, 1)
		f.Add(seed, 3)
	}
	f.Fuzz(func(t *testing.T, text string, step int) {
		step = max(1, step%17)
		got, err := humanrun.ParseList(text, step)
		want, ok := plainList(text)
		if ok != (err == nil) {
			t.Fatalf("%q: %v, and the plain parser says %t", text, err, ok)
		}
		if ok && !slices.Equal(got, want) {
			t.Fatalf("%q: got %q, want %q", text, got, want)
		}
	})
}

func plainList(text string) ([]string, bool) {
	seen := map[string]bool{}
	var out []string
	for i, line := range strings.Split(text, "\n") {
		name := strings.Trim(line, " \t\r")
		switch {
		case i >= humanrun.MaxListed && line != "":
			return nil, false
		case name == "":
			continue
		case lease.ValidName(name) != nil || len(name) > lease.MaxFixedName || seen[name]:
			return nil, false
		}
		seen[name] = true
		out = append(out, name)
	}
	slices.Sort(out)
	return out, true
}
