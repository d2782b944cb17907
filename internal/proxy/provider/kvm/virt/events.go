package virt

import (
	"strconv"
	"sync"
)

// DomainEvent is a step in a domain's life that the daemon told of.
type DomainEvent struct {
	// Domain is as it was at that moment; none with [EventsMissed].
	Domain Domain
	Kind   EventKind
	// Detail says how it came to it; the numbers mean another thing for each
	// kind, as in libvirt.
	Detail int32
}

// EventKind is libvirt's virDomainEventType. There may be new ones.
type EventKind int32

// The kinds of events.
const (
	EventDefined EventKind = iota
	EventUndefined
	EventStarted
	EventSuspended
	EventResumed
	EventStopped
	EventShutdown
	EventPMSuspended
	EventCrashed

	// EventsMissed is not libvirt's: more came than was taken, and what came
	// after this was put down may be lost.
	EventsMissed EventKind = -1
)

// The details that have a meaning here.
const (
	DefinedAdded   int32 = 0
	DefinedUpdated int32 = 1
)

// String is what a trace calls the kind.
func (k EventKind) String() string {
	names := [...]string{"defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed"}
	switch {
	case k == EventsMissed:
		return "missed"
	case k >= 0 && int(k) < len(names):
		return names[k]
	}
	return strconv.Itoa(int(k))
}

// EventBuffer is how many events wait for whoever subscribed.
const EventBuffer = 256

// Events is one subscription's queue, for implementations of [Conn]. It is
// bounded: however fast events come and however slowly they are taken, at most
// [EventBuffer] are kept, and the last of them then is [EventsMissed].
type Events struct {
	mu     sync.Mutex
	c      chan DomainEvent
	missed bool
	closed bool
}

// NewEvents returns an empty queue.
func NewEvents() *Events { return &Events{c: make(chan DomainEvent, EventBuffer)} }

// C is what a subscriber reads; it is closed when the queue is.
func (e *Events) C() <-chan DomainEvent { return e.c }

// Push puts an event into the queue, or drops it when the queue is full or
// closed. It never blocks.
func (e *Events) Push(ev DomainEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
	case e.missed && len(e.c) > 0:
		// The mark is the last in the queue: it stands for this one too.
	case len(e.c) == cap(e.c)-1:
		e.missed = true
		e.c <- DomainEvent{Kind: EventsMissed}
	default:
		e.missed = false
		e.c <- ev
	}
}

// Close ends the queue. It may be called again.
func (e *Events) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		close(e.c)
	}
}
