package api_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"fleetdesk/internal/desk/api"
)

// Whatever a client sends as a query or a token is its own mistake: no answer
// is a server's failure, and only the right token reads anything.
func FuzzRequest(f *testing.F) {
	f.Add("cursor=Y3Jhd2wvaG9tZS0x", "Bearer "+viewerToken)
	f.Add("cursor=L2E&limit=3", "bearer "+viewerToken)
	f.Add("selector=a%20in%20(b)&zone=x", "Bearer ")
	f.Add("limit=9223372036854775808&phase=%00;", "Basic eDp5")
	h, err := api.New(api.Options{
		Auth: newAccounts(), Proxies: exampleFleet(), Log: slog.New(slog.DiscardHandler),
		Limits: api.Limits{PerToken: -1, FailuresPerMinute: -1},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, query, authorization string) {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/proxies", nil)
		r.URL = &url.URL{Path: "/api/v1/proxies", RawQuery: query}
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch w.Code {
		case 200:
			if !strings.Contains(authorization, viewerToken) && !strings.Contains(authorization, otherToken) {
				t.Errorf("%q reads the list", authorization)
			}
		case 400, 401, 403:
		default:
			t.Errorf("query %q, token %q: %d %s", query, authorization, w.Code, w.Body)
		}
	})
}

// Whatever an admin sends as a body is its own mistake, and what is accepted is
// what was sent.
func FuzzBody(f *testing.F) {
	f.Add(`{"name":"a","role":"viewer"}`)
	f.Add(`{"name":"a","role":"viewer","ROLE":"admin"}`)
	f.Add(`{"name":"a","role":"viewer"}]`)
	f.Add(`{"name":{"name":[{"x":1},{"x":2}]},"role":null}`)
	f.Add(`[[[[{"a":{"b":{}},"b":1}]]]]`)
	f.Fuzz(func(t *testing.T, body string) {
		_, service := exampleAccounts()
		h, err := api.New(api.Options{
			Auth: newAccounts(), Accounts: service, Log: slog.New(slog.DiscardHandler), Limits: api.Limits{PerToken: -1},
		})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/api/v1/accounts", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+otherToken)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch w.Code {
		case 201:
			var sent, kept map[string]any
			if json.Unmarshal([]byte(body), &sent) != nil || json.Unmarshal(w.Body.Bytes(), &kept) != nil {
				t.Fatalf("%q was accepted: %s", body, w.Body)
			}
			for name, value := range sent {
				if kept[strings.ToLower(name)] != value {
					t.Errorf("%q was kept as %s", body, w.Body)
				}
			}
		case 400, 409:
		default:
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	})
}
