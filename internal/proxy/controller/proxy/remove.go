package proxy

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/provider"
)

const (
	// defaultPatience is Options.Patience when that is zero.
	defaultPatience = 5 * time.Minute
	// defaultReprieve is Options.Reprieve when that is zero.
	defaultReprieve = time.Minute
	// slowPause is the time between two steps of a deletion that takes longer.
	slowPause = 15 * time.Second
)

// remove takes a Proxy under deletion one step nearer to being gone. It never
// hangs without a condition that says why and what to do.
func (r *Reconciler) remove(ctx context.Context, px *v1alpha1.Proxy) outcome {
	// Terminating is final: a check that is still running cannot revive it.
	r.forgetProbe(px)
	if !controllerutil.ContainsFinalizer(px, v1alpha1.Finalizer) {
		return done()
	}
	if skips(px) {
		// Before the provider is looked up, so that it also frees a Proxy whose
		// provider has left the config.
		return r.abandon(ctx, px, "by annotation "+v1alpha1.SkipCleanupAnnotation)
	}
	if err := r.heedAnnotation(ctx, px); err != nil {
		return failed(err)
	}
	if out, ok := r.drain(ctx, px); !ok {
		return out
	}
	inputs := fmt.Sprintf("%s/%d/%d", px.UID, r.o.Providers.Epoch(px.Spec.Provider), r.o.Inventory.Recoveries(px.Spec.Provider))
	p, err := r.o.Providers.Lookup(px.Spec.Provider)
	if err != nil {
		r.absences.clear(key(px))
		return r.say(ctx, px, providerReason(err), fmt.Sprintf("%s. Put the provider back in order, or %s", clip(err.Error(), maxQuote), wayOut(px)), err, settled())
	}
	if after := r.pauses.due(key(px), removing, inputs, time.Now()); after > 0 {
		return wait(after)
	}
	sight := r.o.Inventory.Look(px.Spec.Provider, px.Status.Host, string(px.UID))
	if sight.Knowledge == inventory.HostDown && retriable(sight.Err) {
		// Asking it once more would hold a worker for as long as it is mute; the
		// listing that has it again wakes this Proxy.
		return r.blocked(ctx, px, inputs, sight.Err, "its host does not answer")
	}
	release, ok := r.slots.take(px.Spec.Provider, px.Status.Host)
	if !ok {
		return wait(spread(slotPause))
	}
	defer release()
	return r.destroy(ctx, px, p, inputs)
}

func (r *Reconciler) forgetProbe(px *v1alpha1.Proxy) { r.o.Prober.Forget(key(px).String()) }

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
	if err != nil || state != provider.Abandoned {
		r.absences.clear(key(px))
	}
	switch {
	case err == nil && state == provider.Gone:
		return r.release(ctx, px)
	case err == nil && state == provider.Abandoned:
		return r.hostLeft(ctx, px)
	case err == nil:
		r.pauses.clear(key(px), removing)
		if time.Since(px.DeletionTimestamp.Time) > r.o.Patience {
			return r.say(ctx, px, v1alpha1.ReasonDeletionPending, fmt.Sprintf(
				"the provider has been deleting the instance for more than %s and is asked again; to let the Proxy go without it, %s", r.o.Patience, wayOut(px)), nil, wait(slowPause))
		}
		return r.say(ctx, px, v1alpha1.ReasonTerminating, deleting, nil, wait(stepPause))
	case missing && !retriable(err):
		// Nothing is there, and what may lie beside it is out of reach for
		// good: waiting would change neither.
		r.event(px, corev1.EventTypeWarning, "LeftoversUnchecked", "Delete", "instance %s is gone; whether anything of it is left could not be checked: %v", orUnborn(ref.ID), err)
		return r.release(ctx, px)
	}
	return r.blocked(ctx, px, inputs, err, "the instance cannot be deleted")
}

// hostLeft abandons the instance once its host has been out of the configuration
// for a while: a host that was taken out by a slip of an editor, or is missing
// in half a file, is put back by then.
func (r *Reconciler) hostLeft(ctx context.Context, px *v1alpha1.Proxy) outcome {
	now := time.Now()
	left := fmt.Sprintf("host %q is not in the configuration of provider %s any more", px.Status.Host, px.Spec.Provider)
	at := r.absences.since(key(px), absence{uid: px.UID, host: px.Status.Host, epoch: r.o.Providers.Epoch(px.Spec.Provider)}, now).Add(r.o.Reprieve)
	if after := at.Sub(now); after > 0 {
		return r.say(ctx, px, v1alpha1.ReasonDeletionPending, fmt.Sprintf(
			"%s. If it stays so, the Proxy goes at %s, and its instance is left as it is and is yours to remove; to have it deleted, put the host back before. To let the Proxy go at once, %s",
			left, at.UTC().Format(time.RFC3339), wayOut(px)), nil, wait(after))
	}
	return r.abandon(ctx, px, left)
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
	gone, err := r.dropFinalizer(ctx, px)
	if err != nil {
		return failed(err)
	}
	r.o.Inventory.Drop(px.Spec.Provider, px.Status.Host, string(px.UID))
	if gone {
		r.event(px, corev1.EventTypeNormal, "Deleted", "Delete", "instance %s is gone", orUnborn(px.Status.ProviderID))
	}
	return done()
}

// deleting is what a deletion says while all goes well.
const deleting = "the instance is being deleted"

// heedAnnotation marks the Proxy Terminating, and tells of an annotation whose
// value does nothing, also when it came late: what holds the deletion up goes on
// being said beside it, since the next try may be some time off.
func (r *Reconciler) heedAnnotation(ctx context.Context, px *v1alpha1.Proxy) error {
	before := readyMessage(px)
	reason, message := v1alpha1.ReasonTerminating, deleting
	if c := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady); c != nil && px.Status.Phase == v1alpha1.PhaseTerminating {
		reason = c.Reason
		message, _, _ = strings.Cut(c.Message, ignoredPrefix)
	}
	if out := r.say(ctx, px, reason, message, nil, done()); out.err != nil {
		return out.err
	}
	if note := ignored(px); note != "" && before != readyMessage(px) {
		r.event(px, corev1.EventTypeWarning, "SkipCleanupIgnored", "Delete", "the deletion goes on%s", note)
	}
	return nil
}

const ignoredPrefix = "; annotation " + v1alpha1.SkipCleanupAnnotation + "="

// ignored says that an annotation with another value than "true" does nothing.
func ignored(px *v1alpha1.Proxy) string {
	value, asked := px.Annotations[v1alpha1.SkipCleanupAnnotation]
	if !asked || value == "true" {
		return ""
	}
	return fmt.Sprintf(ignoredPrefix+"%q is ignored: only the value \"true\" lets the Proxy go without its instance", clip(value, 64))
}

// blocked notes a failed step of the deletion and pauses by its class.
func (r *Reconciler) blocked(ctx context.Context, px *v1alpha1.Proxy, inputs string, cause error, what string) outcome {
	after := r.pauses.failed(key(px), removing, inputs, cause, time.Now())
	return r.say(ctx, px, fault.Of(cause).Meaning().Reason,
		fmt.Sprintf("%s: %v. It is tried again; to let the Proxy go without it, %s", what, clip(cause.Error(), maxQuote), wayOut(px)), cause, wait(after))
}

// say states in a condition how the deletion stands, once, and comes back as
// asked. With a cause it is news for the log and an Event.
func (r *Reconciler) say(ctx context.Context, px *v1alpha1.Proxy, reason, message string, cause error, then outcome) outcome {
	before := px.Status.DeepCopy()
	px.Status.Phase = v1alpha1.PhaseTerminating
	setCondition(&px.Status, facts{now: metav1.Now(), generation: px.Generation},
		v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message+ignored(px))
	r.noteTrouble(px)
	if equalStatus(before, &px.Status) {
		return then
	}
	if err := r.writeStatus(ctx, px, before); err != nil {
		return failed(err)
	}
	if cause != nil {
		r.o.Log.Warn("a deletion cannot go on", "proxy", key(px).String(), "provider", px.Spec.Provider, "class", string(fault.Of(cause)), "error", cause)
		r.event(px, corev1.EventTypeWarning, "DeletionBlocked", "Delete", "%s", message)
	}
	return then
}

func wayOut(px *v1alpha1.Proxy) string {
	return fmt.Sprintf("run: kubectl -n %s annotate proxy %s %s=true --overwrite (the instance then stays and is yours to remove)", px.Namespace, px.Name, v1alpha1.SkipCleanupAnnotation)
}

func orUnborn(id string) string {
	if id == "" {
		return "(none known)"
	}
	return id
}
