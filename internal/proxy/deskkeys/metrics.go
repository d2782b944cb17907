package deskkeys

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
)

type metrics struct {
	writes   *prometheus.CounterVec
	compared prometheus.Counter
	failing  prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, backlog func() float64) (*metrics, error) {
	const namespace, subsystem = "proxy_operator", "desk"
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "row_writes_total",
			Help: "Changes of the desk's keys and pools by result: done, refused (by a rule), failed (tried again).",
		}, []string{"result"}),
		compared: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "row_comparisons_total",
			Help: "Comparisons of all rows with the database.",
		}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "rows_failing",
			Help: "1 while the desk's rows cannot be written, so that takers do not see changes of Proxies.",
		}),
	}
	for _, result := range []string{"done", "refused", "failed"} {
		m.writes.WithLabelValues(result)
	}
	if r == nil {
		return m, nil
	}
	queue := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "rows_queued",
		Help: "Proxies and namespaces that wait to be compared with the desk.",
	}, backlog)
	var errs []error
	for _, c := range []prometheus.Collector{m.writes, m.compared, m.failing, queue} {
		errs = append(errs, r.Register(c))
	}
	return m, fault.Wrap(fault.Conflict, errors.Join(errs...))
}
