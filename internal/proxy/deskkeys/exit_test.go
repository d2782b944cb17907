package deskkeys_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/proxy/deskkeys"
)

// leaking has a Proxy say which headers tell of it; none for a clean one.
func leaking(names ...string) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) { px.Status.Leaks = new(append([]string{}, names...)) }
}

func leavesBy(ip string) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) { px.Status.ExitIP = ip }
}

func refusesLeaks(p *v1alpha1.ProxyPool) { p.Spec.Leaks = v1alpha1.LeaksRefuse }

func TestRegionAndLeaksAreAttributes(t *testing.T) {
	zone := func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Zone: "eu-1a"} }
	for name, tc := range map[string]struct {
		reason string
		change []func(*v1alpha1.Proxy)
		region string
		leaks  string // "-" for none known
	}{
		"nothing known": {"what is not known is absent", nil, "-", "-"},
		"label":         {"as Kubernetes says it", []func(*v1alpha1.Proxy){labelled("topology.kubernetes.io/region=eu"), zone}, "eu", "-"},
		"zone":          {"better than nothing", []func(*v1alpha1.Proxy){zone}, "eu-1a", "-"},
		"clean":         {"selectors can ask for leaks=none", []func(*v1alpha1.Proxy){leaking()}, "-", "none"},
		"leaks":         {"", []func(*v1alpha1.Proxy){leaking("Via", "X-Forwarded-For")}, "-", "Via,X-Forwarded-For"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				r := newRig(t, proxy("ns", "a", tc.change...))
				r.run()
				defer r.stop()
				a := r.desk.key(t, "ns.a").Attributes
				get := func(name string) string {
					if v, ok := a[name]; ok {
						return v
					}
					return "-"
				}
				if get(deskkeys.AttrRegion) != tc.region || get(deskkeys.AttrLeaks) != tc.leaks {
					t.Errorf("%s: %v", tc.reason, a)
				}
			})
		})
	}
}

func TestTheWeightOfAProxy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		latency int32
		passed  int32 // -1 for unknown
		want    int
	}{
		"unknown":           {"what is not known does not count against it", 0, -1, 100},
		"quick":             {"half a second is what sites take themselves", 500, 100, 100},
		"a second":          {"", 1000, 100, 70},
		"two":               {"", 2000, 100, 50},
		"four":              {"", 4000, 100, 25},
		"slower":            {"", 8000, -1, 10},
		"some checks fail":  {"", 125, 90, 90},
		"slow and failing":  {"both count", 2000, 50, 25},
		"rounded down":      {"", 1000, 75, 52},
		"no check passes":   {"it is Unhealthy, or will be; a weight is never nothing", 125, 0, 1},
		"slow, hardly ever": {"", 8000, 25, 2},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				r := newRig(t, proxy("ns", "a", func(px *v1alpha1.Proxy) {
					px.Status.LatencyMilliseconds = tc.latency
					if tc.passed >= 0 {
						px.Status.ChecksPassedPercent = &tc.passed
					}
				}))
				r.run()
				defer r.stop()
				if got := r.desk.key(t, "ns.a").Weight; got != tc.want {
					t.Errorf("%s: weight %d, want %d", tc.reason, got, tc.want)
				}
			})
		})
	}
}

// A weight is written when it changes, and put right when the database has
// another one.
func TestAWeightIsComparedToo(t *testing.T) {
	in(t, func(t *testing.T) {
		slow := func(ms int32) *v1alpha1.Proxy {
			return proxy("ns", "a", func(px *v1alpha1.Proxy) { px.Status.LatencyMilliseconds = ms })
		}
		r := newRig(t, slow(125))
		r.run()
		r.desk.done()
		for _, s := range []struct {
			reason  string
			ms      int32
			written []string
			want    int
		}{
			{"another step with the same weight", 500, nil, 100},
			{"another weight", 2000, []string{"put ns.a"}, 50},
			{"and back", 125, []string{"put ns.a"}, 100},
			{"half again", 2000, []string{"put ns.a"}, 50},
		} {
			r.put(slow(s.ms))
			if got := r.desk.done(); !cmp.Equal(s.written, got) {
				t.Errorf("%s: wrote %v", s.reason, got)
			}
			if got := r.desk.key(t, "ns.a").Weight; got != s.want {
				t.Errorf("%s: weight %d", s.reason, got)
			}
		}
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if got := r.desk.done(); got != nil {
			t.Errorf("the comparison finds %v to do where nothing differs", got)
		}
		r.stop()
		// Somebody else's row, as a former version wrote it.
		k := r.desk.key(t, "ns.a")
		epoch := r.desk.must(t, lease.OpenEpoch{Owner: "former"}).Epoch
		r.desk.must(t, lease.PutKey{Epoch: epoch, Key: k.Name, UID: k.UID, Pools: k.Pools, Attributes: k.Attributes, ExitIP: k.ExitIP})
		r.renew()
		r.run()
		defer r.stop()
		if got := r.desk.key(t, "ns.a").Weight; got != 50 {
			t.Errorf("weight %d after the start of another leader, want 50", got)
		}
	})
}

// Rows of a version that knew no weights have none: that is the full one.
func TestNoWeightIsTheFullOne(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a"))
		r.run()
		r.stop()
		k := r.desk.key(t, "ns.a")
		epoch := r.desk.must(t, lease.OpenEpoch{Owner: "former"}).Epoch
		r.desk.must(t, lease.PutKey{Epoch: epoch, Key: k.Name, UID: k.UID, Pools: k.Pools, Attributes: k.Attributes, ExitIP: k.ExitIP})
		r.desk.done()
		r.renew()
		r.run()
		defer r.stop()
		if got := r.desk.done(); got != nil {
			t.Errorf("the start finds %v to do where nothing differs", got)
		}
	})
}

// A pool of more refused Proxies than are looked at together is dropped once.
func TestAPoolThatRefusesManyGoes(t *testing.T) {
	in(t, func(t *testing.T) {
		objects := []client.Object{pool("ns", "p", refusesLeaks)}
		for i := range 600 {
			objects = append(objects, proxy("ns", fmt.Sprint("p", i)))
		}
		r := newRig(t, objects...)
		id := types.NamespacedName{Namespace: "ns", Name: "p"}
		r.run()
		defer r.stop()
		if got := r.keeper.Pool(id); got.Refused != 600 || got.Proxies != 0 {
			t.Errorf("%+v", got)
		}
		r.desk.done()
		r.drop(pool("ns", "p", refusesLeaks))
		if got := r.desk.done(); !cmp.Equal([]string{"drop pool ns.p"}, got) {
			t.Errorf("did %v", got)
		}
		if got := r.keeper.Pool(id); got != (deskkeys.State{}) {
			t.Errorf("it is known still: %+v", got)
		}
	})
}

// A pool that refuses leaks has the Proxies of which an origin told that they
// have none; the others are counted, and come when that is so.
func TestAPoolThatRefusesLeaks(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t,
			proxy("ns", "clean", leaking()), proxy("ns", "leaky", leaking("Via")), proxy("ns", "mum"),
			proxy("ns", "elsewhere", labelled("tier=dc"), leaking("Via")),
			pool("ns", "p", refusesLeaks, func(p *v1alpha1.ProxyPool) { p.Spec.Selector = nil }))
		id := types.NamespacedName{Namespace: "ns", Name: "p"}
		r.run()
		defer r.stop()
		all := []string{"ns.clean", "ns.elsewhere", "ns.leaky", "ns.mum"}
		steps := []struct {
			reason  string
			do      func()
			members []string
			state   deskkeys.State
		}{
			{"a clean one alone", func() {}, []string{"ns.clean"}, deskkeys.State{Generation: 1, Proxies: 1, Ready: 1, ExitIPs: 1, Refused: 3, Stored: true}},
			{"an origin told", func() { r.put(proxy("ns", "mum", leaking())) }, []string{"ns.clean", "ns.mum"}, deskkeys.State{Generation: 1, Proxies: 2, Ready: 2, ExitIPs: 1, Refused: 2, Stored: true}},
			{"one begins to leak", func() { r.put(proxy("ns", "clean", leaking("Forwarded"))) }, []string{"ns.mum"}, deskkeys.State{Generation: 1, Proxies: 1, Ready: 1, ExitIPs: 1, Refused: 3, Stored: true}},
			{"by its labels it is none of the pool's", func() {
				r.put(pool("ns", "p", refusesLeaks, selects("tier=dc"), func(p *v1alpha1.ProxyPool) { p.Generation = 2 }))
			}, []string{}, deskkeys.State{Generation: 2, Refused: 1, Stored: true}},
			{"a refused one is deleted", func() { r.drop(proxy("ns", "elsewhere")) }, []string{}, deskkeys.State{Generation: 2, Stored: true}},
			{"leaks are allowed", func() { r.put(pool("ns", "p", func(p *v1alpha1.ProxyPool) { p.Generation = 3 })) }, []string{"ns.clean", "ns.leaky", "ns.mum"}, deskkeys.State{Generation: 3, Proxies: 3, Ready: 3, ExitIPs: 1, Stored: true}},
		}
		for i, s := range steps {
			before := r.shown(id)
			s.do()
			members := r.desk.members(t)
			if diff := cmp.Diff(s.members, members["ns.p"]); diff != "" {
				t.Errorf("%s: members (-want +got):\n%s", s.reason, diff)
			}
			if got := r.keeper.Pool(id); got != s.state {
				t.Errorf("%s: got %+v, want %+v", s.reason, got, s.state)
			}
			if i > 0 && r.shown(id) == before {
				t.Errorf("%s: nobody is told", s.reason)
			}
			if i < 4 && !cmp.Equal(all, members["ns.default"]) {
				t.Errorf("%s: the pool default refuses nothing: %v", s.reason, members["ns.default"])
			}
		}
		r.put(pool("ns", "p", refusesLeaks, func(p *v1alpha1.ProxyPool) { p.Generation = 4 }))
		r.drop(pool("ns", "p", refusesLeaks))
		if got := r.keeper.Pool(id); got != (deskkeys.State{}) {
			t.Errorf("a pool that is gone: %+v", got)
		}
		if _, there := r.desk.members(t)["ns.p"]; there {
			t.Error("it is at the desk still")
		}
	})
}

// How many addresses a pool leaves by is the number of those that work.
func TestTheExitIPsOfAPool(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a"), proxy("ns", "b"), pool("ns", "p"))
		id := types.NamespacedName{Namespace: "ns", Name: "p"}
		r.run()
		defer r.stop()
		for _, s := range []struct {
			reason string
			do     func()
			want   int
			told   bool
		}{
			{"both leave by one", func() {}, 1, false},
			{"by two", func() { r.put(proxy("ns", "b", leavesBy("203.0.113.8"))) }, 2, true},
			{"by two others", func() { r.put(proxy("ns", "b", leavesBy("203.0.113.9"))) }, 2, false},
			{"one is not known", func() { r.put(proxy("ns", "b", leavesBy(""))) }, 1, true},
			{"one does not work", func() { r.put(proxy("ns", "a", unhealthy("x"))) }, 0, true},
			{"both do", func() { r.put(proxy("ns", "a")); r.put(proxy("ns", "b", leavesBy("2001:db8::1"))) }, 2, true},
			{"one is gone", func() { r.drop(proxy("ns", "a")) }, 1, true},
		} {
			before := r.shown(id)
			s.do()
			if got := r.keeper.Pool(id).ExitIPs; got != s.want {
				t.Errorf("%s: %d, want %d", s.reason, got, s.want)
			}
			if told := r.shown(id) > before; told != s.told {
				t.Errorf("%s: told %v, want %v", s.reason, told, s.told)
			}
		}
	})
}
