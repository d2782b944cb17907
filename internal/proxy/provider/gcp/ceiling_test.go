package gcp_test

import (
	"fmt"
	"sync"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/testkit/gcefake"
)

// maxInstances is a ceiling for Creates that nobody placed a moment ago (after a
// restart), however many come at once; what failed or went makes room at once.
func TestMaxInstancesWithoutPlace(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.MaxInstances = 2
	p := w.open(t)
	zone := w.Zones()[0]
	defer w.StaleLists(zone)() // a list of before all of them
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for range 3 {
				if _, err := p.Create(t.Context(), specOf(fmt.Sprint("many-", i), zone)); err != nil && fault.Of(err) != fault.Quota {
					t.Errorf("%s: %v; want Quota", fault.Of(err), err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(w.Instances(zone)); n != 2 {
		t.Fatalf("%d instances; want 2", n)
	}
	for _, in := range w.Instances(zone) {
		var o provider.Owner
		for i := range 20 {
			if s := specOf(fmt.Sprint("many-", i), zone); w.instanceOf(s.Owner) != nil && w.instanceOf(s.Owner).Name == in.Name {
				o = s.Owner
			}
		}
		down(t, p, provider.Ref{Owner: o, Host: zone})
	}
	w.FailNext("instances.insert", 400, "invalid", "Invalid value for field 'resource'")
	if _, err := p.Create(t.Context(), specOf("bad", zone)); fault.Of(err) != fault.Permanent {
		t.Errorf("%s: %v; want Permanent", fault.Of(err), err)
	}
	for _, uid := range []string{"next-1", "next-2"} {
		up(t, p, specOf(uid, zone))
	}
}
