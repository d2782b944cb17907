package obs_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"fleetdesk/internal/platform/obs"
)

func TestLoggerHidesSecrets(t *testing.T) {
	const hidden = "s3cr3t-value"
	cases := map[string]struct {
		reason string
		attr   slog.Attr
		shown  bool
	}{
		"token":         {"a token is hidden", slog.String("token", hidden), false},
		"case":          {"the case of a key does not matter", slog.String("Authorization", hidden), false},
		"longer key":    {"the end of a key counts", slog.String("admin_token", hidden), false},
		"in a group":    {"keys inside a group are looked at", slog.Group("request", slog.String("password", hidden)), false},
		"secret group":  {"all of a group named so is hidden", slog.Group("secret", slog.String("value", hidden)), false},
		"other kind":    {"the kind of the value does not matter", slog.Any("cookie", []string{hidden}), false},
		"public id":     {"a token's public id is for logs", slog.String("token_id", hidden), true},
		"ordinary key":  {"other keys are written", slog.String("proxy", hidden), true},
		"ordinary attr": {"other groups are written", slog.Group("request", slog.String("route", hidden)), true},
	}
	for name, c := range cases {
		for _, asJSON := range []bool{false, true} {
			var buf bytes.Buffer
			obs.NewLogger(&buf, obs.Options{JSON: asJSON}).Info("a line", c.attr)
			if got := strings.Contains(buf.String(), hidden); got != c.shown {
				t.Errorf("%s (json %v): %s: line %q", name, asJSON, c.reason, buf.String())
			}
		}
	}
}

func TestLoggerFormatAndLevel(t *testing.T) {
	var buf bytes.Buffer
	level := new(slog.LevelVar)
	log := obs.NewLogger(&buf, obs.Options{Level: level, JSON: true})
	log.Debug("not yet")
	if buf.Len() != 0 {
		t.Fatalf("a debug line was written at level info: %s", buf.String())
	}
	level.Set(slog.LevelDebug)
	log.Debug("now", "pool", "vms")
	var line map[string]any
	if err := json.Unmarshal(buf.Bytes(), &line); err != nil {
		t.Fatalf("the line is not JSON: %v: %s", err, buf.String())
	}
	if line["msg"] != "now" || line["pool"] != "vms" {
		t.Errorf("line = %v", line)
	}
}

func TestLogrSharesLevelAndGuard(t *testing.T) {
	var buf bytes.Buffer
	log := obs.Logr(obs.NewLogger(&buf, obs.Options{Level: obs.Verbosity(1)}))
	log.V(1).Info("one", "token", "abc")
	log.V(2).Info("two")
	got := buf.String()
	if !strings.Contains(got, "msg=one") || strings.Contains(got, "msg=two") {
		t.Errorf("verbosity 1 shows V(1) and not V(2); got %q", got)
	}
	if strings.Contains(got, "abc") {
		t.Errorf("the guard holds for logr as well; got %q", got)
	}
}

func TestRegistry(t *testing.T) {
	families, err := obs.NewRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
	}
	for _, want := range []string{"fleetdesk_build_info", "go_goroutines", "process_open_fds"} {
		if !got[want] {
			t.Errorf("the registry has no metric %s", want)
		}
	}
	// Two registries must not share anything: the second would panic.
	obs.NewRegistry()
}

func TestVersion(t *testing.T) {
	b := obs.Version()
	if b.Version == "" || b.Revision == "" || !strings.HasPrefix(b.Go, "go") {
		t.Errorf("Version() = %+v; no field may be empty", b)
	}
	if s := b.String(); !strings.Contains(s, b.Go) {
		t.Errorf("String() = %q", s)
	}
}
