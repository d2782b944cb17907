package kubernetes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"fleetdesk/internal/core/fault"
)

// HeardPod waits until the provider's watch knows the Pod in that version or a
// later one, or, for an empty version, that none of that UID is there.
func (p *Provider) HeardPod(ctx context.Context, name string, uid types.UID, version string) error {
	p.follow()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		p.pods.mu.Lock()
		obj := p.pods.objects[name]
		gone := obj == nil || obj.GetUID() != uid
		there := obj != nil && (obj.GetResourceVersion() == version || newer(obj, version))
		p.pods.mu.Unlock()
		if version == "" && gone || version != "" && there {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

var (
	SquidConf       = squidConf
	ParseKubeconfig = parseKubeconfig
	SquidCommand    = squidCommand
)

const ProbeScript = probeScript

// Judge is what an error of the API server means to this provider.
func (p *Provider) Judge(err error) (class fault.Class, reason string) {
	v := p.judge(err)
	return v.class, v.reason
}

// Failed is the error that a caller sees.
func (p *Provider) Failed(doing string, err error) error { return p.failed(doing, err) }

// Right is one verb on one kind of object.
type Right struct{ Verb, Group, Resource string }

// Rights are all that a provider needs.
func Rights() []Right {
	var out []Right
	for _, r := range rights(true) {
		out = append(out, Right{r.verb, r.group, r.resource})
	}
	return out
}

// Restore has the provider believe that it has seen a Pod, of that object, which
// a cluster that went back to a copy of its data does not have.
func (p *Provider) Restore(lost *corev1.Pod) {
	p.pods.event(watch.Added, lost)
}

// Known is whether the provider's list has a Pod of that name.
func (p *Provider) Known(name string) bool { return p.pods.uid(name) != "" }

// Meet has the provider have met a namespace of that UID first; it returns the
// one that it had.
func (p *Provider) Meet(uid types.UID) types.UID {
	p.home.mu.Lock()
	defer p.home.mu.Unlock()
	was := p.home.uid
	p.home.uid = uid
	return was
}
