package providertest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/providertest"
)

// breakCreate are mutants of Place and Create.
var breakCreate = map[string]bent{
	"second create makes a second machine": {"P-CRE-1", "a retry after a lost answer would pay twice", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		var n int
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			if err == nil && in.State == provider.Running {
				if n++; n%2 == 0 {
					return m.Plant(s.Host, s.Owner), nil
				}
			}
			return in, err
		}
	}},
	"concurrent creates race": {"P-CRE-2", "look and make are apart, so two callers both make", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			_, err := m.Provider.Get(ctx, provider.Ref{Owner: s.Owner, Host: s.Host})
			if provider.Class(err) != fault.NotFound {
				return inner(ctx, s)
			}
			if err := provider.Step(ctx, "make all"); err != nil {
				return provider.Instance{}, err
			}
			return m.Plant(s.Host, s.Owner), nil
		}
	}},
	"a failed create starts anew beside the half-made": {"P-CRE-3", "the parts of the first attempt stay for ever", func(m *mutant, h *providertest.Harness) {
		orphans(m, h, func(err error) bool { return err != nil && !errors.Is(err, context.Canceled) })
	}},
	"a cancelled create leaves a part": {"P-CRE-4", "the operator's stop leaks a volume each time", func(m *mutant, h *providertest.Harness) {
		orphans(m, h, func(err error) bool { return errors.Is(err, context.Canceled) })
	}},
	"what was begun is kept in memory alone": {"P-CRE-5", "after a crash the next operator cannot finish", func(m *mutant, h *providertest.Harness) {
		h.Reopen = func(providertest.T) provider.Provider {
			other := *m
			other.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
				in, err := m.Provider.Get(ctx, provider.Ref{Owner: s.Owner, Host: s.Host})
				if err == nil && in.State == provider.Provisioning {
					return in, fault.New(fault.Permanent, "somebody else makes this one")
				}
				return m.Provider.Create(ctx, s)
			}
			return &other
		}
	}},
	"create ignores a stopped instance": {"P-CRE-6", "the proxy stays down for ever", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := m.Provider.Get(ctx, provider.Ref{Owner: s.Owner, Host: s.Host})
			if err == nil && in.State == provider.Stopped {
				return in, nil
			}
			return inner(ctx, s)
		}
	}},
	"restart changes the id": {"P-CRE-6", "status would name a machine that is not there", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := m.Provider.Get(ctx, provider.Ref{Owner: s.Owner, Host: s.Host})
			if err == nil && in.State == provider.Stopped {
				m.Vanish(in.ID)
			}
			return inner(ctx, s)
		}
	}},
	"create remembers what vanished": {"P-CRE-7", "a rebuild would give the dead machine's answer", func(m *mutant, _ *providertest.Harness) {
		var mu sync.Mutex
		made := map[string]provider.Instance{}
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			mu.Lock()
			defer mu.Unlock()
			if in, ok := made[s.Owner.UID]; ok {
				return in, nil
			}
			in, err := inner(ctx, s)
			if in.State == provider.Running {
				made[s.Owner.UID] = in
			}
			return in, err
		}
	}},
	"the tag comes last": {"P-CRE-8", "a machine given up in mid-create would be nobody's", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			if in.State == provider.Provisioning {
				in.Owner.Namespace, in.Owner.Name = "", ""
			}
			return in, err
		}
	}},
	"half made is called Running": {"P-CRE-8", "a proxy without an address would be handed out", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			if in.State == provider.Provisioning {
				in.State, in.Address, in.Port = provider.Running, "192.0.2.1", 1
			}
			return in, err
		}
	}},
	"the owner's tag is lost": {"P-CRE-9", "the sweep could not tell whose it is", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			in.Owner.Name = strings.ToUpper(in.Owner.Name)
			return in, err
		}
	}},
	"an unknown host is replaced in silence": {"P-CRE-10", "a machine would come up where nobody asked", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			if !slices.Contains(hosts, s.Host) {
				s.Host = hosts[0]
			}
			return inner(ctx, s)
		}
	}},
	"names are cut at 63": {"P-CRE-11", "two proxies with long names would be one", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			if len(s.Owner.Name) > 63 {
				s.Owner.Name = s.Owner.Name[:63]
			}
			return inner(ctx, s)
		}
	}},
	"a twin beside the unreadable": {"P-CRE-12", "a host in trouble would fill up", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			if err == nil && in.State == provider.Unknown {
				return m.Plant(s.Host, s.Owner), nil
			}
			return in, err
		}
	}},
	"a broken host is Permanent": {"P-CRE-13", "one outage would make the proxies of a host Failed", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			if provider.Class(err) == fault.Unavailable {
				err = fault.Wrap(fault.Permanent, err)
			}
			return in, err
		}
	}},
	"impaired is called Running": {"P-CRE-14", "paused on an I/O error it would be handed out", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			if in.State == provider.Impaired {
				in.State = provider.Running
			}
			return in, err
		}
	}},
	"place ignores the wish": {"P-PLC-1", "the user's choice of host would be nothing", func(m *mutant, _ *providertest.Harness) {
		m.place = func(context.Context, provider.Spec) (string, error) { return hosts[0], nil }
	}},
	"place says Permanent": {"P-PLC-2", "a typo in the spec would read as the host's fault", func(m *mutant, _ *providertest.Harness) {
		inner := m.place
		m.place = func(ctx context.Context, s provider.Spec) (string, error) {
			host, err := inner(ctx, s)
			if provider.Class(err) == fault.Invalid {
				err = fault.Wrap(fault.Permanent, err)
			}
			return host, err
		}
	}},
	"place creates": {"P-PLC-3", "it is called before there is a finalizer", func(m *mutant, _ *providertest.Harness) {
		inner := m.place
		m.place = func(ctx context.Context, s provider.Spec) (string, error) {
			host, err := inner(ctx, s)
			if err == nil && len(m.Parts(s.Owner)) == 0 {
				m.Plant(host, s.Owner)
			}
			return host, err
		}
	}},
	"place overfills": {"P-PLC-4", "the create would fail later, without the word Quota", func(m *mutant, _ *providertest.Harness) {
		m.place = func(_ context.Context, s provider.Spec) (string, error) {
			if s.Host == "" {
				return hosts[0], nil
			}
			return s.Host, nil
		}
	}},
}
