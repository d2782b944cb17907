package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

const (
	// heartbeat is how often a lane that works says so.
	heartbeat = 30 * time.Second
	// grace is how long a stopped command has to end by itself.
	grace = 10 * time.Second
)

// result is a lane's row in the final table.
type result struct {
	lane string
	counts
	verdict string
	took    time.Duration
}

type runner struct {
	root, logs string
	ci, isRoot bool
	allowed    []skip
	out        io.Writer
}

// lane runs one lane to its end, or to its first step that fails.
func (r runner) lane(ctx context.Context, l lane) result {
	res := result{lane: l.name, verdict: "ok"}
	if l.needsRoot && !r.isRoot {
		fmt.Fprintf(r.out, "== %s: needs root\n", l.name)
		res.verdict, res.skipped = "skipped", 1
		if r.ci {
			res.verdict, res.skipped, res.failed = "FAILED", 0, 1
		}
		return res
	}
	fmt.Fprintf(r.out, "== %s (at most %s)\n", l.name, clock(l.deadline))
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, l.deadline,
		fmt.Errorf("the lane's deadline of %s passed", clock(l.deadline)))
	defer cancel()

	log, err := r.openLog(l.name)
	if err != nil {
		fmt.Fprintln(r.out, err)
		res.verdict, res.failed = "FAILED", 1
		return res
	}
	defer log.Close()

	for _, s := range l.steps {
		c, skips, err := r.step(ctx, l, s, log)
		if r.ci {
			var refused []skip
			c, refused = refuse(c, skips, r.allowed)
			for _, s := range refused {
				fmt.Fprintf(r.out, "  skipped, and CI does not allow it: %s %s: %s\n", s.pkg, s.test, s.why)
			}
			if len(refused) > 0 && err == nil {
				err = errors.New("skipped tests; hack/lanes/skips.txt names those that may")
			}
		} else {
			for _, s := range skips {
				fmt.Fprintf(r.out, "  skipped: %s %s: %s\n", s.pkg, s.test, s.why)
			}
		}
		res.add(c)
		if err != nil {
			if res.failed == 0 {
				res.failed = 1
			}
			res.verdict = "FAILED"
			fmt.Fprintf(r.out, "  %s: %v (all output: %s)\n", l.name, err, filepath.Join("bin", "logs", l.name+".log"))
			break
		}
	}
	res.took = time.Since(start)
	fmt.Fprintf(r.out, "   %s: %s, %d passed, %d failed, %d skipped, %s\n",
		l.name, res.verdict, res.passed, res.failed, res.skipped, clock(res.took))
	return res
}

func (r runner) openLog(name string) (*os.File, error) {
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		return nil, err
	}
	return os.Create(filepath.Join(r.logs, name+".log"))
}

// step runs one command in a process group of its own, which is gone when step
// returns. The error says why the step failed; its output is shown by then.
func (r runner) step(ctx context.Context, l lane, s step, log io.Writer) (counts, []skip, error) {
	argv, err := r.expand(ctx, s)
	if err != nil {
		return counts{failed: 1}, nil, err
	}
	if s.kind == tests {
		// go test ends a binary that hangs, and shows where, before the lane ends it.
		argv = append(argv, "-timeout="+(l.deadline-l.deadline/10).String())
	}
	fmt.Fprintf(log, "$ %s\n", strings.Join(argv, " "))

	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = filepath.Join(r.root, s.dir)
	cmd.Env = append(withoutMake(os.Environ()), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = grace
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }

	var c counts
	var skips []skip
	var said string
	if s.kind == tests {
		c, skips, said, err = r.runTests(ctx, l, cmd, log)
	} else {
		c, said, err = r.runPlain(s, cmd, log)
	}
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // whatever outlived the command
	}
	if err == nil && c.failed > 0 {
		err = errors.New("tests failed")
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		fmt.Fprintf(r.out, "%s\n  %s failed\n", strings.TrimRight(said, "\n"), strings.Join(s.argv, " "))
	}
	return c, skips, err
}

// runPlain counts the whole command as one test.
func (r runner) runPlain(s step, cmd *exec.Cmd, log io.Writer) (counts, string, error) {
	var out bytes.Buffer
	var both shared
	cmd.Stdout = io.MultiWriter(log, &out, &both)
	cmd.Stderr = io.MultiWriter(log, &both)
	if s.kind == progress {
		cmd.Stderr = io.MultiWriter(log, r.out) // shown as it comes
	}
	err := cmd.Run()
	if err == nil && s.kind == silent && out.Len() > 0 {
		err = errors.New("it should have found nothing")
	}
	if err != nil {
		return counts{failed: 1}, both.text.String(), err
	}
	return counts{passed: 1}, "", nil
}

// shared takes a command's stdout and stderr, which arrive side by side.
type shared struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// runTests reads `go test -json` and returns the output of what failed.
func (r runner) runTests(ctx context.Context, l lane, cmd *exec.Cmd, log io.Writer) (counts, []skip, string, error) {
	t := newTally(log)
	var stderr bytes.Buffer
	cmd.Stdout = t
	cmd.Stderr = io.MultiWriter(log, &stderr)

	beat, stop := context.WithCancel(ctx)
	silent := make(chan struct{})
	go func() {
		defer close(silent)
		r.beat(beat, func() string {
			return fmt.Sprintf("%s: %d packages, %d tests", l.name, t.packagesSeen.Load(), t.testsSeen.Load())
		})
	}()
	err := cmd.Run()
	stop()
	<-silent
	t.close()

	said := t.failures.String()
	switch {
	case err == nil && t.passed+t.failed+t.skipped == 0:
		err = errors.New("no test ran")
	case err != nil && t.failed == 0:
		// The go command itself failed: a bad flag, a module that is missing.
		t.failed = 1
		said += stderr.String()
	}
	return t.counts, t.skips, said, err
}

func (r runner) beat(ctx context.Context, text func() string) {
	start := time.Now()
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			fmt.Fprintf(r.out, "  %s, %s\n", text(), clock(time.Since(start)))
		}
	}
}

// expand replaces "{packages}" by what the module has outside of test/, whose
// packages have lanes of their own.
func (r runner) expand(ctx context.Context, s step) ([]string, error) {
	at := slices.Index(s.argv, "{packages}")
	if at < 0 {
		return slices.Clone(s.argv), nil
	}
	cmd := exec.CommandContext(ctx, "go", "list", "./...")
	cmd.Dir = filepath.Join(r.root, s.dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	packages := slices.DeleteFunc(strings.Fields(string(out)), func(p string) bool {
		return strings.HasPrefix(p, "fleetdesk/test/")
	})
	return slices.Concat(s.argv[:at], packages, s.argv[at+1:]), nil
}

// withoutMake drops what a make above us left for makes below it: its job
// server is not ours to hand on.
func withoutMake(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return name == "MAKEFLAGS" || name == "MAKELEVEL" || name == "MFLAGS"
	})
}

// report prints the table and the last line, and returns the exit code.
func report(out io.Writer, results []result) int {
	var sum counts
	var took time.Duration
	code := 0
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "lane\tresult\tpassed\tfailed\tskipped\ttime\t")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t\n", r.lane, r.verdict, r.passed, r.failed, r.skipped, clock(r.took))
		sum.add(r.counts)
		took += r.took
		if r.failed > 0 {
			code = 1
		}
	}
	fmt.Fprintf(w, "all\t\t%d\t%d\t%d\t%s\t\n", sum.passed, sum.failed, sum.skipped, clock(took))
	_ = w.Flush()
	fmt.Fprintf(out, "\n%d passed, %d failed", sum.passed, sum.failed)
	if sum.skipped > 0 {
		fmt.Fprintf(out, ", %d skipped", sum.skipped)
	}
	fmt.Fprintln(out)
	return code
}

// clock prints minutes and seconds: 4:07.
func clock(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
