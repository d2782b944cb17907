package virttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
)

// conn is one link to a host.
type conn struct {
	host *Host
	done chan struct{}

	once sync.Once
	mu   sync.Mutex
	err  error
}

var _ link.Link = (*conn)(nil)

// Done implements link.Link.
func (c *conn) Done() <-chan struct{} { return c.done }

// Err implements link.Link.
func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close implements link.Link.
func (c *conn) Close() error {
	c.host.mu.Lock()
	delete(c.host.links, c)
	c.host.hush(c)
	c.host.mu.Unlock()
	c.end(fault.Errorf(fault.Unavailable, "host %s: the connection to libvirt was closed", c.host.name))
	return nil
}

func (c *conn) end(err error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		close(c.done)
	})
}

// ask makes one call: hooks and faults, then do with the host's state locked.
func ask[T any](ctx context.Context, c *conn, rpc string, do func() (T, error)) (T, error) {
	var none T
	rpc = publicName(rpc)
	if err := c.before(ctx, rpc); err != nil {
		return none, err
	}
	c.host.mu.Lock()
	out, err := do()
	c.host.mu.Unlock()
	if err != nil {
		return none, err
	}
	if err := c.after(ctx, rpc); err != nil {
		return none, err
	}
	return out, nil
}

// tell is ask without an answer.
func tell(ctx context.Context, c *conn, rpc string, do func() error) error {
	_, err := ask(ctx, c, rpc, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (c *conn) before(ctx context.Context, rpc string) error {
	if err := c.alive(ctx, rpc); err != nil {
		return err
	}
	h := c.host
	h.mu.Lock()
	err := h.faults.due(rpc)
	hook, hung, latency := h.faults.onCall, h.faults.waits(h.faults.hung, rpc), h.faults.latency
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if hook != nil {
		if err := hook(rpc); err != nil {
			return err
		}
	}
	if latency > 0 {
		t := time.NewTimer(latency)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-c.done:
		}
	}
	if hung != nil {
		c.wait(ctx, hung)
	}
	return c.alive(ctx, rpc)
}

func (c *conn) after(ctx context.Context, rpc string) error {
	h := c.host
	h.mu.Lock()
	hook, silent := h.faults.onDone, h.faults.waits(h.faults.silent, rpc)
	h.mu.Unlock()
	if hook != nil {
		if err := hook(rpc); err != nil {
			return err
		}
	}
	if silent != nil {
		c.wait(ctx, silent)
	}
	return c.alive(ctx, rpc)
}

// wait waits for the channel, or for the end of the context or the link.
func (c *conn) wait(ctx context.Context, ch <-chan struct{}) {
	select {
	case <-ch:
	case <-ctx.Done():
	case <-c.done:
	}
}

func (c *conn) alive(ctx context.Context, rpc string) error {
	if ctx.Err() != nil {
		return ctxError(ctx, rpc)
	}
	select {
	case <-c.done:
		return c.Err()
	default:
		return nil
	}
}

// ctxError is the context's error with its class.
func ctxError(ctx context.Context, what string) error {
	class := fault.Transient
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		class = fault.Timeout
	}
	return fault.Wrap(class, fmt.Errorf("%s: %w", what, ctx.Err()))
}
