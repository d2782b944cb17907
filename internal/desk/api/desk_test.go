package api_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
)

// fixedAccess reaches every key the same way.
type fixedAccess struct{ err error }

func (a fixedAccess) Access(context.Context, string, string, map[string]string) (client.ProxyAccess, error) {
	return client.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128, Username: "crawler", Password: "pa$$:w@rd"}, a.err
}

// idleDesk is a service that ran already, over a database that does not answer.
func idleDesk() *service.Service {
	store := leasetest.NewMemory(leasetest.Options{})
	store.Outage(true)
	s, err := service.New(service.Options{Store: store, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Run(over); err != nil {
		panic(err)
	}
	return s
}

// run runs a service on the store until the test ends.
func run(t testing.TB, store lease.Store, limits service.Limits) *service.Service {
	t.Helper()
	s, err := service.New(service.Options{Store: store, Log: slog.New(slog.DiscardHandler), Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// began is the time of the stores whose clock stands still.
func began() time.Time { return time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC) }

// leasing is an API over a desk that runs.
type leasing struct {
	*desk
	store   *leasetest.Memory
	service *service.Service
}

// serveDesk runs the API over a running desk whose pool "win" has the keys
// win-01 and win-02.
func serveDesk(t *testing.T, o leasetest.Options, change func(*api.Options)) *leasing {
	t.Helper()
	l := &leasing{store: leasetest.NewMemory(o)}
	l.service = run(t, l.store, service.Limits{})
	l.desk = serve(t, func(o *api.Options) {
		o.Desk = l.service
		if change != nil {
			change(o)
		}
	})
	l.publish(t, lease.Pool{Name: "win", By: "ann"}, "win-01", "win-02")
	return l
}

// serveDeskOf is serveDesk with a pool of short leases, a lease of win-01 by
// "nightly", and no rate limit.
func serveDeskOf(t *testing.T) *leasing {
	t.Helper()
	d := serveDesk(t, leasetest.Options{}, func(o *api.Options) { o.Limits.PerToken = -1 })
	d.publish(t, lease.Pool{Name: "short", MaxTTL: time.Minute}, "s-1")
	if _, err := d.service.Take(t.Context(), service.TakeRequest{Account: "nightly", Pool: "win"}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (l *leasing) publish(t *testing.T, p lease.Pool, items ...string) {
	t.Helper()
	var err error
	for range 100 { // it may just begin to run
		if _, err = l.service.Publish(t.Context(), lease.Publish{Pool: p, Items: items}); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal(err)
}

func TestTakeRenewRelease(t *testing.T) {
	d := serveDesk(t, leasetest.Options{}, nil)
	c := d.client(t, runnerToken)
	l, err := c.Take(t.Context(), "win", client.TakeOptions{Holder: "job 1", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if l.Key() != "win-01" || l.Fence() < 1 || l.Left() > time.Minute || l.Left() < 50*time.Second {
		t.Errorf("took %+v with %s left", l.Info(), l.Left())
	}
	if err := l.Renew(t.Context(), client.RenewRequest{TTL: 3600}); err != nil {
		t.Fatal(err)
	}
	if l.Left() < 59*time.Minute {
		t.Errorf("after the renewal %s are left", l.Left())
	}
	for range 2 {
		done, err := l.Release(t.Context(), client.ReleaseRequest{})
		if err != nil || done.Key != "win-01" || done.ID != l.ID() {
			t.Errorf("release: %+v, %v", done, err)
		}
	}
	info, err := d.client(t, viewerToken).LeaseInfo(t.Context(), l.ID())
	if err != nil || info.State != client.StateReleased {
		t.Errorf("%+v, %v", info, err)
	}
}
