package kubernetes_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// get is a request through a proxy; what the origin saw of the client comes
// back.
func get(t *testing.T, in provider.Instance, user *url.Userinfo, target string) (status int, seen string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{
		Scheme: "http", User: user, Host: net.JoinHostPort(in.Address, strconv.Itoa(in.Port)),
	})}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 30 * time.Second}
	resp, err := client.Get(target)
	if err != nil {
		t.Fatalf("through %s: %v", in.ID, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Real traffic: two Pods leave by addresses of their own, ask for credentials,
// and one that was evicted comes back under its id.
func TestTraffic(t *testing.T) {
	t.Parallel()
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = io.WriteString(w, host)
	}))
	defer origin.Close()
	w := newWorld(t, nil)
	p := w.open(t)
	spec, other := specOf(w, "one"), specOf(w, "two")
	spec.Credentials = provider.Credentials{User: "crawler", Password: provider.Secret("p:a@s$s%wörd-7Qx")}
	in, second := running(t, p, spec), running(t, p, other)
	if in.Address == second.Address || in.Port != testPort {
		t.Errorf("addresses %s and %s, port %d", in.Address, second.Address, in.Port)
	}
	right := url.UserPassword("crawler", "p:a@s$s%wörd-7Qx")
	if status, seen := get(t, in, right, origin.URL); status != http.StatusOK || seen != in.Address {
		t.Errorf("through %s: status %d, and the origin saw %q", in.Address, status, seen)
	}
	if status, seen := get(t, second, nil, origin.URL); status != http.StatusOK || seen != second.Address {
		t.Errorf("through %s: status %d, and the origin saw %q", second.Address, status, seen)
	}
	for what, user := range map[string]*url.Userinfo{"none": nil, "wrong": url.UserPassword("crawler", "p")} {
		if status, _ := get(t, in, user, origin.URL); status != http.StatusProxyAuthRequired {
			t.Errorf("credentials %s: status %d", what, status)
		}
	}
	w.nodes.Evict(t, nameOf(spec.Owner))
	if got, err := p.Get(t.Context(), provider.Ref{ID: in.ID, Owner: spec.Owner}); err != nil || got.State != provider.Stopped {
		t.Fatalf("evicted: %+v, %v", got, err)
	}
	again := until(t, p, spec, provider.Running)
	if again.ID != in.ID {
		t.Errorf("it came back as %s; it was %s", again.ID, in.ID)
	}
	if status, seen := get(t, again, right, origin.URL); status != http.StatusOK || seen != again.Address {
		t.Errorf("afterwards: status %d, and the origin saw %q", status, seen)
	}
	gone(t, p, spec.Owner)
	if _, err := p.Get(t.Context(), provider.Ref{ID: in.ID, Owner: spec.Owner}); fault.Of(err) != fault.NotFound {
		t.Errorf("Get afterwards: %v", err)
	}
	if _, err := net.DialTimeout("tcp", net.JoinHostPort(again.Address, strconv.Itoa(again.Port)), time.Second); err == nil {
		t.Error("something still listens there")
	}
}
