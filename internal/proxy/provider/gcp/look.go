package gcp

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Get implements [provider.Provider]: it reads the instance from Compute Engine
// itself. What is not there is NotFound only when its zone is, and when nobody
// is making it.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	zones, name, err := p.find(ref)
	if err != nil {
		return provider.Instance{}, err
	}
	if err := ctx.Err(); err != nil {
		return provider.Instance{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	ins, errs := make([]provider.Instance, len(zones)), make([]error, len(zones))
	var wg sync.WaitGroup
	for i, z := range zones {
		wg.Go(func() {
			var err error
			ins[i], err = p.get(ctx, z, name, ref.Owner)
			errs[i] = p.named(ctx, z.name, err)
		})
	}
	wg.Wait()
	var silent error
	for i, err := range errs {
		if err == nil {
			return ins[i], nil
		}
		if fault.Of(err) != fault.NotFound {
			silent = cmp.Or(silent, err)
		}
	}
	if silent != nil {
		return provider.Instance{}, silent
	}
	return provider.Instance{}, errs[0]
}

// find reads a ref for Get: an id that is none of ours is an error.
func (p *Provider) find(ref provider.Ref) (zones []*zone, name string, err error) {
	if ref.ID == "" {
		if err := validOwner(ref.Owner); err != nil {
			return nil, "", err
		}
		zones, err := p.where(ref.Host)
		return zones, nameOf(ref.Owner), err
	}
	id, err := p.parse(ref.ID)
	if err != nil {
		return nil, "", err
	}
	if ref.Host != "" && ref.Host != id.Zone {
		return nil, "", fault.Errorf(fault.Permanent, "providerID %q is in zone %s and the Proxy's host is %q: they must be the same", ref.ID, id.Zone, short(ref.Host))
	}
	zones, err = p.where(id.Zone)
	return zones, id.Name, err
}

func (p *Provider) get(ctx context.Context, z *zone, name string, owner provider.Owner) (provider.Instance, error) {
	vm, err := p.api.getInstance(ctx, z.name, name)
	if err == nil {
		if owner.UID != "" {
			if err := p.owned(vm, owner); err != nil {
				return provider.Instance{}, err
			}
		}
		return p.instance(z, vm), nil
	}
	if fault.Of(err) != fault.NotFound {
		return provider.Instance{}, err
	}
	if err := p.certain(ctx, z); err != nil {
		return provider.Instance{}, err
	}
	op, err := p.underWay(ctx, z, name)
	switch {
	case err != nil:
		return provider.Instance{}, err
	case op == nil || op.OperationType != inserting:
		return provider.Instance{}, fault.Errorf(fault.NotFound, "project %s has no instance %s there", p.conf.Project, name)
	case nameOf(owner) != name:
		return provider.Instance{}, fault.Errorf(fault.Transient, "instance %s is being made", name)
	}
	return provider.Instance{ID: p.id(z, name), Owner: owner, Host: z.name, State: provider.Provisioning, Message: "Compute Engine has begun to make it"}, nil
}

// owned returns Conflict for an instance, found by its id, that is another
// owner's. By an owner's name it is that owner's, or does not say whose it is.
func (p *Provider) owned(vm *compute.Instance, owner provider.Owner) error {
	o, _, err := read(vm)
	if err != nil || o.UID == owner.UID && o.Installation == owner.Installation {
		return nil //nolint:nilerr // what cannot be read is shown as that
	}
	return fault.Errorf(fault.Conflict, "instance %s belongs to Proxy %s/%s with UID %s of installation %s, and is left alone", vm.Name, short(o.Namespace), short(o.Name), short(o.UID), short(o.Installation))
}

// torn is the error of an instance that does not say whose it is.
func (p *Provider) torn(vm *compute.Instance, why error) error {
	return fault.Errorf(fault.Permanent, "whose instance %s is cannot be told, since %w: put back what it was (Cloud Audit Logs show who changed it), or delete it with gcloud compute instances delete", vm.Name, why)
}

// instance is what the contract wants to know of one.
func (p *Provider) instance(z *zone, vm *compute.Instance) provider.Instance {
	in := provider.Instance{ID: p.id(z, vm.Name), Host: z.name, State: provider.Unknown, Created: created(vm)}
	owner, port, err := read(vm)
	if err != nil {
		in.Created = created(vm)
		in.Message = p.torn(vm, err).Error()
		return in
	}
	in.Owner, in.Port = owner, port
	in.State, in.Message = stateOf(vm)
	if in.State != provider.Running {
		return in
	}
	if in.Address = p.addressOf(vm); in.Address == "" {
		in.State, in.Message = provider.Provisioning, "it runs and has no address yet"
	}
	return in
}

// addressOf is where the proxy is reached. What was made without an external
// address has an internal one alone.
func (p *Provider) addressOf(vm *compute.Instance) string {
	if len(vm.NetworkInterfaces) == 0 {
		return ""
	}
	nic := vm.NetworkInterfaces[0]
	if p.conf.Address == "external" && len(nic.AccessConfigs) > 0 {
		return nic.AccessConfigs[0].NatIP
	}
	return nic.NetworkIP
}

// stateOf is what a status of Compute Engine means here; docs/gcp-provider.md
// has the table.
func stateOf(vm *compute.Instance) (provider.State, string) {
	switch vm.Status {
	case "PENDING", "PROVISIONING":
		return provider.Provisioning, "Compute Engine looks for a place for it"
	case "STAGING":
		return provider.Provisioning, "Compute Engine prepares it"
	case "RUNNING":
		return provider.Running, ""
	case "PENDING_STOP":
		return provider.Stopped, "it is about to be stopped, and is started again when it has"
	case "STOPPING", "DEPROVISIONING":
		return provider.Stopped, "it is being stopped or removed; when it has stopped it is started again"
	case "STOPPED", "TERMINATED":
		if vm.Scheduling != nil && vm.Scheduling.ProvisioningModel == "SPOT" {
			return provider.Stopped, "it is off: Compute Engine took it back (Spot), or somebody stopped it"
		}
		return provider.Stopped, "it is off"
	case "SUSPENDING":
		return provider.Stopped, "it is being suspended; when it has been it is resumed"
	case "SUSPENDED":
		return provider.Stopped, "it is suspended"
	case "REPAIRING":
		return provider.Impaired, "Compute Engine repairs it after a fault of its host: nothing can be done meanwhile"
	}
	return provider.Unknown, fmt.Sprintf("its status %q is none that is known", short(vm.Status))
}

// ListByTag implements [provider.Provider]. A zone costs one call for each 500
// instances of the installation. They are found by their names, which nobody can
// change; what their labels or description do not confirm is Unknown.
func (p *Provider) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	zones := p.all()
	rows := make([]provider.HostList, len(zones))
	var wg sync.WaitGroup
	for i, z := range zones {
		wg.Go(func() {
			rows[i].Host = z.name
			vms, err := p.api.listInstances(ctx, z.name, "name eq "+namePrefix+tagOf(installation)+"-.*")
			rows[i].Err = p.named(ctx, z.name, p.listFault(err))
			if err != nil {
				return
			}
			for _, vm := range vms {
				if nameForm.MatchString(vm.Name) {
					rows[i].Instances = append(rows[i].Instances, p.instance(z, vm))
				}
			}
		})
	}
	wg.Wait()
	return rows, nil
}

// listFault gives a list that was not found its class: a project or zone that is
// not there is for a person to mend.
func (p *Provider) listFault(err error) error {
	if fault.Of(err) == fault.NotFound {
		return fault.Errorf(fault.Permanent, "project %s: %w: check gcp.project and gcp.zones", p.conf.Project, err)
	}
	return err
}
