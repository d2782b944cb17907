package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	libvirt "github.com/digitalocean/go-libvirt"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// events are a connection's subscriptions. A daemon takes one for each
// connection, so all share it; it stays until the connection ends. The library
// would keep what comes in a queue without bound: the guard takes events out of
// the stream before it sees them. The guard's mu is held for on and queues.
type events struct {
	// on is set as the daemon's answer to the subscription goes by.
	on     bool
	ended  bool
	queues map[*virt.Events]bool

	// The reading side's alone: how many came since then.
	count int
	since time.Time
}

// subscription is the daemon's answer, for all who wait for it.
type subscription struct {
	done chan struct{}
	err  error
}

// join adds a queue, which is closed with the connection.
func (g *guard) join(q *virt.Events) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.events.ended {
		q.Close()
		return
	}
	g.events.queues[q] = true
}

// leave closes a queue.
func (g *guard) leave(q *virt.Events) {
	q.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.events.queues, q)
}

// endEvents closes all queues, those to come too.
func (g *guard) endEvents() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events.ended = true
	for q := range g.events.queues {
		q.Close()
	}
	clear(g.events.queues)
}

// subscribed reports whether a frame is an event that was subscribed to.
func (g *guard) subscribed(h header) bool {
	if h.kind != typeMessage || h.procedure != procEventLifecycle || h.status != statusOK || h.length-headerSize > maxEvent {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.events.on
}

// event reads an event and puts it into the queues.
func (g *guard) event(h header) error {
	var room [maxEvent]byte
	payload := room[:h.length-headerSize]
	if _, err := io.ReadFull(g.in, payload); err != nil {
		return g.lost(err)
	}
	ev, err := readEvent(payload)
	if err != nil {
		return g.nonsense("an event that cannot be read: %v", err)
	}
	if g.flooded(time.Now()) {
		return g.nonsense("more than %d events in a second", maxEvents)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for q := range g.events.queues {
		q.Push(ev)
	}
	return nil
}

// flooded counts an event and reports whether too many came in a second.
func (g *guard) flooded(now time.Time) bool {
	if now.Sub(g.events.since) >= time.Second {
		g.events.since, g.events.count = now, 0
	}
	g.events.count++
	return g.events.count > maxEvents
}

// readEvent reads libvirt's remote_domain_event_callback_lifecycle_msg.
func readEvent(b []byte) (ev virt.DomainEvent, err error) {
	w := walker{b}
	word := func() int32 {
		v, wordErr := w.word()
		err = errors.Join(err, wordErr)
		return int32(v)
	}
	_ = word() // the daemon's number of the subscription
	name, nameErr := w.str()
	var id libvirt.UUID
	raw, idErr := w.opaque(uint32(len(id)))
	if err = errors.Join(err, nameErr, idErr); err != nil {
		return ev, err
	}
	copy(id[:], raw)
	ev.Domain = virt.Domain{Name: string(name), UUID: formatUUID(id), ID: word()}
	ev.Kind, ev.Detail = virt.EventKind(word()), word()
	switch {
	case err != nil:
	case len(w.left) > 0:
		err = errors.New("bytes are left over")
	case ev.Kind < 0:
		err = errors.New("it has no kind")
	}
	return ev, err
}

// ConnectDomainEventRegisterAny implements [virt.Conn].
func (c *Conn) ConnectDomainEventRegisterAny(ctx context.Context) (<-chan virt.DomainEvent, error) {
	const rpc = "virConnectDomainEventRegisterAny"
	if ctx.Err() != nil {
		return nil, c.unasked(ctx, rpc)
	}
	q := virt.NewEvents()
	c.guard.join(q)
	s := c.subscribe(rpc)
	var err error
	select {
	case <-s.done:
		if err = s.err; err == nil && c.guard.over() != nil {
			err = ended(rpc, c.guard.reason())
		}
	case <-ctx.Done():
		err = c.left(ctx, rpc)
	}
	if err != nil {
		c.guard.leave(q)
		return nil, err
	}
	context.AfterFunc(ctx, func() { c.guard.leave(q) })
	return q.C(), nil
}

// subscribe asks the daemon for events unless that was done already. The
// question outlives whoever asked first; the connection's end ends it.
func (c *Conn) subscribe(rpc string) *subscription {
	c.mu.Lock()
	s := c.events
	if s != nil {
		c.mu.Unlock()
		return s
	}
	s = &subscription{done: make(chan struct{})}
	c.events = s
	c.mu.Unlock()
	ask := func() {
		_, s.err = do(context.Background(), c, rpc, func(l *libvirt.Libvirt) (int32, error) {
			return l.ConnectDomainEventCallbackRegisterAny(int32(libvirt.DomainEventIDLifecycle), nil)
		})
		if s.err != nil {
			c.mu.Lock()
			c.events = nil
			c.mu.Unlock()
		}
		close(s.done)
	}
	if !c.spawn(ask) {
		ask() // it fails at once
	}
	return s
}
