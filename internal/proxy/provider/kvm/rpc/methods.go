package rpc

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	libvirt "github.com/digitalocean/go-libvirt"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// What is asked for: the only guests that the provider makes.
const (
	guestArch    = "x86_64"
	guestMachine = "q35"
)

// getPhysical is VIR_STORAGE_VOL_GET_PHYSICAL: the answer's second size is the
// length of the file in place of what it occupies. The first stays the same.
const getPhysical = 1

// ConnectGetLibVersion implements [virt.Conn].
func (c *Conn) ConnectGetLibVersion(ctx context.Context) (virt.Version, error) {
	v, err := do(ctx, c, "virConnectGetLibVersion", (*libvirt.Libvirt).ConnectGetLibVersion)
	return virt.Version(v), err
}

// ConnectGetHostname implements [virt.Conn].
func (c *Conn) ConnectGetHostname(ctx context.Context) (string, error) {
	return do(ctx, c, "virConnectGetHostname", (*libvirt.Libvirt).ConnectGetHostname)
}

// ConnectGetCapabilities implements [virt.Conn].
func (c *Conn) ConnectGetCapabilities(ctx context.Context) (string, error) {
	return do(ctx, c, "virConnectGetCapabilities", (*libvirt.Libvirt).ConnectGetCapabilities)
}

// ConnectGetDomainCapabilities implements [virt.Conn].
func (c *Conn) ConnectGetDomainCapabilities(ctx context.Context, domainType string) (string, error) {
	return do(ctx, c, "virConnectGetDomainCapabilities", func(l *libvirt.Libvirt) (string, error) {
		return l.ConnectGetDomainCapabilities(nil, libvirt.OptString{guestArch}, libvirt.OptString{guestMachine},
			libvirt.OptString{domainType}, 0)
	})
}

// ConnectGetAllDomainStats implements [virt.Conn].
func (c *Conn) ConnectGetAllDomainStats(ctx context.Context) ([]virt.DomainState, error) {
	records, err := do(ctx, c, "virConnectGetAllDomainStats", func(l *libvirt.Libvirt) ([]libvirt.DomainStatsRecord, error) {
		return l.ConnectGetAllDomainStats(nil, uint32(libvirt.DomainStatsState), 0)
	})
	if err != nil {
		return nil, err
	}
	states := make([]virt.DomainState, 0, len(records))
	for _, r := range records {
		s := virt.DomainState{Domain: domainOf(r.Dom)}
		for _, p := range r.Params {
			n, _ := p.Value.I.(int32)
			switch p.Field {
			case libvirt.DomainStatsStateState:
				s.State = virt.State(n)
			case libvirt.DomainStatsStateReason:
				s.Reason = virt.Reason(n)
			}
		}
		states = append(states, s)
	}
	return states, nil
}

// DomainLookupByName implements [virt.Conn].
func (c *Conn) DomainLookupByName(ctx context.Context, name string) (virt.Domain, error) {
	d, err := do(ctx, c, "virDomainLookupByName", func(l *libvirt.Libvirt) (libvirt.Domain, error) {
		return l.DomainLookupByName(name)
	})
	return domainOrNone(d, err)
}

// DomainLookupByUUID implements [virt.Conn].
func (c *Conn) DomainLookupByUUID(ctx context.Context, uuid string) (virt.Domain, error) {
	u, err := parseUUID(uuid)
	if err != nil {
		return virt.Domain{}, err
	}
	d, err := do(ctx, c, "virDomainLookupByUUID", func(l *libvirt.Libvirt) (libvirt.Domain, error) {
		return l.DomainLookupByUUID(u)
	})
	return domainOrNone(d, err)
}

// DomainGetState implements [virt.Conn].
func (c *Conn) DomainGetState(ctx context.Context, d virt.Domain) (virt.State, virt.Reason, error) {
	dom, err := domain(d)
	if err != nil {
		return 0, 0, err
	}
	s, err := do(ctx, c, "virDomainGetState", func(l *libvirt.Libvirt) ([2]int32, error) {
		state, reason, err := l.DomainGetState(dom, 0)
		return [2]int32{state, reason}, err
	})
	return virt.State(s[0]), virt.Reason(s[1]), err
}

// DomainGetMetadata implements [virt.Conn].
func (c *Conn) DomainGetMetadata(ctx context.Context, d virt.Domain) (string, error) {
	dom, err := domain(d)
	if err != nil {
		return "", err
	}
	return do(ctx, c, "virDomainGetMetadata", func(l *libvirt.Libvirt) (string, error) {
		return l.DomainGetMetadata(dom, int32(libvirt.DomainMetadataElement), libvirt.OptString{virt.MetadataNamespace},
			libvirt.DomainAffectCurrent)
	})
}

// DomainSetMetadata implements [virt.Conn]. It asks for both definitions, and
// for the persistent one alone when the daemon says that the domain does not
// run: what ID says of that may be old. A domain without a persistent
// definition is CodeOperationInvalid.
func (c *Conn) DomainSetMetadata(ctx context.Context, d virt.Domain, element string) error {
	dom, err := domain(d)
	if err != nil {
		return err
	}
	set := func(impact libvirt.DomainModificationImpact) error {
		return act(ctx, c, "virDomainSetMetadata", func(l *libvirt.Libvirt) error {
			return l.DomainSetMetadata(dom, int32(libvirt.DomainMetadataElement), libvirt.OptString{element},
				libvirt.OptString{virt.MetadataPrefix}, libvirt.OptString{virt.MetadataNamespace}, impact)
		})
	}
	err = set(libvirt.DomainAffectLive | libvirt.DomainAffectConfig)
	if virt.Is(err, virt.CodeOperationInvalid) {
		err = set(libvirt.DomainAffectConfig)
	}
	return err
}

// DomainDefineXML implements [virt.Conn].
func (c *Conn) DomainDefineXML(ctx context.Context, xml string) (virt.Domain, error) {
	d, err := do(ctx, c, "virDomainDefineXML", func(l *libvirt.Libvirt) (libvirt.Domain, error) {
		return l.DomainDefineXML(xml)
	})
	return domainOrNone(d, err)
}

// DomainCreate implements [virt.Conn].
func (c *Conn) DomainCreate(ctx context.Context, d virt.Domain) error {
	dom, err := domain(d)
	if err != nil {
		return err
	}
	return act(ctx, c, "virDomainCreate", func(l *libvirt.Libvirt) error { return l.DomainCreate(dom) })
}

// DomainDestroy implements [virt.Conn].
func (c *Conn) DomainDestroy(ctx context.Context, d virt.Domain) error {
	dom, err := domain(d)
	if err != nil {
		return err
	}
	return act(ctx, c, "virDomainDestroy", func(l *libvirt.Libvirt) error { return l.DomainDestroy(dom) })
}

// DomainUndefineFlags implements [virt.Conn].
func (c *Conn) DomainUndefineFlags(ctx context.Context, d virt.Domain, flags virt.UndefineFlags) error {
	dom, err := domain(d)
	if err != nil {
		return err
	}
	return act(ctx, c, "virDomainUndefineFlags", func(l *libvirt.Libvirt) error {
		return l.DomainUndefineFlags(dom, libvirt.DomainUndefineFlagsValues(flags))
	})
}

// DomainInterfaceAddresses implements [virt.Conn].
func (c *Conn) DomainInterfaceAddresses(ctx context.Context, d virt.Domain, source virt.AddressSource) ([]virt.Interface, error) {
	dom, err := domain(d)
	if err != nil {
		return nil, err
	}
	found, err := do(ctx, c, "virDomainInterfaceAddresses", func(l *libvirt.Libvirt) ([]libvirt.DomainInterface, error) {
		return l.DomainInterfaceAddresses(dom, uint32(source), 0)
	})
	if err != nil {
		return nil, err
	}
	ifaces := make([]virt.Interface, 0, len(found))
	for _, f := range found {
		i := virt.Interface{Name: f.Name}
		if len(f.Hwaddr) > 0 {
			i.MAC = strings.ToLower(f.Hwaddr[0])
		}
		for _, a := range f.Addrs {
			i.Addresses = append(i.Addresses, virt.Address{IP: a.Addr, Prefix: a.Prefix})
		}
		ifaces = append(ifaces, i)
	}
	return ifaces, nil
}

// NetworkLookupByName implements [virt.Conn].
func (c *Conn) NetworkLookupByName(ctx context.Context, name string) (bool, error) {
	n, err := do(ctx, c, "virNetworkLookupByName", func(l *libvirt.Libvirt) (libvirt.Network, error) {
		return l.NetworkLookupByName(name)
	})
	if err != nil {
		return false, err
	}
	active, err := do(ctx, c, "virNetworkIsActive", func(l *libvirt.Libvirt) (int32, error) { return l.NetworkIsActive(n) })
	return active == 1, err
}

// StoragePoolLookupByName implements [virt.Conn].
func (c *Conn) StoragePoolLookupByName(ctx context.Context, name string) (virt.Pool, error) {
	p, err := do(ctx, c, "virStoragePoolLookupByName", func(l *libvirt.Libvirt) (libvirt.StoragePool, error) {
		return l.StoragePoolLookupByName(name)
	})
	if err != nil {
		return virt.Pool{}, err
	}
	return virt.Pool{Name: p.Name, UUID: formatUUID(p.UUID)}, nil
}

// StoragePoolGetInfo implements [virt.Conn].
func (c *Conn) StoragePoolGetInfo(ctx context.Context, p virt.Pool) (virt.PoolInfo, error) {
	pool, err := storagePool(p)
	if err != nil {
		return virt.PoolInfo{}, err
	}
	return do(ctx, c, "virStoragePoolGetInfo", func(l *libvirt.Libvirt) (virt.PoolInfo, error) {
		state, capacity, allocation, available, err := l.StoragePoolGetInfo(pool)
		return virt.PoolInfo{State: virt.PoolState(state), Capacity: capacity, Allocation: allocation, Available: available}, err
	})
}

// StoragePoolGetXMLDesc implements [virt.Conn].
func (c *Conn) StoragePoolGetXMLDesc(ctx context.Context, p virt.Pool) (string, error) {
	pool, err := storagePool(p)
	if err != nil {
		return "", err
	}
	return do(ctx, c, "virStoragePoolGetXMLDesc", func(l *libvirt.Libvirt) (string, error) {
		return l.StoragePoolGetXMLDesc(pool, 0)
	})
}

// StoragePoolListAllVolumes implements [virt.Conn].
func (c *Conn) StoragePoolListAllVolumes(ctx context.Context, p virt.Pool) ([]virt.Volume, error) {
	pool, err := storagePool(p)
	if err != nil {
		return nil, err
	}
	found, err := do(ctx, c, "virStoragePoolListAllVolumes", func(l *libvirt.Libvirt) ([]libvirt.StorageVol, error) {
		vols, _, err := l.StoragePoolListAllVolumes(pool, 1, 0)
		return vols, err
	})
	if err != nil {
		return nil, err
	}
	volumes := make([]virt.Volume, 0, len(found))
	for _, v := range found {
		volumes = append(volumes, volumeOf(v))
	}
	return volumes, nil
}

// StorageVolLookupByName implements [virt.Conn].
func (c *Conn) StorageVolLookupByName(ctx context.Context, p virt.Pool, name string) (virt.Volume, error) {
	pool, err := storagePool(p)
	if err != nil {
		return virt.Volume{}, err
	}
	v, err := do(ctx, c, "virStorageVolLookupByName", func(l *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return l.StorageVolLookupByName(pool, name)
	})
	return volumeOf(v), err
}

// StorageVolGetInfo implements [virt.Conn]. One call tells both sizes.
func (c *Conn) StorageVolGetInfo(ctx context.Context, v virt.Volume) (virt.VolumeInfo, error) {
	return do(ctx, c, "virStorageVolGetInfo", func(l *libvirt.Libvirt) (virt.VolumeInfo, error) {
		_, capacity, physical, err := l.StorageVolGetInfoFlags(storageVol(v), getPhysical)
		return virt.VolumeInfo{Capacity: capacity, Physical: physical}, err
	})
}

// StorageVolGetPath implements [virt.Conn].
func (c *Conn) StorageVolGetPath(ctx context.Context, v virt.Volume) (string, error) {
	return do(ctx, c, "virStorageVolGetPath", func(l *libvirt.Libvirt) (string, error) {
		return l.StorageVolGetPath(storageVol(v))
	})
}

// StorageVolCreateXML implements [virt.Conn].
func (c *Conn) StorageVolCreateXML(ctx context.Context, p virt.Pool, xml string) (virt.Volume, error) {
	pool, err := storagePool(p)
	if err != nil {
		return virt.Volume{}, err
	}
	v, err := do(ctx, c, "virStorageVolCreateXML", func(l *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return l.StorageVolCreateXML(pool, xml, 0)
	})
	return volumeOf(v), err
}

// StorageVolDelete implements [virt.Conn].
func (c *Conn) StorageVolDelete(ctx context.Context, v virt.Volume) error {
	return act(ctx, c, "virStorageVolDelete", func(l *libvirt.Libvirt) error { return l.StorageVolDelete(storageVol(v), 0) })
}

func domain(d virt.Domain) (libvirt.Domain, error) {
	u, err := parseUUID(d.UUID)
	return libvirt.Domain{Name: d.Name, UUID: u, ID: d.ID}, err
}

func domainOf(d libvirt.Domain) virt.Domain {
	return virt.Domain{Name: d.Name, UUID: formatUUID(d.UUID), ID: d.ID}
}

func domainOrNone(d libvirt.Domain, err error) (virt.Domain, error) {
	if err != nil {
		return virt.Domain{}, err
	}
	return domainOf(d), nil
}

func storagePool(p virt.Pool) (libvirt.StoragePool, error) {
	u, err := parseUUID(p.UUID)
	return libvirt.StoragePool{Name: p.Name, UUID: u}, err
}

func storageVol(v virt.Volume) libvirt.StorageVol {
	return libvirt.StorageVol{Pool: v.Pool, Name: v.Name, Key: v.Key}
}

func volumeOf(v libvirt.StorageVol) virt.Volume {
	return virt.Volume{Pool: v.Pool, Name: v.Name, Key: v.Key}
}

func formatUUID(u libvirt.UUID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// parseUUID is the inverse of formatUUID; upper case is read too.
func parseUUID(s string) (libvirt.UUID, error) {
	var u libvirt.UUID
	if len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		if n, err := hex.Decode(u[:], []byte(strings.ReplaceAll(s, "-", ""))); err == nil && n == len(u) {
			return u, nil
		}
	}
	return libvirt.UUID{}, fault.Errorf(fault.Invalid, "%.40q is not a UUID in the form 01234567-89ab-cdef-0123-456789abcdef", s)
}
