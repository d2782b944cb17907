package probe_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
)

func TestFiveThousand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		reg := prometheus.NewRegistry()
		l := w.start(t, probe.Options{Metrics: reg})
		const fleet = 5000
		for i := range fleet {
			l.Watch(fmt.Sprint("p", i), subject(fmt.Sprint("a", i)))
		}
		after(2 * time.Second)
		for i := range fleet {
			if s := state(t, l, fmt.Sprint("p", i)); s.State != health.Healthy {
				t.Fatalf("p%d is %s after 2 s", i, s.State)
			}
		}
		after(300 * time.Second)
		total := 0
		for i := range fleet {
			n := w.count(fmt.Sprint("a", i))
			if n < 9 || n > 13 {
				t.Fatalf("p%d: %d probes in 300 s", i, n)
			}
			total += n
		}
		if w.peak > 32 {
			t.Errorf("%d probes at once, want at most 32", w.peak)
		}
		// Spread: no second has much more than its share of fleet/30.
		perSecond := map[int64]int{}
		for _, times := range w.probes {
			for _, at := range times[3:] {
				perSecond[at.Unix()]++
			}
		}
		for second, n := range perSecond {
			if n > 4*fleet/30 {
				t.Errorf("%d probes in second %d: not spread", n, second)
			}
		}
		for i := range fleet {
			l.Forget(fmt.Sprint("p", i))
		}
		after(time.Minute)
		checkMetrics(t, reg, total)
	})
}

func checkMetrics(t *testing.T, reg *prometheus.Registry, probes int) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, label := range m.GetLabel() {
				name += "/" + label.GetName() + "=" + label.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	// Forgetting the fleet cancelled the probes that were running.
	passed := got["proxy_operator_health_probes_total/verdict=pass"]
	if passed > float64(probes) || passed < float64(probes-32) {
		t.Errorf("%v probes passed of %d", passed, probes)
	}
	for name, want := range map[string]float64{
		"proxy_operator_health_probe_duration_seconds":      passed,
		"proxy_operator_health_probe_late_seconds":          float64(probes - 5000),
		"proxy_operator_health_watched":                     0,
		"proxy_operator_health_controls_total/control=none": 0,
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	if len(got) > 10 {
		t.Errorf("%d series: a label grows with the fleet", len(got))
	}
}
