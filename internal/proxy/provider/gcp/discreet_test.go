package gcp_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/testkit/gcefake"
)

// However the API quotes user-data, nothing of them is in an error.
func TestQuotedUserData(t *testing.T) {
	secret := strings.Repeat("A1b2", 90) + "THE-END"
	data := "#cloud-config\npassword:   hunter2-is-the-secret\nkey: \"" + secret + "\"\n"
	for name, text := range map[string]string{
		"as it is":          "Invalid value 'password:   hunter2-is-the-secret'.",
		"other spaces":      "Invalid value 'password:\t hunter2-is-the-secret'.",
		"over lines":        "Invalid value '#cloud-config\npassword:   hunter2-is-the-secret\nkey'.",
		"in quotes":         `Invalid value "password:   \"hunter2-is-the-secret\"".`,
		"cut by us":         "Invalid value with a long preface: 'key: \"" + secret + "\"'",
		"cut by the API":    "Invalid value: 'key: \"" + secret[:100] + "…",
		"the end of a line": "Invalid value: '…" + secret[200:] + "\"'",
		"base64":            "Invalid value: '" + base64.StdEncoding.EncodeToString([]byte(data))[:80] + "'",
	} {
		for where, refuse := range map[string]func(w *world){
			"by HTTP": func(w *world) { w.FailNext("instances.insert", 400, "invalid", text) },
			"inside":  func(w *world) { w.FailInside("insert", "INVALID_USAGE", text) },
			"crowded": func(w *world) { w.FailNext("instances.insert", 403, "quotaExceeded", text) },
		} {
			w := newWorld(t, false, gcefake.Options{})
			s := specOf("d", w.Zones()[0])
			s.UserData = provider.Secret(data)
			refuse(w)
			_, err := w.open(t).Create(t.Context(), s)
			if c := fault.Of(err); c != fault.Permanent && c != fault.Quota {
				t.Errorf("%s, %s: %s: %v", name, where, c, err)
			}
			if text := err.Error(); strings.Contains(text, "hunter2") || strings.Contains(text, "A1b2") || strings.Contains(text, "I2Nsb3Vk") || !strings.Contains(text, "not shown") {
				t.Errorf("%s, %s: %v", name, where, err)
			}
		}
	}
	w := newWorld(t, false, gcefake.Options{})
	s := specOf("d", w.Zones()[0])
	s.UserData = provider.Secret(data)
	w.FailNext("instances.insert", 400, "invalid", "Invalid value for field 'resource.canIpForward'.")
	if _, err := w.open(t).Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), "canIpForward") {
		t.Errorf("%v: hides what quotes nothing", err)
	}
}
