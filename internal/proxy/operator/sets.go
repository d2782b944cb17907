package operator

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/controller/proxyset"
)

// keepSets wires the controller of ProxySets into the manager.
func keepSets(ctx context.Context, mgr manager.Manager, desk *desk, o Options, metrics prometheus.Registerer) error {
	sets, err := proxyset.New(proxyset.Options{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(),
		Bans: desk.leases.Bans, Holds: desk.held,
		Events: mgr.GetEventRecorder("proxy-operator"), Metrics: metrics, Log: o.Log.With("part", "sets"),
	})
	if err != nil {
		return err
	}
	if err := proxyset.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := sets.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the ProxySet controller: %w", err)
	}
	return nil
}

// held tells which of the keys somebody holds. A key that the desk does not know
// is held by nobody. It costs one read for each.
func (d *desk) held(ctx context.Context, keys []string) (map[string]bool, error) {
	held := map[string]bool{}
	for _, name := range keys {
		switch found, err := d.leases.Key(ctx, name); {
		case fault.Of(err) == fault.NotFound:
		case err != nil:
			return nil, err
		case len(found.Keys) == 1:
			held[name] = found.Keys[0].Held(found.Now)
		}
	}
	return held, nil
}
