package virttest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// eventLimit bounds the wait for an event.
const eventLimit = 20 * time.Second

// listener keeps what a subscription told of one domain.
type listener struct {
	*bench
	events <-chan virt.DomainEvent
	uuid   string
	heard  []string
}

// listen subscribes for as long as ctx lasts.
func (b *bench) listen(ctx context.Context, c virt.Conn, uuid string) *listener {
	b.Helper()
	events, err := c.ConnectDomainEventRegisterAny(ctx)
	b.ok("subscribing", err)
	return &listener{bench: b, events: events, uuid: uuid}
}

// until reads up to an event of that kind of the listener's domain.
func (l *listener) until(want virt.EventKind) virt.DomainEvent {
	l.Helper()
	timer := time.NewTimer(eventLimit)
	defer timer.Stop()
	for {
		select {
		case ev, ok := <-l.events:
			if !ok {
				l.Fatalf("the subscription ended before %s", want)
			}
			if ev.Domain.UUID != l.uuid {
				continue
			}
			// Whether a QEMU that is killed says so itself first is a matter of time.
			if ev.Kind != virt.EventShutdown {
				l.heard = append(l.heard, fmt.Sprintf("%s/%d", ev.Kind, ev.Detail))
			}
			if ev.Kind == want {
				return ev
			}
		case <-timer.C:
			l.Fatalf("no event %s; it said %v", want, l.heard)
		}
	}
}

func testEvents(b *bench) {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	s := shape{name: b.name("events"), uuid: newUUID()}
	l := b.listen(ctx, b.c, s.uuid)
	other := b.listen(ctx, b.c, s.uuid)

	d := b.define(s)
	if ev := l.until(virt.EventDefined); ev.Domain != d || ev.Detail != virt.DefinedAdded {
		b.Errorf("defined: %+v", ev)
	}
	b.define(s)
	if ev := l.until(virt.EventDefined); ev.Detail != virt.DefinedUpdated {
		b.Errorf("defined again: %+v", ev)
	}
	b.ok("start", b.c.DomainCreate(b.ctx, d))
	if ev := l.until(virt.EventStarted); ev.Domain.Name != d.Name || ev.Domain.ID < 0 {
		b.Errorf("started: %+v", ev)
	}
	if b.s.Pause != nil {
		b.s.Pause(b.T, d.Name, true)
		l.until(virt.EventSuspended)
		b.s.Pause(b.T, d.Name, false)
		l.until(virt.EventResumed)
	}
	b.ok("destroy", b.c.DomainDestroy(b.ctx, d))
	l.until(virt.EventStopped)
	b.ok("start again", b.c.DomainCreate(b.ctx, d))
	l.until(virt.EventStarted)
	b.ok("undefine", b.c.DomainUndefineFlags(b.ctx, d, virt.UndefineNVRAM))
	l.until(virt.EventUndefined)
	b.ok("destroy what is transient now", b.c.DomainDestroy(b.ctx, d))
	if ev := l.until(virt.EventStopped); ev.Domain.UUID != s.uuid {
		b.Errorf("stopped: %+v", ev)
	}
	b.note("events of a life", strings.Join(l.heard, " "))
	for range strings.Count(strings.Join(l.heard, " "), "stopped") {
		other.until(virt.EventStopped)
	}
	if got, want := strings.Join(other.heard, " "), strings.Join(l.heard, " "); got != want {
		b.Errorf("another subscription heard %s, and this one %s", got, want)
	}

	// The end of the context is the end of the subscription, and of no more.
	cancel()
	for _, l := range []*listener{l, other} {
		l.closes()
	}
	again := b.listen(b.ctx, b.c, s.uuid)
	b.define(s)
	again.until(virt.EventDefined)
}

// closes reads to the end of the subscription.
func (l *listener) closes() {
	l.Helper()
	timer := time.NewTimer(eventLimit)
	defer timer.Stop()
	for {
		select {
		case _, ok := <-l.events:
			if !ok {
				return
			}
		case <-timer.C:
			l.Fatal("the subscription does not end")
		}
	}
}

// A connection's end ends its subscriptions; another one's go on.
func testEventsClosed(b *bench) {
	if b.s.Dial == nil {
		b.Skip("the subject dials no connections")
	}
	s := shape{name: b.name("events"), uuid: newUUID()}
	conn := b.s.Dial(b.T)
	defer func() { _ = conn.Close() }()
	l, kept := b.listen(b.ctx, conn, s.uuid), b.listen(b.ctx, b.c, s.uuid)
	b.define(s)
	l.until(virt.EventDefined)
	b.ok("close", conn.Close())
	l.closes()
	kept.until(virt.EventDefined)
}

// Who does not read costs nothing but its events, and nobody else.
func testEventsUnread(b *bench) {
	s := shape{name: b.name("events"), uuid: newUUID()}
	l := b.listen(b.ctx, b.c, s.uuid)
	for range virt.EventBuffer + 20 {
		b.define(s)
	}
	_, err := b.c.ConnectGetLibVersion(b.ctx)
	b.ok("a call beside a subscription that nobody reads", err)
	timer := time.NewTimer(eventLimit)
	defer timer.Stop()
	for n := 0; ; n++ {
		select {
		case ev := <-l.events:
			if ev.Kind != virt.EventsMissed {
				continue
			}
			if n != virt.EventBuffer-1 {
				b.Errorf("%d events before the mark of those missed", n)
			}
		case <-timer.C:
			b.Fatal("nothing says that events were missed")
		}
		break
	}
	// What comes after the mark was taken is told again.
	l.heard = nil
	b.ok("undefine", b.c.DomainUndefineFlags(b.ctx, virt.Domain{Name: s.name, UUID: s.uuid}, 0))
	l.until(virt.EventUndefined)
}
