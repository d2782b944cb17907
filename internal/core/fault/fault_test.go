package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
)

func TestOf(t *testing.T) {
	quota := fault.New(fault.Quota, "12 of 12 used")
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   fault.Class
	}{
		"nil":           {"no error has no class", nil, ""},
		"unclassed":     {"an error nobody classed may pass", io.EOF, fault.Transient},
		"deadline":      {"a bare deadline says what it is", context.DeadlineExceeded, fault.Timeout},
		"cancelled":     {"the caller went away: nothing is wrong for good", context.Canceled, fault.Transient},
		"given":         {"the class given", quota, fault.Quota},
		"wrapped":       {"passing on keeps the class", fmt.Errorf("creating: %w", quota), fault.Quota},
		"outermost":     {"the nearest layer to the caller that classes wins", fault.Wrap(fault.Permanent, quota), fault.Permanent},
		"bare class":    {"a class alone is an error", fmt.Errorf("x: %w", fault.Denied), fault.Denied},
		"over deadline": {"a class wins over what it wraps", fault.Errorf(fault.Unavailable, "host: %w", context.DeadlineExceeded), fault.Unavailable},
		"joined":        {"joined errors have the first's class", errors.Join(io.EOF, quota), fault.Quota},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fault.Of(tc.err); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestWrapKeepsMessageAndCause(t *testing.T) {
	err := fault.Wrap(fault.NotFound, io.ErrUnexpectedEOF)
	if err.Error() != io.ErrUnexpectedEOF.Error() {
		t.Errorf("the message became %q", err)
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, fault.NotFound) {
		t.Error("cause or class is out of reach")
	}
	if errors.Is(err, fault.Quota) {
		t.Error("it is of a class that it was not given")
	}
	if fault.Wrap(fault.NotFound, nil) != nil {
		t.Error("no error became one")
	}
}

// Every class that is declared has a row, and each row is complete: what
// surfaces anywhere surfaces the same everywhere.
func TestTable(t *testing.T) {
	declared := []fault.Class{
		fault.NotFound, fault.Conflict, fault.Invalid, fault.Denied, fault.Permanent,
		fault.Quota, fault.Transient, fault.Timeout, fault.Unavailable, fault.Unsupported,
	}
	rows := fault.Table()
	if len(rows) != len(declared) {
		t.Fatalf("%d rows for %d classes", len(rows), len(declared))
	}
	camel, snake := regexp.MustCompile(`^[A-Z][A-Za-z]+$`), regexp.MustCompile(`^[a-z_]+$`)
	reasons, labels := map[string]bool{}, map[string]bool{}
	for i, m := range rows {
		switch {
		case m.Class != declared[i]:
			t.Errorf("row %d is %q, want %q", i, m.Class, declared[i])
		case m.Class.Meaning() != m:
			t.Errorf("%s: Meaning gives another row", m.Class)
		case m.Retry.Min <= 0 || m.Retry.Max < m.Retry.Min:
			t.Errorf("%s: retry %v..%v would be a hot loop or none", m.Class, m.Retry.Min, m.Retry.Max)
		case !camel.MatchString(m.Reason) || reasons[m.Reason]:
			t.Errorf("%s: reason %q is no condition reason of its own", m.Class, m.Reason)
		case !snake.MatchString(m.Label) || labels[m.Label] || m.Label != string(m.Class):
			t.Errorf("%s: label %q", m.Class, m.Label)
		case m.HTTPStatus < 400 || m.HTTPStatus > 599:
			t.Errorf("%s: HTTP status %d is no error", m.Class, m.HTTPStatus)
		case m.ExitCode < 1 || m.ExitCode > 125:
			t.Errorf("%s: exit code %d is not for us to use", m.Class, m.ExitCode)
		case m.Summary == "":
			t.Errorf("%s: no summary", m.Class)
		}
		reasons[m.Reason], labels[m.Label] = true, true
	}
	if fault.Class("never heard of").Meaning().Class != fault.Transient {
		t.Error("an unknown class from the wire must be treated as an unclassed error is")
	}
	rows[0].Reason = "Changed"
	if fault.Table()[0].Reason == "Changed" {
		t.Error("callers can change the table")
	}
}

func TestRetryAfter(t *testing.T) {
	r := fault.Retry{Min: time.Second, Max: 10 * time.Second}
	for n, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: 10 * time.Second, 1 << 30: 10 * time.Second} {
		if got := r.After(n, 0); got != want {
			t.Errorf("try %d: %v, want %v", n, got, want)
		}
	}
	if got := r.After(5, 0.999999); got < 5*time.Second || got > 5100*time.Millisecond {
		t.Errorf("the most jitter gives %v, want half", got)
	}
}

func TestCodes(t *testing.T) {
	cause := errors.New("boom")
	err := fault.WithCode(fault.Wrap(fault.Quota, cause), "none_free")
	wrapped := fmt.Errorf("pool a: %w", err)
	if got := fault.CodeOf(wrapped); got != "none_free" {
		t.Errorf("a wrapped error has the code %q, want none_free", got)
	}
	if fault.Of(wrapped) != fault.Quota || !errors.Is(wrapped, cause) || err.Error() != "boom" {
		t.Errorf("a code changed the class, the cause or the text: %v (%s)", err, fault.Of(err))
	}
	if got := fault.CodeOf(fault.WithCode(err, "queue_full")); got != "queue_full" {
		t.Errorf("the outermost code is %q, want queue_full", got)
	}
	if fault.WithCode(nil, "none_free") != nil || fault.CodeOf(nil) != "" || fault.CodeOf(cause) != "" {
		t.Error("an error without a code has one")
	}
}
