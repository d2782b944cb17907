package broker_test

import (
	"os"
	"path/filepath"
	"testing"

	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
)

// Two checkouts of one project share a local database. Whose list it has at present
// is told, so that nothing is destroyed that the other one lists.
func TestWhoseListItIs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "project", "leases.db")
	open := func(file string) broker.Broker {
		b, err := broker.OpenLocal(t.Context(), broker.Local{Path: path, Account: "ann", File: file, Log: brokertest.Discard()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	a, b := open("/a/qasight.yaml"), open("/b/qasight.yaml")
	seen := func(who string, by broker.Looker, ours bool, origin string) {
		t.Helper()
		v, err := by.Pool(t.Context(), "win")
		if err != nil || v.Ours != ours || v.Origin != origin {
			t.Errorf("%s sees ours %t of %q, want %t of %q: %v", who, v.Ours, v.Origin, ours, origin, err)
		}
	}
	if err := a.Prepare(t.Context(), poolOf("win", "k1")); err != nil {
		t.Fatal(err)
	}
	seen("a", a, true, "/a/qasight.yaml")
	seen("b", b, false, "/a/qasight.yaml")
	if err := b.Prepare(t.Context(), poolOf("win", "k1", "k2")); err != nil {
		t.Fatal(err)
	}
	seen("a", a, false, "/b/qasight.yaml")
	looker, err := broker.LookLocal(t.Context(), broker.Local{Path: path, Account: "ann", File: "/b/qasight.yaml", Log: brokertest.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	defer looker.Close()
	seen("b's looker", looker, true, "/b/qasight.yaml")
	note := filepath.Join(filepath.Dir(path), "published", "win.json")
	for what, text := range map[string]string{"of another revision": `{"revision":1,"file":"/b/qasight.yaml"}`, "cut": `{"revision":`} {
		if err := os.WriteFile(note, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := b.Pool(t.Context(), "win")
		if err != nil || v.Ours || v.Origin != "" {
			t.Errorf("a note %s counts: %t %q %v", what, v.Ours, v.Origin, err)
		}
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	seen("b without a note", b, false, "")
	// A team server's list is for all.
	desk := brokertest.Serve(t, brokertest.SQLite(t), nil)
	root, err := broker.OpenServer(broker.Server{URL: desk.URL, Token: desk.Token("root")})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := root.Publish(t.Context(), poolOf("win", "k1"), nil); err != nil {
		t.Fatal(err)
	}
	seen("root", root, true, "")
}
