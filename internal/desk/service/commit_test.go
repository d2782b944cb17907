package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
)

// paused holds the store's next transaction up until the returned function is
// called, and begins that transaction.
func paused(t *testing.T, s *service.Service, store *tap) (resume func()) {
	t.Helper()
	blocked := make(chan struct{})
	store.set(func([]lease.Op) { <-blocked }, nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = s.Do(context.Background(), lease.Live{})
	}()
	synctest.Wait()
	store.set(nil, nil)
	store.forget()
	return func() {
		close(blocked)
		<-ended
	}
}

// What comes while a transaction runs goes into the next one, in an order that
// serves most.
func TestOneTransactionForMany(t *testing.T) {
	bubble(t, []string{"a", "b"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		first := take(t, s)
		second := take(t, s)
		a := newAsker(s)
		a.take(t.Context(), "waiter", service.TakeRequest{Wait: time.Minute})
		synctest.Wait()
		resume := paused(t, s, store)
		a.take(t.Context(), "newcomer", service.TakeRequest{})
		synctest.Wait()
		done := make(chan error, 10)
		for _, call := range []func() error{
			func() error {
				_, err := s.Report(t.Context(), service.ReportRequest{Account: "ann", Key: "a", Pool: "p", Outcome: lease.OK})
				return err
			},
			func() error {
				_, _, err := s.Disable(t.Context(), lease.Disable{Key: "b", Reason: "worn", By: "root"})
				return err
			},
			func() error { _, _, err := s.Enable(t.Context(), lease.Enable{Key: "b", By: "root"}); return err },
			func() error { return s.Lift(t.Context(), lease.Lift{Key: "a"}) },
			func() error {
				_, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(second)})
				return err
			},
			func() error {
				_, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(first)})
				return err
			},
		} {
			go func() { done <- call() }()
			synctest.Wait()
		}
		resume()
		for range 6 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for range 2 {
			if got := a.next(t); got.err != nil {
				t.Error(got.id, got.err)
			}
		}
		var kinds []string
		for _, op := range store.seen()[0] {
			name := fmt.Sprintf("%T", op)
			if take, ok := op.(lease.Take); ok {
				name += " of " + take.Holder
			}
			kinds = append(kinds, name)
		}
		want := []string{"lease.Release", "lease.Release", "lease.Report", "lease.Disable", "lease.Enable", "lease.Lift", "lease.Take of waiter", "lease.Take of newcomer"}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Errorf("the transaction differs (-want +got):\n%s", diff)
		}
	})
}

func TestManyCallersShareTransactions(t *testing.T) {
	keys := make([]string, 600)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%03d", i)
	}
	bubble(t, keys, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		synctest.Wait()
		resume := paused(t, s, store)
		a := newAsker(s)
		for i := range keys {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{})
		}
		synctest.Wait()
		resume()
		got := map[string]bool{}
		for range keys {
			one := a.next(t)
			if one.err != nil || got[one.grant.Key] {
				t.Fatalf("%v, %s", one.err, one.grant.Key)
			}
			got[one.grant.Key] = true
		}
		var sizes []int
		for _, ops := range store.seen() {
			sizes = append(sizes, len(ops))
		}
		if diff := cmp.Diff([]int{256, 256, 88}, sizes); diff != "" {
			t.Errorf("the transactions differ (-want +got):\n%s", diff)
		}
	})
}

// What a controller sends is one transaction, or several in order.
func TestDoKeepsOrder(t *testing.T) {
	bubble(t, nil, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{Batch: 10})
		defer stop()
		synctest.Wait()
		store.forget()
		rs, err := s.Do(t.Context(), lease.OpenEpoch{Owner: "x"})
		if err != nil {
			t.Fatal(err)
		}
		ops := []lease.Op{lease.PutPool{Epoch: rs[0].Epoch, Pool: lease.Pool{Name: "m"}}}
		for i := range 24 {
			ops = append(ops, lease.PutKey{Epoch: rs[0].Epoch, Key: fmt.Sprint("k", i), UID: "u", Pools: []string{"m"}})
		}
		rs, err = s.Do(t.Context(), ops...)
		if err != nil || len(rs) != len(ops) {
			t.Fatalf("%d results, %v", len(rs), err)
		}
		for i := range rs {
			if rs[i].Err != nil {
				t.Errorf("op %d: %v", i, rs[i].Err)
			}
		}
		if diff := cmp.Diff(ops, slices.Concat(store.seen()[1:]...)); diff != "" {
			t.Errorf("the ops differ (-want +got):\n%s", diff)
		}
	})
}

// An op that the database itself does not take fails alone.
func TestOneBadOpAmongMany(t *testing.T) {
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%03d", i)
	}
	bubble(t, keys, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		synctest.Wait()
		resume := paused(t, s, store)
		store.set(nil, func(ops []lease.Op) error {
			for _, op := range ops {
				if take, ok := op.(lease.Take); ok && take.Holder == "66" {
					return fault.New(fault.Permanent, "value out of range")
				}
			}
			return nil
		})
		a := newAsker(s)
		for i := range keys {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{})
			synctest.Wait()
		}
		resume()
		for range keys {
			if got := a.next(t); (got.id == "66") != (fault.Of(got.err) == fault.Permanent) || (got.id != "66") != (got.err == nil) {
				t.Errorf("take %s: %v", got.id, got.err)
			}
		}
		if n := len(store.seen()); n > 20 {
			t.Errorf("it took %d transactions", n)
		}
		// A database that refuses everything is not asked for ever.
		store.set(nil, func([]lease.Op) error { return fault.New(fault.Permanent, "broken") })
		store.forget()
		resume = paused(t, s, store)
		store.set(nil, func([]lease.Op) error { return fault.New(fault.Permanent, "broken") })
		for i := range keys {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{})
		}
		synctest.Wait()
		resume()
		for range keys {
			if got := a.next(t); fault.Of(got.err) != fault.Permanent {
				t.Errorf("take %s: %v", got.id, got.err)
			}
		}
		if n := len(store.seen()); n > 30 {
			t.Errorf("it took %d transactions", n)
		}
	})
}

// A newer program upgraded the database: everybody hears it, at once.
func TestNewerSchema(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		synctest.Wait()
		resume := paused(t, s, store)
		store.set(nil, func([]lease.Op) error {
			return fault.WithCode(fault.New(fault.Permanent, "upgraded"), "schema")
		})
		a := newAsker(s)
		for i := range 10 {
			a.take(t.Context(), fmt.Sprint(i), service.TakeRequest{})
		}
		synctest.Wait()
		resume()
		for range 10 {
			wantCode(t, a.next(t).err, fault.Permanent, "schema")
		}
		if n := len(store.seen()); n != 1 {
			t.Errorf("it took %d transactions", n)
		}
	})
}

// The transaction was done and its answer lost: what can be sent again is, and
// nothing happens twice.
func TestLostAnswers(t *testing.T) {
	bubble(t, []string{"a", "b"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		synctest.Wait()
		held := func() int {
			p, err := s.Pool(t.Context(), "p")
			if err != nil {
				t.Fatal(err)
			}
			return p.Held
		}
		store.LoseNext()
		g, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p", IdempotencyKey: "k"})
		if err != nil || !g.Replayed || held() != 1 {
			t.Fatalf("%+v, %v; %d keys are held", g, err, held())
		}
		store.LoseNext()
		if _, err := s.Renew(t.Context(), service.RenewRequest{Proof: proof(g)}); err != nil {
			t.Fatal(err)
		}
		store.LoseNext()
		if _, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(g)}); err != nil || held() != 0 {
			t.Fatalf("%v; %d keys are held", err, held())
		}
		// Nobody remembers a grant without an Idempotency-Key: a second one would
		// be another.
		store.LoseNext()
		if err := takeErr(t, s, service.TakeRequest{Pool: "p"}); fault.Of(err) != fault.Timeout || held() != 1 {
			t.Fatalf("%v; %d keys are held", err, held())
		}
		store.LoseNext()
		if _, err := s.Report(t.Context(), service.ReportRequest{Account: "ann", Key: "a", Pool: "p", Outcome: lease.Failed}); fault.Of(err) != fault.Timeout {
			t.Errorf("a report that counts was sent twice: %v", err)
		}
		// Twice lost is lost.
		store.LoseNext()
		store.LoseNext()
		if err := takeErr(t, s, service.TakeRequest{Pool: "p", IdempotencyKey: "k2"}); fault.Of(err) != fault.Timeout {
			t.Error(err)
		}
	})
}

// What is sent again keeps its order.
func TestLostAnswersKeepOrder(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		synctest.Wait()
		resume := paused(t, s, store)
		store.LoseNext() // that of the transaction that is held up
		store.LoseNext()
		done := make(chan error, 4)
		for i := range 4 {
			go func() {
				_, _, err := s.Disable(t.Context(), lease.Disable{Key: "a", Reason: fmt.Sprint(i)})
				done <- err
			}()
			synctest.Wait()
		}
		resume()
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		k, err := s.Key(t.Context(), "a")
		if err != nil || k.Keys[0].Disabled.Reason != "3" {
			t.Errorf("%+v, %v", k.Keys[0].Disabled, err)
		}
		if n := count[lease.Disable](store); n != 8 {
			t.Errorf("%d were sent", n)
		}
	})
}

// A waiter whose grant was lost with the answer gets that one, and no other.
func TestLostGrantOfAWaiter(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		a.take(t.Context(), "w", service.TakeRequest{Wait: time.Minute, IdempotencyKey: "k"})
		synctest.Wait()
		releaseElsewhere(t, store, held)
		store.LoseNext()
		if got := a.next(t); got.err != nil || got.grant.Key != "a" || got.grant.Left != lease.DefaultTTL {
			t.Fatalf("%+v, %v", got.grant, got.err)
		}
	})
}

// A client that goes away leaves nothing behind, wherever its request is.
func TestLeavingAtEveryStep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		wait   time.Duration
		key    string
		// leave ends the request's context, once it is where the case wants it.
		steps func(t *testing.T, s *service.Service, store *tap, a *asker, begin func(), leave func())
	}{
		"before": {
			reason: "nothing is sent", steps: func(_ *testing.T, _ *service.Service, _ *tap, _ *asker, begin, leave func()) {
				leave()
				begin()
			},
		},
		"queued": {
			reason: "what was not sent is dropped", wait: time.Minute,
			steps: func(t *testing.T, s *service.Service, store *tap, _ *asker, begin, leave func()) {
				resume := paused(t, s, store)
				begin()
				leave()
				resume()
				if n := count[lease.Take](store); n != 0 {
					t.Errorf("%d takes were sent", n)
				}
			},
		},
		"in its transaction": {
			reason: "the grant is unclaimed",
			steps:  sentThenLeft,
		},
		"in its transaction, waiting": {
			reason: "the grant is unclaimed", wait: time.Minute,
			steps: sentThenLeft,
		},
		"in its transaction, with a key": {
			reason: "the grant is unclaimed", wait: time.Minute, key: "k",
			steps: sentThenLeft,
		},
		"in its transaction, whose answer is lost": {
			reason: "it is asked what became of it, and the grant is unclaimed", key: "k",
			steps: func(t *testing.T, s *service.Service, store *tap, a *asker, begin, leave func()) {
				store.LoseNext()
				sentThenLeft(t, s, store, a, begin, leave)
			},
		},
		"queued again after its answer was lost": {
			reason: "it is asked what became of it, and the grant is unclaimed", wait: time.Minute, key: "k",
			steps: func(t *testing.T, _ *service.Service, store *tap, _ *asker, begin, leave func()) {
				n, left := 0, make(chan struct{})
				store.set(func([]lease.Op) {
					if n++; n == 2 {
						<-left
					}
				}, nil)
				store.LoseNext()
				begin()
				leave()
				close(left)
			},
		},
		"in its transaction, with nothing free": {
			reason: "it waits no more", wait: time.Minute,
			steps: func(t *testing.T, s *service.Service, store *tap, a *asker, begin, leave func()) {
				held := take(t, s)
				sentThenLeft(t, s, store, a, begin, leave)
				synctest.Wait()
				if p, err := s.Pool(t.Context(), "p"); err != nil || p.Waiting != 0 {
					t.Errorf("%d wait still, %v", p.Waiting, err)
				}
				release(t, s, held)
			},
		},
		"asking as a waiter": {
			reason: "the grant is unclaimed", wait: time.Minute,
			steps: func(t *testing.T, s *service.Service, store *tap, _ *asker, begin, leave func()) {
				held := take(t, s)
				begin()
				at, left := make(chan struct{}), make(chan struct{})
				store.set(func(ops []lease.Op) {
					if hasTake(ops, true) {
						close(at)
						<-left
						store.set(nil, nil)
					}
				}, nil)
				releaseElsewhere(t, store, held)
				<-at
				leave()
				close(left)
			},
		},
		"asking for the last time": {
			reason: "the grant is unclaimed", wait: time.Minute, key: "k",
			steps: func(t *testing.T, s *service.Service, store *tap, _ *asker, begin, leave func()) {
				held := take(t, s)
				begin()
				at, left := make(chan struct{}), make(chan struct{})
				store.set(func(ops []lease.Op) {
					if hasTake(ops, false) {
						close(at)
						<-left
						store.set(nil, nil)
						releaseElsewhere(t, store, held)
					}
				}, nil)
				<-at
				leave()
				close(left)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
				s, stop := start(t, store, service.Limits{})
				defer stop()
				synctest.Wait()
				a := newAsker(s)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				tc.steps(t, s, store, a, func() {
					a.take(ctx, "leaver", service.TakeRequest{Wait: tc.wait, IdempotencyKey: tc.key})
					synctest.Wait()
				}, func() {
					leave()
					synctest.Wait()
				})
				if got := a.next(t); !errors.Is(got.err, context.Canceled) {
					t.Fatalf("the answer is %v", got.err)
				}
				synctest.Wait()
				time.Sleep(lease.UnclaimedFor + time.Second) // of the database's
				p, err := s.Pool(t.Context(), "p")
				if err != nil || p.Held != 0 || p.Waiting != 0 {
					t.Errorf("%s: %d keys are held and %d requests wait (%v)", tc.reason, p.Held, p.Waiting, err)
				}
			})
		})
	}
}

func hasTake(ops []lease.Op, wait bool) bool {
	return slices.ContainsFunc(ops, func(op lease.Op) bool {
		take, ok := op.(lease.Take)
		return ok && take.Wait == wait
	})
}

func sentThenLeft(_ *testing.T, _ *service.Service, store *tap, _ *asker, begin, leave func()) {
	left := make(chan struct{})
	store.set(func(ops []lease.Op) {
		if hasTake(ops, true) || hasTake(ops, false) {
			store.set(nil, nil)
			<-left
		}
	}, nil)
	begin()
	leave()
	close(left)
}

// It was sent, its answer was lost, and it waits for its turn to be sent again.
func TestLeavingBeforeTheSecondTry(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
			s, stop := start(t, store, service.Limits{Batch: 1})
			defer stop()
			synctest.Wait()
			first, second := make(chan struct{}), make(chan struct{})
			n := 0
			store.set(func([]lease.Op) {
				n++
				switch n {
				case 1:
					<-first
				case 2:
					<-second
				}
			}, nil)
			store.LoseNext()
			ctx, leave := context.WithCancel(t.Context())
			a := newAsker(s)
			a.take(ctx, "leaver", service.TakeRequest{Wait: wait, IdempotencyKey: "k"})
			synctest.Wait()
			other := make(chan error, 1)
			go func() { // goes first
				_, err := s.Do(t.Context(), lease.Live{})
				other <- err
			}()
			synctest.Wait()
			close(first)
			synctest.Wait()
			leave()
			if got := a.next(t); !errors.Is(got.err, context.Canceled) {
				t.Fatal(got.err)
			}
			close(second)
			if err := <-other; err != nil {
				t.Fatal(err)
			}
			time.Sleep(lease.UnclaimedFor + time.Second)
			if p, err := s.Pool(t.Context(), "p"); err != nil || p.Held != 0 {
				t.Errorf("wait %s: %d keys are held (%v)", wait, p.Held, err)
			}
		})
	}
}

// The answer and the client's end meet: whichever is seen first, no key is held
// by nobody.
func TestLeavingWithTheAnswer(t *testing.T) {
	const n = 200
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%03d", i)
	}
	bubble(t, keys, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		synctest.Wait()
		got := 0
		for i := range n {
			ctx, leave := context.WithCancel(t.Context())
			store.then(func([]lease.Op) { leave() })
			a := newAsker(s)
			a.take(ctx, "leaver", service.TakeRequest{Wait: time.Duration(i%2) * time.Minute})
			if a.next(t).err == nil {
				got++
			}
			store.then(nil)
		}
		time.Sleep(lease.UnclaimedFor + time.Second)
		if p, err := s.Pool(t.Context(), "p"); err != nil || p.Held != got {
			t.Errorf("%d grants arrived and %d keys are held (%v)", got, p.Held, err)
		}
	})
}

// A request that is sent twice, of which the second is given up, leaves the
// grant of the first alone.
func TestLeavingAReplay(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		r := service.TakeRequest{Account: "ann", Pool: "p", Holder: "h", IdempotencyKey: "k"}
		g, err := s.Take(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		a := newAsker(s)
		sentThenLeft(t, s, store, a, func() {
			a.take(ctx, "again", r)
			synctest.Wait()
		}, leave)
		if got := a.next(t); !errors.Is(got.err, context.Canceled) {
			t.Fatal(got.err)
		}
		time.Sleep(lease.UnclaimedFor + time.Second)
		release(t, s, g)
	})
}

// The client gave its request up and sent it again: whichever of the two the
// server sees end first, what the second got is whole.
func TestGivenUpAndSentAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		test   func(t *testing.T, s *service.Service, store *tap, r service.TakeRequest) service.Grant
	}{
		"undelivered later": {
			reason: "the first answer fails after the second was given",
			test: func(t *testing.T, s *service.Service, _ *tap, r service.TakeRequest) service.Grant {
				first, err := s.Take(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				second, err := s.Take(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				s.Undelivered(first)
				return second
			},
		},
		"undelivered meanwhile": {
			reason: "the first answer fails while the second is made",
			test: func(t *testing.T, s *service.Service, store *tap, r service.TakeRequest) service.Grant {
				first, err := s.Take(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				store.then(func([]lease.Op) { s.Undelivered(first) })
				second, err := s.Take(t.Context(), r)
				store.then(nil)
				if err != nil {
					t.Fatal(err)
				}
				return second
			},
		},
		"in one transaction": {
			reason: "the first is given up after both were sent",
			test: func(t *testing.T, s *service.Service, store *tap, r service.TakeRequest) service.Grant {
				resume := paused(t, s, store)
				ctx, leave := context.WithCancel(t.Context())
				a := newAsker(s)
				a.take(ctx, "first", r)
				synctest.Wait()
				a.take(t.Context(), "second", r)
				synctest.Wait()
				store.then(func(ops []lease.Op) {
					if hasTake(ops, false) {
						store.then(nil)
						leave()
						time.Sleep(time.Millisecond) // it is seen
					}
				})
				resume()
				var second service.Grant
				for range 2 {
					switch got := a.next(t); {
					case got.id == "second" && got.err == nil:
						second = got.grant
					case got.id == "second" || !errors.Is(got.err, context.Canceled):
						t.Fatal(got.id, got.err)
					}
				}
				return second
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
				s, stop := start(t, store, service.Limits{})
				defer stop()
				synctest.Wait()
				g := tc.test(t, s, store, service.TakeRequest{Account: "ann", Pool: "p", Holder: "h", IdempotencyKey: "k"})
				time.Sleep(lease.UnclaimedFor + time.Second)
				if _, err := s.Renew(t.Context(), service.RenewRequest{Proof: proof(g)}); err != nil {
					t.Errorf("%s: %v", tc.reason, err)
				}
			})
		})
	}
}

// The wait ends while it is asked for, in vain.
func TestNothingAtTheDeadline(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		take(t, s)
		a := newAsker(s)
		began := time.Now()
		a.take(t.Context(), "w", service.TakeRequest{Wait: 10 * time.Second, IdempotencyKey: "k"})
		time.Sleep(9900 * time.Millisecond)
		store.set(func(ops []lease.Op) {
			if hasTake(ops, true) {
				store.set(nil, nil)
				time.Sleep(300 * time.Millisecond)
			}
		}, nil)
		rs, err := store.Memory.Do(t.Context(), []lease.Op{lease.Lift{Key: "a"}}) // makes it ask
		if err != nil || rs[0].Err != nil {
			t.Fatal(err, rs)
		}
		got := a.next(t)
		wantCode(t, got.err, fault.Quota, "none_free")
		if e, _ := errors.AsType[*service.NoneFree](got.err); e.Position != 1 || got.at.Sub(began) != 10200*time.Millisecond {
			t.Errorf("place %d after %s", e.Position, got.at.Sub(began))
		}
		p, err := s.Pool(t.Context(), "p")
		if err != nil || p.Waiting != 0 {
			t.Errorf("%d wait still, %v", p.Waiting, err)
		}
	})
}

// A key comes free between the transaction of a waiter's first try and its
// answer.
func TestFreedMeanwhile(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		held := take(t, s)
		synctest.Wait()
		store.then(func(ops []lease.Op) {
			if !hasTake(ops, true) {
				return
			}
			store.then(nil)
			rs, err := store.Memory.Do(context.Background(), []lease.Op{lease.Force{Key: held.Key}})
			if err != nil || rs[0].Err != nil {
				t.Error(err, rs)
			}
			time.Sleep(time.Millisecond) // the news comes first
		})
		began := time.Now()
		if _, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p", Wait: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*time.Millisecond {
			t.Errorf("it took %s", took)
		}
	})
}

// The wait ends while the grant is on its way: it is given to who listens still.
func TestGrantAtTheDeadline(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		held := take(t, s)
		a := newAsker(s)
		began := time.Now()
		a.take(t.Context(), "w", service.TakeRequest{Wait: 10 * time.Second})
		time.Sleep(9900 * time.Millisecond)
		store.set(func(ops []lease.Op) {
			if hasTake(ops, true) {
				store.set(nil, nil)
				time.Sleep(300 * time.Millisecond)
			}
		}, nil)
		releaseElsewhere(t, store, held)
		if got := a.next(t); got.err != nil || got.at.Sub(began) != 10200*time.Millisecond {
			t.Errorf("%v after %s", got.err, got.at.Sub(began))
		}
	})
}

// A key that comes free at the very end goes to who still waits.
func TestLastTry(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		store.deaf = true
		s, stop := start(t, store, service.Limits{})
		defer stop()
		other, stopOther := start(t, store.Memory, service.Limits{})
		defer stopOther()
		held := take(t, other)
		a := newAsker(s)
		a.take(t.Context(), "w", service.TakeRequest{Wait: 3500 * time.Millisecond})
		time.Sleep(3 * time.Second)
		release(t, other, held)
		if got := a.next(t); got.err != nil {
			t.Error(got.err)
		}
	})
}

func TestUndelivered(t *testing.T) {
	bubble(t, []string{"a"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		r := service.TakeRequest{Account: "ann", Pool: "p", IdempotencyKey: "k"}
		g, err := s.Take(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		s.Undelivered(g)
		time.Sleep(time.Second)
		again, err := s.Take(t.Context(), r)
		if err != nil || again.ID != g.ID || !again.Replayed || !again.Secret.Equal(g.Secret) || again.Left != lease.DefaultTTL {
			t.Fatalf("the same request again got %+v, %v", again, err)
		}
		s.Undelivered(again) // the first answer may have arrived
		time.Sleep(lease.UnclaimedFor)
		release(t, s, again)

		g = take(t, s)
		store.Outage(true)
		s.Undelivered(g)
		time.Sleep(time.Minute)
		store.Outage(false)
		time.Sleep(sweepAgain + lease.UnclaimedFor + time.Second)
		if got, err := s.Lease(t.Context(), g.ID); err != nil || got.End != lease.Unclaimed {
			t.Errorf("it is %+v, %v", got, err)
		}
	})
}

// sweepAgain is how often the service tries while nobody calls.
const sweepAgain = 2 * time.Second
