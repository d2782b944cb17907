package service

import (
	"time"

	"fleetdesk/internal/core/lease"
)

// call is ops that one caller sent together. They run one after another in one
// transaction. All but the fields that never change belong to the desk's lock
// until done is closed, and to the caller from then on.
type call struct {
	ops []lease.Op
	// main is the op whose result is the answer.
	main int
	lane lane
	// done is closed when there is an answer; nil when nobody asked.
	done chan struct{}
	// then hears the outcome under the desk's lock; for calls without a caller.
	then func(results []lease.Result, err error)

	state  state
	ending ending
	// retried is set when it was sent again after an unknown outcome.
	retried bool
	// unsure is set when an earlier take of the same ticket may have been
	// granted, so that it cannot just be dropped.
	unsure bool
	// full is set when it could not wait because too many do.
	full bool
	// counted is set while it counts towards the bound on the queue.
	counted bool

	results []lease.Result
	err     error

	// wait is set for a take that may wait.
	wait *wait
	buf  [3]lease.Op // what ops usually points to
}

// wait is the waiting part of a call. Its room, once entered, is not left before
// the answer.
type wait struct {
	take lease.Take
	room *room
	line *line
	// seq is the place that the database gave it; 0 before it has one.
	seq int64
	// generation is the room's when it was last asked for.
	generation uint64
	began      time.Time
	// sent is when it was last put into a transaction, before that began.
	sent time.Time
}

// state is where a call is.
type state uint8

const (
	// queued: waits for a transaction.
	queued state = iota
	// sent: in the transaction under way.
	sent
	// parked: waits for a key.
	parked
	// answered: done is closed, or nobody asked.
	answered
)

// ending is why a call does not go on as it began. The later wins.
type ending uint8

const (
	open ending = iota
	// late: its wait is over. It is tried once more and answered.
	late
	// stopping: the server stops.
	stopping
	// superseded: the same request came again, which waits in its stead.
	superseded
	// gone: nobody wants the answer any more.
	gone
)

// lane is the order of calls within a transaction.
type lane uint8

const (
	// freeing ops come first: what they free is there for the takes behind.
	freeing lane = iota
	// ordered ops keep the order in which they came.
	ordered
	// waiting takes go by age, before takes that are new.
	waiting
	fresh
	lanes
)

// laneOf is where an op stands that was sent alone.
func laneOf(op lease.Op) lane {
	switch op.(type) {
	case lease.Renew, lease.Release, lease.Unclaim, lease.Leave, lease.Live:
		return freeing
	case lease.Take:
		return fresh
	}
	return ordered
}

// newCall is a call of one op for a caller.
func newCall(op lease.Op) *call {
	c := &call{lane: laneOf(op), done: make(chan struct{})}
	c.buf[0] = op
	c.ops = c.buf[:1]
	return c
}

// repeatable reports whether the ops may be sent again when it is unknown
// whether they were done: done twice is as good as once.
func (c *call) repeatable() bool {
	for _, op := range c.ops {
		switch op := op.(type) {
		case lease.Take:
			if !op.Keep { // its grant is not remembered: a second one would follow
				return false
			}
		case lease.Renew, lease.Release, lease.Unclaim, lease.Leave, lease.Live, lease.Revive, lease.Sweep,
			lease.Disable, lease.Enable, lease.Lift, lease.PutPool, lease.DropPool, lease.PutKey, lease.DropKey,
			lease.BeginChange, lease.RenewChange, lease.EndChange:
		default:
			return false
		}
	}
	return len(c.ops) > 0
}

// ops0 is the first op; nil for a call without any.
func (c *call) ops0() lease.Op {
	if len(c.ops) == 0 {
		return nil
	}
	return c.ops[0]
}

// granted reports whether the result of a take is a lease.
func granted(r *lease.Result) bool {
	return r.Err == nil && r.Busy == nil && r.Key != nil && r.Lease != nil
}

// lastTry makes a waiting take one that is answered at once and keeps its place
// for the client's return.
func (c *call) lastTry() {
	t := c.wait.take
	t.Wait = false
	if c.wait.seq == 0 { // it never waited
		c.buf[0] = t
		c.ops, c.main = c.buf[:1], 0
		return
	}
	c.buf = [3]lease.Op{lease.Live{Tickets: []string{t.Ticket}}, t, lease.Leave{Ticket: t.Ticket, Forget: true}}
	c.ops, c.main = c.buf[:2], 1
	if !t.Keep { // nobody can come back to this place
		c.ops = c.buf[:3]
	}
}
