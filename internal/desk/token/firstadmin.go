package token

import (
	"context"
	"fmt"

	"fleetdesk/internal/core/fault"
	core "fleetdesk/internal/core/token"
)

// FirstAdmin is the name of the account that EnsureFirstAdmin makes.
const FirstAdmin = "admin"

// Delivery is the place where the first admin token is left for a person: a file,
// a Secret. Errors carry a class and name the place and the remedy.
type Delivery interface {
	// Load returns the token that lies there, and whether one does. Something
	// else in its place is an error, never "none".
	Load(ctx context.Context) (token Secret, found bool, err error)
	// Save leaves the token there. When it returns nil, the token survives a
	// crash. It never replaces anything: if something lies there already, also
	// since Load looked, it is Conflict.
	Save(ctx context.Context, token Secret) error
}

const (
	accountsPage = 200
	// deliveryTries bounds how often a place is looked at that others write to.
	deliveryTries = 3
)

// EnsureFirstAdmin sees to it that the installation has an admin account whose
// token a person can get at, and reports whether it made that account now.
//
// The order makes it safe to be killed at any point: first the token is delivered,
// then its hash is stored together with the account, in one transaction. Killed
// before the delivery, nothing happened. Killed between the two, the next call
// finds a delivered token that opens nothing yet, adopts it and stores its hash.
// Killed after, the next call finds an admin and touches nothing: what lies at the
// delivery's place may be stale by then (revoked, replaced), and that is its
// owner's business.
//
// Several processes may call it at once. Those with the same delivery adopt the
// same token; of those with different ones, one becomes the admin's, and the others
// stay where they are and open nothing.
func (s *Service) EnsureFirstAdmin(ctx context.Context, deliver Delivery) (created bool, err error) {
	exists, err := s.hasAdmin(ctx)
	if err != nil || exists {
		return false, err
	}
	id, secret, err := s.delivered(ctx, deliver)
	if err != nil {
		return false, fmt.Errorf("first admin token: %w", err)
	}
	now := s.now()
	created, err = s.store.Bootstrap(ctx,
		core.Account{Name: FirstAdmin, Role: core.Admin, Created: now},
		record(id, secret, FirstAdmin, now))
	if fault.Of(err) == fault.Conflict {
		return false, fault.Errorf(fault.Conflict, "first admin: the account %s exists with another role, "+
			"or the delivered token is another account's: remove that account or the delivered token: %w", FirstAdmin, err)
	}
	if err != nil {
		return false, fmt.Errorf("first admin: %w", err)
	}
	return created, nil
}

func (s *Service) hasAdmin(ctx context.Context) (bool, error) {
	after := ""
	for {
		page, err := s.store.Accounts(ctx, after, accountsPage)
		if err != nil {
			return false, fmt.Errorf("first admin: %w", err)
		}
		for _, a := range page {
			if a.Role == core.Admin {
				return true, nil
			}
		}
		// A store that does not move on would keep us here for ever.
		if len(page) < accountsPage || page[len(page)-1].Name <= after {
			return false, nil
		}
		after = page[len(page)-1].Name
	}
}

// delivered returns the token that lies at the delivery's place, and puts a fresh
// one there when there is none.
func (s *Service) delivered(ctx context.Context, deliver Delivery) (id string, secret [secretSize]byte, err error) {
	for range deliveryTries {
		text, found, err := deliver.Load(ctx)
		if err != nil {
			return "", secret, err
		}
		if found {
			id, secret, ok := parse(text.Reveal())
			if !ok {
				return "", secret, fault.New(fault.Conflict, "what lies at its place is no token: move it away")
			}
			return id, secret, nil
		}
		id, secret, err = s.draw()
		if err != nil {
			return "", secret, err
		}
		err = deliver.Save(ctx, format(id, secret))
		if err == nil {
			return id, secret, nil
		}
		if fault.Of(err) != fault.Conflict {
			return "", secret, err
		}
		// Somebody else was first: theirs is the token.
	}
	return "", secret, fault.New(fault.Conflict, "its place is neither empty nor filled: somebody writes and removes it again and again")
}
