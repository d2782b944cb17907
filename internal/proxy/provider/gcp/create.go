package gcp

import (
	"context"
	"fmt"
	"maps"
	"strings"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// rounds bounds how often one call looks anew.
const rounds = 6

// Create implements [provider.Provider]. Its steps, as provider.Step names
// them: "gcp: insert" (the instance appears, with the owner's tag), "gcp: start"
// or "gcp: resume" for one that is off, and "gcp: remove old disk" where a disk
// of that name was left by an instance that is gone. An operation that takes
// longer than a moment is joined by the next call.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	pl, err := p.validate(spec)
	if err != nil {
		return provider.Instance{}, err
	}
	z, err := p.place(spec.Host)
	if err != nil {
		return provider.Instance{}, err
	}
	if err := ctx.Err(); err != nil {
		return provider.Instance{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	unlock, err := p.working.lock(ctx, z.name+"/"+pl.name)
	if err != nil {
		return provider.Instance{}, p.named(ctx, z.name, err)
	}
	defer unlock()
	in, err := p.create(ctx, z, pl)
	switch fault.Of(err) {
	case fault.Quota, fault.Invalid, fault.Permanent:
		z.release(pl.name) // nothing is made; other errors leave it open
	}
	if fault.Of(err) == fault.NotFound {
		// What vanished meanwhile is there again the next time, or is said; only
		// Get may say that a machine is not there.
		err = fault.Wrap(fault.Transient, err)
	}
	return in, p.named(ctx, z.name, discreet(err, spec.UserData))
}

func (p *Provider) create(ctx context.Context, z *zone, pl plan) (provider.Instance, error) {
	making := provider.Instance{ID: p.id(z, pl.name), Owner: pl.spec.Owner, Host: z.name, State: provider.Provisioning, Port: pl.port}
	taken, cleared := false, false
	for range rounds {
		f, over, failure, err := p.landing(ctx, z, pl.name)
		switch {
		case err != nil:
			return provider.Instance{}, err
		case !over && f.kind == deleting:
			making.State, making.Message = provider.Deleting, "its removal has begun"
			return making, nil
		case !over:
			making.Message = "Compute Engine is at it (" + f.kind + ")"
			return making, nil
		}
		switch {
		case failure == nil, f.kind == deleting:
		case codeOf(failure) == codeExists:
			taken = true // an instance that somebody else made, or a disk
		case f.kind == inserting:
			return provider.Instance{}, p.refuse(z, p.explain(pl, failure))
		case fault.Of(failure) != fault.NotFound:
			return provider.Instance{}, p.refuse(z, fmt.Errorf("starting %s: %w", pl.name, failure))
		}
		vm, err := p.api.getInstance(ctx, z.name, pl.name)
		if fault.Of(err) != fault.NotFound {
			if err != nil {
				return provider.Instance{}, err
			}
			again, in, err := p.further(ctx, z, pl, vm)
			if err != nil || !again {
				return in, err
			}
			continue
		}
		if taken {
			if cleared {
				return provider.Instance{}, fault.Errorf(fault.Permanent, "there is a disk %s that is not this Proxy's, or that something uses: rename or remove it there", pl.name)
			}
			wait, err := p.clearDisk(ctx, z, pl.spec.Owner, "gcp: remove old disk")
			if err != nil || wait {
				making.Message = "clearing away a disk that was left"
				return making, err
			}
			cleared = true
		}
		if err := p.admit(ctx, z, pl); err != nil {
			return provider.Instance{}, err
		}
		if err := provider.Step(ctx, "gcp: insert"); err != nil {
			return provider.Instance{}, err
		}
		op, err := p.api.insertInstance(ctx, z.name, p.machine(z, pl))
		switch {
		case fault.Of(err) == fault.Conflict:
			// Somebody else may be making it; then it shows in a moment, and the
			// words name the instance even before its operation is listed.
			named := strings.Contains(err.Error(), "/instances/"+pl.name)
			making.Message = "another call is making it"
			if vm, err := p.api.getInstance(ctx, z.name, pl.name); err == nil {
				_, in, err := p.further(ctx, z, pl, vm)
				return in, err
			}
			if op, err := p.underWay(ctx, z, pl.name); err != nil || op != nil || named {
				return making, err
			}
			taken = true // nobody is: what is in the way is a disk of that name
			continue
		case err != nil:
			return provider.Instance{}, p.refuse(z, p.explain(pl, err))
		}
		failure = p.began(z, pl.name, op, inserting)
		if taken = codeOf(failure) == codeExists; failure != nil && !taken {
			return provider.Instance{}, p.refuse(z, p.explain(pl, failure))
		}
	}
	making.Message = "it is being made"
	return making, nil
}

// further starts an instance that is off; again is true when there is something
// to wait for.
func (p *Provider) further(ctx context.Context, z *zone, pl plan, vm *compute.Instance) (again bool, in provider.Instance, err error) {
	in = p.instance(z, vm)
	if in.State != provider.Stopped {
		return false, in, nil
	}
	step, begin := "gcp: start", p.api.startInstance
	switch vm.Status {
	case "TERMINATED", "STOPPED":
	case "SUSPENDED":
		step, begin = "gcp: resume", p.api.resumeInstance
	default:
		return false, in, nil // on its way there; starting is refused until it has arrived
	}
	if err := provider.Step(ctx, step); err != nil {
		return false, in, err
	}
	op, err := begin(ctx, z.name, pl.name)
	if err != nil {
		return false, in, p.refuse(z, fmt.Errorf("starting %s: %w", pl.name, err))
	}
	if failure := p.began(z, pl.name, op, starting); failure != nil {
		return false, in, p.refuse(z, fmt.Errorf("starting %s: %w", pl.name, failure))
	}
	return true, in, nil
}

// machine is what is asked for.
func (p *Provider) machine(z *zone, pl plan) *compute.Instance {
	labels := labelsOf(pl.spec.Owner)
	maps.Copy(labels, p.conf.Labels)
	nic := &compute.NetworkInterface{Network: p.conf.Network, Subnetwork: p.conf.Subnetwork}
	if p.conf.Address == "external" {
		nic.AccessConfigs = []*compute.AccessConfig{{Name: "External NAT", Type: "ONE_TO_ONE_NAT"}}
	}
	in := &compute.Instance{
		Name: pl.name, Description: describe(pl.spec.Owner, pl.port), Labels: labels,
		MachineType: "zones/" + z.name + "/machineTypes/" + pl.machine,
		Disks: []*compute.AttachedDisk{{
			Boot: true, AutoDelete: true,
			InitializeParams: &compute.AttachedDiskInitializeParams{
				DiskName: pl.name, SourceImage: pl.image, DiskSizeGb: pl.diskGiB, Labels: labels,
				DiskType: "zones/" + z.name + "/diskTypes/" + p.conf.Disk.Type,
			},
		}},
		NetworkInterfaces: []*compute.NetworkInterface{nic},
	}
	if len(pl.items) > 0 {
		in.Metadata = &compute.Metadata{Items: pl.items}
	}
	if len(p.conf.Tags) > 0 {
		in.Tags = &compute.Tags{Items: p.conf.Tags}
	}
	if a := p.conf.ServiceAccount; a.Email != "" {
		in.ServiceAccounts = []*compute.ServiceAccount{{Email: a.Email, Scopes: a.Scopes}}
	}
	if p.conf.Spot {
		// Stopped and not deleted when it is taken back: what was made is started
		// again, under the same name.
		off := false
		in.Scheduling = &compute.Scheduling{ProvisioningModel: "SPOT", InstanceTerminationAction: "STOP", AutomaticRestart: &off, OnHostMaintenance: "TERMINATE"}
	}
	return in
}

// explain adds to a refusal which field it is about, and gives what was not
// found its class: it is not the instance.
func (p *Provider) explain(pl plan, err error) error {
	class := fault.Of(err)
	if class != fault.NotFound && class != fault.Permanent {
		return err
	}
	text := err.Error()
	has := func(parts ...string) bool {
		for _, part := range parts {
			if part != "" && strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	switch {
	case codeOf(err) == "forbidden", codeOf(err) == reasonDisabled, codeOf(err) == reasonBilling, codeOf(err) == reasonPolicy:
		return err
	case has(p.conf.ServiceAccount.Email):
		return fault.Errorf(fault.Permanent, "gcp.serviceAccount.email: %w: check that it exists, and grant the operator roles/iam.serviceAccountUser on it", err)
	case has("sourceImage", pl.image, "/images/"):
		class = fault.Permanent
		if pl.imageField == "placement.image" {
			class = fault.Invalid
		}
		return fault.Errorf(class, "%s %q: %w: check its name, and that the operator may read it (compute.images.useReadOnly)", pl.imageField, short(pl.image), err)
	case has("machineType", "Machine type"):
		return fault.Errorf(fault.Permanent, "machine type %q: %w: set another one in gcp.machineType or gcp.machineTypes", pl.machine, err)
	case has("diskSizeGb", "disk size"):
		if pl.spec.Resources.DiskBytes > 0 {
			return fault.Errorf(fault.Invalid, "resources.disk: %w: ask for more, or leave it out", err)
		}
		return fault.Errorf(fault.Permanent, "gcp.disk.sizeGiB: %w", err)
	case has("diskType"):
		return fault.Errorf(fault.Permanent, "gcp.disk.type %q: %w", p.conf.Disk.Type, err)
	case has("ubnetwork"):
		return fault.Errorf(fault.Permanent, "gcp.subnetwork %q: %w", p.conf.Subnetwork, err)
	case has("networkInterfaces", "/networks/"):
		return fault.Errorf(fault.Permanent, "gcp.network %q: %w", p.conf.Network, err)
	case class == fault.NotFound:
		return fault.Errorf(fault.Permanent, "project %s: %w: check gcp.project", p.conf.Project, err)
	}
	return err
}
