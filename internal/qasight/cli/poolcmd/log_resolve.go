package poolcmd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
)

// runResolve adds what a person found to an action that has no end.
func runResolve(ctx context.Context, f *command.Factory, o *logOptions) error {
	file, err := f.Config()
	if err != nil {
		return err
	}
	if absent(f, file) {
		return noAction(o.Resolve)
	}
	b, err := f.Broker(ctx, file)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // what counts was committed
	entries, err := b.Entries(ctx, broker.Match{Action: o.Resolve}, 3)
	if err != nil {
		return err
	}
	actions := action.Fold(entries)
	if len(actions) == 0 || actions[0].Started == nil {
		return noAction(o.Resolve)
	}
	a := actions[0]
	if a.State != action.StateUnfinished {
		return fault.WithCode(fault.Errorf(fault.Conflict, "action %s, the %s of %s, has its end already: it is %s", a.ID, a.Verb, of(&a), a.State), action.CodeEnded)
	}
	if err := mayRun(ctx, b, &a); err != nil {
		return err
	}
	e := action.Entry{
		Action: a.ID, Phase: action.PhaseResolved, Pool: a.Pool, Key: a.Key, Verb: a.Verb,
		User: f.Account(), Host: f.Host(), Detail: action.Cut(o.Note),
	}
	if o.Found != "" {
		ok := o.Found == "ok"
		e.OK = &ok
	}
	kept, err := b.Append(ctx, e)
	if err != nil {
		return err
	}
	a.Resolved, a.State = &kept, action.StateResolved
	if f.JSON {
		return f.PrintJSON(actionOf(&a))
	}
	_, err = fmt.Fprintf(f.Out(), "Resolved: the %s of %s.\n", a.Verb, of(&a))
	return err
}

func noAction(id string) error {
	return fault.WithCode(fault.Errorf(fault.NotFound, "there is no action %s: `qasight pool log` shows those that there are", id), action.CodeAction)
}

func of(a *action.Action) string {
	if a.Key == "" {
		return "pool " + a.Pool
	}
	return a.Key
}

// mayRun refuses to resolve an action that may still run: one whose change shows
// life. A change that was cut off ends by itself a minute after its last sign of
// life, so there is no way around the wait, and none is needed.
func mayRun(ctx context.Context, b broker.Viewer, a *action.Action) error {
	v, err := b.Pool(ctx, a.Pool)
	switch {
	case fault.Of(err) == fault.NotFound:
		return nil // no change without a pool
	case err != nil:
		return err
	case v.Change == nil:
		return nil
	}
	// Began has whole seconds.
	if v.Change.Began.After(a.Started.Time) || a.Key != "" && !slices.Contains(v.Change.Keys, a.Key) {
		return nil // another change, of which this action is no part
	}
	return fault.WithCode(fault.Errorf(fault.Conflict,
		"action %s may still run: %s (%s) changes pool %s since %s, and the lock on it ends %s after that shows no more life: wait first; if its program was killed, the lock ends within a minute: try again then",
		a.ID, v.Change.Account, command.Plain(v.Change.Holder), a.Pool, v.Change.Began.UTC().Format(time.RFC3339),
		command.Duration(v.Change.SecondsLeft.Duration())), codeChange)
}

// codeChange is the code of an error that says that a change is under way.
const codeChange = "change"

// actionDocument is an action as --json prints it.
type actionDocument struct {
	Action string `json:"action"`
	// State is unfinished, ok, failed or resolved.
	State string `json:"state"`
	Pool  string `json:"pool"`
	Key   string `json:"key"`
	Verb  string `json:"verb"`
	User  string `json:"user"`
	Host  string `json:"host"`
	// Command is what ran.
	Command  string       `json:"command"`
	Started  time.Time    `json:"started"`
	Finished *endDocument `json:"finished,omitempty"`
	Resolved *endDocument `json:"resolved,omitempty"`
}

type endDocument struct {
	User   string    `json:"user"`
	Host   string    `json:"host"`
	Time   time.Time `json:"time"`
	OK     *bool     `json:"ok"`
	Detail string    `json:"detail"`
}

func actionOf(a *action.Action) actionDocument {
	s := a.Started
	return actionDocument{
		Action: a.ID, State: string(a.State), Pool: a.Pool, Key: a.Key, Verb: string(a.Verb),
		User: s.User, Host: s.Host, Command: s.Command, Started: s.Time, Finished: endOf(a.Finished), Resolved: endOf(a.Resolved),
	}
}

func endOf(e *action.Entry) *endDocument {
	if e == nil {
		return nil
	}
	return &endDocument{e.User, e.Host, e.Time, e.OK, e.Detail}
}

// logDocument is the log as --json prints it: the latest actions, and the older
// ones without an end.
func logDocument(actions, open []action.Action) any {
	doc := struct {
		Actions []actionDocument `json:"actions"`
		// Unfinished are all those without an end, the oldest first.
		Unfinished []actionDocument `json:"unfinished"`
	}{[]actionDocument{}, []actionDocument{}}
	for i := range actions {
		doc.Actions = append(doc.Actions, actionOf(&actions[i]))
	}
	for i := range open {
		doc.Unfinished = append(doc.Unfinished, actionOf(&open[i]))
	}
	for i := len(actions) - 1; i >= 0; i-- {
		if actions[i].State == action.StateUnfinished {
			doc.Unfinished = append(doc.Unfinished, actionOf(&actions[i]))
		}
	}
	return doc
}
