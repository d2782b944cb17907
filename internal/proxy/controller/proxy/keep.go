package proxy

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

const (
	// stepPause is the time between two steps of a running Create or Delete.
	stepPause = time.Second
	// listPause is how long to wait for a first listing before looking again.
	listPause = 5 * time.Second
	// slotPause is how long to wait for a free slot of a host.
	slotPause = 300 * time.Millisecond
)

// pass is one reconcile of a live Proxy: what it works on, and what it knows.
type pass struct {
	r  *Reconciler
	px *v1alpha1.Proxy
	// p is the Proxy's provider. inputs are what an undertaking depends on; when
	// they change, its pause is void. They are read before the provider is
	// looked up, so that a failure of the last one is not booked on the next.
	p      provider.Provider
	inputs string
	facts
}

// keep brings a live Proxy one step nearer to what its spec says.
func (r *Reconciler) keep(ctx context.Context, px *v1alpha1.Proxy) outcome {
	before := px.Status.DeepCopy()
	px.Status.ObservedGeneration = px.Generation
	p := &pass{
		r: r, px: px, facts: facts{now: metav1.Now(), generation: px.Generation},
		inputs: fmt.Sprintf("%s/%d/%d/%d", px.UID, px.Generation, r.o.Providers.Epoch(px.Spec.Provider), r.o.Inventory.Recoveries(px.Spec.Provider)),
	}
	out := p.advance(ctx)
	if out.err != nil {
		return out
	}
	if !p.pending {
		out = sooner(out, p.follow(ctx))
	}
	summarize(px, p.facts)
	r.countShared(ctx, px)
	r.noteTrouble(px)
	if err := r.writeStatus(ctx, px, before); err != nil {
		return failed(err)
	}
	p.announce(before)
	return out
}

// advance looks at the instance and takes at most one step at the provider.
func (p *pass) advance(ctx context.Context) outcome {
	var err error
	p.p, err = p.r.o.Providers.Lookup(p.px.Spec.Provider)
	if err != nil {
		p.provisioning(providerReason(err), fmt.Sprintf("%v. %s", err, providerRemedy(err)))
		p.err = err
		return settled()
	}
	found := p.find(ctx)
	switch {
	case found.pending:
		p.pending = true
		return wait(spread(found.after))
	case found.err != nil:
		return p.troubled(found)
	case found.missing:
		p.state = provider.Gone
		if after, n := p.r.repairs.begin(key(p.px), p.px.UID, p.now.Time); after > 0 {
			p.provisioning(v1alpha1.ReasonRebuilding, fmt.Sprintf("instance %s is gone; it was made again %d times in short order, so the next time comes after a pause", p.px.Status.ProviderID, n))
			return wait(after)
		}
		if out, cleared := p.clearAway(ctx); !cleared {
			return out
		}
		return p.provision(ctx)
	case !found.exists:
		return p.provision(ctx)
	}
	p.state, p.elsewhere = found.instance.State, found.elsewhere
	switch found.instance.State {
	case provider.Running:
		p.adopt(found.instance)
		return settled()
	case provider.Stopped:
		if after, n := p.r.repairs.begin(key(p.px), p.px.UID, p.now.Time); after > 0 {
			p.provisioning(v1alpha1.ReasonStopped, fmt.Sprintf("the instance does not run; it was started again %d times in short order, so the next time comes after a pause", n))
			return wait(after)
		}
		p.provisioning(v1alpha1.ReasonStopped, "the instance does not run: starting it")
		return p.provision(ctx)
	case provider.Provisioning:
		return p.provision(ctx)
	case provider.Impaired:
		p.provisioning(v1alpha1.ReasonImpaired, "the instance is broken and is left alone: "+orNothing(found.instance.Message))
	case provider.Deleting:
		// A removal that an earlier pass, or a leader before this one, did not
		// bring to its end: nobody else will.
		if out, cleared := p.finishRemoval(ctx); !cleared {
			if out.err == nil && p.err == nil {
				p.provisioning(v1alpha1.ReasonInstanceDeleting, "the instance is being removed; it is made again when that has ended")
			}
			return out
		}
		return p.provision(ctx)
	default:
		p.provisioning(v1alpha1.ReasonUnknown, "the instance exists and cannot be read; it is left alone: "+orNothing(found.instance.Message))
	}
	return settled()
}

// finding is what is known of the instance right now.
type finding struct {
	// exists: there is one. Neither exists nor missing: none was made yet.
	exists bool
	// missing: there was one, and Get says it is gone.
	missing bool
	// pending: nothing can be said yet; look again after that time.
	pending   bool
	after     time.Duration
	instance  provider.Instance
	elsewhere []string
	// err is why nothing can be said, classed; listed tells that a listing
	// said so, and that another one will say when it changes.
	err    error
	listed bool
}

// find says what is known of the instance: from the listing when that has it,
// from a direct Get when it is absent there. A host that did not answer the
// last listing is not asked again by each of its Proxies.
func (p *pass) find(ctx context.Context) finding {
	st := &p.px.Status
	if st.Host == "" {
		return finding{}
	}
	sight := p.r.o.Inventory.Look(p.px.Spec.Provider, st.Host, string(p.px.UID))
	switch {
	case sight.Knowledge == inventory.HostDown:
		return finding{err: sight.Err, listed: true}
	case st.ProviderID == "":
		// Nothing is known to exist. When a crash lost the answer of a Create,
		// the next Create finds its instance by UID on the host written before.
		return finding{}
	case sight.Knowledge == inventory.Present:
		return finding{exists: true, instance: sight.Instance, elsewhere: sight.Elsewhere}
	case sight.Knowledge == inventory.Unlisted:
		return finding{pending: true, after: listPause}
	}
	if after := p.r.pauses.due(key(p.px), looking, p.inputs, p.now.Time); after > 0 {
		return finding{pending: true, after: after}
	}
	release, ok := p.r.slots.take(p.px.Spec.Provider, st.Host)
	if !ok {
		return finding{pending: true, after: slotPause}
	}
	defer release()
	in, err := p.p.Get(ctx, p.r.ref(p.px))
	switch {
	case err == nil:
		p.r.pauses.clear(key(p.px), looking)
		p.r.o.Inventory.Note(p.px.Spec.Provider, string(p.px.UID), in)
		return finding{exists: true, instance: in, elsewhere: sight.Elsewhere}
	case fault.Of(err) == fault.NotFound:
		p.r.pauses.clear(key(p.px), looking)
		p.r.o.Inventory.Drop(p.px.Spec.Provider, st.Host, string(p.px.UID))
		return finding{missing: true}
	}
	return finding{err: err}
}

// adopt takes a running instance's facts over.
func (p *pass) adopt(in provider.Instance) {
	st := &p.px.Status
	if in.Host != "" && in.Host != st.Host {
		p.refused(fault.Errorf(fault.Permanent, "the provider says that instance %s is on host %s; it was made on %s", in.ID, in.Host, st.Host))
		return
	}
	st.ProviderID = in.ID
	if in.Address != "" && (st.Address != in.Address || st.Port != int32(in.Port)) {
		// Another address is another thing to check.
		if st.Address != "" {
			apimeta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionHealthy)
		}
		st.Address, st.Port, st.ExitIP = in.Address, int32(in.Port), ""
		showFacts(st, probe.Facts{})
	}
	if st.AppliedSpec == "" {
		st.AppliedSpec = specHash(&p.px.Spec)
	}
	st.ProvisioningSince = nil
	p.state, p.running = provider.Running, true
	if p.restarted = p.r.repairs.ended(key(p.px)); p.restarted {
		// The verdict was of what ran before, and so were the facts.
		p.r.o.Prober.Forget(key(p.px).String())
		showFacts(st, probe.Facts{})
		apimeta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionHealthy)
	}
	p.r.pauses.clear(key(p.px), making, looking)
	p.provisioning(v1alpha1.ReasonProvisioned, "the instance runs on "+st.Host)
	if len(p.elsewhere) > 0 {
		p.provisioning(v1alpha1.ReasonDuplicate, fmt.Sprintf(
			"the instance runs on %s; another one that carries this Proxy's UID is on %s: if it is a copy, remove it there", st.Host, strings.Join(p.elsewhere, ", ")))
	}
}

// troubled is a Proxy whose instance cannot be read. It is never a rebuild: a
// typo in the provider's hosts must not recreate a fleet. While its own probe
// passes the proxy stays leasable.
func (p *pass) troubled(found finding) outcome {
	err := found.err
	p.provisioning(fault.Of(err).Meaning().Reason, err.Error())
	p.err = err
	p.unreadable = p.px.Status.ProviderID != ""
	if found.listed {
		return settled() // the listing that has the host again wakes it
	}
	return wait(p.r.pauses.failed(key(p.px), looking, p.inputs, err, p.now.Time))
}

// announce records what people should see of a change, once it is stored.
func (p *pass) announce(before *v1alpha1.ProxyStatus) {
	px, st := p.px, &p.px.Status
	if st.ProviderID != "" && st.ProviderID != before.ProviderID {
		p.r.event(px, corev1.EventTypeNormal, "Created", "Create", "instance %s made on %s", st.ProviderID, st.Host)
	} else if p.restarted {
		p.r.event(px, corev1.EventTypeWarning, "Restarted", "Create", "instance %s did not run: it was started again", st.ProviderID)
	}
	if now := apimeta.FindStatusCondition(st.Conditions, v1alpha1.ConditionProvisioned); now != nil && now.Reason == v1alpha1.ReasonDuplicate {
		if was := apimeta.FindStatusCondition(before.Conditions, v1alpha1.ConditionProvisioned); was == nil || was.Message != now.Message {
			p.r.event(px, corev1.EventTypeWarning, now.Reason, "List", "%s", now.Message)
		}
	}
	if before.Phase == st.Phase {
		return
	}
	switch st.Phase {
	case v1alpha1.PhaseReady:
		p.r.event(px, corev1.EventTypeNormal, "Ready", "Check", "ready at %s", net.JoinHostPort(st.Address, strconv.Itoa(int(st.Port))))
	case v1alpha1.PhaseUnhealthy:
		p.r.event(px, corev1.EventTypeWarning, "Unhealthy", "Check", "%s", readyMessage(px))
	case v1alpha1.PhaseFailed:
		p.r.event(px, corev1.EventTypeWarning, "Failed", "Create", "%s", readyMessage(px))
	}
}

func providerReason(err error) string {
	if fault.Of(err) == fault.NotFound {
		return v1alpha1.ReasonProviderNotFound
	}
	return v1alpha1.ReasonProviderBroken
}

func providerRemedy(err error) string {
	if fault.Of(err) == fault.NotFound {
		return "Add it to the providers config, or delete this Proxy"
	}
	return "Mend what it names: a change of the providers config applies by itself, and anything else is tried again on its own"
}

func orNothing(s string) string {
	if s == "" {
		return "the provider gave no further word"
	}
	return s
}
