package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/core/token/tokentest"
	"fleetdesk/internal/desk/api"
	desktoken "fleetdesk/internal/desk/token"
)

// whole turns on every optional part of the API: what a test says of all
// operations it says of these.
func whole(o *api.Options) {
	_, o.Accounts = exampleAccounts()
	o.Actions = exampleActions()
	o.Desk, o.Access, o.Selection = idleDesk(), fixedAccess{}, naming{}
}

// Nothing optional is missing in whole, so that no route escapes the tests that
// walk all of them.
func TestWholeIsWhole(t *testing.T) {
	o := api.Options{Auth: newAccounts(), Proxies: exampleFleet()}
	whole(&o)
	v := reflect.ValueOf(o)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		optional := (f.Type.Kind() == reflect.Interface || f.Type.Kind() == reflect.Pointer) && f.Name != "Metrics" && f.Name != "Log"
		if optional && v.Field(i).IsNil() {
			t.Errorf("whole leaves Options.%s out", f.Name)
		}
	}
}

// counting is randomness that repeats itself from test to test.
type counting struct{ next byte }

func (c *counting) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = c.next
		c.next++
	}
	return len(p), nil
}

// The ids of exampleAccounts' tokens, and the text of the next one that is made.
const (
	ciToken   = "ci2345ci2345"
	oldToken  = "old234old234"
	nextID    = "abcdefghijkl"
	nextToken = "fdt_abcdefghijkl_bqgq4dyqcejbgfavcylrqgi2dmob2hq7eaqseizeeutcokbjfivq"
)

// exampleAccounts is a store with four accounts, and the service over it.
func exampleAccounts() (*tokentest.Memory, *desktoken.Service) {
	store := tokentest.NewMemory()
	created := time.Date(2026, 1, 2, 15, 4, 5, 999000, time.UTC)
	s := desktoken.New(desktoken.Options{
		Store: store, Directory: store, Rand: &counting{},
		Clock: func() time.Time { return created },
	})
	ctx := context.Background()
	_, err := s.CreateAccount(ctx, "ci", token.Runner)
	for _, a := range []token.Account{
		{Name: "crawler", Role: token.Viewer, Created: created},
		{Name: "gone@example.com", Role: token.Admin, Created: created, Disabled: true},
		{Name: "root", Role: token.Admin, Created: created},
	} {
		err = errors.Join(err, store.CreateAccount(ctx, a))
	}
	for id, r := range map[string]token.Record{
		ciToken:  {Expires: created.Add(90 * 24 * time.Hour)},
		oldToken: {Revoked: true},
	} {
		r.ID, r.Account, r.Hash, r.Created = id, "ci", make([]byte, 32), created
		err = errors.Join(err, store.CreateToken(ctx, r))
	}
	if err != nil {
		panic(err)
	}
	return store, s
}

func TestAccountsGolden(t *testing.T) {
	type call func(context.Context, *client.Client) (any, error)
	created := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	ci := client.Account{Name: "ci", Role: "runner", Created: created}
	crawler := client.Account{Name: "crawler", Role: "viewer", Created: created}
	gone := client.Account{Name: "gone@example.com", Role: "admin", Disabled: true, Created: created}
	root := client.Account{Name: "root", Role: "admin", Created: created}
	live := client.TokenInfo{ID: ciToken, Account: "ci", Created: created, Expires: created.Add(90 * 24 * time.Hour)}
	old := client.TokenInfo{ID: oldToken, Account: "ci", Created: created, Revoked: true}
	made := client.IssuedToken{TokenInfo: client.TokenInfo{ID: nextID, Account: "ci", Created: created, Expires: created.Add(time.Hour)}, Token: nextToken}
	forever := made
	forever.Expires = time.Time{}

	list := func(p client.Page) call {
		return func(ctx context.Context, c *client.Client) (any, error) { return c.Accounts(ctx, p) }
	}
	create := func(name, role string) call {
		return func(ctx context.Context, c *client.Client) (any, error) {
			return c.CreateAccount(ctx, client.NewAccount{Name: name, Role: role})
		}
	}
	change := func(name, role string, disabled bool) call {
		return func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.ChangeAccount(ctx, name, client.AccountChange{Role: role, Disabled: disabled})
		}
	}
	tokens := func(account string, p client.Page) call {
		return func(ctx context.Context, c *client.Client) (any, error) { return c.Tokens(ctx, account, p) }
	}
	issue := func(account string, lifetime int64) call {
		return func(ctx context.Context, c *client.Client) (any, error) {
			return c.IssueToken(ctx, account, client.NewToken{Lifetime: lifetime})
		}
	}
	revoke := func(id string) call {
		return func(ctx context.Context, c *client.Client) (any, error) { return nil, c.RevokeToken(ctx, id) }
	}
	whoami := func(ctx context.Context, c *client.Client) (any, error) { return c.Whoami(ctx) }

	const admin = otherToken
	cases := map[string]struct {
		reason string
		bearer string
		call   call
		want   any
		class  client.Class
		code   string
		status int
	}{
		"whoami":          {"any role may ask who it is", viewerToken, whoami, client.Identity{Account: "crawler", Role: "viewer", TokenID: "t1"}, "", "", 0},
		"accounts":        {"all accounts, by name", admin, list(client.Page{}), client.AccountList{Items: []client.Account{ci, crawler, gone, root}}, "", "", 0},
		"accounts-page":   {"a full page names the next", admin, list(client.Page{Limit: 2}), client.AccountList{Items: []client.Account{ci, crawler}, Next: "Y3Jhd2xlcg"}, "", "", 0},
		"accounts-last":   {"the last page, exactly full, names none", admin, list(client.Page{Limit: 2, Cursor: "Y3Jhd2xlcg"}), client.AccountList{Items: []client.Account{gone, root}}, "", "", 0},
		"accounts-past":   {"behind the last one is an empty list, not null", admin, list(client.Page{Cursor: "enpw"}), client.AccountList{Items: []client.Account{}}, "", "", 0},
		"accounts-viewer": {"the list is for admins", viewerToken, list(client.Page{}), nil, client.Denied, "role", 403},
		"accounts-cursor": {"a made-up cursor is refused", admin, list(client.Page{Cursor: "AAAA"}), nil, client.Invalid, "", 400},
		"account-create":  {"a new account comes back", admin, create("new@example.com", "viewer"), client.Account{Name: "new@example.com", Role: "viewer", Created: created}, "", "", 0},
		"account-taken":   {"a taken name is a conflict", admin, create("ci", "viewer"), nil, client.Conflict, "", 409},
		"account-invalid": {"a wrong field is named", admin, create("a b", "owner"), nil, client.Invalid, "", 400},
		"account-change":  {"no content is success", admin, change("ci", "viewer", true), nil, "", "", 0},
		"account-last":    {"the last admin stays", admin, change("root", "admin", true), nil, client.Conflict, "last_admin", 409},
		"account-unknown": {"an unknown account", admin, change("nobody", "viewer", false), nil, client.NotFound, "account", 404},
		"tokens":          {"tokens without their hashes, ended ones too", admin, tokens("ci", client.Page{}), client.TokenList{Items: []client.TokenInfo{live, old}}, "", "", 0},
		"tokens-page":     {"a full page names the next", admin, tokens("ci", client.Page{Limit: 1}), client.TokenList{Items: []client.TokenInfo{live}, Next: "Y2kyMzQ1Y2kyMzQ1"}, "", "", 0},
		"tokens-none":     {"none is an empty list, not null", admin, tokens("root", client.Page{}), client.TokenList{Items: []client.TokenInfo{}}, "", "", 0},
		"tokens-unknown":  {"an unknown account is not one without tokens", admin, tokens("nobody", client.Page{}), nil, client.NotFound, "account", 404},
		"token-issue":     {"the text is shown this once", admin, issue("ci", 3600), made, "", "", 0},
		"token-forever":   {"a token without an end", admin, issue("ci", 0), forever, "", "", 0},
		"token-short":     {"a lifetime in minutes by mistake is refused, not clamped", admin, issue("ci", 59), nil, client.Invalid, "", 400},
		"token-nobody":    {"a token belongs to an account", admin, issue("nobody", 0), nil, client.NotFound, "account", 404},
		"token-viewer":    {"only admins make tokens", viewerToken, issue("ci", 0), nil, client.Denied, "role", 403},
		"token-revoke":    {"a token is ended", admin, revoke(ciToken), nil, "", "", 0},
		"token-again":     {"ending it again is harmless", admin, revoke(oldToken), nil, "", "", 0},
		"token-unknown":   {"an unknown id", admin, revoke("nothing"), nil, client.NotFound, "token", 404},
		"token-text":      {"a token's text in place of its id is refused, and shown nowhere", admin, revoke(nextToken), nil, client.Invalid, "", 400},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := serve(t, whole)
			rec := &recording{next: d.http.Transport}
			cl, err := client.New(client.Options{
				BaseURL: d.url, Token: client.Token(c.bearer), Retries: -1,
				HTTPClient: &http.Client{Transport: rec, Timeout: 10 * time.Second},
			})
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.call(t.Context(), cl)
			golden(t, "wire/"+name+".golden", rec.text.Bytes())
			if log := d.log.String(); strings.Contains(log, nextToken[17:]) || strings.Contains(log, nextToken[17:40]) {
				t.Errorf("the log holds a token's text:\n%s", log)
			}
			if c.class == "" {
				if err != nil {
					t.Fatalf("%s: %v", c.reason, err)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c.reason, diff)
				}
				return
			}
			e, ok := errors.AsType[*client.Error](err)
			if !ok || !errors.Is(err, c.class) || e.Status != c.status || e.Code != c.code {
				t.Errorf("%s: err = %#v, want class %s, code %q and status %d", c.reason, err, c.class, c.code, c.status)
			}
		})
	}
}

// post sends a body as it is.
func (d *desk) post(t *testing.T, method, target, contentType, body string) (int, client.Problem) {
	t.Helper()
	req, err := http.NewRequest(method, d.url+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+otherToken)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := d.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p client.Problem
	if resp.StatusCode >= 400 {
		if err := json.Unmarshal(raw, &p); err != nil {
			t.Fatalf("not a problem document: %s", raw)
		}
	}
	return resp.StatusCode, p
}

// A body that could be read in more than one way, or that says what nobody
// understands, is refused, and the answer names the place.
func TestBodiesAreStrict(t *testing.T) {
	const path, jsonType = "/api/v1/accounts", "application/json"
	cases := map[string]struct {
		reason, contentType, body string
		status                    int
		detail                    string
	}{
		"good":          {"what the schema says", jsonType, `{"name":"a","role":"viewer"}`, 201, ""},
		"charset":       {"a charset changes nothing", "application/json; charset=utf-8", `{"name":"a","role":"viewer"}`, 201, ""},
		"no type":       {"JSON is what is meant", "", `{"name":"a","role":"viewer"}`, 201, ""},
		"unknown field": {"a field that nobody knows is named", jsonType, `{"name":"a","role":"viewer","disabled":true}`, 400, "body.disabled: unexpected property"},
		"deep":          {"also when its value is large", jsonType, `{"name":"a","role":"viewer","x":{"y":[1,{"z":2}]}}`, 400, "body.x: unexpected property"},
		"twice":         {"a name given twice has two values", jsonType, `{"name":"a","role":"viewer","role":"admin"}`, 400, `"role" stands twice`},
		"two cases":     {"also in another case", jsonType, `{"name":"a","role":"viewer","Role":"admin"}`, 400, `"Role" stands twice`},
		"long s":        {"also in a letter that only Unicode takes for the same", jsonType, `{"nested":[{"s":1,"\u017f":2}]}`, 400, "stands twice"},
		"missing field": {"what is needed is named", jsonType, `{"name":"a"}`, 400, "expected required property role to be present"},
		"bottomless":    {"a body made of brackets costs little", jsonType, strings.Repeat(`[`, 1<<19), 400, "levels deep"},
		"null":          {"null is no object", jsonType, `null`, 400, "body: expected object"},
		"null field":    {"nor a name", jsonType, `{"name":null,"role":"viewer"}`, 400, "body.name: expected string"},
		"array":         {"nor is an array", jsonType, `[]`, 400, "body: expected object"},
		"number":        {"types are what they are", jsonType, `{"name":1,"role":"viewer"}`, 400, "body.name: expected string"},
		"empty":         {"no body", jsonType, ``, 400, "body is required"},
		"cut":           {"half a body", jsonType, `{"name":"a","role":`, 400, "body"},
		"two values":    {"a second value behind the first", jsonType, `{"name":"a","role":"viewer"}{"x":1}`, 400, "body"},
		"form":          {"another type", "application/x-www-form-urlencoded", `name=a&role=viewer`, 415, ""},
		"large":         {"more than a body may have", jsonType, `{"name":"` + strings.Repeat("a", 2<<20) + `"}`, 413, "larger than"},
		"bad name":      {"a rule that a name breaks", jsonType, `{"name":"-a","role":"viewer"}`, 400, "body.name"},
		"bad role":      {"the roles are listed", jsonType, `{"name":"a","role":"Admin"}`, 400, "viewer, runner, admin"},
	}
	for name, c := range cases {
		d := serve(t, whole)
		status, p := d.post(t, "POST", path, c.contentType, c.body)
		if status != c.status || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s: %s: got %d %+v", name, c.reason, status, p)
		}
		if status >= 400 && p.Type != "urn:fleetdesk:problem:invalid" && !strings.HasPrefix(p.Type, "urn:fleetdesk:problem:invalid:") {
			t.Errorf("%s: type %s", name, p.Type)
		}
		if strings.Contains(p.Detail, strings.Repeat("a", 100)) {
			t.Errorf("%s: the answer repeats the request", name)
		}
	}
}

// A body without a length is bounded as one with it.
func TestEndlessBody(t *testing.T) {
	d := serve(t, whole)
	req, err := http.NewRequest("POST", d.url+"/api/v1/accounts", io.MultiReader(strings.NewReader(`{"name":"`), io.LimitReader(letters{}, 8<<20)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+otherToken)
	resp, err := d.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", resp.StatusCode)
	}
}

type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

func TestWithoutAccounts(t *testing.T) {
	d := serve(t, nil)
	for _, path := range []string{"/api/v1/accounts", "/api/v1/whoami", "/api/v1/accounts/ci/tokens"} {
		if resp, _ := d.send(t, "GET", path, "Bearer "+otherToken); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status %d, want 404", path, resp.StatusCode)
		}
	}
}

// The outage of the store behind the accounts is no answer about them.
func TestAccountsOutage(t *testing.T) {
	store, service := exampleAccounts()
	d := serve(t, func(o *api.Options) { o.Accounts = service })
	store.Fail(fault.New(fault.Unavailable, "the database is gone"))
	c := d.client(t, otherToken)
	_, list := c.Accounts(t.Context(), client.Page{})
	_, issue := c.IssueToken(t.Context(), "ci", client.NewToken{})
	_, tokens := c.Tokens(t.Context(), "ci", client.Page{})
	for name, err := range map[string]error{"list": list, "issue": issue, "tokens": tokens, "revoke": c.RevokeToken(t.Context(), ciToken)} {
		if e, ok := errors.AsType[*client.Error](err); !ok || !errors.Is(err, client.Unavailable) || e.Status != 503 || e.Detail != "" {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

// An answer with a secret forbids keeping it by itself, whatever stands in front.
func TestIssuedTokenIsNotStored(t *testing.T) {
	_, service := exampleAccounts()
	h, err := api.New(api.Options{Auth: newAccounts(), Accounts: service, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/api/v1/accounts/ci/tokens", strings.NewReader("{}"))
	r.Header.Set("Authorization", "Bearer "+otherToken)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if got := w.Header().Values("Cache-Control"); w.Code != 201 || !slices.Equal(got, []string{"no-store"}) {
		t.Errorf("status %d, Cache-Control %q", w.Code, got)
	}
}

// A person's way through it all, with the one service on both sides: what is
// changed here holds from the next request on.
func TestChangesHoldAtOnce(t *testing.T) {
	_, service := exampleAccounts()
	ctx := t.Context()
	rootSecret, _, err := service.IssueFor(ctx, "root", 0)
	if err != nil {
		t.Fatal(err)
	}
	d := serve(t, func(o *api.Options) { o.Accounts, o.Auth = service, service })
	root := d.client(t, rootSecret.Reveal())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = root.CreateAccount(ctx, client.NewAccount{Name: "ann", Role: client.RoleViewer})
	must(err)
	issued, err := root.IssueToken(ctx, "ann", client.NewToken{})
	must(err)
	ann := d.client(t, string(issued.Token))
	who, err := ann.Whoami(ctx)
	must(err)
	if diff := cmp.Diff(client.Identity{Account: "ann", Role: "viewer", TokenID: issued.ID}, who); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := ann.Accounts(ctx, client.Page{}); !errors.Is(err, client.Denied) {
		t.Errorf("a viewer reads the accounts: %v", err)
	}
	must(root.ChangeAccount(ctx, "ann", client.AccountChange{Role: client.RoleAdmin}))
	if _, err := ann.Accounts(ctx, client.Page{}); err != nil {
		t.Errorf("an admin from now on: %v", err)
	}
	must(root.ChangeAccount(ctx, "ann", client.AccountChange{Role: client.RoleAdmin, Disabled: true}))
	if _, err := ann.Whoami(ctx); !errors.Is(err, client.Denied) {
		t.Errorf("disabled: %v", err)
	}
	must(root.ChangeAccount(ctx, "ann", client.AccountChange{Role: client.RoleViewer}))
	if _, err := ann.Whoami(ctx); err != nil {
		t.Errorf("enabled again: %v", err)
	}
	must(root.RevokeToken(ctx, issued.ID))
	_, err = ann.Whoami(ctx)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 401 || e.Code != "token" {
		t.Errorf("revoked: %v", err)
	}
	list, err := root.Tokens(ctx, "ann", client.Page{})
	must(err)
	issued.TokenInfo.Revoked = true
	if diff := cmp.Diff(client.TokenList{Items: []client.TokenInfo{issued.TokenInfo}}, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The wire form that the server sends and the one that the client reads are two
// types, since the client's hides the token; they must not drift apart.
func TestIssuedTokenIsWhole(t *testing.T) {
	_, service := exampleAccounts()
	d := serve(t, func(o *api.Options) { o.Accounts = service })
	req, err := http.NewRequest("POST", d.url+"/api/v1/accounts/ci/tokens", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+otherToken)
	resp, err := d.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	dec.DisallowUnknownFields()
	var got client.IssuedToken
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := client.IssuedToken{TokenInfo: client.TokenInfo{ID: nextID, Account: "ci"}, Token: nextToken}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(client.TokenInfo{}, "Created")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := resp.Header.Values("Cache-Control"); !slices.Equal(got, []string{"no-store"}) {
		t.Errorf("Cache-Control: %q, want no-store alone", got)
	}
	again, err := json.Marshal(got)
	if err != nil || bytes.Contains(again, []byte(nextToken[17:])) {
		t.Errorf("encoded again it shows the token: %s, %v", again, err)
	}
}
