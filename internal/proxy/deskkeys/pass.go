package deskkeys

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// pass is one round of looking: a few Proxies, and the pools of a few
// namespaces.
type pass struct {
	names []types.NamespacedName
	// proxies has those that exist.
	proxies map[types.NamespacedName]*v1alpha1.Proxy
	spaces  map[string]space
	// waiting are those who wait for one of names.
	waiting map[types.NamespacedName][]chan error
	// steps come first; drops of pools follow in a transaction of their own,
	// since the desk asks what the ones before it left.
	steps, drops []step
	// touched are pools of which something changed.
	touched map[types.NamespacedName]bool
}

// space is a namespace as the cache has it.
type space struct {
	views []view
	// generations are those of the objects, by the desk's name; none for the
	// implicit pool.
	generations map[string]int64
}

// step is one op and the row or pool that it is about.
type step struct {
	op     lease.Op
	name   types.NamespacedName
	row    *row
	digest digest
	pool   *poolRow
}

// pass looks at what is dirty, up to a bound, and writes what differs. It
// reports whether more is left.
func (k *Keeper) pass(ctx context.Context) (more bool, err error) {
	p := k.pick()
	if len(p.names) == 0 && len(p.spaces) == 0 {
		return false, nil
	}
	if err = k.read(ctx, p); err != nil {
		k.putBack(p, nil)
	} else {
		k.plan(p)
		err = k.carryOut(ctx, p)
	}
	k.mu.Lock()
	for _, waiting := range p.waiting {
		tell(waiting, err)
	}
	more = len(k.dirty) > 0 || len(k.spaces) > 0
	k.mu.Unlock()
	for name := range p.touched {
		k.o.PoolChanged(name)
	}
	return more, err
}

// pick takes some of what is dirty out of the queue.
func (k *Keeper) pick() *pass {
	p := &pass{
		proxies: map[types.NamespacedName]*v1alpha1.Proxy{}, spaces: map[string]space{},
		waiting: map[types.NamespacedName][]chan error{}, touched: map[types.NamespacedName]bool{},
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	take := func(name types.NamespacedName) {
		p.names = append(p.names, name)
		p.spaces[name.Namespace] = space{}
		delete(k.dirty, name)
		if waiting := k.settled[name]; waiting != nil {
			p.waiting[name] = waiting
			delete(k.settled, name)
		}
	}
	for name := range k.settled { // somebody waits
		if len(p.names) == maxOps {
			break
		}
		take(name)
	}
	for name := range k.dirty {
		if len(p.names) == maxOps {
			break
		}
		take(name)
	}
	for namespace := range k.spaces {
		if len(p.spaces) >= 2*maxOps {
			break
		}
		p.spaces[namespace] = space{}
	}
	for namespace := range p.spaces {
		delete(k.spaces, namespace)
	}
	return p
}

// putBack has everything of a pass looked at again. With steps, those were
// sent and it is not known whether they were done.
func (k *Keeper) putBack(p *pass, steps []step) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range p.names {
		k.dirty[name] = struct{}{}
	}
	for namespace := range p.spaces {
		k.spaces[namespace] = struct{}{}
	}
	for _, s := range steps {
		if s.row != nil {
			s.row.stored = digest{}
		} else {
			s.pool.stored = lease.Pool{}
		}
	}
}

// read fetches from the cache what the pass is about.
func (k *Keeper) read(ctx context.Context, p *pass) error {
	for namespace := range p.spaces {
		var list v1alpha1.ProxyPoolList
		// Read-only use: the cache's own objects may be looked at, not changed.
		if err := k.o.Cache.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return fault.Errorf(fault.Unavailable, "ProxyPools cannot be listed: %w", err)
		}
		s := space{views: viewsOf(namespace, list.Items), generations: map[string]int64{}}
		for i := range list.Items {
			s.generations[PoolName(namespace, list.Items[i].Name)] = list.Items[i].Generation
		}
		p.spaces[namespace] = s
	}
	for _, name := range p.names {
		px := &v1alpha1.Proxy{}
		switch err := k.o.Cache.Get(ctx, name, px); {
		case err == nil:
			p.proxies[name] = px
		case !apierrors.IsNotFound(err):
			return fault.Errorf(fault.Unavailable, "Proxy %s cannot be read: %w", name, err)
		}
	}
	return nil
}

// plan compares and makes the ops: pools before the keys that list them, and
// after the keys that listed them.
func (k *Keeper) plan(p *pass) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var keys []step
	for _, name := range p.names {
		if s, differs := k.planKey(p, name); differs {
			keys = append(keys, s)
		}
	}
	for namespace := range p.spaces {
		puts, gone := k.planPools(p, namespace)
		p.steps = append(p.steps, puts...)
		p.drops = append(p.drops, gone...)
	}
	p.steps = append(p.steps, keys...)
}

func (k *Keeper) planKey(p *pass, name types.NamespacedName) (step, bool) {
	r, px := k.rows[name], p.proxies[name]
	if px == nil {
		if r == nil {
			return step{}, false
		}
		if !r.gone {
			k.recount(p, name.Namespace, r, nil)
		}
		delete(k.draining, name)
		return step{op: lease.DropKey{Epoch: k.epoch, Key: KeyName(name.Namespace, name.Name), UID: r.uid}, name: name, row: r}, true
	}
	if r == nil {
		r = &row{uid: string(px.UID), gone: true}
		k.rows[name] = r
	}
	var is membership
	for _, v := range p.spaces[name.Namespace].views {
		if known := k.pools[name.Namespace][v.pool.Name]; known != nil && known.refused != nil {
			continue
		}
		switch member, refused := v.has(px); {
		case member:
			is.pools = append(is.pools, v.pool.Name)
		case refused:
			is.refused = append(is.refused, v.pool.Name)
		}
	}
	put := putOf(px, is.pools)
	put.Epoch = k.epoch
	is.fit, is.exitIP = put.Unfit == "", put.ExitIP
	if r.gone || !r.equal(is) {
		k.recount(p, name.Namespace, r, &is)
	}
	d := digestOf(put)
	return step{op: put, name: name, row: r, digest: d}, r.stored != d
}

// recount makes a row count as what its Proxy is now, nil for one that is gone.
// Pools of which other numbers are shown then are touched.
func (k *Keeper) recount(p *pass, namespace string, r *row, is *membership) {
	type shown struct {
		numbers
		exitIPs int
	}
	was := map[string]shown{}
	count := func(m membership, n int) {
		if k.population[namespace] += n; k.population[namespace] == 0 {
			delete(k.population, namespace)
		}
		for _, name := range slices.Concat(m.pools, m.refused) {
			pool := k.pool(namespace, name)
			if _, noted := was[name]; !noted {
				was[name] = shown{pool.numbers, len(pool.exits)}
			}
			pool.count(m, n, slices.Contains(m.refused, name))
		}
	}
	if !r.gone {
		count(r.membership, -1)
	}
	r.gone, r.membership = is == nil, membership{}
	if is != nil {
		r.membership = *is
		count(*is, +1)
	}
	for name, before := range was {
		if pool := k.pool(namespace, name); before != (shown{pool.numbers, len(pool.exits)}) {
			p.touch(name)
		}
	}
}

// count adds a Proxy to a pool's numbers, or takes it off.
func (p *poolRow) count(m membership, n int, refused bool) {
	if refused {
		p.leaky += n
		return
	}
	p.proxies += n
	if !m.fit {
		return
	}
	p.ready += n
	if m.exitIP == "" {
		return
	}
	if p.exits == nil {
		p.exits = map[string]int{}
	}
	if p.exits[m.exitIP] += n; p.exits[m.exitIP] == 0 {
		delete(p.exits, m.exitIP)
	}
}

func (p *pass) touch(pool string) {
	if namespace, name, ok := Parts(pool); ok {
		p.touched[types.NamespacedName{Namespace: namespace, Name: name}] = true
	}
}

// pool returns what is known of a pool, which may be nothing.
func (k *Keeper) pool(namespace, name string) *poolRow {
	if k.pools[namespace] == nil {
		k.pools[namespace] = map[string]*poolRow{}
	}
	if k.pools[namespace][name] == nil {
		k.pools[namespace][name] = &poolRow{}
	}
	return k.pools[namespace][name]
}

// planPools compares the pools of a namespace. It has some as long as it has
// Proxies or ProxyPools.
func (k *Keeper) planPools(p *pass, namespace string) (puts, drops []step) {
	s := p.spaces[namespace]
	needed := map[string]bool{}
	if k.population[namespace] > 0 || len(s.generations) > 0 {
		for _, v := range s.views {
			needed[v.pool.Name] = true
			row, want := k.pool(namespace, v.pool.Name), settings(v.pool)
			if row.wanted != want || row.generation != s.generations[v.pool.Name] || (row.unread == nil) != (v.err == nil) {
				row.wanted, row.generation, row.unread, row.refused = want, s.generations[v.pool.Name], v.err, nil
				p.touch(v.pool.Name)
			}
			if row.stored != want && row.refused == nil {
				puts = append(puts, step{op: lease.PutPool{Epoch: k.epoch, Pool: v.pool}, pool: row, name: poolObject(v.pool.Name)})
			}
		}
	}
	for name, row := range k.pools[namespace] {
		if needed[name] {
			continue
		}
		row.wanted, row.generation, row.unread, row.refused = lease.Pool{}, 0, nil, nil
		if row.numbers == (numbers{}) {
			drops = append(drops, step{op: lease.DropPool{Epoch: k.epoch, Name: name}, pool: row, name: poolObject(name)})
		}
	}
	return puts, drops
}

func poolObject(pool string) types.NamespacedName {
	namespace, name, _ := Parts(pool)
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// carryOut sends the steps in transactions of bounded size.
func (k *Keeper) carryOut(ctx context.Context, p *pass) error {
	chunks := slices.AppendSeq(slices.Collect(slices.Chunk(p.steps, maxOps)), slices.Chunk(p.drops, maxOps))
	for _, chunk := range chunks {
		ops := make([]lease.Op, len(chunk))
		for i := range chunk {
			ops[i] = chunk[i].op
		}
		results, err := k.do(ctx, ops)
		if err == nil {
			err = k.take(p, chunk, results)
		}
		if err != nil {
			k.metrics.writes.WithLabelValues("failed").Add(float64(len(chunk)))
			k.putBack(p, chunk)
			return err
		}
	}
	return nil
}

// take notes what a transaction did. Its error is that of an epoch which is
// over.
func (k *Keeper) take(p *pass, steps []step, results []lease.Result) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, s := range steps {
		err := results[i].Err
		switch {
		case isOver(err):
			return err
		case err != nil:
			k.refused(p, s, err)
		default:
			k.metrics.writes.WithLabelValues("done").Inc()
			k.done(p, s)
		}
	}
	return nil
}

func (k *Keeper) done(p *pass, s step) {
	switch op := s.op.(type) {
	case lease.PutKey:
		s.row.stored, s.row.uid = s.digest, op.UID
	case lease.DropKey:
		delete(k.rows, s.name)
	case lease.PutPool:
		s.pool.stored = settings(op.Pool)
		p.touch(op.Pool.Name)
	case lease.DropPool:
		if s.pool.wanted != (lease.Pool{}) {
			s.pool.stored = lease.Pool{}
			return
		}
		delete(k.pools[s.name.Namespace], op.Name)
		if len(k.pools[s.name.Namespace]) == 0 {
			delete(k.pools, s.name.Namespace)
		}
	}
}

// refused notes an op that the desk does not take. It is not tried again before
// something changes, or rows are compared the next time.
func (k *Keeper) refused(p *pass, s step, err error) {
	k.metrics.writes.WithLabelValues("refused").Inc()
	k.o.Log.Warn("the desk refuses a row", "object", s.name.String(), "class", string(fault.Of(err)), "error", err)
	switch op := s.op.(type) {
	case lease.PutKey:
		s.row.stored = s.digest
	case lease.PutPool:
		s.pool.stored, s.pool.refused = lease.Pool{}, err
		p.touch(op.Pool.Name)
		k.respace(s.name.Namespace) // no row lists it from now on
	}
}
