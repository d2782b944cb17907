package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/crd"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/testkit/kube"
)

// order is what an operator in a process of its own is told.
type order struct {
	Host                  string
	CAData, Cert, Key     []byte
	StateDir, Namespace   string
	ProvidersConfig, Self string
	// KillAt is the point at which it ends itself by SIGKILL; 0 for never.
	KillAt int64
}

// child is the main function of an operator in a process of its own.
func child(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var w order
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	k := newKiller(w.KillAt)
	k.kill = func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	o := settings(w.StateDir, w.Namespace)
	o.ProvidersConfig = w.ProvidersConfig
	o.LocalCommand = []string{w.Self, "local-proxy"}
	o.Log = obs.NewLogger(os.Stderr, obs.Options{Level: slog.LevelInfo})
	o.Build = func(_ config.Entry, builtin func() (provider.Provider, error)) (provider.Provider, error) {
		p, err := builtin()
		if err != nil {
			return nil, err
		}
		return k.wrap(p), nil
	}
	cfg := &rest.Config{Host: w.Host, TLSClientConfig: rest.TLSClientConfig{CAData: w.CAData, CertData: w.Cert, KeyData: w.Key}}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return transport{rt, k} })
	return operator.Run(ctx, cfg, o)
}

// process is an operator in a process of its own.
type process struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan struct{}
}

// spawn starts an operator with a providers file that ends itself at a point.
func (w *world) spawn(providersFile string, killAt int64) *process {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	text, err := json.Marshal(order{
		Host: w.cfg.Host, CAData: w.cfg.CAData, Cert: w.cfg.CertData, Key: w.cfg.KeyData,
		StateDir: filepath.Join(w.dir, "state"), Namespace: w.namespace, ProvidersConfig: providersFile, Self: self, KillAt: killAt,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.dir, fmt.Sprintf("order-%d.json", killAt))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self, "operator", file), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	w.t.Cleanup(p.end)
	return p
}

func (p *process) end() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// await waits for cond, or the process's end by its own kill, which it reports.
func (w *world) await(p *process, what string, cond func() (missing string)) (killed bool) {
	w.t.Helper()
	var missing string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.done:
			if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
				w.t.Fatalf("the operator ended by itself: %s\n%s", p.cmd.ProcessState, &p.out)
			}
			return true
		default:
		}
		if missing = cond(); missing == "" {
			return false
		}
	}
	p.end()
	w.t.Fatalf("%s: still after %s: %s\n%s", what, patience, missing, &p.out)
	return false
}

// localRuns is empty when the Proxy is Ready and its one process answers.
func (w *world) localRuns(dir, name string) (missing string) {
	px := w.get(name)
	if px == nil {
		return "no Proxy"
	}
	folders, err := filepath.Glob(filepath.Join(dir, "[0-9a-z]*"))
	if err != nil {
		w.t.Fatal(err)
	}
	if px.Status.Phase != v1alpha1.PhaseReady || len(folders) != 1 {
		return fmt.Sprintf("%+v, folders %q", px.Status, folders)
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort(px.Status.Address, strconv.Itoa(int(px.Status.Port))), time.Second)
	if err != nil {
		return err.Error()
	}
	_ = c.Close()
	return ""
}

// pidOf is the process of the one instance there is, 0 when none runs.
func pidOf(folders []string) int {
	if len(folders) != 1 {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(folders[0], "child.json"))
	if err != nil {
		return 0
	}
	var run struct{ PID int }
	if json.Unmarshal(text, &run) != nil {
		return 0
	}
	return run.PID
}

func (w *world) localGone(dir, name string) (missing string) {
	if px := w.get(name); px != nil {
		return fmt.Sprintf("%+v", px.Status)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	left = slices.DeleteFunc(left, func(p string) bool { // the provider's own folders
		return filepath.Base(p) == ".ops" || filepath.Base(p) == ".claims"
	})
	if len(left) > 0 {
		return fmt.Sprint(left)
	}
	return ""
}

// An operator of real processes ends itself by SIGKILL at its points, while it
// makes, heals and deletes a local proxy, and the next one goes on from there.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kube.Start(t, kube.Options{CRDs: crd.Bases}), fake.New(fake.Options{}))
	state := t.TempDir()
	file := filepath.Join(t.TempDir(), "providers.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "providers:\n- {name: local, kind: local, local: {stateDir: %q}}\n", state), 0o600); err != nil {
		t.Fatal(err)
	}
	kills := map[string]int{}
	for _, step := range []struct {
		name    string
		prepare func(name string)
		done    func(name string) string
	}{
		{"create", func(name string) {
			w.create(name, func(px *v1alpha1.Proxy) { px.Spec.Provider = "local" })
		}, func(name string) string { return w.localRuns(state, name) }},
		{"heal", func(name string) {
			folders, _ := filepath.Glob(filepath.Join(state, "[0-9a-z]*"))
			pid := pidOf(folders)
			if pid < 2 {
				t.Fatalf("no process in %q", folders)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			w.until(nil, "the process being gone", func() string {
				if w.localRuns(state, name) == "" {
					return "it answers"
				}
				return ""
			})
		}, func(name string) string { return w.localRuns(state, name) }},
		{"delete", w.delete, func(name string) string { return w.localGone(state, name) }},
	} {
		for at := int64(1); ; at += stride() {
			name := fmt.Sprintf("%s-%d", step.name, at)
			if step.name != "create" {
				p := w.spawn(file, 0)
				w.create(name, func(px *v1alpha1.Proxy) { px.Spec.Provider = "local" })
				w.await(p, name+" before", func() string { return w.localRuns(state, name) })
				p.end()
			}
			step.prepare(name)
			p := w.spawn(file, at)
			killed := w.await(p, name, func() string { return step.done(name) })
			p.end()
			next := w.spawn(file, 0)
			w.await(next, name+" after a kill", func() string { return step.done(name) })
			w.delete(name)
			w.await(next, name+" going", func() string { return w.localGone(state, name) })
			next.end()
			if !killed {
				break
			}
			kills[step.name]++
		}
	}
	for _, name := range []string{"create", "heal", "delete"} {
		t.Logf("DRILL operator.local.%s.kills %d", name, kills[name])
		if kills[name] == 0 {
			t.Errorf("nothing was killed during %s", name)
		}
	}
}

// stride is the distance between the points at which processes are killed: each
// one takes seconds, so a short drill takes every fifth.
func stride() int64 {
	if *drillFor >= time.Minute {
		return 1
	}
	return 5
}
