package hooks_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/hooks"
)

// What an acquisition does, told by what the hooks wrote, which key it is, and what
// became of the keys.
func TestAcquire(t *testing.T) {
	const (
		check = `echo "check $QASIGHT_KEY" >>log; if test -e "bad-$QASIGHT_KEY"; then echo "no route to $QASIGHT_KEY"; exit 4; fi`
		reset = `echo "reset $QASIGHT_KEY" >>log; if test -e "stuck-$QASIGHT_KEY"; then echo "it hangs"; exit 5; fi`
	)
	for name, tc := range map[string]struct {
		reason       string
		check, reset string
		items        []string
		soiled       bool     // all keys
		files        []string // what hooks look at
		key          string   // "" for an error
		class        fault.Class
		code         string
		log          []string
		states       []string // of the items
		words        []string // what the person is told, or the error
	}{
		"no hooks": {
			reason: "a pool without hooks hands a key out as it is", items: []string{"a"},
			key: "a", states: []string{"held"},
		},
		"checked": {
			reason: "a key is checked before its use", check: check, items: []string{"a"},
			key: "a", log: []string{"check a"}, states: []string{"held"},
		},
		"clean": {
			reason: "a key that needs no reset gets none", check: check, reset: reset, items: []string{"a"},
			key: "a", log: []string{"check a"}, states: []string{"held"},
		},
		"soiled": {
			reason: "one that needs it is reset, and then checked", check: check, reset: reset, items: []string{"a"}, soiled: true,
			key: "a", log: []string{"reset a", "check a"}, states: []string{"held"},
		},
		"one bad": {
			reason: "a key that fails goes out of use with the check's output, and the next one is taken",
			check:  check, items: []string{"a", "b", "c", "d", "e", "f"}, files: []string{"bad-a", "bad-b"},
			key: "c", log: []string{"check a", "check b", "check c"},
			states: []string{
				"disabled: on_check ended with exit code 4: no route to a", "disabled: on_check ended with exit code 4: no route to b", "held",
				"free", "free", "free",
			},
			words: []string{"a: on_check ended with exit code 4: no route to a: it was taken out of use; taking another key"},
		},
		"capped": {
			reason: "checks may take a third of a pool out of use, and no more; then the run fails, and says what they found",
			check:  check, items: []string{"a", "b", "c"}, files: []string{"bad-a", "bad-b", "bad-c"},
			class: fault.Permanent, code: hooks.CodeChecks, log: []string{"check a", "check b"},
			states: []string{"disabled: on_check ended with exit code 4: no route to a", "free", "free"},
			words:  []string{"a: on_check ended", "b: on_check ended with exit code 4: no route to b", "no more may be taken out of use", "qasight pool enable vms KEY"},
		},
		"the only one": {
			reason: "with every key out of use nobody waits for one", check: check, items: []string{"a"}, files: []string{"bad-a"},
			class: fault.Permanent, code: hooks.CodeChecks, log: []string{"check a"},
			states: []string{"disabled: on_check ended with exit code 4: no route to a"},
			words:  []string{"every key of vms is out of use by now", "no route to a"},
		},
		"reset fails": {
			reason: "a key whose reset fails is given back as such; after three in a row it is out of use",
			reset:  reset, items: []string{"a"}, soiled: true, files: []string{"stuck-a"},
			class: fault.Permanent, code: hooks.CodeChecks, log: []string{"reset a", "reset a", "reset a"},
			states: []string{"disabled: three resets in a row failed: on_reset ended with exit code 5: it hangs"},
			words:  []string{"it stays in need of a reset; taking another key", "after three that failed, was taken out of use", "a: on_reset ended with exit code 5"},
		},
		"reset fails, another": {
			reason: "another key is taken where there is one", check: check, reset: reset, items: []string{"a", "b"}, soiled: true, files: []string{"stuck-a"},
			key: "b", log: []string{"reset a", "reset b", "check b"}, states: []string{"needs-reset", "held"},
		},
		"no such check": {
			reason: "a script that cannot start is the file's fault: the key is unharmed, and the run ends",
			check:  "./nope.sh", items: []string{"a", "b"},
			class: fault.Invalid, code: hooks.CodeHook, states: []string{"free", "free"},
			words: []string{"qasight.yaml:3:3: pool vms: on_check cannot be started (exit code 127)", "nope.sh", "chmod +x"},
		},
		"check after a reset cannot start": {
			reason: "a key that was reset since needs none", check: "./nope.sh", reset: reset, items: []string{"a"}, soiled: true,
			class: fault.Invalid, code: hooks.CodeHook, log: []string{"reset a"}, states: []string{"free"},
			words: []string{"on_check cannot be started"},
		},
		"no such reset": {
			reason: "one that was not reset still needs it", reset: "exit 126", items: []string{"a"}, soiled: true,
			class: fault.Invalid, code: hooks.CodeHook, states: []string{"needs-reset"},
			words: []string{"on_reset cannot be started (exit code 126): it printed nothing"},
		},
		"killed": {
			reason: "a check that a signal ended failed", check: "kill -9 $$", items: []string{"a"},
			class: fault.Permanent, code: hooks.CodeChecks,
			states: []string{"disabled: on_check was ended by a signal (killed)"},
			words:  []string{"signal (killed)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, tc.check, tc.reset, tc.items...)
			if tc.soiled {
				b.soil(tc.items...)
			}
			for _, f := range tc.files {
				b.touch(f)
			}
			s, err := b.runner.Acquire(t.Context(), hooks.TakeOptions{Holder: "test"})
			words := b.words()
			if err != nil {
				words += "\n" + err.Error()
				has(t, err, tc.class, tc.code)
			} else if s.Key() != tc.key {
				t.Errorf("%s: it is key %q, want %q", tc.reason, s.Key(), tc.key)
			}
			if (err == nil) != (tc.key != "") {
				t.Errorf("%s: it ended with %v", tc.reason, err)
			}
			for _, w := range tc.words {
				if !strings.Contains(words, w) {
					t.Errorf("%s: %q is not in what was said:\n%s", tc.reason, w, words)
				}
			}
			log := strings.Split(strings.TrimSpace(b.file("log")), "\n")
			if len(tc.log) == 0 {
				tc.log = []string{""}
			}
			if diff := cmp.Diff(tc.log, log); diff != "" {
				t.Errorf("%s: the hooks that ran: %s", tc.reason, diff)
			}
			var states []string
			for _, k := range tc.items {
				states = append(states, b.state(k))
			}
			if diff := cmp.Diff(tc.states, states); diff != "" {
				t.Errorf("%s: the keys: %s", tc.reason, diff)
			}
			if s != nil {
				b.giveBack(s)
			}
		})
	}
}

// A hook that hangs is ended with its whole group at its timeout, and that is a
// failure.
func TestHookTimeout(t *testing.T) {
	t.Parallel()
	b := newBench(t, `echo "trying"; sleep 600 & sleep 600`, "", "a")
	b.runner.Timeout = 300 * time.Millisecond
	began := time.Now()
	_, err := b.runner.Acquire(t.Context(), hooks.TakeOptions{})
	has(t, err, fault.Permanent, hooks.CodeChecks)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if got, want := b.state("a"), "disabled: on_check did not end within 300ms and was stopped: trying"; got != want {
		t.Errorf("the key is %q, want %q", got, want)
	}
}

// A hook sees the key, which hook it is, and nothing on its input; what it prints
// is passed on as it is.
func TestHookEnvironment(t *testing.T) {
	t.Parallel()
	const show = `echo "$QASIGHT_HOOK $QASIGHT_KEY $QASIGHT_POOL $QASIGHT_LEASE $QASIGHT_FENCE [$(cat)]" | tee -a env; echo "$HOSTILE"`
	b := newBench(t, show, show, "a")
	b.runner.Env = append(b.runner.Env, "HOSTILE=$(touch spliced) `touch spliced`", "QASIGHT_KEY=other")
	b.soil("a")
	s, err := b.runner.Acquire(t.Context(), hooks.TakeOptions{Holder: "$(touch spliced)"})
	b.must(err)
	id, fence := s.Info().ID, strings.TrimPrefix(s.Info().ID, "a~")
	b.giveBack(s)
	line := " a vms " + id + " " + fence + " []\n"
	if got, want := b.file("env"), "reset"+line+"check"+line+"reset"+line; got != want {
		t.Errorf("hooks saw %q, want %q", got, want)
	}
	if got := b.printed(); strings.Count(got, "$(touch spliced) `touch spliced`\n") != 3 {
		t.Errorf("hooks printed %q", got)
	}
	if _, err := b.broker.Lease(t.Context(), id); err != nil {
		t.Error(err)
	}
	if b.exists("spliced") {
		t.Error("a text was run")
	}
	// The broker refuses what could break a line, before any hook runs.
	_, err = b.runner.Acquire(t.Context(), hooks.TakeOptions{Holder: "two\nlines"})
	has(t, err, fault.Invalid, "text")
}

// A secret in a hook's output is hidden in the reason that everybody sees.
func TestReasonHidesSecrets(t *testing.T) {
	t.Parallel()
	b := newBench(t, `echo "login with $PASSWORD failed"; exit 1`, "", "a")
	b.runner.Env = append(b.runner.Env, "PASSWORD=s3cret-w0rd")
	b.runner.Hide = []string{"s3cret-w0rd"}
	_, err := b.runner.Acquire(t.Context(), hooks.TakeOptions{})
	if got := b.state("a"); strings.Contains(got, "w0rd") || !strings.Contains(got, "login with *** failed") {
		t.Errorf("the reason is %q", got)
	}
	if err == nil || strings.Contains(err.Error()+b.words(), "w0rd") {
		t.Errorf("the person was told %v, %s", err, b.words())
	}
}

// Whoever ends the wait for a fit key gets no key, and nobody else loses one.
func TestAcquireIsEnded(t *testing.T) {
	told := errors.New("told to end")
	t.Run("during the check", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, "touch running; sleep 600", "true", "a")
		_, err := b.runner.Acquire(b.until("running", told), hooks.TakeOptions{})
		if !errors.Is(err, told) {
			t.Errorf("it ended with %v", err)
		}
		if got := b.state("a"); got != "free" {
			t.Errorf("the key is %s: it was neither used nor found broken", got)
		}
	})
	t.Run("during the reset", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, "", "touch running; sleep 600", "a")
		b.soil("a")
		for range 4 {
			_ = os.Remove(filepath.Join(b.dir, "running"))
			_, err := b.runner.Acquire(b.until("running", told), hooks.TakeOptions{})
			if !errors.Is(err, told) {
				t.Errorf("it ended with %v", err)
			}
		}
		if got := b.state("a"); got != "needs-reset" {
			t.Errorf("the key is %s: it needs its reset, and none of its resets failed", got)
		}
	})
	t.Run("in the queue", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, "", "", "a")
		s := b.acquire()
		defer b.giveBack(s)
		waiting := make(chan struct{})
		_, err := b.runner.Acquire(b.until("go", told), hooks.TakeOptions{Wait: -1, Holder: "second", Waiting: func(ctx context.Context) {
			eventually(t, "the waiter stands in line", func() bool {
				w, err := b.broker.Waiters(t.Context(), "vms")
				return err == nil && len(w) == 1 && w[0].Holder == "second"
			})
			b.touch("go")
			<-ctx.Done()
			close(waiting)
		}})
		if !errors.Is(err, told) {
			t.Errorf("it ended with %v", err)
		}
		<-waiting
	})
}

// One wait bounds all tries together, and what was tried is told.
func TestWaitIsOne(t *testing.T) {
	t.Parallel()
	b := newBench(t, `sleep 2; test "$QASIGHT_KEY" != a`, "", "a", "b", "c")
	other := b.memory.Harness().Open(t, "bob")
	defer other.Close()
	b.must(b.broker.Prepare(t.Context(), b.runner.Pool))
	// Keys go out in turn: a comes back, and b and c are bob's.
	for _, key := range []string{"a", "b", "c"} {
		l, err := other.Take(t.Context(), "vms", client.TakeOptions{RunsHooks: true, Holder: "bob's job"})
		b.must(err)
		if l.Key() != key {
			t.Fatalf("the first key is %s, want %s", l.Key(), key)
		}
	}
	_, err := b.broker.Force(t.Context(), "vms", "a", client.ForceRequest{Reason: "hung"})
	b.must(err)
	began := time.Now()
	_, err = b.runner.Acquire(t.Context(), hooks.TakeOptions{Wait: 3 * time.Second})
	if took := time.Since(began); took < 2900*time.Millisecond || took > 4500*time.Millisecond {
		t.Errorf("a wait of three seconds took %s", took)
	}
	e, ok := hooks.IsNoneFree(err)
	if !ok || len(e.Holders) != 2 || e.Holders[0].Holder != "bob's job" {
		t.Fatalf("it ended with %v", err)
	}
	has(t, err, fault.Quota, "none_free")
	if !strings.Contains(err.Error(), "tried before: a: on_check ended with exit code 1") {
		t.Errorf("the first try is not told: %v", err)
	}
}

// A store that does not answer is no pool without keys.
func TestAcquireOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "", "a")
	b.memory.Outage(true)
	_, err := b.runner.Acquire(t.Context(), hooks.TakeOptions{})
	if class := fault.Of(err); class != fault.Unavailable {
		t.Errorf("it ended with %v (%s)", err, class)
	}
}

// A key that is lost while it is made fit for use is left alone, and another is
// taken.
func TestAcquireLosesKey(t *testing.T) {
	t.Parallel()
	b := newBench(t, `if mkdir first 2>/dev/null; then sleep 600; fi`, "", "a", "b")
	forced := make(chan error, 1)
	go func() {
		eventually(t, "the first check runs", func() bool { return b.exists("first") })
		_, err := b.broker.Force(t.Context(), "vms", "a", client.ForceRequest{Reason: "hung"})
		forced <- err
	}()
	s, err := b.runner.Acquire(t.Context(), hooks.TakeOptions{})
	b.must(<-forced)
	b.must(err)
	defer b.giveBack(s)
	if s.Key() != "b" || !strings.Contains(b.words(), "was ended by an admin") {
		t.Errorf("it has %s, and was told %q", s.Key(), b.words())
	}
	if got := b.state("a"); got != "free" {
		t.Errorf("the lost key is %s", got)
	}
}

// Two checkouts of one project share a local database. A run gets no key that only
// the other one lists, and its hooks never run on one.
func TestAcquireTakesKeysOfItsOwnFileOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t, `echo "check $QASIGHT_KEY" >>log`, `echo "reset $QASIGHT_KEY" >>log`, "a")
	first := b.acquire()
	theirs := b.runner.Pool
	theirs.Items = []string{"b"}
	got := make(chan *hooks.Session, 1)
	go func() {
		s, err := b.runner.Acquire(t.Context(), hooks.TakeOptions{Holder: "waits", Wait: 30 * time.Second})
		if err != nil {
			t.Error(err)
		}
		got <- s
	}()
	waits := func() bool {
		v, err := b.broker.Pool(t.Context(), "vms")
		return err == nil && v.Waiting == 1
	}
	eventually(t, "the second run waits", waits)
	b.must(b.broker.Prepare(t.Context(), theirs)) // the other checkout runs something
	eventually(t, "the second run waits for its own key again", func() bool {
		v, err := b.broker.Pool(t.Context(), "vms")
		return err == nil && v.Waiting == 1 && len(v.Published().Pool.Items) == 1 && v.Published().Pool.Items[0] == "a"
	})
	b.giveBack(first)
	s := <-got
	if s == nil {
		return
	}
	if s.Key() != "a" {
		t.Errorf("it got %s", s.Key())
	}
	b.giveBack(s)
	if log := b.file("log"); strings.Contains(log, " b") {
		t.Errorf("hooks ran on a key of another file: %s", log)
	}
}
