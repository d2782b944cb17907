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
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
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

// ensurePKI returns the folder of keys, which it makes when it is absent: on
// the first start, or after a person moved the former one away. An authority
// that is there is never replaced, whatever is wrong with it, since every
// kubeconfig and token that people copied depends on it. What hangs on it
// alone, the certificates of server and administrator with their keys, is made
// anew when it cannot be used, is about to end or names other addresses.
//
// The folder is written beside and renamed, so it is whole or absent.
//
// Errors: Permanent, with the file and the remedy, when the authority or the
// key of service account tokens cannot be used; Transient when the clock is
// behind the authority or the disk is full.
func ensurePKI(dir string, n names, now time.Time, log *slog.Logger) (*pki, error) {
	if err := tidyPKI(dir); err != nil {
		return nil, fault.Errorf(fault.Of(err), "the folder of keys %s: %w", dir, err)
	}
	p := pkiIn(dir)
	// Lstat: a link to a disk that is not mounted is no reason for new keys.
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := createPKI(dir, n, now); err != nil {
			return nil, fault.Errorf(fault.Of(err), "make the keys in %s: %w", dir, err)
		}
		return p, nil
	}
	ca, err := loadCA(p, now)
	if err != nil {
		return nil, err
	}
	if left := ca.cert.NotAfter.Sub(now); left < renewBefore {
		log.Warn("the authority of this control plane is about to end; a new one needs new kubeconfigs and tokens everywhere",
			"file", p.ca, "ends", ca.cert.NotAfter, "remedy", newAuthority(dir))
	}
	if _, err := readKey(p.saKey); err != nil {
		return nil, lost(p.saKey, err)
	}
	if err := ca.renew(p.serverCert, p.serverKey, serverTemplate(n), now, log); err != nil {
		return nil, err
	}
	return p, ca.renew(p.adminCert, p.adminKey, adminTemplate(), now, log)
}

// newAuthority is what a person does who has no backup.
func newAuthority(dir string) string {
	return fmt.Sprintf("move %s away to begin with a new authority: copied kubeconfigs and service account tokens then stop working", dir)
}

// lost is the error of a file that only a backup can bring back.
func lost(file string, err error) error {
	if fault.Of(err) == fault.Transient {
		return fmt.Errorf("read %s: %w", file, err) // it is not lost: too many files are open
	}
	return fault.Errorf(fault.Permanent, "%s cannot be used (%w): restore it from a backup, or %s", file, err, newAuthority(filepath.Dir(file)))
}

// tidyPKI brings back a folder that was renamed away when a crash kept its
// successor from taking its place, and removes what an interrupted attempt
// left. The lock of the data directory is held.
func tidyPKI(dir string) error {
	beside := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir))
	unfinished, _ := filepath.Glob(beside + ".new-*") // the pattern is well-formed
	for _, s := range unfinished {
		_ = os.RemoveAll(s)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fileFault(err)
	}
	switch err := os.Rename(beside+".old", dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fileFault(err)
	}
	return fileFault(syncDir(filepath.Dir(dir)))
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// loadCA reads the authority.
func loadCA(p *pki, now time.Time) (*authority, error) {
	cert, err := readCert(p.ca)
	if err != nil {
		return nil, lost(p.ca, err)
	}
	key, err := readKey(p.caKey)
	if err != nil {
		return nil, lost(p.caKey, err)
	}
	switch {
	case !key.PublicKey.Equal(cert.PublicKey):
		return nil, lost(p.caKey, fault.Errorf(fault.Permanent, "it does not belong to %s", p.ca))
	case now.Before(cert.NotBefore):
		// Machines without a battery begin in the past and learn better.
		return nil, fault.Errorf(fault.Transient, "the clock says %s, which is before %s was made (%s): set the clock",
			now.UTC().Format(time.RFC3339), p.ca, cert.NotBefore.Format(time.RFC3339))
	case now.After(cert.NotAfter):
		return nil, fault.Errorf(fault.Permanent, "%s ended at %s, and the clock says %s: set the clock, or %s",
			p.ca, cert.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339), newAuthority(filepath.Dir(p.ca)))
	}
	return &authority{cert, key}, nil
}

// createPKI makes the folder, which is absent.
func createPKI(dir string, n names, now time.Time) error {
	parent := filepath.Dir(dir)
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+".new-") // 0700
	if err != nil {
		return fileFault(err)
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
		return fileFault(err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fileFault(err)
	}
	return fileFault(syncDir(parent))
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

// renew makes the certificate anew unless the present one serves. The key
// stays when it can be read, so that the pair matches at every moment; a crash
// between a new key and its certificate is mended by the next start.
func (a *authority) renew(certFile, keyFile string, tmpl *x509.Certificate, now time.Time, log *slog.Logger) error {
	key, err := readKey(keyFile)
	if fault.Of(err) == fault.Transient {
		return fmt.Errorf("read %s: %w", keyFile, err)
	}
	if err != nil {
		log.Warn("a key cannot be used: it is made anew with its certificate", "file", keyFile, "error", err)
		if key, err = newKey(keyFile); err != nil {
			return err
		}
	}
	const anew = "a certificate is made anew"
	c, err := readCert(certFile)
	switch {
	case err != nil:
		log.Warn(anew, "file", certFile, "error", err)
	case now.After(c.NotAfter):
		log.Warn(anew, "file", certFile, "ended", c.NotAfter)
	case c.CheckSignatureFrom(a.cert) != nil || !key.PublicKey.Equal(c.PublicKey):
		log.Warn(anew, "file", certFile, "error", "it belongs to another authority or key")
	case now.Add(renewBefore).Before(c.NotAfter) && !now.Before(c.NotBefore) &&
		slices.Equal(c.DNSNames, tmpl.DNSNames) && slices.EqualFunc(c.IPAddresses, tmpl.IPAddresses, net.IP.Equal):
		return nil
	default: // other addresses, or its end is near: the course of things
		log.Info(anew, "file", certFile)
	}
	_, err = a.sign(certFile, tmpl, &key.PublicKey, now, leafYears)
	return err
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
		return nil, fileFault(err)
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != typ {
		return nil, fault.Errorf(fault.Permanent, "it holds no PEM block %q", typ)
	}
	return block.Bytes, nil
}

func readCert(path string) (*x509.Certificate, error) {
	der, err := readPEM(path, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(der)
	return c, fault.Wrap(fault.Permanent, err)
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	der, err := readPEM(path, "EC PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	k, err := x509.ParseECPrivateKey(der)
	return k, fault.Wrap(fault.Permanent, err)
}
