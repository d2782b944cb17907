package kubernetes_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// nothingIsGone has every call refuse to say that something is not there.
func nothingIsGone(t *testing.T, p *kubernetes.Provider, host, says string) {
	t.Helper()
	ctx, o := t.Context(), ownerOf("nowhere")
	check := func(what string, err error) {
		t.Helper()
		if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %s: %v; want Permanent with %q", what, fault.Of(err), err, says)
		}
	}
	_, err := p.Get(ctx, provider.Ref{Owner: o, Host: host})
	check("Get", err)
	st, err := p.Delete(ctx, provider.Ref{Owner: o, Host: host})
	check("Delete, "+string(st), err)
	rows, err := p.ListByTag(ctx, installation)
	if err != nil {
		t.Fatal(err)
	}
	check("ListByTag", rows[0].Err)
	_, err = p.Create(ctx, provider.Spec{Owner: o, Host: host})
	check("Create", err)
	claims, err := p.Claim(ctx, provider.Claim{Installation: installation, Holder: "holdernowhere", Beat: 1, Period: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	check("Claim", claims[0].Err)
}

// An API server answers "not found" for everything in a namespace that it does
// not have, and lists nothing: that is no fleet that has vanished.
func TestNamespaceThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.secrets.put("away-kubeconfig", kubeconfig(t, cluster.Config(t), "https://"+w.line.address()))
	w.section.Namespace = "not-there-" + w.ns
	nothingIsGone(t, w.open(t), "away/not-there-"+w.ns, "make namespace not-there-")
}

// A namespace that goes while the connection stands takes the answers along.
func TestNamespaceThatGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.secrets.put("away-kubeconfig", kubeconfig(t, cluster.Config(t), "https://"+w.line.address()))
	api := w.admin.CoreV1().Namespaces()
	ns, err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "goes-" + w.ns}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.section.Namespace = ns.Name
	p := w.open(t)
	if rows, err := p.ListByTag(t.Context(), installation); err != nil || rows[0].Err != nil {
		t.Fatalf("the list = %+v, %v", rows, err)
	}
	if err := api.Delete(t.Context(), ns.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if ns, err = api.Get(t.Context(), ns.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	ns.Spec.Finalizers = nil // there is no controller here that does it
	if _, err := api.Finalize(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	nothingIsGone(t, p, "away/"+ns.Name, "make namespace "+ns.Name)
}

// A kubeconfig that is changed while the operator runs, and leads to a
// namespace of the same name elsewhere, is refused until the old one is back.
func TestKubeconfigOfAnotherCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var ahead atomic.Int64
	p, err := kubernetes.New(kubernetes.Options{
		Name: "away", Section: w.section, Secret: w.secrets.get, HashCost: 4,
		Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	list := func() {
		t.Helper()
		if rows, err := p.ListByTag(t.Context(), installation); err != nil || rows[0].Err != nil {
			t.Fatalf("the list = %+v, %v", rows, err)
		}
	}
	list()
	met := p.Meet("the namespace of that name in the old cluster")
	w.secrets.put("away-kubeconfig", kubeconfig(t, w.user, "https://"+w.line.address())+"\n")
	ahead.Store(int64(time.Minute)) // the kubeconfig is read again
	nothingIsGone(t, p, w.host(), "put the old kubeconfig back")
	if row := health(t, p); row.Reason != kubernetes.ReasonKubeconfig {
		t.Errorf("Check = %+v", row)
	}
	p.Meet(met)
	list()
}
