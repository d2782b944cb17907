package virttest

import (
	"context"
	"errors"
	"fmt"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// dom is one domain.
type dom struct {
	name, uuid string
	id         int32
	state      virt.State
	reason     virt.Reason
	// conf is the persistent definition, nil of a transient domain; live is the
	// one that runs, nil when it does not.
	conf, live *config
	booted     []Disk
	// agent is what the guest's agent says while it is connected.
	agent     bool
	saved     bool
	snapshots int
	checks    int
}

func (d *dom) active() bool { return d.live != nil }

func (d *dom) ref() virt.Domain {
	r := virt.Domain{Name: d.name, UUID: d.uuid, ID: -1}
	if d.active() {
		r.ID = d.id
	}
	return r
}

func invalid(format string, args ...any) error {
	return failure(virt.CodeOperationInvalid, "Requested operation is not valid: "+fmt.Sprintf(format, args...))
}

// findDom finds a domain by its UUID alone, as libvirt does.
func (h *Host) findDom(d virt.Domain) (*dom, error) {
	if found := h.domains[d.UUID]; found != nil {
		return found, nil
	}
	return nil, failure(virt.CodeNoDomain, fmt.Sprintf("Domain not found: no domain with matching uuid '%s' (%s)", d.UUID, d.Name))
}

func (h *Host) named(name string) *dom {
	for _, d := range h.domains {
		if d.name == name {
			return d
		}
	}
	return nil
}

// ConnectGetLibVersion implements virt.Conn.
func (c *conn) ConnectGetLibVersion(ctx context.Context) (virt.Version, error) {
	return ask(ctx, c, "ConnectGetLibVersion", func() (virt.Version, error) { return version, nil })
}

// ConnectGetHostname implements virt.Conn.
func (c *conn) ConnectGetHostname(ctx context.Context) (string, error) {
	return ask(ctx, c, "ConnectGetHostname", func() (string, error) { return c.host.name, nil })
}

// ConnectGetCapabilities implements virt.Conn.
func (c *conn) ConnectGetCapabilities(ctx context.Context) (string, error) {
	return ask(ctx, c, "ConnectGetCapabilities", func() (string, error) {
		return capabilities(c.host.uuid, c.host.types), nil
	})
}

// ConnectGetDomainCapabilities implements virt.Conn.
func (c *conn) ConnectGetDomainCapabilities(ctx context.Context, domainType string) (string, error) {
	return ask(ctx, c, "ConnectGetDomainCapabilities", func() (string, error) {
		for _, t := range c.host.types {
			if t == domainType {
				return domainCapabilities(t, c.host.efi), nil
			}
		}
		text := "unknown virttype: " + domainType
		switch domainType {
		case "kvm":
			text = fmt.Sprintf("the accel 'kvm' is not supported by '%s' on this host", emulator)
		case "xen", "lxc", "qemu":
			text = fmt.Sprintf("Emulator '%s' does not support virt type '%s'", emulator, domainType)
		}
		return "", failure(virt.CodeInvalidArg, "invalid argument: "+text)
	})
}

// ConnectGetAllDomainStats implements virt.Conn.
func (c *conn) ConnectGetAllDomainStats(ctx context.Context) ([]virt.DomainState, error) {
	return ask(ctx, c, "ConnectGetAllDomainStats", func() ([]virt.DomainState, error) {
		var out []virt.DomainState
		for _, d := range sorted(c.host.domains) {
			out = append(out, virt.DomainState{Domain: d.ref(), State: d.state, Reason: d.reason})
		}
		return out, nil
	})
}

// DomainLookupByName implements virt.Conn.
func (c *conn) DomainLookupByName(ctx context.Context, name string) (virt.Domain, error) {
	return ask(ctx, c, "DomainLookupByName", func() (virt.Domain, error) {
		if d := c.host.named(name); d != nil {
			return d.ref(), nil
		}
		return virt.Domain{}, failure(virt.CodeNoDomain, fmt.Sprintf("Domain not found: no domain with matching name '%s'", name))
	})
}

// DomainLookupByUUID implements virt.Conn.
func (c *conn) DomainLookupByUUID(ctx context.Context, uuid string) (virt.Domain, error) {
	return ask(ctx, c, "DomainLookupByUUID", func() (virt.Domain, error) {
		u, ok := canonicalUUID(uuid)
		if !ok {
			return virt.Domain{}, fault.Errorf(fault.Invalid, "%.80q is no UUID", uuid)
		}
		if d := c.host.domains[u]; d != nil {
			return d.ref(), nil
		}
		return virt.Domain{}, failure(virt.CodeNoDomain, fmt.Sprintf("Domain not found: no domain with matching uuid '%s'", u))
	})
}

// DomainGetState implements virt.Conn.
func (c *conn) DomainGetState(ctx context.Context, ref virt.Domain) (virt.State, virt.Reason, error) {
	type answer struct {
		s virt.State
		r virt.Reason
	}
	a, err := ask(ctx, c, "DomainGetState", func() (answer, error) {
		d, err := c.host.findDom(ref)
		if err != nil {
			return answer{}, err
		}
		return answer{d.state, d.reason}, nil
	})
	return a.s, a.r, err
}

// DomainGetMetadata implements virt.Conn: of an active domain the live one.
func (c *conn) DomainGetMetadata(ctx context.Context, ref virt.Domain) (string, error) {
	return ask(ctx, c, "DomainGetMetadata", func() (string, error) {
		d, err := c.host.findDom(ref)
		if err != nil {
			return "", err
		}
		if m := d.current().meta; m != "" {
			return m, nil
		}
		return "", failure(virt.CodeNoDomainMetadata, "metadata not found: Requested metadata element is not present")
	})
}

// current is the definition that runs, else the persistent one.
func (d *dom) current() *config {
	if d.live != nil {
		return d.live
	}
	return d.conf
}

// DomainSetMetadata implements virt.Conn. A transient domain refuses it.
func (c *conn) DomainSetMetadata(ctx context.Context, ref virt.Domain, element string) error {
	return tell(ctx, c, "DomainSetMetadata", func() error {
		d, err := c.host.findDom(ref)
		if err != nil {
			return err
		}
		if d.conf == nil {
			return invalid("transient domains do not have any persistent config")
		}
		m, err := newMetadata(element)
		if err != nil {
			return err
		}
		for _, conf := range []*config{d.conf, d.live} {
			if conf != nil {
				conf.meta = m
			}
		}
		return nil
	})
}

// DomainDefineXML implements virt.Conn.
func (c *conn) DomainDefineXML(ctx context.Context, doc string) (virt.Domain, error) {
	return ask(ctx, c, "DomainDefineXML", func() (virt.Domain, error) {
		d, err := c.host.define(doc)
		if err != nil {
			return virt.Domain{}, ofDomain(err)
		}
		return d.ref(), nil
	})
}

// ofDomain classes an answer to a call that defines or starts a domain.
func ofDomain(err error) error {
	if e, ok := errors.AsType[*virt.Error](err); ok {
		return virt.FaultOfDomain(e.Code, e.Message)
	}
	return err
}

func (h *Host) define(doc string) (*dom, error) {
	conf, err := h.readDomain(doc)
	if err != nil {
		return nil, err
	}
	other := h.named(conf.name)
	if conf.uuid == "" {
		conf.uuid = h.newUUID()
	}
	d := h.domains[conf.uuid]
	switch {
	case d != nil && d.name != conf.name:
		return nil, failure(virt.CodeOperationFailed, fmt.Sprintf("operation failed: domain '%s' is already defined with uuid %s", d.name, d.uuid))
	case d == nil && other != nil:
		return nil, failure(virt.CodeOperationFailed, fmt.Sprintf("operation failed: domain '%s' already exists with uuid %s", other.name, other.uuid))
	case d == nil:
		d = &dom{name: conf.name, uuid: conf.uuid, state: virt.StateShutoff, reason: virt.ShutoffUnknown}
		h.domains[d.uuid] = d
	}
	for i := range conf.nics {
		if conf.nics[i].mac == "" {
			h.made++
			conf.nics[i].mac = fmt.Sprintf("52:54:00:%02x:%02x:%02x", byte(h.made>>16), byte(h.made>>8), byte(h.made))
		}
	}
	detail := virt.DefinedUpdated
	if d.conf == nil {
		detail = virt.DefinedAdded
	}
	d.conf = conf
	h.happened(d, virt.EventDefined, detail)
	return d, nil
}

// DomainDestroy implements virt.Conn.
func (c *conn) DomainDestroy(ctx context.Context, ref virt.Domain) error {
	return tell(ctx, c, "DomainDestroy", func() error {
		d, err := c.host.findDom(ref)
		if err != nil {
			return err
		}
		if !d.active() {
			return invalid("domain is not running")
		}
		c.host.stop(d, virt.StateShutoff, virt.ShutoffDestroyed)
		return nil
	})
}

// stop ends a domain; a transient one is gone then.
func (h *Host) stop(d *dom, s virt.State, r virt.Reason) {
	d.live, d.state, d.reason, d.agent = nil, s, r, false
	h.left(d)
	if d.conf == nil {
		delete(h.domains, d.uuid)
	}
}

// DomainUndefineFlags implements virt.Conn. An active domain stays as a
// transient one.
func (c *conn) DomainUndefineFlags(ctx context.Context, ref virt.Domain, flags virt.UndefineFlags) error {
	return tell(ctx, c, "DomainUndefineFlags", func() error {
		const keep = virt.UndefineFlags(undefineKeepRAM)
		if strange := flags &^ knownUndefine; strange != 0 {
			return failure(virt.CodeInvalidArg, fmt.Sprintf("unsupported flags (%#x) in function qemuDomainUndefineFlags", uint32(strange)))
		}
		if flags&keep != 0 && flags&virt.UndefineNVRAM != 0 {
			return invalid("cannot both keep and delete nvram")
		}
		h := c.host
		d, err := h.findDom(ref)
		if err != nil {
			return err
		}
		efi := d.conf != nil && d.conf.efi && h.nvram[d.name]
		switch {
		case d.conf == nil:
			return invalid("cannot undefine transient domain")
		case !d.active() && d.snapshots > 0 && flags&virt.UndefineSnapshotsMetadata == 0:
			return invalid("cannot delete inactive domain with %d snapshots", d.snapshots)
		case !d.active() && d.checks > 0 && flags&virt.UndefineCheckpointsMetadata == 0:
			return invalid("cannot delete inactive domain with %d checkpoints", d.checks)
		case d.saved && flags&virt.UndefineManagedSave == 0:
			return invalid("Refusing to undefine while domain managed save image exists")
		case efi && flags&(virt.UndefineNVRAM|keep) == 0:
			return invalid("cannot undefine domain with nvram")
		}
		if efi && flags&virt.UndefineNVRAM != 0 {
			delete(h.nvram, d.name)
		}
		d.conf, d.saved = nil, false
		h.happened(d, virt.EventUndefined, undefinedRemoved)
		if !d.active() {
			delete(h.domains, d.uuid)
		}
		return nil
	})
}
