package kvm

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

var _ provider.Watcher = (*Provider)(nil)

const (
	// firstPause and longestPause are between two tries to subscribe on a host;
	// a link that somebody else dials meanwhile is used at once.
	firstPause   = time.Second
	longestPause = time.Minute
	// gathering is how long events are put together before they are told: one
	// start or stop is several of them.
	gathering = 20 * time.Millisecond
	// wholePause is between two times that a whole host is told of.
	wholePause = time.Second
	// maxStrangers is how many domains that nobody knows yet are read in each of
	// these pauses. With more the host as a whole is told of.
	maxStrangers = 16
	// strangerLimit bounds what is read of them at once.
	strangerLimit = 5 * time.Second
	// echo is how long after a Create its events may still come.
	echo = time.Second
)

// Watch implements [provider.Watcher]: one subscription to libvirt's life-cycle
// events for each host, over the connection that all share. It needs one call
// for each connection, and one for each event of a domain that has a name of
// the installation's and was not seen before; other people's domains cost none.
func (p *Provider) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for _, h := range p.all() {
		wg.Go(func() {
			w := &watch{p: p, h: h, installation: installation, changed: changed}
			w.run(ctx)
		})
	}
	wg.Go(func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	})
	wg.Wait()
	return nil
}

// watch follows one host.
type watch struct {
	p            *Provider
	h            *host
	installation string
	changed      func(provider.Change)
	// said is the last refusal that was logged.
	said string

	// What is to be told: owners' UIDs, domains whose owner is not known, and
	// whether anything on the host may have changed.
	uids      map[string]bool
	strangers map[string]virt.Domain
	whole     bool
	// wholeAt and asks are when the host was told of last, and how many
	// strangers were asked about since asksAt.
	wholeAt, asksAt time.Time
	asks            int
}

// run subscribes again and again until ctx ends.
func (w *watch) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		generation, err := w.subscribed(ctx)
		if err != nil && ctx.Err() == nil && answered(err) && err.Error() != w.said {
			// A host that cannot be reached is logged by the pool of connections.
			w.said = err.Error()
			w.p.log.Warn("kvm: a host does not tell of changes; they are seen by the next listing", "provider", w.p.name, "host", w.h.name, "error", err)
		}
		if time.Since(began) >= longestPause {
			pause = firstPause
		}
		wait, stop := context.WithTimeout(ctx, jittered(pause))
		w.p.links.Await(wait, w.h.name, generation)
		stop()
		pause = min(2*pause, longestPause)
	}
}

// jittered is a fifth more or less, so that hosts that were lost together do
// not come back together.
func jittered(d time.Duration) time.Duration {
	return d*4/5 + rand.N(d*2/5)
}

// subscribed follows the host's events until ctx, the connection or the
// subscription ends. It takes no slot of the host's calls. generation is the
// connection's.
func (w *watch) subscribed(ctx context.Context) (generation uint64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(w.p.limit, cancel)
	defer late.Stop()
	generation = w.p.links.Generation(w.h.name)
	err = w.p.links.Use(ctx, w.h.name, func(ctx context.Context, c virt.Conn) error {
		generation = w.p.links.Generation(w.h.name)
		w.h.fresh(generation)
		c = virt.Traced(c, w.h.name, w.p.log)
		events, err := c.ConnectDomainEventRegisterAny(ctx)
		if err != nil {
			return err
		}
		if !late.Stop() {
			return context.DeadlineExceeded
		}
		w.said = ""
		w.h.watch(1)
		defer w.h.watch(-1)
		w.follow(ctx, c, events)
		return nil
	})
	return generation, err
}

// follow tells of events until there are no more.
func (w *watch) follow(ctx context.Context, c virt.Conn, events <-chan virt.DomainEvent) {
	w.uids, w.strangers = map[string]bool{}, map[string]virt.Domain{}
	w.whole = true // nobody knows what was before
	timer := time.NewTimer(0)
	defer timer.Stop()
	armed := true
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				return
			}
			w.note(ctx, ev)
			if !armed && w.due() {
				armed = true
				timer.Reset(gathering)
			}
		case <-timer.C:
			armed = false
			if ctx.Err() != nil {
				return
			}
			if again := w.tell(ctx, c); again > 0 {
				armed = true
				timer.Reset(again)
			}
		}
	}
}

func (w *watch) due() bool { return w.whole || len(w.uids) > 0 || len(w.strangers) > 0 }

// note makes void what an event contradicts, and keeps whom it is to be told
// of.
func (w *watch) note(ctx context.Context, ev virt.DomainEvent) {
	if ev.Kind == virt.EventsMissed {
		w.h.doubtAll()
		w.whole = true
		return
	}
	uuid := ev.Domain.UUID
	owner, known, foreign := w.h.owner(uuid)
	own := time.Now().Before(owner.quiet)
	switch ev.Kind {
	case virt.EventDefined:
		// Somebody else's stays somebody else's: ours would have another UUID.
		if !foreign || ev.Detail != virt.DefinedUpdated {
			w.h.forgetMark(uuid)
		}
	case virt.EventUndefined:
		w.h.forget(uuid)
	case virt.EventStarted:
		if !own {
			w.h.unsee(uuid)
		}
	case virt.EventResumed:
		w.h.doubt(uuid)
	case virt.EventSuspended:
	default: // it stops, in one way or another
		w.h.unsee(uuid)
	}
	switch {
	case known && owner.Installation != w.installation, foreign:
		return
	case !known && !domain.Ours(ev.Domain.Name, w.installation):
		return
	}
	if w.p.log.Enabled(ctx, slog.LevelDebug) {
		w.p.log.Debug("libvirt event", "host", w.h.name, "name", short(ev.Domain.Name), "uuid", uuid, "event", ev.Kind.String(), "detail", ev.Detail, "own", own)
	}
	switch {
	case own && (ev.Kind == virt.EventDefined || ev.Kind == virt.EventStarted || ev.Kind == virt.EventResumed):
		// What a Create of this process does. Its answer says more. An end is
		// always told: somebody else may be behind it.
	case known:
		w.uids[owner.UID] = true
	case len(w.strangers) >= maxStrangers:
		w.whole = true
	default:
		w.strangers[uuid] = ev.Domain
	}
}

// tell says what was noted. It returns when to come again with the rest; zero
// when there is none.
func (w *watch) tell(ctx context.Context, c virt.Conn) (again time.Duration) {
	w.recognise(ctx, c)
	for uid := range w.uids {
		w.changed(provider.Change{Host: w.h.name, UID: uid})
	}
	clear(w.uids)
	if !w.whole {
		return 0
	}
	now := time.Now()
	if left := wholePause - now.Sub(w.wholeAt); left > 0 {
		return left
	}
	w.whole, w.wholeAt = false, now
	w.changed(provider.Change{Host: w.h.name})
	return 0
}

// recognise reads whose the strangers are. One that is gone, or cannot be read,
// may have been anybody's.
func (w *watch) recognise(ctx context.Context, c virt.Conn) {
	if len(w.strangers) == 0 {
		return
	}
	if now := time.Now(); now.Sub(w.asksAt) >= wholePause {
		w.asksAt, w.asks = now, 0
	}
	ctx, cancel := context.WithTimeout(ctx, strangerLimit)
	defer cancel()
	for uuid, d := range w.strangers {
		if owner, known, _ := w.h.owner(uuid); known { // a listing was faster
			w.uids[owner.UID] = true
			continue
		}
		if w.asks++; w.asks > maxStrangers {
			w.whole = true
			break
		}
		m, err := w.p.read(ctx, c, w.h, d)
		if err != nil {
			w.whole = true
			continue
		}
		w.h.note(uuid, &m)
		if !isCopy(d, m) && m.Owner.Installation == w.installation {
			w.uids[m.Owner.UID] = true
		}
	}
	clear(w.strangers)
}

// watch counts subscriptions.
func (h *host) watch(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watched += n
}

// ownership is whose a domain is.
type ownership struct {
	provider.Owner
	// quiet is until when starts of the domain are this process's own.
	quiet time.Time
}

// own says whose the domain of a UUID is, or will be, and that for so long its
// starts are this process's own.
func (h *host) own(uuid string, o provider.Owner, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.owners[uuid] = ownership{o, time.Now().Add(d)}
}

// echoes says that a Create has ended: its events may be on their way still.
func (h *host) echoes(uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o, ok := h.owners[uuid]; ok && time.Until(o.quiet) > echo {
		o.quiet = time.Now().Add(echo)
		h.owners[uuid] = o
	}
}

// owner is whose a domain is as far as it is known; foreign says that it is
// known to be nobody's here, or a clone.
func (h *host) owner(uuid string) (o ownership, known, foreign bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o, known = h.owners[uuid]; known {
		return o, true, false
	}
	_, foreign = h.marks[uuid]
	return o, false, foreign
}

// doubt has a domain's address read again by the next listings; it holds until
// then.
func (h *host) doubt(uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, ok := h.sights[uuid]; ok {
		s.read = time.Time{}
		h.sights[uuid] = s
	}
}

func (h *host) doubtAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uuid, s := range h.sights {
		s.read = time.Time{}
		h.sights[uuid] = s
	}
}
