package proxyset

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fleetdesk/api/v1alpha1"
)

// writeStatus stores what is known of the set; a write that lost a race is a
// Conflict and nothing is overwritten.
func (p *pass) writeStatus(ctx context.Context, d *decision) error {
	set := p.set.DeepCopy()
	st := &set.Status
	st.Replicas, st.ReadyReplicas = int32(d.counts.live), int32(d.counts.ready)
	st.UpdatedReplicas, st.BannedReplicas = int32(d.counts.updated), int32(d.counts.banned)
	st.TerminatingReplicas = int32(d.counts.terminating)
	st.Banned = d.decided
	st.Selector = selectorText(&set.Spec.Selector)
	st.ObservedGeneration = set.Generation
	status := metav1.ConditionFalse
	if d.settled {
		status = metav1.ConditionTrue
	}
	apimeta.SetStatusCondition(&st.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionSettled, Status: status, Reason: d.reason, Message: clip(d.message),
		ObservedGeneration: set.Generation, LastTransitionTime: metav1.NewTime(p.now),
	})
	if equality.Semantic.DeepEqual(&p.set.Status, st) {
		return nil
	}
	asked, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if err := p.r.o.Client.Status().Update(asked, set); err != nil {
		return err
	}
	p.set = set
	return nil
}

// selectorText is the selector as autoscalers read it.
func selectorText(s *v1alpha1.SetSelector) string {
	of := labels.Set{}
	for k, v := range s.MatchLabels {
		of[k] = string(v)
	}
	return of.String()
}
