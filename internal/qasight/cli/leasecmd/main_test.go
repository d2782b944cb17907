package leasecmd_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/client"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/cli"
)

// TestMain makes the test binary the program itself when it is called so.
func TestMain(m *testing.M) {
	if os.Args[0] == "qasight" {
		signals := make(chan os.Signal, 16)
		signal.Notify(signals, cli.Signals()...)
		code := cli.Main(context.Background(), cli.Program{
			Args: os.Args[1:], Environ: os.Environ(), Executable: "/proc/self/exe", Name: "qasight", Signals: signals,
			Streams: cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr},
		})
		syscall.Exit(code) // the race detector would sleep a second at the end of each
	}
	if err := flag.Set("test.parallel", "8"); err != nil { // they mostly wait
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// project is a folder with a qasight.yaml, and a home of its own.
type project struct {
	t   *testing.T
	dir string
	env []string
}

func newProject(t *testing.T, file string) *project {
	t.Helper()
	p := &project{t: t, dir: t.TempDir()}
	p.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir + "/home", "XDG_STATE_HOME=" + p.dir + "/state",
		"XDG_CONFIG_HOME=" + p.dir + "/config", "USER=ann", "TMPDIR=" + p.dir,
	}
	p.write("qasight.yaml", file)
	return p
}

func (p *project) path(name string) string { return filepath.Join(p.dir, name) }

func (p *project) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), []byte(text), 0o700); err != nil {
		p.t.Fatal(err)
	}
}

// read is a file's text; "" while there is none.
func (p *project) read(name string) string {
	p.t.Helper()
	raw, err := os.ReadFile(p.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	return string(raw)
}

func (p *project) exists(name string) bool {
	_, err := os.Stat(p.path(name))
	return err == nil
}

// number is the number that a file holds; 0 while it holds none.
func (p *project) number(name string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(p.read(name)), 10, 64)
	return n
}

// program is the program under way.
type program struct {
	t   *testing.T
	cmd *exec.Cmd

	mu       sync.Mutex
	out, err bytes.Buffer
	done     chan struct{}
	code     int
}

type stream struct {
	p  *program
	to *bytes.Buffer
}

func (s stream) Write(b []byte) (int, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.to.Write(b)
}

func (p *program) stdout() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func (p *program) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.String()
}

// start starts the program in the project's folder.
func (p *project) start(args ...string) *program {
	p.t.Helper()
	r := &program{t: p.t, done: make(chan struct{})}
	return p.run(r, stream{r, &r.err}, args)
}

// startClosed starts it with an error stream that nobody reads.
func (p *project) startClosed(args ...string) *program {
	p.t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	in.Close()
	defer out.Close()
	return p.run(&program{t: p.t, done: make(chan struct{})}, out, args)
}

func (p *project) run(r *program, errs io.Writer, args []string) *program {
	p.t.Helper()
	r.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{"qasight"}, args...), Dir: p.dir, Env: p.env,
		Stdout: stream{r, &r.out}, Stderr: errs,
		// What is left behind by a failing test must not hold it up.
		WaitDelay: 30 * time.Second,
	}
	if err := r.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait()
		r.code = r.cmd.ProcessState.ExitCode()
	}()
	p.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
	})
	return r
}

// wait waits for the program's end and returns its code.
func (p *program) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.t.Fatalf("%v did not end; it said %s", p.cmd.Args, p.stderr())
	}
	return p.code
}

// ends checks how it ends.
func (p *program) ends(code int, words ...string) {
	p.t.Helper()
	if got := p.wait(); got != code {
		p.t.Errorf("%v ended with %d, want %d; it said %s", p.cmd.Args, got, code, p.stderr())
	}
	for _, w := range words {
		if !strings.Contains(p.stderr(), w) {
			p.t.Errorf("%v said %q, without %q", p.cmd.Args, p.stderr(), w)
		}
	}
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Error(err)
	}
}

// supervisor is the process of the program's supervisor.
func (p *program) supervisor() int {
	p.t.Helper()
	found := 0
	eventually(p.t, "a supervisor", func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*")
		for _, f := range files {
			pid, _ := strconv.Atoi(filepath.Base(f))
			stat, _ := os.ReadFile(f + "/stat")
			_, rest, _ := strings.Cut(string(stat), ") ")
			line, _ := os.ReadFile(f + "/cmdline")
			if parts := strings.Fields(rest); len(parts) > 1 && parts[1] == strconv.Itoa(p.cmd.Process.Pid) && strings.Contains(string(line), "supervise") {
				found = pid
				return true
			}
		}
		return false
	})
	return found
}

// alive reports whether a process is there and no zombie.
func alive(pid int64) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

// broker opens the project's local lease database.
func (p *project) broker() broker.Broker {
	p.t.Helper()
	b := brokertest.OpenLocal(p.t, p.path("state/qasight/shop/leases.db"), "root")
	p.t.Cleanup(func() { _ = b.Close() })
	return b
}

// key is a key as a broker shows it; the zero value while it has none.
func key(t *testing.T, b broker.Viewer, pool, name string) client.Key {
	t.Helper()
	v, err := b.Pool(t.Context(), pool)
	if err != nil {
		return client.Key{}
	}
	for _, k := range v.Members {
		if k.Name == name {
			return k
		}
	}
	return client.Key{}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: waited for %s", what)
		}
	}
}
