package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Roles of accounts, least first; each may do what the one before may.
const (
	RoleViewer = "viewer" // reads
	RoleRunner = "runner" // takes, renews and releases its own leases, reports, writes actions
	RoleAdmin  = "admin"  // does the rest
)

// Account is a named holder of tokens.
type Account struct {
	// Name is its name, which logs and pages show.
	Name string `json:"name" doc:"Name of the account." example:"ci"`
	// Role is viewer, runner or admin.
	Role string `json:"role" enum:"viewer,runner,admin" doc:"What it may do." example:"runner"`
	// Disabled is whether its tokens open nothing.
	Disabled bool `json:"disabled" doc:"Whether its tokens open nothing."`
	// Created is when it was added (RFC 3339, UTC, seconds).
	Created time.Time `json:"created" doc:"When it was added (RFC 3339)." example:"2026-01-02T15:04:05Z"`
}

// AccountList is one page of accounts, ordered by name.
type AccountList struct {
	// Items has at most as many entries as the limit asked for; never nil in
	// an answer.
	Items []Account `json:"items" nullable:"false" doc:"Accounts ordered by name."`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one."`
}

// NewAccount is an account to be added.
type NewAccount struct {
	// Name is 1 to 128 ASCII letters, digits and `. _ - @ :`, a letter or digit
	// first.
	Name string `json:"name" minLength:"1" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9._@:-]*$" patternDescription:"letters, digits and . _ - @ :, a letter or digit first" doc:"Name of the account: letters, digits and . _ - @ :, a letter or digit first." example:"ci"`
	// Role is viewer, runner or admin.
	Role string `json:"role" enum:"viewer,runner,admin" doc:"What it may do." example:"runner"`
}

// AccountChange is what an account becomes: both fields, changed or not.
type AccountChange struct {
	// Role is viewer, runner or admin.
	Role string `json:"role" enum:"viewer,runner,admin" doc:"What it may do." example:"runner"`
	// Disabled is whether its tokens open nothing.
	Disabled bool `json:"disabled" doc:"Whether its tokens open nothing."`
}

// TokenInfo is what is known of a token, which is never its text.
type TokenInfo struct {
	// ID is its public id, as logs show it.
	ID string `json:"id" doc:"Public id of the token, as logs show it." example:"k3q5y7zabc2d"`
	// Account is whose it is.
	Account string `json:"account" doc:"Account that it belongs to." example:"ci"`
	// Created is when it was made (RFC 3339, UTC, seconds).
	Created time.Time `json:"created" doc:"When it was made (RFC 3339)." example:"2026-01-02T15:04:05Z"`
	// Expires is when it ends; zero for never.
	Expires time.Time `json:"expires,omitzero" doc:"When it ends (RFC 3339); absent for never." example:"2026-04-02T15:04:05Z"`
	// Revoked is whether somebody ended it.
	Revoked bool `json:"revoked" doc:"Whether somebody ended it."`
}

// TokenList is one page of an account's tokens, ordered by id.
type TokenList struct {
	// Items has at most as many entries as the limit asked for; never nil in
	// an answer.
	Items []TokenInfo `json:"items" nullable:"false" doc:"Tokens ordered by id, ended ones too."`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one."`
}

// NewToken is a token to be made.
type NewToken struct {
	// Lifetime is after how many seconds it ends, 60 to 315360000 (ten years);
	// 0 for never.
	Lifetime int64 `json:"lifetime,omitempty" minimum:"60" maximum:"315360000" doc:"Seconds until it ends; absent for a token that never ends." example:"7776000"`
}

// IssuedToken is a token that was just made.
type IssuedToken struct {
	TokenInfo
	// Token is its text, which nobody can ask for again. Printed or encoded it
	// shows stars; string(t.Token) is the text.
	Token Token `json:"token"`
}

// Identity is whose token a client carries.
type Identity struct {
	// Account is whose it is.
	Account string `json:"account" doc:"Account that the token belongs to." example:"ci"`
	// Role is viewer, runner or admin.
	Role string `json:"role" enum:"viewer,runner,admin" doc:"What it may do." example:"runner"`
	// TokenID is the token's public id.
	TokenID string `json:"tokenId" doc:"Public id of the token." example:"k3q5y7zabc2d"`
}

// Page asks for one page of a list. The zero value is the first page.
type Page struct {
	// Limit is the page's size, 1 to 500; 0 leaves it to the server (100).
	Limit int
	// Cursor is the Next of the page before. It stays valid while entries come
	// and go.
	Cursor string
}

func (p Page) query() url.Values {
	v := url.Values{}
	if p.Limit != 0 {
		v.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Cursor != "" {
		v.Set("cursor", p.Cursor)
	}
	return v
}

// Whoami returns whose token this client carries. Errors: Denied when it is
// not valid (any more), Quota, Unavailable.
func (c *Client) Whoami(ctx context.Context) (Identity, error) {
	var out Identity
	err := c.get(ctx, "whoami", nil, &out, "whoami")
	return out, err
}

// Accounts returns one page of the accounts. It needs the role admin, as all
// that follows does. Errors: Invalid for a bad page, Denied, Quota, Unavailable.
func (c *Client) Accounts(ctx context.Context, p Page) (AccountList, error) {
	var out AccountList
	err := c.get(ctx, "list accounts", p.query(), &out, "accounts")
	return out, err
}

// CreateAccount adds an account. Errors: Conflict when the name is taken, also
// by this very call when its first answer was lost; Invalid (Fields names what is wrong).
func (c *Client) CreateAccount(ctx context.Context, a NewAccount) (Account, error) {
	var out Account
	err := c.do(ctx, call{op: "create account", method: http.MethodPost, parts: []string{"accounts"}, body: a, out: &out})
	return out, err
}

// ChangeAccount sets an account's role and state, for its tokens too. Errors:
// NotFound, and Conflict (code last_admin) when no enabled admin would be left.
func (c *Client) ChangeAccount(ctx context.Context, name string, change AccountChange) error {
	return c.do(ctx, call{
		op: "change account " + name, method: http.MethodPut, parts: []string{"accounts", name},
		body: change, repeatable: true,
	})
}

// Tokens returns one page of an account's tokens, without their texts. Errors:
// NotFound (code account), Invalid for a bad page.
func (c *Client) Tokens(ctx context.Context, account string, p Page) (TokenList, error) {
	var out TokenList
	err := c.get(ctx, "list tokens of "+account, p.query(), &out, "accounts", account, "tokens")
	return out, err
}

// IssueToken makes a token of an account. When no answer comes, one may have
// been made that nobody knows the text of: list them, and revoke it. Errors:
// NotFound (code account), Invalid for a bad lifetime.
func (c *Client) IssueToken(ctx context.Context, account string, t NewToken) (IssuedToken, error) {
	var out IssuedToken
	err := c.do(ctx, call{
		op: "issue token of " + account, method: http.MethodPost, parts: []string{"accounts", account, "tokens"},
		body: t, out: &out,
	})
	return out, err
}

// RevokeToken ends the token with that public id; again is harmless. Servers
// other than the one that answered may let it pass for one second more. Errors:
// NotFound (code token).
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	return c.do(ctx, call{
		op: "revoke token", method: http.MethodDelete, parts: []string{"tokens", id}, repeatable: true,
	})
}
