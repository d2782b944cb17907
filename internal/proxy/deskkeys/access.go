package deskkeys

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	wire "fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Credentials reads what clients of a Proxy present, and the version of the
// Secret that holds it; both are empty for a Proxy that asks for nothing.
type Credentials func(ctx context.Context, px *v1alpha1.Proxy) (provider.Credentials, string, error)

// Access tells holders how to reach their Proxy. It works on every replica.
type Access struct {
	cache client.Reader
	read  Credentials

	mu sync.Mutex
	// known are credentials that were read before, by Secret: without them each
	// take would be a request to the Kubernetes API.
	known map[types.NamespacedName]remembered
}

type remembered struct {
	version     string
	credentials provider.Credentials
}

// maxKnown bounds the credentials in memory.
const maxKnown = 4096

// NewAccess returns an Access over a cache that has all Proxies and the metadata
// of all Secrets.
func NewAccess(cache client.Reader, read Credentials) *Access {
	return &Access{cache: cache, read: read, known: map[types.NamespacedName]remembered{}}
}

// Format prints nothing that is in it, by any verb: it holds passwords.
func (*Access) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("deskkeys.Access")) }

// Access returns how to reach the Proxy behind a key. It reads the Proxy itself,
// not the row, which may be a moment behind; one that is another by now is
// refused. Errors: Conflict then, NotFound for a Proxy or Secret that is gone,
// Unavailable when there is no address, or the Kubernetes API does not answer.
func (a *Access) Access(ctx context.Context, key, uid string, _ map[string]string) (wire.ProxyAccess, error) {
	namespace, name, ok := Parts(key)
	if !ok {
		return wire.ProxyAccess{}, fault.Errorf(fault.NotFound, "key %s is no Proxy's", key)
	}
	px := &v1alpha1.Proxy{}
	switch err := a.cache.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, px); {
	case apierrors.IsNotFound(err):
		return wire.ProxyAccess{}, fault.Errorf(fault.NotFound, "there is no Proxy %s/%s", namespace, name)
	case err != nil:
		return wire.ProxyAccess{}, fault.Errorf(fault.Unavailable, "Proxy %s/%s cannot be read: %w", namespace, name, err)
	case string(px.UID) != uid:
		return wire.ProxyAccess{}, fault.Errorf(fault.Conflict, "Proxy %s/%s is another one by now", namespace, name)
	case px.Status.Address == "" || px.Status.Port == 0:
		return wire.ProxyAccess{}, fault.Errorf(fault.Unavailable, "Proxy %s/%s has no address at the moment", namespace, name)
	}
	credentials, err := a.credentials(ctx, px)
	if err != nil {
		return wire.ProxyAccess{}, err
	}
	return wire.ProxyAccess{
		Protocol: string(px.Spec.Protocol), Host: px.Status.Address, Port: int(px.Status.Port),
		Username: credentials.User, Password: wire.Secret(credentials.Password),
	}, nil
}

// credentials reads them anew when the Secret changed since the last time, as
// far as the watch on Secrets has told.
func (a *Access) credentials(ctx context.Context, px *v1alpha1.Proxy) (provider.Credentials, error) {
	if px.Spec.AuthSecretRef == nil {
		return provider.Credentials{}, nil
	}
	name := types.NamespacedName{Namespace: px.Namespace, Name: px.Spec.AuthSecretRef.Name}
	meta := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
	if err := a.cache.Get(ctx, name, meta); err == nil {
		if c, ok := a.remembers(name, meta.ResourceVersion); ok {
			return c, nil
		}
	}
	c, version, err := a.read(ctx, px)
	if err != nil {
		return provider.Credentials{}, err
	}
	a.remember(name, remembered{version, c})
	return c, nil
}

func (a *Access) remembers(name types.NamespacedName, version string) (provider.Credentials, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.known[name]
	return r.credentials, ok && r.version == version
}

func (a *Access) remember(name types.NamespacedName, r remembered) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.known[name]; !ok && len(a.known) >= maxKnown {
		for one := range a.known { // whichever it is
			delete(a.known, one)
			break
		}
	}
	a.known[name] = r
}
