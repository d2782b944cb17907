package kvm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// RemoveLeftover implements [provider.Cleaner]. Its steps: "kvm: remove marker"
// and "kvm: remove image", or "kvm: remove disk".
//
// It is safe against a Create that begins between the look and the removal. Of
// this process: a Create and a removal of the same image, or of the same
// owner's volumes, exclude each other. Of another one, such as the leader after
// one that was frozen: an image's marker goes first, and then it is looked again
// that no mark names the volume; a Create writes its mark first, and then looks
// that the marker is there. One of the two sees the other, and gives way.
func (p *Provider) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	if installation == "" {
		return fault.New(fault.Invalid, "the installation whose leftover is to be removed is empty")
	}
	h, err := p.place(l.Host)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	var remove func(ctx context.Context, c virt.Conn) error
	if n, ok := image.ParseName(l.ID); ok && !n.Marker {
		if !n.By(installation, p.name) {
			return fault.Errorf(fault.Conflict, "host %s: image %s is of another installation or provider, and is left alone", h.name, l.ID)
		}
		done, free := p.images.remove(n.Key, p.now())
		if !free {
			return inUse(h, l.ID, "a machine is being made from it, or was to be a moment ago")
		}
		defer done()
		remove = func(ctx context.Context, c virt.Conn) error { return p.removeImage(ctx, c, h, installation, n) }
	} else if part, ok := domain.PartOf(l.ID, installation); ok {
		free, err := p.working.lock(ctx, leftoverLock(part.Tag))
		if err != nil {
			return p.named(ctx, h, err)
		}
		defer free()
		remove = func(ctx context.Context, c virt.Conn) error { return p.removePart(ctx, c, h, installation, l.ID, part) }
	} else {
		return fault.Errorf(fault.Invalid, "leftover %.100q is no volume of this installation: want an id that Leftovers gave", l.ID)
	}
	err = p.on(ctx, h, remove)
	if u, ok := errors.AsType[*unusable](err); ok && u.reason == ReasonPoolMissing {
		return nil // as good as empty
	}
	if fault.Of(err) == fault.NotFound {
		err = fault.Wrap(fault.Transient, err) // the pool went meanwhile
	}
	return err
}

// leftoverLock is the key, among those of Provider.working, of whoever makes or
// removes an owner's volumes. It is the same on all hosts: they may share a pool.
func leftoverLock(tag string) string { return "volumes of " + tag }

func inUse(h *host, id, why string) error {
	return fault.Errorf(fault.Conflict, "host %s: %s stays: %s", h.name, id, why)
}

// looked is the stock of one host, with what all use that may share its pool.
// Nothing of it is remembered from before.
func (p *Provider) looked(ctx context.Context, c virt.Conn, h *host, installation string) (stock, error) {
	s, err := p.stock(ctx, c, h, installation, true)
	if err == nil {
		s.used, err = p.usedBeside(ctx, h, s, installation)
	}
	return s, err
}

// usedBeside adds what the other hosts use when they may share the pool.
func (p *Provider) usedBeside(ctx context.Context, h *host, s stock, installation string) (uses, error) {
	used := s.used
	if !s.shared {
		return used, nil
	}
	hosts := p.all()
	found, errs := make([]uses, len(hosts)), make([]error, len(hosts))
	each(hosts, func(i int, other *host) {
		if other == h {
			return
		}
		errs[i] = p.always(ctx, other, func(ctx context.Context, c virt.Conn) (err error) {
			other.fresh(p.links.Generation(other.name))
			found[i], err = p.uses(ctx, c, other, installation, true)
			return err
		})
	})
	for i, other := range hosts {
		if errs[i] != nil {
			return used, sharedError(h, other, errs[i])
		}
		used.add(found[i])
	}
	return used, nil
}

func (p *Provider) removeImage(ctx context.Context, c virt.Conn, h *host, installation string, n image.Name) error {
	s, err := p.looked(ctx, c, h, installation)
	if err != nil {
		return err
	}
	one, there := p.picked(s, installation)[n.Volume]
	if !there {
		return nil
	}
	if why := p.needed(installation, n.Volume, one, s.used); why != "" {
		return inUse(h, n.Volume, why)
	}
	if why := p.doubtImages(installation, s, s.used); why != "" {
		return inUse(h, n.Volume, why)
	}
	for _, marker := range one.markers {
		if err := removeVolume(ctx, c, marker, "kvm: remove marker"); err != nil {
			return err
		}
	}
	h.uncache(n.Key)
	if one.volume == nil {
		return nil
	}
	if len(one.markers) > 0 {
		// From here on nobody begins to use it. Who began before has said so.
		s.used, err = p.uses(ctx, c, h, installation, true)
		if err == nil {
			s.used, err = p.usedBeside(ctx, h, s, installation)
		}
		if err == nil && s.used.images[n.Volume] {
			err = inUse(h, n.Volume, "a machine stands on it since a moment ago")
		}
		if err != nil {
			if again := p.remark(ctx, c, s.pool, one.markers); again != nil {
				err = fmt.Errorf("%w; %w", err, again)
			}
			return err
		}
	}
	return removeVolume(ctx, c, *one.volume, "kvm: remove image")
}

// remark makes the markers of an image anew that stays.
func (p *Provider) remark(ctx context.Context, c virt.Conn, pool virt.Pool, markers []virt.Volume) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	for _, m := range markers {
		text, err := domain.VolumeXML(m.Name, string(image.Raw), 1, "", "")
		if err == nil {
			_, err = c.StorageVolCreateXML(ctx, pool, text)
		}
		if err != nil && !virt.Is(err, virt.CodeStorageVolExist) {
			return fmt.Errorf("making the marker %s anew, without which its image serves no further machine: %w", m.Name, err)
		}
	}
	return nil
}

func (p *Provider) removePart(ctx context.Context, c virt.Conn, h *host, installation, name string, part domain.Part) error {
	s, err := p.looked(ctx, c, h, installation)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.volumes, func(v virt.Volume) bool { return v.Name == name })
	switch {
	case i < 0:
		return nil
	case s.used.domains[part.Domain]:
		return inUse(h, name, "there is a domain that it is called after")
	}
	if why := p.doubtParts(h, installation, s); why != "" {
		return inUse(h, name, why)
	}
	return removeVolume(ctx, c, s.volumes[i], "kvm: remove disk")
}

// removeVolume removes one; it is success when it is gone.
func removeVolume(ctx context.Context, c virt.Conn, v virt.Volume, step string) error {
	if err := provider.Step(ctx, step); err != nil {
		return err
	}
	if err := notThere(c.StorageVolDelete(ctx, v)); err != nil {
		return fmt.Errorf("removing volume %s: %w", v.Name, err)
	}
	return nil
}

// notThere takes a thing that is not there for what was wanted.
func notThere(err error) error {
	if fault.Of(err) == fault.NotFound {
		return nil
	}
	return err
}
