package poolcmd_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/pool"
)

// logged opens the project's database as who writes its log.
func (x *changes) logged() broker.Broker {
	x.t.Helper()
	path := filepath.Join(x.dir, "state", "qasight", "shop", "leases.db")
	b := brokertest.OpenLocal(x.t, path, "bob")
	x.t.Cleanup(func() { _ = b.Close() })
	return b
}

func entryOf(n int, verb action.Verb, key string, phase action.Phase) action.Entry {
	e := action.Entry{Action: fmt.Sprintf("action-%010d", n), Phase: phase, Pool: "win", Key: key, Verb: verb, User: "bob", Host: "desk-4"}
	if phase != action.PhaseResolved {
		e.Command = "./vms.sh " + string(verb)
	}
	return e
}

// tell adds an action: its start, and with ok or failed its end.
func tell(t *testing.T, b broker.Broker, n int, verb action.Verb, key, end, detail string) {
	t.Helper()
	if _, err := b.Append(t.Context(), entryOf(n, verb, key, action.PhaseStarted)); err != nil {
		t.Fatal(err)
	}
	if end == "" {
		return
	}
	e := entryOf(n, verb, key, action.PhaseFinished)
	ok := end == "ok"
	e.OK, e.Detail = &ok, detail
	if _, err := b.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

func lines(s, with string) int { return strings.Count(s, with) }

// The log shows the latest actions, a line each, and every action without an end
// however old it is.
func TestLog(t *testing.T) {
	t.Parallel()
	x := newChanges(t)
	x.change(0, words("log"), "No provider command was run.")
	b := x.logged()
	tell(t, b, 1, action.VerbDestroy, "qa-old", "", "")
	for n := 2; n < 62; n++ {
		tell(t, b, n, action.VerbCreate, fmt.Sprint("qa-", n), "ok", "\nmade it\nand more")
	}
	tell(t, b, 62, action.VerbList, "", "failed", "exit code 3")
	tell(t, b, 63, action.VerbDestroy, "qa-7", "failed", "\x1b[2Jlocked "+strings.Repeat("x", 100))

	s := x.change(0, words("log"), "UNFINISHED: the destroy of qa-old since 20", "qasight pool log --resolve action-0000000001 --note TEXT")
	if n := lines(s.out, "\n20"); n != 51 { // the latest 50, and the one without an end
		t.Errorf("%d actions\n%s", n, s.out)
	}
	if strings.Contains(s.out, "\x1b") || strings.Contains(s.out, "and more") || !strings.Contains(s.out, "made it") || strings.Contains(s.out, strings.Repeat("x", 70)) {
		t.Errorf("details are not one plain line\n%s", s.out)
	}
	if first := strings.Index(s.out, "qa-7"); first < 0 || first > strings.Index(s.out, "qa-61") {
		t.Errorf("the latest is not the first\n%s", s.out)
	}
	s = x.change(0, words("log win --limit 2"), "bob@desk-4", "failed", "list")
	if n := lines(s.out, "\n20"); n != 3 {
		t.Errorf("%d actions\n%s", n, s.out)
	}
	s = x.change(0, words("log --key qa-9"), "create")
	if n := lines(s.out, "\n20"); n != 1 || strings.Contains(s.out, "UNFINISHED") {
		t.Errorf("%d actions\n%s", n, s.out)
	}
	x.change(2, words("log wim"), `no pool "wim"`)
	x.change(2, words("log -- -x"), "POOL")
	x.change(2, words("log --limit 1001"), "--limit")

	s = x.change(0, words("log --json --limit 1"))
	var doc struct {
		Actions, Unfinished []struct {
			Action, State, Pool, Key, Verb, User, Host, Command string
			Started                                             time.Time
			Finished                                            *struct {
				OK     *bool
				Detail string
			}
		}
	}
	if err := json.Unmarshal([]byte(s.out), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Actions) != 1 || doc.Actions[0].State != "failed" || doc.Actions[0].Finished == nil || *doc.Actions[0].Finished.OK ||
		len(doc.Unfinished) != 1 || doc.Unfinished[0].Key != "qa-old" || doc.Unfinished[0].State != "unfinished" || doc.Unfinished[0].Command != "./vms.sh destroy" {
		t.Errorf("got %+v", doc)
	}
}

// Ends that came long after their beginnings do not push other actions out.
func TestLogLateEnds(t *testing.T) {
	t.Parallel()
	x := newChanges(t)
	b := x.logged()
	for n := 1; n <= 20; n++ {
		tell(t, b, n, action.VerbDestroy, fmt.Sprint("qa-", n), "", "")
	}
	tell(t, b, 21, action.VerbCreate, "qa-x", "ok", "")
	for n := 1; n <= 20; n++ {
		e := entryOf(n, action.VerbDestroy, fmt.Sprint("qa-", n), action.PhaseResolved)
		e.Detail = "looked"
		if _, err := b.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	s := x.change(0, words("log --limit 2"), "qa-x", "qa-20", "resolved", "bob@desk-4: looked")
	if n := lines(s.out, "\n20"); n != 2 {
		t.Errorf("%d actions\n%s", n, s.out)
	}
}

// A person who looked says what became of an action without an end, once.
func TestResolve(t *testing.T) {
	t.Parallel()
	x := newChanges(t)
	b := x.logged()
	tell(t, b, 1, action.VerbDestroy, "qa-3", "", "")
	tell(t, b, 2, action.VerbDestroy, "qa-4", "", "")
	tell(t, b, 3, action.VerbDestroy, "qa-5", "ok", "")
	tell(t, b, 4, action.VerbList, "", "", "")
	x.change(77, words("remove win qa-3"), "unfinished destroy by bob", "--resolve action-0000000001")
	x.change(77, []string{"log", "--resolve", "action-0000000003", "--note", "gone"}, "has its end already: it is ok")
	x.change(2, []string{"log", "--resolve", "action-0000000009", "--note", "gone"}, "no action action-0000000009")
	x.change(2, []string{"log", "--resolve", "short", "--note", "gone"}, "id")
	x.change(2, []string{"log", "--resolve", "action-0000000001", "--note", "  "}, "--note")

	x.change(0, []string{"log", "--resolve", "action-0000000001", "--note", "it is\nthere", "--found", "failed"}, "Resolved: the destroy of qa-3.")
	x.change(0, words("log --key qa-3"), "resolved (failed)", ": it is")
	x.change(77, []string{"log", "--resolve", "action-0000000001", "--note", "again"}, "resolved")
	x.change(0, words("remove win qa-3"), "destroys 1 key")
	s := x.change(0, []string{"log", "--resolve", "action-0000000002", "--note", "gone", "--found", "ok", "--json"}, `"state": "resolved"`, `"ok": true`)
	if !strings.HasPrefix(s.out, "{") {
		t.Errorf("no document: %s", s.out)
	}
	x.change(0, []string{"log", "--resolve", "action-0000000004", "--note", "it was cut off"}, "the list of pool win")
	if s := x.change(0, words("log")); strings.Contains(s.out, "UNFINISHED") {
		t.Errorf("something is unfinished\n%s", s.out)
	}
}

// As long as the change that an action is part of shows life, it may still run.
func TestResolveRunning(t *testing.T) {
	t.Parallel()
	x := newChanges(t)
	b := x.logged()
	if err := b.Prepare(t.Context(), pool.Pool{Name: "win", Items: []string{"qa-1"}, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	tell(t, b, 1, action.VerbDestroy, "qa-9", "", "")
	change, err := b.Begin(t.Context(), "win", client.ChangeRequest{Verb: "sweep", Keys: []string{"qa-3"}, Holder: "bob@desk-4 pid 7", TTL: 60})
	if err != nil {
		t.Fatal(err)
	}
	tell(t, b, 2, action.VerbDestroy, "qa-3", "", "")
	tell(t, b, 3, action.VerbList, "", "", "")
	for _, id := range []string{"action-0000000002", "action-0000000003"} {
		x.change(77, []string{"log", "--resolve", id, "--note", "gone"}, "may still run", "bob@desk-4 pid 7", "if its program was killed, the lock ends within a minute")
	}
	x.change(0, words("log"), "Wait first: it may still run; if its program was killed, the lock ends within a minute", "destroy of qa-9 since 20",
		"Its outcome is unknown: look at it, then\n  qasight pool log --resolve action-0000000001 --note TEXT")
	x.change(0, []string{"log", "--resolve", "action-0000000001", "--note", "of another change"}, "Resolved")
	if err := change.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"action-0000000002", "action-0000000003"} {
		x.change(0, []string{"log", "--resolve", id, "--note", "gone"}, "Resolved")
	}
}
