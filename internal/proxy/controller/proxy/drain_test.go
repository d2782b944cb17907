package proxy_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/deskkeys"
	"fleetdesk/internal/proxy/provider/fake"
)

// fakeDesk leases each Proxy to the holder that it is given.
type fakeDesk struct {
	timeout time.Duration

	mu     sync.Mutex
	holder deskkeys.Holder
	err    error
	mute   bool // it does not answer before the caller gives up
	asked  int
	// before is called when it is asked.
	before func()
}

func (d *fakeDesk) Drain(ctx context.Context, _ types.NamespacedName, _ string) (deskkeys.Holder, error) {
	d.mu.Lock()
	d.asked++
	holder, err, mute, before := d.holder, d.err, d.mute, d.before
	d.mu.Unlock()
	if before != nil {
		before()
	}
	if mute {
		<-ctx.Done()
		return deskkeys.Holder{}, fault.New(fault.Timeout, "no answer in time")
	}
	return holder, err
}

func (d *fakeDesk) DrainTimeout(context.Context, *v1alpha1.Proxy) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.timeout
}

// times is how often it was asked.
func (d *fakeDesk) times() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

func (d *fakeDesk) set(f func(*fakeDesk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

func job7() deskkeys.Holder {
	return deskkeys.Holder{Lease: "ns.a~12", Pool: "ns.eu", Account: "crawler", Name: "job 7", Until: time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)}
}

// leased is a rig with a Ready Proxy "a" on that desk.
func leased(t *testing.T, d *fakeDesk) *rig {
	t.Helper()
	r := newRig(t, fake.Options{})
	r.desk = d
	r.start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	return r
}

func (r *rig) wake(name string) { r.reconciler.Wake(types.NamespacedName{Namespace: r.ns, Name: name}) }

func TestADeletionWaitsForTheLeaseAndSaysForWhom(t *testing.T) {
	t.Parallel()
	d := &fakeDesk{timeout: time.Hour, holder: job7()}
	r := leased(t, d)
	r.delete("a")
	px := r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonDraining)
	message := condition(px, v1alpha1.ConditionReady).Message
	for _, want := range []string{
		"account crawler", "job 7", "2031-02-03 04:05:06 UTC", "lease ns.a~12",
		px.DeletionTimestamp.Add(time.Hour).UTC().Format(time.DateTime),
		"/api/v1/pools/ns.eu/keys/" + r.ns + ".a/release", "skip-cleanup=true",
	} {
		if !strings.Contains(message, want) {
			t.Errorf("the condition does not say %q: %s", want, message)
		}
	}
	if calls := r.fake.Calls(); calls["Delete"] != 0 || len(r.machines()) != 1 {
		t.Errorf("the instance is being removed under its holder: %v", calls)
	}
	// Given back: the desk wakes the reconciler.
	d.set(func(d *fakeDesk) { d.holder = deskkeys.Holder{} })
	r.wake("a")
	r.gone("a")
	if m := r.machines(); len(m) != 0 {
		t.Errorf("left behind: %+v", m)
	}
	if notes, _ := r.events("a"); notes["DrainTimedOut"] != "" {
		t.Errorf("an event of a time-out: %v", notes)
	}
}

// A Proxy is taken out of use before anything is done to its instance.
func TestTheDeskIsAskedBeforeTheProvider(t *testing.T) {
	t.Parallel()
	d := &fakeDesk{timeout: time.Hour}
	r := leased(t, d)
	d.set(func(d *fakeDesk) {
		d.before = func() {
			if n := r.fake.Calls()["Delete"]; n != 0 {
				t.Errorf("%d Deletes came before", n)
			}
		}
	})
	r.delete("a")
	r.gone("a")
	if d.times() == 0 {
		t.Error("the desk was not asked")
	}
}

func TestADeletionWaitsNoLongerThanItsTimeToDrain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		desk   *fakeDesk
		says   string
	}{
		"held":      {"a holder that never gives back", &fakeDesk{holder: job7()}, "account crawler"},
		"no answer": {"a desk that refuses to talk", &fakeDesk{err: fault.New(fault.Unavailable, "connection refused")}, "unavailable"},
		"mute":      {"a desk that says nothing at all", &fakeDesk{mute: true}, "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.desk.timeout = time.Hour
			r := leased(t, tc.desk)
			r.delete("a")
			px := r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonDraining)
			if message := condition(px, v1alpha1.ConditionReady).Message; !strings.Contains(message, tc.says) || !strings.Contains(message, "skip-cleanup=true") {
				t.Errorf("%s: the condition does not say %q and the way out: %s", tc.reason, tc.says, message)
			}
			if len(r.machines()) != 1 {
				t.Error("the instance is gone before the time")
			}
			timeout := time.Since(px.DeletionTimestamp.Time) + 4*time.Second
			tc.desk.set(func(d *fakeDesk) { d.timeout = timeout })
			r.wake("a")
			r.gone("a")
			if waited := time.Since(px.DeletionTimestamp.Time); waited < timeout {
				t.Errorf("%s: gone after %s, want at least %s", tc.reason, waited, timeout)
			}
			if note := r.event("a", "DrainTimedOut"); !strings.Contains(note, tc.says) {
				t.Errorf("the event does not say %q: %s", tc.says, note)
			}
			if m := r.machines(); len(m) != 0 {
				t.Errorf("left behind: %+v", m)
			}
		})
	}
}

func TestADeletionGoesOnWhenTheDeskAnswersAgain(t *testing.T) {
	t.Parallel()
	d := &fakeDesk{timeout: time.Hour, err: fault.New(fault.Unavailable, "connection refused")}
	r := leased(t, d)
	r.delete("a")
	r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonDraining)
	d.set(func(d *fakeDesk) { d.err = nil })
	r.gone("a")
}

// Nobody can take what was drained, so an outage that comes later does not hold
// the deletion up again.
func TestADrainedProxyIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	d := &fakeDesk{timeout: time.Hour}
	r := leased(t, d)
	s := &scripted{Provider: r.fake, del: fault.New(fault.Transient, "not now")}
	r.providers.mu.Lock()
	r.providers.of["fake"] = s
	r.providers.epoch++
	r.providers.mu.Unlock()
	r.delete("a")
	r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonTransient)
	d.set(func(d *fakeDesk) { d.err = fault.New(fault.Unavailable, "connection refused") })
	r.restore("fake")
	r.gone("a")
	if n := d.times(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// Whatever instant a restart hits, the time to drain is the one that began with
// the deletion.
func TestARestartDoesNotBeginTheTimeToDrainAnew(t *testing.T) {
	t.Parallel()
	d := &fakeDesk{timeout: time.Hour, holder: job7()}
	r := leased(t, d)
	r.delete("a")
	px := r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonDraining)
	r.stop()
	// What has passed already is all the time that there was.
	asked := d.times()
	d.set(func(d *fakeDesk) { d.timeout = time.Since(px.DeletionTimestamp.Time) })
	r.start()
	r.gone("a")
	if n := d.times() - asked; n != 0 {
		t.Errorf("the desk was asked %d times after the time was over", n)
	}
}

func TestSkipCleanupDoesNotWaitForTheLease(t *testing.T) {
	t.Parallel()
	d := &fakeDesk{timeout: time.Hour, holder: job7()}
	r := leased(t, d)
	r.delete("a")
	px := r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonDraining)
	px.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: "yes"}
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	// A value that does nothing is told of, and the Proxy goes on waiting.
	r.event("a", "SkipCleanupIgnored")
	r.until("the condition telling of it", func() string {
		c := condition(r.get("a"), v1alpha1.ConditionReady)
		if c.Reason != v1alpha1.ReasonDraining || !strings.Contains(c.Message, "is ignored") {
			return c.Reason + ": " + c.Message
		}
		return ""
	})
	px = r.get("a")
	px.Annotations[v1alpha1.SkipCleanupAnnotation] = "true"
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.gone("a")
	if len(r.machines()) != 1 {
		t.Error("its instance is gone")
	}
}

func TestAProxyThatDrainsAndHasNoProviderWaitsForItsLeaseFirst(t *testing.T) {
	t.Parallel()
	d := &fakeDesk{timeout: time.Hour, holder: job7()}
	r := leased(t, d)
	r.remove("fake")
	r.delete("a")
	r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonDraining)
	d.set(func(d *fakeDesk) { d.holder = deskkeys.Holder{} })
	r.wake("a")
	r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonProviderNotFound)
	r.restore("fake")
	r.gone("a")
}
