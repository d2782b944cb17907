package proxyset

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
)

const (
	// repairAfter is how long a Proxy fails by itself before it is replaced.
	repairAfter = 5 * time.Minute
	// unbornAfter is how old one is at least that is replaced although it never
	// worked: making it again seldom helps.
	// It is twice as old each time until one of the template works, maxUnborn at
	// most.
	unbornAfter = 30 * time.Minute
	maxUnborn   = 24 * time.Hour
)

// member is what a plan knows of one Proxy of the set.
type member struct {
	name    string
	uid     types.UID
	version string
	created time.Time
	// seen is false for one that was made and that the cache does not show yet.
	seen bool
	// terminating: it is being deleted. Nothing else counts then.
	terminating bool
	// ready: it is handed out. worked: it was, at some time. placed: a machine
	// was begun for it. failed: its phase says Unhealthy or Failed.
	ready, worked, placed, failed bool
	// outdated: it was made from an earlier template.
	outdated bool
	// repairAt is when it is replaced unless it works again; zero while it works,
	// and while what is wrong is not its own fault.
	repairAt time.Time
	// trouble is why its provider, or what it refers to, cannot be relied on now;
	// "" when it can. wide: that holds for all Proxies of the provider. quota: it
	// is a quota.
	trouble     string
	wide, quota bool
	// provider and host are where its machine is, exitIP the address it leaves by.
	provider, host, exitIP string
	// banned is how many targets ban it, or its exit IP.
	banned int
	// held: somebody has it.
	held bool
	// limit is its own age limit; zero for none. lot is a number from its UID.
	limit time.Time
	lot   uint64
	// message says how it is.
	message string
}

// isMaking says whether it is on its way: it is to work, and never did.
func (m *member) isMaking() bool { return !m.terminating && !m.ready && !m.worked }

// memberOf reads a Proxy; what is not in the object is the caller's to add.
func memberOf(px *v1alpha1.Proxy, rotation *v1alpha1.Rotation) member {
	m := member{
		name: px.Name, uid: px.UID, version: px.ResourceVersion, created: px.CreationTimestamp.Time, seen: true,
		terminating: !px.DeletionTimestamp.IsZero(),
		placed:      px.Status.Host != "" || px.Status.ProviderID != "",
		failed:      px.Status.Phase == v1alpha1.PhaseUnhealthy || px.Status.Phase == v1alpha1.PhaseFailed,
		provider:    px.Spec.Provider, host: px.Status.Host, exitIP: px.Status.ExitIP,
		lot: lot(px.UID), message: "nobody has looked at it yet",
	}
	m.limit = ageLimit(m.created, m.lot, rotation)
	conditions := conditionsOf(px)
	m.trouble, m.wide, m.quota = conditions.trouble()
	if ready := conditions.ready; ready != nil {
		m.ready = ready.Status == metav1.ConditionTrue
		m.message = ready.Reason + ": " + ready.Message
		m.worked = m.ready || ready.LastTransitionTime.After(conditions.begun)
	}
	if since := conditions.failing(px.Status.Phase); m.failed && m.trouble == "" && !m.ready && !since.IsZero() {
		m.repairAt = since.Add(repairAfter)
		if unborn := m.created.Add(unbornAfter); !m.worked && unborn.After(m.repairAt) {
			m.repairAt = unborn
		}
	}
	return m
}

func lot(uid types.UID) uint64 {
	sum := sha256.Sum256([]byte(uid))
	return binary.BigEndian.Uint64(sum[:])
}

// ageLimit is when a Proxy is as old as it may become: its own share of the
// jitter before maxAge. Zero for never.
func ageLimit(created time.Time, lot uint64, rotation *v1alpha1.Rotation) time.Time {
	if rotation == nil || rotation.MaxAge == "" {
		return time.Time{}
	}
	age, err := time.ParseDuration(string(rotation.MaxAge))
	if err != nil || age <= 0 {
		return time.Time{} // admission refuses such
	}
	jitter := 0.1
	if rotation.Jitter != nil {
		jitter = float64(*rotation.Jitter) / 100
	}
	share := float64(lot>>11) / (1 << 53)
	return created.Add(age - time.Duration(float64(age)*jitter*share))
}

// conditions are those of a Proxy; nil where there is none.
type conditions struct {
	provisioned, healthy, ready, provider *metav1.Condition
	// begun is when the oldest of them was set: each was set when the Proxy was
	// looked at first, and has another time only if it changed since.
	begun time.Time
}

func conditionsOf(px *v1alpha1.Proxy) conditions {
	of := func(kind string) *metav1.Condition { return apimeta.FindStatusCondition(px.Status.Conditions, kind) }
	c := conditions{of(v1alpha1.ConditionProvisioned), of(v1alpha1.ConditionHealthy), of(v1alpha1.ConditionReady), of(v1alpha1.ConditionProvider), time.Time{}}
	for i := range px.Status.Conditions {
		if at := px.Status.Conditions[i].LastTransitionTime.Time; c.begun.IsZero() || at.Before(c.begun) {
			c.begun = at
		}
	}
	return c
}

// trouble says whether, and why, the Proxy's provider or its configuration
// cannot be relied on: then neither is it the Proxy's fault when it does not
// work, nor would another one fare better.
func (c *conditions) trouble() (text string, wide, quota bool) {
	if p := c.provisioned; p != nil && p.Status != metav1.ConditionTrue {
		switch {
		case p.Reason == v1alpha1.ReasonProviderNotFound, p.Reason == v1alpha1.ReasonProviderBroken:
			return p.Message, true, false
		case p.Status == metav1.ConditionUnknown, p.Reason == v1alpha1.ReasonReferenceNotFound, ofClass(p.Reason):
			text, quota = p.Message, p.Reason == v1alpha1.ReasonQuota
		}
	}
	// Such as a Secret that is not there for the checks.
	if h := c.healthy; text == "" && h != nil && h.Status == metav1.ConditionUnknown && (h.Reason == v1alpha1.ReasonReferenceNotFound || ofClass(h.Reason)) {
		text = h.Message
	}
	if p := c.provider; p != nil && p.Status == metav1.ConditionFalse {
		return p.Message, p.Reason == v1alpha1.ReasonCheckFailed, quota
	}
	return text, false, quota
}

// ofClass says whether a reason is that of a class of errors.
func ofClass(reason string) bool {
	for _, m := range fault.Table() {
		if m.Reason == reason {
			return true
		}
	}
	return false
}

// failing is since when the Proxy fails by its own fault; zero for not. A check
// that says nothing, and a machine that its provider cannot read, are no such
// fault.
func (c *conditions) failing(phase v1alpha1.Phase) time.Time {
	if c.ready == nil || c.provisioned == nil {
		return time.Time{}
	}
	since := time.Time{}
	switch p, h := c.provisioned, c.healthy; {
	case p.Status == metav1.ConditionFalse && p.Reason == v1alpha1.ReasonImpaired:
		since = p.LastTransitionTime.Time
	case p.Status == metav1.ConditionFalse && phase == v1alpha1.PhaseFailed:
		switch p.Reason {
		case v1alpha1.ReasonProvisioning, v1alpha1.ReasonRebuilding, v1alpha1.ReasonStopped: // for longer than it may take
			since = p.LastTransitionTime.Time
		}
	case h != nil && h.Status == metav1.ConditionFalse && h.Reason == v1alpha1.ReasonProbeFailed:
		since = h.LastTransitionTime.Time
	}
	if since.IsZero() || since.After(c.ready.LastTransitionTime.Time) {
		return since
	}
	return c.ready.LastTransitionTime.Time
}
