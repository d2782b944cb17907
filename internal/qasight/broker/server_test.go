package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
)

// always is a transport that gives everybody the same answer.
type always func(r *http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f always) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func serverOver(t *testing.T, rt http.RoundTripper) broker.Broker {
	t.Helper()
	b, err := broker.OpenServer(broker.Server{URL: "http://desk.example.com", Token: "t", Transport: rt})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// everyCall is each method of a broker that returns an error of the server's.
func everyCall() map[string]func(context.Context, broker.Broker) error {
	entry := action.Entry{Action: "A23456789012345678901234", Phase: action.PhaseStarted, Pool: "win", Key: "a", Verb: action.VerbDestroy, User: "ann", Command: "x"}
	return map[string]func(context.Context, broker.Broker) error{
		"Prepare": func(ctx context.Context, b broker.Broker) error { return b.Prepare(ctx, poolOf("win", "a")) },
		"Take": func(ctx context.Context, b broker.Broker) error {
			_, err := b.Take(ctx, "win", client.TakeOptions{})
			return err
		},
		"Resume":  func(ctx context.Context, b broker.Broker) error { _, err := b.Resume(ctx, "a~1", "secret"); return err },
		"Lease":   func(ctx context.Context, b broker.Broker) error { _, err := b.Lease(ctx, "a~1"); return err },
		"Pool":    func(ctx context.Context, b broker.Broker) error { _, err := b.Pool(ctx, "win"); return err },
		"Pools":   func(ctx context.Context, b broker.Broker) error { _, err := b.Pools(ctx); return err },
		"Waiters": func(ctx context.Context, b broker.Broker) error { _, err := b.Waiters(ctx, "win"); return err },
		"Publish": func(ctx context.Context, b broker.Broker) error {
			_, err := b.Publish(ctx, poolOf("win", "a"), nil)
			return err
		},
		"Disable": func(ctx context.Context, b broker.Broker) error {
			_, err := b.Disable(ctx, "win", "a", "x")
			return err
		},
		"Enable": func(ctx context.Context, b broker.Broker) error { _, err := b.Enable(ctx, "win", "a"); return err },
		"Force": func(ctx context.Context, b broker.Broker) error {
			_, err := b.Force(ctx, "win", "a", client.ForceRequest{})
			return err
		},
		"Begin": func(ctx context.Context, b broker.Broker) error {
			_, err := b.Begin(ctx, "win", client.ChangeRequest{})
			return err
		},
		"Append": func(ctx context.Context, b broker.Broker) error { _, err := b.Append(ctx, entry); return err },
		"Entries": func(ctx context.Context, b broker.Broker) error {
			_, err := b.Entries(ctx, broker.Match{}, 1)
			return err
		},
		"Open": func(ctx context.Context, b broker.Broker) error { _, err := b.Open(ctx, ""); return err },
	}
}

// refuses answers with a problem document of the class and code, in a status that
// nobody tries again.
func refuses(class, code string) always {
	return func(r *http.Request) (*http.Response, error) {
		typ := "urn:fleetdesk:problem:" + class
		if code != "" {
			typ += ":" + code
		}
		body, err := json.Marshal(map[string]any{"type": typ, "title": "no", "detail": "why not", "status": 418, "position": 7, "secondsUntilFree": 9})
		if err != nil {
			return nil, err
		}
		return &http.Response{
			Status: "418 I'm a teapot", StatusCode: 418, Request: r,
			Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: io.NopCloser(strings.NewReader(string(body))),
		}, nil
	}
}

// Every class and every code arrives as the rules gave it, through every method,
// and the client's error stays in the chain with what the server said besides.
func TestClassesAndCodes(t *testing.T) {
	codes := []string{
		"", "none_free", "pool", "key", "lease", "lease_released", "lease_expired", "lease_forced", "lease_lost", "lease_replaced", "lease_removed",
		"lease_unclaimed", "change", "held", "not_held", "fence", "revision", "managed", "hooks", "ttl", "wait", "text", "name", "items", "keys",
		"constraints", "outcome", "target", "reset", "secret", "not_owner", "idempotency", "idempotency_key", "role", "token", "rate", "busy",
		"queue_full", "waits", "store", "stopping", "access", "action", "action_exists", "action_differs", "action_ended", "body", "field", "a_new_one",
	}
	for _, class := range fault.Table() {
		for i, code := range codes {
			if i > 2 && class.Class != fault.Conflict && class.Class != fault.Quota {
				continue // class and code have nothing to do with each other
			}
			b := serverOver(t, refuses(string(class.Class), code))
			for method, call := range everyCall() {
				err := call(t.Context(), b)
				if method == "Prepare" && class.Class == fault.NotFound && code == "pool" {
					code := fault.CodeOf(err)
					if fault.Of(err) != fault.NotFound || code != "pool" {
						t.Errorf("Prepare of an unknown pool: %v", err)
					}
					continue
				}
				e, ok := errors.AsType[*client.Error](err)
				if fault.Of(err) != class.Class || fault.CodeOf(err) != code || !ok || e.Position != 7 || e.UntilFree != 9*time.Second || !strings.Contains(err.Error(), "why not") {
					t.Fatalf("%s of %s %s: %v of class %s and code %q", method, class.Class, code, err, fault.Of(err), fault.CodeOf(err))
				}
			}
		}
	}
}

// A server that hangs, and one that is not there, are told as such.
func TestNoAnswer(t *testing.T) {
	hangs := serverOver(t, always(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}))
	refused := serverOver(t, always(func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }))
	for method, call := range everyCall() {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := call(short, hangs); fault.Of(err) != fault.Timeout || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a server that hangs: %v (%s)", err, fault.Of(err))
			}
			if err := call(t.Context(), refused); fault.Of(err) != fault.Unavailable || fault.CodeOf(err) != "" || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("a server that is not there: %v (%s)", err, fault.Of(err))
			}
		})
	}
}

// A server that stopped is unavailable, whoever waits there is told, and leases
// outlive it.
func TestServerStops(t *testing.T) {
	stores := brokertest.SQLite(t)
	s := brokertest.Serve(t, stores, nil)
	root := s.Open(t, "root", nil)
	defer root.Close()
	ann := s.Open(t, "ann", nil)
	defer ann.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := root.Publish(ctx, poolOf("win", "a"), nil); err != nil {
		t.Fatal(err)
	}
	l, err := ann.Take(ctx, "win", client.TakeOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	waits, stop := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() {
		_, err := ann.Take(waits, "win", client.TakeOptions{Wait: time.Minute})
		over <- err
	}()
	waitUntil(t, "it waits", func() bool {
		v, err := root.Pool(ctx, "win")
		return err == nil && v.Waiting == 1
	})
	s.Stop()
	for what, err := range map[string]error{"Take": func() error { _, err := root.Take(ctx, "win", client.TakeOptions{}); return err }(), "Prepare": root.Prepare(ctx, poolOf("win", "a"))} {
		if fault.Of(err) != fault.Unavailable || fault.CodeOf(err) == "none_free" {
			t.Errorf("%s of a server that stopped: %v", what, err)
		}
	}
	stop()
	if err := <-over; err == nil {
		t.Error("who waited was given a held key")
	}
	again := brokertest.Serve(t, stores, nil).Open(t, "ann", nil)
	defer again.Close()
	resumed, err := again.Resume(ctx, l.ID(), l.Secret())
	if err != nil || resumed.Key() != "a" {
		t.Errorf("after the restart: %v", err)
	}
}

func TestOpenServerRefuses(t *testing.T) {
	for name, s := range map[string]broker.Server{
		"url":      {URL: "desk.example.com", Token: "t"},
		"scheme":   {URL: "ftp://desk.example.com", Token: "t"},
		"password": {URL: "http://ann:hunter2@desk.example.com", Token: "t"},
		"token":    {URL: "http://desk.example.com"},
		"newline":  {URL: "http://desk.example.com", Token: "abc\n"},
	} {
		_, err := broker.OpenServer(s)
		if fault.Of(err) != fault.Invalid || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "abc") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A broker over a server sends nothing before it is asked, and Close ends its
// connections.
func TestServerConnections(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"items":[]}`)
	}))
	before := goleak.IgnoreCurrent()
	b, err := broker.OpenServer(broker.Server{URL: s.URL, Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if asked != 0 {
		t.Error("opening it asked something")
	}
	if _, err := b.Pools(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	s.Close()
}
