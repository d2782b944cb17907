package operator_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/operator"
)

// page is what the object of a provider says, in a few words.
func page(t *testing.T, c kubeclient.Client, name string) string {
	t.Helper()
	p := &v1alpha1.ProxyProvider{}
	err := c.Get(t.Context(), types.NamespacedName{Name: name}, p)
	if apierrors.IsNotFound(err) {
		return "none"
	}
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, kind := range []string{v1alpha1.ConditionConfigured, v1alpha1.ConditionReachable} {
		if c := apimeta.FindStatusCondition(p.Status.Conditions, kind); c != nil {
			out = append(out, fmt.Sprintf("%s=%s/%s", kind, c.Status, c.Reason))
		}
	}
	return strings.Join(out, " ")
}

// providersFile is a file with local providers, each with a folder of its own.
type providersFile struct {
	t    *testing.T
	path string
	dir  string
}

func newProvidersFile(t *testing.T, names ...string) *providersFile {
	f := &providersFile{t: t, dir: t.TempDir()}
	f.path = filepath.Join(f.dir, "providers.yaml")
	f.write(f.of(names...))
	return f
}

func (f *providersFile) of(names ...string) string {
	text := "providers:\n"
	for _, name := range names {
		text += fmt.Sprintf("- {name: %s, kind: local, local: {stateDir: %q}}\n", name, filepath.Join(f.dir, name))
	}
	return text
}

func (f *providersFile) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// The providers file is edited while all runs, under the role that is shipped:
// a provider comes, the file is broken and mended, one section is broken, the
// provider goes. The other one's Proxy is Ready all the time.
func TestTheProvidersFileIsFollowed(t *testing.T) {
	cfg, c, ns := underRole(t), admin(t), cluster.Namespace(t)
	const first, second = "first-live", "second-live"
	file := newProvidersFile(t, first)
	op := start(t, cfg, options(t, func(o *operator.Options) {
		o.ProvidersConfig, o.CheckInterval, o.SweepInterval = file.path, time.Second, time.Second
	}))
	for name, of := range map[string]string{"a": first, "b": second} {
		if err := c.Create(t.Context(), proxy(ns, name, of)); err != nil {
			t.Fatal(err)
		}
	}
	becomesReady(t, c, ns, "a")
	shows := func(what, name, want string) {
		t.Helper()
		until(t, what, func() string {
			if got := page(t, c, name); !strings.HasPrefix(got, want) {
				return got
			}
			return ""
		})
		if px := get(t, c, ns, "a"); px.Status.Phase != v1alpha1.PhaseReady {
			t.Errorf("%s: the other provider's Proxy: %+v", what, px.Status)
		}
	}
	const well = "Configured=True/OK Reachable=True/OK"
	shows("the first one", first, well)

	file.write(file.of(first, second))
	b := becomesReady(t, c, ns, "b")
	shows("one that came", second, well)

	file.write("providers: [")
	shows("no YAML", second, "Configured=False/FileRefused Reachable=True/OK")
	shows("no YAML", first, "Configured=False/FileRefused Reachable=True/OK")
	file.write(file.of(first, first))
	shows("two of one name", first, "Configured=False/FileRefused Reachable=True/OK")
	file.write(file.of(first, second))
	shows("a mended file", second, well)

	file.write(file.of(first) + "- {name: " + second + ", kind: local, local: {stateDri: /x}}\n")
	shows("one bad section", second, "Configured=False/SectionRefused")
	shows("beside a bad section", first, well)
	file.write(file.of(first, second))
	shows("a mended section", second, well)
	if now := becomesReady(t, c, ns, "b"); now.Status.ProviderID != b.Status.ProviderID {
		t.Errorf("its machine was made again: %s, before %s", now.Status.ProviderID, b.Status.ProviderID)
	}

	file.write(file.of(first))
	shows("one that left, with a Proxy", second, "Configured=False/Removed")
	file.write(file.of(first, second))
	shows("one that came back", second, well)
	removed(t, c, ns, "b")
	file.write(file.of(first))
	shows("one that left, with nothing", second, "none")
	removed(t, c, ns, "a")
	if strings.Contains(op.logs.String(), "forbidden") {
		t.Errorf("the role lacks a right:\n%s", op.logs)
	}
}

// A Proxy that went without the operator (a cluster restored from a backup)
// leaves an orphan: it is removed after its grace, beside instances that are
// somebody's, and one that was abandoned.
func TestAnOrphanIsRemoved(t *testing.T) {
	cfg, c, ns := underRole(t), admin(t), cluster.Namespace(t)
	const name = "swept"
	file := newProvidersFile(t, name)
	o := options(t, func(o *operator.Options) {
		o.ProvidersConfig, o.SweepInterval, o.SweepGrace = file.path, time.Second, time.Second
	})
	op := start(t, cfg, o)
	names := []string{"kept-1", "kept-2", "kept-3", "abandoned", "orphan"}
	for _, px := range names {
		if err := c.Create(t.Context(), proxy(ns, px, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, px := range names {
		becomesReady(t, c, ns, px)
	}
	abandoned := get(t, c, ns, "abandoned")
	abandoned.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: "true"}
	if err := c.Update(t.Context(), abandoned); err != nil {
		t.Fatal(err)
	}
	removed(t, c, ns, "abandoned")
	op.stop()
	orphan := get(t, c, ns, "orphan")
	orphan.Finalizers = nil
	if err := c.Update(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	folders := func() (n int) {
		all, err := filepath.Glob(filepath.Join(file.dir, name, "[0-9a-f]*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := folders(); n != 5 {
		t.Fatalf("%d instances before the sweep", n)
	}
	op = start(t, cfg, o)
	provider := &v1alpha1.ProxyProvider{}
	until(t, "the orphan being gone and the report saying so", func() string {
		if err := c.Get(t.Context(), types.NamespacedName{Name: name}, provider); err != nil {
			return err.Error()
		}
		if s := provider.Status.Sweep; s == nil || s.Instances != 4 || s.Orphans != 0 || folders() != 4 {
			return fmt.Sprintf("%d instances, %+v", folders(), s)
		}
		return ""
	})
	if len(provider.Status.Abandoned) != 1 || provider.Status.Abandoned[0].UID != string(abandoned.UID) {
		t.Errorf("abandoned: %+v", provider.Status.Abandoned)
	}
	for _, px := range names[:3] {
		becomesReady(t, c, ns, px)
	}
	// A person names it, and it goes as well.
	provider.Annotations = map[string]string{v1alpha1.RemoveAbandonedAnnotation: string(abandoned.UID)}
	if err := c.Update(t.Context(), provider); err != nil {
		t.Fatal(err)
	}
	until(t, "the abandoned one being gone", func() string {
		if err := c.Get(t.Context(), types.NamespacedName{Name: name}, provider); err != nil {
			return err.Error()
		}
		if folders() != 3 || len(provider.Status.Abandoned) != 0 {
			return fmt.Sprintf("%d instances, %+v", folders(), provider.Status.Abandoned)
		}
		return ""
	})
	for _, px := range names[:3] {
		removed(t, c, ns, px)
	}
	op.stop()
	if err := c.Delete(context.Background(), provider); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if strings.Contains(op.logs.String(), "forbidden") {
		t.Errorf("the role lacks a right:\n%s", op.logs)
	}
}

// The default of the one flag follows the other.
func TestAShortCheckIntervalAloneStarts(t *testing.T) {
	op := start(t, cluster.Config(t), options(t, func(o *operator.Options) { o.CheckInterval = 12 * time.Second }))
	op.stop()
}
