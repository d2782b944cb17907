package image

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
)

// The grammar of names, all in [a-z0-9.-]:
//
//	fleetdesk-image-KEY-NONCE.FORMAT                 a volume with an image
//	fleetdesk-image-KEY-NONCE.FORMAT.verified-SIZE   its marker
//
// KEY is 40 hex digits (10 of the installation, 10 of the provider, 20 of the
// source), NONCE 16, FORMAT qcow2 or raw, and SIZE decimal bytes without leading zeros. What does
// not fit to the letter is not ours.
const (
	namePrefix    = "fleetdesk-image-"
	markerInfix   = ".verified-"
	installChars  = 10
	providerChars = 10
	sourceChars   = 20
	keyChars      = installChars + providerChars + sourceChars
	nonceChars    = 16
)

// Key is what all volumes of one source share that one provider of an
// installation made: 40 hex digits, the same at each start. Another
// installation, provider, URL, digest or format is another key, so that nothing
// is ever replaced in place, and two providers on one host do not take each
// other's uploads for leftovers.
func Key(installation, provider string, s Source) string {
	return maker(installation, provider) +
		digits(sourceChars, installation, provider, s.URL, strings.ToLower(s.SHA256), string(s.Format.orDefault()))
}

// maker is what begins the keys of one provider of an installation.
func maker(installation, provider string) string {
	return digits(installChars, installation) + digits(providerChars, installation, provider)
}

// digits gives n hex digits. Each part is preceded by its length: no two lists of
// parts are the same bytes.
func digits(n int, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))[:n]
}

// Nonce is new each time: two uploads of one image, by one operator or by two,
// never write to one volume.
func Nonce() string {
	b := make([]byte, nonceChars/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// VolumeName is the name of a volume of that key. An empty format is qcow2.
func VolumeName(key, nonce string, f Format) string {
	return namePrefix + key + "-" + nonce + "." + string(f.orDefault())
}

// MarkerName is the name of the volume that says that volume is whole and
// verified; it carries the disk's size, so that a cached image need not be read
// again.
func MarkerName(volume string, virtualSize int64) string {
	return volume + markerInfix + strconv.FormatInt(virtualSize, 10)
}

// Name is what a volume's name says.
type Name struct {
	Key, Nonce string
	Format     Format
	// Volume is the name of the volume with the image: for a marker, the one
	// that it speaks of.
	Volume string
	// Marker says that the name is a marker's, VirtualSize what it carries.
	Marker      bool
	VirtualSize int64
}

// Of reports whether that installation made the volume, whatever its provider
// and source are.
func (n Name) Of(installation string) bool {
	return strings.HasPrefix(n.Key, digits(installChars, installation))
}

// By reports whether that provider of the installation made the volume,
// whatever its source is: that is whose sweep may remove it.
func (n Name) By(installation, provider string) bool {
	return strings.HasPrefix(n.Key, maker(installation, provider))
}

// ParseName reads the name of a volume or marker; ok is false for all that is
// none of ours.
func ParseName(s string) (n Name, ok bool) {
	volume, size, marker := strings.Cut(s, markerInfix)
	if marker {
		v, err := strconv.ParseInt(size, 10, 64)
		if err != nil || v <= 0 || strconv.FormatInt(v, 10) != size {
			return Name{}, false
		}
		n.Marker, n.VirtualSize = true, v
	}
	rest, ours := strings.CutPrefix(volume, namePrefix)
	rest, format, dotted := strings.Cut(rest, ".")
	key, nonce, dashed := strings.Cut(rest, "-")
	n.Key, n.Nonce, n.Format, n.Volume = key, nonce, Format(format), volume
	if !ours || !dotted || !dashed || !isLowerHex(key, keyChars) || !isLowerHex(nonce, nonceChars) ||
		n.Format != QCOW2 && n.Format != Raw {
		return Name{}, false
	}
	return n, true
}

func isLowerHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// Verified reports whether a volume has its marker among the names of a pool's
// volumes.
func Verified(names []string, volume string) bool {
	return slices.ContainsFunc(names, func(s string) bool {
		n, ok := ParseName(s)
		return ok && n.Marker && n.Volume == volume
	})
}

// Cached is an image that a pool holds whole.
type Cached struct {
	// Volume is its name, Marker that of its marker.
	Volume, Marker string
	Format         Format
	// VirtualSize is the disk that a guest sees, in bytes.
	VirtualSize int64
}

// Find returns the verified image of a key among the names of a pool's volumes,
// the first by name if there are several. halves are what is not whole: volumes
// of the key without a marker, which may be uploads under way, and markers
// without their volume; sorted. Names that are not of the key are passed over.
func Find(names []string, key string) (c Cached, ok bool, halves []string) {
	there := make(map[string]bool)
	markers := make(map[string][]Name)
	for _, s := range names {
		switch n, ours := ParseName(s); {
		case !ours || n.Key != key:
		case n.Marker:
			if !slices.Contains(markers[n.Volume], n) {
				markers[n.Volume] = append(markers[n.Volume], n)
			}
		default:
			there[s] = true
		}
	}
	for volume := range there {
		if len(markers[volume]) == 0 {
			halves = append(halves, volume)
		}
	}
	for volume, ms := range markers {
		// Nobody writes a second marker. If there is one, the larger size is the
		// safe one: an overlay may be larger than its base, never smaller.
		m := slices.MaxFunc(ms, func(a, b Name) int { return cmp.Compare(a.VirtualSize, b.VirtualSize) })
		if !there[volume] {
			for _, m := range ms {
				halves = append(halves, MarkerName(volume, m.VirtualSize))
			}
		} else if !ok || volume < c.Volume {
			ok, c = true, Cached{Volume: volume, Marker: MarkerName(volume, m.VirtualSize), Format: m.Format, VirtualSize: m.VirtualSize}
		}
	}
	slices.Sort(halves)
	return c, ok, halves
}
