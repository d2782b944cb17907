package guard_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/guard"
)

// scripted is the fake whose Get is f.
type scripted struct {
	provider.Provider
	f func(ctx context.Context) (provider.Instance, error)
}

func (s scripted) Get(ctx context.Context, _ provider.Ref) (provider.Instance, error) {
	return s.f(ctx)
}

func TestDeadline(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// cancel is when the caller cancels; 0 for never.
		cancel time.Duration
		get    func(ctx context.Context) (provider.Instance, error)
		class  fault.Class
		after  time.Duration
	}{
		"answer": {
			reason: "an answer passes as it is",
			get:    func(context.Context) (provider.Instance, error) { return provider.Instance{ID: "x"}, nil },
		},
		"class kept": {
			reason: "the nearest layer knew better",
			get: func(context.Context) (provider.Instance, error) {
				return provider.Instance{}, fault.New(fault.Quota, "full")
			},
			class: fault.Quota,
		},
		"unclassed": {
			reason: "an error that nobody classed is Transient",
			get: func(context.Context) (provider.Instance, error) {
				return provider.Instance{}, errors.New("odd")
			},
			class: fault.Transient,
		},
		"honours its context": {
			reason: "the limit is a deadline of the call's own",
			get: func(ctx context.Context) (provider.Instance, error) {
				<-ctx.Done()
				return provider.Instance{}, ctx.Err()
			},
			class: fault.Timeout, after: 30 * time.Second,
		},
		"answers within the grace": {
			reason: "an answer is worth more than an error in its place",
			get: func(ctx context.Context) (provider.Instance, error) {
				<-ctx.Done()
				time.Sleep(500 * time.Millisecond)
				return provider.Instance{ID: "x"}, nil
			},
			after: 30*time.Second + 500*time.Millisecond,
		},
		"ignores its context": {
			reason: "the caller is free one grace after the limit",
			get: func(context.Context) (provider.Instance, error) {
				time.Sleep(time.Hour)
				return provider.Instance{}, nil
			},
			class: fault.Timeout, after: 31 * time.Second,
		},
		"ignores a cancel": {
			reason: "who cancelled did not time out",
			cancel: 3 * time.Second,
			get: func(context.Context) (provider.Instance, error) {
				time.Sleep(time.Hour)
				return provider.Instance{}, nil
			},
			class: fault.Transient, after: 4 * time.Second,
		},
		"panic": {
			reason: "one provider's defect must not end the operator",
			get:    func(context.Context) (provider.Instance, error) { panic("canary") },
			class:  fault.Permanent,
		},
		"ends its goroutine": {
			reason: "nobody may wait for an answer that cannot come",
			get: func(context.Context) (provider.Instance, error) {
				runtime.Goexit()
				return provider.Instance{}, nil
			},
			class: fault.Permanent,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := guard.Deadline(scripted{fake.New(fake.Options{}), tc.get}, guard.DeadlineOptions{Name: "home", Log: discard()})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.cancel > 0 {
					time.AfterFunc(tc.cancel, cancel)
				}
				start := time.Now()
				in, err := d.Get(ctx, provider.Ref{})
				if got := fault.Of(err); got != tc.class || err != nil && !fault.Classed(err) {
					t.Errorf("%s: class %q (%v); want %q", tc.reason, got, err, tc.class)
				}
				if err == nil && in.ID != "x" {
					t.Errorf("%s: got %+v", tc.reason, in)
				}
				if took := time.Since(start); took != tc.after {
					t.Errorf("%s: returned after %v; want %v", tc.reason, took, tc.after)
				}
				// Let an abandoned call end.
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// TestAbandonedCallsAreBounded lets calls hang until no more are let in, and
// sees that they are again when one ends.
func TestAbandonedCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began atomic.Int64
		release := make(chan struct{})
		d := guard.Deadline(scripted{fake.New(fake.Options{}), func(context.Context) (provider.Instance, error) {
			began.Add(1)
			<-release
			return provider.Instance{ID: "late"}, nil
		}}, guard.DeadlineOptions{Name: "home", Limit: time.Second, Grace: time.Second, MaxAbandoned: 2})
		for range 2 {
			if _, err := d.Get(t.Context(), provider.Ref{}); fault.Of(err) != fault.Timeout {
				t.Fatalf("Get: %v; want Timeout", err)
			}
		}
		start := time.Now()
		_, err := d.Get(t.Context(), provider.Ref{})
		if fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "home") || time.Since(start) != 0 {
			t.Errorf("Get with two abandoned = %v after %v; want Unavailable at once, naming the provider", err, time.Since(start))
		}
		if _, err := d.ListByTag(t.Context(), "i"); fault.Of(err) != fault.Unavailable {
			t.Errorf("ListByTag with two abandoned: %v; want Unavailable", err)
		}
		if n := began.Load(); n != 2 {
			t.Errorf("%d calls reached the provider; want 2", n)
		}
		release <- struct{}{}
		synctest.Wait()
		if _, err := d.ListByTag(t.Context(), "i"); err != nil {
			t.Errorf("ListByTag once one call ended: %v", err)
		}
		close(release)
		synctest.Wait()
		if in, err := d.Get(t.Context(), provider.Ref{}); err != nil || in.ID != "late" {
			t.Errorf("Get once all ended = %+v, %v", in, err)
		}
	})
}

func TestPanicIsLoggedOnceWithItsStack(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	d := guard.Deadline(scripted{fake.New(fake.Options{}), func(context.Context) (provider.Instance, error) {
		panic("canary")
	}}, guard.DeadlineOptions{Name: "home", Log: log})
	_, err := d.Get(t.Context(), provider.Ref{})
	if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "home") {
		t.Errorf("Get = %v; want Permanent, naming the provider", err)
	}
	got := out.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, "deadline_test.go") || !strings.Contains(got, "provider=home method=Get") {
		t.Errorf("log: %s; want one line with provider, method and the stack", got)
	}
	if strings.Contains(got+err.Error(), "canary") {
		t.Error("the panic's value is in the log or the error; it may hold a secret")
	}
}
