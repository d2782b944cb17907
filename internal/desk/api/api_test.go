package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/obs"
)

// send makes one request with the given Authorization header, none when empty.
func (d *desk) send(t *testing.T, method, target string, authorization ...string) (*http.Response, client.Problem) {
	t.Helper()
	req, err := http.NewRequest(method, d.url+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range authorization {
		req.Header.Add("Authorization", a)
	}
	resp, err := d.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p client.Problem
	if resp.Header.Get("Content-Type") == httpd.ProblemMediaType && method != http.MethodHead {
		if err := json.Unmarshal(body, &p); err != nil {
			t.Fatalf("not a problem document: %v: %s", err, body)
		}
	}
	return resp, p
}

func TestAuthentication(t *testing.T) {
	const path = "/api/v1/proxies"
	cases := map[string]struct {
		reason string
		header []string
		status int
	}{
		"good":      {"a valid token passes", []string{"Bearer " + viewerToken}, 200},
		"case":      {"the scheme's case does not matter (RFC 9110)", []string{"bEARER " + viewerToken}, 200},
		"missing":   {"no header", nil, 401},
		"wrong":     {"a token that nobody has", []string{"Bearer nobody"}, 401},
		"prefix":    {"part of a token", []string{"Bearer " + viewerToken[:10]}, 401},
		"basic":     {"another scheme", []string{"Basic " + viewerToken}, 401},
		"bare":      {"no scheme", []string{viewerToken}, 401},
		"empty":     {"no token", []string{"Bearer "}, 401},
		"two words": {"spaces inside", []string{"Bearer a b"}, 401},
		"twice":     {"two headers are ambiguous, also with a good one", []string{"Bearer " + viewerToken, "Bearer nobody"}, 401},
		"huge":      {"a token of absurd length is not even hashed", []string{"Bearer " + strings.Repeat("a", 5000)}, 401},
		"higher":    {"a higher role may do what a lower one may", []string{"Bearer " + otherToken}, 200},
		"no role":   {"an account without a role may nothing", []string{"Bearer " + noRoleToken}, 403},
	}
	d := serve(t, nil)
	var bodies []client.Problem
	for name, c := range cases {
		resp, p := d.send(t, "GET", path, c.header...)
		if resp.StatusCode != c.status {
			t.Errorf("%s: %s: status %d, want %d", name, c.reason, resp.StatusCode, c.status)
		}
		if resp.StatusCode == http.StatusUnauthorized {
			if got := resp.Header.Get("WWW-Authenticate"); got != `Bearer realm="fleetdesk"` {
				t.Errorf("%s: WWW-Authenticate = %q", name, got)
			}
			p.RequestID = ""
			bodies = append(bodies, p)
		}
	}
	for _, b := range bodies {
		if diff := cmp.Diff(bodies[0], b); diff != "" {
			t.Errorf("a missing and a wrong token must get the same body:\n%s", diff)
		}
	}
	log := d.log.String()
	for _, secret := range []string{viewerToken, otherToken, noRoleToken, viewerToken[:10], "nobody"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log holds the token %q", secret)
		}
	}
	if !strings.Contains(log, "account=crawler") || !strings.Contains(log, "route=/api/v1/proxies") {
		t.Errorf("the request log names neither account nor route:\n%s", log)
	}
}

func TestStoreOutage(t *testing.T) {
	for name, down := range map[string]error{
		"unavailable": fault.New(fault.Unavailable, "database is gone"),
		"timeout":     context.DeadlineExceeded,
		"unclassed":   errors.New("disk I/O error"),
	} {
		d := serve(t, nil)
		d.auth.set(func() { d.auth.down = down })
		resp, p := d.send(t, "GET", "/api/v1/proxies", "Bearer "+viewerToken)
		if resp.StatusCode != http.StatusServiceUnavailable || p.Type != "urn:fleetdesk:problem:unavailable:store" || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: an outage must be 503 unavailable, never a wrong token: %d %+v", name, resp.StatusCode, p)
		}
		if p.Detail != "" || !strings.Contains(d.log.String(), down.Error()) {
			t.Errorf("%s: the cause belongs in the log, not to the client: %+v", name, p)
		}
	}
}

func TestErrorsAreProblems(t *testing.T) {
	cases := map[string]struct {
		reason, method, path string
		status               int
		class, detail        string
	}{
		"unknown route":     {"unknown routes", "GET", "/api/v1/nothing", 404, "not_found", "no such route"},
		"root":              {"the root too", "GET", "/", 404, "not_found", ""},
		"method":            {"a method that the path lacks", "POST", "/api/v1/proxies", 405, "invalid", "GET"},
		"strange method":    {"a method that nobody knows", "BREW", "/api/v1/proxies", 405, "invalid", "GET"},
		"unknown parameter": {"an unknown parameter is named", "GET", "/api/v1/proxies?zone=eu&provider=x", 400, "invalid", "query.zone"},
		"two unknown":       {"in a stable order", "GET", "/api/v1/proxies?zz=1&aa=1", 400, "invalid", "query.aa: unknown query parameter; query.zz"},
		"on one proxy":      {"also where there are none", "GET", "/api/v1/proxies/a/b?x=1", 400, "invalid", "query.x"},
		"twice":             {"a parameter given twice", "GET", "/api/v1/proxies?limit=1&limit=2", 400, "invalid", "query.limit"},
		"no number":         {"a limit that is no number", "GET", "/api/v1/proxies?limit=many", 400, "invalid", "query.limit"},
		"zero":              {"a limit too small", "GET", "/api/v1/proxies?limit=0", 400, "invalid", "query.limit"},
		"malformed":         {"a query that does not parse", "GET", "/api/v1/proxies?namespace=%zz", 400, "invalid", "well-formed"},
		"semicolon":         {"a query whose tail net/url would drop", "GET", "/api/v1/proxies?namespace=a;phase=b", 400, "invalid", "well-formed"},
		"long":              {"a value that is too long", "GET", "/api/v1/proxies?phase=" + strings.Repeat("x", 65), 400, "invalid", "query.phase"},
		"cursor":            {"a cursor that is not base64", "GET", "/api/v1/proxies?cursor=%2F%2F", 400, "invalid", "query.cursor"},
		"half cursor":       {"a cursor that names nothing", "GET", "/api/v1/proxies?cursor=L2E", 400, "invalid", "query.cursor"},
		"long name":         {"a name that no object can have", "GET", "/api/v1/proxies/a/" + strings.Repeat("x", 254), 400, "invalid", "path.name"},
	}
	d := serve(t, nil)
	for name, c := range cases {
		resp, p := d.send(t, c.method, c.path, "Bearer "+viewerToken)
		if resp.StatusCode != c.status || p.Status != c.status || p.Type != httpd.ProblemType+c.class ||
			!strings.Contains(p.Detail, c.detail) || p.Title == "" || p.RequestID == "" {
			t.Errorf("%s: %s: got %d %+v", name, c.reason, resp.StatusCode, p)
		}
		if c.status == 405 && resp.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: Allow = %q", name, resp.Header.Get("Allow"))
		}
	}
	if strings.Contains(d.log.String(), "BREW") || strings.Contains(d.log.String(), "zone=eu") {
		t.Error("what a client makes up has no place in the log")
	}
}

func TestQueryReachesProxies(t *testing.T) {
	f := exampleFleet()
	d := serve(t, func(o *api.Options) { o.Proxies = f })
	_, err := d.client(t, viewerToken).Proxies(t.Context(), client.ProxyQuery{
		Namespace: "crawl", Selector: "a in (b,c),!d", Provider: "local", Phase: "Ready", Limit: 7,
		Cursor: "Y3Jhd2wvaG9tZS0x",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := api.ProxyQuery{
		Namespace: "crawl", Selector: "a in (b,c),!d", Provider: "local", Phase: "Ready", Limit: 7,
		After: api.ProxyName{Namespace: "crawl", Name: "home-1"},
	}
	if diff := cmp.Diff(want, f.last); diff != "" {
		t.Errorf("query (-want +got):\n%s", diff)
	}
	if _, err := d.client(t, viewerToken).Proxies(t.Context(), client.ProxyQuery{}); err != nil || f.last.Limit != 100 {
		t.Errorf("the default limit is 100; got %d, %v", f.last.Limit, err)
	}
}

// Pages neither skip nor repeat a proxy that was there all the time, whatever
// comes and goes meanwhile, the cursor's own proxy included.
func TestPagingIsStable(t *testing.T) {
	f := exampleFleet()
	named := func(namespace, name string) client.Proxy {
		return client.Proxy{Namespace: namespace, Name: name}
	}
	// "a-b" sorts behind "a" as a namespace, though "a-b/" sorts before "a/".
	f.items = []client.Proxy{named("a", "x"), named("a", "y"), named("a-b", "a"), named("b", "1"), named("b", "2")}
	d := serve(t, func(o *api.Options) { o.Proxies = f })
	c := d.client(t, viewerToken)
	var got []string
	q := client.ProxyQuery{Limit: 2}
	for page := 0; ; page++ {
		if page > 10 {
			t.Fatal("paging does not end")
		}
		list, err := c.Proxies(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			got = append(got, p.Namespace+"/"+p.Name)
		}
		if page == 0 {
			f.set(func() {
				f.items = slices.DeleteFunc(f.items, func(p client.Proxy) bool { return p.Name == "y" })
				f.items = append(f.items, named("a", "w"), named("b", "0"))
			})
		}
		if list.Next == "" {
			break
		}
		q.Cursor = list.Next
	}
	want := []string{"a/x", "a/y", "a-b/a", "b/0", "b/1", "b/2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWithoutProxies(t *testing.T) {
	d := serve(t, func(o *api.Options) { o.Proxies = nil })
	if resp, _ := d.send(t, "GET", "/api/v1/proxies", "Bearer "+viewerToken); resp.StatusCode != http.StatusNotFound {
		t.Errorf("without proxies the route must not exist; status %d", resp.StatusCode)
	}
	resp, err := d.http.Get(d.url + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); strings.Contains(string(body), "proxies") {
		t.Error("/openapi.json describes routes that do not exist")
	}
}

func TestNew(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	reg := prometheus.NewRegistry()
	cases := map[string]struct {
		reason string
		opts   api.Options
		want   fault.Class
	}{
		"whole":   {"all that is required", api.Options{Auth: newAccounts(), Log: log, Metrics: reg}, ""},
		"again":   {"a registry takes one API", api.Options{Auth: newAccounts(), Log: log, Metrics: reg}, fault.Conflict},
		"no auth": {"an API without tokens must not start", api.Options{Log: log}, fault.Invalid},
		"no log":  {"nor one without a log", api.Options{Auth: newAccounts()}, fault.Invalid},
		"limit":   {"a negative size is a mistake", api.Options{Auth: newAccounts(), Log: log, Limits: api.Limits{Burst: -1}}, fault.Invalid},
	}
	for _, name := range []string{"whole", "again", "no auth", "no log", "limit"} {
		c := cases[name]
		if _, err := api.New(c.opts); fault.Of(err) != c.want {
			t.Errorf("%s: %s: err = %v", name, c.reason, err)
		}
	}
}

func TestPanicIsAProblem(t *testing.T) {
	reg := prometheus.NewRegistry()
	f := exampleFleet()
	f.panic = true
	d := serve(t, func(o *api.Options) { o.Proxies, o.Metrics = f, reg })
	resp, p := d.send(t, "GET", "/api/v1/proxies", "Bearer "+viewerToken)
	if resp.StatusCode != http.StatusInternalServerError || p.Type != "urn:fleetdesk:problem:permanent" || p.Detail != "" {
		t.Errorf("got %d %+v", resp.StatusCode, p)
	}
	if log := d.log.String(); !strings.Contains(log, "the fleet broke") || !strings.Contains(log, "golden_test.go") {
		t.Errorf("the log must hold the panic and where it came from:\n%s", log)
	}
	if got := counters(t, reg); got["/api/v1/proxies GET 500"] != 1 || got["in flight"] != 0 {
		t.Errorf("metrics: %v", got)
	}
}

// counters reads fleetdesk_api_requests_total and the gauge.
func counters(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			switch f.GetName() {
			case "fleetdesk_api_requests_total":
				got[labels["route"]+" "+labels["method"]+" "+labels["code"]] = m.GetCounter().GetValue()
			case "fleetdesk_api_requests_in_flight":
				got["in flight"] = m.GetGauge().GetValue()
			case "fleetdesk_api_request_duration_seconds":
				got["timed"] += float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return got
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	d := serve(t, func(o *api.Options) { o.Metrics = reg })
	d.send(t, "GET", "/api/v1/proxies/crawl/home-1", "Bearer "+viewerToken)
	d.send(t, "GET", "/api/v1/proxies/crawl/home-2", "Bearer "+viewerToken)
	d.send(t, "GET", "/api/v1/proxies/crawl/home-1")
	d.send(t, "GET", "/made/up/1")
	d.send(t, "BREW", "/made/up/2")
	want := map[string]float64{
		"/api/v1/proxies/{namespace}/{name} GET 200": 2,
		"/api/v1/proxies/{namespace}/{name} GET 401": 1,
		"unmatched GET 404":                          1,
		"unmatched other 404":                        1,
		"in flight":                                  0,
		"timed":                                      5,
	}
	if diff := cmp.Diff(want, counters(t, reg)); diff != "" {
		t.Errorf("labels must come from closed sets (-want +got):\n%s", diff)
	}
}

// direct calls a handler without a network, for tests on the fake clock.
func direct(h http.Handler, bearer, remote string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/proxies", nil)
	r.Header.Set("Authorization", "Bearer "+bearer)
	r.RemoteAddr = remote
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newAPI(t *testing.T, l api.Limits) (http.Handler, *accounts) {
	t.Helper()
	auth := newAccounts()
	h, err := api.New(api.Options{Auth: auth, Proxies: exampleFleet(), Log: slog.New(slog.DiscardHandler), Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	return h, auth
}

func TestRateLimitPerToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, auth := newAPI(t, api.Limits{PerToken: 0.25, Burst: 3})
		const remote = "192.0.2.1:1000"
		for i := range 3 {
			if w := direct(h, viewerToken, remote); w.Code != 200 {
				t.Fatalf("request %d of the burst: %d", i, w.Code)
			}
		}
		asked := auth.asked
		w := direct(h, viewerToken, "192.0.2.2:1000")
		if w.Code != 429 || w.Header().Get("Retry-After") != "4" || !strings.Contains(w.Body.String(), "problem:quota") {
			t.Fatalf("above the limit, from whatever address: %d, Retry-After %q, %s", w.Code, w.Header().Get("Retry-After"), w.Body)
		}
		if auth.asked != asked {
			t.Error("a token above its limit must not reach the store")
		}
		if w := direct(h, otherToken, remote); w.Code != 200 {
			t.Errorf("another token pays for it: %d", w.Code)
		}
		time.Sleep(4 * time.Second) // the fake clock
		if w := direct(h, viewerToken, remote); w.Code != 200 {
			t.Errorf("after Retry-After: %d", w.Code)
		}
	})
}

func TestLimitsCanBeOff(t *testing.T) {
	h, _ := newAPI(t, api.Limits{PerToken: -1, FailuresPerMinute: -1})
	for range 500 {
		if w := direct(h, viewerToken, "192.0.2.1:1"); w.Code != 200 {
			t.Fatal(w.Code)
		}
		if w := direct(h, "wrong", "192.0.2.1:1"); w.Code != 401 {
			t.Fatal(w.Code)
		}
	}
}

func TestLimitOnWrongTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, auth := newAPI(t, api.Limits{FailuresPerMinute: 6, FailureBurst: 2})
		const remote, port2 = "[2001:db8::1]:1000", "[2001:db8::ffff]:2000"
		if w := direct(h, viewerToken, remote); w.Code != 200 {
			t.Fatal(w.Code)
		}
		for range 2 {
			if w := direct(h, "wrong", remote); w.Code != 401 {
				t.Fatal(w.Code)
			}
		}
		asked := auth.asked
		w := direct(h, "wrong", port2)
		if w.Code != 429 || w.Header().Get("Retry-After") != "10" {
			t.Fatalf("the third wrong token of a /64: %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
		}
		if auth.asked != asked {
			t.Error("a blocked address must not reach the store")
		}
		if w := direct(h, viewerToken, remote); w.Code != 200 {
			t.Errorf("a client that was good before must not pay for its neighbour: %d", w.Code)
		}
		if w := direct(h, "wrong", "[2001:db8:0:1::1]:1"); w.Code != 401 {
			t.Errorf("another address is not blocked: %d", w.Code)
		}
		// A token that was good and no longer is counts as a wrong one again.
		auth.set(func() { delete(auth.byText, viewerToken) })
		if w := direct(h, viewerToken, remote); w.Code != 401 {
			t.Errorf("revoked: %d", w.Code)
		}
		if w := direct(h, viewerToken, remote); w.Code != 429 {
			t.Errorf("revoked, from a blocked address: %d", w.Code)
		}
		time.Sleep(time.Minute) // the fake clock
		if w := direct(h, otherToken, remote); w.Code != 200 {
			t.Errorf("after a minute: %d", w.Code)
		}
	})
}

// The limiters' memory is bounded: the entry not used for longest goes first.
func TestLimitersAreBounded(t *testing.T) {
	h, auth := newAPI(t, api.Limits{PerToken: 0.001, Burst: 1, Tokens: 2})
	auth.set(func() {
		for _, n := range []string{"a", "b", "c"} {
			auth.byText[n] = token.Principal{Account: n, Role: token.Viewer, TokenID: n}
		}
	})
	for _, c := range []struct {
		bearer string
		status int
	}{
		{"a", 200}, {"b", 200}, {"b", 429}, {"a", 429}, {"c", 200}, {"a", 429}, {"b", 200},
	} {
		if w := direct(h, c.bearer, "192.0.2.1:1"); w.Code != c.status {
			t.Fatalf("token %s: %d, want %d", c.bearer, w.Code, c.status)
		}
	}
}

// TestSlowProxies: a fleet that never answers costs a request its deadline.
func TestSlowProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log buffer
		h, err := api.New(api.Options{
			Auth: newAccounts(), Proxies: mute{}, Log: obs.NewLogger(&log, obs.Options{}),
			Limits: api.Limits{CallTimeout: 3 * time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		w := direct(h, viewerToken, "192.0.2.1:1")
		if w.Code != 504 || time.Since(begin) != 3*time.Second {
			t.Errorf("got %d after %s", w.Code, time.Since(begin))
		}
		if !strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("a timeout inside is the server's error and must be logged as one: %q", log.String())
		}
	})
}

type mute struct{}

func (mute) List(ctx context.Context, _ api.ProxyQuery) (api.ProxyPage, error) {
	<-ctx.Done()
	return api.ProxyPage{}, ctx.Err()
}

func (mute) Get(ctx context.Context, _, _ string) (client.Proxy, error) {
	<-ctx.Done()
	return client.Proxy{}, ctx.Err()
}

// A list longer than asked is cut, so a page never exceeds its limit.
func TestPageIsCut(t *testing.T) {
	d := serve(t, func(o *api.Options) { o.Proxies = generous{exampleFleet()} })
	list, err := d.client(t, viewerToken).Proxies(t.Context(), client.ProxyQuery{Limit: 1})
	if err != nil || len(list.Items) != 1 || list.Next == "" {
		t.Errorf("got %+v, %v", list, err)
	}
}

type generous struct{ *fleet }

func (g generous) List(context.Context, api.ProxyQuery) (api.ProxyPage, error) {
	return api.ProxyPage{Items: g.items}, nil
}

// The classes and the document cross the wire: client declares its own, and
// both must stay the same.
func TestClientKnowsEveryClass(t *testing.T) {
	for _, m := range fault.Table() {
		f := exampleFleet()
		f.fail = fault.New(m.Class, "told to fail")
		d := serve(t, func(o *api.Options) { o.Proxies = f })
		_, err := d.client(t, viewerToken).Proxy(t.Context(), "crawl", "home-1")
		e, ok := errors.AsType[*client.Error](err)
		if !ok || string(e.Class) != string(m.Class) || e.Status != m.HTTPStatus || e.Title != m.Summary || e.RequestID == "" {
			t.Errorf("class %s: the client got %#v", m.Class, err)
			continue
		}
		if shown := e.Detail != ""; shown != (m.HTTPStatus < 500) {
			t.Errorf("class %s: detail %q", m.Class, e.Detail)
		}
	}
	doc := httpd.Document{
		Type: "t", Title: "t", Status: 400, Detail: "d", RequestID: "r",
		Errors: []httpd.FieldError{{Location: "l", Message: "m"}},
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.DisallowUnknownFields()
	var p client.Problem
	if err := dec.Decode(&p); err != nil {
		t.Fatal(err)
	}
	back, err := json.Marshal(p)
	if err != nil || string(back) != string(raw) {
		t.Errorf("client.Problem and httpd.Document differ: %s, %s, %v", raw, back, err)
	}
}
