package operator

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// secretOf reads Secrets of the operator's own namespace for providers, past
// every cache. A providers file names no other namespace: who may write the file
// need not be who may read all Secrets.
func secretOf(reader client.Reader, namespace string) func(context.Context, provider.SecretRef) (provider.Secret, error) {
	return func(ctx context.Context, ref provider.SecretRef) (provider.Secret, error) {
		s := &corev1.Secret{}
		err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, s)
		switch {
		case apierrors.IsNotFound(err):
			return nil, fault.Errorf(fault.NotFound, "there is no Secret %s in namespace %s, which is the operator's own: make it there", ref.Name, namespace)
		case apierrors.IsForbidden(err):
			return nil, fault.Errorf(fault.Denied, "the operator may not read Secret %s in namespace %s: %w", ref.Name, namespace, err)
		case err != nil:
			return nil, fault.Errorf(fault.Unavailable, "Secret %s in namespace %s cannot be read: %w", ref.Name, namespace, err)
		}
		value, ok := s.Data[ref.Key]
		if !ok {
			return nil, fault.Errorf(fault.NotFound, "Secret %s in namespace %s has no key %s: put it there", ref.Name, namespace, ref.Key)
		}
		return value, nil
	}
}
