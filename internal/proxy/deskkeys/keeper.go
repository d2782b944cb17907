package deskkeys

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// Desk is the part of the desk's service that rows need.
type Desk interface {
	// Do runs ops of one transaction, in their order, and returns one result
	// each. An error means that it is not known whether they ran.
	Do(ctx context.Context, ops ...lease.Op) ([]lease.Result, error)
	Pools(ctx context.Context, after string, limit int) ([]lease.PoolStatus, error)
	Keys(ctx context.Context, pool, after string, limit int) (lease.Keys, error)
	Key(ctx context.Context, name string) (lease.Keys, error)
	// EventsChanged returns a channel that is closed at the next change.
	EventsChanged() <-chan struct{}
}

// Options are what a Keeper is made of.
type Options struct {
	Desk Desk
	// Cache has the Proxies and ProxyPools, all of them.
	Cache client.Reader
	// Owner is this operator in the desk's own words.
	Owner string
	// Resync is the time between two comparisons of all rows; 0 means 10
	// minutes.
	Resync time.Duration
	// Released is told that a Proxy under deletion is held by nobody any more.
	// It must not block. Nil for nobody.
	Released func(proxy types.NamespacedName)
	// PoolChanged is told that what [Keeper.Pool] says of a pool changed. It
	// must not block. Nil for nobody.
	PoolChanged func(pool types.NamespacedName)
	Metrics     prometheus.Registerer
	Log         *slog.Logger
}

const (
	// maxOps is the size of a transaction.
	maxOps = 256
	// pageSize is how many rows one read asks for.
	pageSize = 500
	// callTimeout bounds one call of the desk.
	callTimeout = 10 * time.Second
	// defaultResync is the net behind lost changes.
	defaultResync = 10 * time.Minute
)

// Keeper keeps the rows. Its methods may be called concurrently.
type Keeper struct {
	o       Options
	metrics *metrics

	// kick tells Run that there is something to do; drains that somebody drains.
	kick, drains chan struct{}

	mu sync.Mutex
	// running is set while Run runs; what changes before is looked at then.
	running bool
	// epoch is the one that this keeper opened; 0 for none yet.
	epoch int64
	// trouble is why rows are behind; nil while they are not.
	trouble error
	// dirty are Proxies, and spaces namespaces whose pools, to look at.
	dirty  map[types.NamespacedName]struct{}
	spaces map[string]struct{}
	// settled are told when a Proxy was looked at and its row written.
	settled map[types.NamespacedName][]chan error
	// rows are the keys by the Proxy's name.
	rows map[types.NamespacedName]*row
	// pools are the pools by namespace, then by the desk's name.
	pools map[string]map[string]*poolRow
	// population counts the Proxies of a namespace among rows.
	population map[string]int
	// draining are Proxies that wait for their lease to end.
	draining map[types.NamespacedName]struct{}
}

// row is what is known of a key.
type row struct {
	// uid is the one in the database as far as known, else the Proxy's.
	uid string
	// gone is set when there is no Proxy of that name any more.
	gone bool
	// membership is what the Proxy says.
	membership
	// stored is what the database has; the zero value when that is not known.
	stored digest
}

// membership is in which pools a Proxy counts, and as what.
type membership struct {
	// pools have it; refused would have it if it did not leak.
	pools, refused []string
	fit            bool
	exitIP         string
}

func (m membership) equal(o membership) bool {
	return slices.Equal(m.pools, o.pools) && slices.Equal(m.refused, o.refused) && m.fit == o.fit && m.exitIP == o.exitIP
}

// numbers are what is shown of a pool's Proxies.
type numbers struct{ proxies, ready, leaky int }

// poolRow is what is known of a pool.
type poolRow struct {
	// wanted is what the database shall have, by the object of that generation;
	// the zero value when the pool shall not be there.
	wanted     lease.Pool
	generation int64
	// stored is what the database has; the zero value when that is not known.
	stored lease.Pool
	// numbers count the rows that list it; exits are the exit IPs of those that
	// are ready, with how many leave by each.
	numbers
	exits map[string]int
	// unread is why its object cannot be read, refused why the desk does not
	// take it; nil for none. No row lists a pool that was refused.
	unread, refused error
}

// New returns a keeper. Errors: Conflict when its metrics are registered
// already.
func New(o Options) (*Keeper, error) {
	if o.Resync == 0 {
		o.Resync = defaultResync
	}
	if o.Released == nil {
		o.Released = func(types.NamespacedName) {}
	}
	if o.PoolChanged == nil {
		o.PoolChanged = func(types.NamespacedName) {}
	}
	k := &Keeper{o: o, kick: make(chan struct{}, 1), drains: make(chan struct{}, 1)}
	k.reset()
	var err error
	k.metrics, err = newMetrics(o.Metrics, k.backlog)
	return k, err
}

// reset forgets what a former time as leader knew.
func (k *Keeper) reset() {
	k.epoch, k.trouble = 0, nil
	k.dirty, k.spaces = map[types.NamespacedName]struct{}{}, map[string]struct{}{}
	k.settled = map[types.NamespacedName][]chan error{}
	k.rows, k.pools, k.population = map[types.NamespacedName]*row{}, map[string]map[string]*poolRow{}, map[string]int{}
	k.draining = map[types.NamespacedName]struct{}{}
}

// Proxy has a Proxy's row looked at again soon; it never blocks. While Run does
// not run it does nothing, since Run begins with all of them.
func (k *Keeper) Proxy(name types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running {
		k.dirty[name] = struct{}{}
		signal(k.kick)
	}
}

// Space has the pools of a namespace and the rows of all its Proxies looked at
// again soon, after a change of a ProxyPool; it never blocks.
func (k *Keeper) Space(namespace string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running {
		return
	}
	k.respace(namespace)
	signal(k.kick)
}

// respace is Space under the lock.
func (k *Keeper) respace(namespace string) {
	k.spaces[namespace] = struct{}{}
	for name := range k.rows {
		if name.Namespace == namespace {
			k.dirty[name] = struct{}{}
		}
	}
}

// backlog counts what waits to be looked at.
func (k *Keeper) backlog() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return float64(len(k.dirty) + len(k.spaces))
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it was told before and has not looked yet
	}
}

// Run keeps the rows until ctx ends; it is for the leader. It returns nil then,
// and an error of class Conflict and code "epoch" when another operator began
// to keep the rows of this database: whoever runs it must not go on as leader.
func (k *Keeper) Run(ctx context.Context) error {
	k.mu.Lock()
	k.reset()
	k.running = true
	k.mu.Unlock()
	defer k.stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.write(ctx) })
	group.Go(func() error { k.watch(ctx); return nil })
	return group.Wait()
}

func (k *Keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = false
	for _, waiting := range k.settled {
		tell(waiting, errStopped())
	}
	k.settled = map[types.NamespacedName][]chan error{}
	k.metrics.failing.Set(0)
}

func errStopped() error {
	return fault.New(fault.Unavailable, "the desk's rows are not kept by this operator at the moment")
}

// pauses paces what follows a failure of the database. They stay short: while
// rows are behind, takers may get a proxy that does not work.
var pauses = fault.Retry{Min: 500 * time.Millisecond, Max: 5 * time.Second}

// write is the one writer: it opens the epoch, compares, and then follows.
func (k *Keeper) write(ctx context.Context) error {
	resync := time.NewTicker(k.o.Resync)
	defer resync.Stop()
	compare, failures := true, 0
	for {
		err := k.open(ctx)
		if err == nil && compare {
			if err = k.compare(ctx); err == nil {
				compare = false
			}
		}
		more := false
		if err == nil {
			more, err = k.pass(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case isOver(err):
			return fmt.Errorf("another operator keeps the rows of this desk now, and this one must not go on as leader (do two run without --leader-elect?): %w", err)
		}
		k.told(err)
		if err == nil && more {
			failures = 0
			continue
		}
		pause, kick := k.o.Resync, k.kick
		if err != nil {
			failures++
			pause, kick = pauses.After(failures, rand.Float64()), nil
		} else {
			failures = 0
		}
		again := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil
		case <-kick:
		case <-again.C:
		case <-resync.C:
			compare = true
		}
		again.Stop()
	}
}

// isOver tells that another operator opened an epoch after ours.
func isOver(err error) bool { return err != nil && fault.CodeOf(err) == "epoch" }

// told notes how the last try went: news are logged, once.
func (k *Keeper) told(err error) {
	k.mu.Lock()
	was := k.trouble
	k.trouble = err
	if err != nil {
		// Nobody who waits for a row is helped by waiting longer.
		for name, waiting := range k.settled {
			tell(waiting, err)
			delete(k.settled, name)
		}
	}
	k.mu.Unlock()
	switch {
	case err != nil && was == nil:
		k.o.Log.Warn("the desk's rows cannot be written: what changes in Proxies is not seen by takers until that works again", "class", string(fault.Of(err)), "error", err)
	case err == nil && was != nil:
		k.o.Log.Info("the desk's rows are written again")
	}
	failing := 0.0
	if err != nil {
		failing = 1
	}
	k.metrics.failing.Set(failing)
}

func tell(waiting []chan error, err error) {
	for _, c := range waiting {
		c <- err // each has room for its one answer
	}
}

// open opens this keeper's epoch, once.
func (k *Keeper) open(ctx context.Context) error {
	if k.epoch != 0 {
		return nil
	}
	results, err := k.do(ctx, []lease.Op{lease.OpenEpoch{Owner: k.o.Owner}})
	if err == nil {
		err = results[0].Err
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch = results[0].Epoch
	k.o.Log.Info("keeping the desk's rows", "epoch", k.epoch)
	return nil
}

// do runs ops with a deadline.
func (k *Keeper) do(ctx context.Context, ops []lease.Op) ([]lease.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	results, err := k.o.Desk.Do(ctx, ops...)
	if err == nil && len(results) != len(ops) {
		err = fault.Errorf(fault.Permanent, "the desk answered %d of %d ops", len(results), len(ops))
	}
	return results, err
}

// State is what is known of a pool.
type State struct {
	// Generation is that of the object which the rest is about; 0 when no
	// object was looked at yet.
	Generation int64
	// Proxies and Ready count the Proxies of the pool, and those that work;
	// ExitIPs the addresses that the latter leave by, as far as known. Refused
	// counts those that are left out because they leak, or may.
	Proxies, Ready, ExitIPs, Refused int
	// Stored is set when the desk has the pool as its object says.
	Stored bool
	// Err is why not: Invalid with the code "selector", Conflict with the code
	// "fixed" when a published list has the name, another one when the desk
	// cannot be written; nil when it will be soon.
	Err error
}

// Pool returns what is known of a pool.
func (k *Keeper) Pool(name types.NamespacedName) State {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pools[name.Namespace][PoolName(name.Namespace, name.Name)]
	if p == nil {
		return State{Err: k.trouble}
	}
	s := State{
		Generation: p.generation, Proxies: p.proxies, Ready: p.ready, ExitIPs: len(p.exits), Refused: p.leaky,
		Stored: p.stored != (lease.Pool{}) && p.stored == p.wanted,
	}
	switch {
	case p.unread != nil:
		s.Err = p.unread
	case p.refused != nil:
		s.Err = p.refused
	case !s.Stored:
		s.Err = k.trouble
	}
	return s
}
