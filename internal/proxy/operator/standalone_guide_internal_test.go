package operator

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/crd"
	"fleetdesk/internal/testkit/kube"
)

func TestStandaloneDemo(t *testing.T) {
	cluster := kube.Start(t, kube.Options{CRDs: crd.Bases})
	s := &script{cfg: cluster.Config(t), at: Endpoints{Origin: "http://127.0.0.1:8701"}}
	r := startStandalone(t, s, func(o *StandaloneOptions, _ *Streams) { o.Demo = true })

	sc, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(s.cfg, client.Options{Scheme: sc})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range demoNames() {
		px := &v1alpha1.Proxy{}
		eventually(t, name+" is made", func() bool {
			return c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, px) == nil
		})
		px.Status.Phase = v1alpha1.PhaseProvisioning
		px.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonQuota, Message: "no room", LastTransitionTime: metav1.Now(),
		}}
		if err := c.Status().Update(t.Context(), px); err != nil {
			t.Fatal(err)
		}
		eventually(t, "progress of "+name, func() bool {
			return strings.Contains(r.err.String(), name+": Provisioning (QuotaExceeded: no room)")
		})
		if strings.Contains(r.out.String(), "Try in") {
			t.Error("the commands come before the demo's Proxies work")
		}
		px.Status.Phase, px.Status.Address, px.Status.Port = v1alpha1.PhaseReady, fmt.Sprint("127.64.0.", i+1), 3128
		if err := c.Status().Update(t.Context(), px); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "commands", func() bool { return strings.Contains(r.out.String(), "Stop with Ctrl-C") })
	for _, want := range []string{
		"KUBECONFIG=" + filepath.Join(r.o.DataDir, "kubeconfig") + " kubectl get proxies",
		"$(cat " + filepath.Join(r.o.DataDir, "admin-token") + ")",
		"curl -x http://127.64.0.1:3128 http://127.0.0.1:8701/ip",
		`-d '{"pool":"default.default"}' `,
	} {
		if !strings.Contains(r.out.String(), want) {
			t.Errorf("does not print %q:\n%s", want, r.out)
		}
	}
	if err := r.end(t); err != nil {
		t.Error(err)
	}

	// A second start finds its Proxies; without --demo and with none, it says how to make one.
	if err := c.DeleteAllOf(t.Context(), &v1alpha1.Proxy{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	r = startStandalone(t, &script{cfg: s.cfg, at: s.at}, nil)
	eventually(t, "commands", func() bool { return strings.Contains(r.out.String(), "Stop with Ctrl-C") })
	_, rest, _ := strings.Cut(r.out.String(), "echo '")
	manifest, _, _ := strings.Cut(rest, "'")
	px := &v1alpha1.Proxy{}
	if err := json.Unmarshal([]byte(manifest), px); err != nil {
		t.Fatalf("the printed manifest %q: %v", manifest, err)
	}
	px.Namespace = "default"
	if err := c.Create(t.Context(), px); err != nil {
		t.Errorf("the printed manifest is refused: %v", err)
	}
	if err := r.end(t); err != nil {
		t.Error(err)
	}
}

func TestDefaultDataDir(t *testing.T) {
	cases := map[string]struct {
		reason  string
		environ []string
		want    string
	}{
		"XDG":      {"the specification", []string{"HOME=/home/a", "XDG_DATA_HOME=/data"}, "/data/fleetdesk"},
		"home":     {"its default", []string{"HOME=/home/a"}, "/home/a/.local/share/fleetdesk"},
		"relative": {"the specification says to ignore it", []string{"HOME=/home/a", "XDG_DATA_HOME=data"}, "/home/a/.local/share/fleetdesk"},
		"last":     {"a process sees the last of two", []string{"HOME=/a", "HOME=/b"}, "/b/.local/share/fleetdesk"},
		"none":     {"a service without a home", nil, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := defaultDataDir(c.environ)
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("got %q, %v; want %q: %s", got, err, c.want, c.reason)
			}
			if err != nil && !strings.Contains(err.Error(), "--data-dir") {
				t.Errorf("%v does not say what to do", err)
			}
		})
	}
}

func TestFindKubectl(t *testing.T) {
	dir := t.TempDir()
	bin, path := filepath.Join(dir, "bin"), filepath.Join(dir, "path")
	for _, d := range []string{filepath.Join(bin, "k8s"), path} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(bin, "proxy-operator-standalone")
	environ := []string{"PATH=relative:" + path}
	if got := findKubectl(environ, exe); got != "kubectl" {
		t.Errorf("without any: %q", got)
	}
	beside := filepath.Join(bin, "k8s", "kubectl")
	onPath := filepath.Join(path, "kubectl")
	for _, f := range []string{beside, onPath} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := findKubectl(environ, exe); got != "kubectl" {
		t.Errorf("files that cannot be run count: %q", got)
	}
	_ = os.Chmod(beside, 0o700)
	if got := findKubectl(environ, exe); got != beside {
		t.Errorf("beside us: %q", got)
	}
	_ = os.Chmod(onPath, 0o700)
	if got := findKubectl(environ, exe); got != "kubectl" {
		t.Errorf("on the PATH its name is enough: %q", got)
	}
}

func TestQuote(t *testing.T) {
	cases := map[string]string{"/a/b-1.2": "/a/b-1.2", "/a b": "'/a b'", "it's": `'it'\''s'`, "": "''", "$(x)": "'$(x)'"}
	for in, want := range cases {
		if got := quote(in); got != want {
			t.Errorf("quote(%q) = %s, want %s: a shell reads it", in, got, want)
		}
	}
}
