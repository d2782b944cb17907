package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/service"
)

// The service keeps what crawlers are promised.
func TestPicks(t *testing.T) {
	leasetest.RunPicks(t, func(t *testing.T) leasetest.PickHarness {
		m := leasetest.NewMemory(leasetest.Options{})
		s, _ := start(t, m, service.Limits{})
		return leasetest.PickHarness{
			DeskHarness: leasetest.DeskHarness{As: func(account string) leasetest.Desk { return client{s, account} }, Advance: m.Advance},
			Pick:        func(account string) leasetest.Picker { return picker{client{s, account}} },
			Do:          s.Do,
		}
	})
}

// picker is the service as a crawler uses it.
type picker struct{ client }

func (p picker) request(q leasetest.Query) service.PickRequest {
	r := service.PickRequest{Account: p.account, Pool: q.Pool, Target: q.Target, Holder: q.Holder, Where: q.Where}
	if q.Scheme != "" {
		r.Match = []lease.Match{{Attribute: "protocol", Op: lease.In, Values: []string{q.Scheme}}}
	}
	return r
}

func picked(p service.Pick) leasetest.Picked {
	return leasetest.Picked{
		Use: p.Use.String(), Key: p.Key, Pool: p.Pool, Target: p.Target, ExitIP: p.ExitIP, Attributes: p.Attributes, Rested: p.Rested,
	}
}

func (p picker) Next(ctx context.Context, q leasetest.Query) (leasetest.Picked, error) {
	got, err := p.s.Next(ctx, p.request(q))
	if err != nil {
		return leasetest.Picked{}, noneOf(err)
	}
	return picked(got), nil
}

func (p picker) Report(ctx context.Context, u leasetest.Usage) (leasetest.Told, error) {
	r := service.ReportRequest{Account: p.account, Key: u.Key, Pool: u.Pool, Target: u.Target, Outcome: u.Outcome}
	if r.Leased = u.Lease != ""; u.Use+u.Lease != "" {
		id := u.Use + u.Lease
		var err error
		if r.Use, err = lease.ParseID(id); err != nil {
			return leasetest.Told{}, err
		}
	}
	if u.Replace != nil {
		next := p.request(*u.Replace)
		r.Replace = &next
	}
	done, err := p.s.Report(ctx, r)
	if err != nil {
		return leasetest.Told{}, err
	}
	told := leasetest.Told{Rest: done.Rest, Strikes: done.Strikes}
	if done.Replacement != nil {
		one := picked(*done.Replacement)
		told.Replacement = &one
	}
	if done.Without != nil {
		told.Without = fault.CodeOf(done.Without)
	}
	return told, nil
}

func (p picker) Rests(ctx context.Context, key string) ([]leasetest.Rest, error) {
	keys, err := p.s.Key(ctx, key)
	if err != nil {
		return nil, err
	}
	var rests []leasetest.Rest
	all, err := p.s.Cooldowns(ctx, key, "", 100)
	for _, c := range all {
		rests = append(rests, leasetest.Rest{
			Target: c.Target, Banned: keys.Now.Before(c.BannedUntil), Left: c.Until.Sub(keys.Now), Strikes: c.Strikes, Scope: c.Scope,
		})
	}
	return rests, err
}

func (p picker) Lift(ctx context.Context, key, target string) error {
	return p.s.Lift(ctx, lease.Lift{Key: key, Target: target})
}

// Who waits for something else does not stand in the way of who can use what
// comes free, also when it is the same attribute that they ask about.
func TestWaitersByConditions(t *testing.T) {
	bubble(t, nil, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		epoch, err := s.Do(t.Context(), lease.OpenEpoch{Owner: "test"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(t.Context(),
			lease.PutPool{Epoch: epoch[0].Epoch, Pool: lease.Pool{Name: "m"}},
			lease.PutKey{Epoch: epoch[0].Epoch, Key: "m.a", UID: "u", Pools: []string{"m"}, Attributes: map[string]string{"tier": "eu"}},
		); err != nil {
			t.Fatal(err)
		}
		held, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "m"})
		if err != nil {
			t.Fatal(err)
		}
		a := newAsker(s)
		for _, op := range []lease.MatchOp{lease.NotIn, lease.In} {
			a.take(t.Context(), string(op), service.TakeRequest{
				Pool: "m", Wait: time.Minute, Match: []lease.Match{{Attribute: "tier", Op: op, Values: []string{"eu"}}},
			})
			synctest.Wait()
		}
		began := time.Now()
		release(t, s, held)
		if got := a.next(t); got.id != string(lease.In) || got.err != nil || time.Since(began) > 100*time.Millisecond {
			t.Errorf("after %s %s got %v", time.Since(began), got.id, got.err)
		}
		if got := a.next(t); got.id != string(lease.NotIn) || fault.CodeOf(got.err) != "none_free" {
			t.Errorf("%s got %v", got.id, got.err)
		}
	})
}

// A request for which a large pool is looked through in several transactions is told
// what the last of them finds, whatever kind of request it is.
func TestLooksToTheEnd(t *testing.T) {
	const keys = 3*lease.MaxMoves + 100
	for name, left := range map[string]bool{"none is left": false, "the last one is left": true} {
		t.Run(name, func(t *testing.T) {
			m := leasetest.NewMemory(leasetest.Options{})
			s, _ := start(t, m, service.Limits{})
			ops := []lease.Op{lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{
				Name: "m", Ban: lease.Ban{Initial: 24 * time.Hour, Factor: 1, Max: 24 * time.Hour},
			}}}
			targets := []string{"next.example", "report.example", "lease.example"}
			for i := range keys {
				k := fmt.Sprintf("m%05d", i)
				ops = append(ops, lease.PutKey{Epoch: 1, Key: k, UID: "1", Pools: []string{"m"}})
				for _, target := range targets {
					if !left || i < keys-1 {
						ops = append(ops, lease.Report{Key: k, Pool: "m", Target: target, Outcome: lease.Banned})
					}
				}
			}
			if _, err := m.Do(t.Context(), ops); err != nil {
				t.Fatal(err)
			}
			told := func(what, key string, err error) {
				none, isNone := errors.AsType[*service.NoneFree](err)
				last := fmt.Sprintf("m%05d", keys-1)
				if left && (err != nil || key != last) || !left && (!isNone || none.RetryAfter < 23*time.Hour) {
					t.Errorf("%s got %q, %v", what, key, err)
				}
			}
			p, err := s.Next(t.Context(), service.PickRequest{Account: "ann", Pool: "m", Target: targets[0]})
			told("a pick", p.Key, err)
			r, err := s.Report(t.Context(), service.ReportRequest{
				Account: "ann", Pool: "m", Key: "m00000", Target: targets[1], Outcome: lease.Banned,
				Replace: &service.PickRequest{Account: "ann", Pool: "m", Target: targets[1]},
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Replacement == nil {
				r.Replacement = &service.Pick{}
			}
			told("a replacement", r.Replacement.Key, r.Without)
			g, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "m", Target: targets[2]})
			told("a lease", g.Key, err)
		})
	}
}
