package gcp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

func claimOf(holder string, beat uint64, dead ...string) provider.Claim {
	return provider.Claim{Installation: tag, Holder: holder, Beat: beat, Period: 3 * time.Minute, Dead: dead}
}

func claimed(t *testing.T, p *gcp.Provider, c provider.Claim) provider.HostClaims {
	t.Helper()
	rows, err := p.Claim(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return rows[0]
}

// A holder has one group in each zone however often it renews, and takes it back.
func TestAClaimIsOneGroup(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	zone := w.Zones()[0]
	for beat := range uint64(4) {
		if row := claimed(t, p, claimOf("aaaaaaaa1", beat)); row.Err != nil || len(row.Others) != 0 {
			t.Fatalf("%+v", row)
		}
	}
	groups := w.Groups(zone)
	if len(groups) != 1 || groups[0].Size != 0 || len(groups[0].NamedPorts) != 1 || groups[0].NamedPorts[0].Name != "b3-p180000" {
		t.Errorf("%+v; want one empty group with the last beat", groups)
	}
	calls := w.Calls()
	claimed(t, p, claimOf("aaaaaaaa1", 9))
	n := 0
	for name, after := range w.Calls() {
		n += after - calls[name]
	}
	if n > 3*len(w.Zones()) {
		t.Errorf("a renewal cost %d calls in %d zones; want 3 each", n, len(w.Zones()))
	}
	if row := claimed(t, p, claimOf("aaaaaaaa1", 10, "aaaaaaaa1")); row.Err != nil {
		t.Error(row.Err)
	}
	if groups := w.Groups(zone); len(groups) != 0 {
		t.Errorf("taken back, and still there: %+v", groups)
	}
}

// Two providers of one operator over one project count together, and neither
// takes the other's claim for its own or for somebody else's.
func TestTwoProvidersOfOneOperator(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	q, err := gcp.New(gcp.Options{Name: "cloud-2", Section: w.section, Secret: w.read})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	claimed(t, p, claimOf("aaaaaaaa1", 1))
	if row := claimed(t, q, claimOf("aaaaaaaa1", 5)); row.Err != nil || len(row.Others) != 0 {
		t.Errorf("the operator's other provider sees %+v", row)
	}
	for i, want := range []uint64{6, 7} {
		row := claimed(t, p, claimOf("bbbbbbbb1", 1))
		if row.Err != nil || len(row.Others) != 1 || row.Others[0].Beat != want {
			t.Errorf("another operator sees %+v; want one with beat %d", row, want)
		}
		claimed(t, q, claimOf("aaaaaaaa1", uint64(6+i)))
	}
	// Its first provider has left the file, and the whole operator is dead later.
	claimed(t, p, claimOf("bbbbbbbb1", 2, "aaaaaaaa1"))
	if groups := w.Groups(w.Zones()[0]); len(groups) != 1 {
		t.Errorf("%d groups are left; want the living one's", len(groups))
	}
}

// A claim that cannot be read may be a living operator's: nothing is swept until
// somebody looked.
func TestClaimsThatCannotBeRead(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	zone := w.Zones()[0]
	claimed(t, p, claimOf("aaaaaaaa1", 1))
	was := w.Groups(zone)[0]
	for name, g := range map[string]compute.InstanceGroup{
		"no description": {Name: was.Name + "0"[:0], NamedPorts: was.NamedPorts},
		"no beat":        {Name: was.Name, Description: was.Description},
		"other words":    {Name: was.Name, Description: "do not touch", NamedPorts: was.NamedPorts},
		"beat too large": {Name: was.Name, Description: was.Description, NamedPorts: []*compute.NamedPort{{Name: "b99999999999999999999-p1", Port: 1}}},
		"no period":      {Name: was.Name, Description: was.Description, NamedPorts: []*compute.NamedPort{{Name: "b1-p0", Port: 1}}},
	} {
		w.PlantGroup(zone, g)
		row := claimed(t, p, claimOf("bbbbbbbb1", 1))
		if fault.Of(row.Err) != fault.Permanent || !strings.Contains(row.Err.Error(), was.Name) || !strings.Contains(row.Err.Error(), zone) {
			t.Errorf("%s: %+v; want Permanent with the group and the zone", name, row)
		}
	}
	// A person's group is nobody's claim.
	w.PlantGroup(zone, was)
	w.PlantGroup(zone, compute.InstanceGroup{Name: "web", Description: "web servers"})
	if row := claimed(t, p, claimOf("bbbbbbbb1", 2)); row.Err != nil || len(row.Others) != 1 {
		t.Errorf("%+v; want the one other holder", row)
	}
}

// A list that does not show the claim that was just made may hide another's.
func TestAListOfClaimsThatIsBehind(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	mend := w.StaleGroups(w.Zones()[0])
	if row := claimed(t, p, claimOf("aaaaaaaa1", 1)); fault.Of(row.Err) != fault.Transient {
		t.Errorf("%+v; want Transient", row)
	}
	mend()
	if row := claimed(t, p, claimOf("aaaaaaaa1", 2)); row.Err != nil {
		t.Errorf("%+v", row)
	}
}

// What is no claim is refused before anything is asked.
func TestClaimsThatAreNone(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	for name, change := range map[string]func(*provider.Claim){
		"no installation":  func(c *provider.Claim) { c.Installation = "" },
		"short holder":     func(c *provider.Claim) { c.Holder = "a" },
		"long holder":      func(c *provider.Claim) { c.Holder = strings.Repeat("a", 33) },
		"holder's letters": func(c *provider.Claim) { c.Holder = "AAAAAAAA" },
		"no period":        func(c *provider.Claim) { c.Period = 0 },
		"part of a ms":     func(c *provider.Claim) { c.Period = time.Microsecond },
		"dead":             func(c *provider.Claim) { c.Dead = []string{"../x"} },
	} {
		c := claimOf("aaaaaaaa1", 1)
		change(&c)
		if _, err := p.Claim(t.Context(), c); fault.Of(err) != fault.Invalid {
			t.Errorf("%s: %v; want Invalid", name, err)
		}
	}
	if n := len(w.Calls()); n != 0 {
		t.Errorf("calls were made: %v", w.Calls())
	}
}

// A leftover is told from another disk that has its name since, and from one
// that is no instance's.
func TestLeftovers(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{PageSize: 1})
	p := w.open(t)
	zone := w.Zones()[0]
	o := ownerOf("left")
	name := gcp.NameOf(o)
	old := w.LeaveDisk(zone, name, gcp.LabelsOf(o))
	w.LeaveDisk(zone, "data-1", gcp.LabelsOf(o)) // somebody copied the labels
	w.LeaveDisk(zone, gcp.NameOf(ownerOf("bare")), nil)
	rows, err := p.Leftovers(t.Context(), tag, nil)
	if err != nil || len(rows[0].Leftovers) != 1 || rows[0].Leftovers[0].ID != fmt.Sprintf("%s~%d", name, old) || rows[0].Leftovers[0].Bytes != 10<<30 {
		t.Fatalf("%+v, %v; want the one disk of 10 GiB", rows, err)
	}
	w.RemoveDisk(zone, name)
	w.LeaveDisk(zone, name, gcp.LabelsOf(o))
	if err := p.RemoveLeftover(t.Context(), tag, rows[0].Leftovers[0]); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
	if n := len(w.Disks(zone)); n != 3 {
		t.Errorf("%d disks are left; the new one of that name is another", n)
	}
	// A person detached it, and its instance is there: Delete takes both.
	in := up(t, p, specOf("detached", zone))
	w.RemoveDisk(zone, gcp.NameOf(in.Owner))
	loose := w.LeaveDisk(zone, gcp.NameOf(in.Owner), gcp.LabelsOf(in.Owner))
	if rows, err := p.Leftovers(t.Context(), tag, nil); err != nil || len(rows[0].Leftovers) != 1 {
		t.Errorf("%+v, %v; the disk of an instance is none", rows[0], err)
	}
	l := provider.Leftover{Host: zone, ID: fmt.Sprintf("%s~%d", gcp.NameOf(in.Owner), loose)}
	if err := p.RemoveLeftover(t.Context(), tag, l); fault.Of(err) != fault.Conflict {
		t.Errorf("removing the disk of an instance: %s: %v; want Conflict", fault.Of(err), err)
	}
	// An instance of its name is being made: it may be about to use it.
	rows, _ = p.Leftovers(t.Context(), tag, nil)
	_ = w.Plant("us-east1-b", compute.Instance{Name: name, NetworkInterfaces: []*compute.NetworkInterface{{}}})
	if err := p.RemoveLeftover(t.Context(), tag, rows[0].Leftovers[0]); err != nil {
		t.Errorf("one in another zone is in nobody's way: %v", err)
	}
}
