package proxyprovider_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/controller/proxyprovider"
	"fleetdesk/internal/proxy/sweep"
)

const hash = "0123456789abcdef"

func held() sweep.Report {
	r := sweepOf(item(sweep.Held, 1))
	r.Hash, r.Fuse = hash, "all of them would go"
	return r
}

// What a person asks for by annotations reaches the sweep; what names nothing
// changes nothing and is told once.
func TestAnnotations(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.swept(r.name, held())
	r.abandon(1)
	r.reconcile()
	quiet := func(what string) {
		t.Helper()
		if events, asked := r.take(); len(events)+len(asked) > 0 {
			t.Errorf("%s: %v %v", what, events, asked)
		}
	}
	tells := func(what string, parts ...string) {
		t.Helper()
		r.reconcile()
		r.reconcile()
		events, asked := r.take()
		if len(events) != 1 || len(asked) != 1 || asked[0] != r.name {
			t.Errorf("%s: Events %q, asked %v: want one each", what, events, asked)
			return
		}
		for _, part := range append(parts, "Warning "+proxyprovider.EventNotUnderstood) {
			if !strings.Contains(events[0], part) {
				t.Errorf("%s: %q, want %q in it", what, events[0], part)
			}
		}
	}
	quiet("no annotation")
	status := r.there().Status

	r.annotate(v1alpha1.ReleaseSweepAnnotation, "fedcba9876543210")
	tells("an unknown hash", "fedcba9876543210", hash, "nothing is released")
	r.annotate(v1alpha1.RemoveAbandonedAnnotation, uid(1)+", "+uid(8)+",,"+uid(9)+","+uid(8))
	tells("unknown UIDs", uid(8)+", "+uid(9)+",", "status.abandoned")
	if diff := cmp.Diff(status, r.there().Status); diff != "" {
		t.Errorf("they changed the status:\n%s", diff)
	}
	want := sweep.Page{
		Abandoned: map[string]sweep.AbandonedInstance{uid(1): {ProviderID: "fake://box-1/p-1", Host: "box-1"}},
		Release:   "fedcba9876543210", Remove: []string{uid(1)},
	}
	if diff := cmp.Diff(want, r.page()); diff != "" {
		t.Errorf("the sweep reads (-want +got):\n%s", diff)
	}

	r.annotate(v1alpha1.ReleaseSweepAnnotation, " "+hash+"\n")
	r.reconcile()
	if events, asked := r.take(); len(events) != 0 || len(asked) != 1 || r.page().Release != hash {
		t.Errorf("the right hash: %v %v %q", events, asked, r.page().Release)
	}
	// It worked, and the annotations stay behind: that is nothing to tell.
	r.swept(r.name, sweepOf())
	if err := r.rec.Strike(t.Context(), r.name, []string{uid(1)}); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	r.reconcile()
	quiet("what was done")
	r.annotate(v1alpha1.ReleaseSweepAnnotation, "aaaaaaaaaaaaaaaa")
	tells("a hash while nothing is held", "nothing is held back")
}

// An operator that has just started knows no set yet, and an annotation set for
// what the one before it showed is right.
func TestAnnotationsOverAStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.swept(r.name, held())
	r.reconcile()
	r.annotate(v1alpha1.ReleaseSweepAnnotation, hash)
	r.world.mu.Lock()
	clear(r.sweeps)
	r.world.mu.Unlock()
	r.rec = r.over(r.client)
	r.reconcile()
	if events, asked := r.take(); len(events) != 0 || len(asked) != 1 {
		t.Errorf("before the first sweep: %v %v", events, asked)
	}
	r.swept(r.name, sweepOf())
	r.reconcile()
	if events, _ := r.take(); len(events) != 0 {
		t.Errorf("its first sweep, in which nothing has its grace yet: %v", events)
	}
}

// Long lists are cut in the text, and their memory is bounded.
func TestManyUnknownUIDs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	var all []string
	for n := range 5000 {
		all = append(all, uid(n))
	}
	r.annotate(v1alpha1.RemoveAbandonedAnnotation, strings.Join(all, ","))
	r.reconcile()
	events, _ := r.take()
	if len(events) != 1 || !strings.Contains(events[0], "and 1990 more") || len(events[0]) > 1100 {
		t.Errorf("%q", events)
	}
}
