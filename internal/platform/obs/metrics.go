package obs

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry of its own (never the library's global one)
// that already holds the Go runtime's and the process's metrics, and
// fleetdesk_build_info: constant 1, labels version, revision and goversion.
func NewRegistry() *prometheus.Registry {
	b := Version()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fleetdesk_build_info",
		Help: "Constant 1; the labels say which build runs.",
		ConstLabels: prometheus.Labels{
			"version": b.Version, "revision": b.Revision, "goversion": b.Go,
		},
	})
	info.Set(1)
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		info,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return reg
}
