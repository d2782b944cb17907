package probe_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
)

// TestFactsOutliveARestart: what is known from before stands, and is dropped
// with what it was of.
func TestFactsOutliveARestart(t *testing.T) {
	known := probe.Facts{ExitIP: netip.MustParseAddr("192.0.2.1"), Leaks: "Via", Latency: 2 * time.Second, Passed: 75, Counted: true}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.exit = netip.MustParseAddr("192.0.2.2")
		l := w.start(t, probe.Options{})
		s := subject("a")
		s.Before = known
		l.Watch("p", s)
		if got := state(t, l, "p").Facts; got != known {
			t.Errorf("before the first probe: %+v", got)
		}
		after(time.Second) // the first probe, which passes in 10 ms and tells no leaks
		if got := state(t, l, "p").Facts; got != known {
			t.Errorf("one probe changes what is known: %+v", got)
		}
		s.Before = probe.Facts{}
		l.Watch("p", s)
		s.Check.Timeout = 6 * time.Second
		l.Watch("p", s)
		if got := state(t, l, "p").Facts; got != known {
			t.Errorf("the same proxy, asked otherwise: %+v", got)
		}
		s.Check.URL = "http://other.example.com/"
		l.Watch("p", s)
		if got := state(t, l, "p").Facts; got != known {
			t.Errorf("the same proxy, asked for another page: %+v", got)
		}
		s.Target.Port = 8080
		l.Watch("p", s)
		if got := state(t, l, "p").Facts; got != (probe.Facts{}) {
			t.Errorf("at another place it is another proxy: %+v", got)
		}
	})
}

// TestAnotherTimeoutKeepsTheRecord: only another test makes the record begin
// anew.
func TestAnotherTimeoutKeepsTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		l := w.start(t, probe.Options{})
		s := subject("a")
		l.Watch("p", s)
		after(20 * 30 * time.Second)
		s.Check.Timeout = 6 * time.Second
		w.set(func() { w.broken["a"] = true })
		l.Watch("p", s) // probed at once: the first failure
		after(time.Second)
		after(33 * time.Second) // the second
		if got := state(t, l, "p").Facts; got.Passed != 90 {
			t.Errorf("two failures of sixteen: %+v", got)
		}
	})
}

// TestWhatProvesNothingDoesNotCount: a dead URL is not the proxy's fault.
func TestWhatProvesNothingDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		l := w.start(t, probe.Options{})
		l.Watch("p", subject("a"))
		after(600 * time.Second)
		w.set(func() { w.broken["a"], w.control = true, health.ControlFailed })
		after(600 * time.Second)
		if got := state(t, l, "p"); got.Facts.Passed != 100 || !got.Inconclusive {
			t.Errorf("%+v", got)
		}
		w.set(func() { w.control = health.ControlPassed })
		after(600 * time.Second)
		if got := state(t, l, "p").Facts; got.Passed != 0 {
			t.Errorf("and its own failures do: %+v", got)
		}
	})
}

// TestAnExitIPForEachRequestIsNoNews: a proxy that leaves by another address
// each time would be a write of its status for each probe.
func TestAnExitIPForEachRequestIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		l := w.start(t, probe.Options{})
		exit := func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i)) }
		w.exit = exit(1)
		l.Watch("p", subject("a"))
		for i := range 40 {
			after(26 * time.Second) // no two probes are that near, but the first two
			w.set(func() { w.exit = exit(i + 2) })
		}
		if n := w.count("a"); n < 20 || len(w.changed) != 1 {
			t.Errorf("%d probes, and Changed was called %d times, want once: for the first", n, len(w.changed))
		}
		if got := state(t, l, "p").Facts.ExitIP; got != exit(1) {
			t.Errorf("exit IP %v, want that of the first answer", got)
		}
		after(66 * time.Second)
		if got := state(t, l, "p").Facts.ExitIP; got != exit(41) {
			t.Errorf("exit IP %v, want the one of the last two answers", got)
		}
	})
}
