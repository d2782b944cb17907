// Package fault classes errors: what kind of failure happened, and what each
// kind means to the reconciler, to an HTTP client, to a shell and to a metric.
//
// Code acts on the class, never on the text. The nearest layer that knows
// gives the class; whoever only passes an error on wraps it with %w and the
// class stays. An error that nobody classed is [Transient].
package fault

import (
	"context"
	"errors"
	"fmt"
)

// Class is the kind of a failure. The values are stable: they cross the wire
// and label metrics.
//
// A Class is itself an error, so that errors.Is(err, fault.NotFound) asks
// whether err is of that class.
type Class string

// The classes. [Table] says what each one means.
const (
	// NotFound: the thing asked for does not exist. Only a direct look-up may
	// say so; absence from a list never is NotFound.
	NotFound Class = "not_found"
	// Conflict: the thing exists already, or changed since it was read.
	Conflict Class = "conflict"
	// Invalid: the request itself is wrong; the same request fails for ever.
	Invalid Class = "invalid"
	// Denied: the caller may not do this.
	Denied Class = "denied"
	// Permanent: it failed, and trying again changes nothing until a person
	// changes the specification, a Secret or the configuration.
	Permanent Class = "permanent"
	// Quota: a limit of the account, host or pool is reached.
	Quota Class = "quota"
	// Transient: it may well work when tried again soon.
	Transient Class = "transient"
	// Timeout: no answer within the deadline; whether it was done is unknown.
	Timeout Class = "timeout"
	// Unavailable: the other side cannot be reached or says it is not ready.
	Unavailable Class = "unavailable"
	// Unsupported: this provider or version cannot do it.
	Unsupported Class = "unsupported"
)

// Error makes a Class usable as the target of errors.Is.
func (c Class) Error() string { return string(c) }

// classed is an error with its class; the message stays the cause's own.
type classed struct {
	class Class
	err   error
}

func (e *classed) Error() string { return e.err.Error() }

// Unwrap keeps both the class and the cause reachable by errors.Is and As.
func (e *classed) Unwrap() []error { return []error{e.class, e.err} }

// New returns an error of the class with that message.
func New(c Class, msg string) error { return &classed{c, errors.New(msg)} }

// Errorf is fmt.Errorf with a class. A %w operand stays reachable, but the
// class given here wins over the operand's own.
func Errorf(c Class, format string, args ...any) error {
	return &classed{c, fmt.Errorf(format, args...)}
}

// Wrap gives err a class and keeps its message; nil stays nil. The outermost
// class wins.
func Wrap(c Class, err error) error {
	if err == nil {
		return nil
	}
	return &classed{c, err}
}

// Of returns the class of err: the outermost one given, [Timeout] for a bare
// context.DeadlineExceeded, [Transient] for an error nobody classed, and ""
// for nil.
func Of(err error) Class {
	if err == nil {
		return ""
	}
	if c, ok := given(err); ok {
		return c
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Timeout
	}
	return Transient
}

// Classed reports whether somebody gave err a class.
func Classed(err error) bool {
	_, ok := given(err)
	return ok
}

func given(err error) (Class, bool) {
	if e, ok := errors.AsType[*classed](err); ok {
		return e.class, true
	}
	if c, ok := errors.AsType[Class](err); ok {
		return c, true
	}
	return "", false
}

// coded is an error with a code besides its class.
type coded struct {
	code string
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

// WithCode names err more sharply than its class does, for callers that must
// tell errors of one class apart (a pool without a free key and a rate limit
// are both [Quota]). Codes are stable: they cross the wire as the last part of
// a problem's type. The grammar is [a-z][a-z0-9_]*; nil stays nil, the class
// stays, and the outermost code wins.
func WithCode(err error, code string) error {
	if err == nil {
		return nil
	}
	return &coded{code, err}
}

// CodeOf returns the code of err, or "" when nobody gave one.
func CodeOf(err error) string {
	if e, ok := errors.AsType[*coded](err); ok {
		return e.code
	}
	return ""
}
