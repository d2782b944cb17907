package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
)

const healthURL = "http://health.example.com/"

var (
	errProxy   = errors.New("the proxy failed")
	errControl = errors.New("the control failed")
)

// world is a scripted outside: which proxies work, and whether the URL does.
type world struct {
	mu       sync.Mutex
	broken   map[string]bool // by address
	control  health.Control
	exit     netip.Addr
	takes    time.Duration
	onFail   probe.Reason
	probes   map[string][]time.Time
	controls int
	busy     int
	peak     int
	changed  []string
	failures []string
}

func newWorld() *world {
	return &world{
		broken: map[string]bool{}, control: health.ControlPassed, onFail: probe.BadResponse,
		takes: 10 * time.Millisecond, probes: map[string][]time.Time{},
	}
}

func (w *world) set(f func()) { w.mu.Lock(); defer w.mu.Unlock(); f() }

func (w *world) request(ctx context.Context, t probe.Target, c probe.Check) probe.Result {
	w.mu.Lock()
	w.probes[t.Address] = append(w.probes[t.Address], time.Now())
	w.busy++
	w.peak = max(w.peak, w.busy)
	takes := w.takes
	w.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	if w.broken[t.Address] {
		return probe.Result{Reason: w.onFail, Err: errProxy, Shallow: c.URL == ""}
	}
	return probe.Result{OK: true, Reason: probe.ReasonOK, Latency: takes, ExitIP: w.exit, Shallow: c.URL == ""}
}

func (w *world) ask(context.Context, probe.Check) (health.Control, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.controls++
	if w.control == health.ControlPassed {
		return w.control, nil
	}
	return w.control, errControl
}

func (w *world) count(address string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.probes[address])
}

// start runs a loop in the bubble until the test's end.
func (w *world) start(t *testing.T, o probe.Options) *probe.Loop {
	t.Helper()
	o.Request, o.Control = w.request, w.ask
	o.Changed = func(key string) { w.set(func() { w.changed = append(w.changed, key) }) }
	o.OnFailure = func(key string) { w.set(func() { w.failures = append(w.failures, key) }) }
	l, err := probe.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return l
}

func subject(address string) probe.Subject {
	return probe.Subject{
		UID: "uid-" + address, Target: probe.Target{Address: address, Port: 3128},
		Check: probe.Check{URL: healthURL}, Interval: 30 * time.Second,
	}
}

func state(t *testing.T, l *probe.Loop, key string) probe.Snapshot {
	t.Helper()
	s, ok := l.State(key)
	if !ok {
		t.Fatalf("%s is not watched", key)
	}
	return s
}

func after(d time.Duration) { time.Sleep(d); synctest.Wait() }

// TestFirstProbeAtOnce: a new proxy waited half an hour for its first check.
// Here also when every turn of the others is long overdue.
func TestFirstProbeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.exit = netip.MustParseAddr("192.0.2.9")
		l := w.start(t, probe.Options{Concurrency: 2})
		w.takes = 5 * time.Second
		for i := range 100 { // 250 s of work for each interval of 30 s
			l.Watch(fmt.Sprint("old", i), subject(fmt.Sprint("old", i)))
		}
		after(300 * time.Second)
		l.Watch("new", subject("new"))
		if s := state(t, l, "new"); s.State != health.Unknown || s.Message != "not probed yet" {
			t.Errorf("before the first probe: %+v", s)
		}
		after(11 * time.Second) // at most one handed-out probe before it, and its own
		s := state(t, l, "new")
		if s.State != health.Healthy || s.Facts.ExitIP != w.exit || s.Checked.IsZero() || s.Since.IsZero() {
			t.Errorf("11 s later: %+v, want Healthy", s)
		}
	})
}

// TestLateCheckDoesNotReviveARemovedProxy: neither after Forget, nor as the
// verdict of a successor under the same key.
func TestLateCheckDoesNotReviveARemovedProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.takes = time.Second
		l := w.start(t, probe.Options{})
		l.Watch("p", subject("a"))
		after(500 * time.Millisecond)
		l.Forget("p")
		synctest.Wait()
		w.set(func() {
			if w.busy != 0 {
				t.Error("Forget left the probe running; it holds a worker")
			}
		})
		after(time.Minute)
		if s, ok := l.State("p"); ok {
			t.Errorf("forgotten and back: %+v", s)
		}
		if w.count("a") != 1 || len(w.changed) != 0 {
			t.Errorf("%d probes, changes %v after Forget", w.count("a"), w.changed)
		}

		l.Watch("p", subject("a"))
		after(500 * time.Millisecond)
		w.set(func() { w.broken["b"] = true })
		l.Watch("p", subject("b")) // a's probe would pass
		after(700 * time.Millisecond)
		if s := state(t, l, "p"); s.State != health.Unknown || !s.Checked.IsZero() {
			t.Errorf("the old target's answer was kept: %+v", s)
		}
	})
}

// TestStaleCountsDoNotSurvive: counts came back after deletes and restarts.
func TestStaleCountsDoNotSurvive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		l := w.start(t, probe.Options{})
		one := subject("a")
		one.Policy.FailureThreshold = 2
		l.Watch("p", one)
		after(time.Second)
		w.set(func() { w.broken["a"] = true })
		for state(t, l, "p").Reason == probe.ReasonOK {
			after(time.Second)
		}
		if s := state(t, l, "p"); s.State != health.Healthy {
			t.Fatalf("after one failure of two: %+v", s)
		}
		l.Forget("p")
		l.Watch("p", one)
		after(time.Second)
		if s := state(t, l, "p"); s.State != health.Unknown {
			t.Errorf("one failure after Forget made it %s: a count survived", s.State)
		}
		for name, change := range map[string]func(*probe.Subject){
			"UID":      func(s *probe.Subject) { s.UID = "another" },
			"password": func(s *probe.Subject) { s.Target.Password = []byte("new") },
			"address":  func(s *probe.Subject) { s.Target.Address = "b" },
		} {
			w.set(func() { w.broken["a"] = false })
			l.Forget("p")
			l.Watch("p", one)
			after(time.Second)
			next := one
			change(&next)
			l.Watch("p", next)
			if s := state(t, l, "p"); s.State != health.Unknown {
				t.Errorf("another %s kept the state %s", name, s.State)
			}
			after(time.Second)
			if s := state(t, l, "p"); s.State != health.Healthy {
				t.Errorf("another %s was not probed at once: %+v", name, s)
			}
		}
	})
}

func TestUnchangedSubjectKeepsItsSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		l := w.start(t, probe.Options{})
		l.Watch("p", subject("a"))
		for range 300 { // a reconcile each second
			after(time.Second)
			l.Watch("p", subject("a"))
		}
		if n := w.count("a"); n < 9 || n > 13 {
			t.Errorf("%d probes in 300 s at an interval of 30 s", n)
		}
		// Another URL: asked at once, and what was known stays.
		n := w.count("a")
		other := subject("a")
		other.Check.URL += "other"
		l.Watch("p", other)
		if s := state(t, l, "p"); s.State != health.Healthy {
			t.Errorf("another URL reset the state to %s", s.State)
		}
		after(time.Second)
		if got := w.count("a"); got != n+1 {
			t.Errorf("another URL: %d probes at once, want 1", got-n)
		}
		// A shorter interval does not wait for the long one's end.
		other.Interval = 2 * time.Second
		l.Watch("p", other)
		n = w.count("a")
		after(10 * time.Second)
		if got := w.count("a") - n; got < 4 || got > 6 {
			t.Errorf("%d probes in 10 s at an interval of 2 s", got)
		}
	})
}

// TestDeadCheckURLDestroysNoFleet: one dead check URL destroyed the fleet. At
// any threshold, also when the URL dies in the middle of an interval.
func TestDeadCheckURLDestroysNoFleet(t *testing.T) {
	for _, threshold := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			l := w.start(t, probe.Options{})
			const fleet = 50
			for i := range fleet {
				s := subject(fmt.Sprint("a", i))
				s.Policy.FailureThreshold = threshold
				l.Watch(fmt.Sprint("p", i), s)
			}
			after(100 * time.Second)
			w.set(func() {
				w.control = health.ControlFailed
				for i := range fleet {
					w.broken[fmt.Sprint("a", i)] = true
				}
			})
			for range 300 {
				after(time.Second)
				for i := range fleet {
					if s := state(t, l, fmt.Sprint("p", i)); s.State != health.Healthy {
						t.Fatalf("threshold %d: p%d is %s: %s", threshold, i, s.State, s.Message)
					}
				}
			}
			s := state(t, l, "p7")
			if !s.Inconclusive || !strings.HasPrefix(s.Message, "inconclusive: the proxy failed") || !strings.Contains(s.Message, errControl.Error()) {
				t.Errorf("it does not say that and why it is inconclusive: %+v", s)
			}
			// When the URL is back, a proxy that stays broken is found out.
			w.set(func() {
				w.control = health.ControlPassed
				for i := range fleet {
					w.broken[fmt.Sprint("a", i)] = i == 7
				}
			})
			after(200 * time.Second)
			if s := state(t, l, "p7"); s.State != health.Unhealthy || s.Inconclusive {
				t.Errorf("threshold %d: the broken one is %+v", threshold, s)
			}
			if s := state(t, l, "p8"); s.State != health.Healthy || s.Inconclusive {
				t.Errorf("threshold %d: a good one is %+v", threshold, s)
			}
		})
	}
}

// TestControlFailsAndOthersPass: only our own way out is closed; the proxy
// that fails where others pass is at fault.
func TestControlFailsAndOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.control = health.ControlFailed
		l := w.start(t, probe.Options{})
		for i := range 5 {
			l.Watch(fmt.Sprint("p", i), subject(fmt.Sprint("a", i)))
		}
		after(40 * time.Second)
		w.set(func() { w.broken["a3"] = true })
		after(200 * time.Second)
		if s := state(t, l, "p3"); s.State != health.Unhealthy || s.Inconclusive {
			t.Errorf("%+v, want Unhealthy", s)
		}
		if s := state(t, l, "p2"); s.State != health.Healthy {
			t.Errorf("%+v, want Healthy", s)
		}
	})
}

func TestOwnFaultNeedsNoControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.control, w.onFail = health.ControlFailed, probe.AuthRefused
		w.broken["a"] = true
		l := w.start(t, probe.Options{})
		l.Watch("p", subject("a"))
		after(200 * time.Second)
		if s := state(t, l, "p"); s.State != health.Unhealthy || w.controls != 0 {
			t.Errorf("%+v after %d controls: a dead URL excuses no 407", s, w.controls)
		}
	})
}

func TestRefusedControlIsNoFailedControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.control = health.ControlRefused
		w.broken["a"] = true
		l := w.start(t, probe.Options{})
		l.Watch("p", subject("a"))
		after(200 * time.Second)
		s := state(t, l, "p")
		if s.State != health.Unhealthy || !strings.Contains(s.Message, "no control request was made: "+errControl.Error()) {
			t.Errorf("%+v, want Unhealthy with the refusal in its message", s)
		}
	})
}

// TestStartingProxy: quick tries find it soon, and do not use up the threshold.
func TestStartingProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.broken["a"] = true
		l := w.start(t, probe.Options{})
		l.Watch("p", subject("a"))
		after(5 * time.Second)
		if s := state(t, l, "p"); s.State != health.Unknown || w.count("a") < 3 {
			t.Errorf("after 5 s and %d probes: %+v, want Unknown", w.count("a"), s)
		}
		if len(w.failures) != w.count("a") {
			t.Errorf("%d failures told of %d", len(w.failures), w.count("a"))
		}
		w.set(func() { w.broken["a"] = false })
		after(5 * time.Second)
		if s := state(t, l, "p"); s.State != health.Healthy {
			t.Errorf("5 s after it started: %+v, want Healthy", s)
		}

		w.set(func() { w.broken["b"] = true })
		l.Watch("q", subject("b"))
		after(45 * time.Second)
		if s := state(t, l, "q"); s.State != health.Unknown {
			t.Errorf("after 45 s: %s, three intervals are not over", s.State)
		}
		after(60 * time.Second)
		if s := state(t, l, "q"); s.State != health.Unhealthy {
			t.Errorf("after 105 s: %s, want Unhealthy", s.State)
		}
		n := w.count("b")
		after(300 * time.Second)
		if got := w.count("b") - n; got > 12 {
			t.Errorf("%d probes in 300 s of an Unhealthy proxy: a hot loop", got)
		}
	})
}

func TestChangedOnlyOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.exit = netip.MustParseAddr("192.0.2.1")
		l := w.start(t, probe.Options{})
		l.Watch("p", subject("a"))
		told := func(reason string, want int) {
			t.Helper()
			after(900 * time.Second)
			if len(w.changed) != want {
				t.Errorf("%s: %d calls, want %d", reason, len(w.changed), want)
			}
			w.set(func() { w.changed = nil })
		}
		told("the first verdict, then the same for 900 s", 1)
		w.set(func() { w.takes = 50 * time.Millisecond })
		told("latency alone is no change", 0)
		w.set(func() { w.takes = 600 * time.Millisecond })
		told("another step of the usual latency", 1)
		w.set(func() { w.exit = netip.MustParseAddr("192.0.2.2") })
		told("another exit IP", 1)
		w.set(func() { w.broken["a"] = true })
		told("the reason, then the state, and with it and around it the five steps of the share that passed", 6)
		w.set(func() { w.broken["a"] = false })
		told("back, and the five steps", 6)
		told("and it stays", 0)
		if s := state(t, l, "p"); s.Facts.ExitIP != w.exit {
			t.Errorf("exit IP %v, want %v", s.Facts.ExitIP, w.exit)
		}
	})
}

func TestShallowSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		l := w.start(t, probe.Options{})
		s := subject("a")
		s.Check.URL = ""
		l.Watch("p", s)
		after(time.Second)
		if s := state(t, l, "p"); s.State != health.Healthy || !s.Shallow || !strings.Contains(s.Message, "shallow") {
			t.Errorf("%+v", s)
		}
		w.set(func() { w.broken["a"] = true; w.control = health.ControlFailed })
		after(200 * time.Second)
		if s := state(t, l, "p"); s.State != health.Unhealthy || w.controls != 0 {
			t.Errorf("%+v after %d controls; there is no URL to ask", s, w.controls)
		}
	})
}

func TestRunStopsAndStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.takes = time.Hour // only cancellation ends a probe
		l, err := probe.New(probe.Options{Request: w.request, Control: w.ask, Concurrency: 1})
		if err != nil {
			t.Fatal(err)
		}
		l.Watch("p", subject("a")) // probed
		l.Watch("q", subject("b")) // handed out, waiting for the worker
		l.Watch("r", subject("c"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		synctest.Wait()
		if err := l.Run(ctx); fault.Of(err) != fault.Conflict {
			t.Errorf("a second Run: %v, want a Conflict", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s := state(t, l, "p"); s.State != health.Unknown || !s.Checked.IsZero() {
			t.Errorf("a cancelled probe was kept: %+v", s)
		}
		w.takes = time.Millisecond
		ctx, cancel = context.WithCancel(t.Context())
		go func() { done <- l.Run(ctx) }()
		after(time.Second)
		for _, key := range []string{"p", "q", "r"} {
			if s := state(t, l, key); s.State != health.Healthy {
				t.Errorf("%s after the second start: %+v", key, s)
			}
		}
		cancel()
		<-done
	})
}

func TestNewRefusesBadOptions(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := probe.New(probe.Options{Metrics: reg}); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]probe.Options{
		"concurrency":        {Concurrency: -1},
		"jitter":             {Jitter: 0.9},
		"origin":             {OwnOrigin: "nowhere"},
		"registered already": {Metrics: reg},
	} {
		if _, err := probe.New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
