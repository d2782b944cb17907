package lease

import "cmp"

// prefetch loads in one go what the ops name.
func (w *work) prefetch(ops []Op) error {
	var want Want
	for _, op := range ops {
		switch op := op.(type) {
		case Take:
			want.Pools = append(want.Pools, op.Pool)
			if !op.Quick {
				want.Tickets = append(want.Tickets, op.Ticket)
			}
			w.takes = append(w.takes, op)
		case Live:
			want.Tickets = append(want.Tickets, op.Tickets...)
		case Leave:
			want.Tickets = append(want.Tickets, op.Ticket)
		case Unclaim:
			want.Keys = append(want.Keys, op.ID.Key)
		case Renew:
			want.Keys = append(want.Keys, op.ID.Key)
		case Release:
			want.Keys = append(want.Keys, op.ID.Key)
		case Report:
			want.Keys = append(want.Keys, op.Key)
			want.Pools = append(want.Pools, op.Pool)
		case Lift:
			want.Keys = append(want.Keys, op.Key)
		case Disable:
			want.Keys = append(want.Keys, op.Key)
		case Enable:
			want.Keys = append(want.Keys, op.Key)
		case Force:
			want.Keys = append(want.Keys, op.Key)
		case PutKey:
			want.Keys = append(want.Keys, op.Key)
			want.Pools = append(want.Pools, op.Pools...)
		case DropKey:
			want.Keys = append(want.Keys, op.Key)
		case Publish:
			want.Pools = append(want.Pools, op.Pool.Name)
		case PutPool:
			want.Pools = append(want.Pools, op.Pool.Name)
		case DropPool:
			want.Pools = append(want.Pools, op.Name)
		case BeginChange:
			want.Pools = append(want.Pools, op.Pool)
			want.Changes = append(want.Changes, op.Pool)
			want.Keys = append(want.Keys, op.Keys...)
		case RenewChange:
			want.Changes = append(want.Changes, op.Pool)
		case EndChange:
			want.Changes = append(want.Changes, op.Pool)
		case Sweep:
			want.Due = max(want.Due, op.Limit, 1)
		case Revive:
			want.Lost = true
		}
	}
	takes := w.byPool(nil)
	for pool, of := range takes {
		want.Queues = append(want.Queues, QueueWant{pool, firstQueue})
		n := of[""]
		delete(of, "")
		if len(of) > 0 {
			want.Free = append(want.Free, w.freeWant(pool))
			w.prefetchLines(&want, Pool{Name: pool})
		}
		if n > 0 {
			want.Candidates = append(want.Candidates, CandidateWant{pool, "", n + spare})
		}
	}
	if err := w.load(want); err != nil {
		return err
	}
	return w.prefetchMore(ops)
}

// byPool counts the takes by pool and target, as the pool counts it once it is
// known.
func (w *work) byPool(known map[string]*Pool) map[string]map[string]int {
	takes := map[string]map[string]int{}
	for _, op := range w.takes {
		if takes[op.Pool] == nil {
			takes[op.Pool] = map[string]int{}
		}
		target := op.Target
		if p := known[op.Pool]; p != nil {
			target = p.aim(target)
		}
		takes[op.Pool][target]++
	}
	return takes
}

// prefetchMore loads what the ops need besides, as the first rows tell.
func (w *work) prefetchMore(ops []Op) error {
	var ids []CooldownID
	var want Want
	uses := func(p *Pool, k *Key, target string) { // what the early end of a use concerns
		if p.InFlight == 0 || target == "" {
			return
		}
		id := restsOn(*p, k, target)
		ids = append(ids, id)
		if id.Scope == ScopeExitIP {
			want.ExitIPs = append(want.ExitIPs, id.ID)
		}
		want.LinesOf = append(want.LinesOf, PoolTarget{p.Name, target})
	}
	for _, op := range ops {
		switch op := op.(type) {
		case Release:
			r := w.key(op.ID.Key)
			if r == nil || r.now.Lease == nil || w.pools[r.now.Lease.Pool] == nil {
				continue
			}
			p, l := w.pools[r.now.Lease.Pool], r.now.Lease
			if p.Cooldown > 0 && l.Target != "" {
				ids = append(ids, restsOn(*p, &r.now, l.Target))
			}
			if target := cmp.Or(p.aim(op.Target), l.Target); op.Outcome == Banned && target != "" {
				ids = append(ids, restsOn(*p, &r.now, target))
			}
			uses(p, &r.now, l.Target)
		case Renew:
			if r := w.key(op.ID.Key); r != nil && r.now.Lease != nil && r.now.Lease.Target != "" {
				if p := w.pools[r.now.Lease.Pool]; p != nil && p.InFlight > 0 {
					ids = append(ids, restsOn(*p, &r.now, r.now.Lease.Target))
				}
			}
		case Report:
			if r, p := w.key(op.Key), w.pools[op.Pool]; r != nil && p != nil && op.Target != "" {
				ids = append(ids, restsBy(&r.now, p.aim(op.Target))...)
				if op.Use.Fence != 0 {
					uses(p, &r.now, p.aim(op.Target))
				}
			}
		case Lift:
			if r := w.key(op.Key); r != nil && r.now.ExitIP != "" {
				want.ExitIPs = append(want.ExitIPs, r.now.ExitIP)
			}
		case PutKey:
			if w.key(op.Key) == nil {
				want.Bars = append(want.Bars, op.Key)
			}
		}
	}
	w.prefetchTargets(&want)
	want.Cooldowns = w.unknown(ids)
	if len(want.Cooldowns)+len(want.Bars)+len(want.ExitIPs)+len(want.LinesOf)+len(want.Lines)+len(want.Candidates) > 0 {
		if err := w.load(want); err != nil {
			return err
		}
	}
	return w.rehearse()
}

// prefetchTargets asks for what takes with targets look at: few keys, or lines, or
// candidates of fixed pools.
func (w *work) prefetchTargets(want *Want) {
	for pool, takes := range w.byPool(w.pools) {
		p := w.pools[pool]
		all := takes[""]
		delete(takes, "")
		switch {
		case p == nil || len(takes) == 0:
		case p.Kind != Managed:
			n := 0
			for _, of := range takes {
				n += of
			}
			if len(takes) > targets {
				takes = map[string]int{"": n + all}
			}
			for target := range takes { // whichever it is for, the first ones go to whoever comes first
				want.Candidates = append(want.Candidates, CandidateWant{pool, target, n + all + spare})
			}
		case w.freeOnes[pool] <= few+w.ops:
			if s := w.streams[CandidateWant{Pool: pool}]; s == nil || s.more {
				want.Candidates = append(want.Candidates, CandidateWant{pool, "", few + w.ops})
			}
		default:
			w.prefetchLines(want, *p)
		}
	}
}

// prefetchLines asks for the lines of the takes of a pool that are not known yet.
// Before it is known whether the pool has any, and what it makes of targets, it is
// a guess that is mostly right, and saves a way to the database.
func (w *work) prefetchLines(want *Want, p Pool) {
	n, held := map[LineID]int{}, map[LineID]bool{}
	var order []LineID
	leases := 0
	for _, op := range w.takes {
		if op.Pool != p.Name || op.Target == "" || len(op.Where)+len(op.Match) > maxAsked {
			continue
		}
		op.Target = p.aim(op.Target)
		id := w.lineID(p, op)
		if n[id] == 0 {
			order = append(order, id)
		}
		if n[id] == 0 && !op.Quick { // it begins with what the leases before it take
			n[id] = leases
			held[id] = true
		}
		n[id] += 2
		if !op.Quick {
			leases++
		}
	}
	for _, id := range order {
		if l := w.lines[id]; l != nil && l.loaded {
			continue
		}
		one := w.lineWant(id, n[id]+lookAhead)
		if one.Over = few + w.ops; !held[id] {
			one.Behind = n[id]
		}
		want.Lines = append(want.Lines, one)
	}
}
