package fake

import (
	"context"
	"sync"

	"fleetdesk/internal/proxy/provider"
)

// maxQueue bounds the changes that wait for a slow watcher; beyond it the
// host's own are put as one.
const maxQueue = 1024

// watcher is one running Watch.
type watcher struct {
	by           *Provider
	installation string
	// wake has room for one: somebody put something into queue.
	wake chan struct{}

	mu    sync.Mutex
	queue []provider.Change
}

func (w *watcher) put(c provider.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) >= maxQueue {
		w.crush(c.Host)
		c.UID = ""
	}
	for _, q := range w.queue {
		if q == c {
			return
		}
	}
	w.queue = append(w.queue, c)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// crush makes room: the host's single changes go, since one for all of it
// comes.
func (w *watcher) crush(host string) {
	kept := w.queue[:0]
	for _, q := range w.queue {
		if q.Host != host {
			kept = append(kept, q)
		}
	}
	w.queue = kept
}

func (w *watcher) take() []provider.Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.queue
	w.queue = nil
	return all
}

// Watch implements provider.Watcher. It says of each host that anything may
// have changed as soon as it can be heard, so also at the beginning.
func (p *Provider) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	if err := p.begin(ctx, "Watch"); err != nil {
		return err
	}
	w := &watcher{by: p, installation: installation, wake: make(chan struct{}, 1)}
	defer p.b.listen(w)()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.closed:
			return nil
		case <-w.wake:
		}
		for _, c := range w.take() {
			if ctx.Err() != nil {
				return nil
			}
			changed(c)
		}
	}
}

// Close ends the Watches of this Provider, now and later. Its other methods
// still answer.
func (p *Provider) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

// listen adds a watcher and returns how to take it out.
func (b *backend) listen(w *watcher) (leave func()) {
	b.mu.Lock()
	b.watchers[w] = struct{}{}
	b.mu.Unlock()
	for _, name := range b.order {
		if b.hosts[name].heard() {
			w.put(provider.Change{Host: name})
		}
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, w)
	}
}

// heard reports whether the host's events arrive.
func (h *host) heard() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.deaf()
}

// deaf reports that they do not; the caller holds h.mu.
func (h *host) deaf() bool { return h.broken != nil || h.mute != nil || h.cut > 0 }

// tell passes on that the machine changed, to all watchers of its installation
// but those of the Provider that did it. An empty owner is any of the host's.
func (b *backend) tell(h *host, o provider.Owner, by *Provider) {
	if !h.heard() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watchers {
		if o != (provider.Owner{}) && o.Installation != w.installation || by != nil && w.by == by {
			continue
		}
		w.put(provider.Change{Host: h.name, UID: o.UID})
	}
}

// hearing runs a change of what keeps the host from being heard, and tells
// when it can be heard again.
func (b *backend) hearing(h *host, change func()) {
	h.mu.Lock()
	before := h.deaf()
	change()
	after := h.deaf()
	h.mu.Unlock()
	if before && !after {
		b.tell(h, provider.Owner{}, nil)
	}
}
