// Package monitor checks each provider's hosts every interval and keeps what
// they said: the answer to "why is nothing being created?".
package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Providers is where the monitor finds the providers in force.
type Providers interface {
	Names() []string
	Lookup(name string) (provider.Provider, error)
}

// Options are what a Monitor is made of.
type Options struct {
	Providers Providers
	// Interval is the time from one check of a provider to the next, Timeout
	// bounds one check; it is at most the interval.
	Interval, Timeout time.Duration
	// Changed is told that there is a new report. hosts are those for which
	// [Monitor.Trouble] answers otherwise than before, sorted, and empty when
	// that is none. It is nil when Trouble changed also for Proxies without a
	// host and for hosts that no report has: then all of the provider's are
	// concerned. It must not block.
	Changed func(providerName string, hosts []string)
	// Event is told what a person should see; it must not block.
	Event   func(providerName string, warning bool, reason, message string)
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Reasons of the Events that a monitor tells.
const (
	// EventHostInTrouble: a host's reason became one that is not OK.
	EventHostInTrouble = "HostInTrouble"
	// EventHostRecovered: a host is well again.
	EventHostRecovered = "HostRecovered"
	// EventCheckFailed: the provider as a whole could not be asked.
	EventCheckFailed = "CheckFailed"
	// EventCheckRecovered: it can be asked again.
	EventCheckRecovered = "CheckRecovered"
)

// minPause keeps those who ask for checks from having more than one a second.
const minPause = time.Second

// Monitor is safe for concurrent use.
type Monitor struct {
	o       Options
	metrics *metrics
	wake    chan struct{}

	mu        sync.Mutex
	providers map[string]*ward
}

// ward is one provider's part.
type ward struct {
	report   Report
	reported bool
	rows     map[string]string // reason by host, of report
	// troubles are what [Monitor.Trouble] says of the hosts in rows that are not
	// well, or were well only once since; failed is that of all other hosts.
	troubles map[string]string
	failed   bool

	busy   bool
	kicked bool
	began  time.Time
	next   time.Time
}

// New returns a monitor without reports; Run fills it. It registers:
//
//	proxy_operator_provider_host_ok{provider,host}
//	proxy_operator_provider_host_free_bytes{provider,host}
//	proxy_operator_provider_check_duration_seconds{provider}
//	proxy_operator_provider_last_check_timestamp_seconds{provider}
//
// The first is 1 while the host is well and 0 while it is not. The last is when
// a check last answered; while none does, the rows are those of that time.
// Hosts and providers that left have no series.
func New(o Options) (*Monitor, error) {
	switch {
	case o.Interval <= 0:
		return nil, fault.Errorf(fault.Invalid, "--provider-check-interval: %s: give more than 0, as in 60s", o.Interval)
	case o.Timeout <= 0 || o.Timeout > o.Interval:
		return nil, fault.Errorf(fault.Invalid, "--provider-check-timeout: %s: give more than 0 and at most the interval (%s)", o.Timeout, o.Interval)
	}
	if o.Changed == nil {
		o.Changed = func(string, []string) {}
	}
	if o.Event == nil {
		o.Event = func(string, bool, string, string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	return &Monitor{o: o, metrics: m, wake: make(chan struct{}, 1), providers: map[string]*ward{}}, nil
}

// Report returns what the last check of a provider said, and whether one has
// ended. The caller does not change it.
func (m *Monitor) Report(name string) (Report, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.providers[name]
	if w == nil || !w.reported {
		return Report{}, false
	}
	return w.report, true
}

// Trouble returns the reason of that host's row while it is not OK, else "". Of
// a host without a row, as of the empty one, it returns CheckFailed while the
// provider as a whole cannot be asked. Both last until two checks in a row found
// nothing: what comes and goes with each check is trouble all the time, and not
// news for every Proxy there twice an interval.
func (m *Monitor) Trouble(providerName, host string) (reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.providers[providerName]; w != nil {
		return w.trouble(host)
	}
	return ""
}

func (w *ward) trouble(host string) string {
	if _, known := w.rows[host]; known {
		return w.troubles[host]
	}
	if w.failed {
		return v1alpha1.ReasonCheckFailed
	}
	return ""
}

// take makes r the ward's report.
func (w *ward) take(r Report) {
	was := *w
	w.report, w.reported = r, true
	w.failed = r.Err != nil || was.report.Err != nil
	if r.Err != nil {
		return // the rows are those of the check before
	}
	w.rows, w.troubles = make(map[string]string, len(r.Hosts)), map[string]string{}
	for _, h := range r.Hosts {
		w.rows[h.Host] = h.Reason
		if h.Reason != provider.ReasonOK {
			w.troubles[h.Host] = h.Reason
		} else if before, had := was.rows[h.Host]; had && before != provider.ReasonOK {
			w.troubles[h.Host] = was.troubles[h.Host]
		}
	}
}

// Kick asks for a check of that provider soon, ahead of its interval, and at
// most once a second. One that runs goes on, and another follows it.
func (m *Monitor) Kick(name string) {
	m.mu.Lock()
	if w := m.providers[name]; w != nil {
		w.kicked = true
	}
	m.mu.Unlock()
	m.signal() // also for a provider that Run has not met yet
}

func (m *Monitor) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run checks every provider each interval until ctx ends. Providers are checked
// side by side, each at most once at a time, so that a mute one delays none. A
// call that does not end with its context is for the provider's decorators to
// abandon: until then that provider alone has no further check.
func (m *Monitor) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		timer := time.NewTimer(m.start(ctx, &group))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-m.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// start begins the checks that are due and returns the time to the next.
func (m *Monitor) start(ctx context.Context, group *sync.WaitGroup) time.Duration {
	names := m.o.Providers.Names()
	now := time.Now()
	wait := m.o.Interval
	m.mu.Lock()
	configured := make(map[string]bool, len(names))
	for _, name := range names {
		configured[name] = true
		w := m.providers[name]
		if w == nil {
			w = &ward{}
			m.providers[name] = w
		}
		if w.busy {
			continue
		}
		if w.kicked {
			if w.kicked = false; w.began.IsZero() || !w.began.Add(minPause).After(now) {
				w.next = now
			} else {
				w.next = w.began.Add(minPause)
			}
		}
		if w.next.After(now) {
			wait = min(wait, w.next.Sub(now))
			continue
		}
		w.busy, w.began = true, now
		// A tenth of jitter keeps many providers from checking in step.
		w.next = now.Add(m.o.Interval - time.Duration(rand.Float64()*float64(m.o.Interval)/10))
		wait = min(wait, w.next.Sub(now))
		group.Go(func() { m.check(ctx, name, w) })
	}
	left := map[string][]string{}
	for name, w := range m.providers {
		if configured[name] || w.busy {
			continue
		}
		delete(m.providers, name)
		left[name] = differing(w, &ward{})
		m.metrics.forget(name)
	}
	m.mu.Unlock()
	for name, hosts := range left {
		m.o.Changed(name, hosts)
	}
	return max(wait, time.Millisecond)
}

// check makes one check of a provider and keeps its answer.
func (m *Monitor) check(ctx context.Context, name string, w *ward) {
	began := time.Now()
	rows, unsupported, err := m.ask(ctx, name)
	ended := time.Now()

	m.mu.Lock()
	w.busy = false
	if ctx.Err() != nil { // we are asked to end: that says nothing of the hosts
		m.mu.Unlock()
		return
	}
	before := *w
	w.take(next(before.report, rows, unsupported, err, ended))
	after := *w
	if unsupported {
		m.metrics.forget(name) // it may have been of another kind before
	} else {
		m.metrics.keep(name, before.rows, after.report, ended.Sub(began))
	}
	m.mu.Unlock()

	m.tell(name, before, after)
	m.o.Changed(name, differing(&before, &after))
	m.signal()
}

// ask calls the provider.
func (m *Monitor) ask(ctx context.Context, name string) (rows []provider.HostHealth, unsupported bool, err error) {
	p, err := m.o.Providers.Lookup(name)
	if err != nil {
		return nil, false, err
	}
	c, ok := provider.As[provider.Checker](p)
	if !ok {
		return nil, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	rows, err = c.Check(ctx)
	return rows, false, err
}

// next is the report after was. A check that failed as a whole says nothing of
// the hosts, so their rows stay.
func next(was Report, rows []provider.HostHealth, unsupported bool, err error, now time.Time) Report {
	r := Report{Checked: now, Err: err, Unsupported: unsupported}
	if err != nil {
		r.Hosts = was.Hosts
		return r
	}
	since := make(map[string]Host, len(was.Hosts))
	for _, h := range was.Hosts {
		since[h.Host] = h
	}
	seen := make(map[string]bool, len(rows))
	for _, row := range rows {
		if seen[row.Host] {
			continue // the contract has one row a host
		}
		seen[row.Host] = true
		if row.Reason == "" {
			row.Reason = "Unknown"
		}
		h := Host{HostHealth: row, Checked: now, Since: now}
		if old, had := since[row.Host]; had && old.Reason == row.Reason {
			h.Since = old.Since
		}
		r.Hosts = append(r.Hosts, h)
	}
	slices.SortFunc(r.Hosts, func(a, b Host) int {
		switch {
		case a.Host < b.Host:
			return -1
		case a.Host > b.Host:
			return 1
		}
		return 0
	})
	return r
}

// differing are the hosts of which the two know different trouble; nil when
// that is so of hosts without a row too.
func differing(a, b *ward) []string {
	if a.trouble("") != b.trouble("") {
		return nil
	}
	hosts := []string{} // none is not all
	names := map[string]bool{}
	for name := range a.rows {
		names[name] = true
	}
	for name := range b.rows {
		names[name] = true
	}
	for name := range names {
		if a.trouble(name) != b.trouble(name) {
			hosts = append(hosts, name)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// tell makes Events and log lines of what changed. A provider that is well at
// its first check is not worth a word.
func (m *Monitor) tell(name string, before, after ward) {
	say := func(warning bool, reason, message string) {
		m.o.Event(name, warning, reason, message)
		level := slog.LevelInfo
		if warning {
			level = slog.LevelWarn
		}
		m.o.Log.Log(context.Background(), level, "a provider's health changed", "provider", name, "event", reason, "message", message)
	}
	switch was, is := before.report.Err, after.report.Err; {
	case is != nil && (was == nil || fault.Of(was) != fault.Of(is)):
		say(true, EventCheckFailed, fmt.Sprintf("the hosts cannot be checked (%s): %v", fault.Of(is).Meaning().Reason, is))
		return
	case is != nil:
		return
	case was != nil:
		say(false, EventCheckRecovered, "the hosts can be checked again")
	}
	for _, h := range after.report.Hosts {
		was, had := before.rows[h.Host]
		switch {
		case h.Reason == was, h.Reason == provider.ReasonOK && !had:
		case h.Reason == provider.ReasonOK:
			say(false, EventHostRecovered, fmt.Sprintf("host %s is well again; it was %s", h.Host, was))
		default:
			say(true, EventHostInTrouble, fmt.Sprintf("host %s: %s: %s", h.Host, h.Reason, h.Message))
		}
	}
}
