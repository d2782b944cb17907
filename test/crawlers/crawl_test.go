package crawlers_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
)

// Each program of the page gets every page that it was asked for, from a site
// that refuses the first proxy, with a second one that is dead; and it tells the
// desk so.
func TestPrograms(t *testing.T) {
	b := startBench(t)
	six := b.withSix(t)
	used := map[string]bool{}
	for _, tl := range tools() {
		for _, name := range append([]string{tl.program}, tl.files...) {
			used[name] = true
		}
		t.Run(tl.name, func(t *testing.T) {
			t.Parallel()
			tl.present(t)
			if tl.program == "crawl.go" {
				b.compiled(t)
			}
			t.Run("pages", func(t *testing.T) { b.pages(t, tl) })
			t.Run("waits", func(t *testing.T) { b.waits(t, tl) })
			t.Run("never direct", func(t *testing.T) { b.neverDirect(t, tl) })
			t.Run("IPv6", func(t *testing.T) {
				if !six {
					t.Skip("no IPv6 here")
				}
				b.overSix(t, tl)
			})
		})
	}
	for name := range b.programs {
		if !used[name] {
			t.Errorf("docs/crawlers.md has %s, which no test runs", name)
		}
	}
	t.Cleanup(func() { // once all are through
		for _, asked := range b.trip.sprung() {
			t.Errorf("a proxy that nobody was told to use was asked: %s", asked)
		}
		for key, f := range b.proxies {
			for _, line := range f.told {
				t.Errorf("while %s was used, a command line showed a secret: %q", key, line)
			}
		}
		for _, line := range b.desk.told {
			t.Errorf("while the desk was asked, a command line showed a secret: %q", line)
		}
	})
}

// got checks that a run printed each page once, and nothing that is secret.
func (b *bench) got(t *testing.T, o outcome, pages ...string) {
	t.Helper()
	if o.code != 0 {
		t.Errorf("exit code %d", o.code)
	}
	for _, p := range pages {
		if n := strings.Count(o.stdout, "Item "+p); n == 0 {
			t.Errorf("page %s was not printed", p)
		}
	}
	b.quiet(t, o)
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s", o.stdout, o.stderr)
	}
}

func (b *bench) quiet(t *testing.T, o outcome) {
	t.Helper()
	for _, s := range b.shown(o.stdout + o.stderr) {
		t.Errorf("%q was printed", s)
	}
	for _, path := range o.files {
		t.Errorf("a secret was left in %s", path)
	}
}

// reports are the outcomes that were told of a site, with the proxies.
func reports(calls []call) (all []string) {
	for _, c := range calls {
		if _, name, ok := strings.Cut(c.path, "proxies/crawl/"); ok && c.status == http.StatusOK {
			all = append(all, strings.TrimSuffix(name, "/reports")+" "+c.body["outcome"].(string))
		}
	}
	return all
}

func (b *bench) pages(t *testing.T, tl tool) {
	site := tl.name + ".example.com"
	b.origin.banish(site, b.proxies[keyBanned].exit, time.Now().Add(time.Hour))
	o := tl.run(t, b, poolAll, b.elsewhere(), []string{
		"https://" + site + "/item/1", "http://" + site + "/item/2", "https://" + site + "/item/3",
	})
	b.got(t, o, "1", "2", "3")

	if direct := b.direct(site); len(direct) > 0 {
		t.Errorf("requests went direct: %+v", direct)
	}
	good := map[string]int{}
	for _, v := range b.origin.of(site) {
		if v.status == http.StatusOK && strings.HasPrefix(v.path, "/item/") {
			good[v.path]++
		}
	}
	for _, path := range []string{"/item/1", "/item/2", "/item/3"} {
		if good[path] != 1 {
			t.Errorf("%s was answered well %d times", path, good[path])
		}
	}

	calls := b.desk.about(site)
	told := reports(calls)
	slices.Sort(told)
	want := []string{"a-banned banned", "b-dead error", "c-1 ok", "d-2 ok", "e-3 ok"}
	if fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("the desk was told %q, want %q", told, want)
	}
	for _, c := range calls {
		outcome := c.body["outcome"]
		if outcome == nil {
			continue
		}
		_, asked := c.body["replace"]
		_, came := c.answer["replacement"]
		if asked != (outcome != "ok") || came != asked {
			t.Errorf("%s of %s: a replacement was asked for: %t, and came: %t", outcome, c.path, asked, came)
		}
	}
	uses := map[any]int{}
	for _, c := range calls {
		if c.status == http.StatusOK && c.body["outcome"] != nil {
			uses[c.body["use"]]++
		}
		if uses[nil] > 0 {
			t.Error("a report names no use")
		}
	}
	for use, n := range uses {
		if n != 1 {
			t.Errorf("the use %v was reported %d times", use, n)
		}
	}
	page, err := b.desk.client.Cooldowns(t.Context(), "crawl", "a-banned", client.Page{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, c := range page.Items {
		found = found || c.Target == site && c.Cause == "banned" && c.Strikes == 1
	}
	if !found {
		t.Errorf("the ban is not in force: %+v", page.Items)
	}
}

// waits checks that a program comes back when the desk says so, and not before:
// the only proxy is leased to somebody, whose lease runs out once the program was
// told so.
func (b *bench) waits(t *testing.T, tl tool) {
	site := tl.name + "-waits.example.com"
	held, err := b.desk.client.Take(t.Context(), only(tl), client.TakeOptions{TTL: lease.MinTTL})
	if err != nil {
		t.Fatal(err)
	}
	count := func() (picked, refused int) {
		for _, c := range b.desk.about(site) {
			switch {
			case c.status == http.StatusServiceUnavailable:
				refused++
			case c.path == "proxies/next":
				picked++
			}
		}
		return picked, refused
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		if err := held.KeepAlive(ctx); err != nil {
			t.Error(err)
		}
	})
	group.Go(func() {
		for _, refused := count(); refused == 0 && ctx.Err() == nil; _, refused = count() {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	})
	o := tl.run(t, b, only(tl), nil, []string{"http://" + site + "/item/1", "http://" + site + "/item/2"})
	b.got(t, o, "1", "2")
	picked, refused := count()
	const most = 4 // Scrapy asks for all of its pages at once
	if picked != 2 || refused < 1 || refused > most {
		t.Errorf("the desk gave %d proxies and said %d times that none is free, want 2 and 1 to %d", picked, refused, most)
	}
}

// neverDirect checks that a page that no proxy can bring is not had, although
// its name leads to this machine, where the origin is.
func (b *bench) neverDirect(t *testing.T, tl tool) {
	base := "http://localhost:" + b.origin.port()
	mine := func() (all []visit) {
		for _, v := range b.direct("localhost") {
			if strings.Contains(v.path, tl.name) {
				all = append(all, v)
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		reason string
		pool   string
		path   string
		env    []string
		works  bool
	}{
		"a dead proxy": {
			reason: "every try fails, and there is no other way",
			pool:   poolDead, path: "/item/dead-" + tl.name, env: b.around(),
		},
		"no desk": {
			reason: "nothing was handed out, so nothing is used",
			pool:   poolLive, path: "/item/nodesk-" + tl.name, env: append(b.around(), "DESK=http://"+unused(t)),
		},
		"no such pool": {
			reason: "an answer of the desk that has no proxy is an error",
			pool:   "crawl.none", path: "/item/nopool-" + tl.name, env: b.around(),
		},
		"around": {
			reason: "NO_PROXY is not about what was handed out, and localhost is no exception",
			pool:   poolLive, path: "/item/around-" + tl.name, env: b.around(), works: true,
		},
		"a redirect": {
			reason: "the next page comes through the same proxy",
			pool:   poolLive, path: "/moved/" + tl.name, env: b.around(), works: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := tl.run(t, b, c.pool, c.env, []string{base + c.path})
			b.quiet(t, o)
			if direct := mine(); len(direct) > 0 {
				t.Errorf("%s: requests went direct: %+v", c.reason, direct)
			}
			// A scrape ends well whatever its pages did.
			switch failed := o.code != 0 || tl.name == "scrapy" && !strings.Contains(o.stdout, "Item"); {
			case failed == c.works:
				t.Errorf("%s: exit code %d", c.reason, o.code)
			case !c.works && strings.Contains(o.stdout, "Item"):
				t.Errorf("%s: a page was printed", c.reason)
			}
			if t.Failed() {
				t.Logf("stdout:\n%s\nstderr:\n%s", o.stdout, o.stderr)
			}
		})
	}
}

func (b *bench) overSix(t *testing.T, tl tool) {
	site := tl.name + "-six.example.com"
	o := tl.run(t, b, poolSix, nil, []string{"https://" + site + "/item/1", "http://" + site + "/item/2"})
	b.got(t, o, "1", "2")
	for _, v := range b.origin.of(site) {
		if v.address != b.proxies[keySix].exit {
			t.Errorf("%s was asked from %s", v.path, v.address)
		}
	}
}

// unused is an address where nobody listens.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
