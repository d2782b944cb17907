package proxy

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

// Providers is where the reconciler finds the provider that a Proxy names.
type Providers interface {
	// Lookup: NotFound for an unknown name, another class for a provider that
	// is configured and does not work.
	Lookup(name string) (provider.Provider, error)
	// Epoch changes when the provider was built anew.
	Epoch(name string) uint64
}

// Inventory is what listings know of instances.
type Inventory interface {
	Look(providerName, host, uid string) inventory.Sighting
	Note(providerName, uid string, in provider.Instance)
	Drop(providerName, host, uid string)
	// Recoveries changes when a host of the provider answers again.
	Recoveries(providerName string) uint64
	// Refresh asks for a listing soon.
	Refresh(providerName string)
}

// Prober checks proxies and remembers its verdicts.
type Prober interface {
	Watch(key string, s probe.Subject)
	Forget(key string)
	State(key string) (probe.Snapshot, bool)
}

// Options are what a Reconciler is made of.
type Options struct {
	// Client reads from the manager's cache and writes.
	Client client.Client
	// Reader reads uncached: Secrets and ConfigMaps are never cached.
	Reader client.Reader
	// Providers, Inventory and Prober are the operator's own.
	Providers Providers
	Inventory Inventory
	Prober    Prober
	// Desk is where Proxies are leased: a deleted one waits for its lease to
	// end. Nil for nowhere.
	Desk Desk
	// Ledger is where abandoned instances are written down; nil for nowhere.
	Ledger Ledger
	// Trouble returns the reason that the last check gave for a host of a
	// provider while it is not well, [v1alpha1.ReasonCheckFailed] when the check
	// itself failed, and else nothing. The host is empty for a Proxy that was not
	// placed. Nil for never.
	Trouble func(providerName, host string) (reason string)
	// Installation is the identity in every instance's tag.
	Installation string
	// Events records what happened to a Proxy.
	Events events.EventRecorder
	// HealthURL is checked through Proxies of that provider that name none;
	// empty for shallow checks.
	HealthURL func(providerName string) string
	// ProvisionTimeout is how long an instance may take from its first Create
	// to Running before the phase says Failed (work on it goes on).
	ProvisionTimeout time.Duration
	// Patience is how long a provider may take for a deletion before the Proxy
	// says so and names the way out; default 5 minutes.
	Patience time.Duration
	// Reprieve is how long Delete must answer that the host of an instance has
	// left the configuration before the instance is abandoned for it; default one
	// minute, and negative for at once. It begins anew with each start of the
	// operator.
	Reprieve time.Duration
	// Recount is how long the Proxies that leave by one address are not counted
	// again after a count that changed what they show; default one minute.
	Recount time.Duration
	// Workers is how many Proxies are reconciled at once.
	Workers int
	Log     *slog.Logger
}

// Reconciler reconciles Proxies.
type Reconciler struct {
	o       Options
	pauses  *pauses
	repairs *repairs
	slots   *slots
	drained *drained
	// absences are Proxies under deletion whose hosts left the configuration.
	absences *absences
	groups   *groups
	queue    atomic.Pointer[queue]
}

// New returns a reconciler; SetupWithManager puts it to work.
func New(o Options) *Reconciler {
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Reprieve == 0 {
		o.Reprieve = defaultReprieve
	}
	if o.Recount == 0 {
		o.Recount = defaultRecount
	}
	return &Reconciler{
		o: o, pauses: newPauses(), repairs: newRepairs(), slots: newSlots(o.Workers),
		drained: &drained{of: map[types.NamespacedName]types.UID{}}, absences: newAbsences(), groups: newGroups(o.Recount),
	}
}

// outcome is what a reconcile came to: look again after a pause, or not until
// something changes.
type outcome struct {
	after time.Duration
	err   error
}

// done: nothing more to do, ever.
func done() outcome { return outcome{} }

// wait: look again after d.
func wait(d time.Duration) outcome { return outcome{after: d} }

// settled: nothing to do until something changes. What changes wakes the Proxy;
// looking again after some minutes is the net behind that.
func settled() outcome { return wait(spread(resync)) }

// failed: the Kubernetes API refused a write or read of ours.
func failed(err error) outcome { return outcome{err: err} }

// sooner is the outcome that comes back first.
func sooner(a, b outcome) outcome {
	if a.err != nil || (b.err == nil && b.after == 0) || (a.after > 0 && a.after <= b.after) {
		return a
	}
	return b
}

const (
	// conflictPause lets the cache catch up with what we or others just wrote.
	conflictPause = 100 * time.Millisecond
	// resync is the net behind lost wake-ups.
	resync = 10 * time.Minute
	// readTimeout bounds one uncached read of the Kubernetes API.
	readTimeout = 10 * time.Second
	// reconcileTimeout bounds one reconcile: a look, a step and the writes.
	reconcileTimeout = 3 * provider.StepLimit
)

// spread shortens a pause at random by up to a fifth.
func spread(d time.Duration) time.Duration {
	return d - time.Duration(rand.Float64()*float64(d)/5)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if exitIP, ok := groupOf(req); ok {
		return ctrl.Result{RequeueAfter: r.wakeGroup(ctx, req.Namespace, exitIP)}, nil
	}
	px := &v1alpha1.Proxy{}
	if err := r.o.Client.Get(ctx, req.NamespacedName, px); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	var out outcome
	if px.DeletionTimestamp.IsZero() {
		out = r.keep(ctx, px)
	} else {
		out = r.remove(ctx, px)
	}
	switch {
	case apierrors.IsConflict(out.err), apierrors.IsNotFound(out.err):
		// Somebody wrote in between: look again with fresh eyes.
		return ctrl.Result{RequeueAfter: conflictPause}, nil
	case out.err != nil:
		return ctrl.Result{}, out.err
	}
	return ctrl.Result{RequeueAfter: out.after}, nil
}

// forget drops what is kept in memory of a Proxy that is gone.
func (r *Reconciler) forget(name types.NamespacedName) {
	r.o.Prober.Forget(name.String())
	r.pauses.clear(name)
	r.repairs.clear(name)
	r.drained.clear(name)
	r.absences.clear(name)
}

// writeStatus writes px's status when it differs from before; a write that
// lost a race is a Conflict and nothing is overwritten.
func (r *Reconciler) writeStatus(ctx context.Context, px *v1alpha1.Proxy, before *v1alpha1.ProxyStatus) error {
	if equalStatus(before, &px.Status) {
		return nil
	}
	return r.o.Client.Status().Update(ctx, px)
}

func (r *Reconciler) addFinalizer(ctx context.Context, px *v1alpha1.Proxy) error {
	if controllerutil.ContainsFinalizer(px, v1alpha1.Finalizer) {
		return nil
	}
	status := px.Status.DeepCopy()
	base := px.DeepCopy()
	controllerutil.AddFinalizer(px, v1alpha1.Finalizer)
	err := r.o.Client.Patch(ctx, px, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	// The answer has the stored status; what this reconcile found out stays.
	px.Status = *status
	return err
}

// dropFinalizer lets the object go and reports whether it was this call.
func (r *Reconciler) dropFinalizer(ctx context.Context, px *v1alpha1.Proxy) (bool, error) {
	base := px.DeepCopy()
	if !controllerutil.RemoveFinalizer(px, v1alpha1.Finalizer) {
		return false, nil
	}
	err := r.o.Client.Patch(ctx, px, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) {
		return false, nil // an earlier reconcile did, and the cache is behind
	}
	return err == nil, err
}

func (r *Reconciler) event(px *v1alpha1.Proxy, kind, reason, action, format string, args ...any) {
	r.o.Events.Eventf(px, nil, kind, reason, action, "%s", bounded(format, args...))
}

func key(px *v1alpha1.Proxy) types.NamespacedName { return client.ObjectKeyFromObject(px) }

func (r *Reconciler) owner(px *v1alpha1.Proxy) provider.Owner {
	return provider.Owner{Installation: r.o.Installation, Namespace: px.Namespace, Name: px.Name, UID: string(px.UID)}
}

func (r *Reconciler) ref(px *v1alpha1.Proxy) provider.Ref {
	return provider.Ref{ID: px.Status.ProviderID, Owner: r.owner(px), Host: px.Status.Host}
}
