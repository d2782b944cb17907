package proxy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

func TestAProxyBecomesReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	m := r.machines()
	if len(m) != 1 {
		t.Fatalf("%d machines for one Proxy", len(m))
	}
	st := px.Status
	if st.ProviderID != m[0].ID || st.Host != "fake-1" || st.Address != m[0].Address || st.Port != 3128 || st.ExitIP != m[0].Address || st.ObservedGeneration != px.Generation {
		t.Errorf("status %+v of machine %+v", st, m[0])
	}
	if m[0].Owner != (provider.Owner{Installation: installation, Namespace: r.ns, Name: "a", UID: string(px.UID)}) {
		t.Errorf("tag %+v", m[0].Owner)
	}
	if !slices.Contains(px.Finalizers, v1alpha1.Finalizer) {
		t.Error("no finalizer: a deletion would leave the machine behind")
	}
	for _, kind := range []string{v1alpha1.ConditionProvisioned, v1alpha1.ConditionHealthy} {
		if c := condition(px, kind); c.Status != metav1.ConditionTrue {
			t.Errorf("%s: %+v", kind, c)
		}
	}
	r.event("a", "Created")
	r.event("a", "Ready")
}

// Once all is well nothing is asked of the provider but listings, and nothing
// is written.
func TestSteadyStateOnlyLists(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	for i := range 5 {
		r.create(r.proxy(fmt.Sprint("p", i)))
	}
	versions := map[string]string{}
	for i := range 5 {
		px := r.reaches(fmt.Sprint("p", i), v1alpha1.PhaseReady, v1alpha1.ReasonReady)
		versions[px.Name] = px.ResourceVersion
	}
	before := r.fake.Calls()
	r.until("three more listings", func() string {
		if n := r.fake.Calls()["ListByTag"] - before["ListByTag"]; n < 3 {
			return fmt.Sprint(n)
		}
		return ""
	})
	after := r.fake.Calls()
	for _, method := range []string{"Place", "Create", "Get", "Delete"} {
		if after[method] != before[method] {
			t.Errorf("%d calls of %s in the steady state", after[method]-before[method], method)
		}
	}
	for name, version := range versions {
		if px := r.get(name); px.ResourceVersion != version {
			t.Errorf("%s was written in the steady state", name)
		}
	}
}

// A removal that was begun and not ended, as when the operator died while it
// cleared an instance away, is brought to its end; then the instance is made.
func TestABegunRemovalIsFinished(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	old := px.Status.ProviderID
	steps := 0
	_, err := r.fake.Delete(provider.WithStepHook(t.Context(), func(string) error {
		if steps++; steps > 1 {
			return fault.New(fault.Transient, "the operator died here")
		}
		return nil
	}), provider.Ref{ID: old, Owner: r.machines()[0].Owner})
	if err == nil {
		t.Fatal("the removal was not cut short")
	}
	r.until("another machine", func() string {
		if m := r.machines(); len(m) != 1 || m[0].ID == old || m[0].State != provider.Running {
			return fmt.Sprintf("%+v", m)
		}
		return ""
	})
	if px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady); px.Status.ProviderID == old {
		t.Errorf("status still names %s", old)
	}
}

// refusing is a provider whose next Delete fails in a way that only a person
// mends.
type refusing struct {
	provider.Provider
	deletes atomic.Int32
}

func (r *refusing) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	if r.deletes.Add(1) == 1 {
		return "", fault.New(fault.Permanent, "cannot unlink the disk: Permission denied")
	}
	return r.Provider.Delete(ctx, ref)
}

// The end of a begun removal fails for good: the instance is there, so its id
// stays in status and nothing is made beside it.
func TestABegunRemovalThatFailsForGoodIsNotDone(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	stubborn := &refusing{Provider: r.fake}
	r.providers.of["fake"] = stubborn
	r.start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	id := px.Status.ProviderID
	steps := 0
	if _, err := r.fake.Delete(provider.WithStepHook(t.Context(), func(string) error {
		if steps++; steps > 1 {
			return fault.New(fault.Transient, "the operator died here")
		}
		return nil
	}), provider.Ref{ID: id, Owner: r.machines()[0].Owner}); err == nil {
		t.Fatal("the removal was not cut short")
	}
	r.until("the failed removal", func() string {
		if stubborn.deletes.Load() == 0 {
			return "no Delete"
		}
		return ""
	})
	px = r.reaches("a", v1alpha1.PhaseFailed, v1alpha1.ReasonPermanent)
	if px.Status.ProviderID != id || len(r.machines()) != 1 {
		t.Errorf("status names %q and was %q; machines %+v", px.Status.ProviderID, id, r.machines())
	}
}

func TestAStoppedInstanceIsStartedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	id := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady).Status.ProviderID
	r.fake.Stop(id)
	r.event("a", "Restarted")
	if px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady); px.Status.ProviderID != id {
		t.Errorf("it became another instance: %s", px.Status.ProviderID)
	}
}

// One manual deletion makes three new ones (machine-controller 381): exactly
// one must come.
func TestMuseumOneManualDeletionMakesExactlyOneNewInstance(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	id := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady).Status.ProviderID
	r.fake.Vanish(id)
	r.event("a", "Rebuilding")
	r.until("a new instance", func() string {
		if px := r.get("a"); px.Status.Phase != v1alpha1.PhaseReady || px.Status.ProviderID == id {
			return fmt.Sprintf("%+v", px.Status)
		}
		return ""
	})
	if m := r.machines(); len(m) != 1 {
		t.Errorf("%d machines after one was removed by hand", len(m))
	}
}

// What a provider cannot say is no reason to make a machine again: a typo in
// its hosts must not recreate a fleet.
func TestALiveProxyIsNotRebuiltWhenItsProviderCannotTell(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		hit    func(r *rig, id string)
	}{
		"host down":     {"no answer is not absence", func(r *rig, _ string) { r.fake.Break("fake-1", nil) }},
		"permanent":     {"a host that left the config is Permanent", func(r *rig, _ string) { r.fake.Break("fake-1", fault.New(fault.Permanent, "host is not configured")) }},
		"denied":        {"credentials were taken away", func(r *rig, _ string) { r.fake.Break("fake-1", fault.New(fault.Denied, "key refused")) }},
		"mute":          {"a mute host", func(r *rig, _ string) { r.fake.Mute("fake-1") }},
		"unreadable":    {"it exists and cannot be read", func(r *rig, id string) { r.fake.Corrupt(id) }},
		"provider gone": {"the provider left the config", func(r *rig, _ string) { r.remove("fake") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fake.Options{StepLimit: 500 * time.Millisecond}).start()
			r.create(r.proxy("a"))
			px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
			made := r.fake.Calls()["Create"]
			tc.hit(r, px.Status.ProviderID)
			r.until("a condition that says so", func() string {
				if c := condition(r.get("a"), v1alpha1.ConditionProvisioned); c.Status == metav1.ConditionTrue {
					return c.Message
				}
				return ""
			})
			if px := r.get("a"); px.Status.Phase != v1alpha1.PhaseReady || px.Status.Address == "" {
				t.Errorf("%s: its own probe passes, so it stays leasable: %+v", tc.reason, px.Status)
			}
			r.mu.Lock()
			r.sick[px.Status.Address] = true
			r.mu.Unlock()
			r.until("leaving Ready when its probe fails", func() string {
				if p := r.get("a").Status.Phase; p != v1alpha1.PhaseUnhealthy && p != v1alpha1.PhaseFailed {
					return string(p)
				}
				return ""
			})
			if now := r.fake.Calls()["Create"]; now != made || len(r.machines()) != 1 {
				t.Errorf("%s: %d more calls of Create, %d machines", tc.reason, now-made, len(r.machines()))
			}
		})
	}
}

// remove takes a provider out of the config.
func (r *rig) remove(name string) {
	r.providers.mu.Lock()
	delete(r.providers.of, name)
	r.providers.mu.Unlock()
	r.reconciler.WakeProvider(r.t.Context(), name)
}

// restore puts it back.
func (r *rig) restore(name string) {
	r.providers.mu.Lock()
	r.providers.of[name] = r.fake
	r.providers.errs[name] = nil
	r.providers.epoch++
	r.providers.mu.Unlock()
	r.reconciler.WakeProvider(r.t.Context(), name)
}

// One dead check URL destroys the fleet (cloudproxy 69): it is inconclusive.
func TestMuseumADeadCheckURLLeavesProxiesReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.mu.Lock()
	r.sick[px.Status.Address], r.dead = true, true
	r.mu.Unlock()
	r.until("an inconclusive check", func() string {
		c := condition(r.get("a"), v1alpha1.ConditionHealthy)
		if c.Reason != v1alpha1.ReasonProbeInconclusive {
			return fmt.Sprintf("%+v", c)
		}
		return ""
	})
	if px := r.get("a"); px.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("phase %s although nothing was proved", px.Status.Phase)
	}
}

func TestAnUnhealthyProxyIsNotRebuiltAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.set(px.Status.Address, true)
	r.reaches("a", v1alpha1.PhaseUnhealthy, v1alpha1.ReasonProbeFailed)
	r.event("a", "Unhealthy")
	r.set(px.Status.Address, false)
	if now := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady); now.Status.ProviderID != px.Status.ProviderID {
		t.Error("it was rebuilt for being unhealthy")
	}
}

func (r *rig) set(address string, sick bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sick[address] = sick
}

func TestAnUnknownProviderSaysSoAndHealsWhenItComes(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.remove("fake")
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhasePending, v1alpha1.ReasonProviderNotFound)
	if len(px.Finalizers) != 0 {
		t.Error("a finalizer although nothing was made")
	}
	if m := condition(px, v1alpha1.ConditionReady).Message; !strings.Contains(m, `no provider "fake"`) || !strings.Contains(m, "Add it to the providers config") {
		t.Errorf("the message names no place or remedy: %s", m)
	}
	r.restore("fake")
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
}

func TestABrokenProviderSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.providers.mu.Lock()
	r.providers.errs["fake"] = fault.New(fault.Unavailable, `provider "fake" is disabled: providers.yaml:7: unknown field "hots"`)
	r.providers.mu.Unlock()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhasePending, v1alpha1.ReasonProviderBroken)
	if m := condition(px, v1alpha1.ConditionReady).Message; !strings.Contains(m, "providers.yaml:7") {
		t.Errorf("the message does not name the place: %s", m)
	}
}

// Bad credentials make objects undeletable (cluster-api-provider-aws 2270): no
// finalizer before the first write.
func TestMuseumAMissingSecretSetsNoFinalizerAndHeals(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	for _, name := range []string{"a", "b"} {
		r.create(r.proxy(name, func(px *v1alpha1.Proxy) {
			px.Spec.AuthSecretRef = &v1alpha1.LocalSecretRef{Name: "auth"}
		}))
	}
	px := r.reaches("a", v1alpha1.PhasePending, v1alpha1.ReasonReferenceNotFound)
	if len(px.Finalizers) != 0 {
		t.Error("a finalizer although nothing was made")
	}
	if m := condition(px, v1alpha1.ConditionReady).Message; !strings.Contains(m, "Secret "+r.ns+"/auth does not exist") {
		t.Errorf("message: %s", m)
	}
	r.delete("b")
	r.gone("b")
	r.create(secret(r.ns, "auth", map[string]string{"username": "crawler"}))
	r.until("the missing key being named", func() string {
		if m := condition(r.get("a"), v1alpha1.ConditionReady).Message; !strings.Contains(m, `"password"`) {
			return m
		}
		return ""
	})
	s := secret(r.ns, "auth", map[string]string{"username": "crawler", "password": "s3cret"})
	if err := r.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	px = r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	if strings.Contains(fmt.Sprintf("%+v", px.Status), "s3cret") {
		t.Error("the password is in the status")
	}
}

func TestARefusedCreateIsNotRetriedInAHotLoopButAtOnceWhenTheSpecChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	mend := r.fake.Break("fake-1", fault.New(fault.Permanent, "the image is not what it says"))
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseFailed, v1alpha1.ReasonPermanent)
	r.event("a", "Failed")
	before := r.fake.Calls()
	r.until("three more listings", func() string {
		if n := r.fake.Calls()["ListByTag"] - before["ListByTag"]; n < 3 {
			return fmt.Sprint(n)
		}
		return ""
	})
	if n := r.fake.Calls()["Create"] - before["Create"]; n > 1 {
		t.Errorf("%d more tries of what only a person can mend", n)
	}
	mend()
	px.Spec.Port = 8080
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
}

func TestQuotaAndNoRoomSayTheirReason(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Capacity: 1}).start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.create(r.proxy("b"))
	px := r.reaches("b", v1alpha1.PhasePending, v1alpha1.ReasonQuota)
	if len(px.Finalizers) != 0 || px.Status.Host != "" {
		t.Errorf("something was kept although nothing was made: %+v", px)
	}
}

func TestAChangedSpecIsOutdatedUntilTheNextRebuild(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	px.Spec.Port = 8080
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	outdated := func(want metav1.ConditionStatus) {
		t.Helper()
		r.until("Outdated="+string(want), func() string {
			if c := condition(r.get("a"), v1alpha1.ConditionOutdated); c.Status != want {
				return fmt.Sprintf("%+v", c)
			}
			return ""
		})
	}
	outdated(metav1.ConditionTrue)
	if now := r.get("a"); now.Status.Port != 3128 || now.Status.Phase != v1alpha1.PhaseReady || now.Status.ProviderID != px.Status.ProviderID {
		t.Errorf("a live instance was touched: %+v", now.Status)
	}
	r.fake.Vanish(px.Status.ProviderID)
	outdated(metav1.ConditionFalse)
	r.until("the new port", func() string {
		if p := r.get("a").Status.Port; p != 8080 {
			return fmt.Sprint(p)
		}
		return ""
	})
}

func TestAnImpairedInstanceIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	calls := r.fake.Calls()
	r.set(px.Status.Address, true)
	r.fake.Impair(px.Status.ProviderID)
	r.reaches("a", v1alpha1.PhaseUnhealthy, v1alpha1.ReasonImpaired)
	now := r.fake.Calls()
	if now["Create"] != calls["Create"] || now["Delete"] != calls["Delete"] {
		t.Error("something was done to an impaired instance")
	}
}

// A crash can come between any two writes of the first Create. What the next
// start finds is built here by hand: the object as it was stored then, and the
// back end as the lost calls left it. A machine whose making was not answered
// must not be leaked (scrapoxy 105).
func TestAStartConvergesFromEveryCrashPointOfACreate(t *testing.T) {
	t.Parallel()
	finalizer := func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.Finalizer} }
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.Proxy)
		host   string
		steps  int
	}{
		"before anything":        {"", func(*v1alpha1.Proxy) {}, "", 0},
		"after the finalizer":    {"", finalizer, "", 0},
		"after the host":         {"the second machine must not be made elsewhere", finalizer, "h2", 0},
		"in the midst of Create": {"a half-made instance is found by UID", finalizer, "h2", 1},
		"Create's answer lost":   {"a whole instance is found by UID", finalizer, "h2", 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fake.Options{Hosts: []string{"h1", "h2"}})
			px := r.proxy("a", tc.change)
			r.create(px)
			if tc.host != "" {
				px.Status.Host = tc.host
				if err := r.client.Status().Update(t.Context(), px); err != nil {
					t.Fatal(err)
				}
			}
			spec := provider.Spec{Host: tc.host, Port: 3128, Protocol: provider.HTTP, Owner: provider.Owner{Installation: installation, Namespace: r.ns, Name: "a", UID: string(px.UID)}}
			for range tc.steps {
				if _, err := r.fake.Create(t.Context(), spec); err != nil {
					t.Fatal(err)
				}
			}
			r.start()
			now := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
			if m := r.machines(); len(m) != 1 || m[0].ID != now.Status.ProviderID || (tc.host != "" && m[0].Host != tc.host) {
				t.Errorf("%s: machines %+v, status %+v", tc.reason, m, now.Status)
			}
		})
	}
}

// A fleet must not blink when the operator starts anew.
func TestARestartLeavesReadyProxiesAsTheyAre(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.stop()
	r.start()
	end := time.Now().Add(3 * time.Second)
	for time.Now().Before(end) {
		if now := r.get("a"); now.Status.Phase != v1alpha1.PhaseReady || now.ResourceVersion != px.ResourceVersion {
			t.Fatalf("the restart changed it: %+v", now.Status)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
