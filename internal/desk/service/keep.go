package service

import (
	"context"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

const (
	// beatEvery is how often waiters show life: thrice within [lease.LiveFor].
	beatEvery = 1500 * time.Millisecond
	// maxBeat is how many of them one op tells of.
	maxBeat = 1000
	// askEvery is the safety net behind what tells of free keys.
	askEvery = 2 * time.Second
	// sweepEvery is the safety net behind the times at which leases end, and how
	// often what nobody asks for any more is forgotten.
	sweepEvery = 30 * time.Second
	// sweepGap is the least time between two sweeps that nothing is left over of.
	sweepGap = 100 * time.Millisecond
	// sweepAgain is when a sweep that failed is tried again.
	sweepAgain = 2 * time.Second
	// sweepLimit bounds what one sweep ends and forgets.
	sweepLimit = 256
	// watchPause bounds the time until a watch that broke is begun again.
	watchPause, watchPauseMost = 250 * time.Millisecond, 5 * time.Second
)

// beat keeps the waiters alive and asks for them now and then, until ctx ends.
func (s *Service) beat(ctx context.Context) {
	live, ask := time.NewTicker(beatEvery), time.NewTicker(askEvery)
	defer live.Stop()
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-live.C:
			s.desk.live()
		case <-ask.C:
			s.desk.askEverybody()
		}
	}
}

// live tells the database who waits.
func (d *desk) live() {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Under one lock: who leaves after this also says so after this.
	if ops := d.lives(); len(ops) > 0 && !d.beating {
		d.beating = true
		d.task(func([]lease.Result, error) { d.beating = false }, ops...)
	}
}

// lives are the ops that tell who waits.
func (d *desk) lives() []lease.Op {
	var ops []lease.Op
	var ids []string
	for _, r := range d.rooms {
		for _, l := range r.lines {
			for _, c := range l.calls {
				if ids = append(ids, c.wait.take.Ticket); len(ids) == maxBeat {
					ops, ids = append(ops, lease.Live{Tickets: ids}), nil
				}
			}
		}
	}
	if len(ids) > 0 {
		ops = append(ops, lease.Live{Tickets: ids})
	}
	return ops
}

func (d *desk) askEverybody() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rooms {
		d.askAll(r)
	}
}

// sweep ends what is over, and plans the next sweep.
func (d *desk) sweep() {
	if d.sweeping || d.closed {
		return
	}
	d.sweeping = true
	d.task(func(results []lease.Result, err error) {
		d.sweeping, d.ends = false, time.Time{}
		d.plan(sweepEvery)
		switch {
		case err != nil:
			d.plan(sweepAgain)
		case results[0].More:
			d.sweep()
		case !results[0].Next.IsZero():
			d.until(results[0].Next, results[0].Now)
		}
	}, lease.Sweep{Limit: sweepLimit})
}

// until plans a sweep for when a lease ends, if none is planned before.
func (d *desk) until(end, now time.Time) {
	if d.ends.IsZero() || end.Before(d.ends) {
		d.ends = end
		d.plan(max(end.Sub(now)+afterDue, sweepGap))
	}
}

// plan has a sweep begun after a time, unless one begins before.
func (d *desk) plan(in time.Duration) {
	at := time.Now().Add(in)
	if d.closed || d.sweeper != nil && !at.Before(d.sweepAt) && d.sweepAt.After(time.Now()) {
		return
	}
	if d.sweeper != nil {
		d.sweeper.Stop()
	}
	d.sweepAt = at
	d.sweeper = time.AfterFunc(in, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.sweep()
	})
}

// watch hears what other transactions changed, until ctx ends.
func (s *Service) watch(ctx context.Context) {
	pause, broken := watchPause, false
	for {
		began := time.Now()
		err := s.store.Watch(ctx, watcher{s.desk})
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > watchPauseMost {
			pause, broken = watchPause, false
		}
		if !broken {
			broken = true
			s.log.Warn("watching the lease database broke off; it is begun again", "class", fault.Of(err), "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, watchPauseMost)
		watcher{s.desk}.Changed(lease.News{All: true, Events: true}) // who knows
	}
}

// watcher is the desk as a store tells it of changes.
type watcher struct{ d *desk }

// Waiting implements [lease.Watcher].
func (w watcher) Waiting() bool {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	return w.d.waiters > 0
}

// Changed implements [lease.Watcher].
func (w watcher) Changed(n lease.News) {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	if n.Events || n.All {
		close(w.d.news)
		w.d.news = make(chan struct{})
	}
	if n.All {
		w.d.freedAll()
		return
	}
	for _, p := range n.Freed {
		w.d.freed(p)
	}
}
