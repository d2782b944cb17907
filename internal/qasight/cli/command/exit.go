package command

import (
	"errors"
	"fmt"
	"strings"

	"fleetdesk/internal/core/fault"
)

// The exit codes, one table for all commands; exec and stage run otherwise pass
// on their command's own.
const (
	ExitOK = 0
	// ExitLook: a pool needs a look, or a change was applied in part.
	ExitLook = 1
	// ExitUsage: the command line or the file is wrong.
	ExitUsage = 2
	// ExitList: a provider's list failed; it wins over ExitLook.
	ExitList = 3
	// ExitStore: the lease store or the log does not answer.
	ExitStore = 69
	// ExitNoneFree: no key came free in time.
	ExitNoneFree = 75
	// ExitLost: the lease was lost; the command's process group was stopped.
	ExitLost = 76
	// ExitRefused: a rule, a missing token or role, or the person asked refuses it.
	ExitRefused = 77
	// ExitChecks: keys' checks failed, and no more keys may be taken out of use.
	ExitChecks = 78
	// ExitNotExecutable and ExitNotFound: the command cannot start.
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// ExitCodes is the table as --help shows it.
func ExitCodes() []struct {
	Code    string
	Meaning string
} {
	return []struct{ Code, Meaning string }{
		{"0", "all well"},
		{"1", "a pool needs a look, or a change was applied in part"},
		{"2", "the command line or qasight.yaml is wrong"},
		{"3", "a provider's list failed: what exists is not known"},
		{"69", "the lease store or the action log does not answer"},
		{"75", "no key came free in time"},
		{"76", "the lease was lost; the command was stopped"},
		{"77", "refused: by a rule, for want of a token or role, or by the person asked"},
		{"78", "checks of keys failed, and no more keys may be taken out of use"},
		{"126, 127", "the command cannot start"},
	}
}

// ExitHelp is the table as text.
func ExitHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, r := range ExitCodes() {
		fmt.Fprintf(&b, "  %-9s %s\n", r.Code, r.Meaning)
	}
	return b.String()
}

// exit is an error that says with which code the process ends.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// Exit is an error that ends the process with a code. With a nil err nothing is
// printed: the command has said all already.
func Exit(code int, err error) error { return &exit{code, err} }

// Silent reports whether nothing is to be printed of err.
func Silent(err error) bool {
	e, ok := errors.AsType[*exit](err)
	return ok && e.err == nil
}

// ExitCode is the code with which a process ends after err: that of [Exit], or
// what its class and code mean.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*exit](err); ok {
		return e.code
	}
	switch code := fault.CodeOf(err); {
	case code == "none_free" || code == "queue_full" || code == "busy" || code == "rate":
		return ExitNoneFree
	case strings.HasPrefix(code, "lease"):
		return ExitLost
	}
	switch fault.Of(err) {
	case fault.Invalid, fault.NotFound:
		return ExitUsage
	case fault.Denied, fault.Conflict:
		return ExitRefused
	case fault.Quota:
		return ExitNoneFree
	case fault.Unavailable, fault.Timeout, fault.Transient, fault.Permanent, fault.Unsupported:
	}
	return ExitStore
}
