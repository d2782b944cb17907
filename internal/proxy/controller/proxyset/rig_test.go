package proxyset_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/crd"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/controller/proxyset"
	"fleetdesk/internal/testkit/kube"
)

var cluster = kube.Shared(kube.Options{CRDs: crd.Bases})

func TestMain(m *testing.M) {
	ctrl.SetLogger(obs.Logr(slog.New(slog.DiscardHandler)))
	// An operator that is killed while its cache takes an event in leaves this
	// one behind: client-go's filter goes on offering the event.
	left := goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop")
	goleak.VerifyTestMain(cluster.Around(m), left)
}

// rig is a namespace of a real API server, a desk of a few words, and a clock.
// Operators are started on it.
type rig struct {
	t      *testing.T
	ns     string
	client client.WithWatch // uncached
	// wrapped puts something around the client of operators started from now on.
	wrapped func(client.Client) client.Client
	// also adds something to their managers.
	also func(context.Context, ctrl.Manager) error

	mu sync.Mutex
	// clock stands still at that time; zero: it runs.
	clock time.Time
	bans  []lease.BanCount
	// deskErr is what the desk answers instead.
	deskErr error
	held    map[string]bool
	asked   int
	// looks counts questions about bans.
	looks int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	cfg := cluster.Config(t)
	cfg.QPS = -1
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: kube.Scheme(t, v1alpha1.AddToScheme)})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, ns: cluster.Namespace(t), client: c}
}

func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clock.IsZero() {
		return time.Now()
	}
	return r.clock
}

func (r *rig) setClock(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock = at
}

func (r *rig) ban(bans ...lease.BanCount) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bans = bans
}

func (r *rig) askBans(_ context.Context, targets, _ int) (all []lease.BanCount, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks++
	for _, b := range r.bans {
		if b.Targets >= targets {
			all = append(all, b)
		}
	}
	return all, r.deskErr
}

func (r *rig) askHolds(_ context.Context, keys []string) (map[string]bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	held := map[string]bool{}
	for _, k := range keys {
		held[k] = r.held[k]
	}
	return held, r.deskErr
}

// operator is one running controller.
type operator struct {
	reconciler *proxyset.Reconciler
	metrics    *prometheus.Registry
	// kill ends it in the middle of whatever it does.
	kill func()
}

func (r *rig) operator() *operator {
	r.t.Helper()
	skip, grace := true, 5*time.Second
	mgr, err := ctrl.NewManager(cluster.Config(r.t), ctrl.Options{
		Scheme: kube.Scheme(r.t, v1alpha1.AddToScheme), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache:                   cache.Options{DefaultNamespaces: map[string]cache.Config{r.ns: {}}},
		Controller:              ctrlconfig.Controller{SkipNameValidation: &skip},
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	c := mgr.GetClient()
	if r.wrapped != nil {
		c = r.wrapped(c)
	}
	op := &operator{metrics: prometheus.NewRegistry()}
	op.reconciler, err = proxyset.New(proxyset.Options{
		Client: c, Reader: mgr.GetAPIReader(), Bans: r.askBans, Holds: r.askHolds,
		Events: mgr.GetEventRecorder("proxy-operator"), Now: r.now, Metrics: op.metrics, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if r.also != nil {
		if err := r.also(ctx, mgr); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := errors.Join(proxyset.Index(ctx, mgr.GetFieldIndexer()), op.reconciler.SetupWithManager(mgr)); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	op.kill = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("manager: %v", err)
		}
	})
	r.t.Cleanup(op.kill)
	return op
}

// wake has the set looked at, as the passing of time would.
func (r *rig) wake(op *operator, name string) {
	op.reconciler.Wake(types.NamespacedName{Namespace: r.ns, Name: name})
}

// passes lets that much time pass and waits until the set, the rig's only one,
// was looked at.
func (r *rig) passes(op *operator, name string, d time.Duration) {
	r.t.Helper()
	looks := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.looks
	}
	// It asks anew what is banned each time it looks a minute later; when it
	// does so for the second time, the first look has ended.
	for at, i := r.now().Add(d), 0; i < 2; i++ {
		before := looks()
		r.setClock(at.Add(time.Duration(i) * time.Minute))
		r.wake(op, name)
		kube.Until(r.t, "the set being looked at", func() string {
			if looks() == before {
				return "not yet"
			}
			return ""
		})
	}
}

// set is a ProxySet of that many, changed.
func (r *rig) set(name string, replicas int32, change ...func(*v1alpha1.ProxySet)) *v1alpha1.ProxySet {
	s := &v1alpha1.ProxySet{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name},
		Spec: v1alpha1.ProxySetSpec{
			Replicas: &replicas,
			Selector: v1alpha1.SetSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": v1alpha1.LabelValue(name)}},
			Template: v1alpha1.ProxyTemplate{
				Metadata: v1alpha1.ProxyTemplateMeta{Labels: map[string]v1alpha1.LabelValue{"app": v1alpha1.LabelValue(name)}},
				Spec:     v1alpha1.ProxySpec{Provider: "home"},
			},
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func within(unavailable, surge string) func(*v1alpha1.ProxySet) {
	return func(s *v1alpha1.ProxySet) {
		s.Spec.Update = v1alpha1.ProxySetUpdate{MaxUnavailable: new(intstr.Parse(unavailable)), MaxSurge: new(intstr.Parse(surge))}
	}
}

func (r *rig) create(o client.Object) {
	r.t.Helper()
	o.SetNamespace(r.ns)
	if err := r.client.Create(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) get(name string) *v1alpha1.ProxySet {
	r.t.Helper()
	s := &v1alpha1.ProxySet{}
	if err := r.client.Get(r.t.Context(), types.NamespacedName{Namespace: r.ns, Name: name}, s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// change changes a set's spec; somebody else may write meanwhile.
func (r *rig) change(name string, change func(*v1alpha1.ProxySet)) {
	r.t.Helper()
	kube.Until(r.t, "changing set "+name, func() string {
		s := r.get(name)
		change(s)
		switch err := r.client.Update(r.t.Context(), s); {
		case apierrors.IsConflict(err):
			return err.Error()
		case err != nil:
			r.t.Fatal(err)
		}
		return ""
	})
}

// proxies are those of the namespace by name.
func (r *rig) proxies() map[string]*v1alpha1.Proxy {
	r.t.Helper()
	var list v1alpha1.ProxyList
	if err := r.client.List(r.t.Context(), &list, client.InNamespace(r.ns)); err != nil {
		r.t.Fatal(err)
	}
	all := map[string]*v1alpha1.Proxy{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all
}

// shows waits until a set says so, of its present spec.
func (r *rig) shows(name, reason, message string, counts ...int32) *v1alpha1.ProxySet {
	r.t.Helper()
	var s *v1alpha1.ProxySet
	kube.Until(r.t, fmt.Sprintf("set %s showing %s %v", name, reason, counts), func() string {
		s = r.get(name)
		c := apimeta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionSettled)
		st := &s.Status
		got := []int32{st.Replicas, st.ReadyReplicas, st.UpdatedReplicas, st.BannedReplicas, st.TerminatingReplicas}
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, message) || c.ObservedGeneration != s.Generation ||
			(c.Status == metav1.ConditionTrue) != (reason == v1alpha1.ReasonSettled) {
			return fmt.Sprintf("%+v", *st)
		}
		for i, n := range counts {
			if got[i] != n {
				return fmt.Sprintf("%+v", *st)
			}
		}
		return ""
	})
	return s
}

// events are the notes of a set's Events of that reason.
func (r *rig) events(set, reason string) (notes []string) {
	r.t.Helper()
	var list eventsv1.EventList
	if err := r.client.List(r.t.Context(), &list, client.InNamespace(r.ns)); err != nil {
		r.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "ProxySet" && e.Regarding.Name == set && e.Reason == reason {
			notes = append(notes, e.Note)
		}
	}
	return notes
}

// machines plays the controller of Proxies and a provider: it makes Proxies
// work, and lets deleted ones go, each a moment later.
type machines struct {
	r      *rig
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// pause is how long making and removing take.
	pause time.Duration
	// away: nothing is made or removed, and new Proxies say so.
	away bool
	// sees maps a Proxy to its host and exit IP; nil for one each.
	sees func(px *v1alpha1.Proxy) (host, exitIP string)
	// stays holds deleted Proxies back.
	stays bool
	again chan struct{}
}

func (r *rig) machines() *machines {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m := &machines{r: r, cancel: cancel, pause: 20 * time.Millisecond, again: make(chan struct{})}
	m.wg.Go(func() { m.run(ctx) })
	r.t.Cleanup(func() { cancel(); m.wg.Wait() })
	return m
}

// set changes what the machines do, and has them look at all Proxies again.
func (m *machines) set(change func()) {
	m.mu.Lock()
	change()
	close(m.again)
	m.again = make(chan struct{})
	m.mu.Unlock()
}

func (m *machines) run(ctx context.Context) {
	for ctx.Err() == nil {
		m.mu.Lock()
		again := m.again
		m.mu.Unlock()
		var list v1alpha1.ProxyList
		if err := m.r.client.List(ctx, &list, client.InNamespace(m.r.ns)); err != nil {
			continue
		}
		for i := range list.Items {
			m.take(ctx, &list.Items[i])
		}
		w, err := m.r.client.Watch(ctx, &v1alpha1.ProxyList{}, client.InNamespace(m.r.ns), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
		if err != nil {
			continue
		}
		m.watch(ctx, w, again)
		w.Stop()
		for range w.ResultChan() { // what is left of it
		}
	}
}

func (m *machines) watch(ctx context.Context, w watch.Interface, again <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
			return
		case e, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if px, is := e.Object.(*v1alpha1.Proxy); is && e.Type != watch.Deleted {
				m.take(ctx, px)
			}
		}
	}
}

// take sees to one Proxy, after the pause.
func (m *machines) take(ctx context.Context, px *v1alpha1.Proxy) {
	m.mu.Lock()
	pause, away, sees, stays := m.pause, m.away, m.sees, m.stays
	m.mu.Unlock()
	leaves := !px.DeletionTimestamp.IsZero()
	if leaves && (away || stays || len(px.Finalizers) == 0) || !leaves && (px.Status.Phase != "" && (away || px.Status.Phase != v1alpha1.PhaseProvisioning)) {
		return
	}
	m.wg.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		px := px.DeepCopy()
		if leaves {
			px.Finalizers = nil
			_ = m.r.client.Update(ctx, px) // a conflict comes back as an event
			return
		}
		if len(px.Finalizers) == 0 {
			px.Finalizers = []string{v1alpha1.Finalizer}
			_ = m.r.client.Update(ctx, px)
			return
		}
		host, exitIP := "h-"+px.Name, ""
		if sees != nil {
			host, exitIP = sees(px)
		}
		if away {
			say(px, v1alpha1.PhaseProvisioning, v1alpha1.ReasonUnavailable, "the provider does not answer")
		} else {
			px.Status.Host, px.Status.Address, px.Status.Port, px.Status.ExitIP = host, "192.0.2.10", 3128, exitIP
			say(px, v1alpha1.PhaseReady, v1alpha1.ReasonReady, "the proxy works")
		}
		_ = m.r.client.Status().Update(ctx, px)
	})
}

// say writes phase and conditions as the controller of Proxies does.
func say(px *v1alpha1.Proxy, phase v1alpha1.Phase, reason, message string) {
	px.Status.Phase = phase
	set := func(kind string, is bool, reason string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		apimeta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message})
	}
	set(v1alpha1.ConditionReady, phase == v1alpha1.PhaseReady, reason)
	switch phase {
	case v1alpha1.PhaseReady:
		set(v1alpha1.ConditionProvisioned, true, v1alpha1.ReasonProvisioned)
		set(v1alpha1.ConditionHealthy, true, v1alpha1.ReasonProbePassed)
	case v1alpha1.PhaseUnhealthy:
		set(v1alpha1.ConditionProvisioned, true, v1alpha1.ReasonProvisioned)
		set(v1alpha1.ConditionHealthy, false, reason)
	default:
		set(v1alpha1.ConditionProvisioned, false, reason)
	}
}
