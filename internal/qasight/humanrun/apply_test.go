package humanrun_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/humanrun"
	"fleetdesk/internal/qasight/pool"
)

func states(r humanrun.Report) []string {
	out := []string{}
	for _, o := range r.Outcomes {
		out = append(out, o.Key+" "+string(o.State))
	}
	return out
}

var errStore = fault.WithCode(fault.New(fault.Unavailable, "the store does not answer"), "store")

// once fails the first call of that kind.
func once(call string, err error) func(*fixture) func(string) error {
	return times(call, 1, err)
}

func times(call string, n int, err error) func(*fixture) func(string) error {
	return func(*fixture) func(string) error {
		return func(c string) error {
			if c == call && n > 0 {
				n--
				return err
			}
			return nil
		}
	}
}

// during does something, once, before a call of that kind is passed on.
func during(call string, do func(x *fixture)) func(*fixture) func(string) error {
	return func(x *fixture) func(string) error {
		done := false
		return func(c string) error {
			if c == call && !done {
				done = true
				do(x)
			}
			return nil
		}
	}
}

// What is shown is done, or nothing further: each story changes one thing between
// the plan and its end.
func TestApply(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reason  string
		served  bool
		world   func(x *fixture) // before the plan
		request humanrun.Request
		between func(x *fixture) // after the plan
		hooks   map[string]string
		tell    func(x *fixture) func(call string) error
		runner  func(r *humanrun.Runner)

		journal []string // without lists
		states  []string
		actions []string // without lists
		code    string
		class   fault.Class
		text    string
	}{
		"sweep": {
			reason: "all of it, by name", request: sweep(), runner: supervised,
			journal: []string{"destroy qa-3 win destroy", "destroy qa-4 win destroy"}, states: []string{"qa-3 done", "qa-4 done"},
			actions: []string{"destroy qa-3 ok", "destroy qa-4 ok"},
		},
		"remove": {
			reason: "in the order of the command line", request: remove("qa-4", "qa-3"),
			journal: []string{"destroy qa-4 win destroy", "destroy qa-3 win destroy"}, states: []string{"qa-4 done", "qa-3 done"},
			actions: []string{"destroy qa-4 ok", "destroy qa-3 ok"},
		},
		"add": {
			reason: "and create sees its own variables", request: add("qa-6", "qa-5"), runner: supervised,
			journal: []string{"create qa-6 win create", "create qa-5 win create"}, states: []string{"qa-6 done", "qa-5 done"},
			actions: []string{"create qa-6 ok", "create qa-5 ok"},
		},
		"sweep with a server": {
			reason: "the same", request: sweep(), served: true,
			journal: []string{"destroy qa-3 win destroy", "destroy qa-4 win destroy"}, states: []string{"qa-3 done", "qa-4 done"},
			actions: []string{"destroy qa-3 ok", "destroy qa-4 ok"},
		},

		"a name appeared": {
			reason: "nobody saw it in the plan", request: sweep(), between: func(x *fixture) { x.exist("qa-0") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-0",
		},
		"a foreign name appeared": {
			reason: "the list is another one, whosever it is", request: sweep(), between: func(x *fixture) { x.exist("web-1") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "web-1",
		},
		"a name appeared, add": {
			reason: "max_items was counted without it", request: add("qa-5"), between: func(x *fixture) { x.exist("qa-0") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-0",
		},
		"a name vanished": {
			reason: "somebody else is at it", request: sweep(), between: func(x *fixture) { x.vanish("qa-4") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-4",
		},
		"an item vanished": {
			reason: "that does not concern the keys, and is another world all the same", request: remove("qa-3"), between: func(x *fixture) { x.vanish("qa-1") }, code: humanrun.CodeChanged, class: fault.Conflict,
		},
		"it exists by now": {
			reason: "somebody else created it", request: add("qa-5"), between: func(x *fixture) { x.exist("qa-5") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-5",
		},
		"it was made an item": {
			reason: "somebody wants it", request: sweep(), between: func(x *fixture) { x.edit("[qa-1, qa-2]", "[qa-1, qa-2, qa-3]") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-3",
		},
		"it was made an item elsewhere": {
			reason: "in another pool", request: remove("qa-3"), between: func(x *fixture) { x.edit("[dev-1]", "[dev-1, qa-3]") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "other",
		},
		"another command": {
			reason: "it was not shown", request: sweep(), between: func(x *fixture) { x.edit("./vms.sh destroy", "./vms.sh destroy --force") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "--force",
		},
		"another prefix": {
			reason: "it was not shown", request: sweep(), between: func(x *fixture) { x.edit("name_prefix: qa-", "name_prefix: qa") }, code: humanrun.CodeChanged, class: fault.Conflict,
		},
		"another list": {
			reason: "it was not shown", request: sweep(), between: func(x *fixture) { x.edit("./vms.sh list", "./vms.sh list --all") }, code: humanrun.CodeChanged, class: fault.Conflict,
		},
		"no longer allowed": {
			reason: "somebody took it out of allow", request: sweep(), between: func(x *fixture) { x.edit("[create, destroy]", "[create]") }, code: humanrun.CodeChanged, class: fault.Conflict,
		},
		"another project": {
			reason: "the database is another one", request: sweep(), between: func(x *fixture) { x.edit("project: shop", "project: shop2") }, code: humanrun.CodeChanged, class: fault.Conflict,
		},
		"a broken file": {
			reason: "it is being edited", request: sweep(), between: func(x *fixture) { x.edit("project: shop", "project: [") }, code: humanrun.CodeChanged, class: fault.Conflict,
		},
		"switched off": {
			reason: "the rule holds in every step", request: sweep(), runner: func(r *humanrun.Runner) { r.Actions = "0" }, code: humanrun.CodeChanged, class: fault.Conflict, text: "TESTO_PROVIDER_ACTIONS",
		},
		"held": {
			reason: "somebody took it after the plan", request: sweep(),
			between: func(x *fixture) { x.prepare("elsewhere", "qa-3"); x.hold("elsewhere"); x.prepare("elsewhere") }, code: "held", class: fault.Conflict, text: "qa-3",
		},
		"somebody else changes the pool": {
			reason: "one person at a time, and it is said who", request: sweep(),
			between: func(x *fixture) {
				x.prepare("win", "qa-1", "qa-2")
				bob := x.memory.Harness().Open(x.t, "bob")
				defer bob.Close()
				if _, err := bob.Begin(x.t.Context(), "win", client.ChangeRequest{Verb: "add", Holder: "bob@desk-4", TTL: 60}); err != nil {
					x.t.Fatal(err)
				}
			},
			code: "change", class: fault.Conflict, text: "bob@desk-4",
		},
		"an action was begun": {
			reason: "nobody knows what became of it", request: sweep(), between: func(x *fixture) { x.open("win", "qa-3") }, code: humanrun.CodeChanged, class: fault.Conflict,
		},
		"published meanwhile": {
			reason: "the file is not what is in use", request: sweep(), served: true,
			between: func(x *fixture) { x.edit("[qa-1, qa-2]", "[qa-1]"); x.publish(); x.edit("[qa-1]", "[qa-1, qa-2]") }, code: humanrun.CodeChanged, class: fault.Conflict, text: "publish",
		},
		"the list fails": {
			reason: "what exists is not known", request: sweep(), hooks: map[string]string{"list-2": "exit 3"}, code: humanrun.CodeList, class: fault.Unavailable,
		},
		"the list is empty": {
			reason: "and looks as if all were done", request: sweep(), hooks: map[string]string{"list-2": "exit 0"}, code: humanrun.CodeChanged, class: fault.Conflict,
		},

		"a name appeared in the middle": {
			reason: "before each destroy the list is looked at", request: sweep(), hooks: map[string]string{"list-4": "touch world/qa-9"},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-9",
		},
		"a command destroys another one": {
			reason: "the provider has a mistake in it", request: sweep(), hooks: map[string]string{"destroy-qa-3": "rm world/qa-1"},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-1",
		},
		"the next one vanished": {
			reason: "somebody else is at it", request: sweep(), hooks: map[string]string{"destroy-qa-3": "rm world/qa-4"},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-4",
		},
		"the next one was made an item": {
			reason: "before each command the file is read", request: sweep(), hooks: map[string]string{"destroy-qa-3": `sed -i 's/dev-1/dev-1, qa-4/' qasight.yaml`},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-4",
		},
		"it was made an item while the list ran": {
			reason: "a list takes its time", request: sweep(), hooks: map[string]string{"list-3": `sed -i 's/dev-1/dev-1, qa-3/' qasight.yaml`},
			code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-3",
		},
		"the next one came into a pool": {
			reason: "before each command the pools are looked at", request: sweep(), tell: during("finished destroy qa-3", func(x *fixture) { x.prepare("elsewhere", "qa-4") }),
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "elsewhere",
		},
		"the next create came into a pool": {
			reason: "before each command the pools are looked at", request: add("qa-5", "qa-6"), tell: during("finished create qa-5", func(x *fixture) { x.prepare("elsewhere", "qa-6") }),
			journal: []string{"create qa-5 win create"}, states: []string{"qa-5 done"}, actions: []string{"create qa-5 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "elsewhere",
		},
		"published in the middle": {
			reason: "the file is not what is in use", request: sweep(), served: true,
			tell: during("finished destroy qa-3", func(x *fixture) {
				x.edit("[qa-1, qa-2]", "[qa-1]")
				x.publish()
				x.edit("[qa-1]", "[qa-1, qa-2]")
			}),
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "publish",
		},
		"the lock is lost": {
			reason: "somebody else may change the pool by now", request: sweep(), tell: during("finished destroy qa-3", func(x *fixture) { x.memory.Leases.Advance(2 * time.Minute) }),
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "lock",
		},
		"the list fails in the middle": {
			reason: "what exists is not known", request: sweep(), hooks: map[string]string{"list-4": "exit 3"},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeList, class: fault.Unavailable,
		},
		"another name after a create": {
			reason: "max_items was counted without it", request: add("qa-5", "qa-6"), hooks: map[string]string{"create-qa-5": "touch world/qa-9"},
			journal: []string{"create qa-5 win create"}, states: []string{"qa-5 done"}, actions: []string{"create qa-5 ok"}, code: humanrun.CodeChanged, class: fault.Conflict, text: "qa-9",
		},

		"a destroy fails": {
			reason: "the first that fails ends the run", request: sweep(), hooks: map[string]string{"destroy-qa-3": "echo it is locked; exit 4"},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 failed"}, actions: []string{"destroy qa-3 failed"}, code: humanrun.CodeFailed, class: fault.Permanent, text: "exit code 4",
		},
		"a create fails": {
			reason: "the first that fails ends the run", request: add("qa-5", "qa-6"), hooks: map[string]string{"create-qa-5": "exit 127"},
			journal: []string{"create qa-5 win create"}, states: []string{"qa-5 failed"}, actions: []string{"create qa-5 failed"}, code: humanrun.CodeFailed, class: fault.Permanent, text: "not installed",
		},
		"the second fails": {
			reason: "what was done was done", request: sweep(), hooks: map[string]string{"destroy-qa-4": "exit 4"},
			journal: []string{"destroy qa-3 win destroy", "destroy qa-4 win destroy"}, states: []string{"qa-3 done", "qa-4 failed"}, actions: []string{"destroy qa-3 ok", "destroy qa-4 failed"},
			code: humanrun.CodeFailed, class: fault.Permanent,
		},
		"it hangs": {
			reason: "it is ended at its timeout, which is a failure", request: sweep(), world: func(x *fixture) { x.edit("timeout: 10s", "timeout: 1s") }, runner: supervised,
			hooks:   map[string]string{"destroy-qa-3": "sleep 600"},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 failed"}, actions: []string{"destroy qa-3 failed"}, code: humanrun.CodeFailed, class: fault.Permanent, text: "did not end within 1s",
		},
		"it cannot be started": {
			reason: "nothing was run, which is known", request: sweep(), runner: func(r *humanrun.Runner) {
				r.Start = func(context.Context, proc.Command) (humanrun.Command, error) { return nil, errors.New("no supervisor") }
			},
			journal: []string{}, states: []string{"qa-3 failed"}, actions: []string{"destroy qa-3 failed"}, code: humanrun.CodeFailed, class: fault.Permanent, text: "no supervisor",
		},
		"created and not listed": {
			reason: "there may be a machine that nobody sees", request: add("qa-5", "qa-6"), hooks: map[string]string{"create-qa-5": "exit 0"},
			journal: []string{"create qa-5 win create"}, states: []string{"qa-5 unknown"}, actions: []string{"create qa-5 unfinished"}, code: humanrun.CodeUnknown, class: fault.Permanent, text: "--resolve",
		},
		"created and the list fails": {
			reason: "whether it is there is not known", request: add("qa-5", "qa-6"), hooks: map[string]string{"list-3": "exit 3"},
			journal: []string{"create qa-5 win create"}, states: []string{"qa-5 unknown"}, actions: []string{"create qa-5 unfinished"}, code: humanrun.CodeList, class: fault.Unavailable, text: "--resolve",
		},
		"destroyed and still listed": {
			reason: "the command says what is not so: nothing further runs", request: sweep(), hooks: map[string]string{"destroy-qa-3": "exit 0"},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeUnknown, class: fault.Permanent, text: "still shows",
		},
		"the last one is still listed": {
			reason: "the list is looked at after the last one too", request: sweep(), hooks: map[string]string{"destroy-qa-4": "exit 0"},
			journal: []string{"destroy qa-3 win destroy", "destroy qa-4 win destroy"}, states: []string{"qa-3 done", "qa-4 done"}, actions: []string{"destroy qa-3 ok", "destroy qa-4 ok"},
			code: humanrun.CodeUnknown, class: fault.Permanent, text: "qa-4",
		},

		"the start is not logged": {
			reason: "logged first, or not run", request: sweep(), tell: once("started destroy qa-3", errStore), code: humanrun.CodeUnlogged, class: fault.Unavailable, text: "not run",
		},
		"the second start is not logged": {
			reason: "logged first, or not run", request: sweep(), tell: once("started destroy qa-4", errStore),
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: humanrun.CodeUnlogged, class: fault.Unavailable,
		},
		"a list is not logged": {
			reason: "lists of a run are logged first too", request: sweep(), tell: once("started list ", errStore), code: humanrun.CodeUnlogged, class: fault.Unavailable,
		},
		"a list's end is not logged": {
			reason: "if logging fails nothing further runs", request: sweep(), tell: times("finished list ", 1000, errStore), runner: shortLog, code: humanrun.CodeUnlogged, class: fault.Unavailable,
		},
		"the end is not logged": {
			reason: "the outcome is unknown, and nothing further runs", request: sweep(), tell: times("finished destroy qa-3", 1000, errStore), runner: shortLog,
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 unknown"}, actions: []string{"destroy qa-3 unfinished"}, code: humanrun.CodeUnlogged, class: fault.Unavailable, text: "outcome unknown",
		},
		"a create's end is not logged": {
			reason: "the outcome is unknown, and nothing further runs", request: add("qa-5", "qa-6"), tell: times("finished create qa-5", 1000, errStore), runner: shortLog,
			journal: []string{"create qa-5 win create"}, states: []string{"qa-5 unknown"}, actions: []string{"create qa-5 unfinished"}, code: humanrun.CodeUnlogged, class: fault.Unavailable,
		},
		"the end is refused": {
			reason: "what does not pass is not tried for long", request: sweep(), tell: times("finished destroy qa-3", 1000, fault.New(fault.Denied, "no token")),
			runner:  func(r *humanrun.Runner) { r.LogFor = time.Hour },
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 unknown"}, actions: []string{"destroy qa-3 unfinished"}, code: humanrun.CodeUnlogged, class: fault.Unavailable,
		},
		"the end is logged late": {
			reason: "a short outage is no unknown outcome", request: sweep(), tell: times("finished destroy qa-3", 2, errStore),
			journal: []string{"destroy qa-3 win destroy", "destroy qa-4 win destroy"}, states: []string{"qa-3 done", "qa-4 done"}, actions: []string{"destroy qa-3 ok", "destroy qa-4 ok"},
		},
		"the store does not answer in the middle": {
			reason: "who holds what is not known", request: sweep(), tell: func(x *fixture) func(string) error {
				broken := false
				return func(call string) error {
					broken = broken || call == "finished destroy qa-3"
					if broken && call == "pools" {
						return errStore
					}
					return nil
				}
			},
			journal: []string{"destroy qa-3 win destroy"}, states: []string{"qa-3 done"}, actions: []string{"destroy qa-3 ok"}, code: "store", class: fault.Unavailable,
		},
		"nobody reads the output": {
			reason: "a terminal that went away does not end a command half-way", request: sweep(), runner: func(r *humanrun.Runner) { supervised(r); r.Stdout, r.Stderr = gone{}, gone{} },
			journal: []string{"destroy qa-3 win destroy", "destroy qa-4 win destroy"}, states: []string{"qa-3 done", "qa-4 done"}, actions: []string{"destroy qa-3 ok", "destroy qa-4 ok"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newFixture(t)
			if tt.served {
				x.served()
			}
			if tt.world != nil {
				tt.world(x)
			}
			plan := x.plan(tt.request)
			before := x.world()
			for hook, text := range tt.hooks {
				x.write("hook-"+hook, text+"\n")
			}
			if tt.between != nil {
				tt.between(x)
				before = x.world()
			}
			own := x.broker
			r := x.runner()
			if tt.tell != nil {
				r.Broker = &spy{Broker: own, tell: tt.tell(x)}
			}
			if tt.runner != nil {
				tt.runner(&r)
			}
			report, err := humanrun.Apply(t.Context(), r, plan)
			if fault.CodeOf(err) != tt.code || fault.Of(err) != tt.class || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: got %v (%s, %s)\nwant %s, %s, %q", tt.reason, err, fault.Of(err), fault.CodeOf(err), tt.class, tt.code, tt.text)
			}
			for what, d := range map[string]string{
				"journal": cmp.Diff(some(tt.journal), x.journal(false)),
				"states":  cmp.Diff(some(tt.states), states(report)),
				"actions": cmp.Diff(some(tt.actions), slices.DeleteFunc(x.actions(false), func(a string) bool {
					return strings.HasPrefix(a, "destroy qa-3 unfinished") && name == "an action was begun"
				})),
			} {
				if d != "" {
					t.Errorf("%s: %s (-want +got)\n%s", tt.reason, what, d)
				}
			}
			if len(tt.journal) == 0 && !slices.Equal(before, x.world()) {
				t.Errorf("the world was %q and is %q", before, x.world())
			}
			// Whatever happened, the lock was given back.
			if v, err := own.Pool(t.Context(), "win"); err == nil && v.Change != nil && v.Change.Account == "ann" {
				t.Errorf("the pool is still locked: %+v", v.Change)
			}
		})
	}
}

func shortLog(r *humanrun.Runner) { r.LogFor = 300 * time.Millisecond }

// some makes nil an empty list.
func some(list []string) []string { return append([]string{}, list...) }

// gone is a terminal that went away.
type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func (x *fixture) vanish(name string) {
	x.t.Helper()
	if err := os.Remove(x.path("world/" + name)); err != nil {
		x.t.Fatal(err)
	}
}

// Nothing to do is nothing: no lock, no list, no entry.
func TestApplyNothing(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	x.empty()
	plan := x.plan(sweep())
	r := x.runner()
	r.Broker = &spy{Broker: x.broker, tell: func(call string) error { t.Errorf("the broker was called: %s", call); return nil }}
	if report, err := humanrun.Apply(t.Context(), r, plan); err != nil || len(report.Outcomes) != 0 {
		t.Errorf("got %v, %v", report, err)
	}
	if j := x.journal(true); len(j) != 1 {
		t.Errorf("the provider was called for %q", j)
	}
}

// Each command is logged before it runs, with who, where and what; its end holds
// what it wrote. The lists of a run are logged too, before each destroy and after
// the last.
func TestApplyLogs(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	x.write("hook-destroy-qa-3", `echo "pass is $DB_PASSWORD"`+"\n")
	x.edit("./vms.sh destroy", "./vms.sh destroy hunter22")
	plan := x.plan(sweep())
	r := x.runner()
	r.At.Environ = append(r.At.Environ, "DB_PASSWORD=s3cret-words")
	r.At.Hide = []string{"s3cret-words", "hunter22"}
	var order []string
	r.Broker = &spy{Broker: x.broker, tell: func(call string) error {
		if j := x.journal(false); len(j) > 0 && call == "started "+strings.TrimSuffix(j[len(j)-1], " win destroy") {
			t.Errorf("%s came after the command", call)
		}
		if call != "pools" {
			order = append(order, call)
		}
		return nil
	}}
	var out bytes.Buffer
	r.Stdout = &out
	if _, err := humanrun.Apply(t.Context(), r, plan); err != nil {
		t.Fatal(err)
	}
	l := []string{"started list ", "finished list "}
	want := slices.Concat([]string{"begin win"}, l, l, []string{"started destroy qa-3", "finished destroy qa-3"}, l, []string{"started destroy qa-4", "finished destroy qa-4"}, l)
	if d := cmp.Diff(want, order); d != "" {
		t.Errorf("order (-want +got)\n%s", d)
	}
	entries, err := x.memory.Actions.Entries(t.Context(), action.Query{Key: "qa-3", Limit: 10})
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	end := entries[0]
	end.Action, end.Seq, end.Time, end.OK = "", 0, time.Time{}, nil
	if d := cmp.Diff(action.Entry{
		Phase: action.PhaseFinished, Pool: "win", Key: "qa-3", Verb: action.VerbDestroy, User: "ann", Host: "desk-3",
		Command: "./vms.sh destroy ***", Detail: "pass is ***\ndeleting qa-3\n",
	}, end); d != "" {
		t.Errorf("the end (-want +got)\n%s", d)
	}
	if got := out.String(); got != "pass is s3cret-words\ndeleting qa-3\ndeleting qa-4\n" {
		t.Errorf("the person sees %q", got)
	}
}

// A long output is cut for the log, and says so.
func TestApplyLongOutput(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	x.write("hook-destroy-qa-3", "seq 1 100000; exit 9\n")
	plan := x.plan(remove("qa-3"))
	report, err := humanrun.Apply(t.Context(), x.runner(), plan)
	if fault.CodeOf(err) != humanrun.CodeFailed || len(report.Outcomes) != 1 {
		t.Fatalf("%v, %v", report, err)
	}
	d := report.Outcomes[0].Detail
	if len(d) > action.MaxText || !strings.HasPrefix(d, "exit code 9\n1\n2\n") || !strings.Contains(d, "bytes were cut") || !strings.HasSuffix(d, "100000\n") {
		t.Errorf("%d bytes: %.60q…", len(d), d)
	}
}

// A signal reaches the command that runs; how that ends is logged, and nothing
// else is run.
func TestApplySignal(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reason  string
		request humanrun.Request
		hook    string
		text    string
		signal  syscall.Signal
		states  []string
		actions []string
		code    string
	}{
		"it ends": {
			"a command that Ctrl-C ends has failed", sweep(), "destroy-qa-3", "touch running; exec sleep 600", syscall.SIGINT,
			[]string{"qa-3 failed"},
			[]string{"destroy qa-3 failed"},
			humanrun.CodeInterrupted,
		},
		"it finishes": {
			"one that takes care finishes, and the next one does not start", sweep(), "destroy-qa-3", "trap 'touch heard' TERM; touch running; while ! [ -f heard ]; do sleep 0.01; done", syscall.SIGTERM,
			[]string{"qa-3 done"},
			[]string{"destroy qa-3 ok"},
			humanrun.CodeInterrupted,
		},
		"it created": {
			"a create that finishes is looked for, so that its outcome is known", add("qa-5", "qa-6"), "create-qa-5", "trap 'touch heard' INT; touch running; while ! [ -f heard ]; do sleep 0.01; done", syscall.SIGINT,
			[]string{"qa-5 done"},
			[]string{"create qa-5 ok"},
			humanrun.CodeInterrupted,
		},
		"the list": {
			"a list is just ended", sweep(), "list-2", "touch running; exec sleep 600", syscall.SIGHUP, []string{}, []string{}, humanrun.CodeInterrupted,
		},
		"no end": {
			"a signal that does not ask to end is the command's own", remove("qa-3"), "destroy-qa-3", "trap 'touch heard' USR1; touch running; while ! [ -f heard ]; do sleep 0.01; done", syscall.SIGUSR1,
			[]string{"qa-3 done"},
			[]string{"destroy qa-3 ok"},
			"",
		},
		"the last one": {
			"a signal during the last one leaves nothing undone", remove("qa-3"), "destroy-qa-3", "trap 'touch heard' INT; touch running; while ! [ -f heard ]; do sleep 0.01; done", syscall.SIGINT,
			[]string{"qa-3 done"},
			[]string{"destroy qa-3 ok"},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newFixture(t)
			// Otherwise the shell around it is what ends.
			x.edit("./vms.sh destroy", "exec ./vms.sh destroy")
			x.edit("./vms.sh create", "exec ./vms.sh create")
			x.edit("timeout: 10s", "timeout: 1m")
			plan := x.plan(tt.request)
			x.write("hook-"+tt.hook, tt.text+"\n")
			r := x.runner()
			supervised(&r)
			signals := make(chan os.Signal, 2)
			r.Signals = signals
			sent := make(chan error, 1)
			go func() {
				err := x.await("running")
				signals <- syscall.SIGPIPE // of a closed output; it is nobody's
				signals <- tt.signal
				sent <- err
			}()
			report, err := humanrun.Apply(t.Context(), r, plan)
			if fault.CodeOf(err) != tt.code {
				t.Errorf("%s: got %v (%s)", tt.reason, err, fault.CodeOf(err))
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			if name == "it ends" && !strings.HasPrefix(report.Outcomes[0].Detail, "a signal ended it (interrupt)") {
				t.Errorf("%s: %s", tt.reason, report.Outcomes[0].Detail)
			}
			if d := cmp.Diff(tt.states, states(report)); d != "" {
				t.Errorf("%s: states (-want +got)\n%s", tt.reason, d)
			}
			if d := cmp.Diff(tt.actions, x.actions(false)); d != "" {
				t.Errorf("%s: actions (-want +got)\n%s", tt.reason, d)
			}
			if all := x.actions(true); slices.ContainsFunc(all, func(a string) bool { return strings.HasSuffix(a, "unfinished") }) {
				t.Errorf("an action has no end: %q", all)
			}
		})
	}
}

// await waits for a file of the project.
func (x *fixture) await(name string) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(x.path(name)); err == nil {
			return nil
		}
	}
	return errors.New(name + " did not come")
}

// The change shows life while a command takes longer than its time.
func TestApplyHeartbeat(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	plan := x.plan(sweep())
	x.write("hook-destroy-qa-3", "touch running; while ! [ -f go ]; do sleep 0.01; done\n")
	r := x.runner()
	r.Beat = 5 * time.Millisecond
	done := make(chan error, 1)
	go func() {
		_, err := humanrun.Apply(context.WithoutCancel(t.Context()), r, plan)
		done <- err
	}()
	if err := x.await("running"); err != nil {
		t.Fatal(err)
	}
	for range 3 { // two minutes, in steps that a lock without beats does not outlive
		x.memory.Leases.Advance(40 * time.Second)
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			v, err := x.broker.Pool(t.Context(), "win")
			if err == nil && v.Change != nil && v.Change.SecondsLeft.Duration() > 50*time.Second {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the change shows no life: %+v, %v", v.Change, err)
			}
		}
	}
	x.write("go", "")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]string{"destroy qa-3 ok", "destroy qa-4 ok"}, x.actions(false)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// While a key is being destroyed nobody can take it, though it comes into a pool.
func TestApplyBars(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	plan := x.plan(remove("qa-3"))
	r := x.runner()
	var taken error
	asked := false
	r.Broker = &spy{Broker: x.broker, tell: func(call string) error {
		if call == "finished destroy qa-3" {
			asked = true
			if err := x.broker.Prepare(t.Context(), poolOf("elsewhere", "qa-3")); err != nil {
				return err
			}
			_, taken = x.broker.Take(t.Context(), "elsewhere", client.TakeOptions{})
		}
		return nil
	}}
	if _, err := humanrun.Apply(t.Context(), r, plan); err != nil {
		t.Fatal(err)
	}
	if !asked || fault.CodeOf(taken) != "none_free" {
		t.Errorf("taking it: %v", taken)
	}
}

// Two people's changes of one pool cannot both run.
func TestApplyTwoAtOnce(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	plan := x.plan(remove("qa-3"))
	second := x.plan(add("qa-5"))
	x.write("hook-destroy-qa-3", "touch running; while ! [ -f go ]; do sleep 0.01; done\n")
	done := make(chan error, 1)
	go func() {
		_, err := humanrun.Apply(context.WithoutCancel(t.Context()), x.runner(), plan)
		done <- err
	}()
	if err := x.await("running"); err != nil {
		t.Fatal(err)
	}
	if _, err := humanrun.Apply(t.Context(), x.runner(), second); fault.CodeOf(err) != "change" || !strings.Contains(err.Error(), "ann@desk-3 pid 7") {
		t.Errorf("got %v", err)
	}
	x.write("go", "")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]string{"destroy qa-3 win destroy"}, x.journal(false)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// A server that dies in the middle of a sweep stops it before the next command.
func TestServerDies(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reason string
		when   string // the call before which it dies
		states []string
		code   string
	}{
		"between":           {"the next command is not run", "started list ", []string{"qa-3 done"}, humanrun.CodeUnlogged},
		"before the look":   {"the next command is not run", "pools", []string{"qa-3 done"}, ""},
		"before the start":  {"the next command is not run", "started destroy qa-4", []string{"qa-3 done"}, humanrun.CodeUnlogged},
		"while it destroys": {"the outcome is unknown", "finished destroy qa-3", []string{"qa-3 unknown"}, humanrun.CodeUnlogged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newFixture(t).onSQLite()
			plan := x.plan(sweep())
			r := x.runner()
			r.LogFor = time.Second
			destroyed := false
			r.Broker = &spy{Broker: x.broker, tell: func(call string) error {
				destroyed = destroyed || call == "finished destroy qa-3"
				if destroyed && call == tt.when {
					x.desk.Stop()
				}
				return nil
			}}
			report, err := humanrun.Apply(t.Context(), r, plan)
			if fault.Of(err) != fault.Unavailable || fault.CodeOf(err) != tt.code {
				t.Errorf("%s: got %v (%s, %s)", tt.reason, err, fault.Of(err), fault.CodeOf(err))
			}
			if d := cmp.Diff(tt.states, states(report)); d != "" {
				t.Errorf("%s: (-want +got)\n%s", tt.reason, d)
			}
			if d := cmp.Diff([]string{"destroy qa-3 win destroy"}, x.journal(false)); d != "" {
				t.Errorf("%s: (-want +got)\n%s", tt.reason, d)
			}
		})
	}
}

// With a real database an action without an end bars its key for everybody, and is
// refused for by the next change, until somebody resolves it.
func TestUnfinishedBars(t *testing.T) {
	t.Parallel()
	x := newFixture(t).onSQLite()
	plan := x.plan(sweep())
	r := x.runner()
	shortLog(&r)
	r.Broker = &spy{Broker: x.broker, tell: times("finished destroy qa-3", 1000, errStore)(x)}
	report, err := humanrun.Apply(t.Context(), r, plan)
	if fault.CodeOf(err) != humanrun.CodeUnlogged || len(report.Outcomes) != 1 {
		t.Fatalf("%v, %v", report, err)
	}
	x.exist("qa-3") // as if it had not been destroyed after all
	if _, err := x.make(remove("qa-3")); fault.CodeOf(err) != humanrun.CodeOpen || !strings.Contains(err.Error(), report.Outcomes[0].Action) {
		t.Errorf("the next remove: %v", err)
	}
	if plan := x.plan(sweep()); !slices.Equal(plan.Keys, []string{"qa-4"}) {
		t.Errorf("the next sweep: %q", plan.Keys)
	}
	root := x.desk.Open(t, "root", nil)
	defer root.Close()
	if _, err := root.Publish(t.Context(), poolOf("elsewhere", "qa-3"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := x.broker.Take(t.Context(), "elsewhere", client.TakeOptions{}); fault.CodeOf(err) != "none_free" {
		t.Errorf("taking it: %v", err)
	}
	if _, err := x.broker.Append(t.Context(), action.Entry{
		Action: report.Outcomes[0].Action, Phase: action.PhaseResolved, Pool: "win", Key: "qa-3", Verb: action.VerbDestroy, User: "ann", Detail: "it is there",
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.broker.Take(t.Context(), "elsewhere", client.TakeOptions{Wait: 5 * time.Second}); err != nil {
		t.Errorf("taking it after all: %v", err)
	}
}

func poolOf(name string, items ...string) pool.Pool {
	return pool.Pool{Name: name, Items: items, TTL: 10 * time.Minute}
}

// With a team server nothing of the provider crosses the wire besides the log.
func TestNothingOfTheProviderIsSent(t *testing.T) {
	t.Parallel()
	x := newFixture(t).served()
	transport, recorder := brokertest.Recording(nil)
	b := x.desk.Open(t, "ann", transport)
	defer b.Close()
	x.broker = b
	plan := x.plan(sweep())
	if _, err := humanrun.Apply(t.Context(), x.runner(), plan); err != nil {
		t.Fatal(err)
	}
	logged := false
	for _, e := range recorder.All() {
		for _, text := range []string{"vms.sh", "name_prefix", "max_items", "deleting"} {
			has := strings.Contains(e.URI+e.Request.Body+e.Answer.Body, text)
			log := strings.HasPrefix(e.URI, "/api/v1/resources/actions")
			logged = logged || has && log
			if has && !log {
				t.Errorf("%s %s holds %q", e.Method, e.URI, text)
			}
		}
	}
	if !logged {
		t.Error("not even the log has it: the test does not look")
	}
}
