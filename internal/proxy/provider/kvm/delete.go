package kvm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Delete implements [provider.Provider]. Its steps: "kvm: mark" (the stage
// becomes deleting), "kvm: destroy", "kvm: remove overlay", "kvm: remove seed"
// and "kvm: undefine". The definition goes last: as long as anything is left,
// there is a domain that shows whose it is. Only a domain whose metadata names
// the owner is touched, and only volumes with names derived from that owner.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	t, abandoned, err := p.remains(ref)
	if err != nil {
		return "", err
	}
	if abandoned != "" {
		p.log.Warn("kvm: an instance is left as it is, since its host is not in the configuration", "provider", p.name,
			"host", abandoned, "instance", ref.ID, "proxy", ref.Owner.Namespace+"/"+ref.Owner.Name, "uid", ref.Owner.UID)
		return provider.Abandoned, nil
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	errs, found := make([]error, len(t.hosts)), make([]bool, len(t.hosts))
	var wg sync.WaitGroup
	for i, h := range t.hosts {
		wg.Go(func() {
			unlock, err := p.working.lock(ctx, h.name+"/"+t.own)
			if err != nil {
				errs[i] = p.named(ctx, h, err)
				return
			}
			defer unlock()
			errs[i] = p.on(ctx, h, func(ctx context.Context, c virt.Conn) error {
				h.fresh(p.links.Generation(h.name))
				var err error
				found[i], err = p.remove(ctx, c, h, t, ref.Owner)
				return err
			})
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return "", err
		}
	}
	if slices.Contains(found, true) {
		return provider.Gone, nil
	}
	// Nothing was where it should be. Where an address in the configuration was
	// put by mistake it may run on another host, and nobody would see it.
	if h := p.elsewhere(ctx, t); h != nil {
		err := p.on(ctx, h, func(ctx context.Context, c virt.Conn) error {
			_, err := p.remove(ctx, c, h, t, ref.Owner)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return provider.Gone, nil
}

// remains reads a ref for Delete. UUIDs are derived from owners, so the owner
// alone says which domain is meant; an id only says where it was made. A host
// that is not configured is named as abandoned.
func (p *Provider) remains(ref provider.Ref) (t target, abandoned string, err error) {
	if err := validOwner(ref.Owner); err != nil {
		return t, "", err
	}
	t.own = domain.UUIDOf(ref.Owner)
	var places []string
	if ref.Host != "" {
		places = append(places, ref.Host)
	}
	if id, err := p.parse(ref.ID); err == nil {
		if _, ok := p.hosts[id.Host]; !ok {
			return t, id.Host, nil
		}
		if id.UUID == t.own && id.Host != ref.Host {
			places = append(places, id.Host)
		}
	}
	for _, name := range places {
		h, ok := p.hosts[name]
		if !ok {
			return t, name, nil
		}
		t.hosts = append(t.hosts, h)
	}
	if len(t.hosts) == 0 {
		t.hosts = p.all()
	}
	return t, "", nil
}

// remove removes what a host has of the owner, and reports whether there was a
// domain.
func (p *Provider) remove(ctx context.Context, c virt.Conn, h *host, t target, owner provider.Owner) (found bool, err error) {
	v, err := p.look(ctx, c, h, t.uuids(), owner)
	if err != nil {
		return false, err
	}
	if v.torn != nil {
		return true, v.torn
	}
	var failed error
	if !v.absent {
		if err := p.quiet(ctx, c, h, &v); err != nil {
			// Its disks are in use: nothing further can be done safely.
			return true, err
		}
	}
	for _, name := range pools(v.mark.Pool, h.conf.Pool) {
		failed = cmp.Or(failed, p.sweep(ctx, c, h, name, owner))
	}
	if failed != nil || v.absent {
		return false, failed
	}
	if err := provider.Step(ctx, "kvm: undefine"); err != nil {
		return true, err
	}
	if err := undefine(ctx, c, v.domain); err != nil {
		return true, fmt.Errorf("undefining domain %s: %w", v.domain.Name, err)
	}
	h.forget(v.domain.UUID)
	return true, nil
}

// pools are the pools in which an instance may have volumes: the one that it
// was made in, and the one of the configuration, which may be another by now.
func pools(made, configured string) []string {
	if made == "" || made == configured {
		return []string{configured}
	}
	return []string{made, configured}
}

// sweep removes an owner's volumes from one pool; both are tried.
func (p *Provider) sweep(ctx context.Context, c virt.Conn, h *host, poolName string, owner provider.Owner) error {
	pool, err := h.remaining(ctx, c, poolName)
	if err != nil || pool == nil {
		return err
	}
	names := domain.NamesOf(owner)
	// Both are tried before the first error is said.
	return cmp.Or(
		p.drop(ctx, c, h, *pool, names.Overlay, "kvm: remove overlay"),
		p.drop(ctx, c, h, *pool, names.Seed, "kvm: remove seed"))
}

// remaining is the pool that volumes may be left in; nil when it is there no
// more, which is as good as empty. One that is not running is an error, since
// its volumes are still there.
func (h *host) remaining(ctx context.Context, c virt.Conn, name string) (*virt.Pool, error) {
	found, err := c.StoragePoolLookupByName(ctx, name)
	if fault.Of(err) == fault.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := c.StoragePoolGetInfo(ctx, found)
	if err != nil {
		return nil, err
	}
	if info.State != virt.PoolRunning && info.State != virt.PoolDegraded {
		return nil, refuse(ReasonPoolInactive, fault.Transient,
			"host %s: pool %q is not running, so its volumes cannot be removed: start it there with virsh pool-start %s", h.name, name, name)
	}
	return &found, nil
}

// quiet marks a domain as going and ends it.
func (p *Provider) quiet(ctx context.Context, c virt.Conn, h *host, v *view) error {
	if v.mark.Stage != domain.Deleting {
		if err := provider.Step(ctx, "kvm: mark"); err != nil {
			return err
		}
		v.mark.Stage = domain.Deleting
		text, err := v.mark.Element()
		if err == nil {
			err = c.DomainSetMetadata(ctx, v.domain, text)
		}
		// A domain that was undefined while it ran has no definition to be
		// marked, and goes with its end.
		if err != nil && !virt.Is(err, virt.CodeOperationInvalid) {
			return fmt.Errorf("marking domain %s as going: %w", v.domain.Name, err)
		}
		h.forgetMark(v.domain.UUID)
	}
	state, _, err := c.DomainGetState(ctx, v.domain)
	switch {
	case isGone(err):
		return nil
	case err != nil || state == virt.StateShutoff:
		return err
	}
	if err := provider.Step(ctx, "kvm: destroy"); err != nil {
		return err
	}
	err = c.DomainDestroy(ctx, v.domain)
	if isGone(err) {
		return nil
	}
	if virt.Is(err, virt.CodeOperationInvalid) {
		// It stopped by itself; if not, the next try says so.
		state, _, err = c.DomainGetState(ctx, v.domain)
		if err == nil && state != virt.StateShutoff {
			err = fault.Errorf(fault.Transient, "host %s: domain %s neither runs nor is stopped", h.name, v.domain.Name)
		}
	}
	if err != nil {
		return fmt.Errorf("ending domain %s: %w", v.domain.Name, err)
	}
	return nil
}

func (p *Provider) drop(ctx context.Context, c virt.Conn, h *host, pool virt.Pool, name, step string) error {
	if err := provider.Step(ctx, step); err != nil {
		return err
	}
	if err := h.remove(ctx, c, pool, name); err != nil {
		return fmt.Errorf("removing volume %s: %w", name, err)
	}
	return nil
}

// undefinings are the flags to try, from what new daemons know to what all do:
// a daemon refuses all flags for one that it does not know.
var undefinings = []virt.UndefineFlags{
	virt.UndefineManagedSave | virt.UndefineSnapshotsMetadata | virt.UndefineNVRAM | virt.UndefineCheckpointsMetadata | virt.UndefineTPM,
	virt.UndefineManagedSave | virt.UndefineSnapshotsMetadata | virt.UndefineNVRAM | virt.UndefineCheckpointsMetadata,
	virt.UndefineManagedSave | virt.UndefineSnapshotsMetadata | virt.UndefineNVRAM,
}

// undefine removes a domain's definition with all that libvirt keeps beside
// it. One that is gone is success.
func undefine(ctx context.Context, c virt.Conn, d virt.Domain) error {
	var err error
	for _, flags := range undefinings {
		err = c.DomainUndefineFlags(ctx, d, flags)
		if err == nil || fault.Of(err) == fault.NotFound {
			return nil
		}
		if !virt.Is(err, virt.CodeInvalidArg) && !virt.Is(err, virt.CodeNoSupport) {
			return err
		}
	}
	return err
}
