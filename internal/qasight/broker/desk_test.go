package broker_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/pool"
)

func poolOf(name string, items ...string) pool.Pool {
	return pool.Pool{Name: name, Items: items, TTL: 30 * time.Second}
}

// brokerDesk is a broker as the suite of desks asks for it: through the broker's
// own types, and through its client for what no user of a broker needs.
type brokerDesk struct {
	b broker.Broker

	mu      sync.Mutex
	leases  map[string]*broker.Lease  // by id and secret
	changes map[string]*broker.Change // by id
}

func newBrokerDesk(b broker.Broker) *brokerDesk {
	return &brokerDesk{b: b, leases: map[string]*broker.Lease{}, changes: map[string]*broker.Change{}}
}

// none makes an error that no key is free the suite's.
func none(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || fault.CodeOf(err) != "none_free" {
		return err
	}
	n := &leasetest.NoneFree{Cause: err, Holders: map[string]string{}, RetryAfter: e.UntilFree, Position: e.Position}
	for _, h := range e.Holders {
		n.Holders[h.Key] = h.Account
	}
	return n
}

func seen(i client.LeaseInfo) leasetest.Held {
	return leasetest.Held{
		ID: i.ID, Pool: i.Pool, Key: i.Key, Target: i.Target, Account: i.Account, Holder: i.Holder, Fence: i.Fence,
		TTL: i.TTL.Duration(), Left: i.SecondsLeft.Duration(), Resetting: i.State == client.StateResetting, NeedsReset: i.NeedsReset,
		Ended: i.State != client.StateHeld && i.State != client.StateResetting,
	}
}

func (d *brokerDesk) Take(ctx context.Context, a leasetest.Ask) (leasetest.Held, error) {
	l, err := d.b.Take(ctx, a.Pool, client.TakeOptions{
		Holder: a.Holder, Target: a.Target, TTL: a.TTL, Wait: a.Wait, Constraints: a.Where, RunsHooks: a.RunsHooks, IdempotencyKey: a.IdempotencyKey,
	})
	if err != nil {
		return leasetest.Held{}, none(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leases[l.ID()+string(l.Secret())] = l
	h := seen(l.Info())
	h.Secret, h.Replayed = string(l.Secret()), l.Replayed()
	return h, nil
}

// lease is one that was taken here, or is resumed.
func (d *brokerDesk) lease(ctx context.Context, h leasetest.Held) (*broker.Lease, error) {
	d.mu.Lock()
	l := d.leases[h.ID+h.Secret]
	d.mu.Unlock()
	if l != nil {
		return l, nil
	}
	return d.b.Resume(ctx, h.ID, client.Secret(h.Secret))
}

func (d *brokerDesk) Renew(ctx context.Context, h leasetest.Held, n leasetest.Renewal) (leasetest.Held, error) {
	l, err := d.lease(ctx, h)
	if err != nil {
		return leasetest.Held{}, err
	}
	if err := l.Renew(ctx, client.RenewRequest{TTL: int64(n.TTL / time.Second), Fence: n.Fence, Reset: string(n.Reset)}); err != nil {
		return leasetest.Held{}, err
	}
	return seen(l.Info()), nil
}

func (d *brokerDesk) Release(ctx context.Context, h leasetest.Held, n leasetest.Return) (leasetest.Returned, error) {
	l, err := d.lease(ctx, h)
	if err != nil {
		return leasetest.Returned{}, err
	}
	done, err := l.Release(ctx, client.ReleaseRequest{
		Outcome: string(n.Outcome), Reason: n.Reason, Target: n.Target, Reset: string(n.Reset),
	})
	return leasetest.Returned{Disabled: done.Disabled, Capped: done.Capped}, err
}

func (d *brokerDesk) Lease(ctx context.Context, id string) (leasetest.Held, error) {
	i, err := d.b.Lease(ctx, id)
	return seen(i), err
}

func (d *brokerDesk) Pool(ctx context.Context, name string) (leasetest.View, error) {
	p, err := d.b.Pool(ctx, name)
	if err != nil {
		return leasetest.View{}, err
	}
	v := leasetest.View{Revision: p.Revision, Waiting: p.Waiting, States: map[string]lease.State{}}
	if p.Change != nil {
		v.Change = p.Change.Account
	}
	for _, k := range p.Members {
		v.States[k.Name] = lease.State(k.State)
	}
	return v, nil
}

// Publish goes through the client: a file's pool has fewer settings.
func (d *brokerDesk) Publish(ctx context.Context, p lease.Pool, items []string, revision *int64) (int64, error) {
	req := client.PublishRequest{Items: items, IfRevision: revision, PoolSettings: client.PoolSettings{
		TTL: client.SecondsOf(p.TTL), MaxTTL: client.SecondsOf(p.MaxTTL), Cooldown: client.SecondsOf(p.Cooldown), Scope: string(p.Scope),
		Hooks: client.Hooks{Check: p.Hooks.Check, Reset: p.Hooks.Reset},
	}}
	if p.Ban != (lease.Ban{}) {
		req.Ban = &client.BanCooldown{Initial: client.SecondsOf(p.Ban.Initial), Factor: p.Ban.Factor, Max: client.SecondsOf(p.Ban.Max)}
	}
	done, err := broker.ClientOf(d.b).Publish(ctx, p.Name, req)
	return done.Revision, classed(err)
}

func (d *brokerDesk) Disable(ctx context.Context, name, key, reason string) error {
	_, err := d.b.Disable(ctx, name, key, reason)
	return err
}

func (d *brokerDesk) Enable(ctx context.Context, name, key string) error {
	_, err := d.b.Enable(ctx, name, key)
	return err
}

func (d *brokerDesk) Force(ctx context.Context, name, key string) error {
	_, err := d.b.Force(ctx, name, key, client.ForceRequest{})
	return err
}

func (d *brokerDesk) BeginChange(ctx context.Context, name, verb string, keys []string, ttl time.Duration) (string, error) {
	ch, err := d.b.Begin(ctx, name, client.ChangeRequest{Verb: verb, Keys: keys, TTL: int64(ttl / time.Second)})
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes[ch.ID()] = ch
	return ch.ID(), nil
}

func (d *brokerDesk) change(id string) *broker.Change {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changes[id]
}

// RenewChange of another's change goes through the client: a broker has no way to.
func (d *brokerDesk) RenewChange(ctx context.Context, name, id string, ttl time.Duration) error {
	if ch := d.change(id); ch != nil {
		return ch.Renew(ctx)
	}
	_, err := broker.ClientOf(d.b).RenewChange(ctx, name, id, client.ChangeRenewal{TTL: int64(ttl / time.Second)})
	return classed(err)
}

// EndChange of another's change goes through the client, but where everybody is
// an admin, who may.
func (d *brokerDesk) EndChange(ctx context.Context, name, id string) error {
	if ch := d.change(id); ch != nil {
		return ch.End(ctx)
	}
	if d.b.Place().Server == "" {
		return fault.WithCode(fault.New(fault.Denied, "a broker ends its own changes alone"), "not_owner")
	}
	return classed(broker.ClientOf(d.b).EndChange(ctx, name, id))
}

// classed is a client's error with the class and code that the rules gave it.
func classed(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err
	}
	return fault.WithCode(fault.Wrap(fault.Class(e.Class), err), e.Code)
}
