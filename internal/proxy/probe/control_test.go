package probe_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
)

var (
	errEnd   = io.ErrUnexpectedEOF
	loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
)

func direct(t *testing.T, allow []netip.Prefix, own string) *probe.Direct {
	t.Helper()
	d, err := probe.NewDirect(allow, own)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestControl(t *testing.T) {
	plain, _, _ := newOrigin(t, false)
	port := mustURL(t, plain).Port()
	closed := closedPort(t)
	dead := "http://" + net.JoinHostPort(closed.Address, strconv.Itoa(closed.Port))
	mute := rawProxy(t, stall)
	for name, tc := range map[string]struct {
		reason string
		allow  []netip.Prefix
		own    string
		check  probe.Check
		want   health.Control
		says   string
	}{
		"allowed":        {"a listed range may be asked", loopback, "", probe.Check{URL: plain + "/generate_204"}, health.ControlPassed, ""},
		"refused":        {"loopback is not for whoever writes a Proxy", nil, "", probe.Check{URL: plain + "/generate_204"}, health.ControlRefused, "127.0.0.1 is a loopback address; allow it with --health-allow-cidr=127.0.0.1/32"},
		"by name":        {"a name must not point past the guard", nil, "", probe.Check{URL: "http://localhost:" + port + "/generate_204"}, health.ControlRefused, "--health-allow-cidr"},
		"mapped":         {"nor another way to write it", nil, "", probe.Check{URL: "http://[::ffff:127.0.0.1]:" + port + "/generate_204"}, health.ControlRefused, "loopback"},
		"own origin":     {"the operator's own is exempt", nil, plain, probe.Check{URL: plain + "/generate_204"}, health.ControlPassed, ""},
		"own, host:port": {"the other way to write it", nil, "127.0.0.1:" + port, probe.Check{URL: plain + "/generate_204"}, health.ControlPassed, ""},
		"beside own":     {"only that host and port", nil, "127.0.0.1:1", probe.Check{URL: plain + "/generate_204"}, health.ControlRefused, "loopback"},
		"dead":           {"nobody listens", loopback, "", probe.Check{URL: dead + "/?token=query-secret"}, health.ControlFailed, "connection refused"},
		"mute":           {"a control has a deadline", loopback, "", probe.Check{URL: "http://127.0.0.1:" + strconv.Itoa(mute.Port), Timeout: short}, health.ControlFailed, "within 300ms"},
		"late":           {"an answer after the check's own timeout is neither a pass nor a failure", loopback, "", probe.Check{URL: plain + "/generate_204", Timeout: 1}, health.ControlLate, "the check waits 1ns"},
		"other status":   {"the same expectation as the probe's", loopback, "", probe.Check{URL: plain + "/ip"}, health.ControlFailed, "status 200 instead of 204"},
		"redirect":       {"not followed: it might lead anywhere", loopback, "", probe.Check{URL: plain + "/redirect"}, health.ControlFailed, "status 302 instead of 204"},
		"bad URL":        {"nobody can send it, so no proxy is to blame", loopback, "", probe.Check{URL: "health.example.com"}, health.ControlFailed, "healthCheck.url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := direct(t, tc.allow, tc.own).Hurried(short).Ask(t.Context(), tc.check)
			if got != tc.want || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s, %v\nwant %s, %q: %s", got, err, tc.want, tc.says, tc.reason)
			}
			if err != nil && strings.Contains(err.Error(), "query-secret") {
				t.Errorf("%v shows the query", err)
			}
		})
	}
}

func TestRedirectToRefusedAddressIsNotFollowed(t *testing.T) {
	var inner atomic.Int64
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inner.Add(1) }))
	defer secret.Close()
	outer := httptest.NewServer(http.RedirectHandler(secret.URL, http.StatusFound))
	defer outer.Close()
	// The outer server is the exempt one: a follower would carry that on.
	got, err := direct(t, nil, outer.URL).Ask(t.Context(), probe.Check{URL: outer.URL, ExpectedStatus: 200})
	if got != health.ControlFailed || inner.Load() != 0 {
		t.Errorf("%s, %v; the inner server saw %d requests", got, err, inner.Load())
	}
}

// TestThousandFailuresMakeOneControlRequest: together and one after another.
func TestThousandFailuresMakeOneControlRequest(t *testing.T) {
	plain, hits, _ := newOrigin(t, false)
	d := direct(t, loopback, "")
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if got, err := d.Ask(t.Context(), probe.Check{URL: plain + "/generate_204"}); got != health.ControlPassed {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
	wg.Wait()
	for range 10 {
		_, _ = d.Ask(t.Context(), probe.Check{URL: plain + "/generate_204"})
	}
	if n := hits.Load(); n != 1 {
		t.Errorf("%d control requests for one URL", n)
	}
}

// TestControlSurvivesItsAskersEnd: the one who happened to ask first may be
// forgotten; the others still need an answer.
func TestControlSurvivesItsAskersEnd(t *testing.T) {
	reached := make(chan struct{})
	var once sync.Once
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := false
		once.Do(func() { first = true; close(reached) })
		if first {
			select {
			case <-r.Context().Done():
			case <-release:
			}
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer srv.Close()
	defer close(release)
	d := direct(t, loopback, "")
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan health.Control)
	go func() { c, _ := d.Ask(ctx, probe.Check{URL: srv.URL}); first <- c }()
	<-reached
	second := make(chan health.Control)
	go func() { c, _ := d.Ask(t.Context(), probe.Check{URL: srv.URL}); second <- c }()
	cancel()
	if c := <-first; c != health.ControlNone {
		t.Errorf("the cancelled asker got %s, want none", c)
	}
	if c := <-second; c != health.ControlPassed {
		t.Errorf("the other asker got %s, want passed", c)
	}
}

func TestNewDirectRefusesBadOptions(t *testing.T) {
	for _, own := range []string{"origin.example.com", "http://", "http://u:hunter2@%zz", ":8080", "h:port"} {
		_, err := probe.NewDirect(nil, own)
		if fault.Of(err) != fault.Invalid {
			t.Errorf("own origin %q: %v, want an Invalid error", own, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v shows a password", err)
		}
	}
	if _, err := probe.NewDirect([]netip.Prefix{{}}, ""); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), probe.AllowFlag) {
		t.Errorf("bad prefix: %v, want an Invalid error that names the flag", err)
	}
}
