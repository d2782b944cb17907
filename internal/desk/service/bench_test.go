package service_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/service"
)

// BenchmarkPairs takes and releases, over the store in memory with 10,000 keys:
// the service, the rules and that store together.
func BenchmarkPairs(b *testing.B) {
	for _, clients := range []int{1, 8, 32, 256} {
		b.Run(fmt.Sprintf("c%d", clients), func(b *testing.B) {
			keys := make([]string, 10_000)
			for i := range keys {
				keys[i] = fmt.Sprintf("k%05d", i)
			}
			store := leasetest.NewMemory(leasetest.Options{})
			rs, err := store.Do(b.Context(), []lease.Op{lease.Publish{Pool: lease.Pool{Name: "p"}, Items: keys}})
			if err != nil || rs[0].Err != nil {
				b.Fatal(err, rs)
			}
			pairs(b, store, clients)
		})
	}
}

// BenchmarkService is the service alone: over a store that does nothing for a
// millisecond. What counts is the processor's time of one op, in which two
// hashes and the client's goroutine are.
func BenchmarkService(b *testing.B) {
	for _, clients := range []int{1, 8, 32, 256} {
		b.Run(fmt.Sprintf("c%d", clients), func(b *testing.B) { pairs(b, newIdle(), clients) })
	}
}

func pairs(b *testing.B, store lease.Store, clients int) {
	b.ReportAllocs()
	s, err := service.New(service.Options{Store: store, Log: discard()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	used := processor(b)
	b.ResetTimer()
	for range clients {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				g, err := s.Take(ctx, service.TakeRequest{Account: "ann", Pool: "p", Holder: "bench"})
				if err == nil {
					_, err = s.Release(ctx, service.ReleaseRequest{Proof: proof(g)})
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	b.ReportMetric(float64(processor(b)-used)/float64(2*b.N), "cpu-ns/op-in-pair")
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
}

// processor is the processor's time that this process used.
func processor(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// idle is a store that grants whatever is asked for.
type idle struct {
	*leasetest.Memory
	now time.Time
	n   int64
}

func newIdle() *idle {
	return &idle{Memory: leasetest.NewMemory(leasetest.Options{}), now: time.Now()}
}

func (s *idle) Do(_ context.Context, ops []lease.Op) ([]lease.Result, error) {
	time.Sleep(time.Millisecond)
	rs := make([]lease.Result, len(ops))
	for i, op := range ops {
		rs[i].Now = s.now
		switch op := op.(type) {
		case lease.Take:
			s.n++
			l := &lease.Lease{Fence: s.n, Account: op.Account, Expires: s.now.Add(time.Hour)}
			rs[i].Key, rs[i].Lease = &lease.Key{Name: "k", Pools: []string{"p"}, Lease: l}, l
		case lease.Release:
			rs[i].Key = &lease.Key{Name: "k"}
		}
	}
	return rs, nil
}
