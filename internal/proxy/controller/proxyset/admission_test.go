package proxyset_test

import (
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/samples"
	"fleetdesk/internal/testkit/kube"
)

func TestAdmissionRefusesBadSetsAndNamesTheField(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type labels = map[string]v1alpha1.LabelValue
	rotation := func(rot v1alpha1.Rotation) func(*v1alpha1.ProxySet) {
		return func(s *v1alpha1.ProxySet) { s.Spec.Rotation = &rot }
	}
	update := func(unavailable, surge *intstr.IntOrString) func(*v1alpha1.ProxySet) {
		return func(s *v1alpha1.ProxySet) {
			s.Spec.Update = v1alpha1.ProxySetUpdate{MaxUnavailable: unavailable, MaxSurge: surge}
		}
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.ProxySet)
		want   []string
	}{
		"selector of others":    {"autoscalers would count others", func(s *v1alpha1.ProxySet) { s.Spec.Selector.MatchLabels = labels{"app": "other"} }, []string{"spec.selector", "give the template's labels those of selector.matchLabels"}},
		"template of others":    {"", func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels = labels{"b": "c"} }, []string{"spec.selector", "does not match the template"}},
		"template without any":  {"", func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels = nil }, []string{"spec.selector", "does not match the template"}},
		"no selector":           {"", func(s *v1alpha1.ProxySet) { s.Spec.Selector.MatchLabels = labels{} }, []string{"spec.selector.matchLabels"}},
		"replicas -1":           {"", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(-1)) }, []string{"spec.replicas", "greater than or equal to 0"}},
		"replicas 1,000,000":    {"", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(1_000_000)) }, []string{"spec.replicas", "less than or equal to 10000"}},
		"maxAge of 1s":          {"a machine takes longer to make", rotation(v1alpha1.Rotation{MaxAge: "1s"}), []string{"spec.rotation.maxAge", "between 10m and 8760h"}},
		"maxAge of 10 years":    {"", rotation(v1alpha1.Rotation{MaxAge: "87600h"}), []string{"spec.rotation.maxAge", "between 10m and 8760h"}},
		"maxAge is no time":     {"", rotation(v1alpha1.Rotation{MaxAge: "soon"}), []string{"spec.rotation.maxAge"}},
		"rotation of nothing":   {"", rotation(v1alpha1.Rotation{}), []string{"spec.rotation", "name maxAge, byBan or both"}},
		"jitter":                {"", rotation(v1alpha1.Rotation{MaxAge: "1h", Jitter: new(int32(51))}), []string{"spec.rotation.jitter"}},
		"no targets":            {"", rotation(v1alpha1.Rotation{ByBan: &v1alpha1.RotationByBan{Targets: -1}}), []string{"spec.rotation.byBan.targets"}},
		"too many per hour":     {"", rotation(v1alpha1.Rotation{ByBan: &v1alpha1.RotationByBan{PerHour: 1001}}), []string{"spec.rotation.byBan.perHour"}},
		"both bounds 0":         {"", update(new(intstr.FromInt32(0)), new(intstr.FromInt32(0))), []string{"spec.update", "must not both be 0"}},
		"both bounds 0%":        {"", update(new(intstr.FromString("0%")), new(intstr.FromString("0%"))), []string{"spec.update", "must not both be 0"}},
		"surge 0, and no other": {"the other is 0 where it is left out", update(nil, new(intstr.FromInt32(0))), []string{"spec.update", "must not both be 0"}},
		"110 percent":           {"", update(new(intstr.FromString("110%")), nil), []string{"spec.update.maxUnavailable"}},
		"percent without sign":  {"", update(nil, new(intstr.FromString("10"))), []string{"spec.update.maxSurge"}},
		"-1 unavailable":        {"", update(new(intstr.FromInt32(-1)), nil), []string{"spec.update.maxUnavailable", "a number from 0 to 10000, or a percentage up to 100%"}},
		"surge of 10,001":       {"", update(nil, new(intstr.FromInt32(10_001))), []string{"spec.update.maxSurge", "a number from 0 to 10000, or a percentage up to 100%"}},
		"long name":             {"its Proxies' names would be no labels", func(s *v1alpha1.ProxySet) { s.Name = strings.Repeat("n", 53) }, []string{"at most 52 characters"}},
		"no provider":           {"", func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Provider = "" }, []string{"spec.template.spec.provider"}},
		"bad check":             {"the template is a Proxy's spec", func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.HealthCheck.Interval = "10ms" }, []string{"spec.template.spec.healthCheck.interval"}},
		"label is none":         {"no Proxy could be made", func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels["a b"] = "c" }, []string{"spec.template.metadata.labels", "a label's name"}},
		"label value":           {"", func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels["a"] = "-c" }, []string{"spec.template.metadata.labels"}},
		"our label":             {"", func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels[v1alpha1.TemplateLabel] = "c" }, []string{"spec.template.metadata.labels", "are the operator's own"}},
		"annotation is none":    {"", func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Annotations = map[string]string{"a/b/c": ""} }, []string{"spec.template.metadata.annotations", "an annotation's name"}},
		"skip-cleanup for all": {"each machine would be left behind", func(s *v1alpha1.ProxySet) {
			s.Spec.Template.Metadata.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: "true"}
		}, []string{"spec.template.metadata.annotations", "leave them out"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := r.client.Create(t.Context(), r.set("bad", 1, tc.change))
			if !apierrors.IsInvalid(err) {
				t.Fatalf("%s: got %v, want a refusal", tc.reason, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want a refusal with %q", tc.reason, err, want)
				}
			}
		})
	}
	if n := len(r.proxies()); n != 0 {
		t.Errorf("%d Proxies were made", n)
	}
}

func TestAdmissionOfUpdates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(r.set("s", 1))
	for name, tc := range map[string]struct {
		change func(*v1alpha1.ProxySet)
		want   string
	}{
		"provider": {func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Provider = "far" }, ""},
		"image":    {func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Placement = &v1alpha1.Placement{Image: "debian-13"} }, ""},
		"labels":   {func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels["example.com/tier"] = "home" }, ""},
		"bounds":   {within("10%", "25%"), ""},
		"mixed":    {within("2", "0"), ""},
		"rotation": {func(s *v1alpha1.ProxySet) {
			s.Spec.Rotation = &v1alpha1.Rotation{MaxAge: "24h", ByBan: &v1alpha1.RotationByBan{}}
		}, ""},
		"many": {func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(10_000)) }, ""},
		"selector": {func(s *v1alpha1.ProxySet) {
			s.Spec.Selector.MatchLabels["b"], s.Spec.Template.Metadata.Labels["b"] = "c", "c"
		}, "selector is immutable: make another ProxySet, then delete this one"},
		"template leaves the selector": {func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels["app"] = "z" }, "does not match the template"},
	} {
		t.Run(name, func(t *testing.T) {
			s := r.get("s")
			tc.change(s)
			switch err := r.client.Update(t.Context(), s); {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want a refusal with %q", err, tc.want)
			}
		})
	}
}

func TestAdmissionFillsInDefaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"a": "b"}},
		"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}, "spec": map[string]any{"provider": "home"}},
		"rotation": map[string]any{"maxAge": "24h", "byBan": map[string]any{}},
	}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ProxySet"))
	u.SetName("s")
	r.create(u)
	got := r.get("s").Spec
	if *got.Replicas != 1 || got.Update.MaxUnavailable.String() != "0" || got.Update.MaxSurge.String() != "1" ||
		*got.Rotation.Jitter != 10 || *got.Rotation.ByBan != (v1alpha1.RotationByBan{Targets: 3, PerHour: 4}) || got.Template.Spec.Port != 3128 {
		t.Errorf("got %+v", got)
	}
}

// kubectl scale and autoscalers use the scale subresource.
func TestScaleSubresource(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.operator()
	r.machines()
	r.create(r.set("s", 2))
	r.shows("s", v1alpha1.ReasonSettled, "", 2, 2, 2, 0, 0)
	scale := &autoscalingv1.Scale{}
	if err := r.client.SubResource("scale").Get(t.Context(), r.get("s"), scale); err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 2 || scale.Status.Replicas != 2 || scale.Status.Selector != "app=s" {
		t.Errorf("got %+v", scale)
	}
	var selected v1alpha1.ProxyList
	if err := r.client.List(t.Context(), &selected, client.InNamespace(r.ns), &client.ListOptions{Raw: &metav1.ListOptions{LabelSelector: scale.Status.Selector}}); err != nil || len(selected.Items) != 2 {
		t.Errorf("%d Proxies by the selector: %v", len(selected.Items), err)
	}
	for replicas, want := range map[int32]bool{3: true, -1: false, 1_000_000: false} {
		scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
		err := r.client.SubResource("scale").Update(t.Context(), r.get("s"), client.WithSubResourceBody(scale))
		if want != (err == nil) || !want && !apierrors.IsInvalid(err) {
			t.Errorf("to %d: %v", replicas, err)
		}
	}
	r.shows("s", v1alpha1.ReasonSettled, "", 3, 3, 3, 0, 0)
}

// The samples are the files that people copy: each document applies.
func TestSamplesApply(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := kube.Apply(t, r.client, r.ns, samples.Files, "proxyset_*.yaml")
	if slices.Sort(made); !slices.Equal(made, []string{"ProxyPool sets", "ProxySet home"}) {
		t.Errorf("made %v", made)
	}
	r.operator()
	r.machines()
	r.shows("home", v1alpha1.ReasonSettled, "", 5, 5, 5, 0, 0)
}
