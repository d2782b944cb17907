package sshd

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"testing"

	"golang.org/x/crypto/ssh"
)

// Kinds of keys for [Key].
const (
	ED25519 = "ed25519"
	ECDSA   = "ecdsa" // P-256
	RSA     = "rsa"   // 2048 bits
)

// Key makes a key of the kind.
func Key(t testing.TB, kind string) crypto.Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	switch kind {
	case ED25519:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case ECDSA:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case RSA:
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		t.Fatalf("no kind of key: %q", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Signer makes a key of the kind, as SSH uses it.
func Signer(t testing.TB, kind string) ssh.Signer {
	t.Helper()
	return Wrap(t, Key(t, kind))
}

// Wrap is the key as SSH uses it.
func Wrap(t testing.TB, key crypto.Signer) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// PEM is the private key in OpenSSH's own format, as ssh-keygen writes it.
func PEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "test")
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}
