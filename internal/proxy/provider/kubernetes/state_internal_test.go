package kubernetes

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/internal/proxy/provider"
)

// Each thing that a Pod may show is one state, with cause and remedy.
func TestState(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	p := &Provider{now: func() time.Time { return now }, host: "c/n"}
	waits := func(reason, message string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
		}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   provider.State
		says   string
	}{
		"well":           {func(*corev1.Pod) {}, provider.Running, "on node n1"},
		"not ready":      {func(pod *corev1.Pod) { pod.Status.Conditions = nil }, provider.Running, "its probe fails"},
		"not started":    {func(pod *corev1.Pod) { pod.Status.ContainerStatuses[0].Started = new(bool) }, provider.Provisioning, "has not carried a request yet"},
		"started?":       {func(pod *corev1.Pod) { pod.Status.ContainerStatuses[0].Started = nil }, provider.Provisioning, "has not carried a request yet"},
		"no address":     {func(pod *corev1.Pod) { pod.Status.PodIP = "" }, provider.Provisioning, "has not carried a request yet"},
		"no container":   {func(pod *corev1.Pod) { pod.Status.ContainerStatuses = nil }, provider.Provisioning, "has not begun"},
		"not scheduled":  {func(pod *corev1.Pod) { pod.Spec.NodeName = "" }, provider.Provisioning, "no node was chosen yet"},
		"config":         {waits("CreateContainerConfigError", `secret "x" not found`), provider.Provisioning, "waits for the instance's Secret"},
		"first pull":     {waits("ErrImagePull", "not found"), provider.Provisioning, "could not get the image i"},
		"pull":           {waits("ImagePullBackOff", "Back-off"), provider.Impaired, "imagePullSecrets"},
		"name":           {waits("InvalidImageName", "bad"), provider.Impaired, "mend the name"},
		"never":          {waits("ErrImageNeverPull", "bad"), provider.Impaired, "cannot get the image"},
		"create":         {waits("CreateContainerError", "no such file"), provider.Impaired, "cannot start image i"},
		"run":            {waits("RunContainerError", "exec"), provider.Impaired, "cannot start image i"},
		"creating":       {waits("ContainerCreating", ""), provider.Provisioning, "makes the container"},
		"something else": {waits("Pondering", "a\nb"), provider.Provisioning, "waits (Pondering: a b)"},
		"ended once": {func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}
		}, provider.Provisioning, "OOMKilled, exit code 137"},
		"crashes": {func(pod *corev1.Pod) {
			waits("CrashLoopBackOff", "")(pod)
			pod.Status.ContainerStatuses[0].RestartCount = 4
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
		}, provider.Impaired, "ended 4 times (CrashLoopBackOff; Error, exit code 1)"},
		"evicted":   {func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted" }, provider.Stopped, "Evicted"},
		"completed": {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }, provider.Stopped, "Succeeded"},
		"unknown":   {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodUnknown }, provider.Unknown, "node n1 does not say"},
		"going":     {func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Second)} }, provider.Deleting, "is being removed"},
		"stuck": {func(pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.UID = &metav1.Time{Time: now}, "stuck"
			p.endings.since(pod.UID, now.Add(-time.Hour))
		}, provider.Deleting, "delete the Node object or the Pod by force"},
		"going, by another clock": {func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)} }, provider.Deleting, "is being removed"},
		"going, and crashed": {func(pod *corev1.Pod) {
			waits("CrashLoopBackOff", "")(pod)
			pod.DeletionTimestamp = &metav1.Time{Time: now}
		}, provider.Deleting, "is being removed"},
		"no annotation":      {func(pod *corev1.Pod) { pod.Annotations = nil }, provider.Unknown, "put it back"},
		"another's":          {func(pod *corev1.Pod) { pod.Annotations[annotationOwner] = `{"installation":"i","uid":"other"}` }, provider.Unknown, "put it back"},
		"other installation": {func(pod *corev1.Pod) { pod.Annotations[annotationOwner] = `{"installation":"j","uid":"u"}` }, provider.Unknown, "put it back"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := wellPod(t)
			tc.change(pod)
			in := p.instance(pod, nil)
			if in.State != tc.want || !strings.Contains(in.Message, tc.says) || strings.Contains(in.Message, "\n") {
				t.Errorf("%s: %s; want %s with %q", in.State, in.Message, tc.want, tc.says)
			}
			if (in.State == provider.Running) != (in.Address != "" && in.Port != 0) {
				t.Errorf("%s at %q port %d", in.State, in.Address, in.Port)
			}
		})
	}
}

func wellPod(t *testing.T) *corev1.Pod {
	t.Helper()
	o := provider.Owner{Installation: "i", Namespace: "crawl", Name: "a", UID: "u"}
	name, err := nameOf(o)
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{
			Name: containerName, Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 3128}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "192.0.2.7",
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: containerName, Started: &yes, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	if err := mark(&pod.ObjectMeta, o); err != nil {
		t.Fatal(err)
	}
	return pod
}

// What carries other labels than its name says is not ours, whatever its
// annotation says.
func TestOwnership(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   ownership
	}{
		"whole":              {func(*corev1.Pod) {}, whole},
		"another name":       {func(pod *corev1.Pod) { pod.Name = "px-v-" + TagOf("i") }, strange},
		"a name by chance":   {func(pod *corev1.Pod) { pod.Name = "web-1" }, strange},
		"no label":           {func(pod *corev1.Pod) { delete(pod.Labels, labelManaged) }, strange},
		"other installation": {func(pod *corev1.Pod) { pod.Labels[labelInstallation] = TagOf("j") }, strange},
		"other UID":          {func(pod *corev1.Pod) { pod.Labels[labelUID] = "v" }, strange},
		"damaged":            {func(pod *corev1.Pod) { pod.Annotations[annotationOwner] = "{" }, torn},
	} {
		t.Run(name, func(t *testing.T) {
			pod := wellPod(t)
			tc.change(pod)
			if _, got := ownerOf(pod); got != tc.want {
				t.Errorf("ownership %d; want %d", got, tc.want)
			}
		})
	}
}

// A Pod that somebody else put under our name is left alone.
func TestBelongs(t *testing.T) {
	p := &Provider{host: "c/n"}
	mine := provider.Owner{Installation: "i", Namespace: "crawl", Name: "a", UID: "u"}
	pod := wellPod(t)
	if err := p.belongs(pod, mine); err != nil {
		t.Error(err)
	}
	other := mine
	other.UID = "v"
	if err := p.belongs(pod, other); err == nil {
		t.Error("it belongs to another UID as well")
	}
	pod.Labels = nil
	if err := p.belongs(pod, mine); err == nil {
		t.Error("it belongs to us without our labels")
	}
}
