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
	members, _, ok := w.members(p.Name)
	if !ok {
		return Result{}
	}
	items := slices.Sorted(slices.Values(op.Items))
	all := slices.Clone(items)
	for _, n := range members {
		if _, listed := slices.BinarySearch(items, n); !listed {
			all = append(all, n)
		}
	}
	if w.load(Want{Keys: slices.Clone(all)}) != nil {
		return Result{}
	}
	for _, n := range items {
		if r := w.key(n); r != nil && r.now.Managed {
			return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "key %s is managed by the operator: it cannot be in a list", n), "managed")}
		}
	}
	p.Revision, p.At = revision+1, w.begin.Now
	noReset := have != nil && have.Hooks.Reset && !p.Hooks.Reset
	if noReset && !w.loadPoolsOf(all) || !w.barsOf(items) {
		return Result{}
	}
	w.pools[p.Name], w.newPools[p.Name] = &p, true
	w.frees++ // who found none may find one by the new rules
	for _, n := range all {
		_, listed := slices.BinarySearch(items, n)
		w.list(n, p.Name, listed, noReset)
	}
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

// barsOf makes rows for names that have none, with the bars that are on them.
func (w *work) barsOf(names []string) bool {
	var fresh []string
	for _, n := range names {
		if w.key(n) == nil {
			fresh = append(fresh, n)
		}
	}
	bars, ok := w.loadBars(fresh)
	for _, n := range fresh {
		w.fresh(n, bars[n])
	}
	return ok
}

// loadBars returns the bars of names, as this transaction leaves them.
func (w *work) loadBars(names []string) (map[string][]Bar, bool) {
	if len(names) == 0 {
		return nil, true
	}
	ask := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return has(w.bars, n) })
	if len(ask) > 0 && w.load(Want{Bars: ask}) != nil {
		return nil, false
	}
	bars := map[string][]Bar{}
	for _, n := range names {
		for _, b := range w.bars[n] {
			if ch := w.changed[b.Change]; ch != nil {
				b.Until = ch.Until // renewed or ended
			}
			if b.inForce(w.begin.Now) {
				bars[n] = append(bars[n], b)
			}
		}
	}
	for _, ch := range w.changed { // begun
		for _, n := range ch.Keys {
			if w.begin.Now.Before(ch.Until) && slices.Contains(names, n) && !slices.ContainsFunc(bars[n], func(b Bar) bool { return b.Change == ch.ID }) {
				bars[n] = append(bars[n], Bar{Change: ch.ID, By: ch.Account, Until: ch.Until})
			}
		}
	}
	return bars, true
}

// fresh makes a row for a name that has none, or had one that this transaction
// dropped.
func (w *work) fresh(name string, bars []Bar) {
	r := w.keys[name]
	if r == nil {
		r = &keyRow{fresh: true}
		w.keys[name] = r
	}
	r.dropped, r.untold = false, false
	w.set(r, Key{Name: name, Bars: bars, Version: r.was.Version})
}

// list puts a key on the pool's list or takes it off. When the pool has just
// given its reset up, a key that no other pool resets needs none any more.
func (w *work) list(name, pool string, listed, noReset bool) {
	r := w.key(name)
	if r == nil || r.now.in(pool) == listed && !(noReset && r.now.NeedsReset) {
		return
	}
	before := r.now
	k := before.clone()
	pools := slices.DeleteFunc(slices.Clone(k.Pools), func(n string) bool { return n == pool })
	if listed {
		pools = append(pools, pool)
		slices.Sort(pools)
	}
	k.list(pools, w.begin.Now)
	if noReset {
		k.NeedsReset = k.NeedsReset && slices.ContainsFunc(pools, func(n string) bool { return w.pools[n] != nil && w.pools[n].Hooks.Reset })
	}
	w.over(r)
	w.set(r, k)
	r.dropped = k.stray(w.begin.Now)
	w.mayFree(&before, &k)
}

// loadPoolsOf loads the other pools of keys that need a reset.
func (w *work) loadPoolsOf(names []string) bool {
	var pools []string
	for _, n := range names {
		if r := w.key(n); r != nil && r.now.NeedsReset {
			pools = append(pools, r.now.Pools...)
		}
	}
	return len(pools) == 0 || w.load(Want{Pools: pools}) == nil
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
		p.Revision, p.By, p.At = have.Revision, have.By, have.At // nobody published it
		if p == *have {
			return Result{Pool: &p} // a controller says the same again and again
		}
		if p.InFlight != have.InFlight || p.Scope != have.Scope {
			w.unlined(p.Name) // keys may come earlier by the new rules
		}
	}
	w.pools[p.Name], w.newPools[p.Name] = &p, true
	w.mayFind([]string{p.Name})
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
	names, _, ok := w.members(op.Name)
	if !ok {
		return Result{}
	}
	if len(names) > 0 {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "pool %s still has %d keys: take them off first", op.Name, len(names)), "pool_used")}
	}
	delete(w.newPools, op.Name)
	w.pools[op.Name] = nil
	w.dropPools = append(w.dropPools, op.Name)
	w.unlined(op.Name)
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
	if r := w.key(op.Key); r != nil && !r.now.Managed {
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "key %s is in a published list", op.Key), "fixed")}
	}
	for _, n := range op.Pools {
		if p := w.pools[n]; p != nil && p.Kind == Fixed {
			return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "pool %s is a published list: key %s cannot be in it", n, op.Key), "fixed")}
		}
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
	r := w.key(op.Key)
	if r == nil {
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
	switch ch := w.changes[op.Pool]; {
	case ch == nil:
	case ch.ID == op.ID && ch.Account == op.Account && now.Before(ch.Until):
		return Result{Change: ch} // sent twice
	case now.Before(ch.Until):
		return Result{Change: ch, Err: fault.WithCode(fault.Errorf(fault.Conflict,
			"%s (%s) changes pool %s since %s (%s): wait until that is done; it ends by itself %s after its last sign of life",
			ch.Account, orNone(ch.Holder), op.Pool, ch.Began.UTC().Format("15:04:05 MST"), ch.Verb, seconds(ch.Until.Sub(now))), "change")}
	case ch.ID == op.ID: // its keys are kept by its id
		return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "the change %.80q of pool %s is over: begin another one", ch.ID, ch.Pool), "change")}
	}
	var missing []string
	for _, n := range op.Keys {
		r := w.key(n)
		if r == nil {
			missing = append(missing, n)
		} else if r.now.Held(now) {
			k := r.now
			return Result{Key: &k, Err: fault.WithCode(fault.Errorf(fault.Conflict,
				"key %s is held by %s (lease %s): wait until it is given back, or ask for it", n, k.Lease.Account, k.ID()), "held")}
		}
	}
	bars, ok := w.loadBars(missing)
	if !ok {
		return Result{}
	}
	for _, n := range op.Keys { // in two pools a key has two locks
		have := bars[n]
		if r := w.key(n); r != nil {
			have = r.now.Bars
		}
		for _, b := range have {
			if now.Before(b.Until) {
				return Result{Err: fault.WithCode(fault.Errorf(fault.Conflict, "%s changes key %s through another pool: wait until that is done", b.By, n), "change")}
			}
		}
	}
	ch := &Change{
		ID: op.ID, Pool: op.Pool, Verb: op.Verb, Keys: slices.Clone(op.Keys), Account: op.Account, Holder: op.Holder,
		Began: now, Until: now.Add(op.TTL.Truncate(time.Microsecond)),
	}
	w.change(ch)
	for _, n := range op.Keys {
		if r := w.key(n); r != nil {
			r.now.Bars = append(slices.Clone(r.now.Bars), Bar{Change: ch.ID, By: ch.Account, Until: ch.Until})
		}
	}
	w.tell(Event{Kind: "change began", Pool: op.Pool, Account: op.Account})
	return Result{Change: ch}
}

// change keeps a change and makes it the latest of its pool.
func (w *work) change(ch *Change) { w.changes[ch.Pool], w.changed[ch.ID] = ch, ch }

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

// running finds a running change of the account.
func (w *work) running(pool, id, account string, admin bool) (*Change, error) {
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
	ch, err := w.running(op.Pool, op.ID, op.Account, false)
	if err != nil {
		return Result{Err: err}
	}
	c := *ch
	c.Until = w.begin.Now.Add(op.TTL.Truncate(time.Microsecond))
	w.change(&c)
	w.bar(&c)
	return Result{Change: &c}
}

func (w *work) endChange(op EndChange) Result {
	ch, err := w.running(op.Pool, op.ID, op.Account, op.Admin)
	if err != nil {
		if fault.Of(err) == fault.NotFound {
			err = nil // ended is what was asked for
		}
		return Result{Err: err}
	}
	c := *ch
	c.Until = w.begin.Now
	w.change(&c)
	if len(c.Keys) > 0 && w.load(Want{Keys: slices.Clone(c.Keys)}) != nil {
		return Result{}
	}
	w.bar(&c)
	for _, n := range c.Keys {
		if r := w.key(n); r != nil {
			w.mayFind(r.now.Pools)
		}
	}
	w.tell(Event{Kind: "change ended", Pool: op.Pool, Account: op.Account})
	return Result{Change: &c}
}

// bar makes the bars of rows follow their change.
func (w *work) bar(ch *Change) {
	for _, n := range ch.Keys {
		r := w.key(n)
		if r == nil {
			continue
		}
		r.now.Bars = slices.Clone(r.now.Bars)
		for i := range r.now.Bars {
			if r.now.Bars[i].Change == ch.ID {
				r.now.Bars[i].Until = ch.Until
			}
		}
		r.now.Bars = slices.DeleteFunc(r.now.Bars, func(b Bar) bool { return !b.inForce(w.begin.Now) })
	}
}
