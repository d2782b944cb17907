// Package inventory keeps what each provider's hosts hold, learned by one
// listing of each provider an interval: it answers for all Proxies of a host,
// so that the steady state costs O(hosts) provider calls, not O(proxies).
//
// A listing only ever adds knowledge that was not there. What the operator
// itself did or read after a listing began is newer than that listing and
// wins. Absence is a question: the reconciler asks Get.
//
// Providers that can tell of changes are watched. What they tell is a hint that
// makes knowledge stale before the next listing comes; the listings go on.
package inventory

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Providers is where the inventory finds the providers in force.
type Providers interface {
	Names() []string
	Lookup(name string) (provider.Provider, error)
	// Epoch changes when another provider is in force under that name.
	Epoch(name string) uint64
}

// Options are what an Inventory is made of.
type Options struct {
	Providers Providers
	// Installation is the tag to list.
	Installation string
	// Interval is the time from one listing of a provider to the next.
	Interval time.Duration
	// Changed is told the owner of an instance that came, went or differs, or
	// whose host stopped or began to answer, and of one that a watch told of. It
	// must not block.
	Changed func(o provider.Owner)
	// Recovered is told the name of a provider of which a host answers again:
	// Proxies that have no instance there yet wait for it. It must not block.
	Recovered func(providerName string)
	Log       *slog.Logger
}

// Knowledge is how much the inventory knows of an instance.
type Knowledge int

const (
	// Unlisted: no listing has answered for the host yet, or the last answer
	// is too old.
	Unlisted Knowledge = iota
	// Present: the instance was seen; Sighting.Instance is what was seen.
	Present
	// Absent: its host's list is whole and does not have it, or a watch told that
	// it changed since it was seen. That is no proof: ask Get.
	Absent
	// HostDown: its host did not answer the last listing; Sighting.Err says why.
	HostDown
)

// Sighting is what the inventory knows of one instance.
type Sighting struct {
	Knowledge Knowledge
	Instance  provider.Instance
	// Err is the host's listing error, for HostDown.
	Err error
	// Elsewhere names other hosts that list an instance of the same Proxy.
	Elsewhere []string
}

// Inventory is safe for concurrent use.
type Inventory struct {
	o Options

	mu        sync.Mutex
	providers map[string]*shelf
	kick      map[string]bool
	wake      chan struct{}
	// news is for the teller, which ring wakes.
	news news
	ring chan struct{}
}

// shelf is one provider's part. Instances are by host and Proxy UID: a cloned
// or restored machine must not take the place of the one that was made.
type shelf struct {
	hosts     map[string]*host
	instances map[place]record
	// recoveries counts hosts that began to answer again.
	recoveries uint64
	// err is why not even the hosts could be named, as of listed.
	err    error
	listed time.Time
	busy   bool
	next   time.Time
}

type place struct{ host, uid string }

type host struct {
	listed time.Time
	err    error
}

// record is an instance with the time since when it is known: the start of the
// listing, or the moment of the operator's own call.
type record struct {
	instance provider.Instance
	asOf     time.Time
	// gone marks what the operator itself saw vanish at asOf, so that a listing
	// begun before cannot bring it back.
	gone bool
	// stale is when a watch last told that it changed; zero when it is as seen.
	// asked is set once somebody was told to ask Get for that: an answer that
	// comes before may be to a question from before the change.
	stale time.Time
	asked bool
}

// doubt takes over from the record before that this one may be outdated too.
func (r record) doubt(old record) record {
	r.stale, r.asked = old.stale, old.asked
	return r
}

// New returns an empty inventory; Run fills it.
func New(o Options) *Inventory {
	return &Inventory{
		o: o, providers: map[string]*shelf{}, kick: map[string]bool{}, wake: make(chan struct{}, 1),
		news: news{owners: map[subject]provider.Owner{}, refresh: map[string]bool{}}, ring: make(chan struct{}, 1),
	}
}

// Look returns what is known of the instance of a Proxy on the host where it
// was placed.
func (i *Inventory) Look(providerName, hostName, uid string) Sighting {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.providers[providerName]
	if s == nil {
		return Sighting{}
	}
	now := time.Now()
	at := place{hostName, uid}
	r, known := s.instances[at]
	known = known && !r.gone
	found := Sighting{Knowledge: Present, Instance: r.instance, Elsewhere: s.elsewhere(hostName, uid)}
	listed, err := s.listed, s.err
	h := s.hosts[hostName]
	if h != nil && err == nil {
		listed, err = h.listed, h.err
	}
	switch {
	case known && i.recent(r.asOf, now) && (err == nil || r.asOf.After(listed)):
		if r.stale.IsZero() {
			return found
		}
		r.asked = true
		s.instances[at] = r
	case !i.recent(listed, now):
		return Sighting{}
	case err != nil:
		return Sighting{Knowledge: HostDown, Err: err}
	}
	// Also a host that the provider does not list any more: whether that means
	// anything is for Get to say.
	return Sighting{Knowledge: Absent, Elsewhere: found.Elsewhere}
}

// elsewhere names the other hosts that have an instance of that UID: O(hosts).
func (s *shelf) elsewhere(hostName, uid string) (names []string) {
	for name := range s.hosts {
		if r, ok := s.instances[place{name, uid}]; ok && !r.gone && name != hostName {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Recoveries changes when a host of the provider answers again: what failed
// before may be tried anew.
func (i *Inventory) Recoveries(providerName string) uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	if s := i.providers[providerName]; s != nil {
		return s.recoveries
	}
	return 0
}

// recent tells whether knowledge of that time still counts: three listings may
// fail to come before it is too old.
func (i *Inventory) recent(t, now time.Time) bool {
	return !t.IsZero() && now.Sub(t) < 3*i.o.Interval+provider.StepLimit
}

// Note keeps what the operator's own call just answered. When a watch told of a
// change and nobody looked since, the call may have begun before the change:
// the instance stays stale.
func (i *Inventory) Note(providerName, uid string, in provider.Instance) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s, at := i.shelf(providerName), place{in.Host, uid}
	r := record{instance: in, asOf: time.Now()}
	if old := s.instances[at]; !old.asked {
		r = r.doubt(old)
	}
	s.instances[at] = r
}

// Drop forgets an instance that the operator's own call found gone.
func (i *Inventory) Drop(providerName, hostName, uid string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.shelf(providerName).instances[place{hostName, uid}] = record{asOf: time.Now(), gone: true}
}

// Refresh asks for a listing of that provider soon, ahead of its interval.
func (i *Inventory) Refresh(providerName string) {
	i.mu.Lock()
	i.kick[providerName] = true
	i.mu.Unlock()
	i.signal()
}

func (i *Inventory) signal() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// shelf returns the provider's part, made if need be; i.mu is held.
func (i *Inventory) shelf(name string) *shelf {
	s := i.providers[name]
	if s == nil {
		s = &shelf{hosts: map[string]*host{}, instances: map[place]record{}}
		i.providers[name] = s
	}
	return s
}

// Run lists every provider each interval until ctx ends. Providers are listed
// side by side, each at most once at a time, so that a mute one delays none.
func (i *Inventory) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	held := map[string]watch{}
	group.Go(func() { i.tell(ctx) })
	for {
		i.watches(ctx, held, &group)
		wait := i.start(ctx, &group)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-i.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// start begins the listings that are due and returns the time to the next.
func (i *Inventory) start(ctx context.Context, group *sync.WaitGroup) time.Duration {
	names := i.o.Providers.Names()
	now := time.Now()
	wait := i.o.Interval
	i.mu.Lock()
	defer i.mu.Unlock()
	configured := make(map[string]bool, len(names))
	for _, name := range names {
		configured[name] = true
		s := i.shelf(name)
		if s.busy {
			continue
		}
		if i.kick[name] {
			// However many ask, a provider is listed at most once a second.
			s.next = later(now, s.listed.Add(time.Second))
			delete(i.kick, name)
		}
		if s.next.After(now) {
			wait = min(wait, s.next.Sub(now))
			continue
		}
		s.busy = true
		// A tenth of jitter keeps many providers from listing in step.
		s.next = now.Add(i.o.Interval - time.Duration(rand.Float64()*float64(i.o.Interval)/10))
		wait = min(wait, s.next.Sub(now))
		group.Go(func() { i.list(ctx, name) })
	}
	for name := range i.providers {
		if !configured[name] && !i.providers[name].busy {
			delete(i.providers, name)
		}
	}
	for name := range i.kick {
		if !configured[name] {
			delete(i.kick, name)
		}
	}
	return max(wait, time.Millisecond)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// list makes one listing of a provider and keeps its answer.
func (i *Inventory) list(ctx context.Context, name string) {
	began := time.Now()
	var hosts []provider.HostList
	epoch := i.o.Providers.Epoch(name)
	p, err := i.o.Providers.Lookup(name)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, provider.StepLimit)
		hosts, err = p.ListByTag(ctx, i.o.Installation)
		cancel()
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	// What a provider says that was replaced meanwhile may be of other hosts.
	over := ctx.Err() != nil || i.o.Providers.Epoch(name) != epoch
	i.mu.Lock()
	s := i.shelf(name)
	s.busy = false
	var changed []provider.Owner
	before := s.recoveries
	if over {
		i.kick[name] = true
	} else {
		changed = s.keep(hosts, err, began)
	}
	recovered := s.recoveries != before
	i.mu.Unlock()
	i.signal()
	if over {
		return
	}
	i.report(name, hosts, err)
	for _, o := range changed {
		i.o.Changed(o)
	}
	if recovered && i.o.Recovered != nil {
		i.o.Recovered(name)
	}
}

func (i *Inventory) report(name string, hosts []provider.HostList, err error) {
	if err != nil {
		i.o.Log.Warn("a provider's hosts could not be listed", "provider", name, "class", string(fault.Of(err)), "error", err)
		return
	}
	for _, h := range hosts {
		if h.Err != nil {
			i.o.Log.Warn("a host could not be listed", "provider", name, "host", h.Host, "class", string(fault.Of(h.Err)), "error", h.Err)
		}
	}
}

// keep takes a listing over and returns the owners of what changed by it.
func (s *shelf) keep(hosts []provider.HostList, err error, began time.Time) []provider.Owner {
	was := s.err
	s.err, s.listed = err, began
	if err != nil {
		if was != nil {
			return nil
		}
		return s.owners(func(provider.Instance) bool { return true })
	}
	var changed []provider.Owner
	answered := make(map[string]bool, len(hosts))
	seen := make(map[place]bool, len(s.instances))
	for _, hl := range hosts {
		answered[hl.Host] = true
		h := s.hosts[hl.Host]
		if h == nil {
			h = &host{}
			s.hosts[hl.Host] = h
		}
		turned := was != nil || h.listed.IsZero() || (h.err == nil) != (hl.Err == nil)
		if hl.Err == nil && (was != nil || h.err != nil) {
			s.recoveries++
		}
		h.listed, h.err = began, hl.Err
		if turned {
			changed = append(changed, s.owners(func(in provider.Instance) bool { return in.Host == hl.Host })...)
		}
		for _, in := range hl.Instances {
			at := place{hl.Host, in.Owner.UID}
			seen[at] = true
			old, had := s.instances[at]
			if had && old.asOf.After(began) {
				continue
			}
			r := record{instance: in, asOf: began}
			if !began.After(old.stale) {
				r = r.doubt(old)
			}
			s.instances[at] = r
			// Whoever was on a host that turned is in the list already.
			if !had || old.gone || (!turned && differs(old.instance, in)) {
				changed = append(changed, in.Owner)
			}
		}
	}
	for name := range s.hosts {
		if !answered[name] {
			delete(s.hosts, name)
		}
	}
	for at, r := range s.instances {
		if seen[at] || r.asOf.After(began) {
			continue
		}
		if r.gone {
			delete(s.instances, at)
			continue
		}
		h := s.hosts[at.host]
		if h == nil || h.err == nil {
			// Whole list, not in it: the reconciler will ask Get.
			delete(s.instances, at)
			changed = append(changed, r.instance.Owner)
		}
	}
	return changed
}

func (s *shelf) owners(of func(provider.Instance) bool) []provider.Owner {
	var out []provider.Owner
	for _, r := range s.instances {
		if !r.gone && of(r.instance) {
			out = append(out, r.instance.Owner)
		}
	}
	return out
}

// differs tells whether a change matters to a Proxy's status.
func differs(a, b provider.Instance) bool {
	return a.ID != b.ID || a.Host != b.Host || a.State != b.State ||
		a.Address != b.Address || a.Port != b.Port || a.Message != b.Message
}
