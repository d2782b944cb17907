package sshdial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"unicode"

	"fleetdesk/internal/core/fault"
)

// maxText bounds what the far side may put into an error, in bytes.
const maxText = 300

// clean makes a text of the far side fit for a log line or a condition.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "�")
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// said is an error with a text of its own; the cause stays reachable. The
// texts of the network's errors have port numbers that change each time, and
// a condition with such a text would never rest.
type said struct {
	text  string
	cause error
}

func (e *said) Error() string { return e.text }
func (e *said) Unwrap() error { return e.cause }

func says(class fault.Class, cause error, format string, args ...any) error {
	return fault.Wrap(class, &said{fmt.Sprintf(format, args...), cause})
}

// reason is the innermost text of err, without addresses.
func reason(err error) string {
	if oe, ok := errors.AsType[*net.OpError](err); ok {
		return clean(oe.Err.Error())
	}
	text := err.Error()
	for _, prefix := range []string{"ssh: handshake failed: ", "ssh: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	if text == "EOF" {
		text = "it closed the connection"
	}
	return clean(text)
}

func timedOut(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout() || errors.Is(err, os.ErrDeadlineExceeded)
}

func cancelled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

func gaveUp(cause error) error {
	return says(fault.Transient, errors.Join(context.Canceled, cause), "the connection was no longer wanted")
}
