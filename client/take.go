package client

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// MaxWait is the longest wait of one request; [Client.Take] makes as many as
// needed.
const MaxWait = time.Minute

// Codes of errors that this package acts on.
const (
	codeNoneFree = "none_free"
	codeAccess   = "access"
	// codeEnded begins the codes that say how a lease ended.
	codeEnded = "lease_"
)

// TakeOptions say what key is wanted. The zero value asks for any free one and
// never blocks.
type TakeOptions struct {
	// Holder says to people who uses the key.
	Holder string
	// Target is the site that the key is used for.
	Target string
	// Wish is what a proxy is asked to be like.
	Wish
	// TTL is the lease's time, in whole seconds (a part of one counts as one); 0
	// for the pool's own.
	TTL time.Duration
	// Wait is how long to wait for a key: 0 never blocks, and a negative one
	// waits until ctx ends.
	Wait time.Duration
	// Constraints are attributes that the key must have.
	Constraints map[string]string
	// RunsHooks says that the caller runs the pool's hooks.
	RunsHooks bool
	// IdempotencyKey makes this the same request as an earlier one with it, also
	// of another process: it gets the same lease, for 10 minutes. "" for a new
	// request.
	IdempotencyKey string
}

// Take leases a key of a pool. While it waits it keeps its place in line, also
// through lost connections and restarts of the server; an answer that was lost
// is asked for again, so no key is taken twice.
//
// Errors: Quota (code none_free, with Holders, Why and UntilFree) when no key
// came free in time; NotFound (code pool); Invalid (codes ttl, wait, hooks,
// target, selector, constraints, text, name); Denied; Unavailable (code store) when the database
// does not answer, which is not the same as none free; and ctx's own.
func (c *Client) Take(ctx context.Context, pool string, o TakeOptions) (*Lease, error) {
	t := taking{
		client: c, op: "take a key of pool " + pool, key: o.IdempotencyKey, wait: o.Wait, began: time.Now(),
		request: LeaseRequest{
			Pool: pool, Holder: o.Holder, Target: o.Target, Wish: o.Wish, TTL: wholeSeconds(o.TTL), Constraints: o.Constraints, RunsHooks: o.RunsHooks,
		},
	}
	t.own = t.key == ""
	if t.own {
		t.key = rand.Text()
	}
	for {
		l, err := t.once(ctx)
		if err == nil {
			return l, nil
		}
		pause, again := t.after(ctx, err)
		if !again || !sleep(ctx, pause) {
			return nil, err
		}
	}
}

// taking is one Take under way.
type taking struct {
	client  *Client
	op      string
	key     string
	own     bool // the key was made here
	wait    time.Duration
	began   time.Time
	request LeaseRequest
	// failed counts failures in a row.
	failed int
	// asked is how long the last request might wait, took how long it did.
	asked, took time.Duration
}

// left is how much of the wait is left; it is never below 0.
func (t *taking) left() time.Duration {
	if t.wait < 0 {
		return MaxWait
	}
	return max(0, t.wait-time.Since(t.began))
}

// once sends the request one time.
func (t *taking) once(ctx context.Context) (*Lease, *Error) {
	t.asked = min(t.left(), MaxWait)
	if end, ok := ctx.Deadline(); ok { // the answer must arrive before that
		t.asked = min(t.asked, max(0, time.Until(end)).Truncate(time.Second))
	}
	t.request.Wait = wholeSeconds(t.asked)
	var (
		g    Grant
		head answerHead
	)
	sent, began := t.client.clock(), time.Now()
	err := t.client.one(ctx, call{
		op: t.op, method: http.MethodPost, parts: []string{"leases"}, header: http.Header{headerIdempotency: {t.key}},
		body: t.request, out: &g, answer: &head, longer: t.asked,
	})
	t.took = time.Since(began)
	if err != nil {
		return nil, err
	}
	l := newLease(t.client, g, Secret(head.header.Get(headerSecret)), sent)
	l.replayed = head.status == http.StatusOK
	return l, nil
}

// after says whether to ask again, and after what pause.
func (t *taking) after(ctx context.Context, err *Error) (pause time.Duration, again bool) {
	if ctx.Err() != nil {
		return 0, false
	}
	left := t.left()
	if t.wait == 0 { // it may fail for now, but must not wait for a key
		if err.Code == codeNoneFree || t.failed >= t.client.retries {
			return 0, false
		}
		t.renew(err)
		pause, again = retryPause(err, t.failed)
		t.failed++
		return pause, again
	}
	switch {
	case left == 0:
		return 0, false
	case err.Code == codeNoneFree:
		t.failed = 0
		// It waited there. When it did not, because ctx ends within the second or
		// for whatever reason, it is not asked in a hot loop.
		pause = max(0, min(time.Second, left)-t.took)
	case t.renew(err) || err.temporary():
		pause = min(firstPause<<min(t.failed, 10), maxPause)
		pause = max(pause-mathrand.N(pause/2+1), err.RetryAfter)
		t.failed++
	default:
		return 0, false
	}
	if pause > left && t.wait > 0 {
		return 0, false // the error tells more than a later one would
	}
	return pause, true
}

// renew makes it a new request when the old one's grant is over: its answer was
// lost for too long, or the key could not be reached and was given back.
func (t *taking) renew(err *Error) bool {
	over := err.Class == Conflict && strings.HasPrefix(err.Code, codeEnded)
	if !t.own || !over && err.Code != codeAccess {
		return false
	}
	t.key = rand.Text()
	return true
}

// one makes a call one time.
func (c *Client) one(ctx context.Context, k call) *Error {
	k.repeatable = false
	err := c.do(ctx, k)
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok { // do returns no other
		e = &Error{Class: Permanent, op: k.op, cause: err}
	}
	return e
}
