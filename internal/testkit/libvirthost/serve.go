//go:build linux

package libvirthost

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// SquidUserData is cloud-config for guests with squid, Tiny and Debian alike: a
// proxy for everybody on port 3128 that keeps nothing, and names itself
// from-user-data in the header Via.
const SquidUserData = `#cloud-config
write_files:
- path: /etc/squid/squid.conf
  content: |
    http_port 3128
    acl all_src src 0.0.0.1-255.255.255.255
    http_access allow all_src
    cache deny all
    cache_mem 8 MB
    access_log none
    cache_log /var/log/squid/cache.log
    pid_filename none
    pinger_enable off
    netdb_filename none
    logfile_rotate 0
    shutdown_lifetime 1 seconds
    visible_hostname from-user-data
`

// Serve serves at [Gateway], where hosts and guests reach the tests, until the
// test's end.
func Serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(Gateway, "0"))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// ServeFile serves one file, as an image's source does, and returns its URL and
// its SHA-256 in hexadecimal digits.
func ServeFile(t testing.TB, file string) (url, sum string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, f); err != nil {
		t.Fatal(err)
	}
	s := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) }))
	return s.URL + "/" + filepath.Base(file), hex.EncodeToString(digest.Sum(nil))
}

// Hello is a page that says to whom it answers, and what that one's header Via
// says: "hello 10.99.0.101 via 1.1 from-user-data (squid/5.7)".
func Hello(w http.ResponseWriter, r *http.Request) {
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	_, _ = fmt.Fprintf(w, "hello %s via %s", from, r.Header.Get("Via"))
}

// ProvidersFile writes a providers file with one provider kvm-home, which has
// the host as box-1 and the tiny guest's image, served for the test, and
// returns its path.
func (h *Host) ProvidersFile(t testing.TB) string {
	t.Helper()
	picture, sum := ServeFile(t, Images(t).Tiny)
	dir := t.TempDir()
	known, file := filepath.Join(dir, "known_hosts"), filepath.Join(dir, "providers.yaml")
	for path, text := range map[string]string{known: h.KnownHosts(), file: fmt.Sprintf(`
providers:
- name: kvm-home
  kind: kvm
  kvm:
    ssh: {user: root, keyFile: %s, knownHostsFile: %s}
    hosts:
      box-1: {address: %s, bridge: br0, domainType: qemu}
    images:
      tiny: {url: %q, sha256: %s}
    imageAllowCIDRs: [10.99.0.0/24]
    installGuestAgent: false
`, h.KeyFile(), known, h.IP(), picture, sum)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file
}
