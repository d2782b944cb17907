package kubernetes_test

import (
	"errors"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// A section that is wrong names the field; the defaults are right.
func TestSections(t *testing.T) {
	root, seconds := int64(0), int64(1)
	long := map[string]string{}
	for i := range 101 {
		long["k"+strings.Repeat("x", i%60)+string(rune('a'+i/60))] = "v"
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*kubernetes.Section)
		path   string
	}{
		"nothing more":     {"the least that is needed", func(*kubernetes.Section) {}, ""},
		"no namespace":     {"nowhere to go", func(s *kubernetes.Section) { s.Namespace = "" }, "namespace"},
		"namespace":        {"no name of a namespace", func(s *kubernetes.Section) { s.Namespace = "A_b" }, "namespace"},
		"cluster":          {"it is part of ids", func(s *kubernetes.Section) { s.Cluster = "a/b" }, "cluster"},
		"Secret's name":    {"no name of a Secret", func(s *kubernetes.Section) { s.KubeconfigSecret = &kubernetes.KubeconfigSecret{} }, "kubeconfigSecret.name"},
		"Secret's key":     {"no key", func(s *kubernetes.Section) { s.KubeconfigSecret = &kubernetes.KubeconfigSecret{Name: "a", Key: "../x"} }, "kubeconfigSecret.key"},
		"account":          {"no name", func(s *kubernetes.Section) { s.ServiceAccount = "A" }, "serviceAccount"},
		"image":            {"no reference", func(s *kubernetes.Section) { s.Images = map[string]kubernetes.Image{"a": {}} }, "images.a.image"},
		"image with space": {"cut wrongly", func(s *kubernetes.Section) { s.Images = map[string]kubernetes.Image{"a": {Image: "a b"}} }, "images.a.image"},
		"image key":        {"it could be taken for a reference", func(s *kubernetes.Section) { s.Images = map[string]kubernetes.Image{"a/b": {Image: "a"}} }, "images.a/b"},
		"root": {"the namespace's rules would refuse it", func(s *kubernetes.Section) {
			s.Images = map[string]kubernetes.Image{"a": {Image: "a", RunAsUser: &root}}
		}, "images.a.runAsUser"},
		"credentials": {"a typo would leave a proxy open", func(s *kubernetes.Section) {
			s.Images = map[string]kubernetes.Image{"a": {Image: "a", Credentials: "clear"}}
		}, "images.a.credentials"},
		"squid, plain": {"squid would not read them", func(s *kubernetes.Section) {
			s.Images = map[string]kubernetes.Image{"a": {Image: "a", Squid: true, Credentials: "plain"}}
		}, "images.a.credentials"},
		"default image":     {"a typo", func(s *kubernetes.Section) { s.DefaultImage = "squit" }, "defaultImage"},
		"pull secret":       {"no name", func(s *kubernetes.Section) { s.ImagePullSecrets = []string{"a", "B"} }, "imagePullSecrets.1"},
		"memory":            {"no quantity", func(s *kubernetes.Section) { s.Resources.Memory = "lots" }, "resources.memory"},
		"cpus":              {"nothing to run on", func(s *kubernetes.Section) { s.Resources.CPUs = "0" }, "resources.cpus"},
		"disk":              {"less than nothing", func(s *kubernetes.Section) { s.Resources.Disk = "-1Gi" }, "resources.disk"},
		"selector":          {"the API server would refuse each Pod", func(s *kubernetes.Section) { s.NodeSelector = map[string]string{"a b": ""} }, "nodeSelector.a b"},
		"labels":            {"as above", func(s *kubernetes.Section) { s.Labels = map[string]string{"a": "b c"} }, "labels.a"},
		"many labels":       {"no list without a bound", func(s *kubernetes.Section) { s.Labels = long }, "labels"},
		"our label":         {"the operator finds its Pods by it", func(s *kubernetes.Section) { s.Labels = map[string]string{"crawl.example.com/proxy-uid": "x"} }, "labels.crawl.example.com/proxy-uid"},
		"our other label":   {"as above", func(s *kubernetes.Section) { s.Labels = map[string]string{"app.kubernetes.io/managed-by": "x"} }, "labels.app.kubernetes.io/managed-by"},
		"toleration":        {"no such operator", func(s *kubernetes.Section) { s.Tolerations = []kubernetes.Toleration{{Key: "a", Operator: "Is"}} }, "tolerations.0.operator"},
		"toleration of all": {"only on purpose", func(s *kubernetes.Section) { s.Tolerations = []kubernetes.Toleration{{}} }, "tolerations.0.key"},
		"toleration's key":  {"no key", func(s *kubernetes.Section) { s.Tolerations = []kubernetes.Toleration{{Key: "a b"}} }, "tolerations.0.key"},
		"toleration's value": {"it is ignored", func(s *kubernetes.Section) {
			s.Tolerations = []kubernetes.Toleration{{Key: "a", Operator: "Exists", Value: "b"}}
		}, "tolerations.0.value"},
		"toleration's text": {"no value of a taint", func(s *kubernetes.Section) { s.Tolerations = []kubernetes.Toleration{{Key: "a", Value: "b c"}} }, "tolerations.0.value"},
		"effect":            {"a typo", func(s *kubernetes.Section) { s.Tolerations = []kubernetes.Toleration{{Key: "a", Effect: "NoRun"}} }, "tolerations.0.effect"},
		"seconds": {"only NoExecute ends", func(s *kubernetes.Section) {
			s.Tolerations = []kubernetes.Toleration{{Key: "a", Effect: "NoSchedule", Seconds: &seconds}}
		}, "tolerations.0.tolerationSeconds"},
		"spread's key":  {"no label", func(s *kubernetes.Section) { s.Spread.TopologyKey = "a b" }, "spread.topologyKey"},
		"spread's skew": {"less than even", func(s *kubernetes.Section) { s.Spread.MaxSkew = -1 }, "spread.maxSkew"},
		"service":       {"no kind", func(s *kubernetes.Section) { s.Service = &kubernetes.Service{} }, "service.type"},
		"service's note": {"no annotation", func(s *kubernetes.Section) {
			s.Service = &kubernetes.Service{Type: "NodePort", Annotations: map[string]string{"a b": ""}}
		}, "service.annotations.a b"},
		"our annotation": {"whose it is", func(s *kubernetes.Section) {
			s.Service = &kubernetes.Service{Type: "NodePort", Annotations: map[string]string{"crawl.example.com/owner": ""}}
		}, "service.annotations.crawl.example.com/owner"},
		"less than nothing": {"a bound", func(s *kubernetes.Section) { s.MaxInstances = -1 }, "maxInstances"},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubernetes.Section{Namespace: "proxies"}
			tc.change(&s)
			p, err := kubernetes.New(kubernetes.Options{Name: "pods", Section: s})
			if p != nil {
				defer p.Close()
			}
			if tc.path == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			field, ok := errors.AsType[*kubernetes.FieldError](err)
			if !ok || strings.Join(field.Path, ".") != tc.path || fault.Of(err) != fault.Invalid {
				t.Errorf("%s: %v; want Invalid at %s", tc.reason, err, tc.path)
			}
		})
	}
}
