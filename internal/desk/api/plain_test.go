package api_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/desk/api"
)

func deskAPI(t testing.TB) http.Handler {
	t.Helper()
	h, err := api.New(api.Options{Auth: newAccounts(), Desk: idleDesk(), Access: fixedAccess{}, Selection: naming{}, Log: slog.New(slog.DiscardHandler), Limits: api.Limits{PerToken: -1}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var targets = map[string]string{
	"next": "/api/v1/proxies/next", "report": "/api/v1/proxies/crawl/home-1/reports", "take": "/api/v1/leases", "renew": "/api/v1/leases/win-01~2/renew", "release": "/api/v1/leases/win-01~2/release",
}

// bodies are requests that plain.go reads, or that it must leave to huma.
func bodies() map[string]map[string]bool {
	long := strings.Repeat("x", 512)
	return map[string]map[string]bool{
		"take": {
			`{"pool":"win"}`: true,
			` { "pool" : "win" , "holder":"job 1","target":"shop.example.com","ttl":600,"wait":60,"runsHooks":true}` + "\n": true,
			`{"pool":"win","wait":0,"runsHooks":false,"holder":""}`:                                                         true,
			`{"pool":"win","selector":"tier=eu,!old","scheme":"socks5","provider":"kvm-home","region":"eu-1"}`:              true,
			`{"pool":"win","target":""}`:                                   false,
			`{"pool":"win","selector":""}`:                                 false,
			`{"pool":"win","scheme":"ftp"}`:                                false,
			`{"pool":"win","scheme":"http","scheme":"http"}`:               false,
			`{"pool":"win","region":"a","Region":"a"}`:                     false,
			`{"pool":"win","provider":"` + strings.Repeat("p", 254) + `"}`: false,
			`{"pool":"win","holder":"Jürgen ☃"}`:                           true,
			`{"pool":"win","holder":"` + long + `"}`:                       true,
			`{"pool":"win","constraints":{"tier":"eu","zone":""}}`:         true,
			`{"pool":"win","constraints":{}}`:                              true,
			`{"pool":"a/b"}`:                                               true, // no name of a pool; the rules say so
			`{"pool":"win","holder":"` + long + `x"}`:                      false,
			`{"pool":""}`:                   false,
			`{}`:                            false,
			``:                              false,
			`null`:                          false,
			`[]`:                            false,
			`"win"`:                         false,
			`{"pool":"win"`:                 false,
			`{"pool":"win"}}`:               false,
			`{"pool":"win"}{}`:              false,
			`{"pool":"win",}`:               false,
			`{"pool":"win" "holder":"a"}`:   false,
			`{,"pool":"win"}`:               false,
			`{"pool":null}`:                 false,
			`{"pool":7}`:                    false,
			`{"pool":"w\u0069n"}`:           false,
			"{\"pool\":\"w\x00n\"}":         false,
			"{\"pool\":\"w\xffn\"}":         false,
			"{\"pool\":\"w\nn\"}":           false,
			`{"pool":"win","pool":"win"}`:   false,
			`{"pool":"win","Pool":"win"}`:   false,
			`{"Pool":"win"}`:                false,
			`{"pool":"win","zone":1}`:       false,
			`{"pool":"win","ttl":0}`:        false,
			`{"pool":"win","ttl":-1}`:       false,
			`{"pool":"win","ttl":4}`:        false,
			`{"pool":"win","ttl":31536000}`: false,
			`{"pool":"win","ttl":86401}`:    false,
			`{"pool":"win","ttl":60.0}`:     false,
			`{"pool":"win","ttl":6e1}`:      false,
			`{"pool":"win","ttl":060}`:      false,
			`{"pool":"win","ttl":+60}`:      false,
			`{"pool":"win","ttl":NaN}`:      false,
			`{"pool":"win","ttl":"60"}`:     false,
			`{"pool":"win","ttl":99999999999999999999}`:      false,
			`{"pool":"win","wait":61}`:                       false,
			`{"pool":"win","runsHooks":1}`:                   false,
			`{"pool":"win","runsHooks":truefalse}`:           false,
			`{"pool":"win","constraints":{"a":"1","a":"2"}}`: false,
			`{"pool":"win","constraints":{"a":"1","A":"2"}}`: false,
			`{"pool":"win","constraints":{"a":1}}`:           false,
			`{"pool":"win","constraints":null}`:              false,
			`{"pool":"win","constraints":{` + strings.TrimSuffix(strings.Repeat(`"k":"v",`, 17), ",") + `}}`: false,
		},
		"renew": {
			``:                                      true,
			`{}`:                                    true,
			`{"ttl":3600,"fence":2,"reset":"done"}`: true,
			`{"reset":"begin"}`:                     true,
			`{"reset":""}`:                          false,
			`{"reset":"failed"}`:                    false,
			`{"fence":0}`:                           false,
			`{"fence":-2}`:                          false,
			`{"ttl":0}`:                             false,
			`{"secret":"x"}`:                        false,
			` `:                                     false,
			`null`:                                  false,
		},
		"release": {
			``:   true,
			`{}`: true,
			`{"outcome":"banned","reason":"403","target":"shop.example.com","reset":"failed"}`: true,
			`{"outcome":""}`:          false,
			`{"outcome":"lost"}`:      false,
			`{"reset":"begin"}`:       false,
			`{"outcome":"ok","x":{}}`: false,
			`{"outcome":["ok"]}`:      false,
			`{"target":""}`:           false,
		},
		"next": {
			`{"pool":"crawl.eu"}`:                        true,
			`{"namespace":"crawl","target":"a.example"}`: true,
			`{}`: true, // which of the two it wants is no question of form
			`{"pool":"crawl.eu","target":"https://a.example/x","selector":"tier=eu","scheme":"https","provider":"p","region":"r","holder":"","constraints":{"a":"b"}}`: true,
			``:                           false,
			`null`:                       false,
			`{"pool":""}`:                false,
			`{"target":""}`:              false,
			`{"target":"` + long + `x"}`: false,
			`{"target":"` + strings.Repeat("t", 5000) + `"}`:   false,
			`{"namespace":"` + strings.Repeat("n", 64) + `"}`:  false,
			`{"selector":"` + strings.Repeat("s", 2049) + `"}`: false,
			`{"pool":"a","wait":1}`:                            false,
			`{"pool":"a","ttl":60}`:                            false,
			`{"pool":"a","pool":"b"}`:                          false,
			`{"scheme":"HTTP"}`:                                false,
			`{"constraints":{"a":"1","A":"1"}}`:                false,
		},
		"report": {
			`{"outcome":"ok"}`: true,
			`{"outcome":"banned","target":"a.example","pool":"crawl.eu","use":"crawl.home-1~2","reason":"","replace":{}}`: true,
			`{"outcome":"error","lease":"crawl.home-1~2","replace":{"pool":"crawl.eu","scheme":"http","selector":"a=b"}}`: true,
			``:                                   false,
			`{}`:                                 false,
			`{"outcome":"broken"}`:               false,
			`{"outcome":""}`:                     false,
			`{"outcome":"ok","use":""}`:          false,
			`{"outcome":"ok","target":""}`:       false,
			`{"outcome":"ok","outcome":"ok"}`:    false,
			`{"outcome":"ok","replace":null}`:    false,
			`{"outcome":"ok","replace":true}`:    false,
			`{"outcome":"ok","replace":[]}`:      false,
			`{"outcome":"ok","replace":{"x":1}}`: false,
			`{"outcome":"ok","replace":{"pool":"a","pool":"b"}}`: false,
			`{"outcome":"ok","replace":{}}}`:                     false,
			`{"outcome":"ok","replace":{"pool":"a"},"pool":"b"}`: true,
		},
	}
}

// compare fails when a request that is read by hand is not read alike by huma. A
// request that is not read by hand is huma's alone to judge, so there the two
// cannot differ.
func compare(t *testing.T, h http.Handler, operation, body string, header http.Header) (plain bool) {
	t.Helper()
	byHand, byHuma := api.ReadBoth(h, operation, func() *http.Request {
		r := httptest.NewRequest(http.MethodPost, targets[operation], strings.NewReader(body))
		for n, v := range header {
			r.Header[n] = v
		}
		return r
	})
	if byHand.OK && !byHuma.OK {
		t.Errorf("%s %q %v is accepted by hand, and refused by huma: %d %s", operation, body, header, byHuma.Status, byHuma.Body)
	}
	if byHand.OK && byHuma.OK {
		if diff := cmp.Diff(byHuma.In, byHand.In); diff != "" {
			t.Errorf("%s %q %v is read in two ways (-huma +by hand):\n%s", operation, body, header, diff)
		}
	}
	return byHand.OK
}

func TestBothReadAlike(t *testing.T) {
	h := deskAPI(t)
	for operation, all := range bodies() {
		for body, plain := range all {
			if got := compare(t, h, operation, body, nil); got != plain {
				t.Errorf("%s %q: read by hand %v, want %v", operation, body, got, plain)
			}
		}
	}
	const good = `{"pool":"win"}`
	for _, c := range []struct {
		reason string
		header http.Header
		plain  bool
	}{
		{"the usual type", http.Header{"Content-Type": {"application/json"}}, true},
		{"a charset", http.Header{"Content-Type": {"application/json; charset=utf-8"}}, false},
		{"another type", http.Header{"Content-Type": {"text/plain"}}, false},
		{"an Idempotency-Key", http.Header{"Idempotency-Key": {"a b~!"}}, true},
		{"a long one", http.Header{"Idempotency-Key": {strings.Repeat("k", 256)}}, false},
		{"a longest one", http.Header{"Idempotency-Key": {strings.Repeat("k", 255)}}, true},
		{"an empty one", http.Header{"Idempotency-Key": {""}}, false},
		{"two", http.Header{"Idempotency-Key": {"a", "b"}}, false},
		{"one that is not ASCII", http.Header{"Idempotency-Key": {"é"}}, false},
	} {
		if got := compare(t, h, "take", good, c.header); got != c.plain {
			t.Errorf("%s: read by hand %v, want %v", c.reason, got, c.plain)
		}
	}
	for _, secret := range []string{"abc", strings.Repeat("s", 128), strings.Repeat("s", 129), ""} {
		compare(t, h, "renew", "{}", http.Header{"Lease-Secret": {secret}})
	}
}

func FuzzBothReadAlike(f *testing.F) {
	for operation, all := range bodies() {
		for body := range all {
			f.Add(operation, body)
		}
	}
	h := deskAPI(f)
	f.Fuzz(func(t *testing.T, operation, body string) {
		if _, ok := targets[operation]; ok {
			compare(t, h, operation, body, http.Header{"Content-Type": {"application/json"}})
		}
	})
}

// What is refused says where it is wrong, and by which rule.
func TestLeaseRequestsAreStrict(t *testing.T) {
	d := serveDeskOf(t)
	cases := map[string]struct {
		reason, method, path, body string
		status                     int
		class, detail, location    string
	}{
		"unknown field":    {"a field that nobody knows is named", "POST", "/leases", `{"pool":"win","zone":"x"}`, 400, "invalid:field", "body.zone: unexpected property", "body.zone"},
		"twice":            {"a name given twice", "POST", "/leases", `{"pool":"win","pool":"mac"}`, 400, "invalid:body", "twice", "body"},
		"NaN":              {"no number", "POST", "/leases", `{"pool":"win","ttl":NaN}`, 400, "invalid:body", "body", "body"},
		"ttl 0":            {"absent means the pool's own; 0 means nothing", "POST", "/leases", `{"pool":"win","ttl":0}`, 400, "invalid:ttl", "body.ttl", "body.ttl"},
		"ttl -1":           {"a negative time", "POST", "/leases", `{"pool":"win","ttl":-1}`, 400, "invalid:ttl", "body.ttl", "body.ttl"},
		"ttl of a year":    {"a time beyond all pools", "POST", "/leases", `{"pool":"win","ttl":31536000}`, 400, "invalid:ttl", "body.ttl", "body.ttl"},
		"ttl of a pool":    {"a time beyond this pool's", "POST", "/leases", `{"pool":"short","ttl":61}`, 400, "invalid:ttl", "5s to 1m0s", ""},
		"renewal":          {"renewals too", "POST", "/leases/win-01~2/renew", `{"ttl":0}`, 400, "invalid:ttl", "body.ttl", "body.ttl"},
		"wait":             {"a wait longer than one request may", "POST", "/leases", `{"pool":"win","wait":61}`, 400, "invalid:wait", "body.wait", "body.wait"},
		"two fields":       {"two wrong fields have no one code", "POST", "/leases", `{"pool":"win","wait":61,"ttl":0}`, 400, "invalid", "body.ttl", "body.ttl"},
		"large":            {"10 MB", "POST", "/leases", `{"pool":"` + strings.Repeat("a", 10<<20) + `"}`, 413, "invalid:too_large", "larger than", ""},
		"pool slash":       {"no name of a pool", "POST", "/leases", `{"pool":"a/b"}`, 400, "invalid:name", "a/b", ""},
		"pool dots":        {"nor is this", "POST", "/leases", `{"pool":".."}`, 400, "invalid:name", "..", ""},
		"pool NUL":         {"nor is this", "POST", "/leases", `{"pool":"a\u0000"}`, 400, "invalid:name", "", ""},
		"pool long":        {"nor is this", "POST", "/leases", `{"pool":"` + strings.Repeat("a", 1000) + `"}`, 400, "invalid", "body.pool", "body.pool"},
		"path slash":       {"an escaped slash is part of the name", "GET", "/pools/a%2Fb", ``, 400, "invalid:name", "path.pool", "path.pool"},
		"path dots":        {"escaped dots are a name, and none of a pool", "GET", "/pools/%2e%2e", ``, 400, "invalid:name", "path.pool", "path.pool"},
		"path NUL":         {"a NUL", "GET", "/pools/a%00b", ``, 400, "invalid:name", "path.pool", "path.pool"},
		"path long":        {"1,000 characters", "GET", "/pools/" + strings.Repeat("a", 1000), ``, 400, "invalid:name", "path.pool", "path.pool"},
		"key slash":        {"a key too", "POST", "/pools/win/keys/a%2Fb/enable", ``, 400, "invalid:name", "path.key", "path.key"},
		"key elsewhere":    {"a key of another pool", "POST", "/pools/short/keys/win-01/enable", ``, 404, "not_found:key", "win-01", ""},
		"lease slash":      {"an id that is none", "GET", "/leases/a%2Fb", ``, 404, "not_found:lease", "a/b", ""},
		"lease dots":       {"nor is this", "POST", "/leases/%2e%2e/renew", ``, 404, "not_found:lease", "", ""},
		"lease long":       {"nor is this", "POST", "/leases/" + strings.Repeat("a", 1000) + "/renew", ``, 400, "invalid", "path.id", "path.id"},
		"raw dots":         {"dots in the path lead to no other route", "GET", "/pools/../leases/x", ``, 404, "not_found", "no such route", ""},
		"raw dot":          {"nor does one", "GET", "/pools/./win", ``, 404, "not_found", "no such route", ""},
		"double slash":     {"nor an empty name", "GET", "/pools//waiters", ``, 404, "not_found", "no such route", ""},
		"empty name":       {"nor does this", "GET", "/pools/", ``, 404, "not_found", "no such route", ""},
		"method":           {"a method that the path does not have", "DELETE", "/leases/x", ``, 405, "invalid", "GET, HEAD", ""},
		"no secret":        {"without its secret a lease is not renewed", "POST", "/leases/win-01~3/renew", ``, 403, "denied:not_owner", "", ""},
		"query":            {"a parameter that nobody knows", "POST", "/leases?wait=60", `{"pool":"win"}`, 400, "invalid", "query.wait", "query.wait"},
		"publish settings": {"a factor that is none", "PUT", "/pools/x", `{"items":[],"banCooldown":{"initial":1,"factor":0,"max":1}}`, 400, "invalid", "factor", "body.banCooldown.factor"},
		"publish names":    {"a list of something else", "PUT", "/pools/x", `{"items":[1]}`, 400, "invalid", "body.items[0]", "body.items[0]"},
		"reason":           {"out of use without a reason", "POST", "/pools/win/keys/win-01/disable", `{}`, 400, "invalid:body", "reason", "body"},
		"events cursor":    {"no number of an event", "GET", "/events?after=abc", ``, 400, "invalid", "query.after", "query.after"},
		"events huge":      {"a number beyond all", "GET", "/events?after=99999999999999999999", ``, 400, "invalid", "query.after", "query.after"},
	}
	for name, c := range cases {
		status, p := d.post(t, c.method, "/api/v1"+c.path, "application/json", c.body)
		if status != c.status || p.Status != c.status || p.Type != "urn:fleetdesk:problem:"+c.class || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s: %s: got %d %+v", name, c.reason, status, p)
		}
		if c.location != "" && (len(p.Errors) == 0 || p.Errors[0].Location != c.location) {
			t.Errorf("%s: %s: locations %+v", name, c.reason, p.Errors)
		}
		if len(p.Detail) > 1000 {
			t.Errorf("%s: the answer repeats the request: %d bytes", name, len(p.Detail))
		}
	}
	if status, p := d.post(t, "POST", "/api/v1/leases", "text/plain", `{"pool":"win"}`); status != 415 || p.Type != "urn:fleetdesk:problem:invalid:body" {
		t.Errorf("another type: %d %+v", status, p)
	}
}

// Headers that say what is asked for stand once, and say something.
func TestHeadersAreStrict(t *testing.T) {
	d := serveDeskOf(t)
	for reason, header := range map[string]http.Header{
		"two Idempotency-Keys":  {"Idempotency-Key": {"a", "b"}},
		"an empty one":          {"Idempotency-Key": {""}},
		"one that is too long":  {"Idempotency-Key": {strings.Repeat("k", 300)}},
		"one that is not ASCII": {"Idempotency-Key": {"é"}},
		"two secrets":           {"Lease-Secret": {"a", "b"}},
	} {
		path := "/api/v1/leases"
		if header["Lease-Secret"] != nil {
			path += "/win-01~3/renew"
		}
		req, err := http.NewRequest("POST", d.url+path, strings.NewReader(`{"pool":"win"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		req.Header.Set("Authorization", "Bearer "+runnerToken)
		resp, err := d.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var p client.Problem
		err = json.NewDecoder(resp.Body).Decode(&p)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 400 || len(p.Errors) == 0 || !strings.HasPrefix(p.Errors[0].Location, "header.") {
			t.Errorf("%s: %d %+v, %v", reason, resp.StatusCode, p, err)
		}
	}
}
