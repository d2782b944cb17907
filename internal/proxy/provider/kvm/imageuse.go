package kvm

import (
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
)

// wantedFor is how long an image that a machine was last made for is no
// leftover: longer than the pauses between two tries of one Proxy.
const wantedFor = 30 * time.Minute

// imageUse says which images calls of this process work with, by their keys.
// A removal and a use exclude each other.
type imageUse struct {
	mu sync.Mutex
	of map[string]*imageState
}

type imageState struct {
	users    int
	removing bool
	last     time.Time
}

// use notes that a machine is being made from the image, until done is called.
func (u *imageUse) use(key string, now time.Time) (done func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.state(key, now)
	if s.removing {
		return nil, fault.New(fault.Transient, "its volume is being removed, since nothing used it: it is uploaded again")
	}
	s.users++
	s.last = now
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		s.users--
	}, nil
}

// wanted reports whether a machine is being made from the image, or was to be a
// moment ago.
func (u *imageUse) wanted(key string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state(key, now).wanted(now)
}

// remove keeps new users off until done is called; ok is false while the image
// is wanted.
func (u *imageUse) remove(key string, now time.Time) (done func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.state(key, now)
	if s.removing || s.wanted(now) {
		return nil, false
	}
	s.removing = true
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		s.removing = false
	}, true
}

// state is the image's, and drops those that say nothing any more. mu is held.
func (u *imageUse) state(key string, now time.Time) *imageState {
	for k, s := range u.of {
		if k != key && !s.removing && !s.wanted(now) {
			delete(u.of, k)
		}
	}
	if u.of == nil {
		u.of = map[string]*imageState{}
	}
	if u.of[key] == nil {
		u.of[key] = &imageState{}
	}
	return u.of[key]
}

func (s *imageState) wanted(now time.Time) bool {
	return s.users > 0 || !s.last.IsZero() && now.Sub(s.last) < wantedFor
}

// uploads reports whether an upload of the image runs, to whatever host.
func (js *jobs) uploads(key string) bool {
	js.mu.Lock()
	defer js.mu.Unlock()
	for k, j := range js.of {
		if k.image == key && !j.failed() {
			return true
		}
	}
	return false
}
