package gcp_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
)

func good() gcp.Section {
	return gcp.Section{
		Project: "crawl-fleet", Zones: []string{"europe-west1-b", "us-east1-b"},
		Images: map[string]string{"debian-12": "projects/debian-cloud/global/images/family/debian-12"},
	}
}

// What is wrong in a section names the field, and what would be right.
func TestSection(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*gcp.Section)
		path   string
	}{
		"no project":         {"where?", func(s *gcp.Section) { s.Project = "" }, "project"},
		"project's number":   {"it is not its id", func(s *gcp.Section) { s.Project = "123456789012" }, "project"},
		"project with path":  {"it would leave its place in the URL", func(s *gcp.Section) { s.Project = "a/../../b" }, "project"},
		"no zones":           {"where?", func(s *gcp.Section) { s.Zones = nil }, "zones"},
		"region as zone":     {"a region has no letter", func(s *gcp.Section) { s.Zones = []string{"europe-west1"} }, "zones.0"},
		"zone twice":         {"two rows of one zone", func(s *gcp.Section) { s.Zones = append(s.Zones, "us-east1-b") }, "zones.2"},
		"too many zones":     {"each costs calls", func(s *gcp.Section) { s.Zones = make([]string, 101) }, "zones"},
		"machine type":       {"a path", func(s *gcp.Section) { s.MachineType = "zones/a/machineTypes/b" }, "machineType"},
		"type without name":  {"which?", func(s *gcp.Section) { s.MachineTypes = []gcp.MachineType{{MilliCPUs: 1, MemoryMiB: 1}} }, "machineTypes.0.name"},
		"type without cpus":  {"it would never be chosen", func(s *gcp.Section) { s.MachineTypes = []gcp.MachineType{{Name: "e2-micro", MemoryMiB: 1}} }, "machineTypes.0.milliCPUs"},
		"type of no memory":  {"as above", func(s *gcp.Section) { s.MachineTypes = []gcp.MachineType{{Name: "e2-micro", MilliCPUs: 1}} }, "machineTypes.0.memoryMiB"},
		"image":              {"no path", func(s *gcp.Section) { s.Images["debian-12"] = "debian-12" }, "images.debian-12"},
		"image's key":        {"a path", func(s *gcp.Section) { s.Images["a/b"] = s.Images["debian-12"] }, "images.a/b"},
		"default image":      {"it is none", func(s *gcp.Section) { s.DefaultImage = "debian-13" }, "defaultImage"},
		"disk type":          {"a path", func(s *gcp.Section) { s.Disk.Type = "a/b" }, "disk.type"},
		"disk size":          {"below zero", func(s *gcp.Section) { s.Disk.SizeGiB = -1 }, "disk.sizeGiB"},
		"network":            {"a subnetwork", func(s *gcp.Section) { s.Network = "regions/europe-west1/subnetworks/a" }, "network"},
		"subnetwork":         {"a name says no region", func(s *gcp.Section) { s.Subnetwork = "crawl" }, "subnetwork"},
		"subnetwork's place": {"a zone of another region cannot use it", func(s *gcp.Section) { s.Subnetwork = "regions/europe-west1/subnetworks/a" }, "zones.1"},
		"address":            {"neither", func(s *gcp.Section) { s.Address = "public" }, "address"},
		"label's key":        {"capitals", func(s *gcp.Section) { s.Labels = map[string]string{"Team": "a"} }, "labels.Team"},
		"label's value":      {"capitals", func(s *gcp.Section) { s.Labels = map[string]string{"team": "A"} }, "labels.team"},
		"our label":          {"it is how instances are found", func(s *gcp.Section) { s.Labels = map[string]string{"fleetdesk_uid": "a"} }, "labels.fleetdesk_uid"},
		"tag":                {"capitals", func(s *gcp.Section) { s.Tags = []string{"Proxy"} }, "tags.0"},
		"account":            {"no address", func(s *gcp.Section) { s.ServiceAccount = gcp.ServiceAccount{Email: "proxy", Scopes: []string{"x"}} }, "serviceAccount.email"},
		"scopes":             {"least, and nobody says which", func(s *gcp.Section) { s.ServiceAccount.Email = "a@example.com" }, "serviceAccount.scopes"},
		"scope": {"a short form", func(s *gcp.Section) {
			s.ServiceAccount = gcp.ServiceAccount{Email: "a@example.com", Scopes: []string{"cloud-platform"}}
		}, "serviceAccount.scopes.0"},
		"secret":       {"which?", func(s *gcp.Section) { s.Credentials.SecretRef.Key = "key.json" }, "credentials.secretRef.name"},
		"secret's key": {"a path", func(s *gcp.Section) { s.Credentials.SecretRef = gcp.SecretRef{Name: "a", Key: "../b"} }, "credentials.secretRef.key"},
		"rate":         {"below zero", func(s *gcp.Section) { s.RequestsPerSecond = -1 }, "requestsPerSecond"},
		"fast":         {"no project has it", func(s *gcp.Section) { s.RequestsPerSecond = 1e9 }, "requestsPerSecond"},
		"endpoint":     {"tokens would be readable on the way", func(s *gcp.Section) { s.Endpoint = "http://compute.example.com/compute/v1/" }, "endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			tc.change(&s)
			_, err := gcp.New(gcp.Options{Name: "cloud", Section: s})
			field, ok := errors.AsType[*gcp.FieldError](err)
			if !ok || fault.Of(err) != fault.Invalid || strings.Join(field.Path, ".") != tc.path || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want Invalid and the field %s", tc.reason, err, tc.path)
			}
		})
	}
	s, err := gcp.Settle(good())
	if err != nil || s.MachineType != "e2-micro" || s.DefaultImage != "debian-12" || s.Address != "external" || s.Network != "global/networks/default" || s.Disk.Type != "pd-balanced" {
		t.Errorf("defaults: %+v, %v", s, err)
	}
	s = good()
	s.Zones, s.Subnetwork = s.Zones[:1], "projects/host-project/regions/europe-west1/subnetworks/crawl"
	s.Images["full"] = "https://www.googleapis.com/compute/v1/projects/a-project/global/images/squid-7"
	if s, err = gcp.Settle(s); err != nil || s.Network != "" || s.Images["full"] != "projects/a-project/global/images/squid-7" {
		t.Errorf("a shared subnetwork and a full URL: %+v, %v", s, err)
	}
}

// Names and labels are what Compute Engine takes, whatever an owner is called,
// and no two owners share one.
func TestNamesAndLabels(t *testing.T) {
	name, label := regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`), regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)
	long := strings.Repeat("x", 127)
	seen := map[string]provider.Owner{}
	for _, o := range []provider.Owner{
		{Installation: "a", UID: "b"},
		{Installation: "ab", UID: ""},
		{Installation: "", UID: "ab"},
		{Installation: "A/Ä", UID: "UID with spaces"},
		{Installation: tag, UID: long + "1"},
		{Installation: tag, UID: long + "2"},
		{Installation: long + tag, UID: long + "2"},
	} {
		n := gcp.NameOf(o)
		if !name.MatchString(n) {
			t.Errorf("%+v is called %q", o, n)
		}
		if other, ok := seen[n]; ok {
			t.Errorf("%+v and %+v are both called %s", o, other, n)
		}
		seen[n] = o
		for k, v := range gcp.LabelsOf(o) {
			if !label.MatchString(k) || !label.MatchString(v) {
				t.Errorf("%+v: label %q=%q", o, k, v)
			}
		}
	}
	widest := provider.Owner{Installation: strings.Repeat("i", 128), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("m", 253), UID: strings.Repeat("u", 128)}
	if n := len(gcp.Describe(widest, 65535)); n > 2048 {
		t.Errorf("a description of %d characters", n)
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("gcp://cloud/crawl-fleet/europe-west1-b/fd-0123456789ab-0123456789abcdef0123456789abcdef")
	f.Add("gcp://cloud/example.com:crawl-fleet/us-east1-b/fd-0123456789ab-0123456789abcdef0123456789abcdef")
	f.Add("gcp:////")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := gcp.ParseID(text)
		if err != nil {
			if fault.Of(err) != fault.Invalid || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if id.String() != text || strings.ContainsAny(id.Project+id.Zone+id.Name, "/?#% ") {
			t.Errorf("%q came back as %q", text, id)
		}
	})
}

// Descriptions are anybody's text: what is read from one is the instance's own
// owner, or nothing.
func FuzzRead(f *testing.F) {
	f.Add(gcp.Describe(ownerOf("a"), port), gcp.NameOf(ownerOf("a")))
	f.Add(`{"fleetdesk":{}}`, "fd-")
	f.Add(`{"fleetdesk":null}`, "")
	f.Fuzz(func(t *testing.T, description, name string) {
		o, got, err := gcp.Read(&compute.Instance{Name: name, Description: description, Labels: gcp.LabelsOf(ownerOf("a"))})
		if err == nil && (gcp.NameOf(o) != name || got < 1 || got > 65535 || o.UID != "a") {
			t.Errorf("%q called %q is read as %+v, %d", description, name, o, got)
		}
		_ = gcp.ReadClaim(&compute.InstanceGroup{Name: name, Description: description, NamedPorts: []*compute.NamedPort{{Name: name}}})
	})
}

func ExampleParseID() {
	id, err := gcp.ParseID("gcp://cloud/crawl-fleet/europe-west1-b/fd-0123456789ab-0123456789abcdef0123456789abcdef")
	fmt.Println(id.Project, id.Zone, err)
	// Output: crawl-fleet europe-west1-b <nil>
}
