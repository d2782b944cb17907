package proxy_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider/fake"
)

// troubles are what checks said, by provider/host, and which Proxies were asked
// about.
type troubles struct {
	mu    sync.Mutex
	of    map[string]string
	asked map[string]int
}

func newTroubles() *troubles { return &troubles{of: map[string]string{}, asked: map[string]int{}} }

func (c *troubles) trouble(providerName, host string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[providerName+"/"+host]++
	return c.of[providerName+"/"+host]
}

func (c *troubles) set(providerName, host, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[providerName+"/"+host] = reason
}

func (c *troubles) count(providerName, host string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[providerName+"/"+host]
}

// reachable waits for what the condition ProviderReachable says; empty for no
// such condition.
func (r *rig) reachable(name, reason, message string) *v1alpha1.Proxy {
	r.t.Helper()
	var px *v1alpha1.Proxy
	r.until(name+": ProviderReachable says "+reason, func() string {
		px = r.get(name)
		c := condition(px, v1alpha1.ConditionProvider)
		if c.Reason != reason || c.Message != message || (reason != "" && c.Status != metav1.ConditionFalse) {
			return fmt.Sprintf("%+v", c)
		}
		return ""
	})
	return px
}

const poolLow = "the check of host h2 of provider fake finds something wrong: kubectl get proxyprovider fake -o yaml says what"

// What a check finds wrong with a host shows on the Proxies there and on no
// others, for as long as it is so; they work on.
func TestAHostInTroubleShowsOnItsProxiesAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1", "h2"}})
	checks := newTroubles()
	r.trouble = checks.trouble
	r.start()
	r.create(r.proxy("a", onHost("h1")))
	r.create(r.proxy("b", onHost("h2")))
	a := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	before := r.reaches("b", v1alpha1.PhaseReady, v1alpha1.ReasonReady)

	checks.set("fake", "h2", "PoolLow")
	r.reconciler.WakeHosts(t.Context(), "fake", []string{"h2"})
	b := r.reachable("b", v1alpha1.ReasonHostsInTrouble, poolLow)
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionHealthy, v1alpha1.ConditionProvisioned} {
		if was, is := condition(before, kind), condition(b, kind); was != is {
			t.Errorf("%s was %+v and is %+v", kind, was, is)
		}
	}
	if b.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("phase %s", b.Status.Phase)
	}
	// The next checks find that, or something else: nothing is written.
	for _, reason := range []string{"PoolLow", "Unreachable", "PoolLow"} {
		checks.set("fake", "h2", reason)
		n := checks.count("fake", "h2")
		r.reconciler.WakeHosts(t.Context(), "fake", []string{"h2"})
		r.until("another look", func() string {
			if checks.count("fake", "h2") == n {
				return "none yet"
			}
			return ""
		})
	}
	r.listings(1)
	if now := r.get("b"); now.ResourceVersion != b.ResourceVersion {
		t.Error("the same trouble was written again")
	}
	checks.set("fake", "h2", "")
	r.reconciler.WakeHosts(t.Context(), "fake", []string{"h2"})
	r.reachable("b", "", "")
	if now := r.get("a"); now.ResourceVersion != a.ResourceVersion {
		t.Error("the Proxy of the other host was written")
	}
}

func TestWakeHostsWakesTheProxiesOfThoseHosts(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1", "h2", "h3"}})
	checks := newTroubles()
	r.trouble = checks.trouble
	// No exit IP is known: when one is, those that leave by it are looked at again
	// a while later, by themselves.
	r.found = func(probe.Target) probe.Result { return probe.Result{OK: true, Reason: probe.ReasonOK} }
	r.providers.of["other"] = fake.New(fake.Options{Name: "other", Hosts: []string{"h1", "h2"}})
	r.start()
	r.create(r.proxy("lone", func(px *v1alpha1.Proxy) { px.Spec.Provider = "nowhere" }))
	r.create(r.proxy("theirs", onHost("h2"), func(px *v1alpha1.Proxy) { px.Spec.Provider = "other" }))
	for _, host := range []string{"h1", "h2", "h3"} {
		r.create(r.proxy("on-"+host, onHost(host)))
		r.reaches("on-"+host, v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	}
	r.reaches("theirs", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.reaches("lone", v1alpha1.PhasePending, v1alpha1.ReasonProviderNotFound)
	for name, tc := range map[string]struct {
		provider string
		hosts    []string
		woken    []string
	}{
		"one":        {"fake", []string{"h2"}, []string{"fake/h2"}},
		"two":        {"fake", []string{"h1", "h3"}, []string{"fake/h1", "fake/h3"}},
		"none":       {"fake", []string{}, nil},
		"unknown":    {"fake", []string{"h9"}, nil},
		"all":        {"fake", nil, []string{"fake/h1", "fake/h2", "fake/h3"}},
		"not placed": {"nowhere", nil, []string{"nowhere/"}},
		"other":      {"other", []string{"h2"}, []string{"other/h2"}},
	} {
		t.Run(name, func(t *testing.T) {
			r.quiet(checks)
			checks.mu.Lock()
			clear(checks.asked)
			checks.mu.Unlock()
			r.reconciler.WakeHosts(t.Context(), tc.provider, tc.hosts)
			for _, where := range tc.woken {
				p, h, _ := strings.Cut(where, "/")
				r.until(where+" woken", func() string {
					if checks.count(p, h) == 0 {
						return "not yet"
					}
					return ""
				})
			}
			r.quiet(checks)
			checks.mu.Lock()
			defer checks.mu.Unlock()
			if len(checks.asked) != len(tc.woken) {
				t.Errorf("woken: %v, want %v", checks.asked, tc.woken)
			}
		})
	}
}

// quiet waits until a listing has passed in which nobody was looked at.
func (r *rig) quiet(checks *troubles) {
	r.t.Helper()
	sum := func() (n int) {
		checks.mu.Lock()
		defer checks.mu.Unlock()
		for _, k := range checks.asked {
			n += k
		}
		return n
	}
	r.until("quiet", func() string {
		n := sum()
		r.listings(1)
		if now := sum(); now != n {
			return fmt.Sprint(now-n, " looks")
		}
		return ""
	})
}

// A check that failed as a whole shows on every Proxy of the provider, also on
// those that were not placed yet, and under deletion.
func TestAFailedCheckShowsOnEveryProxyAlsoUnderDeletion(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1"}, Capacity: 1})
	checks := newTroubles()
	r.trouble = checks.trouble
	s := &scripted{Provider: r.fake, del: fault.New(fault.Permanent, "cannot")}
	r.providers.of["fake"] = s
	r.start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.create(r.proxy("b"))
	r.reaches("b", v1alpha1.PhasePending, v1alpha1.ReasonQuota)
	r.delete("a")
	r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonPermanent)

	for _, host := range []string{"h1", ""} {
		checks.set("fake", host, v1alpha1.ReasonCheckFailed)
	}
	r.reconciler.WakeHosts(t.Context(), "fake", nil)
	const failed = "the check of provider fake failed: kubectl get proxyprovider fake -o yaml says what"
	r.reachable("b", v1alpha1.ReasonCheckFailed, failed)
	a := r.reachable("a", v1alpha1.ReasonCheckFailed, failed)
	if ready := condition(a, v1alpha1.ConditionReady); ready.Reason != v1alpha1.ReasonPermanent || !strings.Contains(ready.Message, "skip-cleanup=true") {
		t.Errorf("what holds the deletion up is not said any more: %+v", ready)
	}
	if b := r.get("b"); b.Status.Phase != v1alpha1.PhasePending || condition(b, v1alpha1.ConditionReady).Reason != v1alpha1.ReasonQuota {
		t.Errorf("b: %+v", b.Status)
	}
	if now := s.deletes.Load(); now != 1 {
		t.Errorf("%d deletes", now)
	}
	for _, host := range []string{"h1", ""} {
		checks.set("fake", host, "")
	}
	r.reconciler.WakeHosts(t.Context(), "fake", nil)
	r.reachable("a", "", "")
	r.reachable("b", "", "")
}

// An annotation that does nothing and comes late is told of beside what holds
// the deletion up, which would else go unsaid until the next try.
func TestALateAnnotationDoesNotHideTheCause(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.providers.of["a"] = &answers{del: fault.New(fault.Permanent, "the disk is stuck")}
	px := b.doomed(cluster.Namespace(t), "a")
	step := func(value string, wants ...string) {
		t.Helper()
		if value != "" {
			now := b.read(px)
			base := now.DeepCopy()
			now.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: value}
			if value == "-" {
				now.Annotations = nil
			}
			if err := b.client.Patch(t.Context(), now, client.MergeFrom(base)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if _, err := b.reconcile(px); err != nil {
				t.Fatal(err)
			}
		}
		ready := condition(b.read(px), v1alpha1.ConditionReady)
		for _, want := range append(wants, "the disk is stuck", "skip-cleanup=true --overwrite") {
			if ready.Reason != v1alpha1.ReasonPermanent || !strings.Contains(ready.Message, want) {
				t.Errorf("value %q: the condition does not say %q: %s: %s", value, want, ready.Reason, ready.Message)
			}
		}
		if strings.Count(ready.Message, "is ignored") != len(wants) {
			t.Errorf("value %q: %s", value, ready.Message)
		}
	}
	step("")
	step("yes", `"yes" is ignored`)
	step("no", `"no" is ignored`)
	step("-")
	if told := b.heard.about("a", "SkipCleanupIgnored"); len(told) != 2 {
		t.Errorf("told: %v", told)
	}
}
