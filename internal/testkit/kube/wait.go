package kube

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// Patience bounds each wait: far above what anything takes on a busy machine.
const Patience = 2 * time.Minute

// Until waits until cond says that nothing is missing any more. The test ends
// with what was missing last when that does not come.
func Until(t testing.TB, what string, cond func() (missing string)) {
	t.Helper()
	var missing string
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if missing = cond(); missing == "" {
			return
		}
	}
	t.Fatalf("%s: still after %s: %s", what, Patience, missing)
}

// Scheme knows Kubernetes' own kinds, and those that are added.
func Scheme(t testing.TB, add ...func(*runtime.Scheme) error) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range append([]func(*runtime.Scheme) error{clientgoscheme.AddToScheme}, add...) {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
