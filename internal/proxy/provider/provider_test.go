package provider_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// However a spec is printed, logged or encoded, what it holds of secrets stays
// out.
func TestSecretsArePrintedAsStars(t *testing.T) {
	const canary = "c4n4ry"
	spec := provider.Spec{
		UserData:    provider.Secret(canary),
		Credentials: provider.Credentials{User: "u", Password: provider.Secret(canary)},
	}
	var texts []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%U"} {
		texts = append(texts, fmt.Sprintf(verb, spec), fmt.Sprintf(verb, &spec), fmt.Sprintf(verb, spec.UserData), fmt.Sprintf(verb, []provider.Secret{spec.UserData}))
	}
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "spec", spec, "secret", spec.UserData)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "spec", spec, "secret", spec.UserData)
	texts = append(texts, string(b), log.String(), fmt.Sprint(errors.New(fmt.Sprint(spec))))
	for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), fmt.Sprint([]byte(canary)), "YzRuNHJ5"} {
		for _, text := range texts {
			if strings.Contains(text, form) {
				t.Errorf("%q is in %q", form, text)
			}
		}
	}
}

func TestStep(t *testing.T) {
	if err := provider.Step(t.Context(), "a"); err != nil {
		t.Errorf("without hook or end: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := provider.Step(ended, "a"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "a") {
		t.Errorf("an ended context: %v", err)
	}
	hooked := provider.WithStepHook(t.Context(), func(step string) error { return fault.New(fault.Quota, step) })
	if err := provider.Step(hooked, "a"); provider.Class(err) != fault.Quota {
		t.Errorf("the hook's class is lost: %v", err)
	}
}

// plain is a provider without optional interfaces.
type plain struct{ provider.Provider }

// closing is one that can be closed.
type closing struct{ plain }

func (closing) Close() error { return nil }

// wrap is a decorator with Check and Close, as those of guard have all.
type wrap struct {
	plain
	inner provider.Provider
}

func (w wrap) Unwrap() provider.Provider { return w.inner }
func (wrap) Close() error                { return nil }

func (wrap) Check(context.Context) ([]provider.HostHealth, error) { return nil, nil }

// narrow is a decorator that has nothing of its own.
type narrow struct {
	plain
	inner provider.Provider
}

func (n narrow) Unwrap() provider.Provider { return n.inner }

// As shows what the innermost provider has and every decorator passes on.
func TestAs(t *testing.T) {
	for name, tc := range map[string]struct {
		reason         string
		p              provider.Provider
		closes, checks bool
	}{
		"plain":            {"it has none", plain{}, false, false},
		"closing":          {"it has one", closing{}, true, false},
		"wrapped":          {"a decorator's method is none of the provider's", wrap{inner: plain{}}, false, false},
		"wrapped closing":  {"the decorator passes it on", wrap{inner: closing{}}, true, false},
		"wrapped twice":    {"through both", wrap{inner: wrap{inner: closing{}}}, true, false},
		"behind a narrow":  {"who calls would go past the decorator", narrow{inner: closing{}}, false, false},
		"narrow in a wrap": {"the outer one has it, and the inner provider too", wrap{inner: narrow{inner: closing{}}}, true, false},
		"nothing":          {"there is no provider", nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, closes := provider.As[interface{ Close() error }](tc.p)
			_, checks := provider.As[provider.Checker](tc.p)
			if closes != tc.closes || checks != tc.checks {
				t.Errorf("%s: closes %v, checks %v; want %v, %v", tc.reason, closes, checks, tc.closes, tc.checks)
			}
			if closes && any(c) != any(tc.p) {
				t.Errorf("%s: it answers the inner provider, past its decorators", tc.reason)
			}
		})
	}
}
