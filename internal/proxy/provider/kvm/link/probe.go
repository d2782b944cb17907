package link

import (
	"context"
	"runtime/debug"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// probe is a health check that runs, or whose caller gave up.
type probe struct {
	// cancel ends the context of its RPCs: for the pool's and the link's end
	// alone.
	cancel context.CancelFunc
	// over is closed when it has returned.
	over chan struct{}
	// left is closed when its caller gave up.
	left chan struct{}
}

// Probe is the health check's way in. fn runs in a goroutine of its own, with a
// context that keeps ctx's values, outlives ctx, and ends with the link and
// with the pool. When ctx ends first, Probe returns Timeout (Transient when ctx
// was cancelled) and the RPCs are abandoned: they end alone, and the link is
// left alone, so that an upload or a Create on it is not cut off. fn may
// therefore still run when Probe has returned: what it writes must be its own.
//
// One probe of a host runs at a time; others wait for their turn until their
// ctx ends. While an abandoned one still waits, Probe returns [ErrProbeBusy] at
// once, so that at most one stays behind. Probes neither count as calls nor
// wait for them. Other failures are those of [Pool.Call]; a panic of fn is a
// Transient error.
func (p *Pool) Probe(ctx context.Context, host string, fn func(ctx context.Context, c virt.Conn) error) error {
	h, err := p.host(host)
	if err != nil {
		return err
	}
	pr, probeCtx, err := h.startProbe(ctx)
	if err != nil {
		return err
	}
	l, err := h.take(ctx)
	if err != nil {
		h.endProbe(pr)
		return err
	}
	result := make(chan error, 1)
	if !h.goProbe(pr, func() { result <- h.runProbe(probeCtx, l, pr, fn) }) {
		h.endProbe(pr)
		return stopped(h.name)
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		select {
		case err := <-result:
			return err
		default:
		}
		close(pr.left)
		return ended(ctx, nil, "host %q: libvirt did not answer the check in time", h.name)
	}
}

// startProbe waits for the turn to probe the host.
func (h *host) startProbe(ctx context.Context) (*probe, context.Context, error) {
	for {
		if err := h.lockCtx(ctx); err != nil {
			return nil, nil, err
		}
		cur := h.probe
		if cur == nil {
			probeCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
			pr := &probe{cancel: cancel, over: make(chan struct{}), left: make(chan struct{})}
			h.probe = pr
			h.unlock()
			return pr, probeCtx, nil
		}
		h.unlock()
		select {
		case <-cur.over:
			continue
		default:
		}
		select {
		case <-cur.left:
			return nil, nil, busy(h.name)
		default:
		}
		select {
		case <-cur.over:
		case <-cur.left:
			return nil, nil, busy(h.name)
		case <-ctx.Done():
			return nil, nil, ended(ctx, nil, "host %q: waiting for another check of it", h.name)
		}
	}
}

func busy(host string) error { return fault.Errorf(fault.Timeout, "host %q: %w", host, ErrProbeBusy) }

// goProbe starts run among the pool's goroutines, unless the pool is closed.
func (h *host) goProbe(pr *probe, run func()) bool {
	h.lock()
	defer h.unlock()
	if h.closed {
		return false
	}
	h.pool.running.Go(func() {
		defer h.endProbe(pr)
		run()
	})
	return true
}

// runProbe runs fn until it returns. A panic must not end the process: nobody
// above this goroutine could catch it.
func (h *host) runProbe(ctx context.Context, l Link, pr *probe, fn func(ctx context.Context, c virt.Conn) error) (err error) {
	ended := make(chan struct{})
	defer close(ended)
	h.pool.running.Go(func() {
		select {
		case <-l.Done():
			pr.cancel()
		case <-ended:
		}
	})
	defer func() {
		if r := recover(); r != nil {
			h.pool.o.Log.Error("panic in the check of a kvm host", "host", h.name, "panic", r, "stack", string(debug.Stack()))
			err = fault.Errorf(fault.Transient, "host %q: a defect of this program in the check; its log has the details", h.name)
		}
	}()
	return fn(ctx, l)
}

func (h *host) endProbe(pr *probe) {
	pr.cancel()
	h.lock()
	if h.probe == pr {
		h.probe = nil
	}
	h.unlock()
	close(pr.over)
}
