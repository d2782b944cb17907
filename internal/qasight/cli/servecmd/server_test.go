package servecmd_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fleetdesk/internal/qasight/cli/command"
)

// The server is the desk's API without proxies and without a page, and three routes
// about its health.
func TestServerRoutes(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), nil)
	for name, tc := range map[string]struct {
		reason, method, path, body string
		status                     int
		text                       string
	}{
		"lives":        {"for whoever restarts it", "GET", "/healthz", "", 200, "ok"},
		"ready":        {"both parts are asked", "GET", "/readyz", "", 200, `{"ready":true,"checks":[{"name":"database","ok":true},{"name":"leases","ok":true}]}`},
		"metrics":      {"those of build and requests", "GET", "/metrics", "", 200, "fleetdesk_build_info"},
		"described":    {"the API's own description", "GET", "/openapi.json", "", 200, `"/api/v1/leases"`},
		"no page":      {"a problem document, as for any path that is none", "GET", "/", "", 404, `"type":"urn:fleetdesk:problem:not_found"`},
		"no proxies":   {"they are the other product's", "GET", "/api/v1/proxies", "", 404, `"type":"urn:fleetdesk:problem:not_found"`},
		"whoami":       {"the first admin", "GET", "/api/v1/whoami", "", 200, `"role":"admin"`},
		"publish":      {"pools", "PUT", "/api/v1/pools/p", `{"items":["k"]}`, 200, `"p"`},
		"accounts":     {"they can be listed", "GET", "/api/v1/accounts", "", 200, `"admin"`},
		"last admin":   {"they can be changed, but for the last admin", "PUT", "/api/v1/accounts/admin", `{"role":"viewer","disabled":false}`, 409, "last_admin"},
		"action log":   {"people's provider commands", "GET", "/api/v1/resources/actions", "", 200, `"items"`},
		"untidy paths": {"no redirect, which would take a token along", "GET", "//api/v1/whoami", "", 404, "urn:fleetdesk:problem:not_found"},
	} {
		status, body := s.ask(t, tc.method, tc.path, tc.body)
		if status != tc.status || !strings.Contains(body, tc.text) {
			t.Errorf("%s: %s: %d %s", name, tc.reason, status, body)
		}
	}
	s.stop()
	if log := read(t, s.err); strings.Contains(log, string(s.token)) || strings.Contains(log, "fdt_") {
		t.Errorf("a token is in the log:\n%s", log)
	}
}

// A request that waits for a key is told that the server stops, and may go to its
// next start; the server need not sit out its wait.
func TestServerTellsWaiters(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), nil)
	if status, body := s.ask(t, "PUT", "/api/v1/pools/p", `{"items":["k"]}`); status != 200 {
		t.Fatal(status, body)
	}
	if status, body := s.ask(t, "POST", "/api/v1/leases", `{"pool":"p"}`); status/100 != 2 {
		t.Fatal(status, body)
	}
	type answer struct {
		status int
		body   string
	}
	told := make(chan answer, 1)
	go func() {
		status, body := s.ask(t, "POST", "/api/v1/leases", `{"pool":"p","wait":60}`)
		told <- answer{status, body}
	}()
	until(t, "somebody waits", func() bool {
		_, body := s.ask(t, "GET", "/api/v1/pools/p/waiters", "")
		return strings.Contains(body, `"account":"admin"`)
	})
	s.stop()
	if a := <-told; a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "urn:fleetdesk:problem:unavailable:stopping") {
		t.Errorf("the waiter is told %d %s", a.status, a.body)
	}
}

// The first admin token is on the screen of a person who starts the server, once.
func TestServerShowsTheFirstToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for round, want := range []int{1, 0} {
		s := start(t, dir, nil, terminal)
		s.stop()
		if got := strings.Count(read(t, s.out), string(s.token)); got != want {
			t.Errorf("start %d shows it %d times:\n%s", round+1, got, read(t, s.out))
		}
	}
}

// A file that was taken away is no reason not to start, and is not made again: its
// token is somewhere, and good.
func TestServerWithoutTheTokenFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir, nil)
	s.stop()
	token := s.token
	file := filepath.Join(dir, "state/qasight/server/admin-token")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p := run(t, dir, []string{"server", "--listen", "127.0.0.1:0", "--address-file", filepath.Join(dir, "address")})
	until(t, "the server listens", func() bool { _, err := os.Stat(filepath.Join(dir, "address")); return err == nil })
	again := &server{process: p, url: strings.TrimSpace(read(t, filepath.Join(dir, "address"))), token: token}
	if status, body := again.ask(t, "GET", "/api/v1/whoami", ""); status != 200 {
		t.Error(status, body)
	}
	p.signals <- syscall.SIGINT
	if err := p.wait(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file is there again")
	}
	if out := read(t, p.out); strings.Contains(out, "admin-token") {
		t.Errorf("it leads to a file that is gone: %s", out)
	}
	if log := read(t, p.err); !strings.Contains(log, "qasight server admin-token") {
		t.Errorf("nobody is told of the way back in: %s", log)
	}
}

func TestServerOnPostgreSQL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "url")
	if err := os.WriteFile(file, []byte(database.Database(t)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, dir, []string{"--database-url-file", file})
	if status, body := s.ask(t, "PUT", "/api/v1/pools/p", `{"items":["k"]}`); status != 200 {
		t.Fatal(status, body)
	}
	if status, body := s.ask(t, "POST", "/api/v1/leases", `{"pool":"p"}`); status/100 != 2 {
		t.Fatal(status, body)
	}
	s.stop()
	if _, err := os.Stat(filepath.Join(dir, "state/qasight/server/desk.db")); err == nil {
		t.Error("there is an SQLite file too")
	}

	// Its accounts and pools are there after a restart, and the way back in works.
	s = start(t, dir, []string{"--database-url-file", file})
	if status, body := s.ask(t, "GET", "/api/v1/pools/p", ""); status != 200 || !strings.Contains(body, `"state":"held"`) {
		t.Error(status, body)
	}
	out := filepath.Join(dir, "another")
	if err := run(t, dir, []string{"server", "admin-token", "--database-url-file", file, "--out", out}).wait(t); err != nil {
		t.Fatal(err)
	}
	if s.token = clientToken(t, out); string(s.token) == "" {
		t.Fatal("no token")
	}
	if status, body := s.ask(t, "GET", "/api/v1/whoami", ""); status != 200 {
		t.Error(status, body)
	}
}

// A database that does not answer is an outage, and no wrong command line.
func TestServerWithoutPostgreSQL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "url")
	if err := os.WriteFile(file, []byte("postgres://ann:geheim@127.0.0.1:1/none?sslmode=disable&connect_timeout=2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := run(t, dir, []string{"server", "--listen", "127.0.0.1:0", "--database-url-file", file}).wait(t)
	if command.ExitCode(err) != command.ExitStore || strings.Contains(err.Error(), "geheim") {
		t.Errorf("ends with %d: %v", command.ExitCode(err), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "address")); err == nil {
		t.Error("it says that it listens")
	}
}

// A signal ends a command that waits for input with the signal's code.
func TestLoginIsInterrupted(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := run(t, t.TempDir(), []string{"login", "--server", "http://127.0.0.1:1"}, func(f *command.Factory) { f.Streams.In = r })
	p.signals <- syscall.SIGINT
	if err := p.wait(t); command.ExitCode(err) != 130 {
		t.Errorf("ends with %d: %v", command.ExitCode(err), err)
	}
	w.Close() // ends the read, which lives as long as the process
	r.Close()
}
