package api_test

import (
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
