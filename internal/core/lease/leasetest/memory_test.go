package leasetest_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is one Memory behind several handles.
func harness(o leasetest.Options) func(*testing.T) leasetest.Harness {
	return func(*testing.T) leasetest.Harness {
		m := leasetest.NewMemory(o)
		return leasetest.Harness{
			Stores: []lease.Store{m, m, m}, Advance: m.Advance,
			OpenAction: func(_ context.Context, name, action, change, by string) error {
				m.OpenAction(name, action, change, by)
				return nil
			},
			CloseAction: func(_ context.Context, name, action string) error {
				m.CloseAction(name, action)
				return nil
			},
		}
	}
}

func TestMemory(t *testing.T) { leasetest.RunStore(t, harness(leasetest.Options{})) }

// The same where every pool counts as one of many keys, whose order is kept in
// lines.
func TestMemoryInLines(t *testing.T) {
	leasetest.RunStore(t, harness(leasetest.Options{Tx: leasetest.InLines}))
}
