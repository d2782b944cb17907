// Package actiontest holds the conformance suite of [action.Log], which every
// log passes, and a log in memory for tests of what stands above.
package actiontest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
)

// Clause is one promise of the log's contract with the check that holds it.
type Clause struct {
	// Name is the subtest's name.
	Name string
	// Promise is the sentence that the check holds.
	Promise string
	// Check works on a fresh, empty log and returns what is wrong, or nil. It
	// returns an error rather than failing a test so that the suite can be
	// tried on broken logs.
	Check func(ctx context.Context, l action.Log) error
}

// Run checks every clause on a log of its own: newLog returns an empty one and
// cleans up after itself.
func Run(t *testing.T, newLog func(t *testing.T) action.Log) {
	t.Helper()
	for _, c := range Clauses() {
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.Check(ctx, newLog(t)); err != nil {
				t.Errorf("%s: %v", c.Promise, err)
			}
		})
	}
}

// Clauses returns the whole contract, in the order of the interface.
func Clauses() []Clause {
	return []Clause{
		{"Append/keeps", "an entry comes back as it was put in", appendKeeps},
		{"Append/stamps", "Seq and Time are the store's, whatever the entry says", appendStamps},
		{"Append/grows", "Seq grows from entry to entry, over all actions", appendGrows},
		{"Append/text", "every text that Validate lets through survives, the longest ones too", appendText},
		{"Append/pointer", "what OK points to stays its caller's own", appendPointer},
		{"Append/same", "the same entry again adds nothing and answers the same, also after later ones", appendSame},
		{"Append/exists", "another started entry with the id is Conflict and not kept", appendExists},
		{"Append/unknown", "an end without a beginning is NotFound and not kept", appendUnknown},
		{"Append/ended", "another end of a finished action is Conflict and not kept", appendEnded},
		{"Append/late", "a finished entry may come after a resolved one, a second resolved one not", appendLate},
		{"Append/differs", "an end that tells of something else is Conflict and not kept", appendDiffers},
		{"Append/invalid", "what Validate refuses is Invalid and not kept", appendInvalid},
		{"Append/bytes", "ids are compared byte by byte", appendBytes},
		{"Append/race-same", "of many who add the same entry all are told of one", appendRaceSame},
		{"Append/race-other", "of many who end one action otherwise one is believed", appendRaceOther},
		{"Append/race-order", "an entry never appears behind one that was read already", appendRaceOrder},
		{"Entries/empty", "an empty log has no entries and no error", entriesEmpty},
		{"Entries/newest", "the newest come first", entriesNewest},
		{"Entries/filters", "pool, key and action narrow exactly, together too", entriesFilters},
		{"Entries/paging", "pages neither skip nor repeat, while entries are added", entriesPaging},
		{"Entries/invalid", "a page that cannot be is Invalid", entriesInvalid},
		{"Open/unfinished", "what has a beginning and no end is open, the oldest first", openUnfinished},
		{"Open/filters", "pool and keys narrow exactly, together too", openFilters},
		{"Open/paging", "pages neither skip nor repeat, while actions end", openPaging},
		{"Open/invalid", "a page that cannot be, or too many keys, is Invalid", openInvalid},
		{"Context/ended", "a call whose context ended does nothing and is Timeout", contextEnded},
	}
}

// --- the pieces that the checks are written with ---

// id makes an action's id of a word.
func id(word string) string { return word + strings.Repeat("-0", (action.MinID+1)/2) }

// began is the started entry of an action.
func began(word, pool, key string) action.Entry {
	return action.Entry{
		Action: id(word), Phase: action.PhaseStarted, Pool: pool, Key: key, Verb: action.VerbDestroy,
		User: "ann@example.com", Host: "desk.example.com", Command: "./vms.sh destroy",
	}
}

// finished is how an action ended.
func finished(start action.Entry, ok bool, detail string) action.Entry {
	start.Phase, start.OK, start.Detail = action.PhaseFinished, &ok, detail
	return start
}

// resolved is what a person says of an action.
func resolved(start action.Entry, user, note string) action.Entry {
	start.Phase, start.User, start.Host, start.Command, start.Detail = action.PhaseResolved, user, "laptop", "", note
	return start
}

// add appends entries and returns them as kept.
func add(ctx context.Context, l action.Log, all ...action.Entry) ([]action.Entry, error) {
	out := make([]action.Entry, len(all))
	for i, e := range all {
		got, err := l.Append(ctx, e)
		if err != nil {
			return nil, fmt.Errorf("Append(%s %s): %w", e.Phase, e.Action, err)
		}
		out[i] = got
	}
	return out, nil
}

// refused says how an answer to Append differs from a refusal.
func refused(ctx context.Context, l action.Log, what string, e action.Entry, class fault.Class, code string) error {
	got, err := l.Append(ctx, e)
	if fault.Of(err) != class || code != "" && fault.CodeOf(err) != code {
		return fmt.Errorf("%s: class %q, code %q, want %q and %q (error: %w)", what, fault.Of(err), fault.CodeOf(err), class, code, err)
	}
	if d := cmp.Diff(action.Entry{}, got); d != "" {
		return fmt.Errorf("%s: an entry came with the error:\n%s", what, d)
	}
	return nil
}

// holds says how the log differs from the entries wanted, which are given as
// they were added.
func holds(ctx context.Context, l action.Log, want ...action.Entry) error {
	got, err := l.Entries(ctx, action.Query{Limit: len(want) + 10})
	if err != nil {
		return fmt.Errorf("Entries: %w", err)
	}
	slices.Reverse(got)
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		return fmt.Errorf("the log differs (-want +got):\n%s", d)
	}
	return nil
}

// class says how err differs from what was wanted.
func class(what string, err error, want fault.Class) error {
	if got := fault.Of(err); got != want {
		return fmt.Errorf("%s: class %q, want %q (error: %w)", what, got, want, err)
	}
	return nil
}

// first returns the first of the errors that is one.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// same says how two lists of entries differ.
func same(what string, want, got []action.Entry) error {
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		return fmt.Errorf("%s (-want +got):\n%s", what, d)
	}
	return nil
}
