package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/pool"
)

// TakeOptions say how a key is taken.
type TakeOptions struct {
	// Holder says to people who uses it.
	Holder string
	// TTL is the lease's time; 0 for the pool's own.
	TTL time.Duration
	// Wait is how long to wait for a key, over all tries: 0 never blocks, and a
	// negative one waits until ctx ends.
	Wait time.Duration
	// Waiting, when not nil, runs in a goroutine of its own while a key is waited
	// for, to tell the person; it returns when its ctx ends.
	Waiting func(ctx context.Context)
}

// moreTries is how many more keys are tried than the pool has.
const moreTries = 3

// Acquire takes a key and makes it fit for use: one that needs a reset is reset,
// and then it is checked. A key that fails its check is taken out of use in the
// account's name, one whose reset fails is given back as such, and another is
// taken.
//
// Errors: those of broker.Leaser (Quota with the code none_free when no key came
// free in time); Permanent with the code [CodeChecks] when trying on is of no use;
// Invalid with the code [CodeHook] when a hook cannot be started, and then the key
// was given back unharmed; ctx's cause when it ended.
func (r *Runner) Acquire(ctx context.Context, o TakeOptions) (*Session, error) {
	if err := r.Broker.Prepare(ctx, r.Pool); err != nil {
		return nil, cause(ctx, err)
	}
	began := time.Now()
	var failed []Failure
	for try := 1; ; try++ {
		wait := o.Wait
		if wait > 0 {
			wait = max(0, wait-time.Since(began))
		}
		l, err := r.take(ctx, o, wait)
		if err != nil {
			return nil, withFailures(cause(ctx, err), failed)
		}
		s := r.keep(ctx, l)
		if r.foreign(l.Key()) {
			_ = s.giveBack(ctx, nil) // what fails is told, and ends by its time
			s.end()
			if try > len(r.Pool.Items)+moreTries {
				return nil, foreignError(r.Pool.Name)
			}
			if err := r.Broker.Prepare(ctx, r.Pool); err != nil {
				return nil, cause(ctx, err)
			}
			continue
		}
		f, capped, err := s.prepare(ctx)
		switch {
		case isLost(err):
			s.end()
			r.say("%v: taking another key", err)
		case err != nil:
			s.end()
			return nil, err
		case f == nil:
			s.Failed = failed
			return s, nil
		default:
			s.end()
			failed = append(failed, *f)
		}
		all := len(failed) > 0 && r.allOut(ctx)
		if capped || all || try >= len(r.Pool.Items)+moreTries {
			return nil, checksError(&ChecksError{r.Pool.Name, failed, all && !capped})
		}
	}
}

// foreign reports whether a key is none of the file's. Checkouts of one project
// share a local database, and a key that another one lists is not this one's to run
// its hooks on. With a team server the list is what was published.
func (r *Runner) foreign(key string) bool {
	return r.Broker.Place().Server == "" && !slices.Contains(r.Pool.Items, key)
}

func foreignError(pool string) error {
	return fault.WithCode(fault.Errorf(fault.Conflict,
		"another checkout of this project uses pool %s with another list at the same time: run them one after the other, or give the projects names of their own", pool), "list")
}

// cause is why ctx ended, if it did, and else err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// TriedError says besides why there is no key that others were tried.
type TriedError struct {
	Failed []Failure
	err    error
}

// Error names them after the error itself.
func (e *TriedError) Error() string {
	var b strings.Builder
	b.WriteString(e.err.Error())
	for _, f := range e.Failed {
		b.WriteString("\n  tried before: " + f.String())
	}
	return b.String()
}

// Unwrap is the error itself.
func (e *TriedError) Unwrap() error { return e.err }

func withFailures(err error, failed []Failure) error {
	if len(failed) == 0 {
		return err
	}
	return &TriedError{failed, err}
}

func (r *Runner) take(ctx context.Context, o TakeOptions, wait time.Duration) (*broker.Lease, error) {
	if o.Waiting != nil && wait != 0 {
		waiting, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			o.Waiting(waiting)
		}()
		defer func() {
			stop()
			<-done
		}()
	}
	return r.Broker.Take(ctx, r.Pool.Name, client.TakeOptions{
		Holder: o.Holder, TTL: o.TTL, Wait: wait, RunsHooks: r.Pool.Check || r.Pool.Reset,
	})
}

// allOut reports whether every key of the pool is out of use, so that no wait
// would bring one. When that cannot be told, it is not so.
func (r *Runner) allOut(ctx context.Context) bool {
	v, err := r.Broker.Pool(ctx, r.Pool.Name)
	if err != nil {
		return false
	}
	for _, k := range v.Members {
		if k.Disabled == nil {
			return false
		}
	}
	return true
}

// prepare makes the key fit for use. When it is not to be used, it was given back:
// f is why it is unfit, and capped that it was not taken out of use because too
// many are already. An error ends all tries, unless it says that the lease is lost.
func (s *Session) prepare(ctx context.Context) (f *Failure, capped bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, s.giveBack(ctx, context.Cause(ctx))
	}
	r := s.runner
	if s.owed && r.Reset != "" {
		r.say("resetting %s before its use", s.Key())
		f, err := s.reset(ctx)
		switch {
		case err != nil:
			return nil, false, s.giveBack(ctx, err)
		case f != nil:
			done, err := s.release(ctx, client.ReleaseRequest{Reset: client.ResetFailed, Reason: f.Text})
			if err != nil {
				return nil, false, err
			}
			r.say("%s: it stays in need of a reset%s; taking another key", f, outOfUse(done.Disabled))
			return f, false, nil
		}
		if err := s.lease.Renew(ctx, client.RenewRequest{Reset: client.ResetDone}); err != nil {
			return nil, false, s.giveBack(ctx, cause(ctx, s.loss(err)))
		}
		s.owed = false
	}
	if r.Check == "" {
		return nil, false, nil
	}
	f, err = s.hook(ctx, onCheck, r.Check)
	if err != nil {
		return nil, false, s.giveBack(ctx, err)
	}
	if f == nil {
		return nil, false, nil
	}
	done, err := s.release(ctx, client.ReleaseRequest{Outcome: client.OutcomeBroken, Reason: f.Text})
	switch {
	case err != nil:
		return nil, false, err
	case done.Capped:
		r.say("%s: it was not taken out of use, because too many keys of %s are already", f, r.Pool.Name)
	default:
		r.say("%s: it was taken out of use; taking another key", f)
	}
	return f, done.Capped, nil
}

func outOfUse(disabled bool) string {
	if disabled {
		return " and, after three that failed, was taken out of use"
	}
	return ""
}

// loss is the session's own error for one that says that the lease is lost.
func (s *Session) loss(err error) error {
	if !isLost(err) {
		return err
	}
	s.lose(err)
	return s.Lost()
}

// reset runs on_reset while the key shows as resetting.
func (s *Session) reset(ctx context.Context) (*Failure, error) {
	// Without an answer the reset goes on: it is the lease that gives the right to
	// run it, and that is kept besides.
	if err := s.lease.Renew(ctx, client.RenewRequest{Reset: client.ResetBegin}); isLost(err) {
		return nil, s.loss(err)
	}
	return s.hook(ctx, onReset, s.runner.Reset)
}

// giveBack gives a key back that was not used, because of err, which it returns.
// One that needed no reset when it was taken, or was reset since, needs none now.
func (s *Session) giveBack(ctx context.Context, err error) error {
	if s.Lost() != nil {
		return err
	}
	var q client.ReleaseRequest
	if s.runner.Reset != "" && !s.owed {
		q.Reset = client.ResetDone
	}
	if _, failed := s.release(ctx, q); failed != nil {
		s.runner.say("%v", failed)
	}
	return err
}

// hook runs a hook on the key. The failure is nil when it ended with 0. Errors: a
// [HookError], the loss of the lease, ctx's cause.
func (s *Session) hook(ctx context.Context, name, text string) (*Failure, error) {
	r := s.runner
	out := deaf{r.Output}
	result, err := s.Run(ctx, proc.Command{
		Shell: text, Dir: r.Dir, Env: append(r.Env[:len(r.Env):len(r.Env)], "QASIGHT_HOOK="+kind(name)),
		Timeout: r.Timeout, Stdout: out, Stderr: out, Hide: r.Hide,
	}, nil)
	failure := func(what string) (*Failure, error) {
		return &Failure{Key: s.Key(), Hook: name, Text: reason(what, result.Output)}, nil
	}
	switch code := fault.CodeOf(err); {
	case isLost(err):
		return nil, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case code == proc.CodeStart && fault.Of(err) == fault.Invalid:
		return nil, hookError(&HookError{name, r.Pool.Name, r.Where, result.Code, err.Error()})
	case code == proc.CodeTimeout:
		return failure(fmt.Sprintf("%s did not end within %s and was stopped", name, pool.Short(r.Timeout)))
	case err != nil:
		return nil, fmt.Errorf("%s of %s: %w", name, s.Key(), err)
	case result.Signal == 0 && (result.Code == codeNoExec || result.Code == codeNotFound):
		return nil, hookError(&HookError{name, r.Pool.Name, r.Where, result.Code, orNothing(oneLine(result.Output))})
	case result.Code != 0:
		return failure(ending(name, result))
	}
	return nil, nil
}

func orNothing(s string) string {
	if s == "" {
		return "it printed nothing"
	}
	return tail(s, 512)
}

// IsNoneFree reports whether an error says that no key came free in time, and
// returns what the broker told of it.
func IsNoneFree(err error) (*client.Error, bool) {
	e, ok := errors.AsType[*client.Error](err)
	return e, ok && e.Code == "none_free"
}
