package proxy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/testkit/kube"
)

// One Proxy whose exit IP goes to and fro between its own and a shared one does
// not write all others each time: they are counted anew at most once a minute.
func TestOneThatFlapsDoesNotWriteItsGroup(t *testing.T) {
	t.Parallel()
	const n, pause = 4, time.Minute
	r := newRig(t, fake.Options{})
	own, probes := false, 0
	r.found = func(target probe.Target) probe.Result {
		res := probe.Result{OK: true, Reason: probe.ReasonOK, ExitIP: netip.MustParseAddr("203.0.113.7")}
		if target.Port == 2000 {
			if probes++; own {
				res.ExitIP = netip.MustParseAddr("203.0.113.99")
			}
		}
		return res
	}
	r.start()
	for i := range n {
		r.create(r.proxy(fmt.Sprint("p", i)))
	}
	r.until("each of them sharing with the others", func() string {
		for i := range n {
			if px := r.get(fmt.Sprint("p", i)); px.Status.ExitIPShared != n-1 {
				return fmt.Sprintf("%s shares with %d", px.Name, px.Status.ExitIPShared)
			}
		}
		return ""
	})
	r.create(r.proxy("flaps", func(px *v1alpha1.Proxy) { px.Spec.Port = 2000 }))
	r.reaches("flaps", v1alpha1.PhaseReady, v1alpha1.ReasonReady)

	// Watched from here on, so that no write is missed.
	cfg := cluster.Config(t)
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: kube.Scheme(t, v1alpha1.AddToScheme)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(t.Context(), &v1alpha1.ProxyList{}, client.InNamespace(r.ns))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	began, shown, changes := time.Now(), map[string]int32{}, map[string]int{}
	note := func() {
		for {
			select {
			case e := <-w.ResultChan():
				px, ok := e.Object.(*v1alpha1.Proxy)
				if !ok {
					t.Fatalf("the watch ended: %+v", e)
				}
				if was, known := shown[px.Name]; known && was != px.Status.ExitIPShared {
					changes[px.Name]++
				}
				shown[px.Name] = px.Status.ExitIPShared
			default:
				return
			}
		}
	}
	const turns = 6
	for i := range turns {
		var from int
		r.within(func() { own, from = i%2 == 0, probes })
		// Long enough for both groups to hear of it: two probes, and what is
		// gathered.
		r.until("its probes", func() string {
			note()
			r.mu.Lock()
			defer r.mu.Unlock()
			if probes < from+6 {
				return fmt.Sprint(probes - from)
			}
			return ""
		})
	}
	// One count more than whole minutes, and one whose writes were on their way.
	counts := 2 + int(time.Since(began)/pause)
	note()
	for i := range n {
		if name := fmt.Sprint("p", i); changes[name] > counts {
			t.Errorf("%s was written %d times for another that changed its exit IP %d times; want at most %d in %s", name, changes[name], turns, counts, time.Since(began))
		}
	}
}
