package gcp_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// manyZones are n zones, three of each region.
func manyZones(n int) map[string]string {
	zones := map[string]string{}
	for i := range n {
		region := fmt.Sprintf("europe-west%d", 1+i/3)
		zones[fmt.Sprintf("%s-%c", region, 'a'+i%3)] = region
	}
	return zones
}

// asked is how many calls the API had, without those for tokens.
func (w *world) asked() (n int) {
	for method, calls := range w.Calls() {
		if method != "token" {
			n += calls
		}
	}
	return n
}

// Many Proxies at once, with a quota used up and few calls to spare, all hear of
// the quota: what one heard serves the others, and waiting for a turn is not
// taken for the silence of a zone.
func TestManyPlacesAtAQuota(t *testing.T) {
	t.Parallel() // it waits for most of its time
	w := newWorld(t, false, gcefake.Options{Zones: map[string]string{"europe-west1-b": "europe-west1"}})
	w.section.RequestsPerSecond = 15
	p := w.open(t)
	defer w.Quota("europe-west1", "INSTANCES", 0)()
	for _, wish := range []string{"", "europe-west1-b"} {
		before := w.asked()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				s := specOf(fmt.Sprint("q-", i), "")
				s.Zone = wish
				if _, err := p.Place(t.Context(), s); fault.Of(err) != fault.Quota {
					t.Errorf("wish %q: %s: %v; want Quota", wish, fault.Of(err), err)
				}
			})
		}
		wg.Wait()
		if n := w.asked() - before; n > 10 {
			t.Errorf("wish %q: %d calls for a hundred Places; want a few", wish, n)
		}
		w.advance(time.Minute)
	}
}

// A zone that was silent while it was asked is passed over for a while without
// being asked again.
func TestSilenceIsRemembered(t *testing.T) {
	t.Parallel() // it waits for most of its time
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	defer w.MuteZone("europe-west1-b")()
	for range 3 {
		if zone, err := p.Place(t.Context(), specOf("a", "")); err != nil || zone != "europe-west1-c" {
			t.Errorf("Place = %q, %v", zone, err)
		}
	}
	if n := w.Calls()["zones.get"]; n != 3 {
		t.Errorf("zones were asked %d times; want each once", n)
	}
}

// Of many zones the first ones are asked, and more only where none of them will
// do.
func TestPlaceAsksAFewZones(t *testing.T) {
	t.Parallel() // it waits for most of its time
	w := newWorld(t, false, gcefake.Options{Zones: manyZones(60)})
	w.section.RequestsPerSecond = 15
	zones := w.section.Zones
	if zone, err := w.open(t).Place(t.Context(), specOf("a", "")); err != nil || zone != zones[0] {
		t.Errorf("Place = %q, %v; want the first", zone, err)
	}
	if n := w.asked(); n > 6 {
		t.Errorf("%d calls to choose the first of 60 zones", n)
	}
	for _, zone := range zones[:7] {
		defer w.BreakZone(zone)()
	}
	before := w.asked()
	if zone, err := w.open(t).Place(t.Context(), specOf("b", "")); err != nil || zone != zones[7] {
		t.Errorf("Place = %q, %v; want the eighth, the first that answers", zone, err)
	}
	if n := w.asked() - before; n > 18 {
		t.Errorf("%d calls to choose the eighth of 60 zones", n)
	}
}

// A Check of many zones holds nobody up: other calls go before its own.
func TestPlaceBesideACheck(t *testing.T) {
	t.Parallel() // it waits for most of its time
	w := newWorld(t, false, gcefake.Options{Zones: manyZones(24)})
	w.section.RequestsPerSecond = 15
	p := w.open(t)
	checked := make(chan []provider.HostHealth)
	go func() {
		rows, _ := p.Check(t.Context())
		checked <- rows
	}()
	await(t, "in the middle of a Check", func() (bool, string) { n := w.asked(); return n >= 16, fmt.Sprint(n, " calls") })
	before := w.asked()
	zone, err := p.Place(t.Context(), specOf("a", ""))
	n := w.asked() - before
	if err != nil || zone != w.section.Zones[0] {
		t.Errorf("Place = %q, %v", zone, err)
	}
	// Two of its own with one of the Check's before each, and some of before and
	// after; of 57 there were 16.
	if n > 25 {
		t.Errorf("%d calls were made until Place had its answer; it was not let through", n)
	}
	for _, row := range <-checked {
		if row.Reason != gcp.ReasonOK {
			t.Errorf("%+v", row)
		}
	}
	if n := w.Calls()["regions.get"]; n > 8+1 {
		t.Errorf("regions were asked %d times; want each of eight once, and one by Place", n)
	}
}

// More zones than can be asked in time are said to be that, and not that they
// are silent or the project refuses; what was heard before stays.
func TestACheckOfMoreZonesThanItsRate(t *testing.T) {
	t.Parallel() // it waits for most of its time
	w := newWorld(t, false, gcefake.Options{Zones: manyZones(48)})
	w.section.RequestsPerSecond = 40
	w.limit = 1500 * time.Millisecond
	p := w.open(t)
	known := map[string]bool{}
	rounds := 0
	await(t, "OK", func() (bool, string) {
		rounds++
		rows, err := p.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			switch {
			case row.Reason == gcp.ReasonOK:
				known[row.Host] = true
			case row.Reason != gcp.ReasonRate || !strings.Contains(row.Message, "requestsPerSecond"):
				t.Errorf("%+v; want that its turn did not come", row)
			case known[row.Host]:
				t.Errorf("%s was OK, and is %+v", row.Host, row)
			}
		}
		return len(known) == len(rows), fmt.Sprintf("%d of %d zones are known", len(known), len(rows))
	})
	if rounds < 2 {
		t.Errorf("all were asked in one round: the test shows nothing")
	}
}

// A quota of CPUs that the machine may not need keeps no zone out: Spot machines
// have one of their own, and so have most types. Where it counts the attempt
// tells.
func TestQuotasOfOtherKinds(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.Spot = true
	p := w.open(t)
	defer w.Quota("europe-west1", "PREEMPTIBLE_CPUS", 8)()
	defer w.Quota("europe-west1", "CPUS", 0)()
	if in, tried, err := settled(t, p, specOf("spot", "")); err != nil || in.Host != "europe-west1-b" {
		t.Errorf("Spot: made in %q after %v: %v", in.Host, tried, err)
	}
	if rows, err := p.Check(t.Context()); err != nil || rows[0].Reason != gcp.ReasonOK {
		t.Errorf("Check: %+v, %v", rows, err)
	}
	w.section.Spot = false
	p = w.open(t)
	if in, tried, err := settled(t, p, specOf("standard", "")); err != nil || in.Host != "us-east1-b" || len(tried) != 2 {
		t.Errorf("made in %q after %v: %v; want the other region, told by the attempt", in.Host, tried, err)
	}
	w.section.Address = "internal"
	defer w.Quota("us-east1", "IN_USE_ADDRESSES", 0)()
	defer w.Quota("europe-west1", "INSTANCES", 0)()
	w.advance(time.Minute)
	if zone, err := w.open(t).Place(t.Context(), specOf("internal", "")); err != nil || zone != "us-east1-b" {
		t.Errorf("without an address: %q, %v", zone, err)
	}
}
