package egress_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/egress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func TestLook(t *testing.T) {
	for ip, tc := range map[string]struct {
		allow, names string
	}{
		"127.0.0.1":                {"", "loopback"},
		"127.64.1.2":               {"", "loopback"},
		"::1":                      {"", "loopback"},
		"::ffff:127.0.0.1":         {"", "loopback"},
		"0.0.0.0":                  {"", "unspecified"},
		"0.1.2.3":                  {"", "unspecified"},
		"::":                       {"", "unspecified"},
		"169.254.169.254":          {"", "metadata"},
		"::ffff:169.254.169.254":   {"", "metadata"},
		"64:ff9b::a9fe:a9fe":       {"", "metadata"},
		"2002:a9fe:a9fe::1":        {"", "metadata"},
		"fd00:ec2::254":            {"", "metadata"},
		"100.100.100.200":          {"", "metadata"},
		"169.254.1.1":              {"", "link-local"},
		"fe80::1":                  {"", "link-local"},
		"fe80::1%eth0":             {"", "link-local"},
		"10.1.2.3":                 {"", "private"},
		"172.31.255.255":           {"", "private"},
		"192.168.0.1":              {"", "private"},
		"fd12::1":                  {"", "private"},
		"fec0::1":                  {"", "private"},
		"100.64.0.1":               {"", "shared"},
		"198.18.0.1":               {"", "benchmark"},
		"192.0.0.1":                {"", "protocol"},
		"224.0.0.1":                {"", "multicast"},
		"ff02::1":                  {"", "multicast"},
		"255.255.255.255":          {"", "reserved"},
		"10.2.0.1":                 {"10.1.0.0/16", "private"},
		"10.1.0.1":                 {"10.1.0.0/16", ""},
		"64:ff9b::a01:1":           {"10.1.0.0/16", ""},
		"192.0.2.1":                {"", ""},
		"203.0.113.7":              {"", ""},
		"172.32.0.1":               {"", ""},
		"2001:db8::1":              {"", ""},
		"64:ff9b::192.0.2.1":       {"", ""},
		"::ffff:203.0.113.7":       {"", ""},
		"fe80::2":                  {"fe80::/10", ""},
		"::7f00:1":                 {"", "loopback"},
		"64:ff9b:1::10.0.0.1":      {"", "private"},
		"2002:0a00:0001::":         {"", "private"},
		"2002:c000:0201:7f00:1::1": {"", ""},
	} {
		t.Run(ip, func(t *testing.T) {
			var allow []netip.Prefix
			if tc.allow != "" {
				allow = append(allow, netip.MustParsePrefix(tc.allow))
			}
			r := egress.Guard{Allow: allow}.Look(netip.MustParseAddr(ip))
			if (r == nil) != (tc.names == "") || r != nil && !strings.Contains(r.Error(), tc.names) {
				t.Errorf("got %v, want a refusal that names %q", r, tc.names)
			}
		})
	}
}

func TestRefusalSaysWhatToDo(t *testing.T) {
	hint := func(p netip.Prefix) string { return fmt.Sprintf("list %s in ranges", p) }
	for name, tc := range map[string]struct {
		reason string
		guard  egress.Guard
		ip     string
		want   string
	}{
		"hint":    {"the caller's own words name the flag or field", egress.Guard{Hint: hint}, "10.1.2.3", "10.1.2.3 is a private address; list 10.1.2.3/32 in ranges"},
		"IPv6":    {"the whole address is the prefix", egress.Guard{Hint: hint}, "fd12::1", "fd12::1 is a private address; list fd12::1/128 in ranges"},
		"mapped":  {"one way to write an address", egress.Guard{Hint: hint}, "::ffff:10.1.2.3", "10.1.2.3 is a private address; list 10.1.2.3/32 in ranges"},
		"inside":  {"what a gateway would make of it", egress.Guard{Hint: hint}, "64:ff9b::7f00:1", "64:ff9b::7f00:1 is a loopback address inside IPv6; list 64:ff9b::7f00:1/128 in ranges"},
		"no hint": {"nothing can be done", egress.Guard{}, "127.0.0.1", "127.0.0.1 is a loopback address"},
	} {
		t.Run(name, func(t *testing.T) {
			r := tc.guard.Look(netip.MustParseAddr(tc.ip))
			if r == nil {
				t.Fatalf("%s may be dialled", tc.ip)
			}
			if diff := cmp.Diff(tc.want, r.Error()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// What a refusal's hint names opens exactly that address: whoever follows it
// is not refused again, and has opened nothing else.
func TestFollowingTheHintAllows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ip netip.Addr
		if rapid.Bool().Draw(t, "v4") {
			ip = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip")))
		} else {
			b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip")
			head := rapid.SampledFrom([]string{"", "\xfd", "\xfe\x80", "\x00\x64\xff\x9b\x00\x00\x00\x00\x00\x00\x00\x00", "\x20\x02\x0a", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}).Draw(t, "head")
			copy(b, head)
			ip = netip.AddrFrom16([16]byte(b))
		}
		var offered netip.Prefix
		g := egress.Guard{Hint: func(p netip.Prefix) string { offered = p; return "" }}
		if g.Look(ip) == nil {
			return
		}
		g.Allow = []netip.Prefix{offered}
		if r := g.Look(ip); r != nil {
			t.Errorf("%s stays refused with %s allowed: %v", ip, offered, r)
		}
		if !offered.IsSingleIP() {
			t.Errorf("%s opens more than %s", offered, ip)
		}
	})
}

func TestPrefixes(t *testing.T) {
	own := []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8")}
	got, err := egress.Prefixes("ranges", own)
	if err != nil {
		t.Fatal(err)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}; got[0] != want[0] || own[0] == got[0] {
		t.Errorf("got %v from %v, want %v in a slice of its own", got, own, want)
	}
	_, err = egress.Prefixes("ranges", []netip.Prefix{{}})
	if fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "ranges holds an invalid prefix") {
		t.Errorf("an invalid prefix: %v", err)
	}
}

func TestVerdicts(t *testing.T) {
	first, second := &egress.Refusal{Kind: "first"}, &egress.Refusal{Kind: "second"}
	for name, tc := range map[string]struct {
		reason string
		notes  []*egress.Refusal
		want   *egress.Refusal
	}{
		"none":         {"nothing was dialled", nil, nil},
		"all refused":  {"the first says why", []*egress.Refusal{first, second}, first},
		"one is fine":  {"an address was tried, so the refusal is not why it failed", []*egress.Refusal{first, nil}, nil},
		"fine at once": {"whatever the order", []*egress.Refusal{nil, first}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var v egress.Verdicts
			for _, n := range tc.notes {
				v.Note(n)
			}
			if got := v.Refused(); got != tc.want {
				t.Errorf("got %v, want %v: %s", got, tc.want, tc.reason)
			}
		})
	}
	var v egress.Verdicts
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { v.Note(first); v.Refused() }) // under the race detector
	}
	wg.Wait()
}

// get sends one request through a guarded transport.
func get(ctx context.Context, g egress.Guard, url string) (*egress.Verdicts, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := &egress.Verdicts{}
	tr := egress.Transport(ctx, &net.Dialer{Control: g.Control(v.Note)})
	tr.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	client := &http.Client{Transport: tr}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return v, err
	}
	resp, err := client.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return v, err
}

func TestTransport(t *testing.T) {
	var hits atomic.Int64
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer inner.Close()
	port := inner.URL[strings.LastIndex(inner.URL, ":"):]
	elsewhere := httptest.NewServer(http.RedirectHandler("http://127.64.0.1"+port, http.StatusFound))
	defer elsewhere.Close()
	only := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	for name, tc := range map[string]struct {
		reason  string
		allow   []netip.Prefix
		url     string
		refused string
	}{
		"allowed":   {"a listed range is dialled", loopback, inner.URL, ""},
		"refused":   {"loopback is not for whoever wrote the URL", nil, inner.URL, "127.0.0.1"},
		"by name":   {"the address counts, not the name", nil, "http://localhost" + port, "127.0.0.1"},
		"mapped":    {"nor another way to write it", nil, "http://[::ffff:127.0.0.1]" + port, "127.0.0.1"},
		"redirect":  {"each redirect is dialled anew", only, elsewhere.URL, ""},
		"zero host": {"0.0.0.0 is this machine on Linux", nil, "http://0.0.0.0" + port, "0.0.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			before := hits.Load()
			v, err := get(t.Context(), egress.Guard{Allow: tc.allow}, tc.url)
			r := v.Refused()
			_, inError := errors.AsType[*egress.Refusal](err)
			switch {
			case name == "allowed":
				if err != nil || hits.Load() == before {
					t.Errorf("%v; the server saw %d requests: %s", err, hits.Load()-before, tc.reason)
				}
			case err == nil || !inError || hits.Load() != before || !egress.FromDial(err):
				t.Errorf("%v; the server saw %d requests: %s", err, hits.Load()-before, tc.reason)
			case tc.refused != "" && (r == nil || r.IP.String() != tc.refused && r.IP.String() != "::1"):
				t.Errorf("refused %v, want %s: %s", r, tc.refused, tc.reason)
			}
		})
	}
}

// A proxy named by the environment would be dialled in place of the address
// that the guard is to see.
func TestTransportUsesNoProxyOfTheEnvironment(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://192.0.2.1:1")
	}
	tr := egress.Transport(t.Context(), &net.Dialer{})
	if tr.Proxy != nil {
		t.Error("the transport asks somebody for a proxy")
	}
	if !tr.DisableCompression || !tr.DisableKeepAlives || tr.ForceAttemptHTTP2 {
		t.Error("bodies come as they are sent, over a connection of their own")
	}
}

// net/http goes on with a handshake whose request was given up; the connection
// must end with the request all the same.
func TestConnectionsEndWithTheirContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer c.Close()
		hello := make([]byte, 5)
		if _, err := io.ReadFull(c, hello); err != nil {
			ended <- err
			return
		}
		cancel()
		_, err = io.Copy(io.Discard, c)
		ended <- err
	}()
	if _, err := get(ctx, egress.Guard{Allow: loopback}, "https://"+l.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the connection outlives its request")
	}
}

func TestControlOfAnAddressThatIsNone(t *testing.T) {
	err := egress.Guard{}.Control(func(*egress.Refusal) { t.Error("there was nothing to judge") })("tcp", "nonsense", nil)
	if err == nil {
		t.Error("what cannot be read is dialled")
	}
}

func TestFromDial(t *testing.T) {
	for op, want := range map[string]bool{"dial": true, "read": false, "write": false} {
		if got := egress.FromDial(fmt.Errorf("GET: %w", &net.OpError{Op: op, Err: io.EOF})); got != want {
			t.Errorf("%s: %v, want %v", op, got, want)
		}
	}
	if egress.FromDial(nil) || egress.FromDial(io.EOF) {
		t.Error("what is no network error is one of dialling")
	}
}
