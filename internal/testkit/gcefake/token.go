package gcefake

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// keyring is the service account's key and the tokens that were given for it.
type keyring struct {
	// id is the number of the key that is good; the ones before are revoked.
	id     int
	key    *rsa.PrivateKey
	tokens map[string]bool
}

// oneKey is shared by all servers of a process: making one takes long. Which of
// a server's keys is meant is told by its id.
var oneKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func (k *keyring) open() error {
	key, err := oneKey()
	k.key, k.id, k.tokens = key, 1, map[string]bool{}
	return err
}

func (k *keyring) email(project string) string {
	return "fleetdesk@" + project + ".iam.gserviceaccount.com"
}

func (k *keyring) revoke() {
	k.id++
	clear(k.tokens)
}

func (k *keyring) knows(header string) bool {
	token, ok := strings.CutPrefix(header, "Bearer ")
	return ok && k.tokens[token]
}

// Key is the service account's key file, as it is downloaded; a new one after
// RevokeKey.
func (s *Server) Key() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	der, err := x509.MarshalPKCS8PrivateKey(s.keys.key)
	if err != nil {
		panic(err) // of a key that was just made
	}
	out, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": s.o.Project, "private_key_id": fmt.Sprint(s.keys.id),
		"private_key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"client_email": s.keys.email(s.o.Project), "client_id": "123456789012345678901",
		"auth_uri": "https://accounts.example.com/o/oauth2/auth", "token_uri": s.http.URL + "/token",
	})
	if err != nil {
		panic(err)
	}
	return out
}

// token gives a token for an assertion that the good key signed.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	refuse := func(text string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant", "error_description": text})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["token"]++
	if a := s.faults.token; a != nil {
		if a.Status == 0 {
			panic(http.ErrAbortHandler)
		}
		if a.Location != "" {
			w.Header().Set("Location", a.Location)
		}
		w.Header().Set("Content-Type", a.Type)
		w.WriteHeader(a.Status)
		_, _ = io.WriteString(w, a.Body)
		return
	}
	parts := strings.Split(r.FormValue("assertion"), ".")
	if r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || len(parts) != 3 {
		refuse("Bad Request")
		return
	}
	var head struct{ Alg, Kid string }
	var claims struct {
		Iss, Scope, Aud string
		Exp             int64
	}
	for i, into := range []any{&head, &claims} {
		data, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(data, into) != nil {
			refuse("Bad Request")
			return
		}
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	sig, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || rsa.VerifyPKCS1v15(&s.keys.key.PublicKey, crypto.SHA256, sum[:], sig) != nil || head.Kid != fmt.Sprint(s.keys.id) {
		refuse("Invalid JWT Signature.")
		return
	}
	if claims.Iss != s.keys.email(s.o.Project) || claims.Aud != s.http.URL+"/token" || claims.Exp < time.Now().Unix() || claims.Scope == "" {
		refuse("Invalid JWT: claims")
		return
	}
	t := "ya29." + rand.Text()
	s.keys.tokens[t] = true
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": t, "token_type": "Bearer", "expires_in": 3599})
}
