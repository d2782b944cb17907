package providertest_test

import (
	"context"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/providertest"
)

// telling makes the mutant's Watch tell what f makes of each change.
func telling(m *mutant, f func(tell func(provider.Change), c provider.Change)) {
	inner := m.watch
	m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
		return inner(ctx, i, func(c provider.Change) { f(changed, c) })
	}
}

// stateIs drops changes of instances in that state; gone for one that is not.
func stateIs(m *mutant, state provider.State) func(func(provider.Change), provider.Change) {
	return func(tell func(provider.Change), c provider.Change) {
		now := provider.Gone
		for _, in := range m.Machines() {
			if in.Owner.UID == c.UID {
				now = in.State
			}
		}
		if c.UID == "" || now != state {
			tell(c)
		}
	}
}

// breakWatch are mutants of Watch.
var breakWatch = map[string]bent{
	"a stop is not told": {"P-WAT-1", "a stopped proxy would be handed out until the next listing", func(m *mutant, _ *providertest.Harness) {
		telling(m, stateIs(m, provider.Stopped))
	}},
	"a stop is told without its UID": {"P-WAT-1", "each stop would cost a listing of all", func(m *mutant, _ *providertest.Harness) {
		telling(m, func(tell func(provider.Change), c provider.Change) { tell(provider.Change{Host: c.Host}) })
	}},
	"a vanished one is not told": {"P-WAT-2", "it would be rebuilt only after the next listing", func(m *mutant, _ *providertest.Harness) {
		telling(m, stateIs(m, provider.Gone))
	}},
	"all installations are told": {"P-WAT-3", "two fleets on one host would wake each other", func(m *mutant, h *providertest.Harness) {
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			var wg sync.WaitGroup
			wg.Go(func() { _ = inner(ctx, "another-"+h.Installation, changed) })
			defer wg.Wait()
			return inner(ctx, i, changed)
		}
	}},
	"the beginning is not told": {"P-WAT-4", "what happened between the last listing and the watch would be missed", func(m *mutant, _ *providertest.Harness) {
		telling(m, func(tell func(provider.Change), c provider.Change) {
			if c.UID != "" {
				tell(c)
			}
		})
	}},
	"a second watch takes the first's events": {"P-WAT-4", "who asks beside the operator would deafen it", func(m *mutant, _ *providertest.Harness) {
		var mu sync.Mutex
		last := 0
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			mu.Lock()
			last++
			mine := last
			mu.Unlock()
			return inner(ctx, i, func(c provider.Change) {
				mu.Lock()
				defer mu.Unlock()
				if mine == last || c.UID == "" {
					changed(c)
				}
			})
		}
	}},
	"it does not end": {"P-WAT-5", "a provider that left would be watched for ever", func(m *mutant, _ *providertest.Harness) {
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			err := inner(ctx, i, changed)
			time.Sleep(400 * time.Millisecond)
			return err
		}
	}},
	"its end is an error": {"P-WAT-5", "each stop of the operator would log one", func(m *mutant, _ *providertest.Harness) {
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			_ = inner(ctx, i, changed)
			return ctx.Err()
		}
	}},
	"it tells on after its end": {"P-WAT-5", "the reader is no more", func(m *mutant, _ *providertest.Harness) {
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			go func() {
				long, cancel := context.WithTimeout(context.WithoutCancel(ctx), 250*time.Millisecond)
				defer cancel()
				_ = inner(long, i, changed)
			}()
			<-ctx.Done()
			return nil
		}
	}},
	"close does not end it": {"P-WAT-6", "a replaced provider would be watched for ever", func(m *mutant, h *providertest.Harness) {
		h.Reopen = func(providertest.T) provider.Provider {
			other := *m
			other.Provider = m.Provider.Reopen()
			return &other // whose Close is that of another Provider than its Watch
		}
	}},
	"close is an error of it": {"P-WAT-6", "a change of the file would log one", func(m *mutant, h *providertest.Harness) {
		h.Reopen = func(providertest.T) provider.Provider {
			other := *m
			other.Provider = m.Provider.Reopen()
			other.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
				_ = other.Provider.Watch(ctx, i, changed)
				return fault.New(fault.Unavailable, "closed")
			}
			return &other
		}
	}},
	"a host that is out ends it": {"P-WAT-7", "one outage would deafen the operator for all hosts", func(m *mutant, _ *providertest.Harness) {
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			var lost error
			var wg sync.WaitGroup
			wg.Go(func() {
				defer cancel()
				for ctx.Err() == nil {
					rows, _ := m.Provider.Check(ctx)
					for _, r := range rows {
						if r.Reason != provider.ReasonOK && ctx.Err() == nil {
							lost = fault.New(fault.Unavailable, r.Message)
							return
						}
					}
					time.Sleep(time.Millisecond)
				}
			})
			_ = inner(ctx, i, changed)
			cancel()
			wg.Wait()
			return lost
		}
	}},
	"it begins when all hosts answer": {"P-WAT-7", "one outage at the start would deafen the operator for all hosts", func(m *mutant, _ *providertest.Harness) {
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			for ctx.Err() == nil {
				rows, _ := m.Provider.Check(ctx)
				ill := 0
				for _, r := range rows {
					if r.Reason != provider.ReasonOK {
						ill++
					}
				}
				if ill == 0 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			return inner(ctx, i, changed)
		}
	}},
	"a host's return is not told": {"P-WAT-8", "what it lost meanwhile would show with the next listing only", func(m *mutant, _ *providertest.Harness) {
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			heard := map[string]bool{}
			return inner(ctx, i, func(c provider.Change) {
				if c.UID != "" || !heard[c.Host] {
					changed(c)
				}
				heard[c.Host] = true
			})
		}
	}},
	"a host that was out is deaf for ever": {"P-WAT-8", "each outage would cost the events of a host", func(m *mutant, _ *providertest.Harness) {
		inner := m.watch
		m.watch = func(ctx context.Context, i string, changed func(provider.Change)) error {
			heard := map[string]int{}
			return inner(ctx, i, func(c provider.Change) {
				if c.UID == "" {
					heard[c.Host]++
				}
				if c.UID == "" || heard[c.Host] < 2 {
					changed(c)
				}
			})
		}
	}},
}
