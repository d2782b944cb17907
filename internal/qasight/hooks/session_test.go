package hooks_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/hooks"
)

// A command runs with the key in its environment, and its code is its own.
func TestRun(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "", "a")
	s := b.acquire()
	defer b.giveBack(s)
	c := b.shell(`echo "$QASIGHT_KEY $QASIGHT_POOL $QASIGHT_LEASE $QASIGHT_FENCE"; exit 42`)
	c.Env = append(c.Env, "QASIGHT_KEY=of-an-outer-run")
	r, err := s.Run(t.Context(), c, nil)
	b.must(err)
	if want := "a vms " + s.Info().ID + " " + strconv.FormatInt(s.Info().Fence, 10) + "\n"; r.Output != want || r.Code != 42 {
		t.Errorf("it printed %q and ended with %d, want %q, 42", r.Output, r.Code, want)
	}
}

// What cannot start has the code that a shell gives it.
func TestRunCannotStart(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "", "a")
	s := b.acquire()
	defer b.giveBack(s)
	b.touch("plain")
	for name, tc := range map[string]struct {
		reason string
		args   []string
		code   int
	}{
		"unknown":        {"no folder of PATH has it", []string{"no-such-program"}, 127},
		"no file":        {"the path leads nowhere", []string{"./no-such-file"}, 127},
		"not executable": {"it may not be run", []string{"./plain"}, 126},
		"in PATH":        {"it is there and may not be run", []string{"plain"}, 126},
		"a folder":       {"nobody runs a folder", []string{"/"}, 126},
		"no text":        {"NUL cannot be passed", []string{"echo", "a\x00b"}, 126},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := s.Run(t.Context(), proc.Command{Args: tc.args, Dir: b.dir, Env: []string{"PATH=" + os.Getenv("PATH") + ":" + b.dir}}, nil)
			if r.Code != tc.code || fault.CodeOf(err) != proc.CodeStart {
				t.Errorf("%s: code %d, %v", tc.reason, r.Code, err)
			}
		})
	}
}

// Every signal reaches the command's whole group, but for a broken pipe of ours.
func TestRunPassesSignals(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "", "a")
	s := b.acquire()
	defer b.giveBack(s)
	signals := make(chan os.Signal, 8)
	go func() {
		eventually(t, "the command listens", func() bool { return b.exists("ready") })
		signals <- syscall.SIGPIPE
		signals <- syscall.SIGUSR1
		eventually(t, "both got it", func() bool { return b.exists("usr1-child") && b.exists("usr1-parent") })
		signals <- syscall.SIGTERM
	}()
	r, err := s.Run(t.Context(), b.shell(`trap 'touch pipe' PIPE
trap 'touch usr1-parent' USR1
sh -c "trap 'touch usr1-child' USR1; touch ready; while :; do sleep 0.02; done" &
while :; do sleep 0.02; done`), signals)
	b.must(err)
	if r.Code != 128+15 || r.Signal != syscall.SIGTERM || b.exists("pipe") {
		t.Errorf("it ended with %+v; a broken pipe of ours reached it: %v", r, b.exists("pipe"))
	}
}

// The command lives as long as its lease is renewed, far beyond the lease's time.
func TestRunIsRenewed(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "", "a")
	b.runner.Pool.TTL = 8 * time.Second
	s := b.acquire()
	r, err := s.Run(t.Context(), b.shell("sleep 9; echo done"), nil)
	b.must(err)
	if r.Output != "done\n" || r.Code != 0 {
		t.Errorf("it ended with %+v", r)
	}
	if got := b.state("a"); got != "held" {
		t.Errorf("the key is %s", got)
	}
	b.giveBack(s)
}

// Once an admin ended the lease, the command is ended soon, long before a renewal
// would have told, and the key is left alone.
func TestRunForced(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "touch reset", "a")
	s := b.acquire()
	forced := make(chan time.Time, 1)
	go func() {
		eventually(t, "the command runs", func() bool { return b.exists("ready") })
		if _, err := b.broker.Force(t.Context(), "vms", "a", client.ForceRequest{Reason: "needed"}); err != nil {
			t.Error(err)
		}
		forced <- time.Now()
	}()
	r, err := s.Run(t.Context(), b.shell("trap '' TERM; touch ready; while :; do date +%s%N >new; mv new beat; sleep 0.02; done"), nil)
	took := time.Since(<-forced)
	has(t, err, fault.Conflict, "lease_forced")
	if took > 5*time.Second || r.Signal != syscall.SIGKILL || r.Ended != proc.EndedStop {
		t.Errorf("a command that ignores TERM ended after %s with %+v", took, r)
	}
	if !strings.Contains(err.Error(), "lease "+s.Info().ID+" of a was lost after it was kept for") {
		t.Errorf("the error is %q", err)
	}
	back, err := s.Return(t.Context(), hooks.Use{})
	has(t, err, fault.Conflict, "lease_forced")
	if back.Done || b.exists("reset") || b.state("a") != "needs-reset" {
		t.Errorf("a key that somebody else may have was touched: %+v, %s", back, b.state("a"))
	}
	if r, err := s.Run(t.Context(), b.shell("touch again"), nil); !isLease(err) || b.exists("again") || r.Code != 126 {
		t.Errorf("a command ran without a lease: %+v, %v", r, err)
	}
}

func isLease(err error) bool { return strings.HasPrefix(fault.CodeOf(err), "lease") }

// A command whose lease cannot be renewed is ended before the lease ends, by the
// broker's own clock.
func TestRunOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "touch reset", "a")
	b.runner.Pool.TTL = 5 * time.Second
	s := b.acquire()
	began := time.Now()
	b.memory.Outage(true)
	r, err := s.Run(t.Context(), b.shell("trap '' TERM; while :; do date +%s%N >new; mv new beat; sleep 0.02; done"), nil)
	took := time.Since(began)
	has(t, err, fault.Conflict, "lease_expired")
	if r.Signal != syscall.SIGKILL || took < 3*time.Second {
		t.Errorf("it ended after %s with %+v", took, r)
	}
	last, convErr := strconv.ParseInt(strings.TrimSpace(b.file("beat")), 10, 64)
	b.must(convErr)
	if beat := time.Unix(0, last).Sub(began); beat > 5*time.Second {
		t.Errorf("the command lived for %s of a lease of 5s", beat)
	}
	if !strings.Contains(err.Error(), "could not be renewed") {
		t.Errorf("the error is %q", err)
	}
	if _, err := s.Return(t.Context(), hooks.Use{}); !isLease(err) || b.exists("reset") {
		t.Errorf("it was reset, or %v", err)
	}
}

// An outage that ends in time is no more than an outage.
func TestRunShortOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "", "a")
	b.runner.Pool.TTL = 9 * time.Second
	s := b.acquire()
	go func() {
		b.memory.Outage(true)
		eventually(t, "it lasted a while", func() bool { return b.exists("third") })
		b.memory.Outage(false)
	}()
	r, err := s.Run(t.Context(), b.shell("sleep 3; touch third; sleep 7; echo done"), nil)
	b.must(err)
	if r.Output != "done\n" {
		t.Errorf("it ended with %+v", r)
	}
	b.giveBack(s)
}

// When the broker comes back after the command was ended for want of a renewal,
// the key does not stay held for nobody.
func TestRunOutageEndsLate(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "touch reset", "a")
	b.runner.Pool.TTL = 8 * time.Second
	s := b.acquire()
	b.memory.Outage(true)
	go func() {
		eventually(t, "it is told to end", func() bool { return b.exists("told") })
		b.memory.Outage(false)
	}()
	_, err := s.Run(t.Context(), b.shell("trap 'touch told; sleep 0.5; exit 0' TERM; while :; do sleep 0.02; done"), nil)
	has(t, err, fault.Conflict, "lease_expired")
	if _, err := s.Return(t.Context(), hooks.Use{}); !isLease(err) || b.exists("reset") {
		t.Errorf("the key was touched, or %v", err)
	}
	if got := b.state("a"); got != "needs-reset" {
		t.Errorf("the key is %s", got)
	}
}

// Return resets, and gives back what it can say for sure.
func TestReturn(t *testing.T) {
	told := errors.New("told to end")
	for name, tc := range map[string]struct {
		reason string
		reset  string
		use    hooks.Use
		soiled bool
		until  string // a file whose appearance ends the return
		state  string
		failed string // of Returned.Reset
		err    error
		code   string
		ran    bool
	}{
		"no hook":   {reason: "there is nothing to reset", state: "free"},
		"reset":     {reason: "a used key is reset before it is free", reset: "touch ran", state: "free", ran: true},
		"failed":    {reason: "a failed reset leaves the need of one", reset: "touch ran; echo stuck; exit 3", state: "needs-reset", failed: "on_reset ended with exit code 3: stuck", ran: true},
		"no script": {reason: "a hook that cannot start is no failure of the key's", reset: "./nope", state: "needs-reset", code: hooks.CodeHook},
		"stopped":   {reason: "nor is one that a person stopped", reset: "touch ran; sleep 600", until: "ran", state: "needs-reset", err: told, ran: true},
		"unused":    {reason: "what nobody used needs no reset", reset: "touch ran", use: hooks.Use{Unused: true}, state: "free"},
		"broken":    {reason: "a broken key is not reset", reset: "touch ran", use: hooks.Use{Outcome: "broken", Reason: "smoke\nfire"}, state: "disabled: smoke fire"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", tc.reset, "a", "b", "c")
			s := b.acquire()
			ctx := t.Context()
			if tc.until != "" {
				ctx = b.until(tc.until, told)
			}
			back, err := s.Return(ctx, tc.use)
			if tc.err != nil && !errors.Is(err, tc.err) || tc.code != fault.CodeOf(err) && tc.err == nil {
				t.Errorf("%s: it ended with %v", tc.reason, err)
			}
			if got := b.state("a"); got != tc.state || b.exists("ran") != tc.ran {
				t.Errorf("%s: the key is %q, want %q; on_reset ran: %v", tc.reason, got, tc.state, b.exists("ran"))
			}
			failed := ""
			if back.Reset != nil {
				failed = back.Reset.Text
			}
			if failed != tc.failed || !back.Done {
				t.Errorf("%s: %+v, failed %q", tc.reason, back, failed)
			}
		})
	}
}

// A reset that people stopped is not one of the three failures that take a key out
// of use.
func TestReturnIsStopped(t *testing.T) {
	t.Parallel()
	told := errors.New("told to end")
	b := newBench(t, "", `if test -e fails; then echo failed >>log; exit 1; fi; touch ran; sleep 600`, "a")
	s := b.acquire()
	if _, err := s.Return(b.until("ran", told), hooks.Use{}); !errors.Is(err, told) {
		t.Errorf("it ended with %v", err)
	}
	if got := b.state("a"); got != "needs-reset" {
		t.Errorf("the key is %s", got)
	}
	b.touch("fails")
	_, err := b.runner.Acquire(t.Context(), hooks.TakeOptions{})
	has(t, err, fault.Permanent, hooks.CodeChecks)
	if n := strings.Count(b.file("log"), "failed"); n != 3 {
		t.Errorf("it was taken out of use after %d failed resets", n)
	}
}

// While on_reset runs, the key shows as resetting and stays held however long it
// takes; nobody gets it in the middle of it.
func TestReturnHoldsTheKey(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "touch resetting; while ! test -e go; do sleep 0.02; done", "a")
	b.runner.Pool.TTL = 5 * time.Second
	b.runner.Timeout = time.Minute
	s := b.acquire()
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := s.Return(t.Context(), hooks.Use{})
		done <- err
	}()
	eventually(t, "it resets", func() bool { return b.exists("resetting") })
	if got := b.state("a"); got != "resetting" {
		t.Errorf("the key is %s", got)
	}
	eventually(t, "the lease's first time is over", func() bool { return time.Since(began) > 6*time.Second })
	if _, err := b.broker.Take(t.Context(), "vms", client.TakeOptions{RunsHooks: true}); fault.CodeOf(err) != "none_free" {
		t.Errorf("a key was taken while it was reset: %v", err)
	}
	b.touch("go")
	b.must(<-done)
	if got := b.state("a"); got != "free" {
		t.Errorf("the key is %s", got)
	}
}

// A key that is lost during its reset is let go of.
func TestReturnLosesKey(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "touch ran; sleep 600", "a")
	s := b.acquire()
	go func() {
		eventually(t, "it resets", func() bool { return b.exists("ran") })
		if _, err := b.broker.Force(t.Context(), "vms", "a", client.ForceRequest{Reason: "needed"}); err != nil {
			t.Error(err)
		}
	}()
	back, err := s.Return(t.Context(), hooks.Use{})
	has(t, err, fault.Conflict, "lease_forced")
	if back.Done || b.state("a") != "needs-reset" {
		t.Errorf("it was given back: %+v, %s", back, b.state("a"))
	}
}

// What cannot be given back is told, with when it ends by itself.
func TestReturnOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "touch ran", "a")
	s := b.acquire()
	b.memory.Outage(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that it is not tried for long
	back, err := s.Return(ctx, hooks.Use{})
	if fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "a could not be given back; lease a~") || back.Done {
		t.Errorf("it ended with %+v, %v", back, err)
	}
}

// A lease goes from one process to another, and is released there.
func TestDetachAndResume(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "touch ran", "a")
	s := b.acquire()
	id, secret := s.Info().ID, s.Secret()
	b.memory.Leases.Advance(20 * time.Second)
	b.must(s.Detach(t.Context()))
	if s.Left() < 29*time.Second {
		t.Errorf("%s are left of a lease that was renewed for 30s", s.Left())
	}
	later, err := b.runner.Resume(t.Context(), id, secret)
	b.must(err)
	b.giveBack(later)
	if !b.exists("ran") || b.state("a") != "free" {
		t.Errorf("the key is %s; reset: %v", b.state("a"), b.exists("ran"))
	}
	_, err = b.runner.Resume(t.Context(), id, secret)
	has(t, err, fault.Conflict, "lease_released")

	s = b.acquire()
	_, err = b.broker.Force(t.Context(), "vms", "a", client.ForceRequest{Reason: "needed"})
	b.must(err)
	has(t, s.Detach(t.Context()), fault.Conflict, "lease_forced")
}

// A team server is as good as the local database, and its death is seen in time.
func TestServerDies(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "", "a")
	server, _ := b.memory.Serve(t)
	admin := server.Open(t, "root", nil)
	defer admin.Close()
	p := b.runner.Pool
	p.TTL = 5 * time.Second
	_, err := admin.Publish(t.Context(), p, nil)
	b.must(err)
	remote := server.Open(t, "ann", nil)
	defer remote.Close()
	b.runner.Broker = remote
	began := time.Now()
	s := b.acquire()
	go func() {
		eventually(t, "the command runs", func() bool { return b.exists("ready") })
		server.Stop()
	}()
	r, err := s.Run(t.Context(), b.shell("trap '' TERM; touch ready; while :; do sleep 0.02; done"), nil)
	if took := time.Since(began); took > 8*time.Second || r.Signal != syscall.SIGKILL {
		t.Errorf("it ended after %s with %+v", took, r)
	}
	has(t, err, fault.Conflict, "lease_expired")
	_, err = s.Return(t.Context(), hooks.Use{})
	has(t, err, fault.Conflict, "lease_expired")
}

// Nothing that prints a session shows its secret.
func TestSecretIsNotShown(t *testing.T) {
	t.Parallel()
	b := newBench(t, "env", "env; false", "a")
	s := b.acquire()
	secret := string(s.Secret())
	r, err := s.Run(t.Context(), b.shell("env; ps -ef 2>/dev/null; tr '\\0' '\\n' </proc/$PPID/cmdline; tr '\\0' '\\n' </proc/$PPID/environ"), nil)
	b.must(err)
	back := b.giveBack(s)
	all := r.Output + b.printed() + b.words() + back.Reset.String()
	if len(secret) < 20 || strings.Contains(all, secret) {
		t.Errorf("the secret is in %s", all)
	}
	var _ broker.Leaser = b.broker
	files, err := filepath.Glob(filepath.Join(b.dir, "*"))
	if err != nil || len(files) != 0 {
		t.Errorf("files were left: %v, %v", files, err)
	}
}
