package domain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

const markText = `<instance installation="i/n" namespace="crawl" name="de-1" uid="u" created="2026-01-02T03:04:05Z" stage="made" port="3128" address="192.0.2.10" run="4"`

var marked = domain.Mark{
	Owner:   provider.Owner{Installation: "i/n", Namespace: "crawl", Name: "de-1", UID: "u"},
	Created: created, Stage: domain.Made, Port: 3128, Address: "192.0.2.10", Run: 4,
}

// The form that virDomainSetMetadata takes: a prefix would be written twice, and
// a namespace declaration is refused.
func TestElementIsWhatLibvirtTakes(t *testing.T) {
	got, err := marked.Element()
	if err != nil {
		t.Fatal(err)
	}
	if want := markText + "></instance>"; got != want {
		t.Errorf("Element = %s\nwant %s", got, want)
	}
}

// In a whole document the prefix and the namespace are said.
func TestMarkInADocument(t *testing.T) {
	s := shapeOf(owner)
	doc, err := domain.XML(s)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(doc, "<metadata>")
	element, _, _ := strings.Cut(rest, "</metadata>")
	if want := "<" + virt.MetadataPrefix + `:instance xmlns:` + virt.MetadataPrefix + `="` + virt.MetadataNamespace + `" `; !strings.Contains(element, want) {
		t.Errorf("the metadata are %s", element)
	}
	got, err := domain.ParseMark(element)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(s.Mark, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// libvirt hands the element back without its namespace declaration, and writes
// it anew: other quotes, entities, line ends.
func TestParseMarkAsLibvirtHandsItBack(t *testing.T) {
	for name, in := range map[string]string{
		"bare":          markText + `/>`,
		"open":          markText + `></instance>`,
		"prefix":        strings.Replace(markText, "<instance", "<fleetdesk:instance", 1) + `/>`,
		"declared":      strings.Replace(markText, "<instance", `<fleetdesk:instance xmlns:fleetdesk="`+virt.MetadataNamespace+`"`, 1) + `/>`,
		"default":       strings.Replace(markText, "<instance", `<instance xmlns="`+virt.MetadataNamespace+`"`, 1) + `/>`,
		"halfDeclared":  strings.Replace(markText, "<instance", `<instance xmlns:fleetdesk="`+virt.MetadataNamespace+`"`, 1) + `/>`,
		"otherPrefix":   strings.Replace(markText, "<instance", `<q:instance xmlns:q="`+virt.MetadataNamespace+`"`, 1) + `/>`,
		"quotes":        strings.ReplaceAll(markText, `"`, `'`) + `/>`,
		"entities":      strings.Replace(markText, `"i/n"`, `"&#105;&#x2F;n"`, 1) + `/>`,
		"spaces":        "\n  " + markText + "\n/>\n",
		"comment":       "<!-- by hand -->" + markText + "/>",
		"laterAttr":     markText + ` colour="blue" q:uid="x"/>`,
		"laterChildren": markText + "><disk size='1'><more/></disk>text</instance>",
		"otherZone":     strings.Replace(markText, "03:04:05Z", "05:04:05+02:00", 1) + "/>",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := domain.ParseMark(in)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(marked, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", in, d)
			}
			if got.Created.Location() != time.UTC {
				t.Errorf("%s: the time is in %s", in, got.Created.Location())
			}
		})
	}
}

func TestParseMarkWithoutWhatMayBeMissing(t *testing.T) {
	in := `<instance installation="i/n" namespace="crawl" name="de-1" uid="u" created="2026-01-02T03:04:05Z" stage="making"/>`
	want := domain.Mark{Owner: marked.Owner, Created: created, Stage: domain.Making}
	got, err := domain.ParseMark(in)
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestParseMarkRefuses(t *testing.T) {
	with := func(old, value string) string {
		if !strings.Contains(markText, old) {
			t.Fatalf("no %s", old)
		}
		return strings.Replace(markText, old, value, 1) + "/>"
	}
	deep := strings.Repeat("<a>", 80) + strings.Repeat("</a>", 80)
	for name, tc := range map[string]struct{ in, says string }{
		"empty":         {"", "not one"},
		"text":          {"instance", "text outside"},
		"cut":           {markText, "no XML"},
		"two":           {markText + "/>" + markText + "/>", "2 elements"},
		"after":         {markText + "/>x", "text outside"},
		"name":          {with("<instance", "<domain"), "called"},
		"child":         {"<x>" + markText + "/></x>", "called"},
		"namespace":     {with("<instance", "<q:instance"), "namespace"},
		"twoPrefixes":   {with("<instance", "<fleetdesk:fleetdesk:instance"), "no XML"},
		"doctype":       {"<!DOCTYPE x [<!ENTITY a 'b'>]>" + markText + "/>", "document type"},
		"entity":        {with(`"u"`, `"&a;"`), "no XML"},
		"noUID":         {with(` uid="u"`, ""), "uid is missing"},
		"emptyUID":      {with(`uid="u"`, `uid=""`), "uid is missing"},
		"noInstall":     {with(` installation="i/n"`, ""), "installation is missing"},
		"noNamespace":   {with(` namespace="crawl"`, ""), "namespace is missing"},
		"noName":        {with(` name="de-1"`, ""), " name is missing"},
		"longUID":       {with(`"u"`, `"`+strings.Repeat("u", 254)+`"`), "254 bytes"},
		"longInstall":   {with(`"i/n"`, `"`+strings.Repeat("u", 513)+`"`), "513 bytes"},
		"control":       {with(`"u"`, `"u&#9;"`), "U+0009"},
		"nonCharacter":  {with(`"u"`, "\"u\ufffe\""), "no XML"},
		"twice":         {with(` uid="u"`, ` uid="u" uid="v"`), "twice"},
		"noCreated":     {with(` created="2026-01-02T03:04:05Z"`, ""), "created is missing"},
		"created":       {with("2026-01-02T03:04:05Z", "yesterday"), "RFC 3339"},
		"noZone":        {with("03:04:05Z", "03:04:05"), "RFC 3339"},
		"zeroTime":      {with("2026-01-02T03:04:05Z", "0001-01-01T00:00:00Z"), "created is missing"},
		"oldTime":       {with("2026-01-02T03:04:05Z", "1969-01-01T00:00:00Z"), "1969"},
		"noStage":       {with(` stage="made"`, ""), "stage"},
		"stage":         {with(`"made"`, `"Made"`), "stage"},
		"port":          {with(`"3128"`, `"65536"`), "port"},
		"portWord":      {with(`"3128"`, `"x"`), "port"},
		"portSpelling":  {with(`"3128"`, `"+3128"`), "port"},
		"portSpace":     {with(`"3128"`, `" 3128"`), "port"},
		"portEmpty":     {with(`"3128"`, `""`), "port"},
		"negativePort":  {with(`"3128"`, `"-1"`), "port"},
		"address":       {with("192.0.2.10", "example.com"), "address"},
		"linkLocal":     {with("192.0.2.10", "169.254.1.1"), "address"},
		"loopback":      {with("192.0.2.10", "127.0.0.1"), "address"},
		"otherSpelling": {with("192.0.2.10", "2001:DB8::1"), "address"},
		"run":           {with(`"4"`, `"2147483648"`), "run"},
		"negativeRun":   {with(`"4"`, `"-1"`), "run"},
		"deep":          {markText + ">" + deep + "</instance>", "deep"},
		"large":         {markText + ">" + strings.Repeat(" ", 32<<10) + "</instance>", "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := domain.ParseMark(tc.in)
			if err == nil || got != (domain.Mark{}) {
				t.Fatalf("ParseMark(%.300s) = %+v", tc.in, got)
			}
			if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "virsh") || len(err.Error()) > 1000 {
				t.Errorf("%s: %v; want Permanent that says %q and what to do", fault.Of(err), err, tc.says)
			}
		})
	}
}

func TestElementRefuses(t *testing.T) {
	for name, change := range map[string]func(*domain.Mark){
		"noUID":     func(m *domain.Mark) { m.Owner.UID = "" },
		"control":   func(m *domain.Mark) { m.Owner.Name = "a\x00" },
		"bytes":     func(m *domain.Mark) { m.Owner.Name = "a\xff" },
		"ffff":      func(m *domain.Mark) { m.Owner.Name = "a\uffff" },
		"long":      func(m *domain.Mark) { m.Owner.Name = strings.Repeat("a", 254) },
		"noCreated": func(m *domain.Mark) { m.Created = time.Time{} },
		"far":       func(m *domain.Mark) { m.Created = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"stage":     func(m *domain.Mark) { m.Stage = "" },
		"port":      func(m *domain.Mark) { m.Port = 65536 },
		"address":   func(m *domain.Mark) { m.Address = "fe80::1" },
		"run":       func(m *domain.Mark) { m.Run = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			m := marked
			change(&m)
			if got, err := m.Element(); fault.Of(err) != fault.Invalid || got != "" {
				t.Errorf("Element of %+v = %s, %v", m, got, err)
			}
		})
	}
}

// Whatever Kubernetes allows comes back as it went in, at full length too, and
// however the time was made.
func TestMarkRoundTrip(t *testing.T) {
	text := func(t *rapid.T, name string) string {
		return rapid.OneOf(
			rapid.StringMatching(`[a-z0-9.-]{1,253}`),
			rapid.StringMatching(`["'<>&/ a-zé\]\[%;#]{1,60}`),
		).Draw(t, name)
	}
	rapid.Check(t, func(t *rapid.T) {
		m := domain.Mark{
			Owner:   provider.Owner{Installation: text(t, "installation"), Namespace: text(t, "namespace"), Name: text(t, "name"), UID: text(t, "uid")},
			Created: time.Unix(rapid.Int64Range(0, 1<<36).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")),
			Stage:   rapid.SampledFrom([]domain.Stage{domain.Making, domain.Made}).Draw(t, "stage"),
			Port:    rapid.IntRange(0, 65535).Draw(t, "port"),
			Address: rapid.SampledFrom([]string{"", "192.0.2.1", "10.0.0.1", "2001:db8::1"}).Draw(t, "address"),
			Run:     rapid.Int32Range(0, 1<<31-1).Draw(t, "run"),
		}
		el, err := m.Element()
		if err != nil {
			t.Fatalf("Element of %+v: %v", m, err)
		}
		if strings.Contains(el, "xmlns") || strings.Contains(el, ":instance") {
			t.Fatalf("Element = %s", el)
		}
		got, err := domain.ParseMark(el)
		if err != nil {
			t.Fatalf("ParseMark(%s): %v", el, err)
		}
		if !got.Created.Equal(m.Created) || got.Created.Location() != time.UTC {
			t.Errorf("created %v came back as %v", m.Created, got.Created)
		}
		got.Created, m.Created = time.Time{}, time.Time{}
		if got != m {
			t.Errorf("%+v came back as %+v", m, got)
		}
	})
}

func FuzzParseMark(f *testing.F) {
	f.Add(markText + "/>")
	f.Add(`<fleetdesk:instance xmlns:fleetdesk="` + virt.MetadataNamespace + `" uid="&lt;"><a/></fleetdesk:instance>`)
	f.Add("<!DOCTYPE a><instance/>")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := domain.ParseMark(s)
		if err != nil {
			if len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\n\x00\x1b") {
				t.Errorf("the error lets through what was read: %q", err)
			}
			return
		}
		el, err := m.Element()
		if err != nil {
			t.Fatalf("%q was read as %+v, which cannot be written: %v", s, m, err)
		}
		again, err := domain.ParseMark(el)
		if err != nil || again != m {
			t.Errorf("%q was read as %+v, written as %q and read as %+v (%v)", s, m, el, again, err)
		}
	})
}
