package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
)

// A change is sent again only when sending it twice does no harm: what got no
// answer may have been done.
func TestChangesAndRetries(t *testing.T) {
	down := &answer{status: 503}
	done := &answer{status: 204}
	account := &answer{status: 201, body: `{"name":"ci"}`}
	create := func(c *client.Client, t *testing.T) error {
		_, err := c.CreateAccount(t.Context(), client.NewAccount{})
		return err
	}
	issue := func(c *client.Client, t *testing.T) error {
		_, err := c.IssueToken(t.Context(), "ci", client.NewToken{})
		return err
	}
	change := func(c *client.Client, t *testing.T) error {
		return c.ChangeAccount(t.Context(), "ci", client.AccountChange{})
	}
	revoke := func(c *client.Client, t *testing.T) error { return c.RevokeToken(t.Context(), "id") }
	cases := map[string]struct {
		reason  string
		answers []*answer
		call    func(*client.Client, *testing.T) error
		tries   int
		class   client.Class
	}{
		"create":       {"an answer is an answer", []*answer{account}, create, 1, ""},
		"create lost":  {"it may have been added: the next try would say conflict", []*answer{nil, account}, create, 1, client.Unavailable},
		"create down":  {"also when the server says so itself", []*answer{down, account}, create, 1, client.Unavailable},
		"issue lost":   {"a second token is one that nobody knows of", []*answer{nil, account}, issue, 1, client.Unavailable},
		"change lost":  {"the same state twice is the same state", []*answer{nil, done}, change, 2, ""},
		"revoke down":  {"revoked twice is revoked", []*answer{down, done}, revoke, 2, ""},
		"revoke never": {"and bounded", []*answer{down}, revoke, 3, client.Unavailable},
		"conflict":     {"a refusal stays one", []*answer{{status: 409}}, change, 1, client.Conflict},
		"page":         {"a page where no content belongs is not the desk", []*answer{{status: 200, body: "<html>"}}, revoke, 1, client.Permanent},
		"no content":   {"nor is nothing where an account belongs", []*answer{{status: 204}}, create, 1, client.Permanent},
		"not json":     {"nor is a page", []*answer{{status: 201, body: "<html>"}}, create, 1, client.Permanent},
		"two answers":  {"nor is a second value behind the first", []*answer{{status: 201, body: `{"name":"ci"}{}`}}, create, 1, client.Permanent},
		"too large":    {"an endless answer is not read", []*answer{{status: 201, body: strings.Repeat(" ", 17<<20)}}, create, 1, client.Invalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := &answers{list: c.answers}
				err := c.call(newClient(t, rt, 0), t)
				if c.class == "" && err != nil || c.class != "" && !errors.Is(err, c.class) {
					t.Errorf("%s: err = %v, want class %q", c.reason, err, c.class)
				}
				if len(rt.at) != c.tries {
					t.Errorf("%s: %d tries, want %d", c.reason, len(rt.at), c.tries)
				}
			})
		})
	}
}

// sent is what a server saw of a request.
type sent struct{ Method, Path, ContentType, Body string }

func TestChangesOnTheWire(t *testing.T) {
	var got []sent
	rt := roundTrip(func(r *http.Request) (*http.Response, error) {
		s := sent{Method: r.Method, Path: r.URL.RequestURI(), ContentType: r.Header.Get("Content-Type")}
		if r.Body != nil {
			raw, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			s.Body = string(raw)
		}
		got = append(got, s)
		if len(got)%2 == 1 { // each is sent twice, whole
			return nil, errors.New("connection reset")
		}
		return (&answers{list: []*answer{{status: 204}}}).RoundTrip(r)
	})
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, rt, 0)
		err := errors.Join(
			c.ChangeAccount(t.Context(), "a/b@example.com", client.AccountChange{Role: "viewer", Disabled: true}),
			c.RevokeToken(t.Context(), "id?x"),
		)
		if err != nil {
			t.Fatal(err)
		}
	})
	var list []sent
	listing := roundTrip(func(r *http.Request) (*http.Response, error) {
		list = append(list, sent{Method: r.Method, Path: r.URL.RequestURI()})
		return (&answers{list: []*answer{{status: 200, body: `{"items":[]}`}}}).RoundTrip(r)
	})
	for _, q := range []client.ActionQuery{{}, {Open: true}, {Open: true, Pool: "win", Limit: 7, Cursor: "Mg"}} {
		if _, err := newClient(t, listing, 0).Actions(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	const actions = "/base/api/v1/resources/actions"
	wantList := []sent{{Method: "GET", Path: actions}, {Method: "GET", Path: actions + "?open=true"}, {Method: "GET", Path: actions + "?cursor=Mg&limit=7&open=true&pool=win"}}
	if diff := cmp.Diff(wantList, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	change := sent{"PUT", "/base/api/v1/accounts/a%2Fb@example.com", "application/json", `{"role":"viewer","disabled":true}`}
	revoke := sent{"DELETE", "/base/api/v1/tokens/id%3Fx", "", ""}
	if diff := cmp.Diff([]sent{change, change, revoke, revoke}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, name := range []string{"", ".", ".."} {
		if err := newClient(t, rt, 0).RevokeToken(t.Context(), name); !errors.Is(err, client.Invalid) {
			t.Errorf("id %q: %v; it would ask another route", name, err)
		}
	}
}

// A redirect makes a GET of some changes: what comes back then says nothing
// about the change.
func TestChangesFollowNoRedirect(t *testing.T) {
	var seen []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.Path)
		if r.URL.Path == "/moved" {
			_, _ = w.Write([]byte(`{"name":"ci"}`))
			return
		}
		http.Redirect(w, r, "/moved", http.StatusFound)
	}))
	defer srv.Close()
	c, err := client.New(client.Options{BaseURL: srv.URL, Token: secret, HTTPClient: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateAccount(t.Context(), client.NewAccount{Name: "ci"})
	if !errors.Is(err, client.Permanent) || !strings.Contains(err.Error(), "BaseURL") || len(seen) != 1 {
		t.Errorf("err = %v, requests %q", err, seen)
	}
}

func TestIssuedTokenIsNeverPrinted(t *testing.T) {
	rt := &answers{list: []*answer{{status: 201, body: `{"id":"one","account":"ci","token":"` + secret + `"}`}}}
	got, err := newClient(t, rt, 0).IssueToken(t.Context(), "ci", client.NewToken{})
	if err != nil || string(got.Token) != secret {
		t.Fatalf("the token is not what was sent: %v", err)
	}
	raw, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %x", got, got, got, got.Token), string(raw)} {
		if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
			t.Errorf("it shows the token: %s", text)
		}
	}
}
