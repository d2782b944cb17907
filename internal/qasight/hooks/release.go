package hooks

import (
	"context"
	"fmt"
	"time"

	"fleetdesk/client"
)

const (
	// releaseTime bounds a release, lateTime one after ctx has ended.
	releaseTime = 15 * time.Second
	lateTime    = 5 * time.Second
)

// Use is how the use of a key went.
type Use struct {
	// Outcome is client.OutcomeOK (also "") or client.OutcomeBroken, which takes
	// the key out of use, within bounds. Reason says why.
	Outcome, Reason string
	// Unused is set when nothing ever ran on the key: then it needs no reset.
	Unused bool
}

// Returned is what became of a key that was given back.
type Returned struct {
	// Done is whether it was given back, whatever else went wrong.
	Done bool
	// Reset is how on_reset went; nil when it ran well, or was not to run.
	Reset *Failure
	// Disabled and Capped: see client.Released.
	Disabled, Capped bool
}

// Return resets the key, while it is still held, and gives it back. A broken key is
// not reset: whoever puts it back into use gets it with a reset. Ctx's end ends
// on_reset; then the key is given back in need of one, which the next taker runs.
//
// Errors: Conflict with a code that begins with "lease" when the lease is lost,
// and then nothing of the key was touched any more; a [HookError] when on_reset
// cannot be started, and ctx's cause, with both of which the key was given back in
// need of a reset; those of broker.Lease.Release, after which the lease ends by its
// time. Whatever it returns, the session is over.
func (s *Session) Return(ctx context.Context, u Use) (Returned, error) {
	defer s.end()
	if err := s.Lost(); err != nil {
		return Returned{}, err
	}
	q := client.ReleaseRequest{Outcome: u.Outcome, Reason: Clean(u.Reason)}
	var back Returned
	var ended error
	switch {
	case s.runner.Reset == "" || u.Outcome == client.OutcomeBroken:
	case u.Unused:
		if !s.owed {
			q.Reset = client.ResetDone
		}
	default:
		back.Reset, ended = s.reset(ctx)
		switch {
		case isLost(ended):
			return Returned{}, ended
		case ended != nil: // it is in need of a reset still, and no failure of the key's
		case back.Reset != nil:
			q.Reset, q.Reason = client.ResetFailed, back.Reset.Text
		default:
			q.Reset = client.ResetDone
		}
	}
	done, err := s.release(ctx, q)
	if err != nil {
		return back, err
	}
	back.Done, back.Disabled, back.Capped = true, done.Disabled, done.Capped
	return back, ended
}

// release gives the key back whether ctx has ended or not.
func (s *Session) release(ctx context.Context, q client.ReleaseRequest) (client.Released, error) {
	limit := releaseTime
	if ctx.Err() != nil {
		limit = lateTime
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	done, err := s.lease.Release(ctx, q)
	switch {
	case isLost(err):
		return done, s.loss(err)
	case err != nil:
		return done, fmt.Errorf("%s could not be given back; lease %s ends by itself in %s: %w",
			s.Key(), s.lease.ID(), spoken(s.lease.Left()), err)
	}
	return done, nil
}

// Resume goes on with a lease that another process took, and renews it. Its key
// counts as used. Errors: those of broker.Leaser.
func (r *Runner) Resume(ctx context.Context, id string, secret client.Secret) (*Session, error) {
	l, err := r.Broker.Resume(ctx, id, secret)
	if err != nil {
		return nil, err
	}
	return r.keep(ctx, l), nil
}

// Detach ends the session without giving the key back: its lease runs on, for its
// whole time from now when the broker answers. [Session.Return] may give it back
// still, as long as it runs. Errors: the loss of the lease.
func (s *Session) Detach(ctx context.Context) error {
	err := s.lease.Renew(ctx, client.RenewRequest{})
	s.end()
	if isLost(err) {
		return s.loss(err)
	}
	return s.Lost()
}
