package humanrun_test

import (
	"context"
	"strings"
	"testing"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/humanrun"
)

// slowLog does something before it logs the start of a destroy, as if that took its
// time.
type slowLog struct {
	broker.Broker
	meanwhile func()
}

func (s slowLog) Append(ctx context.Context, e action.Entry) (action.Entry, error) {
	if e.Phase == action.PhaseStarted && e.Verb == action.VerbDestroy {
		s.meanwhile()
	}
	return s.Broker.Append(ctx, e)
}

// While the start of a command is logged, which may take long on a team server, the
// world goes on. What changed until then counts.
func TestNothingRunsOnAnOldLook(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(x *fixture){
		"it became an item": func(x *fixture) { x.edit("items: [qa-1, qa-2]", "items: [qa-1, qa-2, qa-3]") },
		"it lost its verb":  func(x *fixture) { x.edit("allow: [create, destroy]", "allow: [create]") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newFixture(t)
			plan := x.plan(remove("qa-3"))
			r := x.runner()
			r.Broker = slowLog{r.Broker, func() { meanwhile(x) }}
			report, err := humanrun.Apply(t.Context(), r, plan)
			if fault.CodeOf(err) != humanrun.CodeChanged {
				t.Errorf("it ended with %v", err)
			}
			if strings.Contains(strings.Join(x.journal(false), "\n"), "destroy") {
				t.Errorf("it ran: %q", x.journal(false))
			}
			if len(report.Outcomes) != 1 || report.Outcomes[0].State != humanrun.Failed || !strings.Contains(report.Outcomes[0].Detail, "not run: ") {
				t.Errorf("it is reported as %+v", report.Outcomes)
			}
			if open, err := r.Broker.Open(t.Context(), ""); err != nil || len(open) != 0 {
				t.Errorf("without an end: %v %v", open, err)
			}
		})
	}
}

// Two checkouts of one project share a local database. What the other one lists is
// not this one's leftover.
func TestAnotherCheckoutsListCounts(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	db := x.path("state/leases.db")
	open := func(file string) broker.Broker {
		b, err := broker.OpenLocal(t.Context(), broker.Local{Path: db, Account: "ann", File: file, Log: brokertest.Discard()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	x.broker = open(x.path("qasight.yaml"))
	theirs := x.load().Pools[0].Pool
	theirs.Items = append(theirs.Items, "qa-3")
	if err := open("/elsewhere/qasight.yaml").Prepare(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	_, err := x.make(remove("qa-3"))
	if fault.CodeOf(err) != humanrun.CodeInPool || !strings.Contains(err.Error(), "/elsewhere/qasight.yaml") || !strings.Contains(err.Error(), "`qasight pool publish win`") {
		t.Errorf("it was refused with %v", err)
	}
	plan := x.plan(sweep())
	if strings.Join(plan.Keys, " ") != "qa-4" || len(plan.Skipped) != 1 || plan.Skipped[0].Key != "qa-3" {
		t.Errorf("a sweep would take %v and leave %v", plan.Keys, plan.Skipped)
	}
	// The person says that this file is the right one.
	if err := x.broker.Prepare(t.Context(), x.load().Pools[0].Pool); err != nil {
		t.Fatal(err)
	}
	plan = x.plan(remove("qa-3"))
	// And now the other one runs something after the plan was shown.
	if err := open("/elsewhere/qasight.yaml").Prepare(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	_, err = humanrun.Apply(t.Context(), x.runner(), plan)
	if fault.CodeOf(err) != humanrun.CodeChanged || len(x.journal(false)) != 0 {
		t.Errorf("it ended with %v, and ran %q", err, x.journal(false))
	}
}

// What is printed in a list's place is often what a script should not have printed.
func TestAListsErrorHidesSecrets(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-value-that-is-long-enough"
	for name, printed := range map[string]string{
		"after a blank": "token " + secret, "in a name": "tok=" + secret, "too long": secret + strings.Repeat("x", 200),
		"twice": secret + "\n" + secret, "cut by a blank": "=" + secret[:20] + " " + secret[20:],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newFixture(t)
			x.write("hook-list-1", "printf '%b\\n' '"+strings.ReplaceAll(printed, "\n", `\n`)+"'\nexit 0\n")
			at := x.place()
			at.Hide = []string{secret}
			p, err := x.load().Pool("win")
			if err != nil {
				t.Fatal(err)
			}
			_, err = humanrun.List(t.Context(), p, at)
			if fault.CodeOf(err) != humanrun.CodeList || strings.Contains(err.Error(), secret[:8]) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// A list that ends before all of it has printed is no list.
func TestAListWithSomethingInTheBackground(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	x.write("hook-list-1", "(sleep 60; echo qa-9) &\n")
	p, err := x.load().Pool("win")
	if err != nil {
		t.Fatal(err)
	}
	if l, err := humanrun.List(t.Context(), p, x.place()); fault.CodeOf(err) != humanrun.CodeList || !strings.Contains(err.Error(), "background") {
		t.Errorf("it is %v, %v", l, err)
	}
}
