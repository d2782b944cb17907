package api_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/obs"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden compares got with testdata/name, or rewrites it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (write it with -update)", err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs (-want +got), rewrite it with -update when that is meant:\n%s", path, d)
	}
}

// Tokens of the tests' accounts.
const (
	viewerToken = "fd_viewer_0123456789abcdef"
	otherToken  = "fd_other_0123456789abcdef"
	noRoleToken = "fd_norole_0123456789abcdef"
	runnerToken = "fd_runner_0123456789abcdef"
	secondToken = "fd_second_0123456789abcdef"
)

// accounts is an Authenticator that keeps its state in memory.
type accounts struct {
	mu     sync.Mutex
	byText map[string]token.Principal
	down   error
	asked  int
	// changes counts what set did, as the real one's generation does.
	changes atomic.Uint64
}

func newAccounts() *accounts {
	return &accounts{byText: map[string]token.Principal{
		viewerToken: {Account: "crawler", Role: token.Viewer, TokenID: "t1"},
		otherToken:  {Account: "other", Role: token.Admin, TokenID: "t2"},
		noRoleToken: {Account: "norole", Role: "", TokenID: "t3"},
		runnerToken: {Account: "ci", Role: token.Runner, TokenID: "t4"},
		secondToken: {Account: "nightly", Role: token.Runner, TokenID: "t5"},
	}}
}

func (a *accounts) Authenticate(_ context.Context, bearer string) (token.Principal, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if a.down != nil {
		return token.Principal{}, a.down
	}
	p, ok := a.byText[bearer]
	if !ok {
		return token.Principal{}, fault.New(fault.Denied, "no such token")
	}
	return p, nil
}

func (a *accounts) Generation() uint64 { return a.changes.Load() }

// set changes accounts from here: the API is told.
func (a *accounts) set(f func()) {
	a.elsewhere(f)
	a.changes.Add(1)
}

// elsewhere changes accounts as another process does: nobody is told.
func (a *accounts) elsewhere(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// fleet is a Proxies over a slice.
type fleet struct {
	mu    sync.Mutex
	items []client.Proxy
	fail  error
	last  api.ProxyQuery
	panic bool
}

func nameOf(p client.Proxy) api.ProxyName { return api.ProxyName{Namespace: p.Namespace, Name: p.Name} }

func (f *fleet) List(_ context.Context, q api.ProxyQuery) (api.ProxyPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = q
	if f.panic {
		panic("the fleet broke")
	}
	if f.fail != nil {
		return api.ProxyPage{}, f.fail
	}
	sorted := slices.SortedFunc(slices.Values(f.items), func(a, b client.Proxy) int {
		return nameOf(a).Compare(nameOf(b))
	})
	var page api.ProxyPage
	for _, p := range sorted {
		if q.Namespace != "" && p.Namespace != q.Namespace || q.Phase != "" && p.Phase != q.Phase ||
			q.Provider != "" && p.Provider != q.Provider || nameOf(p).Compare(q.After) <= 0 {
			continue
		}
		if len(page.Items) == q.Limit {
			page.More = true
			break
		}
		page.Items = append(page.Items, p)
	}
	return page, nil
}

func (f *fleet) Get(_ context.Context, namespace, name string) (client.Proxy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return client.Proxy{}, f.fail
	}
	for _, p := range f.items {
		if p.Namespace == namespace && p.Name == name {
			return p, nil
		}
	}
	return client.Proxy{}, fault.Errorf(fault.NotFound, "there is no proxy %s/%s", namespace, name)
}

func (f *fleet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func exampleFleet() *fleet {
	created := time.Date(2026, 1, 2, 15, 4, 5, 999, time.FixedZone("", 3600))
	return &fleet{items: []client.Proxy{
		{
			Namespace: "crawl", Name: "home-1", Provider: "local", Phase: "Ready", Ready: true,
			Address: "192.0.2.10", Port: 3128, Protocol: "http", ExitIP: "203.0.113.7", Host: "local",
			Labels: map[string]string{"tier": "eu"}, Created: created,
			Conditions: []client.Condition{{Type: "Healthy", Status: "True", Reason: "ProbeSucceeded"}},
		},
		{Namespace: "crawl", Name: "home-2", Provider: "local", Phase: "Pending", Created: created},
		{Namespace: "crawl-b", Name: "a", Provider: "kvm-home", Phase: "Ready", Ready: true, Created: created},
	}}
}

// buffer is a log that tests may read while the server writes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// desk is a running server with the API behind it.
type desk struct {
	url  string
	log  *buffer
	auth *accounts
	http *http.Client
}

// serve runs the API as the products do, behind httpd on loopback.
func serve(t *testing.T, change func(*api.Options)) *desk {
	t.Helper()
	d := &desk{log: &buffer{}, auth: newAccounts()}
	logger := obs.NewLogger(d.log, obs.Options{Level: slog.LevelDebug})
	opts := api.Options{Auth: d.auth, Proxies: exampleFleet(), Log: logger}
	if change != nil {
		change(&opts)
	}
	h, err := api.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := httpd.New(httpd.Options{Handler: h, Address: "127.0.0.1:0", Log: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx) }()
	d.url = srv.URL()
	d.http = &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	t.Cleanup(func() {
		d.http.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return d
}

func (d *desk) client(t *testing.T, bearer string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{BaseURL: d.url, Token: client.Token(bearer), HTTPClient: d.http, Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// recording is a transport that writes down each exchange.
type recording struct {
	next http.RoundTripper
	text bytes.Buffer
}

func (r *recording) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body := new(bytes.Buffer)
	_, err = body.ReadFrom(resp.Body)
	err = errors.Join(err, resp.Body.Close())
	resp.Body = readCloser{bytes.NewReader(body.Bytes())}
	r.text.WriteString("> " + req.Method + " " + changePath.ReplaceAllString(req.URL.RequestURI(), "/changes/RANDOM") + "\n")
	for _, h := range []string{"Accept", "Authorization"} {
		r.text.WriteString("> " + h + ": " + req.Header.Get(h) + "\n")
	}
	// These are random: that they are there is what counts.
	for _, h := range []string{"Idempotency-Key", "Lease-Secret"} {
		for range req.Header.Values(h) {
			r.text.WriteString("> " + h + ": RANDOM\n")
		}
	}
	if req.GetBody != nil {
		sent, _ := req.GetBody()
		text, _ := io.ReadAll(sent)
		r.text.WriteString("> Content-Type: " + req.Header.Get("Content-Type") + "\n" + string(text) + "\n")
	}
	r.text.WriteString("< " + resp.Status + "\n")
	id := resp.Header.Get("X-Request-Id")
	for _, h := range []string{
		"Allow", "Cache-Control", "Content-Type", "Referrer-Policy", "Retry-After",
		"Www-Authenticate", "X-Content-Type-Options", "X-Request-Id",
	} {
		for _, v := range resp.Header.Values(h) {
			r.text.WriteString("< " + h + ": " + v + "\n")
		}
	}
	for range resp.Header.Values("Lease-Secret") {
		r.text.WriteString("< Lease-Secret: RANDOM\n")
	}
	r.text.Write(changeID.ReplaceAll(body.Bytes(), []byte(`{"id":"RANDOM"`)))
	if id != "" {
		r.text = *bytes.NewBuffer(bytes.ReplaceAll(r.text.Bytes(), []byte(id), []byte("REQUEST-ID")))
	}
	return resp, err
}

// The id of a change, as its beginner is told it and names it.
var (
	changeID   = regexp.MustCompile(`^\{"id":"[0-9a-f]{32}"`)
	changePath = regexp.MustCompile(`/changes/[0-9a-f]{32}`)
)

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

func TestOpenAPIGolden(t *testing.T) {
	d := serve(t, whole)
	resp, err := d.http.Get(d.url + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	golden(t, "openapi.golden.json", body.Bytes())
}

// TestWireGolden holds what goes over the wire, through the real client.
func TestWireGolden(t *testing.T) {
	type call func(context.Context, *client.Client) (any, error)
	list := func(q client.ProxyQuery) call {
		return func(ctx context.Context, c *client.Client) (any, error) { return c.Proxies(ctx, q) }
	}
	get := func(namespace, name string) call {
		return func(ctx context.Context, c *client.Client) (any, error) { return c.Proxy(ctx, namespace, name) }
	}
	created := time.Date(2026, 1, 2, 14, 4, 5, 0, time.UTC)
	first := client.Proxy{
		Namespace: "crawl", Name: "home-1", Provider: "local", Phase: "Ready", Ready: true,
		Address: "192.0.2.10", Port: 3128, Protocol: "http", ExitIP: "203.0.113.7", Host: "local",
		Labels: map[string]string{"tier": "eu"}, Created: created,
		Conditions: []client.Condition{{Type: "Healthy", Status: "True", Reason: "ProbeSucceeded"}},
	}
	second := client.Proxy{
		Namespace: "crawl", Name: "home-2", Provider: "local", Phase: "Pending",
		Labels: map[string]string{}, Created: created, Conditions: []client.Condition{},
	}
	cases := map[string]struct {
		reason string
		bearer string
		fail   error
		call   call
		want   any
		class  client.Class
		status int
	}{
		"list":         {"a page has all fields and no credentials", viewerToken, nil, list(client.ProxyQuery{Namespace: "crawl"}), client.ProxyList{Items: []client.Proxy{first, second}}, "", 0},
		"list-page":    {"a full page names the next", viewerToken, nil, list(client.ProxyQuery{Limit: 1}), client.ProxyList{Items: []client.Proxy{first}, Next: "Y3Jhd2wvaG9tZS0x"}, "", 0},
		"list-empty":   {"nothing found is an empty list, not null", viewerToken, nil, list(client.ProxyQuery{Provider: "none", Selector: "tier=eu,!old"}), client.ProxyList{Items: []client.Proxy{}}, "", 0},
		"list-limit":   {"a wrong parameter is named, and its status is 400", viewerToken, nil, list(client.ProxyQuery{Limit: 501}), nil, client.Invalid, 400},
		"list-cursor":  {"a made-up cursor is refused", viewerToken, nil, list(client.ProxyQuery{Cursor: "nonsense"}), nil, client.Invalid, 400},
		"get":          {"one proxy", viewerToken, nil, get("crawl", "home-1"), first, "", 0},
		"get-missing":  {"not found is a problem document", viewerToken, nil, get("crawl", "none"), nil, client.NotFound, 404},
		"get-internal": {"a server's own failure shows no cause", viewerToken, fault.New(fault.Permanent, "dial 192.0.2.99: refused"), get("crawl", "home-1"), nil, client.Permanent, 500},
		"wrong-token":  {"a wrong token is 401", "wrong", nil, get("crawl", "home-1"), nil, client.Denied, 401},
		"low-role":     {"too low a role is 403", noRoleToken, nil, get("crawl", "home-1"), nil, client.Denied, 403},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := exampleFleet()
			f.fail = c.fail
			d := serve(t, func(o *api.Options) { o.Proxies = f })
			rec := &recording{next: d.http.Transport}
			cl, err := client.New(client.Options{
				BaseURL: d.url, Token: client.Token(c.bearer), Retries: -1,
				HTTPClient: &http.Client{Transport: rec, Timeout: 10 * time.Second},
			})
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.call(t.Context(), cl)
			golden(t, "wire/"+name+".golden", rec.text.Bytes())
			if c.class == "" {
				if err != nil {
					t.Fatalf("%s: %v", c.reason, err)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c.reason, diff)
				}
				return
			}
			e, ok := errors.AsType[*client.Error](err)
			if !ok || !errors.Is(err, c.class) || e.Status != c.status {
				t.Errorf("%s: err = %#v, want class %s and status %d", c.reason, err, c.class, c.status)
			}
		})
	}
}
