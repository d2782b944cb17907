package sweep

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the sweeps'; New's comment lists them.
type metrics struct {
	runs, removed *prometheus.CounterVec
	orphans       *prometheus.GaugeVec
	leftovers     *prometheus.GaugeVec
	abandoned     *prometheus.GaugeVec
	held          *prometheus.GaugeVec
	conflicts     *prometheus.GaugeVec
	success       *prometheus.GaugeVec
}

// newMetrics makes the metrics and registers them unless reg is nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const space = "proxy_operator"
	counter := func(name, help string, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: space, Name: name, Help: help}, []string{"provider", label})
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: space, Name: name, Help: help}, []string{"provider"})
	}
	m := &metrics{
		runs:      counter("sweep_runs_total", "Sweeps for leftovers by result: clean, found, held, failed.", "result"),
		removed:   counter("sweep_removed_total", "Things that sweeps removed, by what they were.", "what"),
		orphans:   gauge("orphans", "Instances whose Proxy does not exist, as of the last sweep; abandoned ones are not among them."),
		leftovers: gauge("leftovers", "Things other than instances that nothing uses, as of the last sweep."),
		abandoned: gauge("abandoned", "Instances that were left to a person, as of the last sweep."),
		held:      gauge("sweep_held", "1 while the fuse holds orphans back until a person releases them."),
		conflicts: gauge("identity_conflicts", "Other live operators with this installation's identity."),
		success:   gauge("sweep_last_success_timestamp_seconds", "When the last sweep ended that could look."),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.runs, m.removed, m.orphans, m.leftovers, m.abandoned, m.held, m.conflicts, m.success} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// drop takes the series of a provider away that left the configuration.
func (m *metrics) drop(name string) {
	is := prometheus.Labels{"provider": name}
	m.runs.DeletePartialMatch(is)
	m.removed.DeletePartialMatch(is)
	for _, g := range []*prometheus.GaugeVec{m.orphans, m.leftovers, m.abandoned, m.held, m.conflicts, m.success} {
		g.DeletePartialMatch(is)
	}
}
