package poolcmd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

// maxLooks bounds the pools that are read from the store at once.
const maxLooks = 4

// storeLook reads the project's lease store, and changes nothing in it.
type storeLook struct {
	f   *command.Factory
	cfg *config.File

	mu     sync.Mutex
	looker broker.Looker
}

func (s *storeLook) local() bool { return s.cfg.Server == "" }

// open returns the broker; nil for a local database that does not exist, which
// may be there the next time. A team server is not spoken to yet.
func (s *storeLook) open(ctx context.Context) (broker.Looker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looker != nil {
		return s.looker, nil
	}
	if s.local() {
		if _, err := os.Stat(s.f.Database(s.cfg.Project)); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
	}
	l, err := s.f.Looker(ctx, s.cfg)
	if err != nil {
		return nil, err
	}
	s.looker = l
	return l, nil
}

func (s *storeLook) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looker != nil {
		_ = s.looker.Close() // it was read only
	}
}

// sight is what the store told at one time.
type sight struct {
	local bool
	// views are the pools that the store knows, of those that were asked for.
	views map[string]broker.View
	// keys are all the keys in views.
	keys map[string]client.Key
	// whole is whether views are all pools of the store.
	whole bool
}

// look reads pools; of a local database all: a key of a pool that nobody took
// from yet may be another pool's too.
func (s *storeLook) look(ctx context.Context, pools ...string) (*sight, error) {
	v := &sight{local: s.local(), views: map[string]broker.View{}, keys: map[string]client.Key{}}
	if v.local {
		return v, s.lookOn(ctx, v)
	}
	l, err := s.open(ctx)
	if err != nil {
		return v, err
	}
	return v, s.read(ctx, l, v, pools)
}

// lookOn reads all pools that were not read yet.
func (s *storeLook) lookOn(ctx context.Context, v *sight) error {
	if v.whole {
		return nil
	}
	l, err := s.open(ctx)
	if err != nil {
		return err
	}
	if l == nil {
		return nil // nobody ever took a key
	}
	all, err := l.Pools(ctx)
	if err != nil {
		return err
	}
	var more []string
	for _, p := range all {
		if _, have := v.views[p.Name]; !have {
			more = append(more, p.Name)
		}
	}
	if err := s.read(ctx, l, v, more); err != nil {
		return err
	}
	v.whole = true
	return nil
}

func (*storeLook) read(ctx context.Context, l broker.Looker, v *sight, pools []string) error {
	views := make([]broker.View, len(pools))
	errs := make([]error, len(pools))
	each(len(pools), maxLooks, func(i int) {
		views[i], errs[i] = l.Pool(ctx, pools[i])
	})
	for i, err := range errs {
		switch {
		case fault.Of(err) == fault.NotFound:
			continue // it was never published, or is gone
		case err != nil:
			return err
		}
		v.views[pools[i]] = views[i]
		for _, k := range views[i].Members {
			v.keys[k.Name] = k
		}
	}
	return nil
}

// key is what the store says of an item of the file's pool. A local database
// follows the file: what it does not know yet is free.
func (v *sight) key(pool, name string) client.Key {
	k, known := v.keys[name]
	switch {
	case known && (v.local || lists(k, pool)):
		return k
	case v.local:
		return client.Key{Name: name, State: string(lease.Free)}
	}
	return client.Key{Name: name, State: stateUnpublished}
}

// lists reports whether the pool shows a key: it lists it, or did so when its
// lease began.
func lists(k client.Key, pool string) bool {
	for _, of := range [][]string{k.Pools, k.Leaving} {
		for _, p := range of {
			if p == pool {
				return true
			}
		}
	}
	return false
}

// fresh reads one pool again and again, and no more often than is needed.
type fresh struct {
	store *storeLook
	pool  string

	mu   sync.Mutex
	from time.Time // when the reading of last began
	last *sight
}

// since returns a sight that was read at or after a time. Callers that come while
// one is read share the next one.
func (f *fresh) since(ctx context.Context, t time.Time) (*sight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != nil && !f.from.Before(t) {
		return f.last, nil
	}
	from := time.Now()
	v, err := f.store.look(ctx, f.pool)
	if err != nil {
		return nil, err
	}
	f.from, f.last = from, v
	return v, nil
}

// each calls do with 0 to n-1, as many at once as most says, and returns when all
// have ended.
func each(n, most int, do func(i int)) {
	var group sync.WaitGroup
	room := make(chan struct{}, most)
	for i := range n {
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			do(i)
		})
	}
	group.Wait()
}

// storeExit is the exit code of a store that could not be read: a refusal is
// something else than silence.
func storeExit(err error) int {
	if fault.Of(err) == fault.Denied {
		return command.ExitRefused
	}
	return command.ExitStore
}
