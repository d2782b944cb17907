package gcp_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// Without a Secret the application default credentials count. A file that is not
// there is said with what to do, and one that comes later is used.
func TestDefaultCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	w := newWorld(t, false, gcefake.Options{})
	w.section.Credentials = gcp.Credentials{}
	p := w.open(t)
	s := specOf("a", w.Zones()[0])
	_, err := p.Create(t.Context(), s)
	if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "application default credentials") || !strings.Contains(err.Error(), "credentials.secretRef") {
		t.Errorf("without any: %s: %v; want Permanent with what to do", fault.Of(err), err)
	}
	if health, _ := p.Check(t.Context()); health[0].Reason != gcp.ReasonCredentials {
		t.Errorf("Check: %+v; want %s", health[0], gcp.ReasonCredentials)
	}
	if err := os.WriteFile(file, w.Key(), 0o600); err != nil {
		t.Fatal(err)
	}
	up(t, p, s)
	if w.Calls()["token"] == 0 {
		t.Error("no token was asked for with the file's key")
	}
	if log := w.logged.String(); strings.Contains(log, "PRIVATE KEY") || strings.Contains(log, "ya29.") {
		t.Error("a key or a token is in the log")
	}
}
