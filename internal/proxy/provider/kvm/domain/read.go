package domain

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"fleetdesk/internal/core/fault"
)

// Bounds of what a host says: bytes of a document, and elements inside each
// other. A host with many CPUs and devices has some hundred KiB, and a depth
// below twenty.
const (
	maxDocument = 1 << 20
	maxDepth    = 64
	// maxTypes bounds the domain types that are kept: libvirt has about ten.
	maxTypes = 32
)

// scan reads a document to its end and returns its root. It refuses what is too
// long or too deep, a document type (libvirt sends none), and anything but one
// element.
func scan(doc string, limit int) (xml.StartElement, error) {
	var root xml.StartElement
	if len(doc) > limit {
		return root, fmt.Errorf("it has %d bytes: at most %d are read", len(doc), limit)
	}
	d := xml.NewDecoder(strings.NewReader(doc))
	depth, roots := 0, 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return root, fmt.Errorf("it is no XML: %.200q", err.Error())
		}
		switch t := tok.(type) {
		case xml.StartElement:
			if depth == 0 {
				roots++
				root = t.Copy()
			}
			if depth++; depth > maxDepth {
				return root, fmt.Errorf("its elements are more than %d deep", maxDepth)
			}
		case xml.EndElement:
			depth--
		case xml.Directive:
			return root, errors.New("it has a document type")
		case xml.CharData:
			if depth == 0 && strings.TrimSpace(string(t)) != "" {
				return root, errors.New("it has text outside of its element")
			}
		}
	}
	if roots != 1 {
		return root, fmt.Errorf("it has %d elements, not one", roots)
	}
	return root, nil
}

// read decodes a document of a host into v. Failure is Permanent: this is no
// libvirt that the provider knows.
func read(doc, root string, v any) error {
	got, err := scan(doc, maxDocument)
	switch {
	case err != nil:
	case got.Name.Local != root:
		err = fmt.Errorf("it begins with <%.80q>", got.Name.Local)
	default:
		if err = xml.Unmarshal([]byte(doc), v); err != nil {
			err = fmt.Errorf("it is no XML: %.200q", err.Error())
		}
	}
	if err != nil {
		return fault.Errorf(fault.Permanent,
			"libvirt's <%s> document cannot be read: %w: see with virsh whether this is a libvirt of version 6 or later", root, err)
	}
	return nil
}

// Offer is what a host can run as a whole PC of this provider's architecture.
type Offer struct {
	// Types are the domain types for hvm on x86_64, as the host lists them:
	// "qemu" emulates, "kvm" accelerates. Empty when the host has no emulator
	// for x86_64.
	Types []string
	// Arch is the host's own architecture.
	Arch string
}

// ReadCapabilities reads a host's <capabilities>. A document that is none is
// Permanent.
//
// That a host lists kvm means that /dev/kvm opens there, and no more: a guest
// may still not run on it.
func ReadCapabilities(doc string) (Offer, error) {
	var caps struct {
		Arch   string `xml:"host>cpu>arch"`
		Guests []struct {
			OS   string `xml:"os_type"`
			Arch struct {
				Name    string `xml:"name,attr"`
				Domains []struct {
					Type string `xml:"type,attr"`
				} `xml:"domain"`
			} `xml:"arch"`
		} `xml:"guest"`
	}
	if err := read(doc, "capabilities", &caps); err != nil {
		return Offer{}, err
	}
	o := Offer{Arch: strings.TrimSpace(caps.Arch)}
	for _, g := range caps.Guests {
		if strings.TrimSpace(g.OS) != "hvm" || g.Arch.Name != arch {
			continue
		}
		for _, d := range g.Arch.Domains {
			if d.Type != "" && len(o.Types) < maxTypes && !slices.Contains(o.Types, d.Type) {
				o.Types = append(o.Types, d.Type)
			}
		}
	}
	return o, nil
}

// Domain types that the provider can make.
const (
	typeKVM  = "kvm"
	typeQEMU = "qemu"
)

// ChooseType returns the domain type for a host: the override where the
// configuration has one, else kvm, else qemu where emulation is allowed. What
// the host does not offer is Permanent, with what a person can do.
func ChooseType(o Offer, override string, allowEmulation bool) (string, error) {
	switch {
	case len(o.Types) == 0:
		return "", fault.Errorf(fault.Permanent,
			"the host (%.40q) has no emulator for %s: install QEMU for it (Debian: qemu-system-x86) and restart libvirtd", o.Arch, arch)
	case override != "" && override != typeKVM && override != typeQEMU:
		return "", fault.Errorf(fault.Permanent, "the domain type %.40q is none of %s and %s: correct it in the configuration", override, typeKVM, typeQEMU)
	case override != "":
		if !slices.Contains(o.Types, override) {
			return "", fault.Errorf(fault.Permanent, "domainType wants %s, and the host offers %s: %s", override, offered(o.Types), remedy(override))
		}
		return override, nil
	case slices.Contains(o.Types, typeKVM):
		return typeKVM, nil
	case slices.Contains(o.Types, typeQEMU) && allowEmulation:
		return typeQEMU, nil
	}
	return "", fault.Errorf(fault.Permanent,
		"the host offers %s and no kvm: %s; or set allowEmulation: true for the host, which is many times slower", offered(o.Types), remedy(typeKVM))
}

// offered names domain types, for people.
func offered(types []string) string { return fmt.Sprintf("%.100s", strings.Join(types, ", ")) }

func remedy(kind string) string {
	if kind == typeKVM {
		return "turn virtualization on in its firmware, load kvm_intel or kvm_amd, and see that /dev/kvm is there and that libvirtd was restarted since"
	}
	return "install QEMU there, or leave domainType out"
}

// FirmwareOffer is which firmware a host can give to a domain of q35.
type FirmwareOffer struct {
	// EFI: <os firmware="efi"> finds a firmware. BIOS: the machine's own one,
	// which q35 always has.
	EFI, BIOS bool
	// SecureBootOff: a loader without secure boot may be asked for. Whether a
	// firmware without it is installed shows only when the domain is defined.
	SecureBootOff bool
}

// ReadDomainCapabilities reads a host's <domainCapabilities>. A document that
// is none is Permanent.
func ReadDomainCapabilities(doc string) (FirmwareOffer, error) {
	type enum struct {
		Name   string   `xml:"name,attr"`
		Values []string `xml:"value"`
	}
	var caps struct {
		OS struct {
			Supported string `xml:"supported,attr"`
			Enums     []enum `xml:"enum"`
			Loader    struct {
				Supported string `xml:"supported,attr"`
				Enums     []enum `xml:"enum"`
			} `xml:"loader"`
		} `xml:"os"`
	}
	if err := read(doc, "domainCapabilities", &caps); err != nil {
		return FirmwareOffer{}, err
	}
	has := func(enums []enum, name, value string) bool {
		return slices.ContainsFunc(enums, func(e enum) bool { return e.Name == name && slices.Contains(e.Values, value) })
	}
	if caps.OS.Supported != "yes" {
		return FirmwareOffer{}, nil
	}
	loader := caps.OS.Loader.Supported == "yes"
	return FirmwareOffer{
		EFI:           loader && has(caps.OS.Enums, "firmware", "efi"),
		BIOS:          true,
		SecureBootOff: loader && has(caps.OS.Loader.Enums, "secure", "no"),
	}, nil
}

// ReadPool reads a <pool>: its type ("dir", "fs", "netfs", "logical", …) and
// the path where its volumes are. A document that is none, or that lacks the
// type, is Permanent; the path may be empty where the type has none.
func ReadPool(doc string) (kind, path string, err error) {
	var pool struct {
		Type string `xml:"type,attr"`
		Path string `xml:"target>path"`
	}
	if err := read(doc, "pool", &pool); err != nil {
		return "", "", err
	}
	path = strings.TrimSpace(pool.Path)
	if pool.Type == "" || path != "" && checkPath("target", path) != nil {
		return "", "", fault.Errorf(fault.Permanent,
			"libvirt's <pool> document has the type %.40q and the path %.100q: see virsh pool-dumpxml", pool.Type, path)
	}
	return pool.Type, path, nil
}
