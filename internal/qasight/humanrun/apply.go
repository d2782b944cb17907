package humanrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/config"
)

// Runner is what a plan is applied with.
type Runner struct {
	// Broker is where the change is made known and logged.
	Broker broker.Broker
	// Load reads the project's file anew.
	Load func() (*config.File, error)
	At   Place
	// Actions is the value of TESTO_PROVIDER_ACTIONS.
	Actions string
	// User and Host are who does it and where, for the log; Holder says it to those
	// who find the pool locked.
	User, Host, Holder string
	// Start starts a command under a supervisor, and is bounded by ctx until it
	// returns.
	Start func(ctx context.Context, c proc.Command) (Command, error)
	// Signals are passed on to the command that runs; one that asks to end also
	// ends the run before the next command. Nil for none.
	Signals <-chan os.Signal
	// Stdout and Stderr get what the commands write, as it comes; that nobody reads
	// them any more does not disturb a command.
	Stdout, Stderr io.Writer
	// Say is told what is about to be done, a line each; nil for nobody.
	Say func(line string)
	// Beat is how often the change shows life, LogFor how long it is tried to log
	// a command's end; 0 for 20 s and 30 s.
	Beat, LogFor time.Duration
}

// Command is a command that was started.
type Command interface {
	// Signal passes a signal on to its process group.
	Signal(s syscall.Signal)
	// Wait returns when it has ended; see proc.Guarded.Wait.
	Wait(ctx context.Context) (proc.Result, error)
}

// Codes of what ends a run (see fault.WithCode). A list that failed has
// [CodeList]; what the broker says keeps its own.
const (
	// CodeChanged: the world is not as it was when the plan was shown. Conflict.
	CodeChanged = "changed"
	// CodeFailed: a command failed. Permanent.
	CodeFailed = "failed"
	// CodeUnknown: a command said that it succeeded, and the list does not show
	// it. Permanent.
	CodeUnknown = "unknown"
	// CodeUnlogged: an entry could not be logged. Unavailable.
	CodeUnlogged = "unlogged"
	// CodeInterrupted: a signal asked to end. Conflict.
	CodeInterrupted = "interrupted"
)

// State is what became of a key.
type State string

// The states.
const (
	// Done: the command succeeded.
	Done State = "done"
	// Failed: the command ended, and not well.
	Failed State = "failed"
	// Unknown: what the command did is not known or not logged; its action has no
	// end, and the key stays barred until a person resolves it.
	Unknown State = "unknown"
)

// Outcome is what became of one key.
type Outcome struct {
	Key string
	// Action is the id in the log.
	Action string
	State  State
	// Detail is what the command wrote, and what else is known, as it was logged.
	Detail string
	Took   time.Duration
}

// Report is what a run did: one outcome for each command that was started, in
// order.
type Report struct{ Outcomes []Outcome }

// The times of a change.
const (
	changeTTL   = 60 * time.Second
	defaultBeat = 20 * time.Second
	defaultLog  = 30 * time.Second
	endTime     = 10 * time.Second
)

// applier is one run of a plan.
type applier struct {
	Runner
	plan   *Plan
	pool   *config.Pool // as the file has it at present
	change *broker.Change
	switchboard
	report  Report
	present []string // what the list must show, sorted
}

// Apply does what the plan says: nothing else, and nothing once the world is
// another one than it was when the plan was made. It takes the pool's change lock
// and bars the keys, looks at everything anew, and then works on one key after the
// other. Before each command the file, the broker and (to destroy) the list are
// looked at again, the lock is renewed, and the command is logged; its end is
// logged before the next one starts.
//
// The first thing that does not go well ends the run, and is the error: the
// broker's own errors, [CodeList], and those of the codes above. The report tells
// what was done until then, also with an error.
//
// A create has succeeded when its command did and the list shows the key after it:
// else its action is left without an end, since there may be a machine that nobody
// sees. A destroy has succeeded when its command did; when the list still shows the
// key, the run ends, and the key can be seen and destroyed again.
func Apply(ctx context.Context, r Runner, plan Plan) (Report, error) {
	a := &applier{Runner: r, plan: &plan}
	if len(plan.Keys) == 0 {
		return Report{}, nil
	}
	// What must be logged is logged, whatever asks to end meanwhile.
	steady := context.WithoutCancel(ctx)
	ending, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := a.listen(r.Signals, cancel)
	defer stop()
	err := a.run(ending, steady)
	if why, ok := errors.AsType[signalled](context.Cause(ending)); ok && err != nil && fault.CodeOf(err) != CodeUnlogged {
		err = fault.WithCode(fault.Errorf(fault.Conflict, "ended by %s: %w", why, err), CodeInterrupted)
	}
	return a.report, err
}

func (a *applier) run(ctx, steady context.Context) error {
	if err := a.still(ctx); err != nil {
		return err
	}
	if err := a.follow(ctx); err != nil {
		return err
	}
	change, err := a.Broker.Begin(ctx, a.plan.Pool, client.ChangeRequest{
		Verb: string(a.plan.Verb), Keys: a.plan.Keys, Holder: a.Holder, TTL: int64(changeTTL / time.Second),
	})
	if err != nil {
		return err
	}
	a.change = change
	beats := a.heartbeat(steady)
	defer func() {
		beats()
		end, cancel := context.WithTimeout(steady, endTime)
		defer cancel()
		// The lock ends by itself in a minute, so a failure is no more than that.
		_ = change.End(end)
	}()
	if err := a.again(ctx, steady); err != nil {
		return err
	}
	a.present = slices.Clone(a.plan.Listed)
	for i, key := range a.plan.Keys {
		if err := a.one(ctx, steady, key, i == len(a.plan.Keys)-1); err != nil {
			return err
		}
	}
	return nil
}

// still looks whether each key is as the plan has it, before the lists of a local
// database follow this file: another checkout's list counts until then.
func (a *applier) still(ctx context.Context) error {
	f, err := a.reload()
	if err != nil {
		return err
	}
	s, err := look(ctx, a.Broker, f, true)
	if err != nil {
		return err
	}
	s.holders = nil // who has the lock is told of those
	for _, key := range a.plan.Keys {
		if err := a.fit(s, f, key, a.plan.Listed); err != nil {
			return changed(fmt.Errorf("%s %w", key, err))
		}
	}
	return nil
}

// fit refuses a key that must not be worked on.
func (a *applier) fit(s *sight, f *config.File, key string, listed []string) error {
	if a.plan.creates() {
		return s.creatable(f, a.plan.Pool, key, listed)
	}
	return s.destroyable(f, a.plan.Prefix, key, listed)
}

// last looks once more after the command's start was logged, which may have taken
// its time: nothing but the command comes after it. When it must not run, that is
// logged as its end.
func (a *applier) last(steady context.Context, act action.Entry) error {
	key := act.Key
	f, err := a.reload()
	if err == nil {
		var s *sight
		if s, err = look(steady, a.Broker, f, false); err == nil {
			if s.open[key].Action == act.Action {
				delete(s.open, key) // its own
			}
			if err = s.published(a.pool); err == nil {
				err = a.fit(s, f, key, a.present)
			}
		}
	}
	if err == nil {
		return nil
	}
	err = changed(fmt.Errorf("%s %w", key, err))
	r := result{why: "not run: " + a.At.hide(err.Error())}
	r.detail = r.why
	if logged := a.finish(steady, act, r); logged != nil {
		return logged
	}
	return err
}

// follow lets a local database follow the file, of which it has to know all pools.
func (a *applier) follow(ctx context.Context) error {
	f, err := a.reload()
	if err != nil {
		return err
	}
	if a.Broker.Place().Server != "" {
		return nil
	}
	for i := range f.Pools {
		if err := a.Broker.Prepare(ctx, f.Pools[i].Pool); err != nil {
			return err
		}
	}
	return nil
}

// again makes the plan anew, and ends the run when it is another one.
func (a *applier) again(ctx, steady context.Context) error {
	f, err := a.reload()
	if err != nil {
		return err
	}
	s, err := look(ctx, a.Broker, f, false)
	if err != nil {
		return err
	}
	if err := s.published(a.pool); err != nil {
		return changed(err)
	}
	listed, err := a.list(ctx, steady)
	if err != nil {
		return err
	}
	now, err := decide(f, a.pool, a.plan.Request, s, listed)
	if err != nil {
		return changed(err)
	}
	if d := a.plan.differences(&now); len(d) > 0 {
		return changed(errors.New(strings.Join(d, "; ")))
	}
	return nil
}

func changed(why error) error {
	return fault.WithCode(fault.Errorf(fault.Conflict, "the world changed since the plan was shown, so the run ends here; look at the plan again: %w", why), CodeChanged)
}

// reload reads the file again and compares it with the plan's.
func (a *applier) reload() (*config.File, error) {
	f, err := a.Load()
	if err != nil {
		return nil, changed(err)
	}
	p, err := static(f, a.Actions, a.plan.Request, a.plan.Keys)
	if err != nil {
		return nil, changed(err)
	}
	now := Plan{
		Command: command(p.Provider, a.plan.allowed()), List: p.Provider.List, Timeout: p.Provider.Timeout,
		Prefix: p.Provider.Prefix, MaxItems: p.Provider.MaxItems, Items: p.Items, project: f.Project, server: f.Server, dir: f.Dir,
		// What the file does not know.
		Request: a.plan.Request, Keys: a.plan.Keys, Listed: a.plan.Listed, Skipped: a.plan.Skipped, Remaining: a.plan.Remaining,
	}
	if d := a.plan.differences(&now); len(d) > 0 {
		return nil, changed(errors.New(strings.Join(d, "; ")))
	}
	a.pool = p
	return f, nil
}

// one works on one key.
func (a *applier) one(ctx, steady context.Context, key string, last bool) error {
	if err := a.before(ctx, steady, key); err != nil {
		return err
	}
	if a.plan.creates() {
		return a.create(ctx, steady, key)
	}
	return a.destroy(ctx, steady, key, last)
}

// before looks at everything once more, directly before a command.
func (a *applier) before(ctx, steady context.Context, key string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("before the %s of %s: %w", a.plan.allowed(), key, context.Cause(ctx))
	}
	f, err := a.reload()
	if err != nil {
		return err
	}
	if !a.plan.creates() {
		if err := a.compare(ctx, steady); err != nil {
			return err
		}
		if f, err = a.reload(); err != nil { // the list may have taken its time
			return err
		}
	}
	s, err := look(ctx, a.Broker, f, false)
	if err != nil {
		return err
	}
	if err := s.published(a.pool); err != nil {
		return changed(err)
	}
	if err := a.fit(s, f, key, a.present); err != nil {
		return changed(fmt.Errorf("%s %w", key, err))
	}
	if err := a.change.Renew(steady); err != nil {
		if fault.CodeOf(err) == "change" {
			return changed(fmt.Errorf("the lock on the pool is lost, somebody else may change it by now: %w", err))
		}
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("before the %s of %s: %w", a.plan.allowed(), key, context.Cause(ctx))
	}
	return nil
}

// compare lists, and ends the run when the list is not what it must be.
func (a *applier) compare(ctx, steady context.Context) error {
	listed, err := a.list(ctx, steady)
	if err != nil {
		return err
	}
	gone, fresh := without(a.present, listed), without(listed, a.present)
	if back := slices.DeleteFunc(slices.Clone(fresh), func(n string) bool { return !a.done(n) }); len(back) > 0 {
		return fault.WithCode(fault.Errorf(fault.Permanent,
			"%s was destroyed, as its command says, and the list still shows it: look whether it goes away (a destroy has to wait until it is gone), and run this again", names(back)), CodeUnknown)
	}
	var d []string
	if len(gone) > 0 {
		d = append(d, "in the list no longer: "+names(gone))
	}
	if len(fresh) > 0 {
		d = append(d, "in the list now: "+names(fresh))
	}
	if len(d) > 0 {
		return changed(errors.New(strings.Join(d, "; ")))
	}
	return nil
}

// done reports whether the key's command ran.
func (a *applier) done(key string) bool {
	return slices.ContainsFunc(a.report.Outcomes, func(o Outcome) bool { return o.Key == key })
}

// destroy destroys one key.
func (a *applier) destroy(ctx, steady context.Context, key string, last bool) error {
	act, err := a.begin(steady, key)
	if err != nil {
		return err
	}
	if err := a.last(steady, act); err != nil {
		return err
	}
	r := a.execute(ctx, steady, key)
	if err := a.finish(steady, act, r); err != nil {
		return err
	}
	if !r.ok {
		return failed(a.plan.allowed(), key, r)
	}
	a.present = slices.DeleteFunc(a.present, func(n string) bool { return n == key })
	if last {
		return a.compare(steady, steady)
	}
	return nil
}

// create creates one key.
func (a *applier) create(ctx, steady context.Context, key string) error {
	act, err := a.begin(steady, key)
	if err != nil {
		return err
	}
	if err := a.last(steady, act); err != nil {
		return err
	}
	r := a.execute(ctx, steady, key)
	if !r.ok {
		if err := a.finish(steady, act, r); err != nil {
			return err
		}
		return failed(a.plan.allowed(), key, r)
	}
	// A list that a signal ended would leave the outcome unknown for nothing: the
	// list has its own time.
	listed, err := a.list(steady, steady)
	if err != nil {
		a.unknown(act, r)
		return fault.WithCode(fmt.Errorf("the create of %s said that it succeeded, but its outcome is unknown; %s: %w", key, lookAt(act.Action), err), fault.CodeOf(err))
	}
	if _, found := slices.BinarySearch(listed, key); !found {
		a.unknown(act, r)
		return fault.WithCode(fault.Errorf(fault.Permanent,
			"the create of %s said that it succeeded, and the list does not show it, so its outcome is unknown (a create has to wait until it is there); %s", key, lookAt(act.Action)), CodeUnknown)
	}
	if err := a.finish(steady, act, r); err != nil {
		return err
	}
	a.present = sortedNames(append(a.present, key))
	gone, fresh := without(a.present, listed), without(listed, a.present)
	if len(gone)+len(fresh) > 0 && !a.done(a.plan.Keys[len(a.plan.Keys)-1]) {
		return changed(fmt.Errorf("the list differs: %s", names(append(gone, fresh...))))
	}
	return nil
}

func lookAt(id string) string {
	return fmt.Sprintf("look at it, and then say so with `qasight pool log --resolve %s --note TEXT`", id)
}

func failed(verb config.Verb, key string, r result) error {
	return fault.WithCode(fault.Errorf(fault.Permanent, "the %s of %s failed, so the run ends here: %s", verb, key, r.why), CodeFailed)
}
