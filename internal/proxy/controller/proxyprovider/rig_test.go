package proxyprovider_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/crd"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/controller/proxyprovider"
	"fleetdesk/internal/proxy/monitor"
	"fleetdesk/internal/proxy/sweep"
	"fleetdesk/internal/testkit/kube"
)

var cluster = kube.Shared(kube.Options{CRDs: crd.Bases})

func TestMain(m *testing.M) {
	ctrl.SetLogger(obs.Logr(slog.New(slog.DiscardHandler)))
	goleak.VerifyTestMain(cluster.Around(m))
}

// world is what the operator knows of its providers, and what it was told.
type world struct {
	mu     sync.Mutex
	states []proxyprovider.State
	checks map[string]monitor.Report
	sweeps map[string]sweep.Report
	asked  []string
	events []string
}

func (w *world) has(states ...proxyprovider.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states = states
}

func (w *world) checked(name string, r monitor.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checks[name] = r
}

func (w *world) swept(name string, r sweep.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweeps[name] = r
}

func (w *world) States() []proxyprovider.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.states)
}

func (w *world) Checks(name string) (monitor.Report, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, there := w.checks[name]
	return r, there
}

func (w *world) Sweeps(name string) (sweep.Report, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, there := w.sweeps[name]
	return r, there
}

func (w *world) Asked(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, name)
}

// Eventf implements events.EventRecorder.
func (w *world) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, kind+" "+reason+": "+fmt.Sprintf(note, args...))
}

// take returns what was told since the last call.
func (w *world) take() (events, asked []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events, asked = w.events, w.asked
	w.events, w.asked = nil, nil
	return events, asked
}

// rig is a provider's name of its own and a reconciler that is driven by hand:
// objects are cluster-wide, and the tests share one cluster.
type rig struct {
	*world
	t      *testing.T
	name   string
	client client.WithWatch // uncached
	rec    *proxyprovider.Reconciler
}

func newRig(t *testing.T) *rig {
	t.Helper()
	cfg := cluster.Config(t)
	cfg.QPS = -1
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: kube.Scheme(t, v1alpha1.AddToScheme)})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, name: cluster.Namespace(t), client: c, world: &world{checks: map[string]monitor.Report{}, sweeps: map[string]sweep.Report{}}}
	r.rec = r.over(c)
	r.has(proxyprovider.State{Name: r.name, Kind: "fake"})
	return r
}

// over returns another reconciler over the same world.
func (r *rig) over(c client.Client) *proxyprovider.Reconciler {
	return proxyprovider.New(proxyprovider.Options{
		Installation: r.name, Client: c, Reader: c, States: r.States, Checks: r.Checks, Sweeps: r.Sweeps, Asked: r.Asked, Events: r.world,
	})
}

func (r *rig) try(rec *proxyprovider.Reconciler) (ctrl.Result, error) {
	return rec.Reconcile(r.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: r.name}})
}

// reconcile runs one reconcile.
func (r *rig) reconcile() ctrl.Result {
	r.t.Helper()
	out, err := r.try(r.rec)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// get returns the object, nil when there is none.
func (r *rig) get() *v1alpha1.ProxyProvider {
	r.t.Helper()
	o := &v1alpha1.ProxyProvider{}
	err := r.client.Get(r.t.Context(), types.NamespacedName{Name: r.name}, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range o.Status.Conditions {
		if !slices.Contains(v1alpha1.Reasons(), c.Reason) {
			r.t.Errorf("condition %s has reason %q, which is not in the closed list", c.Type, c.Reason)
		}
	}
	return o
}

// there is get for an object that must be there.
func (r *rig) there() *v1alpha1.ProxyProvider {
	r.t.Helper()
	o := r.get()
	if o == nil {
		r.t.Fatalf("there is no ProxyProvider %s", r.name)
	}
	return o
}

func condition(o *v1alpha1.ProxyProvider, kind string) metav1.Condition {
	if c := apimeta.FindStatusCondition(o.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// annotate is kubectl annotate --overwrite.
func (r *rig) annotate(key, value string) {
	r.t.Helper()
	o := r.there()
	base := o.DeepCopy()
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[key] = value
	if err := r.client.Patch(r.t.Context(), o, client.MergeFrom(base)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) delete() {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), r.there()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) abandon(n int) {
	r.t.Helper()
	if err := r.rec.Abandon(r.t.Context(), r.name, instance(n)); err != nil {
		r.t.Fatal(err)
	}
}

func instance(n int) v1alpha1.AbandonedInstance {
	return v1alpha1.AbandonedInstance{
		UID: uid(n), Proxy: fmt.Sprintf("crawl/p-%d", n), ProviderID: fmt.Sprintf("fake://box-1/p-%d", n), Host: "box-1",
		Reason: "skip-cleanup", Time: metav1.Now(),
	}
}

func uid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func (r *rig) proxy(name string) *v1alpha1.Proxy {
	r.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: r.name, Name: name}, Spec: v1alpha1.ProxySpec{Provider: r.name}}
	if err := r.client.Create(r.t.Context(), px); err != nil {
		r.t.Fatal(err)
	}
	return px
}

// page is what a sweep would read, without what other providers have: the tests
// share one cluster.
func (r *rig) page() sweep.Page {
	r.t.Helper()
	p, err := r.rec.Page(context.Background(), r.name)
	if err != nil {
		r.t.Fatal(err)
	}
	p.Elsewhere = nil
	return p
}
