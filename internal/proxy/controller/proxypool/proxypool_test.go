package proxypool_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/crd"
	"fleetdesk/config/samples"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/controller/proxypool"
	"fleetdesk/internal/proxy/deskkeys"
	"fleetdesk/internal/testkit/kube"
)

var cluster = kube.Shared(kube.Options{CRDs: crd.Bases})

func TestMain(m *testing.M) {
	ctrl.SetLogger(obs.Logr(slog.New(slog.DiscardHandler)))
	goleak.VerifyTestMain(cluster.Around(m))
}

// rig is a namespace and a desk; replicas of the operator are started on both.
type rig struct {
	t      *testing.T
	ns     string
	client client.Client // uncached
	store  *leasetest.Memory
}

func newRig(t *testing.T) *rig {
	t.Helper()
	cfg := cluster.Config(t)
	cfg.QPS = -1
	c, err := client.New(cfg, client.Options{Scheme: kube.Scheme(t, v1alpha1.AddToScheme)})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, ns: cluster.Namespace(t), client: c, store: leasetest.NewMemory(leasetest.Options{})}
}

// replica is one operator, as far as rows and pools go.
type replica struct {
	keeper *deskkeys.Keeper
	desk   *service.Service
	// ended has the manager's error.
	ended   chan error
	stop    func()
	elected <-chan struct{}
}

// start starts a replica of the operator; only one of several leads.
func (r *rig) start() *replica {
	r.t.Helper()
	skip, grace := true, 5*time.Second
	soon, sooner, soonest := 4*time.Second, 3*time.Second, 500*time.Millisecond
	mgr, err := ctrl.NewManager(cluster.Config(r.t), ctrl.Options{
		Scheme: kube.Scheme(r.t, v1alpha1.AddToScheme), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache:                   cache.Options{DefaultNamespaces: map[string]cache.Config{r.ns: {}}},
		Controller:              ctrlconfig.Controller{SkipNameValidation: &skip},
		GracefulShutdownTimeout: &grace,
		LeaderElection:          true, LeaderElectionID: "proxy-operator", LeaderElectionNamespace: r.ns,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &soon, RenewDeadline: &sooner, RetryPeriod: &soonest,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	desk, err := service.New(service.Options{Store: r.store, Log: log})
	if err != nil {
		r.t.Fatal(err)
	}
	var pools *proxypool.Reconciler
	keeper, err := deskkeys.New(deskkeys.Options{
		Desk: desk, Cache: mgr.GetCache(), Owner: "test", Log: log,
		PoolChanged: func(name types.NamespacedName) { pools.Changed(name) },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	pools = proxypool.New(proxypool.Options{Client: mgr.GetClient(), Pool: keeper.Pool})
	ctx, cancel := context.WithCancel(context.Background())
	if err := errors.Join(keeper.Follow(ctx, mgr.GetCache()), pools.SetupWithManager(mgr), mgr.Add(manager.RunnableFunc(keeper.Run))); err != nil {
		r.t.Fatal(err)
	}
	rep := &replica{keeper: keeper, desk: desk, ended: make(chan error, 1), elected: mgr.Elected()}
	served := make(chan error, 1)
	serving, stopServing := context.WithCancel(context.Background())
	go func() { served <- desk.Run(serving) }()
	go func() { rep.ended <- mgr.Start(ctx); close(rep.ended) }()
	stopped := false
	rep.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range rep.ended { // what it ended with was read, or does not matter
		}
		stopServing()
		if err := <-served; err != nil {
			r.t.Errorf("service: %v", err)
		}
	}
	r.t.Cleanup(rep.stop)
	return rep
}

func (r *rig) leads(rep *replica) {
	r.t.Helper()
	select {
	case <-rep.elected:
	case <-time.After(kube.Patience):
		r.t.Fatal("it does not become leader")
	}
}

func (r *rig) create(o client.Object) {
	r.t.Helper()
	o.SetNamespace(r.ns)
	if err := r.client.Create(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
}

// proxy makes a Proxy and has it work, as its controller would.
func (r *rig) proxy(name string, ready bool, labels map[string]string) *v1alpha1.Proxy {
	r.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: v1alpha1.ProxySpec{Provider: "fake"}}
	r.create(px)
	r.works(px, ready)
	return px
}

func (r *rig) works(px *v1alpha1.Proxy, ready bool) {
	r.t.Helper()
	status, reason := metav1.ConditionTrue, v1alpha1.ReasonReady
	px.Status.Phase, px.Status.Address, px.Status.Port = v1alpha1.PhaseReady, "192.0.2.10", 3128
	if !ready {
		status, reason, px.Status.Phase = metav1.ConditionFalse, v1alpha1.ReasonProbeFailed, v1alpha1.PhaseUnhealthy
	}
	apimeta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: "as the test says"})
	if err := r.client.Status().Update(r.t.Context(), px); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) pool(name string) *v1alpha1.ProxyPool {
	r.t.Helper()
	p := &v1alpha1.ProxyPool{}
	if err := r.client.Get(r.t.Context(), types.NamespacedName{Namespace: r.ns, Name: name}, p); err != nil {
		r.t.Fatal(err)
	}
	for _, c := range p.Status.Conditions {
		if !slices.Contains(v1alpha1.Reasons(), c.Reason) {
			r.t.Errorf("condition %s has reason %q, which is not in the closed list", c.Type, c.Reason)
		}
	}
	return p
}

// shows waits until a pool's status says so.
func (r *rig) shows(name string, proxies, ready int32, status metav1.ConditionStatus, reason, message string) {
	r.t.Helper()
	kube.Until(r.t, fmt.Sprintf("pool %s showing %d/%d %s", name, ready, proxies, reason), func() string {
		p := r.pool(name)
		c := apimeta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) ||
			p.Status.Proxies != proxies || p.Status.Ready != ready || c.ObservedGeneration != p.Generation {
			return fmt.Sprintf("generation %d, %+v", p.Generation, p.Status)
		}
		return ""
	})
}

// rows are the keys of the desk's pools of this namespace, with a star when
// they may be handed out.
func (r *rig) rows() map[string][]string {
	r.t.Helper()
	all := map[string][]string{}
	pools, err := r.store.Pools(r.t.Context(), "", 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range pools {
		keys, err := r.store.Keys(r.t.Context(), p.Name, "", 1000)
		if err != nil {
			r.t.Fatal(err)
		}
		names := []string{}
		for _, k := range keys.Keys {
			name := strings.TrimPrefix(k.Name, r.ns+".")
			if k.Unfit == "" {
				name += "*"
			}
			names = append(names, name)
		}
		all[strings.TrimPrefix(p.Name, r.ns+".")] = names
	}
	return all
}

func (r *rig) rowsBecome(what string, want map[string][]string) {
	r.t.Helper()
	kube.Until(r.t, what, func() string { return cmp.Diff(want, r.rows()) })
}

func TestRowsAndStatusFollowProxiesAndPools(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leads(r.start())
	a := r.proxy("a", true, map[string]string{"tier": "home"})
	r.proxy("b", false, nil)
	r.rowsBecome("two Proxies and the pool default", map[string][]string{"default": {"a*", "b"}})

	home := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Name: "home"}, Spec: v1alpha1.ProxyPoolSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "home"}},
	}}
	r.create(home)
	r.rowsBecome("a pool that selects", map[string][]string{"default": {"a*", "b"}, "home": {"a*"}})
	r.shows("home", 1, 1, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "as pool "+r.ns+".home")

	r.works(a, false)
	r.rowsBecome("an unhealthy one", map[string][]string{"default": {"a", "b"}, "home": {"a"}})
	r.shows("home", 1, 0, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	if keys, err := r.store.Key(t.Context(), r.ns+".a"); err != nil || keys.Keys[0].Unfit != "Unhealthy (ProbeFailed): as the test says" {
		t.Errorf("%+v %v", keys, err)
	}

	home = r.pool("home")
	home.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Near"}}}
	home.Spec.Cooldown = "7s"
	if err := r.client.Update(t.Context(), home); err != nil {
		t.Fatal(err)
	}
	r.shows("home", 0, 0, metav1.ConditionFalse, v1alpha1.ReasonInvalidSelector, "Near")
	r.rowsBecome("a selector that cannot be read", map[string][]string{"default": {"a", "b"}, "home": {}})
	if p, err := r.store.Pool(t.Context(), r.ns+".home"); err != nil || p.Cooldown != 7*time.Second {
		t.Errorf("the rest of the spec applies: %+v %v", p, err)
	}

	if err := errors.Join(r.client.Delete(t.Context(), r.pool("home")), r.client.Delete(t.Context(), a)); err != nil {
		t.Fatal(err)
	}
	r.rowsBecome("a pool and a Proxy that are gone", map[string][]string{"default": {"b"}})
	r.create(&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.ProxyPoolSpec{LeaseTime: v1alpha1.LeaseTime{Max: "1m"}}})
	r.shows("default", 1, 0, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	if p, err := r.store.Pool(t.Context(), r.ns+".default"); err != nil || p.MaxTTL != time.Minute || p.TTL != time.Minute {
		t.Errorf("an object sets the times of default: %+v %v", p, err)
	}
}

// What is known of an earlier spec says nothing of the present one.
func TestTheStatusAnswersThePresentSpecOnly(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		state  deskkeys.State
		status metav1.ConditionStatus
		want   string
		again  bool
	}{
		"stored":          {"", deskkeys.State{Generation: 2, Stored: true, Proxies: 3, Ready: 2}, "True", v1alpha1.ReasonAccepted, false},
		"earlier spec":    {"it was the earlier one that was stored", deskkeys.State{Generation: 1, Stored: true}, "Unknown", v1alpha1.ReasonPending, true},
		"earlier refusal": {"", deskkeys.State{Generation: 1, Err: fault.WithCode(fault.New(fault.Conflict, "taken"), "fixed")}, "Unknown", v1alpha1.ReasonPending, true},
		"not looked at":   {"", deskkeys.State{}, "Unknown", v1alpha1.ReasonPending, true},
		"no answer":       {"", deskkeys.State{Generation: 2, Err: fault.New(fault.Unavailable, "connection refused")}, "Unknown", v1alpha1.ReasonUnavailable, true},
		"taken":           {"a person has to act", deskkeys.State{Generation: 2, Err: fault.WithCode(fault.New(fault.Conflict, "taken"), "fixed")}, "False", v1alpha1.ReasonNameTaken, false},
		"refused":         {"a person has to act", deskkeys.State{Generation: 2, Err: fault.New(fault.Invalid, "the cooldown is odd")}, "False", v1alpha1.ReasonInvalid, false},
		"selector":        {"a person has to act", deskkeys.State{Generation: 2, Stored: true, Err: fault.WithCode(fault.New(fault.Invalid, "odd"), deskkeys.CodeSelector)}, "False", v1alpha1.ReasonInvalidSelector, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Generation: 2}}
			c := fake.NewClientBuilder().WithScheme(kube.Scheme(t, v1alpha1.AddToScheme)).WithObjects(o).WithStatusSubresource(o).Build()
			r := proxypool.New(proxypool.Options{Client: c, Pool: func(types.NamespacedName) deskkeys.State { return tc.state }})
			out, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)})
			if err != nil || (out.RequeueAfter > 0) != tc.again {
				t.Errorf("%s: %+v %v", tc.reason, out, err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				t.Fatal(err)
			}
			got := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAccepted)
			if got == nil || got.Status != tc.status || got.Reason != tc.want || int(o.Status.Proxies) != tc.state.Proxies || int(o.Status.Ready) != tc.state.Ready {
				t.Errorf("%s: %+v, want %s %s", tc.reason, o.Status, tc.status, tc.want)
			}
			if answered := o.Status.ObservedGeneration == 2; answered != !tc.again {
				t.Errorf("%s: observed generation %d", tc.reason, o.Status.ObservedGeneration)
			}
		})
	}
}

func TestAPoolWhoseNameAPublishedListHas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	res, err := r.store.Do(t.Context(), []lease.Op{lease.Publish{Pool: lease.Pool{Name: r.ns + ".taken"}, Items: []string{"x"}}})
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
	r.leads(r.start())
	r.create(&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Name: "taken"}})
	r.shows("taken", 0, 0, metav1.ConditionFalse, v1alpha1.ReasonNameTaken, r.ns+".taken")
}

func TestAPoolSaysThatTheDeskDoesNotAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Outage(true)
	r.leads(r.start())
	r.create(&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	r.shows("p", 0, 0, metav1.ConditionUnknown, v1alpha1.ReasonUnavailable, "tried again")
	r.store.Outage(false)
	r.shows("p", 0, 0, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
}

// Leadership goes over: the next leader puts right what happened meanwhile, and
// one that another epoch overtook ends.
func TestLeadershipGoesOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.start()
	r.leads(first)
	a := r.proxy("a", true, nil)
	r.rowsBecome("the first leader's row", map[string][]string{"default": {"a*"}})
	second := r.start()
	// The lease of a holder outlives its leader.
	grant, err := second.desk.Take(t.Context(), service.TakeRequest{Account: "crawler", Pool: r.ns + ".default", TTL: time.Hour})
	if err != nil {
		t.Fatalf("a replica that does not lead hands out too: %v", err)
	}
	first.stop()
	r.works(a, false)
	r.proxy("b", true, nil)
	r.leads(second)
	r.rowsBecome("the second leader's rows", map[string][]string{"default": {"a", "b*"}})
	if l, err := second.desk.Lease(t.Context(), grant.ID); err != nil || l.State != lease.Held || !strings.Contains(l.Notice, "ProbeFailed") {
		t.Errorf("the lease: %+v %v", l, err)
	}

	// A third operator on this desk, outside of the election.
	res, err := second.desk.Do(t.Context(), lease.OpenEpoch{Owner: "another"})
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
	r.works(a, true)
	select {
	case err := <-second.ended:
		if fault.CodeOf(err) != "epoch" {
			t.Errorf("the manager ended with %v", err)
		}
	case <-time.After(kube.Patience):
		t.Fatal("an operator whose epoch is over goes on as leader")
	}
	if diff := cmp.Diff(map[string][]string{"default": {"a", "b*"}}, r.rows()); diff != "" {
		t.Errorf("it wrote (-want +got):\n%s", diff)
	}
}

// A pool shows how many addresses it leaves by, and says that it leaves out what
// leaks.
func TestAPoolShowsExitIPsAndWhatItRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leads(r.start())
	r.create(&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.ProxyPoolSpec{Leaks: v1alpha1.LeaksRefuse}})
	r.create(&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Name: "all"}})
	for name, leaks := range map[string]*[]string{"clean": {}, "clean-too": {}, "leaky": {"Via"}, "mum": nil} {
		px := r.proxy(name, true, nil)
		px.Status.Leaks, px.Status.ExitIP = leaks, "203.0.113.7"
		if name == "leaky" {
			px.Status.ExitIP = "203.0.113.8"
		}
		r.works(px, true)
	}
	r.shows("p", 2, 2, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "2 are left out")
	r.shows("all", 4, 4, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "as pool "+r.ns+".all")
	for name, want := range map[string]v1alpha1.ProxyPoolStatus{"p": {ExitIPs: 1, Refused: 2}, "all": {ExitIPs: 2}} {
		kube.Until(t, "the numbers of "+name, func() string {
			if st := r.pool(name).Status; st.ExitIPs != want.ExitIPs || st.Refused != want.Refused {
				return fmt.Sprintf("%+v", st)
			}
			return ""
		})
	}
	px := &v1alpha1.Proxy{}
	if err := r.client.Get(t.Context(), types.NamespacedName{Namespace: r.ns, Name: "clean"}, px); err != nil {
		t.Fatal(err)
	}
	if px.Status.Leaks == nil || len(*px.Status.Leaks) != 0 {
		t.Errorf("no leaks are another thing than none known: %v", px.Status.Leaks)
	}
}

func TestAdmissionRefusesBadPoolsAndNamesTheField(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.ProxyPool)
		want   string
	}{
		"default above max":  {"", func(p *v1alpha1.ProxyPool) { p.Spec.LeaseTime = v1alpha1.LeaseTime{Default: "2h", Max: "1h"} }, "default must not be above max"},
		"above the own max":  {"max is 24h unless it is said", func(p *v1alpha1.ProxyPool) { p.Spec.LeaseTime.Default = "25h" }, "between 5s and 24h"},
		"too short a lease":  {"holders could not renew in time", func(p *v1alpha1.ProxyPool) { p.Spec.LeaseTime.Max = "4s" }, "between 5s and 24h"},
		"not a time":         {"", func(p *v1alpha1.ProxyPool) { p.Spec.Cooldown = "soon" }, "spec.cooldown"},
		"negative":           {"", func(p *v1alpha1.ProxyPool) { p.Spec.Cooldown = "-5s" }, "spec.cooldown"},
		"too long a rest":    {"", func(p *v1alpha1.ProxyPool) { p.Spec.Cooldown = "721h" }, "at most 720h"},
		"more than fits":     {"no duration holds it", func(p *v1alpha1.ProxyPool) { p.Spec.Cooldown = "99999999999999999999h" }, "spec.cooldown"},
		"initial above max":  {"", func(p *v1alpha1.ProxyPool) { p.Spec.BanCooldown = v1alpha1.BanCooldown{Initial: "2h", Max: "1h"} }, "initial must not be above max"},
		"factor":             {"rests would grow without bound", func(p *v1alpha1.ProxyPool) { p.Spec.BanCooldown.Factor = 101 }, "spec.banCooldown.factor"},
		"negative factor":    {"", func(p *v1alpha1.ProxyPool) { p.Spec.BanCooldown.Factor = -1 }, "spec.banCooldown.factor"},
		"scope":              {"", func(p *v1alpha1.ProxyPool) { p.Spec.Scope = "subnet" }, "spec.scope"},
		"drain":              {"a deletion that hangs for days", func(p *v1alpha1.ProxyPool) { p.Spec.DrainTimeout = "25h" }, "at most 24h"},
		"in flight":          {"less than none", func(p *v1alpha1.ProxyPool) { p.Spec.InFlight = -1 }, "spec.inFlight"},
		"many in flight":     {"", func(p *v1alpha1.ProxyPool) { p.Spec.InFlight = 1001 }, "spec.inFlight"},
		"share below":        {"", func(p *v1alpha1.ProxyPool) { p.Spec.NewShare = new(int32(-1)) }, "spec.newShare"},
		"share above":        {"of a hundred picks", func(p *v1alpha1.ProxyPool) { p.Spec.NewShare = new(int32(101)) }, "spec.newShare"},
		"targets":            {"", func(p *v1alpha1.ProxyPool) { p.Spec.Targets = "Domain" }, "spec.targets"},
		"leaks":              {"", func(p *v1alpha1.ProxyPool) { p.Spec.Leaks = "refuse" }, "spec.leaks"},
		"default that picks": {"it has all Proxies", func(p *v1alpha1.ProxyPool) { p.Name = "default"; p.Spec.Selector = selecting("a", "b") }, "leave its selector out"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "bad"}}
			tc.change(p)
			err := r.client.Create(t.Context(), p)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want a refusal with %q", tc.reason, err, tc.want)
			}
		})
	}
}

func selecting(name, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{name: value}}
}

func TestAdmissionTakes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, spec := range map[string]v1alpha1.ProxyPoolSpec{
		"short-max":  {LeaseTime: v1alpha1.LeaseTime{Max: "5s"}},
		"no-bans":    {BanCooldown: v1alpha1.BanCooldown{Initial: "0s"}},
		"no-drain":   {DrainTimeout: "0s"},
		"default":    {Selector: &metav1.LabelSelector{}, Scope: v1alpha1.ScopeExitIP},
		"selects":    {Selector: selecting("a", "b")},
		"with.a.dot": {},
		"no-new":     {NewShare: new(int32(0)), InFlight: 1000, Targets: v1alpha1.TargetsBySite, Leaks: v1alpha1.LeaksRefuse},
	} {
		r.create(&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	}
}

// The pool default without an object is the same as an object that says
// nothing.
func TestTheImplicitPoolHasTheDefaultsOfAdmission(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leads(r.start())
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ProxyPool"))
	u.SetName("bare")
	r.create(u)
	want := v1alpha1.ProxyPoolSpec{
		LeaseTime: v1alpha1.LeaseTime{Max: "24h"}, Cooldown: "0s",
		BanCooldown: v1alpha1.BanCooldown{Initial: "10m", Factor: 2, Max: "24h"}, Scope: "key", DrainTimeout: "10m",
		NewShare: new(int32(10)), Targets: v1alpha1.TargetsByHost, Leaks: v1alpha1.LeaksAllow,
	}
	if diff := cmp.Diff(want, r.pool("bare").Spec); diff != "" {
		t.Errorf("filled in (-want +got):\n%s", diff)
	}
	r.shows("bare", 0, 0, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	named := func(name string) lease.Pool {
		p, err := r.store.Pool(t.Context(), r.ns+"."+name)
		if err != nil {
			t.Fatal(err)
		}
		p.Name = ""
		return p.Pool
	}
	if diff := cmp.Diff(named("default"), named("bare")); diff != "" {
		t.Errorf("(-implicit +object):\n%s", diff)
	}
}

// The samples are the files that people copy: each document applies, and its
// pool comes into force.
func TestSamplesApply(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leads(r.start())
	made := kube.Apply(t, r.client, r.ns, samples.Files, "proxypool_*.yaml")
	if slices.Sort(made); !slices.Equal(made, []string{"ProxyPool default", "ProxyPool home"}) {
		t.Errorf("made %v", made)
	}
	for _, name := range []string{"default", "home"} {
		r.shows(name, 0, 0, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	}
}
