package probe_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/internal/proxy/origin"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

func passed(d time.Duration) probe.Result {
	return probe.Result{OK: true, Reason: probe.ReasonOK, Latency: d}
}

// TestPassed: a letter is a probe, p or f; what is shown after each of them, in
// percent, "-" for nothing yet.
func TestPassed(t *testing.T) {
	whole := strings.Repeat("p", 16)
	for name, tc := range map[string]struct {
		reason string
		before int // -1 for nothing known
		probes string
		want   string // after each of the last probes
	}{
		"first pass":         {"it is all there is, and the Proxy's status is written anyway", -1, "p", "100"},
		"first failure":      {"a machine may be starting", -1, "f", "-"},
		"failures":           {"four are enough", -1, "ffff", "- - - 0"},
		"late start":         {"half of them", -1, "ffpp", "- - - 50"},
		"young":              {"a failure among few is no news", -1, "ppfp", "100 100 100 100"},
		"one failure":        {"alone it is no news", -1, whole + "f", "100"},
		"two failures":       {"they are", -1, whole + "ff", "100 90"},
		"four failures":      {"one less would be 81 percent", -1, whole + "ffff", "100 90 75 75"},
		"and no more":        {"eight in a row leave half", -1, whole + "ffffffff", "100 90 75 75 75 50 50 50"},
		"recovered":          {"a failure counts until 15 others came after it, and then 100 is whole", -1, whole + "ff" + whole, "90 90 90 90 90 90 90 90 90 90 90 90 90 90 90 100"},
		"restart":            {"what is known stands until a whole window says that it is better", 75, whole, "75 75 75 75 75 75 75 75 75 75 75 75 75 75 75 100"},
		"restart, one fails": {"no reason to show more than before", 90, "pppf", "90 90 90 90"},
		"restart, then no":   {"four failures are worse than what is known", 75, "ffff", "75 75 75 25"},
		"from nothing":       {"a proxy that is dead stays at 0", 0, "fffff", "0 0 0 0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := probe.NewRecord(probe.Facts{Passed: max(tc.before, 0), Counted: tc.before >= 0})
			var got []string
			for _, c := range tc.probes {
				res := passed(time.Millisecond)
				if c == 'f' {
					res = probe.Result{Reason: probe.Timeout, Err: errProxy}
				}
				f := r.Add(res)
				if f.Counted {
					got = append(got, fmt.Sprint(f.Passed))
				} else {
					got = append(got, "-")
				}
			}
			n := len(strings.Fields(tc.want))
			if have := strings.Join(got[len(got)-n:], " "); have != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, have, tc.want)
			}
		})
	}
}

func TestLatency(t *testing.T) {
	const ms = time.Millisecond
	repeat := func(d time.Duration, n int) []time.Duration { return slices.Repeat([]time.Duration{d}, n) }
	for name, tc := range map[string]struct {
		reason string
		before time.Duration
		times  []time.Duration
		want   time.Duration
	}{
		"first":               {"better than nothing", 0, repeat(90*ms, 1), 125 * ms},
		"border":              {"a step has its own value", 0, repeat(250*ms, 1), 250 * ms},
		"rounded up":          {"", 0, repeat(251*ms, 1), 500 * ms},
		"beyond":              {"there is a last step", 0, repeat(time.Minute, 1), 8 * time.Second},
		"a cold first one":    {"the usual one counts once there are a few", 0, append(repeat(3*time.Second, 1), repeat(100*ms, 3)...), 125 * ms},
		"few":                 {"three say nothing against what is known", 125 * ms, repeat(3*time.Second, 3), 125 * ms},
		"an outlier":          {"one in four is none", 125 * ms, append(repeat(100*ms, 12), repeat(8*time.Second, 4)...), 125 * ms},
		"a little above":      {"it would go to and fro", 250 * ms, repeat(300*ms, 16), 250 * ms},
		"well above":          {"", 250 * ms, repeat(320*ms, 16), 500 * ms},
		"a little below":      {"it would go to and fro", 500 * ms, repeat(210*ms, 16), 500 * ms},
		"well below":          {"", 500 * ms, repeat(190*ms, 16), 250 * ms},
		"two steps":           {"at once", 4 * time.Second, repeat(90*ms, 16), 125 * ms},
		"at the top for long": {"", 8 * time.Second, repeat(time.Minute, 16), 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := probe.NewRecord(probe.Facts{Latency: tc.before})
			var got probe.Facts
			for _, d := range tc.times {
				got = r.Add(passed(d))
			}
			if got.Latency != tc.want {
				t.Errorf("%s: %v, want %v", tc.reason, got.Latency, tc.want)
			}
		})
	}
	t.Run("a knock is no request", func(t *testing.T) {
		shallow := passed(ms)
		shallow.Shallow = true
		if f := probe.NewRecord(probe.Facts{}).Add(shallow); f.Latency != 0 || f.Passed != 100 {
			t.Errorf("%+v", f)
		}
	})
	t.Run("another URL is another distance", func(t *testing.T) {
		r := probe.NewRecord(probe.Facts{})
		for range 16 {
			r.Add(passed(100 * ms))
		}
		r = r.Again()
		for range 3 {
			if f := r.Add(passed(3 * time.Second)); f.Latency != 125*ms {
				t.Errorf("%+v: what was known stands for a while", f)
			}
		}
		if f := r.Add(passed(3 * time.Second)); f.Latency != 4*time.Second {
			t.Errorf("%+v: times of the other URL count still", f)
		}
	})
}

// TestFactsAreQuiet: whatever a proxy is like, times that spread by a tenth and
// rare failures do not move the facts once they stand.
func TestFactsAreQuiet(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		usual := time.Duration(rapid.Int64Range(1, int64(9*time.Second)).Draw(rt, "usual"))
		r := probe.NewRecord(probe.Facts{})
		var last probe.Facts
		changes := 0
		for i := range 200 {
			res := passed(usual * time.Duration(rapid.IntRange(90, 110).Draw(rt, "spread")) / 100)
			if i%20 == 19 {
				res = probe.Result{Reason: probe.Timeout, Err: errProxy}
			}
			f := r.Add(res)
			if i >= 16 && f != last {
				changes++
			}
			last = f
		}
		if changes > 0 {
			rt.Fatalf("%d changes; at last %+v", changes, last)
		}
	})
}

// TestLeaksOverTime: what a proxy shows after answers, "?" for one that does not
// tell.
//
//nolint:dupword // what is shown after each answer
func TestLeaksOverTime(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, before string
		answers, want  string
	}{
		"first":                 {"", "?", "Via", "Via"},
		"none":                  {"", "?", "none", "none"},
		"a leak counts":         {"at once", "none", "Via", "Via"},
		"another one":           {"beside the first", "Via", "Forwarded", "Forwarded,Via"},
		"mended":                {"by three in a row", "Via", "none none none", "Via Via none"},
		"to and fro":            {"a proxy with two ways out leaks", "Via", "none none Via none none", "Via Via Via Via Via"},
		"one less":              {"three that agree on the rest", "Via,X-Forwarded-For", "Via Via Via", "Via,X-Forwarded-For Via,X-Forwarded-For Via"},
		"less, not the same":    {"what the three say together", "Via,X-Forwarded-For,Forwarded", "Via none X-Forwarded-For", "Forwarded,Via,X-Forwarded-For Forwarded,Via,X-Forwarded-For Via,X-Forwarded-For"},
		"an origin that is mum": {"what was known is not for ever", "none", "? ? ?", "none none ?"},
		"mum now and then":      {"", "none", "? ? none ? ?", "none none none none none"},
		"mum twice, and Via":    {"", "none", "? ? Via", "none none Via"},
		"interrupted":           {"what was said before does not count", "Via,X-Forwarded-For", "Via Via,X-Forwarded-For none none none", "Via,X-Forwarded-For Via,X-Forwarded-For Via,X-Forwarded-For Via,X-Forwarded-For none"},
		"restart":               {"", "Via", "Via", "Via"},
		"nothing known":         {"", "?", "? ?", "? ?"},
	} {
		t.Run(name, func(t *testing.T) {
			leaks := func(s string) probe.Leaks {
				switch s {
				case "?":
					return ""
				case "none":
					return probe.NoLeaks
				}
				return probe.LeaksOf(strings.Split(s, ","))
			}
			r := probe.NewRecord(probe.Facts{Leaks: leaks(tc.before)})
			var got []string
			for _, one := range strings.Fields(tc.answers) {
				res := passed(time.Millisecond)
				res.Leaks = leaks(one)
				f := string(r.Add(res).Leaks)
				if f == "" {
					f = "?"
				}
				got = append(got, f)
			}
			if have := strings.Join(got, " "); have != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, have, tc.want)
			}
		})
	}
	if got := probe.LeaksOf([]string{"X-New"}); got != "" {
		t.Errorf("a name that nobody knows says %q", got)
	}
}

// TestExitIPOfRecord: a digit is the address that an answer came from, "?" an
// answer that does not tell, f a failure; what is shown after each of them.
func TestExitIPOfRecord(t *testing.T) {
	for name, tc := range map[string]struct{ reason, before, answers, want string }{
		"first":         {"one is enough where none is known", "?", "1", "1"},
		"first, later":  {"", "?", "? f 1", "? ? 1"},
		"moved":         {"two answers agree", "?", "1 2 2", "1 1 2"},
		"once":          {"a single one is no news", "1", "2 1 1", "1 1 1"},
		"to and fro":    {"two that do not follow each other are two single ones", "1", "2 1 2 1 2", "1 1 1 1 1"},
		"each another":  {"it has no address of its own", "1", "2 3 4 2 3", "1 1 1 1 1"},
		"at last":       {"only the last one's like counts", "1", "2 3 3", "1 1 3"},
		"untold":        {"what does not tell is no answer", "1", "2 ? 2", "1 1 2"},
		"failed":        {"nor is a failure", "1", "2 f 2", "1 1 2"},
		"never told":    {"what is known stands", "1", "? ? ?", "1 1 1"},
		"and back":      {"it takes as many", "1", "2 2 1 1", "1 2 2 1"},
		"restart":       {"what is known from before counts as known", "1", "2 2", "1 2"},
		"restart, same": {"", "1", "1", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			exit := func(s string) (ip netip.Addr) {
				if s != "?" {
					ip = netip.MustParseAddr("192.0.2." + s)
				}
				return ip
			}
			r := probe.NewRecord(probe.Facts{ExitIP: exit(tc.before)})
			for i, one := range strings.Fields(tc.answers) {
				res := probe.Result{Reason: probe.Timeout, Err: errProxy}
				if one != "f" {
					res = passed(time.Millisecond)
					res.ExitIP = exit(one)
				}
				if got, want := r.Add(res).ExitIP, exit(strings.Fields(tc.want)[i]); got != want {
					t.Errorf("%s: %v after %d answers, want %v", tc.reason, got, i+1, want)
				}
			}
		})
	}
	r := probe.NewRecord(probe.Facts{ExitIP: netip.MustParseAddr("192.0.2.1")})
	res := passed(time.Millisecond)
	res.ExitIP = netip.MustParseAddr("192.0.2.2")
	r.Add(res)
	if got := r.Again().Add(res).ExitIP; got == res.ExitIP {
		t.Error("an answer to another test counts with one to this")
	}
}

// naive is a proxy that hands every header on, sets some, and tunnels.
func naive(t *testing.T, set http.Header) probe.Target {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			tunnel(w, r.Host)
			return
		}
		out := r.Clone(r.Context())
		out.RequestURI = ""
		for name, values := range set {
			out.Header[name] = values
		}
		resp, err := tr.RoundTrip(out)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(srv.Close)
	return at(t, probe.Target{Protocol: provider.HTTP}, srv.Listener.Addr())
}

// tunnel joins a client of CONNECT with a far end.
func tunnel(w http.ResponseWriter, host string) {
	far, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusOK)
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = far.Close()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(near, far)
		_ = near.Close()
	}()
	_, _ = io.Copy(far, buffered)
	_ = far.Close()
	<-done
}

// TestWhatAProxyTellsOfItself: the headers that real proxies add, as the origin
// sees them and the probe reads them.
func TestWhatAProxyTellsOfItself(t *testing.T) {
	plain, _, _ := newOrigin(t, false)
	secure, _, cas := newOrigin(t, true)
	tell := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	clean := newProxy(t, "127.0.0.1", "", "", false)
	// Its own client says "Proxy-Connection" to it, as curl does.
	const passedOn = "Proxy-Connection"
	withAuth := naive(t, nil)
	withAuth.User, withAuth.Password = "crawler", provider.Secret("secret")
	for name, tc := range map[string]struct {
		reason string
		via    probe.Target
		check  probe.Check
		want   probe.Leaks
	}{
		"clean":             {"it takes the headers of a hop off and adds none", clean, probe.Check{URL: plain + "/generate_204"}, "none"},
		"naive":             {"it hands on what was said to it alone", naive(t, nil), probe.Check{URL: plain + "/generate_204"}, passedOn},
		"credentials":       {"with them, every site could use the proxy", withAuth, probe.Check{URL: plain + "/generate_204"}, passedOn + ",Proxy-Authorization"},
		"squid":             {"as Debian configures it", naive(t, tell("Via", "1.1 squid-1 (squid/5.7)", "X-Forwarded-For", "192.0.2.1")), probe.Check{URL: plain + "/generate_204"}, "Via,X-Forwarded-For," + passedOn},
		"forwarded_for off": {"squid's \"unknown\" tells as much", naive(t, tell("X-Forwarded-For", "unknown")), probe.Check{URL: plain + "/generate_204"}, "X-Forwarded-For," + passedOn},
		"empty":             {"a header without a value tells as much", naive(t, tell("Via", "")), probe.Check{URL: plain + "/generate_204"}, "Via," + passedOn},
		"gateway":           {"RFC 7239, and what load balancers say", naive(t, tell("Forwarded", "for=192.0.2.1", "X-Real-IP", "192.0.2.1", "CF-Connecting-IP", "192.0.2.1", "X-Client-IP", "192.0.2.1")), probe.Check{URL: plain + "/ip", ExpectedStatus: 200}, "Forwarded,X-Real-IP,X-Client-IP,CF-Connecting-IP," + passedOn},
		"tunnel":            {"the origin sees none, and a plain request might have some", naive(t, tell("Via", "1.1 squid-1 (squid/5.7)")), probe.Check{URL: secure + "/generate_204", CAs: cas}, ""},
		"socks":             {"it carries bytes: what is not seen over https is not there over http either", socksProxy(t, "", "", 0), probe.Check{URL: secure + "/generate_204", CAs: cas}, "none"},
		"socks, http":       {"", socksProxy(t, "", "", 0), probe.Check{URL: plain + "/generate_204"}, "none"},
		"shallow":           {"nothing was asked", clean, probe.Check{}, ""},
		"another page":      {"a redirect of some other site says nothing", clean, probe.Check{URL: plain + "/redirect", ExpectedStatus: 302}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			res := probe.Request(t.Context(), tc.via, tc.check)
			if !res.OK {
				t.Fatalf("%+v", res)
			}
			if res.Leaks != order(tc.want) {
				t.Errorf("%s: %q, want %q", tc.reason, res.Leaks, order(tc.want))
			}
		})
	}
}

// order has the names as the origin lists them.
func order(l probe.Leaks) probe.Leaks {
	if l == "" || l == probe.NoLeaks {
		return l
	}
	return probe.LeaksOf(strings.Split(string(l), ","))
}

// TestAFailedProbeTellsNoLeaks: what came with a wrong status came from
// anybody.
func TestAFailedProbeTellsNoLeaks(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(origin.LeaksHeader, origin.NoLeaks)
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	t.Cleanup(srv.Close)
	res := probe.Request(t.Context(), at(t, probe.Target{Protocol: provider.HTTP}, srv.Listener.Addr()), probe.Check{URL: "http://origin.example.com/"})
	if res.OK || res.Leaks != "" || res.Reason != probe.AuthRefused {
		t.Errorf("%+v", res)
	}
}
