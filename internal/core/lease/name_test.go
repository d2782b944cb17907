package lease_test

import (
	"encoding/base64"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

var grammar = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,316}$`)

func FuzzValidName(f *testing.F) {
	for _, s := range []string{"", "a", "win-01", "crawl.home-1", "-a", ".a", "a~1", "a/b", "a b", "é", "a\x00", "a\n", strings.Repeat("x", 317), strings.Repeat("x", 318)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		err := lease.ValidName(s)
		if (err == nil) != grammar.MatchString(s) || strings.HasSuffix(s, "\n") && err == nil {
			t.Errorf("%q: %v", s, err)
		}
		if err != nil && (fault.Of(err) != fault.Invalid || fault.CodeOf(err) != "name" || len(err.Error()) > 1000) {
			t.Errorf("%q: %s %q, a text of %d bytes", s, fault.Of(err), fault.CodeOf(err), len(err.Error()))
		}
	})
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"", "a~1", "a~", "~1", "a~0", "a~-1", "a~+1", "a~01", "a~1~2", "a~9223372036854775807", "a~9223372036854775808", "a~1 ", "a b~1", "a~1e3", "a~\u0661"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := lease.ParseID(s)
		if err != nil {
			if fault.Of(err) != fault.NotFound || fault.CodeOf(err) != "lease" || id != (lease.ID{}) {
				t.Errorf("%q: %v, %s %q", s, id, fault.Of(err), fault.CodeOf(err))
			}
			return
		}
		// An id has one text only, so that it can be compared as text.
		if id.String() != s || id.Fence < 1 || lease.ValidName(id.Key) != nil {
			t.Errorf("%q is read as %+v, written %q", s, id, id)
		}
	})
}

func TestParseIDReadsWhatStringWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := lease.ID{Key: rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,40}`).Draw(t, "key"), Fence: rapid.Int64Min(1).Draw(t, "fence")}
		if got, err := lease.ParseID(id.String()); err != nil || got != id {
			t.Errorf("%q is read as %+v, %v", id, got, err)
		}
	})
}

// Two different requests have neither ticket nor secret in common, however
// their texts run together.
func TestTicketsAndSecrets(t *testing.T) {
	root, other := []byte(strings.Repeat("r", 32)), []byte(strings.Repeat("s", 32))
	seen := map[string]string{}
	is := func(what, text string) {
		t.Helper()
		if had, ok := seen[text]; ok {
			t.Errorf("%s and %s are the same: %s", had, what, text)
		}
		seen[text] = what
	}
	for _, request := range [][2]string{{"ann", "one"}, {"annone", ""}, {"", "annone"}, {"an", "none"}, {"ann", "one\x00"}, {"ann", "two"}} {
		what := strings.Join(request[:], " + ")
		is("the ticket of "+what, lease.TicketID(request[0], request[1]))
		is("the secret of "+what, lease.Secret(root, request[0], request[1]))
		is("the secret of "+what+" in another database", lease.Secret(other, request[0], request[1]))
	}
	if id := lease.TicketID("ann", "one"); !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(id) {
		t.Errorf("a ticket's id is %q", id)
	}
	secret := lease.Secret(root, "ann", "one")
	if raw, err := base64.RawURLEncoding.DecodeString(secret); err != nil || len(raw) != 32 {
		t.Errorf("a secret of %d bytes (%v)", len(raw), err)
	}
	// They are in databases and in clients' hands: they never change.
	if want := "4bcee316e0a42270"; !strings.HasPrefix(lease.TicketID("ann", "one"), want) {
		t.Errorf("the ticket's id has become %s", lease.TicketID("ann", "one"))
	}
	if want := "AWsaf1Q_W0gcDMsb"; !strings.HasPrefix(secret, want) {
		t.Errorf("the secret has become %s", secret)
	}
	if lease.HashOf(secret) == lease.HashOf(secret+"x") {
		t.Error("two secrets have one hash")
	}
}
