// Package registry holds the providers in force: it builds them from the
// providers file, tries broken ones again, and answers for each name.
package registry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/provider"
)

// Options are what a Registry is made of.
type Options struct {
	// Build makes a provider from its entry. It must not wait on the far side.
	Build func(e config.Entry) (provider.Provider, error)
	// Changed is told the name of a provider that came, went, changed, or
	// began to work. It must not block.
	Changed func(name string)
	// Log hears about providers that cannot be built.
	Log *slog.Logger
}

// Registry is safe for concurrent use.
type Registry struct {
	o    Options
	wake chan struct{}

	mu    sync.RWMutex
	slots map[string]*slot
	epoch uint64
}

// slot is one configured provider: built, or broken with the reason.
type slot struct {
	entry    config.Entry
	built    provider.Provider
	err      error
	failures int
	retryAt  time.Time
	epoch    uint64
}

// New returns an empty registry; Apply fills it.
func New(o Options) *Registry {
	return &Registry{o: o, wake: make(chan struct{}, 1), slots: map[string]*slot{}}
}

// Apply puts a providers file in force: new and changed entries are built,
// vanished ones are closed, unchanged ones go on untouched. One that cannot be
// built is kept as broken and tried again by Run; the others work.
func (r *Registry) Apply(f *config.File) {
	var closing []provider.Provider
	var changed []string
	r.mu.Lock()
	next := make(map[string]*slot, len(f.Providers))
	for _, e := range f.Providers {
		old, had := r.slots[e.Name]
		if had && old.entry.Hash() == e.Hash() {
			old.entry = e
			next[e.Name] = old
			continue
		}
		s := &slot{entry: e}
		r.build(s)
		next[e.Name] = s
		changed = append(changed, e.Name)
		if had && old.built != nil {
			closing = append(closing, old.built)
		}
	}
	for name, old := range r.slots {
		if _, stays := next[name]; stays {
			continue
		}
		changed = append(changed, name)
		if old.built != nil {
			closing = append(closing, old.built)
		}
	}
	r.slots = next
	r.mu.Unlock()

	for _, p := range closing {
		if c, ok := provider.As[io.Closer](p); ok {
			if err := c.Close(); err != nil {
				r.o.Log.Warn("provider did not close cleanly", "error", err)
			}
		}
	}
	slices.Sort(changed)
	for _, name := range changed {
		r.changed(name)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// build fills the slot; r.mu is held.
func (r *Registry) build(s *slot) {
	r.epoch++
	s.epoch = r.epoch
	s.built, s.err = nil, s.entry.Err
	if s.err == nil {
		s.built, s.err = r.construct(s.entry)
	}
	if s.err == nil {
		s.failures = 0
		return
	}
	s.built = nil
	s.failures++
	pause := fault.Of(s.err).Meaning().Retry.After(s.failures, rand.Float64())
	s.retryAt = time.Now().Add(pause)
	r.o.Log.Error("provider is disabled: it cannot be built; the others go on",
		"provider", s.entry.Name, "kind", s.entry.Kind, "class", string(fault.Of(s.err)), "error", s.err, "retry", pause.Round(time.Second).String())
}

// construct keeps a constructor's panic from taking the other providers down.
func (r *Registry) construct(e config.Entry) (p provider.Provider, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fault.Errorf(fault.Permanent, "provider %q: its constructor panicked: %v", e.Name, v)
		}
	}()
	return r.o.Build(e)
}

func (r *Registry) changed(name string) {
	if r.o.Changed != nil {
		r.o.Changed(name)
	}
}

// Run tries broken providers again until ctx ends.
func (r *Registry) Run(ctx context.Context) error {
	for {
		timer := time.NewTimer(r.untilRetry())
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-r.wake:
			timer.Stop()
		case <-timer.C:
		}
		for _, name := range r.retry() {
			r.changed(name)
		}
	}
}

func (r *Registry) untilRetry() time.Duration {
	r.mu.RLock()
	defer r.mu.RUnlock()
	wait := time.Hour
	for _, s := range r.slots {
		if s.err != nil {
			wait = min(wait, time.Until(s.retryAt))
		}
	}
	return max(wait, 0)
}

// retry builds the broken providers that are due and returns those that work
// now.
func (r *Registry) retry() (healed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, s := range r.slots {
		if s.err == nil || time.Now().Before(s.retryAt) {
			continue
		}
		if r.build(s); s.err == nil {
			healed = append(healed, name)
		}
	}
	slices.Sort(healed)
	return healed
}

// Lookup returns the provider of that name. An unknown name is NotFound; a
// provider that could not be built gives its constructor's error, as
// Unavailable.
func (r *Registry) Lookup(name string) (provider.Provider, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, ok := r.slots[name]
	if !ok {
		return nil, fault.Errorf(fault.NotFound, "the providers config has no provider %q%s", name, r.others())
	}
	if s.err != nil {
		return nil, fault.Errorf(fault.Unavailable, "provider %q is disabled: %w", name, s.err)
	}
	return s.built, nil
}

func (r *Registry) others() string {
	if len(r.slots) == 0 {
		return ": it has none"
	}
	return fmt.Sprintf(": it has %s", strings.Join(slices.Sorted(maps.Keys(r.slots)), ", "))
}

// Names returns the names of all configured providers, sorted.
func (r *Registry) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.slots))
}

// Kind returns the kind of the provider of that name, "" for an unknown one.
func (r *Registry) Kind(name string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s, ok := r.slots[name]; ok {
		return s.entry.Kind
	}
	return ""
}

// Epoch changes each time the provider of that name is built anew: what was
// tried in vain with the last one may be tried again.
func (r *Registry) Epoch(name string) uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s, ok := r.slots[name]; ok {
		return s.epoch
	}
	return 0
}

// Close closes every provider; the registry is empty afterwards.
func (r *Registry) Close() { r.Apply(&config.File{}) }
