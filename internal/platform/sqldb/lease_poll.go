package sqldb

import (
	"context"
	"sync"
	"time"

	"fleetdesk/internal/core/lease"
)

const (
	// pollQuick is the pause between two looks at the file while somebody waits
	// here, or may soon: for pollAfter after each transaction of this process.
	pollQuick = 10 * time.Millisecond
	pollAfter = time.Second
	// pollSlow is the pause otherwise: it is for events only.
	pollSlow = time.Second
	// pollAnswer is how long one look may take.
	pollAnswer = 2 * time.Second
)

// own counts what the transactions of this process added to the desk, so that the
// rest is known to be of others. It is counted before the commit and taken back
// when that fails: so others never seem to have done what this process did.
type own struct {
	mu            sync.Mutex
	wakes, events int64
	// next is closed at the next transaction.
	next chan struct{}
}

// done counts a transaction that led from one desk to the other.
func (o *own) done(from, to desk) (undo func()) {
	add := func(sign int64) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.wakes += sign * (to.wakes - from.wakes)
		o.events += sign * (to.events - from.events)
		if o.next != nil {
			close(o.next)
			o.next = nil
		}
	}
	add(1)
	return func() { add(-1) }
}

// others is what of a desk is of other processes.
func (o *own) others(d desk) (wakes, events int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return d.wakes - o.wakes, d.events - o.events
}

// moved returns a channel that is closed at the next transaction.
func (o *own) moved() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next == nil {
		o.next = make(chan struct{})
	}
	return o.next
}

// watch implements engine. SQLite tells nobody of a change, so the file is looked
// at: often while somebody waits here, rarely otherwise.
func (e *sqliteEngine) watch(ctx context.Context, w lease.Watcher) error {
	var wakes, events int64
	lost := true // what happened before the first look was missed
	quickUntil := time.Now()
	for ctx.Err() == nil {
		d, err := e.glance(ctx)
		if err != nil {
			lost = true
		} else if nowWakes, nowEvents := e.own.others(d); lost || nowWakes > wakes || nowEvents > events {
			w.Changed(lease.News{All: lost || nowWakes > wakes, Events: lost || nowEvents > events})
			wakes, events, lost = nowWakes, nowEvents, false
		}
		moved := e.own.moved()
		if w.Waiting() || time.Now().Before(quickUntil) {
			pause(ctx, pollQuick, nil)
		} else {
			pause(ctx, pollSlow, moved)
		}
		select {
		case <-moved:
			quickUntil = time.Now().Add(pollAfter)
		default:
		}
	}
	return nil
}

// glance reads the row of the desk.
func (e *sqliteEngine) glance(ctx context.Context) (d desk, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollAnswer)
	defer cancel()
	return scanDesk(e.reader.QueryRowContext(ctx, readDesk.sqlite))
}

// pause waits; it ends early with ctx or early.
func pause(ctx context.Context, long time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-early:
	}
}
