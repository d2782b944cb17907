package operator_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/proxy/operator"
)

// text is a writer that may be read meanwhile.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *text) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *text) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// command runs proxy-operator with arguments until ctx ends.
func command(ctx context.Context, args ...string) (errors *text, code <-chan int) {
	errors = &text{}
	done := make(chan int, 1)
	go func() {
		done <- operator.Main(ctx, operator.Program{Args: args, Streams: operator.Streams{Out: io.Discard, Err: errors}})
	}()
	return errors, done
}

// answers waits for the line that says where the origin is.
func answers(t *testing.T, errors *text) (at, metrics string) {
	t.Helper()
	line := regexp.MustCompile(`url=(\S+)(?: metrics=(\S+))?`)
	until(t, "the origin", func() string {
		found := line.FindStringSubmatch(errors.String())
		if found == nil {
			return "the log says: " + errors.String()
		}
		at, metrics = found[1], found[2]
		return ""
	})
	return at, metrics
}

func fetched(t *testing.T, c *http.Client, url string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// The origin is a command of its own that needs no cluster: it answers, counts,
// keeps quiet, and stops when it is told to.
func TestTheOriginCommand(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		args   []string
		quiet  bool
	}{
		"quiet":   {"on the internet a line per request is noise", nil, true},
		"verbose": {"for whoever looks for something", []string{"-v", "1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			errors, code := command(ctx, append([]string{"origin", "--bind-address", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0"}, tc.args...)...)
			at, metrics := answers(t, errors)
			c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
			resp, _ := fetched(t, c, at+"/generate_204", http.Header{"Via": {"1.1 squid-1 (squid/5.7)"}})
			if resp.StatusCode != http.StatusNoContent || resp.Header.Get("X-Client-IP") != "127.0.0.1" || resp.Header.Get("X-Proxy-Headers") != "Via" {
				t.Errorf("%s %v", resp.Status, resp.Header)
			}
			if resp, body := fetched(t, c, at+"/seen-me", nil); resp.StatusCode != http.StatusNotFound || strings.Contains(body, "seen-me") {
				t.Errorf("%s %q", resp.Status, body)
			}
			if resp, _ := fetched(t, c, at+"/metrics", nil); resp.StatusCode != http.StatusNotFound {
				t.Errorf("counts are for its owner alone: %s", resp.Status)
			}
			_, body := fetched(t, c, metrics, nil)
			for _, want := range []string{
				`proxy_operator_origin_requests_total{leaks="true",page="/generate_204",status="204"} 1`,
				`proxy_operator_origin_requests_total{leaks="false",page="other",status="404"} 2`,
			} {
				if !strings.Contains(body, want) {
					t.Errorf("metrics lack %s:\n%s", want, body)
				}
			}
			if logged := strings.Contains(errors.String(), "msg=request"); logged == tc.quiet {
				t.Errorf("%s:\n%s", tc.reason, errors)
			}
			if strings.Contains(errors.String(), "seen-me") {
				t.Errorf("a path is in the log:\n%s", errors)
			}
			stop()
			select {
			case got := <-code:
				if got != 0 {
					t.Errorf("exit code %d:\n%s", got, errors)
				}
			case <-time.After(patience):
				t.Fatal("it does not stop")
			}
		})
	}
}

func TestTheOriginServesTLS(t *testing.T) {
	t.Parallel()
	cert, key, cas := certificate(t)
	ctx, stop := context.WithCancel(t.Context())
	errors, code := command(ctx, "origin", "--bind-address", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
	at, _ := answers(t, errors)
	c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: cas}}}
	if resp, body := fetched(t, c, at+"/ip", nil); !strings.HasPrefix(at, "https://") || body != "{\"ip\":\"127.0.0.1\",\"leaks\":[]}\n" {
		t.Errorf("%s: %s %q", at, resp.Status, body)
	}
	stop()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d:\n%s", got, errors)
	}
}

func TestBadSettingsOfTheOriginAreRefused(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"used port":        {[]string{"--bind-address", busy.Addr().String()}, 1, "--bind-address"},
		"used side port":   {[]string{"--bind-address", "127.0.0.1:0", "--metrics-bind-address", busy.Addr().String()}, 1, "--metrics-bind-address"},
		"no port":          {[]string{"--bind-address", "127.0.0.1"}, 2, "--bind-address"},
		"half of TLS":      {[]string{"--tls-cert", "x.pem"}, 2, "--tls-key"},
		"no such file":     {[]string{"--bind-address", "127.0.0.1:0", "--tls-cert", "/no/such.pem", "--tls-key", "/no/such.key"}, 1, "/no/such.pem"},
		"unknown flag":     {[]string{"--trust-forwarded"}, 2, "unknown flag"},
		"a stray argument": {[]string{"start"}, 2, "start"},
	} {
		t.Run(name, func(t *testing.T) {
			errors, code := command(t.Context(), append([]string{"origin"}, tc.args...)...)
			select {
			case got := <-code:
				if got != tc.code || !strings.Contains(errors.String(), tc.want) {
					t.Errorf("exit code %d, want %d, with %q:\n%s", got, tc.code, tc.want, errors)
				}
			case <-time.After(patience):
				t.Fatal("it started")
			}
		})
	}
}

// certificate writes one for 127.0.0.1.
func certificate(t *testing.T) (cert, key string, cas *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "origin.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	cas = x509.NewCertPool()
	cas.AddCert(parsed)
	return cert, key, cas
}
