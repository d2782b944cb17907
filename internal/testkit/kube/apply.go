package kube

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Apply makes each document of the files that match, in a namespace and as
// strictly as the API can be asked to be, and returns what it made as
// "<kind> <name>". A pattern that matches nothing, and a file without a
// document, fail the test.
func Apply(t testing.TB, c client.Client, namespace string, files fs.FS, pattern string) []string {
	t.Helper()
	names, err := fs.Glob(files, pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("files %s: %v %v", pattern, names, err)
	}
	strict := client.NewNamespacedClient(client.WithFieldValidation(c, "Strict"), namespace)
	var made []string
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		reader := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for n := 1; ; n++ {
			o := &unstructured.Unstructured{}
			if err := reader.Decode(o); errors.Is(err, io.EOF) && n > 1 {
				break
			} else if err != nil {
				t.Fatalf("%s, document %d: %v", name, n, err)
			}
			if err := strict.Create(t.Context(), o); err != nil {
				t.Errorf("%s, document %d: %v", name, n, err)
				continue
			}
			made = append(made, o.GetKind()+" "+o.GetName())
		}
	}
	return made
}
