package kube_test

import (
	"slices"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/internal/testkit/kube"
)

func TestEachDocumentIsApplied(t *testing.T) {
	cfg, ns := cluster.Config(t), cluster.Namespace(t)
	c, err := client.New(cfg, client.Options{Scheme: kube.Scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	widget := func(name string) string {
		return "apiVersion: kube.example.com/v1\nkind: Widget\nmetadata: {name: " + name + "}\nspec: {size: 2}\n"
	}
	files := fstest.MapFS{
		"widget_one.yaml": {Data: []byte(widget("a"))},
		"widget_two.yaml": {Data: []byte("# two of them\n" + widget("b") + "---\n" + widget("c"))},
		"other.yaml":      {Data: []byte("no document")},
	}
	got := kube.Apply(t, c, ns, files, "widget_*.yaml")
	if want := []string{"Widget a", "Widget b", "Widget c"}; !slices.Equal(got, want) {
		t.Errorf("made %v, want %v", got, want)
	}
}
