package api

import (
	"context"
	"encoding/base64"
	"slices"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/token"
	desktoken "fleetdesk/internal/desk/token"
)

// Accounts is what administrators do with accounts and tokens; desk/token has
// it. Errors carry a class, and a code where a client must tell two apart; their
// text is shown to clients except for outages.
type Accounts interface {
	// Accounts returns accounts by name, at most limit of those after the name
	// `after`, which may not exist.
	Accounts(ctx context.Context, after string, limit int) ([]token.Account, error)
	// CreateAccount adds an account. A name that is taken is Conflict.
	CreateAccount(ctx context.Context, name string, role token.Role) (token.Account, error)
	// ChangeAccount gives an existing account the role and the state of a.
	// NotFound (code account); Conflict (code last_admin) when no enabled admin
	// would be left.
	ChangeAccount(ctx context.Context, a token.Account) error
	// Tokens returns an account's tokens by id, at most limit of those after the
	// id `after`, without hashes. NotFound (code account).
	Tokens(ctx context.Context, account, after string, limit int) ([]token.Record, error)
	// IssueFor makes a token that lives for the time given, 0 for ever.
	// NotFound (code account).
	IssueFor(ctx context.Context, account string, lifetime time.Duration) (desktoken.Secret, token.Record, error)
	// Revoke ends a token; again is nil. NotFound (code token).
	Revoke(ctx context.Context, id string) error
}

type whoamiOutput struct{ Body client.Identity }

func (s *server) whoami(ctx context.Context, _ *struct{}) (*whoamiOutput, error) {
	p := principalOf(ctx)
	return &whoamiOutput{client.Identity{Account: p.Account, Role: string(p.Role), TokenID: p.TokenID}}, nil
}

type listAccountsInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Size of the page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The field next of the page before."`
}

type listAccountsOutput struct{ Body client.AccountList }

func (s *server) listAccounts(ctx context.Context, in *listAccountsInput) (*listAccountsOutput, error) {
	after, err := decodeName(in.Cursor)
	if err != nil {
		return nil, err
	}
	// One more than asked tells whether another page follows.
	all, err := s.opts.Accounts.Accounts(ctx, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	out := &listAccountsOutput{Body: client.AccountList{Items: []client.Account{}}}
	for i, a := range all {
		if i == in.Limit {
			out.Body.Next = encodeName(all[i-1].Name)
			break
		}
		out.Body.Items = append(out.Body.Items, accountOnWire(a))
	}
	return out, nil
}

type createAccountInput struct{ Body client.NewAccount }

type createAccountOutput struct{ Body client.Account }

func (s *server) createAccount(ctx context.Context, in *createAccountInput) (*createAccountOutput, error) {
	auditSubject(ctx, in.Body.Name)
	a, err := s.opts.Accounts.CreateAccount(ctx, in.Body.Name, token.Role(in.Body.Role))
	if err != nil {
		return nil, err
	}
	return &createAccountOutput{accountOnWire(a)}, nil
}

type changeAccountInput struct {
	Account string `path:"account" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9._@:-]*$" patternDescription:"letters, digits and . _ - @ :, a letter or digit first" doc:"Name of the account."`
	Body    client.AccountChange
}

func (s *server) changeAccount(ctx context.Context, in *changeAccountInput) (*struct{}, error) {
	return nil, s.opts.Accounts.ChangeAccount(ctx, token.Account{
		Name: in.Account, Role: token.Role(in.Body.Role), Disabled: in.Body.Disabled,
	})
}

type listTokensInput struct {
	Account string `path:"account" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9._@:-]*$" patternDescription:"letters, digits and . _ - @ :, a letter or digit first" doc:"Name of the account."`
	Limit   int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Size of the page."`
	Cursor  string `query:"cursor" maxLength:"1024" doc:"The field next of the page before."`
}

type listTokensOutput struct{ Body client.TokenList }

func (s *server) listTokens(ctx context.Context, in *listTokensInput) (*listTokensOutput, error) {
	after, err := decodeName(in.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := s.opts.Accounts.Tokens(ctx, in.Account, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	out := &listTokensOutput{Body: client.TokenList{Items: []client.TokenInfo{}}}
	for i, r := range all {
		if i == in.Limit {
			out.Body.Next = encodeName(all[i-1].ID)
			break
		}
		out.Body.Items = append(out.Body.Items, tokenOnWire(r))
	}
	return out, nil
}

type issueTokenInput struct {
	Account string `path:"account" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9._@:-]*$" patternDescription:"letters, digits and . _ - @ :, a letter or digit first" doc:"Name of the account."`
	Body    client.NewToken
}

type issueTokenOutput struct {
	CacheControl string `header:"Cache-Control" doc:"no-store: the answer holds a secret."`
	Body         issuedToken
}

// issuedToken is client.IssuedToken, whose token shows stars when it is encoded.
// No value of this type is logged or kept.
type issuedToken struct {
	client.TokenInfo
	Token string `json:"token" doc:"The token's text. It is shown here and never again." example:"fdt_…"`
}

func (s *server) issueToken(ctx context.Context, in *issueTokenInput) (*issueTokenOutput, error) {
	secret, r, err := s.opts.Accounts.IssueFor(ctx, in.Account, time.Duration(in.Body.Lifetime)*time.Second)
	if err != nil {
		return nil, err
	}
	auditSubject(ctx, in.Account+"/"+r.ID)
	return &issueTokenOutput{CacheControl: "no-store", Body: issuedToken{tokenOnWire(r), secret.Reveal()}}, nil
}

type revokeTokenInput struct {
	// The whole text of a token is longer than any id: it is refused before
	// anything logs it.
	ID string `path:"id" maxLength:"64" pattern:"^[A-Za-z0-9][A-Za-z0-9_-]*$" patternDescription:"letters, digits, - and _, a letter or digit first" doc:"Public id of the token, not its text."`
}

func (s *server) revokeToken(ctx context.Context, in *revokeTokenInput) (*struct{}, error) {
	return nil, s.opts.Accounts.Revoke(ctx, in.ID)
}

func accountOnWire(a token.Account) client.Account {
	return client.Account{Name: a.Name, Role: string(a.Role), Disabled: a.Disabled, Created: timeOnWire(a.Created)}
}

func tokenOnWire(r token.Record) client.TokenInfo {
	return client.TokenInfo{
		ID: r.ID, Account: r.Account, Created: timeOnWire(r.Created), Expires: timeOnWire(r.Expires), Revoked: r.Revoked,
	}
}

func timeOnWire(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// A cursor over names holds the last one shown; see encodeCursor.
func encodeName(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

func decodeName(cursor string) (string, error) {
	name, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	// No name or id holds blanks or letters beyond ASCII.
	odd := func(c byte) bool { return c <= ' ' || c >= 0x7f }
	if err != nil || len(name) > token.MaxAccountName || slices.ContainsFunc(name, odd) {
		return "", errCursor()
	}
	return string(name), nil
}

func errCursor() error { return fieldError("query.cursor", "not the field next of an earlier page") }
