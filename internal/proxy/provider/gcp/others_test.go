package gcp_test

import (
	"strings"
	"testing"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// What other people and operators do to instances, and between two calls.

// A copy that somebody made in the console carries our labels and description
// and another name: it is nobody's of ours.
func TestACopyIsNotTheInstance(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	zone := w.Zones()[0]
	s := specOf("copied", zone)
	in := up(t, p, s)
	for _, name := range []string{"instance-1", "fd-" + gcp.TagOf(tag) + "-00000000000000000000000000000000"} {
		err := w.Plant(zone, compute.Instance{
			Name: name, Labels: gcp.LabelsOf(s.Owner), Description: gcp.Describe(s.Owner, port),
			NetworkInterfaces: []*compute.NetworkInterface{{}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rows, err := p.ListByTag(t.Context(), tag)
	if err != nil || len(rows[0].Instances) != 2 {
		t.Fatalf("listed: %+v, %v; want the one and an unknown", rows, err)
	}
	for _, got := range rows[0].Instances {
		if got.ID != in.ID && got.State != provider.Unknown {
			t.Errorf("the copy is listed as %+v", got)
		}
	}
	down(t, p, refOf(s))
	if n := len(w.Instances(zone)); n != 2 {
		t.Errorf("%d of two copies are left", n)
	}
}

// With the instance's very name, and without what says whose it is, it may be
// anybody's: nobody touches it.
func TestTheNameAloneIsNotEnough(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("namesake", w.Zones()[0])
	name := gcp.NameOf(s.Owner)
	for what, vm := range map[string]compute.Instance{
		"no labels":      {Description: gcp.Describe(s.Owner, port)},
		"no description": {Labels: gcp.LabelsOf(s.Owner)},
		"another's":      {Labels: gcp.LabelsOf(ownerOf("b")), Description: gcp.Describe(ownerOf("b"), port)},
	} {
		vm.Name, vm.NetworkInterfaces = name, []*compute.NetworkInterface{{}}
		if err := w.Plant(s.Host, vm); err != nil {
			t.Fatal(err)
		}
		if st, err := p.Delete(t.Context(), refOf(s)); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: Delete = %s: %s: %v; want Permanent and the name", what, st, fault.Of(err), err)
		}
		if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Unknown {
			t.Errorf("%s: Create = %+v, %v; want Unknown", what, in, err)
		}
		if got := w.Instances(s.Host); len(got) != 1 || got[0].Status != "RUNNING" {
			t.Errorf("%s: it was touched: %+v", what, got)
		}
		w.Vanish(s.Host, name)
	}
}

// By the id of somebody else's instance nobody reads it.
func TestAnotherOwnersID(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	in := up(t, p, specOf("a", w.Zones()[0]))
	if got, err := p.Get(t.Context(), provider.Ref{ID: in.ID, Owner: ownerOf("b")}); fault.Of(err) != fault.Conflict {
		t.Errorf("Get = %+v: %s: %v; want Conflict", got, fault.Of(err), err)
	}
}

// What vanishes in mid-call is no NotFound of Create: only Get may say that.
func TestCreateNeverSaysNotFound(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("vanishes", w.Zones()[0])
	up(t, p, s)
	_ = w.Preempt(s.Host, gcp.NameOf(s.Owner))
	_, err := p.Create(provider.WithStepHook(t.Context(), func(step string) error {
		if step == "gcp: start" {
			w.Vanish(s.Host, gcp.NameOf(s.Owner))
		}
		return nil
	}), s)
	if fault.Of(err) != fault.Transient {
		t.Errorf("%s: %v; want Transient", fault.Of(err), err)
	}
	up(t, p, s)
}

// A deletion that failed inside says so, and is begun again.
func TestADeletionThatFailed(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("stays", w.Zones()[0])
	up(t, p, s)
	w.FailInside("delete", "INTERNAL_ERROR", "Internal error. Please try again.")
	var err error
	await(t, "an error", func() (bool, string) {
		var st provider.State
		st, err = p.Delete(t.Context(), refOf(s))
		return err != nil, string(st)
	})
	if fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), "INTERNAL_ERROR") {
		t.Errorf("%s: %v; want Transient and the API's words", fault.Of(err), err)
	}
	_ = w.SetStatus(s.Host, gcp.NameOf(s.Owner), "RUNNING")
	down(t, p, refOf(s))
}

// A graceful shutdown, which may take hours, is not waited for.
func TestDeleteDuringAGracefulShutdown(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("graceful", w.Zones()[0])
	up(t, p, s)
	_ = w.SetStatus(s.Host, gcp.NameOf(s.Owner), "PENDING_STOP")
	down(t, p, refOf(s))
}

// With hardly any calls to spare an operation that takes long is still under way,
// and no error.
func TestWaitingWithFewCalls(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.RequestsPerSecond = 3
	p := w.open(t)
	defer w.Freeze()()
	s := specOf("slow", w.Zones()[0])
	for range 3 {
		if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
			t.Errorf("Create = %+v, %v; want Provisioning", in, err)
		}
	}
}
