package api_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/httpd"
)

// certificate writes a self-signed one for 127.0.0.1, and returns who trusts it.
func certificate(t *testing.T) (files httpd.TLSFiles, trust *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "desk.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files = httpd.TLSFiles{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(files.Cert, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		t.Fatal(err)
	}
	trust = x509.NewCertPool()
	trust.AppendCertsFromPEM(cert)
	return files, trust
}

// Over TLS all is as without it, with HTTP/2 too: waits that outlive the server's
// timeouts, clients that leave, grants and streams.
func TestOverTLS(t *testing.T) {
	const short = 300 * time.Millisecond
	files, trust := certificate(t)
	for name, protocol := range map[string]int64{"HTTP/1.1": 1, "HTTP/2": 2} {
		t.Run(name, func(t *testing.T) {
			s := run(t, leasetest.NewMemory(leasetest.Options{}), service.Limits{})
			if _, err := s.Publish(t.Context(), lease.Publish{Pool: lease.Pool{Name: "one"}, Items: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
			h, err := api.New(api.Options{Auth: newAccounts(), Desk: s, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			var seen atomic.Int64
			srv, err := httpd.New(httpd.Options{
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					seen.Store(int64(r.ProtoMajor))
					h.ServeHTTP(w, r)
				}),
				Address: "127.0.0.1:0", TLS: files, Log: slog.New(slog.DiscardHandler), WriteTimeout: short, ReadTimeout: short,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- srv.Serve(ctx) }()
			defer func() { cancel(); <-done }()
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: protocol == 2}
			defer transport.CloseIdleConnections()
			c, err := client.New(client.Options{
				BaseURL: srv.URL(), Token: runnerToken, HTTPClient: &http.Client{Transport: transport, Timeout: 30 * time.Second},
			})
			if err != nil {
				t.Fatal(err)
			}
			l, err := c.Take(t.Context(), "one", client.TakeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := seen.Load(); got != protocol {
				t.Fatalf("the client speaks HTTP/%d", got)
			}
			// Somebody waits and leaves; somebody else waits and gets it.
			leaving, leave := context.WithTimeout(t.Context(), short)
			if _, err := c.Take(leaving, "one", client.TakeOptions{Wait: -1, IdempotencyKey: "left"}); err == nil {
				t.Error("the key was handed out twice")
			}
			leave()
			next := make(chan error, 1)
			go func() {
				_, err := c.Take(t.Context(), "one", client.TakeOptions{Wait: 20 * time.Second})
				next <- err
			}()
			time.Sleep(3 * short) // longer than every timeout of the server
			if _, err := l.Release(t.Context(), client.ReleaseRequest{}); err != nil {
				t.Fatal(err)
			}
			if err := <-next; err != nil {
				t.Errorf("the wait: %v", err)
			}
			var kinds []string
			for e, err := range c.Events(t.Context(), 0) {
				if err != nil {
					t.Fatal(err)
				}
				if kinds = append(kinds, e.Kind); len(kinds) == 4 {
					break
				}
			}
			want := []string{"published", "taken", "released", "taken"}
			for i := range want {
				if kinds[i] != want[i] {
					t.Errorf("events %v, want %v", kinds, want)
					break
				}
			}
		})
	}
}
