package kubelet

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// callLimit bounds one call of the API server.
	callLimit = 15 * time.Second
	// workers is how many Pods are looked after at once.
	workers = 8
	// again is when a Pod is looked at once more after a failure.
	again = 100 * time.Millisecond
)

// T is the part of *testing.T that is needed, and that a conformance suite has.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Options says what there is.
type Options struct {
	// Config reaches the API server with an administrator's rights.
	Config *rest.Config
	// Namespace is where the Pods are.
	Namespace string
	// Nodes are the nodes; none means one of the name "node".
	Nodes []Node
	// HasImage says whether an image can be had; nil means all whose reference
	// does not hold "missing".
	HasImage func(reference string) bool
}

// Node is one node. Its object is called <name>.<namespace>, since nodes are in
// no namespace and tests share a server; its label kubernetes.io/hostname is
// the name alone.
type Node struct {
	Name   string
	Labels map[string]string
	Taints []corev1.Taint
}

// Kubelet is the stand-in.
type Kubelet struct {
	ns       string
	kc       kubernetes.Interface
	nodes    map[string]Node // by the object's name
	hasImage func(string) bool
	program  string
	pods     listers.PodNamespaceLister
	queue    workqueue.TypedRateLimitingInterface[string]
	ctx      context.Context //nolint:containedctx // its whole life

	mu      sync.Mutex
	running map[types.UID]*process
	bound   map[types.UID]string // scheduled, perhaps not seen yet
	starts  map[types.UID]int32
	down    map[string]bool
	crashed map[string]bool // by Pod
	hold    bool
	// over are Pods that have ended for good, writing who writes a Pod's status.
	over    map[types.UID]bool
	writing map[types.UID]*sync.Mutex
}

// Start registers the nodes and begins to run Pods, until the test ends.
func Start(t T, o Options) *Kubelet {
	t.Helper()
	cfg := rest.CopyConfig(o.Config)
	cfg.QPS = -1
	kc, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatalf("kubelet: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("kubelet: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &Kubelet{
		ns: o.Namespace, kc: kc, nodes: map[string]Node{}, hasImage: o.HasImage, program: self, ctx: ctx,
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		running: map[types.UID]*process{}, bound: map[types.UID]string{}, starts: map[types.UID]int32{},
		down: map[string]bool{}, crashed: map[string]bool{},
		over: map[types.UID]bool{}, writing: map[types.UID]*sync.Mutex{},
	}
	if k.hasImage == nil {
		k.hasImage = func(ref string) bool { return !strings.Contains(ref, "missing") }
	}
	if len(o.Nodes) == 0 {
		o.Nodes = []Node{{Name: "node"}}
	}
	for _, n := range o.Nodes {
		k.register(t, n)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kc, 0, informers.WithNamespace(o.Namespace))
	informer := factory.Core().V1().Pods()
	k.pods = informer.Lister().Pods(o.Namespace)
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    k.changed,
		UpdateFunc: func(_, obj any) { k.changed(obj) },
		DeleteFunc: k.changed,
	}); err != nil {
		t.Fatalf("kubelet: %v", err)
	}
	factory.Start(ctx.Done())
	for _, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Fatalf("kubelet: the API server lists no Pods")
		}
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for k.work() {
			}
		})
	}
	t.Cleanup(func() {
		k.queue.ShutDown()
		cancel()
		group.Wait()
		factory.Shutdown()
		k.mu.Lock()
		all := k.running
		k.running = map[types.UID]*process{}
		k.mu.Unlock()
		for _, p := range all {
			p.end()
		}
		for name := range k.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), callLimit)
			_ = kc.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
			cancel()
		}
	})
	return k
}

var _ T = testing.TB(nil)

func (k *Kubelet) register(t T, n Node) {
	t.Helper()
	name := k.NodeName(n.Name)
	labels := map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"}
	for key, value := range n.Labels {
		labels[key] = value
	}
	n.Labels = labels
	ctx, cancel := context.WithTimeout(k.ctx, callLimit)
	defer cancel()
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{Taints: n.Taints}}
	if _, err := k.kc.CoreV1().Nodes().Create(ctx, obj, metav1.CreateOptions{}); err != nil {
		t.Fatalf("kubelet: register node %s: %v", name, err)
	}
	k.nodes[name] = n
	if err := k.nodeReady(ctx, name, corev1.ConditionTrue); err != nil {
		t.Fatalf("kubelet: node %s: %v", name, err)
	}
}

// NodeName is the name of a node's object.
func (k *Kubelet) NodeName(short string) string { return short + "." + k.ns }

func (k *Kubelet) nodeReady(ctx context.Context, name string, is corev1.ConditionStatus) error {
	obj, err := k.kc.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	obj.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is, Reason: "StandIn", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	obj.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	_, err = k.kc.CoreV1().Nodes().UpdateStatus(ctx, obj, metav1.UpdateOptions{})
	return err
}

func (k *Kubelet) changed(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		_, name, _ := cache.SplitMetaNamespaceKey(key)
		k.queue.Add(name)
	}
}

func (k *Kubelet) work() bool {
	name, over := k.queue.Get()
	if over {
		return false
	}
	defer k.queue.Done(name)
	ctx, cancel := context.WithTimeout(k.ctx, callLimit)
	defer cancel()
	if err := k.sync(ctx, name); err != nil {
		k.queue.AddAfter(name, again)
	}
	return true
}
