package proxy_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

// shown are the facts in a Proxy's status, as text.
func shown(px *v1alpha1.Proxy) string {
	leaks, share := "?", "?"
	if l := px.Status.Leaks; l != nil {
		leaks = fmt.Sprint(*l)
	}
	if p := px.Status.ChecksPassedPercent; p != nil {
		share = fmt.Sprint(*p)
	}
	return fmt.Sprintf("exit %s, leaks %s, %d ms, %s%%", px.Status.ExitIP, leaks, px.Status.LatencyMilliseconds, share)
}

func (r *rig) shows(name, want string) {
	r.t.Helper()
	r.until(name+" showing "+want, func() string {
		if got := shown(r.get(name)); got != want {
			return got
		}
		return ""
	})
}

func (r *rig) within(f func()) { r.mu.Lock(); defer r.mu.Unlock(); f() }

// What probes find out is in the status, stands over a start of the operator,
// and goes with the machine that it was of.
func TestExitFactsAreInTheStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	leaks := probe.LeaksOf([]string{"Via", "X-Forwarded-For"})
	r.found = func(probe.Target) probe.Result {
		return probe.Result{OK: true, Reason: probe.ReasonOK, Latency: 300 * time.Millisecond, Leaks: leaks, ExitIP: netip.MustParseAddr("203.0.113.7")}
	}
	r.start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	const first = "exit 203.0.113.7, leaks [Via X-Forwarded-For], 500 ms, 100%"
	if got := shown(r.get("a")); got != first {
		t.Errorf("with the condition Ready comes what is known: %s, want %s", got, first)
	}

	r.stop()
	px := r.get("a")
	px.Status.ChecksPassedPercent = new(int32(75)) // as an operator would have left it after a bad hour
	if err := r.client.Status().Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	const before = "exit 203.0.113.7, leaks [Via X-Forwarded-For], 500 ms, 75%"
	old := r.get("a").ResourceVersion
	probes, other := 0, false
	r.within(func() {
		r.found = func(probe.Target) probe.Result {
			res := probe.Result{OK: true, Reason: probe.ReasonOK, Latency: 300 * time.Millisecond, Leaks: leaks, ExitIP: netip.MustParseAddr("203.0.113.7")}
			if probes++; probes <= 2 || other {
				res.Latency, res.Leaks = 10*time.Millisecond, ""
			}
			if probes == 1 {
				res.ExitIP = netip.MustParseAddr("203.0.113.8")
			}
			return res
		}
	})
	r.start()
	r.until("some probes by the new operator", func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if probes < 4 {
			return fmt.Sprint(probes)
		}
		return ""
	})
	if px := r.get("a"); shown(px) != before || px.ResourceVersion != old {
		t.Errorf("a start of the operator is no news, nor are two probes: %s", shown(px))
	}
	r.within(func() { other = true })
	r.shows("a", "exit 203.0.113.7, leaks ?, 125 ms, 75%")
	r.within(func() { other = false })
	r.shows("a", before)

	// Stopped and started again at the same address: what was known goes with
	// what ran before, before anything is known of what runs now.
	r.within(func() {
		other = false
		r.found = func(probe.Target) probe.Result {
			return probe.Result{Reason: probe.Timeout, Err: fault.New(fault.Timeout, "it does not answer yet")}
		}
	})
	r.fake.Stop(r.machines()[0].ID)
	r.until("what was known being gone", func() string {
		if px := r.get("a"); px.Status.Leaks != nil || px.Status.LatencyMilliseconds != 0 {
			return shown(px)
		}
		return ""
	})
}

// moving is a provider whose machines get another address.
type moving struct {
	*fake.Provider
	moved atomic.Bool
}

func (m *moving) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	lists, err := m.Provider.ListByTag(ctx, installation)
	for _, l := range lists {
		for i := range l.Instances {
			if m.moved.Load() {
				l.Instances[i].Address = "198.51.100.6"
			}
		}
	}
	return lists, err
}

// At another address it is another thing to check: nothing of it is known.
func TestFactsGoWithTheAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	p := &moving{Provider: r.fake}
	r.providers.of["fake"] = p
	r.found = func(target probe.Target) probe.Result {
		if target.Address == "198.51.100.6" {
			return probe.Result{Reason: probe.Timeout, Err: fault.New(fault.Timeout, "it does not answer yet")}
		}
		return probe.Result{OK: true, Reason: probe.ReasonOK, Latency: 300 * time.Millisecond, Leaks: probe.NoLeaks, ExitIP: netip.MustParseAddr("203.0.113.7")}
	}
	r.start()
	r.create(r.proxy("a"))
	r.shows("a", "exit 203.0.113.7, leaks [], 500 ms, 100%")
	p.moved.Store(true)
	r.until("nothing being known", func() string {
		px := r.get("a")
		if px.Status.Address != "198.51.100.6" || px.Status.ExitIP != "" || px.Status.Leaks != nil || px.Status.LatencyMilliseconds != 0 {
			return px.Status.Address + ": " + shown(px)
		}
		return ""
	})
}

// To a site, Proxies that leave by one address are one: each says how many
// others there are, in its namespace alone.
func TestProxiesThatShareAnExitIPSaySo(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	r.recount = 5 * time.Second // longer than what happens is gathered
	exit := map[string]string{} // by the Proxy's port
	r.found = func(target probe.Target) probe.Result {
		res := probe.Result{OK: true, Reason: probe.ReasonOK, ExitIP: netip.MustParseAddr(target.Address)}
		if ip := exit[fmt.Sprint(target.Port)]; ip != "" {
			res.ExitIP = netip.MustParseAddr(ip)
		}
		return res
	}
	r.start()
	set := func(port int32, ip string) { r.within(func() { exit[fmt.Sprint(port)] = ip }) }
	add := func(name string, port int32, ip string) {
		set(port, ip)
		r.create(r.proxy(name, func(px *v1alpha1.Proxy) { px.Spec.Port = port }))
	}
	want := func(reason string, want map[string]int32) {
		t.Helper()
		r.until(reason, func() string {
			var list v1alpha1.ProxyList
			if err := r.client.List(t.Context(), &list, client.InNamespace(r.ns)); err != nil {
				return err.Error()
			}
			got := map[string]int32{}
			for _, px := range list.Items {
				got[px.Name] = px.Status.ExitIPShared
				if px.Status.ExitIP == "" {
					got[px.Name] = -1
				}
			}
			return cmp.Diff(want, got)
		})
	}
	add("a", 1001, "203.0.113.7")
	add("b", 1002, "203.0.113.7")
	add("c", 1003, "203.0.113.8")
	want("two share, one does not", map[string]int32{"a": 1, "b": 1, "c": 0})
	add("d", 1004, "203.0.113.7")
	want("those that were there hear of another one", map[string]int32{"a": 2, "b": 2, "c": 0, "d": 2})
	set(1001, "203.0.113.8")
	want("one leaves by another address: both groups hear of it", map[string]int32{"a": 1, "b": 1, "c": 1, "d": 1})
	r.delete("d")
	want("one is gone", map[string]int32{"a": 1, "b": 0, "c": 1})

	// The same address in another namespace is another owner's business.
	other := cluster.Namespace(t)
	px := r.proxy("e")
	px.Namespace = other
	r.create(px)
	px.Status.ExitIP = "203.0.113.8"
	if err := r.client.Status().Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	set(1002, "203.0.113.8")
	want("of this namespace", map[string]int32{"a": 2, "b": 2, "c": 2})
}

// Times that spread, and a failure now and then, are no news: a steady fleet
// writes nothing.
func TestASteadyFleetWritesNothing(t *testing.T) {
	t.Parallel()
	const n, rounds = 8, 10
	r := newRig(t, fake.Options{})
	seen := map[string]int{}
	r.found = func(target probe.Target) probe.Result {
		seen[target.Address]++
		k := seen[target.Address]
		if k == 5 {
			return probe.Result{Reason: probe.Timeout, Err: fault.New(fault.Timeout, "too late, once")}
		}
		// About the border of two steps.
		d := 250*time.Millisecond + time.Duration(k%5-2)*10*time.Millisecond
		return probe.Result{OK: true, Reason: probe.ReasonOK, Latency: d, Leaks: probe.NoLeaks, ExitIP: netip.MustParseAddr(target.Address)}
	}
	r.start()
	for i := range n {
		r.create(r.proxy(fmt.Sprint("p", i), func(px *v1alpha1.Proxy) { px.Spec.HealthCheck.FailureThreshold = 3 }))
	}
	probed := func(least int) {
		r.until(fmt.Sprintf("each being probed %d times", least), func() string {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(seen) < n {
				return fmt.Sprint(seen)
			}
			for _, k := range seen {
				if k < least {
					return fmt.Sprint(seen)
				}
			}
			return ""
		})
	}
	probed(1)
	versions := map[string]string{}
	for i := range n {
		name := fmt.Sprint("p", i)
		r.reaches(name, v1alpha1.PhaseReady, v1alpha1.ReasonReady)
		r.shows(name, shown(r.get(name)))
	}
	probed(2) // what the first one found is written by now
	r.until("the status being written", func() string {
		for i := range n {
			px := r.get(fmt.Sprint("p", i))
			if px.Status.Leaks == nil || px.Status.ExitIP == "" {
				return shown(px)
			}
			versions[px.Name] = px.ResourceVersion
		}
		return ""
	})
	probed(2 + rounds)
	for name, version := range versions {
		if px := r.get(name); px.ResourceVersion != version {
			t.Errorf("%s was written: %s", name, shown(px))
		}
	}
}
