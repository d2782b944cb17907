package gcp_test

import (
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// A disk that is in the way is told by the answer to the insert, or inside its
// operation: our own is cleared away, and of another one a person hears.
func TestADiskInTheWay(t *testing.T) {
	for name, atOnce := range map[string]bool{"told at once": true, "told inside": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false, gcefake.Options{})
			if atOnce {
				defer w.RefuseDisks()()
			}
			p := w.open(t)
			s := specOf("ours", w.Zones()[0])
			w.LeaveDisk(s.Host, gcp.NameOf(s.Owner), gcp.LabelsOf(s.Owner))
			up(t, p, s)
			s = specOf("theirs", w.Zones()[0])
			w.LeaveDisk(s.Host, gcp.NameOf(s.Owner), map[string]string{"team": "other"})
			var err error
			await(t, "refused", func() (bool, string) {
				var in provider.Instance
				in, err = p.Create(t.Context(), s)
				return err != nil, string(in.State) + ": " + in.Message
			})
			if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "there is a disk") {
				t.Errorf("%s: %v; want Permanent and the disk", fault.Of(err), err)
			}
			if n := len(w.Disks(s.Host)); n != 2 {
				t.Errorf("%d disks; want the instance's and the other one", n)
			}
		})
	}
}

// 409 while another process makes it is no error.
func TestAnInsertThatSomebodyElseBegan(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p, q := w.open(t), w.open(t)
	thaw := w.Freeze()
	defer thaw()
	s := specOf("both", w.Zones()[0])
	for range 2 {
		for _, one := range []*gcp.Provider{p, q} {
			if in, err := one.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
				t.Errorf("Create = %+v, %v; want Provisioning", in, err)
			}
		}
	}
	thaw()
	up(t, q, s)
	if n := len(w.Instances(s.Host)); n != 1 {
		t.Errorf("%d instances", n)
	}
}
