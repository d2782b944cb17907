package stagecmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
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
	if err := flag.Set("test.parallel", "12"); err != nil { // they mostly wait
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// stage is a run of a stage under way.
type stage struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd

	mu       sync.Mutex
	out, err bytes.Buffer
	done     chan struct{}
}

func (s *stage) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err.Write(p)
}

func (s *stage) stderr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err.String()
}

func start(t *testing.T, file string, args ...string) *stage {
	t.Helper()
	s := &stage{t: t, dir: t.TempDir(), done: make(chan struct{})}
	if err := os.WriteFile(s.path("qasight.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	s.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{"qasight", "stage", "run"}, args...), Dir: s.dir,
		Env:    []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "XDG_STATE_HOME=" + s.dir + "/state"},
		Stdout: &s.out, Stderr: s, WaitDelay: 30 * time.Second,
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
	})
	return s
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stage) exists(name string) bool {
	_, err := os.Stat(s.path(name))
	return err == nil
}

func (s *stage) broker() broker.Broker {
	b := brokertest.OpenLocal(s.t, s.path("state/qasight/shop/leases.db"), "root")
	s.t.Cleanup(func() { _ = b.Close() })
	return b
}

// summary is what --json prints, as somebody else reads it.
type summary struct {
	Code    int `json:"code"`
	Workers []struct {
		Worker int      `json:"worker"`
		Key    string   `json:"key"`
		Code   int      `json:"code"`
		Error  string   `json:"error"`
		Unfit  []string `json:"unfit"`
	} `json:"workers"`
}

// ends waits for the end and checks the code against the summary's.
func (s *stage) ends(code int) summary {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		s.t.Fatalf("it did not end; it said %s", s.stderr())
	}
	var sum summary
	if err := json.Unmarshal(s.out.Bytes(), &sum); err != nil {
		s.t.Fatalf("%q is no summary: %v; it said %s", s.out.String(), err, s.stderr())
	}
	if got := s.cmd.ProcessState.ExitCode(); got != code || sum.Code != code {
		s.t.Errorf("it ended with %d and says %d, want %d; it said %s", got, sum.Code, code, s.stderr())
	}
	return sum
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: waited for %s", what)
		}
	}
}

// states are the states of the pool's keys.
func states(t *testing.T, b broker.Viewer) string {
	t.Helper()
	v, err := b.Pool(t.Context(), "vms")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, k := range v.Members {
		out = append(out, k.Name+" "+k.State)
	}
	return strings.Join(out, ", ")
}

const twoKeys = `project: shop
pools:
  vms:
    items: [vm-1, vm-2]
    lease_ttl: 1m
    on_reset: echo "$QASIGHT_KEY" >>resets
stages:
  ui:
    pool: vms
    workers: 3
    command: 'trap "echo \$QASIGHT_WORKER >>got; exit 3\$QASIGHT_WORKER" TERM; echo $PPID >super-$QASIGHT_KEY; touch ready-$QASIGHT_WORKER; while :; do sleep 0.02; done'
`

func (s *stage) ready() (n int) {
	files, _ := filepath.Glob(s.path("ready-*"))
	return len(files)
}

// A signal reaches every worker that runs, and ends the one that waits; keys are
// reset and given back.
func TestStageSignals(t *testing.T) {
	t.Parallel()
	s := start(t, twoKeys, "ui", "--json")
	eventually(t, "two workers run", func() bool { return s.ready() == 2 })
	b := s.broker()
	eventually(t, "the third one waits", func() bool {
		w, err := b.Waiters(t.Context(), "vms")
		return err == nil && len(w) == 1 && strings.HasSuffix(w[0].Holder, "of 3)")
	})
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	sum := s.ends(128 + 15)
	ran := 0
	for i, w := range sum.Workers {
		switch {
		case w.Worker != i+1:
			t.Errorf("worker %d is told as %d", i+1, w.Worker)
		case w.Key == "" && w.Code == 128+15 && strings.Contains(w.Error, "no key is held"):
		case w.Key != "" && w.Code == 30+w.Worker && w.Error == "":
			ran++
		default:
			t.Errorf("worker %d ended with %+v", i+1, w)
		}
	}
	got, _ := os.ReadFile(s.path("got"))
	resets, _ := os.ReadFile(s.path("resets"))
	if ran != 2 || len(strings.Fields(string(got))) != 2 || len(strings.Fields(string(resets))) != 2 {
		t.Errorf("%d ran, %q got the signal, %q were reset", ran, got, resets)
	}
	if st := states(t, b); st != "vm-1 free, vm-2 free" {
		t.Errorf("in the end: %s", st)
	}
}

// A worker whose supervisor is killed with -9 has 137; its key is reset and given
// back, and the others go on.
func TestStageSupervisorKilled(t *testing.T) {
	t.Parallel()
	s := start(t, strings.Replace(twoKeys, "while :; do", "while ! test -e go; do", 1), "ui", "--json", "--workers", "2")
	eventually(t, "both run", func() bool { return s.ready() == 2 })
	raw, err := os.ReadFile(s.path("super-vm-1"))
	if err != nil {
		t.Fatal(err)
	}
	super, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	line, err := os.ReadFile("/proc/" + strconv.Itoa(super) + "/cmdline")
	if err != nil || !strings.Contains(string(line), "supervise") {
		t.Fatalf("%d is no supervisor: %q, %v", super, line, err)
	}
	if err := syscall.Kill(super, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b := s.broker()
	eventually(t, "its key is free", func() bool { return states(t, b) == "vm-1 free, vm-2 held" })
	if resets, _ := os.ReadFile(s.path("resets")); string(resets) != "vm-1\n" {
		t.Errorf("%q were reset", resets)
	}
	if err := os.WriteFile(s.path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range s.ends(137).Workers {
		if want := map[string]int{"vm-1": 137, "vm-2": 0}[w.Key]; w.Code != want {
			t.Errorf("the worker on %s ended with %d, want %d", w.Key, w.Code, want)
		}
	}
}

// When the stage itself is killed with -9, its workers' commands are ended, and
// the keys stay held until their leases end.
func TestStageKilled(t *testing.T) {
	t.Parallel()
	s := start(t, strings.Replace(twoKeys, "while :; do", "while :; do touch beat-$QASIGHT_KEY;", 1), "ui", "--json", "--workers", "2")
	eventually(t, "both run", func() bool { return s.ready() == 2 })
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.done
	for _, key := range []string{"vm-1", "vm-2"} {
		raw, err := os.ReadFile(s.path("super-" + key))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the supervisor has ended", func() bool {
			stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(raw)) + "/stat")
			_, rest, _ := strings.Cut(string(stat), ") ")
			return err != nil || rest == "" || rest[0] == 'Z'
		})
	}
	if st := states(t, s.broker()); st != "vm-1 held, vm-2 held" || s.exists("resets") {
		t.Errorf("after the kill: %s; reset: %v", st, s.exists("resets"))
	}
}

// A worker whose lease an admin ends has 76, and the highest code is the stage's.
func TestStageForced(t *testing.T) {
	t.Parallel()
	s := start(t, strings.Replace(twoKeys, "while :; do", "while ! test -e go; do", 1), "ui", "--json", "--workers", "2")
	eventually(t, "both run", func() bool { return s.ready() == 2 })
	b := s.broker()
	if _, err := b.Force(t.Context(), "vms", "vm-2", client.ForceRequest{Reason: "needed"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told", func() bool {
		return strings.Contains(s.stderr(), "vm-2] qasight: the command was stopped, since lease vm-2~")
	})
	if err := os.WriteFile(s.path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range s.ends(76).Workers {
		if want := map[string]int{"vm-1": 0, "vm-2": 76}[w.Key]; w.Code != want || (w.Error != "") != (want != 0) {
			t.Errorf("the worker on %s ended with %d (%s), want %d", w.Key, w.Code, w.Error, want)
		}
	}
	if st := states(t, b); st != "vm-1 free, vm-2 needs-reset" {
		t.Errorf("in the end: %s", st)
	}
}
