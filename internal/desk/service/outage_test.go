package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// "Cannot tell" is never "none free".
func TestOutage(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		lasts  time.Duration
		free   bool
		class  fault.Class
		code   string
	}{
		"short":          {"it is over before the wait is, and a key came free meanwhile", 25 * time.Second, true, "", ""},
		"short and busy": {"it is over before the wait is, and no key came free", 25 * time.Second, false, fault.Quota, "none_free"},
		"long":           {"nobody knows whether a key is free", time.Hour, false, fault.Unavailable, "store"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
				s, stop := start(t, store, service.Limits{})
				defer stop()
				ttl := time.Hour
				if tc.free {
					ttl = 20 * time.Second
				}
				if _, err := s.Take(t.Context(), service.TakeRequest{Account: "bob", Pool: "p", TTL: ttl}); err != nil {
					t.Fatal(err)
				}
				a := newAsker(s)
				began := time.Now()
				a.take(t.Context(), "first", service.TakeRequest{Wait: 40 * time.Second, IdempotencyKey: "k"})
				synctest.Wait()
				store.Outage(true)
				wantCode(t, takeErr(t, s, service.TakeRequest{Pool: "p", Wait: time.Minute}), fault.Unavailable, "store")
				wantCode(t, takeErr(t, s, service.TakeRequest{Pool: "p"}), fault.Unavailable, "store")
				_, err := s.Pools(t.Context(), "", 10)
				wantCode(t, err, fault.Unavailable, "store")
				_, err = s.Lease(t.Context(), "a~1")
				wantCode(t, err, fault.Unavailable, "store")
				if tc.lasts < time.Minute {
					time.Sleep(tc.lasts)
					a.none(t, "the wait outlives an outage")
					store.Outage(false)
					over := time.Now()
					// Places that ran out in the outage are given back.
					a.take(t.Context(), "second", service.TakeRequest{Wait: 10 * time.Second})
					defer a.next(t)
					if tc.free {
						if got := a.next(t); got.id != "first" || got.err != nil || got.at.Sub(over) > 2*time.Second {
							t.Fatalf("%s: %s got %v after %s", tc.reason, got.id, got.err, got.at.Sub(over))
						}
						return
					}
					if got := a.next(t); got.id != "second" {
						t.Fatal(got)
					}
					a.answers <- answer{}
				}
				got := a.next(t)
				if got.id == "" {
					got = a.next(t)
					a.answers <- answer{}
				}
				if got.id != "first" || got.at.Sub(began) != 40*time.Second {
					t.Errorf("%s: %s, after %s", tc.reason, got.id, got.at.Sub(began))
				}
				wantCode(t, got.err, tc.class, tc.code)
			})
		})
	}
}

// An outage is told once, and its end.
func TestOutageIsLoggedOnce(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		var log lines
		s, err := service.New(service.Options{Store: store, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		store.Outage(true)
		for range 20 {
			wantCode(t, takeErr(t, s, service.TakeRequest{Pool: "p"}), fault.Unavailable, "store")
			time.Sleep(time.Second)
		}
		store.Outage(false)
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"the lease database does not answer", "the lease database answers again"} {
			if n := strings.Count(log.String(), text); n != 1 {
				t.Errorf("%q was logged %d times:\n%s", text, n, log.String())
			}
		}
	})
}

// lines is a writer for several goroutines.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The database is lost from the start: calls say so, and work once it is there.
func TestOutageAtStart(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		store.Outage(true)
		s, stop := start(t, store, service.Limits{})
		defer stop()
		wantCode(t, takeErr(t, s, service.TakeRequest{Pool: "p"}), fault.Unavailable, "store")
		store.Outage(false)
		take(t, s)
	})
}

// A store whose watch breaks off is watched again, and asked what was missed.
func TestWatchBreaksOff(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		flaky := &breaking{tap: store}
		s, stop := start(t, flaky, service.Limits{})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		for range 20 {
			a.take(t.Context(), "w", service.TakeRequest{Wait: time.Minute})
			time.Sleep(time.Second)
			released := time.Now()
			releaseElsewhere(t, store, held)
			got := a.next(t)
			if got.err != nil || got.at.Sub(released) > 2*time.Second {
				t.Fatalf("%v after %s", got.err, got.at.Sub(released))
			}
			held = got.grant
		}
		if n := flaky.watched(); n < 3 || n > 100 {
			t.Errorf("it was watched %d times", n)
		}
	})
}

// breaking is a store whose watches end by themselves.
type breaking struct {
	*tap
	mu sync.Mutex
	n  int
}

func (b *breaking) Watch(ctx context.Context, w lease.Watcher) error {
	b.mu.Lock()
	b.n++
	n := b.n
	b.mu.Unlock()
	if n%2 == 0 {
		return errors.New("connection reset")
	}
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	return b.tap.Watch(ctx, w)
}

func (b *breaking) watched() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

func TestEventsChanged(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		synctest.Wait()
		changed := s.EventsChanged()
		synctest.Wait()
		select {
		case <-changed:
			t.Fatal("nothing happened")
		default:
		}
		take(t, s)
		<-changed
		events, gap, err := s.Events(t.Context(), 0, 10)
		if err != nil || gap || len(events) != 2 || events[1].Kind != "taken" {
			t.Errorf("%v, %v, %v", events, gap, err)
		}
	})
}

// Leases that end are written down when they do, without a look at all others.
func TestSweep(t *testing.T) {
	bubble(t, []string{"a", "b", "c"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		for _, ttl := range []time.Duration{time.Hour, 10 * time.Second, 5 * time.Second} {
			if _, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p", TTL: ttl}); err != nil {
				t.Fatal(err)
			}
		}
		expired := func() int {
			events, _, err := store.Events(t.Context(), 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, e := range events {
				if e.Kind == "expired" {
					n++
				}
			}
			return n
		}
		for _, step := range []struct {
			sleep time.Duration
			ended int
		}{{4900 * time.Millisecond, 0}, {200 * time.Millisecond, 1}, {4700 * time.Millisecond, 1}, {400 * time.Millisecond, 2}} {
			time.Sleep(step.sleep)
			synctest.Wait()
			if n := expired(); n != step.ended {
				t.Errorf("%s later %d leases have ended, want %d", step.sleep, n, step.ended)
			}
		}
		store.forget()
		time.Sleep(10 * time.Minute)
		if n := count[lease.Sweep](store); n < 19 || n > 21 {
			t.Errorf("in ten idle minutes it swept %d times", n)
		}
	})
}

// However many leases end at once, all of it is written down at once.
func TestSweepOfMany(t *testing.T) {
	keys := make([]string, 700)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%03d", i)
	}
	bubble(t, keys, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		a := newAsker(s)
		for range keys {
			a.take(t.Context(), "w", service.TakeRequest{TTL: 10 * time.Second})
		}
		for range keys {
			if got := a.next(t); got.err != nil {
				t.Fatal(got.err)
			}
		}
		time.Sleep(10*time.Second + 20*time.Millisecond)
		synctest.Wait()
		events, _, err := store.Events(t.Context(), 0, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range events {
			if e.Kind == "expired" {
				n++
			}
		}
		if n != len(keys) {
			t.Errorf("%d of %d ends were written down", n, len(keys))
		}
	})
}
