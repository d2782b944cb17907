// Package registry holds the providers in force: it builds them from the
// providers file, tries broken ones again, and answers for each name.
package registry

import (
	"context"
	"fmt"
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
	// Removed is told the name of a provider that left the file, once it is
	// closed: what is kept of it by name may be forgotten. It must not block,
	// and may be nil.
	Removed func(name string)
	// Refused is told the name of each provider, as it stands, when it changes
	// why the file on disk cannot be used: the providers themselves are as they
	// were. It must not block, and may be nil.
	Refused func(name string)
	// Log hears about providers that cannot be built.
	Log *slog.Logger
}

// closeLimit is how long the providers that leave may take to close.
const closeLimit = 10 * time.Second

// Registry is safe for concurrent use.
type Registry struct {
	o    Options
	wake chan struct{}
	// applying lets one file after the other come into force.
	applying sync.Mutex

	mu    sync.RWMutex
	slots map[string]*slot
	epoch uint64
	// refused is why the file on disk is not the one in force.
	refused error
}

// slot is one configured provider: built, or broken with the reason.
type slot struct {
	entry    config.Entry
	built    *tenure
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
// built is kept as broken and tried again by Run and by the next Apply; the
// others work. That is so also when the entry worked before: what its section
// said last is no longer what its owner wants. Its instances stay as they are.
//
// A provider is closed only after another one has taken its place. Calls that
// still run on it end as Unavailable, whatever they found.
func (r *Registry) Apply(f *config.File) {
	r.applying.Lock()
	defer r.applying.Unlock()
	n := r.swap(f)
	r.close(n.leaving)
	if len(n.added)+len(n.replaced)+len(n.removed) > 0 {
		r.o.Log.Info("providers changed", "added", n.added, "replaced", n.replaced, "removed", n.removed)
	}
	if r.o.Removed != nil {
		for _, name := range n.removed {
			r.o.Removed(name)
		}
	}
	told := slices.Concat(n.added, n.replaced, n.removed, n.retried)
	slices.Sort(told)
	for _, name := range told {
		r.changed(name)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// news is what a file changed.
type news struct {
	// added, replaced and removed are names by what became of their entries;
	// retried are unchanged ones that were broken and now are not, or otherwise.
	added, replaced, removed, retried []string
	leaving                           []*tenure
}

// swap builds what the file needs and puts it in force.
func (r *Registry) swap(f *config.File) (n news) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := make(map[string]*slot, len(f.Providers))
	for _, e := range f.Providers {
		old, had := r.slots[e.Name]
		if had && old.entry.Hash() == e.Hash() {
			next[e.Name] = old
			old.entry = e
			if was := old.err; was != nil {
				// It may work now, and its error may name another line.
				if r.build(old); old.err == nil || old.err.Error() != was.Error() {
					n.retried = append(n.retried, e.Name)
				}
			}
			continue
		}
		s := &slot{entry: e}
		r.build(s)
		next[e.Name] = s
		if !had {
			n.added = append(n.added, e.Name)
			continue
		}
		n.replaced = append(n.replaced, e.Name)
		n.leave(old)
	}
	for name, old := range r.slots {
		if _, stays := next[name]; !stays {
			n.removed = append(n.removed, name)
			n.leave(old)
		}
	}
	slices.Sort(n.removed)
	r.slots = next
	return n
}

// leave ends a slot's provider's tenure, under the lock that puts the next one
// in force.
func (n *news) leave(old *slot) {
	if old.built != nil {
		old.built.over.Store(true)
		n.leaving = append(n.leaving, old.built)
	}
}

// close closes providers side by side. One that hangs keeps the others, and the
// next file, no longer than closeLimit.
func (r *Registry) close(leaving []*tenure) {
	closed := make(chan string, len(leaving))
	open := make(map[string]bool, len(leaving))
	for _, t := range leaving {
		open[t.name] = true
		go func() {
			defer func() { closed <- t.name }()
			defer func() {
				if v := recover(); v != nil {
					r.o.Log.Error("provider panicked while it closed", "provider", t.name, "type", fmt.Sprintf("%T", v))
				}
			}()
			if err := t.Close(); err != nil {
				r.o.Log.Warn("provider did not close cleanly", "provider", t.name, "class", string(fault.Of(err)), "error", err)
			}
		}()
	}
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	for len(open) > 0 {
		select {
		case name := <-closed:
			delete(open, name)
		case <-limit.C:
			r.o.Log.Warn("providers do not close: they are left to end on their own", "providers", slices.Sorted(maps.Keys(open)))
			return
		}
	}
}

// build fills the slot; r.mu is held.
func (r *Registry) build(s *slot) {
	r.epoch++
	s.epoch = r.epoch
	s.built, s.err = nil, s.entry.Err
	if s.err == nil {
		var p provider.Provider
		if p, s.err = r.construct(s.entry); s.err == nil {
			s.built = &tenure{inner: p, name: s.entry.Name}
			s.failures = 0
			return
		}
	}
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

// Refuse states why the providers file on disk cannot be used, so that an older
// one is in force; nil takes it back. It changes nothing else, and no
// provider is told changed for it, but Refused is told of each.
func (r *Registry) Refuse(err error) {
	r.mu.Lock()
	same := err == nil && r.refused == nil
	r.refused = err
	r.mu.Unlock()
	if same || r.o.Refused == nil {
		return
	}
	for _, name := range r.Names() {
		r.o.Refused(name)
	}
}

// State is how one configured provider stands.
type State struct {
	Name, Kind string
	// Err is why it is disabled: its section is refused, or it cannot be built.
	Err error
	// Refused is why the file on disk cannot be used; what is in force is older.
	Refused error
}

// States returns how every configured provider stands, sorted by name.
func (r *Registry) States() []State {
	r.mu.RLock()
	defer r.mu.RUnlock()
	states := make([]State, 0, len(r.slots))
	for _, name := range slices.Sorted(maps.Keys(r.slots)) {
		s := r.slots[name]
		states = append(states, State{Name: name, Kind: s.entry.Kind, Err: s.err, Refused: r.refused})
	}
	return states
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
