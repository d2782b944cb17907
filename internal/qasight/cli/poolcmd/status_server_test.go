package poolcmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/pool"
)

// teamFile is a file for a team server.
func teamFile(s *team, rest string) string {
	return "project: shop\nserver: " + s.url + "\npools:\n" + rest
}

func publish(t *testing.T, s *team, p pool.Pool) {
	t.Helper()
	if p.TTL == 0 {
		p.TTL = 10 * time.Minute // the file's default
	}
	if _, err := s.broker(t, "ann").Publish(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
}

func TestStatusOfATeamServer(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := s.as(newProject(t, teamFile(s, `
	win:
		items: [w-1, w-2]
		on_check: touch check-$QASIGHT_KEY
		provider: {list: "printf 'w-1\\nw-2\\nw-7\\nw-8\\nw-9\\n'", name_prefix: w-}
	mac: {items: [m-1]}
`)), "bob")
	// Neither pool was published: nobody can take their keys, and none is checked.
	var got seen
	p.json(1, &got, "status", "--check")
	if diff := cmp.Diff([]string{
		"w-1 present not-published", "w-2 present not-published", "left w-7 ours", "left w-8 ours", "left w-9 ours",
		"! unpublished", "! leftover w-7", "! leftover w-8", "! leftover w-9",
	}, got.short("win")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p.want(1, words("status mac"), "mac: 0 of 1 key free, 1 not-published; no provider", "an admin runs `qasight pool publish mac`")
	if exists(filepath.Join(p.dir, "check-w-1"))() {
		t.Error("a key that nobody can take was checked")
	}

	// Another project's pool lists w-8; w-7 is published and not in the file, and
	// somebody holds it.
	publish(t, s, pool.Pool{Name: "others", Items: []string{"w-8"}})
	publish(t, s, pool.Pool{Name: "win", Items: []string{"w-7", "w-2"}, Check: true})
	publish(t, s, pool.Pool{Name: "mac", Items: []string{"m-1"}})
	take(t, s.broker(t, "ci"), "win", "nightly 4711")
	p.json(1, &got, "status", "--check")
	if diff := cmp.Diff([]string{
		"w-1 present not-published", "w-2 present held", "w-7 present free (no item)", "left w-9 ours", "! differs", "! leftover w-9",
	}, got.short("win")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"m-1 ? free"}, got.short("mac")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	w := got.Pools[0]
	if w.Revision != 1 || w.PublishedBy != "ann" || len(w.Differences) != 2 || !strings.HasPrefix(w.Differences[0], "w-1 is in the file") {
		t.Errorf("%+v", w)
	}
	p.want(1, words("status"), "the file differs from what was published (revision 1 by ann)", "    w-1 is in the file", "by ci (nightly 4711)", "2 pools: 1 to look at")

	// All calls but those of this test only read.
	for _, c := range s.calls() {
		if !strings.HasPrefix(c, "GET ") && !strings.HasPrefix(c, "PUT /api/v1/pools/") && c != "POST /api/v1/leases" {
			t.Errorf("status called %s", c)
		}
	}
}

// A server's other pools are read only when there is a name to ask about.
func TestStatusAsksNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	s := serve(t)
	publish(t, s, pool.Pool{Name: "win", Items: []string{"w-1"}})
	publish(t, s, pool.Pool{Name: "others", Items: []string{"o-1"}})
	p := s.as(newProject(t, teamFile(s, "\twin: {items: [w-1], provider: {list: echo w-1}}\n")), "bob")
	p.want(0, words("status"), "1 pool: all well")
	for _, c := range s.calls() {
		if strings.Contains(c, "GET") && (strings.Contains(c, "others") || strings.HasSuffix(c, "/pools")) {
			t.Errorf("status called %s", c)
		}
	}
}

func TestStatusOfASilentServer(t *testing.T) {
	t.Parallel()
	s, leases, actions := serveMemory(t)
	publish(t, s, pool.Pool{Name: "win", Items: []string{"a", "b"}})
	p := newProject(t, teamFile(s, `
	win: {items: [a, b], provider: {list: "touch ran; echo a"}}
	bad: {items: [c], provider: {list: exit 1}}
`))
	ran := filepath.Join(p.dir, "ran")
	ann := s.as(p, "ann")
	var got seen
	silent := func(what string) {
		t.Helper()
		ann.json(69, &got, "status", "win")
		if diff := cmp.Diff([]string{"a present ?", "b missing ?", "! missing b"}, got.short("win")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	actions.Fail(fault.New(fault.Unavailable, "the log does not answer"))
	silent("without the action log")
	actions.Fail(nil)
	leases.Outage(true)
	// The client tries again for a while: all at once.
	var group sync.WaitGroup
	group.Go(func() {
		ann.want(69, words("status"), "1 list failed, the lease store does not answer", "win: 2 keys, lease states not known; 1 present, 1 missing, 0 left over")
	})
	group.Go(func() { ann.want(69, words("why win"), "does not answer") })
	silent("without the store")
	group.Wait()
	leases.Outage(false)
	ann.want(1, words("status win"), "2 of 2 keys free")

	// A refusal is no silence; the lists' results are shown with both.
	p.env = append(p.env, "QASIGHT_TOKEN=fd_aaaaaaaaaaaa_wrong")
	if err := os.Remove(ran); err != nil {
		t.Fatal(err)
	}
	p.want(77, words("status win"), "1 present, 1 missing", "token")
	p.want(77, words("why win"), "token")
	// Without any token nothing runs.
	if err := os.Remove(ran); err != nil {
		t.Fatal(err)
	}
	none := newProject(t, teamFile(s, "\twin: {items: [a], provider: {list: touch ran}}\n"))
	none.want(77, words("status win"), "QASIGHT_TOKEN")
	if exists(filepath.Join(none.dir, "ran"))() {
		t.Error("a list ran for nothing")
	}
}

// When the store stops answering while keys are checked, no result counts.
func TestStatusChecksWithoutAStore(t *testing.T) {
	t.Parallel()
	s, leases, _ := serveMemory(t)
	publish(t, s, pool.Pool{Name: "win", Items: []string{"a"}, Check: true})
	p := s.as(newProject(t, teamFile(s, "\twin: {items: [a], on_check: 'touch began; while [ ! -e go ]; do sleep 0.02; done; exit 1'}\n")), "bob")
	done := make(chan seen, 1)
	go func() {
		var got seen
		p.json(69, &got, "status", "--check")
		done <- got
	}()
	eventually(t, "the check runs", exists(filepath.Join(p.dir, "began")))
	leases.Outage(true)
	if err := os.WriteFile(filepath.Join(p.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if c := got.Pools[0].Keys[0].Check; c == nil || c.Outcome != "discarded" || len(got.Pools[0].Findings) > 0 {
		t.Errorf("%+v, %+v", c, got.Pools[0].Findings)
	}
}

// More keys than a page of the server has.
func TestStatusOfManyPages(t *testing.T) {
	t.Parallel()
	s := serve(t)
	var items []string
	for i := range 1201 {
		items = append(items, fmt.Sprintf("k-%04d", i))
	}
	publish(t, s, pool.Pool{Name: "win", Items: items})
	p := s.as(newProject(t, teamFile(s, "\twin: {items: ["+strings.Join(items, ", ")+"]}\n")), "bob")
	p.want(0, words("status"), "win: 1201 of 1201 keys free; no provider")
}

func TestStatusOfWaiters(t *testing.T) {
	t.Parallel()
	s := serve(t)
	publish(t, s, pool.Pool{Name: "win", Items: []string{"a"}})
	take(t, s.broker(t, "ci"), "win", "nightly")
	wait(t, s, "bob", "win", "bob's tests", 1)
	p := s.as(newProject(t, teamFile(s, "\twin: {items: [a]}\n")), "bob")
	p.want(0, words("status"), "0 of 1 key free, 1 held", "1 waiting")
	var got seen
	p.json(0, &got, "status")
	if got.Pools[0].Waiting != 1 {
		t.Errorf("%d wait, want 1", got.Pools[0].Waiting)
	}
}

// wait has an account wait for a key until the test ends, and returns when it is
// the nth in line.
func wait(t *testing.T, s *team, account, name, holder string, nth int) {
	t.Helper()
	b := s.broker(t, account)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = b.Take(t.Context(), name, client.TakeOptions{Holder: holder, Wait: time.Minute})
	}()
	t.Cleanup(func() { <-done })
	eventually(t, holder+" waits", func() bool {
		all, err := b.Waiters(t.Context(), name)
		return err == nil && len(all) == nth
	})
}
