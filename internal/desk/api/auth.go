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

// authenticated lets requests of at least the role through.
func (s *server) authenticated(role token.Role) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		p, err := s.gate.admit(r)
		if err == nil {
			httpd.SetAccount(r.Context(), p.Account)
			if !p.Role.Allows(role) {
				err = fault.Errorf(fault.Denied, "account %s has the role %s; this needs %s", p.Account, p.Role, role)
			}
		}
		if err != nil {
			d := httpd.Report(r.Context(), s.opts.Log, err)
			if d.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="fleetdesk"`)
			}
			d.Write(w)
			return
		}
		next(ctx)
	}
}

// errUnauthenticated is one answer for a missing, a malformed and a wrong
// token: which of them it was is nobody's business.
func errUnauthenticated() error {
	return httpd.WithStatus(fault.New(fault.Denied,
		"a valid token is needed, in the header \"Authorization: Bearer <token>\""), http.StatusUnauthorized)
}

// gate decides which requests reach a handler. Its memory is bounded, and it
// keeps hashes of tokens only.
type gate struct {
	auth   Authenticator
	limits Limits
	// tokens are the limiters by token id.
	tokens *recent[string, *rate.Limiter]
	// good maps the hash of a token that was valid when last seen to its id.
	// It grants nothing: the token is verified on every request. It only lets
	// a known client past the limit on wrong tokens, which somebody else at
	// the same address may have used up.
	good *recent[[sha256.Size]byte, string]
	// failures are the limiters on wrong tokens by remote address.
	failures *recent[netip.Prefix, *rate.Limiter]
}

func newGate(auth Authenticator, l Limits) *gate {
	return &gate{
		auth:     auth,
		limits:   l,
		tokens:   newRecent[string, *rate.Limiter](l.Tokens),
		good:     newRecent[[sha256.Size]byte, string](l.Tokens),
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
	hash := sha256.Sum256([]byte(bearer))
	id, known := g.good.get(hash)
	if known {
		if err := g.spend(id); err != nil {
			return token.Principal{}, err
		}
	} else if err := g.blocked(r.RemoteAddr); err != nil {
		return token.Principal{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.limits.AuthTimeout)
	defer cancel()
	p, err := g.auth.Authenticate(ctx, bearer)
	switch fault.Of(err) {
	case "":
	case fault.Denied, fault.NotFound, fault.Invalid:
		g.good.remove(hash)
		g.failed(r.RemoteAddr)
		return token.Principal{}, errUnauthenticated()
	default:
		// The store cannot tell, which must never look like a wrong token.
		return token.Principal{}, fault.Wrap(fault.Unavailable, err)
	}
	if !known {
		if err := g.spend(p.TokenID); err != nil {
			return token.Principal{}, err
		}
		g.good.put(hash, p.TokenID)
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
	return httpd.WithRetryAfter(fault.New(fault.Quota, "this token makes too many requests"), untilOne(l, now))
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
	return httpd.WithRetryAfter(fault.New(fault.Quota, "this address sent too many wrong tokens"), untilOne(l, now))
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
