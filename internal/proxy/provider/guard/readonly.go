package guard

import (
	"context"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// ReadOnly returns inner without Create and Delete: they are Denied and never
// reach it.
func ReadOnly(inner provider.Provider, name string) provider.Provider {
	return present(&readOnly{inner: inner, name: name}, inner)
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
	c, ok := r.inner.(provider.Checker)
	if !ok {
		return nil, unsupported(r.name)
	}
	return c.Check(ctx)
}

func (r *readOnly) Close() error { return closed(r.inner) }
