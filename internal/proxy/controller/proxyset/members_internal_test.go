package proxyset

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fleetdesk/api/v1alpha1"
)

func uid(i, j int) types.UID {
	return types.UID(fmt.Sprintf("0b3c%04d-77aa-4e1f-9d%02d-5e2c90c1%04d", i, j, i+j))
}

// after is so many minutes after noon.
func after(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }

// proxy is a Proxy with these conditions, written as type, status, reason and
// minutes since its creation.
func proxy(phase v1alpha1.Phase, conditions ...[4]any) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", CreationTimestamp: metav1.NewTime(noon)}}
	px.Status.Phase = phase
	for _, c := range conditions {
		px.Status.Conditions = append(px.Status.Conditions, metav1.Condition{
			Type: c[0].(string), Status: metav1.ConditionStatus(c[1].(string)), Reason: c[2].(string), Message: "as it is",
			LastTransitionTime: metav1.NewTime(after(c[3].(int))),
		})
	}
	return px
}

// What is wrong with a Proxy is its own fault only when neither its provider
// nor its configuration is.
func TestWhoseFaultItIs(t *testing.T) {
	const p, h, r, pr = v1alpha1.ConditionProvisioned, v1alpha1.ConditionHealthy, v1alpha1.ConditionReady, v1alpha1.ConditionProvider
	never := -1
	for name, tc := range map[string]struct {
		reason string
		px     *v1alpha1.Proxy
		// repair is minutes after its creation.
		repair                int
		trouble, wide, worked bool
	}{
		"new":                      {"", proxy(""), never, false, false, false},
		"being made":               {"", proxy("Provisioning", [4]any{p, "False", "Provisioning", 1}, [4]any{h, "Unknown", "NotProbedYet", 1}, [4]any{r, "False", "Provisioning", 1}), never, false, false, false},
		"works":                    {"", proxy("Ready", [4]any{p, "True", "Provisioned", 2}, [4]any{h, "True", "ProbePassed", 3}, [4]any{r, "True", "Ready", 3}), never, false, false, true},
		"fails":                    {"", proxy("Unhealthy", [4]any{p, "True", "Provisioned", 2}, [4]any{h, "False", "ProbeFailed", 60}, [4]any{r, "False", "ProbeFailed", 60}), 65, false, false, true},
		"fails early":              {"it worked", proxy("Unhealthy", [4]any{p, "True", "Provisioned", 2}, [4]any{h, "False", "ProbeFailed", 10}, [4]any{r, "False", "ProbeFailed", 10}), 15, false, false, true},
		"never worked":             {"making it again seldom helps", proxy("Unhealthy", [4]any{p, "True", "Provisioned", 2}, [4]any{h, "False", "ProbeFailed", 4}, [4]any{r, "False", "ProbeFailed", 1}), 30, false, false, false},
		"never worked, fails late": {"", proxy("Unhealthy", [4]any{p, "True", "Provisioned", 28}, [4]any{h, "False", "ProbeFailed", 29}, [4]any{r, "False", "ProbeFailed", 1}), 34, false, false, false},
		"inconclusive":             {"the check says nothing", proxy("Unhealthy", [4]any{p, "True", "Provisioned", 2}, [4]any{h, "False", "ProbeInconclusive", 60}, [4]any{r, "False", "ProbeInconclusive", 60}), never, false, false, true},
		"impaired":                 {"its provider says that starting does not mend it", proxy("Unhealthy", [4]any{p, "False", "InstanceImpaired", 50}, [4]any{h, "Unknown", "NotProbedYet", 50}, [4]any{r, "False", "InstanceImpaired", 50}, [4]any{"Outdated", "False", "UpToDate", 2}), 55, false, false, true},
		"takes long":               {"", proxy("Failed", [4]any{p, "False", "Provisioning", 1}, [4]any{h, "Unknown", "NotProbedYet", 1}, [4]any{r, "False", "Provisioning", 1}), 30, false, false, false},
		"being started":            {"its controller is at it", proxy("Provisioning", [4]any{p, "False", "InstanceStopped", 50}, [4]any{h, "Unknown", "NotProbedYet", 50}, [4]any{r, "False", "InstanceStopped", 50}, [4]any{"Outdated", "False", "UpToDate", 2}), never, false, false, true},
		"not readable":             {"nobody knows how it is", proxy("Unhealthy", [4]any{p, "Unknown", "InstanceUnknown", 50}, [4]any{h, "False", "ProbeFailed", 50}, [4]any{r, "False", "InstanceUnknown", 50}), never, true, false, false},
		"permanent":                {"a typo in hosts must not make a fleet anew", proxy("Failed", [4]any{p, "Unknown", "PermanentError", 50}, [4]any{h, "False", "ProbeFailed", 50}, [4]any{r, "False", "PermanentError", 50}), never, true, false, false},
		"unavailable":              {"", proxy("Unhealthy", [4]any{p, "Unknown", "Unavailable", 50}, [4]any{h, "False", "ProbeFailed", 50}, [4]any{r, "False", "Unavailable", 50}), never, true, false, false},
		"works, unread":            {"", proxy("Ready", [4]any{p, "Unknown", "Timeout", 50}, [4]any{h, "True", "ProbePassed", 3}, [4]any{r, "True", "Ready", 3}), never, true, false, true},
		"no provider":              {"", proxy("Failed", [4]any{p, "False", "ProviderNotFound", 1}, [4]any{h, "Unknown", "NotProbedYet", 1}, [4]any{r, "False", "ProviderNotFound", 1}), never, true, true, false},
		"bad provider":             {"", proxy("Failed", [4]any{p, "False", "ProviderBroken", 1}, [4]any{h, "Unknown", "NotProbedYet", 1}, [4]any{r, "False", "ProviderBroken", 1}), never, true, true, false},
		"no secret":                {"the next one would find none either", proxy("Failed", [4]any{p, "False", "ReferenceNotFound", 1}, [4]any{h, "Unknown", "NotProbedYet", 1}, [4]any{r, "False", "ReferenceNotFound", 1}), never, true, false, false},
		"secret gone":              {"", proxy("Unhealthy", [4]any{p, "True", "Provisioned", 2}, [4]any{h, "Unknown", "ReferenceNotFound", 50}, [4]any{r, "False", "ReferenceNotFound", 50}), never, true, false, true},
		"host check":               {"the last check of its host found something", proxy("Unhealthy", [4]any{p, "True", "Provisioned", 2}, [4]any{h, "False", "ProbeFailed", 60}, [4]any{r, "False", "ProbeFailed", 60}, [4]any{pr, "False", "HostsInTrouble", 61}), never, true, false, true},
		"all checks":               {"", proxy("Unhealthy", [4]any{p, "True", "Provisioned", 2}, [4]any{h, "False", "ProbeFailed", 60}, [4]any{r, "False", "ProbeFailed", 60}, [4]any{pr, "False", "CheckFailed", 61}), never, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := memberOf(tc.px, nil)
			repair := never
			if !m.repairAt.IsZero() {
				repair = int(m.repairAt.Sub(noon) / time.Minute)
			}
			if repair != tc.repair || (m.trouble != "") != tc.trouble || m.wide != tc.wide || m.worked != tc.worked {
				t.Errorf("%s: repaired at %d, trouble %q, wide %t, worked %t; want %+v", tc.reason, repair, m.trouble, m.wide, m.worked, tc)
			}
		})
	}
	if m := memberOf(proxy("Provisioning", [4]any{p, "False", "QuotaExceeded", 1}), nil); !m.quota || m.trouble == "" {
		t.Errorf("a quota: %+v", m)
	}
}

// Proxies of one age have limits of their own, spread over the jitter.
func TestAgeLimits(t *testing.T) {
	if at := ageLimit(noon, 1, nil); !at.IsZero() {
		t.Errorf("without rotation: %s", at)
	}
	rot := &v1alpha1.Rotation{MaxAge: "10h", Jitter: new(int32(0))}
	if at := ageLimit(noon, lot("a"), rot); !at.Equal(noon.Add(10 * time.Hour)) {
		t.Errorf("without jitter: %s", at)
	}
	rot.Jitter = new(int32(20))
	var tenths [10]int
	const n = 1000
	for i := range n {
		left := ageLimit(noon, lot(uid(i, 0)), rot).Sub(noon)
		if left <= 8*time.Hour || left > 10*time.Hour {
			t.Fatalf("limit after %s", left)
		}
		tenths[int((10*time.Hour-left)*10/(2*time.Hour+1))]++
	}
	for i, got := range tenths {
		if got < n/20 || got > n/5 {
			t.Errorf("tenth %d of the jitter has %d of %d limits", i, got, n)
		}
	}
}

func TestBounds(t *testing.T) {
	val := func(s string) *intstr.IntOrString { return new(intstr.Parse(s)) }
	for name, tc := range map[string]struct {
		update             v1alpha1.ProxySetUpdate
		replicas           int
		unavailable, surge int
	}{
		"none":           {v1alpha1.ProxySetUpdate{}, 10, 0, 1},
		"numbers":        {v1alpha1.ProxySetUpdate{MaxUnavailable: val("2"), MaxSurge: val("3")}, 10, 2, 3},
		"rounded":        {v1alpha1.ProxySetUpdate{MaxUnavailable: val("25%"), MaxSurge: val("25%")}, 10, 2, 3},
		"more than all":  {v1alpha1.ProxySetUpdate{MaxUnavailable: val("20")}, 10, 10, 1},
		"both come to 0": {v1alpha1.ProxySetUpdate{MaxUnavailable: val("9%"), MaxSurge: val("0")}, 10, 1, 0},
		"of none":        {v1alpha1.ProxySetUpdate{MaxUnavailable: val("9%"), MaxSurge: val("0")}, 0, 0, 0},
	} {
		if u, s := bounds(&tc.update, tc.replicas); u != tc.unavailable || s != tc.surge {
			t.Errorf("%s: %d and %d, want %d and %d", name, u, s, tc.unavailable, tc.surge)
		}
	}
}

// A fleet is made anew for a changed template, and for nothing else.
func TestOutdated(t *testing.T) {
	set := func(change ...func(*v1alpha1.ProxySet)) *v1alpha1.ProxySet {
		s := &v1alpha1.ProxySet{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "u"}}
		s.Spec.Template = v1alpha1.ProxyTemplate{
			Metadata: v1alpha1.ProxyTemplateMeta{Labels: map[string]v1alpha1.LabelValue{"a": "b"}, Annotations: map[string]string{"note": "x"}},
			Spec:     v1alpha1.ProxySpec{Provider: "home", Port: 3128, Placement: &v1alpha1.Placement{Image: "debian"}},
		}
		for _, c := range change {
			c(s)
		}
		return s
	}
	made := newProxy(set(), "s-1", templateHash(&set().Spec.Template))
	changed := newProxy(set(), "s-1", templateHash(&set().Spec.Template))
	changed.Spec.Port, changed.Labels["by"] = 1080, "hand"
	elder := newProxy(set(), "s-1", "0123456789") // by an operator that knew fewer defaults
	marked := newProxy(set(), "s-1", "0123456789")
	marked.Labels["team"], marked.Annotations["seen"] = "a", "by me"
	for name, tc := range map[string]struct {
		px     *v1alpha1.Proxy
		change func(*v1alpha1.ProxySet)
		want   bool
	}{
		"same":                  {made, func(*v1alpha1.ProxySet) {}, false},
		"not of the template":   {made, func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(5)); s.Labels = map[string]string{"c": "d"} }, false},
		"changed by hand":       {changed, func(*v1alpha1.ProxySet) {}, false},
		"image":                 {made, func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Placement.Image = "other" }, true},
		"provider":              {made, func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Provider = "far" }, true},
		"label":                 {made, func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels["c"] = "d" }, true},
		"annotation":            {made, func(s *v1alpha1.ProxySet) { delete(s.Spec.Template.Metadata.Annotations, "note") }, true},
		"elder, same":           {elder, func(*v1alpha1.ProxySet) {}, false},
		"elder, image":          {elder, func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Placement.Image = "other" }, true},
		"elder, label gone":     {elder, func(s *v1alpha1.ProxySet) { delete(s.Spec.Template.Metadata.Labels, "a") }, true},
		"elder, marked by hand": {marked, func(*v1alpha1.ProxySet) {}, false},
		"elder, marked, label":  {marked, func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Labels["team"] = "a" }, true},
		"elder, marked, port":   {marked, func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Port = 1080 }, true},
		"elder, annotation new": {elder, func(s *v1alpha1.ProxySet) { s.Spec.Template.Metadata.Annotations["z"] = "" }, true},
	} {
		s := set(tc.change)
		if got := outdated(tc.px, &s.Spec.Template, templateHash(&s.Spec.Template)); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		name := newName("set")
		if len(name) != len("set-")+nameLength || seen[name] {
			t.Fatalf("name %q is not new, or odd", name)
		}
		seen[name] = true
	}
}
