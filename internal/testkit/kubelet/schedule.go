package kubelet

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// schedule binds a Pod to the node that fits and keeps its spread best. It
// knows node selectors, taints and topology spread, and no resources.
func (k *Kubelet) schedule(ctx context.Context, pod *corev1.Pod) error {
	k.mu.Lock()
	if _, done := k.bound[pod.UID]; done {
		k.mu.Unlock()
		return nil
	}
	node, why := k.choose(pod)
	if node != "" {
		k.bound[pod.UID] = node
	}
	k.mu.Unlock()
	if node == "" {
		return k.report(ctx, pod, corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why,
		}}})
	}
	err := k.kc.CoreV1().Pods(k.ns).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		k.mu.Lock()
		delete(k.bound, pod.UID)
		k.mu.Unlock()
	}
	return err
}

// choose returns a node, or why there is none; k.mu is held.
func (k *Kubelet) choose(pod *corev1.Pod) (node, why string) {
	var fit []string
	selector, tainted := 0, 0
	for _, name := range slices.Sorted(maps.Keys(k.nodes)) {
		n := k.nodes[name]
		switch {
		case k.down[name]:
			tainted++
		case !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(n.Labels)):
			selector++
		case !tolerates(pod.Spec.Tolerations, n.Taints):
			tainted++
		default:
			fit = append(fit, name)
		}
	}
	none := fmt.Sprintf("0/%d nodes are available: %d node(s) didn't match Pod's node affinity/selector, %d node(s) had untolerated taint(s)", len(k.nodes), selector, tainted)
	if len(fit) == 0 {
		return "", none
	}
	best, least := "", 0
	for _, name := range fit {
		sum, ok := 0, true
		for _, c := range pod.Spec.TopologySpreadConstraints {
			mine, lowest := k.counts(pod, c, fit, name)
			sum += mine
			if c.WhenUnsatisfiable == corev1.DoNotSchedule && mine+1-lowest > int(c.MaxSkew) {
				ok = false
			}
		}
		if ok && (best == "" || sum < least) {
			best, least = name, sum
		}
	}
	if best == "" {
		return "", fmt.Sprintf("0/%d nodes are available: %d node(s) didn't match pod topology spread constraints", len(k.nodes), len(fit))
	}
	return best, ""
}

// counts is how many Pods of the constraint are in the node's domain, and in the
// domain that has the fewest.
func (k *Kubelet) counts(pod *corev1.Pod, c corev1.TopologySpreadConstraint, fit []string, node string) (mine, lowest int) {
	per := map[string]int{}
	for _, name := range fit {
		per[k.nodes[name].Labels[c.TopologyKey]] += 0
	}
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	all, lerr := k.pods.List(labels.Everything())
	if err != nil || lerr != nil {
		return 0, 0
	}
	for _, other := range all {
		on := other.Spec.NodeName
		if on == "" {
			on = k.bound[other.UID]
		}
		if n, known := k.nodes[on]; known && other.UID != pod.UID && other.DeletionTimestamp == nil && selector.Matches(labels.Set(other.Labels)) {
			per[n.Labels[c.TopologyKey]]++
		}
	}
	lowest = slices.Min(slices.Collect(maps.Values(per)))
	return per[k.nodes[node].Labels[c.TopologyKey]], lowest
}

func tolerates(has []corev1.Toleration, taints []corev1.Taint) bool {
	for _, taint := range taints {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(has, func(t corev1.Toleration) bool {
			return (t.Effect == "" || t.Effect == taint.Effect) && (t.Key == "" || t.Key == taint.Key) &&
				(t.Operator == corev1.TolerationOpExists || t.Value == taint.Value)
		}) {
			return false
		}
	}
	return true
}
