package domain

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"fleetdesk/internal/proxy/provider"
)

const (
	// maxDomain is the budget of a domain's name in bytes. libvirt puts it into
	// paths of unix sockets (108 bytes in all), into file names and, by its
	// host name, into DNS.
	maxDomain = 50
	// namePrefix begins every domain's name.
	namePrefix = "fd-"
	// The hash at the end of a name: so many letters that tell the installation,
	// and then those that tell the UID too.
	installationLetters, ownerLetters = 4, 12
	tagLetters                        = installationLetters + ownerLetters
	// What ends the names of the volumes.
	overlayEnd, seedEnd = ".qcow2", "-seed.iso"
	// macPrefix is the first byte of every MAC address: unicast, and locally
	// administered in the way that IEEE 802c leaves to whoever runs the network.
	macPrefix = 0x52
)

// Names are what belongs to one owner on a host. They are derived, so that a
// provider that lost its memory finds all of it again.
type Names struct {
	// Domain is the domain's name and the guest's host name: a DNS label of at
	// most 50 bytes.
	Domain string
	// Overlay and Seed are the names of its two volumes.
	Overlay, Seed string
}

// NamesOf returns the names of an owner's things. A person reads namespace and
// name in them as far as there is room; the hash over installation and UID at
// the end keeps apart what was cut to the same text, two installations on one
// host, and an object that was made again under its old name. The first letters
// of the hash are the same for all of an installation ([Ours]).
func NamesOf(o provider.Owner) Names {
	hash := Tag(o.Installation, o.UID)
	room := maxDomain - len(namePrefix) - len(hash) - 1
	name := namePrefix + hash
	if text := label(o.Namespace+"-"+o.Name, room); text != "" {
		name = namePrefix + text + "-" + hash
	}
	return Names{Domain: name, Overlay: name + overlayEnd, Seed: name + seedEnd}
}

// Tag is the hash that ends an owner's names. It depends on installation and
// UID alone: it is known of an owner of whom nothing else is.
func Tag(installation, uid string) string {
	return installationTag(installation) + letters("names", provider.Owner{Installation: installation, UID: uid}, ownerLetters)
}

// Part is what the name of a volume says that is one of [Names].
type Part struct {
	// Domain is the domain's name, Tag its owner's [Tag].
	Domain, Tag string
	// Seed says that it is the seed; else it is the overlay.
	Seed bool
}

// PartOf reads a volume's name; ok is false for all that [NamesOf] does not
// give in this installation.
func PartOf(volume, installation string) (part Part, ok bool) {
	name, seed := strings.CutSuffix(volume, seedEnd)
	if !seed {
		if name, ok = strings.CutSuffix(volume, overlayEnd); !ok {
			return Part{}, false
		}
	}
	if !Ours(name, installation) {
		return Part{}, false
	}
	room := maxDomain - len(namePrefix) - tagLetters - 1
	text, tag := name[len(namePrefix):len(name)-tagLetters], name[len(name)-tagLetters:]
	if strings.Trim(tag, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return Part{}, false
	}
	if text != "" {
		if text, ok = strings.CutSuffix(text, "-"); !ok || text == "" || label(text, room) != text {
			return Part{}, false
		}
	}
	return Part{Domain: name, Tag: tag, Seed: seed}, true
}

// Ours reports whether a domain's name is one that [NamesOf] gives in this
// installation. It tells whose a domain is whose metadata cannot be read: enough
// to show it, and never enough to do anything to it, nor to a volume of that name
// while there is a domain that may stand on it.
func Ours(name, installation string) bool {
	const hash = installationLetters + ownerLetters
	if !strings.HasPrefix(name, namePrefix) || len(name) < len(namePrefix)+hash || len(name) > maxDomain {
		return false
	}
	return strings.HasPrefix(name[len(name)-hash-1:], "-"+installationTag(installation))
}

// installationTag is the part of a name that all of an installation have.
func installationTag(installation string) string {
	return letters("installation", provider.Owner{Installation: installation}, installationLetters)
}

// letters returns n letters of a hash, of [a-z2-7].
func letters(use string, o provider.Owner, n int) string {
	sum := digest(use, o)
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:n]
}

// label makes text a part of a DNS label: [a-z0-9] and single dashes between
// them, at most limit bytes.
func label(text string, limit int) string {
	var b strings.Builder
	dash := false
	for i := range len(text) {
		c := text[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if !lowerAlnum(c) {
			dash = b.Len() > 0
			continue
		}
		if dash {
			if b.Len()+1 >= limit {
				break
			}
			b.WriteByte('-')
			dash = false
		}
		if b.Len() >= limit {
			break
		}
		b.WriteByte(c)
	}
	return b.String()
}

func lowerAlnum(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' }

// UUIDOf returns the UUID of an owner's domain: of version 8 (RFC 9562), made
// from a hash, in the canonical form. libvirt refuses a second domain with it,
// so that two calls at once cannot make two machines of one owner.
func UUIDOf(o provider.Owner) string {
	sum := digest("uuid", o)
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// MACOf returns the MAC address of an owner's domain, lower case with colons:
// locally administered, unicast, and with 40 bits of a hash, so that it is the
// same after the machine was made again and two machines on one network hardly
// ever share one.
func MACOf(o provider.Owner) string {
	sum := digest("mac", o)
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", macPrefix, sum[0], sum[1], sum[2], sum[3], sum[4])
}

// digest is the hash that everything derived comes from; use keeps apart what
// is derived for different ends. Lengths go in before the texts, so that no two
// owners give the same input.
func digest(use string, o provider.Owner) [sha256.Size]byte {
	var in []byte
	for _, s := range []string{"fleetdesk/kvm/1", use, o.Installation, o.UID} {
		in = binary.BigEndian.AppendUint64(in, uint64(len(s)))
		in = append(in, s...)
	}
	return sha256.Sum256(in)
}
