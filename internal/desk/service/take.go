package service

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/httpd"
)

// maxIdempotencyKey bounds an Idempotency-Key, in bytes.
const maxIdempotencyKey = 255

// Take leases a key. It returns within the request's wait and the time of a
// transaction; with no wait it never blocks on other requests.
//
// When ctx ends first, or the server of ctx stops ([httpd.Stopping]), nothing is
// kept: a key that was granted meanwhile goes back within [lease.UnclaimedFor]
// unless the request comes again with its Idempotency-Key, and the place in the
// queue is kept for [lease.PlaceFor] for it. A request that comes again while the
// first still waits here takes its place; the first ends with Conflict and the
// code "idempotency".
//
// Errors: [NoneFree]; Invalid (wait, idempotency_key, and the rules' hooks, ttl,
// constraints, text); NotFound (pool); Conflict (idempotency, lease_… for a
// replay of what has ended); Quota (busy, queue_full); Unavailable (store,
// stopping). A waiter outlives an outage of the database that is
// shorter than its wait. Timeout: whether a key was granted is unknown. With an
// Idempotency-Key that was looked into once already, and sending the request
// again tells; without one the key may be held until its time is over.
func (s *Service) Take(ctx context.Context, r TakeRequest) (Grant, error) {
	if err := s.check(r); err != nil {
		return Grant{}, err
	}
	root, err := s.rootKey(ctx)
	if err != nil {
		return Grant{}, err
	}
	op, secret := takeOp(root, r)
	var c *call
	if r.Wait > 0 {
		c = newCall(op)
		err = s.await(ctx, c, r.Wait)
	} else {
		c, err = s.looked(ctx, op)
	}
	if err != nil {
		return Grant{}, err
	}
	res := &c.results[c.main]
	switch {
	case res.Err != nil:
		return Grant{}, res.Err
	case res.Busy != nil:
		return Grant{}, s.refuse(c, r, res)
	case res.Key == nil || res.Lease == nil:
		return Grant{}, fault.New(fault.Permanent, "service: a take was answered with nothing")
	}
	s.desk.m.granted(c, res)
	g := Grant{Lease: view(res.Key, res.Now), Secret: NewSecret(secret), Replayed: res.Replayed}
	if w := c.wait; w != nil {
		g.Waited = w.sent.Sub(w.began)
	}
	return g, nil
}

// check refuses what no request may be.
func (s *Service) check(r TakeRequest) error {
	if r.Wait < 0 || r.Wait > s.limits.MaxWait {
		return fault.WithCode(fault.Errorf(fault.Invalid, "a wait of %s is not possible: ask for 0 to %s, and ask again",
			r.Wait, s.limits.MaxWait), "wait")
	}
	if len(r.IdempotencyKey) > maxIdempotencyKey {
		return fault.WithCode(fault.Errorf(fault.Invalid, "the Idempotency-Key has %d bytes; at most %d are possible",
			len(r.IdempotencyKey), maxIdempotencyKey), "idempotency_key")
	}
	for i := range len(r.IdempotencyKey) {
		if c := r.IdempotencyKey[i]; c < ' ' || c > '~' {
			return fault.WithCode(fault.New(fault.Invalid, "the Idempotency-Key has a character that is not printable ASCII"), "idempotency_key")
		}
	}
	return lease.ValidName(r.Pool)
}

// takeOp makes the op of a request, and the secret of its lease.
func takeOp(root []byte, r TakeRequest) (lease.Take, string) {
	op := lease.Take{
		Pool: r.Pool, Target: r.Target, Account: r.Account, Holder: r.Holder, Where: r.Where, Match: r.Match, TTL: r.TTL,
		RunsHooks: r.RunsHooks, Wait: r.Wait > 0, Keep: r.IdempotencyKey != "",
	}
	var secret string
	if op.Keep {
		op.Digest = digest(r)
		op.Ticket = lease.TicketID(r.Account, r.IdempotencyKey)
		secret = lease.Secret(root, r.Account, r.IdempotencyKey)
	} else {
		// Nobody's request is the same, and nothing is derived again: 256 random
		// bits for each.
		var b [64]byte
		_, _ = rand.Read(b[:]) // never fails
		op.Ticket = hex.EncodeToString(b[:32])
		secret = base64.RawURLEncoding.EncodeToString(b[32:])
	}
	op.Secret = lease.HashOf(secret)
	return op, secret
}

// digest is a hash of what a request asks for. How long it would wait is not in
// it: who comes again has waited already.
func digest(r TakeRequest) string {
	var b []byte
	add := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	add(r.Pool)
	add(r.Target)
	add(r.Holder)
	b = binary.AppendVarint(b, int64(r.TTL))
	if r.RunsHooks {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	for _, n := range slices.Sorted(maps.Keys(r.Where)) {
		add(n)
		add(r.Where[n])
	}
	for _, m := range r.Match {
		add(m.Attribute)
		add(string(m.Op))
		b = binary.AppendUvarint(b, uint64(len(m.Values)))
		for _, v := range m.Values {
			add(v)
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// refuse is the error of a take that got nothing.
func (s *Service) refuse(c *call, r TakeRequest, res *lease.Result) error {
	if c.full {
		return errFull(s.limits.Waiters)
	}
	e := noneFree(r.Pool, r.Target, res.Busy, res.Now)
	if w := c.wait; w != nil {
		e.Waited = time.Since(w.began)
		if w.seq != 0 && w.take.Keep {
			e.Position = res.Busy.Ahead + 1
		}
	}
	return e
}

// rootKey is the key of secrets. It is read before the first transaction.
func (s *Service) rootKey(ctx context.Context) ([]byte, error) {
	if root := s.root.Load(); root != nil {
		return *root, nil
	}
	c := &call{lane: freeing, done: make(chan struct{})}
	if err := s.run(ctx, c); err != nil {
		return nil, err
	}
	return *s.root.Load(), nil
}

func errLeft(ctx context.Context) error {
	return fault.Errorf(fault.Timeout, "the request ended before its answer: %w", ctx.Err())
}

// run has a call done.
func (s *Service) run(ctx context.Context, c *call) error {
	if ctx.Err() != nil {
		return errLeft(ctx)
	}
	if err := s.desk.submit(c); err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		s.desk.abandon(c, gone)
		return errLeft(ctx)
	}
}

// await has a take done that may wait.
func (s *Service) await(ctx context.Context, c *call, most time.Duration) error {
	if ctx.Err() != nil {
		return errLeft(ctx)
	}
	c.wait = &wait{began: time.Now()}
	if err := s.desk.submit(c); err != nil {
		return err
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	stop, over := httpd.Stopping(ctx), false
	for {
		select {
		case <-c.done:
			return c.err
		case <-ctx.Done():
			s.desk.abandon(c, gone)
			return errLeft(ctx)
		case <-stop:
			s.desk.abandon(c, stopping)
			stop = nil
		case <-timer.C:
			if over {
				s.desk.abandon(c, gone)
				return fault.WithCode(fault.New(fault.Timeout, "the lease database did not answer in time"), "store")
			}
			s.desk.abandon(c, late)
			over = true
			timer.Reset(2 * s.limits.Timeout)
		}
	}
}

// Undelivered tells that a grant did not reach its client: the key goes back
// within [lease.UnclaimedFor] unless the request comes again. It does not block.
// Of a replay nothing is told: the client may have got the grant the first time.
func (s *Service) Undelivered(g Grant) {
	if g.Replayed {
		return
	}
	s.desk.undelivered(lease.Unclaim{ID: lease.ID{Key: g.Key, Fence: g.Fence}, Secret: lease.HashOf(g.Secret.Reveal())})
}
