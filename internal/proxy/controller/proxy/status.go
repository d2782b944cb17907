package proxy

import (
	"fmt"
	"strings"
	"unicode/utf8"

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

	// pending: nothing can be said of the instance yet; all stands as it is.
	pending bool
	// keepConditions: nothing new is known of the instance; what stands stays.
	keepConditions bool

	// reason and message are the condition Provisioned.
	reason, message string
	// running: the instance exists and runs.
	running bool
	// restarted: it runs again after a repair.
	restarted bool
	// state is the instance's, when it was seen; Gone when Get did not find it.
	state provider.State
	// elsewhere names other hosts with an instance of this Proxy.
	elsewhere []string
	// unreadable: there is an instance and its provider cannot say how it is.
	unreadable bool
	// overdue: provisioning takes longer than it may.
	overdue bool
	// err is what stopped this reconcile.
	err error

	// verdict is the probe's, when it has one.
	verdict *probe.Snapshot
	// troubleReason and trouble are why the proxy cannot be probed.
	troubleReason, trouble string
	// secret is the version of the Secret of authSecretRef; empty when it was
	// not read.
	secret string
}

func (f *facts) provisioning(reason, message string) {
	f.reason, f.message = reason, message
}

// standing tells whether a known address may still answer: it does not when
// the provider knows that the instance does not run.
func (f *facts) standing() bool {
	switch f.state {
	case provider.Stopped, provider.Deleting, provider.Provisioning, provider.Gone:
		return false
	}
	return true
}

// summarize writes conditions and phase from the facts alone.
func summarize(px *v1alpha1.Proxy, f facts) {
	st := &px.Status
	if f.pending || (f.keepConditions && f.verdict == nil) {
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
	set := func(status metav1.ConditionStatus, reason, message string) {
		setCondition(st, f, v1alpha1.ConditionHealthy, status, reason, message)
	}
	v := f.verdict
	switch {
	case st.Address == "":
		set(metav1.ConditionUnknown, v1alpha1.ReasonNotProbed, "there is no address to check yet")
	case !f.standing():
		set(metav1.ConditionUnknown, v1alpha1.ReasonNotProbed, "the instance does not run")
	case f.trouble != "":
		set(metav1.ConditionUnknown, f.troubleReason, f.trouble)
	case v == nil || v.State == health.Unknown:
		// After a start of the operator the last verdict stands until the first
		// check ends: a fleet must not blink.
		if c := apimeta.FindStatusCondition(st.Conditions, v1alpha1.ConditionHealthy); c != nil && c.Reason != v1alpha1.ReasonNotProbed {
			return
		}
		message := "the first check has not ended"
		if v != nil && !v.Checked.IsZero() && v.Message != "" {
			message = "not enough checks yet; the last one: " + v.Message
		}
		set(metav1.ConditionUnknown, v1alpha1.ReasonNotProbed, message)
	case v.State == health.Healthy:
		reason, message := v1alpha1.ReasonProbePassed, "requests through the proxy succeed"
		switch {
		case v.Inconclusive:
			reason, message = v1alpha1.ReasonProbeInconclusive, "the last check says nothing, since the checked URL itself does not answer: "+v.Message
		case v.Shallow:
			reason, message = v1alpha1.ReasonShallowProbePassed, "the proxy answers; nothing was fetched through it, since no health URL is known (set healthCheck.url or --health-check-url)"
		}
		set(metav1.ConditionTrue, reason, message)
	default:
		reason := v1alpha1.ReasonProbeFailed
		if v.Inconclusive {
			reason = v1alpha1.ReasonProbeInconclusive
		}
		set(metav1.ConditionFalse, reason, v.Message)
	}
	if v == nil {
		return
	}
	if ip := v.Facts.ExitIP; ip.IsValid() {
		st.ExitIP = ip.String()
	}
	showFacts(st, v.Facts)
}

func setOutdated(px *v1alpha1.Proxy, f facts) {
	st := &px.Status
	set := func(status metav1.ConditionStatus, reason, message string) {
		setCondition(st, f, v1alpha1.ConditionOutdated, status, reason, message)
	}
	switch {
	case st.AppliedSpec == "":
		apimeta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionOutdated)
	case st.AppliedSpec != specHash(&px.Spec):
		set(metav1.ConditionTrue, v1alpha1.ReasonSpecChanged,
			"the spec changed since the instance was made; the change applies when it is made again")
	case f.secret == "" && px.Spec.AuthSecretRef != nil:
		// Not read in this reconcile: what stands stays.
	case px.Spec.AuthSecretRef != nil && st.AppliedSecret != "" && f.secret != st.AppliedSecret:
		set(metav1.ConditionTrue, v1alpha1.ReasonSecretChanged,
			"the Secret of authSecretRef changed since the instance was made with it; the change applies when it is made again")
	default:
		set(metav1.ConditionFalse, v1alpha1.ReasonUpToDate, "the instance was made from this spec")
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
	switch {
	case st.Address != "" && f.standing() && healthy.Status == metav1.ConditionTrue:
		message := "the proxy works"
		if provisioned != nil && (provisioned.Status != metav1.ConditionTrue || provisioned.Reason == v1alpha1.ReasonDuplicate) {
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
	case f.running && (f.trouble != "" || apimeta.IsStatusConditionFalse(st.Conditions, v1alpha1.ConditionHealthy)),
		f.state == provider.Impaired, f.state == provider.Unknown:
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
		Type: kind, Status: status, Reason: reason, Message: bounded("%s", message),
		ObservedGeneration: f.generation, LastTransitionTime: f.now,
	})
}

// maxText bounds the text of a condition or an Event, in bytes: the API refuses
// an Event with more. Texts may quote what a far side sent, so they are cut
// between characters and made valid UTF-8, without which a status would differ
// from what was stored for ever.
const maxText = 1024

func bounded(format string, args ...any) string {
	return clip(fmt.Sprintf(format, args...), maxText)
}

// clip shortens a text to at most that many bytes of valid UTF-8.
func clip(s string, most int) string {
	s = strings.ToValidUTF8(s, "�")
	if len(s) <= most {
		return s
	}
	const more = " …"
	s = s[:most-len(more)]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + more
}

// maxQuote bounds what a text quotes of an error, so that what follows it (the
// way out) is not cut off.
const maxQuote = 400

func readyMessage(px *v1alpha1.Proxy) string {
	if c := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Message
	}
	return ""
}

func equalStatus(a, b *v1alpha1.ProxyStatus) bool { return equality.Semantic.DeepEqual(a, b) }
