package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/controller/proxy"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/testkit/kube"
)

// bench is a reconciler whose Reconcile the tests call themselves, on a real
// API server that is read without a cache.
type bench struct {
	t          *testing.T
	client     client.Client
	providers  *providers
	listings   *listings
	ledger     *ledger
	heard      *heard
	options    proxy.Options
	reconciler *proxy.Reconciler
}

func newBench(t *testing.T, change ...func(*proxy.Options)) *bench {
	t.Helper()
	cfg := cluster.Config(t)
	cfg.QPS = -1
	c, err := client.New(cfg, client.Options{Scheme: kube.Scheme(t, v1alpha1.AddToScheme)})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		t: t, client: c, heard: &heard{of: map[string][]string{}},
		providers: &providers{of: map[string]provider.Provider{}, errs: map[string]error{}},
		listings:  &listings{down: map[string]error{}},
	}
	b.ledger = &ledger{client: c, of: map[string]v1alpha1.AbandonedInstance{}}
	b.options = proxy.Options{
		Client: c, Reader: c, Providers: b.providers, Inventory: b.listings, Prober: noProber{},
		Ledger: b.ledger, Installation: installation, Events: b.heard,
		HealthURL: func(string) string { return "" }, Workers: 64, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&b.options)
	}
	b.reconciler = proxy.New(b.options)
	return b
}

// doomed makes a Proxy with an instance, under deletion; the provider has its
// name.
func (b *bench) doomed(ns, name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	b.t.Helper()
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Finalizers: []string{v1alpha1.Finalizer}},
		Spec:       v1alpha1.ProxySpec{Provider: name},
	}
	px.Status.ProviderID, px.Status.Host = "fake://h1/"+name, "h1"
	for _, f := range change {
		f(px)
	}
	status := px.Status
	err := b.client.Create(b.t.Context(), px)
	if err == nil && (status.Host != "" || status.ProviderID != "") {
		px.Status = status
		err = b.client.Status().Update(b.t.Context(), px)
	}
	if err == nil {
		err = b.client.Delete(b.t.Context(), px)
	}
	if err != nil {
		b.t.Errorf("making %s: %v", name, err)
	}
	return px
}

func (b *bench) reconcile(px *v1alpha1.Proxy) (reconcile.Result, error) {
	return b.reconciler.Reconcile(b.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(px)})
}

// read returns the Proxy as it is stored, nil when it is gone.
func (b *bench) read(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	now := &v1alpha1.Proxy{}
	err := b.client.Get(b.t.Context(), client.ObjectKeyFromObject(px), now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		b.t.Error(err)
	}
	return now
}

// listings is an inventory that knows of no instance, and of hosts that are
// down, by provider.
type listings struct {
	mu   sync.Mutex
	down map[string]error
}

func (l *listings) Look(providerName, _, _ string) inventory.Sighting {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.down[providerName]; err != nil {
		return inventory.Sighting{Knowledge: inventory.HostDown, Err: err}
	}
	return inventory.Sighting{Knowledge: inventory.Absent}
}

func (*listings) Note(string, string, provider.Instance) {}
func (*listings) Drop(string, string, string)            {}
func (*listings) Recoveries(string) uint64               { return 0 }
func (*listings) Refresh(string)                         {}

type noProber struct{}

func (noProber) Watch(string, probe.Subject)         {}
func (noProber) Forget(string)                       {}
func (noProber) State(string) (probe.Snapshot, bool) { return probe.Snapshot{}, false }

// ledger keeps abandoned instances by UID, and sees to it that none is written
// down too late.
type ledger struct {
	client client.Client
	mu     sync.Mutex
	of     map[string]v1alpha1.AbandonedInstance
	writes int
	late   []string
	// fail is what a write is answered with.
	fail error
}

func (l *ledger) Abandon(ctx context.Context, _ string, a v1alpha1.AbandonedInstance) error {
	l.mu.Lock()
	fail := l.fail
	l.mu.Unlock()
	if fail != nil {
		return fail
	}
	ns, name, _ := strings.Cut(a.Proxy, "/")
	px := &v1alpha1.Proxy{}
	err := l.client.Get(ctx, types.NamespacedName{Namespace: ns, Name: name}, px)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || string(px.UID) != a.UID || !slices.Contains(px.Finalizers, v1alpha1.Finalizer) {
		l.late = append(l.late, fmt.Sprint(a.Proxy, " ", err))
	}
	l.writes++
	l.of[a.UID] = a
	return nil
}

func (l *ledger) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

func (l *ledger) get(px *v1alpha1.Proxy) (v1alpha1.AbandonedInstance, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.of[string(px.UID)]
	return a, ok
}

// heard keeps Events by the name of their object, as "Reason: note".
type heard struct {
	mu sync.Mutex
	of map[string][]string
}

func (h *heard) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := regarding.(client.Object).GetName()
	h.of[name] = append(h.of[name], reason+": "+fmt.Sprintf(note, args...))
}

func (h *heard) about(name, reason string) (notes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.of[name] {
		if note, ok := strings.CutPrefix(n, reason+": "); ok {
			notes = append(notes, note)
		}
	}
	return notes
}

// answers is a provider that answers Get and Delete by the test's word.
type answers struct {
	provider.Provider // nil: nothing else is called
	get, del          error
	state             provider.State

	mu            sync.Mutex
	gets, deletes int
}

func (a *answers) Get(_ context.Context, ref provider.Ref) (provider.Instance, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gets++
	if a.get != nil {
		return provider.Instance{}, a.get
	}
	return provider.Instance{ID: ref.ID, Owner: ref.Owner, Host: ref.Host, State: provider.Running}, nil
}

func (a *answers) Delete(context.Context, provider.Ref) (provider.State, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deletes++
	return a.state, a.del
}

func (a *answers) calls() (gets, deletes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gets, a.deletes
}

// failures are an error of every class by its name, and one that nobody classed.
func failures(where string) map[string]error {
	all := map[string]error{"unclassed": errors.New(where + " fails")}
	for _, m := range fault.Table() {
		all[string(m.Class)] = fault.New(m.Class, where+" fails")
	}
	return all
}

// classes are the names of failures, in the table's order.
func classes() (names []string) {
	for _, m := range fault.Table() {
		names = append(names, string(m.Class))
	}
	return append(names, "unclassed")
}

// annotateAs does what a kubectl annotate line in a message says. kubectl need
// not be there, so the line is taken to pieces.
func annotateAs(b *bench, px *v1alpha1.Proxy, message string) error {
	_, line, ok := strings.Cut(message, "run: kubectl ")
	if !ok {
		return errors.New("no line to run")
	}
	words := strings.Fields(line)
	if len(words) < 6 || words[0] != "-n" || words[2] != "annotate" || words[3] != "proxy" {
		return fmt.Errorf("%q is no line that annotates a Proxy", line)
	}
	name, value, _ := strings.Cut(words[5], "=")
	now := &v1alpha1.Proxy{}
	if err := b.client.Get(b.t.Context(), types.NamespacedName{Namespace: words[1], Name: words[4]}, now); err != nil {
		return err
	}
	if now.UID != px.UID {
		return errors.New("the line names another Proxy")
	}
	base := now.DeepCopy()
	if _, has := now.Annotations[name]; has {
		// kubectl refuses to change a value without --overwrite.
		if !slices.Contains(words, "--overwrite") {
			return fmt.Errorf("kubectl would refuse, since the annotation is there already: %q", line)
		}
	}
	if now.Annotations == nil {
		now.Annotations = map[string]string{}
	}
	now.Annotations[name] = value
	return b.client.Patch(b.t.Context(), now, client.MergeFrom(base))
}
