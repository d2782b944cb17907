package virt

import (
	"context"
	"fmt"
	"io"
)

// MetadataNamespace is the XML namespace of the one element that the provider
// keeps in a domain's metadata, MetadataPrefix the prefix libvirt writes it
// with.
const (
	MetadataNamespace = "https://crawl.example.com/fleetdesk/kvm/1"
	MetadataPrefix    = "fleetdesk"
)

// Conn is one connection to one libvirt daemon (qemu:///system). All methods
// may be called concurrently. Each waits for its answer until ctx ends; then
// it returns the context's error while the connection stays as it is, and the
// late answer is dropped. What a call whose context ended did on the host is
// unknown.
//
// Errors have a class of core/fault. What the daemon itself answered is an
// [*Error], reachable by errors.As; the class says NotFound only when the
// daemon answered that the thing asked for is not there. When the connection
// ended, the class is Unavailable.
type Conn interface {
	// ConnectGetLibVersion returns the daemon's version.
	ConnectGetLibVersion(ctx context.Context) (Version, error)
	// ConnectGetHostname returns the host's own name.
	ConnectGetHostname(ctx context.Context) (string, error)
	// ConnectGetCapabilities returns the <capabilities> document.
	ConnectGetCapabilities(ctx context.Context) (string, error)
	// ConnectGetDomainCapabilities returns the <domainCapabilities> of the
	// machine q35 on x86_64 for a domain type ("kvm", "qemu"). A type that the
	// host does not offer is an error (CodeInvalidArg on common daemons).
	ConnectGetDomainCapabilities(ctx context.Context, domainType string) (string, error)
	// ConnectGetAllDomainStats returns the state of every domain of the host,
	// active or not, in one call.
	ConnectGetAllDomainStats(ctx context.Context) ([]DomainState, error)
	// ConnectDomainEventRegisterAny subscribes to what happens in the lives of
	// all domains, from when it returns until ctx ends or the connection does;
	// then the channel is closed. At most [EventBuffer] events wait in it: one
	// that is not emptied in time has [EventsMissed] as its last. A subscription
	// is no call that waits, and nothing of it blocks the connection.
	ConnectDomainEventRegisterAny(ctx context.Context) (<-chan DomainEvent, error)

	// DomainLookupByName and DomainLookupByUUID find one domain.
	DomainLookupByName(ctx context.Context, name string) (Domain, error)
	DomainLookupByUUID(ctx context.Context, uuid string) (Domain, error)
	// DomainGetState returns what the domain is doing, and why.
	DomainGetState(ctx context.Context, d Domain) (State, Reason, error)
	// DomainGetMetadata returns the element of [MetadataNamespace], without its
	// namespace declaration, as libvirt hands it back. None is NotFound
	// (CodeNoDomainMetadata).
	DomainGetMetadata(ctx context.Context, d Domain) (string, error)
	// DomainSetMetadata replaces that element, in the persistent definition
	// and, when the domain is active, in the running one. The element is given
	// without its namespace declaration.
	DomainSetMetadata(ctx context.Context, d Domain, element string) error
	// DomainDefineXML makes the domain persistent, or replaces the definition
	// of one with the same name and UUID. A name that exists with another UUID
	// is Conflict (CodeOperationFailed on common daemons).
	DomainDefineXML(ctx context.Context, xml string) (Domain, error)
	// DomainCreate starts a defined domain. One that runs is CodeOperationInvalid.
	DomainCreate(ctx context.Context, d Domain) error
	// DomainDestroy ends an active domain at once. One that does not run is
	// CodeOperationInvalid.
	DomainDestroy(ctx context.Context, d Domain) error
	// DomainUndefineFlags removes the definition with what the flags name. A
	// flag that the daemon does not know is CodeInvalidArg.
	DomainUndefineFlags(ctx context.Context, d Domain, flags UndefineFlags) error
	// DomainInterfaceAddresses returns what one source knows of the domain's
	// addresses. An agent that is not connected is CodeAgentUnresponsive.
	DomainInterfaceAddresses(ctx context.Context, d Domain, source AddressSource) ([]Interface, error)

	// NetworkLookupByName returns whether the network is active.
	NetworkLookupByName(ctx context.Context, name string) (active bool, err error)

	// StoragePoolLookupByName finds one pool, active or not.
	StoragePoolLookupByName(ctx context.Context, name string) (Pool, error)
	// StoragePoolGetInfo returns state and space.
	StoragePoolGetInfo(ctx context.Context, p Pool) (PoolInfo, error)
	// StoragePoolGetXMLDesc returns the <pool> document: its type and path.
	StoragePoolGetXMLDesc(ctx context.Context, p Pool) (string, error)
	// StoragePoolListAllVolumes returns the pool's volumes.
	StoragePoolListAllVolumes(ctx context.Context, p Pool) ([]Volume, error)

	// StorageVolLookupByName finds one volume of a pool.
	StorageVolLookupByName(ctx context.Context, p Pool, name string) (Volume, error)
	// StorageVolGetInfo returns the volume's sizes; see [VolumeInfo].
	StorageVolGetInfo(ctx context.Context, v Volume) (VolumeInfo, error)
	// StorageVolGetPath returns the volume's path on the host.
	StorageVolGetPath(ctx context.Context, v Volume) (string, error)
	// StorageVolCreateXML makes a volume. A name that exists is Conflict
	// (CodeStorageVolExist), a full pool Quota.
	StorageVolCreateXML(ctx context.Context, p Pool, xml string) (Volume, error)
	// StorageVolDelete removes a volume.
	StorageVolDelete(ctx context.Context, v Volume) error
	// StorageVolUpload writes what r gives into the volume from its beginning;
	// length is the number of bytes if known, else 0. Packets are at most
	// [UploadChunk] bytes, so that other calls on the same connection are not
	// held up. An error of r ends it and is returned, as r gave it. r is not
	// read any more when StorageVolUpload has returned, except for one Read
	// that was under way.
	StorageVolUpload(ctx context.Context, v Volume, r io.Reader, length uint64) error
}

// UploadChunk is the most that one packet of an upload carries, in bytes.
const UploadChunk = 64 << 10

// Version is a libvirt version: major*1,000,000 + minor*1,000 + release.
type Version uint64

// String is the usual form: 9.0.0.
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v/1_000_000, v/1_000%1_000, v%1_000)
}

// Domain names a domain.
type Domain struct {
	Name string
	// UUID is in the canonical form, lower case with dashes.
	UUID string
	// ID is the running domain's number, which changes with each start; below
	// zero while it does not run.
	ID int32
}

// DomainState is one row of ConnectGetAllDomainStats.
type DomainState struct {
	Domain Domain
	State  State
	Reason Reason
}

// State is what a domain is doing: libvirt's virDomainState.
type State int32

// The states of a domain.
const (
	StateNoState State = iota
	StateRunning
	StateBlocked
	StatePaused
	StateShutdown
	StateShutoff
	StateCrashed
	StatePMSuspended
)

// Reason says why a domain is in its state; the numbers mean another thing for
// each state, as in libvirt.
type Reason int32

// The reasons that have a meaning here. Those named Paused… go with StatePaused,
// and so on.
const (
	RunningBooted         Reason = 1
	RunningRestored       Reason = 3
	RunningPostcopyFailed Reason = 11

	PausedUnknown        Reason = 0
	PausedUser           Reason = 1
	PausedMigration      Reason = 2
	PausedSave           Reason = 3
	PausedDump           Reason = 4
	PausedIOError        Reason = 5
	PausedWatchdog       Reason = 6
	PausedFromSnapshot   Reason = 7
	PausedShuttingDown   Reason = 8
	PausedSnapshot       Reason = 9
	PausedCrashed        Reason = 10
	PausedStartingUp     Reason = 11
	PausedPostcopy       Reason = 12
	PausedPostcopyFailed Reason = 13
	PausedAPIError       Reason = 14

	ShutoffUnknown      Reason = 0
	ShutoffShutdown     Reason = 1
	ShutoffDestroyed    Reason = 2
	ShutoffCrashed      Reason = 3
	ShutoffMigrated     Reason = 4
	ShutoffSaved        Reason = 5
	ShutoffFailed       Reason = 6
	ShutoffFromSnapshot Reason = 7
	ShutoffDaemon       Reason = 8
)

// UndefineFlags is libvirt's virDomainUndefineFlagsValues.
type UndefineFlags uint32

// What an undefine removes besides the definition.
const (
	UndefineManagedSave UndefineFlags = 1 << iota
	UndefineSnapshotsMetadata
	UndefineNVRAM
	_ // keep NVRAM
	UndefineCheckpointsMetadata
	UndefineTPM
)

// AddressSource is where a domain's addresses are learned.
type AddressSource uint32

// The sources of addresses.
const (
	FromLease AddressSource = iota
	FromAgent
	FromARP
)

// Interface is a network interface of a domain, as one source sees it.
type Interface struct {
	Name string
	// MAC is lower case with colons; empty when the source does not tell it.
	MAC       string
	Addresses []Address
}

// Address is an IP address with its prefix length, as libvirt writes it.
type Address struct {
	IP     string
	Prefix uint32
}

// Pool names a storage pool.
type Pool struct{ Name, UUID string }

// PoolState is libvirt's virStoragePoolState.
type PoolState uint8

// The states of a pool.
const (
	PoolInactive PoolState = iota
	PoolBuilding
	PoolRunning
	PoolDegraded
	PoolInaccessible
)

// PoolInfo is a pool's state and space, in bytes.
type PoolInfo struct {
	State                           PoolState
	Capacity, Allocation, Available uint64
}

// Volume names a volume.
type Volume struct {
	Pool, Name string
	// Key is libvirt's own key; for files, the path.
	Key string
}

// VolumeInfo is a volume's sizes in bytes: Capacity is what a guest sees,
// Physical the length of the file behind it.
type VolumeInfo struct{ Capacity, Physical uint64 }
