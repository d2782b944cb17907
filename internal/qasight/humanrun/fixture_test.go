package humanrun_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/humanrun"
)

// TestMain makes the test binary its own commands' supervisor, and a program that
// can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "supervise" {
		os.Exit(proc.Supervise(os.Stderr))
	}
	if len(os.Args) == 6 && os.Args[1] == "apply" {
		os.Exit(applyInChild(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// provider is a provider over a folder of files. Each call is written down with
// its variables, and a hook file for it, if there is one, is run first.
const provider = `#!/bin/sh
echo "$1 $QASIGHT_KEY $QASIGHT_POOL $QASIGHT_VERB" >> journal
hook="hook-$1-$QASIGHT_KEY"
[ "$1" = list ] && hook="hook-list-$(grep -c '^list ' journal)"
[ -f "$hook" ] && . "./$hook"
case "$1" in
list) ls world;;
create) echo "making $QASIGHT_KEY"; touch "world/$QASIGHT_KEY";;
destroy) echo "deleting $QASIGHT_KEY"; rm "world/$QASIGHT_KEY";;
esac
`

const usualFile = `project: shop
pools:
  win:
    items: [qa-1, qa-2]
    provider:
      list: ./vms.sh list
      create: ./vms.sh create
      destroy: ./vms.sh destroy
      allow: [create, destroy]
      name_prefix: qa-
      max_items: 9
      timeout: 10s
  other:
    items: [dev-1]
`

// fixture is a project with a provider, and a broker.
type fixture struct {
	t   *testing.T
	dir string
	// server is the team server of the file; "" for the local database.
	server string
	memory *brokertest.Memory
	broker broker.Broker
	desk   *brokertest.TeamServer
}

// newFixture has the items qa-1 and qa-2, and the leftovers qa-3 and qa-4.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	x := &fixture{t: t, dir: t.TempDir(), memory: brokertest.NewMemory()}
	x.write("vms.sh", provider)
	if err := os.Chmod(x.path("vms.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(x.path("world"), 0o755); err != nil {
		t.Fatal(err)
	}
	x.exist("qa-1", "qa-2", "qa-3", "qa-4")
	x.write("qasight.yaml", usualFile)
	x.write("journal", "")
	b := x.memory.Harness().Open(t, "ann")
	t.Cleanup(func() { _ = b.Close() })
	x.broker = b
	return x
}

// served makes it a project with a team server, whose list is published.
func (x *fixture) served() *fixture {
	x.t.Helper()
	desk, _ := x.memory.Serve(x.t)
	return x.with(desk)
}

func (x *fixture) with(desk *brokertest.TeamServer) *fixture {
	x.t.Helper()
	x.desk = desk
	x.server = x.desk.URL
	x.write("qasight.yaml", "server: "+x.server+"\n"+usualFile)
	x.publish()
	b := x.desk.Open(x.t, "ann", nil)
	x.t.Cleanup(func() { _ = b.Close() })
	x.broker = b
	return x
}

// onSQLite makes it a project with a team server on a real database.
func (x *fixture) onSQLite() *fixture {
	x.t.Helper()
	x.desk = brokertest.Serve(x.t, brokertest.SQLite(x.t), nil)
	return x.with(x.desk)
}

// publish publishes the file as it is.
func (x *fixture) publish() {
	x.t.Helper()
	root := x.desk.Open(x.t, "root", nil)
	defer root.Close()
	f := x.load()
	for i := range f.Pools {
		if _, err := root.Publish(x.t.Context(), f.Pools[i].Pool, nil); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (x *fixture) path(name string) string { return filepath.Join(x.dir, name) }

func (x *fixture) write(name, text string) {
	x.t.Helper()
	if err := os.WriteFile(x.path(name), []byte(text), 0o644); err != nil {
		x.t.Fatal(err)
	}
}

// edit replaces a text of the file, which must be there.
func (x *fixture) edit(old, with string) {
	x.t.Helper()
	text, err := os.ReadFile(x.path("qasight.yaml"))
	if err != nil {
		x.t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(old)) {
		x.t.Fatalf("the file has no %q", old)
	}
	x.write("qasight.yaml", strings.ReplaceAll(string(text), old, with))
}

func (x *fixture) exist(names ...string) {
	x.t.Helper()
	for _, n := range names {
		x.write("world/"+n, "")
	}
}

func (x *fixture) empty() {
	x.t.Helper()
	for _, n := range x.world() {
		if err := os.Remove(x.path("world/" + n)); err != nil {
			x.t.Fatal(err)
		}
	}
}

// world is what exists.
func (x *fixture) world() []string {
	x.t.Helper()
	entries, err := os.ReadDir(x.path("world"))
	if err != nil {
		x.t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func (x *fixture) load() *config.File {
	x.t.Helper()
	f, err := config.Load(x.path("qasight.yaml"))
	if err != nil {
		x.t.Fatal(err)
	}
	return f
}

// journal is what the provider was called for, without the lists if so asked.
func (x *fixture) journal(lists bool) []string {
	x.t.Helper()
	text, err := os.ReadFile(x.path("journal"))
	if err != nil {
		x.t.Fatal(err)
	}
	out := []string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); lists || !strings.HasPrefix(line, "list") {
			out = append(out, line)
		}
	}
	return out
}

// actions are the log's, as "verb key state", the first one first.
func (x *fixture) actions(lists bool) []string {
	x.t.Helper()
	entries, err := x.memory.Actions.Entries(x.t.Context(), action.Query{Limit: 1000})
	if err != nil {
		x.t.Fatal(err)
	}
	out := []string{}
	for _, a := range action.Fold(entries) {
		if lists || a.Verb != action.VerbList {
			out = append(out, fmt.Sprintf("%s %s %s", a.Verb, a.Key, a.State))
		}
	}
	slices.Reverse(out)
	return out
}

func (x *fixture) place() humanrun.Place {
	return humanrun.Place{Dir: x.dir, Environ: []string{"PATH=" + os.Getenv("PATH"), "QASIGHT_KEY=prod", "QASIGHT_LEASE=prod~1"}}
}

func (x *fixture) make(r humanrun.Request) (humanrun.Plan, error) {
	x.t.Helper()
	return humanrun.Make(x.t.Context(), humanrun.World{File: x.load(), Broker: x.broker, At: x.place()}, r)
}

func (x *fixture) plan(r humanrun.Request) humanrun.Plan {
	x.t.Helper()
	p, err := x.make(r)
	if err != nil {
		x.t.Fatal(err)
	}
	return p
}

// runner runs commands as children of this process, which takes no second copy of
// the test binary; no signal reaches them.
func (x *fixture) runner() humanrun.Runner {
	return humanrun.Runner{
		Broker: x.broker, Load: func() (*config.File, error) { return config.Load(x.path("qasight.yaml")) },
		At: x.place(), User: "ann", Host: "desk-3", Holder: "ann@desk-3 pid 7",
		Start: func(_ context.Context, c proc.Command) (humanrun.Command, error) { return &child{c}, nil },
	}
}

// supervised has commands run under the real supervisor.
func supervised(r *humanrun.Runner) {
	guard := proc.Guard{Program: "/proc/self/exe", Args: []string{"humanrun.test", "supervise"}}
	r.Start = func(ctx context.Context, c proc.Command) (humanrun.Command, error) {
		started, err := guard.Start(ctx, c, 0)
		if err != nil {
			return nil, err
		}
		return started, nil
	}
}

// child is a command that runs when it is waited for.
type child struct{ command proc.Command }

func (*child) Signal(syscall.Signal) {}

func (c *child) Wait(ctx context.Context) (proc.Result, error) { return proc.Run(ctx, c.command) }

// hold takes the key of a pool of one key.
func (x *fixture) hold(pool string) *broker.Lease {
	x.t.Helper()
	l, err := x.broker.Take(x.t.Context(), pool, client.TakeOptions{Holder: "nightly"})
	if err != nil {
		x.t.Fatal(err)
	}
	return l
}

// spy is a broker that tells of calls before they are made, and fails those for
// which it is told an error.
type spy struct {
	broker.Broker
	mu   sync.Mutex
	tell func(call string) error
}

func (s *spy) asked(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tell(call)
}

func (s *spy) Append(ctx context.Context, e action.Entry) (action.Entry, error) {
	if err := s.asked(fmt.Sprintf("%s %s %s", e.Phase, e.Verb, e.Key)); err != nil {
		return action.Entry{}, err
	}
	return s.Broker.Append(ctx, e)
}

func (s *spy) Begin(ctx context.Context, pool string, r client.ChangeRequest) (*broker.Change, error) {
	if err := s.asked("begin " + pool); err != nil {
		return nil, err
	}
	return s.Broker.Begin(ctx, pool, r)
}

func (s *spy) Pools(ctx context.Context) ([]client.PoolStatus, error) {
	if err := s.asked("pools"); err != nil {
		return nil, err
	}
	return s.Broker.Pools(ctx)
}
