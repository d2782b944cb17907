package httpd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"fleetdesk/internal/core/fault"
)

// ProblemType is the prefix of every problem document's type; the class of
// core/fault follows it, and the error's code where it has one, e.g.
// urn:fleetdesk:problem:not_found and urn:fleetdesk:problem:not_found:pool.
const ProblemType = "urn:fleetdesk:problem:"

// tooLarge is the code of a request whose body is beyond the limit.
const tooLarge = "too_large"

// ProblemMediaType is the media type of problem documents (RFC 9457).
const ProblemMediaType = "application/problem+json"

// Document is a problem document. Its type names the class of the error, its
// status may say more: a missing token and too low a role are both of class
// denied, with status 401 and 403.
type Document struct {
	// Type is ProblemType and the class, and ":" and the code where there is one.
	Type string `json:"type"`
	// Title is the class's summary from the fault table.
	Title string `json:"title"`
	// Status is the HTTP status code.
	Status int `json:"status"`
	// Detail is about this error; empty for most 5xx, whose cause is only logged.
	Detail string `json:"detail,omitempty"`
	// RequestID finds the request in the server's log.
	RequestID string `json:"requestId,omitempty"`
	// Errors names the single parts of a request that are wrong.
	Errors []FieldError `json:"errors,omitempty"`

	retryAfter time.Duration
	members    any
}

// standard is a Document without its MarshalJSON.
type standard Document

// MarshalJSON writes the standard members, and behind them those of
// [WithMembers].
func (d Document) MarshalJSON() ([]byte, error) {
	body, err := encode(standard(d))
	if err != nil || d.members == nil {
		return body, err
	}
	more, err := encode(d.members)
	if err != nil {
		return nil, err
	}
	if len(more) < 2 || more[0] != '{' {
		return nil, fault.Errorf(fault.Permanent, "httpd: members of a problem document are a %T, which is no object", d.members)
	}
	if len(more) > len("{}") {
		body = append(append(body[:len(body)-1], ','), more[1:]...)
	}
	return body, nil
}

// encode is JSON without escapes for HTML: it is JSON and says so, with nosniff.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// FieldError is one wrong part of a request. The value is never echoed.
type FieldError struct {
	// Location is a path such as "query.limit" or "body.items[2].name".
	Location string `json:"location,omitempty"`
	// Message says what is wrong with it.
	Message string `json:"message"`
}

// Problem returns the document of an error: class, title and status come from
// the fault table (see [WithStatus] and [WithRetryAfter] for what an error can
// add). The error's own text is shown for a status below 500 only.
func Problem(err error) Document {
	class := fault.Of(err)
	var extra *annotated
	annotation, ok := errors.AsType[*annotated](err)
	if ok {
		extra = annotation
	} else {
		extra = &annotated{}
	}
	status := extra.status
	code := fault.CodeOf(err)
	if _, large := errors.AsType[*http.MaxBytesError](err); large && status == 0 {
		class, code, status = fault.Invalid, tooLarge, http.StatusRequestEntityTooLarge
	}
	m := class.Meaning()
	if status == 0 {
		status = m.HTTPStatus
	}
	d := Document{
		Type:       ProblemType + string(m.Class),
		Title:      m.Summary,
		Status:     status,
		Errors:     extra.fields,
		retryAfter: extra.retryAfter,
		members:    extra.members,
	}
	if code != "" {
		d.Type += ":" + code
	}
	if status < 500 || extra.told {
		d.Detail = err.Error()
	}
	if d.retryAfter == 0 {
		switch m.Class {
		case fault.Quota, fault.Transient, fault.Timeout, fault.Unavailable:
			d.retryAfter = m.Retry.Min
		}
	}
	return d
}

// annotated adds to an error what only HTTP asks for.
type annotated struct {
	error
	status     int
	retryAfter time.Duration
	fields     []FieldError
	told       bool
	members    any
}

func (a *annotated) Unwrap() error { return a.error }

// WithStatus gives err a status code sharper than its class's own, such as 401
// for Denied or 413 for Invalid. The class stays.
func WithStatus(err error, status int) error {
	return annotate(err, func(a *annotated) { a.status = status })
}

// WithRetryAfter says when a client should come back. It is rounded up to
// whole seconds on the wire.
func WithRetryAfter(err error, d time.Duration) error {
	return annotate(err, func(a *annotated) { a.retryAfter = d })
}

// WithDetail lets the client see the error's own text although the status is
// 500 or above, and keeps it out of the log of failures: for an answer that is
// meant for the client, such as a pool in which nothing is free now.
func WithDetail(err error) error {
	return annotate(err, func(a *annotated) { a.told = true })
}

// WithFields names the wrong parts of a request.
func WithFields(err error, fields []FieldError) error {
	return annotate(err, func(a *annotated) { a.fields = fields })
}

// WithMembers adds extension members to the document of err (RFC 9457, 3.2):
// the fields of a struct, or of a pointer to one, under names that no standard
// member has.
func WithMembers(err error, members any) error {
	return annotate(err, func(a *annotated) { a.members = members })
}

func annotate(err error, set func(*annotated)) error {
	a := &annotated{}
	if inner, ok := errors.AsType[*annotated](err); ok {
		*a = *inner
	}
	a.error = err
	set(a)
	return a
}

// Report returns the document of err with the request's id, and logs the cause
// of a 5xx, which the client does not see. A request whose client went away is
// no error of the server and is not logged as one.
func Report(ctx context.Context, log *slog.Logger, err error) Document {
	d := Problem(err)
	d.RequestID = RequestID(ctx)
	if extra, ok := errors.AsType[*annotated](err); d.Status >= 500 && !(ok && extra.told) {
		level := slog.LevelError
		if ctx.Err() != nil {
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "request failed", "request", d.RequestID,
			"class", fault.Of(err).Meaning().Label, "error", err)
	}
	return d
}

// WriteError reports err and answers with its document.
func WriteError(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	Report(r.Context(), log, err).Write(w)
}

// Header sets the headers that go with the document.
func (d Document) Header(h http.Header) {
	h.Set("Content-Type", ProblemMediaType)
	h.Set("Cache-Control", "no-store")
	if d.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((d.retryAfter+time.Second-1)/time.Second), 10))
	}
}

// Write answers with the document.
func (d Document) Write(w http.ResponseWriter) {
	body, err := encode(d)
	if err != nil {
		// Strings and numbers always marshal.
		panic(fmt.Sprintf("problem document: %v", err))
	}
	d.Header(w.Header())
	w.WriteHeader(d.Status)
	// A client that is gone cannot be told so.
	_, _ = w.Write(append(body, '\n'))
}
