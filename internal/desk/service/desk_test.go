package service_test

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/service"
)

// The service passes the suite of desks.
func TestDesk(t *testing.T) {
	leasetest.RunDesk(t, func(t *testing.T) leasetest.DeskHarness {
		m := leasetest.NewMemory(leasetest.Options{})
		s, _ := start(t, m, service.Limits{})
		as := func(account string) client { return client{s, account} }
		return leasetest.DeskHarness{
			As:      func(account string) leasetest.Desk { return as(account) },
			Admin:   func(account string) leasetest.Admin { return as(account) },
			Change:  func(account string) leasetest.Changer { return as(account) },
			Advance: m.Advance,
		}
	})
}

// client is the service as an account uses it.
type client struct {
	s       *service.Service
	account string
}

func (c client) Take(ctx context.Context, a leasetest.Ask) (leasetest.Held, error) {
	g, err := c.s.Take(ctx, service.TakeRequest{
		Account: c.account, Pool: a.Pool, Holder: a.Holder, Target: a.Target, Where: a.Where, TTL: a.TTL, Wait: a.Wait,
		IdempotencyKey: a.IdempotencyKey, RunsHooks: a.RunsHooks,
	})
	if err != nil {
		return leasetest.Held{}, noneOf(err)
	}
	h := seen(g.Lease)
	h.Secret, h.Replayed = g.Secret.Reveal(), g.Replayed
	return h, nil
}

// noneOf makes the suite's error of the service's.
func noneOf(err error) error {
	e, ok := errors.AsType[*service.NoneFree](err)
	if !ok {
		return err
	}
	none := &leasetest.NoneFree{Cause: err, Holders: map[string]string{}, RetryAfter: e.RetryAfter, Position: e.Position, Why: map[string]int{}}
	for _, h := range e.Holders {
		none.Holders[h.Key] = h.Account
	}
	for _, w := range e.Why {
		none.Why[w.Cause] += w.Count
	}
	return none
}

func seen(l service.Lease) leasetest.Held {
	return leasetest.Held{
		ID: l.ID, Pool: l.Pool, Key: l.Key, Target: l.Target, Account: l.Account, Holder: l.Holder, Fence: l.Fence, TTL: l.TTL, Left: l.Left,
		Resetting: l.State == lease.Resetting, NeedsReset: l.NeedsReset, Ended: l.End != "",
	}
}

func (c client) proof(h leasetest.Held) service.Proof {
	return service.Proof{ID: h.ID, Secret: service.NewSecret(h.Secret), Account: c.account}
}

func (c client) Renew(ctx context.Context, h leasetest.Held, r leasetest.Renewal) (leasetest.Held, error) {
	l, err := c.s.Renew(ctx, service.RenewRequest{Proof: c.proof(h), TTL: r.TTL, Fence: r.Fence, Reset: r.Reset})
	return seen(l), err
}

func (c client) Release(ctx context.Context, h leasetest.Held, r leasetest.Return) (leasetest.Returned, error) {
	out, err := c.s.Release(ctx, service.ReleaseRequest{Proof: c.proof(h), Outcome: r.Outcome, Reason: r.Reason, Target: r.Target, Reset: r.Reset})
	return leasetest.Returned{Disabled: out.Disabled, Capped: out.Capped}, err
}

func (c client) Lease(ctx context.Context, id string) (leasetest.Held, error) {
	l, err := c.s.Lease(ctx, id)
	return seen(l), err
}

func (c client) Pool(ctx context.Context, name string) (leasetest.View, error) {
	p, err := c.s.Pool(ctx, name)
	if err != nil {
		return leasetest.View{}, err
	}
	v := leasetest.View{Revision: p.Revision, Waiting: p.Waiting, States: map[string]lease.State{}}
	if p.Change != nil {
		v.Change = p.Change.Account
	}
	found, err := c.s.Keys(ctx, name, "", 1000)
	for _, k := range found.Keys {
		v.States[k.Name] = k.State(found.Now)
	}
	return v, err
}

func (c client) Publish(ctx context.Context, p lease.Pool, items []string, revision *int64) (int64, error) {
	p.By = c.account
	p, err := c.s.Publish(ctx, lease.Publish{Pool: p, Items: items, If: revision})
	return p.Revision, err
}

func (c client) Disable(ctx context.Context, _, key, reason string) error {
	_, _, err := c.s.Disable(ctx, lease.Disable{Key: key, Reason: reason, By: c.account})
	return err
}

func (c client) Enable(ctx context.Context, _, key string) error {
	_, _, err := c.s.Enable(ctx, lease.Enable{Key: key, By: c.account})
	return err
}

func (c client) Force(ctx context.Context, _, key string) error {
	_, _, err := c.s.Force(ctx, lease.Force{Key: key, By: c.account})
	return err
}

func (c client) BeginChange(ctx context.Context, pool, verb string, keys []string, ttl time.Duration) (string, error) {
	ch, _, err := c.s.BeginChange(ctx, lease.BeginChange{ID: rand.Text(), Pool: pool, Verb: verb, Keys: keys, Account: c.account, TTL: ttl})
	return ch.ID, err
}

func (c client) RenewChange(ctx context.Context, pool, id string, ttl time.Duration) error {
	_, _, err := c.s.RenewChange(ctx, lease.RenewChange{Pool: pool, ID: id, Account: c.account, TTL: ttl})
	return err
}

func (c client) EndChange(ctx context.Context, pool, id string) error {
	_, _, err := c.s.EndChange(ctx, lease.EndChange{Pool: pool, ID: id, Account: c.account})
	return err
}
