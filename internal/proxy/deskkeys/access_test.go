package deskkeys_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fleetdesk/api/v1alpha1"
	wire "fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/deskkeys"
	"fleetdesk/internal/proxy/provider"
)

// vault reads Secrets and counts how often.
type vault struct {
	client.Client
	reads int
	err   error
}

func (v *vault) credentials(ctx context.Context, px *v1alpha1.Proxy) (provider.Credentials, string, error) {
	v.reads++
	if v.err != nil {
		return provider.Credentials{}, "", v.err
	}
	s := &corev1.Secret{}
	if err := v.Get(ctx, client.ObjectKey{Namespace: px.Namespace, Name: px.Spec.AuthSecretRef.Name}, s); err != nil {
		return provider.Credentials{}, "", fault.Wrap(fault.NotFound, err)
	}
	return provider.Credentials{User: string(s.Data["username"]), Password: s.Data["password"]}, s.ResourceVersion, nil
}

func newVault(t *testing.T, objects ...client.Object) (*vault, *deskkeys.Access) {
	t.Helper()
	v := &vault{Client: fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objects...).Build()}
	return v, deskkeys.NewAccess(v, v.credentials)
}

func authenticated(secret string) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) { px.Spec.AuthSecretRef = &v1alpha1.LocalSecretRef{Name: secret} }
}

func secret(name, password string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Data:       map[string][]byte{"username": []byte("crawler"), "password": []byte(password)},
	}
}

func TestAHolderIsToldHowToReachItsProxy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		key, uid string
		want     wire.ProxyAccess
		class    fault.Class
	}{
		"plain":         {"", "ns.a", "uid-of-a", wire.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128}, ""},
		"with password": {"", "ns.b", "uid-of-b", wire.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128, Username: "crawler", Password: "pass"}, ""},
		"with a dot":    {"a name may have dots, a namespace none", "ns.c.d", "uid-of-c.d", wire.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128}, ""},
		"another one":   {"the holder would be sent to a machine that is not its own", "ns.a", "uid-of-before", wire.ProxyAccess{}, fault.Conflict},
		"gone":          {"", "ns.z", "uid-of-z", wire.ProxyAccess{}, fault.NotFound},
		"elsewhere":     {"", "other.a", "uid-of-a", wire.ProxyAccess{}, fault.NotFound},
		"none of ours":  {"a published key", "win-01", "", wire.ProxyAccess{}, fault.NotFound},
		"no address":    {"it is being made again", "ns.e", "uid-of-e", wire.ProxyAccess{}, fault.Unavailable},
		"no Secret":     {"nobody could use it", "ns.f", "uid-of-f", wire.ProxyAccess{}, fault.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			_, access := newVault(t, secret("auth", "pass"), proxy("ns", "a"), proxy("ns", "b", authenticated("auth")), proxy("ns", "c.d"),
				proxy("ns", "e", func(px *v1alpha1.Proxy) { px.Status.Address, px.Status.Port = "", 0 }), proxy("ns", "f", authenticated("missing")))
			got, err := access.Access(t.Context(), tc.key, tc.uid, nil)
			if fault.Of(err) != tc.class || got != tc.want {
				t.Errorf("%s: got %+v (password right: %t), %v; want %+v, %q", tc.reason, got, got.Password == tc.want.Password, err, tc.want, tc.class)
			}
		})
	}
}

func TestASecretIsReadAgainWhenItChanges(t *testing.T) {
	v, access := newVault(t, secret("auth", "first"), proxy("ns", "a", authenticated("auth")), proxy("ns", "b", authenticated("auth")))
	password := func(key, uid string) string {
		t.Helper()
		got, err := access.Access(t.Context(), key, uid, nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(got.Password)
	}
	for range 3 {
		if password("ns.a", "uid-of-a") != "first" || password("ns.b", "uid-of-b") != "first" {
			t.Error("another password")
		}
	}
	if v.reads != 1 {
		t.Errorf("read %d times", v.reads)
	}
	changed := secret("auth", "second")
	if err := v.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if password("ns.a", "uid-of-a") != "second" || v.reads != 2 {
		t.Errorf("the old password, or %d reads", v.reads)
	}
	// Deleted and made again with other contents.
	if err := v.Delete(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if _, err := access.Access(t.Context(), "ns.a", "uid-of-a", nil); fault.Of(err) != fault.NotFound {
		t.Errorf("without its Secret: %v", err)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	const n = 4096 + 50
	objects := make([]client.Object, 0, 2*n)
	for i := range n {
		name := fmt.Sprintf("p%05d", i)
		objects = append(objects, secret(name, name), proxy("ns", name, authenticated(name)))
	}
	v, access := newVault(t, objects...)
	for range 2 {
		for i := range n {
			name := fmt.Sprintf("p%05d", i)
			got, err := access.Access(t.Context(), "ns."+name, "uid-of-"+name, nil)
			if err != nil || string(got.Password) != name {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	if v.reads <= n || v.reads > n+n/2 {
		t.Errorf("%d reads for %d Secrets, of which 4096 are remembered", v.reads, n)
	}
}

// No verb and no error shows a password.
func TestNoPasswordIsPrinted(t *testing.T) {
	v, access := newVault(t, secret("auth", "hunter2"), proxy("ns", "a", authenticated("auth")))
	got, err := access.Access(t.Context(), "ns.a", "uid-of-a", nil)
	if err != nil {
		t.Fatal(err)
	}
	v.err = fault.New(fault.Unavailable, "the Kubernetes API does not answer")
	_, _, failed := v.credentials(t.Context(), proxy("ns", "a", authenticated("auth")))
	for _, text := range []string{fmt.Sprintf("%v %+v %#v", got, got, got), fmt.Sprintf("%v %+v", access, access), fmt.Sprint(failed)} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "104 117 110") {
			t.Errorf("a password is in %s", text)
		}
	}
}
