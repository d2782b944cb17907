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
	pod, first := p.pod(ctx, c, name)
	if pod != nil {
		if err := p.seesService(ctx, c, pod); err != nil {
			return "", err
		}
		first = p.deletePod(ctx, c, pod, ref.Owner)
	}
	// One that fails does not keep the others from being tried.
	var left []schema.GroupVersionResource
	for _, kind := range p.parts() {
		was, err := p.deletePart(ctx, c, kind, name, ref.Owner)
		if err != nil && first == nil {
			first = err
		}
		if was {
			left = append(left, kind)
		}
	}
	if first != nil {
		return "", first
	}
	return p.rest(ctx, c, name, left)
}

// rest says what is still there of an instance after its parts were deleted: a
// node ends a Pod, and a finalizer may hold anything, as a cloud's does that has
// a load balancer to give back. What may stay so for ever is an error that says
// why.
func (p *Provider) rest(ctx context.Context, c *conn, name string, parts []schema.GroupVersionResource) (provider.State, error) {
	pod, err := p.pod(ctx, c, name)
	if err != nil {
		return "", err
	}
	if pod != nil && p.overdue(pod) {
		_, why := p.state(pod)
		return "", fault.Errorf(fault.Unavailable, "host %s: %s", p.host, why)
	}
	state := provider.Gone
	if pod != nil {
		state = provider.Deleting
	}
	for _, kind := range parts {
		m, err := p.part(ctx, c, kind, name)
		if err != nil {
			return "", err
		}
		if m != nil && p.stuck(m) {
			return "", p.held(kind, m)
		}
		if m != nil {
			state = provider.Deleting
		}
	}
	if state == provider.Gone {
		if err := p.rightPlace(ctx, c); err != nil {
			return "", err
		}
	}
	return state, nil
}

// held is the error of a part that does not go.
func (p *Provider) held(kind schema.GroupVersionResource, m metav1.Object) error {
	return fault.Errorf(fault.Unavailable, "host %s: %s %s is being deleted and is still there (finalizers: %s): see whether the controller of that finalizer runs, for a load balancer the cloud's own; take the finalizer away only when what it stands for is gone",
		p.host, kind.Resource, m.GetName(), holders(m))
}

// seesService returns Denied where a Pod has a Service and Services may not be
// read: the Pod alone tells of it, so it stays until its Service can go too.
func (p *Provider) seesService(ctx context.Context, c *conn, pod *corev1.Pod) error {
	kind := p.serviceKind(pod)
	if kind == noService {
		return nil
	}
	_, err := p.part(ctx, c, services, pod.Name)
	if apierrors.IsForbidden(err) {
		return fault.Errorf(fault.Denied, "host %s: Pod %s was made with a Service (%s), which cannot be removed: put the rule about services back into the Role: %w", p.host, pod.Name, kind, err)
	}
	return err
}

func (p *Provider) deletePod(ctx context.Context, c *conn, pod *corev1.Pod, o provider.Owner) error {
	if pod.DeletionTimestamp != nil {
		return nil
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

// deletePart deletes a part; was says that there was one.
func (p *Provider) deletePart(ctx context.Context, c *conn, kind schema.GroupVersionResource, name string, o provider.Owner) (was bool, err error) {
	m, err := p.part(ctx, c, kind, name)
	if p.unneeded(kind, err) {
		return false, nil
	}
	if err != nil || m == nil {
		return false, err
	}
	if err := p.belongs(m, o); err != nil {
		return false, err
	}
	if m.DeletionTimestamp != nil {
		return true, nil
	}
	if err := provider.Step(ctx, "kubernetes: delete "+kind.Resource); err != nil {
		return true, err
	}
	return true, p.removePart(ctx, c, kind, m, "")
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
