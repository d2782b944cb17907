package gcp

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"golang.org/x/sync/singleflight"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// scope is what the operator's own credentials are asked for: Compute Engine
	// alone.
	scope = "https://www.googleapis.com/auth/compute"
	// secretAge is how long a Secret serves before it is read again: a rotated
	// key counts within that time, and a refused one at once.
	secretAge = 15 * time.Second
	// secretPatience is how long that holds a call up that has a key already.
	secretPatience = time.Second
	// tokenLimit bounds the fetching of one token.
	tokenLimit = 15 * time.Second
	// maxRequest bounds a request's body, in bytes: metadata of 512 KiB, as JSON.
	maxRequest = 4 << 20
)

// signer gives requests their token. Nothing is read before the first request;
// a key that comes later, or another one in its place, counts without a restart.
type signer struct {
	ref    provider.SecretRef
	secret func(context.Context, provider.SecretRef) (provider.Secret, error)
	base   http.RoundTripper
	now    func() time.Time
	log    *slog.Logger

	flight singleflight.Group
	mu     sync.Mutex
	// source gives tokens for the key with that sum, read at that time.
	source *reuse
	sum    [sha256.Size]byte
	read   time.Time
}

// RoundTrip implements [http.RoundTripper]. A request that is answered 401 is
// sent once more with a token of a key that was read anew.
func (s *signer) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(io.LimitReader(req.Body, maxRequest))
		_ = req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	send := func(token string) (*http.Response, error) {
		r := req.Clone(req.Context())
		if req.Body != nil {
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		r.Header.Set("Authorization", "Bearer "+token)
		begun := time.Now()
		resp, err := s.base.RoundTrip(r)
		status := 0
		if resp != nil {
			status = resp.StatusCode
		}
		// Paths have names of resources and nothing of what is in them.
		s.log.DebugContext(req.Context(), "compute call", "method", r.Method, "path", r.URL.Path, "status", status, "duration", time.Since(begun).Round(time.Millisecond), "error", err)
		return resp, err
	}
	token, err := s.token(req.Context(), "")
	if err != nil {
		return nil, err
	}
	resp, err := send(token)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	fresh, err := s.token(req.Context(), token)
	if err != nil || fresh == token {
		if err != nil {
			_ = resp.Body.Close()
			return nil, err
		}
		return resp, nil
	}
	_ = resp.Body.Close()
	return send(fresh)
}

// stay follows no redirect: tokens and assertions are for the address that they
// were meant for, and no part of the API redirects.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// unusable is the error of a call that had no token to go with.
type unusable struct{ err error }

func (u *unusable) Error() string { return "credentials: " + u.err.Error() }
func (u *unusable) Unwrap() error { return u.err }

// token returns a token other than the refused one, "" for any. Its errors are
// unusable.
func (s *signer) token(ctx context.Context, refused string) (string, error) {
	token, err := s.fetch(ctx, refused)
	if err != nil {
		return "", &unusable{err}
	}
	return token, nil
}

func (s *signer) fetch(ctx context.Context, refused string) (string, error) {
	source, err := s.sourceOf(ctx, refused)
	if err != nil {
		return "", err
	}
	// One fetch serves all who wait; it has a bound of its own, since the one who
	// began it may go away.
	got := s.flight.DoChan(fmt.Sprintf("%p", source), func() (any, error) { return source.Token() })
	select {
	case r := <-got:
		if r.Err != nil {
			return "", s.refusal(r.Err)
		}
		return r.Val.(*oauth2.Token).AccessToken, nil
	case <-ctx.Done():
		return "", fmt.Errorf("no token of %s came in time: %w", s.where(), ctx.Err())
	}
}

// where is what the credentials are, for texts.
func (s *signer) where() string {
	if s.ref.Name == "" {
		return "the application default credentials"
	}
	return fmt.Sprintf("key %s of Secret %s", s.ref.Key, s.ref.Name)
}

// sourceOf returns what gives tokens now. A refused token makes it anew, unless
// somebody else has done so.
func (s *signer) sourceOf(ctx context.Context, refused string) (*reuse, error) {
	s.mu.Lock()
	if refused != "" && s.source != nil && s.source.Held() == refused {
		s.source, s.read = nil, time.Time{}
	}
	if s.ref.Name == "" && s.source == nil {
		s.source, s.read = &reuse{source: defaults{}}, s.now()
	}
	source, fresh := s.source, s.ref.Name == "" || s.now().Sub(s.read) < secretAge
	s.mu.Unlock()
	if source != nil && fresh {
		return source, nil
	}
	// As for tokens: whoever waits goes by its own deadline.
	got := s.flight.DoChan("secret", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenLimit)
		defer cancel()
		return s.load(ctx)
	})
	var late <-chan time.Time
	if source != nil {
		t := time.NewTimer(secretPatience)
		defer t.Stop()
		late = t.C
	}
	select {
	case r := <-got:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*reuse), nil
	case <-late:
		s.mu.Lock()
		s.read = s.now() // the next ones do not wait for it, too
		s.mu.Unlock()
		return source, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s cannot be read in time: %w", s.where(), ctx.Err())
	}
}

// load reads the Secret. The same key goes on with the tokens that it has, and
// so does one that cannot be looked at now: that the cluster's API is away says
// nothing of it.
func (s *signer) load(ctx context.Context) (*reuse, error) {
	if s.secret == nil {
		return nil, fault.Errorf(fault.Permanent, "secretRef names Secret %s, and this operator has no Secrets to read", s.ref.Name)
	}
	data, err := s.secret(ctx, s.ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		c := fault.Of(err)
		if s.source != nil && (c == fault.Unavailable || c == fault.Timeout || c == fault.Transient) {
			s.log.Warn("gcp: the Secret cannot be read, and the key of before goes on", "secret", s.ref.Name, "error", err)
			s.read = s.now()
			return s.source, nil
		}
		s.source = nil
		// What is missing may come any moment, and says nothing of an instance.
		if c == fault.NotFound || c == fault.Conflict || !fault.Classed(err) && ctx.Err() == nil {
			err = fault.Wrap(fault.Transient, err)
		}
		return nil, fmt.Errorf("%s cannot be read: %w", s.where(), err)
	}
	if sum := sha256.Sum256(data); s.source == nil || sum != s.sum {
		source, err := fromKey(data, s.base)
		if err != nil {
			s.source = nil
			return nil, fmt.Errorf("%s: %w", s.where(), err)
		}
		s.source, s.sum = source, sum
	}
	s.read = s.now()
	return s.source, nil
}

// refusal says why no token was given, without anything of the key.
func (s *signer) refusal(err error) error {
	where := s.where()
	var r *oauth2.RetrieveError
	if !errors.As(err, &r) {
		if fault.Classed(err) {
			return fmt.Errorf("%s: %w", where, err)
		}
		return fault.Errorf(fault.Unavailable, "no token for %s: %w: nothing is known of the key by that", where, err)
	}
	var said struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	_ = json.Unmarshal(r.Body, &said)
	status := 0
	if r.Response != nil {
		status = r.Response.StatusCode
	}
	switch {
	case status >= 500, status == http.StatusTooManyRequests, said.Error == "temporarily_unavailable", said.Error == "server_error":
		return fault.Errorf(fault.Unavailable, "the token endpoint cannot answer for %s now (status %d)", where, status)
	case said.Error == "":
		// Only the endpoint itself speaks so; what is between answers otherwise.
		return fault.Errorf(fault.Unavailable, "no token for %s: the answer (status %d) is not a token endpoint's: look what is between the operator and it", where, status)
	case strings.Contains(said.Description, "reasonable timeframe"):
		return fault.Errorf(fault.Unavailable, "no token for %s (%s: %s): the clock here is wrong, and nothing is known of the key by that: set the clock", where, line(said.Error), line(said.Description))
	}
	return fault.Errorf(fault.Permanent, "%s is refused (%s: %s): it was revoked, deleted or disabled; make a new key of the service account and put it there", where, line(said.Error), line(said.Description))
}

// fromKey reads a service account's key. Other kinds of credentials name
// addresses and programs to be asked for tokens, and nobody has looked at them.
func fromKey(data provider.Secret, base http.RoundTripper) (*reuse, error) {
	var kind struct {
		Type  string `json:"type"`
		Token string `json:"token_uri"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, fault.New(fault.Permanent, "it is no JSON: put the key file of a service account there, as it was downloaded")
	}
	if kind.Type != "service_account" {
		return nil, fault.Errorf(fault.Permanent, "its type is %q: put the key file of a service account there, or leave credentials out to use the application default credentials", short(kind.Type))
	}
	if !trusted(kind.Token) {
		return nil, fault.New(fault.Permanent, "its token_uri is no https address: put the key file there as it was downloaded")
	}
	conf, err := google.JWTConfigFromJSON(data, scope)
	if err != nil {
		return nil, fault.New(fault.Permanent, "it is no whole key file of a service account: put it there as it was downloaded")
	}
	// The library reads the private key only when it signs, and then its errors
	// look like those of the network.
	if !signs(conf.PrivateKey) {
		return nil, fault.New(fault.Permanent, "the private key in the key file cannot be used: put the file there as it was downloaded")
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: tokenLimit, Transport: base, CheckRedirect: stay})
	return &reuse{source: conf.TokenSource(ctx)}, nil
}

// signs reports whether a private key can sign, read as the library reads it.
func signs(key []byte) bool {
	if block, _ := pem.Decode(key); block != nil {
		key = block.Bytes
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		if parsed, err = x509.ParsePKCS1PrivateKey(key); err != nil {
			return false
		}
	}
	k, ok := parsed.(*rsa.PrivateKey)
	if !ok {
		return false
	}
	sum := sha256.Sum256(nil)
	_, err = rsa.SignPKCS1v15(nil, k, crypto.SHA256, sum[:])
	return err == nil
}

// defaults are the application default credentials, found when first needed.
type defaults struct{}

func (defaults) Token() (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: tokenLimit, CheckRedirect: stay}), tokenLimit)
	defer cancel()
	creds, err := google.FindDefaultCredentials(ctx, scope)
	if err != nil {
		return nil, fault.New(fault.Permanent, "there are no application default credentials here: set credentials.secretRef to a Secret with a service account's key, or run the operator as a service account (Workload Identity)")
	}
	return creds.TokenSource.Token()
}

// reuse is oauth2.ReuseTokenSource that tells what it holds.
type reuse struct {
	source oauth2.TokenSource
	mu     sync.Mutex
	last   *oauth2.Token
}

// Token implements [oauth2.TokenSource].
func (r *reuse) Token() (*oauth2.Token, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.Valid() {
		return r.last, nil
	}
	t, err := r.source.Token()
	if err != nil {
		return nil, err
	}
	if t.AccessToken == "" {
		return nil, errors.New("the answer has no token in it")
	}
	r.last = t
	return t, nil
}

// Held is the token that Token would give without a fetch.
func (r *reuse) Held() string {
	if !r.mu.TryLock() {
		return "" // one is being fetched: it will be another
	}
	defer r.mu.Unlock()
	if r.last == nil {
		return ""
	}
	return r.last.AccessToken
}
