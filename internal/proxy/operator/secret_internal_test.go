package operator

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Providers read Secrets of the operator's own namespace, as they are now.
func TestSecretOf(t *testing.T) {
	secret := func(ns, name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string][]byte{"key": []byte(ns + "-value")}}
	}
	kc := fake.NewClientBuilder().WithObjects(secret("own", "a"), secret("other", "b")).Build()
	read := secretOf(kc, "own")
	for name, tc := range map[string]struct {
		reason string
		ref    provider.SecretRef
		want   string
		class  fault.Class
		says   string
	}{
		"there":           {"the usual case", provider.SecretRef{Name: "a", Key: "key"}, "own-value", "", ""},
		"other namespace": {"who writes the providers file need not read all Secrets", provider.SecretRef{Name: "b", Key: "key"}, "", fault.NotFound, "namespace own"},
		"no such key":     {"a typo must be seen", provider.SecretRef{Name: "a", Key: "kex"}, "", fault.NotFound, "no key kex"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(t.Context(), tc.ref)
			if fault.Of(err) != tc.class || string(got) != tc.want || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: got %d bytes, %v (%s)", tc.reason, len(got), err, fault.Of(err))
			}
		})
	}
}
