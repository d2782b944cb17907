package api

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/httpd"
)

// metrics count what the API answers. Labels come from closed sets: the routes
// of routes.go and "unmatched", the known methods and "other", status codes.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fleetdesk_api_requests_total",
			Help: "Answered API requests.",
		}, []string{"route", "method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fleetdesk_api_request_duration_seconds",
			Help:    "Time from a request's header to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route", "method"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fleetdesk_api_requests_in_flight",
			Help: "API requests being answered now.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight} {
		if err := reg.Register(c); err != nil {
			return nil, fault.Errorf(fault.Conflict, "api: register metrics: %w", err)
		}
	}
	return m, nil
}

// answered counts one request that ended.
func (m *metrics) answered(route, method string, code int, took time.Duration) {
	method = httpd.KnownMethod(method)
	m.requests.WithLabelValues(route, method, strconv.Itoa(code)).Inc()
	m.duration.WithLabelValues(route, method).Observe(took.Seconds())
}
