package api_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
)

// deskClient is a desk seen through the API by the Go client.
type deskClient struct{ c *client.Client }

// rebuilt is a client's error with the class and the code of the rules.
func rebuilt(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err
	}
	out := fault.WithCode(fault.Wrap(fault.Class(e.Class), err), e.Code)
	if e.Code != "none_free" {
		return out
	}
	none := &leasetest.NoneFree{Cause: out, Holders: map[string]string{}, RetryAfter: e.UntilFree, Position: e.Position, Why: map[string]int{}}
	for _, w := range e.Why {
		none.Why[w.Cause] += w.Count
	}
	for _, h := range e.Holders {
		none.Holders[h.Key] = h.Account
	}
	return none
}

func seen(i client.LeaseInfo) leasetest.Held {
	return leasetest.Held{
		ID: i.ID, Pool: i.Pool, Key: i.Key, Target: i.Target, Account: i.Account, Holder: i.Holder, Fence: i.Fence,
		TTL: i.TTL.Duration(), Left: i.SecondsLeft.Duration(), Resetting: i.State == client.StateResetting, NeedsReset: i.NeedsReset,
		Ended: i.State != client.StateHeld && i.State != client.StateResetting,
	}
}

func (r deskClient) Take(ctx context.Context, a leasetest.Ask) (leasetest.Held, error) {
	l, err := r.c.Take(ctx, a.Pool, client.TakeOptions{
		Holder: a.Holder, Target: a.Target, TTL: a.TTL, Wait: a.Wait, Constraints: a.Where, RunsHooks: a.RunsHooks, IdempotencyKey: a.IdempotencyKey,
	})
	if err != nil {
		return leasetest.Held{}, rebuilt(err)
	}
	h := seen(l.Info())
	h.Secret, h.Replayed = string(l.Secret()), l.Replayed()
	return h, nil
}

func (r deskClient) Renew(ctx context.Context, h leasetest.Held, n leasetest.Renewal) (leasetest.Held, error) {
	i, err := r.c.RenewLease(ctx, h.ID, client.Secret(h.Secret), client.RenewRequest{TTL: int64(n.TTL / time.Second), Fence: n.Fence, Reset: string(n.Reset)})
	return seen(i), rebuilt(err)
}

func (r deskClient) Release(ctx context.Context, h leasetest.Held, n leasetest.Return) (leasetest.Returned, error) {
	d, err := r.c.ReleaseLease(ctx, h.ID, client.Secret(h.Secret), client.ReleaseRequest{
		Outcome: string(n.Outcome), Reason: n.Reason, Target: n.Target, Reset: string(n.Reset),
	})
	return leasetest.Returned{Disabled: d.Disabled, Capped: d.Capped}, rebuilt(err)
}

func (r deskClient) Lease(ctx context.Context, id string) (leasetest.Held, error) {
	i, err := r.c.LeaseInfo(ctx, id)
	return seen(i), rebuilt(err)
}

func (r deskClient) Pool(ctx context.Context, name string) (leasetest.View, error) {
	p, err := r.c.Pool(ctx, name, client.Page{})
	if err != nil {
		return leasetest.View{}, rebuilt(err)
	}
	v := leasetest.View{Revision: p.Revision, Waiting: p.Waiting, States: map[string]lease.State{}}
	if p.Change != nil {
		v.Change = p.Change.Account
	}
	for k, err := range r.c.PoolKeys(ctx, name) {
		if err != nil {
			return v, rebuilt(err)
		}
		v.States[k.Name] = lease.State(k.State)
	}
	return v, nil
}

func (r deskClient) Publish(ctx context.Context, p lease.Pool, items []string, revision *int64) (int64, error) {
	req := client.PublishRequest{Items: items, IfRevision: revision, PoolSettings: client.PoolSettings{
		TTL: client.SecondsOf(p.TTL), MaxTTL: client.SecondsOf(p.MaxTTL), Cooldown: client.SecondsOf(p.Cooldown), Scope: string(p.Scope),
		Hooks: client.Hooks{Check: p.Hooks.Check, Reset: p.Hooks.Reset},
	}}
	if p.Ban != (lease.Ban{}) {
		req.Ban = &client.BanCooldown{Initial: client.SecondsOf(p.Ban.Initial), Factor: p.Ban.Factor, Max: client.SecondsOf(p.Ban.Max)}
	}
	done, err := r.c.Publish(ctx, p.Name, req)
	return done.Revision, rebuilt(err)
}

func (r deskClient) Disable(ctx context.Context, pool, key, reason string) error {
	_, err := r.c.Disable(ctx, pool, key, client.DisableRequest{Reason: reason})
	return rebuilt(err)
}

func (r deskClient) Enable(ctx context.Context, pool, key string) error {
	_, err := r.c.Enable(ctx, pool, key)
	return rebuilt(err)
}

func (r deskClient) Force(ctx context.Context, pool, key string) error {
	_, err := r.c.ForceRelease(ctx, pool, key, client.ForceRequest{})
	return rebuilt(err)
}

func (r deskClient) BeginChange(ctx context.Context, pool, verb string, keys []string, ttl time.Duration) (string, error) {
	ch, err := r.c.BeginChange(ctx, pool, client.ChangeRequest{Verb: verb, Keys: keys, TTL: int64(ttl / time.Second)})
	return ch.ID, rebuilt(err)
}

func (r deskClient) RenewChange(ctx context.Context, pool, id string, ttl time.Duration) error {
	_, err := r.c.RenewChange(ctx, pool, id, client.ChangeRenewal{TTL: int64(ttl / time.Second)})
	return rebuilt(err)
}

func (r deskClient) EndChange(ctx context.Context, pool, id string) error {
	return rebuilt(r.c.EndChange(ctx, pool, id))
}

// harness serves the store, and speaks to it as each of the suite's accounts.
func harness(t *testing.T, store lease.Store, advance func(time.Duration)) leasetest.DeskHarness {
	_, as := suiteDesk(t, store, func(*api.Options) {})
	return leasetest.DeskHarness{
		As:      func(account string) leasetest.Desk { return as(account) },
		Admin:   func(account string) leasetest.Admin { return as(account) },
		Change:  func(account string) leasetest.Changer { return as(account) },
		Advance: advance,
	}
}

// The API through its client keeps what a desk promises.
func TestDeskSuite(t *testing.T) {
	leasetest.RunDesk(t, func(t *testing.T) leasetest.DeskHarness {
		m := leasetest.NewMemory(leasetest.Options{})
		return harness(t, m, m.Advance)
	})
}
