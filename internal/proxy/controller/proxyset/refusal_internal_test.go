package proxyset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fleetdesk/api/v1alpha1"
)

// bench is one set and a reconciler that is called by hand, with a clock that
// stands still, an API of which single answers are the test's, and a cache.
type bench struct {
	t   *testing.T
	r   *Reconciler
	api client.WithWatch
	now time.Time
	// creates counts Proxies that were asked for, create is the API's answer; gets
	// counts single ones that were read uncached.
	creates, gets int
	create        func(ctx context.Context, next client.WithWatch, o client.Object) error
	// more has the API say, of each list of metadata, that there is more.
	more bool
	// cached is what the cache says of Proxies; nil for how it is.
	cached []v1alpha1.Proxy
	key    types.NamespacedName
}

func newBench(t *testing.T, replicas int32, there ...client.Object) *bench {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	set := &v1alpha1.ProxySet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "u", Generation: 1}}
	set.Spec.Replicas, set.Spec.Template.Spec.Provider = &replicas, "home"
	b := &bench{t: t, now: noon, key: client.ObjectKeyFromObject(set)}
	b.api = fake.NewClientBuilder().WithScheme(s).WithObjects(append(there, set)...).WithStatusSubresource(set).
		WithIndex(&v1alpha1.Proxy{}, indexOwner, func(o client.Object) []string {
			if owner := ownerOf(o); owner != nil {
				return []string{string(owner.UID)}
			}
			return nil
		}).Build()
	c := interceptor.NewClient(b.api, interceptor.Funcs{
		Create: func(ctx context.Context, next client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			b.creates++
			if b.create != nil {
				return b.create(ctx, next, o)
			}
			return next.Create(ctx, o)
		},
		List: func(ctx context.Context, next client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if all, ok := l.(*v1alpha1.ProxyList); ok && b.cached != nil {
				all.Items = b.cached
				return nil
			}
			return next.List(ctx, l, opts...)
		},
	})
	reader := interceptor.NewClient(b.api, interceptor.Funcs{
		Get: func(ctx context.Context, next client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			b.gets++
			return next.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, next client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			err := next.List(ctx, l, opts...)
			if b.more {
				l.SetContinue("more")
			}
			return err
		},
	})
	r, err := New(Options{Client: c, Reader: reader, Events: events.NewFakeRecorder(1000), Now: func() time.Time { return b.now }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b.r = r
	return b
}

func (b *bench) reconcile() (time.Duration, error) {
	res, err := b.r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: b.key})
	return res.RequeueAfter, err
}

// set is the set as it is; nil when it is gone.
func (b *bench) set() *v1alpha1.ProxySet {
	b.t.Helper()
	s := &v1alpha1.ProxySet{}
	err := b.api.Get(b.t.Context(), b.key, s)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bench) says() string {
	b.t.Helper()
	c := b.set().Status.Conditions[0]
	return c.Reason + ": " + c.Message
}

func (b *bench) proxies() []v1alpha1.Proxy {
	b.t.Helper()
	var list v1alpha1.ProxyList
	if err := b.api.List(b.t.Context(), &list); err != nil {
		b.t.Fatal(err)
	}
	return list.Items
}

var resource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "proxies"}

// A Proxy that the API does not make is asked for again after a pause, whatever
// wakes the set meanwhile, and at once when the spec is another one. The
// condition says why in words that stay the same.
func TestWhatIsRefusedIsAskedForAgainAfterAPause(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(name string) error
		failed bool
	}{
		"a quota":   {func(name string) error { return apierrors.NewForbidden(resource, name, errors.New("exceeded quota")) }, false},
		"no answer": {func(name string) error { return fmt.Errorf("making %s: %w", name, context.DeadlineExceeded) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1)
			b.create = func(_ context.Context, _ client.WithWatch, o client.Object) error { return tc.answer(o.GetName()) }
			var said, version string
			for i := range 12 {
				before := b.creates
				after, err := b.reconcile()
				switch {
				case (err != nil) != tc.failed:
					t.Fatalf("error %v", err)
				case b.creates > before+1 || !tc.failed && b.creates == before:
					t.Fatalf("look %d: asked for %d", i, b.creates-before)
				}
				if err != nil { // the queue's own pause is shorter
					if after, err = b.reconcile(); err != nil {
						t.Fatal(err)
					}
				}
				if after <= 0 || after > time.Minute || i > 0 && i < 5 && !tc.failed && after < refusedPause<<i {
					t.Fatalf("look %d: looks again after %s", i, after)
				}
				before = b.creates
				for range 10 { // whatever wakes it
					if _, err := b.reconcile(); err != nil {
						t.Fatal(err)
					}
				}
				if b.creates != before {
					t.Fatalf("look %d: asked for %d more before the pause ended", i, b.creates-before)
				}
				if tc.failed {
					b.now = b.now.Add(seenAfter)
				}
				b.now = b.now.Add(after)
				if i == 2 {
					said, version = b.says(), b.set().ResourceVersion
				}
			}
			if !tc.failed && (!strings.HasPrefix(said, v1alpha1.ReasonHeldBack) || b.says() != said || b.set().ResourceVersion != version) {
				t.Errorf("it says %q, then %q", said, b.says())
			}
			before := b.creates
			if _, err := b.reconcile(); (err != nil) != tc.failed || b.creates != before+1 {
				t.Fatalf("%d asked for, error %v", b.creates-before, err)
			}
			b.create = nil
			before++
			if tc.failed {
				b.now = b.now.Add(seenAfter + time.Second) // it is looked for; the pause goes on
			}
			s := b.set()
			s.Generation++
			if err := b.api.Update(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if _, err := b.reconcile(); err != nil || b.creates != before+1 {
				t.Errorf("another spec: %d asked for, %v", b.creates-before, err)
			}
		})
	}
}

// That a Proxy is there already may be the answer to a request that is repeated
// below us: it counts, and none too many is made.
func TestOneThatIsThereAlreadyCounts(t *testing.T) {
	b := newBench(t, 1)
	b.cached = []v1alpha1.Proxy{}
	b.create = func(ctx context.Context, next client.WithWatch, o client.Object) error {
		if err := next.Create(ctx, o); err != nil {
			return err
		}
		return apierrors.NewAlreadyExists(resource, o.GetName())
	}
	for range 40 {
		_, _ = b.reconcile() // an error for the one that is said to be there
		b.now = b.now.Add(time.Second)
	}
	if got := len(b.proxies()); got != 1 {
		t.Errorf("%d were made", got)
	}
}

// A set under deletion waits for what may come to be late of what it asked for.
func TestASetWaitsForProxiesWhoseMakingWasNotAnswered(t *testing.T) {
	b := newBench(t, 1)
	var late client.Object
	b.create = func(_ context.Context, _ client.WithWatch, o client.Object) error {
		late = o.DeepCopyObject().(client.Object)
		return context.DeadlineExceeded
	}
	if _, err := b.reconcile(); err == nil {
		t.Fatal("no error")
	}
	b.create = func(context.Context, client.WithWatch, client.Object) error {
		return apierrors.NewForbidden(resource, "a", errors.New("exceeded quota"))
	}
	b.now = b.now.Add(seenAfter + time.Second)
	if _, err := b.reconcile(); err != nil { // it is looked for, and not found
		t.Fatal(err)
	}
	if err := b.api.Delete(t.Context(), b.set()); err != nil {
		t.Fatal(err)
	}
	step := func() {
		t.Helper()
		after, err := b.reconcile()
		if err != nil || after <= 0 || b.set() == nil {
			t.Fatalf("after %s, error %v, set %v", after, err, b.set())
		}
	}
	step()
	late.SetResourceVersion("")
	if err := b.api.Create(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	step()
	if got := b.proxies(); len(got) != 0 {
		t.Errorf("the late one is there still: %v", got[0].Name)
	}
	step()
	b.now = noon.Add(lateAfter)
	if _, err := b.reconcile(); err != nil || b.set() != nil {
		t.Errorf("error %v, set %v", err, b.set())
	}
}

// A set under deletion deletes what is its own now: one that somebody made
// nobody's own since it was seen stays.
func TestWhatIsNobodysOwnIsNotDeletedWithTheSet(t *testing.T) {
	b := newBench(t, 2)
	if _, err := b.reconcile(); err != nil {
		t.Fatal(err)
	}
	b.cached = b.proxies() // it is behind from now on
	px := b.proxies()[0]
	px.OwnerReferences = nil
	if err := errors.Join(b.api.Update(t.Context(), &px), b.api.Delete(t.Context(), b.set())); err != nil {
		t.Fatal(err)
	}
	after, err := b.reconcile()
	if err != nil || after != conflictPause {
		t.Errorf("after %s, error %v", after, err)
	}
	if got := b.proxies(); len(got) != 1 || got[0].Name != px.Name {
		t.Errorf("left are %d", len(got))
	}
}

// However many of its Proxies lost their labels, a set knows them as its own,
// and does not ask for one after the other.
func TestAllLabelsTakenOffChangeNothing(t *testing.T) {
	const many = maxMissing + 2
	set := &v1alpha1.ProxySet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "u"}}
	set.Spec.Template.Spec.Provider = "home"
	var there []client.Object
	for i := range many {
		px := newProxy(set, fmt.Sprint("s-", i), "0123456789")
		px.UID, px.Labels = types.UID(fmt.Sprint(i)), nil
		there = append(there, px)
	}
	b := newBench(t, many+1, there...)
	if _, err := b.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got := len(b.proxies()); b.creates != 1 || got < many || b.gets > maxMissing {
		t.Errorf("%d were made, and %d are there; %d were read one by one", b.creates, got, b.gets)
	}
}

// Where there are more Proxies than a set looks at, it does nothing and says so.
func TestASetThatDoesNotKnowItsProxiesSaysSo(t *testing.T) {
	b := newBench(t, 1)
	b.more = true
	for range 3 {
		if _, err := b.reconcile(); err == nil {
			t.Error("no error")
		}
	}
	if got := b.says(); !strings.HasPrefix(got, v1alpha1.ReasonHeldBack+": nothing is made or deleted") || b.creates != 0 {
		t.Errorf("made %d, and says %q", b.creates, got)
	}
	b.more = false
	if _, err := b.reconcile(); err != nil || b.creates != 1 {
		t.Errorf("made %d: %v", b.creates, err)
	}
}

// A template that never works costs less and less: one is made anew after half
// an hour, an hour and so on, a day at most, and at the first pace again once
// one works.
func TestATemplateThatNeverWorksCostsLessAndLess(t *testing.T) {
	b := newBench(t, 1)
	s := b.set()
	s.Spec.Update = v1alpha1.ProxySetUpdate{MaxUnavailable: new(intstr.FromInt32(1)), MaxSurge: new(intstr.FromInt32(0))}
	if err := b.api.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	b.now = time.Now().Truncate(time.Second)
	was := map[string]bool{}
	look := func() {
		t.Helper()
		if _, err := b.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	fresh := func() *v1alpha1.Proxy { // the one that was made last, which fails
		t.Helper()
		for _, px := range b.proxies() {
			if was[px.Name] {
				continue
			}
			was[px.Name] = true
			px.UID, px.CreationTimestamp = types.UID(px.Name), metav1.NewTime(b.now)
			px.Status = proxy(v1alpha1.PhaseFailed).Status
			for _, kind := range []string{v1alpha1.ConditionProvisioned, v1alpha1.ConditionReady} {
				px.Status.Conditions = append(px.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonProvisioning, LastTransitionTime: metav1.NewTime(b.now)})
			}
			if err := b.api.Update(t.Context(), &px); err != nil {
				t.Fatal(err)
			}
			return &px
		}
		return nil
	}
	look()
	for i, minutes := range []int{30, 60, 120, 240, 480, 960, 1440, 1440} {
		want := time.Duration(minutes) * time.Minute
		if fresh() == nil {
			t.Fatalf("none was made after %d", i)
		}
		b.now = b.now.Add(want - time.Second)
		look()
		look() // if it went, another one would be made now
		if px := fresh(); px != nil {
			t.Fatalf("round %d: replaced before %s", i, want)
		}
		b.now = b.now.Add(time.Second)
		look() // it goes
		look() // another one is made
	}
	k := b.r.books.get(b.key, "u")
	hash := templateHash(&b.set().Spec.Template)
	if got := k.patience(hash, false); got != maxUnborn {
		t.Errorf("patience %s", got)
	}
	if got := k.patience("another", false); got != unbornAfter {
		t.Errorf("patience with another template %s", got)
	}
	k.replacedUnborn()
	if a, b := k.patience("another", false), k.patience("another", true); a != 2*unbornAfter || b != unbornAfter {
		t.Errorf("patience after one in vain %s, when one works %s", a, b)
	}
}
