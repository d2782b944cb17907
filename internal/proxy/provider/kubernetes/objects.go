package kubernetes

import (
	"crypto/rand"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fleetdesk/internal/proxy/provider"
)

const (
	// containerName and portName are those of the only container.
	containerName = "proxy"
	portName      = "proxy"
	// annotationEvict lets an autoscaler take a node away: a Pod without a
	// controller, and one with an emptyDir, would keep it for ever. The operator
	// makes the Pod again.
	annotationEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	// grace is how long a proxy has to end: squid takes three seconds.
	grace = 10
	// startLimit is how long a proxy has to carry its first request before it is
	// started again, startPeriod how often it is tried; both in seconds.
	startLimit, startPeriod = 120, 3
	// firstUnprivileged is the first port that needs no right on any node.
	firstUnprivileged = 1024
)

// The variables that a container finds.
const (
	envPort     = "PROXY_PORT"
	envProtocol = "PROXY_PROTOCOL"
	// envAddress is where the proxy is for the probe.
	envAddress = "PROXY_ADDRESS"
)

// meta is the metadata of a part of an instance.
func (p *Provider) meta(w *wanted) (metav1.ObjectMeta, error) {
	m := metav1.ObjectMeta{Name: w.name, Namespace: p.conf.namespace}
	return m, mark(&m, w.owner)
}

func (p *Provider) secretOf(w *wanted) (*corev1.Secret, error) {
	m, err := p.meta(w)
	if err != nil {
		return nil, err
	}
	m.Annotations[annotationWritten] = rand.Text()
	data, err := p.secretData(w)
	return &corev1.Secret{ObjectMeta: m, Type: corev1.SecretTypeOpaque, Data: data}, err
}

// newService is a Service of that kind; its annotations are the section's while
// it has some.
func (p *Provider) newService(w *wanted, kind string) (*corev1.Service, error) {
	m, err := p.meta(w)
	if err != nil {
		return nil, err
	}
	if p.conf.service != nil {
		maps.Copy(m.Annotations, p.conf.service.Annotations)
	}
	svc := &corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{
		Type:     corev1.ServiceType(kind),
		Selector: map[string]string{labelInstallation: TagOf(w.owner.Installation), labelUID: w.owner.UID},
		Ports:    []corev1.ServicePort{{Name: portName, Port: int32(w.port), TargetPort: intstr.FromString(portName)}},
	}}
	if svc.Spec.Type != corev1.ServiceTypeClusterIP {
		// The node that has the Pod is the one that answers, without a second hop.
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	return svc, nil
}

// podOf is the instance. It passes Pod security "restricted".
func (p *Provider) podOf(w *wanted) (*corev1.Pod, error) {
	m, err := p.meta(w)
	if err != nil {
		return nil, err
	}
	for key, value := range p.conf.labels {
		m.Labels[key] = value
	}
	m.Annotations[annotationService] = p.conf.serviceKind()
	m.Annotations[annotationEvict] = "true"
	spread := p.conf.spread
	spread.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{labelInstallation: TagOf(w.owner.Installation)}}
	no, yes, wait := false, true, int64(grace)
	pod := &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{
		ServiceAccountName: p.conf.account, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &wait,
		NodeSelector: w.selector, Tolerations: p.conf.tolerations, ImagePullSecrets: p.conf.pullSecrets,
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{spread},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: w.image.user,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{p.container(w)},
		Volumes:    volumes(w),
	}}
	if w.port < firstUnprivileged {
		// One of the settings that Kubernetes calls safe, also when restricted.
		pod.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
	}
	return pod, nil
}

func (p *Provider) container(w *wanted) corev1.Container {
	no, yes := false, true
	c := corev1.Container{
		Name: containerName, Image: w.image.reference, ImagePullPolicy: corev1.PullIfNotPresent,
		Ports: []corev1.ContainerPort{{Name: portName, ContainerPort: int32(w.port), Protocol: corev1.ProtocolTCP}},
		Env: []corev1.EnvVar{
			{Name: envPort, Value: strconv.Itoa(w.port)},
			{Name: envProtocol, Value: string(w.protocol)},
			{Name: envAddress, Value: "127.0.0.1"},
		},
		Resources: sized(w.resources),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: configDir, ReadOnly: true},
			{Name: "tmp", MountPath: "/tmp"},
		},
	}
	if w.image.squid {
		c.Command = squidCommand
		c.VolumeMounts = append(c.VolumeMounts,
			corev1.VolumeMount{Name: "tmp", MountPath: "/run", SubPath: "run"},
			corev1.VolumeMount{Name: "tmp", MountPath: "/var/spool/squid", SubPath: "spool"},
			corev1.VolumeMount{Name: "tmp", MountPath: "/var/log/squid", SubPath: "log"})
	}
	probe := func(period, timeout, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: probeOf(w.image)}},
			PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: timeout, SuccessThreshold: 1,
		}
	}
	// Once the first has passed, the container is called started: it has carried
	// a request. One that hangs takes its whole timeout, so that is the period:
	// both ways it is two minutes.
	c.StartupProbe, c.ReadinessProbe = probe(startPeriod, startPeriod, startLimit/startPeriod), probe(15, 10, 3)
	return c
}

func probeOf(im picture) []string {
	if len(im.probe) > 0 {
		return im.probe
	}
	return []string{"/bin/bash", "-c", probeScript}
}

// sized asks for what the Proxy may use, no less and no more: proxies on a full
// node would otherwise be the first to be stopped.
func sized(r provider.Resources) corev1.ResourceRequirements {
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(r.MilliCPUs, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(r.MemoryBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.DiskBytes, resource.BinarySI),
	}
	return corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
}

func volumes(w *wanted) []corev1.Volume {
	mode := int32(0o444)
	room := resource.NewQuantity(w.resources.DiskBytes, resource.BinarySI)
	return []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: w.name, DefaultMode: &mode}}},
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: room}}},
	}
}
