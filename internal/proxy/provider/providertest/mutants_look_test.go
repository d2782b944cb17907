package providertest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/providertest"
)

// breakLooks are mutants of Get, ListByTag and Check.
var breakLooks = map[string]bent{
	"get changes the answer": {"P-GET-1", "status would flap between two addresses", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			in.Port++
			return in, err
		}
	}},
	"get by UID looks on the first host alone": {"P-GET-2", "the machine on the second would be made again", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			if r.ID == "" && r.Host == "" {
				r.Host = hosts[0]
			}
			return inner(ctx, r)
		}
	}},
	"get of unknown is Transient": {"P-GET-3", "a Proxy would hang in Terminating", func(m *mutant, _ *providertest.Harness) {
		regret(m, fault.NotFound, fault.Transient)
	}},
	"get remembers what vanished": {"P-GET-4", "a machine removed by hand would never be rebuilt", func(m *mutant, _ *providertest.Harness) {
		var mu sync.Mutex
		known := map[string]provider.Instance{}
		create, get := m.create, m.get
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := create(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			known[in.ID] = in
			return in, err
		}
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			mu.Lock()
			defer mu.Unlock()
			if in, ok := known[r.ID]; ok {
				return in, nil
			}
			return get(ctx, r)
		}
	}},
	"a malformed id is NotFound": {"P-GET-5", "a damaged status would make a second machine", func(m *mutant, _ *providertest.Harness) {
		regret(m, fault.Invalid, fault.NotFound)
	}},
	"a host not configured is NotFound": {"P-GET-6", "a typo in hosts would recreate a fleet", func(m *mutant, _ *providertest.Harness) {
		regret(m, fault.Permanent, fault.NotFound)
	}},
	"get says NotFound on a broken host": {"P-GET-7", "an outage would rebuild the fleet elsewhere", func(m *mutant, _ *providertest.Harness) {
		regret(m, fault.Unavailable, fault.NotFound)
	}},
	"get says NotFound of the unreadable": {"P-GET-8", "a bad record would cost a second machine", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			if in.State == provider.Unknown {
				return provider.Instance{}, fault.New(fault.NotFound, "no record")
			}
			return in, err
		}
	}},
	"get starts what is stopped": {"P-GET-9", "reading must not act", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			if in.State == provider.Stopped {
				return m.Provider.Create(ctx, provider.Spec{Owner: in.Owner, Host: in.Host})
			}
			return in, err
		}
	}},
	"get trusts the caller about the owner": {"P-GET-10", "traffic would leave through a stranger's machine", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			in.Owner = r.Owner
			return in, err
		}
	}},
	"created is now": {"P-GET-11", "the sweep's grace would never end", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			in.Created = time.Now()
			return in, err
		}
	}},
	"the list is partial without an error": {"P-LST-1", "what is left out would be looked up one by one, or swept", func(m *mutant, _ *providertest.Harness) {
		listing(m, func(rows []provider.HostList, err error) ([]provider.HostList, error) {
			for i := range rows {
				if n := len(rows[i].Instances); n > 0 {
					rows[i].Instances = rows[i].Instances[:n-1]
				}
			}
			return rows, err
		})
	}},
	"the list shows other installations'": {"P-LST-2", "the sweep would delete them", func(m *mutant, _ *providertest.Harness) {
		inner := m.list
		m.list = func(ctx context.Context, i string) ([]provider.HostList, error) {
			rows, err := inner(ctx, i)
			more, _ := inner(ctx, "another-"+i)
			for n := range rows {
				rows[n].Instances = append(rows[n].Instances, more[n].Instances...)
			}
			return rows, err
		}
	}},
	"the list drops a broken host": {"P-LST-3", "no row would read as nothing there", func(m *mutant, _ *providertest.Harness) {
		listing(m, func(rows []provider.HostList, err error) ([]provider.HostList, error) {
			return slices.DeleteFunc(rows, func(r provider.HostList) bool { return r.Err != nil }), err
		})
	}},
	"a broken host's row is empty": {"P-LST-3", "the cache would look every proxy of it up", func(m *mutant, _ *providertest.Harness) {
		listing(m, func(rows []provider.HostList, err error) ([]provider.HostList, error) {
			for i := range rows {
				rows[i].Err = nil
			}
			return rows, err
		})
	}},
	"one broken host fails the list": {"P-LST-3", "one outage would stop the sweep and the cache everywhere", func(m *mutant, _ *providertest.Harness) {
		listing(m, func(rows []provider.HostList, err error) ([]provider.HostList, error) {
			for _, r := range rows {
				if r.Err != nil {
					return nil, r.Err
				}
			}
			return rows, err
		})
	}},
	"the list leaves out the unreadable": {"P-LST-4", "it would look vanished", func(m *mutant, _ *providertest.Harness) {
		listing(m, func(rows []provider.HostList, err error) ([]provider.HostList, error) {
			for i := range rows {
				rows[i].Instances = slices.DeleteFunc(rows[i].Instances, func(in provider.Instance) bool { return in.State == provider.Unknown })
			}
			return rows, err
		})
	}},
	"hosts are listed in a row": {"P-LST-5", "behind a mute host the others would not be reached", func(m *mutant, _ *providertest.Harness) {
		inner := m.list
		m.list = func(ctx context.Context, i string) ([]provider.HostList, error) {
			rows, err := inner(ctx, i)
			silent := false
			for n := range rows {
				if silent = silent || ctx.Err() != nil; silent {
					rows[n] = provider.HostList{Host: rows[n].Host, Err: fmt.Errorf("not reached: %w", ctx.Err())}
				}
			}
			return rows, err
		}
	}},
	"a host without instances has no row": {"P-LST-6", "the sweep could not tell it from a host not asked", func(m *mutant, _ *providertest.Harness) {
		listing(m, func(rows []provider.HostList, err error) ([]provider.HostList, error) {
			return slices.DeleteFunc(rows, func(r provider.HostList) bool { return len(r.Instances) == 0 && r.Err == nil }), err
		})
	}},
	"check gives one row": {"P-CHK-1", "the second host's trouble would not show", func(m *mutant, _ *providertest.Harness) {
		inner := m.check
		m.check = func(ctx context.Context) ([]provider.HostHealth, error) {
			rows, err := inner(ctx)
			return rows[:min(1, len(rows))], err
		}
	}},
	"check calls a broken host OK": {"P-CHK-2", "the question why nothing is created would have no answer", func(m *mutant, _ *providertest.Harness) {
		inner := m.check
		m.check = func(ctx context.Context) ([]provider.HostHealth, error) {
			rows, err := inner(ctx)
			for i := range rows {
				rows[i].Reason = "OK"
			}
			return rows, err
		}
	}},
	"check fails for one mute host": {"P-CHK-3", "the others would look ill", func(m *mutant, _ *providertest.Harness) {
		inner := m.check
		m.check = func(ctx context.Context) ([]provider.HostHealth, error) {
			rows, err := inner(ctx)
			if err == nil && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return rows, err
		}
	}},
	"check takes the connection": {"P-CHK-4", "each round of the monitor would break calls that run", func(m *mutant, _ *providertest.Harness) {
		var busy sync.Mutex
		check, create := m.check, m.create
		m.check = func(ctx context.Context) ([]provider.HostHealth, error) {
			busy.Lock()
			defer busy.Unlock()
			time.Sleep(time.Millisecond)
			return check(ctx)
		}
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			if !busy.TryLock() {
				return provider.Instance{}, fault.New(fault.Transient, "connection lost")
			}
			defer busy.Unlock()
			return create(ctx, s)
		}
	}},
}
