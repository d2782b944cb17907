package api

import (
	"context"
	"crypto/rand"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/token"
)

type beginChangeInput struct {
	Pool           string `path:"pool" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	IdempotencyKey string `header:"Idempotency-Key" minLength:"1" maxLength:"255" pattern:"^[ -~]+$" patternDescription:"printable ASCII" doc:"Makes requests of the account that carry the same one the same request."`
	Body           client.ChangeRequest
}

type changeOutput struct{ Body client.Change }

func (s *server) beginChange(ctx context.Context, in *beginChangeInput) (*changeOutput, error) {
	p := principalOf(ctx)
	// The id opens the change, so it must not be guessable. Whoever sends an
	// Idempotency-Key gets the same one again, and vouches for its randomness.
	id := rand.Text()
	if in.IdempotencyKey != "" {
		id = lease.TicketID(p.Account, "change\x00"+in.Pool+"\x00"+in.IdempotencyKey)[:32]
	}
	ch, now, err := s.opts.Desk.BeginChange(ctx, lease.BeginChange{
		ID: id, Pool: in.Pool, Verb: in.Body.Verb, Keys: in.Body.Keys, Account: p.Account, Holder: in.Body.Holder,
		TTL: time.Duration(in.Body.TTL) * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return ownChange(ctx, &ch, now), nil
}

type renewChangeInput struct {
	Pool string `path:"pool" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	ID   string `path:"id" maxLength:"128" doc:"Id of the change." example:"9f86d081884c7d659a2feaa0c55ad015"`
	Body client.ChangeRenewal
}

func (s *server) renewChange(ctx context.Context, in *renewChangeInput) (*changeOutput, error) {
	ch, now, err := s.opts.Desk.RenewChange(ctx, lease.RenewChange{
		Pool: in.Pool, ID: in.ID, Account: principalOf(ctx).Account, TTL: time.Duration(in.Body.TTL) * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return ownChange(ctx, &ch, now), nil
}

type endChangeInput struct {
	Pool string `path:"pool" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	ID   string `path:"id" maxLength:"128" doc:"Id of the change." example:"9f86d081884c7d659a2feaa0c55ad015"`
}

func (s *server) endChange(ctx context.Context, in *endChangeInput) (*struct{}, error) {
	p := principalOf(ctx)
	_, _, err := s.opts.Desk.EndChange(ctx, lease.EndChange{
		Pool: in.Pool, ID: in.ID, Account: p.Account, Admin: p.Role.Allows(token.Admin),
	})
	return nil, err
}

// ownChange is a change for whoever holds it.
func ownChange(ctx context.Context, ch *lease.Change, now time.Time) *changeOutput {
	out := &changeOutput{changeOnWire(ctx, ch, now)}
	out.Body.ID = ch.ID
	return out
}

// changeOnWire is a change for everybody. Its id would let others of the account
// end it; an admin may in any case.
func changeOnWire(ctx context.Context, ch *lease.Change, now time.Time) client.Change {
	w := client.Change{
		Pool: ch.Pool, Verb: ch.Verb, Keys: ch.Keys, Account: ch.Account, Holder: ch.Holder,
		Began: timeOnWire(ch.Began), SecondsLeft: left(ch.Until, now),
	}
	if principalOf(ctx).Role.Allows(token.Admin) {
		w.ID = ch.ID
	}
	if w.Keys == nil {
		w.Keys = []string{}
	}
	return w
}
