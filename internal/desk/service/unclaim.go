package service

import (
	"fleetdesk/internal/core/lease"
)

// unclaim tells the database of grants that nobody fetched. A replay is none:
// the client may have got the grant the first time.
func (d *desk) unclaim(c *call) {
	for i, op := range c.ops {
		take, ok := op.(lease.Take)
		if ok && i < len(c.results) && granted(&c.results[i]) && (c.unsure || !c.results[i].Replayed) {
			d.giveUp(lease.Unclaim{ID: c.results[i].Key.ID(), Secret: take.Secret})
		}
	}
}

// undelivered gives a grant up whose client is gone.
func (d *desk) undelivered(op lease.Unclaim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.lanes[freeing]) > 2*d.limits.Queue {
		d.m.dropped.Inc()
		return
	}
	d.giveUp(op)
}

// giveUp sends an Unclaim, again after an outage.
func (d *desk) giveUp(op lease.Unclaim) {
	if d.fetched[op.ID] {
		return
	}
	d.task(func(_ []lease.Result, err error) {
		switch {
		case err == nil:
		case len(d.overdue) < d.limits.Queue:
			d.overdue = append(d.overdue, op)
		default:
			d.m.dropped.Inc()
		}
	}, op)
}

// maxFetched bounds what is remembered of requests that came again.
const maxFetched = 1 << 12

// fetch notes that the same request, come again, got a grant: whoever lost the
// first answer must not give up what the second one holds. What is on its way to
// the database already was there before the second asked, which has undone it.
func (d *desk) fetch(id lease.ID) {
	if len(d.fetched) >= maxFetched {
		clear(d.fetched)
	}
	d.fetched[id] = true
	for _, c := range d.lanes[freeing] {
		if op, ok := c.ops0().(lease.Unclaim); ok && op.ID == id && c.state == queued {
			c.state = answered
		}
	}
}

// recover goes on after an outage.
func (d *desk) recover() {
	d.mu.Lock()
	defer d.mu.Unlock()
	overdue := d.overdue
	d.overdue = nil
	for _, op := range overdue {
		d.giveUp(op)
	}
	d.freedAll()
}
