// Package service is the use cases of the desk: keys are taken, kept, given back
// and looked at. It sits on any [lease.Store] and holds no rule; what it adds is
// who runs what, and when: many callers share a transaction, whoever waits is
// served within milliseconds of a release, and what runs out is seen to.
//
// Times that it returns are counted from the database's clock of the same
// transaction. The clock of this machine measures how long something takes and
// is never compared with a time of a lease.
package service

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// Options say what a [Service] works with.
type Options struct {
	// Store keeps pools, keys and leases; required.
	Store lease.Store
	// Log gets what an operator must know; required.
	Log *slog.Logger
	// Metrics gets the service's metrics; nil for none.
	Metrics prometheus.Registerer
	// Limits bound it; zero fields mean the defaults given there.
	Limits Limits
}

// Limits bound what a service takes on.
type Limits struct {
	// Batch is how many ops share a transaction at most: 256.
	Batch int
	// Queue is how many ops may wait for a transaction: 4096. Beyond, calls fail
	// Quota with the code "busy".
	Queue int
	// Waiters is how many requests may wait for a key at once: 10,000. Beyond,
	// a take that gets nothing at once fails Quota with the code "queue_full".
	Waiters int
	// Timeout bounds one transaction, and one look: 5 s.
	Timeout time.Duration
	// MaxWait bounds the wait of one request: 60 s. A longer one is Invalid with
	// the code "wait".
	MaxWait time.Duration
}

// withDefaults fills what is zero and refuses what is negative.
func (l Limits) withDefaults() (Limits, error) {
	for _, n := range []struct {
		name  string
		value *int
		usual int
	}{{"Batch", &l.Batch, 256}, {"Queue", &l.Queue, 4096}, {"Waiters", &l.Waiters, 10_000}} {
		if *n.value < 0 {
			return l, fault.Errorf(fault.Invalid, "service: %s is %d, want more than 0", n.name, *n.value)
		}
		if *n.value == 0 {
			*n.value = n.usual
		}
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{{"Timeout", &l.Timeout, 5 * time.Second}, {"MaxWait", &l.MaxWait, time.Minute}} {
		if *d.value < 0 {
			return l, fault.Errorf(fault.Invalid, "service: %s is %s, want more than 0", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	return l, nil
}

// Service may be used concurrently. Calls are served while [Service.Run] runs:
// those before wait for it, those after fail Unavailable with the code
// "stopping". What only looks works always.
type Service struct {
	store  lease.Store
	log    *slog.Logger
	limits Limits
	desk   *desk
	root   atomic.Pointer[[]byte]

	// These are the loop's own.
	lost   bool // the database did not answer the last time
	revive bool // the next transaction begins with a Revive
	// refusedAt is when a refused transaction was logged.
	refusedAt time.Time
}

// New returns a service. Errors: Invalid for bad options, Conflict when the
// metrics are registered already.
func New(o Options) (*Service, error) {
	limits, err := o.Limits.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.Store == nil || o.Log == nil {
		return nil, fault.New(fault.Invalid, "service: Store and Log are required")
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	return &Service{store: o.Store, log: o.Log, limits: limits, desk: newDesk(limits, m), revive: true}, nil
}

// Run serves calls until ctx ends, and may be called once. Then requests that
// wait get Unavailable with the code "stopping", and their places are kept for
// those who come back; what is in a transaction is finished. All its goroutines
// have ended when it returns, always with nil.
func (s *Service) Run(ctx context.Context) error {
	s.desk.open()
	var group sync.WaitGroup
	group.Go(func() { s.watch(ctx) })
	group.Go(func() { s.beat(ctx) })
	s.commit(ctx)
	group.Wait()
	s.finish(context.WithoutCancel(ctx))
	return nil
}
