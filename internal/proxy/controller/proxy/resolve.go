package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// references are the versions of what a Proxy refers to.
type references struct {
	// versions changes when any of the objects does.
	versions string
	// secret is the version of the Secret of authSecretRef.
	secret string
}

// resolve makes the provider's spec from the object's: every reference is
// read, within the Proxy's own namespace. The references are given also with
// an error. One that is missing is NotFound and names the object and the key.
func (r *Reconciler) resolve(ctx context.Context, px *v1alpha1.Proxy) (spec provider.Spec, refs references, err error) {
	s := &px.Spec
	spec = provider.Spec{
		Owner:    r.owner(px),
		Port:     int(s.Port),
		Protocol: provider.Protocol(s.Protocol),
	}
	if p := s.Placement; p != nil {
		spec.Host, spec.Zone, spec.NodeSelector, spec.Image = p.Host, p.Zone, p.NodeSelector, p.Image
	}
	if q := s.Resources; q != nil {
		if q.CPUs != nil {
			spec.Resources.MilliCPUs = q.CPUs.MilliValue()
		}
		if q.Memory != nil {
			spec.Resources.MemoryBytes = q.Memory.Value()
		}
		if q.Disk != nil {
			spec.Resources.DiskBytes = q.Disk.Value()
		}
	}
	spec.Credentials, refs.secret, err = r.Credentials(ctx, px)
	refs.versions = refs.secret
	if err != nil {
		return spec, refs, err
	}
	var version string
	spec.UserData, version, err = r.userData(ctx, px)
	refs.versions += "," + version
	return spec, refs, err
}

// Credentials reads what clients of the proxy present, and the version of the
// Secret; both are empty when it asks for nothing. Errors: NotFound for a Secret
// or key that is missing, Denied, Transient.
func (r *Reconciler) Credentials(ctx context.Context, px *v1alpha1.Proxy) (provider.Credentials, string, error) {
	ref := px.Spec.AuthSecretRef
	if ref == nil {
		return provider.Credentials{}, "", nil
	}
	data, version, err := r.secret(ctx, px.Namespace, ref.Name, "authSecretRef")
	if err != nil {
		return provider.Credentials{}, version, err
	}
	user, hasUser := data[v1alpha1.AuthUsernameKey]
	password, hasPassword := data[v1alpha1.AuthPasswordKey]
	if !hasUser || !hasPassword || len(user) == 0 {
		return provider.Credentials{}, version, fault.Errorf(fault.NotFound,
			"authSecretRef: Secret %s/%s needs the keys %q and %q", px.Namespace, ref.Name, v1alpha1.AuthUsernameKey, v1alpha1.AuthPasswordKey)
	}
	return provider.Credentials{User: string(user), Password: password}, version, nil
}

func (r *Reconciler) userData(ctx context.Context, px *v1alpha1.Proxy) (provider.Secret, string, error) {
	ci := px.Spec.CloudInit
	switch {
	case ci == nil:
		return nil, "", nil
	case ci.SecretRef != nil:
		data, version, err := r.secret(ctx, px.Namespace, ci.SecretRef.Name, "cloudInit.secretRef")
		if err != nil {
			return nil, version, err
		}
		b, ok := data[ci.SecretRef.Key]
		if !ok {
			return nil, version, missingKey("cloudInit.secretRef: Secret", px.Namespace, *ci.SecretRef)
		}
		return b, version, nil
	case ci.ConfigMapRef != nil:
		cm := &corev1.ConfigMap{}
		if err := r.read(ctx, px.Namespace, ci.ConfigMapRef.Name, cm, "cloudInit.configMapRef: ConfigMap"); err != nil {
			return nil, "", err
		}
		if s, ok := cm.Data[ci.ConfigMapRef.Key]; ok {
			return provider.Secret(s), cm.ResourceVersion, nil
		}
		if b, ok := cm.BinaryData[ci.ConfigMapRef.Key]; ok {
			return b, cm.ResourceVersion, nil
		}
		return nil, cm.ResourceVersion, missingKey("cloudInit.configMapRef: ConfigMap", px.Namespace, *ci.ConfigMapRef)
	}
	return provider.Secret(ci.Inline), "", nil
}

func (r *Reconciler) secret(ctx context.Context, namespace, name, field string) (map[string][]byte, string, error) {
	s := &corev1.Secret{}
	if err := r.read(ctx, namespace, name, s, field+": Secret"); err != nil {
		return nil, "", err
	}
	return s.Data, s.ResourceVersion, nil
}

func (r *Reconciler) read(ctx context.Context, namespace, name string, into client.Object, what string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := r.o.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, into)
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fault.Errorf(fault.NotFound, "%s %s/%s does not exist: create it, or change the reference", what, namespace, name)
	case apierrors.IsForbidden(err):
		return fault.Errorf(fault.Denied, "%s %s/%s may not be read by the operator: check its RBAC", what, namespace, name)
	}
	return fault.Errorf(fault.Transient, "%s %s/%s cannot be read: %w", what, namespace, name, err)
}

func missingKey(what, namespace string, ref v1alpha1.KeyRef) error {
	return fault.Errorf(fault.NotFound, "%s %s/%s has no key %q: add it, or change the reference", what, namespace, ref.Name, ref.Key)
}

func referenceReason(err error) string {
	if fault.Of(err) == fault.NotFound {
		return v1alpha1.ReasonReferenceNotFound
	}
	return fault.Of(err).Meaning().Reason
}

// specHash is over the parts of the spec that an instance is made from; the
// health check is not among them, since it applies at once. provider and image
// are immutable.
func specHash(s *v1alpha1.ProxySpec) string {
	b, err := json.Marshal(struct {
		Placement *v1alpha1.Placement
		Resources *v1alpha1.Resources
		CloudInit *v1alpha1.CloudInit
		Port      int32
		Protocol  v1alpha1.Protocol
		Auth      *v1alpha1.LocalSecretRef
	}{s.Placement, s.Resources, s.CloudInit, s.Port, s.Protocol, s.AuthSecretRef})
	if err != nil {
		// The type has no part that cannot be encoded.
		panic(fmt.Sprintf("encoding a spec: %v", err))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
