// Package proxypool is the controller of ProxyPool objects. The desk's rows are
// written elsewhere (package deskkeys); this one shows in each object's status
// what became of it.
package proxypool

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/deskkeys"
)

// Options are what a Reconciler is made of.
type Options struct {
	// Client reads from the manager's cache and writes.
	Client client.Client
	// Pool says what the desk's rows have of a pool.
	Pool func(pool types.NamespacedName) deskkeys.State
}

const (
	// gather is how long changes of a pool are gathered before they are shown:
	// its counts change with each of its Proxies.
	gather = time.Second
	// recheck is the net behind lost wake-ups of a pool that is not in force.
	recheck = 30 * time.Second
	// conflictPause lets the cache catch up with what others just wrote.
	conflictPause = 100 * time.Millisecond
	// reconcileTimeout bounds one reconcile: a read from memory and one write.
	reconcileTimeout = 30 * time.Second
	// maxText bounds the text of a condition, in bytes.
	maxText = 1024
	workers = 4
)

// Reconciler writes the status of ProxyPools.
type Reconciler struct {
	o     Options
	queue atomic.Pointer[queue]
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// New returns a reconciler; SetupWithManager puts it to work.
func New(o Options) *Reconciler { return &Reconciler{o: o} }

// Changed has a pool's status written again soon; it never blocks. Before the
// controller starts it does nothing, since the start looks at every pool.
func (r *Reconciler) Changed(pool types.NamespacedName) {
	if q := r.queue.Load(); q != nil {
		(*q).AddAfter(reconcile.Request{NamespacedName: pool}, gather)
	}
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	ownQueue := source.Func(func(_ context.Context, q queue) error {
		r.queue.Store(&q)
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("proxypool").
		For(&v1alpha1.ProxyPool{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		WatchesRawSource(ownQueue).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := &v1alpha1.ProxyPool{}
	if err := r.o.Client.Get(ctx, req.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := o.Status.DeepCopy()
	known := summarize(o, r.o.Pool(req.NamespacedName), metav1.Now())
	out := ctrl.Result{}
	if !known {
		out.RequeueAfter = recheck
	}
	if equality.Semantic.DeepEqual(before, &o.Status) {
		return out, nil
	}
	switch err := r.o.Client.Status().Update(ctx, o); {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictPause}, nil
	case err != nil:
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return out, nil
}

const pending = "the desk does not have it yet"

// summarize writes what is known into the status, and reports whether that is
// all there is to know.
func summarize(o *v1alpha1.ProxyPool, s deskkeys.State, now metav1.Time) (known bool) {
	st := &o.Status
	st.Proxies, st.Ready = int32(s.Proxies), int32(s.Ready)
	st.ExitIPs, st.Refused = int32(s.ExitIPs), int32(s.Refused)
	set := func(status metav1.ConditionStatus, reason, message string) {
		message = strings.ToValidUTF8(message[:min(len(message), maxText)], "")
		apimeta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionAccepted, Status: status, Reason: reason, Message: message,
			ObservedGeneration: o.Generation, LastTransitionTime: now,
		})
	}
	name := deskkeys.PoolName(o.Namespace, o.Name)
	answered := func(status metav1.ConditionStatus, reason, message string) bool {
		st.ObservedGeneration = o.Generation
		set(status, reason, message)
		return true
	}
	switch {
	case s.Generation != o.Generation && s.Generation != 0:
		set(metav1.ConditionUnknown, v1alpha1.ReasonPending, pending) // all else is about another spec
	case s.Stored && s.Err == nil:
		message := "its Proxies are taken as pool " + name
		if s.Refused > 0 {
			message += fmt.Sprintf("; %d are left out, since they leak or no origin told whether they do (status.leaks of each says which)", s.Refused)
		}
		return answered(metav1.ConditionTrue, v1alpha1.ReasonAccepted, message)
	case fault.CodeOf(s.Err) == deskkeys.CodeSelector:
		return answered(metav1.ConditionFalse, v1alpha1.ReasonInvalidSelector, s.Err.Error())
	case fault.CodeOf(s.Err) == "fixed":
		return answered(metav1.ConditionFalse, v1alpha1.ReasonNameTaken, fmt.Sprintf(
			"the desk has a published list named %s: name this pool otherwise, or that list", name))
	case fault.Of(s.Err) == fault.Invalid:
		return answered(metav1.ConditionFalse, v1alpha1.ReasonInvalid, s.Err.Error())
	case s.Err != nil:
		set(metav1.ConditionUnknown, fault.Of(s.Err).Meaning().Reason, "the desk cannot be written, and it is tried again: "+s.Err.Error())
	default:
		set(metav1.ConditionUnknown, v1alpha1.ReasonPending, pending)
	}
	return false
}
