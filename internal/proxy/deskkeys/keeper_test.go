package deskkeys_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/proxy/deskkeys"
)

// in runs a test in a bubble, where waiting takes no time.
func in(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func TestARowSaysWhatItsProxySays(t *testing.T) {
	long := strings.Repeat("ü", 400)
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.Proxy)
		unfit  string
	}{
		"ready":        {"it works", func(*v1alpha1.Proxy) {}, ""},
		"unhealthy":    {"takers must not get it, and its holder reads why", unhealthy("connection refused"), "Unhealthy (ProbeFailed): connection refused"},
		"fresh":        {"nothing is known of it yet", func(px *v1alpha1.Proxy) { px.Status = v1alpha1.ProxyStatus{} }, "the operator has not looked at it yet"},
		"no address":   {"nobody could reach it", func(px *v1alpha1.Proxy) { px.Status.Address = "" }, "it has no address"},
		"being erased": {"its machine goes", func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.Finalizer} }, "draining: the Proxy is being deleted"},
		"two lines":    {"a text is one line", unhealthy("a\nb\tc\x00d\xff"), "Unhealthy (ProbeFailed): a b c d?"},
		"long":         {"a text is bounded, between characters", unhealthy(long), "Unhealthy (ProbeFailed): üüüü"},
		"unreadable": {"what its provider cannot say does not count against a proxy that works", func(px *v1alpha1.Proxy) {
			px.Status.Conditions = append(px.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionProvisioned, Status: "Unknown", Reason: "Unavailable"})
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				r := newRig(t, proxy("ns", "a", tc.change))
				if name == "being erased" {
					if err := r.objects.Delete(t.Context(), proxy("ns", "a")); err != nil {
						t.Fatal(err)
					}
				}
				r.run()
				defer r.stop()
				got := r.desk.key(t, "ns.a").Unfit
				if name == "long" {
					if !strings.HasPrefix(got, tc.unfit) || len(got) > 256 || !utf8.ValidString(got) {
						t.Errorf("%s: %q", tc.reason, got)
					}
				} else if got != tc.unfit {
					t.Errorf("%s: unfit %q, want %q", tc.reason, got, tc.unfit)
				}
			})
		})
	}
}

func TestAttributesAreWhatTakersMayAskFor(t *testing.T) {
	in(t, func(t *testing.T) {
		many := make([]string, 40)
		for i := range many {
			many[i] = fmt.Sprintf("l%02d=x", i)
		}
		r := newRig(t,
			proxy("ns", "a", labelled("tier=home", "example.com/site=eu"), func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Zone: "z1"} }),
			proxy("ns", "bare", func(px *v1alpha1.Proxy) { px.Status = v1alpha1.ProxyStatus{} }),
			proxy("ns", "many", labelled(many...)))
		r.run()
		defer r.stop()
		want := map[string]string{
			"address": "192.0.2.10", "port": "3128", "protocol": "http", "provider": "local", "host": "h1", "zone": "z1", "region": "z1",
			"exitIP": "203.0.113.7", "label:tier": "home", "label:example.com/site": "eu",
		}
		k := r.desk.key(t, "ns.a")
		if diff := cmp.Diff(want, k.Attributes); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
		if k.UID != "uid-of-a" || k.ExitIP != "203.0.113.7" || !slices.Equal(k.Pools, []string{"ns.default"}) || !k.Managed {
			t.Errorf("row: %+v", k)
		}
		if diff := cmp.Diff(map[string]string{"protocol": "http", "provider": "local"}, r.desk.key(t, "ns.bare").Attributes); diff != "" {
			t.Errorf("what is not known is absent (-want +got):\n%s", diff)
		}
		if a := r.desk.key(t, "ns.many").Attributes; len(a) != 32+6 || a["label:l31"] != "x" || a["label:l32"] != "" {
			t.Errorf("labels are not bounded: %v", a)
		}
	})
}

func TestChangesAloneAreWritten(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a"), proxy("ns", "b"))
		r.run()
		defer r.stop()
		steps := []struct {
			reason string
			do     func()
			want   []string
		}{
			{"the start makes what is missing, pools first", func() {}, []string{"pool ns.default", "put ns.a", "put ns.b"}},
			{"nothing changed", func() { r.tell(proxy("ns", "a")) }, nil},
			{"one is unhealthy", func() { r.put(proxy("ns", "a", unhealthy("x"))) }, []string{"put ns.a"}},
			{"and well again", func() { r.put(proxy("ns", "a")) }, []string{"put ns.a"}},
			{"a new one", func() { r.put(proxy("ns", "c")) }, []string{"put ns.c"}},
			{"one is gone", func() { r.drop(proxy("ns", "b")) }, []string{"drop ns.b"}},
			{"told twice of it", func() { r.tell(proxy("ns", "b")) }, nil},
			{"the comparison finds nothing to do", func() { time.Sleep(11 * time.Minute); synctest.Wait() }, nil},
			{"the last ones of the namespace go, and its pool behind them", func() { r.drop(proxy("ns", "a")); r.drop(proxy("ns", "c")) }, []string{"drop ns.a", "drop ns.c", "drop pool ns.default"}},
			{"a namespace without anything", func() { r.tell(pool("other", "x")) }, nil},
			{"a pool alone keeps default there", func() { r.put(pool("ns", "eu")) }, []string{"pool ns.default", "pool ns.eu"}},
		}
		for _, s := range steps {
			s.do()
			got := r.desk.done()
			if slices.Sort(got); !cmp.Equal(sorted(s.want), got) {
				t.Errorf("%s: wrote %v, want %v", s.reason, got, s.want)
			}
		}
		if n := r.metric("proxy_operator_desk_row_comparisons_total"); n != 2 {
			t.Errorf("%v comparisons", n)
		}
	})
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

func TestPoolsAreViews(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a", labelled("tier=home")), proxy("ns", "b", labelled("tier=dc")), proxy("other", "c", labelled("tier=home")), pool("ns", "home", selects("tier=home")))
		r.run()
		defer r.stop()
		steps := []struct {
			reason string
			do     func()
			want   map[string][]string
		}{
			{"default has all, a selector some, of its own namespace", func() {}, map[string][]string{
				"ns.default": {"ns.a", "ns.b"}, "ns.home": {"ns.a"}, "other.default": {"other.c"},
			}},
			{"without a selector all", func() { r.put(pool("ns", "all")) }, map[string][]string{
				"ns.default": {"ns.a", "ns.b"}, "ns.all": {"ns.a", "ns.b"}, "ns.home": {"ns.a"}, "other.default": {"other.c"},
			}},
			{"another selector", func() { r.put(pool("ns", "home", selects("tier=dc"))) }, map[string][]string{
				"ns.default": {"ns.a", "ns.b"}, "ns.all": {"ns.a", "ns.b"}, "ns.home": {"ns.b"}, "other.default": {"other.c"},
			}},
			{"a selector that cannot be read", func() {
				r.put(pool("ns", "home", func(p *v1alpha1.ProxyPool) {
					p.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Near"}}}
				}))
			}, map[string][]string{
				"ns.default": {"ns.a", "ns.b"}, "ns.all": {"ns.a", "ns.b"}, "ns.home": {}, "other.default": {"other.c"},
			}},
			{"pools go", func() { r.drop(pool("ns", "all")); r.drop(pool("ns", "home")) }, map[string][]string{
				"ns.default": {"ns.a", "ns.b"}, "other.default": {"other.c"},
			}},
			{"default set by an object has all, whatever its selector says", func() { r.put(pool("ns", "default", selects("tier=home"))) }, map[string][]string{
				"ns.default": {"ns.a", "ns.b"}, "other.default": {"other.c"},
			}},
			{"a label changes", func() {
				r.put(pool("ns", "home", selects("tier=home")))
				r.put(proxy("ns", "b", labelled("tier=home")))
			}, map[string][]string{
				"ns.default": {"ns.a", "ns.b"}, "ns.home": {"ns.a", "ns.b"}, "other.default": {"other.c"},
			}},
		}
		for _, s := range steps {
			s.do()
			if diff := cmp.Diff(s.want, r.desk.members(t)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", s.reason, diff)
			}
		}
		if n := r.metric("proxy_operator_desk_row_writes_total", "refused"); n != 0 {
			t.Errorf("the desk refused %v ops: a pool goes after its keys", n)
		}
	})
}

func TestAPoolsTimes(t *testing.T) {
	implicit := lease.Pool{Kind: lease.Managed, NewShare: 10}.WithDefaults()
	for name, tc := range map[string]struct {
		reason string
		spec   v1alpha1.ProxyPoolSpec
		want   lease.Pool
	}{
		"nothing said": {"the desk's own defaults", v1alpha1.ProxyPoolSpec{}, implicit},
		"all said": {
			"as they read",
			v1alpha1.ProxyPoolSpec{
				LeaseTime: v1alpha1.LeaseTime{Default: "30s", Max: "2m"}, Cooldown: "5s",
				BanCooldown: v1alpha1.BanCooldown{Initial: "1m", Factor: 3, Max: "1h"}, Scope: v1alpha1.ScopeExitIP,
				InFlight: 3, NewShare: new(int32(25)), Targets: v1alpha1.TargetsBySite, Leaks: v1alpha1.LeaksRefuse,
			},
			lease.Pool{
				Kind: lease.Managed, TTL: 30 * time.Second, MaxTTL: 2 * time.Minute, Cooldown: 5 * time.Second,
				Ban: lease.Ban{Initial: time.Minute, Factor: 3, Max: time.Hour}, Scope: lease.ScopeExitIP,
				InFlight: 3, NewShare: 25, Sites: true,
			},
		},
		"none for new ones": {
			"0 is a share too",
			v1alpha1.ProxyPoolSpec{NewShare: new(int32(0)), Targets: v1alpha1.TargetsByHost},
			lease.Pool{Kind: lease.Managed, TTL: implicit.TTL, MaxTTL: implicit.MaxTTL, Ban: implicit.Ban, Scope: lease.ScopeKey},
		},
		"short max": {
			"the default follows it",
			v1alpha1.ProxyPoolSpec{LeaseTime: v1alpha1.LeaseTime{Max: "1m"}},
			lease.Pool{Kind: lease.Managed, TTL: time.Minute, MaxTTL: time.Minute, Ban: implicit.Ban, Scope: lease.ScopeKey, NewShare: 10},
		},
		"no bans": {
			"an initial rest of nothing switches them off",
			v1alpha1.ProxyPoolSpec{BanCooldown: v1alpha1.BanCooldown{Initial: "0s", Factor: 2, Max: "24h"}},
			lease.Pool{Kind: lease.Managed, TTL: implicit.TTL, MaxTTL: implicit.MaxTTL, Ban: lease.Ban{Factor: 2, Max: 24 * time.Hour}, Scope: lease.ScopeKey, NewShare: 10},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				r := newRig(t, pool("ns", "p", func(p *v1alpha1.ProxyPool) { p.Spec = tc.spec }))
				r.run()
				defer r.stop()
				got, err := r.desk.Pool(t.Context(), "ns.p")
				if err != nil {
					t.Fatal(err)
				}
				tc.want.Name = "ns.p"
				if diff := cmp.Diff(tc.want, got.Pool); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
			})
		})
	}
}

func TestTheStateOfAPool(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a"), proxy("ns", "b", unhealthy("x")), pool("ns", "p"))
		id := types.NamespacedName{Namespace: "ns", Name: "p"}
		r.run()
		defer r.stop()
		if got, want := r.keeper.Pool(id), (deskkeys.State{Generation: 1, Proxies: 2, Ready: 1, ExitIPs: 1, Stored: true}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		before := r.shown(id)
		r.put(proxy("ns", "b"))
		if got := r.keeper.Pool(id); got.Ready != 2 || r.shown(id) == before {
			t.Errorf("got %+v, told %d times", got, r.shown(id))
		}
		before = r.shown(id)
		r.put(proxy("ns", "b", func(px *v1alpha1.Proxy) { px.Status.Host = "h2" }))
		if r.shown(id) != before {
			t.Error("told of a change that it does not show")
		}
		r.put(pool("ns", "p", func(p *v1alpha1.ProxyPool) {
			p.Generation = 2
			p.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Near"}}}
		}))
		if got := r.keeper.Pool(id); got.Generation != 2 || got.Proxies != 0 || got.Ready != 0 || fault.CodeOf(got.Err) != deskkeys.CodeSelector {
			t.Errorf("an unreadable selector: %+v", got)
		}
	})
}

// A published list that has the name of a pool or a key keeps it; what is ours
// goes on beside it.
func TestANameThatAPublishedListHas(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a"), proxy("ns", "b"), pool("ns", "taken"))
		r.desk.must(t, lease.Publish{Pool: lease.Pool{Name: "ns.taken"}, Items: []string{"ns.b"}})
		r.run()
		defer r.stop()
		want := map[string][]string{"ns.default": {"ns.a"}, "ns.taken": {"ns.b"}}
		if diff := cmp.Diff(want, r.desk.members(t)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if k := r.desk.key(t, "ns.b"); k.Managed || k.UID != "" {
			t.Errorf("the published key was changed: %+v", k)
		}
		got := r.keeper.Pool(types.NamespacedName{Namespace: "ns", Name: "taken"})
		if fault.CodeOf(got.Err) != "fixed" || got.Stored {
			t.Errorf("state: %+v", got)
		}
		if h, err := r.keeper.Drain(t.Context(), types.NamespacedName{Namespace: "ns", Name: "b"}, "uid-of-b"); err != nil || h != (deskkeys.Holder{}) {
			t.Errorf("a Proxy that is no key of ours: %+v %v", h, err)
		}
		r.desk.done()
		synctest.Wait()
		if ops := r.desk.done(); len(ops) != 0 {
			t.Errorf("a refused row is tried again at once: %v", ops)
		}
		// The list goes away; the next comparison takes the name.
		r.desk.must(t, lease.Publish{Pool: lease.Pool{Name: "ns.taken"}})
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if got := r.desk.members(t)["ns.default"]; !slices.Equal(got, []string{"ns.a", "ns.b"}) {
			t.Errorf("default has %v", got)
		}
	})
}

// What a former leader left behind is put right at the start: rows of Proxies
// and pools that are gone, and of another Proxy of the same name.
func TestTheStartPutsRightWhatAFormerLeaderLeft(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a"), proxy("ns", "b"), proxy("gone", "c"), pool("ns", "p"), pool("gone", "q"))
		r.run()
		r.stop()
		for _, o := range []*v1alpha1.Proxy{proxy("ns", "b"), proxy("gone", "c"), proxy("ns", "a")} {
			if err := r.objects.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		for _, o := range []*v1alpha1.ProxyPool{pool("ns", "p"), pool("gone", "q")} {
			if err := r.objects.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.objects.Create(t.Context(), proxy("ns", "a", func(px *v1alpha1.Proxy) { px.UID = "another" })); err != nil {
			t.Fatal(err)
		}
		held := r.desk.take(t, "ns.default")
		r.renew()
		r.run()
		defer r.stop()
		if diff := cmp.Diff(map[string][]string{"ns.default": {"ns.a"}}, r.desk.members(t)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		k := r.desk.key(t, "ns.a")
		if k.UID != "another" || (held.Key.Name == "ns.a" && k.Lease.End != lease.Replaced) {
			t.Errorf("row: %+v, lease %+v", k, k.Lease)
		}
	})
}

func TestAFormerLeaderWritesNothing(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a"))
		r.run()
		old, ended := r.keeper, r.ended
		r.renew()
		r.run()
		defer r.stop()
		// The former one has not heard of it, and sees something new.
		r.store(proxy("ns", "a", unhealthy("as the former leader sees it")))
		old.Proxy(types.NamespacedName{Namespace: "ns", Name: "a"})
		err := <-ended
		if fault.CodeOf(err) != "epoch" || fault.Of(err) != fault.Conflict {
			t.Errorf("Run ended with %v", err)
		}
		if got := r.desk.key(t, "ns.a").Unfit; got != "" {
			t.Errorf("it wrote %q", got)
		}
		if _, err := old.Drain(t.Context(), types.NamespacedName{Namespace: "ns", Name: "a"}, ""); fault.Of(err) != fault.Unavailable {
			t.Errorf("Drain of a keeper that stopped: %v", err)
		}
		r.tell(proxy("ns", "a"))
		if got := r.desk.key(t, "ns.a").Unfit; got == "" {
			t.Error("the leader's own write is missing")
		}
	})
}

func TestAnOutageDelaysRowsAndNothingElse(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, proxy("ns", "a"), proxy("ns", "b"), pool("ns", "p"))
		r.desk.Outage(true)
		r.run()
		defer r.stop()
		id := types.NamespacedName{Namespace: "ns", Name: "p"}
		if got := r.keeper.Pool(id); fault.Of(got.Err) != fault.Unavailable || got.Stored {
			t.Errorf("state of a pool: %+v", got)
		}
		began := time.Now()
		for range 100 {
			r.tell(proxy("ns", "a"))
			if _, err := r.keeper.Drain(t.Context(), types.NamespacedName{Namespace: "ns", Name: "a"}, ""); fault.Of(err) != fault.Unavailable {
				t.Errorf("Drain: %v", err)
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("Drain waited for %s", waited)
		}
		if r.metric("proxy_operator_desk_rows_failing") != 1 || r.metric("proxy_operator_desk_rows_queued") == 0 {
			t.Error("the metrics do not tell")
		}
		tries := len(r.desk.transactions())
		time.Sleep(time.Hour)
		if n := len(r.desk.transactions()) - tries; n < 700 || n > 1500 {
			t.Errorf("%d tries in an hour", n)
		}
		r.desk.Outage(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := sortedKeys(r.desk.rows(t)); !slices.Equal(got, []string{"ns.a", "ns.b"}) {
			t.Errorf("rows: %v", got)
		}
		if got := r.keeper.Pool(id); got.Err != nil || !got.Stored || r.metric("proxy_operator_desk_rows_failing") != 0 {
			t.Errorf("state of a pool: %+v", got)
		}
		if n := r.metric("proxy_operator_desk_rows_queued"); n != 0 {
			t.Errorf("%v in the queue", n)
		}
	})
}

// An outage in the middle: what was being written is written again, whether it
// was done or not.
func TestALostAnswerIsAskedForAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(r *rig)
		want   map[string]string
	}{
		"put":  {"", func(r *rig) { r.put(proxy("ns", "a", unhealthy("x"))) }, map[string]string{"ns.a": "Unhealthy (ProbeFailed): x"}},
		"new":  {"", func(r *rig) { r.put(proxy("ns", "b")) }, map[string]string{"ns.a": "", "ns.b": ""}},
		"gone": {"", func(r *rig) { r.drop(proxy("ns", "a")) }, map[string]string{}},
		"pool": {"", func(r *rig) { r.put(pool("ns", "p")) }, map[string]string{"ns.a": ""}},
		"there and back": {"the row may say what the Proxy said for a moment", func(r *rig) {
			r.put(proxy("ns", "a", unhealthy("x")))
			r.put(proxy("ns", "a"))
		}, map[string]string{"ns.a": ""}},
		"made, went": {"a row that may be there, of a Proxy that is gone by now", func(r *rig) {
			r.put(proxy("ns", "b"))
			r.drop(proxy("ns", "b"))
		}, map[string]string{"ns.a": ""}},
	} {
		for how, fail := range map[string]func(*desk){
			"done":     func(d *desk) { d.LoseNext() },
			"not done": func(d *desk) { d.FailNext(fault.New(fault.Timeout, "no answer")) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				in(t, func(t *testing.T) {
					r := newRig(t, proxy("ns", "a"))
					r.run()
					defer r.stop()
					fail(r.desk)
					tc.change(r)
					if r.metric("proxy_operator_desk_rows_failing") != 1 {
						t.Fatal("nothing failed")
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					if diff := cmp.Diff(tc.want, r.desk.rows(t)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
					}
				})
			})
		}
	}
}

func TestManyChangesShareTransactions(t *testing.T) {
	in(t, func(t *testing.T) {
		const n = 1000
		r := newRig(t)
		for i := range n {
			if err := r.objects.Create(t.Context(), proxy("ns", fmt.Sprintf("p%04d", i))); err != nil {
				t.Fatal(err)
			}
		}
		r.run()
		defer r.stop()
		if got := len(r.desk.rows(t)); got != n {
			t.Fatalf("%d rows", got)
		}
		if got := len(r.desk.transactions()); got > 8 {
			t.Errorf("%d transactions for %d rows", got, n)
		}
		if most := slices.Max(r.desk.transactions()); most > 256 {
			t.Errorf("a transaction of %d ops", most)
		}
		r.desk.done()
		r.put(pool("ns", "p"))
		if got := len(r.desk.done()); got != n+1 {
			t.Errorf("%d ops for a new pool that has all", got)
		}
		r.drop(pool("ns", "p"))
		if got := len(r.desk.done()); got != n+1 {
			t.Errorf("%d ops for a pool that is gone", got)
		}
		if refused := r.metric("proxy_operator_desk_row_writes_total", "refused"); refused != 0 {
			t.Errorf("the desk refused %v ops: a pool goes after its last key", refused)
		}
	})
}

func TestDrain(t *testing.T) {
	id := types.NamespacedName{Namespace: "ns", Name: "a"}
	erase := func(r *rig) {
		r.t.Helper()
		if err := r.objects.Delete(r.t.Context(), proxy("ns", "a")); err != nil {
			r.t.Fatal(err)
		}
	}
	finalized := func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.Finalizer} }
	t.Run("nobody holds it", func(t *testing.T) {
		in(t, func(t *testing.T) {
			r := newRig(t, proxy("ns", "a", finalized))
			r.run()
			defer r.stop()
			erase(r) // the cache has it; nobody told the keeper yet
			h, err := r.keeper.Drain(t.Context(), id, "uid-of-a")
			if err != nil || h != (deskkeys.Holder{}) {
				t.Errorf("%+v %v", h, err)
			}
			if got := r.desk.key(t, "ns.a").Unfit; !strings.HasPrefix(got, "draining") {
				t.Errorf("Drain answered and the row says %q: it can be taken", got)
			}
		})
	})
	t.Run("told of the end of the lease", func(t *testing.T) {
		for how, end := range map[string]func(r *rig, l lease.Result){
			"released": func(r *rig, l lease.Result) {
				r.desk.must(r.t, lease.Release{Proof: lease.Proof{ID: l.Key.ID(), Secret: lease.HashOf("s"), Account: "crawler"}})
			},
			"forced":  func(r *rig, _ lease.Result) { r.desk.must(r.t, lease.Force{Key: "ns.a", By: "admin"}) },
			"expired": func(*rig, lease.Result) { time.Sleep(time.Minute) },
		} {
			t.Run(how, func(t *testing.T) {
				in(t, func(t *testing.T) {
					r := newRig(t, proxy("ns", "a", finalized))
					r.run()
					defer r.stop()
					l := r.desk.take(t, "ns.default")
					erase(r)
					h, err := r.keeper.Drain(t.Context(), id, "uid-of-a")
					want := deskkeys.Holder{Lease: l.Key.ID().String(), Pool: "ns.default", Account: "crawler", Name: "job 7", Until: l.Lease.Expires}
					if err != nil || h != want {
						t.Errorf("%+v %v, want %+v", h, err, want)
					}
					time.Sleep(20 * time.Second)
					if len(r.freed()) != 0 {
						t.Fatalf("told while it is held: %v", r.freed())
					}
					end(r, l)
					time.Sleep(6 * time.Second)
					synctest.Wait()
					if !slices.Equal(r.freed(), []string{"ns/a"}) {
						t.Errorf("told of %v", r.freed())
					}
					if h, err := r.keeper.Drain(t.Context(), id, "uid-of-a"); err != nil || h != (deskkeys.Holder{}) {
						t.Errorf("%+v %v", h, err)
					}
				})
			})
		}
	})
	t.Run("a release is told of at once", func(t *testing.T) {
		in(t, func(t *testing.T) {
			r := newRig(t, proxy("ns", "a", finalized))
			r.run()
			defer r.stop()
			r.desk.take(t, "ns.default")
			erase(r)
			if _, err := r.keeper.Drain(t.Context(), id, "uid-of-a"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			r.desk.must(t, lease.Force{Key: "ns.a", By: "admin"})
			time.Sleep(250 * time.Millisecond)
			synctest.Wait()
			if len(r.freed()) != 1 {
				t.Error("a quarter of a second later nobody was told")
			}
		})
	})
	t.Run("another Proxy's lease", func(t *testing.T) {
		in(t, func(t *testing.T) {
			r := newRig(t, proxy("ns", "a"))
			r.run()
			defer r.stop()
			r.desk.take(t, "ns.default")
			h, err := r.keeper.Drain(t.Context(), id, "of one that is gone")
			if err != nil || h != (deskkeys.Holder{}) || r.desk.key(t, "ns.a").Lease.End != "" {
				t.Errorf("%+v %v", h, err)
			}
		})
	})
	t.Run("bounded", func(t *testing.T) {
		in(t, func(t *testing.T) {
			r := newRig(t, proxy("ns", "a"))
			r.run()
			defer r.stop()
			r.desk.FailNext(fault.New(fault.Unavailable, "no answer"))
			r.put(proxy("ns", "a", unhealthy("x")))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := r.keeper.Drain(ctx, id, "uid-of-a"); err == nil {
				t.Error("no error while rows cannot be written")
			}
		})
	})
}

func TestDrainTimeoutIsTheLongestOfItsPools(t *testing.T) {
	drains := func(d v1alpha1.Duration) func(*v1alpha1.ProxyPool) {
		return func(p *v1alpha1.ProxyPool) { p.Spec.DrainTimeout = d }
	}
	for name, tc := range map[string]struct {
		reason string
		pools  []*v1alpha1.ProxyPool
		want   time.Duration
	}{
		"none":      {"the pool default is there without an object", nil, 10 * time.Minute},
		"longer":    {"", []*v1alpha1.ProxyPool{pool("ns", "p", drains("1h"))}, time.Hour},
		"shorter":   {"default is one of its pools", []*v1alpha1.ProxyPool{pool("ns", "p", drains("1s"))}, 10 * time.Minute},
		"default":   {"", []*v1alpha1.ProxyPool{pool("ns", "default", drains("5s")), pool("ns", "p", drains("7s"))}, 7 * time.Second},
		"none of":   {"a pool that does not select it has no say", []*v1alpha1.ProxyPool{pool("ns", "p", drains("1h"), selects("a=b"))}, 10 * time.Minute},
		"elsewhere": {"", []*v1alpha1.ProxyPool{pool("other", "p", drains("1h"))}, 10 * time.Minute},
		"no wait":   {"", []*v1alpha1.ProxyPool{pool("ns", "default", drains("0s"))}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, p := range tc.pools {
				if err := r.objects.Create(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			if got := r.keeper.DrainTimeout(t.Context(), proxy("ns", "a")); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// Another machine under the name of one that was banned is not banned, however
// the first one went.
func TestAProxyMadeAgainInheritsNoBan(t *testing.T) {
	for name, remake := range map[string]func(r *rig){
		"seen to go": func(r *rig) {
			r.drop(proxy("ns", "a"))
			r.put(proxy("ns", "a", func(px *v1alpha1.Proxy) { px.UID = "another" }))
		},
		"not seen to go": func(r *rig) {
			if err := r.objects.Delete(r.t.Context(), proxy("ns", "a")); err != nil {
				r.t.Fatal(err)
			}
			r.put(proxy("ns", "a", func(px *v1alpha1.Proxy) { px.UID = "another" }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				r := newRig(t, proxy("ns", "a"))
				r.run()
				defer r.stop()
				r.desk.must(t, lease.Report{Key: "ns.a", Pool: "ns.default", Target: "shop.example.com", Outcome: lease.Banned})
				if rests, err := r.desk.Cooldowns(t.Context(), "ns.a", "", 10); err != nil || len(rests) != 1 {
					t.Fatalf("rests: %v %v", rests, err)
				}
				remake(r)
				if k := r.desk.key(t, "ns.a"); k.UID != "another" {
					t.Fatalf("row: %+v", k)
				}
				if rests, err := r.desk.Cooldowns(t.Context(), "ns.a", "", 10); err != nil || len(rests) != 0 {
					t.Errorf("rests of the machine before: %+v %v", rests, err)
				}
			})
		})
	}
}
