package kubernetes

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/internal/proxy/provider"
)

// noService is the annotation of a Pod that has no Service.
const noService = "none"

// serviceKind is the kind of Service that a Pod was made with: the section may
// ask for another one by now, and a proxy that runs stays reachable where it is.
func (p *Provider) serviceKind(pod metav1.Object) string {
	switch kind := pod.GetAnnotations()[annotationService]; kind {
	case noService, string(corev1.ServiceTypeClusterIP), string(corev1.ServiceTypeNodePort), string(corev1.ServiceTypeLoadBalancer):
		return kind
	}
	return p.conf.serviceKind()
}

// serviceKind is the kind of Service that new Pods get.
func (s *settled) serviceKind() string {
	if s.service == nil {
		return noService
	}
	return s.service.Type
}

// instance is a Pod as the contract shows it. svc is its Service where it was
// made with one, nil when it is not there.
func (p *Provider) instance(pod *corev1.Pod, svc *corev1.Service) provider.Instance {
	o, says := ownerOf(pod)
	in := provider.Instance{ID: p.id(pod.Name), Owner: o, Host: p.host, Created: pod.CreationTimestamp.Time}
	if says != whole {
		in.State = provider.Unknown
		in.Message = fmt.Sprintf("the annotation %s of Pod %s is damaged: put it back, or delete the Pod", annotationOwner, pod.Name)
		return in
	}
	in.State, in.Message = p.state(pod)
	if in.State != provider.Running {
		return in
	}
	address, port, wait := p.address(pod, svc)
	if wait != "" {
		in.State, in.Message = provider.Provisioning, wait
		return in
	}
	in.Address, in.Port = address, port
	return in
}

// address is where clients reach the proxy, or what is waited for.
func (p *Provider) address(pod *corev1.Pod, svc *corev1.Service) (address string, port int, wait string) {
	port = portOf(pod)
	switch {
	case p.serviceKind(pod) == noService:
		return pod.Status.PodIP, port, ""
	case svc == nil, len(svc.Spec.Ports) == 0:
		return "", 0, "its Service is being made"
	case svc.DeletionTimestamp != nil:
		// Its address is given back, and perhaps to somebody else.
		return "", 0, fmt.Sprintf("Service %s is being removed (finalizers: %s), and is made again then", svc.Name, holders(svc))
	}
	switch svc.Spec.Type {
	case corev1.ServiceTypeClusterIP:
		address, port = svc.Spec.ClusterIP, int(svc.Spec.Ports[0].Port)
	case corev1.ServiceTypeNodePort:
		address, port = pod.Status.HostIP, int(svc.Spec.Ports[0].NodePort)
	case corev1.ServiceTypeLoadBalancer:
		port = int(svc.Spec.Ports[0].Port)
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if address = or(in.IP, in.Hostname); address != "" {
				break
			}
		}
		if address == "" {
			return "", 0, fmt.Sprintf("Service %s has no address from the cluster's load balancer yet", svc.Name)
		}
	}
	if address == "" || port == 0 {
		return "", 0, fmt.Sprintf("Service %s has no address yet", svc.Name)
	}
	return address, port, ""
}

// portOf is the port that the Pod was made with.
func portOf(pod *corev1.Pod) int {
	for _, c := range pod.Spec.Containers {
		for _, port := range c.Ports {
			if c.Name == containerName {
				return int(port.ContainerPort)
			}
		}
	}
	return 0
}

// state says what a Pod is doing, with cause and remedy where it is not well.
func (p *Provider) state(pod *corev1.Pod) (provider.State, string) {
	st := &pod.Status
	if pod.DeletionTimestamp != nil {
		if p.overdue(pod) {
			return provider.Deleting, fmt.Sprintf("Pod %s was to end at %s and has not: its node %s may be away; when it does not come back, and only when the node's machine is off, delete the Node object or the Pod by force",
				pod.Name, pod.DeletionTimestamp.UTC().Format(time.RFC3339), or(pod.Spec.NodeName, "(none)"))
		}
		return provider.Deleting, fmt.Sprintf("Pod %s is being removed", pod.Name)
	}
	switch st.Phase {
	case corev1.PodFailed, corev1.PodSucceeded:
		why := or(st.Reason, string(st.Phase))
		if st.Message != "" {
			why += ": " + line(st.Message)
		}
		return provider.Stopped, fmt.Sprintf("the Pod has ended (%s); it is made again", why)
	case corev1.PodUnknown:
		return provider.Unknown, fmt.Sprintf("node %s does not say how the Pod is: mend the node, or delete its Node object", pod.Spec.NodeName)
	}
	if pod.Spec.NodeName == "" {
		return provider.Provisioning, unscheduled(st)
	}
	c := containerOf(st)
	if c == nil {
		return provider.Provisioning, fmt.Sprintf("node %s has not begun to start it yet", pod.Spec.NodeName)
	}
	switch {
	case c.State.Waiting != nil:
		return waiting(pod, c)
	case c.State.Terminated != nil:
		return provider.Provisioning, "the proxy ended and is started again by its node: " + ended(c.State.Terminated)
	case c.State.Running == nil, c.Started == nil, !*c.Started, !validIP(st.PodIP):
		return provider.Provisioning, fmt.Sprintf("the proxy runs on node %s and has not carried a request yet (readiness probe)", pod.Spec.NodeName)
	}
	if ready := conditionOf(st, corev1.PodReady); ready == nil || ready.Status != corev1.ConditionTrue {
		return provider.Running, fmt.Sprintf("the proxy runs on node %s and is not ready: its probe fails, or the node is away", pod.Spec.NodeName)
	}
	return provider.Running, fmt.Sprintf("on node %s", pod.Spec.NodeName)
}

func unscheduled(st *corev1.PodStatus) string {
	c := conditionOf(st, corev1.PodScheduled)
	if c == nil || c.Status == corev1.ConditionTrue {
		return "no node was chosen yet"
	}
	if c.Reason == corev1.PodReasonUnschedulable {
		return fmt.Sprintf("no node takes it (%s): free room there, or change placement.nodeSelector, resources, or tolerations of the provider", line(c.Message))
	}
	return fmt.Sprintf("no node was chosen yet (%s: %s)", c.Reason, line(c.Message))
}

// The reasons for waiting that the kubelet gives.
const (
	waitPullBackOff  = "ImagePullBackOff"
	waitInvalidName  = "InvalidImageName"
	waitNeverPull    = "ErrImageNeverPull"
	waitPull         = "ErrImagePull"
	waitCrash        = "CrashLoopBackOff"
	waitConfig       = "CreateContainerConfigError"
	waitCreate       = "CreateContainerError"
	waitRun          = "RunContainerError"
	waitCreating     = "ContainerCreating"
	waitInitializing = "PodInitializing"
)

// waiting tells what a container waits for. What the kubelet tries again by
// itself and often mends is Provisioning; what it has given up to longer and
// longer pauses needs a person, and is left as it is: it is evidence.
func waiting(pod *corev1.Pod, c *corev1.ContainerStatus) (provider.State, string) {
	w, image := c.State.Waiting, ""
	if len(pod.Spec.Containers) > 0 {
		image = line(pod.Spec.Containers[0].Image)
	}
	text := w.Reason
	if w.Message != "" {
		text += ": " + line(w.Message)
	}
	switch w.Reason {
	case waitPullBackOff, waitInvalidName, waitNeverPull:
		return provider.Impaired, fmt.Sprintf("node %s cannot get the image %s (%s): mend the name, push the image, or give imagePullSecrets", pod.Spec.NodeName, image, text)
	case waitCrash:
		if t := c.LastTerminationState.Terminated; t != nil {
			text += "; " + ended(t)
		}
		return provider.Impaired, fmt.Sprintf("the proxy of image %s ended %d times (%s): see kubectl logs --previous -n %s %s", image, c.RestartCount, text, pod.Namespace, pod.Name)
	case waitCreate, waitRun:
		return provider.Impaired, fmt.Sprintf("node %s cannot start image %s (%s): it needs what kubernetes.images describes", pod.Spec.NodeName, image, text)
	case waitConfig:
		return provider.Provisioning, fmt.Sprintf("node %s waits for the instance's Secret (%s)", pod.Spec.NodeName, text)
	case waitPull:
		return provider.Provisioning, fmt.Sprintf("node %s could not get the image %s yet (%s)", pod.Spec.NodeName, image, text)
	case "", waitCreating, waitInitializing:
		return provider.Provisioning, fmt.Sprintf("node %s gets the image and makes the container", pod.Spec.NodeName)
	}
	return provider.Provisioning, fmt.Sprintf("node %s waits (%s)", pod.Spec.NodeName, text)
}

func ended(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Reason != "" {
		text = t.Reason + ", " + text
	}
	if t.Message != "" {
		text += ", " + line(t.Message)
	}
	return text
}

func containerOf(st *corev1.PodStatus) *corev1.ContainerStatus {
	for i := range st.ContainerStatuses {
		if st.ContainerStatuses[i].Name == containerName {
			return &st.ContainerStatuses[i]
		}
	}
	return nil
}

func conditionOf(st *corev1.PodStatus, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == kind {
			return &st.Conditions[i]
		}
	}
	return nil
}

func validIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
