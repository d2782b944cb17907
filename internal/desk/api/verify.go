package api

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// keepAnswer is how long an answer about a token is used again, counted from
// before the store was asked. It bounds how long a token works on after it was
// revoked by another process, and how long after its end.
const keepAnswer = time.Second

// hash is what a token is remembered by.
type hash = [sha256.Size]byte

// sighting is a token that was valid when the store was asked about it.
type sighting struct {
	principal token.Principal
	asked     time.Time
	// generation is the authenticator's at that time.
	generation uint64
}

// verifier asks the authenticator about a token at most about once a second,
// however many requests carry it. What it knows is bounded; refusals and
// failures are never kept.
type verifier struct {
	auth    Authenticator
	timeout time.Duration
	// seen holds the valid ones, also when they are too old to be used again.
	seen *recent[hash, sighting]

	mu sync.Mutex
	// asking holds at most one entry a request that is being answered.
	asking map[hash]*question
}

// question is one call of the authenticator that others wait for.
type question struct {
	asked      time.Time
	generation uint64
	done       chan struct{} // closed once the answer stands
	principal  token.Principal
	err        error
}

func newVerifier(auth Authenticator, l Limits) *verifier {
	return &verifier{
		auth: auth, timeout: l.AuthTimeout,
		seen: newRecent[hash, sighting](l.Tokens), asking: map[hash]*question{},
	}
}

// usable reports whether an answer to a question of that time and generation
// may be given now.
func (v *verifier) usable(asked time.Time, generation uint64) bool {
	return time.Since(asked) < keepAnswer && generation == v.auth.Generation()
}

// verify returns the token's principal as of at most keepAnswer ago, and, once
// a change was made through the authenticator, as of after that change. Errors
// are the authenticator's; Timeout when ctx ends before it answers.
func (v *verifier) verify(ctx context.Context, bearer string, h hash, last sighting, known bool) (token.Principal, error) {
	if known && v.usable(last.asked, last.generation) {
		return last.principal, nil
	}
	q, mine := v.join(h)
	if mine {
		// Others may wait for the answer: it must not end with this one's client.
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.timeout)
		defer cancel()
		v.ask(detached, bearer, h, q)
		return q.principal, q.err
	}
	bounded, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	select {
	case <-q.done:
		return q.principal, q.err
	case <-bounded.Done():
		return token.Principal{}, fault.Errorf(fault.Timeout, "verifying a token: %w", bounded.Err())
	}
}

// join returns the question about the token that is being asked, or a new one
// that is the caller's to ask. One that is too old to be used is left to those
// who wait for it: the store may have answered it before this request came.
func (v *verifier) join(h hash) (q *question, mine bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if q, ok := v.asking[h]; ok && v.usable(q.asked, q.generation) {
		return q, false
	}
	// The generation is read before the store is.
	q = &question{asked: time.Now(), generation: v.auth.Generation(), done: make(chan struct{})}
	v.asking[h] = q
	return q, true
}

// ask answers the question and keeps a good answer.
func (v *verifier) ask(ctx context.Context, bearer string, h hash, q *question) {
	q.err = fault.New(fault.Unavailable, "verifying a token: the check panicked") // unless it comes back
	defer func() {
		if q.err == nil {
			v.seen.put(h, sighting{q.principal, q.asked, q.generation})
		}
		v.mu.Lock()
		if v.asking[h] == q { // a later one may have taken the place
			delete(v.asking, h)
		}
		v.mu.Unlock()
		close(q.done)
	}()
	q.principal, q.err = v.auth.Authenticate(ctx, bearer)
}
