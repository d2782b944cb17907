package kvm

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/seed"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Create implements [provider.Provider]. Its steps, as provider.Step names
// them: "kvm: define" (the domain appears, with the owner's tag and the stage
// making), "kvm: overlay", "kvm: seed", "kvm: seal" (the stage becomes made, and
// the disks are those that were really made), "kvm: start" and "kvm: note"
// (the address is kept in the metadata). An image that the host does not have
// is uploaded by a job between the first two; Create answers Provisioning
// until it has ended.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	pl, err := p.validate(spec)
	if err != nil {
		return provider.Instance{}, err
	}
	h, err := p.place(spec.Host)
	if err != nil {
		return provider.Instance{}, err
	}
	if err := ctx.Err(); err != nil {
		return provider.Instance{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	unlock, err := p.working.lock(ctx, h.name+"/"+pl.uuid)
	if err != nil {
		return provider.Instance{}, p.named(ctx, h, err)
	}
	defer unlock()
	// What lies there under its name is not removed as a leftover meanwhile.
	free, err := p.working.lock(ctx, leftoverLock(domain.Tag(spec.Owner.Installation, spec.Owner.UID)))
	if err != nil {
		return provider.Instance{}, p.named(ctx, h, err)
	}
	defer free()
	var in provider.Instance
	defer h.echoes(pl.uuid)
	err = p.on(ctx, h, func(ctx context.Context, c virt.Conn) error {
		h.fresh(p.links.Generation(h.name))
		var err error
		in, err = p.create(ctx, c, h, pl)
		if fault.Of(err) == fault.NotFound {
			// What vanished beside or under it is there again the next time, or is
			// said; only Get may say that a machine is not there.
			err = fault.Wrap(fault.Transient, err)
		}
		return err
	})
	return in, err
}

func (p *Provider) create(ctx context.Context, c virt.Conn, h *host, pl plan) (provider.Instance, error) {
	v, err := p.look(ctx, c, h, []string{pl.uuid}, pl.spec.Owner)
	if err != nil {
		return provider.Instance{}, err
	}
	made := false
	switch {
	case v.torn != nil:
		return p.instance(ctx, c, h, v, false)
	case v.absent || v.mark.Stage == domain.Making:
		made = true
		h.own(pl.uuid, pl.spec.Owner, p.limit)
		waits, err := p.make(ctx, c, h, pl, &v)
		if fault.Of(err) == fault.Quota && !v.absent && v.mark.Image == "" {
			// Nothing but the definition is there: without it the Proxy is free to
			// go where there is room.
			h.refuse(p.now())
			if undoErr := p.undo(ctx, c, h, pl, v); undoErr != nil {
				err = fmt.Errorf("%w (and its definition could not be removed: %w)", err, undoErr)
			}
		}
		if err != nil || waits != "" {
			return provider.Instance{
				ID: p.id(h, pl.uuid), Owner: pl.spec.Owner, Host: h.name, State: provider.Provisioning,
				Port: v.mark.Port, Created: v.mark.Created, Message: waits,
			}, err
		}
	case v.mark.Stage == domain.Deleting:
		return p.instance(ctx, c, h, v, false) // only Delete ends what Delete began
	default:
		in, err := p.instance(ctx, c, h, v, true)
		if err != nil || in.State != provider.Stopped {
			return p.kept(ctx, c, h, v, in, err)
		}
	}
	if err := p.unaddress(ctx, c, h, &v); err != nil {
		return provider.Instance{}, err
	}
	h.own(pl.uuid, pl.spec.Owner, p.limit)
	if err := p.start(ctx, c, v.domain, made); err != nil {
		return provider.Instance{}, fmt.Errorf("starting domain %s: %w", v.domain.Name, h.unplugged(err))
	}
	// The number of the start is what addresses are bound to.
	if v.domain, err = c.DomainLookupByUUID(ctx, pl.uuid); err != nil {
		return provider.Instance{}, err
	}
	in, err := p.instance(ctx, c, h, v, true)
	return p.kept(ctx, c, h, v, in, err)
}

// undo removes the definition of a domain that has nothing else yet.
func (p *Provider) undo(ctx context.Context, c virt.Conn, h *host, pl plan, v view) error {
	if err := h.unsealed(ctx, c, p, pl); err != nil {
		return err
	}
	if err := provider.Step(ctx, "kvm: give up"); err != nil {
		return err
	}
	h.forget(v.domain.UUID)
	return undefine(ctx, c, v.domain)
}

// unaddress takes the address of the run before out of the metadata: after a
// reboot of the host the next run may have the same number.
func (p *Provider) unaddress(ctx context.Context, c virt.Conn, h *host, v *view) error {
	if v.mark.Address == "" {
		return nil
	}
	if err := provider.Step(ctx, "kvm: forget address"); err != nil {
		return err
	}
	v.mark.Address, v.mark.Run = "", 0
	text, err := v.mark.Element()
	if err == nil {
		err = c.DomainSetMetadata(ctx, v.domain, text)
	}
	h.forgetMark(v.domain.UUID)
	return err
}

// kept writes a new address of a running domain into its metadata, so that an
// operator that starts anew knows it while the agent is silent.
func (p *Provider) kept(ctx context.Context, c virt.Conn, h *host, v view, in provider.Instance, err error) (provider.Instance, error) {
	if err != nil || in.State != provider.Running || v.domain.ID < 0 || (v.mark.Address == in.Address && v.mark.Run == v.domain.ID) {
		return in, err
	}
	if err := provider.Step(ctx, "kvm: note"); err != nil {
		return in, err
	}
	m := v.mark
	m.Address, m.Run = in.Address, v.domain.ID
	text, err := m.Element()
	if err == nil {
		err = c.DomainSetMetadata(ctx, v.domain, text)
	}
	h.forgetMark(v.domain.UUID)
	if virt.Is(err, virt.CodeOperationInvalid) {
		// A domain that was undefined while it ran: it works, and has nowhere to
		// keep anything.
		err = nil
	}
	return in, err
}

// start starts a domain; one that runs already is success. When this call made
// its disks (made) nobody else should have started it: it was another operator
// that worked on it at the same time, and which of its files were there at that
// moment nobody knows. So it is started once more, from those that are.
func (p *Provider) start(ctx context.Context, c virt.Conn, d virt.Domain, made bool) error {
	if err := provider.Step(ctx, "kvm: start"); err != nil {
		return err
	}
	err := c.DomainCreate(ctx, d)
	if err == nil || !answered(err) {
		return err
	}
	state, _, stateErr := c.DomainGetState(ctx, d)
	if stateErr != nil {
		return fmt.Errorf("%w; %w", err, stateErr)
	}
	runs := state != virt.StateShutoff && state != virt.StateCrashed
	switch {
	case runs && !made:
		return nil
	case !runs && missingFile(err):
		return fault.Errorf(fault.Transient, "%w: another operator may be working on it; if this stays, its disk was removed from the host: delete the Proxy and make it again", err)
	case !runs:
		return err
	}
	if err := provider.Step(ctx, "kvm: start anew"); err != nil {
		return err
	}
	if err := c.DomainDestroy(ctx, d); err != nil && !virt.Is(err, virt.CodeOperationInvalid) {
		return err
	}
	return c.DomainCreate(ctx, d)
}

// unplugged adds to the daemon's words what a person can do when a start failed
// for the network of the host's section.
func (h *host) unplugged(err error) error {
	bridge, network := h.conf.Bridge, h.conf.Network
	switch {
	case bridge != "" && virt.Is(err, virt.CodeSystemError) && strings.Contains(err.Error(), "'"+bridge+"': No such device"):
		return fmt.Errorf("%w: make the bridge %s there, or set hosts.%s.bridge or network", err, bridge, h.name)
	case network != "" && virt.Is(err, virt.CodeNoNetwork):
		return fmt.Errorf("%w: define it there (virsh net-define), or set hosts.%s.network or bridge", err, h.name)
	case network != "" && virt.Is(err, virt.CodeOperationInvalid) && strings.Contains(err.Error(), "network '"+network+"' is not active"):
		return fmt.Errorf("%w: start it there with virsh net-start %s, and virsh net-autostart %s to keep it so", err, network, network)
	}
	if virt.Is(err, virt.CodeInternalError) {
		// QEMU's own words say little; its log has more.
		return fmt.Errorf("%w: see /var/log/libvirt/qemu there; where acceleration does not work although it is offered, set hosts.%s.domainType: qemu", err, h.name)
	}
	return err
}

// missingFile reports whether a start failed for a disk that is not there.
func missingFile(err error) bool {
	return virt.Is(err, virt.CodeSystemError) && strings.Contains(err.Error(), "No such file or directory")
}

// make brings a domain from nothing, or from where an earlier call left it, to
// made. waits says what it waits for when this call ends before that.
func (p *Provider) make(ctx context.Context, c virt.Conn, h *host, pl plan, v *view) (waits string, err error) {
	if j := p.jobs.running(p.jobKey(h, pl)); j != nil && !v.absent {
		return j.state() // nothing else is to be asked meanwhile, on the link that is uploading
	}
	used, err := p.images.use(p.jobKey(h, pl).image, p.now())
	if err != nil {
		return "", fmt.Errorf("host %s: image %s: %w", h.name, pl.picture.name, err)
	}
	defer used()
	pool, err := h.pool(ctx, c)
	if err != nil {
		return "", err
	}
	kind, err := h.kind(ctx, c, pl.picture.firmware)
	if err != nil {
		return "", err
	}
	o := h.known()
	if o == nil {
		return "", fault.Errorf(fault.Transient, "host %s: the connection was replaced in mid-call", h.name)
	}
	if old := v.mark.Pool; !v.absent && old != "" && old != pool.Name {
		// The configuration names another pool since it was begun. What is in the
		// old one goes before the metadata stop to name it.
		if err := h.unsealed(ctx, c, p, pl); err != nil {
			return "", err
		}
		if err := p.sweep(ctx, c, h, old, pl.spec.Owner); err != nil {
			return "", err
		}
	}
	if v.absent {
		if err := p.admit(ctx, c, h, pl, pool); err != nil {
			return "", err
		}
		v.mark = domain.Mark{Owner: pl.spec.Owner, Created: p.now().UTC(), Stage: domain.Making, Port: pl.port, Pool: pool.Name}
	}
	found, ok, err := p.cachedImage(ctx, c, h, pool, pl)
	if err != nil {
		return "", err
	}
	if v.absent || v.mark.Pool != pool.Name || ok && v.mark.Image != found.Volume {
		v.mark.Pool, v.mark.Image = pool.Name, found.Volume
		if err := p.define(ctx, c, h, pl, v, kind, o.planned(pl.names.Overlay), o.planned(pl.names.Seed), "kvm: define"); err != nil {
			return "", err
		}
		if err := p.alone(ctx, c, h, v); err != nil {
			return "", err
		}
	}
	if !ok {
		return p.await(h, pl)
	}
	overlay, err := p.overlay(ctx, c, h, pool, pl, found)
	if err != nil {
		return "", err
	}
	disk, err := p.seed(ctx, c, h, pool, pl)
	if err != nil {
		return "", err
	}
	v.mark.Stage = domain.Made
	return "", p.define(ctx, c, h, pl, v, kind, overlay, disk, "kvm: seal")
}

// admit says whether the host takes one more machine.
func (p *Provider) admit(ctx context.Context, c virt.Conn, h *host, pl plan, pool pool) error {
	s := survey{available: pool.info.Available}
	if h.conf.MaxInstances > 0 {
		list, err := p.scan(ctx, c, h, pl.spec.Owner.Installation)
		if err != nil {
			return err
		}
		s.uids = uidsOf(list)
	}
	return h.room(s, pl.spec.Owner.UID, p.now())
}

// alone looks, right after a domain was defined as making, that it does not
// run: another operator may have made and started it meanwhile. Its own words
// of itself are given back to it then; without them its disk would be taken
// for unfinished once it is off.
func (p *Provider) alone(ctx context.Context, c virt.Conn, h *host, v *view) error {
	state, _, err := c.DomainGetState(ctx, v.domain)
	if err != nil || state == virt.StateShutoff {
		return err
	}
	text, err := c.DomainGetMetadata(ctx, v.domain)
	if err != nil {
		return err
	}
	m, err := domain.ParseMark(text)
	if err == nil && m.Stage == domain.Made {
		if text, err = m.Element(); err == nil {
			err = c.DomainSetMetadata(ctx, v.domain, text)
		}
	}
	h.forgetMark(v.domain.UUID)
	if err != nil {
		return err
	}
	return fault.Errorf(fault.Transient, "host %s: somebody else made and started domain %s meanwhile", h.name, v.domain.Name)
}

// define writes the domain's definition.
func (p *Provider) define(ctx context.Context, c virt.Conn, h *host, pl plan, v *view, kind, overlay, disk, step string) error {
	text, err := domain.XML(domain.Shape{
		Names: pl.names, UUID: pl.uuid, MAC: pl.mac, Mark: v.mark, Type: kind, Firmware: pl.picture.firmware,
		VCPUs: pl.vcpus, MemoryBytes: pl.memory, OverlayPath: overlay, SeedPath: disk,
		Network: h.conf.Network, Bridge: h.conf.Bridge,
	})
	if err != nil {
		return err
	}
	if err := provider.Step(ctx, step); err != nil {
		return err
	}
	d, err := c.DomainDefineXML(ctx, text)
	if err != nil {
		if owner := p.namesake(ctx, c, h, pl); owner != nil {
			return owner
		}
		return fmt.Errorf("defining domain %s: %w", pl.names.Domain, err)
	}
	h.forgetMark(pl.uuid)
	v.absent, v.domain = false, d
	return nil
}

// namesake explains a name that another domain has; nil when none has it.
func (p *Provider) namesake(ctx context.Context, c virt.Conn, h *host, pl plan) error {
	d, err := c.DomainLookupByName(ctx, pl.names.Domain)
	if err != nil || d.UUID == pl.uuid {
		return nil //nolint:nilerr // the definition's own error is what counts then
	}
	whose := "carries no mark of an owner"
	if m, err := p.read(ctx, c, h, d); err == nil {
		whose = fmt.Sprintf("belongs to Proxy %s/%s with UID %s of installation %s", m.Owner.Namespace, m.Owner.Name, short(m.Owner.UID), short(m.Owner.Installation))
	}
	return fault.Errorf(fault.Permanent, "host %s: the name %s is taken by a domain with UUID %s, which %s: rename or undefine it there", h.name, pl.names.Domain, d.UUID, whose)
}

// overlay makes the machine's own disk on the image, or takes the one that an
// earlier call made on it.
func (p *Provider) overlay(ctx context.Context, c virt.Conn, h *host, pool pool, pl plan, base image.Cached) (path string, err error) {
	size := base.VirtualSize
	if pl.disk != 0 {
		if pl.disk < size {
			return "", fault.Errorf(fault.Permanent, "resources.disk: %s is less than image %s needs (%s): ask for as much, or leave it out", mib(uint64(pl.disk)), pl.picture.name, mib(uint64(size)))
		}
		size = pl.disk
	}
	// The metadata name the image by now. Whoever removes it takes the marker
	// away first and looks at the metadata then: one of the two sees the other.
	_, err = c.StorageVolLookupByName(ctx, pool.Pool, base.Marker)
	var under string
	if err == nil {
		under, err = c.StorageVolGetPath(ctx, virt.Volume{Pool: pool.Name, Name: base.Volume})
	}
	if err != nil {
		h.uncache(p.jobKey(h, pl).image)
		return "", vanished(h, base.Volume, err)
	}
	text, err := domain.VolumeXML(pl.names.Overlay, string(image.QCOW2), size, under, string(base.Format))
	if err != nil {
		return "", err
	}
	if err := provider.Step(ctx, "kvm: overlay"); err != nil {
		return "", err
	}
	vol, err := c.StorageVolCreateXML(ctx, pool.Pool, text)
	if virt.Is(err, virt.CodeStorageVolExist) {
		// Left by an earlier call, and never booted from: the domain is not
		// sealed. What it was made on may be another image by now.
		if err := h.unsealed(ctx, c, p, pl); err != nil {
			return "", err
		}
		if err := h.remove(ctx, c, pool.Pool, pl.names.Overlay); err != nil {
			return "", fmt.Errorf("removing an unfinished disk %s: %w", pl.names.Overlay, err)
		}
		vol, err = c.StorageVolCreateXML(ctx, pool.Pool, text)
	}
	if err != nil {
		return "", fmt.Errorf("making disk %s: %w", pl.names.Overlay, err)
	}
	return c.StorageVolGetPath(ctx, vol)
}

// unsealed looks again, right before something of a half-made domain is
// replaced, that nobody else has finished and started it meanwhile.
func (h *host) unsealed(ctx context.Context, c virt.Conn, p *Provider, pl plan) error {
	v, err := p.look(ctx, c, h, []string{pl.uuid}, pl.spec.Owner)
	switch {
	case err != nil:
		return err
	case v.absent, v.torn != nil, v.mark.Stage != domain.Making:
		return fault.Errorf(fault.Transient, "host %s: somebody else works on domain %s", h.name, pl.names.Domain)
	}
	return nil
}

// seed makes the disk that cloud-init reads. It is made anew each time: a
// cancelled upload leaves half of one, which nothing else would notice.
func (p *Provider) seed(ctx context.Context, c virt.Conn, h *host, pool pool, pl plan) (path string, err error) {
	iso, err := seed.Build(seed.Input{
		InstanceID: pl.spec.Owner.UID, HostName: pl.names.Domain, UserData: pl.spec.UserData,
		InstallAgent: p.conf.installAgent, VendorData: p.conf.vendorData,
	})
	if err != nil {
		return "", err
	}
	// It grows as it is filled, so that its length tells what arrived.
	text, err := domain.VolumeXML(pl.names.Seed, string(image.Raw), 1, "", "")
	if err != nil {
		return "", err
	}
	if err := provider.Step(ctx, "kvm: seed"); err != nil {
		return "", err
	}
	vol, err := c.StorageVolCreateXML(ctx, pool.Pool, text)
	if virt.Is(err, virt.CodeStorageVolExist) {
		if err := h.unsealed(ctx, c, p, pl); err != nil {
			return "", err
		}
		if err := h.remove(ctx, c, pool.Pool, pl.names.Seed); err != nil {
			return "", fmt.Errorf("removing an unfinished seed %s: %w", pl.names.Seed, err)
		}
		vol, err = c.StorageVolCreateXML(ctx, pool.Pool, text)
	}
	if err != nil {
		return "", fmt.Errorf("making seed %s: %w", pl.names.Seed, err)
	}
	if err := provider.Step(ctx, "kvm: fill seed"); err != nil {
		return "", err
	}
	if err := c.StorageVolUpload(ctx, vol, bytes.NewReader(iso), uint64(len(iso))); err != nil {
		return "", fmt.Errorf("filling seed %s: %w", pl.names.Seed, err)
	}
	info, err := c.StorageVolGetInfo(ctx, vol)
	if err != nil {
		return "", err
	}
	if info.Physical != uint64(len(iso)) {
		return "", fault.Errorf(fault.Transient, "host %s: seed %s has %d bytes on the host, and %d were sent", h.name, pl.names.Seed, info.Physical, len(iso))
	}
	return c.StorageVolGetPath(ctx, vol)
}

// vanished is the error of an image that was there a moment ago.
func vanished(h *host, volume string, err error) error {
	if fault.Of(err) == fault.NotFound {
		return fault.Errorf(fault.Transient, "host %s: image volume %s was removed a moment ago: %w", h.name, volume, err)
	}
	return err
}

func (h *host) forgetMark(uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.marks, uuid)
}
