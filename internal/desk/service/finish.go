package service

import (
	"context"
	"slices"

	"fleetdesk/internal/core/lease"
)

// open begins what the desk does by itself.
func (d *desk) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweep()
}

// finish answers who is left and tells the database who waits no more.
func (s *Service) finish(ctx context.Context) {
	ops := s.desk.close()
	for len(ops) > 0 {
		n := min(len(ops), s.limits.Batch)
		b := &batch{calls: []*call{{ops: ops[:n]}}, ops: n}
		if _, err := s.do(ctx, b); err != nil {
			return // logged; places and grants end by their time
		}
		ops = ops[n:]
	}
}

// close lets no call in, ends all that are there, and returns what the database
// should still hear.
func (d *desk) close() []lease.Op {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.sweeper != nil {
		d.sweeper.Stop()
	}
	for _, r := range d.rooms {
		for _, l := range r.lines {
			for _, c := range slices.Clone(l.calls) {
				d.end(c, stopping)
			}
		}
	}
	var left []*call
	for l := range d.lanes {
		left = append(left, d.lanes[l]...)
	}
	for _, c := range left {
		if c.state == queued && c.done != nil {
			err := c.err // of a first try, whose outcome is unknown
			if err == nil {
				err = errStopping()
			}
			d.lost(c)
			d.answer(c, err)
		}
	}
	var ops []lease.Op
	for _, op := range d.overdue {
		ops = append(ops, op)
	}
	for l := range d.lanes {
		for _, c := range d.lanes[l] {
			if c.state == queued {
				ops = append(ops, told(c.ops)...)
			}
		}
		d.lanes[l] = nil
	}
	return ops
}

// told are the ops that are worth a transaction when the server stops.
func told(ops []lease.Op) []lease.Op {
	var out []lease.Op
	for _, op := range ops {
		switch op.(type) {
		case lease.Leave, lease.Unclaim:
			out = append(out, op)
		}
	}
	return out
}
