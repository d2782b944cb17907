package proxyset_test

import (
	"fmt"
	"testing"
	"time"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/testkit/kube"
)

// The drill: 200 Proxies of one age reach their age limit at the same moment.
// While they are replaced the controller is killed, the provider goes away, the
// template changes and the set is scaled; at each event of the watch stream
// there are as many Ready as the bounds say, and no more in all.
func TestRotationDrill(t *testing.T) {
	t.Parallel()
	const replicas, unavailable, surge = 200, 8, 12
	r := newRig(t)
	op := r.operator()
	m := r.machines()
	check := r.check("s", 0, replicas+surge)
	r.create(r.set("s", replicas, within(fmt.Sprint(unavailable), fmt.Sprint(surge)), func(s *v1alpha1.ProxySet) {
		s.Spec.Rotation = &v1alpha1.Rotation{MaxAge: "10m", Jitter: new(int32(0))}
	}))
	r.shows("s", v1alpha1.ReasonSettled, "", replicas, replicas, replicas, 0, 0)
	check.bounds(replicas-unavailable, replicas+surge)
	first := r.proxies()
	var youngest time.Time
	for _, px := range first {
		if at := px.CreationTimestamp.Time; at.After(youngest) {
			youngest = at
		}
	}
	// Times of creation have whole seconds, and those to come must be younger.
	kube.Until(t, "the second to pass", func() string {
		if time.Now().After(youngest.Add(time.Second)) {
			return ""
		}
		return "not yet"
	})
	kube.Until(t, "no event being under way", func() string {
		if _, all, _, _, made, _ := check.seen(); all != replicas || made != replicas {
			return fmt.Sprintf("%d there, %d made", all, made)
		}
		return ""
	})
	gone := func(n int) {
		t.Helper()
		kube.Until(t, fmt.Sprintf("%d being replaced", n), func() string {
			if _, _, _, _, _, gone := check.seen(); gone < n {
				return fmt.Sprintf("%d are", gone)
			}
			return ""
		})
	}

	r.setClock(youngest.Add(10 * time.Minute)) // it stands still there
	r.wake(op, "s")
	gone(40)
	op.kill()
	op = r.operator()
	gone(80)

	// The provider goes away: what comes new does not work, and replacing stops.
	m.set(func() { m.away = true })
	r.shows("s", v1alpha1.ReasonHeldBack, "nothing more is replaced until Proxy")
	_, _, _, _, made, wasGone := check.seen()
	op.kill()
	op = r.operator()
	r.wake(op, "s")
	r.shows("s", v1alpha1.ReasonHeldBack, "nothing more is replaced until Proxy")
	if _, _, _, _, now, nowGone := check.seen(); now != made || nowGone != wasGone {
		t.Errorf("while the provider is away, %d became %d made, and %d became %d gone", made, now, wasGone, nowGone)
	}
	m.set(func() { m.away = false })
	gone(120)

	// Fewer, and another template, while the old ones are still being replaced.
	check.bounds(180-unavailable, replicas+surge)
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(180)) })
	gone(160)
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Template.Spec.Port = 8080 })
	gone(200)
	r.shows("s", v1alpha1.ReasonSettled, "", 180, 180, 180, 0, 0)
	_, _, least, most, _, _ := check.seen()
	t.Logf("at 180: at least %d Ready (bound %d), at most %d in all", least, 180-unavailable, most)

	// More again: nothing is deleted for that.
	check.bounds(180-unavailable, replicas+surge)
	_, _, _, _, _, wasGone = check.seen()
	r.change("s", func(s *v1alpha1.ProxySet) { s.Spec.Replicas = new(int32(replicas)) })
	r.shows("s", v1alpha1.ReasonSettled, "", replicas, replicas, replicas, 0, 0)
	if _, _, _, _, _, nowGone := check.seen(); nowGone != wasGone {
		t.Errorf("a scale-up deleted %d", nowGone-wasGone)
	}
	check.end()
	for name, px := range r.proxies() {
		if first[name] != nil || px.Spec.Port != 8080 {
			t.Errorf("%s was not replaced", name)
		}
	}
	ready, all, _, _, made, _ := check.seen()
	t.Logf("%d events: %d made, %d gone; %d Ready of %d", check.events, made, wasGone, ready, all)
}
