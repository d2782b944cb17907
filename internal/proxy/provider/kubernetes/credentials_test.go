package kubernetes_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// A name that is taken works, with squid's rules: it asks for names in lower
// case unless it is told otherwise.
func TestNamesOfUsers(t *testing.T) {
	t.Parallel()
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	defer origin.Close()
	w := newWorld(t, nil)
	p := w.open(t)
	for uid, name := range map[string]string{"capital": "Crawler7", "space": "crawl er ", "hash": "a#b", "umlaut": "Ümlaut"} {
		spec := specOf(w, "user-"+uid)
		spec.Credentials = provider.Credentials{User: name, Password: provider.Secret("p:a@s$s")}
		in := running(t, p, spec)
		for user, want := range map[string]int{name: http.StatusOK, strings.ToUpper(name): http.StatusProxyAuthRequired} {
			if status, _ := get(t, in, url.UserPassword(user, "p:a@s$s"), origin.URL); status != want {
				t.Errorf("user %q, asked for as %q: status %d; want %d", name, user, status, want)
			}
		}
	}
}

// What squid can never let in is refused before there is a proxy that refuses
// everybody; an image that gets plain credentials may do otherwise.
func TestCredentialsThatSquidCannotCheck(t *testing.T) {
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: kubernetes.Section{
		Namespace: "proxies", Images: map[string]kubernetes.Image{"own": {Image: "registry.example.com/own:1", Probe: []string{"/bin/true"}, Credentials: "plain"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for name, tc := range map[string]struct {
		user, password string
		says           string
	}{
		"comment":  {"#crawler", "x", "another name"},
		"space":    {" crawler", "x", "another name"},
		"tab":      {"\tcrawler", "x", "another name"},
		"empty":    {"crawler", "", "password is empty"},
		"no name":  {"", "x", "user name is empty"},
		"in order": {"a# \tb", "x", ""},
	} {
		spec := provider.Spec{Owner: ownerOf("credentials"), Credentials: provider.Credentials{User: tc.user, Password: provider.Secret(tc.password)}}
		_, err := p.Place(t.Context(), spec)
		switch {
		case tc.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.says != "" && (fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "authSecretRef") || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s: %v; want Invalid with %q", name, err, tc.says)
		}
		spec.Image = "own"
		if _, err := p.Place(t.Context(), spec); err != nil && tc.user != "" {
			t.Errorf("%s, for an image with plain credentials: %v", name, err)
		}
	}
}
