package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
)

// sse is an open stream.
type sse struct {
	resp  *http.Response
	lines *bufio.Scanner
}

// follow opens a stream as a browser does.
func (d *desk) follow(t *testing.T, bearer, query string, header ...string) *sse {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", d.url+"/api/v1/events"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: d.http.Transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return &sse{resp, bufio.NewScanner(resp.Body)}
}

// block reads up to the next empty line; nil at the end.
func (s *sse) block() []string {
	var all []string
	for s.lines.Scan() {
		if s.lines.Text() == "" {
			return all
		}
		all = append(all, s.lines.Text())
	}
	return nil
}

func TestEventsOnTheWire(t *testing.T) {
	d := serveDesk(t, leasetest.Options{Now: began}, nil)
	s := d.follow(t, viewerToken, "")
	if h := s.resp.Header; s.resp.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", s.resp.StatusCode, h)
	}
	// The first block says where the stream begins: a client that is cut off
	// before the first event goes on there.
	first := s.block()
	if len(first) != 3 || first[0] != "retry: 1000" || first[1] != "id: 1" {
		t.Fatalf("the stream begins with %q", first)
	}
	l, err := d.client(t, runnerToken).Take(t.Context(), "win", client.TakeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		fmt.Sprintf("id: %d", l.Fence()+1), "event: taken",
		fmt.Sprintf(`data: {"seq":%d,"at":"2026-01-02T15:04:05Z","kind":"taken","pool":"win","key":"win-01","lease":"%s","account":"ci"}`, l.Fence()+1, l.ID()),
	}
	if diff := cmp.Diff(want, s.block()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// From the beginning, and from a place in between.
	for reason, c := range map[string]*sse{
		"from the oldest":         d.follow(t, viewerToken, "?after=0"),
		"from a cursor":           d.follow(t, viewerToken, "?after=1"),
		"as a browser comes back": d.follow(t, viewerToken, "", "Last-Event-ID", "1"),
		"the header wins":         d.follow(t, viewerToken, "?after=999", "Last-Event-ID", "1"),
	} {
		c.block()
		b := c.block()
		if reason == "from the oldest" {
			if len(b) != 3 || b[1] != "event: published" {
				t.Errorf("%s: %q", reason, b)
			}
			b = c.block()
		}
		if diff := cmp.Diff(want, b); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
}

// A stream that is far behind gets everything, page by page.
func TestEventsArePaged(t *testing.T) {
	d := serveDesk(t, leasetest.Options{}, nil)
	const n = 1300
	var ops []lease.Op
	for range n {
		ops = append(ops, lease.Enable{Key: "win-01"})
	}
	if _, err := d.service.Do(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
	c := d.client(t, viewerToken)
	begin := time.Now()
	seen, last := 0, int64(0)
	for e, err := range c.Events(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq <= last {
			t.Fatalf("event %d after %d", e.Seq, last)
		}
		if last = e.Seq; e.Kind == "enabled" {
			seen++
		}
		if seen == n {
			break
		}
	}
	if took := time.Since(begin); seen != n || took > 8*time.Second {
		t.Errorf("%d of %d events in %s", seen, n, took)
	}
}

// oldEvents forgets events as a database does after an hour.
type oldEvents struct {
	*leasetest.Memory
	mu    sync.Mutex
	from  int64
	reads int
}

func (o *oldEvents) Events(ctx context.Context, after int64, limit int) ([]lease.Event, bool, error) {
	o.mu.Lock()
	from := o.from
	o.reads++
	o.mu.Unlock()
	e, gap, err := o.Memory.Events(ctx, max(after, from), limit)
	return e, gap || after < from, err
}

// Who was away for too long is told so, once, and goes on with what is there.
func TestEventsReset(t *testing.T) {
	store := &oldEvents{Memory: leasetest.NewMemory(leasetest.Options{Now: began})}
	s := run(t, store, service.Limits{})
	d := serve(t, func(o *api.Options) { o.Desk = s })
	l := &leasing{desk: d, service: s}
	l.publish(t, lease.Pool{Name: "one"}, "a", "b", "c")
	for _, k := range []string{"a", "b", "c"} {
		if _, _, err := s.Disable(t.Context(), lease.Disable{Key: k, Reason: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	store.mu.Lock()
	store.from = 2
	store.mu.Unlock()
	st := d.follow(t, viewerToken, "?after=1")
	st.block()
	want := [][]string{{"event: reset", "id: 2", "data: {}"}, {"id: 3", "event: disabled"}, {"id: 4", "event: disabled"}}
	for i, w := range want {
		if got := st.block(); len(got) != 3 || !cmp.Equal(got[:len(w)], w) {
			t.Errorf("block %d is %q, want %q", i, got, w)
		}
	}
	next, stop := pull(d.client(t, viewerToken).Events(t.Context(), 1))
	defer stop()
	if e := next(); e.Kind != client.EventReset || e.Seq != 2 {
		t.Errorf("the Go client sees %+v", e)
	}
	if e := next(); e.Kind != "disabled" || e.Seq != 3 {
		t.Errorf("and then %+v", e)
	}
}

func pull(seq func(func(client.Event, error) bool)) (next func() client.Event, stop func()) {
	ch, done := make(chan client.Event), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for e, err := range seq {
			if err != nil {
				e.Kind = err.Error()
			}
			select {
			case ch <- e:
			case <-done:
				return
			}
		}
	})
	return func() client.Event { return <-ch }, func() {
		close(done)
		for {
			select {
			case <-ch:
				continue
			case <-time.After(10 * time.Millisecond):
			}
			break
		}
	}
}

// flow is an answer without a network whose text can be read meanwhile.
type flow struct {
	buffer
	header http.Header
	full   bool // it takes no more
}

func (f *flow) Header() http.Header { return f.header }
func (f *flow) WriteHeader(int)     {}
func (f *flow) FlushError() error   { return nil }
func (f *flow) SetWriteDeadline(time.Time) error {
	return nil
}

func (f *flow) Write(p []byte) (int, error) {
	if f.full {
		return 0, errors.New("i/o timeout")
	}
	return f.buffer.Write(p)
}

// streamed is an API on a clock of its own with one stream open.
func streamed(t *testing.T, change func(*api.Options), use func(f *flow, auth *accounts, s *service.Service, ended func() bool)) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, leasetest.NewMemory(leasetest.Options{}), service.Limits{})
		synctest.Wait()
		auth := newAccounts()
		o := api.Options{Auth: auth, Desk: s, Log: slog.New(slog.DiscardHandler)}
		if change != nil {
			change(&o)
		}
		h, err := api.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f := &flow{header: http.Header{}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			r := post(ctx, "/api/v1/events", "")
			r.Method, r.Body, r.ContentLength = http.MethodGet, http.NoBody, 0
			h.ServeHTTP(f, r)
		}()
		synctest.Wait()
		use(f, auth, s, func() bool {
			synctest.Wait()
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		cancel()
		<-done
	})
}

// A stream without events shows life.
func TestEventsPing(t *testing.T) {
	streamed(t, nil, func(f *flow, _ *accounts, _ *service.Service, ended func() bool) {
		time.Sleep(46 * time.Second)
		if n := strings.Count(f.String(), ": ping\n\n"); n != 3 || ended() {
			t.Errorf("%d pings in 46 s: %q", n, f.String())
		}
	})
}

// A revoked token's stream ends within a minute; an outage of the tokens' store
// ends none.
func TestEventsRecheckTheToken(t *testing.T) {
	streamed(t, nil, func(_ *flow, auth *accounts, _ *service.Service, ended func() bool) {
		auth.elsewhere(func() { auth.down = errors.New("the database is gone") })
		time.Sleep(3 * time.Minute)
		if ended() {
			t.Error("an outage ended the stream")
		}
		auth.elsewhere(func() { auth.down = nil; delete(auth.byText, runnerToken) })
		time.Sleep(61 * time.Second)
		if !ended() {
			t.Error("the stream of a revoked token goes on")
		}
	})
}

// A client that takes nothing is given up, not waited for.
func TestEventsToADeafClient(t *testing.T) {
	streamed(t, nil, func(f *flow, _ *accounts, s *service.Service, ended func() bool) {
		f.full = true
		if _, err := s.Publish(context.Background(), lease.Publish{Pool: lease.Pool{Name: "x"}}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if !ended() {
			t.Error("the stream goes on")
		}
	})
}

// However many streams there are, the database is asked once for what is new.
func TestEventsAreReadOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &oldEvents{Memory: leasetest.NewMemory(leasetest.Options{})}
		s := run(t, store, service.Limits{})
		synctest.Wait()
		h, err := api.New(api.Options{
			Auth: newAccounts(), Desk: s, Log: slog.New(slog.DiscardHandler), Limits: api.Limits{PerToken: -1, StreamsPerToken: 200},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		flows := make([]*flow, 100)
		for i := range flows {
			flows[i] = &flow{header: http.Header{}}
			all.Go(func() {
				r := post(ctx, "/api/v1/events", "")
				r.Method, r.Body, r.ContentLength = http.MethodGet, http.NoBody, 0
				h.ServeHTTP(flows[i], r)
			})
		}
		synctest.Wait()
		store.mu.Lock()
		before := store.reads
		store.mu.Unlock()
		const changes = 20
		for range changes {
			if _, err := s.Publish(t.Context(), lease.Publish{Pool: lease.Pool{Name: "x"}}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		store.mu.Lock()
		reads := store.reads - before
		store.mu.Unlock()
		if reads > changes {
			t.Errorf("%d readings for %d changes and %d streams", reads, changes, len(flows))
		}
		for i, f := range flows {
			if n := strings.Count(f.String(), "event: published"); n != changes {
				t.Errorf("stream %d has %d of %d events", i, n, changes)
				break
			}
		}
		cancel()
		all.Wait()
	})
}

// Streams are bounded, and end when the server stops.
func TestStreamsAreBounded(t *testing.T) {
	d := serveDesk(t, leasetest.Options{}, func(o *api.Options) { o.Limits.StreamsPerToken = 1 })
	first := d.follow(t, viewerToken, "")
	first.block()
	if s := d.follow(t, viewerToken, ""); s.resp.StatusCode != 429 {
		t.Errorf("a second stream of a token: %d", s.resp.StatusCode)
	}
	if s := d.follow(t, runnerToken, ""); s.resp.StatusCode != 200 {
		t.Errorf("a stream of another token: %d", s.resp.StatusCode)
	}
	first.resp.Body.Close()
	for range 500 {
		if s := d.follow(t, viewerToken, ""); s.resp.StatusCode == 200 {
			return // and the server's stop ends it: the test would hang in its clean-up
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("a closed stream counts for ever")
}

// The number of the last event is found however large it is.
func TestEventsBeginNow(t *testing.T) {
	d := serveDesk(t, leasetest.Options{}, nil)
	for range 37 {
		if _, _, err := d.service.Enable(t.Context(), lease.Enable{Key: "win-01"}); err != nil {
			t.Fatal(err)
		}
	}
	s := d.follow(t, viewerToken, "")
	first := s.block()
	all, _, err := d.service.Events(t.Context(), 0, 500)
	if err != nil {
		t.Fatal(err)
	}
	if want := "id: " + strconv.FormatInt(all[len(all)-1].Seq, 10); len(first) < 2 || first[1] != want {
		t.Errorf("the stream begins with %q, want %s", first, want)
	}
}
