package brokertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
)

func takeTold(r *run) {
	r.publish(of("win", "win-01"))
	l := r.take(r.ann(), "win", client.TakeOptions{Holder: "nightly 4711", Target: "example.com", TTL: 90 * time.Second})
	i := l.Info()
	if i.Pool != "win" || i.Key != "win-01" || i.Target != "example.com" || i.Account != "ann" || i.Holder != "nightly 4711" || i.State != client.StateHeld {
		r.Errorf("the taker is told %+v", i)
	}
	if want := fmt.Sprintf("win-01~%d", l.Fence()); l.ID() != want || l.Key() != "win-01" || i.Fence != l.Fence() || l.Fence() < 1 {
		r.Errorf("the lease is %s of %s with fence %d", l.ID(), l.Key(), l.Fence())
	}
	if left := l.Left(); left <= 80*time.Second || left > 90*time.Second || i.TTL.Duration() != 90*time.Second {
		r.Errorf("%v are left", left)
	}
	secret := string(l.Secret())
	if len(secret) < 16 {
		r.Fatalf("the secret has %d bytes", len(secret))
	}
	if shown := fmt.Sprintf("%s %v %+v", l, l, l); !strings.Contains(shown, l.ID()) || strings.Contains(shown, secret) {
		r.Errorf("printed it is %s", shown)
	}
	seen, err := r.bob().Lease(r.ctx, l.ID())
	r.must("another's look", err)
	if seen.SecondsLeft > i.SecondsLeft || seen.SecondsLeft <= 0 {
		r.Errorf("another sees %v seconds left, the taker %v", seen.SecondsLeft, i.SecondsLeft)
	}
	seen.SecondsLeft = i.SecondsLeft
	if a, b := fmt.Sprintf("%+v", seen), fmt.Sprintf("%+v", i); a != b {
		r.Errorf("another sees %s, the taker %s", a, b)
	}
	k := r.key("win", "win-01")
	if k.State != client.StateHeld || k.Lease == nil || k.Lease.ID != l.ID() || k.Lease.Account != "ann" || k.Lease.Holder != "nightly 4711" || k.Lease.Pool != "win" {
		r.Fatalf("the key is shown as %+v with %+v", k, k.Lease)
	}
	if since := time.Since(k.Lease.Taken); since < -5*time.Second || since > time.Minute {
		r.Errorf("it was taken %v ago", since)
	}
	if p := r.view("win"); p.Keys != 1 || p.Held != 1 || p.Free != 0 {
		r.Errorf("the pool is shown as %+v", p.PoolStatus)
	}
	r.release(l, client.ReleaseRequest{})
	if seen, err := r.bob().Lease(r.ctx, l.ID()); err != nil || seen.State != client.StateReleased || seen.SecondsLeft != 0 {
		r.Errorf("after its end: %+v, %v", seen, err)
	}
	for _, id := range []string{"win-01", "win-01~9999", "none~1"} {
		_, err := r.bob().Lease(r.ctx, id)
		r.fault("Lease "+id, err, fault.NotFound, "lease")
	}
}

func takeNone(r *run) {
	r.publish(of("win", "a", "b"))
	r.take(r.ann(), "win", client.TakeOptions{Holder: "job 1", TTL: 30 * time.Second})
	r.take(r.bob(), "win", client.TakeOptions{Holder: "job 2", TTL: 60 * time.Second})
	began := time.Now()
	e := r.noneFree(r.ann(), "win", client.TakeOptions{})
	if took := time.Since(began); took > 5*time.Second {
		r.Errorf("without wait it took %v", took)
	}
	got := map[string]string{}
	for _, h := range e.Holders {
		got[h.Key] = h.Account + "/" + h.Holder + "/" + h.State
	}
	if len(got) != 2 || got["a"] != "ann/job 1/held" || got["b"] != "bob/job 2/held" {
		r.Errorf("the holders are %v", got)
	}
	if e.UntilFree <= 20*time.Second || e.UntilFree > 31*time.Second || e.Position != 0 {
		r.Errorf("come back after %v, place %d", e.UntilFree, e.Position)
	}
	if n := r.view("win").Waiting; n != 0 {
		r.Errorf("%d wait", n)
	}
}

func takeWaits(r *run) {
	r.publish(of("win", "a"))
	l := r.take(r.ann(), "win", client.TakeOptions{})
	all := []broker.Broker{r.bob(), r.ann(), r.root()}
	var waiting []*taking
	for i, b := range all {
		waiting = append(waiting, r.start(r.ctx, b, "win", client.TakeOptions{Holder: fmt.Sprint("job ", i), Wait: time.Minute}))
		r.waiting("win", i+1)
	}
	for i, t := range waiting {
		r.release(l, client.ReleaseRequest{})
		if r.ended(t).err != nil {
			r.Fatalf("waiter %d: %v", i, t.err)
		}
		l = t.lease
		if l.Info().Holder != fmt.Sprint("job ", i) {
			r.Errorf("waiter %d was given what %q asked for", i, l.Info().Holder)
		}
	}
}

func takeOver(r *run) {
	r.publish(of("win", "a"))
	r.take(r.ann(), "win", client.TakeOptions{Holder: "job 1"})
	r.start(r.ctx, r.bob(), "win", client.TakeOptions{Wait: time.Minute})
	r.waiting("win", 1)
	began := time.Now()
	e := r.noneFree(r.ann(), "win", client.TakeOptions{Wait: time.Second})
	if took := time.Since(began); took < 900*time.Millisecond || took > 20*time.Second {
		r.Errorf("a wait of one second took %v", took)
	}
	if len(e.Holders) != 1 || e.Holders[0].Holder != "job 1" || e.Position != 2 {
		r.Errorf("it is told of %+v and the place %d", e.Holders, e.Position)
	}
}

func takeCodes(r *run) {
	r.publish(of("win", "a"))
	for name, tc := range map[string]struct {
		pool  string
		o     client.TakeOptions
		class fault.Class
		code  string
	}{
		"pool":        {"none", client.TakeOptions{}, fault.NotFound, "pool"},
		"name":        {"no name", client.TakeOptions{}, fault.Invalid, "name"},
		"ttl":         {"win", client.TakeOptions{TTL: 25 * time.Hour}, fault.Invalid, "ttl"},
		"text":        {"win", client.TakeOptions{Holder: "a\x1b[1m"}, fault.Invalid, "text"},
		"constraints": {"win", client.TakeOptions{Constraints: map[string]string{"a\n": "b"}}, fault.Invalid, "constraints"},
	} {
		for _, wait := range []time.Duration{0, 5 * time.Second} {
			tc.o.Wait = wait
			_, err := r.ann().Take(r.ctx, tc.pool, tc.o)
			r.fault(fmt.Sprintf("%s with a wait of %v", name, wait), err, tc.class, tc.code)
			if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != tc.code {
				r.Errorf("%s: the server's answer is not in the error: %v", name, err)
			}
		}
	}
	r.state("win", "a", client.StateFree)
}

func takeReplay(r *run) {
	r.publish(of("win", "a", "b"))
	o := client.TakeOptions{Holder: "job", IdempotencyKey: "one"}
	first, again := r.take(r.ann(), "win", o), r.take(r.ann(), "win", o)
	if first.ID() != again.ID() || first.Secret() != again.Secret() {
		r.Errorf("again it is %s, not %s", again, first)
	}
	o.Holder = "another job"
	_, err := r.ann().Take(r.ctx, "win", o)
	r.fault("another request", err, fault.Conflict, "idempotency")
	if other := r.take(r.ann(), "win", client.TakeOptions{Holder: "job"}); other.ID() == first.ID() {
		r.Errorf("a new request got %s too", other)
	}
}

func takeHooks(r *run) {
	p := of("win", "a")
	p.Check = true
	r.publish(p)
	_, err := r.ann().Take(r.ctx, "win", client.TakeOptions{})
	r.fault("without hooks", err, fault.Invalid, "hooks")
	r.release(r.take(r.ann(), "win", client.TakeOptions{RunsHooks: true}), client.ReleaseRequest{})
	p.Reset = true
	r.publish(p)
	for range 3 {
		l := r.take(r.ann(), "win", client.TakeOptions{RunsHooks: true})
		r.must("the reset begins", l.Renew(r.ctx, client.RenewRequest{Reset: client.ResetBegin}))
		if got := l.Info().State; got != client.StateResetting {
			r.Errorf("while it is reset it is %s", got)
		}
		r.release(l, client.ReleaseRequest{Reset: client.ResetFailed, Reason: "no route"})
	}
	r.state("win", "a", client.StateDisabled)
}

func takeExclusive(r *run) {
	const takers, rounds = 12, 3
	r.publish(of("win", "a", "b", "c"))
	var mu sync.Mutex
	holder := map[string]int{}
	var all sync.WaitGroup
	errs := make(chan error, 3*takers*rounds)
	brokers := []broker.Broker{r.ann(), r.bob(), r.root(), r.open("ann")}
	for n := range takers {
		b := brokers[n%len(brokers)]
		all.Go(func() {
			for range rounds {
				l, err := b.Take(r.ctx, "win", client.TakeOptions{Wait: time.Minute})
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				if other, held := holder[l.Key()]; held {
					errs <- fmt.Errorf("key %s is held by %d and %d", l.Key(), other, n)
				}
				holder[l.Key()] = n
				mu.Unlock()
				mu.Lock()
				delete(holder, l.Key())
				mu.Unlock()
				if _, err := l.Release(r.ctx, client.ReleaseRequest{}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		r.Error(err)
	}
	if v := r.view("win"); v.Free != 3 || v.Waiting != 0 {
		r.Errorf("in the end the pool is %+v", v.PoolStatus)
	}
}

func takeGone(r *run) {
	// A team server cannot see at once that nobody is there to read its answer: what
	// it granted in that moment ends by its time. Else it is lease.UnclaimedFor.
	rounds, ttl := 3, 5*time.Second
	if r.local {
		rounds, ttl = 9, 10*time.Minute
	}
	r.publish(of("win", "a"))
	for round := range rounds {
		l := r.take(r.ann(), "win", client.TakeOptions{Wait: time.Minute})
		ctx, cancel := context.WithCancel(r.ctx)
		t := r.start(ctx, r.bob(), "win", client.TakeOptions{Holder: "gone", TTL: ttl, Wait: time.Minute})
		r.waiting("win", 1)
		// The end comes before the release, beside it, or after.
		switch round % 3 {
		case 0:
			cancel()
			r.ended(t)
			r.waiting("win", 0)
		case 1:
			go cancel()
		}
		released := time.Now()
		r.release(l, client.ReleaseRequest{})
		cancel()
		switch r.ended(t); {
		case t.err == nil:
			r.release(t.lease, client.ReleaseRequest{})
		case !errors.Is(t.err, context.Canceled):
			r.Fatalf("round %d: %v", round, t.err)
		}
		r.until("the key is free again", func() bool { return r.key("win", "a").State == client.StateFree && r.view("win").Waiting == 0 })
		if took := time.Since(released); took > 20*time.Second || round%3 == 0 && took > 4*time.Second {
			r.Errorf("round %d: the key came back after %v", round, took)
		}
	}
	// It is fit for others, and nobody who went away stands in front of them.
	r.release(r.take(r.ann(), "win", client.TakeOptions{Wait: 20 * time.Second}), client.ReleaseRequest{})
}

func leaseRenew(r *run) {
	r.publish(of("win", "a"))
	l := r.take(r.ann(), "win", client.TakeOptions{})
	r.must("Renew", l.Renew(r.ctx, client.RenewRequest{TTL: 120, Fence: l.Fence()}))
	if left := l.Left(); left > 2*time.Minute || left < 110*time.Second || l.Info().TTL != 120 {
		r.Errorf("renewed for two minutes, %v are left", left)
	}
	r.fault("another fence", l.Renew(r.ctx, client.RenewRequest{Fence: l.Fence() + 1}), fault.Conflict, "fence")
	r.fault("too long", l.Renew(r.ctx, client.RenewRequest{TTL: 86401}), fault.Invalid, "ttl")
	if seen, err := r.bob().Lease(r.ctx, l.ID()); err != nil || seen.TTL != 120 {
		r.Errorf("others see %+v, %v", seen, err)
	}
}

func leaseResume(r *run) {
	r.publish(of("win", "a"))
	first := r.take(r.ann(), "win", client.TakeOptions{Holder: "job 1", TTL: time.Minute})
	other := r.open("ann")
	l, err := other.Resume(r.ctx, first.ID(), first.Secret())
	r.must("Resume", err)
	if l.ID() != first.ID() || l.Key() != "a" || l.Fence() != first.Fence() || l.Info().Holder != "job 1" || l.Secret() != first.Secret() {
		r.Errorf("it is resumed as %+v", l.Info())
	}
	if left := l.Left(); left > time.Minute || left < 50*time.Second {
		r.Errorf("%v are left", left)
	}
	_, err = other.Resume(r.ctx, first.ID(), first.Secret()+"x")
	r.fault("a wrong secret", err, fault.Denied, "secret")
	_, err = r.bob().Resume(r.ctx, first.ID(), first.Secret())
	r.fault("another account", err, fault.Denied, "not_owner")
	_, err = other.Resume(r.ctx, "a~99999", first.Secret())
	r.fault("an unknown lease", err, fault.NotFound, "lease")
	r.release(l, client.ReleaseRequest{})
	_, err = other.Resume(r.ctx, first.ID(), first.Secret())
	r.fault("after its end", err, fault.Conflict, "lease_released")
	r.fault("the first holder", first.Renew(r.ctx, client.RenewRequest{}), fault.Conflict, "lease_released")
}

func leaseRelease(r *run) {
	r.publish(of("win", "a", "b", "c", "d", "e", "f"))
	l := r.take(r.ann(), "win", client.TakeOptions{})
	for range 2 {
		if done := r.release(l, client.ReleaseRequest{}); done.ID != l.ID() || done.Key != l.Key() || done.Disabled || done.Capped {
			r.Errorf("released: %+v", done)
		}
	}
	if l.Left() != 0 {
		r.Errorf("after it was released %v are left", l.Left())
	}
	l = r.take(r.ann(), "win", client.TakeOptions{})
	if done := r.release(l, client.ReleaseRequest{Outcome: client.OutcomeBroken, Reason: "does not boot"}); !done.Disabled {
		r.Errorf("a broken key: %+v", done)
	}
	if d := r.key("win", l.Key()).Disabled; d == nil || d.Reason != "does not boot" || d.By != "ann" {
		r.Errorf("it is shown as %+v", d)
	}
	l = r.take(r.ann(), "win", client.TakeOptions{})
	_, err := l.Release(r.ctx, client.ReleaseRequest{Outcome: client.OutcomeBanned})
	r.fault("a ban of no target", err, fault.Invalid, "target")
}

func leaseAlive(r *run) {
	r.publish(of("win", "a", "b", "c"))
	keep := func(ctx context.Context) (*broker.Lease, chan error) {
		l := r.take(r.ann(), "win", client.TakeOptions{TTL: 5 * time.Second})
		over := make(chan error, 1)
		go func() { over <- l.KeepAlive(ctx) }()
		return l, over
	}
	end := func(what string, over chan error) error {
		r.Helper()
		select {
		case err := <-over:
			return err
		case <-r.ctx.Done():
			r.Fatalf("KeepAlive never ends: %s", what)
			return nil
		}
	}
	ctx, cancel := context.WithCancel(r.ctx)
	released, onReleased := keep(r.ctx)
	_, onEnd := keep(ctx)
	lost, onLost := keep(r.ctx)
	r.until("it is renewed", func() bool { return lost.Left() < 4*time.Second })
	r.until("it is renewed", func() bool { return lost.Left() > 4*time.Second })
	r.release(released, client.ReleaseRequest{})
	r.must("a released lease", end("released", onReleased))
	cancel()
	r.must("an ended ctx", end("ctx", onEnd))
	_, err := r.root().Force(r.ctx, "win", lost.Key(), client.ForceRequest{Reason: "it hangs"})
	r.must("Force", err)
	r.fault("a lost lease", end("lost", onLost), fault.Conflict, "lease_forced")
}
