package api_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/httpd"
)

// A wait outlives the server's time to write, the time of a call and the Go
// client's own; and a hand-off takes milliseconds.
func TestWaitOutlivesTimeouts(t *testing.T) {
	const short = 300 * time.Millisecond
	store := leasetest.NewMemory(leasetest.Options{})
	s := run(t, store, service.Limits{})
	h, err := api.New(api.Options{Auth: newAccounts(), Desk: s, Log: slog.New(slog.DiscardHandler), Limits: api.Limits{CallTimeout: short}})
	if err != nil {
		t.Fatal(err)
	}
	var takes atomic.Int64
	srv, err := httpd.New(httpd.Options{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/api/v1/leases" {
				takes.Add(1)
			}
			h.ServeHTTP(w, r)
		}),
		Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler), WriteTimeout: short, ReadTimeout: short,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx) }()
	defer func() { cancel(); <-done }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c, err := client.New(client.Options{
		BaseURL: srv.URL(), Token: runnerToken, HTTPClient: &http.Client{Transport: transport, Timeout: 3 * short},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Publish(t.Context(), lease.Publish{Pool: lease.Pool{Name: "one"}, Items: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	first, err := c.Take(t.Context(), "one", client.TakeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var freed time.Time
	var releasing sync.WaitGroup
	releasing.Go(func() {
		time.Sleep(4 * short) // longer than every timeout
		freed = time.Now()
		if _, err := first.Release(t.Context(), client.ReleaseRequest{}); err != nil {
			t.Error(err)
		}
	})
	second, err := c.Take(t.Context(), "one", client.TakeOptions{Wait: 30 * time.Second, TTL: 10 * time.Second})
	took := time.Now()
	releasing.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if late := took.Sub(freed); late > time.Second {
		t.Errorf("the hand-off took %s", late)
	}
	if n := takes.Load(); n != 2 {
		t.Errorf("%d requests for two takes: a wait was cut", n)
	}
	// The wait does not count: without what the server tells of it, 1.2 s of the
	// ten seconds would be missing.
	if left := second.Left(); left < 9500*time.Millisecond || left > 10*time.Second {
		t.Errorf("after a wait %s are left of 10 s", left)
	}
}

// A client that goes away while it waits is never granted anything, and its key
// goes to the next; its place is kept for its return.
func TestClientLeavesWhileItWaits(t *testing.T) {
	d := serveDesk(t, leasetest.Options{}, nil)
	d.publish(t, lease.Pool{Name: "one"}, "a")
	c := d.client(t, runnerToken)
	held, err := c.Take(t.Context(), "one", client.TakeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := c.Take(ctx, "one", client.TakeOptions{Wait: -1, IdempotencyKey: "k"})
		gone <- err
	}()
	waits := func(n int) {
		t.Helper()
		for range 500 {
			p, err := c.Pool(t.Context(), "one", client.Page{})
			if err == nil && p.Waiting == n {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("there are never %d waiters", n)
	}
	waits(1)
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait: %v", err)
	}
	waits(0)
	list, err := c.Waiters(t.Context(), "one", client.Page{})
	if err != nil || len(list.Items) != 1 || !list.Items[0].Lost || list.Items[0].Position != 0 {
		t.Errorf("its place: %+v, %v", list, err)
	}
	if _, err := held.Release(t.Context(), client.ReleaseRequest{}); err != nil {
		t.Fatal(err)
	}
	if l, err := d.client(t, secondToken).Take(t.Context(), "one", client.TakeOptions{}); err != nil || l.Key() != "a" {
		t.Errorf("the key must go to who is there: %v, %v", l, err)
	}
}

// undeliverable loses the answer to a take: when it is written, or, as most
// answers do, when what was written goes out.
type undeliverable struct {
	http.ResponseWriter
	cut string
}

func (u *undeliverable) Write(b []byte) (int, error) {
	if u.cut == "write" {
		return 0, net.ErrClosed
	}
	return u.ResponseWriter.Write(b)
}

func (u *undeliverable) FlushError() error {
	if u.cut == "flush" {
		return net.ErrClosed
	}
	return nil
}

// A grant that does not reach its client ends within seconds, or is had by the
// same request when it comes again.
func TestUndelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := leasetest.NewMemory(leasetest.Options{})
		s := run(t, store, service.Limits{})
		synctest.Wait()
		if _, err := s.Publish(t.Context(), lease.Publish{Pool: lease.Pool{Name: "one"}, Items: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		h, err := api.New(api.Options{Auth: newAccounts(), Desk: s, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		take := func(key, cut string) *discard {
			w := &discard{header: http.Header{}}
			h.ServeHTTP(&undeliverable{ResponseWriter: w, cut: cut}, post(t.Context(), "/api/v1/leases", `{"pool":"one"}`, "Idempotency-Key", key))
			synctest.Wait()
			return w
		}
		state := func() client.LeaseInfo {
			k, err := s.Key(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			l, err := s.Lease(t.Context(), k.Keys[0].ID().String())
			if err != nil {
				t.Fatal(err)
			}
			return client.LeaseInfo{State: string(l.State) + string(l.End), SecondsLeft: client.SecondsOf(l.Left)}
		}
		take("first", "flush")
		if got := state(); got.SecondsLeft > 5 {
			t.Errorf("a grant that was not written lasts %+v", got)
		}
		if w := take("first", ""); w.status != 200 || w.header.Get("Lease-Secret") == "" {
			t.Errorf("the same request again: %d %s", w.status, w.body.Bytes())
		}
		if got := state(); got.SecondsLeft != 600 {
			t.Errorf("fetched the second time it lasts %+v", got)
		}
		time.Sleep(11 * time.Minute)
		take("second", "write")
		time.Sleep(6 * time.Second)
		if got := state(); got.State != "unclaimed" {
			t.Errorf("nobody came again: %+v", got)
		}
	})
}

// leaver is a store whose client leaves in the very moment of the grant.
type leaver struct {
	*leasetest.Memory
	leave func()
}

func (l *leaver) Do(ctx context.Context, ops []lease.Op) ([]lease.Result, error) {
	r, err := l.Memory.Do(ctx, ops)
	for _, op := range ops {
		if _, ok := op.(lease.Take); ok && l.leave != nil {
			l.leave()
		}
	}
	return r, err
}

func TestClientLeavesAtTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &leaver{Memory: leasetest.NewMemory(leasetest.Options{})}
		s := run(t, store, service.Limits{})
		synctest.Wait()
		if _, err := s.Publish(t.Context(), lease.Publish{Pool: lease.Pool{Name: "one"}, Items: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		h, err := api.New(api.Options{Auth: newAccounts(), Desk: s, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		store.leave = cancel
		w := &discard{header: http.Header{}}
		h.ServeHTTP(w, post(ctx, "/api/v1/leases", `{"pool":"one"}`))
		if w.status != 499 || w.body.Len() > 0 || w.header.Get("Lease-Secret") != "" {
			t.Errorf("a client that left was answered: %d %s", w.status, w.body.Bytes())
		}
		store.leave = nil
		time.Sleep(6 * time.Second)
		w = &discard{header: http.Header{}}
		if h.ServeHTTP(w, post(t.Context(), "/api/v1/leases", `{"pool":"one"}`)); w.status != 201 {
			t.Errorf("six seconds later: %d %s", w.status, w.body.Bytes())
		}
	})
}

// leavingAccess is asked how to reach a key, and the client leaves meanwhile.
type leavingAccess struct{ leave func() }

func (a leavingAccess) Access(context.Context, string, string, map[string]string) (client.ProxyAccess, error) {
	a.leave()
	return client.ProxyAccess{}, nil
}

func TestClientLeavesBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, leasetest.NewMemory(leasetest.Options{}), service.Limits{})
		synctest.Wait()
		if _, err := s.Publish(t.Context(), lease.Publish{Pool: lease.Pool{Name: "one"}, Items: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		h, err := api.New(api.Options{Auth: newAccounts(), Desk: s, Access: leavingAccess{cancel}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		w := &discard{header: http.Header{}}
		h.ServeHTTP(w, post(ctx, "/api/v1/leases", `{"pool":"one"}`))
		if w.status != 499 || w.body.Len() > 0 || w.header.Get("Lease-Secret") != "" {
			t.Errorf("a client that left was answered: %d %s", w.status, w.body.Bytes())
		}
		time.Sleep(6 * time.Second)
		if k, err := s.Key(t.Context(), "a"); err != nil || k.Keys[0].State(k.Now) != lease.Free {
			t.Errorf("six seconds later the key is %+v, %v", k.Keys, err)
		}
	})
}

// A stop of the server ends waits at once, with a type of its own, and the
// client goes on waiting elsewhere, or until the server is back.
func TestStopEndsWaits(t *testing.T) {
	store := leasetest.NewMemory(leasetest.Options{})
	s := run(t, store, service.Limits{})
	if _, err := s.Publish(t.Context(), lease.Publish{Pool: lease.Pool{Name: "one"}, Items: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	held, err := s.Take(t.Context(), service.TakeRequest{Account: "nightly", Pool: "one"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Options{Auth: newAccounts(), Desk: s, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	serveOnce := func(address string) (srv *httpd.Server, stop func() time.Duration) {
		srv, err := httpd.New(httpd.Options{Handler: h, Address: address, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- srv.Serve(ctx) }()
		return srv, func() time.Duration {
			begin := time.Now()
			cancel()
			<-done
			return time.Since(begin)
		}
	}
	srv, stop := serveOnce("127.0.0.1:0")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	ask := func() (int, string) {
		req, err := http.NewRequest("POST", srv.URL()+"/api/v1/leases", strings.NewReader(`{"pool":"one","wait":60}`))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		req.Header.Set("Authorization", "Bearer "+runnerToken)
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	type answer struct {
		status int
		body   string
	}
	raw := make(chan answer, 1)
	go func() {
		status, body := ask()
		raw <- answer{status, body}
	}()
	c, err := client.New(client.Options{
		BaseURL: srv.URL(), Token: runnerToken, HTTPClient: &http.Client{Transport: transport, Timeout: 30 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	type taken struct {
		l   *client.Lease
		err error
	}
	patient := make(chan taken, 1)
	go func() {
		l, err := c.Take(t.Context(), "one", client.TakeOptions{Wait: 25 * time.Second})
		patient <- taken{l, err}
	}()
	for {
		p, err := s.Pool(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		if p.Waiting == 2 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if took := stop(); took > 3*time.Second {
		t.Errorf("waiting requests held the stop up for %s", took)
	}
	if got := <-raw; got.status != 503 || !strings.Contains(got.body, `"urn:fleetdesk:problem:unavailable:stopping"`) {
		t.Errorf("a wait at the stop: %d %s", got.status, got.body)
	}
	_, stop = serveOnce(srv.Addr().String()) // it is back
	defer stop()
	if _, err := s.Release(t.Context(), service.ReleaseRequest{Proof: service.Proof{ID: held.ID, Secret: held.Secret, Account: "nightly"}}); err != nil {
		t.Fatal(err)
	}
	if got := <-patient; got.err != nil || got.l.Key() != "a" {
		t.Errorf("the Go client across the restart: %v, %v", got.l, got.err)
	}
}

// Waiting requests are bounded, for one token and for all.
func TestWaitsAreBounded(t *testing.T) {
	for reason, c := range map[string]struct {
		limits api.Limits
		second string
		status int
	}{
		"one token":  {api.Limits{WaitsPerToken: 1}, runnerToken, 429},
		"the server": {api.Limits{Waits: 1}, secondToken, 503},
	} {
		d := serveDesk(t, leasetest.Options{}, func(o *api.Options) { o.Limits = c.limits })
		d.publish(t, lease.Pool{Name: "none"})
		ctx, cancel := context.WithCancel(t.Context())
		var first sync.WaitGroup
		first.Go(func() {
			_, _ = d.client(t, runnerToken).Take(ctx, "none", client.TakeOptions{Wait: 30 * time.Second})
		})
		for {
			p, err := d.service.Pool(t.Context(), "none")
			if err != nil {
				t.Fatal(err)
			}
			if p.Waiting == 1 {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		take := func(wait string) (int, string, string) {
			req, err := http.NewRequest("POST", d.url+"/api/v1/leases", strings.NewReader(`{"pool":"none","wait":`+wait+`}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+c.second)
			resp, err := d.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, resp.Header.Get("Retry-After"), string(b)
		}
		if status, after, body := take("10"); status != c.status || after != "1" || !strings.Contains(body, "quota:waits") {
			t.Errorf("%s: a second wait: %d, Retry-After %q, %s", reason, status, after, body)
		}
		if status, _, body := take("0"); status != 503 || !strings.Contains(body, "none_free") {
			t.Errorf("%s: who does not wait is no part of it: %d %s", reason, status, body)
		}
		cancel()
		first.Wait()
		for range 500 { // the server sees it a moment later
			if status, _, body := take("1"); status == 503 && strings.Contains(body, "none_free") {
				break
			} else if !strings.Contains(body, "quota:waits") {
				t.Errorf("%s: after the first left: %d %s", reason, status, body)
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// An outage of the database is no empty pool.
func TestOutageIsNotNoneFree(t *testing.T) {
	d := serveDesk(t, leasetest.Options{}, nil)
	c := d.client(t, runnerToken)
	l, err := c.Take(t.Context(), "win", client.TakeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.store.Outage(true)
	_, take := c.Take(t.Context(), "win", client.TakeOptions{})
	_, pools := c.Pools(t.Context(), client.Page{})
	_, info := c.LeaseInfo(t.Context(), l.ID())
	_, release := l.Release(t.Context(), client.ReleaseRequest{})
	for name, err := range map[string]error{"take": take, "pools": pools, "lease": info, "release": release, "renew": l.Renew(t.Context(), client.RenewRequest{})} {
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Status != 503 || e.Class != client.Unavailable || e.Code != "store" || e.Detail != "" {
			t.Errorf("%s during an outage: %#v", name, err)
		}
	}
	d.store.Outage(false)
	// The store is asked again a moment later.
	if _, err := l.Release(t.Context(), client.ReleaseRequest{}); err != nil {
		t.Errorf("after the outage: %v", err)
	}
}
