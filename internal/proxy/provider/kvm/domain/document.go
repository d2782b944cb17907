package domain

import "encoding/xml"

// document is a <domain>, in the parts that this provider writes.
type document struct {
	XMLName    xml.Name   `xml:"domain"`
	Type       string     `xml:"type,attr"`
	Name       string     `xml:"name"`
	UUID       string     `xml:"uuid"`
	Metadata   metadata   `xml:"metadata"`
	Memory     quantity   `xml:"memory"`
	VCPUs      int        `xml:"vcpu"`
	OS         osXML      `xml:"os"`
	Features   features   `xml:"features"`
	CPU        *cpu       `xml:"cpu"`
	Clock      clock      `xml:"clock"`
	OnPoweroff string     `xml:"on_poweroff"`
	OnReboot   string     `xml:"on_reboot"`
	OnCrash    string     `xml:"on_crash"`
	Devices    deviceList `xml:"devices"`
}

// metadata holds the mark; the element names itself.
type metadata struct{ Mark attrs }

// Small parts that several elements have.
type (
	empty    struct{}
	quantity struct {
		Unit  string `xml:"unit,attr"`
		Value int64  `xml:",chardata"`
	}
	typed struct {
		Type string `xml:"type,attr"`
	}
	model struct {
		Model string `xml:"model,attr"`
	}
	address struct {
		Address string `xml:"address,attr"`
	}
)

type osXML struct {
	Firmware string    `xml:"firmware,attr,omitempty"`
	Type     osType    `xml:"type"`
	Features *firmware `xml:"firmware"`
}

type osType struct {
	Arch    string `xml:"arch,attr"`
	Machine string `xml:"machine,attr"`
	Value   string `xml:",chardata"`
}

type firmware struct {
	Feature feature `xml:"feature"`
}

type feature struct {
	Enabled string `xml:"enabled,attr"`
	Name    string `xml:"name,attr"`
}

// features are ACPI, without which a guest hears no shutdown and UEFI does not
// start, and the interrupt controller of this century.
type features struct {
	ACPI empty `xml:"acpi"`
	APIC empty `xml:"apic"`
}

// cpu asks for the host's own CPU; a domain never moves to another one.
type cpu struct {
	Mode       string `xml:"mode,attr"`
	Check      string `xml:"check,attr"`
	Migratable string `xml:"migratable,attr"`
}

type clock struct {
	Offset string `xml:"offset,attr"`
}

type deviceList struct {
	Disks       []disk       `xml:"disk"`
	Controllers []controller `xml:"controller"`
	Nets        []netCard    `xml:"interface"`
	Serials     []charDevice `xml:"serial"`
	Consoles    []charDevice `xml:"console"`
	Channels    []charDevice `xml:"channel"`
	Balloon     model        `xml:"memballoon"`
	RNG         rng          `xml:"rng"`
	Panic       model        `xml:"panic"`
}

type disk struct {
	Type     string     `xml:"type,attr"`
	Device   string     `xml:"device,attr"`
	Driver   driver     `xml:"driver"`
	Source   fileSource `xml:"source"`
	Target   target     `xml:"target"`
	Boot     *boot      `xml:"boot"`
	ReadOnly *empty     `xml:"readonly"`
}

type driver struct {
	Name            string `xml:"name,attr"`
	Type            string `xml:"type,attr"`
	Cache           string `xml:"cache,attr,omitempty"`
	ErrorPolicy     string `xml:"error_policy,attr,omitempty"`
	ReadErrorPolicy string `xml:"rerror_policy,attr,omitempty"`
	Discard         string `xml:"discard,attr,omitempty"`
}

// fileSource is a path. There is no other kind of source, on purpose.
type fileSource struct {
	File string `xml:"file,attr"`
}

type target struct {
	Dev string `xml:"dev,attr"`
	Bus string `xml:"bus,attr"`
}

type boot struct {
	Order int `xml:"order,attr"`
}

type controller struct {
	Type  string `xml:"type,attr"`
	Index int    `xml:"index,attr"`
	Model string `xml:"model,attr"`
}

type netCard struct {
	Type   string    `xml:"type,attr"`
	MAC    address   `xml:"mac"`
	Source netSource `xml:"source"`
	Model  typed     `xml:"model"`
}

type netSource struct {
	Network string `xml:"network,attr,omitempty"`
	Bridge  string `xml:"bridge,attr,omitempty"`
}

type charDevice struct {
	Type   string     `xml:"type,attr"`
	Target charTarget `xml:"target"`
}

type charTarget struct {
	Type string `xml:"type,attr"`
	Name string `xml:"name,attr,omitempty"`
	Port string `xml:"port,attr,omitempty"`
}

type rng struct {
	Model   string  `xml:"model,attr"`
	Backend backend `xml:"backend"`
}

type backend struct {
	Model string `xml:"model,attr"`
	Value string `xml:",chardata"`
}

// volume is a <volume>.
type volume struct {
	XMLName    xml.Name     `xml:"volume"`
	Name       string       `xml:"name"`
	Capacity   quantity     `xml:"capacity"`
	Allocation quantity     `xml:"allocation"`
	Target     volumeTarget `xml:"target"`
	Backing    *backing     `xml:"backingStore"`
}

type volumeTarget struct {
	Format      typed       `xml:"format"`
	Permissions permissions `xml:"permissions"`
	Compat      string      `xml:"compat,omitempty"`
}

type permissions struct {
	Mode string `xml:"mode"`
}

type backing struct {
	Path   string `xml:"path"`
	Format typed  `xml:"format"`
}
