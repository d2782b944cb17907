package token_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	core "fleetdesk/internal/core/token"
	"fleetdesk/internal/core/token/tokentest"
	"fleetdesk/internal/desk/token"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 123456789, time.UTC)

// desk is a service over a store in memory, at a time that the test sets.
type desk struct {
	*token.Service
	store *tokentest.Memory
	now   time.Time
}

func newDesk(t *testing.T, accounts ...core.Account) *desk {
	t.Helper()
	d := &desk{store: tokentest.NewMemory(), now: now}
	d.Service = token.New(token.Options{Store: d.store, Directory: d.store, Clock: func() time.Time { return d.now }})
	for _, a := range accounts {
		if err := d.store.CreateAccount(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d *desk) issue(t *testing.T, account string, expires time.Time) (token.Secret, core.Record) {
	t.Helper()
	s, r, err := d.Issue(t.Context(), account, expires)
	if err != nil {
		t.Fatal(err)
	}
	return s, r
}

var runner = core.Account{Name: "ci", Role: core.Runner}

func TestIssue(t *testing.T) {
	d := newDesk(t, runner)
	s, r := d.issue(t, "ci", now.Add(time.Hour))
	id, secret, ok := token.Parse(s.Reveal())
	if !ok || id != r.ID {
		t.Fatalf("the secret is not the record's: id %q, record %q", id, r.ID)
	}
	hash := sha256.Sum256(secret[:])
	trunc := now.Truncate(time.Microsecond)
	want := core.Record{ID: id, Account: "ci", Hash: hash[:], Created: trunc, Expires: trunc.Add(time.Hour)}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("returned (-want +got):\n%s", diff)
	}
	stored, _, err := d.store.TokenByID(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	other, _ := d.issue(t, "ci", time.Time{})
	if other.Equal(s) {
		t.Error("two tokens are equal")
	}
}

func TestIssueRefuses(t *testing.T) {
	d := newDesk(t, runner)
	cases := map[string]struct {
		reason  string
		account string
		expires time.Time
		class   fault.Class
	}{
		"now":        {"it would be dead already", "ci", now, fault.Invalid},
		"past":       {"it would be dead already", "ci", now.Add(-time.Hour), fault.Invalid},
		"no account": {"a token belongs to an account", "bob", time.Time{}, fault.NotFound},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, _, err := d.Issue(t.Context(), tc.account, tc.expires)
			if fault.Of(err) != tc.class || s.Reveal() != "" {
				t.Errorf("got %v (%s) and secret %q, want %s and none: %s", err, fault.Of(err), s.Reveal(), tc.class, tc.reason)
			}
		})
	}
}

// byteReader gives the same byte for ever, or fails.
type byteReader struct{ err error }

func (r byteReader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	clear(p)
	return len(p), nil
}

func TestIssueWithBrokenRandomness(t *testing.T) {
	d := newDesk(t, runner)
	stuck := token.New(token.Options{Store: d.store, Clock: d.clock(), Rand: byteReader{}})
	if _, _, err := stuck.Issue(t.Context(), "ci", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if s, _, err := stuck.Issue(t.Context(), "ci", time.Time{}); fault.Of(err) != fault.Conflict || s.Reveal() != "" {
		t.Errorf("the same id again: %v (%s), want Conflict after a few tries", err, fault.Of(err))
	}
	dead := token.New(token.Options{Store: d.store, Clock: d.clock(), Rand: byteReader{io.ErrUnexpectedEOF}})
	if s, _, err := dead.Issue(t.Context(), "ci", time.Time{}); fault.Of(err) != fault.Unavailable || s.Reveal() != "" {
		t.Errorf("no randomness: %v (%s), want Unavailable", err, fault.Of(err))
	}
}

func (d *desk) clock() func() time.Time { return func() time.Time { return d.now } }

func TestAuthenticate(t *testing.T) {
	d := newDesk(t, runner)
	s, r := d.issue(t, "ci", now.Add(time.Hour))
	got, err := d.Authenticate(t.Context(), s.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(core.Principal{Account: "ci", Role: core.Runner, TokenID: r.ID}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	d.now = now.Add(time.Hour - time.Microsecond)
	if _, err := d.Authenticate(t.Context(), s.Reveal()); err != nil {
		t.Errorf("just before its end: %v", err)
	}
}

// Whatever is wrong with a token, the answer is one and the same.
func TestAuthenticateDenies(t *testing.T) {
	off := core.Account{Name: "off", Role: core.Admin, Disabled: true}
	d := newDesk(t, runner, off)
	live, liveRecord := d.issue(t, "ci", time.Time{})
	revoked, revokedRecord := d.issue(t, "ci", time.Time{})
	if err := d.Revoke(t.Context(), revokedRecord.ID); err != nil {
		t.Fatal(err)
	}
	expired, _ := d.issue(t, "ci", now.Add(time.Hour))
	disabled, _ := d.issue(t, "off", time.Time{})
	d.now = now.Add(time.Hour)
	if _, err := d.Authenticate(t.Context(), live.Reveal()); err != nil {
		t.Fatalf("the good one: %v: the test shows nothing", err)
	}

	cases := map[string]struct{ reason, text string }{
		"empty":     {"no token at all", ""},
		"malformed": {"not the form of a token", "fdt_hello"},
		"unknown":   {"no such id", token.Format("aaaaaaaaaaaa", [32]byte{1}).Reveal()},
		// An unknown id is compared with the hash of nothing: its zero bytes are
		// no secret that anybody could guess their way to.
		"unknown, zero secret": {"no such id", token.Format("aaaaaaaaaaaa", [32]byte{}).Reveal()},
		"wrong":                {"the id of another's token with a guess", token.Format(liveRecord.ID, [32]byte{1}).Reveal()},
		"hash as secret":       {"who read the database cannot log in", token.Format(liveRecord.ID, [32]byte(liveRecord.Hash)).Reveal()},
		"other's secret":       {"id and secret belong together", live.Reveal()[:16] + "_" + revoked.Reveal()[17:]},
		"revoked":              {"a person ended it", revoked.Reveal()},
		"expired":              {"its time is over", expired.Reveal()},
		"disabled":             {"its account may do nothing", disabled.Reveal()},
	}
	texts := map[string]bool{}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := d.Authenticate(t.Context(), tc.text)
			if fault.Of(err) != fault.Denied {
				t.Fatalf("got %v (%s), want Denied: %s", err, fault.Of(err), tc.reason)
			}
			if p != (core.Principal{}) {
				t.Errorf("a principal came with the refusal: %+v", p)
			}
			texts[err.Error()] = true
		})
	}
	if len(texts) != 1 {
		t.Errorf("the refusals tell the cases apart: %v", texts)
	}
}

// A store that cannot tell says nothing about the token.
func TestAuthenticateOutage(t *testing.T) {
	d := newDesk(t, runner)
	s, _ := d.issue(t, "ci", time.Time{})
	bare := errors.New("connection reset")
	cases := map[string]struct {
		reason string
		fail   error
		want   fault.Class
	}{
		"unavailable": {"the class is right already", fault.Wrap(fault.Unavailable, bare), fault.Unavailable},
		"timeout":     {"the caller's time is over", fault.Wrap(fault.Timeout, bare), fault.Timeout},
		"bare":        {"an error that nobody classed is no verdict", bare, fault.Unavailable},
		"permanent":   {"a damaged database is an outage to this caller", fault.Wrap(fault.Permanent, bare), fault.Unavailable},
		"denied":      {"the database refusing us is not us refusing the token", fault.Wrap(fault.Denied, bare), fault.Unavailable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d.store.Fail(tc.fail)
			defer d.store.Fail(nil)
			_, err := d.Authenticate(t.Context(), s.Reveal())
			if fault.Of(err) != tc.want || !errors.Is(err, bare) {
				t.Errorf("got %v (%s), want %s with its cause: %s", err, fault.Of(err), tc.want, tc.reason)
			}
			if err != nil && strings.Contains(err.Error(), s.Reveal()[4:20]) {
				t.Errorf("the error shows the token: %v", err)
			}
			// A text that is no token needs no store to be refused.
			if _, err := d.Authenticate(t.Context(), "hello"); fault.Of(err) != fault.Denied {
				t.Errorf("malformed: %v (%s), want Denied", err, fault.Of(err))
			}
		})
	}
	if _, err := d.Authenticate(t.Context(), s.Reveal()); err != nil {
		t.Errorf("after the outage: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Authenticate(ctx, s.Reveal()); fault.Of(err) != fault.Timeout {
		t.Errorf("ended context: %v (%s), want Timeout", err, fault.Of(err))
	}
}

func TestCreateAccount(t *testing.T) {
	d := newDesk(t)
	want := core.Account{Name: "ci", Role: core.Runner, Created: now.Truncate(time.Microsecond)}
	got, err := d.CreateAccount(t.Context(), "ci", core.Runner)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := d.CreateAccount(t.Context(), "ci", core.Runner); fault.Of(err) != fault.Conflict {
		t.Errorf("again: %v, want Conflict", err)
	}
	if _, err := d.CreateAccount(t.Context(), "x", "root"); fault.Of(err) != fault.Invalid {
		t.Errorf("unknown role: %v, want Invalid", err)
	}
}
