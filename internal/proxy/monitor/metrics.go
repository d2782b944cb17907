package monitor

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/proxy/provider"
)

// metrics are the monitor's; it calls them with its lock held.
type metrics struct {
	ok, free, last *prometheus.GaugeVec
	duration       *prometheus.HistogramVec
}

// newMetrics makes the metrics and registers them unless reg is nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const space, sub = "proxy_operator", "provider"
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: space, Subsystem: sub, Name: name, Help: help}, labels)
	}
	m := &metrics{
		ok:   gauge("host_ok", "Whether the last check found the host well: 1 or 0.", "provider", "host"),
		free: gauge("host_free_bytes", "Free space of the host's storage, where the provider knows it.", "provider", "host"),
		last: gauge("last_check_timestamp_seconds", "When a check of the provider last answered.", "provider"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: space, Subsystem: sub, Name: "check_duration_seconds",
			Help:    "How long checks of the provider took, also those that failed.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 2, 5, 10, 15, 30, 60},
		}, []string{"provider"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.ok, m.free, m.last, m.duration} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// keep shows a report; before are the hosts of the one before it.
func (m *metrics) keep(name string, before map[string]string, r Report, took time.Duration) {
	m.duration.WithLabelValues(name).Observe(took.Seconds())
	if r.Err != nil {
		return // the rows are those of the check before
	}
	m.last.WithLabelValues(name).Set(float64(r.Checked.UnixMilli()) / 1000)
	is := make(map[string]bool, len(r.Hosts))
	for _, h := range r.Hosts {
		is[h.Host] = true
		well := 0.0
		if h.Reason == provider.ReasonOK {
			well = 1
		}
		m.ok.WithLabelValues(name, h.Host).Set(well)
		if h.FreeBytes > 0 {
			m.free.WithLabelValues(name, h.Host).Set(float64(h.FreeBytes))
		} else {
			m.free.DeleteLabelValues(name, h.Host)
		}
	}
	for host := range before {
		if !is[host] {
			m.ok.DeleteLabelValues(name, host)
			m.free.DeleteLabelValues(name, host)
		}
	}
}

// forget drops the series of a provider that left.
func (m *metrics) forget(name string) {
	of := prometheus.Labels{"provider": name}
	m.ok.DeletePartialMatch(of)
	m.free.DeletePartialMatch(of)
	m.last.DeletePartialMatch(of)
	m.duration.DeletePartialMatch(of)
}
