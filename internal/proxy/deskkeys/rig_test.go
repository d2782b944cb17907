package deskkeys_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/proxy/deskkeys"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is a desk over a store in memory, that notes what it was asked to do.
type desk struct {
	*leasetest.Memory

	mu      sync.Mutex
	changed chan struct{}
	batches []int
	ops     []lease.Op
}

func newDesk() *desk {
	return &desk{Memory: leasetest.NewMemory(leasetest.Options{}), changed: make(chan struct{})}
}

func (d *desk) Do(ctx context.Context, ops ...lease.Op) ([]lease.Result, error) {
	res, err := d.Memory.Do(ctx, ops)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.batches = append(d.batches, len(ops))
	if err == nil {
		d.ops = append(d.ops, ops...)
	}
	close(d.changed)
	d.changed = make(chan struct{})
	return res, err
}

func (d *desk) EventsChanged() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// transactions are the sizes of all that were tried.
func (d *desk) transactions() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.batches)
}

// done returns what was done since the last call, but for epochs.
func (d *desk) done() (ops []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, op := range d.ops {
		switch op := op.(type) {
		case lease.PutKey:
			ops = append(ops, "put "+op.Key)
		case lease.DropKey:
			ops = append(ops, "drop "+op.Key)
		case lease.PutPool:
			ops = append(ops, "pool "+op.Pool.Name)
		case lease.DropPool:
			ops = append(ops, "drop pool "+op.Name)
		}
	}
	d.ops = nil
	return ops
}

// take leases a key of a pool.
func (d *desk) take(t *testing.T, pool string) lease.Result {
	t.Helper()
	res, err := d.Do(t.Context(), lease.Take{
		Ticket: fmt.Sprint(len(d.transactions())), Pool: pool, Account: "crawler", Holder: "job 7",
		Secret: lease.HashOf("s"), TTL: time.Minute,
	})
	if err != nil || res[0].Err != nil {
		t.Fatalf("take from %s: %v %v", pool, err, res)
	}
	return res[0]
}

func (d *desk) must(t *testing.T, op lease.Op) lease.Result {
	t.Helper()
	res, err := d.Do(t.Context(), op)
	if err != nil || res[0].Err != nil {
		t.Fatalf("%T: %v %+v", op, err, res)
	}
	return res[0]
}

// rows are all keys of the desk, "" for those that may be handed out and why
// not for others.
func (d *desk) rows(t *testing.T) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for _, pool := range d.poolNames(t) {
		keys, err := d.Keys(t.Context(), pool, "", 10_000)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys.Keys {
			rows[k.Name] = k.Unfit
		}
	}
	return rows
}

func (d *desk) poolNames(t *testing.T) (names []string) {
	t.Helper()
	pools, err := d.Pools(t.Context(), "", 10_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pools {
		names = append(names, p.Name)
	}
	return names
}

// members are the keys of each pool.
func (d *desk) members(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, pool := range d.poolNames(t) {
		keys, err := d.Keys(t.Context(), pool, "", 10_000)
		if err != nil {
			t.Fatal(err)
		}
		all[pool] = []string{}
		for _, k := range keys.Keys {
			if slices.Contains(k.Pools, pool) {
				all[pool] = append(all[pool], k.Name)
			}
		}
	}
	return all
}

func (d *desk) key(t *testing.T, name string) lease.Key {
	t.Helper()
	keys, err := d.Key(t.Context(), name)
	if err != nil || len(keys.Keys) != 1 {
		t.Fatalf("key %s: %v %v", name, keys, err)
	}
	return keys.Keys[0]
}

// rig is a keeper on that desk over objects in memory.
type rig struct {
	t       *testing.T
	objects client.WithWatch
	desk    *desk
	keeper  *deskkeys.Keeper
	metrics *prometheus.Registry
	ended   chan error
	cancel  context.CancelFunc

	mu       sync.Mutex
	released []string
	told     map[types.NamespacedName]int
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func newRig(t *testing.T, objects ...client.Object) *rig {
	t.Helper()
	r := &rig{
		t: t, desk: newDesk(), told: map[types.NamespacedName]int{},
		objects: fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objects...).Build(),
	}
	r.renew()
	return r
}

// renew makes another keeper on the same desk, as another replica has one.
func (r *rig) renew() {
	r.t.Helper()
	r.metrics = prometheus.NewRegistry()
	var err error
	r.keeper, err = deskkeys.New(deskkeys.Options{
		Desk: r.desk, Cache: r.objects, Owner: "test", Metrics: r.metrics, Log: slog.New(slog.DiscardHandler),
		Released: func(n types.NamespacedName) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.released = append(r.released, n.String())
		},
		PoolChanged: func(n types.NamespacedName) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told[n]++
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// run starts the keeper in the bubble and waits until nothing moves.
func (r *rig) run() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.ended = cancel, make(chan error, 1)
	go func(k *deskkeys.Keeper, ended chan error) { ended <- k.Run(ctx) }(r.keeper, r.ended)
	synctest.Wait()
}

func (r *rig) stop() {
	r.t.Helper()
	r.cancel()
	if err := <-r.ended; err != nil {
		r.t.Errorf("Run: %v", err)
	}
}

// put stores an object and tells the keeper of it, as the cache does.
func (r *rig) put(o client.Object) {
	r.t.Helper()
	r.store(o)
	r.tell(o)
}

// store makes an object, or changes the one that is there.
func (r *rig) store(o client.Object) {
	r.t.Helper()
	there := o.DeepCopyObject().(client.Object)
	err := r.objects.Get(r.t.Context(), client.ObjectKeyFromObject(o), there)
	if apierrors.IsNotFound(err) {
		err = r.objects.Create(r.t.Context(), o)
	} else if err == nil {
		o.SetResourceVersion(there.GetResourceVersion())
		err = r.objects.Update(r.t.Context(), o)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) drop(o client.Object) {
	r.t.Helper()
	if err := r.objects.Delete(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
	r.tell(o)
}

func (r *rig) tell(o client.Object) {
	r.t.Helper()
	if _, ok := o.(*v1alpha1.ProxyPool); ok {
		r.keeper.Space(o.GetNamespace())
	} else {
		r.keeper.Proxy(client.ObjectKeyFromObject(o))
	}
	synctest.Wait()
}

// freed are the Proxies that the keeper told of as held by nobody any more.
func (r *rig) freed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.released)
}

// shown is how often the keeper told of a change of a pool.
func (r *rig) shown(pool types.NamespacedName) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told[pool]
}

// metric sums a metric over all label values, or those given.
func (r *rig) metric(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				if len(labels) > 0 && !slices.Contains(labels, m.GetLabel()[0].GetValue()) {
					continue
				}
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// proxy is a Proxy that works.
func proxy(ns, name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       v1alpha1.ProxySpec{Provider: "local", Protocol: "http"},
		Status: v1alpha1.ProxyStatus{
			Phase: v1alpha1.PhaseReady, Address: "192.0.2.10", Port: 3128, ExitIP: "203.0.113.7", Host: "h1",
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "True", Reason: "Ready", Message: "the proxy works"}},
		},
	}
	for _, c := range change {
		c(px)
	}
	return px
}

func unhealthy(message string) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) {
		px.Status.Phase = v1alpha1.PhaseUnhealthy
		px.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "False", Reason: "ProbeFailed", Message: message}}
	}
}

func labelled(pairs ...string) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) {
		px.Labels = map[string]string{}
		for _, p := range pairs {
			name, value, _ := strings.Cut(p, "=")
			px.Labels[name] = value
		}
	}
}

func pool(ns, name string, change ...func(*v1alpha1.ProxyPool)) *v1alpha1.ProxyPool {
	p := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Generation: 1}}
	for _, c := range change {
		c(p)
	}
	return p
}

func selects(pairs ...string) func(*v1alpha1.ProxyPool) {
	return func(p *v1alpha1.ProxyPool) {
		p.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{}}
		for _, pair := range pairs {
			name, value, _ := strings.Cut(pair, "=")
			p.Spec.Selector.MatchLabels[name] = value
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
