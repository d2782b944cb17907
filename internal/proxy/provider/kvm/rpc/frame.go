package rpc

import (
	"encoding/binary"
	"reflect"

	libvirt "github.com/digitalocean/go-libvirt"
)

// The wire format: a length, which counts itself, six more words, a payload.
const (
	headerSize    = 28
	remoteProgram = 0x20008086
	remoteVersion = 1

	typeCall    = 0
	typeReply   = 1
	typeMessage = 2
	typeStream  = 3

	statusOK       = 0
	statusError    = 1
	statusContinue = 2
)

// The most that one frame's payload may be. libvirt's own limit for a string
// is 4 MiB; most answers are a name or a few numbers.
const (
	smallPayload = 64 << 10
	documentSize = 4<<20 + 64<<10
	listSize     = 8 << 20
	maxPayload   = listSize
	// maxStray is the most of a frame that answers nothing we asked, and
	// maxStrays how many of them in a row are put up with: a daemon sends some
	// (a second end of an upload that failed), a flood is another thing.
	maxStray  = 1 << 20
	maxStrays = 1000
	// maxEvent is the most of an event's payload: a domain's name, which is the
	// name of a file, and a few numbers. maxEvents is how many come in a second
	// before that is a flood: a host has some thousands of domains.
	maxEvent  = 1 << 10
	maxEvents = 1 << 16
)

// The procedures that we call: REMOTE_PROC_* of libvirt's remote_protocol.x.
const (
	procConnectOpen   = 1
	procAuthList      = 66
	procStorageUpload = 208
	// What the daemon says by itself of a subscription's domains.
	procEventRegister  = 316
	procEventLifecycle = 318
)

type header struct {
	length, program, version, procedure, kind uint32
	serial                                    int32
	status                                    uint32
}

func parseHeader(b *[headerSize]byte) header {
	w := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	return header{w(0), w(1), w(2), w(3), w(4), int32(w(5)), w(6)}
}

func (h header) append(b []byte) []byte {
	for _, w := range []uint32{h.length, h.program, h.version, h.procedure, h.kind, uint32(h.serial), h.status} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// procedure is what we know of an answer: its shape and its bound.
type procedure struct {
	ret reflect.Type // nil: no payload
	max uint32
}

// procedureOf returns what is known of a procedure; ok is false for one that
// this package never calls.
func procedureOf(number uint32) (procedure, bool) {
	p, ok := procedures[number]
	return p, ok
}

var procedures = map[uint32]procedure{
	procConnectOpen:   {nil, 0},
	procAuthList:      ret[libvirt.AuthListRet](smallPayload),
	70:                ret[libvirt.AuthPolkitRet](smallPayload),
	157:               ret[libvirt.ConnectGetLibVersionRet](smallPayload),
	59:                ret[libvirt.ConnectGetHostnameRet](smallPayload),
	7:                 ret[libvirt.ConnectGetCapabilitiesRet](documentSize),
	342:               ret[libvirt.ConnectGetDomainCapabilitiesRet](documentSize),
	344:               ret[libvirt.ConnectGetAllDomainStatsRet](documentSize),
	procEventRegister: ret[libvirt.ConnectDomainEventCallbackRegisterAnyRet](smallPayload),
	23:                ret[libvirt.DomainLookupByNameRet](smallPayload),
	24:                ret[libvirt.DomainLookupByUUIDRet](smallPayload),
	212:               ret[libvirt.DomainGetStateRet](smallPayload),
	265:               ret[libvirt.DomainGetMetadataRet](documentSize),
	264:               {nil, 0}, // set metadata
	11:                ret[libvirt.DomainDefineXMLRet](smallPayload),
	9:                 {nil, 0}, // create
	12:                {nil, 0}, // destroy
	231:               {nil, 0}, // undefine flags
	353:               ret[libvirt.DomainInterfaceAddressesRet](documentSize),
	46:                ret[libvirt.NetworkLookupByNameRet](smallPayload),
	152:               ret[libvirt.NetworkIsActiveRet](smallPayload),
	84:                ret[libvirt.StoragePoolLookupByNameRet](smallPayload),
	87:                ret[libvirt.StoragePoolGetInfoRet](smallPayload),
	88:                ret[libvirt.StoragePoolGetXMLDescRet](documentSize),
	282:               ret[libvirt.StoragePoolListAllVolumesRet](listSize),
	95:                ret[libvirt.StorageVolLookupByNameRet](smallPayload),
	378:               ret[libvirt.StorageVolGetInfoFlagsRet](smallPayload),
	100:               ret[libvirt.StorageVolGetPathRet](smallPayload),
	93:                ret[libvirt.StorageVolCreateXMLRet](smallPayload),
	94:                {nil, 0}, // delete
	procStorageUpload: {nil, 0},
}

func ret[T any](limit uint32) procedure { return procedure{reflect.TypeFor[T](), limit} }
