package kubernetes_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// A Pod keeps no node alive that an autoscaler wants to take away, and a start
// that hangs ends when the page says so, as one that fails does.
func TestPodsAndTheirNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.nodes.Hold()
	p := w.open(t)
	spec := specOf(w, "upkeep")
	t.Cleanup(func() { gone(t, p, spec.Owner) })
	if _, err := p.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	pod := w.pod(t, nameOf(spec.Owner))
	if got := pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"]; got != "true" {
		t.Errorf("safe-to-evict is %q", got)
	}
	probe := pod.Spec.Containers[0].StartupProbe
	tries := time.Duration(probe.FailureThreshold) * time.Second
	for what, each := range map[string]int32{"fails": probe.PeriodSeconds, "hangs": max(probe.PeriodSeconds, probe.TimeoutSeconds)} {
		if limit := tries * time.Duration(each); limit != 2*time.Minute {
			t.Errorf("a start that %s is ended after %s; the page says two minutes", what, limit)
		}
	}
}

// A Secret is written anew by each try, also when nothing in it changes, so
// that its version tells a sweep.
func TestSecretIsWrittenAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.open(t)
	spec := specOf(w, "anew")
	t.Cleanup(func() { gone(t, p, spec.Owner) })
	seen := map[string]bool{}
	for range 3 {
		_, _ = p.Create(provider.WithStepHook(t.Context(), func(step string) error {
			if step == "kubernetes: pod" {
				return fault.New(fault.Transient, "ended")
			}
			return nil
		}), spec)
		s, err := w.admin.CoreV1().Secrets(w.ns).Get(t.Context(), nameOf(spec.Owner), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if seen[s.ResourceVersion] {
			t.Errorf("version %s a second time", s.ResourceVersion)
		}
		seen[s.ResourceVersion] = true
	}
}

// The own cluster gets a new authority: it is read again when the certificate is
// not trusted, without a restart.
func TestOwnAuthorityIsReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	stranger := httptest.NewTLSServer(http.NotFoundHandler())
	defer stranger.Close()
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(ca []byte) {
		if err := os.WriteFile(file, ca, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stranger.Certificate().Raw}))
	section := w.section
	section.KubeconfigSecret = nil
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: section, HashCost: 4, Own: func() (*rest.Config, error) {
		cfg := rest.CopyConfig(w.user)
		cfg.CAData, cfg.CAFile = nil, file
		return cfg, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ref := provider.Ref{Owner: ownerOf("authority")}
	for range 2 {
		if _, err := p.Get(t.Context(), ref); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "certificate") {
			t.Fatalf("Get with another authority: %v", err)
		}
	}
	write(w.user.CAData)
	if _, err := p.Get(t.Context(), ref); fault.Of(err) != fault.NotFound {
		t.Errorf("Get with the new authority: %v; want NotFound", err)
	}
}
