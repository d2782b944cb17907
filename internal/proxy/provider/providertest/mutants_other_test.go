package providertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/providertest"
)

// breakRest are mutants of Delete and what holds for every method.
var breakRest = map[string]bent{
	"delete says Gone too early": {"P-DEL-1", "the finalizer would go and the disk would stay", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			st, err := inner(ctx, r)
			if st == provider.Deleting {
				st = provider.Gone
			}
			return st, err
		}
	}},
	"delete errs on unknown": {"P-DEL-2", "a Proxy would hang in Terminating", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if _, err := m.Provider.Get(ctx, r); provider.Class(err) == fault.NotFound {
				return "", err
			}
			return inner(ctx, r)
		}
	}},
	"delete trusts a stale id": {"P-DEL-3", "the machine of the rebuild would leak", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if _, err := m.Provider.Get(ctx, r); r.ID != "" && slices.Contains([]fault.Class{fault.NotFound, fault.Invalid}, provider.Class(err)) {
				return provider.Gone, nil
			}
			return inner(ctx, r)
		}
	}},
	"delete needs an id": {"P-DEL-4", "a machine whose id was never kept would leak", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if r.ID == "" {
				return provider.Gone, nil
			}
			return inner(ctx, r)
		}
	}},
	"a failed delete is forgotten": {"P-DEL-5", "the second try would find the mark and call it done", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if in, err := m.Provider.Get(ctx, r); err == nil && in.State == provider.Deleting && in.Address == "" {
				return provider.Gone, nil
			}
			return inner(ctx, r)
		}
	}},
	"delete leaves the half-made": {"P-DEL-6", "a Proxy deleted while being made would leak", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if in, err := m.Provider.Get(ctx, r); err == nil && in.State == provider.Provisioning {
				return provider.Gone, nil
			}
			return inner(ctx, r)
		}
	}},
	"delete removes a foreigner by its id": {"P-DEL-7", "another installation would lose a machine", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if in, err := m.Provider.Get(ctx, r); err == nil && in.State != provider.Unknown {
				r.Owner = in.Owner
			}
			return inner(ctx, r)
		}
	}},
	"delete goes by name": {"P-DEL-7", "a name that came back would cost its machine", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			for _, in := range m.Machines() {
				if in.Owner.Name == r.Owner.Name && in.Owner != r.Owner {
					m.Vanish(in.ID)
				}
			}
			return inner(ctx, r)
		}
	}},
	"a broken host is Gone": {"P-DEL-8", "the machine runs on, unseen", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			st, err := inner(ctx, r)
			if provider.Class(err) == fault.Unavailable {
				return provider.Gone, nil
			}
			return st, err
		}
	}},
	"a host not configured is Gone": {"P-DEL-9", "nobody would learn that a machine was left", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			st, err := inner(ctx, r)
			if st == provider.Abandoned {
				st = provider.Gone
			}
			return st, err
		}
	}},
	"a host not configured is Permanent": {"P-DEL-9", "a Proxy would hang in Terminating for a host that was taken out", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			st, err := inner(ctx, r)
			if st == provider.Abandoned {
				return "", fault.New(fault.Permanent, "the host is not configured")
			}
			return st, err
		}
	}},
	"delete beside create is Permanent": {"P-DEL-10", "two leaders for a moment would make a Proxy Failed", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			if in.State == provider.Deleting {
				return in, fault.New(fault.Permanent, "it is being deleted")
			}
			return in, err
		}
	}},
	"delete waits for a stopped machine to run": {"P-DEL-11", "a stopped proxy could not be deleted", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if in, err := m.Provider.Get(ctx, r); err == nil && in.State == provider.Stopped {
				return provider.Deleting, nil
			}
			return inner(ctx, r)
		}
	}},
	"a new operator knows no half-deleted": {"P-DEL-12", "a crash in mid-delete would leak the rest", func(m *mutant, h *providertest.Harness) {
		h.Reopen = func(providertest.T) provider.Provider {
			other := *m
			other.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
				if in, err := m.Provider.Get(ctx, r); err == nil && in.State == provider.Deleting {
					return provider.Gone, nil
				}
				return m.Provider.Delete(ctx, r)
			}
			return &other
		}
	}},
	"the unreadable is Gone": {"P-DEL-13", "it would cost on, owned by nobody", func(m *mutant, _ *providertest.Harness) {
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if in, err := m.Provider.Get(ctx, r); err == nil && in.State == provider.Unknown {
				return provider.Gone, nil
			}
			return inner(ctx, r)
		}
	}},
	"one delete at a time, the others Permanent": {"P-DEL-14", "reconciler and sweep would trip over each other", func(m *mutant, _ *providertest.Harness) {
		var busy sync.Mutex
		inner := m.remove
		m.remove = func(ctx context.Context, r provider.Ref) (provider.State, error) {
			if !busy.TryLock() {
				return "", fault.New(fault.Permanent, "a delete runs already")
			}
			defer busy.Unlock()
			time.Sleep(2 * time.Millisecond)
			return inner(ctx, r)
		}
	}},
	"errors without a class": {"P-GEN-1", "nobody could tell Permanent from Transient", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			if err != nil {
				err = errors.New(err.Error())
			}
			return in, err
		}
	}},
	"no limit of its own": {"P-GEN-2", "a worker would wait on a mute host", func(_ *mutant, h *providertest.Harness) {
		h.StepLimit = limit / 3
	}},
	"the context is not heeded": {"P-GEN-3", "a stop of the operator would wait for every host", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			return inner(context.WithoutCancel(ctx), r)
		}
	}},
	"an ended context writes": {"P-GEN-4", "a deposed leader would still make machines", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			if ctx.Err() != nil {
				_, _ = inner(context.WithoutCancel(ctx), s)
				return provider.Instance{}, ctx.Err()
			}
			return inner(ctx, s)
		}
	}},
	"the password is in an error": {"P-GEN-5", "conditions and events are read by viewers", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			if err != nil {
				err = fmt.Errorf("with %s: %w", []byte(s.Credentials.Password), err)
			}
			return in, err
		}
	}},
	"the user-data is in the message": {"P-GEN-5", "the message goes to the condition", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			in.Message += fmt.Sprintf(" seed %x", []byte(s.UserData))
			return in, err
		}
	}},
	"two instances with one address": {"P-GEN-6", "a crawler would get the other's proxy", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			if in.Address != "" {
				in.Address = "192.0.2.1"
			}
			return in, err
		}
	}},
	"steps are not announced": {"P-GEN-7", "what is not announced is not tested", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			return inner(provider.WithStepHook(ctx, func(string) error { return nil }), s)
		}
	}},
	"the step's error is swallowed": {"P-GEN-7", "the call would go on after its end", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			in, err := inner(ctx, s)
			if err != nil && strings.Contains(err.Error(), "at step") {
				return provider.Instance{ID: "x", Host: s.Host, State: provider.Provisioning}, nil
			}
			return in, err
		}
	}},
	"Running without an address": {"P-GEN-8", "a proxy nobody can reach would be handed out", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			in.Address = ""
			return in, err
		}
	}},
	"Gone from Get": {"P-GEN-8", "only Delete may say Gone", func(m *mutant, _ *providertest.Harness) {
		inner := m.get
		m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
			in, err := inner(ctx, r)
			in.State = provider.Gone
			return in, err
		}
	}},
	"memory alone": {"P-GEN-9", "after a restart the fleet would be unknown", func(m *mutant, h *providertest.Harness) {
		h.Reopen = func(providertest.T) provider.Provider { return fake.New(fake.Options{Hosts: hosts, StepLimit: limit}) }
	}},
	"one lock for all hosts": {"P-GEN-10", "a mute host would stop the fleet", func(m *mutant, _ *providertest.Harness) {
		inner := m.create
		m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
			rows, _ := m.Provider.ListByTag(ctx, "any")
			for _, r := range rows {
				if r.Err != nil {
					return provider.Instance{}, r.Err
				}
			}
			return inner(ctx, s)
		}
	}},
}
