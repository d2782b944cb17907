package kubernetes_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// What somebody else put under our names is left alone, and the error says so.
func TestNamesThatAreTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.open(t)
	for kind, put := range map[string]func(name string){
		"Pod": func(name string) {
			spec := plainPod()
			spec.SchedulerName = "nobody"
			_, err := w.admin.CoreV1().Pods(w.ns).Create(within(t), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		},
		"Secret": func(name string) {
			_, err := w.admin.CoreV1().Secrets(w.ns).Create(within(t), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"a": []byte("b")}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		spec := specOf(w, "taken-"+strings.ToLower(kind))
		name := nameOf(spec.Owner)
		put(name)
		if _, err := p.Create(t.Context(), spec); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "left alone") {
			t.Errorf("Create over somebody's %s: %v", kind, err)
		}
		if in, err := p.Get(t.Context(), provider.Ref{Owner: spec.Owner}); kind == "Pod" && fault.Of(err) != fault.Conflict {
			t.Errorf("Get of somebody's %s: %+v, %v", kind, in, err)
		}
		if st, err := p.Delete(t.Context(), provider.Ref{Owner: spec.Owner}); err == nil && st == provider.Gone || err != nil && fault.Of(err) != fault.Conflict {
			t.Errorf("Delete beside somebody's %s: %s, %v", kind, st, err)
		}
		if left := w.remains(t, spec.Owner); len(left) != 1 {
			t.Errorf("of somebody's %s there is %q", kind, left)
		}
	}
}

// A Create that begins while a leftover is removed wins, or the removal comes
// first; never is there a Pod without its Secret for good.
func TestLeftoverBesideCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	b := &backEnd{world: w}
	b.p = w.open(t)
	for _, step := range []string{"kubernetes: service", "kubernetes: pod", "never"} {
		uid := "beside-" + strings.ReplaceAll(strings.TrimPrefix(step, "kubernetes: "), " ", "-")
		l, there := b.litter(t, w.host(), ownerOf(uid))
		spec := specOf(w, uid)
		t.Cleanup(func() { gone(t, b.p, spec.Owner) })
		// Right before the removal a Create goes as far as that step.
		ctx := provider.WithStepHook(t.Context(), func(string) error {
			_, err := b.p.Create(provider.WithStepHook(t.Context(), func(at string) error {
				if at == step {
					return fault.New(fault.Transient, "ended")
				}
				return nil
			}), spec)
			if step == "never" && err != nil {
				t.Errorf("Create: %v", err)
			}
			return nil
		})
		if err := b.p.RemoveLeftover(ctx, installation, l); fault.Of(err) != fault.Conflict {
			t.Errorf("up to step %s: RemoveLeftover = %v; want Conflict, since the Secret was written anew", step, err)
		}
		if !there(t) {
			t.Errorf("up to step %s: the Secret is gone", step)
		}
		until(t, b.p, spec, provider.Running)
	}
	// A Secret that a person removes is made again while its Pod has not started.
	spec := specOf(w, "bare")
	t.Cleanup(func() { gone(t, b.p, spec.Owner) })
	w.nodes.Hold()
	if _, err := b.p.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := w.admin.CoreV1().Secrets(w.ns).Delete(t.Context(), nameOf(spec.Owner), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.nodes.Release()
	until(t, b.p, spec, provider.Running)
}

// counted is a way to the cluster that counts requests.
type counted struct {
	cfg *rest.Config
	n   atomic.Int64
	mu  sync.Mutex
	log []string
}

func (c *counted) own() (*rest.Config, error) {
	cfg := rest.CopyConfig(c.cfg)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return trip(func(r *http.Request) (*http.Response, error) {
			c.n.Add(1)
			c.mu.Lock()
			c.log = append(c.log, r.Method+" "+r.URL.Path+" watch="+r.URL.Query().Get("watch")+" limit="+r.URL.Query().Get("limit"))
			c.mu.Unlock()
			return rt.RoundTrip(r)
		})
	})
	return cfg, nil
}

type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// since are the requests that call made.
func (c *counted) since(call func()) []string {
	c.mu.Lock()
	c.log = nil
	c.mu.Unlock()
	call()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log
}

// A listing costs one request for one Pod, however many there are; nothing is
// polled. More Pods than a page are all shown.
func TestCost(t *testing.T) {
	t.Parallel()
	const many = 520
	w := newWorld(t, nil)
	c := &counted{cfg: w.user}
	section := w.section
	section.KubeconfigSecret = nil
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: section, Own: c.own, HashCost: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var group sync.WaitGroup
	for lane := range 8 {
		group.Go(func() {
			for n := lane; n < many; n += 8 {
				o := ownerOf(fmt.Sprintf("many-%d", n))
				spec := plainPod()
				spec.SchedulerName = "nobody"
				_, err := w.admin.CoreV1().Pods(w.ns).Create(context.Background(), &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: nameOf(o), Labels: marks(o)}, Spec: spec,
				}, metav1.CreateOptions{})
				if err != nil {
					t.Errorf("%v", err)
					return
				}
			}
		})
	}
	group.Wait()
	list := func() {
		rows, err := p.ListByTag(t.Context(), installation)
		if err != nil || rows[0].Err != nil || len(rows[0].Instances) != many {
			t.Errorf("listed %d, %v, %v; want %d", len(rows[0].Instances), rows[0].Err, err, many)
		}
	}
	first := c.since(list)
	pages := 0
	for _, r := range first {
		if strings.Contains(r, "limit=500") {
			pages++
		}
	}
	if pages != 2 {
		t.Errorf("the first listing read %d pages: %q", pages, first)
	}
	if got := c.since(func() { list(); list(); list() }); len(got) != 3 {
		t.Errorf("three listings cost %q", got)
	}
	if got := c.since(func() {
		_, _ = p.Get(t.Context(), provider.Ref{Owner: ownerOf("many-1")})
	}); len(got) != 1 {
		t.Errorf("Get costs %q", got)
	}
	claim := provider.Claim{Installation: installation, Holder: "costholder", Beat: 1, Period: time.Minute}
	if _, err := p.Claim(t.Context(), claim); err != nil {
		t.Error(err)
	}
	claim.Beat++
	if got := c.since(func() { _, _ = p.Claim(t.Context(), claim) }); len(got) != 2 {
		t.Errorf("a renewal costs %q", got)
	}
	spec := specOf(w, "cost")
	t.Cleanup(func() { gone(t, w.open(t), spec.Owner) })
	if got := c.since(func() {
		if _, err := p.Create(t.Context(), spec); err != nil {
			t.Error(err)
		}
	}); len(got) != 3 {
		t.Errorf("a Create costs %q; want a look, a Secret and a Pod", got)
	}
}

// Two providers of one operator in one namespace claim for themselves, and a
// claim that cannot be read is the row's error.
func TestClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	a := w.open(t)
	other, err := kubernetes.New(kubernetes.Options{Name: "second", Section: w.section, Secret: w.secrets.get})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	claim := func(p *kubernetes.Provider, holder string, beat uint64, dead ...string) provider.HostClaims {
		t.Helper()
		rows, err := p.Claim(t.Context(), provider.Claim{Installation: installation, Holder: holder, Beat: beat, Period: 90 * time.Second, Dead: dead})
		if err != nil {
			t.Fatal(err)
		}
		return rows[0]
	}
	claim(a, "holderone", 3)
	claim(other, "holderone", 4)
	row := claim(a, "holdertwo", 1)
	if row.Err != nil || len(row.Others) != 1 || row.Others[0] != (provider.OtherClaim{Holder: "holderone", Beat: 7, Period: 90 * time.Second}) {
		t.Errorf("two providers of one holder = %+v", row)
	}
	// It takes back what it claimed by this provider, and no more.
	claim(a, "holderone", 5, "holderone")
	row = claim(a, "holdertwo", 2)
	if row.Err != nil || len(row.Others) != 1 || row.Others[0].Beat != 4 {
		t.Errorf("after one was taken back = %+v", row)
	}
	leases, err := w.admin.CoordinationV1().Leases(w.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range leases.Items {
		l := &leases.Items[i]
		if *l.Spec.HolderIdentity != "holderone" {
			continue
		}
		l.Annotations["crawl.example.com/beat"] = "many"
		if _, err := w.admin.CoordinationV1().Leases(w.ns).Update(t.Context(), l, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if row := claim(a, "holdertwo", 3); fault.Of(row.Err) != fault.Transient || !strings.Contains(row.Err.Error(), "cannot tell whose claim") {
		t.Errorf("a claim that cannot be read = %+v", row)
	}
}
