package origin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/proxy/origin"
)

func TestOrigin(t *testing.T) {
	type answer struct {
		Status                     int
		Header, Type, Cache, Allow string
		Body                       string
	}
	const tells = "\nThese headers tell of a proxy: X-Forwarded-For\n"
	const text = "text/plain; charset=utf-8"
	for name, tc := range map[string]struct {
		reason, method, path, remote string
		want                         answer
	}{
		"no content": {
			"the health URL has no body to pay for", "GET", "/generate_204", "192.0.2.7:4000",
			answer{Status: 204, Header: "192.0.2.7", Cache: "no-store"},
		},
		"json": {
			"programs read the address", "GET", "/ip", "192.0.2.7:4000",
			answer{Status: 200, Header: "192.0.2.7", Type: "application/json", Cache: "no-store", Body: "{\"ip\":\"192.0.2.7\",\"leaks\":[\"X-Forwarded-For\"]}\n"},
		},
		"page": {
			"people read the address", "GET", "/", "[2001:db8::7]:4000",
			answer{Status: 200, Header: "2001:db8::7", Type: text, Cache: "no-store", Body: "You come from 2001:db8::7" + tells},
		},
		"mapped": {
			"a dual-stack listener must not show an IPv4 client as IPv6", "GET", "/", "[::ffff:192.0.2.7]:4000",
			answer{Status: 200, Header: "192.0.2.7", Type: text, Cache: "no-store", Body: "You come from 192.0.2.7" + tells},
		},
		"head": {
			"HEAD is GET without the body", "HEAD", "/generate_204", "192.0.2.7:4000",
			answer{Status: 204, Header: "192.0.2.7", Cache: "no-store"},
		},
		"post": {
			"nothing here takes input", "POST", "/ip", "192.0.2.7:4000",
			answer{Status: 405, Header: "192.0.2.7", Type: text, Allow: "GET, HEAD", Body: "only GET and HEAD\n"},
		},
		"no address": {
			"a Unix socket has none, and guessing would be wrong", "GET", "/ip", "@",
			answer{Status: 500, Type: text, Body: "this connection has no IP address\n"},
		},
		"untidy path": {
			"a tidying redirect would repeat the request's path", "GET", "//seen-me/", "192.0.2.7:4000",
			answer{Status: 404, Header: "192.0.2.7", Type: text, Body: "404 page not found\n"},
		},
		"elsewhere": {
			"other paths do not exist", "GET", "/generate_204/x", "192.0.2.7:4000",
			answer{Status: 404, Header: "192.0.2.7", Type: text, Body: "404 page not found\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(tc.method, "http://origin.example.com"+tc.path, nil)
			r.RemoteAddr = tc.remote
			r.Header.Set("X-Forwarded-For", "203.0.113.99")
			r.Header.Set("X-Secret", "seen-me")
			w := httptest.NewRecorder()
			var seen []origin.Seen
			origin.New(origin.Options{Answered: func(s origin.Seen) { seen = append(seen, s) }}).ServeHTTP(w, r)
			got := answer{
				w.Code, w.Header().Get(origin.Header), w.Header().Get("Content-Type"),
				w.Header().Get("Cache-Control"), w.Header().Get("Allow"), w.Body.String(),
			}
			if tc.want.Status >= 400 {
				got.Cache = "" // http.Error drops it; the server sets it again
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
			if said := w.Header().Get(origin.LeaksHeader); said != "X-Forwarded-For" {
				t.Errorf("each answer says what leaks; got %q", said)
			}
			page := origin.Page(tc.path)
			if tc.want.Status == http.StatusNotFound {
				page = "other"
			}
			if diff := cmp.Diff([]origin.Seen{{Page: page, Status: tc.want.Status, Leaks: true}}, seen); diff != "" {
				t.Errorf("what is counted is of closed lists (-want +got):\n%s", diff)
			}
			for _, secret := range []string{"203.0.113.99", "seen-me"} {
				if all := w.Body.String() + headerText(w.Header()); strings.Contains(all, secret) {
					t.Errorf("the answer reflects %q from the request's headers", secret)
				}
			}
		})
	}
}

func headerText(h http.Header) string {
	var b strings.Builder
	_ = h.Write(&b)
	return b.String()
}
