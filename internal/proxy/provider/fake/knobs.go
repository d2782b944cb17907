package fake

import (
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// The knobs do to the back end what happens to a real one behind the
// provider's back. Each takes effect at once; those that return mend undo it
// by that, once or more often. A host or id that does not exist panics: the
// test is wrong.

func (p *Provider) must(name string) *host {
	h, err := p.b.host(name)
	if err != nil {
		panic(err)
	}
	return h
}

// machine calls f with the machine of that id, under its host's lock, and tells
// watchers.
func (p *Provider) machine(id string, f func(h *host, m *machine)) {
	h, o := p.change(id, f)
	p.b.tell(h, o, nil)
}

func (p *Provider) change(id string, f func(h *host, m *machine)) (*host, provider.Owner) {
	name, err := p.b.parse(id)
	if err != nil {
		panic(err)
	}
	h := p.must(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.byID[id]
	if m == nil {
		panic("fake: no machine " + id)
	}
	f(h, m)
	return h, m.owner
}

// Break makes every call that needs the host fail; a nil err stands for
// "connection refused", class Unavailable.
func (p *Provider) Break(name string, err error) (mend func()) {
	if err == nil {
		err = fault.New(fault.Unavailable, "connection refused")
	}
	h := p.must(name)
	set := func(err error) { p.b.hearing(h, func() { h.broken = err }) }
	set(err)
	return func() { set(nil) }
}

// Mute makes every call that needs the host hang until its context ends, or
// the step limit; mend lets those that hang go on.
func (p *Provider) Mute(name string) (mend func()) {
	h := p.must(name)
	mute := make(chan struct{})
	p.b.hearing(h, func() { h.mute = mute })
	return func() {
		p.b.hearing(h, func() {
			if h.mute == mute {
				h.mute = nil
				close(mute)
			}
		})
	}
}

// CutEvents keeps the host from telling watchers anything, while its calls go
// on to be answered.
func (p *Provider) CutEvents(name string) (mend func()) {
	h := p.must(name)
	p.b.hearing(h, func() { h.cut++ })
	return sync.OnceFunc(func() { p.b.hearing(h, func() { h.cut-- }) })
}

// SetLatency makes each call that needs the host take that long at least.
func (p *Provider) SetLatency(name string, d time.Duration) {
	h := p.must(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latency = d
}

// Fill leaves no room on any host.
func (p *Provider) Fill() (mend func()) {
	set := func(full bool) {
		for _, h := range p.b.hosts {
			h.mu.Lock()
			h.full = full
			h.mu.Unlock()
		}
	}
	set(true)
	return func() { set(false) }
}

// Stop stops a machine.
func (p *Provider) Stop(id string) {
	p.machine(id, func(_ *host, m *machine) { m.has[process] = false })
}

// Impair breaks a machine in a way that starting does not mend.
func (p *Provider) Impair(id string) (mend func()) {
	return p.flag(id, func(m *machine) *bool { return &m.impaired })
}

// Corrupt makes a machine's record unreadable.
func (p *Provider) Corrupt(id string) (mend func()) {
	return p.flag(id, func(m *machine) *bool { return &m.corrupt })
}

// flag sets a flag of the machine; mend takes it back.
func (p *Provider) flag(id string, of func(*machine) *bool) (mend func()) {
	var h *host
	var m *machine
	p.machine(id, func(at *host, found *machine) {
		h, m = at, found
		*of(m) = true
	})
	return func() {
		h.mu.Lock()
		*of(m) = false
		o := m.owner
		h.mu.Unlock()
		p.b.tell(h, o, nil)
	}
}

// Vanish removes a machine and all its parts.
func (p *Provider) Vanish(id string) {
	p.machine(id, func(h *host, m *machine) { h.drop(m) })
}

// Plant puts a running machine of that owner on the host, as if another
// operator had made it.
func (p *Provider) Plant(name string, o provider.Owner) provider.Instance {
	h := p.must(name)
	defer p.b.tell(h, o, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	m := p.b.add(h, o)
	for i := range m.has {
		m.has[i] = true
	}
	p.b.locate(h, m, 3128)
	return m.instance(h)
}

// Parts names everything that exists for the owner, as host/part.
func (p *Provider) Parts(o provider.Owner) []string {
	var names []string
	for _, h := range p.b.hosts {
		h.mu.Lock()
		for _, m := range h.byID {
			if keyOf(m.owner) != keyOf(o) {
				continue
			}
			for i, has := range m.has {
				if has {
					names = append(names, h.name+"/"+m.id+"/"+part(i).String())
				}
			}
		}
		h.mu.Unlock()
	}
	slices.Sort(names)
	return names
}

// Machines returns every machine of every host, whoever owns it, by id.
func (p *Provider) Machines() []provider.Instance {
	var all []provider.Instance
	for _, h := range p.b.hosts {
		h.mu.Lock()
		for _, m := range h.byID {
			all = append(all, m.instance(h))
		}
		h.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b provider.Instance) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return all
}
