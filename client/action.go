package client

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Phases of an action's entries.
const (
	PhaseStarted  = "started"  // the command is about to run
	PhaseFinished = "finished" // it ended, and how
	PhaseResolved = "resolved" // a person looked at an action without an end
)

// ActionEntry is one row of the action log, in which a person's provider
// commands are recorded before they run. Entries with the same Action tell of
// one command; no entry is ever changed or removed.
type ActionEntry struct {
	// Seq numbers the entries of the log: a later one has a greater number.
	Seq int64 `json:"seq" doc:"Number of the entry: a later one has a greater number." example:"42"`
	// Action is the id of the action that it tells of.
	Action string `json:"action" doc:"Id of the action that the entry tells of." example:"K3Q5Y7ZABC2DK3Q5Y7ZABC2D"`
	// Phase is started, finished or resolved.
	Phase string `json:"phase" enum:"started,finished,resolved" doc:"What it tells: started before the command ran, finished after it, or resolved by a person who looked where no end came." example:"finished"`
	// Pool and Key are what the command is for; Key is "" for a list.
	Pool string `json:"pool" doc:"Pool that the command is for." example:"win-vms"`
	Key  string `json:"key" doc:"Key that the command is for; empty for a list." example:"qa-win-01"`
	// Verb is create, destroy or list.
	Verb string `json:"verb" enum:"create,destroy,list" doc:"What the command does." example:"destroy"`
	// User is the account that told it, Host where it ran, as the client says.
	User string `json:"user" doc:"Account that told it." example:"ann"`
	Host string `json:"host" doc:"Machine where it ran, as the client says." example:"ann-laptop"`
	// Command is what ran; "" in a resolved entry.
	Command string `json:"command" doc:"Text of the command; empty in a resolved entry." example:"./vms.sh destroy"`
	// OK is whether it succeeded; nil in a started entry, and in a resolved one
	// without a verdict.
	OK *bool `json:"ok" doc:"Whether it succeeded; null in a started entry, and in a resolved one without a verdict."`
	// Detail is what it printed, or what the person says.
	Detail string `json:"detail" doc:"What the command printed, cut in the middle where it is long; or what the person says." example:"no such domain"`
	// Time is when the entry was kept, by the server's clock (RFC 3339, UTC, to
	// the microsecond).
	Time time.Time `json:"time" doc:"When the entry was kept, by the database's clock (RFC 3339)." example:"2026-01-02T15:04:05.678901Z"`
}

// ActionList is one page of the action log, the newest entries first.
type ActionList struct {
	// Items has at most as many entries as the limit asked for, and fewer when
	// their texts are long; never nil in an answer.
	Items []ActionEntry `json:"items" nullable:"false" doc:"Entries, the newest first; fewer than asked for when their texts are long."`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one."`
}

// ActionQuery selects and pages entries. The zero value is the first page of
// all of them.
type ActionQuery struct {
	// Pool, Key and Action keep exact matches.
	Pool, Key, Action string
	// Open keeps the started entries of actions without an end, the oldest first;
	// it goes with Pool alone.
	Open bool
	// Limit is the page's size, 1 to 100; 0 leaves it to the server (50).
	Limit int
	// Cursor is the Next of the page before.
	Cursor string
}

// NewActionEntry is an entry to be added. Who adds it, and when, is the
// server's to say.
type NewActionEntry struct {
	// Action is the action's id, drawn at random for its first entry (26 letters
	// and digits of crypto/rand.Text do): 16 to 64 letters, digits, - and _, a
	// letter or digit first.
	Action string `json:"action" minLength:"16" maxLength:"64" pattern:"^[A-Za-z0-9][A-Za-z0-9_-]*$" patternDescription:"letters, digits, - and _, a letter or digit first" doc:"Id of the action, drawn at random for its first entry: letters, digits, - and _, a letter or digit first." example:"K3Q5Y7ZABC2DK3Q5Y7ZABC2D"`
	// Phase is started, finished or resolved.
	Phase string `json:"phase" enum:"started,finished,resolved" doc:"What it tells." example:"started"`
	// Pool and Key are what the command is for; Key is "" for a list.
	Pool string `json:"pool" maxLength:"317" doc:"Pool that the command is for." example:"win-vms"`
	Key  string `json:"key,omitempty" maxLength:"317" doc:"Key that the command is for; absent for a list." example:"qa-win-01"`
	// Verb is create, destroy or list.
	Verb string `json:"verb" enum:"create,destroy,list" doc:"What the command does." example:"destroy"`
	// User may be what a local log would say; the account takes its place.
	User string `json:"user,omitempty" maxLength:"256" doc:"Ignored: the account that the token belongs to takes its place."`
	// Host is where it runs: at most 256 bytes without control characters.
	Host string `json:"host,omitempty" maxLength:"256" doc:"Machine where it runs." example:"ann-laptop"`
	// Command is what runs, at most 64 KiB; "" in a resolved entry.
	Command string `json:"command,omitempty" maxLength:"65536" doc:"Text of the command, at most 64 KiB; absent in a resolved entry." example:"./vms.sh destroy"`
	// OK is whether it succeeded: nil in a started entry, never nil in a finished
	// one, and in a resolved one what the person found.
	OK *bool `json:"ok,omitempty" doc:"Whether it succeeded: absent in a started entry, needed in a finished one."`
	// Detail is what it printed, or what the person says, at most 64 KiB; "" in a
	// started entry.
	Detail string `json:"detail,omitempty" maxLength:"65536" doc:"What the command printed, or what the person says, at most 64 KiB; absent in a started entry."`
}

// Actions returns one page of the action log, the newest entries first (of open
// actions the oldest). Errors: Invalid for a bad query, Denied, Quota, Unavailable.
func (c *Client) Actions(ctx context.Context, q ActionQuery) (ActionList, error) {
	v := Page{Cursor: q.Cursor}.query()
	for name, value := range map[string]string{"pool": q.Pool, "key": q.Key, "action": q.Action} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Open {
		v.Set("open", "true")
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	var out ActionList
	err := c.get(ctx, "list actions", v, &out, "resources", "actions")
	return out, err
}

// AddActionEntry adds an entry to the action log and returns it as kept. It
// needs the role runner. Adding the same one again is harmless and returns the
// same, so it is tried again when it failed for now. Only when it returns
// without an error is the entry kept for sure.
//
// Errors: Invalid; NotFound (code action) for an end without a beginning;
// Conflict for an id that another action has (action_exists), for an end that
// tells of something else (action_differs), and for another end (action_ended).
func (c *Client) AddActionEntry(ctx context.Context, e NewActionEntry) (ActionEntry, error) {
	var out ActionEntry
	err := c.do(ctx, call{
		op: "log action", method: http.MethodPost, parts: []string{"resources", "actions"},
		body: e, out: &out, repeatable: true,
	})
	return out, err
}
