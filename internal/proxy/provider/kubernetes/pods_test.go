package kubernetes_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
	"fleetdesk/internal/testkit/kubelet"
)

// What the API server admitted is what Proxy and section ask for. The namespace
// has Pod security "restricted" in force.
func TestAdmittedPod(t *testing.T) {
	t.Parallel()
	user, seconds := int64(65532), int64(30)
	w := newWorld(t, func(s *kubernetes.Section) {
		s.Images = map[string]kubernetes.Image{
			"own": {Image: "registry.example.com/own:1", Probe: []string{"/bin/true"}, RunAsUser: &user, Credentials: "plain"},
		}
		s.ImagePullSecrets = []string{"registry"}
		s.ServiceAccount = "exits"
		s.NodeSelector = map[string]string{"exit": "yes"}
		s.Tolerations = []kubernetes.Toleration{
			{Key: "exit", Operator: "Exists", Effect: "NoSchedule"},
			{Key: "away", Value: "x", Effect: "NoExecute", Seconds: &seconds},
		}
		s.Spread = kubernetes.Spread{TopologyKey: "example.com/uplink", MaxSkew: 2, Required: true}
		s.Labels = map[string]string{"team": "crawl"}
		s.Resources = kubernetes.Resources{Memory: "64Mi"}
	}, kubelet.Node{
		Name: "a", Labels: map[string]string{"exit": "yes", "disk": "ssd", "example.com/uplink": "1", corev1.LabelTopologyZone: "zone-a"},
		Taints: []corev1.Taint{{Key: "exit", Effect: corev1.TaintEffectNoSchedule}},
	})
	p := w.open(t)
	spec := specOf(w, "whole")
	spec.NodeSelector, spec.Zone = map[string]string{"disk": "ssd"}, "zone-a"
	spec.Resources = provider.Resources{MilliCPUs: 1500, DiskBytes: 1 << 30}
	spec.Image, spec.Port, spec.Protocol = "own", 800, provider.SOCKS5
	spec.Credentials = provider.Credentials{User: "crawler", Password: provider.Secret("canary-5c1e-password")}
	running(t, p, spec)

	pod := w.pod(t, nameOf(spec.Owner))
	c := pod.Spec.Containers[0]
	list := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Gi"),
	}
	for what, tc := range map[string]struct {
		reason    string
		got, want any
	}{
		"requests":        {"what the Proxy asks for, and the section where it asks for nothing", c.Resources.Requests, list},
		"limits":          {"no more than that", c.Resources.Limits, list},
		"node selector":   {"section, Proxy and zone together", pod.Spec.NodeSelector, map[string]string{"exit": "yes", "disk": "ssd", corev1.LabelTopologyZone: "zone-a"}},
		"spread":          {"by exit node, over the installation's own Pods", pod.Spec.TopologySpreadConstraints, []corev1.TopologySpreadConstraint{{MaxSkew: 2, TopologyKey: "example.com/uplink", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"crawl.example.com/installation": kubernetes.TagOf(installation)}}}}},
		"account":         {"its own, without rights", pod.Spec.ServiceAccountName, "exits"},
		"token":           {"a proxy has no business with the API", *pod.Spec.AutomountServiceAccountToken, false},
		"links":           {"what Services there are is nobody's business", *pod.Spec.EnableServiceLinks, false},
		"pull":            {"for a private registry", pod.Spec.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "registry"}}},
		"restart":         {"a crash is the node's to mend", pod.Spec.RestartPolicy, corev1.RestartPolicyAlways},
		"user":            {"the image's user is known", pod.Spec.SecurityContext, &corev1.PodSecurityContext{RunAsNonRoot: ptr(true), RunAsUser: &user, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}, Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}}},
		"container":       {"restricted, and nothing to write on", c.SecurityContext, &corev1.SecurityContext{AllowPrivilegeEscalation: ptr(false), ReadOnlyRootFilesystem: ptr(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}},
		"image":           {"the key's", c.Image, "registry.example.com/own:1"},
		"command":         {"the image's own", c.Command, []string(nil)},
		"startup":         {"what tells that it proxies", c.StartupProbe.Exec.Command, []string{"/bin/true"}},
		"readiness":       {"and that it still does", c.ReadinessProbe.Exec.Command, []string{"/bin/true"}},
		"port":            {"the Proxy's", c.Ports[0].ContainerPort, int32(800)},
		"label":           {"for network policies", pod.Labels["team"], "crawl"},
		"no plain secret": {"whoever may read Pods may not read passwords", strings.Contains(asText(t, pod), "canary-5c1e"), false},
	} {
		if got, want := asText(t, tc.got), asText(t, tc.want); got != want {
			t.Errorf("%s (%s): got %s; want %s", what, tc.reason, got, want)
		}
	}
	for _, want := range []corev1.Toleration{
		{Key: "exit", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: "away", Operator: corev1.TolerationOpEqual, Value: "x", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
	} {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(got corev1.Toleration) bool { return asText(t, got) == asText(t, want) }) {
			t.Errorf("toleration %+v is missing: %+v", want, pod.Spec.Tolerations)
		}
	}
	secret, err := w.admin.CoreV1().Secrets(w.ns).Get(within(t), nameOf(spec.Owner), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%s", secret.Data); got != "map[password:canary-5c1e-password username:crawler]" {
		t.Errorf("an image that wants plain credentials finds %s", got)
	}
}

func ptr[V any](v V) *V { return &v }

func asText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Without a word in the section a Pod is squid with our configuration, and has
// no password, only its hash.
func TestSquidPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.open(t)
	spec := specOf(w, "squid")
	spec.Credentials = provider.Credentials{User: "crawler", Password: provider.Secret("canary-5c1e-password")}
	running(t, p, spec)
	pod := w.pod(t, nameOf(spec.Owner))
	c := pod.Spec.Containers[0]
	if c.Image != kubernetes.DefaultImage || !slices.Equal(c.Command, kubernetes.SquidCommand) || *pod.Spec.SecurityContext.RunAsUser == 0 {
		t.Errorf("image %s, command %q, user %d", c.Image, c.Command, *pod.Spec.SecurityContext.RunAsUser)
	}
	if got := c.StartupProbe.Exec.Command; len(got) != 3 || got[2] != kubernetes.ProbeScript {
		t.Errorf("the probe is %q", got)
	}
	if pod.Spec.TopologySpreadConstraints[0].TopologyKey != corev1.LabelHostname || pod.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable != corev1.ScheduleAnyway {
		t.Errorf("spread %+v", pod.Spec.TopologySpreadConstraints)
	}
	secret, err := w.admin.CoreV1().Secrets(w.ns).Get(within(t), nameOf(spec.Owner), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(secret.Data["users"]), "crawler:$2") || strings.Contains(fmt.Sprintf("%s", secret.Data), "canary") {
		t.Errorf("the Secret holds more than a hash, or none")
	}
	if string(secret.Data["squid.conf"]) != kubernetes.SquidConf(testPort, true) || strings.Contains(kubernetes.SquidConf(testPort, true), "allow all") {
		t.Errorf("squid.conf is\n%s", secret.Data["squid.conf"])
	}
}

// Pods spread over the exit nodes, and keep off a node whose taint they do not
// tolerate.
func TestSpread(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, kubelet.Node{Name: "a"}, kubelet.Node{Name: "b"}, kubelet.Node{Name: "c"},
		kubelet.Node{Name: "tainted", Taints: []corev1.Taint{{Key: "other", Effect: corev1.TaintEffectNoSchedule}}})
	p := w.open(t)
	per := map[string]int{}
	for n := range 6 {
		spec := specOf(w, fmt.Sprintf("spread-%d", n))
		running(t, p, spec)
		per[w.pod(t, nameOf(spec.Owner)).Spec.NodeName]++
	}
	want := map[string]int{w.nodes.NodeName("a"): 2, w.nodes.NodeName("b"): 2, w.nodes.NodeName("c"): 2}
	if asText(t, per) != asText(t, want) {
		t.Errorf("spread as %v; want %v", per, want)
	}
}
