package kvm

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
)

// Section is the section `kvm` of a provider in the providers file.
// docs/kvm-provider.md says what each field means.
type Section struct {
	SSH   SSH             `yaml:"ssh"`
	Hosts map[string]Host `yaml:"hosts"`
	// Images are the images that placement.image may name.
	Images map[string]Image `yaml:"images"`
	// DefaultImage is the key used where placement.image is empty; with one
	// image it may be left out.
	DefaultImage string `yaml:"defaultImage"`
	// ImageAllowCIDRs opens address ranges that images are not fetched from
	// otherwise: loopback, link-local, private, metadata.
	ImageAllowCIDRs []string `yaml:"imageAllowCIDRs"`
	// ImageCAFile has certificates of authorities to trust for images besides
	// the system's.
	ImageCAFile string `yaml:"imageCAFile"`
	// InstallGuestAgent adds a vendor script that installs the QEMU guest
	// agent; default true.
	InstallGuestAgent *bool `yaml:"installGuestAgent"`
	// VendorData is the owner's own vendor data, beside the script.
	VendorData string `yaml:"vendorData"`
}

// SSH says how hosts are logged in to.
type SSH struct {
	User           string `yaml:"user"`
	KeyFile        string `yaml:"keyFile"`
	KnownHostsFile string `yaml:"knownHostsFile"`
}

// Host is one machine with libvirt.
type Host struct {
	Address string `yaml:"address"`
	// Port is SSH's; default 22.
	Port int `yaml:"port"`
	// Socket is libvirt's on the host; default /var/run/libvirt/libvirt-sock.
	Socket string `yaml:"socket"`
	// Pool is the storage pool, of type dir, fs or netfs; default "default".
	Pool string `yaml:"pool"`
	// Bridge or Network is what instances are attached to; default the network
	// "default".
	Bridge  string `yaml:"bridge"`
	Network string `yaml:"network"`
	// DomainType overrides what the host offers: kvm or qemu.
	DomainType string `yaml:"domainType"`
	// AllowEmulation lets instances run without acceleration where the host
	// has none.
	AllowEmulation bool `yaml:"allowEmulation"`
	// MaxInstances bounds the instances on this host; 0 is no bound.
	MaxInstances int `yaml:"maxInstances"`
}

// Image is one image.
type Image struct {
	URL    string `yaml:"url"`
	SHA256 string `yaml:"sha256"`
	// Format is qcow2 (default) or raw.
	Format string `yaml:"format"`
	// Firmware is uefi (default) or bios.
	Firmware string `yaml:"firmware"`
}

// FieldError is what is wrong with one field of a Section. It is Invalid.
type FieldError struct {
	// Path leads to the field, from the section on: hosts, box-1, port.
	Path []string
	Err  error
}

func (e *FieldError) Error() string { return "kvm." + strings.Join(e.Path, ".") + ": " + e.Err.Error() }

// Unwrap gives the class beside the cause.
func (e *FieldError) Unwrap() []error { return []error{fault.Invalid, e.Err} }

func bad(path []string, format string, args ...any) error {
	return &FieldError{Path: path, Err: fmt.Errorf(format, args...)}
}

const (
	defaultSSHPort = 22
	defaultSocket  = "/var/run/libvirt/libvirt-sock"
	defaultPool    = "default"
	defaultNetwork = "default"
	// maxVendorData is what of vendor data still fits a seed, in bytes.
	maxVendorData = 1 << 20
	// maxHosts bounds the links that one provider keeps.
	maxHosts = 1000
)

var (
	// hostForm is what a host may be called: it stands in ids, texts and
	// status.host.
	hostForm = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]{0,61}[A-Za-z0-9])?$`)
	// thingForm is what libvirt and Linux take as the name of a pool, a network
	// or a bridge, without what would need care in a path or a text.
	thingForm = regexp.MustCompile(`^[A-Za-z0-9_]([-A-Za-z0-9_.@:+]{0,62})$`)
	// addressForm is a DNS name or an IPv4 address; IPv6 is parsed.
	addressForm = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9.])?$`)
	userForm    = regexp.MustCompile(`^[A-Za-z0-9_][-A-Za-z0-9_.@\\]{0,63}\$?$`)
)

// settled is a section with all defaults, checked.
type settled struct {
	ssh          SSH
	hosts        map[string]Host
	images       map[string]picture
	defaultImage string
	allow        []netip.Prefix
	caFile       string
	installAgent bool
	vendorData   []byte
}

// picture is an image that instances can be made from.
type picture struct {
	// name is how texts call it: its key, or its URL without query.
	name     string
	source   image.Source
	firmware domain.Firmware
}

// settle checks a section and fills its defaults in. Its errors are
// FieldErrors.
func settle(s Section) (settled, error) {
	out := settled{
		ssh: s.SSH, hosts: map[string]Host{}, images: map[string]picture{}, defaultImage: s.DefaultImage,
		caFile: s.ImageCAFile, installAgent: s.InstallGuestAgent == nil || *s.InstallGuestAgent, vendorData: []byte(s.VendorData),
	}
	if err := checkSSH(s.SSH); err != nil {
		return out, err
	}
	if len(s.Hosts) == 0 {
		return out, bad([]string{"hosts"}, "there are none: name at least one, with its address")
	}
	if len(s.Hosts) > maxHosts {
		return out, bad([]string{"hosts"}, "%d are more than one provider may have (%d)", len(s.Hosts), maxHosts)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Hosts)) {
		h, err := settleHost(name, s.Hosts[name])
		if err != nil {
			return out, err
		}
		for _, other := range slices.Sorted(maps.Keys(out.hosts)) {
			o := out.hosts[other]
			if strings.EqualFold(o.Address, h.Address) && o.Port == h.Port && o.Socket == h.Socket {
				return out, bad([]string{"hosts", name}, "it is the same machine as hosts.%s (address, port and socket): one machine has one name here", other)
			}
		}
		out.hosts[name] = h
	}
	if err := settleImages(s, &out); err != nil {
		return out, err
	}
	if len(s.VendorData) > maxVendorData {
		return out, bad([]string{"vendorData"}, "%d bytes are more than a seed holds (%d)", len(s.VendorData), maxVendorData)
	}
	return out, nil
}

func checkSSH(s SSH) error {
	if !userForm.MatchString(s.User) {
		return bad([]string{"ssh", "user"}, "want the name of an account on the hosts that may use libvirt, got %q", short(s.User))
	}
	for field, path := range map[string]string{"keyFile": s.KeyFile, "knownHostsFile": s.KnownHostsFile} {
		if !filepath.IsAbs(path) {
			return bad([]string{"ssh", field}, "want an absolute path, got %q", short(path))
		}
	}
	return nil
}

func settleHost(name string, h Host) (Host, error) {
	at := func(field string) []string { return []string{"hosts", name, field} }
	if !hostForm.MatchString(name) {
		return h, bad([]string{"hosts", short(name)}, "a host's name has letters, digits, dots and dashes (at most 63)")
	}
	if ip, err := netip.ParseAddr(h.Address); err == nil {
		if ip.IsUnspecified() || ip.IsMulticast() {
			return h, bad(at("address"), "%s is no address of a host", ip)
		}
	} else if !addressForm.MatchString(h.Address) {
		return h, bad(at("address"), "want a DNS name or an IP address without port, got %q", short(h.Address))
	}
	if h.Port == 0 {
		h.Port = defaultSSHPort
	}
	if h.Port < 1 || h.Port > 65535 {
		return h, bad(at("port"), "%d is not in 1 to 65535", h.Port)
	}
	if h.Socket == "" {
		h.Socket = defaultSocket
	}
	if !filepath.IsAbs(h.Socket) || len(h.Socket) > 107 {
		return h, bad(at("socket"), "want the absolute path of libvirt's socket on the host (at most 107 bytes), got %q", short(h.Socket))
	}
	if h.Pool == "" {
		h.Pool = defaultPool
	}
	if h.Bridge != "" && h.Network != "" {
		return h, bad(at("bridge"), "a host has a bridge or a network; leave one of them out")
	}
	if h.Bridge == "" && h.Network == "" {
		h.Network = defaultNetwork
	}
	for field, v := range map[string]string{"pool": h.Pool, "bridge": h.Bridge, "network": h.Network} {
		if v != "" && !thingForm.MatchString(v) {
			return h, bad(at(field), "want a plain name of at most 63 characters, got %q", short(v))
		}
	}
	switch h.DomainType {
	case "", "kvm", "qemu":
	default:
		return h, bad(at("domainType"), "want kvm or qemu, got %q; leave it out to use what the host offers", short(h.DomainType))
	}
	if h.MaxInstances < 0 {
		return h, bad(at("maxInstances"), "%d is below zero; 0 is no bound", h.MaxInstances)
	}
	return h, nil
}

func settleImages(s Section, out *settled) error {
	for _, key := range slices.Sorted(maps.Keys(s.Images)) {
		im := s.Images[key]
		at := func(field string) []string { return []string{"images", key, field} }
		if !thingForm.MatchString(key) {
			return bad([]string{"images", short(key)}, "an image's key is a plain name of at most 63 characters")
		}
		p := picture{name: key, source: image.Source{URL: im.URL, SHA256: strings.ToLower(im.SHA256), Format: image.Format(im.Format)}}
		switch im.Format {
		case "":
			p.source.Format = image.QCOW2
		case "qcow2", "raw":
		default:
			return bad(at("format"), "want qcow2 or raw, got %q", short(im.Format))
		}
		var ok bool
		if p.firmware, ok = firmwareOf(im.Firmware); !ok {
			return bad(at("firmware"), "want uefi or bios, got %q", short(im.Firmware))
		}
		if err := p.source.Validate(); err != nil {
			return bad([]string{"images", key}, "%w", err)
		}
		out.images[key] = p
	}
	switch {
	case out.defaultImage == "" && len(out.images) == 1:
		for key := range out.images {
			out.defaultImage = key
		}
	case out.defaultImage != "":
		if _, ok := out.images[out.defaultImage]; !ok {
			return bad([]string{"defaultImage"}, "%q is none of images: %s", short(out.defaultImage), listed(out.images))
		}
	}
	for i, text := range s.ImageAllowCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return bad([]string{"imageAllowCIDRs", fmt.Sprint(i)}, "want an address range such as 10.0.0.0/8, got %q", short(text))
		}
		out.allow = append(out.allow, prefix.Masked())
	}
	if s.ImageCAFile != "" && !filepath.IsAbs(s.ImageCAFile) {
		return bad([]string{"imageCAFile"}, "want an absolute path, got %q", short(s.ImageCAFile))
	}
	return nil
}

func firmwareOf(text string) (domain.Firmware, bool) {
	switch text {
	case "", "uefi":
		return domain.UEFI, true
	case "bios":
		return domain.BIOS, true
	}
	return "", false
}

// listed names what there is, for the text of an error.
func listed[V any](m map[string]V) string {
	if len(m) == 0 {
		return "there are none"
	}
	keys := slices.Sorted(maps.Keys(m))
	const most = 10
	if len(keys) > most {
		return strings.Join(keys[:most], ", ") + fmt.Sprintf(" and %d more", len(keys)-most)
	}
	return strings.Join(keys, ", ")
}

// short bounds what a text quotes.
func short(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
