package service_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
)

// busy runs so many clients that take and give back ten times each, with a
// moment between their calls, over a database that takes 2 ms a transaction. They
// begin together, but for those who come while the others' first one runs.
func busy(t *testing.T, store *tap, clients, late int) (transactions int, took time.Duration) {
	t.Helper()
	const turn = 200 * time.Microsecond // the way to a client and back
	s, stop := start(t, store, service.Limits{})
	defer stop()
	store.set(func([]lease.Op) { time.Sleep(2 * time.Millisecond) }, nil)
	synctest.Wait()
	// While this transaction runs, all of them come: they begin together.
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := s.Do(t.Context(), lease.Sweep{Limit: 1}); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	store.forget()
	began := time.Now()
	for i := range clients {
		group.Go(func() {
			if i < late {
				time.Sleep(3 * time.Millisecond)
			}
			for range 10 {
				g, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p"})
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(turn)
				if _, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(g)}); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(turn)
			}
		})
	}
	group.Wait()
	return len(store.seen()), time.Since(began)
}

// Clients that were answered together share the next transaction too, though
// they come back a moment after the answer.
func TestAnsweredTogetherStayTogether(t *testing.T) {
	bubble(t, []string{"a", "b", "c", "d", "e", "f", "g", "h"}, func(t *testing.T, store *tap) {
		n, took := busy(t, store, 8, 0)
		if n > 25 {
			t.Errorf("160 operations of 8 clients took %d transactions, 20 would do", n)
		}
		if took > 70*time.Millisecond {
			t.Errorf("they took %s", took)
		}
	})
}

// Two groups that come in turns, each while the other is served, become one.
func TestTwoGroupsBecomeOne(t *testing.T) {
	bubble(t, []string{"a", "b", "c", "d", "e", "f", "g", "h"}, func(t *testing.T, store *tap) {
		n, took := busy(t, store, 8, 4)
		if n > 21 { // one of them more than those who begin together need
			t.Errorf("160 operations of 8 clients took %d transactions, 21 would do", n)
		}
		if took > 70*time.Millisecond {
			t.Errorf("they took %s", took)
		}
	})
}

// A client that is alone is never held up.
func TestAloneIsNotHeldUp(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		if _, took := busy(t, store, 1, 0); took > 10*2*(2*time.Millisecond+200*time.Microsecond)+4*time.Millisecond {
			t.Errorf("ten pairs took %s", took)
		}
	})
}
