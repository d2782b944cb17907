package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/httpd"
)

// Authenticator tells whose token a request carries.
type Authenticator interface {
	// Authenticate returns the token's principal. A token that is unknown,
	// expired or revoked is Denied; a store that does not answer is
	// Unavailable, which is never told to a client as a wrong token.
	Authenticate(ctx context.Context, bearer string) (token.Principal, error)
}

// Options make the API.
type Options struct {
	// Auth verifies tokens; required.
	Auth Authenticator
	// Proxies shows proxies; nil for a desk without them: their routes do not
	// exist then.
	Proxies Proxies
	// Log gets what goes wrong inside; required. The log of requests is the
	// server's (package httpd).
	Log *slog.Logger
	// Metrics registers the API's metrics; nil for none.
	Metrics prometheus.Registerer
	// Limits bound what clients may ask; the zero value is the defaults.
	Limits Limits
}

// Limits bound what clients may ask. A zero field means the default given.
type Limits struct {
	// PerToken is the sustained rate of requests of one token, per second: 50.
	// Negative switches the limit off.
	PerToken float64
	// Burst is how many requests a token may make at once: 100.
	Burst int
	// Tokens is how many tokens' limiters are kept: 4096. The one not used for
	// longest is forgotten first.
	Tokens int
	// FailuresPerMinute is how many wrong tokens one remote address (an IPv4
	// address or an IPv6 /64) may send, sustained: 30. Tokens that were good
	// a moment ago still work from an address over the limit. Negative
	// switches the limit off.
	FailuresPerMinute float64
	// FailureBurst is how many it may send at once: 20.
	FailureBurst int
	// Addresses is how many addresses are kept: 4096.
	Addresses int
	// AuthTimeout bounds the check of a token: 5 s.
	AuthTimeout time.Duration
	// CallTimeout bounds one read behind the API: 10 s.
	CallTimeout time.Duration
}

// server is the handler that New returns.
type server struct {
	opts    Options
	mux     *http.ServeMux
	api     huma.API
	openapi []byte
	gate    *gate
	metrics *metrics
}

// New returns the handler of /api/v1 and /openapi.json. Every other path is
// answered with a problem document of status 404. It is meant to run behind
// package httpd, which bounds bodies, headers and times. A missing option is
// Invalid; metrics that are registered already are Conflict.
func New(opts Options) (http.Handler, error) {
	switch {
	case opts.Auth == nil:
		return nil, fault.New(fault.Invalid, "api: Options.Auth is missing")
	case opts.Log == nil:
		return nil, fault.New(fault.Invalid, "api: Options.Log is missing")
	}
	l := opts.Limits
	if min(l.Burst, l.Tokens, l.FailureBurst, l.Addresses) < 0 || min(l.AuthTimeout, l.CallTimeout) < 0 {
		return nil, fault.New(fault.Invalid, "api: a limit is negative that cannot be switched off")
	}
	opts.Limits = l.withDefaults()
	s := &server{opts: opts, mux: http.NewServeMux()}
	s.gate = newGate(opts.Auth, opts.Limits)
	var err error
	if s.metrics, err = newMetrics(opts.Metrics); err != nil {
		return nil, err
	}
	s.api = humago.New(s.mux, s.humaConfig())
	s.api.UseMiddleware(statuses)
	s.routes()
	if s.openapi, err = s.describe(); err != nil {
		return nil, err
	}
	return s, nil
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.PerToken, 50)
	setDefault(&l.Burst, 100)
	setDefault(&l.Tokens, 4096)
	setDefault(&l.FailuresPerMinute, 30)
	setDefault(&l.FailureBurst, 20)
	setDefault(&l.Addresses, 4096)
	setDefault(&l.AuthTimeout, 5*time.Second)
	setDefault(&l.CallTimeout, 10*time.Second)
	return l
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ServeHTTP finds the route first, so that the log and the metrics know it and
// the mux's own plain-text errors never reach a client.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, pattern := s.mux.Handler(r)
	route := unmatched
	if pattern != "" {
		_, route, _ = strings.Cut(pattern, " ")
	}
	httpd.SetRoute(r.Context(), route)
	rec := httpd.Record(w)
	// A panic passes through here on its way to httpd, which answers 500.
	begin, code := time.Now(), http.StatusInternalServerError
	s.metrics.inFlight.Inc()
	defer func() {
		s.metrics.inFlight.Dec()
		s.metrics.answered(route, r.Method, code, time.Since(begin))
	}()
	if pattern == "" {
		s.noRoute(rec, r, h)
	} else {
		s.mux.ServeHTTP(rec, r)
	}
	code = rec.Status()
}

// unmatched is the route label of requests that no route answers.
const unmatched = "unmatched"

// noRoute turns the mux's 404 and 405 into problem documents. The mux's own
// handler is the one that knows which methods the path has.
func (s *server) noRoute(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := &headerOnly{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.header.Get("Allow")
		w.Header().Set("Allow", allow)
		httpd.WriteError(w, r, s.opts.Log, httpd.WithStatus(
			fault.New(fault.Invalid, "this path has no such method; it has "+allow), http.StatusMethodNotAllowed))
		return
	}
	httpd.WriteError(w, r, s.opts.Log, fault.New(fault.NotFound, "there is no such route; /openapi.json lists them all"))
}

// headerOnly keeps status and header of an answer and drops its body.
type headerOnly struct {
	header http.Header
	status int
}

func (h *headerOnly) Header() http.Header         { return h.header }
func (h *headerOnly) WriteHeader(status int)      { h.status = status }
func (h *headerOnly) Write(b []byte) (int, error) { return len(b), nil }

// humaConfig is plain JSON with strict queries; the documentation pages that
// huma could serve load scripts from elsewhere and stay off.
func (s *server) humaConfig() huma.Config {
	const prefix = "#/components/schemas/"
	format := huma.Format{Marshal: marshal, Unmarshal: json.Unmarshal}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:       "Fleetdesk desk API",
				Version:     "v1",
				Description: "Every error is a problem document (RFC 9457) whose type names its class.",
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry(prefix, huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer", Description: "A token of an account."},
				},
			},
		},
		Formats:                      map[string]huma.Format{"application/json": format, "json": format},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{s.problems},
	}
}

// marshal writes in one piece, and does not report a client that is gone:
// huma would panic on it.
func marshal(w io.Writer, v any) error {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, _ = w.Write(body.Bytes())
	return nil
}

// operation is one row of routes.go.
type operation struct {
	id, method, path, summary string
	// role is the least role that may call it.
	role token.Role
	// errors are status codes it can answer besides those all share.
	errors []int
}

// register adds an operation: authentication first, then the decoding of the
// request, then handle with a deadline of its own.
func register[I, O any](s *server, op operation, handle func(context.Context, *I) (*O, error)) {
	problem := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[client.Problem](), true, "Problem")
	responses := map[string]*huma.Response{}
	for _, code := range append([]int{400, 401, 403, 429, 500, 503, 504}, op.errors...) {
		responses[strconv.Itoa(code)] = &huma.Response{
			Description: http.StatusText(code),
			Content:     map[string]*huma.MediaType{httpd.ProblemMediaType: {Schema: problem}},
		}
	}
	huma.Register(s.api, huma.Operation{
		OperationID: op.id,
		Method:      op.method,
		Path:        op.path,
		Summary:     op.summary,
		Description: "Needs a token of role " + string(op.role) + " or higher.",
		Security:    []map[string][]string{{"token": {}}},
		Responses:   responses,
		Middlewares: huma.Middlewares{s.authenticated(op.role), s.strict},
	}, func(ctx context.Context, in *I) (*O, error) {
		bounded, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
		defer cancel()
		out, err := handle(bounded, in)
		if err != nil {
			// The request's own ctx: only its end means that the client left.
			return nil, s.answer(ctx, err)
		}
		return out, nil
	})
}

// describe renders the OpenAPI document once: it does not change afterwards.
func (s *server) describe() ([]byte, error) {
	// huma registers its own error model, which never reaches a client.
	delete(s.api.OpenAPI().Components.Schemas.Map(), "ErrorModel")
	delete(s.api.OpenAPI().Components.Schemas.Map(), "ErrorDetail")
	doc, err := json.MarshalIndent(s.api.OpenAPI(), "", "  ")
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "api: render the OpenAPI document: %w", err)
	}
	return append(doc, '\n'), nil
}

func (s *server) serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/openapi+json;version=3.1")
	_, _ = w.Write(s.openapi)
}
