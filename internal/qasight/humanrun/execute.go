package humanrun

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/config"
)

// result is how a provider command ended.
type result struct {
	ok     bool
	why    string // not ok: in words
	detail string
	took   time.Duration
}

// guard is the last look before a command, on the final values: whatever was
// computed before, it runs for no other key than one of the plan.
func guard(plan *Plan, p *config.Pool, key string, ran bool) error {
	v := plan.allowed()
	switch {
	case key == "":
		return errors.New("the key is empty")
	case validKey(key) != nil:
		return errors.New("the key is no valid name")
	case plan.Prefix == "" || p.Provider.Prefix != plan.Prefix || !strings.HasPrefix(key, plan.Prefix):
		return errors.New("the key does not have the prefix")
	case !slices.Contains(plan.Keys, key):
		return errors.New("the key is not in the plan")
	case ran:
		return errors.New("the command ran for it already")
	case !p.Provider.Allows(v):
		return fmt.Errorf("%s is not allowed", v)
	case plan.Command == "" || command(p.Provider, v) != plan.Command:
		return errors.New("the command is not the plan's")
	case v == config.Destroy && slices.Contains(p.Items, key):
		return errors.New("the key is an item of the pool")
	}
	return nil
}

// begin logs that the key's command is about to run. After an error it must not.
func (a *applier) begin(steady context.Context, key string) (action.Entry, error) {
	if err := guard(a.plan, a.pool, key, a.done(key)); err != nil {
		return action.Entry{}, fault.WithCode(fault.Errorf(fault.Conflict,
			"the %s of %q was stopped by the last guard before it, nothing was run for it: %w", a.plan.allowed(), key, err), CodeChanged)
	}
	verb := action.VerbDestroy
	if a.plan.creates() {
		verb = action.VerbCreate
	}
	return a.started(steady, verb, key, a.plan.Command)
}

// execute runs the command of a key whose start was logged.
func (a *applier) execute(ctx, steady context.Context, key string) result {
	a.expect()
	if ctx.Err() != nil { // a signal came while it was logged
		a.attach(nil)
		return result{why: "not run: " + context.Cause(ctx).Error(), detail: "not run: " + context.Cause(ctx).Error()}
	}
	a.say("%s %s: %s", a.plan.allowed(), key, a.plan.Command)
	c, err := a.Start(steady, proc.Command{
		Shell: a.plan.Command, Dir: a.At.Dir, Env: a.At.environ(a.plan.Pool, key, string(a.plan.allowed())),
		Timeout: a.plan.Timeout, Stdout: deaf{a.Stdout}, Stderr: deaf{a.Stderr}, Limit: action.MaxText / 2, Hide: a.At.Hide,
	})
	if err != nil {
		a.attach(nil)
		text := a.At.hide(err.Error())
		return result{why: text, detail: text}
	}
	a.attach(c)
	r, err := c.Wait(steady)
	a.attach(nil)
	out := result{ok: err == nil && r.Code == 0, detail: r.Output, took: r.Took}
	switch {
	case err != nil:
		out.why = a.At.hide(err.Error())
	case r.Signal != 0:
		out.why = fmt.Sprintf("a signal ended it (%s)", r.Signal)
	default:
		out.why = exitText(r.Code)
	}
	if !out.ok {
		out.detail = out.why + "\n" + r.Output
	}
	return out
}

// deaf passes on what is written as long as somebody reads it.
type deaf struct{ to io.Writer }

// Write implements [io.Writer].
func (d deaf) Write(p []byte) (int, error) {
	if d.to != nil {
		_, _ = d.to.Write(p) // a terminal that went away must not end a command half-way
	}
	return len(p), nil
}

// list lists, logged.
func (a *applier) list(ctx, steady context.Context) ([]string, error) {
	act, err := a.started(steady, action.VerbList, "", a.plan.List)
	if err != nil {
		return nil, err
	}
	l, text, err := list(ctx, a.pool, a.At)
	detail := text
	if err != nil {
		detail = err.Error() + "\n" + text
	}
	if err := a.logEnd(steady, act, err == nil, detail); err != nil {
		return nil, err
	}
	return l.Names, err
}

// started logs that a command is about to run.
func (a *applier) started(steady context.Context, verb action.Verb, key, text string) (action.Entry, error) {
	e := action.Entry{
		Action: rand.Text(), Phase: action.PhaseStarted, Pool: a.plan.Pool, Key: key, Verb: verb,
		User: a.User, Host: a.Host, Command: action.Cut(a.At.hide(text)),
	}
	if _, err := a.Broker.Append(steady, e); err != nil {
		return action.Entry{}, fault.WithCode(fault.Errorf(fault.Unavailable,
			"the %s of %s could not be logged, so it was not run and nothing further runs (should the log show action %s all the same, resolve it): %w",
			verb, orPool(key, a.plan.Pool), e.Action, err), CodeUnlogged)
	}
	return e, nil
}

// finish logs the end of a key's command and reports it.
func (a *applier) finish(steady context.Context, act action.Entry, r result) error {
	err := a.logEnd(steady, act, r.ok, r.detail)
	if err != nil {
		a.unknown(act, r)
		return err
	}
	state := Done
	if !r.ok {
		state = Failed
	}
	a.outcome(act, state, r)
	return nil
}

// unknown reports a key's command whose action stays without an end.
func (a *applier) unknown(act action.Entry, r result) { a.outcome(act, Unknown, r) }

func (a *applier) outcome(act action.Entry, s State, r result) {
	a.report.Outcomes = append(a.report.Outcomes, Outcome{Key: act.Key, Action: act.Action, State: s, Detail: action.Cut(r.detail), Took: r.took})
}

// logEnd logs how a command ended, and tries it for a while.
func (a *applier) logEnd(steady context.Context, act action.Entry, ok bool, detail string) error {
	act.Phase, act.OK, act.Detail = action.PhaseFinished, &ok, action.Cut(detail)
	limit := a.LogFor
	if limit == 0 {
		limit = defaultLog
	}
	ctx, cancel := context.WithTimeout(steady, limit)
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 4*time.Second) {
		_, err := a.Broker.Append(ctx, act)
		if err == nil {
			return nil
		}
		if !passing(err) || !sleep(ctx, pause) {
			return fault.WithCode(fault.Errorf(fault.Unavailable,
				"how the %s of %s ended could not be logged, so nothing further runs; %s: outcome unknown to everybody else until somebody resolves it (`qasight pool log --resolve %s --note TEXT`): %w",
				act.Verb, orPool(act.Key, act.Pool), endText(ok), act.Action, err), CodeUnlogged)
		}
	}
}

func endText(ok bool) string {
	if ok {
		return "it succeeded"
	}
	return "it failed"
}

func orPool(key, pool string) string {
	if key == "" {
		return "pool " + pool
	}
	return key
}

// passing reports whether an error may go away by itself.
func passing(err error) bool {
	switch fault.Of(err) {
	case fault.Unavailable, fault.Timeout, fault.Transient, fault.Quota:
		return true
	default:
		return false
	}
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// heartbeat keeps the change alive until the function that it returns is called. A
// change that is lost is noticed by the renewal before each command.
func (a *applier) heartbeat(steady context.Context) (stop func()) {
	every := a.Beat
	if every == 0 {
		every = defaultBeat
	}
	ctx, cancel := context.WithCancel(steady)
	var beats sync.WaitGroup
	beats.Go(func() {
		for sleep(ctx, every) {
			_ = a.change.Renew(ctx) // see above
		}
	})
	return func() {
		cancel()
		beats.Wait()
	}
}

func (a *applier) say(format string, args ...any) {
	if a.Say != nil {
		a.Say(fmt.Sprintf(format, args...))
	}
}

// signalled is why a run ends that a signal asked to end.
type signalled struct{ signal syscall.Signal }

// Error implements error.
func (s signalled) Error() string { return s.signal.String() }

// switchboard passes signals on to the command that runs.
type switchboard struct {
	mu      sync.Mutex
	running Command
	// While a command starts, it is to get what came meanwhile.
	starting bool
	early    []syscall.Signal
}

// maxEarly bounds the signals that are kept for a command that starts.
const maxEarly = 16

// expect says that a command starts.
func (b *switchboard) expect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.starting = true
}

// attach makes a command the one that runs; nil for none.
func (b *switchboard) attach(c Command) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = c
	if c != nil {
		for _, s := range b.early {
			c.Signal(s)
		}
	}
	b.starting, b.early = false, nil
}

func (b *switchboard) pass(s syscall.Signal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.running != nil:
		b.running.Signal(s)
	case b.starting && len(b.early) < maxEarly:
		b.early = append(b.early, s)
	}
}

func asksToEnd(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// listen passes signals on until stop is called; the first one that asks to end
// cancels.
func (b *switchboard) listen(signals <-chan os.Signal, cancel context.CancelCauseFunc) (stop func()) {
	over := make(chan struct{})
	var heard sync.WaitGroup
	heard.Go(func() {
		for {
			select {
			case got := <-signals:
				s, ok := got.(syscall.Signal)
				if !ok || s == syscall.SIGPIPE {
					continue
				}
				b.pass(s)
				if asksToEnd(s) {
					cancel(signalled{s})
				}
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		heard.Wait()
	}
}
