package probe_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"fleetdesk/internal/proxy/probe"
)

func TestExitIP(t *testing.T) {
	for name, tc := range map[string]struct{ reason, header, body, want string }{
		"header":          {"our own origin says it so", "192.0.2.1", "", "192.0.2.1"},
		"header wins":     {"it is the plainer statement", "192.0.2.1", "192.0.2.2", "192.0.2.1"},
		"bare body":       {"many what-is-my-IP services", "", "192.0.2.2\n", "192.0.2.2"},
		"bare IPv6":       {"exits may be IPv6", "", " 2001:db8::1 ", "2001:db8::1"},
		"mapped":          {"the same address in one form only", "::ffff:192.0.2.3", "", "192.0.2.3"},
		"json ip":         {"the common JSON form", "", `{"ip":"192.0.2.4","country":"XX"}`, "192.0.2.4"},
		"json origin":     {"the other common JSON form", "", `{"origin": "192.0.2.5"}`, "192.0.2.5"},
		"chain":           {"the first entries are what a header claimed", "", `{"origin":"203.0.113.9, 203.0.113.8, 192.0.2.6"}`, "192.0.2.6"},
		"bad header":      {"falls through to the body", "unknown", "192.0.2.7", "192.0.2.7"},
		"page":            {"an address inside prose may be anything", "", "<p>Your IP is 192.0.2.8</p>", ""},
		"other json":      {"a list says nothing", "", `["192.0.2.9"]`, ""},
		"number":          {"not a string", "", `{"ip": 7}`, ""},
		"unspecified":     {"no host has it", "0.0.0.0", "", ""},
		"empty":           {"nothing said", "", "", ""},
		"long white body": {"only a whole answer counts", "", strings.Repeat("1", 100), ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			if tc.header != "" {
				h.Set("X-Client-IP", tc.header)
			}
			want := netip.Addr{}
			if tc.want != "" {
				want = netip.MustParseAddr(tc.want)
			}
			if got := probe.ExitIP(h, []byte(tc.body)); got != want {
				t.Errorf("got %v, want %v: %s", got, want, tc.reason)
			}
		})
	}
}

func FuzzExitIP(f *testing.F) {
	f.Add("192.0.2.1", []byte(`{"origin":"192.0.2.1,"}`))
	f.Add("fe80::1%eth0", []byte("2001:db8::1"))
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		ip := probe.ExitIP(http.Header{"X-Client-Ip": {header}}, body)
		if ip.IsValid() && (ip.Zone() != "" || ip.Is4In6() || ip.IsUnspecified()) {
			t.Errorf("%v is no plain address", ip)
		}
	})
}

// FuzzSOCKSReply: whatever a proxy answers, the handshake ends with success or
// a classed error, and reads no byte past its own end.
func FuzzSOCKSReply(f *testing.F) {
	f.Add([]byte{5, 0, 5, 0, 0, 1, 1, 2, 3, 4, 0, 80, 'x'}, false)
	f.Add([]byte{5, 2, 1, 0, 5, 0, 0, 3, 2, 'a', 'b', 0, 80}, true)
	f.Add([]byte{5, 0xff}, false)
	f.Add([]byte{5, 0, 5, 4, 0, 9}, false)
	f.Fuzz(func(t *testing.T, answer []byte, auth bool) {
		target := probe.Target{Address: "192.0.2.1", Port: 1080, Protocol: "socks5"}
		if auth {
			target.User, target.Password = "u", []byte("p")
		}
		wire := &script{answer: answer}
		err := probe.SOCKSConnect(wire, target, "health.example.com:443")
		if err != nil && probe.ReasonOf(err) == "" {
			t.Errorf("unclassed: %v", err)
		}
		if err == nil && (len(answer) < 10 || answer[0] != 5) {
			t.Errorf("%x was taken for a success", answer)
		}
	})
}

// script is a connection that answers with fixed bytes.
type script struct {
	answer []byte
	asked  []byte
}

func (s *script) Write(p []byte) (int, error) { s.asked = append(s.asked, p...); return len(p), nil }

func (s *script) Read(p []byte) (int, error) {
	if len(s.answer) == 0 {
		return 0, errEnd
	}
	n := copy(p, s.answer)
	s.answer = s.answer[n:]
	return n, nil
}

func TestSOCKSRequestOnTheWire(t *testing.T) {
	for name, tc := range map[string]struct{ reason, addr, want string }{
		"name": {"names are left to the proxy to resolve", "a.example:443", "\x05\x01\x00\x03\x09a.example\x01\xbb"},
		"IPv4": {"an address needs no look-up", "192.0.2.1:80", "\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50"},
		"IPv6": {"[v6]:443 works", "[2001:db8::1]:443", "\x05\x01\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x01\xbb"},
	} {
		t.Run(name, func(t *testing.T) {
			wire := &script{answer: []byte{5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0, 'T', 'L', 'S'}}
			if err := probe.SOCKSConnect(wire, probe.Target{Address: "192.0.2.1", Port: 1080, Protocol: "socks5"}, tc.addr); err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimPrefix(string(wire.asked), "\x05\x01\x00"); got != tc.want {
				t.Errorf("sent %q, want %q: %s", got, tc.want, tc.reason)
			}
			if string(wire.answer) != "TLS" {
				t.Errorf("%q is left on the wire; bytes of the far end were swallowed", wire.answer)
			}
		})
	}
}
