package client

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Class is the kind of a failure, as the server's problem documents name it.
// A Class is an error, so errors.Is(err, client.NotFound) asks for it.
type Class string

// The classes.
const (
	NotFound    Class = "not_found"   // it does not exist
	Conflict    Class = "conflict"    // it exists already, or changed meanwhile
	Invalid     Class = "invalid"     // the request is wrong and must be changed
	Denied      Class = "denied"      // no valid token (status 401) or too low a role (403)
	Permanent   Class = "permanent"   // it failed until a person changes something
	Quota       Class = "quota"       // a limit is reached; come back after RetryAfter
	Transient   Class = "transient"   // it may well work when tried again
	Timeout     Class = "timeout"     // no answer in time; whether it was done is unknown
	Unavailable Class = "unavailable" // the server or its database does not answer
	Unsupported Class = "unsupported" // this server cannot do it
)

// Error makes a Class usable as the target of errors.Is.
func (c Class) Error() string { return string(c) }

// Problem is the body of an error answer: an RFC 9457 problem document.
type Problem struct {
	// Type is "urn:fleetdesk:problem:" and the class, and ":" and a code where
	// errors of one class must be told apart.
	Type string `json:"type" doc:"urn:fleetdesk:problem: and the class of the error, and a colon and a code where errors of one class must be told apart." example:"urn:fleetdesk:problem:not_found:pool"`
	// Title is one sentence that is the same for every error of the class.
	Title string `json:"title" doc:"The same sentence for every error of the class."`
	// Status is the HTTP status code.
	Status int `json:"status" doc:"HTTP status code." example:"404"`
	// Detail is about this very error; empty for a server's own failure.
	Detail string `json:"detail,omitempty" doc:"About this very error; absent for a server's own failure."`
	// RequestID finds the request in the server's log.
	RequestID string `json:"requestId,omitempty" doc:"Finds the request in the server's log."`
	// Errors names the single parts of the request that are wrong.
	Errors []FieldError `json:"errors,omitempty" nullable:"false" doc:"The single parts of the request that are wrong."`
	// Why, Holders, Position and SecondsUntilFree come with the type
	// urn:fleetdesk:problem:quota:none_free alone: how many keys are kept from the
	// request by what, when it did not wait; who holds the keys that come free
	// next, the soonest first; the place that is kept for 15 s when the same
	// Idempotency-Key comes again; and when the next key is due.
	Why              []Why    `json:"why,omitempty" nullable:"false" doc:"With none_free: how many keys of the pool are kept from the request by what; absent after a wait."`
	Holders          []Holder `json:"holders,omitempty" nullable:"false" doc:"With none_free: who holds the keys that come free next, the soonest first, at most 5."`
	Position         int      `json:"position,omitempty" doc:"With none_free: the place in line that is kept for 15 seconds when the same Idempotency-Key comes again." example:"3"`
	SecondsUntilFree Seconds  `json:"secondsUntilFree,omitempty" doc:"With none_free: seconds until the next key comes free by time; absent when no time frees one." example:"42.5"`
}

// FieldError is one wrong part of a request.
type FieldError struct {
	// Location is a path such as "query.limit".
	Location string `json:"location,omitempty" doc:"Path of the part." example:"query.limit"`
	// Message says what is wrong.
	Message string `json:"message" doc:"What is wrong with it."`
}

// Error is every error that a method of [Client] returns.
type Error struct {
	// Class is what to act on; see also [Error.Is].
	Class Class
	// Code tells errors of one class apart, such as "none_free" and "rate" of
	// class Quota; "" when the server gave none.
	Code string
	// Status is the HTTP status code; 0 when no answer came.
	Status int
	// Title and Detail are the problem document's.
	Title, Detail string
	// RetryAfter is when the server asked to come back; 0 when it did not say.
	RetryAfter time.Duration
	// RequestID finds the request in the server's log.
	RequestID string
	// Fields are the wrong parts of the request.
	Fields []FieldError
	// Why, Holders, Position and UntilFree are told with the code none_free: see
	// [Problem].
	Why       []Why
	Holders   []Holder
	Position  int
	UntilFree time.Duration

	op    string
	cause error
}

// Error says what was asked, what came back and where to look. It never holds
// the token.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.op)
	b.WriteString(": ")
	switch {
	case e.cause != nil:
		b.WriteString(e.cause.Error())
	case e.Detail != "":
		b.WriteString(e.Detail)
	default:
		b.WriteString(e.Title)
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, " (%s, status %d", e.Class, e.Status)
		if e.RequestID != "" {
			fmt.Fprintf(&b, ", request %s", e.RequestID)
		}
		b.WriteString(")")
	}
	return b.String()
}

// Is reports whether target is the error's class.
func (e *Error) Is(target error) bool {
	c, ok := target.(Class)
	return ok && c == e.Class
}

// temporary reports whether the same call may well work in a moment.
func (e *Error) temporary() bool {
	switch e.Status {
	case 0:
		return e.Class == Unavailable || e.Class == Timeout
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// Unwrap is the cause where no answer came, such as context.Canceled.
func (e *Error) Unwrap() error { return e.cause }

const problemType = "urn:fleetdesk:problem:"

// classOf rebuilds class and code from the problem's type; an answer that is
// none of the server's own (a proxy in between) is classed by its status.
func classOf(typ string, status int) (Class, string) {
	if name, ok := strings.CutPrefix(typ, problemType); ok {
		class, code, _ := strings.Cut(name, ":")
		switch c := Class(class); c {
		case NotFound, Conflict, Invalid, Denied, Permanent, Quota, Transient, Timeout, Unavailable, Unsupported:
			return c, code
		}
	}
	return classOfStatus(status), ""
}

func classOfStatus(status int) Class {
	switch {
	case status == 401 || status == 403 || status == 407:
		return Denied
	case status == 404 || status == 410:
		return NotFound
	case status == 409 || status == 412:
		return Conflict
	case status == 429:
		return Quota
	case status == 408 || status == 504:
		return Timeout
	case status == 501:
		return Unsupported
	case status == 502 || status == 503:
		return Unavailable
	case status >= 500:
		return Transient
	case status >= 400:
		return Invalid
	}
	return Permanent
}
