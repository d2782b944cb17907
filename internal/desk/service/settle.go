package service

import (
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// settle hands the outcome of a transaction out.
func (d *desk) settle(b *batch, results []lease.Result, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range b.calls {
		var own []lease.Result
		if err == nil {
			own, results = results[:len(c.ops):len(c.ops)], results[len(c.ops):]
			d.hear(c, own)
		}
		d.m.outcome(c.ops, own, err)
		if err != nil {
			d.failed(c, err)
		} else {
			d.done(c, own)
		}
	}
	for _, c := range slices.Backward(d.retry) {
		d.again(c)
	}
	clear(d.retry)
	d.retry = d.retry[:0]
}

// hear takes from the results of a call what others are to know: when a lease
// ends, and which keys came free, before the store tells of it.
func (d *desk) hear(c *call, results []lease.Result) {
	for i := range results {
		r := &results[i]
		if r.Err != nil {
			continue
		}
		if l := r.Lease; l != nil && l.End == "" {
			d.until(l.Expires, r.Now)
		}
		if r.Key == nil {
			continue
		}
		switch c.ops[i].(type) {
		case lease.Take:
			d.homes.put(r.Key.Name, r.Key.Pools)
			if r.Replayed && c.ending != gone && c.ending != superseded {
				d.fetch(r.Key.ID())
			}
		case lease.Release, lease.Force, lease.Enable, lease.PutKey:
			if r.Key.FreeAt().After(r.Now) {
				continue // news come of what will be free, too
			}
			for _, p := range r.Key.Pools {
				d.gained(p)
			}
		}
	}
}

// failed sees to a call whose transaction failed.
func (d *desk) failed(c *call, err error) {
	switch {
	case fault.Of(err) == fault.Timeout && !c.retried && c.repeatable():
		// Also when its caller left: a take may have been granted.
		c.retried, c.unsure, c.err = true, true, err
		d.retry = append(d.retry, c)
	case c.wait != nil && c.wait.line != nil && c.ending == open:
		// It has waited before and does so on: an outage may be over before its
		// wait is.
		c.state, c.retried = parked, false
	default:
		d.answer(c, err)
		if c.then != nil {
			c.then(nil, err)
		}
	}
}

// done sees to a call whose transaction was done.
func (d *desk) done(c *call, results []lease.Result) {
	c.results = results
	if c.then != nil {
		c.then(results, nil)
	}
	if c.wait == nil {
		d.answer(c, nil)
		if c.ending == gone {
			d.unclaim(c)
		}
		return
	}
	r := &results[c.main]
	if r.Busy != nil && r.Err == nil {
		d.busy(c, r)
		return
	}
	if c.wait.line != nil {
		c.wait.line.won++ // also when it was refused: it is out of the way
		if freed := c.wait.room.freed; r.Err == nil && !freed.IsZero() {
			d.m.handOff.Observe(time.Since(freed).Seconds())
		}
	}
	if c.ending == gone {
		d.unclaim(c)
	}
	if c.ending == superseded {
		d.answer(c, errSuperseded())
		return
	}
	d.answer(c, nil)
}

// busy sees to a take that got nothing.
func (d *desk) busy(c *call, r *lease.Result) {
	c.retried, c.unsure, c.err = false, false, nil // there is no grant
	waits := r.Busy.Position > 0
	if waits && c.wait.seq != r.Busy.Seq { // it stands elsewhere now
		d.leave(c)
		c.wait.seq = r.Busy.Seq
	}
	switch {
	case c.ending == open && waits:
		d.park(c, r)
	case c.ending == late && waits:
		d.final(c)
		d.push(c)
	case c.ending == open, c.ending == late:
		d.answer(c, nil)
	default:
		if waits {
			d.lost(c)
		}
		d.answer(c, c.ending.err())
	}
}
