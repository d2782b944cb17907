package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/controller/proxy"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

// noReprieve has a host that left the configuration believed at once.
func noReprieve(o *proxy.Options) { o.Reprieve = -1 }

func skipped(px *v1alpha1.Proxy) {
	px.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: "true"}
}

// torn is a client whose patches fail while told to, as when the operator is
// killed before them. before is called ahead of each.
type torn struct {
	client.Client
	fail   atomic.Bool
	before func()
}

func (c *torn) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if c.before != nil {
		c.before()
	}
	if c.fail.Load() {
		return errors.New("the operator died here")
	}
	return c.Client.Patch(ctx, o, p, opts...)
}

// Whatever instant the operator dies at, the instance is written down before its
// Proxy goes, and once.
func TestAnAbandonedInstanceIsWrittenDownBeforeItsProxyGoes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		answer *answers
		change func(*v1alpha1.Proxy)
		why    string
	}{
		"by annotation":    {"a person let the Proxy go", &answers{}, skipped, v1alpha1.SkipCleanupAnnotation},
		"its host is gone": {"a person took the host out", &answers{state: provider.Abandoned}, func(*v1alpha1.Proxy) {}, `host "h1"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &torn{}
			b := newBench(t, func(o *proxy.Options) { c.Client = o.Client; o.Client = c }, noReprieve)
			b.providers.of["a"] = tc.answer
			px := b.doomed(cluster.Namespace(t), "a", tc.change)
			c.fail.Store(true)
			if _, err := b.reconcile(px); err == nil {
				t.Fatal("the finalizer was not refused")
			}
			record, ok := b.ledger.get(px)
			if b.read(px) == nil || !ok {
				t.Fatalf("%s: written down: %v", tc.reason, ok)
			}
			if record.ProviderID != px.Status.ProviderID || record.Host != "h1" || !strings.Contains(record.Reason, tc.why) {
				t.Errorf("%s: written down as %+v", tc.reason, record)
			}
			if told := b.heard.about("a", "Abandoned"); len(told) != 0 {
				t.Errorf("told of before it is so: %v", told)
			}
			c.fail.Store(false)
			b.reconciler = proxy.New(b.options) // the next operator
			if _, err := b.reconcile(px); err != nil || b.read(px) != nil {
				t.Fatalf("the Proxy is still there: %v", err)
			}
			if told := b.heard.about("a", "Abandoned"); len(told) != 1 || !strings.Contains(told[0], px.Status.ProviderID) {
				t.Errorf("told: %v", told)
			}
			if len(b.ledger.late) != 0 || len(b.ledger.of) != 1 {
				t.Errorf("late: %v; all: %v", b.ledger.late, b.ledger.of)
			}
		})
	}
}

func TestAProxyThatCannotBeWrittenDownWaitsAndSaysSo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err    error
		reason string
		says   []string
	}{
		"full": {
			// The ledger's own words say how to make room.
			fault.New(fault.Quota, "2000 instances are written down there already: "+strings.Repeat("x", 500)+" run: kubectl patch"), v1alpha1.ReasonQuota,
			[]string{"2000 instances", "run: kubectl patch. It is tried again"},
		},
		"API error": {errors.New("etcdserver: request timed out"), v1alpha1.ReasonTransient, []string{"request timed out", "may write there"}},
		"refused":   {fault.New(fault.Denied, "forbidden"), v1alpha1.ReasonDenied, []string{"forbidden", "may write there"}},
	} {
		for way, change := range map[string]func(*v1alpha1.Proxy){"skip": skipped, "host gone": func(*v1alpha1.Proxy) {}} {
			t.Run(name+", "+way, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, noReprieve)
				b.providers.of["a"] = &answers{state: provider.Abandoned}
				px := b.doomed(cluster.Namespace(t), "a", change)
				b.ledger.set(tc.err)
				for range 3 {
					res, err := b.reconcile(px)
					if err != nil || res.RequeueAfter <= 0 || res.RequeueAfter > time.Minute {
						t.Fatalf("it comes back after %s, %v", res.RequeueAfter, err)
					}
				}
				now := b.read(px)
				if now == nil {
					t.Fatal("the Proxy went, and nobody knows of its instance")
				}
				ready := condition(now, v1alpha1.ConditionReady)
				if now.Status.Phase != v1alpha1.PhaseTerminating || ready.Reason != tc.reason {
					t.Errorf("phase %s, Ready %+v", now.Status.Phase, ready)
				}
				says := append([]string{"cannot be written down in ProxyProvider a"}, tc.says...)
				if way == "skip" {
					says = append(says, "kubectl -n "+px.Namespace+" annotate proxy a "+v1alpha1.SkipCleanupAnnotation+"-")
				}
				for _, want := range says {
					if !strings.Contains(ready.Message, want) {
						t.Errorf("the condition does not say %q: %s", want, ready.Message)
					}
				}
				if told := b.heard.about("a", "DeletionBlocked"); len(told) != 1 {
					t.Errorf("told %d times: %v", len(told), told)
				}
				b.ledger.set(nil)
				if _, err := b.reconcile(px); err != nil || b.read(px) != nil || len(b.ledger.of) != 1 {
					t.Errorf("with room there it does not go: %v; %v", err, b.ledger.of)
				}
			})
		}
	}
}

// A person who changes their mind while the ledger is full has the instance
// deleted.
func TestWhatCannotBeWrittenDownCanBeDeletedInstead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.providers.of["a"] = &answers{state: provider.Gone}
	px := b.doomed(cluster.Namespace(t), "a", skipped)
	b.ledger.set(fault.New(fault.Quota, "full"))
	if _, err := b.reconcile(px); err != nil || b.read(px) == nil {
		t.Fatal(err)
	}
	now := b.read(px)
	delete(now.Annotations, v1alpha1.SkipCleanupAnnotation)
	if err := b.client.Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if _, err := b.reconcile(px); err != nil || b.read(px) != nil {
		t.Errorf("it is still there: %v", err)
	}
	if len(b.ledger.of) != 0 || len(b.heard.about("a", "Deleted")) != 1 {
		t.Errorf("written down: %v", b.ledger.of)
	}
}

// Only instances that may exist are written down: the host is stored before
// anything is made there.
func TestWhatWasNeverMadeIsNotWrittenDown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		host, id string
		written  bool
	}{
		"nothing":     {"", "", false},
		"host":        {"h1", "", true},
		"host and id": {"h1", "fake://h1/1", true},
		"id":          {"", "fake://h1/1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			px := b.doomed(cluster.Namespace(t), "a", skipped, func(px *v1alpha1.Proxy) {
				px.Status.Host, px.Status.ProviderID = tc.host, tc.id
			})
			if _, err := b.reconcile(px); err != nil || b.read(px) != nil {
				t.Fatalf("it is still there: %v", err)
			}
			if record, ok := b.ledger.get(px); ok != tc.written || record.Host != tc.host || record.ProviderID != tc.id {
				t.Errorf("written down: %v, %+v", ok, record)
			}
			if len(b.heard.about("a", "Abandoned")) != 1 {
				t.Error("no event")
			}
		})
	}
}

// A cache that has not heard of the host, or of the providerID, must neither let
// an instance go unwritten nor have it written without its name.
func TestAnOldReadingIsNotWhatIsWrittenDown(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]func(*v1alpha1.Proxy){
		"nothing yet": func(px *v1alpha1.Proxy) { px.Status = v1alpha1.ProxyStatus{} },
		"no id yet":   func(px *v1alpha1.Proxy) { px.Status.ProviderID = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := &late{}
			b := newBench(t, func(o *proxy.Options) { cache.Client = o.Client; o.Client = cache })
			px := b.doomed(cluster.Namespace(t), "a", skipped)
			was := b.read(px)
			old(was)
			was.ResourceVersion = "1"
			cache.old.Store(was)
			if res, err := b.reconcile(px); err != nil || res.RequeueAfter <= 0 || len(b.ledger.of) != 0 {
				t.Fatalf("after %s, %v: written down %v", res.RequeueAfter, err, b.ledger.of)
			}
			if _, err := b.reconcile(px); err != nil || b.read(px) != nil {
				t.Fatalf("it is still there: %v", err)
			}
			if record, _ := b.ledger.get(px); record.ProviderID != px.Status.ProviderID || record.Host != "h1" {
				t.Errorf("written down as %+v", record)
			}
		})
	}
}

// Many go at once, each looked at by several workers that know nothing of each
// other, as two leaders for a moment are.
func TestManyAreAbandonedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ns := cluster.Namespace(t)
	var all []*v1alpha1.Proxy
	for i := range 20 {
		all = append(all, b.doomed(ns, fmt.Sprint("p", i), skipped))
	}
	var group errgroup.Group
	for range 3 {
		at := *b
		at.reconciler = proxy.New(b.options)
		for _, px := range all {
			group.Go(func() error {
				for range 50 {
					if _, err := at.reconcile(px); err != nil {
						return err
					}
					if at.read(px) == nil {
						return nil
					}
				}
				return errors.New(px.Name + " is still there")
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if len(b.ledger.of) != len(all) {
		t.Errorf("%d of %d are written down", len(b.ledger.of), len(all))
	}
	for _, px := range all {
		// Of several that drop the last finalizer at one moment the API server
		// may tell each that it was the one.
		if len(b.heard.about(px.Name, "Abandoned")) == 0 {
			t.Errorf("%s: no event", px.Name)
		}
	}
}

// In a whole operator as well: the record is there, and the Event names the
// instance.
func TestSkipCleanupWritesDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{})
	l := &ledger{client: r.client, of: map[string]v1alpha1.AbandonedInstance{}}
	r.ledger = l
	r.start()
	r.create(r.proxy("a"))
	px := r.reaches("a", v1alpha1.PhaseReady, v1alpha1.ReasonReady)
	px.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: "true"}
	if err := r.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	r.delete("a")
	r.gone("a")
	record, ok := l.get(px)
	if m := r.machines(); !ok || len(m) != 1 || record.ProviderID != m[0].ID || record.Host != m[0].Host || record.Proxy != r.ns+"/a" {
		t.Errorf("written down: %v, %+v; machines %+v", ok, record, m)
	}
	if note := r.event("a", "Abandoned"); !strings.Contains(note, px.Status.ProviderID) {
		t.Errorf("the event does not name the instance: %s", note)
	}
}
