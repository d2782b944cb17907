package registry_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/registry"
)

// stub is a provider that is only told apart and closed.
type stub struct {
	provider.Provider
	name   string
	closed bool
	// onClose, when set, is what Close does.
	onClose func() error
}

func (s *stub) Close() error {
	s.closed = true
	if s.onClose != nil {
		return s.onClose()
	}
	return nil
}

type world struct {
	reg *registry.Registry
	// mu guards the rest: Run builds in a goroutine of its own.
	mu      sync.Mutex
	built   map[string]*stub
	builds  []string
	broken  map[string]error
	changed []string
	removed []string
	refused []string
	// instead, when set, is what is built.
	instead provider.Provider
}

func newWorld() *world {
	w := &world{built: map[string]*stub{}, broken: map[string]error{}}
	w.reg = registry.New(registry.Options{
		Build: func(e config.Entry) (provider.Provider, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.builds = append(w.builds, e.Name)
			if err := w.broken[e.Name]; err != nil {
				if err.Error() == "panic" {
					panic("constructor")
				}
				return nil, err
			}
			if w.instead != nil {
				return w.instead, nil
			}
			s := &stub{name: e.Name}
			w.built[e.Name] = s
			return s, nil
		},
		Changed: func(name string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changed = append(w.changed, name)
		},
		Removed: func(name string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if s := w.built[name]; s != nil && !s.closed {
				name += " before it was closed"
			}
			w.removed = append(w.removed, name)
		},
		Refused: func(name string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused = append(w.refused, name)
		},
		Log: slog.New(slog.DiscardHandler),
	})
	return w
}

// inForce returns the stub that answers for a name.
func (w *world) inForce(t *testing.T, name string) *stub {
	t.Helper()
	p, err := w.reg.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return p.(provider.Unwrapper).Unwrap().(*stub)
}

// heard returns what was told since the last call: names changed, and removed.
func (w *world) heard() (changed, removed []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed, removed = w.changed, w.removed
	w.changed, w.removed, w.builds = nil, nil, nil
	return changed, removed
}

func file(t *testing.T, text string) *config.File {
	t.Helper()
	f, err := config.Parse("providers.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const two = "providers:\n- {name: a, kind: local}\n- {name: b, kind: local}\n"

func TestOneBrokenProviderLeavesTheOthersWorking(t *testing.T) {
	for name, broken := range map[string]error{
		"error": fault.New(fault.Permanent, "no such key file"),
		"panic": fault.New(fault.Permanent, "panic"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.broken["a"] = broken
			w.reg.Apply(file(t, two))
			if _, err := w.reg.Lookup("b"); err != nil {
				t.Errorf("the good provider: %v", err)
			}
			_, err := w.reg.Lookup("a")
			if fault.Of(err) != fault.Unavailable {
				t.Errorf("the broken provider: %v (%s), want Unavailable: it is configured, so it must not look unknown", err, fault.Of(err))
			}
			if name == "error" && !strings.Contains(err.Error(), "no such key file") {
				t.Errorf("the reason is lost: %v", err)
			}
		})
	}
}

func TestUnknownProviderIsNotFoundAndNamesTheOthers(t *testing.T) {
	w := newWorld()
	w.reg.Apply(file(t, two))
	_, err := w.reg.Lookup("c")
	if fault.Of(err) != fault.NotFound || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("got %v (%s)", err, fault.Of(err))
	}
}

func TestApplyBuildsOnlyWhatChanged(t *testing.T) {
	w := newWorld()
	w.reg.Apply(file(t, two))
	a, b, epoch := w.built["a"], w.built["b"], w.reg.Epoch("a")
	w.builds, w.changed = nil, nil

	w.reg.Apply(file(t, "providers:\n- {name: a, kind: local}\n- {name: b, kind: local, local: {x: 1}}\n- {name: c, kind: local}\n"))
	if diff := cmp.Diff([]string{"b", "c"}, w.builds); diff != "" {
		t.Errorf("built (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"b", "c"}, w.changed); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if w.inForce(t, "a") != a || w.reg.Epoch("a") != epoch || a.closed {
		t.Error("an unchanged provider did not go on untouched")
	}
	if !b.closed {
		t.Error("a replaced provider was not closed")
	}

	w.changed = nil
	w.reg.Close()
	if !a.closed || !w.built["b"].closed || !w.built["c"].closed {
		t.Error("closing left a provider open")
	}
	if len(w.reg.Names()) != 0 {
		t.Errorf("names after Close: %v", w.reg.Names())
	}
}

func TestABrokenProviderIsTriedAgainAndHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.broken["a"] = fault.New(fault.Transient, "disk away")
		w.reg.Apply(file(t, two))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.reg.Run(ctx) }()

		w.mu.Lock()
		w.changed = nil
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		tries := 0
		w.mu.Lock()
		for _, b := range w.builds {
			if b == "a" {
				tries++
			}
		}
		if tries < 3 || tries > 12 {
			t.Errorf("%d tries in 10 s: want some, with growing pauses", tries)
		}
		delete(w.broken, "a")
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, err := w.reg.Lookup("a"); err != nil {
			t.Errorf("not healed: %v", err)
		}
		if diff := cmp.Diff([]string{"a"}, w.changed); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
