package httpd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/httpd"
)

func TestProblemFollowsTheTable(t *testing.T) {
	for _, m := range fault.Table() {
		err := fmt.Errorf("outer: %w", fault.New(m.Class, "the cause"))
		d := httpd.Problem(err)
		want := httpd.Document{Type: "urn:fleetdesk:problem:" + string(m.Class), Title: m.Summary, Status: m.HTTPStatus}
		if m.HTTPStatus < 500 {
			want.Detail = "outer: the cause"
		}
		if diff := cmp.Diff(want, d, cmp.FilterPath(
			func(p cmp.Path) bool {
				return p.Last().String() == ".retryAfter" || p.Last().String() == ".members"
			}, cmp.Ignore())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", m.Class, diff)
		}
	}
}

func TestProblemAnnotations(t *testing.T) {
	cases := map[string]struct {
		reason     string
		err        error
		status     int
		typ        string
		retryAfter string
	}{
		"status":         {"the status is sharper, the class stays", httpd.WithStatus(fault.New(fault.Denied, "x"), 401), 401, "denied", ""},
		"wrapped":        {"through further wrapping", fmt.Errorf("y: %w", httpd.WithStatus(fault.New(fault.Denied, "x"), 401)), 401, "denied", ""},
		"retry":          {"rounded up to seconds", httpd.WithRetryAfter(fault.New(fault.Quota, "x"), 1100*time.Millisecond), 429, "quota", "2"},
		"both":           {"annotations add up", httpd.WithRetryAfter(httpd.WithStatus(fault.New(fault.Quota, "x"), 503), time.Second), 503, "quota", "1"},
		"default retry":  {"what may work later says when", fault.New(fault.Unavailable, "x"), 503, "unavailable", "1"},
		"unclassed":      {"nobody classed it", errors.New("x"), 503, "transient", "1"},
		"deadline":       {"a bare deadline", context.DeadlineExceeded, 504, "timeout", "1"},
		"no retry":       {"what never works does not", fault.New(fault.Invalid, "x"), 400, "invalid", ""},
		"over the class": {"a class given later wins", fault.Wrap(fault.Unavailable, httpd.WithRetryAfter(errors.New("x"), 5*time.Second)), 503, "unavailable", "5"},
	}
	for name, c := range cases {
		w := httptest.NewRecorder()
		httpd.Problem(c.err).Write(w)
		body := w.Body.String()
		if w.Code != c.status || !strings.Contains(body, `"urn:fleetdesk:problem:`+c.typ+`"`) ||
			w.Header().Get("Retry-After") != c.retryAfter || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %s: %d %v %s", name, c.reason, w.Code, w.Header(), body)
		}
	}
}

func TestReportLogsCausesOfServerErrors(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	cases := map[string]struct {
		reason string
		gone   bool
		err    error
		line   string
	}{
		"server": {"the cause is for the operator", false, fault.New(fault.Unavailable, "the cause"), "level=ERROR"},
		"client": {"a client's mistake is not logged as an error", false, fault.New(fault.Invalid, "the cause"), ""},
		"gone":   {"nor is a client that left", true, context.Canceled, "level=DEBUG"},
	}
	for name, c := range cases {
		var log buffer
		ctx := t.Context()
		if c.gone {
			ctx = gone
		}
		d := httpd.Report(ctx, logger(&log), c.err)
		got := log.String()
		if c.line == "" && got != "" || !strings.Contains(got, c.line) {
			t.Errorf("%s: %s: log %q", name, c.reason, got)
		}
		if d.Status >= 500 && d.Detail != "" {
			t.Errorf("%s: the cause reached the client: %+v", name, d)
		}
	}
}

func TestMembers(t *testing.T) {
	type holders struct {
		Holders []string `json:"holders,omitempty"`
		Due     float64  `json:"due,omitempty"`
	}
	const standard = `{"type":"urn:fleetdesk:problem:invalid","title":"The request is wrong and must be changed.","status":400,"detail":"a < b"`
	cases := map[string]struct {
		reason  string
		members any
		want    string
	}{
		"none":    {"a document without more", nil, standard + `}`},
		"some":    {"they stand behind the standard ones, in the same spelling", &holders{[]string{"<ann>"}, 1.5}, standard + `,"holders":["<ann>"],"due":1.5}`},
		"nothing": {"members that say nothing leave no trace", holders{}, standard + `}`},
	}
	for name, c := range cases {
		w := httptest.NewRecorder()
		err := httpd.WithStatus(fmt.Errorf("%w", httpd.WithMembers(fault.New(fault.Invalid, "a < b"), c.members)), 400)
		httpd.Problem(err).Write(w)
		if got := strings.TrimSuffix(w.Body.String(), "\n"); got != c.want {
			t.Errorf("%s: %s: %s", name, c.reason, got)
		}
	}
}
