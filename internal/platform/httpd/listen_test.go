package httpd_test

import (
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"fleetdesk/internal/platform/httpd"
)

// The sockets on every address answer nothing: they are closed at once.
func TestFamilyOfTheAddress(t *testing.T) {
	for name, c := range map[string]struct {
		reason, address, bound, url string
		v6                          bool
	}{
		"loopback":   {reason: "what is asked for", address: "127.0.0.1:0", bound: "127.0.0.1", url: "127.0.0.1"},
		"all IPv4":   {reason: "an IPv4 address must not open IPv6, where no firewall rule may be", address: "0.0.0.0:0", bound: "0.0.0.0", url: "127.0.0.1"},
		"mapped":     {reason: "the same in IPv6 clothes", address: "[::ffff:0.0.0.0]:0", bound: "0.0.0.0", url: "127.0.0.1"},
		"all IPv6":   {reason: "nobody can dial the unspecified address", address: "[::]:0", bound: "::", url: "[::1]", v6: true},
		"v6 loop":    {reason: "a literal is kept", address: "[::1]:0", bound: "::1", url: "[::1]", v6: true},
		"everything": {reason: "both families, reached by the one that every machine has", address: ":0", url: "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := httpd.New(httpd.Options{Handler: text("x"), Log: logger(io.Discard), Address: c.address, AllowPlaintext: true})
			if err != nil {
				if c.v6 {
					t.Skip("this machine has no IPv6: ", err)
				}
				t.Fatal(err)
			}
			defer s.Close()
			tcp := s.Addr().(*net.TCPAddr)
			if c.bound != "" && tcp.IP.String() != c.bound {
				t.Errorf("bound to %s, want %s: %s", tcp, c.bound, c.reason)
			}
			if want := "http://" + c.url + ":" + strconv.Itoa(tcp.Port); s.URL() != want {
				t.Errorf("URL %s, want %s: %s", s.URL(), want, c.reason)
			}
			if !c.v6 {
				conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
				if err != nil {
					t.Fatalf("the URL cannot be dialled: %v", err)
				}
				conn.Close()
			}
		})
	}
}
