package poolcmd_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/action/actiontest"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	core "fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/cli/poolcmd"
)

// project is a folder with a qasight.yaml, and a home of its own.
type project struct {
	t       testing.TB
	dir     string
	env     []string
	signals chan os.Signal
	// terminal is whether the commands' standard error is one.
	terminal bool
}

func newProject(t testing.TB, file string) *project {
	t.Helper()
	p := &project{t: t, dir: t.TempDir(), signals: make(chan os.Signal, 1)}
	p.env = []string{"PATH=/usr/bin:/bin", "HOME=" + p.dir, "XDG_STATE_HOME=" + p.dir + "/state"}
	p.file(file)
	return p
}

// file writes qasight.yaml; tabs are blanks, so that it can stand in a test.
func (p *project) file(text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, "qasight.yaml"), []byte(strings.ReplaceAll(text, "\t", "  ")), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// said is how a command ended.
type said struct {
	code     int
	out, err string
}

func (p *project) factory(json bool) (*command.Factory, func() said) {
	p.t.Helper()
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(p.t.TempDir(), name))
		if err != nil {
			p.t.Fatal(err)
		}
		return f
	}
	in, out, err := open("in"), open("out"), open("err")
	f := &command.Factory{
		Program: command.Program{Environ: p.env, Signals: p.signals, Streams: command.Streams{In: in, Out: out, Err: err, ErrTerminal: p.terminal}},
		File:    filepath.Join(p.dir, "qasight.yaml"), JSON: json,
	}
	return f, func() said {
		read := func(f *os.File) string {
			text, err := os.ReadFile(f.Name())
			if err != nil {
				p.t.Error(err)
			}
			f.Close()
			return string(text)
		}
		in.Close()
		return said{out: read(out), err: read(err)}
	}
}

// run runs "pool" with the arguments; "--json" may stand among them.
func (p *project) run(args ...string) said {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	json := false
	var rest []string
	for _, a := range args {
		if a == "--json" {
			json = true
		} else {
			rest = append(rest, a)
		}
	}
	f, read := p.factory(json)
	c := poolcmd.New(f)[0]
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(rest)
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	err := c.ExecuteContext(ctx)
	s := read()
	s.code = command.ExitCode(err)
	if err != nil && !command.Silent(err) {
		s.err += err.Error() + "\n"
	}
	return s
}

// want runs a command that must end with the code, and print each of the texts.
func (p *project) want(code int, args []string, texts ...string) said {
	p.t.Helper()
	s := p.run(args...)
	if s.code != code {
		p.t.Errorf("%v: exit code %d, want %d\n%s%s", args, s.code, code, s.out, s.err)
	}
	for _, text := range texts {
		if !strings.Contains(s.out+s.err, text) {
			p.t.Errorf("%v: %q is not in\n%s%s", args, text, s.out, s.err)
		}
	}
	return s
}

func words(s string) []string { return strings.Fields(s) }

// json runs a command with --json and reads what it printed.
func (p *project) json(code int, into any, args ...string) {
	p.t.Helper()
	s := p.want(code, append(args, "--json"))
	if err := json.Unmarshal([]byte(s.out), into); err != nil {
		p.t.Fatalf("%v: %v in\n%s%s", args, err, s.out, s.err)
	}
}

// complete is what the shell offers.
func (p *project) complete(args ...string) string {
	p.t.Helper()
	f, read := p.factory(false)
	root := &cobra.Command{Use: "qasight"}
	root.AddCommand(poolcmd.New(f)...)
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{"__complete", "pool"}, args...))
	if err := root.ExecuteContext(context.Background()); err != nil {
		p.t.Error(err)
	}
	read()
	return strings.Join(strings.Fields(out.String()), " ")
}

// local opens the project's own database.
func (p *project) local() broker.Broker {
	p.t.Helper()
	f, _ := p.factory(false)
	cfg, err := f.Config()
	if err != nil {
		p.t.Fatal(err)
	}
	b, err := f.Broker(p.t.Context(), cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { b.Close() })
	return b
}

// prepare makes the local database know the file's pools.
func (p *project) prepare(b broker.Broker) {
	p.t.Helper()
	f, _ := p.factory(false)
	cfg, err := f.Config()
	if err != nil {
		p.t.Fatal(err)
	}
	for i := range cfg.Pools {
		if err := b.Prepare(p.t.Context(), cfg.Pools[i].Pool); err != nil {
			p.t.Fatal(err)
		}
	}
}

func take(t testing.TB, b broker.Broker, pool, holder string) *broker.Lease {
	t.Helper()
	l, err := b.Take(t.Context(), pool, client.TakeOptions{Holder: holder, TTL: time.Hour, RunsHooks: true})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// eventually waits for something that happens soon.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("it never happened: " + what)
}

func exists(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}

// team is a team server with its clients.
type team struct {
	url    string
	tokens map[string]string
	// calls gets "METHOD path" of each request.
	calls func() []string
}

// as is the environment of somebody who uses the server.
func (s *team) as(p *project, account string) *project {
	who := *p
	who.env = append(append([]string{}, p.env...), "QASIGHT_TOKEN="+s.tokens[account])
	return &who
}

func (s *team) broker(t testing.TB, account string) broker.Broker {
	t.Helper()
	b, err := broker.OpenServer(broker.Server{URL: s.url, Token: client.Token(s.tokens[account])})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// serve runs a team server over SQLite: ann is an admin, bob and ci are runners.
func serve(t testing.TB) *team {
	t.Helper()
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: filepath.Join(t.TempDir(), "desk.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return serveOver(t, db.Leases(), db.Actions(), db.Tokens())
}

// serveMemory is serve over stores that can be made to fail.
func serveMemory(t testing.TB) (*team, *leasetest.Memory, *actiontest.Memory) {
	t.Helper()
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: filepath.Join(t.TempDir(), "desk.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	leases, actions := leasetest.NewMemory(leasetest.Options{}), actiontest.NewMemory(nil)
	return serveOver(t, leases, actions, db.Tokens()), leases, actions
}

func serveOver(t testing.TB, leases lease.Store, actions action.Log, tokens sqldb.Tokens) *team {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	desk, err := service.New(service.Options{Store: leases, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- desk.Run(ctx) }()
	auth := token.New(token.Options{Store: tokens, Directory: tokens})
	s := &team{tokens: map[string]string{}}
	for account, role := range map[string]core.Role{"ann": core.Admin, "bob": core.Runner, "ci": core.Runner} {
		if _, err := auth.CreateAccount(t.Context(), account, role); err != nil {
			t.Fatal(err)
		}
		secret, _, err := auth.Issue(t.Context(), account, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		s.tokens[account] = secret.Reveal()
	}
	handler, err := api.New(api.Options{Auth: auth, Accounts: auth, Actions: actions, Desk: desk, Log: quiet, Limits: api.Limits{PerToken: -1}})
	if err != nil {
		t.Fatal(err)
	}
	calls := make(chan []string, 1)
	calls <- nil
	s.calls = func() []string {
		all := <-calls
		calls <- all
		return all
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls <- append(<-calls, r.Method+" "+r.URL.Path)
		handler.ServeHTTP(w, r)
	}))
	s.url = srv.URL
	t.Cleanup(func() {
		srv.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}
