package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// patience bounds what a fault waits for.
const patience = 30 * time.Second

// Evict ends a Pod as a node does that is short of something: the object stays,
// Failed.
func (k *Kubelet) Evict(t T, name string) {
	t.Helper()
	pod := k.live(t, name)
	st := pod.Status
	st.Phase, st.Reason, st.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory."
	st.ContainerStatuses = nil
	st.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	ctx, cancel := context.WithTimeout(k.ctx, callLimit)
	defer cancel()
	if err := k.report(ctx, pod, st); err != nil {
		t.Fatalf("kubelet: evict %s: %v", name, err)
	}
	k.await(t, "the process of "+name+" to end", func() bool { return len(k.Processes(name)) == 0 })
}

// Crash ends the Pod's process, and has it end each time it is started again,
// until Recover.
func (k *Kubelet) Crash(t T, name string) {
	t.Helper()
	k.mark(k.crashed, name, true)
	k.await(t, name+" to wait after a crash", func() bool {
		c := k.live(t, name).Status.ContainerStatuses
		return len(c) == 1 && c[0].State.Waiting != nil && c[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
}

// Recover undoes Crash.
func (k *Kubelet) Recover(name string) { k.mark(k.crashed, name, false) }

// Hold keeps Pods from being started that are not yet, until Release.
func (k *Kubelet) Hold() { k.setHold(true) }

// Release undoes Hold.
func (k *Kubelet) Release() { k.setHold(false) }

// Kill ends the Pod's process once; its node starts it again.
func (k *Kubelet) Kill(name string) {
	for _, p := range k.of(name) {
		_ = p.cmd.Process.Kill()
	}
}

// NodeDown has a node's machine lose its power: its processes end, it says
// nothing any more, and the Node says so as the cluster would.
func (k *Kubelet) NodeDown(t T, short string) {
	t.Helper()
	name := k.NodeName(short)
	k.mark(k.down, name, true)
	ctx, cancel := context.WithTimeout(k.ctx, callLimit)
	defer cancel()
	if err := k.nodeReady(ctx, name, corev1.ConditionUnknown); err != nil {
		t.Fatalf("kubelet: node %s: %v", name, err)
	}
	for _, pod := range k.all() {
		if pod.Spec.NodeName != name || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		st := pod.Status.DeepCopy()
		for i := range st.Conditions {
			if st.Conditions[i].Type == corev1.PodReady {
				st.Conditions[i].Status = corev1.ConditionFalse
			}
		}
		if err := k.report(ctx, pod, *st); err != nil {
			t.Fatalf("kubelet: Pod %s: %v", pod.Name, err)
		}
		k.await(t, "the process of "+pod.Name+" to end", func() bool { return len(k.Processes(pod.Name)) == 0 })
	}
}

// NodeUp undoes NodeDown.
func (k *Kubelet) NodeUp(t T, short string) {
	t.Helper()
	name := k.NodeName(short)
	k.mark(k.down, name, false)
	ctx, cancel := context.WithTimeout(k.ctx, callLimit)
	defer cancel()
	if err := k.nodeReady(ctx, name, corev1.ConditionTrue); err != nil {
		t.Fatalf("kubelet: node %s: %v", name, err)
	}
}

// Processes are the ids of the processes that run for a Pod's name.
func (k *Kubelet) Processes(name string) []int {
	var pids []int
	for _, p := range k.of(name) {
		if !p.exited() {
			pids = append(pids, p.cmd.Process.Pid)
		}
	}
	return pids
}

// Said is what the Pod's last probe printed, and how it ended.
func (k *Kubelet) Said(name string) string {
	for _, p := range k.of(name) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.said
	}
	return ""
}

func (k *Kubelet) of(name string) []*process {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*process
	for _, p := range k.running {
		if p.pod == name {
			out = append(out, p)
		}
	}
	return out
}

func (k *Kubelet) all() []*corev1.Pod {
	pods, err := k.pods.List(labels.Everything())
	if err != nil {
		return nil
	}
	return pods
}

func (k *Kubelet) mark(m map[string]bool, name string, on bool) {
	k.mu.Lock()
	if on {
		m[name] = true
	} else {
		delete(m, name)
	}
	k.mu.Unlock()
	for _, pod := range k.all() {
		k.queue.Add(pod.Name)
	}
}

func (k *Kubelet) setHold(on bool) {
	k.mu.Lock()
	k.hold = on
	k.mu.Unlock()
	for _, pod := range k.all() {
		k.queue.Add(pod.Name)
	}
}

// live reads a Pod from the server.
func (k *Kubelet) live(t T, name string) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(k.ctx, callLimit)
	defer cancel()
	pod, err := k.kc.CoreV1().Pods(k.ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("kubelet: Pod %s: %v", name, err)
	}
	return pod
}

// await waits for a condition, with a far bound.
func (k *Kubelet) await(t T, what string, holds func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(end) {
			t.Fatalf("kubelet: waited %s in vain for %s", patience, what)
		}
		<-tick.C
	}
}
