package probe_test

import (
	"crypto/x509"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
)

// TestNobodysSettingsChangeAnothersVerdict: whatever bystanders ask of the same
// URL, a working proxy is never Unhealthy because of the URL, and a broken one
// is found out while the URL works.
func TestNobodysSettingsChangeAnothersVerdict(t *testing.T) {
	cas := x509.NewCertPool()
	pools := []*x509.CertPool{nil, cas}
	type phase struct {
		status int
		takes  time.Duration
		cas    *x509.CertPool
	}
	rapid.Check(t, func(rt *rapid.T) {
		phases := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) phase {
			return phase{
				rapid.SampledFrom([]int{204, 503, 0}).Draw(rt, "status"),
				rapid.SampledFrom([]time.Duration{10 * time.Millisecond, 2 * time.Second, 20 * time.Second}).Draw(rt, "takes"),
				rapid.SampledFrom(pools).Draw(rt, "cas"),
			}
		}), 1, 3).Draw(rt, "phases")
		// In the last the URL works for the default check.
		last := phase{204, rapid.SampledFrom([]time.Duration{10 * time.Millisecond, 2 * time.Second}).Draw(rt, "takes at last"), nil}
		broken := rapid.SliceOfN(rapid.SampledFrom([]probe.Reason{"", "", probe.BadResponse, probe.ConnectFailed, probe.Timeout}), 1, 3).Draw(rt, "fleet")
		bystanders := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) probe.Subject {
			return probe.Subject{
				Check: probe.Check{
					URL:            healthURL,
					ExpectedStatus: rapid.SampledFrom([]int{204, 503}).Draw(rt, "expected"),
					Timeout:        rapid.SampledFrom([]time.Duration{100 * time.Millisecond, 5 * time.Second, time.Minute}).Draw(rt, "timeout"),
					CAs:            rapid.SampledFrom(pools).Draw(rt, "CAs"),
				},
				Interval: rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second, time.Minute}).Draw(rt, "interval"),
				Policy:   health.Policy{FailureThreshold: rapid.IntRange(1, 3).Draw(rt, "threshold")},
			}
		}), 1, 4).Draw(rt, "bystanders")

		var wrong string
		synctest.Test(t, func(t *testing.T) {
			w := newSite()
			l := w.start(t)
			for i, s := range bystanders {
				s.UID, s.Target = "u", probe.Target{Address: fmt.Sprint("by", i), Port: 1}
				l.Watch(s.Target.Address, s)
			}
			for i, reason := range broken {
				address := fmt.Sprint("p", i)
				w.set(func() { w.broken[address] = reason })
				s := subject(address)
				s.Policy.FailureThreshold = 2 // one failure may fall into a change of the URL
				l.Watch(address, s)
			}
			for n, now := range append(phases, last) {
				w.set(func() { w.status, w.takes, w.cas = now.status, now.takes, now.cas })
				for range 150 {
					after(time.Second)
					for i, reason := range broken {
						if s := state(t, l, fmt.Sprint("p", i)); wrong == "" && reason == "" && s.State == health.Unhealthy {
							wrong = fmt.Sprintf("phase %d: p%d works and is Unhealthy: %s", n, i, s.Message)
						}
					}
				}
			}
			for i, reason := range broken {
				want := health.Healthy
				if reason != "" {
					want = health.Unhealthy
				}
				if s := state(t, l, fmt.Sprint("p", i)); wrong == "" && s.State != want {
					wrong = fmt.Sprintf("at last: p%d, broken by %q, is %s: %s", i, reason, s.State, s.Message)
				}
			}
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}
