package gcp_test

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/gcp-provider.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section is what stands under a heading of the page.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page(t), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("the page has no %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// The permissions of the page are enough for all that the provider does, and
// without any one of them something fails.
func TestPermissionsOfThePage(t *testing.T) {
	permissions := regexp.MustCompile(`\b(?:compute|iam)\.[a-zA-Z]+\.[a-zA-Z]+\b`).FindAllString(section(t, "## Permissions"), -1)
	slices.Sort(permissions)
	permissions = slices.Compact(permissions)
	if len(permissions) < 20 {
		t.Fatalf("the page names %q", permissions)
	}
	if err := everything(t, permissions); err != nil {
		t.Errorf("with all that the page names: %v", err)
	}
	for i, p := range permissions {
		err := everything(t, slices.Concat(permissions[:i], permissions[i+1:]))
		if err == nil {
			t.Errorf("nothing needs %s", p)
		} else if !strings.Contains(err.Error(), p) {
			t.Errorf("without %s: %v, which does not name it", p, err)
		}
	}
}

// everything makes, looks at, claims, clears and removes with those permissions.
func everything(t *testing.T, permissions []string) error {
	t.Helper()
	w := newWorld(t, false, gcefake.Options{})
	w.Grant(permissions...)
	w.section.Zones = w.section.Zones[:1]
	w.section.Tags = []string{"fleetdesk-proxy"}
	w.section.ServiceAccount = gcp.ServiceAccount{Email: "proxy@crawl-fleet.iam.gserviceaccount.com", Scopes: []string{"https://www.googleapis.com/auth/logging.write"}}
	w.section.Images["own"] = "projects/crawl-fleet/global/images/squid-7"
	w.section.DefaultImage = "own"
	p := w.open(t)
	ctx, zone := t.Context(), w.section.Zones[0]
	s := specOf("all", zone)
	name := gcp.NameOf(s.Owner)
	create := func() error {
		for range 1000 {
			if in, err := p.Create(ctx, s); err != nil || in.State == provider.Running {
				return err
			}
		}
		return fault.New(fault.Timeout, "it does not come to run")
	}
	for _, step := range []func() error{
		func() error {
			rows, err := p.Check(ctx)
			if err == nil && rows[0].Reason != gcp.ReasonOK {
				err = fault.New(fault.Permanent, rows[0].Message)
			}
			return err
		},
		create,
		func() error { return w.Preempt(zone, name) },
		create,
		func() error { return w.SetStatus(zone, name, "SUSPENDED") },
		create,
		func() error { rows, err := p.ListByTag(ctx, tag); return first(err, rows[0].Err) },
		func() error {
			w.LeaveDisk(zone, gcp.NameOf(ownerOf("left")), gcp.LabelsOf(ownerOf("left")))
			rows, err := p.Leftovers(ctx, tag, nil)
			if err := first(err, rows[0].Err); err != nil {
				return err
			}
			return p.RemoveLeftover(ctx, tag, rows[0].Leftovers[0])
		},
		func() error { rows, err := p.Claim(ctx, claimOf("aaaaaaaa1", 1)); return first(err, rows[0].Err) },
		func() error { rows, err := p.Claim(ctx, claimOf("aaaaaaaa1", 2)); return first(err, rows[0].Err) },
		func() error {
			rows, err := p.Claim(ctx, claimOf("aaaaaaaa1", 2, "aaaaaaaa1"))
			return first(err, rows[0].Err)
		},
		func() error {
			for range 1000 {
				if st, err := p.Delete(context.Background(), refOf(s)); err != nil || st == provider.Gone {
					return err
				}
			}
			return fault.New(fault.Timeout, "it does not go")
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// The page's table of states is what the code does.
func TestStatesOfThePage(t *testing.T) {
	seen := 0
	for _, line := range strings.Split(section(t, "## States"), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		if len(cells) < 3 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, status := range regexp.MustCompile("`([A-Z_]+)`").FindAllStringSubmatch(cells[0], -1) {
			seen++
			state, _ := gcp.StateOf(&compute.Instance{Status: status[1]})
			if want := strings.TrimSpace(cells[1]); string(state) != want {
				t.Errorf("%s is %s; the page says %s", status[1], state, want)
			}
		}
	}
	if seen != 12 {
		t.Errorf("the table has %d statuses; Compute Engine has 12", seen)
	}
}

// The page explains each reason of Check and each field of the section.
func TestReasonsAndFieldsOfThePage(t *testing.T) {
	text := section(t, "## Checks")
	for _, r := range gcp.Reasons() {
		if !strings.Contains(text, "| `"+r+"` |") {
			t.Errorf("the page has no row for %s", r)
		}
	}
	text = section(t, "## Configuration")
	for _, field := range []string{
		"project", "zones", "spread", "machineType", "machineTypes", "images", "defaultImage", "disk.type", "disk.sizeGiB", "network", "subnetwork",
		"address", "spot", "labels", "tags", "serviceAccount.email", "serviceAccount.scopes", "credentials.secretRef", "maxInstances", "requestsPerSecond", "endpoint",
	} {
		if !strings.Contains(text, "| `"+field+"` |") {
			t.Errorf("the page has no row for %s", field)
		}
	}
}

// What the page says of the calls that things cost.
func TestCostsOfThePage(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.Zones = w.section.Zones[:1]
	p := w.open(t)
	total := func() (n int) {
		for method, calls := range w.Calls() {
			if method != "token" {
				n += calls
			}
		}
		return n
	}
	s := specOf("cost", w.section.Zones[0])
	for _, tc := range []struct {
		what string
		want int
		do   func()
	}{
		{"making an instance", 4, func() { up(t, p, s) }},
		{"looking at one", 1, func() { _, _ = p.Get(t.Context(), refOf(s)) }},
		{"listing a zone", 1, func() { _, _ = p.ListByTag(t.Context(), tag) }},
		{"checking", 4, func() { _, _ = p.Check(t.Context()) }},
		{"leftovers of a zone", 1, func() { _, _ = p.Leftovers(t.Context(), tag, nil) }},
		{"deleting, and a first look at the zone", 7, func() { down(t, p, refOf(s)) }},
		{"looking at what is not there", 2, func() { _, _ = p.Get(t.Context(), refOf(s)) }},
	} {
		before := total()
		tc.do()
		if n := total() - before; n > tc.want {
			t.Errorf("%s: %d calls; the page has %d", tc.what, n, tc.want)
		}
	}
}
