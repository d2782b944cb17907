package leasetest

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// Options are what [NewMemory] is told.
type Options struct {
	// Now is the clock; nil for [time.Now].
	Now func() time.Time
	// Tx, when not nil, wraps each transaction: what it loads and saves can be
	// counted, looked at and made to fail.
	Tx func(lease.Tx) lease.Tx
}

// Memory is a [lease.Store] in memory. It runs the real rules, passes the
// suite, and can be made to fail. All who share one Memory share one database.
type Memory struct {
	clock func() time.Time
	wrap  func(lease.Tx) lease.Tx
	root  []byte

	mu       sync.Mutex
	shift    time.Duration
	begin    lease.Begin
	pools    map[string]lease.Pool
	keys     map[string]*lease.Key // without bars
	lists    map[string]*list      // by pool
	expiries sorted                // running leases by their end
	tickets  map[string]lease.Ticket
	waiting  map[string]*sorted // waiting tickets by pool, in their order
	rests    map[lease.CooldownID]lease.Cooldown
	lines    map[lease.LineID]lease.Line
	places   map[int64]*sorted // by line
	changes  map[string]lease.Change
	actions  map[string][]lease.Bar
	events   []lease.Event
	// forgotten is the number of the last event that is gone.
	forgotten int64
	watchers  map[*watch]bool

	outage   bool
	failures []error
	lose     int
}

// watch is one running [Memory.Watch].
type watch struct {
	told chan struct{} // of one element: there is news
	news lease.News
}

// NewMemory returns an empty store.
func NewMemory(o Options) *Memory {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Tx == nil {
		o.Tx = func(t lease.Tx) lease.Tx { return t }
	}
	root := make([]byte, 32)
	_, _ = rand.Read(root) // never fails
	return &Memory{
		clock: o.Now, wrap: o.Tx, root: root,
		pools: map[string]lease.Pool{}, keys: map[string]*lease.Key{}, lists: map[string]*list{},
		tickets: map[string]lease.Ticket{}, waiting: map[string]*sorted{}, rests: map[lease.CooldownID]lease.Cooldown{},
		lines: map[lease.LineID]lease.Line{}, places: map[int64]*sorted{},
		changes: map[string]lease.Change{}, actions: map[string][]lease.Bar{}, watchers: map[*watch]bool{},
	}
}

// Advance moves the clock by d, for good and beside what Options.Now does. A
// negative one turns it back: the store's time stands still then.
func (m *Memory) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shift += d
}

// FailNext makes the next Do return err with nothing done. Several calls line
// up.
func (m *Memory) FailNext(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures = append(m.failures, err)
}

// LoseNext makes the next Do that would succeed say Timeout although all of it
// was done: its answer was lost.
func (m *Memory) LoseNext() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lose++
}

// Outage makes every call fail as a database that does not answer, until it is
// called with false. Watches go on, and are told of All when it ends.
func (m *Memory) Outage(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.outage && !on {
		m.tell(lease.News{All: true, Events: true})
	}
	m.outage = on
}

// OpenAction bars the name, which need not be a key, as an action on it that
// was started and is neither finished nor resolved. Change is the id of the
// person's change that it belongs to; "" for none.
func (m *Memory) OpenAction(name, action, change, by string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.actions[name] = append(m.actions[name], lease.Bar{Change: change, By: by, Action: action})
}

// CloseAction ends the bar of an action.
func (m *Memory) CloseAction(name, action string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.actions[name] = slices.DeleteFunc(m.actions[name], func(b lease.Bar) bool { return b.Action == action })
	if k := m.keys[name]; k != nil {
		m.tell(lease.News{Freed: slices.Clone(k.Pools)})
	}
}

// Do implements [lease.Store].
func (m *Memory) Do(ctx context.Context, ops []lease.Op) ([]lease.Result, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if len(m.failures) > 0 {
		err := m.failures[0]
		m.failures = m.failures[1:]
		return nil, err
	}
	begin := m.begin
	begin.Now = m.now()
	results, err := lease.Apply(ctx, m.wrap(&tx{m, begin.Now}), begin, ops)
	if err != nil {
		return nil, err
	}
	if m.lose > 0 {
		m.lose--
		return nil, fault.New(fault.Timeout, "leasetest: the answer was lost after the transaction was done")
	}
	return results, nil
}

// Root implements [lease.Store].
func (m *Memory) Root(ctx context.Context) ([]byte, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return slices.Clone(m.root), nil
}

// Watch implements [lease.Store].
func (m *Memory) Watch(ctx context.Context, w lease.Watcher) error {
	// What happened before it began was missed.
	own := &watch{told: make(chan struct{}, 1), news: lease.News{All: true, Events: true}}
	own.told <- struct{}{}
	m.mu.Lock()
	m.watchers[own] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.watchers, own)
		m.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-own.told:
		}
		m.mu.Lock()
		news := own.news
		own.news = lease.News{}
		m.mu.Unlock()
		w.Changed(news)
	}
}

// tell hands news to every watch; m.mu is held.
func (m *Memory) tell(n lease.News) {
	for w := range m.watchers {
		for _, p := range n.Freed {
			if !slices.Contains(w.news.Freed, p) {
				w.news.Freed = append(w.news.Freed, p)
			}
		}
		w.news.All = w.news.All || n.All
		w.news.Events = w.news.Events || n.Events
		select {
		case w.told <- struct{}{}:
		default: // it has not looked yet, and will see this too
		}
	}
}

// enter locks the store for a call that may go on.
func (m *Memory) enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(fault.Timeout, err)
	}
	m.mu.Lock()
	if m.outage {
		defer m.mu.Unlock()
		return nil, fault.WithCode(fault.New(fault.Unavailable, "leasetest: the database does not answer"), "store")
	}
	return m.mu.Unlock, nil
}

// now is the database's clock, which never runs backwards.
func (m *Memory) now() time.Time {
	now := kept(m.clock().Add(m.shift))
	if now.Before(m.begin.Now) {
		return m.begin.Now
	}
	return now
}

// kept is a time as databases keep it.
func kept(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0).Truncate(time.Microsecond)
}
