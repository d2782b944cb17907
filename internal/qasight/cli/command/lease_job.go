package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/hooks"
)

// LeaseRunner is what takes keys of a pool of the file and runs its hooks. It tells
// the person what it does on standard error.
func (f *Factory) LeaseRunner(c *config.File, p *config.Pool, b broker.Broker) *hooks.Runner {
	where := c.Path
	if p.At != (config.Position{}) {
		where += ":" + p.At.String()
	}
	return &hooks.Runner{
		Broker: b, Pool: p.Pool, Where: where,
		Check: p.Hooks.Check, Reset: p.Hooks.Reset, Timeout: p.Hooks.Timeout, Dir: c.Dir,
		Env: f.HookEnv(), Hide: f.Secrets(), Guard: f.Guard(),
		Output: f.Streams.Err, Say: func(text string) { f.Sayf("qasight: %s", Plain(text)) },
	}
}

// Job is one use of a key from its grant to its release: what exec does once, and
// each worker of a stage.
type Job struct {
	Runner *hooks.Runner
	Take   hooks.TakeOptions
	// Command runs on the key, with the key's variables added to its environment.
	Command proc.Command
	// Signals are what this process gets. While a key is waited for, the first one
	// that asks to end ends the wait; while the command runs, all are passed on to
	// it; and while the key is given back, the second one ends on_reset.
	Signals <-chan os.Signal
	// Held, when not nil, is told of the key before the command starts.
	Held func(key string)
}

// Finished is how a job ended.
type Finished struct {
	// Key it had; "" when it never got one. Failed are those that were not fit.
	Key    string
	Failed []hooks.Failure
	// Code is the exit code: the command's own, or one of the table.
	Code int
	// Err is why it is not the command's own; nil when it is.
	Err error
}

// Do does the job. Ctx's end ends the wait for a key, and then the error is its
// cause; it ends nothing of what comes after.
func (j Job) Do(ctx context.Context) Finished {
	began := time.Now()
	acquiring, stop := UntilEnding(ctx, j.Signals, 1, nil)
	s, err := j.Runner.Acquire(acquiring, j.Take)
	stop()
	if err != nil {
		return j.failed(ctx, err, began)
	}
	done := Finished{Key: s.Key(), Failed: s.Failed}
	// A signal that came in the moment of the grant counts.
	if e, ok := errors.AsType[Interrupted](context.Cause(acquiring)); ok {
		j.giveBack(ctx, s, &done, true)
		ended := j.failed(ctx, e, began)
		done.Code, done.Err = ended.Code, ended.Err
		return done
	}
	if j.Held != nil {
		j.Held(s.Key())
	}
	r, err := s.Run(context.WithoutCancel(ctx), j.Command, j.Signals)
	unused := fault.CodeOf(err) == proc.CodeStart
	done.Code, done.Err = r.Code, err
	switch {
	case unused && r.Code == ExitNotFound && len(j.Command.Args) > 0 && !strings.Contains(j.Command.Args[0], "/"):
		// The error itself repeats the whole PATH.
		done.Err = fault.WithCode(fault.Errorf(fault.Invalid, "%s is not found in the PATH: install it, or name it by its path", quote(j.Command.Args[0])), proc.CodeStart)
	case unused || err == nil:
	case r.Ended != "":
		done.Code, done.Err = ExitCode(err), fmt.Errorf("the command was stopped, since %w", err)
	default:
		done.Code = ExitCode(err)
	}
	j.giveBack(ctx, s, &done, unused)
	return done
}

func (j Job) failed(ctx context.Context, err error, began time.Time) Finished {
	var tried []hooks.Failure
	if e, ok := errors.AsType[*hooks.ChecksError](err); ok {
		tried = e.Failed
	} else if e, ok := errors.AsType[*hooks.TriedError](err); ok {
		tried = e.Failed
	}
	err = LeaseError(ctx, j.Runner.Broker, err, j.Runner.Pool.Name, time.Since(began))
	return Finished{Failed: tried, Code: ExitCode(err), Err: err}
}

// giveBack gives the key back, and tells what is wrong with that.
func (j Job) giveBack(ctx context.Context, s *hooks.Session, done *Finished, unused bool) {
	returning, stop := UntilEnding(context.WithoutCancel(ctx), j.Signals, 2, func(sig syscall.Signal) {
		j.say("told to end (%s): %s is given back first; a second signal stops its on_reset", sig, s.Key())
	})
	back, err := s.Return(returning, hooks.Use{Unused: unused})
	stop()
	code, told := ReturnedCode(s.Key(), back, err)
	switch {
	case code == ExitLost && done.Err != nil && fault.CodeOf(done.Err) == fault.CodeOf(err): // told already
	case code == ExitLost && done.Code == 0:
		// The use itself was in order, but losing a lease is never a success.
		done.Code, done.Err = code, err
	case told != "":
		j.say("%s", told)
	}
}

func (j Job) say(format string, args ...any) {
	if j.Runner.Say != nil {
		j.Runner.Say(fmt.Sprintf(format, args...))
	}
}

// ReturnedCode is what became of a key that was given back, as an exit code and in
// words for the person: 0 and "" when all is well.
func ReturnedCode(key string, back hooks.Returned, err error) (code int, told string) {
	interrupted, stopped := errors.AsType[Interrupted](err)
	hook, unstarted := errors.AsType[*hooks.HookError](err)
	switch {
	case stopped:
		return interrupted.ExitCode(), fmt.Sprintf("on_reset of %s was stopped: it is run again before the next use", key)
	case unstarted:
		return hook.Code, hook.Error() + ". " + key + " was given back; it is reset before its next use"
	case err != nil:
		return ExitCode(err), err.Error()
	case back.Reset != nil && back.Disabled:
		return ExitLook, back.Reset.String() + ": it stays in need of a reset and, after three that failed, was taken out of use"
	case back.Reset != nil:
		return ExitLook, back.Reset.String() + ": it is reset again before its next use"
	}
	return ExitOK, ""
}

// UntilEnding returns a context that the n-th signal which asks to end cancels, with
// an [Interrupted] as its cause; of an earlier one earlier is told. Stop ends the
// watch.
func UntilEnding(ctx context.Context, signals <-chan os.Signal, n int, earlier func(syscall.Signal)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case s := <-signals:
				sig, ok := s.(syscall.Signal)
				if !ok || !Ending(s) {
					continue
				}
				if n--; n <= 0 {
					cancel(Interrupted{sig})
					return
				}
				earlier(sig)
			case <-over:
				return
			}
		}
	}()
	return ctx, func() {
		close(over)
		<-done
		cancel(nil)
	}
}

// Pooler reads a pool with its keys; see broker.Viewer.
type Pooler interface {
	Pool(ctx context.Context, name string) (broker.View, error)
}

// LeaseError gives an error of a take the exit code and the words that it has for
// the person; waited is how long it took. When nobody holds a key, b is asked why
// none is free, whether ctx has ended or not.
func LeaseError(ctx context.Context, b Pooler, err error, pool string, waited time.Duration) error {
	if e, ok := errors.AsType[Interrupted](err); ok {
		return Exit(e.ExitCode(), fmt.Errorf("%w while it waited for a key of %s: no key is held", e, pool))
	}
	if e, ok := errors.AsType[*hooks.HookError](err); ok {
		return Exit(e.Code, err)
	}
	if fault.CodeOf(err) == hooks.CodeChecks {
		return Exit(ExitChecks, err)
	}
	if e, ok := hooks.IsNoneFree(err); ok {
		var tried []hooks.Failure
		if t, ok := errors.AsType[*hooks.TriedError](err); ok {
			tried = t.Failed
		}
		why := ""
		if len(e.Holders) == 0 && e.UntilFree == 0 {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
			defer cancel()
			if v, err := b.Pool(ctx, pool); err == nil {
				why = stuck(v)
			}
		}
		return Exit(ExitNoneFree, errors.New(noneFree(e, pool, waited, tried, why)))
	}
	return err
}
