package api_test

import (
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
)

// BenchmarkNext is one pick without a network, each for another of 1,000 targets:
// "service" asks the service itself, "handler" goes through the API. What the API
// costs is the difference.
func BenchmarkNext(b *testing.B) {
	const keys = 32
	serve := func(b *testing.B) (http.Handler, *service.Service) {
		h, s := benchDesk(b, 1, func(o *api.Options) { o.Selection, o.Access = naming{}, fixedAccess{} })
		ops := []lease.Op{lease.OpenEpoch{Owner: "bench"}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "crawl.eu"}}}
		for i := range keys {
			ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("crawl.p-%02d", i), UID: "u", Pools: []string{"crawl.eu"}})
		}
		results, err := s.Do(b.Context(), ops...)
		for _, r := range results {
			if r.Err != nil {
				err = r.Err
			}
		}
		if err != nil {
			b.Fatal(err)
		}
		return h, s
	}
	many := func(b *testing.B, one func(n int64) error) {
		var n atomic.Int64
		b.ReportAllocs()
		b.SetParallelism(128 / runtime.GOMAXPROCS(0))
		before := spent(b)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := one(n.Add(1)); err != nil {
					b.Error(err)
					return
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "picks/s")
		b.ReportMetric(float64((spent(b)-before).Microseconds())/float64(b.N), "cpu-µs/pick")
	}
	b.Run("service", func(b *testing.B) {
		_, s := serve(b)
		many(b, func(n int64) error {
			_, err := s.Next(b.Context(), service.PickRequest{Account: "ci", Pool: "crawl.eu", Target: fmt.Sprintf("t-%d.example.com", n%1000)})
			return err
		})
	})
	b.Run("handler", func(b *testing.B) {
		h, _ := serve(b)
		many(b, func(n int64) error {
			w := &discard{header: http.Header{}}
			h.ServeHTTP(w, post(b.Context(), "/api/v1/proxies/next", fmt.Sprintf(`{"pool":"crawl.eu","target":"t-%d.example.com"}`, n%1000)))
			if w.status != http.StatusOK {
				return fmt.Errorf("%d %s", w.status, w.body.Bytes())
			}
			return nil
		})
	})
}
