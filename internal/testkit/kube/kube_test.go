package kube_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"fleetdesk/internal/testkit/kube"
)

var cluster = kube.Shared(kube.Options{CRDs: fstest.MapFS{
	"bases/widgets.yaml": {Data: []byte(widgets)},
	"bases/README.md":    {Data: []byte("not a definition")},
}})

func TestMain(m *testing.M) { goleak.VerifyTestMain(cluster.Around(m)) }

func TestDefinitionsServe(t *testing.T) {
	cfg, ns := cluster.Config(t), cluster.Namespace(t)
	dc, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kube.example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "a"}, "spec": map[string]any{"size": int64(2)},
	}}
	began := time.Now()
	res := dc.Resource(schema.GroupVersionResource{Group: "kube.example.com", Version: "v1", Resource: "widgets"}).Namespace(ns)
	if _, err := res.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 1500*time.Millisecond {
		t.Errorf("the first create took %s: the wait for a settled definition is missing", took)
	}
	w.SetName("b")
	_ = unstructured.SetNestedField(w.Object, int64(3), "spec", "size")
	if _, err := res.Create(t.Context(), w, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an odd size passes the CEL rule: %v", err)
	}
}

func TestNamespacesAreUniqueAndValid(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	seen := map[string]bool{}
	for _, name := range []string{"plain", "plain", "ünïcode / Slashes__", strings.Repeat("long", 40)} {
		t.Run(name, func(t *testing.T) {
			ns := cluster.Namespace(t)
			if seen[ns] || !form.MatchString(ns) {
				t.Errorf("namespace %q is not new or not valid", ns)
			}
			seen[ns] = true
		})
	}
}

func TestUserMayDoNothingUngranted(t *testing.T) {
	ns := cluster.Namespace(t)
	kc, err := kubernetes.NewForConfig(cluster.User(t, "carol", "crawlers"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kc.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("RBAC is not in force: %v", err)
	}
}

// failing records what a helper tells a test, and ends like one.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper()                  {}
func (f *failing) Context() context.Context { return context.Background() }
func (f *failing) Fatal(args ...any) {
	f.said = args[0].(error).Error()
	panic(f)
}

func TestSaysWhatToDo(t *testing.T) {
	cases := map[string]struct {
		reason string
		opts   kube.Options
		says   string
	}{
		"no binaries":       {"the first test after a clone runs into this", kube.Options{Assets: t.TempDir()}, "make kube-assets"},
		"no definitions":    {"an empty folder means that generation did not run", kube.Options{CRDs: fstest.MapFS{}}, "no *.yaml"},
		"not a definition":  {"a wrong folder must not pass for an empty one", kube.Options{CRDs: fstest.MapFS{"a.yaml": {Data: []byte("kind: Secret")}}}, "Secret"},
		"unreadable fields": {"a typo in a definition is ignored by the server", kube.Options{CRDs: fstest.MapFS{"a.yaml": {Data: []byte("kind: CustomResourceDefinition\nspce: 1")}}}, "spce"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := &failing{}
			func() {
				defer func() { _ = recover() }()
				kube.Shared(c.opts).Config(f)
			}()
			if !strings.Contains(f.said, c.says) {
				t.Errorf("said %q, want %q: %s", f.said, c.says, c.reason)
			}
		})
	}
}

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.kube.example.com
spec:
  group: kube.example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size:
                type: integer
                x-kubernetes-validations:
                - rule: self % 2 == 0
                  message: size must be even
`
