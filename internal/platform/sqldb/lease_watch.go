package sqldb

import (
	"context"
	"sync"

	"fleetdesk/internal/core/lease"
)

// watchers are those of this process: they hear of its own transactions at once.
type watchers struct {
	mu  sync.Mutex
	all map[*watcher]bool
}

type watcher struct{ lease.Watcher }

func (s *watchers) add(w *watcher) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*watcher]bool{}
	}
	s.all[w] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, w)
	}
}

func (s *watchers) tell(n lease.News) {
	if len(n.Freed) == 0 && !n.All && !n.Events {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		w.Changed(n)
	}
}

// Watch implements [lease.Store].
func (s *leaseStore) Watch(ctx context.Context, w lease.Watcher) error {
	own := &watcher{w}
	defer s.watchers.add(own)()
	return coded(s.watch(ctx, own))
}
