package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	caYears   = 20
	leafYears = 10
	// renewBefore is how long before its end a certificate is made anew at a
	// start; a process may well run for months.
	renewBefore = 365 * 24 * time.Hour
)

// pki is the set of files that the API server and its administrator need.
type pki struct {
	ca, caKey, serverCert, serverKey, saKey, adminCert, adminKey string
}

func pkiIn(dir string) *pki {
	f := func(name string) string { return filepath.Join(dir, name) }
	return &pki{
		ca: f("ca.crt"), caKey: f("ca.key"),
		serverCert: f("server.crt"), serverKey: f("server.key"),
		saKey:     f("sa.key"),
		adminCert: f("admin.crt"), adminKey: f("admin.key"),
	}
}

// names are what the server's certificate is good for.
type names struct {
	dns []string
	ips []net.IP
}

// serverNames returns the names under which a server on that address is
// reached. With an unspecified address these are all addresses of the machine.
func serverNames(bind string) names {
	n := names{
		dns: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		ips: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	ip := net.ParseIP(bind)
	if !ip.IsUnspecified() {
		n.addIP(ip)
		return n
	}
	if h, err := os.Hostname(); err == nil && h != "" && h != "localhost" {
		n.dns = append(n.dns, h)
	}
	addrs, _ := net.InterfaceAddrs() // without them loopback still works
	for _, a := range addrs {
		if a, ok := a.(*net.IPNet); ok {
			n.addIP(a.IP)
		}
	}
	return n
}

func (n *names) addIP(ip net.IP) {
	if !slices.ContainsFunc(n.ips, ip.Equal) {
		n.ips = append(n.ips, ip)
	}
}

// ensurePKI makes the files on the first start. Later it renews the server's
// certificate when the names changed, and what is about to end. The folder is
// written beside and renamed, so it is whole or absent; one that does not
// verify (a damaged disk) is replaced, which ends issued service account
// tokens and old kubeconfigs.
func ensurePKI(dir string, n names, now time.Time) (*pki, error) {
	p := pkiIn(dir)
	ca, err := loadCA(p, now)
	if err != nil {
		if err := createPKI(dir, n, now); err != nil {
			return nil, fmt.Errorf("make the certificates in %s: %w", dir, err)
		}
		return p, nil
	}
	if err := ca.renew(p.serverCert, p.serverKey, serverTemplate(n), now); err != nil {
		return nil, err
	}
	return p, ca.renew(p.adminCert, p.adminKey, adminTemplate(), now)
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// loadCA reads the whole folder and says what is wrong with it.
func loadCA(p *pki, now time.Time) (*authority, error) {
	cert, err := readCert(p.ca)
	if err != nil {
		return nil, err
	}
	key, err := readKey(p.caKey)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s does not belong to %s", p.caKey, p.ca)
	}
	if now.Add(renewBefore).After(cert.NotAfter) {
		return nil, fmt.Errorf("%s is about to end", p.ca)
	}
	ca := &authority{cert, key}
	for _, f := range []string{p.saKey, p.serverKey, p.adminKey} {
		if _, err := readKey(f); err != nil {
			return nil, err
		}
	}
	return ca, nil
}

func createPKI(dir string, n names, now time.Time) error {
	parent := filepath.Dir(dir)
	// Leftovers of an interrupted attempt; the lock of the data directory is held.
	stale, _ := filepath.Glob(filepath.Join(parent, "."+filepath.Base(dir)+".*"))
	for _, s := range stale {
		_ = os.RemoveAll(s)
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+".new-") // 0700
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	p := pkiIn(tmp)

	key, err := newKey(p.caKey)
	if err != nil {
		return err
	}
	ca := &authority{key: key}
	root := &x509.Certificate{
		Subject: pkix.Name{CommonName: "fleetdesk-standalone-ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	ca.cert = root
	if ca.cert, err = ca.sign(p.ca, root, &key.PublicKey, now, caYears); err != nil {
		return err
	}
	for _, leaf := range []struct {
		cert, key string
		tmpl      *x509.Certificate
	}{
		{p.serverCert, p.serverKey, serverTemplate(n)},
		{p.adminCert, p.adminKey, adminTemplate()},
	} {
		k, err := newKey(leaf.key)
		if err != nil {
			return err
		}
		if _, err := ca.sign(leaf.cert, leaf.tmpl, &k.PublicKey, now, leafYears); err != nil {
			return err
		}
	}
	if _, err := newKey(p.saKey); err != nil {
		return err
	}
	if err := syncDir(tmp); err != nil {
		return err
	}
	old := filepath.Join(parent, "."+filepath.Base(dir)+".old")
	if err := os.Rename(dir, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	_ = os.RemoveAll(old)
	return syncDir(parent)
}

func serverTemplate(n names) *x509.Certificate {
	return &x509.Certificate{
		Subject:  pkix.Name{CommonName: "kube-apiserver"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: n.dns, IPAddresses: n.ips,
	}
}

func adminTemplate() *x509.Certificate {
	return &x509.Certificate{
		Subject:  pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// renew signs the certificate again for its old key, unless the present one
// still serves. The key stays, so the pair matches at every moment.
func (a *authority) renew(certFile, keyFile string, tmpl *x509.Certificate, now time.Time) error {
	key, err := readKey(keyFile)
	if err != nil {
		return err
	}
	if c, err := readCert(certFile); err == nil && a.serves(c, key, tmpl, now) {
		return nil
	}
	_, err = a.sign(certFile, tmpl, &key.PublicKey, now, leafYears)
	return err
}

func (a *authority) serves(c *x509.Certificate, key *ecdsa.PrivateKey, want *x509.Certificate, now time.Time) bool {
	return c.CheckSignatureFrom(a.cert) == nil && key.PublicKey.Equal(c.PublicKey) &&
		now.Add(renewBefore).Before(c.NotAfter) && !now.Before(c.NotBefore) &&
		slices.Equal(c.DNSNames, want.DNSNames) &&
		slices.EqualFunc(c.IPAddresses, want.IPAddresses, net.IP.Equal)
}

// sign writes a certificate for pub to path and returns it.
func (a *authority) sign(path string, tmpl *x509.Certificate, pub crypto.PublicKey, now time.Time, years int) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	tmpl.SerialNumber = serial
	// A clock that is set back a little must not lock everybody out.
	tmpl.NotBefore = now.Add(-time.Hour)
	tmpl.NotAfter = now.AddDate(years, 0, 0)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, pub, a.key)
	if err != nil {
		return nil, err
	}
	if err := writePEM(path, "CERTIFICATE", der); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, err
	}
	return k, writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, typ string, der []byte) error {
	return writeFileAtomic(path, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}), 0o600)
}

func readPEM(path, typ string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != typ {
		return nil, fmt.Errorf("%s holds no %s", path, typ)
	}
	return block.Bytes, nil
}

func readCert(path string) (*x509.Certificate, error) {
	der, err := readPEM(path, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	der, err := readPEM(path, "EC PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	return x509.ParseECPrivateKey(der)
}
