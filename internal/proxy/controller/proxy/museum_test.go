package proxy_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

// Faults that people had with other tools, each with where it was told of. Those
// whose test stood already are named there.

// Counting only what is seen makes too many (scrapoxy 46, 119, 158, 241): an
// instance that is being made, removed, or that no listing has yet counts too.
func TestMuseumNothingIsMadeTwiceBecauseItIsNotSeenYet(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{StagesPerCall: 1})
	blind := &blindLister{Provider: r.fake}
	r.providers.of["fake"] = blind
	r.start()
	const n = 5
	for i := range n {
		r.create(r.proxy(fmt.Sprint("p", i)))
	}
	r.until("all made", func() string {
		if m := r.machines(); len(m) < n {
			return fmt.Sprint(len(m))
		}
		return ""
	})
	for range 3 {
		for i := range n {
			r.wake(fmt.Sprint("p", i))
		}
		r.listings(1)
		if m := r.machines(); len(m) != n {
			t.Fatalf("%d machines for %d Proxies", len(m), n)
		}
	}
	for i := range n {
		r.reaches(fmt.Sprint("p", i), v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	}
	if m := r.machines(); len(m) != n {
		t.Errorf("%d machines for %d Proxies", len(m), n)
	}
}

// blindLister lists hosts that have nothing, as an eventually consistent API
// does for a while.
type blindLister struct{ provider.Provider }

func (b *blindLister) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	rows, err := b.Provider.ListByTag(ctx, installation)
	for i := range rows {
		rows[i].Instances = nil
	}
	return rows, err
}

// Other people's machines were counted or killed (scrapoxy 25, 79, 167;
// google-compute-engine-plugin 558): whoever else is on the host stays.
func TestMuseumMachinesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	others := []provider.Owner{
		{Installation: "another/installation", Namespace: px.Namespace, Name: px.Name, UID: string(px.UID)},
		{Installation: installation, Namespace: px.Namespace, Name: "b", UID: "another-uid"},
		{},
	}
	var want []string
	for _, o := range others {
		want = append(want, r.fake.Plant("fake-1", o).ID)
	}
	r.listings(2)
	if now := r.get("a"); now.Status.ProviderID != px.Status.ProviderID || now.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("another's machine took its place: %+v", now.Status)
	}
	r.delete("a")
	r.gone("a")
	var left []string
	for _, m := range r.machines() {
		left = append(left, m.ID)
	}
	if fmt.Sprint(left) != fmt.Sprint(want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}

// slowDelete holds each Delete until it is told to go on.
type slowDelete struct {
	provider.Provider
	in       chan struct{}
	out      chan struct{}
	now, top atomic.Int64
}

func (s *slowDelete) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for top := s.top.Load(); n > top && !s.top.CompareAndSwap(top, n); top = s.top.Load() {
	}
	select {
	case s.in <- struct{}{}:
	default:
	}
	select {
	case <-s.out:
	case <-ctx.Done():
	}
	return s.Provider.Delete(ctx, ref)
}

// Repeated destroys get the account locked (scrapoxy 32): one delete in flight
// for an instance, however often its Proxy is woken.
func TestMuseumOneDeleteIsInFlightForAnInstance(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	s := &slowDelete{Provider: r.fake, in: make(chan struct{}, 1), out: make(chan struct{})}
	r.providers.of["fake"] = s
	r.start()
	r.create(r.proxy("a"))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	r.delete("a")
	<-s.in
	for range 100 {
		r.wake("a")
	}
	r.listings(2)
	if n := s.now.Load(); n != 1 {
		t.Errorf("%d deletes in flight", n)
	}
	close(s.out)
	r.gone("a")
	if n := s.top.Load(); n != 1 {
		t.Errorf("%d deletes at one moment", n)
	}
}

// full answers everything that makes or lists with Quota.
type full struct {
	provider.Provider
	on atomic.Bool
}

func (f *full) err() error { return fault.New(fault.Quota, "the account's limit of 40 is reached") }

func (f *full) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	if f.on.Load() {
		return provider.Instance{}, f.err()
	}
	return f.Provider.Create(ctx, s)
}

func (f *full) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	if f.on.Load() {
		return nil, f.err()
	}
	return f.Provider.ListByTag(ctx, installation)
}

// A quota error went unseen and the stale list was served on (cloudproxy 41): it
// shows on the Proxies, one that stops working leaves Ready, and other providers
// go on.
func TestMuseumAQuotaErrorIsShownAndOtherProvidersGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	f := &full{Provider: r.fake}
	r.providers.of["fake"] = f
	r.providers.of["other"] = fake.New(fake.Options{Name: "other"})
	r.start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	f.on.Store(true)
	r.until("the condition saying so", func() string {
		if c := condition(r.get("a"), v1alpha1.ConditionProvisioned); c.Reason != v1alpha1.ReasonQuota || !strings.Contains(c.Message, "limit of 40") {
			return fmt.Sprintf("%+v", c)
		}
		return ""
	})
	r.create(r.proxy("b"))
	r.until("the new one saying so", func() string {
		if c := condition(r.get("b"), v1alpha1.ConditionReady); c.Reason != v1alpha1.ReasonQuota {
			return fmt.Sprintf("%+v", c)
		}
		return ""
	})
	r.create(r.proxy("c", func(px *v1alpha1.Proxy) { px.Spec.Provider = "other" }))
	r.reaches("c", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	if now := r.get("a"); now.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("its own checks pass, and it is %s", now.Status.Phase)
	}
	r.set(px.Status.Address, true)
	r.until("leaving Ready", func() string { return ifPhase(r.get("a"), v1alpha1.PhaseReady) })
	f.on.Store(false)
	r.set(px.Status.Address, false)
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
}

// ifPhase returns the phase when it is that one.
func ifPhase(px *v1alpha1.Proxy, phase v1alpha1.Phase) string {
	if px.Status.Phase == phase {
		return string(phase)
	}
	return ""
}

// A check that omits the credentials fails every proxy that wants them (rota 29):
// checks present what users are given.
func TestMuseumChecksPresentWhatTheSecretSays(t *testing.T) {
	t.Parallel()
	const user, password = "crawler", "p:a@ß$/%2F"
	r := newRig(t, fake.Options{})
	var mu sync.Mutex
	var seen []string
	r.probed = func(target probe.Target) error {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, target.User+" "+string(target.Password))
		if target.User != user || string(target.Password) != password {
			return fault.New(fault.Denied, "407")
		}
		return nil
	}
	r.start()
	r.create(secret(r.ns, "auth", map[string]string{"username": user, "password": password}))
	r.create(r.proxy("a", withAuth))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	creds, _, err := r.reconciler.Credentials(t.Context(), px)
	mu.Lock()
	defer mu.Unlock()
	if err != nil || len(seen) == 0 || seen[0] != creds.User+" "+string(creds.Password) {
		t.Errorf("checks presented %d pairs that are not what users get (%v)", len(seen), err)
	}
}

// A new proxy waited half an hour for its first check (rota 33): it is checked at
// once, however long its interval is.
func TestMuseumTheFirstCheckComesAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	r.create(r.proxy("a", func(px *v1alpha1.Proxy) {
		px.Spec.HealthCheck = v1alpha1.HealthCheck{Interval: "24h", Timeout: "5s"}
	}))
	r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
}

// Stale counts survive deletes and restarts (rota 34): whatever was remembered of
// a Proxy, the next one of its name begins anew. The pause after a refused create
// and a count of passed checks would hold it back for minutes.
func TestMuseumNothingIsRememberedOfADeletedProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{}).start()
	mend := r.fake.Break("fake-1", fault.New(fault.Permanent, "the image is not what it says"))
	r.create(r.proxy("refused"))
	r.reaches("refused", v1alpha1.PhaseFailed, v1alpha1.ReasonPermanent)
	mend()
	r.create(r.proxy("sick", func(px *v1alpha1.Proxy) { px.Spec.HealthCheck.SuccessThreshold = 100 }))
	r.until("a check that passed and is not enough", func() string {
		if m := condition(r.get("sick"), v1alpha1.ConditionHealthy).Message; !strings.Contains(m, "not ended") && !strings.Contains(m, "not enough") {
			return m
		}
		return ""
	})
	names := []string{"refused", "sick"}
	uids := map[string]types.UID{}
	for _, name := range names {
		uids[name] = r.get(name).UID
		r.delete(name)
		r.gone(name)
		r.create(r.proxy(name))
	}
	for _, name := range names {
		px := r.reaches(name, v1alpha1.PhaseReady, v1alpha1.ReasonReady)
		if px.UID == uids[name] {
			t.Errorf("%s is the old one", name)
		}
		if c := condition(px, v1alpha1.ConditionHealthy); c.Status != metav1.ConditionTrue {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if m := r.machines(); len(m) != len(names) {
		t.Errorf("%d machines", len(m))
	}
}
