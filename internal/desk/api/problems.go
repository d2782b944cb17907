package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/danielgtaylor/huma/v2/validation"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/httpd"
)

// huma makes its own errors through a package variable. Setting that would be
// global state, so they are turned into our documents on their way out:
// statuses corrects the status, problems the body.

// problem is a document as huma wants an error: with a status, and naming its
// media type.
type problem struct{ httpd.Document }

func (p problem) Error() string             { return p.Title }
func (p problem) GetStatus() int            { return p.Status }
func (p problem) ContentType(string) string { return httpd.ProblemMediaType }

// GetHeaders are the headers that go with the document.
func (p problem) GetHeaders() http.Header {
	h := http.Header{}
	p.Header(h)
	h.Del("Content-Type")  // huma sets it
	h.Del("Cache-Control") // httpd sets it, and huma would add a second
	return h
}

// answer makes a handler's error what huma writes, and logs what the client
// does not see.
func (s *server) answer(ctx context.Context, err error) error {
	return problem{httpd.Report(ctx, s.opts.Log, dressed(err))}
}

// noneFree are the extension members of the problem document of a take that got
// nothing; client.Problem has them too.
type noneFree struct {
	Why              []client.Why    `json:"why,omitempty"`
	Holders          []client.Holder `json:"holders,omitempty"`
	Position         int             `json:"position,omitempty"`
	SecondsUntilFree client.Seconds  `json:"secondsUntilFree,omitempty"`
}

// dressed gives an error what only HTTP tells of it. That nothing is free, and
// that the desk is busy, is no fault of the client's rate: 503 where the class
// alone would say 429.
func dressed(err error) error {
	if e, ok := errors.AsType[*service.NoneFree](err); ok {
		members := noneFree{Why: whyOnWire(e.Why), Position: e.Position, SecondsUntilFree: client.SecondsOf(e.RetryAfter)}
		for _, h := range e.Holders {
			members.Holders = append(members.Holders, client.Holder{
				Key: h.Key, Account: h.Account, Holder: h.Holder, State: string(h.State), SecondsLeft: client.SecondsOf(max(0, h.Left)),
			})
		}
		// Nobody knows when a key that no time frees is free: a minute is a guess
		// that keeps a crowd from asking all the time.
		after := cmp.Or(e.RetryAfter, time.Minute)
		return httpd.WithMembers(httpd.WithRetryAfter(httpd.WithDetail(httpd.WithStatus(err, http.StatusServiceUnavailable)), after), members)
	}
	switch fault.CodeOf(err) {
	case "busy":
		return httpd.WithRetryAfter(httpd.WithDetail(httpd.WithStatus(err, http.StatusServiceUnavailable)), time.Second)
	case "queue_full":
		return httpd.WithRetryAfter(httpd.WithDetail(httpd.WithStatus(err, http.StatusServiceUnavailable)), 5*time.Second)
	}
	return err
}

func whyOnWire(all []lease.Why) []client.Why {
	var wire []client.Why
	for _, w := range all {
		wire = append(wire, client.Why{Cause: w.Cause, Count: w.Count})
	}
	return wire
}

// codeOfField is the code of a request in which one kind of thing alone is
// wrong: whoever finds it first, here or the rules, the code is one.
func codeOfField(fields []httpd.FieldError) string {
	code := ""
	for _, f := range fields {
		c := ""
		switch {
		case f.Message == validation.MsgUnexpectedProperty:
			c = "field"
		case f.Location == "body.ttl":
			c = "ttl"
		case f.Location == "body.wait":
			c = "wait"
		case f.Location == "body":
			c = "body" // not JSON, or not an object
		case f.Location == "path.pool", f.Location == "path.key", f.Location == "path.account":
			c = "name"
		case strings.HasSuffix(f.Location, ".target"):
			c = codeTarget
		case strings.HasSuffix(f.Location, ".selector"):
			c = codeSelector
		}
		if c == "" || code != "" && code != c {
			return ""
		}
		code = c
	}
	return code
}

// problems replaces huma's error model, which may echo values of the request.
func (s *server) problems(ctx huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	fields := make([]httpd.FieldError, 0, len(m.Errors))
	texts := make([]string, 0, len(m.Errors))
	for _, e := range m.Errors {
		if e == nil {
			continue
		}
		fields = append(fields, httpd.FieldError{Location: e.Location, Message: e.Message})
	}
	slices.SortFunc(fields, func(a, b httpd.FieldError) int {
		return cmp.Or(cmp.Compare(a.Location, b.Location), cmp.Compare(a.Message, b.Message))
	})
	for _, f := range fields {
		texts = append(texts, strings.TrimPrefix(f.Location+": "+f.Message, ": "))
	}
	text := m.Detail
	if len(texts) > 0 {
		text = strings.Join(texts, "; ")
	}
	class, status := fault.Invalid, ourStatus(m.Status)
	if status >= 500 {
		class = fault.Permanent
	}
	err := fault.New(class, text)
	if code := codeOfField(fields); code != "" {
		err = fault.WithCode(err, code)
	}
	err = httpd.WithStatus(httpd.WithFields(err, fields), status)
	return httpd.Report(ctx.Context(), s.opts.Log, err), nil
}

// ourStatus maps huma's status of a request that fails validation to ours.
func ourStatus(status int) int {
	if status == http.StatusUnprocessableEntity {
		return http.StatusBadRequest
	}
	return status
}

// statuses is the outermost middleware of every operation.
func statuses(ctx huma.Context, next func(huma.Context)) { next(statusContext{ctx}) }

// humaContext keeps the embedded field's name from hiding the method Context.
type humaContext huma.Context

type statusContext struct{ humaContext }

func (c statusContext) SetStatus(status int) { c.humaContext.SetStatus(ourStatus(status)) }

// Unwrap lets humago find its own context.
func (c statusContext) Unwrap() huma.Context { return c.humaContext }

// strict refuses queries that a decoder could read in more than one way.
func (s *server) strict(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	err := checkQuery(r)
	if err == nil {
		err = checkHeader(r.Header)
	}
	if err != nil {
		httpd.WriteError(w, r, s.opts.Log, err)
		return
	}
	next(ctx)
}

// checkQuery wants every parameter well-formed and at most once.
func checkQuery(r *http.Request) error {
	const maxQuery = 8 << 10
	if len(r.URL.RawQuery) > maxQuery {
		return fault.Errorf(fault.Invalid, "the query is longer than %d bytes", maxQuery)
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fault.New(fault.Invalid, "the query is not well-formed: check the percent signs and semicolons")
	}
	var fields []httpd.FieldError
	for name, v := range values {
		switch {
		case len(v) > 1:
			fields = append(fields, httpd.FieldError{Location: "query." + name, Message: "given more than once"})
		case v[0] == "" && r.Method != http.MethodGet && r.Method != http.MethodHead:
			// Where it narrows what is changed, its absence means everything.
			fields = append(fields, httpd.FieldError{Location: "query." + name, Message: "empty: leave it out, or say what you mean"})
		}
	}
	if len(fields) == 0 {
		return nil
	}
	slices.SortFunc(fields, func(a, b httpd.FieldError) int { return cmp.Compare(a.Location, b.Location) })
	return httpd.WithFields(fault.New(fault.Invalid, fields[0].Location+": "+fields[0].Message), fields)
}

// checkHeader wants those headers that say what is asked for once, with a value.
func checkHeader(h http.Header) error {
	for _, name := range []string{"Idempotency-Key", "Last-Event-Id", "Lease-Secret"} {
		switch values := h[name]; {
		case len(values) > 1:
			return fieldError("header."+name, "given more than once")
		case len(values) == 1 && values[0] == "":
			return fieldError("header."+name, "empty: leave it out, or say what you mean")
		}
	}
	return nil
}

// fieldError says what is wrong with one part of a request.
func fieldError(location, message string) error {
	return httpd.WithFields(fault.New(fault.Invalid, location+": "+message),
		[]httpd.FieldError{{Location: location, Message: message}})
}
