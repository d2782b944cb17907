package lease_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

// stocked is a Memory with a pool of so many keys.
func stocked(b *testing.B, keys int, cooldown time.Duration) *leasetest.Memory {
	b.Helper()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	m := leasetest.NewMemory(leasetest.Options{Now: func() time.Time {
		now = now.Add(time.Microsecond)
		return now
	}})
	do(b, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Cooldown: cooldown, TTL: 24 * time.Hour}})
	stock(b, m, keys)
	return m
}

func stock(b *testing.B, m *leasetest.Memory, keys int) {
	b.Helper()
	var ops []lease.Op
	for i := range keys {
		ops = append(ops, lease.PutKey{
			Epoch: 1, Key: fmt.Sprintf("crawl.home-%06d", i), UID: "1", Pools: []string{"m"}, ExitIP: fmt.Sprintf("192.0.2.%d", i%250),
			Attributes: map[string]string{"country": fmt.Sprint(i % 20), "provider": "kvm", "speed": "fast"},
		})
	}
	for len(ops) > 0 {
		n := min(len(ops), 1000)
		do(b, m, ops[:n]...)
		ops = ops[n:]
	}
}

// pairs measures takes and releases, so many in a transaction.
func pairs(b *testing.B, m *leasetest.Memory, batch int, target func(n int) string) {
	b.Helper()
	ctx := context.Background()
	n, proofs := 0, []lease.Proof(nil)
	b.ReportAllocs()
	b.ResetTimer()
	for n < b.N {
		var ops []lease.Op
		for _, p := range proofs {
			ops = append(ops, lease.Release{Proof: p})
		}
		back := len(ops)
		for range batch {
			op := take("m", fmt.Sprint(n))
			op.Target = target(n)
			ops = append(ops, op)
			n++
		}
		all, err := m.Do(ctx, ops)
		if err != nil {
			b.Fatal(err)
		}
		proofs = proofs[:0]
		for i, r := range all {
			switch {
			case r.Err != nil:
				b.Fatal(r.Err)
			case i >= back && r.Key == nil:
				b.Fatalf("no key: %+v", r.Busy)
			case i >= back:
				proofs = append(proofs, lease.Proof{ID: r.Key.ID(), Secret: ops[i].(lease.Take).Secret, Account: "ann"})
			}
		}
		if n%50_000 < batch { // events and tickets of long ago
			b.StopTimer()
			do(b, m, lease.Sweep{Limit: 1 << 20})
			b.StartTimer()
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "pairs/s")
}

func BenchmarkPairs(b *testing.B) {
	none := func(int) string { return "" }
	for _, keys := range []int{100, 10_000, 100_000} {
		for _, batch := range []int{1, 64} {
			b.Run(fmt.Sprintf("keys=%d/batch=%d", keys, batch), func(b *testing.B) { pairs(b, stocked(b, keys, 0), batch, none) })
		}
	}
	for _, targets := range []int{1, 4, 1000} {
		b.Run(fmt.Sprintf("keys=10000/batch=64/targets=%d", targets), func(b *testing.B) {
			pairs(b, stocked(b, 10_000, 20*time.Microsecond), 64, func(n int) string { return fmt.Sprintf("%d.example", n%targets) })
		})
	}
}

// A thousand wait for the keys of a small pool; each release serves one, who
// gives it back in the next transaction.
func BenchmarkWaiters(b *testing.B) {
	for _, asking := range []int{1, 64} {
		b.Run(fmt.Sprintf("waiters=1000/asking=%d", asking), func(b *testing.B) {
			const waiters = 1000
			m := stocked(b, 10, 0)
			wait := func(n int) lease.Take {
				op := take("m", fmt.Sprint(n))
				op.Wait = true
				return op
			}
			var held []lease.Proof
			for i := range 10 {
				held = append(held, proof(do(b, m, take("m", fmt.Sprint("h", i)))[0], fmt.Sprint("h", i)))
			}
			for i := range waiters {
				do(b, m, wait(i))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := range b.N {
				ops := []lease.Op{lease.Release{Proof: held[n%10]}}
				for i := range asking { // the first one and some behind it
					ops = append(ops, wait(n+i))
				}
				ops = append(ops, wait(n+waiters))
				all := do(b, m, ops...)
				if all[1].Key == nil {
					b.Fatalf("the first one got nothing: %+v", all[1].Busy)
				}
				held[n%10] = proof(all[1], fmt.Sprint(n))
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "served/s")
		})
	}
}

// A thousand waiters want what there is not, each fifth something else.
func BenchmarkPicky(b *testing.B) {
	m := stocked(b, 0, 0)
	for i := range 1000 {
		op := take("m", fmt.Sprint("w", i))
		op.Wait, op.Where = true, map[string]string{"country": fmt.Sprint("none", i%5)}
		do(b, m, op)
	}
	stock(b, m, 10_000)
	pairs(b, m, 64, func(int) string { return "" })
}

func BenchmarkPublish(b *testing.B) {
	items := make([]string, lease.MaxItems)
	for i := range items {
		items[i] = fmt.Sprintf("win-%05d", i)
	}
	m := leasetest.NewMemory(leasetest.Options{})
	for n := range b.N {
		do(b, m, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: items[n%2*5000 : 5000+n%2*5000]})
	}
}
