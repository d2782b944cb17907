// Package hooks runs the owner's on_check and on_reset around the use of a key:
// what a taker does before it uses one, and before it gives it back.
//
// A [Session] is one key from its grant to its release. All that time its lease is
// kept alive, and whatever runs on the key runs under a supervisor that ends it
// before the lease ends, also when this process is killed.
package hooks

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/pool"
)

// Broker is what of a broker a taker needs.
type Broker interface {
	broker.Leaser
	// Place says which broker it is.
	Place() broker.Place
	// Pool returns a pool with its keys; see broker.Viewer.
	Pool(ctx context.Context, name string) (broker.View, error)
}

// Runner takes keys of one pool and runs its hooks. It may be used concurrently;
// its fields are not changed meanwhile.
type Runner struct {
	Broker Broker
	// Pool is the file's pool, and Where its place there, for errors about its hooks.
	Pool  pool.Pool
	Where string
	// Check and Reset are the hooks, run by /bin/sh -c; "" for none. Each run has
	// Timeout and begins in Dir.
	Check, Reset string
	Timeout      time.Duration
	Dir          string
	// Env is the environment of hooks without the key's variables, each
	// "NAME=value". Hide are texts to be hidden in what is kept of their output.
	Env, Hide []string
	// Guard starts supervisors.
	Guard proc.Guard
	// Output gets what hooks write, as it comes; nil for nobody. Its errors are
	// ignored: a reader that went away breaks no key.
	Output io.Writer
	// Say tells the person a sentence about what goes on; nil for nobody. It may be
	// called from several goroutines.
	Say func(text string)
	// Look is how often a running lease is looked at besides its renewals, to see
	// soon that an admin ended it; 0 for [DefaultLook].
	Look time.Duration
}

// DefaultLook is how long an admin's end of a lease may go unnoticed.
const DefaultLook = 5 * time.Second

// Codes of errors (see fault.WithCode).
const (
	// CodeChecks: keys were not fit for use, and no further one may be tried; the
	// error is a [*ChecksError].
	CodeChecks = "checks"
	// CodeHook: a hook cannot be started; the error is a [*HookError].
	CodeHook = "hook"
	// CodeLost is for a lease that cannot be kept for a reason which has no code of
	// its own; all such codes begin with "lease".
	CodeLost = "lease_lost"
)

// Failure is a hook that failed on a key.
type Failure struct {
	// Key it ran on; Hook is on_check or on_reset.
	Key, Hook string
	// Text says how, in one line: what it ended with, and the end of its output.
	Text string
}

// String is the failure in one line.
func (f Failure) String() string { return f.Key + ": " + f.Text }

// ChecksError says that keys were tried and none was fit, and that trying on is of
// no use.
type ChecksError struct {
	Pool   string
	Failed []Failure
	// All is whether every key of the pool is out of use by now. Else a bound was
	// reached: of the keys that a failed check may take out of use, or of tries.
	All bool
}

// Error names each failure and what a person could do.
func (e *ChecksError) Error() string {
	var b strings.Builder
	if e.All {
		fmt.Fprintf(&b, "every key of %s is out of use by now:", e.Pool)
	} else {
		fmt.Fprintf(&b, "no key of %s that was tried is fit for use, and no more may be taken out of use "+
			"(at most a third of a pool, and at least one key): the fault is likely elsewhere:", e.Pool)
	}
	for _, f := range e.Failed {
		b.WriteString("\n  " + f.String())
	}
	fmt.Fprintf(&b, "\nsee what the hooks found. `qasight pool status %s` shows the keys, and `qasight pool enable %s KEY` puts one back", e.Pool, e.Pool)
	return b.String()
}

func checksError(e *ChecksError) error {
	return fault.WithCode(fault.Wrap(fault.Permanent, e), CodeChecks)
}

// HookError says that a hook cannot be started: that is the file's fault and not
// the key's.
type HookError struct {
	// Hook is on_check or on_reset, of the pool that stands at Where.
	Hook, Pool, Where string
	// Code is the exit code: 126 or 127.
	Code int
	// Text is what the shell or the kernel said.
	Text string
}

// Error names the hook and its place.
func (e *HookError) Error() string {
	where := "pool " + e.Pool
	if e.Where != "" {
		where = e.Where + ": " + where
	}
	return fmt.Sprintf("%s: %s cannot be started (exit code %d): %s: mend the command, or its script (a script needs chmod +x)",
		where, e.Hook, e.Code, e.Text)
}

func hookError(e *HookError) error {
	return fault.WithCode(fault.Wrap(fault.Invalid, e), CodeHook)
}

// The hooks as people call them.
const (
	onCheck = "on_check"
	onReset = "on_reset"
)

// kind is the value of QASIGHT_HOOK.
func kind(hook string) string { return strings.TrimPrefix(hook, "on_") }

func (r *Runner) say(format string, args ...any) {
	if r.Say != nil {
		r.Say(fmt.Sprintf(format, args...))
	}
}

// deaf ignores the errors of a writer.
type deaf struct{ to io.Writer }

func (d deaf) Write(p []byte) (int, error) {
	if d.to != nil {
		_, _ = d.to.Write(p)
	}
	return len(p), nil
}
