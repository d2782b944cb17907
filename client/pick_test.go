package client_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/client"
)

// The URL of a proxy says what it is made of, whatever that is.
func TestProxyURLProperty(t *testing.T) {
	text := rapid.OneOf(
		rapid.StringMatching(`[a-zA-Z0-9:@$%/?#&+=;,<>"' \\\[\]!*()~._-]{0,20}`), rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) }),
	)
	host := rapid.OneOf(
		rapid.SampledFrom([]string{"192.0.2.10", "2001:db8::1", "::1", "::ffff:192.0.2.1", "fe80::1%eth0", "proxy.example.com", "xn--bcher-kva.example"}),
		rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z]{2,5}){0,2}`),
	)
	rapid.Check(t, func(t *rapid.T) {
		p := client.ProxyAccess{
			Protocol: rapid.SampledFrom([]string{"http", "https", "socks5"}).Draw(t, "protocol"), Host: host.Draw(t, "host"),
			Port: rapid.IntRange(1, 65535).Draw(t, "port"), Username: text.Draw(t, "username"), Password: client.Secret(text.Draw(t, "password")),
		}
		u, err := url.Parse(p.URL().String())
		if err != nil {
			t.Fatal(err)
		}
		password, _ := u.User.Password()
		if u.Scheme != p.Protocol || u.Hostname() != p.Host || u.Port() != strconv.Itoa(p.Port) || u.User.Username() != p.Username ||
			password != string(p.Password) || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			t.Fatalf("%q is read as %q %q:%q at %s port %s", p.URL().String(), u.Scheme, u.User.Username(), password, u.Hostname(), u.Port())
		}
		if strings.Contains(p.Host, ":") != strings.Contains(u.Host, "[") {
			t.Fatalf("%q: brackets are for IPv6 alone", u.Host)
		}
		if h, port, err := net.SplitHostPort(p.Address()); err != nil || h != p.Host || port != u.Port() {
			t.Fatalf("the address %q: %v", p.Address(), err)
		}
		if shown := fmt.Sprintf("%v %s %+v", p, p, &p); len(p.Password) > 8 && strings.Contains(shown, string(p.Password)) && !strings.Contains(p.Username+p.Host, string(p.Password)) {
			t.Fatalf("shown as %s", shown)
		}
	})
}

// What speaks to a proxy by package net/http presents what was handed out, and
// never goes direct.
func TestTransport(t *testing.T) {
	var mu sync.Mutex
	var got []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		raw, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
		got = append(got, r.URL.String()+" "+string(raw))
	}))
	defer proxy.Close()
	direct := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request went direct") }))
	defer direct.Close()
	t.Setenv("NO_PROXY", "*") // the environment has no say
	address := strings.TrimPrefix(proxy.URL, "http://")
	host, port, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	for _, c := range [][2]string{{"crawler", "pa$$:w@rd%/ö "}, {"", "x"}, {"a@b%", ""}, {"", ""}} {
		p := client.ProxyAccess{Protocol: "http", Host: host, Port: n, Username: c[0], Password: client.Secret(c[1])}
		transport := p.Transport()
		resp, err := (&http.Client{Transport: transport}).Get(direct.URL + "/x")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		transport.CloseIdleConnections()
		want := direct.URL + "/x " + c[0] + ":" + c[1]
		if c == [2]string{"", ""} {
			want = direct.URL + "/x "
		}
		if last := got[len(got)-1]; last != want {
			t.Errorf("the proxy got %q, want %q", last, want)
		}
	}
	for _, p := range []client.ProxyAccess{{}, {Protocol: "http", Port: n}, {Host: host, Port: n}, {Protocol: "http", Host: host}} {
		if resp, err := (&http.Client{Transport: p.Transport()}).Get(direct.URL); err == nil {
			resp.Body.Close()
			t.Errorf("%v: a request got an answer", p)
		}
	}
}

// script is a transport that answers each path by its own list, and writes down
// what was sent.
type script struct {
	mu      sync.Mutex
	answers map[string][]string // a body, or "503 …" with a problem
	sent    []string
	at      []time.Duration
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, _ := io.ReadAll(r.Body)
	path := strings.TrimPrefix(r.URL.Path, "/base/api/v1")
	s.sent = append(s.sent, path+" "+string(raw))
	s.at = append(s.at, time.Since(start))
	list := s.answers[path]
	if len(list) == 0 {
		return nil, errors.New("connection reset")
	}
	body := list[0]
	if len(list) > 1 {
		s.answers[path] = list[1:]
	}
	status, h := 200, http.Header{}
	if text, ok := strings.CutPrefix(body, "503 "); ok {
		status, body = 503, text
		h.Set("Content-Type", "application/problem+json")
		h.Set("Retry-After", "60")
	}
	return &http.Response{Status: http.StatusText(status), StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

const (
	noneFor = `503 {"type":"urn:fleetdesk:problem:quota:none_free","status":503,"why":[{"cause":"banned","count":3}],"secondsUntilFree":%d}`
	noneNow = `503 {"type":"urn:fleetdesk:problem:quota:none_free","status":503}`
)

func pickOf(name string) string {
	return fmt.Sprintf(`{"use":"crawl.%s~7","key":"crawl.%s","namespace":"crawl","name":"%s","pool":"crawl.eu","target":"a.example","attributes":{},"rested":30,
		"proxy":{"protocol":"http","host":"192.0.2.10","port":3128,"username":"u","password":"p"}}`, name, name, name)
}

// Next comes back when one is due, within the wait.
func TestNextWaits(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string
		wait    time.Duration
		limit   time.Duration // of ctx; 0 for none
		at      []time.Duration
		got     bool
	}{
		"at once":            {[]string{pickOf("a")}, 0, 0, []time.Duration{0}, true},
		"none, no wait":      {[]string{fmt.Sprintf(noneFor, 1)}, 0, 0, []time.Duration{0}, false},
		"due within":         {[]string{fmt.Sprintf(noneFor, 42), pickOf("a")}, time.Minute, 0, []time.Duration{0, 42 * time.Second}, true},
		"due twice":          {[]string{fmt.Sprintf(noneFor, 40), fmt.Sprintf(noneFor, 30), pickOf("a")}, time.Minute, 0, []time.Duration{0, 40 * time.Second}, false},
		"due behind":         {[]string{fmt.Sprintf(noneFor, 61)}, time.Minute, 0, []time.Duration{0}, false},
		"for ever":           {[]string{fmt.Sprintf(noneFor, 100), fmt.Sprintf(noneFor, 100), pickOf("a")}, -1, 0, []time.Duration{0, 100 * time.Second, 200 * time.Second}, true},
		"no time frees one":  {[]string{noneNow, pickOf("a")}, time.Minute, 0, []time.Duration{0, 10 * time.Second}, true},
		"the caller's end":   {[]string{fmt.Sprintf(noneFor, 42)}, -1, 30 * time.Second, []time.Duration{0}, false},
		"an outage, no wait": {nil, 0, 0, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{answers: map[string][]string{"/proxies/next": c.answers}}
				ctx := t.Context()
				if c.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.limit)
					defer cancel()
				}
				p, err := newClient(t, s, 0).Next(ctx, client.NextRequest{Namespace: "crawl", Target: "a.example", Wait: c.wait})
				if (err == nil) != c.got {
					t.Fatalf("got %v, %v", p, err)
				}
				if err == nil && (p.Proxy() == nil || p.Proxy().Password != "p" || p.Key != "crawl.a" || p.Rested.Duration() != 30*time.Second) {
					t.Errorf("got %+v", p)
				}
				if c.at != nil && fmt.Sprint(s.at) != fmt.Sprint(c.at) {
					t.Errorf("asked at %v, want %v", s.at, c.at)
				}
				if last := s.at[len(s.at)-1]; time.Since(start) != last {
					t.Errorf("the answer came %s after the last request", time.Since(start)-last)
				}
				if c.at == nil && len(s.at) != 3 {
					t.Errorf("without an answer it asked %d times", len(s.at))
				}
				if strings.Contains(s.sent[0], "ait") || s.sent[0] != `/proxies/next {"namespace":"crawl","target":"a.example"}` {
					t.Errorf("sent %s", s.sent[0])
				}
				if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "none_free" && len(c.answers) > 0 && strings.Contains(c.answers[0], "why") &&
					(len(e.Why) != 1 || e.Why[0] != client.Why{Cause: "banned", Count: 3}) {
					t.Errorf("why: %+v", e.Why)
				}
			})
		})
	}
}

// Through goes on with the replacement, is bounded, and tells the desk of each
// use.
func TestThrough(t *testing.T) {
	replaced := func(name string) string {
		return `{"outcome":"banned","rest":1,"strikes":1,"replacement":` + pickOf(name) + `}`
	}
	const plain = `{"outcome":"banned","rest":1,"strikes":1}`
	type use struct {
		outcome string
		err     error
	}
	bad := errors.New("boom")
	for name, c := range map[string]struct {
		answers map[string][]string
		uses    []use
		reports []string
		fails   string
		nexts   int // 1 when 0
	}{
		"ok":           {nil, []use{{"ok", nil}}, []string{"ok"}, "", 0},
		"nothing said": {nil, []use{{"", nil}}, []string{"ok"}, "", 0},
		"its error":    {nil, []use{{"ok", bad}}, []string{"ok"}, "boom", 0},
		"banned":       {nil, []use{{"banned", nil}, {"ok", nil}}, []string{"banned+", "ok"}, "", 0},
		"an error":     {nil, []use{{"", bad}, {"banned", nil}, {"ok", nil}}, []string{"error+", "banned+", "ok"}, "", 0},
		"always": {
			nil,
			[]use{{"banned", nil}, {"banned", nil}, {"banned", nil}, {"banned", nil}, {"banned", bad}},
			[]string{"banned+", "banned+", "banned+", "banned+", "banned"},
			"boom", 0,
		},
		"no replacement": {map[string][]string{"/proxies/crawl/a/reports": {plain}}, []use{{"banned", nil}, {"ok", nil}}, []string{"banned+", "ok"}, "", 2},
		"none left":      {map[string][]string{"/proxies/crawl/a/reports": {plain}, "/proxies/next": {pickOf("a"), noneNow}}, []use{{"banned", nil}}, []string{"banned+"}, "banned", 2},
		"unheard":        {map[string][]string{"/proxies/crawl/a/reports": nil}, []use{{"ok", nil}}, []string{"ok"}, "", 0},
		"no proxy":       {map[string][]string{"/proxies/next": {noneNow}}, nil, nil, "none", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{answers: map[string][]string{
					"/proxies/next": {pickOf("a")}, "/proxies/crawl/a/reports": {replaced("b")}, "/proxies/crawl/b/reports": {replaced("a")},
				}}
				for path, list := range c.answers {
					s.answers[path] = list
				}
				n := 0
				err := newClient(t, s, -1).Through(t.Context(), client.NextRequest{Pool: "crawl.eu", Target: "a.example"}, func(_ context.Context, h *http.Client) (string, error) {
					u, err := h.Transport.(*http.Transport).Proxy(nil)
					if err != nil || u.Host != "192.0.2.10:3128" {
						t.Errorf("the client leaves by %v, %v", u, err)
					}
					n++
					return c.uses[n-1].outcome, c.uses[n-1].err
				})
				if (c.fails == "") != (err == nil) {
					t.Errorf("%v", err)
				}
				if n != len(c.uses) {
					t.Errorf("%d uses, want %d", n, len(c.uses))
				}
				var reports []string
				nexts := 0
				for _, one := range s.sent {
					if strings.HasPrefix(one, "/proxies/next") {
						nexts++
					}
					_, body, ok := strings.Cut(one, "/reports ")
					if !ok {
						continue
					}
					var r client.ReportRequest
					if err := json.Unmarshal([]byte(body), &r); err != nil || r.Use == "" || r.Pool != "crawl.eu" || r.Target != "a.example" {
						t.Errorf("reported %s, %v", body, err)
					}
					if r.Replace != nil {
						r.Outcome += "+"
					}
					reports = append(reports, r.Outcome)
				}
				if fmt.Sprint(reports) != fmt.Sprint(c.reports) {
					t.Errorf("reported %v, want %v", reports, c.reports)
				}
				if want := max(1, c.nexts); nexts != want {
					t.Errorf("asked %d times, want %d: a replacement is used", nexts, want)
				}
			})
		})
	}
}
