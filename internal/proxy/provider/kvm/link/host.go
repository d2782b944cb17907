package link

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"fleetdesk/internal/core/fault"
)

// host is the state of one host. The fields below slot belong to whoever holds
// it; nobody waits for anything while holding it.
type host struct {
	name  string
	pool  *Pool
	calls atomic.Int64

	// slot is the host's turn: a channel of one, never a mutex, so that a wait
	// for it can end with a context.
	slot chan struct{}

	link       Link
	generation uint64
	// news is closed with the next link.
	news   chan struct{}
	dial   *dial
	failed *failure
	probe  *probe
	closed bool
	// said is the text of the last dial failure that was logged.
	said string
}

// dial is a dial under way, shared by all who wait for it. link and err may be
// read once done is closed.
type dial struct {
	done   chan struct{}
	cancel context.CancelFunc
	start  time.Time
	link   Link
	err    error
}

// failure is how the last dial failed.
type failure struct {
	err   error
	at    time.Time
	stamp string
}

func newHost(name string, p *Pool) *host {
	return &host{name: name, pool: p, slot: make(chan struct{}, 1), news: make(chan struct{})}
}

func stopped(host string) error {
	return fault.Errorf(fault.Unavailable, "host %q: the provider is stopped", host)
}

func (h *host) lock()   { h.slot <- struct{}{} }
func (h *host) unlock() { <-h.slot }

// lockCtx takes the slot. A free one is taken also when ctx has ended.
func (h *host) lockCtx(ctx context.Context) error {
	select {
	case h.slot <- struct{}{}:
		return nil
	default:
	}
	select {
	case h.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ended(ctx, nil, "host %q: waiting for its connection", h.name)
	}
}

// take returns the link, dialling when there is none.
func (h *host) take(ctx context.Context) (Link, error) {
	for {
		if err := h.lockCtx(ctx); err != nil {
			return nil, err
		}
		if h.closed {
			h.unlock()
			return nil, stopped(h.name)
		}
		if l := h.live(); l != nil {
			h.unlock()
			return l, nil
		}
		last := h.failed
		if h.dial == nil && last.fresh() {
			h.unlock()
			// Read outside of the slot: it looks at files.
			if h.stamp() == last.stamp {
				return nil, last.err
			}
			h.lock()
			if h.failed == last {
				h.failed = nil
			}
			h.unlock()
			continue
		}
		if h.dial == nil {
			h.startDial(ctx)
		}
		d := h.dial
		h.unlock()
		return h.await(ctx, d, last)
	}
}

// await waits for a dial; its result counts also when ctx has ended as well.
func (h *host) await(ctx context.Context, d *dial, last *failure) (Link, error) {
	select {
	case <-d.done:
	case <-ctx.Done():
		select {
		case <-d.done:
		default:
			var why error
			if last != nil {
				why = last.err
			}
			return nil, ended(ctx, why, "host %q: no connection yet, it is still being dialled", h.name)
		}
	}
	return d.link, d.err
}

// live returns the link if it lives, and forgets one that has ended.
func (h *host) live() Link {
	if h.link == nil {
		return nil
	}
	select {
	case <-h.link.Done():
		h.link = nil
		return nil
	default:
		return h.link
	}
}

// fresh reports whether the failure answers for another dial.
func (f *failure) fresh() bool {
	if f == nil || time.Since(f.at) >= RedialPause {
		return false
	}
	de, ok := errors.AsType[*DialError](f.err)
	return !ok || de.Stage != StageMaterial
}

func (h *host) stamp() string {
	if s, ok := h.pool.o.Dialer.(Stamper); ok {
		return s.Stamp()
	}
	return ""
}

// startDial begins a dial that outlives ctx and keeps its values. The slot is
// held.
func (h *host) startDial(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.pool.o.DialTimeout)
	d := &dial{done: make(chan struct{}), cancel: cancel, start: time.Now()}
	h.dial = d
	h.pool.running.Go(func() {
		defer cancel()
		stamp := h.stamp()
		l, err := h.dialSafely(ctx)
		h.dialled(d, l, err, stamp)
	})
}

// dialSafely turns a panic of the dialer into an error, and a nil link too.
func (h *host) dialSafely(ctx context.Context) (l Link, err error) {
	defer func() {
		if r := recover(); r != nil {
			h.pool.o.Log.Error("panic while connecting to a kvm host", "host", h.name, "panic", r, "stack", string(debug.Stack()))
			l, err = nil, fault.Errorf(fault.Unavailable, "host %q: a defect of this program while connecting; its log has the details", h.name)
		}
	}()
	l, err = h.pool.o.Dialer.Dial(ctx, h.name)
	if err == nil && l == nil {
		err = fault.Errorf(fault.Unavailable, "host %q: the dialer returned no connection", h.name)
	}
	return l, err
}

// dialled settles a dial: the link is there for all, or the failure.
func (h *host) dialled(d *dial, l Link, err error, stamp string) {
	h.lock()
	h.dial = nil
	closed, news := h.closed, false
	switch {
	case closed:
	case err != nil:
		h.failed = &failure{err: err, at: time.Now(), stamp: stamp}
		text := err.Error()
		news = text != h.said
		h.said = text
	default:
		h.link, h.failed, h.said = l, nil, ""
		h.generation++
		close(h.news)
		h.news = make(chan struct{})
	}
	generation := h.generation
	h.unlock()

	took := time.Since(d.start).Round(time.Millisecond)
	switch {
	case closed:
		if l != nil {
			_ = l.Close()
		}
		l, err = nil, stopped(h.name)
	case err != nil && news:
		stage := ""
		if de, ok := errors.AsType[*DialError](err); ok {
			stage = de.Stage
		}
		h.pool.o.Log.Warn("kvm host cannot be reached", "host", h.name, "stage", stage, "class", string(fault.Of(err)), "took", took, "error", err)
	case err == nil:
		h.pool.o.Log.Info("connected to kvm host", "host", h.name, "generation", generation, "took", took)
		since := time.Now()
		h.pool.running.Go(func() { h.watch(l, since) })
	}
	d.link, d.err = l, err
	close(d.done)
}

// watch waits for the link's end, forgets it and says why.
func (h *host) watch(l Link, since time.Time) {
	<-l.Done()
	h.lock()
	if h.link == l {
		h.link = nil
	}
	level := slog.LevelWarn
	if h.closed {
		level = slog.LevelInfo
	}
	h.unlock()
	err := l.Err()
	h.pool.o.Log.Log(context.Background(), level, "connection to kvm host ended",
		"host", h.name, "class", string(fault.Of(err)), "error", err, "lived", time.Since(since).Round(time.Millisecond))
}

// close ends what the host has, without waiting for it. A probe ends with its
// link.
func (h *host) close() {
	h.lock()
	h.closed = true
	l, d := h.link, h.dial
	h.unlock()
	if d != nil {
		d.cancel()
	}
	if l != nil {
		_ = l.Close()
	}
}
