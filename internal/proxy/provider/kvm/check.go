package kvm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Reasons of the rows that Check returns; docs/kvm-provider.md has the table.
const (
	// ReasonOK: instances can be made.
	ReasonOK = "OK"
	// ReasonSSHMaterial: the key or the known_hosts file cannot be used.
	ReasonSSHMaterial = "SSHMaterial"
	// ReasonUnreachable: no TCP connection.
	ReasonUnreachable = "Unreachable"
	// ReasonSSHFailed: host key, log-in or handshake failed.
	ReasonSSHFailed = "SSHFailed"
	// ReasonLibvirtFailed: the daemon's socket cannot be used.
	ReasonLibvirtFailed = "LibvirtFailed"
	// ReasonTimeout: no answer in time, or an earlier check still waits.
	ReasonTimeout = "Timeout"
	// ReasonPoolMissing: there is no pool of that name.
	ReasonPoolMissing = "PoolMissing"
	// ReasonPoolInactive: the pool does not run.
	ReasonPoolInactive = "PoolInactive"
	// ReasonPoolUnsupported: its volumes are no files.
	ReasonPoolUnsupported = "PoolUnsupported"
	// ReasonPoolLow: less than 1 GiB is free.
	ReasonPoolLow = "PoolLow"
	// ReasonNetworkMissing and ReasonNetworkInactive: the network of the host's
	// section is not there, or does not run.
	ReasonNetworkMissing  = "NetworkMissing"
	ReasonNetworkInactive = "NetworkInactive"
	// ReasonNoAcceleration: the host does not offer the wanted domain type.
	ReasonNoAcceleration = "NoAcceleration"
	// ReasonNoFirmware: no UEFI firmware without secure boot, and an image
	// that needs it.
	ReasonNoFirmware = "NoFirmware"
	// ReasonError: the daemon answered with an error.
	ReasonError = "Error"
)

// Reasons returns all reasons of Check.
func Reasons() []string {
	return []string{
		ReasonOK, ReasonSSHMaterial, ReasonUnreachable, ReasonSSHFailed, ReasonLibvirtFailed, ReasonTimeout,
		ReasonPoolMissing, ReasonPoolInactive, ReasonPoolUnsupported, ReasonPoolLow,
		ReasonNetworkMissing, ReasonNetworkInactive, ReasonNoAcceleration, ReasonNoFirmware, ReasonError,
	}
}

// Check implements [provider.Checker]: it asks every host at once, over the
// connections that the other calls use, and takes none of them away.
func (p *Provider) Check(ctx context.Context) ([]provider.HostHealth, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	hosts := p.all()
	rows := make([]provider.HostHealth, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { rows[i] = p.checked(ctx, h) })
	}
	wg.Wait()
	return rows, nil
}

func (p *Provider) checked(ctx context.Context, h *host) provider.HostHealth {
	// The probe may go on after this call has returned: it writes into a row of
	// its own, handed over when it is whole.
	answer := make(chan provider.HostHealth, 1)
	err := p.links.Probe(ctx, h.name, func(ctx context.Context, c virt.Conn) error {
		row := provider.HostHealth{Host: h.name, Reason: ReasonOK}
		err := p.examine(ctx, virt.Traced(c, h.name, p.log), h, &row)
		if err != nil {
			row.Reason, row.Message = verdict(err), p.named(ctx, h, err).Error()
		}
		answer <- row
		return nil
	})
	if err == nil {
		return <-answer
	}
	return provider.HostHealth{Host: h.name, Reason: verdict(err), Message: p.named(ctx, h, err).Error()}
}

// examine reads what instances need, all of it at once: beside an upload on a
// slow link each call waits for what was sent before it. Errors that say why no
// instance can be made here are unusable.
func (p *Provider) examine(ctx context.Context, c virt.Conn, h *host, row *provider.HostHealth) error {
	h.fresh(p.links.Generation(h.name))
	var version virt.Version
	var name string
	var store pool
	// In the order in which a person would mend them.
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i, ask := range []func() error{
		func() (err error) { version, err = c.ConnectGetLibVersion(ctx); return err },
		func() (err error) { name, err = c.ConnectGetHostname(ctx); return err },
		func() (err error) { store, err = h.pool(ctx, c); return err },
		func() error { return h.connected(ctx, c) },
	} {
		wg.Go(func() { errs[i] = ask() })
	}
	wg.Wait()
	row.FreeBytes = int64(store.info.Available)
	if version != 0 {
		row.Version = version.String()
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	firmware := domain.BIOS
	for _, pic := range p.conf.images {
		if pic.firmware == domain.UEFI {
			firmware = domain.UEFI
		}
	}
	kind, err := h.kind(ctx, c, firmware)
	if err != nil {
		return err
	}
	row.Message = fmt.Sprintf("%s: libvirt %s, type %s, pool %s with %s free", printable(name), row.Version, kind, h.conf.Pool, mib(store.info.Available))
	if store.info.Available < lowSpace {
		row.Reason, row.Message = ReasonPoolLow, fmt.Sprintf("pool %q has %s free, too little for another machine: free space there", h.conf.Pool, mib(store.info.Available))
	}
	return nil
}

// printable makes what the host calls itself fit for a text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, short(s))
}

// connected says what is wrong with the host's network; a bridge is not
// libvirt's, and shows when a domain starts.
func (h *host) connected(ctx context.Context, c virt.Conn) error {
	if h.conf.Network == "" {
		return nil
	}
	active, err := c.NetworkLookupByName(ctx, h.conf.Network)
	switch {
	case fault.Of(err) == fault.NotFound:
		return refuse(ReasonNetworkMissing, fault.Permanent, "there is no network %q: define it there (virsh net-define), or set hosts.%s.network or bridge", h.conf.Network, h.name)
	case err == nil && !active:
		return refuse(ReasonNetworkInactive, fault.Permanent, "network %q does not run: start it there with virsh net-start %s, and virsh net-autostart %s to keep it so", h.conf.Network, h.conf.Network, h.conf.Network)
	}
	return err
}

// verdict is the reason that an error stands for.
func verdict(err error) string {
	if u, ok := errors.AsType[*unusable](err); ok {
		return u.reason
	}
	if d, ok := errors.AsType[*link.DialError](err); ok {
		switch d.Stage {
		case link.StageMaterial:
			return ReasonSSHMaterial
		case link.StageTCP:
			return ReasonUnreachable
		case link.StageSSH:
			return ReasonSSHFailed
		}
		return ReasonLibvirtFailed
	}
	switch fault.Of(err) {
	case fault.Timeout:
		return ReasonTimeout
	case fault.Unavailable:
		return ReasonLibvirtFailed
	}
	return ReasonError
}
