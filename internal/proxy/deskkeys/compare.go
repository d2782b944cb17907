package deskkeys

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// compare reads all managed rows and has everything looked at: what is in the
// database, and what is in the cache. Rows whose Proxy is gone go that way.
// Nobody but this goroutine writes them meanwhile.
func (k *Keeper) compare(ctx context.Context) error {
	pools, err := k.readPools(ctx)
	if err != nil {
		return err
	}
	rows := map[types.NamespacedName]*row{}
	for name := range pools {
		// Every key of ours is in the pool default of its namespace.
		if poolObject(name).Name == v1alpha1.DefaultPool {
			if err := k.readKeys(ctx, name, rows); err != nil {
				return err
			}
		}
	}
	var proxies v1alpha1.ProxyList
	var objects v1alpha1.ProxyPoolList
	for _, list := range []client.ObjectList{&proxies, &objects} {
		if err := k.o.Cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fault.Errorf(fault.Unavailable, "objects cannot be listed: %w", err)
		}
	}

	k.mu.Lock()
	defer k.mu.Unlock()
	for name, r := range k.rows {
		r.stored = digest{}
		if _, kept := rows[name]; !kept && r.gone {
			delete(k.rows, name)
		}
	}
	for name, found := range rows {
		if r := k.rows[name]; r != nil {
			r.stored, r.uid = found.stored, found.uid
		} else {
			k.rows[name] = found
		}
		k.dirty[name] = struct{}{}
	}
	for namespace, all := range k.pools {
		for _, p := range all {
			p.stored, p.refused = lease.Pool{}, nil
		}
		k.spaces[namespace] = struct{}{}
	}
	for name, stored := range pools {
		namespace := poolObject(name).Namespace
		k.pool(namespace, name).stored = stored
		k.spaces[namespace] = struct{}{}
	}
	for i := range proxies.Items {
		k.dirty[client.ObjectKeyFromObject(&proxies.Items[i])] = struct{}{}
	}
	for i := range objects.Items {
		k.spaces[objects.Items[i].Namespace] = struct{}{}
	}
	k.metrics.compared.Inc()
	return nil
}

// readPools reads the settings of all managed pools, by name.
func (k *Keeper) readPools(ctx context.Context) (map[string]lease.Pool, error) {
	all := map[string]lease.Pool{}
	for after := ""; ; {
		page, err := bounded(ctx, func(ctx context.Context) ([]lease.PoolStatus, error) {
			return k.o.Desk.Pools(ctx, after, pageSize)
		})
		if err != nil || len(page) == 0 {
			return all, err
		}
		for i := range page {
			if after = page[i].Name; page[i].Kind == lease.Managed {
				all[after] = settings(page[i].Pool)
			}
		}
	}
}

// readKeys reads the rows of a pool that a controller wrote.
func (k *Keeper) readKeys(ctx context.Context, pool string, into map[types.NamespacedName]*row) error {
	for after := ""; ; {
		page, err := bounded(ctx, func(ctx context.Context) (lease.Keys, error) {
			return k.o.Desk.Keys(ctx, pool, after, pageSize)
		})
		if err != nil || len(page.Keys) == 0 {
			return err
		}
		for i := range page.Keys {
			key := &page.Keys[i]
			after = key.Name
			if namespace, name, ok := Parts(key.Name); ok && key.Managed {
				into[types.NamespacedName{Namespace: namespace, Name: name}] = &row{uid: key.UID, gone: true, stored: digestOfRow(key)}
			}
		}
	}
}

// bounded calls with a deadline.
func bounded[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(ctx)
}
