package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait: far above what anything here takes.
const patience = 60 * time.Second

// binary returns a built program.
func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `make standalone kube-assets` first", err)
	}
	return path
}

// buffer is a writer that may be read meanwhile.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// program is a started proxy-operator-standalone.
type program struct {
	t        *testing.T
	dir      string
	cmd      *exec.Cmd
	out, err buffer
	exited   chan struct{}
	code     int
	at       struct {
		PID           int    `json:"pid"`
		Kubeconfig    string `json:"kubeconfig"`
		KubernetesURL string `json:"kubernetesURL"`
		APIURL        string `json:"apiURL"`
		TokenFile     string `json:"tokenFile"`
		OriginURL     string `json:"originURL"`
	}
}

// launch starts the program in a data folder with free ports, and returns
// without waiting. The test's end ends it, and the local proxies of its folder.
func launch(t *testing.T, dir string, args ...string) *program {
	t.Helper()
	p := &program{t: t, dir: dir, exited: make(chan struct{})}
	all := []string{
		"--data-dir", dir,
		"--port", strconv.Itoa(freePort(t)), "--api-port", strconv.Itoa(freePort(t)), "--origin-bind-address", "127.0.0.1:0",
		"--list-interval", "2s",
	}
	p.cmd = exec.Command(binary(t, "proxy-operator-standalone"), append(all, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit code says it all
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.exited)
	}()
	t.Cleanup(func() {
		// Asked first, so that it takes its sockets with it.
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.exited:
		case <-time.After(20 * time.Second):
			t.Error("it does not stop when asked")
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
		endProxies(t, dir)
		if t.Failed() {
			t.Logf("output:\n%s\n%s", &p.out, &p.err)
		}
	})
	return p
}

// start is launch, and waits until it is ready.
func start(t *testing.T, dir string, args ...string) *program {
	t.Helper()
	p := launch(t, dir, args...)
	until(t, "the program being ready", func() string {
		select {
		case <-p.exited:
			t.Fatalf("it ended with %d:\n%s\n%s", p.code, &p.out, &p.err)
		default:
		}
		b, err := os.ReadFile(filepath.Join(dir, "endpoints.json"))
		if err == nil {
			err = json.Unmarshal(b, &p.at)
		}
		if err == nil && p.at.PID != p.cmd.Process.Pid {
			err = errors.New("endpoints.json is of an earlier process")
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	return p
}

// end waits for the program's end and returns its exit code.
func (p *program) end() int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.code
	case <-time.After(patience):
		p.t.Fatalf("it does not end:\n%s", &p.err)
		return -1
	}
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// kubectl runs the real kubectl against the program.
func (p *program) kubectl(stdin string, args ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(p.t, "k8s/kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.at.Kubeconfig)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// processes returns the local proxies that run for a data folder, by pid.
func processes(t *testing.T, dir string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue // it ended meanwhile
		}
		args := strings.Split(string(cmdline), "\x00")
		if len(args) > 3 && args[1] == "local-proxy" && strings.Contains(string(cmdline), dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// endProxies ends what a test's operator left running on purpose.
func endProxies(t *testing.T, dir string) {
	t.Helper()
	for _, pid := range processes(t, dir) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("ending local proxy %d: %v", pid, err)
		}
	}
}

func until(t *testing.T, what string, cond func() (missing string)) {
	t.Helper()
	var missing string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if missing = cond(); missing == "" {
			return
		}
	}
	t.Fatalf("%s: still after %s: %s", what, patience, missing)
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

func hostPort(address string, port int) string { return net.JoinHostPort(address, fmt.Sprint(port)) }
