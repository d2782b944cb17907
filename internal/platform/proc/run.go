package proc

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"fleetdesk/internal/core/fault"
)

// Run runs a command as a child of this process and returns when it and its
// whole process group have ended, and when everything that they wrote was read
// (a process that left the group and holds the pipe is waited for no longer than
// the grace; a writer that blocks is waited for). What the command left in its
// group at its end gets TERM, and KILL after the grace. Whatever exit code it
// ends with, err is nil as long as the command was not ended from here. When this
// process is killed, the command's first process is killed too (on Linux, and
// unless it is a set-user-ID program).
//
// Errors: Invalid (code "start") when it cannot be started, with Result.Code 126
// or 127, as a shell would say (a shell that does not find the command in its
// text ends with such a code by itself: that is no error here), but Transient
// with that code when the machine lacks memory, processes or files for it; Timeout
// (code "timeout") when its Timeout was over, ctx's own error when ctx ended first,
// the writer's when one failed, and Permanent (code "stuck") when something of
// the group outlived KILL, such as another user's process. With each of these
// Result tells what is known.
func Run(ctx context.Context, c Command) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{Code: codeNoExec, Ended: EndedStop}, fmt.Errorf("the command was not started: %w", err)
	}
	p, code, err := prepare(c)
	if err != nil {
		return Result{Code: code}, err
	}
	out := newCapture(c.Limit)
	files, err := out.open(c)
	if err != nil {
		code, err := notStarted(p, err)
		return Result{Code: code}, err
	}
	terminal := ownTerminal(c)
	begun := time.Now()
	child, err := launch(p, files, manner{session: c.Files == nil, terminal: terminal != nil})
	if err != nil {
		out.abandon()
		code, err := notStarted(p, err)
		return Result{Code: code}, err
	}
	out.started()
	why := watch(ctx, c, child, out)
	// What is about to end has a moment for it.
	behind := why == "" && !within(lingering, func() bool { return !groupLives(child.pid) })
	gone := child.end(grace(c))
	r := Result{Ended: why, Took: time.Since(begun), Behind: behind}
	if terminal != nil {
		takeForeground(terminal, child.pid)
	}
	out.finish(grace(c))
	r.Output = out.text()
	r.Behind = r.Behind || why == "" && out.held
	if child.hasEnded() {
		settle(&r, child.status)
	} else {
		r.Signal, r.Code = syscall.SIGKILL, 128+int(syscall.SIGKILL)
	}
	return r, verdict(ctx, c, r, out, gone, child.pid)
}

// lingering is how long a process may outlive the first one of its group without
// counting as left behind.
const lingering = 100 * time.Millisecond

// watch waits until the command ended or must end, and says why it must.
func watch(ctx context.Context, c Command, child *child, out *capture) Ended {
	var over <-chan time.Time
	if c.Timeout != 0 {
		timer := time.NewTimer(c.Timeout)
		defer timer.Stop()
		over = timer.C
	}
	var why Ended
	select {
	case <-child.ended:
	case <-over:
		why = EndedTimeout
	case <-ctx.Done():
		why = EndedStop
	case <-out.failed:
		why = EndedOutput
	}
	if child.hasEnded() {
		return "" // by itself, at the same time
	}
	return why
}

// verdict is the error of a command that was started.
func verdict(ctx context.Context, c Command, r Result, out *capture, gone bool, pgid int) error {
	switch {
	case !gone:
		return stuck(pgid)
	case r.Ended == EndedTimeout:
		return timedOut(c)
	case r.Ended == EndedDeadline:
		return fault.WithCode(fault.New(fault.Conflict,
			"the command was ended with its process group, since its deadline came: see why it took so long, or extend the deadline in time"),
			CodeDeadline)
	case r.Ended == EndedStop && ctx.Err() != nil:
		return fmt.Errorf("the command was ended with its process group: %w", ctx.Err())
	}
	if err := out.err(); err != nil {
		return fmt.Errorf("the command's output could not be passed on: %w", err)
	}
	return nil
}
