package service

import (
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/httpd"
)

// desk is what waits: calls for a transaction, and takes for a key. Its lock is
// never held while a transaction runs.
type desk struct {
	limits Limits
	m      *metrics
	// wake is how the loop hears that there is something to do.
	wake chan struct{}

	mu      sync.Mutex
	closed  bool
	lanes   [lanes][]*call
	ops     int // of callers, in the lanes
	dropped int // calls whose caller left, still in the lanes
	// retry are calls to be sent again, in order; empty between transactions.
	retry []*call

	rooms map[string]*room
	// hot are rooms in which somebody is to be asked for.
	hot []*room
	// asked are the lines of which some ask in the transaction under way.
	asked []*line
	// tickets are waiting takes by ticket, of those that can come again.
	tickets map[string]*call
	waiters int
	// overdue are grants without a client that could not be told of while the
	// database was lost.
	overdue []lease.Unclaim
	// fetched are grants that a request which came again got here.
	fetched map[lease.ID]bool

	// homes tell where a key that is given back is waited for.
	homes homes

	// news is closed when events were written.
	news chan struct{}
	// beating and sweeping are set while such a task is queued or sent.
	beating, sweeping bool
	// sweeper begins the next sweep, at sweepAt; ends is when the lease ends for
	// which it is planned, by the database's clock.
	sweeper *time.Timer
	sweepAt time.Time
	ends    time.Time
}

func newDesk(l Limits, m *metrics) *desk {
	return &desk{
		limits: l, m: m, wake: make(chan struct{}, 1), news: make(chan struct{}),
		rooms: map[string]*room{}, tickets: map[string]*call{}, homes: homes{}, fetched: map[lease.ID]bool{},
	}
}

// ring wakes the loop.
func (d *desk) ring() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func errStopping() error {
	return httpd.WithRetryAfter(httpd.WithDetail(fault.WithCode(fault.New(fault.Unavailable,
		"this server stops: send the request again, with the same Idempotency-Key to keep its place"), "stopping")), time.Second)
}

func errSuperseded() error {
	return fault.WithCode(fault.New(fault.Conflict, "the same request came again and is served in this one's stead"), "idempotency")
}

func errFull(waiters int) error {
	return fault.WithCode(fault.Errorf(fault.Quota, "%d requests wait at this server already: come back later", waiters), "queue_full")
}

// submit queues a caller's call.
func (d *desk) submit(c *call) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return errStopping()
	case d.ops+len(c.ops) > d.limits.Queue:
		return fault.WithCode(fault.Errorf(fault.Quota,
			"%d operations wait for the database already: try again in a moment", d.ops), "busy")
	}
	if len(c.ops) == 1 {
		if take, ok := c.ops[0].(lease.Take); ok {
			d.enter(c, take)
		}
	}
	d.push(c)
	return nil
}

// enter makes a take one that may wait, and the one that stands for its ticket.
func (d *desk) enter(c *call, take lease.Take) {
	if old := d.tickets[take.Ticket]; take.Keep && old != nil && old.wait.take.Digest == take.Digest {
		// Whoever sends a request again does not listen to the first any more.
		c.unsure = old.unsure || old.state == sent
		d.end(old, superseded)
	}
	if c.wait == nil {
		return
	}
	if d.waiters >= d.limits.Waiters {
		take.Wait = false
		c.wait, c.full = nil, true
		c.ops[0] = take
		return
	}
	d.waiters++
	d.m.waiters.Set(float64(d.waiters))
	r := d.rooms[take.Pool]
	if r == nil {
		r = newRoom(take.Pool)
		d.rooms[take.Pool] = r
	}
	r.calls++
	c.wait.take, c.wait.room, c.wait.generation = take, r, r.generation
	if take.Keep {
		d.tickets[take.Ticket] = c
	}
}

// push queues a call; one that was in a room stays counted there.
func (d *desk) push(c *call) {
	if c.done != nil && !c.counted {
		d.ops += len(c.ops)
		c.counted = true
	}
	c.state = queued
	d.lanes[c.lane] = append(d.lanes[c.lane], c)
	d.ring()
}

// again queues a call before all others of its lane.
func (d *desk) again(c *call) {
	d.push(c)
	l := d.lanes[c.lane]
	copy(l[1:], l[:len(l)-1])
	l[0] = c
}

// uncount takes a call out of the bound on the queue.
func (d *desk) uncount(c *call) {
	if c.counted {
		d.ops -= len(c.ops)
		c.counted = false
	}
}

// task queues ops that nobody waits for. Whoever makes them bounds their number:
// one for each call that ended.
func (d *desk) task(then func([]lease.Result, error), ops ...lease.Op) {
	d.push(&call{ops: ops, lane: freeing, ending: gone, then: then})
}

// answer ends a call.
func (d *desk) answer(c *call, err error) {
	d.uncount(c)
	c.state, c.err = answered, err
	if c.wait != nil {
		d.waiters--
		d.m.waiters.Set(float64(d.waiters))
		if d.tickets[c.wait.take.Ticket] == c {
			delete(d.tickets, c.wait.take.Ticket)
		}
		d.leave(c)
		r := c.wait.room
		if r.calls--; r.calls == 0 {
			r.close()
			delete(d.rooms, r.pool)
		}
	}
	if c.done != nil {
		close(c.done)
	}
}

// end tells that a call must not go on as it began. What is in a transaction is
// seen to when that ends.
func (d *desk) end(c *call, how ending) {
	if c.state == answered {
		if how == gone && c.err == nil {
			d.unclaim(c)
		}
		return
	}
	if how <= c.ending || how == late && c.wait == nil {
		return // one that cannot wait is answered anyway
	}
	c.ending = how
	switch c.state {
	case queued:
		d.endQueued(c)
	case parked:
		d.endParked(c)
	case sent, answered:
	}
}

func (d *desk) endQueued(c *call) {
	switch {
	case c.ending == late:
		d.final(c)
	case c.unsure && c.ending != superseded:
		// It is sent, to learn what became of the try before.
		if c.wait != nil {
			d.final(c)
		}
	default:
		d.lost(c)
		d.answer(c, c.ending.err())
		if d.dropped++; d.dropped > d.limits.Queue {
			d.compact()
		}
	}
}

func (d *desk) endParked(c *call) {
	if c.ending == late {
		d.final(c)
		d.push(c)
		return
	}
	d.lost(c)
	d.answer(c, c.ending.err())
}

// final makes a waiting take one that is answered next.
func (d *desk) final(c *call) {
	d.uncount(c)
	d.leave(c)
	c.lastTry()
	c.counted = true // bounded by the number of waiters
	d.ops += len(c.ops)
}

// compact takes what was dropped out of the lanes.
func (d *desk) compact() {
	d.dropped = 0
	for l := range d.lanes {
		d.lanes[l] = slices.DeleteFunc(d.lanes[l], func(c *call) bool { return c.state != queued })
	}
}

// err is what a caller is told that is still there.
func (e ending) err() error {
	switch e {
	case stopping:
		return errStopping()
	case superseded:
		return errSuperseded()
	case open, late, gone:
	}
	return fault.New(fault.Timeout, "the request was given up")
}

// lost tells the database that a waiter waits no more, unless the same request
// waits again.
func (d *desk) lost(c *call) {
	if c.wait == nil || c.wait.seq == 0 || c.ending == superseded {
		return
	}
	d.task(nil, lease.Leave{Ticket: c.wait.take.Ticket, Forget: !c.wait.take.Keep})
}

// abandon is end for those who do not hold the lock.
func (d *desk) abandon(c *call, how ending) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.end(c, how)
}
