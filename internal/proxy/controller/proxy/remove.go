package proxy

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// remove takes a Proxy under deletion one step nearer to being gone. It never
// hangs without a condition that says why and what to do.
func (r *Reconciler) remove(ctx context.Context, px *v1alpha1.Proxy) outcome {
	// Terminating is final: a check that is still running cannot revive it.
	r.o.Prober.Forget(key(px))
	if !controllerutil.ContainsFinalizer(px, v1alpha1.Finalizer) {
		r.attempts.clear(px.UID)
		return done()
	}
	if px.Annotations[v1alpha1.SkipCleanupAnnotation] == "true" {
		// Before the provider is looked up, so that it also frees a Proxy whose
		// provider has left the config.
		return r.abandon(ctx, px, "by annotation "+v1alpha1.SkipCleanupAnnotation)
	}
	if err := r.markTerminating(ctx, px); err != nil {
		return failed(err)
	}
	p, err := r.o.Providers.Lookup(px.Spec.Provider)
	if err != nil {
		return r.stuck(ctx, px, providerReason(err), err, fmt.Sprintf("%v. Put the provider back in order, or %s", err, wayOut(px)))
	}
	inputs := fmt.Sprintf("delete/%d", r.o.Providers.Epoch(px.Spec.Provider))
	if pause := r.attempts.due(px.UID, inputs, time.Now()); pause > 0 {
		return wait(pause)
	}
	return r.destroy(ctx, px, p, inputs)
}

// destroy looks, then deletes. Delete is called also when Get says that
// nothing is there: what a half-made or half-removed instance left beside it
// goes that way, and where nothing is left Delete does nothing.
func (r *Reconciler) destroy(ctx context.Context, px *v1alpha1.Proxy, p provider.Provider, inputs string) outcome {
	ref := r.ref(px)
	_, getErr := p.Get(ctx, ref)
	missing := fault.Of(getErr) == fault.NotFound
	if getErr != nil && !missing && retriable(getErr) {
		return r.blocked(ctx, px, inputs, getErr, "the instance cannot be looked at")
	}
	state, err := p.Delete(ctx, ref)
	switch {
	case err == nil && state == provider.Gone:
		return r.release(ctx, px)
	case err == nil && state == provider.Abandoned:
		return r.abandon(ctx, px, fmt.Sprintf("host %s is not in the configuration of provider %s any more", orNothing(ref.Host), px.Spec.Provider))
	case err == nil:
		r.attempts.clear(px.UID)
		return wait(stepPause)
	case missing && !retriable(err):
		// Nothing is there, and what may lie beside it is out of reach for
		// good: waiting would change neither.
		r.event(px, corev1.EventTypeWarning, "LeftoversUnchecked", "Delete", "instance %s is gone; whether anything of it is left could not be checked: %v", orUnborn(ref.ID), err)
		return r.release(ctx, px)
	}
	return r.blocked(ctx, px, inputs, err, "the instance cannot be deleted")
}

// retriable tells errors that may pass on their own from those that need a
// person.
func retriable(err error) bool {
	switch fault.Of(err) {
	case fault.Permanent, fault.Invalid, fault.Denied, fault.Unsupported, fault.NotFound:
		return false
	}
	return true
}

func (r *Reconciler) release(ctx context.Context, px *v1alpha1.Proxy) outcome {
	if err := r.dropFinalizer(ctx, px); err != nil {
		return failed(err)
	}
	r.o.Inventory.Drop(px.Spec.Provider, string(px.UID))
	r.attempts.clear(px.UID)
	r.event(px, corev1.EventTypeNormal, "Deleted", "Delete", "instance %s is gone", orUnborn(px.Status.ProviderID))
	return done()
}

// abandon lets the Proxy go and leaves its instance to a person.
func (r *Reconciler) abandon(ctx context.Context, px *v1alpha1.Proxy, why string) outcome {
	if err := r.dropFinalizer(ctx, px); err != nil {
		return failed(err)
	}
	r.attempts.clear(px.UID)
	id := orUnborn(px.Status.ProviderID)
	r.o.Log.Warn("an instance was abandoned and is left as it is", "why", why, "proxy", key(px), "provider", px.Spec.Provider, "host", px.Status.Host, "instance", id)
	r.event(px, corev1.EventTypeWarning, "Abandoned", "Delete",
		"%s: instance %s (provider %s, host %s) was left as it is and is yours to remove", why, id, px.Spec.Provider, px.Status.Host)
	return done()
}

func (r *Reconciler) markTerminating(ctx context.Context, px *v1alpha1.Proxy) error {
	if px.Status.Phase == v1alpha1.PhaseTerminating {
		return nil
	}
	before := px.Status.DeepCopy()
	px.Status.Phase = v1alpha1.PhaseTerminating
	f := facts{now: metav1.Now(), generation: px.Generation}
	setCondition(&px.Status, f, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTerminating, "the instance is being deleted"+ignored(px))
	if err := r.writeStatus(ctx, px, before); err != nil {
		return err
	}
	if note := ignored(px); note != "" {
		r.event(px, corev1.EventTypeWarning, "SkipCleanupIgnored", "Delete", "the deletion goes on%s", note)
	}
	return nil
}

// ignored says that an annotation with another value than "true" does nothing.
func ignored(px *v1alpha1.Proxy) string {
	value, asked := px.Annotations[v1alpha1.SkipCleanupAnnotation]
	if !asked || value == "true" {
		return ""
	}
	return fmt.Sprintf("; annotation %s=%q is ignored: only the value \"true\" lets the Proxy go without its instance", v1alpha1.SkipCleanupAnnotation, value)
}

// blocked notes a failed step of the deletion and pauses by its class.
func (r *Reconciler) blocked(ctx context.Context, px *v1alpha1.Proxy, inputs string, cause error, what string) outcome {
	out := r.stuck(ctx, px, fault.Of(cause).Meaning().Reason, cause, fmt.Sprintf("%s: %v. It is tried again; to let the Proxy go without it, %s", what, cause, wayOut(px)))
	if out.err != nil {
		return out
	}
	return wait(r.attempts.failed(px.UID, inputs, cause, time.Now()))
}

// stuck says in a condition why the Proxy is still there. The pause is the
// safety net; a change of the provider or the annotation comes by itself.
func (r *Reconciler) stuck(ctx context.Context, px *v1alpha1.Proxy, reason string, cause error, message string) outcome {
	before := px.Status.DeepCopy()
	f := facts{now: metav1.Now(), generation: px.Generation}
	setCondition(&px.Status, f, v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message+ignored(px))
	changed := !equalStatus(before, &px.Status)
	if err := r.writeStatus(ctx, px, before); err != nil {
		return failed(err)
	}
	if changed {
		r.o.Log.Warn("a deletion cannot go on", "proxy", key(px), "provider", px.Spec.Provider, "class", string(fault.Of(cause)), "error", cause)
		r.event(px, corev1.EventTypeWarning, "DeletionBlocked", "Delete", "%s", bounded(message))
	}
	return wait(fault.Permanent.Meaning().Retry.Max)
}

func wayOut(px *v1alpha1.Proxy) string {
	return fmt.Sprintf("run: kubectl -n %s annotate proxy %s %s=true (the instance then stays and is yours to remove)", px.Namespace, px.Name, v1alpha1.SkipCleanupAnnotation)
}

func orUnborn(id string) string {
	if id == "" {
		return "(none known)"
	}
	return id
}
