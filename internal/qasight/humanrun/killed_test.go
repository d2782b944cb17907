package humanrun_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/humanrun"
)

// mortal kills this process at one of the steps of a run: when something was begun
// or logged and nothing was done about it yet, or when a key's command has ended and
// that is not logged yet.
type mortal struct {
	broker.Broker
	step atomic.Int64
	last int64
	// lists is whether the entries of lists are steps too.
	lists bool
}

func (m *mortal) live() {
	if m.step.Add(1) == m.last {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (m *mortal) Begin(ctx context.Context, name string, r client.ChangeRequest) (*broker.Change, error) {
	defer m.live()
	return m.Broker.Begin(ctx, name, r)
}

func (m *mortal) Append(ctx context.Context, e action.Entry) (action.Entry, error) {
	if e.Phase == action.PhaseFinished && e.Key != "" {
		m.live()
	}
	if e.Key != "" || m.lists {
		defer m.live()
	}
	return m.Broker.Append(ctx, e)
}

// applyInChild is the test binary as a program that plans and applies: its
// arguments are a folder, a verb, the names and the step at which it is killed. It
// prints how many steps there were.
func applyInChild(args []string) int {
	dir, verb, keys := args[0], humanrun.Verb(args[1]), args[2]
	last, err := strconv.ParseInt(args[3], 10, 64)
	if err == nil {
		err = applyOnce(dir, verb, strings.Fields(keys), last)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func applyOnce(dir string, verb humanrun.Verb, keys []string, last int64) (err error) {
	ctx := context.Background()
	path := filepath.Join(dir, "qasight.yaml")
	file, err := config.Load(path)
	if err != nil {
		return err
	}
	b, err := broker.OpenLocal(ctx, broker.Local{Path: filepath.Join(dir, "leases.db"), Account: "ann", Log: brokertest.Discard()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	m := &mortal{Broker: b, last: last, lists: verb == humanrun.Sweep}
	at := humanrun.Place{Dir: dir, Environ: os.Environ()}
	plan, err := humanrun.Make(ctx, humanrun.World{File: file, Broker: b, At: at}, humanrun.Request{Verb: verb, Pool: "win", Names: keys})
	if err != nil {
		return err
	}
	_, err = humanrun.Apply(ctx, humanrun.Runner{
		Broker: m, Load: func() (*config.File, error) { return config.Load(path) }, At: at, User: "ann", Host: "desk-3", Holder: "ann@desk-3",
		Start: func(ctx context.Context, c proc.Command) (humanrun.Command, error) {
			return proc.Guard{Program: "/proc/self/exe", Args: []string{"humanrun.test", "supervise"}}.Start(ctx, c, 0)
		},
	}, plan)
	fmt.Println(m.step.Load())
	return err
}

// Killed at whatever step, a run leaves a log that tells of every command, and
// nothing is ever done twice: what has no end is refused until somebody resolves it,
// and cannot be leased.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, r := range []humanrun.Request{sweep(), remove("qa-3"), add("qa-5")} {
		whole := newKilled(t, r)
		out := whole.child(0)
		steps, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil || steps < 4 {
			t.Fatalf("%s: a whole run has %q steps", r.Verb, out)
		}
		for step := 1; step <= steps; step++ {
			t.Run(fmt.Sprint(r.Verb, " ", step), func(t *testing.T) {
				t.Parallel()
				x := newKilled(t, r)
				x.child(step)
				x.check(r)
			})
		}
	}
}

type killed struct {
	*fixture
	request humanrun.Request
}

func newKilled(t *testing.T, r humanrun.Request) *killed {
	t.Helper()
	return &killed{newFixture(t), r}
}

// child runs the request in a process that is killed at a step, or not at all for
// step 0, and returns what it printed.
func (x *killed) child(step int) string {
	x.t.Helper()
	c := exec.Command("/proc/self/exe", "apply", x.dir, string(x.request.Verb), strings.Join(x.request.Names, " "), strconv.Itoa(step))
	out, err := c.Output()
	status, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		x.t.Fatal("no status")
	case step == 0 && err != nil, step != 0 && (!status.Signaled() || status.Signal() != syscall.SIGKILL):
		x.t.Fatalf("the child at step %d: %v, %s", step, err, out)
	}
	return string(out)
}

// check looks at what the killed run left, and finishes it as a person would.
func (x *killed) check(r humanrun.Request) {
	t, ctx := x.t, x.t.Context()
	b := brokertest.OpenLocal(t, x.path("leases.db"), "ann")
	defer b.Close()
	x.broker = b
	done := x.journal(false)
	entries, err := b.Entries(ctx, broker.Match{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	actions := action.Fold(entries)
	open, err := b.Open(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range done {
		key := strings.Fields(line)[1]
		if !slices.ContainsFunc(actions, func(a action.Action) bool { return a.Key == key && a.Started != nil }) {
			t.Errorf("%q was run and is not in the log", line)
		}
	}
	for _, a := range actions {
		if ran := slices.ContainsFunc(done, func(l string) bool { return strings.HasPrefix(l, string(a.Verb)+" "+a.Key+" ") }); a.State == action.StateOK && a.Key != "" && !ran {
			t.Errorf("the %s of %s is told to be done, and never ran", a.Verb, a.Key)
		}
	}
	for _, e := range open {
		if e.Key != "" {
			x.unfinished(e)
		}
	}
	if d := cmp.Diff(done, x.journal(false)); d != "" {
		t.Errorf("something ran (-before +after)\n%s", d)
	}
	x.endChange()
	for _, e := range open {
		_, err := b.Append(ctx, action.Entry{Action: e.Action, Phase: action.PhaseResolved, Pool: e.Pool, Key: e.Key, Verb: e.Verb, User: "ann", Detail: "looked"})
		if err != nil {
			t.Fatal(err)
		}
	}
	// What is left to do is done by running it again.
	plan, err := x.make(r)
	switch code := fault.CodeOf(err); {
	case code == humanrun.CodeNotListed || code == humanrun.CodeExists:
	case err != nil:
		t.Fatal(err)
	default:
		if _, err := humanrun.Apply(ctx, x.runner(), plan); err != nil {
			t.Fatal(err)
		}
	}
	all := x.journal(false)
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("something was done twice: %q", all)
	}
	want := map[humanrun.Verb][]string{
		humanrun.Sweep: {"qa-1", "qa-2"}, humanrun.Remove: {"qa-1", "qa-2", "qa-4"}, humanrun.Add: {"qa-1", "qa-2", "qa-3", "qa-4", "qa-5"},
	}[r.Verb]
	if d := cmp.Diff(want, x.world()); d != "" {
		t.Errorf("the world (-want +got)\n%s", d)
	}
}

// unfinished holds what is known of an action without an end.
func (x *killed) unfinished(e action.Entry) {
	t := x.t
	request := remove(e.Key)
	if e.Verb == action.VerbCreate {
		request = add(e.Key)
	}
	_, err := x.make(request)
	if code := fault.CodeOf(err); code != humanrun.CodeOpen && code != humanrun.CodeExists {
		t.Errorf("%s of %s again: %v", e.Verb, e.Key, err)
	}
	if e.Verb == action.VerbDestroy && !strings.Contains(fmt.Sprint(err), e.Action) {
		t.Errorf("it is not said which action has no end: %v", err)
	}
	if plan, err := x.make(sweep()); err != nil || slices.Contains(plan.Keys, e.Key) {
		t.Errorf("the next sweep takes %q, %v", plan.Keys, err)
	}
	if err := x.broker.Prepare(t.Context(), poolOf("elsewhere", e.Key)); err != nil {
		t.Fatal(err)
	}
	if _, err := x.broker.Take(t.Context(), "elsewhere", client.TakeOptions{}); fault.CodeOf(err) != "none_free" {
		t.Errorf("taking %s: %v", e.Key, err)
	}
	x.prepare("elsewhere")
}

// endChange ends the killed run's change, as its time would.
func (x *killed) endChange() {
	t := x.t
	v, err := x.broker.Pool(t.Context(), "win")
	if fault.Of(err) == fault.NotFound || err == nil && v.Change == nil {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := sqldb.Open(ctx, sqldb.Options{Path: x.path("leases.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	results, err := db.Leases().Do(ctx, []lease.Op{lease.EndChange{Pool: "win", ID: v.Change.ID, Account: "ann", Admin: true}})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
}
