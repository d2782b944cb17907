package domain_test

import (
	"net"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
)

// What is derived is kept nowhere else: another answer would be another machine.
func TestDerivedNeverChanges(t *testing.T) {
	n := domain.NamesOf(owner)
	for name, tc := range map[string]struct{ got, want string }{
		"domain":  {n.Domain, "fd-crawl-de-1-cciorhspjxbnwp4h"},
		"overlay": {n.Overlay, "fd-crawl-de-1-cciorhspjxbnwp4h.qcow2"},
		"seed":    {n.Seed, "fd-crawl-de-1-cciorhspjxbnwp4h-seed.iso"},
		"uuid":    {domain.UUIDOf(owner), "e7e75965-b024-82c3-9720-2b2826a9de5e"},
		"mac":     {domain.MACOf(owner), "52:f3:a9:42:46:69"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s is %s, was %s: instances of before would be lost", name, tc.got, tc.want)
		}
	}
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func checkNames(t interface{ Errorf(string, ...any) }, o provider.Owner) {
	n := domain.NamesOf(o)
	if len(n.Domain) > 50 || !dnsLabel.MatchString(n.Domain) || !strings.HasPrefix(n.Domain, "fd-") || strings.Contains(n.Domain, "--") {
		t.Errorf("domain %q of %+v: no DNS label of at most 50 bytes", n.Domain, o)
	}
	if n.Overlay != n.Domain+".qcow2" || n.Seed != n.Domain+"-seed.iso" {
		t.Errorf("volumes %q and %q of %q", n.Overlay, n.Seed, n.Domain)
	}
}

// incus 1343: a long name exceeds the path of the monitor's socket. There is a
// budget, and a hash for what is cut off.
func TestNamesHaveABudget(t *testing.T) {
	for name, tc := range map[string]struct{ namespace, name, want string }{
		"short":     {"crawl", "de-1", "fd-crawl-de-1-"},
		"dots":      {"crawl", "de.1..x", "fd-crawl-de-1-x-"},
		"upper":     {"Crawl", "DE", "fd-crawl-de-"},
		"strange":   {"ä/../", "<&>", "fd-"},
		"dashes":    {"--a--", "--b--", "fd-a-b-"},
		"empty":     {"", "", "fd-"},
		"cut":       {"crawl", strings.Repeat("a", 253), "fd-crawl-" + strings.Repeat("a", 24) + "-"},
		"cutOnDash": {strings.Repeat("n", 29), "x", "fd-" + strings.Repeat("n", 29) + "-"},
		"dashFits":  {strings.Repeat("n", 28), "xy", "fd-" + strings.Repeat("n", 28) + "-x-"},
		"full":      {strings.Repeat("n", 63), "x", "fd-" + strings.Repeat("n", 30) + "-"},
	} {
		t.Run(name, func(t *testing.T) {
			o := provider.Owner{Installation: "i", Namespace: tc.namespace, Name: tc.name, UID: "u"}
			checkNames(t, o)
			got := domain.NamesOf(o).Domain
			if text, hash := got[:len(got)-16], got[len(got)-16:]; text != tc.want || !regexp.MustCompile(`^[a-z2-7]{16}$`).MatchString(hash) {
				t.Errorf("NamesOf(%q, %q) = %q, want %q and a hash", tc.namespace, tc.name, got, tc.want)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		o := provider.Owner{
			Installation: rapid.String().Draw(t, "installation"), UID: rapid.String().Draw(t, "uid"),
			Namespace: rapid.StringMatching(`[a-z0-9-]{0,63}`).Draw(t, "namespace"), Name: rapid.StringMatching(`[a-z0-9.-]{0,253}`).Draw(t, "name"),
		}
		checkNames(t, o)
	})
}

// Names that differ only where they are cut, objects made again under an old
// name, and a restored cluster on the same hosts are machines of their own.
func TestDerivedIsApart(t *testing.T) {
	a := strings.Repeat("a", 252)
	seen := map[string]provider.Owner{}
	for _, o := range []provider.Owner{
		{Installation: "i", Namespace: "n", Name: a + "x", UID: "1"},
		{Installation: "i", Namespace: "n", Name: a + "y", UID: "2"},
		{Installation: "i", Namespace: "n", Name: a + "x", UID: "3"},
		{Installation: "j", Namespace: "n", Name: a + "x", UID: "1"},
		{Installation: "ij", Namespace: "n", Name: a + "x", UID: ""},
		{Installation: "", Namespace: "n", Name: a + "x", UID: "ij"},
		{Installation: "i1", Namespace: "n", Name: a + "x", UID: ""},
		{Installation: "i/n", Namespace: "n", Name: a + "x", UID: "1"},
	} {
		for _, s := range []string{domain.NamesOf(o).Domain, domain.UUIDOf(o), domain.MACOf(o)} {
			if other, ok := seen[s]; ok {
				t.Errorf("%s is of %+v and of %+v", s, other, o)
			}
			seen[s] = o
		}
	}
}

// A domain whose metadata are broken is shown to the installation that made it,
// and to no other one on the host.
func TestOurs(t *testing.T) {
	for _, o := range []provider.Owner{owner, {Installation: owner.Installation, UID: "x"}, {Installation: owner.Installation, Namespace: strings.Repeat("n", 63), Name: "x", UID: "y"}} {
		name := domain.NamesOf(o).Domain
		if !domain.Ours(name, owner.Installation) {
			t.Errorf("%s is not ours", name)
		}
		for _, other := range []string{"", "other", owner.Installation + "x"} {
			if domain.Ours(name, other) {
				t.Errorf("%s is of installation %q too", name, other)
			}
		}
		for _, not := range []string{"", "fd-", "x" + name, name + "x", name[:len(name)-1], strings.ToUpper(name), "vm" + name[2:], "fd-x" + name[len(name)-16:], "fd-" + strings.Repeat("a", 40) + "-" + name[3:]} {
			if domain.Ours(not, owner.Installation) {
				t.Errorf("%s is ours", not)
			}
		}
	}
}

// A volume's name tells whose part it is, and of nobody else's volume is it read.
func TestPartsOfAnOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := provider.Owner{
			Installation: rapid.String().Draw(t, "installation"), UID: rapid.String().Draw(t, "uid"),
			Namespace: rapid.StringMatching(`[a-z0-9-]{0,63}`).Draw(t, "namespace"), Name: rapid.StringMatching(`[a-z0-9.-]{0,253}`).Draw(t, "name"),
		}
		n := domain.NamesOf(o)
		for name, want := range map[string]domain.Part{
			n.Overlay: {Domain: n.Domain, Tag: domain.Tag(o.Installation, o.UID)},
			n.Seed:    {Domain: n.Domain, Tag: domain.Tag(o.Installation, o.UID), Seed: true},
		} {
			if got, ok := domain.PartOf(name, o.Installation); !ok || got != want {
				t.Errorf("PartOf(%q) = %+v, %t; want %+v", name, got, ok, want)
			}
		}
	})
	n := domain.NamesOf(owner)
	for reason, name := range map[string]string{
		"the domain's own name":      n.Domain,
		"another ending":             n.Domain + ".raw",
		"a copy of somebody":         n.Overlay + ".bak",
		"a copy of somebody, before": "copy-" + n.Overlay,
		"a copy with an ending":      n.Domain + "-copy.qcow2",
		"a seed as a disk":           n.Domain + "-seed.qcow2",
		"upper case":                 strings.ToUpper(n.Overlay),
		"two dashes":                 strings.Replace(n.Overlay, "crawl-de", "crawl--de", 1),
		"a dot":                      strings.Replace(n.Overlay, "crawl-de", "crawl.de", 1),
		"a dash before":              strings.Replace(n.Overlay, "fd-crawl", "fd--crawl", 1),
		"digits that base32 lacks":   strings.Replace(n.Overlay, n.Domain[len(n.Domain)-4:], "0189", 1),
		"a path":                     "/srv/" + n.Overlay,
		"nothing":                    "",
		"the endings alone":          ".qcow2",
		"the seed's ending alone":    "-seed.iso",
	} {
		if got, ok := domain.PartOf(name, owner.Installation); ok {
			t.Errorf("%s: %q is %+v", reason, name, got)
		}
	}
	if got, ok := domain.PartOf(n.Overlay, "other"); ok {
		t.Errorf("%q is %+v of another installation", n.Overlay, got)
	}
}

// harvester 9973, kubevirt 9993: MAC addresses that are doubled or change. Ours
// comes from the UID, is locally administered, and stable.
func TestMACComesFromTheUID(t *testing.T) {
	renamed := owner
	renamed.Namespace, renamed.Name = "other", "name"
	if domain.MACOf(owner) != domain.MACOf(renamed) || domain.UUIDOf(owner) != domain.UUIDOf(renamed) {
		t.Error("MAC and UUID depend on more than installation and UID")
	}
	rapid.Check(t, func(t *rapid.T) {
		o := provider.Owner{Installation: rapid.String().Draw(t, "installation"), UID: rapid.String().Draw(t, "uid")}
		mac := domain.MACOf(o)
		hw, err := net.ParseMAC(mac)
		if err != nil || hw.String() != mac || len(hw) != 6 || hw[0]&1 != 0 || hw[0]&2 == 0 {
			t.Errorf("MACOf = %q: no lower-case, locally administered unicast address", mac)
		}
		uuid := domain.UUIDOf(o)
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(uuid) {
			t.Errorf("UUIDOf = %q: not of version 8", uuid)
		}
	})
}

func TestParseID(t *testing.T) {
	const uuid = "e7e75965-b024-82c3-9720-2b2826a9de5e"
	for name, tc := range map[string]struct {
		reason string
		in     string
		want   domain.ID
		ok     bool
	}{
		"round":      {"what String writes is read", "kvm://home/box-1/" + uuid, domain.ID{Provider: "home", Host: "box-1", UUID: uuid}, true},
		"dots":       {"names may have dots", "kvm://h.1/b_2.x/" + uuid, domain.ID{Provider: "h.1", Host: "b_2.x", UUID: uuid}, true},
		"longest":    {"the bound", "kvm://" + strings.Repeat("a", 128) + "/b/" + uuid, domain.ID{Provider: strings.Repeat("a", 128), Host: "b", UUID: uuid}, true},
		"long":       {"beyond it", "kvm://" + strings.Repeat("a", 129) + "/b/" + uuid, domain.ID{}, false},
		"upper":      {"a UUID has one spelling", "kvm://home/box-1/" + strings.ToUpper(uuid), domain.ID{}, false},
		"plain":      {"a UUID has dashes", "kvm://home/box-1/" + strings.ReplaceAll(uuid, "-", ""), domain.ID{}, false},
		"braces":     {"and nothing else", "kvm://home/box-1/{" + uuid[1:35] + "}", domain.ID{}, false},
		"dashes":     {"where they belong", "kvm://home/box-1/" + strings.Replace(uuid, "5-b", "-5b", 1), domain.ID{}, false},
		"hex":        {"hexadecimal digits", "kvm://home/box-1/g" + uuid[1:], domain.ID{}, false},
		"other":      {"another provider's scheme", "local://home/box-1/" + uuid, domain.ID{}, false},
		"scheme":     {"a scheme has one spelling", "KVM://home/box-1/" + uuid, domain.ID{}, false},
		"noHost":     {"three parts", "kvm://home/" + uuid, domain.ID{}, false},
		"more":       {"three parts", "kvm://home/box-1/" + uuid + "/", domain.ID{}, false},
		"query":      {"nothing behind", "kvm://home/box-1/" + uuid + "?x", domain.ID{}, false},
		"empty":      {"no empty parts", "kvm:///box-1/" + uuid, domain.ID{}, false},
		"empty host": {"no empty parts", "kvm://home//" + uuid, domain.ID{}, false},
		"bad host":   {"nor others than names", "kvm://home/box 1/" + uuid, domain.ID{}, false},
		"user":       {"no other grammar of names", "kvm://a@home/box-1/" + uuid, domain.ID{}, false},
		"hidden":     {"a name begins with a letter or digit", "kvm://.home/box-1/" + uuid, domain.ID{}, false},
		"nothing":    {"nothing is no id", "", domain.ID{}, false},
		"space":      {"no trimming", " kvm://home/box-1/" + uuid, domain.ID{}, false},
		"newline":    {"no trimming", "kvm://home/box-1/" + uuid + "\n", domain.ID{}, false},
		"nul":        {"no control characters", "kvm://ho\x00me/box-1/" + uuid, domain.ID{}, false},
		"nonASCII":   {"no other letters", "kvm://höme/box-1/" + uuid, domain.ID{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := domain.ParseID(tc.in)
			if (err == nil) != tc.ok || got != tc.want {
				t.Errorf("%s: ParseID(%q) = %+v, %v", tc.reason, tc.in, got, err)
			}
			if err != nil && fault.Of(err) != fault.Invalid {
				t.Errorf("class %s; want invalid", fault.Of(err))
			}
		})
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("kvm://home/box-1/e7e75965-b024-82c3-9720-2b2826a9de5e")
	f.Add("kvm://../box-1/e7e75965-b024-82c3-9720-2b2826a9de5e")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := domain.ParseID(s)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if id.String() != s {
			t.Errorf("ParseID(%q).String() = %q: a second spelling", s, id)
		}
		if strings.ContainsAny(id.Provider+id.Host+id.UUID, "/ \x00") || id.UUID != strings.ToLower(id.UUID) {
			t.Errorf("ParseID(%q) = %+v", s, id)
		}
	})
}
