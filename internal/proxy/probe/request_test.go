package probe_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

// short is a timeout that a test may wait out.
const short = 300 * time.Millisecond

func TestRequestPasses(t *testing.T) {
	plain, _, _ := newOrigin(t, false)
	secure, _, cas := newOrigin(t, true)
	for name, target := range map[string]probe.Target{
		"http":          newProxy(t, "127.0.0.1", "", "", false),
		"http, auth":    newProxy(t, "127.0.0.1", "crawler", "p:a@s$s%ü\x00", false),
		"http, IPv6":    newProxyV6(t),
		"https":         newProxy(t, "127.0.0.1", "crawler", "secret", true),
		"socks5":        socksProxy(t, "", "", 0),
		"socks5, auth":  socksProxy(t, "cra:wler", "p:a@s$s%ü\x00", 0),
		"default is it": func() probe.Target { p := newProxy(t, "127.0.0.1", "", "", false); p.Protocol = ""; return p }(),
	} {
		if target.Address == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, check := range []probe.Check{
				{URL: plain + "/generate_204"},
				{URL: plain + "/ip", ExpectedStatus: 200},
				{URL: secure + "/generate_204", CAs: cas},
			} {
				res := probe.Request(t.Context(), target, check)
				if !res.OK || res.Err != nil || res.Reason != probe.ReasonOK || res.Shallow {
					t.Fatalf("%s: %+v, want OK", check.URL, res)
				}
				if res.ExitIP != netip.MustParseAddr(exitAddress) {
					t.Errorf("%s: exit IP %v, want %s: the far end saw the proxy, not us", check.URL, res.ExitIP, exitAddress)
				}
				if res.Latency <= 0 || res.Latency > probe.DefaultTimeout {
					t.Errorf("%s: latency %v", check.URL, res.Latency)
				}
			}
			if res := probe.Request(t.Context(), target, probe.Check{}); !res.OK || !res.Shallow || res.Latency <= 0 {
				t.Errorf("shallow check: %+v, want OK and shallow", res)
			}
		})
	}
}

func newProxyV6(t *testing.T) probe.Target {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Logf("no IPv6 loopback here: %v", err)
		return probe.Target{}
	}
	_ = l.Close()
	return newProxy(t, "::1", "", "", false)
}

func TestRequestFails(t *testing.T) {
	plain, _, _ := newOrigin(t, false)
	secure, _, cas := newOrigin(t, true)
	check := probe.Check{URL: plain + "/generate_204", Timeout: short}
	tunnel := probe.Check{URL: secure + "/generate_204", CAs: cas, Timeout: short}
	patient := func(c probe.Check) probe.Check { c.Timeout = probe.DefaultTimeout; return c }

	answer := func(text string) probe.Target {
		return rawProxy(t, func(c net.Conn) {
			readHeader(c)
			_, _ = io.WriteString(c, text)
		})
	}
	with := func(p probe.Target, f func(*probe.Target)) probe.Target { f(&p); return p }
	authed := newProxy(t, "127.0.0.1", "crawler", "right", false)
	wrong := func(p *probe.Target) { p.Password = provider.Secret("wrong-password") }
	none := func(p *probe.Target) { p.User, p.Password = "", nil }

	for name, tc := range map[string]struct {
		reason string
		target probe.Target
		check  probe.Check
		want   probe.Reason
		class  fault.Class
	}{
		"nothing listens":         {"the commonest failure", closedPort(t), patient(check), probe.ConnectFailed, fault.Unavailable},
		"unresolvable":            {"a name that does not exist is no connection", probe.Target{Address: "proxy.invalid", Port: 3128}, patient(check), probe.ConnectFailed, fault.Unavailable},
		"wrong password":          {"407 is never alive", with(authed, wrong), patient(check), probe.AuthRefused, fault.Denied},
		"wrong password, CONNECT": {"407 is never alive", with(authed, wrong), patient(tunnel), probe.AuthRefused, fault.Denied},
		"no password":             {"users could not use it either", with(authed, none), patient(check), probe.AuthRefused, fault.Denied},
		"407 expected":            {"407 is never alive, even when asked for", with(authed, none), probe.Check{URL: check.URL, ExpectedStatus: 407}, probe.AuthRefused, fault.Denied},
		"socks wrong password":    {"the proxy says no", with(socksProxy(t, "u", "right", 0), wrong), patient(check), probe.AuthRefused, fault.Denied},
		"socks no password":       {"the proxy offers no method for us", with(socksProxy(t, "u", "right", 0), none), patient(check), probe.AuthRefused, fault.Denied},
		"socks refuses":           {"the proxy works and cannot connect", socksProxy(t, "", "", 4), patient(check), probe.ProxyRefused, fault.Transient},
		"CONNECT refused":         {"the proxy works and may not connect", answer("HTTP/1.1 403 Forbidden\r\n\r\n"), patient(tunnel), probe.ProxyRefused, fault.Transient},
		"other status":            {"only the expected status passes", newProxy(t, "127.0.0.1", "", "", false), probe.Check{URL: plain + "/ip"}, probe.UnexpectedStatus, fault.Transient},
		"redirect":                {"a redirect is an answer, often a login page", newProxy(t, "127.0.0.1", "", "", false), probe.Check{URL: plain + "/redirect"}, probe.UnexpectedStatus, fault.Transient},
		"garbage":                 {"not HTTP", answer("SSH-2.0-OpenSSH_10\r\n"), patient(check), probe.BadResponse, fault.Transient},
		"closes early":            {"no answer at all", answer(""), patient(check), probe.BadResponse, fault.Transient},
		"closes in CONNECT":       {"no answer at all", answer(""), patient(tunnel), probe.BadResponse, fault.Transient},
		"cut body":                {"half an answer is none", answer("HTTP/1.1 204 X\r\nContent-Length: 0\r\n"), patient(check), probe.BadResponse, fault.Transient},
		"endless header":          {"a probe reads a bounded number of bytes", rawProxy(t, endless), patient(check), probe.BadResponse, fault.Transient},
		"mute":                    {"accepts and says nothing", rawProxy(t, stall), check, probe.Timeout, fault.Timeout},
		"mute TLS":                {"accepts and does not shake hands", with(rawProxy(t, stall), func(p *probe.Target) { p.Protocol = provider.HTTPS }), check, probe.Timeout, fault.Timeout},
		"mute SOCKS":              {"accepts and does not greet", with(rawProxy(t, stall), func(p *probe.Target) { p.Protocol = provider.SOCKS5 }), check, probe.Timeout, fault.Timeout},
		"mute, shallow":           {"accepts and says nothing", rawProxy(t, stall), probe.Check{Timeout: short}, probe.Timeout, fault.Timeout},
		"body stalls":             {"an answer that never ends is none", rawProxy(t, stallingBody), probe.Check{URL: check.URL, ExpectedStatus: 200, Timeout: short}, probe.Timeout, fault.Timeout},
		"unknown authority":       {"the https proxy's certificate must be trusted", with(newProxy(t, "127.0.0.1", "", "", true), func(p *probe.Target) { p.CAs = nil }), patient(check), probe.ProxyTLSFailed, fault.Transient},
		"other name":              {"the https proxy's certificate must be for it", with(newProxy(t, "127.0.0.1", "", "", true), func(p *probe.Target) { p.ServerName = "proxy.example.net" }), patient(check), probe.ProxyTLSFailed, fault.Transient},
		"target unknown":          {"a proxy that breaks TLS open is not working", newProxy(t, "127.0.0.1", "", "", false), probe.Check{URL: tunnel.URL}, probe.TargetTLSFailed, fault.Transient},
		"shallow 407":             {"407 is never alive", rawHTTP(t, "HTTP/1.1 407 X\r\nContent-Length: 0\r\n\r\n"), probe.Check{}, probe.AuthRefused, fault.Denied},
		"shallow garbage":         {"another program has the port", answer("hello\r\n"), probe.Check{}, probe.BadResponse, fault.Transient},
		"no address":              {"the instance is not there yet", probe.Target{Port: 3128}, check, probe.InvalidTarget, fault.Invalid},
		"no port":                 {"nothing to connect to", probe.Target{Address: "192.0.2.1"}, check, probe.InvalidTarget, fault.Invalid},
		"unknown protocol":        {"never a guess, never direct", probe.Target{Address: "192.0.2.1", Port: 1, Protocol: "ftp"}, check, probe.InvalidTarget, fault.Invalid},
		"colon in user":           {"the proxy would cut the name there", probe.Target{Address: "192.0.2.1", Port: 1, User: "a:b"}, check, probe.InvalidTarget, fault.Invalid},
		"long socks user":         {"the length is one byte", probe.Target{Address: "192.0.2.1", Port: 1, Protocol: provider.SOCKS5, User: strings.Repeat("a", 256)}, check, probe.InvalidTarget, fault.Invalid},
		"bad URL":                 {"nothing to ask for", newProxy(t, "127.0.0.1", "", "", false), probe.Check{URL: "http://u:hunter2@%zz/"}, probe.InvalidCheck, fault.Invalid},
		"file URL":                {"only the web", newProxy(t, "127.0.0.1", "", "", false), probe.Check{URL: "file:///etc/hosts"}, probe.InvalidCheck, fault.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			res := probe.Request(t.Context(), tc.target, tc.check)
			if res.OK || res.Reason != tc.want || fault.Of(res.Err) != tc.class || probe.ReasonOf(res.Err) != tc.want {
				t.Errorf("%+v (class %s)\nwant %s, %s: %s", res, fault.Of(res.Err), tc.want, tc.class, tc.reason)
			}
			if limit := tc.check.Timeout + 2*time.Second; tc.check.Timeout > 0 && time.Since(start) > limit {
				t.Errorf("took %s, the timeout is %s", time.Since(start), tc.check.Timeout)
			}
			for _, secret := range []string{"wrong-password", "hunter2", "OpenSSH"} {
				if text := fmt.Sprintf("%+v %v %q", res, res.Err, res.Err); strings.Contains(text, secret) {
					t.Errorf("%q shows in %s", secret, text)
				}
			}
		})
	}
}

func rawHTTP(t *testing.T, text string) probe.Target {
	return rawProxy(t, func(c net.Conn) { readHeader(c); _, _ = io.WriteString(c, text); stall(c) })
}

func endless(c net.Conn) {
	readHeader(c)
	_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n")
	for {
		if _, err := io.WriteString(c, "X-Filler: "+strings.Repeat("x", 1000)+"\r\n"); err != nil {
			return
		}
	}
}

func stallingBody(c net.Conn) {
	readHeader(c)
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n192.0.2.1")
	stall(c)
}

// TestProxyThatStallsAfterConnectFails: a proxy that accepts CONNECT and then
// stalls never counted as failed.
func TestProxyThatStallsAfterConnectFails(t *testing.T) {
	serve := func(c net.Conn) {
		readHeader(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		stall(c)
	}
	for name, target := range map[string]probe.Target{"http": rawProxy(t, serve), "https": tlsProxy(t, serve)} {
		res := probe.Request(t.Context(), target, probe.Check{URL: "https://health.example.com/", Timeout: short})
		if res.OK || res.Reason != probe.Timeout {
			t.Fatalf("%s: %+v, want %s", name, res, probe.Timeout)
		}
		if text := res.Err.Error(); !strings.Contains(text, "after it opened the tunnel") {
			t.Errorf("%s: %q does not say where it stalled", name, text)
		}
	}
}

// TestCredentialsRoundTrip: credentials with : @ $ or non-ASCII lost their
// tail, and a check that omitted them failed all. Probes and users share the
// transport, so both are asked here.
func TestCredentialsRoundTrip(t *testing.T) {
	plain, _, _ := newOrigin(t, false)
	for _, cred := range [][2]string{
		{"user", "a:b@c$d%41#e/f?g&h+i j"},
		{"us@er%3A", ":::"},
		{"üñî", "пароль\x00\xff\xfe"},
		{"only-user", ""},
	} {
		target := newProxy(t, "127.0.0.1", cred[0], cred[1], false)
		for _, c := range []probe.Check{{URL: plain + "/generate_204"}, {}} {
			if res := probe.Request(t.Context(), target, c); !res.OK {
				t.Errorf("probe with %q: %v", cred, res.Err)
			}
		}
		tr, err := probe.Transport(target)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: tr}).Get(plain + "/generate_204")
		if err != nil {
			t.Fatalf("user's request with %q: %v", cred, err)
		}
		_ = resp.Body.Close()
		tr.CloseIdleConnections()
		if resp.StatusCode != 204 {
			t.Errorf("user's request with %q: status %d", cred, resp.StatusCode)
		}
	}
}

// TestNeverDirect: a broken proxy must not make anything connect directly,
// whatever the environment says of proxies.
func TestNeverDirect(t *testing.T) {
	plain, hits, _ := newOrigin(t, false)
	t.Setenv("NO_PROXY", "*")
	for _, protocol := range []provider.Protocol{provider.HTTP, provider.HTTPS, provider.SOCKS5} {
		target := closedPort(t)
		target.Protocol = protocol
		if res := probe.Request(t.Context(), target, probe.Check{URL: plain + "/generate_204"}); res.Reason != probe.ConnectFailed {
			t.Errorf("%s: probe says %+v", protocol, res)
		}
		tr, err := probe.Transport(target)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: tr}).Get(plain + "/generate_204")
		if err == nil {
			_ = resp.Body.Close()
		}
		if probe.ReasonOf(err) != probe.ConnectFailed {
			t.Errorf("%s: user's request: %v, want %s", protocol, err, probe.ConnectFailed)
		}
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("the origin saw %d requests", n)
	}
	if _, err := probe.Transport(probe.Target{Address: "192.0.2.1", Port: 1, Protocol: "direct"}); err == nil {
		t.Error("an unknown protocol gave a transport")
	}
}

func TestEachProbeHasItsOwnConnection(t *testing.T) {
	conns := make(chan string, 10)
	target := rawProxy(t, func(c net.Conn) {
		conns <- c.RemoteAddr().String()
		for {
			readHeader(c)
			if _, err := io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n"); err != nil {
				return
			}
		}
	})
	for range 3 {
		if res := probe.Request(t.Context(), target, probe.Check{URL: "http://health.example.com/"}); !res.OK {
			t.Fatal(res.Err)
		}
	}
	if n := len(conns); n != 3 {
		t.Errorf("%d connections for 3 probes", n)
	}
}

func TestHugeBodyIsCut(t *testing.T) {
	plain, _, _ := newOrigin(t, false)
	res := probe.Request(t.Context(), newProxy(t, "127.0.0.1", "", "", false), probe.Check{URL: plain + "/huge", ExpectedStatus: 200})
	if !res.OK {
		t.Errorf("%+v: the body's size is no fault of the proxy", res)
	}
}

func TestLatencyIsTimeToFirstByte(t *testing.T) {
	const delay = 120 * time.Millisecond
	target := rawProxy(t, func(c net.Conn) {
		readHeader(c)
		time.Sleep(delay) // the far side's slowness itself is what is measured
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	res := probe.Request(t.Context(), target, probe.Check{URL: "http://health.example.com/"})
	if !res.OK || res.Latency < delay {
		t.Errorf("%+v, want OK with a latency of at least %s", res, delay)
	}
}

func TestURLCredentialsAreSentAndNeverShown(t *testing.T) {
	plain, _, _ := newOrigin(t, false)
	u := mustURL(t, plain+"/private?token=query-secret")
	target := newProxy(t, "127.0.0.1", "", "", false)
	for _, password := range []string{"url-password", "wrong-url-password"} {
		u.User = nil
		check := probe.Check{URL: strings.Replace(u.String(), "http://", "http://u:"+password+"@", 1)}
		res := probe.Request(t.Context(), target, check)
		if want := password == "url-password"; res.OK != want {
			t.Errorf("with %s: %+v", password, res)
		}
		if text := fmt.Sprint(res.Err); strings.Contains(text, "password") || strings.Contains(text, "query-secret") {
			t.Errorf("the error shows a secret: %s", text)
		}
	}
}

func TestCancelledProbeSaysNothingOfTheProxy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	target := rawProxy(t, func(c net.Conn) { readHeader(c); cancel(); stall(c) })
	res := probe.Request(ctx, target, probe.Check{URL: "http://health.example.com/"})
	if res.OK || res.Reason != probe.Cancelled {
		t.Errorf("%+v, want %s", res, probe.Cancelled)
	}
}

func TestTargetPrintsNoPassword(t *testing.T) {
	target := probe.Target{Address: "192.0.2.1", Port: 1, User: "u", Password: provider.Secret("hunter2")}
	if text := fmt.Sprintf("%v %+v %#v", target, target, &target); strings.Contains(text, "hunter2") {
		t.Errorf("%s shows the password", text)
	}
}
