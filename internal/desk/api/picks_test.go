package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
)

// crawling is a running desk with the pools "crawl.eu" (which rests a minute after
// each use) and "crawl.default" over the proxies crawl.home-1 and crawl.home-2.
type crawling struct {
	*leasing
	access *reaching
	epoch  int64
}

func serveCrawl(t *testing.T, o leasetest.Options) *crawling {
	t.Helper()
	d := &crawling{access: &reaching{access: client.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128, Username: "crawler", Password: "pa$$:w@rd"}}}
	d.leasing = serveDesk(t, o, func(o *api.Options) {
		o.Access, o.Selection, o.Limits.PerToken = d.access, naming{}, -1
	})
	d.epoch = d.do(t, lease.OpenEpoch{Owner: "test"})[0].Epoch
	d.do(t,
		lease.PutPool{Epoch: d.epoch, Pool: lease.Pool{Name: "crawl.eu", Cooldown: time.Minute}},
		lease.PutPool{Epoch: d.epoch, Pool: lease.Pool{Name: "crawl.default"}},
	)
	for i, name := range []string{"home-1", "home-2"} {
		d.do(t, lease.PutKey{
			Epoch: d.epoch, Key: "crawl." + name, UID: "u-" + name, Pools: []string{"crawl.default", "crawl.eu"}, ExitIP: fmt.Sprint("203.0.113.", 7+i),
			Attributes: map[string]string{"label:tier": []string{"eu", "us"}[i], "protocol": "http"},
		})
	}
	return d
}

func (d *crawling) do(t *testing.T, ops ...lease.Op) []lease.Result {
	t.Helper()
	results, err := d.service.Do(t.Context(), ops...)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// call sends a request as it is.
func (d *crawling) call(t *testing.T, bearer, method, path, body string, header http.Header) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, d.url+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := d.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, raw
}

// state is all that a refused request must leave as it was.
func (d *crawling) state(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, key := range []string{"crawl.home-1", "crawl.home-2"} {
		found, err := d.service.Key(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		rests, err := d.service.Cooldowns(t.Context(), key, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		k := found.Keys[0]
		fmt.Fprintf(&all, "%s used %s, errors %d, lease %+v\n", k.Name, k.UsedAt, k.Errors, k.Lease)
		for _, r := range rests {
			fmt.Fprintf(&all, "  %+v\n", r)
		}
	}
	events, _, err := d.service.Events(t.Context(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&all, "%d events\n", len(events))
	return all.String()
}

// Whatever is wrong with a request is named with its place, and nothing is
// banned, taken or lifted by it.
func TestPickRequestsAreStrict(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{})
	held, err := d.service.Take(t.Context(), service.TakeRequest{Account: "nightly", Pool: "crawl.eu", Target: "held.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	other := "crawl.home-2"
	if held.Key == other {
		other = "crawl.home-1"
	}
	ns, name, _ := strings.Cut(held.Key, ".")
	reports := "/proxies/" + ns + "/" + name + "/reports"
	pick, err := d.service.Next(t.Context(), service.PickRequest{Account: "nightly", Pool: "crawl.eu", Target: "rested.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	before := d.state(t)

	cases := map[string]struct {
		method, path, body string
		status             int
		class, detail, at  string
	}{
		"report for none":        {"POST", "/proxies/crawl/gone/reports", `{"outcome":"banned","target":"a.example","replace":{}}`, 404, "not_found:key", "crawl.gone", ""},
		"report for no name":     {"POST", "/proxies/crawl/a%2Fb/reports", `{"outcome":"banned","target":"a.example"}`, 404, "not_found:key", "", ""},
		"report long name":       {"POST", "/proxies/crawl/" + strings.Repeat("a", 300) + "/reports", `{"outcome":"ok"}`, 400, "invalid", "path.name", "path.name"},
		"report another's lease": {"POST", reports, `{"outcome":"banned","target":"a.example","lease":"` + held.ID + `","replace":{"pool":"crawl.eu"}}`, 403, "denied:not_owner", "", ""},
		"report a lost lease":    {"POST", "/proxies/" + strings.Replace(pick.Key, ".", "/", 1) + "/reports", `{"outcome":"banned","target":"a.example","lease":"` + pick.Use.String() + `","replace":{"pool":"crawl.eu"}}`, 404, "not_found:lease", "report the key without it", ""},
		"report a coming lease":  {"POST", reports, `{"outcome":"banned","target":"a.example","lease":"` + held.Key + `~999999"}`, 400, "invalid:use", "no use of a key yet", ""},
		"report a coming use":    {"POST", reports, `{"outcome":"banned","target":"a.example","use":"` + held.Key + `~999999"}`, 400, "invalid:use", "no use of a key yet", ""},
		"report no lease":        {"POST", reports, `{"outcome":"banned","target":"a.example","lease":"nonsense"}`, 400, "invalid:use", "body.lease", "body.lease"},
		"report other's use":     {"POST", reports, `{"outcome":"banned","target":"a.example","use":"` + other + `~3"}`, 400, "invalid:use", "body.use", "body.use"},
		"report both":            {"POST", reports, `{"outcome":"banned","target":"a.example","use":"` + held.ID + `","lease":"` + held.ID + `"}`, 400, "invalid:use", "not both", "body.use"},
		"report no pool":         {"POST", reports, `{"outcome":"banned","target":"a.example","pool":"crawl.none"}`, 404, "not_found:pool", "crawl.none", ""},
		"report odd pool":        {"POST", reports, `{"outcome":"banned","target":"a.example","pool":"a/b"}`, 404, "not_found:pool", "a/b", ""},
		"report no target":       {"POST", reports, `{"outcome":"banned"}`, 400, "invalid:target", "name it", "body.target"},
		"report no outcome":      {"POST", reports, `{"target":"a.example"}`, 400, "invalid:body", "outcome", "body"},
		"report broken":          {"POST", reports, `{"outcome":"broken"}`, 400, "invalid", "body.outcome", "body.outcome"},
		"report reason":          {"POST", reports, `{"outcome":"ok","reason":"` + strings.Repeat("x", 513) + `"}`, 400, "invalid", "body.reason", "body.reason"},
		"replace target":         {"POST", reports, `{"outcome":"banned","target":"a.example","replace":{"target":"*.example"}}`, 400, "invalid:target", "body.replace.target: the target", "body.replace.target"},
		"replace selector":       {"POST", reports, `{"outcome":"banned","target":"a.example","replace":{"selector":"x=y,?"}}`, 400, "invalid:selector", "at character 5", "body.replace.selector"},
		"replace both":           {"POST", reports, `{"outcome":"banned","target":"a.example","replace":{"pool":"a","namespace":"b"}}`, 400, "invalid:name", "not both", "body.replace.namespace"},
		"next nothing":           {"POST", "/proxies/next", `{}`, 400, "invalid:name", "name a pool", "body.pool"},
		"next both":              {"POST", "/proxies/next", `{"pool":"crawl.eu","namespace":"crawl"}`, 400, "invalid:name", "not both", "body.namespace"},
		"next dotted":            {"POST", "/proxies/next", `{"namespace":"crawl.eu"}`, 400, "invalid:name", "no dot", "body.namespace"},
		"next namespace":         {"POST", "/proxies/next", `{"namespace":"none"}`, 404, "not_found:pool", "none.default", ""},
		"next pool":              {"POST", "/proxies/next", `{"pool":"crawl.none"}`, 404, "not_found:pool", "crawl.none", ""},
		"next name":              {"POST", "/proxies/next", `{"pool":"a/b"}`, 400, "invalid:name", "a/b", ""},
		"next selector":          {"POST", "/proxies/next", `{"pool":"crawl.eu","selector":"tier in"}`, 400, "invalid:selector", "at character 1", "body.selector"},
		"next long selector":     {"POST", "/proxies/next", `{"pool":"crawl.eu","selector":"` + strings.Repeat("a", 3000) + `"}`, 400, "invalid:selector", "body.selector", "body.selector"},
		"next scheme":            {"POST", "/proxies/next", `{"pool":"crawl.eu","scheme":"ftp"}`, 400, "invalid", "body.scheme", "body.scheme"},
		"next wait":              {"POST", "/proxies/next", `{"pool":"crawl.eu","wait":5}`, 400, "invalid:field", "body.wait", "body.wait"},
		"next holder":            {"POST", "/proxies/next", `{"pool":"crawl.eu","holder":"a\u001b"}`, 400, "invalid:text", "", ""},
		"next key":               {"POST", "/proxies/next?", `{"pool":"crawl.eu"}`, 400, "invalid:idempotency_key", "header.Idempotency-Key", "header.Idempotency-Key"},
		"next target":            {"POST", "/proxies/next", `{"pool":"crawl.eu","target":"a..b"}`, 400, "invalid:target", "body.target", "body.target"},
		"next query":             {"POST", "/proxies/next?pool=crawl.eu", `{}`, 400, "invalid", "query.pool", "query.pool"},
		"next method":            {"GET", "/proxies/next/", ``, 404, "not_found", "no such route", ""},
		"take selector":          {"POST", "/leases", `{"pool":"crawl.eu","selector":"=,"}`, 400, "invalid:selector", "body.selector", "body.selector"},
		"cooldowns of none":      {"GET", "/proxies/crawl/gone/cooldowns", ``, 404, "not_found:key", "crawl.gone", ""},
		"cooldowns cursor":       {"GET", "/proxies/crawl/home-1/cooldowns?cursor=~", ``, 400, "invalid", "cursor", ""},
		"lift none":              {"DELETE", "/proxies/crawl/gone/cooldowns", ``, 404, "not_found:key", "crawl.gone", ""},
		"lift nothing":           {"DELETE", "/proxies/crawl/home-1/cooldowns?target=", ``, 400, "invalid", "query.target: empty", "query.target"},
		"lift odd":               {"DELETE", "/proxies/crawl/home-1/cooldowns?target=*", ``, 400, "invalid:target", "query.target", "query.target"},
		"lift twice":             {"DELETE", "/proxies/crawl/home-1/cooldowns?target=a.example&target=b.example", ``, 400, "invalid", "query.target", "query.target"},
	}
	for what, target := range map[string]string{
		"of 10,000 characters": strings.Repeat("a", 10_000), "of an address": "192.0.2.1", "of an address with a port": "192.0.2.1:80", "of an IPv6 address": "[2001:db8::1]",
		"of all": "*.example.com", "of nothing": "", "of spaces": "  ", "of no punycode": "xn--a.example", "of a NUL": "a\\u0000.example",
	} {
		for where, r := range map[string][2]string{
			"next": {"/proxies/next", `{"pool":"crawl.eu","target":"%s"}`}, "take": {"/leases", `{"pool":"crawl.eu","target":"%s"}`},
			"report": {reports, `{"outcome":"banned","target":"%s","replace":{}}`}, "release": {"/leases/" + held.ID + "/release", `{"outcome":"banned","target":"%s"}`},
		} {
			c := cases["next target"]
			c.path, c.body = r[0], fmt.Sprintf(r[1], target)
			cases[where+" "+what] = c
		}
	}
	for name, c := range cases {
		header := http.Header{}
		if name == "next key" {
			header.Set("Idempotency-Key", "k")
		}
		if strings.HasPrefix(name, "release") {
			header.Set("Lease-Secret", held.Secret.Reveal())
		}
		bearer := runnerToken
		if c.method == "DELETE" {
			bearer = otherToken
		}
		if strings.HasPrefix(name, "release") {
			bearer = secondToken // whose lease it is
		}
		resp, raw := d.call(t, bearer, c.method, c.path, c.body, header)
		var p client.Problem
		if err := json.Unmarshal(raw, &p); err != nil {
			t.Errorf("%s: %v: %s", name, err, raw)
			continue
		}
		if resp.StatusCode != c.status || p.Type != "urn:fleetdesk:problem:"+c.class || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s: got %d %+v, want %d %s", name, resp.StatusCode, p, c.status, c.class)
		}
		if c.at != "" && (len(p.Errors) != 1 || p.Errors[0].Location != c.at) {
			t.Errorf("%s: places %+v, want %s", name, p.Errors, c.at)
		}
		if len(p.Detail) > 600 || strings.ContainsAny(p.Detail, "\n\x00") {
			t.Errorf("%s: %q", name, p.Detail)
		}
		if after := d.state(t); after != before {
			t.Fatalf("%s changed something (-before +after):\n%s", name, cmp.Diff(before, after))
		}
	}
}

// Only those who may are served.
func TestPickRoles(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{})
	for _, c := range []struct {
		bearer, method, path, body string
		status                     int
	}{
		{viewerToken, "POST", "/proxies/next", `{"pool":"crawl.eu"}`, 403},
		{runnerToken, "POST", "/proxies/next", `{"pool":"crawl.eu"}`, 200},
		{viewerToken, "POST", "/proxies/crawl/home-1/reports", `{"outcome":"ok"}`, 403},
		{runnerToken, "POST", "/proxies/crawl/home-1/reports", `{"outcome":"ok"}`, 200},
		{noRoleToken, "GET", "/proxies/crawl/home-1/cooldowns", ``, 403},
		{viewerToken, "GET", "/proxies/crawl/home-1/cooldowns", ``, 200},
		{runnerToken, "DELETE", "/proxies/crawl/home-1/cooldowns", ``, 403},
		{otherToken, "DELETE", "/proxies/crawl/home-1/cooldowns", ``, 204},
		{otherToken, "DELETE", "/proxies/crawl/home-1/cooldowns?target=shop.example.com", ``, 204},
		{"nobody", "POST", "/proxies/next", `{"pool":"crawl.eu"}`, 401},
	} {
		if resp, raw := d.call(t, c.bearer, c.method, c.path, c.body, nil); resp.StatusCode != c.status {
			t.Errorf("%s %s by %.9s: %d, want %d: %s", c.method, c.path, c.bearer, resp.StatusCode, c.status, raw)
		}
	}
}

// What goes over the wire, to the byte, at a time that stands still.
func TestPickWire(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{Now: began})
	var text bytes.Buffer
	for _, c := range [][4]string{
		{runnerToken, "POST", "/proxies/next", `{"pool":"crawl.eu","target":"https://Shop.example.com:443/cart","selector":"tier=eu","scheme":"http"}`},
		{runnerToken, "POST", "/proxies/next", `{"pool":"crawl.eu","target":"shop.example.com.","selector":"tier=eu"}`},
		{runnerToken, "POST", "/proxies/crawl/home-1/reports", `{"outcome":"banned","target":"shop.example.com","pool":"crawl.eu","use":"crawl.home-1~%d","replace":{}}`},
		{runnerToken, "POST", "/proxies/crawl/home-1/reports", `{"outcome":"error","target":"shop.example.com","pool":"crawl.eu","replace":{}}`},
		{runnerToken, "POST", "/proxies/crawl/home-1/reports", `{"outcome":"ok"}`},
		{viewerToken, "GET", "/proxies/crawl/home-1/cooldowns?limit=1", ``},
		{otherToken, "DELETE", "/proxies/crawl/home-1/cooldowns?target=SHOP.example.com", ``},
		{viewerToken, "GET", "/proxies/crawl/home-1/cooldowns", ``},
	} {
		if _, told, ok := strings.Cut(text.String(), "crawl.home-1~"); ok { // the first pick's number
			c[3] = strings.ReplaceAll(c[3], "%d", told[:strings.Index(told, `"`)])
		}
		resp, raw := d.call(t, c[0], c[1], c[2], c[3], nil)
		raw = bytes.ReplaceAll(raw, []byte(resp.Header.Get("X-Request-Id")), []byte("REQUEST-ID"))
		fmt.Fprintf(&text, "> %s %s\n> %s\n< %s\n", c[1], c[2], c[3], resp.Status)
		for _, h := range []string{"Cache-Control", "Content-Type", "Retry-After"} {
			if v := resp.Header.Get(h); v != "" {
				fmt.Fprintf(&text, "< %s: %s\n", h, v)
			}
		}
		fmt.Fprintf(&text, "%s\n", raw)
	}
	golden(t, "wire/picks.golden", text.Bytes())
}

// The answer's types hide nothing that the client's have, and the reverse.
func TestPickIsWhole(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{})
	strict := func(raw []byte, into any) {
		t.Helper()
		raw = bytes.ReplaceAll(raw, []byte(`,"url":"http://crawler:pa$$%3Aw%40rd@192.0.2.10:3128"`), nil)
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(into); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		again, err := json.Marshal(into)
		if err != nil {
			t.Fatal(err)
		}
		var sent, kept any
		if json.Unmarshal(raw, &sent) != nil || json.Unmarshal(again, &kept) != nil {
			t.Fatal("no JSON")
		}
		if diff := cmp.Diff(sent, kept, cmp.FilterPath(func(p cmp.Path) bool { return strings.Contains(p.GoString(), `"password"`) }, cmp.Ignore())); diff != "" {
			t.Errorf("(-sent +kept):\n%s", diff)
		}
	}
	_, raw := d.call(t, runnerToken, "POST", "/proxies/next", `{"pool":"crawl.eu","target":"shop.example.com"}`, nil)
	var p client.Pick
	strict(raw, &p)
	if p.Proxy() == nil || p.Proxy().Password != "pa$$:w@rd" || p.ExitIP == "" {
		t.Errorf("%s", raw)
	}
	body := fmt.Sprintf(`{"outcome":"banned","target":"shop.example.com","pool":"crawl.eu","use":%q,"replace":{}}`, p.Use)
	_, raw = d.call(t, runnerToken, "POST", "/proxies/crawl/"+p.Name+"/reports", body, nil)
	var r client.Reported
	strict(raw, &r)
	if r.Replacement == nil || r.Replacement.Proxy().Password != "pa$$:w@rd" {
		t.Errorf("%s", raw)
	}
	_, raw = d.call(t, runnerToken, "POST", "/proxies/crawl/"+p.Name+"/reports", strings.Replace(body, "{}", `{"constraints":{"a":"b"}}`, 1), nil)
	r = client.Reported{}
	strict(raw, &r)
	_, raw = d.call(t, runnerToken, "GET", "/proxies/crawl/"+p.Name+"/cooldowns", "", nil)
	strict(raw, &client.CooldownList{})
}

// No verb of fmt, no encoding and no log shows a password.
func TestPicksArePrintedWithoutSecrets(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{})
	c := d.client(t, runnerToken)
	p, err := c.Next(t.Context(), client.NextRequest{Pool: "crawl.eu", Target: "shop.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	done, err := c.ReportPick(t.Context(), p, client.ReportRequest{Outcome: client.OutcomeBanned, Reason: "403", Replace: &client.NextRequest{}})
	if err != nil || done.Replacement == nil || done.Replacement.Proxy().Password != "pa$$:w@rd" {
		t.Fatal(err, done)
	}
	var out bytes.Buffer
	for _, v := range []any{p, &p, done, &done, done.Replacement, []client.Pick{p}, map[string]client.Reported{"x": done}, struct{ p *client.Pick }{&p}, struct{ p client.Pick }{p}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(raw)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
	}
	out.WriteString(d.log.String())
	for _, leak := range []string{"pa$$", "w@rd", "w%40rd", fmt.Sprintf("%x", "pa$$:w@rd")} {
		if strings.Contains(out.String(), leak) {
			at := strings.Index(out.String(), leak)
			t.Errorf("%q was printed: %s", leak, out.String()[max(0, at-200):at+20])
		}
	}
}

// What cannot be reached is not handed out, and does not count as a use.
func TestPickWithoutAccess(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{})
	d.do(t, lease.PutPool{Epoch: d.epoch, Pool: lease.Pool{Name: "crawl.eu", InFlight: 1, Cooldown: time.Second}})
	d.do(t, lease.Report{Key: "crawl.home-1", Pool: "crawl.eu", Outcome: lease.Failed}, lease.Report{Key: "crawl.home-2", Pool: "crawl.eu", Outcome: lease.Failed})
	d.access.set(client.ProxyAccess{}, fault.New(fault.Unavailable, "the Secret crawl/login is gone"))
	const body = `{"pool":"crawl.eu","target":"shop.example.com"}`
	for range 2 {
		resp, raw := d.call(t, runnerToken, "POST", "/proxies/next", body, nil)
		if resp.StatusCode != 503 || !strings.Contains(string(raw), "unavailable:access") || strings.Contains(string(raw), "login") {
			t.Errorf("%d %s", resp.StatusCode, raw)
		}
	}
	for _, key := range []string{"crawl.home-1", "crawl.home-2"} {
		if found, err := d.service.Key(t.Context(), key); err != nil || found.Keys[0].Errors != 1 {
			t.Errorf("%s: a use that never was says how it went: %+v, %v", key, found.Keys, err)
		}
	}
	d.store.Advance(2 * time.Second)
	d.access.set(client.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128}, nil)
	p, err := d.client(t, runnerToken).Next(t.Context(), client.NextRequest{Pool: "crawl.eu", Target: "shop.example.com"})
	if err != nil {
		t.Fatalf("a use that never was is in flight: %v", err)
	}
	d.access.set(client.ProxyAccess{}, fault.New(fault.Unavailable, "the Secret crawl/login is gone"))
	done, err := d.client(t, runnerToken).ReportPick(t.Context(), p, client.ReportRequest{Outcome: client.OutcomeBanned, Replace: &client.NextRequest{}})
	if err != nil || done.Strikes != 1 || done.Replacement != nil || done.NoReplacement == nil || done.NoReplacement.Code != "access" ||
		strings.Contains(done.NoReplacement.Detail, "login") {
		t.Errorf("a report whose replacement is out of reach: %+v, %v", done, err)
	}
	if !strings.Contains(d.log.String(), "crawl/login") {
		t.Error("the cause is for the operator's log")
	}
}

// A desk without proxies has none of these routes, and says so of wishes.
func TestNoSelection(t *testing.T) {
	d := serveDesk(t, leasetest.Options{}, nil)
	for _, path := range []string{"/api/v1/proxies/next", "/api/v1/proxies/crawl/home-1/reports"} {
		if status, _ := d.post(t, "POST", path, "application/json", `{}`); status != 404 && status != 405 {
			t.Errorf("%s: %d", path, status)
		}
	}
	for _, field := range []string{"selector", "scheme", "provider", "region"} {
		status, p := d.post(t, "POST", "/api/v1/leases", "application/json", `{"pool":"win","`+field+`":"http"}`)
		if status != 400 || p.Type != "urn:fleetdesk:problem:invalid:selector" || len(p.Errors) != 1 || p.Errors[0].Location != "body."+field {
			t.Errorf("%s: %d %+v", field, status, p)
		}
	}
	if _, err := api.New(api.Options{Auth: newAccounts(), Log: slog.New(slog.DiscardHandler), Selection: naming{}}); fault.Of(err) != fault.Invalid {
		t.Errorf("a Selection without a Desk: %v", err)
	}
}

// However a target is spelled, it is one; and a lease has it too.
func TestTargetsAreNormalized(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{})
	c := d.client(t, runnerToken)
	spellings := []string{"https://BÜCHER.example:8443/x?y", "bücher.example.", "xn--bcher-kva.example"}
	for _, s := range spellings[:2] {
		p, err := c.Next(t.Context(), client.NextRequest{Pool: "crawl.eu", Target: s})
		if err != nil || p.Target != spellings[2] {
			t.Fatalf("%s: %+v, %v", s, p, err)
		}
	}
	if _, err := c.Next(t.Context(), client.NextRequest{Pool: "crawl.eu", Target: spellings[2]}); !errors.Is(err, client.Quota) {
		t.Errorf("after two picks by two names: %v", err)
	}
	l, err := c.Take(t.Context(), "crawl.default", client.TakeOptions{Target: "HTTP://Shop.Example.com/", Wish: client.Wish{Selector: "tier=us", Scheme: "http"}})
	if err != nil || l.Info().Target != "shop.example.com" || l.Key() != "crawl.home-2" {
		t.Fatalf("%+v, %v", l, err)
	}
	if done, err := l.Report(t.Context(), client.ReportRequest{Outcome: client.OutcomeBanned}); err != nil || done.Strikes != 1 || done.Target != "shop.example.com" {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := l.Release(t.Context(), client.ReleaseRequest{Outcome: client.OutcomeBanned, Target: "News.example.net:80"}); err != nil {
		t.Fatal(err)
	}
	list, err := c.Cooldowns(t.Context(), "crawl", "home-2", client.Page{})
	var targets []string
	for _, one := range list.Items {
		targets = append(targets, one.Target)
	}
	if want := []string{"news.example.net", "shop.example.com", spellings[2]}; err != nil || !cmp.Equal(targets, want) {
		t.Errorf("it rests for %v, want %v; %v", targets, want, err)
	}
}

// The list of rests names the address that rests.
func TestCooldownsNameTheAddress(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{Now: began})
	d.do(t, lease.PutPool{Epoch: d.epoch, Pool: lease.Pool{Name: "crawl.eu", Cooldown: time.Minute, Scope: lease.ScopeExitIP}})
	c := d.client(t, runnerToken)
	p, err := c.Next(t.Context(), client.NextRequest{Pool: "crawl.eu", Target: "shop.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Cooldowns(t.Context(), p.Namespace, p.Name, client.Page{})
	want := client.CooldownList{Items: []client.Cooldown{{
		Target: "shop.example.com", Cause: "resting", SecondsLeft: 60, Scope: "exitIP", ExitIP: p.ExitIP,
	}}}
	if diff := cmp.Diff(want, list); err != nil || diff != "" || p.ExitIP == "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// The API itself forbids to keep what holds credentials, whatever serves it.
func TestPicksAreNotKept(t *testing.T) {
	s := serveCrawl(t, leasetest.Options{}).service
	h, err := api.New(api.Options{Auth: newAccounts(), Desk: s, Access: fixedAccess{}, Selection: naming{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{
		"/api/v1/proxies/next": `{"pool":"crawl.eu"}`, "/api/v1/proxies/crawl/home-1/reports": `{"outcome":"ok","replace":{}}`,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, post(t.Context(), path, body))
		if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "no-store" || !strings.Contains(w.Body.String(), "w@rd") {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
	}
}
