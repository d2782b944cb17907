package gcp

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// whatDisk is what a leftover of this provider is.
const whatDisk = "disk"

// leftoverForm is the id of one: the disk's name and its number, which Compute
// Engine gives no other disk.
var leftoverForm = regexp.MustCompile(`^(` + namePrefix + `[0-9a-f]+-[0-9a-f]+)~([1-9][0-9]{0,19})$`)

// Leftovers implements [provider.Cleaner]. A disk goes with its instance; what
// stays is one that a person detached, or kept when deleting the instance. It
// carries the labels that it was made with.
func (p *Provider) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	kept := map[string]bool{}
	for _, uid := range keep {
		kept[nameOf(provider.Owner{Installation: installation, UID: uid})] = true
	}
	zones := p.all()
	rows := make([]provider.HostLeftovers, len(zones))
	var wg sync.WaitGroup
	for i, z := range zones {
		wg.Go(func() {
			rows[i].Host = z.name
			disks, err := p.left(ctx, z, installation)
			rows[i].Err = p.named(ctx, z.name, p.listFault(err))
			for _, d := range disks {
				if !kept[d.Name] {
					rows[i].Leftovers = append(rows[i].Leftovers, provider.Leftover{Host: z.name, ID: leftoverID(d), What: whatDisk, Bytes: d.SizeGb * gib})
				}
			}
		})
	}
	wg.Wait()
	return rows, nil
}

func leftoverID(d *compute.Disk) string { return d.Name + "~" + strconv.FormatUint(d.Id, 10) }

// left are the installation's disks that no instance uses and no instance of
// the same name may be about to.
func (p *Provider) left(ctx context.Context, z *zone, installation string) ([]*compute.Disk, error) {
	// Disks first: one whose instance is made between the two lists is used by
	// then, or its instance is in the second.
	disks, err := p.api.listDisks(ctx, z.name, "labels."+labelInstallation+" = "+tagOf(installation))
	if err != nil {
		return nil, err
	}
	var out []*compute.Disk
	for _, d := range disks {
		if unused(d, installation) {
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	vms, err := p.api.listInstances(ctx, z.name, "name eq "+namePrefix+tagOf(installation)+"-.*")
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, vm := range vms {
		named[vm.Name] = true
	}
	free := out[:0]
	for _, d := range out {
		if !named[d.Name] {
			free = append(free, d)
		}
	}
	return free, nil
}

// unused reports whether a disk is the installation's, by label and name, and
// nothing uses it.
func unused(d *compute.Disk, installation string) bool {
	tag := tagOf(installation)
	return len(d.Users) == 0 && d.Labels[labelInstallation] == tag && nameForm.MatchString(d.Name) && d.Name[len(namePrefix):len(namePrefix)+tagLength] == tag
}

// RemoveLeftover implements [provider.Cleaner]. Its step is "gcp: remove
// leftover". Compute Engine itself refuses to remove a disk that is used.
func (p *Provider) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	z, err := p.place(l.Host)
	if err != nil {
		return err
	}
	m := leftoverForm.FindStringSubmatch(l.ID)
	if m == nil || !nameForm.MatchString(m[1]) {
		return fault.Errorf(fault.Invalid, "%q is no id of a leftover of a gcp provider", short(l.ID))
	}
	number, err := strconv.ParseUint(m[2], 10, 64)
	if err != nil {
		return fault.Errorf(fault.Invalid, "%q is no id of a leftover of a gcp provider", short(l.ID))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	unlock, err := p.working.lock(ctx, z.name+"/"+m[1])
	if err == nil {
		defer unlock()
		err = p.removeDisk(ctx, z, installation, m[1], number)
	}
	if fault.Of(err) == fault.NotFound {
		err = p.verified(ctx, z)
	}
	return p.named(ctx, z.name, err)
}

func (p *Provider) removeDisk(ctx context.Context, z *zone, installation, name string, number uint64) error {
	d, err := p.api.getDisk(ctx, z.name, name)
	switch {
	case err != nil:
		return err
	case d.Id != number:
		return nil // the one that was meant is gone
	case len(d.Users) > 0:
		return fault.Errorf(fault.Conflict, "disk %s is used by now", name)
	case !unused(d, installation):
		return fault.Errorf(fault.Denied, "disk %s is not of this installation", name)
	}
	if _, err := p.api.getInstance(ctx, z.name, name); fault.Of(err) != fault.NotFound {
		if err == nil {
			err = fault.Errorf(fault.Conflict, "there is an instance %s again", name)
		}
		return err
	}
	if err := provider.Step(ctx, "gcp: remove leftover"); err != nil {
		return err
	}
	op, err := p.api.deleteDisk(ctx, z.name, name)
	if err == nil {
		err = p.ended(ctx, z, op)
	}
	if err != nil && codeOf(err) == codeInUse {
		err = fault.Wrap(fault.Conflict, err)
	}
	if err != nil {
		return fmt.Errorf("removing disk %s: %w", name, err)
	}
	return nil
}
