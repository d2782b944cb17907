package registry_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// TestEdits are edits of the file while all runs, each from two.
func TestEdits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, text                    string
		built, changed, removed, closed []string
	}{
		"same":     {"nothing happens", two, nil, nil, nil, nil},
		"comments": {"inside an entry too", "# fleet\nproviders:\n- name: a # first\n  # local\n  kind: local\n- {name: b, kind: local}\n", nil, nil, nil, nil},
		"order":    {"taken out and put back elsewhere in one edit", "providers:\n- {name: b, kind: local}\n- {name: a, kind: local}\n", nil, nil, nil, nil},
		"added":    {"", two + "- {name: c, kind: local}\n", []string{"c"}, []string{"c"}, nil, nil},
		"changed":  {"that one alone", "providers:\n- {name: a, kind: local}\n- {name: b, kind: local, local: {x: 1}}\n", []string{"b"}, []string{"b"}, nil, []string{"b"}},
		"removed":  {"it is closed and forgotten", "providers:\n- {name: b, kind: local}\n", nil, []string{"a"}, []string{"a"}, []string{"a"}},
		"renamed":  {"that is another one", "providers:\n- {name: c, kind: local}\n- {name: b, kind: local}\n", []string{"c"}, []string{"a", "c"}, []string{"a"}, []string{"a"}},
		"refused":  {"an error in one section disables that provider, also when it worked before", "providers:\n- {name: a, kind: local, kvm: {}}\n- {name: b, kind: local}\n", nil, []string{"a"}, nil, []string{"a"}},
		"none":     {"", "providers: []\n", nil, []string{"a", "b"}, []string{"a", "b"}, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.reg.Apply(file(t, two))
			was := map[string]*stub{"a": w.built["a"], "b": w.built["b"]}
			w.heard()
			w.reg.Apply(file(t, tc.text))
			var closed []string
			for _, name := range []string{"a", "b"} {
				if was[name].closed {
					closed = append(closed, name)
				}
			}
			built := w.builds
			changed, removed := w.heard()
			for what, diff := range map[string]string{
				"built": cmp.Diff(tc.built, built), "changed": cmp.Diff(tc.changed, changed),
				"removed": cmp.Diff(tc.removed, removed), "closed": cmp.Diff(tc.closed, closed),
			} {
				if diff != "" {
					t.Errorf("%s: %s (-want +got):\n%s", tc.reason, what, diff)
				}
			}
		})
	}
}

func TestStates(t *testing.T) {
	w := newWorld()
	w.broken["b"] = fault.New(fault.Permanent, "no such key file")
	w.reg.Apply(file(t, "providers:\n- {name: c, kind: local, kvm: {}}\n- {name: b, kind: kvm}\n- {name: a, kind: local}\n"))
	refused := fault.New(fault.Invalid, "providers.yaml:3: no YAML")
	read := func() (lines []string) {
		for _, s := range w.reg.States() {
			line := s.Name + " " + s.Kind
			if s.Err != nil {
				line += " err: " + s.Err.Error()
			}
			if s.Refused != nil {
				line += " refused: " + s.Refused.Error()
			}
			lines = append(lines, line)
		}
		return lines
	}
	section := `c local err: providers.yaml:2: provider "c": unknown field "kvm": besides name and kind there is only the section "local"`
	plain := []string{"a local", "b kvm err: no such key file", section}
	all := []string{"a", "b", "c"}
	w.heard()
	for i, step := range []struct {
		refuse     error
		want, told []string
	}{
		{nil, plain, nil},
		{refused, []string{"a local refused: providers.yaml:3: no YAML", plain[1] + " refused: providers.yaml:3: no YAML", section + " refused: providers.yaml:3: no YAML"}, all},
		{nil, plain, all},
		{nil, plain, nil},
	} {
		w.reg.Refuse(step.refuse)
		if diff := cmp.Diff(step.want, read()); diff != "" {
			t.Errorf("step %d: states (-want +got):\n%s", i, diff)
		}
		if diff := cmp.Diff(step.told, w.refused); diff != "" {
			t.Errorf("step %d: told (-want +got):\n%s", i, diff)
		}
		w.refused = nil
		if changed, _ := w.heard(); changed != nil {
			t.Errorf("step %d: a refused file woke those that follow %q, of which nothing changed", i, changed)
		}
	}
	if w.inForce(t, "a").closed {
		t.Error("a refused file touched a provider")
	}
}

// A new file is a reason to try what is broken again, and an entry that moved
// says its error with the line where it is now.
func TestANewFileTriesBrokenProvidersAgain(t *testing.T) {
	w := newWorld()
	w.broken["a"] = fault.New(fault.Permanent, "no such key file")
	w.reg.Apply(file(t, two+"- {name: c, kind: local, kvm: {}}\n"))
	w.heard()
	w.reg.Apply(file(t, "# more\n"+two+"- {name: c, kind: local, kvm: {}}\n"))
	if changed, _ := w.heard(); !cmp.Equal(changed, []string{"c"}) {
		t.Errorf("told %q; want c, whose error names another line", changed)
	}
	if _, err := w.reg.Lookup("c"); !strings.Contains(err.Error(), "providers.yaml:5:") {
		t.Errorf("the error is of the line before: %v", err)
	}
	delete(w.broken, "a")
	w.reg.Apply(file(t, two))
	if changed, _ := w.heard(); !cmp.Equal(changed, []string{"a", "c"}) {
		t.Errorf("told %q; want a, which works now, and c, which left", changed)
	}
	w.inForce(t, "a")
}

// late is a provider as kvm is: its calls wait for the far side, and what they
// answer comes after it was closed, when its hosts are gone.
type late struct {
	provider.Provider
	began  chan string
	answer chan struct{}
	closed bool
}

func newLate() *late { return &late{began: make(chan string, 20), answer: make(chan struct{})} }

func (l *late) wait(method string) error {
	l.began <- method
	<-l.answer
	return fault.Errorf(fault.NotFound, "%s: no such machine", method)
}

func (l *late) Place(context.Context, provider.Spec) (string, error) {
	return "", l.wait("Place")
}

func (l *late) Create(context.Context, provider.Spec) (provider.Instance, error) {
	_ = l.wait("Create")
	return provider.Instance{ID: "made"}, nil
}

func (l *late) Get(context.Context, provider.Ref) (provider.Instance, error) {
	return provider.Instance{}, l.wait("Get")
}

func (l *late) Delete(context.Context, provider.Ref) (provider.State, error) {
	_ = l.wait("Delete")
	return provider.Abandoned, nil // the host is not in its configuration
}

func (l *late) ListByTag(context.Context, string) ([]provider.HostList, error) {
	_ = l.wait("ListByTag")
	return nil, nil
}

func (l *late) Check(context.Context) ([]provider.HostHealth, error) { return nil, l.wait("Check") }

func (l *late) Claim(context.Context, provider.Claim) ([]provider.HostClaims, error) {
	return nil, l.wait("Claim")
}

func (l *late) Leftovers(context.Context, string, []string) ([]provider.HostLeftovers, error) {
	return nil, l.wait("Leftovers")
}

func (l *late) RemoveLeftover(context.Context, string, provider.Leftover) error {
	return l.wait("RemoveLeftover")
}

func (l *late) Watch(_ context.Context, _ string, changed func(provider.Change)) error {
	changed(provider.Change{Host: "before"})
	err := l.wait("Watch")
	changed(provider.Change{Host: "after"})
	return err
}

func (l *late) Close() error { l.closed = true; return nil }

// calls makes every call that a provider has, by name.
func calls(t *testing.T, p provider.Provider) map[string]func() error {
	ctx := t.Context()
	checker, ok1 := provider.As[provider.Checker](p)
	claimer, ok2 := provider.As[provider.Claimer](p)
	cleaner, ok3 := provider.As[provider.Cleaner](p)
	if !ok1 || !ok2 || !ok3 {
		t.Fatal("an optional interface is lost")
	}
	return map[string]func() error{
		"Place":          func() error { _, err := p.Place(ctx, provider.Spec{}); return err },
		"Create":         func() error { _, err := p.Create(ctx, provider.Spec{}); return err },
		"Get":            func() error { _, err := p.Get(ctx, provider.Ref{}); return err },
		"Delete":         func() error { _, err := p.Delete(ctx, provider.Ref{}); return err },
		"ListByTag":      func() error { _, err := p.ListByTag(ctx, "i"); return err },
		"Check":          func() error { _, err := checker.Check(ctx); return err },
		"Claim":          func() error { _, err := claimer.Claim(ctx, provider.Claim{}); return err },
		"Leftovers":      func() error { _, err := cleaner.Leftovers(ctx, "i", nil); return err },
		"RemoveLeftover": func() error { return cleaner.RemoveLeftover(ctx, "i", provider.Leftover{}) },
	}
}

// A call that runs while its provider is replaced or taken out must not say
// that nothing is there: a Proxy would be made anew, or abandoned, on the word
// of a provider that has no hosts any more. Nor is a call begun on such a one.
func TestCallsThatOutliveTheirProviderAreTriedAgain(t *testing.T) {
	for name, next := range map[string]string{
		"replaced": "providers:\n- {name: a, kind: local, local: {x: 1}}\n",
		"removed":  "providers: []\n",
		"broken":   "providers:\n- {name: a, kind: local, kvm: {}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			l := newLate()
			w.instead = l
			w.reg.Apply(file(t, "providers:\n- {name: a, kind: local}\n"))
			w.instead = nil
			old, err := w.reg.Lookup("a")
			if err != nil {
				t.Fatal(err)
			}
			all := calls(t, old)
			var mu sync.Mutex
			answers := map[string]error{}
			var group sync.WaitGroup
			for name, call := range all {
				group.Go(func() {
					err := call()
					mu.Lock()
					defer mu.Unlock()
					answers[name] = err
				})
			}
			var told []string
			watcher, _ := provider.As[provider.Watcher](old)
			group.Go(func() { _ = watcher.Watch(t.Context(), "i", func(c provider.Change) { told = append(told, c.Host) }) })
			for range len(all) + 1 {
				<-l.began
			}
			w.reg.Apply(file(t, next))
			if !l.closed {
				t.Error("not closed")
			}
			close(l.answer)
			group.Wait()
			for name, call := range all {
				for when, err := range map[string]error{"in flight": answers[name], "after": call()} {
					if fault.Of(err) != fault.Unavailable || errors.Is(err, fault.NotFound) || !strings.Contains(err.Error(), name) {
						t.Errorf("%s %s: %v (%s); want Unavailable, with nothing of NotFound in it", name, when, err, fault.Of(err))
					}
				}
			}
			if len(l.began) > 0 {
				t.Errorf("%s was begun on a provider that was replaced", <-l.began)
			}
			if diff := cmp.Diff([]string{"before"}, told); diff != "" {
				t.Errorf("its watch told (-want +got):\n%s", diff)
			}
		})
	}
}

// While a provider is in force, answers pass as they are, and it has no more
// interfaces than it has.
func TestAProviderInForceAnswersForItself(t *testing.T) {
	w := newWorld()
	l := newLate()
	w.instead = l
	w.reg.Apply(file(t, "providers:\n- {name: a, kind: local}\n"))
	p, err := w.reg.Lookup("a")
	if err != nil {
		t.Fatal(err)
	}
	close(l.answer)
	for name, call := range calls(t, p) {
		want := fault.NotFound
		if name == "Create" || name == "Delete" || name == "ListByTag" {
			want = ""
		}
		if err := call(); fault.Of(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.instead = nil
	w.reg.Apply(file(t, two))
	p, err = w.reg.Lookup("b")
	if err != nil {
		t.Fatal(err)
	}
	_, watches := provider.As[provider.Watcher](p)
	_, checks := provider.As[provider.Checker](p)
	_, claims := provider.As[provider.Claimer](p)
	_, cleans := provider.As[provider.Cleaner](p)
	_, closes := provider.As[io.Closer](p)
	if watches || checks || claims || cleans || !closes {
		t.Errorf("watch %v, check %v, claim %v, clean %v, close %v; want close alone", watches, checks, claims, cleans, closes)
	}
}

// The one that leaves is closed when another one answers already, and one that
// hangs, fails or panics in Close holds nobody for ever.
func TestClosing(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		close  func() error
		limit  time.Duration
	}{
		"in order": {"", nil, 0},
		"fails":    {"the others go on", func() error { return errors.New("odd") }, 0},
		"panics":   {"the others go on", func() error { panic("odd") }, 0},
		"hangs":    {"the file comes into force in the end", nil, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				w := newWorld()
				w.reg.Apply(file(t, two))
				old, other := w.built["a"], w.built["b"]
				answered := make(chan *stub, 1)
				old.onClose = func() error {
					answered <- w.inForce(t, "a")
					if name == "hangs" {
						<-hang
						return nil
					}
					if tc.close != nil {
						return tc.close()
					}
					return nil
				}
				w.heard()
				began := time.Now()
				w.reg.Apply(file(t, "providers:\n- {name: a, kind: local, local: {x: 1}}\n"))
				if took := time.Since(began); took != tc.limit {
					t.Errorf("%s: it took %v, want %v", tc.reason, took, tc.limit)
				}
				if <-answered == old {
					t.Error("it was closed while it was still in force")
				}
				if !other.closed {
					t.Errorf("%s: the other was not closed", tc.reason)
				}
				if changed, removed := w.heard(); !cmp.Equal(changed, []string{"a", "b"}) || !cmp.Equal(removed, []string{"b"}) {
					t.Errorf("told changed %q, removed %q", changed, removed)
				}
				close(hang)
			})
		})
	}
}
