package fleet_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"fleetdesk/internal/proxy/provider"
)

// killer ends an operator at one of its points: before and after each call of
// its provider that matters, at each step inside of one, before and after each
// write of a Proxy or ProxyProvider. The points are counted from 1.
type killer struct {
	at   atomic.Int64
	kill func()

	n    atomic.Int64
	once sync.Once
	dead chan struct{}
}

var errDead = errors.New("the operator was killed")

// newKiller returns one for an operator in this process. From its point on
// nothing that the operator does has an effect, and nothing is answered.
func newKiller(at int64) *killer {
	k := &killer{dead: make(chan struct{})}
	k.at.Store(at)
	k.kill = func() { k.once.Do(func() { close(k.dead) }) }
	return k
}

// alive is nil until the operator is dead.
func (k *killer) alive() error {
	select {
	case <-k.dead:
		return errDead
	default:
		return nil
	}
}

// spare lets the operator live, and reports whether it does.
func (k *killer) spare() bool {
	k.at.Store(0)
	return k.alive() == nil
}

// point counts one, and is errDead from the killer's own on.
func (k *killer) point() error {
	if k.n.Add(1) == k.at.Load() {
		k.kill()
	}
	return k.alive()
}

// able is what every provider that is killed here can do.
type able interface {
	provider.Provider
	provider.Checker
	provider.Watcher
	provider.Claimer
	provider.Cleaner
}

// mortal is a provider of an operator that is killed.
type mortal struct {
	able
	k *killer
}

// wrap returns p so that k can end its operator.
func (k *killer) wrap(p provider.Provider) provider.Provider { return mortal{p.(able), k} }

func at[R any](ctx context.Context, k *killer, call func(ctx context.Context) (R, error)) (R, error) {
	var none R
	if err := k.point(); err != nil {
		return none, err
	}
	r, err := call(provider.WithStepHook(ctx, func(string) error { return k.point() }))
	if dead := k.point(); dead != nil {
		return none, dead
	}
	return r, err
}

func (m mortal) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	return at(ctx, m.k, func(ctx context.Context) (provider.Instance, error) { return m.able.Create(ctx, s) })
}

func (m mortal) Get(ctx context.Context, r provider.Ref) (provider.Instance, error) {
	return at(ctx, m.k, func(ctx context.Context) (provider.Instance, error) { return m.able.Get(ctx, r) })
}

func (m mortal) Delete(ctx context.Context, r provider.Ref) (provider.State, error) {
	return at(ctx, m.k, func(ctx context.Context) (provider.State, error) { return m.able.Delete(ctx, r) })
}

func (m mortal) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	_, err := at(ctx, m.k, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, m.able.RemoveLeftover(ctx, installation, l)
	})
	return err
}

// Claim is no point, since it comes with the time; it ends with the operator.
func (m mortal) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	if err := m.k.alive(); err != nil {
		return nil, err
	}
	return m.able.Claim(ctx, c)
}

// transport is the operator's way to the Kubernetes API.
type transport struct {
	http.RoundTripper
	k *killer
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	counts := r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/crawl.example.com/")
	if err := t.k.alive(); err != nil {
		return nil, err
	}
	if counts {
		if err := t.k.point(); err != nil {
			return nil, err
		}
	}
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil && counts {
		if dead := t.k.point(); dead != nil {
			_ = resp.Body.Close()
			return nil, dead
		}
	}
	return resp, err
}
