package broker_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
)

// All that a broker does with a team server, as it goes over the wire: a command
// is told to the action log and to nothing else, and the token is in no place but
// the header that is for it.
func TestOnTheWire(t *testing.T) {
	s := brokertest.Serve(t, brokertest.SQLite(t), nil)
	rt, rec := brokertest.Recording(nil)
	b := s.Open(t, "root", rt)
	defer b.Close()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := poolOf("win", "win-01", "win-02")
	p.Check, p.Cooldown = true, 1500*time.Millisecond
	zero := int64(0)
	_, err := b.Publish(ctx, p, &zero)
	must(err)
	must(b.Prepare(ctx, p))
	l, err := b.Take(ctx, "win", client.TakeOptions{Holder: "nightly 4711", Target: "example.com", RunsHooks: true, TTL: time.Minute, IdempotencyKey: "job-1"})
	must(err)
	must(l.Renew(ctx, client.RenewRequest{}))
	_, err = b.Resume(ctx, l.ID(), l.Secret())
	must(err)
	_, err = b.Lease(ctx, l.ID())
	must(err)
	_, err = b.Waiters(ctx, "win")
	must(err)
	_, err = b.Pools(ctx)
	must(err)
	_, err = l.Release(ctx, client.ReleaseRequest{Reason: "all <well> & done"})
	must(err)
	_, err = b.Disable(ctx, "win", "win-02", "does not boot")
	must(err)
	_, err = b.Enable(ctx, "win", "win-02")
	must(err)
	if _, err = b.Force(ctx, "win", "win-02", client.ForceRequest{Reason: "its job hangs"}); err == nil {
		t.Error("nobody held it")
	}
	ch, err := b.Begin(ctx, "win", client.ChangeRequest{Verb: "remove", Keys: []string{"win-02"}, Holder: "ann@desk-3", TTL: 60})
	must(err)
	const command = "virsh destroy 'win-02' && echo \"<gone>\""
	e := action.Entry{
		Action: "A23456789012345678901234", Phase: action.PhaseStarted, Pool: "win", Key: "win-02", Verb: action.VerbDestroy,
		User: "somebody", Host: "desk-3", Command: command,
	}
	_, err = b.Append(ctx, e)
	must(err)
	yes := true
	e.Phase, e.OK, e.Detail = action.PhaseFinished, &yes, "Domain 'win-02' destroyed\n"
	_, err = b.Append(ctx, e)
	must(err)
	must(ch.Renew(ctx))
	must(ch.End(ctx))
	_, err = b.Entries(ctx, broker.Match{Pool: "win"}, 10)
	must(err)
	_, err = b.Open(ctx, "win")
	must(err)

	const pools, leases, actions = "/api/v1/pools", "/api/v1/leases", "/api/v1/resources/actions"
	id := l.ID()
	for i, want := range []struct {
		line, body string // what the body is, "" for none, "*" for any
	}{
		{"PUT " + pools + "/win 200", `{"items":["win-01","win-02"],"ttl":30,"cooldown":1.5,"hooks":{"check":true},"ifRevision":0}`},
		{"GET " + pools + "/win?limit=500 200", ""},
		{"POST " + leases + " 201", `{"pool":"win","holder":"nightly 4711","target":"example.com","ttl":60,"runsHooks":true}`},
		{"POST " + leases + "/" + id + "/renew 200", `{}`},
		{"POST " + leases + "/" + id + "/renew 200", `{}`},
		{"GET " + leases + "/" + id + " 200", ""},
		{"GET " + pools + "/win/waiters?limit=500 200", ""},
		{"GET " + pools + "?limit=500 200", ""},
		{"POST " + leases + "/" + id + "/release 200", `{"reason":"all \u003cwell\u003e \u0026 done"}`},
		{"POST " + pools + "/win/keys/win-02/disable 200", `{"reason":"does not boot"}`},
		{"POST " + pools + "/win/keys/win-02/enable 200", ""},
		{"POST " + pools + "/win/keys/win-02/release 409", `{"reason":"its job hangs"}`},
		{"POST " + pools + "/win/changes 201", `{"verb":"remove","keys":["win-02"],"holder":"ann@desk-3","ttl":60}`},
		{"POST " + actions + " 201", "*"},
		{"POST " + actions + " 201", "*"},
		{"POST " + pools + "/win/changes/" + ch.ID() + "/renew 200", `{"ttl":60}`},
		{"DELETE " + pools + "/win/changes/" + ch.ID() + " 204", ""},
		{"GET " + actions + "?limit=10&pool=win 200", ""},
		{"GET " + actions + "?limit=100&open=true&pool=win 200", ""},
	} {
		all := rec.All()
		if i >= len(all) {
			t.Fatalf("%d requests were made", len(all))
		}
		x := all[i]
		if got := fmt.Sprintf("%s %s %d", x.Method, x.URI, x.Status); got != want.line || want.body != "*" && x.Request.Body != want.body {
			t.Errorf("request %d: %s %s, want %s %s", i, got, x.Request.Body, want.line, want.body)
		}
	}
	if n := len(rec.All()); n != 19 {
		t.Errorf("%d requests were made", n)
	}

	found := func(text, but string) int { return len(rec.Find(text, but)) }
	for _, secretly := range []string{command, "virsh", "Domain 'win-02' destroyed\n", "<gone>"} {
		if n := found(secretly, ""); n < 2 {
			t.Errorf("%q is in %d exchanges: Find is broken", secretly, n)
		}
		if x := rec.Find(secretly, actions); len(x) > 0 {
			t.Errorf("%q went elsewhere: %+v", secretly, x)
		}
	}
	if n := found("all <well> & done", ""); n != 1 {
		t.Errorf("a reason is in %d exchanges", n)
	}
	if n := found(string(l.Secret()), ""); n != 4 { // the grant, two renewals and the release
		t.Errorf("the lease's secret is in %d exchanges", n)
	}
	if x := rec.Find(string(s.Token("root")), ""); len(x) > 0 {
		t.Errorf("the token is kept in %+v", x)
	}
}

// A local database is told nothing over a network.
func TestLocalHasNoWire(t *testing.T) {
	rt, rec := brokertest.Recording(nil)
	was := http.DefaultTransport
	http.DefaultTransport = rt
	defer func() { http.DefaultTransport = was }()
	b := brokertest.OpenLocal(t, t.TempDir()+"/leases.db", "ann")
	defer b.Close()
	if err := b.Prepare(t.Context(), poolOf("win", "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(t.Context(), "win", client.TakeOptions{}); err != nil {
		t.Fatal(err)
	}
	if all := rec.All(); len(all) > 0 {
		t.Errorf("it sent %+v", all)
	}
}

// Nothing is published to a team server by who only takes, whatever the file says.
func TestTakersPublishNothing(t *testing.T) {
	s := brokertest.Serve(t, brokertest.SQLite(t), nil)
	root := s.Open(t, "root", nil)
	defer root.Close()
	if _, err := root.Publish(t.Context(), poolOf("win", "win-01"), nil); err != nil {
		t.Fatal(err)
	}
	rt, rec := brokertest.Recording(nil)
	b := s.Open(t, "root", rt) // who could
	defer b.Close()
	file := poolOf("win", "win-01", "win-02")
	file.TTL, file.Check = time.Hour, true
	if err := b.Prepare(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if err := b.Prepare(t.Context(), poolOf("mac", "mac-01")); err == nil {
		t.Error("mac was never published")
	}
	if _, err := b.Take(t.Context(), "win", client.TakeOptions{}); err != nil {
		t.Fatal(err)
	}
	if x := rec.Find("PUT ", ""); len(x) > 0 || len(rec.Find("win-02", "")) > 0 || len(rec.Find("mac-01", "")) > 0 {
		t.Errorf("it was published: %+v", x)
	}
	var methods []string
	for _, x := range rec.All() {
		methods = append(methods, x.Method)
	}
	if want := []string{"GET", "GET", "POST"}; !slices.Equal(methods, want) {
		t.Errorf("the requests are %v, want %v", methods, want)
	}
}
