package poolcmd_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"fleetdesk/internal/qasight/pool"
)

func TestPublish(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := newProject(t, teamFile(s, `
	win: {items: [a, b], cooldown: 5s, on_reset: ./secret-reset.sh, provider: {list: ./secret-list.sh}}
	mac: {items: [m]}
`))
	ann := s.as(p, "ann")
	ann.want(0, words("publish --dry-run"), "win: new, 2 keys", "mac: new, 1 key", "dry run: nothing was sent to the team server "+s.url)
	for _, c := range s.calls() {
		if !strings.HasPrefix(c, "GET ") {
			t.Errorf("a dry run called %s", c)
		}
	}
	ann.want(0, words("publish win"), "win: new, 2 keys", "win: published, revision 1")
	ann.want(0, words("publish"), "win: as published (revision 1)", "mac: new, 1 key", "mac: published, revision 1")
	ann.want(0, words("publish"), "win: as published (revision 1)", "mac: as published (revision 1)", "nothing to publish")
	v, err := s.broker(t, "bob").Pool(t.Context(), "win")
	if err != nil || v.Revision != 1 || v.PublishedBy != "ann" || !v.Hooks.Reset || v.Hooks.Check || len(v.Members) != 2 {
		t.Errorf("published %+v, %v", v, err)
	}

	// Somebody holds what leaves the list.
	take(t, s.broker(t, "ci"), "win", "nightly")
	ann.file(teamFile(s, "\twin: {items: [b, c], cooldown: 5s, on_reset: ./secret-reset.sh}\n"))
	ann.want(0, words("publish"), "win: differs from revision 1", "  c is in the file", "  a was published and is not in the file",
		"  held: a, by ci (nightly); it leaves the pool when its lease ends", "win: published, revision 2")

	var got struct {
		DryRun bool
		Pools  []struct {
			Name         string
			Seen         int64 `json:"seenRevision"`
			Revision     int64
			Published    bool
			Differences  []string
			Held         []string
			New          bool
			SeenRevision int64 `json:"-"`
		}
	}
	ann.file(teamFile(s, "\twin: {items: [b, c], cooldown: 6s, on_reset: ./secret-reset.sh}\n"))
	ann.json(0, &got, "publish", "--dry-run")
	if w := got.Pools[0]; !got.DryRun || w.Seen != 2 || w.Revision != 2 || w.Published || len(w.Differences) != 1 {
		t.Errorf("%+v", got)
	}
	ann.json(0, &got, "publish")
	if w := got.Pools[0]; got.DryRun || w.Seen != 2 || w.Revision != 3 || !w.Published {
		t.Errorf("%+v", got)
	}
}

func TestPublishRefuses(t *testing.T) {
	t.Parallel()
	local := newProject(t, localPools)
	local.want(0, words("publish"), "win: published, revision 1")
	local.want(2, words("publish wim"), `has no pool "wim"`)
	local.file("project: shop\n")
	local.want(2, words("publish"), "pools")

	s, leases, _ := serveMemory(t)
	p := newProject(t, teamFile(s, "\twin: {items: [a]}\n"))
	p.want(77, words("publish"), "QASIGHT_TOKEN")
	s.as(p, "bob").want(77, words("publish"), "account bob has the role runner; this needs admin", "ask an admin")
	s.as(p, "bob").want(0, words("publish --dry-run"), "win: new")
	leases.Outage(true)
	s.as(p, "ann").want(69, words("publish"), "does not answer")
	leases.Outage(false)
	if _, err := s.broker(t, "ann").Pool(t.Context(), "win"); err == nil {
		t.Error("one of these was published")
	}
}

// between is a proxy to a team server that does something before the nth PUT.
func between(t *testing.T, s *team, nth int32, do func()) string {
	t.Helper()
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	var puts atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			body, _ := io.ReadAll(r.Body)
			if text := string(body); strings.Contains(text, "secret") {
				t.Errorf("a hook or the provider was sent: %s", text)
			}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			if puts.Add(1) == nth {
				do()
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// Whoever publishes between the look and the sending is not overwritten.
func TestPublishAgainstAnother(t *testing.T) {
	t.Parallel()
	for name, had := range map[string]bool{"a pool that exists": true, "a new pool": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			if had {
				publish(t, s, pool.Pool{Name: "win", Items: []string{"a"}})
			}
			front := *s
			front.url = between(t, s, 1, func() { publish(t, s, pool.Pool{Name: "win", Items: []string{"x"}}) })
			p := front.as(newProject(t, teamFile(&front, "\twin: {items: [a, b], on_check: secret}\n")), "ann")
			p.want(77, words("publish"), "somebody published win in this moment: look at the differences again")
			v, err := s.broker(t, "ann").Pool(t.Context(), "win")
			if err != nil || len(v.Members) != 1 || v.Members[0].Name != "x" {
				t.Errorf("the other's list is %+v, %v", v.Members, err)
			}
		})
	}
}

// A refusal after the first pool leaves what was published so far, and says so.
func TestPublishInPart(t *testing.T) {
	t.Parallel()
	s := serve(t)
	front := *s
	front.url = between(t, s, 2, func() { publish(t, s, pool.Pool{Name: "two", Items: []string{"x"}}) })
	p := front.as(newProject(t, teamFile(&front, "\tone: {items: [a]}\n\ttwo: {items: [b]}\n\tthree: {items: [c]}\n")), "ann")
	p.want(1, words("publish"), "one: published, revision 1", "somebody published two", "of the pools before it 1 were published")
	if _, err := s.broker(t, "ann").Pool(t.Context(), "three"); err == nil {
		t.Error("it went on after a refusal")
	}
}
