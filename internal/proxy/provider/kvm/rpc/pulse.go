package rpc

import (
	"sync"
	"time"
)

// pulse knows how long somebody has been waiting for the peer without a sign
// of life. Nothing is awaited while an upload's source is the slow one.
type pulse struct {
	after time.Duration

	mu      sync.Mutex
	waiting int
	since   time.Time
}

func newPulse(after time.Duration) *pulse { return &pulse{after: after, since: time.Now()} }

// expect says that one more waits for the peer; settle takes it back.
func (p *pulse) expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting++; p.waiting == 1 {
		p.since = time.Now()
	}
}

func (p *pulse) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
}

// life says that something arrived, or that bytes of an upload were taken.
func (p *pulse) life() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Now()
}

// left is how long the peer may still be silent.
func (p *pulse) left() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == 0 {
		return p.after
	}
	return p.after - time.Since(p.since)
}

// watch calls mute once, when the peer was silent for too long, and returns;
// or it returns when done is closed. It looks again when the silence that it
// saw last would be over, so it is never late.
func (p *pulse) watch(done <-chan struct{}, mute func()) {
	timer := time.NewTimer(p.after)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-timer.C:
		}
		left := p.left()
		if left <= 0 {
			mute()
			return
		}
		timer.Reset(left)
	}
}
