package client

import (
	"context"
	"crypto/rand"
	"net/http"
	"time"
)

// Change is a person's change of a pool: the lock on it, and the bar on some of
// its keys, for as long as it shows life.
type Change struct {
	// ID is needed to renew and end it: its beginner is told, and admins.
	ID string `json:"id,omitempty" doc:"Needed to renew and end it; told to its beginner and to admins." example:"9f86d081884c7d659a2feaa0c55ad015"`
	// Pool that is changed.
	Pool string `json:"pool" doc:"Pool that is changed." example:"win"`
	// Verb says what is done, for people, and to which Keys; never nil in an
	// answer.
	Verb string   `json:"verb,omitempty" doc:"What is done, for people." example:"add"`
	Keys []string `json:"keys" nullable:"false" doc:"Keys that it bars from being leased."`
	// Account began it; Holder is what its request said.
	Account string `json:"account" doc:"Account that began it." example:"ann"`
	Holder  string `json:"holder,omitempty" doc:"Who makes it, as the request said." example:"ann@desk-3"`
	// Began is when (RFC 3339, UTC, seconds).
	Began time.Time `json:"began" doc:"When it began (RFC 3339)." example:"2026-01-02T15:04:05Z"`
	// SecondsLeft is when it ends unless it is renewed.
	SecondsLeft Seconds `json:"secondsLeft" doc:"Seconds until it ends unless it is renewed." example:"60"`
}

// ChangeRequest begins a change.
type ChangeRequest struct {
	// Verb says what is done, for people.
	Verb string `json:"verb,omitempty" maxLength:"512" doc:"What is done, for people." example:"add"`
	// Keys are names to bar, at most 5; they need not be keys yet.
	Keys []string `json:"keys,omitempty" nullable:"false" maxItems:"5" doc:"Names to bar from being leased; they need not be keys yet."`
	// Holder says who makes it.
	Holder string `json:"holder,omitempty" maxLength:"512" doc:"Who makes it, for people." example:"ann@desk-3"`
	// TTL is for how many seconds it lasts without a sign of life, 5 to 600; 0
	// for 60.
	TTL int64 `json:"ttl,omitempty" minimum:"5" maximum:"600" default:"60" doc:"Seconds that it lasts without a sign of life." example:"60"`
}

// ChangeRenewal keeps a change alive.
type ChangeRenewal struct {
	// TTL is for how many seconds from now, 5 to 600; 0 for 60.
	TTL int64 `json:"ttl,omitempty" minimum:"5" maximum:"600" default:"60" doc:"Seconds that it lasts from now without another sign of life." example:"60"`
}

// BeginChange takes the change lock of a pool and bars keys. It needs the role
// runner. Errors: Conflict (code change while another one runs, or held for a
// key in use), NotFound (code pool), Invalid (codes name, keys, ttl, text).
func (c *Client) BeginChange(ctx context.Context, pool string, r ChangeRequest) (Change, error) {
	var out Change
	err := c.do(ctx, call{
		op: "begin change of " + pool, method: http.MethodPost, parts: []string{"pools", pool, "changes"},
		header: http.Header{headerIdempotency: {rand.Text()}}, body: r, out: &out, repeatable: true,
	})
	return out, err
}

// RenewChange keeps a change alive. Errors: NotFound (code change) when it runs
// no more: somebody else may change the pool by now.
func (c *Client) RenewChange(ctx context.Context, pool, id string, r ChangeRenewal) (Change, error) {
	var out Change
	err := c.do(ctx, call{
		op: "renew change of " + pool, method: http.MethodPost, parts: []string{"pools", pool, "changes", id, "renew"},
		body: r, out: &out, repeatable: true,
	})
	return out, err
}

// EndChange ends a change; again is harmless. Errors: Denied (code not_owner)
// for somebody else's, unless an admin asks.
func (c *Client) EndChange(ctx context.Context, pool, id string) error {
	return c.do(ctx, call{
		op: "end change of " + pool, method: http.MethodDelete, parts: []string{"pools", pool, "changes", id}, repeatable: true,
	})
}
