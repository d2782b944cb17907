// Package action holds the rules of the action log, in which a person's provider
// commands are recorded before they run, and the contract of what keeps it. It
// does no I/O; time is the store's.
//
// # How an action is told
//
// An action is one command for one key (or one look at what exists). It is told
// by entries that are only ever added: *started* before the command runs,
// *finished* after it, and *resolved* by a person who looked where no finished
// entry came. [Next] says which entry may follow, [Fold] what they mean together.
// An action without an end is one whose outcome is unknown: nothing is guessed.
package action

import (
	"context"
	"time"
)

// Phase is what an entry tells of its action.
type Phase string

// The phases.
const (
	// PhaseStarted: the command is about to run.
	PhaseStarted Phase = "started"
	// PhaseFinished: it ended, and how.
	PhaseFinished Phase = "finished"
	// PhaseResolved: a person looked at an action without an end.
	PhaseResolved Phase = "resolved"
)

// Verb is what the command does.
type Verb string

// The verbs.
const (
	VerbCreate  Verb = "create"
	VerbDestroy Verb = "destroy"
	// VerbList is a look at what exists, when a change is based on it. It is of
	// no key.
	VerbList Verb = "list"
)

// Entry is one row of the log.
type Entry struct {
	// Seq is given by the store. It grows: see [Log].
	Seq int64
	// Action is the action's id, which whoever runs the command draws: 16 to 64
	// letters, digits, - and _, a letter or digit first, so many of them at
	// random that no other action has it (crypto/rand.Text).
	Action string
	Phase  Phase
	// Pool and Key name what the command is for; Key is "" for a list.
	Pool, Key string
	Verb      Verb
	// User and Host are who runs it and where: 1 to [MaxWho] bytes; Host may
	// be "". Those of a resolved entry are the person's who looked.
	User, Host string
	// Command is the text that runs, at most [MaxText] bytes (see [Cut]); "" in
	// a resolved entry, since nothing ran.
	Command string
	// OK is whether it succeeded: nil in a started entry, never nil in a finished
	// one. In a resolved one it is what the person found, nil for no verdict.
	OK *bool
	// Detail is the command's output, or the person's note, at most [MaxText]
	// bytes (see [Cut]); "" in a started entry.
	Detail string
	// Time is given by the store: when the entry was kept.
	Time time.Time
}

// Query selects entries. An empty field does not narrow.
type Query struct {
	// Pool, Key and Action are exact.
	Pool, Key, Action string
	// Before is the Seq of the last entry of the page before; 0 for the first.
	Before int64
	// Limit is the page's size, at least 1.
	Limit int
}

// OpenQuery selects actions without an end. An empty field does not narrow.
type OpenQuery struct {
	// Pool is exact.
	Pool string
	// Keys are at most [MaxKeys]; with some of them, the lists of a pool are
	// left out.
	Keys []string
	// After is the Seq of the last entry of the page before; 0 for the first.
	After int64
	// Limit is the page's size, at least 1.
	Limit int
}

// Log keeps entries, for ever and as they are: there is no way to change or
// remove one. Errors carry a class of core/fault, and code where one is named:
// besides those below, Unavailable when the store does not answer, and Timeout
// when ctx ended first (whether an Append was done is unknown then; the same one
// may be made again). All methods honour ctx and may be called concurrently, also
// from several processes on one database. Slices and pointers that go in or come
// out stay their caller's own.
//
// Seq grows from entry to entry, and in the order in which entries are seen: once
// one was read, none with a lesser Seq is added. Time is in UTC to the
// microsecond, rounded down. Texts are compared byte by byte.
type Log interface {
	// Append adds the entry when [Next] says so, in one transaction with what
	// it looks at, and returns it as kept, with Seq and Time; what e says of
	// those is not looked at. The same entry again (all else being equal) adds
	// nothing and returns what was kept the first time. Errors are Next's.
	Append(ctx context.Context, e Entry) (Entry, error)
	// Entries returns entries with the greatest Seq first, at most q.Limit of
	// those before q.Before. A query that [Query.Validate] refuses is Invalid.
	Entries(ctx context.Context, q Query) ([]Entry, error)
	// Open returns the started entries of actions that have neither a finished
	// nor a resolved one, with the least Seq first, at most q.Limit of those
	// after q.After. A query that [OpenQuery.Validate] refuses is Invalid.
	Open(ctx context.Context, q OpenQuery) ([]Entry, error)
}
