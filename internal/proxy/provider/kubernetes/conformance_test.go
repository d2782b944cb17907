package kubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
	"fleetdesk/internal/proxy/provider/providertest"
	"fleetdesk/internal/testkit/kubelet"
)

// most is maxInstances in the suite.
const most = 40

// The whole suite, as a user who has the documented Role alone, in a namespace
// where Pod security "restricted" is in force.
func TestConformance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *kubernetes.Section) { s.MaxInstances = most }, kubelet.Node{Name: "a"}, kubelet.Node{Name: "b"})
	w.limit = 2500 * time.Millisecond
	b := &backEnd{world: w}
	b.p = w.open(t)
	providertest.Run(t, b.harness())
}

// The clauses about what an instance consists of, with a Service for each Pod,
// whose address is the proxy's.
func TestConformanceWithServices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *kubernetes.Section) {
		s.MaxInstances, s.Service = most, &kubernetes.Service{Type: "ClusterIP"}
	})
	w.limit = 2500 * time.Millisecond
	b := &backEnd{world: w}
	b.p = w.open(t)
	providertest.RunClauses(t, b.harness(), "P-CRE-1", "P-CRE-3", "P-CRE-4", "P-CRE-5", "P-CRE-7", "P-CRE-8", "P-CRE-9",
		"P-GET-1", "P-GET-2", "P-DEL-1", "P-DEL-5", "P-DEL-6", "P-DEL-7", "P-DEL-12", "P-LST-1", "P-CLN-2", "P-CLN-3", "P-WAT-1")
}

func (b *backEnd) harness() providertest.Harness {
	id := func(provider, cluster, ns, pod string) string {
		return kubernetes.ID{Provider: provider, Cluster: cluster, Namespace: ns, Pod: pod}.String()
	}
	never := nameOf(ownerOf("never-made"))
	return providertest.Harness{
		Provider:     b.p,
		Installation: installation,
		Hosts:        []string{b.host()},
		Spec: func(o provider.Owner) provider.Spec {
			return provider.Spec{
				Owner: o, Port: testPort, Protocol: provider.HTTP,
				Credentials: provider.Credentials{User: "crawler", Password: provider.Secret("p:a@s$s%wörd-7Qx")},
			}
		},
		Patience:  patience,
		StepLimit: b.limit,
		Reopen:    func(t providertest.T) provider.Provider { return &follower{b.open(t), b, t} },
		Remains:   b.remains,
		Foreign:   b.foreign,
		Stop:      func(t providertest.T, in provider.Instance) { b.nodes.Evict(t, nameOf(in.Owner)) },
		Vanish:    b.vanish,
		Corrupt:   b.corrupt,
		Impair: func(t providertest.T, in provider.Instance) func() {
			b.nodes.Crash(t, nameOf(in.Owner))
			return func() { b.nodes.Recover(nameOf(in.Owner)) }
		},
		BreakHost: func(_ providertest.T, _ string) func() {
			b.line.setCut(true)
			return func() { b.line.setCut(false) }
		},
		MuteHost: func(_ providertest.T, _ string) func() {
			b.line.setMute(true)
			return func() { b.line.setMute(false) }
		},
		Fill:   b.fill,
		Litter: b.litter,
		Use:    b.use,
		UnknownIDs: []string{
			id("away", "away", b.ns, never), id("away", "away", b.ns, "px-never-made-0000000000000000"),
		},
		MalformedIDs: []string{
			"kubernetes://away", "kubernetes://away/away/" + b.ns, "kubernetes://away/away/" + b.ns + "/other",
			"kubernetes://away/away/../" + never, "kvm://away/away/" + b.ns + "/" + never, "x", id("away", "away", b.ns, never) + "/",
		},
		StrayIDs: []string{id("elsewhere", "away", b.ns, never), id("away", "elsewhere", b.ns, never), id("away", "away", "elsewhere", never)},
	}
}

// backEnd is the world as the suite's harness needs it.
type backEnd struct {
	*world
	p *kubernetes.Provider
}

// follower is the provider of another operator. What it does reaches the one
// under test by its watch, so it waits for that: the suite asks in the same
// instant.
type follower struct {
	*kubernetes.Provider
	b *backEnd
	t providertest.T
}

func (f *follower) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	in, err := f.Provider.Create(ctx, s)
	if err == nil {
		f.b.heard(f.t, nameOf(s.Owner))
	}
	return in, err
}

func (f *follower) Delete(ctx context.Context, r provider.Ref) (provider.State, error) {
	before, _ := f.b.admin.CoreV1().Pods(f.b.ns).Get(ctx, nameOf(r.Owner), metav1.GetOptions{})
	st, err := f.Provider.Delete(ctx, r)
	if err == nil && st == provider.Gone && before != nil {
		f.b.heardGone(f.t, nameOf(r.Owner), before.UID)
	}
	return st, err
}

// heard waits until the provider under test knows a Pod as it is.
func (b *backEnd) heard(t providertest.T, name string) {
	t.Helper()
	pod, err := b.admin.CoreV1().Pods(b.ns).Get(within(t), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	if err == nil {
		err = b.p.HeardPod(within(t), name, pod.UID, pod.ResourceVersion)
	}
	if err != nil {
		t.Errorf("the provider under test does not hear of Pod %s: %v", name, err)
	}
}

func (b *backEnd) heardGone(t providertest.T, name string, uid types.UID) {
	t.Helper()
	if err := b.p.HeardPod(within(t), name, uid, ""); err != nil {
		t.Errorf("the provider under test does not hear that Pod %s went: %v", name, err)
	}
}

// drop removes all that is of a name, as a person would, by force.
func (w *world) drop(t providertest.T, name string) {
	t.Helper()
	now := int64(0)
	err := errors.Join(
		there(w.admin.CoreV1().Pods(w.ns).Delete(within(t), name, metav1.DeleteOptions{GracePeriodSeconds: &now})),
		there(w.admin.CoreV1().Secrets(w.ns).Delete(within(t), name, metav1.DeleteOptions{})),
		there(w.admin.CoreV1().Services(w.ns).Delete(within(t), name, metav1.DeleteOptions{})))
	if err != nil {
		t.Errorf("%v", err)
	}
	await(t, "the process to end", func() bool { return len(w.nodes.Processes(name)) == 0 })
}

func there(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (b *backEnd) vanish(t providertest.T, in provider.Instance) {
	t.Helper()
	name := nameOf(in.Owner)
	b.drop(t, name)
}

// annotate writes the owner's annotation, and waits until that was heard.
func (b *backEnd) annotate(t providertest.T, name string, value any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"crawl.example.com/owner": value}}})
	if err != nil {
		t.Fatalf("%v", err)
	}
	_, err = b.admin.CoreV1().Pods(b.ns).Patch(within(t), name, types.MergePatchType, text, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	b.heard(t, name)
}

// corrupt damages the annotation that says whose the Pod is.
func (b *backEnd) corrupt(t providertest.T, in provider.Instance) func() {
	t.Helper()
	name := nameOf(in.Owner)
	was := b.pod(t, name).Annotations["crawl.example.com/owner"]
	b.annotate(t, name, was[:len(was)/2])
	return func() { b.annotate(t, name, was) }
}

// bare makes a Pod that the stand-in does not run.
func (b *backEnd) bare(t providertest.T, name string, o provider.Owner) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: marks(o)},
		Spec:       plainPod(),
	}
	pod.Spec.SchedulerName = "nobody"
	pod, err := b.admin.CoreV1().Pods(b.ns).Create(within(t), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	b.heard(t, pod.Name)
}

func marks(o provider.Owner) map[string]string {
	return map[string]string{
		"app.kubernetes.io/managed-by":   "fleetdesk",
		"crawl.example.com/installation": kubernetes.TagOf(o.Installation),
		"crawl.example.com/proxy-uid":    o.UID,
	}
}

// plainPod is a Pod that passes Pod security "restricted".
func plainPod() corev1.PodSpec {
	no, yes := false, true
	return corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{
			Name: "c", Image: "registry.example.com/c",
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}},
	}
}

func (b *backEnd) fill(t providertest.T) func() {
	t.Helper()
	filler := func(n int) provider.Owner { return ownerOf(fmt.Sprintf("filler-%d", n)) }
	for n := range most {
		b.bare(t, nameOf(filler(n)), filler(n))
	}
	return func() {
		for n := range most {
			name := nameOf(filler(n))
			pod, err := b.admin.CoreV1().Pods(b.ns).Get(within(t), name, metav1.GetOptions{})
			if err != nil {
				continue
			}
			b.drop(t, name)
			b.heardGone(t, name, pod.UID)
		}
	}
}

// litter leaves the Secret of an instance whose Pod was never made, as a Create
// leaves it that ends there.
func (b *backEnd) litter(t providertest.T, host string, o provider.Owner) (provider.Leftover, func(providertest.T) bool) {
	t.Helper()
	ended := fault.New(fault.Transient, "the operator ends here")
	_, err := b.open(t).Create(provider.WithStepHook(within(t), func(step string) error {
		if step == "kubernetes: service" || step == "kubernetes: pod" {
			return ended
		}
		return nil
	}), provider.Spec{Owner: o, Host: host, Port: testPort, Protocol: provider.HTTP})
	if !errors.Is(err, ended) {
		t.Fatalf("a Create that ends before its Pod: %v", err)
	}
	s, err := b.admin.CoreV1().Secrets(b.ns).Get(within(t), nameOf(o), metav1.GetOptions{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { b.drop(t, s.Name) })
	return provider.Leftover{Host: host, ID: "secret/" + s.Name + "/" + string(s.UID), What: "secret"}, func(t providertest.T) bool {
		got, err := b.admin.CoreV1().Secrets(b.ns).Get(within(t), s.Name, metav1.GetOptions{})
		return err == nil && got.UID == s.UID
	}
}

// use makes the Pod that the Secret belongs to.
func (b *backEnd) use(t providertest.T, l provider.Leftover) func() {
	t.Helper()
	name := l.ID[len("secret/") : len(l.ID)-len("/00000000-0000-0000-0000-000000000000")]
	s, err := b.admin.CoreV1().Secrets(b.ns).Get(within(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	b.bare(t, name, provider.Owner{Installation: installation, UID: s.Labels["crawl.example.com/proxy-uid"]})
	return func() {
		now := int64(0)
		if err := there(b.admin.CoreV1().Pods(b.ns).Delete(within(t), name, metav1.DeleteOptions{GracePeriodSeconds: &now})); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// foreign has another installation's operator make an instance in the same
// namespace.
func (b *backEnd) foreign(t providertest.T, host string, o provider.Owner) (provider.Ref, func(providertest.T)) {
	t.Helper()
	other := b.open(t)
	var in provider.Instance
	await(t, "another installation's instance", func() bool {
		var err error
		in, err = other.Create(within(t), provider.Spec{Owner: o, Host: host, Port: testPort})
		return err == nil && in.State == provider.Running
	})
	t.Cleanup(func() {
		await(t, "its end", func() bool {
			st, err := other.Delete(within(t), provider.Ref{Owner: o})
			return err == nil && st == provider.Gone
		})
	})
	before := b.snapshot(t, o)
	return provider.Ref{ID: in.ID, Owner: o, Host: in.Host}, func(t providertest.T) {
		t.Helper()
		if after := b.snapshot(t, o); !reflect.DeepEqual(before, after) {
			t.Errorf("another installation's instance %s was touched: before %v, after %v", in.ID, before, after)
		}
	}
}

// snapshot is what there is of an instance.
func (b *backEnd) snapshot(t providertest.T, o provider.Owner) map[string]string {
	t.Helper()
	name := nameOf(o)
	s, err := b.admin.CoreV1().Secrets(b.ns).Get(within(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	pod := b.pod(t, name)
	return map[string]string{
		"pod": string(pod.UID), "spec": fmt.Sprint(pod.Generation), "marks": fmt.Sprint(pod.Labels, pod.Annotations, pod.DeletionTimestamp),
		"secret": string(s.UID) + s.ResourceVersion, "processes": fmt.Sprint(b.nodes.Processes(name)),
	}
}
