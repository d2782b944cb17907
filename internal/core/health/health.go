// Package health turns single verdicts over time into a state that people and
// schedulers can act on: it changes only after enough equal verdicts in a row,
// and a test that proved nothing never changes it. It does no I/O; time
// arrives as an argument.
package health

import "time"

// Verdict is what one test of one thing proved.
type Verdict string

// The verdicts. The values are stable: they label metrics.
const (
	// Pass: it works.
	Pass Verdict = "pass"
	// Fail: it does not work.
	Fail Verdict = "fail"
	// Inconclusive: the test proved nothing about the thing tested.
	Inconclusive Verdict = "inconclusive"
)

// State is what many verdicts together say.
type State string

// The states.
const (
	// Unknown: not enough verdicts yet.
	Unknown State = "Unknown"
	// Healthy: it works.
	Healthy State = "Healthy"
	// Unhealthy: it does not work.
	Unhealthy State = "Unhealthy"
)

// The thresholds that stand for zero in a [Policy].
const (
	DefaultFailureThreshold = 3
	DefaultSuccessThreshold = 1
)

// Policy says how many equal verdicts in a row change a state.
type Policy struct {
	// FailureThreshold is the number of Fail in a row that makes a thing
	// Unhealthy; zero or less means DefaultFailureThreshold.
	FailureThreshold int
	// SuccessThreshold is the number of Pass in a row that makes a thing
	// Healthy; zero or less means DefaultSuccessThreshold.
	SuccessThreshold int
}

// History is a state with what led to it. The zero value is Unknown without
// any verdict.
type History struct {
	// State is the state; empty means Unknown, see [History.Now].
	State State
	// Since is when State was entered; zero before the first change.
	Since time.Time
	// Passes and Fails count the verdicts in a row that speak for a change or
	// confirm the state; at most one of them is above zero. They do not grow
	// past the threshold.
	Passes, Fails int
	// Last is the newest verdict and At when it came; for display. An
	// Inconclusive shows only here.
	Last Verdict
	At   time.Time
}

// Now returns the state, Unknown for the zero value.
func (h History) Now() State {
	if h.State == "" {
		return Unknown
	}
	return h.State
}

// Step adds a verdict to a history. Inconclusive is remembered and changes
// nothing else: neither the state nor a count, so it neither helps nor breaks
// a run. An unknown verdict is taken for Inconclusive.
func Step(p Policy, h History, v Verdict, now time.Time) History {
	h.State = h.Now()
	h.Last, h.At = v, now
	to, count := h.State, 0
	switch v {
	case Pass:
		h.Fails = 0
		h.Passes = min(h.Passes+1, p.success())
		to, count = Healthy, h.Passes-p.success()
	case Fail:
		h.Passes = 0
		h.Fails = min(h.Fails+1, p.failure())
		to, count = Unhealthy, h.Fails-p.failure()
	default:
		h.Last = Inconclusive
	}
	if count >= 0 && to != h.State {
		h.State, h.Since = to, now
	}
	return h
}

func (p Policy) failure() int {
	if p.FailureThreshold <= 0 {
		return DefaultFailureThreshold
	}
	return p.FailureThreshold
}

func (p Policy) success() int {
	if p.SuccessThreshold <= 0 {
		return DefaultSuccessThreshold
	}
	return p.SuccessThreshold
}

// Control is what the direct control request said: the same request as the
// test's, made without the thing tested.
type Control string

// The outcomes of a control request. The values are stable: they label
// metrics.
const (
	// ControlNone: none was made.
	ControlNone Control = "none"
	// ControlPassed: the far side works.
	ControlPassed Control = "passed"
	// ControlFailed: the far side does not work from here either.
	ControlFailed Control = "failed"
	// ControlLate: the far side works, but took longer than the test would
	// have waited. A test that reached it could not pass; that excuses as a
	// failure does.
	ControlLate Control = "late"
	// ControlRefused: our own rules forbid the request. That is not a failure
	// of the far side and excuses nothing.
	ControlRefused Control = "refused"
)

// Excuses reports whether the control request found the far side unable to
// pass the test, so that a failed test may prove nothing.
func (c Control) Excuses() bool { return c == ControlFailed || c == ControlLate }

// Judge says what a test proved. A failed test is Inconclusive only when the
// control request [Control.Excuses] it and nothing succeeded on the same far side in
// the last interval: lastSuccess is when anything last did, zero for never. A
// success exactly one interval ago still counts.
func Judge(failed bool, control Control, lastSuccess time.Time, interval time.Duration, now time.Time) Verdict {
	switch {
	case !failed:
		return Pass
	case !control.Excuses():
		return Fail
	case !lastSuccess.IsZero() && now.Sub(lastSuccess) <= interval:
		return Fail
	}
	return Inconclusive
}
