package sqldb_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/sqldb"
)

// BenchmarkDo takes and gives back as many keys at once as a batch has, and tells
// what one op costs with its share of the transaction. The database writes as
// safely as in production.
func BenchmarkDo(b *testing.B) {
	for _, kind := range []string{"sqlite", "postgres"} {
		for _, keys := range []int{100, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/keys=%d", kind, keys), func(b *testing.B) {
				o := sqldb.Options{Path: filepath.Join(b.TempDir(), "desk.db")}
				if kind == "postgres" {
					o = sqldb.Options{URL: server.Database(b)}
				}
				db, err := sqldb.Open(b.Context(), o)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = db.Close() })
				s := db.Leases()
				fill(b, s, keys)
				for _, batch := range []int{1, 8, 32, 128} {
					if batch > keys {
						continue
					}
					for name, take := range map[string]lease.Take{
						"plain":  {},
						"replay": {Keep: true},
						"target": {Keep: true, Target: "shop.example.com"},
					} {
						b.Run(fmt.Sprintf("%s/batch=%d", name, batch), func(b *testing.B) { pairs(b, s, take, batch) })
					}
				}
			})
		}
	}
}

// fill makes a managed pool.
func fill(tb testing.TB, s lease.Store, keys int) {
	tb.Helper()
	res := mustDo(tb, s, lease.OpenEpoch{Owner: "bench"})
	epoch := res[0].Epoch
	mustDo(tb, s, lease.PutPool{Epoch: epoch, Pool: lease.Pool{Name: "ns.pool", Kind: lease.Managed}})
	for n := 0; n < keys; {
		var ops []lease.Op
		for ; n < keys && len(ops) < 1000; n++ {
			ops = append(ops, lease.PutKey{
				Epoch: epoch, Key: fmt.Sprintf("ns.proxy-%06d", n), UID: fmt.Sprintf("uid-%d", n), Pools: []string{"ns.pool"},
				Attributes: map[string]string{"provider": "kvm", "host": "rack-7", "address": "192.0.2.7:3128"},
				ExitIP:     fmt.Sprintf("2001:db8::%x", n),
			})
		}
		mustDo(tb, s, ops...)
	}
}

func mustDo(tb testing.TB, s lease.Store, ops ...lease.Op) []lease.Result {
	tb.Helper()
	res, err := s.Do(context.WithoutCancel(tb.Context()), ops)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range res {
		if res[i].Err != nil {
			tb.Fatalf("op %d (%T): %v", i, ops[i], res[i].Err)
		}
	}
	return res
}

func pairs(b *testing.B, s lease.Store, like lease.Take, batch int) {
	secret := lease.HashOf("secret")
	like.Pool, like.Account, like.Holder, like.Secret = "ns.pool", "ann", "crawler", secret
	n := time.Now().UnixNano()
	for b.Loop() {
		ops := make([]lease.Op, batch)
		for i := range ops {
			n++
			take := like
			take.Ticket = lease.TicketID("ann", fmt.Sprint(n))
			ops[i] = take
		}
		res := mustDo(b, s, ops...)
		for i := range ops {
			if res[i].Key == nil {
				b.Fatalf("no key: %+v", res[i].Busy)
			}
			ops[i] = lease.Release{Proof: lease.Proof{ID: res[i].Key.ID(), Secret: secret, Account: "ann"}}
		}
		mustDo(b, s, ops...)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(2*batch*b.N), "µs/op")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(2*b.N), "µs/tx")
}

// BenchmarkPick picks keys for many targets, each fiftieth pick being reported as
// banned, and tells what one pick costs with its share of the transaction.
func BenchmarkPick(b *testing.B) {
	const targets = 1000
	for _, kind := range []string{"sqlite", "postgres"} {
		for _, keys := range []int{20, 100, 10_000} {
			b.Run(fmt.Sprintf("%s/keys=%d", kind, keys), func(b *testing.B) {
				o := sqldb.Options{Path: filepath.Join(b.TempDir(), "desk.db")}
				if kind == "postgres" {
					o = sqldb.Options{URL: server.Database(b)}
				}
				db, err := sqldb.Open(b.Context(), o)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = db.Close() })
				s := db.Leases()
				fill(b, s, keys)
				for _, batch := range []int{1, 32} {
					b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) { picks(b, s, batch, targets) })
				}
			})
		}
	}
}

func picks(b *testing.B, s lease.Store, batch, targets int) {
	r := rand.New(rand.NewPCG(1, 2))
	var took []time.Duration
	none, n := 0, 0
	for b.Loop() {
		var ops []lease.Op
		for range batch {
			ops = append(ops, lease.Take{Pool: "ns.pool", Target: fmt.Sprintf("shop%d.example.com", r.IntN(targets)), Account: "ann", Quick: true})
		}
		start := time.Now()
		res := mustDo(b, s, ops...)
		took = append(took, time.Since(start))
		ops = nil
		for _, one := range res {
			if n++; one.Use == nil {
				none++
			} else if n%50 == 0 {
				ops = append(ops, lease.Report{Key: one.Key.Name, Pool: "ns.pool", Target: fmt.Sprintf("shop%d.example.com", r.IntN(targets)), Outcome: lease.Banned, Use: one.Use.ID})
			}
		}
		if len(ops) > 0 {
			mustDo(b, s, ops...)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n), "µs/pick")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs/p99")
	b.ReportMetric(float64(none)/float64(n), "none/pick")
}
