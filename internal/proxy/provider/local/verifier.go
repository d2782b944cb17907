package local

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"

	"fleetdesk/internal/proxy/provider"
)

// verifier is auth.json: enough to check a user name and password, and not
// enough to learn them.
type verifier struct {
	Salt []byte `json:"salt"`
	// Sum is HMAC-SHA-256, keyed with the salt, of "user:password".
	Sum []byte `json:"sum"`
}

func newVerifier(c provider.Credentials) verifier {
	salt := make([]byte, 32)
	_, _ = rand.Read(salt) // never fails
	pair := append([]byte(c.User+":"), c.Password...)
	return verifier{Salt: salt, Sum: mac(salt, pair)}
}

func (v verifier) valid() bool { return len(v.Salt) == 32 && len(v.Sum) == sha256.Size }

func mac(salt, pair []byte) []byte {
	m := hmac.New(sha256.New, salt)
	m.Write(pair)
	return m.Sum(nil)
}

// admits reports whether the header's Proxy-Authorization is right. The pair is
// compared as a whole, so that any bytes of a password arrive, and in constant
// time.
func (v verifier) admits(h http.Header) bool {
	kind, rest, ok := strings.Cut(h.Get("Proxy-Authorization"), " ")
	if !ok || !strings.EqualFold(kind, "Basic") {
		return false
	}
	pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	return err == nil && hmac.Equal(mac(v.Salt, pair), v.Sum)
}
