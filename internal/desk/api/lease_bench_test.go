package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/httpd"
)

// benchDesk is the API over a service over memory whose pool "p" has that many
// keys, with the rate limit off.
func benchDesk(b *testing.B, keys int, change func(*api.Options)) (http.Handler, *service.Service) {
	s := run(b, leasetest.NewMemory(leasetest.Options{}), service.Limits{})
	items := make([]string, keys)
	for i := range items {
		items[i] = fmt.Sprintf("key-%05d", i)
	}
	if _, err := s.Publish(b.Context(), lease.Publish{Pool: lease.Pool{Name: "p"}, Items: items}); err != nil {
		b.Fatal(err)
	}
	o := api.Options{Auth: newAccounts(), Desk: s, Log: slog.New(slog.DiscardHandler), Limits: api.Limits{PerToken: -1}}
	if change != nil {
		change(&o)
	}
	h, err := api.New(o)
	if err != nil {
		b.Fatal(err)
	}
	return h, s
}

// spent is the processor's time that this process has used.
func spent(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perPair reports the pairs a second, and the processor's time for one, which
// tells more where other programs run too.
func perPair(b *testing.B, before time.Duration) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	b.ReportMetric(float64((spent(b)-before).Microseconds())/float64(b.N), "cpu-µs/pair")
}

// discard is an answer that only counts.
type discard struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return d.body.Write(p) }
func (d *discard) FlushError() error           { return nil }

func post(ctx context.Context, target, body string, header ...string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+runnerToken)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// BenchmarkPair is one take and one release without a network: "service" calls
// the service itself, "handler" goes through the API. What the API costs is the
// difference.
func BenchmarkPair(b *testing.B) {
	const keys = 10_000
	b.Run("service", func(b *testing.B) {
		_, s := benchDesk(b, keys, nil)
		b.ReportAllocs()
		before := spent(b)
		b.SetParallelism(128 / runtime.GOMAXPROCS(0))
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				g, err := s.Take(b.Context(), service.TakeRequest{Account: "ci", Pool: "p", Holder: "bench"})
				if err == nil {
					_, err = s.Release(b.Context(), service.ReleaseRequest{Proof: service.Proof{ID: g.ID, Secret: g.Secret, Account: "ci"}})
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
		perPair(b, before)
	})
	// The same requests with one escape each are read by huma.
	for name, bodies := range map[string][2]string{
		"plain": {`{"pool":"p","holder":"bench"}`, `{"reason":"bench"}`},
		"huma":  {`{"pool":"p","holder":"benc\u0068"}`, `{"reason":"benc\u0068"}`},
	} {
		b.Run("handler/"+name, func(b *testing.B) {
			h, _ := benchDesk(b, keys, nil)
			b.ReportAllocs()
			before := spent(b)
			b.SetParallelism(128 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					w := &discard{header: http.Header{}}
					h.ServeHTTP(w, post(b.Context(), "/api/v1/leases", bodies[0]))
					var g client.LeaseInfo
					if err := json.Unmarshal(w.body.Bytes(), &g); err != nil || w.status != 201 {
						b.Errorf("%d %s", w.status, w.body.Bytes())
						return
					}
					secret := w.header.Get("Lease-Secret")
					w = &discard{header: http.Header{}}
					h.ServeHTTP(w, post(b.Context(), "/api/v1/leases/"+g.ID+"/release", bodies[1], "Lease-Secret", secret))
					if w.status != 200 {
						b.Errorf("%d %s", w.status, w.body.Bytes())
						return
					}
				}
			})
			perPair(b, before)
		})
	}
	// What the benchmark itself costs: two requests made, one answer read.
	b.Run("itself", func(b *testing.B) {
		b.ReportAllocs()
		before := spent(b)
		answer := []byte(`{"id":"key-00000~1","pool":"p","key":"key-00000","account":"ci","holder":"bench","fence":1,"state":"held","ttl":600,"secondsLeft":600,"attributes":{},"waited":0}`)
		for b.Loop() {
			var g client.LeaseInfo
			_ = post(b.Context(), "/api/v1/leases", `{"pool":"p","holder":"bench"}`)
			_ = post(b.Context(), "/api/v1/leases/key-00000~1/release", `{"reason":"bench"}`, "Lease-Secret", "x")
			if err := json.Unmarshal(answer, &g); err != nil {
				b.Fatal(err)
			}
		}
		perPair(b, before)
	})
}

// BenchmarkLoopback is pairs by the Go client over loopback, behind httpd as the
// products have it, on the same machine as the server.
func BenchmarkLoopback(b *testing.B) {
	for _, clients := range []int{1, 256} {
		for _, logged := range []bool{true, false} {
			b.Run(fmt.Sprintf("clients=%d/log=%v", clients, logged), func(b *testing.B) {
				h, _ := benchDesk(b, 10_000, nil)
				log := slog.New(slog.DiscardHandler)
				if logged {
					log = slog.New(slog.NewTextHandler(io.Discard, nil))
				}
				srv, err := httpd.New(httpd.Options{Handler: h, Address: "127.0.0.1:0", Log: log})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- srv.Serve(ctx) }()
				defer func() { cancel(); <-done }()
				transport := &http.Transport{MaxIdleConnsPerHost: clients}
				defer transport.CloseIdleConnections()
				c, err := client.New(client.Options{
					BaseURL: srv.URL(), Token: runnerToken, HTTPClient: &http.Client{Transport: transport, Timeout: 30 * time.Second},
				})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.SetParallelism(max(1, clients/runtime.GOMAXPROCS(0)))
				before := spent(b)
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						l, err := c.Take(b.Context(), "p", client.TakeOptions{Holder: "bench"})
						if err == nil {
							_, err = l.Release(b.Context(), client.ReleaseRequest{})
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
				perPair(b, before)
			})
		}
	}
}
