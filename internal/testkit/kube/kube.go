// Package kube gives tests a real Kubernetes API server and etcd.
//
// The binaries are our own builds under bin/k8s (make kube-assets), so that
// every machine tests against the same version; KUBEBUILDER_ASSETS is not
// asked. One server serves all tests of a test binary, and starts when the
// first test asks for it:
//
//	var cluster = kube.Shared(kube.Options{CRDs: crd.Bases})
//
//	func TestMain(m *testing.M) { os.Exit(cluster.Run(m)) }
//
//	func TestSomething(t *testing.T) {
//		cfg, ns := cluster.Config(t), cluster.Namespace(t)
//
// With leak checks: goleak.VerifyTestMain(cluster.Around(m)).
//
// It is an API server alone: no controller runs there. A deleted namespace
// stays Terminating, and what an owner leaves behind stays. For those two use
// the control plane of the module fleetdesk/standalone.
package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

// How long the parts may take on a busy machine.
const (
	startTimeout   = 60 * time.Second
	stopTimeout    = 20 * time.Second
	requestTimeout = 15 * time.Second
	// settle is how long after a definition is established the API server
	// still delays each create, so that other servers learn of it.
	settle = 2 * time.Second
)

// Options says what the server has.
type Options struct {
	// CRDs are the definitions to install: every *.yaml below the root of the
	// file system, such as crd.Bases of fleetdesk/config/crd. Nil for none.
	CRDs fs.FS
	// Assets is the folder of kube-apiserver and etcd. Empty means bin/k8s of
	// the repository.
	Assets string
}

// Cluster is one API server for all tests of a test binary.
type Cluster struct {
	opts Options

	once    sync.Once
	env     *envtest.Environment
	cfg     *rest.Config
	err     error
	serials atomic.Int64
	// users holds one maker of users at a time: envtest's authority counts its
	// certificates without a lock.
	users sync.Mutex
}

// Shared returns a cluster that starts when the first test asks for it. Run or
// Around must be called by TestMain, to stop it.
func Shared(o Options) *Cluster { return &Cluster{opts: o} }

// Start starts a cluster for one test and stops it when the test ends. It
// takes about four seconds: prefer [Shared].
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := Shared(o)
	c.Config(t)
	t.Cleanup(func() {
		if err := c.stop(); err != nil {
			t.Errorf("stop the API server: %v", err)
		}
	})
	return c
}

// Run runs the tests, stops the cluster, and returns the exit code.
func (c *Cluster) Run(m interface{ Run() int }) int {
	code := m.Run()
	if err := c.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the API server:", err)
		return max(code, 1)
	}
	return code
}

// Around returns an m that stops the cluster when its tests are over, for
// those who check something after that.
func (c *Cluster) Around(m interface{ Run() int }) interface{ Run() int } { return around{c, m} }

type around struct {
	c *Cluster
	m interface{ Run() int }
}

func (a around) Run() int { return a.c.Run(a.m) }

// Config returns an administrator's configuration of a server that is ready:
// its default namespaces exist and the definitions serve creates without
// delay. The test ends when there is no server.
func (c *Cluster) Config(t testing.TB) *rest.Config {
	t.Helper()
	c.once.Do(c.start)
	if c.err != nil {
		t.Fatal(c.err)
	}
	return rest.CopyConfig(c.cfg)
}

// Namespace makes a namespace for this test and returns its name. It is not
// removed: without controllers it would stay Terminating. What lives outside
// namespaces is the test's own to remove.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	kc, err := kubernetes.NewForConfig(c.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceName(t.Name(), c.serials.Add(1))}}
	if _, err := kc.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatalf("make namespace %s: %v", ns.Name, err)
	}
	return ns.Name
}

// User returns the configuration of a user with that name and those groups,
// who may do what RBAC grants and nothing else. A service account's user is
// "system:serviceaccount:<namespace>:<name>".
func (c *Cluster) User(t testing.TB, name string, groups ...string) *rest.Config {
	t.Helper()
	c.Config(t)
	c.users.Lock()
	defer c.users.Unlock()
	u, err := c.env.AddUser(envtest.User{Name: name, Groups: groups}, &rest.Config{QPS: -1})
	if err != nil {
		t.Fatalf("make user %s: %v", name, err)
	}
	return u.Config()
}

func (c *Cluster) start() {
	assets, err := c.opts.assets()
	if err != nil {
		c.err = err
		return
	}
	crds, err := readCRDs(c.opts.CRDs)
	if err != nil {
		c.err = err
		return
	}
	c.env = &envtest.Environment{
		CRDs:                     crds,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  stopTimeout,
	}
	// A path that is set wins over every variable that envtest reads.
	c.env.ControlPlane.GetAPIServer().Path = filepath.Join(assets, "kube-apiserver")
	// It looks for the machine's default route otherwise, and a network namespace
	// has none. Nobody uses the address; it must not be loopback.
	c.env.ControlPlane.GetAPIServer().Configure().Set("advertise-address", "192.0.2.1")
	c.env.ControlPlane.Etcd = &envtest.Etcd{Path: filepath.Join(assets, "etcd")}
	c.cfg, err = c.env.Start()
	if err == nil {
		c.cfg.QPS = -1
		err = c.waitReady(len(crds) > 0)
	}
	if err == nil {
		return
	}
	c.err = fmt.Errorf("no API server for tests: %w", err)
	_ = c.env.Stop() // half of it may run; the error above is the one to tell
	c.env = nil
}

// assets returns the folder of the binaries, and says what to do when they are
// not there. envtest itself would try five times and leave goroutines behind.
func (o Options) assets() (string, error) {
	dir := o.Assets
	if dir == "" {
		root, err := repository()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, "bin", "k8s")
	}
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("no API server for tests: %w: run 'make kube-assets'", err)
		}
	}
	return dir, nil
}

// waitReady waits for what comes after the server says that it is ready.
func (c *Cluster) waitReady(crds bool) error {
	settled := time.NewTimer(settle) // from here on: the definitions are established
	defer settled.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	kc, err := kubernetes.NewForConfig(c.cfg)
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := kc.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the namespace %s: %w", metav1.NamespaceSystem, err)
		case <-tick.C:
		}
	}
	if crds {
		<-settled.C
	}
	return nil
}

// stop ends the server; without one it does nothing.
func (c *Cluster) stop() error {
	c.once.Do(func() { c.err = errors.New("no API server for tests: they are over") })
	if c.env == nil {
		return nil
	}
	return c.env.Stop()
}

// readCRDs reads every definition of the file system.
func readCRDs(files fs.FS) ([]*apiextv1.CustomResourceDefinition, error) {
	if files == nil {
		return nil, nil
	}
	var all []*apiextv1.CustomResourceDefinition
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		b, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		one := &apiextv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(b, one); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if one.Kind != "CustomResourceDefinition" {
			return fmt.Errorf("%s: is a %q, want one CustomResourceDefinition per file", path, one.Kind)
		}
		all = append(all, one)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = errors.New("no *.yaml there")
	}
	if err != nil {
		return nil, fmt.Errorf("definitions to install: %w", err)
	}
	return all, nil
}

// namespaceName makes a name of at most 63 bytes that a person can match to
// the test, and that no two calls of one cluster share.
func namespaceName(test string, serial int64) string {
	var b strings.Builder
	dash := true // none at the start, and no two in a row
	for _, r := range strings.ToLower(test) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
			dash = false
		} else if !dash {
			b.WriteByte('-')
			dash = true
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(test))
	tail := fmt.Sprintf("-%08x-%d", h.Sum32(), serial)
	head := strings.TrimPrefix(b.String(), "test")
	head = head[:min(len(head), 63-len("t")-len(tail))]
	return strings.TrimRight("t"+head, "-") + tail
}

// repository finds the root of the source tree above the folder of the test.
func repository() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if first, _, _ := strings.Cut(string(b), "\n"); err == nil && first == "module fleetdesk" {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod of module fleetdesk above %s: set Options.Assets", start)
		}
	}
}
