package guard

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/proxy/provider"
)

// Metrics are the collectors that all providers of an operator share.
type Metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	hosts    *prometheus.CounterVec
	changes  *prometheus.CounterVec
}

// NewMetrics registers:
//
//	proxy_operator_provider_calls_total{provider,method,class}
//	proxy_operator_provider_call_duration_seconds{provider,method}
//	proxy_operator_provider_host_list_errors_total{provider,host,class}
//	proxy_operator_provider_changes_total{provider}
//
// class is "ok" or a label of fault.Table. The third counts the rows of
// listings that were errors, which the first does not show; the fourth what
// providers told of by themselves.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_provider_calls_total",
			Help: "Calls of providers, by the class of their error.",
		}, []string{"provider", "method", "class"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "proxy_operator_provider_call_duration_seconds",
			Help:    "How long calls of providers took.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 2, 5, 10, 20, 30, 60},
		}, []string{"provider", "method"}),
		hosts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_provider_host_list_errors_total",
			Help: "Hosts whose instances could not be listed whole, by the class of the error.",
		}, []string{"provider", "host", "class"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_provider_changes_total",
			Help: "Changes of instances that providers told of by themselves.",
		}, []string{"provider"}),
	}
	for _, c := range []prometheus.Collector{m.calls, m.duration, m.hosts, m.changes} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Wrap returns inner with its calls counted under that name.
func (m *Metrics) Wrap(inner provider.Provider, name string) provider.Provider {
	return &metered{inner: inner, name: name, m: m}
}

// Forget drops the series of a provider that left the configuration.
func (m *Metrics) Forget(name string) {
	is := prometheus.Labels{"provider": name}
	m.calls.DeletePartialMatch(is)
	m.duration.DeletePartialMatch(is)
	m.hosts.DeletePartialMatch(is)
	m.changes.DeletePartialMatch(is)
}

type metered struct {
	inner provider.Provider
	name  string
	m     *Metrics
}

func label(err error) string {
	if err == nil {
		return "ok"
	}
	return provider.Class(err).Meaning().Label
}

func (m *metered) count(method string, start time.Time, err error) {
	m.m.calls.WithLabelValues(m.name, method, label(err)).Inc()
	m.m.duration.WithLabelValues(m.name, method).Observe(time.Since(start).Seconds())
}

func (m *metered) Place(ctx context.Context, spec provider.Spec) (string, error) {
	start := time.Now()
	host, err := m.inner.Place(ctx, spec)
	m.count("Place", start, err)
	return host, err
}

func (m *metered) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	start := time.Now()
	in, err := m.inner.Create(ctx, spec)
	m.count("Create", start, err)
	return in, err
}

func (m *metered) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	start := time.Now()
	in, err := m.inner.Get(ctx, ref)
	m.count("Get", start, err)
	return in, err
}

func (m *metered) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	start := time.Now()
	state, err := m.inner.Delete(ctx, ref)
	m.count("Delete", start, err)
	return state, err
}

func (m *metered) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	start := time.Now()
	rows, err := m.inner.ListByTag(ctx, installation)
	m.count("ListByTag", start, err)
	for _, r := range rows {
		if r.Err != nil {
			m.m.hosts.WithLabelValues(m.name, r.Host, label(r.Err)).Inc()
		}
	}
	return rows, err
}

func (m *metered) Check(ctx context.Context) ([]provider.HostHealth, error) {
	c, ok := provider.As[provider.Checker](m.inner)
	if !ok {
		return nil, unsupported(m.name, "Check")
	}
	start := time.Now()
	rows, err := c.Check(ctx)
	m.count("Check", start, err)
	return rows, err
}

// Watch counts each change that it tells; it is no call, and has no class.
func (m *metered) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	w, ok := provider.As[provider.Watcher](m.inner)
	if !ok {
		return unsupported(m.name, "Watch")
	}
	told := m.m.changes.WithLabelValues(m.name)
	return w.Watch(ctx, installation, func(c provider.Change) {
		told.Inc()
		changed(c)
	})
}

func (m *metered) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	inner, ok := provider.As[provider.Claimer](m.inner)
	if !ok {
		return nil, unsupported(m.name, "Claim")
	}
	start := time.Now()
	rows, err := inner.Claim(ctx, c)
	m.count("Claim", start, err)
	return rows, err
}

func (m *metered) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	c, ok := provider.As[provider.Cleaner](m.inner)
	if !ok {
		return nil, unsupported(m.name, "Leftovers")
	}
	start := time.Now()
	rows, err := c.Leftovers(ctx, installation, keep)
	m.count("Leftovers", start, err)
	return rows, err
}

func (m *metered) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	c, ok := provider.As[provider.Cleaner](m.inner)
	if !ok {
		return unsupported(m.name, "RemoveLeftover")
	}
	start := time.Now()
	err := c.RemoveLeftover(ctx, installation, l)
	m.count("RemoveLeftover", start, err)
	return err
}

func (m *metered) Unwrap() provider.Provider { return m.inner }

func (m *metered) Close() error { return closed(m.inner) }
