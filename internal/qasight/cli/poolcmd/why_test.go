package poolcmd_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/qasight/pool"
)

func TestWhyOfATeamServer(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := newProject(t, teamFile(s, "\twin: {items: [a, b, c, d], provider: {list: touch ran}}\n"))
	bob := s.as(p, "bob")
	bob.want(0, words("why win"), "not-published", "an admin publishes the pool, so that its keys can be taken: `qasight pool publish win`")

	publish(t, s, pool.Pool{Name: "win", Items: []string{"a", "b", "c"}})
	bob.want(0, words("why win"), "3 of 4 keys free, 0 waiting", "take one: 3 keys can be taken now (`qasight take win`)", "the team server does not know")
	ann := s.broker(t, "ann")
	if _, err := ann.Disable(t.Context(), "win", "c", "boots into rescue mode"); err != nil {
		t.Fatal(err)
	}
	ci := s.broker(t, "ci")
	if _, err := ci.Take(t.Context(), "win", client.TakeOptions{Holder: "nightly 4711", TTL: 30 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	take(t, s.broker(t, "bob"), "win", "bob@desk-3 pid 7") // for an hour
	wait(t, s, "ci", "win", "nightly 4712", 1)
	wait(t, s, "bob", "win", "ui tests", 2)
	out := bob.want(0, words("why win"),
		"0 of 4 keys free, 2 waiting", "by ci (nightly 4711) since ", "left)", "disabled", "boots into rescue mode", "held, yours",
		"In line:", "you are number 2 in line, and b comes free then unless its lease is renewed", "left)",
		"ask ci (nightly 4711) to release a", "release b, which your own account holds, as bob@desk-3 pid 7",
		"`qasight pool enable win c`", "`qasight pool force-release win KEY --reason",
	).out
	for line := range strings.Lines(out) {
		if yours := strings.Contains(line, "<- yours"); yours != strings.Contains(line, "(ui tests)") {
			t.Errorf("marked wrongly: %s", line)
		}
	}
	// Who does not wait would be the third, and there is no third key by time.
	s.as(p, "ann").want(0, words("why win"), "time alone frees no key for number 3 in line")

	var got struct {
		Account string
		Free    int
		Keys    []struct {
			Name, State, Why string
			Yours            bool
		}
		Waiters []struct {
			Position int
			Account  string
			Yours    bool
		}
		Advice []string
	}
	bob.json(0, &got, "why", "win")
	if got.Account != "bob" || got.Free != 0 || len(got.Keys) != 4 || got.Keys[0].Yours || !got.Keys[1].Yours || got.Keys[2].Why == "" ||
		len(got.Waiters) != 2 || got.Waiters[0].Yours || !got.Waiters[1].Yours || got.Waiters[1].Position != 2 || len(got.Advice) == 0 {
		t.Errorf("%+v", got)
	}
	if exists(filepath.Join(p.dir, "ran"))() {
		t.Error("why ran a provider's command")
	}
}

func TestWhyOfALocalDatabase(t *testing.T) {
	t.Parallel()
	p := newProject(t, localPools)
	p.want(0, words("why win"), "6 of 6 keys free, 0 waiting", "take one: 6 keys can be taken now")
	if exists(filepath.Join(p.dir, "state"))() {
		t.Error("why made the lease database's folder")
	}
	b := p.local()
	p.prepare(b)
	ctx := t.Context()
	take(t, b, "win", "job 1")
	take(t, b, "win", "job 2")
	if _, err := b.Force(ctx, "win", "k-2", client.ForceRequest{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Append(ctx, started("old", "win", "k-5")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Begin(ctx, "win", client.ChangeRequest{Verb: "remove", Keys: []string{"k-6"}, Holder: "ann@desk-3"}); err != nil {
		t.Fatal(err)
	}
	p.want(0, words("why win"),
		"2 of 6 keys free", "held, yours", "release k-1, which your own account holds, as job 1", "whoever takes it next resets it first",
		"take one: 3 keys can be taken now", "barred by an action of ", "`qasight pool log --resolve old-0123456789abcdef --note TEXT`",
		"barred by a change of ", "A change is under way: remove k-6 by ", "wait for the change of ", "2 keys not shown: --all shows them")
	p.want(0, words("why win --all"), "k-3", "k-4")
	if _, err := take(t, b, "rest", "").Release(ctx, client.ReleaseRequest{}); err != nil {
		t.Fatal(err)
	}
	p.want(0, words("why rest"), "cooling", "left)", "whoever comes now is number 1 in line, and r-1 comes free then\n")
}

// An action whose change shows life is not judged yet.
func TestWhySaysToWaitFirst(t *testing.T) {
	t.Parallel()
	p := newProject(t, localPools)
	b := p.local()
	p.prepare(b)
	change, err := b.Begin(t.Context(), "win", client.ChangeRequest{Verb: "remove", Keys: []string{"k-6"}, Holder: "ann@desk-3"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Append(t.Context(), started("new", "win", "k-6")); err != nil {
		t.Fatal(err)
	}
	const wait = "wait first: it may still run; if its program was killed, the lock ends within a minute; then see what became of k-6"
	p.want(0, words("why win"), wait)
	if err := change.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.want(0, words("why win"), "see what became of k-6"); strings.Contains(s.out, "wait first") {
		t.Errorf("the change has ended: %s", s.out)
	}
}

func TestWhyRefuses(t *testing.T) {
	t.Parallel()
	p := newProject(t, localPools)
	p.want(2, words("why"), "want POOL")
	p.want(2, words("why win rest"), "want POOL")
	p.want(2, words("why wim"), `has no pool "wim"`)
	p.file("pools: {}\n")
	p.want(2, words("why win"), "project")
}
