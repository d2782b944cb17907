package proxy

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

// facts are what one reconcile found out; summarize turns them into status.
type facts struct {
	now        metav1.Time
	generation int64

	// reason and message are the condition Provisioned.
	reason, message string
	// running: the instance exists and runs.
	running bool
	// state is the instance's, when it was seen.
	state provider.State
	// unreadable: there is an instance and its provider cannot say how it is.
	unreadable bool
	// restarting: it was found stopped.
	restarting bool
	// overdue: provisioning takes longer than it may.
	overdue bool
	// err is what stopped this reconcile.
	err error
	// keepConditions: nothing new is known; what stands stays.
	keepConditions bool

	// verdict is the probe's, when it has one.
	verdict *probe.Snapshot
	// probeTrouble is why the proxy cannot be probed (a missing Secret).
	probeTrouble string
}

func (f *facts) provisioning(reason, message string) {
	f.reason, f.message = reason, message
}

func (f *facts) instance(in provider.Instance, reason, message string) {
	f.state = in.State
	f.reason, f.message = reason, message
}

// summarize writes conditions and phase from the facts alone.
func summarize(px *v1alpha1.Proxy, f facts) {
	st := &px.Status
	if f.keepConditions && f.verdict == nil {
		if st.Phase == "" {
			st.Phase = v1alpha1.PhasePending
		}
		return
	}
	if !f.keepConditions {
		setCondition(st, f, v1alpha1.ConditionProvisioned, provisionedStatus(f), f.reason, f.message)
	}
	setHealth(st, f)
	setOutdated(px, f)
	setReady(st, f)
	st.Phase = phase(st, f)
}

func provisionedStatus(f facts) metav1.ConditionStatus {
	switch {
	case f.running:
		return metav1.ConditionTrue
	case f.unreadable, f.state == provider.Unknown:
		return metav1.ConditionUnknown
	}
	return metav1.ConditionFalse
}

func setHealth(st *v1alpha1.ProxyStatus, f facts) {
	v := f.verdict
	switch {
	case st.Address == "":
		setCondition(st, f, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNotProbed, "there is no address to check yet")
	case f.probeTrouble != "":
		setCondition(st, f, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonReferenceNotFound, f.probeTrouble)
	case v == nil || v.State == health.Unknown:
		// After a restart of the operator the last verdict stands until the
		// first check ends: a fleet must not blink.
		if apimeta.FindStatusCondition(st.Conditions, v1alpha1.ConditionHealthy) == nil || (v != nil && v.Message != "" && !isHealthy(st)) {
			message := "the first check has not ended"
			if v != nil && v.Message != "" {
				message += ": " + v.Message
			}
			setCondition(st, f, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNotProbed, message)
		}
	case v.State == health.Healthy:
		reason, message := v1alpha1.ReasonProbePassed, "requests through the proxy succeed"
		switch {
		case v.Inconclusive:
			reason, message = v1alpha1.ReasonProbeInconclusive, "the last check says nothing, since the checked URL itself does not answer: "+v.Message
		case v.Shallow:
			reason, message = v1alpha1.ReasonShallowProbePassed, "the proxy answers; nothing was fetched through it, since no health URL is known (set healthCheck.url or --health-check-url)"
		}
		setCondition(st, f, v1alpha1.ConditionHealthy, metav1.ConditionTrue, reason, message)
	default:
		reason := v1alpha1.ReasonProbeFailed
		if v.Inconclusive {
			reason = v1alpha1.ReasonProbeInconclusive
		}
		setCondition(st, f, v1alpha1.ConditionHealthy, metav1.ConditionFalse, reason, v.Message)
	}
	if v != nil && v.ExitIP.IsValid() {
		st.ExitIP = v.ExitIP.String()
	}
}

func setOutdated(px *v1alpha1.Proxy, f facts) {
	st := &px.Status
	switch {
	case st.AppliedSpec == "":
		apimeta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionOutdated)
	case st.AppliedSpec == specHash(&px.Spec):
		setCondition(st, f, v1alpha1.ConditionOutdated, metav1.ConditionFalse, v1alpha1.ReasonUpToDate, "the instance was made from this spec")
	default:
		setCondition(st, f, v1alpha1.ConditionOutdated, metav1.ConditionTrue, v1alpha1.ReasonSpecChanged,
			"the spec changed since the instance was made; the change applies when it is made again")
	}
}

// setReady decides whether the proxy may be handed out. What its provider
// cannot say does not count against a proxy whose own probe passes.
func setReady(st *v1alpha1.ProxyStatus, f facts) {
	provisioned := apimeta.FindStatusCondition(st.Conditions, v1alpha1.ConditionProvisioned)
	healthy := apimeta.FindStatusCondition(st.Conditions, v1alpha1.ConditionHealthy)
	set := func(status metav1.ConditionStatus, reason, message string) {
		setCondition(st, f, v1alpha1.ConditionReady, status, reason, message)
	}
	// A known address is dropped only when the instance is known to be gone,
	// so a passing probe speaks for a running proxy unless the provider says
	// that it does not run.
	standing := st.Address != "" && f.state != provider.Stopped && f.state != provider.Deleting && f.state != provider.Provisioning
	switch {
	case standing && healthy.Status == metav1.ConditionTrue:
		message := "the proxy works"
		if provisioned != nil && provisioned.Status != metav1.ConditionTrue {
			message = "the proxy works, although: " + provisioned.Message
		}
		set(metav1.ConditionTrue, v1alpha1.ReasonReady, message)
	case provisioned != nil && provisioned.Status != metav1.ConditionTrue:
		set(metav1.ConditionFalse, provisioned.Reason, provisioned.Message)
	default:
		set(metav1.ConditionFalse, healthy.Reason, healthy.Message)
	}
}

func phase(st *v1alpha1.ProxyStatus, f facts) v1alpha1.Phase {
	switch {
	case apimeta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionReady):
		return v1alpha1.PhaseReady
	case f.overdue:
		return v1alpha1.PhaseFailed
	case f.err != nil:
		return troubledPhase(st, f)
	case f.running && isUnhealthy(st), f.state == provider.Impaired, f.state == provider.Unknown:
		return v1alpha1.PhaseUnhealthy
	case f.keepConditions && st.Phase != "":
		if st.Phase == v1alpha1.PhaseReady {
			return v1alpha1.PhaseUnhealthy
		}
		return st.Phase
	}
	return v1alpha1.PhaseProvisioning
}

// troubledPhase is the phase of a Proxy that does not work and whose provider
// failed: Failed when a person has to act, otherwise what it was on its way to.
func troubledPhase(st *v1alpha1.ProxyStatus, f facts) v1alpha1.Phase {
	switch fault.Of(f.err) {
	case fault.Permanent, fault.Invalid, fault.Denied, fault.Unsupported, fault.Conflict:
		return v1alpha1.PhaseFailed
	}
	switch {
	case st.ProviderID != "" && st.Address != "":
		return v1alpha1.PhaseUnhealthy
	case st.Host == "":
		return v1alpha1.PhasePending
	}
	return v1alpha1.PhaseProvisioning
}

func setCondition(st *v1alpha1.ProxyStatus, f facts, kind string, status metav1.ConditionStatus, reason, message string) {
	apimeta.SetStatusCondition(&st.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: bounded(message),
		ObservedGeneration: f.generation, LastTransitionTime: f.now,
	})
}

// maxMessage bounds a condition's message (the API refuses above 32 KiB).
const maxMessage = 1024

func bounded(s string) string {
	if len(s) > maxMessage {
		return s[:maxMessage] + " …"
	}
	return s
}

func isHealthy(st *v1alpha1.ProxyStatus) bool {
	return apimeta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionHealthy)
}

func isUnhealthy(st *v1alpha1.ProxyStatus) bool {
	return apimeta.IsStatusConditionFalse(st.Conditions, v1alpha1.ConditionHealthy)
}

func readyMessage(px *v1alpha1.Proxy) string {
	if c := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Message
	}
	return ""
}

// provisioningSince is when the instance's making began: since then the
// condition Provisioned has been False.
func provisioningSince(px *v1alpha1.Proxy) time.Time {
	c := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionProvisioned)
	if c == nil || c.Status == metav1.ConditionTrue {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}

func equalStatus(a, b *v1alpha1.ProxyStatus) bool { return equality.Semantic.DeepEqual(a, b) }
