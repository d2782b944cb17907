package leasetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"fleetdesk/internal/core/lease"
)

// Pools implements [lease.Reader].
func (m *Memory) Pools(ctx context.Context, after string, limit int) ([]lease.PoolStatus, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var all []lease.PoolStatus
	for _, n := range page(slices.Sorted(maps.Keys(m.pools)), after, limit) {
		all = append(all, m.status(n, m.now()))
	}
	return all, nil
}

// Pool implements [lease.Reader].
func (m *Memory) Pool(ctx context.Context, name string) (lease.PoolStatus, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return lease.PoolStatus{}, err
	}
	defer leave()
	if _, ok := m.pools[name]; !ok {
		return lease.PoolStatus{}, lease.NoPool(name)
	}
	return m.status(name, m.now()), nil
}

func (m *Memory) status(name string, now time.Time) lease.PoolStatus {
	s := lease.PoolStatus{Pool: m.pools[name], Now: now}
	for n := range m.list(name).names {
		k := m.keys[n]
		s.Keys++
		if !k.FreeAt().After(now) {
			s.Free++
		}
		if k.Held(now) {
			s.Held++
		}
	}
	for t := range m.queue(name) {
		if t.Live(now) {
			s.Waiting++
		}
	}
	if ch := m.change(name); ch != nil && now.Before(ch.Until) {
		s.Change = ch
	}
	return s
}

// Keys implements [lease.Reader].
func (m *Memory) Keys(ctx context.Context, pool, after string, limit int) (lease.Keys, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return lease.Keys{}, err
	}
	defer leave()
	if _, ok := m.pools[pool]; !ok {
		return lease.Keys{}, lease.NoPool(pool)
	}
	names := map[string]bool{}
	maps.Copy(names, m.list(pool).names)
	maps.Copy(names, m.list(pool).leaving)
	all := lease.Keys{Now: m.now()}
	for _, n := range page(slices.Sorted(maps.Keys(names)), after, limit) {
		all.Keys = append(all.Keys, m.copyKey(m.keys[n], all.Now))
	}
	return all, nil
}

// Key implements [lease.Reader].
func (m *Memory) Key(ctx context.Context, name string) (lease.Keys, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return lease.Keys{}, err
	}
	defer leave()
	k := m.keys[name]
	if k == nil {
		return lease.Keys{}, lease.NoKey(name)
	}
	now := m.now()
	return lease.Keys{Now: now, Keys: []lease.Key{m.copyKey(k, now)}}, nil
}

// Queue implements [lease.Reader].
func (m *Memory) Queue(ctx context.Context, pool string, after int64, limit int) ([]lease.Ticket, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if _, ok := m.pools[pool]; !ok {
		return nil, lease.NoPool(pool)
	}
	var all []lease.Ticket
	for t := range m.queue(pool) {
		if t.Seq > after && len(all) < limit {
			all = append(all, copyTicket(t))
		}
	}
	return all, nil
}

// Cooldowns implements [lease.Reader].
func (m *Memory) Cooldowns(ctx context.Context, key, after string, limit int) ([]lease.Cooldown, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	k := m.keys[key]
	if k == nil {
		return nil, lease.NoKey(key)
	}
	now := m.now()
	last := map[string]lease.Cooldown{} // by target
	for id, c := range m.rests {
		own := id.Scope == lease.ScopeKey && id.ID == key || id.Scope == lease.ScopeExitIP && id.ID == k.ExitIP && k.ExitIP != ""
		if !own || !c.Until.After(now) {
			continue
		}
		if have, ok := last[id.Target]; !ok || cmp.Or(c.Until.Compare(have.Until), cmp.Compare(have.Scope, id.Scope)) > 0 {
			last[id.Target] = c
		}
	}
	var all []lease.Cooldown
	for _, target := range page(slices.Sorted(maps.Keys(last)), after, limit) {
		all = append(all, copyRest(last[target]))
	}
	return all, nil
}

// Events implements [lease.Reader].
func (m *Memory) Events(ctx context.Context, after int64, limit int) (events []lease.Event, gap bool, err error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, false, err
	}
	defer leave()
	from, _ := slices.BinarySearchFunc(m.events, after+1, func(e lease.Event, seq int64) int { return cmp.Compare(e.Seq, seq) })
	rest := m.events[from:]
	return slices.Clone(rest[:min(len(rest), max(limit, 0))]), after < m.forgotten, nil
}

// page returns at most limit of the sorted names after one.
func page(names []string, after string, limit int) []string {
	from, found := slices.BinarySearch(names, after)
	if found {
		from++
	}
	return names[from:min(len(names), from+max(limit, 0))]
}
