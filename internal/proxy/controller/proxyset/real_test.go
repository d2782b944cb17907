package proxyset_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/controller/proxy"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/testkit/kube"
)

// works is the real controller of Proxies over a provider that keeps its
// machines in memory, on two hosts.
type works struct {
	fake *fake.Provider

	mu sync.Mutex
	// sick are addresses whose checks fail; dead makes the checked URL itself
	// fail as well. unknown: the providers file has no provider.
	sick          map[string]bool
	dead, unknown bool
}

func (w *works) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *works) Lookup(name string) (provider.Provider, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name != "home" || w.unknown {
		return nil, fault.Errorf(fault.NotFound, "the providers config has no provider %q", name)
	}
	return w.fake, nil
}

func (w *works) Epoch(string) uint64 { return 1 }
func (w *works) Names() []string     { return []string{"home"} }

func (w *works) request(_ context.Context, target probe.Target, _ probe.Check) probe.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead || w.sick[target.Address] {
		return probe.Result{Reason: probe.Timeout, Err: fault.New(fault.Timeout, "the proxy does not answer")}
	}
	return probe.Result{OK: true, Reason: probe.ReasonOK, ExitIP: netip.MustParseAddr(target.Address)}
}

func (w *works) control(context.Context, probe.Check) (health.Control, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return health.ControlFailed, fault.New(fault.Unavailable, "the URL is down")
	}
	return health.ControlPassed, nil
}

// join adds the controller to an operator's manager.
func (w *works) join(ctx context.Context, mgr ctrl.Manager) error {
	var reconciler *proxy.Reconciler
	log := slog.New(slog.DiscardHandler)
	wake := func(ns, name string) { reconciler.Wake(types.NamespacedName{Namespace: ns, Name: name}) }
	inv := inventory.New(inventory.Options{
		Providers: w, Installation: "test/rig", Interval: time.Second, Log: log,
		Changed:   func(o provider.Owner) { wake(o.Namespace, o.Name) },
		Recovered: func(name string) { reconciler.WakeProvider(ctx, name) },
	})
	loop, err := probe.New(probe.Options{
		Request: w.request, Control: w.control, Log: log,
		Changed: func(key string) { ns, name, _ := strings.Cut(key, "/"); wake(ns, name) },
		OnFailure: func(key string) {
			ns, name, _ := strings.Cut(key, "/")
			reconciler.Suspect(ctx, ns, name)
		},
	})
	if err != nil {
		return err
	}
	reconciler = proxy.New(proxy.Options{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Providers: w, Inventory: inv, Prober: loop,
		Installation: "test/rig", Events: mgr.GetEventRecorder("proxy-operator"),
		HealthURL:        func(string) string { return "http://origin.example.com/generate_204" },
		ProvisionTimeout: time.Minute, Workers: 8, Log: log,
	})
	return errors.Join(
		proxy.Index(ctx, mgr.GetFieldIndexer()), reconciler.SetupWithManager(mgr),
		mgr.Add(manager.RunnableFunc(inv.Run)), mgr.Add(manager.RunnableFunc(loop.Run)),
	)
}

// What the controller of Proxies says of real life is read as it is meant: a
// changed template is rolled out, a broken machine is replaced, and neither a
// dead host, nor a dead check, nor a typo in the providers file replaces
// anything.
func TestWithTheControllerOfProxies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := &works{fake: fake.New(fake.Options{Hosts: []string{"h1", "h2"}}), sick: map[string]bool{}}
	r.also = w.join
	op := r.operator()
	check := r.check("s", 0, 5)
	r.create(r.set("s", 4, func(s *v1alpha1.ProxySet) {
		s.Spec.Template.Spec.HealthCheck = v1alpha1.HealthCheck{Interval: "1s", Timeout: "500ms", FailureThreshold: 1}
	}))
	r.shows("s", v1alpha1.ReasonSettled, "", 4, 4, 4, 0, 0)
	check.bounds(4, 5)
	first := r.proxies()
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Port = 8080 })
	r.shows("s", v1alpha1.ReasonSettled, "", 4, 4, 4, 0, 0)
	second := r.proxies()
	for name, px := range second {
		if first[name] != nil || px.Status.Port != 8080 {
			t.Errorf("%s is not a new one: %+v", name, px.Status)
		}
	}
	check.bounds(0, 5)
	later := func() { // more than a Proxy may fail before it is replaced
		t.Helper()
		r.setClock(time.Now())
		r.passes(op, "s", 40*time.Minute)
	}
	unready := func(what string, n int) {
		t.Helper()
		kube.Until(t, what, func() string {
			got := 0
			for _, px := range r.proxies() {
				if px.Status.Phase == v1alpha1.PhaseUnhealthy || px.Status.Phase == v1alpha1.PhaseFailed {
					got++
				}
			}
			if got != n {
				return fmt.Sprintf("%d of %d do not work", got, n)
			}
			return ""
		})
	}
	same := func(what string) {
		t.Helper()
		later()
		now := r.proxies()
		for name := range second {
			if now[name] == nil || !now[name].DeletionTimestamp.IsZero() {
				t.Errorf("%s replaced %s", what, name)
			}
		}
		if len(now) != len(second) {
			t.Errorf("%s left %d Proxies", what, len(now))
		}
		r.setClock(time.Time{})
	}

	// A host goes away with what runs on it.
	mend := w.fake.Break("h1", fault.New(fault.Unavailable, "h1: no route to host"))
	onHost := 0
	w.set(func() {
		for _, px := range second {
			if px.Status.Host == "h1" {
				w.sick[px.Status.Address] = true
				onHost++
			}
		}
	})
	unready("a dead host", onHost)
	kube.Until(t, "the listings missing the host", func() string {
		for _, px := range r.proxies() {
			if px.Status.Host == "h1" && !apimeta.IsStatusConditionPresentAndEqual(px.Status.Conditions, v1alpha1.ConditionProvisioned, metav1.ConditionUnknown) {
				return fmt.Sprintf("%+v", px.Status.Conditions)
			}
		}
		return ""
	})
	later()
	r.shows("s", v1alpha1.ReasonNotReady, fmt.Sprintf("%d do not work", onHost), 4, int32(4-onHost))
	same("a dead host")
	mend()
	w.set(func() { clear(w.sick) })
	r.shows("s", v1alpha1.ReasonSettled, "", 4, 4, 4, 0, 0)

	// The checked URL is down: no Proxy is blamed.
	w.set(func() { w.dead = true })
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(4)) })
	same("a dead check")
	w.set(func() { w.dead = false })
	r.shows("s", v1alpha1.ReasonSettled, "", 4, 4, 4, 0, 0)

	// The check fails all of them although its URL answers.
	w.set(func() {
		for _, px := range second {
			w.sick[px.Status.Address] = true
		}
	})
	unready("a wrong check", 4)
	later()
	r.shows("s", v1alpha1.ReasonHeldBack, "which is more than half of the set", 4, 0)
	same("a wrong check")
	w.set(func() { clear(w.sick) })
	r.shows("s", v1alpha1.ReasonSettled, "", 4, 4, 4, 0, 0)

	// One machine breaks.
	var broken *v1alpha1.Proxy
	for _, px := range second {
		broken = px
		break
	}
	w.fake.Impair(broken.Status.ProviderID)
	w.set(func() { w.sick[broken.Status.Address] = true })
	unready("a broken machine", 1)
	r.shows("s", v1alpha1.ReasonNotReady, "1 does not work, "+broken.Name, 4, 3)
	later()
	kube.Until(t, "the broken one being replaced", func() string {
		if now := r.proxies(); now[broken.Name] != nil || len(now) != 4 {
			return fmt.Sprint(names(now))
		}
		return ""
	})
	r.setClock(time.Time{})
	r.shows("s", v1alpha1.ReasonSettled, "", 4, 4, 4, 0, 0)
	check.end()
}
