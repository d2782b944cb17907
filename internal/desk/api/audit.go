package api

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/httpd"
)

// auditOK is the outcome of a call that did what it says; any other outcome is
// the class of the error.
const auditOK = "ok"

// audit collects what the line about one call of an admin's operation says. A
// nil audit, that of every other operation, takes no notice.
type audit struct {
	principal token.Principal
	// path holds the values of the path's parameters. They may be anything, also
	// a secret that somebody pasted, until the request is known to be well-formed.
	path    string
	subject string
	outcome string
	// reason is why the caller does it, as the request says; "" when it does not.
	reason string
}

type auditKey struct{}

func auditOf(ctx context.Context) *audit {
	a, _ := ctx.Value(auditKey{}).(*audit)
	return a
}

// by says who calls.
func (a *audit) by(p token.Principal) {
	if a != nil {
		a.principal = p
	}
}

// began says that the request is well-formed and its handler begins.
func (a *audit) began() {
	if a != nil {
		a.subject = a.path
		a.outcome = string(fault.Permanent) // a panic's, unless it ends
	}
}

// ended says how the call ended.
func (a *audit) ended(err error) {
	if a == nil {
		return
	}
	a.outcome = auditOK
	if err != nil {
		a.outcome = string(fault.Of(err))
	}
}

// auditSubject says what a call is about, where the path does not tell: a name
// in the body, or of what was made. It is for handlers of admins' operations.
func auditSubject(ctx context.Context, subject string) {
	if a := auditOf(ctx); a != nil {
		a.subject = subject
	}
}

// auditReason says why a call is made. It is for handlers of admins' operations.
func auditReason(ctx context.Context, reason string) {
	if a := auditOf(ctx); a != nil {
		a.reason = reason
	}
}

// audited returns the middleware that logs each call of an operation that only
// admins may make and that changes something; none for any other operation. A
// call without a valid token changes nothing and is nobody's: it has no line.
func (s *server) audited(op operation) huma.Middlewares {
	if op.role != token.Admin || op.method == http.MethodGet || op.method == http.MethodHead {
		return nil
	}
	var params []string
	for part := range strings.SplitSeq(op.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			params = append(params, strings.TrimSuffix(name, "}"))
		}
	}
	return huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		values := make([]string, len(params))
		for i, name := range params {
			values[i] = ctx.Param(name)
		}
		// A request that reaches no handler and got no other outcome was wrong.
		a := &audit{path: strings.Join(values, "/"), outcome: string(fault.Invalid)}
		defer func() { // also when the handler panics: something may have been done
			if a.principal.Account == "" {
				return
			}
			// As a warning: proxy-operator-standalone shows no lesser ones unless
			// asked to, and an audit that a usual setting hides is none.
			attrs := []slog.Attr{
				slog.String("account", a.principal.Account),
				slog.String("token_id", a.principal.TokenID), // public, unlike what the key "token" would hide
				slog.String("action", op.id),
				slog.String("subject", a.subject),
				slog.String("outcome", a.outcome),
				slog.String("request", httpd.RequestID(ctx.Context())),
			}
			if a.reason != "" {
				attrs = append(attrs, slog.String("reason", a.reason))
			}
			s.opts.Log.LogAttrs(ctx.Context(), slog.LevelWarn, "audit", attrs...)
		}()
		next(huma.WithValue(ctx, auditKey{}, a))
	}}
}
