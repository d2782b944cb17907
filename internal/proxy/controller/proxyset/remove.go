package proxyset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"golang.org/x/sync/errgroup"

	"fleetdesk/api/v1alpha1"
)

// removePause is the time between two looks at a set under deletion whose
// Proxies the cache does not have any more, and the API server has.
const removePause = time.Second

// remove takes a set under deletion one step nearer to being gone: its Proxies
// first. No garbage collector is needed for that, and none does harm. A set that
// is deleted with --cascade=orphan leaves its Proxies behind as nobody's own.
func (p *pass) remove(ctx context.Context) (after time.Duration, err error) {
	if !controllerutil.ContainsFinalizer(p.set, v1alpha1.SetFinalizer) {
		return 0, nil
	}
	orphan := controllerutil.ContainsFinalizer(p.set, metav1.FinalizerOrphanDependents)
	var list v1alpha1.ProxyList
	err = p.r.o.Client.List(ctx, &list, client.InNamespace(p.set.Namespace),
		client.MatchingFields{indexOwner: string(p.set.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, fmt.Errorf("listing the Proxies of a ProxySet from the cache: %w", err)
	}
	if len(list.Items) == 0 {
		live, _, err := p.lookUncached(ctx, nil)
		if err != nil {
			return 0, err
		}
		if len(live) > 0 {
			return removePause, nil // the cache is behind
		}
		if p.book.awaited(p.now) {
			return removePause, nil // its own may come to be after it has gone
		}
		return 0, p.dropFinalizer(ctx)
	}
	if err := p.sayRemoving(ctx, list.Items, orphan); err != nil {
		return 0, err
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	started := 0
	for i := range list.Items {
		px := &list.Items[i]
		if !orphan && !px.DeletionTimestamp.IsZero() {
			continue
		}
		if started++; started > most {
			break
		}
		group.Go(func() error {
			if orphan {
				return p.disown(ctx, px.DeepCopy())
			}
			// As it was seen, or not at all: somebody may have made it nobody's own.
			return p.deleteProxy(ctx, &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: px.Namespace, Name: px.Name}}, px.UID, px.ResourceVersion)
		})
	}
	// What changes in them wakes the set.
	return resync, group.Wait()
}

// disown makes a Proxy nobody's own.
func (p *pass) disown(ctx context.Context, px *v1alpha1.Proxy) error {
	base := px.DeepCopy()
	px.OwnerReferences = slices.DeleteFunc(px.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == p.set.UID })
	asked, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	err := p.r.o.Client.Patch(asked, px, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	return client.IgnoreNotFound(err)
}

// dropFinalizer lets the set go, once it has no Proxies any more. The
// finalizers of the API's own cascades ask for what is done by then; where no
// garbage collector runs, nobody else would take them off.
func (p *pass) dropFinalizer(ctx context.Context) error {
	base := p.set.DeepCopy()
	for _, f := range []string{v1alpha1.SetFinalizer, metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents} {
		controllerutil.RemoveFinalizer(p.set, f)
	}
	err := p.r.o.Client.Patch(ctx, p.set, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	return client.IgnoreNotFound(err)
}

// sayRemoving writes what a set under deletion waits for.
func (p *pass) sayRemoving(ctx context.Context, own []v1alpha1.Proxy, orphan bool) error {
	d := decision{decided: p.set.Status.Banned}
	d.counts.live = len(own)
	d.reason, d.message = v1alpha1.ReasonTerminating, fmt.Sprintf("its Proxies are being let go: %d are left", len(own))
	slices.SortFunc(own, func(a, b v1alpha1.Proxy) int { return strings.Compare(a.Name, b.Name) })
	if !orphan {
		for i := range own {
			if own[i].DeletionTimestamp.IsZero() {
				continue
			}
			if d.counts.terminating++; d.counts.terminating == 1 {
				what := "nobody has looked at it yet"
				if c := apimeta.FindStatusCondition(own[i].Status.Conditions, v1alpha1.ConditionReady); c != nil {
					what = c.Reason + ": " + c.Message
				}
				d.message = fmt.Sprintf("its Proxies are being deleted: %d are left, %s among them: %s", len(own), own[i].Name, what)
			}
		}
		d.counts.live -= d.counts.terminating
	}
	return p.writeStatus(ctx, &d)
}
