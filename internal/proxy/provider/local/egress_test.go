package local_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

// An origin sees each proxy by the proxy's own address, in plain HTTP and in a
// tunnel, whatever the credentials are made of.
func TestOriginTellsProxiesApart(t *testing.T) {
	tell := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = io.WriteString(w, host)
	})
	plain, secure := httptest.NewServer(tell), httptest.NewTLSServer(tell)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	p := open(t, t.TempDir())

	seen := map[string]string{}
	for name, tc := range map[string]struct {
		reason string
		cred   provider.Credentials
	}{
		"open":    {"no credentials are needed", provider.Credentials{}},
		"plain":   {"the usual", provider.Credentials{User: "crawler", Password: provider.Secret("secret")}},
		"signs":   {"signs that URLs and shells give a meaning", provider.Credentials{User: "c@$%", Password: provider.Secret(":a:b@c$d%e%41")}},
		"unicode": {"letters beyond ASCII", provider.Credentials{User: "кролик", Password: provider.Secret("pässwörd-密码")}},
		"bytes":   {"bytes that are no text", provider.Credentials{User: "u", Password: provider.Secret("\x00\xff\x01:")}},
		"empty":   {"an empty password is one", provider.Credentials{User: "u"}},
	} {
		t.Run(name, func(t *testing.T) {
			uid := fresh(name)
			spec := specOf(uid)
			spec.Credentials = tc.cred
			in := create(t, p, spec)
			at := netip.AddrPortFrom(netip.MustParseAddr(in.Address), uint16(in.Port)).String()
			if in.Port != testPort {
				t.Errorf("listens on port %d; the spec says %d", in.Port, testPort)
			}
			if in.Address != local.Candidate(uid, 0).String() {
				t.Errorf("address %s; want the first candidate %s", in.Address, local.Candidate(uid, 0))
			}
			if other, ok := seen[in.Address]; ok {
				t.Errorf("%s has the address of %s", uid, other)
			}
			seen[in.Address] = uid
			for _, o := range []*httptest.Server{plain, secure} {
				base := o.Client().Transport.(*http.Transport)
				if got := fetch(t, through(t, at, tc.cred, base), o.URL); got != in.Address {
					t.Errorf("%s: the origin %s saw %q; the proxy is %s", tc.reason, o.URL, got, in.Address)
				}
				if tc.cred.IsZero() {
					continue
				}
				wrong := provider.Credentials{User: tc.cred.User, Password: append(provider.Secret{}, tc.cred.Password...)}
				wrong.Password = append(wrong.Password, '!')
				resp, err := through(t, at, wrong, base).Get(o.URL)
				if err == nil {
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusProxyAuthRequired {
						t.Errorf("%s: a wrong password gave status %d", tc.reason, resp.StatusCode)
					}
				} else if o == plain {
					t.Errorf("%s: a wrong password: %v; want status 407", tc.reason, err)
				}
			}
		})
	}
}

func fetch(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Errorf("GET %s: %v", url, err)
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("GET %s: status %d, %q, %v", url, resp.StatusCode, body, err)
	}
	return string(body)
}

// A taken address or port leads to the next candidate, and the choice is kept.
func TestAddressProbe(t *testing.T) {
	uid := fresh("probe")
	t.Run("the port is in use", func(t *testing.T) {
		ln, err := net.Listen("tcp4", netip.AddrPortFrom(local.Candidate(uid, 0), testPort).String())
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		dir := t.TempDir()
		in := create(t, open(t, dir), specOf(uid))
		if want := local.Candidate(uid, 1).String(); in.Address != want {
			t.Errorf("address %s; want the second candidate %s", in.Address, want)
		}
		_ = ln.Close()
		pid, _ := only(t, dirOf(dir, in.Owner))
		kill(t, pid)
		p := reopen(t, dir)
		if again, err := p.Create(t.Context(), specOf(uid)); err != nil || again.State != provider.Running || again.Address != in.Address {
			t.Errorf("started again with the first candidate free again: %+v, %v; want the kept address %s", again, err, in.Address)
		}
	})
	t.Run("another instance has the address on another port", func(t *testing.T) {
		dir := t.TempDir()
		p := open(t, dir)
		first := specOf(uid)
		first.Owner.Installation = "another"
		first.Port = testPort + 1
		other := create(t, p, first)
		in := create(t, p, specOf(uid))
		if other.Address != local.Candidate(uid, 0).String() || in.Address != local.Candidate(uid, 1).String() {
			t.Errorf("addresses %s and %s; an origin could not tell them apart", other.Address, in.Address)
		}
	})
	t.Run("a program listens on the port for all addresses", func(t *testing.T) {
		ln, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := ln.Addr().(*net.TCPAddr).Port
		_ = ln.Close()
		var held []net.Listener
		for n := range 16 {
			ln, err := net.Listen("tcp4", netip.AddrPortFrom(local.Candidate(uid, n), uint16(port)).String())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, ln)
		}
		defer func() {
			for _, ln := range held {
				_ = ln.Close()
			}
		}()
		p := open(t, t.TempDir())
		spec := specOf(uid)
		spec.Port = port
		in, err := p.Create(t.Context(), spec)
		if err == nil || provider.Class(err).Meaning().Retry.Max == 0 {
			t.Fatalf("Create = %+v, %v; want an error after the last candidate", in, err)
		}
		if _, err := p.Get(t.Context(), provider.Ref{Owner: spec.Owner}); provider.Class(err) != "not_found" {
			t.Errorf("Get after it: %v; want NotFound", err)
		}
	})
}
