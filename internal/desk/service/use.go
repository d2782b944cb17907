package service

import (
	"context"
	"time"

	"fleetdesk/internal/core/lease"
)

// Do runs ops as they are, for whoever writes what the desk does not decide: the
// controllers. They share transactions with everything else. Up to Limits.Batch
// ops are one transaction of which nothing is done when err is not nil; more are
// several, and those before the one that failed are done. The results are those
// of [lease.Store]: an op that was refused has its error there.
//
// After a Timeout it is unknown whether they were done; unless one of them may
// not be repeated, they were sent a second time already.
func (s *Service) Do(ctx context.Context, ops ...lease.Op) ([]lease.Result, error) {
	var all []lease.Result
	for len(ops) > 0 {
		n := min(len(ops), s.limits.Batch)
		c := &call{ops: ops[:n:n], lane: ordered, done: make(chan struct{})}
		if n == 1 {
			c.lane = laneOf(ops[0])
		}
		if err := s.run(ctx, c); err != nil {
			return all, err
		}
		all = append(all, c.results...)
		ops = ops[n:]
	}
	return all, nil
}

// one has one op done.
func (s *Service) one(ctx context.Context, op lease.Op) (*lease.Result, error) {
	c, err := s.looked(ctx, op)
	if err != nil {
		return &lease.Result{}, err
	}
	return &c.results[0], c.results[0].Err
}

// maxLooks bounds the transactions in which one request has a large pool looked
// through: each looks at thousands of keys, and lets others go between.
const maxLooks = 64

// looked has one op done, again while its walk through a large pool has not come to
// an end.
func (s *Service) looked(ctx context.Context, op lease.Op) (c *call, err error) {
	for range maxLooks {
		c = newCall(op)
		if err = s.run(ctx, c); err != nil || !c.results[c.main].Looking {
			break
		}
	}
	return c, err
}

func (p Proof) parse() (lease.Proof, error) {
	id, err := lease.ParseID(p.ID)
	return lease.Proof{ID: id, Secret: lease.HashOf(p.Secret.Reveal()), Account: p.Account}, err
}

// Renew extends a lease. Errors: NotFound (lease), Denied (secret, not_owner),
// Conflict (lease_…, fence), Invalid (ttl, reset), and those of the database.
func (s *Service) Renew(ctx context.Context, r RenewRequest) (Lease, error) {
	proof, err := r.parse()
	if err != nil {
		return Lease{}, err
	}
	res, err := s.one(ctx, lease.Renew{Proof: proof, TTL: r.TTL, Fence: r.Fence, Reset: r.Reset})
	if err != nil {
		return Lease{}, err
	}
	return view(res.Key, res.Now), nil
}

// Release gives a key back; twice is harmless. Errors: NotFound (lease), Denied
// (secret, not_owner), Conflict (lease_…), Invalid (outcome, reset, target,
// text), and those of the database.
func (s *Service) Release(ctx context.Context, r ReleaseRequest) (Released, error) {
	proof, err := r.parse()
	if err != nil {
		return Released{}, err
	}
	res, err := s.one(ctx, lease.Release{Proof: proof, Outcome: r.Outcome, Reason: r.Reason, Target: r.Target, Reset: r.Reset})
	if err != nil {
		return Released{}, err
	}
	out := Released{ID: r.ID, Key: proof.ID.Key, Capped: res.Capped}
	out.Disabled = res.Key != nil && res.Key.Disabled != nil
	return out, nil
}

// key has an op on one key done.
func (s *Service) key(ctx context.Context, op lease.Op) (lease.Key, time.Time, error) {
	res, err := s.one(ctx, op)
	if err != nil {
		return lease.Key{}, res.Now, err
	}
	return *res.Key, res.Now, nil
}

// Disable takes a key out of use; its holder keeps it. It returns the key after
// that and the database's time. Errors: NotFound (key), Invalid (text), and those
// of the database.
func (s *Service) Disable(ctx context.Context, op lease.Disable) (lease.Key, time.Time, error) {
	return s.key(ctx, op)
}

// Enable puts a key back into use. Errors: NotFound (key), and those of the
// database.
func (s *Service) Enable(ctx context.Context, op lease.Enable) (lease.Key, time.Time, error) {
	return s.key(ctx, op)
}

// Force ends the lease of a key. Errors: NotFound (key), Conflict (not_held,
// fence), and those of the database.
func (s *Service) Force(ctx context.Context, op lease.Force) (lease.Key, time.Time, error) {
	return s.key(ctx, op)
}

// Publish sets a fixed pool and its keys. Errors: Invalid (pool, name, key,
// items), Conflict (revision, managed), and those of the database.
func (s *Service) Publish(ctx context.Context, op lease.Publish) (lease.Pool, error) {
	res, err := s.one(ctx, op)
	if err != nil {
		return lease.Pool{}, err
	}
	return *res.Pool, nil
}

// change has an op on a change done. With a Conflict (change) it returns the one
// that is under way.
func (s *Service) change(ctx context.Context, op lease.Op) (lease.Change, time.Time, error) {
	res, err := s.one(ctx, op)
	if res.Change == nil {
		return lease.Change{}, res.Now, err
	}
	return *res.Change, res.Now, err
}

// BeginChange takes the change lock of a pool and bars keys. It returns the
// change and the database's time; with Conflict (change) the one that is under
// way. Errors besides: NotFound (pool), Conflict (held), Invalid (ttl, keys,
// name, text), and those of the database.
func (s *Service) BeginChange(ctx context.Context, op lease.BeginChange) (lease.Change, time.Time, error) {
	return s.change(ctx, op)
}

// RenewChange keeps a change alive. Errors: NotFound and Conflict (change),
// Denied (not_owner), Invalid (ttl), and those of the database.
func (s *Service) RenewChange(ctx context.Context, op lease.RenewChange) (lease.Change, time.Time, error) {
	return s.change(ctx, op)
}

// EndChange ends a change. Errors: Conflict (change), Denied (not_owner), and
// those of the database; one that is over already is no error, and then the
// change is zero.
func (s *Service) EndChange(ctx context.Context, op lease.EndChange) (lease.Change, time.Time, error) {
	return s.change(ctx, op)
}
