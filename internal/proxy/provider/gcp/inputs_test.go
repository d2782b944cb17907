package gcp_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// What does not exist, and what is not allowed: each ends in an error with its
// class, on one line, that names the zone and the field, and makes nothing.
func TestWhatDoesNotExist(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*world, *gcp.Section, *provider.Spec)
		want   fault.Class
		texts  []string
	}{
		"machine type": {"a typo in the file", func(_ *world, s *gcp.Section, _ *provider.Spec) { s.MachineType = "e9-huge" }, fault.Permanent, []string{"e9-huge", "gcp.machineType"}},
		"image by key": {"it was removed", func(_ *world, s *gcp.Section, _ *provider.Spec) {
			s.Images = map[string]string{"old": "projects/debian-cloud/global/images/family/debian-8"}
		}, fault.Permanent, []string{"gcp.images.old", "debian-8"}},
		"image of the Proxy": {"a typo in the spec", func(_ *world, _ *gcp.Section, p *provider.Spec) {
			p.Image = "projects/debian-cloud/global/images/family/debain-12"
		}, fault.Invalid, []string{"placement.image", "debain-12"}},
		"image that is none": {"neither key nor path", func(_ *world, _ *gcp.Section, p *provider.Spec) { p.Image = "debian" }, fault.Invalid, []string{"placement.image", "debian-12"}},
		"service account": {"it was deleted", func(_ *world, s *gcp.Section, _ *provider.Spec) {
			s.ServiceAccount = gcp.ServiceAccount{Email: "gone@crawl-fleet.iam.gserviceaccount.com", Scopes: []string{"https://www.googleapis.com/auth/logging.write"}}
		}, fault.Permanent, []string{"gcp.serviceAccount.email", "gone@", "serviceAccountUser"}},
		"zone": {"a typo in the file", func(_ *world, s *gcp.Section, p *provider.Spec) {
			s.Zones, p.Host = []string{"europe-west9-z"}, "europe-west9-z"
		}, fault.Permanent, []string{"europe-west9-z", "gcp.zones"}},
		"project":                {"a typo in the file", func(_ *world, s *gcp.Section, _ *provider.Spec) { s.Project = "crawl-feet" }, fault.Permanent, []string{"crawl-feet", "gcp.project"}},
		"network":                {"a typo in the file", func(_ *world, s *gcp.Section, _ *provider.Spec) { s.Network = "crawl" }, fault.Permanent, []string{"gcp.network", "global/networks/crawl"}},
		"disk type":              {"a typo in the file", func(_ *world, s *gcp.Section, _ *provider.Spec) { s.Disk.Type = "pd-fast" }, fault.Permanent, []string{"gcp.disk.type", "pd-fast"}},
		"small disk":             {"smaller than the image", func(_ *world, _ *gcp.Section, p *provider.Spec) { p.Resources.DiskBytes = 1 << 30 }, fault.Invalid, []string{"resources.disk"}},
		"small disk in the file": {"smaller than the image", func(_ *world, s *gcp.Section, _ *provider.Spec) { s.Disk.SizeGiB = 1 }, fault.Permanent, []string{"gcp.disk.sizeGiB"}},
		"API off":                {"a new project", func(w *world, _ *gcp.Section, _ *provider.Spec) { w.DisableAPI() }, fault.Permanent, []string{"gcloud services enable compute.googleapis.com --project crawl-fleet"}},
		"no right":               {"a role is missing", func(w *world, _ *gcp.Section, _ *provider.Spec) { w.Deny("compute.instances.create") }, fault.Permanent, []string{"compute.instances.create", "docs/gcp-provider.md"}},
		"node selector":          {"there are none", func(_ *world, _ *gcp.Section, p *provider.Spec) { p.NodeSelector = map[string]string{"a": "b"} }, fault.Invalid, []string{"placement.nodeSelector"}},
		"port":                   {"none of TCP", func(_ *world, _ *gcp.Section, p *provider.Spec) { p.Port = 70000 }, fault.Invalid, []string{"port 70000"}},
		"too much":               {"more than metadata hold", func(_ *world, _ *gcp.Section, p *provider.Spec) { p.UserData = bytes.Repeat([]byte("x"), 256<<10+1) }, fault.Invalid, []string{"cloudInit", "262144"}},
		"policy": {"the organisation forbids it", func(w *world, _ *gcp.Section, _ *provider.Spec) {
			w.FailNext("instances.insert", 412, "conditionNotMet", "Constraint constraints/compute.vmExternalIpAccess violated for project")
		}, fault.Permanent, []string{"vmExternalIpAccess"}},
		"image, told inside": {"it was removed in that moment", func(w *world, _ *gcp.Section, _ *provider.Spec) {
			w.FailInside("insert", "RESOURCE_NOT_FOUND", "The resource 'projects/debian-cloud/global/images/family/debian-12' was not found")
		}, fault.Permanent, []string{"gcp.images.debian-12"}},
		"quoted user-data": {"the API repeats what it does not like", func(w *world, _ *gcp.Section, _ *provider.Spec) {
			w.FailNext("instances.insert", 400, "invalid", "Invalid value for field 'resource.metadata.items[0].value': '"+userData+"'.")
		}, fault.Permanent, []string{"not shown"}},
		"quoted as metadata": {"in base64", func(w *world, _ *gcp.Section, p *provider.Spec) {
			p.UserData = provider.Secret("\xff" + userData)
			w.FailNext("instances.insert", 400, "invalid", "Invalid value for field 'resource.metadata.items[0].value': '…"+base64.StdEncoding.EncodeToString(p.UserData)[20:]+"'.")
		}, fault.Permanent, []string{"not shown"}},
		"quoted in base64": {"as above, where nobody expects it", func(w *world, _ *gcp.Section, p *provider.Spec) {
			p.UserData = provider.Secret("\xff" + userData)
			w.FailInside("insert", "INVALID_USAGE", "cannot parse "+base64.StdEncoding.EncodeToString(p.UserData))
		}, fault.Permanent, []string{"not shown"}},
		"quoted otherwise": {"as above, where nobody expects it", func(w *world, _ *gcp.Section, _ *provider.Spec) {
			w.FailInside("insert", "INVALID_USAGE", "cannot parse password: canary-7f3e-user-data")
		}, fault.Permanent, []string{"not shown"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false, gcefake.Options{})
			spec := specOf("bad", w.Zones()[0])
			tc.change(w, &w.section, &spec)
			p := w.open(t)
			_, err := p.Create(t.Context(), spec)
			if fault.Of(err) != tc.want || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "c2VyLWRhdGEK") {
				t.Fatalf("%s: %s: %v; want %s on one line", tc.reason, fault.Of(err), err, tc.want)
			}
			for _, text := range tc.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v: names no %q", err, text)
				}
			}
			if tc.want != fault.Invalid && !strings.Contains(err.Error(), spec.Host) {
				t.Errorf("%v: names no zone", err)
			}
			if vm := w.instanceOf(spec.Owner); vm != nil {
				t.Errorf("and yet it was made: %s", vm.Name)
			}
			if strings.Contains(w.logged.String(), "canary") {
				t.Error("a secret is in the log")
			}
		})
	}
}

// A project or zone that is not there, or not to be seen, is no instance that is
// not there: on NotFound the reconciler would rebuild, and on Gone let go.
func TestAMissingProjectIsNotFoundForNobody(t *testing.T) {
	for name, change := range map[string]func(*world, *gcp.Section){
		"project":          func(_ *world, s *gcp.Section) { s.Project = "crawl-feet" },
		"zone":             func(_ *world, s *gcp.Section) { s.Zones = []string{"europe-west9-z"} },
		"API off":          func(w *world, _ *gcp.Section) { w.DisableAPI() },
		"no right to look": func(w *world, _ *gcp.Section) { w.Deny("compute.instances.get") },
		"no operations":    func(w *world, _ *gcp.Section) { w.Deny("compute.zoneOperations.list") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false, gcefake.Options{})
			change(w, &w.section)
			p := w.open(t)
			s := specOf("a", w.section.Zones[0])
			if _, err := p.Get(t.Context(), refOf(s)); fault.Of(err) != fault.Permanent {
				t.Errorf("Get: %s: %v; want Permanent", fault.Of(err), err)
			}
			if st, err := p.Delete(t.Context(), refOf(s)); fault.Of(err) != fault.Permanent {
				t.Errorf("Delete = %s: %s: %v; want Permanent", st, fault.Of(err), err)
			}
		})
	}
}

// User-data arrive byte for byte, in whatever form.
func TestUserDataByteForByte(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	for name, data := range map[string]string{
		"cloud-config": userData, "crlf": "#!/bin/sh\r\necho hi\r\n", "no newline": "#include\nhttps://192.0.2.1/x",
		"jinja": "## template: jinja\n#cloud-config\nhostname: {{ v1.name }}\n", "unicode": "#cloud-config\n# Zürich ☃ \u2028 <&>\n",
		"gzip": "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xfe", "nul": "#!/bin/sh\x00", "largest": strings.Repeat("x", 256<<10),
		"largest binary": "\xff" + strings.Repeat("x", 196606-0), "none": "",
	} {
		t.Run(name, func(t *testing.T) {
			s := specOf("data-"+strings.ReplaceAll(name, " ", "-"), w.Zones()[0])
			s.UserData = provider.Secret(data)
			up(t, p, s)
			got, encoding := "", ""
			if md := w.instanceOf(s.Owner).Metadata; md != nil {
				for _, item := range md.Items {
					switch item.Key {
					case "user-data":
						got = *item.Value
					case "user-data-encoding":
						encoding = *item.Value
					default:
						t.Errorf("metadata has %s too", item.Key)
					}
				}
			}
			if encoding == "base64" {
				raw, err := base64.StdEncoding.DecodeString(got)
				if err != nil {
					t.Fatal(err)
				}
				got = string(raw)
			}
			if got != data {
				t.Errorf("%d bytes came as %d (encoding %q)", len(data), len(got), encoding)
			}
			if text := name != "gzip" && name != "nul" && name != "largest binary"; text == (encoding != "") {
				t.Errorf("encoding %q", encoding)
			}
		})
	}
	s := specOf("data-over", w.Zones()[0])
	s.UserData = provider.Secret("\xff" + strings.Repeat("x", 196608))
	if _, err := p.Create(t.Context(), s); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "cloudInit") {
		t.Errorf("one byte more than base64 leaves room for: %s: %v", fault.Of(err), err)
	}
}

// A list that is not whole is that zone's error, and one that is behind hides
// nothing from Get.
func TestListsThatAreNotWhole(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{PageSize: 2})
	p := w.open(t)
	zone := w.Zones()[0]
	stale := w.StaleLists(zone)
	var all []provider.Instance
	for _, uid := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, up(t, p, specOf(uid, zone)))
	}
	row := func() provider.HostList {
		rows, err := p.ListByTag(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		return rows[0]
	}
	if r := row(); r.Err != nil || len(r.Instances) != 0 {
		t.Errorf("a list from before: %+v", r)
	}
	if got, err := p.Get(t.Context(), provider.Ref{ID: all[0].ID, Owner: all[0].Owner}); err != nil || got.State != provider.Running {
		t.Errorf("what a list does not show yet: %+v, %v", got, err)
	}
	stale()
	if r := row(); r.Err != nil || len(r.Instances) != 5 {
		t.Errorf("over three pages: %d instances, %v; want 5", len(r.Instances), r.Err)
	}
	mend := w.WarnLists(zone)
	if r := row(); fault.Of(r.Err) != fault.Unavailable || len(r.Instances) != 0 || !strings.Contains(r.Err.Error(), zone) {
		t.Errorf("with a warning: %+v; want Unavailable and nothing", r)
	}
	mend()
	w.FailNext("instances.list", 404, "notFound", "The resource 'projects/crawl-fleet' was not found")
	if rows, err := p.ListByTag(t.Context(), tag); err != nil || count(rows) != 1 {
		t.Errorf("a list that is not found: %+v, %v; want one row Permanent", rows, err)
	}
}

func count(rows []provider.HostList) (permanent int) {
	for _, r := range rows {
		if fault.Of(r.Err) == fault.Permanent {
			permanent++
		}
	}
	return permanent
}

// What is protected against deletion stays, and says how it goes.
func TestDeletionProtection(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("kept", w.Zones()[0])
	up(t, p, s)
	w.Change(s.Host, gcp.NameOf(s.Owner), func(vm *compute.Instance) { vm.DeletionProtection = true })
	if _, err := p.Delete(t.Context(), refOf(s)); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "protected") {
		t.Errorf("%s: %v; want Permanent", fault.Of(err), err)
	}
	w.Change(s.Host, gcp.NameOf(s.Owner), func(vm *compute.Instance) { vm.DeletionProtection = false })
	down(t, p, refOf(s))
}

// Every reason of Check, from what causes it.
func TestCheckReasons(t *testing.T) {
	for reason, change := range map[string]func(*world){
		gcp.ReasonOK:          func(*world) {},
		gcp.ReasonCredentials: func(w *world) { w.RevokeKey() },
		gcp.ReasonAPIDisabled: func(w *world) { w.DisableAPI() },
		gcp.ReasonForbidden:   func(w *world) { w.Deny("compute.projects.get") },
		gcp.ReasonNotFound:    func(w *world) { w.section.Zones = []string{"europe-west9-z"} },
		gcp.ReasonMachineType: func(w *world) { w.section.MachineType = "e9-huge" },
		gcp.ReasonZoneDown:    func(w *world) { w.Down(w.Zones()[0]) },
		gcp.ReasonError: func(w *world) {
			w.FailNext("machineTypes.get", 400, "invalid", "Invalid value")
			w.section.Zones = w.section.Zones[:1]
		},
		gcp.ReasonQuota:       func(w *world) { w.Quota("europe-west1", "INSTANCES", 0) },
		gcp.ReasonExhausted:   func(w *world) { w.Exhaust(w.Zones()[0]) },
		gcp.ReasonRate:        func(w *world) { w.Limit(0.0001, 0) },
		gcp.ReasonTimeout:     func(w *world) { w.MuteZone(w.Zones()[0]) },
		gcp.ReasonUnreachable: func(w *world) { w.BreakZone(w.Zones()[0]) },
	} {
		t.Run(reason, func(t *testing.T) {
			w := newWorld(t, false, gcefake.Options{})
			w.limit = time.Second
			change(w)
			p := w.open(t)
			if reason == gcp.ReasonExhausted {
				_, _ = p.Create(context.Background(), specOf("a", w.Zones()[0]))
			}
			rows, err := p.Check(t.Context())
			if err != nil || rows[0].Reason != reason || (rows[0].Message == "") != (reason == gcp.ReasonOK) || strings.Contains(rows[0].Message, "\n") {
				t.Errorf("%+v, %v; want %s, and why", rows, err, reason)
			}
		})
	}
}
