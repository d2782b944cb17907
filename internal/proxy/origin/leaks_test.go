package origin_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/proxy/origin"
)

// ask sends lines of a request header as they are, and returns the answer.
func ask(t *testing.T, address string, lines ...string) (*http.Response, string) {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /generate_204 HTTP/1.1\r\nHost: origin.example.com\r\n"+strings.Join(append(lines, ""), "\r\n")+"\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	var all strings.Builder
	_ = resp.Header.Write(&all)
	return resp, all.String()
}

// TestWhatRealProxiesSend: what is said of requests as real proxies and
// gateways send them, on the wire.
func TestWhatRealProxiesSend(t *testing.T) {
	srv := httptest.NewServer(origin.New(origin.Options{}))
	t.Cleanup(srv.Close)
	for name, tc := range map[string]struct {
		reason string
		lines  []string
		want   string
	}{
		"nothing":            {"always said, so that an origin that does not know of it is told apart", nil, "none"},
		"a browser":          {"what every client sends tells nothing", []string{"User-Agent: Mozilla/5.0", "Accept: */*", "Connection: keep-alive", "Cache-Control: max-age=0", "Upgrade-Insecure-Requests: 1"}, "none"},
		"squid":              {"", []string{"Via: 1.1 squid-1 (squid/5.7)", "X-Forwarded-For: 198.51.100.4", "Cache-Control: max-age=259200", "Connection: keep-alive"}, "Via, X-Forwarded-For"},
		"squid, via off":     {"forwarded_for off sends a word in place of the address", []string{"X-Forwarded-For: unknown"}, "X-Forwarded-For"},
		"tinyproxy":          {"", []string{"Via: 1.1 tinyproxy (tinyproxy/1.11.1)"}, "Via"},
		"apache":             {"mod_proxy says it in three", []string{"X-Forwarded-For: 198.51.100.4", "X-Forwarded-Host: origin.example.com", "X-Forwarded-Server: proxy.example.com"}, "X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Server"},
		"nginx":              {"", []string{"X-Real-IP: 198.51.100.4", "X-Forwarded-Proto: http"}, "X-Forwarded-Proto, X-Real-IP"},
		"RFC 7239":           {"", []string{`Forwarded: for=198.51.100.4;proto=http;by="[2001:db8::1]:3128"`}, "Forwarded"},
		"a CDN":              {"", []string{"CF-Connecting-IP: 198.51.100.4", "True-Client-IP: 198.51.100.4"}, "True-Client-IP, CF-Connecting-IP"},
		"handed on":          {"what a client says to its proxy alone", []string{"Proxy-Connection: keep-alive", "Proxy-Authorization: Basic Y3Jhd2xlcjpzZWNyZXQ="}, "Proxy-Connection, Proxy-Authorization"},
		"in small letters":   {"names have no case", []string{"via: 1.1 x", "x-proxyuser-ip: 198.51.100.4"}, "Via, X-ProxyUser-IP"},
		"without a value":    {"the name tells as much", []string{"Via:"}, "Via"},
		"twice":              {"named once", []string{"Via: 1.0 a", "Via: 1.1 b"}, "Via"},
		"names that are not": {"a header of somebody's own is not repeated", []string{"Via-Something: x", "X-Secret: seen-me"}, "none"},
		"all": {"", func() (all []string) {
			for _, name := range origin.Leaks() {
				all = append(all, name+": seen-me")
			}
			return all
		}(), strings.Join(origin.Leaks(), ", ")},
	} {
		t.Run(name, func(t *testing.T) {
			resp, all := ask(t, srv.Listener.Addr().String(), tc.lines...)
			if got := resp.Header.Get(origin.LeaksHeader); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
			for _, value := range []string{"198.51.100.4", "seen-me", "Y3Jhd2xlcjpzZWNyZXQ", "squid", "tinyproxy", "proxy.example.com"} {
				if strings.Contains(all, value) {
					t.Errorf("a value is in the answer: %q", all)
				}
			}
			names, known := origin.ParseLeaks(resp.Header)
			want := []string{}
			if tc.want != origin.NoLeaks {
				want = strings.Split(tc.want, ", ")
			}
			if !known || !slices.Equal(names, want) {
				t.Errorf("read back: %v %v, want %v", names, known, want)
			}
		})
	}
}

// The list is short enough for a Proxy's status, whose bounds are 16 names of 64
// bytes.
func TestTheListFitsTheStatus(t *testing.T) {
	names := origin.Leaks()
	if len(names) > 16 || len(names) != len(slices.Compact(slices.Sorted(slices.Values(names)))) {
		t.Errorf("%d names: %v", len(names), names)
	}
	for _, name := range names {
		if len(name) > 64 || strings.ContainsAny(name, ", ") || strings.EqualFold(name, origin.NoLeaks) {
			t.Errorf("%q", name)
		}
	}
}

func TestParseLeaks(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		said   []string
		want   string // "?" for nothing known
	}{
		"absent":         {"an old origin, or somebody else's", nil, "?"},
		"none":           {"", []string{"none"}, ""},
		"None":           {"", []string{" None "}, ""},
		"empty":          {"none is said in words", []string{""}, "?"},
		"two":            {"in the list's order, whatever the answer's", []string{"X-Forwarded-For,Via"}, "Via X-Forwarded-For"},
		"two headers":    {"a proxy may have split it", []string{"Via", "forwarded"}, "Forwarded Via"},
		"twice":          {"", []string{"Via, via"}, "Via"},
		"unknown beside": {"what the far side chose is not repeated", []string{"Via, X-<script>"}, "Via"},
		"unknown alone":  {"it leaks something; that it leaks nothing is not said", []string{"X-New"}, "?"},
		"none and one":   {"the worse counts", []string{"none, Via"}, "Via"},
		"none and more":  {"", []string{"none, X-New"}, "?"},
		"too long":       {"", []string{"Via," + strings.Repeat("x", 2000)}, "?"},
		"too many":       {"", []string{"Via", "Via", "Via", "Via", "Via"}, "?"},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			for _, line := range tc.said {
				h.Add(origin.LeaksHeader, line)
			}
			names, known := origin.ParseLeaks(h)
			got := strings.Join(names, " ")
			if !known {
				got = "?"
			}
			if got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func FuzzParseLeaks(f *testing.F) {
	f.Add("none")
	f.Add("Via, X-Forwarded-For,,\x00")
	known := origin.Leaks()
	f.Fuzz(func(t *testing.T, said string) {
		names, told := origin.ParseLeaks(http.Header{http.CanonicalHeaderKey(origin.LeaksHeader): {said}})
		if !told && len(names) > 0 {
			t.Errorf("names of nothing known: %v", names)
		}
		for _, name := range names {
			if !slices.Contains(known, name) {
				t.Errorf("%q is of the far side's own", name)
			}
		}
	})
}

// FuzzNothingIsReflected: an answer does not depend on any value, nor on a path
// that is none of the pages, and stays short.
func FuzzNothingIsReflected(f *testing.F) {
	f.Add("/ip", "X-Secret", "seen-me")
	f.Add("/seen-me", "Via", "seen-me")
	h := origin.New(origin.Options{})
	f.Fuzz(func(t *testing.T, path, name, value string) {
		answer := func(path, value string) string {
			r := httptest.NewRequest(http.MethodGet, "http://origin.example.com/", nil)
			r.URL.Path, r.RemoteAddr = path, "192.0.2.7:4000"
			r.Header[name] = []string{value}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return headerText(w.Header()) + w.Body.String()
		}
		like := path
		if !slices.Contains([]string{"/", "/ip", "/generate_204"}, path) {
			like = "/nowhere"
		}
		got, want := answer(path, value), answer(like, "another")
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if len(got) > 1024 {
			t.Errorf("%d bytes", len(got))
		}
	})
}
