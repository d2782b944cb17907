package proxyset

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/lease"
)

// Options are what a Reconciler is made of.
type Options struct {
	// Client reads from the manager's cache and writes; Reader reads uncached.
	Client client.Client
	Reader client.Reader
	// Bans is the desk's: what is banned by at least so many targets, those with
	// the most first. Nil: nobody knows, and nothing is replaced for bans.
	Bans func(ctx context.Context, targets, limit int) ([]lease.BanCount, error)
	// Holds is the desk's: which of these keys somebody holds now. Nil: nobody
	// knows, and held ones are given up like any other (each waits for its lease
	// to end before its machine goes).
	Holds func(ctx context.Context, keys []string) (map[string]bool, error)
	// Events records what is done to a set's Proxies, and why.
	Events events.EventRecorder
	// Now is the clock; nil for time.Now.
	Now func() time.Time
	// Metrics registers the controller's metrics; nil for none.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

const (
	kind = "ProxySet"
	// indexOwner finds Proxies by the UID of the ProxySet that owns them.
	indexOwner = "metadata.owner.proxyset"
	// gather is how long changes of a set's Proxies are gathered before it is
	// looked at: making many changes each of them several times.
	gather = 200 * time.Millisecond
	// resync is the net behind lost wake-ups.
	resync = 10 * time.Minute
	// bansPause is how long a set goes without asking what is banned.
	bansPause = 30 * time.Second
	// conflictPause lets the cache catch up with what others just wrote.
	conflictPause = 100 * time.Millisecond
	// reconcileTimeout bounds one reconcile, apiTimeout one request in it and
	// deskTimeout one question to the desk.
	reconcileTimeout = 2 * time.Minute
	apiTimeout       = 10 * time.Second
	deskTimeout      = 5 * time.Second
	// workers is how many sets are reconciled at once.
	workers = 4
	// maxText bounds the text of a condition or an Event, in bytes.
	maxText = 1024
)

// Reconciler reconciles ProxySets.
type Reconciler struct {
	o       Options
	books   *books
	banBook *banBook
	metrics *metrics
	queue   atomic.Pointer[queue]
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// New returns a reconciler; SetupWithManager puts it to work.
func New(o Options) (*Reconciler, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	return &Reconciler{o: o, books: newBooks(), banBook: &banBook{ask: o.Bans, log: o.Log}, metrics: m}, nil
}

// Index adds the field by which this controller looks Proxies up: a set's own
// are found without looking at the others of its namespace.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &v1alpha1.Proxy{}, indexOwner, func(o client.Object) []string {
		if owner := ownerOf(o); owner != nil {
			return []string{string(owner.UID)}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("indexing Proxies by their ProxySet: %w", err)
	}
	return nil
}

// ownerOf is the ProxySet that controls a Proxy; nil for none.
func ownerOf(o metav1.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || owner.Kind != kind || owner.APIVersion != v1alpha1.GroupVersion.String() {
		return nil
	}
	return owner
}

// Wake has a set looked at again soon; it never blocks. Before the controller
// starts it does nothing, since the start looks at every set.
func (r *Reconciler) Wake(set types.NamespacedName) {
	if q := r.queue.Load(); q != nil {
		(*q).Add(reconcile.Request{NamespacedName: set})
	}
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	ownQueue := source.Func(func(_ context.Context, q queue) error {
		r.queue.Store(&q)
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("proxyset").
		For(&v1alpha1.ProxySet{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&v1alpha1.Proxy{}, r.owned()).
		WatchesRawSource(ownQueue).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
}

// owned has the set of a Proxy that changed looked at soon.
func (r *Reconciler) owned() handler.EventHandler {
	tell := func(o client.Object, q queue) {
		owner := ownerOf(o)
		if owner == nil {
			return
		}
		r.books.seen(owner.UID, o.GetName())
		q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}, gather)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { tell(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				tell(e.ObjectOld, q) // its owner may have changed
				tell(e.ObjectNew, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { tell(e.Object, q) },
	}
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	set := &v1alpha1.ProxySet{}
	if err := r.o.Client.Get(ctx, req.NamespacedName, set); err != nil {
		if apierrors.IsNotFound(err) {
			r.books.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	p := &pass{r: r, set: set, book: r.books.get(req.NamespacedName, set.UID), now: r.o.Now()}
	work := p.keep
	if !set.DeletionTimestamp.IsZero() {
		work = p.remove
	}
	after, err := work(ctx)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// Somebody wrote in between: look again with fresh eyes.
		return ctrl.Result{RequeueAfter: conflictPause}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: after}, nil
}
