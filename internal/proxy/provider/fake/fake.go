package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Options are the fake's settings; the zero value is a provider "fake" with
// one host "fake-1".
type Options struct {
	// Name is the provider's name and the scheme of its ids; default "fake".
	Name string
	// Hosts are its hosts; default one, the name with "-1".
	Hosts []string
	// Clock tells the time of creation; default time.Now.
	Clock func() time.Time
	// Address is where the instance of an owner is reached, so that tests can
	// point at a real proxy; default is a made-up address of 198.18.0.0/15
	// (benchmarking, RFC 2544), distinct for each instance.
	Address func(owner provider.Owner) (address string, port int)
	// StagesPerCall is how many of the five stages one call of Create does
	// before it returns Provisioning; default 2, so that three calls lead to
	// Running. 5 makes one call enough.
	StagesPerCall int
	// Capacity is the number of instances that fit on a host; 0 is no limit.
	Capacity int
	// StepLimit ends a call on a mute host when its context does not; default
	// provider.StepLimit.
	StepLimit time.Duration
}

// Provider is the fake.
type Provider struct {
	b     *backend
	stage int
	limit time.Duration

	// closed is closed by Close.
	closed chan struct{}
	close  sync.Once

	mu    sync.Mutex
	next  map[string][]error
	calls map[string]int64
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Checker  = (*Provider)(nil)
	_ provider.Watcher  = (*Provider)(nil)
	_ provider.Claimer  = (*Provider)(nil)
	_ provider.Cleaner  = (*Provider)(nil)
)

// New returns a fake with an empty back end.
func New(o Options) *Provider {
	if o.Name == "" {
		o.Name = "fake"
	}
	if len(o.Hosts) == 0 {
		o.Hosts = []string{o.Name + "-1"}
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.StagesPerCall == 0 {
		o.StagesPerCall = 2
	}
	if o.StepLimit == 0 {
		o.StepLimit = provider.StepLimit
	}
	b := &backend{
		name: o.Name, clock: o.Clock, address: o.Address, capacity: o.Capacity,
		order: o.Hosts, hosts: map[string]*host{}, watchers: map[*watcher]struct{}{},
	}
	for _, name := range o.Hosts {
		b.hosts[name] = &host{
			name: name, byID: map[string]*machine{}, byOwner: map[ownerKey]*machine{},
			claims: map[claimKey]provider.OtherClaim{}, litter: map[string]*litter{},
		}
	}
	return over(b, o.StagesPerCall, o.StepLimit)
}

func over(b *backend, stage int, limit time.Duration) *Provider {
	return &Provider{
		b: b, stage: stage, limit: limit, closed: make(chan struct{}),
		next: map[string][]error{}, calls: map[string]int64{},
	}
}

// Reopen returns a new provider over the same back end, as a new operator
// would have after a crash, or a second operator beside the first. Counters and
// FailNext start anew.
func (p *Provider) Reopen() *Provider { return over(p.b, p.stage, p.limit) }

// begin counts a call and returns the error that FailNext put in its way.
func (p *Provider) begin(ctx context.Context, method string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[method]++
	if queue := p.next[method]; len(queue) > 0 {
		p.next[method] = queue[1:]
		return queue[0]
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s was not begun: %w", method, err)
	}
	return nil
}

// FailNext makes the next call of the method ("Create", "Get", …) return err
// without effect; several calls queue up.
func (p *Provider) FailNext(method string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next[method] = append(p.next[method], err)
}

// Calls returns how often each method was called on this Provider.
func (p *Provider) Calls() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.calls)
}

// Place implements provider.Provider: the wished host, or the one with the
// fewest instances. It asks no host.
func (p *Provider) Place(ctx context.Context, s provider.Spec) (string, error) {
	if err := p.begin(ctx, "Place"); err != nil {
		return "", err
	}
	if s.Host != "" {
		h, err := p.b.host(s.Host)
		if err != nil {
			return "", fault.Wrap(fault.Invalid, err)
		}
		if !p.b.room(h) {
			return "", fault.Errorf(fault.Quota, "host %s has no room for another instance", h.name)
		}
		return h.name, nil
	}
	best, least := "", 0
	for _, name := range p.b.order {
		h := p.b.hosts[name]
		if n := h.count(); p.b.room(h) && (best == "" || n < least) {
			best, least = name, n
		}
	}
	if best == "" {
		return "", fault.Errorf(fault.Quota, "no host of provider %s has room for another instance", p.b.name)
	}
	return best, nil
}

func (h *host) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byID)
}

func (b *backend) room(h *host) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.full && (b.capacity == 0 || len(h.byID) < b.capacity)
}

// Create implements provider.Provider. Each effect is small and looks first
// whether it was done, so calls for one UID need no lock among them.
func (p *Provider) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	if err := p.begin(ctx, "Create"); err != nil {
		return provider.Instance{}, err
	}
	h, err := p.b.host(s.Host)
	if err != nil {
		return provider.Instance{}, err
	}
	if err := h.enter(ctx, p.limit); err != nil {
		return provider.Instance{}, err
	}
	for done := 0; ; done++ {
		in, next := h.look(s.Owner)
		if next == parts || done == p.stage {
			return in, nil
		}
		if err := provider.Step(ctx, "make "+next.String()); err != nil {
			return in, err
		}
		p.b.effect(h, s, next)
		p.b.tell(h, s.Owner, p)
	}
}

// look returns the owner's machine and the part to make next; parts when
// nothing is to be done.
func (h *host) look(o provider.Owner) (provider.Instance, part) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.byOwner[keyOf(o)]
	if m == nil {
		return provider.Instance{}, record
	}
	if m.corrupt || m.deleting || m.impaired {
		return m.instance(h), parts
	}
	return m.instance(h), m.missing()
}

// effect makes one part, unless somebody did meanwhile.
func (b *backend) effect(h *host, s provider.Spec, next part) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.byOwner[keyOf(s.Owner)]
	if m == nil {
		if next == record {
			b.add(h, s.Owner)
		}
		return
	}
	if m.missing() != next || m.deleting {
		return
	}
	if next == lease {
		b.locate(h, m, s.Port)
	}
	m.has[next] = true
}

// find looks where ref leads: to the machine with that id, or to the owner's.
// It returns nil when every place answered that nothing is there.
func (p *Provider) find(ctx context.Context, r provider.Ref) (*host, *machine, error) {
	var places []string
	switch {
	case r.ID != "":
		name, err := p.b.parse(r.ID)
		if err != nil {
			return nil, nil, err
		}
		places = []string{name}
	case r.Host != "":
		places = []string{r.Host}
	default:
		places = p.b.order
	}
	return p.search(ctx, r, places)
}

// search asks the places concurrently; the first that has it ends the search.
func (p *Provider) search(ctx context.Context, r provider.Ref, places []string) (*host, *machine, error) {
	type answer struct {
		h   *host
		m   *machine
		err error
	}
	asked := make([]*host, len(places))
	for i, name := range places {
		var err error
		if asked[i], err = p.b.host(name); err != nil {
			return nil, nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(asked))
	for _, h := range asked {
		go func() {
			if err := h.enter(ctx, p.limit); err != nil {
				answers <- answer{err: err}
				return
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if r.ID != "" {
				answers <- answer{h: h, m: h.byID[r.ID]}
				return
			}
			answers <- answer{h: h, m: h.byOwner[keyOf(r.Owner)]}
		}()
	}
	var silent []error
	for range asked {
		a := <-answers
		if a.m != nil {
			return a.h, a.m, nil
		}
		if a.err != nil {
			silent = append(silent, a.err)
		}
	}
	return nil, nil, errors.Join(silent...)
}

// Get implements provider.Provider.
func (p *Provider) Get(ctx context.Context, r provider.Ref) (provider.Instance, error) {
	if err := p.begin(ctx, "Get"); err != nil {
		return provider.Instance{}, err
	}
	h, m, err := p.find(ctx, r)
	if err != nil {
		return provider.Instance{}, err
	}
	if m == nil {
		return provider.Instance{}, fault.Errorf(fault.NotFound, "provider %s has no instance of %s/%s", p.b.name, r.Owner.Namespace, r.Owner.Name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return m.instance(h), nil
}

// Delete implements provider.Provider.
func (p *Provider) Delete(ctx context.Context, r provider.Ref) (provider.State, error) {
	if err := p.begin(ctx, "Delete"); err != nil {
		return "", err
	}
	h, m, err := p.find(ctx, r)
	if r.ID != "" && provider.Class(err) == fault.Invalid || err == nil && m == nil && r.ID != "" {
		// The id leads nowhere; what was made for the owner still counts.
		h, m, err = p.find(ctx, provider.Ref{Owner: r.Owner, Host: r.Host})
	}
	if errors.Is(err, errNotConfigured) {
		return provider.Abandoned, nil
	}
	if err != nil {
		return "", err
	}
	if m == nil {
		return provider.Gone, nil
	}
	for {
		h.mu.Lock()
		if m.corrupt {
			h.mu.Unlock()
			return "", fault.Errorf(fault.Permanent, "the record of %s cannot be read, so its owner is unknown: look at it on host %s", m.id, h.name)
		}
		if keyOf(m.owner) != keyOf(r.Owner) {
			h.mu.Unlock()
			return "", fault.Errorf(fault.Conflict, "%s belongs to %s/%s of installation %s: it is not touched", m.id, m.owner.Namespace, m.owner.Name, m.owner.Installation)
		}
		last := lastPart(m)
		deleting := m.deleting
		h.mu.Unlock()
		name := "mark"
		if deleting {
			name = "remove " + last.String()
		}
		if err := provider.Step(ctx, name); err != nil {
			return "", err
		}
		gone := h.undo(m, last, deleting)
		p.b.tell(h, m.owner, p)
		switch {
		case gone:
			return provider.Gone, nil
		case deleting && last == process:
			// A machine takes a while to stop: be called again.
			return provider.Deleting, nil
		}
	}
}

// lastPart is the part to remove next; the record goes last.
func lastPart(m *machine) part {
	for p := parts - 1; p > record; p-- {
		if m.has[p] {
			return p
		}
	}
	return record
}

// undo marks the machine, or removes one part; it reports whether nothing is
// left.
func (h *host) undo(m *machine, last part, marked bool) (gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.deleting = true
	if !marked {
		return false
	}
	m.has[last] = false
	if last != record {
		return false
	}
	h.drop(m)
	return true
}

// ListByTag implements provider.Provider; hosts are asked concurrently.
func (p *Provider) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	if err := p.begin(ctx, "ListByTag"); err != nil {
		return nil, err
	}
	rows := make([]provider.HostList, len(p.b.order))
	p.each(ctx, func(i int, h *host, err error) {
		rows[i] = provider.HostList{Host: h.name, Err: err}
		if err != nil {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		rows[i].Instances = make([]provider.Instance, 0, len(h.byID))
		for _, m := range h.byID {
			if m.corrupt || m.owner.Installation == installation {
				rows[i].Instances = append(rows[i].Instances, m.instance(h))
			}
		}
	})
	return rows, nil
}

// Check implements provider.Checker.
func (p *Provider) Check(ctx context.Context) ([]provider.HostHealth, error) {
	if err := p.begin(ctx, "Check"); err != nil {
		return nil, err
	}
	rows := make([]provider.HostHealth, len(p.b.order))
	p.each(ctx, func(i int, h *host, err error) {
		rows[i] = provider.HostHealth{Host: h.name, Reason: "OK", Version: "1.0.0", FreeBytes: 1 << 40}
		if err != nil {
			rows[i] = provider.HostHealth{Host: h.name, Reason: provider.Class(err).Meaning().Reason, Message: err.Error()}
		}
	})
	return rows, nil
}

// each enters every host, concurrently where one may make the others wait.
func (p *Provider) each(ctx context.Context, f func(i int, h *host, err error)) {
	var wg sync.WaitGroup
	for i, name := range p.b.order {
		h := p.b.hosts[name]
		wg.Go(func() { f(i, h, h.enter(ctx, p.limit)) })
	}
	wg.Wait()
}
