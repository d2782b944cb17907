package gcp_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/testkit/gcefake"
)

// Neither tokens nor assertions go where a redirect leads.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var visits atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		visits.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer other.Close()
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	for name, lead := range map[string]func(*world) func(){
		"API":    func(w *world) func() { return w.Redirect(elsewhere) },
		"tokens": func(w *world) func() { return w.BreakTokens(gcefake.Answer{Status: 307, Location: elsewhere}) },
	} {
		w := newWorld(t, false, gcefake.Options{})
		mend := lead(w)
		p := w.open(t)
		s := specOf("a", w.Zones()[0])
		_, err := p.Get(t.Context(), refOf(s))
		if fault.Of(err) != fault.Unavailable || visits.Load() != 0 {
			t.Errorf("%s: %d visits there: %s: %v; want none, and Unavailable", name, visits.Load(), fault.Of(err), err)
		}
		mend()
		up(t, p, s)
	}
}
