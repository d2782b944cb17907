package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/client"
)

// desk is a transport that plays answers to takes, renewals and releases, and
// writes down what was asked. Each answer comes after its time.
type desk struct {
	mu    sync.Mutex
	list  []reply
	asked []asked
}

type reply struct {
	after time.Duration
	// status 0 is a connection that breaks.
	status int
	code   string // of a problem, with its class: "quota:none_free"
	retry  string
	body   string
}

type asked struct {
	at   time.Duration
	path string
	key  string
	wait int64
	ttl  int64
}

var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when a synctest bubble begins

func (d *desk) RoundTrip(r *http.Request) (*http.Response, error) {
	var body client.LeaseRequest
	raw, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(raw, &body)
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.asked = append(d.asked, asked{time.Since(start), r.URL.Path, r.Header.Get("Idempotency-Key"), body.Wait, body.TTL})
	a := d.list[min(len(d.asked), len(d.list))-1]
	d.mu.Unlock()
	select {
	case <-time.After(a.after):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if a.status == 0 {
		return nil, errors.New("connection reset")
	}
	h := http.Header{"Lease-Secret": {"s3cr3t"}}
	if a.code != "" {
		h = http.Header{"Content-Type": {"application/problem+json"}}
		a.body = fmt.Sprintf(`{"type":"urn:fleetdesk:problem:%s","title":"T","status":%d}`, a.code, a.status)
	}
	if a.retry != "" {
		h.Set("Retry-After", a.retry)
	}
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Header: h, Body: io.NopCloser(strings.NewReader(a.body)), Request: r,
	}, nil
}

// leasing is a client of a played desk, on the bubble's clock.
func leasing(t *testing.T, d *desk) *client.Client {
	t.Helper()
	c := newClient(t, d, 0)
	client.SetClock(c, func() time.Duration { return time.Since(start) })
	return c
}

const lease = `{"id":"win-01~17","pool":"win","key":"win-01","account":"ci","fence":17,"state":"held","ttl":60,"secondsLeft":60,"attributes":{}`

var (
	granted  = reply{status: 201, body: lease + `,"waited":0}`}
	replayed = reply{status: 200, body: lease + `,"waited":0}`}
	none     = reply{status: 503, code: "quota:none_free", retry: "600"}
)

func TestTake(t *testing.T) {
	waited := func(d time.Duration) reply { n := none; n.after = d; return n }
	status := func(status int, code, retry string) reply { return reply{status: status, code: code, retry: retry} }
	broken := reply{}
	for name, tc := range map[string]struct {
		reason  string
		list    []reply
		opts    client.TakeOptions
		budget  time.Duration // of ctx; 0 for none
		code    string        // "" for success
		class   client.Class
		waits   []int64 // of the requests
		keys    int     // how many different Idempotency-Keys were sent
		atLeast time.Duration
		atMost  time.Duration
	}{
		"at once":            {"one request, without a wait", []reply{granted}, client.TakeOptions{}, 0, "", "", []int64{0}, 1, 0, 0},
		"none":               {"without a wait none is told at once", []reply{none}, client.TakeOptions{}, 0, "none_free", client.Quota, []int64{0}, 1, 0, 0},
		"lost":               {"an answer that was lost is asked for again, as the same request", []reply{broken, replayed}, client.TakeOptions{}, 0, "", "", []int64{0, 0}, 1, 100 * time.Millisecond, 200 * time.Millisecond},
		"down":               {"an outage is tried again a little", []reply{status(503, "unavailable:store", "1")}, client.TakeOptions{}, 0, "store", client.Unavailable, []int64{0, 0, 0}, 1, 2 * time.Second, 2 * time.Second},
		"limited":            {"a client that does not wait does not wait for a rate", []reply{status(429, "quota:rate", "1")}, client.TakeOptions{}, 0, "rate", client.Quota, []int64{0}, 1, 0, 0},
		"one wait":           {"the server waits", []reply{{after: 20 * time.Second, status: 201, body: granted.body}}, client.TakeOptions{Wait: 30 * time.Second}, 0, "", "", []int64{30}, 1, 20 * time.Second, 20 * time.Second},
		"long wait":          {"a minute at a time, with the place kept", []reply{waited(time.Minute), waited(time.Minute), granted}, client.TakeOptions{Wait: 150 * time.Second}, 0, "", "", []int64{60, 60, 30}, 1, 2 * time.Minute, 2 * time.Minute},
		"over":               {"when the wait is over, who holds what", []reply{waited(time.Minute), waited(5 * time.Second)}, client.TakeOptions{Wait: 65 * time.Second}, 0, "none_free", client.Quota, []int64{60, 5}, 1, 65 * time.Second, 65 * time.Second},
		"until ctx ends":     {"a negative wait has no end but ctx's", []reply{waited(time.Minute), waited(time.Minute), waited(time.Minute), granted}, client.TakeOptions{Wait: -1}, 0, "", "", []int64{60, 60, 60, 60}, 1, 3 * time.Minute, 3 * time.Minute},
		"ctx is near":        {"the answer should come before ctx ends", []reply{granted}, client.TakeOptions{Wait: -1}, 10500 * time.Millisecond, "", "", []int64{10}, 1, 0, 0},
		"ctx ends":           {"ctx's end ends it", []reply{waited(time.Minute)}, client.TakeOptions{Wait: -1}, 90 * time.Second, "", client.Timeout, []int64{60, 30}, 1, 90 * time.Second, 90 * time.Second},
		"wait through all":   {"a lost connection, a restart, an outage and a limit", []reply{broken, status(503, "unavailable:stopping", "1"), status(502, "", ""), status(504, "timeout:store", "1"), status(429, "quota:rate", "3"), status(503, "quota:busy", "1"), granted}, client.TakeOptions{Wait: time.Minute}, 0, "", "", []int64{60, 60, 59, 59, 58, 55, 53}, 1, 6 * time.Second, 20 * time.Second},
		"ctx is nearer":      {"a part of a second is slept through, not asked through", []reply{none}, client.TakeOptions{Wait: -1}, 300 * time.Millisecond, "none_free", client.Quota, []int64{0}, 1, 300 * time.Millisecond, 300 * time.Millisecond},
		"too far":            {"a pause beyond the wait is none", []reply{status(503, "unavailable:store", "30")}, client.TakeOptions{Wait: 10 * time.Second}, 0, "store", client.Unavailable, []int64{10}, 1, 0, 0},
		"hasty server":       {"a server that does not wait is not asked in a hot loop", []reply{none}, client.TakeOptions{Wait: 3 * time.Second}, 0, "none_free", client.Quota, []int64{3, 2, 1, 0}, 1, 3 * time.Second, 3 * time.Second},
		"grant is over":      {"a grant whose answer was lost for too long is not had any more: a new request", []reply{broken, status(409, "conflict:lease_unclaimed", ""), granted}, client.TakeOptions{Wait: time.Minute}, 0, "", "", []int64{60, 60, 60}, 2, 0, time.Second},
		"no access":          {"a key that cannot be reached was given back: a new request", []reply{status(503, "unavailable:access", "1"), granted}, client.TakeOptions{Wait: time.Minute}, 0, "", "", []int64{60, 59}, 2, time.Second, time.Second},
		"no access, no wait": {"also when it does not wait", []reply{status(503, "unavailable:access", "1"), granted}, client.TakeOptions{}, 0, "", "", []int64{0, 0}, 2, time.Second, time.Second},
		"own key":            {"the caller's key is the caller's", []reply{status(409, "conflict:lease_expired", "")}, client.TakeOptions{Wait: time.Minute, IdempotencyKey: "k"}, 0, "lease_expired", client.Conflict, []int64{60}, 1, 0, 0},
		"wrong":              {"what is wrong stays wrong", []reply{status(400, "invalid:ttl", "")}, client.TakeOptions{Wait: time.Minute}, 0, "ttl", client.Invalid, []int64{60}, 1, 0, 0},
		"denied":             {"so does what is denied", []reply{status(401, "denied:token", "")}, client.TakeOptions{Wait: time.Minute}, 0, "token", client.Denied, []int64{60}, 1, 0, 0},
		"panic":              {"a server's own failure is told", []reply{status(500, "permanent", "")}, client.TakeOptions{Wait: time.Minute}, 0, "", client.Permanent, []int64{60}, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &desk{list: tc.list}
				c := leasing(t, d)
				ctx := t.Context()
				if tc.budget > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.budget)
					defer cancel()
				}
				l, err := c.Take(ctx, "win", tc.opts)
				took := time.Since(start)
				if tc.class == "" {
					if err != nil || l.Key() != "win-01" || l.Secret() != "s3cr3t" {
						t.Fatalf("%s: %v, %v", tc.reason, l, err)
					}
				} else if e, ok := errors.AsType[*client.Error](err); !ok || e.Class != tc.class || e.Code != tc.code {
					t.Fatalf("%s: %v, want class %s and code %q", tc.reason, err, tc.class, tc.code)
				}
				keys := map[string]bool{}
				for i, a := range d.asked {
					keys[a.key] = true
					if i >= len(tc.waits) || a.wait > tc.waits[i] || a.wait < tc.waits[i]-8 { // pauses are drawn
						t.Errorf("%s: request %d waits %d s, want %v", tc.reason, i, a.wait, tc.waits)
					}
				}
				if len(d.asked) != len(tc.waits) || len(keys) != tc.keys || keys[""] || took < tc.atLeast || took > tc.atMost {
					t.Errorf("%s: %d requests with %d keys in %s, want %d with %d in %s to %s", tc.reason, len(d.asked), len(keys), took, len(tc.waits), tc.keys, tc.atLeast, tc.atMost)
				}
			})
		})
	}
}

// The time of a lease counts from before its request was sent, and a wait at the
// server does not shorten it.
func TestDeadline(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		reply  reply
		want   time.Duration
	}{
		"slow answer": {"what the answer took may be gone", reply{after: 3 * time.Second, status: 201, body: lease + `,"waited":0}`}, 57 * time.Second},
		"long wait":   {"the lease began at the end of the wait", reply{after: 28 * time.Second, status: 201, body: lease + `,"waited":27.5}`}, 59500 * time.Millisecond},
		"over":        {"a lease that is over has nothing left", reply{after: 70 * time.Second, status: 201, body: lease + `,"waited":0}`}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &desk{list: []reply{tc.reply}}
			l, err := leasing(t, d).Take(t.Context(), "win", client.TakeOptions{Wait: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Left(); got != tc.want {
				t.Errorf("%s: %s: %s left, want %s", name, tc.reason, got, tc.want)
			}
			time.Sleep(time.Second)
			if got := l.Left(); got != max(0, tc.want-time.Second) {
				t.Errorf("%s: a second later %s left", name, got)
			}
		})
	}
}

func renewal(after time.Duration, ttl int) reply {
	return reply{after: after, status: 200, body: fmt.Sprintf(`{"id":"win-01~17","pool":"win","key":"win-01","account":"ci","fence":17,"state":"held","ttl":%d,"secondsLeft":%d,"attributes":{}}`, ttl, ttl)}
}

// keeping takes a lease of a minute and keeps it alive by the replies; it returns
// how that ended, and when.
func keeping(t *testing.T, list []reply, during func(l *client.Lease, cancel func())) (at time.Duration, d *desk, err error) {
	d = &desk{list: append([]reply{granted}, list...)}
	l, err := leasing(t, d).Take(t.Context(), "win", client.TakeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.KeepAlive(ctx) }()
	if during != nil {
		during(l, cancel)
	}
	err = <-ended
	return time.Since(start), d, err
}

func TestKeepAlive(t *testing.T) {
	down := reply{status: 503, code: "unavailable:store"}
	lost := func(code string) reply { return reply{status: 409, code: "conflict:" + code} }
	for name, tc := range map[string]struct {
		reason  string
		list    []reply
		during  func(l *client.Lease, cancel func())
		code    string // "" for no error
		atLeast time.Duration
		atMost  time.Duration
		asked   []time.Duration // of the first renewals
	}{
		"thirds":    {"it is renewed when a third of its time is over, for ever", []reply{renewal(0, 60)}, func(_ *client.Lease, cancel func()) { time.Sleep(24 * time.Hour); cancel() }, "", 24 * time.Hour, 24 * time.Hour, []time.Duration{20 * time.Second, 40 * time.Second, time.Minute, 80 * time.Second}},
		"new time":  {"a renewal for longer is kept to", []reply{renewal(0, 300), lost("lease_forced")}, nil, "lease_forced", 120 * time.Second, 120 * time.Second, []time.Duration{20 * time.Second, 120 * time.Second}},
		"lost":      {"a lost lease is told at once", []reply{lost("lease_lost")}, nil, "lease_lost", 20 * time.Second, 20 * time.Second, nil},
		"unknown":   {"also one that nobody knows any more", []reply{{status: 404, code: "not_found:lease"}}, nil, "lease", 20 * time.Second, 20 * time.Second, nil},
		"denied":    {"and one that may not be kept", []reply{{status: 401, code: "denied:token"}}, nil, "token", 20 * time.Second, 20 * time.Second, nil},
		"outage":    {"an outage is outlived", []reply{down, {}, down, {status: 429, code: "quota:rate", retry: "5"}, renewal(0, 60), lost("lease_forced")}, nil, "lease_forced", 45 * time.Second, 55 * time.Second, []time.Duration{20 * time.Second}},
		"expired":   {"until its time is over", []reply{down}, nil, "lease_expired", time.Minute, time.Minute, nil},
		"hangs":     {"a connection that hangs leaves time for another try", []reply{{after: time.Hour}, renewal(0, 60), lost("lease_forced")}, nil, "lease_forced", 55 * time.Second, 56 * time.Second, []time.Duration{20 * time.Second, 35 * time.Second}},
		"mute":      {"and all that hang end with its time", []reply{{after: time.Hour}}, nil, "lease_expired", time.Minute, time.Minute, nil},
		"cancelled": {"ctx's end is no loss", []reply{renewal(0, 60)}, func(_ *client.Lease, cancel func()) { time.Sleep(time.Second); cancel() }, "", time.Second, time.Second, nil},
		"released": {"nor is a release", []reply{{status: 200, body: `{"id":"win-01~17","key":"win-01"}`}}, func(l *client.Lease, _ func()) {
			time.Sleep(time.Second)
			if _, err := l.Release(context.Background(), client.ReleaseRequest{}); err != nil || l.Left() != 0 {
				panic(fmt.Sprint(err, l.Left()))
			}
		}, "", time.Second, time.Second, nil},
		"released meanwhile": {"also while a renewal is under way, which is too late then", []reply{{after: 3 * time.Second, status: 409, code: "conflict:lease_released"}, {status: 200, body: `{"id":"win-01~17","key":"win-01"}`}}, func(l *client.Lease, _ func()) {
			time.Sleep(21 * time.Second)
			if _, err := l.Release(context.Background(), client.ReleaseRequest{}); err != nil {
				panic(err)
			}
		}, "", 23 * time.Second, 23 * time.Second, []time.Duration{20 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at, d, err := keeping(t, tc.list, tc.during)
				e, _ := errors.AsType[*client.Error](err)
				if tc.code == "" && err != nil || tc.code != "" && (e == nil || e.Code != tc.code) {
					t.Errorf("%s: %v, want code %q", tc.reason, err, tc.code)
				}
				if at < tc.atLeast || at > tc.atMost {
					t.Errorf("%s: it ended at %s, want %s to %s", tc.reason, at, tc.atLeast, tc.atMost)
				}
				for i, want := range tc.asked {
					if got := d.asked[i+1].at; got < want || got > want+200*time.Millisecond {
						t.Errorf("%s: renewal %d at %s, want %s", tc.reason, i, got, want)
					}
				}
				if len(d.asked) > 20_000 {
					t.Errorf("%s: %d requests", tc.reason, len(d.asked))
				}
			})
		})
	}
}

// While the machine is suspended its timers stand still and the lease goes on:
// its holder learns of that soon after.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{list: []reply{granted, renewal(0, 60)}}
		c := leasing(t, d)
		var asleep atomic.Int64
		client.SetClock(c, func() time.Duration { return time.Since(start) + time.Duration(asleep.Load()) })
		l, err := c.Take(t.Context(), "win", client.TakeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- l.KeepAlive(t.Context()) }()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		asleep.Store(int64(time.Hour))
		err = <-ended
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "lease_expired" || time.Since(start) > 8*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		if len(d.asked) != 1 {
			t.Error("a lease whose time was over was renewed, which may be somebody else's by now")
		}
	})
}

// A release whose answer is lost is sent again, and one that fails says so.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := reply{status: 200, body: `{"id":"win-01~17","key":"win-01","disabled":true}`}
		d := &desk{list: []reply{granted, {}, {status: 503}, gone, {status: 409, code: "conflict:lease_expired"}}}
		l, err := leasing(t, d).Take(t.Context(), "win", client.TakeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		done, err := l.Release(t.Context(), client.ReleaseRequest{Outcome: client.OutcomeBroken})
		if err != nil || !done.Disabled || len(d.asked) != 4 {
			t.Errorf("%+v, %v after %d requests", done, err, len(d.asked))
		}
		if _, err := l.Release(t.Context(), client.ReleaseRequest{}); !errors.Is(err, client.Conflict) {
			t.Errorf("an error of a second release: %v", err)
		}
	})
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{list: []reply{renewal(time.Second, 60), {status: 409, code: "conflict:lease_lost"}}}
		c := leasing(t, d)
		l, err := c.Resume(t.Context(), "win-01~17", "s3cr3t")
		if err != nil || l.Key() != "win-01" || l.Left() != 59*time.Second || d.asked[0].path != "/base/api/v1/leases/win-01~17/renew" {
			t.Errorf("%v, %v, %s left, %+v", l, err, l.Left(), d.asked)
		}
		if _, err := c.Resume(t.Context(), "win-01~17", "s3cr3t"); !errors.Is(err, client.Conflict) {
			t.Errorf("a lost one: %v", err)
		}
	})
}

// Renewals of one lease run one after the other, so that the last answer is the
// last renewal's.
func TestRenewalsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{list: []reply{granted, renewal(5*time.Second, 3600), renewal(0, 60)}}
		l, err := leasing(t, d).Take(t.Context(), "win", client.TakeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		first := make(chan error, 1)
		go func() { first <- l.Renew(t.Context(), client.RenewRequest{TTL: 3600}) }()
		synctest.Wait()
		if err := l.Renew(t.Context(), client.RenewRequest{TTL: 60}); err != nil {
			t.Fatal(err)
		}
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		if ttls := []int64{d.asked[1].ttl, d.asked[2].ttl}; !slices.Equal(ttls, []int64{3600, 60}) || l.Left() != time.Minute {
			t.Errorf("renewed for %v, %s left", ttls, l.Left())
		}
	})
}

func TestClockGoesOn(t *testing.T) {
	clock := client.NewClock()
	before := clock()
	for range 1000 {
		if now := clock(); now < before {
			t.Fatalf("%s after %s", now, before)
		}
	}
	time.Sleep(2 * time.Millisecond)
	if passed := clock() - before; passed < 2*time.Millisecond || passed > time.Minute {
		t.Errorf("2 ms took %s", passed)
	}
}

// Only how much time passes counts: a client whose clock is an hour off sends
// the same requests and counts the same time left.
func TestClockAnHourOff(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, 0, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				d := &desk{list: []reply{granted, {status: 200, body: lease + `}`}}}
				c := newClient(t, d, 0)
				client.SetClock(c, func() time.Duration { return time.Since(start) + off })
				l, err := c.Take(t.Context(), "win", client.TakeOptions{TTL: time.Minute})
				if err != nil || l.Left() != time.Minute {
					t.Fatalf("left %s, %v", l.Left(), err)
				}
				time.Sleep(50 * time.Second)
				if l.Left() != 10*time.Second {
					t.Errorf("after 50 s of 60 s: %s left", l.Left())
				}
				if err := l.Renew(t.Context(), client.RenewRequest{}); err != nil || l.Left() != time.Minute {
					t.Errorf("renewed: %s left, %v", l.Left(), err)
				}
				time.Sleep(time.Minute)
				if l.Left() != 0 {
					t.Errorf("after its time: %s left", l.Left())
				}
			})
		})
	}
}
