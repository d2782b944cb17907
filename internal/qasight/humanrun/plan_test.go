package humanrun_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/humanrun"
	"fleetdesk/internal/qasight/pool"
)

func add(names ...string) humanrun.Request {
	return humanrun.Request{Verb: humanrun.Add, Pool: "win", Names: names}
}

func remove(names ...string) humanrun.Request {
	return humanrun.Request{Verb: humanrun.Remove, Pool: "win", Names: names}
}

func sweep() humanrun.Request { return humanrun.Request{Verb: humanrun.Sweep, Pool: "win"} }

// open has an action on the key begin and never end.
func (x *fixture) open(pool, key string) {
	x.t.Helper()
	_, err := x.broker.Append(x.t.Context(), action.Entry{
		Action: "openopenopenopen-" + key, Phase: action.PhaseStarted, Pool: pool, Key: key, Verb: action.VerbDestroy, User: "ann", Host: "desk-3", Command: "./vms.sh destroy",
	})
	if err != nil {
		x.t.Fatal(err)
	}
}

// prepare has the local database take over a pool that is in no file.
func (x *fixture) prepare(name string, items ...string) {
	x.t.Helper()
	if err := x.broker.Prepare(x.t.Context(), pool.Pool{Name: name, Items: items, TTL: 600e9}); err != nil {
		x.t.Fatal(err)
	}
}

// Each refusal breaks one rule, in a world in which the same request is planned
// otherwise; nothing but the list is run for it, and no more lists than that.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const none, once = 0, 1 // lists
	for name, tt := range map[string]struct {
		reason string
		// broken breaks the rule; before it, usual is planned.
		usual   humanrun.Request
		served  bool
		broken  func(x *fixture)
		request *humanrun.Request // when it is what breaks it
		actions string
		lists   int
		code    string
		class   fault.Class
		text    string
	}{
		"switched off": {
			reason: "CI sets the variable: not even the list runs",
			usual:  sweep(), actions: "0", lists: none, code: humanrun.CodeOff, class: fault.Conflict, text: "TESTO_PROVIDER_ACTIONS=0",
		},
		"switched off, add": {
			reason: "for every verb", usual: add("qa-5"), actions: "0", lists: none, code: humanrun.CodeOff, class: fault.Conflict, text: "qasight pool add",
		},
		"switched off, remove": {
			reason: "for every verb", usual: remove("qa-3"), actions: " 0 ", lists: none, code: humanrun.CodeOff, class: fault.Conflict, text: "qasight pool remove",
		},
		"switched off in words": {
			reason: "who writes false means 0", usual: sweep(), actions: "False", lists: none, code: humanrun.CodeOff, class: fault.Conflict,
		},
		"unknown pool": {
			reason: "a slip of the keyboard is a usage error",
			usual:  sweep(), request: &humanrun.Request{Verb: humanrun.Sweep, Pool: "wim"}, lists: none, code: "unknown_pool", class: fault.Invalid, text: "win",
		},
		"no provider": {
			reason: "nothing to do it with", usual: sweep(), request: &humanrun.Request{Verb: humanrun.Sweep, Pool: "other"},
			lists: none, code: humanrun.CodeNoProvider, class: fault.Conflict, text: "allow: [destroy]",
		},
		"create not allowed": {
			reason: "only what is under allow is run", usual: add("qa-5"),
			broken: func(x *fixture) { x.edit("allow: [create, destroy]", "allow: [destroy]") },
			lists:  none, code: humanrun.CodeNotAllowed, class: fault.Conflict, text: "allow: [destroy, create]",
		},
		"destroy not allowed, remove": {
			reason: "only what is under allow is run", usual: remove("qa-3"),
			broken: func(x *fixture) { x.edit("allow: [create, destroy]", "allow: [create]") },
			lists:  none, code: humanrun.CodeNotAllowed, class: fault.Conflict, text: "allow: [create, destroy]",
		},
		"destroy not allowed, sweep": {
			reason: "only what is under allow is run", usual: sweep(),
			broken: func(x *fixture) { x.edit("allow: [create, destroy]", "allow: []") },
			lists:  none, code: humanrun.CodeNotAllowed, class: fault.Conflict, text: "allow: [destroy]",
		},
		"six to add": {
			reason: "at most five", usual: add("qa-5", "qa-6", "qa-7", "qa-8", "qa-9"), request: new(add("qa-5", "qa-6", "qa-7", "qa-8", "qa-9", "qa-a")),
			lists: none, code: humanrun.CodeTooMany, class: fault.Conflict, text: "at most 5",
		},
		"six to remove": {
			reason: "at most five", usual: remove("qa-3", "qa-4"), request: new(remove("qa-3", "qa-4", "qa-5", "qa-6", "qa-7", "qa-8")),
			lists: none, code: humanrun.CodeTooMany, class: fault.Conflict, text: "at most 5",
		},
		"no name": {
			reason: "an empty variable is no key", usual: remove("qa-3"), request: new(remove("")), lists: none, code: humanrun.CodeName, class: fault.Invalid,
		},
		"no names": {
			reason: "and none at all is no sweep", usual: remove("qa-3"), request: new(remove()), lists: none, code: humanrun.CodeNoNames, class: fault.Invalid,
		},
		"bad name": {
			reason: "no name of a key", usual: add("qa-5"), request: new(add("qa-$(reboot)")), lists: none, code: humanrun.CodeName, class: fault.Invalid,
		},
		"long name": {
			reason: "a fixed pool could not have it", usual: add("qa-5"), request: new(add("qa-" + strings.Repeat("x", 126))),
			lists: none, code: humanrun.CodeName, class: fault.Invalid, text: "128",
		},
		"misplaced flag": {
			reason: "behind -- a flag is a name, and no valid one", usual: remove("qa-3"), request: new(remove("qa-3", "--apply")), lists: none, code: humanrun.CodeName, class: fault.Invalid,
		},
		"twice": {
			reason: "a doubled name is a mistake", usual: remove("qa-3"), request: new(remove("qa-3", "qa-4", "qa-3")), lists: none, code: humanrun.CodeTwice, class: fault.Invalid, text: "qa-3",
		},
		"prefix, add": {
			reason: "a machine without it would never be ours again", usual: add("qa-5"), request: new(add("web-5")), lists: none, code: humanrun.CodePrefix, class: fault.Conflict,
		},
		"prefix, remove": {
			reason: "the list shows it, and it is somebody else's", usual: remove("qa-3"),
			broken: func(x *fixture) { x.exist("web-1") }, request: new(remove("web-1")),
			lists: none, code: humanrun.CodePrefix, class: fault.Conflict, text: `"qa-"`,
		},
		"overlap, same": {
			reason: "whose a machine is cannot be told", usual: sweep(),
			broken: func(x *fixture) {
				x.edit("    items: [dev-1]\n", "    items: [dev-1]\n    provider: {list: ./vms.sh list, name_prefix: qa-}\n")
			},
			lists: none, code: humanrun.CodeOverlap, class: fault.Conflict, text: "other",
		},
		"overlap, longer": {
			reason: "in either direction", usual: add("qa-5"),
			broken: func(x *fixture) {
				x.edit("    items: [dev-1]\n", "    items: [dev-1]\n    provider: {list: ./vms.sh list, name_prefix: qa-win-}\n")
			},
			lists: none, code: humanrun.CodeOverlap, class: fault.Conflict, text: "qa-win-",
		},
		"overlap, shorter": {
			reason: "in either direction", usual: remove("qa-3"),
			broken: func(x *fixture) {
				x.edit("    items: [dev-1]\n", "    items: [dev-1]\n    provider: {list: ./vms.sh list, name_prefix: q}\n")
			},
			lists: none, code: humanrun.CodeOverlap, class: fault.Conflict, text: `"q"`,
		},
		"exists": {
			reason: "it is there already", usual: add("qa-5"), broken: func(x *fixture) { x.exist("qa-5") }, lists: once, code: humanrun.CodeExists, class: fault.Conflict, text: "qa-5",
		},
		"item of another pool": {
			reason: "a key that is to be created is in no other pool of the file", usual: add("qa-5"),
			broken: func(x *fixture) { x.edit("[dev-1]", "[dev-1, qa-5]") }, lists: once, code: humanrun.CodeInPool, class: fault.Conflict, text: "other",
		},
		"in a pool of the database": {
			reason: "nor of another checkout of the project", usual: add("qa-5"),
			broken: func(x *fixture) { x.prepare("elsewhere", "qa-5") }, lists: once, code: humanrun.CodeInPool, class: fault.Conflict, text: "elsewhere",
		},
		"vanished and held": {
			reason: "somebody works on what seems to have vanished", usual: humanrun.Request{Verb: humanrun.Add, Pool: "win", Names: []string{"qa-1"}},
			broken: func(x *fixture) { x.prepare("win", "qa-1"); x.hold("win") }, lists: once, code: humanrun.CodeHeld, class: fault.Conflict, text: "nightly",
		},
		"max_items": {
			reason: "items, the list and the new names, each counted once", usual: add("qa-5", "qa-6", "qa-7", "qa-8", "qa-9"),
			broken: func(x *fixture) { x.exist("qa-0") }, lists: once, code: humanrun.CodeMaxItems, class: fault.Conflict, text: "max_items is 9",
		},
		"max_items counts foreign names": {
			reason: "whatever the list shows", usual: add("qa-5", "qa-6", "qa-7", "qa-8", "qa-9"),
			broken: func(x *fixture) { x.exist("web-1") }, lists: once, code: humanrun.CodeMaxItems, class: fault.Conflict,
		},
		"max_items counts items that vanished": {
			reason: "they may come back", usual: add("qa-5", "qa-6", "qa-7", "qa-8", "qa-9"),
			broken: func(x *fixture) { x.edit("[qa-1, qa-2]", "[qa-1, qa-2, qa-x]") }, lists: once, code: humanrun.CodeMaxItems, class: fault.Conflict,
		},
		"empty list": {
			reason: "a broken list may look empty", usual: add("qa-5"), broken: func(x *fixture) { x.empty() }, lists: once, code: humanrun.CodeEmpty, class: fault.Conflict, text: "--list-is-empty",
		},
		"not empty": {
			reason: "who says that it is empty is mistaken about something", usual: add("qa-5"),
			request: &humanrun.Request{Verb: humanrun.Add, Pool: "win", Names: []string{"qa-5"}, ListIsEmpty: true}, lists: once, code: humanrun.CodeNotEmpty, class: fault.Conflict, text: "qa-1",
		},
		"add with an open action": {
			reason: "nobody knows what became of it", usual: add("qa-5"), broken: func(x *fixture) { x.open("win", "qa-5") }, lists: once, code: humanrun.CodeOpen, class: fault.Conflict, text: "--resolve openopenopenopen-qa-5",
		},
		"not listed": {
			reason: "only what exists is destroyed", usual: remove("qa-3"), request: new(remove("qa-3", "qa-5")), lists: once, code: humanrun.CodeNotListed, class: fault.Conflict, text: "qa-5",
		},
		"item": {
			reason: "the person takes it out of items first", usual: remove("qa-3"), request: new(remove("qa-1")), lists: once, code: humanrun.CodeInPool, class: fault.Conflict, text: "qa-1",
		},
		"item of another pool of the file": {
			reason: "every pool is asked", usual: remove("qa-3"), broken: func(x *fixture) { x.edit("[dev-1]", "[dev-1, qa-3]") }, lists: once, code: humanrun.CodeInPool, class: fault.Conflict, text: "other",
		},
		"item of a pool of the database": {
			reason: "of another checkout too", usual: remove("qa-3"), broken: func(x *fixture) { x.prepare("elsewhere", "qa-3") }, lists: once, code: humanrun.CodeInPool, class: fault.Conflict, text: "elsewhere",
		},
		"held": {
			reason: "it left its list while somebody holds it", usual: remove("qa-3"),
			broken: func(x *fixture) { x.prepare("win", "qa-3"); x.hold("win"); x.prepare("win", "qa-1", "qa-2") },
			lists:  once, code: humanrun.CodeHeld, class: fault.Conflict, text: "nightly",
		},
		"held through another pool": {
			reason: "anybody's hold counts", usual: remove("qa-3"),
			broken: func(x *fixture) { x.prepare("elsewhere", "qa-3"); x.hold("elsewhere"); x.prepare("elsewhere") },
			lists:  once, code: humanrun.CodeHeld, class: fault.Conflict, text: "nightly",
		},
		"open action": {
			reason: "nobody knows what became of it", usual: remove("qa-3"), broken: func(x *fixture) { x.open("win", "qa-3") }, lists: once, code: humanrun.CodeOpen, class: fault.Conflict, text: "--resolve",
		},
		"open action of a change that lives": {
			reason: "it may be done in a moment", usual: remove("qa-3"),
			broken: func(x *fixture) {
				x.prepare("win", "qa-1", "qa-2")
				if _, err := x.broker.Begin(x.t.Context(), "win", client.ChangeRequest{Verb: "remove", Keys: []string{"qa-3"}, Holder: "bob@desk-4", TTL: 60}); err != nil {
					x.t.Fatal(err)
				}
				x.open("win", "qa-3")
			},
			lists: once, code: humanrun.CodeOpen, class: fault.Conflict,
			text: "wait first: it may still run; if its program was killed, the lock ends within a minute. Then look at it, and then say so with `qasight pool log --resolve",
		},
		"open action through another pool": {
			reason: "whichever pool it was for", usual: remove("qa-3"), broken: func(x *fixture) { x.open("elsewhere", "qa-3") }, lists: once, code: humanrun.CodeOpen, class: fault.Conflict,
		},
		"never published, sweep": {
			reason: "what is in use there is not known", usual: sweep(), served: true,
			broken: func(x *fixture) { x.edit("  win:", "  won:") }, request: &humanrun.Request{Verb: humanrun.Sweep, Pool: "won"},
			lists: none, code: humanrun.CodeUnpublished, class: fault.Conflict, text: "qasight pool publish won",
		},
		"differs, sweep": {
			reason: "the file dropped qa-2, the server has not", usual: sweep(), served: true,
			broken: func(x *fixture) { x.edit("[qa-1, qa-2]", "[qa-1]") }, lists: none, code: humanrun.CodeDiffers, class: fault.Conflict, text: "qa-2 was published and is not in the file",
		},
		"differs, remove": {
			reason: "for every verb", usual: remove("qa-3"), served: true,
			broken: func(x *fixture) { x.edit("[qa-1, qa-2]", "[qa-1, qa-2, qa-9]") }, lists: none, code: humanrun.CodeDiffers, class: fault.Conflict, text: "qasight pool publish",
		},
		"differs, add": {
			reason: "for every verb, and in a time too", usual: add("qa-5"), served: true,
			broken: func(x *fixture) { x.edit("    provider:", "    lease_ttl: 77s\n    provider:") }, lists: none, code: humanrun.CodeDiffers, class: fault.Conflict, text: "lease_ttl",
		},
		"item of a pool of the server": {
			reason: "every pool that the server knows is asked", usual: remove("qa-3"), served: true,
			broken: func(x *fixture) {
				root := x.desk.Open(x.t, "root", nil)
				defer root.Close()
				if _, err := root.Publish(x.t.Context(), pool.Pool{Name: "theirs", Items: []string{"qa-3"}, TTL: 600e9}, nil); err != nil {
					x.t.Fatal(err)
				}
			},
			lists: once, code: humanrun.CodeInPool, class: fault.Conflict, text: "theirs",
		},
		"list fails": {
			reason: "nothing is planned on a guess", usual: sweep(), broken: func(x *fixture) { x.write("hook-list-2", "exit 3") }, lists: once, code: humanrun.CodeList, class: fault.Unavailable, text: "exit code 3",
		},
		"list is invalid": {
			reason: "nothing is planned on a part", usual: sweep(), broken: func(x *fixture) { x.write("hook-list-2", "echo oh no") }, lists: once, code: humanrun.CodeList, class: fault.Unavailable,
		},
		"the store is away": {
			reason: "who holds what is not known", usual: sweep(), broken: func(x *fixture) { x.memory.Outage(true); x.t.Cleanup(func() { x.memory.Outage(false) }) },
			lists: none, code: "store", class: fault.Unavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newFixture(t)
			if name == "vanished and held" {
				if err := os.Remove(x.path("world/qa-1")); err != nil {
					t.Fatal(err)
				}
			}
			if tt.served {
				x.served()
			}
			plan, err := x.make(tt.usual)
			if err != nil || len(plan.Keys) == 0 {
				t.Fatalf("the usual request is not planned: %q, %v", plan.Keys, err)
			}
			if tt.broken != nil {
				tt.broken(x)
			}
			r := tt.usual
			if tt.request != nil {
				r = *tt.request
			}
			plan, err = humanrun.Make(t.Context(), humanrun.World{File: x.load(), Broker: x.broker, At: x.place(), Actions: tt.actions}, r)
			if fault.CodeOf(err) != tt.code || fault.Of(err) != tt.class || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: got %q, %v (%s, %s)\nwant %s, %s, %q", tt.reason, plan.Keys, err, fault.Of(err), fault.CodeOf(err), tt.class, tt.code, tt.text)
			}
			if len(plan.Keys) > 0 && err == nil {
				t.Errorf("it is planned: %q", plan.Keys)
			}
			if j := x.journal(true); len(j) != 1+tt.lists || len(x.journal(false)) != 0 {
				t.Errorf("the provider was called for %q; want the usual list and %d more", j, tt.lists)
			}
		})
	}
}

// The same rules leave in a sweep what does not qualify, and name it.
func TestSweepSkips(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	x.prepare("elsewhere", "qa-7")
	x.hold("elsewhere")
	x.prepare("elsewhere", "qa-6")
	x.open("win", "qa-5")
	x.edit("[dev-1]", "[dev-1, qa-8]")
	x.exist("qa-5", "qa-6", "qa-7", "qa-8", "web-1")
	plan := x.plan(sweep())
	if d := cmp.Diff([]string{"qa-3", "qa-4"}, plan.Keys); d != "" {
		t.Errorf("keys (-want +got)\n%s", d)
	}
	got := map[string]string{}
	for _, s := range plan.Skipped {
		got[s.Key] = s.Why
		if s.Foreign != (s.Key == "web-1") {
			t.Errorf("%s: foreign is %t", s.Key, s.Foreign)
		}
	}
	for key, why := range map[string]string{"qa-5": "unfinished destroy", "qa-6": "pool elsewhere", "qa-7": "is held by ann (nightly", "qa-8": "item of pool other", "web-1": "name_prefix"} {
		if !strings.Contains(got[key], why) {
			t.Errorf("%s stays since it %q; want %q", key, got[key], why)
		}
	}
	if len(got) != 5 {
		t.Errorf("skipped are %v", got)
	}
}

func TestSweepTakesFive(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	x.exist("qa-9", "qa-8", "qa-10", "qa-5", "qa-B", "qa-a")
	plan := x.plan(sweep())
	if d := cmp.Diff([]string{"qa-10", "qa-3", "qa-4", "qa-5", "qa-8"}, plan.Keys); d != "" {
		t.Errorf("keys (-want +got)\n%s", d)
	}
	if plan.Remaining != 3 {
		t.Errorf("%d remain", plan.Remaining)
	}
}

func TestPlans(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reason  string
		world   func(x *fixture)
		request humanrun.Request
		want    []string
	}{
		"nothing to sweep": {"no leftover is nothing to do", func(x *fixture) { x.edit("[qa-1, qa-2]", "[qa-1, qa-2, qa-3, qa-4]") }, sweep(), nil},
		"empty list":       {"nor is an empty list", func(x *fixture) { x.empty() }, sweep(), nil},
		"foreign only":     {"nor are other people's machines", func(x *fixture) { x.empty(); x.exist("web-1") }, sweep(), nil},
		"add":              {"in the order in which they were named", nil, add("qa-7", "qa-5"), []string{"qa-7", "qa-5"}},
		"add on empty":     {"when a person says so", func(x *fixture) { x.empty() }, humanrun.Request{Verb: humanrun.Add, Pool: "win", Names: []string{"qa-5"}, ListIsEmpty: true}, []string{"qa-5"}},
		"vanished item":    {"an item that vanished is made again", func(x *fixture) { x.edit("[qa-1, qa-2]", "[qa-1, qa-2, qa-5]") }, add("qa-5"), []string{"qa-5"}},
		"max_items":        {"exactly as many as are possible", nil, add("qa-5", "qa-6", "qa-7", "qa-8", "qa-9"), []string{"qa-5", "qa-6", "qa-7", "qa-8", "qa-9"}},
		"remove":           {"in the order in which they were named", nil, remove("qa-4", "qa-3"), []string{"qa-4", "qa-3"}},
		"open elsewhere":   {"another key's action is no obstacle", func(x *fixture) { x.open("win", "qa-9") }, remove("qa-3"), []string{"qa-3"}},
		"file leads":       {"the local database follows the file, which has dropped qa-3", func(x *fixture) { x.prepare("win", "qa-1", "qa-2", "qa-3") }, remove("qa-3"), []string{"qa-3"}},
		"prefixes": {"that only begin alike do not overlap", func(x *fixture) {
			x.edit("    items: [dev-1]\n", "    items: [dev-1]\n    provider: {list: ./vms.sh list, name_prefix: qb-}\n")
		}, sweep(), []string{"qa-3", "qa-4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newFixture(t)
			if tt.world != nil {
				tt.world(x)
			}
			plan := x.plan(tt.request)
			if d := cmp.Diff(tt.want, plan.Keys); d != "" {
				t.Errorf("%s: (-want +got)\n%s", tt.reason, d)
			}
			if got := x.journal(false); len(got) > 0 {
				t.Errorf("planning ran %q", got)
			}
		})
	}
}

// A plan changes nothing, neither in the log nor among the pools.
func TestPlanChangesNothing(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	x.plan(sweep())
	pools, err := x.broker.Pools(t.Context())
	if err != nil || len(pools) != 0 || len(x.actions(true)) != 0 {
		t.Errorf("pools %v, actions %v, %v", pools, x.actions(true), err)
	}
}

// The last guard holds whatever was computed before it.
func TestLastGuard(t *testing.T) {
	t.Parallel()
	provider := func() *config.Provider {
		return &config.Provider{List: "l", Create: "c", Destroy: "d", Allow: []config.Verb{config.Create, config.Destroy}, Prefix: "qa-", MaxItems: 9}
	}
	usual := func() (*humanrun.Plan, *config.Pool) {
		return &humanrun.Plan{Request: sweep(), Keys: []string{"qa-3", "", "web-1", "qa-$(x)"}, Command: "d", Prefix: "qa-"},
			&config.Pool{Pool: pool.Pool{Name: "win", Items: []string{"qa-1"}}, Provider: provider()}
	}
	plan, p := usual()
	if err := humanrun.LastGuard(plan, p, "qa-3", false); err != nil {
		t.Fatalf("the usual key: %v", err)
	}
	for name, tt := range map[string]struct {
		reason string
		broken func(plan *humanrun.Plan, p *config.Pool)
		key    string
		ran    bool
	}{
		"empty":           {reason: "an empty variable computes anybody's name", key: ""},
		"invalid":         {reason: "no name", key: "qa-$(x)"},
		"prefix":          {reason: "not ours", key: "web-1"},
		"no prefix":       {reason: "every name begins with nothing", key: "qa-3", broken: func(plan *humanrun.Plan, p *config.Pool) { plan.Prefix, p.Provider.Prefix = "", "" }},
		"other prefix":    {reason: "the file has another one by now", key: "qa-3", broken: func(_ *humanrun.Plan, p *config.Pool) { p.Provider.Prefix = "q" }},
		"not in the plan": {reason: "nobody saw it", key: "qa-4"},
		"again":           {reason: "once is enough", key: "qa-3", ran: true},
		"not allowed":     {reason: "the file says so", key: "qa-3", broken: func(_ *humanrun.Plan, p *config.Pool) { p.Provider.Allow = []config.Verb{config.Create} }},
		"no command":      {reason: "an empty command succeeds", key: "qa-3", broken: func(plan *humanrun.Plan, p *config.Pool) { plan.Command, p.Provider.Destroy = "", "" }},
		"other command":   {reason: "not what was shown", key: "qa-3", broken: func(_ *humanrun.Plan, p *config.Pool) { p.Provider.Destroy = "rm" }},
		"item":            {reason: "it is in use", key: "qa-3", broken: func(_ *humanrun.Plan, p *config.Pool) { p.Items = []string{"qa-3"} }},
	} {
		plan, p := usual()
		if tt.broken != nil {
			tt.broken(plan, p)
		}
		if err := humanrun.LastGuard(plan, p, tt.key, tt.ran); err == nil {
			t.Errorf("%s passes the last guard: %s", name, tt.reason)
		}
	}
}

func TestItemLines(t *testing.T) {
	t.Parallel()
	names := []string{"qa-3", "1e3", "no", "abc", "win_1.x"}
	text := "project: p\npools:\n  win:\n    items:\n" + strings.Join(humanrun.ItemLines(names), "\n") + "\n"
	f, err := config.Parse("qasight.yaml", t.TempDir(), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(names, f.Pools[0].Items); d != "" {
		t.Errorf("the lines are read as other names (-want +got)\n%s", d)
	}
}
