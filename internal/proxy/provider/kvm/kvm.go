package kvm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/sshdial"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Options are what a Provider is made of.
type Options struct {
	// Name is the provider's name in the providers file; it is part of ids.
	Name string
	// Section is its configuration.
	Section Section
	// Dialer opens links to the hosts; default SSH as the section says.
	Dialer link.Dialer
	// StepLimit bounds a call without a sooner deadline; default a little less
	// than provider.StepLimit.
	StepLimit time.Duration
	// Clock is the time; default time.Now.
	Clock func() time.Time
	Log   *slog.Logger
}

// Provider makes instances on the hosts of its section. What matters is on the
// hosts; it keeps connections, uploads that run, and what saves asking again.
type Provider struct {
	name    string
	conf    settled
	hosts   map[string]*host
	links   *link.Pool
	fetch   *image.Fetcher
	jobs    *jobs
	limit   time.Duration
	now     func() time.Time
	log     *slog.Logger
	working keyed
	// done is closed by Close.
	done    chan struct{}
	close   sync.Once
	placing sync.Mutex
	images  imageUse
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Checker  = (*Provider)(nil)
	_ provider.Claimer  = (*Provider)(nil)
	_ provider.Cleaner  = (*Provider)(nil)
)

// maxCalls are the calls at one host at once; the operator's own bounds are below.
const maxCalls = 32

// stepMargin is what a call leaves of provider.StepLimit for its way back.
const stepMargin = 2 * time.Second

// New returns the provider. It asks no host; it warns in the log when the files
// of the section's ssh cannot be used now. Errors are [FieldError]s.
func New(o Options) (*Provider, error) {
	conf, err := settle(o.Section)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", o.Name, err)
	}
	p := &Provider{name: o.Name, conf: conf, hosts: map[string]*host{}, done: make(chan struct{}), limit: o.StepLimit, now: o.Clock, log: o.Log}
	if p.limit == 0 {
		p.limit = provider.StepLimit - stepMargin
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.fetch, err = image.NewFetcher(image.FetchOptions{AllowCIDRs: conf.allow, CAFile: conf.caFile})
	if err != nil {
		return nil, fmt.Errorf("provider %q: kvm: %w", o.Name, err)
	}
	for name, h := range conf.hosts {
		p.hosts[name] = newHost(name, h)
	}
	dialer := o.Dialer
	if dialer == nil {
		d := p.overSSH()
		for _, w := range d.Warnings() {
			p.log.Warn("kvm: a file of the provider's ssh section cannot be used now; it is read again with the next connection", "problem", w)
		}
		dialer = d
	}
	p.links = link.New(link.Options{Hosts: slices.Sorted(maps.Keys(conf.hosts)), Dialer: dialer, MaxCalls: maxCalls, Log: p.log})
	p.jobs = newJobs()
	return p, nil
}

// overSSH dials as the section says.
func (p *Provider) overSSH() *sshdial.Dialer {
	hosts := map[string]sshdial.Host{}
	for name, h := range p.conf.hosts {
		hosts[name] = sshdial.Host{Address: h.Address, Port: h.Port, Socket: h.Socket, User: p.conf.ssh.User}
	}
	return sshdial.New(sshdial.Options{
		Hosts: hosts, KeyFile: p.conf.ssh.KeyFile, KnownHostsFile: p.conf.ssh.KnownHostsFile, Log: p.log,
		Open: func(ctx context.Context, host string, conn net.Conn) (link.Link, error) {
			c, err := rpc.Open(ctx, conn, rpc.Options{Host: host, Log: p.log})
			if err != nil {
				return nil, err
			}
			return c, nil
		},
	})
}

// Close ends uploads and connections. Instances go on.
func (p *Provider) Close() error {
	p.close.Do(func() { close(p.done) })
	p.jobs.close()
	return p.links.Close()
}

// on runs fn with a connection to the host, within the step limit. What fails
// there names the host.
func (p *Provider) on(ctx context.Context, h *host, fn func(ctx context.Context, c virt.Conn) error) error {
	return p.by(ctx, h, p.links.Call, fn)
}

// always is on for a host's listing, which must not fail because many other
// calls run: that would say that the host is down.
func (p *Provider) always(ctx context.Context, h *host, fn func(ctx context.Context, c virt.Conn) error) error {
	return p.by(ctx, h, p.links.Use, fn)
}

func (p *Provider) by(ctx context.Context, h *host, call func(context.Context, string, func(context.Context, virt.Conn) error) error, fn func(ctx context.Context, c virt.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	err := call(ctx, h.name, func(ctx context.Context, c virt.Conn) error {
		return fn(ctx, virt.Traced(c, h.name, p.log))
	})
	return p.named(ctx, h, err)
}

// named gives an error the host's name and a class.
func (p *Provider) named(ctx context.Context, h *host, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && !fault.Classed(err):
		class := fault.Transient
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			class = fault.Timeout
		}
		err = fault.Wrap(class, err)
	}
	if _, dialling := errors.AsType[*link.DialError](err); dialling {
		return err
	}
	// The pool of connections quotes it.
	for _, said := range []string{"host " + h.name, fmt.Sprintf("host %q", h.name), "on " + h.name + ":"} {
		if strings.Contains(err.Error(), said) {
			return err
		}
	}
	return fmt.Errorf("host %s: %w", h.name, err)
}

// place returns the configured host of that name; another one is Permanent.
func (p *Provider) place(name string) (*host, error) {
	if h, ok := p.hosts[name]; ok {
		return h, nil
	}
	return nil, fault.Errorf(fault.Permanent, "host %q is not in the configuration of provider %q, which has %s: put it back, or delete the Proxy",
		short(name), p.name, listed(p.hosts))
}

// target is what a Ref means: the UUID of a domain, and where it may be.
type target struct {
	// id is the UUID of the ref's own id, "" when it has none that can be used.
	id string
	// own is the UUID derived from the owner, "" without an owner.
	own   string
	hosts []*host
}

// uuids are the UUIDs to look for, in order.
func (t target) uuids() []string {
	var out []string
	if t.id != "" {
		out = append(out, t.id)
	}
	if t.own != "" && t.own != t.id {
		out = append(out, t.own)
	}
	return out
}

// parse returns the id of one of our own instances.
func (p *Provider) parse(text string) (domain.ID, error) {
	id, err := domain.ParseID(text)
	if err != nil {
		return id, err
	}
	if id.Provider != p.name {
		return id, fault.Errorf(fault.Permanent, "providerID %q is of provider %q; this one is %q: put back its old name in the configuration", short(text), id.Provider, p.name)
	}
	return id, nil
}

// find reads a ref for Get: an id that is none of ours is an error.
func (p *Provider) find(ref provider.Ref) (target, error) {
	var t target
	if ref.ID == "" {
		if err := validOwner(ref.Owner); err != nil {
			return t, err
		}
		t.own = domain.UUIDOf(ref.Owner)
		hosts, err := p.where(ref.Host)
		t.hosts = hosts
		return t, err
	}
	id, err := p.parse(ref.ID)
	if err != nil {
		return t, err
	}
	t.id = id.UUID
	if ref.Host != "" && ref.Host != id.Host {
		return t, fault.Errorf(fault.Permanent, "providerID %q is on host %q and the Proxy's host is %q: they must be the same", ref.ID, id.Host, short(ref.Host))
	}
	t.hosts, err = p.where(id.Host)
	return t, err
}

// where returns the named host, or all of them in the order of their names.
func (p *Provider) where(name string) ([]*host, error) {
	if name != "" {
		h, err := p.place(name)
		if err != nil {
			return nil, err
		}
		return []*host{h}, nil
	}
	return p.all(), nil
}

func (p *Provider) all() []*host {
	out := make([]*host, 0, len(p.hosts))
	for _, name := range slices.Sorted(maps.Keys(p.hosts)) {
		out = append(out, p.hosts[name])
	}
	return out
}

func (p *Provider) id(h *host, uuid string) string {
	return domain.ID{Provider: p.name, Host: h.name, UUID: uuid}.String()
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

// host is one configured host with what is known of it.
type host struct {
	name string
	conf Host

	// uploading lets one image at a time onto the host: what else is uploaded
	// there (seeds) must not wait for two of them.
	uploading chan struct{}

	mu sync.Mutex
	// generation is the link's that the rest was learned over; another one
	// makes it void.
	generation uint64
	offer      *offer
	handle     virt.Pool
	// marks are the metadata of domains by UUID, clones and those of other
	// installations among them; nil marks of domains that have none of ours.
	marks map[string]*domain.Mark
	// owners are whose domains are, by UUID: it follows from the owner, so that
	// it stays when the rest of a mark is read again.
	owners map[string]ownership
	// watched counts the subscriptions to the host's events.
	watched int
	// sights are the addresses of running domains, by UUID.
	sights map[string]sight
	// images are the verified images by key.
	images map[string]image.Cached
	// silent is until when Place does without the host, since it did not answer,
	// and silence what that was.
	silent  time.Time
	silence error
	// survey is for Place. reserved are UIDs of instances that it sent here, with
	// the time until which they count; refused is until when it sends none, since
	// one found no room.
	survey   survey
	reserved map[string]time.Time
	refused  time.Time
	// shared says that another host has the same folder as its pool.
	shared bool
}

func newHost(name string, conf Host) *host {
	h := &host{name: name, conf: conf, reserved: map[string]time.Time{}, owners: map[string]ownership{}, uploading: make(chan struct{}, 1)}
	h.reset()
	return h
}

func (h *host) reset() {
	h.offer, h.handle = nil, virt.Pool{}
	h.marks, h.sights, h.images = map[string]*domain.Mark{}, map[string]sight{}, map[string]image.Cached{}
}

// fresh forgets what was learned over an earlier link: behind the new one may
// be another daemon.
func (h *host) fresh(generation uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.generation != generation {
		h.generation = generation
		// Addresses too: the host may have been started anew, and its domains have
		// the numbers of before. The metadata tell what still holds.
		h.reset()
	}
}

// forget drops what is known of a domain that is gone or was changed.
func (h *host) forget(uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.marks, uuid)
	delete(h.sights, uuid)
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
			done := make(chan struct{})
			k.held[key] = done
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(done)
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
