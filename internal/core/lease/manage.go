package lease

import (
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
)

// MaxItems bounds the keys of a fixed pool.
const MaxItems = 10_000

func (w *work) publish(op Publish) Result {
	p := op.Pool.WithDefaults()
	p.Kind = Fixed
	if err := p.Validate(); err != nil {
		return Result{Err: err}
	}
	if err := validItems(p.Name, op.Items); err != nil {
		return Result{Err: err}
	}
	have := w.pools[p.Name]
	if have != nil && have.Kind != Fixed {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "pool %s is managed by the operator: publish under another name", p.Name), "managed")}
	}
	revision := int64(0)
	if have != nil {
		revision = have.Revision
	}
	if op.If != nil && *op.If != revision {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict,
			"pool %s has revision %d, not %d: somebody published it meanwhile; look at it and publish again", p.Name, revision, *op.If), "revision")}
	}
	m, ok := w.members(p.Name)
	if !ok {
		return Result{}
	}
	items := slices.Sorted(slices.Values(op.Items))
	// A pool that gives its reset up has nothing left to reset.
	noReset := have != nil && have.Hooks.Reset && !p.Hooks.Reset
	var all []string
	for _, n := range m.Names {
		if _, listed := slices.BinarySearch(items, n); !listed {
			all = append(all, n)
		}
	}
	all = append(all, items...)
	if w.load(Want{Keys: slices.Clone(all)}) != nil {
		return Result{}
	}
	for _, n := range items {
		if r := w.keys[n]; r != nil && r.now.Managed && !r.dropped {
			return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "key %s is managed by the operator: it cannot be in a list", n), "managed")}
		}
	}
	if bars := w.barsOf(items); !bars {
		return Result{}
	}
	p.Revision, p.At = revision+1, w.begin.Now
	for _, n := range all {
		_, listed := slices.BinarySearch(items, n)
		w.list(n, p, listed, noReset)
	}
	w.pools[p.Name], w.newPools[p.Name] = &p, true
	m.Names = items
	w.tell(Event{Kind: "published", Pool: p.Name, Account: p.By})
	return Result{Pool: &p}
}

func validItems(pool string, items []string) error {
	if len(items) > MaxItems {
		return fault.WithCode(fault.Errorf(fault.Invalid, "pool %s has %d keys; at most %d are possible", pool, len(items), MaxItems), "items")
	}
	if err := validName(pool, MaxFixedName); err != nil {
		return err
	}
	seen := make(map[string]bool, len(items))
	for _, n := range items {
		if err := validName(n, MaxFixedName); err != nil {
			return fault.WithCode(fault.Errorf(fault.Invalid, "pool %s: %w", pool, err), "key")
		}
		if seen[n] {
			return fault.WithCode(fault.Errorf(fault.Invalid, "pool %s lists key %s twice", pool, n), "key")
		}
		seen[n] = true
	}
	return nil
}

// barsOf loads the bars of names that have no row yet.
func (w *work) barsOf(names []string) bool {
	var fresh []string
	for _, n := range names {
		if r := w.keys[n]; r == nil || r.dropped {
			fresh = append(fresh, n)
		}
	}
	if len(fresh) == 0 {
		return true
	}
	f, err := w.tx.Load(w.ctx, Want{Bars: fresh})
	if err != nil {
		w.broken = err
		return false
	}
	for _, n := range fresh {
		bars := f.Bars[n]
		for pool := range w.changed { // begun in this transaction
			if ch := w.changes[pool]; slices.Contains(ch.Keys, n) {
				bars = append(bars, Bar{Change: ch.ID, By: ch.Account, Until: ch.Until})
			}
		}
		w.fresh(n, bars)
	}
	return true
}

// fresh makes a row for a name that has none, or had one that this transaction
// dropped.
func (w *work) fresh(name string, bars []Bar) *keyRow {
	r := w.keys[name]
	switch {
	case r == nil:
		r = &keyRow{fresh: true}
	case r.dropped:
		r.dropped, r.touched = false, true
	}
	r.now = Key{Name: name, Bars: bars, Version: r.was.Version}
	w.keys[name] = r
	return r
}

// list puts a key on the pool's list or takes it off, as the new items say.
func (w *work) list(name string, p Pool, listed, noReset bool) {
	r := w.keys[name]
	if r == nil {
		return
	}
	before := r.now
	k := before.Settle(w.begin.Now)
	k = k.clone()
	k.Pools, k.Leaving = slices.Clone(k.Pools), slices.Clone(k.Leaving)
	switch {
	case listed && !k.in(p.Name):
		k.Pools = append(k.Pools, p.Name)
		slices.Sort(k.Pools)
		k.Leaving = slices.DeleteFunc(k.Leaving, func(n string) bool { return n == p.Name })
	case !listed && k.in(p.Name):
		k.Pools = slices.DeleteFunc(k.Pools, func(n string) bool { return n == p.Name })
		if k.Held(w.begin.Now) {
			k.Leaving = append(k.Leaving, p.Name)
			slices.Sort(k.Leaving)
		}
	}
	if noReset {
		k.NeedsReset = false
	}
	r.set(k)
	r.dropped = k.stray(w.begin.Now)
	w.mayFree(&before, &k)
}

func (w *work) current(epoch int64) error {
	if epoch == w.begin.Epoch {
		return nil
	}
	return fault.WithCode(fault.Errorf(fault.Conflict, "epoch %d is over: another controller writes under %d", epoch, w.begin.Epoch), "epoch")
}

func (w *work) putPool(op PutPool) Result {
	if err := w.current(op.Epoch); err != nil {
		return Result{Err: err}
	}
	p := op.Pool.WithDefaults()
	p.Kind = Managed
	if err := p.Validate(); err != nil {
		return Result{Err: err}
	}
	if have := w.pools[p.Name]; have != nil && have.Kind == Fixed {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "pool %s is a published list", p.Name), "fixed")}
	} else if have != nil {
		p.Revision = have.Revision
	}
	w.pools[p.Name], w.newPools[p.Name] = &p, true
	w.tell(Event{Kind: "pool", Pool: p.Name})
	return Result{Pool: &p}
}

func (w *work) dropPool(op DropPool) Result {
	if err := w.current(op.Epoch); err != nil {
		return Result{Err: err}
	}
	have := w.pools[op.Name]
	if have == nil {
		return Result{}
	}
	if have.Kind == Fixed {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "pool %s is a published list", op.Name), "fixed")}
	}
	m, ok := w.members(op.Name)
	if !ok {
		return Result{}
	}
	if len(m.Names) > 0 {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "pool %s still has %d keys: take them off first", op.Name, len(m.Names)), "pool_used")}
	}
	delete(w.newPools, op.Name)
	w.pools[op.Name] = nil
	w.dropPools = append(w.dropPools, op.Name)
	w.tell(Event{Kind: "pool removed", Pool: op.Name})
	return Result{}
}

func (w *work) putKey(op PutKey) Result {
	if err := w.current(op.Epoch); err != nil {
		return Result{Err: err}
	}
	if err := ValidName(op.Key); err != nil {
		return Result{Err: err}
	}
	if op.UID == "" {
		return Result{Err: fault.Errorf(fault.Invalid, "key %s: a managed key needs a UID", op.Key)}
	}
	r := w.keys[op.Key]
	if r != nil && !r.dropped && !r.now.Managed {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "key %s is in a published list", op.Key), "fixed")}
	}
	if !w.barsOf([]string{op.Key}) {
		return Result{}
	}
	return w.step(w.keys[op.Key], op, Around{})
}

func (w *work) dropKey(op DropKey) Result {
	if err := w.current(op.Epoch); err != nil {
		return Result{Err: err}
	}
	r := w.keys[op.Key]
	if r == nil || r.dropped {
		return Result{} // gone is what was asked for
	}
	if !r.now.Managed {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "key %s is in a published list", op.Key), "fixed")}
	}
	return w.step(r, op, Around{})
}

func (w *work) beginChange(op BeginChange) Result {
	if w.pools[op.Pool] == nil {
		return Result{Err: NoPool(op.Pool)}
	}
	if err := op.validate(); err != nil {
		return Result{Err: err}
	}
	now := w.begin.Now
	if ch := w.changes[op.Pool]; ch != nil && now.Before(ch.Until) {
		if ch.ID == op.ID && ch.Account == op.Account {
			return Result{Change: ch} // sent twice
		}
		return Result{Change: ch, Err: fault.WithCode(fault.Errorf(fault.Conflict,
			"%s (%s) changes pool %s since %s (%s): wait until that is done; it ends by itself %s after its last sign of life",
			ch.Account, orNone(ch.Holder), op.Pool, ch.Began.UTC().Format("15:04:05 MST"), ch.Verb, seconds(ch.Until.Sub(now))), "change")}
	}
	for _, n := range op.Keys {
		if r := w.keys[n]; r != nil && r.now.Held(now) {
			k := r.now
			return Result{Key: &k, Err: fault.WithCode(fault.Errorf(fault.Conflict,
				"key %s is held by %s (lease %s): wait until it is given back, or ask for it", n, k.Lease.Account, k.ID()), "held")}
		}
	}
	ch := &Change{
		ID: op.ID, Pool: op.Pool, Verb: op.Verb, Keys: slices.Clone(op.Keys), Account: op.Account, Holder: op.Holder,
		Began: now, Until: now.Add(op.TTL),
	}
	w.changes[op.Pool], w.changed[op.Pool] = ch, true
	for _, n := range op.Keys {
		if r := w.keys[n]; r != nil {
			r.now.Bars = append(slices.Clone(r.now.Bars), Bar{Change: ch.ID, By: ch.Account, Until: ch.Until})
		}
	}
	w.tell(Event{Kind: "change began", Pool: op.Pool, Account: op.Account})
	return Result{Change: ch}
}

func validChangeTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxChangeTTL {
		return fault.WithCode(fault.Errorf(fault.Invalid, "a change of %s is not possible: ask for %s to %s, and keep it alive", ttl, MinTTL, MaxChangeTTL), "ttl")
	}
	return nil
}

func (op BeginChange) validate() error {
	if op.ID == "" || validText("the change's id", op.ID) != nil {
		return fault.New(fault.Invalid, "the change's id is missing or not possible")
	}
	for what, text := range map[string]string{"the verb": op.Verb, "the holder": op.Holder} {
		if err := validText(what, text); err != nil {
			return err
		}
	}
	if len(op.Keys) > MaxChangeKeys {
		return fault.WithCode(fault.Errorf(fault.Invalid, "%d keys; a change has at most %d", len(op.Keys), MaxChangeKeys), "keys")
	}
	for _, n := range op.Keys {
		if err := validName(n, MaxFixedName); err != nil {
			return err
		}
	}
	return validChangeTTL(op.TTL)
}

// change finds a running change of the account.
func (w *work) change(pool, id, account string, admin bool) (*Change, error) {
	ch := w.changes[pool]
	if ch == nil || ch.ID != id || !w.begin.Now.Before(ch.Until) {
		return nil, fault.WithCode(fault.Errorf(fault.NotFound, "pool %.80q has no running change %.80q", pool, id), "change")
	}
	if !admin && ch.Account != account {
		return nil, fault.WithCode(fault.Errorf(fault.Denied, "the change of pool %s belongs to account %s", pool, ch.Account), "not_owner")
	}
	return ch, nil
}

func (w *work) renewChange(op RenewChange) Result {
	if err := validChangeTTL(op.TTL); err != nil {
		return Result{Err: err}
	}
	ch, err := w.change(op.Pool, op.ID, op.Account, false)
	if err != nil {
		return Result{Err: err}
	}
	c := *ch
	c.Until = w.begin.Now.Add(op.TTL)
	w.changes[op.Pool], w.changed[op.Pool] = &c, true
	return Result{Change: &c}
}

func (w *work) endChange(op EndChange) Result {
	ch, err := w.change(op.Pool, op.ID, op.Account, op.Admin)
	if err != nil {
		if fault.Of(err) == fault.NotFound {
			err = nil // ended is what was asked for
		}
		return Result{Err: err}
	}
	c := *ch
	c.Until = w.begin.Now
	w.changes[op.Pool], w.changed[op.Pool] = &c, true
	if len(c.Keys) > 0 {
		if w.load(Want{Keys: slices.Clone(c.Keys)}) != nil {
			return Result{}
		}
	}
	for _, n := range c.Keys {
		r := w.keys[n]
		if r == nil {
			continue
		}
		r.now.Bars = slices.Clone(r.now.Bars)
		for i := range r.now.Bars {
			if r.now.Bars[i].Change == c.ID {
				r.now.Bars[i].Until = w.begin.Now
			}
		}
		for _, p := range r.now.Pools {
			w.freed[p] = true
		}
	}
	w.tell(Event{Kind: "change ended", Pool: op.Pool, Account: op.Account})
	return Result{Change: &c}
}
