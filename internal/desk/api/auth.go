package api

import (
	"context"
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"golang.org/x/time/rate"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/httpd"
)

// Codes of the errors that every operation may answer; what makes them up is
// in this file.
const (
	codeToken = token.CodeToken // 401: no valid token
	codeRole  = "role"          // 403: too low a role
	codeRate  = "rate"          // 429: too many requests, or too many wrong tokens
	codeStore = "store"         // 503: the store of tokens does not answer
)

// authenticated lets requests of at least the role through.
func (s *server) authenticated(role token.Role) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		p, err := s.gate.admit(r)
		if err == nil {
			httpd.SetAccount(r.Context(), p.Account)
			auditOf(ctx.Context()).by(p)
			if !p.Role.Allows(role) {
				err = errRole(p, role)
				auditOf(ctx.Context()).ended(err)
			}
		}
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		next(huma.WithValue(ctx, principalKey{}, p))
	}
}

func errRole(p token.Principal, need token.Role) error {
	return fault.WithCode(fault.Errorf(fault.Denied, "account %s has the role %s; this needs %s", p.Account, p.Role, need), codeRole)
}

// refuse answers a request that reaches no handler.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	d := httpd.Report(r.Context(), s.opts.Log, err)
	if d.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="fleetdesk"`)
	}
	d.Write(w)
}

type principalKey struct{}

// principalOf is who sent the request that a handler's ctx belongs to.
func principalOf(ctx context.Context) token.Principal {
	p, _ := ctx.Value(principalKey{}).(token.Principal)
	return p
}

// errUnauthenticated is one answer for a missing, a malformed and a wrong
// token: which of them it was is nobody's business.
func errUnauthenticated() error {
	return httpd.WithStatus(fault.WithCode(fault.New(fault.Denied,
		"a valid token is needed, in the header \"Authorization: Bearer <token>\""), codeToken), http.StatusUnauthorized)
}

// errRate refuses a request above a limit; l says when the next may come.
func errRate(text string, l *rate.Limiter, now time.Time) error {
	return httpd.WithRetryAfter(fault.WithCode(fault.New(fault.Quota, text), codeRate), untilOne(l, now))
}

// gate decides which requests reach a handler. Its memory is bounded, and it
// keeps hashes of tokens only.
type gate struct {
	limits Limits
	// answers verifies tokens. What it has seen grants nothing after a second;
	// it also lets a known client past the limit on wrong tokens, which somebody
	// else at the same address may have used up.
	answers *verifier
	// tokens are the limiters by token id.
	tokens *recent[string, *rate.Limiter]
	// failures are the limiters on wrong tokens by remote address.
	failures *recent[netip.Prefix, *rate.Limiter]
}

func newGate(auth Authenticator, l Limits) *gate {
	return &gate{
		limits:   l,
		answers:  newVerifier(auth, l),
		tokens:   newRecent[string, *rate.Limiter](l.Tokens),
		failures: newRecent[netip.Prefix, *rate.Limiter](l.Addresses),
	}
}

// admit returns who sends the request. Errors: Denied with status 401 without
// a valid token, Quota above a limit, Unavailable when the store cannot tell.
func (g *gate) admit(r *http.Request) (token.Principal, error) {
	bearer, ok := bearerOf(r.Header)
	if !ok {
		return token.Principal{}, errUnauthenticated()
	}
	h := sha256.Sum256([]byte(bearer))
	last, known := g.answers.seen.get(h)
	if known {
		if err := g.spend(last.principal.TokenID); err != nil {
			return token.Principal{}, err
		}
	} else if err := g.blocked(r.RemoteAddr); err != nil {
		return token.Principal{}, err
	}
	p, err := g.answers.verify(r.Context(), bearer, h, last, known)
	switch fault.Of(err) {
	case "":
	case fault.Denied, fault.NotFound, fault.Invalid:
		g.answers.seen.remove(h)
		g.failed(r.RemoteAddr)
		return token.Principal{}, errUnauthenticated()
	default:
		// The store cannot tell, which must never look like a wrong token.
		return token.Principal{}, fault.WithCode(fault.Wrap(fault.Unavailable, err), codeStore)
	}
	if !known {
		if err := g.spend(p.TokenID); err != nil {
			return token.Principal{}, err
		}
	}
	return p, nil
}

// maxToken bounds what is hashed; our tokens are far shorter.
const maxToken = 512

// bearerOf reads the one Authorization header of the scheme Bearer.
func bearerOf(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, bearer, ok := strings.Cut(values[0], " ")
	bearer = strings.TrimSpace(bearer)
	if !ok || !strings.EqualFold(scheme, "Bearer") || bearer == "" || len(bearer) > maxToken ||
		strings.ContainsFunc(bearer, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", false
	}
	return bearer, true
}

// spend takes one request from the token's budget.
func (g *gate) spend(id string) error {
	if g.limits.PerToken < 0 {
		return nil
	}
	l := g.tokens.getOrPut(id, func() *rate.Limiter {
		return rate.NewLimiter(rate.Limit(g.limits.PerToken), g.limits.Burst)
	})
	now := time.Now()
	if l.AllowN(now, 1) {
		return nil
	}
	return errRate("this token makes too many requests", l, now)
}

// blocked refuses a token that nobody knows from an address that sent too many
// wrong ones, before the store is asked.
func (g *gate) blocked(remote string) error {
	if g.limits.FailuresPerMinute < 0 {
		return nil
	}
	l, ok := g.failures.get(addressOf(remote))
	if !ok {
		return nil
	}
	now := time.Now()
	if l.TokensAt(now) >= 1 {
		return nil
	}
	return errRate("this address sent too many wrong tokens", l, now)
}

func (g *gate) failed(remote string) {
	if g.limits.FailuresPerMinute < 0 {
		return
	}
	g.failures.getOrPut(addressOf(remote), func() *rate.Limiter {
		return rate.NewLimiter(rate.Limit(g.limits.FailuresPerMinute/60), g.limits.FailureBurst)
	}).Allow()
}

// untilOne is the time until the limiter lets one more through.
func untilOne(l *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - l.TokensAt(now)
	return max(time.Second, time.Duration(missing/float64(l.Limit())*float64(time.Second)))
}

// addressOf is what counts as one sender: an IPv4 address, or the /64 that one
// IPv6 host usually has to itself. What cannot be read shares one entry.
func addressOf(remote string) netip.Prefix {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
