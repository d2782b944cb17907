package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// The kinds of an instance's parts. Of a Secret the metadata are read alone.
var (
	secrets  = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	services = schema.GroupVersionResource{Version: "v1", Resource: "services"}
)

// part reads the metadata of a part of an instance; nil when it is not there.
func (p *Provider) part(ctx context.Context, c *conn, kind schema.GroupVersionResource, name string) (*metav1.PartialObjectMetadata, error) {
	m, err := c.meta.Resource(kind).Namespace(p.conf.namespace).Get(ctx, name, metav1.GetOptions{})
	if missing(err) {
		return nil, nil
	}
	return m, p.failed("read "+kind.Resource+" "+name, err)
}

// parts are the kinds to look for. Services are looked for also where the
// section does not ask for them any more, as far as the Role still allows it.
func (p *Provider) parts() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{services, secrets}
}

// unneeded reports that a refusal about Services means nothing: no Service is
// asked for, and the Role names none.
func (p *Provider) unneeded(kind schema.GroupVersionResource, err error) bool {
	return kind == services && p.conf.service == nil && apierrors.IsForbidden(err)
}

// Delete implements [provider.Provider]. Names come from the owner alone, so the
// ref's id only tells whether it is of this provider at all. Its steps are
// "kubernetes: delete pod", "kubernetes: delete services" and "kubernetes:
// delete secrets".
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	if ref.Host != "" && ref.Host != p.host {
		return provider.Abandoned, nil
	}
	if ref.ID != "" {
		if _, stray, err := p.parse(ref.ID); err == nil && stray != nil {
			return provider.Abandoned, nil
		}
	}
	name, err := nameOf(ref.Owner)
	if err != nil {
		return "", err
	}
	doing := "delete " + name
	ctx, cancel, err := p.bound(ctx, doing)
	if err != nil {
		return "", err
	}
	defer cancel()
	unlock, err := p.working.lock(ctx, name)
	if err != nil {
		return "", p.failed(doing, err)
	}
	defer unlock()
	c, err := p.connected(ctx)
	if err != nil {
		return "", err
	}
	// One that fails does not keep the others from being tried.
	first := p.deletePod(ctx, c, name, ref.Owner)
	for _, kind := range p.parts() {
		if err := p.deletePart(ctx, c, kind, name, ref.Owner); err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		return "", first
	}
	pod, err := p.pod(ctx, c, name)
	if err != nil {
		return "", err
	}
	switch {
	case pod == nil:
		return provider.Gone, nil
	case p.overdue(pod):
		// It may stay so for ever: whoever waits for it is told why.
		_, why := p.state(pod)
		return "", fault.Errorf(fault.Unavailable, "host %s: %s", p.host, why)
	}
	return provider.Deleting, nil
}

func (p *Provider) deletePod(ctx context.Context, c *conn, name string, o provider.Owner) error {
	pod, err := p.pod(ctx, c, name)
	if err != nil || pod == nil || pod.DeletionTimestamp != nil {
		return err
	}
	if err := p.belongs(pod, o); err != nil {
		return err
	}
	if err := provider.Step(ctx, "kubernetes: delete pod"); err != nil {
		return err
	}
	return p.removePod(ctx, c, pod, nil)
}

// removePod deletes that very Pod; wait is its grace, nil for its own. What has
// ended, or was never bound to a node, the server removes at once.
func (p *Provider) removePod(ctx context.Context, c *conn, pod *corev1.Pod, wait *int64) error {
	err := c.core.CoreV1().Pods(p.conf.namespace).Delete(ctx, pod.Name, precisely(pod.UID, "", wait))
	switch {
	case missing(err):
		return nil
	case apierrors.IsConflict(err):
		return fault.Errorf(fault.Conflict, "host %s: Pod %s was made anew by another call", p.host, pod.Name)
	}
	return p.failed("delete Pod "+pod.Name, err)
}

func (p *Provider) deletePart(ctx context.Context, c *conn, kind schema.GroupVersionResource, name string, o provider.Owner) error {
	m, err := p.part(ctx, c, kind, name)
	if p.unneeded(kind, err) {
		return nil
	}
	if err != nil || m == nil {
		return err
	}
	if err := p.belongs(m, o); err != nil {
		return err
	}
	if err := provider.Step(ctx, "kubernetes: delete "+kind.Resource); err != nil {
		return err
	}
	return p.removePart(ctx, c, kind, m, "")
}

// removePart deletes that very object, in that version unless it is empty.
func (p *Provider) removePart(ctx context.Context, c *conn, kind schema.GroupVersionResource, m *metav1.PartialObjectMetadata, version string) error {
	err := c.meta.Resource(kind).Namespace(p.conf.namespace).Delete(ctx, m.Name, precisely(m.UID, version, nil))
	switch {
	case missing(err):
		return nil
	case apierrors.IsConflict(err):
		return fault.Errorf(fault.Conflict, "host %s: %s %s was written by another call meanwhile", p.host, kind.Resource, m.Name)
	}
	return p.failed("delete "+kind.Resource+" "+m.Name, err)
}
