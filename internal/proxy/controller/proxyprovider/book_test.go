package proxyprovider_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/controller/proxyprovider"
	"fleetdesk/internal/proxy/sweep"
	"fleetdesk/internal/testkit/kube"
)

func uidsOf(o *v1alpha1.ProxyProvider) (uids []string) {
	for _, a := range o.Status.Abandoned {
		uids = append(uids, a.UID)
	}
	slices.Sort(uids)
	return uids
}

func TestAbandonWritesDownOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.has() // also of a provider that the file does not have, without an object
	first := instance(1)
	first.ProviderID, first.Host = "", ""
	if err := r.rec.Abandon(t.Context(), r.name, first); err != nil {
		t.Fatal(err)
	}
	later := instance(1)
	later.Reason, later.Time = "another", metav1.Time{}
	for range 2 {
		if err := r.rec.Abandon(t.Context(), r.name, later); err != nil {
			t.Fatal(err)
		}
	}
	o := r.there()
	want := instance(1)
	if len(o.Status.Abandoned) != 1 {
		t.Fatalf("%+v", o.Status.Abandoned)
	}
	want.Time = o.Status.Abandoned[0].Time
	if diff := cmp.Diff(want, o.Status.Abandoned[0]); diff != "" || want.Time.IsZero() {
		t.Errorf("the first one's, and what the later one knew besides (-want +got):\n%s", diff)
	}
	if !slices.Contains(o.Finalizers, v1alpha1.AbandonedFinalizer) {
		t.Error("nothing keeps the object")
	}
	if diff := cmp.Diff(map[string]sweep.AbandonedInstance{uid(1): {ProviderID: "fake://box-1/p-1", Host: "box-1"}}, r.page().Abandoned); diff != "" {
		t.Errorf("the sweep reads (-want +got):\n%s", diff)
	}
	for _, a := range []v1alpha1.AbandonedInstance{{Proxy: "a/b"}, {UID: "x"}} {
		if err := r.rec.Abandon(t.Context(), r.name, a); fault.Of(err) != fault.Invalid {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// again is a caller that comes again after what time may mend.
func again(do func() error) error {
	err := do()
	for try := 0; try < 20 && (fault.Of(err) == fault.Transient || fault.Of(err) == fault.Timeout); try++ {
		err = do()
	}
	return err
}

// Reconcilers of two processes, many goroutines in each, and the status written
// all the while: nothing that was said to be written down is missing, nothing
// that was struck comes back.
func TestWritersSideBySideLoseNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.swept(r.name, sweepOf())
	recs := []*proxyprovider.Reconciler{r.rec, r.over(r.client)}
	const each, struck = 40, 10
	ctx, cancel := context.WithCancel(t.Context())
	var writers, noise sync.WaitGroup
	for _, rec := range recs {
		noise.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r.checked(r.name, checkOf(fmt.Sprintf("a=OK b=E%d", n)))
				_, _ = r.try(rec) // the end of the test cuts it short
			}
		})
	}
	var failed sync.Map
	for which, rec := range recs {
		for n := range each {
			writers.Go(func() {
				a := instance(which*each + n)
				err := again(func() error { return rec.Abandon(t.Context(), r.name, a) })
				if err == nil && n < struck {
					err = again(func() error { return recs[1-which].Strike(t.Context(), r.name, []string{a.UID}) })
				}
				if err != nil {
					failed.Store(a.UID, err)
				}
			})
		}
	}
	writers.Wait()
	cancel()
	noise.Wait()
	failed.Range(func(k, v any) bool { t.Errorf("%v: %v", k, v); return true })
	var want []string
	for which := range recs {
		for n := struck; n < each; n++ {
			want = append(want, uid(which*each+n))
		}
	}
	o := r.there()
	if diff := cmp.Diff(want, uidsOf(o)); diff != "" {
		t.Errorf("written down (-want +got):\n%s", diff)
	}
	if !slices.Contains(o.Finalizers, v1alpha1.AbandonedFinalizer) {
		t.Error("nothing keeps the object")
	}
}

// Many that come together are a few writes, each has the answer to its own, and
// one that leaves takes nobody along.
func TestManyAtOnceAreFewWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	entered, release := make(chan struct{}), make(chan struct{})
	var writes atomic.Int32
	c := interceptor.NewClient(r.client, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if writes.Add(1) == 1 {
				close(entered)
				select {
				case <-release:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	rec := r.over(c)
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- rec.Abandon(ctx, r.name, instance(0)) }()
	<-entered
	const many = 300
	errs := make(chan error, many)
	for n := range many {
		go func() { errs <- again(func() error { return rec.Abandon(t.Context(), r.name, instance(n+1)) }) }()
	}
	kube.Until(t, "all of them wait", func() string {
		if n := proxyprovider.Waiting(rec, r.name); n < many {
			return fmt.Sprint(n)
		}
		return ""
	})
	leave()
	if err := <-first; err == nil {
		t.Error("one that left was told that it is written down")
	}
	close(release)
	for range many {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	got := len(r.there().Status.Abandoned)
	if got != many || writes.Load() > 10 {
		t.Errorf("%d records by %d writes", got, writes.Load())
	}
}

// The operator is killed before or after each of its writes: a record is never
// in an object that may just vanish, and doing it again comes to the same end.
func TestKilledAtEachWrite(t *testing.T) {
	t.Parallel()
	killed := errors.New("killed")
	for _, after := range []bool{false, true} {
		for _, exists := range []bool{false, true} {
			for k := 1; ; k++ {
				r := newRig(t)
				if exists {
					r.reconcile()
				}
				n := 0
				write := func(do func() error) error {
					n++
					if n < k {
						return do()
					}
					if n == k && after {
						if err := do(); err != nil {
							return err
						}
					}
					return killed
				}
				dying := interceptor.NewClient(r.client, interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
						return write(func() error { return c.Create(ctx, o, opts...) })
					},
					Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
						return write(func() error { return c.Patch(ctx, o, p, opts...) })
					},
					SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
						return write(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
					},
				})
				what := fmt.Sprintf("killed at write %d (after it: %t, object there: %t)", k, after, exists)
				err := r.over(dying).Abandon(t.Context(), r.name, instance(1))
				if o := r.get(); o != nil && len(o.Status.Abandoned) > 0 && len(o.Finalizers) == 0 {
					t.Errorf("%s: a record, and nothing keeps it", what)
				}
				done := err == nil
				if done && len(r.there().Status.Abandoned) != 1 {
					t.Errorf("%s: it says that it is written down, and it is not", what)
				}
				// The next process: whatever it looks at first.
				if rand.IntN(2) == 0 {
					r.reconcile()
				}
				r.abandon(1)
				r.reconcile()
				if o := r.there(); len(o.Status.Abandoned) != 1 || !slices.Contains(o.Finalizers, v1alpha1.AbandonedFinalizer) {
					t.Errorf("%s, and started again: %v %v", what, o.Finalizers, o.Status.Abandoned)
				}
				if done {
					break
				}
				if k > 5 {
					t.Fatal("it never ends")
				}
			}
		}
	}
}

// A finalizer without a record is what a kill may leave: it goes. A record
// without the finalizer is what a person may make: it comes back.
func TestTheFinalizerFollowsTheRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	o := r.there()
	o.Finalizers = []string{v1alpha1.AbandonedFinalizer, "example.com/theirs"}
	if err := r.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	if got := r.there().Finalizers; !slices.Equal(got, []string{"example.com/theirs"}) {
		t.Errorf("without a record: %v", got)
	}
	r.abandon(1)
	o = r.there()
	o.Finalizers = nil
	if err := r.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	if got := r.there(); !slices.Contains(got.Finalizers, v1alpha1.AbandonedFinalizer) || len(got.Status.Abandoned) != 1 {
		t.Errorf("with a record: %v", got.Finalizers)
	}
	if err := r.rec.Strike(t.Context(), r.name, []string{uid(1), uid(2)}); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	if got := r.there(); len(got.Finalizers) != 0 || len(got.Status.Abandoned) != 0 {
		t.Errorf("struck: %v %v", got.Finalizers, got.Status.Abandoned)
	}
}

// A reconciler that reads an old object from its cache must not take the
// finalizer off a record that came since.
func TestAStaleReadTakesNothingAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	o := r.there()
	o.Finalizers = []string{v1alpha1.AbandonedFinalizer}
	if err := r.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	old := r.there()
	r.abandon(1)
	r.checked(r.name, checkOf("a=Error"))
	stale := interceptor.NewClient(r.client, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
			old.DeepCopyInto(into.(*v1alpha1.ProxyProvider))
			return nil
		},
	})
	for _, left := range []bool{false, true} {
		if left {
			r.has() // it would remove the object
		}
		if out, err := r.try(r.over(stale)); err != nil || out.RequeueAfter == 0 {
			t.Errorf("left %t: %+v %v, want to come again", left, out, err)
		}
		if got := r.there(); len(got.Status.Abandoned) != 1 || len(got.Finalizers) != 1 || !got.DeletionTimestamp.IsZero() {
			t.Errorf("left %t: %v %v", left, got.Finalizers, got.Status)
		}
	}
}

func TestAnObjectThatSomebodyElseKeeps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	o := r.there()
	o.Finalizers = []string{"example.com/theirs"}
	if err := r.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.delete()
	r.reconcile()
	err := r.rec.Abandon(t.Context(), r.name, instance(1))
	if fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), "finalizer of somebody else") {
		t.Errorf("got %v", err)
	}
	o = r.there()
	o.Finalizers = nil
	if err := r.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.abandon(1)
	o = r.there()
	if len(o.Status.Abandoned) != 1 || !o.DeletionTimestamp.IsZero() {
		t.Errorf("%+v", o)
	}
	// A person takes ours off while theirs holds: there is no way back.
	o.Finalizers = append(o.Finalizers, "example.com/theirs")
	if err := r.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.delete()
	o = r.there()
	o.Finalizers = []string{"example.com/theirs"}
	if err := r.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	if err := r.rec.Strike(t.Context(), r.name, []string{uid(1)}); err != nil || len(r.there().Status.Abandoned) != 0 {
		t.Errorf("it cannot be struck: %v", err)
	}
}

func TestTheBookWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   fault.Class
	}{
		"away":      {"", errors.New("connection refused"), fault.Unavailable},
		"forbidden": {"a role is missing", apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("proxyproviders").GroupResource(), r.name, nil), fault.Denied},
		"conflict":  {"for ever", apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("proxyproviders").GroupResource(), r.name, nil), fault.Transient},
		"too large": {"a person has to act", apierrors.NewRequestEntityTooLargeError("limit is 3145728"), fault.Quota},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writes := 0
			c := interceptor.NewClient(r.client, interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					writes++
					return tc.err
				},
			})
			if err := r.over(c).Abandon(t.Context(), r.name, instance(1)); fault.Of(err) != tc.want || !strings.Contains(err.Error(), r.name) {
				t.Errorf("%s: %v, want class %s", tc.reason, err, tc.want)
			}
			if writes > 20 {
				t.Errorf("%d writes", writes)
			}
			none := interceptor.NewClient(r.client, interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return tc.err
				},
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return tc.err },
			})
			if name == "too large" || name == "conflict" {
				return // no answers to a read
			}
			if _, err := r.over(none).Page(t.Context(), r.name); fault.Of(err) != tc.want {
				t.Errorf("page: %v", err)
			}
			if uids, err := r.over(none).Owners(t.Context()); fault.Of(err) != tc.want || uids != nil {
				t.Errorf("owners: %v %v", uids, err)
			}
		})
	}
	missing := newRig(t)
	if diff := cmp.Diff(sweep.Page{}, missing.page()); diff != "" {
		t.Errorf("without an object:\n%s", diff)
	}
	if err := missing.rec.Strike(t.Context(), missing.name, []string{"x"}); err != nil {
		t.Errorf("without an object: %v", err)
	}
}

// 1,100 Proxies are three pages of metadata as of one moment; a place in the
// list that the server forgot means to begin anew.
func TestOwnersAreWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	want := map[string]bool{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for part := range 11 {
		group.Go(func() {
			for n := range 100 {
				px := r.proxy(fmt.Sprintf("p-%d-%d", part, n))
				mu.Lock()
				want[string(px.UID)] = true
				mu.Unlock()
			}
		})
	}
	group.Wait()
	going := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: r.name, Name: "going", Finalizers: []string{v1alpha1.Finalizer}}, Spec: v1alpha1.ProxySpec{Provider: r.name}}
	if err := errors.Join(r.client.Create(t.Context(), going), r.client.Delete(t.Context(), going)); err != nil {
		t.Fatal(err)
	}
	want[string(going.UID)] = true

	var pages, forget int
	hook := func(int) {}
	c := interceptor.NewClient(r.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*metav1.PartialObjectMetadataList); !ok {
				t.Errorf("it lists %T", list)
			}
			var o client.ListOptions
			o.ApplyOptions(opts)
			if o.Limit != 500 {
				t.Errorf("it asks for %d", o.Limit)
			}
			pages++
			if o.Continue != "" && forget > 0 {
				forget--
				return apierrors.NewResourceExpired("the provided continue parameter is too old")
			}
			hook(pages)
			return c.List(ctx, list, opts...)
		},
	})
	rec := r.over(c)
	missing := func(got map[string]bool) (n int) {
		for uid := range maps.Keys(want) {
			if !got[uid] {
				n++
			}
		}
		return n
	}
	got, err := rec.Owners(t.Context())
	if err != nil || missing(got) != 0 || pages < 3 {
		t.Errorf("%v: %d of %d, %d pages", err, missing(got), len(want), pages)
	}
	// Deleted between two pages: as of one moment it was there.
	pages = 0
	gone := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: r.name, Name: "p-9-99"}}
	hook = func(page int) {
		if page == 2 {
			if err := r.client.Delete(t.Context(), gone); err != nil {
				t.Error(err)
			}
		}
	}
	if got, err = rec.Owners(t.Context()); err != nil || missing(got) != 0 {
		t.Errorf("%v: %d are missing", err, missing(got))
	}
	hook = func(int) {}
	forget, pages = 2, 0
	if got, err = rec.Owners(t.Context()); err != nil || missing(got) != 1 || pages < 7 {
		t.Errorf("begun anew: %v: %d are missing, %d pages", err, missing(got), pages)
	}
	forget = 1000
	if got, err = rec.Owners(t.Context()); fault.Of(err) != fault.Unavailable || got != nil {
		t.Errorf("never whole: %v %d", err, len(got))
	}
}
