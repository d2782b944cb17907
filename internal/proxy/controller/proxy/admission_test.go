package proxy_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/samples"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/testkit/kube"
)

func TestAdmissionRefusesBadSpecsAndNamesTheField(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.Proxy)
		want   string
	}{
		"no provider":         {"nothing could make it", func(px *v1alpha1.Proxy) { px.Spec.Provider = "" }, "spec.provider"},
		"bad provider":        {"names are DNS labels", func(px *v1alpha1.Proxy) { px.Spec.Provider = "A/b" }, "spec.provider"},
		"port too high":       {"", func(px *v1alpha1.Proxy) { px.Spec.Port = 65536 }, "spec.port"},
		"negative port":       {"", func(px *v1alpha1.Proxy) { px.Spec.Port = -1 }, "spec.port"},
		"unknown protocol":    {"", func(px *v1alpha1.Proxy) { px.Spec.Protocol = "ftp" }, "spec.protocol"},
		"url without scheme":  {"", func(px *v1alpha1.Proxy) { px.Spec.HealthCheck.URL = "example.com" }, "spec.healthCheck.url"},
		"interval not a time": {"", func(px *v1alpha1.Proxy) { px.Spec.HealthCheck.Interval = "soon" }, "spec.healthCheck.interval"},
		"interval too short":  {"a hot loop against somebody's site", func(px *v1alpha1.Proxy) { px.Spec.HealthCheck.Interval = "10ms" }, "between 1s and 24h"},
		"timeout too long":    {"checks would overtake each other", func(px *v1alpha1.Proxy) { px.Spec.HealthCheck.Timeout = "2s" }, "timeout must not be above interval"},
		"status":              {"", func(px *v1alpha1.Proxy) { px.Spec.HealthCheck.ExpectedStatus = 99 }, "spec.healthCheck.expectedStatus"},
		"no cpu": {"", func(px *v1alpha1.Proxy) {
			px.Spec.Resources = &v1alpha1.Resources{CPUs: new(resource.MustParse("-1"))}
		}, "cpus must be above 0"},
		"no memory": {"", func(px *v1alpha1.Proxy) {
			px.Spec.Resources = &v1alpha1.Resources{Memory: new(resource.MustParse("0"))}
		}, "memory must be above 0"},
		"two cloud-inits": {"which one?", func(px *v1alpha1.Proxy) {
			px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "#cloud-config", SecretRef: &v1alpha1.KeyRef{Name: "a", Key: "b"}}
		}, "exactly one of inline"},
		"no cloud-init": {"", func(px *v1alpha1.Proxy) { px.Spec.CloudInit = &v1alpha1.CloudInit{} }, "exactly one of inline"},
		"key without name": {"", func(px *v1alpha1.Proxy) {
			px.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.KeyRef{Key: "b"}}
		}, "spec.cloudInit.secretRef.name"},
	} {
		t.Run(name, func(t *testing.T) {
			err := r.client.Create(t.Context(), r.proxy("bad", tc.change))
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want a refusal with %q", tc.reason, err, tc.want)
			}
		})
	}
}

// Each class of error has its reason in the closed list, so that whatever a
// provider answers can be shown.
func TestReasonsAreAClosedListThatHoldsEveryClass(t *testing.T) {
	t.Parallel()
	reasons := v1alpha1.Reasons()
	seen := map[string]bool{}
	for _, reason := range reasons {
		if seen[reason] || reason == "" {
			t.Errorf("%q is there twice, or empty", reason)
		}
		seen[reason] = true
	}
	for _, m := range fault.Table() {
		if !seen[m.Reason] {
			t.Errorf("class %s: its reason %q is not in the list", m.Class, m.Reason)
		}
	}
}

func TestAdmissionFillsInDefaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"provider": "fake"}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Proxy"))
	u.SetNamespace(r.ns)
	u.SetName("a")
	r.create(u)
	got := r.get("a").Spec
	want := v1alpha1.ProxySpec{
		Provider: "fake", Port: 3128, Protocol: "http",
		HealthCheck: v1alpha1.HealthCheck{ExpectedStatus: 204, Interval: "30s", FailureThreshold: 3, SuccessThreshold: 1},
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A short interval alone is fine: the default timeout follows it. Sizes of all
// forms are fine as well.
func TestAdmissionTakes(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	for name, change := range map[string]func(*v1alpha1.Proxy){
		"interval": func(px *v1alpha1.Proxy) { px.Spec.HealthCheck = v1alpha1.HealthCheck{Interval: "2s"} },
		"sizes": func(px *v1alpha1.Proxy) {
			px.Spec.Resources = &v1alpha1.Resources{
				CPUs: new(resource.MustParse("250m")), Memory: new(resource.MustParse("512Mi")), Disk: new(resource.MustParse("10")),
			}
		},
	} {
		if err := r.client.Create(t.Context(), r.proxy(name, change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"provider": "fake", "resources": map[string]any{"cpus": int64(2)}}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Proxy"))
	u.SetNamespace(r.ns)
	u.SetName("number")
	r.create(u)
}

func TestWhatIsImmutable(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	r.create(r.proxy("a", func(px *v1alpha1.Proxy) {
		px.Spec.Placement = &v1alpha1.Placement{Image: "debian-13"}
	}))
	r.create(r.proxy("bare"))
	for name, tc := range map[string]struct {
		of     string
		change func(*v1alpha1.Proxy)
		want   string
	}{
		"provider":      {"a", func(px *v1alpha1.Proxy) { px.Spec.Provider = "other" }, "provider is immutable"},
		"image":         {"a", func(px *v1alpha1.Proxy) { px.Spec.Placement.Image = "debian-12" }, "placement.image is immutable"},
		"image removed": {"a", func(px *v1alpha1.Proxy) { px.Spec.Placement = nil }, "placement.image is immutable"},
		"image added":   {"bare", func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Image: "x"} }, "placement.image is immutable"},
		"host":          {"a", func(px *v1alpha1.Proxy) { px.Spec.Placement.Host = "box-2" }, ""},
		"same":          {"bare", func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			px := r.get(tc.of)
			tc.change(px)
			err := r.client.Update(t.Context(), px)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// The samples are the files that people copy: each document applies.
func TestSamplesApply(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	kube.Apply(t, r.client, r.ns, samples.Files, "proxy_*.yaml")
}
