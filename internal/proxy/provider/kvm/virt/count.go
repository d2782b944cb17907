package virt

import (
	"context"
	"io"
)

// Counted returns c with each call's public API name told to note before the
// call runs. An error of note is returned in the call's place, and c is not
// asked: tests count calls, fail the k-th one, or cancel at it. note may be
// called concurrently.
func Counted(c Conn, note func(rpc string) error) Conn { return &counted{c, note} }

type counted struct {
	c    Conn
	note func(rpc string) error
}

func (n *counted) ConnectGetLibVersion(ctx context.Context) (r0 Version, err error) {
	if err := n.note("virConnectGetLibVersion"); err != nil {
		return r0, err
	}
	return n.c.ConnectGetLibVersion(ctx)
}

func (n *counted) ConnectGetHostname(ctx context.Context) (r0 string, err error) {
	if err := n.note("virConnectGetHostname"); err != nil {
		return r0, err
	}
	return n.c.ConnectGetHostname(ctx)
}

func (n *counted) ConnectGetCapabilities(ctx context.Context) (r0 string, err error) {
	if err := n.note("virConnectGetCapabilities"); err != nil {
		return r0, err
	}
	return n.c.ConnectGetCapabilities(ctx)
}

func (n *counted) ConnectGetDomainCapabilities(ctx context.Context, domainType string) (r0 string, err error) {
	if err := n.note("virConnectGetDomainCapabilities"); err != nil {
		return r0, err
	}
	return n.c.ConnectGetDomainCapabilities(ctx, domainType)
}

func (n *counted) ConnectGetAllDomainStats(ctx context.Context) (r0 []DomainState, err error) {
	if err := n.note("virConnectGetAllDomainStats"); err != nil {
		return r0, err
	}
	return n.c.ConnectGetAllDomainStats(ctx)
}

func (n *counted) ConnectDomainEventRegisterAny(ctx context.Context) (r0 <-chan DomainEvent, err error) {
	if err := n.note("virConnectDomainEventRegisterAny"); err != nil {
		return r0, err
	}
	return n.c.ConnectDomainEventRegisterAny(ctx)
}

func (n *counted) DomainLookupByName(ctx context.Context, name string) (r0 Domain, err error) {
	if err := n.note("virDomainLookupByName"); err != nil {
		return r0, err
	}
	return n.c.DomainLookupByName(ctx, name)
}

func (n *counted) DomainLookupByUUID(ctx context.Context, uuid string) (r0 Domain, err error) {
	if err := n.note("virDomainLookupByUUID"); err != nil {
		return r0, err
	}
	return n.c.DomainLookupByUUID(ctx, uuid)
}

func (n *counted) DomainGetState(ctx context.Context, d Domain) (r0 State, r1 Reason, err error) {
	if err := n.note("virDomainGetState"); err != nil {
		return r0, r1, err
	}
	return n.c.DomainGetState(ctx, d)
}

func (n *counted) DomainGetMetadata(ctx context.Context, d Domain) (r0 string, err error) {
	if err := n.note("virDomainGetMetadata"); err != nil {
		return r0, err
	}
	return n.c.DomainGetMetadata(ctx, d)
}

func (n *counted) DomainSetMetadata(ctx context.Context, d Domain, element string) error {
	if err := n.note("virDomainSetMetadata"); err != nil {
		return err
	}
	return n.c.DomainSetMetadata(ctx, d, element)
}

func (n *counted) DomainDefineXML(ctx context.Context, xml string) (r0 Domain, err error) {
	if err := n.note("virDomainDefineXML"); err != nil {
		return r0, err
	}
	return n.c.DomainDefineXML(ctx, xml)
}

func (n *counted) DomainCreate(ctx context.Context, d Domain) error {
	if err := n.note("virDomainCreate"); err != nil {
		return err
	}
	return n.c.DomainCreate(ctx, d)
}

func (n *counted) DomainDestroy(ctx context.Context, d Domain) error {
	if err := n.note("virDomainDestroy"); err != nil {
		return err
	}
	return n.c.DomainDestroy(ctx, d)
}

func (n *counted) DomainUndefineFlags(ctx context.Context, d Domain, flags UndefineFlags) error {
	if err := n.note("virDomainUndefineFlags"); err != nil {
		return err
	}
	return n.c.DomainUndefineFlags(ctx, d, flags)
}

func (n *counted) DomainInterfaceAddresses(ctx context.Context, d Domain, source AddressSource) (r0 []Interface, err error) {
	if err := n.note("virDomainInterfaceAddresses"); err != nil {
		return r0, err
	}
	return n.c.DomainInterfaceAddresses(ctx, d, source)
}

func (n *counted) NetworkLookupByName(ctx context.Context, name string) (r0 bool, err error) {
	if err := n.note("virNetworkLookupByName"); err != nil {
		return r0, err
	}
	return n.c.NetworkLookupByName(ctx, name)
}

func (n *counted) StoragePoolLookupByName(ctx context.Context, name string) (r0 Pool, err error) {
	if err := n.note("virStoragePoolLookupByName"); err != nil {
		return r0, err
	}
	return n.c.StoragePoolLookupByName(ctx, name)
}

func (n *counted) StoragePoolGetInfo(ctx context.Context, p Pool) (r0 PoolInfo, err error) {
	if err := n.note("virStoragePoolGetInfo"); err != nil {
		return r0, err
	}
	return n.c.StoragePoolGetInfo(ctx, p)
}

func (n *counted) StoragePoolGetXMLDesc(ctx context.Context, p Pool) (r0 string, err error) {
	if err := n.note("virStoragePoolGetXMLDesc"); err != nil {
		return r0, err
	}
	return n.c.StoragePoolGetXMLDesc(ctx, p)
}

func (n *counted) StoragePoolListAllVolumes(ctx context.Context, p Pool) (r0 []Volume, err error) {
	if err := n.note("virStoragePoolListAllVolumes"); err != nil {
		return r0, err
	}
	return n.c.StoragePoolListAllVolumes(ctx, p)
}

func (n *counted) StorageVolLookupByName(ctx context.Context, p Pool, name string) (r0 Volume, err error) {
	if err := n.note("virStorageVolLookupByName"); err != nil {
		return r0, err
	}
	return n.c.StorageVolLookupByName(ctx, p, name)
}

func (n *counted) StorageVolGetInfo(ctx context.Context, v Volume) (r0 VolumeInfo, err error) {
	if err := n.note("virStorageVolGetInfo"); err != nil {
		return r0, err
	}
	return n.c.StorageVolGetInfo(ctx, v)
}

func (n *counted) StorageVolGetPath(ctx context.Context, v Volume) (r0 string, err error) {
	if err := n.note("virStorageVolGetPath"); err != nil {
		return r0, err
	}
	return n.c.StorageVolGetPath(ctx, v)
}

func (n *counted) StorageVolCreateXML(ctx context.Context, p Pool, xml string) (r0 Volume, err error) {
	if err := n.note("virStorageVolCreateXML"); err != nil {
		return r0, err
	}
	return n.c.StorageVolCreateXML(ctx, p, xml)
}

func (n *counted) StorageVolDelete(ctx context.Context, v Volume) error {
	if err := n.note("virStorageVolDelete"); err != nil {
		return err
	}
	return n.c.StorageVolDelete(ctx, v)
}

func (n *counted) StorageVolUpload(ctx context.Context, v Volume, r io.Reader, length uint64) error {
	if err := n.note("virStorageVolUpload"); err != nil {
		return err
	}
	return n.c.StorageVolUpload(ctx, v, r, length)
}
