package api_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
)

// slow is an authenticator whose store looks at once and answers later, as one
// behind a network does.
type slow struct {
	*accounts
	mu    sync.Mutex
	takes time.Duration
	fails bool // panics instead of answering
	ctx   []context.Context
}

func (s *slow) Authenticate(ctx context.Context, bearer string) (token.Principal, error) {
	p, err := s.accounts.Authenticate(ctx, bearer)
	s.mu.Lock()
	takes, fails := s.takes, s.fails
	s.ctx = append(s.ctx, ctx)
	s.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return token.Principal{}, fault.Wrap(fault.Timeout, ctx.Err())
	}
	if fails {
		panic("the store broke")
	}
	return p, err
}

func (s *slow) setTakes(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = d
}

func newSlowAPI(t *testing.T, takes time.Duration) (http.Handler, *slow) {
	t.Helper()
	auth := &slow{accounts: newAccounts(), takes: takes}
	h, err := api.New(api.Options{
		Auth: auth, Proxies: exampleFleet(), Log: slog.New(slog.DiscardHandler),
		Limits: api.Limits{PerToken: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h, auth
}

func (a *accounts) timesAsked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

const near = "192.0.2.1:1000"

// wants makes a request and compares its status, and how often the store was
// asked so far.
func wants(t *testing.T, h http.Handler, a *accounts, bearer string, status, asked int, reason string) {
	t.Helper()
	if w := direct(h, bearer, near); w.Code != status {
		t.Errorf("%s: status %d, want %d", reason, w.Code, status)
	}
	if got := a.timesAsked(); got != asked {
		t.Errorf("%s: the store was asked %d times, want %d", reason, got, asked)
	}
}

func TestAnswersAreKeptForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newAPI(t, api.Limits{})
		wants(t, h, a, viewerToken, 200, 1, "the first request asks")
		wants(t, h, a, viewerToken, 200, 1, "the next does not")
		wants(t, h, a, otherToken, 200, 2, "another token is another question")
		wants(t, h, a, "wrong", 401, 3, "a wrong one asks")
		wants(t, h, a, "wrong", 401, 4, "and each time: a refusal is not kept")
		time.Sleep(time.Second - time.Nanosecond)
		wants(t, h, a, viewerToken, 200, 4, "just within the second")
		time.Sleep(time.Nanosecond)
		wants(t, h, a, viewerToken, 200, 5, "a second later it asks again")
		time.Sleep(time.Second - time.Nanosecond)
		wants(t, h, a, viewerToken, 200, 5, "and knows for a second more")
	})
}

// What another process changes is felt within a second of the question, however
// busy the token is.
func TestChangesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newAPI(t, api.Limits{PerToken: -1})
		wants(t, h, a, viewerToken, 200, 1, "valid")
		time.Sleep(300 * time.Millisecond)
		a.elsewhere(func() { delete(a.byText, viewerToken) })
		begin := time.Now()
		for direct(h, viewerToken, near).Code == 200 {
			if time.Since(begin) > time.Second {
				t.Fatal("a revoked token is still let through after a second")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got := time.Since(begin); got != 700*time.Millisecond {
			t.Errorf("refused after %s, want 700ms: the second counts from the question", got)
		}
		a.elsewhere(func() { a.byText[otherToken] = token.Principal{Account: "other", Role: "", TokenID: "t2"} })
		if w := direct(h, otherToken, near); w.Code != 403 {
			t.Errorf("a role that was taken before the first request: %d", w.Code)
		}
	})
}

func TestChangesHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newAPI(t, api.Limits{PerToken: -1})
		wants(t, h, a, viewerToken, 200, 1, "valid")
		a.set(func() { delete(a.byText, viewerToken) })
		wants(t, h, a, viewerToken, 401, 2, "a change made here holds at once")
		wants(t, h, a, otherToken, 200, 3, "another token")
		a.set(func() {})
		wants(t, h, a, otherToken, 200, 4, "any change asks anew")
		wants(t, h, a, otherToken, 200, 4, "but once")
	})
}

// A store that does not answer is covered for by nobody beyond the second.
func TestOutageIsNotCoveredFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newAPI(t, api.Limits{})
		wants(t, h, a, viewerToken, 200, 1, "valid")
		a.elsewhere(func() { a.down = fault.New(fault.Unavailable, "the database is gone") })
		wants(t, h, a, viewerToken, 200, 1, "within the second nobody asks")
		time.Sleep(time.Second)
		for i := range 3 {
			wants(t, h, a, viewerToken, 503, 2+i, "after it each request asks, and is told")
		}
		w := direct(h, viewerToken, near)
		if p := problemOf(t, w); p.Type != "urn:fleetdesk:problem:unavailable:store" || w.Header().Get("Retry-After") == "" {
			t.Errorf("got %+v", p)
		}
		a.elsewhere(func() { a.down = nil })
		wants(t, h, a, viewerToken, 200, 6, "as soon as it answers again")
	})
}

func TestABurstAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newSlowAPI(t, 100*time.Millisecond)
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if w := direct(h, viewerToken, near); w.Code != 200 {
					t.Errorf("status %d", w.Code)
				}
			})
			all.Go(func() {
				if w := direct(h, otherToken, near); w.Code != 200 {
					t.Errorf("status %d", w.Code)
				}
			})
		}
		all.Wait()
		if got := a.timesAsked(); got != 2 {
			t.Errorf("200 requests of each of 2 tokens asked the store %d times", got)
		}
	})
}

// The one who asks may go away; those who wait for the answer get it.
func TestWhoeverAsksMayLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newSlowAPI(t, 200*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/proxies", nil).WithContext(ctx)
			r.Header.Set("Authorization", "Bearer "+viewerToken)
			r.RemoteAddr = near
			h.ServeHTTP(httptest.NewRecorder(), r)
		})
		synctest.Wait()
		all.Go(func() {
			if w := direct(h, viewerToken, near); w.Code != 200 {
				t.Errorf("who waited was told %d", w.Code)
			}
		})
		synctest.Wait()
		cancel()
		all.Wait()
		if got := a.timesAsked(); got != 1 {
			t.Errorf("asked %d times", got)
		}
		if _, bounded := a.ctx[0].Deadline(); !bounded {
			t.Error("the question has no deadline")
		}
	})
}

// A store that takes longer than a second gives no answer that is kept, and a
// question that old is nobody's to wait for who comes later.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newSlowAPI(t, 3*time.Second)
		begin := time.Now()
		var all sync.WaitGroup
		request := func(after, until time.Duration, status int, reason string) {
			all.Go(func() {
				time.Sleep(after)
				w := direct(h, viewerToken, near)
				if w.Code != status || time.Since(begin) != until {
					t.Errorf("%s: %d after %s, want %d after %s", reason, w.Code, time.Since(begin), status, until)
				}
			})
		}
		request(0, 3*time.Second, 200, "the first asks")
		request(500*time.Millisecond, 3*time.Second, 200, "the second waits for the same answer")
		request(2*time.Second, 5*time.Second, 401, "the third asks anew, since the token ended meanwhile")
		time.Sleep(time.Second)
		a.elsewhere(func() { delete(a.byText, viewerToken) })
		all.Wait()
		if got := a.timesAsked(); got != 2 {
			t.Errorf("asked %d times, want 2", got)
		}
		wants(t, h, a.accounts, viewerToken, 401, 3, "what the first was told is not kept")
	})
}

// A revocation here, while the store is being asked, holds for whoever comes
// after it: the pending answer is from before.
func TestRevokedWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newSlowAPI(t, 200*time.Millisecond)
		var all sync.WaitGroup
		all.Go(func() {
			if w := direct(h, viewerToken, near); w.Code != 200 {
				t.Errorf("who came before was told %d", w.Code)
			}
		})
		synctest.Wait()
		a.set(func() { delete(a.byText, viewerToken) })
		a.setTakes(0)
		if w := direct(h, viewerToken, near); w.Code != 401 {
			t.Errorf("who came after was told %d by the question from before", w.Code)
		}
		all.Wait() // the old answer arrives
		if w := direct(h, viewerToken, near); w.Code != 401 {
			t.Errorf("the old answer was kept: %d", w.Code)
		}
	})
}

// A check that panics costs its own request, and leaves no one waiting.
func TestCheckPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := newSlowAPI(t, 100*time.Millisecond)
		a.fails = true
		var all sync.WaitGroup
		all.Go(func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			direct(h, viewerToken, near)
		})
		synctest.Wait()
		all.Go(func() {
			if w := direct(h, viewerToken, near); w.Code != 503 {
				t.Errorf("who waited was told %d, want 503", w.Code)
			}
		})
		all.Wait()
		a.fails = false
		wants(t, h, a.accounts, viewerToken, 200, 2, "the next request asks anew")
	})
}

// stuck never answers and does not look at its context.
type stuck struct{ until chan struct{} }

func (s stuck) Authenticate(context.Context, string) (token.Principal, error) {
	<-s.until
	return token.Principal{}, fault.New(fault.Denied, "too late")
}

func (stuck) Generation() uint64 { return 0 }

// Who waits for somebody else's question waits no longer than for an own one.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := stuck{make(chan struct{})}
		h, err := api.New(api.Options{
			Auth: auth, Proxies: exampleFleet(), Log: slog.New(slog.DiscardHandler), Limits: api.Limits{AuthTimeout: 2 * time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() { direct(h, viewerToken, near) })
		synctest.Wait()
		begin := time.Now()
		if w := direct(h, viewerToken, near); w.Code != 503 || time.Since(begin) != 2*time.Second {
			t.Errorf("status %d after %s, want 503 after 2s", w.Code, time.Since(begin))
		}
		close(auth.until)
		all.Wait()
	})
}
