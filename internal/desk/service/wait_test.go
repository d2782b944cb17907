package service_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
)

func TestNoneFree(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		if _, err := s.Take(t.Context(), service.TakeRequest{Account: "bob", Pool: "p", Holder: "job 7", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p", IdempotencyKey: "k"})
		if took := time.Since(began); took != 0 {
			t.Errorf("a take that would not wait waited %s", took)
		}
		want := &service.NoneFree{
			Pool: "p", RetryAfter: time.Minute,
			Holders: []service.Holder{{Key: "a", Account: "bob", Holder: "job 7", State: lease.Held, Left: time.Minute}},
		}
		wantNoneFree(t, err, want)
		for _, text := range []string{"pool p", "a is held by bob (job 7)", "due in 1m0s"} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("the text %q does not say %q", err, text)
			}
		}

		_, err = s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p", IdempotencyKey: "k", Wait: 20 * time.Second})
		if took := time.Since(began); took != 20*time.Second {
			t.Errorf("a take that would wait 20s waited %s", took)
		}
		want.RetryAfter, want.Holders[0].Left, want.Position, want.Waited = 40*time.Second, 40*time.Second, 1, 20*time.Second
		wantNoneFree(t, err, want)
	})
}

func wantNoneFree(t *testing.T, err error, want *service.NoneFree) {
	t.Helper()
	wantCode(t, err, fault.Quota, "none_free")
	got, ok := errors.AsType[*service.NoneFree](err)
	if diff := gocmp.Diff(want, got); !ok || diff != "" {
		t.Fatalf("the error differs (-want +got):\n%s", diff)
	}
}

// The key goes to whoever waits longest, without a pause.
func TestHandOffIsFairAndPrompt(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		held := take(t, s)
		const n = 200
		a := newAsker(s)
		for i := range n {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute, IdempotencyKey: fmt.Sprint(i)})
			synctest.Wait()
		}
		newcomers := newAsker(s)
		for i := range n {
			time.Sleep(50 * time.Millisecond)
			released := time.Now()
			release(t, s, held)
			newcomers.take(t.Context(), "newcomer", service.TakeRequest{})
			got := a.next(t)
			if got.err != nil || got.id != fmt.Sprint(i) {
				t.Fatalf("release %d was for waiter %s (%v)", i, got.id, got.err)
			}
			if late := got.at.Sub(released); late != 0 {
				t.Fatalf("waiter %d got its key %s after the release", i, late)
			}
			if got := newcomers.next(t); fault.CodeOf(got.err) != "none_free" {
				t.Fatalf("a newcomer got %s, %v before who waits", got.grant.ID, got.err)
			}
			held = got.grant
		}
		a.none(t, "everybody was served")
	})
}

// Many waiters cost a release no more than few do.
func TestHandOffAsksFew(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		held := take(t, s)
		const n = 1000
		a := newAsker(s)
		for i := range n {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute})
		}
		synctest.Wait()
		store.forget()
		const releases = 100
		for range releases {
			release(t, s, held)
			got := a.next(t)
			if got.err != nil {
				t.Fatal(got.err)
			}
			held = got.grant
		}
		synctest.Wait()
		// The waiter asks in the transaction that gives the key back.
		if n := count[lease.Take](store); n > releases+2 {
			t.Errorf("%d releases made the waiters ask %d times", releases, n)
		}
		if n := len(store.seen()); n > releases+2 {
			t.Errorf("%d releases took %d transactions", releases, n)
		}

		// Time alone makes nobody ask but now and then.
		store.forget()
		time.Sleep(20 * time.Second)
		if n := count[lease.Take](store); n > 11 {
			t.Errorf("in 20 s the waiters asked %d times", n)
		}
	})
}

// When many keys come free at once, many are asked for at once.
func TestHandOffOfMany(t *testing.T) {
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%03d", i)
	}
	bubble(t, keys, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		for range keys {
			take(t, s)
		}
		a := newAsker(s)
		for i := range keys {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute})
			synctest.Wait()
		}
		store.forget()
		// Another process frees all of them.
		rs, err := store.Memory.Do(t.Context(), []lease.Op{
			lease.Publish{Pool: lease.Pool{Name: "p"}}, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: append(keys[:0:0], "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9")},
		})
		if err != nil || rs[1].Err != nil {
			t.Fatal(err, rs[1].Err)
		}
		got := make([]answer, 9)
		for i := range got {
			got[i] = a.next(t)
		}
		slices.SortFunc(got, func(a, b answer) int { return cmp.Compare(a.grant.Fence, b.grant.Fence) })
		for i := range got {
			if got[i].err != nil || got[i].id != fmt.Sprint(i) {
				t.Fatalf("key %d was for waiter %s (%v)", i, got[i].id, got[i].err)
			}
		}
		a.none(t, "nine keys are taken")
		if n := len(store.seen()); n > 6 {
			t.Errorf("it took %d transactions", n)
		}
	})
}

// Small transactions serve everybody too, only in more of them.
func TestHandOffInSmallTransactions(t *testing.T) {
	bubble(t, []string{"a", "b", "c"}, func(t *testing.T, store *tap) {
		store.deaf = true
		s, stop := start(t, store, service.Limits{Batch: 4})
		defer stop()
		held := []service.Grant{take(t, s), take(t, s), take(t, s)}
		a := newAsker(s)
		for range held {
			a.take(t.Context(), "w", service.TakeRequest{Wait: time.Minute})
		}
		synctest.Wait()
		resume := paused(t, s, store)
		done := make(chan error, 3)
		for _, g := range held {
			go func() {
				_, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(g)})
				done <- err
			}()
		}
		synctest.Wait()
		released := time.Now()
		resume()
		for range held {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if got := a.next(t); got.err != nil || !got.at.Equal(released) {
				t.Fatalf("%v after %s", got.err, got.at.Sub(released))
			}
		}
	})
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{Batch: 4})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		for _, where := range []string{"moon", "mars", "venus", "sun"} {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			a.take(ctx, where, service.TakeRequest{Wait: time.Minute, Where: map[string]string{"where": where}})
		}
		for range 10 {
			a.take(t.Context(), "w", service.TakeRequest{Wait: time.Minute})
			synctest.Wait()
			released := time.Now()
			releaseElsewhere(t, store, held)
			got := a.next(t)
			if got.err != nil || !got.at.Equal(released) {
				t.Fatalf("%s: %v after %s", got.id, got.err, got.at.Sub(released))
			}
			held = got.grant
		}
	})
}

// Who cannot use what is free holds nobody up.
func TestWaitersForOtherKeys(t *testing.T) {
	bubble(t, nil, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		epoch, err := s.Do(t.Context(), lease.OpenEpoch{Owner: "x"})
		if err != nil {
			t.Fatal(err)
		}
		e := epoch[0].Epoch
		put := func(key, where string) lease.Op {
			return lease.PutKey{Epoch: e, Key: key, UID: "u" + key, Pools: []string{"m"}, Attributes: map[string]string{"where": where}}
		}
		rs, err := s.Do(t.Context(), lease.PutPool{Epoch: e, Pool: lease.Pool{Name: "m"}}, put("a", "home"), put("b", "lab"))
		if err != nil || rs[2].Err != nil {
			t.Fatal(err, rs)
		}
		takeOf := func(where string) service.Grant {
			g, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "m", Where: map[string]string{"where": where}})
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		home, lab := takeOf("home"), takeOf("lab")
		a := newAsker(s)
		for i, where := range []string{"moon", "home", "home", "lab", "lab"} {
			a.take(t.Context(), fmt.Sprint(i, where), service.TakeRequest{Pool: "m", Wait: time.Minute, Where: map[string]string{"where": where}})
			synctest.Wait()
		}
		for _, step := range []struct {
			back service.Grant
			want string
		}{{lab, "3lab"}, {home, "1home"}} {
			release(t, s, step.back)
			if got := a.next(t); got.err != nil || strings.ReplaceAll(got.id, " ", "") != step.want {
				t.Fatalf("%s came free and waiter %s got %s, %v", step.back.Key, got.id, got.grant.ID, got.err)
			}
			a.none(t, "one key came free")
		}
	})
}

// A key that rests for one target is free for others.
func TestWaitersForOtherTargets(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		for _, target := range []string{"one.example", "two.example"} {
			a.take(t.Context(), target, service.TakeRequest{Wait: time.Minute, Target: target})
			synctest.Wait()
		}
		released := time.Now()
		if _, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(held), Outcome: lease.Banned, Target: "one.example"}); err != nil {
			t.Fatal(err)
		}
		got := a.next(t)
		if got.err != nil || got.id != "two.example" || !got.at.Equal(released) {
			t.Fatalf("the key went to %s, %v, after %s", got.id, got.err, got.at.Sub(released))
		}
		a.none(t, "the other waits for the end of the rest")
	})
}

// Waiting for a key that time frees needs no news.
func TestWaitForTheEndOfALease(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		store.deaf = true
		s, stop := start(t, store, service.Limits{})
		defer stop()
		if _, err := s.Take(t.Context(), service.TakeRequest{Account: "bob", Pool: "p", TTL: 7 * time.Second}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		g, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p", Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began) - 7*time.Second; took < 0 || took > 20*time.Millisecond {
			t.Errorf("the key came %s after the lease's end", took)
		}
		if g.Left != lease.DefaultTTL {
			t.Errorf("the new lease has %s left", g.Left)
		}
	})
}

// A key that rests a moment after its use is handed on when it has rested.
func TestWaitForTheEndOfARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		s, stop := start(t, store, service.Limits{})
		defer stop()
		p := lease.Pool{Name: "p", Cooldown: 300 * time.Millisecond}
		if _, err := s.Publish(t.Context(), lease.Publish{Pool: p, Items: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		other, stopOther := start(t, store, service.Limits{})
		defer stopOther()
		held := take(t, other) // s does not know the key
		a := newAsker(s)
		a.take(t.Context(), "w", service.TakeRequest{Wait: time.Minute})
		time.Sleep(100 * time.Millisecond)
		release(t, s, held)
		released := time.Now()
		if got := a.next(t); got.err != nil || got.at.Sub(released) > 320*time.Millisecond {
			t.Errorf("%v after %s", got.err, got.at.Sub(released))
		}
	})
}

// A missed notification costs two seconds, no more.
func TestSafetyNet(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		store.deaf = true
		s, stop := start(t, store, service.Limits{})
		defer stop()
		other, stopOther := start(t, store.Memory, service.Limits{})
		defer stopOther()
		held := take(t, other)
		a := newAsker(s)
		a.take(t.Context(), "w", service.TakeRequest{Wait: time.Minute})
		time.Sleep(5 * time.Second)
		release(t, other, held)
		released := time.Now()
		if got := a.next(t); got.err != nil || got.at.Sub(released) > 2*time.Second {
			t.Errorf("got %v after %s", got.err, got.at.Sub(released))
		}
	})
}

// Two processes serve one queue.
func TestOrderAcrossProcesses(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		one, stop := start(t, store, service.Limits{})
		defer stop()
		two, stopTwo := start(t, store.Memory, service.Limits{})
		defer stopTwo()
		held, holder := take(t, one), one
		answers := make(chan answer, 100)
		both := []*service.Service{one, two}
		for i := range 20 {
			(&asker{both[i%2], answers}).take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute})
			synctest.Wait()
		}
		for i := range 20 {
			release(t, holder, held)
			released := time.Now()
			got := (&asker{nil, answers}).next(t)
			if got.err != nil || got.id != fmt.Sprint(i) || !got.at.Equal(released) {
				t.Fatalf("release %d: waiter %s, %v, after %s", i, got.id, got.err, got.at.Sub(released))
			}
			held, holder = got.grant, both[i%2]
		}
	})
}

// Waiters count as live as long as they wait.
func TestWaitersStayLive(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		take(t, s)
		a := newAsker(s)
		const n = 2500 // more than one op tells of
		for i := range n {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute})
		}
		for range 55 {
			time.Sleep(time.Second)
			p, err := s.Pool(t.Context(), "p")
			if err != nil || p.Waiting != n {
				t.Fatalf("%d of %d waiters are live (%v)", p.Waiting, n, err)
			}
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		for range n {
			if got := a.next(t); fault.CodeOf(got.err) != "none_free" {
				t.Fatal(got.err)
			}
		}
		q, err := s.Queue(t.Context(), "p", 0, 10)
		if len(q) != 0 || err != nil {
			t.Errorf("places of clients that cannot come back: %v, %v", q, err)
		}
	})
}

// Who comes back with its Idempotency-Key in time has its place still.
func TestPlaceIsKept(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		away   time.Duration
		first  bool
	}{
		"in time":  {"15 s are enough to come back", 14 * time.Second, true},
		"too late": {"others waited meanwhile", 16 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
				s, stop := start(t, store, service.Limits{})
				defer stop()
				held := take(t, s)
				a := newAsker(s)
				mine := service.TakeRequest{Wait: 10 * time.Second, IdempotencyKey: "k"}
				a.take(t.Context(), "mine", mine)
				synctest.Wait()
				a.take(t.Context(), "other", service.TakeRequest{Wait: time.Minute})
				if got := a.next(t); got.id != "mine" || fault.CodeOf(got.err) != "none_free" {
					t.Fatal(got.id, got.err)
				}
				time.Sleep(tc.away)
				a.take(t.Context(), "mine", mine)
				synctest.Wait()
				release(t, s, held)
				if got := a.next(t); got.err != nil || (got.id == "mine") != tc.first {
					t.Errorf("%s: %s got the key (%v)", tc.reason, got.id, got.err)
				}
				a.none(t, "one key")
			})
		})
	}
}

// A request that comes again takes the place of the first, whose connection is
// dead and not known to be.
func TestSameRequestAgain(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		r := service.TakeRequest{Wait: time.Minute, IdempotencyKey: "k", Holder: "h"}
		a.take(t.Context(), "first", r)
		synctest.Wait()
		a.take(t.Context(), "other", service.TakeRequest{Wait: time.Minute})
		synctest.Wait()
		a.take(t.Context(), "second", r)
		got := a.next(t)
		wantCode(t, got.err, fault.Conflict, "idempotency")
		if got.id != "first" {
			t.Fatalf("%s was ended", got.id)
		}
		synctest.Wait()
		different := r
		different.Target = "example.com"
		a.take(t.Context(), "different", different)
		got = a.next(t)
		wantCode(t, got.err, fault.Conflict, "idempotency")
		if got.id != "different" {
			t.Fatalf("%s was ended by another request", got.id)
		}
		release(t, s, held)
		if got := a.next(t); got.err != nil || got.id != "second" {
			t.Fatalf("the key went to %s, %v", got.id, got.err)
		}
	})
}

func TestLimits(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{Waiters: 2, Queue: 3, MaxWait: 5 * time.Minute})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		for i := range 2 {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{Wait: time.Minute})
		}
		synctest.Wait()
		wantCode(t, takeErr(t, s, service.TakeRequest{Pool: "p", Wait: time.Minute}), fault.Quota, "queue_full")
		wantCode(t, takeErr(t, s, service.TakeRequest{Pool: "p"}), fault.Quota, "none_free")

		// One that cannot wait is not answered before the database knows.
		resume := paused(t, s, store)
		a.take(t.Context(), "full", service.TakeRequest{Wait: time.Second})
		time.Sleep(2 * time.Second)
		a.none(t, "a key may be free")
		resume()
		wantCode(t, a.next(t).err, fault.Quota, "queue_full")

		blocked := make(chan struct{})
		store.set(func([]lease.Op) { <-blocked }, nil)
		reports := make(chan error, 4)
		report := func() {
			_, err := s.Report(t.Context(), service.ReportRequest{Account: "ann", Key: "a", Pool: "p", Outcome: lease.OK})
			reports <- err
		}
		for range 4 { // the first is under way alone
			go report()
			synctest.Wait()
		}
		_, err := s.Report(t.Context(), service.ReportRequest{Account: "ann", Key: "a", Pool: "p", Outcome: lease.OK})
		wantCode(t, err, fault.Quota, "busy")
		store.set(nil, nil)
		close(blocked)
		for range 4 {
			if err := <-reports; err != nil {
				t.Error(err)
			}
		}
		for range 2 {
			release(t, s, held)
			got := a.next(t)
			if got.err != nil {
				t.Fatal(got.err)
			}
			held = got.grant
		}
	})
}

// The service takes no time from clients, nor from its own clock: a database
// whose clock is off by an hour serves as any other.
func TestClocksThatDiffer(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newTap()
				store.Advance(off)
				publish(t, store, "p", "a")
				s, stop := start(t, store, service.Limits{})
				defer stop()
				g, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p", TTL: 10 * time.Second})
				if err != nil || g.Left != 10*time.Second {
					t.Fatalf("left %s, %v", g.Left, err)
				}
				began := time.Now()
				if _, err := s.Take(t.Context(), service.TakeRequest{Account: "bob", Pool: "p", Wait: time.Minute}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < 10*time.Second || took > 10*time.Second+20*time.Millisecond {
					t.Errorf("the lease of 10 s was over after %s", took)
				}
			})
		})
	}
}

func TestLeavingWhileWaiting(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		key    string
		kept   int
	}{
		"without a key": {"nobody can come back", "", 0},
		"with a key":    {"the connection may be lost", "k", 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
				s, stop := start(t, store, service.Limits{})
				defer stop()
				held := take(t, s)
				a := newAsker(s)
				ctx, leave := context.WithCancel(t.Context())
				a.take(ctx, "leaver", service.TakeRequest{Wait: time.Minute, IdempotencyKey: tc.key})
				synctest.Wait()
				a.take(t.Context(), "stayer", service.TakeRequest{Wait: time.Minute})
				synctest.Wait()
				leave()
				if got := a.next(t); got.id != "leaver" || !errors.Is(got.err, context.Canceled) {
					t.Fatal(got.id, got.err)
				}
				synctest.Wait()
				q, err := s.Queue(t.Context(), "p", 0, 10)
				if err != nil || len(q) != 1+tc.kept {
					t.Fatalf("%s: %d places, %v", tc.reason, len(q), err)
				}
				release(t, s, held)
				if got := a.next(t); got.err != nil || got.id != "stayer" {
					t.Fatalf("the key went to %s, %v", got.id, got.err)
				}
			})
		})
	}
}
