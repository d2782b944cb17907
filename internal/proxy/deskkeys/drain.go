package deskkeys

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// Holder is who has a Proxy; the zero value is nobody.
type Holder struct {
	// Lease is the lease's public id, Pool the pool it is of.
	Lease, Pool string
	// Account took it, for what it calls Name ("" when it named none).
	Account, Name string
	// Until is when the lease ends unless it is renewed, by the desk's clock.
	Until time.Time
}

// Drain sees to it that a Proxy under deletion is not handed out any more, and
// tells who holds it still. Once it answered, no take gets the Proxy. It waits
// for the row to be written at most until ctx ends, and not at all while rows
// cannot be written.
//
// When there is a holder, [Options.Released] is told of the lease's end.
//
// Errors: Unavailable or Timeout when the desk does not answer; nothing is
// known then.
func (k *Keeper) Drain(ctx context.Context, proxy types.NamespacedName, uid string) (Holder, error) {
	settled := make(chan error, 1)
	k.mu.Lock()
	err := k.trouble
	if !k.running {
		err = errStopped()
	}
	if err == nil {
		k.dirty[proxy] = struct{}{}
		k.settled[proxy] = append(k.settled[proxy], settled)
		signal(k.kick)
	}
	k.mu.Unlock()
	if err != nil {
		return Holder{}, err
	}
	select {
	case err = <-settled:
	case <-ctx.Done():
		err = fault.New(fault.Timeout, "the desk did not take the Proxy out of use in time")
	}
	if err != nil {
		return Holder{}, err
	}
	holder, err := k.holder(ctx, proxy, uid)
	if err != nil || holder == (Holder{}) {
		return Holder{}, err
	}
	k.mu.Lock()
	k.draining[proxy] = struct{}{}
	k.mu.Unlock()
	signal(k.drains)
	return holder, nil
}

// holder reads who holds a Proxy.
func (k *Keeper) holder(ctx context.Context, proxy types.NamespacedName, uid string) (Holder, error) {
	found, err := bounded(ctx, func(ctx context.Context) (lease.Keys, error) {
		return k.o.Desk.Key(ctx, KeyName(proxy.Namespace, proxy.Name))
	})
	switch {
	case fault.Of(err) == fault.NotFound:
		return Holder{}, nil
	case err != nil:
		return Holder{}, err
	case len(found.Keys) == 0:
		return Holder{}, nil
	}
	key := &found.Keys[0]
	if (uid != "" && key.UID != uid) || !key.Held(found.Now) {
		return Holder{}, nil
	}
	l := key.Lease
	return Holder{Lease: key.ID().String(), Pool: l.Pool, Account: l.Account, Name: l.Holder, Until: l.Expires}, nil
}

// DrainTimeout is how long a Proxy under deletion waits for its lease: the
// longest of its pools.
func (k *Keeper) DrainTimeout(ctx context.Context, px *v1alpha1.Proxy) time.Duration {
	var list v1alpha1.ProxyPoolList
	if err := k.o.Cache.List(ctx, &list, client.InNamespace(px.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return defaultDrain
	}
	longest := time.Duration(0)
	for _, v := range viewsOf(px.Namespace, list.Items) {
		if v.selector.Matches(labels.Set(px.Labels)) {
			longest = max(longest, v.drain)
		}
	}
	return longest
}

const (
	// watchPause is the least time between two looks at who drains, watchNet
	// the longest.
	watchPause = 200 * time.Millisecond
	watchNet   = 5 * time.Second
	// watchMost bounds the reads of one look.
	watchMost = 64
)

// watch tells of Proxies under deletion whose lease ended, soon after it did.
// While nothing drains it costs nothing.
func (k *Keeper) watch(ctx context.Context) {
	for {
		// Taken before the look, so that no end between the two is missed.
		changed := k.o.Desk.EventsChanged()
		left := k.look(ctx)
		if !left {
			changed = nil
		}
		net := time.NewTimer(watchNet)
		select {
		case <-changed:
		case <-net.C:
		case <-k.drains:
		case <-ctx.Done():
		}
		net.Stop()
		pause := time.NewTimer(watchPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// look asks for some of those that drain, and reports whether any are left.
func (k *Keeper) look(ctx context.Context) bool {
	var some []types.NamespacedName
	k.mu.Lock()
	for name := range k.draining { // in an order of its own each time
		if len(some) == watchMost {
			break
		}
		some = append(some, name)
	}
	k.mu.Unlock()
	for _, name := range some {
		holder, err := k.holder(ctx, name, "")
		if err != nil {
			break // it is asked again
		}
		if holder == (Holder{}) {
			k.mu.Lock()
			delete(k.draining, name)
			k.mu.Unlock()
			k.o.Released(name)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.draining) > 0
}
