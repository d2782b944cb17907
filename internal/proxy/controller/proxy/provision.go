package proxy

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// provision calls Create once. Before the first call the finalizer, the chosen
// host and the hash of the spec are stored, so that no crash can lose a
// machine, put a second one elsewhere, or take it for one of a later spec.
func (p *pass) provision(ctx context.Context) outcome {
	st := &p.px.Status
	spec, refs, err := p.r.resolve(ctx, p.px)
	p.inputs += "/" + refs.versions
	p.secret = refs.secret
	if err != nil {
		// The watch on Secrets and ConfigMaps tells when it turns up.
		p.provisioning(referenceReason(err), err.Error())
		p.err = err
		return wait(p.r.pauses.failed(key(p.px), making, p.inputs, err, p.now.Time))
	}
	if after := p.r.pauses.due(key(p.px), making, p.inputs, p.now.Time); after > 0 {
		p.keepConditions = true
		return wait(after)
	}
	if out, ok := p.reconsider(ctx); !ok {
		return out
	}
	if st.Host == "" {
		// A wish for a mute host must not hold up those who have another one.
		release, ok := p.r.slots.take(p.px.Spec.Provider, spec.Host)
		if !ok {
			return p.noSlot()
		}
		host, err := p.p.Place(ctx, spec)
		release()
		if err != nil {
			return p.refused(err)
		}
		st.Host = host
	}
	if err := p.intend(ctx); err != nil {
		return failed(err)
	}
	spec.Host = st.Host
	release, ok := p.r.slots.take(p.px.Spec.Provider, st.Host)
	if !ok {
		return p.noSlot()
	}
	defer release()
	in, err := p.p.Create(ctx, spec)
	if err != nil {
		return p.refused(err)
	}
	p.r.pauses.clear(key(p.px), making)
	p.r.o.Inventory.Note(p.px.Spec.Provider, string(p.px.UID), in)
	st.ProviderID = in.ID
	p.state = in.State
	if in.State == provider.Running {
		p.adopt(in)
		return settled()
	}
	reason := v1alpha1.ReasonProvisioning
	switch {
	case in.State == provider.Stopped:
		reason = v1alpha1.ReasonStopped
	case st.Address != "":
		reason = v1alpha1.ReasonRebuilding
	}
	p.provisioning(reason, orNothing(in.Message))
	if st.ProvisioningSince == nil {
		st.ProvisioningSince = &p.now
	}
	if p.now.Sub(st.ProvisioningSince.Time) > p.r.o.ProvisionTimeout {
		p.overdue = true
		p.message = fmt.Sprintf("not running after %s, still at: %s", p.r.o.ProvisionTimeout, orNothing(in.Message))
		return wait(stepPause * 10)
	}
	return wait(stepPause)
}

// noSlot comes back when as many calls run against the host as may.
func (p *pass) noSlot() outcome {
	p.keepConditions = p.reason == ""
	return wait(spread(slotPause))
}

// intend stores what is about to be made, before it is.
func (p *pass) intend(ctx context.Context) error {
	st := &p.px.Status
	if err := p.r.addFinalizer(ctx, p.px); err != nil {
		return err
	}
	switch {
	case st.ProviderID != "":
		return nil // a start of what exists
	case st.AppliedSpec != "" && st.ProvisioningSince != nil:
		return p.r.current(ctx, p.px) // stored before
	}
	if st.AppliedSpec == "" {
		st.AppliedSpec, st.AppliedSecret = specHash(&p.px.Spec), p.secret
	}
	if st.ProvisioningSince == nil {
		st.ProvisioningSince = &p.now
	}
	begun := p.facts
	begun.provisioning(v1alpha1.ReasonProvisioning, "making the instance on "+st.Host)
	summarize(p.px, begun)
	return p.r.o.Client.Status().Update(ctx, p.px)
}

// current refuses to go on from what the cache has and the API has not any
// more: the instance may have been made by the pass before this one, which the
// cache has not heard of, and may be gone since.
func (r *Reconciler) current(ctx context.Context, px *v1alpha1.Proxy) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	live := &v1alpha1.Proxy{}
	if err := r.o.Reader.Get(ctx, key(px), live); err != nil {
		return err
	}
	if live.UID != px.UID || live.ResourceVersion != px.ResourceVersion {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("proxies").GroupResource(), px.Name, errors.New("it was written since it was read"))
	}
	return nil
}

// reconsider looks whether the host of an instance that is not known to exist
// is still the right one: the spec may have changed since it was chosen, or the
// host may have no room. What may lie there is found or cleared away first, so
// that at no time two machines stand behind one Proxy.
func (p *pass) reconsider(ctx context.Context) (outcome, bool) {
	st := &p.px.Status
	if st.ProviderID != "" || st.Host == "" || !p.misplaced() {
		return outcome{}, true
	}
	release, ok := p.r.slots.take(p.px.Spec.Provider, st.Host)
	if !ok {
		return p.noSlot(), false
	}
	in, err := p.p.Get(ctx, p.r.ref(p.px))
	release()
	switch {
	case err == nil:
		// It exists already, made from the earlier spec: keep it.
		p.r.o.Inventory.Note(p.px.Spec.Provider, string(p.px.UID), in)
		return outcome{}, true
	case fault.Of(err) == fault.NotFound, fault.Of(err) == fault.Permanent:
		// Also a host that has left the configuration, of which Delete says so.
		return p.clearAway(ctx)
	}
	return p.troubled(finding{err: err}), false
}

func (p *pass) misplaced() bool {
	st := &p.px.Status
	if st.AppliedSpec != "" && st.AppliedSpec != specHash(&p.px.Spec) {
		return true
	}
	free := p.px.Spec.Placement == nil || p.px.Spec.Placement.Host == ""
	return free && p.r.pauses.last(key(p.px), making) == fault.Quota
}

// clearAway removes what is left of an instance that is gone or was never
// finished, and drops it from status. The host is chosen anew when the spec
// asks for something else than what was there.
func (p *pass) clearAway(ctx context.Context) (outcome, bool) { return p.clear(ctx, false) }

// finishRemoval is clearAway of an instance that is there: whatever its removal
// fails with, it is not gone.
func (p *pass) finishRemoval(ctx context.Context) (outcome, bool) { return p.clear(ctx, true) }

func (p *pass) clear(ctx context.Context, there bool) (outcome, bool) {
	st := &p.px.Status
	if after := p.r.pauses.due(key(p.px), removing, p.inputs, p.now.Time); after > 0 {
		p.keepConditions = true
		return wait(after), false
	}
	release, ok := p.r.slots.take(p.px.Spec.Provider, st.Host)
	if !ok {
		return p.noSlot(), false
	}
	move := p.misplaced()
	state, err := p.p.Delete(ctx, p.r.ref(p.px))
	release()
	if err == nil && state == provider.Abandoned {
		// Its host has left the configuration, so nobody looked whether something
		// is there: a machine that is made elsewhere now might be the second.
		err = fault.Errorf(fault.Permanent, "host %q is not in the configuration of provider %s: put it back, or delete the Proxy", st.Host, p.px.Spec.Provider)
		return p.refusedAs(removing, err), false
	}
	switch {
	case err != nil && (there || move || retriable(err)):
		return p.refusedAs(removing, err), false
	case err == nil && state == provider.Deleting:
		p.state = provider.Deleting
		p.provisioning(v1alpha1.ReasonRebuilding, "clearing away what is left of the earlier instance")
		return wait(stepPause), false
	}
	p.r.o.Prober.Forget(key(p.px).String())
	gone, host, stored := st.ProviderID, st.Host, st.DeepCopy()
	st.ProviderID, st.Address, st.Port, st.ExitIP = "", "", 0, ""
	st.AppliedSpec, st.AppliedSecret, st.ProvisioningSince = "", "", nil
	if move {
		st.Host = ""
	}
	apimeta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionHealthy)
	f := facts{now: metav1.Now(), generation: p.generation}
	f.provisioning(v1alpha1.ReasonRebuilding, "making the instance again")
	summarize(p.px, f)
	if err := p.r.writeStatus(ctx, p.px, stored); err != nil {
		return failed(err), false
	}
	p.state = ""
	if gone != "" {
		p.r.event(p.px, corev1.EventTypeWarning, "Rebuilding", "Rebuild", "instance %s on %s is gone: making it again", gone, host)
	}
	return outcome{}, true
}

// refused turns a failed step of making the instance into a condition and a
// pause.
func (p *pass) refused(err error) outcome { return p.refusedAs(making, err) }

func (p *pass) refusedAs(what undertaking, err error) outcome {
	p.provisioning(fault.Of(err).Meaning().Reason, err.Error())
	p.err = err
	p.running = false
	p.r.o.Log.Warn("the provider refused a step", "proxy", key(p.px).String(), "provider", p.px.Spec.Provider, "class", string(fault.Of(err)), "error", err)
	return wait(p.r.pauses.failed(key(p.px), what, p.inputs, err, p.now.Time))
}
