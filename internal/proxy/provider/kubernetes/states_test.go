package kubernetes_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
	"fleetdesk/internal/testkit/kubelet"
)

// What goes wrong with a Pod is a state with cause and remedy, by Get and by the
// list alike.
func TestPodFaults(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		change func(*provider.Spec)
		// harm is done to a Pod that runs, or, with early, before it is made.
		early bool
		harm  func(t *testing.T, w *world, name string)
		mend  func(t *testing.T, w *world, name string)
		want  provider.State
		says  []string
	}{
		"unschedulable": {
			reason: "a selector that no node has is the commonest mistake", change: func(s *provider.Spec) { s.NodeSelector = map[string]string{"disk": "none"} },
			early: true, want: provider.Provisioning, says: []string{"no node takes it", "placement.nodeSelector"},
		},
		"image missing": {
			reason: "a typo in the image", change: func(s *provider.Spec) { s.Image = "registry.example.com/missing:1" },
			early: true, want: provider.Impaired, says: []string{"registry.example.com/missing:1", "ImagePullBackOff", "imagePullSecrets"},
		},
		"not started": {
			reason: "the node takes its time", early: true, harm: func(_ *testing.T, w *world, _ string) { w.nodes.Hold() },
			mend: func(_ *testing.T, w *world, _ string) { w.nodes.Release() },
			want: provider.Provisioning, says: []string{"gets the image"},
		},
		"crash loop": {
			reason: "a proxy that ends each time", harm: func(t *testing.T, w *world, name string) { w.nodes.Crash(t, name) },
			mend: func(_ *testing.T, w *world, name string) { w.nodes.Recover(name) },
			want: provider.Impaired, says: []string{"CrashLoopBackOff", "exit code 1", "kubectl logs --previous"},
		},
		"evicted": {
			reason: "its node was short of memory", harm: func(t *testing.T, w *world, name string) { w.nodes.Evict(t, name) },
			mend: func(*testing.T, *world, string) {},
			want: provider.Stopped, says: []string{"Evicted", "low on resource", "made again"},
		},
		"node away": {
			reason: "the probe through it decides, not the node's word", harm: func(t *testing.T, w *world, _ string) { w.nodes.NodeDown(t, "a") },
			mend: func(t *testing.T, w *world, _ string) { w.nodes.NodeUp(t, "a") },
			want: provider.Running, says: []string{"not ready", "node is away"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, kubelet.Node{Name: "a"})
			p := w.open(t)
			spec := specOf(w, "fault")
			if tc.change != nil {
				tc.change(&spec)
			}
			pod := nameOf(spec.Owner)
			if tc.early {
				if tc.harm != nil {
					tc.harm(t, w, pod)
				}
				t.Cleanup(func() { gone(t, p, spec.Owner) })
				if _, err := p.Create(t.Context(), spec); err != nil {
					t.Fatal(err)
				}
			} else {
				running(t, p, spec)
				tc.harm(t, w, pod)
			}
			var in provider.Instance
			await(t, "the state "+string(tc.want)+" ("+tc.reason+")", func() bool {
				var err error
				in, err = p.Get(t.Context(), provider.Ref{Owner: spec.Owner})
				if err != nil {
					t.Fatal(err)
				}
				for _, says := range tc.says {
					if !strings.Contains(in.Message, says) {
						return false
					}
				}
				return in.State == tc.want
			})
			rows, err := p.ListByTag(t.Context(), installation)
			if err != nil || len(rows) != 1 || rows[0].Err != nil || len(rows[0].Instances) != 1 || rows[0].Instances[0] != in {
				t.Errorf("the list shows %+v, %v; Get said %+v", rows, err, in)
			}
			if tc.mend != nil {
				tc.mend(t, w, pod)
				until(t, p, spec, provider.Running)
				await(t, "a process", func() bool { return len(w.nodes.Processes(pod)) == 1 })
			}
		})
	}
}

// A node that went keeps its Pod from ending: the Proxy is told why, and goes
// when the node comes back.
func TestDeleteOnANodeThatIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, kubelet.Node{Name: "a"})
	p := w.open(t)
	spec := specOf(w, "away")
	running(t, p, spec)
	w.nodes.NodeDown(t, "a")
	ref := provider.Ref{Owner: spec.Owner}
	for range 2 {
		if st, err := p.Delete(t.Context(), ref); err != nil || st != provider.Deleting {
			t.Fatalf("Delete = %s, %v", st, err)
		}
	}
	in, err := p.Get(t.Context(), ref)
	if err != nil || in.State != provider.Deleting {
		t.Errorf("Get = %+v, %v", in, err)
	}
	var ahead atomic.Int64
	late, err := kubernetes.New(kubernetes.Options{Name: "away", Section: w.section, Secret: w.secrets.get, Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	ahead.Store(int64(time.Hour))
	if st, err := late.Delete(t.Context(), ref); err != nil || st != provider.Deleting {
		t.Errorf("Delete by a clock that is an hour ahead = %s, %v; want Deleting: it was only just seen", st, err)
	}
	ahead.Store(int64(2 * time.Hour))
	if st, err := late.Delete(t.Context(), ref); fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "delete the Node object or the Pod by force") {
		t.Errorf("Delete an hour later = %s, %v; want to be told why", st, err)
	}
	w.nodes.NodeUp(t, "a")
	gone(t, p, spec.Owner)
}

// Each kind of Service has its own address; a load balancer's is waited for.
func TestServices(t *testing.T) {
	t.Parallel()
	for kind, address := range map[string]string{"NodePort": "127.0.0.1", "LoadBalancer": "203.0.113.9"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(s *kubernetes.Section) {
				s.Service = &kubernetes.Service{Type: kind, Annotations: map[string]string{"lb.example.com/kind": "internal"}}
			})
			p := w.open(t)
			spec := specOf(w, "service")
			t.Cleanup(func() { gone(t, p, spec.Owner) })
			if kind == "LoadBalancer" {
				await(t, "what is waited for", func() bool {
					in, err := p.Create(t.Context(), spec)
					return err == nil && in.State == provider.Provisioning && strings.Contains(in.Message, "no address from the cluster's load balancer yet")
				})
				w.balance(t, nameOf(spec.Owner), address)
			}
			in := until(t, p, spec, provider.Running)
			svc := w.service(t, nameOf(spec.Owner))
			port := int(svc.Spec.Ports[0].Port)
			if kind == "NodePort" {
				port = int(svc.Spec.Ports[0].NodePort)
			}
			if in.Address != address || in.Port != port || svc.Annotations["lb.example.com/kind"] != "internal" {
				t.Errorf("reached at %s port %d; want %s port %d; annotations %v", in.Address, in.Port, address, port, svc.Annotations)
			}
		})
	}
}
