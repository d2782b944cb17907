package deskkeys

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
)

// Follow has the keeper told of what changes in a cache. It is called before
// the cache starts.
func (k *Keeper) Follow(ctx context.Context, c cache.Cache) error {
	proxies := func(o any) { named(o, k.Proxy) }
	pools := func(o any) { named(o, func(name types.NamespacedName) { k.Space(name.Namespace) }) }
	for _, w := range []struct {
		of      client.Object
		tell    func(any)
		differs func(was, is metav1.Object) bool
	}{
		{&v1alpha1.Proxy{}, proxies, func(was, is metav1.Object) bool { return was.GetResourceVersion() != is.GetResourceVersion() }},
		// Only its spec matters to rows: its status is ours.
		{&v1alpha1.ProxyPool{}, pools, func(was, is metav1.Object) bool {
			return was.GetGeneration() != is.GetGeneration() || was.GetUID() != is.GetUID()
		}},
	} {
		informer, err := c.GetInformer(ctx, w.of, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    w.tell,
				DeleteFunc: w.tell,
				UpdateFunc: func(was, is any) {
					a, okA := was.(metav1.Object)
					b, okB := is.(metav1.Object)
					if !okA || !okB || w.differs(a, b) {
						w.tell(is)
					}
				},
			})
		}
		if err != nil {
			return fmt.Errorf("following %T: %w", w.of, err)
		}
	}
	return nil
}

// named tells the name of an object, also of one whose end the watch missed.
func named(o any, tell func(types.NamespacedName)) {
	if key, err := toolscache.DeletionHandlingObjectToName(o); err == nil {
		tell(types.NamespacedName{Namespace: key.Namespace, Name: key.Name})
	}
}

// SecretsOf has the cache follow the metadata of Secrets on this replica, so
// that [Access] knows when one changed.
func SecretsOf(ctx context.Context, c cache.Cache) error {
	meta := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
	if _, err := c.GetInformer(ctx, meta, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("following Secrets: %w", err)
	}
	return nil
}
