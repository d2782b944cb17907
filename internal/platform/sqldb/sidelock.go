package sqldb

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
)

// sideLock is a fair lock among processes (and among several DBs of one
// process), kept on a file of its own.
//
// A lock of the kernel alone is not fair: who releases it and wants it again at
// once gets it before a sleeping waiter woke. So there are two, on two bytes of
// the file: whoever wants the lock first takes the turnstile, then waits for the
// lock, then lets the turnstile go. A holder that comes back finds the waiter in
// the turnstile and stands behind it.
//
// The kernel cannot be told to give up waiting, so one goroutine waits, and the
// callers wait for it with their contexts. When all callers gave up, the
// goroutine goes on until it has the lock and hands it back at once; the next
// caller joins it. Never more than one such goroutine exists per sideLock.
type sideLock struct {
	path string
	fd   int
	// queue admits one caller at a time; its waiters are served in order.
	queue chan struct{}

	mu      sync.Mutex
	pending *acquisition
	held    bool
	closed  bool // the descriptor is closed by whoever uses it last
	closing chan struct{}
}

// acquisition is one wait for the lock. Its fields are guarded by sideLock.mu
// until done is closed.
type acquisition struct {
	done chan struct{}
	// wanted is whether a caller still waits for it.
	wanted bool
	err    error
}

// The bytes that are locked.
const (
	turnstile = 0
	body      = 1
)

func openSideLock(path string) (*sideLock, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "lock file %s: it cannot be opened for writing: check its owner and mode, and that it is no link: %w", path, err)
	}
	return &sideLock{path: path, fd: fd, queue: make(chan struct{}, 1), closing: make(chan struct{})}, nil
}

// acquire takes the lock. It waits until ctx ends (Timeout) or for at most wait
// (Unavailable). The returned function releases it.
func (s *sideLock) acquire(ctx context.Context, wait time.Duration) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, s.gaveUp(err)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case s.queue <- struct{}{}:
	case <-ctx.Done():
		return nil, s.gaveUp(ctx.Err())
	case <-s.closing:
		return nil, s.gone()
	case <-timer.C:
		return nil, s.stuck(wait)
	}

	a := s.join()
	select {
	case <-a.done:
		err = a.err
	case <-ctx.Done():
		err = s.leave(a, s.gaveUp(ctx.Err()))
	case <-s.closing:
		err = s.leave(a, s.gone())
	case <-timer.C:
		err = s.leave(a, s.stuck(wait))
	}
	if err != nil {
		<-s.queue
		return nil, err
	}
	return func() {
		s.release()
		<-s.queue
	}, nil
}

func (s *sideLock) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop hands a held lock back. The caller holds mu.
func (s *sideLock) drop() {
	s.held = false
	if s.closed {
		_ = unix.Close(s.fd)
		return
	}
	// Unlocking cannot fail on a descriptor that is open and locked.
	_ = s.unlock(body)
}

func (s *sideLock) gaveUp(cause error) error {
	return fault.Errorf(fault.Timeout, "lock file %s: waiting for another writer: %w", s.path, cause)
}

func (s *sideLock) gone() error {
	return fault.Errorf(fault.Unavailable, "lock file %s: the database was closed", s.path)
}

func (s *sideLock) stuck(wait time.Duration) error {
	return fault.Errorf(fault.Unavailable, "lock file %s: another process held it for more than %s: see which one (fuser %s) and end it",
		s.path, wait, s.path)
}

// join returns the acquisition to wait for, a new one when none is under way. The
// caller holds the queue.
func (s *sideLock) join() *acquisition {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &acquisition{done: make(chan struct{}), wanted: true}
	switch {
	case s.closed:
		a.err = s.gone()
		close(a.done)
		return a
	case s.pending != nil:
		s.pending.wanted = true
		return s.pending
	}
	// Mostly nobody else is there and no goroutine is needed.
	if s.try(turnstile) {
		if s.try(body) {
			_ = s.unlock(turnstile)
			s.held = true
			close(a.done)
			return a
		}
		s.pending = a
		go s.wait(a, true)
		return a
	}
	s.pending = a
	go s.wait(a, false)
	return a
}

// wait gets the lock for whoever wants it by then.
func (s *sideLock) wait(a *acquisition, inTurnstile bool) {
	var err error
	if !inTurnstile {
		err = s.setlk(unix.F_OFD_SETLKW, unix.F_WRLCK, turnstile)
	}
	if err == nil {
		err = s.setlk(unix.F_OFD_SETLKW, unix.F_WRLCK, body)
		err = errors.Join(err, s.unlock(turnstile))
	}
	if err != nil {
		err = fault.Errorf(fault.Unavailable, "lock file %s: %w", s.path, err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		_ = unix.Close(s.fd) // ends the lock too
		err = s.gone()
	case err == nil && a.wanted:
		s.held = true
	case err == nil:
		_ = s.unlock(body)
	}
	a.err = err
	s.pending = nil
	close(a.done)
}

// leave gives an acquisition up. When it ended at this very moment, the lock is
// handed back.
func (s *sideLock) leave(a *acquisition, reason error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-a.done:
		if a.err == nil {
			s.drop()
		}
	default:
		a.wanted = false
	}
	return reason
}

// close gives the file up: at once, or when the running call lets go.
func (s *sideLock) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	close(s.closing)
	if s.pending == nil && !s.held {
		_ = unix.Close(s.fd)
	}
}

func (s *sideLock) try(at int64) bool { return s.setlk(unix.F_OFD_SETLK, unix.F_WRLCK, at) == nil }

func (s *sideLock) unlock(at int64) error { return s.setlk(unix.F_OFD_SETLK, unix.F_UNLCK, at) }

// setlk locks or unlocks one byte. Open-file-description locks belong to this
// descriptor, so two DBs of one process exclude each other as well.
func (s *sideLock) setlk(cmd int, kind int16, at int64) error {
	for {
		err := unix.FcntlFlock(uintptr(s.fd), cmd, &unix.Flock_t{Type: kind, Start: at, Len: 1})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
