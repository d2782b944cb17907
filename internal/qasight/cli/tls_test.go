package cli_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// tlsStory is run with a certificate that nobody signed.
const tlsStory = `
exec qasight server --listen 127.0.0.1:0 --database desk.db --tls-cert cert.pem --tls-key key.pem --address-file address &server&
exec timeout 60 sh -c 'until [ -s address ]; do sleep 0.02; done; cat address'
stdout '^https://127.0.0.1:[0-9]+$'

# A server that cannot prove itself gets no token.
stdin admin-token
exec sh -c 'qasight login --server $(cat address); echo $?'
stdout '^69$'
stderr 'certificate signed by unknown authority.*name the authority.s file in SSL_CERT_FILE'
! exists config/qasight

# With its authority it works.
env SSL_CERT_FILE=cert.pem
stdin admin-token
exec sh -c 'exec qasight login --server $(cat address)'
stdout 'logged in to https://127.0.0.1:[0-9]+ as admin'
exec sh -c 'exec qasight token accounts --server $(cat address)'
stdout '^admin '

# Plain HTTP is not spoken there, and no other name is.
exec sh -c 'QASIGHT_TOKEN=fdt_x qasight whoami --server $(sed s/https/http/ address); echo $?'
stdout '^2$'
exec sh -c 'QASIGHT_TOKEN=fdt_x qasight whoami --server $(sed s/127.0.0.1/localhost/ address); echo $?'
stdout '^69$'
stderr 'not.* localhost'

# An address beyond loopback needs no more than the pair.
exec qasight server --listen 0.0.0.0:0 --database open.db --tls-cert cert.pem --tls-key key.pem --address-file open --admin-token-file open-token &open&
exec timeout 60 sh -c 'until [ -s open ]; do sleep 0.02; done'
kill -INT open
wait open
kill -INT server
wait server
`

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := pair(t)
	dir := t.TempDir()
	story := filepath.Join(dir, "server_tls.txt")
	if err := os.WriteFile(story, []byte(tlsStory+"-- cert.pem --\n"+cert+"-- key.pem --\n"+key), 0o600); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Files: []string{story},
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir+"/home")
			e.Setenv("XDG_STATE_HOME", e.WorkDir+"/state")
			e.Setenv("XDG_CONFIG_HOME", e.WorkDir+"/config")
			return nil
		},
	})
}

// pair is a certificate of 127.0.0.1 that its own key signed, in PEM.
func pair(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "qasight.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}
