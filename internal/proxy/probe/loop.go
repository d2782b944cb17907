package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/health"
)

// Options are what a Loop needs.
type Options struct {
	// Concurrency is how many probes run at once; zero is 32. Probes of proxies
	// that stall hold a place for their whole timeout.
	Concurrency int
	// Jitter is the part of the interval by which each pause is longer or
	// shorter at random, in 0..0.5; zero is 0.1.
	Jitter float64
	// AllowCIDRs are ranges that control requests may go to although they are
	// not public (--health-allow-cidr).
	AllowCIDRs []netip.Prefix
	// OwnOrigin is the operator's own origin endpoint as health URLs name it
	// (host:port or a URL); control requests to it are always allowed. Empty
	// for none.
	OwnOrigin string
	// Changed is called when State(key) changed in its state, facts or kind of
	// message; not for each probe. It is called from the loop's goroutines, one at
	// a time for each key, and must not block. Nil for none.
	Changed func(key string)
	// OnFailure is called for each probe that failed (not an inconclusive one),
	// counted or not, so that somebody may look at the instance directly. As
	// Changed. Nil for none.
	OnFailure func(key string)
	// Request makes one probe; nil is the package's Request. Tests script it.
	Request func(context.Context, Target, Check) Result
	// Control makes one control request; nil is [Direct.Ask]. Tests script it.
	Control func(context.Context, Check) (health.Control, error)
	// Metrics registers the loop's metrics; nil for none.
	Metrics prometheus.Registerer
	// Log gets one line for each change of state; nil for none.
	Log *slog.Logger
}

// Subject is a proxy to watch.
type Subject struct {
	// UID names the instance behind the key: another UID is another thing, and
	// what was known of the old one is forgotten.
	UID    string
	Target Target
	Check  Check
	// Interval is the time between two probes; zero is 30 s, at least 1 s.
	Interval time.Duration
	Policy   health.Policy
	// Before are facts known from an earlier time, of this UID and Target. They
	// stand until probes say otherwise, as if they had been found out here: a
	// start of the operator is no news. They count when the subject is added.
	Before Facts
}

// Snapshot is what is known of a subject.
type Snapshot struct {
	State health.State
	// Since is when State was entered; zero while it never changed.
	Since time.Time
	// Latency is the last passed probe's time to the first byte.
	Latency time.Duration
	// Facts are what the last probes say together.
	Facts Facts
	// Reason and Message describe the last probe; Message is for people.
	Reason  Reason
	Message string
	// Shallow: the last probe only knocked at the port.
	Shallow bool
	// Inconclusive: the last probe failed and proved nothing.
	Inconclusive bool
	// Checked is when the last probe ended; zero before the first.
	Checked time.Time
}

// Loop keeps the health of many proxies up to date. What it knows is derived
// from probes alone and lives in memory: after a restart everything is Unknown
// for as long as the first probes take.
type Loop struct {
	opts    Options
	log     *slog.Logger
	metrics *metrics
	// wake tells the scheduler that the schedule changed.
	wake chan struct{}

	mu       sync.Mutex
	running  bool
	subjects map[string]*entry
	queue    schedule
	fars     farEnds
}

// New returns a loop; [Loop.Run] makes it work. Options out of range are
// Invalid.
func New(o Options) (*Loop, error) {
	if o.Concurrency == 0 {
		o.Concurrency = 32
	}
	if o.Jitter == 0 {
		o.Jitter = 0.1
	}
	if o.Concurrency < 0 || o.Jitter < 0 || o.Jitter > 0.5 {
		return nil, fault.Errorf(fault.Invalid, "health loop: concurrency %d must be above 0 and jitter %g in 0..0.5", o.Concurrency, o.Jitter)
	}
	direct, err := NewDirect(o.AllowCIDRs, o.OwnOrigin)
	if err != nil {
		return nil, err
	}
	if o.Control == nil {
		o.Control = direct.Ask
	}
	if o.Request == nil {
		o.Request = Request
	}
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(string) {}
	}
	l := &Loop{
		opts:     o,
		log:      o.Log,
		wake:     make(chan struct{}, 1),
		subjects: map[string]*entry{},
		fars:     farEnds{},
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.metrics, err = newMetrics(o.Metrics, l.watched); err != nil {
		return nil, fmt.Errorf("health loop: %w", err)
	}
	return l, nil
}

// Watch adds a subject under a key, or changes it. What is the same keeps its
// schedule and its counts; another UID or Target starts anew as Unknown; another
// Check keeps the state. Each of these but the first probes at once, and drops
// what a running probe of before will say.
//
// Credentials belong to the Target: that the old ones passed, or were refused,
// says nothing of the new ones.
func (l *Loop) Watch(key string, s Subject) {
	s = s.withDefaults()
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.subjects[key]
	if old != nil && old.subject.UID == s.UID && old.subject.Target.equal(s.Target) && old.subject.Check.equal(s.Check) {
		old.subject.Policy = s.Policy
		if old.subject.Interval != s.Interval {
			old.subject.Interval = s.Interval
			if next := time.Now().Add(l.pause(s.Interval)); old.queued() && next.Before(old.due) {
				l.queue.move(old, next)
				l.nudge()
			}
		}
		return
	}
	// Joined before the old entry leaves, so that what is known of the far end
	// outlives a change of its only subject.
	fresh := &entry{key: key, subject: s, place: -1, far: l.fars.join(s.Check), record: before(s.Before)}
	if old != nil {
		if old.subject.UID == s.UID && old.subject.Target.equal(s.Target) {
			fresh.history, fresh.snapshot, fresh.tries = old.history, old.snapshot, old.tries
			fresh.counted = old.counted
			fresh.record = old.record.again()
			if old.subject.Check.sameTest(s.Check) {
				fresh.suspect, fresh.record = old.suspect, old.record
			}
		}
		l.drop(old)
	}
	l.subjects[key] = fresh
	// The zero time comes before every other: a new proxy does not wait behind
	// those whose turn is overdue.
	l.queue.add(fresh, time.Time{})
	l.nudge()
}

// Forget removes a subject. A probe of it that is running is cancelled, and
// what it says is dropped; an unknown key is fine.
func (l *Loop) Forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.subjects[key]; e != nil {
		delete(l.subjects, key)
		l.drop(e)
	}
}

// State returns what is known of a key, and whether it is watched.
func (l *Loop) State(key string) (Snapshot, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.subjects[key]
	if e == nil {
		return Snapshot{}, false
	}
	s := e.snapshot
	s.State, s.Since, s.Facts = e.history.Now(), e.history.Since, e.record.facts
	if s.Checked.IsZero() {
		s.Message = "not probed yet"
	}
	return s, true
}

// drop takes an entry out of everything; the caller holds the lock.
func (l *Loop) drop(e *entry) {
	l.queue.remove(e)
	if e.cancel != nil {
		e.cancel()
	}
	l.fars.leave(e.far)
}

func (l *Loop) watched() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(len(l.subjects))
}

// nudge wakes the scheduler; one waiting nudge is enough.
func (l *Loop) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// pause is an interval with jitter.
func (l *Loop) pause(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (1 + l.opts.Jitter*(2*rand.Float64()-1)))
}

// Run probes until ctx ends and returns nil then, with no goroutine left.
// What is known stays, and Run may be called again. A second Run beside a
// running one is a Conflict.
func (l *Loop) Run(ctx context.Context) error {
	l.mu.Lock()
	if l.running {
		l.mu.Unlock()
		return fault.New(fault.Conflict, "the health loop runs already")
	}
	l.running = true
	l.mu.Unlock()

	jobs := make(chan *entry)
	var workers sync.WaitGroup
	for range l.opts.Concurrency {
		workers.Go(func() {
			for e := range jobs {
				l.work(ctx, e)
			}
		})
	}
	l.schedule(ctx, jobs)
	close(jobs)
	workers.Wait()

	l.mu.Lock()
	l.running = false
	l.mu.Unlock()
	return nil
}

// schedule hands out entries as they become due.
func (l *Loop) schedule(ctx context.Context, jobs chan<- *entry) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		e, wait := l.next()
		if e != nil {
			select {
			case jobs <- e:
				continue
			case <-ctx.Done():
				l.requeue(e)
				return
			}
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
			return
		}
	}
}

// next takes the first due entry out of the queue, or says how long none is.
func (l *Loop) next() (*entry, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.queue.first()
	if e == nil {
		return nil, time.Hour
	}
	if wait := time.Until(e.due); wait > 0 {
		return nil, wait
	}
	l.queue.remove(e)
	return e, 0
}

// requeue puts back an entry whose probe was not made.
func (l *Loop) requeue(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subjects[e.key] == e {
		l.queue.add(e, e.due)
	}
}

// work makes one probe and keeps what it says, unless the entry was replaced
// or forgotten meanwhile.
func (l *Loop) work(ctx context.Context, e *entry) {
	l.mu.Lock()
	if l.subjects[e.key] != e {
		l.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.cancel = cancel
	subject, due := e.subject, e.due
	l.mu.Unlock()

	started := time.Now()
	if !due.IsZero() {
		l.metrics.late.Observe(max(0, started.Sub(due).Seconds()))
	}
	o := outcome{started: started, result: l.opts.Request(ctx, subject.Target, subject.Check)}
	o.ended = time.Now()
	if o.wantsControl() {
		o.control, o.controlErr = l.opts.Control(ctx, subject.Check)
		l.metrics.controls.WithLabelValues(string(o.control)).Inc()
		o.weighLateness()
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		l.requeue(e) // of use only when the loop itself ends
		return
	}
	l.keep(e, o)
}
