package domain

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// markElement is the local name of the element in a domain's metadata.
const markElement = "instance"

// Bounds of an owner's parts and of the whole element, in bytes. Kubernetes
// allows names of 253; an installation is a UID and a namespace.
const (
	maxOwnerPart    = 253
	maxInstallation = 512
	maxMark         = 32 << 10
)

// Stage is how far the making of a domain has come.
type Stage string

// The stages.
const (
	// Making: it was defined and has not been started by us to the end yet.
	Making Stage = "making"
	// Made: it was started once; a domain that does not run is to be started.
	Made Stage = "made"
	// Deleting: its removal has begun; nothing starts it any more.
	Deleting Stage = "deleting"
)

// Mark is what a domain's metadata say of it: whose it is, and what the
// provider must not forget. It is on the domain from its definition on, in one
// element of [virt.MetadataNamespace]:
//
//	<instance installation="…" namespace="…" name="…" uid="…"
//	          created="2026-01-02T03:04:05Z" stage="made" port="3128"
//	          address="192.0.2.10" run="4"/>
//
// Nothing in it is secret.
type Mark struct {
	// Owner is the tag; all four parts are needed.
	Owner provider.Owner
	// Created is when the domain was first defined.
	Created time.Time
	Stage   Stage
	// Port is where the proxy listens; 0 when nobody said.
	Port int
	// Address is the last good address, empty when none was seen; Run is the
	// domain's id ([virt.Domain]) when it was seen: after the next start it may
	// be another machine's.
	Address string
	Run     int32
	// Pool is where its volumes are. Image is the volume that its disk was made
	// on; empty while it is making.
	Pool, Image string
}

// Element returns the mark as virDomainSetMetadata wants it: one element
// without prefix and without namespace declaration. libvirt adds both itself;
// with a declaration in it, it answers "failed to create a new XML namespace",
// and with a prefix it writes the prefix twice.
//
// A mark that [ParseMark] would refuse is Invalid.
func (m Mark) Element() (string, error) {
	el, err := m.element()
	if err != nil {
		return "", err
	}
	el.XMLName.Local = markElement
	return marshal("the domain's metadata", el)
}

// attrs is an element that has attributes and nothing else.
type attrs struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
}

func (m Mark) element() (attrs, error) {
	if err := m.check(); err != nil {
		return attrs{}, fault.Errorf(fault.Invalid, "the instance cannot be marked as its owner's: %w", err)
	}
	var el attrs
	add := func(name, value string) {
		el.Attrs = append(el.Attrs, xml.Attr{Name: xml.Name{Local: name}, Value: value})
	}
	add("installation", m.Owner.Installation)
	add("namespace", m.Owner.Namespace)
	add("name", m.Owner.Name)
	add("uid", m.Owner.UID)
	add("created", m.Created.UTC().Format(time.RFC3339Nano))
	add("stage", string(m.Stage))
	if m.Port != 0 {
		add("port", strconv.Itoa(m.Port))
	}
	if m.Address != "" {
		add("address", m.Address)
	}
	if m.Run != 0 {
		add("run", strconv.FormatInt(int64(m.Run), 10))
	}
	if m.Pool != "" {
		add("pool", m.Pool)
	}
	if m.Image != "" {
		add("image", m.Image)
	}
	return el, nil
}

// declared is the element for a whole document, where prefix and namespace must
// be said.
func (m Mark) declared() (attrs, error) {
	el, err := m.element()
	el.XMLName.Local = virt.MetadataPrefix + ":" + markElement
	el.Attrs = append([]xml.Attr{{Name: xml.Name{Local: "xmlns:" + virt.MetadataPrefix}, Value: virt.MetadataNamespace}}, el.Attrs...)
	return el, err
}

func (m Mark) check() error {
	for _, part := range []struct {
		name, value string
		limit       int
	}{
		{"installation", m.Owner.Installation, maxInstallation},
		{"namespace", m.Owner.Namespace, maxOwnerPart},
		{"name", m.Owner.Name, maxOwnerPart},
		{"uid", m.Owner.UID, maxOwnerPart},
	} {
		if err := checkText(part.name, part.value, part.limit); err != nil {
			return err
		}
	}
	switch y := m.Created.UTC().Year(); {
	case m.Created.IsZero():
		return errors.New("created is missing")
	case y < 1970 || y > 9999:
		return fmt.Errorf("created is in the year %d", y)
	}
	switch {
	case m.Stage != Making && m.Stage != Made && m.Stage != Deleting:
		return fmt.Errorf("stage is %.40q: it is %s, %s or %s", string(m.Stage), Making, Made, Deleting)
	case m.Port < 0 || m.Port > 65535:
		return fmt.Errorf("port is %d", m.Port)
	case m.Run < 0:
		return fmt.Errorf("run is %d", m.Run)
	}
	for name, value := range map[string]string{"pool": m.Pool, "image": m.Image} {
		if value == "" {
			continue
		}
		if err := checkText(name, value, maxOwnerPart); err != nil {
			return err
		}
	}
	if m.Address != "" {
		if ip, err := netip.ParseAddr(m.Address); err != nil || !Routable(ip) || ip.String() != m.Address {
			return fmt.Errorf("address is %.80q, which nobody can be reached at", m.Address)
		}
	}
	return nil
}

// checkText refuses what would not come back from XML as it went in.
func checkText(name, value string, limit int) error {
	switch {
	case value == "":
		return fmt.Errorf("%s is missing", name)
	case len(value) > limit:
		return fmt.Errorf("%s has %d bytes: %d are allowed", name, len(value), limit)
	case !utf8.ValidString(value):
		return fmt.Errorf("%s is no UTF-8", name)
	}
	for _, r := range value {
		if unicode.IsControl(r) || r == 0xFFFE || r == 0xFFFF {
			return fmt.Errorf("%s holds the character %U", name, r)
		}
	}
	return nil
}

// ParseMark reads the element that libvirt hands back. It comes without its
// namespace declaration and without prefix; both are accepted too, as they are
// in a whole document. Attributes and children that a later version may add are
// passed over.
//
// Whatever is missing or broken is Permanent: the domain is somebody's and
// cannot be read, so nothing may be done to it until a person mends its
// metadata.
func ParseMark(element string) (Mark, error) {
	m, err := parseMark(element)
	if err != nil {
		return Mark{}, fault.Errorf(fault.Permanent,
			"the domain's metadata of %s are broken: %w: mend them with virsh metadata, or undefine the domain", virt.MetadataNamespace, err)
	}
	return m, nil
}

func parseMark(element string) (Mark, error) {
	root, err := scan(element, maxMark)
	if err != nil {
		return Mark{}, err
	}
	if root.Name.Local != markElement {
		return Mark{}, fmt.Errorf("the element is called %.80q, not %q", root.Name.Local, markElement)
	}
	if s := root.Name.Space; s != "" && s != virt.MetadataPrefix && s != virt.MetadataNamespace {
		return Mark{}, fmt.Errorf("the element is of the namespace %.80q", s)
	}
	values := map[string]string{}
	for _, a := range root.Attr {
		if a.Name.Space != "" || a.Name.Local == "xmlns" {
			continue
		}
		if _, twice := values[a.Name.Local]; twice {
			return Mark{}, fmt.Errorf("%.80q is there twice", a.Name.Local)
		}
		values[a.Name.Local] = a.Value
	}
	m := Mark{
		Owner: provider.Owner{
			Installation: values["installation"], Namespace: values["namespace"], Name: values["name"], UID: values["uid"],
		},
		Stage: Stage(values["stage"]), Address: values["address"], Pool: values["pool"], Image: values["image"],
	}
	if m.Created, err = readTime(values["created"]); err != nil {
		return Mark{}, err
	}
	port, err := readNumber("port", values)
	if err != nil {
		return Mark{}, err
	}
	run, err := readNumber("run", values)
	if err != nil {
		return Mark{}, err
	}
	m.Port, m.Run = int(port), run
	return m, m.check()
}

func readTime(value string) (time.Time, error) {
	if value == "" {
		return time.Time{}, errors.New("created is missing")
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return time.Time{}, fmt.Errorf("created is %.80q, which is no time of RFC 3339", value)
	}
	return t.UTC(), nil
}

// readNumber reads a number in its one spelling; a missing one is zero.
func readNumber(name string, values map[string]string) (int32, error) {
	value, there := values[name]
	if !there {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || strconv.FormatInt(n, 10) != value {
		return 0, fmt.Errorf("%s is %.80q, which is no number", name, value)
	}
	return int32(n), nil
}
