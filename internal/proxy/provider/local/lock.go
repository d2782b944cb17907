package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
)

// Locks are open-file-description locks: they belong to the open file, not to
// the process, so two callers in one process exclude each other, a child
// inherits its parent's, and F_OFD_GETLK asks who holds one without taking it
// even for a moment (asking with flock would make two askers see each other).

// tryLock takes the lock of f, or reports that another open file holds it.
func tryLock(f *os.File) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// lockHeld reports whether some open file holds the lock of the file at path;
// a file that does not exist is held by nobody.
func lockHeld(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lk); err != nil {
		return false, err
	}
	return lk.Type != unix.F_UNLCK, nil
}

const (
	// lockPoll is the pause between two looks at a lock or a marker.
	lockPoll = 10 * time.Millisecond
	// lockWait bounds waiting for another call on the same thing. Create waits
	// for two locks and for the child, all within provider.StepLimit.
	lockWait = 10 * time.Second
)

// acquire takes the exclusive lock at path, for this process and all others,
// and returns how to give it back. The file exists only while the lock is
// held: the holder unlinks it last, and who then gets the lock of an unlinked
// file sees that the path names another one and begins anew.
func acquire(ctx context.Context, path, what string) (release func(), err error) {
	deadline := time.Now().Add(lockWait)
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		release, err := attempt(path)
		if err != nil || release != nil {
			return release, err
		}
		if time.Now().After(deadline) {
			return nil, fault.Errorf(fault.Transient, "%s: another call has been working on it for %s", what, lockWait)
		}
		select {
		case <-ctx.Done():
			return nil, waitEnded(ctx, what)
		case <-tick.C:
		}
	}
}

// attempt takes the lock at path as acquire does, unless another holds it or
// gives it back all the time: then release is nil.
func attempt(path string) (release func(), err error) {
	const lost = 3 // times that it was given back just now
	for range lost {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fileFault("open the lock", path, err)
		}
		got, err := tryLock(f)
		if err == nil && got && sameFile(f, path) {
			return func() {
				_ = os.Remove(path)
				_ = f.Close()
			}, nil
		}
		_ = f.Close()
		if err != nil {
			return nil, fileFault("lock", path, err)
		}
		if !got {
			break
		}
	}
	return nil, nil
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
