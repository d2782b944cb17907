package virttest

import (
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

func testConnect(b *bench) {
	v, err := b.c.ConnectGetLibVersion(b.ctx)
	b.ok("version", err)
	if v < 4_000_000 || v >= 100_000_000 {
		b.Errorf("version %s (%d)", v, v)
	}
	host, err := b.c.ConnectGetHostname(b.ctx)
	b.ok("host name", err)
	if host == "" {
		b.Error("the host has no name")
	}
	text, err := b.c.ConnectGetCapabilities(b.ctx)
	b.ok("capabilities", err)
	var caps struct {
		XMLName xml.Name `xml:"capabilities"`
		Guests  []struct {
			OS   string `xml:"os_type"`
			Arch struct {
				Name    string `xml:"name,attr"`
				Domains []struct {
					Type string `xml:"type,attr"`
				} `xml:"domain"`
			} `xml:"arch"`
		} `xml:"guest"`
	}
	b.ok("reading the capabilities", xml.Unmarshal([]byte(text), &caps))
	found := false
	for _, g := range caps.Guests {
		for _, d := range g.Arch.Domains {
			found = found || g.OS == "hvm" && g.Arch.Name == "x86_64" && d.Type == b.s.DomainType
		}
	}
	if !found {
		b.Errorf("the capabilities have no x86_64 guest of type %s", b.s.DomainType)
	}
	text, err = b.c.ConnectGetDomainCapabilities(b.ctx, b.s.DomainType)
	b.ok("domain capabilities", err)
	var dc struct {
		XMLName xml.Name `xml:"domainCapabilities"`
		Domain  string   `xml:"domain"`
		Machine string   `xml:"machine"`
		Arch    string   `xml:"arch"`
		Enums   []struct {
			Name   string   `xml:"name,attr"`
			Values []string `xml:"value"`
		} `xml:"os>enum"`
	}
	b.ok("reading the domain capabilities", xml.Unmarshal([]byte(text), &dc))
	if dc.Domain != b.s.DomainType || dc.Arch != "x86_64" || !strings.Contains(dc.Machine, "q35") {
		b.Errorf("domain capabilities of %s, %s, %s", dc.Domain, dc.Arch, dc.Machine)
	}
	efi := false
	for _, e := range dc.Enums {
		efi = efi || e.Name == "firmware" && slices.Contains(e.Values, "efi")
	}
	if b.s.UEFI && !efi {
		b.Error("the domain capabilities have no UEFI firmware")
	}
	for _, kind := range []string{"nonsense", "xen", ""} {
		text, err := b.c.ConnectGetDomainCapabilities(b.ctx, kind)
		b.wants("domain capabilities of type "+kind, err, virt.CodeInvalidArg)
		if text != "" {
			b.Errorf("type %s: a document beside the error", kind)
		}
	}
}

func testLookup(b *bench) {
	name, uuid := b.name("none"), newUUID()
	for what, look := range map[string]func() (virt.Domain, error){
		"by name": func() (virt.Domain, error) { return b.c.DomainLookupByName(b.ctx, name) },
		"by UUID": func() (virt.Domain, error) { return b.c.DomainLookupByUUID(b.ctx, uuid) },
	} {
		d, err := look()
		b.wants(what, err, virt.CodeNoDomain)
		if d != (virt.Domain{}) {
			b.Errorf("%s: %+v beside the error", what, d)
		}
	}
	// A caller that reads NotFound makes a new machine.
	if _, err := b.c.DomainLookupByUUID(b.ctx, "no-uuid"); err == nil || fault.Of(err) == fault.NotFound {
		b.Errorf("a malformed UUID: %v", err)
	}
	d := b.define(shape{name: name, uuid: uuid})
	if want := (virt.Domain{Name: name, UUID: uuid, ID: -1}); d != want {
		b.Errorf("defined %+v, want %+v", d, want)
	}
	byName, err := b.c.DomainLookupByName(b.ctx, name)
	b.ok("by name", err)
	byUUID, err := b.c.DomainLookupByUUID(b.ctx, uuid)
	b.ok("by UUID", err)
	if byName != d || byUUID != d {
		b.Errorf("%+v by name, %+v by UUID, want %+v", byName, byUUID, d)
	}
	if _, err := b.c.DomainLookupByName(b.ctx, name[:len(name)-1]); fault.Of(err) != fault.NotFound {
		b.Errorf("the beginning of a name found something: %v", err)
	}
	b.wantsState(d, virt.StateShutoff, virt.ShutoffUnknown)
	// What counts is the UUID.
	b.wantsState(virt.Domain{Name: "other", UUID: uuid, ID: 77}, virt.StateShutoff)
}

func testDefine(b *bench) {
	name, uuid := b.name("def"), newUUID()
	first := shape{name: name, uuid: uuid, metadata: metadataDoc(`<f:instance xmlns:f="NS" n="1"/>`)}
	d := b.define(first)
	first.metadata = metadataDoc(`<f:instance xmlns:f="NS" n="2"/>`)
	again, err := b.c.DomainDefineXML(b.ctx, b.doc(first))
	b.ok("defining it again", err)
	if again != d {
		b.Errorf("again: %+v, want %+v", again, d)
	}
	b.wantsMetadata(d, `<instance n="2"/>`)
	other, err := b.c.DomainDefineXML(b.ctx, b.doc(shape{name: name, uuid: newUUID()}))
	b.wants("its name with another UUID", err, virt.CodeOperationFailed)
	b.isClass("its name with another UUID", err, fault.Conflict)
	if other != (virt.Domain{}) {
		b.Errorf("%+v beside the error", other)
	}
	_, err = b.c.DomainDefineXML(b.ctx, b.doc(shape{name: name}))
	b.wants("its name without a UUID", err, virt.CodeOperationFailed)
	_, err = b.c.DomainDefineXML(b.ctx, b.doc(shape{name: b.name("x"), uuid: uuid}))
	b.wants("its UUID with another name", err, virt.CodeOperationFailed)
	b.wantsMetadata(d, `<instance n="2"/>`)

	made, err := b.c.DomainDefineXML(b.ctx, b.doc(shape{name: b.name("free")}))
	b.ok("without a UUID", err)
	b.forget(made)
	if u, ok := canonicalUUID(made.UUID); !ok || u != made.UUID {
		b.Errorf("its UUID is %q", made.UUID)
	}
	upper := newUUID()
	made, err = b.c.DomainDefineXML(b.ctx, b.doc(shape{name: b.name("upper"), uuid: strings.ToUpper(upper)}))
	b.ok("with a UUID in upper case", err)
	b.forget(made)
	if made.UUID != upper {
		b.Errorf("its UUID is %q, want lower case", made.UUID)
	}
}

func testDefineRefuses(b *bench) {
	name := b.name("bad")
	s := shape{name: name}
	with := func(f func(s *shape)) string { t := s; f(&t); return b.doc(t) }
	for _, tc := range []struct {
		what, doc string
		code      virt.Code
	}{
		{"text", "hello", codeXMLDetail},
		{"nothing", "", codeXMLDetail},
		{"a cut document", b.doc(s)[:40], codeXMLDetail},
		{"two documents", b.doc(s) + "<x/>", codeXMLDetail},
		{"another document", "<network/>", virt.CodeXMLError},
		{"no name", with(func(s *shape) { s.name = "" }), codeNoName},
		{"a name with a slash", with(func(s *shape) { s.name += "/x" }), virt.CodeXMLError},
		{"a UUID that is none", with(func(s *shape) { s.uuid = "123" }), virt.CodeInternalError},
		{"no type", strings.Replace(b.doc(s), " type='"+b.s.DomainType+"'", "", 1), virt.CodeInternalError},
		{"a type that nobody knows", with(func(s *shape) { s.kind = "nonsense" }), virt.CodeConfigUnsupported},
		{"a type that the host does not offer", with(func(s *shape) { s.kind = "xen" }), virt.CodeConfigUnsupported},
		{"no OS", with(func(s *shape) { s.os = " " }), virt.CodeXMLError},
		{"an OS that nobody knows", with(func(s *shape) { s.os = "<os><type>nonsense</type></os>" }), virt.CodeConfigUnsupported},
		{"an architecture that nobody knows", with(func(s *shape) { s.os = "<os><type arch='nonsense' machine='q35'>hvm</type></os>" }), virt.CodeConfigUnsupported},
		{"a machine that nobody knows", with(func(s *shape) { s.os = "<os><type arch='x86_64' machine='nonsense'>hvm</type></os>" }), virt.CodeXMLError},
		{"no memory", with(func(s *shape) { s.memory = " " }), virt.CodeXMLError},
		{"memory 0", with(func(s *shape) { s.memory = "<memory>0</memory>" }), virt.CodeXMLError},
		{"a disk format that nobody knows", with(func(s *shape) { s.devices = fileDisk("/nowhere", "nonsense") }), virt.CodeConfigUnsupported},
		{"a disk without a target", with(func(s *shape) { s.devices = "<disk type='file'><source file='/nowhere'/></disk>" }), codeNoTarget},
		{"two disks at one place", with(func(s *shape) { s.devices = fileDisk("/nowhere", "raw") + fileDisk("/elsewhere", "raw") }), virt.CodeXMLError},
		{"a MAC that is none", with(func(s *shape) { s.devices = b.nic("zz") }), virt.CodeXMLError},
		{"a MAC of a group", with(func(s *shape) { s.devices = b.nic("01:00:00:00:00:01") }), virt.CodeXMLError},
		{"an interface to nowhere", with(func(s *shape) { s.devices = "<interface type='bridge'/>" }), virt.CodeXMLError},
		{"an interface of no type", with(func(s *shape) { s.devices = "<interface type='nonsense'/>" }), virt.CodeXMLError},
	} {
		d, err := b.c.DomainDefineXML(b.ctx, tc.doc)
		b.wants(tc.what, err, tc.code)
		if err == nil {
			b.forget(d)
		}
	}
	if _, err := b.c.DomainLookupByName(b.ctx, name); fault.Of(err) != fault.NotFound {
		b.Errorf("something was defined all the same: %v", err)
	}
}

func testLife(b *bench) {
	d := b.define(shape{devices: fileDisk(b.path(b.volume("qcow2", 1<<20, "")), "qcow2") + b.nic("52:54:00:ff:00:01") + agentChannel})
	b.wants("destroying what does not run", b.c.DomainDestroy(b.ctx, d), virt.CodeOperationInvalid)
	last := int32(-1)
	for range 2 {
		b.ok("start", b.c.DomainCreate(b.ctx, d))
		b.wantsState(d, virt.StateRunning, virt.RunningBooted)
		now, err := b.c.DomainLookupByUUID(b.ctx, d.UUID)
		b.ok("looking it up", err)
		if now.Name != d.Name || now.ID <= last {
			b.Errorf("it runs as %+v, and had number %d before", now, last)
		}
		last = now.ID
		byName, err := b.c.DomainLookupByName(b.ctx, d.Name)
		if b.ok("by name", err); byName != now {
			b.Errorf("%+v by name, %+v by UUID", byName, now)
		}
		b.wantsStats(map[virt.Domain]virt.State{now: virt.StateRunning})
		b.wants("starting what runs", b.c.DomainCreate(b.ctx, d), virt.CodeOperationInvalid)
		again, err := b.c.DomainLookupByUUID(b.ctx, d.UUID)
		if b.ok("looking it up", err); again != now {
			b.Errorf("a refused start changed %+v to %+v", now, again)
		}
		b.ok("destroy", b.c.DomainDestroy(b.ctx, now))
		b.wantsState(d, virt.StateShutoff, virt.ShutoffDestroyed)
		b.wantsStats(map[virt.Domain]virt.State{d: virt.StateShutoff})
		off, err := b.c.DomainLookupByUUID(b.ctx, d.UUID)
		if b.ok("looking it up", err); off.ID >= 0 {
			b.Errorf("it is off and has number %d", off.ID)
		}
	}
	b.ok("undefine", b.c.DomainUndefineFlags(b.ctx, d, 0))
	_, err := b.c.DomainLookupByUUID(b.ctx, d.UUID)
	b.wants("after undefine", err, virt.CodeNoDomain)
	b.wantsStats(nil)
}

// wantsStats fails unless those of the suite's domains that are named are in
// the list as given; with nil, unless none of this test's is.
func (b *bench) wantsStats(want map[virt.Domain]virt.State) {
	b.Helper()
	all, err := b.c.ConnectGetAllDomainStats(b.ctx)
	b.ok("all domains' states", err)
	got := map[virt.Domain]virt.State{}
	for _, s := range all {
		if strings.HasPrefix(s.Domain.Name, b.prefix) {
			if _, twice := got[s.Domain]; twice {
				b.Errorf("%s is listed twice", s.Domain.Name)
			}
			got[s.Domain] = s.State
			if st, r, err := b.c.DomainGetState(b.ctx, s.Domain); err == nil && (st != s.State || r != s.Reason) {
				b.Errorf("%s: %d, %d in the list, %d, %d asked alone", s.Domain.Name, s.State, s.Reason, st, r)
			}
		}
	}
	if !maps.Equal(got, want) {
		b.Errorf("the list has %v, want %v", got, want)
	}
}

func testDomainGone(b *bench) {
	d := b.define(shape{})
	b.ok("undefine", b.c.DomainUndefineFlags(b.ctx, d, 0))
	_, _, err := b.c.DomainGetState(b.ctx, d)
	b.wants("its state", err, virt.CodeNoDomain)
	_, err = b.c.DomainGetMetadata(b.ctx, d)
	b.wants("its metadata", err, virt.CodeNoDomain)
	b.wants("setting its metadata", b.c.DomainSetMetadata(b.ctx, d, "<instance/>"), virt.CodeNoDomain)
	b.wants("starting it", b.c.DomainCreate(b.ctx, d), virt.CodeNoDomain)
	b.wants("destroying it", b.c.DomainDestroy(b.ctx, d), virt.CodeNoDomain)
	b.wants("undefining it", b.c.DomainUndefineFlags(b.ctx, d, virt.UndefineNVRAM), virt.CodeNoDomain)
	for _, s := range []virt.AddressSource{virt.FromLease, virt.FromAgent, virt.FromARP} {
		_, err = b.c.DomainInterfaceAddresses(b.ctx, d, s)
		b.wants("its addresses", err, virt.CodeNoDomain)
	}
}

func testStartFails(b *bench) {
	pool := b.path(b.volume("raw", 0, ""))
	dir := pool[:strings.LastIndex(pool, "/")+1]
	base := b.volume("qcow2", 1<<20, "")
	over := b.volume("qcow2", 1<<20, backing(b.path(base), "qcow2"))
	b.ok("deleting the base", b.c.StorageVolDelete(b.ctx, base))
	plain := b.volume("raw", 1<<20, "")
	for _, tc := range []struct {
		what, devices string
		code          virt.Code
	}{
		{"a disk that is not there", fileDisk(dir+b.name("none"), "qcow2"), virt.CodeSystemError},
		{"a base that is not there", fileDisk(b.path(over), "qcow2"), virt.CodeSystemError},
		{"a disk of another format", fileDisk(b.path(plain), "qcow2"), virt.CodeInternalError},
		{"a bridge that is not there", "<interface type='bridge'><source bridge='fdvtnone'/></interface>", virt.CodeSystemError},
		{"a network that is not there", "<interface type='network'><source network='" + b.name("net") + "'/></interface>", virt.CodeNoNetwork},
		{"a volume that is not there", "<disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='" + b.s.Pool + "' volume='" + b.name("none") + "'/><target dev='vda' bus='virtio'/></disk>", virt.CodeNoStorageVol},
	} {
		d := b.define(shape{devices: tc.devices})
		b.wantsDomain(tc.what, b.c.DomainCreate(b.ctx, d), tc.code)
		b.wantsState(d, virt.StateShutoff, virt.ShutoffFailed)
		now, err := b.c.DomainLookupByUUID(b.ctx, d.UUID)
		if b.ok("looking it up", err); now.ID >= 0 {
			b.Errorf("%s: it has number %d", tc.what, now.ID)
		}
	}

	disk := fileDisk(b.path(b.volume("qcow2", 1<<20, "")), "qcow2")
	one, two := b.define(shape{devices: disk}), b.define(shape{devices: disk})
	b.ok("start", b.c.DomainCreate(b.ctx, one))
	b.wants("a disk in use", b.c.DomainCreate(b.ctx, two), virt.CodeInternalError)
	b.wantsState(one, virt.StateRunning)
	b.ok("destroy", b.c.DomainDestroy(b.ctx, one))
	b.ok("start when the disk is free", b.c.DomainCreate(b.ctx, two))
	b.wantsState(two, virt.StateRunning, virt.RunningBooted)
}

func testUndefine(b *bench) {
	name, uuid := b.name("un"), newUUID()
	d := b.define(shape{name: name, uuid: uuid})
	b.wants("an unknown flag", b.c.DomainUndefineFlags(b.ctx, d, 1<<20), virt.CodeInvalidArg)
	b.wants("to keep and to remove the NVRAM", b.c.DomainUndefineFlags(b.ctx, d, virt.UndefineNVRAM|undefineKeepRAM), virt.CodeOperationInvalid)
	b.wantsState(d, virt.StateShutoff)
	b.ok("all flags", b.c.DomainUndefineFlags(b.ctx, d,
		virt.UndefineManagedSave|virt.UndefineSnapshotsMetadata|virt.UndefineNVRAM|virt.UndefineCheckpointsMetadata))
	_, err := b.c.DomainLookupByName(b.ctx, name)
	b.wants("after it", err, virt.CodeNoDomain)

	d = b.define(shape{name: name, uuid: uuid})
	b.ok("start", b.c.DomainCreate(b.ctx, d))
	b.ok("undefine while it runs", b.c.DomainUndefineFlags(b.ctx, d, 0))
	b.wantsState(d, virt.StateRunning)
	b.wants("undefining it again", b.c.DomainUndefineFlags(b.ctx, d, 0), virt.CodeOperationInvalid)
	b.wants("starting it", b.c.DomainCreate(b.ctx, d), virt.CodeOperationInvalid)
	b.wants("setting its metadata", b.c.DomainSetMetadata(b.ctx, d, "<instance/>"), virt.CodeOperationInvalid)
	b.define(shape{name: name, uuid: uuid})
	b.ok("undefine what was defined again", b.c.DomainUndefineFlags(b.ctx, d, 0))
	b.ok("destroy", b.c.DomainDestroy(b.ctx, d))
	_, err = b.c.DomainLookupByUUID(b.ctx, uuid)
	b.wants("a transient domain that ended", err, virt.CodeNoDomain)
}

const efiOS = "<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type><firmware><feature enabled='no' name='secure-boot'/></firmware></os>"

func testNVRAM(b *bench) {
	if !b.s.UEFI {
		b.Skip("the host has no UEFI firmware")
	}
	s := shape{name: b.name("efi"), uuid: newUUID(), os: efiOS}
	d := b.define(s)
	b.ok("undefine before its first start", b.c.DomainUndefineFlags(b.ctx, d, 0))
	d = b.define(s)
	b.ok("start", b.c.DomainCreate(b.ctx, d))
	b.wants("undefine while it runs, without the flag", b.c.DomainUndefineFlags(b.ctx, d, 0), virt.CodeOperationInvalid)
	b.ok("destroy", b.c.DomainDestroy(b.ctx, d))
	b.wants("undefine without the flag", b.c.DomainUndefineFlags(b.ctx, d, virt.UndefineManagedSave|virt.UndefineSnapshotsMetadata), virt.CodeOperationInvalid)
	b.wantsState(d, virt.StateShutoff)
	b.ok("undefine that keeps it", b.c.DomainUndefineFlags(b.ctx, d, undefineKeepRAM))
	d = b.define(s)
	b.wants("undefine over a kept one", b.c.DomainUndefineFlags(b.ctx, d, 0), virt.CodeOperationInvalid)
	b.ok("undefine with the flag", b.c.DomainUndefineFlags(b.ctx, d, virt.UndefineNVRAM))
	d = b.define(s)
	b.ok("undefine when it is gone", b.c.DomainUndefineFlags(b.ctx, d, 0))

	// Also a start that failed leaves one.
	s.devices = fileDisk("/nowhere/"+b.name("none"), "raw")
	d = b.define(s)
	b.wants("start without a disk", b.c.DomainCreate(b.ctx, d), virt.CodeSystemError)
	b.wants("undefine after a failed start", b.c.DomainUndefineFlags(b.ctx, d, 0), virt.CodeOperationInvalid)
	b.ok("undefine with the flag", b.c.DomainUndefineFlags(b.ctx, d, virt.UndefineNVRAM))
}

func metadataDoc(elements string) string {
	return "<metadata>" + strings.ReplaceAll(elements, "NS", virt.MetadataNamespace) + "</metadata>"
}

func testMetadata(b *bench) {
	for _, tc := range []struct{ what, given, want string }{
		{"with a prefix", `<f:instance xmlns:f="NS" a="1" b='x &amp; "y"'/>`, `<instance a="1" b="x &amp; &quot;y&quot;"/>`},
		{"with the usual prefix", `<fleetdesk:instance xmlns:fleetdesk="NS" a="1"></fleetdesk:instance>`, `<instance a="1"/>`},
		{"with the namespace by default", `<instance xmlns="NS" a="1"/>`, `<instance a="1"/>`},
		{"with children", `<f:instance xmlns:f="NS"><f:x>1</f:x><f:y z="2"/></f:instance>`, "<instance>\n  <x>1</x>\n  <y z=\"2\"/>\n</instance>"},
		{"beside another's", `<o:other xmlns:o="urn:other" n="0"/><f:instance xmlns:f="NS" n="1"/>`, `<instance n="1"/>`},
		{"twice", `<f:instance xmlns:f="NS" n="1"/><f:other xmlns:f="NS" n="2"/>`, `<instance n="1"/>`},
	} {
		b.wantsMetadata(b.define(shape{metadata: metadataDoc(tc.given)}), tc.want)
	}
	for what, given := range map[string]string{"none": "", "another's alone": metadataDoc(`<o:instance xmlns:o="urn:other" n="0"/>`)} {
		got, err := b.c.DomainGetMetadata(b.ctx, b.define(shape{metadata: given}))
		b.wants(what, err, virt.CodeNoDomainMetadata)
		if got != "" {
			b.Errorf("%s: %q beside the error", what, got)
		}
	}

	s := shape{name: b.name("meta"), uuid: newUUID()}
	d := b.define(s)
	for _, tc := range []struct{ what, given, want string }{
		{"the first", `<instance a="1"/>`, `<instance a="1"/>`},
		{"another", `<instance a="2" b="&lt;&amp;&gt;"></instance>`, `<instance a="2" b="&lt;&amp;&gt;"/>`},
		{"with quotes", `<instance a="it's" b='"'/>`, `<instance a="it's" b="&quot;"/>`},
		{"with children", `<instance><x>1</x></instance>`, "<instance>\n  <x>1</x>\n</instance>"},
		{"long", `<instance a="` + strings.Repeat("x", 5000) + `"/>`, `<instance a="` + strings.Repeat("x", 5000) + `"/>`},
		{"of another name", `<other c="3"/>`, `<other c="3"/>`},
	} {
		b.ok(tc.what, b.c.DomainSetMetadata(b.ctx, d, tc.given))
		b.wantsMetadata(d, tc.want)
	}
	for _, tc := range []struct {
		what, given string
		code        virt.Code
	}{
		{"text", "hello", codeXMLDetail},
		{"nothing", "", codeXMLDetail},
		{"not closed", "<instance>", codeXMLDetail},
		{"two elements", "<instance/><instance/>", codeXMLDetail},
		{"the usual prefix declared", fmt.Sprintf(`<%[1]s:instance xmlns:%[1]s="%[2]s" a="9"/>`, virt.MetadataPrefix, virt.MetadataNamespace), virt.CodeInternalError},
	} {
		b.wants(tc.what, b.c.DomainSetMetadata(b.ctx, d, tc.given), tc.code)
		b.wantsMetadata(d, `<other c="3"/>`)
	}
	b.define(s)
	_, err := b.c.DomainGetMetadata(b.ctx, d)
	b.wants("after a definition without it", err, virt.CodeNoDomainMetadata)
}

func testLiveMetadata(b *bench) {
	s := shape{name: b.name("live"), uuid: newUUID(), metadata: metadataDoc(`<f:instance xmlns:f="NS" n="1"/>`)}
	d := b.define(s)
	b.ok("start", b.c.DomainCreate(b.ctx, d))
	b.wantsMetadata(d, `<instance n="1"/>`)
	b.ok("set", b.c.DomainSetMetadata(b.ctx, d, `<instance n="2"/>`))
	b.wantsMetadata(d, `<instance n="2"/>`)
	s.metadata = metadataDoc(`<f:instance xmlns:f="NS" n="3"/>`)
	b.define(s)
	b.wantsMetadata(d, `<instance n="2"/>`)
	b.ok("destroy", b.c.DomainDestroy(b.ctx, d))
	b.wantsMetadata(d, `<instance n="3"/>`)
	b.ok("start", b.c.DomainCreate(b.ctx, d))
	b.ok("set", b.c.DomainSetMetadata(b.ctx, d, `<instance n="4"/>`))
	b.ok("destroy", b.c.DomainDestroy(b.ctx, d))
	b.wantsMetadata(d, `<instance n="4"/>`)
}

func testAddresses(b *bench) {
	d := b.define(shape{devices: b.nic("52:54:00:FF:00:02") + agentChannel})
	all := []virt.AddressSource{virt.FromLease, virt.FromAgent, virt.FromARP}
	for _, s := range all {
		_, err := b.c.DomainInterfaceAddresses(b.ctx, d, s)
		b.wants("of what does not run", err, virt.CodeOperationInvalid)
	}
	b.ok("start", b.c.DomainCreate(b.ctx, d))
	for _, s := range all {
		got, err := b.c.DomainInterfaceAddresses(b.ctx, d, s)
		switch {
		case s == virt.FromAgent:
			b.wants("from an agent that is not connected", err, virt.CodeAgentUnresponsive)
		case s == virt.FromARP && virt.Is(err, virt.CodeInternalError):
			// libvirt 9.0 does not understand kernels of today.
		default:
			b.ok("addresses", err)
			for _, in := range got {
				if in.MAC != strings.ToLower(in.MAC) {
					b.Errorf("the MAC %s is not in lower case", in.MAC)
				}
			}
		}
	}
	_, err := b.c.DomainInterfaceAddresses(b.ctx, d, 9)
	b.wants("from nowhere", err, codeArgument)
	b.ok("destroy", b.c.DomainDestroy(b.ctx, d))
	without := b.define(shape{devices: b.nic("52:54:00:ff:00:03")})
	b.ok("start", b.c.DomainCreate(b.ctx, without))
	_, err = b.c.DomainInterfaceAddresses(b.ctx, without, virt.FromAgent)
	b.wants("from an agent without a channel", err, codeArgument)
}

func testNetwork(b *bench) {
	active, err := b.c.NetworkLookupByName(b.ctx, b.name("none"))
	b.wants("a network that is not there", err, virt.CodeNoNetwork)
	if active {
		b.Error("it is active beside the error")
	}
	if b.s.Network == "" {
		return
	}
	active, err = b.c.NetworkLookupByName(b.ctx, b.s.Network)
	if b.ok("the network", err); !active {
		b.Error("the network is not active")
	}
}
