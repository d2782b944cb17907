package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/proxy/provider"
)

// Providers is where a Sweeper finds the providers in force.
type Providers interface {
	Names() []string
	Lookup(name string) (provider.Provider, error)
	// Epoch changes each time the provider of that name is built anew.
	Epoch(name string) uint64
}

// Options are what a Sweeper is made of.
type Options struct {
	Providers Providers
	// Book is what the Kubernetes API holds; see there.
	Book Book
	// Installation is the tag of the instances to judge.
	Installation string
	// Holder names this process among the claims: 8 to 32 characters of a-z
	// and 0-9, new with each start.
	Holder string
	// Interval is the time from one sweep of a provider to the next.
	Interval time.Duration
	// Grace is how old an orphan must be, and for how long it must have been
	// seen as one, before it goes.
	Grace time.Duration
	// DryRun makes sweeps report only. The operator's claims are renewed.
	DryRun bool
	// Changed, if any, is told the name of a provider whose report is new. It
	// must not block.
	Changed func(providerName string)
	// Event, if any, is told what people should hear of. It must not block.
	Event func(providerName string, warning bool, reason, message string)
	// Removed, if any, is told each instance that a sweep found or made gone.
	Removed func(providerName string, in provider.Instance)
	// Elapsed, if any, is the clock for the age of claims and of what was read.
	// Without one it is the machine's, which goes on while it sleeps.
	Elapsed func() time.Duration
	// Metrics, if any, is where the metrics are registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Sweeper is safe for concurrent use. Only the leader runs it.
type Sweeper struct {
	o Options
	m *metrics

	mu     sync.Mutex
	sheets map[string]*sheet
	kick   map[string]bool
	wake   chan struct{}
}

// sheet is one provider's part. What is below busy belongs to the sweep that
// runs, and is read by the next.
type sheet struct {
	report   *Report
	began    time.Time
	next     time.Time
	busy     bool
	memory   memory
	claims   claims
	beat     uint64
	epoch    uint64
	dead     []string
	lasted   time.Duration
	toldHash map[string]bool
	// toldErr are the errors that were logged and go on, by what failed.
	toldErr map[string]map[string]bool
}

// New returns a Sweeper; Run starts it. Its metrics are
// proxy_operator_sweep_runs_total{provider,result} with the results clean,
// found, held and failed, proxy_operator_sweep_removed_total{provider,what},
// and the gauges proxy_operator_orphans, proxy_operator_leftovers,
// proxy_operator_abandoned, proxy_operator_sweep_held (0 or 1),
// proxy_operator_identity_conflicts and
// proxy_operator_sweep_last_success_timestamp_seconds, all by {provider}. The
// series of a provider that left the configuration are dropped.
func New(o Options) (*Sweeper, error) {
	switch {
	case o.Providers == nil || o.Book == nil:
		return nil, errors.New("sweep: it needs providers and a book")
	case o.Installation == "":
		return nil, errors.New("sweep: an installation without a name has no orphans")
	case o.Interval <= 0:
		return nil, fmt.Errorf("sweep: the interval must be more than 0, not %v", o.Interval)
	case o.Grace < 0:
		return nil, fmt.Errorf("sweep: the grace must be 0 or more, not %v", o.Grace)
	}
	if !goodHolder(o.Holder) {
		return nil, fmt.Errorf("sweep: %q does not name a process: 8 to 32 characters of a-z and 0-9 do", o.Holder)
	}
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	if o.Event == nil {
		o.Event = func(string, bool, string, string) {}
	}
	if o.Removed == nil {
		o.Removed = func(string, provider.Instance) {}
	}
	if o.Elapsed == nil {
		o.Elapsed = proc.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	return &Sweeper{o: o, m: m, sheets: map[string]*sheet{}, kick: map[string]bool{}, wake: make(chan struct{}, 1)}, nil
}

func goodHolder(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(s) >= 8 && len(s) <= 32
}

// Report returns what the last sweep of the provider found and did.
func (s *Sweeper) Report(providerName string) (Report, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.sheets[providerName]; sh != nil && sh.report != nil {
		return *sh.report, true
	}
	return Report{}, false
}

// Kick asks for a sweep of that provider soon, ahead of its interval.
func (s *Sweeper) Kick(providerName string) {
	s.mu.Lock()
	s.kick[providerName] = true
	s.mu.Unlock()
	s.signal()
}

func (s *Sweeper) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// farewell bounds the time in which Run takes the claims back.
const farewell = 5 * time.Second

// Run sweeps every provider each interval until ctx ends. Providers are swept
// side by side, each at most once at a time, so that a mute one delays none. At
// the end it takes this operator's claims back, as far as hosts answer soon.
func (s *Sweeper) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer s.withdraw(ctx)
	defer group.Wait()
	for {
		timer := time.NewTimer(s.start(ctx, &group))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// withdraw takes this operator's claims back, so that the next one need not wait
// until they are old. No sweep runs any more.
func (s *Sweeper) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	s.mu.Lock()
	sheets := maps.Clone(s.sheets)
	s.mu.Unlock()
	var group sync.WaitGroup
	for name, sh := range sheets {
		if sh.beat == 0 {
			continue
		}
		sh.beat++
		group.Go(func() {
			if err := s.unclaim(ctx, name, sh.beat); err != nil {
				s.o.Log.Warn("claims could not be taken back: the next operator waits until they are old", "provider", name,
					"class", string(fault.Of(err)), "error", err)
			}
		})
	}
	group.Wait()
}

func (s *Sweeper) unclaim(ctx context.Context, name string, beat uint64) error {
	p, err := s.o.Providers.Lookup(name)
	if err != nil {
		return fmt.Errorf("look the provider up: %w", err)
	}
	c, ok := provider.As[provider.Claimer](p)
	if !ok {
		return nil
	}
	rows, err := c.Claim(ctx, provider.Claim{
		Installation: s.o.Installation, Holder: s.o.Holder,
		Beat: beat, Period: time.Second, Dead: []string{s.o.Holder},
	})
	for _, r := range rows {
		if err == nil && r.Err != nil {
			err = r.Err
		}
	}
	return err //nolint:wrapcheck // the caller names the provider, and the row its host
}

// start begins the sweeps that are due and returns the time to the next.
func (s *Sweeper) start(ctx context.Context, group *sync.WaitGroup) time.Duration {
	names := s.o.Providers.Names()
	now := time.Now()
	wait := s.o.Interval
	s.mu.Lock()
	defer s.mu.Unlock()
	configured := make(map[string]bool, len(names))
	for _, name := range names {
		configured[name] = true
		sh := s.sheets[name]
		if sh == nil {
			sh = &sheet{toldHash: map[string]bool{}, toldErr: map[string]map[string]bool{}}
			s.sheets[name] = sh
		}
		if sh.busy {
			continue
		}
		if s.kick[name] {
			// However many ask, a provider is swept at most once a second.
			if soon := sh.began.Add(time.Second); soon.Before(sh.next) {
				sh.next = soon
			}
			delete(s.kick, name)
		}
		if sh.next.After(now) {
			wait = min(wait, sh.next.Sub(now))
			continue
		}
		sh.busy, sh.began = true, now
		// A tenth of jitter keeps many providers from sweeping in step.
		sh.next = now.Add(s.o.Interval - time.Duration(rand.Float64()*float64(s.o.Interval)/10))
		wait = min(wait, sh.next.Sub(now))
		group.Go(func() { s.one(ctx, name, sh) })
	}
	for name, sh := range s.sheets {
		if !configured[name] && !sh.busy {
			delete(s.sheets, name)
			s.m.drop(name)
		}
	}
	for name := range s.kick {
		if !configured[name] {
			delete(s.kick, name)
		}
	}
	return max(wait, time.Millisecond)
}

// one makes one sweep and keeps its report, unless the operator ends.
func (s *Sweeper) one(ctx context.Context, name string, sh *sheet) {
	began := time.Now()
	// The next claim is promised for three times the interval, or as long as
	// this takes; see the claim. A sweep that is cut off goes on in the next.
	limited, cancel := context.WithTimeout(ctx, 2*max(s.o.Interval, shortest))
	w := &work{s: s, name: name, sh: sh}
	s.mu.Lock()
	w.last = sh.report
	s.mu.Unlock()
	w.run(limited)
	cancel()
	sh.lasted = time.Since(began)
	w.report.Time, w.report.DryRun = time.Now(), s.o.DryRun
	s.mu.Lock()
	if ctx.Err() == nil {
		sh.report = &w.report
	}
	sh.busy = false
	s.mu.Unlock()
	if ctx.Err() == nil {
		w.tell()
		s.o.Changed(name)
	}
	s.signal()
}
