// Package proc runs the commands that people configured: with nothing but an
// environment as input, as process groups of their own, within a time, and with
// bounded output. It is the one door to os/exec in the programs.
//
// There are two ways to run one. [Run] starts it as a child of this process: for
// looks, which do no harm when this process is killed. A [Guard] starts it under
// a supervisor, a second process of this program, which ends the command's whole
// process group before a deadline, also when this process was killed: for
// whatever works on a machine that will be somebody else's later.
package proc

import (
	"io"
	"os"
	"syscall"
	"time"
)

// Command is one command to be run.
type Command struct {
	// Shell is run by /bin/sh -c, as it is: nothing is ever spliced into it.
	// Exactly one of Shell and Args is set.
	Shell string
	// Args are a program, looked for in the absolute folders of Env's PATH, and its
	// arguments.
	Args []string
	// Dir is where it runs; "" for this process's own folder.
	Dir string
	// Env is its whole environment, each "NAME=value". Of two with one name the
	// last one counts.
	Env []string
	// Timeout ends it; 0 for no limit besides ctx's; less is over at once.
	Timeout time.Duration
	// Grace is how long its process group has between TERM and KILL; 0 for
	// [DefaultGrace], less for KILL alone.
	Grace time.Duration
	// Stdout and Stderr get what it writes as it comes, each at most one call at
	// a time, and never both at once; nil for nobody. When one of them
	// returns an error, the command is ended and that error is in Run's.
	Stdout, Stderr io.Writer
	// Limit bounds [Result.Output], in bytes; 0 for [DefaultLimit], and at least
	// 256.
	Limit int
	// Hide are texts, such as the values of secrets in Env, that are replaced by
	// "***" in [Result.Output]. Space around them counts for nothing, and those of
	// fewer than 6 bytes are not looked for. One that is printed in another form
	// (quoted, encoded, one of its lines alone) or partly to each output is not
	// found, and Stdout and Stderr get everything as it came.
	Hide []string
	// Files are the command's own standard input, output and error, for one that
	// belongs to the person at the terminal; Stdout, Stderr, Limit and Hide mean
	// nothing then, and Output stays empty. When In is the terminal that
	// this process has in the foreground, the command gets the foreground while
	// it runs; else, one that reads from a terminal is stopped by the kernel. Nil
	// for a command with an empty input whose output is kept; it has no terminal at
	// all, so what wants to ask a person fails at once.
	Files *Files
}

// Files are open files; all three are needed.
type Files struct{ In, Out, Err *os.File }

const (
	// DefaultGrace is the time between TERM and KILL.
	DefaultGrace = 5 * time.Second
	// DefaultLimit bounds the kept output, in bytes.
	DefaultLimit = 64 << 10
)

// Codes of errors (see fault.WithCode).
const (
	// CodeStart: the command could not be started.
	CodeStart = "start"
	// CodeTimeout: its own time was over.
	CodeTimeout = "timeout"
	// CodeDeadline: the deadline of a [Guard] came near.
	CodeDeadline = "deadline"
	// CodeStuck: something of its process group outlived KILL.
	CodeStuck = "stuck"
)

// Result is how a command ended.
type Result struct {
	// Code is its exit code; 128 and the signal's number when a signal ended it.
	// It is 126 or 127 when it could not be started.
	Code int
	// Signal is what ended it; 0 when it ended by itself.
	Signal syscall.Signal
	// Output is what it wrote to both outputs, in the order in which it came.
	// Bytes that are no UTF-8, and NULs, are U+FFFD; the middle of what is longer
	// than Limit is replaced by a mark that says how much is missing.
	Output string
	// Ended is why its process group was ended from here; "" when it was not.
	Ended Ended
	// Behind is set when the command's first process ended by itself and left
	// something behind: a process of its group, which was ended then, or one
	// outside of it that held the standard output open beyond the grace. Output
	// then lacks what that would have written. [Run] alone tells it.
	Behind bool
	// Took is how long it ran.
	Took time.Duration
}

// Ended is why a command was ended.
type Ended string

// The reasons.
const (
	// EndedTimeout: its own time was over.
	EndedTimeout Ended = "timeout"
	// EndedDeadline: the deadline of a [Guard] came near.
	EndedDeadline Ended = "deadline"
	// EndedStop: it was asked for ([Guarded.Stop], ctx).
	EndedStop Ended = "stop"
	// EndedOutput: a writer returned an error.
	EndedOutput Ended = "output"
)
