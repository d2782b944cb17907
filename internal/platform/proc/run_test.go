package proc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
)

// run runs what must go well.
func run(t *testing.T, c proc.Command) proc.Result {
	t.Helper()
	r, err := proc.Run(context.Background(), c)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	return r
}

// slow is what is still fast beside the sleeps of a minute that must not be
// waited for.
const slow = 8 * time.Second

func soon(t *testing.T, begun time.Time) {
	t.Helper()
	if took := time.Since(begun); took > slow {
		t.Errorf("it took %v", took)
	}
}

// golang/go 23019: a grandchild that holds the pipe.
func TestGrandchildHoldsThePipe(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, shell string
		timeout       time.Duration
		code          int
		ended         proc.Ended
	}{
		"beyond the end": {
			"the command ended, so whatever it left goes too", `sleep 60 & echo $! > "$FILE"; echo said; exit 4`, 0, 4, "",
		},
		"beyond the end, deaf": {
			"a grandchild that ignores TERM gets KILL",
			`sh -c 'trap "" TERM; echo $$ > "$FILE"; while :; do sleep 1; done' & while [ ! -s "$FILE" ]; do sleep 0.01; done; echo said; exit 4`, 0, 4, "",
		},
		"beyond the timeout": {
			"the whole group goes, not the shell alone", `sleep 60 & echo $! > "$FILE"; echo said; wait`,
			300 * time.Millisecond, 143, proc.EndedTimeout,
		},
		"beyond the timeout, deaf": {
			"and gets KILL when it has to", `trap "" TERM; echo said; sh -c 'echo $$ > "$FILE"; while :; do sleep 1; done'; exit 4`,
			300 * time.Millisecond, 137, proc.EndedTimeout,
		},
		"stopped": {
			"one that stands still hears TERM nevertheless", `sh -c 'echo $$ > "$FILE"; kill -STOP $$' & echo said; while [ ! -s "$FILE" ]; do sleep 0.01; done; exit 4`,
			0, 4, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, begun := filepath.Join(t.TempDir(), "pid"), time.Now()
			r, err := proc.Run(context.Background(), proc.Command{
				Shell: tc.shell, Env: path(t, "FILE="+file), Timeout: tc.timeout, Grace: 300 * time.Millisecond,
			})
			soon(t, begun)
			if r.Code != tc.code || r.Ended != tc.ended || r.Output != "said\n" || (err != nil) != (tc.ended != "") {
				t.Errorf("%s: %+v, %v", tc.reason, r, err)
			}
			if pid := number(t, file); alive(pid) {
				t.Errorf("%s: %d lives on", tc.reason, pid)
			}
		})
	}
}

// A grandchild that dies of TERM is not waited for until the grace is over.
func TestEndIsNotDelayed(t *testing.T) {
	t.Parallel()
	for reason, shell := range map[string]string{
		"TERM ends it":                       "sleep 60 & exit 0",
		"one that stands still hears it too": `sh -c 'echo > "$FILE"; kill -STOP $$' & while [ ! -s "$FILE" ]; do sleep 0.01; done; exit 0`,
	} {
		begun := time.Now()
		run(t, proc.Command{Shell: shell, Env: path(t, "FILE="+filepath.Join(t.TempDir(), "up")), Grace: time.Minute})
		if took := time.Since(begun); took > slow {
			t.Errorf("%s: it took %v", reason, took)
		}
	}
}

// A process that left the group is none of the command's any more, but it may
// hold the pipe.
func TestEscapedHoldsThePipe(t *testing.T) {
	t.Parallel()
	file, begun := filepath.Join(t.TempDir(), "pid"), time.Now()
	r := run(t, proc.Command{
		Shell: `setsid sh -c 'echo $$ > "$FILE"; exec sleep 60' & while [ ! -s "$FILE" ]; do sleep 0.01; done; echo said`,
		Env:   path(t, "FILE="+file), Grace: 300 * time.Millisecond,
	})
	soon(t, begun)
	pid := number(t, file)
	defer syscall.Kill(pid, syscall.SIGKILL)
	if r.Output != "said\n" || !alive(pid) {
		t.Errorf("%+v, it lives: %v", r, alive(pid))
	}
}

// What the command wrote is read to its end, also by a writer that is slower than
// the grace, and also when an escaped process holds the pipe.
func TestSlowWriterGetsAll(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	var got int
	slow := writerFunc(func(p []byte) (int, error) {
		time.Sleep(20 * time.Millisecond) // it is slow, that is the point
		got += len(p)
		return len(p), nil
	})
	run(t, proc.Command{
		Shell: `setsid sh -c 'echo $$ > "$FILE"; exec sleep 60' & while [ ! -s "$FILE" ]; do sleep 0.01; done; head -c 500000 /dev/zero`,
		Env:   path(t, "FILE="+file), Stdout: slow, Grace: time.Millisecond,
	})
	defer syscall.Kill(number(t, file), syscall.SIGKILL)
	if got != 500000 {
		t.Errorf("it got %d bytes", got)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A zombie whose parent, outside the group, never looks after it, is not waited
// for.
func TestUnreapedZombieOfTheGroup(t *testing.T) {
	t.Parallel()
	file, begun := filepath.Join(t.TempDir(), "pid"), time.Now()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, proc.Command{
		Shell: `"$SELF" zombie "$FILE" >/dev/null 2>&1 & while [ ! -s "$FILE" ]; do sleep 0.01; done; exit 3`,
		Env:   path(t, "FILE="+file, "SELF="+self), Grace: time.Minute,
	})
	soon(t, begun)
	text, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(string(text))
	defer syscall.Kill(pid, syscall.SIGKILL)
	if r.Code != 3 || !alive(pid) {
		t.Errorf("%+v, the zombie's parent lives: %v", r, alive(pid))
	}
}

func TestInputIsEmpty(t *testing.T) {
	t.Parallel()
	if r := run(t, proc.Command{Shell: "cat; read x; echo $?", Env: path(t), Timeout: slow}); r.Output != "1\n" {
		t.Errorf("%+v", r)
	}
}

func TestEnvironmentIsData(t *testing.T) {
	t.Parallel()
	for reason, value := range map[string]string{
		"no command is run":      "$(echo oops)`echo oops`${HOME}",
		"no quote ends anything": `a'b"c\d`,
		"newlines":               "one\ntwo\n\nthree",
		"no option":              "-rf",
		"not ASCII":              "größe 日本 \u202e",
		"not UTF-8 either":       "\xff\xfe",
		"equal signs":            "=a=b",
		"no pattern":             "* ? [a-z] ~",
		"nothing at all":         "",
	} {
		for name, c := range map[string]proc.Command{
			"shell": {Shell: `printf %s "$VALUE"`},
			"args":  {Args: []string{"printenv", "VALUE"}},
		} {
			var got bytes.Buffer
			c.Env, c.Stdout = path(t, "VALUE="+value), &got
			run(t, c)
			if text := strings.TrimSuffix(got.String(), "\n"); text != strings.TrimSuffix(value, "\n") {
				t.Errorf("%s, %s: %q became %q", reason, name, value, text)
			}
		}
	}
}

func TestEnvironmentIsAllOfIt(t *testing.T) {
	t.Setenv("FROM_HERE", "leaks")
	for name, tc := range map[string]struct {
		reason    string
		env, want []string
	}{
		"none":       {"not even this process's own", nil, nil},
		"duplicates": {"the last one counts", []string{"A=1", "B=2", "A=3"}, []string{"B=2", "A=3"}},
		"prefixes":   {"one name may begin with another", []string{"AB=1", "A=2", "AB=3"}, []string{"A=2", "AB=3"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, proc.Command{Args: []string{"/usr/bin/env"}, Env: tc.env})
			if d := cmp.Diff(strings.Join(append(tc.want, ""), "\n"), r.Output); d != "" {
				t.Errorf("%s: %s", tc.reason, d)
			}
		})
	}
}

// The shell gets the text as it is, and nothing beside it.
func TestShellText(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, shell, want string
		code                int
	}{
		"as it is":       {"nothing is spliced or quoted", "echo \"a  b\" 'c$HOME' \\\n d; # end", "a  b c$HOME d\n", 0},
		"no arguments":   {"$1 is empty", `echo "$#"`, "0\n", 0},
		"like an option": {"a text that begins with - is a command", "-rf || echo ran", "ran\n", 0},
		"not found":      {"the shell says 127 by itself: no error", "exec 2>/dev/null; /no/such/thing", "", 127},
		"not executable": {"and 126", "exec 2>/dev/null; /etc/passwd", "", 126},
		"no such dir":    {"its own failure", "exit 1", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := proc.Run(context.Background(), proc.Command{Shell: tc.shell, Env: path(t)})
			r.Output = strings.TrimPrefix(r.Output, "sh: 1: -rf: not found\n")
			if err != nil || r.Code != tc.code || r.Output != tc.want {
				t.Errorf("%s: %+v, %v", tc.reason, r, err)
			}
		})
	}
}

func TestNotStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	plain := write("plain", "#!/bin/sh\n", 0o600)
	odd := write("odd", "no program\n", 0o700)
	lost := write("lost", "#!/no/such/interpreter\n", 0o700)
	env := []string{"PATH=relative::" + dir}
	files := &proc.Files{In: os.Stdin, Out: os.Stdout}
	for name, tc := range map[string]struct {
		reason string
		c      proc.Command
		code   int
		says   string
	}{
		"neither":            {"there is nothing to run", proc.Command{}, 126, "exactly one"},
		"both":               {"which one?", proc.Command{Shell: "a", Args: []string{"a"}}, 126, "exactly one"},
		"not found":          {"as a shell would", proc.Command{Args: []string{"nope"}, Env: env}, 127, `"nope"`},
		"no PATH":            {"this process's own is none of it", proc.Command{Args: []string{"true"}}, 127, "PATH"},
		"empty name":         {"no folder is a program", proc.Command{Args: []string{""}, Env: env}, 127, `""`},
		"path not found":     {"the path is named", proc.Command{Args: []string{"/no/such"}, Env: env}, 127, "/no/such"},
		"not executable":     {"found, but may not be run", proc.Command{Args: []string{"plain"}, Env: env}, 126, plain},
		"path no executable": {"the kernel says so", proc.Command{Args: []string{plain}, Env: env}, 126, plain},
		"no program":         {"no format that the kernel knows", proc.Command{Args: []string{"odd"}, Env: env}, 126, odd},
		"no interpreter":     {"what is missing is the interpreter", proc.Command{Args: []string{lost}, Env: env}, 127, "interpreter"},
		"a folder":           {"no program", proc.Command{Args: []string{dir}, Env: env}, 126, dir},
		"dir missing":        {"the folder is named, not the program", proc.Command{Shell: "true", Dir: dir + "/gone"}, 126, dir + "/gone"},
		"dir a file":         {"the folder is named", proc.Command{Shell: "true", Dir: plain}, 126, plain},
		"env without =":      {"it would be dropped or misread", proc.Command{Shell: "true", Env: []string{"NAME"}}, 126, "NAME"},
		"env without name":   {"no name", proc.Command{Shell: "true", Env: []string{"=hunter22"}}, 126, "environment"},
		"NUL in env":         {"it would end the value early", proc.Command{Shell: "true", Env: []string{"A=hunter22\x00"}}, 126, `"A"`},
		"NUL in shell":       {"it would end the text early", proc.Command{Shell: "true\x00false"}, 126, "NUL"},
		"NUL in args":        {"it would end the argument early", proc.Command{Args: []string{"true", "a\x00b"}, Env: path(t)}, 126, "NUL"},
		"too long":           {"more than the kernel takes", proc.Command{Shell: strings.Repeat("#", 4<<20)}, 126, "too long"},
		"two files":          {"all three are needed", proc.Command{Shell: "true", Files: files}, 126, "three"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := proc.Run(context.Background(), tc.c)
			if fault.Of(err) != fault.Invalid || fault.CodeOf(err) != "start" || r.Code != tc.code {
				t.Errorf("%s: %+v, %v (%s, %s)", tc.reason, r, err, fault.Of(err), fault.CodeOf(err))
			}
			if !strings.Contains(fmt.Sprint(err), tc.says) || strings.Contains(fmt.Sprint(err), "hunter22") {
				t.Errorf("%s: %v, want %q in it and no value", tc.reason, err, tc.says)
			}
			g, gerr := guard().Start(context.Background(), tc.c, 0)
			if g != nil || fmt.Sprint(gerr) != fmt.Sprint(err) || fault.Of(gerr) != fault.Of(err) || fault.CodeOf(gerr) != fault.CodeOf(err) {
				t.Errorf("%s: under a guard: %v, want %v", tc.reason, gerr, err)
			}
		})
	}
}

// A program that somebody is still writing is tried again (golang/go 22315).
func TestProgramJustWritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "new")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, "#!/bin/sh\necho ran\n"); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(150*time.Millisecond, func() { f.Close() })
	if r := run(t, proc.Command{Args: []string{file}}); r.Output != "ran\n" {
		t.Errorf("%+v", r)
	}
}

func TestDir(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if r := run(t, proc.Command{Args: []string{"pwd"}, Env: path(t), Dir: dir}); r.Output != dir+"\n" {
		t.Errorf("%+v", r)
	}
}

func TestCodesAndSignals(t *testing.T) {
	t.Parallel()
	for code := range 256 {
		if r := run(t, proc.Command{Shell: fmt.Sprint("exit ", code)}); r.Code != code || r.Signal != 0 || r.Ended != "" {
			t.Errorf("%d: %+v", code, r)
		}
	}
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGUSR1, syscall.SIGPIPE} {
		if r := run(t, proc.Command{Shell: fmt.Sprintf("kill -%d $$", s)}); r.Code != 128+int(s) || r.Signal != s || r.Ended != "" {
			t.Errorf("%v: %+v", s, r)
		}
	}
}

func TestEndedFromHere(t *testing.T) {
	t.Parallel()
	wrong := errors.New("the disk is full")
	for name, tc := range map[string]struct {
		reason  string
		c       proc.Command
		cancel  bool
		expires bool
		want    proc.Result
		is      error
		class   fault.Class
		code    string
	}{
		"timeout": {
			reason: "its own time", c: proc.Command{Shell: "exec sleep 60", Timeout: 200 * time.Millisecond},
			want: proc.Result{Code: 143, Signal: syscall.SIGTERM, Ended: proc.EndedTimeout}, class: fault.Timeout, code: "timeout",
		},
		"timeout before now": {
			reason: "less than no time is no time", c: proc.Command{Shell: "exec sleep 60", Timeout: -1},
			want: proc.Result{Code: 143, Signal: syscall.SIGTERM, Ended: proc.EndedTimeout}, class: fault.Timeout, code: "timeout",
		},
		"timeout, own code": {
			reason: "how it ended is its own affair", c: proc.Command{Shell: "trap 'exit 7' TERM; while :; do sleep 0.05; done", Timeout: 300 * time.Millisecond},
			want: proc.Result{Code: 7, Ended: proc.EndedTimeout}, class: fault.Timeout, code: "timeout",
		},
		"timeout, deaf": {
			reason: "TERM is not enough", c: proc.Command{Shell: "trap '' TERM; while :; do sleep 1; done", Timeout: 200 * time.Millisecond, Grace: 300 * time.Millisecond},
			want: proc.Result{Code: 137, Signal: syscall.SIGKILL, Ended: proc.EndedTimeout}, class: fault.Timeout, code: "timeout",
		},
		"no grace": {
			reason: "less than no grace is none", c: proc.Command{Shell: "exec sleep 60", Timeout: 200 * time.Millisecond, Grace: -1},
			want: proc.Result{Code: 137, Signal: syscall.SIGKILL, Ended: proc.EndedTimeout}, class: fault.Timeout, code: "timeout",
		},
		"cancelled": {
			reason: "whoever asked went away", c: proc.Command{Shell: "exec sleep 60"}, cancel: true,
			want: proc.Result{Code: 143, Signal: syscall.SIGTERM, Ended: proc.EndedStop}, is: context.Canceled, class: fault.Transient,
		},
		"expired": {
			reason: "ctx's own deadline", c: proc.Command{Shell: "exec sleep 60"}, expires: true,
			want: proc.Result{Code: 143, Signal: syscall.SIGTERM, Ended: proc.EndedStop}, is: context.DeadlineExceeded, class: fault.Timeout,
		},
		"output": {
			reason: "nobody takes what it writes", c: proc.Command{Shell: "exec yes", Stdout: writerFunc(func([]byte) (int, error) { return 0, wrong })},
			want: proc.Result{Code: 143, Signal: syscall.SIGTERM, Ended: proc.EndedOutput}, is: wrong, class: fault.Transient,
		},
		"output, short": {
			reason: "a writer that takes less fails", c: proc.Command{Shell: "exec yes >&2", Stderr: writerFunc(func(p []byte) (int, error) { return len(p) - 1, nil })},
			want: proc.Result{Code: 143, Signal: syscall.SIGTERM, Ended: proc.EndedOutput}, is: io.ErrShortWrite, class: fault.Transient,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, how := range []func(context.Context, proc.Command) (proc.Result, error){proc.Run, runGuarded} {
				ctx, cancel := context.WithCancel(context.Background())
				if tc.cancel {
					time.AfterFunc(500*time.Millisecond, cancel)
				}
				if tc.expires {
					ctx, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
				}
				tc.c.Env = path(t)
				begun := time.Now()
				got, err := how(ctx, tc.c)
				cancel()
				soon(t, begun)
				if got.Took <= 0 || got.Took > time.Since(begun) {
					t.Errorf("%s: it took %v", tc.reason, got.Took)
				}
				got.Took, got.Output = 0, ""
				if d := cmp.Diff(tc.want, got); d != "" {
					t.Errorf("%s: %s", tc.reason, d)
				}
				if err == nil || fault.Of(err) != tc.class || fault.CodeOf(err) != tc.code || tc.is != nil && !errors.Is(err, tc.is) {
					t.Errorf("%s: %v (%s, %q)", tc.reason, err, fault.Of(err), fault.CodeOf(err))
				}
			}
		})
	}
}

func runGuarded(ctx context.Context, c proc.Command) (proc.Result, error) {
	g, err := guard().Start(context.Background(), c, 0)
	if err != nil {
		return proc.Result{}, err
	}
	return g.Wait(ctx)
}

func TestCancelledBefore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	file := filepath.Join(t.TempDir(), "ran")
	c := proc.Command{Shell: `: > "$FILE"`, Env: path(t, "FILE="+file)}
	if _, err := proc.Run(ctx, c); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := guard().Start(ctx, c, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("it ran")
	}
}

// The writers get all of it, the result its ends, and the memory stays as it is.
func TestMuchOutput(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var lines int
	count := writerFunc(func(p []byte) (int, error) { lines += bytes.Count(p, []byte("\n")); return len(p), nil })
	r := run(t, proc.Command{Shell: "seq 1000000", Env: path(t), Stdout: count, Limit: 1000, Hide: []string{"never there"}})
	if lines != 1000000 {
		t.Errorf("%d lines", lines)
	}
	const total = 6888896
	head, rest, _ := strings.Cut(r.Output, "\n[… ")
	mark, tail, _ := strings.Cut(rest, " …]\n")
	if want := fmt.Sprintf("%d bytes were cut", total-len(head)-len(tail)); mark != want ||
		!strings.HasPrefix(head, "1\n2\n3\n") || !strings.HasSuffix(tail, "\n999999\n1000000\n") || len(r.Output) > 1000 || len(r.Output) < 900 {
		t.Errorf("%d bytes: %s", len(r.Output), r.Output)
	}
	var bytes int
	stop := errors.New("enough")
	endless := writerFunc(func(p []byte) (int, error) {
		if bytes += len(p); bytes > 100<<20 {
			return 0, stop
		}
		return len(p), nil
	})
	r, err := proc.Run(context.Background(), proc.Command{Shell: "yes ÄÖÜ", Env: path(t), Stdout: endless})
	if !errors.Is(err, stop) || r.Ended != proc.EndedOutput || len(r.Output) > proc.DefaultLimit || !utf8.ValidString(r.Output) {
		t.Errorf("%v, %q, %d bytes kept", err, r.Ended, len(r.Output))
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 48<<20 {
		t.Errorf("%d MiB were allocated", used>>20)
	}
}

func TestOutputOrder(t *testing.T) {
	t.Parallel()
	r := run(t, proc.Command{Shell: "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"})
	want := "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\nout 4\nerr 4\nout 5\nerr 5\n"
	if r.Output != want {
		t.Errorf("%q", r.Output)
	}
	var out, err bytes.Buffer
	run(t, proc.Command{Shell: "echo out; echo err >&2", Stdout: &out, Stderr: &err})
	if out.String() != "out\n" || err.String() != "err\n" {
		t.Errorf("%q, %q", out.String(), err.String())
	}
	err.Reset()
	if r = run(t, proc.Command{Shell: "echo out; sleep 0.1; echo err >&2", Env: path(t), Stderr: &err}); err.String() != "err\n" || r.Output != "out\nerr\n" {
		t.Errorf("%q, %+v", err.String(), r)
	}
}

// Both writers may be one that is not made for two goroutines: the race detector
// looks on.
func TestOneWriterForBoth(t *testing.T) {
	t.Parallel()
	var both bytes.Buffer
	run(t, proc.Command{Shell: "seq 2000 & seq 2000 >&2; wait", Env: path(t), Stdout: &both, Stderr: &both})
	if n := bytes.Count(both.Bytes(), []byte("\n")); n != 4000 {
		t.Errorf("%d lines", n)
	}
}

// The command's own pipe must not be non-blocking, as this process's end is.
func TestOutputBlocks(t *testing.T) {
	t.Parallel()
	for _, how := range []func(context.Context, proc.Command) (proc.Result, error){proc.Run, runGuarded} {
		r, err := how(context.Background(), proc.Command{Shell: "cat /proc/self/fdinfo/1", Env: path(t)})
		if err != nil || !strings.Contains(r.Output, "flags:\t01\n") && !strings.Contains(r.Output, "flags:\t0100001\n") {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	for _, how := range []func(context.Context, proc.Command) (proc.Result, error){proc.Run, runGuarded} {
		var got bytes.Buffer
		r, err := how(context.Background(), proc.Command{
			Shell: `echo "it is $SECRET."; printf 'hunt'; sleep 0.05; printf 'er22\n'`,
			Env:   path(t, "SECRET=hunter22"), Hide: []string{"hunter22\n"}, Stdout: &got,
		})
		if err != nil || r.Output != "it is ***.\n***\n" {
			t.Errorf("%q, %v", r.Output, err)
		}
		if got.String() != "it is hunter22.\nhunter22\n" {
			t.Errorf("the stream is not changed, but %q came", got.String())
		}
	}
}

func TestNothingIsLeft(t *testing.T) {
	count := func() (files, zombies int) {
		fds, _ := os.ReadDir("/proc/self/fd")
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, f := range all {
			pid, _ := strconv.Atoi(filepath.Base(f))
			if s := stat(pid); len(s) > 1 && s[0] == "Z" && s[1] == strconv.Itoa(os.Getpid()) {
				zombies++
			}
		}
		return len(fds), zombies
	}
	c := proc.Command{Shell: "sleep 60 & echo x", Env: path(t)}
	run(t, c)
	before, _ := count()
	for range 10 {
		run(t, c)
		proc.Run(context.Background(), proc.Command{Args: []string{"/no/such"}})
		runGuarded(context.Background(), c)
		guard().Start(context.Background(), proc.Command{Args: []string{"/no/such"}}, 0)
		proc.Guard{Program: "/no/such"}.Start(context.Background(), c, 0)
	}
	if files, zombies := count(); files != before || zombies != 0 {
		t.Errorf("%d open files became %d; %d zombies", before, files, zombies)
	}
}

// Ctrl-Z and the like would stop a command for ever, and nobody would see it.
func TestStoppedGoesOn(t *testing.T) {
	t.Parallel()
	for _, how := range []func(context.Context, proc.Command) (proc.Result, error){proc.Run, runGuarded} {
		r, err := how(context.Background(), proc.Command{Shell: "kill -TSTP $$; echo on", Timeout: slow})
		// A group that nobody could wake is not stopped by the kernel at all.
		if err != nil || r.Output != "on\n" {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, how := range []func(context.Context, proc.Command) (proc.Result, error){proc.Run, runGuarded} {
		i, _ := os.Open(in)
		o, _ := os.Create(out)
		r, err := how(context.Background(), proc.Command{
			Shell: "cat; echo err >&2; exit 5", Env: path(t), Files: &proc.Files{In: i, Out: o, Err: o},
			Stdout: writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe }),
		})
		i.Close()
		if o.Close() != nil {
			t.Error("the file was closed")
		}
		got, _ := os.ReadFile(out)
		if err != nil || r.Code != 5 || r.Output != "" || string(got) != "one\ntwo\nerr\n" {
			t.Errorf("%+v, %v, %q", r, err, got)
		}
	}
}

// Who prints a list must be told when a part of it may be missing.
func TestBehind(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		shell  string
		behind bool
	}{
		"whole":          {"a pipe ends with its shell", "echo a | cat", false},
		"waited for":     {"a background process that ended is nothing", "(sleep 0.1; echo a) & wait", false},
		"background":     {"what it would have printed is lost", "echo a; (sleep 60; echo b) &", true},
		"outside":        {"it can still print, and nobody listens", "echo a; setsid sleep 3 & sleep 0.1", true},
		"silent outside": {"a daemon that prints nothing is none of a list's business", "echo a; setsid sleep 3 >/dev/null 2>&1 & sleep 0.1", false},
		"stderr outside": {"nor is one that only complains", "echo a; setsid sleep 3 >/dev/null & sleep 0.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			r, err := proc.Run(t.Context(), proc.Command{Shell: tc.shell, Env: os.Environ(), Grace: 300 * time.Millisecond, Stdout: &out, Stderr: &out})
			if err != nil || r.Code != 0 || r.Behind != tc.behind {
				t.Errorf("%s: behind %t, want %t: %+v %v", tc.reason, r.Behind, tc.behind, r, err)
			}
			if out.String() != "a\n" {
				t.Errorf("it printed %q", &out)
			}
		})
	}
}
