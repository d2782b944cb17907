package httpd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/platform/httpd"
)

// pair makes a self-signed certificate for 127.0.0.1 with that serial number.
func pair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: "desk.example.com"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}, &x509.Certificate{SerialNumber: big.NewInt(serial)}, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder})
}

// write sets the file's time by the serial number: two writes within one tick
// of the file system's clock would look alike.
func write(t *testing.T, path string, data []byte, serial int64) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	modified := time.Unix(1_700_000_000+serial, 0)
	if err := os.Chtimes(path, modified, modified); err != nil {
		t.Fatal(err)
	}
}

// serial is the serial number of the certificate that the server shows.
func serial(t *testing.T, r *running, c *tls.Config) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", r.Addr().String(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	files := httpd.TLSFiles{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	cert, key := pair(t, 1)
	write(t, files.Cert, cert, 1)
	write(t, files.Key, key, 1)
	r := start(t, httpd.Options{Handler: text("hello"), TLS: files})
	if !strings.HasPrefix(r.URL(), "https://") {
		t.Errorf("URL %s", r.URL())
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	r.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	if resp, body := r.get(t, "/"); body != "hello" || resp.ProtoMajor != 2 {
		t.Errorf("%q over HTTP/%d", body, resp.ProtoMajor)
	}
	anyCert := &tls.Config{InsecureSkipVerify: true}
	if _, err := tls.Dial("tcp", r.Addr().String(), &tls.Config{
		InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10,
	}); err == nil {
		t.Error("TLS 1.1 was accepted")
	}

	// A new pair is used from the next handshake on.
	cert, key = pair(t, 22)
	write(t, files.Cert, cert, 22)
	if got := serial(t, r, anyCert); got != 1 {
		t.Errorf("half-written files: certificate %d, want the previous one", got)
	}
	serial(t, r, anyCert)
	if n := strings.Count(r.log.String(), "cannot be used"); n != 1 {
		t.Errorf("one warning per version of the files, got %d:\n%s", n, r.log)
	}
	write(t, files.Key, key, 22)
	if got := serial(t, r, anyCert); got != 22 {
		t.Errorf("after the change: certificate %d", got)
	}
	serial(t, r, anyCert)
	if n := strings.Count(r.log.String(), "read again"); n != 1 {
		t.Errorf("unchanged files are not read again, got %d lines:\n%s", n, r.log)
	}

	// Files that vanish leave the last certificate in force.
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	if got := serial(t, r, anyCert); got != 22 {
		t.Errorf("after the key vanished: certificate %d", got)
	}
}
