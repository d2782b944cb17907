package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Options are what a Provider is made of.
type Options struct {
	// Name is the provider's name in the providers file; it is part of ids.
	Name string
	// Section is its configuration.
	Section Section
	// Secret reads a key of a Secret in the operator's own namespace; needed
	// where the section has a kubeconfigSecret.
	Secret func(ctx context.Context, ref provider.SecretRef) (provider.Secret, error)
	// Own is the way to the operator's own cluster; default what a Pod finds in
	// its container.
	Own func() (*rest.Config, error)
	// StepLimit bounds a call without a sooner deadline; default a little less
	// than provider.StepLimit.
	StepLimit time.Duration
	// HashCost is bcrypt's; default its own default.
	HashCost int
	// Clock is the time; default time.Now.
	Clock func() time.Time
	Log   *slog.Logger
}

// Provider makes Pods in one namespace of one cluster. What matters is there; it
// keeps connections and what a watch told.
type Provider struct {
	name    string
	host    string
	conf    settled
	cluster *cluster
	limit   time.Duration
	cost    int
	now     func() time.Time
	log     *slog.Logger
	working keyed
	endings endings
	home    home

	pods, services *follower
	ears           ears
	// making are names of Pods that are being made, for the bound on instances.
	counting sync.Mutex
	making   map[string]bool

	// done is closed by Close.
	done  chan struct{}
	end   sync.Once
	group sync.WaitGroup
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Checker  = (*Provider)(nil)
	_ provider.Watcher  = (*Provider)(nil)
	_ provider.Claimer  = (*Provider)(nil)
	_ provider.Cleaner  = (*Provider)(nil)
)

// stepMargin is what a call leaves of provider.StepLimit for its way back.
const stepMargin = 2 * time.Second

// New returns the provider. It asks nobody. Errors are [FieldError]s.
func New(o Options) (*Provider, error) {
	conf, err := settle(o.Section)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", o.Name, err)
	}
	if !labelForm.MatchString(o.Name) {
		return nil, fault.Errorf(fault.Invalid, "provider name %q: want lower-case letters, digits and dashes (at most 63)", short(o.Name))
	}
	p := &Provider{
		name: o.Name, host: conf.cluster + "/" + conf.namespace, conf: conf,
		limit: o.StepLimit, cost: o.HashCost, now: o.Clock, log: o.Log, making: map[string]bool{},
		done: make(chan struct{}),
	}
	if p.limit == 0 {
		p.limit = provider.StepLimit - stepMargin
	}
	if p.cost == 0 {
		p.cost = bcrypt.DefaultCost
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	own := o.Own
	if own == nil {
		own = rest.InClusterConfig
	}
	p.cluster = &cluster{ref: conf.kubeconfig, secret: o.Secret, own: own, now: p.now, reading: make(chan struct{}, 1)}
	p.pods = newFollower(p, podSource(conf.namespace))
	p.services = newFollower(p, serviceSource(conf.namespace))
	return p, nil
}

// Close ends the watch and the connections. Pods go on.
func (p *Provider) Close() error {
	for _, f := range []*follower{p.pods, p.services} {
		f.once.Do(func() {}) // nothing begins any more
	}
	p.end.Do(func() { close(p.done) })
	p.group.Wait()
	p.cluster.close()
	return nil
}

// follow begins to listen to the cluster. Services are listened to when the
// section asks for them, or when a Pod is met that was made with one.
func (p *Provider) follow() {
	p.pods.start(p)
	if p.conf.service != nil {
		p.services.start(p)
	}
}

// bound gives a call its deadline. An ended context is an error at once.
func (p *Provider) bound(ctx context.Context, doing string) (context.Context, context.CancelFunc, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, p.failed(doing, err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	return ctx, cancel, nil
}

func (p *Provider) id(pod string) string {
	return ID{Provider: p.name, Cluster: p.conf.cluster, Namespace: p.conf.namespace, Pod: pod}.String()
}

// Place implements [provider.Provider]: there is one host.
func (p *Provider) Place(ctx context.Context, spec provider.Spec) (string, error) {
	w, err := p.settleSpec(spec)
	if err != nil {
		return "", err
	}
	ctx, cancel, err := p.bound(ctx, "place")
	if err != nil {
		return "", err
	}
	defer cancel()
	if p.conf.max == 0 {
		return p.host, nil
	}
	return p.host, p.room(ctx, w, func() {})
}

// room returns Quota when the installation has as many Pods as it may, and has
// not this one; else it calls take, before anybody else is let in.
func (p *Provider) room(ctx context.Context, w *wanted, take func()) error {
	if p.conf.max == 0 {
		return nil
	}
	p.follow()
	if err := p.pods.await(ctx); err != nil {
		return p.failed("count its Pods", err)
	}
	p.counting.Lock()
	defer p.counting.Unlock()
	names := p.pods.names(TagOf(w.owner.Installation))
	for name := range p.making {
		names[name] = true
	}
	if names[w.name] || len(names) < p.conf.max {
		take()
		return nil
	}
	return fault.Errorf(fault.Quota, "host %s has %d instances and may have %d: delete Proxies, or raise kubernetes.maxInstances of provider %s", p.host, len(names), p.conf.max, p.name)
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
			return nil, ctx.Err()
		}
	}
}
