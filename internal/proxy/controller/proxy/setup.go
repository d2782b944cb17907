package proxy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fleetdesk/api/v1alpha1"
)

// Indexes of the cache: Proxies by what they refer to, and by where they are.
const (
	indexProvider  = "spec.provider"
	indexHost      = "status.host"
	indexExitIP    = "status.exitIP"
	indexSecret    = "spec.secretRefs"
	indexConfigMap = "spec.configMapRefs"
)

// Index adds the fields by which this controller looks Proxies up.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	for field, of := range map[string]func(*v1alpha1.Proxy) []string{
		indexProvider:  func(px *v1alpha1.Proxy) []string { return []string{px.Spec.Provider} },
		indexHost:      hostOf,
		indexExitIP:    exitIPOf,
		indexSecret:    secretNames,
		indexConfigMap: configMapNames,
	} {
		err := indexer.IndexField(ctx, &v1alpha1.Proxy{}, field, func(o client.Object) []string { return of(o.(*v1alpha1.Proxy)) })
		if err != nil {
			return fmt.Errorf("indexing Proxies by %s: %w", field, err)
		}
	}
	return nil
}

func secretNames(px *v1alpha1.Proxy) (names []string) {
	if ref := px.Spec.AuthSecretRef; ref != nil {
		names = append(names, ref.Name)
	}
	if ci := px.Spec.CloudInit; ci != nil && ci.SecretRef != nil {
		names = append(names, ci.SecretRef.Name)
	}
	return names
}

func configMapNames(px *v1alpha1.Proxy) []string {
	if ci := px.Spec.CloudInit; ci != nil && ci.ConfigMapRef != nil {
		return []string{ci.ConfigMapRef.Name}
	}
	return nil
}

// CacheOptions says what of the watched objects is kept in memory: of Secrets
// and ConfigMaps names and versions, of all others everything but the record of
// who wrote which field.
func CacheOptions() cache.Options {
	bare := cache.ByObject{Transform: func(o any) (any, error) {
		if m, err := apimeta.Accessor(o); err == nil {
			m.SetAnnotations(nil)
			m.SetLabels(nil)
			m.SetManagedFields(nil)
		}
		return o, nil
	}}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         map[client.Object]cache.ByObject{&corev1.Secret{}: bare, &corev1.ConfigMap{}: bare},
	}
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Wake has a Proxy looked at again soon; it never blocks. Before the
// controller starts it does nothing, since the start looks at every Proxy.
func (r *Reconciler) Wake(name types.NamespacedName) {
	if q := r.queue.Load(); q != nil {
		(*q).Add(reconcile.Request{NamespacedName: name})
	}
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	ownQueue := source.Func(func(_ context.Context, q queue) error {
		r.queue.Store(&q)
		return nil
	})
	// Our own status writes come back as well, on purpose: a reconcile that ran
	// on what the cache had before such a write may have found nothing to do.
	// The one that follows the write sees it, and settles.
	changed := predicate.ResourceVersionChangedPredicate{}
	return ctrl.NewControllerManagedBy(mgr).
		Named("proxy").
		For(&v1alpha1.Proxy{}, builder.WithPredicates(changed)).
		// Metadata alone, of which CacheOptions drops annotations (kubectl keeps
		// whole objects there): the contents of Secrets are read when needed and
		// kept nowhere.
		WatchesMetadata(&corev1.Secret{}, r.referrers(indexSecret)).
		WatchesMetadata(&corev1.ConfigMap{}, r.referrers(indexConfigMap)).
		Watches(&v1alpha1.Proxy{}, siblings()).
		WatchesRawSource(ownQueue).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.o.Workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
}

// referrers maps a Secret or ConfigMap to the Proxies that name it.
func (r *Reconciler) referrers(index string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.lookup(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{index: o.GetName()})
	})
}

// WakeProvider has every Proxy of a provider looked at again soon.
func (r *Reconciler) WakeProvider(ctx context.Context, name string) {
	q := r.queue.Load()
	if q == nil {
		return // as for Wake
	}
	for _, req := range r.lookup(ctx, client.MatchingFields{indexProvider: name}) {
		(*q).Add(req)
	}
}

func nameOf(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func (r *Reconciler) lookup(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	var list v1alpha1.ProxyList
	if err := r.o.Client.List(ctx, &list, opts...); err != nil {
		r.o.Log.Error("Proxies could not be listed from the cache", "error", err)
		return nil
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}
