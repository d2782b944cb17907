package proxyprovider_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/controller/proxyprovider"
	"fleetdesk/internal/proxy/sweep"
)

// operator is another operator of the same cluster, which writes through c.
func (r *rig) operator(w *world, installation string, c client.Client) *proxyprovider.Reconciler {
	return proxyprovider.New(proxyprovider.Options{
		Installation: installation, Client: c, Reader: c, States: w.States, Checks: w.Checks, Sweeps: w.Sweeps, Asked: w.Asked, Events: w,
	})
}

// Two operators of one cluster with a provider of the same name: the second one
// leaves the first one's object alone, says so once, and takes it over when a
// person says that the first one is gone.
func TestAnotherOperatorsObjectIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.swept(r.name, held())
	r.abandon(1)
	r.reconcile()
	r.annotate(v1alpha1.ReleaseSweepAnnotation, hash)
	r.annotate(v1alpha1.RemoveAbandonedAnnotation, uid(1))
	r.reconcile()
	r.take()
	was := r.there()
	if was.Labels[proxyprovider.InstallationLabel] == "" {
		t.Fatalf("it does not say whose it is: %v", was.Labels)
	}
	writes := 0
	wrote := func() error { writes++; return errors.New("a write") }
	readOnly := interceptor.NewClient(r.client, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return wrote() },
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return wrote() },
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return wrote()
		},
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			return wrote()
		},
	})
	theirs := &world{checks: r.checks, sweeps: r.sweeps}
	second := r.operator(theirs, "another", readOnly)
	for _, configured := range []bool{false, true} {
		theirs.has()
		if configured {
			theirs.has(proxyprovider.State{Name: r.name, Kind: "local"})
		}
		for range 3 {
			if _, err := r.try(second); err != nil {
				t.Error(err)
			}
		}
		events, asked := theirs.take()
		switch {
		case len(asked) != 0, !configured && len(events) != 0:
			t.Errorf("configured %t: %q %q", configured, events, asked)
		case configured && (len(events) != 1 || !strings.Contains(events[0], "kubectl label proxyprovider "+r.name)):
			t.Errorf("it tells %q, want one Event with the way out", events)
		}
	}
	for what, err := range map[string]error{
		"abandon": second.Abandon(t.Context(), r.name, instance(2)),
		"strike":  second.Strike(t.Context(), r.name, []string{uid(1)}),
	} {
		if fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), was.Labels[proxyprovider.InstallationLabel]) {
			t.Errorf("%s: %v", what, err)
		}
	}
	page, err := second.Page(t.Context(), r.name)
	if err != nil || page.Elsewhere[uid(1)] == "" {
		t.Errorf("what is written down there is not kept: %v %v", page, err)
	}
	page.Elsewhere = nil
	if diff := cmp.Diff(sweep.Page{}, page); diff != "" {
		t.Errorf("it takes for its own what another one was asked:\n%s", diff)
	}
	// Also one that is being deleted.
	r.delete()
	if _, err := r.try(second); err != nil {
		t.Error(err)
	}
	if now := r.there(); writes != 0 || len(now.Finalizers) != 1 {
		t.Errorf("%d writes to another one's object, finalizers %v", writes, now.Finalizers)
	}
	if err := r.rec.Strike(t.Context(), r.name, []string{uid(1)}); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	r.reconcile() // it goes and is made anew

	second = r.operator(theirs, "another", r.client)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+proxyprovider.InstallationLabel+`":null}}}`))
	if err = r.client.Patch(t.Context(), r.there(), patch); err != nil {
		t.Fatal(err)
	}
	if _, err = r.try(second); err != nil {
		t.Fatal(err)
	}
	o := r.there()
	if got := o.Labels[proxyprovider.InstallationLabel]; got == "" || got == was.Labels[proxyprovider.InstallationLabel] || o.Status.Kind != "local" {
		t.Errorf("it is not taken over: label %q, kind %q", got, o.Status.Kind)
	}
	if _, err := r.try(r.rec); err != nil || r.there().ResourceVersion != o.ResourceVersion {
		t.Errorf("the first one writes to it still: %v", err)
	}
}

// An object says whose it is from its first moment.
func TestANewObjectIsMarked(t *testing.T) {
	t.Parallel()
	fresh := newRig(t)
	made := interceptor.NewClient(fresh.client, interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return errors.New("marked too late")
		},
	})
	if _, err := fresh.try(fresh.over(made)); err != nil || fresh.there().Labels[proxyprovider.InstallationLabel] == "" {
		t.Errorf("labels %v: %v", fresh.there().Labels, err)
	}
	r := newRig(t)
	r.has()
	r.abandon(1)
	if err := r.operator(&world{}, "another", r.client).Abandon(t.Context(), r.name, instance(2)); fault.Of(err) != fault.Conflict {
		t.Errorf("another operator wrote to it: %v", err)
	}
}

// An instance that is written down with another provider, as one that had the
// host before, is named on each page, however many objects there are.
func TestWhatIsWrittenDownElsewhere(t *testing.T) {
	t.Parallel()
	r, other := newRig(t), newRig(t)
	r.abandon(1)
	mine, theirs := instance(2), instance(3)
	mine.UID, theirs.UID = r.name+"-mine", r.name+"-theirs"
	if err := errors.Join(r.rec.Abandon(t.Context(), r.name, mine), other.rec.Abandon(t.Context(), other.name, theirs)); err != nil {
		t.Fatal(err)
	}
	pages := 0
	c := interceptor.NewClient(r.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			pages++
			return c.List(ctx, list, append(opts, client.Limit(1))...)
		},
	})
	page, err := r.over(c).Page(t.Context(), r.name)
	if err != nil || pages < 2 {
		t.Fatalf("%d pages: %v", pages, err)
	}
	if got := page.Elsewhere[theirs.UID]; got != other.name {
		t.Errorf("the other's row is with %q, want %q", got, other.name)
	}
	if _, both := page.Elsewhere[mine.UID]; both || page.Abandoned[mine.UID].Host != "box-1" {
		t.Errorf("its own row is taken for another's: %+v", page)
	}
}

// Nothing is remembered of providers that are gone.
func TestProvidersThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.rec.Event(r.name, true, "HostInTrouble", "before there is an object")
	r.reconcile()
	r.abandon(1)
	if err := r.rec.Strike(t.Context(), r.name, []string{uid(1)}); err != nil {
		t.Fatal(err)
	}
	r.has()
	for range 3 {
		r.reconcile()
	}
	r.rec.Event(r.name, true, "HostInTrouble", "after its end")
	r.reconcile()
	if n := proxyprovider.Remembered(r.rec); r.get() != nil || n != 0 {
		t.Errorf("%d things are remembered", n)
	}
}
