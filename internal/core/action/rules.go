package action

import (
	"cmp"
	"slices"

	"fleetdesk/internal/core/fault"
)

// Next decides about an entry, given all entries of its action that the log
// holds, in any order. With add, the entry is to be kept as it is. Otherwise the
// log holds the same one already, and Next returns it.
//
//   - A started entry is the first of its action.
//   - A finished one needs the started one, and tells of the same pool, key, verb,
//     user, host and command. There is one.
//   - A resolved one needs the started one, of the same pool, key and verb, and no
//     finished one. There is one. A finished one may still come after it: what the
//     command itself knows late is worth more than silence.
//
// Errors: Invalid (see [Entry.Validate]); NotFound with the code action without
// a started entry; Conflict with the codes action_exists, action_differs and
// action_ended.
func Next(existing []Entry, e Entry) (held Entry, add bool, err error) {
	if err := e.Validate(); err != nil {
		return Entry{}, false, err
	}
	var started, finished, resolved *Entry
	for i := range existing {
		x := &existing[i]
		if same(*x, e) {
			return x.clone(), false, nil
		}
		switch x.Phase {
		case PhaseStarted:
			started = x
		case PhaseFinished:
			finished = x
		case PhaseResolved:
			resolved = x
		}
	}
	if e.Phase == PhaseStarted {
		if len(existing) > 0 {
			return Entry{}, false, refuse(fault.Conflict, CodeExists, "action %s is another one: draw a new id", e.Action)
		}
		return Entry{}, true, nil
	}
	switch {
	case started == nil:
		return Entry{}, false, refuse(fault.NotFound, CodeAction, "action %s was never started", e.Action)
	case finished != nil:
		return Entry{}, false, refuse(fault.Conflict, CodeEnded, "action %s finished already", e.Action)
	case e.Phase == PhaseResolved && resolved != nil:
		return Entry{}, false, refuse(fault.Conflict, CodeEnded, "action %s was resolved already, by %s", e.Action, resolved.User)
	case e.Pool != started.Pool || e.Key != started.Key || e.Verb != started.Verb,
		e.Phase == PhaseFinished && (e.User != started.User || e.Host != started.Host || e.Command != started.Command):
		return Entry{}, false, refuse(fault.Conflict, CodeDiffers,
			"action %s is the %s of %q in pool %s, started by %s: tell of that one", e.Action, started.Verb, started.Key, started.Pool, started.User)
	}
	return Entry{}, true, nil
}

func refuse(c fault.Class, code, format string, args ...any) error {
	return fault.WithCode(fault.Errorf(c, format, args...), code)
}

// same compares what whoever appends says.
func same(a, b Entry) bool {
	if (a.OK == nil) != (b.OK == nil) || a.OK != nil && *a.OK != *b.OK {
		return false
	}
	a.Seq, a.Time, a.OK = b.Seq, b.Time, b.OK
	return a == b
}

// clone shares nothing with e.
func (e Entry) clone() Entry {
	if e.OK != nil {
		ok := *e.OK
		e.OK = &ok
	}
	return e
}

// State is what is known of an action.
type State string

// The states.
const (
	// StateUnfinished: it runs, or its outcome is unknown.
	StateUnfinished State = "unfinished"
	// StateOK and StateFailed: it finished.
	StateOK     State = "ok"
	StateFailed State = "failed"
	// StateResolved: it never finished, and a person looked.
	StateResolved State = "resolved"
)

// Action is one action as its entries tell it.
type Action struct {
	ID    string
	State State
	// Pool, Key and Verb are the same in all of its entries.
	Pool, Key string
	Verb      Verb
	// Started, Finished and Resolved are its entries; nil for one that does not
	// exist or was not among those folded.
	Started, Finished, Resolved *Entry
}

// Fold puts entries together, in any order, and returns their actions with the
// latest begun first. Entries must be all of their actions, or at least all that
// are newer than the oldest one given, as pages of [Log.Entries] from the first
// one on are: an end that was left out would make an action look unfinished.
func Fold(entries []Entry) []Action {
	byID := map[string]*Action{}
	first := map[string]int64{} // the least Seq of each
	for _, e := range slices.SortedFunc(slices.Values(entries), func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) }) {
		a := byID[e.Action]
		if a == nil {
			a = &Action{ID: e.Action, Pool: e.Pool, Key: e.Key, Verb: e.Verb}
			byID[e.Action], first[e.Action] = a, e.Seq
		}
		own := e.clone()
		switch {
		case e.Phase == PhaseStarted && a.Started == nil:
			a.Started = &own
		case e.Phase == PhaseFinished && a.Finished == nil:
			a.Finished = &own
		case e.Phase == PhaseResolved && a.Resolved == nil:
			a.Resolved = &own
		}
	}
	actions := make([]Action, 0, len(byID))
	for _, a := range byID {
		a.State = a.state()
		actions = append(actions, *a)
	}
	slices.SortFunc(actions, func(a, b Action) int {
		return cmp.Or(cmp.Compare(first[b.ID], first[a.ID]), cmp.Compare(a.ID, b.ID))
	})
	return actions
}

func (a *Action) state() State {
	switch {
	case a.Finished != nil && a.Finished.OK != nil && *a.Finished.OK:
		return StateOK
	case a.Finished != nil:
		return StateFailed
	case a.Resolved != nil:
		return StateResolved
	}
	return StateUnfinished
}
