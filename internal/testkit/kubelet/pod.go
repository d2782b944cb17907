package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sync brings what runs in line with a Pod.
func (k *Kubelet) sync(ctx context.Context, name string) error {
	pod, err := k.pods.Get(name)
	if apierrors.IsNotFound(err) {
		k.endOthers(name, "")
		return nil
	}
	if err != nil {
		return err
	}
	k.endOthers(name, pod.UID)
	if pod.Spec.SchedulerName != corev1.DefaultSchedulerName {
		return nil
	}
	if pod.Spec.NodeName == "" {
		if pod.DeletionTimestamp != nil {
			return nil
		}
		return k.schedule(ctx, pod)
	}
	k.mu.Lock()
	_, mine := k.nodes[pod.Spec.NodeName]
	down, crashed, held := k.down[pod.Spec.NodeName], k.crashed[name], k.hold
	p, over := k.running[pod.UID], k.over[pod.UID]
	k.mu.Unlock()
	switch {
	case !mine:
		return nil
	case down:
		k.stop(pod.UID)
		return nil
	case pod.DeletionTimestamp != nil:
		k.stop(pod.UID)
		now := int64(0)
		err := k.kc.CoreV1().Pods(k.ns).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	case over, pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		k.stop(pod.UID)
		return nil
	case len(pod.Spec.Containers) != 1:
		return fmt.Errorf("the Pod %s has %d containers; this kubelet runs one", name, len(pod.Spec.Containers))
	case crashed:
		k.stop(pod.UID)
		return k.waits(ctx, pod, "CrashLoopBackOff", "back-off 10s restarting failed container")
	case held && p == nil:
		return k.waits(ctx, pod, "ContainerCreating", "")
	case !k.hasImage(pod.Spec.Containers[0].Image):
		return k.pull(ctx, pod)
	case p == nil || p.exited():
		return k.start(ctx, pod)
	}
	return nil
}

// endOthers ends the processes of Pods of that name which are no more.
func (k *Kubelet) endOthers(name string, but types.UID) {
	k.mu.Lock()
	var over []types.UID
	for uid, p := range k.running {
		if p.pod == name && uid != but {
			over = append(over, uid)
		}
	}
	if but == "" {
		delete(k.crashed, name)
	}
	k.mu.Unlock()
	for _, uid := range over {
		k.stop(uid)
	}
}

func (k *Kubelet) stop(uid types.UID) {
	k.mu.Lock()
	p := k.running[uid]
	delete(k.running, uid)
	k.mu.Unlock()
	if p != nil {
		p.end()
	}
}

// pull fails twice: as an error first, and then with the pauses of a kubelet.
func (k *Kubelet) pull(ctx context.Context, pod *corev1.Pod) error {
	image := pod.Spec.Containers[0].Image
	if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Waiting == nil || pod.Status.ContainerStatuses[0].State.Waiting.Reason == "ContainerCreating" {
		return k.waits(ctx, pod, "ErrImagePull", fmt.Sprintf("failed to pull and unpack image %q: not found", image))
	}
	return k.waits(ctx, pod, "ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q", image))
}

// waits reports a container that waits.
func (k *Kubelet) waits(ctx context.Context, pod *corev1.Pod, reason, message string) error {
	k.mu.Lock()
	n := k.starts[pod.UID]
	k.mu.Unlock()
	no := false
	c := corev1.ContainerStatus{
		Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, Started: &no, RestartCount: n,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
	}
	if reason == "CrashLoopBackOff" {
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
	}
	if old := pod.Status.ContainerStatuses; len(old) == 1 && old[0].State.Waiting != nil && *old[0].State.Waiting == *c.State.Waiting {
		return nil
	}
	return k.report(ctx, pod, status(pod, corev1.PodPending, c, ""))
}

// status is a Pod's status with one container.
func status(pod *corev1.Pod, phase corev1.PodPhase, c corev1.ContainerStatus, ip string) corev1.PodStatus {
	ready := corev1.ConditionFalse
	if c.Ready {
		ready = corev1.ConditionTrue
	}
	if c.RestartCount > 0 {
		phase = corev1.PodRunning
	}
	st := corev1.PodStatus{
		Phase: phase, HostIP: "127.0.0.1", PodIP: ip, ContainerStatuses: []corev1.ContainerStatus{c},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: ready},
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()},
		},
	}
	if ip != "" {
		st.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	started := metav1.Now()
	if pod.Status.StartTime != nil {
		started = *pod.Status.StartTime
	}
	st.StartTime = &started
	return st
}

// report writes a Pod's status, unless the Pod is another one by now. One that
// has ended for good is not reported otherwise by a probe that is late.
func (k *Kubelet) report(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	k.mu.Lock()
	lock := k.writing[pod.UID]
	if lock == nil {
		lock = &sync.Mutex{}
		k.writing[pod.UID] = lock
	}
	k.mu.Unlock()
	lock.Lock()
	defer lock.Unlock()
	k.mu.Lock()
	over := k.over[pod.UID]
	if st.Phase == corev1.PodFailed {
		k.over[pod.UID] = true
	}
	k.mu.Unlock()
	if over {
		return nil
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": st})
	if err != nil {
		return err
	}
	_, err = k.kc.CoreV1().Pods(k.ns).Patch(ctx, pod.Name, types.MergePatchType, text, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) && strings.Contains(err.Error(), "metadata.uid") {
		return nil
	}
	return err
}

// start runs the Pod's container.
func (k *Kubelet) start(ctx context.Context, pod *corev1.Pod) error {
	files, err := k.mounted(ctx, pod)
	if apierrors.IsNotFound(err) {
		return errors.Join(k.waits(ctx, pod, "ContainerCreating", "a volume's Secret is not there"), err)
	}
	if err != nil {
		return err
	}
	k.stop(pod.UID)
	c := pod.Spec.Containers[0]
	if len(c.Ports) == 0 {
		return fmt.Errorf("the Pod %s has no port", pod.Name)
	}
	p, err := k.launch(pod, int(c.Ports[0].ContainerPort), files)
	if err != nil {
		return err
	}
	k.mu.Lock()
	n := k.starts[pod.UID]
	k.starts[pod.UID]++
	k.running[pod.UID] = p
	k.mu.Unlock()
	run := func(started bool) corev1.PodStatus {
		return status(pod, corev1.PodRunning, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Started: &started, Ready: started, RestartCount: n,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}, p.ip.String())
	}
	if err := k.report(ctx, pod, run(false)); err != nil {
		return err
	}
	p.look(func(ctx context.Context) {
		if c.StartupProbe == nil || k.probe(ctx, c, c.StartupProbe, p) {
			_ = k.report(ctx, pod, run(true))
		}
	})
	go func() { // what ends by itself is started again
		<-p.done
		if k.ctx.Err() == nil {
			k.queue.Add(pod.Name)
		}
	}()
	return nil
}

// mounted is the content of the Secrets that the Pod mounts.
func (k *Kubelet) mounted(ctx context.Context, pod *corev1.Pod) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, v := range pod.Spec.Volumes {
		if v.Secret == nil {
			continue
		}
		s, err := k.kc.CoreV1().Secrets(k.ns).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for key, value := range s.Data {
			files[key] = value
		}
	}
	return files, nil
}

// probe runs a probe's command until it succeeds, as often as it may fail.
func (k *Kubelet) probe(ctx context.Context, c corev1.Container, probe *corev1.Probe, p *process) bool {
	if probe.Exec == nil {
		return true
	}
	for range probe.FailureThreshold {
		if ctx.Err() != nil {
			return false
		}
		once, cancel := context.WithTimeout(ctx, time.Duration(probe.TimeoutSeconds)*time.Second)
		cmd := exec.CommandContext(once, probe.Exec.Command[0], probe.Exec.Command[1:]...)
		cmd.Env = environment(c, p)
		said, err := cmd.CombinedOutput()
		cancel()
		p.note(strings.TrimSpace(string(said)), err)
		if err == nil {
			return true
		}
		wait := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
	return false
}

// environment is the container's, with the Pod's address for its loopback.
func environment(c corev1.Container, p *process) []string {
	var env []string
	for _, v := range c.Env {
		value := v.Value
		if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil && v.ValueFrom.FieldRef.FieldPath == "status.podIP" {
			value = p.ip.String()
		}
		if value == "127.0.0.1" {
			value = p.ip.String()
		}
		env = append(env, v.Name+"="+value)
	}
	return env
}
