package registry

import (
	"context"
	"io"
	"sync/atomic"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// tenure is a provider while it is in force. A call that outlives it is not
// believed, whatever it answers: the one that has taken its place may have
// other hosts, and on "not found" a Proxy is made anew. The caller gets
// Unavailable, comes back, and asks the one in force.
type tenure struct {
	inner provider.Provider
	name  string
	over  atomic.Bool
}

// during makes one call, and refuses it or its answer once the tenure is over.
func during[R any](t *tenure, method string, call func() (R, error)) (R, error) {
	var none R
	if t.over.Load() {
		return none, fault.Errorf(fault.Unavailable, "provider %s was changed in the providers config: %s is tried again with the one in force", t.name, method)
	}
	value, err := call()
	if !t.over.Load() {
		return value, err
	}
	if err != nil {
		// %v: the cause's class must not be found in it.
		return none, fault.Errorf(fault.Unavailable, "provider %s was changed in the providers config during %s, which is tried again with the one in force: %v", t.name, method, err)
	}
	return none, fault.Errorf(fault.Unavailable, "provider %s was changed in the providers config during %s, which is tried again with the one in force", t.name, method)
}

func (t *tenure) Place(ctx context.Context, spec provider.Spec) (string, error) {
	return during(t, "Place", func() (string, error) { return t.inner.Place(ctx, spec) })
}

func (t *tenure) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	return during(t, "Create", func() (provider.Instance, error) { return t.inner.Create(ctx, spec) })
}

func (t *tenure) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	return during(t, "Get", func() (provider.Instance, error) { return t.inner.Get(ctx, ref) })
}

func (t *tenure) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	return during(t, "Delete", func() (provider.State, error) { return t.inner.Delete(ctx, ref) })
}

func (t *tenure) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	return during(t, "ListByTag", func() ([]provider.HostList, error) { return t.inner.ListByTag(ctx, installation) })
}

func (t *tenure) Check(ctx context.Context) ([]provider.HostHealth, error) {
	c, ok := provider.As[provider.Checker](t.inner)
	if !ok {
		return nil, t.lacks("Check")
	}
	return during(t, "Check", func() ([]provider.HostHealth, error) { return c.Check(ctx) })
}

// Watch tells nothing any more once the tenure is over.
func (t *tenure) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	w, ok := provider.As[provider.Watcher](t.inner)
	if !ok {
		return t.lacks("Watch")
	}
	return w.Watch(ctx, installation, func(c provider.Change) {
		if !t.over.Load() {
			changed(c)
		}
	})
}

func (t *tenure) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	inner, ok := provider.As[provider.Claimer](t.inner)
	if !ok {
		return nil, t.lacks("Claim")
	}
	return during(t, "Claim", func() ([]provider.HostClaims, error) { return inner.Claim(ctx, c) })
}

func (t *tenure) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	c, ok := provider.As[provider.Cleaner](t.inner)
	if !ok {
		return nil, t.lacks("Leftovers")
	}
	return during(t, "Leftovers", func() ([]provider.HostLeftovers, error) { return c.Leftovers(ctx, installation, keep) })
}

func (t *tenure) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	c, ok := provider.As[provider.Cleaner](t.inner)
	if !ok {
		return t.lacks("RemoveLeftover")
	}
	_, err := during(t, "RemoveLeftover", func() (struct{}, error) {
		return struct{}{}, c.RemoveLeftover(ctx, installation, l)
	})
	return err
}

func (t *tenure) Unwrap() provider.Provider { return t.inner }

func (t *tenure) Close() error {
	if c, ok := provider.As[io.Closer](t.inner); ok {
		return c.Close()
	}
	return nil
}

func (t *tenure) lacks(what string) error {
	return fault.Errorf(fault.Unsupported, "provider %s has no %s", t.name, what)
}
