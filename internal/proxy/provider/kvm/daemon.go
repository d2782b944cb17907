package kvm

import (
	"context"
	"path"
	"slices"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// pool is a host's storage pool, found usable.
type pool struct {
	virt.Pool
	info virt.PoolInfo
}

// poolKinds are the types of pool whose volumes are files.
var poolKinds = []string{"dir", "fs", "netfs"}

// unusable is the error of a pool that instances cannot be made in, with the
// reason that Check gives.
type unusable struct {
	reason string
	err    error
}

func (u *unusable) Error() string { return u.err.Error() }
func (u *unusable) Unwrap() error { return u.err }

func refuse(reason string, class fault.Class, format string, args ...any) error {
	return &unusable{reason, fault.Errorf(class, format, args...)}
}

// pool returns the host's pool when volumes can be made there. A pool that is
// not there is Permanent, never NotFound; one that is not running is Transient,
// since starting it is all that is needed.
func (h *host) pool(ctx context.Context, c virt.Conn) (pool, error) {
	out, err := h.opened(ctx, c)
	found := out.Pool
	if err != nil {
		if fault.Of(err) == fault.NotFound {
			return pool{}, refuse(ReasonPoolMissing, fault.Permanent,
				"host %s has no storage pool %q: make it there (virsh pool-define-as %s dir --target /var/lib/libvirt/images, then pool-start and pool-autostart), or set hosts.%s.pool",
				h.name, h.conf.Pool, h.conf.Pool, h.name)
		}
		return pool{}, err
	}
	if h.known() == nil {
		if err := h.learn(ctx, c, found); err != nil {
			return out, err
		}
	}
	o := h.known()
	if !slices.Contains(poolKinds, o.poolKind) {
		return out, refuse(ReasonPoolUnsupported, fault.Unsupported,
			"host %s: pool %q is of type %q, and instances need files: use a pool of type %s", h.name, h.conf.Pool, o.poolKind, strings.Join(poolKinds, ", "))
	}
	switch out.info.State {
	case virt.PoolRunning, virt.PoolDegraded:
		return out, nil
	case virt.PoolInaccessible:
		return out, refuse(ReasonPoolInactive, fault.Transient, "host %s: pool %q cannot be accessed (its file system may be gone): look at it there with virsh pool-info %s", h.name, h.conf.Pool, h.conf.Pool)
	}
	return out, refuse(ReasonPoolInactive, fault.Transient, "host %s: pool %q is not running: start it there with virsh pool-start %s, and virsh pool-autostart %s to keep it so",
		h.name, h.conf.Pool, h.conf.Pool, h.conf.Pool)
}

// opened asks the pool how it is. The handle of an earlier time saves looking
// the pool up; libvirt finds it by its UUID.
func (h *host) opened(ctx context.Context, c virt.Conn) (out pool, err error) {
	h.mu.Lock()
	out.Pool = h.handle
	h.mu.Unlock()
	if out.UUID != "" {
		out.info, err = c.StoragePoolGetInfo(ctx, out.Pool)
		if fault.Of(err) != fault.NotFound {
			return out, err
		}
	}
	if out.Pool, err = c.StoragePoolLookupByName(ctx, h.conf.Pool); err != nil {
		return out, err
	}
	h.mu.Lock()
	h.handle = out.Pool
	h.mu.Unlock()
	out.info, err = c.StoragePoolGetInfo(ctx, out.Pool)
	return out, err
}

// offer is what a daemon said it can do; it stays for the life of a link.
type offer struct {
	poolKind, poolPath string
	// kind is the domain type that instances get here; kindErr why none.
	kind    string
	kindErr error
	// firmware is what that type offers; nil while it was not asked.
	firmware *domain.FirmwareOffer
}

func (h *host) known() *offer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.offer
}

// learn reads the pool's description and the host's capabilities.
func (h *host) learn(ctx context.Context, c virt.Conn, p virt.Pool) error {
	text, err := c.StoragePoolGetXMLDesc(ctx, p)
	if err != nil {
		return err
	}
	var o offer
	if o.poolKind, o.poolPath, err = domain.ReadPool(text); err != nil {
		return err
	}
	if text, err = c.ConnectGetCapabilities(ctx); err != nil {
		return err
	}
	caps, err := domain.ReadCapabilities(text)
	if err != nil {
		return err
	}
	if o.kind, err = domain.ChooseType(caps, h.conf.DomainType, h.conf.AllowEmulation); err != nil {
		o.kindErr = &unusable{ReasonNoAcceleration, err}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.offer = &o
	return nil
}

// kind is the domain type of new instances, when the host has the firmware.
func (h *host) kind(ctx context.Context, c virt.Conn, f domain.Firmware) (string, error) {
	o := h.known()
	if o == nil {
		return "", fault.Errorf(fault.Transient, "host %s: the connection was replaced in mid-call", h.name)
	}
	if o.kindErr != nil {
		return "", o.kindErr
	}
	h.mu.Lock()
	firmware := o.firmware
	h.mu.Unlock()
	if firmware == nil {
		text, err := c.ConnectGetDomainCapabilities(ctx, o.kind)
		if err != nil {
			return "", err
		}
		read, err := domain.ReadDomainCapabilities(text)
		if err != nil {
			return "", err
		}
		h.mu.Lock()
		o.firmware, firmware = &read, &read
		h.mu.Unlock()
	}
	if f == domain.UEFI && (!firmware.EFI || !firmware.SecureBootOff) {
		return "", refuse(ReasonNoFirmware, fault.Permanent,
			"host %s offers no UEFI firmware without secure boot: install it there (Debian and Ubuntu: apt-get install ovmf), or use an image with firmware: bios", h.name)
	}
	return o.kind, nil
}

// planned is where a volume of that name will be.
func (o *offer) planned(volume string) string { return path.Join(o.poolPath, volume) }

// remove deletes a volume by name; one that is not there is success.
func (h *host) remove(ctx context.Context, c virt.Conn, p virt.Pool, name string) error {
	v, err := c.StorageVolLookupByName(ctx, p, name)
	if err == nil {
		err = c.StorageVolDelete(ctx, v)
	}
	if fault.Of(err) == fault.NotFound {
		return nil
	}
	return err
}
