package leasetest_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

// plainDesk is the least that a desk needs over a store: it asks again and
// again while it waits.
type plainDesk struct {
	store   lease.Store
	account string
	n       *atomic.Int64
}

func (d plainDesk) do(ctx context.Context, op lease.Op) (lease.Result, error) {
	all, err := d.store.Do(ctx, []lease.Op{op})
	if err != nil {
		return lease.Result{}, err
	}
	return all[0], all[0].Err
}

func (d plainDesk) Take(ctx context.Context, a leasetest.Ask) (leasetest.Held, error) {
	key := a.IdempotencyKey
	if key == "" {
		key = fmt.Sprint("own ", d.n.Add(1))
	}
	secret := lease.Secret([]byte("root"), d.account, key)
	op := lease.Take{
		Ticket: lease.TicketID(d.account, key), Digest: fmt.Sprint(a.Pool, a.Holder, a.Target, a.Where, a.TTL), Keep: a.IdempotencyKey != "",
		Pool: a.Pool, Target: a.Target, Account: d.account, Holder: a.Holder, Where: a.Where, Secret: lease.HashOf(secret), TTL: a.TTL,
		RunsHooks: a.RunsHooks, Wait: a.Wait > 0,
	}
	over := time.NewTimer(a.Wait)
	defer over.Stop()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		res, err := d.do(ctx, op)
		switch {
		case ctx.Err() != nil:
			_, _ = d.do(context.WithoutCancel(ctx), lease.Leave{Ticket: op.Ticket})
			return leasetest.Held{}, ctx.Err()
		case err != nil:
			return leasetest.Held{}, err
		case res.Busy == nil:
			h := held(*res.Key, res.Now)
			h.Secret, h.Replayed = secret, res.Replayed
			return h, nil
		case !op.Wait:
			return leasetest.Held{}, none(res)
		}
		select {
		case <-ctx.Done(): // the next Do says so
		case <-over.C:
			if _, err := d.do(ctx, lease.Leave{Ticket: op.Ticket}); err != nil {
				return leasetest.Held{}, err
			}
			return leasetest.Held{}, none(res)
		case <-again.C:
		}
	}
}

func none(res lease.Result) error {
	e := &leasetest.NoneFree{Holders: map[string]string{}, Position: res.Busy.Position}
	var text []string
	for _, k := range res.Busy.Next {
		e.Holders[k.Name] = k.Lease.Account
		text = append(text, k.Name+" is held by "+k.Lease.Account)
	}
	if !res.Busy.Due.IsZero() {
		e.RetryAfter = res.Busy.Due.Sub(res.Now)
	}
	e.Cause = fault.WithCode(fault.New(fault.Quota, strings.Join(text, ", ")), "none_free")
	return e
}

func held(k lease.Key, now time.Time) leasetest.Held {
	l := k.Lease
	h := leasetest.Held{
		ID: k.ID().String(), Pool: l.Pool, Key: k.Name, Target: l.Target, Account: l.Account, Holder: l.Holder, Fence: l.Fence, TTL: l.TTL,
		Resetting: l.Resetting, NeedsReset: k.NeedsReset, Ended: l.End != "",
	}
	if !h.Ended {
		h.Left = l.Expires.Sub(now)
	}
	return h
}

func (d plainDesk) proof(h leasetest.Held) (lease.Proof, error) {
	id, err := lease.ParseID(h.ID)
	return lease.Proof{ID: id, Secret: lease.HashOf(h.Secret), Account: d.account}, err
}

func (d plainDesk) Renew(ctx context.Context, h leasetest.Held, r leasetest.Renewal) (leasetest.Held, error) {
	proof, err := d.proof(h)
	if err != nil {
		return leasetest.Held{}, err
	}
	res, err := d.do(ctx, lease.Renew{Proof: proof, TTL: r.TTL, Fence: r.Fence, Reset: r.Reset})
	if err != nil {
		return leasetest.Held{}, err
	}
	return held(*res.Key, res.Now), nil
}

func (d plainDesk) Release(ctx context.Context, h leasetest.Held, r leasetest.Return) (leasetest.Returned, error) {
	proof, err := d.proof(h)
	if err != nil {
		return leasetest.Returned{}, err
	}
	res, err := d.do(ctx, lease.Release{Proof: proof, Outcome: r.Outcome, Reason: r.Reason, Target: r.Target, Reset: r.Reset})
	if err != nil {
		return leasetest.Returned{}, err
	}
	return leasetest.Returned{Disabled: res.Key.Disabled != nil, Capped: res.Capped}, nil
}

func (d plainDesk) Lease(ctx context.Context, text string) (leasetest.Held, error) {
	missing := fault.WithCode(fault.New(fault.NotFound, "there is no such lease"), "lease")
	id, err := lease.ParseID(text)
	if err != nil {
		return leasetest.Held{}, err
	}
	keys, err := d.store.Key(ctx, id.Key)
	switch {
	case fault.Of(err) == fault.NotFound:
		return leasetest.Held{}, missing
	case err != nil:
		return leasetest.Held{}, err
	}
	k := keys.Keys[0].Settle(keys.Now)
	if k.Lease == nil || k.Lease.Fence != id.Fence {
		return leasetest.Held{}, missing
	}
	return held(k, keys.Now), nil
}

func (d plainDesk) Pool(ctx context.Context, name string) (leasetest.View, error) {
	s, err := d.store.Pool(ctx, name)
	if err != nil {
		return leasetest.View{}, err
	}
	v := leasetest.View{Revision: s.Revision, Waiting: s.Waiting, States: map[string]lease.State{}}
	if s.Change != nil {
		v.Change = s.Change.Account
	}
	keys, err := d.store.Keys(ctx, name, "", 1000)
	for _, k := range keys.Keys {
		v.States[k.Name] = k.State(keys.Now)
	}
	return v, err
}

func (d plainDesk) Publish(ctx context.Context, p lease.Pool, items []string, revision *int64) (int64, error) {
	p.By = d.account
	res, err := d.do(ctx, lease.Publish{Pool: p, Items: items, If: revision})
	if err != nil {
		return 0, err
	}
	return res.Pool.Revision, nil
}

func (d plainDesk) Disable(ctx context.Context, _, key, reason string) error {
	_, err := d.do(ctx, lease.Disable{Key: key, Reason: reason, By: d.account})
	return err
}

func (d plainDesk) Enable(ctx context.Context, _, key string) error {
	_, err := d.do(ctx, lease.Enable{Key: key, By: d.account})
	return err
}

func (d plainDesk) Force(ctx context.Context, _, key string) error {
	_, err := d.do(ctx, lease.Force{Key: key, By: d.account})
	return err
}

func (d plainDesk) BeginChange(ctx context.Context, pool, verb string, keys []string, ttl time.Duration) (string, error) {
	id := fmt.Sprint("change ", d.n.Add(1))
	_, err := d.do(ctx, lease.BeginChange{ID: id, Pool: pool, Verb: verb, Keys: keys, Account: d.account, TTL: ttl})
	return id, err
}

func (d plainDesk) RenewChange(ctx context.Context, pool, id string, ttl time.Duration) error {
	_, err := d.do(ctx, lease.RenewChange{Pool: pool, ID: id, Account: d.account, TTL: ttl})
	return err
}

func (d plainDesk) EndChange(ctx context.Context, pool, id string) error {
	_, err := d.do(ctx, lease.EndChange{Pool: pool, ID: id, Account: d.account})
	return err
}

func TestDesk(t *testing.T) {
	leasetest.RunDesk(t, func(*testing.T) leasetest.DeskHarness {
		m := leasetest.NewMemory(leasetest.Options{})
		n := &atomic.Int64{}
		as := func(account string) plainDesk { return plainDesk{m, account, n} }
		return leasetest.DeskHarness{
			As:      func(account string) leasetest.Desk { return as(account) },
			Admin:   func(account string) leasetest.Admin { return as(account) },
			Change:  func(account string) leasetest.Changer { return as(account) },
			Advance: m.Advance,
		}
	})
}
