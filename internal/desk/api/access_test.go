package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
)

// reaching is an Access that a test changes.
type reaching struct {
	mu     sync.Mutex
	access client.ProxyAccess
	err    error
	asked  []string
}

func (r *reaching) Access(_ context.Context, key, uid string, attributes map[string]string) (client.ProxyAccess, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, fmt.Sprint(key, " ", uid, " ", attributes))
	return r.access, r.err
}

func (r *reaching) set(a client.ProxyAccess, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.access, r.err = a, err
}

// serveProxies is a desk with one managed key "crawl.a".
func serveProxies(t *testing.T) (*leasing, *reaching) {
	t.Helper()
	r := &reaching{}
	d := serveDesk(t, leasetest.Options{}, func(o *api.Options) { o.Access = r })
	opened, err := d.service.Do(t.Context(), lease.OpenEpoch{Owner: "test"})
	if err != nil {
		t.Fatal(err)
	}
	results, err := d.service.Do(t.Context(),
		lease.PutPool{Epoch: opened[0].Epoch, Pool: lease.Pool{Name: "crawl.eu"}},
		lease.PutKey{Epoch: opened[0].Epoch, Key: "crawl.a", UID: "u-1", Pools: []string{"crawl.eu"}, Attributes: map[string]string{"tier": "eu"}},
	)
	if err != nil || results[0].Err != nil || results[1].Err != nil {
		t.Fatal(err, results)
	}
	return d, r
}

// What a grant tells of how to reach a proxy is right for any credentials, goes
// to its holder alone, and is printed nowhere.
func TestAccessIsHandedOut(t *testing.T) {
	d, r := serveProxies(t)
	ctx := t.Context()
	c := d.client(t, runnerToken)
	for name, want := range map[string]client.ProxyAccess{
		"plain":      {Protocol: "http", Host: "192.0.2.10", Port: 3128, Username: "crawler", Password: "secret"},
		"odd":        {Protocol: "https", Host: "proxy.example.com", Port: 443, Username: "a:b@c", Password: "p@$$:%w/o?r#d &+<>\"\\é☃"},
		"IPv6":       {Protocol: "socks5", Host: "2001:db8::1", Port: 1080, Username: "u", Password: "[::1]"},
		"user alone": {Protocol: "http", Host: "192.0.2.10", Port: 3128, Username: "only%user"},
		"nobody":     {Protocol: "http", Host: "192.0.2.10", Port: 3128},
		"no user":    {Protocol: "http", Host: "192.0.2.10", Port: 3128, Password: "xyzzy"},
	} {
		r.set(want, nil)
		l, err := c.Take(ctx, "crawl.eu", client.TakeOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, ok := l.Proxy()
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		back, err := url.Parse(got.URL().String())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		password, _ := back.User.Password()
		if back.Hostname() != want.Host || back.Port() != fmt.Sprint(want.Port) || back.User.Username() != want.Username || password != string(want.Password) {
			t.Errorf("%s: read back, %s is %q:%q at %s", name, got.URL(), back.User.Username(), password, back.Host)
		}
		info, err := c.LeaseInfo(ctx, l.ID())
		raw, _ := json.Marshal(info)
		if err != nil || want.Password != "" && strings.Contains(string(raw), string(want.Password)) {
			t.Errorf("%s: GET shows %s, %v", name, raw, err)
		}
		if len(want.Password) > 3 {
			for what, text := range map[string]string{
				"lease": fmt.Sprintf("%v %+v %#v %s %q", l, l, l, l, l), "access": fmt.Sprintf("%v %+v %#v", got, got, got),
				"pointer": fmt.Sprintf("%+v", &got), "log": d.log.String(),
			} {
				if strings.Contains(text, string(want.Password)) || strings.Contains(text, string(l.Secret())) {
					t.Errorf("%s: %s shows the password: %s", name, what, text)
				}
			}
			again, err := json.Marshal(got)
			if err != nil || strings.Contains(string(again), string(want.Password)) {
				t.Errorf("%s: encoded again: %s, %v", name, again, err)
			}
		}
		if _, err := l.Release(ctx, client.ReleaseRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if r.asked[0] != "crawl.a u-1 map[tier:eu]" {
		t.Errorf("asked for %q", r.asked[0])
	}
}

// take sends a take as it is and decodes the answer strictly.
func (d *desk) take(t *testing.T, body, key string) (resp *http.Response, raw map[string]any, p client.Problem) {
	t.Helper()
	req, err := http.NewRequest("POST", d.url+"/api/v1/leases", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+runnerToken)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err = d.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	into := any(&raw)
	if resp.StatusCode >= 400 {
		into = &p
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
	return resp, raw, p
}

// The URL on the wire is the one that the Go client makes; and it is asked for
// again when the grant is replayed.
func TestAccessOnTheWire(t *testing.T) {
	d, r := serveProxies(t)
	a := client.ProxyAccess{Protocol: "http", Host: "2001:db8::1", Port: 3128, Username: "a@b", Password: "pa$$:w"}
	for i, status := range []int{201, 200} {
		a.Password += "x" // it was changed meanwhile
		r.set(a, nil)
		resp, raw, _ := d.take(t, `{"pool":"crawl.eu"}`, "k")
		want := map[string]any{
			"protocol": "http", "host": "2001:db8::1", "port": 3128.0, "username": "a@b", "password": string(a.Password), "url": a.URL().String(),
		}
		if diff := cmp.Diff(want, raw["proxy"]); diff != "" || resp.StatusCode != status {
			t.Errorf("answer %d has status %d (-want +got):\n%s", i, resp.StatusCode, diff)
		}
		if resp.Header.Get("Cache-Control") != "no-store" || len(resp.Header.Values("Lease-Secret")) != 1 {
			t.Errorf("headers %v", resp.Header)
		}
	}
}

// Nothing is handed out that cannot be used: without an answer the key goes back.
func TestNoAccess(t *testing.T) {
	d, r := serveProxies(t)
	ctx := t.Context()
	r.set(client.ProxyAccess{}, fault.New(fault.Unavailable, "the Secret crawl/login is gone"))
	resp, _, p := d.take(t, `{"pool":"crawl.eu"}`, "")
	if resp.StatusCode != 503 || p.Type != "urn:fleetdesk:problem:unavailable:access" || p.Detail != "" || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %+v", resp.StatusCode, p)
	}
	if !strings.Contains(d.log.String(), "crawl/login") {
		t.Error("the cause is for the operator's log")
	}
	k, err := d.service.Key(ctx, "crawl.a")
	if err != nil || k.Keys[0].Lease.End != lease.Released {
		t.Errorf("the key was not given back: %+v, %v", k.Keys[0].Lease, err)
	}
	// The Go client takes it anew once it can be reached.
	c := d.client(t, runnerToken)
	if _, err := c.Take(ctx, "crawl.eu", client.TakeOptions{}); !errors.Is(err, client.Unavailable) {
		t.Errorf("without a wait: %v", err)
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for range 10_000 {
			r.mu.Lock()
			n := len(r.asked)
			r.mu.Unlock()
			if n >= 4 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		r.set(client.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128}, nil)
	}()
	_, err = c.Take(ctx, "crawl.eu", client.TakeOptions{Wait: -1})
	<-asked
	if err != nil {
		t.Errorf("the client gave up: %v", err)
	}
}

// The answer's type hides nothing that client.Grant has, and the reverse.
func TestGrantIsWhole(t *testing.T) {
	d, r := serveProxies(t)
	r.set(client.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128, Username: "u", Password: "p"}, nil)
	_, raw, _ := d.take(t, `{"pool":"crawl.eu","holder":"h","target":"t.example.com"}`, "")
	text, err := json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	if url := raw["proxy"].(map[string]any)["url"]; url != "http://u:p@192.0.2.10:3128" {
		t.Errorf("url is %v", url)
	}
	dec := json.NewDecoder(strings.NewReader(strings.Replace(string(text), `,"url":"http://u:p@192.0.2.10:3128"`, "", 1)))
	dec.DisallowUnknownFields()
	var g client.Grant
	if err := dec.Decode(&g); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	again, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(again, &fields); err != nil {
		t.Fatal(err)
	}
	for name := range raw {
		if _, ok := fields[name]; !ok {
			t.Errorf("client.Grant drops %s", name)
		}
	}
}
