package gcp

import (
	"context"
	"slices"
	"sync"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Delete implements [provider.Provider]. Its steps: "gcp: delete" (the instance
// goes, and its disk with it) and "gcp: remove disk" for one that stayed. Only
// what carries the owner's tag is touched. While Compute Engine stops or removes
// the instance it is waited for, and not asked again.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	zones, abandoned, err := p.remains(ref)
	if err != nil {
		return "", err
	}
	if abandoned != "" {
		p.log.Warn("gcp: an instance is left as it is, since its zone is not in the configuration", "provider", p.name,
			"host", abandoned, "instance", ref.ID, "proxy", ref.Owner.Namespace+"/"+ref.Owner.Name, "uid", ref.Owner.UID)
		return provider.Abandoned, nil
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	states, errs := make([]provider.State, len(zones)), make([]error, len(zones))
	var wg sync.WaitGroup
	for i, z := range zones {
		wg.Go(func() {
			unlock, err := p.working.lock(ctx, z.name+"/"+nameOf(ref.Owner))
			if err == nil {
				defer unlock()
				states[i], err = p.remove(ctx, z, ref.Owner)
			}
			errs[i] = p.named(ctx, z.name, err)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return "", err
		}
	}
	if slices.Contains(states, provider.Deleting) {
		return provider.Deleting, nil
	}
	return provider.Gone, nil
}

// remains reads a ref for Delete. Names are derived from owners, so the owner
// alone says which instance is meant; an id only says where it was made. A zone
// or project that is not configured is named as abandoned.
func (p *Provider) remains(ref provider.Ref) (zones []*zone, abandoned string, err error) {
	if err := validOwner(ref.Owner); err != nil {
		return nil, "", err
	}
	var places []string
	if ref.Host != "" {
		places = append(places, ref.Host)
	}
	if id, err := ParseID(ref.ID); err == nil && id.Provider == p.name {
		if _, ok := p.zones[id.Zone]; !ok || id.Project != p.conf.Project {
			return nil, id.Project + "/" + id.Zone, nil
		}
		if id.Name == nameOf(ref.Owner) && id.Zone != ref.Host {
			places = append(places, id.Zone)
		}
	}
	for _, name := range places {
		z, ok := p.zones[name]
		if !ok {
			return nil, name, nil
		}
		zones = append(zones, z)
	}
	if len(zones) == 0 {
		zones = p.all()
	}
	return zones, "", nil
}

// remove removes what a zone has of the owner.
func (p *Provider) remove(ctx context.Context, z *zone, owner provider.Owner) (provider.State, error) {
	name := nameOf(owner)
	for range rounds {
		f, over, failure, err := p.landing(ctx, z, name)
		switch {
		case err != nil:
			return "", err
		case !over:
			return provider.Deleting, nil
		case failure != nil && f.kind == deleting && fault.Of(failure) != fault.NotFound:
			return "", failure
		}
		vm, err := p.api.getInstance(ctx, z.name, name)
		if fault.Of(err) == fault.NotFound {
			return p.cleared(ctx, z, owner)
		}
		if err != nil {
			return "", err
		}
		// With its name and without the rest it may be anybody's.
		if _, _, err := read(vm); err != nil {
			return "", p.torn(vm, err)
		}
		switch vm.Status {
		case "STOPPING", "DEPROVISIONING", "SUSPENDING", "STAGING", "PROVISIONING", "REPAIRING":
			// Somebody is at it. A delete of what is being deleted is refused; what
			// goes on is joined, and looked at anew when it has ended.
			op, err := p.underWay(ctx, z, name)
			if err != nil {
				return "", err
			}
			if op != nil {
				p.fly(z, name, op, kindOf(op))
				continue
			}
			if vm.Status == "STOPPING" || vm.Status == "DEPROVISIONING" {
				return provider.Deleting, nil // by itself: pre-emption, or the guest
			}
		}
		if err := provider.Step(ctx, "gcp: delete"); err != nil {
			return "", err
		}
		op, err := p.api.deleteInstance(ctx, z.name, name)
		switch {
		case fault.Of(err) == fault.NotFound:
			continue
		case codeOf(err) == reasonNotReady:
			return provider.Deleting, nil
		case err != nil:
			return "", err
		}
		if failure := p.began(z, name, op, deleting); failure != nil && fault.Of(failure) != fault.NotFound {
			return "", failure
		}
	}
	return provider.Deleting, nil
}

// kindOf is an operation's kind; what is neither making nor removing counts as a
// start.
func kindOf(op *compute.Operation) string {
	if op.OperationType == inserting || op.OperationType == deleting {
		return op.OperationType
	}
	return starting
}

// cleared answers Gone when no instance is being made by somebody and no disk is
// left.
func (p *Provider) cleared(ctx context.Context, z *zone, owner provider.Owner) (provider.State, error) {
	if err := p.certain(ctx, z); err != nil {
		return "", err
	}
	name := nameOf(owner)
	op, err := p.underWay(ctx, z, name)
	if err != nil {
		return "", err
	}
	if op != nil {
		p.fly(z, name, op, kindOf(op))
		return provider.Deleting, nil
	}
	wait, err := p.clearDisk(ctx, z, owner, "gcp: remove disk")
	if err != nil {
		return "", err
	}
	if wait {
		return provider.Deleting, nil
	}
	z.release(name)
	return provider.Gone, nil
}

// clearDisk removes the owner's disk when nothing uses it; wait is true while
// that goes on. A disk that a person attached elsewhere is theirs by now.
func (p *Provider) clearDisk(ctx context.Context, z *zone, owner provider.Owner, step string) (wait bool, err error) {
	name := nameOf(owner)
	key := "disk " + name
	_, over, failure, err := p.landing(ctx, z, key)
	switch {
	case err != nil || !over:
		return true, err
	case failure != nil && fault.Of(failure) != fault.NotFound:
		return true, failure
	}
	d, err := p.api.getDisk(ctx, z.name, name)
	switch {
	case fault.Of(err) == fault.NotFound:
		return false, nil
	case err != nil:
		return true, err
	case !labelled(d.Labels, owner):
		return false, nil // somebody else's, or let go of by a person
	case len(d.Users) > 0:
		return false, nil
	}
	if err := provider.Step(ctx, step); err != nil {
		return true, err
	}
	op, err := p.api.deleteDisk(ctx, z.name, name)
	if fault.Of(err) == fault.NotFound {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if failure := p.began(z, key, op, deleting); failure != nil {
		return true, failure
	}
	_, over, failure, err = p.landing(ctx, z, key)
	if err == nil {
		err = failure
	}
	return !over, err
}

func labelled(labels map[string]string, owner provider.Owner) bool {
	for k, v := range labelsOf(owner) {
		if labels[k] != v {
			return false
		}
	}
	return true
}
