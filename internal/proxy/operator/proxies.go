package operator

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	wire "fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/api"
)

// cachedProxies shows the manager's cache to the client API. A page costs one
// pass over the Proxies of the namespace asked for, and a sort of what matched.
type cachedProxies struct {
	cache client.Reader
}

// List implements api.Proxies.
func (c cachedProxies) List(ctx context.Context, q api.ProxyQuery) (api.ProxyPage, error) {
	selector, err := labels.Parse(q.Selector)
	if err != nil {
		return api.ProxyPage{}, fault.Errorf(fault.Invalid, "selector: %w", err)
	}
	var list v1alpha1.ProxyList
	// Read-only use: the cache's own objects may be looked at, not changed.
	opts := []client.ListOption{client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy}
	if q.Namespace != "" {
		opts = append(opts, client.InNamespace(q.Namespace))
	}
	if err := c.cache.List(ctx, &list, opts...); err != nil {
		return api.ProxyPage{}, fault.Errorf(fault.Unavailable, "Proxies cannot be listed: %w", err)
	}
	name := func(px *v1alpha1.Proxy) api.ProxyName { return api.ProxyName{Namespace: px.Namespace, Name: px.Name} }
	var match []*v1alpha1.Proxy
	for i := range list.Items {
		px := &list.Items[i]
		if (q.Provider == "" || px.Spec.Provider == q.Provider) &&
			(q.Phase == "" || string(px.Status.Phase) == q.Phase) &&
			name(px).Compare(q.After) > 0 {
			match = append(match, px)
		}
	}
	slices.SortFunc(match, func(a, b *v1alpha1.Proxy) int { return name(a).Compare(name(b)) })
	page := api.ProxyPage{More: len(match) > q.Limit}
	for _, px := range match[:min(len(match), q.Limit)] {
		page.Items = append(page.Items, onWire(px))
	}
	return page, nil
}

// Get implements api.Proxies.
func (c cachedProxies) Get(ctx context.Context, namespace, name string) (wire.Proxy, error) {
	px := &v1alpha1.Proxy{}
	err := c.cache.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, px)
	switch {
	case err == nil:
		return onWire(px), nil
	case apierrors.IsNotFound(err):
		return wire.Proxy{}, fault.Errorf(fault.NotFound, "there is no Proxy %s/%s", namespace, name)
	}
	return wire.Proxy{}, fault.Errorf(fault.Unavailable, "Proxy %s/%s cannot be read: %w", namespace, name, err)
}

// onWire is a Proxy as clients see it: no credentials, no spec.
func onWire(px *v1alpha1.Proxy) wire.Proxy {
	w := wire.Proxy{
		Namespace: px.Namespace, Name: px.Name, Labels: px.Labels,
		Provider: px.Spec.Provider, Protocol: string(px.Spec.Protocol),
		Phase: string(px.Status.Phase), Host: px.Status.Host,
		Address: px.Status.Address, Port: int(px.Status.Port),
		ExitIP: px.Status.ExitIP, ExitIPShared: int(px.Status.ExitIPShared),
		LatencyMilliseconds: int(px.Status.LatencyMilliseconds),
		// From the moment of its deletion it is not handed out, whatever its
		// conditions still say.
		Ready:   px.DeletionTimestamp.IsZero() && apimeta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionReady),
		Created: px.CreationTimestamp.Time,
	}
	// Copies: what is shown outlives the look into the cache.
	if leaks := px.Status.Leaks; leaks != nil {
		w.Leaks = new(append([]string{}, *leaks...))
	}
	if passed := px.Status.ChecksPassedPercent; passed != nil {
		w.ChecksPassedPercent = new(int(*passed))
	}
	for _, c := range px.Status.Conditions {
		w.Conditions = append(w.Conditions, wire.Condition{
			Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message,
		})
	}
	return w
}
