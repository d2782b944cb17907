package probe

import (
	"fmt"
	"math/rand/v2"
	"time"

	"fleetdesk/internal/core/health"
)

// firstRetry is the pause after the first failed probe of a proxy that never
// passed one: it doubles up to the interval.
const firstRetry = 500 * time.Millisecond

// outcome is one probe with its control request.
type outcome struct {
	started, ended time.Time
	result         Result
	control        health.Control
	controlErr     error
}

// wantsControl reports whether a control request could excuse the failure.
func (o outcome) wantsControl() bool {
	return !o.result.OK && !o.result.Shallow && !o.result.Reason.own()
}

// weighLateness decides what a far end that works, but slower than the check
// waits, says about this failure. Whatever came past the proxy's port (a
// timeout, a gateway error, a closed connection) is what a working proxy would
// have shown as well: an excuse. That the port took no connection has nothing
// to do with the far end, and an answer, however late, shows that our own
// network is up: no excuse, or a dead machine behind an impatient check would
// stay healthy for ever.
func (o *outcome) weighLateness() {
	if o.control == health.ControlLate && o.result.Reason == ConnectFailed {
		o.control, o.controlErr = health.ControlPassed, nil
	}
}

// kind is what a change of calls Options.Changed.
type kind struct {
	state                 health.State
	facts                 Facts
	reason                Reason
	shallow, inconclusive bool
	refused               bool
}

func (e *entry) kind() kind {
	s := e.snapshot
	return kind{e.history.Now(), e.record.facts, s.Reason, s.Shallow, s.Inconclusive, e.refused}
}

// keep adds an outcome to an entry, plans its next probe and tells whom it
// concerns.
func (l *Loop) keep(e *entry, o outcome) {
	l.mu.Lock()
	if l.subjects[e.key] != e {
		l.mu.Unlock()
		return
	}
	before, old := e.kind(), e.history.Now()
	now := time.Now()
	verdict := l.judge(e, o, now)
	e.note(o, verdict, now)
	e.tries++
	l.queue.add(e, now.Add(l.nextPause(e, verdict)))
	l.nudge()
	changed := e.kind() != before
	state, message := e.history.Now(), e.snapshot.Message
	l.mu.Unlock()

	l.metrics.probes.WithLabelValues(string(verdict)).Inc()
	l.metrics.duration.Observe(o.ended.Sub(o.started).Seconds())
	if state != old {
		l.log.Info("proxy health changed", "proxy", e.key, "from", string(old), "to", string(state), "message", message)
	}
	if changed {
		l.opts.Changed(e.key)
	}
	if verdict == health.Fail {
		l.opts.OnFailure(e.key)
	}
}

// judge turns an outcome into a verdict and steps the entry's history; the
// caller holds the lock.
func (l *Loop) judge(e *entry, o outcome, now time.Time) health.Verdict {
	verdict := health.Judge(!o.result.OK, o.control, e.far.ended, e.subject.Interval, now)
	count := true
	switch verdict {
	case health.Pass:
		l.fars.passed(e.far, o.started, o.ended)
		e.suspect = time.Time{}
	case health.Inconclusive:
		e.suspect = time.Time{}
	case health.Fail:
		count = !e.premature(o) && !e.early(now)
		if count {
			e.counted = now
		}
	}
	if count {
		e.history = health.Step(e.subject.Policy, e.history, verdict, now)
		if verdict != health.Inconclusive {
			e.record.add(o.result)
		}
	}
	return verdict
}

// premature reports whether a failure must wait for the next probe before it
// counts. The control failed too, and only a success of before speaks for the
// URL: if the URL died a moment ago, that success proves nothing, and with a
// low threshold the fleet would turn Unhealthy in the interval before the rule
// of the last interval helps. A success that began after the first such
// failure settles it.
func (e *entry) premature(o outcome) bool {
	if !o.control.Excuses() {
		return false
	}
	if e.suspect.IsZero() {
		e.suspect = o.ended
	}
	return !e.far.started.After(e.suspect)
}

// early reports whether a failure is one of the quick first tries, which must
// not use up the threshold sooner than probes at the interval would: the
// machine may still be starting.
func (e *entry) early(now time.Time) bool {
	return e.history.Now() == health.Unknown && !e.counted.IsZero() &&
		now.Sub(e.counted) < e.subject.Interval*4/5
}

// note keeps what an outcome says for people; history is up to date.
func (e *entry) note(o outcome, verdict health.Verdict, now time.Time) {
	s := &e.snapshot
	s.Checked = now
	s.Reason = o.result.Reason
	s.Shallow = o.result.Shallow
	s.Inconclusive = verdict == health.Inconclusive
	e.refused = o.control == health.ControlRefused
	if o.result.OK {
		s.Latency = o.result.Latency
	}
	s.Message = e.message(o, verdict)
}

func (e *entry) message(o outcome, verdict health.Verdict) string {
	switch {
	case verdict == health.Pass && o.result.Shallow:
		return "the proxy's port answers; this check is shallow, since no health URL is known: set healthCheck.url or --health-check-url"
	case verdict == health.Pass:
		return "a request through the proxy was answered as expected"
	case verdict == health.Inconclusive:
		return fmt.Sprintf("inconclusive: %v; but the direct control request failed as well (%v), and no proxy passed this check in the last %s, so the state stays",
			o.result.Err, o.controlErr, e.subject.Interval)
	case e.refused:
		return fmt.Sprintf("%v; no control request was made: %v", o.result.Err, o.controlErr)
	case o.result.Shallow:
		return fmt.Sprintf("%v (shallow check: no health URL is known)", o.result.Err)
	}
	return fmt.Sprint(o.result.Err)
}

// nextPause says how long to wait after a probe; the caller holds the lock.
func (l *Loop) nextPause(e *entry, verdict health.Verdict) time.Duration {
	interval := e.subject.Interval
	if e.history.Now() == health.Unknown && verdict != health.Pass && e.tries < 16 {
		if quick := firstRetry << (e.tries - 1); quick < interval {
			return l.pause(quick)
		}
	}
	if e.tries == 1 {
		// Proxies that were added together are spread out.
		return time.Duration(float64(interval) * (0.5 + rand.Float64()/2))
	}
	return l.pause(interval)
}

func (s Subject) withDefaults() Subject {
	if s.Interval == 0 {
		s.Interval = DefaultInterval
	}
	s.Interval = max(s.Interval, time.Second)
	s.Target = s.Target.withDefaults()
	s.Check = s.Check.withDefaults()
	return s
}
