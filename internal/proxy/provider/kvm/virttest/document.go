package virttest

import (
	"fmt"
	"strings"
)

// capabilities is the part of <capabilities> that is about guests of x86_64,
// as a host with these domain types gives it.
func capabilities(hostUUID string, types []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<capabilities>

  <host>
    <uuid>%s</uuid>
    <cpu>
      <arch>x86_64</arch>
      <model>EPYC</model>
      <vendor>AMD</vendor>
      <topology sockets='1' dies='1' cores='2' threads='1'/>
    </cpu>
    <power_management/>
    <iommu support='no'/>
    <secmodel>
      <model>none</model>
      <doi>0</doi>
    </secmodel>
  </host>
`, hostUUID)
	for _, arch := range []struct{ name, size string }{{"i686", "32"}, {"x86_64", "64"}} {
		fmt.Fprintf(&b, `
  <guest>
    <os_type>hvm</os_type>
    <arch name='%s'>
      <wordsize>%s</wordsize>
      <emulator>%s</emulator>
      <machine maxCpus='255'>pc-i440fx-7.2</machine>
      <machine canonical='pc-i440fx-7.2' maxCpus='255'>pc</machine>
      <machine maxCpus='288'>pc-q35-7.2</machine>
      <machine canonical='pc-q35-7.2' maxCpus='288'>q35</machine>
`, arch.name, arch.size, emulator)
		for _, t := range types {
			fmt.Fprintf(&b, "      <domain type='%s'/>\n", t)
		}
		b.WriteString(`    </arch>
    <features>
      <acpi default='on' toggle='yes'/>
      <apic default='on' toggle='no'/>
      <cpuselection/>
      <deviceboot/>
      <disksnapshot default='on' toggle='no'/>
    </features>
  </guest>
`)
	}
	b.WriteString("\n</capabilities>\n")
	return b.String()
}

const emulator = "/usr/bin/qemu-system-x86_64"

// domainCapabilities is <domainCapabilities> for q35 on x86_64, with or without
// OVMF on the host.
func domainCapabilities(domainType string, efi bool) string {
	firmware, loaders := "    <enum name='firmware'/>\n", ""
	secure := "        <value>no</value>\n"
	if efi {
		firmware = "    <enum name='firmware'>\n      <value>efi</value>\n    </enum>\n"
		loaders = `      <value>/usr/share/OVMF/OVMF_CODE_4M.ms.fd</value>
      <value>/usr/share/OVMF/OVMF_CODE_4M.secboot.fd</value>
      <value>/usr/share/OVMF/OVMF_CODE_4M.fd</value>
`
		secure = "        <value>yes</value>\n" + secure
	}
	return fmt.Sprintf(`<domainCapabilities>
  <path>%s</path>
  <domain>%s</domain>
  <machine>pc-q35-7.2</machine>
  <arch>x86_64</arch>
  <vcpu max='288'/>
  <iothreads supported='yes'/>
  <os supported='yes'>
%s    <loader supported='yes'>
%s      <enum name='type'>
        <value>rom</value>
        <value>pflash</value>
      </enum>
      <enum name='readonly'>
        <value>yes</value>
        <value>no</value>
      </enum>
      <enum name='secure'>
%s      </enum>
    </loader>
  </os>
  <cpu>
    <mode name='host-passthrough' supported='%s'/>
  </cpu>
</domainCapabilities>
`, emulator, domainType, firmware, loaders, secure, map[bool]string{true: "yes", false: "no"}[domainType == "kvm"])
}

// poolXML is a pool's <pool> document.
func poolXML(p *pool) string {
	i := p.info()
	return fmt.Sprintf(`<pool type='%s'>
  <name>%s</name>
  <uuid>%s</uuid>
  <capacity unit='bytes'>%d</capacity>
  <allocation unit='bytes'>%d</allocation>
  <available unit='bytes'>%d</available>
  <source>
  </source>
  <target>
    <path>%s</path>
  </target>
</pool>
`, p.conf.Type, textEscapes.Replace(p.conf.Name), p.uuid, i.Capacity, i.Allocation, i.Available, textEscapes.Replace(p.conf.Path))
}
