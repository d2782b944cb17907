package proc_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
)

// deaf is a command that takes no notice of TERM and has a deaf grandchild. It
// says its own number, which is its group's, in FILE.
const deaf = `trap "" TERM; sh -c 'while :; do sleep 1; done' & echo $$ > "$FILE"; while :; do sleep 1; done`

func start(t *testing.T, c proc.Command, until time.Duration) *proc.Guarded {
	t.Helper()
	g, err := guard().Start(context.Background(), c, until)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// wait waits for what must end soon.
func wait(t *testing.T, g *proc.Guarded) (proc.Result, error) {
	t.Helper()
	begun := time.Now()
	r, err := g.Wait(context.Background())
	soon(t, begun)
	return r, err
}

func TestGuardedCodesAndSignals(t *testing.T) {
	t.Parallel()
	for code := range 256 {
		r, err := runGuarded(context.Background(), proc.Command{Shell: fmt.Sprint("exit ", code)})
		if err != nil || r.Code != code || r.Signal != 0 || r.Ended != "" {
			t.Errorf("%d: %+v, %v", code, r, err)
		}
	}
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGUSR1, syscall.SIGPIPE} {
		r, err := runGuarded(context.Background(), proc.Command{Shell: fmt.Sprintf("kill -%d $$", s)})
		if err != nil || r.Code != 128+int(s) || r.Signal != s || r.Ended != "" {
			t.Errorf("%v: %+v, %v", s, r, err)
		}
	}
}

// What the order goes through changes nothing in it.
func TestOrderIsData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "\xff$(x)\n")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	value := "\xff\xfe$(echo oops)`x`'\"\n-rf größe \u2028<&>"
	var out, errs bytes.Buffer
	r, err := runGuarded(context.Background(), proc.Command{
		Args: []string{"sh", "-c", `printf %s "$VALUE"; printf %s "$1" >&2; printf %s "$PWD"`, "x", value},
		Env:  path(t, "VALUE=old", "VALUE="+value), Dir: dir, Stdout: &out, Stderr: &errs,
	})
	if err != nil || r.Code != 0 || out.String() != value+dir || errs.String() != value {
		t.Errorf("%+v, %v: %q, %q", r, err, out.String(), errs.String())
	}
}

// An order may be larger than what a socket takes at once.
func TestLargeOrder(t *testing.T) {
	t.Parallel()
	env, value := path(t), strings.Repeat("x", 100<<10)
	for i := range 12 {
		env = append(env, fmt.Sprintf("VALUE%d=%s", i, value))
	}
	r, err := runGuarded(context.Background(), proc.Command{Shell: `echo "${#VALUE11}"`, Env: env})
	if err != nil || r.Output != "102400\n" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestGuardedGroup(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, shell string
		timeout       time.Duration
		code          int
		ended         proc.Ended
	}{
		"left behind":       {"what it left goes with it", `sleep 60 & echo $$ > "$FILE"; exit 9`, 0, 9, ""},
		"left behind, deaf": {"and the true code stays", `trap "" TERM; sh -c 'while :; do sleep 1; done' & echo $$ > "$FILE"; exit 9`, 0, 9, ""},
		"orphans":           {"the supervisor buries the orphans of others", `(sleep 60 & exec sleep 60) & echo $$ > "$FILE"; exit 9`, 0, 9, ""},
		"timeout":           {"grandchildren too", `sleep 60 & echo $$ > "$FILE"; wait`, 300 * time.Millisecond, 143, proc.EndedTimeout},
		"timeout, deaf":     {"KILL takes all", deaf, 300 * time.Millisecond, 137, proc.EndedTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "pid")
			g := start(t, proc.Command{Shell: tc.shell, Env: path(t, "FILE="+file), Timeout: tc.timeout, Grace: 300 * time.Millisecond}, 0)
			r, err := wait(t, g)
			if left := group(number(t, file)); len(left) > 0 {
				t.Errorf("%s: %v are left", tc.reason, left)
			}
			if r.Code != tc.code || r.Ended != tc.ended || (err != nil) != (tc.ended != "") {
				t.Errorf("%s: %+v, %v", tc.reason, r, err)
			}
		})
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	g := start(t, proc.Command{Shell: deaf, Env: path(t, "FILE="+file), Grace: 300 * time.Millisecond}, 0)
	pgid := number(t, file)
	begun := time.Now()
	g.Stop()
	g.Stop()
	r, err := wait(t, g)
	if took := time.Since(begun); took > 5*time.Second { // later, this process would do it
		t.Errorf("it took %v", took)
	}
	if err != nil || r.Code != 137 || r.Ended != proc.EndedStop || len(group(pgid)) > 0 {
		t.Errorf("%+v, %v, left: %v", r, err, group(pgid))
	}
	g.Stop() // and later: nothing
	g.Extend(1)
	g.Signal(syscall.SIGTERM)
}

func TestSignalReachesTheGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := start(t, proc.Command{
		Shell: `exec 2>/dev/null # where the shells tell of their sleeps' deaths
			trap 'got=1' USR1; sh -c 'trap "echo child; exit" USR1; : > child; while :; do sleep 0.05; done' & : > parent
			while [ -z "$got" ]; do sleep 0.05; done; wait; echo parent`,
		Env: path(t), Dir: dir,
	}, 0)
	waited(t, filepath.Join(dir, "child"))
	waited(t, filepath.Join(dir, "parent"))
	g.Signal(syscall.SIGUSR1)
	if r, err := wait(t, g); err != nil || r.Code != 0 || r.Output != "child\nparent\n" {
		t.Errorf("%+v, %v", r, err)
	}
}

// A deadline sends TERM a grace before and KILL before it, whatever comes.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, shell string
		within, grace time.Duration
		extend        []time.Duration // from the start
		least, most   time.Duration
		code          int
	}{
		"TERM":           {"a grace before", `echo > "$FILE"; exec sleep 60`, 3 * time.Second, 2 * time.Second, nil, 900 * time.Millisecond, 2500 * time.Millisecond, 143},
		"deaf":           {"KILL before it", `trap "" TERM; ` + `echo > "$FILE"; while :; do sleep 1; done`, 2 * time.Second, time.Second, nil, 1500 * time.Millisecond, 2 * time.Second, 137},
		"a long grace":   {"half of the time is the command's", `echo > "$FILE"; exec sleep 60`, 2 * time.Second, time.Minute, nil, 900 * time.Millisecond, 1700 * time.Millisecond, 143},
		"long and deaf":  {"KILL does not wait for the grace", `trap "" TERM; ` + `echo > "$FILE"; while :; do sleep 1; done`, 2 * time.Second, time.Minute, nil, 1500 * time.Millisecond, 2 * time.Second, 137},
		"no grace":       {"KILL alone", `echo > "$FILE"; trap "exit 3" TERM; while :; do sleep 0.1; done`, time.Second, -1, nil, 600 * time.Millisecond, time.Second, 137},
		"later":          {"extended in time", `echo > "$FILE"; exec sleep 60`, 2 * time.Second, time.Second, []time.Duration{4 * time.Second}, 2500 * time.Millisecond, 4 * time.Second, 143},
		"earlier":        {"and back", `echo > "$FILE"; exec sleep 60`, time.Minute, 500 * time.Millisecond, []time.Duration{2 * time.Second}, time.Second, 2 * time.Second, 143},
		"back and forth": {"the last one counts", `echo > "$FILE"; exec sleep 60`, 2 * time.Second, 500 * time.Millisecond, []time.Duration{time.Minute, 1500 * time.Millisecond, 3 * time.Second}, 2 * time.Second, 3 * time.Second, 143},
		"over":           {"a deadline in the past is over at once", `echo > "$FILE"; exec sleep 60`, time.Minute, -1, []time.Duration{1}, 0, time.Second, 137},
		"late":           {"given where there was none", `echo > "$FILE"; exec sleep 60`, 0, 100 * time.Millisecond, []time.Duration{time.Second}, 600 * time.Millisecond, time.Second, 143},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			undisturbed(t, func() (problems []string) {
				file := filepath.Join(t.TempDir(), "up")
				begun := proc.Now()
				until := time.Duration(0)
				if tc.within != 0 {
					until = begun + tc.within
				}
				g := start(t, proc.Command{Shell: tc.shell, Env: path(t, "FILE="+file), Grace: tc.grace}, until)
				waited(t, file)
				for _, e := range tc.extend {
					g.Extend(begun + e)
				}
				r, err := wait(t, g)
				if took := proc.Now() - begun; took < tc.least || took > tc.most {
					problems = append(problems, fmt.Sprintf("%s: it took %v, want %v to %v", tc.reason, took, tc.least, tc.most))
				}
				if r.Code != tc.code || r.Ended != proc.EndedDeadline || fault.Of(err) != fault.Conflict || fault.CodeOf(err) != "deadline" {
					problems = append(problems, fmt.Sprintf("%s: %+v, %v", tc.reason, r, err))
				}
				return problems
			})
		})
	}
}

func TestDeadlineOff(t *testing.T) {
	t.Parallel()
	undisturbed(t, func() (problems []string) {
		g := start(t, proc.Command{Shell: "sleep 2; exit 4", Env: path(t), Grace: 500 * time.Millisecond}, proc.Now()+1800*time.Millisecond)
		g.Extend(0)
		if r, err := wait(t, g); err != nil || r.Code != 4 {
			problems = append(problems, fmt.Sprintf("%+v, %v", r, err))
		}
		return problems
	})
}

func TestDeadlineBeforeTheStart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ran")
	_, err := guard().Start(context.Background(), proc.Command{Shell: `: > "$FILE"`, Env: path(t, "FILE="+file)}, proc.Now())
	if _, ran := os.Stat(file); fault.Of(err) != fault.Conflict || fault.CodeOf(err) != "deadline" || ran == nil {
		t.Errorf("%v, %v", err, ran)
	}
}

// While it winds up after the command's end, or on a stop, the deadline still
// counts.
func TestDeadlineWhileEnding(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		shell string
		stop  bool
		code  int
		ended proc.Ended
	}{
		"left behind": {`trap "" TERM; sh -c 'while :; do sleep 1; done' & echo $$ > "$FILE"; exit 6`, false, 6, ""},
		"stopped":     {deaf, true, 137, proc.EndedStop},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			undisturbed(t, func() (problems []string) {
				file := filepath.Join(t.TempDir(), "pid")
				until := proc.Now() + 2*time.Second
				g := start(t, proc.Command{Shell: tc.shell, Env: path(t, "FILE="+file), Grace: time.Minute}, until)
				pgid := number(t, file)
				if tc.stop {
					g.Stop()
				}
				r, err := wait(t, g)
				if late := proc.Now() - until; late > 0 || len(group(pgid)) > 0 {
					problems = append(problems, fmt.Sprintf("%v too late, left: %v", late, group(pgid)))
				}
				if err != nil || r.Code != tc.code || r.Ended != tc.ended {
					problems = append(problems, fmt.Sprintf("%+v, %v", r, err))
				}
				return problems
			})
		})
	}
}

func TestMarks(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, tc := range map[string]struct {
		reason            string
		until, now, grace time.Duration
		term, kill        time.Duration
	}{
		"none":          {"no deadline, nothing to do", 0, 5 * s, s, 0, 0},
		"a grace ahead": {"the usual case", 100 * s, 10 * s, 5 * s, 95 * s, 100*s - 250*time.Millisecond},
		"a long grace":  {"half of what remains", 20 * s, 10 * s, 60 * s, 15 * s, 20*s - 250*time.Millisecond},
		"soon":          {"a quarter remains for KILL", 10*s + 400*time.Millisecond, 10 * s, 5 * s, 10*s + 200*time.Millisecond, 10*s + 300*time.Millisecond},
		"over":          {"at once", 9 * s, 10 * s, 5 * s, 10 * s, 10 * s},
		"a short grace": {"half of it is between them", 100 * s, 10 * s, s / 10, 100*s - 300*time.Millisecond, 100*s - 250*time.Millisecond},
		"no grace":      {"TERM is never after KILL", 100 * s, 10 * s, 0, 100*s - 250*time.Millisecond, 100*s - 250*time.Millisecond},
	} {
		if term, kill := proc.Marks(tc.until, tc.now, tc.grace); term != tc.term || kill != tc.kill {
			t.Errorf("%s, %s: %v, %v, want %v, %v", name, tc.reason, term, kill, tc.term, tc.kill)
		}
	}
}

// supervisorOf is the parent of a command's first process.
func supervisorOf(t *testing.T, pid int) int {
	t.Helper()
	s := stat(pid)
	if len(s) < 2 {
		t.Fatalf("%d is not there", pid)
	}
	parent, err := strconv.Atoi(s[1])
	if err != nil || parent == os.Getpid() || parent < 2 {
		t.Fatalf("%d has the parent %s", pid, s[1])
	}
	return parent
}

func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	g := start(t, proc.Command{Shell: deaf, Env: path(t, "FILE="+file), Grace: time.Minute}, 0)
	pgid := number(t, file)
	if err := syscall.Kill(supervisorOf(t, pgid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r, err := wait(t, g)
	if left := group(pgid); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if err != nil || r.Code != 137 || r.Signal != syscall.SIGKILL || r.Ended != "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// The code of a command that ended before its supervisor was killed is known.
func TestSupervisorKilledLate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	g := start(t, proc.Command{
		Shell: `exec 2>/dev/null; sh -c 'trap ": > \"$FILE.term\"" TERM; : > "$FILE.up"; while :; do sleep 0.1; done' &
			while [ ! -e "$FILE.up" ]; do sleep 0.01; done
			echo $$ > "$FILE"; while [ ! -e "$FILE.go" ]; do sleep 0.01; done; exit 9`,
		Env: path(t, "FILE="+file), Grace: time.Minute,
	}, 0)
	pgid := number(t, file)
	supervisor := supervisorOf(t, pgid)
	if err := os.WriteFile(file+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	waited(t, file+".term") // which comes after the report
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r, err := wait(t, g)
	if err != nil || r.Code != 9 || r.Ended != "" || len(group(pgid)) > 0 {
		t.Errorf("%+v, %v, left: %v", r, err, group(pgid))
	}
}

// Nothing but KILL ends a supervisor.
func TestSupervisorIsDeaf(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	g := start(t, proc.Command{
		Shell: `echo $$ > "$FILE"; while [ ! -e "$FILE.go" ]; do sleep 0.01; done; echo out; exit 9`, Env: path(t, "FILE="+file),
	}, 0)
	supervisor := supervisorOf(t, number(t, file))
	for s := syscall.Signal(1); s < 64; s++ {
		// STOP has its own test; 32 to 34 are a C library's own.
		if s == syscall.SIGKILL || s == syscall.SIGSTOP || 32 <= s && s <= 34 {
			continue
		}
		if err := syscall.Kill(supervisor, s); err != nil {
			t.Fatal(s, err)
		}
	}
	if err := os.WriteFile(file+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := wait(t, g); err != nil || r.Code != 9 || r.Output != "out\n" {
		t.Errorf("%+v, %v", r, err)
	}
}

// A supervisor looks after orphans, which on some machines nobody does, and holds
// none of the command's files open.
func TestSupervisorAtWork(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	g := start(t, proc.Command{Shell: `(sleep 60 & echo $! > "$FILE.orphan"); echo $$ > "$FILE"; sleep 60`, Env: path(t, "FILE="+file)}, 0)
	supervisor := supervisorOf(t, number(t, file))
	if parent := supervisorOf(t, number(t, file+".orphan")); parent != supervisor {
		t.Errorf("the orphan's parent is %d, not the supervisor %d", parent, supervisor)
	}
	for fd := range 3 {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", supervisor, fd)); to != os.DevNull {
			t.Errorf("its descriptor %d is %s, %v", fd, to, err)
		}
	}
	g.Stop()
	wait(t, g)
}

// A supervisor that stands still does not keep the command beyond the deadline
// for long.
func TestSupervisorStandsStill(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	g := start(t, proc.Command{Shell: deaf, Env: path(t, "FILE="+file)}, proc.Now()+time.Second)
	pgid := number(t, file)
	if err := syscall.Kill(supervisorOf(t, pgid), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r, err := wait(t, g)
	if r.Code != 137 || r.Ended != proc.EndedDeadline || fault.CodeOf(err) != "deadline" || len(group(pgid)) > 0 {
		t.Errorf("%+v, %v, left: %v", r, err, group(pgid))
	}
}

// What the command gets: its signals at their defaults, no descriptor more than
// three, a group of its own, and nothing of its supervisor's.
func TestWhatACommandInherits(t *testing.T) {
	t.Parallel()
	mine, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	line := func(text, name string) string {
		_, rest, _ := strings.Cut(text, name+":\t")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	for _, how := range []func(context.Context, proc.Command) (proc.Result, error){proc.Run, runGuarded} {
		r, err := how(context.Background(), proc.Command{Args: []string{"cat", "/proc/self/status", "/proc/self/stat"}, Env: path(t)})
		if err != nil {
			t.Fatal(err)
		}
		const none = "0000000000000000"
		if blocked, ignored := line(r.Output, "SigBlk"), line(r.Output, "SigIgn"); blocked != none || ignored != line(string(mine), "SigIgn") {
			t.Errorf("blocked %s, ignored %s", blocked, ignored)
		}
		if fields := strings.Fields(r.Output[strings.LastIndex(r.Output, ")"):]); fields[3] != line(r.Output, "Pid") {
			t.Errorf("the group is %s, the process %s", fields[3], line(r.Output, "Pid"))
		}
		r, err = how(context.Background(), proc.Command{Shell: "ls -l /proc/self/fd | grep -c socket; env | grep -c -v -e ^PATH= -e ^PWD=", Env: path(t)})
		if err != nil || r.Output != "0\n0\n" {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// The starter's death is the command's, in each phase.
func TestStarterKilled(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		shell  string
		j      job
		stop   bool
		alone  bool // the first process alone
	}{
		"while it runs":        {"TERM", `echo $$ > "$FILE"; sleep 60 & sleep 60`, job{Guard: true, Grace: time.Minute}, false, false},
		"while it runs, deaf":  {"KILL after the grace", deaf, job{Guard: true, Grace: 300 * time.Millisecond}, false, false},
		"near the deadline":    {"KILL before the deadline, whatever the grace", deaf, job{Guard: true, Grace: time.Minute, Within: 4 * time.Second}, false, false},
		"while it is stopped":  {"the stop goes on", deaf, job{Guard: true, Grace: time.Second, Stop: true}, true, false},
		"without a guard":      {"the first process dies of its parent's death", `echo $$ > "$FILE"; exec sleep 60`, job{Grace: time.Minute}, false, true},
		"leaving things alone": {"what it left behind", `trap "" TERM; sh -c 'while :; do sleep 1; done' & echo $$ > "$FILE"; exit 0`, job{Guard: true, Grace: 2 * time.Second}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "pid")
			tc.j.Shell = "FILE=" + file + "; export FILE; " + tc.shell
			text, _ := json.Marshal(tc.j)
			cmd := exec.Command("/proc/self/exe", "starter", string(text))
			in, _ := cmd.StdinPipe()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pgid := number(t, file)
			if tc.stop {
				fmt.Fprintln(in, "stop")
			}
			begun := time.Now()
			cmd.Process.Kill()
			cmd.Wait()
			eventually(t, "the group's end", func() bool { return len(group(pgid)) == 0 })
			if took := time.Since(begun); took > 6*time.Second {
				t.Errorf("%s: it took %v", tc.reason, took)
			}
		})
	}
}

// A supervisor whose starter dies before it gave the whole order starts nothing.
func TestStarterKilledBefore(t *testing.T) {
	t.Parallel()
	for name, said := range map[string]string{
		"nothing said":  "",
		"half an order": `{"Path":"L2Jpbi9zbGVlcA==","Args":["c2xlZXA=","NjA="],"Env":[`,
		"no order":      `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			mine, theirs := os.NewFile(uintptr(ends[0]), "mine"), os.NewFile(uintptr(ends[1]), "theirs")
			cmd := exec.Command("/proc/self/exe", "supervise")
			cmd.ExtraFiles = []*os.File{theirs}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			io.WriteString(mine, said)
			if err := unix.Shutdown(ends[0], unix.SHUT_WR); err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(mine)
			mine.Close()
			if err := cmd.Wait(); err == nil || len(got) > 0 {
				t.Errorf("%v; it reported %q", err, got)
			}
		})
	}
}

func TestSuperviseByHand(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/proc/self/exe", "supervise")
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || !bytes.HasPrefix(out, []byte("error: ")) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestNoSupervisor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		guard  proc.Guard
		says   string
	}{
		"missing":  {"the file is named", proc.Guard{Program: "/no/such"}, "/no/such"},
		"another":  {"it ends without a word", proc.Guard{Program: "/bin/false", Args: []string{"false"}}, "exit status 1"},
		"says why": {"what it said is passed on", proc.Guard{Program: "/bin/sh", Args: []string{"sh", "-c", "echo broken >&2"}}, "broken"},
		"babbles":  {"no reports", proc.Guard{Program: "/bin/sh", Args: []string{"sh", "-c", "echo '{}' >&3; echo broken >&3"}}, "before it started"},
	} {
		g, err := tc.guard.Start(context.Background(), proc.Command{Shell: "true"}, 0)
		if g != nil || fault.Of(err) != fault.Permanent || !strings.Contains(fmt.Sprint(err), tc.says) {
			t.Errorf("%s, %s: %v (%s)", name, tc.reason, err, fault.Of(err))
		}
	}
}

// A supervisor that does not answer is given up with ctx.
func TestStartIsBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	g, err := proc.Guard{Program: "/bin/sleep", Args: []string{"sleep", "60"}}.Start(ctx, proc.Command{Shell: "true"}, 0)
	soon(t, begun)
	if g != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// One that stands still hears all the same that it is to end.
func TestSignalWakes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	g := start(t, proc.Command{Shell: `trap "exit 7" TERM; echo $$ >"$FILE"; kill -STOP $$; sleep 0.1; exit 8`, Env: append(os.Environ(), "FILE="+file)}, 0)
	pid := 0
	for begun := time.Now(); pid == 0 || stateOf(t, pid) != "T"; time.Sleep(time.Millisecond) {
		if text, err := os.ReadFile(file); err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text))) // once it is whole
		}
		soon(t, begun)
	}
	g.Signal(syscall.SIGTERM)
	if r, err := wait(t, g); err != nil || r.Code != 7 {
		t.Errorf("%+v %v", r, err)
	}
}

func stateOf(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ")
	return after[:1]
}

// A start that is given up in the instant in which the command begins leaves
// nothing of it behind.
func TestStartGivenUp(t *testing.T) {
	t.Parallel()
	const tries = 40
	dir := t.TempDir()
	for i := range tries {
		file := filepath.Join(dir, strconv.Itoa(i))
		ctx, cancel := context.WithCancel(context.Background())
		seen := make(chan struct{})
		go func() {
			defer close(seen)
			for ctx.Err() == nil {
				if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
					cancel()
				}
			}
		}()
		g, err := guard().Start(ctx, proc.Command{Shell: `echo $$ >"$FILE"; sleep 600`, Env: append(os.Environ(), "FILE="+file)}, 0)
		if err == nil {
			_, err = g.Wait(ctx)
		}
		cancel()
		<-seen
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		group, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(-group, 0); err == nil {
			_ = unix.Kill(-group, unix.SIGKILL)
			t.Fatalf("try %d: something of the group is left", i)
		}
	}
}

func TestNow(t *testing.T) {
	t.Parallel()
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		t.Fatal(err)
	}
	if d := proc.Now() - time.Duration(boot.Nano()); d < 0 || d > time.Second {
		t.Errorf("off by %v", d)
	}
}

func BenchmarkTrue(b *testing.B) {
	for name, how := range map[string]func(context.Context, proc.Command) (proc.Result, error){"run": proc.Run, "guard": runGuarded} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := how(context.Background(), proc.Command{Args: []string{"/bin/true"}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// session is a starter with a terminal of its own.
type session struct {
	t     *testing.T
	pty   *os.File
	lines chan string
	cmd   *exec.Cmd
}

func newSession(t *testing.T, j job) *session {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, pty: os.NewFile(uintptr(fd), "ptmx"), lines: make(chan string, 100)}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	text, _ := json.Marshal(j)
	s.cmd = exec.Command("/proc/self/exe", "starter", string(text))
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = tty, tty, tty
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.lines)
		for scan := bufio.NewScanner(s.pty); scan.Scan(); {
			s.lines <- strings.TrimRight(scan.Text(), "\r")
		}
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.pty.Close()
		for range s.lines { // until the reader ends
		}
	})
	return s
}

// expect waits for a line with that text, and returns it.
func (s *session) expect(text string) string {
	s.t.Helper()
	seen := ""
	for late := time.After(20 * time.Second); ; {
		select {
		case line, ok := <-s.lines:
			if strings.Contains(line, text) {
				return line
			}
			if seen += line + "\n"; !ok {
				s.t.Fatalf("the terminal ended without %q: %s", text, seen)
			}
		case <-late:
			s.t.Fatalf("in vain: waited for %q: %s", text, seen)
		}
	}
}

func (s *session) send(text string) { io.WriteString(s.pty, text) }

// The command has the terminal while it runs, and its starter has it again
// afterwards. Keys go to the command alone.
func TestTerminal(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"guard": true, "run": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSession(t, job{Guard: guarded, Files: true, Reads: true, Shell: `
				n=0 # it gets the terminal just after its start
				while set -- $(cut -d')' -f2- /proc/$$/stat); [ $3 != $6 ] && [ $n -lt 200 ]; do n=$((n+1)); sleep 0.02; done
				echo "group $3 terminal $6"
				read line; echo "read <$line>"; read line; echo "read <$line>"
				sh -c 'echo ready; exec sleep 60'; echo survived`})
			line := s.expect("group ")
			if f := strings.Fields(line); len(f) != 4 || f[1] != f[3] {
				t.Errorf("it is not in the foreground: %s", line)
			}
			s.send("one\n")
			s.expect("read <one>")
			s.send("\x1a") // Ctrl-Z: it goes on
			s.send("two\n")
			s.expect("read <two>")
			s.expect("ready")
			s.send("\x03")
			if line := s.expect("result "); !strings.Contains(line, `code=130 signal=2 ended="" err=<nil>`) {
				t.Error(line)
			}
			s.send("three\n")
			s.expect(`back "three" <nil>`)
		})
	}
}

// A shell stops itself until it has the terminal: it must not sleep through it.
func TestTerminalWanted(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"guard": true, "run": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSession(t, job{Guard: guarded, Files: true, Shell: "kill -TTIN $$; kill -TTOU $$; echo on"})
			s.expect("on")
			s.expect("result code=0")
		})
	}
}

// What wants to ask a person although it has no input fails: it is not stopped
// until somebody wonders.
func TestNoTerminal(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"guard": true, "run": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSession(t, job{Guard: guarded, Shell: "exec 2>/dev/null; (read x < /dev/tty) || echo refused"})
			if line := s.expect("result code=0"); !strings.Contains(line, `output="refused\n"`) {
				t.Error(line)
			}
		})
	}
}

// A command that is ended gives the terminal back, too.
func TestTerminalAfterKill(t *testing.T) {
	t.Parallel()
	s := newSession(t, job{
		Guard: true, Files: true, Reads: true, Within: time.Second, Grace: 100 * time.Millisecond,
		Shell: `trap "" TERM; echo ready; while :; do sleep 1; done`,
	})
	s.expect("ready")
	if line := s.expect("result "); !strings.Contains(line, `code=137 signal=9 ended="deadline"`) {
		t.Error(line)
	}
	s.send("three\n")
	s.expect(`back "three" <nil>`)
}

// Who has no foreground cannot give it.
func TestTerminalInTheBackground(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"guard": true, "run": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSession(t, job{Behind: true, Guard: guarded, Files: true, Shell: `
				set -- $(cut -d')' -f2- /proc/$$/stat); echo "group $3 terminal $6"`})
			line := s.expect("group ")
			if f := strings.Fields(line); len(f) != 4 || f[3] != strconv.Itoa(s.cmd.Process.Pid) {
				t.Errorf("it took the foreground from %d: %s", s.cmd.Process.Pid, line)
			}
			s.expect("result code=0")
		})
	}
}
