package link_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

func TestProbeAbandonsItsRPCsAndLeavesTheLink(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		upload := make(chan error, 1)
		go func() { upload <- b.Call(t.Context(), "box-1", ask) }()
		synctest.Wait()
		type key struct{}
		returned := make(chan error, 1)
		ctx := context.WithValue(within(t, time.Second), key{}, "trace")
		start := time.Now()
		err := b.Probe(ctx, "box-1", func(ctx context.Context, c virt.Conn) error {
			if ctx.Value(key{}) != "trace" {
				t.Error("the context lost its values")
			}
			err := ask(ctx, c)
			returned <- err
			return err
		})
		wantClass(t, err, fault.Timeout)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, link.ErrProbeBusy) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		synctest.Wait()
		select {
		case err := <-returned:
			t.Fatalf("the RPC ended with its caller: %v", err)
		default:
		}
		l := b.dialer.last()
		l.answer <- 1
		l.answer <- 2
		if err := <-upload; err != nil {
			t.Errorf("the call on the same link: %v", err)
		}
		if err := <-returned; err != nil {
			t.Errorf("the abandoned RPC: %v", err)
		}
		if b.dialer.count() != 1 || l.closed.Load() != 0 {
			t.Errorf("%d dials, closed %d times", b.dialer.count(), l.closed.Load())
		}
	})
}

func TestOneAbandonedProbe(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		wantClass(t, b.Probe(within(t, time.Second), "box-1", ask), fault.Timeout)
		for range 3 {
			start := time.Now()
			err := b.Probe(within(t, time.Minute), "box-1", func(context.Context, virt.Conn) error { t.Error("it ran"); return nil })
			wantClass(t, err, fault.Timeout)
			if !errors.Is(err, link.ErrProbeBusy) || time.Since(start) != 0 {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
		for range 50 {
			if err := b.Probe(within(t, -time.Second), "box-1", nothing); !errors.Is(err, link.ErrProbeBusy) {
				t.Fatalf("with a context that is over: %v", err)
			}
		}
		if err := b.Probe(t.Context(), "box-2", nothing); err != nil {
			t.Errorf("another host is held up: %v", err)
		}
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("a call is held up by a probe: %v", err)
		}
		b.dialer.mu.Lock()
		first := b.dialer.links[0]
		b.dialer.mu.Unlock()
		first.answer <- 1 // the late answer
		synctest.Wait()
		if err := b.Probe(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("after the late answer: %v", err)
		}
	})
}

func TestCancelledProbeIsAbandonedToo(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); cancel() }()
		err := b.Probe(ctx, "box-1", ask)
		wantClass(t, err, fault.Transient)
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := b.Probe(t.Context(), "box-1", nothing); !errors.Is(err, link.ErrProbeBusy) {
			t.Errorf("the next: %v", err)
		}
	})
}

func TestAbandonedProbeEndsWithItsLink(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		// This fn looks at nothing but its context.
		wantClass(t, b.Probe(within(t, time.Second), "box-1", func(ctx context.Context, _ virt.Conn) error { <-ctx.Done(); return ctx.Err() }), fault.Timeout)
		b.dialer.last().die(io.EOF)
		synctest.Wait()
		if err := b.Probe(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("the next probe, on a new link: %v", err)
		}
		if b.dialer.count() != 2 {
			t.Errorf("%d dials, want 2", b.dialer.count())
		}
	})
}

func TestConcurrentProbesTakeTurns(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		running, most := 0, 0
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := b.Probe(within(t, time.Minute), "box-1", func(context.Context, virt.Conn) error {
					mu.Lock()
					running++
					most = max(most, running)
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					running--
					mu.Unlock()
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most != 1 {
			t.Errorf("%d probes at once: two could be abandoned", most)
		}
	})
}

func TestProbeThatWaitsForAnotherEndsWithItsContextOrBusy(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		go func() { _ = b.Probe(within(t, 10*time.Second), "box-1", ask) }()
		synctest.Wait()
		start := time.Now()
		short := b.Probe(within(t, 2*time.Second), "box-1", nothing)
		wantClass(t, short, fault.Timeout)
		if time.Since(start) != 2*time.Second {
			t.Errorf("it waited %v", time.Since(start))
		}
		long := b.Probe(within(t, time.Hour), "box-1", nothing)
		if !errors.Is(long, link.ErrProbeBusy) || time.Since(start) != 10*time.Second {
			t.Errorf("when the first gave up: %v after %v", long, time.Since(start))
		}
	})
}

func TestProbeOfADeadHostFreesTheTurn(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(context.Context, int) error { return unreachable(link.StageTCP) }
		for range 3 {
			err := b.Probe(t.Context(), "box-1", nothing)
			wantClass(t, err, fault.Unavailable)
			if de, ok := errors.AsType[*link.DialError](err); !ok || de.Stage != link.StageTCP {
				t.Errorf("no stage: %v", err)
			}
		}
	})
}

// A check that timed out while the host was dialled has nothing to abandon.
func TestProbeThatEndsWhileDiallingIsNotBusy(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(context.Context, int) error { time.Sleep(5 * time.Second); return nil }
		wantClass(t, b.Probe(within(t, time.Second), "box-1", nothing), fault.Timeout)
		if err := b.Probe(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("the next: %v", err)
		}
	})
}

func TestCloseEndsAll(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(ctx context.Context, n int) error {
			if n == 2 { // box-2 is being dialled
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		var wg sync.WaitGroup
		wg.Go(func() { wantClass(t, b.Call(t.Context(), "box-1", ask), fault.Unavailable) })
		synctest.Wait()
		wg.Go(func() { wantClass(t, b.Call(t.Context(), "box-2", nothing), fault.Unavailable) })
		wg.Go(func() {
			if err := b.Probe(t.Context(), "box-1", ask); err == nil {
				t.Error("the probe went on")
			}
		})
		synctest.Wait()
		start := time.Now()
		var closers sync.WaitGroup
		for range 3 {
			closers.Go(func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		closers.Wait()
		wg.Wait()
		if time.Since(start) != 0 {
			t.Errorf("it waited out a dial: %v", time.Since(start))
		}
		if b.dialer.last().closed.Load() == 0 {
			t.Error("the link is open")
		}
		for name, call := range map[string]func(context.Context, string, func(context.Context, virt.Conn) error) error{"call": b.Call, "probe": b.Probe} {
			if err := call(t.Context(), "box-1", nothing); fault.Of(err) != fault.Unavailable {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
		if b.dialer.count() != 2 {
			t.Errorf("%d dials, want 2", b.dialer.count())
		}
	})
}

// A dial that succeeds while the pool is closed leaves no link behind.
func TestLinkThatComesWhileClosingIsClosed(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(context.Context, int) error { time.Sleep(time.Second); return nil } // deaf to its context
		call := make(chan error, 1)
		go func() { call <- b.Call(t.Context(), "box-1", nothing) }()
		synctest.Wait()
		_ = b.Close()
		wantClass(t, <-call, fault.Unavailable)
		if b.dialer.last().closed.Load() != 1 {
			t.Error("the link is open")
		}
	})
}

// An abandoned probe does not hold up Close, and nothing is left.
func TestCloseEndsAnAbandonedProbe(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		wantClass(t, b.Probe(within(t, time.Second), "box-1", func(ctx context.Context, _ virt.Conn) error { <-ctx.Done(); return nil }), fault.Timeout)
		start := time.Now()
		_ = b.Close()
		if time.Since(start) != 0 {
			t.Errorf("Close took %v", time.Since(start))
		}
	})
}
