package proxy_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

func TestADeletedProxyTakesItsInstanceWithIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.delete("a")
	r.gone("a")
	if m := r.machines(); len(m) != 0 {
		t.Errorf("left behind: %+v", m)
	}
	r.event("a", "Deleted")
}

// Object deleted during create (cluster-api-provider-cloudstack 190): found by
// its UID and removed.
func TestMuseumAProxyDeletedDuringItsCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	for steps := range 4 {
		t.Run(fmt.Sprint(steps, " steps"), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fake.Options{StagesPerCall: 1})
			px := r.proxy("a", func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.Finalizer} })
			r.create(px)
			px.Status.Host = "fake-1"
			if err := r.client.Status().Update(t.Context(), px); err != nil {
				t.Fatal(err)
			}
			owner := provider.Owner{Installation: installation, Namespace: r.ns, Name: "a", UID: string(px.UID)}
			for range steps {
				if _, err := r.fake.Create(t.Context(), provider.Spec{Host: "fake-1", Port: 3128, Owner: owner}); err != nil {
					t.Fatal(err)
				}
			}
			r.delete("a")
			r.start()
			r.gone("a")
			if parts := r.fake.Parts(owner); len(parts) != 0 {
				t.Errorf("left behind: %v", parts)
			}
		})
	}
}

func TestSkipCleanup(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, value string
		away          bool
		freed         bool
	}{
		"true":                {"the Proxy goes, its instance stays", "true", false, true},
		"true, provider gone": {"it frees a Proxy whose provider is gone from the config", "true", true, true},
		"yes":                 {"only the value \"true\" counts", "yes", true, false},
		"empty":               {"an empty value is not true", "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fake.Options{}).start()
			r.create(r.proxy("a", func(px *v1alpha1.Proxy) {
				px.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: tc.value}
			}))
			px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
			if tc.away {
				r.remove("fake")
			}
			r.delete("a")
			if tc.freed {
				r.gone("a")
				if len(r.machines()) != 1 || r.fake.Calls()["Delete"] != 0 {
					t.Errorf("%s: machines %+v", tc.reason, r.machines())
				}
				if note := r.event("a", "Abandoned"); !strings.Contains(note, px.Status.ProviderID) {
					t.Errorf("the event does not name the instance: %s", note)
				}
				return
			}
			r.event("a", "SkipCleanupIgnored")
			stuck := r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonProviderNotFound)
			message := condition(stuck, v1alpha1.ConditionReady).Message
			for _, want := range []string{`no provider "fake"`, "kubectl -n " + r.ns + " annotate proxy a " + v1alpha1.SkipCleanupAnnotation + "=true", "is ignored"} {
				if !strings.Contains(message, want) {
					t.Errorf("%s: the condition does not say %q: %s", tc.reason, want, message)
				}
			}
			// The way out that the message names works.
			stuck.Annotations[v1alpha1.SkipCleanupAnnotation] = "true"
			if err := r.client.Update(t.Context(), stuck); err != nil {
				t.Fatal(err)
			}
			r.gone("a")
		})
	}
}

// A host that a person took out of the configuration must not hold its Proxies
// in Terminating; that a machine was left there is said.
func TestAProxyOnAHostThatLeftTheConfigurationGoesAndItsInstanceIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1"}})
	r.reprieve = time.Second
	px := r.proxy("a", func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.Finalizer} })
	r.create(px)
	px.Status.ProviderID, px.Status.Host = "fake://h2/00000001", "h2"
	if err := r.client.Status().Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.delete("a")
	r.start()
	r.gone("a")
	if note := r.event("a", "Abandoned"); !strings.Contains(note, "fake://h2/00000001") || !strings.Contains(note, "host h2") {
		t.Errorf("the event does not name instance and host: %s", note)
	}
}

func TestADeletionGoesOnWhenItsProviderComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.remove("fake")
	r.delete("a")
	r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonProviderNotFound)
	r.restore("fake")
	r.gone("a")
	if m := r.machines(); len(m) != 0 {
		t.Errorf("left behind: %+v", m)
	}
}

// scripted answers Delete by the test's word; the rest is the fake's.
type scripted struct {
	provider.Provider
	del     error
	deletes atomic.Int64
}

func (s *scripted) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	s.deletes.Add(1)
	if s.del != nil {
		return provider.Unknown, s.del
	}
	return s.Provider.Delete(ctx, ref)
}

// Repeated destroys get the account locked (scrapoxy 32): a failing delete is
// not repeated in a hot loop.
func TestMuseumAFailingDeleteIsNotRepeatedInAHotLoop(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	s := &scripted{Provider: r.fake, del: fault.New(fault.Denied, "not yours")}
	r.providers.of["fake"] = s
	r.start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.delete("a")
	r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonDenied)
	before := r.fake.Calls()["ListByTag"]
	r.until("three more listings", func() string {
		if n := r.fake.Calls()["ListByTag"] - before; n < 3 {
			return fmt.Sprint(n)
		}
		return ""
	})
	if n := s.deletes.Load(); n > 2 {
		t.Errorf("%d deletes", n)
	}
}

// A late check revives a removed proxy (scrapoxy 47, 179): Terminating is final.
func TestMuseumTerminatingIsFinal(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	s := &scripted{Provider: r.fake, del: fault.New(fault.Permanent, "cannot")}
	r.providers.of["fake"] = s
	r.start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.delete("a")
	r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonPermanent)
	before := r.fake.Calls()["ListByTag"]
	r.until("three more listings", func() string {
		if px := r.get("a"); px.Status.Phase != v1alpha1.PhaseTerminating {
			t.Fatalf("phase %s", px.Status.Phase)
		}
		if n := r.fake.Calls()["ListByTag"] - before; n < 3 {
			return fmt.Sprint(n)
		}
		return ""
	})
}
