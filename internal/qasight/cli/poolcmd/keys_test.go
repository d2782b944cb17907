package poolcmd_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/pool"
)

func TestKeysOfALocalDatabase(t *testing.T) {
	t.Parallel()
	p := newProject(t, "project: shop\npools:\n\twin: {items: [a, b], on_reset: 'true'}\n")
	// Nobody took a key yet: the pool becomes known by this.
	p.want(0, []string{"disable", "win", "a", "--reason", "boots into rescue mode"}, "a of pool win: disabled: by ", "boots into rescue mode")
	p.want(1, words("status"), "1 disabled")
	p.want(0, words("enable win a"), "a of pool win: enabled; it is free now\n")
	p.want(0, []string{"enable", "win", "a", "--reason", "disk replaced"}, "a of pool win: was not disabled (disk replaced); it is free now\n")
	p.want(0, words("status"), "2 of 2 keys free")

	b := p.local()
	l := take(t, b, "win", "job 1")
	p.want(0, []string{"disable", "win", "a", "--reason", "noisy"}, "it is held now: by ", "(job 1)", "disabled by ")
	out := p.want(0, []string{"force-release", "win", "a", "--reason", "its job hangs"},
		"ended the lease "+l.ID()+" of ", "(job 1), who held it until ", "released, taken from ", "it is disabled now")
	if !strings.Contains(out.err, "ended the lease") || strings.Contains(out.out, "ended the lease") {
		t.Errorf("%+v", out)
	}
	if err := l.Renew(t.Context(), client.RenewRequest{}); fault.CodeOf(err) != "lease_forced" {
		t.Errorf("the lease goes on: %v", err)
	}
	p.want(0, words("enable win a"), "it is cooling now: until ")

	var got struct {
		Pool, Done, Reason string
		Key                client.Key
		Lease              *client.KeyLease
	}
	held := take(t, b, "win", "job 2")
	p.json(0, &got, "force-release", "win", held.Key(), "--reason", "test", "--fence", fmt.Sprint(held.Fence()))
	if got.Pool != "win" || got.Done != "released" || got.Reason != "test" || got.Key.Name != held.Key() || got.Lease == nil || got.Lease.ID != held.ID() {
		t.Errorf("%+v", got)
	}
	p.json(0, &got, "disable", "win", "b", "--reason", "test")
	if got.Done != "disabled" || got.Key.Disabled == nil || got.Key.Disabled.Reason != "test" {
		t.Errorf("%+v", got)
	}
}

func TestKeysRefuse(t *testing.T) {
	t.Parallel()
	p := newProject(t, "project: shop\npools:\n\twin: {items: [a, b]}\n")
	for _, verb := range []string{"disable", "force-release"} {
		p.want(2, []string{verb, "win", "a"}, "--reason")
		p.want(2, []string{verb, "win", "a", "--reason", "  "}, "--reason")
		p.want(2, []string{verb, "win", "a", "--reason", strings.Repeat("x", 513)}, "513 bytes")
	}
	if exists(p.dir + "/state")() {
		t.Error("a refused command made the database")
	}
	for _, verb := range []string{"disable", "enable", "force-release"} {
		p.want(2, []string{verb, "win", "--reason", "x"}, "want POOL KEY")
		p.want(2, []string{verb, "win", "a", "b", "--reason", "x"}, "want POOL KEY")
		p.want(2, []string{verb, "wim", "a", "--reason", "x"}, `has no pool "wim"`)
		p.want(2, []string{verb, "win", "zz", "--reason", "x"}, "pool win has a, b")
	}
	p.want(77, words("force-release win a --reason x"), "nobody holds a: it is free", "qasight pool why win")
	l := take(t, p.local(), "win", "job")
	p.want(2, words("force-release win a --reason x --fence 0"), "--fence is a lease's number, from 1")
	p.want(2, words("force-release win a --reason x --fence -1"), "--fence is a lease's number, from 1")
	s := p.want(77, []string{"force-release", "win", "a", "--reason", "x", "--fence", fmt.Sprint(l.Fence() + 1)}, "somebody else has it by now")
	if strings.Contains(s.err, "ending") {
		t.Errorf("it says what it did not do: %s", s.err)
	}
	if err := l.Renew(t.Context(), client.RenewRequest{}); err != nil {
		t.Errorf("a refused command ended the lease: %v", err)
	}
}

func TestKeysOfATeamServer(t *testing.T) {
	t.Parallel()
	s, leases, _ := serveMemory(t)
	p := newProject(t, teamFile(s, "\twin: {items: [a]}\n"))
	ann, bob := s.as(p, "ann"), s.as(p, "bob")
	for _, verb := range []string{"disable", "enable", "force-release"} {
		ann.want(2, []string{verb, "win", "a", "--reason", "x"}, "it was never published there: an admin runs `qasight pool publish win`")
		p.want(77, []string{verb, "win", "a", "--reason", "x"}, "QASIGHT_TOKEN")
	}
	publish(t, s, pool.Pool{Name: "win", Items: []string{"a"}})
	take(t, s.broker(t, "ci"), "win", "nightly")
	for _, verb := range []string{"disable", "enable", "force-release"} {
		bob.want(77, []string{verb, "win", "a", "--reason", "x"}, "this needs admin", "ask an admin")
	}
	ann.want(0, words("disable win a --reason noisy"), "it is held now: by ci (nightly)", "disabled by ann")
	ann.want(0, words("force-release win a --reason hangs"), "taken from ci (nightly)", "it is disabled now: by ann")
	ann.want(0, words("enable win a"), "it is cooling now: until ")
	leases.Outage(true)
	// The client tries again for a while: all at once.
	var group sync.WaitGroup
	for _, verb := range []string{"disable", "enable", "force-release"} {
		group.Go(func() { ann.want(69, []string{verb, "win", "a", "--reason", "x"}, "does not answer") })
	}
	group.Wait()
}

func TestComplete(t *testing.T) {
	t.Parallel()
	p := newProject(t, "project: shop\npools:\n\twin: {items: [a-1, a-2, b-1], provider: {list: touch ran}}\n\twine: {items: [c]}\n\tmac: {items: [m]}\n")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"all pools":     {[]string{"status", ""}, "win wine mac :4"},
		"some pools":    {[]string{"status", "wi"}, "win wine :4"},
		"others":        {[]string{"status", "win", ""}, "wine mac :4"},
		"to publish":    {[]string{"publish", "mac", "w"}, "win wine :4"},
		"one pool":      {[]string{"why", "m"}, "mac :4"},
		"no second":     {[]string{"why", "mac", ""}, ":4"},
		"pool of a key": {[]string{"disable", "win"}, "win wine :4"},
		"keys":          {[]string{"disable", "win", ""}, "a-1 a-2 b-1 :4"},
		"some keys":     {[]string{"enable", "win", "a"}, "a-1 a-2 :4"},
		"forced":        {[]string{"force-release", "win", "b"}, "b-1 :4"},
		"nothing more":  {[]string{"force-release", "win", "b-1", ""}, ":4"},
		"unknown pool":  {[]string{"disable", "linux", ""}, ":4"},
	} {
		if got := p.complete(c.args...); got != c.want {
			t.Errorf("%s: %v completes to %q, want %q", name, c.args, got, c.want)
		}
	}
	if exists(p.dir+"/ran")() || exists(p.dir+"/state")() {
		t.Error("completion ran a command or made a database")
	}
}
