package postgres

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// makeCertificates writes an authority's certificate and one of the server,
// which is for localhost.
func (s *Server) makeCertificates() error {
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		DNSNames:    []string{"localhost"}, // and not 127.0.0.1
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, server, authority, key.Public(), authorityKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		path, kind string
		der        []byte
	}{
		{s.CA(), "CERTIFICATE", authorityDER},
		{filepath.Join(s.data, "server.pem"), "CERTIFICATE", der},
		{filepath.Join(s.data, "server.key"), "PRIVATE KEY", keyDER},
	} {
		mode := os.FileMode(0o644)
		if f.kind == "PRIVATE KEY" {
			mode = 0o600
		}
		if err := os.WriteFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), mode); err != nil {
			return err
		}
		if s.cred != nil {
			if err := os.Chown(f.path, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
				return err
			}
		}
	}
	return nil
}
