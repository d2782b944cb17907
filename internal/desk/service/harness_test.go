package service_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tap is a store whose transactions a test sees and holds up.
type tap struct {
	*leasetest.Memory

	mu   sync.Mutex
	sent [][]lease.Op
	// hold, when not nil, is called before each transaction.
	hold func(ops []lease.Op)
	// refuse, when not nil, may make a transaction fail.
	refuse func(ops []lease.Op) error
	// after, when not nil, is called between a transaction's end and its answer.
	after func(ops []lease.Op)
	// deaf makes Watch tell of nothing.
	deaf bool
}

func newTap() *tap { return &tap{Memory: leasetest.NewMemory(leasetest.Options{})} }

func (s *tap) Do(ctx context.Context, ops []lease.Op) ([]lease.Result, error) {
	s.mu.Lock()
	s.sent = append(s.sent, slices.Clone(ops))
	hold, refuse, after := s.hold, s.refuse, s.after
	s.mu.Unlock()
	if hold != nil {
		hold(ops)
	}
	if ctx.Err() != nil {
		return nil, fault.Wrap(fault.Timeout, ctx.Err())
	}
	if refuse != nil {
		if err := refuse(ops); err != nil {
			return nil, err
		}
	}
	results, err := s.Memory.Do(ctx, ops)
	if after != nil {
		after(ops)
	}
	return results, err
}

func (s *tap) Watch(ctx context.Context, w lease.Watcher) error {
	if s.deaf {
		<-ctx.Done()
		return nil
	}
	return s.Memory.Watch(ctx, w)
}

// set changes what the store does from the next transaction on.
func (s *tap) set(hold func([]lease.Op), refuse func([]lease.Op) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold, s.refuse = hold, refuse
}

// then has something done between the next transactions' ends and their answers.
func (s *tap) then(after func([]lease.Op)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = after
}

// forget drops what was seen.
func (s *tap) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = nil
}

// seen returns the ops of each transaction since the last forget.
func (s *tap) seen() [][]lease.Op {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// count counts the ops seen of the type T.
func count[T lease.Op](s *tap) int {
	n := 0
	for _, ops := range s.seen() {
		for _, op := range ops {
			if _, ok := op.(T); ok {
				n++
			}
		}
	}
	return n
}

// start runs a service on the store until the returned function is called or the
// test ends.
func start(t *testing.T, store lease.Store, limits service.Limits) (s *service.Service, stop func()) {
	t.Helper()
	s, err := service.New(service.Options{Store: store, Log: discard(), Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

// bubble runs a test with a clock of its own, on a store with the pool "p".
func bubble(t *testing.T, keys []string, test func(t *testing.T, store *tap)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		publish(t, store, "p", keys...)
		test(t, store)
	})
}

func publish(t *testing.T, store lease.Store, pool string, keys ...string) {
	t.Helper()
	rs, err := store.Do(context.Background(), []lease.Op{lease.Publish{Pool: lease.Pool{Name: pool}, Items: keys}})
	if err == nil {
		err = rs[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
}

// take takes a key of the pool "p" at once.
func take(t *testing.T, s *service.Service) service.Grant {
	t.Helper()
	g, err := s.Take(t.Context(), service.TakeRequest{Account: "ann", Pool: "p"})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func proof(g service.Grant) service.Proof {
	return service.Proof{ID: g.ID, Secret: g.Secret, Account: g.Account}
}

func release(t *testing.T, s *service.Service, g service.Grant) {
	t.Helper()
	if _, err := s.Release(t.Context(), service.ReleaseRequest{Proof: proof(g)}); err != nil {
		t.Fatal(err)
	}
}

// releaseElsewhere gives a key back through another process.
func releaseElsewhere(t *testing.T, store *tap, g service.Grant) {
	t.Helper()
	id, err := lease.ParseID(g.ID)
	if err != nil {
		t.Fatal(err)
	}
	by := lease.Proof{ID: id, Secret: lease.HashOf(g.Secret.Reveal()), Account: g.Account}
	rs, err := store.Memory.Do(context.Background(), []lease.Op{lease.Release{Proof: by}})
	if err == nil {
		err = rs[0].Err
	}
	if err != nil {
		t.Error(err)
	}
}

// answer is what a take got.
type answer struct {
	id    string
	grant service.Grant
	err   error
	at    time.Time
}

// asker takes in goroutines, each under an id.
type asker struct {
	s       *service.Service
	answers chan answer
}

func newAsker(s *service.Service) *asker { return &asker{s, make(chan answer, 10_000)} }

func (a *asker) take(ctx context.Context, id string, r service.TakeRequest) {
	if r.Account == "" {
		r.Account = "ann"
	}
	if r.Pool == "" {
		r.Pool = "p"
	}
	if r.Holder == "" {
		r.Holder = id
	}
	go func() {
		g, err := a.s.Take(ctx, r)
		a.answers <- answer{id, g, err, time.Now()}
	}()
}

// next returns the next answer; nothing may be outstanding but time.
func (a *asker) next(t *testing.T) answer {
	t.Helper()
	select {
	case got := <-a.answers:
		return got
	case <-time.After(10 * time.Minute):
		t.Fatal("no answer came")
		return answer{}
	}
}

// none fails when there is an answer already.
func (a *asker) none(t *testing.T, reason string) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-a.answers:
		t.Fatalf("%s: %s got %s, %v", reason, got.id, got.grant.ID, got.err)
	default:
	}
}

func wantCode(t *testing.T, err error, class fault.Class, code string) {
	t.Helper()
	if fault.Of(err) != class || fault.CodeOf(err) != code {
		t.Fatalf("got %v (%s, code %q), want %s with the code %q", err, fault.Of(err), fault.CodeOf(err), class, code)
	}
}
