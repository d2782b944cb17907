package probe_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

// site is a scripted far end behind proxies that add no time of their own. Who
// asks, with or without a proxy, sees the same.
type site struct {
	mu     sync.Mutex
	status int           // 0: it takes no connection
	takes  time.Duration // to a whole answer
	cas    *x509.CertPool
	broken map[string]probe.Reason // proxies by address
	// controls are the timeouts of the control requests that were made.
	controls []time.Duration
	probes   map[string]int
	passed   map[string]int
}

func newSite() *site {
	return &site{status: 204, takes: 10 * time.Millisecond, broken: map[string]probe.Reason{}, probes: map[string]int{}, passed: map[string]int{}}
}

func (s *site) set(f func()) { s.mu.Lock(); defer s.mu.Unlock(); f() }

// visit says how a request ends; it takes that long.
func (s *site) visit(ctx context.Context, c probe.Check) probe.Reason {
	s.mu.Lock()
	status, takes, cas := s.status, s.takes, s.cas
	s.mu.Unlock()
	if status == 0 {
		return probe.ProxyRefused
	}
	if cas != c.CAs {
		return probe.TargetTLSFailed
	}
	select {
	case <-time.After(min(takes, c.Timeout)):
	case <-ctx.Done():
		return probe.Cancelled
	}
	switch {
	case takes > c.Timeout:
		return probe.Timeout
	case status != c.ExpectedStatus:
		return probe.UnexpectedStatus
	}
	return probe.ReasonOK
}

func (s *site) request(ctx context.Context, t probe.Target, c probe.Check) probe.Result {
	s.mu.Lock()
	s.probes[t.Address]++
	reason := s.broken[t.Address]
	s.mu.Unlock()
	if reason == "" {
		reason = s.visit(ctx, c)
	}
	if reason != probe.ReasonOK {
		return probe.Result{Reason: reason, Err: fmt.Errorf("%w: %s", errProxy, reason)}
	}
	s.set(func() { s.passed[t.Address]++ })
	return probe.Result{OK: true, Reason: reason}
}

func (s *site) send(ctx context.Context, c probe.Check) (health.Control, error) {
	s.set(func() { s.controls = append(s.controls, c.Timeout) })
	if reason := s.visit(ctx, c); reason != probe.ReasonOK {
		return health.ControlFailed, fmt.Errorf("%w: %s", errControl, reason)
	}
	return health.ControlPassed, nil
}

// start runs a loop whose control requests are shared as in earnest.
func (s *site) start(t *testing.T) *probe.Loop {
	t.Helper()
	l, err := probe.New(probe.Options{Request: s.request, Control: direct(t, nil, "").Scripted(s.send).Ask})
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

// TestDeadCheckURLDestroysNoFleetBesideOneThatPasses: one dead check URL
// destroyed the fleet, because somebody with a check of their own still passed
// on that URL.
func TestDeadCheckURLDestroysNoFleetBesideOneThatPasses(t *testing.T) {
	cas := x509.NewCertPool()
	for name, tc := range map[string]struct {
		reason string
		happen func(*site)
		odd    probe.Check
	}{
		"another status": {
			"who expects 503 passes on a site that is down",
			func(s *site) { s.status = 503 },
			probe.Check{ExpectedStatus: 503},
		},
		"longer timeout": {
			"who waits a minute passes on a site that is too slow for the others",
			func(s *site) { s.takes = 20 * time.Second },
			probe.Check{Timeout: time.Minute},
		},
		"other CAs": {
			"who knows the site's new authority passes where the others cannot",
			func(s *site) { s.cas = cas },
			probe.Check{CAs: cas},
		},
	} {
		for _, threshold := range []int{1, 3} {
			t.Run(fmt.Sprint(name, threshold), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newSite()
					l := w.start(t)
					const fleet = 10
					for i := range fleet {
						s := subject(fmt.Sprint("a", i))
						s.Policy.FailureThreshold = threshold
						l.Watch(fmt.Sprint("p", i), s)
					}
					odd := subject("odd")
					odd.Check, odd.Check.URL, odd.Interval = tc.odd, healthURL, time.Second
					l.Watch("odd", odd)
					after(100 * time.Second)
					w.set(func() { tc.happen(w) })
					for range 300 {
						after(time.Second)
						for i := range fleet {
							if s := state(t, l, fmt.Sprint("p", i)); s.State != health.Healthy {
								t.Fatalf("p%d is %s: %s\n%s", i, s.State, s.Message, tc.reason)
							}
						}
					}
					if s := state(t, l, "odd"); s.State != health.Healthy || w.passed["odd"] == 0 {
						t.Errorf("odd never passed, so this proves nothing: %+v", s)
					}
					if s := state(t, l, "p7"); !s.Inconclusive {
						t.Errorf("%+v, want inconclusive", s)
					}
				})
			})
		}
	}
}

// TestFasterPassCondemnsTheSlower: checks that differ in their timeouts alone
// still speak for each other where the time that they took allows it.
func TestFasterPassCondemnsTheSlower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSite()
		d := direct(t, nil, "").Scripted(func(context.Context, probe.Check) (health.Control, error) {
			return health.ControlFailed, errControl // our own way out is closed
		})
		l, err := probe.New(probe.Options{Request: w.request, Control: d.Ask})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		defer func() { cancel(); <-done }()
		w.set(func() { w.broken["a"] = probe.BadResponse })
		one, other := subject("a"), subject("b")
		one.Check.Timeout, other.Check.Timeout = 4*time.Second, 6*time.Second
		l.Watch("p", one)
		l.Watch("q", other)
		after(200 * time.Second)
		if s := state(t, l, "p"); s.State != health.Unhealthy {
			t.Errorf("%+v, want Unhealthy: the other passed in 10 ms", s)
		}
	})
}

// TestImpatientCheckAnswersForNobodyElse: one check with a timeout of 100 ms
// led the control request for all, which failed for want of time and excused
// real failures. The dead fleet must be found out whoever asks first.
func TestImpatientCheckAnswersForNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSite()
		w.takes = time.Second
		l := w.start(t)
		hasty := subject("hasty") // asks first, and again before each answer is stale
		hasty.Check.Timeout, hasty.Interval = 100*time.Millisecond, time.Second
		l.Watch("hasty", hasty)
		after(200 * time.Millisecond)
		const fleet = 5
		for i := range fleet {
			w.set(func() { w.broken[fmt.Sprint("a", i)] = probe.BadResponse })
			l.Watch(fmt.Sprint("p", i), subject(fmt.Sprint("a", i)))
		}
		after(200 * time.Second)
		for i := range fleet {
			if s := state(t, l, fmt.Sprint("p", i)); s.State != health.Unhealthy || s.Inconclusive {
				t.Errorf("p%d is broken and %s: %s", i, s.State, s.Message)
			}
		}
		// Nor does the patience of the others condemn the hasty one: the far
		// end itself is slower than it waits.
		if s := state(t, l, "hasty"); s.State == health.Unhealthy || !s.Inconclusive {
			t.Errorf("hasty: %+v, want inconclusive", s)
		}
		w.set(func() {
			for _, took := range w.controls {
				if took != probe.DefaultTimeout {
					t.Errorf("a control request could take %s, want %s whoever asks", took, probe.DefaultTimeout)
				}
			}
		})
		// A machine that takes no connection has no excuse in a slow far end.
		w.set(func() { w.broken["hasty"] = probe.ConnectFailed })
		after(30 * time.Second)
		if s := state(t, l, "hasty"); s.State != health.Unhealthy {
			t.Errorf("hasty and dead: %+v, want Unhealthy", s)
		}
	})
}

// TestControlIsSharedBySameTestsAlone: who shares, and what each hears.
func TestControlIsSharedBySameTestsAlone(t *testing.T) {
	cas, same := x509.NewCertPool(), x509.NewCertPool()
	base := probe.Check{URL: healthURL}
	for name, tc := range map[string]struct {
		reason string
		other  probe.Check
		asked  int
		want   health.Control
	}{
		"same":        {"one request for all", base, 1, health.ControlPassed},
		"defaults":    {"written out or not", probe.Check{URL: healthURL, ExpectedStatus: 204, Timeout: 5 * time.Second}, 1, health.ControlPassed},
		"hasty":       {"it shares the request and counts its own time", probe.Check{URL: healthURL, Timeout: 100 * time.Millisecond}, 1, health.ControlLate},
		"in time":     {"as long as it took is not later", probe.Check{URL: healthURL, Timeout: time.Second}, 1, health.ControlPassed},
		"patient":     {"it would wait where a shared request ends", probe.Check{URL: healthURL, Timeout: time.Minute}, 2, health.ControlPassed},
		"status":      {"another question", probe.Check{URL: healthURL, ExpectedStatus: 200}, 2, health.ControlFailed},
		"authorities": {"another question", probe.Check{URL: healthURL, CAs: cas}, 2, health.ControlFailed},
	} {
		for _, first := range []string{"base", "other"} {
			t.Run(name+", "+first+" first", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newSite()
					w.takes = time.Second
					d := direct(t, nil, "").Scripted(w.send)
					type asker struct {
						check probe.Check
						want  health.Control
					}
					askers := []asker{{base, health.ControlPassed}, {tc.other, tc.want}}
					if first == "other" {
						askers[0], askers[1] = askers[1], askers[0]
					}
					for _, together := range []bool{true, false} {
						var wg sync.WaitGroup
						for _, a := range askers {
							wg.Go(func() {
								if got, err := d.Ask(t.Context(), a.check); got != a.want || (err == nil) != (got == health.ControlPassed) {
									t.Errorf("together %t: %+v heard %s, %v; want %s: %s", together, a.check, got, err, a.want, tc.reason)
								}
							})
							if synctest.Wait(); !together {
								wg.Wait()
							}
						}
						wg.Wait()
					}
					if len(w.controls) != tc.asked {
						t.Errorf("%d requests, want %d: %s", len(w.controls), tc.asked, tc.reason)
					}
				})
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newSite()
		w.cas = cas
		d := direct(t, nil, "").Scripted(w.send)
		for _, p := range []*x509.CertPool{cas, same} { // equal, and not one object
			if got, err := d.Ask(t.Context(), probe.Check{URL: healthURL, CAs: p}); got != health.ControlPassed {
				t.Errorf("%s, %v", got, err)
			}
		}
		if len(w.controls) != 1 {
			t.Errorf("%d requests for equal authorities, want 1", len(w.controls))
		}
	})
}

// TestAskersDeadlineAnswersForNobodyElse: as its cancellation.
func TestAskersDeadlineAnswersForNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSite()
		w.takes = time.Second
		d := direct(t, nil, "").Scripted(w.send)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if got, _ := d.Ask(ctx, probe.Check{URL: healthURL}); got != health.ControlNone {
				t.Errorf("the one whose time is up heard %s, want none", got)
			}
		})
		synctest.Wait()
		if got, err := d.Ask(t.Context(), probe.Check{URL: healthURL}); got != health.ControlPassed {
			t.Errorf("the other heard %s, %v", got, err)
		}
		wg.Wait()
	})
}

// TestFarEndOutlivesAChangeOfItsOnlySubject: new credentials, a new instance
// or another timeout do not make the operator forget that the URL worked a
// moment ago.
func TestFarEndOutlivesAChangeOfItsOnlySubject(t *testing.T) {
	for name, change := range map[string]func(*probe.Subject){
		"credentials": func(s *probe.Subject) { s.Target.Password = provider.Secret("new") },
		"instance":    func(s *probe.Subject) { s.UID = "another" },
		"timeout":     func(s *probe.Subject) { s.Check.Timeout = 7 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.control = health.ControlFailed // our own way out is closed
				l := w.start(t, probe.Options{})
				s := subject("a")
				l.Watch("p", s)
				after(time.Second)
				w.set(func() { w.broken["a"] = true })
				change(&s)
				l.Watch("p", s)
				after(100 * time.Millisecond)
				if got := state(t, l, "p"); got.Reason != probe.BadResponse || got.Inconclusive {
					t.Errorf("%+v, want a failure: the URL answered a second ago", got)
				}
			})
		})
	}
}

// TestChangedCredentialsAreProbedAtOnce: also in the middle of a probe with the
// old ones, whose answer counts no more, whatever it is.
func TestChangedCredentialsAreProbedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		right, used := "old", []string{}
		l, err := probe.New(probe.Options{Request: func(ctx context.Context, target probe.Target, _ probe.Check) probe.Result {
			mu.Lock()
			used = append(used, string(target.Password))
			ok := string(target.Password) == right
			mu.Unlock()
			time.Sleep(time.Second) // deaf to its context: the late answer arrives
			if !ok {
				return probe.Result{Reason: probe.AuthRefused, Err: errProxy}
			}
			return probe.Result{OK: true, Reason: probe.ReasonOK}
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		defer func() { cancel(); <-done }()
		s := subject("a")
		s.Policy.FailureThreshold = 1
		s.Target.Password = provider.Secret("old")
		l.Watch("p", s)
		after(2 * time.Second)
		mu.Lock()
		right = "new"
		mu.Unlock()
		for state(t, l, "p").State != health.Unhealthy { // the proxy changed first
			after(time.Second)
		}
		after(500 * time.Millisecond)
		mu.Lock()
		n := len(used)
		mu.Unlock()
		s.Target.Password = provider.Secret("new")
		l.Watch("p", s)
		if got := state(t, l, "p"); got.State != health.Unknown {
			t.Errorf("%s by the word of the old credentials", got.State)
		}
		after(1100 * time.Millisecond)
		if got := state(t, l, "p"); got.State != health.Healthy || len(used) != n+1 || used[n] != "new" {
			t.Errorf("%+v after the passwords %v, want Healthy by one probe with the new", got, used[n:])
		}
		// And back to wrong ones while a good probe runs.
		s.Target.Password = provider.Secret("newer")
		l.Watch("p", s)
		after(500 * time.Millisecond)
		mu.Lock()
		right = "newest"
		mu.Unlock()
		s.Target.Password = provider.Secret("wrong")
		l.Watch("p", s)
		after(1200 * time.Millisecond)
		if got := state(t, l, "p"); got.State != health.Unhealthy || got.Reason != probe.AuthRefused {
			t.Errorf("%+v, want Unhealthy by the wrong ones", got)
		}
	})
}

// TestFlappingTimeoutDoesNotUseUpTheThreshold: quick tries of a starting proxy
// count at most once for each interval, also while its check is being edited.
func TestFlappingTimeoutDoesNotUseUpTheThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.broken["a"] = true
		l := w.start(t, probe.Options{})
		s := subject("a")
		for i := range 10 {
			s.Check.Timeout = time.Duration(5+i%2) * time.Second
			l.Watch("p", s)
			after(time.Second)
		}
		if got := state(t, l, "p"); got.State != health.Unknown {
			t.Errorf("%s after 10 s, want Unknown: three intervals are not over", got.State)
		}
	})
}

// TestFlappingTimeoutHidesNoFailure: that others pass goes on counting against
// a proxy while its check is being edited.
func TestFlappingTimeoutHidesNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.control = health.ControlFailed // our own way out is closed
		w.broken["a"] = true
		l := w.start(t, probe.Options{})
		l.Watch("q", subject("b"))
		s := subject("a")
		for i := range 20 {
			s.Check.Timeout = time.Duration(5+i%2) * time.Second
			l.Watch("p", s)
			after(10 * time.Second)
		}
		if got := state(t, l, "p"); got.State != health.Unhealthy {
			t.Errorf("%+v after 200 s, want Unhealthy", got)
		}
	})
}
