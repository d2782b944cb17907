package e2e_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// team is a folder of a project whose file names a team server, which runs as a
// process; everything between the two goes through a wire that the test reads.
type team struct {
	t    *testing.T
	dir  string // of the project
	home string
	wire *wire
	// server is the folder of the team server, running the one that was started
	// first.
	server  string
	running *server
}

// wire passes requests on, and keeps every byte of them and of the answers.
type wire struct {
	mu   sync.Mutex
	seen []crossing
}

// crossing is one request and its answer.
type crossing struct{ path, text string }

func (w *wire) between(t *testing.T, server string) string {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorLog = log.New(io.Discard, "", 0) // a server that is down is part of a test
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(asked))
		head, err := httputil.DumpRequest(r, false)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)
		var back bytes.Buffer
		_ = answer.Header().Write(&back) // to memory
		w.mu.Lock()
		w.seen = append(w.seen, crossing{r.URL.Path, string(head) + string(asked) + back.String() + answer.Body.String()})
		w.mu.Unlock()
		for name, values := range answer.Header() {
			rw.Header()[name] = values
		}
		rw.WriteHeader(answer.Code)
		_, _ = rw.Write(answer.Body.Bytes()) // the client may have left
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// holding returns the paths of all crossings that hold a text.
func (w *wire) holding(text string) (paths []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.seen {
		if strings.Contains(c.text, text) {
			paths = append(paths, c.path)
		}
	}
	return paths
}

func newTeam(t *testing.T, file string) *team {
	t.Helper()
	top := t.TempDir()
	m := &team{t: t, dir: filepath.Join(top, "project"), home: filepath.Join(top, "home"), wire: &wire{}}
	for _, d := range []string{m.dir, m.home} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m.server = filepath.Join(top, "server")
	m.running = m.serve(m.server, "127.0.0.1:0")
	m.write("qasight.yaml", "server: "+m.wire.between(t, m.running.url)+"\n"+file)
	return m
}

// server is a team server that runs.
type server struct {
	t       *testing.T
	command *exec.Cmd
	out     buffer
	url     string
	over    bool
}

// serve starts the team server of a folder, which is made if need be, on an address
// such as 127.0.0.1:0.
func (m *team) serve(dir, listen string) *server {
	m.t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	address := filepath.Join(dir, "address")
	if err := os.RemoveAll(address); err != nil {
		m.t.Fatal(err)
	}
	s := &server{t: m.t}
	s.command = exec.Command(binary(m.t, "qasight"), "server", "--listen", listen, "--address-file", address,
		"--database", filepath.Join(dir, "desk.db"))
	s.command.Dir, s.command.Env = dir, m.env()
	s.command.Stdout, s.command.Stderr = &s.out, &s.out
	if err := s.command.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { s.end(syscall.SIGTERM) })
	until(m.t, "the server listening", func() string {
		text, err := os.ReadFile(address)
		if s.url = strings.TrimSpace(string(text)); err != nil || s.url == "" {
			return "no address yet: " + s.out.String()
		}
		return ""
	})
	admin, err := os.ReadFile(filepath.Join(dir, "admin-token"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.write("admin-token", string(admin))
	return s
}

// end ends it once.
func (s *server) end(how syscall.Signal) {
	if s.over {
		return
	}
	s.over = true
	_ = s.command.Process.Signal(how)
	if err := s.command.Wait(); err != nil && how != syscall.SIGKILL {
		s.t.Errorf("the server does not end well: %v\n%s", err, &s.out)
	}
}

func (m *team) write(name, text string) {
	m.t.Helper()
	mode := os.FileMode(0o600)
	if strings.HasPrefix(text, "#!") {
		mode = 0o700
	}
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

func (m *team) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func (m *team) env() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + m.home, "USER=ann", "QASIGHT_TOKEN_FILE=" + filepath.Join(m.dir, "admin-token"),
		"XDG_STATE_HOME=" + filepath.Join(m.home, "state"), "XDG_CONFIG_HOME=" + filepath.Join(m.home, "config"),
		"VMS_PASSWORD=correct-horse-battery",
	}
}

// started is qasight in the background.
type started struct {
	command *exec.Cmd
	out     buffer
}

// start starts qasight in the project's folder.
func (m *team) start(args ...string) *started {
	m.t.Helper()
	s := &started{}
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	m.t.Cleanup(cancel)
	s.command = exec.CommandContext(ctx, binary(m.t, "qasight"), args...)
	s.command.Dir, s.command.Env, s.command.WaitDelay = m.dir, m.env(), time.Second
	s.command.Stdout, s.command.Stderr = &s.out, &s.out
	if err := s.command.Start(); err != nil {
		m.t.Fatal(err)
	}
	return s
}

// end waits for its end and wants an exit code.
func (s *started) end(t *testing.T, want int) {
	t.Helper()
	_ = s.command.Wait() // the exit code says it all
	if got := s.command.ProcessState.ExitCode(); got != want {
		t.Errorf("%s: exit %d, want %d\n%s", strings.Join(s.command.Args[1:], " "), got, want, &s.out)
	}
}

// A team server that is killed and comes back costs nobody anything: the run that
// holds a key goes on, and who waits for it keeps waiting and gets it afterwards.
func TestQasightOutlivesItsServer(t *testing.T) {
	t.Parallel()
	m := newTeam(t, "project: shop-tests\npools:\n  one: {items: [vm-1], lease_ttl: 20s}\n")
	m.run(0, "pool", "publish")
	holds := m.start("exec", "one", "--", "sh", "-c", "touch held; until [ -e go ]; do sleep 0.05; done; rm held; exit 3")
	until(t, "the first run having the key", func() string { return m.lacks("held") })
	waits := m.start("exec", "one", "--wait", "40s", "--", "sh", "-c", "[ ! -e held ] || exit 9; touch second")
	until(t, "the second run waiting", func() string {
		if out := m.run(0, "pool", "why", "one"); !strings.Contains(out, "In line") {
			return out
		}
		return ""
	})
	m.running.end(syscall.SIGKILL)
	m.run(69, "pool", "why", "one")
	m.serve(m.server, strings.TrimPrefix(m.running.url, "http://"))
	until(t, "the second run waiting again", func() string {
		if out := m.run(0, "pool", "why", "one"); !strings.Contains(out, "In line") {
			return out
		}
		return ""
	})
	if m.lacks("second") == "" {
		t.Error("the second run has the key of the first one")
	}
	m.write("go", "")
	holds.end(t, 3)
	waits.end(t, 0)
	if what := m.lacks("second"); what != "" {
		t.Error(what)
	}
	m.run(0, "pool", "status", "one")
}

func (m *team) lacks(name string) string {
	if _, err := os.Stat(filepath.Join(m.dir, name)); err != nil {
		return err.Error()
	}
	return ""
}

// run runs qasight in the project's folder, wants an exit code, and returns what
// it printed.
func (m *team) run(want int, args ...string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, binary(m.t, "qasight"), args...)
	c.Dir, c.Env, c.WaitDelay = m.dir, m.env(), time.Second
	out, _ := c.CombinedOutput() // the exit code says it all
	if got := c.ProcessState.ExitCode(); got != want {
		m.t.Fatalf("qasight %s: exit %d, want %d\n%s", strings.Join(args, " "), got, want, out)
	}
	return string(out)
}

const teamFile = `project: shop-tests
pools:
  win-vms:
    items: [qa-win-01, qa-win-02]
    lease_ttl: 30s
    on_check: ./hook-marker.sh check
    on_reset: ./hook-marker.sh reset
    provider:
      list: ./provider-marker.sh list
      create: ./provider-marker.sh create
      destroy: ./provider-marker.sh destroy
      allow: [create, destroy]
      name_prefix: qa-
      max_items: 9
stages:
  ui: {command: './stage-marker.sh', pool: win-vms, workers: 2}
`

// What crosses the wire while a team works never holds a provider's command, nor
// the text of a hook; but for the action log, where people want to read it.
func TestQasightWire(t *testing.T) {
	t.Parallel()
	m := newTeam(t, teamFile)
	m.write("hook-marker.sh", "#!/bin/sh\nexit 0\n")
	m.write("stage-marker.sh", "#!/bin/sh\necho \"$QASIGHT_KEY $QASIGHT_WORKER/$QASIGHT_WORKERS\"\n")
	m.write("provider-marker.sh", `#!/bin/sh
set -eu
echo "$1 ${QASIGHT_KEY:-}" >>journal
case "$1" in
list) cat machines ;;
create) echo "$QASIGHT_KEY" >>machines; echo "password $VMS_PASSWORD" ;;
destroy) grep -vxF -- "$QASIGHT_KEY" machines >new || [ $? = 1 ]; mv new machines ;;
esac
`)
	m.write("machines", "qa-win-01\nqa-win-02\nqa-old\n")

	m.run(77, "pool", "sweep", "win-vms") // never published
	m.run(0, "pool", "publish")
	if out := m.run(5, "exec", "win-vms", "--", "sh", "-c", `echo "on $QASIGHT_KEY"; exit 5`); !strings.Contains(out, "on qa-win-0") {
		t.Errorf("exec printed %s", out)
	}
	m.run(0, "stage", "run", "ui")
	if out := m.run(1, "pool", "status"); !strings.Contains(out, "qa-old") {
		t.Errorf("status does not show the leftover:\n%s", out)
	}
	m.run(0, "pool", "why", "win-vms")
	m.run(0, "pool", "add", "win-vms", "qa-win-03", "--apply", "--yes")
	m.run(0, "pool", "sweep", "win-vms", "--apply", "--yes")
	if out := m.run(0, "pool", "log", "win-vms"); !strings.Contains(out, "destroy") || strings.Contains(out, "correct-horse-battery") {
		t.Errorf("the log shows:\n%s", out)
	}
	// Both leftovers went: the new machine is in no list yet.
	if got := m.read("machines"); got != "qa-win-01\nqa-win-02\n" {
		t.Errorf("the machines are %q", got)
	}

	for _, text := range []string{"provider-marker", "name_prefix", "max_items", "namePrefix", "maxItems"} {
		logged := 0
		for _, path := range m.wire.holding(text) {
			if logged++; path != "/api/v1/resources/actions" {
				t.Errorf("%q crossed the wire at %s", text, path)
			}
		}
		if text == "provider-marker" && logged == 0 {
			t.Error("the action log holds no command: the wire was not seen")
		}
	}
	for _, text := range []string{"hook-marker", "stage-marker", "correct-horse-battery"} {
		for _, path := range m.wire.holding(text) {
			t.Errorf("%q crossed the wire at %s", text, path)
		}
	}
	if len(m.wire.holding("qa-win-01")) == 0 {
		t.Error("no key crossed the wire: it was not seen")
	}
}
