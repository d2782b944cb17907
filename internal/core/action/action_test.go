package action_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
)

const anID = "k3q5y7zabc2dk3q5y7zabc2d"

func start() action.Entry {
	return action.Entry{
		Action: anID, Phase: action.PhaseStarted, Pool: "win-vms", Key: "qa-win-01", Verb: action.VerbDestroy,
		User: "ann", Host: "laptop", Command: "./vms.sh destroy",
	}
}

func finish(ok bool) action.Entry {
	e := start()
	e.Phase, e.OK, e.Detail = action.PhaseFinished, &ok, "said so"
	return e
}

func resolve() action.Entry {
	e := start()
	e.Phase, e.User, e.Host, e.Command, e.Detail = action.PhaseResolved, "bob", "", "", "it is gone"
	return e
}

func with(e action.Entry, change func(*action.Entry)) action.Entry {
	change(&e)
	return e
}

func TestValidate(t *testing.T) {
	long := strings.Repeat("x", action.MaxText)
	cases := map[string]struct {
		reason string
		entry  action.Entry
		ok     bool
	}{
		"started":          {"as it begins", start(), true},
		"finished":         {"as it ends", finish(false), true},
		"resolved":         {"as a person says", resolve(), true},
		"verdict":          {"a person may know how it ended", with(resolve(), func(e *action.Entry) { e.OK = new(bool) }), true},
		"list":             {"a list is of no key", with(start(), func(e *action.Entry) { e.Verb, e.Key = action.VerbList, "" }), true},
		"list of a key":    {"which key would that be", with(start(), func(e *action.Entry) { e.Verb = action.VerbList }), false},
		"no key":           {"a change is of a key", with(start(), func(e *action.Entry) { e.Key = "" }), false},
		"no host":          {"a machine may have no name", with(start(), func(e *action.Entry) { e.Host = "" }), true},
		"no user":          {"somebody did it", with(start(), func(e *action.Entry) { e.User = "" }), false},
		"domain user":      {"names are what systems make them", with(start(), func(e *action.Entry) { e.User = `CORP\Jörg Müller` }), true},
		"line in user":     {"one line of the log is one line", with(start(), func(e *action.Entry) { e.User = "a\nb" }), false},
		"long host":        {"a bound", with(start(), func(e *action.Entry) { e.Host = strings.Repeat("h", action.MaxWho+1) }), false},
		"half a letter":    {"no UTF-8", with(start(), func(e *action.Entry) { e.Host = "\xc3" }), false},
		"no command":       {"what ran must be seen", with(start(), func(e *action.Entry) { e.Command = "" }), false},
		"longest command":  {"the bound itself", with(start(), func(e *action.Entry) { e.Command = long }), true},
		"longer command":   {"one byte more", with(start(), func(e *action.Entry) { e.Command = long + "x" }), false},
		"longer detail":    {"one byte more", with(finish(true), func(e *action.Entry) { e.Detail = long + "x" }), false},
		"NUL":              {"not every database can keep it", with(finish(true), func(e *action.Entry) { e.Detail = "\x00" }), false},
		"early outcome":    {"nobody can know yet", with(start(), func(e *action.Entry) { e.OK = new(bool) }), false},
		"early detail":     {"nobody can know yet", with(start(), func(e *action.Entry) { e.Detail = "x" }), false},
		"no outcome":       {"an end is good or bad", with(finish(true), func(e *action.Entry) { e.OK = nil }), false},
		"resolved command": {"nothing ran", with(resolve(), func(e *action.Entry) { e.Command = "x" }), false},
		"phase":            {"a closed set", with(start(), func(e *action.Entry) { e.Phase = "Started" }), false},
		"verb":             {"a closed set", with(start(), func(e *action.Entry) { e.Verb = "delete" }), false},
		"pool":             {"the grammar of names", with(start(), func(e *action.Entry) { e.Pool = "a/b" }), false},
		"key":              {"the grammar of names", with(start(), func(e *action.Entry) { e.Key = "$(reboot)" }), false},
		"shortest id":      {"the bound itself", with(start(), func(e *action.Entry) { e.Action = strings.Repeat("a", action.MinID) }), true},
		"short id":         {"others could have it", with(start(), func(e *action.Entry) { e.Action = strings.Repeat("a", action.MinID-1) }), false},
		"longest id":       {"the bound itself", with(start(), func(e *action.Entry) { e.Action = strings.Repeat("a", action.MaxID) }), true},
		"long id":          {"a bound", with(start(), func(e *action.Entry) { e.Action = strings.Repeat("a", action.MaxID+1) }), false},
		"id like a flag":   {"it is typed behind --resolve", with(start(), func(e *action.Entry) { e.Action = "-" + anID }), false},
		"id with a slash":  {"it may stand in a path", with(start(), func(e *action.Entry) { e.Action = anID + "/" }), false},
	}
	for name, c := range cases {
		err := c.entry.Validate()
		if c.ok != (err == nil) || err != nil && (fault.Of(err) != fault.Invalid || fault.CodeOf(err) == "") {
			t.Errorf("%s: %s: %v (%s, code %q)", name, c.reason, err, fault.Of(err), fault.CodeOf(err))
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

func TestNext(t *testing.T) {
	type log = []action.Entry
	cases := map[string]struct {
		reason string
		log    log
		entry  action.Entry
		add    bool
		class  fault.Class
		code   string
	}{
		"start":            {"the first of all", nil, start(), true, "", ""},
		"start again":      {"the same is harmless", log{start()}, start(), false, "", ""},
		"start later":      {"also when it has ended", log{start(), finish(true)}, start(), false, "", ""},
		"other start":      {"an id is one action's", log{start()}, with(start(), func(e *action.Entry) { e.Key = "b" }), false, fault.Conflict, "action_exists"},
		"finish":           {"after its beginning", log{start()}, finish(true), true, "", ""},
		"finish again":     {"the same is harmless", log{start(), finish(true)}, finish(true), false, "", ""},
		"finish otherwise": {"it ends once", log{start(), finish(true)}, finish(false), false, fault.Conflict, "action_ended"},
		"finish alone":     {"no end without a beginning", nil, finish(true), false, fault.NotFound, "action"},
		"finish another's": {"whoever began it ends it", log{start()}, with(finish(true), func(e *action.Entry) { e.User = "bob" }), false, fault.Conflict, "action_differs"},
		"finish other key": {"an end of something else", log{start()}, with(finish(true), func(e *action.Entry) { e.Key = "b" }), false, fault.Conflict, "action_differs"},
		"resolve":          {"where no end came", log{start()}, resolve(), true, "", ""},
		"resolve again":    {"the same is harmless", log{start(), resolve()}, resolve(), false, "", ""},
		"resolve twice":    {"one person's word is enough", log{start(), resolve()}, with(resolve(), func(e *action.Entry) { e.User = "cid" }), false, fault.Conflict, "action_ended"},
		"resolve finished": {"its outcome is known", log{start(), finish(false)}, resolve(), false, fault.Conflict, "action_ended"},
		"resolve alone":    {"nothing to resolve", nil, resolve(), false, fault.NotFound, "action"},
		"resolve other":    {"of another pool", log{start()}, with(resolve(), func(e *action.Entry) { e.Pool = "b" }), false, fault.Conflict, "action_differs"},
		"late end":         {"what the command knows is worth more than silence", log{start(), resolve()}, finish(true), true, "", ""},
		"late end again":   {"the same is harmless", log{start(), resolve(), finish(true)}, finish(true), false, "", ""},
		"in any order":     {"as a database gives them", log{finish(true), resolve(), start()}, finish(false), false, fault.Conflict, "action_ended"},
		"invalid":          {"whatever the log holds", log{start()}, with(start(), func(e *action.Entry) { e.User = "" }), false, fault.Invalid, "text"},
	}
	for name, c := range cases {
		for i := range c.log {
			c.log[i].Seq = int64(i) + 10
		}
		held, add, err := action.Next(c.log, c.entry)
		if add != c.add || fault.Of(err) != c.class || fault.CodeOf(err) != c.code {
			t.Errorf("%s: %s: add %v, err %v (%s, %q)", name, c.reason, add, err, fault.Of(err), fault.CodeOf(err))
		}
		if same := err == nil && !add; same != (held.Seq >= 10) {
			t.Errorf("%s: held %+v", name, held)
		}
	}
}

func TestFold(t *testing.T) {
	other := func(e action.Entry) action.Entry { e.Action = "other-" + anID; return e }
	for name, c := range map[string]struct {
		reason string
		log    []action.Entry
		want   []action.State
	}{
		"nothing":       {"no entries, no actions", nil, nil},
		"begun":         {"the outcome is unknown", []action.Entry{start()}, []action.State{action.StateUnfinished}},
		"good":          {"it ended well", []action.Entry{start(), finish(true)}, []action.State{action.StateOK}},
		"bad":           {"it ended badly", []action.Entry{start(), finish(false)}, []action.State{action.StateFailed}},
		"looked at":     {"a person looked", []action.Entry{start(), resolve()}, []action.State{action.StateResolved}},
		"late":          {"what the command knows wins", []action.Entry{start(), resolve(), finish(true)}, []action.State{action.StateOK}},
		"half a page":   {"the beginning is on a later page", []action.Entry{finish(false)}, []action.State{action.StateFailed}},
		"newest first":  {"by their beginning, not their end", []action.Entry{start(), other(start()), other(finish(true)), finish(false)}, []action.State{action.StateOK, action.StateFailed}},
		"no such state": {"an end without an outcome is a bad one", []action.Entry{start(), with(finish(true), func(e *action.Entry) { e.OK = nil })}, []action.State{action.StateFailed}},
	} {
		for i := range c.log {
			c.log[i].Seq = int64(i) + 1
		}
		var got []action.State
		for _, a := range action.Fold(c.log) {
			got = append(got, a.State)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, c.reason, diff)
		}
	}
}

// Whatever is asked, in whatever order: the log tells of each action one
// beginning, and at most one end and one word of a person; what it answered once
// it answers always; and folding does not depend on the order.
func TestRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []string{"a" + anID, "b" + anID, "c" + anID}
		all := rapid.Custom(func(t *rapid.T) action.Entry {
			e := rapid.SampledFrom([]func() action.Entry{
				start, func() action.Entry { return finish(true) }, func() action.Entry { return finish(false) }, resolve,
			}).Draw(t, "kind")()
			e.Action = rapid.SampledFrom(ids).Draw(t, "id")
			e.Key = rapid.SampledFrom([]string{"k1", "k1", "k1", "k2"}).Draw(t, "key")
			return e
		})
		var log []action.Entry
		said := map[int64]action.Entry{}
		for _, e := range rapid.SliceOfN(all, 0, 40).Draw(t, "entries") {
			var existing []action.Entry
			for _, x := range log {
				if x.Action == e.Action {
					existing = append(existing, x)
				}
			}
			held, add, err := action.Next(existing, e)
			switch {
			case add:
				e.Seq = int64(len(log)) + 1
				log = append(log, e)
				said[e.Seq] = e
			case err == nil:
				if diff := cmp.Diff(said[held.Seq], held); diff != "" {
					t.Fatalf("the same entry is answered otherwise:\n%s", diff)
				}
			case fault.Of(err) != fault.Conflict && fault.Of(err) != fault.NotFound:
				t.Fatalf("%v", err)
			}
		}
		actions := action.Fold(log)
		entries := 0
		for _, a := range actions {
			if a.Started == nil {
				t.Fatalf("%s has no beginning", a.ID)
			}
			for _, later := range []*action.Entry{a.Finished, a.Resolved} {
				if later == nil {
					continue
				}
				entries++
				if later.Seq < a.Started.Seq || later.Pool != a.Pool || later.Key != a.Key {
					t.Fatalf("%+v follows %+v", later, a.Started)
				}
			}
			entries++
		}
		if entries != len(log) {
			t.Fatalf("%d entries, of which %d tell something", len(log), entries)
		}
		mixed := slices.Clone(log)
		rand.New(rand.NewPCG(1, uint64(len(log)))).Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		if diff := cmp.Diff(actions, action.Fold(mixed)); diff != "" {
			t.Fatalf("the order matters:\n%s", diff)
		}
	})
}

func TestCut(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", action.MaxText/16)
	for name, c := range map[string]struct {
		reason, text, want string
	}{
		"empty":   {"nothing to do", "", ""},
		"fits":    {"stays as it is", "a\nb\t\x1b[31mc", "a\nb\t\x1b[31mc"},
		"longest": {"the bound itself", long, long},
		"NUL":     {"not every database can keep it", "a\x00b", "a\uFFFDb"},
		"bytes":   {"not every output is text", "a\xff\xfeb", "a\uFFFDb"},
	} {
		if got := action.Cut(c.text); got != c.want {
			t.Errorf("%s: %s: %q", name, c.reason, got)
		}
	}
	got := action.Cut("HEAD" + long + long + "TAIL")
	if len(got) > action.MaxText || !strings.HasPrefix(got, "HEAD") || !strings.HasSuffix(got, "TAIL") {
		t.Errorf("%d bytes, from %.20q to %.20q: the ends are what people look for", len(got), got, got[len(got)-20:])
	}
	for shift := range 4 { // wherever the cut falls into a letter of four bytes
		got := action.Cut(strings.Repeat("x", shift) + strings.Repeat("\U0001F600", action.MaxText/2) + strings.Repeat("y", shift))
		if !utf8.ValidString(got) || len(got) > action.MaxText {
			t.Errorf("a letter was cut in two, or %d bytes are left", len(got))
		}
	}
	if !strings.Contains(got, "\n[… 65608 bytes were cut …]\n") {
		mark := strings.Index(got, "\n[")
		t.Errorf("the mark says %q", got[mark:mark+40])
	}
}

func FuzzCut(f *testing.F) {
	f.Add("abc", 1)
	f.Add("ä\x00\xff", 40000)
	f.Add("\xf0\x9f\x98\x80", 20000)
	f.Add("\x80\x80", 50000)
	f.Fuzz(func(t *testing.T, piece string, times int) {
		if len(piece) > 1000 {
			piece = piece[:1000]
		}
		text := strings.Repeat(piece, max(0, times%70000))
		got := action.Cut(text)
		if len(got) > action.MaxText || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Fatalf("%q times %d: %d bytes that cannot be kept", piece, times, len(got))
		}
		if action.Cut(got) != got {
			t.Fatalf("%q times %d: cut again it is another text", piece, times)
		}
		e := finish(true)
		e.Detail = got
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}
