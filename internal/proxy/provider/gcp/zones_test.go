package gcp_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// settled does as the reconciler does: Place, Create until it runs, and after
// Quota it looks, clears away and places again.
func settled(t *testing.T, p *gcp.Provider, s provider.Spec) (provider.Instance, []string, error) {
	t.Helper()
	var tried []string
	for range 10 {
		zone, err := p.Place(t.Context(), s)
		if err != nil {
			return provider.Instance{}, tried, err
		}
		tried = append(tried, zone)
		at := s
		at.Host = zone
		for range 1000 {
			in, err := p.Create(t.Context(), at)
			if fault.Of(err) == fault.Quota {
				if _, err := p.Get(t.Context(), refOf(at)); fault.Of(err) != fault.NotFound {
					return in, tried, fmt.Errorf("Get after Quota: %w", errors.Join(err, errors.New("want NotFound")))
				}
				if st, err := p.Delete(t.Context(), refOf(at)); err != nil || st != provider.Gone {
					return in, tried, fmt.Errorf("Delete after Quota = %s, %w", st, err)
				}
				break
			}
			if err != nil || in.State == provider.Running {
				return in, tried, err
			}
		}
	}
	return provider.Instance{}, tried, errors.New("no end")
}

// A zone that is out of machines is passed over, for that Proxy and for those
// that come after; nothing is left in it; and after a while it is tried again.
func TestAZoneThatIsExhaustedIsPassedOver(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.Zones = []string{"us-east1-b", "europe-west1-c", "europe-west1-b"}
	p := w.open(t)
	mend := w.Exhaust("us-east1-b")
	in, tried, err := settled(t, p, specOf("first", ""))
	if err != nil || in.Host != "europe-west1-c" || fmt.Sprint(tried) != "[us-east1-b europe-west1-c]" {
		t.Fatalf("made in %s after %v: %v", in.Host, tried, err)
	}
	if n := len(w.Instances("us-east1-b")) + len(w.Disks("us-east1-b")); n != 0 {
		t.Errorf("%d things are left in the exhausted zone", n)
	}
	in, tried, err = settled(t, p, specOf("second", ""))
	if err != nil || in.Host != "europe-west1-c" || len(tried) != 1 {
		t.Errorf("the next one was made in %s after %v: %v", in.Host, tried, err)
	}
	mend()
	w.advance(11 * time.Minute)
	if in, _, err := settled(t, p, specOf("third", "")); err != nil || in.Host != "us-east1-b" {
		t.Errorf("once it has machines: %s, %v", in.Host, err)
	}
	for _, zone := range w.section.Zones {
		defer w.Exhaust(zone)()
	}
	_, tried, err = settled(t, p, specOf("none", ""))
	if fault.Of(err) != fault.Quota || len(tried) != 3 || strings.Contains(err.Error(), "\n") {
		t.Errorf("with all exhausted: %v, %s: %v; want Quota after three", tried, fault.Of(err), err)
	}
}

// A wished zone is the only one, by either field.
func TestAWishedZone(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("wish", "")
	s.Zone = "us-east1-b"
	if zone, err := p.Place(t.Context(), s); err != nil || zone != "us-east1-b" {
		t.Errorf("Place = %q, %v", zone, err)
	}
	defer w.Exhaust("us-east1-b")()
	_, tried, err := settled(t, p, s)
	if fault.Of(err) != fault.Quota || fmt.Sprint(tried) != "[us-east1-b]" {
		t.Errorf("exhausted: tried %v: %s: %v; want Quota after that one", tried, fault.Of(err), err)
	}
	for name, tc := range map[string]struct {
		reason     string
		zone, host string
		want       string
	}{
		"unknown zone": {"a typo", "us-east1-x", "", `placement.zone "us-east1-x"`},
		"unknown host": {"a typo", "", "us-east1-x", `placement.host "us-east1-x"`},
		"two":          {"which of them?", "us-east1-b", "europe-west1-b", "placement.zone"},
	} {
		s := specOf("wish", tc.host)
		s.Zone = tc.zone
		if _, err := p.Place(t.Context(), s); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %s: %s: %v; want Invalid with %s", name, tc.reason, fault.Of(err), err, tc.want)
		}
	}
}

// A zone that is down, broken or mute is passed over, unless it is wished for.
func TestAZoneInTroubleIsPassedOver(t *testing.T) {
	for what, harm := range map[string]func(*gcefake.Server, string) func(){
		"down": (*gcefake.Server).Down, "broken": (*gcefake.Server).BreakZone, "mute": (*gcefake.Server).MuteZone,
	} {
		w := newWorld(t, false, gcefake.Options{})
		w.limit = time.Second
		p := w.open(t)
		zones := w.Zones()
		mend := harm(w.Server, zones[0])
		if zone, err := p.Place(t.Context(), specOf("a", "")); err != nil || zone != zones[1] {
			t.Errorf("%s: Place = %q, %v; want %s", what, zone, err, zones[1])
		}
		if _, err := p.Place(t.Context(), specOf("b", zones[0])); err == nil || !strings.Contains(err.Error(), zones[0]) || fault.Of(err) == fault.Quota {
			t.Errorf("%s: Place on the wished zone: %v; want what is wrong with it", what, err)
		}
		mend()
		if zone, err := p.Place(t.Context(), specOf("b", zones[0])); err != nil || zone != zones[0] {
			t.Errorf("%s: Place on the wished zone once it is well = %q, %v", what, zone, err)
		}
	}
}

// With spread the zones are used alike, and each Proxy's order is its own and
// stays.
func TestSpread(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.Spread = true
	p, q := w.open(t), w.open(t)
	seen := map[string]int{}
	for i := range 60 {
		s := specOf(fmt.Sprint("spread-", i), "")
		zone, err := p.Place(t.Context(), s)
		again, err2 := q.Place(t.Context(), s)
		if err != nil || err2 != nil || zone != again {
			t.Fatalf("Place = %q, %v and %q, %v", zone, err, again, err2)
		}
		seen[zone]++
	}
	for _, zone := range w.Zones() {
		if seen[zone] < 6 {
			t.Errorf("of 60 instances %v; each zone should have its share", seen)
		}
	}
}

// A region without quota is passed over before anything is tried there, and when
// it is only told by the attempt.
func TestQuota(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	mend := w.Quota("europe-west1", "IN_USE_ADDRESSES", 0)
	if zone, err := p.Place(t.Context(), specOf("a", "")); err != nil || zone != "us-east1-b" {
		t.Errorf("Place without addresses in europe-west1 = %q, %v", zone, err)
	}
	mend()
	w.advance(time.Minute)
	for what, refuse := range map[string]func(){
		"by HTTP": func() {
			w.FailNext("instances.insert", 403, "quotaExceeded", "Quota 'CPUS' exceeded. Limit: 8.0 in region europe-west1.")
		},
		"inside": func() {
			w.FailInside("insert", "QUOTA_EXCEEDED", "Quota 'CPUS' exceeded. Limit: 8.0 in region europe-west1.")
		},
		"at the go": func() { w.FailInside("insert", "QUOTA_EXCEEDED", "Quota 'DISKS_TOTAL_GB' exceeded.") },
	} {
		w.advance(3 * time.Minute)
		refuse()
		s := specOf("quota-"+what[:2], "")
		in, tried, err := settled(t, p, s)
		if err != nil || in.Host != "us-east1-b" || fmt.Sprint(tried) != "[europe-west1-b us-east1-b]" {
			t.Errorf("%s: made in %s after %v: %v; want another region at once", what, in.Host, tried, err)
		}
	}
}

// A rate that is refused is waited for, within the call's bound, and is never
// Quota: the reconciler would take the zone for full.
func TestRateLimit(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.limit = 3 * time.Second
	p := w.open(t)
	for _, status := range []int{403, 429} {
		before := p.Retries()
		w.FailNext("instances.insert", status, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'")
		up(t, p, specOf(fmt.Sprint("rate-", status), w.Zones()[0]))
		if n := p.Retries() - before; n != 1 {
			t.Errorf("%d: %d calls were repeated; want one", status, n)
		}
	}
	defer w.Limit(0.0001, 0)()
	_, err := p.Get(t.Context(), refOf(specOf("rate", w.Zones()[0])))
	if fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), "requestsPerSecond") {
		t.Errorf("refused without end: %s: %v; want Transient and the field", fault.Of(err), err)
	}
}

// The provider's own rate holds, and a call that would come too late says so.
func TestRequestsPerSecond(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.RequestsPerSecond = 0.5
	w.limit = time.Second
	p := w.open(t)
	_, _ = p.Get(t.Context(), refOf(specOf("one", w.Zones()[0])))
	_, err := p.Get(t.Context(), refOf(specOf("one", w.Zones()[0])))
	if fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), "gcp.requestsPerSecond") {
		t.Errorf("%s: %v; want Transient and the field", fault.Of(err), err)
	}
}

// A bound on a zone holds over calls at once, over operators, and for Create
// alone; what is full is passed over, and what goes makes room.
func TestMaxInstances(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.Zones = []string{"us-east1-b", "europe-west1-b"}
	w.section.MaxInstances = 3
	p := w.open(t)
	zones := make([]string, 8)
	var wg sync.WaitGroup
	for i := range zones {
		wg.Go(func() {
			var err error
			if zones[i], err = p.Place(t.Context(), specOf(fmt.Sprint("many-", i), "")); err != nil && fault.Of(err) != fault.Quota {
				t.Errorf("%s: %v; want a zone or Quota", fault.Of(err), err)
			}
		})
	}
	wg.Wait()
	got := map[string]int{}
	for i, zone := range zones {
		got[zone]++
		if zone != "" {
			up(t, p, specOf(fmt.Sprint("many-", i), zone))
		}
	}
	if got["us-east1-b"] != 3 || got["europe-west1-b"] != 3 || got[""] != 2 {
		t.Errorf("eight at once went to %v; want three, three and two nowhere", got)
	}
	q := w.open(t)
	if _, err := q.Place(t.Context(), specOf("later", "")); fault.Of(err) != fault.Quota || !strings.Contains(err.Error(), "gcp.maxInstances") {
		t.Errorf("another operator's Place: %s: %v; want Quota and the field", fault.Of(err), err)
	}
	late := specOf("late", "us-east1-b")
	if _, err := q.Create(t.Context(), late); fault.Of(err) != fault.Quota || w.instanceOf(late.Owner) != nil {
		t.Errorf("Create in a full zone: %s: %v; want Quota and nothing", fault.Of(err), err)
	}
	i := slices.Index(zones, "us-east1-b")
	there := specOf(fmt.Sprint("many-", i), "us-east1-b")
	if in, err := q.Create(t.Context(), there); err != nil || in.State != provider.Running {
		t.Errorf("Create of one that is there: %+v, %v", in, err)
	}
	if zone, err := q.Place(t.Context(), specOf(fmt.Sprint("many-", i), "")); err != nil || zone != "us-east1-b" {
		t.Errorf("Place of one that is there = %q, %v", zone, err)
	}
	down(t, p, refOf(there))
	w.advance(3 * time.Minute)
	if zone, err := p.Place(t.Context(), late); err != nil || zone != "us-east1-b" {
		t.Errorf("with room again: %q, %v", zone, err)
	}
	up(t, p, late)
}
