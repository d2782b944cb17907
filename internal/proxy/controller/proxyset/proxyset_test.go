package proxyset_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/testkit/kube"
)

func names(all map[string]*v1alpha1.Proxy) []string { return slices.Sorted(maps.Keys(all)) }

func TestASetMakesAndKeepsItsProxies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.operator()
	r.machines()
	r.create(r.set("s", 3, func(s *v1alpha1.ProxySet) {
		s.Spec.Template.Metadata.Annotations = map[string]string{"note": "for all"}
		s.Spec.Template.Spec.Port = 8080
	}))
	r.shows("s", v1alpha1.ReasonSettled, "3 of 3 Ready", 3, 3, 3, 0, 0)
	made := r.proxies()
	for name, px := range made {
		owner := metav1.GetControllerOf(px)
		if owner == nil || owner.Kind != "ProxySet" || owner.Name != "s" || owner.UID != r.get("s").UID || *owner.BlockOwnerDeletion {
			t.Errorf("%s is owned by %+v", name, owner)
		}
		if px.Labels["app"] != "s" || px.Labels[v1alpha1.SetLabel] != "s" || px.Labels[v1alpha1.TemplateLabel] == "" || px.Annotations["note"] != "for all" || px.Spec.Port != 8080 {
			t.Errorf("%s is not as the template: %+v", name, px)
		}
		if tail, ok := strings.CutPrefix(name, "s-"); !ok || len(tail) != 10 || strings.ContainsAny(tail, "aeiouy013") {
			t.Errorf("name %s", name)
		}
	}
	kube.Until(t, "an event for each", func() string {
		if got := r.events("s", "Created"); len(got) != 3 || !strings.Contains(got[0], "it is one of the 3 wanted") {
			return strings.Join(got, "\n")
		}
		return ""
	})

	victim := names(made)[0]
	if err := r.client.Delete(t.Context(), made[victim]); err != nil {
		t.Fatal(err)
	}
	kube.Until(t, "one deletion by hand making one", func() string {
		now := r.proxies()
		if now[victim] != nil || len(now) != 3 {
			return fmt.Sprint(names(now))
		}
		return ""
	})
	r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0)
	if got := r.events("s", "Created"); len(got) != 4 {
		t.Errorf("made %d in all, want 4: %v", len(got), got)
	}
}

// Labels alone make no Proxy a set's own: it neither counts nor deletes what
// people made.
func TestNobodyElsesProxiesAreTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, labels := range map[string]map[string]string{
		"mine":   {"app": "s"},
		"strays": {"app": "s", v1alpha1.SetLabel: "s", v1alpha1.TemplateLabel: "0123456789"},
	} {
		r.create(&v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: v1alpha1.ProxySpec{Provider: "home"}})
	}
	r.operator()
	r.machines()
	r.create(r.set("s", 2))
	r.shows("s", v1alpha1.ReasonSettled, "", 2, 2, 2, 0, 0)
	kube.Until(t, "a word on the one that has our label", func() string {
		if got := r.events("s", "NotOwned"); len(got) != 1 || !strings.Contains(got[0], "1 Proxy has the label crawl.example.com/set=s") || !strings.Contains(got[0], "strays") {
			return fmt.Sprint(got)
		}
		return ""
	})
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(0)) })
	r.shows("s", v1alpha1.ReasonSettled, "", 0, 0, 0, 0, 0)
	if got := names(r.proxies()); !slices.Equal(got, []string{"mine", "strays"}) {
		t.Errorf("left are %v", got)
	}
}

// unwell has a Proxy fail its checks.
func (r *rig) unwell(px *v1alpha1.Proxy, reason string) {
	r.t.Helper()
	say(px, v1alpha1.PhaseUnhealthy, reason, "as the test says")
	if err := r.client.Status().Update(r.t.Context(), px); err != nil {
		r.t.Fatal(err)
	}
}

func TestWhoGoesWhenThereAreTooMany(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.held = map[string]bool{}
	r.operator()
	r.machines()
	r.create(r.set("s", 4))
	r.shows("s", v1alpha1.ReasonSettled, "", 4, 4, 4, 0, 0)
	made := r.proxies()
	all := names(made)
	r.unwell(made[all[1]], v1alpha1.ReasonProbeFailed)
	r.shows("s", v1alpha1.ReasonNotReady, all[1], 4, 3)
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(3)) })
	r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0)
	if got := r.proxies(); got[all[1]] != nil {
		t.Errorf("the one that did not work is there still, of %v there are %v", all, names(got))
	}
	r.mu.Lock()
	if r.asked != 0 {
		t.Error("the desk was asked who is held although that makes no difference")
	}
	for _, i := range []int{0, 3} {
		r.held[r.ns+"."+all[i]] = true
	}
	r.mu.Unlock()
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(2)) })
	r.shows("s", v1alpha1.ReasonSettled, "", 2, 2, 2, 0, 0)
	r.mu.Lock()
	if r.asked == 0 {
		t.Error("the desk was not asked who is held")
	}
	r.mu.Unlock()
	if got := names(r.proxies()); !slices.Equal(got, []string{all[0], all[3]}) {
		t.Errorf("held are %s and %s, and left are %v", all[0], all[3], got)
	}
	kube.Until(t, "events that say why", func() string {
		got := r.events("s", "Deleted")
		if len(got) != 2 || !strings.Contains(got[0], "there are more than the") {
			return strings.Join(got, "\n")
		}
		return ""
	})
}

// One that fails by itself is replaced, before long; one that fails for its
// provider never is.
func TestRepairs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	op := r.operator()
	r.machines()
	r.create(r.set("s", 4))
	r.shows("s", v1alpha1.ReasonSettled, "", 4, 4, 4, 0, 0)
	made := r.proxies()
	all := names(made)
	// Conditions have whole seconds: it worked, and then it did not.
	kube.Until(t, "a second to pass", func() string {
		if time.Since(made[all[0]].CreationTimestamp.Time) > 2*time.Second {
			return ""
		}
		return "not yet"
	})
	px := made[all[0]]
	say(px, v1alpha1.PhaseUnhealthy, v1alpha1.ReasonUnavailable, "its host does not answer")
	for i := range px.Status.Conditions {
		if c := &px.Status.Conditions[i]; c.Type == v1alpha1.ConditionProvisioned {
			c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonUnavailable
		}
	}
	if err := r.client.Status().Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.unwell(made[all[1]], v1alpha1.ReasonProbeFailed)
	r.shows("s", v1alpha1.ReasonNotReady, "2 do not work", 4, 2)
	r.passes(op, "s", 3*time.Minute)
	r.shows("s", v1alpha1.ReasonNotReady, "2 do not work", 4, 2)
	if got := r.proxies(); len(got) != 4 {
		t.Errorf("it was replaced too early: %v", names(got))
	}
	r.passes(op, "s", 3*time.Minute)
	kube.Until(t, "the one being replaced", func() string {
		got := r.proxies()
		if got[all[1]] != nil || len(got) != 4 {
			return fmt.Sprint(names(got))
		}
		return ""
	})
	r.shows("s", v1alpha1.ReasonNotReady, "1 does not work, "+all[0], 4, 3)
	kube.Until(t, "an event that says why", func() string {
		if got := r.events("s", "Deleted"); len(got) != 1 || !strings.Contains(got[0], "it has not worked for 5m0s or longer, and its provider does") {
			return strings.Join(got, "\n")
		}
		return ""
	})
	if got := replacements(t, op); got["unhealthy"] != 1 || len(got) != 4 {
		t.Errorf("metrics: %v", got)
	}
}

// replacements are the metric's values by cause.
func replacements(t *testing.T, op *operator) map[string]float64 {
	t.Helper()
	families, err := op.metrics.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "proxy_operator_proxyset_replacements_total" {
		t.Fatalf("%v %v", families, err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	return got
}

func ipBan(ip string, targets int) lease.BanCount {
	return lease.BanCount{Scope: lease.ScopeExitIP, ID: ip, Targets: targets}
}

// A Proxy whose exit IP is banned is replaced, as often in an hour as the set
// allows, also across restarts, and not again where that did not help.
func TestReplacedForBans(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	op := r.operator()
	m := r.machines()
	var serial, same atomic.Int64
	m.set(func() {
		m.sees = func(px *v1alpha1.Proxy) (string, string) {
			if same.Load() == 1 {
				return "h-" + px.Name, "192.0.2.1"
			}
			return "h-" + px.Name, fmt.Sprintf("192.0.2.%d", serial.Add(1))
		}
	})
	r.create(r.set("s", 3, func(s *v1alpha1.ProxySet) {
		s.Spec.Rotation = &v1alpha1.Rotation{ByBan: &v1alpha1.RotationByBan{Targets: 2, PerHour: 2}}
	}))
	r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0)
	by := func() map[string]string { // names by exit IP
		all := map[string]string{}
		for name, px := range r.proxies() {
			all[px.Status.ExitIP] = name
		}
		return all
	}
	before := by()
	var banned string
	for ip := range before {
		banned = ip
		break
	}
	ask := func() { // an answer about bans is used for a while
		r.setClock(r.now().Add(time.Minute))
		r.wake(op, "s")
	}
	r.setClock(time.Now().Truncate(time.Second))
	r.ban(ipBan(banned, 1))
	ask()
	if s := r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0); len(s.Status.Banned) != 0 {
		t.Errorf("one target is not two: %+v", s.Status.Banned)
	}
	r.ban(ipBan(banned, 2))
	ask()
	kube.Until(t, "the banned one being replaced", func() string {
		if now := by(); now[banned] != "" || len(now) != 3 {
			return fmt.Sprint(now)
		}
		return ""
	})
	s := r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0)
	if len(s.Status.Banned) != 1 || s.Status.Banned[0].Proxy != before[banned] || s.Status.Banned[0].ExitIP != banned {
		t.Errorf("decided: %+v", s.Status.Banned)
	}
	if got := replacements(t, op); got["ban"] != 1 {
		t.Errorf("metrics: %v", got)
	}

	// A key's own bans count as well, and a restart forgets neither the hour nor
	// what was decided.
	op.kill()
	op = r.operator()
	key := names(r.proxies())[0]
	r.ban(lease.BanCount{Scope: lease.ScopeKey, ID: r.ns + "." + key, Targets: 5})
	ask()
	kube.Until(t, "the other one being replaced", func() string {
		if now := r.proxies(); now[key] != nil || len(now) != 3 {
			return fmt.Sprint(names(now))
		}
		return ""
	})
	if s := r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0); len(s.Status.Banned) != 2 {
		t.Errorf("decided: %+v", s.Status.Banned)
	}
	third := names(r.proxies())[0]
	r.ban(lease.BanCount{Scope: lease.ScopeKey, ID: r.ns + "." + third, Targets: 5})
	ask()
	r.shows("s", v1alpha1.ReasonHeldBack, third+" is banned, and not replaced before", 3, 3, 3, 1, 0)

	// An hour on, what comes instead leaves by the same address: that is tried
	// once.
	r.setClock(r.now().Add(2 * time.Hour))
	ip := r.proxies()[third].Status.ExitIP
	r.ban(ipBan(ip, 5))
	m.set(func() {
		m.sees = func(px *v1alpha1.Proxy) (string, string) { return "h-" + px.Name, ip }
	})
	// The clock is ahead, and Proxies are made by the API server's: they must be
	// younger than the decision.
	op.kill() // first: it would write down again what is cleared
	r.setClock(time.Now().Truncate(time.Second).Add(-time.Second))
	r.clearDecided("s")
	op = r.operator()
	r.wake(op, "s")
	kube.Until(t, "it being replaced", func() string {
		if now := r.proxies(); now[third] != nil || len(now) != 3 {
			return fmt.Sprint(names(now))
		}
		return ""
	})
	r.shows("s", v1alpha1.ReasonHeldBack, "what came instead of Proxy "+third+" leaves by the same address, "+ip, 3, 3, 3, 1, 0)
}

// clearDecided forgets what was decided for bans, as time would.
func (r *rig) clearDecided(name string) {
	r.t.Helper()
	kube.Until(r.t, "forgetting decisions", func() string {
		s := r.get(name)
		s.Status.Banned = nil
		if err := r.client.Status().Update(r.t.Context(), s); err != nil {
			return err.Error()
		}
		return ""
	})
}

// lossy loses the answers of requests that were carried out, and refuses others.
type lossy struct {
	client.Client
	creates, deletes atomic.Int64
	refuse           atomic.Bool
	most             atomic.Int64 // of what a List returned
}

func (l *lossy) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if l.refuse.Load() {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "proxies"}, o.GetName(), errors.New("exceeded quota"))
	}
	err := l.Client.Create(ctx, o, opts...)
	if err == nil && l.creates.Add(-1) >= 0 {
		return context.DeadlineExceeded
	}
	return err
}

func (l *lossy) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	err := l.Client.Delete(ctx, o, opts...)
	if err == nil && l.deletes.Add(-1) >= 0 {
		return context.DeadlineExceeded
	}
	return err
}

func (l *lossy) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := l.Client.List(ctx, list, opts...)
	if all, ok := list.(*v1alpha1.ProxyList); ok {
		l.most.Store(max(l.most.Load(), int64(len(all.Items))))
	}
	return err
}

// A request whose answer is lost was carried out all the same, or not: neither
// makes one too many nor leaves too few.
func TestLostAnswersAndRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var l *lossy
	r.wrapped = func(c client.Client) client.Client { l = &lossy{Client: c}; return l }
	r.operator()
	r.machines()
	for i := range 20 {
		r.create(&v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("other-", i)}, Spec: v1alpha1.ProxySpec{Provider: "home"}})
	}
	check := r.check("s", 0, 7)
	l.creates.Store(3)
	r.create(r.set("s", 6, within("1", "1")))
	r.shows("s", v1alpha1.ReasonSettled, "", 6, 6, 6, 0, 0)
	check.bounds(5, 7)
	l.deletes.Store(3)
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Port = 8080 })
	r.shows("s", v1alpha1.ReasonSettled, "", 6, 6, 6, 0, 0)
	l.refuse.Store(true)
	check.bounds(5, 8)
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(7)) })
	r.shows("s", v1alpha1.ReasonHeldBack, "no Proxy can be made: ", 6, 6)
	r.shows("s", v1alpha1.ReasonHeldBack, "exceeded quota", 6, 6)
	l.refuse.Store(false)
	r.shows("s", v1alpha1.ReasonSettled, "", 7, 7, 7, 0, 0)
	check.end()
	if got := l.most.Load(); got > 8 {
		t.Errorf("a reconcile looked at %d Proxies: those of others in the namespace too", got)
	}
}

// A set made anew under the name of one that went without its Proxies leaves
// them alone.
func TestTheProxiesOfAnEarlierSetAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	op := r.operator()
	r.machines()
	r.create(r.set("s", 2))
	r.shows("s", v1alpha1.ReasonSettled, "", 2, 2, 2, 0, 0)
	before := names(r.proxies())
	op.kill()
	s := r.get("s")
	s.Finalizers = nil
	if err := errors.Join(r.client.Update(t.Context(), s), r.client.Delete(t.Context(), s)); err != nil {
		t.Fatal(err)
	}
	r.operator()
	r.create(r.set("s", 1))
	r.shows("s", v1alpha1.ReasonSettled, "", 1, 1, 1, 0, 0)
	kube.Until(t, "a word on them", func() string {
		if got := r.events("s", "NotOwned"); len(got) != 1 || !strings.Contains(got[0], "2 Proxies have the label") {
			return fmt.Sprint(got)
		}
		return ""
	})
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(0)) })
	r.shows("s", v1alpha1.ReasonSettled, "", 0, 0, 0, 0, 0)
	if got := names(r.proxies()); !slices.Equal(got, before) {
		t.Errorf("left are %v of %v", got, before)
	}
}

// A set goes after its Proxies, with no garbage collector to help, and says
// what it waits for.
func TestASetGoesAfterItsProxies(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy metav1.DeletionPropagation
		stays  bool
	}{
		"background": {metav1.DeletePropagationBackground, false},
		"foreground": {metav1.DeletePropagationForeground, false},
		"orphan":     {metav1.DeletePropagationOrphan, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.operator()
			m := r.machines()
			r.create(r.set("s", 3))
			r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0)
			before := names(r.proxies())
			m.set(func() { m.stays = true })
			if err := r.client.Delete(t.Context(), r.get("s"), client.PropagationPolicy(tc.policy)); err != nil {
				t.Fatal(err)
			}
			gone := func() string {
				err := r.client.Get(t.Context(), client.ObjectKey{Namespace: r.ns, Name: "s"}, &v1alpha1.ProxySet{})
				if !apierrors.IsNotFound(err) {
					return fmt.Sprint("still there: ", err)
				}
				return ""
			}
			if !tc.stays {
				s := r.shows("s", v1alpha1.ReasonTerminating, "its Proxies are being deleted: 3 are left, "+before[0]+" among them", 0, 0, 0, 0, 3)
				if !slices.Contains(s.Finalizers, v1alpha1.SetFinalizer) {
					t.Errorf("finalizers %v", s.Finalizers)
				}
				m.set(func() { m.stays = false })
				kube.Until(t, "the set going", gone)
				if left := names(r.proxies()); len(left) != 0 {
					t.Errorf("the set is gone before %v", left)
				}
				return
			}
			kube.Until(t, "the set going", gone)
			for name, px := range r.proxies() {
				if len(px.OwnerReferences) != 0 || !px.DeletionTimestamp.IsZero() {
					t.Errorf("%s: %+v", name, px.ObjectMeta)
				}
			}
			if left := names(r.proxies()); !slices.Equal(left, before) {
				t.Errorf("of %v there are %v", before, left)
			}
		})
	}
}

// A Proxy that lost our labels is the set's own all the same.
func TestLabelsTakenOffChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	op := r.operator()
	r.machines()
	r.create(r.set("s", 2))
	r.shows("s", v1alpha1.ReasonSettled, "", 2, 2, 2, 0, 0)
	op.kill()
	before := r.proxies()
	px := before[names(before)[0]]
	delete(px.Labels, v1alpha1.SetLabel)
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.operator()
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(3)) })
	r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0)
	if got := r.proxies(); len(got) != 3 || got[px.Name] == nil {
		t.Errorf("of %v there are %v", names(before), names(got))
	}
	if got := r.events("s", corev1.EventTypeWarning); len(got) != 0 {
		t.Errorf("warned: %v", got)
	}
}
