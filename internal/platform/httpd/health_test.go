package httpd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/obs"
)

func ask(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestHealth(t *testing.T) {
	var log buffer
	var broken error
	h := httpd.Health(httpd.HealthOptions{
		Checks: []httpd.Check{
			{Name: "database", Run: func(context.Context) error { return broken }},
			{Name: "cache", Run: func(context.Context) error { return nil }},
		},
		Metrics: obs.NewRegistry(),
		Log:     logger(&log),
	})
	if w := ask(h, "/readyz"); w.Code != 200 ||
		strings.TrimSpace(w.Body.String()) != `{"ready":true,"checks":[{"name":"database","ok":true},{"name":"cache","ok":true}]}` {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	broken = fault.New(fault.Unavailable, "dial 192.0.2.5: refused")
	for range 2 {
		w := ask(h, "/readyz")
		if w.Code != 503 ||
			strings.TrimSpace(w.Body.String()) != `{"ready":false,"checks":[{"name":"database","ok":false,"class":"unavailable"},{"name":"cache","ok":true}]}` {
			t.Errorf("not ready: %d %s", w.Code, w.Body)
		}
	}
	if w := ask(h, "/healthz"); w.Code != 200 || w.Body.String() != "ok\n" {
		t.Errorf("a process whose database is gone still lives: %d %s", w.Code, w.Body)
	}
	broken = nil
	ask(h, "/readyz")
	want := []int{1, 1}
	got := []int{strings.Count(log.String(), "192.0.2.5"), strings.Count(log.String(), "works again")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the cause is logged on changes only: %s\n%s", diff, log.String())
	}
	if w := ask(h, "/metrics"); w.Code != 200 || !strings.Contains(w.Body.String(), "fleetdesk_build_info{") {
		t.Errorf("metrics: %d", w.Code)
	}
	bare := httpd.Health(httpd.HealthOptions{Log: logger(io.Discard)})
	if w := ask(bare, "/metrics"); w.Code != 404 {
		t.Errorf("without metrics: %d", w.Code)
	}
	if w := ask(bare, "/readyz"); w.Code != 200 {
		t.Errorf("without checks: %d %s", w.Code, w.Body)
	}
}

func TestHealthRefusesInDocuments(t *testing.T) {
	h := httpd.Health(httpd.HealthOptions{Log: logger(io.Discard), Metrics: obs.NewRegistry()})
	for name, c := range map[string]struct {
		reason, method, path string
		status               int
		class, allow         string
	}{
		"post":     {"405 as everywhere else", "POST", "/healthz", 405, "invalid", "GET, HEAD"},
		"delete":   {"405 as everywhere else", "DELETE", "/readyz", 405, "invalid", "GET, HEAD"},
		"unknown":  {"a method that nobody knows", "BREW", "/metrics", 405, "invalid", "GET, HEAD"},
		"no route": {"404 as everywhere else", "GET", "/health", 404, "not_found", ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		d := document(t, w.Result(), w.Body.String())
		got := []any{w.Code, d.Status, d.Type, w.Header().Get("Allow")}
		want := []any{c.status, c.status, httpd.ProblemType + c.class, c.allow}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s: %s", name, c.reason, diff)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodHead, "/healthz", nil))
	if w.Code != 200 {
		t.Errorf("HEAD is what some probes send: %d", w.Code)
	}
}

// A check that never returns costs its deadline, not the probe, and is not
// started again and again.
func TestHealthWithMuteCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts atomic.Int32
		release := make(chan struct{})
		h := httpd.Health(httpd.HealthOptions{
			Log: logger(io.Discard),
			Checks: []httpd.Check{
				{Name: "mute", Timeout: 3 * time.Second, Run: func(context.Context) error {
					starts.Add(1)
					<-release
					return nil
				}},
				{Name: "panics", Run: func(context.Context) error { panic("trouble") }},
				{Name: "slow", Timeout: time.Second, Run: func(ctx context.Context) error {
					<-ctx.Done()
					return errors.Join(ctx.Err())
				}},
			},
		})
		for range 3 {
			begin := time.Now()
			w := ask(h, "/readyz")
			if took := time.Since(begin); took != 3*time.Second || w.Code != 503 {
				t.Errorf("%d after %s", w.Code, took)
			}
			want := `{"ready":false,"checks":[{"name":"mute","ok":false,"class":"timeout"},` +
				`{"name":"panics","ok":false,"class":"permanent"},{"name":"slow","ok":false,"class":"timeout"}]}`
			if got := strings.TrimSpace(w.Body.String()); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
		if starts.Load() != 1 {
			t.Errorf("the mute check was started %d times", starts.Load())
		}
		close(release)
	})
}

// Probes come every few seconds: at level info they would drown the log.
func TestHealthIsQuiet(t *testing.T) {
	r := start(t, httpd.Options{Handler: httpd.Health(httpd.HealthOptions{Log: logger(io.Discard)})})
	r.get(t, "/healthz")
	r.client.CloseIdleConnections()
	r.stop()
	<-r.done
	if log := r.log.String(); !strings.Contains(log, "level=DEBUG") || strings.Contains(log, "level=INFO") {
		t.Errorf("log: %s", log)
	}
}
