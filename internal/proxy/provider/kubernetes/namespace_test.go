package kubernetes_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	left, err := p.Leftovers(ctx, installation, nil)
	if err != nil {
		t.Fatal(err)
	}
	check("Leftovers", left[0].Err)
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
