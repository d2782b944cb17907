package service_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/service"
)

func TestSecretsAreNotPrinted(t *testing.T) {
	const text = "s3cr3t"
	g := service.Grant{Lease: service.Lease{ID: "a~1", Key: "a"}, Secret: service.NewSecret(text)}
	p := service.Proof{ID: "a~1", Secret: service.NewSecret(text)}
	wrapped := struct{ g service.Grant }{g}
	var out strings.Builder
	for _, v := range []any{
		g, &g, p, &p, g.Secret, &g.Secret, wrapped,
		[]service.Grant{g},
		map[string]service.Proof{"x": p},
		service.RenewRequest{Proof: p},
		service.ReleaseRequest{Proof: p},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
	}
	for _, leak := range []string{text, fmt.Sprintf("%x", text)} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("%q was printed:\n%s", leak, out.String())
		}
	}
	if !strings.Contains(out.String(), "***") {
		t.Error("nothing was printed")
	}
	if g.Secret.Reveal() != text || !g.Secret.Equal(p.Secret) || g.Secret.Equal(service.NewSecret("x")) {
		t.Error("the secret is not what it was")
	}
}

// A request with an Idempotency-Key has one secret, whoever computes it; without
// one each has its own.
func TestSecretsOfGrants(t *testing.T) {
	bubble(t, []string{"a", "b", "c"}, func(t *testing.T, store *tap) {
		s, stop := start(t, store, service.Limits{})
		defer stop()
		other, stopOther := start(t, store, service.Limits{})
		defer stopOther()
		r := service.TakeRequest{Account: "ann", Pool: "p", IdempotencyKey: "k"}
		one, err := s.Take(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		two, err := other.Take(t.Context(), r)
		if err != nil || !two.Secret.Equal(one.Secret) || two.ID != one.ID || !two.Replayed {
			t.Errorf("another process replays %+v, %v", two, err)
		}
		x, y := take(t, s), take(t, s)
		if x.Secret.Equal(y.Secret) || x.Secret.Equal(one.Secret) || len(x.Secret.Reveal()) < 40 {
			t.Error("secrets are alike or short")
		}
		if release(t, s, two); count[lease.Release](store) != 1 {
			t.Error("the replayed secret released nothing")
		}
	})
}

func TestOptions(t *testing.T) {
	store := leasetest.NewMemory(leasetest.Options{})
	for name, o := range map[string]service.Options{
		"no store": {Log: discard()},
		"no log":   {Store: store},
		"batch":    {Store: store, Log: discard(), Limits: service.Limits{Batch: -1}},
		"queue":    {Store: store, Log: discard(), Limits: service.Limits{Queue: -1}},
		"waiters":  {Store: store, Log: discard(), Limits: service.Limits{Waiters: -1}},
		"timeout":  {Store: store, Log: discard(), Limits: service.Limits{Timeout: -1}},
		"max wait": {Store: store, Log: discard(), Limits: service.Limits{MaxWait: -1}},
	} {
		if _, err := service.New(o); err == nil {
			t.Errorf("%s: bad options were taken", name)
		}
	}
}
