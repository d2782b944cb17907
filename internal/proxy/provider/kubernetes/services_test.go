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

// A load balancer that is not given back yet is part of the instance: the
// Proxy is not Gone, who waits long is told what holds it, a sweep sees it, and
// its address is not that of the next instance.
func TestLoadBalancerThatStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *kubernetes.Section) { s.Service = &kubernetes.Service{Type: "LoadBalancer"} })
	var ahead atomic.Int64
	p, err := kubernetes.New(kubernetes.Options{
		Name: "away", Section: w.section, Secret: w.secrets.get, HashCost: 4,
		Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	spec := specOf(w, "balanced")
	name, ref := nameOf(spec.Owner), provider.Ref{Owner: spec.Owner}
	t.Cleanup(func() { gone(t, p, spec.Owner) })
	until(t, p, spec, provider.Provisioning)
	w.balance(t, name, "198.51.100.77")
	until(t, p, spec, provider.Running)

	// Its Service is taken from under it: what it has is no address any more.
	if err := w.admin.CoreV1().Services(w.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for what, look := range map[string]func() (provider.Instance, error){
		"Get":    func() (provider.Instance, error) { return p.Get(t.Context(), ref) },
		"Create": func() (provider.Instance, error) { return p.Create(t.Context(), spec) },
	} {
		if in, err := look(); err != nil || in.State != provider.Provisioning || !strings.Contains(in.Message, cleanup) || in.Address != "" {
			t.Errorf("%s while its Service is being deleted = %+v, %v", what, in, err)
		}
	}

	await(t, "the Pod to go", func() bool {
		st, err := p.Delete(t.Context(), ref)
		if err != nil || st != provider.Deleting {
			t.Fatalf("Delete while the load balancer is there = %s, %v; want Deleting", st, err)
		}
		return len(w.remains(t, spec.Owner)) == 1
	})
	if st, err := p.Delete(t.Context(), ref); err != nil || st != provider.Deleting {
		t.Errorf("Delete when the load balancer alone is there = %s, %v; want Deleting", st, err)
	}
	row := func() provider.HostLeftovers {
		rows, err := p.Leftovers(t.Context(), installation, nil)
		if err != nil || len(rows) != 1 || rows[0].Err != nil {
			t.Fatalf("Leftovers = %+v, %v", rows, err)
		}
		return rows[0]
	}
	found := row().Leftovers
	if len(found) != 1 || found[0].What != "service" {
		t.Fatalf("leftovers %+v; want the Service that is being deleted", found)
	}
	if err := p.RemoveLeftover(t.Context(), installation, found[0]); fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), cleanup) {
		t.Errorf("RemoveLeftover = %v; want to be told what holds it", err)
	}
	if in, err := p.Create(t.Context(), spec); fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), cleanup) {
		t.Errorf("Create while the old Service is there = %+v, %v", in, err)
	}
	ahead.Store(int64(time.Hour))
	if st, err := p.Delete(t.Context(), ref); fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), cleanup) {
		t.Errorf("Delete an hour later = %s, %v; want to be told what holds it", st, err)
	}
	w.unbalance(t, name)
	gone(t, p, spec.Owner)
	if left := row().Leftovers; len(left) != 0 {
		t.Errorf("leftovers %+v", left)
	}
	if in := until(t, p, spec, provider.Provisioning); strings.Contains(in.Message, "being removed") {
		t.Errorf("made again: %+v", in)
	}
}

// A Pod has the Service that it was made with: a section that asks for one, for
// another one, or for none any more takes no proxy down.
func TestServiceIsThatOfThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *kubernetes.Section) { s.Service = &kubernetes.Service{Type: "ClusterIP"} })
	with := func(kind string) *kubernetes.Provider {
		w.section.Service = nil
		if kind != "none" {
			w.section.Service = &kubernetes.Service{Type: kind}
		}
		return w.open(t)
	}
	providers := map[string]*kubernetes.Provider{"none": with("none"), "ClusterIP": with("ClusterIP"), "NodePort": with("NodePort")}
	for kind, p := range providers {
		spec := specOf(w, "made-"+strings.ToLower(kind))
		t.Cleanup(func() { gone(t, p, spec.Owner) })
		made := until(t, p, spec, provider.Running)
		for other, q := range providers {
			in, err := q.Get(t.Context(), provider.Ref{Owner: spec.Owner})
			if err != nil || in != made {
				t.Errorf("made with %s, seen with %s: %+v, %v; want %+v", kind, other, in, err, made)
			}
			await(t, "the list", func() bool {
				rows, err := q.ListByTag(t.Context(), installation)
				if err != nil || rows[0].Err != nil {
					t.Fatalf("made with %s, listed with %s: %+v, %v", kind, other, rows, err)
				}
				for _, in := range rows[0].Instances {
					if in.Owner == spec.Owner {
						return in == made
					}
				}
				return false
			})
			if in, err := q.Create(t.Context(), spec); err != nil || in != made {
				t.Errorf("made with %s, Create with %s: %+v, %v", kind, other, in, err)
			}
		}
	}
	// One that ended is made anew, as the section has it now.
	spec := specOf(w, "made-clusterip")
	w.nodes.Evict(t, nameOf(spec.Owner))
	in := until(t, providers["none"], spec, provider.Running)
	if pod := w.pod(t, nameOf(spec.Owner)); in.Address != pod.Status.PodIP {
		t.Errorf("made anew without a Service: %+v", in)
	}
	if left := w.remains(t, spec.Owner); strings.Contains(strings.Join(left, " "), "service") {
		t.Errorf("the Service of the old Pod stayed: %q", left)
	}
}

// A load balancer is not forgotten by a section and a Role that name Services no
// more: the Pod tells of it, and stays until the rule is back.
func TestLoadBalancerWithoutARule(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *kubernetes.Section) { s.Service = &kubernetes.Service{Type: "LoadBalancer"} })
	p := w.open(t)
	spec := specOf(w, "forgotten")
	name := nameOf(spec.Owner)
	until(t, p, spec, provider.Provisioning)
	w.balance(t, name, "198.51.100.78")
	until(t, p, spec, provider.Running)

	user := "without-services-" + w.ns
	w.bind(t, user, kubernetes.Role(w.ns, false).Rules)
	poor := &secrets{}
	poor.put("away-kubeconfig", kubeconfig(t, cluster.User(t, user), "https://"+w.line.address()))
	w.inForce(t, user)
	section := w.section
	section.Service = nil
	q, err := kubernetes.New(kubernetes.Options{Name: "away", Section: section, Secret: poor.get, HashCost: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	for range 2 {
		st, err := q.Delete(t.Context(), provider.Ref{Owner: spec.Owner})
		if fault.Of(err) != fault.Denied || !strings.Contains(err.Error(), "put the rule about services back") {
			t.Errorf("Delete without the rule = %s, %v", st, err)
		}
	}
	if svc := w.service(t, name); svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.DeletionTimestamp != nil {
		t.Errorf("the Service is %+v", svc.ObjectMeta)
	}
	w.pod(t, name) // it is what tells of the Service
	rows, err := q.ListByTag(t.Context(), installation)
	if err != nil || fault.Of(rows[0].Err) != fault.Denied {
		t.Errorf("a list that cannot say the address = %+v, %v", rows, err)
	}
	if row := health(t, q); row.Reason != provider.ReasonOK || !strings.Contains(row.Message, "Services cannot be looked at") {
		t.Errorf("Check = %+v", row)
	}
	if row := health(t, p); row.Reason != provider.ReasonOK || strings.Contains(row.Message, "cannot be looked at") {
		t.Errorf("Check with the rule = %+v", row)
	}
	w.unbalance(t, name)
	gone(t, p, spec.Owner)
}
