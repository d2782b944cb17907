package proxyset

import (
	"context"
	"log/slog"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fleetdesk/api/v1alpha1"
)

// What was asked for counts from then on, whatever the cache shows; and when an
// answer is lost, the set is looked at uncached before anything else is done.
func TestWhatBecameOfARequest(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "proxies"}
	for name, tc := range map[string]struct {
		reason               string
		err                  error
		failed, counts, look bool
	}{
		"deleted":        {"", nil, false, true, false},
		"gone":           {"the cache may have it still", apierrors.NewNotFound(resource, "a"), false, true, false},
		"changed":        {"another one may be the right one now", apierrors.NewConflict(resource, "a", context.Canceled), true, false, false},
		"no answer":      {"it may have been carried out", context.DeadlineExceeded, true, false, true},
		"server trouble": {"", apierrors.NewInternalError(context.Canceled), true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(s); err != nil {
				t.Fatal(err)
			}
			var asked client.DeleteOptions
			c := fake.NewClientBuilder().WithScheme(s).WithInterceptorFuncs(interceptor.Funcs{
				Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
					asked.ApplyOptions(opts)
					return tc.err
				},
			}).Build()
			r, err := New(Options{Client: c, Events: events.NewFakeRecorder(10), Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			p := &pass{r: r, set: &v1alpha1.ProxySet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}, now: noon}
			p.book = r.books.get(client.ObjectKeyFromObject(p.set), "u")
			p.book.found(nil, nil, noon)
			a := px("a", func(m *member) { m.uid, m.version = "uid-a", "7" })
			err = p.deleteAll(t.Context(), &state{now: noon}, &decision{deletions: []deletion{{member: &a, cause: causeAge}}})
			if (err != nil) != tc.failed {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if p := asked.Preconditions; p == nil || *p.UID != "uid-a" || *p.ResourceVersion != "7" {
				t.Errorf("asked with %+v", asked)
			}
			if got := p.book.apply([]member{{name: "a", uid: "uid-a"}}, nil); got[0].terminating != tc.counts {
				t.Errorf("%s: counts as being deleted: %t", tc.reason, got[0].terminating)
			}
			if got := p.book.stale(noon); got != tc.look {
				t.Errorf("%s: is looked at uncached: %t", tc.reason, got)
			}
		})
	}
}
