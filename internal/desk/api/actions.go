package api

import (
	"context"
	"strconv"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
)

// maxActionsText ends a page of the action log, in bytes of commands and
// details: with every byte escaped it still is an answer that clients read.
const maxActionsText = 2 << 20

type listActionsInput struct {
	Pool   string `query:"pool" maxLength:"317" doc:"Keep entries of this pool."`
	Key    string `query:"key" maxLength:"317" doc:"Keep entries of this key."`
	Action string `query:"action" maxLength:"64" doc:"Keep entries of this action."`
	Open   bool   `query:"open" doc:"Keep the started entries of actions without an end, the oldest first; goes with pool alone."`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"50" doc:"Size of the page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The field next of the page before."`
}

type listActionsOutput struct{ Body client.ActionList }

func (s *server) listActions(ctx context.Context, in *listActionsInput) (*listActionsOutput, error) {
	last, err := decodeSeq(in.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := s.entries(ctx, in, last)
	if err != nil {
		return nil, err
	}
	out := &listActionsOutput{Body: client.ActionList{Items: []client.ActionEntry{}}}
	text := 0
	for i, e := range all {
		text += len(e.Command) + len(e.Detail)
		if i == in.Limit || i > 0 && text > maxActionsText {
			out.Body.Next = encodeName(strconv.FormatInt(all[i-1].Seq, 10))
			break
		}
		out.Body.Items = append(out.Body.Items, entryOnWire(e))
	}
	return out, nil
}

// entries are those of a page that begins after the entry last, and one more than
// asked for, which tells whether another page follows.
func (s *server) entries(ctx context.Context, in *listActionsInput, last int64) ([]action.Entry, error) {
	switch {
	case !in.Open:
		return s.opts.Actions.Entries(ctx, action.Query{
			Pool: in.Pool, Key: in.Key, Action: in.Action, Before: last, Limit: in.Limit + 1,
		})
	case in.Key != "" || in.Action != "":
		return nil, fieldError("query.open", "goes with pool alone: leave key and action out")
	}
	return s.opts.Actions.Open(ctx, action.OpenQuery{Pool: in.Pool, After: last, Limit: in.Limit + 1})
}

type addActionEntryInput struct{ Body client.NewActionEntry }

type addActionEntryOutput struct{ Body client.ActionEntry }

func (s *server) addActionEntry(ctx context.Context, in *addActionEntryInput) (*addActionEntryOutput, error) {
	b := in.Body
	e, err := s.opts.Actions.Append(ctx, action.Entry{
		Action: b.Action, Phase: action.Phase(b.Phase), Pool: b.Pool, Key: b.Key, Verb: action.Verb(b.Verb),
		// Whatever the client says of the user: only the token tells who it is.
		User: principalOf(ctx).Account, Host: b.Host, Command: b.Command, OK: b.OK, Detail: b.Detail,
	})
	if err != nil {
		return nil, err
	}
	return &addActionEntryOutput{entryOnWire(e)}, nil
}

func entryOnWire(e action.Entry) client.ActionEntry {
	return client.ActionEntry{
		Seq: e.Seq, Action: e.Action, Phase: string(e.Phase), Pool: e.Pool, Key: e.Key, Verb: string(e.Verb),
		User: e.User, Host: e.Host, Command: e.Command, OK: e.OK, Detail: e.Detail,
		Time: e.Time.UTC().Truncate(time.Microsecond),
	}
}

// decodeSeq reads the cursor that listActions wrote; 0 for none.
func decodeSeq(cursor string) (int64, error) {
	text, err := decodeName(cursor)
	if err != nil || text == "" {
		return 0, err
	}
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 1 {
		return 0, errCursor()
	}
	return seq, nil
}
