package inventory_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/provider"
)

// counted is a provider that notes when it is listed. Whatever else the
// inventory called would be a call on nil, and end the test.
type counted struct {
	provider.Provider
	hosts []provider.HostList
	at    []time.Time
}

func (c *counted) ListByTag(context.Context, string) ([]provider.HostList, error) {
	c.at = append(c.at, time.Now())
	return c.hosts, nil
}

// In the steady state an interval costs one listing of each provider, however
// many instances it has on however many hosts, and however often Proxies look.
func TestTheSteadyStateCostsOneListingAnInterval(t *testing.T) {
	for _, hosts := range []int{1, 10} {
		for _, n := range []int{10, 100, 1000} {
			t.Run(fmt.Sprintf("n%d.h%d", n, hosts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					of := map[string]provider.Provider{}
					var all []*counted
					for _, name := range []string{"p", "q"} {
						c := &counted{hosts: make([]provider.HostList, hosts)}
						for i := range n {
							h := &c.hosts[i%hosts]
							h.Host = fmt.Sprintf("h%d", i%hosts)
							h.Instances = append(h.Instances, instance(fmt.Sprintf("%s-%d", name, i), h.Host, provider.Running))
						}
						of[name] = c
						all = append(all, c)
					}
					var woken atomic.Int64
					inv := inventory.New(inventory.Options{
						Providers: &several{of: of, epochs: map[string]uint64{}}, Installation: "i", Interval: interval,
						Changed: func(provider.Owner) { woken.Add(1) }, Log: slog.New(slog.DiscardHandler),
					})
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() { done <- inv.Run(ctx) }()
					for range 200 {
						time.Sleep(interval / 10)
						for i := range n {
							uid, host := fmt.Sprintf("p-%d", i), fmt.Sprintf("h%d", i%hosts)
							if got := inv.Look("p", host, uid).Knowledge; got != inventory.Present {
								t.Fatalf("%s on %s: %v", uid, host, got)
							}
						}
					}
					cancel()
					<-done
					for i, c := range all {
						// Twenty intervals, each up to a tenth shorter.
						if got := len(c.at); got < 20 || got > 24 {
							t.Errorf("provider %d: %d listings in 20 intervals", i, got)
						}
						for k := 1; k < len(c.at); k++ {
							if pause := c.at[k].Sub(c.at[k-1]); pause < interval*9/10 || pause > interval+2*time.Millisecond {
								t.Errorf("provider %d: %v between two listings", i, pause)
							}
						}
					}
					if got := woken.Load(); got != int64(2*n) {
						t.Errorf("%d wakes of %d Proxies; want one each, when they were first seen", got, 2*n)
					}
				})
			})
		}
	}
}
