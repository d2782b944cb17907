package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/client"
)

const secret = "fd_0123456789abcdef"

// answers is a transport that plays a list of answers and then repeats the
// last; a nil one is a connection error.
type answers struct {
	list []*answer
	at   []time.Time
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.at = append(a.at, time.Now())
	next := a.list[min(len(a.at), len(a.list))-1]
	if next == nil {
		return nil, errors.New("connection refused")
	}
	h := next.header
	if h == nil {
		h = http.Header{}
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", next.status, http.StatusText(next.status)), StatusCode: next.status,
		Header: h, Body: io.NopCloser(strings.NewReader(next.body)), Request: r,
	}, nil
}

func newClient(t *testing.T, rt http.RoundTripper, retries int) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{
		BaseURL: "http://desk.example.com/base/", Token: secret,
		HTTPClient: &http.Client{Transport: rt}, Retries: retries,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRetries(t *testing.T) {
	good := &answer{status: 200, body: `{"name":"home-1"}`}
	status := func(n int, retryAfter string) *answer {
		return &answer{status: n, header: http.Header{"Retry-After": {retryAfter}}}
	}
	cases := map[string]struct {
		reason  string
		answers []*answer
		retries int
		budget  time.Duration
		class   client.Class // "" for success
		tries   int
		atLeast time.Duration
		atMost  time.Duration
	}{
		"at once":           {"no retry without need", []*answer{good}, 0, 0, "", 1, 0, 0},
		"connection":        {"a lost connection is tried again", []*answer{nil, good}, 0, 0, "", 2, 100 * time.Millisecond, 200 * time.Millisecond},
		"502":               {"so is 502", []*answer{status(502, ""), good}, 0, 0, "", 2, 100 * time.Millisecond, 200 * time.Millisecond},
		"503":               {"503", []*answer{status(503, ""), good}, 0, 0, "", 2, 100 * time.Millisecond, 200 * time.Millisecond},
		"504":               {"and 504", []*answer{status(504, ""), good}, 0, 0, "", 2, 100 * time.Millisecond, 200 * time.Millisecond},
		"bounded":           {"two retries by default", []*answer{status(503, "")}, 0, 0, client.Unavailable, 3, 300 * time.Millisecond, 600 * time.Millisecond},
		"none":              {"negative means none", []*answer{status(503, "")}, -1, 0, client.Unavailable, 1, 0, 0},
		"more":              {"as many as asked for, with a bounded pause", []*answer{nil}, 9, 0, client.Unavailable, 10, 15 * time.Second, 90 * time.Second},
		"retry-after":       {"the server's time is kept to", []*answer{status(503, "7"), good}, 0, 0, "", 2, 7 * time.Second, 7 * time.Second},
		"retry-after far":   {"a far one is left to the caller", []*answer{status(503, "3600"), good}, 0, 0, client.Unavailable, 1, 0, 0},
		"retry-after huge":  {"a number beyond a duration is no wait at all", []*answer{status(503, "99999999999999999999"), good}, 0, 0, "", 2, 100 * time.Millisecond, 200 * time.Millisecond},
		"deadline too near": {"no wait that ctx does not allow", []*answer{status(503, "7"), good}, 0, 5 * time.Second, client.Unavailable, 1, 0, 0},
		"quota":             {"429 is left to the caller", []*answer{status(429, "1"), good}, 0, 0, client.Quota, 1, 0, 0},
		"denied":            {"401 does not get better", []*answer{status(401, ""), good}, 0, 0, client.Denied, 1, 0, 0},
		"internal":          {"500 is no promise", []*answer{status(500, ""), good}, 0, 0, client.Transient, 1, 0, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := &answers{list: c.answers}
				ctx := t.Context()
				if c.budget > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.budget)
					defer cancel()
				}
				begin := time.Now()
				_, err := newClient(t, rt, c.retries).Proxy(ctx, "crawl", "home-1")
				took := time.Since(begin)
				if c.class == "" && err != nil || c.class != "" && !errors.Is(err, c.class) {
					t.Errorf("%s: err = %v, want class %q", c.reason, err, c.class)
				}
				if len(rt.at) != c.tries || took < c.atLeast || took > c.atMost {
					t.Errorf("%s: %d tries in %s, want %d in %s to %s", c.reason, len(rt.at), took, c.tries, c.atLeast, c.atMost)
				}
			})
		})
	}
}

func TestRetryAfterIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for header, want := range map[string]time.Duration{
			"30": 30 * time.Second, "-5": 0, "soon": 0, "": 0,
			time.Now().UTC().Add(time.Minute).Format(http.TimeFormat): time.Minute,
			time.Now().UTC().Add(-time.Hour).Format(http.TimeFormat):  0,
		} {
			rt := &answers{list: []*answer{{status: 429, header: http.Header{"Retry-After": {header}}}}}
			_, err := newClient(t, rt, 0).Proxies(t.Context(), client.ProxyQuery{})
			e, ok := errors.AsType[*client.Error](err)
			if !ok || e.RetryAfter != want {
				t.Errorf("Retry-After %q: %#v, want %s", header, err, want)
			}
		}
	})
}

func TestCancelEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		rt := &answers{list: []*answer{{status: 503, header: http.Header{"Retry-After": {"9"}}}}}
		_, err := newClient(t, rt, 0).Proxy(ctx, "a", "b")
		if took := time.Since(begin); took != time.Second || !errors.Is(err, client.Unavailable) {
			t.Errorf("ended after %s with %v", took, err)
		}
	})
}

func TestErrors(t *testing.T) {
	problem := func(status int, body string) *answer {
		return &answer{status: status, body: body, header: http.Header{
			"Content-Type": {"application/problem+json"}, "X-Request-Id": {"from-header"},
		}}
	}
	cases := map[string]struct {
		reason string
		answer *answer
		class  client.Class
		text   string
	}{
		"problem":    {"type, detail and request are shown", problem(404, `{"type":"urn:fleetdesk:problem:not_found","title":"T","status":404,"detail":"no proxy a/b","requestId":"r1"}`), client.NotFound, "get proxy a/b: no proxy a/b (not_found, status 404, request r1)"},
		"type wins":  {"the type says more than the status", problem(503, `{"type":"urn:fleetdesk:problem:transient","title":"T"}`), client.Transient, "T (transient, status 503, request from-header)"},
		"other type": {"a type of somebody else counts as none", problem(409, `{"type":"https://example.com/p","title":"T"}`), client.Conflict, "T (conflict"},
		"new class":  {"so does a class of a later version", problem(400, `{"type":"urn:fleetdesk:problem:brand_new","title":"T"}`), client.Invalid, "T (invalid"},
		"broken":     {"a broken document leaves the status", problem(403, `{"type":`), client.Denied, "the server answered 403 Forbidden"},
		"html":       {"a page of a proxy in between is not shown", &answer{status: 502, body: "<h1>Bad gateway</h1>"}, client.Unavailable, "the server answered 502 Bad Gateway"},
		"not json":   {"an answer that is not the desk's names BaseURL", &answer{status: 200, body: "<html>"}, client.Permanent, "check BaseURL"},
		"no content": {"nor is 204 an answer", &answer{status: 204}, client.Permanent, "the server answered 204"},
		"too large":  {"an endless answer is not read", &answer{status: 200, body: strings.Repeat(" ", 17<<20)}, client.Invalid, "larger than"},
		"connection": {"no connection", nil, client.Unavailable, "get proxy a/b: connection refused"},
	}
	for name, c := range cases {
		_, err := newClient(t, &answers{list: []*answer{c.answer}}, -1).Proxy(t.Context(), "a", "b")
		if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %s: got %v, want class %s and %q", name, c.reason, err, c.class, c.text)
		}
		if errors.Is(err, client.Quota) {
			t.Errorf("%s: errors.Is must not answer yes to any class", name)
		}
	}
}

// endless is a body that never ends.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	if e.read += len(p); e.read > 100<<20 {
		return 0, errors.New("read without a bound")
	}
	clear(p)
	return len(p), nil
}

func (*endless) Close() error { return nil }

func TestEndlessAnswer(t *testing.T) {
	for _, status := range []int{200, 500} {
		body := &endless{}
		rt := roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: body, Request: r}, nil
		})
		_, err := newClient(t, rt, -1).Proxy(t.Context(), "a", "b")
		if err == nil || body.read > 40<<20 {
			t.Errorf("status %d: %d bytes read, err = %v", status, body.read, err)
		}
	}
}

func TestContextErrorsStay(t *testing.T) {
	blocked := roundTrip(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := newClient(t, blocked, 0).Proxy(ctx, "a", "b")
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.Timeout) {
		t.Errorf("a deadline: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := newClient(t, blocked, 0).Proxy(ctx, "a", "b"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestPathsAreEscaped(t *testing.T) {
	var got string
	rt := roundTrip(func(r *http.Request) (*http.Response, error) {
		got = r.URL.RequestURI()
		return (&answers{list: []*answer{{status: 200, body: "{}"}}}).RoundTrip(r)
	})
	c := newClient(t, rt, 0)
	if _, err := c.Proxy(t.Context(), "a/b", "c?d%20é"); err != nil {
		t.Fatal(err)
	}
	if want := "/base/api/v1/proxies/a%2Fb/c%3Fd%2520%C3%A9"; got != want {
		t.Errorf("path %s, want %s", got, want)
	}
	for _, name := range []string{"", ".", ".."} {
		if _, err := c.Proxy(t.Context(), "a", name); !errors.Is(err, client.Invalid) {
			t.Errorf("name %q: %v; it would ask another route", name, err)
		}
	}
}

func TestTokenStaysHome(t *testing.T) {
	var leaked []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		leaked = append(leaked, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	var seen []string
	home := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		switch r.URL.Path {
		case "/api/v1/proxies/to/other":
			http.Redirect(w, r, other.URL+"/api/v1/proxies/to/other", http.StatusTemporaryRedirect)
		case "/api/v1/proxies/to/same":
			http.Redirect(w, r, "/api/v1/proxies/really/same", http.StatusTemporaryRedirect)
		case "/api/v1/proxies/really/same":
			_, _ = w.Write([]byte(`{"name":"same"}`))
		default:
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}
	}))
	defer home.Close()
	c, err := client.New(client.Options{BaseURL: home.URL, Token: secret, HTTPClient: home.Client()})
	if err != nil {
		t.Fatal(err)
	}
	// Both servers are on 127.0.0.1 and differ by port, which net/http's own
	// policy takes for the same host.
	_, err = c.Proxy(t.Context(), "to", "other")
	if len(leaked) != 0 || !errors.Is(err, client.Permanent) || !strings.Contains(err.Error(), "BaseURL") {
		t.Errorf("the other server saw %q; err = %v", leaked, err)
	}
	p, err := c.Proxy(t.Context(), "to", "same")
	if err != nil || p.Name != "same" || seen[len(seen)-1] != "Bearer "+secret {
		t.Errorf("a redirect within the server is followed with the token: %+v, %v, %q", p, err, seen)
	}
	seen = nil
	if _, err := c.Proxy(t.Context(), "in", "circles"); err == nil || len(seen) > 5 {
		t.Errorf("%d requests in circles, err = %v", len(seen), err)
	}
}

func TestTokenIsNeverPrinted(t *testing.T) {
	opts := client.Options{BaseURL: "http://desk.example.com", Token: secret}
	c, err := client.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "options", opts, "one", opts.Token)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "options", opts, "one", opts.Token)
	raw, err := json.Marshal(opts.Token)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"token %v": fmt.Sprintf("%v", opts.Token), "token %s": fmt.Sprint(opts.Token),
		"token %q": fmt.Sprintf("%q", opts.Token), "token %x": fmt.Sprintf("%x", opts.Token),
		"token %d": fmt.Sprintf("%d", opts.Token), "token %#v": fmt.Sprintf("%#v", opts.Token),
		"options %+v": fmt.Sprintf("%+v", opts), "options %#v": fmt.Sprintf("%#v", opts),
		"client %+v": fmt.Sprintf("%+v", c), "client %#v": fmt.Sprintf("%#v", *c),
		"log": log.String(), "json": string(raw),
	} {
		if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
			t.Errorf("%s shows the token: %s", name, text)
		}
	}
	_, err = client.New(client.Options{BaseURL: "http://desk.example.com", Token: secret + "\n"})
	if !errors.Is(err, client.Invalid) || strings.Contains(err.Error(), secret) {
		t.Errorf("a token with a line break: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	for reason, o := range map[string]client.Options{
		"no URL":           {Token: secret},
		"no scheme":        {BaseURL: "desk.example.com", Token: secret},
		"another scheme":   {BaseURL: "ftp://desk.example.com", Token: secret},
		"no host":          {BaseURL: "http://", Token: secret},
		"a password in it": {BaseURL: "http://user:hunter2@desk.example.com", Token: secret},
		"a broken one":     {BaseURL: "http://user:hunter2@desk.example.com:port", Token: secret},
		"a query":          {BaseURL: "http://desk.example.com?x=1", Token: secret},
		"no token":         {BaseURL: "http://desk.example.com"},
	} {
		_, err := client.New(o)
		if !errors.Is(err, client.Invalid) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: err = %v", reason, err)
		}
	}
}
