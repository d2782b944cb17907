package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

// listings waits for n more listings: time in which a wrong thing would show.
func (r *rig) listings(n int64) {
	r.t.Helper()
	before := r.fake.Calls()["ListByTag"]
	r.until(fmt.Sprint(n, " more listings"), func() string {
		if done := r.fake.Calls()["ListByTag"] - before; done < n {
			return fmt.Sprint(done)
		}
		return ""
	})
}

func onHost(host string) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Host: host} }
}

// No reconcile worker waits on a mute host: with more Proxies on it than there
// are workers, one on another host becomes Ready all the same.
func TestAMuteHostDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1", "h2"}})
	stuck := &stuckHost{Provider: r.fake, host: "h2", out: make(chan struct{})}
	r.providers.of["fake"] = stuck
	r.start()
	t.Cleanup(sync.OnceFunc(func() { close(stuck.out) }))
	for i := range 40 {
		r.create(r.proxy(fmt.Sprint("m", i), onHost("h2")))
	}
	r.until("calls that hang", func() string {
		if n := stuck.in.Load(); n < 4 {
			return fmt.Sprint(n)
		}
		return ""
	})
	r.create(r.proxy("good", onHost("h1")))
	r.until("the good one's machine", func() string {
		if px := r.get("good"); px.Status.ProviderID == "" {
			return fmt.Sprintf("%+v", px.Status)
		}
		return ""
	})
	if n := stuck.in.Load(); n > 4 {
		t.Errorf("%d of 16 workers wait for the mute host, want at most 4", n)
	}
}

// stuckHost never answers a Create on one host, whatever its deadline.
type stuckHost struct {
	provider.Provider
	host string
	in   atomic.Int64
	out  chan struct{}
}

func (s *stuckHost) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	if spec.Host == s.host {
		s.in.Add(1)
		<-s.out
		return provider.Instance{}, fault.New(fault.Timeout, "no answer")
	}
	return s.Provider.Create(ctx, spec)
}

func TestDeletionsOnADeadHostDoNotAskItAgainAndAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1", "h2"}}).start()
	r.create(r.proxy("a", onHost("h2")))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	mend := r.fake.Break("h2", nil)
	r.listings(2)
	before := r.fake.Calls()
	r.delete("a")
	px := r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonUnavailable)
	if m := condition(px, v1alpha1.ConditionReady).Message; !strings.Contains(m, "its host does not answer") {
		t.Errorf("message: %s", m)
	}
	r.listings(2)
	if now := r.fake.Calls(); now["Get"] != before["Get"] || now["Delete"] != before["Delete"] {
		t.Error("a host that the listing knows to be down was asked once more")
	}
	mend()
	r.gone("a") // the host that answers again wakes it
	if m := r.machines(); len(m) != 0 {
		t.Errorf("left behind: %+v", m)
	}
}

// A host that was taken out of the configuration must show on the Proxies that
// live there; silence would be worse than the outage.
func TestAHostThatLeftTheConfigurationShowsOnItsProxies(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1"}})
	px := r.proxy("a", func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.Finalizer} })
	r.create(px)
	px.Status.ProviderID, px.Status.Host = "fake://h2/00000001", "h2"
	if err := r.client.Status().Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.start()
	px = r.reaches("a", v1alpha1.PhaseFailed, v1alpha1.ReasonPermanent)
	if m := condition(px, v1alpha1.ConditionReady).Message; !strings.Contains(m, `"h2"`) {
		t.Errorf("the message does not name the host: %s", m)
	}
	before := r.fake.Calls()["Get"]
	r.listings(3)
	if n := r.fake.Calls()["Get"] - before; n > 1 {
		t.Errorf("%d more looks at what only a person can mend", n)
	}
	if len(r.machines()) != 0 {
		t.Error("it was rebuilt elsewhere")
	}
}

// secretReader fails reads of Secrets while told to.
type secretReader struct {
	client.Reader
	fail atomic.Bool
	gets atomic.Int64
}

func (s *secretReader) Get(ctx context.Context, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*corev1.Secret); ok {
		s.gets.Add(1)
		if s.fail.Load() {
			return errors.New("etcdserver: request timed out")
		}
	}
	return s.Reader.Get(ctx, k, o, opts...)
}

func withAuth(px *v1alpha1.Proxy) { px.Spec.AuthSecretRef = &v1alpha1.LocalSecretRef{Name: "auth"} }

func TestASecretThatCannotBeReadForAMomentTakesNoProxyDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	reader := &secretReader{}
	r.wrap = func(c client.Reader) client.Reader { reader.Reader = c; return reader }
	r.start()
	r.create(secret(r.ns, "auth", map[string]string{"username": "u", "password": "p"}))
	r.create(r.proxy("a", withAuth))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	reader.fail.Store(true)
	before := reader.gets.Load()
	r.reconciler.Wake(client.ObjectKeyFromObject(px))
	r.until("a failed read", func() string {
		if reader.gets.Load() == before {
			return "none yet"
		}
		return ""
	})
	r.listings(2)
	if now := r.get("a"); now.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("phase %s: %s", now.Status.Phase, condition(now, v1alpha1.ConditionReady).Message)
	}
	// A check that fails meanwhile is still seen: checking went on.
	r.set(px.Status.Address, true)
	r.reaches("a", v1alpha1.PhaseUnhealthy, v1alpha1.ReasonProbeFailed)
}

func TestADeletedSecretMakesAReadyProxyUnhealthyAndItsReturnHealsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	auth := func() *corev1.Secret {
		return secret(r.ns, "auth", map[string]string{"username": "u", "password": "p"})
	}
	r.create(auth())
	r.create(r.proxy("a", withAuth))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	if err := r.client.Delete(t.Context(), auth()); err != nil {
		t.Fatal(err)
	}
	r.reaches("a", v1alpha1.PhaseUnhealthy, v1alpha1.ReasonReferenceNotFound)
	r.create(auth())
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	if c := condition(px, v1alpha1.ConditionOutdated); c.Reason != v1alpha1.ReasonSecretChanged {
		t.Errorf("the instance was made with another Secret, and Outdated says %+v", c)
	}
}

func TestWaitingForTheFirstListingReadsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	reader, looks := &secretReader{}, &looks{}
	r.wrap = func(c client.Reader) client.Reader { reader.Reader = c; return reader }
	r.cached = func(c client.Client) client.Client { looks.Client = c; return looks }
	r.start()
	r.create(secret(r.ns, "auth", map[string]string{"username": "u", "password": "p"}))
	r.create(r.proxy("a", withAuth))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.stop()
	held := &heldList{Provider: r.fake, out: make(chan struct{})}
	r.providers.of["fake"] = held
	mend := sync.OnceFunc(func() { close(held.out) })
	t.Cleanup(mend)
	before := reader.gets.Load()
	r.start()
	for range 5 {
		n := looks.n.Load()
		r.wake("a")
		r.until("another look", func() string {
			if looks.n.Load() == n {
				return "none yet"
			}
			return ""
		})
	}
	if n := reader.gets.Load() - before; n != 0 {
		t.Errorf("%d reads while nothing can be known", n)
	}
	mend()
	r.until("reads once something is known", func() string {
		if reader.gets.Load() == before {
			return "none"
		}
		return ""
	})
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
}

// looks counts how often a Proxy is read from the cache.
type looks struct {
	client.Client
	n atomic.Int64
}

func (l *looks) Get(ctx context.Context, name client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*v1alpha1.Proxy); ok {
		l.n.Add(1)
	}
	return l.Client.Get(ctx, name, o, opts...)
}

// heldList answers no listing before it is told to, whatever its deadline.
type heldList struct {
	provider.Provider
	out chan struct{}
}

func (h *heldList) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	<-h.out
	return h.Provider.ListByTag(ctx, installation)
}

// What may change on a live Proxy applies at the next rebuild: also the host.
func TestAnotherHostAppliesAtTheRebuild(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1", "h2"}}).start()
	r.create(r.proxy("a", onHost("h1")))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	id := px.Status.ProviderID
	px.Spec.Placement.Host = "h2"
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.until("Outdated", func() string {
		if c := condition(r.get("a"), v1alpha1.ConditionOutdated); c.Status != metav1.ConditionTrue {
			return c.Message
		}
		return ""
	})
	r.fake.Vanish(id)
	r.until("the new machine", func() string {
		if px = r.get("a"); px.Status.ProviderID == id || px.Status.Phase != v1alpha1.PhaseReady {
			return fmt.Sprintf("%+v", px.Status)
		}
		return ""
	})
	if m := r.machines(); px.Status.Host != "h2" || len(m) != 1 || m[0].Host != "h2" {
		t.Errorf("host %s, machines %+v", px.Status.Host, m)
	}
	if c := condition(px, v1alpha1.ConditionOutdated); c.Status != metav1.ConditionFalse {
		t.Errorf("Outdated: %+v", c)
	}
}

func TestAnotherHostAppliesWhenTheFirstRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1", "h2"}})
	r.fake.FailNext("Create", fault.New(fault.Permanent, "h1 has no such pool"))
	r.start()
	r.create(r.proxy("a", onHost("h1")))
	px := r.reaches("a", v1alpha1.PhaseFailed, v1alpha1.ReasonPermanent)
	px.Spec.Placement.Host = "h2"
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	px = r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	if m := r.machines(); px.Status.Host != "h2" || len(m) != 1 || m[0].Host != "h2" {
		t.Errorf("host %s, machines %+v", px.Status.Host, m)
	}
}

// gate holds the first Create after it was done, until it is opened.
type gate struct {
	provider.Provider
	once    sync.Once
	in, out chan struct{}
}

func (g *gate) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	in, err := g.Provider.Create(ctx, s)
	g.once.Do(func() { close(g.in); <-g.out })
	return in, err
}

// A spec that is edited while Create runs must not label the machine made from
// the earlier one as up to date.
func TestASpecEditedDuringCreateIsOutdated(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{StagesPerCall: 5})
	g := &gate{Provider: r.fake, in: make(chan struct{}), out: make(chan struct{})}
	r.providers.of["fake"] = g
	r.start()
	r.create(r.proxy("a"))
	<-g.in
	px := r.get("a")
	px.Spec.Port = 8080
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	close(g.out)
	r.until("a Ready proxy that is Outdated", func() string {
		px = r.get("a")
		if c := condition(px, v1alpha1.ConditionOutdated); px.Status.Phase != v1alpha1.PhaseReady || c.Status != metav1.ConditionTrue {
			return fmt.Sprintf("port %d, %+v", px.Status.Port, c)
		}
		return ""
	})
	if px.Status.Port != 3128 || len(r.machines()) != 1 {
		t.Errorf("port %d, machines %+v", px.Status.Port, r.machines())
	}
}

// late is a cache that is behind: after a Create it answers one reading with
// the Proxy as that Create's pass had stored it.
type late struct {
	client.Client
	old atomic.Pointer[v1alpha1.Proxy]
}

func (l *late) Get(ctx context.Context, name client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if px, ok := o.(*v1alpha1.Proxy); ok {
		if old := l.old.Swap(nil); old != nil {
			old.DeepCopyInto(px)
			return nil
		}
	}
	return l.Client.Get(ctx, name, o, opts...)
}

// maker tells late what was stored, and counts the creations begun although the
// API knew of an instance.
type maker struct {
	provider.Provider
	late  *late
	live  client.Client
	wrong atomic.Int32
	ids   chan string
}

func (m *maker) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	px := &v1alpha1.Proxy{}
	if err := m.live.Get(ctx, client.ObjectKey{Namespace: s.Owner.Namespace, Name: s.Owner.Name}, px); err != nil {
		return provider.Instance{}, err
	}
	if px.Status.ProviderID != "" {
		m.wrong.Add(1)
	}
	in, err := m.Provider.Create(ctx, s)
	m.late.old.Store(px)
	m.ids <- in.ID
	return in, err
}

// An instance that was made and vanished must not be made again by a pass that
// has not heard that it was made: that would be a repair which nobody counts.
func TestNothingIsMadeFromAnOldReading(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{StagesPerCall: 5})
	m := &maker{Provider: r.fake, late: &late{}, live: r.client, ids: make(chan string, 100)}
	r.providers.of["fake"] = m
	r.cached = func(c client.Client) client.Client { m.late.Client = c; return m.late }
	r.start()
	r.create(r.proxy("a"))
	for range 3 {
		id := <-m.ids
		r.fake.Vanish(id)
		r.until("a reading from before", func() string {
			if m.late.old.Load() != nil {
				return "not read yet"
			}
			return ""
		})
	}
	if n := m.wrong.Load(); n != 0 {
		t.Errorf("%d creations of what the API knew already", n)
	}
}

// An instance that dies as soon as it runs must not cost a machine a second.
func TestRepairsArePaced(t *testing.T) {
	t.Parallel()
	for name, hit := range map[string]func(r *rig, id string){
		"stops":    func(r *rig, id string) { r.fake.Stop(id) },
		"vanishes": func(r *rig, id string) { r.fake.Vanish(id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fake.Options{StagesPerCall: 5}).start()
			r.create(r.proxy("a"))
			r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
			var ran []time.Time
			again := func() {
				for _, m := range r.machines() {
					if m.State == provider.Running {
						ran = append(ran, time.Now())
						hit(r, m.ID)
					}
				}
			}
			r.until("a fourth run", func() string {
				if again(); len(ran) < 4 {
					return fmt.Sprintf("%d runs", len(ran))
				}
				return ""
			})
			// The first repair comes at once, the next 2 and then 4 s after the
			// one before it began.
			for i, least := range []time.Duration{0, 0, 2 * time.Second, 6 * time.Second} {
				if after := ran[i].Sub(ran[0]); after < least {
					t.Errorf("run %d came %s after the first, want at least %s", i+1, after, least)
				}
			}
			r.until("a message that says why it waits", func() string {
				again() // whoever looks late finds the next pause, which is longer
				px := r.get("a")
				if m := condition(px, v1alpha1.ConditionReady).Message; px.Status.Phase == v1alpha1.PhaseReady || !strings.Contains(m, "in short order") {
					return fmt.Sprintf("phase %s: %s", px.Status.Phase, m)
				}
				return ""
			})
		})
	}
}

// A machine that is known to be stopped is not handed out, also when it cannot
// be started.
func TestAStoppedInstanceThatCannotBeStartedIsNotReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a", func(px *v1alpha1.Proxy) {
		px.Spec.HealthCheck = v1alpha1.HealthCheck{Interval: "1h", Timeout: "5s"}
	}))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	for range 10 {
		r.fake.FailNext("Create", fault.New(fault.Transient, "no memory on the host"))
	}
	r.fake.Stop(px.Status.ProviderID)
	px = r.reaches("a", v1alpha1.PhaseUnhealthy, v1alpha1.ReasonTransient)
	if c := condition(px, v1alpha1.ConditionHealthy); c.Status == metav1.ConditionTrue {
		t.Errorf("the verdict of the stopped machine stands: %+v", c)
	}
}

// A verdict is of the machine that was checked, not of the one started since.
func TestAVerdictEndsWithItsMachine(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{StagesPerCall: 5}).start()
	r.create(r.proxy("a", func(px *v1alpha1.Proxy) {
		px.Spec.HealthCheck = v1alpha1.HealthCheck{Interval: "10s", Timeout: "5s", FailureThreshold: 3}
	}))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.set(px.Status.Address, true)
	r.fake.Stop(px.Status.ProviderID)
	r.event("a", "Restarted")
	r.listings(2)
	if px = r.get("a"); px.Status.Phase == v1alpha1.PhaseReady {
		t.Errorf("Ready, and it never passed a check since it was started: %+v", condition(px, v1alpha1.ConditionHealthy))
	}
}

func TestARestartOfTheOperatorLeavesUnhealthyProxiesUnhealthy(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a", func(px *v1alpha1.Proxy) {
		px.Spec.HealthCheck = v1alpha1.HealthCheck{Interval: "2s", Timeout: "500ms", FailureThreshold: 3}
	}))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.set(px.Status.Address, true)
	r.reaches("a", v1alpha1.PhaseUnhealthy, v1alpha1.ReasonProbeFailed)
	r.stop()
	r.start()
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if px := r.get("a"); px.Status.Phase != v1alpha1.PhaseUnhealthy {
			t.Fatalf("it blinked: %s, %+v", px.Status.Phase, condition(px, v1alpha1.ConditionReady))
		}
	}
}

// The time that a missing provider or Secret took does not count as time that
// the machine took.
func TestProvisioningIsTimedFromItsFirstStep(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{StagesPerCall: 1})
	r.provisionTimeout = 30 * time.Minute
	r.start()
	r.remove("fake")
	px := r.proxy("a")
	r.create(px)
	px = r.reaches("a", v1alpha1.PhasePending, v1alpha1.ReasonProviderNotFound)
	// As if it had waited for an hour.
	for i := range px.Status.Conditions {
		px.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
	}
	if err := r.client.Status().Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.restore("fake")
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	if notes, _ := r.events("a"); notes["Failed"] != "" {
		t.Errorf("it was called Failed: %s", notes["Failed"])
	}
}

// Never ready and no reason (scrapoxy 10, 189, 201).
func TestMuseumAnInstanceThatNeverRunsIsFailedWithItsStage(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	r.provisionTimeout = time.Second
	r.providers.of["fake"] = neverReady{r.fake}
	r.start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseFailed, v1alpha1.ReasonProvisioning)
	if m := condition(px, v1alpha1.ConditionReady).Message; !strings.Contains(m, "waiting for the agent") {
		t.Errorf("the stage is not named: %s", m)
	}
}

type neverReady struct{ provider.Provider }

func (n neverReady) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	in, err := n.Provider.Create(ctx, s)
	return waiting(in), err
}

func (n neverReady) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	hosts, err := n.Provider.ListByTag(ctx, installation)
	for h := range hosts {
		for i, in := range hosts[h].Instances {
			hosts[h].Instances[i] = waiting(in)
		}
	}
	return hosts, err
}

func waiting(in provider.Instance) provider.Instance {
	in.State, in.Message, in.Address = provider.Provisioning, "waiting for the agent", ""
	return in
}

// A cloned or restored machine carries the UID of the one it was copied from.
func TestATwinElsewhereIsShownAndTakesNothingOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Hosts: []string{"h1", "h2"}}).start()
	r.create(r.proxy("a", onHost("h1")))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.fake.Plant("h2", r.machines()[0].Owner)
	note := r.event("a", v1alpha1.ReasonDuplicate)
	if !strings.Contains(note, "h2") {
		t.Errorf("the event does not name the place: %s", note)
	}
	r.listings(2)
	if now := r.get("a"); now.Status.ProviderID != px.Status.ProviderID || now.Status.Host != "h1" || now.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("the twin took over: %+v", now.Status)
	}
	r.delete("a")
	r.gone("a")
	if m := r.machines(); len(m) != 1 || m[0].Host != "h2" {
		t.Errorf("left after the deletion: %+v", m)
	}
}

func TestLongTextsFitIntoEventsAndConditions(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	s := &scripted{Provider: r.fake, del: fault.New(fault.Permanent, "\xff"+strings.Repeat("é", 4000))}
	r.providers.of["fake"] = s
	r.start()
	r.create(r.proxy("a", func(px *v1alpha1.Proxy) {
		px.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: strings.Repeat("ü", 4000)}
	}))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.delete("a")
	px := r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonPermanent)
	r.event("a", "DeletionBlocked")
	if m := condition(px, v1alpha1.ConditionReady).Message; !strings.Contains(m, "skip-cleanup=true") {
		t.Errorf("the way out was cut off: %s", m)
	}
	for range 5 {
		r.reconciler.Wake(client.ObjectKeyFromObject(px))
	}
	r.listings(2)
	if now := r.get("a"); now.ResourceVersion != px.ResourceVersion {
		t.Error("the same news was written again")
	}
}

func TestAWrongSkipCleanupThatComesLateIsToldToo(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	r.providers.of["fake"] = &scripted{Provider: r.fake, del: fault.New(fault.Permanent, "cannot")}
	r.start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.delete("a")
	px := r.reaches("a", v1alpha1.PhaseTerminating, v1alpha1.ReasonPermanent)
	px.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: "True"}
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.event("a", "SkipCleanupIgnored")
	if m := condition(r.get("a"), v1alpha1.ConditionReady).Message; !strings.Contains(m, `"True" is ignored`) {
		t.Errorf("the condition does not tell: %s", m)
	}
}

// flapping answers Create now with one class, now with another, and keeps when
// it was asked.
type flapping struct {
	provider.Provider
	mu    sync.Mutex
	asked []time.Time
}

func (f *flapping) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

func (f *flapping) Create(context.Context, provider.Spec) (provider.Instance, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, time.Now())
	if len(f.asked)%2 == 0 {
		return provider.Instance{}, fault.New(fault.Timeout, "no answer")
	}
	return provider.Instance{}, fault.New(fault.Unavailable, "no slot")
}

func TestAlternatingFailuresStillBackOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	f := &flapping{Provider: r.fake}
	r.providers.of["fake"] = f
	r.start()
	r.create(r.proxy("a"))
	r.until("five tries", func() string {
		if n := len(f.times()); n < 5 {
			return fmt.Sprint(n)
		}
		return ""
	})
	// Each pause is at least half of one that doubles from a second on.
	asked := f.times()
	for i := range 4 {
		least := time.Second << i / 2
		if pause := asked[i+1].Sub(asked[i]); pause < least {
			t.Errorf("try %d came %s after the one before, want at least %s", i+2, pause, least)
		}
	}
}

// stale is a provider that is replaced while it is asked.
type stale struct {
	provider.Provider
	once    sync.Once
	in, out chan struct{}
}

func (s *stale) Get(context.Context, provider.Ref) (provider.Instance, error) {
	s.once.Do(func() { close(s.in); <-s.out })
	return provider.Instance{}, fault.New(fault.NotFound, "nothing there")
}

func (s *stale) Delete(context.Context, provider.Ref) (provider.State, error) {
	return provider.Gone, nil
}

func (s *stale) Create(context.Context, provider.Spec) (provider.Instance, error) {
	return provider.Instance{}, fault.New(fault.Permanent, "bad key of the old config")
}

func TestAFailureOfTheReplacedProviderDoesNotHoldBackTheNewOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	old := &stale{Provider: r.fake, in: make(chan struct{}), out: make(chan struct{})}
	r.providers.of["fake"] = old
	px := r.proxy("a", func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.Finalizer} })
	r.create(px)
	px.Status.ProviderID, px.Status.Host = "fake://fake-1/0000ffff", "fake-1"
	if err := r.client.Status().Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.start()
	<-old.in
	r.restore("fake")
	close(old.out)
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
}

func TestADeletionIsToldOfOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{StagesPerCall: 5}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.delete("a")
	for range 200 {
		r.reconciler.Wake(client.ObjectKeyFromObject(px))
		time.Sleep(time.Millisecond)
	}
	r.gone("a")
	r.event("a", "Deleted")
	r.listings(1)
	_, seen := r.events("a")
	n := 0
	for _, reason := range seen {
		if reason == "Deleted" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d events tell of one deletion: %v", n, seen)
	}
}
