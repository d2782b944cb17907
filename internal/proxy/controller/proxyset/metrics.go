package proxyset

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the controller's.
type metrics struct {
	replacements *prometheus.CounterVec
}

// newMetrics makes the metrics and registers them unless reg is nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{replacements: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "proxy_operator", Subsystem: "proxyset", Name: "replacements_total",
		Help: "Proxies of ProxySets that were deleted to be replaced, by cause: template, unhealthy, ban or age.",
	}, []string{"cause"})}
	for _, c := range []cause{causeTemplate, causeUnhealthy, causeBan, causeAge} {
		m.replacements.WithLabelValues(string(c)) // there from the start, so that the first one shows
	}
	if reg == nil {
		return m, nil
	}
	if err := reg.Register(m.replacements); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) replaced(c cause) { m.replacements.WithLabelValues(string(c)).Inc() }
