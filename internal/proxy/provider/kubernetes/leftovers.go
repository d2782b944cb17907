package kubernetes

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

var podKind = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// What a leftover is, for people; with a slash it begins its id.
var leftoverKinds = map[string]schema.GroupVersionResource{"secret": secrets, "service": services}

// Leftovers implements [provider.Cleaner]: Secrets and Services without their
// Pod. They are left by an operator that was killed in Create or Delete, and by
// who removes a Pod by hand and frees its Proxy. An id has the object's own UID,
// since its name comes back.
//
// The parts are listed before the Pods: what has a Pod by then is none.
func (p *Provider) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	row := provider.HostLeftovers{Host: p.host}
	if row.Leftovers, row.Err = p.leftovers(ctx, installation, keep); row.Err != nil {
		row.Leftovers = nil
	}
	return []provider.HostLeftovers{row}, nil
}

func (p *Provider) leftovers(ctx context.Context, installation string, keep []string) ([]provider.Leftover, error) {
	ctx, cancel, err := p.bound(ctx, "look for leftovers")
	if err != nil {
		return nil, err
	}
	defer cancel()
	c, err := p.connected(ctx)
	if err != nil {
		return nil, err
	}
	parts := map[string][]metav1.PartialObjectMetadata{}
	for what, kind := range leftoverKinds {
		parts[what], err = p.listMeta(ctx, c, kind, installation)
		if err != nil && !p.unneeded(kind, err) {
			return nil, err
		}
	}
	pods, err := p.listMeta(ctx, c, podKind, installation)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for i := range pods {
		used[pods[i].Name] = true
	}
	kept := map[string]bool{}
	for _, uid := range keep {
		kept[uid] = true
	}
	var found []provider.Leftover
	for _, what := range slices.Sorted(maps.Keys(parts)) {
		for i := range parts[what] {
			m := &parts[what][i]
			o, says := ownerOf(m)
			if says == strange || kept[o.UID] || used[m.Name] {
				continue
			}
			found = append(found, provider.Leftover{Host: p.host, ID: what + "/" + m.Name + "/" + string(m.UID), What: what})
		}
	}
	slices.SortFunc(found, func(a, b provider.Leftover) int { return cmp.Compare(a.ID, b.ID) })
	return found, nil
}

// listMeta lists the metadata of an installation's objects of a kind.
func (p *Provider) listMeta(ctx context.Context, c *conn, kind schema.GroupVersionResource, installation string) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	o := metav1.ListOptions{LabelSelector: selectManaged + "," + labelInstallation + "=" + TagOf(installation), Limit: page}
	for range maxPages {
		l, err := c.meta.Resource(kind).Namespace(p.conf.namespace).List(ctx, o)
		if err != nil {
			return nil, p.failed("list "+kind.Resource, err)
		}
		all = append(all, l.Items...)
		if l.Continue == "" {
			return all, nil
		}
		o.Continue = l.Continue
	}
	return nil, fault.Errorf(fault.Permanent, "host %s: there are more than %d %s", p.host, page*maxPages, kind.Resource)
}

// parseLeftover reads the id of a leftover.
func parseLeftover(id string) (kind schema.GroupVersionResource, name, uid string, err error) {
	parts := strings.Split(id, "/")
	if len(parts) == 3 {
		kind, ok := leftoverKinds[parts[0]]
		if ok && podForm.MatchString(parts[1]) && parts[2] != "" {
			return kind, parts[1], parts[2], nil
		}
	}
	return kind, "", "", fault.Errorf(fault.Invalid, "%q is no id of a leftover of a kubernetes provider", short(line(id)))
}

// RemoveLeftover implements [provider.Cleaner], by one step, "kubernetes: clear".
// It removes the object in the version in which it was no part of an instance:
// a Create that begins meanwhile writes it anew.
func (p *Provider) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	if l.Host != p.host {
		return fault.Errorf(fault.Permanent, "host %q: provider %s has the host %q alone", short(l.Host), p.name, p.host)
	}
	kind, name, uid, err := parseLeftover(l.ID)
	if err != nil {
		return err
	}
	ctx, cancel, err := p.bound(ctx, "remove "+l.ID)
	if err != nil {
		return err
	}
	defer cancel()
	c, err := p.connected(ctx)
	if err != nil {
		return err
	}
	m, err := p.part(ctx, c, kind, name)
	if err != nil || m == nil || string(m.UID) != uid {
		return err
	}
	if _, says := ownerOf(m); says == strange || m.Labels[labelInstallation] != TagOf(installation) {
		return fault.Errorf(fault.Denied, "host %s: %s %s is of another installation: it was left alone", p.host, kind.Resource, name)
	}
	pod, err := p.part(ctx, c, podKind, name)
	if err != nil {
		return err
	}
	if pod != nil {
		return fault.Errorf(fault.Conflict, "host %s: %s %s stays: Pod %s uses it", p.host, kind.Resource, name, name)
	}
	if err := provider.Step(ctx, "kubernetes: clear"); err != nil {
		return err
	}
	if m.DeletionTimestamp == nil {
		if err := p.removePart(ctx, c, kind, m, m.ResourceVersion); err != nil || len(m.Finalizers) == 0 {
			return err
		}
	}
	// A finalizer may hold it: it is removed when it is gone.
	still, err := p.part(ctx, c, kind, name)
	switch {
	case err != nil || still == nil || still.UID != m.UID:
		return err
	case p.stuck(still):
		return p.held(kind, still)
	}
	return fault.Errorf(fault.Transient, "host %s: %s %s is being removed (finalizers: %s)", p.host, kind.Resource, name, holders(still))
}
