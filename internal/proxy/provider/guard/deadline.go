package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// DeadlineOptions are the settings of [Deadline].
type DeadlineOptions struct {
	// Name is the provider's name, for errors and logs.
	Name string
	// Limit is the deadline of a call; default provider.StepLimit.
	Limit time.Duration
	// Grace is how long after its context's end a call may still answer, which
	// is better than an error in its place; default 1 s.
	Grace time.Duration
	// MaxAbandoned is the number of calls that may go on after they were given
	// up; beyond it calls fail fast. Default 16.
	MaxAbandoned int
	// Log gets one line for each panic, with its stack.
	Log *slog.Logger
}

// Deadline returns inner with what P-GEN-1 to 3 demand held from outside:
//
//   - Each call has a deadline of Limit. When the call's context ends and inner
//     does not return within Grace, the caller gets Timeout (or Transient, when
//     it cancelled) and the call goes on alone. While MaxAbandoned such calls
//     go on, further ones fail at once with Unavailable.
//   - An error that nobody classed becomes Timeout or Transient.
//   - A panic becomes a Permanent error that names the provider.
func Deadline(inner provider.Provider, o DeadlineOptions) provider.Provider {
	if o.Limit == 0 {
		o.Limit = provider.StepLimit
	}
	if o.Grace == 0 {
		o.Grace = time.Second
	}
	if o.MaxAbandoned == 0 {
		o.MaxAbandoned = 16
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &deadline{inner: inner, o: o}
}

type deadline struct {
	inner provider.Provider
	o     DeadlineOptions
	// abandoned counts the calls that go on without a caller.
	abandoned atomic.Int64
}

// answer is what a call returned.
type answer[R any] struct {
	value R
	err   error
}

// held runs one call in a goroutine of its own. The channel has room for the
// answer, so an abandoned call ends without a reader.
func held[R any](ctx context.Context, d *deadline, method string, call func(context.Context) (R, error)) (R, error) {
	var none R
	if n := d.abandoned.Load(); n >= int64(d.o.MaxAbandoned) {
		return none, fault.Errorf(fault.Unavailable,
			"provider %s: %d calls did not end when they were told to; %s is refused until one does", d.o.Name, n, method)
	}
	ctx, cancel := context.WithTimeout(ctx, d.o.Limit)
	defer cancel()
	// left is taken once: by the caller who gives up, or by the call that
	// ends. The second one to come settles the count.
	var left atomic.Bool
	answers := make(chan answer[R], 1)
	go func() {
		var a answer[R]
		returned := false
		defer func() {
			if !returned {
				a = answer[R]{err: d.broke(ctx, method, recover())}
			}
			answers <- a
			if left.Swap(true) {
				d.abandoned.Add(-1)
			}
		}()
		a.value, a.err = call(ctx)
		returned = true
	}()
	select {
	case a := <-answers:
		return a.value, classed(a.err)
	case <-ctx.Done():
	}
	grace := time.NewTimer(d.o.Grace)
	defer grace.Stop()
	select {
	case a := <-answers:
		return a.value, classed(a.err)
	case <-grace.C:
	}
	d.abandoned.Add(1)
	if left.Swap(true) {
		// It ended just now, and its answer is there.
		d.abandoned.Add(-1)
		a := <-answers
		return a.value, classed(a.err)
	}
	return none, classed(fmt.Errorf("provider %s: %s did not end with its context: %w", d.o.Name, method, ctx.Err()))
}

// broke is the error of a call that did not return: by a panic, or by ending
// its goroutine.
func (d *deadline) broke(ctx context.Context, method string, v any) error {
	if v == nil {
		return fault.Errorf(fault.Permanent, "provider %s: %s ended without an answer; this is a defect of the provider", d.o.Name, method)
	}
	// The panic's value is not printed: it may hold anything of the spec.
	d.o.Log.LogAttrs(ctx, slog.LevelError, "provider panicked",
		slog.String("provider", d.o.Name), slog.String("method", method),
		slog.String("type", fmt.Sprintf("%T", v)), slog.String("stack", string(debug.Stack())))
	return fault.Errorf(fault.Permanent, "provider %s: %s panicked (%T); this is a defect of the provider, and the log has the stack", d.o.Name, method, v)
}

// classed gives a class to an error that has none.
func classed(err error) error {
	if err == nil || fault.Classed(err) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(fault.Timeout, err)
	}
	return fault.Wrap(fault.Transient, err)
}

func (d *deadline) Place(ctx context.Context, spec provider.Spec) (string, error) {
	return held(ctx, d, "Place", func(ctx context.Context) (string, error) { return d.inner.Place(ctx, spec) })
}

func (d *deadline) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	return held(ctx, d, "Create", func(ctx context.Context) (provider.Instance, error) { return d.inner.Create(ctx, spec) })
}

func (d *deadline) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	return held(ctx, d, "Get", func(ctx context.Context) (provider.Instance, error) { return d.inner.Get(ctx, ref) })
}

func (d *deadline) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	return held(ctx, d, "Delete", func(ctx context.Context) (provider.State, error) { return d.inner.Delete(ctx, ref) })
}

func (d *deadline) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	return held(ctx, d, "ListByTag", func(ctx context.Context) ([]provider.HostList, error) {
		rows, err := d.inner.ListByTag(ctx, installation)
		rows = slices.Clone(rows)
		for i := range rows {
			rows[i].Err = classed(rows[i].Err)
		}
		return rows, err
	})
}

func (d *deadline) Check(ctx context.Context) ([]provider.HostHealth, error) {
	c, ok := provider.As[provider.Checker](d.inner)
	if !ok {
		return nil, unsupported(d.o.Name, "Check")
	}
	return held(ctx, d, "Check", c.Check)
}

// Watch has no deadline, and is no call that is waited for: only its panic is
// caught.
func (d *deadline) Watch(ctx context.Context, installation string, changed func(provider.Change)) (err error) {
	w, ok := provider.As[provider.Watcher](d.inner)
	if !ok {
		return unsupported(d.o.Name, "Watch")
	}
	returned := false
	defer func() {
		if !returned {
			err = d.broke(ctx, "Watch", recover())
		}
	}()
	err = classed(w.Watch(ctx, installation, changed))
	returned = true
	return err
}

func (d *deadline) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	inner, ok := provider.As[provider.Claimer](d.inner)
	if !ok {
		return nil, unsupported(d.o.Name, "Claim")
	}
	return held(ctx, d, "Claim", func(ctx context.Context) ([]provider.HostClaims, error) {
		rows, err := inner.Claim(ctx, c)
		rows = slices.Clone(rows)
		for i := range rows {
			rows[i].Err = classed(rows[i].Err)
		}
		return rows, err
	})
}

func (d *deadline) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	c, ok := provider.As[provider.Cleaner](d.inner)
	if !ok {
		return nil, unsupported(d.o.Name, "Leftovers")
	}
	return held(ctx, d, "Leftovers", func(ctx context.Context) ([]provider.HostLeftovers, error) {
		rows, err := c.Leftovers(ctx, installation, keep)
		rows = slices.Clone(rows)
		for i := range rows {
			rows[i].Err = classed(rows[i].Err)
		}
		return rows, err
	})
}

func (d *deadline) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	c, ok := provider.As[provider.Cleaner](d.inner)
	if !ok {
		return unsupported(d.o.Name, "RemoveLeftover")
	}
	_, err := held(ctx, d, "RemoveLeftover", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.RemoveLeftover(ctx, installation, l)
	})
	return err
}

func (d *deadline) Unwrap() provider.Provider { return d.inner }

func (d *deadline) Close() error { return closed(d.inner) }
