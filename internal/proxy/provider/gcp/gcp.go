package gcp

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Options are what a Provider is made of.
type Options struct {
	// Name is the provider's name in the providers file; it is part of ids.
	Name string
	// Section is its configuration.
	Section Section
	// Secret reads the Secret of the section's credentials.
	Secret func(context.Context, provider.SecretRef) (provider.Secret, error)
	// Transport carries the requests; default one of its own.
	Transport http.RoundTripper
	// StepLimit bounds a call without a sooner deadline; default a little less
	// than provider.StepLimit.
	StepLimit time.Duration
	// OperationWait bounds how long one call waits for an operation before it
	// answers what there is; default 5 s.
	OperationWait time.Duration
	// Clock is the time; default time.Now.
	Clock func() time.Time
	Log   *slog.Logger
}

// Provider makes instances in the zones of its section. What matters is in the
// project; it keeps operations that it began, and what saves asking again.
type Provider struct {
	name    string
	conf    Section
	api     *api
	zones   map[string]*zone
	limit   time.Duration
	patient time.Duration
	now     func() time.Time
	log     *slog.Logger
	working keyed
	base    http.RoundTripper

	// placing makes choosing a zone and reserving there one step.
	placing sync.Mutex

	mu sync.Mutex
	// flights are operations that were begun here and have not been seen to end,
	// by zone and resource.
	flights map[string]flight
	// full are regions with a used-up quota, until when.
	full map[string]time.Time
	// regions are what is known of regions, and rows what Check said last.
	regions map[string]surroundings
	rows    map[string]verdictOf
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Checker  = (*Provider)(nil)
	_ provider.Claimer  = (*Provider)(nil)
	_ provider.Cleaner  = (*Provider)(nil)
)

const (
	// stepMargin is what a call leaves of provider.StepLimit for its way back.
	stepMargin = 2 * time.Second
	// operationWait is the default of Options.OperationWait.
	operationWait = 5 * time.Second
	// pingAfter is how long nothing is heard on a connection before it is asked,
	// and how long the answer may take.
	pingAfter = 10 * time.Second
	// maxFlights bounds the operations that are remembered; what is forgotten is
	// found again by asking.
	maxFlights = 10000
)

// New returns the provider. It asks nobody. Errors are [FieldError]s.
func New(o Options) (*Provider, error) {
	conf, err := settle(o.Section)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", o.Name, err)
	}
	p := &Provider{
		name: o.Name, conf: conf, zones: map[string]*zone{}, limit: o.StepLimit, patient: o.OperationWait, now: o.Clock, log: o.Log,
		base: o.Transport, flights: map[string]flight{}, full: map[string]time.Time{},
		regions: map[string]surroundings{}, rows: map[string]verdictOf{},
	}
	if p.limit == 0 {
		p.limit = provider.StepLimit - stepMargin
	}
	if p.patient == 0 {
		p.patient = operationWait
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.base == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = nil // the environment's proxies are not for the operator's credentials
		// All calls share one connection: one that is dead is noticed by this, and
		// not by each call's own deadline until TCP gives up.
		t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter}
		p.base = t
	}
	for _, name := range conf.Zones {
		p.zones[name] = &zone{name: name, reserved: map[string]time.Time{}}
	}
	p.api, err = newAPI(conf, &signer{ref: conf.Credentials.ref(), secret: o.Secret, base: p.base, now: p.now, log: p.log.With("provider", o.Name)})
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", o.Name, err)
	}
	return p, nil
}

// Close ends connections that nobody uses. Instances go on.
func (p *Provider) Close() error {
	if c, ok := p.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	return nil
}

// zone is one configured zone with what is known of it.
type zone struct {
	name string

	mu sync.Mutex
	// there is until when it counts as certain that the zone and its project
	// exist.
	there time.Time
	// typed is until when it counts as certain that it has the default machine
	// type.
	typed time.Time
	// refused is until when Place sends nothing there, since there was no machine
	// of the kind.
	refused time.Time
	// survey is what Place learned last. reserved are names of instances that it
	// sent here, with the time until which they count.
	survey   survey
	reserved map[string]time.Time
}

// place returns the configured zone of that name; another one is Permanent.
func (p *Provider) place(name string) (*zone, error) {
	if z, ok := p.zones[name]; ok {
		return z, nil
	}
	return nil, fault.Errorf(fault.Permanent, "zone %q is not in the configuration of provider %q, which has %s: put it back in gcp.zones, or delete the Proxy",
		short(name), p.name, some(p.conf.Zones))
}

// where returns the named zone, or all of them in the order of the section.
func (p *Provider) where(name string) ([]*zone, error) {
	if name != "" {
		z, err := p.place(name)
		if err != nil {
			return nil, err
		}
		return []*zone{z}, nil
	}
	return p.all(), nil
}

func (p *Provider) all() []*zone {
	out := make([]*zone, 0, len(p.conf.Zones))
	for _, name := range p.conf.Zones {
		out = append(out, p.zones[name])
	}
	return out
}

func (p *Provider) id(z *zone, name string) string {
	return ID{Provider: p.name, Project: p.conf.Project, Zone: z.name, Name: name}.String()
}

// parse returns the id of one of our own instances.
func (p *Provider) parse(text string) (ID, error) {
	id, err := ParseID(text)
	switch {
	case err != nil:
		return id, err
	case id.Provider != p.name:
		return id, fault.Errorf(fault.Permanent, "providerID %q is of provider %q; this one is %q: put back its old name in the configuration", short(text), id.Provider, p.name)
	case id.Project != p.conf.Project:
		return id, fault.Errorf(fault.Permanent, "providerID %q is in project %s, and provider %q has project %s: put it back, or delete the Proxy", short(text), id.Project, p.name, p.conf.Project)
	}
	return id, nil
}

func validOwner(o provider.Owner) error {
	switch {
	case o.UID == "" || len(o.UID) > 128:
		return fault.Errorf(fault.Invalid, "owner UID %q: want 1 to 128 characters", short(o.UID))
	case o.Installation == "":
		return fault.New(fault.Invalid, "owner installation is empty: an instance must carry whose it is")
	}
	return nil
}

// flight is an operation under way.
type flight struct{ op, kind string }

// The kinds of flights, as Compute Engine calls the operations.
const (
	inserting = "insert"
	starting  = "start"
	deleting  = "delete"
)

func (p *Provider) flying(z *zone, name string) (flight, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, ok := p.flights[z.name+"/"+name]
	return f, ok
}

func (p *Provider) fly(z *zone, name string, op *compute.Operation, kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.flights) >= maxFlights {
		clear(p.flights)
	}
	p.flights[z.name+"/"+name] = flight{op.Name, kind}
}

func (p *Provider) landed(z *zone, name string, f flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flights[z.name+"/"+name] == f {
		delete(p.flights, z.name+"/"+name)
	}
}

// landing waits for the operation on a resource that is under way, if one is.
// over is false while it goes on; failure is what it ended with.
func (p *Provider) landing(ctx context.Context, z *zone, name string) (f flight, over bool, failure, err error) {
	f, ok := p.flying(z, name)
	if !ok {
		return f, true, nil, nil
	}
	op, err := p.api.await(ctx, z.name, f.op, p.patient)
	if fault.Of(err) == fault.NotFound {
		p.landed(z, name, f) // so old that nobody remembers it
		return flight{}, true, nil, nil
	}
	if err != nil || op.Status != done {
		return f, false, nil, err
	}
	p.landed(z, name, f)
	return f, true, failed(op), nil
}

// began remembers an operation that was begun; one that ended at once says how.
func (p *Provider) began(z *zone, name string, op *compute.Operation, kind string) (failure error) {
	if op.Status == done {
		return failed(op)
	}
	p.fly(z, name, op, kind)
	return nil
}

// underWay is an operation on an instance that somebody else began, nil for
// none: where it is not there (yet), one may be making it.
func (p *Provider) underWay(ctx context.Context, z *zone, name string) (*compute.Operation, error) {
	ops, err := p.api.listOperations(ctx, z.name, "targetLink eq .*/zones/"+z.name+"/instances/"+name)
	if err != nil {
		// That the zone was there a while ago proves nothing of its project now.
		return nil, p.listFault(err)
	}
	for _, op := range ops {
		if op.Status != done {
			return op, nil
		}
	}
	return nil, nil
}

// certainFor is how long a zone that was there is taken to be there.
const certainFor = 5 * time.Minute

// certain returns nil when the zone itself is there: what is not found in it
// then really is not. A project that is gone and one that cannot be seen answer
// "not found" as well.
func (p *Provider) certain(ctx context.Context, z *zone) error {
	z.mu.Lock()
	there := p.now().Before(z.there)
	z.mu.Unlock()
	if there {
		return nil
	}
	return p.verified(ctx, z)
}

// verified is certain by a look of now: for who asks for nothing else that a
// project that is gone would not have.
func (p *Provider) verified(ctx context.Context, z *zone) error {
	_, err := p.api.getZone(ctx, z.name)
	if fault.Of(err) == fault.NotFound {
		err = fault.Errorf(fault.Permanent, "project %s has no such zone, or there is no such project: %w: check gcp.project and gcp.zones", p.conf.Project, err)
	}
	if err == nil {
		z.mu.Lock()
		z.there = p.now().Add(certainFor)
		z.mu.Unlock()
	}
	return err
}

// keyed is one lock for each key, taken with a context.
type keyed struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// lock waits for the key until ctx ends.
func (k *keyed) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		if k.held == nil {
			k.held = map[string]chan struct{}{}
		}
		busy, taken := k.held[key]
		if !taken {
			free := make(chan struct{})
			k.held[key] = free
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(free)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, fmt.Errorf("another call for the same instance still runs: %w", ctx.Err())
		}
	}
}
