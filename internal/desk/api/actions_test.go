package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/action/actiontest"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
)

// Ids of exampleActions' actions.
const (
	doneAction = "D0NED0NED0NED0NE"
	openAction = "0PEN0PEN0PEN0PEN"
	newAction  = "NEW0NEW0NEW0NEW0"
)

var logged = time.Date(2026, 1, 2, 15, 4, 5, 678901234, time.UTC)

// exampleActions is a log with an action that ended and one that did not.
func exampleActions() *actiontest.Memory {
	l := actiontest.NewMemory(func() time.Time { return logged })
	done := action.Entry{
		Action: doneAction, Phase: action.PhaseStarted, Pool: "win-vms", Key: "qa-win-01", Verb: action.VerbDestroy,
		User: "ann", Host: "ann-laptop", Command: "./vms.sh destroy",
	}
	ended := done
	ok := false
	ended.Phase, ended.OK, ended.Detail = action.PhaseFinished, &ok, "error: no such domain\n"
	open := done
	open.Action, open.Key, open.User, open.Verb, open.Command = openAction, "qa-win-02", "crawler", action.VerbCreate, "./vms.sh create"
	for _, e := range []action.Entry{done, ended, open} {
		if _, err := l.Append(context.Background(), e); err != nil {
			panic(err)
		}
	}
	return l
}

// asRunner gives the account crawler the role that writes actions.
func asRunner(a *accounts) {
	a.set(func() { a.byText[viewerToken] = token.Principal{Account: "crawler", Role: token.Runner, TokenID: "t1"} })
}

func TestActionsGolden(t *testing.T) {
	type call func(context.Context, *client.Client) (any, error)
	list := func(q client.ActionQuery) call {
		return func(ctx context.Context, c *client.Client) (any, error) { return c.Actions(ctx, q) }
	}
	add := func(e client.NewActionEntry) call {
		return func(ctx context.Context, c *client.Client) (any, error) { return c.AddActionEntry(ctx, e) }
	}
	at := logged.Truncate(time.Microsecond)
	yes, no := true, false
	done := client.ActionEntry{
		Seq: 1, Action: doneAction, Phase: "started", Pool: "win-vms", Key: "qa-win-01", Verb: "destroy",
		User: "ann", Host: "ann-laptop", Command: "./vms.sh destroy", Time: at,
	}
	ended := done
	ended.Seq, ended.Phase, ended.OK, ended.Detail = 2, "finished", &no, "error: no such domain\n"
	open := client.ActionEntry{
		Seq: 3, Action: openAction, Phase: "started", Pool: "win-vms", Key: "qa-win-02", Verb: "create",
		User: "crawler", Host: "ann-laptop", Command: "./vms.sh create", Time: at,
	}
	start := client.NewActionEntry{
		Action: newAction, Phase: client.PhaseStarted, Pool: "win-vms", Verb: "list", User: "somebody else",
		Host: "ci.example.com", Command: "./vms.sh list | grep -v '<old>'",
	}
	begun := client.ActionEntry{
		Seq: 4, Action: newAction, Phase: "started", Pool: "win-vms", Verb: "list", User: "crawler",
		Host: "ci.example.com", Command: "./vms.sh list | grep -v '<old>'", Time: at,
	}
	finish := client.NewActionEntry{
		Action: openAction, Phase: client.PhaseFinished, Pool: "win-vms", Key: "qa-win-02", Verb: "create",
		Host: "ann-laptop", Command: "./vms.sh create", OK: &yes, Detail: "done",
	}
	well := open
	well.Seq, well.Phase, well.OK, well.Detail = 4, "finished", &yes, "done"
	resolve := client.NewActionEntry{
		Action: openAction, Phase: client.PhaseResolved, Pool: "win-vms", Key: "qa-win-02", Verb: "create", Detail: "it is there",
	}
	looked := client.ActionEntry{
		Seq: 4, Action: openAction, Phase: "resolved", Pool: "win-vms", Key: "qa-win-02", Verb: "create",
		User: "other", Detail: "it is there", Time: at,
	}
	change := func(e client.NewActionEntry, f func(*client.NewActionEntry)) client.NewActionEntry {
		f(&e)
		return e
	}
	repeat := change(start, func(e *client.NewActionEntry) {
		e.Action, e.Key, e.Verb, e.Host, e.Command = openAction, "qa-win-02", "create", "ann-laptop", "./vms.sh create"
	})

	cases := map[string]struct {
		reason string
		bearer string
		call   call
		want   any
		class  client.Class
		code   string
		status int
	}{
		"actions":          {"the newest first, with all columns", viewerToken, list(client.ActionQuery{}), client.ActionList{Items: []client.ActionEntry{open, ended, done}}, "", "", 0},
		"actions-page":     {"a full page names the next", viewerToken, list(client.ActionQuery{Limit: 2}), client.ActionList{Items: []client.ActionEntry{open, ended}, Next: "Mg"}, "", "", 0},
		"actions-last":     {"the last page names none", viewerToken, list(client.ActionQuery{Limit: 2, Cursor: "Mg"}), client.ActionList{Items: []client.ActionEntry{done}}, "", "", 0},
		"actions-filtered": {"by pool, key and action", viewerToken, list(client.ActionQuery{Pool: "win-vms", Key: "qa-win-01", Action: doneAction, Limit: 100}), client.ActionList{Items: []client.ActionEntry{ended, done}}, "", "", 0},
		"actions-none":     {"nothing found is an empty list, not null", viewerToken, list(client.ActionQuery{Pool: "lin-vms"}), client.ActionList{Items: []client.ActionEntry{}}, "", "", 0},
		"actions-cursor":   {"a made-up cursor is refused", viewerToken, list(client.ActionQuery{Cursor: "LTE"}), nil, client.Invalid, "", 400},
		"actions-limit":    {"entries are large: a page is smaller than others", viewerToken, list(client.ActionQuery{Limit: 101}), nil, client.Invalid, "", 400},
		"actions-open":     {"of what has no end, the beginning", viewerToken, list(client.ActionQuery{Open: true}), client.ActionList{Items: []client.ActionEntry{open}}, "", "", 0},
		"actions-open-key": {"what is open is asked for by pool alone", viewerToken, list(client.ActionQuery{Open: true, Key: "qa-win-02"}), nil, client.Invalid, "", 400},
		"action-start":     {"the account replaces the user, and the time is the server's", viewerToken, add(start), begun, "", "", 0},
		"action-finish":    {"whoever began it ends it", viewerToken, add(finish), well, "", "", 0},
		"action-resolve":   {"somebody else looked", otherToken, add(resolve), looked, "", "", 0},
		"action-repeat":    {"the same again answers the same", viewerToken, add(repeat), open, "", "", 0},
		"action-other":     {"an end that somebody else tells is refused", otherToken, add(finish), nil, client.Conflict, "action_differs", 409},
		"action-exists":    {"an id is one action's", viewerToken, add(change(start, func(e *client.NewActionEntry) { e.Action = doneAction })), nil, client.Conflict, "action_exists", 409},
		"action-ended":     {"it ends once", viewerToken, add(change(resolve, func(e *client.NewActionEntry) { e.Action, e.Key, e.Verb = doneAction, "qa-win-01", "destroy" })), nil, client.Conflict, "action_ended", 409},
		"action-unknown":   {"no end without a beginning", viewerToken, add(change(finish, func(e *client.NewActionEntry) { e.Action = newAction })), nil, client.NotFound, "action", 404},
		"action-schema":    {"wrong fields are named", viewerToken, add(client.NewActionEntry{Action: "short", Phase: "begun", Pool: "p", Verb: "reboot"}), nil, client.Invalid, "", 400},
		"action-rule":      {"so is what only a rule finds", viewerToken, add(change(start, func(e *client.NewActionEntry) { e.Verb = "create" })), nil, client.Invalid, "name", 400},
		"action-viewer":    {"a viewer writes nothing", "viewer", add(start), nil, client.Denied, "role", 403},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := serve(t, whole)
			asRunner(d.auth)
			d.auth.set(func() { d.auth.byText["viewer"] = token.Principal{Account: "v", Role: token.Viewer, TokenID: "t9"} })
			rec := &recording{next: d.http.Transport}
			cl, err := client.New(client.Options{
				BaseURL: d.url, Token: client.Token(c.bearer), Retries: -1,
				HTTPClient: &http.Client{Transport: rec, Timeout: 10 * time.Second},
			})
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.call(t.Context(), cl)
			golden(t, "wire/"+name+".golden", rec.text.Bytes())
			if c.class == "" {
				if err != nil {
					t.Fatalf("%s: %v", c.reason, err)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c.reason, diff)
				}
				return
			}
			e, ok := errors.AsType[*client.Error](err)
			if !ok || !errors.Is(err, c.class) || e.Status != c.status || e.Code != c.code {
				t.Errorf("%s: err = %#v, want class %s, code %q and status %d", c.reason, err, c.class, c.code, c.status)
			}
		})
	}
}

// remote is the API and the client as a log: what crosses the wire keeps the
// contract, but for what the server says itself.
type remote struct{ *client.Client }

func (r remote) Append(ctx context.Context, e action.Entry) (action.Entry, error) {
	got, err := r.AddActionEntry(ctx, client.NewActionEntry{
		Action: e.Action, Phase: string(e.Phase), Pool: e.Pool, Key: e.Key, Verb: string(e.Verb),
		User: e.User, Host: e.Host, Command: e.Command, OK: e.OK, Detail: e.Detail,
	})
	if err != nil {
		return action.Entry{}, fromWire(err)
	}
	return entryFromWire(got), nil
}

func (r remote) Entries(ctx context.Context, q action.Query) (all []action.Entry, err error) {
	next := client.ActionQuery{Pool: q.Pool, Key: q.Key, Action: q.Action, Limit: min(q.Limit, 100)}
	for len(all) < q.Limit {
		page, err := r.Actions(ctx, next)
		if err != nil {
			return nil, fromWire(err)
		}
		for _, e := range page.Items {
			all = append(all, entryFromWire(e))
		}
		if next.Cursor = page.Next; next.Cursor == "" {
			break
		}
	}
	return all[:min(q.Limit, len(all))], nil
}

func (r remote) Open(ctx context.Context, q action.OpenQuery) (all []action.Entry, err error) {
	next := client.ActionQuery{Pool: q.Pool, Open: true, Limit: min(q.Limit, 2)}
	for len(all) < q.Limit {
		page, err := r.Actions(ctx, next)
		if err != nil {
			return nil, fromWire(err)
		}
		for _, e := range page.Items {
			all = append(all, entryFromWire(e))
		}
		if next.Cursor = page.Next; next.Cursor == "" {
			break
		}
	}
	return all[:min(q.Limit, len(all))], nil
}

func entryFromWire(e client.ActionEntry) action.Entry {
	return action.Entry{
		Seq: e.Seq, Action: e.Action, Phase: action.Phase(e.Phase), Pool: e.Pool, Key: e.Key, Verb: action.Verb(e.Verb),
		User: e.User, Host: e.Host, Command: e.Command, OK: e.OK, Detail: e.Detail, Time: e.Time,
	}
}

func fromWire(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return fault.WithCode(fault.Wrap(fault.Class(e.Class), err), e.Code)
	}
	return err
}

// The suite of logs, over the wire: all clauses of writing and reading but those
// about the user, which the server replaces, and those of queries that the wire
// form cannot say.
func TestLogOverTheWire(t *testing.T) {
	notHere := map[string]string{
		"Append/keeps":   "several users",
		"Append/late":    "several users",
		"Append/exists":  "another user is the same one here",
		"Append/differs": "another user is the same one here",
		"Append/invalid": "the user cannot be missing",
		"Append/text":    "the longest user is none of an account",
		"Append/same":    "several users", "Append/race-other": "several users",
		"Entries/empty": "before is a cursor", "Entries/paging": "before is a cursor", "Entries/invalid": "before is a cursor",
		"Entries/filters": "before is a cursor", "Context/ended": "the client classes a cancelled call otherwise",
		"Open/filters": "keys cannot be asked for", "Open/paging": "after is a cursor", "Open/invalid": "after is a cursor",
	}
	ran := 0
	for _, c := range actiontest.Clauses() {
		if _, skip := notHere[c.Name]; skip {
			continue
		}
		ran++
		t.Run(c.Name, func(t *testing.T) {
			d := serve(t, func(o *api.Options) {
				o.Actions, o.Limits.PerToken = actiontest.NewMemory(nil), -1
			})
			d.auth.set(func() {
				d.auth.byText["ann"] = token.Principal{Account: "ann@example.com", Role: token.Runner, TokenID: "t9"}
			})
			if err := c.Check(t.Context(), remote{d.client(t, "ann")}); err != nil {
				t.Errorf("%s: %v", c.Promise, err)
			}
		})
	}
	if want := len(actiontest.Clauses()) - len(notHere); ran != want {
		t.Errorf("%d clauses ran, want %d: a name in the table is wrong", ran, want)
	}
}

// Long texts make short pages, and every entry is on one of them.
func TestPagesOfLongEntries(t *testing.T) {
	l := actiontest.NewMemory(nil)
	long := strings.Repeat("\x01", action.MaxText) // each byte is six on the wire
	var want []int64
	for n := range 60 {
		e, err := l.Append(t.Context(), action.Entry{
			Action: fmt.Sprintf("%016d", n), Phase: action.PhaseStarted, Pool: "a", Key: "k", Verb: action.VerbCreate,
			User: "ann", Command: long,
		})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, e.Seq)
	}
	d := serve(t, func(o *api.Options) { o.Actions = l })
	c := d.client(t, viewerToken)
	for _, open := range []bool{true, false} { // the oldest first, and the newest
		var got []int64
		q := client.ActionQuery{Limit: 100, Open: open}
		for page := 0; ; page++ {
			list, err := c.Actions(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) == 0 || len(list.Items) > 32 || page > 10 {
				t.Fatalf("page %d has %d entries", page, len(list.Items))
			}
			for _, e := range list.Items {
				got = append(got, e.Seq)
			}
			if q.Cursor = list.Next; q.Cursor == "" {
				break
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("open is %t (-want +got):\n%s", open, diff)
		}
		slices.Reverse(want)
	}
}

// What is open is shown the oldest first, and pages neither skip nor repeat
// while actions end.
func TestOpenActions(t *testing.T) {
	l := actiontest.NewMemory(nil)
	begin := func(n int, pool string) action.Entry {
		e, err := l.Append(t.Context(), action.Entry{
			Action: fmt.Sprintf("%016d", n), Phase: action.PhaseStarted, Pool: pool, Key: fmt.Sprint("k", n), Verb: action.VerbCreate,
			User: "ann", Command: "./vms.sh create",
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	end := func(e action.Entry) {
		yes := true
		e.Phase, e.OK = action.PhaseFinished, &yes
		if _, err := l.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	var all []action.Entry
	for n := range 8 {
		all = append(all, begin(n, []string{"win", "mac"}[n/6])) // six and two
	}
	end(all[1])
	d := serve(t, func(o *api.Options) { o.Actions, o.Limits.PerToken = l, -1 })
	c := d.client(t, viewerToken)
	// pages reads page by page; between pages it calls f with the page before.
	pages := func(q client.ActionQuery, f func([]client.ActionEntry)) (seqs []int64) {
		t.Helper()
		for range 10 {
			list, err := c.Actions(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if q.Limit > 0 && len(list.Items) > q.Limit {
				t.Errorf("a page of %d has %d entries", q.Limit, len(list.Items))
			}
			for _, e := range list.Items {
				if e.Phase != client.PhaseStarted {
					t.Errorf("an entry of the phase %s is shown as open", e.Phase)
				}
				seqs = append(seqs, e.Seq)
			}
			if q.Cursor = list.Next; q.Cursor == "" {
				return seqs
			}
			f(list.Items)
		}
		t.Fatal("the pages have no end")
		return nil
	}
	nothing := func([]client.ActionEntry) {}
	seq := func(at ...int) (seqs []int64) {
		for _, i := range at {
			seqs = append(seqs, all[i].Seq)
		}
		return seqs
	}
	for name, tc := range map[string]struct {
		reason string
		query  client.ActionQuery
		want   []int64
	}{
		"all":       {"one page has them all", client.ActionQuery{}, seq(0, 2, 3, 4, 5, 6, 7)},
		"pages":     {"the last page is short", client.ActionQuery{Limit: 2}, seq(0, 2, 3, 4, 5, 6, 7)},
		"full page": {"a last page that is full names no next", client.ActionQuery{Limit: 7}, seq(0, 2, 3, 4, 5, 6, 7)},
		"pool":      {"one pool's", client.ActionQuery{Pool: "mac"}, seq(6, 7)},
		"pages of":  {"one pool's, page by page", client.ActionQuery{Pool: "win", Limit: 2}, seq(0, 2, 3, 4, 5)},
		"none":      {"another pool's", client.ActionQuery{Pool: "lin"}, nil},
	} {
		tc.query.Open = true
		if diff := cmp.Diff(tc.want, pages(tc.query, nothing)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, tc.reason, diff)
		}
	}
	for name, q := range map[string]client.ActionQuery{
		"key":    {Key: "k0"},
		"action": {Action: all[0].Action},
		"cursor": {Cursor: "LTE"},
		"name":   {Cursor: "d2lu"},
	} {
		q.Open = true
		if list, err := c.Actions(t.Context(), q); !errors.Is(err, client.Invalid) || len(list.Items) > 0 {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
	// The last one of each page ends before the next page is read.
	got := pages(client.ActionQuery{Open: true, Limit: 3}, func(page []client.ActionEntry) {
		for _, e := range all {
			if e.Seq == page[len(page)-1].Seq {
				end(e)
			}
		}
	})
	if diff := cmp.Diff(seq(0, 2, 3, 4, 5, 6, 7), got); diff != "" {
		t.Errorf("while actions end (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(seq(0, 2, 4, 5, 7), pages(client.ActionQuery{Open: true}, nothing)); diff != "" {
		t.Errorf("in the end (-want +got):\n%s", diff)
	}
}

// The longest entry fits into a request, however its bytes are escaped.
func TestLongestEntry(t *testing.T) {
	d := serve(t, whole)
	asRunner(d.auth)
	long := strings.Repeat("\x01", action.MaxText)
	c := d.client(t, viewerToken)
	e := client.NewActionEntry{Action: newAction, Phase: client.PhaseStarted, Pool: "a", Key: "k", Verb: "create", Command: long}
	if _, err := c.AddActionEntry(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	ok := false
	e.Phase, e.OK, e.Detail = client.PhaseFinished, &ok, long
	if got, err := c.AddActionEntry(t.Context(), e); err != nil || got.Detail != long {
		t.Errorf("the longest detail: %v", err)
	}
	e.Detail += "x"
	if _, err := c.AddActionEntry(t.Context(), e); !errors.Is(err, client.Invalid) {
		t.Errorf("one byte more: %v", err)
	}
}

// A log that does not answer is not one that took the entry.
func TestActionsOutage(t *testing.T) {
	l := exampleActions()
	l.Fail(fault.New(fault.Unavailable, "the disk is gone"))
	d := serve(t, func(o *api.Options) { o.Actions = l })
	asRunner(d.auth)
	c := d.client(t, viewerToken)
	_, add := c.AddActionEntry(t.Context(), client.NewActionEntry{
		Action: newAction, Phase: client.PhaseStarted, Pool: "a", Key: "k", Verb: "create", Command: "x",
	})
	_, list := c.Actions(t.Context(), client.ActionQuery{})
	_, open := c.Actions(t.Context(), client.ActionQuery{Open: true})
	for what, err := range map[string]error{"add": add, "list": list, "open": open} {
		if e, ok := errors.AsType[*client.Error](err); !ok || !errors.Is(err, client.Unavailable) || e.Status != 503 {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestWithoutActions(t *testing.T) {
	d := serve(t, nil)
	if resp, _ := d.send(t, "GET", "/api/v1/resources/actions", "Bearer "+viewerToken); resp.StatusCode != http.StatusNotFound {
		t.Errorf("without a log the route must not exist; status %d", resp.StatusCode)
	}
}
