package proxy

import (
	"context"
	"fmt"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fleetdesk/api/v1alpha1"
)

// noteTrouble has the condition ProviderReachable say what the last check of the
// Proxy's provider found wrong with it or with the Proxy's host; while all is
// well there is none. It is a hint for people: neither phase nor readiness heed
// it. The message has nothing that one check changes and the next changes back,
// not even the reason, and a host is well again only after two good checks: so
// that one in trouble, also one that comes and goes, costs a write for each
// Proxy when that begins and one when it ends.
func (r *Reconciler) noteTrouble(px *v1alpha1.Proxy) {
	reason := ""
	if r.o.Trouble != nil {
		reason = r.o.Trouble(px.Spec.Provider, px.Status.Host)
	}
	f := facts{now: metav1.Now(), generation: px.Generation}
	const more = ": kubectl get proxyprovider %s -o yaml says what"
	switch reason {
	case "":
		apimeta.RemoveStatusCondition(&px.Status.Conditions, v1alpha1.ConditionProvider)
	case v1alpha1.ReasonCheckFailed:
		setCondition(&px.Status, f, v1alpha1.ConditionProvider, metav1.ConditionFalse, reason,
			fmt.Sprintf("the check of provider %s failed"+more, px.Spec.Provider, px.Spec.Provider))
	default:
		setCondition(&px.Status, f, v1alpha1.ConditionProvider, metav1.ConditionFalse, v1alpha1.ReasonHostsInTrouble,
			fmt.Sprintf("the check of host %s of provider %s finds something wrong"+more, px.Status.Host, px.Spec.Provider, px.Spec.Provider))
	}
}

// WakeHosts has the Proxies that were placed on one of a provider's hosts looked
// at again soon; nil stands for every Proxy of the provider, also those that
// were not placed.
func (r *Reconciler) WakeHosts(ctx context.Context, providerName string, hosts []string) {
	q := r.queue.Load()
	switch {
	case q == nil:
		return // as for Wake
	case hosts == nil:
		r.WakeProvider(ctx, providerName)
		return
	}
	for _, host := range hosts {
		for _, req := range r.onHost(ctx, providerName, host) {
			(*q).Add(req)
		}
	}
}

func (r *Reconciler) onHost(ctx context.Context, providerName, host string) []reconcile.Request {
	return r.lookup(ctx, client.MatchingFields{indexHost: hostKey(providerName, host)})
}

// hostKey is unambiguous, since a provider's name has no slash.
func hostKey(providerName, host string) string { return providerName + "/" + host }

func hostOf(px *v1alpha1.Proxy) []string {
	if px.Status.Host == "" {
		return nil
	}
	return []string{hostKey(px.Spec.Provider, px.Status.Host)}
}
