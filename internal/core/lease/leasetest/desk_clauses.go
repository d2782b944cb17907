package leasetest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// DeskClauses returns the suite, by subject.
func DeskClauses() []DeskClause {
	return []DeskClause{
		{"Take/told", "a taker is told all about its lease, and others all but the secret", deskTold},
		{"Take/none", "without wait it is told at once who holds what, and when to come back", deskNone},
		{"Take/codes", "what cannot be asked for is refused with its code", deskCodes},
		{"Take/replay", "the same Idempotency-Key of the same account is the same lease", deskReplay},
		{"Take/exclusive", "takers at once never hold the same key, and all are served", deskExclusive},
		{"Wait/served", "a released key goes to who waits, in the order in which they came", deskServed},
		{"Wait/over", "a wait that is over is told as none free, and its place is kept", deskOver},
		{"Wait/gone", "a client that went away is never granted anything", deskGone},
		{"Wait/freed", "enabling, a change's end and a new key wake who waits", deskFreed},
		{"Lease/proof", "only its account with its secret changes a lease", deskProof},
		{"Lease/renew", "a renewal counts from now", deskRenew},
		{"Lease/ends", "a holder who comes too late is told how its lease ended", deskEnds},
		{"Lease/release", "a release is harmless when it comes twice", deskRelease},
		{"Lease/outcomes", "outcomes rest, disable and cap", deskOutcomes},
		{"Lease/reset", "a key that needs a reset is told to who takes it", deskReset},
		{"Admin/publish", "a list for another revision is refused", deskPublish},
		{"Admin/keys", "an admin disables, enables and ends", deskKeys},
		{"Change/bars", "a person's change bars its keys, locks its pool, and ends", deskChange},
	}
}

func deskTold(r *deskRun) {
	r.publish(pool("p"), "win-01")
	h := r.take(r.ann, Ask{Pool: "p", Holder: "nightly 4711", Target: "example.com", TTL: 90 * time.Second})
	if h.Pool != "p" || h.Key != "win-01" || h.Target != "example.com" || h.Account != "ann" || h.Holder != "nightly 4711" || h.TTL != 90*time.Second {
		r.Errorf("the taker is told %+v", h)
	}
	if h.Left <= 80*time.Second || h.Left > 90*time.Second || h.Resetting || h.NeedsReset || h.Ended || h.Replayed {
		r.Errorf("the taker is told %+v", h)
	}
	if want := fmt.Sprintf("win-01~%d", h.Fence); h.ID != want {
		r.Errorf("its id is %s, want %s", h.ID, want)
	}
	seen, err := r.bob.Lease(r.ctx, h.ID)
	if err != nil || seen.Secret != "" || seen.Left > h.Left {
		r.Fatalf("another account sees %+v, %v", seen, err)
	}
	seen.Secret, seen.Left = h.Secret, h.Left
	if seen != h {
		r.Errorf("another account sees %+v, want %+v", seen, h)
	}
	r.state("p", "win-01", lease.Held)
	r.release(r.ann, h, Return{})
	if seen, err := r.bob.Lease(r.ctx, h.ID); err != nil || !seen.Ended || seen.Left != 0 {
		r.Errorf("after its end: %+v, %v", seen, err)
	}
	for _, id := range []string{"win-01", "win-01~", "win-01~9999", "none~1", "~1"} {
		_, err := r.bob.Lease(r.ctx, id)
		r.fault("Lease("+id+")", err, fault.NotFound, "lease")
	}
}

func deskNone(r *deskRun) {
	r.publish(pool("p"), "a", "b")
	r.take(r.ann, Ask{Pool: "p", TTL: 30 * time.Second})
	r.take(r.bob, Ask{Pool: "p", TTL: 60 * time.Second})
	began := time.Now()
	none := r.noneFree(r.ann, Ask{Pool: "p"})
	if took := time.Since(began); took > 5*time.Second {
		r.Errorf("without wait it took %v", took)
	}
	if want := (map[string]string{"a": "ann", "b": "bob"}); !maps.Equal(none.Holders, want) {
		r.Errorf("the holders are %v, want %v", none.Holders, want)
	}
	if none.RetryAfter <= 20*time.Second || none.RetryAfter > 31*time.Second || none.Position != 0 {
		r.Errorf("come back after %v, place %d", none.RetryAfter, none.Position)
	}
	if text := none.Error(); !strings.Contains(text, "ann") {
		r.Errorf("the text does not name who holds what: %s", text)
	}
	if n := r.view("p").Waiting; n != 0 {
		r.Errorf("%d wait", n)
	}
}

func deskCodes(r *deskRun) {
	p := pool("hooks")
	p.Hooks.Check = true
	r.publish(pool("p"), "a")
	r.publish(p, "b")
	for name, tc := range map[string]struct {
		ask   Ask
		class fault.Class
		code  string
	}{
		"pool":        {Ask{Pool: "none"}, fault.NotFound, "pool"},
		"ttl":         {Ask{Pool: "p", TTL: 20 * time.Minute}, fault.Invalid, "ttl"},
		"text":        {Ask{Pool: "p", Holder: "a\x1b[1m"}, fault.Invalid, "text"},
		"hooks":       {Ask{Pool: "hooks"}, fault.Invalid, "hooks"},
		"constraints": {Ask{Pool: "p", Where: map[string]string{"a\n": "b"}}, fault.Invalid, "constraints"},
	} {
		_, err := r.ann.Take(r.ctx, tc.ask)
		r.fault(name, err, tc.class, tc.code)
		tc.ask.Wait = 5 * time.Second
		_, err = r.ann.Take(r.ctx, tc.ask)
		r.fault(name+" with a wait", err, tc.class, tc.code)
	}
	_, err := r.ann.Pool(r.ctx, "none")
	r.fault("Pool", err, fault.NotFound, "pool")
	r.state("p", "a", lease.Free)
}

func deskReplay(r *deskRun) {
	r.publish(pool("p"), "a", "b", "c")
	a := Ask{Pool: "p", Holder: "job", IdempotencyKey: "one"}
	first := r.take(r.ann, a)
	again := r.take(r.ann, a)
	if !again.Replayed || again.ID != first.ID || again.Secret != first.Secret || again.Left > first.Left {
		r.Errorf("again: %+v, want %+v", again, first)
	}
	other := r.take(r.bob, a)
	if other.Replayed || other.ID == first.ID || other.Secret == first.Secret {
		r.Errorf("another account's request of that key: %+v", other)
	}
	a.IdempotencyKey = "two"
	if next := r.take(r.ann, a); next.ID == first.ID || next.Secret == first.Secret {
		r.Errorf("another key's request: %+v", next)
	}
	a.IdempotencyKey, a.Holder = "one", "another job"
	_, err := r.ann.Take(r.ctx, a)
	r.fault("another request with that key", err, fault.Conflict, "idempotency")
	a.Holder = "job"
	r.release(r.ann, first, Return{})
	_, err = r.ann.Take(r.ctx, a)
	r.fault("a replay of what was released", err, fault.Conflict, "lease_released")
}

func deskExclusive(r *deskRun) {
	const takers, keys, rounds = 16, 3, 4
	r.publish(pool("p"), "a", "b", "c")
	var mu sync.Mutex
	holder, fences := map[string]int{}, map[string]int64{}
	var all sync.WaitGroup
	errs := make(chan error, 3*takers*rounds)
	for n := range takers {
		desk := r.ann
		if n%2 == 1 {
			desk = r.bob
		}
		all.Go(func() {
			for range rounds {
				h, err := desk.Take(r.ctx, Ask{Pool: "p", Wait: 50 * time.Second})
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				if other, held := holder[h.Key]; held {
					errs <- fmt.Errorf("key %s is held by %d and %d", h.Key, other, n)
				}
				if h.Fence <= fences[h.Key] {
					errs <- fmt.Errorf("key %s: fence %d after %d", h.Key, h.Fence, fences[h.Key])
				}
				holder[h.Key], fences[h.Key] = n, h.Fence
				mu.Unlock()
				mu.Lock()
				delete(holder, h.Key)
				mu.Unlock()
				if _, err := desk.Release(r.ctx, h, Return{}); err != nil {
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
	v := r.view("p")
	for key, state := range v.States {
		if state != lease.Free {
			r.Errorf("in the end key %s is %s", key, state)
		}
	}
	if v.Waiting != 0 || len(v.States) != keys {
		r.Errorf("in the end %d wait for %d keys", v.Waiting, len(v.States))
	}
}

func deskServed(r *deskRun) {
	r.publish(pool("p"), "a")
	h := r.take(r.ann, Ask{Pool: "p"})
	var done []*taken
	for i := range 4 {
		desk := r.ann
		if i%2 == 1 {
			desk = r.bob
		}
		done = append(done, r.start(r.ctx, desk, Ask{Pool: "p", Holder: fmt.Sprint(i), Wait: 50 * time.Second}))
		r.waiting("p", i+1)
	}
	r.release(r.ann, h, Return{})
	for i, d := range done {
		got := r.ended(d)
		if got.err != nil || got.held.Holder != fmt.Sprint(i) {
			r.Fatalf("waiter %d: %+v, %v", i, got.held, got.err)
		}
		if n := r.view("p").Waiting; n != len(done)-i-1 {
			r.Fatalf("after waiter %d was served %d wait", i, n)
		}
		desk := r.ann
		if i%2 == 1 {
			desk = r.bob
		}
		r.release(desk, got.held, Return{})
	}
	r.state("p", "a", lease.Free)
}

func deskOver(r *deskRun) {
	r.publish(pool("p"), "a")
	h := r.take(r.ann, Ask{Pool: "p"})
	a := Ask{Pool: "p", Wait: time.Second, IdempotencyKey: "one"}
	began := time.Now()
	none := r.noneFree(r.bob, a)
	if took := time.Since(began); took < 900*time.Millisecond || took > 20*time.Second {
		r.Errorf("a wait of a second took %v", took)
	}
	if none.Position != 1 || none.Holders["a"] != "ann" {
		r.Errorf("its place is %d, the holders are %v", none.Position, none.Holders)
	}
	other := r.start(r.ctx, r.ann, Ask{Pool: "p", Wait: 50 * time.Second})
	r.waiting("p", 1)
	a.Wait = 50 * time.Second
	again := r.start(r.ctx, r.bob, a)
	r.waiting("p", 2)
	r.release(r.ann, h, Return{})
	got := r.ended(again)
	if got.err != nil {
		r.Fatalf("who came back to its place: %v", got.err)
	}
	select {
	case <-other.over:
		r.Fatalf("who came later was served first: %+v, %v", other.held, other.err)
	default:
	}
	r.release(r.bob, got.held, Return{})
	if got := r.ended(other); got.err != nil {
		r.Fatalf("who came later: %v", got.err)
	}
}

func deskGone(r *deskRun) {
	r.publish(pool("p"), "a")
	h := r.take(r.ann, Ask{Pool: "p"})
	ctx, stop := context.WithCancel(r.ctx)
	done := r.start(ctx, r.bob, Ask{Pool: "p", Wait: 50 * time.Second})
	r.waiting("p", 1)
	stop()
	if got := r.ended(done); got.err == nil {
		r.Fatalf("who went away was told %+v", got.held)
	}
	r.waiting("p", 0)
	r.release(r.ann, h, Return{})
	r.state("p", "a", lease.Free)
	r.take(r.ann, Ask{Pool: "p"})
}

func deskFreed(r *deskRun) {
	r.publish(pool("p"), "a", "b")
	check := func(what string, free func()) {
		r.Helper()
		done := r.start(r.ctx, r.ann, Ask{Pool: "p", Wait: 50 * time.Second})
		r.waiting("p", 1)
		free()
		got := r.ended(done)
		if got.err != nil {
			r.Fatalf("%s: %v", what, got.err)
		}
		r.release(r.ann, got.held, Return{})
	}
	must := func(err error) {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
	}
	must(r.root.Disable(r.ctx, "p", "a", "broken"))
	must(r.root.Disable(r.ctx, "p", "b", "broken"))
	check("a key was enabled", func() { must(r.root.Enable(r.ctx, "p", "a")) })
	change := r.h.Change("bob")
	id, err := change.BeginChange(r.ctx, "p", "remove", []string{"a"}, time.Minute)
	must(err)
	check("a change ended", func() { must(change.EndChange(r.ctx, "p", id)) })
	must(r.root.Disable(r.ctx, "p", "a", "broken"))
	check("a key was added", func() { r.publish(pool("p"), "a", "b", "c") })
	r.take(r.bob, Ask{Pool: "p"})
	check("a lease was ended", func() { must(r.root.Force(r.ctx, "p", "c")) })
}
