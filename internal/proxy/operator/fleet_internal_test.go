package operator

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	providers "fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/guard"
	"fleetdesk/internal/proxy/registry"
)

// halting is a provider whose processes run until they are halted.
type halting struct {
	provider.Provider
	halt func()
}

func (h halting) Halt(context.Context, string) (int, error) {
	h.halt()
	return 1, nil
}

// At its end standalone leaves nothing running, also not what a provider started
// that the file has no more, has otherwise, or has with a mistake in it.
func TestAlsoProvidersThatLeftTheFileAreHalted(t *testing.T) {
	t.Parallel()
	const was = "providers:\n- {name: a, kind: local, local: {stateDir: /a}}\n- {name: b, kind: local}\n"
	for name, tc := range map[string]struct {
		then   string
		halted []string
	}{
		"unchanged":       {was, []string{"a 1", "b 2"}},
		"left":            {"providers:\n- {name: b, kind: local}\n", []string{"a 1", "b 2"}},
		"none":            {"providers: []\n", []string{"a 1", "b 2"}},
		"refused":         {was[:len(was)-len("- {name: b, kind: local}\n")] + "- {name: b, kind: local, kvm: {}}\n", []string{"a 1", "b 2"}},
		"not to be built": {"providers:\n- {name: a, kind: broken}\n- {name: b, kind: local}\n", []string{"a 1", "b 2"}},
		"another folder":  {"providers:\n- {name: a, kind: local, local: {stateDir: /b}}\n- {name: b, kind: local}\n", []string{"a 1", "a 3", "b 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meter, err := guard.NewMetrics(prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			f := &fleet{meter: meter, halters: map[entry]halter{}}
			var mu sync.Mutex
			halted, built := map[string]bool{}, 0
			o := Options{Log: slog.New(slog.DiscardHandler), Build: func(e providers.Entry, _ func() (provider.Provider, error)) (provider.Provider, error) {
				if e.Kind == "broken" {
					return nil, fault.New(fault.Permanent, "no such kind")
				}
				built++
				id := e.Name + " " + string(rune('0'+built))
				return halting{halt: func() {
					mu.Lock()
					defer mu.Unlock()
					halted[id] = true
				}}, nil
			}}
			f.registry = registry.New(registry.Options{
				Build: func(e providers.Entry) (provider.Provider, error) { return f.build(e, o) }, Log: o.Log,
			})
			for _, text := range []string{was, tc.then} {
				file, err := providers.Parse("providers.yaml", []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				f.registry.Apply(file)
			}
			if err := f.halt(o.Log); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.halted, slices.Sorted(maps.Keys(halted))); diff != "" {
				t.Errorf("halted (-want +got):\n%s", diff)
			}
		})
	}
}
