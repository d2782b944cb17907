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
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/httpd"
)

// Authenticator tells whose token a request carries.
type Authenticator interface {
	// Authenticate returns the token's principal. A token that is unknown,
	// expired or revoked is Denied; a store that does not answer is
	// Unavailable, which is never told to a client as a wrong token.
	Authenticate(ctx context.Context, bearer string) (token.Principal, error)
	// Generation is asked on every request and answers at once. It differs from
	// before once a change was made here after which an earlier answer may no
	// longer hold. Answers of one generation are used for a second, so a
	// revocation by another process takes that long to be felt.
	Generation() uint64
}

// Options make the API.
type Options struct {
	// Auth verifies tokens; required.
	Auth Authenticator
	// Proxies shows proxies; nil for a desk without them: their routes do not
	// exist then.
	Proxies Proxies
	// Selection names and chooses proxies; nil for a desk whose keys are none: the
	// routes that pick them and report on them do not exist then. It needs Desk and
	// Access.
	Selection Selection
	// Accounts is what administrators do with accounts and tokens; nil for a
	// desk where nobody does: the routes do not exist then.
	Accounts Accounts
	// Actions is the log of people's provider commands; nil for a desk without
	// one: its routes do not exist then.
	Actions action.Log
	// Desk hands keys out; nil for a program that has none: the routes of pools,
	// leases, changes and events do not exist then. It must run while the API is
	// served.
	Desk *service.Service
	// Access turns a leased key into how to reach it; nil where a key's name says
	// all there is to say.
	Access Access
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
	// CallTimeout bounds one call behind the API: 10 s. The wait of a request for
	// a key comes on top.
	CallTimeout time.Duration
	// Waits is how many requests may wait for a key at once: 10,000, and
	// WaitsPerToken how many of one token: 1000.
	Waits, WaitsPerToken int
	// Streams is how many streams of events may be open: 256, and StreamsPerToken
	// how many of one token: 16.
	Streams, StreamsPerToken int
}

// server is the handler that New returns.
type server struct {
	opts Options
	// mux finds the handler, known knows the same routes without the one for all
	// others: it tells which methods a path has.
	mux, known *http.ServeMux
	api        huma.API
	// described has the operations whose handlers are ours: it puts them into the
	// same document, and read reads their requests where we do not.
	described huma.API
	read      *http.ServeMux
	// openapi is the document, rendered when it is first asked for: a program that
	// calls the API a few times inside its own process never asks.
	openapi func() ([]byte, error)
	gate    *gate
	waits   *crowd
	streams *crowd
	events  *tail
	metrics *metrics
	buffers
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
	case opts.Selection != nil && (opts.Desk == nil || opts.Access == nil):
		return nil, fault.New(fault.Invalid, "api: Options.Selection needs Desk and Access")
	}
	l := opts.Limits
	if min(l.Burst, l.Tokens, l.FailureBurst, l.Addresses, l.Waits, l.WaitsPerToken, l.Streams, l.StreamsPerToken) < 0 || min(l.AuthTimeout, l.CallTimeout) < 0 {
		return nil, fault.New(fault.Invalid, "api: a limit is negative that cannot be switched off")
	}
	opts.Limits = l.withDefaults()
	l = opts.Limits
	s := &server{
		opts: opts, mux: http.NewServeMux(), known: http.NewServeMux(), read: http.NewServeMux(),
		gate:    newGate(opts.Auth, l),
		waits:   newCrowd(l.Waits, l.WaitsPerToken, "waiting requests"),
		streams: newCrowd(l.Streams, l.StreamsPerToken, "streams of events"),
	}
	if opts.Desk != nil {
		s.events = newTail(opts.Desk.Events, opts.Desk.EventsChanged)
	}
	var err error
	if s.metrics, err = newMetrics(opts.Metrics); err != nil {
		return nil, err
	}
	config := s.humaConfig()
	s.api = humago.New(both{s}, config)
	s.described = humago.New(s.read, config)
	s.api.UseMiddleware(statuses)
	s.described.UseMiddleware(statuses)
	s.mux.HandleFunc("/", s.noRoute)
	s.routes()
	s.openapi = sync.OnceValues(s.describe)
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
	setDefault(&l.Waits, 10_000)
	setDefault(&l.WaitsPerToken, 1000)
	setDefault(&l.Streams, 256)
	setDefault(&l.StreamsPerToken, 16)
	return l
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// humaConfig is plain JSON with strict queries; the documentation pages that
// huma could serve load scripts from elsewhere and stay off.
func (s *server) humaConfig() huma.Config {
	const prefix = "#/components/schemas/"
	format := huma.Format{Marshal: marshal, Unmarshal: unmarshal}
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
	// status is that of success: 200 when zero, 204 without a body.
	status int
	// errors are status codes it can answer besides those all share.
	errors []int
	// replayed says that it answers 200 in place of status to a request that
	// was answered before.
	replayed bool
	// stream is the media type of an answer without an end; "" for JSON.
	stream string
}

// register adds an operation: authentication first, then the decoding of the
// request, then handle with a deadline of its own.
func register[I, O any](s *server, op operation, handle func(context.Context, *I) (*O, error)) {
	middlewares := append(s.audited(op), s.authenticated(op.role), s.strict)
	huma.Register(s.api, s.describeOperation(op, reflect.TypeFor[I](), middlewares...), func(ctx context.Context, in *I) (*O, error) {
		bounded, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
		defer cancel()
		auditOf(ctx).began()
		out, err := handle(bounded, in)
		auditOf(ctx).ended(err)
		if err != nil {
			// The request's own ctx: only its end means that the client left.
			return nil, s.answer(ctx, err)
		}
		return out, nil
	})
}

// describeOperation is the operation as huma takes it.
func (s *server) describeOperation(op operation, input reflect.Type, middlewares ...func(huma.Context, func(huma.Context))) huma.Operation {
	problem := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[client.Problem](), true, "Problem")
	responses := map[string]*huma.Response{}
	codes := append([]int{400, 401, 403, 429, 500, 503, 504}, op.errors...)
	if _, body := input.FieldByName("Body"); body {
		codes = append(codes, 408, 413, 415)
	}
	for _, code := range codes {
		responses[strconv.Itoa(code)] = &huma.Response{
			Description: http.StatusText(code),
			Content:     map[string]*huma.MediaType{httpd.ProblemMediaType: {Schema: problem}},
		}
	}
	if op.stream != "" {
		responses["200"] = &huma.Response{
			Description: "A stream of events; it has no end.",
			Content:     map[string]*huma.MediaType{op.stream: {Schema: &huma.Schema{Type: huma.TypeString}}},
		}
	}
	return huma.Operation{
		OperationID:   op.id,
		Method:        op.method,
		Path:          op.path,
		Summary:       op.summary,
		Description:   "Needs a token of role " + string(op.role) + " or higher.",
		Security:      []map[string][]string{{"token": {}}},
		Responses:     responses,
		DefaultStatus: op.status,
		Middlewares:   middlewares,
	}
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

func (s *server) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	doc, err := s.openapi()
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/openapi+json;version=3.1")
	_, _ = w.Write(doc)
}
