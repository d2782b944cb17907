package operator

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
)

// The demo's Proxies are of the provider that the default providers file has.
const (
	demoNamespace = "default"
	demoProvider  = "local"
	demoTimeout   = 60 * time.Second
	demoPoll      = 100 * time.Millisecond
)

func demoNames() []string { return []string{"demo-1", "demo-2", "demo-3"} }

// demoManifest is one of the demo's Proxies as a person would write it.
func demoManifest(name string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"Proxy","metadata":{"name":%q},"spec":{"provider":%q}}`,
		v1alpha1.GroupVersion.String(), name, demoProvider)
}

// runDemo makes the demo's Proxies, leaves those that exist as they are, and
// waits until all are Ready. It says each change.
func runDemo(ctx context.Context, kube client.Client, say func(format string, args ...any)) error {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	for _, name := range demoNames() {
		px := &v1alpha1.Proxy{
			ObjectMeta: metav1.ObjectMeta{Namespace: demoNamespace, Name: name, Labels: map[string]string{"app": "demo"}},
			Spec:       v1alpha1.ProxySpec{Provider: demoProvider},
		}
		if err := kube.Create(ctx, px); err != nil && !apierrors.IsAlreadyExists(err) {
			return fault.Errorf(fault.Unavailable, "the demo's Proxy %s/%s cannot be made: %w", demoNamespace, name, err)
		}
	}
	seen := map[string]string{}
	tick := time.NewTicker(demoPoll)
	defer tick.Stop()
	for {
		ready := 0
		for _, name := range demoNames() {
			state, ok := demoState(ctx, kube, name)
			if ok {
				ready++
			}
			if state != "" && seen[name] != state {
				seen[name] = state
				say("%s: %s", name, state)
			}
		}
		if ready == len(demoNames()) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.Errorf(fault.Timeout, "%d of %d demo Proxies are Ready after %s; kubectl describe proxies says why",
				ready, len(demoNames()), demoTimeout)
		}
	}
}

// demoState returns a line about one Proxy, and whether it is Ready; "" when
// it cannot be read just now.
func demoState(ctx context.Context, kube client.Reader, name string) (string, bool) {
	px := &v1alpha1.Proxy{}
	if err := kube.Get(ctx, client.ObjectKey{Namespace: demoNamespace, Name: name}, px); err != nil {
		return "", false
	}
	if px.Status.Phase == v1alpha1.PhaseReady {
		return "Ready at " + proxyURL(px), true
	}
	phase := px.Status.Phase
	if phase == "" {
		phase = v1alpha1.PhasePending
	}
	c := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Message == "" {
		return string(phase), false
	}
	return fmt.Sprintf("%s (%s: %s)", phase, c.Reason, c.Message), false
}
