package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	desktoken "fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/obs"
)

// auditLine is one line of the log whose message is "audit".
type auditLine struct {
	Msg, Account, Action, Subject, Outcome, Request string
	Token                                           string `json:"token_id"`
	Reason                                          string
}

// serveAudited runs the API with a log that can be read back.
func serveAudited(t *testing.T, change func(*api.Options)) (*desk, func() []auditLine) {
	t.Helper()
	log := &buffer{}
	d := serve(t, func(o *api.Options) {
		whole(o)
		// The programs' own logger, which hides what its keys call secret, at the
		// level of proxy-operator-standalone: the audit must be seen at it.
		o.Log = obs.NewLogger(log, obs.Options{Level: slog.LevelWarn, JSON: true})
		if change != nil {
			change(o)
		}
	})
	read := 0
	return d, func() (lines []auditLine) {
		t.Helper()
		text := log.String()[read:]
		read += len(text)
		for line := range strings.Lines(text) {
			var l auditLine
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if l.Msg == "audit" {
				lines = append(lines, l)
			}
		}
		return lines
	}
}

// described is an operation as /openapi.json tells it.
type described struct {
	method, path string
	OperationID  string
	Description  string
}

// operations reads all that the server has.
func operations(t *testing.T, d *desk) (all []described) {
	t.Helper()
	resp, err := d.http.Get(d.url + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		Paths map[string]map[string]described
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			op.method, op.path = strings.ToUpper(method), path
			all = append(all, op)
		}
	}
	return all
}

// Every operation that only admins may call and that changes something writes
// one line a call, whatever becomes of it; no other operation does.
func TestEveryAdminChangeIsAudited(t *testing.T) {
	d, lines := serveAudited(t, nil)
	params := regexp.MustCompile(`\{[^}]+\}`)
	audited := 0
	for _, op := range operations(t, d) {
		if op.method == http.MethodGet {
			continue // it changes nothing, and one that streams would not end
		}
		target := params.ReplaceAllString(op.path, "x")
		resp, _ := d.send(t, op.method, target, "Bearer "+otherToken)
		got := lines()
		if !strings.Contains(op.Description, "role admin") {
			if len(got) > 0 {
				t.Errorf("%s %s is no admin's change and was audited: %+v", op.method, op.path, got)
			}
			continue
		}
		audited++
		if len(got) != 1 {
			t.Errorf("%s %s: %d audit lines, want one", op.method, op.path, len(got))
			continue
		}
		l := got[0]
		if l.Account != "other" || l.Token != "t2" || l.Action != op.OperationID || l.Outcome == "" || l.Request != resp.Header.Get("X-Request-Id") {
			t.Errorf("%s %s: %+v", op.method, op.path, l)
		}
		if (l.Outcome == "ok") != (resp.StatusCode < 300) {
			t.Errorf("%s %s: outcome %q of status %d", op.method, op.path, l.Outcome, resp.StatusCode)
		}
		if resp, _ := d.send(t, op.method, target, "Bearer "+viewerToken); resp.StatusCode != 403 {
			t.Errorf("%s %s: a viewer got %d", op.method, op.path, resp.StatusCode)
		}
		if got := lines(); len(got) != 1 || got[0].Account != "crawler" || got[0].Outcome != "denied" || got[0].Subject != "" {
			t.Errorf("%s %s: an attempt by a viewer: %+v", op.method, op.path, got)
		}
		d.send(t, op.method, target, "Bearer nobody")
		if got := lines(); len(got) > 0 {
			t.Errorf("%s %s: without a token it is nobody's: %+v", op.method, op.path, got)
		}
	}
	if audited < 4 {
		t.Errorf("only %d operations were audited: the walk is broken", audited)
	}
}

func TestAuditLines(t *testing.T) {
	cases := map[string]struct {
		reason, method, path, body string
		want                       auditLine
	}{
		"create":      {"the subject is in the body", "POST", "/accounts", `{"name":"ann","role":"viewer"}`, auditLine{Action: "createAccount", Subject: "ann", Outcome: "ok"}},
		"taken":       {"the outcome is the error's class", "POST", "/accounts", `{"name":"ci","role":"viewer"}`, auditLine{Action: "createAccount", Subject: "ci", Outcome: "conflict"}},
		"malformed":   {"what the request says is not known to be a name", "POST", "/accounts", `{"name":"` + nextToken + `","role":"x"}`, auditLine{Action: "createAccount", Outcome: "invalid"}},
		"change":      {"the subject is in the path", "PUT", "/accounts/ci", `{"role":"viewer","disabled":true}`, auditLine{Action: "changeAccount", Subject: "ci", Outcome: "ok"}},
		"escaped":     {"as it is, not as it is escaped", "PUT", "/accounts/gone%40example.com", `{"role":"viewer","disabled":true}`, auditLine{Action: "changeAccount", Subject: "gone@example.com", Outcome: "ok"}},
		"last admin":  {"a refusal by a rule", "PUT", "/accounts/root", `{"role":"viewer","disabled":false}`, auditLine{Action: "changeAccount", Subject: "root", Outcome: "conflict"}},
		"issue":       {"account and new token's id, never its text", "POST", "/accounts/ci/tokens", `{}`, auditLine{Action: "issueToken", Subject: "ci/" + nextID, Outcome: "ok"}},
		"issue none":  {"no token was made", "POST", "/accounts/nobody/tokens", `{}`, auditLine{Action: "issueToken", Subject: "nobody", Outcome: "not_found"}},
		"revoke":      {"the token that ended, and the one that ended it", "DELETE", "/tokens/" + ciToken, "", auditLine{Action: "revokeToken", Subject: ciToken, Outcome: "ok"}},
		"pasted text": {"a secret in the path is no subject", "DELETE", "/tokens/" + nextToken, "", auditLine{Action: "revokeToken", Outcome: "invalid"}},
		"bad query":   {"nor is anything of a malformed request", "DELETE", "/tokens/" + ciToken + "?x=1", "", auditLine{Action: "revokeToken", Outcome: "invalid"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d, lines := serveAudited(t, nil)
			d.post(t, c.method, "/api/v1"+c.path, "", c.body)
			got := lines()
			if len(got) != 1 {
				t.Fatalf("%s: %d lines", c.reason, len(got))
			}
			c.want.Msg, c.want.Account, c.want.Token, c.want.Request = "audit", "other", "t2", got[0].Request
			if diff := cmp.Diff(c.want, got[0]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if strings.Contains(d.log.String(), nextToken[17:]) {
				t.Error("the log of requests holds a token's text")
			}
		})
	}
}

// broken panics, or hangs until the deadline, in the middle of a change.
type broken struct {
	*desktoken.Service
	hangs bool
}

func (b broken) Revoke(ctx context.Context, _ string) error {
	if b.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	panic("half done")
}

// A change whose end nobody saw has its line too.
func TestAuditOfWhatWentWrong(t *testing.T) {
	for outcome, b := range map[string]broken{"permanent": {}, "timeout": {hangs: true}} {
		d, lines := serveAudited(t, func(o *api.Options) {
			_, b.Service = exampleAccounts()
			o.Accounts, o.Limits.CallTimeout = b, 20*time.Millisecond
		})
		d.send(t, "DELETE", "/api/v1/tokens/"+ciToken, "Bearer "+otherToken)
		got := lines()
		if len(got) != 1 || got[0].Outcome != outcome || got[0].Subject != ciToken {
			t.Errorf("want outcome %s: %+v", outcome, got)
		}
	}
}

// Why somebody's lease was ended stands in the audit, however it ends; a call
// without a reason has no such field, and what is malformed is nobody's reason.
func TestAuditOfAReason(t *testing.T) {
	log := &buffer{}
	d := serveDesk(t, leasetest.Options{}, func(o *api.Options) { o.Log = obs.NewLogger(log, obs.Options{Level: slog.LevelWarn, JSON: true}) })
	c := d.client(t, otherToken)
	for range 2 {
		if _, err := d.service.Take(t.Context(), service.TakeRequest{Account: "nightly", Pool: "win"}); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		reason  string
		request client.ForceRequest
		outcome string
		shown   string
	}{
		"refused": {"what was tried", client.ForceRequest{Fence: 9999, Reason: "its job hangs"}, "conflict", "its job hangs"},
		"control": {"nothing that a terminal acts on", client.ForceRequest{Fence: 9999, Reason: "a\x1b[1m\nb"}, "conflict", "a\x1b[1m\nb"},
		"none":    {"none is none", client.ForceRequest{Fence: 9999}, "conflict", ""},
		"long":    {"a request that is wrong", client.ForceRequest{Reason: strings.Repeat("x", 513)}, "invalid", ""},
	} {
		before := len(log.String())
		_, err := c.ForceRelease(t.Context(), "win", "win-01", tc.request)
		if e, ok := errors.AsType[*client.Error](err); !ok || string(e.Class) != tc.outcome {
			t.Errorf("%s: %v", name, err)
		}
		line := log.String()[before:]
		var l auditLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("%s: %v: %s", name, err, line)
		}
		if l.Msg != "audit" || l.Outcome != tc.outcome || l.Reason != tc.shown || strings.Contains(line, "reason") != (tc.shown != "") || strings.Contains(line, "\x1b") {
			t.Errorf("%s: %s: %s", name, tc.reason, line)
		}
	}
	before := len(log.String())
	if _, err := c.ForceRelease(t.Context(), "win", "win-01", client.ForceRequest{Reason: "its job hangs"}); err != nil {
		t.Fatal(err)
	}
	if line := log.String()[before:]; !strings.Contains(line, `"outcome":"ok"`) || !strings.Contains(line, `"reason":"its job hangs"`) {
		t.Errorf("a lease that was ended: %s", line)
	}
}

// problemOf reads the problem document of a recorded answer.
func problemOf(t *testing.T, w *httptest.ResponseRecorder) client.Problem {
	t.Helper()
	var p client.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	return p
}
