package brokertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
)

// calls makes all calls of a broker that ask its database, at once, on the pool
// win with the key a, and returns how each ended.
func (r *run) calls(ctx context.Context, b broker.Broker) map[string]error {
	e := r.began("win", "a")
	calls := map[string]func() error{
		"Prepare": func() error { return b.Prepare(ctx, of("win", "a", "b")) },
		"Take":    func() error { _, err := b.Take(ctx, "win", client.TakeOptions{}); return err },
		"Take with a wait": func() error {
			_, err := b.Take(ctx, "win", client.TakeOptions{Wait: time.Second})
			return err
		},
		"Resume":  func() error { _, err := b.Resume(ctx, "a~1", "0123456789abcdef0123456789abcdef"); return err },
		"Lease":   func() error { _, err := b.Lease(ctx, "a~1"); return err },
		"Pool":    func() error { _, err := b.Pool(ctx, "win"); return err },
		"Pools":   func() error { _, err := b.Pools(ctx); return err },
		"Waiters": func() error { _, err := b.Waiters(ctx, "win"); return err },
		"Publish": func() error { _, err := b.Publish(ctx, of("win", "a", "b"), nil); return err },
		"Disable": func() error { _, err := b.Disable(ctx, "win", "a", "x"); return err },
		"Enable":  func() error { _, err := b.Enable(ctx, "win", "a"); return err },
		"Force":   func() error { _, err := b.Force(ctx, "win", "a", client.ForceRequest{}); return err },
		"Begin":   func() error { _, err := b.Begin(ctx, "win", client.ChangeRequest{}); return err },
		"Append":  func() error { _, err := b.Append(ctx, e); return err },
		"Entries": func() error { _, err := b.Entries(ctx, broker.Match{}, 10); return err },
		"Open":    func() error { _, err := b.Open(ctx, ""); return err },
	}
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		errs = map[string]error{}
	)
	for what, call := range calls {
		all.Go(func() {
			err := call()
			mu.Lock()
			defer mu.Unlock()
			errs[what] = err
		})
	}
	all.Wait()
	return errs
}

// untouched checks that the pool win is as it was published, and that the log is
// empty.
func (r *run) untouched() {
	r.Helper()
	v := r.view("win")
	if len(v.Members) != 1 || v.Members[0].State != client.StateFree || v.Revision != 1 || v.Change != nil || v.Waiting != 0 {
		r.Errorf("something was done: %+v", v)
	}
	if got, err := r.ann().Entries(r.ctx, broker.Match{}, 1); err != nil || len(got) > 0 {
		r.Errorf("something was logged: %+v, %v", got, err)
	}
}

func contextEnded(r *run) {
	r.publish(of("win", "a"))
	cancelled, cancel := context.WithCancel(r.ctx)
	cancel()
	expired, cancel := context.WithDeadline(r.ctx, time.Unix(0, 0))
	defer cancel()
	for _, dead := range []context.Context{cancelled, expired} {
		for what, err := range r.calls(dead, r.root()) {
			if !errors.Is(err, dead.Err()) || errors.Is(dead.Err(), context.DeadlineExceeded) && fault.Of(err) != fault.Timeout {
				r.Errorf("%s with an ended ctx (%v): %v of class %s", what, dead.Err(), err, fault.Of(err))
			}
		}
	}
	r.untouched()
}

func closeLeases(r *run) {
	r.publish(of("win", "a"))
	b := r.h.Open(r, "ann")
	l := r.take(b, "win", client.TakeOptions{})
	id, secret := l.ID(), l.Secret()
	for range 2 { // again is harmless
		r.must("Close", b.Close())
	}
	r.state("win", "a", client.StateHeld)
	l, err := r.ann().Resume(r.ctx, id, secret)
	r.must("Resume", err)
	r.release(l, client.ReleaseRequest{})
}

func clockLease(r *run) {
	r.publish(of("win", "a"))
	l := r.take(r.ann(), "win", client.TakeOptions{})
	r.h.Advance(time.Minute)
	if i, err := r.bob().Lease(r.ctx, l.ID()); err != nil || i.State != client.StateExpired {
		r.Errorf("a lease whose time is over: %+v, %v", i, err)
	}
	r.state("win", "a", client.StateFree)
	r.fault("Renew", l.Renew(r.ctx, client.RenewRequest{}), fault.Conflict, "lease_expired")
	other := r.take(r.bob(), "win", client.TakeOptions{})
	if other.Fence() <= l.Fence() {
		r.Errorf("the next lease has fence %d after %d", other.Fence(), l.Fence())
	}
	r.fault("Renew", l.Renew(r.ctx, client.RenewRequest{}), fault.Conflict, "lease_lost")
	_, err := l.Release(r.ctx, client.ReleaseRequest{})
	r.fault("Release", err, fault.Conflict, "lease_lost")
	r.state("win", "a", client.StateHeld)
}

func clockRest(r *run) {
	p := of("win", "a")
	p.Cooldown = time.Minute
	r.publish(p)
	r.release(r.take(r.ann(), "win", client.TakeOptions{}), client.ReleaseRequest{})
	r.state("win", "a", client.StateCooling)
	e := r.noneFree(r.bob(), "win", client.TakeOptions{})
	if len(e.Holders) != 1 || e.Holders[0].State != client.StateCooling || e.UntilFree <= 50*time.Second || e.UntilFree > time.Minute {
		r.Errorf("it is told %+v, %v", e.Holders, e.UntilFree)
	}
	r.h.Advance(time.Minute)
	r.take(r.bob(), "win", client.TakeOptions{})
}

func clockChange(r *run) {
	r.publish(of("win", "a"))
	ch := r.begin(r.ann(), "a")
	r.h.Advance(50 * time.Second)
	r.must("Renew", ch.Renew(r.ctx))
	r.h.Advance(50 * time.Second) // it counts from the renewal, for as long as at first
	r.state("win", "a", client.StateBarred)
	r.h.Advance(11 * time.Second)
	r.state("win", "a", client.StateFree)
	r.must("another change", r.begin(r.bob(), "a").Renew(r.ctx))
	r.fault("Renew", ch.Renew(r.ctx), fault.NotFound, "change")
}

func clockMany(r *run) {
	p := of("win", many(1001)...)
	var publishing sync.WaitGroup
	root := r.root()
	for worker := range 8 {
		publishing.Go(func() {
			for i := worker; i < 520; i += 8 {
				if _, err := root.Publish(r.ctx, of(fmt.Sprintf("p-%04d", i), "x"), nil); err != nil {
					r.Errorf("Publish: %v", err)
				}
			}
		})
	}
	publishing.Wait()
	r.publish(p)
	all, err := r.bob().Pools(r.ctx)
	r.must("Pools", err)
	for i, s := range all {
		if want := fmt.Sprintf("p-%04d", i); i < 520 && s.Name != want {
			r.Fatalf("pool %d is %s, want %s", i, s.Name, want)
		}
	}
	if len(all) != 521 {
		r.Errorf("%d pools were read of 521", len(all))
	}
	r.readWhole(p, "p-0000", 520)
}

func outageTold(r *run) {
	r.publish(of("win", "a"))
	r.h.Outage(true)
	for what, err := range r.calls(r.ctx, r.root()) {
		if c := fault.Of(err); c != fault.Unavailable && c != fault.Timeout || fault.CodeOf(err) == "none_free" {
			r.Errorf("%s: %v of class %s, code %q", what, err, c, fault.CodeOf(err))
		}
	}
	r.h.Outage(false)
	r.untouched()
	r.release(r.take(r.ann(), "win", client.TakeOptions{}), client.ReleaseRequest{})
}

func outageWaits(r *run) {
	r.publish(of("win", "a"))
	l := r.take(r.ann(), "win", client.TakeOptions{})
	t := r.start(r.ctx, r.bob(), "win", client.TakeOptions{Wait: time.Minute})
	r.waiting("win", 1)
	r.h.Outage(true)
	if _, err := r.ann().Pools(r.ctx); fault.Of(err) != fault.Unavailable {
		r.Errorf("the outage is none: %v", err)
	}
	r.h.Outage(false)
	r.release(l, client.ReleaseRequest{})
	if r.ended(t).err != nil {
		r.Fatalf("it waited in vain: %v", t.err)
	}
}

func outageAlive(r *run) {
	r.publish(of("win", "a"))
	l := r.take(r.ann(), "win", client.TakeOptions{TTL: 5 * time.Second})
	r.h.Outage(true)
	began := time.Now()
	err := l.KeepAlive(r.ctx)
	r.fault("KeepAlive", err, fault.Conflict, "lease_expired")
	if took := time.Since(began); took > 8*time.Second || l.Left() != 0 {
		r.Errorf("it was given up after %v with %v left", took, l.Left())
	}
	r.h.Outage(false)
}
