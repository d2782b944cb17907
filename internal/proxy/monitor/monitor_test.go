package monitor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/monitor"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/guard"
)

// world is a providers file that a test edits, and what the monitor told.
type world struct {
	mu        sync.Mutex
	providers map[string]provider.Provider // nil is one that cannot be built
	events    []string
	changed   map[string][][]string
}

func newWorld() *world {
	return &world{providers: map[string]provider.Provider{}, changed: map[string][][]string{}}
}

func (w *world) Names() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.providers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *world) Lookup(name string) (provider.Provider, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.providers[name]; p != nil {
		return p, nil
	}
	return nil, fault.Errorf(fault.Unavailable, "provider %q is disabled: hosts: none", name)
}

func (w *world) put(name string, p provider.Provider) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.providers[name] = p
}

func (w *world) drop(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.providers, name)
}

// told returns the Events since the last call.
func (w *world) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.events
	w.events = nil
	return out
}

// changes returns what Changed was told of a provider since the last call.
func (w *world) changes(name string) [][]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.changed[name]
	delete(w.changed, name)
	return out
}

const (
	interval = time.Minute
	timeout  = 15 * time.Second
)

// start runs a monitor of w until the test ends.
func start(t *testing.T, w *world, reg prometheus.Registerer) *monitor.Monitor {
	t.Helper()
	m, err := monitor.New(monitor.Options{
		Providers: w, Interval: interval, Timeout: timeout, Metrics: reg,
		Changed: func(name string, hosts []string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changed[name] = append(w.changed[name], hosts)
		},
		Event: func(name string, warning bool, reason, message string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			mark := "normal"
			if warning {
				mark = "warning"
			}
			w.events = append(w.events, fmt.Sprintf("%s %s %s: %s", name, mark, reason, message))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
	return m
}

// script is a provider whose check answers what the test says.
type script struct {
	provider.Provider
	check func(ctx context.Context) ([]provider.HostHealth, error)

	mu                   sync.Mutex
	calls, now, together int
	began                []time.Time
}

func (s *script) Check(ctx context.Context) ([]provider.HostHealth, error) {
	s.mu.Lock()
	s.calls++
	s.now++
	s.together = max(s.together, s.now)
	s.began = append(s.began, time.Now())
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now--
	}()
	return s.check(ctx)
}

func (s *script) count() (calls, together int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, s.together
}

// rows reads "a=OK b=PoolLow" as rows.
func rows(text string) (out []provider.HostHealth) {
	for field := range strings.FieldsSeq(text) {
		host, reason, _ := strings.Cut(field, "=")
		out = append(out, provider.HostHealth{Host: host, Reason: reason, Message: "as the test says"})
	}
	return out
}

func answers(p *[]provider.HostHealth, e *error) *script {
	return &script{check: func(context.Context) ([]provider.HostHealth, error) { return *p, *e }}
}

// Each step is one check; Events and wake-ups are for what changed by it.
func TestOnlyChangesAreTold(t *testing.T) {
	t.Parallel()
	refused := fault.New(fault.Unavailable, "connection refused")
	type step struct {
		rows    string
		err     error
		events  []string
		changed []string
		trouble map[string]string
	}
	for name, tc := range map[string]struct {
		reason string
		steps  []step
	}{
		"well from the start": {"nobody wants to read that all is well", []step{
			{rows: "a=OK b=OK", trouble: map[string]string{"a": "", "": "", "unknown": ""}},
			{rows: "a=OK b=OK"},
		}},
		"trouble and back": {"", []step{
			{
				rows: "b=PoolLow a=OK", events: []string{"warning HostInTrouble: host b: PoolLow: as the test says"},
				changed: []string{"b"}, trouble: map[string]string{"a": "", "b": "PoolLow", "": "", "unknown": ""},
			},
			{rows: "a=OK b=PoolLow", trouble: map[string]string{"b": "PoolLow"}},
			{rows: "a=OK b=Unreachable", events: []string{"warning HostInTrouble: host b: Unreachable: as the test says"}, changed: []string{"b"}},
			{rows: "a=OK b=OK", events: []string{"normal HostRecovered: host b is well again; it was Unreachable"}, trouble: map[string]string{"b": "Unreachable"}},
			{rows: "a=OK b=OK", changed: []string{"b"}, trouble: map[string]string{"b": ""}},
			{rows: "a=OK b=OK"},
		}},
		"coming and going": {"what flips with each check is no news for the Proxies there", []step{
			{rows: "a=Error", events: []string{"warning HostInTrouble: host a: Error: as the test says"}, changed: []string{"a"}, trouble: map[string]string{"a": "Error"}},
			{rows: "a=OK", events: []string{"normal HostRecovered: host a is well again; it was Error"}, trouble: map[string]string{"a": "Error"}},
			{rows: "a=Error", events: []string{"warning HostInTrouble: host a: Error: as the test says"}, trouble: map[string]string{"a": "Error"}},
			{rows: "a=OK", events: []string{"normal HostRecovered: host a is well again; it was Error"}, trouble: map[string]string{"a": "Error"}},
			{err: refused, events: []string{"warning CheckFailed: the hosts cannot be checked (Unavailable): connection refused"}, changed: []string{""}, trouble: map[string]string{"a": "Error", "": "CheckFailed"}},
			{rows: "a=OK", events: []string{"normal CheckRecovered: the hosts can be checked again"}, changed: []string{"a"}, trouble: map[string]string{"a": "", "": "CheckFailed"}},
			{err: refused, events: []string{"warning CheckFailed: the hosts cannot be checked (Unavailable): connection refused"}, trouble: map[string]string{"a": "", "": "CheckFailed"}},
			{rows: "a=OK", events: []string{"normal CheckRecovered: the hosts can be checked again"}, trouble: map[string]string{"": "CheckFailed"}},
			{rows: "a=OK", changed: []string{""}, trouble: map[string]string{"": ""}},
		}},
		"one that came and went": {"a host that left has no trouble", []step{
			{rows: "a=OK"},
			{rows: "a=OK b=Error", events: []string{"warning HostInTrouble: host b: Error: as the test says"}, changed: []string{"b"}},
			{rows: "a=OK", changed: []string{"b"}, trouble: map[string]string{"b": ""}},
			{rows: "a=OK b=OK"},
		}},
		"the check as a whole": {"what was known of hosts stays, and others are in trouble", []step{
			{rows: "a=OK b=PoolLow", events: []string{"warning HostInTrouble: host b: PoolLow: as the test says"}, changed: []string{"b"}},
			{
				err: refused, events: []string{"warning CheckFailed: the hosts cannot be checked (Unavailable): connection refused"},
				changed: []string{""}, trouble: map[string]string{"a": "", "b": "PoolLow", "": "CheckFailed", "unknown": "CheckFailed"},
			},
			{err: fault.New(fault.Unavailable, "connection reset"), trouble: map[string]string{"": "CheckFailed"}},
			{err: fault.New(fault.Denied, "no"), events: []string{"warning CheckFailed: the hosts cannot be checked (Denied): no"}},
			{
				rows: "a=Error b=PoolLow", changed: []string{"a"}, trouble: map[string]string{"": "CheckFailed"},
				events: []string{"normal CheckRecovered: the hosts can be checked again", "warning HostInTrouble: host a: Error: as the test says"},
			},
			{rows: "a=Error b=PoolLow", changed: []string{""}, trouble: map[string]string{"a": "Error", "": ""}},
		}},
		"failed from the start": {"hosts of which nothing is known yet are in trouble too", []step{
			{err: refused, events: []string{"warning CheckFailed: the hosts cannot be checked (Unavailable): connection refused"}, changed: []string{""}, trouble: map[string]string{"a": "CheckFailed"}},
			{rows: "a=OK", events: []string{"normal CheckRecovered: the hosts can be checked again"}, changed: []string{"a"}, trouble: map[string]string{"a": ""}},
			{rows: "a=OK", changed: []string{""}, trouble: map[string]string{"": ""}},
		}},
		"odd rows": {"a row without a reason is not well, and the first of two counts", []step{
			{rows: "a= b=OK b=Error", events: []string{"warning HostInTrouble: host a: Unknown: as the test says"}, changed: []string{"a"}, trouble: map[string]string{"b": ""}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				var now []provider.HostHealth
				var err error
				w.put("p", answers(&now, &err))
				var m *monitor.Monitor
				for n, s := range tc.steps {
					now, err = rows(s.rows), s.err
					if n == 0 {
						m = start(t, w, nil)
					} else {
						time.Sleep(time.Second)
						m.Kick("p")
					}
					synctest.Wait()
					var want []string
					for _, e := range s.events {
						want = append(want, "p "+e)
					}
					if diff := cmp.Diff(want, w.told()); diff != "" {
						t.Errorf("%s: step %d: Events (-want +got):\n%s", tc.reason, n, diff)
					}
					changed := s.changed
					switch {
					case slices.Contains(changed, ""):
						changed = nil // all of the provider's
					case changed == nil:
						changed = []string{} // nobody's
					}
					if diff := cmp.Diff([][]string{changed}, w.changes("p")); diff != "" {
						t.Errorf("%s: step %d: changed (-want +got):\n%s", tc.reason, n, diff)
					}
					for host, want := range s.trouble {
						if got := m.Trouble("p", host); got != want {
							t.Errorf("%s: step %d: trouble of %q is %q, want %q", tc.reason, n, host, got, want)
						}
					}
				}
			})
		})
	}
}

func TestAReportTellsSinceWhen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		now, err := rows("b=Error a=OK"), error(nil)
		w.put("p", answers(&now, &err))
		m := start(t, w, nil)
		if _, there := m.Report("p"); there {
			t.Error("a report before a check")
		}
		synctest.Wait()
		began := time.Now()
		check := func(what string, checked, sinceA, sinceB time.Time) {
			t.Helper()
			r, there := m.Report("p")
			if !there || len(r.Hosts) != 2 || r.Hosts[0].Host != "a" || r.Hosts[1].Host != "b" {
				t.Fatalf("%s: %v %+v", what, there, r)
			}
			for n, want := range []time.Time{sinceA, sinceB} {
				if h := r.Hosts[n]; !h.Since.Equal(want) || !h.Checked.Equal(checked) {
					t.Errorf("%s: host %s checked %s since %s, want %s and %s", what, h.Host, h.Checked, h.Since, checked, want)
				}
			}
		}
		check("first", began, began, began)
		kick := func() time.Time { time.Sleep(5 * time.Second); m.Kick("p"); synctest.Wait(); return time.Now() }
		second := kick()
		check("unchanged", second, began, began)
		now = rows("a=OK b=PoolLow")
		third := kick()
		check("another reason", third, began, third)
		err = errors.New("boom")
		fourth := kick()
		check("a check that failed says nothing of hosts", third, began, third)
		if r, _ := m.Report("p"); r.Err == nil || !r.Checked.Equal(fourth) {
			t.Errorf("%+v", r)
		}
		err = nil
		check("the same again", kick(), began, third)
	})
}

// The mute one, and the one that does not even end with its context, have no
// second check beside the first, and the others do not feel them.
func TestAMuteProviderDelaysNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		well, none := rows("a=OK"), error(nil)
		ok := answers(&well, &none)
		mute := &script{check: func(ctx context.Context) ([]provider.HostHealth, error) { <-ctx.Done(); return nil, ctx.Err() }}
		release := make(chan struct{})
		deaf := &script{check: func(context.Context) ([]provider.HostHealth, error) { <-release; return nil, errors.New("late") }}
		w.put("mute", mute)
		w.put("deaf", deaf)
		w.put("ok", ok)
		w.put("guarded", guard.Deadline(&script{check: deaf.check}, guard.DeadlineOptions{Name: "guarded"}))
		w.put("broken", nil)
		m := start(t, w, nil)
		t.Cleanup(func() { close(release) })
		for range 30 {
			time.Sleep(20 * time.Second)
			for name := range w.providers {
				m.Kick(name)
			}
		}
		synctest.Wait()
		if calls, together := ok.count(); calls < 30 || together != 1 {
			t.Errorf("the one that is well was checked %d times, %d together", calls, together)
		}
		if calls, together := mute.count(); calls < 30 || together != 1 {
			t.Errorf("the mute one was checked %d times, %d together", calls, together)
		}
		if calls, together := deaf.count(); calls != 1 || together != 1 {
			t.Errorf("the deaf one was checked %d times, %d together", calls, together)
		}
		for name, class := range map[string]fault.Class{"ok": "", "mute": fault.Timeout, "guarded": fault.Unavailable, "broken": fault.Unavailable} {
			if r, there := m.Report(name); !there || fault.Of(r.Err) != class {
				t.Errorf("%s: %v %+v, want class %q", name, there, r, class)
			}
		}
		if _, there := m.Report("deaf"); there {
			t.Error("a report of a check that did not end")
		}
	})
}

func TestChecksComeEachIntervalAndSoonWhenAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		now, none := rows("a=OK"), error(nil)
		slow := answers(&now, &none)
		p := answers(&now, &none)
		slow.check = func(context.Context) ([]provider.HostHealth, error) { time.Sleep(3 * time.Second); return now, none }
		w.put("p", p)
		w.put("slow", slow)
		m := start(t, w, nil)
		time.Sleep(10*interval + time.Second)
		p.mu.Lock()
		for n := 1; n < len(p.began); n++ {
			if d := p.began[n].Sub(p.began[n-1]); d < interval*9/10 || d > interval+10*time.Millisecond {
				t.Errorf("check %d came %s after the one before", n, d)
			}
		}
		calls := len(p.began)
		p.mu.Unlock()
		if calls < 11 || calls > 12 {
			t.Errorf("%d checks in ten intervals", calls)
		}
		for range 1000 {
			m.Kick("p")
			m.Kick("nobody")
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if more, _ := p.count(); more-calls < 9 || more-calls > 12 {
			t.Errorf("%d checks in ten seconds of asking", more-calls)
		}
		time.Sleep(interval / 2)
		m.Kick("slow")
		time.Sleep(time.Second)
		before, _ := slow.count()
		m.Kick("slow") // what it asks for may have come after the check looked
		time.Sleep(3 * time.Second)
		if after, together := slow.count(); after != before+1 || together != 1 {
			t.Errorf("asked for while one ran: %d more checks, %d together", after-before, together)
		}
	})
}

func TestMetricsFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		w := newWorld()
		now, err := rows("a=OK b=Error"), error(nil)
		now[0].FreeBytes = 5 << 30
		w.put("p", answers(&now, &err))
		w.put("bare", struct{ provider.Provider }{})
		w.put("broken", nil)
		m := start(t, w, reg)
		synctest.Wait()
		shows := func(what string, want map[string]float64) {
			t.Helper()
			if diff := cmp.Diff(want, gathered(t, reg)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		at := func(n int) float64 { return float64(time.Now().Unix() - int64(n)) }
		const ok, free, took, last = "host_ok{", "host_free_bytes{", "check_duration_seconds{", "last_check_timestamp_seconds{"
		shows("first", map[string]float64{
			ok + "a,p}": 1, ok + "b,p}": 0, free + "a,p}": 5 << 30, took + "p}": 1, took + "broken}": 1, last + "p}": at(0),
		})
		if r, there := m.Report("bare"); !there || !r.Unsupported || r.Err != nil {
			t.Errorf("a provider without a check: %v %+v", there, r)
		}
		time.Sleep(2 * time.Second)
		now = rows("a=OK b=Error")
		m.Kick("p")
		synctest.Wait()
		shows("a host that does not know its space any more", map[string]float64{
			ok + "a,p}": 1, ok + "b,p}": 0, took + "p}": 2, took + "broken}": 1, last + "p}": at(0),
		})
		time.Sleep(2 * time.Second)
		now = rows("b=OK")
		m.Kick("p")
		synctest.Wait()
		shows("a host left", map[string]float64{ok + "b,p}": 1, took + "p}": 3, took + "broken}": 1, last + "p}": at(0)})
		time.Sleep(2 * time.Second)
		err = errors.New("boom")
		m.Kick("p")
		synctest.Wait()
		shows("a check that failed", map[string]float64{ok + "b,p}": 1, took + "p}": 4, took + "broken}": 1, last + "p}": at(2)})
		now, err = rows("b=Error"), nil
		for range 2 {
			time.Sleep(2 * time.Second)
			m.Kick("p")
			synctest.Wait()
		}
		w.told()
		w.changes("p")
		w.drop("p")
		time.Sleep(interval)
		synctest.Wait()
		got := gathered(t, reg)
		for series := range got {
			if strings.Contains(series, "p}") {
				t.Errorf("left behind: %s", series)
			}
		}
		if _, there := m.Report("p"); there || m.Trouble("p", "b") != "" {
			t.Error("a provider that left is known")
		}
		if diff := cmp.Diff([][]string{{"b"}}, w.changes("p")[:1]); diff != "" {
			t.Errorf("whose trouble ended with it (-want +got):\n%s", diff)
		}
		// Of another kind under the same name.
		now = rows("b=Error")
		w.put("q", answers(&now, &err))
		m.Kick("q")
		synctest.Wait()
		w.put("q", struct{ provider.Provider }{})
		time.Sleep(2 * time.Second)
		m.Kick("q")
		synctest.Wait()
		for series := range gathered(t, reg) {
			if strings.Contains(series, "q}") {
				t.Errorf("left behind: %s", series)
			}
		}
	})
}

// gathered are all series as name{labels} and value, or count of a histogram.
func gathered(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "proxy_operator_provider_") + "{" + strings.Join(labels, ",") + "}"
			if h := s.GetHistogram(); h != nil {
				out[name] = float64(h.GetSampleCount())
			} else {
				out[name] = s.GetGauge().GetValue()
			}
		}
	}
	return out
}

// The end of the operator is no trouble of a host.
func TestTheEndSaysNothingOfHosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put("p", &script{check: func(ctx context.Context) ([]provider.HostHealth, error) { <-ctx.Done(); return nil, ctx.Err() }})
		m, err := monitor.New(monitor.Options{Providers: w, Interval: interval, Timeout: timeout, Event: func(string, bool, string, string) { t.Error("an Event") }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
		if _, there := m.Report("p"); there {
			t.Error("a report of a check that was cut short")
		}
	})
}

// The fake's hosts, through the decorators that an operator has around it.
func TestFaultsOfAProvidersHosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		f := fake.New(fake.Options{Hosts: []string{"box-1", "box-2", "box-3"}})
		w.put("fake", guard.Deadline(f, guard.DeadlineOptions{Name: "fake"}))
		m := start(t, w, nil)
		synctest.Wait()
		mend := f.Break("box-2", fault.New(fault.Unavailable, "no route"))
		unmute := f.Mute("box-3")
		time.Sleep(interval + timeout)
		synctest.Wait()
		for host, want := range map[string]string{"box-1": "", "box-2": "Unavailable", "box-3": "Timeout"} {
			if got := m.Trouble("fake", host); got != want {
				t.Errorf("%s: %q, want %q", host, got, want)
			}
		}
		mend()
		unmute()
		time.Sleep(2*interval + timeout)
		synctest.Wait()
		for _, host := range []string{"box-1", "box-2", "box-3"} {
			if got := m.Trouble("fake", host); got != "" {
				t.Errorf("%s mended: %q", host, got)
			}
		}
		if got := len(w.told()); got != 4 {
			t.Errorf("%d Events, want one for each turn", got)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		o      monitor.Options
		want   string
	}{
		"no interval":            {"", monitor.Options{Timeout: time.Second}, "--provider-check-interval"},
		"no timeout":             {"a check would never answer", monitor.Options{Interval: time.Second}, "--provider-check-timeout"},
		"timeout above interval": {"checks would pile up", monitor.Options{Interval: time.Second, Timeout: 2 * time.Second}, "at most the interval"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := monitor.New(tc.o); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
	reg := prometheus.NewRegistry()
	o := monitor.Options{Interval: time.Second, Timeout: time.Second, Metrics: reg}
	if _, err := monitor.New(o); err != nil {
		t.Error(err)
	}
	if _, err := monitor.New(o); err == nil {
		t.Error("two monitors with the same metrics")
	}
}
