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
