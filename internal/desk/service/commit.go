package service

import (
	"context"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// batch is the calls of one transaction, in order.
type batch struct {
	calls []*call
	ops   int
}

// collect takes out what goes into the next transaction: nil when there is
// nothing. Ops that free keys come first, then those whose order matters, then
// takes that wait, by age, and then takes that are new.
func (d *desk) collect() *batch {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &batch{}
	for l := range lanes {
		if l == waiting {
			// New takes are not kept out by however many wait.
			for _, c := range d.asking(max(1, (d.limits.Batch-b.ops)/2)) {
				b.add(c)
			}
		}
		d.collectLane(b, l)
	}
	if len(b.calls) == 0 {
		return nil
	}
	return b
}

func (d *desk) collectLane(b *batch, l lane) {
	queue := d.lanes[l]
	n := 0
	for ; n < len(queue); n++ {
		c := queue[n]
		if c.state != queued {
			continue // its caller left
		}
		if b.ops >= d.limits.Batch { // a long call may go over it, or never had its turn
			break
		}
		d.uncount(c)
		b.add(c)
		if len(d.rooms) > 0 && l == freeing {
			d.handOn(c)
		}
	}
	clear(queue[:n]) // what is done must not be kept alive
	d.lanes[l] = queue[n:]
	if n == len(queue) {
		d.lanes[l] = queue[:0:0]
	}
}

func (b *batch) add(c *call) {
	c.state = sent
	if c.wait != nil {
		c.wait.sent = time.Now()
	}
	b.calls = append(b.calls, c)
	b.ops += len(c.ops)
}

// commit is the one loop that runs transactions, until ctx ends. What came while
// one ran goes into the next.
func (s *Service) commit(ctx context.Context) {
	for ctx.Err() == nil {
		b := s.desk.collect()
		if b == nil {
			select {
			case <-ctx.Done():
			case <-s.desk.wake:
			}
			continue
		}
		began := time.Now()
		s.transact(ctx, b)
		s.desk.gather(ctx, len(b.calls), min(time.Since(began), maxGather))
	}
}

// maxGather is how long more ops are waited for after a transaction, and never
// longer than that one took: what a call may lose by it is what it would lose by
// missing the next transaction.
const maxGather = 1200 * time.Microsecond

// gather waits a moment for those who were just answered together to come back:
// when they share the next transaction too, each of them waits for one instead
// of two. Whoever is alone is never held up.
func (d *desk) gather(ctx context.Context, answered int, most time.Duration) {
	if answered < 2 || most <= 0 {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	d.mu.Lock()
	// Those who came meanwhile are others: two groups that wait for each other's
	// number alone would take turns for ever.
	want := min(d.ops+answered, d.limits.Batch)
	d.mu.Unlock()
	for {
		d.mu.Lock()
		all := d.ops >= want
		d.mu.Unlock()
		if all {
			return
		}
		select {
		case <-d.wake:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// transact runs a batch. The transaction is not cut short when ctx ends.
func (s *Service) transact(ctx context.Context, b *batch) {
	ctx = context.WithoutCancel(ctx)
	defer s.desk.grow()
	if err := s.begin(ctx); err != nil {
		s.desk.settle(b, nil, err)
		return
	}
	tries := maxTries
	s.isolate(ctx, b, &tries)
}

// maxTries bounds the transactions that one batch may cost when the database
// refuses it: to find one bad op among 256, 16 are needed.
const maxTries = 24

// isolate runs a batch, and when the database refuses it, its halves. The rules
// refuse ops one by one; but a value that the database itself does not take
// fails the whole transaction, which others must not pay for.
func (s *Service) isolate(ctx context.Context, b *batch, tries *int) {
	*tries--
	results, err := s.do(ctx, b)
	if len(b.calls) < 2 || *tries < 2 || !refused(err) {
		s.desk.settle(b, results, err)
		return
	}
	half := len(b.calls) / 2
	for _, calls := range [][]*call{b.calls[:half], b.calls[half:]} {
		part := &batch{calls: calls}
		for _, c := range calls {
			part.ops += len(c.ops)
		}
		s.isolate(ctx, part, tries)
	}
}

// refused reports whether a transaction's error may be due to one of its ops.
func refused(err error) bool {
	switch fault.Of(err) {
	case "", fault.Timeout, fault.Unavailable:
		return false
	}
	return fault.CodeOf(err) != "schema"
}

// do runs the ops of a batch in one transaction.
func (s *Service) do(ctx context.Context, b *batch) ([]lease.Result, error) {
	if b.ops == 0 {
		return nil, nil
	}
	ops := make([]lease.Op, 0, b.ops+1)
	if s.revive {
		// Who waits here is alive again before anybody else asks.
		s.desk.mu.Lock()
		ops = append(append(ops, lease.Revive{}), s.desk.lives()...)
		s.desk.mu.Unlock()
	}
	extra := len(ops)
	for _, c := range b.calls {
		from := len(ops)
		ops = append(ops, c.ops...)
		if !c.unsure {
			continue
		}
		for i, op := range ops[from:] {
			if take, ok := op.(lease.Take); ok {
				take.Again = true
				ops[from+i] = take
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.limits.Timeout)
	defer cancel()
	began := time.Now()
	results, err := s.store.Do(ctx, ops)
	if err == nil && len(results) != len(ops) {
		err = fault.Errorf(fault.Permanent, "service: the store answered %d of %d operations", len(results), len(ops))
	}
	s.desk.m.transacted(len(ops), time.Since(began), err)
	s.health(err)
	if err != nil {
		return nil, err
	}
	s.revive = false
	return results[extra:], nil
}

// refusalsEvery is how often a refused transaction is logged at most.
const refusalsEvery = 10 * time.Second

// health notes whether the database answers. After an outage the places that ran
// out in it are given back, and everybody asks again.
func (s *Service) health(err error) {
	switch fault.Of(err) {
	case "":
		if s.lost {
			s.lost = false
			s.log.Info("the lease database answers again")
			s.desk.recover()
		}
	case fault.Timeout, fault.Unavailable:
		s.revive = true
		if !s.lost {
			s.lost = true
			s.log.Error("the lease database does not answer", "class", fault.Of(err), "error", err)
		}
	default:
		if now := time.Now(); now.Sub(s.refusedAt) > refusalsEvery {
			s.refusedAt = now
			s.log.Error("the lease database refused a transaction", "class", fault.Of(err), "error", err)
		}
	}
}

// begin reads the root key before the first transaction.
func (s *Service) begin(ctx context.Context) error {
	if s.root.Load() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.limits.Timeout)
	defer cancel()
	root, err := s.store.Root(ctx)
	if err == nil && len(root) == 0 {
		err = fault.New(fault.Permanent, "service: the store has no root key")
	}
	if err != nil {
		s.health(err)
		return err
	}
	s.root.Store(&root)
	return nil
}
