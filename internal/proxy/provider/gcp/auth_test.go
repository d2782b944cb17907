package gcp_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// Credentials that are missing or malformed: each call says so with what to do,
// nothing is NotFound or Gone by it, no part of the key is shown, and all works
// once the Secret is right.
func TestBadCredentials(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		spoil  func(key []byte) (provider.Secret, error)
		want   fault.Class
		text   string
	}{
		"no Secret": {"it may come any moment", func([]byte) (provider.Secret, error) {
			return nil, fault.New(fault.NotFound, `secrets "gcp-key" not found`)
		}, fault.Transient, "not found"},
		"API away":   {"nothing is known", func([]byte) (provider.Secret, error) { return nil, fault.New(fault.Unavailable, "no API") }, fault.Unavailable, "no API"},
		"empty":      {"a wrong key in the Secret", func([]byte) (provider.Secret, error) { return nil, nil }, fault.Permanent, "no JSON"},
		"no JSON":    {"a PEM file", func([]byte) (provider.Secret, error) { return provider.Secret("-----BEGIN PRIVATE KEY-----"), nil }, fault.Permanent, "no JSON"},
		"other type": {"credentials that name a program to run", func([]byte) (provider.Secret, error) { return provider.Secret(`{"type":"external_account"}`), nil }, fault.Permanent, "external_account"},
		"other token": {"the assertion would go to anybody", func(k []byte) (provider.Secret, error) {
			return bytes.Replace(k, []byte("http://127.0.0.1"), []byte("http://192.0.2.66"), 1), nil
		}, fault.Permanent, "token_uri"},
		"torn key": {"cut while copied", func(k []byte) (provider.Secret, error) {
			return bytes.Replace(k, []byte("MII"), []byte("???"), 1), nil
		}, fault.Permanent, "private key"},
		"half a file": {"cut while copied", func(k []byte) (provider.Secret, error) { return k[:len(k)/2], nil }, fault.Permanent, "no JSON"},
		"revoked": {"deleted in the console", func(k []byte) (provider.Secret, error) {
			return bytes.Replace(k, []byte(`"private_key_id":"1"`), []byte(`"private_key_id":"0"`), 1), nil
		}, fault.Permanent, "revoked"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false, gcefake.Options{})
			key := w.Key()
			w.keep(tc.spoil(key))
			p := w.open(t) // asks nobody
			s := specOf("a", w.Zones()[0])
			check := func(what string, err error) {
				t.Helper()
				if fault.Of(err) != tc.want || !strings.Contains(err.Error(), tc.text) || !strings.Contains(err.Error(), "gcp-key") || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: %s: %s: %v; want %s with %q and the Secret, on one line", what, tc.reason, fault.Of(err), err, tc.want, tc.text)
				}
			}
			_, err := p.Create(t.Context(), s)
			check("Create", err)
			_, err = p.Get(t.Context(), refOf(s))
			check("Get", err)
			_, err = p.Delete(t.Context(), refOf(s))
			check("Delete", err)
			rows, _ := p.ListByTag(t.Context(), tag)
			check("ListByTag", rows[0].Err)
			if health, _ := p.Check(t.Context()); health[0].Reason != gcp.ReasonCredentials {
				t.Errorf("Check: %+v; want %s", health[0], gcp.ReasonCredentials)
			}
			if log := w.logged.String(); strings.Contains(log, "PRIVATE KEY") || strings.Contains(log, "ya29.") {
				t.Error("a key or a token is in the log")
			}
			w.keep(key, nil)
			w.advance(time.Minute)
			up(t, p, s)
		})
	}
}

// A key that is revoked in the middle stops calls with the reason, and nothing
// is taken for gone; its successor counts without a restart, at once.
func TestRevokedInTheMiddleAndRotated(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("a", w.Zones()[0])
	up(t, p, s)
	w.RevokeKey()
	for range 2 {
		_, err := p.Get(t.Context(), refOf(s))
		if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "revoked") || !strings.Contains(err.Error(), "gcp-key") {
			t.Errorf("%s: %v; want Permanent, and that the key was revoked", fault.Of(err), err)
		}
	}
	w.keep(w.Key(), nil)
	w.advance(16 * time.Second)
	if in, err := p.Get(t.Context(), refOf(s)); err != nil || in.State != provider.Running {
		t.Errorf("with a new key: %+v, %v", in, err)
	}
	// Rotated in time: the old key goes after the new one is there, and no call
	// fails in between.
	fetched := w.Calls()["token"]
	w.RevokeKey()
	w.keep(w.Key(), nil)
	if in, err := p.Get(t.Context(), refOf(s)); err != nil || in.State != provider.Running {
		t.Errorf("rotated: %+v, %v; a refused token is no error while the Secret has a good key", in, err)
	}
	if n := w.Calls()["token"] - fetched; n != 1 {
		t.Errorf("%d tokens were fetched; want one", n)
	}
}

// A Secret that is not answered holds a call up until its own deadline, and the
// next ones no longer than that.
func TestASecretThatHangs(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	hang := make(chan struct{})
	p, err := gcp.New(gcp.Options{Name: "cloud", Section: w.section, Secret: func(ctx context.Context, ref provider.SecretRef) (provider.Secret, error) {
		select {
		case <-hang:
			return w.read(ctx, ref)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	s := specOf("a", w.Zones()[0])
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := p.Get(ctx, refOf(s))
			if fault.Of(err) != fault.Timeout || !strings.Contains(err.Error(), "gcp-key") {
				t.Errorf("%s: %v; want Timeout and the Secret", fault.Of(err), err)
			}
		})
	}
	wg.Wait()
	close(hang)
	up(t, p, s)
}

// Tokens are fetched once for many calls, and again when they are refused.
func TestTokensAreKept(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	for range 3 {
		if _, err := p.ListByTag(t.Context(), tag); err != nil {
			t.Fatal(err)
		}
		w.advance(time.Minute) // the Secret is read again, and is the same
	}
	if n := w.Calls()["token"]; n != 1 {
		t.Errorf("%d tokens were fetched for nine lists; want one", n)
	}
	w.ExpireTokens()
	rows, err := p.ListByTag(t.Context(), tag)
	if err != nil || rows[0].Err != nil || rows[1].Err != nil || rows[2].Err != nil {
		t.Errorf("with tokens that are refused: %+v, %v", rows, err)
	}
}

// Tokens and assertions go over https, or to this machine.
func TestTrusted(t *testing.T) {
	for text, want := range map[string]bool{
		"https://oauth2.googleapis.com/token": true, "http://127.0.0.1:8080/token": true, "http://[::1]/token": true,
		"http://oauth2.googleapis.com/token": false, "http://192.0.2.1/": false, "http://localhost/": false, "file:///etc/passwd": false,
		"https://user@example.com/": false, "https://example.com/?q=1": false, "": false, "https://": false,
	} {
		if got := gcp.Trusted(text); got != want {
			t.Errorf("%q: %v; want %v", text, got, want)
		}
	}
}
