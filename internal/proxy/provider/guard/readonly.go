package guard

import (
	"context"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// ReadOnly returns inner without what changes its back end (Create, Delete,
// Claim, RemoveLeftover): those are Denied and never reach it.
func ReadOnly(inner provider.Provider, name string) provider.Provider {
	return &readOnly{inner: inner, name: name}
}

type readOnly struct {
	inner provider.Provider
	name  string
}

func (r *readOnly) denied(method string) error {
	return fault.Errorf(fault.Denied, "provider %s is read-only here: %s is not allowed", r.name, method)
}

func (r *readOnly) Place(ctx context.Context, spec provider.Spec) (string, error) {
	return r.inner.Place(ctx, spec)
}

func (r *readOnly) Create(context.Context, provider.Spec) (provider.Instance, error) {
	return provider.Instance{}, r.denied("Create")
}

func (r *readOnly) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	return r.inner.Get(ctx, ref)
}

func (r *readOnly) Delete(context.Context, provider.Ref) (provider.State, error) {
	return "", r.denied("Delete")
}

func (r *readOnly) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	return r.inner.ListByTag(ctx, installation)
}

func (r *readOnly) Check(ctx context.Context) ([]provider.HostHealth, error) {
	c, ok := provider.As[provider.Checker](r.inner)
	if !ok {
		return nil, unsupported(r.name, "Check")
	}
	return c.Check(ctx)
}

func (r *readOnly) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	w, ok := provider.As[provider.Watcher](r.inner)
	if !ok {
		return unsupported(r.name, "Watch")
	}
	return w.Watch(ctx, installation, changed)
}

func (r *readOnly) Claim(context.Context, provider.Claim) ([]provider.HostClaims, error) {
	return nil, r.denied("Claim")
}

func (r *readOnly) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	c, ok := provider.As[provider.Cleaner](r.inner)
	if !ok {
		return nil, unsupported(r.name, "Leftovers")
	}
	return c.Leftovers(ctx, installation, keep)
}

func (r *readOnly) RemoveLeftover(context.Context, string, provider.Leftover) error {
	return r.denied("RemoveLeftover")
}

func (r *readOnly) Unwrap() provider.Provider { return r.inner }

func (r *readOnly) Close() error { return closed(r.inner) }
