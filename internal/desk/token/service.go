// Package token issues and verifies the bearer tokens of both products, and sees
// to it that an installation has a first admin who can get in.
package token

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"fleetdesk/internal/core/fault"
	core "fleetdesk/internal/core/token"
)

// Options says what a service works with.
type Options struct {
	// Store keeps accounts and tokens. Required.
	Store core.Store
	// Directory is the same store as administrators work with it; nil where
	// nobody does: changing accounts and listing tokens is Unsupported then.
	Directory core.Directory
	// Clock tells the time; nil means time.Now.
	Clock func() time.Time
	// Rand is where ids and secrets come from; nil means crypto/rand. It must be
	// safe for concurrent use.
	Rand io.Reader
}

// Service is the use cases of accounts and tokens. It keeps no copy of any
// token: a revocation holds from the next [Service.Authenticate] on, and
// [Service.Generation] tells those who keep its answers. It may be used
// concurrently.
type Service struct {
	store      core.Store
	directory  core.Directory
	clock      func() time.Time
	rand       io.Reader
	generation atomic.Uint64
}

// New returns a service.
func New(o Options) *Service {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	return &Service{store: o.Store, directory: o.Directory, clock: o.Clock, rand: o.Rand}
}

// idTries is how many ids are tried until one is free: more than one is all but
// impossible, more than a few means that Rand is broken.
const idTries = 4

// Issue makes a token of an existing account that lives until expires; a zero
// time means for ever. The secret is returned here and never again. Errors:
// Invalid (expires is not ahead), NotFound (the account), and the store's.
func (s *Service) Issue(ctx context.Context, account string, expires time.Time) (Secret, core.Record, error) {
	now := s.now()
	if !expires.IsZero() {
		expires = kept(expires)
		if !expires.After(now) {
			return Secret{}, core.Record{}, fault.Errorf(fault.Invalid, "token of %s: its end %s is not ahead: give a later time",
				account, expires.Format(time.RFC3339))
		}
	}
	var err error
	for range idTries {
		id, secret, failed := s.draw()
		if failed != nil {
			return Secret{}, core.Record{}, failed
		}
		r := record(id, secret, account, now)
		r.Expires = expires
		if err = s.store.CreateToken(ctx, r); err == nil {
			return format(id, secret), r, nil
		}
		if fault.Of(err) != fault.Conflict {
			break
		}
	}
	return Secret{}, core.Record{}, unknown(err, core.CodeAccount)
}

// Authenticate says who a bearer token is. A token that is malformed, unknown,
// wrong, revoked, expired or of a disabled account is Denied, always with the
// same text: the caller learns nothing about which. When the store cannot tell,
// the error is Unavailable (Timeout when ctx ended), never Denied: an outage must
// not look like a lost token.
func (s *Service) Authenticate(ctx context.Context, bearer string) (core.Principal, error) {
	id, secret, ok := parse(bearer)
	// An id that does not exist is compared as well, with the hash of nothing, so
	// that it takes as long as one that does.
	var r core.Record
	var a core.Account
	known := false
	if ok {
		var err error
		r, a, err = s.store.TokenByID(ctx, id)
		switch fault.Of(err) {
		case "":
			known = true
		case fault.NotFound:
		case fault.Timeout, fault.Unavailable:
			return core.Principal{}, fmt.Errorf("verifying a token: %w", err)
		default:
			return core.Principal{}, fault.Errorf(fault.Unavailable, "verifying a token: %w", err)
		}
	}
	if !known {
		r.Hash = make([]byte, sha256.Size)
	}
	sum := sha256.Sum256(secret[:])
	same := subtle.ConstantTimeCompare(sum[:], r.Hash) == 1
	if !same || !known || !r.Live(a, s.clock()) {
		return core.Principal{}, fault.New(fault.Denied, "the token is not valid: ask an administrator for a new one")
	}
	return core.Principal{Account: a.Name, Role: a.Role, TokenID: r.ID}, nil
}

// draw makes a fresh id and secret.
func (s *Service) draw() (id string, secret [secretSize]byte, err error) {
	var b [idLength]byte
	_, err = io.ReadFull(s.rand, b[:])
	if err == nil {
		_, err = io.ReadFull(s.rand, secret[:])
	}
	if err != nil {
		return "", secret, fault.Errorf(fault.Unavailable, "drawing a token: the source of randomness fails: %w", err)
	}
	for i := range b {
		b[i] = alphabet[b[i]%byte(len(alphabet))] // 32 divides 256: no letter is likelier
	}
	return string(b[:]), secret, nil
}

// record is what is kept of a token.
func record(id string, secret [secretSize]byte, account string, now time.Time) core.Record {
	sum := sha256.Sum256(secret[:])
	return core.Record{ID: id, Account: account, Hash: sum[:], Created: now}
}

func (s *Service) now() time.Time { return kept(s.clock()) }

// kept is a time as stores keep it, so that what is returned equals what is read
// later.
func kept(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
