package service_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
)

func TestTakeRenewRelease(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		ctx := t.Context()
		g, err := s.Take(ctx, service.TakeRequest{Account: "ann", Pool: "p", Holder: "job 7", Target: "example.com", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		want := service.Lease{
			ID: lease.ID{Key: "a", Fence: g.Fence}.String(), Pool: "p", Key: "a", Target: "example.com", Account: "ann", Holder: "job 7",
			Fence: g.Fence, State: lease.Held, TTL: time.Minute, Left: time.Minute,
		}
		if diff := cmp.Diff(want, g.Lease); diff != "" || g.Replayed {
			t.Fatalf("the grant differs (-want +got):\n%s", diff)
		}
		store.Advance(20 * time.Second)
		got, err := s.Lease(ctx, g.ID)
		want.Left = 40 * time.Second
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Fatalf("looking at it: %v (-want +got):\n%s", err, diff)
		}
		got, err = s.Renew(ctx, service.RenewRequest{Proof: proof(g), TTL: 2 * time.Minute, Fence: g.Fence})
		want.TTL, want.Left = 2*time.Minute, 2*time.Minute
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Fatalf("renewing it: %v (-want +got):\n%s", err, diff)
		}
		for range 2 { // twice is harmless
			r, err := s.Release(ctx, service.ReleaseRequest{Proof: proof(g)})
			if diff := cmp.Diff(service.Released{ID: g.ID, Key: "a"}, r); diff != "" || err != nil {
				t.Fatalf("releasing it: %v (-want +got):\n%s", err, diff)
			}
		}
		if got, err = s.Lease(ctx, g.ID); err != nil || got.End != lease.Released || got.State != "" || got.Left != 0 {
			t.Fatalf("afterwards it is %+v, %v", got, err)
		}
		release(t, s, take(t, s))
		if got, err = s.Lease(ctx, g.ID); err != nil || got.End != lease.Released || got.Key != "a" {
			t.Fatalf("after the next lease it is %+v, %v", got, err)
		}
		_, err = s.Lease(ctx, "a~999")
		wantCode(t, err, fault.NotFound, "lease")
	})
}

// Every refusal that the rules or the service make reaches the caller with its
// class and code.
func TestCodes(t *testing.T) {
	bubble(t, []string{"a", "b"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		ctx := t.Context()
		if _, err := s.Publish(ctx, lease.Publish{Pool: lease.Pool{Name: "hooked", Hooks: lease.Hooks{Check: true}}, Items: []string{"h"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Publish(ctx, lease.Publish{Pool: lease.Pool{Name: "empty"}}); err != nil {
			t.Fatal(err)
		}
		held := take(t, s)
		over := take(t, s)
		release(t, s, over)
		kept := service.TakeRequest{Account: "ann", Pool: "p", IdempotencyKey: "k"}
		forced, err := s.Take(ctx, kept)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Force(ctx, lease.Force{Key: forced.Key, By: "root"}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.BeginChange(ctx, lease.BeginChange{ID: "c1", Pool: "empty", Verb: "add", Account: "ann", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		epoch, err := s.Do(ctx, lease.OpenEpoch{Owner: "x"})
		if err != nil {
			t.Fatal(err)
		}
		with := func(change func(p *service.Proof)) service.Proof {
			p := proof(held)
			change(&p)
			return p
		}
		one := int64(1)
		for name, tc := range map[string]struct {
			reason string
			call   func() error
			class  fault.Class
			code   string
		}{
			"wait too long":     {"clients loop", func() error { return takeErr(t, s, service.TakeRequest{Pool: "p", Wait: time.Hour}) }, fault.Invalid, "wait"},
			"wait negative":     {"a mistake", func() error { return takeErr(t, s, service.TakeRequest{Pool: "p", Wait: -1}) }, fault.Invalid, "wait"},
			"key too long":      {"bounded", func() error { return takeErr(t, s, service.TakeRequest{Pool: "p", IdempotencyKey: long(256)}) }, fault.Invalid, "idempotency_key"},
			"key not printable": {"headers are text", func() error { return takeErr(t, s, service.TakeRequest{Pool: "p", IdempotencyKey: "a\tb"}) }, fault.Invalid, "idempotency_key"},
			"key not ASCII":     {"headers are ASCII", func() error { return takeErr(t, s, service.TakeRequest{Pool: "p", IdempotencyKey: "ä"}) }, fault.Invalid, "idempotency_key"},
			"no such pool":      {"named", func() error { return takeErr(t, s, service.TakeRequest{Pool: "q"}) }, fault.NotFound, "pool"},
			"no pool's name":    {"refused before the database", func() error { return takeErr(t, s, service.TakeRequest{Pool: "../x"}) }, fault.Invalid, "name"},
			"ttl":               {"refused, not clamped", func() error { return takeErr(t, s, service.TakeRequest{Pool: "p", TTL: time.Second}) }, fault.Invalid, "ttl"},
			"text":              {"control characters", func() error { return takeErr(t, s, service.TakeRequest{Pool: "p", Holder: "a\nb"}) }, fault.Invalid, "text"},
			"hooks":             {"a raw take would skip them", func() error { return takeErr(t, s, service.TakeRequest{Pool: "hooked"}) }, fault.Invalid, "hooks"},
			"constraints": {"bounded", func() error {
				return takeErr(t, s, service.TakeRequest{Pool: "p", Where: map[string]string{"": "x"}})
			}, fault.Invalid, "constraints"},
			"nothing free": {"its own error", func() error { return takeErr(t, s, service.TakeRequest{Pool: "empty"}) }, fault.Quota, "none_free"},
			"another request": {"one Idempotency-Key, two requests", func() error {
				return takeErr(t, s, service.TakeRequest{Pool: "p", IdempotencyKey: "k", Target: "example.com"})
			}, fault.Conflict, "idempotency"},
			"replay of an end": {"a grant that was forced away", func() error { _, err := s.Take(ctx, kept); return err }, fault.Conflict, "lease_forced"},

			"no lease's id":  {"a path", func() error { _, err := s.Lease(ctx, "x"); return err }, fault.NotFound, "lease"},
			"no lease's key": {"looked up", func() error { _, err := s.Lease(ctx, "zz~1"); return err }, fault.NotFound, "lease"},
			"renew unknown": {"a path", func() error {
				_, err := s.Renew(ctx, service.RenewRequest{Proof: service.Proof{ID: "x"}})
				return err
			}, fault.NotFound, "lease"},
			"wrong secret": {"a stale owner", func() error {
				_, err := s.Renew(ctx, service.RenewRequest{Proof: with(func(p *service.Proof) { p.Secret = service.NewSecret("x") })})
				return err
			}, fault.Denied, "secret"},
			"not the owner": {"another account", func() error {
				_, err := s.Release(ctx, service.ReleaseRequest{Proof: with(func(p *service.Proof) { p.Account = "bob" })})
				return err
			}, fault.Denied, "not_owner"},
			"renew released": {"it is over", func() error { _, err := s.Renew(ctx, service.RenewRequest{Proof: proof(over)}); return err }, fault.Conflict, "lease_released"},
			"fence": {"another lease was meant", func() error {
				_, err := s.Renew(ctx, service.RenewRequest{Proof: proof(held), Fence: 999})
				return err
			}, fault.Conflict, "fence"},
			"reset": {"no such word", func() error {
				_, err := s.Renew(ctx, service.RenewRequest{Proof: proof(held), Reset: "x"})
				return err
			}, fault.Invalid, "reset"},
			"outcome": {"no such word", func() error {
				_, err := s.Release(ctx, service.ReleaseRequest{Proof: proof(held), Outcome: "x"})
				return err
			}, fault.Invalid, "outcome"},
			"banned by whom": {"a ban is about a site", func() error {
				_, err := s.Release(ctx, service.ReleaseRequest{Proof: proof(held), Outcome: lease.Banned})
				return err
			}, fault.Invalid, "target"},
			"no such key":    {"named", func() error { _, _, err := s.Disable(ctx, lease.Disable{Key: "zz"}); return err }, fault.NotFound, "key"},
			"enable unknown": {"named", func() error { _, _, err := s.Enable(ctx, lease.Enable{Key: "zz"}); return err }, fault.NotFound, "key"},
			"not held":       {"nothing to end", func() error { _, _, err := s.Force(ctx, lease.Force{Key: over.Key}); return err }, fault.Conflict, "not_held"},
			"revision": {"somebody was faster", func() error {
				_, err := s.Publish(ctx, lease.Publish{Pool: lease.Pool{Name: "p"}, If: &[]int64{7}[0]})
				return err
			}, fault.Conflict, "revision"},
			"publish new": {"there is one", func() error {
				_, err := s.Publish(ctx, lease.Publish{Pool: lease.Pool{Name: "empty", Kind: lease.Fixed}, Items: []string{"x", "x"}, If: &one})
				return err
			}, fault.Invalid, "key"},
			"change": {"one at a time", func() error {
				ch, _, err := s.BeginChange(ctx, lease.BeginChange{ID: "c2", Pool: "empty", Verb: "add", Account: "bob", TTL: time.Minute})
				if ch.ID != "c1" {
					t.Errorf("the change under way is not told: %+v", ch)
				}
				return err
			}, fault.Conflict, "change"},
			"held": {"a person would change a key in use", func() error {
				_, _, err := s.BeginChange(ctx, lease.BeginChange{ID: "c3", Pool: "p", Verb: "remove", Keys: []string{held.Key}, Account: "ann", TTL: time.Minute})
				return err
			}, fault.Conflict, "held"},
			"report": {"no such key", func() error {
				_, err := s.Report(ctx, service.ReportRequest{Account: "ann", Key: "zz", Pool: "p", Outcome: lease.OK})
				return err
			}, fault.NotFound, "key"},
			"lift": {"no such key", func() error { return s.Lift(ctx, lease.Lift{Key: "zz"}) }, fault.NotFound, "key"},
			"epoch": {"an old controller", func() error {
				rs, err := s.Do(ctx, lease.PutKey{Epoch: epoch[0].Epoch - 1, Key: "m", UID: "u"})
				return errors.Join(err, rs[0].Err)
			}, fault.Conflict, "epoch"},
			"pool unknown": {"read", func() error { _, err := s.Pool(ctx, "q"); return err }, fault.NotFound, "pool"},
			"keys unknown": {"read", func() error { _, err := s.Keys(ctx, "q", "", 9); return err }, fault.NotFound, "pool"},
			"key unknown":  {"read", func() error { _, err := s.Key(ctx, "zz"); return err }, fault.NotFound, "key"},
		} {
			if err := tc.call(); fault.Of(err) != tc.class || fault.CodeOf(err) != tc.code {
				t.Errorf("%s: %s: got %v (%s, code %q), want %s with the code %q", name, tc.reason, err, fault.Of(err), fault.CodeOf(err), tc.class, tc.code)
			}
		}
	})
}

func takeErr(t *testing.T, s *service.Service, r service.TakeRequest) error {
	t.Helper()
	r.Account = "ann"
	_, err := s.Take(t.Context(), r)
	return err
}

func long(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'x'
	}
	return string(b)
}
