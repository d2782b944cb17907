package health_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetdesk/internal/core/health"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

// run steps through one verdict a second: p, f and i.
func run(p health.Policy, verdicts string) health.History {
	var h health.History
	for n, c := range verdicts {
		v := map[rune]health.Verdict{'p': health.Pass, 'f': health.Fail, 'i': health.Inconclusive}[c]
		h = health.Step(p, h, v, at(n))
	}
	return h
}

func TestStep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		policy   health.Policy
		verdicts string
		want     health.History
	}{
		"first pass": {
			reason:   "one pass is enough by default, so that a new proxy is ready at once",
			verdicts: "p",
			want:     health.History{State: health.Healthy, Since: at(0), Passes: 1, Last: health.Pass, At: at(0)},
		},
		"first fails": {
			reason:   "a thing never seen working is Unhealthy only after the whole threshold",
			policy:   health.Policy{FailureThreshold: 2},
			verdicts: "f",
			want:     health.History{State: health.Unknown, Fails: 1, Last: health.Fail, At: at(0)},
		},
		"enough fails": {
			reason:   "the third fail in a row changes the state by default",
			verdicts: "pfff",
			want:     health.History{State: health.Unhealthy, Since: at(3), Fails: 3, Last: health.Fail, At: at(3)},
		},
		"a pass between breaks the run": {
			reason:   "only verdicts in a row count",
			verdicts: "pffpff",
			want:     health.History{State: health.Healthy, Since: at(0), Fails: 2, Last: health.Fail, At: at(5)},
		},
		"inconclusive neither helps nor breaks": {
			reason:   "it proves nothing, so the count before it stands",
			verdicts: "pffif",
			want:     health.History{State: health.Unhealthy, Since: at(4), Fails: 3, Last: health.Fail, At: at(4)},
		},
		"inconclusive is remembered": {
			reason:   "people must see why nothing changes",
			verdicts: "pi",
			want:     health.History{State: health.Healthy, Since: at(0), Passes: 1, Last: health.Inconclusive, At: at(1)},
		},
		"recovery needs its threshold": {
			reason:   "one lucky answer must not put a flapping thing back",
			policy:   health.Policy{FailureThreshold: 1, SuccessThreshold: 2},
			verdicts: "fp",
			want:     health.History{State: health.Unhealthy, Since: at(0), Passes: 1, Last: health.Pass, At: at(1)},
		},
		"since stays while the state stays": {
			reason:   "Since is the change, not the last verdict",
			verdicts: "ppp",
			want:     health.History{State: health.Healthy, Since: at(0), Passes: 1, Last: health.Pass, At: at(2)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, run(tc.policy, tc.verdicts)); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestZeroHistoryIsUnknown(t *testing.T) {
	if got := (health.History{}).Now(); got != health.Unknown {
		t.Errorf("state of the zero history = %q, want Unknown", got)
	}
}

// TestStepProperties walks random verdicts and holds, at each step, that the
// state is what a plain reading of the whole sequence says.
func TestStepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := health.Policy{
			FailureThreshold: rapid.IntRange(1, 4).Draw(t, "failureThreshold"),
			SuccessThreshold: rapid.IntRange(1, 4).Draw(t, "successThreshold"),
		}
		verdicts := rapid.SliceOfN(rapid.SampledFrom([]health.Verdict{
			health.Pass, health.Fail, health.Inconclusive,
		}), 1, 60).Draw(t, "verdicts")

		var h health.History
		var said []health.Verdict // without the inconclusive ones
		for n, v := range verdicts {
			before := h
			h = health.Step(policy, h, v, at(n))
			if v != health.Inconclusive {
				said = append(said, v)
			}
			if h.Last != v || !h.At.Equal(at(n)) {
				t.Fatalf("step %d: last verdict %v at %v, want %v at %v", n, h.Last, h.At, v, at(n))
			}
			if h.Passes > 0 && h.Fails > 0 {
				t.Fatalf("step %d: both counts above zero: %+v", n, h)
			}
			if v == health.Inconclusive {
				if h.Now() != before.Now() || h.Since != before.Since || h.Passes != before.Passes || h.Fails != before.Fails {
					t.Fatalf("step %d: inconclusive changed %+v to %+v", n, before, h)
				}
				continue
			}
			switch enough := inARow(said) >= threshold(policy, v); {
			case enough && h.Now() != stateOf(v):
				t.Fatalf("step %d: %d times %s in a row left the state %s", n, inARow(said), v, h.Now())
			case !enough && h.Now() != before.Now():
				t.Fatalf("step %d: state went from %s to %s after only %d times %s", n, before.Now(), h.Now(), inARow(said), v)
			}
			if changed := h.Now() != before.Now(); changed != !h.Since.Equal(before.Since) {
				t.Fatalf("step %d: changed=%v but Since went from %v to %v", n, changed, before.Since, h.Since)
			}
		}
	})
}

func inARow(vs []health.Verdict) int {
	n := 0
	for n < len(vs) && vs[len(vs)-1-n] == vs[len(vs)-1] {
		n++
	}
	return n
}

func threshold(p health.Policy, v health.Verdict) int {
	if v == health.Pass {
		return p.SuccessThreshold
	}
	return p.FailureThreshold
}

func stateOf(v health.Verdict) health.State {
	if v == health.Pass {
		return health.Healthy
	}
	return health.Unhealthy
}

func TestJudge(t *testing.T) {
	const interval = 30 * time.Second
	now := at(1000)
	for name, tc := range map[string]struct {
		reason  string
		failed  bool
		control health.Control
		last    time.Time
		want    health.Verdict
	}{
		"passed":                    {"a pass needs no excuse", false, health.ControlFailed, time.Time{}, health.Pass},
		"control passed":            {"the far side works, so the thing tested does not", true, health.ControlPassed, time.Time{}, health.Fail},
		"no control":                {"without a control there is no excuse", true, health.ControlNone, time.Time{}, health.Fail},
		"control refused":           {"a control that we forbid says nothing about the far side", true, health.ControlRefused, time.Time{}, health.Fail},
		"control late, no pass":     {"the far side is slower than the test waits, so nothing could pass", true, health.ControlLate, time.Time{}, health.Inconclusive},
		"control late, fresh":       {"somebody passed in time, so it is slow for us alone", true, health.ControlLate, now.Add(-time.Second), health.Fail},
		"control failed, no pass":   {"nobody reaches the far side", true, health.ControlFailed, time.Time{}, health.Inconclusive},
		"control failed, old pass":  {"a success before the last interval is no evidence", true, health.ControlFailed, now.Add(-interval - 1), health.Inconclusive},
		"control failed, fresh":     {"somebody reached it, so only our own way out is closed", true, health.ControlFailed, now.Add(-time.Second), health.Fail},
		"control failed, just then": {"the interval includes its end", true, health.ControlFailed, now.Add(-interval), health.Fail},
	} {
		t.Run(name, func(t *testing.T) {
			if got := health.Judge(tc.failed, tc.control, tc.last, interval, now); got != tc.want {
				t.Errorf("verdict %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}
