package proxy_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/controller/proxy"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/testkit/kube"
)

// set has the provider answer so from now on.
func (a *answers) set(get error, state provider.State, del error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.get, a.state, a.del = get, state, del
}

// A host that is missing from the file for a moment, by a slip or because the
// file is half written, costs no instance its Proxy: it is said when it would,
// and putting the host back has the instance deleted.
func TestAHostThatIsPutBackKeepsItsInstanceFromBeingAbandoned(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := &answers{get: fault.New(fault.Permanent, "no such host"), state: provider.Abandoned}
	b.providers.of["a"] = a
	began := time.Now().Truncate(time.Second)
	px := b.doomed(cluster.Namespace(t), "a")
	for range 3 {
		res, err := b.reconcile(px)
		if err != nil || res.RequeueAfter <= 0 || res.RequeueAfter > time.Minute {
			t.Fatalf("it comes back after %s, %v", res.RequeueAfter, err)
		}
	}
	now := b.read(px)
	if now == nil || len(b.ledger.of) != 0 {
		t.Fatalf("abandoned at once: %v", b.ledger.of)
	}
	ready := condition(now, v1alpha1.ConditionReady)
	for _, want := range []string{`host "h1" is not in the configuration of provider a`, "put the host back", "the Proxy goes at "} {
		if ready.Reason != v1alpha1.ReasonDeletionPending || !strings.Contains(ready.Message, want) {
			t.Errorf("the condition does not say %q: %+v", want, ready)
		}
	}
	_, rest, _ := strings.Cut(ready.Message, "the Proxy goes at ")
	when, _, _ := strings.Cut(rest, ",")
	if at, err := time.Parse(time.RFC3339, when); err != nil || at.Before(began.Add(time.Minute)) {
		t.Errorf("it goes at %q, %v; it began after %s", when, err, began)
	}
	a.set(nil, provider.Gone, nil)
	b.providers.mu.Lock()
	b.providers.epoch++
	b.providers.mu.Unlock()
	if _, err := b.reconcile(px); err != nil || b.read(px) != nil {
		t.Fatalf("with its host back it does not go: %v", err)
	}
	if len(b.ledger.of) != 0 || len(b.heard.about("a", "Deleted")) != 1 {
		t.Errorf("written down: %v; heard %v", b.ledger.of, b.heard.of)
	}
}

// Only an answer that stays the same for the whole time counts: whatever comes
// between, and a new start of the operator, have it begin anew.
func TestOnlyAHostThatStaysAwayIsBelievedToHaveLeft(t *testing.T) {
	t.Parallel()
	const reprieve = 300 * time.Millisecond
	for name, between := range map[string]func(b *bench, a *answers) (restore func()){
		"nothing": nil,
		"another answer": func(_ *bench, a *answers) func() {
			a.set(nil, provider.Deleting, nil)
			return func() { a.set(nil, provider.Abandoned, nil) }
		},
		"an error": func(b *bench, a *answers) func() {
			a.set(nil, "", fault.New(fault.Permanent, "the disk is stuck"))
			return func() {
				a.set(nil, provider.Abandoned, nil)
				b.providers.mu.Lock()
				defer b.providers.mu.Unlock()
				b.providers.epoch++ // what failed may be tried again
			}
		},
		"no provider": func(b *bench, _ *answers) func() {
			b.providers.mu.Lock()
			defer b.providers.mu.Unlock()
			b.providers.errs["a"] = errors.New("its section fails")
			return func() { delete(b.providers.errs, "a") }
		},
		"another configuration": func(b *bench, _ *answers) func() {
			b.providers.mu.Lock()
			defer b.providers.mu.Unlock()
			b.providers.epoch++
			return func() {}
		},
		"another operator": func(b *bench, _ *answers) func() {
			b.reconciler = proxy.New(b.options)
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(o *proxy.Options) { o.Reprieve = reprieve })
			a := &answers{state: provider.Abandoned}
			b.providers.of["a"] = a
			px := b.doomed(cluster.Namespace(t), "a")
			look := func() {
				t.Helper()
				if _, err := b.reconcile(px); err != nil {
					t.Fatal(err)
				}
			}
			look()
			first, last, restore := time.Now(), time.Time{}, func() {}
			if between != nil {
				restore = between(b, a)
			}
			time.Sleep(time.Until(first.Add(reprieve))) // what the first look saw is old enough now
			if between != nil {
				last = time.Now()
				look()
				restore()
			}
			look()
			switch gone := b.read(px) == nil; {
			case gone && time.Since(last) < reprieve:
				t.Fatal("it was abandoned for what was seen before")
			case !gone && between == nil:
				t.Error("it is not abandoned in time")
			}
			for end := time.Now().Add(kube.Patience); b.read(px) != nil; {
				if time.Now().After(end) {
					t.Fatal("it is never abandoned")
				}
				look()
			}
			if _, written := b.ledger.get(px); !written {
				t.Error("it is not written down")
			}
		})
	}
}

// moved is a provider with two hosts, of which h1 has left the configuration.
type moved struct {
	provider.Provider
	mu    sync.Mutex
	get   error // of h1
	state provider.State
	made  []string
}

func (*moved) Place(context.Context, provider.Spec) (string, error) { return "h2", nil }

func (m *moved) Get(_ context.Context, ref provider.Ref) (provider.Instance, error) {
	if ref.Host == "h1" && m.get != nil {
		return provider.Instance{}, m.get
	}
	return provider.Instance{ID: ref.ID, Owner: ref.Owner, Host: ref.Host, State: m.state}, nil
}

func (m *moved) Delete(_ context.Context, ref provider.Ref) (provider.State, error) {
	if ref.Host == "h1" {
		return provider.Abandoned, nil
	}
	return provider.Gone, nil
}

func (m *moved) Create(_ context.Context, s provider.Spec) (provider.Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made = append(m.made, s.Host)
	return provider.Instance{ID: "fake://" + s.Host + "/x", Owner: s.Owner, Host: s.Host, State: provider.Running, Address: "192.0.2.1", Port: 3128}, nil
}

// A live Proxy whose host has left the configuration keeps what is known of its
// instance, and has no second one made: nobody looked whether the first is there.
func TestALiveProxyWhoseHostLeftHasNoSecondMachine(t *testing.T) {
	t.Parallel()
	permanent := fault.Errorf(fault.Permanent, "host %q is not in the configuration", "h1")
	for name, tc := range map[string]struct {
		reason string
		id     string
		get    error
		state  provider.State
	}{
		"its spec changed":    {"the answer of its Create was lost, and another host may be right", "", permanent, ""},
		"nothing found":       {"the same, when the host says nothing is there", "", fault.New(fault.NotFound, "none"), ""},
		"it is gone":          {"what was left of it cannot be cleared away", "fake://h1/1", fault.New(fault.NotFound, "none"), ""},
		"it is being removed": {"a removal that nobody can bring to its end", "fake://h1/1", nil, provider.Deleting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, noReprieve)
			m := &moved{get: tc.get, state: tc.state}
			b.providers.of["a"] = m
			px := &v1alpha1.Proxy{
				ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace(t), Name: "a", Finalizers: []string{v1alpha1.Finalizer}},
				Spec:       v1alpha1.ProxySpec{Provider: "a"},
			}
			if err := b.client.Create(t.Context(), px); err != nil {
				t.Fatal(err)
			}
			began := metav1.Now()
			px.Status.Host, px.Status.ProviderID, px.Status.AppliedSpec, px.Status.ProvisioningSince = "h1", tc.id, "an earlier spec", &began
			if err := b.client.Status().Update(t.Context(), px); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				if res, err := b.reconcile(px); err != nil || res.RequeueAfter <= 0 {
					t.Fatalf("it comes back after %s, %v", res.RequeueAfter, err)
				}
			}
			now := b.read(px)
			if len(m.made) != 0 || now.Status.Host != "h1" || now.Status.ProviderID != tc.id || now.Status.AppliedSpec != "an earlier spec" {
				t.Errorf("%s: made on %q; status %+v", tc.reason, m.made, now.Status)
			}
			said := condition(now, v1alpha1.ConditionProvisioned)
			for _, want := range []string{`host "h1" is not in the configuration of provider a`, "put it back", "delete the Proxy"} {
				if said.Reason != v1alpha1.ReasonPermanent || !strings.Contains(said.Message, want) {
					t.Errorf("%s: the condition does not say %q: %+v", tc.reason, want, said)
				}
			}
			// The second way that the message names.
			if err := b.client.Delete(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(kube.Patience); b.read(px) != nil && time.Now().Before(end); {
				if _, err := b.reconcile(px); err != nil {
					t.Fatal(err)
				}
			}
			if record, written := b.ledger.get(px); !written || record.Host != "h1" || record.ProviderID != tc.id {
				t.Errorf("%s: written down: %v, %+v", tc.reason, written, record)
			}
		})
	}
}
