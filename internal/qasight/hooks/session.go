package hooks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/pool"
)

const (
	// lostGrace is how long a command has to end once its lease is lost: somebody
	// else may have the key already.
	lostGrace = 2 * time.Second
	// lastWord bounds the release of a lease that could not be renewed in time.
	lastWord = 3 * time.Second

	codeExpired = "lease_expired" // as the broker says it
)

// Session is a key that is held: from the grant until [Session.Return] or
// [Session.Detach], one of which must be called. In between its lease is kept
// alive.
type Session struct {
	// Failed are the keys that were tried before it and not fit.
	Failed []Failure

	runner *Runner
	lease  *broker.Lease
	began  time.Duration // on the clock of proc.Now
	// owed is whether the key needs a reset although nobody used it since.
	owed bool

	stop   context.CancelFunc
	keeper sync.WaitGroup
	lost   chan struct{} // closed when the lease is lost

	mu  sync.Mutex
	why error // why it is lost; set before lost is closed
}

// keep begins to keep a lease alive.
func (r *Runner) keep(ctx context.Context, l *broker.Lease) *Session {
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Session{runner: r, lease: l, began: proc.Now(), owed: l.Info().NeedsReset, stop: stop, lost: make(chan struct{})}
	s.keeper.Go(func() {
		if err := l.KeepAlive(keeping); err != nil {
			s.lose(err)
		}
	})
	s.keeper.Go(func() { s.look(keeping) })
	return s
}

// end ends what keeps the lease alive.
func (s *Session) end() {
	s.stop()
	s.keeper.Wait()
}

// look sees it soon when an admin ends the lease, which a renewal may see much
// later.
func (s *Session) look(ctx context.Context) {
	every := s.runner.Look
	if every == 0 {
		every = DefaultLook
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.lost:
			return
		case <-tick.C:
		}
		if s.ttl()/3 <= every {
			continue // its renewals see it as soon
		}
		info, err := s.runner.Broker.Lease(ctx, s.lease.ID())
		if err != nil || info.State == client.StateHeld || info.State == client.StateResetting {
			continue // only a renewal tells for sure that it is lost
		}
		if err := s.lease.Renew(ctx, client.RenewRequest{}); isLost(err) && ctx.Err() == nil {
			s.lose(err)
		}
	}
}

func (s *Session) ttl() time.Duration { return s.lease.Info().TTL.Duration() }

// isLost reports whether an error says that a lease runs no more.
func isLost(err error) bool { return err != nil && strings.HasPrefix(fault.CodeOf(err), "lease") }

func (s *Session) lose(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why = s.lossOf(err)
		close(s.lost)
	}
}

// lossOf is the error of a lease that is lost for a reason.
func (s *Session) lossOf(err error) error {
	code, why := CodeLost, err.Error()
	if isLost(err) {
		code = fault.CodeOf(err)
	}
	if e, ok := errors.AsType[*client.Error](err); ok && e.Detail != "" {
		why = e.Detail
	}
	return fault.WithCode(fault.Wrap(fault.Conflict, &lossError{
		fmt.Sprintf("lease %s of %s was lost after it was kept for %s: %s", s.lease.ID(), s.lease.Key(), spoken(proc.Now()-s.began), why), err,
	}), code)
}

// lossError says that a lease is lost in better words than its cause does.
type lossError struct {
	text string
	err  error
}

func (e *lossError) Error() string { return e.text }
func (e *lossError) Unwrap() error { return e.err }

// Lost is why the lease is lost: Conflict with a code that begins with "lease";
// nil while it is not.
func (s *Session) Lost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// Key is the key that is held.
func (s *Session) Key() string { return s.lease.Key() }

// Info is the lease as the broker described it last.
func (s *Session) Info() client.LeaseInfo { return s.lease.Info() }

// Left is how long the key may be used unless the lease is renewed.
func (s *Session) Left() time.Duration { return s.lease.Left() }

// Secret renews and releases the lease, for handing it to another process.
func (s *Session) Secret() client.Secret { return s.lease.Secret() }

// Env are the key's variables.
func (s *Session) Env() []string {
	return []string{
		"QASIGHT_KEY=" + s.lease.Key(),
		"QASIGHT_POOL=" + s.lease.Info().Pool,
		"QASIGHT_LEASE=" + s.lease.ID(),
		"QASIGHT_FENCE=" + strconv.FormatInt(s.lease.Fence(), 10),
	}
}

// Run runs a command on the key, with the key's variables added to its
// environment, and returns when it and its whole process group have ended. Each
// signal that comes from signals, which may be nil, is passed on to the group,
// besides a broken pipe of this process. Ctx's end ends the group.
//
// The group is ended before the lease ends, and soon after it was lost. The error
// then is Conflict with a code that begins with "lease", whatever the command
// ended with, and the key is not to be touched any more; also when something of
// the group cannot be ended, and then the key stays held until its lease ends.
// Other errors are those of proc.Guard: when the command cannot be started (code "start") the result's Code
// is 126 or 127. A command that ended by itself is no error.
func (s *Session) Run(ctx context.Context, c proc.Command, signals <-chan os.Signal) (proc.Result, error) {
	if err := s.Lost(); err != nil {
		return proc.Result{Code: codeNoExec}, err
	}
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], s.Env()...)
	// A short lease must leave time for renewals before the end is begun.
	c.Grace = min(proc.DefaultGrace, s.ttl()/4)
	until := s.deadline()
	g, err := s.runner.Guard.Start(ctx, c, until)
	switch {
	case fault.CodeOf(err) == proc.CodeDeadline:
		return proc.Result{Code: codeNoExec}, s.ranOut(ctx)
	case err != nil:
		return proc.Result{Code: startCode(c, err)}, err
	}
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(g, until, signals, over) })
	r, err := g.Wait(ctx)
	close(over)
	watch.Wait()
	switch {
	case s.Lost() != nil:
		return r, s.Lost()
	case r.Ended == proc.EndedDeadline:
		return r, s.ranOut(ctx)
	case fault.CodeOf(err) == proc.CodeStuck:
		// What lives on may still work on the key: it stays held as long as it can.
		s.lose(err)
		return r, s.Lost()
	}
	return r, err
}

// deadline is when the lease ends, on the clock of proc.Now.
func (s *Session) deadline() time.Duration { return proc.Now() + s.lease.Left() }

// watch tells the supervisor of each renewal, of the loss of the lease and of
// signals, until over is closed.
func (s *Session) watch(g *proc.Guarded, until time.Duration, signals <-chan os.Signal, over <-chan struct{}) {
	// A renewal must be told long before the deadline that it moves.
	tick := time.NewTicker(max(100*time.Millisecond, min(time.Second, s.ttl()/20)))
	defer tick.Stop()
	lost := s.lost
	for {
		select {
		case <-over:
			return
		case <-lost:
			lost = nil
			g.Stop()
			g.Extend(proc.Now() + lostGrace)
		case sig, ok := <-signals:
			if !ok {
				signals = nil
			}
			if n, ok := sig.(syscall.Signal); ok && n != syscall.SIGPIPE {
				g.Signal(n)
			}
		case <-tick.C:
			if now := s.deadline(); lost != nil && (now-until).Abs() > 50*time.Millisecond {
				until = now
				g.Extend(until)
			}
		}
	}
}

// ranOut gives a key back whose lease could not be renewed in time, so that what
// used it was ended. Should the broker answer now, nobody has to wait until the
// lease ends; the key was not reset, and shows as such.
func (s *Session) ranOut(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(min(s.lease.Left(), lastWord), 100*time.Millisecond))
	defer cancel()
	const text = "it ran out, since it could not be renewed in time"
	_, err := s.lease.Release(ctx, client.ReleaseRequest{})
	switch {
	case isLost(err):
		s.lose(err)
	case err != nil:
		s.lose(fault.WithCode(fault.Errorf(fault.Conflict, "%s: %w", text, err), codeExpired))
	default:
		s.lose(fault.WithCode(fault.New(fault.Conflict, text), codeExpired))
	}
	return s.Lost()
}

// What a shell says of a command that cannot be started, and of one that is not
// there.
const (
	codeNoExec   = 126
	codeNotFound = 127
)

// startCode is the exit code of a command that could not be started.
func startCode(c proc.Command, err error) int {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return codeNotFound
	case len(c.Args) == 0 || strings.Contains(c.Args[0], "/") || fault.CodeOf(err) != proc.CodeStart:
		return codeNoExec
	}
	path := ""
	for _, v := range c.Env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			path = p
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if info, err := os.Stat(filepath.Join(dir, c.Args[0])); filepath.IsAbs(dir) && err == nil && !info.IsDir() {
			return codeNoExec // it is there, and may not be run
		}
	}
	return codeNotFound
}

// spoken is a time for people.
func spoken(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return pool.Short(d.Round(time.Second))
}
