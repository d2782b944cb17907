package virttest

import (
	"context"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Details of events, as libvirt 9.0 sends them.
const (
	undefinedRemoved    int32 = 0
	startedBooted       int32 = 0
	startedRestored     int32 = 2
	suspendedPaused     int32 = 0
	suspendedIOError    int32 = 2
	suspendedWatchdog   int32 = 3
	resumedUnpaused     int32 = 0
	shutdownFinished    int32 = 0
	shutdownHost        int32 = 2
	stoppedShutdown     int32 = 0
	stoppedDestroyed    int32 = 1
	stoppedCrashed      int32 = 2
	stoppedSaved        int32 = 4
	stoppedFailed       int32 = 5
	crashedPanicked     int32 = 0
	pmSuspendedToMemory int32 = 0
)

// ConnectDomainEventRegisterAny implements virt.Conn.
func (c *conn) ConnectDomainEventRegisterAny(ctx context.Context) (<-chan virt.DomainEvent, error) {
	q, err := ask(ctx, c, "ConnectDomainEventRegisterAny", func() (*virt.Events, error) {
		q := virt.NewEvents()
		select {
		case <-c.done: // it ended meanwhile
			q.Close()
		default:
			c.host.queues[q] = c
		}
		context.AfterFunc(ctx, func() { c.host.unsubscribe(q) })
		return q, nil
	})
	if err != nil {
		return nil, err
	}
	return q.C(), nil
}

func (h *Host) unsubscribe(q *virt.Events) {
	q.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.queues, q)
}

// hush ends a link's subscriptions. mu is held.
func (h *Host) hush(c *conn) {
	for q, of := range h.queues {
		if of == c {
			q.Close()
			delete(h.queues, q)
		}
	}
}

// Subscriptions returns how many are open.
func (h *Host) Subscriptions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.queues)
}

// happened tells all who subscribed; of a muted daemon they learn it when it
// speaks again. mu is held.
func (h *Host) happened(d *dom, kind virt.EventKind, detail int32) {
	h.tell(virt.DomainEvent{Domain: d.ref(), Kind: kind, Detail: detail})
}

func (h *Host) tell(ev virt.DomainEvent) {
	if h.faults.hung[""] != nil {
		h.unsaid = append(h.unsaid, ev)
		return
	}
	for q := range h.queues {
		q.Push(ev)
	}
}

// speak says what was held back. mu is held.
func (h *Host) speak() {
	unsaid := h.unsaid
	h.unsaid = nil
	for _, ev := range unsaid {
		h.tell(ev)
	}
}

// Emit tells all who subscribed of an event that changes nothing here.
func (h *Host) Emit(events ...virt.DomainEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ev := range events {
		h.tell(ev)
	}
}

// entered tells of a state that a domain came into; was is the one before.
// mu is held.
func (h *Host) entered(d *dom, was virt.State) {
	switch d.state {
	case virt.StateRunning:
		if was == virt.StatePaused {
			h.happened(d, virt.EventResumed, resumedUnpaused)
		}
	case virt.StatePaused:
		detail := suspendedPaused
		switch d.reason {
		case virt.PausedIOError:
			detail = suspendedIOError
		case virt.PausedWatchdog:
			detail = suspendedWatchdog
		}
		h.happened(d, virt.EventSuspended, detail)
	case virt.StateShutdown:
		h.happened(d, virt.EventShutdown, shutdownFinished)
	case virt.StatePMSuspended:
		h.happened(d, virt.EventPMSuspended, pmSuspendedToMemory)
	case virt.StateCrashed:
		h.happened(d, virt.EventCrashed, crashedPanicked)
	}
}

// left tells that a domain does not run any more. mu is held.
func (h *Host) left(d *dom) {
	detail := stoppedFailed
	switch {
	case d.state == virt.StateCrashed:
		detail = stoppedCrashed
	case d.reason == virt.ShutoffShutdown:
		h.happened(d, virt.EventShutdown, shutdownFinished)
		detail = stoppedShutdown
	case d.reason == virt.ShutoffDestroyed:
		h.happened(d, virt.EventShutdown, shutdownHost)
		detail = stoppedDestroyed
	case d.reason == virt.ShutoffCrashed:
		detail = stoppedCrashed
	case d.reason == virt.ShutoffSaved:
		detail = stoppedSaved
	}
	h.happened(d, virt.EventStopped, detail)
}
