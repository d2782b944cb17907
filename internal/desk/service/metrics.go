package service

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// metrics count what the desk does. Labels come from closed sets; names of
// pools, keys and accounts are not among them.
type metrics struct {
	ops          *prometheus.CounterVec
	batch        prometheus.Histogram
	transactions *prometheus.HistogramVec
	waiters      prometheus.Gauge
	grants       *prometheus.CounterVec
	handOff      prometheus.Histogram
	dropped      prometheus.Counter

	// counters are those of ops that were used; under the desk's lock.
	counters map[[2]string]prometheus.Counter
	at       map[string]prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		ops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fleetdesk_desk_ops_total",
			Help: "Operations on leases by kind and outcome: ok, busy (nothing free), or the class of the error.",
		}, []string{"op", "class"}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fleetdesk_desk_batch_ops",
			Help:    "Operations per transaction.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
		}),
		transactions: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fleetdesk_desk_transaction_seconds",
			Help:    "Time of a transaction, by the class of its error or ok.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"class"}),
		waiters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fleetdesk_desk_waiters",
			Help: "Requests of this process that may wait for a key now.",
		}),
		grants: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fleetdesk_desk_grants_total",
			Help: "Keys handed out: at once, after waiting, again for the same request, or picked for one use.",
		}, []string{"how"}),
		handOff: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fleetdesk_desk_hand_off_seconds",
			Help:    "Time from the news that a key is free until a waiter of this process has it.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fleetdesk_desk_undelivered_dropped_total",
			Help: "Grants without a client that the database was not told of; they end by their time.",
		}),
		counters: map[[2]string]prometheus.Counter{}, at: map[string]prometheus.Counter{},
	}
	for _, how := range []string{"at_once", "waited", "replayed", "picked"} {
		m.at[how] = m.grants.WithLabelValues(how)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.ops, m.batch, m.transactions, m.waiters, m.grants, m.handOff, m.dropped} {
		if err := reg.Register(c); err != nil {
			return nil, fault.Errorf(fault.Conflict, "service: register metrics: %w", err)
		}
	}
	return m, nil
}

func class(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.Of(err).Meaning().Label
}

// transacted counts a transaction.
func (m *metrics) transacted(ops int, took time.Duration, err error) {
	m.batch.Observe(float64(ops))
	m.transactions.WithLabelValues(class(err)).Observe(took.Seconds())
}

// outcome counts ops; under the desk's lock.
func (m *metrics) outcome(ops []lease.Op, results []lease.Result, err error) {
	for i, op := range ops {
		var how string
		switch {
		case err != nil:
			how = class(err)
		case results[i].Err == nil && results[i].Busy != nil:
			how = "busy"
		default:
			how = class(results[i].Err)
		}
		id := [2]string{kind(op), how}
		c := m.counters[id]
		if c == nil {
			c = m.ops.WithLabelValues(id[0], id[1])
			m.counters[id] = c
		}
		c.Inc()
	}
}

// granted counts a grant on its way to its client.
func (m *metrics) granted(c *call, r *lease.Result) {
	switch {
	case r.Replayed:
		m.at["replayed"].Inc()
	case c.wait != nil && c.wait.seq != 0:
		m.at["waited"].Inc()
	default:
		m.at["at_once"].Inc()
	}
}

// kind is the label of an op.
func kind(op lease.Op) string {
	switch op := op.(type) {
	case lease.Take:
		if op.Quick {
			return "pick"
		}
		return "take"
	case lease.Live:
		return "live"
	case lease.Leave:
		return "leave"
	case lease.Unclaim:
		return "unclaim"
	case lease.Renew:
		return "renew"
	case lease.Release:
		return "release"
	case lease.Report:
		return "report"
	case lease.Lift:
		return "lift"
	case lease.Disable:
		return "disable"
	case lease.Enable:
		return "enable"
	case lease.Force:
		return "force"
	case lease.Publish:
		return "publish"
	case lease.OpenEpoch:
		return "open_epoch"
	case lease.PutPool:
		return "put_pool"
	case lease.DropPool:
		return "drop_pool"
	case lease.PutKey:
		return "put_key"
	case lease.DropKey:
		return "drop_key"
	case lease.BeginChange:
		return "begin_change"
	case lease.RenewChange:
		return "renew_change"
	case lease.EndChange:
		return "end_change"
	case lease.Sweep:
		return "sweep"
	}
	return "other"
}
