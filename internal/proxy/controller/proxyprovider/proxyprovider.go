// Package proxyprovider keeps the ProxyProvider objects: one for each provider
// of the providers file, showing what its last check and its last sweep found.
// It is also the book of those instances that were left to a person, since
// their Proxies are gone and no other object could hold them.
package proxyprovider

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/monitor"
	"fleetdesk/internal/proxy/sweep"
)

// State is what the providers file has of one provider.
type State struct {
	Name, Kind string
	// Err: the provider's section is refused, or it could not be built; it is
	// disabled.
	Err error
	// Refused: the file on disk is refused, and what is in force is older.
	Refused error
}

// Options are what a Reconciler is made of.
type Options struct {
	// Installation is the identity of this operator. An object that bears the
	// mark of another one is left alone. Empty: every object is ours.
	Installation string
	// Client reads from the manager's cache and writes; Reader is uncached.
	Client client.Client
	Reader client.Reader
	// States returns the configured providers.
	States func() []State
	// Checks and Sweeps return the last report of a provider, and whether there
	// is one yet.
	Checks func(name string) (monitor.Report, bool)
	Sweeps func(name string) (sweep.Report, bool)
	// Asked is told of a provider whose annotations changed: its next sweep
	// should come soon. It must not block.
	Asked  func(name string)
	Events events.EventRecorder
	Log    *slog.Logger
}

const (
	// gather is how long changes of a provider are gathered before they are
	// shown: a check and a sweep that end together make one write.
	gather = time.Second
	// recheck is the net behind lost wake-ups, and how often it is asked
	// whether a provider that left the file is still named by a Proxy.
	recheck = 30 * time.Second
	// conflictPause lets the cache catch up with what others just wrote.
	conflictPause = 100 * time.Millisecond
	// reconcileTimeout bounds one reconcile: reads from memory, two writes.
	reconcileTimeout = 30 * time.Second
	workers          = 4
)

// Reconciler keeps the ProxyProviders. In the steady state it writes each one
// once for each check and once for each sweep that ends, since both carry their
// time; what ends within a second makes one write.
type Reconciler struct {
	o     Options
	mark  string // of this installation
	queue atomic.Pointer[queue]

	mu sync.Mutex
	// asked is what is known of each provider's annotations.
	asked map[string]*asked
	books map[string]*book // those that are in use
	// others are the marks of other operators on objects of our providers'
	// names that were told of.
	others map[string]string
	// untold are Events of providers whose object is not there yet.
	untold map[string][]event
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

var _ sweep.Book = (*Reconciler)(nil)

// New returns a reconciler; SetupWithManager puts it to work.
func New(o Options) *Reconciler {
	if o.Asked == nil {
		o.Asked = func(string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Reconciler{
		o: o, mark: markOf(o.Installation), asked: map[string]*asked{}, books: map[string]*book{},
		others: map[string]string{}, untold: map[string][]event{},
	}
}

// Changed has a provider's object written again soon; it never blocks. Before
// the controller starts it does nothing, since the start looks at all of them.
func (r *Reconciler) Changed(name string) {
	if q := r.queue.Load(); q != nil {
		(*q).AddAfter(request(name), gather)
	}
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// SetupWithManager registers the controller, which runs on the leader alone. It
// looks at every configured provider and at every object at its start.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	ownQueue := source.Func(func(_ context.Context, q queue) error {
		r.queue.Store(&q)
		for _, s := range r.o.States() {
			q.Add(request(s.Name))
		}
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("proxyprovider").
		For(&v1alpha1.ProxyProvider{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		WatchesRawSource(ownQueue).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
}

// state returns what the providers file has of that name.
func (r *Reconciler) state(name string) *State {
	for _, s := range r.o.States() {
		if s.Name == name {
			return &s
		}
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	out, err := r.reconcile(ctx, req.Name)
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: conflictPause}, nil
	case err != nil:
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return out, nil
}

func (r *Reconciler) reconcile(ctx context.Context, name string) (ctrl.Result, error) {
	in := r.look(name)
	o := &v1alpha1.ProxyProvider{}
	err := r.o.Client.Get(ctx, types.NamespacedName{Name: name}, o)
	switch {
	case apierrors.IsNotFound(err) && in.state == nil:
		r.forget(name)
		return ctrl.Result{}, nil
	case apierrors.IsNotFound(err):
		o = &v1alpha1.ProxyProvider{ObjectMeta: metav1.ObjectMeta{Name: name}}
		r.putMark(o)
		if err := r.o.Client.Create(ctx, o); err != nil {
			return ctrl.Result{}, fmt.Errorf("making ProxyProvider %s: %w", name, err)
		}
	case err != nil:
		return ctrl.Result{}, err
	case r.foreign(o):
		if in.state == nil {
			r.forget(name) // what another operator has is none of our business
		} else {
			r.tellForeign(o)
			r.tellLate(o)
		}
		return ctrl.Result{}, nil // a change of it wakes us
	}
	r.tellLate(o)
	written := len(o.Status.Abandoned) > 0
	if !o.DeletionTimestamp.IsZero() && !written {
		return ctrl.Result{}, r.letGo(ctx, o) // its end wakes us, to make it anew
	}
	if in.state == nil {
		if in.users, err = r.users(ctx, name); err != nil {
			return ctrl.Result{}, err
		}
		if in.users.count == 0 && !written && leftBehind(o) == 0 {
			return ctrl.Result{}, r.remove(ctx, o)
		}
	}
	if err := r.hold(ctx, o, written); err != nil {
		return ctrl.Result{}, err
	}
	r.judge(o, in)
	return ctrl.Result{RequeueAfter: recheckOf(in)}, r.write(ctx, o, in)
}

// look gathers what is known of a provider.
func (r *Reconciler) look(name string) known {
	in := known{state: r.state(name), now: metav1.Now()}
	if in.state != nil {
		in.check, in.checked = r.o.Checks(name)
		in.sweep, in.swept = r.o.Sweeps(name)
	}
	return in
}

// recheckOf is when to look again unasked: a report that is there tells of
// itself when the next one comes.
func recheckOf(in known) time.Duration {
	if in.state == nil || !in.checked || !in.swept {
		return recheck
	}
	return 0
}

// users are the Proxies that name a provider.
type users struct {
	count int
	first []string
}

// users looks in the cache. It is asked only of providers that left the file.
func (r *Reconciler) users(ctx context.Context, name string) (u users, err error) {
	var list v1alpha1.ProxyList
	if err := r.o.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return u, fmt.Errorf("looking for Proxies of provider %s: %w", name, err)
	}
	const most = 3
	for i := range list.Items {
		px := &list.Items[i]
		if px.Spec.Provider != name {
			continue
		}
		if u.count++; len(u.first) < most {
			u.first = append(u.first, px.Namespace+"/"+px.Name)
		}
	}
	return u, nil
}

// hold has the object held back from deletion while instances are written down
// in it, and no longer, and has it marked as ours. Who writes one down adds the
// finalizer first.
func (r *Reconciler) hold(ctx context.Context, o *v1alpha1.ProxyProvider, written bool) error {
	if !o.DeletionTimestamp.IsZero() {
		return nil // to an object that is going none can be added
	}
	if controllerutil.ContainsFinalizer(o, v1alpha1.AbandonedFinalizer) == written && r.marked(o) {
		return nil
	}
	return r.setFinalizer(ctx, o, written)
}

func (r *Reconciler) setFinalizer(ctx context.Context, o *v1alpha1.ProxyProvider, on bool) error {
	base := o.DeepCopy()
	r.putMark(o)
	if on {
		controllerutil.AddFinalizer(o, v1alpha1.AbandonedFinalizer)
	} else {
		controllerutil.RemoveFinalizer(o, v1alpha1.AbandonedFinalizer)
	}
	return r.o.Client.Patch(ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
}

// letGo ends the deletion of an object in which nothing is written down.
func (r *Reconciler) letGo(ctx context.Context, o *v1alpha1.ProxyProvider) error {
	if !controllerutil.ContainsFinalizer(o, v1alpha1.AbandonedFinalizer) {
		return nil // another's finalizer holds it
	}
	return r.setFinalizer(ctx, o, false)
}

// remove deletes the object of a provider that left the file, unless somebody
// wrote to it since it was read.
func (r *Reconciler) remove(ctx context.Context, o *v1alpha1.ProxyProvider) error {
	r.o.Log.Info("a provider that left the providers file is forgotten", "provider", o.Name)
	return r.o.Client.Delete(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
}
