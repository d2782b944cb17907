package service

import (
	"context"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// PickRequest asks for a key that is used at once and held by nobody.
type PickRequest struct {
	// Account is the name of the authenticated account.
	Account string
	Pool    string
	// Holder and Target are as those of a [TakeRequest].
	Holder, Target string
	// Where are attributes that the key must have, at most 16, and Match what else
	// they must be like.
	Where map[string]string
	Match []lease.Match
}

// Pick is a key that was picked.
type Pick struct {
	// Use names it in a report.
	Use lease.ID
	// Key, UID, ExitIP and Attributes are the key's; Attributes are not to be
	// changed.
	Pool, Key, UID, ExitIP, Target string
	Attributes                     map[string]string
	// Rested is the time until the key may be handed out for the target again, as
	// far as this use tells.
	Rested time.Duration
	// Counted says that the pool counts it as in flight until it is reported.
	Counted bool
}

// ReportRequest tells how a use of a key went.
type ReportRequest struct {
	Account string
	// Key is what was used, and Pool says how long a ban rests.
	Key, Pool string
	// Target is what the outcome is about; [lease.Banned] needs one.
	Target string
	// Outcome is ok, banned, error or, with a Use, "" for one that never was.
	Outcome lease.Outcome
	// Use, when not zero, is the pick or, with Leased, the lease that it is about.
	Use    lease.ID
	Leased bool
	// Replace asks for another key, once the report is written; nil for none.
	Replace *PickRequest
}

// Reported is what a report did.
type Reported struct {
	// Rest is how long the key now rests for the target, whatever the reason, and
	// Strikes how many bans in a row it has there.
	Rest    time.Duration
	Strikes int
	// Replacement is the key that was picked; nil when none was asked for, or for
	// the reason in Without.
	Replacement *Pick
	// Without is why there is no replacement: a [NoneFree], or what no request may
	// be.
	Without error
}

// Next picks a key: it is chosen as a take would, rests from now on, and is held
// by nobody. It never waits. Sent again it picks again.
//
// Errors: [NoneFree]; Invalid (name, constraints, text, target); NotFound
// (pool); Quota (busy); Unavailable (store, stopping). After a Timeout it is
// unknown whether a key was picked; at worst one rests that nobody used.
func (s *Service) Next(ctx context.Context, r PickRequest) (Pick, error) {
	if err := lease.ValidName(r.Pool); err != nil {
		return Pick{}, err
	}
	res, err := s.one(ctx, pickOp(&r))
	if err != nil {
		return Pick{}, err
	}
	return s.picked(&r, res)
}

func pickOp(r *PickRequest) lease.Take {
	return lease.Take{
		Quick: true, Pool: r.Pool, Target: r.Target, Account: r.Account, Holder: r.Holder, Where: r.Where, Match: r.Match,
	}
}

// picked reads the result of a pick that was not refused.
func (s *Service) picked(r *PickRequest, res *lease.Result) (Pick, error) {
	switch {
	case res.Busy != nil:
		none := noneFree(r.Pool, r.Target, res.Busy, res.Now)
		none.Quick = true
		return Pick{}, none
	case res.Key == nil || res.Use == nil:
		return Pick{}, fault.New(fault.Permanent, "service: a pick was answered with nothing")
	}
	s.desk.m.at["picked"].Inc()
	return Pick{
		Use: res.Use.ID, Pool: r.Pool, Key: res.Key.Name, UID: res.Key.UID, ExitIP: res.Key.ExitIP, Target: r.Target,
		Attributes: res.Key.Attributes, Rested: max(0, res.Use.Rested.Sub(res.Now)), Counted: !res.Use.Ends.IsZero(),
	}, nil
}

// Report tells how a use of a key went, and picks another one in its place when
// asked to: in the same transaction, and only when the report was not refused.
//
// Errors: NotFound (key, pool, lease), Denied (not_owner), Invalid (outcome, target,
// text, name), and those of the database. That there is no replacement is none:
// see [Reported.Without].
func (s *Service) Report(ctx context.Context, r ReportRequest) (Reported, error) {
	report := lease.Report{Key: r.Key, Pool: r.Pool, Target: r.Target, Outcome: r.Outcome, Use: r.Use, Leased: r.Leased, Account: r.Account}
	c := newCall(report)
	if r.Replace != nil {
		if err := lease.ValidName(r.Replace.Pool); err != nil {
			return Reported{}, err
		}
		take := pickOp(r.Replace)
		take.IfDone = true
		c.buf[1] = take
		c.ops = c.buf[:2]
	}
	if err := s.run(ctx, c); err != nil {
		return Reported{}, err
	}
	res := &c.results[0]
	if res.Err != nil {
		return Reported{}, res.Err
	}
	var out Reported
	if rest := res.Rest; rest != nil {
		out.Rest, out.Strikes = max(0, rest.Until.Sub(res.Now)), rest.Strikes
	}
	if r.Replace == nil {
		return out, nil
	}
	if c.results[1].Looking {
		p, err := s.Next(ctx, *r.Replace)
		if out.Without = err; err == nil {
			out.Replacement = &p
		}
		return out, nil
	}
	out.Replacement, out.Without = s.replacement(r.Replace, &c.results[1])
	return out, nil
}

// replacement is the pick that came with a report, or why there is none.
func (s *Service) replacement(r *PickRequest, res *lease.Result) (*Pick, error) {
	if res.Err != nil {
		return nil, res.Err
	}
	p, err := s.picked(r, res)
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// Lift ends cooldowns of a key. Errors: NotFound (key), and those of the
// database.
func (s *Service) Lift(ctx context.Context, op lease.Lift) error {
	_, err := s.one(ctx, op)
	return err
}
