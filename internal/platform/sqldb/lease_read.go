package sqldb

import (
	"cmp"
	"context"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// The statements of the reader.
var (
	readPools = plain(selectPools + " WHERE p.name > $1 ORDER BY p.name LIMIT $2")
	readPool  = plain(selectPools + " WHERE p.name = $1")
	countKeys = plain(`SELECT r.pool, count(*), count(*) FILTER (WHERE r.free_at <= $2), count(*) FILTER (WHERE r.held_until > $2)
		FROM fleetdesk.ready r WHERE r.pool = ANY ($1) GROUP BY r.pool`)
	countQueues = plain(`SELECT t.pool, count(*) FROM fleetdesk.tickets t
		WHERE t.pool = ANY ($1) AND t.granted_fence = 0 AND t.live_until > $2 GROUP BY t.pool`)
	readChanges = plain(selectChanges + " WHERE c.pool = ANY ($1) AND c.until > $2")

	readKeys  = keysOf("SELECT m.key FROM fleetdesk.members m WHERE m.pool = $1 AND m.key > $2 ORDER BY m.key LIMIT $3", " ORDER BY n.key")
	readKey   = plain(selectKeys + " WHERE k.name = $1")
	readQueue = plain(selectTickets + " WHERE t.pool = $1 AND t.granted_fence = 0 AND t.seq > $2 ORDER BY t.seq LIMIT $3")
	readRests = plain(selectRests + " WHERE c.scope = $1 AND c.id = $2 AND c.target > $3 AND c.until > $4 ORDER BY c.target LIMIT $5")

	readEvents    = plain("SELECT e.last_seq, e.at, e.list FROM fleetdesk.events e WHERE e.last_seq > $1 ORDER BY e.last_seq LIMIT $2")
	readForgotten = plain("SELECT d.forgotten FROM fleetdesk.desk d")
)

// Pools implements [lease.Reader].
func (s *leaseStore) Pools(ctx context.Context, after string, limit int) ([]lease.PoolStatus, error) {
	if limit < 1 {
		return nil, fault.Wrap(fault.Timeout, ctx.Err())
	}
	return s.pools(ctx, readPools, following(after), int64(limit))
}

// Pool implements [lease.Reader].
func (s *leaseStore) Pool(ctx context.Context, name string) (lease.PoolStatus, error) {
	if !storable(name) {
		return lease.PoolStatus{}, lease.NoPool(name)
	}
	all, err := s.pools(ctx, readPool, name)
	if err == nil && len(all) == 0 {
		err = lease.NoPool(name)
	}
	if err != nil {
		return lease.PoolStatus{}, err
	}
	return all[0], nil
}

func (s *leaseStore) pools(ctx context.Context, which *statement, args ...any) (all []lease.PoolStatus, err error) {
	err = s.look(ctx, func(ctx context.Context, now time.Time, q asker) error {
		var pools []lease.Pool
		if err := q.ask(ctx, step{statement: which, args: args, row: into(&pools, scanPool)}); err != nil {
			return err
		}
		all = make([]lease.PoolStatus, len(pools))
		at := map[string]*lease.PoolStatus{}
		var names []string
		for i, p := range pools {
			all[i] = lease.PoolStatus{Pool: p, Now: now}
			at[p.Name] = &all[i]
			names = append(names, p.Name)
		}
		if len(names) == 0 {
			return nil
		}
		return q.ask(ctx,
			step{statement: countKeys, args: []any{names, micros(now)}, row: func(r scanner) error {
				var name string
				var keys, free, held int
				err := r.Scan(&name, &keys, &free, &held)
				if p := at[name]; p != nil {
					p.Keys, p.Free, p.Held = keys, free, held
				}
				return err
			}},
			step{statement: countQueues, args: []any{names, micros(now)}, row: func(r scanner) error {
				var name string
				var waiting int
				err := r.Scan(&name, &waiting)
				if p := at[name]; p != nil {
					p.Waiting = waiting
				}
				return err
			}},
			step{statement: readChanges, args: []any{names, micros(now)}, row: func(r scanner) error {
				c, err := scanChange(r)
				if p := at[c.Pool]; p != nil {
					p.Change = &c
				}
				return err
			}},
		)
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// exists asks for a pool.
func exists(ctx context.Context, q asker, pool string) error {
	found := false
	if !storable(pool) {
		return lease.NoPool(pool)
	}
	err := q.ask(ctx, step{statement: readPool, args: []any{pool}, row: func(r scanner) error {
		found = true
		_, err := scanPool(r)
		return err
	}})
	if err == nil && !found {
		return lease.NoPool(pool)
	}
	return err
}

// Keys implements [lease.Reader].
func (s *leaseStore) Keys(ctx context.Context, pool, after string, limit int) (all lease.Keys, err error) {
	err = s.look(ctx, func(ctx context.Context, now time.Time, q asker) error {
		all = lease.Keys{Now: now}
		if err := exists(ctx, q, pool); err != nil || limit < 1 {
			return err
		}
		return readWithBars(ctx, q, &all, step{statement: readKeys, args: []any{pool, following(after), int64(limit)}})
	})
	if err != nil {
		return lease.Keys{}, err
	}
	return all, nil
}

// Key implements [lease.Reader].
func (s *leaseStore) Key(ctx context.Context, name string) (all lease.Keys, err error) {
	err = s.look(ctx, func(ctx context.Context, now time.Time, q asker) error {
		all = lease.Keys{Now: now}
		if !storable(name) {
			return lease.NoKey(name)
		}
		if err := readWithBars(ctx, q, &all, step{statement: readKey, args: []any{name}}); err != nil {
			return err
		}
		if len(all.Keys) == 0 {
			return lease.NoKey(name)
		}
		return nil
	})
	if err != nil {
		return lease.Keys{}, err
	}
	return all, nil
}

func readWithBars(ctx context.Context, q asker, all *lease.Keys, keys step) error {
	keys.row = into(&all.Keys, onlyKey)
	bars := map[string][]lease.Bar{}
	if err := q.ask(ctx, append(barSteps(bars, micros(all.Now)), keys)...); err != nil {
		return err
	}
	for i := range all.Keys {
		all.Keys[i].Bars = bars[all.Keys[i].Name]
	}
	return nil
}

// Queue implements [lease.Reader].
func (s *leaseStore) Queue(ctx context.Context, pool string, after int64, limit int) (all []lease.Ticket, err error) {
	err = s.look(ctx, func(ctx context.Context, _ time.Time, q asker) error {
		all = nil
		if err := exists(ctx, q, pool); err != nil || limit < 1 {
			return err
		}
		return q.ask(ctx, step{statement: readQueue, args: []any{pool, after, int64(limit)}, row: into(&all, scanTicket)})
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Cooldowns implements [lease.Reader]. Of two for one target, the one that ends
// last is told.
func (s *leaseStore) Cooldowns(ctx context.Context, key, after string, limit int) (all []lease.Cooldown, err error) {
	err = s.look(ctx, func(ctx context.Context, now time.Time, q asker) error {
		all = nil
		if !storable(key) {
			return lease.NoKey(key)
		}
		var found []lease.Key
		if err := q.ask(ctx, step{statement: readKey, args: []any{key}, row: into(&found, onlyKey)}); err != nil {
			return err
		}
		if len(found) == 0 {
			return lease.NoKey(key)
		}
		if limit < 1 {
			return nil
		}
		var own, shared []lease.Cooldown
		of := func(scope lease.Scope, id string, list *[]lease.Cooldown) step {
			return step{
				statement: readRests, row: into(list, scanCooldown),
				args: []any{string(scope), id, following(after), micros(now), int64(limit)},
			}
		}
		steps := []step{of(lease.ScopeKey, key, &own)}
		if ip := found[0].ExitIP; ip != "" {
			steps = append(steps, of(lease.ScopeExitIP, ip, &shared))
		}
		if err := q.ask(ctx, steps...); err != nil {
			return err
		}
		all = merged(own, shared, limit)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// merged is both lists in order of their targets.
func merged(own, shared []lease.Cooldown, limit int) (all []lease.Cooldown) {
	for len(all) < limit && len(own)+len(shared) > 0 {
		var order int
		switch {
		case len(own) == 0:
			order = 1
		case len(shared) == 0:
			order = -1
		default:
			order = cmp.Compare(own[0].Target, shared[0].Target)
		}
		switch {
		case order < 0 || order == 0 && own[0].Until.After(shared[0].Until):
			all = append(all, own[0])
		default:
			all = append(all, shared[0])
		}
		if order <= 0 {
			own = own[1:]
		}
		if order >= 0 {
			shared = shared[1:]
		}
	}
	return all
}

// Events implements [lease.Reader].
func (s *leaseStore) Events(ctx context.Context, after int64, limit int) (events []lease.Event, gap bool, err error) {
	err = s.look(ctx, func(ctx context.Context, _ time.Time, q asker) error {
		events, gap = nil, false
		var forgotten int64
		err := q.ask(ctx,
			step{statement: readForgotten, row: func(r scanner) error { return r.Scan(&forgotten) }},
			step{statement: readEvents, args: []any{after, int64(max(limit, 0))}, row: func(r scanner) error {
				var last, at int64
				var list string
				if err := r.Scan(&last, &at, &list); err != nil {
					return err
				}
				some, err := eventsOf(list, moment(at))
				for _, e := range some {
					if e.Seq > after && len(events) < limit {
						events = append(events, e)
					}
				}
				return err
			}},
		)
		gap = after < forgotten
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return events, gap, nil
}

// following is a place in a list that any text can name.
func following(after string) string {
	if storable(after) {
		return after
	}
	return clean(after)
}
