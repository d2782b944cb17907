package controlplane_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fleetdesk/internal/core/fault"
	"fleetdesk/standalone/controlplane"
)

// childDir, when set, makes this test binary a control plane that runs until
// it is killed.
const childDir = "CONTROLPLANE_TEST_CHILD"

func TestMain(m *testing.M) {
	if v := os.Getenv(childDir); v != "" {
		var port int
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		dir, p, _ := strings.Cut(v, "|")
		_, _ = fmt.Sscan(p, &port)
		err := controlplane.Run(ctx, controlplane.Options{DataDir: dir, Bind: "127.0.0.1", Port: port},
			func(*rest.Config) { fmt.Println("ready") })
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// server is a running control plane.
type server struct {
	cfg    *rest.Config
	client *kubernetes.Clientset
	stop   func()
}

func start(t *testing.T, dir string, log *slog.Logger) *server {
	t.Helper()
	return startWith(t, controlplane.Options{DataDir: dir, Log: log})
}

func startWith(t *testing.T, o controlplane.Options) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	o.Bind, o.Port = "127.0.0.1", freePort(t)
	dir := o.DataDir
	ready, done := make(chan *rest.Config, 1), make(chan error, 1)
	began := time.Now()
	go func() { done <- controlplane.Run(ctx, o, func(c *rest.Config) { ready <- c }) }()
	select {
	case <-ready:
		t.Logf("ready after %s", time.Since(began).Round(time.Millisecond))
	case err := <-done:
		cancel()
		t.Fatalf("start: %v", err)
	}
	// People come by the file, so that is what the tests use.
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	s := &server{cfg: cfg, client: kubernetes.NewForConfigOrDie(cfg)}
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			t.Helper()
			began := time.Now()
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("stop: %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("did not stop")
			}
			took := time.Since(began)
			t.Logf("stopped after %s", took.Round(time.Millisecond))
			if took > 8*time.Second {
				t.Errorf("stopping took %s", took)
			}
		})
	}
	t.Cleanup(s.stop)
	return s
}

func TestObjectsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	var log syncBuffer
	s := startWith(t, controlplane.Options{DataDir: dir, Namespace: "crawl-system", Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))})
	create(t, s, "crawl-system", "own", nil) // where nobody made the namespace
	// A watch that is open when the server stops must not hold it up.
	w, err := s.client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	create(t, s, "default", "kept", nil)
	s.stop()
	for _, f := range []string{"kubeconfig", "pki/ca.key"} {
		fi, err := os.Stat(filepath.Join(dir, f))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o, want 600", f, fi.Mode().Perm())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "etcd-sockets")); !os.IsNotExist(err) {
		t.Error("the folder of sockets is still noted after a clean stop")
	}
	if log.String() != "" {
		t.Errorf("a good start and stop says at info level and above:\n%s", log.String())
	}

	s = startWith(t, controlplane.Options{DataDir: dir, Namespace: "crawl-system"})
	if !exists(t, s, "default", "kept") || !exists(t, s, "crawl-system", "own") {
		t.Error("the object is gone after a restart on the same data")
	}
}

func TestParallelServersAreSeparate(t *testing.T) {
	var group sync.WaitGroup
	var servers [2]*server
	for i := range servers {
		dir := t.TempDir()
		group.Go(func() { servers[i] = start(t, dir, nil) })
	}
	group.Wait()
	if t.Failed() {
		return
	}
	create(t, servers[0], "default", "mine", nil)
	if exists(t, servers[1], "default", "mine") {
		t.Error("two servers in one process share their state")
	}
}

func TestControllers(t *testing.T) {
	s := start(t, t.TempDir(), nil)
	ctx := t.Context()

	t.Run("owner", func(t *testing.T) {
		owner := create(t, s, "default", "owner", nil)
		create(t, s, "default", "owned", []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}})
		if err := s.client.CoreV1().ConfigMaps("default").Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, 15*time.Second, "the owned object goes with its owner", func() bool { return !exists(t, s, "default", "owned") })
	})
	t.Run("namespace", func(t *testing.T) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short-lived"}}
		if _, err := s.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		create(t, s, ns.Name, "inside", nil)
		until(t, 10*time.Second, "a new namespace gets its default service account", func() bool {
			_, err := s.client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
			return err == nil
		})
		if err := s.client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, 20*time.Second, "a deleted namespace goes away", func() bool {
			_, err := s.client.CoreV1().Namespaces().Get(ctx, ns.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})
	t.Run("cluster role", func(t *testing.T) {
		until(t, 10*time.Second, "the role admin is put together from its parts", func() bool {
			r, err := s.client.RbacV1().ClusterRoles().Get(ctx, "admin", metav1.GetOptions{})
			return err == nil && len(r.Rules) > 0
		})
	})
}

func TestDefinitionsAreServedAndUpdated(t *testing.T) {
	const before = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.kube.example.com}
spec:
  group: kube.example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {size: {type: integer}}
`
	after := strings.Replace(before, "{size: {type: integer}}", "{size: {type: integer}, colour: {type: string}}", 1)
	dir := t.TempDir()
	for i, step := range []struct{ definition, colour string }{{before, ""}, {after, "red"}} {
		s := startWith(t, controlplane.Options{DataDir: dir, CRDs: fstest.MapFS{"a/widgets.yaml": {Data: []byte(step.definition)}}})
		dc, err := dynamic.NewForConfig(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		w := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kube.example.com/v1", "kind": "Widget", "size": int64(1), "colour": "red",
			"metadata": map[string]any{"name": fmt.Sprint("w", i)},
		}}
		began := time.Now()
		got, err := dc.Resource(schema.GroupVersionResource{Group: "kube.example.com", Version: "v1", Resource: "widgets"}).
			Namespace("default").Create(t.Context(), w, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("ready was called and the kind is not served: %v", err)
		}
		// The server itself delays creates for 2 s after a definition is new.
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("the first create took %s", took)
		}
		if colour, _, _ := unstructured.NestedString(got.Object, "colour"); colour != step.colour {
			t.Errorf("start %d: the field has the value %q, want %q", i, colour, step.colour)
		}
		s.stop()
	}
}

func TestKilledProcess(t *testing.T) {
	dir := t.TempDir()
	child, _ := startChild(t, dir)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	create(t, &server{client: kubernetes.NewForConfigOrDie(cfg)}, "default", "kept", nil)
	if err := child.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	noted, err := os.ReadFile(filepath.Join(dir, "etcd-sockets"))
	if err != nil {
		t.Fatal(err)
	}
	sockets := strings.TrimSpace(string(noted))
	if _, err := os.Stat(sockets); err != nil {
		t.Fatalf("this test proves nothing: the killed process left no sockets: %v", err)
	}

	s := start(t, dir, nil)
	if !exists(t, s, "default", "kept") {
		t.Error("a write that was answered is gone after kill -9")
	}
	if _, err := os.Stat(sockets); !os.IsNotExist(err) {
		t.Error("the sockets of the killed process are still there")
	}
}

func TestRefusals(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ok := controlplane.Options{DataDir: t.TempDir(), Bind: "127.0.0.1", Port: 16443}
	cases := map[string]struct {
		reason string
		change func(*controlplane.Options)
		says   string
		class  fault.Class
	}{
		"no folder": {"a default would put state where nobody looks", func(o *controlplane.Options) { o.DataDir = "" }, "no data directory", fault.Invalid},
		"name":      {"a name cannot be listened on reliably", func(o *controlplane.Options) { o.Bind = "localhost" }, "not an IP address", fault.Invalid},
		"port":      {"port 0 would make a kubeconfig for nobody", func(o *controlplane.Options) { o.Port = 0 }, "not between", fault.Invalid},
		"a file":    {"the folder cannot be made", func(o *controlplane.Options) { o.DataDir = file }, file, fault.Permanent},
		"no keys": {"a damaged authority stops the start, it is not replaced", func(o *controlplane.Options) {
			o.DataDir = t.TempDir()
			if err := os.Mkdir(filepath.Join(o.DataDir, "pki"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "ca.crt", fault.Permanent},
		"not a definition": {"a wrong file must not pass for none", func(o *controlplane.Options) {
			o.CRDs = fstest.MapFS{"a.yaml": {Data: []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: a}")}}
		}, "Secret", fault.Permanent},
		"refused definition": {"what the API refuses now it refuses at every start", func(o *controlplane.Options) {
			o.Port = freePort(t)
			o.CRDs = fstest.MapFS{"a.yaml": {Data: []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: other.kube.example.com}
spec:
  group: kube.example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`)}}
		}, "other.kube.example.com", fault.Permanent},
		"foreign address": {"an address of another machine", func(o *controlplane.Options) { o.Bind = "192.0.2.1" }, "no such address", fault.Invalid},
		"port in use":     {"the port's owner keeps it and we say so", func(o *controlplane.Options) { o.Port = busy.Addr().(*net.TCPAddr).Port }, "address already in use", fault.Conflict},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := ok
			c.change(&o)
			err := controlplane.Run(t.Context(), o, func(*rest.Config) { t.Error("ready") })
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error with %q: %s", err, c.says, c.reason)
			}
			if fault.Of(err) != c.class {
				t.Errorf("class %q, want %q: the exit code depends on it", fault.Of(err), c.class)
			}
		})
	}
}

func TestStopWhileStarting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := controlplane.Options{DataDir: t.TempDir(), Bind: "127.0.0.1", Port: freePort(t)}
	done := make(chan error, 1)
	go func() { done <- controlplane.Run(ctx, o, func(*rest.Config) {}) }()
	// Long enough to be amid the start, on any machine: the moment does not matter.
	time.Sleep(700 * time.Millisecond)
	cancel()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("a start that was called off never ends")
	}
	start(t, o.DataDir, nil)
}

func TestAProcessStopsInSilence(t *testing.T) {
	child, output := startChild(t, t.TempDir())
	if err := child.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	st, err := child.Wait()
	if err != nil || !st.Success() {
		t.Errorf("ended with %v, %v", st, err)
	}
	rest, err := io.ReadAll(output)
	if err != nil || len(rest) > 0 {
		t.Errorf("a person who stops it reads (%v):\n%s", err, rest)
	}
}

// startChild starts a control plane as a process of its own and returns it,
// and the rest of its output, once it is ready.
func startChild(t *testing.T, dir string) (*os.Process, io.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	p, err := os.StartProcess(self, []string{self}, &os.ProcAttr{
		Env:   append(os.Environ(), fmt.Sprintf("%s=%s|%d", childDir, dir, freePort(t))),
		Files: []*os.File{nil, w, w},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	_ = r.SetReadDeadline(time.Now().Add(60 * time.Second))
	output := bufio.NewReader(r)
	for {
		line, err := output.ReadString('\n')
		if line == "ready\n" {
			return p, output
		}
		if err != nil {
			t.Fatalf("the child did not become ready: %v", err)
		}
		t.Errorf("a quiet start prints %q", line)
	}
}

func create(t *testing.T, s *server, ns, name string, owners []metav1.OwnerReference) *corev1.ConfigMap {
	t.Helper()
	o, err := s.client.CoreV1().ConfigMaps(ns).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func exists(t *testing.T, s *server, ns, name string) bool {
	t.Helper()
	_, err := s.client.CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func until(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(d); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// syncBuffer is a buffer that many goroutines may write.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

var _ io.Writer = (*syncBuffer)(nil)

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
