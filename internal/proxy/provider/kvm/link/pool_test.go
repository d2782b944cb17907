package link_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// fakeLink answers ConnectGetLibVersion when answer has something; every other
// method is nil.
type fakeLink struct {
	virt.Conn
	n      int
	answer chan virt.Version
	done   chan struct{}
	once   sync.Once
	err    atomic.Pointer[error]
	closed atomic.Int32
}

func newFakeLink(n int) *fakeLink {
	return &fakeLink{n: n, answer: make(chan virt.Version, 16), done: make(chan struct{})}
}

func (l *fakeLink) ConnectGetLibVersion(ctx context.Context) (virt.Version, error) {
	select {
	case v := <-l.answer:
		return v, nil
	case <-l.done:
		return 0, l.Err()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (l *fakeLink) die(err error) { l.once.Do(func() { l.err.Store(&err); close(l.done) }) }

func (l *fakeLink) Done() <-chan struct{} { return l.done }

func (l *fakeLink) Err() error {
	if e := l.err.Load(); e != nil {
		return *e
	}
	return nil
}

func (l *fakeLink) Close() error {
	l.closed.Add(1)
	l.die(fault.New(fault.Unavailable, "closed by this side"))
	return nil
}

// fakeDialer dials as script says; script gets the number of the dial, from 1.
type fakeDialer struct {
	mu     sync.Mutex
	dials  int
	links  []*fakeLink
	script func(ctx context.Context, n int) error
	panics bool
	stamp  string
}

func (d *fakeDialer) Dial(ctx context.Context, host string) (link.Link, error) {
	d.mu.Lock()
	d.dials++
	n, script, panics := d.dials, d.script, d.panics
	d.mu.Unlock()
	if panics {
		panic("scripted")
	}
	if script != nil {
		if err := script(ctx, n); err != nil {
			return nil, err
		}
	}
	l := newFakeLink(n)
	d.mu.Lock()
	d.links = append(d.links, l)
	d.mu.Unlock()
	return l, nil
}

func (d *fakeDialer) Stamp() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stamp
}

func (d *fakeDialer) set(f func(d *fakeDialer)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

func (d *fakeDialer) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dials
}

func (d *fakeDialer) last() *fakeLink {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.links[len(d.links)-1]
}

func unreachable(stage string) error {
	return &link.DialError{Host: "box-1", Stage: stage, Err: fault.New(fault.Unavailable, "connection refused")}
}

type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type bench struct {
	*link.Pool
	dialer *fakeDialer
	log    *logs
}

// inPool runs f in a bubble with a pool of the hosts box-1 and box-2, which it
// closes.
func inPool(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{dialer: &fakeDialer{}, log: &logs{}}
		b.Pool = link.New(link.Options{
			Hosts: []string{"box-2", "box-1"}, Dialer: b.dialer, MaxCalls: 3,
			Log: slog.New(slog.NewTextHandler(b.log, nil)),
		})
		defer func() { _ = b.Close() }()
		f(t, b)
	})
}

func nothing(context.Context, virt.Conn) error { return nil }

// ask is one RPC on the link.
func ask(ctx context.Context, c virt.Conn) error {
	_, err := c.ConnectGetLibVersion(ctx)
	return err
}

func wantClass(t *testing.T, err error, want fault.Class) {
	t.Helper()
	if got := fault.Of(err); got != want {
		t.Errorf("class %q, want %q: %v", got, want, err)
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestLinkIsDialledOnceAndShared(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		if n := b.dialer.count(); n != 0 {
			t.Fatalf("%d dials before the first call: links are dialled lazily", n)
		}
		var first virt.Conn
		for range 5 {
			if err := b.Call(t.Context(), "box-1", func(_ context.Context, c virt.Conn) error {
				if first == nil {
					first = c
				}
				if c != first {
					t.Error("a second link")
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if n := b.dialer.count(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
		if err := b.Call(t.Context(), "box-2", nothing); err != nil {
			t.Fatal(err)
		}
		if n := b.dialer.count(); n != 2 {
			t.Errorf("%d dials for two hosts, want 2", n)
		}
	})
}

func TestUnknownHostIsPermanentAndNamesTheKnownOnes(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		for name, call := range map[string]func(context.Context, string, func(context.Context, virt.Conn) error) error{"call": b.Call, "probe": b.Probe} {
			err := call(t.Context(), "box-9", nothing)
			wantClass(t, err, fault.Permanent)
			if err == nil || !strings.Contains(err.Error(), `"box-9"`) || !strings.Contains(err.Error(), "box-1, box-2") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if b.Generation("box-9") != 0 {
			t.Error("an unknown host has a generation")
		}
	})
}

func TestConcurrentCallersShareOneDial(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(context.Context, int) error { time.Sleep(2 * time.Second); return nil }
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := b.Call(t.Context(), "box-1", nothing); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := b.dialer.count(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
	})
}

func TestConcurrentCallersShareOneFailure(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(context.Context, int) error { time.Sleep(time.Second); return unreachable(link.StageTCP) }
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				err := b.Call(t.Context(), "box-1", nothing)
				wantClass(t, err, fault.Unavailable)
				de, ok := errors.AsType[*link.DialError](err)
				if !ok || de.Stage != link.StageTCP {
					t.Errorf("no stage: %v", err)
				}
			})
		}
		wg.Wait()
		if n := b.dialer.count(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
	})
}

// 20-kvm: a check must not wait out a reconcile that is redialling a dead host.
func TestCheckDoesNotWaitOutAReconcileThatRedialsADeadHost(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return &link.DialError{Host: "box-1", Stage: link.StageTCP, Err: fault.Wrap(fault.Unavailable, ctx.Err())}
		}
		reconcile := make(chan error, 1)
		go func() { reconcile <- b.Call(t.Context(), "box-1", nothing) }()
		synctest.Wait()
		for name, call := range map[string]func(context.Context, string, func(context.Context, virt.Conn) error) error{"call": b.Call, "probe": b.Probe} {
			start := time.Now()
			err := call(within(t, 3*time.Second), "box-1", nothing)
			if took := time.Since(start); took != 3*time.Second {
				t.Errorf("%s: it waited %v, its context had 3s", name, took)
			}
			wantClass(t, err, fault.Timeout)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the context's error is out of reach: %v", name, err)
			}
		}
		if err := <-reconcile; fault.Of(err) != fault.Unavailable {
			t.Errorf("the reconcile's own dial ended with %v", err)
		}
		if n := b.dialer.count(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
	})
}

func TestDialIsBounded(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(ctx context.Context, _ int) error { <-ctx.Done(); return unreachable(link.StageTCP) }
		start := time.Now()
		wantClass(t, b.Call(t.Context(), "box-1", nothing), fault.Unavailable)
		if took := time.Since(start); took != link.DefaultDialTimeout {
			t.Errorf("a dial took %v, want %v", took, link.DefaultDialTimeout)
		}
	})
}

// The dial goes on when the caller who began it gives up: a waiter gets its
// result, and so does the next call.
func TestDialOutlivesTheCallerWhoBeganIt(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		type key struct{}
		var value any
		b.dialer.script = func(ctx context.Context, _ int) error {
			value = ctx.Value(key{})
			select {
			case <-time.After(5 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		check := make(chan error, 1)
		short, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "trace"), time.Second)
		defer cancel()
		go func() { check <- b.Call(short, "box-1", nothing) }()
		synctest.Wait()
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("the waiter: %v", err)
		}
		wantClass(t, <-check, fault.Timeout)
		if n := b.dialer.count(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
		if value != "trace" {
			t.Error("the dial lost the context's values")
		}
	})
}

func TestCancelledWaitIsTransientAndAtOnce(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(ctx context.Context, _ int) error { <-ctx.Done(); return unreachable(link.StageTCP) }
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); cancel() }()
		start := time.Now()
		err := b.Call(ctx, "box-1", nothing)
		wantClass(t, err, fault.Transient)
		if !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// A check that is shorter than a dial still says why the host is unreachable,
// once that was seen.
func TestTimeoutWhileDiallingCarriesTheLastFailure(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(context.Context, int) error { time.Sleep(10 * time.Second); return unreachable(link.StageTCP) }
		err := b.Call(within(t, 3*time.Second), "box-1", nothing)
		if _, ok := errors.AsType[*link.DialError](err); ok {
			t.Errorf("a failure before any: %v", err)
		}
		time.Sleep(time.Minute)
		err = b.Call(within(t, 3*time.Second), "box-1", nothing)
		wantClass(t, err, fault.Timeout)
		de, ok := errors.AsType[*link.DialError](err)
		if !ok || de.Stage != link.StageTCP || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it does not say why: %v", err)
		}
	})
}

// 20-kvm: an uncontended take is never refused because the context is short.
func TestUncontendedTakeIsNeverRefusedBecauseTheContextIsShort(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Fatal(err)
		}
		for name, d := range map[string]time.Duration{"a nanosecond": 1, "over": -time.Second} {
			for range 50 {
				ran := false
				if err := b.Call(within(t, d), "box-1", func(context.Context, virt.Conn) error { ran = true; return nil }); err != nil || !ran {
					t.Fatalf("%s: ran=%v err=%v", name, ran, err)
				}
			}
		}
	})
}

// 05-settled 8: a cancelled call keeps the link; its late answer is dropped.
func TestCancelledCallKeepsTheLinkAndItsLateAnswerIsDropped(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		err := b.Call(within(t, time.Second), "box-1", ask)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		l := b.dialer.last()
		l.answer <- 9_000_000
		var got virt.Version
		if err := b.Call(t.Context(), "box-1", func(ctx context.Context, c virt.Conn) (err error) {
			got, err = c.ConnectGetLibVersion(ctx)
			return err
		}); err != nil || got != 9_000_000 {
			t.Errorf("%v %v", got, err)
		}
		if b.dialer.count() != 1 || l.closed.Load() != 0 {
			t.Errorf("%d dials, closed %d times: the link was dropped", b.dialer.count(), l.closed.Load())
		}
	})
}

// 20-kvm: an error that carries a provider class is a local verdict, not
// evidence about the link. Nor is any other error of fn.
func TestErrorOfFnNeverDropsTheLink(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		errs := []error{io.EOF, context.Canceled, context.DeadlineExceeded, virt.Fault(virt.CodeRPC, "x"), io.ErrClosedPipe, unreachable(link.StageLibvirt)}
		for _, m := range fault.Table() {
			errs = append(errs, fault.New(m.Class, "verdict"))
		}
		for _, want := range errs {
			for name, call := range map[string]func(context.Context, string, func(context.Context, virt.Conn) error) error{"call": b.Call, "probe": b.Probe} {
				if got := call(t.Context(), "box-1", func(context.Context, virt.Conn) error { return want }); got != want {
					t.Errorf("%s changed %v into %v", name, want, got)
				}
			}
		}
		if b.dialer.count() != 1 || b.dialer.last().closed.Load() != 0 {
			t.Errorf("%d dials, closed %d times", b.dialer.count(), b.dialer.last().closed.Load())
		}
	})
}

func TestDeadLinkIsForgottenAndRedialled(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Fatal(err)
		}
		first := b.dialer.last()
		running := make(chan error, 1)
		go func() { running <- b.Call(t.Context(), "box-1", ask) }()
		synctest.Wait()
		first.die(fault.New(fault.Unavailable, "no answer to SSH keepalives for 15s"))
		if err := <-running; fault.Of(err) != fault.Unavailable {
			t.Errorf("the call on the dead link: %v", err)
		}
		// Also at once, before the pool's own watcher has seen it.
		var second virt.Conn
		if err := b.Call(t.Context(), "box-1", func(_ context.Context, c virt.Conn) error { second = c; return nil }); err != nil {
			t.Fatal(err)
		}
		if b.dialer.count() != 2 || second == virt.Conn(first) {
			t.Errorf("%d dials, want 2 and another link", b.dialer.count())
		}
		synctest.Wait()
		if out := b.log.String(); b.log.count("connection to kvm host ended") != 1 || !strings.Contains(out, "SSH keepalives") || !strings.Contains(out, "class=unavailable") {
			t.Errorf("the drop is not logged with its reason:\n%s", out)
		}
	})
}

func TestGenerationChangesWithEachLink(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		if g := b.Generation("box-1"); g != 0 {
			t.Errorf("generation %d before the first link", g)
		}
		for want := uint64(1); want <= 3; want++ {
			for range 2 {
				if err := b.Call(t.Context(), "box-1", nothing); err != nil {
					t.Fatal(err)
				}
				if g := b.Generation("box-1"); g != want {
					t.Errorf("generation %d, want %d", g, want)
				}
			}
			b.dialer.last().die(io.EOF)
			synctest.Wait()
			if g := b.Generation("box-1"); g != want {
				t.Errorf("generation %d after the link died, want %d until the next one", g, want)
			}
		}
		if g := b.Generation("box-2"); g != 0 {
			t.Errorf("another host's generation is %d", g)
		}
	})
}

func TestCallsBeyondTheLimitFailFast(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		release := make(chan struct{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := b.Call(t.Context(), "box-1", func(context.Context, virt.Conn) error { <-release; return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		for range 5 {
			start := time.Now()
			err := b.Call(t.Context(), "box-1", nothing)
			wantClass(t, err, fault.Transient)
			if err == nil || !strings.Contains(err.Error(), "3 calls") || time.Since(start) != 0 {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
		if err := b.Call(t.Context(), "box-2", nothing); err != nil {
			t.Errorf("another host is held up: %v", err)
		}
		if err := b.Probe(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("a probe is held up by calls: %v", err)
		}
		close(release)
		wg.Wait()
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("after the others: %v", err)
		}
	})
}

func TestCallersThatWaitForADialCount(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(context.Context, int) error { time.Sleep(time.Second); return nil }
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _ = b.Call(t.Context(), "box-1", nothing) })
		}
		synctest.Wait()
		wantClass(t, b.Call(t.Context(), "box-1", nothing), fault.Transient)
		wg.Wait()
	})
}

func TestPanicInFnLeavesNothingBehind(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		for range 10 { // more than the limit
			func() {
				defer func() {
					if r := recover(); r != "boom" {
						t.Errorf("the panic became %v", r)
					}
				}()
				_ = b.Call(t.Context(), "box-1", func(context.Context, virt.Conn) error { panic("boom") })
			}()
		}
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Error(err)
		}
		if b.dialer.count() != 1 {
			t.Errorf("%d dials", b.dialer.count())
		}
	})
}

func TestPanicInProbeIsAnError(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		err := b.Probe(t.Context(), "box-1", func(context.Context, virt.Conn) error { panic("boom") })
		wantClass(t, err, fault.Transient)
		if b.log.count("panic in the check") != 1 || !strings.Contains(b.log.String(), "boom") {
			t.Errorf("not logged:\n%s", b.log)
		}
		if err := b.Probe(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("the next one: %v", err)
		}
	})
}

func TestPanicOfTheDialerIsAnError(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.panics = true
		wantClass(t, b.Call(t.Context(), "box-1", nothing), fault.Unavailable)
		b.dialer.set(func(d *fakeDialer) { d.panics = false })
		time.Sleep(link.RedialPause)
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Error(err)
		}
	})
}

func TestFailedDialIsNotRepeatedInAHotLoop(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.dialer.script = func(context.Context, int) error { return unreachable(link.StageTCP) }
		for range 100 {
			wantClass(t, b.Call(t.Context(), "box-1", nothing), fault.Unavailable)
			time.Sleep(50 * time.Millisecond)
		}
		if n := b.dialer.count(); n != 5 {
			t.Errorf("%d dials in 5 s, want 5", n)
		}
		b.dialer.set(func(d *fakeDialer) { d.script = nil })
		time.Sleep(link.RedialPause)
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Errorf("the failure was kept: %v", err)
		}
	})
}

// A Secret that is created or corrected heals at once.
func TestChangedSecretIsTriedAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		stage  string
		change func(d *fakeDialer)
		dials  int
	}{
		"unreadable":             {"reading files again costs nothing", link.StageMaterial, func(*fakeDialer) {}, 2},
		"refused, then replaced": {"the key changed since the refusal", link.StageSSH, func(d *fakeDialer) { d.stamp = "2" }, 2},
		"refused, unchanged":     {"the same key is refused again", link.StageSSH, func(*fakeDialer) {}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inPool(t, func(t *testing.T, b *bench) {
				b.dialer.script = func(_ context.Context, n int) error {
					if n == 1 {
						return unreachable(tc.stage)
					}
					return nil
				}
				wantClass(t, b.Call(t.Context(), "box-1", nothing), fault.Unavailable)
				b.dialer.set(tc.change)
				err := b.Call(t.Context(), "box-1", nothing)
				if b.dialer.count() != tc.dials || (err == nil) != (tc.dials == 2) {
					t.Errorf("%s: %d dials, %v", tc.reason, b.dialer.count(), err)
				}
			})
		})
	}
}

func TestDialFailureIsLoggedOncePerText(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		text := "refused"
		b.dialer.script = func(context.Context, int) error {
			if text == "" {
				return nil
			}
			return &link.DialError{Host: "box-1", Stage: link.StageTCP, Err: fault.New(fault.Unavailable, text)}
		}
		call := func(times int) {
			for range times {
				_ = b.Call(t.Context(), "box-1", nothing)
				time.Sleep(2 * link.RedialPause)
			}
		}
		const line = "kvm host cannot be reached"
		call(5)
		if n := b.log.count(line); n != 1 {
			t.Errorf("%d lines for one text, want 1:\n%s", n, b.log)
		}
		b.dialer.set(func(*fakeDialer) { text = "no route" })
		call(3)
		if n := b.log.count(line); n != 2 {
			t.Errorf("%d lines for two texts, want 2:\n%s", n, b.log)
		}
		b.dialer.set(func(*fakeDialer) { text = "" })
		call(1)
		if n := b.log.count("connected to kvm host"); n != 1 {
			t.Errorf("the connect is not logged:\n%s", b.log)
		}
		b.dialer.last().die(io.EOF)
		b.dialer.set(func(*fakeDialer) { text = "no route" })
		call(2)
		if n := b.log.count(line); n != 3 {
			t.Errorf("%d lines, want 3: the same failure after a connect is news:\n%s", n, b.log)
		}
		if !strings.Contains(b.log.String(), "stage=TCP") || !strings.Contains(b.log.String(), "class=unavailable") {
			t.Errorf("no stage or class:\n%s", b.log)
		}
	})
}

func TestNilLinkOfTheDialerIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := link.New(link.Options{Hosts: []string{"a"}, Dialer: nilDialer{}})
		defer p.Close()
		wantClass(t, p.Call(t.Context(), "a", nothing), fault.Unavailable)
	})
}

type nilDialer struct{}

func (nilDialer) Dial(context.Context, string) (link.Link, error) { return nil, nil }

func TestDialErrorKeepsMessageAndCause(t *testing.T) {
	cause := errors.New("cause")
	err := fmt.Errorf("creating: %w", &link.DialError{Host: "box-1", Stage: link.StageSSH, Err: fault.Wrap(fault.Permanent, cause)})
	wantClass(t, err, fault.Permanent)
	if !errors.Is(err, cause) || err.Error() != `creating: host "box-1": SSH handshake: cause` {
		t.Errorf("%v", err)
	}
	for stage, want := range map[string]string{
		link.StageMaterial: "SSH material", link.StageTCP: "TCP", link.StageSSH: "SSH handshake", link.StageLibvirt: "libvirt connect",
	} {
		if stage != want {
			t.Errorf("stage %q, want %q: checks' reasons are made from it", stage, want)
		}
	}
}

// Await goes along with the next link that somebody dials, and dials none.
func TestAwaitWaitsForTheNextLink(t *testing.T) {
	inPool(t, func(t *testing.T, b *bench) {
		b.Await(within(t, time.Hour), "box-1", 7) // another generation than that
		woken := make(chan uint64)
		go func() { b.Await(t.Context(), "box-1", 0); woken <- b.Generation("box-1") }()
		begun := time.Now()
		b.Await(within(t, time.Hour), "box-1", 0)
		if took := time.Since(begun); took != time.Hour || b.dialer.count() != 0 {
			t.Errorf("without a link: %v, %d dials", took, b.dialer.count())
		}
		if err := b.Call(t.Context(), "box-1", nothing); err != nil {
			t.Fatal(err)
		}
		if g := <-woken; g != 1 {
			t.Errorf("woken at generation %d", g)
		}
		// The end of a link is none of its business.
		b.dialer.last().die(io.EOF)
		begun = time.Now()
		b.Await(within(t, time.Hour), "box-1", 1)
		if took := time.Since(begun); took != time.Hour {
			t.Errorf("after the link's end: %v", took)
		}
		begun = time.Now()
		b.Await(within(t, time.Minute), "nowhere", 0)
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("an unknown host: %v", took)
		}
	})
}
