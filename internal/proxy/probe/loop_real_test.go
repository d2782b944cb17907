package probe_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

// TestLoopWithRealProxies drives the whole way once: real proxies, a real
// origin on loopback that is the operator's own, real control requests.
func TestLoopWithRealProxies(t *testing.T) {
	plain, _, _ := newOrigin(t, false)
	changed := make(chan string, 100)
	l, err := probe.New(probe.Options{OwnOrigin: plain, Changed: func(key string) { changed <- key }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	defer func() { cancel(); <-done }()

	good := newProxy(t, "127.0.0.1", "crawler", "right", false)
	wrong := good
	wrong.Password = provider.Secret("wrong")
	watch := func(key string, target probe.Target, url string) probe.Snapshot {
		t.Helper()
		l.Watch(key, probe.Subject{
			UID: "1", Target: target, Check: probe.Check{URL: url, Timeout: 2 * time.Second},
			Policy: health.Policy{FailureThreshold: 1},
		})
		for {
			select {
			case k := <-changed:
				if s, ok := l.State(key); ok && k == key {
					return s
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: nothing changed in 10 s", key)
			}
		}
	}
	if s := watch("good", good, plain+"/generate_204"); s.State != health.Healthy || s.Facts.ExitIP != netip.MustParseAddr(exitAddress) {
		t.Errorf("good: %+v", s)
	}
	if s := watch("wrong", wrong, plain+"/generate_204"); s.State != health.Unhealthy || s.Reason != probe.AuthRefused {
		t.Errorf("wrong password: %+v", s)
	}
	if s := watch("gone", closedPort(t), plain+"/generate_204"); s.State != health.Unhealthy || s.Reason != probe.ConnectFailed {
		t.Errorf("gone, with a control that passes: %+v", s)
	}
	if s := watch("status", good, plain+"/nowhere"); s.State != health.Unknown || !s.Inconclusive || !strings.Contains(s.Message, "status 404 instead of 204") {
		t.Errorf("a URL that answers 404 to everybody: %+v", s)
	}
	dead := closedPort(t)
	if s := watch("refused", good, "http://127.0.0.1:"+portOf(dead)+"/"); s.State != health.Unhealthy || !strings.Contains(s.Message, probe.AllowFlag) {
		t.Errorf("a dead URL that may not be asked directly: %+v", s)
	}
}
