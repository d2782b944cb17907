package probe

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the loop's; none has a label of a proxy.
type metrics struct {
	probes   *prometheus.CounterVec
	controls *prometheus.CounterVec
	duration prometheus.Histogram
	late     prometheus.Histogram
}

// newMetrics makes the metrics and registers them unless reg is nil.
func newMetrics(reg prometheus.Registerer, watched func() float64) (*metrics, error) {
	const space, sub = "proxy_operator", "health"
	buckets := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	m := &metrics{
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: space, Subsystem: sub, Name: "probes_total",
			Help: "Probes of proxies by verdict: pass, fail, inconclusive.",
		}, []string{"verdict"}),
		controls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: space, Subsystem: sub, Name: "controls_total",
			Help: "Failed probes that asked the direct control request, by its answer: passed, late, failed, refused, none.",
		}, []string{"control"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: space, Subsystem: sub, Name: "probe_duration_seconds", Buckets: buckets,
			Help: "Time of one probe from its first packet to its verdict, without the control request.",
		}),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: space, Subsystem: sub, Name: "probe_late_seconds", Buckets: buckets,
			Help: "How long after its turn a probe began; grows when the concurrency is too low.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.probes, m.controls, m.duration, m.late, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: space, Subsystem: sub, Name: "watched",
		Help: "Proxies being watched.",
	}, watched)} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
