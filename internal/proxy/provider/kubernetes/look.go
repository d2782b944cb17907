package kubernetes

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// pod reads a Pod from the server; nil when it is not there. What it finds is
// in the next list.
func (p *Provider) pod(ctx context.Context, c *conn, name string) (*corev1.Pod, error) {
	before := p.pods.uid(name)
	pod, err := c.core.CoreV1().Pods(p.conf.namespace).Get(ctx, name, metav1.GetOptions{})
	if missing(err) {
		p.pods.learnGone(name, before)
		return nil, nil
	}
	if err != nil {
		return nil, p.failed("read Pod "+name, err)
	}
	p.pods.learn(pod)
	return pod, nil
}

// serviceOf reads a Pod's Service from the server where it was made with one; nil
// when it is not there.
func (p *Provider) serviceOf(ctx context.Context, c *conn, pod *corev1.Pod) (*corev1.Service, error) {
	if p.serviceKind(pod) == noService {
		return nil, nil
	}
	return p.service(ctx, c, pod.Name)
}

// service reads a Service from the server; nil when it is not there.
func (p *Provider) service(ctx context.Context, c *conn, name string) (*corev1.Service, error) {
	p.services.start(p)
	before := p.services.uid(name)
	svc, err := c.core.CoreV1().Services(p.conf.namespace).Get(ctx, name, metav1.GetOptions{})
	if missing(err) {
		p.services.learnGone(name, before)
		return nil, nil
	}
	if err != nil {
		return nil, p.failed("read Service "+name, err)
	}
	p.services.learn(svc)
	return svc, nil
}

// parse reads a ref's id. stray says why it names another place than this
// provider has.
func (p *Provider) parse(s string) (id ID, stray, err error) {
	id, err = ParseID(s)
	if err != nil {
		return ID{}, nil, err
	}
	if id.Provider != p.name || id.Host() != p.host {
		return id, fault.Errorf(fault.Permanent, "providerID %q is of host %s of provider %s; this one is host %s of provider %s: put the old cluster, namespace and name back in the configuration",
			s, id.Host(), id.Provider, p.host, p.name), nil
	}
	return id, nil, nil
}

// Get implements [provider.Provider]: it reads the Pod from the server.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	if ref.Host != "" && ref.Host != p.host {
		return provider.Instance{}, fault.Errorf(fault.Permanent, "host %q: provider %s has the host %q alone: put the old cluster and namespace back in the configuration", short(ref.Host), p.name, p.host)
	}
	name, err := nameOf(ref.Owner)
	if err != nil {
		return provider.Instance{}, err
	}
	if ref.ID != "" {
		id, stray, err := p.parse(ref.ID)
		if err != nil {
			return provider.Instance{}, err
		}
		if stray != nil {
			return provider.Instance{}, stray
		}
		name = id.Pod
	}
	ctx, cancel, err := p.bound(ctx, "read Pod "+name)
	if err != nil {
		return provider.Instance{}, err
	}
	defer cancel()
	c, err := p.connected(ctx)
	if err != nil {
		return provider.Instance{}, err
	}
	pod, err := p.pod(ctx, c, name)
	if err != nil {
		return provider.Instance{}, err
	}
	if pod == nil {
		return provider.Instance{}, p.notThere(ctx, c, "Pod "+name)
	}
	if err := p.belongs(pod, ref.Owner); err != nil {
		return provider.Instance{}, err
	}
	svc, err := p.serviceOf(ctx, c, pod)
	if err != nil {
		return provider.Instance{}, err
	}
	in := p.instance(pod, svc)
	if in.State == provider.Unknown {
		in.Owner.Installation = ref.Owner.Installation
	}
	return in, nil
}

// belongs returns Conflict for what is not the owner's.
func (p *Provider) belongs(m metav1.Object, o provider.Owner) error {
	is, says := ownerOf(m)
	switch {
	case says == strange:
		return fault.Errorf(fault.Conflict, "host %s: %s is there and does not carry the operator's labels: it was left alone; put the labels back, or remove it", p.host, m.GetName())
	case is.UID != o.UID, says == whole && is.Installation != o.Installation:
		return fault.Errorf(fault.Conflict, "host %s: %s belongs to another owner (Proxy %s/%s): it was left alone", p.host, m.GetName(), is.Namespace, is.Name)
	}
	return nil
}

// ListByTag implements [provider.Provider] with one row. It shows what the watch
// told and what this provider's own calls have seen since; the server is asked
// for one Pod alone, as a sign of life.
func (p *Provider) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	row := provider.HostList{Host: p.host}
	row.Instances, row.Err = p.list(ctx, installation)
	return []provider.HostList{row}, nil
}

func (p *Provider) list(ctx context.Context, installation string) ([]provider.Instance, error) {
	ctx, cancel, err := p.bound(ctx, "list Pods")
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := p.heard(ctx); err != nil {
		return nil, err
	}
	pods := p.pods.all(TagOf(installation))
	if len(pods) == 0 {
		// A server lists nothing of a namespace that it does not have.
		c, err := p.connected(ctx)
		if err == nil {
			err = p.rightPlace(ctx, c)
		}
		if err != nil {
			return nil, err
		}
	}
	services := map[string]metav1.Object{}
	if p.useServices(pods) {
		p.services.start(p)
		if err := p.services.await(ctx); err != nil {
			return nil, p.failed("watch "+p.services.src.what, err)
		}
		services = p.services.all(TagOf(installation))
	}
	found := make([]provider.Instance, 0, len(pods))
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		svc, _ := services[name].(*corev1.Service)
		in := p.instance(pods[name].(*corev1.Pod), svc)
		if in.State == provider.Unknown {
			in.Owner.Installation = installation
		}
		found = append(found, in)
	}
	return found, nil
}

// useServices reports that Services are to be known: the section asks for them,
// or one of the Pods was made with one.
func (p *Provider) useServices(pods map[string]metav1.Object) bool {
	if p.conf.service != nil {
		return true
	}
	for _, pod := range pods {
		if p.serviceKind(pod) != noService {
			return true
		}
	}
	return false
}

// heard returns nil when the server answers now and the watch of Pods stands.
func (p *Provider) heard(ctx context.Context) error {
	p.follow()
	c, err := p.connected(ctx)
	if err != nil {
		return err
	}
	told := p.pods.version()
	one, err := c.core.CoreV1().Pods(p.conf.namespace).List(ctx, metav1.ListOptions{LabelSelector: selectManaged, Limit: 1})
	if err != nil {
		err = p.failed("list Pods", err)
		if fault.Of(err) == fault.Unavailable {
			// Whatever cut this call may have cut the watch, and not told it.
			p.pods.doubt()
			p.services.doubt()
		}
		return err
	}
	if above(told, one.ResourceVersion) {
		// The cluster's data went back to an earlier copy: what the watch told of
		// later is not there.
		p.pods.doubt()
		p.services.doubt()
	}
	if err := p.pods.await(ctx); err != nil {
		return p.failed("watch "+p.pods.src.what, err)
	}
	return nil
}

// selectManaged selects what operators made.
const selectManaged = labelManaged + "=" + managedBy

// precisely has a deletion mean that object and no other of its name.
func precisely(uid types.UID, version string, wait *int64) metav1.DeleteOptions {
	o := metav1.DeleteOptions{GracePeriodSeconds: wait, Preconditions: &metav1.Preconditions{UID: &uid}}
	if version != "" {
		o.Preconditions.ResourceVersion = &version
	}
	return o
}
