package image

import (
	"encoding/binary"
	"fmt"

	"fleetdesk/internal/core/fault"
)

// MaxVirtualSize is the largest disk that an image may make, in bytes.
const MaxVirtualSize = 64 << 40

// HeaderSize is how many of an image's first bytes [ReadHeader] looks at.
const HeaderSize = 4096

// sector is the unit of a disk's size, in bytes.
const sector = 512

// Header is what an image says of itself.
type Header struct {
	Format Format
	// VirtualSize is the disk that a guest sees, in bytes: a multiple of 512.
	// For raw it is the image's length, and 0 while that is not known.
	VirtualSize int64
	// Version is qcow2's, 2 or 3, and ClusterBits its cluster size as a power of
	// two; both 0 for raw.
	Version, ClusterBits int
	// Zstd says that a qcow2's clusters may be compressed with zstd, which QEMU
	// reads from 5.1 on.
	Zstd bool
}

// Bits of a qcow2's incompatible features.
const (
	featureDirty = 1 << iota
	featureCorrupt
	featureDataFile
	featureCompression
	featureExtendedL2
	knownFeatures = featureDirty | featureCorrupt | featureDataFile | featureCompression | featureExtendedL2
)

// Limits of QEMU's own.
const (
	minClusterBits, maxClusterBits = 9, 21
	minExtendedBits                = 14
	maxL1Bytes                     = 32 << 20
	maxRefcountTable               = 8 << 20
	maxRefcountOrder               = 6
	headerV2, headerV3             = 72, 104
	zstd                           = 1
)

const convert = "make a whole one with `qemu-img convert -O qcow2`"

// ReadHeader judges the beginning of an image, of which b is at least the first
// [HeaderSize] bytes, or all when there are less. length is that of the whole
// image, 0 when it is not known.
//
// An image whose header would make the host read another file (a backing or a
// data file) is refused, and so is all that is not what was promised. Every
// error is Permanent: the image has to be replaced or promised as what it is.
func ReadHeader(b []byte, promised Format, length int64) (Header, error) {
	if len(b) == 0 {
		return Header{}, refuse("it is empty; check what the server has there")
	}
	found := sniff(b)
	switch promised.orDefault() {
	case QCOW2:
		if found.kind != kindQCOW2 {
			return Header{}, refuse("it is not qcow2 as promised: %s", found.text)
		}
		return readQCOW2(b, length)
	case Raw:
		if found.kind != kindUnknown && found.kind != kindDisk {
			return Header{}, refuse("it is not raw as promised: %s", found.text)
		}
		return readRaw(length)
	}
	return Header{}, refuse("its format %q is not known; promise qcow2 or raw", clip(string(promised)))
}

func refuse(format string, args ...any) error {
	return fault.Errorf(fault.Permanent, format, args...)
}

func readRaw(length int64) (Header, error) {
	switch {
	case length < 0:
		return Header{}, refuse("its length %d is none", length)
	case length%sector != 0:
		return Header{}, refuse("it is not raw as promised: its length of %d bytes is no multiple of %d", length, sector)
	case length > MaxVirtualSize:
		return Header{}, tooLarge(uint64(length))
	}
	return Header{Format: Raw, VirtualSize: length}, nil
}

func tooLarge(size uint64) error {
	return refuse("its disk has %d bytes, and at most %d are taken", size, int64(MaxVirtualSize))
}

// qcow2 is the header as it lies in the file: big-endian, v3's fields only
// when version is 3.
type qcow2 struct {
	version                    uint32
	backingOffset              uint64
	clusterBits                uint32
	size                       uint64
	crypt, l1Size              uint32
	l1Offset, refcountOffset   uint64
	refcountClusters           uint32
	incompatible               uint64
	refcountOrder, headerBytes uint32
	compression                byte
}

func readQCOW2(b []byte, length int64) (Header, error) {
	h, err := parseQCOW2(b)
	if err != nil {
		return Header{}, err
	}
	if err := h.check(); err != nil {
		return Header{}, err
	}
	// A file that was cut at its source is whole to HTTP.
	if length > 0 && (h.refcountOffset >= uint64(length) || h.l1Offset >= uint64(length)) {
		return Header{}, refuse("it has %d bytes and its tables lie beyond them: it was cut short before it was put there", length)
	}
	size := int64(h.size)
	return Header{
		Format: QCOW2, VirtualSize: (size + sector - 1) / sector * sector,
		Version: int(h.version), ClusterBits: int(h.clusterBits), Zstd: h.compression == zstd,
	}, nil
}

func parseQCOW2(b []byte) (h qcow2, err error) {
	u32 := func(at int) uint32 { return binary.BigEndian.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	need := headerV2
	if len(b) < need {
		return h, refuse("its qcow2 header ends after %d of %d bytes", len(b), need)
	}
	switch h.version = u32(4); h.version {
	case 0:
		return h, refuse("its qcow2 header has no version: it is damaged")
	case 1:
		return h, refuse("it is qcow version 1, which is too old; %s", convert)
	case 2:
	case 3:
		need = headerV3
	default:
		return h, refuse("it is qcow2 version %d, and 2 and 3 are known; %s", h.version, convert)
	}
	if len(b) < need {
		return h, refuse("its qcow2 header ends after %d of %d bytes", len(b), need)
	}
	h.backingOffset, h.clusterBits, h.size, h.crypt = u64(8), u32(20), u64(24), u32(32)
	h.l1Size, h.l1Offset, h.refcountOffset, h.refcountClusters = u32(36), u64(40), u64(48), u32(56)
	h.refcountOrder, h.headerBytes = 4, headerV2
	if h.version == 2 {
		return h, nil
	}
	h.incompatible, h.refcountOrder, h.headerBytes = u64(72), u32(96), u32(100)
	if h.headerBytes > headerV3 {
		if len(b) <= headerV3 {
			return h, refuse("its qcow2 header ends after %d of %d bytes", len(b), h.headerBytes)
		}
		h.compression = b[headerV3]
	}
	return h, nil
}

// check refuses what QEMU could not open, and what it should not.
func (h qcow2) check() error {
	has := func(bit uint64) bool { return h.incompatible&bit != 0 }
	switch unknown := h.incompatible &^ knownFeatures; {
	case h.backingOffset != 0:
		return refuse("its header names a backing file, which the host would read from its own disk; %s", convert)
	case has(featureDataFile):
		return refuse("its header names a data file, which the host would read from its own disk; %s", convert)
	case h.crypt != 0:
		return refuse("it is encrypted (method %d), and no host has the key; %s", h.crypt, convert)
	case unknown != 0:
		return refuse("it needs features that are not known (bits %#x); %s", unknown, convert)
	case has(featureCorrupt):
		return refuse("it is marked as corrupt; repair it with `qemu-img check -r all`, or replace it")
	case h.compression > zstd, has(featureCompression) != (h.compression != 0):
		return refuse("its clusters are compressed in a way that is not known (type %d); %s", h.compression, convert)
	}
	lowest := minClusterBits
	if has(featureExtendedL2) {
		lowest = minExtendedBits
	}
	if h.clusterBits < uint32(lowest) || h.clusterBits > maxClusterBits {
		return damaged("a cluster of 2^%d bytes", h.clusterBits)
	}
	cluster := uint64(1) << h.clusterBits
	switch {
	case h.version == 3 && (h.headerBytes < headerV3 || uint64(h.headerBytes) > cluster):
		return damaged("a header of %d bytes", h.headerBytes)
	case h.size == 0:
		return refuse("its disk has 0 bytes: there is nothing in it")
	case h.size > MaxVirtualSize:
		return tooLarge(h.size)
	case h.refcountOrder > maxRefcountOrder:
		return damaged("reference counts of 2^%d bits", h.refcountOrder)
	case h.refcountClusters == 0 || uint64(h.refcountClusters)*cluster > maxRefcountTable:
		return damaged("a reference count table of %d clusters", h.refcountClusters)
	case h.refcountOffset == 0 || h.refcountOffset%cluster != 0:
		return damaged("its reference count table at %d", h.refcountOffset)
	case h.l1Offset == 0 || h.l1Offset%cluster != 0:
		return damaged("its L1 table at %d", h.l1Offset)
	}
	// An L2 table is one cluster, its entries have 8 or 16 bytes, and each maps a
	// cluster.
	perL1 := cluster * (cluster / 8)
	if has(featureExtendedL2) {
		perL1 = cluster * (cluster / 16)
	}
	if want := (h.size + perL1 - 1) / perL1; uint64(h.l1Size) < want || uint64(h.l1Size)*8 > maxL1Bytes {
		return damaged("an L1 table of %d entries for %d bytes", h.l1Size, h.size)
	}
	return nil
}

func damaged(format string, args ...any) error {
	return refuse("its qcow2 header is damaged: it has %s", fmt.Sprintf(format, args...))
}
