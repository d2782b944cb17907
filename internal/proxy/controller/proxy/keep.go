package proxy

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/provider"
)

const (
	// stepPause is the time between two steps of a running Create or Delete.
	stepPause = time.Second
	// listPause is how long to wait for a first listing before looking again.
	listPause = time.Second
)

// finding is what is known of the instance right now.
type finding struct {
	// exists is false when nothing was made yet, or Get said NotFound.
	exists bool
	// missing: there was an instance, and Get says it is gone.
	missing bool
	// pending: no listing has answered yet; look again soon.
	pending  bool
	instance provider.Instance
	// err is why nothing can be said, classed.
	err error
}

// keep brings a live Proxy one step nearer to what its spec says.
func (r *Reconciler) keep(ctx context.Context, px *v1alpha1.Proxy) outcome {
	before := px.Status.DeepCopy()
	px.Status.ObservedGeneration = px.Generation
	facts := facts{now: metav1.Now(), generation: px.Generation}
	out := r.advance(ctx, px, &facts)
	if out.err != nil {
		return out
	}
	r.follow(ctx, px, &facts)
	summarize(px, facts)
	if err := r.writeStatus(ctx, px, before); err != nil {
		return failed(err)
	}
	r.announce(px, before, &facts)
	return out
}

// advance looks at the instance and takes at most one step at the provider.
func (r *Reconciler) advance(ctx context.Context, px *v1alpha1.Proxy, f *facts) outcome {
	p, err := r.o.Providers.Lookup(px.Spec.Provider)
	if err != nil {
		f.provisioning(providerReason(err), err.Error()+". "+providerRemedy(err))
		f.err = err
		return done() // the registry tells when the provider's state changes
	}
	found := r.find(ctx, px, p)
	switch {
	case found.pending:
		f.keepConditions = true
		return wait(listPause)
	case found.err != nil:
		return r.troubled(px, f, found.err)
	case !found.exists:
		if found.missing {
			if err := r.forgetInstance(ctx, px); err != nil {
				return failed(err)
			}
		}
		return r.provision(ctx, px, p, f)
	}
	switch found.instance.State {
	case provider.Running:
		r.adopt(px, f, found.instance)
		r.attempts.clear(px.UID)
		return done()
	case provider.Stopped:
		f.restarting = true
		return r.provision(ctx, px, p, f)
	case provider.Provisioning:
		return r.provision(ctx, px, p, f)
	case provider.Impaired:
		f.instance(found.instance, v1alpha1.ReasonImpaired, "the instance is broken and is left alone: "+orNothing(found.instance.Message))
	case provider.Deleting:
		f.instance(found.instance, v1alpha1.ReasonInstanceDeleting, "the provider is removing the instance; it is made again when that has ended")
		return wait(stepPause * 5)
	default:
		f.instance(found.instance, v1alpha1.ReasonUnknown, "the instance exists and cannot be read; it is left alone: "+orNothing(found.instance.Message))
	}
	return done()
}

// find says what is known of the instance: from the listing when that has it,
// from a direct Get when it is absent there.
func (r *Reconciler) find(ctx context.Context, px *v1alpha1.Proxy, p provider.Provider) finding {
	if px.Status.ProviderID == "" {
		// Nothing is known to exist. When a crash lost the answer of a Create,
		// the next Create finds its instance by UID on the host written before.
		return finding{}
	}
	sight := r.o.Inventory.Look(px.Spec.Provider, px.Status.Host, string(px.UID))
	switch sight.Knowledge {
	case inventory.Present:
		return finding{exists: true, instance: sight.Instance}
	case inventory.HostDown:
		return finding{err: sight.Err}
	case inventory.Unlisted:
		return finding{pending: true}
	}
	in, err := p.Get(ctx, r.ref(px))
	switch {
	case err == nil:
		r.o.Inventory.Note(px.Spec.Provider, string(px.UID), in)
		return finding{exists: true, instance: in}
	case fault.Of(err) == fault.NotFound:
		r.o.Inventory.Drop(px.Spec.Provider, string(px.UID))
		return finding{missing: true}
	}
	return finding{err: err}
}

// forgetInstance drops a vanished instance from status, before another is
// made: at no time do two instances stand behind one status.
func (r *Reconciler) forgetInstance(ctx context.Context, px *v1alpha1.Proxy) error {
	gone := px.Status.ProviderID
	before := px.Status.DeepCopy()
	r.o.Prober.Forget(key(px))
	px.Status.ProviderID, px.Status.Address, px.Status.Port, px.Status.ExitIP = "", "", 0, ""
	var f facts
	f.now, f.generation = metav1.Now(), px.Generation
	f.provisioning(v1alpha1.ReasonRebuilding, fmt.Sprintf("instance %s is gone: making it again", gone))
	summarize(px, f)
	if err := r.writeStatus(ctx, px, before); err != nil {
		return err
	}
	r.event(px, corev1.EventTypeWarning, "Rebuilding", "Rebuild", "instance %s is gone: making it again", gone)
	return nil
}

// provision calls Create once. Before the first call the finalizer and the
// chosen host are stored, so that no crash can lose a machine.
func (r *Reconciler) provision(ctx context.Context, px *v1alpha1.Proxy, p provider.Provider, f *facts) outcome {
	spec, versions, err := r.resolve(ctx, px)
	inputs := strconv.FormatInt(px.Generation, 10) + "/" + versions + "/" + strconv.FormatUint(r.o.Providers.Epoch(px.Spec.Provider), 10)
	if err != nil {
		// The watch on Secrets and ConfigMaps tells when it turns up.
		f.provisioning(referenceReason(err), err.Error())
		f.err = err
		return wait(r.attempts.failed(px.UID, inputs, err, f.now.Time))
	}
	if pause := r.attempts.due(px.UID, inputs, f.now.Time); pause > 0 {
		f.keepConditions = true
		return wait(pause)
	}
	if px.Status.Host == "" {
		host, err := p.Place(ctx, spec)
		if err != nil {
			return r.refused(px, f, inputs, err)
		}
		if err := r.addFinalizer(ctx, px); err != nil {
			return failed(err)
		}
		stored := px.Status.DeepCopy()
		px.Status.Host = host
		begun := facts{now: f.now, generation: f.generation}
		begun.provisioning(v1alpha1.ReasonProvisioning, "making the instance on "+host)
		summarize(px, begun)
		if err := r.writeStatus(ctx, px, stored); err != nil {
			return failed(err)
		}
	} else if err := r.addFinalizer(ctx, px); err != nil {
		return failed(err)
	}
	spec.Host = px.Status.Host

	in, err := p.Create(ctx, spec)
	if err != nil {
		return r.refused(px, f, inputs, err)
	}
	r.attempts.clear(px.UID)
	r.o.Inventory.Note(px.Spec.Provider, string(px.UID), in)
	if px.Status.ProviderID == "" {
		px.Status.AppliedSpec = specHash(&px.Spec)
	}
	px.Status.ProviderID = in.ID
	if in.Host != "" {
		px.Status.Host = in.Host
	}
	if in.State == provider.Running {
		r.adopt(px, f, in)
		return done()
	}
	reason := v1alpha1.ReasonProvisioning
	switch {
	case in.State == provider.Stopped:
		reason = v1alpha1.ReasonStopped
	case px.Status.Address != "":
		reason = v1alpha1.ReasonRebuilding
	}
	f.instance(in, reason, orNothing(in.Message))
	if began := provisioningSince(px); !began.IsZero() && f.now.Sub(began) > r.o.ProvisionTimeout {
		f.overdue = true
		f.message = fmt.Sprintf("not running after %s, still at: %s", r.o.ProvisionTimeout, orNothing(in.Message))
		return wait(stepPause * 10)
	}
	return wait(stepPause)
}

// adopt takes a running instance's facts over.
func (r *Reconciler) adopt(px *v1alpha1.Proxy, f *facts, in provider.Instance) {
	px.Status.ProviderID = in.ID
	if in.Host != "" {
		px.Status.Host = in.Host
	}
	if in.Address != "" {
		if px.Status.Address != in.Address || px.Status.Port != int32(in.Port) {
			px.Status.ExitIP = ""
		}
		px.Status.Address, px.Status.Port = in.Address, int32(in.Port)
	}
	if px.Status.AppliedSpec == "" {
		px.Status.AppliedSpec = specHash(&px.Spec)
	}
	f.instance(in, v1alpha1.ReasonProvisioned, "the instance runs on "+px.Status.Host)
	f.running = true
}

// refused turns a failed Place or Create into a condition and a pause.
func (r *Reconciler) refused(px *v1alpha1.Proxy, f *facts, inputs string, err error) outcome {
	f.provisioning(fault.Of(err).Meaning().Reason, err.Error())
	f.err = err
	r.o.Log.Warn("the provider refused a step", "proxy", key(px), "provider", px.Spec.Provider, "class", string(fault.Of(err)), "error", err)
	return wait(r.attempts.failed(px.UID, inputs, err, f.now.Time))
}

// troubled is a live Proxy whose instance cannot be read. It is never a
// rebuild: a typo in the provider's hosts must not recreate a fleet. While its
// own probe passes the proxy stays leasable.
func (r *Reconciler) troubled(px *v1alpha1.Proxy, f *facts, err error) outcome {
	f.provisioning(fault.Of(err).Meaning().Reason, err.Error())
	f.err = err
	f.unreadable = true
	// The next listing tells when the host answers again; this is the net
	// behind it.
	return wait(r.attempts.failed(px.UID, "look", err, f.now.Time))
}

// announce records what people should see of a change, once it is stored.
func (r *Reconciler) announce(px *v1alpha1.Proxy, before *v1alpha1.ProxyStatus, f *facts) {
	if id := px.Status.ProviderID; id != "" && id != before.ProviderID {
		r.event(px, corev1.EventTypeNormal, "Created", "Create", "instance %s made on %s", id, px.Status.Host)
	}
	if f.restarting && f.running {
		r.event(px, corev1.EventTypeWarning, "Restarted", "Create", "instance %s did not run: it was started again", px.Status.ProviderID)
	}
	if before.Phase == px.Status.Phase {
		return
	}
	switch px.Status.Phase {
	case v1alpha1.PhaseReady:
		r.event(px, corev1.EventTypeNormal, "Ready", "Check", "ready at %s", net.JoinHostPort(px.Status.Address, strconv.Itoa(int(px.Status.Port))))
	case v1alpha1.PhaseUnhealthy:
		r.event(px, corev1.EventTypeWarning, "Unhealthy", "Check", "%s", readyMessage(px))
	case v1alpha1.PhaseFailed:
		r.event(px, corev1.EventTypeWarning, "Failed", "Create", "%s", readyMessage(px))
	}
}

func (r *Reconciler) event(px *v1alpha1.Proxy, kind, reason, action, format string, args ...any) {
	r.o.Events.Eventf(px, nil, kind, reason, action, format, args...)
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
	return "Mend its section of the providers config; it is tried again on its own"
}

func orNothing(s string) string {
	if s == "" {
		return "the provider gave no further word"
	}
	return s
}
