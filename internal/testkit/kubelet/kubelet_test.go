package kubelet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"fleetdesk/internal/testkit/kube"
	"fleetdesk/internal/testkit/kubelet"
)

var cluster = kube.Shared(kube.Options{})

func TestMain(m *testing.M) {
	kubelet.Child(os.Args)
	goleak.VerifyTestMain(cluster.Around(m))
}

const port = 43129

// rig is a namespace with nodes.
type rig struct {
	*kubelet.Kubelet
	t  *testing.T
	ns string
	kc *kubernetes.Clientset
}

func newRig(t *testing.T, nodes ...kubelet.Node) *rig {
	t.Helper()
	kc, err := kubernetes.NewForConfig(cluster.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	ns := cluster.Namespace(t)
	return &rig{kubelet.Start(t, kubelet.Options{Config: cluster.Config(t), Namespace: ns, Nodes: nodes}), t, ns, kc}
}

// make makes a Pod with one container, which change may change.
func (r *rig) make(name string, change ...func(*corev1.Pod)) {
	r.t.Helper()
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{
		"/bin/bash", "-c", `exec 3<>/dev/tcp/$ADDRESS/` + fmt.Sprint(port),
	}}}, FailureThreshold: 100, TimeoutSeconds: 5}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "x"}}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{
			Name: "c", Image: "registry.example.com/proxy", Ports: []corev1.ContainerPort{{ContainerPort: port}},
			Env: []corev1.EnvVar{{Name: "ADDRESS", Value: "127.0.0.1"}}, StartupProbe: probe,
		}},
	}}
	for _, c := range change {
		c(pod)
	}
	if _, err := r.kc.CoreV1().Pods(r.ns).Create(r.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// until waits until a Pod is as holds says.
func (r *rig) until(name, what string, holds func(*corev1.Pod) bool) *corev1.Pod {
	r.t.Helper()
	end := time.Now().Add(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		pod, err := r.kc.CoreV1().Pods(r.ns).Get(r.t.Context(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			r.t.Fatal(err)
		}
		if err == nil && holds(pod) || err != nil && holds(nil) {
			return pod
		}
		if time.Now().After(end) {
			r.t.Fatalf("Pod %s is not %s: %+v", name, what, pod.Status)
		}
		<-tick.C
	}
}

func started(pod *corev1.Pod) bool {
	if pod == nil || len(pod.Status.ContainerStatuses) != 1 {
		return false
	}
	c := pod.Status.ContainerStatuses[0]
	return c.Started != nil && *c.Started && c.Ready && c.State.Running != nil && pod.Status.PodIP != ""
}

func waits(reason string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		return pod != nil && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Waiting != nil &&
			pod.Status.ContainerStatuses[0].State.Waiting.Reason == reason
	}
}

// A Pod is a process that proxies, asks for what its Secret says, and ends with
// it.
func TestAPodIsAProxy(t *testing.T) {
	r := newRig(t)
	hash, err := bcrypt.GenerateFromPassword([]byte("secret:word"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = w.Write([]byte(host + " " + r.Header.Get("Proxy-Authorization")))
	}))
	defer origin.Close()
	secure := httptest.NewTLSServer(origin.Config.Handler)
	defer secure.Close()
	r.make("a", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "users"}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	})
	r.until("a", "waiting for its Secret", waits("ContainerCreating"))
	if _, err := r.kc.CoreV1().Secrets(r.ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "users"}, Data: map[string][]byte{"users": append([]byte("crawler:"), hash...)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := r.until("a", "started", started)
	for name, tc := range map[string]struct {
		user   *url.Userinfo
		target string
		status int
	}{
		"right":             {url.UserPassword("crawler", "secret:word"), origin.URL, http.StatusOK},
		"wrong":             {url.UserPassword("crawler", "secret"), origin.URL, http.StatusProxyAuthRequired},
		"none":              {nil, origin.URL, http.StatusProxyAuthRequired},
		"through a tunnel":  {url.UserPassword("crawler", "secret:word"), secure.URL, http.StatusOK},
		"nobody there":      {url.UserPassword("crawler", "secret:word"), "http://127.0.0.1:1/", http.StatusBadGateway},
		"the proxy's own":   {url.UserPassword("crawler", "secret:word"), fmt.Sprintf("http://127.0.0.1:%d/", port), http.StatusBadRequest},
		"another's tunnel ": {nil, secure.URL, 0},
	} {
		tr := secure.Client().Transport.(*http.Transport).Clone()
		tr.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(port)), User: tc.user})
		resp, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Get(tc.target)
		tr.CloseIdleConnections()
		if tc.status == 0 {
			if err == nil {
				t.Errorf("%s: %s; want a refusal", name, resp.Status)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body := make([]byte, 100)
		n, _ := resp.Body.Read(body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.status || tc.status == http.StatusOK && strings.TrimSpace(string(body[:n])) != pod.Status.PodIP {
			t.Errorf("%s: %s %q; want %d, and the origin to see %s", name, resp.Status, body[:n], tc.status, pod.Status.PodIP)
		}
	}
	if len(r.Processes("a")) != 1 {
		t.Fatalf("processes %v", r.Processes("a"))
	}
	if err := r.kc.CoreV1().Pods(r.ns).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("a", "gone", func(pod *corev1.Pod) bool { return pod == nil })
	r.none("a")
}

func (r *rig) none(name string) {
	r.t.Helper()
	r.until("never", "there", func(*corev1.Pod) bool { return len(r.Processes(name)) == 0 })
}

// Faults show as they do with a real kubelet, and go when they are undone.
func TestFaults(t *testing.T) {
	r := newRig(t, kubelet.Node{Name: "a"})
	r.make("missing", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "registry.example.com/missing" })
	r.until("missing", "waiting for its image", waits("ImagePullBackOff"))
	r.Hold()
	r.make("held")
	r.until("held", "waiting", waits("ContainerCreating"))
	r.none("held")
	r.Release()
	first := r.until("held", "started", started)
	r.Kill("held")
	r.until("held", "started again", func(pod *corev1.Pod) bool {
		return started(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1
	})
	r.Crash(t, "held")
	r.none("held")
	r.Recover("held")
	r.until("held", "started once more", started)
	r.NodeDown(t, "a")
	r.none("held")
	pod := r.until("held", "not ready", func(pod *corev1.Pod) bool {
		return pod.Status.Conditions[len(pod.Status.Conditions)-1].Status == corev1.ConditionFalse
	})
	if pod.Status.Phase != corev1.PodRunning || pod.UID != first.UID {
		t.Errorf("a Pod of a node that is away has phase %s", pod.Status.Phase)
	}
	node, err := r.kc.CoreV1().Nodes().Get(t.Context(), r.NodeName("a"), metav1.GetOptions{})
	if err != nil || node.Status.Conditions[0].Status != corev1.ConditionUnknown {
		t.Errorf("the Node says %+v, %v", node.Status.Conditions, err)
	}
	r.NodeUp(t, "a")
	r.until("held", "started", func(pod *corev1.Pod) bool { return started(pod) && len(r.Processes("held")) == 1 })
	r.Evict(t, "held")
	r.none("held")
	if pod := r.until("held", "failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed }); pod.Status.Reason != "Evicted" {
		t.Errorf("evicted: %+v", pod.Status)
	}
	// By force, without a word to the node.
	now := int64(0)
	r.make("forced")
	r.until("forced", "started", started)
	if err := r.kc.CoreV1().Pods(r.ns).Delete(t.Context(), "forced", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	r.none("forced")
}

// A probe that fails is no start.
func TestProbesAreRun(t *testing.T) {
	r := newRig(t)
	r.make("never", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].StartupProbe.Exec.Command = []string{"/bin/bash", "-c", "echo no way; exit 3"}
	})
	r.until("never", "probed", func(*corev1.Pod) bool { return strings.Contains(r.Said("never"), "no way (exit status 3)") })
	if pod := r.until("never", "there", func(pod *corev1.Pod) bool { return pod != nil }); started(pod) {
		t.Error("it is called started")
	}
}

// The scheduler heeds selectors, taints and spread, and says why it cannot.
func TestScheduling(t *testing.T) {
	taint := corev1.Taint{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}
	r := newRig(t,
		kubelet.Node{Name: "a", Labels: map[string]string{"disk": "ssd"}}, kubelet.Node{Name: "b"},
		kubelet.Node{Name: "tainted", Labels: map[string]string{"special": "yes"}, Taints: []corev1.Taint{taint}})
	spread := func(when corev1.UnsatisfiableConstraintAction) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: when, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
			}}
		}
	}
	selector := func(key, value string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{key: value} }
	}
	for _, tc := range []struct {
		name   string
		change []func(*corev1.Pod)
		node   string
		says   string
	}{
		{"by-label", []func(*corev1.Pod){selector("disk", "ssd")}, "a", ""},
		{"even", []func(*corev1.Pod){spread(corev1.DoNotSchedule)}, "b", ""},
		{"nowhere", []func(*corev1.Pod){selector("disk", "tape")}, "", "didn't match Pod's node affinity/selector"},
		{"not-borne", []func(*corev1.Pod){selector("special", "yes")}, "", "untolerated taint"},
		{"borne", []func(*corev1.Pod){selector("special", "yes"), func(pod *corev1.Pod) {
			pod.Spec.Tolerations = []corev1.Toleration{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
		}}, "tainted", ""},
		{"another-scheduler", []func(*corev1.Pod){func(pod *corev1.Pod) { pod.Spec.SchedulerName = "other" }}, "", ""},
	} {
		r.make(tc.name, tc.change...)
		if tc.node != "" {
			pod := r.until(tc.name, "scheduled", func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
			if pod.Spec.NodeName != r.NodeName(tc.node) {
				t.Errorf("%s is on %s; want %s", tc.name, pod.Spec.NodeName, tc.node)
			}
		}
		if tc.says != "" {
			r.until(tc.name, "told why not", func(pod *corev1.Pod) bool {
				for _, c := range pod.Status.Conditions {
					if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, tc.says) {
						return true
					}
				}
				return false
			})
		}
	}
	// A status for a Pod that was replaced meanwhile does not reach the new one.
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": "00000000-0000-0000-0000-000000000000"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.kc.CoreV1().Pods(r.ns).Patch(context.Background(), "borne", types.MergePatchType, text, metav1.PatchOptions{}, "status"); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.uid") {
		t.Errorf("a patch for another UID: %v; the stand-in counts on a refusal that names it", err)
	}
}
