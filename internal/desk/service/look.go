package service

import (
	"context"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// bounded runs a look at the store within the time limit.
func bounded[T any](ctx context.Context, s *Service, look func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Timeout)
	defer cancel()
	return look(ctx)
}

// Pools returns pools by name, at most limit of those after `after`.
func (s *Service) Pools(ctx context.Context, after string, limit int) ([]lease.PoolStatus, error) {
	return bounded(ctx, s, func(ctx context.Context) ([]lease.PoolStatus, error) { return s.store.Pools(ctx, after, limit) })
}

// Pool returns one pool. Errors: NotFound (pool), and the store's.
func (s *Service) Pool(ctx context.Context, name string) (lease.PoolStatus, error) {
	return bounded(ctx, s, func(ctx context.Context) (lease.PoolStatus, error) { return s.store.Pool(ctx, name) })
}

// Keys returns the keys of a pool by name, at most limit of those after `after`.
// Errors: NotFound (pool), and the store's.
func (s *Service) Keys(ctx context.Context, pool, after string, limit int) (lease.Keys, error) {
	return bounded(ctx, s, func(ctx context.Context) (lease.Keys, error) { return s.store.Keys(ctx, pool, after, limit) })
}

// Key returns one key. Errors: NotFound (key), and the store's.
func (s *Service) Key(ctx context.Context, name string) (lease.Keys, error) {
	return bounded(ctx, s, func(ctx context.Context) (lease.Keys, error) { return s.store.Key(ctx, name) })
}

// Queue returns the waiting requests of a pool by place, at most limit of those
// after the place `after`. Errors: the store's.
func (s *Service) Queue(ctx context.Context, pool string, after int64, limit int) ([]lease.Ticket, error) {
	return bounded(ctx, s, func(ctx context.Context) ([]lease.Ticket, error) { return s.store.Queue(ctx, pool, after, limit) })
}

// Cooldowns returns the cooldowns in force of a key, by its name or exit IP, by
// target, at most limit of those after the target `after`. Errors: the store's.
func (s *Service) Cooldowns(ctx context.Context, key, after string, limit int) ([]lease.Cooldown, error) {
	return bounded(ctx, s, func(ctx context.Context) ([]lease.Cooldown, error) { return s.store.Cooldowns(ctx, key, after, limit) })
}

// Bans returns what at least so many targets ban now, those with the most first;
// at most limit. Errors: the store's.
func (s *Service) Bans(ctx context.Context, targets, limit int) ([]lease.BanCount, error) {
	return bounded(ctx, s, func(ctx context.Context) ([]lease.BanCount, error) { return s.store.Bans(ctx, targets, limit) })
}

// Events returns events after a cursor, oldest first, at most limit, and whether
// some in between were forgotten. Errors: the store's.
func (s *Service) Events(ctx context.Context, after int64, limit int) (events []lease.Event, gap bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Timeout)
	defer cancel()
	return s.store.Events(ctx, after, limit)
}

// EventsChanged returns a channel that is closed when events were written since
// the call. To miss none, take it before reading [Service.Events].
func (s *Service) EventsChanged() <-chan struct{} {
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	return s.desk.news
}

// Lease returns a lease by its public id, also one that has ended as long as the
// key's row remembers it; of one before the key's last, only how it ended is
// known. Errors: NotFound (lease), and the store's.
func (s *Service) Lease(ctx context.Context, id string) (Lease, error) {
	want, err := lease.ParseID(id)
	if err != nil {
		return Lease{}, err
	}
	missing := fault.WithCode(fault.Errorf(fault.NotFound, "there is no lease %s", want), "lease")
	found, err := s.Key(ctx, want.Key)
	switch {
	case fault.Of(err) == fault.NotFound:
		return Lease{}, missing
	case err != nil:
		return Lease{}, err
	case len(found.Keys) != 1 || found.Keys[0].Lease == nil:
		return Lease{}, missing
	}
	k := &found.Keys[0]
	if k.Lease.Fence == want.Fence {
		return view(k, found.Now), nil
	}
	for _, p := range k.Past {
		if p.Fence == want.Fence {
			return Lease{ID: id, Key: want.Key, Fence: want.Fence, End: p.End}, nil
		}
	}
	return Lease{}, missing
}
