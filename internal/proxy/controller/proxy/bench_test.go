package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider/fake"
)

// BenchmarkOperator measures the controller against a real API server and
// etcd, over the fake provider, with checks that answer at once: what is left
// is the operator's own work and the API's. It prints lines
// "BENCH name value unit"; make bench-operator runs it once.
func BenchmarkOperator(b *testing.B) {
	for range b.N {
		for _, n := range []int{10, 100, 1000} {
			for _, h := range []int{1, 10} {
				measure(b, n, h)
			}
		}
	}
}

// measure takes n Proxies to Ready on h hosts, and looks what they cost then.
// How they get there is told of for ten hosts.
func measure(b *testing.B, n, h int) {
	var hosts []string
	for i := range h {
		hosts = append(hosts, fmt.Sprint("h", i+1))
	}
	r := newRig(b, fake.Options{Hosts: hosts, StagesPerCall: 5})
	r.found = func(target probe.Target) probe.Result {
		// Times spread about the border of two steps, as those of real proxies do.
		return probe.Result{
			OK: true, Reason: probe.ReasonOK, ExitIP: netip.MustParseAddr(target.Address), Leaks: probe.NoLeaks,
			Latency: 230*time.Millisecond + rand.N(40*time.Millisecond),
		}
	}
	r.start()
	empty := heap()
	began := time.Now()
	var creators errgroup.Group
	creators.SetLimit(8)
	for i := range n {
		px := r.proxy(fmt.Sprintf("p%04d", i), func(px *v1alpha1.Proxy) {
			px.Spec.HealthCheck.Interval, px.Spec.HealthCheck.Timeout = "30s", "5s"
		})
		creators.Go(func() error { return r.client.Create(b.Context(), px) })
	}
	if err := creators.Wait(); err != nil {
		b.Fatal(err)
	}
	created := time.Since(began)
	var list v1alpha1.ProxyList
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err := r.client.List(b.Context(), &list, client.InNamespace(r.ns)); err != nil {
			b.Fatal(err)
		}
		ready := 0
		for i := range list.Items {
			if list.Items[i].Status.Phase == v1alpha1.PhaseReady {
				ready++
			}
		}
		if ready == n {
			break
		}
		if time.Now().After(end) {
			b.Fatalf("%d of %d Proxies are ready after 5 minutes", ready, n)
		}
	}
	converged := time.Since(began)
	if got := len(r.machines()); got != n {
		b.Fatalf("%d machines for %d Proxies", got, n)
	}
	list = v1alpha1.ProxyList{}
	if h > 1 {
		fmt.Printf("BENCH operator.create.n%d.seconds %.2f s\n", n, created.Seconds())
		fmt.Printf("BENCH operator.converge.n%d.seconds %.2f s\n", n, converged.Seconds())
	}

	// What the provider is asked once all is well, over ten listings: a listing
	// asks each host once, so the calls are one, however many hosts there are.
	const listings = 10
	versions := r.versions()
	before, lists := r.fake.Calls(), int64(0)
	for lists < listings {
		time.Sleep(100 * time.Millisecond)
		lists = r.fake.Calls()["ListByTag"] - before["ListByTag"]
	}
	calls := int64(0)
	for method, now := range r.fake.Calls() {
		calls += now - before[method]
	}
	fmt.Printf("BENCH operator.steady.calls_per_interval.n%d.h%d %.2f calls\n", n, h, float64(calls)/float64(lists))
	writes := 0
	for name, version := range r.versions() {
		if versions[name] != version {
			writes++
		}
	}
	fmt.Printf("BENCH operator.steady.proxies_written.n%d.h%d %d proxies\n", n, h, writes)
	if n == 1000 && h > 1 {
		fmt.Printf("BENCH operator.memory_per_proxy.kib %.1f KiB\n", float64(heap()-empty)/float64(n)/1024)
	}
	r.stop()
}

// versions are those of the rig's Proxies.
func (r *rig) versions() map[string]string {
	r.t.Helper()
	var list v1alpha1.ProxyList
	if err := r.client.List(r.t.Context(), &list, client.InNamespace(r.ns)); err != nil {
		r.t.Fatal(err)
	}
	all := map[string]string{}
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].ResourceVersion
	}
	return all
}

// heap is the live heap in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
