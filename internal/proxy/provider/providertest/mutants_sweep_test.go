package providertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/providertest"
)

// claiming changes the rows of the mutant's Claim.
func claiming(m *mutant, f func(c provider.Claim, rows []provider.HostClaims) []provider.HostClaims) {
	inner := m.claim
	m.claim = func(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
		rows, err := inner(ctx, c)
		return f(c, rows), err
	}
}

// asking changes what the mutant's Claim is asked.
func asking(m *mutant, f func(c provider.Claim) provider.Claim) {
	inner := m.claim
	m.claim = func(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) { return inner(ctx, f(c)) }
}

// breakClaims are mutants of Claim.
var breakClaims = map[string]bent{
	"a renewal is a second claim": {"P-CLM-1", "an operator would be taken for two", func(m *mutant, _ *providertest.Harness) {
		last := map[string]provider.OtherClaim{}
		claiming(m, func(c provider.Claim, rows []provider.HostClaims) []provider.HostClaims {
			for i := range rows {
				for _, o := range rows[i].Others {
					if old, ok := last[o.Holder]; ok && old != o {
						rows[i].Others = append(rows[i].Others, old)
					}
				}
				slices.SortStableFunc(rows[i].Others, func(a, b provider.OtherClaim) int { return compare(a.Holder, b.Holder) })
			}
			if _, ok := last[c.Holder]; !ok {
				last[c.Holder] = provider.OtherClaim{Holder: c.Holder, Beat: c.Beat, Period: c.Period}
			}
			return rows
		})
	}},
	"the first claim stays": {"P-CLM-1", "a live operator would look dead", func(m *mutant, _ *providertest.Harness) {
		first := map[string]uint64{}
		asking(m, func(c provider.Claim) provider.Claim {
			if _, ok := first[c.Holder]; !ok {
				first[c.Holder] = c.Beat
			}
			c.Beat = first[c.Holder]
			return c
		})
	}},
	"one host alone is claimed": {"P-CLM-1", "on the others two would take each other's", func(m *mutant, _ *providertest.Harness) {
		claiming(m, func(_ provider.Claim, rows []provider.HostClaims) []provider.HostClaims {
			rows[1].Others = nil
			return rows
		})
	}},
	"one other alone is shown": {"P-CLM-2", "the third operator would go unnoticed", func(m *mutant, _ *providertest.Harness) {
		claiming(m, func(_ provider.Claim, rows []provider.HostClaims) []provider.HostClaims {
			for i := range rows {
				rows[i].Others = rows[i].Others[:min(1, len(rows[i].Others))]
			}
			return rows
		})
	}},
	"its own claim is shown": {"P-CLM-2", "each operator would be in conflict with itself", func(m *mutant, _ *providertest.Harness) {
		claiming(m, func(c provider.Claim, rows []provider.HostClaims) []provider.HostClaims {
			for i := range rows {
				rows[i].Others = m.Claims(rows[i].Host, c.Installation)
			}
			return rows
		})
	}},
	"the period is one second": {"P-CLM-2", "a live operator would be called dead", func(m *mutant, _ *providertest.Harness) {
		asking(m, func(c provider.Claim) provider.Claim { c.Period = time.Second; return c })
	}},
	"all installations are shown": {"P-CLM-3", "two fleets on one host would stop each other's sweeps", func(m *mutant, h *providertest.Harness) {
		claiming(m, func(_ provider.Claim, rows []provider.HostClaims) []provider.HostClaims {
			for i := range rows {
				rows[i].Others = append(rows[i].Others, m.Claims(rows[i].Host, "another-"+h.Installation)...)
				slices.SortFunc(rows[i].Others, func(a, b provider.OtherClaim) int { return compare(a.Holder, b.Holder) })
			}
			return rows
		})
	}},
	"the dead go in every installation": {"P-CLM-3", "a holder's name would be a weapon", func(m *mutant, h *providertest.Harness) {
		asking(m, func(c provider.Claim) provider.Claim {
			for _, dead := range c.Dead {
				for _, host := range hosts {
					m.PlantClaim(host, provider.Claim{Installation: "another-" + h.Installation, Holder: dead})()
				}
			}
			return c
		})
	}},
	"the dead stay": {"P-CLM-4", "claims would pile up with each start", func(m *mutant, _ *providertest.Harness) {
		asking(m, func(c provider.Claim) provider.Claim { c.Dead = nil; return c })
	}},
	"the dead take the others along": {"P-CLM-4", "a live operator would lose its claim", func(m *mutant, _ *providertest.Harness) {
		asking(m, func(c provider.Claim) provider.Claim {
			if len(c.Dead) > 0 && m.Claims(hosts[0], c.Installation) != nil {
				for _, o := range m.Claims(hosts[0], c.Installation) {
					c.Dead = append(c.Dead, o.Holder)
				}
			}
			return c
		})
	}},
	"one broken host fails the claim": {"P-CLM-5", "one outage would stop the sweep everywhere", func(m *mutant, _ *providertest.Harness) {
		inner := m.claim
		m.claim = func(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
			rows, err := inner(ctx, c)
			for _, r := range rows {
				err = errors.Join(err, r.Err)
			}
			return rows, err
		}
	}},
	"a broken host has no others": {"P-CLM-5", "nobody there would read as nobody anywhere", func(m *mutant, _ *providertest.Harness) {
		claiming(m, func(_ provider.Claim, rows []provider.HostClaims) []provider.HostClaims {
			for i := range rows {
				rows[i].Err = nil
			}
			return rows
		})
	}},
	"hosts are claimed in a row": {"P-CLM-6", "behind a mute host the others would not be claimed", func(m *mutant, _ *providertest.Harness) {
		inner := m.claim
		m.claim = func(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
			rows, err := inner(ctx, c)
			for n := range rows {
				if ctx.Err() != nil {
					rows[n] = provider.HostClaims{Host: rows[n].Host, Err: fmt.Errorf("not reached: %w", ctx.Err())}
				}
			}
			return rows, err
		}
	}},
	"claims are in memory": {"P-CLM-7", "two processes would never see each other", func(m *mutant, h *providertest.Harness) {
		h.Reopen = func(providertest.T) provider.Provider { return fake.New(fake.Options{Hosts: hosts, StepLimit: limit}) }
	}},
	"the old claim goes first": {"P-CLM-8", "who looks in between would see nobody", func(m *mutant, _ *providertest.Harness) {
		inner := m.claim
		m.claim = func(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
			for _, host := range hosts {
				m.PlantClaim(host, c)()
			}
			return inner(ctx, c)
		}
	}},
	"claims are not announced": {"P-CLM-8", "what is not announced is not tested", func(m *mutant, _ *providertest.Harness) {
		inner := m.claim
		m.claim = func(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
			return inner(provider.WithStepHook(ctx, func(string) error { return nil }), c)
		}
	}},
	"who claims twice takes the newest along": {"P-CLM-9", "two that begin at once would not see each other", func(m *mutant, _ *providertest.Harness) {
		var mu sync.Mutex
		inner := m.claim
		m.claim = func(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, o := range m.Claims(hosts[0], c.Installation) {
				if o.Holder != c.Holder {
					c.Dead = append(c.Dead, o.Holder)
				}
			}
			return inner(ctx, c)
		}
	}},
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// lying changes the rows of the mutant's Leftovers.
func lying(m *mutant, f func(rows []provider.HostLeftovers) []provider.HostLeftovers) {
	inner := m.lying
	m.lying = func(ctx context.Context, i string, keep []string) ([]provider.HostLeftovers, error) {
		rows, err := inner(ctx, i, keep)
		return f(rows), err
	}
}

// parts adds what instances in one of the states consist of.
func parts(m *mutant, states ...provider.State) {
	lying(m, func(rows []provider.HostLeftovers) []provider.HostLeftovers {
		for i := range rows {
			for _, in := range m.Machines() {
				if in.Host == rows[i].Host && slices.Contains(states, in.State) {
					rows[i].Leftovers = append(rows[i].Leftovers, provider.Leftover{Host: in.Host, ID: "disk-of-" + in.ID, What: "disk"})
				}
			}
		}
		return rows
	})
}

// breakLeftovers are mutants of Leftovers and RemoveLeftover.
var breakLeftovers = map[string]bent{
	"nothing is shown": {"P-CLN-1", "images would pile up until the pool is full", func(m *mutant, _ *providertest.Harness) {
		lying(m, func(rows []provider.HostLeftovers) []provider.HostLeftovers {
			for i := range rows {
				rows[i].Leftovers = nil
			}
			return rows
		})
	}},
	"a leftover without a kind": {"P-CLN-1", "people would not know what goes", func(m *mutant, _ *providertest.Harness) {
		lying(m, func(rows []provider.HostLeftovers) []provider.HostLeftovers {
			for i := range rows {
				for k := range rows[i].Leftovers {
					rows[i].Leftovers[k].What = ""
				}
			}
			return rows
		})
	}},
	"the disks of those that run": {"P-CLN-2", "the sweep would take a disk from under a guest", func(m *mutant, _ *providertest.Harness) {
		parts(m, provider.Running)
	}},
	"the disks of those that are stopped": {"P-CLN-2", "a proxy could not be started again", func(m *mutant, _ *providertest.Harness) {
		parts(m, provider.Stopped)
	}},
	"keep is not heeded": {"P-CLN-3", "what a Proxy still waits for would go", func(m *mutant, _ *providertest.Harness) {
		inner := m.lying
		m.lying = func(ctx context.Context, i string, _ []string) ([]provider.HostLeftovers, error) {
			return inner(ctx, i, nil)
		}
	}},
	"the disks of those being made": {"P-CLN-3", "the sweep would work against Create", func(m *mutant, _ *providertest.Harness) {
		parts(m, provider.Provisioning)
	}},
	"the disks of those being removed": {"P-CLN-3", "the sweep would work against Delete", func(m *mutant, _ *providertest.Harness) {
		parts(m, provider.Deleting)
	}},
	"other installations' are shown": {"P-CLN-4", "the sweep would remove a neighbour's images", func(m *mutant, h *providertest.Harness) {
		inner := m.lying
		m.lying = func(ctx context.Context, i string, keep []string) ([]provider.HostLeftovers, error) {
			rows, err := inner(ctx, i, keep)
			more, _ := inner(ctx, "another-"+h.Installation, keep)
			for n := range rows {
				rows[n].Leftovers = append(rows[n].Leftovers, more[n].Leftovers...)
			}
			return rows, err
		}
	}},
	"other installations' are removed": {"P-CLN-4", "a name would be enough to remove a neighbour's", func(m *mutant, _ *providertest.Harness) {
		m.clear = func(_ context.Context, _ string, l provider.Leftover) error { m.Clear(l); return nil }
	}},
	"nothing is removed": {"P-CLN-5", "it would be called removed with each sweep", func(m *mutant, _ *providertest.Harness) {
		m.clear = func(context.Context, string, provider.Leftover) error { return nil }
	}},
	"gone is an error": {"P-CLN-5", "two sweeps would report a failure", func(m *mutant, _ *providertest.Harness) {
		inner := m.clear
		m.clear = func(ctx context.Context, i string, l provider.Leftover) error {
			if !slices.ContainsFunc(m.Litters(), func(x provider.Leftover) bool { return x.ID == l.ID }) {
				return fault.New(fault.NotFound, "no such leftover")
			}
			return inner(ctx, i, l)
		}
	}},
	"all of the host go": {"P-CLN-5", "what was not judged would go too", func(m *mutant, _ *providertest.Harness) {
		m.clear = func(_ context.Context, _ string, l provider.Leftover) error {
			for _, x := range m.Litters() {
				if x.Host == l.Host {
					m.Clear(x)
				}
			}
			return nil
		}
	}},
	"what is used goes": {"P-CLN-6", "an image would go from under the guest that began with it", func(m *mutant, _ *providertest.Harness) {
		m.clear = func(_ context.Context, _ string, l provider.Leftover) error { m.Clear(l); return nil }
	}},
	"what is used is Transient": {"P-CLN-6", "the sweep would try it again at once", func(m *mutant, _ *providertest.Harness) {
		inner := m.clear
		m.clear = func(ctx context.Context, i string, l provider.Leftover) error {
			err := inner(ctx, i, l)
			if provider.Class(err) == fault.Conflict {
				err = fault.Wrap(fault.Transient, err)
			}
			return err
		}
	}},
	"one broken host fails all": {"P-CLN-7", "one outage would fill the pools of the others", func(m *mutant, _ *providertest.Harness) {
		inner := m.lying
		m.lying = func(ctx context.Context, i string, keep []string) ([]provider.HostLeftovers, error) {
			rows, err := inner(ctx, i, keep)
			for _, r := range rows {
				err = errors.Join(err, r.Err)
			}
			return rows, err
		}
	}},
	"a broken host drops out": {"P-CLN-7", "no row would read as nothing there", func(m *mutant, _ *providertest.Harness) {
		lying(m, func(rows []provider.HostLeftovers) []provider.HostLeftovers {
			return slices.DeleteFunc(rows, func(r provider.HostLeftovers) bool { return r.Err != nil })
		})
	}},
	"removal on a broken host is success": {"P-CLN-7", "the report would say Removed of what is there", func(m *mutant, _ *providertest.Harness) {
		inner := m.clear
		m.clear = func(ctx context.Context, i string, l provider.Leftover) error {
			err := inner(ctx, i, l)
			if provider.Class(err) == fault.Unavailable {
				err = nil
			}
			return err
		}
	}},
	"hosts are looked through in a row": {"P-CLN-8", "behind a mute host the others would not be reached", func(m *mutant, _ *providertest.Harness) {
		inner := m.lying
		m.lying = func(ctx context.Context, i string, keep []string) ([]provider.HostLeftovers, error) {
			rows, err := inner(ctx, i, keep)
			for n := range rows {
				if ctx.Err() != nil {
					rows[n] = provider.HostLeftovers{Host: rows[n].Host, Err: fmt.Errorf("not reached: %w", ctx.Err())}
				}
			}
			return rows, err
		}
	}},
	"any id is taken": {"P-CLN-9", "a path out of the folder would be followed", func(m *mutant, _ *providertest.Harness) {
		inner := m.clear
		m.clear = func(ctx context.Context, i string, l provider.Leftover) error {
			err := inner(ctx, i, l)
			if provider.Class(err) == fault.Invalid {
				err = nil
			}
			return err
		}
	}},
	"the id of an instance removes it": {"P-CLN-9", "an instance would go past every rule of the sweep", func(m *mutant, _ *providertest.Harness) {
		inner := m.clear
		m.clear = func(ctx context.Context, i string, l provider.Leftover) error {
			for _, in := range m.Machines() {
				if in.Owner.UID == l.ID {
					m.Vanish(in.ID)
				}
			}
			return inner(ctx, i, l)
		}
	}},
	"a removal announces no step": {"P-CLN-10", "what is not announced is not tested", func(m *mutant, _ *providertest.Harness) {
		inner := m.clear
		m.clear = func(ctx context.Context, i string, l provider.Leftover) error {
			return inner(provider.WithStepHook(ctx, func(string) error { return nil }), i, l)
		}
	}},
	"a failed removal is forgotten": {"P-CLN-10", "half a leftover would stay for ever", func(m *mutant, _ *providertest.Harness) {
		var mu sync.Mutex
		begun := map[string]bool{}
		inner := m.clear
		m.clear = func(ctx context.Context, i string, l provider.Leftover) error {
			mu.Lock()
			defer mu.Unlock()
			if begun[l.ID] {
				return nil
			}
			begun[l.ID] = true
			return inner(ctx, i, l)
		}
	}},
	"the disks of the unreadable": {"P-CLN-11", "a torn record would cost its machine's disk", func(m *mutant, _ *providertest.Harness) {
		parts(m, provider.Unknown)
	}},
}
