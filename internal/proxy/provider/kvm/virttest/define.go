package virttest

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Codes that no provider acts on.
const (
	codeNoName      virt.Code = 21
	codeNoTarget    virt.Code = 20
	codeArgument    virt.Code = 74
	knownUndefine             = 0x7f
	undefineKeepRAM           = 8
)

// config is a domain's definition, read.
type config struct {
	name, uuid, kind, doc string
	efi, agent            bool
	agents                int
	disks                 []disk
	nics                  []nic
	meta                  string
}

type disk struct {
	target string
	// path, or pool and volume of type="volume".
	path, pool, volume string
	format             string
	readOnly           bool
}

type nic struct{ mac, network, bridge string }

func xmlError(format string, args ...any) error {
	return failure(badXML, "XML error: "+fmt.Sprintf(format, args...))
}

func unsupported(format string, args ...any) error {
	return failure(virt.CodeConfigUnsupported, "unsupported configuration: "+fmt.Sprintf(format, args...))
}

// readDomain reads a <domain> as a host with these types does.
func (h *Host) readDomain(doc string) (*config, error) {
	n, err := parseXML("domain_definition", doc)
	if err != nil {
		return nil, err
	}
	if n.local != "domain" {
		return nil, xmlError("expecting root element of 'domain', not '%s'", n.local)
	}
	c := &config{kind: n.attr("type"), doc: doc, name: n.child("name").value(), meta: metadataOf(n)}
	if c.uuid, err = readUUID(n.child("uuid")); err != nil {
		return nil, err
	}
	switch {
	case c.kind == "":
		return nil, failure(virt.CodeInternalError, "internal error: missing domain type attribute")
	case !slices.Contains([]string{"kvm", "qemu", "xen", "lxc", "vmware", "bhyve"}, c.kind):
		return nil, unsupported("invalid domain type %s", c.kind)
	case c.name == "":
		return nil, failure(codeNoName, "missing name information")
	case strings.Contains(c.name, "\n"):
		return nil, failure(codeXMLDetail, "invalid char in name: \n")
	}
	if err := readOS(n, c); err != nil {
		return nil, err
	}
	if mem, err := amountOr(n.child("memory"), 0); err != nil {
		return nil, err
	} else if mem == 0 {
		return nil, xmlError("Memory size must be specified via <memory> or in the <numa> configuration")
	}
	if cpus, err := amountOr(n.child("vcpu"), 1); err != nil {
		return nil, err
	} else if cpus == 0 {
		return nil, failure(virt.CodeInternalError, "internal error: CPU IDs in <numa> exceed the <vcpu> count")
	}
	if err := readDevices(n.child("devices"), c); err != nil {
		return nil, err
	}
	switch {
	case strings.Contains(c.name, "/"):
		return nil, xmlError("name %s cannot contain '/'", c.name)
	case !slices.Contains(h.types, c.kind):
		return nil, unsupported("Emulator '%s' does not support virt type '%s'", emulator, c.kind)
	}
	return c, nil
}

func amountOr(n *node, otherwise uint64) (uint64, error) {
	if n == nil {
		return otherwise, nil
	}
	v, err := strconv.ParseUint(strings.TrimSpace(n.value()), 10, 63)
	if err != nil {
		return 0, xmlError("Invalid value '%s' for element '%s'", n.value(), n.local)
	}
	return v, nil
}

// readUUID takes the forms that libvirt takes: dashes may be anywhere or
// missing. Without an element it is "".
func readUUID(n *node) (string, error) {
	if n == nil {
		return "", nil
	}
	u, ok := canonicalUUID(n.value())
	if !ok {
		return "", failure(virt.CodeInternalError, "internal error: malformed uuid element")
	}
	return u, nil
}

func canonicalUUID(s string) (string, bool) {
	hex := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(s), "-", ""))
	if len(hex) != 32 || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", false
	}
	return hex[0:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:], true
}

func readOS(n *node, c *config) error {
	t := n.child("os/type")
	arch, machine := t.attr("arch"), t.attr("machine")
	c.efi = n.child("os").attr("firmware") == "efi"
	switch {
	case t == nil:
		return xmlError("an os <type> must be specified")
	case strings.TrimSpace(t.value()) != "hvm":
		return unsupported("unknown OS type '%s'", t.value())
	case arch != "" && arch != "x86_64" && arch != "i686":
		return unsupported("Unknown architecture %s", arch)
	case machine != "" && machine != "q35" && machine != "pc" && !strings.HasPrefix(machine, "pc-"):
		return xmlError("No PCI buses available")
	}
	return nil
}

func readDevices(n *node, c *config) error {
	for _, d := range n.all("disk") {
		k := disk{target: d.child("target").attr("dev"), format: d.child("driver").attr("type")}
		k.readOnly = d.child("readonly") != nil || d.attr("device") == "cdrom"
		src := d.child("source")
		var name string
		switch kind := d.attr("type"); kind {
		case "", "file":
			k.path = src.attr("file")
			name = k.path
		case "volume":
			k.pool, k.volume = src.attr("pool"), src.attr("volume")
			name = k.pool + "/" + k.volume
		case "block":
			k.path = src.attr("dev")
			name = k.path
		default:
			return xmlError("Invalid value for attribute 'type' in element 'disk': '%s'.", kind)
		}
		if k.target == "" {
			return failure(codeNoTarget, "missing target information for device "+name)
		}
		if !slices.Contains([]string{"", "raw", "qcow2", "vmdk", "vdi"}, k.format) {
			return unsupported("unknown driver format value '%s'", k.format)
		}
		for _, o := range c.disks {
			if o.target == k.target {
				return xmlError("target '%s' duplicated for disk sources '%s' and '%s'", k.target, o.path, k.path)
			}
		}
		c.disks = append(c.disks, k)
	}
	for _, d := range n.all("interface") {
		k := nic{mac: strings.ToLower(d.child("mac").attr("address"))}
		src := d.child("source")
		switch kind := d.attr("type"); kind {
		case "bridge":
			k.bridge = src.attr("bridge")
		case "network":
			k.network = src.attr("network")
		case "user", "ethernet", "direct":
		default:
			return xmlError("Invalid value for attribute 'type' in element 'interface': '%s'.", kind)
		}
		if kind := d.attr("type"); src == nil && kind != "user" && kind != "ethernet" {
			return xmlError("interface type='%s' requires a 'source' element", kind)
		}
		if m := d.child("mac"); m != nil {
			hw, err := net.ParseMAC(k.mac)
			if err != nil || len(hw) != 6 {
				return xmlError("unable to parse mac address '%s'", m.attr("address"))
			}
			if hw[0]&1 == 1 {
				return xmlError("expected unicast mac address, found multicast '%s'", m.attr("address"))
			}
		}
		c.nics = append(c.nics, k)
	}
	for _, d := range n.all("channel") {
		if d.child("target").attr("name") == "org.qemu.guest_agent.0" {
			c.agent = true
			c.agents++
		}
	}
	return nil
}
