package proxy

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
)

// Ledger is where instances are written down that were left to a person.
type Ledger interface {
	// Abandon writes one down with its provider and returns when that is stored.
	// It is idempotent by UID. A ledger that is full is Quota.
	Abandon(ctx context.Context, providerName string, a v1alpha1.AbandonedInstance) error
}

// ledgerPause is the longest time between two tries to write an abandoned
// instance down: what makes room there wakes nobody here.
const ledgerPause = time.Minute

// maxWhy bounds what is said of the reason of an abandonment.
const maxWhy = 200

// maxLedgerQuote bounds what is quoted of the ledger's error, which has a
// command to type.
const maxLedgerQuote = 700

// abandon lets the Proxy go and leaves its instance to a person. The instance is
// written down first: once the Proxy is gone, the sweep would take it for a
// leftover. Whatever instant the operator dies at, the next one comes here again.
func (r *Reconciler) abandon(ctx context.Context, px *v1alpha1.Proxy, why string) outcome {
	if out, ok := r.writeDown(ctx, px, why); !ok {
		return out
	}
	gone, err := r.dropFinalizer(ctx, px)
	if err != nil {
		return failed(err)
	}
	if gone {
		id := orUnborn(px.Status.ProviderID)
		r.o.Log.Warn("an instance was abandoned and is left as it is", "why", why, "proxy", key(px).String(), "provider", px.Spec.Provider, "host", px.Status.Host, "instance", id)
		r.event(px, corev1.EventTypeWarning, "Abandoned", "Delete",
			"%s: instance %s (provider %s, host %s) was left as it is and is yours to remove", why, id, px.Spec.Provider, px.Status.Host)
	}
	return done()
}

// writeDown puts the instance into the ledger and reports whether the Proxy may
// go. The host is stored before anything is made there, so without host and id
// there is nothing to write down; that must not be judged, nor an id left out,
// from a reading which the API has overtaken.
func (r *Reconciler) writeDown(ctx context.Context, px *v1alpha1.Proxy, why string) (outcome, bool) {
	if r.o.Ledger == nil {
		return outcome{}, true
	}
	if err := r.current(ctx, px); err != nil {
		return failed(err), false
	}
	if px.Status.Host == "" && px.Status.ProviderID == "" {
		return outcome{}, true
	}
	asked, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := r.o.Ledger.Abandon(asked, px.Spec.Provider, v1alpha1.AbandonedInstance{
		UID: string(px.UID), Proxy: key(px).String(), ProviderID: px.Status.ProviderID, Host: px.Status.Host,
		Reason: clip(why, maxWhy), Time: metav1.Now(),
	})
	if err == nil {
		r.pauses.clear(key(px), recording)
		return outcome{}, true
	}
	after := min(r.pauses.failed(key(px), recording, string(px.UID), err, time.Now()), spread(ledgerPause))
	return r.say(ctx, px, fault.Of(err).Meaning().Reason, fmt.Sprintf(
		"the instance is to be left to a person (%s) and cannot be written down in ProxyProvider %s: %s. It is tried again%s",
		clip(why, maxWhy), px.Spec.Provider, clip(err.Error(), maxLedgerQuote), ledgerRemedy(px, err)), err, wait(after)), false
}

// ledgerRemedy says how a Proxy goes on whose instance cannot be written down,
// past what the ledger's own error says of room and of whose the object is.
func ledgerRemedy(px *v1alpha1.Proxy, err error) (remedy string) {
	switch fault.Of(err) {
	case fault.Quota, fault.Conflict:
	default:
		remedy = "; see to it that the operator may write there"
	}
	if skips(px) {
		remedy += fmt.Sprintf("; to have the instance deleted instead, run: kubectl -n %s annotate proxy %s %s-", px.Namespace, px.Name, v1alpha1.SkipCleanupAnnotation)
	}
	return remedy
}

// skips tells whether a person lets the Proxy go without its instance.
func skips(px *v1alpha1.Proxy) bool { return px.Annotations[v1alpha1.SkipCleanupAnnotation] == "true" }
