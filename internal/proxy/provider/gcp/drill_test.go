package gcp_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// quota is the API's rate in calls a second; `make drill-gcp` runs with 20, for
// about a minute.
var quota = flag.Float64("quota", 400, "calls a second that the drill's project allows")

// TestDrillCreates makes 200 instances at once, of two operators' processes,
// under a rate that the project does not exceed. One process keeps to less than
// the rate, the other does not know it and is refused. It says what that took,
// and fails for an instance that is missing, there twice, or shares its address.
func TestDrillCreates(t *testing.T) {
	const n = 200
	w := newWorld(t, false, gcefake.Options{Delay: 20 * time.Millisecond})
	w.section.Spread = true
	w.section.RequestsPerSecond = *quota * 0.75
	tame := w.open(t)
	w.section.RequestsPerSecond = *quota * 2
	wild := w.open(t)
	mend := w.Limit(*quota, int(*quota))
	begun := time.Now()
	ins := make([]provider.Instance, n)
	var wg sync.WaitGroup
	var mu sync.Mutex
	refused := map[fault.Class]int{}
	calls := 0
	for i := range n {
		p := []*gcp.Provider{tame, tame, tame, wild}[i%4]
		wg.Go(func() {
			s := specOf(fmt.Sprint("drill-", i), "")
			for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
				ctx, cancel := context.WithTimeout(t.Context(), provider.StepLimit)
				var err error
				if s.Host == "" {
					s.Host, err = p.Place(ctx, s)
				}
				if err == nil {
					ins[i], err = p.Create(ctx, s)
				}
				cancel()
				mu.Lock()
				calls++
				if err != nil {
					refused[fault.Of(err)]++
				}
				mu.Unlock()
				if err != nil && fault.Of(err) != fault.Transient && fault.Of(err) != fault.Timeout {
					t.Errorf("instance %d: %s: %v", i, fault.Of(err), err)
					return
				}
				if ins[i].State == provider.Running {
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begun)
	requests := 0
	for _, k := range w.Calls() {
		requests += k
	}
	for _, line := range []string{
		fmt.Sprint("instances ", n), fmt.Sprint("quota_per_s ", *quota), fmt.Sprintf("seconds %.1f", took.Seconds()),
		fmt.Sprint("api_calls ", requests), fmt.Sprint("api_calls_refused_by_rate ", w.Refused()),
		fmt.Sprint("api_calls_sent_again ", tame.Retries()+wild.Retries()),
		fmt.Sprint("create_calls ", calls), fmt.Sprint("create_calls_refused ", refused),
	} {
		t.Logf("DRILL gcp.%s", line)
	}
	mend()
	var names, addresses []string
	for _, zone := range w.Zones() {
		for _, vm := range w.Instances(zone) {
			names = append(names, vm.Name)
		}
	}
	for i, in := range ins {
		if in.State != provider.Running || !slices.Contains(names, gcp.NameOf(in.Owner)) {
			t.Errorf("instance %d: %+v", i, in)
		}
		addresses = append(addresses, in.Address)
	}
	slices.Sort(names)
	slices.Sort(addresses)
	if made, one, two := len(names), len(slices.Compact(names)), len(slices.Compact(addresses)); made != n || one != n || two != n {
		t.Errorf("%d instances of %d names and %d addresses; want %d of each", made, one, two, n)
	}
	if inserts := w.Calls()["instances.insert"]; inserts < n {
		t.Errorf("%d inserts for %d instances", inserts, n)
	}
}
