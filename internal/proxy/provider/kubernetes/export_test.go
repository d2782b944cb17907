package kubernetes

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
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
