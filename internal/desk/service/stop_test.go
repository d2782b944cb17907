package service_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/httpd"
)

// A restart loses no place: those who reconnect are served in the order in which
// they came first.
func TestRestart(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		held := take(t, s)
		const n = 50
		a := newAsker(s)
		for i := range n {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute, IdempotencyKey: fmt.Sprint(i)})
			synctest.Wait()
		}
		a.take(t.Context(), "keyless", service.TakeRequest{Wait: time.Minute})
		synctest.Wait()
		stop()
		for range n + 1 {
			got := a.next(t)
			wantCode(t, got.err, fault.Unavailable, "stopping")
			if after := httpd.Problem(got.err).Status; after != http.StatusServiceUnavailable {
				t.Fatalf("the status is %d", after)
			}
		}
		wantCode(t, takeErr(t, s, service.TakeRequest{Pool: "p"}), fault.Unavailable, "stopping")
		q, err := store.Queue(t.Context(), "p", 0, 100)
		if err != nil || len(q) != n || q[0].Live(time.Now()) {
			t.Fatalf("%d places are kept, the first %+v, %v", len(q), q[0], err)
		}

		time.Sleep(40 * time.Second) // longer than a place is kept without a server
		again, stopAgain := start(t, store, service.Limits{})
		defer stopAgain()
		a = newAsker(again)
		for i := n - 1; i >= 0; i-- { // they come back in any order
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute, IdempotencyKey: fmt.Sprint(i)})
			synctest.Wait()
		}
		for i := range n {
			release(t, again, held)
			got := a.next(t)
			if got.err != nil || got.id != fmt.Sprint(i) {
				t.Fatalf("release %d was for waiter %s (%v)", i, got.id, got.err)
			}
			held = got.grant
		}
	})
}

// A server that died tells nobody anything.
func TestKilled(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		for i := range 10 {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute, IdempotencyKey: fmt.Sprint(i)})
			synctest.Wait()
		}
		// From here on nothing of it reaches the database.
		store.set(nil, func([]lease.Op) error {
			return fault.WithCode(fault.New(fault.Unavailable, "dead"), "store")
		})
		time.Sleep(40 * time.Second)
		again, stopAgain := start(t, store.Memory, service.Limits{})
		defer stopAgain()
		b := newAsker(again)
		for i := 9; i >= 0; i-- {
			b.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute, IdempotencyKey: fmt.Sprint(i)})
			synctest.Wait()
		}
		for i := range 10 {
			release(t, again, held)
			got := b.next(t)
			if got.err != nil || got.id != fmt.Sprint(i) {
				t.Fatalf("release %d was for waiter %s (%v)", i, got.id, got.err)
			}
			held = got.grant
		}
	})
}

// What is in a transaction when the service stops is finished and answered, and
// what is not yet sent is not done.
func TestStopInTheMiddle(t *testing.T) {
	bubble(t, []string{"a", "b"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		g := take(t, s)
		resume := paused(t, s, store)
		done := make(chan error, 1)
		go func() {
			_, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(g)})
			done <- err
		}()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() {
			stop()
			close(stopped)
		}()
		synctest.Wait()
		resume()
		wantCode(t, <-done, fault.Unavailable, "stopping")
		<-stopped
		if n := count[lease.Release](store); n != 0 {
			t.Errorf("%d releases were sent", n)
		}
	})
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		synctest.Wait()
		left := make(chan struct{})
		store.set(func(ops []lease.Op) {
			if hasTake(ops, true) {
				<-left
			}
		}, nil)
		a := newAsker(s)
		a.take(t.Context(), "w", service.TakeRequest{Wait: time.Minute})
		synctest.Wait()
		go stop()
		synctest.Wait()
		close(left)
		if got := a.next(t); got.err != nil {
			t.Error(got.err)
		}
		synctest.Wait()
	})
}

// stoppable is a context as a request of httpd has one.
func stoppable(t *testing.T) (ctx context.Context, stop func()) {
	t.Helper()
	contexts := make(chan context.Context, 1)
	ended := make(chan struct{})
	srv, err := httpd.New(httpd.Options{
		Address: "127.0.0.1:0", Log: discard(),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			contexts <- context.WithoutCancel(r.Context())
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	serving, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		if err := srv.Serve(serving); err != nil {
			t.Error(err)
		}
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return <-contexts, func() {
		cancel()
		<-ended
	}
}

// When the HTTP server stops, those who wait are sent away, and the rest is
// served to its end.
func TestServerStops(t *testing.T) {
	store := newTap()
	publish(t, store, "p", "a")
	s, stop := start(t, store, service.Limits{})
	defer stop()
	held := take(t, s)
	ctx, stopServer := stoppable(t)
	a := newAsker(s)
	a.take(ctx, "w", service.TakeRequest{Wait: time.Minute, IdempotencyKey: "k"})
	for {
		if p, err := s.Pool(t.Context(), "p"); err != nil {
			t.Fatal(err)
		} else if p.Waiting == 1 {
			break
		}
	}
	stopServer()
	wantCode(t, a.next(t).err, fault.Unavailable, "stopping")
	if _, err := s.Release(ctx, service.ReleaseRequest{Proof: proof(held)}); err != nil {
		t.Error(err)
	}
	if _, err := s.Take(ctx, service.TakeRequest{Account: "ann", Pool: "p"}); err != nil {
		t.Error(err)
	}
	q, err := s.Queue(t.Context(), "p", 0, 10)
	if err != nil || len(q) != 1 {
		t.Errorf("%d places are kept, %v", len(q), err)
	}
}

// Calls that come before Run wait for it.
func TestBeforeRun(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, err := service.New(service.Options{Store: store, Log: discard()})
		if err != nil {
			t.Fatal(err)
		}
		a := newAsker(s)
		a.take(t.Context(), "early", service.TakeRequest{})
		a.none(t, "nothing runs")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		if got := a.next(t); got.err != nil {
			t.Error(got.err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A transaction that never ends holds nobody up for longer than the limits say.
func TestStuckDatabase(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{Timeout: time.Second})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		began := time.Now()
		a.take(t.Context(), "w", service.TakeRequest{Wait: 4 * time.Second, IdempotencyKey: "k"})
		synctest.Wait()
		store.set(func([]lease.Op) { time.Sleep(1100 * time.Millisecond) }, nil)
		_, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(held)})
		if fault.Of(err) != fault.Timeout || time.Since(began) > 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		got := a.next(t)
		if took := got.at.Sub(began); fault.Of(got.err) != fault.Timeout || errors.Is(got.err, context.Canceled) || took > 7*time.Second {
			t.Errorf("%v after %s", got.err, took)
		}
	})
}
