package rpc_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// eventFrame is an event as a daemon sends it.
func eventFrame(payload []byte) packet {
	return packet{0x20008086, 1, procEvent, message, 0, ok, payload}
}

// happening is the payload of an event of the domain "one".
func happening(kind, detail int) []byte { return xdr(3, "one", uuidBytes, 7, kind, detail) }

// subscribe fails the test when it takes long.
func subscribe(t *testing.T, ctx context.Context, c *rpc.Conn) <-chan virt.DomainEvent { //nolint:revive // as the test reads
	t.Helper()
	events, err := c.ConnectDomainEventRegisterAny(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// next is the next event; ok is false at the end of the subscription.
func next(t *testing.T, events <-chan virt.DomainEvent) (ev virt.DomainEvent, ok bool) {
	t.Helper()
	within(t, "an event", func() { ev, ok = <-events })
	return ev, ok
}

// registered counts the calls for a subscription.
func registered(p *peer) int {
	n := 0
	for _, proc := range p.procedures() {
		if proc == procRegister {
			n++
		}
	}
	return n
}

// A daemon takes one subscription for each connection: all share it. An event
// on the heels of the answer is not lost.
func TestEventsAreShared(t *testing.T) {
	c, p := connect(t, rpc.Options{}, on(procRegister, func(p *peer, in packet) {
		p.sendBytes(append(in.answers(reply, ok, xdr(3)).bytes(), eventFrame(happening(2, 0)).bytes()...))
	}))
	ctx, cancel := context.WithCancel(t.Context())
	first := subscribe(t, ctx, c)
	want := virt.DomainEvent{Domain: someDomain, Kind: virt.EventStarted}
	if got, _ := next(t, first); got != want {
		t.Errorf("on the heels of the answer: %+v, want %+v", got, want)
	}
	second := subscribe(t, t.Context(), c)
	p.send(eventFrame(happening(5, 1)))
	want = virt.DomainEvent{Domain: someDomain, Kind: virt.EventStopped, Detail: 1}
	for i, events := range []<-chan virt.DomainEvent{first, second} {
		if got, _ := next(t, events); got != want {
			t.Errorf("subscriber %d: %+v, want %+v", i, got, want)
		}
	}
	cancel()
	if got, there := next(t, first); there {
		t.Errorf("after the end of its context: %+v", got)
	}
	p.send(eventFrame(happening(1, 0)))
	if got, _ := next(t, second); got.Kind != virt.EventUndefined {
		t.Errorf("the other one: %+v", got)
	}
	if n := registered(p); n != 1 {
		t.Errorf("%d calls for subscriptions", n)
	}
	_ = c.Close()
	if got, there := next(t, second); there {
		t.Errorf("after the end of the connection: %+v", got)
	}
	if _, err := c.ConnectDomainEventRegisterAny(t.Context()); fault.Of(err) != fault.Unavailable {
		t.Errorf("on a closed connection: %v", err)
	}
}

// A caller who leaves takes nobody's answer away, and one refusal is not for
// ever.
func TestSubscriptionOutlivesItsCaller(t *testing.T) {
	answer := make(chan bool)
	c, p := connect(t, rpc.Options{}, on(procRegister, func(p *peer, in packet) {
		if <-answer {
			p.right(in)
		} else {
			p.send(in.answers(reply, failed, remoteError(3, "not here")))
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { _, err := c.ConnectDomainEventRegisterAny(ctx); left <- err }()
	stayed := make(chan error)
	go func() { _, err := c.ConnectDomainEventRegisterAny(t.Context()); stayed <- err }()
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || fault.Of(err) != fault.Transient {
		t.Errorf("who left: %v", err)
	}
	answer <- false
	if err := <-stayed; !virt.Is(err, virt.CodeNoSupport) {
		t.Errorf("who stayed: %v", err)
	}
	go func() { answer <- true }()
	events := subscribe(t, t.Context(), c)
	p.send(eventFrame(happening(3, 0)))
	if got, _ := next(t, events); got.Kind != virt.EventSuspended {
		t.Errorf("%+v", got)
	}
	if n := registered(p); n != 2 {
		t.Errorf("%d calls for subscriptions", n)
	}
}

// Nobody waits for anything while a subscription is silent: the rule about
// mute daemons is for calls.
func TestASilentSubscriptionIsNotMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, near := start(t, nil)
		c, err := rpc.Open(t.Context(), near, rpc.Options{Host: "box-1"})
		if err != nil {
			t.Fatal(err)
		}
		events := subscribe(t, t.Context(), c)
		time.Sleep(24 * time.Hour)
		p.send(eventFrame(happening(8, 0)))
		if got, there := <-events; !there || got.Kind != virt.EventCrashed {
			t.Errorf("after a day: %+v, %t, %v", got, there, c.Err())
		}
		_ = c.Close()
	})
}

func TestHostileEvents(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		payload []byte
		// ends is why the connection ends; empty when it lives, and the event is
		// dropped.
		ends string
	}{
		"nothing":         {"too short", nil, "cannot be read"},
		"a name of 2 GiB": {"allocated before it is read", xdr(3, 0x7fffffff, uuidBytes), "a string of 2147483647"},
		"no identity":     {"too short", xdr(3, "one"), "a string of 16 bytes"},
		"no kind":         {"too short", xdr(3, "one", uuidBytes, 7), "ends too early"},
		"more than it is": {"whole values only", append(happening(1, 1), 0, 0, 0, 0), "left over"},
		"a kind below zero": {
			"the mark of missed events is ours", happening(-1, 0), "it has no kind",
		},
		"a long name": {"no file has such a name", xdr(3, strings.Repeat("x", 2000), uuidBytes, 7, 1, 1), ""},
		"1 MiB":       {"passed over unread", make([]byte, 1<<20), ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, p := connect(t, rpc.Options{}, nil)
			events := subscribe(t, t.Context(), c)
			p.send(eventFrame(tc.payload))
			if tc.ends == "" {
				if v, err := c.ConnectGetLibVersion(t.Context()); err != nil || v != 9_000_000 || len(events) > 0 {
					t.Errorf("%s: %v, %v, %d events", tc.reason, v, err, len(events))
				}
				return
			}
			if got, there := next(t, events); there {
				t.Errorf("%s: %+v", tc.reason, got)
			}
			if err := c.Err(); fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), tc.ends) {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

// However many events come and however few are taken: what is kept is bounded,
// calls go on, and it is said that some were missed.
func TestUnreadEventsAreBounded(t *testing.T) {
	c, p := connect(t, rpc.Options{}, nil)
	events := subscribe(t, t.Context(), c)
	before := memory()
	frames := make([]byte, 0, 1<<20)
	for range 1000 {
		frames = append(frames, eventFrame(xdr(3, strings.Repeat("x", 900), uuidBytes, 7, 2, 0)).bytes()...)
	}
	for range 20 {
		p.sendBytes(frames)
	}
	if v, err := c.ConnectGetLibVersion(t.Context()); err != nil || v != 9_000_000 {
		t.Errorf("a call after a flood: %v, %v", v, err)
	}
	if grown := memory() - before; grown > 16<<20 {
		t.Errorf("%d MiB more", grown>>20)
	}
	var kinds []virt.EventKind
	for len(events) > 0 {
		kinds = append(kinds, (<-events).Kind)
	}
	want := append(slices.Repeat([]virt.EventKind{virt.EventStarted}, virt.EventBuffer-1), virt.EventsMissed)
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Error(diff)
	}
	p.send(eventFrame(happening(5, 0)))
	if got, _ := next(t, events); got.Kind != virt.EventStopped {
		t.Errorf("once there is room again: %+v", got)
	}
}

// A peer that sends nothing but events, as fast as it can, does not keep this
// process busy for ever.
func TestAFloodOfEventsEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes while it floods
		p, near := start(t, nil)
		c, err := rpc.Open(t.Context(), near, rpc.Options{Host: "box-1"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		events := subscribe(t, t.Context(), c)
		frame := eventFrame(happening(2, 0)).bytes()
		for range 3 { // as much as is allowed, each second
			for range 1 << 16 {
				p.sendBytes(frame)
			}
			synctest.Wait()
			if c.Err() != nil {
				t.Fatal(c.Err())
			}
			time.Sleep(time.Second)
		}
		for range 1<<16 + 1 {
			p.sendBytes(frame)
		}
		<-c.Done()
		if !strings.Contains(c.Err().Error(), "events in a second") {
			t.Error(c.Err())
		}
		for range events { // to its end
		}
	})
}

// Whatever comes where events do: no panic, and memory stays bounded.
func FuzzEvents(f *testing.F) {
	f.Add(happening(2, 0), []byte(nil))
	f.Add(happening(-1, 0), []byte(nil))
	f.Add(xdr(3, 0x7fffffff, uuidBytes), []byte(nil))
	f.Add(xdr(3, 0xffffffff), raw(4, packet{}))
	f.Add([]byte(nil), raw(0xfffffff0, eventFrame(nil)))
	f.Fuzz(func(t *testing.T, payload, after []byte) {
		far, near := net.Pipe()
		p := &peer{conn: far, handle: on(procHostname, func(p *peer, in packet) {
			p.send(eventFrame(payload))
			p.sendBytes(after)
			p.right(in)
			_ = p.conn.Close()
		})}
		go p.serve()
		start := memory()
		within(t, "the subscription", func() {
			c, err := rpc.Open(t.Context(), near, rpc.Options{Host: "box-1"})
			if err != nil {
				t.Error(err)
				return
			}
			events, err := c.ConnectDomainEventRegisterAny(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.ConnectGetHostname(t.Context()); err != nil && !fault.Classed(err) {
				t.Errorf("an error without a class: %v", err)
			}
			_ = c.Close()
			for ev := range events {
				if ev.Kind < 0 {
					t.Errorf("%+v", ev)
				}
			}
		})
		_ = far.Close()
		if grown := memory() - start; grown > 64<<20 {
			t.Errorf("%d MiB more", grown>>20)
		}
	})
}
