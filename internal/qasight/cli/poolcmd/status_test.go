package poolcmd_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
)

// seen is what the tests look at of status --json.
type seen struct {
	ExitCode   int    `json:"exitCode"`
	StoreError string `json:"storeError"`
	Database   string `json:"database"`
	Server     string `json:"server"`
	Findings   []seenFinding
	Pools      []struct {
		Name        string
		Revision    int64
		PublishedBy string
		Differences []string
		Waiting     int
		Change      *client.Change
		List        *struct {
			Names int
			Error string
		}
		Actions []struct {
			Action, Verb, Key, User string
			UnderWay                bool `json:"underWay"`
		}
		Keys []struct {
			Name, Exists, State string
			Item                bool
			Lease               *client.KeyLease
			Disabled            *client.Disabled
			Check               *struct {
				Outcome, Reason, Line string
				Code                  int
			}
		}
		Leftovers []struct {
			Name       string
			Ours, Held bool
		}
		Findings []seenFinding
	}
}

type seenFinding struct{ Code, Key, Text string }

// short is a pool's report in a line each: keys, leftovers and findings.
func (s seen) short(pool string) []string {
	var out []string
	for _, p := range s.Pools {
		if p.Name != pool {
			continue
		}
		for _, k := range p.Keys {
			line := k.Name + " " + k.Exists + " " + k.State
			if !k.Item {
				line += " (no item)"
			}
			if k.Check != nil {
				line += " check " + k.Check.Outcome
			}
			out = append(out, line)
		}
		for _, l := range p.Leftovers {
			line := "left " + l.Name
			if l.Ours {
				line += " ours"
			}
			if l.Held {
				line += " held"
			}
			out = append(out, line)
		}
		for _, f := range p.Findings {
			out = append(out, strings.TrimSpace("! "+f.Code+" "+f.Key))
		}
	}
	return out
}

func TestStatusOfTheWorld(t *testing.T) {
	t.Parallel()
	const pool = `
project: shop
pools:
	win:
		items: [qa-1, qa-2]
		provider: {list: %s, name_prefix: qa-}
	mac:
		items: [qa-mac]
`
	for name, c := range map[string]struct {
		reason, list string
		code         int
		want         []string
		says         string
	}{
		"all well": {
			"both are there", `printf 'qa-2\nqa-1\n'`, 0,
			[]string{"qa-1 present free", "qa-2 present free"},
			"2 pools: all well",
		},
		"missing": {
			"one is gone", `echo qa-1`, 1,
			[]string{"qa-1 present free", "qa-2 missing free", "! missing qa-2"},
			"2 pools: 1 to look at",
		},
		"empty": {
			"an empty list is shown as such", `true`, 1,
			[]string{"qa-1 missing free", "qa-2 missing free", "! missing qa-1", "! missing qa-2"},
			"the list is empty: nothing exists",
		},
		"left over": {
			"ours is told from others'; another pool's item is none", `printf 'qa-2\nqa-1\nqa-9\ndev\nqa-mac\n'`, 1,
			[]string{"qa-1 present free", "qa-2 present free", "left dev", "left qa-9 ours", "! leftover dev", "! leftover qa-9"},
			"qa-9 is left over: ours to sweep (`qasight pool sweep win`)",
		},
		"failed": {
			"what failed must not look empty", `echo qa-1; exit 1`, 3,
			[]string{"qa-1 ? free", "qa-2 ? free", "! list"},
			"1 list failed",
		},
		"not there": {
			"a tool that is missing is no empty world", `/no/such/tool`, 3,
			[]string{"qa-1 ? free", "qa-2 ? free", "! list"},
			"127",
		},
		"unreadable": {
			"a name that is none spoils the list", `printf 'qa-1\n#2\n'`, 3,
			[]string{"qa-1 ? free", "qa-2 ? free", "! list"},
			"what exists is not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t, fmt.Sprintf(pool, `"`+strings.ReplaceAll(c.list, `\`, `\\`)+`"`))
			// Status works where a person's changes are switched off.
			p.env = append(p.env, "TESTO_PROVIDER_ACTIONS=0")
			var s seen
			p.json(c.code, &s, "status")
			if diff := cmp.Diff(c.want, s.short("win")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if diff := cmp.Diff([]string{"qa-mac ? free"}, s.short("mac")); diff != "" {
				t.Errorf("a pool without a provider (-want +got):\n%s", diff)
			}
			if s.ExitCode != c.code {
				t.Errorf("JSON has the exit code %d, want %d", s.ExitCode, c.code)
			}
			p.want(c.code, words("status"), c.says, "win: 2 of 2 keys free", "mac: 1 of 1 key free; no provider")
			if exists(filepath.Join(p.dir, "state"))() {
				t.Error("status made the lease database's folder")
			}
		})
	}
}

func TestStatusRefuses(t *testing.T) {
	t.Parallel()
	p := newProject(t, "project: shop\npools:\n\twin: {items: [a], provider: {list: touch ran}}\n")
	p.want(2, words("status wim"), `has no pool "wim"`, "win")
	if exists(filepath.Join(p.dir, "ran"))() {
		t.Error("a wrong name ran a list")
	}
	p.file("project: shop\npools:\n\twin: {item: [a]}\n")
	p.want(2, words("status"), "qasight.yaml:3:")
}

// A failed list wins over what needs a look, and only named pools are looked at.
func TestStatusListFailedWins(t *testing.T) {
	t.Parallel()
	p := newProject(t, `
project: shop
pools:
	a: {items: [a-1], provider: {list: "true"}}
	b: {items: [b-1], provider: {list: "touch b-ran; exit 4"}}
	c: {items: [c-1], provider: {list: "true"}}
`)
	p.want(3, words("status"), "3 pools: 3 to look at, 1 list failed")
	if err := os.Remove(filepath.Join(p.dir, "b-ran")); err != nil {
		t.Fatal(err)
	}
	p.want(1, words("status c a a"), "2 pools: 2 to look at")
	if exists(filepath.Join(p.dir, "b-ran"))() {
		t.Error("another pool's list ran")
	}
}

const localPools = `
project: shop
pools:
	win:
		items: [k-1, k-2, k-3, k-4, k-5, k-6]
		on_reset: "true"
		on_check: "echo $QASIGHT_KEY >> checked"
		provider: {list: "printf 'k-1\\nk-2\\nk-3\\nk-4\\nk-5\\n'", name_prefix: k-}
	rest:
		items: [r-1]
		cooldown: 1h
`

func started(id, pool, key string) action.Entry {
	return action.Entry{
		Action: id + "-0123456789abcdef", Phase: action.PhaseStarted, Pool: pool, Key: key, Verb: action.VerbCreate,
		User: "ann", Host: "desk-3", Command: "./vms.sh create",
	}
}

// What the database knows of keys is shown, and free ones alone are checked.
func TestStatusOfLeases(t *testing.T) {
	t.Parallel()
	p := newProject(t, localPools)
	b := p.local()
	p.prepare(b)
	ctx := t.Context()
	for _, k := range []string{"k-1", "k-2", "k-3"} { // in this order they are taken
		if l := take(t, b, "win", "job "+k); l.Key() != k {
			t.Fatalf("took %s, want %s", l.Key(), k)
		}
	}
	if _, err := b.Force(ctx, "win", "k-2", client.ForceRequest{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Disable(ctx, "win", "k-4", "boots into \u202erescue mode"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Disable(ctx, "win", "k-3", "noisy"); err != nil {
		t.Fatal(err)
	}
	if _, err := take(t, b, "rest", "").Release(ctx, client.ReleaseRequest{}); err != nil {
		t.Fatal(err)
	}
	var s seen
	p.json(1, &s, "status", "--check")
	want := []string{
		"k-1 present held", "k-2 present needs-reset", "k-3 present held", "k-4 present disabled", "k-5 present free check ok", "k-6 missing free",
		"! disabled k-3", "! disabled k-4", "! missing k-6",
	}
	if diff := cmp.Diff(want, s.short("win")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"r-1 ? cooling"}, s.short("rest")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	checked, err := os.ReadFile(filepath.Join(p.dir, "checked"))
	if err != nil || string(checked) != "k-5\n" {
		t.Errorf("checked %q, %v: want the free key that exists and no other", checked, err)
	}
	out := p.want(1, words("status"), "(job k-1)", "since ", "left)", "noisy", "boots into \uFFFDrescue mode", "resets it first", "until ", "2 held", "1 needs-reset", "1 cooling")
	if strings.Contains(out.out, "\u202e") {
		t.Error("a reason reached the terminal as it is")
	}
}

// A change that lives is told and no finding; an action without an end is one,
// until a person looked.
func TestStatusOfChangesAndActions(t *testing.T) {
	t.Parallel()
	p := newProject(t, localPools)
	b := p.local()
	p.prepare(b)
	ctx := t.Context()
	old := started("old", "win", "k-5")
	if _, err := b.Append(ctx, old); err != nil {
		t.Fatal(err)
	}
	// The beginning of a change is told in whole seconds.
	for now := time.Now(); time.Now().Truncate(time.Second).Equal(now.Truncate(time.Second)); time.Sleep(10 * time.Millisecond) {
	}
	change, err := b.Begin(ctx, "win", client.ChangeRequest{Verb: "add", Keys: []string{"k-6", "k-5"}, Holder: "ann@desk-3"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Append(ctx, started("new", "win", "k-6")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Append(ctx, started("gone", "linux", "l-1")); err != nil {
		t.Fatal(err)
	}
	var s seen
	p.json(1, &s, "status", "--check", "win")
	w := s.Pools[0]
	if len(w.Actions) != 2 || w.Actions[0].UnderWay || !w.Actions[1].UnderWay || w.Change == nil || w.Change.Verb != "add" || w.Change.ID != "" {
		t.Errorf("actions %+v, change %+v", w.Actions, w.Change)
	}
	var codes []string
	for _, f := range w.Findings {
		codes = append(codes, f.Code+" "+f.Key)
	}
	if diff := cmp.Diff([]string{"action k-5", "missing k-6"}, codes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(s.Findings) != 0 {
		t.Errorf("asked for one pool, got findings of others: %+v", s.Findings)
	}
	checked, _ := os.ReadFile(filepath.Join(p.dir, "checked"))
	if strings.Contains(string(checked), "k-5") {
		t.Error("a barred key was checked")
	}
	p.want(1, words("status"), "`qasight pool log --resolve old-0123456789abcdef --note TEXT`", "a change is under way: add of k-6, k-5 by ", "create k-6 runs since",
		"barred by a change of", "in pool linux, which the file does not have: create of l-1", "1 finding beside the pools")
	if err := change.End(ctx); err != nil {
		t.Fatal(err)
	}
	p.want(1, words("status win"), "--resolve old-", "--resolve new-")
	for _, e := range []action.Entry{old, started("new", "win", "k-6"), started("gone", "linux", "l-1")} {
		e.Phase, e.Command = action.PhaseResolved, ""
		if _, err := b.Append(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	if out := p.want(1, words("status")); strings.Contains(out.out, "--resolve") {
		t.Errorf("a person looked, and still:\n%s", out.out)
	}
}

// The database is a copy of the file as it was: the file's items count, and who
// holds a key that left it is seen all the same.
func TestStatusOfAStaleDatabase(t *testing.T) {
	t.Parallel()
	p := newProject(t, "project: shop\npools:\n\twin: {items: [a, b, c]}\n\told: {items: [x]}\n")
	b := p.local()
	p.prepare(b)
	take(t, b, "win", "job")
	if _, err := b.Disable(t.Context(), "old", "x", "broken"); err != nil {
		t.Fatal(err)
	}
	// a is held and b is not; both left. x moved here, and d is new.
	p.file(`
project: shop
pools:
	win: {items: [c, d, x], provider: {list: "printf 'a\\nb\\nc\\nd\\nx\\n'", name_prefix: a}}
`)
	var s seen
	p.json(1, &s, "status")
	want := []string{
		"c present free", "d present free", "x present disabled", "a present held (no item)",
		"left a ours held", "left b", "! disabled x", "! leftover a", "! leftover b",
	}
	if diff := cmp.Diff(want, s.short("win")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p.want(1, words("status"), "a is left over: ours to sweep (`qasight pool sweep win`), once nobody holds it", "not in the file; by ")
}

// Status changes nothing in a database, whatever it looks at.
func TestStatusWritesNothing(t *testing.T) {
	t.Parallel()
	p := newProject(t, localPools)
	b := p.local()
	p.prepare(b)
	take(t, b, "win", "job")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	p.file(strings.Replace(localPools, "items: [k-1", "items: [k-0, k-1", 1))
	path := filepath.Join(p.dir, "state", "qasight", "shop", "leases.db")
	sum := func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		wal, _ := os.ReadFile(path + "-wal")
		return fmt.Sprintf("%x %d", sha256.Sum256(text), len(wal))
	}
	before := sum()
	p.want(1, words("status --check"), "1 held")
	p.want(0, words("why win"), "by ")
	if after := sum(); after != before {
		t.Errorf("the database was %s and is %s", before, after)
	}
}

func TestStatusOfABrokenDatabase(t *testing.T) {
	t.Parallel()
	p := newProject(t, "project: shop\npools:\n\twin: {items: [a, b], on_check: touch checked, provider: {list: echo a}}\n\tbad: {items: [c], provider: {list: exit 9}}\n")
	dir := filepath.Join(p.dir, "state", "qasight", "shop")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "leases.db"), []byte(strings.Repeat("this is no database\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	var s seen
	p.json(69, &s, "status", "--check", "win")
	if diff := cmp.Diff([]string{"a present ?", "b missing ?", "! missing b"}, s.short("win")); diff != "" || s.StoreError == "" {
		t.Errorf("what the list says is lost: %q (-want +got):\n%s", s.StoreError, diff)
	}
	if exists(filepath.Join(p.dir, "checked"))() {
		t.Error("a key was checked although nobody knows whether it is free")
	}
	// Both are told; the store's code wins.
	p.want(69, words("status"), "lease states not known", "1 list failed", "the lease store does not answer", "exit code 9")
	p.want(69, words("why win"), "database")
}

func TestStatusChecks(t *testing.T) {
	t.Parallel()
	p := newProject(t, `
project: shop
pools:
	win:
		items: [good, bad, mute, hang, gone]
		hook_timeout: 1s
		on_check: |
			echo "$QASIGHT_KEY $QASIGHT_POOL $QASIGHT_HOOK [$QASIGHT_LEASE$QASIGHT_FENCE$QASIGHT_TOKEN]" >> checked
			case $QASIGHT_KEY in
				bad) echo first; printf 'no answer\033[1m on port 5985\n\n'; exit 3;;
				mute) exit 5;;
				hang) echo waits; sleep 60;;
			esac
		provider: {list: "printf 'good\\nbad\\nmute\\nhang\\n'"}
	none: {items: [n-1]}
`)
	p.env = append(p.env, "QASIGHT_LEASE=other~1", "QASIGHT_FENCE=1", "QASIGHT_TOKEN=fd_secret_of_ann")
	var s seen
	p.json(1, &s, "status", "--check")
	want := []string{
		"good present free check ok", "bad present free check failed", "mute present free check failed", "hang present free check failed", "gone missing free",
		"! missing gone", "! check bad", "! check mute", "! check hang",
	}
	if diff := cmp.Diff(want, s.short("win")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if c := s.Pools[0].Keys[1].Check; c.Code != 3 || c.Line != "no answer\uFFFD[1m on port 5985" {
		t.Errorf("the check of bad is %+v", c)
	}
	checked, err := os.ReadFile(filepath.Join(p.dir, "checked"))
	if err != nil || !strings.Contains(string(checked), "good win check []\n") || strings.Contains(string(checked), "gone") {
		t.Errorf("checked %q, %v", checked, err)
	}
	p.want(1, words("status --check"), "failed  exit code 3: no answer", "failed  exit code 5\n", "did not end within 1s", "4 keys checked", "the pool has no on_check: nothing was checked")
	p.want(1, words("status --check"), "     KEY   EXISTS   STATE  CHECK   DETAIL\n", "     good  present  free   ok\n", "  !  gone  missing  free   -\n")
	// Nothing was disabled by it.
	p.want(1, words("status"), "5 of 5 keys free")
}

// Whoever takes a key while it is checked makes the result worthless; whoever
// takes one before its turn keeps it from being checked.
func TestStatusCheckOfATakenKey(t *testing.T) {
	t.Parallel()
	var items []string
	for i := range 9 { // one more than may run at once
		items = append(items, fmt.Sprintf("k-%d", i))
	}
	p := newProject(t, fmt.Sprintf(`
project: shop
pools:
	win:
		items: [%s]
		on_check: |
			touch begun-$QASIGHT_KEY
			while [ ! -e go ]; do sleep 0.02; done
			exit 1
`, strings.Join(items, ", ")))
	done := make(chan seen, 1)
	go func() {
		var s seen
		p.json(1, &s, "status", "--check")
		done <- s
	}()
	begun := func() []string {
		all, _ := filepath.Glob(filepath.Join(p.dir, "begun-*"))
		return all
	}
	eventually(t, "eight checks run", func() bool { return len(begun()) == 8 })
	// Nobody ever took a key here: the database comes into being only now.
	b := p.local()
	p.prepare(b)
	taken := map[string]bool{}
	for range 3 {
		taken[take(t, b, "win", "job").Key()] = true
	}
	// The ninth is out of use.
	var ninth string
	for _, k := range items {
		if !exists(filepath.Join(p.dir, "begun-"+k))() {
			ninth = k
		}
	}
	if _, err := b.Disable(t.Context(), "win", ninth, "test"); err != nil {
		t.Fatal(err)
	}
	// What was seen a moment ago is good for a second.
	time.Sleep(1100 * time.Millisecond)
	if err := os.WriteFile(filepath.Join(p.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := <-done
	for _, k := range s.Pools[0].Keys {
		want, reason := "failed", "exit code 1"
		switch {
		case k.Name == ninth:
			want, reason = "skipped", "not free any more: disabled"
		case taken[k.Name]:
			want, reason = "discarded", "(job)"
		}
		if k.Check == nil || k.Check.Outcome != want || !strings.Contains(k.Check.Reason, reason) ||
			want == "discarded" && !strings.HasPrefix(k.Check.Reason, "taken meanwhile by ") {
			t.Errorf("%s: %+v, want %s, %s", k.Name, k.Check, want, reason)
		}
	}
	if n := len(begun()); n != 8 {
		t.Errorf("%d checks ran, want 8", n)
	}
}

// A check that had to wait for its turn begins on a fresh look.
func TestStatusCheckAfterAWait(t *testing.T) {
	t.Parallel()
	p := newProject(t, `
project: shop
pools:
	slow: {items: [s-1, s-2, s-3, s-4], on_check: 'touch begun-$QASIGHT_KEY; while [ ! -e go-slow ]; do sleep 0.02; done'}
	win: {items: [w-1, w-2, w-3, w-4, w-5], on_check: 'touch begun-$QASIGHT_KEY; while [ ! -e go-win ]; do sleep 0.02; done'}
`)
	b := p.local()
	p.prepare(b)
	done := make(chan seen, 1)
	go func() {
		var s seen
		p.json(0, &s, "status", "--check")
		done <- s
	}()
	begun := func() string {
		all, _ := filepath.Glob(filepath.Join(p.dir, "begun-*"))
		return strings.Join(all, " ")
	}
	eventually(t, "eight checks run", func() bool { return strings.Count(begun(), "begun-") == 8 })
	const last = "w-5" // keys have their turn in the file's order
	if _, err := b.Disable(t.Context(), "win", last, "test"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // what was seen a moment ago is good for a second
	for _, name := range []string{"go-slow", "go-win"} {
		if err := os.WriteFile(filepath.Join(p.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		// The turn comes by the other pool's end, which is no look at this one. A
		// right program does not need the time; a wrong one would use it.
		time.Sleep(400 * time.Millisecond)
	}
	s := <-done
	for _, k := range s.Pools[1].Keys {
		want := "ok"
		if k.Name == last {
			want = "skipped"
		}
		if k.Check == nil || k.Check.Outcome != want {
			t.Errorf("%s: %+v, want %s", k.Name, k.Check, want)
		}
	}
	if strings.Contains(begun(), last) {
		t.Errorf("%s was checked although it is disabled", last)
	}
}

// Nothing runs more than 32 lists or 8 checks at once.
func TestStatusBounds(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	file.WriteString("project: shop\npools:\n")
	// Each leaves a mark while it runs, and counts the marks.
	run := func(kind, name string) string {
		return fmt.Sprintf("touch %s-%s; ls | grep -c ^%s- >> most-%s; sleep 0.3; rm %s-%s; true", kind, name, kind, kind, kind, name)
	}
	for i := range 40 {
		fmt.Fprintf(&file, "\tp%d: {items: [k-%d], on_check: '%s', provider: {list: '%s; echo k-%d'}}\n", i, i, run("check", "$QASIGHT_KEY"), run("list", "$QASIGHT_POOL"), i)
	}
	p := newProject(t, file.String())
	p.want(0, words("status --check"), "40 pools: all well, 40 keys checked")
	for kind, most := range map[string]int{"list": 32, "check": 8} {
		text, err := os.ReadFile(filepath.Join(p.dir, "most-"+kind))
		if err != nil {
			t.Fatal(err)
		}
		least, n := 0, 0
		for _, line := range strings.Fields(string(text)) {
			fmt.Sscan(line, &n)
			least = max(least, n)
		}
		if least > most || least < 2 {
			t.Errorf("%d of %s ran at once, want 2 to %d", least, kind, most)
		}
	}
}

func TestStatusOfABigPool(t *testing.T) {
	t.Parallel()
	var items, list []string
	for i := range 60 {
		items = append(items, fmt.Sprintf("k-%02d", i))
		if i != 7 {
			list = append(list, fmt.Sprintf("k-%02d", i))
		}
	}
	for i := range 45 {
		list = append(list, fmt.Sprintf("left-%02d", i))
	}
	p := newProject(t, fmt.Sprintf("project: shop\npools:\n\twin: {items: [%s], provider: {list: printf '%%s\\n' %s}}\n", strings.Join(items, ", "), strings.Join(list, " ")))
	out := p.want(1, words("status"), "k-07", "59 keys without a finding not shown: --all shows them", "and 5 more are left over").out
	if strings.Contains(out, "k-08") || strings.Contains(out, "left-40") || !strings.Contains(out, "left-39") {
		t.Errorf("a big pool shows\n%s", out)
	}
	all := p.want(1, words("status --all"), "k-07", "k-08", "left-44").out
	if strings.Contains(all, "not shown") || strings.Contains(all, "more are left over") {
		t.Errorf("--all leaves something out:\n%s", all)
	}
	var s seen
	p.json(1, &s, "status")
	if len(s.Pools[0].Keys) != 60 || len(s.Pools[0].Leftovers) != 45 {
		t.Errorf("JSON has %d keys and %d leftovers", len(s.Pools[0].Keys), len(s.Pools[0].Leftovers))
	}
}

// Progress is a line of a terminal, and removed at the end; nobody else sees it.
func TestStatusProgress(t *testing.T) {
	t.Parallel()
	p := newProject(t, `
project: shop
pools:
	a: {items: [x], provider: {list: "sleep 0.2; echo x"}}
	b: {items: [y], provider: {list: "sleep 0.2; echo y"}}
`)
	if s := p.want(0, words("status")); s.err != "" {
		t.Errorf("without a terminal: %q", s.err)
	}
	p.terminal = true
	s := p.want(0, words("status"))
	if !strings.Contains(s.err, "0/2 lists, waiting for: a, b") && !strings.Contains(s.err, "0/2 lists, waiting for: b, a") {
		t.Errorf("on a terminal: %q", s.err)
	}
	if !strings.HasSuffix(s.err, "\r\x1b[K") || strings.Contains(s.err, "\n") {
		t.Errorf("the line stays: %q", s.err)
	}
	for line := range strings.SplitSeq(s.err, "\r\x1b[K") {
		if len(line) > 78 {
			t.Errorf("a line of %d letters: %q", len(line), line)
		}
	}
	if s := p.want(0, words("status --json")); s.err != "" {
		t.Errorf("with --json: %q", s.err)
	}
	p.env = append(p.env, "TERM=dumb")
	if s := p.want(0, words("status")); s.err != "" {
		t.Errorf("on a terminal that knows no escapes: %q", s.err)
	}
}

// The line fits a terminal however many pools run.
func TestStatusProgressOfMany(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	file.WriteString("project: shop\npools:\n")
	for i := range 30 {
		fmt.Fprintf(&file, "\ta-pool-with-a-long-nam-%02d: {items: [k-%d], provider: {list: 'sleep 0.5; echo k-%d'}}\n", i, i, i)
	}
	p := newProject(t, file.String())
	p.terminal = true
	s := p.want(0, words("status"))
	if !strings.Contains(s.err, "0/30 lists, waiting for: a-pool-with-a-long-nam-") || !strings.Contains(s.err, " and 29 more") {
		t.Errorf("%q", s.err)
	}
	for line := range strings.SplitSeq(s.err, "\r\x1b[K") {
		if len(line) > 78 {
			t.Errorf("a line of %d letters: %q", len(line), line)
		}
	}
}

// A signal ends the lists with their process groups, and the command.
func TestStatusInterrupted(t *testing.T) {
	t.Parallel()
	p := newProject(t, "project: shop\npools:\n\twin: {items: [a], provider: {list: touch began; sleep 60}}\n")
	done := make(chan said, 1)
	go func() { done <- p.run("status") }()
	eventually(t, "the list runs", exists(filepath.Join(p.dir, "began")))
	p.signals <- syscall.SIGTERM
	select {
	case s := <-done:
		if s.code != 128+int(syscall.SIGTERM) || !strings.Contains(s.err, "terminated") || s.out != "" {
			t.Errorf("%+v", s)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
}
