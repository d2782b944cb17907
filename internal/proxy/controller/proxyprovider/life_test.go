package proxyprovider_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/controller/proxyprovider"
	"fleetdesk/internal/testkit/kube"
)

// A provider that leaves the file takes its object along, unless a Proxy names
// it or an instance is written down in it; either goes, and so does the object.
func TestAProviderThatLeaves(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ proxies, records bool }{
		"alone": {}, "with Proxies": {proxies: true}, "with records": {records: true}, "with both": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.checked(r.name, checkOf("a=OK"))
			r.reconcile()
			var px *v1alpha1.Proxy
			if tc.proxies {
				px = r.proxy("p")
			}
			if tc.records {
				r.abandon(1)
			}
			r.has()
			out := r.reconcile()
			if !tc.proxies && !tc.records {
				if r.get() != nil {
					t.Error("it stays")
				}
				return
			}
			o := r.there()
			if c := condition(o, v1alpha1.ConditionConfigured); c.Status != "False" || c.Reason != v1alpha1.ReasonRemoved ||
				strings.Contains(c.Message, r.name+"/p") != tc.proxies || strings.Contains(c.Message, "crawl/p-1") != tc.records {
				t.Errorf("it does not say why it stays: %+v", c)
			}
			if o.Status.Hosts != nil || o.Status.HostsOK != "" || out.RequeueAfter <= 0 {
				t.Errorf("rows of a provider that is not checked, or nobody comes back: %+v %+v", o.Status, out)
			}
			if tc.records && tc.proxies { // it comes back, and is as it was
				r.has(proxyprovider.State{Name: r.name, Kind: "fake"})
				r.reconcile()
				if o := r.there(); condition(o, v1alpha1.ConditionConfigured).Status != "True" || len(o.Status.Abandoned) != 1 {
					t.Errorf("put back: %+v", o.Status)
				}
				r.has()
			}
			if px != nil {
				if err := r.client.Delete(t.Context(), px); err != nil {
					t.Fatal(err)
				}
				r.reconcile()
			}
			if tc.records {
				if r.get() == nil {
					t.Fatal("the record is gone")
				}
				if err := r.rec.Strike(t.Context(), r.name, []string{uid(1)}); err != nil {
					t.Fatal(err)
				}
				r.reconcile()
				r.reconcile()
			}
			if r.get() != nil {
				t.Error("it stays")
			}
		})
	}
}

// A person deletes the object: with records it stays and says what to do, and
// goes when they are struck or its finalizer is taken off; then it is made anew
// while the file has the provider.
func TestAPersonDeletesIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, r *rig){
		"without records": func(t *testing.T, r *rig) {
			if err := r.rec.Strike(t.Context(), r.name, []string{uid(1), uid(2)}); err != nil {
				t.Fatal(err)
			}
			r.reconcile() // its finalizer goes with the records
			r.delete()
		},
		"struck": func(t *testing.T, r *rig) {
			r.delete()
			r.reconcile()
			o := r.there()
			if o.Status.Reason != v1alpha1.ReasonAbandoned || !strings.Contains(o.Status.Message, "being deleted and stays") {
				t.Errorf("%+v", o.Status)
			}
			r.abandon(2) // it takes further ones
			if got := len(r.there().Status.Abandoned); got != 2 {
				t.Errorf("%d records", got)
			}
			r.reconcile()
			if err := r.rec.Strike(t.Context(), r.name, []string{uid(1), uid(2)}); err != nil {
				t.Fatal(err)
			}
			r.reconcile()
		},
		"forgotten": func(t *testing.T, r *rig) {
			r.delete()
			r.reconcile()
			// As its message says.
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
			if err := r.client.Patch(t.Context(), r.there(), patch); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.reconcile()
			r.abandon(1)
			end(t, r)
			if o := r.get(); o != nil {
				t.Fatalf("it stays: %v %+v", o.Finalizers, o.Status)
			}
			r.reconcile()
			if o := r.there(); len(o.Finalizers) != 0 || len(o.Status.Abandoned) != 0 || condition(o, v1alpha1.ConditionConfigured).Status != "True" {
				t.Errorf("made anew: %v %+v", o.Finalizers, o.Status)
			}
		})
	}
}

func TestAnUnknownNameMakesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.has()
	r.proxy("p") // that its provider is unknown is said in the Proxy
	r.reconcile()
	if r.get() != nil {
		t.Error("an object of a provider that never was in the file")
	}
}

// In a manager, as the operator has it. It looks at every object there is, so
// it must not run beside the other tests.
func TestInAManager(t *testing.T) {
	r := newRig(t)
	stale := &v1alpha1.ProxyProvider{}
	stale.Name = r.name + "-left"
	if err := r.client.Create(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	// start starts a replica; only one of several leads.
	start := func() (rec *proxyprovider.Reconciler, stop func()) {
		skip, grace := true, 5*time.Second
		soon, sooner, soonest := 4*time.Second, 3*time.Second, 500*time.Millisecond
		mgr, err := ctrl.NewManager(cluster.Config(t), ctrl.Options{
			Scheme: kube.Scheme(t, v1alpha1.AddToScheme), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
			Controller:     ctrlconfig.Controller{SkipNameValidation: &skip},
			LeaderElection: true, LeaderElectionID: "proxy-operator", LeaderElectionNamespace: r.name, LeaderElectionReleaseOnCancel: true,
			GracefulShutdownTimeout: &grace, LeaseDuration: &soon, RenewDeadline: &sooner, RetryPeriod: &soonest,
		})
		if err != nil {
			t.Fatal(err)
		}
		rec = proxyprovider.New(proxyprovider.Options{
			Installation: r.name, Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), States: r.States, Checks: r.Checks, Sweeps: r.Sweeps,
			Asked: r.Asked, Events: mgr.GetEventRecorder("proxy-operator"),
		})
		rec.Changed(r.name) // before it starts: nothing
		rec.Event(r.name, true, "HostInTrouble", "before there is an object")
		if err := rec.SetupWithManager(mgr); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()
		stopped := false
		stop = func() {
			if stopped {
				return
			}
			stopped = true
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the manager ended with %v", err)
			}
		}
		t.Cleanup(stop)
		return rec, stop
	}
	rec, stop := start()
	kube.Until(t, "the configured one is made, the one that left goes", func() string {
		o := r.get()
		if o == nil || condition(o, v1alpha1.ConditionConfigured).Status != "True" {
			return fmt.Sprintf("%+v", o)
		}
		if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(stale), &v1alpha1.ProxyProvider{}); err == nil {
			return "the other is there"
		}
		return ""
	})

	r.checked(r.name, checkOf("a=Error"))
	rec.Changed(r.name)
	kube.Until(t, "a report is shown", func() string {
		if o := r.there(); o.Status.Reason != "Error" || o.Status.HostsOK != "0/1" {
			return fmt.Sprintf("%+v", o.Status)
		}
		return ""
	})
	r.take()
	r.annotate(v1alpha1.ReleaseSweepAnnotation, hash)
	kube.Until(t, "the sweep is told of an annotation", func() string {
		if _, asked := r.take(); !slices.Contains(asked, r.name) {
			return "not yet"
		}
		return ""
	})

	// The same reason twice with other texts, one of them long and broken.
	rec.Event(r.name, true, "HostInTrouble", "host a: Error")
	rec.Event(r.name, true, "HostInTrouble", "host b: "+strings.Repeat("\xff\x00x", 3000))
	rec.Event(r.name, false, "HostRecovered", "100%d of it")
	kc, err := kubernetes.NewForConfig(cluster.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	kube.Until(t, "Events", func() string {
		list, err := kc.CoreV1().Events("").SearchWithContext(t.Context(), r.client.Scheme(), r.there()) // as kubectl describe does
		if err != nil {
			return err.Error()
		}
		var got []string
		for _, e := range list.Items {
			got = append(got, fmt.Sprintf("%s %s %.8s", e.Type, e.Reason, e.Message))
		}
		slices.Sort(got)
		if want := []string{
			"Normal HostRecovered 100%d of", "Warning HostInTrouble before t", "Warning HostInTrouble host a: ", "Warning HostInTrouble host b: ",
		}; !slices.Equal(got, want) {
			return fmt.Sprintf("%q", got)
		}
		return ""
	})

	// A person deletes it, with a record in it and then without.
	if err := rec.Abandon(t.Context(), r.name, instance(1)); err != nil {
		t.Fatal(err)
	}
	was := r.there().UID
	r.delete()
	kube.Until(t, "it says why it stays", func() string {
		if o := r.there(); o.UID != was || !strings.Contains(o.Status.Message, "being deleted and stays") {
			return fmt.Sprintf("%+v", o.Status)
		}
		return ""
	})
	if err := rec.Strike(t.Context(), r.name, []string{uid(1)}); err != nil {
		t.Fatal(err)
	}
	kube.Until(t, "it goes and is made anew", func() string {
		if o := r.get(); o == nil || o.UID == was || o.Status.HostsOK != "0/1" {
			return fmt.Sprintf("%+v", o)
		}
		return ""
	})

	// A second replica does not write until it leads.
	second, _ := start()
	r.checked(r.name, checkOf("a=OK"))
	second.Changed(r.name)
	if owners, err := second.Owners(t.Context()); err != nil || owners == nil {
		t.Errorf("%v %v", owners, err)
	}
	if got := r.there().Status.HostsOK; got != "0/1" {
		t.Errorf("one that does not lead wrote %s", got)
	}
	stop()
	kube.Until(t, "the next leader writes", func() string {
		if o := r.there(); o.Status.HostsOK != "1/1" {
			return fmt.Sprintf("%+v", o.Status)
		}
		return ""
	})
	r.has()
	if err := errors.Join(client.IgnoreNotFound(r.client.Delete(t.Context(), r.there()))); err != nil {
		t.Fatal(err)
	}
	kube.Until(t, "it goes with its provider", func() string {
		if o := r.get(); o != nil {
			return "it is there"
		}
		return ""
	})
}
