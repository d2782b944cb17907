package sqldb_test

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/sqldb"
)

// sides opens the lock n times, as n processes would.
func sides(t *testing.T, n int) []sqldb.SideLock {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lock")
	var all []sqldb.SideLock
	for range n {
		l, err := sqldb.OpenSideLock(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		all = append(all, l)
	}
	return all
}

func take(t *testing.T, l sqldb.SideLock) (release func()) {
	t.Helper()
	release, err := l.Acquire(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// until spins until something holds that only the kernel shows.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Who releases and wants it again at once stands behind who waited.
func TestSideLockIsFair(t *testing.T) {
	l := sides(t, 3)
	me, other, watcher := l[0], l[1], l[2]
	for range 20 {
		release := take(t, me)
		order := make(chan string, 2)
		released := make(chan struct{})
		go func() {
			r, err := other.Acquire(context.Background(), time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			order <- "other"
			r()
			close(released)
		}()
		until(t, "the other side waits", watcher.Queued)
		release()
		release = take(t, me)
		order <- "me"
		release()
		<-released
		if first := <-order; first != "other" {
			t.Fatalf("first: %s, want the one that waited", first)
		}
	}
}

func TestSideLockGivesUp(t *testing.T) {
	l := sides(t, 2)
	holder, waiter := l[0], l[1]
	release := take(t, holder)

	_, err := waiter.Acquire(t.Context(), time.Millisecond)
	if fault.Of(err) != fault.Unavailable {
		t.Errorf("after its own limit: %v (%s), want Unavailable", err, fault.Of(err))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = waiter.Acquire(ctx, time.Minute)
	if fault.Of(err) != fault.Timeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after its context: %v (%s), want Timeout", err, fault.Of(err))
	}

	// Nobody wants it any more: it must come back although a wait is under way.
	if !waiter.Waiting() {
		t.Fatal("no wait is under way: the test shows nothing")
	}
	release()
	take(t, holder)()
	until(t, "the abandoned wait ends", func() bool { return !waiter.Waiting() })
	take(t, holder)()
	take(t, waiter)()
}

// A caller that comes while an abandoned wait is under way joins it.
func TestSideLockJoins(t *testing.T) {
	l := sides(t, 2)
	holder, waiter := l[0], l[1]
	release := take(t, holder)
	if _, err := waiter.Acquire(t.Context(), time.Millisecond); err == nil {
		t.Fatal("got a lock that another holds")
	}
	got := make(chan error, 1)
	go func() {
		r, err := waiter.Acquire(context.Background(), time.Minute)
		if err == nil {
			r()
		}
		got <- err
	}()
	release()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// Closing while somebody waits, or holds, lets the others go on.
func TestSideLockClose(t *testing.T) {
	l := sides(t, 3)
	holder, waiter, third := l[0], l[1], l[2]
	release := take(t, holder)
	waits := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(context.Background(), time.Minute)
		waits <- err
	}()
	until(t, "it waits", waiter.Waiting)
	waiter.Close()
	if err := <-waits; fault.Of(err) != fault.Unavailable {
		t.Errorf("a wait that Close ended: %v (%s), want Unavailable", err, fault.Of(err))
	}
	if _, err := waiter.Acquire(t.Context(), time.Minute); fault.Of(err) == "" {
		t.Error("a closed lock was acquired")
	}
	holder.Close()
	if _, err := third.Acquire(t.Context(), time.Millisecond); err == nil {
		t.Error("closing ended a lock that was in use")
	}
	release()
	take(t, third)()
}
